"""Wick monomials (``Kernel``), and the product of two of them, to which the half-weight rule is applied.

A monomial is one component of the Wiener chaos expansion of a polynomial in the Gaussian initial tensors: the leaves
that stay unmatched, with the index classes that they touch. Matched leaves are gone, and classes that only they touched
have been summed coherently. Read next: ``signals.py`` (sums of monomials), ``matchings.py`` (the search).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .canonical import (
    BY_SORT_KEY,
    Component,
    Leaf,
    canonicalise_component,
    join_components,
    label_component,
    number_open,
    renumber_component,
    split_components,
)
from .matchings import Exchanges, Exhausted, MatchingSearch, PartialMatching, iterate_bits, merge_roots

__all__ = [
    "CONSTANT",
    "DOUBT",
    "INDICATOR",
    "Contraction",
    "Exhausted",
    "Kernel",
    "KernelProduct",
    "Matching",
    "find_matching",
    "keep_indicators",
    "leaf_kernel",
    "multiply",
    "parent_axis",
]

KINDS = 64
"""Number of low bits of a component's kind that record unmatched places; interchangeable components have fewer
leaves."""

MAX_CACHED = 2**15
"""Maximum number of monomials for which interchangeable leaves are cached."""


class Kernel(NamedTuple):
    """A Wick monomial: unmatched leaves over index classes 0, 1, ... in canonical numbering. Equal monomials are equal
    tuples.

    Example: ``h[a] = sum_b W[a,b] x[b]`` is ``Kernel(("N", "N"), (0,), (("W", (0, 1)), ("x", (1,))))``.

    Attributes:
        class_axes: axis of each class.
        open_classes: class of each open index, in the order of the signal's indices; a repeated class is a Kronecker
            delta.
        leaves: sorted leaves. A class that is not open is summed; every summed class is touched by a leaf.
    """

    class_axes: tuple[str, ...]
    open_classes: tuple[int, ...]
    leaves: tuple[Leaf, ...]

    def summed_axes(self) -> tuple[str, ...]:
        """Returns the axis of each summed index class. Each adds weight 1/2 to the size (central limit theorem), since
        a leaf touches it."""
        opened = set(self.open_classes)
        return tuple(axis for c, axis in enumerate(self.class_axes) if c not in opened)

    def repeated_axes(self) -> tuple[str, ...]:
        """Returns the axis of each open index whose index class repeats that of an earlier one (a Kronecker delta).
        Each adds weight -1/2 to the size."""
        return tuple(self.class_axes[c] for k, c in enumerate(self.open_classes) if c in self.open_classes[:k])

    def leaves_along(self, at: int) -> tuple[Leaf, ...]:
        """Returns the leaves that vary along the open index at position ``at``, without indicators."""
        return tuple(
            leaf for leaf in self.leaves if not leaf[0].startswith(INDICATOR) and self.open_classes[at] in leaf[1]
        )


@dataclass(frozen=True, slots=True)
class Contraction:
    """Describes how the open indices of two factors are connected in a product. Each index has an integer label.

    Indices with equal labels are identified, and labels not in ``out`` are summed: ``Contraction((0, 1), (1,), (0,))``
    is a matrix times a vector.

    Attributes:
        left: label of each open index of the left factor.
        right: label of each open index of the right factor.
        out: label of each open index of the result.
        centred: labels of ``out`` along which a mean may be subtracted later.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    centred: tuple[int, ...] = ()

    @property
    def summed_labels(self) -> tuple[int, ...]:
        return tuple(sorted((set(self.left) | set(self.right)) - set(self.out)))


INDICATOR = "1("
"""Prefix of the names of indicators, which no tensor has (``grammar.ROLE``). These are bounded non-negative factors
such as a selection of experts. They are not Gaussian and have a positive mean, so they are never matched and do not
change the weights of sums; equal ones are one (1_S 1_S = 1_S). They only record what a kernel depends on.
"""

