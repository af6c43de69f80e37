"""Kernels of normal-ordered signals, and the product of two kernels: where the half-weight rule is applied.

A kernel is one Wiener-chaos component of a polynomial in the Gaussian initial tensors: the leaves that stay unmatched,
with the index classes they touch. Matched leaves are gone; the classes only they touched have been summed coherently.
Read next: ``signals.py`` (maps from kernels to exponents), ``brute_force.py`` (what this file is tested against).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .canonical import Leaf, canonical


@dataclass(frozen=True, slots=True)
class Kernel:
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


@dataclass(frozen=True, slots=True)
class Contraction:
    """How the open indices of two factors meet: one integer label per open index.

    Labels not in ``out`` are summed. ``Contraction((0, 1), (1,), (0,))`` is a matrix times a vector.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def summed(self) -> tuple[int, ...]:
        return tuple(sorted((set(self.left) | set(self.right)) - set(self.out)))


INDICATOR = "1"
"""First character of the names of indicators: bounded non-negative factors such as a selection of experts. They are
not Gaussian and have a positive mean, so they are never matched and leave the weights of the sums as they are; equal
ones are one (1_S 1_S = 1_S). They only record what a kernel depends on."""

DOUBT: Leaf = (f"{INDICATOR}?", ())
"""Marks a kernel of which only an upper bound is known: something orthogonal was taken from it."""


def leaf_kernel(name: str, axes: Sequence[str], indices: Sequence[int]) -> Kernel:
    """The signal of one initial tensor. ``indices`` are the open positions it uses: a tensor shared by all experts
    leaves the expert index unused."""
    return Kernel(tuple(axes), tuple(range(len(axes))), ((name, tuple(indices)),))


class Exhausted(Exception):
    """The search for the matchings of a product passed its limit: the answer stays undecided."""


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


@dataclass(frozen=True, slots=True)
class Product:
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
) -> Product:
    """All kernels of the product ``a * b``, each with the axes of the sums that became coherent.

    Law: :A: :B: = sum over matchings of leaves of A with equal-named leaves of B; inside A and inside B matching is
    already done. A class that no unmatched leaf touches is summed coherently (LLN, weight 1) and leaves the kernel.
    Two leaves with the same name and the same index classes are always matched: the matching that leaves them apart
    is never larger. Source: Wick's theorem for products of Wick powers (normal-ordered polynomials).

    Args:
        half: half the exponent of each axis, in integer units.
        slack: leave out kernels whose rms lies more than this below Cauchy-Schwarz; None keeps all.
        limit: most nodes of the search tree.

    Raises:
        Exhausted: the limit was passed.
    """
    search, outs, bound = _prepare(a, b, contraction, half)
    top = search.reach(search.start, ()) if slack is None else bound
    search.floor = None if slack is None else top - slack
    search.limit = limit
    search.extend(0, 0, (), search.start)
    terms = tuple(dict.fromkeys(_reduce(search, outs, m) for m in search.found))
    return Product(terms, None if search.cut is None else search.cut - top, search.nodes)


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
    search, outs, top = _prepare(a, b, contraction, half)
    search.floor = top - slack
    search.extend(0, 0, (), search.start)
    for m in search.found:
        if wanted(*_reduce(search, outs, m)):
            return m
    raise LookupError("no matching makes this kernel")


def _prepare(a: Kernel, b: Kernel, contraction: Contraction, half: Mapping[str, int]) -> tuple[_Search, list[int], int]:
    """The search for the matchings of a product, its open classes, and the Cauchy-Schwarz bound."""
    shift = len(a.types)
    types = a.types + b.types
    opened = set(a.opens) | {c + shift for c in b.opens}
    mass = [0 if c in opened else 1 for c in range(len(types))]
    parent = list(range(len(types)))
    roots: dict[int, int] = {}
    for label, c in zip(contraction.left + contraction.right, a.opens + tuple(c + shift for c in b.opens), strict=True):
        if label in roots:
            parent = union(parent, roots[label], c)
        else:
            roots[label] = c
    outs = [roots[label] for label in contraction.out]
    for label in contraction.summed:
        mass[parent[roots[label]]] += 2
    right = [(name, tuple(c + shift for c in classes)) for name, classes in b.leaves]
    search = _Search(types, half, mass, outs, parent, list(a.leaves), right)
    return search, outs, _cauchy_schwarz(a, b, contraction, half, types)


def _cauchy_schwarz(
    a: Kernel, b: Kernel, contraction: Contraction, half: Mapping[str, int], types: Sequence[str]
) -> int:
    """rms(a) + rms(b) + the full dimension of every summed label, without the coefficients."""
    axes = dict(
        zip(
            contraction.left + contraction.right,
            (types[c] for c in (*a.opens, *(len(a.types) + c for c in b.opens))),
            strict=True,
        )
    )
    inner = sum(half[x] for k in (a, b) for x in k.summed()) - sum(half[x] for k in (a, b) for x in k.deltas())
    return inner + sum(2 * half[axes[label]] for label in contraction.summed)


