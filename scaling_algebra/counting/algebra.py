"""Arithmetic of signals: exact exponents of sums and products of Gaussian tensor networks, on one ray.

Read next: ``sizes.py`` and ``store.py`` (the base classes), ``kernels.py`` (the product of two Wick monomials).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from .contracting import multiply_signals
from .kernels import CONSTANT, INDICATOR, Exhausted, Kernel, leaf_kernel, parent_axis
from .signals import Provenance, Scalar, Signal, larger_size
from .sizes import SignalSizes


class Algebra(SignalSizes):
    """Creates, adds and multiplies signals on one ray. A signal is a random tensor, written as a sum of products of
    initial Gaussian tensors (monomials). The arguments of the constructor are those of ``KernelStore``.
    """

    def tensor(self, name: str, indices: str, exponent: int, along: str | None = None) -> Signal:
        """Creates a signal that is a single initial Gaussian tensor.

        Args:
            name: name of the tensor.
            indices: its indices.
            exponent: exponent of the std of its entries, packed into an integer (``packing.py``).
            along: the indices along which it varies; by default all. A tensor that all experts share is constant along
                the expert index.
        """
        live = self.drop_fixed(indices)
        varying = self.drop_fixed(indices if along is None else along)
        kernel = leaf_kernel(name, [self.indices[x] for x in live], [live.index(x) for x in varying])
        depends_on = None if name.startswith(INDICATOR) else self.tensor_bit(name)
        s = Signal(live, {self.intern(kernel): exponent}, None, varying, "", Provenance("tensor"))
        return s.replace(constant_along=frozenset(live) - frozenset(varying), depends_on=depends_on)

    def constant(self, indices: str, exponent: int = 0) -> Signal:
        """Creates a deterministic signal whose entries are all the same number n^e.

        Args:
            indices: its indices.
            exponent: the exponent e, packed into an integer.
        """
        live = self.drop_fixed(indices)
        kernel = Kernel(tuple(self.indices[x] for x in live), tuple(range(len(live))), ())
        s = Signal(live, {self.intern(kernel): exponent}, origin=Provenance("constant"), depends_on=0)
        return s.replace(constant_along=frozenset(live))

    def make_bounded(self, indices: str, size: int = 0) -> Signal:
        """Creates a signal of which nothing is known but an upper bound on its root-mean-square.

        Args:
            indices: its indices.
            size: the upper bound, as an exponent of n packed into an integer.
        """
        return Signal(self.drop_fixed(indices), {}, size, origin=Provenance("constant"))

    def make_fixed_numbers(self, name: str, indices: str) -> Signal:
        """Creates a deterministic signal whose entries are arbitrary fixed numbers of size 1, such as input data. They
        vary along each index."""
        live = self.drop_fixed(indices)
        if not live:
            return self.constant(live)
        kernel = leaf_kernel(f"{CONSTANT}{name})", [self.indices[x] for x in live], range(len(live)))
        return Signal(live, {self.intern(kernel): 0}, origin=Provenance("tensor"), depends_on=0)

    def zeros(self, indices: str) -> Signal:
        """Creates a signal that is exactly zero."""
        return Signal(self.drop_fixed(indices), {})

    def scale_by(self, s: Signal, *scalars: Scalar) -> Signal:
        """Multiplies a signal by deterministic factors."""
        exponent = sum(x.size for x in scalars)
        tail_bound = None if s.tail_bound is None else s.tail_bound + exponent
        terms = {k: e + exponent for k, e in s.terms.items()}
        certified = s.is_zero or (s.certified_divisors and all(x.certain for x in scalars))
        lower_bound, doubt_bound = (None if x is None else x + exponent for x in (s.lower_bound, s.doubt_bound))
        rest = {x: Algebra.scale_by(self, part, *scalars) for x, part in s.without_centred.items()}
        s = s.derive("scaled", *scalars, terms=terms, tail_bound=tail_bound, doubt_bound=doubt_bound)
        return s.replace(lower_bound=lower_bound, name="", certified_divisors=certified, without_centred=rest)

    def subtract_mean(self, s: Signal, index: str, ignoring: str = "") -> Signal:
        """Subtracts the mean over an index: ``s[a, i] - mean_i s[a, i]``.

        Monomials (products of Gaussian tensors) that are constant along the index vanish, all others keep their size.

        Law: let M be the number of entries along the index. Subtracting the mean is the projection P = I - 11^T/M of
        rank M - 1, which maps everything that is constant along the index to zero. The square of a Gaussian entry
        loses its mean and keeps its fluctuation, which has the same size. The square of a sign does not fluctuate, so
        if factors may stand for signs, only an upper bound on squares is known afterwards.

        Args:
            s: the signal.
            index: the index.
            ignoring: name of a tensor that counts as constant along the index, such as the 0/1 mask of a selection when
                the mean is over the selected entries; "" for none.

        Raises:
            ValueError: the signal does not have the index, or the algebra was created without the axis in
                ``centred_axes``.
        """
        if index not in s.indices:
            raise ValueError(
                f"cannot subtract a mean over {index!r}: the signal has only the indices {s.indices!r}; give {index!r} "
                "in `tracked`"
            )
        if parent_axis(self.indices[index]) not in self.centred_axes:
            raise ValueError(
                f"cannot subtract a mean over {index!r}: give its axis {self.indices[index]} in `centred_axes`"
            )
        if index in s.constant_along:
            return Signal(s.indices, {})
        at = s.indices.index(index)
        keep = {k: e for k, e in s.terms.items() if _varies_along(self.kernels[k], at, ignoring)}
        if s.may_be_signs:
            squares = [k for k in keep if _has_square(self.kernels[k], at)]
            keep |= {self.mark_doubt(k): keep.pop(k) - self.doubt_offset for k in squares}
        rest = {x: Algebra.subtract_mean(self, part, index, ignoring) for x, part in s.without_centred.items()}
        rest |= {} if ignoring else {index: Signal(s.indices, {})}
        return s.replace(lower_bound=None).derive("centred", terms=keep, name="", without_centred=rest)

    def restrict_index(self, s: Signal, index: str, to: str) -> Signal:
        """Returns a signal at a subset of its entries along an index, such as K of M experts. The subset must be chosen
        independently of the signal.

        Law: all entries along the index have the same distribution, so the root-mean-square over a subset is that
        over all of them; only later sums run over fewer entries.

        Args:
            s: the signal.
            index: the index.
            to: name of the index in the result; its axis is that of the subset, such as K.
        """
        if index not in s.indices:
            return s
        at, terms = s.indices.index(index), dict[int, int]()
        for k, e in s.terms.items():
            moved = self.replace_axis(k, at, to)
            terms[moved] = max(e, terms.get(moved, e))
        indices, constant = s.indices.replace(index, to), {to if x == index else x for x in s.constant_along}
        kept = {x: part for x, part in s.without_centred.items() if x != index}
        rest = {x: Algebra.restrict_index(self, part, index, to) for x, part in kept.items()}
        s = s.derive("restricted", indices=indices, terms=terms)
        return s.replace(constant_along=frozenset(constant), without_centred=rest)

    def rename_indices(self, s: Signal, old: str, new: str) -> Signal:
        """Renames the indices of a signal: the k-th index of ``old`` becomes the k-th of ``new``.

        Raises:
            ValueError: the indices do not correspond one to one, or belong to different axes.
        """
        if old == new:
            return s
        to = dict(zip(old, new, strict=False))
        if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
            raise ValueError(f"cannot rename the indices {old!r} to {new!r}: they must correspond one to one")
        for x, y in to.items():
            if self.axes.get(x) is None or self.axes.get(x) != self.axes.get(y):
                raise ValueError(f"cannot rename the index {x!r} to {y!r}: their axes differ, or {x!r} has none")
        if set(s.indices) - set(old):
            raise ValueError(f"cannot rename only the indices {old!r}: the signal has the indices {s.indices!r}")
        leaf_indices = None if s.leaf_indices is None else "".join(to[x] for x in s.leaf_indices)
        rest = {to[x]: Algebra.rename_indices(self, part, old, new) for x, part in s.without_centred.items()}
        indices = "".join(to[x] for x in s.indices)
        s = s.derive("relabelled", indices=indices, leaf_indices=leaf_indices, without_centred=rest)
        return s.replace(constant_along=frozenset(to[x] for x in s.constant_along))

    def add(self, signals: Iterable[Signal]) -> Signal:
        """Adds signals. If several contain the same monomial, its coefficient in the sum is the largest of theirs.

        Raises:
            ValueError: the signals have different indices.
        """
        parts = self._align_indices(signals)
        nonzero = [s for s in parts if not s.is_zero]
        if len(nonzero) <= 1:
            return (nonzero or parts)[0]
        terms, tail_bound, twice = dict[int, int](), None, set[int]()
        for s in nonzero:
            tail_bound = larger_size(tail_bound, s.tail_bound)
            for k, e in s.terms.items():
                if k not in terms or self.supersedes(k, e, terms[k]):
                    terms[k] = e
                elif self.exponent(terms[k]) == self.exponent(e):
                    twice.add(k)
        whole = Signal(nonzero[0].indices, terms, tail_bound, origin=Provenance("sum", tuple(nonzero)))
        whole.lower_bound = max((s.lower_bound for s in nonzero if s.lower_bound is not None), default=None)
        whole.doubt_bound = max((s.doubt_bound for s in nonzero if s.doubt_bound is not None), default=None)
        if twice and not twice.isdisjoint(self.find_leading(whole)):
            self.notes.add("generic-constants")
        centred = {x for s in nonzero for x in s.without_centred}
        whole.without_centred = {x: Algebra.add(self, [s.without_centred.get(x, s) for s in nonzero]) for x in centred}
        return self.prune(self.inherit_attributes(whole))

    def keep_largest(self, s: Signal, count: int) -> Signal:
        """Returns a signal with only the ``count`` largest monomials. The others are dropped, and ``tail_bound``, the
        upper bound on what was dropped, is raised to their size.
        """
        kept, rest = self.rank_kernels(s)[:count], self.rank_kernels(s)[count:]
        if not rest:
            return s
        tail_bound = larger_size(s.tail_bound, max(size for size, _, _ in rest))
        doubt = max((size for size, k, _ in rest if self.in_doubt[k]), default=None)
        terms = {k: e for _, k, e in kept}
        return s.replace(terms=terms, tail_bound=tail_bound, doubt_bound=larger_size(s.doubt_bound, doubt))

    def forget_centred(self, s: Signal) -> Signal:
        """Returns the same signal without the information which of its terms sum to zero over an index
        (``Signal.without_centred``). Its size stays the same.
        """
        return s.replace(without_centred={}) if s.without_centred else s

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        """Multiplies two signals. Indices of the same name are identified, and indices not in ``out`` are summed.

        Example: ``contract(W, x, "a")`` of ``W[a,b]`` and ``x[b]`` is the matrix product.

        Each monomial of ``a`` is multiplied by each of ``b``, the pair with the largest possible product first. If
        the product of a pair is smaller than the largest term by at least ``Budget.gap``, it is not computed; only an
        upper bound on its size is kept (``bound_product``). If all this takes too much work, the same is done for
        every pair whose product cannot exceed the largest term.

        Args:
            a: the left factor.
            b: the right factor.
            out: indices of the result.
            tag: label of the product for explanations (``Provenance.tag``).

        Raises:
            ValueError: ``out`` has an index that neither signal has.
            Exhausted: the product exceeds the budget.
        """
        out = self.drop_fixed(out)
        if a.is_zero or b.is_zero:
            return Signal(out, {})
        centred = a.without_centred or b.without_centred
        for x in sorted({*a.indices, *b.indices} - set(out)) if centred else "":
            # terms that sum to zero contribute only if the other factor varies along the index
            if x not in b.indices or x not in a.indices:
                a, b = a.without_centred.get(x, a), b.without_centred.get(x, b)
            elif x in a.without_centred and x not in (b.leaf_indices or ""):  # a tensor varies, and its norm is known
                return self._contract_centred(a, b, x, out, tag)
            elif x in b.without_centred and x not in (a.leaf_indices or ""):
                return self._contract_centred(b, a, x, out, tag)
        if a.is_zero or b.is_zero:
            return Signal(out, {})
        try:
            product = multiply_signals(self, a, b, out, tag, self._gap)
        except Exhausted:
            if self.budget.keeps_all:
                raise
            product = multiply_signals(self, a, b, out, tag, -self.slack_step)
        for one, other in ((a, b), (b, a)) if centred else ():
            kept = set(out) - (set(other.indices) - other.constant_along)
            for x, rest in one.without_centred.items():
                if x in kept:
                    part = Algebra.contract(self, rest, other, out, tag)
                    product.without_centred = {**product.without_centred, x: part}
        return product

    def _contract_centred(self, a: Signal, b: Signal, x: str, out: str, tag: str) -> Signal:
        """Multiplies two signals with a common summed index over which some terms of the first signal sum to zero.

        These terms are multiplied only by the part of the second signal that varies along the index, since its constant
        part contributes nothing. All other terms are multiplied by the whole second signal.

        Args:
            a: the signal in which some terms sum to zero over x.
            b: the other signal.
            x: the summed index.
            out: indices of the result.
            tag: label of the product for explanations.
        """
        factors = (a, self.subtract_mean(b, x))
        left, right = (
            s.replace(without_centred={y: rest for y, rest in s.without_centred.items() if y != x}) for s in factors
        )
        products = [Algebra.contract(self, left, right, out, tag)]
        if not a.without_centred[x].is_zero:
            products.append(Algebra.contract(self, a.without_centred[x], b, out, tag))
        return Algebra.add(self, products)

    def contract_all(self, signals: Sequence[Signal], out: str, tag: str = "") -> Signal:
        """Multiplies any number of signals. Indices of the same name are identified, and indices not in ``out`` are
        summed.

        Factors are multiplied in pairs: first constants, then an initial tensor and a signal that it acts on, since
        the operator norm of the tensor gives a good bound on dropped terms, then the pair whose product has the
        fewest entries. An index is summed as soon as no other factor has it.

        Raises:
            ValueError: there are no signals, or ``out`` has an index that none of them has.
        """
        pool = list(signals)
        if not pool:
            raise ValueError("a product needs factors; give at least one signal")
        if len(pool) == 1:
            return self.contract(pool[0], self.constant(""), out, tag)
        out = self.drop_fixed(out)
        while len(pool) > 2:
            i, j = min(combinations(range(len(pool)), 2), key=lambda pair: _rank_pair(self, pool, pair, out))
            pool[i] = self.contract(pool[i], pool[j], _remaining_indices(pool, i, j, out), tag)
            del pool[j]
        return self.contract(pool[0], pool[1], out, tag)

    def _align_indices(self, signals: Iterable[Signal]) -> list[Signal]:
        """Transposes signals so that each has its indices in the order of the first signal's."""
        parts = list(signals)
        indices = parts[0].indices
        for k, s in enumerate(parts):
            if s.indices != indices:
                if set(s.indices) != set(indices):
                    raise ValueError(f"cannot add signals with the indices {indices!r} and {s.indices!r}")
                parts[k] = self.contract(s, self.constant(""), indices).replace(name=s.name)
        return parts

    def is_deterministic(self, s: Signal) -> bool:
        """Tests whether a signal is known to contain no Gaussian tensor: no monomial has a tensor as a factor, and no
        term was dropped."""
        return s.tail_bound is None and not any(self.kernels[k].leaves for k in s.terms)


