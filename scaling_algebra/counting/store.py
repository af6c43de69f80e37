"""Kernels by id, with their weights, and a cache of their products."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd
from operator import or_
from typing import Generic, Self, TypeVar

from scaling_algebra.spec.axes import Ray

from .canonical import Leaf, canonicalise
from .kernels import DOUBT, INDICATOR, Contraction, Exhausted, Kernel, multiply, population
from .packing import FIELD, Packing
from .signals import Budget

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

NUMBER: Leaf = (f"{INDICATOR}a number)", ())
"""Marks a kernel that is multiplied by numbers of which only the size is known; no signal has a space in its name."""
_WHOLE = Fraction(100)
"""The gap of a budget that drops nothing, in powers of the axis that grows fastest: larger than any difference of
sizes."""


@dataclass(slots=True)
class _Searches:
    """The searches for the product of two kernels so far.

    Attributes:
        results: by slack: kernels with their gains, a bound on the rest, number of nodes.
        beyond: by slack: a limit that the search exceeded.
        complete: the smallest slack tried at which nothing was dropped.
    """

    results: dict[int, tuple[tuple[tuple[int, int], ...], int | None, int]]
    beyond: dict[int, int]
    complete: int | None = None


class Meter:
    """Counts the work for products of signals on one ray: nodes of matching searches, and a constant for every product.

    A result from the cache counts as if it were computed, so that the count does not depend on earlier questions.

    Attributes:
        done: the work so far.
        limit: more work than this raises ``Exhausted``; None for no limit.
    """

    def __init__(self) -> None:
        self.done = 0
        self.limit: int | None = None

    def add(self, work: int) -> None:
        """Adds work.

        Raises:
            Exhausted: the limit is exceeded.
        """
        self.done += work
        if self.spent:
            raise Exhausted

    @property
    def spent(self) -> bool:
        """True if the limit is exceeded; results are then unknown."""
        return self.limit is not None and self.done > self.limit

    @contextmanager
    def within(self, work: int | None) -> Iterator[None]:
        """Limits the work inside a context."""
        outer = self.limit
        mine = None if work is None else self.done + work
        self.limit = min((x for x in (outer, mine) if x is not None), default=None)
        try:
            yield
        finally:
            self.limit = outer

    @contextmanager
    def pause_counting(self) -> Iterator[None]:
        """Leaves the work inside a context uncounted, since many questions use its results."""
        outer = self.done, self.limit
        self.limit = None
        try:
            yield
        finally:
            self.done, self.limit = outer


class ResultCache(Generic[Key, Result]):
    """A cache of results by key. Results for which the work limit was exceeded are not stored."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._results: dict[Key, Result] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._results

    def __call__(self, key: Key, compute: Callable[[], Result]) -> Result:
        if key in self._results:
            return self._results[key]
        result = compute()
        if not self._meter.spent:
            self._results[key] = result
        return result


