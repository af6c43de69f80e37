"""A printed order beside what a set of assumptions gives: a monomial, an upper bound, or a window of exponents.

``law`` in a published table names the set and says what the printed object ``is``: how it is composed of the set's
quantities. Read next: ``comparison.py`` (who asks), ``scaling_algebra/laws/feasible.py`` (what answers).
"""

from __future__ import annotations

from functools import lru_cache

import sympy

from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.feasible import Feasible, assumptions, feasible
from scaling_algebra.laws.inequalities import End
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.tables.published.reading import Printed


def allowed(cell: Printed) -> tuple[bool, str, str]:
    """Whether a printed order follows, what follows as text, and where it comes from.

    Law: with sign ``=`` both are one monomial, up to constants and logarithms, or have one exponent ``of`` a quantity;
    with ``<=`` the assumptions imply that the object is at most the printed order; with ``window`` the printed ends are
    those of the object's exponent.
    """
    spec, value = cell.setting["law"], str(cell.value)
    found = _solved(spec["assumptions"], tuple(sorted(spec.get("at", {}).items())))
    laws = "".join(f" --set '{name}={law}'" for name, law in spec.get("at", {}).items())
    source = f"{spec['is']}, scalecalc feasible {spec['assumptions']}{laws}"
    sign = spec.get("sign", "=")
    if sign == "window":
        w = found.window(monomial(spec["is"]))
        derived = [_end(e, found.system.grows) for e in (w.low, w.high)]
        printed = [str(monomial(x)) if x.strip() != "-" else "-" for x in value.split(",")]
        return printed == derived, ", ".join(derived), source
    composed = _powers(found, spec["is"])
    if "of" in spec:
        return composed[spec["of"]] == sympy.Rational(value), str(composed[spec["of"]]), source
    if sign == "=":
        return composed == _powers(found, value), str(composed), source
    high = found.window(composed / monomial(value)).high
    return high.value is not None and high.value <= 0, str(composed), source


@lru_cache(maxsize=16)
def _solved(name: str, laws: tuple[tuple[str, str], ...]) -> Feasible:
    return feasible(assumptions(name), {q: monomial(text) for q, text in laws})


def _powers(found: Feasible, text: str) -> Monomial:
    """A monomial in what is neither defined nor equal to something else, without its constant and logarithms."""
    equal = found.system.equal
    whole = monomial(text).substituted(found.system.defined(equal) | equal)
    return whole.power


def _end(end: End, grows: str) -> str:
    return "-" if end.value is None else str(Monomial.of({grows: sympy.Rational(end.value)}))
