"""Writes a network back as equations that ``grammar.py`` reads.

Every statement becomes one equation. Parts of larger expressions keep the names that they got when read.
"""

from __future__ import annotations

from .grammar import needs_index
from .language import Factor, Function, Network, Statement, Sum
from .parsing import write_indexed


def as_text(network: Network) -> str:
    """Writes the equations, one to a line, with aligned equals signs. Read again they give the same network."""
    sides = [(write_indexed(s.out, network.signals[s.out]), _write_right_side(network, s)) for s in network.statements]
    width = max(len(left) for left, _ in sides)
    return "\n".join(f"{left:<{width}} = {right}" for left, right in sides)


def _write_right_side(network: Network, statement: Statement) -> str:
    """Writes the right side of a statement's equation."""
    if isinstance(statement, Function):
        indices = network.signals[statement.out]
        named = statement.over != indices[-1:] or (needs_index(statement.name) and len(indices) > 1)
        along = f"; {statement.over}" if statement.source and named else ""
        return f"{statement.name}({''.join(write_indexed(x.name, x.indices) for x in statement.inputs)}{along})"
    tensor = None if isinstance(statement, Sum) else statement.tensor
    weights = [Factor(network.tensors[tensor.name].symbol, tensor.indices)] if tensor else []
    parts = [write_indexed(x.name, x.indices) for x in (*weights, *statement.inputs)]
    return " + ".join(parts) if isinstance(statement, Sum) else " ".join((*statement.multipliers, *parts))
