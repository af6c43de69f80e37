"""Reconstructs the monomial behind an exponent: the product of initial tensors that leads in a signal.

The engine represents a signal by terms. The key of each is a kernel, which has only those initial tensors that are
not yet paired with a copy of themselves. Every signal records how it was computed (``signals.Provenance``), and every
product records which pairs gave a term. Following these records back to the start gives the whole product of initial
tensors. Its exponent is the sum of the exponents of its scalars, and over all indices of weight times exponent of the
dimension (``MatchedMonomial.exponent``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.canonical import Leaf
from scaling_algebra.counting.contracting import find_origin
from scaling_algebra.counting.kernels import INDICATOR, Kernel, keep_indicators
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.spec.axes import describe_axis
from scaling_algebra.spec.powers import Power


@dataclass(frozen=True)
class TensorFactor:
    """An initial tensor in a monomial.

    Attributes:
        tensor: its role.
        classes: its indices, by the numbers that they have in ``MatchedMonomial.indices``.
    """

    tensor: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """Two factors of a monomial that are matched: the same random tensor with equal indices, so that their product does
    not average out.

    Attributes:
        left: position of the first factor.
        right: position of the second factor.
        where: the product in which they were matched: ``forward`` (the inner product <x', x> of a rank-one update with
            its input), ``backward`` (of a transposed update with a gradient), or empty (any other product).
    """

    left: int
    right: int
    where: str


@dataclass(frozen=True)
class Inner:
    """The inner product of a rank-one update with the signal or gradient on which it acts.

    Attributes:
        where: ``forward`` for a signal, ``backward`` for a gradient.
        tensor: the updated tensor.
        classes: the indices that are summed over, by their numbers in ``MatchedMonomial.indices``.
    """

    where: str
    tensor: str
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """A sum of signals through which a monomial is computed, with the summand from which the monomial comes.

    Attributes:
        name: the signal that is the sum.
        parts: the summands with their exponents.
        chosen: position of the summand from which the monomial comes, which is the largest one.
    """

    name: str
    parts: tuple[tuple[str, Fraction | None], ...]
    chosen: int


@dataclass(frozen=True)
class Index:
    """An index of a monomial. It stands for all indices of the monomial's factors that are equal, since they are
    summed together or belong to a ``Pair``.

    Attributes:
        name: the name of the index, with primes: ``k'``.
        axis: the axis that it runs over.
        weight: 1 if all factors that have it are in a ``Pair`` (coherent sum, LLN), 1/2 if one of them is unmatched,
            that is, in no ``Pair`` (random sum, CLT), 0 if it is open (not summed over), and 1/2 less for each
            further open index that equals it.
        rate: exponent of its dimension.
        touched: positions of the unmatched factors that have it.
    """

    name: str
    axis: str
    weight: Fraction
    rate: Fraction
    touched: tuple[int, ...]

    @property
    def gives(self) -> Power:
        """The factor that the sum over this index contributes to the size: its dimension to the power ``weight``."""
        return Power.of({self.axis: self.weight})

    @property
    def text(self) -> str:
        """The axis in words: ``width N``."""
        return f"{describe_axis(self.axis)} {self.axis}" if describe_axis(self.axis) != self.axis else self.axis


@dataclass(frozen=True)
class Contracted:
    """A product of initial tensors whose summed indices are set equal. Which factors are paired (``Pair``) is not
    decided yet.

    Attributes:
        factors: (role, index names) of every factor, in the order of the monomial's factors.
        opens: names of the open indices, which are not summed over.
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
    """A product of initial tensors and deterministic factors, with which of its indices are summed over, and which of
    its factors are paired because they are the same random tensor.

    Attributes:
        factors: the initial tensors.
        pairs: the matched factors, two by two.
        scalars: the deterministic factors, including the std of every initial tensor.
        sizes: exponent of each scalar.
        inner: inner products of rank-one updates.
        choices: sums of signals through which the monomial is computed, each with the summand from which it comes.
        indices: every index, by the number that factors use for it.
        opens: number of each open index, which is not summed over.
        contracted: the same product without pairs: indices are equal only where they are summed together.
    """

    factors: list[TensorFactor]
    pairs: list[Pair]
    scalars: list[Scalar]
    sizes: list[Fraction]
    inner: list[Inner]
    choices: list[Choice]
    indices: dict[int, Index]
    opens: tuple[int, ...]
    contracted: Contracted

    @property
    def exponent(self) -> Fraction:
        """The exponent of n in the size of the monomial.

        Law: exponents of the scalars + sum over indices of weight times exponent of the dimension (the half-weight
        rule).
        """
        return sum(self.sizes, Fraction(0)) + sum((i.weight * i.rate for i in self.indices.values()), Fraction(0))

    def names(self, k: int) -> list[str]:
        """Returns the names of the indices of a factor."""
        return [self.indices[c].name for c in self.factors[k].classes]