CONSTANT = f"{INDICATOR}="
"""Prefix of the names of constants, whose entries are arbitrary fixed numbers. They are treated as indicators, but
their powers differ: none of c, c c and c c c is a multiple of another.
"""

DOUBT: Leaf = (f"{INDICATOR}?)", ())
"""A leaf that marks a monomial as in doubt: only an upper bound on it is known, because something that may cancel it
was subtracted."""


def leaf_kernel(name: str, axes: Sequence[str], indices: Sequence[int]) -> Kernel:
    """Returns the monomial with one leaf.

    Args:
        name: the initial tensor.
        axes: axis of each open index.
        indices: positions of the open indices along which the tensor varies; one that all experts share does not vary
            along the expert index.
    """
    return Kernel(tuple(axes), tuple(range(len(axes))), ((name, tuple(indices)),))


@dataclass(frozen=True, slots=True)
class Matching:
    """One way to pair the leaves of two monomials in their product.

    Attributes:
        roots: for each index class, the class that it was merged into.
        leaves: unmatched leaves with their classes.
        pairs: matched leaves (left, right) with their classes.
    """

    roots: list[int]
    leaves: list[Leaf]
    pairs: tuple[tuple[Leaf, Leaf], ...]


class KernelProduct(NamedTuple):
    """The monomials in a product of two monomials.

    Attributes:
        terms: distinct pairs (monomial, axes of the indices summed coherently), in the order of the search.
        omitted_bound: largest exponent that a matching omitted because of ``slack`` could reach, relative to the
            Cauchy-Schwarz bound; None if nothing was omitted.
        nodes: number of search nodes.
    """

    terms: tuple[tuple[Kernel, tuple[str, ...]], ...]
    omitted_bound: int | None
    nodes: int


def multiply(
    a: Kernel,
    b: Kernel,
    contraction: Contraction,
    half_weights: Mapping[str, int],
    slack: int | None = None,
    limit: int | None = None,
) -> KernelProduct:
    """Multiplies two Wick monomials. Returns all monomials of ``a * b``, each with the axes of the sums that became
    coherent.

    Law: :A: :B: = sum over matchings of leaves of A with leaves of B of the same name; inside A and inside B, matching
    is already done. A class that no unmatched leaf touches is summed coherently (law of large numbers, weight 1) and
    leaves the monomial. Two leaves with the same name and the same index classes are always matched, because a matching
    that leaves them unmatched is never larger. The exception is an index of theirs along which a mean is subtracted:
    A_i A_i is a constant and a fluctuation, and the fluctuation remains. Source: Wick's theorem for products of Wick
    powers (normal-ordered polynomials).

    Args:
        a: the left monomial.
        b: the right monomial.
        contraction: how their open indices are connected.
        half_weights: half the exponent of each axis's dimension, in integer units.
        slack: monomials whose size is more than this below the Cauchy-Schwarz bound are omitted; None keeps all.
        limit: maximum number of search nodes; None for no limit.

    Raises:
        Exhausted: the limit is exceeded.
    """
    setup = _ProductSetup(a, b, contraction, half_weights)
    top = setup.start.upper_bound if slack is None else setup.cauchy_schwarz
    setup.search.search(setup.start, None if slack is None else top - slack, limit)
    terms = tuple(dict.fromkeys([setup.canonicalise_matching(m) for m in setup.search.matchings]))
    cut = setup.search.omitted_bound
    return KernelProduct(terms, None if cut is None else cut - top, setup.search.nodes_visited)


