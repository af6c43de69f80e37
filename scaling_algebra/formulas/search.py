"""All monomials of a size, at every ray and every parameter, with a proof that none is missing.

Law: the part of a size that has one combination of unknowns (its grade) is a maximum of monomials, so on rays it is
convex. Where it equals the known monomials at the corners of every cone on which one of them leads, it exceeds them
nowhere. So the engine is asked at corners, exactly, until they show nothing new.
Read next: ``formula.py`` (what is made of it), ``graded.py`` (the engine with unknown parameters).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Rung
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.solver.polyhedra import Vector, corners, direction, dot
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Form, Power

from .graded import Bounds, FormTrajectory, RoutedForms, form_algebra

_RUNGS = (
    Rung(Fraction(1, 2), work=5_000, total=40_000),
    Rung(Fraction(1), work=20_000, total=60_000),
    Rung(Fraction(2), work=50_000, total=200_000),
)
_COARSE = Rung(Fraction(1, 2), most=12, leaves=12, work=5_000, total=60_000)
"""Climbed until nothing is missing; where that takes too much work, few kernels are kept and the rest is bounded."""
_WHOLE = Rung(Fraction(1, 2), work=200_000, total=300_000, whole=True)
_ROUNDS = 20
Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Found:
    """The monomials of a size.

    Attributes:
        forms: each leads somewhere among those with the same unknowns.
        slack: None if nothing is missing. Else the size is at most the largest form times (product of all axes)^slack,
            as far as it has only combinations of unknowns that occur in ``forms``.
    """

    forms: tuple[Form, ...]
    slack: Fraction | None = None


class Search:
    """Sizes of one network, trained one way, on all rays of its axes.

    Args:
        sparse: K, the active experts, is an axis of its own, at most M; else it grows as M.
        fixed: axes that do not grow.
    """

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer,
        structure: Structure,
        sparse: bool = False,
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        self.network, self.optimizer, self.structure, self.sparse = network, optimizer, structure, sparse
        there = {*network.axes.values(), *["K"] * sparse} - {*["K"] * (not sparse), "L"} - fixed
        self.axes = tuple(axis for axis in AXES if axis in there)
        self.spanning = spanning(self.axes)
        self.first = [tuple([1] * len(self.axes)), direction(range(len(self.axes) + 3, 3, -1)), *self.spanning]
        self._runs: dict[tuple[Vector, Rung], FormTrajectory] = {}
        self._sized: frozenset[str] = frozenset()

    def forms(self, quantity: Quantity, t: int) -> Found:
        """The monomials of a quantity after t updates.

        Raises:
            Exhausted: they are too many.
        """
        best: Found | None = None
        for rung in _RUNGS:
            try:
                best = self._forms(quantity, t, rung)
            except Exhausted:
                break
            if best.slack is None:
                return best
        return best or self._forms(quantity, t, _COARSE)

    def run(self, rates: Vector, rung: Rung = _RUNGS[0]) -> FormTrajectory:
        """Training on a ray, with unknown parameters."""
        key = rates, rung
        if key not in self._runs:
            ray = self.ray(rates)
            growing = frozenset((*self.axes, *["K"] * ("M" in self.axes)))
            algebra = form_algebra(self.network, ray, growing, self.sparse)
            algebra.climb(rung)
            kind = RoutedForms if self.sparse else FormTrajectory
            self._runs[key] = kind(
                self.network, algebra, self.structure, self._sized, optimizer=self.optimizer, growing=growing
            )
        return self._runs[key]

    def ray(self, rates: Sequence[int]) -> Ray:
        """The ray along a direction."""
        top = max(rates)
        return Ray({axis: Fraction(x, top) for axis, x in zip(self.axes, rates, strict=True)})

    def vector(self, power: Power) -> tuple[Fraction, ...]:
        return tuple(power[axis] for axis in self.axes)

    def leading(self, power: Power, others: Iterable[Power]) -> list[Vector]:
        """Corners of the cone of rays on which a power is not below any of the others."""
        own = self.vector(power)
        walls = ([x - y for x, y in zip(own, self.vector(other), strict=True)] for other in others if other != power)
        return corners(self.spanning, map(direction, walls))

    # inside --------------------------------------------------------------------------------------------------------

    def _forms(self, quantity: Quantity, t: int, rung: Rung) -> Found:
        grades: dict[Counts, dict[Power, None]] = {}
        asked: dict[Vector, Mapping[Counts, tuple[Form | None, Fraction]]] = {}
        todo = self.first
        for _ in range(_ROUNDS):
            for rates in todo:
                asked[rates] = self._sizes(quantity, t, rates, rung)
                for counts, (form, _) in asked[rates].items():
                    known = grades.setdefault(counts, {})
                    if form is not None:
                        known[form.power] = None
            cones = {g: {p: self.leading(p, powers) for p in powers} for g, powers in grades.items()}
            needed = dict.fromkeys(r for cells in cones.values() for rays in cells.values() for r in rays)
            todo = [r for r in needed if r not in asked]
            if not todo:
                break
        else:
            raise Exhausted
        forms = tuple(Form(p, g) for g, cells in cones.items() for p in cells if self._wide(p, cells))
        return Found(forms, self._slack(grades, asked))

    def _sizes(
        self, quantity: Quantity, t: int, rates: Vector, rung: Rung
    ) -> dict[Counts, tuple[Form | None, Fraction]]:
        run = self.run(rates, rung)
        with run.ledger.question():
            sizes = run.sizes(quantity, t)
        found = {}
        for grade, (low, high) in sizes.items():
            form = None if low is None else run.forms.graded(grade, low)
            found[run.forms.graded(grade, high).unknowns] = form, run.forms.value(high)
        return found

    def _wide(self, power: Power, cells: Mapping[Power, Sequence[Vector]]) -> bool:
        """It alone leads somewhere."""
        rays, own = cells[power], self.vector(power)
        inner = [sum(x) for x in zip(*rays, strict=True)] if rays else []
        return bool(rays) and all(dot(own, inner) > dot(self.vector(p), inner) for p in cells if p != power)

    def _slack(
        self,
        grades: Mapping[Counts, Mapping[Power, None]],
        asked: Mapping[Vector, Mapping[Counts, tuple[Form | None, Fraction]]],
    ) -> Fraction | None:
        """How far the certified upper bounds exceed the known monomials; None if nowhere."""
        worst = Fraction(0)
        for rates, sizes in asked.items():
            ray = self.ray(rates)
            for counts, (_, high) in sizes.items():
                known = max((p.on(ray) for p in grades[counts]), default=None)
                if known is None:
                    return Fraction(0)
                worst = max(worst, (high - known) / sum(ray[axis] for axis in self.axes))
        return worst or None


class UpperBounds(Search):
    """Forms that a size does not exceed on any ray, where the later changes of some signals are taken by their size
    alone: an unknown of its own, ``graded.size_of``.

    Law: the engine then bounds sizes by sums and maxima of linear functions of the rates: nothing is dropped, and the
    bound of a product is one such function (of the bounds in ``Algebra._bound`` an operator norm is never above
    Cauchy-Schwarz). So the bound is convex, and what it is at corners bounds it everywhere.

    Args:
        sized: the signals.
    """

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer,
        structure: Structure,
        sized: frozenset[str],
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(network, optimizer, structure, fixed=fixed)
        self._sized = sized
        self._seen: set[Form] = set()

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Sizes of monomials, and bounds that nothing exceeds, after t updates.

        Raises:
            Exhausted: they are too many.
        """
        upper = self._forms(quantity, t, _WHOLE).forms
        return Bounds(tuple(form for form in upper if form in self._seen), upper)

    def _sizes(
        self, quantity: Quantity, t: int, rates: Vector, rung: Rung
    ) -> dict[Counts, tuple[Form | None, Fraction]]:
        run = self.run(rates, rung)
        found: dict[Counts, tuple[Form | None, Fraction]] = {}
        with run.ledger.question():
            sizes = run.sizes(quantity, t)
        for grade, (low, high) in sizes.items():
            form = run.forms.graded(grade, high)
            found[form.unknowns] = form, run.forms.value(high)
            if low == high:
                self._seen.add(form)
        return found