def monomial(algebra: Algebra, signal: Signal, kernel: int) -> MatchedMonomial:
    """Reconstructs one term of a signal as a product of initial tensors, from the records of the computation.

    Args:
        algebra: the algebra that computed the signal.
        signal: the signal.
        kernel: key of the term in ``signal.terms``.

    Raises:
        LookupError: the signal has no record of how it was made.
    """
    net = _Walk(algebra).expand(signal, kernel)
    factors = [TensorFactor(name, tuple(map(net.root, classes))) for name, classes in net.factors]
    opens = tuple(map(net.root, net.opens))
    free = [k for k in net.find_unmatched() if not factors[k].tensor.startswith(INDICATOR)]
    index_of = {}
    for c, name in _name_classes(net.indices, [*opens, *map(net.root, range(len(net.indices)))]).items():
        touched = tuple(k for k in free if c in factors[k].classes)
        weight = Fraction(1 - opens.count(c), 2) if c in opens else Fraction(1, 2) if touched else Fraction(1)
        axis = algebra.indices[net.indices[c]]
        index_of[c] = Index(name, axis, weight, algebra.rate(axis), touched)
    inner = []
    for tag, classes in net.inner:
        where, _, tensor = tag.partition(" ")
        inner.append(Inner(where, tensor, tuple(dict.fromkeys(map(net.root, classes)))))
    sizes = [algebra.exponent(x.size) for x in net.scalars]
    before = _network_before_matching(algebra, net)
    return MatchedMonomial(factors, net.pairs, net.scalars, sizes, inner, net.choices, index_of, opens, before)


def _network_before_matching(algebra: Algebra, net: _Net) -> Contracted:
    """Returns the product of initial tensors in which indices are equal only where they are summed together, and not
    because two factors are paired.
    """
    roots = [_root(net.joined, c) for c in range(len(net.indices))]
    opens = [roots[c] for c in net.opens]
    names = _name_classes(net.indices, [*opens, *roots])
    return Contracted(
        tuple((role, tuple(names[roots[c]] for c in classes)) for role, classes in net.factors),
        tuple(names[c] for c in opens),
        {name: algebra.rate(algebra.indices[net.indices[c]]) for c, name in names.items()},
    )


def _name_classes(indices: Sequence[str], classes: Iterable[int]) -> dict[int, str]:
    """Names each class of equal indices by one of them, with primes where two classes would have the same name: ``k'``.

    Args:
        indices: name of every index.
        classes: the classes, each by the position of one of its indices.
    """
    used: Counter[str] = Counter()
    names = {}
    for c in dict.fromkeys(classes):
        names[c] = indices[c] + "'" * used[indices[c]]
        used[indices[c]] += 1
    return names


def _root(parent: Sequence[int], c: int) -> int:
    """Follows parents in a union-find forest from ``c`` up to the root, which represents its class."""
    while parent[c] != c:
        c = parent[c]
    return c


@dataclass
class _Net:
    """A monomial under construction. Its indices are numbered as they appear, and classes of equal ones are merged by
    union-find.

    Attributes:
        parent: union-find parents of the indices, where two are equal if they are summed together or belong to paired
            factors.
        joined: union-find parents of the indices, where two are equal only if they are summed together.
        opens: number of each open index, which is not summed over.
        factors: the initial tensors with the numbers of their indices.
        pairs: the matched factors, two by two.
        scalars: the deterministic factors.
        inner: inner products of rank-one updates, with the numbers of the indices that they sum over.
        choices: sums of signals through which the monomial is computed, each with the summand from which it comes.
    """

    indices: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    opens: list[int] = field(default_factory=list)
    factors: list[Leaf] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    scalars: list[Scalar] = field(default_factory=list)
    inner: list[tuple[str, list[int]]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)

    def root(self, c: int) -> int:
        return _root(self.parent, c)

    def find_unmatched(self) -> list[int]:
        """Returns the positions of the factors that are in no ``Pair``."""
        held = {k for pair in self.pairs for k in (pair.left, pair.right)}
        return [k for k in range(len(self.factors)) if k not in held]

    def beside(self, other: _Net) -> _Net:
        """Returns the outer product of this monomial and ``other``."""
        shift, moved = len(self.indices), len(self.factors)
        return _Net(
            self.indices + other.indices,
            self.parent + [c + shift for c in other.parent],
            self.joined + [c + shift for c in other.joined],
            self.opens + [c + shift for c in other.opens],
            self.factors + [(name, tuple(c + shift for c in classes)) for name, classes in other.factors],
            self.pairs + [Pair(p.left + moved, p.right + moved, p.where) for p in other.pairs],
            self.scalars + other.scalars,
            self.inner + [(tag, [c + shift for c in classes]) for tag, classes in other.inner],
            self.choices + other.choices,
        )

    def kernel(self, algebra: Algebra) -> tuple[Kernel, dict[Leaf, list[int]]]:
        """Returns the canonical form (kernel) of the product of all factors that are in no ``Pair``.

        The second result maps each factor of the kernel to its positions in this monomial. A 0/1 mask that selects
        experts has the position -1.
        """
        opens = [self.root(c) for c in self.opens]
        free = {k: (self.factors[k][0], tuple(map(self.root, self.factors[k][1]))) for k in self.find_unmatched()}
        touched = (c for name, classes in free.values() if not name.startswith(INDICATOR) for c in classes)
        live = list(dict.fromkeys([*opens, *touched]))
        number = {c: k for k, c in enumerate(live)}
        position: dict[Leaf, list[int]] = {}
        marks = [leaf for leaf in free.values() if leaf[0].startswith(INDICATOR)]
        for name, classes in keep_indicators(marks, set(live)):
            position.setdefault((name, tuple(number[c] for c in classes)), []).append(-1)
        for k, (name, classes) in free.items():
            if not name.startswith(INDICATOR):
                position.setdefault((name, tuple(number[c] for c in classes)), []).append(k)
        types = tuple(algebra.indices[self.indices[c]] for c in live)
        factors = tuple(factor for factor, places in position.items() for _ in places)
        return Kernel(types, tuple(number[c] for c in opens), factors), position


