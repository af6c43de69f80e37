"""Compares a printed cell about a law with what the law, or a set of assumptions, gives.

The key ``law`` of a cell in a published table says what to compute: either the minimum of a sum (by the names of a
law and of one of its axes, or the sum itself), in which region of parameters, and which part of the answer; or a
monomial (``is``) in the quantities of a set of assumptions. ``scaling_algebra/laws/law.py`` computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

import sympy

from scaling_algebra.laws.assumptions import Windows
from scaling_algebra.laws.balance import Balance, balance
from scaling_algebra.laws.expressions import exponent, expression, monomial
from scaling_algebra.laws.law import LawAnswer, answer_law, law, read_law
from scaling_algebra.laws.monomials import Monomial, Posynomial, parameter, simplify_exponent, write_exponent
from scaling_algebra.laws.systems import End
from scaling_algebra.tables.published.printed import Printed

Answered = tuple[bool, str, str]
"""Whether a printed cell agrees with the derived value, that value as text, and where it comes from."""


def compare_law(cell: Printed) -> Answered:
    """Compares a printed cell about a law (an exponent, powers, thresholds, identities or numbers) with what the law
    gives.
    """
    spec, value = cell.setting["law"], str(cell.value)
    if "assumptions" in spec:
        return _compare_with_assumptions(spec, value)
    if "sum" in spec:
        source = f"scalecalc law '{spec['sum']}' --min {','.join(spec['minimise'])} --in {','.join(spec['grows'])}"
        return (*_compare_axis(balance(spec["sum"], spec["minimise"], spec["grows"]), spec, value), source)
    a = _answer_of(spec.get("name", "moe-transformer"))
    source = f"scalecalc law {a.law.name}" + (f" --axis {spec['axis']}" if "axis" in spec else "")
    if "numbers" in spec:
        return (*_numbers(a, spec, value), source)
    if "identity" in spec:
        put = {parameter(n): e for n, e in a.exponents.items()}
        same = simplify_exponent(a.exponents[spec["identity"]] - exponent(value).xreplace(put)) == 0
        sides = [[x.strip() for x in text.split("=")] for text in a.law.identities]
        rights = [write_exponent(exponent(right)) for name, right in sides if name == spec["identity"]]
        return bool(same), " = ".join(rights), source
    return (*_compare_axis(a.axes[spec["axis"]], spec, value), source)


def _compare_with_assumptions(spec: Mapping[str, Any], value: str) -> Answered:
    """Compares a printed order of magnitude with what a set of assumptions implies.

    The object that the paper estimates is the monomial ``spec["is"]``; ``value`` is the printed order.

    What is tested depends on the key ``sign``. ``=``: both are the same monomial, up to constants and logarithms; or,
    with a key ``of``, the object's exponent of that quantity is the printed one. ``<=``: the assumptions imply that
    the object is at most the printed order. ``window``: the printed bounds are those that the assumptions imply for
    the object.
    """
    solution = _solve(spec["assumptions"], tuple(sorted(spec.get("at", {}).items())))
    laws = ",".join(f"{name}={law}" for name, law in spec.get("at", {}).items())
    source = f"{spec['is']}, scalecalc law {spec['assumptions']}" + (f" --at '{laws}'" if laws else "")
    sign = spec.get("sign", "=")
    if sign == "window":
        w = solution.window(monomial(spec["is"]))
        derived = [_end(e, solution.grows) for e in (w.low, w.high)]
        printed = [str(monomial(x)) if x.strip() != "-" else "-" for x in value.split(",")]
        return printed == derived, ", ".join(derived), source
    composed = solution.reduce_monomial(monomial(spec["is"]))
    if "of" in spec:
        return composed[spec["of"]] == sympy.Rational(value), str(composed[spec["of"]]), source
    if sign == "=":
        return composed == solution.reduce_monomial(monomial(value)), str(composed), source
    high = solution.window(composed / monomial(value)).high
    return high.value is not None and high.value <= 0, str(composed), source


# inside --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _solve(name: str, laws: tuple[tuple[str, str], ...]) -> Windows:
    solution = law(name, at=dict(laws))
    assert isinstance(solution, Windows)
    return solution


def _end(end: End, grows: str) -> str:
    return "-" if end.value is None else str(Monomial.of({grows: sympy.Rational(end.value)}))


def _sizes(total: Posynomial) -> set[Monomial]:
    """Returns the terms of a sum, each without its constant factor."""
    return {Monomial.of(dict(t.powers), logs=t.logs) for t in total.terms}


@lru_cache(maxsize=16)
def _answer_of(name: str) -> LawAnswer:
    return answer_law(read_law(name))


def _compare_axis(axis: Balance, spec: Mapping[str, Any], value: str) -> tuple[bool, str]:
    derived = _from_balance(axis, spec)
    if "of" in spec:
        exponents = [m.terms[0][spec["of"]] for m in derived]
        same = len(exponents) == 1 and simplify_exponent(exponents[0] - exponent(value)) == 0
        return bool(same), ", ".join(map(write_exponent, exponents))
    printed = [expression(text) for text in value.split(",")]
    shown = (" + ".join(sorted(map(str, _sizes(d)))) for d in derived)
    return [_sizes(p) for p in printed] == [_sizes(d) for d in derived], ", ".join(shown)


def _from_balance(axis: Balance, spec: Mapping[str, Any]) -> list[Posynomial]:
    """Returns the part of a law's answer that a cell of a published table is about, as sums of monomials.

    Args:
        axis: the answer: the minimum of a sum of monomials and where it lies.
        spec: the keys that choose the part: the bound on a quantity (``bound``), terms of the sum (``terms``) or their
            derivative (``per``), or else ``what``: the minimum by default, an optimal quantity, or, with ``reach``, the
            size at which the minimum has a given value.
    """
    cell = axis.cells[spec.get("cell", 0)]
    put = {q: monomial(text) for q, text in spec.get("with", {}).items()}
    if (name := spec.get("bound")) is not None:
        on = [c.ratio.solve_for(name).substitute(put) for c in cell.where if c.ratio[name] != 0]
        return [Posynomial((m * monomial(spec.get("times", "1")),)) for m in on]
    if "terms" in spec:
        terms = [axis.reduced.terms[k].substitute(put) for k in spec["terms"]]
        if "per" in spec:  # the derivative, of a power or of its logarithm
            terms = [Monomial.of({**dict(t.powers), spec["per"]: t[spec["per"]] - 1}) for t in terms]
        return [Posynomial(tuple(terms))]
    what = spec.get("what", "minimum")
    sizes = {"minimum": cell.minimum, **cell.optimum}
    size = (replace(axis, reach=spec["reach"]).find_reach(cell) if "reach" in spec else sizes)[what]
    return [Posynomial((size.substitute(put) ** exponent(spec.get("power", "1")),))]


def _numbers(a: LawAnswer, spec: Mapping[str, Any], value: str) -> tuple[bool, str]:
    """Compares printed decimals with numbers that a law gives. They agree if they differ by at most one unit of the
    last printed digit, as papers truncate or round.

    Args:
        a: the answer of the law.
        spec: ``numbers``, functions of the law's exponents, and ``at``, the values of the parameters to evaluate them
            with.
        value: the printed decimals, separated by commas.

    Returns:
        Whether all agree, and the derived numbers as text.
    """
    printed = [Decimal(text.strip()) for text in value.split(",")]
    derived = []
    for at in spec["at"]:
        point = {parameter(name): sympy.Rational(text) for name, text in at.items()}
        put = {parameter(n): e.xreplace(point) for n, e in a.exponents.items()} | point
        derived += [float(exponent(text).xreplace(put)) for text in spec["numbers"]]
    digits = [-int(p.as_tuple().exponent) for p in printed]
    pairs = list(zip(printed, derived, digits, strict=True))
    near = all(abs(float(p) - x) <= float(Decimal(1).scaleb(-k)) for p, x, k in pairs)
    return near, ", ".join(f"{x:.{k + 2}f}" for _, x, k in pairs)
