"""Kernels of normal-ordered signals, and the product of two kernels: where the half-weight rule is applied.

A kernel is one Wiener-chaos component of a polynomial in the Gaussian initial tensors: the leaves that stay unmatched,
with the index classes they touch. Matched leaves are gone; the classes only they touched have been summed coherently.
Read next: ``signals.py`` (maps from kernels to exponents), ``matchings.py`` (the search).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .canonical import PLACE, Component, Leaf, component, components, joined, labelled, local, numbered
from .matchings import Alike, Exhausted, MatchingSearch, Partial, bits, union

__all__ = [
    "CONSTANT",
    "DOUBT",
    "INDICATOR",
    "Contraction",
    "Exhausted",
    "Kernel",
    "KernelProduct",
    "Matching",
    "leaf_kernel",
    "marks_left",
    "multiply",
    "population",
    "witness",
]

KINDS = 64
"""A kind of components is a multiple of two to this; below are places of leaves, which are fewer."""

REMEMBERED = 2**15
"""Kernels of which it is kept which leaves may be exchanged."""


class Kernel(NamedTuple):
    """Unmatched leaves over index classes 0, 1, ... in canonical numbering (equal kernels are equal objects).

    Attributes:
        types: axis of each class.
        opens: class of each open index, in the order of the signal's axes; a repeated class is a Kronecker delta.
        leaves: sorted leaves. A class that is not open is summed; every summed class is touched by a leaf.
    """

    types: tuple[str, ...]
    opens: tuple[int, ...]
    leaves: tuple[Leaf, ...]

    def summed(self) -> tuple[str, ...]:
        """Axes of the summed classes, each of which a leaf touches (CLT: weight 1/2)."""
        opened = set(self.opens)
        return tuple(axis for c, axis in enumerate(self.types) if c not in opened)

    def deltas(self) -> tuple[str, ...]:
        """Axis of each open index that repeats an earlier one (cost: half its dimension)."""
        return tuple(self.types[c] for k, c in enumerate(self.opens) if c in self.opens[:k])

    def along(self, at: int) -> tuple[Leaf, ...]:
        """The leaves that vary with an open index, indicators left out."""
        return tuple(leaf for leaf in self.leaves if not leaf[0].startswith(INDICATOR) and self.opens[at] in leaf[1])


@dataclass(frozen=True, slots=True)
class Contraction:
    """The meeting of the open indices of two factors: one integer label per open index.

    Labels not in ``out`` are summed. ``Contraction((0, 1), (1,), (0,))`` is a matrix times a vector. ``centred``: those
    of ``out`` along which a mean may be subtracted later.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]
    centred: tuple[int, ...] = ()

    @property
    def summed(self) -> tuple[int, ...]:
        return tuple(sorted((set(self.left) | set(self.right)) - set(self.out)))


INDICATOR = "1("
"""The beginning of the names of indicators, which no tensor's name has (``grammar.ROLE``): bounded non-negative factors
such as a selection of experts. They are not Gaussian and have a positive mean, so they are never matched and leave the
weights of the sums as they are; equal ones are one (1_S 1_S = 1_S). They only record what a kernel depends on."""

CONSTANT = f"{INDICATOR}="
"""The beginning of the names of constants, whose entries are any fixed numbers. They count as indicators do, but their
powers differ: of c, c c and c c c none is a multiple of another."""

DOUBT: Leaf = (f"{INDICATOR}?)", ())
"""Marks a kernel of which only an upper bound is known: something orthogonal was taken from it."""


def leaf_kernel(name: str, axes: Sequence[str], indices: Sequence[int]) -> Kernel:
    """The signal of one initial tensor. ``indices`` are the open positions it uses: a tensor shared by all experts
    leaves the expert index unused."""
    return Kernel(tuple(axes), tuple(range(len(axes))), ((name, tuple(indices)),))


@dataclass(frozen=True, slots=True)
class Matching:
    """One cross matching of a product.

    Attributes:
        forest: class -> the class it was merged into.
        leaves: those left unmatched, with the classes they were given.
        pairs: matched leaves (left, right), with the classes they were given.
    """

    forest: list[int]
    leaves: list[Leaf]
    pairs: tuple[tuple[Leaf, Leaf], ...]


