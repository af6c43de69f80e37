"""From desiderata to exponents: exact Newton iteration on max-plus equations, then a certified check of every demand.

At a point each demanded quantity is a linear form in the unknown b, c, d, alpha: the monomial that wins there. Setting
the forms to Theta(1) is a linear system, its solution the next point. A quantity is a maximum of such forms, so the
iteration is Newton's method on convex piecewise linear functions: at a fixed point every demand that fixes an unknown
holds, and the same linear system, solved per axis, gives the powers of the axes. Nothing is read from a table.
Read next: ``demands.py`` (how demands fare at a point), ``derivation.py`` (what users call).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Rung
from scaling_algebra.counting.store import Meter
from scaling_algebra.dynamics.analysis import WORK, Analysis
from scaling_algebra.dynamics.answers import CLOSELY, QUICK
from scaling_algebra.dynamics.run import unknowns
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.linear import Row, solve_linear
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Demand, Structure, interventions
from scaling_algebra.spec.given import NOTHING, Given
from scaling_algebra.spec.level import CERTIFIED, Level, Open
from scaling_algebra.spec.networks.auxiliary import weight_of
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.multipliers import free_multipliers
from scaling_algebra.spec.networks.roles import meetings
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Form, Power
from scaling_algebra.spec.scaling import Point, Scaling, TensorScaling
from scaling_algebra.waiting import each

from .demands import (
    NO_COMMON,
    Failure,
    Fixing,
    Infeasible,
    below,
    bounded,
    causes_first,
    check,
    concerns,
    diverges,
    dwindles,
    largest,
    look_ahead,
    met,
    unfaithful,
    unknown,
    violation,
)
from .layerwise import PLAIN, at_full_alignment, layerwise
from .structures import Structures

_LAZY = Fraction(2)
"""Learning rates n^-x that vanish, in units of the largest rate of the ray."""
_ROUNDS = 24
_SHARED = 3
"""Sizes that may stay undecided before the others climb one rung alone."""
SHOWN: tuple[tuple[int | None, int | None], ...] = ((8_000, None), (80_000, 160_000), (None, None))
"""Work that bound and witness of one demand may take, and those of all: a little first, then of what is left more."""
PROPOSED = 200_000
"""Work, in nodes of matching searches, until the layer-wise law is shown to hold but for what is open."""
_AHEAD = 5_000
"""Nodes of matching searches that one product may take on the update after the horizon."""
_LITTLE = 5_000
"""Work for one demand before all of them were asked."""


PIECE = 100_000
"""Work for a piece of a sum over experts that one tensor makes."""
STRUCTURES = 1_200_000
"""Work for all structures where each is judged at the layer-wise law."""


@dataclass(frozen=True)
class Solution:
    """A parameterization that meets every demand, or, where exponents are given, every demand that fixes another one.

    Attributes:
        scaling: powers of the axes.
        structure: the discrete choices.
        fixed_by: what fixes each unknown that is not given; empty where the layer-wise law does.
        rejected: structures tried before, each with the demand it failed.
        others: structures with as few interventions of which no demand is seen to fail, either.
        unmet: the demands that do not hold with what is given, each with the reason.
        assumes: what the sizes that show this rest on, beyond counting powers.
        level: how far it is shown that the demands hold.
        exchanged: what is not given is as where nothing is given.
    """

    scaling: Scaling
    structure: Structure
    fixed_by: Mapping[str, Fixing]
    rejected: tuple[tuple[Structure, str], ...] = ()
    unmet: tuple[tuple[Demand, str], ...] = ()
    others: tuple[Structure, ...] = ()
    assumes: tuple[str, ...] = ()
    level: Level = CERTIFIED
    exchanged: bool = False


class Solver:
    """Solves demands for one network, ray and optimizer; products of kernels are shared between all attempts.

    Args:
        algebras: to share products of kernels with other solvers on the ray.
        effort: go on behind a demand that is undecided, and climb every rung for each question.
    """

    def __init__(
        self,
        network: Network,
        ray: Ray,
        optimizer: Trained,
        algebras: dict[Rung, Algebra] | None = None,
        effort: bool = False,
    ) -> None:
        self.network, self.ray, self.optimizer, self.effort = network, ray, optimizer, effort
        self._algebras: dict[Rung, Algebra] = {} if algebras is None else algebras
        self._last: Analysis | None = None
        self._solved: dict[tuple[str, Structure], list[Solution]] = {}

    def solve(
        self, parameterization: Parameterization, base: Structure | None = None, given: Given = NOTHING
    ) -> Solution:
        """The solution of a parameterization's demands with the fewest interventions in the structure.

        Where norms stand in the way of exact counting, a structure is judged at the layer-wise law: bounds refute it,
        or it is a candidate.

        Where no structure has one that is certified, it is a candidate of which nothing that is decided fails: the
        layer-wise law, or where the iteration ends. Where exponents are given, the demands that would fix them fix
        nothing, and the rest is solved; if some demands do not hold then, the structure in which the fewest fail is
        taken, and they are named.

        Args:
            base: the structure before any intervention, by default that of the parameterization's definition.

        Raises:
            Infeasible: none of the structures works; the message names what failed without any intervention.
        """
        base = given.structure(base or parameterization.base_structure(self.network))
        if given and not given.held:  # a start at zero is a structure like any other
            with suppress(Infeasible):
                return self.solve(parameterization, base)
        options = interventions(self.network, base) if parameterization.structural else [base]
        rejected: list[tuple[Structure, str]] = []
        start: dict[str, Fraction] | None = None
        best: Solution | None = None
        undecided, found = False, list[Solution]()
        free = self._derived(parameterization, base) if given.held or (given and parameterization.structural) else []
        near = [{**self.aligned(), **x.scaling.point(self.ray).values} for x in free]
        short = bool(free and self.network.norms) and not self.effort
        work = PROPOSED if short else None
        structures = Structures(self.network, base, parameterization.structural)
        self._last, law = None, None
        stacked = parameterization.structural and not given and bool(self.network.norms)
        unsure = False
        everywhere, failed = not stacked, list[Demand]()  # that the law, one point, fails proves nothing
        if not (given or parameterization.structural):
            try:
                law = self.proposed(parameterization.demanded(self.network, base), base)
            except Infeasible as problem:
                if problem.undecided and not self.effort:
                    raise
            if law is not None and not (law.level.certified or self.effort):
                return law
        begun = self._meter.done if stacked else 0
        for structure in structures:
            if structure.zero & given.started:
                structures.reject(structure, None)
                continue
            demands = parameterization.demanded(self.network, structure)
            failure, sure, suspected = "", False, list[Demand]()
            demand: Demand | None = None
            if stacked:
                if self._meter.done > begun + STRUCTURES and not self.effort:
                    undecided = True
                    break
                try:
                    found.append(replace(self.proposed(demands, structure, strict=True), rejected=tuple(rejected)))
                    structures.found = True
                except Infeasible as problem:
                    undecided |= problem.undecided and not rejected
                    unsure |= problem.undecided
                    structures.reject(structure, problem.demand)
                    rejected.append((structure, str(problem)))
                continue
            if parameterization.structural and not given and len(options) > 1:
                suspected = [d for d in demands if (d in failed if failed else d.kind != "balanced")]
            for values in [start] if start else near if short else [*near, self.aligned(), self.lazy()]:
                try:
                    with self._within(work):
                        look, forms = self.iterate(demands, structure, values, given, not start, suspected)
                    start = start or {**values, **look.point.values}
                    unmet, left = self._unmet(demands, look, work) if given else ((), self.met(demands, look))
                except Infeasible as problem:
                    failure, sure, demand = str(problem), problem.everywhere, problem.demand
                    undecided |= problem.undecided and not rejected
                    failed += [problem.demand] if problem.demand else []
                    if suspected and problem.demand and not start:  # c of descent, which counts c - d
                        start = {**values, **self.descent.end, **{f"d.{x}": Fraction(0) for x in self.epsilons}}
                    if sure or (suspected and start) or (undecided and not self.effort and not given.held):
                        break
                    continue
                scaling = self.scaling(look, by_axis(forms, given.held), structure, given)
                solution = Solution(scaling, structure, forms, tuple(rejected), unmet, (), look.assumed, Level(left))
                if not (unmet or left):
                    return solution
                failure = unmet[0][1] if unmet else str(left[0])
                if best is None or len(unmet) + len(left) < len(best.unmet) + len(best.level.open):
                    best = solution
                undecided |= not (given or rejected)
                if not (given or self.effort):
                    break
            structures.reject(structure, demand)
            rejected.append((structure, failure))
            everywhere = everywhere and sure
        if undecided and not (given or stacked):
            best = law or self.by_layers(parameterization.demanded(self.network, base), base) or best
        if unsure and not found:
            found = self._as_normalised(parameterization, base, rejected)
        if found:
            best = min(found, key=lambda x: len(x.level.open))
            best = replace(best, others=tuple(x.structure for x in found if x is not best))
        if best is None and free and given.held:
            best = self._exchanged(parameterization, free[0], given)
        if best is None:
            raise Infeasible(rejected[0][1], undecided, everywhere=everywhere)
        return best

    def iterate(
        self,
        demands: Sequence[Demand],
        structure: Structure,
        start: Mapping[str, Fraction],
        given: Given = NOTHING,
        proposed: bool = True,
        suspected: Sequence[Demand] = (),
    ) -> tuple[Analysis, dict[str, Fixing]]:
        """Newton's method from a start: the engine at the point where it ends, and what fixes each unknown there.

        Args:
            proposed: the start may be the solution, so bound and witness are asked first.
            suspected: demands that are likely to fail: they are examined first, where gradient descent ends.

        Raises:
            Infeasible: it does not end, or the demands leave an unknown free.
        """
        held = {name: power.on(self.ray) for name, power in given.held.items()}
        begin: Mapping[str, Fraction] = {**start, **held}
        if proposed and not suspected and self._stands(demands, structure, begin):
            return self.newton(demands, structure, begin, held, steady=True)
        if self.epsilons or suspected:
            begin = self._after_descent(demands, structure, begin, held, suspected)
        return self.newton(demands, structure, begin, held)

    def aligned(self, structure: Structure = PLAIN) -> dict[str, Fraction]:
        """The exponents of the layer-wise law on the ray.

        The weight of a loss beside the output is that at which its gradients are one over the number of entries.
        """
        at_zero = dict.fromkeys(unknowns(self.network), Fraction(0))
        values = at_zero | {name: power.on(self.ray) for name, power in self._law(structure).items()}
        for loss, x, g in meetings(self.network):
            weight = weight_of(self.network, loss)
            look = self.looked(structure.point(self.network, values | {weight: Fraction(0)}))
            size = look.quick(f"{g}.by-{loss}", 0).size or Fraction(0)
            values[weight] = self.network.size(self.network.signals[x]).on(self.ray) + size
        return values

    def by_layers(self, demands: Sequence[Demand], structure: Structure) -> Solution | None:
        """The layer-wise law, if no demand that is decided fails."""
        try:
            return self.proposed(demands, structure)
        except Infeasible:
            return None

    def proposed(self, demands: Sequence[Demand], structure: Structure, strict: bool = False) -> Solution:
        """The layer-wise law.

        Args:
            strict: nothing without bounds, nor where a piece of a sum that one tensor makes, or none, is undecided.

        Raises:
            Infeasible: a demand fails.
        """
        look = self.looked(structure.point(self.network, self.aligned(structure)))
        if strict:
            self._pieces(demands, look)
        with self._within(PROPOSED):
            check([d for d in demands if d.kind in ("theta", "bounded") and not bounded(d, look)], look)
            self._not_below(demands, look)
            left = self.met(demands, look)
            wanted = {d.fixes for d in demands if d.fixes and concerns(d, self.optimizer)}
            law = self._law(structure).items()
            powers = {name: x for name, x in law if name[:2] != "d." or name in wanted}
            scaling = self.scaling(look, powers, structure)
        undecided, closer = {x.demand for x in left}, self._closer(look)
        with self._within(PIECE):
            for d in (d for d in demands if d.label in undecided and not strict):
                if failure := dwindles(d, look, closer):  # that other powers do as little is not shown
                    raise Infeasible(str(failure), undecided=True, demand=d)
        return Solution(scaling, structure, {}, assumes=look.assumed, level=Level(left))

    # inside ----------------------------------------------------------------------------------------------------

    def _law(self, structure: Structure) -> dict[str, Power]:
        return at_full_alignment(self.network, self.ray, self.optimizer, structure)

    def _stands(self, demands: Sequence[Demand], structure: Structure, values: Mapping[str, Fraction]) -> bool:
        """Bound and witness show that a proposal meets what is demanded of the sizes of signals."""
        look = self.looked(structure.point(self.network, values))
        asked = [d for d in demands if d.kind in ("theta", "bounded")]
        return all(met(d, look) for d in each("deriving", "demands", asked))

    def _derived(self, parameterization: Parameterization, base: Structure) -> list[Solution]:
        """Where some exponents are given: the solution where none is, if there is one."""
        key = parameterization.name, base
        if key not in self._solved:
            try:
                self._solved[key] = [self.solve(parameterization, base)]
            except Infeasible:
                self._solved[key] = []
        return self._solved[key]

    def _exchanged(self, parameterization: Parameterization, free: Solution, given: Given) -> Solution:
        """The solution where nothing is given, with what is given in the place of its own powers: the demands that fail
        there fail first."""
        scaling, structure = given.over(free.scaling), given.structure(free.structure)
        look = self.looked(structure.point(self.network, {**self.aligned(), **scaling.point(self.ray).values}))
        unmet, left = self._unmet(parameterization.demanded(self.network, structure), look, PROPOSED)
        fixed = {name: x for name, x in free.fixed_by.items() if name not in given.held}
        return Solution(scaling, structure, fixed, (), unmet, (), look.assumed, Level(left), exchanged=True)

    def _as_normalised(
        self, parameterization: Parameterization, base: Structure, rejected: Sequence[tuple[Structure, str]]
    ) -> list[Solution]:
        """The layer-wise law in the structures that rules with an epsilon have, where no demand that is decided fails.

        Law: with epsilon at the largest gradient their run is one of gradient descent with c - d for c; their steps are
        bounded, so bounds show more of it.
        """
        rules = self.optimizer.with_normalisers
        if rules == self.optimizer:
            return []
        try:
            same = Solver(self.network, self.ray, rules, effort=self.effort).solve(parameterization, base)
        except Infeasible:
            return []
        structures = (same.structure, *same.others)
        laws = [self.by_layers(parameterization.demanded(self.network, x), x) for x in structures]
        return [replace(law, rejected=tuple(rejected)) for law in laws if law]

    def met(self, demands: Iterable[Demand], look: Analysis) -> tuple[Open, ...]:
        """The sizes that stay undecided, of demands of which none is seen to fail.

        A demand is met where bound and witness meet; the others are examined step by step. Behind one that stays
        undecided on the closer rungs the others climb the first two alone, and behind a few the first: unless effort is
        asked for.

        Raises:
            Infeasible: a demand does not hold.
        """
        demands = list(demands)
        for one, every in SHOWN:
            if one is None:
                check(demands, look)
            with self._within(every):
                demands = [*(d for d in each("deriving", "demands", demands) if not self._shown(d, look, one))]
        ahead = self._fresh(look.point).limited(_AHEAD)
        for demand in demands:
            if failure := look_ahead(demand, ahead):
                raise Infeasible(failure)
        left: list[Open] = []
        closer, quick = look.closely(() if self.effort else CLOSELY), self._quickly(look)
        for demand in each("certifying", "demands left", demands):
            failure = violation(demand, quick if len(left) >= _SHARED and not self.effort else look)
            if failure and failure.undecided and (self.effort or not left):
                failure = violation(demand, look, closer=closer)
            if failure and failure.open is None:
                raise Infeasible(failure, demand=demand)
            left += [failure.open] if failure and failure.open else []
        return tuple(replace(x, why=look.bounds.why or x.why) if x.why in ("", WORK) else x for x in left)

    def _unmet(
        self, demands: Iterable[Demand], look: Analysis, work: int | None = None
    ) -> tuple[tuple[tuple[Demand, str], ...], tuple[Open, ...]]:
        """The demands that fail, in order of update and signal; and the sizes that are undecided of those that neither
        bound and witness nor a certificate show.

        Args:
            work: for all demands; then what diverges after one update, which takes the least, is looked for first.
        """
        ahead = self._fresh(look.point).limited(_AHEAD)
        failures: dict[Demand, Failure | None] = {}
        demands = [d for d in demands if concerns(d, self.optimizer)]

        def failure(d: Demand, first: bool) -> Failure | None:
            if first and not met(d, look):
                early = violation(d, look, horizon=1)
                return early if early and early.step <= 1 else Failure("", undecided=True)
            return None if met(d, look) else violation(d, look) or unfaithful(d, look) or look_ahead(d, ahead)

        with self._within(work):
            for one in (None,) if work is None else (_LITTLE, work // 4, None):
                for d in each("certifying", "demands", demands):
                    with self._within(one):
                        failures[d] = failure(d, one is not None)
                demands = [d for d in demands if (left := failures[d]) and left.undecided]
        if work is None and demands:  # work that is not shared goes further
            alone = Analysis(self.ray, look.point, self.optimizer, self.network)
            failures |= {d: violation(d, alone) or unfaithful(d, alone) for d in demands}
        closer = self._closer(look)
        with self._within(PIECE):
            failures |= {d: dwindles(d, look, closer) or x for d, x in failures.items() if x and x.undecided}
        found = causes_first(failures, self.network)
        unmet = tuple((d, x.reason) for d, x in found if not x.undecided)
        return unmet, tuple(x.open for _, x in found if x.open)

    def newton(
        self,
        demands: Iterable[Demand],
        structure: Structure,
        start: Mapping[str, Fraction],
        held: Mapping[str, Fraction],
        steady: bool = False,
        quick: bool = False,
    ) -> tuple[Analysis, dict[str, Fixing]]:
        """Newton's method; at a start that is steady nothing diverges. quick: by lower bounds alone."""
        fixed = {*held, *(f"b.{role}" for role in structure.zero)}
        wanted = [d for d in demands if d.fixes and d.fixes not in fixed]
        wanted = [d for d in wanted if concerns(d, self.optimizer)]
        names, values, stuck = [d.fixes for d in wanted], {**start, **held}, False
        seen = list[object]()
        for _ in range(_ROUNDS):
            if (values, stuck, steady) in seen:  # from here on the same points again
                break
            seen.append((values, stuck, steady))
            try:
                look = self.looked(structure.point(self.network, values))
                look.lower(self.network.statements[0].out, 0)
            except UsageError:
                raise
            except ValueError:  # a fraction too fine for the engine: the iteration does not settle
                raise Infeasible(NO_COMMON) from None
            forms, steady = {}, not quick and (steady or not any(diverges(look, demand) for demand in wanted))
            for demand in wanted:
                fixing = largest(look, demand, steady)
                if fixing is None:
                    last = demand.horizon
                    zero = f"{demand.label}, but it is exactly zero up to t={last}"
                    raise Infeasible(zero, everywhere=self._asleep(look, structure, last))
                forms[demand.fixes] = fixing
            rows = [self._row(x.form, held) for x in forms.values()]
            met = [sum(n * values[u] for u, n in row.items()) == rhs for row, rhs in rows]
            if all(met):
                if solve_linear(rows, names) is None:
                    raise Infeasible("the demands that fix the unknowns leave one of them free")
                return look, forms
            # The first independent rows decide: the simplest, and where these hold already, those that do not hold.
            counts = [sum(abs(Fraction(n)) for n in row.values()) for row, _ in rows]
            ranked = sorted(zip(met, counts, range(len(rows)), strict=True), key=lambda x: (stuck and x[0], x[1]))
            keep: list[Row] = [({name: 1}, values[name]) for name in names]  # for directions the forms leave open
            moved = {**values, **(solve_linear([rows[k] for *_, k in ranked] + keep, names) or {})}
            values, stuck, steady = moved, moved == values, False
        left = next((fixing.demand.label for fixing, holds in zip(forms.values(), met, strict=True) if not holds), "")
        raise Infeasible(unknown(wanted, look) or f"{NO_COMMON}, such as {left}")

    def _asleep(self, look: Analysis, structure: Structure, last: int) -> bool:
        """What is exactly zero at an update stays so.

        Law: zeros follow from the tensors that are zero. Once an update leaves all of these where they are, so does
        every later one.
        """
        zero = structure.zero - self.network.frozen
        for t in range(last):
            gradients = {role: look.lower(f"g{self.network.tensors[role].symbol}", t) for role in zero}
            if any(x.unknown for x in gradients.values()):
                return False
            if all(x.zero for x in gradients.values()):
                return True
            zero = frozenset(role for role, x in gradients.items() if x.zero)
        return False

    @cached_property
    def descent(self) -> Solver:
        """The solver with gradient descent for every rule that has an epsilon; this one where none has."""
        if not self.epsilons:
            return self
        return Solver(self.network, self.ray, self.optimizer.with_descent, self._algebras, self.effort)

    @property
    def end(self) -> Mapping[str, Fraction]:
        """Where the last iteration ended."""
        return self._last.point.values if self._last else {}

    @cached_property
    def epsilons(self) -> list[str]:
        """Tensors whose rule has an epsilon."""
        trained = (role for role in self.network.tensors if role not in self.network.frozen)
        return [role for role in trained if self.optimizer.of(role).epsilon]

    def _row(self, form: Form, held: Mapping[str, Fraction]) -> Row:
        """The equation that makes a form Theta(1), for the unknowns that are not held."""
        constant = sum((n * held[u] for u, n in form.unknowns if u in held), form.power.on(self.ray))
        return {u: n for u, n in form.unknowns if u not in held}, -constant

    def _after_descent(
        self,
        demands: Sequence[Demand],
        structure: Structure,
        start: Mapping[str, Fraction],
        held: Mapping[str, Fraction],
        suspected: Sequence[Demand],
    ) -> Mapping[str, Fraction]:
        """The start for rules with an epsilon: the solution of gradient descent.

        Law: with epsilon at the largest gradient (mu-3) every normaliser is epsilon, and a run is one of gradient
        descent with c - d for c. So where gradient descent has no solution, neither has this optimizer; where descent
        is undecided, its steps may have tails that those of this optimizer have not. Where c is held, c - d follows d,
        and descent is solved again until d stays. Where d is held, mu-3 need not hold, and this is a start like any
        other.
        """
        plain, roles = self.descent, set(self.epsilons)
        values, last = dict(start), max(demand.horizon for demand in demands)
        rates = [role for role in self.epsilons if f"c.{role}" in held]
        for turn in range(_ROUNDS if rates else 1):
            counted = self.counted(values)
            kept = {name: x for name, x in held.items() if name[:2] not in ("c.", "d.") or name[2:] not in roles}
            kept |= {f"c.{role}": counted[f"c.{role}"] for role in rates}
            try:
                look, _ = plain.newton(demands, structure, counted, kept, quick=bool(suspected))
                check(suspected, look)
            except UsageError:
                if not turn:
                    raise
                return start  # c - d follows d, and does not settle: its fractions get finer
            except Infeasible as failure:
                if failure.everywhere or failure.undecided or any(name[:2] in ("c.", "d.") for name in held):
                    return start
                raise
            before, values = values, self.faithful(look.point.values, look, last, held)
            if values == before:
                break
        return values

    def counted(self, values: Mapping[str, Fraction]) -> dict[str, Fraction]:
        """Values for gradient descent: c - d of rules with an epsilon for c."""
        return {**values, **{f"c.{role}": values[f"c.{role}"] - values[f"d.{role}"] for role in self.epsilons}}

    def faithful(
        self, counted: Mapping[str, Fraction], look: Analysis, last: int, held: Mapping[str, Fraction] | None = None
    ) -> dict[str, Fraction]:
        """Values of gradient descent for rules with an epsilon: epsilons at the largest gradients of its run, and c - d
        is what c was; what is held stays."""
        held = held or {}
        values = dict(counted)
        for role in self.epsilons:
            largest_gradient = _largest_gradient(look, self.network.tensors[role].symbol, last)
            values[f"d.{role}"] = held.get(f"d.{role}", -largest_gradient)
            values[f"c.{role}"] = held.get(f"c.{role}", values[f"c.{role}"] + values[f"d.{role}"])
        return values

    def _not_below(self, demands: Sequence[Demand], look: Analysis) -> None:
        for d in demands:
            if failure := below(d, look):
                raise Infeasible(failure, demand=d)

    def _pieces(self, demands: Sequence[Demand], look: Analysis) -> None:
        """Examines the pieces of sums over experts that one tensor makes, or none.

        Raises:
            Infeasible: there are no bounds, something is bounded by less than it must be, or a piece is undecided.
        """
        if look.bounds.why:
            raise Infeasible(look.bounds.why, undecided=True)
        self._not_below(demands, look)
        pieces = {f"{e.out}.{k}" for e in experts(self.network) for k, x in e.pieces.items() if x not in e.entering}
        for d in (d for d in demands if pieces.intersection(d.quantities)):
            with self._within(PIECE):
                if failure := violation(d, self._quickly(look)):
                    raise Infeasible(failure, demand=d)

    def _closer(self, look: Analysis) -> Analysis:
        """The same run on every rung."""
        return Analysis(self.ray, look.point, self.optimizer, self.network, self._algebras)

    def _quickly(self, look: Analysis) -> Analysis:
        """The run on the first rung alone."""
        return look.closely(QUICK[:1])

    def _shown(self, demand: Demand, look: Analysis, work: int | None) -> bool:
        with self._within(work):
            return met(demand, look)

    @cached_property
    def _meter(self) -> Meter:
        """What counts the work; an answer by shape has no run that it would count."""
        return self._fresh(PLAIN.point(self.network, {})).meter

    def _within(self, work: int | None) -> AbstractContextManager[None]:
        """No more than this work inside, if not all of it is asked for."""
        return self._meter.within(None if self.effort else work)

    def looked(self, point: Point) -> Analysis:
        """The run at a point; at that of the last call the same run, with all that it knows."""
        if self._last is None or self._last.point != point:
            self._last = self._fresh(point)
        return self._last

    def _fresh(self, point: Point) -> Analysis:
        ladder = () if self.effort else QUICK
        return Analysis(self.ray, point, self.optimizer, self.network, self._algebras, ladder=ladder)

    def lazy(self) -> dict[str, Fraction]:
        """Variance-preserving inits and vanishing learning rates: every form starts at first order in the updates."""
        values = dict.fromkeys(unknowns(self.network), Fraction(0))
        for role, tensor in self.network.tensors.items():
            values[f"b.{role}"] = self.network.size(tensor.fan_in).on(self.ray) / 2
            values[f"c.{role}"] = _LAZY * self.ray.largest
        return values

    def scaling(
        self, look: Analysis, powers: dict[str, Power], structure: Structure, given: Given = NOTHING
    ) -> Scaling:
        """Powers of the axes, of which the forms axis by axis are some. Where axes grow alike these cannot tell them
        apart, and the layer-wise system decides if it meets the solution with half-integer powers."""
        values = look.point.values
        for name, power in layerwise(look, structure).items():
            plain = all((2 * e).denominator == 1 for _, e in power.terms)
            if name in powers and power.on(self.ray) == values[name] and plain:
                powers[name] = power
        # Powers of axes that do not grow are constants: nothing determines them.
        powers = {name: Power.of({a: e for a, e in p.terms if self.ray[a]}) for name, p in powers.items()}
        powers |= given.held
        tensors = {
            role: TensorScaling(
                None if look.point.b[role] is None else 1 / powers[f"b.{role}"],
                None if role in self.network.frozen else 1 / powers[f"c.{role}"],
                1 / powers[f"d.{role}"] if f"d.{role}" in powers else None,
            )
            for role in self.network.tensors
        }
        return Scaling(
            tensors,
            {m: powers.get(m, Power()) for m in free_multipliers(self.network)},
            tuple(r for r in self.network.tensors if r in structure.tied),
        )


