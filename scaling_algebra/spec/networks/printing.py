"""Writes a network back as equations: as text that ``grammar.py`` reads, and as LaTeX.

Every statement is an equation of its own; parts of larger expressions have the names that they were given when read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .grammar import goes_along
from .language import DATA, Factor, Function, Network, Statement, Sum
from .parsing import indexed


def as_text(network: Network) -> str:
    """The equations, one on a line, with aligned signs. Read again they are the same network."""
    sides = [(indexed(s.out, network.signals[s.out]), _right(network, s)) for s in network.statements]
    width = max(len(left) for left, _ in sides)
    return "\n".join(f"{left:<{width}} = {right}" for left, right in sides)


def latex_sides(network: Network) -> list[tuple[str, str]]:
    """Left and right side of every equation, as LaTeX."""
    return [(_latex(Factor(s.out, network.signals[s.out])), _latex_right(network, s)) for s in network.statements]


def _factors(network: Network, statement: Statement) -> list[Factor]:
    """Factors of a product, without multipliers, or terms of a sum: tensors by their names in the equations."""
    tensor = getattr(statement, "tensor", None)
    weights = [Factor(network.tensors[tensor.name].symbol, tensor.letters)] if tensor else []
    return [*weights, *statement.inputs]


# text ----------------------------------------------------------------------------------------------------------


def _right(network: Network, statement: Statement) -> str:
    if isinstance(statement, Function):
        letters = network.signals[statement.out]
        named = statement.over != letters[-1:] or (goes_along(statement.name) and len(letters) > 1)
        along = f"; {statement.over}" if statement.source and named else ""
        return f"{statement.name}({''.join(indexed(x.name, x.letters) for x in statement.inputs)}{along})"
    parts = [indexed(x.name, x.letters) for x in _factors(network, statement)]
    return " + ".join(parts) if isinstance(statement, Sum) else " ".join((*statement.multipliers, *parts))


# LaTeX ---------------------------------------------------------------------------------------------------------

_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"


def _latex(x: Factor) -> str:
    """``W_{2,ika}``, ``\\phi_{i}``, ``h_{3i,ib}``: a name, what its end counts, its letters."""
    whole = re.fullmatch(r"([^\W\d_]+?)(\d\w*)?((?:_\w+)?)", x.name) if x.name != DATA else None
    base, number, rest = whole.groups("") if whole else (x.name, "", "")
    below = ",".join(filter(None, (number, rest[1:], x.letters))).replace("_", ",")
    return _symbol(base) + (f"_{{{below}}}" if below else "")


def _symbol(name: str) -> str:
    if name in _GREEK.split():
        return rf"\{name}"
    return name if len(name) == 1 else rf"\mathrm{{{name}}}".replace("_", r"\_")


def _latex_right(network: Network, statement: Statement) -> str:
    if isinstance(statement, Function):
        along = f"_{{{statement.over}}}" if goes_along(statement.name) else ""
        return rf"{_symbol(statement.name)}{along}({''.join(map(_latex, statement.inputs))})"
    parts: Sequence[str] = [_latex(x) for x in _factors(network, statement)]
    if isinstance(statement, Sum):
        return " + ".join(parts)
    summed = network.summed(statement)
    sign = [rf"\sum_{{{','.join(summed)}}}"] if summed else []
    return " ".join((*(_latex(Factor(m, "")) for m in statement.multipliers), *sign, *parts))
