"""Kernels (Wick monomials), and the product of two kernels, to which the half-weight rule is applied.

A kernel is one component of the Wiener chaos expansion of a polynomial in the Gaussian initial tensors: the leaves that
stay unmatched, with the index classes that they touch. Matched leaves are gone, and classes that only they touched have
been summed coherently. Read next: ``signals.py`` (maps from kernels to exponents), ``matchings.py`` (the search).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .canonical import (
    PLACE,
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
    "keep_marks",
    "leaf_kernel",
    "multiply",
    "population",
]

KINDS = 64
"""The kind of a component is a multiple of two to this power; the lower bits hold places of leaves, which are fewer."""

MAX_CACHED = 2**15
"""Maximum number of kernels for which exchangeable leaves are cached."""


class Kernel(NamedTuple):
    """Unmatched leaves over index classes 0, 1, ... in canonical numbering, so that equal kernels are equal tuples.

    Attributes:
        types: axis of each class.
        opens: class of each open index, in the order of the signal's indices; a repeated class is a Kronecker delta.
        leaves: sorted leaves. A class that is not open is summed; every summed class is touched by a leaf.
    """

    types: tuple[str, ...]
    opens: tuple[int, ...]
    leaves: tuple[Leaf, ...]

    def summed_axes(self) -> tuple[str, ...]:
        """Returns the axes of the summed classes, each of which a leaf touches (central limit theorem: weight 1/2)."""
        opened = set(self.opens)
        return tuple(axis for c, axis in enumerate(self.types) if c not in opened)

    def deltas(self) -> tuple[str, ...]:
        """Returns the axis of each open index that repeats an earlier one; each reduces the size by half its
        dimension."""
        return tuple(self.types[c] for k, c in enumerate(self.opens) if c in self.opens[:k])

    def along(self, at: int) -> tuple[Leaf, ...]:
        """Returns the leaves that vary along an open index, without indicators."""
        return tuple(leaf for leaf in self.leaves if not leaf[0].startswith(INDICATOR) and self.opens[at] in leaf[1])


@dataclass(frozen=True, slots=True)
class Contraction:
    """How the open indices of two factors are connected: one integer label for each.

    Indices with equal labels are identified, and labels not in ``out`` are summed: ``Contraction((0, 1), (1,), (0,))``
    is a matrix times a vector.

    Attributes:
        left: labels of the left factor.
        right: labels of the right factor.
        out: labels of the result.
        centred: labels of ``out`` along which a mean may be subtracted later.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    centred: tuple[int, ...] = ()

    @property
    def summed(self) -> tuple[int, ...]:
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
"""Marks a kernel of which only an upper bound is known, because something orthogonal was subtracted from it."""


def leaf_kernel(name: str, axes: Sequence[str], indices: Sequence[int]) -> Kernel:
    """Returns the kernel of one initial tensor.

    Args:
        name: the tensor.
        axes: axis of each open index.
        indices: positions of the open indices along which it varies; a tensor that all experts share does not vary
            along the expert index.
    """
    return Kernel(tuple(axes), tuple(range(len(axes))), ((name, tuple(indices)),))


@dataclass(frozen=True, slots=True)
class Matching:
    """One cross matching of a product.

    Attributes:
        forest: for each class, the class that it was merged into.
        leaves: unmatched leaves with their classes.
        pairs: matched leaves (left, right) with their classes.
    """

    forest: list[int]
    leaves: list[Leaf]
    pairs: tuple[tuple[Leaf, Leaf], ...]


class KernelProduct(NamedTuple):
    """Kernels of a product.

    Attributes:
        terms: distinct pairs (kernel, axes of the sums that became coherent), in the order of the search.
        cut: largest exponent that a matching omitted because of ``slack`` could reach, relative to the Cauchy-Schwarz
            bound; None if nothing was omitted.
        nodes: size of the search tree.
    """

    terms: tuple[tuple[Kernel, tuple[str, ...]], ...]
    cut: int | None
    nodes: int


