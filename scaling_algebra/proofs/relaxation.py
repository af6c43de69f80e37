"""Where no parameterization meets every demand: the one that breaks least.

Every signal stays O(1). What must be Theta(1) may fall short, as n^-x with x >= 0, and the shortfalls are made as small
as possible one after the other, in the order of the demands: those of features (mu-1) first, then those of single
tensors (mu-2) from the input to the output. So the largest set of demands that this order allows is met, and what is
not met vanishes as slowly as it can. z3 minimises, and the engine examines every candidate exactly, as in a proof.
Read next: ``prover.py`` (the clauses, and the same search for all demands), ``clauses.py`` (shortfalls in them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Unpack

from scaling_algebra.errors import UsageError
from scaling_algebra.linear.clauses import Clause, Undecided
from scaling_algebra.linear.linear import SIDES, Linear
from scaling_algebra.linear.refine import ROUNDS
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION, Configuration, Where
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point, Scaling, TensorScaling
from scaling_algebra.spec.trained import OptimizerInput

from .candidates import expressible
from .clauses import shortfall
from .prover import APART, Prover, System

Values = dict[str, Fraction]


class Undetermined(Infeasible):
    """The smallest shortfalls are not known."""


class Relaxation(System):
    """The demands as clauses in which what must be Theta(1) may fall short."""

    def __init__(self, prover: Prover, demands: Sequence[Demand], structure: Structure) -> None:
        super().__init__(prover, demands, structure, relaxed=True)
        wanted = [d for d in self.demands if d.kind == "theta"]
        self._wanted = {shortfall(d.label): d for d in wanted}
        if len(self._wanted) < len(wanted):
            raise Undecided("two desiderata have one name")
        self._limited = [replace(d, kind="bounded") if d.kind == "theta" else d for d in self.demands]
        self._exponents = tuple(self.names)
        self.names += self._wanted

    def solve(self) -> tuple[Point, dict[Demand, Fraction], bool]:
        """The parameterization that breaks least: its exponents, by how much each demand that it does not meet falls
        short (less of it contradicts those before), and whether it is the only one with these shortfalls.

        Raises:
            Undecided: a candidate cannot be examined, or the search does not end.
        """
        kept: list[Clause] = []
        short: dict[Demand, Fraction] = {}
        left, values = list(self._wanted), None
        while left:
            met, values = self._met(left, kept)
            kept += [clause for name in left[:met] for clause in _equal(name, Fraction(0))]
            left = left[met:]
            if left:
                name = left.pop(0)
                short[self._wanted[name]], values = self._least(name, kept)
                kept += _equal(name, short[self._wanted[name]])
        assert values is not None
        return self.point(values), short, self._alone(values, kept)

    def model(self, apart: Sequence[Clause]) -> Values | None:
        return self._solver.anew([*self.clauses, *apart])

    def examine(self, demands: Sequence[Demand], values: Mapping[str, Fraction], closely: bool = True) -> Clause | None:
        """As for all demands, and a shortfall that is larger than the candidate says."""
        cut = super().examine(self._limited, values, closely)
        if cut is not None:
            return cut
        exponents = {x: values[x] for x in self._exponents}
        with expressible():
            look = self.look(self.structure.point(self.network, exponents), OPTIMIZERS["sgd"])
            for name, demand in self._wanted.items():
                answers = [look(q, t) for q in demand.quantities for t in range(demand.horizon + 1)]
                if not all(a.decided for a in answers):
                    raise Undecided(f"{demand.quantities[0]} is undecided at a candidate")
                size = max((a.size for a in answers if a.size is not None), default=None)
                if size is None or -size > values[name]:
                    more = () if size is None else (Linear(((name, 1),), ">=", size),)
                    return Clause(demand.label, (*self.other(exponents), *more), f"{demand.label} falls short")
        return None

    def _alone(self, values: Values, kept: Sequence[Clause]) -> bool:
        """Does no other point have these shortfalls? Unknown after unknown: z3 is quick where the rest is held."""
        held = list(kept)
        for name in self._exponents:
            apart = Clause(APART, self.other({name: values[name]}), "not the one found")
            if self.next([*held, apart]) is not None:
                return False
            held += _equal(name, values[name])
        return True

    def _met(self, names: Sequence[str], kept: Sequence[Clause]) -> tuple[int, Values | None]:
        """How many of these, from the first on, need no shortfall, and a candidate without.

        Candidates that fall short of as little as possible are the ones that the engine can examine best.
        """
        candidate, low, high = None, 0, len(names)
        middle = high
        while low < high:
            zero = [clause for name in names[:middle] for clause in _equal(name, Fraction(0))]
            values = self.next([*kept, *zero])
            candidate, low, high = (candidate, low, middle - 1) if values is None else (values, middle, high)
            middle = (low + high + 1) // 2
        return low, candidate

    def _least(self, name: str, kept: Sequence[Clause]) -> tuple[Fraction, Values]:
        """The smallest shortfall after those that are kept, and a candidate that has it."""
        for _ in range(ROUNDS):
            least = self._solver.least(name, [*self.clauses, *kept])  # what was found at candidates may raise it
            if least is None:
                raise Undecided("nothing keeps every signal O(1)")
            values = self.next([*kept, *_equal(name, least)])
            less = Clause(APART, (Linear(((name, 1),), "<", -least),), "less")
            if values is not None and self.next([*kept, less]) is None:
                return least, values
        raise Undecided(f"no end of a shortfall after {ROUNDS} rounds")


def relax(
    regime: str | Configuration | None = None,
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    **where: Unpack[Where],
) -> Derivation:
    """As ``derive``; where no parameterization meets every desideratum, the one that breaks least.

    Its ``unmet`` are the desiderata that fall short. What they fix is given in powers of one axis: on this ray.

    Raises:
        UsageError: as ``derive``; also a parameterization with interventions of its own, given exponents, or a network
            or optimizer that proofs do not reach.
        Undetermined: the search for the smallest shortfalls stays undecided.
    """
    asked = Configuration.of(regime, optimizer, parameterization, **where)
    rule = asked.parameterization
    rule.check_derived(asked.network)
    if rule.structural or asked.given:
        what = f"{rule.title} chooses interventions" if rule.structural else "exponents are given"
        raise UsageError(f"only desiderata are relaxed, and {what}; ask for --parameterization mup without --given")
    try:
        return derive(asked)
    except Infeasible:
        pass
    structure = rule.base_structure(asked.readout_init)
    try:
        point, short, unique = Relaxation(Prover.of(asked), rule.demanded(asked.network, structure), structure).solve()
    except Undecided as reason:
        raise Undetermined(f"the {rule.title} that breaks least is undecided: {reason}") from None
    unmet = {d: f"{d.label}, but {' + '.join(d.quantities)} ~ n^({-by})" for d, by in short.items()}
    reasons = _reasons(asked, structure, unmet)
    return Derivation(asked, _scaling(asked, point), reasons, unique=unique, unmet=tuple(unmet.values()))


# inside ------------------------------------------------------------------------------------------------------------


def _scaling(asked: Configuration, point: Point) -> Scaling:
    """The exponents of a point as powers of the first axis that grows."""
    axis = next(axis for axis in AXES if asked.ray[axis])

    def power(exponent: Fraction) -> Power:
        return Power.of({axis: -exponent / asked.ray[axis]})

    tensors = {}
    for role in asked.network.tensors:
        std, eps = point.b[role], power(point.d[role]) if asked.optimizer.of(role).epsilon else None
        tensors[role] = TensorScaling(None if std is None else power(std), power(point.c[role]), eps)
    return Scaling(tensors, {m: 1 / power(x) for m, x in point.multipliers.items()}, tuple(sorted(point.tied)))


def _reasons(asked: Configuration, structure: Structure, unmet: Mapping[Demand, str]) -> dict[tuple[str, str], str]:
    """For every exponent the demand that fixes it, with its shortfall, in reporting order."""
    fixes = {demand.fixes: text for demand, text in unmet.items()}
    reasons = {(role, "init"): "chosen: zero" for role in structure.zero}
    by_letter = {letter: what for what, letter in SETTINGS.items()}
    for demand in asked.parameterization.demanded(asked.network, structure):
        letter, _, role = demand.fixes.partition(".")
        if letter and (letter != "d" or asked.optimizer.of(role).epsilon):
            key = (role, by_letter[letter]) if role else ("aggregation", letter)
            reasons[key] = fixes.get(demand.fixes, demand.label)
    order = [(role, what) for role in asked.network.tensors for what in SETTINGS]
    order += [("aggregation", name) for name in asked.network.free_multipliers]
    return {key: reasons[key] for key in order if key in reasons}


def _equal(name: str, value: Fraction) -> list[Clause]:
    return [Clause(APART, (Linear(((name, 1),), sense, -value),), "what comes before") for sense in SIDES]
