"""What there is to prove about all rays of a network: claims for each cone, and that they leave out no ray.

Read next: ``covering.py`` (which cones), ``queries.py`` and ``solver/convexity.py`` (decide claims), ``theorems.py``
(what users call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from scaling_algebra.linear.clauses import Clause, ClauseSolver
from scaling_algebra.linear.cone import Sides
from scaling_algebra.linear.linear import Linear, Vector
from scaling_algebra.proofs.prover import provable
from scaling_algebra.solver.cones import descent
from scaling_algebra.solver.convexity import Looks, cone_holds, open_axes
from scaling_algebra.spec.desiderata import Structure, horizon, interventions
from scaling_algebra.spec.scaling import Scaling

from .covering import Face, Piece, covering
from .queries import NUMBERS, Decision, Region, directions, nowhere


@dataclass(frozen=True)
class ConeClaim:
    """A statement about a cone of rays, and how it is decided.

    Attributes:
        sides: what bounds the cone. ``fixed``: axes that do not grow in it.
        about: what there is in the cone, e.g. ``exactly one, with tied expert_in``.
        routed: it is about the rays with K < M; else about those with K = M.
        scaling: the formula that it is about, if it is about one.
        outside: cones that it leaves out.
    """

    name: str
    about: str
    sides: Sides
    fixed: frozenset[str]
    decide: Callable[[], Decision]
    routed: bool = False
    scaling: Scaling | None = None
    outside: tuple[Piece, ...] = ()

    @property
    def where(self) -> str:
        """``N_e + M >= N, M <= N``."""
        return region(self.sides, self.fixed, self.outside).text


def faces(whole: Face) -> list[Face]:
    """All rays of a network, by which numbers of experts are fixed, so that their gates do not average out; and those
    on which a token sees few of the experts, where MSSP is not looked for."""
    numbers = [axis for axis in NUMBERS if axis in whole.axes]
    found = [replace(whole, fixed=frozenset(x)) for x in ((), *((axis,) for axis in numbers))]
    return [*found, replace(whole, routed=True)] if whole.network.aggregations and not whole.rule.structural else found


def claims(whole: Face, wanted: Sequence[str] = ()) -> dict[str, ConeClaim]:
    """Every claim about a network, a parameterization and an optimizer, by name.

    Args:
        wanted: names; faces that none of them is about are left out.
    """
    found: dict[str, ConeClaim] = {}
    for face in faces(whole):
        ends = [_suffix(x) for x in faces(whole)]
        if not wanted or any(max((x for x in ends if name.endswith(x)), key=len) == _suffix(face) for name in wanted):
            found |= {claim.name: claim for claim in _on(face)}
    return found


def steps(face: Face) -> tuple[int, int]:
    """Updates up to which O(1) is demanded, and by which Theta(1) must have been reached."""
    last = horizon(face.network, face.base)
    return last + 1, last


def region(sides: Sequence[Linear], fixed: frozenset[str], outside: Sequence[Piece] = ()) -> Region:
    """The rays between some sides and in none of some pieces."""
    text = ", ".join(map(str, sides))
    left = tuple(tuple(side.complement for side in piece.cone.sides) for piece in outside)
    text += (", outside " * bool(text) or "outside ") + ", ".join(p.name for p in outside) if outside else ""
    return Region(tuple(sides), fixed, text or "all rays", left)


def holds(face: Face, scaling: Scaling, structure: Structure, rays: Sequence[Vector]) -> Decision:
    """Does a formula meet every demand on the cone that rays span?"""
    spanning = [face.ray(rates) for rates in rays]
    more = steps(face)[0] - steps(face)[1]
    looks = Looks(face.network, face.routed)
    why = cone_holds(scaling, face.optimizer, face.rule, spanning, structure, more, looks)
    shown = "; ".join(",".join(f"{a}={x}" for a, x in zip(face.axes, rates, strict=True)) for rates in rays)
    if not why:
        return Decision("proved", why=f"seen at the rays that span the cone: {shown}")
    return Decision("undecided" if "undecided" in why else "refuted", why=why)


def alone(face: Face, scaling: Scaling, structure: Structure, sides: Sequence[Linear]) -> Decision:
    """Do no parameters but those of a formula meet the demands on a cone?"""
    return none_in(face, structure, region(sides, face.fixed), apart(face, scaling))


def none_in(face: Face, structure: Structure, where: Region, other: Sequence[Linear] = ()) -> Decision:
    """Do no parameters meet the demands on a cone, or none of which one of some atoms holds?"""
    reason = provable(face.network, face.ray([1] * len(face.axes)), face.optimizer)
    if not reason and "L" in face.axes:
        reason = "upper bounds for all rays do not count layers"
    if reason:
        return Decision("undecided", why=reason)
    return nowhere(face.network, face.rule, structure, where, other)


def apart(face: Face, scaling: Scaling) -> tuple[Linear, ...]:
    """At least one parameter is not that of a formula; with an epsilon it is the learning rate over epsilon."""
    plain = descent(scaling) if face.optimizer.epsilon else scaling
    names = [f"b.{role}" for role, t in plain.tensors.items() if t.init_std is not None]
    names += [*(f"c.{role}" for role in plain.tensors), *plain.multipliers]
    powers = {x: {a: -e for a, e in plain.unknown(x).terms if a not in face.fixed} for x in names}
    return tuple(Linear.of({x: 1, **power}, "!=") for x, power in powers.items())


def covered(face: Face, parts: Sequence[Sides]) -> Decision:
    """Is every ray in one of these cones?"""
    name = "in none of the cones"
    outside = [Clause(name, tuple(side.complement for side in sides), _text(sides)) for sides in parts]
    axes = open_axes(face.network)
    rays = [Clause("the rays", (x,), "") for x in directions(axes, face.fixed)]
    solver = ClauseSolver()
    for clause in (*rays, *outside):
        solver.add(clause)
    model = solver.model((name, "the rays"), ())
    if model is None:
        return Decision("proved", clauses=(*rays, *outside))
    return Decision("refuted", why="not so at " + ",".join(f"{a}={model.get(a, 0)}" for a in axes))


# inside ------------------------------------------------------------------------------------------------------------


def _on(face: Face) -> Iterator[ConeClaim]:
    """A formula exists and is unique on each piece that has one; there is none elsewhere; and no ray is left out."""
    title, suffix = face.rule.title, _suffix(face)
    parts = covering(face)
    solved = tuple(p for p in parts if p.scaling is not None)
    for p in solved:
        assert p.scaling is not None
        what = f"{title} with {p.structure}" if face.rule.structural else title
        exists = partial(holds, face, p.scaling, p.structure, p.cone.rays)
        unique = partial(alone, face, p.scaling, p.structure, p.cone.sides)
        made = partial(ConeClaim, sides=p.cone.sides, fixed=face.fixed, routed=face.routed, scaling=p.scaling)
        yield made(f"{p.name} exists{suffix}", f"{what} by formula {p.name}", decide=exists)
        if face.routed:  # clauses are for K = M
            continue
        yield made(f"{p.name} unique{suffix}", f"no {what} but formula {p.name}", decide=unique)
    if face.routed:
        return
    elsewhere = partial(ConeClaim, sides=(), fixed=face.fixed, outside=solved)
    if face.rule.structural:
        for structure in interventions(face.network, face.base):
            where = region((), face.fixed, solved)
            none = partial(none_in, face, structure, where)
            yield elsewhere(f"none: {structure}{suffix}", f"no {title} with {structure}", decide=none)
        return
    left = [p for p in parts if p.scaling is None]
    if len(left) < 2:  # then all rays, if its sides are left to others
        for p in left:
            none = partial(none_in, face, face.base, region(p.cone.sides, face.fixed))
            yield ConeClaim(f"{p.name} none{suffix}", f"no {title}", p.cone.sides, face.fixed, none)
        decide = partial(covered, face, [p.cone.sides for p in parts])
        yield ConeClaim(f"cover{suffix}", "every ray is in one of these cones", (), face.fixed, decide)
    else:
        none = partial(none_in, face, face.base, region((), face.fixed, solved))
        yield elsewhere(f"none{suffix}", f"no {title}", decide=none)


def _suffix(face: Face) -> str:
    return "".join(f", {axis} fixed" for axis in sorted(face.fixed)) + ", K < M" * face.routed


def _text(sides: Sequence[Linear]) -> str:
    return "not in the cone " + (", ".join(map(str, sides)) or "of all rays")
