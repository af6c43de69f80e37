"""Laws that are written down, and what they say: the balance on each axis, exponents, identities, the floor.

Adding a law: one more TOML file in ``given/``. Read next: ``balance.py`` (how an axis is answered), ``fits.py`` (fitted
exponents beside a law).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError, check_names, named

from .balance import Balance, balance, power, term
from .entries import keys, read, read_file, shipped
from .expressions import exponent, monomial
from .inequalities import Inequality, sign
from .monomials import Expr, Identity, Monomial, Posynomial, Relation, exact, parameter, simplified, written


@dataclass(frozen=True)
class LawAxis:
    """One way to grow: what is minimised over what.

    Attributes:
        exponent: name of that with which the minimum falls. ratios: names of exponents of quantities at the optimum.
        floored: the floor of the law applies to the minimum.
    """

    sum: Posynomial
    grows: tuple[str, ...]
    minimise: tuple[str, ...] = ()
    constraints: tuple[Relation, ...] = ()
    fixed: tuple[str, ...] = ()
    exponent: str = ""
    ratios: Mapping[str, Monomial] = field(default_factory=dict)
    floored: bool = False


@dataclass(frozen=True)
class Law:
    """A law as it is written down.

    Attributes:
        identities: equations between exponents of its axes.
        floor: what no minimum may be below, in the first quantity that grows. names: what its names are.
        options: what each choice of each option replaces. at: values of parameters.
    """

    axes: Mapping[str, LawAxis]
    name: str = ""
    title: str = ""
    source: str = ""
    identities: tuple[Identity, ...] = ()
    floor: Monomial | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    at: Mapping[str, Expr] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class LawAnswer(Rendered):
    """The balances of a law, and their exponents, identities and floor.

    Attributes:
        choices: of its options. axes: the balance on each. values: of parameters.
        exponents: with which the first cell of an axis falls, by their names.
        identities: each with whether it holds for every parameter.
        below: axes whose minimum is below the floor: everywhere (True), or where a condition holds.
        repairs: choices of options, one for each text, with which such an axis is not below it.
        inverted: an exponent, the value that it is given, and what a parameter must be.
    """

    law: Law
    choices: Mapping[str, str]
    axes: Mapping[str, Balance]
    values: Mapping[str, Expr]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]
    below: Mapping[str, Inequality | bool]
    repairs: Mapping[str, tuple[str, ...]]
    inverted: tuple[str, str, Mapping[str, Expr]] | None = None

    @property
    def agrees(self) -> bool:
        """The axis that was asked for, or each with an exponent, is above the floor; numbers do not contradict it."""
        wrong = any(len(self.axes) == 1 or self.law.axes[name].exponent for name in self.below)
        return not wrong and all(b.agrees for b in self.axes.values())

    @property
    def about(self) -> str:
        options = ", ".join(f"{k} {v}" for k, v in self.choices.items())
        return self.law.title + (f" ({options})" if options else "")

    def document(self) -> Document:
        """Every axis in lines, or one axis in full; exponents, identities, and what contradicts it."""
        blocks: list[Block] = [Heading(literal(self.about), 2)]
        if len(self.axes) == 1:
            blocks += next(iter(self.axes.values())).document().blocks
        else:
            rows = [(axis, name, power(m), literal(", ".join(map(str, cell.where)))) for axis, b in self.axes.items()
                    for cell in b.cells for name, m in b.sizes(cell).items()]  # fmt: skip
            blocks.append(Grid.of(("axis", "of", "grows as", "where"), rows))
            numbers = [(n, term(e), f"{float(e):.5f}" if e.is_number else "") for n, e in self.exponents.items()]
            if numbers:
                blocks += [Heading("exponents", 3), Grid.of(("exponent", "is", "number"), numbers)]
                blocks += _listed(f"{text}: {'holds' if x else 'does not hold'}" for text, x in self.identities.items())
        blocks += _listed(map(self._wrong, self.below), "below the floor")
        names = frozenset(self.exponents if len(self.axes) > 1 else ()).union(*(b.names for b in self.axes.values()))
        blocks += _listed((f"{name}: {what}" for name, what in self.law.names.items() if name in names), "names")
        if self.inverted is not None:
            of, number, solution = self.inverted
            solved = [f"{of} = {number} at {name} = {x} = {float(x):.4f}" for name, x in solution.items()]
            blocks.append(Lines.of(*map(literal, solved)))
        return Document(tuple(blocks), self.record())

    def _wrong(self, axis: str) -> str:
        place = "" if (where := self.below[axis]) is True else f" where {where}"
        repaired = f"; not with {', '.join(self.repairs[axis])}" if self.repairs[axis] else ""
        least = power(self.axes[axis].cells[-1].minimum).plain
        return f"{axis}: the minimum {least} is below {self.law.floor}{place}: a term is missing{repaired}"

    def record(self) -> dict[str, Any]:
        """The JSON contract."""
        return {
            "law": self.law.name,
            "choices": dict(self.choices),
            "at": {name: written(x) for name, x in self.values.items()},
            "axes": {name: b.record() for name, b in self.axes.items()},
            "exponents": {name: written(e) for name, e in self.exponents.items()},
            "identities": dict(self.identities),
            "below_floor": {name: True if where is True else str(where) for name, where in self.below.items()},
            "repairs": {name: list(choices) for name, choices in self.repairs.items()},
        } | ({} if self.inverted is None else {"inverted": {n: str(x) for n, x in self.inverted[2].items()}})


@cache
def laws() -> Mapping[str, Law]:
    """Every law that ships, by name."""
    return {name: read_law(path) for name, path in shipped("given").items()}


def law(name: str) -> Law:
    """A law that ships, or one in a TOML file."""
    return read_law(Path(name)) if name.endswith(".toml") else named("law", name, laws())


def read_law(path: Path) -> Law:
    """The law in a TOML file: ``sum``, ``minimise``, ``grows`` and so on, or several axes of those."""
    return read_file(path, "a law", _law)


def answer(
    law: Law,
    axis: str | None = None,
    choices: Mapping[str, str] | None = None,
    values: Mapping[str, Expr] | None = None,
) -> LawAnswer:
    """The answer of a law on one axis, or on all.

    Raises:
        UsageError: no such axis, option, choice or parameter.
    """
    picked = _picked(law, choices or {})
    swaps = _swaps(law, picked)
    parameters = {p for a in law.axes.values() for p in a.sum.substituted(swaps).parameters}
    at = {**law.at, **{name: exact(value) for name, value in (values or {}).items()}}
    check_names("parameter of this law", sorted(at), sorted(parameters))
    axes = law.axes if axis is None else {axis: named("axis", axis, law.axes)}
    balances = {n: _balanced(a, swaps, at) for n, a in law.axes.items() if n in axes or a.exponent}
    exponents: dict[str, Expr] = {}
    for n, a in law.axes.items():
        if a.exponent:
            cell, grows = balances[n].cells[0], balances[n].growing[0]
            exponents[a.exponent] = simplified(-cell.minimum[grows])
            exponents |= {key: ratio.substituted(cell.optimum)[grows] for key, ratio in a.ratios.items()}
    identities = {i.text: _identical(i, exponents) for i in law.identities if axis is None}
    below = {n: b for n in axes if (b := _below(law, n, balances[n], at))}
    repairs = {n: tuple(_repairs(law, n, picked, at)) for n in below}
    return LawAnswer(law, picked, {n: balances[n] for n in axes}, at, exponents, identities, below, repairs)


def inverted(a: LawAnswer, name: str, value: Expr) -> dict[str, Expr]:
    """The parameter that gives an exponent a value, with what it must be.

    Raises:
        UsageError: no such exponent, not one open parameter, or no positive value.
    """
    formula, value = named("exponent", name, a.exponents), exact(value)
    open_ = sorted(formula.free_symbols, key=str)
    if len(open_) != 1:
        raise UsageError(f"{name} = {formula} has {len(open_)} open parameters; give all but one with --at")
    roots = [x for x in sympy.solve(sympy.Eq(formula, value), open_[0]) if x.is_positive]
    if len(roots) != 1:
        raise UsageError(f"no positive {open_[0]} gives {name} = {value}; it is {formula}")
    return {str(open_[0]): roots[0]}


# inside --------------------------------------------------------------------------------------------------------


def _law(name: str, data: Mapping[str, Any]) -> Law:
    flat = {key: value for key, value in data.items() if key in keys(LawAxis)}
    rest = {key: value for key, value in data.items() if key not in flat}
    check_names("key", rest, [*keys(LawAxis), *keys(Law)])
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} stands beside axes; put it into one of them")
    if not flat and not data.get("axes"):
        raise UsageError('it says no law; give sum, minimise and grows, such as sum = "N**-alpha + N/n"')
    law: Law = read(Law, {"name": name, "title": name, "axes": {}} | rest)
    return replace(law, axes={"law": read(LawAxis, flat)}) if flat else law


def _picked(law: Law, choices: Mapping[str, str]) -> dict[str, str]:
    """A choice for every option."""
    if strange := [option for option in choices if option not in law.options]:
        raise UsageError(f"{law.name} has no option {strange[0]}; it has {', '.join(law.options) or 'none'}")
    if empty := [option for option in law.options if not law.options[option]]:
        raise UsageError(f"{empty[0]} has no choice; give it tables of what each choice replaces")
    picked = {option: choices.get(option, next(iter(law.options[option]))) for option in law.options}
    for option, choice in picked.items():
        named(option, choice, law.options[option])
    return picked


def _swaps(law: Law, picked: Mapping[str, str]) -> dict[str, Any]:
    """The replacements of the choices: exponents for parameters, monomials for quantities."""
    quantities = {q for a in law.axes.values() for q in a.sum.quantities}
    replaced = {name: text for option, choice in picked.items() for name, text in law.options[option][choice].items()}
    return {name: monomial(text) if name in quantities else exponent(text) for name, text in replaced.items()}


def _balanced(axis: LawAxis, swaps: Mapping[str, Any], at: Mapping[str, Expr]) -> Balance:
    """An axis; of what grows, only what is there."""
    total = axis.sum.substituted(swaps)
    present = {q for t in total.terms for q, _ in t.powers}.union(*(c.quantities for c in axis.constraints))
    grows = [q for q in axis.grows if q in present]
    values = {p: x for p, x in at.items() if p in total.parameters}
    return balance(total, axis.minimise, grows or axis.grows[:1], axis.constraints, axis.fixed, values)


def _identical(i: Identity, exponents: Mapping[str, Expr]) -> bool:
    check_names(f"exponent in {i.text!r}", sorted({i.name} | i.needs), exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplified(exponents[i.name] - i.right.xreplace(put)) == 0)


def _repairs(law: Law, name: str, picked: Mapping[str, str], at: Mapping[str, Expr]) -> Iterator[str]:
    """One other choice with which an axis is not below the floor."""
    for option, choice in ((o, c) for o in law.options for c in law.options[o] if c != picked[o]):
        b = _balanced(law.axes[name], _swaps(law, {**picked, option: choice}), at)
        if not _below(law, name, b, at):
            yield f"{option} {choice}"


def _below(law: Law, name: str, b: Balance, at: Mapping[str, Expr]) -> Inequality | bool:
    """Is a minimum in one quantity alone below the floor? False, True, or where a condition holds."""
    n = b.growing[0]
    for cell in b.cells if law.floor is not None and law.axes[name].floored else ():
        if cell.minimum.quantities <= {n}:
            assert law.floor is not None
            gap = simplified(cell.minimum[n] - law.floor.substituted(at)[n])
            if (above := sign(gap)) not in (0, 1):
                return True if above == -1 else Inequality(Monomial.of({n: gap}), True)
    return False


def _listed(lines: Iterable[str], title: str = "") -> list[Block]:
    pieces = [literal(line) for line in lines]
    heading: list[Block] = [Heading(title, 3)] if title else []
    return [*heading, Lines.of(*pieces, listed=True)] if pieces else []
