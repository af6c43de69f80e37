"""Brackets: a lower and an upper bound on the size of a quantity, and the assumptions they depend on.

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
    """Raised when the size of an undecided quantity is requested."""


@dataclass(frozen=True)
class Bracket:
    """Bounds on the size of one quantity after a given number of updates: ``low <= size <= high``. The size is decided
    if both are equal.

    Attributes:
        low: certified lower bound on the exponent of n; None if there is none.
        high: certified upper bound on the exponent of n; None if there is none.
        form: the largest monomial that was found: powers of the axes and multiples of the unknowns; None if none was
            found.
        assumes: assumptions beyond power counting on which the bounds depend (names in ``ASSUMPTIONS``), and reasons
            why something is unknown.
        why: the reason why the size is undecided; "" if it is decided or no reason is known.
        lead: exponent of ``form``. It proves nothing by itself, because other monomials may cancel this one.
    """

    low: Exponent | None = None
    high: Exponent | None = None
    form: Form | None = None
    assumes: frozenset[str] = field(default=frozenset(), compare=False)
    why: str = ""
    lead: Fraction | None = None

    def without_assumptions(self) -> Bracket:
        """Returns the bracket itself if it depends on no assumptions beyond power counting; otherwise an undecided
        one."""
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
        """True if the size is undecided and not even a monomial of the quantity was found."""
        return not self.decided and self.lead is None

    @property
    def size(self) -> Fraction | None:
        """The exponent of n if the size is decided and not exactly zero; otherwise None. ``exponent`` separates these
        two cases."""
        return self.lead if self.decided else None

    @property
    def exponent(self) -> Fraction | None:
        """The exponent of n on the ray; None for exactly zero.

        Raises:
            UnknownSize: the size is undecided.
        """
        if not self.decided:
            raise UnknownSize(f"a size that the answer depends on is undecided{': ' + self.why if self.why else ''}")
        return self.size

    def __str__(self) -> str:
        if not self.decided:
            return "undecided"
        return "0 (exact)" if self.size is None else str(self.size)


def bracket_monomial(
    lead: Fraction, form: Form, certain: bool, below: bool, why: str = "", assumes: frozenset[str] = frozenset()
) -> Bracket:
    """Returns the bracket of a quantity, given its leading monomial and whether this monomial is an upper and a lower
    bound.

    Args:
        lead: exponent of the monomial.
        form: the monomial.
        certain: True if nothing larger than the monomial was dropped (certifies the upper bound).
        below: True if nothing can cancel the monomial (certifies the lower bound).
        why: the reason why the size is undecided.
        assumes: names of the assumptions used.
    """
    return Bracket(lead if below else None, lead if certain else None, form, assumes, why, lead)
