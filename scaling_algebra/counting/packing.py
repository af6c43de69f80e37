"""Packed exponents: one integer for an exponent of n on a ray, together with the formula that it is the value of.

On the ray N = n, M = n^2, the monomial ``N^(1/2) M^-1 n^-c`` has, for c = 1/4, the exponent 1/2 - 2 - 1/4. Its packed
exponent stores this value and the formula (powers 1/2 of N and -1 of M, count -1 of the unknown c).

Fields from the most significant bits down: the value on the ray; minus the number of factors that are unknowns, so that
of equal exponents the simplest monomial is the largest; counts of the unknowns b, c, d, alpha; twice the power of each
axis. Sums and comparisons of exponents are sums and comparisons of integers, and are exact. Read next: ``signals.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.powers import Form, Power

_UNIT = 2**28 * 3**6 * 5**2 * 7 * 11 * 13
"""Exponents are stored as multiples of 1 / (_UNIT * the rates of the ray relative to the largest). So the unit
scales with the ray, and a multiple of a ray packs to the same integers."""
COARSER = "give powers whose denominators have no prime factor above 13"
FIELD = 24
"""Bits of each field of a packed exponent but the value: whole bytes, for counts far below 2**23."""
_NEGATIVE = 1 << FIELD - 1
"""Offset that makes every field non-negative before the fields are read."""


class Packing:
    """Packs an exponent of n, together with the formula that it is the value of, into one integer, and unpacks it
    again. On the ray N = n, the exponent -1/2 may have the formula N^(-1/2) or N^0 n^-c with c = 1/2. An instance is
    made for one ray and one list of unknown exponents.

    Attributes:
        ray: rate of each axis.
        unknowns: names of the unknown exponents.
        stored_axes: axes whose powers a formula may contain.
    """

    def __init__(self, ray: Ray, unknowns: Sequence[str]) -> None:
        self.ray = ray
        self.unknowns = tuple(unknowns)
        self.stored_axes = ray.axes
        finest = _UNIT * lcm(*((ray[axis] / ray.largest).denominator for axis in ray.axes))
        self._unit = finest / ray.largest
        self._axis = {axis: FIELD * k for k, axis in enumerate(self.stored_axes)}
        self._unknown = {name: FIELD * k for k, name in enumerate(self.unknowns, len(self.stored_axes))}
        self._shift = FIELD * (len(self.stored_axes) + len(self.unknowns) + 1)
        self._bias = sum(_NEGATIVE << FIELD * k for k in range(len(self.stored_axes) + len(self.unknowns)))
        self._values = dict[int, Fraction]()
        self._forms = dict[int, Form]()

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        """Packs an exponent of n and its formula into one integer.

        Args:
            value: the exponent of n on the ray.
            axes: power of each axis in the formula, a multiple of 1/2.
            unknowns: how often each unknown exponent occurs in the formula.

        Raises:
            UsageError: the exponent is not a multiple of the smallest exponent that can be stored.
        """
        scaled = value * self._unit
        if scaled.denominator != 1:
            raise UsageError(f"exponent {value} cannot be represented exactly; {COARSER}")
        packed = scaled.numerator << self._shift
        for axis, power in axes.items():
            if axis in self._axis:
                packed += int(2 * power) << self._axis[axis]
        for name, count in unknowns.items():
            if name in self._unknown:
                packed += count << self._unknown[name]
        return packed - (sum(map(abs, unknowns.values())) << self._shift - FIELD)

    def pack_powers(self, axes: Mapping[str, Fraction | int]) -> int:
        """Packs the exponent that a product of powers of the axes, such as ``{"N": 1, "M": Fraction(-1, 2)}``, has on
        the ray, together with these powers, into one integer."""
        return self.pack(Power.of(axes).on(self.ray), axes, {})

    def exponent(self, packed: int) -> Fraction:
        """Returns the exponent of n on the ray that is stored in ``packed``, an integer made by ``pack``."""
        whole = self.units(packed)  # as a dictionary key; a packed exponent of a deep network takes kilobytes
        if whole not in self._values:
            self._values[whole] = Fraction(whole * self._unit.denominator, self._unit.numerator)
        return self._values[whole]

    def units(self, packed: int) -> int:
        """Returns the exponent of n that is stored in ``packed``, as an integer multiple of the smallest representable
        exponent. Integers are cheaper to compare than fractions."""
        return (packed >> self._shift - 1) + 1 >> 1

    def form(self, packed: int) -> Form:
        """Returns the formula that is stored in ``packed``, an integer made by ``pack``: a power of each axis, and how
        often each unknown exponent occurs."""
        if packed not in self._forms:
            self._forms[packed] = self._unpack_form(packed)
        return self._forms[packed]

    def _unpack_form(self, packed: int) -> Form:
        width, length = FIELD // 8, len(self.stored_axes) + len(self.unknowns)
        digits = (packed + self._bias & (1 << FIELD * length) - 1).to_bytes(width * length, "little")
        counts = [int.from_bytes(digits[k : k + width], "little") - _NEGATIVE for k in range(0, width * length, width)]
        axes = {axis: Fraction(c, 2) for axis, c in zip(self.stored_axes, counts, strict=False)}
        named = zip(self.unknowns, counts[len(self.stored_axes) :], strict=True)
        return Form(Power.of(axes), tuple((u, c) for u, c in named if c))