def find_matching(
    a: Kernel,
    b: Kernel,
    contraction: Contraction,
    half_weights: Mapping[str, int],
    slack: int,
    wanted: Callable[[Kernel, tuple[str, ...]], bool],
) -> Matching:
    """Finds a matching of the leaves of two monomials that yields a wanted monomial of their product.

    Classes of ``b`` are numbered after those of ``a``.

    Args:
        a: the left monomial.
        b: the right monomial.
        contraction: how their open indices are connected.
        half_weights: half the exponent of each axis's dimension, in integer units.
        slack: how far below the Cauchy-Schwarz bound the search goes.
        wanted: tests a monomial and the axes of the indices summed coherently.

    Raises:
        LookupError: no matching within ``slack`` yields such a monomial.
    """
    setup = _ProductSetup(a, b, contraction, half_weights)
    setup.search.search(setup.start, setup.cauchy_schwarz - slack, None)
    for m in setup.search.matchings:
        if wanted(*setup.canonicalise_matching(m)):
            pairs = [(setup.leaves[x], setup.leaves[y]) for x, y in m.pairs]
            return Matching(m.roots, setup.unmatched_leaves(m), (*setup.identical_pairs, *pairs))
    raise LookupError("no matching within the slack yields the wanted monomial")


class _ProductSetup:
    """A product of two monomials, prepared for the search for matchings.

    Attributes:
        class_axes: axis of each class; those of the right monomial are numbered after those of the left one.
        open_classes: class of each open index of the result.
        cauchy_schwarz: the Cauchy-Schwarz bound: rms(a) + rms(b) + the full dimension of every summed label, without
            coefficients.
        start: the contracted product before anything is matched.
        leaves: leaves that may be matched, those of the left monomial first.
        left_count: number of these in the left monomial.
        without_partner: leaves whose name the other monomial lacks.
        all_leaves: ``leaves``, then ``without_partner``.
        identical_pairs: left and right leaves with the same name and classes, which are always matched.
        indicators: leaves that stand for indicators or constants.
        exchanges: interchangeable leaves; None if there are none.
        search: the search.
    """

    def __init__(self, a: Kernel, b: Kernel, contraction: Contraction, half_weights: Mapping[str, int]) -> None:
        shift, self.class_axes = len(a.class_axes), a.class_axes + b.class_axes
        halves, active = [half_weights[axis] for axis in self.class_axes], [axis == "K" for axis in self.class_axes]
        opens = a.open_classes + tuple([c + shift for c in b.open_classes])
        roots, weight, max_weight = list(range(len(halves))), [1] * len(halves), [2] * len(halves)
        self.cauchy_schwarz = 0
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for label, c in zip(contraction.left + contraction.right, opens, strict=True):
            if weight[c]:
                weight[c] = 0
            else:
                self.cauchy_schwarz -= halves[c]
            r, s = roots[first.setdefault(label, c)], roots[c]
            last[label] = c
            if r != s:
                roots = merge_roots(roots, s, r) if active[s] and not active[r] else merge_roots(roots, r, s)
        self.cauchy_schwarz += sum([h for h, m in zip(halves, weight, strict=True) if m])
        self.open_classes = tuple([first[label] for label in contraction.out])
        for label, c in last.items():
            if label not in contraction.out:
                self.cauchy_schwarz += 2 * halves[c]
                weight[roots[c]] += 2
        for c in self.open_classes:
            r = roots[c]
            weight[r] = weight[r] - 1 if max_weight[r] == 0 else 0
            max_weight[r] = 0
        centred = frozenset([first[label] for label in contraction.centred])
        self._sort_leaves(a, b, shift, roots, {roots[c] for c in centred})
        for _, classes in self.without_partner:
            for c in classes:
                if max_weight[roots[c]] == 2:
                    max_weight[roots[c]] = 1
        bound = sum([h * min(m, n) for h, m, n in zip(halves, weight, max_weight, strict=True)])
        touching = [0] * len(halves)
        self.all_leaves = self.leaves + self.without_partner
        for k, (_, classes) in enumerate(self.all_leaves):
            for c in classes:
                touching[roots[c]] |= 1 << k
        self.search = MatchingSearch(halves, active, self.leaves, self.left_count, self.exchanges, centred)
        undecided = (1 << len(self.leaves)) - 1
        kinds = [] if self.exchanges is None else list(self.exchanges.kinds)
        self.start = PartialMatching(roots, weight, max_weight, bound, touching, undecided, 0, kinds, ())

    def _sort_leaves(self, a: Kernel, b: Kernel, shift: int, roots: list[int], centred: set[int]) -> None:
        """Sorts the leaves of both monomials into indicators, pairs that are always matched, leaves that may be
        matched, and leaves whose name the other monomial lacks."""
        count = len(a.leaves)
        leaves = [*a.leaves, *[(name, tuple([c + shift for c in classes])) for name, classes in b.leaves]]
        self.indicators = [leaf for leaf in leaves if leaf[0].startswith(INDICATOR)]
        left = [k for k in range(count) if not leaves[k][0].startswith(INDICATOR)]
        right = [k for k in range(count, len(leaves)) if not leaves[k][0].startswith(INDICATOR)]
        names = {leaves[k][0] for k in left} & {leaves[k][0] for k in right}
        merged = {k: (leaves[k][0], [roots[c] for c in leaves[k][1]]) for k in (*left, *right) if leaves[k][0] in names}
        self.identical_pairs: list[tuple[Leaf, Leaf]] = []
        gone: list[int] = []
        for x in left:
            if x in merged and not centred.isdisjoint(merged[x][1]):
                continue
            y = next((y for y in right if x in merged and merged[x] == merged.get(y) and y not in gone), None)
            if y is not None:
                self.identical_pairs.append((leaves[x], leaves[y]))
                gone += [x, y]
        if gone:
            left, right = ([k for k in side if k not in gone] for side in (left, right))
            names = {leaves[k][0] for k in left} & {leaves[k][0] for k in right}
        self.without_partner = [leaves[k] for k in (*left, *right) if leaves[k][0] not in names]
        left = [k for k in left if leaves[k][0] in names]
        chosen = left + [k for k in right if leaves[k][0] in names]
        self.leaves, self.left_count = [leaves[k] for k in chosen], len(left)
        self.exchanges: Exchanges | None = None
        exchanges_a, exchanges_b = find_exchangeable(a), find_exchangeable(b)
        if chosen and max(exchanges_a.kinds + exchanges_b.kinds) >= 0:
            component = [*exchanges_a.components, *[c + len(exchanges_a.kinds) for c in exchanges_b.components]]
            kind = [
                *exchanges_a.kinds,
                *[k if k < 0 else k + (len(exchanges_a.kinds) << KINDS) for k in exchanges_b.kinds],
            ]
            kind = [~c if k < 0 else k for c, k in enumerate(kind)]
            place = exchanges_a.places + exchanges_b.places
            self.exchanges = Exchanges(
                tuple([component[k] for k in chosen]), tuple([place[k] for k in chosen]), tuple(kind)
            )

    def unmatched_leaves(self, m: PartialMatching) -> list[Leaf]:
        """Returns the leaves that a matching leaves unmatched, without indicators."""
        return self.without_partner + [leaf for k, leaf in enumerate(self.leaves) if m.unmatched >> k & 1]

    def canonicalise_matching(self, m: PartialMatching) -> tuple[Kernel, tuple[str, ...]]:
        """Returns the monomial that results from a matching, and the axes of the index classes that no leaf touches any
        more. These are summed coherently (weight 1)."""
        roots, axes, all_leaves, touching = m.roots, self.class_axes, self.all_leaves, m.touching
        unmatched = m.unmatched | (1 << len(all_leaves)) - (1 << len(self.leaves))
        if self.indicators:
            live = {r for r, max_weight in enumerate(m.max_weight) if max_weight < 2 and roots[r] == r}
            all_leaves, touching = all_leaves.copy(), touching.copy()
            for indicator in keep_indicators([self.merge_leaf(x, roots) for x in self.indicators], live):
                unmatched |= 1 << len(all_leaves)
                for r in indicator[1]:
                    touching[r] |= 1 << len(all_leaves)
                all_leaves.append(indicator)
        coherent: list[str] = []
        groups: list[int] = []
        for r, max_weight in enumerate(m.max_weight):
            if max_weight == 2:
                if roots[r] == r:
                    coherent.append(axes[r])
            elif max_weight and roots[r] == r:
                together, others = touching[r] & unmatched, []
                for g in groups:
                    if g & together:
                        together |= g
                    else:
                        others.append(g)
                groups = [*others, together]
        number = number_open([roots[c] for c in self.open_classes])
        parts = []
        for g in groups:
            unmatched ^= g
            parts.append(
                canonicalise_component(axes, [self.merge_leaf(all_leaves[k], roots) for k in iterate_bits(g)], number)
            )
        parts += [
            canonicalise_component(axes, [self.merge_leaf(all_leaves[k], roots)], number)
            for k in iterate_bits(unmatched)
        ]
        parts.sort(key=BY_SORT_KEY)
        kernel = _intern_kernel(
            tuple([axes[c] for c in number]), tuple([number[roots[c]] for c in self.open_classes]), tuple(parts)
        )
        return kernel, tuple(sorted(coherent))

    @staticmethod
    def merge_leaf(leaf: Leaf, roots: list[int]) -> Leaf:
        """Returns a leaf with each class replaced by the one that it was merged into."""
        return leaf[0], tuple([roots[c] for c in leaf[1]])


