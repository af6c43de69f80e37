"""How heavy the tails of a signal's distribution are: each entry is represented by a polynomial in Gaussian variables,
and a bound on its degree is the measure.

``W x`` with an initial tensor W has degree 1, a product of two such signals degree 2. Sums over an index that grows are
Gaussian. Bounded functions have no tails, and no function but exp grows faster than its argument or has an unbounded
slope. If x has degree one, exp(x) has all moments; if x has a higher degree, exp(x) has none for generic constants. If
a product is summed over an index, a factor that does not vary along this index keeps its degree, as v_i does in
sum_a U_ba u_a v_i.
Read next: ``functions.py`` (uses it for the argument of exp, and of a softmax along an index that grows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

from scaling_algebra.spec.networks.ancestors import find_tensors
from scaling_algebra.spec.networks.language import Factor, Function, Network, Product, Statement
from scaling_algebra.spec.optimizers import OptimizerSpec

STEEP = 16
"""Degree assigned to exp of a Gaussian; it exceeds the degree of everything whose exp has a second moment."""
Monomial = frozenset[tuple[frozenset[str], int]]
"""A product of independent factors, each as (growing indices along which it varies, degree)."""
Monomials = frozenset[Monomial]
"""The terms of a signal."""
PLAIN: Monomials = frozenset({Monomial()})
"""A constant."""


class Tails:
    """Finds how heavy the tails of each signal of a training run are. The measure is the *degree*: an entry of the
    signal is represented by a polynomial of this degree in Gaussian variables.

    Args:
        network: the network.
        optimizer: the optimizer.
        grows: whether the axis of an index grows.
    """

    def __init__(self, network: Network, optimizer: OptimizerSpec, grows: Callable[[str], bool]) -> None:
        self._network, self._optimizer, self._grows = network, optimizer, grows
        self._found: dict[tuple[str, str, int], Monomials] = {}

    def initial_degree(self, signal: str) -> int:
        """Returns the degree of a signal before training, as a polynomial in Gaussians: 1 for ``W x``, 2 for a product
        of two such signals, and the large number ``STEEP`` for exp, whose tails no polynomial describes.
        """
        return _find_degree(self._compute_once("initial", signal, 0, self._initial))

    def change_degree(self, signal: str, t: int) -> int:
        """Returns the degree of the change of a signal after t updates, as a polynomial in Gaussians.

        Law: unless the optimizer normalises each entry of its steps, the change of ``W x`` contains the gradient times
        x^T x. If the sum x^T x runs over an index that grows, it is replaced by its mean and adds no degree.
        """
        return _find_degree(self._compute_once("change", signal, t, self._change))

    def _compute_once(self, what: str, signal: str, t: int, compute: Callable[[str, int], Monomials]) -> Monomials:
        key = what, signal, t
        if key not in self._found:
            self._found[key] = compute(signal, t)
        return self._found[key]

    def _read_factor(self, what: str, x: Factor, t: int) -> Monomials:
        """Returns the terms of a factor of an equation (see ``_initial``), with its indices renamed to those in this
        equation.

        Args:
            what: "initial" for the value before training, "change" for its change after t updates.
            x: the factor.
            t: number of updates.
        """
        compute = {"initial": self._initial, "change": self._change}[what]
        return _rename_indices(self._compute_once(what, x.name, t, compute), self._network.signals[x.name], x.indices)

    def _initial(self, signal: str, t: int) -> Monomials:
        """Returns the terms of a signal before training. A term is a product of independent factors, each a pair
        (growing indices along which it varies, degree in Gaussians)."""
        s, indices = self._network.producer(signal), self._network.signals[signal]
        if s is None:
            return self._make_monomial(indices, 1) if self._select_growing(indices) else PLAIN
        if (own := self._classify_function(s)) is not None:
            return own
        read = [self._read_factor("initial", x, 0) for x in s.inputs]
        if not isinstance(s, Product):
            return frozenset[Monomial]().union(*read)
        return self._multiply(s, indices, read) | self._find_tied_part(s, self.initial_degree)

    def _change(self, signal: str, t: int) -> Monomials:
        """Returns the terms of the change of a signal after t updates, each as a product of pairs (growing indices,
        degree in Gaussians)."""
        s, indices = self._network.producer(signal), self._network.signals[signal]
        if s is None:
            return PLAIN
        if (own := self._classify_function(s)) is not None:
            return own
        moved = [self._read_factor("change", x, t) for x in s.inputs]
        if not isinstance(s, Product):
            return frozenset[Monomial]().union(*moved)
        first, changes = [self._read_factor("initial", x, 0) for x in s.factors], PLAIN
        for k, x in enumerate(s.factors):
            if self._network.producer(x.name):
                changes |= self._multiply(s, indices, [*first[:k], moved[k], *first[k + 1 :]], t)
        if s.tensor and self._optimizer.of(s.tensor.name).normalises != "entry":
            acted = [
                x for x, y in zip(first, s.factors, strict=True) if not self._select_growing(y.indices) - set(indices)
            ]
            gradient = self._compute_once("gradient", signal, t, self._gradient)
            changes |= frozenset(map(_multiply_monomials, product(gradient, *acted, *acted)))
        return changes | self._find_tied_part(s, lambda x: self.change_degree(x, t))

    def _gradient(self, signal: str, t: int) -> Monomials:
        """Returns the terms of the gradient at a signal after t updates, each as a product of pairs (growing indices,
        degree in Gaussians)."""
        paths = PLAIN
        for s, k in self._network.consumers(signal):
            above = self._compute_once("gradient", s.out, t, self._gradient)
            if isinstance(s, Function) and s.kind.steep:
                above = self._make_monomial(self._network.signals[s.out], STEEP)
            if isinstance(s, Product):
                others = [above if j == k else self._read_factor("initial", x, 0) for j, x in enumerate(s.factors)]
                above = self._multiply(s, s.factors[k].indices, others, t)
            paths |= _rename_indices(above, s.inputs[k].indices, self._network.signals[signal])
        return paths

    def _find_tied_part(self, s: Product, degree: Callable[[str], int]) -> Monomials:
        """Returns an additional term for a product ``W x`` in which x itself depends on the tensor W, as in W W^T W h.
        The product then contains a multiple of an earlier signal such as h, so the term has the largest degree of all
        signals from which x is computed. Returns no terms if x does not depend on W.

        Args:
            s: the product.
            degree: returns the degree of a signal, given its name.
        """
        if not s.tensor or not any(s.tensor.name in find_tensors(self._network, x.name) for x in s.factors):
            return frozenset()
        before, todo = set[str](), [x.name for x in s.factors]
        while todo:
            if (x := todo.pop()) not in before:
                before.add(x)
                producer = self._network.producer(x)
                todo += [y.name for y in producer.inputs] if producer else []
        return self._make_monomial(self._network.signals[s.out], max(map(degree, before)))

    def _multiply(self, s: Product, out: str, operands: Iterable[Monomials], t: int = 1) -> Monomials:
        """Returns the terms of the output of a product, given those of its factors. If the statement has a tensor, this
        is multiplied as well. Indices that ``out`` does not have are summed.

        Args:
            s: the statement.
            out: indices of the result.
            operands: the terms of each factor.
            t: the degree of the tensor's entries, at most 2: 1 for the initial tensor, and in a change the number of
                updates.
        """
        tensor = [self._make_monomial(s.tensor.indices, min(t, 2))] if s.tensor else []
        return frozenset(self._sum_indices(_multiply_monomials(x), out) for x in product(*operands, *tensor))

    def _sum_indices(self, x: Monomial, out: str) -> Monomial:
        """Returns what a term becomes if it is summed over the indices that ``out`` does not have: one Gaussian
        replaces all factors that vary along them."""
        summed = {indices for indices, _ in x if not indices <= set(out)}
        sums = [(frozenset[str]().union(*summed) & set(out), 1)] if summed else []
        return _multiply_monomials([frozenset(part for part in x if part[0] not in summed), frozenset(sums)])

    def _classify_function(self, s: Statement) -> Monomials | None:
        """Returns the terms of a statement's output if they do not depend on the degree of its inputs: noise is
        Gaussian, bounded functions are constants, steep functions (exp, and softmax along an index that grows) have the
        degree ``STEEP``. Returns None for any other statement."""
        if not isinstance(s, Function):
            return None
        indices = self._network.signals[s.out]
        if s.source is None:
            return self._make_monomial(indices, 1)
        if s.kind.steep or (s.kind.kind == "softmax" and self._select_growing(s.over)):
            return self._make_monomial(indices, STEEP)
        return PLAIN if s.kind.bounded else None

    def _make_monomial(self, indices: str, degree: int) -> Monomials:
        """Returns a signal's terms if it has a single one: a polynomial of the given degree in Gaussians, which varies
        along those of the given indices that grow."""
        return frozenset({frozenset({(self._select_growing(indices), degree)})})

    def _select_growing(self, indices: str) -> frozenset[str]:
        """Returns those of the given indices whose axis grows."""
        return frozenset(filter(self._grows, indices))


def _find_degree(monomials: Monomials) -> int:
    """Returns the degree of a signal in Gaussians, given its terms: the largest degree of a term."""
    return max(sum(degree for _, degree in x) for x in monomials)


def _multiply_monomials(factors: Iterable[Monomial]) -> Monomial:
    """Returns the product of several terms as one term. Degrees of factors that vary along the same indices are added,
    up to ``STEEP`` at most."""
    degrees = Counter[frozenset[str]]()
    for x in factors:
        degrees.update(dict(x))
    return frozenset((indices, min(degree, STEEP)) for indices, degree in degrees.items())


def _rename_indices(monomials: Monomials, old: str, new: str) -> Monomials:
    """Renames the indices in the terms of a signal: the k-th index of ``old`` becomes the k-th of ``new``."""
    to = dict(zip(old, new, strict=True))
    return frozenset(frozenset((frozenset(to[c] for c in indices), d) for indices, d in x) for x in monomials)
