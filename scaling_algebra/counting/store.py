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
    """Results of the searches for the monomials of one product of two monomials, whose indices are identified and
    summed in a given way. There may be several searches, since each omits monomials that are smaller than the
    Cauchy-Schwarz bound on the product by more than its *slack*.

    Attributes:
        results: maps the slack of a search to (pairs (monomial, exponent added by coherent sums), upper bound on
            omitted monomials, number of search nodes).
        exceeded_limits: maps a slack to the largest work limit at which a search failed.
        complete_slack: the smallest slack so far with which a search omitted nothing; None if every search omitted
            something.
    """

    results: dict[int, tuple[tuple[tuple[int, int], ...], int | None, int]]
    exceeded_limits: dict[int, int]
    complete_slack: int | None = None


class Meter:
    """Counts the work for products of signals on one ray: states that the searches for monomials of a product visit,
    plus a constant for every product.

    A result from the cache counts as if it were computed, so that the count does not depend on earlier queries.

    Attributes:
        work_done: the work so far.
        limit: more work than this raises ``Exhausted``; None for no limit.
    """

    def __init__(self) -> None:
        self.work_done = 0
        self.limit: int | None = None

    def add(self, work: int) -> None:
        """Adds the nodes that a search visited to the work done.

        Raises:
            Exhausted: the limit is exceeded.
        """
        self.work_done += work
        if self.is_exceeded:
            raise Exhausted

    @property
    def is_exceeded(self) -> bool:
        """True if the work done exceeds the limit. If so, further results are unknown."""
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
        """Leaves work inside a context uncounted and unlimited. It is used to compute results that many queries
        need.
        """
        outer = self.work_done, self.limit
        self.limit = None
        try:
            yield
        finally:
            self.work_done, self.limit = outer