class KernelProduct(NamedTuple):
    """Kernels of a product.

    Attributes:
        terms: (kernel, axes of the sums that became coherent), each once, in the order of the search.
        cut: largest exponent that a matching left out by ``slack`` could reach, below the Cauchy-Schwarz bound;
            None if nothing was left out.
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
    """All kernels of the product ``a * b``, each with the axes of the sums that became coherent.

    Law: :A: :B: = sum over matchings of leaves of A with equal-named leaves of B; inside A and inside B matching is
    already done. A class that no unmatched leaf touches is summed coherently (LLN, weight 1) and leaves the kernel.
    Two leaves with the same name and the same index classes are always matched: the matching that leaves them apart
    is never larger. It is what is left where a mean is subtracted along an index that they have: A_i A_i is a constant
    and a fluctuation. Source: Wick's theorem for products of Wick powers (normal-ordered polynomials).

    Args:
        half: half the exponent of each axis, in integer units.
        slack: leave out kernels whose rms lies more than this below Cauchy-Schwarz; None keeps all.
        limit: most nodes of the search tree.

    Raises:
        Exhausted: the limit was passed.
    """
    setup = _Setup(a, b, contraction, half)
    top = setup.start.bound if slack is None else setup.top
    setup.search.run(setup.start, None if slack is None else top - slack, limit)
    terms = tuple(dict.fromkeys([setup.reduced(m) for m in setup.search.matchings]))
    cut = setup.search.cut
    return KernelProduct(terms, None if cut is None else cut - top, setup.search.nodes)


def witness(
    a: Kernel,
    b: Kernel,
    contraction: Contraction,
    half: Mapping[str, int],
    slack: int,
    wanted: Callable[[Kernel, tuple[str, ...]], bool],
) -> Matching:
    """A matching of ``a * b`` whose kernel and coherent axes are wanted.

    Classes of ``b`` are numbered after those of ``a``, as in ``multiply``.

    Raises:
        LookupError: no matching within ``slack`` of Cauchy-Schwarz makes it.
    """
    setup = _Setup(a, b, contraction, half)
    setup.search.run(setup.start, setup.top - slack, None)
    for m in setup.search.matchings:
        if wanted(*setup.reduced(m)):
            pairs = [(setup.leaves[x], setup.leaves[y]) for x, y in m.pairs]
            return Matching(m.forest, setup.apart(m), (*setup.identical, *pairs))
    raise LookupError("no matching makes this kernel")


class _Setup:
    """A product as a search for matchings.

    Attributes:
        types: axis of each class; those of the right kernel are numbered after those of the left.
        outs: classes of the open indices.
        top: by Cauchy-Schwarz, rms(a) + rms(b) + the full dimension of every summed label, without the coefficients.
        start: what is contracted, before anything is matched.
        leaves: those that may be matched, the left ones first.
        free: those without a partner.
        identical: left and right leaves with the same name and classes: always matched.
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
                forest = union(forest, s, r) if active[s] and not active[r] else union(forest, r, s)
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
        self.start = Partial(forest, mass, most, bound, near, rest, 0, kind, ())

    def _sort_leaves(self, a: Kernel, b: Kernel, shift: int, forest: list[int], centred: set[int]) -> None:
        """Indicators, identical leaves, those with a partner and those without."""
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
        self.alike: Alike | None = None
        one, two = exchangeable(a), exchangeable(b)
        if chosen and max(one.kind + two.kind) >= 0:
            component = [*one.component, *[c + len(one.kind) for c in two.component]]
            kind = [*one.kind, *[k if k < 0 else k + (len(one.kind) << KINDS) for k in two.kind]]
            kind = [~c if k < 0 else k for c, k in enumerate(kind)]
            place = one.place + two.place
            self.alike = Alike(tuple([component[k] for k in chosen]), tuple([place[k] for k in chosen]), tuple(kind))

    def apart(self, m: Partial) -> list[Leaf]:
        """Leaves that a matching leaves unmatched."""
        return self.free + [leaf for k, leaf in enumerate(self.leaves) if m.apart >> k & 1]

    def reduced(self, m: Partial) -> tuple[Kernel, tuple[str, ...]]:
        """Canonical kernel, and the axes of the classes that nothing touches any more (summed with weight 1)."""
        forest, types, every, near = m.forest, self.types, self.every, m.near
        apart = m.apart | (1 << len(every)) - (1 << len(self.leaves))
        if self.marks:
            live = {r for r, most in enumerate(m.most) if most < 2 and forest[r] == r}
            every, near = every.copy(), near.copy()
            for mark in marks_left([self.merged(x, forest) for x in self.marks], live):
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
        number = numbered([forest[c] for c in self.outs])
        parts = []
        for g in groups:
            apart ^= g
            parts.append(component(types, [self.merged(every[k], forest) for k in bits(g)], number))
        parts += [component(types, [self.merged(every[k], forest)], number) for k in bits(apart)]
        parts.sort(key=PLACE)
        kernel = _kernel(tuple([types[c] for c in number]), tuple([number[forest[c]] for c in self.outs]), tuple(parts))
        return kernel, tuple(sorted(gain))

    @staticmethod
    def merged(leaf: Leaf, forest: list[int]) -> Leaf:
        return leaf[0], tuple([forest[c] for c in leaf[1]])


def marks_left(marks: Sequence[Leaf], live: set[int]) -> list[Leaf]:
    """Return the indicators and constants that a kernel keeps.

    Equal indicators count once and go with any of their classes. Constants keep their powers, and what the sum over
    some of their indices leaves is another constant along the rest: ``sum_a C[b,a]`` depends on ``b``.

    Args:
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


@lru_cache(REMEMBERED)
def _kernel(types: tuple[str, ...], opens: tuple[int, ...], parts: tuple[Component, ...]) -> Kernel:
    """The kernel of these components."""
    return Kernel(*joined(types, opens, parts))


@lru_cache(REMEMBERED)
def exchangeable(kernel: Kernel) -> Alike:
    """The leaves of a kernel that may be exchanged: those of components that are equal, and share only open classes."""
    number = numbered(kernel.opens)
    where: dict[Leaf, list[int]] = {}
    for k, leaf in enumerate(kernel.leaves):
        where.setdefault(leaf, []).append(k)
    group, place = [0] * len(kernel.leaves), [0] * len(kernel.leaves)
    seen: list[Component] = []
    for part in components(kernel.leaves, number):
        first, inner, renumbered = local(kernel.types, part, number)
        shape, order = labelled(first, inner, renumbered)
        renamed = {c: k for k, c in enumerate(order)}
        named = [(name, tuple([renamed[c] for c in classes])) for name, classes in renumbered]
        for at, k in enumerate(sorted(range(len(renumbered)), key=named.__getitem__)):
            leaf_at = where[sorted(part)[k]].pop()
            group[leaf_at], place[leaf_at] = len(seen), at
        seen.append(shape)
    kind = [(seen.index(x) + 1) << KINDS if seen.count(x) > 1 and len(x.leaves) < KINDS else -1 for x in seen]
    return Alike(tuple(group), tuple(place), tuple(kind))


def population(axis: str) -> str:
    """The axis whose indices an axis runs over: active experts are some of all experts."""
    return "M" if axis == "K" else axis