class _Walk:
    """Expands a term of a signal into the product of initial tensors from which it was computed.

    It follows the records that every signal has of its computation back to the initial tensors.

    Attributes:
        algebra: the algebra of the run.
        active: indices that run over the active experts of a token.
    """

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.active = frozenset(x for x, axis in algebra.indices.items() if axis == "K")

    def expand(self, s: Signal, k: int) -> _Net:
        """Expands the term of a signal with key ``k`` in ``s.terms`` into a product of initial tensors.

        Raises:
            LookupError: the signal has no record of how it was made.
        """
        step = s.origin
        if step is None:
            raise LookupError(f"{s.name or 'a signal'} was computed without a record of its factors")
        if step.rule == "product":
            return self._product(s, k)
        if step.rule in ("tensor", "constant"):
            each, factors = list(range(len(s.indices))), list(self.algebra.kernel(k).leaves)
            scalars = [Scalar(f"std of {name}", s.terms[k]) for name, _ in factors if s.terms[k]]
            return _Net(list(s.indices), [*each], [*each], [*each], factors, scalars=scalars)
        if step.rule == "sum":
            chosen = next(j for j, part in enumerate(step.operands) if part.terms.get(k) == s.terms[k])
            net = self.expand(step.operands[chosen], k)
            if s.name and any(part.name for part in step.operands):  # powers of a function have no names
                parts = tuple((part.name or "?", self._exponent(part)) for part in step.operands)
                net.choices.insert(0, Choice(s.name, parts, chosen))
            return net
        (whole,) = step.operands
        if step.rule == "restricted":
            at = next(n for n, x in enumerate(whole.indices) if x != s.indices[n])
            to = s.indices[at]
            origin = (
                c for c, e in whole.terms.items() if e == s.terms[k] and self.algebra.replace_axis(c, at, to) == k
            )
            net = self.expand(whole, next(origin))
            net.indices[net.root(net.opens[at])] = to
            return net
        if step.rule in ("doubted", "centred"):
            k = next(c for c in whole.terms if k in (c, self.algebra.mark_doubt(c)))
        net = self.expand(whole, k)
        net.scalars = [*step.scalars, *net.scalars]
        return net

    def _exponent(self, s: Signal) -> Fraction | None:
        size = self.algebra.rms(s)
        return None if size is None else self.algebra.exponent(size)

    def _merge(self, net: _Net, c: int, d: int) -> None:
        """Merges the classes of equal indices that contain ``c`` and ``d``.

        If one index runs over the active experts and the other over all, the class runs over the active ones.
        """
        c, d = sorted((net.root(c), net.root(d)))
        net.parent[d] = c
        if net.indices[d] in self.active:  # an index of active experts
            net.indices[c] = net.indices[d]

    def _product(self, s: Signal, k: int) -> _Net:
        """Expands the term with key ``k`` of a signal that is a product of two signals.

        Both signals are expanded, the indices that the product sums are set equal, and the same initial tensors are
        paired as when the product was computed.
        """
        assert s.origin is not None
        a, b = s.origin.operands
        ka, kb, matching = find_origin(self.algebra, s, k)
        left, right = self.expand(a, ka), self.expand(b, kb)
        kernel_a, at_a = left.kernel(self.algebra)
        kernel_b, at_b = right.kernel(self.algebra)
        contraction = self.algebra.contraction(a.indices, b.indices, s.indices)
        match = matching(kernel_a, kernel_b)
        net = left.beside(right)
        first: dict[int, int] = {}
        for label, c in zip((*contraction.left, *contraction.right), net.opens, strict=True):
            old = first.setdefault(label, c)
            self._merge(net, old, c)
            one, two = sorted((_root(net.joined, old), _root(net.joined, c)))
            net.joined[two] = one
        net.opens = [first[label] for label in contraction.out]
        if s.origin.tag:
            net.inner.append((s.origin.tag, [first[label] for label in contraction.summed_labels]))
        size, moved = len(kernel_a.class_axes), len(left.factors)
        for x, y in match.pairs:
            j = at_a[x].pop(0)
            i = at_b[y[0], tuple(c - size for c in y[1])].pop(0) + moved
            for c, d in zip(net.factors[j][1], net.factors[i][1], strict=True):
                self._merge(net, c, d)
            net.pairs.append(Pair(j, i, s.origin.tag.partition(" ")[0]))
        return net
