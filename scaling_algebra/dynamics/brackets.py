"""Brackets: a lower and an upper bound on the size of a quantity, and what they rest on.

Sizes are exponents of n on a ray: ``Bracket(low=-1/2, high=0)`` says that n^(-1/2) <= size <= n^0, up to constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from scaling_algebra.errors import Inconclusive
from scaling_algebra.spec.glossary import join_assumptions
from scaling_algebra.spec.powers import Form

NOTHING: Final = float("-inf")
"""Exponent of a quantity that is exactly zero."""
Exponent = Fraction | float
"""An exponent of n, or ``NOTHING``."""


class UnknownSize(Inconclusive):
    """Raised when a size is requested that is undecided."""


@dataclass(frozen=True)
class Bracket:
    """Bounds on the size of one quantity after one number of updates: ``low <= size <= high``; decided if both are
    equal.

    Attributes:
        low: certified lower bound on the exponent of n; None if there is none.
        high: certified upper bound on the exponent of n; None if there is none.
        form: the largest monomial that was found: powers of the axes and multiples of the unknowns.
        assumes: assumptions beyond power counting on which the bracket rests: names in ``ASSUMPTIONS``.
        why: the reason why the size is undecided, if one is known.
        lead: exponent of ``form``. It shows nothing by itself, because other monomials may cancel this one.
    """

    low: Exponent | None = None
    high: Exponent | None = None
    form: Form | None = None
    assumes: frozenset[str] = field(default=frozenset(), compare=False)
    why: str = ""
    lead: Fraction | None = None

    def without_assumptions(self) -> Bracket:
        """Returns the bracket, or an undecided one if it rests on assumptions beyond power counting."""
        if not self.decided or not self.assumes:
            return self
        return Bracket(why=f"it assumes {join_assumptions(self.assumes)}")

    @property
    def decided(self) -> bool:
        """True if the lower and the upper bound are equal."""
        return self.low is not None and (self.low is self.high or self.low == self.high)  # mostly the same object

    @property
    def zero(self) -> bool:
        """True if the quantity is exactly zero."""
        return self.high == NOTHING

    @property
    def unknown(self) -> bool:
        """True if the size is undecided and no monomial was found either."""
        return not self.decided and self.lead is None

    @property
    def size(self) -> Fraction | None:
        """The exponent of n if it is decided, else None; also None for exactly zero, which ``exponent`` tells apart."""
        return self.lead if self.decided else None

    @property
    def exponent(self) -> Fraction | None:
        """The exponent of n on the ray; None for exactly zero.

        Raises:
            UnknownSize: the size is undecided.
        """
        if not self.decided:
            raise UnknownSize(f"a required size is undecided{': ' + self.why if self.why else ''}")
        return self.size

    def __str__(self) -> str:
        if not self.decided:
            return "undecided"
        return "0 (exact)" if self.size is None else str(self.size)


def bracket_monomial(
    lead: Fraction, form: Form, certain: bool, below: bool, why: str = "", assumes: frozenset[str] = frozenset()
) -> Bracket:
    """Returns the bracket of a quantity from its leading monomial.

    Args:
        lead: exponent of the monomial; the size of the quantity if the quantity is certified.
        form: the monomial.
        certain: True if nothing larger than the monomial was dropped (certifies the upper bound).
        below: True if nothing can cancel the monomial (certifies the lower bound).
        why: the reason why the size is undecided.
        assumes: names of the assumptions used.
    """
    return Bracket(lead if below else None, lead if certain else None, form, assumes, why, lead)
