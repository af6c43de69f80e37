"""Certified exponents of named quantities: evaluate, and widen the search until every answer is proved.

Read next: ``quantities.py`` (what can be asked), ``newton.py`` and ``derivation.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Algebra, Signal
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Form
from scaling_algebra.spec.scaling import Point

from .quantities import Quantity, quantities, quantity
from .sparse_routing import algebra_for, trajectory_for
from .trajectory import BeyondPowerCounting, Trajectory

GAPS = (Fraction(1, 2), Fraction(1), Fraction(3, 2))
"""How far below the leading kernel a kernel is kept, tried in this order until the certificate holds."""
WORK = dict(zip(GAPS, (700_000, 60_000, 60_000), strict=True))
"""Nodes of matching searches spent at each gap before answers stay undecided: some twenty seconds in the worst case.
Every configuration of muP and MSSP needs less; standard parameterization in regime I, which blows up, does not."""


@dataclass(frozen=True)
class Answer:
    """Exponent of one quantity at one step.

    Attributes:
        exponent: of n on the ray; None means exactly zero (or undecided). Of an undecided answer, a lower bound.
        form: the monomial behind it: powers of the axes and counts of the unknowns.
        decided: False if the certificate failed at every gap: then nothing is claimed.
        why: what stands in the way of an answer, where that is known.
    """

    exponent: Fraction | None
    form: Form | None
    decided: bool = True
    why: str = ""

    def __str__(self) -> str:
        if not self.decided:
            return "undecided"
        return "0 (exact)" if self.exponent is None else str(self.exponent)


class Analysis:
    """Quantities of one training run, evaluated on demand, each certified exact."""

    def __init__(
        self,
        ray: Ray,
        point: Point,
        optimizer: Optimizer,
        network: Network = MOE_BLOCK,
        algebras: dict[Fraction, Algebra] | None = None,
    ) -> None:
        self.ray, self.point, self.optimizer, self.network = ray, point, optimizer, network
        self.table: Mapping[str, Quantity] = quantities(network)
        self._algebras = algebras if algebras is not None else {}
        self._runs: dict[Fraction, Trajectory] = {}
        self._answers: dict[tuple[str, int], Answer] = {}
        self._least = GAPS[0]

    def __call__(self, name: str, t: int) -> Answer:
        """The exponent of a quantity after t updates."""
        if (name, t) not in self._answers:
            for gap in GAPS:
                answer = self._read(name, t, gap)
                if answer.decided or answer.why:
                    break
            self._answers[name, t] = answer if answer.decided else Answer(None, None, decided=False, why=answer.why)
        return self._answers[name, t]

    def lower(self, name: str, t: int) -> Answer:
        """A lower bound at the price of the first gap, for searching: the leading kernel taken as it is."""
        return self._answers.get((name, t)) or self._read(name, t, self._least)

    def limited(self, work: int, gap: Fraction = GAPS[0]) -> Analysis:
        """The same with less work for lower bounds: what it does not suffice for comes out as no bound.

        At gap 0 only the leading kernels are kept, which is cheap, and a lower bound all the same.
        """
        self._least = gap
        self._run(gap).algebra.work = work
        return self

    def maybe(self, name: str, t: int) -> Fraction | None:
        """Exponent of a quantity that may not exist; None if it does not, or if it is exactly zero."""
        return self(name, t).exponent if name in self.table else None

    def all(self, steps: int, names: Iterable[str] | None = None) -> dict[str, tuple[Answer, ...]]:
        """Every quantity at t = 0 .. steps."""
        return {name: tuple(self(name, t) for t in range(steps + 1)) for name in (names or self.table)}

    def _read(self, name: str, t: int, gap: Fraction) -> Answer:
        run = self._run(gap)
        try:
            read = quantity(self.table, name).read(run, t)
        except Exhausted:
            return Answer(None, None, decided=False)
        except BeyondPowerCounting as reason:
            return Answer(None, None, decided=False, why=str(reason))
        algebra = run.algebra
        if isinstance(read, Signal):
            decided = algebra.certified(read) and (run.sound or not self.optimizer.normalises) and run.normed
            packed = algebra.rms(read)
        else:
            decided, packed = run.sound and run.normed, read
        if packed is None:
            return Answer(None, None, decided)
        return Answer(algebra.value(packed), algebra.form(packed), decided)

    def run(self, name: str, t: int) -> Trajectory:
        """The trajectory whose pruning was mild enough to certify an answer.

        Raises:
            LookupError: the answer is undecided.
        """
        for gap in GAPS:
            if self._read(name, t, gap).decided:
                return self._run(gap)
        raise LookupError(f"{name} at t={t} is undecided")

    def _run(self, gap: Fraction) -> Trajectory:
        if gap not in self._runs:
            if gap not in self._algebras:
                self._algebras[gap] = algebra_for(self.network, self.ray, gap)
            self._algebras[gap].work = WORK.get(gap, 0)
            self._runs[gap] = trajectory_for(self.network, self._algebras[gap], self.point, self.optimizer)
        return self._runs[gap]