class _Search:
    """Branch and bound over the cross matchings of one product."""

    def __init__(
        self,
        types: Sequence[str],
        half: Mapping[str, int],
        mass: list[int],
        outs: list[int],
        parent: list[int],
        left: list[Leaf],
        right: list[Leaf],
    ) -> None:
        self.types, self.start = types, parent
        self.half = [half[axis] for axis in types]
        self.mass, self.outs = mass, outs
        self.floor: int | None = None
        self.cut: int | None = None
        self.nodes = 0
        self.limit: int | None = None
        self.found: list[Matching] = []
        self.marks = [leaf for leaf in (*left, *right) if leaf[0].startswith(INDICATOR)]
        if self.marks:
            left = [leaf for leaf in left if not leaf[0].startswith(INDICATOR)]
            right = [leaf for leaf in right if not leaf[0].startswith(INDICATOR)]
        self.identical: list[tuple[Leaf, Leaf]] = []
        fixed = True
        while fixed:  # identical leaves are always matched
            pair = next(((x, y) for x in left for y in right if x[0] == y[0] and _same(parent, x[1], y[1])), None)
            fixed = pair is not None
            if pair is not None:
                self.identical.append(pair)
                left.remove(pair[0])
                right.remove(pair[1])
        common = {name for name, _ in left} & {name for name, _ in right}
        self.free = tuple(leaf for leaf in (*left, *right) if leaf[0] not in common)
        self.touched = tuple({c for _, classes in self.free for c in classes})
        self.left = [leaf for leaf in left if leaf[0] in common]
        self.right = [leaf for leaf in right if leaf[0] in common]

    def reach(self, forest: list[int], apart: tuple[Leaf, ...]) -> int:
        """Upper bound on the rms of every matching that extends this one; exact when all leaves are decided.

        A merged class weighs at most the classes it came from (1/2 each, 1 for a contracted pair), at most 1, and 1/2
        once a leaf decided to stay unmatched touches it; open classes weigh nothing, repeated ones cost 1/2.
        """
        total = [0] * len(self.mass)
        for c, m in enumerate(self.mass):
            total[forest[c]] += m
        for leaf in apart:
            for c in leaf[1]:
                if total[forest[c]] > 1:
                    total[forest[c]] = 1
        for c in self.touched:
            if total[forest[c]] > 1:
                total[forest[c]] = 1
        bound = 0
        half = self.half
        for c in self.outs:
            r = forest[c]
            if total[r] < 0:
                bound -= half[r]
            total[r] = -1
        for r, m in enumerate(total):
            if m > 0:
                bound += half[r] * (2 if m > 2 else m)
        return bound

    def extend(
        self,
        k: int,
        used: int,
        apart: tuple[Leaf, ...],
        forest: list[int],
        pairs: tuple[tuple[Leaf, Leaf], ...] = (),
    ) -> None:
        self.nodes += 1
        if self.limit is not None and self.nodes > self.limit:
            raise Exhausted
        if self.floor is not None:
            reach = self.reach(forest, apart)
            if reach < self.floor:
                self.cut = reach if self.cut is None else max(self.cut, reach)
                return
        if k == len(self.left):
            rest = [leaf for j, leaf in enumerate(self.right) if not used >> j & 1]
            if not any(x[0] == y[0] and _same(forest, x[1], y[1]) for x in apart for y in rest):
                self.found.append(Matching(forest, [*self.free, *apart, *rest], (*self.identical, *pairs)))
            return
        leaf = self.left[k]
        for j, other in enumerate(self.right):
            if leaf[0] == other[0] and not used >> j & 1:
                merged = forest
                for c, d in zip(leaf[1], other[1], strict=True):
                    merged = union(merged, c, d)
                self.extend(k + 1, used | 1 << j, apart, merged, (*pairs, (leaf, other)))
        self.extend(k + 1, used, (*apart, leaf), forest, pairs)


def _reduce(search: _Search, outs: list[int], m: Matching) -> tuple[Kernel, tuple[str, ...]]:
    """Canonical kernel, and the axes of the classes that nothing touches any more (summed with weight 1)."""
    types, forest, opens = _merged(search.types, m.forest), m.forest, [m.forest[c] for c in outs]
    resolved = [(name, tuple(forest[c] for c in classes)) for name, classes in m.leaves]
    live = set(opens)
    for _, classes in resolved:
        live.update(classes)
    gain = tuple(sorted(types[c] for c in range(len(types)) if forest[c] == c and c not in live))
    if search.marks:
        there = {(name, tuple(forest[c] for c in classes)) for name, classes in search.marks}
        resolved += sorted(mark for mark in there if all(c in live for c in mark[1]))
    return Kernel(*canonical(types, opens, resolved)), gain


def _merged(types: Sequence[str], forest: list[int]) -> Sequence[str]:
    """Types of the roots: where active experts meet all experts, the active ones remain."""
    if "K" not in types:
        return types
    active = {forest[c] for c, axis in enumerate(types) if axis == "K"}
    return ["K" if c in active else axis for c, axis in enumerate(types)]


def population(axis: str) -> str:
    """The axis whose indices an axis runs over: active experts are some of all experts."""
    return "M" if axis == "K" else axis


def union(forest: list[int], c: int, d: int) -> list[int]:
    """The forest (class -> its root) with two classes merged."""
    keep, gone = forest[c], forest[d]
    return forest if keep == gone else [keep if r == gone else r for r in forest]


def _same(forest: list[int], x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    return all(forest[c] == forest[d] for c, d in zip(x, y, strict=True))
