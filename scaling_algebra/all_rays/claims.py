"""What there is to prove about a map of rays: one claim for each cell and wall, and that they leave out no ray.

Read next: ``queries.py`` and ``solver/cones.py`` (decide them), ``theorems.py`` (what users call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from scaling_algebra.formulas.polyhedra import Vector, corners
from scaling_algebra.phase_map.phases import Cell, Phases
from scaling_algebra.proofs.clauses import Atom, Clause, ClauseSolver, Sense
from scaling_algebra.solver.cones import descent
from scaling_algebra.solver.convexity import cone_holds
from scaling_algebra.solver.demands import HORIZON
from scaling_algebra.solver.walls import PLANE_AXES, Wall
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, interventions
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.scaling import Scaling

from .facts import linear
from .queries import Cone, Decision, growing, nowhere

STEPS = (HORIZON + 1, HORIZON)
"""Updates up to which O(1) is demanded, and by which Theta(1) must have been reached."""
FACES = (frozenset[str](), frozenset({"M"}))
"""Axes that are fixed: none, or the number of experts, whose gates then do not average out."""
_UNIT: tuple[Vector, ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
_TURNED: dict[Sense, Sense] = {"<=": ">=", ">=": "<="}
_NOT: dict[Sense, Sense] = {"<=": ">", ">=": "<", "<": ">=", ">": "<=", "=": "!=", "!=": "="}


@dataclass(frozen=True)
class Side:
    """A wall and the side of it on which rays lie: ``<=``, ``=``, ``!=``, ..."""

    wall: Wall
    sense: Sense

    def __str__(self) -> str:
        return str(self.wall).replace(" = ", f" {self.sense} ")

    @property
    def atom(self) -> Atom:
        return linear(dict(zip(PLANE_AXES, self.wall.coefficients, strict=True)), self.sense)

    @property
    def complement(self) -> Side:
        return Side(self.wall, _NOT[self.sense])


@dataclass(frozen=True)
class Claim:
    """A statement about a cone of rays, and how it is decided.

    Attributes:
        sides: what bounds the cone. ``fixed``: axes that do not grow in it.
        about: what there is in the cone, e.g. ``exactly one, with tied expert_in``.
        scaling: the formula that it is about, if it is about one.
    """

    name: str
    about: str
    sides: tuple[Side, ...]
    fixed: frozenset[str]
    decide: Callable[[], Decision]
    scaling: Scaling | None = None

    @property
    def where(self) -> str:
        """``N_e + M >= N, M <= N``."""
        return cone(self.sides, self.fixed).text


def claims(p: Phases) -> dict[str, Claim]:
    """Every claim about a map, by name."""
    found = [*(_on_walls(p) if p.parameterization.structural else _in_cells(p))]
    for fixed in FACES:
        parts = [c for c in found if c.fixed == fixed and not c.name.endswith("exists")]
        if parts:
            decide = partial(covered, [c.sides for c in parts], fixed)
            found.append(Claim(f"cover{_suffix(fixed)}", "every ray is in one of these cones", (), fixed, decide))
    return {c.name: c for c in found}


def cone(sides: Sequence[Side], fixed: frozenset[str]) -> Cone:
    return Cone(tuple(side.atom for side in sides), fixed, ", ".join(map(str, sides)) or "all rays")


def holds(p: Phases, scaling: Scaling, structure: Structure, rays: Sequence[Vector]) -> Decision:
    """Does a formula meet every demand on the cone that rays span?"""
    spanning = [Ray(dict(zip(PLANE_AXES, rates, strict=True))) for rates in rays]
    ahead = STEPS[0] - HORIZON
    why = cone_holds(scaling, p.optimizer, p.parameterization, spanning, structure, ahead)
    shown = "; ".join(",".join(f"{a}={x}" for a, x in zip(PLANE_AXES, rates, strict=True)) for rates in rays)
    if not why:
        return Decision("proved", why=f"seen at the rays that span the cone: {shown}")
    return Decision("undecided" if "undecided" in why else "refuted", why=why)


def alone(p: Phases, scaling: Scaling, structure: Structure, sides: Sequence[Side], fixed: frozenset[str]) -> Decision:
    """Do no parameters but those of a formula meet the demands on a cone?"""
    return nowhere(MOE_BLOCK, p.parameterization, structure, cone(sides, fixed), apart(p, scaling, fixed))


def apart(p: Phases, scaling: Scaling, fixed: frozenset[str]) -> tuple[Atom, ...]:
    """At least one parameter is not that of a formula; with an epsilon it is the learning rate over epsilon."""
    plain = descent(scaling) if p.optimizer.epsilon else scaling
    names = [f"b.{role}" for role, t in plain.tensors.items() if t.init_std is not None]
    names += [*(f"c.{role}" for role in plain.tensors), *plain.multipliers]
    powers = {x: {a: -e for a, e in plain.unknown(x).terms if a not in fixed} for x in names}
    return tuple(linear({x: 1, **power}, "!=") for x, power in powers.items())


def covered(parts: Sequence[Sequence[Side]], fixed: frozenset[str]) -> Decision:
    """Is every ray in one of these cones?"""
    name = "in none of the cones"
    outside = [Clause(name, tuple(side.complement.atom for side in sides), _text(sides)) for sides in parts]
    rays = [Clause("the rays", (x,), "") for x in growing(PLANE_AXES, fixed)]
    solver = ClauseSolver()
    for clause in (*rays, *outside):
        solver.add(clause)
    model = solver.model((name, "the rays"), ())
    if model is None:
        return Decision("proved", clauses=(*rays, *outside))
    return Decision("refuted", why="not so at " + ",".join(f"{a}={model.get(a, 0)}" for a in PLANE_AXES))


# inside ------------------------------------------------------------------------------------------------------------


def _in_cells(p: Phases) -> Iterator[Claim]:
    """Cells with a formula: it exists and is unique; without one: there is none."""
    structure = p.parameterization.base_structure(p.parameterization.readout_init)
    title = p.parameterization.title
    taken: dict[str, int] = {}
    for cell in p.cells:
        taken[cell.name] = taken.get(cell.name, 0) + 1
        name = cell.name + (str(taken[cell.name]) if taken[cell.name] > 1 else "")
        for fixed in FACES:
            sides = _sides(p, cell)
            rays = _spanned(sides, fixed)
            if len(rays) < len(PLANE_AXES) - len(fixed):
                continue
            sides = _facets(sides, rays, fixed)
            if cell.scaling is None:
                strict = tuple(Side(s.wall, "<" if s.sense == "<=" else ">") for s in sides)
                none = partial(nowhere, MOE_BLOCK, p.parameterization, structure, cone(strict, fixed))
                yield Claim(f"{name} none{_suffix(fixed)}", f"no {title}", strict, fixed, none)
                continue
            s = cell.scaling
            exists, unique = partial(holds, p, s, structure, rays), partial(alone, p, s, structure, sides, fixed)
            about = f"{title} by the formula of cell {cell.name}"
            yield Claim(f"{name} exists{_suffix(fixed)}", about, sides, fixed, exists, s)
            yield Claim(f"{name} unique{_suffix(fixed)}", f"no {title} but this formula", sides, fixed, unique, s)


def _on_walls(p: Phases) -> Iterator[Claim]:
    """Pieces of walls with a formula, and every structure off these walls."""
    rule = p.parameterization
    structures = interventions(MOE_BLOCK, rule.base_structure(rule.readout_init))
    solved = [e for e in p.edges if e.scaling is not None]
    for number, e in enumerate(solved):
        assert e.scaling is not None
        name, structure = chr(ord("a") + number), next(s for s in structures if str(s) == e.structure)
        rates = [e.ray[axis] for axis in PLANE_AXES]
        sides = (Side(e.wall, "="), *(_side(w, rates) for w in p.walls if w != e.wall))
        rays = _spanned(sides, frozenset())
        sides = _ends(sides, rays)
        exists = partial(holds, p, e.scaling, structure, rays)
        unique = partial(alone, p, e.scaling, structure, sides, frozenset())
        about = f"{rule.title} with {structure}"
        yield Claim(f"{name} exists", about, sides, frozenset(), exists, e.scaling)
        yield Claim(f"{name} unique", f"no {about} but this formula", sides, frozenset(), unique, e.scaling)
    off = tuple(Side(w, "!=") for w in dict.fromkeys(e.wall for e in solved))
    for structure in structures:
        none = partial(nowhere, MOE_BLOCK, rule, structure, cone(off, frozenset()))
        yield Claim(f"none: {structure}", f"no {rule.title} with {structure}", off, frozenset(), none)


def _sides(p: Phases, cell: Cell) -> tuple[Side, ...]:
    middle = [sum((c[k] for c in cell.corners), Fraction(0)) / len(cell.corners) for k in (0, 1)]
    place = dict(zip(p.plane, middle, strict=True))
    rates = [place.get(axis, Fraction(1)) for axis in PLANE_AXES]
    return tuple(_side(w, rates) for w in p.walls)


def _side(wall: Wall, rates: Sequence[Fraction]) -> Side:
    return Side(wall, ">=" if wall.at(rates) > 0 else "<=")


def _spanned(sides: Sequence[Side], fixed: frozenset[str]) -> list[Vector]:
    """Rays that span a cone, those on which a fixed axis grows left out."""
    walls: list[Vector] = []
    for side in sides:
        below = tuple(-x for x in side.wall.coefficients)
        walls += [side.wall.coefficients] * (side.sense in (">=", "=")) + [below] * (side.sense in ("<=", "="))
    rays = corners(_UNIT, walls)
    return [r for r in rays if not any(x for axis, x in zip(PLANE_AXES, r, strict=True) if axis in fixed)]


def _ends(sides: Sequence[Side], rays: Sequence[Vector]) -> tuple[Side, ...]:
    """The wall that a piece lies on, and a side for each end at which no rate becomes 0."""
    on, *others = sides
    ends = [
        r
        for r, other in zip(rays, reversed(rays), strict=True)
        if not any(x == 0 < y for x, y in zip(r, other, strict=True))
    ]
    return (on, *dict.fromkeys(next(s for s in others if not s.wall.at(r)) for r in ends))


def _facets(sides: Sequence[Side], rays: Sequence[Vector], fixed: frozenset[str]) -> tuple[Side, ...]:
    """The sides that bound the cone that rays span, without the axes that are fixed."""
    dimension = len(PLANE_AXES) - len(fixed) - 1
    found = [s for s in sides if sum(not s.wall.at(r) for r in rays) >= dimension]
    return tuple(dict.fromkeys(x for x in (_without(s, fixed) for s in found) if x is not None))


def _without(side: Side, fixed: frozenset[str]) -> Side | None:
    """A side where the rates of some axes are 0; None where it then says nothing that rates >= 0 do not say."""
    left = [0 if a in fixed else x for a, x in zip(PLANE_AXES, side.wall.coefficients, strict=True)]
    if sum(map(bool, left)) < 2:
        return None
    wall = Wall.of([Fraction(x) for x in left])
    turned = next(x for x in reversed(left) if x) < 0
    return Side(wall, _TURNED.get(side.sense, side.sense) if turned else side.sense)


def _suffix(fixed: frozenset[str]) -> str:
    return "".join(f", {axis} fixed" for axis in sorted(fixed))


def _text(sides: Sequence[Side]) -> str:
    return "not in the cone " + (", ".join(map(str, sides)) or "of all rays")
