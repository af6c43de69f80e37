"""Knowledge of a size: what it lies between, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from scaling_algebra.errors import Inconclusive
from scaling_algebra.spec.glossary import join_assumptions
from scaling_algebra.spec.powers import Form

NOTHING: Final = float("-inf")
"""The exponent of what is exactly zero."""
Exponent = Fraction | float
"""A power of n, or ``NOTHING``."""


class UnknownSize(Inconclusive):
    """The size that was asked for is not known."""


@dataclass(frozen=True)
class Bracket:
    """Knowledge of the size of one quantity at one step: ``low <= size <= high``, decided where both meet.

    Attributes:
        low, high: exponents of n that are shown; None where nothing is.
        form: the largest monomial that was found: powers of the axes and counts of the unknowns.
        assumes: what the bracket rests on beyond counting powers: names of ``ASSUMPTIONS``.
        why: what stands in the way of an answer, where that is known.
        lead: the exponent of the form. Alone it shows nothing: other monomials may cancel this one.
    """

    low: Exponent | None = None
    high: Exponent | None = None
    form: Form | None = None
    assumes: frozenset[str] = field(default=frozenset(), compare=False)
    why: str = ""
    lead: Fraction | None = None

    def without_assumptions(self) -> Bracket:
        """The bracket, open where it rests on more than counting powers."""
        if not self.decided or not self.assumes:
            return self
        return Bracket(why=f"it assumes {join_assumptions(self.assumes)}")

    @property
    def decided(self) -> bool:
        """Both ends meet."""
        return self.low is not None and (self.low is self.high or self.low == self.high)  # the same, mostly

    @property
    def zero(self) -> bool:
        """Exactly zero."""
        return self.high == NOTHING

    @property
    def unknown(self) -> bool:
        """Not even a monomial was found."""
        return not self.decided and self.lead is None

    @property
    def size(self) -> Fraction | None:
        """The exponent of n where it is decided; None also for exactly zero. ``exponent`` does not confuse the two."""
        return self.lead if self.decided else None

    @property
    def exponent(self) -> Fraction | None:
        """The exponent of n on the ray; None means exactly zero.

        Raises:
            UnknownSize: it is not decided.
        """
        if not self.decided:
            raise UnknownSize(f"a size that is needed is undecided{': ' + self.why if self.why else ''}")
        return self.size

    def __str__(self) -> str:
        if not self.decided:
            return "undecided"
        return "0 (exact)" if self.size is None else str(self.size)


def shown(
    lead: Fraction, form: Form, certain: bool, below: bool, why: str = "", assumes: frozenset[str] = frozenset()
) -> Bracket:
    """The bracket of a leading monomial: a lower bound if nothing cancels it, the size if it is certified."""
    return Bracket(lead if below else None, lead if certain else None, form, assumes, why, lead)
