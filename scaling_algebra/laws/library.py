"""Laws as data: sums of monomials with ways to grow, the exponents they give, and what is known from elsewhere.

Adding a law: one more TOML file in ``given/``. Read next: ``balance.py`` (how an axis is answered), ``fits.py``
(fitted exponents beside a law), ``models.py`` (a law at the shapes of a model).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, named, unknown_name
from scaling_algebra.files import read_text

from .balance import Balance, balance
from .conditions import Condition, sign
from .expressions import Expr, Monomial, Sum, exponent, expression, monomial, parameter, relation, simplified

AXIS: dict[str, type] = {"sum": str, "minimise": list, "grows": list, "constraints": list, "fixed": list,
                         "exponent": str, "ratios": dict, "floored": bool}  # fmt: skip
KEYS: dict[str, type] = {"title": str, "source": str, "identities": list, "floor": str, "names": dict, "options": dict,
                         "axes": dict, "model": dict, "at": dict}  # fmt: skip
KINDS = {str: "a text", list: "a list of texts", dict: "a table", bool: "true or false"}
MOST = 2**16
"""Bytes of a file with a law."""


@dataclass(frozen=True)
class Axis:
    """One way to grow: what is minimised over what.

    Attributes:
        exponent: name of that with which the minimum falls. ratios: names of exponents of quantities at the optimum.
        floored: the floor of the law applies to the minimum.
    """

    sum: Sum
    minimise: tuple[str, ...]
    grows: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    exponent: str = ""
    ratios: Mapping[str, str] = field(default_factory=dict)
    floored: bool = False


@dataclass(frozen=True)
class Law:
    """A law as it is written down.

    Attributes:
        names: what its quantities and parameters are. options: what each choice of each option replaces.
        identities: equations between exponents of its axes; floor: what no minimum may be below, in the first quantity
            that grows. model: sizes by the shapes of a model. at: values of parameters.
    """

    name: str
    title: str
    source: str
    axes: Mapping[str, Axis]
    identities: tuple[str, ...] = ()
    floor: Monomial | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    model: Mapping[str, Sum] = field(default_factory=dict)
    at: Mapping[str, Expr] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Answer(Rendered):
    """What a law says.

    Attributes:
        choices: of its options. axes: the balance on each. values: of parameters.
        exponents: with which the first cell of an axis falls, by their names.
        identities: each with whether it holds for every parameter.
        below: axes whose minimum is below the floor: everywhere (True), or where a condition holds.
    """

    law: Law
    choices: Mapping[str, str]
    axes: Mapping[str, Balance]
    values: Mapping[str, Expr]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]
    below: Mapping[str, Condition | bool]

    @property
    def agrees(self) -> bool:
        """Nothing that is known contradicts it."""
        return not self.below

    @property
    def about(self) -> str:
        said = ", ".join(f"{k} {v}" for k, v in self.choices.items())
        return self.law.title + (f" ({said})" if said else "")

    def document(self) -> Document:
        from .presentation import law

        return law(self)


def answer(
    law: Law,
    axis: str | None = None,
    choices: Mapping[str, str] | None = None,
    values: Mapping[str, Expr] | None = None,
) -> Answer:
    """What a law says on one axis, or on all.

    Raises:
        UsageError: no such axis, option, choice or parameter.
    """
    picked = _picked(law, choices or {})
    swaps = {name: text for option, choice in picked.items() for name, text in law.options[option][choice].items()}
    sums = {name: _swapped(a.sum, swaps) for name, a in law.axes.items()}
    known = {p for total in sums.values() for p in total.parameters}
    at = {**law.at, **(values or {})}
    if strange := sorted(set(at) - known):
        raise unknown_name("parameter of this law", strange[0], sorted(known))
    asked = law.axes if axis is None else {axis: named("axis", axis, law.axes)}
    found = {n: _balanced(a, sums[n], at) for n, a in law.axes.items() if n in asked or a.exponent}
    exponents: dict[str, Expr] = {}
    for n, a in law.axes.items():
        if a.exponent:
            cell, of = found[n].cells[0], found[n].growing[0]
            exponents[a.exponent] = simplified(-cell.minimum[of])
            exponents |= {key: monomial(text).substituted(cell.optimum)[of] for key, text in a.ratios.items()}
    identities = {text: _identical(text, exponents) for text in law.identities if axis is None}
    below: dict[str, Condition | bool] = {}
    for name in asked:
        if law.floor is not None and law.axes[name].floored and (b := _below(found[name], law.floor, at)):
            below[name] = b
    return Answer(law, picked, {name: found[name] for name in asked}, at, exponents, identities, below)


def inverted(found: Answer, name: str, value: Expr) -> tuple[str, Expr]:
    """The parameter that gives an exponent a value, and what it must be.

    Raises:
        UsageError: no such exponent, not one open parameter, or no positive value.
    """
    of = named("exponent", name, found.exponents)
    open_ = sorted(map(str, of.free_symbols))
    if len(open_) != 1:
        raise UsageError(f"{name} = {of} has {len(open_)} open parameters; give all but one with --at")
    roots = [x for x in sympy.solve(sympy.Eq(of, value), parameter(open_[0])) if x.is_positive]
    if len(roots) != 1:
        raise UsageError(f"no positive {open_[0]} gives {name} = {value}; it is {of}")
    return open_[0], roots[0]


@cache
def laws() -> Mapping[str, Law]:
    """Every law that ships, by name."""
    return {path.stem: read(path) for path in sorted((Path(__file__).parent / "given").glob("*.toml"))}


def law(name: str) -> Law:
    """A law that ships, or one in a TOML file.

    Raises:
        UsageError: neither.
    """
    if name.endswith(".toml"):
        return read(Path(name))
    return named("law", name, laws())


def read(path: Path) -> Law:
    """The law in a TOML file: ``sum``, ``minimise``, ``grows`` and so on, or several axes of those.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    text = read_text(path, "give a TOML file with a law", MOST)
    try:
        try:
            data = tomllib.loads(text, parse_float=str)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"this is not TOML: {error}") from None
        return _law(path.stem, data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


# inside --------------------------------------------------------------------------------------------------------


def _law(name: str, data: Mapping[str, Any]) -> Law:
    flat = {key: value for key, value in data.items() if key in AXIS}
    _check(data, KEYS | AXIS, "")
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} stands beside axes; put it into one of them")
    entries = {"law": flat} if flat else data.get("axes", {})
    if not entries:
        raise UsageError('it says no law; give sum, minimise and grows, such as sum = "N**-alpha + N/n"')
    axes = {key: _axis(key, _table(key, entry)) for key, entry in entries.items()}
    options = {
        option: {choice: _texts(f"{option} {choice}", put) for choice, put in _table(option, choices).items()}
        for option, choices in data.get("options", {}).items()
    }
    for text in (identities := tuple(_listed("identities", data.get("identities", [])))):
        sides(text)
    return Law(
        name,
        data.get("title", name),
        data.get("source", ""),
        axes,
        identities,
        monomial(data["floor"]) if "floor" in data else None,
        _texts("names", data.get("names", {})),
        options,
        {key: expression(text) for key, text in _texts("model", data.get("model", {})).items()},
        {key: exponent(text) for key, text in _texts("at", data.get("at", {})).items()},
    )