def multiply(
    a: Kernel,
    b: Kernel,
    contraction: Contraction,
    half: Mapping[str, int],
    slack: int | None = None,
    limit: int | None = None,
) -> KernelProduct:
    """Returns all kernels of the product ``a * b``, each with the axes of the sums that became coherent.

    Law: :A: :B: = sum over matchings of leaves of A with leaves of B of the same name; inside A and inside B, matching
    is already done. A class that no unmatched leaf touches is summed coherently (law of large numbers, weight 1) and
    leaves the kernel. Two leaves with the same name and the same index classes are always matched, because a matching
    that leaves them unmatched is never larger. The exception is an index of theirs along which a mean is subtracted:
    A_i A_i is a constant and a fluctuation, and the fluctuation remains.
    Source: Wick's theorem for products of Wick powers (normal-ordered polynomials).

    Args:
        a: the left kernel.
        b: the right kernel.
        contraction: how their open indices are connected.
        half: half the exponent of each axis, in integer units.
        slack: kernels whose rms is more than this below the Cauchy-Schwarz bound are omitted; None keeps all.
        limit: maximum number of nodes of the search tree.

    Raises:
        Exhausted: the limit is exceeded.
    """
    setup = _ProductSetup(a, b, contraction, half)
    top = setup.start.bound if slack is None else setup.top
    setup.search.run(setup.start, None if slack is None else top - slack, limit)
    terms = tuple(dict.fromkeys([setup.canonicalise_matching(m) for m in setup.search.matchings]))
    cut = setup.search.cut
    return KernelProduct(terms, None if cut is None else cut - top, setup.search.nodes)


def find_matching(
    a: Kernel,
    b: Kernel,
    contraction: Contraction,
    half: Mapping[str, int],
    slack: int,
    wanted: Callable[[Kernel, tuple[str, ...]], bool],
) -> Matching:
    """Finds a matching of ``a * b`` that makes a wanted kernel.

    Classes of ``b`` are numbered after those of ``a``, as in ``multiply``.

    Args:
        a: the left kernel.
        b: the right kernel.
        contraction: how their open indices are connected.
        half: half the exponent of each axis, in integer units.
        slack: how far below the Cauchy-Schwarz bound the search goes.
        wanted: tests a kernel and its coherent axes.

    Raises:
        LookupError: no matching within ``slack`` makes such a kernel.
    """
    setup = _ProductSetup(a, b, contraction, half)
    setup.search.run(setup.start, setup.top - slack, None)
    for m in setup.search.matchings:
        if wanted(*setup.canonicalise_matching(m)):
            pairs = [(setup.leaves[x], setup.leaves[y]) for x, y in m.pairs]
            return Matching(m.forest, setup.apart(m), (*setup.identical, *pairs))
    raise LookupError("no matching makes this kernel")


