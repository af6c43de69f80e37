"""A printed cell about a law beside what the law gives: exponents, powers, thresholds, identities and numbers.

``law`` in a published table says what to ask: the axis and cell of a balance, and what of it. Read next:
``comparison.py`` (who asks), ``scaling_algebra/laws/law.py`` (what answers).
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import sympy

from scaling_algebra.laws.expressions import exponent, expression, monomial
from scaling_algebra.laws.law import LawAnswer, answer, law
from scaling_algebra.laws.monomials import Monomial, Posynomial, parameter, simplified
from scaling_algebra.tables.published.reading import Printed


def held(cell: Printed) -> tuple[bool, str, str]:
    """Whether a printed cell is what the law gives, what that is as text, and where it comes from."""
    spec, value = cell.setting["law"], str(cell.value)
    choices = tuple(sorted((k, v) for k, v in spec.items() if k in ("rate", "count")))
    found = _answered(spec.get("name", "moe-transformer"), choices)
    options = "".join(f" --{k} {v}" for k, v in choices)
    source = f"scalecalc law {found.law.name}{options}" + (f" --axis {spec['axis']}" if "axis" in spec else "")
    if "numbers" in spec:
        return (*_numbers(found, spec, value), source)
    if "identity" in spec:
        put = {parameter(n): e for n, e in found.exponents.items()}
        same = simplified(found.exponents[spec["identity"]] - exponent(value).xreplace(put)) == 0
        known = [str(i.right).replace("**", "^") for i in found.law.identities if i.name == spec["identity"]]
        return bool(same), " = ".join(known), source
    derived = _derived(found, spec)
    if "of" in spec:
        exponents = [m.terms[0][spec["of"]] for m in derived]
        same = len(exponents) == 1 and simplified(exponents[0] - exponent(value)) == 0
        return bool(same), ", ".join(str(e).replace("**", "^") for e in exponents), source
    printed = [expression(text) for text in value.split(",")]
    shown = (" + ".join(sorted(map(str, _sizes(d)))) for d in derived)
    return [_sizes(p) for p in printed] == [_sizes(d) for d in derived], ", ".join(shown), source


def _sizes(total: Posynomial) -> set[Monomial]:
    """The terms without constants."""
    return {Monomial.of(dict(t.powers), logs=t.logs) for t in total.terms}


@lru_cache(maxsize=16)
def _answered(name: str, choices: tuple[tuple[str, str], ...]) -> LawAnswer:
    return answer(law(name), choices=dict(choices))


def _derived(found: LawAnswer, spec: Mapping[str, Any]) -> list[Posynomial]:
    """What the law gives: the minimum, or ``what`` of the optimum; its sum; a term; a bound; a size that is reached."""
    axis = found.axes[spec["axis"]]
    cell = axis.cells[spec.get("cell", 0)]
    put = {q: monomial(text) for q, text in spec.get("with", {}).items()}
    if "bound" in spec:
        name = spec["bound"]
        on = [c.ratio for c in cell.where if c.ratio[name] != 0]
        made = [r.solved(name) for r in on]
        return [Posynomial((m.substituted(put) * monomial(spec.get("times", "1")),)) for m in made]
    if "terms" in spec:
        terms = [axis.reduced.terms[k].substituted(put) for k in spec["terms"]]
        if "per" in spec:  # the derivative, of a power or of its logarithm
            terms = [Monomial.of({**dict(t.powers), spec["per"]: t[spec["per"]] - 1}) for t in terms]
        return [Posynomial(tuple(terms))]
    what = spec.get("what", "minimum")
    if "reach" in spec:
        size = cell.reach(spec["reach"], axis.growing[0])[what]
    else:
        size = cell.minimum if what == "minimum" else cell.optimum[what]
    return [Posynomial((size.substituted(put) ** exponent(spec.get("power", "1")),))]


def _numbers(found: LawAnswer, spec: Mapping[str, Any], value: str) -> tuple[bool, str]:
    """Printed decimals beside functions of exponents, within one unit of the last digit: truncated or rounded."""
    printed = [Decimal(text.strip()) for text in value.split(",")]
    derived = []
    for at in spec["at"]:
        point = {parameter(name): sympy.Rational(text) for name, text in at.items()}
        put = {parameter(n): e.xreplace(point) for n, e in found.exponents.items()} | point
        derived += [float(exponent(text).xreplace(put)) for text in spec["numbers"]]
    near = [
        abs(float(p) - x) <= float(Decimal(1).scaleb(int(p.as_tuple().exponent)))
        for p, x in zip(printed, derived, strict=True)
    ]
    digits = [2 - int(p.as_tuple().exponent) for p in printed]
    return all(near), ", ".join(f"{x:.{k}f}" for x, k in zip(derived, digits, strict=True))