def _axis(name: str, entry: Mapping[str, Any]) -> Axis:
    _check(entry, AXIS, f"{name}: ")
    for key in ("sum", "grows"):
        if key not in entry:
            raise UsageError(f"{name}: {key} is missing; an axis has a sum, what it minimises over, and what grows")
    lists = {key: tuple(_listed(key, entry.get(key, []))) for key, kind in AXIS.items() if kind is list}
    for text in lists["constraints"]:
        relation(text)
    ratios = _texts("ratios", entry.get("ratios", {}))
    floored = entry.get("floored", False)
    return Axis(expression(entry["sum"]), exponent=entry.get("exponent", ""), ratios=ratios, floored=floored, **lists)


def _check(entry: Mapping[str, Any], known: Mapping[str, type], where: str) -> None:
    for key, value in entry.items():
        if key not in known:
            raise UsageError(where + str(unknown_name("key", key, known)))
        if not isinstance(value, known[key]):
            raise UsageError(f"{where}{key} is {value!r}; it must be {KINDS[known[key]]}")


def _listed(key: str, value: list[Any]) -> list[str]:
    if wrong := [x for x in value if not isinstance(x, str)]:
        raise UsageError(f"{key} holds {wrong[0]!r}; it must be a list of texts")
    return value


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} is {value!r}; it must be a table")
    return value


