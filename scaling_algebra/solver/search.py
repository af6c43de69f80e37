"""Finds the fewest interventions with which Newton's method reaches a point that meets all demands.

Read next: ``newton.py`` (the iteration), ``demands.py`` (the check), ``derivation.py`` (the functions that users call).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.budgets import PIECE_WORK, PROPOSAL_WORK, STRUCTURES_WORK
from scaling_algebra.spec.desiderata import Demand, Structure, enumerate_structures
from scaling_algebra.spec.given import NOTHING, Given
from scaling_algebra.spec.level import CERTIFIED, Level
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling

from .demands import (
    Fixing,
    Infeasible,
    check,
    concerns,
    dwindles,
    is_bounded,
    left_open,
    level_of,
    not_below,
    pieces,
    unmet,
)
from .layerwise import at_full_alignment, layerwise
from .newton import by_axis, find_aligned_start, iterate_newton, make_lazy_start
from .points import Places
from .structures import Structures

Rejected = tuple[tuple[Structure, str], ...]


@dataclass(frozen=True)
class Solution:
    """A parameterization that meets every demand, or, if exponents are given, every demand that fixes another exponent.

    Attributes:
        scaling: powers of the axes.
        structure: which tensors start at zero or alike in all experts, and which signals are not constrained.
        fixed_by: the condition that fixes each unknown that is not given; empty for powers that follow from the
            shapes of tensors (the layer-wise law, ``layerwise.py``).
        rejected: structures tried before, each with the demand it failed.
        unmet: the demands that fail with the given exponents, each with the reason.
        others: structures with as few interventions for which no demand is seen to fail, either.
        assumes: assumptions beyond counting powers that the check relies on.
        level: how far the demands are proved to hold.
        exchanged: True if the search was not repeated with the given powers: all other powers are those of the
            solution in which the user fixes nothing.
    """

    scaling: Scaling
    structure: Structure
    fixed_by: Mapping[str, Fixing]
    rejected: Rejected = ()
    unmet: tuple[tuple[Demand, str], ...] = ()
    others: tuple[Structure, ...] = ()
    assumes: tuple[str, ...] = ()
    level: Level = CERTIFIED
    exchanged: bool = False


def solve(at: Places, rule: Parameterization, base: Structure | None = None, given: Given = NOTHING) -> Solution:
    """Finds the solution of a parameterization's demands with the fewest interventions in the structure.

    In a network with norms sizes cannot be counted exactly. A structure (which tensors start at zero or alike in all
    experts) is then examined with the powers that follow from the shapes of tensors (the layer-wise law). If bounds
    on sizes refute a demand, the structure is rejected; otherwise it is a candidate.

    If no structure has a certified solution, the result is a candidate for which no demand is known to fail: the
    layer-wise law, or the last point of Newton's method. If exponents are given, the demands that would determine
    them are dropped and the others are solved. If some of the dropped demands fail at the solution, the structure in
    which the fewest fail is returned, and the failures are in ``Solution.unmet``.

    Args:
        at: makes analyses, which compute sizes, at the exponents that are visited.
        rule: the parameterization.
        base: the structure before any intervention; by default that of the parameterization's definition.
        given: given exponents.

    Raises:
        Infeasible: none of the structures works; the message names what failed without any intervention.
    """
    base = given.structure(base or rule.base_structure(at.network))
    if given and not given.held:  # an init of zero is a structural choice like any other
        with suppress(Infeasible):
            return solve(at, rule, base)
    free = _free(at, rule, base) if given.held or (given and rule.structural) else None
    near = [{**find_aligned_start(at), **free.scaling.point(at.ray).values}] if free else []
    at.last = None
    if given:
        return _search_by_newton(at, rule, base, given, free, near)
    if rule.structural:
        return _search_structures(at, rule, base) if at.network.norms else _search_by_newton(at, rule, base)
    try:
        law = propose_law(at, rule.list_demands(at.network, base), base)
    except Infeasible as problem:
        if problem.undecided and not at.effort:
            raise
        return _search_by_newton(at, rule, base)
    return _search_by_newton(at, rule, base, law=law) if law.level.certified or at.effort else law


def _search_structures(at: Places, rule: Parameterization, base: Structure) -> Solution:
    """Finds the structure with the fewest interventions in which powers from the shapes of tensors violate no demand.

    These powers are the layer-wise law (``layerwise.at_full_alignment``). Of several such structures the one with the
    fewest undecided demands is returned; the others are listed in the solution.

    Raises:
        Infeasible: in every structure some demand fails. This does not prove that there is no solution, as other
            powers may meet the demands.
    """
    rejected, found, undecided, unsure = list[tuple[Structure, str]](), list[Solution](), False, False
    structures, begun = Structures(at.network, base, structural=True), at.meter.work_done
    for structure in structures:
        if at.meter.work_done > begun + STRUCTURES_WORK and not at.effort:
            undecided = True
            break
        demands = rule.list_demands(at.network, structure)
        try:
            found.append(replace(judge_law(at, demands, structure), rejected=tuple(rejected)))
            structures.found = True
        except Infeasible as problem:
            undecided |= problem.undecided and not rejected
            unsure |= problem.undecided
            structures.reject(structure, problem.demand)
            rejected.append((structure, str(problem)))
    if unsure and not found:
        found = _as_normalised(at, rule, base, tuple(rejected))
    if not found:
        raise Infeasible(rejected[0][1], undecided)
    best = min(found, key=lambda x: len(x.level.open))
    return replace(best, others=tuple(x.structure for x in found if x is not best))


def _search_by_newton(
    at: Places,
    rule: Parameterization,
    base: Structure,
    given: Given = NOTHING,
    free: Solution | None = None,
    near: Sequence[dict[str, Fraction]] = (),
    law: Solution | None = None,
) -> Solution:
    """Solves the demands by Newton's method, in one structure after the other, and in each from one starting point
    after the other, until a solution is found.

    Args:
        at: provides analyses, which compute sizes, at the points (choices of all exponents) that are visited.
        rule: the parameterization.
        base: the structure before any intervention.
        given: given exponents.
        free: the solution with nothing given.
        near: starting points made from ``free``, tried first.
        law: the solution that follows from the shapes of tensors, if no demand fails there.

    Raises:
        Infeasible: as ``solve``.
    """
    held = {name: power.on(at.ray) for name, power in given.held.items()}
    work = PROPOSAL_WORK if free and at.network.norms and not at.effort else None
    several = rule.structural and not given and len(enumerate_structures(at.network, base)) > 1
    rejected, candidates, failed = list[tuple[Structure, str]](), list[Solution](), list[Demand]()
    start: dict[str, Fraction] | None = None
    undecided, everywhere = False, True
    structures = Structures(at.network, base, rule.structural)
    for structure in structures:
        if structure.zero & given.started:
            structures.reject(structure, None)
            continue
        demands, failure = given.relax_demands(at.network, rule.list_demands(at.network, structure)), Infeasible("")
        suspected = [d for d in demands if several and (d in failed if failed else d.kind != "balanced")]
        for values in [start] if start else near if work else [*near, find_aligned_start(at), make_lazy_start(at)]:
            try:
                with at.within(work):
                    look, forms = iterate_newton(at, demands, structure, values, held, suspected)
                start = start or {**values, **look.point.values}
                args = at, demands, look
                fail, left = unmet(*args, work) if given else ((), left_open(*args))
            except Infeasible as problem:
                failure = problem
                undecided |= problem.undecided and not rejected
                failed += [problem.demand] if problem.demand else []
                if suspected and problem.demand and not start:  # descent returns c - d in place of c, so d is 0
                    last = at.descent.last
                    ended = last.point.values if last else {}
                    start = {**values, **ended, **{f"d.{x}": Fraction(0) for x in at.epsilons}}
                if problem.everywhere or (suspected and start) or (undecided and not at.effort and not held):
                    break
                continue
            scaling = _make_scaling(at, look, by_axis(forms, given.held), structure, given)
            level = level_of(demands, left, at.optimizer)
            solution = Solution(scaling, structure, forms, tuple(rejected), fail, (), look.assumed, level)
            if not (fail or left):
                return solution
            candidates.append(solution)
            failure = Infeasible(fail[0][1] if fail else str(left[0]), demand=failure.demand)
            undecided |= not (given or rejected)
            if not (given or at.effort):
                break
        structures.reject(structure, failure.demand)
        rejected.append((structure, str(failure)))
        everywhere = everywhere and failure.everywhere
    best = min(candidates, key=lambda x: len(x.unmet) + len(x.level.open), default=None)
    if undecided and not given:
        best = law or by_layers(at, rule.list_demands(at.network, base), base) or best
    if best is None and free and held:
        best = _exchange_given(at, rule, free, given)
    if best is None:
        raise Infeasible(rejected[0][1], undecided, everywhere=everywhere)
    return best


# the layer-wise law ---------------------------------------------------------------------------------------------


def propose_law(at: Places, demands: Sequence[Demand], structure: Structure) -> Solution:
    """Returns the powers that follow from the shapes of tensors (the layer-wise law) if no demand is known to fail.

    Raises:
        Infeasible: a demand fails.
    """
    look = _look(at, structure)
    law, closer = _at_law(at, demands, structure, look), look.with_settings(budgets=())
    undecided = {x.demand for x in law.level.open}
    with at.within(PIECE_WORK):
        for d in (d for d in demands if d.label in undecided):
            if failure := dwindles(d, look, closer):  # other powers might do more
                raise Infeasible(str(failure), undecided=True, demand=d)
    return replace(law, assumes=look.assumed)


def judge_law(at: Places, demands: Sequence[Demand], structure: Structure) -> Solution:
    """Returns the powers that follow from the shapes of tensors, under stricter conditions than ``propose_law``.

    All sizes must have an upper bound, and in every sum over experts the part that one tensor contributes must be
    decided.

    Raises:
        Infeasible: a demand or one of these conditions fails.
    """
    look = _look(at, structure)
    pieces(at, demands, look)
    return _at_law(at, demands, structure, look)


def by_layers(at: Places, demands: Sequence[Demand], structure: Structure) -> Solution | None:
    """Returns the powers that follow from the shapes of tensors if no demand is known to fail, else None."""
    with suppress(Infeasible):
        return propose_law(at, demands, structure)
    return None


def _look(at: Places, structure: Structure) -> Analysis:
    return at.analyse_at(structure.point(at.network, find_aligned_start(at, structure)))


def _at_law(at: Places, demands: Sequence[Demand], structure: Structure, look: Analysis) -> Solution:
    with at.within(PROPOSAL_WORK):
        check([d for d in demands if d.kind in ("theta", "bounded") and not is_bounded(d, look)], look)
        not_below(demands, look)
        left = left_open(at, demands, look)
        wanted = {d.fixes for d in demands if d.fixes and concerns(d, at.optimizer)}
        law = at_full_alignment(at.network, at.ray, at.optimizer, structure).items()
        powers = {name: x for name, x in law if name[:2] != "d." or name in wanted}
        scaling = _make_scaling(at, look, powers, structure)
    return Solution(scaling, structure, {}, assumes=look.assumed, level=level_of(demands, left, at.optimizer))


def _as_normalised(at: Places, rule: Parameterization, base: Structure, rejected: Rejected) -> list[Solution]:
    """Returns solutions in the structures that are found if every update rule normalises, as Adam does.

    It is used where structures cannot be decided with the optimizer itself. In each structure the powers are those that
    follow from the shapes of tensors; structures in which a demand is known to fail are omitted.

    Law: if epsilon is as large as the largest gradient, training with such a rule is gradient descent with the
    learning rate divided by epsilon. So both have the same structures. The steps of rules that normalise are bounded,
    so upper bounds decide more of their sizes.
    """
    rules = at.optimizer.with_normalisers
    if rules == at.optimizer:
        return []
    try:
        same = solve(Places(at.network, at.ray, rules, effort=at.effort), rule, base)
    except Infeasible:
        return []
    laws = [by_layers(at, rule.list_demands(at.network, x), x) for x in (same.structure, *same.others)]
    return [replace(law, rejected=rejected) for law in laws if law]


# where exponents are given --------------------------------------------------------------------------------------


def _free(at: Places, rule: Parameterization, base: Structure) -> Solution | None:
    """Returns the solution of the demands without the exponents that the user fixed; None if there is none."""
    key = rule.name, base
    if key not in at.solved:
        at.solved[key] = None
        with suppress(Infeasible):
            at.solved[key] = solve(at, rule, base)
    solution: Solution | None = at.solved[key]
    return solution


def _exchange_given(at: Places, rule: Parameterization, free: Solution, given: Given) -> Solution:
    """Replaces powers in the solution ``free``, in which the user fixed nothing, by the given ones, and reports the
    demands that fail then.
    """
    scaling, structure = given.over(free.scaling), given.structure(free.structure)
    values = {**find_aligned_start(at), **scaling.point(at.ray).values}
    look = at.analyse_at(structure.point(at.network, values))
    demands = given.relax_demands(at.network, rule.list_demands(at.network, structure))
    failed, left = unmet(at, demands, look, PROPOSAL_WORK)
    fixed = {name: x for name, x in free.fixed_by.items() if name not in given.held}
    level = level_of(demands, left, at.optimizer)
    return Solution(scaling, structure, fixed, (), failed, (), look.assumed, level, exchanged=True)


def _make_scaling(
    at: Places, look: Analysis, powers: dict[str, Power], structure: Structure, given: Given = NOTHING
) -> Scaling:
    """Makes the settings of all tensors from the powers of the axes that were found for the unknowns.

    If several axes grow at the same rate, the exponents on the ray do not show which axis a power belongs to. The
    powers from ``layerwise`` are then used, if their exponents are multiples of 1/2 and they have the same size on
    the ray as the solution.
    """
    values = look.point.values
    for name, power in layerwise(look, structure).items():
        plain = all((2 * e).denominator == 1 for _, e in power.terms)
        if name in powers and power.on(at.ray) == values[name] and plain:
            powers[name] = power
    # Powers of axes that do not grow are constants, which nothing determines.
    powers = {name: Power.of({a: e for a, e in p.terms if at.ray[a]}) for name, p in powers.items()}
    powers |= given.held
    tensors = {
        role: TensorScaling(
            None if look.point.b[role] is None else 1 / powers[f"b.{role}"],
            None if role in at.network.frozen else 1 / powers[f"c.{role}"],
            1 / powers[f"d.{role}"] if f"d.{role}" in powers else None,
        )
        for role in at.network.tensors
    }
    multipliers = {m: powers.get(m, Power()) for m in find_free_multipliers(at.network)}
    return Scaling(tensors, multipliers, tuple(r for r in at.network.tensors if r in structure.tied))
