"""All rays of a network, covered by cones on which one formula is to hold: what theorems are then about.

Law: rays are taken away by the cone that a formula found on one of them reaches. What is left is solved again inside,
until nothing is left, or nothing more is found. That the cones are right, and that there is nothing where nothing was
found, is left to proofs: a covering only says what to prove.
Read next: ``claims.py`` (what is claimed of each cone), ``solver/cones.py`` (how far a formula reaches).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from scaling_algebra.proofs.clauses import Atom, Sense
from scaling_algebra.solver.cones import reach
from scaling_algebra.solver.convexity import Looks
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.newton import Solution, Solver
from scaling_algebra.solver.polyhedra import Vector, corners
from scaling_algebra.solver.walls import Wall, bounding, open_axes, orthant, ray_along, routing
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, Parameterization
from scaling_algebra.spec.scaling import Scaling

from .facts import linear

_NOT: dict[Sense, Sense] = {"<=": ">", ">=": "<", "<": ">=", ">": "<=", "=": "!=", "!=": "="}
_STRICT: dict[Sense, Sense] = {"<=": "<", ">=": ">"}
_WEIGHTS = ((3, 5, 7, 11, 13, 17, 19, 23), (13, 7, 11, 3, 5, 23, 17, 19))
"""Of the spanning rays of a part, for the rays inside it that are solved: they lie on no simple wall."""


@dataclass(frozen=True)
class Side:
    """A wall and the side of it on which rays lie: ``<=``, ``=``, ``!=``, ..."""

    wall: Wall
    sense: Sense

    def __str__(self) -> str:
        return str(self.wall).replace(" = ", f" {self.sense} ")

    @property
    def atom(self) -> Atom:
        return linear(dict(zip(self.wall.axes, self.wall.coefficients, strict=True)), self.sense)

    @property
    def complement(self) -> Side:
        return Side(self.wall, _NOT[self.sense])

    @property
    def strict(self) -> Side:
        return Side(self.wall, _STRICT.get(self.sense, self.sense))


Sides = tuple[Side, ...]


@dataclass(frozen=True)
class Piece:
    """A cone of rays, and the formula that is to hold on it.

    Attributes:
        sides: what bounds it, itself included; for a part without a formula, left out.
        rays: rates of the rays that span it, in the order of the axes that grow.
        name: A, B, ... for cones with an inside, a, b, ... for pieces of walls.
    """

    sides: Sides
    rays: tuple[Vector, ...]
    scaling: Scaling | None = None
    structure: Structure = field(default_factory=Structure)
    name: str = ""


@dataclass(frozen=True)
class Face:
    """All rays of a network on which some axes are fixed, for one parameterization and optimizer.

    Attributes:
        routed: the rays with K < M; else those with K = M.
    """

    network: Network
    optimizer: Optimizer
    rule: Parameterization
    fixed: frozenset[str] = frozenset()
    routed: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        return open_axes(self.network, self.fixed, self.routed)

    @property
    def base(self) -> Structure:
        """The structure without any intervention."""
        return self.rule.base_structure(self.rule.readout_init)

    def ray(self, rates: Sequence[int | Fraction]) -> Ray:
        return ray_along(self.axes, rates, self.fixed)

    def solve(self, rates: Vector) -> Solution | None:
        """What the search finds on a ray."""
        try:
            return Solver(self.network, self.ray(rates), self.optimizer).solve(self.rule)
        except Infeasible:
            return None

    def spanned(self, sides: Iterable[Side]) -> list[Vector]:
        """The rays that span the closed cone between some sides."""
        walls = routing(self.axes)
        for side in sides:
            own, turned = side.wall.coefficients, tuple(-x for x in side.wall.coefficients)
            walls += [own] * (side.sense in (">", ">=", "=")) + [turned] * (side.sense in ("<", "<=", "="))
        return corners(orthant(self.axes), walls)

    def inside(self, sides: Collection[Side]) -> Iterator[Vector]:
        """Rays inside a cone; none if all of it lies on a wall that is not given as one."""
        rays = self.spanned(sides)
        for weights in _WEIGHTS if rays else ():
            pairs = zip((weights[k % len(weights)] for k in range(len(rays))), rays, strict=True)
            found = tuple(map(sum, zip(*([w * x for x in r] for w, r in pairs), strict=True)))
            if all(found) and all(side.sense == "=" or side.wall.at(found) for side in sides):
                yield found

    def bounds(self, sides: Sides) -> Sides:
        """The sides that bound a cone, without those where a rate is 0."""
        rays = self.spanned(sides)
        senses = {side.wall: side.sense for side in sides}
        return tuple(Side(w, senses[w]) for w in bounding(list(senses), rays))


@lru_cache(maxsize=32)
def covering(face: Face) -> tuple[Piece, ...]:
    """The cones of all formulas that are found, and the parts that they leave, as far as these have an inside."""
    found: list[Piece] = []
    empty: list[Sides] = []
    todo: list[Sides] = [()]
    while todo:
        part = todo.pop(0)
        piece = next(filter(None, (_around(face, rates) for rates in face.inside(part))), None)
        if piece is None:
            empty.append(part)
            continue
        found.append(piece)
        todo = [rest for x in (part, *todo) for rest in without(face, x, piece.sides)]
        empty = [rest for x in empty for rest in without(face, x, piece.sides)]
    bounds = [tuple(side.strict for side in face.bounds(x)) for x in empty]
    parts = [*found, *(Piece(x, tuple(face.spanned(x))) for x in bounds)]
    return _named(parts, "A") + (_named(_on_walls(face, found), "a") if face.rule.structural else ())


def without(face: Face, part: Sides, cone: Sides) -> list[Sides]:
    """What a cone leaves of a part, as far as it has an inside."""
    if not any(True for _ in face.inside((*part, *cone))):
        return [part]
    pieces, kept = [], part
    for side in cone:
        beyond = Side(side.wall, ">=" if side.sense == "<=" else "<=")
        if side in part:
            continue
        if any(True for _ in face.inside((*kept, beyond))):
            pieces.append((*kept, beyond))
        kept = (*kept, side)
    return pieces


def _around(face: Face, rates: Vector) -> Piece | None:
    """The cone of the formula that is found on a ray, if it has an inside around it."""
    solution = face.solve(rates)
    if solution is None:
        return None
    asked = solution.scaling, face.optimizer, face.rule, solution.structure, face.ray(rates)
    found = reach(*asked, Looks(face.network, face.routed), face.fixed)
    if found is None or any(w.at(rates) == 0 for w in found.walls):
        return None
    sides = tuple(Side(w, ">=" if w.at(rates) > 0 else "<=") for w in found.walls)
    return Piece(sides, tuple(face.spanned(sides)), solution.scaling, solution.structure)


def _on_walls(face: Face, found: Sequence[Piece]) -> list[Piece]:
    """Pieces of the walls of muP on which a formula is found that is that of no cone: walls are where sizes tie."""
    plain = covering(Face(face.network, face.optimizer, PARAMETERIZATIONS["mup"], face.fixed))
    walls = list(dict.fromkeys(side.wall for piece in plain for side in piece.sides))
    pieces = []
    for wall in walls:
        parts: list[Sides] = [(Side(wall, "="),)]
        for other in (w for w in walls if w != wall):
            halves = [(*part, Side(other, sense)) for part in parts for sense in _STRICT]
            parts = [half for half in halves if any(True for _ in face.inside(half))]
        for part in parts:
            rates = next(face.inside(part))
            known = any(all(_holds(side, rates) for side in piece.sides) for piece in found)
            solution = None if known else face.solve(rates)
            if solution is not None:
                sides = face.bounds(part)
                pieces.append(Piece(sides, tuple(face.spanned(sides)), solution.scaling, solution.structure))
    return pieces


def _holds(side: Side, rates: Vector) -> bool:
    at = side.wall.at(rates)
    return at == 0 if side.sense == "=" else at >= 0 if side.sense == ">=" else at <= 0


def _named(pieces: Sequence[Piece], first: str) -> tuple[Piece, ...]:
    """In the order of the directions in which they lie, by the rates where the first axis has rate 1."""

    def place(piece: Piece) -> list[Fraction]:
        shares = [[Fraction(x, max(ray)) for x in ray] for ray in piece.rays]
        one, *others = (sum(x) for x in zip(*shares, strict=True))
        return [x / one for x in others]

    ordered = enumerate(sorted(pieces, key=place))
    return tuple(replace(piece, name=chr(ord(first) + k % 26) + str(k // 26 or "")) for k, piece in ordered)
