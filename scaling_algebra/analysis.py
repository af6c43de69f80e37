"""Certified exponents of named quantities: evaluate, and widen the search until every answer is proved.

Read next: ``quantities.py`` (what can be asked), ``solver.py`` and ``api.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from .axes import Ray
from .optimizers import Optimizer
from .programs import MOE_BLOCK, Program
from .quantities import Quantity, quantities
from .signals import Algebra, Form, Signal
from .training import Point, Trajectory, algebra_for

GAPS = (Fraction(1, 2), Fraction(1), Fraction(3, 2))
"""How far below the leading kernel a kernel is kept, tried in this order until the certificate holds."""


@dataclass(frozen=True)
class Answer:
    """Exponent of one quantity at one step.

    Attributes:
        exponent: of n on the ray; None means exactly zero (or undecided).
        form: the monomial behind it: powers of the axes and counts of the unknowns.
        decided: False if the certificate failed at every gap: then nothing is claimed.
    """

    exponent: Fraction | None
    form: Form | None
    decided: bool = True

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
        program: Program = MOE_BLOCK,
        algebras: dict[Fraction, Algebra] | None = None,
    ) -> None:
        self.ray, self.point, self.optimizer, self.program = ray, point, optimizer, program
        self.table: Mapping[str, Quantity] = quantities(program)
        self._algebras = algebras if algebras is not None else {}
        self._runs: dict[Fraction, Trajectory] = {}
        self._answers: dict[tuple[str, int], Answer] = {}

    def __call__(self, name: str, t: int) -> Answer:
        """The exponent of a quantity after t updates."""
        if (name, t) not in self._answers:
            self._answers[name, t] = self._ask(name, t)
        return self._answers[name, t]

    def all(self, steps: int, names: Iterable[str] | None = None) -> dict[str, tuple[Answer, ...]]:
        """Every quantity at t = 0 .. steps."""
        return {name: tuple(self(name, t) for t in range(steps + 1)) for name in (names or self.table)}

    def _ask(self, name: str, t: int) -> Answer:
        for gap in GAPS:
            run = self._run(gap)
            read = self.table[name].read(run, t)
            algebra = run.algebra
            if isinstance(read, Signal):
                decided = algebra.certified(read) and (run.sound or not self.optimizer.normalises)
                packed = algebra.rms(read)
            else:
                decided, packed = run.sound, read
            if decided:
                return Answer(None, None) if packed is None else Answer(algebra.value(packed), algebra.form(packed))
        return Answer(None, None, decided=False)

    def _run(self, gap: Fraction) -> Trajectory:
        if gap not in self._runs:
            if gap not in self._algebras:
                self._algebras[gap] = algebra_for(self.program, self.ray, gap)
            self._runs[gap] = Trajectory(self.program, self._algebras[gap], self.point, self.optimizer)
        return self._runs[gap]
