"""Scales learning rate, epsilon, betas and weight decay when the batch B and the number of tokens T change.

Law: an invariant keeps monomials in these quantities, B and T at Theta(1). These equations are like those of laws, and
``laws/minima.py`` solves them. Read next: ``horizon.toml`` (invariants), ``recipe.py`` (applies the factors).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import mul
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.arguments import check_arguments
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.errors import UsageError, check_names, quote_value
from scaling_algebra.laws.entries import read_file
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.minima import find_circuits, solve_for_ones
from scaling_algebra.laws.monomials import Expr, Monomial, parameter
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER
from scaling_algebra.spec.entries import read_value

AXES = {"B": "batch", "T": "tokens"}
QUANTITIES = {
    "lr": "learning rate",
    "eps": "Adam epsilon",
    "one_minus_beta1": "1 - beta1",
    "one_minus_beta2": "1 - beta2",
    "wd": "weight decay",
    "warmup": "warmup, in steps",
}
"""Unknowns. If the equations are underdetermined, the first of these are free and the others follow."""
ORDER = tuple(reversed(QUANTITIES))
ALL = "all"
LARGE = 1e30
"""Exclusive upper limit of batch sizes and numbers of tokens."""
HeldMonomial = tuple[str, Monomial]
"""The names of the invariants that hold a monomial fixed, and the monomial."""
_LATEX = {"lr": r"\eta", "eps": r"\epsilon", "wd": r"\lambda", "warmup": r"\mathrm{warmup}"}
_LATEX |= {f"one_minus_beta{k}": rf"(1-\beta_{{{k}}})" for k in (1, 2)}


@dataclass(frozen=True)
class Invariant:
    """Monomials that stay Theta(1), for some optimizers.

    Attributes:
        name: the name by which ``--hold`` refers to it.
        optimizers: the optimizers to which it applies.
        fixed: the monomials.
        title: what stays the same, in words.
        because: the reason.
        source: the publication.
        compounds: 1 - beta in the monomials stands for -log(beta), to which it is nearly equal for beta near 1. So
            beta is raised to a power, where otherwise 1 - beta would be multiplied by a factor.
    """

    name: str
    optimizers: tuple[str, ...]
    fixed: tuple[Monomial, ...]
    title: str
    because: str
    source: str
    compounds: bool = False


@dataclass(frozen=True)
class HorizonData:
    """The content of ``horizon.toml``.

    Attributes:
        default: names of the invariants that are held by default.
        invariant: all invariants.
    """

    default: tuple[str, ...]
    invariant: tuple[Invariant, ...]


@dataclass(frozen=True)
class Conflict:
    """A minimal set of monomials that cannot all stay Theta(1).

    Attributes:
        parts: each monomial with the power to which it is taken.
        product: their product, in which no unknown is left: a power of B and T.
    """

    parts: tuple[tuple[HeldMonomial, Expr], ...]
    product: Monomial


@dataclass(frozen=True, repr=False)
class Horizon(Rendered):
    """How the quantities of an optimizer must change with batch and tokens so that a set of invariants stays fixed.

    Attributes:
        optimizer: the optimizer.
        held: the invariants.
        axes: the axes that change, of B (batch) and T (tokens).
        powers: the determined quantities as monomials in the axes and the free quantities; empty if there is no
            solution.
        free: quantities that the invariants do not determine.
        conflicts: the reasons why there is no solution.
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

    @check_arguments
    def factors(
        self,
        batch: tuple[float, float] = (1.0, 1.0),
        tokens: tuple[float, float] = (1.0, 1.0),
        free: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Returns the factor by which each quantity changes when batch and tokens change.

        Args:
            batch: batch size before and after, in the same unit.
            tokens: number of tokens before and after, in the same unit.
            free: chosen factors of the quantities that the invariants leave free; 1 by default.

        Raises:
            UsageError: there is no solution, an axis changes that is not among ``axes``, a quantity in ``free`` is not
                free, or a number is not above 0 and below ``LARGE``.

        Examples:
            >>> horizon("adamw").factors(batch=(256, 1024), tokens=(20e9, 200e9))["lr"]
            2.0
        """
        if self.conflicts:
            first = " and ".join(f"{text(m)} ({name})" for (name, m), _ in self.conflicts[0].parts)
            every = f"recipe --hold {','.join(i.name for i in self.held)} --optimizer {self.optimizer}, without sizes"
            raise UsageError(
                f"these invariants contradict each other: {first} cannot both stay fixed; hold fewer of them "
                f"({every}, says all)"
            )
        numbers = {"batch": batch, "tokens": tokens} | {f"free {name}": (x, x) for name, x in (free or {}).items()}
        for label, pair in numbers.items():
            if not all(0 < x < LARGE for x in pair):
                raise UsageError(f"{label} is {quote_value(pair)}; give two positive numbers, such as (256, 1024)")
        check_names(f"free quantity of {self.about}", free or (), self.free)
        change = {"B": batch[1] / batch[0], "T": tokens[1] / tokens[0]}
        if fixed := [axis for axis, factor in change.items() if factor != 1 and axis not in self.axes]:
            raise UsageError(f"{AXES[fixed[0]]} changes, but only {', '.join(self.axes)} may; leave out --axes")
        change |= {name: 1.0 for name in self.free} | dict(free or {})
        powers = {**{name: monomial(name) for name in self.free}, **self.powers}
        return {name: powers[name].at(change) for name in QUANTITIES if name in powers}

    @property
    def compounds(self) -> bool:
        """Whether beta is raised to a power, instead of scaling 1 - beta by the same number."""
        return any(i.compounds for i in self.held)

    @property
    def experts(self) -> dict[str, Monomial]:
        """Ratio of each quantity for an expert to that for a dense tensor, by name of the quantity, as a power of K/M.

        Law: an expert takes as many steps as a dense tensor, on K/M of the batch and of the tokens. Its gradient is
        averaged over the whole batch, so that it and its epsilon have another factor K/M. Quantities that the
        invariants leave free are taken to be equal for both.
        """
        extra = {name: 1 if name == "eps" else m["eps"] if "eps" in self.free else 0 for name, m in self.powers.items()}
        return {name: monomial("K/M") ** (m["B"] + m["T"] + extra[name]) for name, m in self.powers.items()}

    def document(
        self, numbers: Mapping[str, tuple[float, float | None]] | None = None, experts: bool = False
    ) -> Document:
        """Makes the report on how each quantity changes with batch and tokens, or on why the invariants contradict each
        other.

        Args:
            numbers: by quantity its factor and, if a base value is given, the new value.
            experts: add each quantity for an expert, divided by that for a dense tensor (``experts``).
        """
        numbers = numbers or {}
        changing = " and ".join(AXES[axis] for axis in self.axes)
        blocks: list[Block] = [Heading(literal(f"{self.about}; {changing} change"), 2)]
        if self.conflicts:
            blocks.append(Lines.of("these contradict each other:"))
            columns = ["cannot all stay fixed", "product", "moves as"]
            blocks.append(Grid.of(columns, map(_conflict, self.conflicts)))
        else:
            columns = ["quantity", "power", *(["expert"] if experts else []), *(["factor", "value"] if numbers else [])]
            rows: list[list[Piece | None]] = []
            for name in (q for q in QUANTITIES if q in self.powers or q in self.free):
                power, share = self.powers.get(name), self.experts.get(name)
                rows.append([Text(text(name), literal(QUANTITIES[name])), "free" if power is None else _piece(power)])
                rows[-1] += [None if share is None else _piece(share)] if experts else []
                rows[-1] += [None if x is None else f"{x:.6g}" for x in numbers.get(name, ())]
            blocks.append(Grid.of(columns, rows))
        held = [(i.name, literal(i.title), literal(i.because), literal(i.source)) for i in self.held]
        blocks.append(Grid.of(["held", "what stays the same", "because", "source"], held))
        notes = ["a run has T/B steps; powers of the width (derive) multiply these and contain neither B nor T"]
        if self.compounds:
            notes.append("beta goes to the power of that factor, exactly: 1 - beta^B is (1-beta) B while that is small")
        if self.free:
            notes.append(f"free: {', '.join(map(text, self.free))}: these invariants do not determine it")
        if experts:
            routed = "and so does its row of the router, unless gates are normalised over all experts"
            notes.append(f"an expert sees K/M of batch and tokens, {routed}")
        blocks.append(Lines.of(*map(literal, notes), listed=True))
        return Document(tuple(blocks), self.record(numbers))

    def record(self, numbers: Mapping[str, tuple[float, float | None]]) -> dict[str, Any]:
        """Returns the JSON record; ``numbers`` has for each quantity its factor and, if a base value is given, the new
        value.
        """
        return {
            "optimizer": self.optimizer,
            "held": [i.name for i in self.held],
            "axes": list(self.axes),
            "powers": {text(name): strings(m) for name, m in self.powers.items()},
            "experts": {text(name): strings(m) for name, m in self.experts.items()},
            "free": [text(name) for name in self.free],
            "factors": {text(name): factor for name, (factor, _) in numbers.items()},
            "values": {text(name): value for name, (_, value) in numbers.items() if value is not None},
            "conflicts": [
                {"fixed": [{"invariant": n, "monomial": text(m), "power": str(e)} for (n, m), e in c.parts],
                 "product": strings(c.product)}
                for c in self.conflicts
            ],
        }  # fmt: skip


@cache
def data() -> HorizonData:
    """Loads ``horizon.toml``: the invariants that ship with the package, and which of them are kept by default."""
    path = Path(__file__).with_suffix(".toml")
    whole: HorizonData = read_file(path, "invariants", lambda _, tables: read_value(HorizonData, tables))
    return whole


def optimizers() -> tuple[str, ...]:
    """Returns the optimizers to which some invariant applies."""
    return tuple(dict.fromkeys(name for i in data().invariant for name in i.optimizers))


def of(optimizer: str) -> dict[str, Invariant]:
    """Returns the invariants that apply to an optimizer, by name.

    Raises:
        UsageError: no invariant applies to it, or several optimizers are given.
    """
    if {"+", ","} & set(optimizer):
        each = "give two models, --base SIZES --target SIZES, for the rule of every tensor, or one optimizer"
        raise UsageError(f"{optimizer} combines optimizers whose rules for batch and tokens differ; {each}")
    check_names("optimizer with invariants", [optimizer], optimizers())
    return {i.name: i for i in data().invariant if optimizer in i.optimizers}


def horizon(
    optimizer: str = DEFAULT_OPTIMIZER, hold: Sequence[str] | None = None, axes: Iterable[str] = AXES
) -> Horizon:
    """Solves for all ways in which an optimizer's quantities can follow batch and tokens while invariants hold.

    Args:
        optimizer: the optimizer.
        hold: names of invariants, or ``all``; by default those of ``default`` in the data that apply to the optimizer.
        axes: ``B``, ``T`` or both: what changes.

    Raises:
        UsageError: an optimizer, invariant or axis is not known.

    Examples:
        >>> print(horizon("adamw").powers["wd"], horizon("adamw", ["timescale"]).powers["wd"])
        B^(1/2)/T B/T/lr
    """
    invariants, changing, default = of(optimizer), tuple(dict.fromkeys(axes)), data().default
    if hold is not None and ALL in hold and len(hold) > 1:
        raise UsageError(f"{ALL} already holds every invariant; leave out the other names")
    names = [n for n in default if n in invariants] if hold is None else invariants if ALL in hold else hold
    check_names(f"invariant of {optimizer}", names, (*invariants, ALL))
    check_names("axis", changing, AXES)
    if not names or not changing:
        raise UsageError(f"no invariant is held or no axis changes; give --hold {','.join(default)}, and --axes B,T")
    held = tuple(invariants[name] for name in dict.fromkeys(names))
    changed = {axis: Monomial() for axis in AXES if axis not in changing}
    fixed = dict.fromkeys(m.substitute(changed) for i in held for m in i.fixed)
    quantities = [q for q in QUANTITIES if any(m[q] != 0 for i in invariants.values() for m in i.fixed)]
    powers = solve_for_ones([*fixed], ORDER)
    if any(m.substitute(powers).powers for m in fixed):
        parts = [
            (", ".join(i.name for i in held if m in i.fixed), m)
            for m in dict.fromkeys(m for i in held for m in i.fixed)
        ]
        return Horizon(optimizer, held, changing, {}, (), tuple(_conflicts(parts, changing)))
    ordered = {q: powers[q] for q in quantities if q in powers}
    return Horizon(optimizer, held, changing, ordered, tuple(q for q in quantities if q not in powers))


@dataclass(frozen=True)
class RateRule:
    """The best learning rate as a power of batch and tokens, if one invariant holds.

    Attributes:
        name: the invariant, with what else stays fixed, such as ``timescale, wd fixed``.
        rate: a monomial in B and T.
        because: the reason of the invariant.
    """

    name: str
    rate: Monomial
    because: str


def rate_rules(optimizer: str) -> list[RateRule]:
    """Returns a rule for every invariant that sets the learning rate, alone or together with a fixed weight decay.

    Raises:
        UsageError: no invariant applies to the optimizer, or several optimizers are given.

    Examples:
        >>> [(rule.name, str(rule.rate)) for rule in rate_rules("adamw")][-1]
        ('timescale, wd fixed', 'B/T')
    """
    rules = []
    for name, invariant in of(optimizer).items():
        if invariant.fixed:
            powers = horizon(optimizer, [name]).powers
            if "lr" in powers:
                rules.append(RateRule(name, powers["lr"], invariant.because))
            elif powers.get("wd", Monomial())["lr"] != 0:
                rules.append(RateRule(f"{name}, wd fixed", powers["wd"].solve_for("lr"), invariant.because))
    return rules


def text(m: Monomial | str) -> str:
    """Writes a monomial: ``(1-beta2)/lr^2``."""
    return str(m).replace("one_minus_beta1", "(1-beta1)").replace("one_minus_beta2", "(1-beta2)")


def strings(m: Monomial) -> dict[str, str]:
    """Converts a monomial for JSON: ``{"B": "1/2", "T": "-1"}``."""
    return {text(name): str(e) for name, e in m.powers}


# inside --------------------------------------------------------------------------------------------------------


def _conflicts(parts: Sequence[HeldMonomial], axes: Sequence[str]) -> Iterator[Conflict]:
    """Yields every minimal set of monomials that cannot all stay Theta(1), smaller sets first.

    In a product of powers of these monomials all quantities of the optimizer cancel, but a power of batch or tokens
    remains, which grows.

    Args:
        parts: the monomials, each with the names of its invariants.
        axes: what changes: batch, tokens or both.
    """
    for places, weights in find_circuits([m for _, m in parts], tuple(QUANTITIES)):
        powers = {k: w / weights[0] for k, w in zip(places, weights, strict=True)}
        whole = reduce(mul, (parts[k][1] ** e for k, e in powers.items()))
        product = Monomial.of({axis: whole[axis] for axis in axes})
        if product.powers:
            yield Conflict(tuple((parts[k], e) for k, e in powers.items()), product)


def _conflict(c: Conflict) -> list[Piece]:
    """Makes the table row of one contradiction: the monomials that cannot both stay fixed, and their product."""
    fixed = ", ".join(f"{text(m)} ({name})" for (name, m), _ in c.parts)
    product = " ".join(f"({text(m)})" + (f"^({e})" if e != 1 else "") for (_, m), e in c.parts)
    return [fixed, literal(product), _piece(c.product)]


def _piece(m: Monomial) -> Text:
    """Returns a monomial as text with its LaTeX."""
    names = {parameter(name): tex for name, tex in _LATEX.items()}
    return Text(text(m), f"${sympy.latex(m.expr, symbol_names=names)}$")
