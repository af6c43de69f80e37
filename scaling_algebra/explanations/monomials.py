"""The monomial behind an exponent: from a kernel of a signal back to the initial tensors and the matching that wins.

Nothing is computed anew: every signal remembers how it was made (``signals.Made``), and each product is asked which
matching of its factors made the kernel. The result is one tensor network whose half-weight sum is the exponent.
Read next: ``mechanisms.py`` (names what the matching does), ``explanations.py`` (makes a derivation of it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.canonical import Leaf
from scaling_algebra.counting.kernels import INDICATOR, Kernel
from scaling_algebra.counting.signals import Scalar, Signal


@dataclass(frozen=True)
class TensorFactor:
    """One initial tensor in a monomial: its role and the index classes it touches."""

    tensor: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """Two matched factors, by position.

    ``where`` is the product whose factors they came from: ``forward`` (the inner product <x', x> of a rank-one update
    with its input), ``backward`` (of a transposed one with a gradient), or empty (any other product).
    """

    left: int
    right: int
    where: str


@dataclass(frozen=True)
class Inner:
    """The inner product of a rank-one update with what it acts on: its side, the tensor, the classes it sums."""

    where: str
    tensor: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """A sum on the way: its name, its parts with their exponents, and the part that leads."""

    name: str
    parts: tuple[tuple[str, Fraction | None], ...]
    chosen: int


@dataclass(frozen=True)
class Index:
    """One index class of a monomial after matching.

    Attributes:
        name: letter with primes, e.g. ``k'``.
        axis: what it runs over.
        weight: 1 (nothing touches it: coherent, LLN), 1/2 (an unmatched factor touches it: random, CLT), 0 (open),
            less for an open index that repeats another (-1/2 each).
        rate: exponent of the dimension.
        touched: positions of the unmatched factors that touch it.
        merged: how many index classes matching and contraction identified in it.
    """

    name: str
    axis: str
    weight: Fraction
    rate: Fraction
    touched: tuple[int, ...]
    merged: int


@dataclass(frozen=True)
class Contracted:
    """A product of initial tensors with its indices contracted and nothing matched yet.

    Attributes:
        factors: (role, index names) of every factor, in the order of the monomial's.
        opens: names of the open indices.
        rates: exponent of the dimension of every index.
    """

    factors: tuple[tuple[str, tuple[str, ...]], ...]
    opens: tuple[str, ...]
    rates: Mapping[str, Fraction]

    def __str__(self) -> str:
        summed = [x for x in self.rates if x not in self.opens]
        product = " ".join(f"{role}[{','.join(names)}]" for role, names in self.factors) or "1"
        return f"sum over {', '.join(summed)} of {product}" if summed else product


@dataclass
class MatchedMonomial:
    """A product of initial tensors and deterministic factors, some indices summed, some factors matched.

    Attributes:
        factors, pairs, scalars, inner, choices: see their classes; scalars include the std of every factor.
        sizes: exponent of each scalar.
        indices: every index class, by the class number factors use.
        opens: class of each open index.
        contracted: the network before anything was matched.
    """

    factors: list[TensorFactor]
    pairs: list[Pair]
    scalars: list[Scalar]
    sizes: list[Fraction]
    inner: list[Inner]
    choices: list[Choice]
    indices: dict[int, Index] = field(default_factory=dict)
    opens: tuple[int, ...] = ()
    contracted: Contracted = field(default_factory=lambda: Contracted((), (), {}))

    @property
    def exponent(self) -> Fraction:
        """Law: coefficient + sum over index classes of weight times dimension (the half-weight rule)."""
        return sum(self.sizes, Fraction(0)) + sum((i.weight * i.rate for i in self.indices.values()), Fraction(0))

    def unmatched(self) -> list[int]:
        """Positions of the factors that no pair holds."""
        held = {k for pair in self.pairs for k in (pair.left, pair.right)}
        return [k for k in range(len(self.factors)) if k not in held]


def monomial(algebra: Algebra, signal: Signal, kernel: int) -> MatchedMonomial:
    """The monomial behind one kernel of a signal.

    Raises:
        LookupError: the signal does not know how it was made.
    """
    net = _Walk(algebra).expand(signal, kernel)
    found = MatchedMonomial(
        [TensorFactor(name, tuple(map(net.root, classes))) for name, classes in net.leaves],
        net.pairs,
        net.scalars,
        [algebra.value(x.size) for x in net.scalars],
        [_inner(tag, map(net.root, classes)) for tag, classes in net.inner],
        net.choices,
        opens=tuple(map(net.root, net.opens)),
    )
    found.indices = _indices(algebra, net, found)
    found.contracted = _contracted(algebra, net)
    return found


def _inner(tag: str, classes: Iterable[int]) -> Inner:
    where, _, tensor = tag.partition(" ")
    return Inner(where, tensor, tuple(dict.fromkeys(classes)))


def _contracted(algebra: Algebra, net: _Net) -> Contracted:
    roots = [net.joined(c) for c in range(len(net.letters))]
    used: dict[str, int] = {}
    names: dict[int, str] = {}
    for c in dict.fromkeys([*(roots[c] for c in net.opens), *roots]):
        letter = net.letters[c]
        names[c] = letter + "'" * used.get(letter, 0)
        used[letter] = used.get(letter, 0) + 1
    return Contracted(
        tuple((role, tuple(names[roots[c]] for c in classes)) for role, classes in net.leaves),
        tuple(names[roots[c]] for c in net.opens),
        {name: algebra.rate(algebra.letters[net.letters[c]]) for c, name in names.items()},
    )


def _indices(algebra: Algebra, net: _Net, m: MatchedMonomial) -> dict[int, Index]:
    free = [k for k in m.unmatched() if not m.factors[k].tensor.startswith(INDICATOR)]
    roots = list(dict.fromkeys([*m.opens, *(net.root(c) for c in range(len(net.letters)))]))
    used: dict[str, int] = {}
    found = {}
    for c in roots:
        letter = net.letters[c]
        axis = algebra.letters[letter]
        touched = tuple(k for k in free if c in m.factors[k].classes)
        open_weight = Fraction(1 - m.opens.count(c), 2)
        weight = open_weight if c in m.opens else Fraction(1, 2) if touched else Fraction(1)
        merged = sum(net.root(d) == c for d in range(len(net.letters)))
        found[c] = Index(letter + "'" * used.get(letter, 0), axis, weight, algebra.rate(axis), touched, merged)
        used[letter] = used.get(letter, 0) + 1
    return found


class _Net:
    """A monomial under construction: classes are numbered as they appear and merged by union-find."""

    def __init__(self, active: frozenset[str]) -> None:
        self.active = active
        """Letters of the experts that a token sees."""
        self.letters: list[str] = []
        self.parent: list[int] = []
        self.joins: list[tuple[int, int]] = []  # by contraction alone
        self.opens: list[int] = []
        self.leaves: list[Leaf] = []
        self.pairs: list[Pair] = []
        self.scalars: list[Scalar] = []
        self.inner: list[tuple[str, list[int]]] = []
        self.choices: list[Choice] = []

    def root(self, c: int) -> int:
        while self.parent[c] != c:
            c = self.parent[c]
        return c

    def joined(self, c: int) -> int:
        """The smallest class that contractions alone identify with this one."""
        group, grown = {c}, True
        while grown:
            more = {x for pair in self.joins if group & set(pair) for x in pair} - group
            group, grown = group | more, bool(more)
        return min(group)

    def merge(self, c: int, d: int) -> None:
        c, d = sorted((self.root(c), self.root(d)))
        self.parent[d] = c
        if self.letters[d] in self.active:  # of all experts, those of the token
            self.letters[c] = self.letters[d]

    def fresh(self, letters: str) -> None:
        self.letters = list(letters)
        self.opens = list(range(len(letters)))
        self.parent = list(range(len(letters)))

    def kernel(self, algebra: Algebra) -> tuple[Kernel, dict[Leaf, int]]:
        """What is left unmatched as a kernel, and the position of each of its leaves."""
        held = {k for pair in self.pairs for k in (pair.left, pair.right)}
        opens = [self.root(c) for c in self.opens]
        free = {k: (n, tuple(map(self.root, cs))) for k, (n, cs) in enumerate(self.leaves) if k not in held}
        real = {k: leaf for k, leaf in free.items() if not leaf[0].startswith(INDICATOR)}
        live = list(dict.fromkeys([*opens, *(c for _, cs in real.values() for c in cs)]))
        number = {c: k for k, c in enumerate(live)}
        position: dict[Leaf, int] = {}
        for k, (name, classes) in free.items():
            if all(c in number for c in classes):
                position.setdefault((name, tuple(number[c] for c in classes)), k)
        types = tuple(algebra.letters[self.letters[c]] for c in live)
        return Kernel(types, tuple(number[c] for c in opens), tuple(position)), position


class _Walk:
    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.active = frozenset(x for x, axis in algebra.letters.items() if axis == "K")

    def expand(self, s: Signal, k: int) -> _Net:
        made = s.made
        if made is None:
            raise LookupError(f"{s.name or 'a signal'} does not know how it was made")
        if made.rule == "product":
            return self._product(s, k)
        if made.rule in ("tensor", "constant"):
            net = _Net(self.active)
            net.fresh(s.letters)
            for name, classes in self.algebra.kernel(k).leaves:
                net.leaves.append((name, classes))
                if s.terms[k]:
                    net.scalars.append(Scalar(f"std of {name}", s.terms[k]))
            return net
        if made.rule == "sum":
            chosen = next(j for j, part in enumerate(made.parts) if part.terms.get(k) == s.terms[k])
            net = self.expand(made.parts[chosen], k)
            if s.name:
                parts = tuple((part.name or "?", self._exponent(part)) for part in made.parts)
                net.choices.insert(0, Choice(s.name, parts, chosen))
            return net
        if made.rule == "restricted":
            (whole,) = made.parts
            at = next(n for n, x in enumerate(whole.letters) if x != s.letters[n])
            to = s.letters[at]
            origin = (c for c, e in whole.terms.items() if e == s.terms[k] and self.algebra.retyped(c, at, to) == k)
            net = self.expand(whole, next(origin))
            net.letters[net.root(net.opens[at])] = to
            return net
        if made.rule == "doubted":
            k = next(c for c in made.parts[0].terms if k in (c, self.algebra.with_doubt(c)))
        net = self.expand(made.parts[0], k)
        net.scalars = [*made.scalars, *net.scalars]
        return net

    def _exponent(self, s: Signal) -> Fraction | None:
        size = self.algebra.rms(s)
        return None if size is None else self.algebra.value(size)

    def _product(self, s: Signal, k: int) -> _Net:
        assert s.made is not None
        a, b = s.made.parts
        ka, kb, matching = self.algebra.origin(s, k)
        left, right = self.expand(a, ka), self.expand(b, kb)
        kernel_a, at_a = left.kernel(self.algebra)
        kernel_b, at_b = right.kernel(self.algebra)
        contraction = self.algebra.contraction(a.letters, b.letters, s.letters)
        match = matching(kernel_a, kernel_b)

        net, shift, moved = _Net(self.active), len(left.letters), len(left.leaves)
        net.letters = left.letters + right.letters
        net.parent = left.parent + [c + shift for c in right.parent]
        net.joins = left.joins + [(c + shift, d + shift) for c, d in right.joins]
        net.leaves = left.leaves + [(name, tuple(c + shift for c in classes)) for name, classes in right.leaves]
        net.pairs = left.pairs + [Pair(p.left + moved, p.right + moved, p.where) for p in right.pairs]
        net.scalars = left.scalars + right.scalars
        net.inner = left.inner + [(tag, [c + shift for c in classes]) for tag, classes in right.inner]
        net.choices = left.choices + right.choices

        first: dict[int, int] = {}
        opened = left.opens + [c + shift for c in right.opens]
        for label, c in zip((*contraction.left, *contraction.right), opened, strict=True):
            net.merge(first.setdefault(label, c), c)
            net.joins.append((first[label], c))
        net.opens = [first[label] for label in contraction.out]
        if s.made.tag:
            net.inner.append((s.made.tag, [first[label] for label in contraction.summed]))
        size = len(kernel_a.types)
        for x, y in match.pairs:
            j = at_a[x]
            i = at_b[y[0], tuple(c - size for c in y[1])] + moved
            for c, d in zip(net.leaves[j][1], net.leaves[i][1], strict=True):
                net.merge(c, d)
            net.pairs.append(Pair(j, i, s.made.tag.partition(" ")[0]))
        return net
