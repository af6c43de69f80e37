"""Arithmetic of signals: exact exponents of sums of Gaussian tensor networks, on one ray.

Read next: ``sizes.py`` and ``store.py`` (the base classes), ``kernels.py`` (the product of two kernels).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from .contracting import multiply_signals
from .kernels import CONSTANT, INDICATOR, Exhausted, Kernel, leaf_kernel, population
from .signals import Provenance, Scalar, Signal, larger_size
from .sizes import SignalSizes


class Algebra(SignalSizes):
    """Arithmetic of signals on one ray; ``KernelStore`` describes its arguments."""

    def tensor(self, name: str, indices: str, exponent: int, along: str | None = None) -> Signal:
        """Returns the signal of an initial tensor.

        Args:
            name: its name.
            indices: its indices.
            exponent: packed size of its entries.
            indices: the indices along which it varies; by default all. A tensor that all experts share is constant
                along the expert index.
        """
        live = self.live(indices)
        varying = self.live(indices if along is None else along)
        kernel = leaf_kernel(name, [self.indices[x] for x in live], [live.index(x) for x in varying])
        flat = frozenset(live) - frozenset(varying)
        depends = None if name.startswith(INDICATOR) else self.tensor_bit(name)
        return Signal(
            live, {self.intern(kernel): exponent}, None, varying, made=Provenance("tensor"), flat=flat, depends=depends
        )

    def constant(self, indices: str, exponent: int = 0) -> Signal:
        """Returns a deterministic signal all of whose entries have the packed size ``exponent``."""
        live = self.live(indices)
        kernel = Kernel(tuple(self.indices[x] for x in live), tuple(range(len(live))), ())
        flat: frozenset[str] = frozenset(live)
        return Signal(live, {self.intern(kernel): exponent}, made=Provenance("constant"), flat=flat, depends=0)

    def unknown(self, indices: str, size: int = 0) -> Signal:
        """Returns a signal of which only a packed upper bound on the size of its entries is known."""
        return Signal(self.live(indices), {}, size, made=Provenance("constant"))

    def given(self, name: str, indices: str) -> Signal:
        """Returns a constant whose entries are fixed numbers of size 1 that differ along each index."""
        live = self.live(indices)
        if not live:
            return self.constant(live)
        kernel = leaf_kernel(f"{CONSTANT}{name})", [self.indices[x] for x in live], range(len(live)))
        return Signal(live, {self.intern(kernel): 0}, made=Provenance("tensor"), depends=0)

    def nothing(self, indices: str) -> Signal:
        """Returns a signal that is exactly zero."""
        return Signal(self.live(indices), {})

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        """Returns a signal times deterministic factors."""
        exponent = sum(x.size for x in scalars)
        tail = None if s.tail is None else s.tail + exponent
        terms = {k: e + exponent for k, e in s.terms.items()}
        sound = s.zero or (s.sound and all(x.certain for x in scalars))
        made = Provenance("scaled", (s,), scalars)
        least, loss = (None if x is None else x + exponent for x in (s.least, s.loss))
        zero = {x: Algebra.scaled(self, rest, *scalars) for x, rest in s.centred.items()}
        changes = {"made": made, "least": least, "sound": sound, "loss": loss, "centred": zero}
        return s.but(terms=terms, tail=tail, leaf=None, name="", **changes)

    def centred(self, s: Signal, index: str, ignoring: str = "") -> Signal:
        """Subtracts the mean over an index: the part that is constant along it cancels exactly, the rest keeps its
        size.

        Law: P = I - 11^T/M maps everything that does not depend on the index to zero, and is a projection of rank M -
        1. Of a square the fluctuation is left. The square of a sign has none, so if leaves may be signs it is an upper
        bound.

        Args:
            s: the signal.
            index: the index.
            ignoring: a tensor that counts as constant along the index (a selection, inside its own support).
        """
        if index not in s.indices:
            raise ValueError(f"cannot centre over {index!r}: the algebra does not track it")
        if population(self.indices[index]) not in self.subtracts:
            raise ValueError(f"cannot centre over {index!r}: means along {self.indices[index]} are not declared")
        if index in s.flat:
            return Signal(s.indices, {})
        at = s.indices.index(index)
        keep = {k: e for k, e in s.terms.items() if _varies_along(self.kernels[k], at, ignoring)}
        if s.signed:
            squares = [k for k in keep if _has_square(self.kernels[k], at)]
            keep |= {self.with_doubt(k): keep.pop(k) - self.later for k in squares}
        zero = {x: Algebra.centred(self, rest, index, ignoring) for x, rest in s.centred.items()}
        zero |= {} if ignoring else {index: Signal(s.indices, {})}
        s = s.but(least=None)
        return s.but(terms=keep, leaf=None, name="", made=Provenance("centred", (s,)), centred=zero)

    def restricted(self, s: Signal, index: str, to: str) -> Signal:
        """Keeps a subset of the entries along an index, chosen independently of the signal.

        Law: the root-mean-square over exchangeable entries does not change; only later sums run over fewer entries.

        Args:
            s: the signal.
            index: the index.
            to: the index of the subset, of a smaller axis.
        """
        if index not in s.indices:
            return s
        at, terms = s.indices.index(index), dict[int, int]()
        for k, e in s.terms.items():
            number = self.retype(k, at, to)
            terms[number] = max(e, terms.get(number, e))
        indices, flat = s.indices.replace(index, to), frozenset(to if x == index else x for x in s.flat)
        made = Provenance("restricted", (s,))
        zero = {x: Algebra.restricted(self, rest, index, to) for x, rest in s.centred.items() if x != index}
        return s.but(indices=indices, terms=terms, leaf=None, made=made, flat=flat, centred=zero)

    def relabelled(self, s: Signal, old: str, new: str) -> Signal:
        """Renames indices of a signal, ``old`` to ``new``, position by position.

        Raises:
            ValueError: the indices do not correspond one to one, or belong to different axes.
        """
        if old == new:
            return s
        to = dict(zip(old, new, strict=False))
        if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
            raise ValueError(f"cannot call {old!r} {new!r}: indices must correspond one to one")
        for x, y in to.items():
            if self.axes.get(x) is None or self.axes.get(x) != self.axes.get(y):
                raise ValueError(f"cannot call {x!r} {y!r}: they are not indices of one axis")
        if set(s.indices) - set(old):
            raise ValueError(f"cannot call {old!r} {new!r}: the signal has indices {s.indices!r}")
        leaf = None if s.leaf is None else "".join(to[x] for x in s.leaf)
        indices = "".join(to[x] for x in s.indices)
        flat = frozenset(to[x] for x in s.flat)
        zero = {to[x]: Algebra.relabelled(self, rest, old, new) for x, rest in s.centred.items()}
        return s.but(indices=indices, leaf=leaf, made=Provenance("relabelled", (s,)), flat=flat, centred=zero)

    def add(self, signals: Iterable[Signal]) -> Signal:
        """Adds signals. Of equal kernels the larger exponent is kept.

        Raises:
            ValueError: the signals have different indices.
        """
        parts = self._align(signals)
        nonzero = [s for s in parts if not s.zero]
        if len(nonzero) <= 1:
            return (nonzero or parts)[0]
        terms, tail, twice = dict[int, int](), None, set[int]()
        for s in nonzero:
            tail = larger_size(tail, s.tail)
            for k, e in s.terms.items():
                if k not in terms or self.before(k, e, terms[k]):
                    terms[k] = e
                elif self.value(terms[k]) == self.value(e):
                    twice.add(k)
        least = max((s.least for s in nonzero if s.least is not None), default=None)
        loss = max((s.loss for s in nonzero if s.loss is not None), default=None)
        whole = Signal(nonzero[0].indices, terms, tail, made=Provenance("sum", tuple(nonzero)), least=least, loss=loss)
        if twice and not twice.isdisjoint(self.leading(whole)):
            self.notes.add("generic-constants")
        centred = {x for s in nonzero for x in s.centred}
        whole.centred = {x: Algebra.add(self, [s.centred.get(x, s) for s in nonzero]) for x in centred}
        return self.prune(self.inherit_attributes(whole))

    def largest(self, s: Signal, most: int) -> Signal:
        """Keeps the ``most`` largest kernels of a signal, and adds the size of the others to its tail."""
        kept, rest = self.rank_kernels(s)[:most], self.rank_kernels(s)[most:]
        tail = max((size for size, _, _ in rest), default=None)
        loss = max((size for size, k, _ in rest if self.in_doubt[k]), default=None)
        terms = {k: e for _, k, e in kept}
        return s.but(terms=terms, tail=larger_size(s.tail, tail), loss=larger_size(s.loss, loss)) if rest else s

    def uncentred(self, s: Signal) -> Signal:
        """Returns a signal of the same size without the information which of its terms sum to zero."""
        return s.but(centred={}) if s.centred else s

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        """Multiplies two signals. Common indices are identified, and indices not in ``out`` are summed.

        Pairs of kernels are multiplied from the largest possible product down. The rest is only bounded
        (``bound_product``) once it falls ``gap`` below the result, or, if this takes too much work, once it cannot
        exceed the result.

        Args:
            a: the first factor.
            b: the second factor.
            out: the indices of the result.
            tag: the kind of product, for explanations.

        Raises:
            ValueError: ``out`` has an index that neither signal has.
            Exhausted: the product exceeds the work budget.
        """
        out = self.live(out)
        if a.zero or b.zero:
            return Signal(out, {})
        centred = a.centred or b.centred
        for x in sorted({*a.indices, *b.indices} - set(out)) if centred else "":
            # of what sums to zero, only a factor that varies is seen
            if x not in b.indices or x not in a.indices:
                a, b = a.centred.get(x, a), b.centred.get(x, b)
            elif x in a.centred and x not in (b.leaf or ""):  # an initial tensor varies, and keeps its operator norm
                return self._apart(a, b, x, out, tag)
            elif x in b.centred and x not in (a.leaf or ""):
                return self._apart(b, a, x, out, tag)
        if a.zero or b.zero:
            return Signal(out, {})
        try:
            product = multiply_signals(self, a, b, out, tag, self._gap)
        except Exhausted:
            if self.rung.whole:
                raise
            product = multiply_signals(self, a, b, out, tag, -self.step)
        for one, other in ((a, b), (b, a)) if centred else ():
            for x in (x for x in one.centred if x in out and x not in set(other.indices) - other.flat):
                product.centred = {**product.centred, x: Algebra.contract(self, one.centred[x], other, out, tag)}
        return product

    def _apart(self, a: Signal, b: Signal, x: str, out: str, tag: str) -> Signal:
        """Multiplies two signals where terms of the first sum to zero along a summed index.

        These terms are multiplied only by the part of the second factor that varies along the index, all others by the
        whole.

        Args:
            a: the first factor.
            b: the second factor.
            x: the index.
            out: the indices of the result.
            tag: the kind of product.
        """
        factors = (a, self.centred(b, x))
        left, right = (s.but(centred={y: s.centred[y] for y in s.centred if y != x}) for s in factors)
        products = [Algebra.contract(self, left, right, out, tag)]
        if not a.centred[x].zero:
            products.append(Algebra.contract(self, a.centred[x], b, out, tag))
        return Algebra.add(self, products)

    def product(self, signals: Sequence[Signal], out: str, tag: str = "") -> Signal:
        """Multiplies any number of signals. Common indices are identified, and indices not in ``out`` are summed.

        Factors are multiplied in pairs: constants first, then initial tensors with what they act on, since there the
        operator norm bounds what is dropped, then the pair with the smallest result. An index is summed as soon as no
        other factor has it.

        Raises:
            ValueError: there are no signals, or ``out`` has an index that none of them has.
        """
        pool = list(signals)
        if not pool:
            raise ValueError("a product needs factors")
        if len(pool) == 1:
            return self.contract(pool[0], self.constant(""), out, tag)
        out = self.live(out)
        while len(pool) > 2:
            i, j = min(combinations(range(len(pool)), 2), key=lambda pair: _rank_pair(self, pool, pair, out))
            pool[i] = self.contract(pool[i], pool[j], _remaining_indices(pool, i, j, out), tag)
            del pool[j]
        return self.contract(pool[0], pool[1], out, tag)

    def _align(self, signals: Iterable[Signal]) -> list[Signal]:
        """Returns the signals with their indices in the order of the first."""
        parts = list(signals)
        indices = parts[0].indices
        for k, s in enumerate(parts):
            if s.indices != indices:
                if set(s.indices) != set(indices):
                    raise ValueError(f"cannot add signals with indices {indices!r} and {s.indices!r}")
                parts[k] = self.contract(s, self.constant(""), indices).but(name=s.name)
        return parts

    def deterministic(self, s: Signal) -> bool:
        """Tests whether a signal contains no Gaussian tensor."""
        return s.tail is None and not any(self.kernels[k].leaves for k in s.terms)


def _remaining_indices(pool: Sequence[Signal], i: int, j: int, out: str) -> str:
    """Returns the indices of two factors that the result or another factor has."""
    rest = set(out).union(*(s.indices for k, s in enumerate(pool) if k not in (i, j)))
    return "".join(x for x in dict.fromkeys(pool[i].indices + pool[j].indices) if x in rest)


def _rank_pair(algebra: Algebra, pool: Sequence[Signal], pair: tuple[int, int], out: str) -> tuple[int, Fraction]:
    """Returns a sort key of pairs of factors: the pair with the smallest key is multiplied first."""
    a, b = (pool[k] for k in pair)
    shared, kept = set(a.indices) & set(b.indices), _remaining_indices(pool, *pair, out)
    constants = sum(map(algebra.deterministic, (a, b)))
    leaves = [s.leaf for s in (a, b) if s.leaf is not None]
    acts = len(leaves) == 1 and bool((shared & set(leaves[0])) - set(kept))
    rank = 0 if constants == 2 else 1 if constants and (acts or not leaves) else 2 if acts else 3
    if rank == 3 and (not shared or len(leaves) == 2):
        rank = 4 if shared else 5
    if kept not in algebra.dimensions:
        algebra.dimensions[kept] = sum((algebra.rate(algebra.indices[x]) for x in kept), Fraction(0))
    return rank, algebra.dimensions[kept]


def _has_square(kernel: Kernel, at: int) -> bool:
    """Tests whether a kernel has the same leaf twice, and it varies along an open index."""
    there = kernel.along(at)
    return len(set(there)) < len(there)


def _varies_along(kernel: Kernel, at: int, ignoring: str) -> bool:
    """Tests whether a kernel varies along an open index."""
    c = kernel.opens[at]
    return kernel.opens.count(c) > 1 or any(c in classes and name != ignoring for name, classes in kernel.leaves)
