"""Signals at every parameter point at once, split into parts by how often each unknown exponent occurs (the *grade*).

For unknowns b and c, ``n^-b W x + n^-(b + c) V x`` has a part of grade {b: 1} and one of grade {b: 1, c: 1}. All
monomials of one grade change alike when the parameters change. So pruning among them is as certain as at one point, and
the result is the complete maximum of monomials.
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
"""A packed exponent and its grade are one integer, ``grade * _INNER + size`` with |size| far below _INNER / 2."""
_GAP = Fraction(1, 2)


@dataclass(frozen=True)
class Bounds:
    """Bounds on the size of a quantity that are valid for all values of the unknown exponents. Each bound is a
    formula: a power of the axes, with a count of each unknown.

    Law: max of ``lower`` <= size <= max of ``upper``. If ``upper`` is empty, the quantity is exactly zero.

    Attributes:
        lower: formulas, each of which is a lower bound.
        upper: formulas whose maximum is an upper bound.
    """

    lower: tuple[Form, ...]
    upper: tuple[Form, ...]


GradeSizes = dict[int, tuple[int | None, int]]
"""For each grade the size of its monomials (None if it has none) and an upper bound on it, as packed exponents."""


class GradedSignal(Signal):
    """A signal as a sum of parts, one for each *grade*, that is, for each way in which the unknown exponents occur:
    ``n^-b W x`` has the grade {b: 1}. ``terms`` and ``tail_bound`` of the base class are unused.

    Attributes:
        by_grade: maps each grade, stored as one integer, to the part of this grade, from which the factors n^-b, ...
            that the grade counts are removed.
    """

    __slots__ = ("by_grade",)

    def __init__(self, indices: str, by_grade: dict[int, Signal], leaf_indices: str | None = None) -> None:
        super().__init__(indices, {}, leaf_indices=leaf_indices)
        self.by_grade = by_grade

    @property
    def is_zero(self) -> bool:
        return all(s.is_zero for s in self.by_grade.values())

    def copy(self) -> Signal:
        copy = GradedSignal(self.indices, self.by_grade, self.leaf_indices)
        copy.name = self.name
        return copy


class FormAlgebra(Algebra):
    """Adds and multiplies signals whose size contains unknown exponents. A signal is stored as one part for each
    *grade* (how often each unknown occurs), and every operation acts on each grade separately.

    Args:
        ray: rate of each axis.
        indices: axis of each index.
        names: names of the unknowns; the grade counts the factors n^-x of each unknown x.
        tracked: indices that monomials keep although their axis does not grow, as for ``KernelStore``.
        max_grades: maximum number of grades of a product; a product with more raises ``Exhausted``. None for no limit.
        centred_axes: axes along which ``subtract_mean`` may be called, as for ``KernelStore``.
    """

    def __init__(
        self,
        ray: Ray,
        indices: Mapping[str, str],
        names: Sequence[str],
        tracked: str = "",
        max_grades: int | None = None,
        centred_axes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(ray, indices, (), _GAP, tracked, centred_axes)
        self.unknown_names, self.max_grades = tuple(names), max_grades

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        inner = super().pack(value, axes, {})
        return inner + _INNER * sum(-n << _FIELD * self.unknown_names.index(name) for name, n in unknowns.items())

    def tensor(self, name: str, indices: str, exponent: int, along: str | None = None) -> Signal:
        grade, inner = split_grade(exponent)
        s = super().tensor(name, indices, inner, along)
        return GradedSignal(s.indices, {grade: s}, s.leaf_indices)

    def constant(self, indices: str, exponent: int = 0) -> Signal:
        grade, inner = split_grade(exponent)
        s = super().constant(indices, inner)
        return GradedSignal(s.indices, {grade: s})

    def bound_by_unknown(self, indices: str, unknown: str) -> Signal:
        """Returns a signal of which nothing is known but an upper bound: its size is at most n^-x, where x is the given
        unknown exponent."""
        grade, inner = split_grade(self.pack(Fraction(0), {}, {unknown: -1}))
        live = self.drop_fixed(indices)
        return GradedSignal(live, {grade: Signal(live, {}, tail_bound=inner)})

    def zeros(self, indices: str) -> Signal:
        return GradedSignal(self.drop_fixed(indices), {})

    def make_fixed_numbers(self, name: str, indices: str) -> Signal:
        s = super().make_fixed_numbers(name, indices)
        return s if isinstance(s, GradedSignal) else GradedSignal(s.indices, {0: s})

    def subtract_mean(self, s: Signal, index: str, ignoring: str = "") -> Signal:
        if not isinstance(s, GradedSignal):  # inside a product, one grade at a time
            return Algebra.subtract_mean(self, s, index, ignoring)
        varying = {g: x for g, x in s.by_grade.items() if index not in x.constant_along}
        parts = {g: Algebra.subtract_mean(self, x, index, ignoring) for g, x in varying.items()}
        return GradedSignal(s.indices, parts)

    def forget_centred(self, s: Signal) -> Signal:
        """Returns a signal with less information about terms that sum to zero over an index: of the signal without
        these terms (``Signal.without_centred``), only a bound on its size is kept.

        The base class drops this information altogether, but here all grades (ways in which unknown exponents occur)
        must stay known.
        """
        parts = dict[int, Signal]()
        for g, x in _get_grades(s).items():
            bound = Signal(x.indices, {}, Algebra.upper_bound(self, x))
            parts[g] = x.replace(without_centred=dict.fromkeys(x.without_centred, bound))
        return GradedSignal(s.indices, parts)

    def restrict_index(self, s: Signal, index: str, to: str) -> Signal:
        parts = {g: Algebra.restrict_index(self, x, index, to) for g, x in _get_grades(s).items()}
        return GradedSignal(s.indices.replace(index, to), parts) if index in s.indices else s

    def scale_by(self, s: Signal, *scalars: Scalar) -> Signal:
        """Multiplies a signal by deterministic factors.

        Raises:
            Exhausted: of some factor only an upper bound on the size is known, so that the product has no exact
                formula.
        """
        if not all(x.certain for x in scalars):
            raise Exhausted
        grade, inner = split_grade(sum(x.size for x in scalars))
        parts = {g + grade: Algebra.scale_by(self, x, Scalar("", inner)) for g, x in _get_grades(s).items()}
        return GradedSignal(s.indices, parts)

    def add(self, signals: Iterable[Signal]) -> Signal:
        given = self._align_indices(signals)
        grades: dict[int, list[Signal]] = {}
        for s in given:
            for g, x in _get_grades(s).items():
                grades.setdefault(g, []).append(x)
        return GradedSignal(given[0].indices, {g: Algebra.add(self, xs) for g, xs in grades.items()})

    def rename_indices(self, s: Signal, old: str, new: str) -> Signal:
        if old == new:
            return s
        whole = super().rename_indices(s, old, new)
        parts = {g: Algebra.rename_indices(self, x, old, new) for g, x in _get_grades(s).items()}
        return GradedSignal(whole.indices, parts, whole.leaf_indices)

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        out = self.drop_fixed(out)
        grades: dict[int, list[Signal]] = {}
        for ga, x in _get_grades(a).items():
            for gb, y in _get_grades(b).items():
                grades.setdefault(ga + gb, []).append(Algebra.contract(self, x, y, out, tag))
                if self.budget.max_total_nodes is not None and self.nodes_visited > self.budget.max_total_nodes:
                    raise Exhausted
        if self.max_grades is not None and len(grades) > self.max_grades:
            raise Exhausted
        return GradedSignal(out, {g: Algebra.add(self, xs) for g, xs in grades.items()})

    def bound_grades(self, s: Signal) -> GradeSizes:
        """Returns the size of each part of a signal (None if unknown) and an upper bound on it, by grade of the part:
        by how often each unknown exponent occurs in it. Sizes are exponents of n packed into integers, without the
        unknowns. Parts that are exactly zero have no entry.
        """
        sizes = {g: (self.rms(x), self.upper_bound(x)) for g, x in _get_grades(s).items()}
        return {g: (low, high) for g, (low, high) in sizes.items() if high is not None}

    def bound_size(self, s: Signal) -> Bounds:
        """Returns formulas that bound the size of a signal from below and from above, whatever the values of the
        unknown exponents are."""
        sizes = self.bound_grades(s).items()
        return Bounds(
            tuple(self.to_form(g, low) for g, (low, _) in sizes if low is not None),
            tuple(self.to_form(g, high) for g, (_, high) in sizes),
        )

    def to_form(self, grade: int, packed: int) -> Form:
        """Returns the formula of a size, as a power of each axis and how often each unknown exponent occurs.

        Args:
            grade: how often each unknown occurs in the size, stored as one integer.
            packed: the other factors of the size, as an exponent of n packed into an integer.
        """
        counts = []
        for name in self.unknown_names:
            low = grade & (1 << _FIELD) - 1
            low -= low >> _FIELD - 1 << _FIELD
            grade = grade - low >> _FIELD
            counts.append((name, -low))
        return Form(self.form(packed).power, tuple((name, n) for name, n in counts if n))

    def is_deterministic(self, s: Signal) -> bool:
        return all(Algebra.is_deterministic(self, x) for x in _get_grades(s).values())


def split_grade(packed: int) -> tuple[int, int]:
    """Splits a size that is stored as ``grade * _INNER + rest`` into (grade, rest). The grade says how often each
    unknown exponent occurs, and the rest is an exponent of n without unknowns, packed into an integer."""
    inner = (packed + _INNER // 2) % _INNER - _INNER // 2
    return (packed - inner) // _INNER, inner


def _get_grades(s: Signal) -> dict[int, Signal]:
    assert isinstance(s, GradedSignal)
    return s.by_grade