def keep_indicators(indicators: Sequence[Leaf], live: set[int]) -> list[Leaf]:
    """Returns the indicators and constants that a monomial keeps after the product.

    Equal indicators count once. An indicator is dropped if one of its classes is summed coherently. Constants keep
    their powers, and summing a constant over some of its indices gives another constant along the rest: ``sum_a
    C[b,a]`` depends on ``b``.

    Args:
        indicators: indicators and constants.
        live: classes that are open, or that an unmatched leaf touches.
    """
    kept: list[Leaf] = []
    for name, classes in indicators:
        left = tuple([c for c in classes if c in live])
        if not name.startswith(CONSTANT):
            if len(left) == len(classes) and (name, classes) not in kept:
                kept.append((name, classes))
        elif left:
            gone = [c for c in classes if c not in live]
            if gone:
                summed = sorted([x for x, others in indicators if [c for c in gone if c in others]])
                name = f"{CONSTANT}sum of {' '.join(summed)})"
            kept.append((name, left))
    return kept


@lru_cache(MAX_CACHED)
def _intern_kernel(axes: tuple[str, ...], open_classes: tuple[int, ...], parts: tuple[Component, ...]) -> Kernel:
    """Returns the monomial with these components. Equal arguments return the same object."""
    return Kernel(*join_components(axes, open_classes, parts))


