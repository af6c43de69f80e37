"""Stores Wick monomials by id, with their sizes, and caches products of them."""

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
from .kernels import DOUBT, INDICATOR, Contraction, Exhausted, Kernel, multiply, parent_axis
from .packing import FIELD, Packing
from .signals import Budget

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

NUMBER: Leaf = (f"{INDICATOR}a number)", ())
"""A leaf that marks a monomial as multiplied by numbers of which only the size is known. No signal has a space in
its name, so the name cannot clash."""
_WHOLE = Fraction(100)
"""The gap of a budget that drops nothing, in powers of the axis that grows fastest: larger than any difference of
sizes."""


@dataclass(slots=True)
class _SearchResults:
    """Results of the searches for the product of two monomials whose indices are connected in one way.

    Each search omits monomials that are more than its *slack* below the Cauchy-Schwarz bound.

    Attributes:
        results: maps a slack to (pairs (monomial, exponent added by coherent sums), upper bound on omitted monomials,
            number of search nodes).
        exceeded_limits: maps a slack to the largest work limit that a search exceeded.
        complete_slack: the smallest slack so far at which nothing was omitted; None if there is none.
    """

    results: dict[int, tuple[tuple[tuple[int, int], ...], int | None, int]]
    exceeded_limits: dict[int, int]
    complete_slack: int | None = None


class Meter:
    """Counts the work for products of signals on one ray: search nodes, plus a constant for every product.

    A result from the cache counts as if it were computed, so that the count does not depend on earlier queries.

    Attributes:
        work_done: the work so far.
        limit: more work than this raises ``Exhausted``; None for no limit.
    """

    def __init__(self) -> None:
        self.work_done = 0
        self.limit: int | None = None

    def add(self, work: int) -> None:
        """Adds nodes to the work done.

        Raises:
            Exhausted: the limit is exceeded.
        """
        self.work_done += work
        if self.is_exceeded:
            raise Exhausted

    @property
    def is_exceeded(self) -> bool:
        """Whether the work done exceeds the limit. If so, results are unknown."""
        return self.limit is not None and self.work_done > self.limit

    @contextmanager
    def limit_work(self, work: int | None) -> Iterator[None]:
        """Limits the further work inside a context to ``work`` nodes, in addition to the limits of outer contexts. None
        adds no limit."""
        outer = self.limit
        mine = None if work is None else self.work_done + work
        self.limit = min((x for x in (outer, mine) if x is not None), default=None)
        try:
            yield
        finally:
            self.limit = outer

    @contextmanager
    def pause_counting(self) -> Iterator[None]:
        """Lets the work inside a context go uncounted and unlimited. It is used for results that many queries need."""
        outer = self.work_done, self.limit
        self.limit = None
        try:
            yield
        finally:
            self.work_done, self.limit = outer


