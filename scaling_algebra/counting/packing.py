"""Packed exponents: one integer holds an exponent of n and the linear form that it is the value of.

From the most significant bits down: the value on the ray; minus the number of factors that are unknowns, so that of
equal exponents the simplest monomial is the largest; counts of the unknowns b, c, d, alpha; twice the power of each
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
"""The unit of exponents is one over this, times the rates of the ray relative to the largest. So a multiple of a ray
packs
to the same integers.
"""
COARSER = "give powers whose denominators have no prime factor above 13"
FIELD = 24
"""Bits of each component of a packed exponent, whole bytes; components are small counts, far below 2**23."""
_NEGATIVE = 1 << FIELD - 1
"""Added to each component, so that none is negative and they can be read off one by one."""


class Packing:
    """Packs and unpacks exponents on one ray, for one list of unknowns.

    Attributes:
        ray: rates of the axes.
        unknowns: the unknowns.
        counted: axes whose powers are stored.
    """

    def __init__(self, ray: Ray, unknowns: Sequence[str]) -> None:
        self.ray = ray
        self.unknowns = tuple(unknowns)
        self.counted = ray.axes
        finest = _UNIT * lcm(*((ray[axis] / ray.largest).denominator for axis in ray.axes))
        self._unit = finest / ray.largest
        self._axis = {axis: FIELD * k for k, axis in enumerate(self.counted)}
        self._unknown = {name: FIELD * k for k, name in enumerate(self.unknowns, len(self.counted))}
        self._shift = FIELD * (len(self.counted) + len(self.unknowns) + 1)
        self._bias = sum(_NEGATIVE << FIELD * k for k in range(len(self.counted) + len(self.unknowns)))
        self._values = dict[int, Fraction]()
        self._forms = dict[int, Form]()

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        """Packs an exponent.

        Args:
            value: the exponent of n on the ray.
            axes: power of each axis, a multiple of 1/2.
            unknowns: count of each unknown.

        Raises:
            UsageError: the exponent is no multiple of the unit.
        """
        scaled = value * self._unit
        if scaled.denominator != 1:
            raise UsageError(f"exponent {value} is finer than what is counted; {COARSER}")
        packed = scaled.numerator << self._shift
        for axis, power in axes.items():
            if axis in self._axis:
                packed += int(2 * power) << self._axis[axis]
        for name, count in unknowns.items():
            if name in self._unknown:
                packed += count << self._unknown[name]
        return packed - (sum(map(abs, unknowns.values())) << self._shift - FIELD)

    def scale(self, axes: Mapping[str, Fraction | int]) -> int:
        """Packs the exponent of a product of powers of the axes."""
        return self.pack(Power.of(axes).on(self.ray), axes, {})

    def value(self, packed: int) -> Fraction:
        """Returns the exponent of n."""
        whole = self.whole(packed)  # of a deep network a packed exponent is kilobytes, this is not
        if whole not in self._values:
            self._values[whole] = Fraction(whole * self._unit.denominator, self._unit.numerator)
        return self._values[whole]

    def whole(self, packed: int) -> int:
        """Returns the exponent of n in units of this packing."""
        return (packed >> self._shift - 1) + 1 >> 1

    def form(self, packed: int) -> Form:
        """Returns the linear form of a packed exponent."""
        if packed not in self._forms:
            self._forms[packed] = self._form(packed)
        return self._forms[packed]

    def _form(self, packed: int) -> Form:
        width, length = FIELD // 8, len(self.counted) + len(self.unknowns)
        digits = (packed + self._bias & (1 << FIELD * length) - 1).to_bytes(width * length, "little")
        counts = [int.from_bytes(digits[k : k + width], "little") - _NEGATIVE for k in range(0, width * length, width)]
        axes = {axis: Fraction(c, 2) for axis, c in zip(self.counted, counts, strict=False)}
        named = zip(self.unknowns, counts[len(self.counted) :], strict=True)
        return Form(Power.of(axes), tuple((u, c) for u, c in named if c))
