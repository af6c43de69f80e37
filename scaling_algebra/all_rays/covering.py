"""Covers all rays of a network by cones, each with one formula. The theorems are about these cones.

Method: the solver finds a formula on one ray, and the cone of rays on which this formula is expected to be valid is
removed. The solver is applied again to a ray in what remains, until nothing remains or no further formula is
found. A covering only states what to prove: that the cones are right, and that no formula exists where none was
found, is left to proofs.
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
from scaling_algebra.spec.desiderata import Structure, last_step
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, Parameterization
from scaling_algebra.spec.scaling import Scaling


@dataclass(frozen=True)
class Piece:
    """A cone of rays with the formula (powers of the axes for every setting) that is expected to be valid on it.

    Attributes:
        cone: the cone; a part without a formula does not contain its boundary.
        scaling: the formula; None if none was found.
        structure: interventions of the parameterization.
        name: A, B, ... for cones with an interior, a, b, ... for pieces of walls.
    """

    cone: Cone
    scaling: Scaling | None = None
    structure: Structure = field(default_factory=Structure)
    name: str = ""


@dataclass(frozen=True)
class Face:
    """All rays of a network on which some axes are fixed, for one parameterization and optimizer.

    Attributes:
        network: the network.
        optimizer: the optimizer.
        rule: the parameterization.
        fixed: axes that do not grow.
        routed: whether the rays are those with K < M; else those with K = M.
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
        """Which tensors start at zero by the definition of the parameterization, before any intervention."""
        return self.rule.base_structure(self.network)

    def ray(self, rates: Sequence[int | Fraction]) -> Ray:
        """Returns the ray with these rates of the axes that may grow."""
        return ray_along(self.axes, rates, self.fixed)

    @property
    def steps(self) -> tuple[int, int]:
        """Two numbers of updates: up to the first, signals must be O(1); by the second, they must have become
        Theta(1).
        """
        last = last_step(self.network, self.base)
        return last + 1, last

    def solve(self, ray: Ray) -> tuple[Solution | None, str]:
        """Returns the certified solution of the demands on a ray and "", or None and the reason why there is none."""
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
        """Finds a ray in the cone spanned by some rays where a formula violates a demand (``cone_holds``).

        Args:
            scaling: the formula.
            structure: interventions of the parameterization.
            rays: rates of the axes on each spanning ray.
            ahead: number of further updates for which O(1) is examined, too.
            looks: cache of analyses, which several calls may share.

        Returns:
            The reason why the formula fails; None if it meets every demand on the whole cone.
        """
        looks = looks or Looks(self.network, self.routed)
        return cone_holds(scaling, self.optimizer, self.rule, [*map(self.ray, rays)], structure, ahead, looks)


@lru_cache(maxsize=32)
def cover_rays(face: Face) -> tuple[Piece, ...]:
    """Divides the rays of a face into cones, each with the formula that the solver finds on it.

    After these cones, the result contains the parts with an interior on which no formula is found. For a
    parameterization with interventions (tied or zero tensors), it ends with those parts of cone boundaries (walls) on
    which another formula is valid.
    """
    pieces, empty = fan(Cone(face.axes), partial(_solve_around, face))
    solved = [Piece(cone, x.scaling, x.structure) for cone, x in pieces]
    parts = [x.without_redundant_sides() for x in empty]
    left = [Piece(Cone(x.axes, tuple(side.strict for side in x.sides))) for x in parts]
    return _name_pieces([*solved, *left], "A") + (
        _name_pieces(_find_wall_pieces(face, solved), "a") if face.rule.structural else ()
    )


def _solve_around(face: Face, rates: Vector) -> tuple[Cone, Solution] | None:
    """Solves the demands on one ray, and returns the cone on which the formula found is expected, with the solution.

    Returns:
        None if there is no solution, or if the ray lies on the boundary of that cone.
    """
    solution, _ = face.solve(face.ray(rates))
    if solution is None:
        return None
    formula = solution.scaling, face.optimizer, face.rule, solution.structure, face.ray(rates)
    cone = reach(*formula, Looks(face.network, face.routed), face.fixed)
    if cone is None or any(not dot(side.over(cone.axes), rates) for side in cone.sides):
        return None
    facing = (side.facing(dot(side.over(cone.axes), rates)) for side in cone.sides)
    return Cone(cone.axes, tuple(facing)), solution


def _find_wall_pieces(face: Face, solved: Sequence[Piece]) -> list[Piece]:
    """Finds formulas that are valid only on boundaries (walls) between the cones of muP.

    On a wall two sizes are equal, so that a formula can be valid there and on neither side.

    Args:
        face: the rays, parameterization and optimizer.
        solved: cones with their formulas; pieces of walls inside them are omitted.

    Returns:
        The pieces of walls on which the solver finds a formula, with this formula.
    """
    plain = cover_rays(Face(face.network, face.optimizer, PARAMETERIZATIONS["mup"], face.fixed))
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


def _name_pieces(pieces: Sequence[Piece], first: str) -> tuple[Piece, ...]:
    """Names pieces in alphabetical order, beginning with the name ``first``: A, B, C, ...

    They are sorted by a ray inside each, scaled so that the first axis has rate 1.
    """

    def place(piece: Piece) -> list[Fraction]:
        shares = [[Fraction(x, max(ray)) for x in ray] for ray in piece.cone.rays]
        one, *others = (sum(x) for x in zip(*shares, strict=True))
        return [x / one for x in others]

    ordered = enumerate(sorted(pieces, key=place))
    return tuple(replace(piece, name=chr(ord(first) + k % 26) + str(k // 26 or "")) for k, piece in ordered)