class KernelStore(Packing):
    """Kernels on one ray, and the budget under which products are computed.

    Indices of axes that do not grow have weight 0 everywhere, so kernels omit them unless they are tracked. Every
    product of two signals is a pure function of them and of the budget: earlier computations do not change it.

    Args:
        ray: rates of the axes.
        indices: axis of each index, such as ``{"a": "N", "i": "M"}``.
        unknowns: unknowns whose counts the packed exponents hold.
        gap: see ``Budget``; ``at`` returns the same algebra under another budget.
        tracked: indices to keep even if their axis does not grow, because functions act along them.
        centred: axes along which means are subtracted (``Algebra.centred``).
    """

    def __init__(
        self,
        ray: Ray,
        indices: Mapping[str, str],
        unknowns: Sequence[str],
        gap: Fraction,
        tracked: str = "",
        centred: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(ray, unknowns)
        self.subtracts = centred
        self.axes = dict(indices)
        self.indices = {x: axis for x, axis in indices.items() if self.rate(axis) or x in tracked}
        self.half = dict.fromkeys(indices.values(), 0)
        self.half |= {axis: self.pack(ray[axis] / 2, {axis: Fraction(1, 2)}, {}) for axis in self.counted}
        self.later = 1 << FIELD * (len(self.counted) + len(self.unknowns)) + 8
        """Taken off the exponent of what may cancel: of equal exponents the one that cannot comes first."""
        self._unit_gap = ray.largest
        self.step = self.pack(self._unit_gap / 2, {}, {})
        self._ids: dict[Kernel, int] = {}
        self.kernels: list[Kernel] = []
        self.weights: list[int] = []
        self.in_doubt: list[bool] = []
        self._along: dict[tuple[int, int], int] = {}
        self.opaque: list[bool] = []
        """Of every kernel, whether it is multiplied by numbers that are not known."""
        self._clear: dict[int, int] = {}
        """The kernel without a doubt of every one that may cancel."""
        self._order: list[tuple[int, tuple[Leaf, ...], tuple[int, ...], tuple[str, ...]]] = []
        halves = {axis: packed + (1 << self._shift - 1) >> self._shift for axis, packed in self.half.items()}
        self._grain = gcd(*halves.values()) or 1
        """What the halves are multiples of: the search counts in these, which are small numbers."""
        self.halves = {axis: half // self._grain for axis, half in halves.items()}
        self._products: dict[tuple[int, int, int], _Searches] = {}
        self._contractions: dict[Contraction, int] = {}
        self._specs: dict[tuple[str, str, str], tuple[int, Contraction, int]] = {}
        self._live: dict[str, str] = {}
        self._bits: dict[str, int] = {}
        self._leaves: dict[Leaf, Leaf] = {}
        self.dimensions: dict[str, Fraction] = {}
        self.spent = 0
        """Nodes of the products made so far."""
        self.meter = Meter()
        self.notes: set[str] = set()
        """The assumptions so far, beyond counting powers, and the reasons why something is not known."""
        self.climb(Budget(gap))

    def rate(self, axis: str) -> Fraction:
        """Returns the rate of an axis."""
        return self.ray[axis]

    def at(self, rung: Budget) -> Self:
        """Returns a copy under another budget that shares kernels and their products."""
        shared = copy(self)
        shared.climb(rung)
        return shared

    def climb(self, rung: Budget) -> None:
        """Sets the budget."""
        self.rung = rung
        self._gap = self.pack((_WHOLE if rung.whole else rung.gap) * self._unit_gap, {}, {})

    @contextmanager
    def accounting(self) -> Iterator[set[str]]:
        """Collects the notes made inside a context, separately from earlier ones; the same for the count of nodes."""
        outer = self.notes, self.spent
        self.notes, self.spent = set(), 0
        try:
            yield self.notes
        finally:
            self.notes, self.spent = outer

    def grains(self, packed: int) -> int:
        """Converts a packed size to units of the search, rounded down."""
        return (packed >> self._shift) // self._grain

    def live(self, indices: str) -> str:
        """Removes the indices of axes that neither grow nor are tracked; kernels do not have these."""
        if indices not in self._live:
            self._live[indices] = "".join(x for x in indices if x in self.indices)
        return self._live[indices]

    def tensor_bit(self, name: str) -> int:
        """Returns the bit that stands for an initial tensor in ``Signal.depends``."""
        return 1 << self._bits.setdefault(name, len(self._bits))

    def intern(self, kernel: Kernel) -> int:
        """Returns the id of a kernel, a new one if necessary."""
        if kernel not in self._ids:
            doubted = DOUBT in kernel.leaves
            if doubted:
                clear = self.intern(Kernel(kernel.types, kernel.opens, tuple(x for x in kernel.leaves if x != DOUBT)))
                self._clear[len(self.kernels)] = clear
            # the same leaf stands in many kernels, and one of a deep network has hundreds
            kernel = Kernel(kernel.types, kernel.opens, tuple(self._leaves.setdefault(x, x) for x in kernel.leaves))
            self._ids[kernel] = len(self.kernels)
            self.kernels.append(kernel)
            self.in_doubt.append(doubted)
            self.opaque.append(NUMBER in kernel.leaves)
            self._order.append((len(kernel.leaves), kernel.leaves, kernel.opens, kernel.types))
            weight = sum(self.half[axis] for axis in kernel.summed_axes())
            self.weights.append(weight - sum(self.half[axis] for axis in kernel.deltas()))
        return self._ids[kernel]

    def retype(self, k: int, at: int, to: str) -> int:
        """Returns the kernel in which the axis of one open index is replaced by that of the index ``to``."""
        kernel = self.kernels[k]
        types = list(kernel.types)
        types[kernel.opens[at]] = self.indices[to]
        return self.intern(Kernel(*canonicalise(types, kernel.opens, kernel.leaves)))

    def with_doubt(self, k: int) -> int:
        """Marks a kernel as an upper bound, and returns the id of the marked one."""
        kernel = self.kernels[k]
        if self.in_doubt[k]:
            return k
        return self.intern(Kernel(kernel.types, kernel.opens, tuple(sorted((*kernel.leaves, DOUBT)))))

    def number(self, indices: str) -> int:
        """Returns the kernel of unknown numbers, one for each entry along some indices."""
        opens = tuple(range(len(indices)))
        leaves = sorted((DOUBT, NUMBER, (f"{INDICATOR}numbers)", opens)))
        return self.intern(Kernel(tuple(self.indices[x] for x in indices), opens, tuple(leaves)))

    def tensors_along(self, k: int, at: int) -> int:
        """Returns the initial tensors that a kernel has along an open index, as bits."""
        if (k, at) not in self._along:
            self._along[k, at] = reduce(or_, (self.tensor_bit(name) for name, _ in self.kernels[k].along(at)), 0)
        return self._along[k, at]

    def kernel(self, k: int) -> Kernel:
        """Returns a kernel by id."""
        return self.kernels[k]

    def weight(self, k: int) -> int:
        """Returns the packed size of a kernel with coefficient 1: half of every summed class, less half of every
        repeated one."""
        return self.weights[k]

    def contraction(self, a: str, b: str, out: str) -> Contraction:
        """Returns the contraction of two signals with indices ``a`` and ``b``."""
        return self.meeting(a, b, out)[1]

    def meeting(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """Returns the contraction of two signals with indices ``a`` and ``b`` to ``out``.

        Returns:
            Its id, the contraction, and the packed dimension of the summed indices.

        Raises:
            ValueError: ``out`` has an index that no factor has, or indices of active and of all experts.
        """
        if (a, b, out) not in self._specs:
            self._specs[a, b, out] = self._compute_meeting(a, b, out)
        return self._specs[a, b, out]

    def _compute_meeting(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """Computes the result of ``meeting``."""
        number = {x: k for k, x in enumerate(dict.fromkeys(a + b))}
        if not set(out) <= set(number):
            raise ValueError(f"the product has indices {out!r}, its factors only {a!r} and {b!r}")
        axes = {self.indices[x] for x in out}
        if any(axis != population(axis) and population(axis) in axes for axis in axes):
            raise ValueError(
                f"the product keeps indices {out!r} of active and of all experts: how often they meet is open"
            )
        left, right, kept = (tuple(number[x] for x in indices) for indices in (a, b, out))
        centred = tuple(number[x] for x in out if population(self.indices[x]) in self.subtracts)
        contraction = Contraction(left, right, kept, centred)
        cost = sum(2 * self.half[self.indices[x]] for x in number if x not in out)
        return self._contractions.setdefault(contraction, len(self._contractions)), contraction, cost

    def multiply_kernels(
        self, ka: int, kb: int, spec: int, contraction: Contraction, slack: int, limit: int | None
    ) -> tuple[tuple[tuple[int, int], ...], int | None, int]:
        """Multiplies two kernels. The result is a pure function of the arguments and is cached.

        Args:
            ka: id of the left kernel.
            kb: id of the right kernel.
            spec: id of the contraction.
            contraction: the contraction.
            slack: kernels this far below the Cauchy-Schwarz bound are omitted, as a packed size.
            limit: maximum number of nodes of the search; None for no limit.

        Returns:
            Pairs (kernel, gain), a bound on omitted kernels relative to the Cauchy-Schwarz bound (None if there are
            none), and the number of nodes.

        Raises:
            Exhausted: the search exceeds the limit.
        """
        searched = self._products.setdefault((ka, kb, spec), _Searches({}, {}))
        scaled = self.grains(slack)
        if searched.complete is not None and searched.complete <= scaled:
            scaled = searched.complete
        if scaled not in searched.results:
            if limit is not None and limit <= searched.beyond.get(scaled, -1):
                raise Exhausted
            try:
                product = multiply(self.kernels[ka], self.kernels[kb], contraction, self.halves, scaled, limit)
            except Exhausted:
                assert limit is not None
                searched.beyond[scaled] = limit
                raise
            best: dict[int, int] = {}
            for kernel, coherent in product.terms:
                k = self.intern(kernel)
                gain = sum(2 * self.half[axis] for axis in coherent)
                if k not in best or best[k] < gain:
                    best[k] = gain
            cut = None if product.cut is None else product.cut * self._grain << self._shift
            if cut is None and (searched.complete is None or scaled < searched.complete):
                searched.complete = scaled
            searched.results[scaled] = tuple(best.items()), cut, product.nodes
        result = searched.results[scaled]
        if limit is not None and result[2] > limit:
            raise Exhausted
        return result
