"""Writes a network back as equations that ``grammar.py`` reads.

Every statement is an equation of its own. Parts of larger expressions keep the names that they got when read.
"""

from __future__ import annotations

from .grammar import goes_along
from .language import Factor, Function, Network, Statement, Sum
from .parsing import indexed


def as_text(network: Network) -> str:
    """The equations, one on a line, with aligned signs. Read again they are the same network."""
    sides = [(indexed(s.out, network.signals[s.out]), _right(network, s)) for s in network.statements]
    width = max(len(left) for left, _ in sides)
    return "\n".join(f"{left:<{width}} = {right}" for left, right in sides)


def _right(network: Network, statement: Statement) -> str:
    if isinstance(statement, Function):
        letters = network.signals[statement.out]
        named = statement.over != letters[-1:] or (goes_along(statement.name) and len(letters) > 1)
        along = f"; {statement.over}" if statement.source and named else ""
        return f"{statement.name}({''.join(indexed(x.name, x.letters) for x in statement.inputs)}{along})"
    tensor = None if isinstance(statement, Sum) else statement.tensor
    weights = [Factor(network.tensors[tensor.name].symbol, tensor.letters)] if tensor else []
    parts = [indexed(x.name, x.letters) for x in (*weights, *statement.inputs)]
    return " + ".join(parts) if isinstance(statement, Sum) else " ".join((*statement.multipliers, *parts))