class _ProductSetup:
    """A product of two kernels as a search for matchings.

    Attributes:
        types: axis of each class; those of the right kernel are numbered after those of the left.
        outs: classes of the open indices.
        top: the Cauchy-Schwarz bound: rms(a) + rms(b) + the full dimension of every summed label, without coefficients.
        start: the contracted product before anything is matched.
        leaves: leaves that may be matched, those of the left kernel first.
        free: leaves without a partner.
        identical: left and right leaves with the same name and classes, which are always matched.
        marks: indicators.
    """

    def __init__(self, a: Kernel, b: Kernel, contraction: Contraction, half: Mapping[str, int]) -> None:
        shift, self.types = len(a.types), a.types + b.types
        weight, active = [half[axis] for axis in self.types], [axis == "K" for axis in self.types]
        opens = a.opens + tuple([c + shift for c in b.opens])
        forest, mass, most = list(range(len(weight))), [1] * len(weight), [2] * len(weight)
        self.top = 0
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for label, c in zip(contraction.left + contraction.right, opens, strict=True):
            if mass[c]:
                mass[c] = 0
            else:
                self.top -= weight[c]
            r, s = forest[first.setdefault(label, c)], forest[c]
            last[label] = c
            if r != s:
                forest = merge_roots(forest, s, r) if active[s] and not active[r] else merge_roots(forest, r, s)
        self.top += sum([h for h, m in zip(weight, mass, strict=True) if m])
        self.outs = tuple([first[label] for label in contraction.out])
        for label, c in last.items():
            if label not in contraction.out:
                self.top += 2 * weight[c]
                mass[forest[c]] += 2
        for c in self.outs:
            r = forest[c]
            mass[r] = mass[r] - 1 if most[r] == 0 else 0
            most[r] = 0
        centred = frozenset([first[label] for label in contraction.centred])
        self._sort_leaves(a, b, shift, forest, {forest[c] for c in centred})
        for _, classes in self.free:
            for c in classes:
                if most[forest[c]] == 2:
                    most[forest[c]] = 1
        bound = sum([h * min(m, n) for h, m, n in zip(weight, mass, most, strict=True)])
        near = [0] * len(weight)
        self.every = self.leaves + self.free
        for k, (_, classes) in enumerate(self.every):
            for c in classes:
                near[forest[c]] |= 1 << k
        self.search = MatchingSearch(weight, active, self.leaves, self.lefts, self.alike, centred)
        rest = (1 << len(self.leaves)) - 1
        kind = [] if self.alike is None else list(self.alike.kind)
        self.start = PartialMatching(forest, mass, most, bound, near, rest, 0, kind, ())

    def _sort_leaves(self, a: Kernel, b: Kernel, shift: int, forest: list[int], centred: set[int]) -> None:
        """Sorts leaves into indicators, identical pairs, those with a partner and those without."""
        count = len(a.leaves)
        every = [*a.leaves, *[(name, tuple([c + shift for c in classes])) for name, classes in b.leaves]]
        self.marks = [leaf for leaf in every if leaf[0].startswith(INDICATOR)]
        left = [k for k in range(count) if not every[k][0].startswith(INDICATOR)]
        right = [k for k in range(count, len(every)) if not every[k][0].startswith(INDICATOR)]
        names = {every[k][0] for k in left} & {every[k][0] for k in right}
        merged = {k: (every[k][0], [forest[c] for c in every[k][1]]) for k in (*left, *right) if every[k][0] in names}
        self.identical: list[tuple[Leaf, Leaf]] = []
        gone: list[int] = []
        for x in left:
            if x in merged and not centred.isdisjoint(merged[x][1]):
                continue
            y = next((y for y in right if x in merged and merged[x] == merged.get(y) and y not in gone), None)
            if y is not None:
                self.identical.append((every[x], every[y]))
                gone += [x, y]
        if gone:
            left, right = ([k for k in side if k not in gone] for side in (left, right))
            names = {every[k][0] for k in left} & {every[k][0] for k in right}
        self.free = [every[k] for k in (*left, *right) if every[k][0] not in names]
        left = [k for k in left if every[k][0] in names]
        chosen = left + [k for k in right if every[k][0] in names]
        self.leaves, self.lefts = [every[k] for k in chosen], len(left)
        self.alike: Exchanges | None = None
        one, two = find_exchangeable(a), find_exchangeable(b)
        if chosen and max(one.kind + two.kind) >= 0:
            component = [*one.component, *[c + len(one.kind) for c in two.component]]
            kind = [*one.kind, *[k if k < 0 else k + (len(one.kind) << KINDS) for k in two.kind]]
            kind = [~c if k < 0 else k for c, k in enumerate(kind)]
            place = one.place + two.place
            self.alike = Exchanges(
                tuple([component[k] for k in chosen]), tuple([place[k] for k in chosen]), tuple(kind)
            )

    def apart(self, m: PartialMatching) -> list[Leaf]:
        """Returns the leaves that a matching leaves unmatched."""
        return self.free + [leaf for k, leaf in enumerate(self.leaves) if m.apart >> k & 1]

    def canonicalise_matching(self, m: PartialMatching) -> tuple[Kernel, tuple[str, ...]]:
        """Returns the canonical kernel of a matching, and the axes of the classes that nothing touches (summed with
        weight 1)."""
        forest, types, every, near = m.forest, self.types, self.every, m.near
        apart = m.apart | (1 << len(every)) - (1 << len(self.leaves))
        if self.marks:
            live = {r for r, most in enumerate(m.most) if most < 2 and forest[r] == r}
            every, near = every.copy(), near.copy()
            for mark in keep_marks([self.merge_leaf(x, forest) for x in self.marks], live):
                apart |= 1 << len(every)
                for r in mark[1]:
                    near[r] |= 1 << len(every)
                every.append(mark)
        gain: list[str] = []
        groups: list[int] = []
        for r, most in enumerate(m.most):
            if most == 2:
                if forest[r] == r:
                    gain.append(types[r])
            elif most and forest[r] == r:
                together, others = near[r] & apart, []
                for g in groups:
                    if g & together:
                        together |= g
                    else:
                        others.append(g)
                groups = [*others, together]
        number = number_open([forest[c] for c in self.outs])
        parts = []
        for g in groups:
            apart ^= g
            parts.append(
                canonicalise_component(types, [self.merge_leaf(every[k], forest) for k in iterate_bits(g)], number)
            )
        parts += [
            canonicalise_component(types, [self.merge_leaf(every[k], forest)], number) for k in iterate_bits(apart)
        ]
        parts.sort(key=PLACE)
        kernel = _intern_kernel(
            tuple([types[c] for c in number]), tuple([number[forest[c]] for c in self.outs]), tuple(parts)
        )
        return kernel, tuple(sorted(gain))

    @staticmethod
    def merge_leaf(leaf: Leaf, forest: list[int]) -> Leaf:
        """Returns a leaf with each class replaced by the one that it was merged into."""
        return leaf[0], tuple([forest[c] for c in leaf[1]])