class ResultCache(Generic[Key, Result]):
    """A cache of results by key. A result is not stored if the work limit was exceeded while it was computed.

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
    """Stores the monomials (products of Gaussian tensors) on one ray by id, with the budget under which products are
    computed. It is the base class of the algebra.

    A sum over an index whose axis does not grow changes no exponent of n, so monomials omit such indices unless they
    are listed in ``tracked``. A product of two signals depends only on these signals and the budget, not on earlier
    computations.

    Args:
        ray: rate of each axis.
        indices: axis of each index, such as ``{"a": "N", "i": "M"}``.
        unknowns: names of the unknown exponents; each packed exponent (an exponent of n with its formula, in one
            integer) stores how often each of them occurs.
        gap: monomials smaller than the largest one by more than this are dropped (``Budget.gap``); ``with_budget`` sets
            other limits.
        tracked: indices to keep although their axis does not grow, because functions act along them.
        centred_axes: axes along which ``Algebra.subtract_mean`` may be called.

    Attributes:
        kernels: the monomials by id.
        weights: size of each monomial with coefficient 1, as an exponent of n packed into an integer, by id.
        in_doubt: whether only an upper bound on a monomial is known, by id.
        has_unknown_numbers: whether a monomial is multiplied by numbers of which only the size is known, by id.
        axes: axis of each index.
        indices: axis of each index that monomials keep.
        half_weights: half the packed exponent of the dimension of each axis.
        search_half_weights: the same exponents, converted to the small integers in which the search for products
            counts.
        doubt_offset: is subtracted from the coefficient of a monomial of which only an upper bound is known. It is too
            small to change an exponent, but of equally large monomials an exact one comes first.
        slack_step: exponent of n, packed into an integer, by which a repeated search for the monomials of a product
            goes further below the Cauchy-Schwarz bound if the search before found none.
        nodes_visited: number of search nodes of all products so far.
        notes: the assumptions beyond counting powers that were made so far, and reasons why something is unknown.
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
        """Returns the rate at which an axis grows on the ray: its size is n^rate."""
        return self.ray[axis]

    def with_budget(self, budget: Budget) -> Self:
        """Returns a copy of the algebra with another budget. It shares monomials and their products with this one."""
        shared = copy(self)
        shared.set_budget(budget)
        return shared

    def set_budget(self, budget: Budget) -> None:
        """Sets the budget (limits on precision and work) of later products."""
        self.budget = budget
        self._gap = self.pack((_WHOLE if budget.keeps_all else budget.gap) * self._unit_gap, {}, {})

    @contextmanager
    def collect_notes(self) -> Iterator[set[str]]:
        """Collects the notes (assumptions, and reasons why something is unknown) that are made inside a context, apart
        from earlier ones. ``nodes_visited`` restarts at 0 inside it.

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
        """Converts an exponent of n that is packed into an integer to the small integers in which the search for
        products counts, rounded down."""
        return (packed >> self._shift) // self._grain

    def drop_fixed(self, indices: str) -> str:
        """Returns the given indices without those that monomials do not store: those whose axis does not grow, unless
        they are tracked."""
        if indices not in self._live:
            self._live[indices] = "".join(x for x in indices if x in self.indices)
        return self._live[indices]

    def tensor_bit(self, name: str) -> int:
        """Returns the bit that stands for an initial tensor in bit masks such as ``Signal.depends_on``: 1, 2, 4, ..."""
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
        """Replaces the axis of one index of a monomial, such as M (all experts) by K (active experts).

        Args:
            k: id of the monomial.
            at: position of the index among the open indices.
            to: name of an index that has the new axis.

        Returns:
            The id of the new monomial.
        """
        kernel = self.kernels[k]
        axes = list(kernel.class_axes)
        axes[kernel.open_classes[at]] = self.indices[to]
        return self.intern(Kernel(*canonicalise(axes, kernel.open_classes, kernel.leaves)))

    def mark_doubt(self, k: int) -> int:
        """Marks a monomial as one of which only an upper bound is known. Returns the id of the marked copy."""
        kernel = self.kernels[k]
        if self.in_doubt[k]:
            return k
        return self.intern(kernel._replace(leaves=tuple(sorted((*kernel.leaves, DOUBT)))))

    def make_unknown_numbers(self, indices: str) -> int:
        """Returns the id of a monomial that stands for unknown numbers of bounded size, one for each entry along the
        given indices."""
        classes = tuple(range(len(indices)))
        leaves = sorted((DOUBT, NUMBER, (f"{INDICATOR}numbers)", classes)))
        return self.intern(Kernel(tuple(self.indices[x] for x in indices), classes, tuple(leaves)))

    def tensors_along(self, k: int, at: int) -> int:
        """Returns the initial tensors in a monomial that vary along its open index at position ``at``, as a bit mask
        (``tensor_bit``)."""
        if (k, at) not in self._along:
            self._along[k, at] = reduce(or_, (self.tensor_bit(name) for name, _ in self.kernels[k].leaves_along(at)), 0)
        return self._along[k, at]

    def kernel(self, k: int) -> Kernel:
        """Returns the monomial with the id ``k``."""
        return self.kernels[k]

    def weight(self, k: int) -> int:
        """Returns the size of the monomial with the id ``k`` if its coefficient is 1, as an exponent of n packed into
        an integer: half the dimension of every summed index class, minus half the dimension of every open index that
        repeats an earlier one.
        """
        return self.weights[k]

    def contraction(self, a: str, b: str, out: str) -> Contraction:
        """Returns which indices of two signals are identified and summed in a product; the arguments are those of
        ``plan_contraction``."""
        return self.plan_contraction(a, b, out)[1]

    def plan_contraction(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """Returns which indices of two signals are identified and summed in a product. The result is cached.

        Args:
            a: indices of the left signal.
            b: indices of the right signal.
            out: indices of the result; all others are summed.

        Returns:
            The id of the contraction, the contraction, and the product of all summed dimensions, as an exponent of n
            packed into an integer.

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
            contraction: which of their open indices are identified and summed.
            slack: monomials smaller than the Cauchy-Schwarz bound by more than this exponent of n (packed into an
                integer) are omitted.
            limit: maximum number of nodes that the search may visit; None for no limit.

        Returns:
            Pairs (monomial id, exponent of n that coherent sums add to the coefficient, packed into an integer); an
            upper bound on omitted monomials relative to the Cauchy-Schwarz bound, None if none was omitted; and the
            number of nodes visited.

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
