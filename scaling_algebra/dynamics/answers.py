"""Knowledge of a size, and the ladder of budgets that is climbed until it is certified."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from scaling_algebra.counting.signals import Rung
from scaling_algebra.errors import Inconclusive
from scaling_algebra.spec.glossary import listed
from scaling_algebra.spec.powers import Form

NEAR, FAR = Fraction(1, 2), Fraction(1)
LADDER = (
    Rung(NEAR, most=12, leaves=8, work=10_000, total=30_000),
    Rung(FAR, most=12, leaves=8, work=10_000, total=30_000),
    Rung(NEAR, most=40, leaves=12, work=25_000, total=75_000),
    Rung(NEAR, most=60, leaves=20, work=100_000, total=150_000),
    Rung(NEAR, work=200_000, total=200_000),
    Rung(FAR, work=25_000, total=50_000),
    Rung(NEAR + FAR, work=25_000, total=50_000),
)
"""Climbed until an answer is certified, the cheap rungs first. The work of every product and of every question is
limited, and counted as if nothing had been asked before, so that an answer depends on the question alone."""
CLOSELY = (*LADDER[:4], LADDER[5])
"""Rungs that a question may climb where an answer depends on it; the others cost most of the time of a search."""
WITNESSES = (
    Rung(Fraction(0), most=12, leaves=6, work=500, total=10_000),
    Rung(Fraction(0), most=8, leaves=8, work=4_000, total=40_000),
)
"""Rungs that a witness may climb: the leading kernels are enough to show a size from below."""
PARTS = (
    Rung(Fraction(1, 64), most=24, work=1_000, total=20_000, doubts=96),
    Rung(Fraction(1, 64), most=60, work=8_000, total=160_000, doubts=96),
)
"""Those of a run in which little happens: all that is as large as the leading kernel is kept, on the first with
polynomials of degree one. The second decides what the first found as large as its bound."""
SIMPLEST = replace(LADDER[0], work=500, total=2_000)
QUICK = (LADDER[0], LADDER[2])
"""Rungs that a lower bound may climb, and every question at points on the way to an answer."""


class UnknownSize(Inconclusive):
    """The size that was asked for is not known."""


@dataclass(frozen=True)
class Answer:
    """Knowledge of the size of one quantity at one step.

    Attributes:
        size: the exponent of n, of an undecided answer a lower bound; None if there is no lower bound or the quantity
            is exactly zero. ``exponent`` does not confuse the two.
        form: the monomial behind it: powers of the axes and counts of the unknowns.
        decided: False if the certificate failed on every rung: then nothing is claimed.
        why: what stands in the way of an answer, where that is known.
        below: the size is a lower bound, no matter what was not counted.
        low, high: what an undecided answer lies between, where that is known.
        assumes: what it rests on beyond counting powers: names of ``ASSUMPTIONS``.
    """

    size: Fraction | None
    form: Form | None
    decided: bool = True
    why: str = ""
    below: bool = field(default=True, compare=False)
    low: Fraction | None = field(default=None, compare=False)
    high: Fraction | None = field(default=None, compare=False)
    assumes: frozenset[str] = field(default=frozenset(), compare=False)

    def without_assumptions(self) -> Answer:
        """The answer, undecided where it rests on more than counting powers."""
        if not self.decided or not self.assumes:
            return self
        return Answer(None, None, decided=False, why=f"it assumes {listed(self.assumes)}")

    @property
    def zero(self) -> bool:
        """Exactly zero."""
        return self.decided and self.size is None

    @property
    def unknown(self) -> bool:
        """Not even a lower bound is known."""
        return not self.decided and self.size is None

    @property
    def exponent(self) -> Fraction | None:
        """The exponent of n on the ray; None means exactly zero. Of an undecided answer, a lower bound.

        Raises:
            UnknownSize: nothing is known.
        """
        if self.unknown:
            raise UnknownSize(f"a size that is needed is undecided{': ' + self.why if self.why else ''}")
        return self.size

    def __str__(self) -> str:
        if not self.decided:
            return "undecided"
        return "0 (exact)" if self.size is None else str(self.size)
