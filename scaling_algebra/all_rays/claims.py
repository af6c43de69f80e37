"""Theorems about all rays of a network: one or two for each cone, and one that the cones cover all rays.

Whether a formula meets every demand on a cone is decided at the rays that span the cone (``solver/convexity.py``).
Whether it is the only one, or whether there is none, is decided by z3, with the rates and the exponents as unknowns. z3
proposes a ray with parameters, and the engine examines it. If a monomial violates a demand there, its exponent, which
is linear in rates and parameters, must be smaller. This inequality holds for every solution on every ray, so it
excludes further proposals; this is repeated until z3 finds no proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Literal

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.cone import Sides
from scaling_algebra.linear.linear import SIDES, Linear, Vector
from scaling_algebra.linear.refine import refine
from scaling_algebra.proofs.candidates import find_failure
from scaling_algebra.proofs.clauses import AllRays
from scaling_algebra.proofs.prover import APART, EPSILON
from scaling_algebra.solver.cones import descent
from scaling_algebra.solver.convexity import open_axes
from scaling_algebra.solver.demands import provable
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Demand, Structure, enumerate_structures
from scaling_algebra.spec.networks.indices import find_aggregations, list_growing_axes
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.scaling import Scaling

from .covering import Face, Piece, cover_rays

NUMBERS = ("M",)
"""Axes that count experts. If they grow, gates average out; then they grow on all rays of a cone."""
RAYS = "the rays"


@dataclass(frozen=True)
class Region:
    """The rays that satisfy some inequalities and lie in none of some cones.

    Attributes:
        sides: linear inequalities between the rates of the axes.
        fixed: axes that do not grow on these rays; all others do.
        outside: the cones that are excluded.
    """

    sides: Sides
    fixed: frozenset[str] = frozenset()
    outside: tuple[Piece, ...] = ()

    def __str__(self) -> str:
        between, names = ", ".join(map(str, self.sides)), ", ".join(p.name for p in self.outside)
        return ", ".join(filter(None, (between, names and f"outside {names}"))) or "all rays"


@dataclass(frozen=True)
class Decision:
    """The answer to the question whether a theorem is true.

    Attributes:
        verdict: ``proved``, ``refuted`` or ``undecided``. A theorem that no parameters meet the demands is ``refuted``
            if ``why`` names some that do.
        core: the desiderata that together exclude all parameters.
        clauses: the unsatisfiable system of constraints that proves the theorem; empty if there is none.
        why: the evidence, or the reason why the theorem is undecided.
    """

    verdict: Literal["proved", "refuted", "undecided"]
    core: tuple[str, ...] = ()
    clauses: tuple[Clause, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Theorem:
    """A statement about a cone of rays, which is decided on first access.

    Attributes:
        name: its name, such as ``A exists``.
        about: the statement about the cone, such as ``no muP but formula A``.
        where: the rays.
        decide: decides the statement.
        routed: True if the rays are those with K < M (a token is routed to few of the experts), False for those with
            K = M.
        scaling: the formula that the statement is about, if there is one.
    """

    name: str
    about: str
    where: Region
    decide: Callable[[], Decision]
    routed: bool = False
    scaling: Scaling | None = None

    @cached_property
    def decision(self) -> Decision:
        """The answer, which is computed on first access."""
        return self.decide()


def list_faces(whole: Face) -> list[Face]:
    """Divides all rays of a network into parts (faces), on each of which the same numbers of experts (M, K) stay fixed.

    Gates average out only over a number of experts that grows, so that each face needs formulas of its own.

    Rays on which a token is routed to few of the experts (K < M) form another face, except for parameterizations with
    interventions, which are not derived there.
    """
    numbers = [axis for axis in NUMBERS if axis in whole.axes]
    parts = [replace(whole, fixed=frozenset(x)) for x in ((), *((axis,) for axis in numbers))]
    return (
        [*parts, replace(whole, routed=True)]
        if find_aggregations(whole.network) and not whole.rule.structural
        else parts
    )


def list_claims(whole: Face, wanted: Sequence[str] = ()) -> dict[str, Theorem]:
    """Returns every claim about a network, a parameterization and an optimizer, by name.

    Args:
        whole: all rays of the network.
        wanted: names of claims; faces without any of them are omitted. By default all claims are returned.
    """
    by_end = {_name_suffix(face): face for face in list_faces(whole)}
    ends = {max(filter(name.endswith, by_end), key=len) for name in wanted} if wanted else by_end
    return {x.name: x for end, face in by_end.items() if end in ends for x in _state_theorems(face)}


def decide_exists(face: Face, scaling: Scaling, structure: Structure, rays: Sequence[Vector]) -> Decision:
    """Decides whether a formula meets every demand on the cone spanned by rays.

    Args:
        face: the rays, parameterization and optimizer.
        scaling: the formula: init stds, learning rates and epsilons as powers of the axes.
        structure: interventions of the parameterization: tensors that start at zero or alike in all experts, and
            signals whose size is not constrained.
        rays: rates of the axes on each ray.
    """
    why = face.fails(scaling, structure, rays, ahead=face.steps[0] - face.steps[1])
    if not why:
        shown = "; ".join(",".join(f"{a}={x}" for a, x in zip(face.axes, rates, strict=True)) for rates in rays)
        return Decision("proved", why=f"checked on the rays that span the cone: {shown}")
    return Decision("undecided" if why.undecided else "refuted", why=why.reason)


def decide_none(face: Face, structure: Structure, where: Region, atoms: Sequence[Linear] = ()) -> Decision:
    """Decides whether no parameters on the rays of a region meet the demands.

    For an optimizer with an epsilon the proof also uses desideratum mu-3. It makes epsilon as large as the gradient, so
    that a step is a constant times the gradient, as in gradient descent.

    Args:
        face: the rays, parameterization and optimizer.
        structure: interventions of the parameterization.
        where: the region.
        atoms: constraints; only parameters that meet at least one of them are considered. By default all are.
    """
    reason = provable(face.network, face.ray([1] * len(face.axes)), face.optimizer)
    if not reason and "L" in face.axes:
        reason = "the number of layers L grows, which upper bounds for all rays do not support"
    if reason:
        return Decision("undecided", why=reason)
    decision = decide_nowhere(face.network, face.rule, structure, where, atoms)
    return replace(decision, core=(*decision.core, EPSILON)) if decision.core and face.optimizer.epsilon else decision


def exclude_formula(face: Face, scaling: Scaling) -> tuple[Linear, ...]:
    """Returns constraints, at least one of which is met by every choice of parameters that differs from a formula.

    Each says that one init std, learning rate or multiplier differs from the formula's. For an optimizer with an
    epsilon, the learning rate is divided by it.
    """
    plain = descent(scaling) if face.optimizer.epsilon else scaling
    names = [f"b.{role}" for role, t in plain.tensors.items() if t.init_std is not None]
    names += [*(f"c.{role}" for role in plain.tensors), *plain.multipliers]
    powers = {x: {a: -e for a, e in plain.unknown(x).terms if a not in face.fixed} for x in names}
    return tuple(Linear.of({x: 1, **power}, "!=") for x, power in powers.items())


def decide_cover(face: Face, parts: Sequence[Sides]) -> Decision:
    """Decides whether the union of some cones contains every ray of a face.

    Args:
        face: the rays.
        parts: the inequalities of each cone.
    """
    name = "in none of the cones"
    outside = [
        Clause(name, tuple(side.complement for side in x), f"not in the cone {', '.join(map(str, x)) or 'of all rays'}")
        for x in parts
    ]
    axes = open_axes(face.network)
    system = [*(Clause(RAYS, (x,), "") for x in constrain_directions(axes, face.fixed)), *outside]
    model = ClauseSolver(system).model()
    if model is None:
        return Decision("proved", clauses=tuple(system))
    return Decision("refuted", why="no cone contains the ray " + ",".join(f"{a}={model.get(a, 0)}" for a in axes))


def decide_nowhere(
    network: Network,
    parameterization: Parameterization,
    structure: Structure,
    where: Region,
    apart: Sequence[Linear] = (),
    demands: Sequence[Demand] | None = None,
) -> Decision:
    """Decides whether no ray of a region has parameters that meet the demands.

    Args:
        network: the network.
        parameterization: the parameterization.
        structure: its interventions.
        where: the region.
        apart: constraints; only parameters that meet at least one of them are considered. Used to exclude the
            parameters of a known formula.
        demands: the demands; by default all of the parameterization.
    """
    demands = parameterization.list_demands(network, structure) if demands is None else demands
    axes = list(list_growing_axes(network))
    names = dict.fromkeys(d.label for d in demands)
    left_out = (tuple(side.complement for side in piece.cone.sides) for piece in where.outside)
    rays = [*((x,) for x in (*constrain_directions(axes, where.fixed), *where.sides)), *left_out]
    system = [Clause(RAYS, atoms, str(where)) for atoms in rays]
    system += [Clause(APART, tuple(apart), "not the formula")] if apart else []
    system += [c for c in _list_clauses(network, parameterization, structure, where.fixed) if c.label in names]
    solver = ClauseSolver(system)

    def ray_of(model: Mapping[str, Fraction]) -> Ray:
        return Ray({axis: model[axis] for axis in axes})

    def examine(model: Mapping[str, Fraction]) -> Clause | None:
        """Examines a ray and exponents of the parameters that z3 proposes, with gradient descent as the optimizer.

        Args:
            model: rates of the axes and exponents of the parameters, by name.

        Returns:
            If they violate a demand, a constraint that they violate and that every solution, on any ray, meets; None
            if they meet all demands.

        Raises:
            Undecided: a demand fails, but no constraint shows this for all rays.
        """
        ray, point = ray_of(model), structure.point(network, model)
        failed = find_failure(demands, lambda: Analysis(ray, point, OPTIMIZERS["sgd"], network))
        if failed is None:
            return None
        demand, form, why = failed
        if form is None:
            raise Undecided(f"on {ray} {why}, but the bounds that hold on all rays do not show this")
        return Clause(demand.label, (Linear.of({**dict(form.power.terms), **dict(form.unknowns)}, "<="),), why)

    try:
        model = refine(solver.model, examine, solver.add)
    except Undecided as reason:
        return Decision("undecided", why=str(reason))
    if model is not None:
        shown = ", ".join(f"{x}={v}" for x, v in model.items() if x.partition(".")[0] in ("b", "c", "alpha"))
        return Decision("refuted", why=f"{shown} meets the desiderata on {ray_of(model)}")
    core, needed = solver.conflict()
    return Decision("proved", tuple(x for x in core if x not in (RAYS, APART)), needed)


def constrain_directions(axes: Sequence[str], fixed: frozenset[str]) -> tuple[Linear, ...]:
    """Returns constraints for the rays on which all but the fixed axes may grow, one ray for each direction.

    The first rate is 1, the others are not negative, and numbers of experts that are not fixed grow.

    Law: desiderata depend on the direction of a ray only, not on the scale of its rates.
    """
    first, *others = (axis for axis in axes if axis not in fixed)
    one = tuple(Linear(((first, 1),), sense, Fraction(-1)) for sense in SIDES)
    positive = [Linear.of({axis: 1}, ">=") for axis in others]
    held = [Linear.of({axis: 1}, "=") for axis in axes if axis in fixed]
    return (*one, *positive, *held, *(Linear.of({axis: 1}, "!=") for axis in others if axis in NUMBERS))


# inside ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _list_clauses(
    network: Network, parameterization: Parameterization, structure: Structure, fixed: frozenset[str]
) -> tuple[Clause, ...]:
    """Returns the constraints that the demands imply on every ray, with the rates of the axes and the exponents of the
    parameters as unknowns.
    """
    demands = parameterization.list_demands(network, structure)
    facts = AllRays(network, demands, structure, fixed)
    return tuple(clause for demand in demands for clause in facts.of(demand))


def _state_theorems(face: Face) -> Iterator[Theorem]:
    """Yields the theorems about a face: all rays of a network on which the same axes are fixed.

    For each cone with a formula: the formula meets all demands there, and nothing else does. For the remaining rays: no
    parameters do. And the cones cover all rays.
    """
    title, suffix, parts = face.rule.title, _name_suffix(face), cover_rays(face)
    solved = tuple(p for p in parts if p.scaling is not None)
    for p in solved:
        assert p.scaling is not None
        what = f"{title} with {p.structure}" if face.rule.structural else title
        where = Region(p.cone.sides, face.fixed)
        theorem = partial(Theorem, where=where, routed=face.routed, scaling=p.scaling)
        exists = partial(decide_exists, face, p.scaling, p.structure, p.cone.rays)
        yield theorem(f"{p.name} exists{suffix}", f"{what} by formula {p.name}", decide=exists)
        if not face.routed:  # clauses are for K = M
            unique = partial(decide_none, face, p.structure, where, exclude_formula(face, p.scaling))
            yield theorem(f"{p.name} unique{suffix}", f"no {what} other than formula {p.name}", decide=unique)
    if face.routed:
        return
    elsewhere = Region((), face.fixed, solved)
    if face.rule.structural:
        for s in enumerate_structures(face.network, face.base):
            none = partial(decide_none, face, s, elsewhere)
            yield Theorem(f"none: {s}{suffix}", f"no {title} with {s}", elsewhere, none)
        return
    left = [p for p in parts if p.scaling is None]
    if len(left) > 1:
        yield Theorem(f"none{suffix}", f"no {title}", elsewhere, partial(decide_none, face, face.base, elsewhere))
        return
    for p in left:
        where = Region(p.cone.sides, face.fixed)
        yield Theorem(f"{p.name} none{suffix}", f"no {title}", where, partial(decide_none, face, face.base, where))
    decide = partial(decide_cover, face, [p.cone.sides for p in parts])
    yield Theorem(f"cover{suffix}", "every ray is in one of these cones", Region((), face.fixed), decide)


def _name_suffix(face: Face) -> str:
    """Returns the end of the names of a face's theorems: ``, M fixed`` or ``, K < M``."""
    return "".join(f", {axis} fixed" for axis in sorted(face.fixed)) + (", K < M" if face.routed else "")