class ResultCache(Generic[Key, Result]):
    """A cache of results by key. Results for which the work limit was exceeded are not stored.

    ``cache(key, compute)`` returns the stored result, or calls ``compute()``.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._results: dict[Key, Result] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._results

    def __call__(self, key: Key, compute: Callable[[], Result]) -> Result:
        if key in self._results:
            return self._results[key]
        result = compute()
        if not self._meter.is_exceeded:
            self._results[key] = result
        return result


class KernelStore(Packing):
    """Wick monomials on one ray, and the budget under which products are computed.

    Indices of axes that do not grow have weight 0 everywhere, so monomials omit them unless they are tracked. Every
    product of two signals is a pure function of them and of the budget: earlier computations do not change it.

    Args:
        ray: rate of each axis.
        indices: axis of each index, such as ``{"a": "N", "i": "M"}``.
        unknowns: names of the unknowns whose counts packed exponents store.
        gap: the gap of the budget (``Budget.gap``); ``with_budget`` returns the same algebra under another budget.
        tracked: indices to keep although their axis does not grow, because functions act along them.
        centred_axes: axes along which ``Algebra.subtract_mean`` may be called.

    Attributes:
        kernels: Wick monomials by id.
        weights: size of each monomial with coefficient 1, as a packed exponent, by id.
        in_doubt: whether only an upper bound is known of a monomial, by id.
        has_unknown_numbers: whether a monomial is multiplied by numbers of which only the size is known, by id.
        axes: axis of each index.
        indices: axis of each index that monomials keep.
        half_weights: half the packed exponent of the dimension of each axis.
        search_half_weights: the same in small integers, for the matching search.
        doubt_offset: is subtracted from the coefficient of a monomial that is only an upper bound. It is too small to
            change an exponent, but of equally large monomials an exact one comes first.
        slack_step: packed exponent by which the search for a product extends its range if it found too little.
        nodes_visited: number of search nodes of all products so far.
        notes: assumptions beyond counting powers so far, and reasons why something is unknown.
    """

    def __init__(
        self,
        ray: Ray,
        indices: Mapping[str, str],
        unknowns: Sequence[str],
        gap: Fraction,
        tracked: str = "",
        centred_axes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(ray, unknowns)
        self.centred_axes = centred_axes
        self.axes = dict(indices)
        self.indices = {x: axis for x, axis in indices.items() if self.rate(axis) or x in tracked}
        self.half_weights = dict.fromkeys(indices.values(), 0)
        self.half_weights |= {axis: self.pack(ray[axis] / 2, {axis: Fraction(1, 2)}, {}) for axis in self.stored_axes}
        self.doubt_offset = 1 << FIELD * (len(self.stored_axes) + len(self.unknowns)) + 8
        self._unit_gap = ray.largest
        self.slack_step = self.pack(self._unit_gap / 2, {}, {})
        self._ids: dict[Kernel, int] = {}
        self.kernels: list[Kernel] = []
        self.weights: list[int] = []
        self.in_doubt: list[bool] = []
        self._along: dict[tuple[int, int], int] = {}
        self.has_unknown_numbers: list[bool] = []
        self._certain: dict[int, int] = {}
        """Maps each monomial that is only an upper bound to the same monomial without this mark."""
        self._order: list[tuple[int, tuple[Leaf, ...], tuple[int, ...], tuple[str, ...]]] = []
        halves = {axis: packed + (1 << self._shift - 1) >> self._shift for axis, packed in self.half_weights.items()}
        self._grain = gcd(*halves.values()) or 1
        """The search counts in multiples of this common divisor of all half-weights, which are small numbers."""
        self.search_half_weights = {axis: half // self._grain for axis, half in halves.items()}
        self._products: dict[tuple[int, int, int], _SearchResults] = {}
        self._contractions: dict[Contraction, int] = {}
        self._specs: dict[tuple[str, str, str], tuple[int, Contraction, int]] = {}
        self._live: dict[str, str] = {}
        self._bits: dict[str, int] = {}
        self._leaves: dict[Leaf, Leaf] = {}
        self.dimensions: dict[str, Fraction] = {}
        self.nodes_visited = 0
        self.meter = Meter()
        self.notes: set[str] = set()
        self.set_budget(Budget(gap))

    def rate(self, axis: str) -> Fraction:
        """Returns the rate at which an axis grows on the ray: it is n^rate."""
        return self.ray[axis]

    def with_budget(self, budget: Budget) -> Self:
        """Returns a copy under another budget. It shares monomials and their products with this one."""
        shared = copy(self)
        shared.set_budget(budget)
        return shared

    def set_budget(self, budget: Budget) -> None:
        """Sets the budget of later products."""
        self.budget = budget
        self._gap = self.pack((_WHOLE if budget.keeps_all else budget.gap) * self._unit_gap, {}, {})

    @contextmanager
    def collect_notes(self) -> Iterator[set[str]]:
        """Collects the notes made inside a context, apart from earlier ones. ``nodes_visited`` restarts at 0 inside it.

        Yields:
            The set of notes, which grows while the context is open.
        """
        outer = self.notes, self.nodes_visited
        self.notes, self.nodes_visited = set(), 0
        try:
            yield self.notes
        finally:
            self.notes, self.nodes_visited = outer

    def to_search_units(self, packed: int) -> int:
        """Converts a packed exponent to the small integers in which the matching search counts, rounded down."""
        return (packed >> self._shift) // self._grain

    def drop_fixed(self, indices: str) -> str:
        """Removes the indices that monomials do not store: those of axes that neither grow nor are tracked."""
        if indices not in self._live:
            self._live[indices] = "".join(x for x in indices if x in self.indices)
        return self._live[indices]

    def tensor_bit(self, name: str) -> int:
        """Returns the number with the one bit set that stands for an initial tensor in ``Signal.depends_on``."""
        return 1 << self._bits.setdefault(name, len(self._bits))

    def intern(self, kernel: Kernel) -> int:
        """Returns the id of a monomial. A monomial that is not stored yet gets a new id."""
        if kernel not in self._ids:
            doubted = DOUBT in kernel.leaves
            if doubted:
                certain = self.intern(kernel._replace(leaves=tuple(x for x in kernel.leaves if x != DOUBT)))
                self._certain[len(self.kernels)] = certain
            # share equal leaves between monomials, to save memory: one of a deep network has hundreds
            kernel = kernel._replace(leaves=tuple(self._leaves.setdefault(x, x) for x in kernel.leaves))
            self._ids[kernel] = len(self.kernels)
            self.kernels.append(kernel)
            self.in_doubt.append(doubted)
            self.has_unknown_numbers.append(NUMBER in kernel.leaves)
            self._order.append((len(kernel.leaves), kernel.leaves, kernel.open_classes, kernel.class_axes))
            weight = sum(self.half_weights[axis] for axis in kernel.summed_axes())
            self.weights.append(weight - sum(self.half_weights[axis] for axis in kernel.repeated_axes()))
        return self._ids[kernel]

    def replace_axis(self, k: int, at: int, to: str) -> int:
        """Replaces the axis of one open index of a monomial.

        Args:
            k: id of the monomial.
            at: position of the open index.
            to: an index of the new axis.

        Returns:
            The id of the new monomial.
        """
        kernel = self.kernels[k]
        axes = list(kernel.class_axes)
        axes[kernel.open_classes[at]] = self.indices[to]
        return self.intern(Kernel(*canonicalise(axes, kernel.open_classes, kernel.leaves)))

    def mark_doubt(self, k: int) -> int:
        """Returns the id of the copy of a monomial that is marked as an upper bound only."""
        kernel = self.kernels[k]
        if self.in_doubt[k]:
            return k
        return self.intern(kernel._replace(leaves=tuple(sorted((*kernel.leaves, DOUBT)))))

    def make_unknown_numbers(self, indices: str) -> int:
        """Returns the id of a monomial that stands for unknown numbers, one for each entry along the given indices.
        Only an upper bound on their size is known."""
        classes = tuple(range(len(indices)))
        leaves = sorted((DOUBT, NUMBER, (f"{INDICATOR}numbers)", classes)))
        return self.intern(Kernel(tuple(self.indices[x] for x in indices), classes, tuple(leaves)))

    def tensors_along(self, k: int, at: int) -> int:
        """Returns the initial tensors of a monomial that vary along its open index at position ``at``, as a bit
        mask."""
        if (k, at) not in self._along:
            self._along[k, at] = reduce(or_, (self.tensor_bit(name) for name, _ in self.kernels[k].leaves_along(at)), 0)
        return self._along[k, at]

    def kernel(self, k: int) -> Kernel:
        """Returns the monomial with the id ``k``."""
        return self.kernels[k]

    def weight(self, k: int) -> int:
        """Returns the size of a monomial with coefficient 1, as a packed exponent: half the dimension of every summed
        class, minus half the dimension of every repeated open class."""
        return self.weights[k]

    def contraction(self, a: str, b: str, out: str) -> Contraction:
        """Returns how the indices of two signals are connected in a product; the arguments are those of
        ``plan_contraction``."""
        return self.plan_contraction(a, b, out)[1]

    def plan_contraction(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """Returns how the indices of two signals are connected in a product. The result is cached.

        Args:
            a: indices of the left signal.
            b: indices of the right signal.
            out: indices of the result; all others are summed.

        Returns:
            Id of the contraction, the contraction, and the packed exponent of the product of all summed dimensions.

        Raises:
            ValueError: ``out`` has an index that no factor has, or indices of both active and all experts.
        """
        if (a, b, out) not in self._specs:
            self._specs[a, b, out] = self._compute_contraction(a, b, out)
        return self._specs[a, b, out]

    def _compute_contraction(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """Computes the result of ``plan_contraction``."""
        number = {x: k for k, x in enumerate(dict.fromkeys(a + b))}
        if not set(out) <= set(number):
            raise ValueError(f"the product has the indices {out!r}, but its factors only {a!r} and {b!r}")
        axes = {self.indices[x] for x in out}
        if any(axis != parent_axis(axis) and parent_axis(axis) in axes for axis in axes):
            raise ValueError(
                f"the product keeps indices of both active and all experts ({out!r}), which is not covered"
            )
        left, right, kept = (tuple(number[x] for x in indices) for indices in (a, b, out))
        centred = tuple(number[x] for x in out if parent_axis(self.indices[x]) in self.centred_axes)
        contraction = Contraction(left, right, kept, centred)
        cost = sum(2 * self.half_weights[self.indices[x]] for x in number if x not in out)
        return self._contractions.setdefault(contraction, len(self._contractions)), contraction, cost

    def multiply_kernels(
        self, ka: int, kb: int, contraction_id: int, contraction: Contraction, slack: int, limit: int | None
    ) -> tuple[tuple[tuple[int, int], ...], int | None, int]:
        """Multiplies two monomials. The result depends on the arguments only and is cached.

        Args:
            ka: id of the left monomial.
            kb: id of the right monomial.
            contraction_id: id of the contraction.
            contraction: how their open indices are connected.
            slack: packed exponent; monomials this far below the Cauchy-Schwarz bound are omitted.
            limit: maximum number of search nodes; None for no limit.

        Returns:
            Pairs (monomial, gain) with the packed exponent that coherent sums add to the coefficient; an upper bound on
                omitted monomials relative to the Cauchy-Schwarz bound, None if none was omitted; and the number of
                search nodes.

        Raises:
            Exhausted: the search exceeds the limit.
        """
        searched = self._products.setdefault((ka, kb, contraction_id), _SearchResults({}, {}))
        scaled = self.to_search_units(slack)
        if searched.complete_slack is not None and searched.complete_slack <= scaled:
            scaled = searched.complete_slack
        if scaled not in searched.results:
            if limit is not None and limit <= searched.exceeded_limits.get(scaled, -1):
                raise Exhausted
            try:
                factors = self.kernels[ka], self.kernels[kb]
                product = multiply(*factors, contraction, self.search_half_weights, scaled, limit)
            except Exhausted:
                assert limit is not None
                searched.exceeded_limits[scaled] = limit
                raise
            best: dict[int, int] = {}
            for kernel, coherent in product.terms:
                k = self.intern(kernel)
                gain = sum(2 * self.half_weights[axis] for axis in coherent)
                if k not in best or best[k] < gain:
                    best[k] = gain
            cut = None if product.omitted_bound is None else product.omitted_bound * self._grain << self._shift
            if cut is None and (searched.complete_slack is None or scaled < searched.complete_slack):
                searched.complete_slack = scaled
            searched.results[scaled] = tuple(best.items()), cut, product.nodes
        result = searched.results[scaled]
        if limit is not None and result[2] > limit:
            raise Exhausted
        return result