def _texts(key: str, value: Any) -> dict[str, str]:
    """A table of texts and numbers, as texts."""
    found = _table(key, value)
    if wrong := [x for x in found.values() if isinstance(x, bool) or not isinstance(x, str | int)]:
        raise UsageError(f"{key} holds {wrong[0]!r}; it must be a text or a number")
    return {name: str(x) for name, x in found.items()}


def _picked(law: Law, choices: Mapping[str, str]) -> dict[str, str]:
    """A choice for every option."""
    for option in choices:
        if option not in law.options:
            raise UsageError(f"{law.name} has no option {option}; it has {', '.join(law.options) or 'none'}")
    if empty := [option for option, known in law.options.items() if not known]:
        raise UsageError(f"{empty[0]} has no choice; give it tables of what each choice replaces")
    wanted = {option: choices.get(option, next(iter(known))) for option, known in law.options.items()}
    for option, choice in wanted.items():
        named(option, choice, law.options[option])
    return wanted


def _swapped(total: Sum, swaps: Mapping[str, str]) -> Sum:
    """A sum with the choices put in: exponents for parameters, monomials for quantities."""
    total = total.with_parameters({p: exponent(t) for p, t in swaps.items() if p in total.parameters})
    return total.substituted({q: monomial(t) for q, t in swaps.items() if q in total.quantities})


def _balanced(axis: Axis, total: Sum, at: Mapping[str, Expr]) -> Balance:
    """An axis; of what grows, only what is there."""
    constraints = [relation(text) for text in axis.constraints]
    there = {q for t in total.terms for q, _ in t.powers}
    there = there.union(*(c.left.quantities | c.right.quantities for c in constraints))
    grows = [q for q in axis.grows if q in there]
    values = {p: x for p, x in at.items() if p in total.parameters}
    return balance(total, axis.minimise, grows or axis.grows[:1], constraints, axis.fixed, values)


def sides(text: str) -> tuple[str, Expr]:
    """An identity: a name and a rational function of other names."""
    name, equals, right = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"{text!r} is no identity; write one such as alpha_D = alpha_N/(1 + alpha_N)")
    return name.strip(), exponent(right)


def _identical(text: str, exponents: Mapping[str, Expr]) -> bool:
    name, right = sides(text)
    if unknown := ({name} | {str(s) for s in right.free_symbols}) - set(exponents):
        raise unknown_name(f"exponent in {text!r}", min(unknown), exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplified(exponents[name] - right.subs(put, simultaneous=True)) == 0)


def _below(b: Balance, floor: Monomial, at: Mapping[str, Expr]) -> Condition | bool:
    """Is a minimum in one quantity alone below the floor? False, True, or where a condition holds."""
    n = b.growing[0]
    for cell in b.cells:
        if {q for q, _ in cell.minimum.powers} <= {n}:
            gap = simplified(floor.with_parameters(at)[n] - cell.minimum[n])
            if (known := sign(gap)) not in (0, -1):
                return True if known == 1 else Condition(positive=gap)
    return False
