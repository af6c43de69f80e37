"""From which size on does each assumption hold, with every constant 1? Numbers, not exponents.

Read next: ``feasible.py`` (the assumptions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scaling_algebra.errors import UsageError, unknown_name

from ..monomials import Monomial
from .feasible import Feasible

_STEP, _FARTHEST = 1.05, 1e15
"""Ratio of neighbouring points of the search, and its end: both in the logarithm of what grows."""


@dataclass(frozen=True)
class Onset:
    """Where an assumption begins to hold for good.

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


def onsets(f: Feasible, values: Mapping[str, float]) -> tuple[Onset, ...]:
    """The onset of every inequality; what the values and growth laws leave open is named.

    Raises:
        UsageError: a value of something else than a quantity.
    """
    system = f.system
    equal = {name: m.substituted(f.given) for name, m in system.equal.items() if name not in values}
    given = equal | dict(f.given)
    put = system.defined(given) | given
    relations = [
        (a, a.relation.left.substituted(put), a.relation.sign, a.relation.right.substituted(put)) for a in f.assumed
    ]
    known = frozenset[str]().union(*(x.quantities | y.quantities for _, x, _, y in relations)) - {system.grows}
    for name in values:
        if name not in known:
            raise unknown_name("quantity with a value", name, sorted(known))
    found = []
    for a, left, sign, right in relations:
        if sign == "=":
            continue
        small, large = (left, right) if sign[0] == "<" else (right, left)
        ratios = [t * large.terms[0] ** -1 for t in small.terms]
        each = [_onset(a.name, r, system.grows, values) for r in ratios]
        found.append(next((o for o in each if o.log10 is None), max(each, key=lambda o: o.log10 or 0.0)))
    return tuple(found)


def _onset(name: str, ratio: Monomial, grows: str, values: Mapping[str, float]) -> Onset:
    """From where on a monomial stays below 1."""
    if missing := sorted((ratio.quantities | ratio.parameters) - {grows, *values}):
        return Onset(name, None, f"needs {', '.join(missing)}")

    def above(u: float) -> bool:
        """Where logarithms are not positive, nothing is said to hold."""
        try:
            return _log(ratio, grows, values, u) > 0
        except ValueError:
            return True

    last, u = 0.0, 1e-3
    while u < _FARTHEST:
        last = u if above(u) else last
        u *= _STEP
    if last * _STEP >= _FARTHEST:
        return Onset(name, None, "never")
    low, high = last, last * _STEP
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return Onset(name, high / math.log(10))


def _log(m: Monomial, grows: str, values: Mapping[str, float], u: float) -> float:
    """The logarithm of a monomial where that of what grows is u.

    Raises:
        ValueError: the logarithm of something below 1 stands in it.
    """
    total = math.log(float(m.coefficient))
    for name, e in m.powers:
        total += float(e) * (u if name == grows else math.log(values[name]))
    for argument, e in m.logs:
        total += float(e) * math.log(_log(argument, grows, values, u))
    return total


def value(text: str) -> tuple[str, float]:
    """``K=4``.

    Raises:
        UsageError: no name with a positive number.
    """
    from scaling_algebra.limits import real

    name, _, number = text.partition("=")
    try:
        found = real(number)
    except (ValueError, OverflowError):
        raise UsageError(f"the value {text!r} is no number; write for example K=4") from None
    if not 0 < found < 1e30:
        raise UsageError(f"the value {text!r} is not positive, or above 1e30; write for example K=4")
    return name.strip(), found
