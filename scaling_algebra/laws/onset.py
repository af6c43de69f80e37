"""From which size on does each assumption hold, with every constant 1? Numbers, not exponents.

Read next: ``feasible.py`` (the assumptions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scaling_algebra.errors import check_names

from .monomials import Monomial, Relation

_STEP, _NEAREST, _FARTHEST = 1.05, 1e-3, 1e15
"""Ratio of neighbouring points of the search, and its ends: all in the logarithm of what grows."""


@dataclass(frozen=True)
class Onset:
    """The size from which an assumption holds for good.

    Attributes:
        log10: of the size; None if ``why`` says why there is none.
    """

    name: str
    log10: float | None
    why: str = ""

    def __str__(self) -> str:
        if self.log10 is None:
            return self.why
        return f"{10**self.log10:.4g}" if self.log10 < 6 else f"10^{self.log10:.6g}"


def onsets(relations: Mapping[str, Relation], grows: str, values: Mapping[str, float]) -> tuple[Onset, ...]:
    """The onset of every inequality; what the values leave open is named.

    Raises:
        UsageError: a value of something else than a quantity.
    """
    quantities = frozenset[str]().union(*(r.quantities for r in relations.values())) - {grows}
    check_names("quantity with a value", sorted(values), sorted(quantities))
    answers = []
    for name, r in relations.items():
        if r.sign != "=":
            each = [_onset(name, m, grows, values) for m in r.ratios()]
            answers.append(next((o for o in each if o.log10 is None), max(each, key=lambda o: o.log10 or 0.0)))
    return tuple(answers)


def _onset(name: str, ratio: Monomial, grows: str, values: Mapping[str, float]) -> Onset:
    """From where on a monomial stays below 1."""
    if missing := sorted((ratio.quantities | ratio.parameters) - {grows, *values}):
        return Onset(name, None, f"needs {', '.join(missing)}")
    logs = {q: math.log(x) for q, x in values.items()}

    def above(u: float) -> bool:
        """Nothing holds where logarithms are not positive."""
        return not ratio.log_at({**logs, grows: u}) <= 0

    points = [_NEAREST * _STEP**k for k in range(math.ceil(math.log(_FARTHEST / _NEAREST, _STEP)))]
    last = max((u for u in points if above(u)), default=0.0)
    if last * _STEP >= _FARTHEST:
        return Onset(name, None, "never")
    low, high = last, last * _STEP
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return Onset(name, high / math.log(10))