def keep_marks(marks: Sequence[Leaf], live: set[int]) -> list[Leaf]:
    """Returns the indicators and constants that a kernel keeps.

    Equal indicators count once, and are dropped if any of their classes is. Constants keep their powers, and what the
    sum over some of their indices leaves is another constant along the rest: ``sum_a C[b,a]`` depends on ``b``.

    Args:
        marks: indicators and constants.
        live: classes that are open, or that an unmatched leaf touches.
    """
    kept: list[Leaf] = []
    for name, classes in marks:
        left = tuple([c for c in classes if c in live])
        if not name.startswith(CONSTANT):
            if len(left) == len(classes) and (name, classes) not in kept:
                kept.append((name, classes))
        elif left:
            gone = [c for c in classes if c not in live]
            if gone:
                summed = sorted([x for x, others in marks if [c for c in gone if c in others]])
                name = f"{CONSTANT}sum of {' '.join(summed)})"
            kept.append((name, left))
    return kept


@lru_cache(MAX_CACHED)
def _intern_kernel(types: tuple[str, ...], opens: tuple[int, ...], parts: tuple[Component, ...]) -> Kernel:
    """Returns the kernel with these components; equal ones are one object."""
    return Kernel(*join_components(types, opens, parts))


@lru_cache(MAX_CACHED)
def find_exchangeable(kernel: Kernel) -> Exchanges:
    """Finds the leaves of a kernel that may be exchanged: those of equal components that share only open classes."""
    number = number_open(kernel.opens)
    where: dict[Leaf, list[int]] = {}
    for k, leaf in enumerate(kernel.leaves):
        where.setdefault(leaf, []).append(k)
    group, place = [0] * len(kernel.leaves), [0] * len(kernel.leaves)
    seen: list[Component] = []
    for part in split_components(kernel.leaves, number):
        first, inner, renumbered = renumber_component(kernel.types, part, number)
        shape, order = label_component(first, inner, renumbered)
        renamed = {c: k for k, c in enumerate(order)}
        named = [(name, tuple([renamed[c] for c in classes])) for name, classes in renumbered]
        for at, k in enumerate(sorted(range(len(renumbered)), key=named.__getitem__)):
            leaf_at = where[sorted(part)[k]].pop()
            group[leaf_at], place[leaf_at] = len(seen), at
        seen.append(shape)
    kind = [(seen.index(x) + 1) << KINDS if seen.count(x) > 1 and len(x.leaves) < KINDS else -1 for x in seen]
    return Exchanges(tuple(group), tuple(place), tuple(kind))


def population(axis: str) -> str:
    """Returns the axis that an axis is a part of: the active experts (K) are some of all experts (M)."""
    return "M" if axis == "K" else axis
