"""All rays of a network, covered by cones on which one formula is to hold: what theorems are then about.

Law: rays are taken away by the cone that a formula found on one of them reaches. What is left is solved again inside,
until nothing is left, or nothing more is found. That the cones are right, and that there is nothing where nothing was
found, is left to proofs: a covering only says what to prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial

from scaling_algebra.linear.cone import Cone
from scaling_algebra.linear.fan import fan
from scaling_algebra.linear.linear import SIDES, Vector, dot
from scaling_algebra.solver.cones import reach
from scaling_algebra.solver.convexity import Looks, cone_holds, open_axes, ray_along
from scaling_algebra.solver.demands import Failure, Infeasible
from scaling_algebra.solver.points import Places
from scaling_algebra.solver.search import Solution, solve
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, horizon
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, Parameterization
from scaling_algebra.spec.scaling import Scaling


@dataclass(frozen=True)
class Piece:
    """A cone of rays, and the formula that is to hold on it.

    Attributes:
        cone: of a part without a formula without its walls.
        name: A, B, ... for cones with an inside, a, b, ... for pieces of walls.
    """

    cone: Cone
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
        return self.rule.base_structure(self.network)

    def ray(self, rates: Sequence[int | Fraction]) -> Ray:
        return ray_along(self.axes, rates, self.fixed)

    @property
    def steps(self) -> tuple[int, int]:
        """Updates up to which O(1) is demanded, and by which Theta(1) must have been reached."""
        last = horizon(self.network, self.base)
        return last + 1, last

    def solve(self, ray: Ray) -> tuple[Solution | None, str]:
        """The certified solution on a ray; or None, and why."""
        try:
            solution = solve(Places(self.network, ray, self.optimizer), self.rule)
        except Infeasible as failure:
            return None, str(failure)
        return (solution, "") if solution.level.certified else (None, str(solution.level.open[0]))

    def fails(
        self,
        scaling: Scaling,
        structure: Structure,
        rays: Sequence[Sequence[int | Fraction]],
        ahead: int = 0,
        looks: Looks | None = None,
    ) -> Failure | None:
        """Why a formula does not meet every demand on the cone that rays span; None if it does (``cone_holds``)."""
        looks = looks or Looks(self.network, self.routed)
        return cone_holds(scaling, self.optimizer, self.rule, [*map(self.ray, rays)], structure, ahead, looks)


@lru_cache(maxsize=32)
def covering(face: Face) -> tuple[Piece, ...]:
    """The cones of all formulas that are found, and the parts that they leave, as far as these have an inside."""
    pieces, empty = fan(Cone(face.axes), partial(_around, face))
    solved = [Piece(cone, x.scaling, x.structure) for cone, x in pieces]
    parts = [x.without_redundant_sides() for x in empty]
    left = [Piece(Cone(x.axes, tuple(side.strict for side in x.sides))) for x in parts]
    return _named([*solved, *left], "A") + (_named(_on_walls(face, solved), "a") if face.rule.structural else ())


def _around(face: Face, rates: Vector) -> tuple[Cone, Solution] | None:
    """The cone of the formula that is found on a ray, if it has an inside around it."""
    solution, _ = face.solve(face.ray(rates))
    if solution is None:
        return None
    formula = solution.scaling, face.optimizer, face.rule, solution.structure, face.ray(rates)
    cone = reach(*formula, Looks(face.network, face.routed), face.fixed)
    if cone is None or any(not dot(side.over(cone.axes), rates) for side in cone.sides):
        return None
    facing = (side.facing(dot(side.over(cone.axes), rates)) for side in cone.sides)
    return Cone(cone.axes, tuple(facing)), solution


def _on_walls(face: Face, solved: Sequence[Piece]) -> list[Piece]:
    """Pieces of the walls of muP on which a formula is found that is that of no cone: walls are where sizes tie."""
    plain = covering(Face(face.network, face.optimizer, PARAMETERIZATIONS["mup"], face.fixed))
    walls = list(dict.fromkeys(side.wall_of for piece in plain for side in piece.cone.sides))
    pieces = []
    for wall in walls:
        parts = [Cone(face.axes, (wall,))]
        for across in (w for w in walls if w != wall):
            halves = [part.between(across.but(sense)) for part in parts for sense in SIDES]
            parts = [half for half in halves if half.open]
        for part in parts:
            rates = next(part.inside())
            covered = any(piece.cone.contains(rates) for piece in solved)
            solution = None if covered else face.solve(face.ray(rates))[0]
            if solution is not None:
                pieces.append(Piece(part.without_redundant_sides(), solution.scaling, solution.structure))
    return pieces


def _named(pieces: Sequence[Piece], first: str) -> tuple[Piece, ...]:
    """In the order of the directions in which they lie, by the rates where the first axis has rate 1."""

    def place(piece: Piece) -> list[Fraction]:
        shares = [[Fraction(x, max(ray)) for x in ray] for ray in piece.cone.rays]
        one, *others = (sum(x) for x in zip(*shares, strict=True))
        return [x / one for x in others]

    ordered = enumerate(sorted(pieces, key=place))
    return tuple(replace(piece, name=chr(ord(first) + k % 26) + str(k // 26 or "")) for k, piece in ordered)