def _remaining_indices(pool: Sequence[Signal], i: int, j: int, out: str) -> str:
    """Returns those indices of the i-th and the j-th factor that the result (``out``) or another factor has. The others
    can be summed as soon as these two are multiplied."""
    rest = set(out).union(*(s.indices for k, s in enumerate(pool) if k not in (i, j)))
    return "".join(x for x in dict.fromkeys(pool[i].indices + pool[j].indices) if x in rest)


def _rank_pair(algebra: Algebra, pool: Sequence[Signal], pair: tuple[int, int], out: str) -> tuple[int, Fraction]:
    """Returns a sort key for a pair of factors in a product of several signals. The pair with the smallest key is
    multiplied first.

    Returns:
        A rank from 0 to 5 (0: two constants; 1: one constant; 2: an initial tensor and what it acts on; 3: factors
        with a common index; 4: two initial tensors; 5: others), and the exponent of n of the number of entries that
        the product has.
    """
    a, b = (pool[k] for k in pair)
    shared, kept = set(a.indices) & set(b.indices), _remaining_indices(pool, *pair, out)
    constants = sum(map(algebra.is_deterministic, (a, b)))
    leaves = [s.leaf_indices for s in (a, b) if s.leaf_indices is not None]
    acts = len(leaves) == 1 and bool((shared & set(leaves[0])) - set(kept))
    # 0: two constants; 1: one; 2: an initial tensor with what it acts on; 3: a shared index; 4: two tensors; 5: others
    rank = 0 if constants == 2 else 1 if constants and (acts or not leaves) else 2 if acts else 3
    if rank == 3 and (not shared or len(leaves) == 2):
        rank = 4 if shared else 5
    if kept not in algebra.dimensions:
        algebra.dimensions[kept] = sum((algebra.rate(algebra.indices[x]) for x in kept), Fraction(0))
    return rank, algebra.dimensions[kept]


def _has_square(kernel: Kernel, at: int) -> bool:
    """Tests whether a monomial contains a square, such as ``W[a,b] W[a,b]``, whose factors have the open index (index
    of the result) at position ``at``.
    """
    leaves = kernel.leaves_along(at)
    return len(set(leaves)) < len(leaves)


def _varies_along(kernel: Kernel, at: int, ignoring: str) -> bool:
    """Tests whether the value of a monomial depends on its open index (index of the result) at position ``at``.

    It does if a factor with another name than ``ignoring`` has this index, or if the index is part of a Kronecker
    delta.
    """
    c = kernel.open_classes[at]
    return kernel.open_classes.count(c) > 1 or any(c in classes and name != ignoring for name, classes in kernel.leaves)
