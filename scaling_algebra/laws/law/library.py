"""What a law says: the balance on each of its axes, the exponents, and whether what is known elsewhere agrees.

Read next: ``balance.py`` (how an axis is answered), ``files.py`` (how a law is written), ``fits.py`` (fitted exponents
beside a law), ``models.py`` (a law at the shapes of a model).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, named, unknown_name

from ..balance.balance import Balance, balance
from ..balance.conditions import Condition, sign
from ..expressions import Expr, Monomial, Sum, exact, exponent, monomial, parameter, relation, simplified


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
        repairs: choices of options, one for each text, with which such an axis is not below it.
    """

    law: Law
    choices: Mapping[str, str]
    axes: Mapping[str, Balance]
    values: Mapping[str, Expr]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]
    below: Mapping[str, Condition | bool]
    repairs: Mapping[str, tuple[str, ...]]

    @property
    def agrees(self) -> bool:
        """Nothing that is known contradicts the axis that was asked for, or the exponents."""
        return not any(len(self.axes) == 1 or self.law.axes[name].exponent for name in self.below)

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
    sums = {name: _chosen(law, a.sum, picked) for name, a in law.axes.items()}
    known = {p for total in sums.values() for p in total.parameters}
    at = {**law.at, **{name: exact(value) for name, value in (values or {}).items()}}
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
    repairs: dict[str, tuple[str, ...]] = {}
    for name in asked:
        if law.floor is not None and law.axes[name].floored and (b := _below(found[name], law.floor, at)):
            below[name], repairs[name] = b, tuple(_repairs(law, name, picked, at))
    return Answer(law, picked, {name: found[name] for name in asked}, at, exponents, identities, below, repairs)


def sides(text: str) -> tuple[str, Expr]:
    """An identity: a name and a rational function of other names."""
    name, equals, right = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"{text!r} is no identity; write one such as alpha_D = alpha_N/(1 + alpha_N)")
    return name.strip(), exponent(right)


def inverted(found: Answer, name: str, value: Expr) -> tuple[str, Expr]:
    """The parameter that gives an exponent a value, and what it must be.

    Raises:
        UsageError: no such exponent, not one open parameter, or no positive value.
    """
    of, value = named("exponent", name, found.exponents), exact(value)
    open_ = sorted(map(str, of.free_symbols))
    if len(open_) != 1:
        raise UsageError(f"{name} = {of} has {len(open_)} open parameters; give all but one with --at")
    roots = [x for x in sympy.solve(sympy.Eq(of, value), parameter(open_[0])) if x.is_positive]
    if len(roots) != 1:
        raise UsageError(f"no positive {open_[0]} gives {name} = {value}; it is {of}")
    return open_[0], roots[0]


# inside --------------------------------------------------------------------------------------------------------


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


def _chosen(law: Law, total: Sum, picked: Mapping[str, str]) -> Sum:
    """A sum with the choices put in: exponents for parameters, monomials for quantities."""
    swaps = {name: text for option, choice in picked.items() for name, text in law.options[option][choice].items()}
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


def _identical(text: str, exponents: Mapping[str, Expr]) -> bool:
    name, right = sides(text)
    if unknown := ({name} | {str(s) for s in right.free_symbols}) - set(exponents):
        raise unknown_name(f"exponent in {text!r}", min(unknown), exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplified(exponents[name] - right.xreplace(put)) == 0)


def _repairs(law: Law, name: str, picked: Mapping[str, str], at: Mapping[str, Expr]) -> Iterator[str]:
    """One other choice with which an axis is not below the floor."""
    assert law.floor is not None
    for option, known in law.options.items():
        for choice in known:
            if choice != picked[option]:
                total = _chosen(law, law.axes[name].sum, {**picked, option: choice})
                if not _below(_balanced(law.axes[name], total, at), law.floor, at):
                    yield f"{option} {choice}"


def _below(b: Balance, floor: Monomial, at: Mapping[str, Expr]) -> Condition | bool:
    """Is a minimum in one quantity alone below the floor? False, True, or where a condition holds."""
    n = b.growing[0]
    for cell in b.cells:
        if {q for q, _ in cell.minimum.powers} <= {n}:
            gap = simplified(floor.with_parameters(at)[n] - cell.minimum[n])
            if (known := sign(gap)) not in (0, -1):
                return True if known == 1 else Condition(positive=gap)
    return False