@lru_cache(MAX_CACHED)
def find_exchangeable(kernel: Kernel) -> Exchanges:
    """Finds the interchangeable leaves of a monomial: those of isomorphic components that share only open classes."""
    number = number_open(kernel.open_classes)
    where: dict[Leaf, list[int]] = {}
    for k, leaf in enumerate(kernel.leaves):
        where.setdefault(leaf, []).append(k)
    group, place = [0] * len(kernel.leaves), [0] * len(kernel.leaves)
    seen: list[Component] = []
    for part in split_components(kernel.leaves, number):
        first, inner, renumbered = renumber_component(kernel.class_axes, part, number)
        shape, order = label_component(first, inner, renumbered)
        renamed = {c: k for k, c in enumerate(order)}
        named = [(name, tuple([renamed[c] for c in classes])) for name, classes in renumbered]
        for at, k in enumerate(sorted(range(len(renumbered)), key=named.__getitem__)):
            leaf_at = where[sorted(part)[k]].pop()
            group[leaf_at], place[leaf_at] = len(seen), at
        seen.append(shape)
    kind = [(seen.index(x) + 1) << KINDS if seen.count(x) > 1 and len(x.leaves) < KINDS else -1 for x in seen]
    return Exchanges(tuple(group), tuple(place), tuple(kind))


def parent_axis(axis: str) -> str:
    """Returns the axis that contains an axis: M (all experts) for K (active experts), otherwise the axis itself."""
    return "M" if axis == "K" else axis
