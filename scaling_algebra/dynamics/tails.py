"""The tails of a signal: the degree of the polynomial in Gaussians that its entries are, at most.

Sums over an index that grows are Gaussian, bounded functions have no tails, no function but exp grows faster than its
argument or has slopes that are not bounded. e to the power of degree one has all moments, of degree two or more none
for generic constants. A factor that does not vary along a summed index is as it was: v_i of sum_a U_ba u_a v_i.
Read next: ``rules.py`` (asks it of what a softmax along an index that grows reads).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

from scaling_algebra.spec.networks.ancestors import find_tensors
from scaling_algebra.spec.networks.language import Factor, Function, Network, Product, Statement
from scaling_algebra.spec.optimizers import OptimizerSpec

STEEP = 16
"""The degree of e to the power of a Gaussian: above all of which e to the power has a second moment."""
Monomial = frozenset[tuple[frozenset[str], int]]
"""Independent factors: the indices that grow which one varies with, and its degree."""
Monomials = frozenset[Monomial]
"""What a signal is a sum of."""
PLAIN: Monomials = frozenset({Monomial()})


class Tails:
    """Degrees of the signals of a run, each found once.

    Args:
        grows: does what an index runs over grow?
    """

    def __init__(self, network: Network, optimizer: OptimizerSpec, grows: Callable[[str], bool]) -> None:
        self._network, self._optimizer, self._grows = network, optimizer, grows
        self._found: dict[tuple[str, str, int], Monomials] = {}

    def initial(self, signal: str) -> int:
        """The degree of a signal before training."""
        return _degree(self._once("initial", signal, 0, self._initial))

    def change(self, signal: str, t: int) -> int:
        """The degree of the change of a signal after t updates.

        Law: a change is along the gradient where nothing bounds a step, and a square that is summed over an index that
        grows is its mean.
        """
        return _degree(self._once("change", signal, t, self._change))

    def _once(self, what: str, signal: str, t: int, compute: Callable[[str, int], Monomials]) -> Monomials:
        key = what, signal, t
        if key not in self._found:
            self._found[key] = compute(signal, t)
        return self._found[key]

    def _read(self, what: str, x: Factor, t: int) -> Monomials:
        """What a factor of an equation is, in its letters there."""
        compute = {"initial": self._initial, "change": self._change}[what]
        return _renamed(self._once(what, x.name, t, compute), self._network.signals[x.name], x.indices)

    def _initial(self, signal: str, t: int) -> Monomials:
        s, indices = self._network.producer(signal), self._network.signals[signal]
        if s is None:
            return self._one(indices, 1) if self._growing(indices) else PLAIN
        if (own := self._of_function(s)) is not None:
            return own
        read = [self._read("initial", x, 0) for x in s.inputs]
        if not isinstance(s, Product):
            return frozenset[Monomial]().union(*read)
        return self._sum(s, indices, read) | self._tied(s, self.initial)

    def _change(self, signal: str, t: int) -> Monomials:
        s, indices = self._network.producer(signal), self._network.signals[signal]
        if s is None:
            return PLAIN
        if (own := self._of_function(s)) is not None:
            return own
        moved = [self._read("change", x, t) for x in s.inputs]
        if not isinstance(s, Product):
            return frozenset[Monomial]().union(*moved)
        first, changes = [self._read("initial", x, 0) for x in s.factors], PLAIN
        for k, x in enumerate(s.factors):
            if self._network.producer(x.name):
                changes |= self._sum(s, indices, [*first[:k], moved[k], *first[k + 1 :]], t)
        if s.tensor and self._optimizer.of(s.tensor.name).normalises != "entry":
            acted = [x for x, y in zip(first, s.factors, strict=True) if not self._growing(y.indices) - set(indices)]
            gradient = self._once("gradient", signal, t, self._gradient)
            changes |= frozenset(map(_product, product(gradient, *acted, *acted)))
        return changes | self._tied(s, lambda x: self.change(x, t))

    def _gradient(self, signal: str, t: int) -> Monomials:
        paths = PLAIN
        for s, k in self._network.consumers(signal):
            above = self._once("gradient", s.out, t, self._gradient)
            if isinstance(s, Function) and s.kind.steep:
                above = self._one(self._network.signals[s.out], STEEP)
            if isinstance(s, Product):
                others = [above if j == k else self._read("initial", x, 0) for j, x in enumerate(s.factors)]
                above = self._sum(s, s.factors[k].indices, others, t)
            paths |= _renamed(above, s.inputs[k].indices, self._network.signals[signal])
        return paths

    def _tied(self, s: Product, degree: Callable[[str], int]) -> Monomials:
        """The part of W^T W h along h, where a tensor acts on what it was a part of."""
        if not s.tensor or not any(s.tensor.name in find_tensors(self._network, x.name) for x in s.factors):
            return frozenset()
        before, todo = set[str](), [x.name for x in s.factors]
        while todo:
            if (x := todo.pop()) not in before:
                before.add(x)
                producer = self._network.producer(x)
                todo += [y.name for y in producer.inputs] if producer else []
        return self._one(self._network.signals[s.out], max(map(degree, before)))

    def _sum(self, s: Product, out: str, operands: Iterable[Monomials], t: int = 1) -> Monomials:
        """A product that sums the letters its output lacks; what a tensor learnt has a degree, too."""
        tensor = [self._one(s.tensor.indices, min(t, 2))] if s.tensor else []
        return frozenset(self._summed(_product(x), out) for x in product(*operands, *tensor))

    def _summed(self, x: Monomial, out: str) -> Monomial:
        summed = {indices for indices, _ in x if not indices <= set(out)}
        sums = [(frozenset[str]().union(*summed) & set(out), 1)] if summed else []
        return _product([frozenset(part for part in x if part[0] not in summed), frozenset(sums)])

    def _of_function(self, s: Statement) -> Monomials | None:
        """Of a function whose values do not have the degree of its argument."""
        if not isinstance(s, Function):
            return None
        indices = self._network.signals[s.out]
        if s.source is None:
            return self._one(indices, 1)
        if s.kind.steep or (s.kind.kind == "softmax" and self._growing(s.over)):
            return self._one(indices, STEEP)
        return PLAIN if s.kind.bounded else None

    def _one(self, indices: str, degree: int) -> Monomials:
        return frozenset({frozenset({(self._growing(indices), degree)})})

    def _growing(self, indices: str) -> frozenset[str]:
        return frozenset(filter(self._grows, indices))


def _degree(monomials: Monomials) -> int:
    return max(sum(degree for _, degree in x) for x in monomials)


def _product(factors: Iterable[Monomial]) -> Monomial:
    degrees = Counter[frozenset[str]]()
    for x in factors:
        degrees.update(dict(x))
    return frozenset((indices, min(degree, STEEP)) for indices, degree in degrees.items())


def _renamed(monomials: Monomials, old: str, new: str) -> Monomials:
    to = dict(zip(old, new, strict=True))
    return frozenset(frozenset((frozenset(to[c] for c in indices), d) for indices, d in x) for x in monomials)
