"""Signals at every parameter point at once, split by how often each unknown occurs as a factor (the grade).

All monomials of one grade change alike when the parameters change. So pruning among them is as certain as at one point,
and the result is the complete maximum of monomials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.powers import Form

from .algebra import Algebra
from .kernels import Exhausted
from .signals import Scalar, Signal

_FIELD = 12
"""Bits of one count in a grade; counts are far below 2**11."""
_INNER = 1 << 400
"""Packed sizes are ``grade * _INNER + size``, with |size| far below _INNER / 2."""
_GAP = Fraction(1, 2)


@dataclass(frozen=True)
class Bounds:
    """Bounds on the size of a quantity at every parameter point.

    Law: max of ``lower`` <= size <= max of ``upper``. Forms in both are exact. If ``upper`` is empty, the quantity is
    exactly zero.

    Attributes:
        lower: monomials that are lower bounds.
        upper: monomials whose maximum is an upper bound.
    """

    lower: tuple[Form, ...]
    upper: tuple[Form, ...]


Sizes = dict[int, tuple[int | None, int]]
"""For each grade the packed size of its kernels, None if there are none, and an upper bound."""


class Graded(Signal):
    """A signal split by grade; ``terms`` and ``tail`` of the base class are unused."""

    __slots__ = ("parts",)

    def __init__(self, indices: str, parts: dict[int, Signal], leaf: str | None = None) -> None:
        super().__init__(indices, {}, leaf=leaf)
        self.parts = parts

    @property
    def zero(self) -> bool:
        return all(s.zero for s in self.parts.values())

    def again(self) -> Signal:
        copy = Graded(self.indices, self.parts, self.leaf)
        copy.name = self.name
        return copy


class FormAlgebra(Algebra):
    """The algebra of graded signals: every operation acts on each grade separately.

    Args:
        ray: rates of the axes.
        indices: axis of each index.
        names: the unknowns; a factor n^-x of an unknown x counts once.
        tracked: see ``KernelStore``.
        most: maximum number of grades of a product; None for no limit.
        centred: see ``KernelStore``.
    """

    def __init__(
        self,
        ray: Ray,
        indices: Mapping[str, str],
        names: Sequence[str],
        tracked: str = "",
        most: int | None = None,
        centred: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(ray, indices, (), _GAP, tracked, centred)
        self.names, self.most = tuple(names), most

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        inner = super().pack(value, axes, {})
        return inner + _INNER * sum(-n << _FIELD * self.names.index(name) for name, n in unknowns.items())

    def tensor(self, name: str, indices: str, exponent: int, along: str | None = None) -> Signal:
        grade, inner = split_grade(exponent)
        s = super().tensor(name, indices, inner, along)
        return Graded(s.indices, {grade: s}, s.leaf)

    def constant(self, indices: str, exponent: int = 0) -> Signal:
        grade, inner = split_grade(exponent)
        s = super().constant(indices, inner)
        return Graded(s.indices, {grade: s})

    def bound_by_unknown(self, indices: str, unknown: str) -> Signal:
        """Returns a signal of which only the size n^-unknown is known, as an upper bound."""
        grade, inner = split_grade(self.pack(Fraction(0), {}, {unknown: -1}))
        live = self.live(indices)
        return Graded(live, {grade: Signal(live, {}, tail=inner)})

    def nothing(self, indices: str) -> Signal:
        return Graded(self.live(indices), {})

    def given(self, name: str, indices: str) -> Signal:
        s = super().given(name, indices)
        return s if isinstance(s, Graded) else Graded(s.indices, {0: s})

    def centred(self, s: Signal, index: str, ignoring: str = "") -> Signal:
        if not isinstance(s, Graded):  # inside a product, one grade at a time
            return Algebra.centred(self, s, index, ignoring)
        varying = {g: x for g, x in s.parts.items() if index not in x.flat}
        parts = {g: Algebra.centred(self, x, index, ignoring) for g, x in varying.items()}
        return Graded(s.indices, parts)

    def uncentred(self, s: Signal) -> Signal:
        bounds = {
            g: {c: Signal(x.indices, {}, Algebra.bound(self, x)) for c in x.centred} for g, x in _get_parts(s).items()
        }
        return Graded(s.indices, {g: x.but(centred=bounds[g]) for g, x in _get_parts(s).items()})

    def restricted(self, s: Signal, index: str, to: str) -> Signal:
        parts = {g: Algebra.restricted(self, x, index, to) for g, x in _get_parts(s).items()}
        return Graded(s.indices.replace(index, to), parts) if index in s.indices else s

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        """Returns a signal times deterministic factors.

        Raises:
            Exhausted: only a bound is known of a factor, which forms cannot express.
        """
        if not all(x.certain for x in scalars):
            raise Exhausted
        grade, inner = split_grade(sum(x.size for x in scalars))
        parts = {g + grade: Algebra.scaled(self, x, Scalar("", inner)) for g, x in _get_parts(s).items()}
        return Graded(s.indices, parts)

    def add(self, signals: Iterable[Signal]) -> Signal:
        given = self._align(signals)
        grades: dict[int, list[Signal]] = {}
        for s in given:
            for g, x in _get_parts(s).items():
                grades.setdefault(g, []).append(x)
        return Graded(given[0].indices, {g: Algebra.add(self, xs) for g, xs in grades.items()})

    def relabelled(self, s: Signal, old: str, new: str) -> Signal:
        if old == new:
            return s
        whole = super().relabelled(s, old, new)
        parts = {g: Algebra.relabelled(self, x, old, new) for g, x in _get_parts(s).items()}
        return Graded(whole.indices, parts, whole.leaf)

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        out = self.live(out)
        grades: dict[int, list[Signal]] = {}
        for ga, x in _get_parts(a).items():
            for gb, y in _get_parts(b).items():
                grades.setdefault(ga + gb, []).append(Algebra.contract(self, x, y, out, tag))
                if self.rung.total is not None and self.spent > self.rung.total:
                    raise Exhausted
        if self.most is not None and len(grades) > self.most:
            raise Exhausted
        return Graded(out, {g: Algebra.add(self, xs) for g, xs in grades.items()})

    def sizes(self, s: Signal) -> Sizes:
        """Returns the root-mean-square of each grade that is not exactly zero."""
        sizes = {g: (self.rms(x), self.bound(x)) for g, x in _get_parts(s).items()}
        return {g: (low, high) for g, (low, high) in sizes.items() if high is not None}

    def bounds(self, s: Signal) -> Bounds:
        """Returns bounds on the root-mean-square of a signal."""
        sizes = self.sizes(s).items()
        return Bounds(
            tuple(self.make_form(g, low) for g, (low, _) in sizes if low is not None),
            tuple(self.make_form(g, high) for g, (_, high) in sizes),
        )

    def make_form(self, grade: int, packed: int) -> Form:
        """Returns a packed size of a grade as a form."""
        counts = []
        for name in self.names:
            low = grade & (1 << _FIELD) - 1
            low -= low >> _FIELD - 1 << _FIELD
            grade = grade - low >> _FIELD
            counts.append((name, -low))
        return Form(self.form(packed).power, tuple((name, n) for name, n in counts if n))

    def deterministic(self, s: Signal) -> bool:
        return all(Algebra.deterministic(self, x) for x in _get_parts(s).values())


def split_grade(packed: int) -> tuple[int, int]:
    """Splits a packed number into grade and packed size."""
    inner = (packed + _INNER // 2) % _INNER - _INNER // 2
    return (packed - inner) // _INNER, inner


def _get_parts(s: Signal) -> dict[int, Signal]:
    assert isinstance(s, Graded)
    return s.parts