def _largest_gradient(look: Analysis, symbol: str, last: int) -> Fraction:
    """The exponent of the largest gradient of a tensor after the first update; 0 if all are exactly zero.

    Raises:
        Infeasible: nothing is known of one.
    """
    steps, name = range(1, last + 1), f"g{symbol}"
    top = look.upper(name)
    if top is not None and any(x is not None and x.size == top for x in (look.witness(name, t) for t in steps)):
        return top
    sizes = {t: look.lower(name, t) for t in steps}
    if open_at := [t for t, x in sizes.items() if x.unknown]:
        raise Infeasible(f"mu-3: {name} at t={open_at[0]} is undecided")
    return max((x.size for x in sizes.values() if x.size is not None), default=Fraction(0))


def by_axis(forms: Mapping[str, Fixing], held: Mapping[str, Power]) -> dict[str, Power]:
    """The linear system of the winning forms, solved once per axis instead of once for the ray."""
    powers: dict[str, dict[str, Fraction]] = {name: {} for name in forms}
    behind = [*(fixing.form.power for fixing in forms.values()), *held.values()]
    for axis in dict.fromkeys(axis for power in behind for axis, _ in power.terms):
        rows: list[Row] = []
        for fixing in forms.values():
            counts, constant = dict(fixing.form.unknowns), fixing.form.power[axis]
            constant += sum((n * held[u][axis] for u, n in counts.items() if u in held), Fraction(0))
            rows.append(({u: n for u, n in counts.items() if u not in held}, -constant))
        solved = solve_linear(rows, list(forms))
        assert solved is not None
        for name, x in solved.items():
            powers[name][axis] = x
    return {name: Power.of(p) for name, p in powers.items()}
