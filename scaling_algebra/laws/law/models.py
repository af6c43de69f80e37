"""A law at the shapes of concrete models: sizes, terms, where the model lies, and the best choice there.

Read next: ``library.py`` (laws), ``lambert.py`` (the best choice with its logarithm).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError
from scaling_algebra.files import read_text, toml

from ..balance.balance import Balance
from ..balance.lambert import stationary
from ..entries import MOST
from ..expressions import Monomial, Sum, parameter
from .library import Answer

MODELS = 1_000


@dataclass(frozen=True)
class Placed:
    """One model under a law.

    Attributes:
        name: of the model. shapes: as given. sizes: of the law. terms: of the sum of the first axis, in numbers.
        limits: conditions of its first cell: (condition, the number on its right, whether it holds).
        best: what is minimised over, at its exact optimum, where there is a closed form.
    """

    name: str
    shapes: Mapping[str, float]
    sizes: Mapping[str, float]
    terms: Mapping[str, float]
    limits: tuple[tuple[str, float, bool], ...]
    best: Mapping[str, float]

    @property
    def largest(self) -> str:
        return max(self.terms, key=lambda t: self.terms[t])

    def record(self) -> dict[str, Any]:
        limits = [{"where": text, "number": x, "holds": true} for text, x, true in self.limits]
        return {
            "model": self.name,
            **{k: dict(getattr(self, k)) for k in ("shapes", "sizes", "terms")},
            "limits": limits,
        }


def read_models(path: Path) -> list[tuple[str, dict[str, float]]]:
    """Names and shapes: ``[[model]]`` tables of numbers; what stands above them holds for all.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    text = read_text(path, "give a TOML file with the shapes of models", MOST)
    try:
        data = toml(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    shared = {k: v for k, v in data.items() if k != "model"}
    entries = data.get("model", [shared] if shared else [])
    if not isinstance(entries, list) or not entries or len(entries) > MODELS:
        raise UsageError(f"{path}: give shapes such as L_T = 4, or up to {MODELS} tables [[model]] of them")
    found = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            raise UsageError(f"{path}: model {number} is {entry!r}; it must be a table [[model]]")
        shapes = {k: v for k, v in {**shared, **entry}.items() if k != "name"}
        for key, value in shapes.items():
            number_ = isinstance(value, int | float) and not isinstance(value, bool)
            if not number_ or not 0 < value < inf:
                raise UsageError(f"{path}: model {number}: {key} is {value!r}; it must be a positive number")
        found.append((str(entry.get("name", number)), {k: float(v) for k, v in shapes.items()}))
    return found


def placed(a: Answer, models: list[tuple[str, dict[str, float]]]) -> list[Placed]:
    """Every model under the first axis of an answer.

    Raises:
        UsageError: a size or a parameter that nothing gives.
    """
    axis = next(iter(a.axes.values()))
    if open_ := sorted(axis.total.parameters):
        raise UsageError(f"no number for {', '.join(open_)}; give values of all parameters with --at")
    found = []
    for name, shapes in models:
        sizes = {key: number(total, shapes, name) for key, total in a.law.model.items() if key not in shapes}
        every = {**shapes, **sizes}
        terms = {str(t): number(Sum((t,)), every, name) for t in axis.total.terms}
        limits = []
        for c in axis.cells[0].where:
            if c.bound is not None:
                sign, right = c.bound
                limit, own = (
                    number(Sum((right,)), every, name),
                    number(Sum((Monomial.of({c.isolate: sympy.S.One}),)), every, name),
                )
                limits.append((str(c), limit, own <= limit if sign == "<=" else own >= limit))
        best = {q: _best(axis, q, every, name) for q in axis.minimised if stationary(axis.reduced, q) is not None}
        found.append(Placed(name, shapes, sizes, terms, tuple(limits), best))
    return found


def _best(axis: Balance, name: str, at: Mapping[str, float], of: str) -> float:
    """The optimum with its logarithm, up to the least of its bounds."""
    exact = stationary(axis.reduced, name)
    assert exact is not None
    caps = [
        Monomial.of({q: e for q, e in m.powers if q != name}) ** (-1 / m[name]) for m in axis.bounds if m[name] != 0
    ]
    cap = min((number(Sum((c,)), at, of) for c in caps), default=1e30)
    return exact.at({parameter(q): sympy.Float(x) for q, x in at.items()}, cap)


def number(total: Sum, at: Mapping[str, float], of: str) -> float:
    """A sum at numbers.

    Raises:
        UsageError: a quantity without a number, or a result beyond what a float holds.
    """
    if missing := sorted(total.quantities - set(at)):
        raise UsageError(f"model {of}: no number for {missing[0]}, which {total} needs; add it to the shapes")
    value = sympy.N(total.expr.xreplace({parameter(q): sympy.Float(at[q]) for q in total.quantities}))
    if not value.is_real or not isfinite(float(value)):
        raise UsageError(f"model {of}: {total} is no number at these shapes")
    return float(value)


def shown(found: list[Placed]) -> list[Block]:
    """A grid of sizes and terms, and what each model is outside of."""
    best = [f"best {q}" for q in found[0].best]
    columns = [*found[0].sizes, *found[0].terms, "largest term", *best]
    rows = []
    for m in found:
        values = [f"{x:,.0f}" if x >= 100 else f"{x:.4g}" for x in m.sizes.values()]
        rows.append(
            (
                literal(m.name),
                *values,
                *(f"{x:.3g}" for x in m.terms.values()),
                literal(m.largest),
                *(f"{x:.4g}" for x in m.best.values()),
            )
        )
    lines = []
    for m in found:
        broken = [f"{text} = {x:.3g} does not hold" for text, x, true in m.limits if not true]
        lines.append(literal(f"{m.name}: " + ("; ".join(broken) or "all conditions of the first cell hold")))
    return [Heading("models", 3), Grid.of(("model", *columns), rows), Lines.of(*lines, listed=True)]
