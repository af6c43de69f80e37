"""What learning rate, epsilon, betas and weight decay do when the batch B and the number of tokens T change.

Law: an invariant holds monomials in these quantities, B and T at Theta(1). With each quantity a power of B and T, every
monomial is one linear equation for each axis.
Read next: ``horizon.toml`` (invariants and rules), ``rules.py`` (rules against invariants), ``solver/linear.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.arguments import checked
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, shown, unknown_name
from scaling_algebra.files import toml
from scaling_algebra.solver.linear import Equation, eliminate, solve_linear

from ..expressions import monomial
from ..monomials import Monomial

AXES = {"B": "batch", "T": "tokens"}
QUANTITIES = {
    "lr": "learning rate",
    "eps": "Adam epsilon",
    "one_minus_beta1": "1 - beta1",
    "one_minus_beta2": "1 - beta2",
    "wd": "weight decay",
    "warmup": "warmup, in steps",
}
"""What is asked for. Where equations leave a choice, the first of these is chosen and the others follow."""
ORDER = tuple(reversed(QUANTITIES))
ALL = "all"
LARGE = 1e30
"""Above any batch and any number of tokens."""
Part = tuple[str, Monomial]
"""A monomial and the names of the invariants that have it."""


@dataclass(frozen=True)
class Invariant:
    """Monomials that stay Theta(1), for some optimizers.

    Attributes:
        because: why they are what matters. source: who says so.
    """

    name: str
    optimizers: tuple[str, ...]
    fixed: tuple[Monomial, ...]
    title: str
    because: str
    source: str


@dataclass(frozen=True)
class Conflict:
    """A smallest set of monomials that cannot all stay Theta(1).

    Attributes:
        parts: each with the power to which it is taken.
        product: their product, in which no unknown is left: a power of B and T.
    """

    parts: tuple[tuple[Part, Fraction], ...]
    product: Monomial


@dataclass(frozen=True, repr=False)
class Horizon(Rendered):
    """Every solution of what is held.

    Attributes:
        axes: those that change.
        powers: what is determined, as a monomial in the axes and in what is free; empty where there is no solution.
        free: quantities that may do anything.
        conflicts: why there is no solution.
    """

    optimizer: str
    held: tuple[Invariant, ...]
    axes: tuple[str, ...]
    powers: Mapping[str, Monomial]
    free: tuple[str, ...]
    conflicts: tuple[Conflict, ...] = ()

    @property
    def about(self) -> str:
        return f"{self.optimizer}, {', '.join(i.name for i in self.held)} held"

    def document(self) -> Document:
        from .presentation import horizon

        return horizon(self)

    @checked
    def factors(
        self,
        batch: tuple[float, float] = (1.0, 1.0),
        tokens: tuple[float, float] = (1.0, 1.0),
        free: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """By what each quantity is multiplied from one (batch, tokens) to another.

        Args:
            batch: (from, to), in one unit.
            tokens: (from, to), in one unit.
            free: factors of what is free; 1 if not said.

        Raises:
            UsageError: there is no solution, an axis changes that is not among ``axes``, what is said to be free is
                not, or a number is not above 0 and below ``LARGE``.

        Examples:
            >>> horizon("adamw").factors(batch=(256, 1024), tokens=(20e9, 200e9))["lr"]
            2.0
        """
        if self.conflicts:
            raise UsageError(f"{self.about}: they contradict each other; hold fewer of them")
        for label, numbers in (
            ("batch", batch),
            ("tokens", tokens),
            *((f"free {k}", (x, x)) for k, x in (free or {}).items()),
        ):
            if not all(0 < x < LARGE for x in numbers):
                raise UsageError(f"{label} is {shown(numbers)}; give two positive numbers, such as (256, 1024)")
        if strange := [name for name in free or {} if name not in self.free]:
            raise unknown_name(f"free quantity of {self.about}", strange[0], self.free)
        change = {"B": batch[1] / batch[0], "T": tokens[1] / tokens[0]}
        for axis, factor in change.items():
            if factor != 1 and axis not in self.axes:
                raise UsageError(f"{AXES[axis]} changes, but only {', '.join(self.axes)} may; leave out --axes")
        change |= {name: 1.0 for name in self.free} | dict(free or {})
        powers = {**{name: monomial(name) for name in self.free}, **self.powers}
        return {name: powers[name].at(change) for name in QUANTITIES if name in powers}

    @property
    def experts(self) -> dict[str, Monomial]:
        """By what an expert's value differs from that of a dense tensor: powers of K and M.

        Law: an expert takes as many steps, on K/M of the batch and of the tokens; its gradient is averaged over the
        whole batch, so that it and its epsilon have another factor K/M. What is free is taken equal.
        """
        share = monomial("K/M")
        found = {}
        for name, power in self.powers.items():
            extra = 1 if name == "eps" else sum(power[free] for free in self.free if free == "eps")
            found[name] = share ** (power["B"] + power["T"] + extra)
        return found


@cache
def _data() -> dict[str, Any]:
    return toml((Path(__file__).parent / "horizon.toml").read_text(encoding="utf-8"))


@cache
def invariants() -> tuple[Invariant, ...]:
    """Every invariant in the data file."""
    found = []
    for entry in _data()["invariant"]:
        fixed = tuple(monomial(text) for text in entry["fixed"])
        texts = entry["title"], entry["because"], entry["source"]
        found.append(Invariant(entry["name"], tuple(entry["optimizers"]), fixed, *texts))
    return tuple(found)


def optimizers() -> tuple[str, ...]:
    """Optimizers that some invariant is about."""
    return tuple(dict.fromkeys(name for i in invariants() for name in i.optimizers))


def of(optimizer: str) -> dict[str, Invariant]:
    """The invariants of an optimizer, by name.

    Raises:
        UsageError: none is about it.
    """
    if optimizer not in optimizers():
        raise unknown_name("optimizer with invariants", optimizer, optimizers())
    return {i.name: i for i in invariants() if optimizer in i.optimizers}


def horizon(optimizer: str = "adamw", hold: Sequence[str] | None = None, axes: Iterable[str] = AXES) -> Horizon:
    """Every way in which an optimizer's quantities may follow batch and tokens while invariants hold.

    Args:
        hold: names of invariants, or ``all``; by default those of ``default`` in the data that the optimizer has.
        axes: ``B``, ``T`` or both: what changes.

    Raises:
        UsageError: an optimizer, invariant or axis that is not known.

    Examples:
        >>> print(horizon("adamw").powers["wd"], horizon("adamw", ["timescale"]).powers["wd"])
        B^(1/2)/T B/T/lr
    """
    known, changing = of(optimizer), tuple(dict.fromkeys(axes))
    if hold is None:
        hold = [name for name in _data()["default"] if name in known]
    elif ALL in hold:
        hold = list(known)
    for name in hold:
        if name not in known:
            raise unknown_name(f"invariant of {optimizer}", name, (*known, ALL))
    for axis in changing:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES)
    if not hold or not changing:
        raise UsageError(f"nothing to hold or to change; give --hold {','.join(_data()['default'])}, and --axes B,T")
    held = tuple(known[name] for name in dict.fromkeys(hold))
    by_monomial: dict[Monomial, list[str]] = {}
    for i in held:
        for m in i.fixed:
            by_monomial.setdefault(m, []).append(i.name)
    parts = [(", ".join(names), m) for m, names in by_monomial.items()]
    names = [q for q in QUANTITIES if any(m[q] != 0 for i in known.values() for m in i.fixed)]
    if not _consistent(parts, changing):
        return Horizon(optimizer, held, changing, {}, (), tuple(_conflicts(parts, changing)))
    by_axis = {axis: eliminate(_rows(parts, axis), ORDER)[0] for axis in changing}
    powers = {}
    for name in names:
        if name in by_axis[changing[0]]:
            free = {k: sympy.Rational(-x) for k, x in by_axis[changing[0]][name][0].items()}
            values = {axis: sympy.Rational(by_axis[axis][name][1]) for axis in changing}
            powers[name] = Monomial.of({**values, **free})
    return Horizon(optimizer, held, changing, powers, tuple(q for q in names if q not in powers))


def _rows(parts: Iterable[Part], axis: str) -> list[Equation]:
    """One equation for each monomial: the exponents of an axis add up to zero."""
    return [({q: Fraction(str(m[q])) for q in QUANTITIES if m[q] != 0}, -Fraction(str(m[axis]))) for _, m in parts]


def _consistent(parts: Sequence[Part], axes: Iterable[str]) -> bool:
    return all(eliminate(_rows(parts, axis))[1] for axis in axes)


def _conflicts(parts: Sequence[Part], axes: Sequence[str]) -> Iterable[Conflict]:
    """Every smallest contradictory set: smaller ones first, none that contains another."""
    found: list[set[Part]] = []
    for size in range(1, len(QUANTITIES) + 2):
        for some in combinations(parts, size):
            if any(known <= set(some) for known in found) or _consistent(some, axes):
                continue
            found.append(set(some))
            yield _combined(some, axes)


def _combined(parts: Sequence[Part], axes: Sequence[str]) -> Conflict:
    """The one combination of a smallest contradictory set in which no unknown is left."""
    names = [str(k) for k in range(len(parts))]
    rows: list[Equation] = [({names[0]: 1}, Fraction(1))]
    for q in QUANTITIES:
        rows.append(({n: Fraction(str(m[q])) for n, (_, m) in zip(names, parts, strict=True)}, Fraction(0)))
    powers = solve_linear(rows, names)
    assert powers is not None  # a smaller set would contradict itself
    product = Monomial()
    for name, (_, m) in zip(names, parts, strict=True):
        product *= m ** sympy.Rational(powers[name])
    seen = Monomial.of({axis: product[axis] for axis in axes})
    return Conflict(tuple((part, powers[n]) for n, part in zip(names, parts, strict=True)), seen)