def spanning(axes: Sequence[str]) -> list[Vector]:
    """Rays that span all rays: on each one axis grows alone, but K, which needs M."""
    return [tuple(int(x == axis or (axis == "K" and x == "M")) for x in axes) for axis in axes]


def winning(forms: tuple[Form, ...], axes: tuple[str, ...]) -> tuple[Form, ...]:
    """The forms that exceed all others somewhere: at some ray and some value of every unknown.

    Law: one query of linear real arithmetic for each form; z3 decides it exactly.
    """
    if len(forms) < 2:
        return forms
    import z3

    solver = z3.SolverFor("QF_LRA", ctx=(context := z3.Context()))
    names = {*axes, *(u for f in forms for u, _ in f.unknowns)}
    real = {name: z3.Real(name, context) for name in sorted(names)}
    for axis in axes:
        solver.add(real[axis] >= 0)
    if "K" in axes:
        solver.add(real["K"] <= real["M"])
    values = [
        z3.Sum(
            [
                z3.RealVal(0, context),
                *(z3.RealVal(str(e), context) * real[a] for a, e in f.power.terms),
                *(n * real[u] for u, n in f.unknowns),
            ]
        )
        for f in forms
    ]
    kept = []
    for k, form in enumerate(forms):
        solver.push()
        solver.add(*(values[k] > other for j, other in enumerate(values) if j != k))
        if solver.check() == z3.sat:
            kept.append(form)
        solver.pop()
    return tuple(kept)
