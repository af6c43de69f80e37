"""The size of a signal: its leading exponent, upper bounds, and what is kept of it under a budget."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from operator import or_

from scaling_algebra.spec.powers import Form

from .kernels import Exhausted
from .signals import Signal, larger_size
from .store import KernelStore


class SignalSizes(KernelStore):
    """Computes sizes of signals from their kernels."""

    def rms(self, s: Signal) -> int | None:
        """Returns the packed exponent of the root-mean-square over entries and initialisation; None for exactly zero.

        Law: each kernel has weight 1/2 per summed class, and -1/2 per repeated open class; the largest kernel
        determines the size. Source: the half-weight rule, tested against the Wick sum in
        tests/engine/test_half_weight.py.
        """
        weights, doubted, largest = self.weights, self.in_doubt, s.least
        for k, e in s.terms.items():
            if (largest is None or e + weights[k] > largest) and not doubted[k]:
                largest = e + weights[k]
        return largest

    def bound(self, s: Signal) -> int | None:
        """Returns a packed upper bound on the root-mean-square of the whole signal; None for exactly zero.

        It includes the kernels that were dropped.
        """
        weights, largest = self.weights, larger_size(s.least, s.tail)
        for k, e in s.terms.items():
            if largest is None or e + weights[k] > largest:
                largest = e + weights[k]
        return largest

    def certified(self, s: Signal) -> bool:
        """Tests whether the leading exponent is exact: nothing that was dropped is larger, and every divisor is
        certified."""
        lead, bound = self.rms(s), self.bound(s)
        return self.stands(s) and (bound is None or (lead is not None and self.value(lead) >= self.value(bound)))

    def stands(self, s: Signal) -> bool:
        """Tests whether the leading exponent is a lower bound: it exceeds all that may cancel it, and divisors are
        certified."""
        lead, loss = self.rms(s), s.loss
        for k, e in s.terms.items():
            if self.opaque[k]:
                loss = larger_size(loss, e + self.weights[k])
        return s.sound and (loss is None or (lead is not None and self.value(lead) > self.value(loss)))

    def doubtful(self, s: Signal) -> bool:
        """Tests whether terms that may cancel exceed all others."""
        lead, bound = self.rms(s), self.bound(s)
        above = s.tail if lead is None else larger_size(s.tail, lead)
        return bound is not None and (above is None or self.value(bound) > self.value(above))

    def reaches(self, s: Signal, size: int = 0) -> bool:
        """Tests whether a signal is at least as large as ``size``.

        Raises:
            Exhausted: this is not certified.
        """
        lead, bound = self.rms(s), self.bound(s)
        if lead is not None and self.value(lead) >= self.value(size):
            return True
        if bound is not None and self.value(bound) >= self.value(size):
            raise Exhausted
        return False

    def varies_apart(self, s: Signal, other: Signal, index: str) -> bool:
        """Tests whether the leading part of ``s`` varies along an index with a tensor that ``other`` does not vary
        with."""

        def names(x: Signal, kernels: Iterable[int]) -> set[str]:
            return {name for k in kernels for name, _ in self.kernels[k].along(x.indices.index(index))}

        return bool(names(s, self.leading(s)) - names(other, other.terms))

    def complete(self, s: Signal) -> bool:
        """Tests whether the size is certified and no kernel of the leading size was dropped."""
        lead = self.rms(s)
        return s.sound and (s.tail is None or (lead is not None and self.value(lead) > self.value(s.tail)))

    def powers(self, s: Signal) -> tuple[tuple[Fraction, bool], ...]:
        """Returns the distinct exponents of a signal's terms, largest first.

        Returns:
            Pairs (exponent, exact): exact for kernels, False for upper bounds on everything else.
        """
        exponents = {(self.value(e + self.weights[k]), not self.in_doubt[k]) for k, e in s.terms.items()}
        bounds = (x for x in (s.tail, s.least) if x is not None)
        return tuple(sorted(exponents | {(self.value(x), False) for x in bounds}, reverse=True))

    def forms(self, s: Signal) -> tuple[Form, ...]:
        """Returns the distinct sizes of a signal's kernels as forms, without kernels that may cancel."""
        clear = (e + self.weights[k] for k, e in s.terms.items() if not self.in_doubt[k])
        return tuple(dict.fromkeys(self.form(x) for x in clear))

    def leading(self, s: Signal) -> list[int]:
        """Returns the kernels that have the exponent of the whole signal, simplest monomial first."""
        lead = self.rms(s)
        if lead is None:
            return []
        size = {k: e + self.weights[k] for k, e in s.terms.items()}
        clear = {k: e for k, e in size.items() if not self.in_doubt[k]}
        size = clear if any(self.whole(e) == self.whole(lead) for e in clear.values()) else size
        return sorted((k for k in size if self.whole(size[k]) == self.whole(lead)), key=lambda k: -size[k])

    def rank_kernels(self, s: Signal) -> list[tuple[int, int, int]]:
        """Returns triples (size, kernel, exponent), largest first, in an order that depends on the kernels alone."""
        ranked = [(e + self.weights[k], k, e) for k, e in s.terms.items()]
        return sorted(ranked, key=lambda term: (-term[0], self._order[term[1]]))

    @staticmethod
    def inherit_attributes(s: Signal) -> Signal:
        """Sets the attributes of a new sum or product that follow from its operands, and returns it."""
        assert s.made is not None
        parts = s.made.parts
        varying = {x for part in parts for x in part.indices if x not in part.flat}
        s.flat, s.sound = frozenset(s.indices) - varying, all(part.sound for part in parts)
        bits = [part.depends for part in parts]
        s.depends = None if None in bits else reduce(or_, (x for x in bits if x is not None), 0)
        s.signed = any(part.signed for part in parts)
        s.curved = any(part.curved for part in parts) or (s.made.rule == "product" and _may_coincide(s.indices, *parts))
        return s

    def degree(self, packed: int) -> int:
        """Returns the number of learning rates in a monomial."""
        return -sum(count for name, count in self.form(packed).unknowns if name.startswith("c."))

    def before(self, k: int, e: int, other: int) -> bool:
        """Tests whether the exponent ``e`` of a kernel replaces the exponent ``other``.

        The larger exponent does. If they are equal and the kernel may cancel others, the one with fewer learning rates
        does, because it may cancel more.
        """
        if not self.in_doubt[k] or self.whole(e) != self.whole(other):
            return e > other
        return self.degree(e) < self.degree(other)

    def prune(self, s: Signal) -> Signal:
        """Moves what the budget does not keep of a new signal to its tail, and returns the signal.

        If an uncertain copy of a kernel is as large as the certain one, it may cancel it. Cancellation happens order by
        order in the learning rates, so at equal size a certain kernel of lower order is kept.
        """
        for k in [k for k in s.terms if self.in_doubt[k]]:
            clear = s.terms.get(self._clear[k])
            if clear is None or self.whole(clear) > self.whole(s.terms[k]):
                continue
            if self.whole(clear) < self.whole(s.terms[k]) or self.degree(clear) >= self.degree(s.terms[k]):
                del s.terms[self._clear[k]]
        lead = self.rms(s)
        if lead is None or self.rung.whole:
            return s
        rung, floor, order, weights = self.rung, lead - self._gap, self._order, self.weights
        in_doubt, leaves, tail = self.in_doubt, rung.leaves, s.tail
        keep, doubted = dict[int, int](), dict[int, int]()
        for k, e in s.terms.items():
            if in_doubt[k]:
                doubted[k] = e
            elif e + weights[k] >= floor and (leaves is None or order[k][0] <= leaves):
                keep[k] = e
        for most, kept in ((rung.most, keep), (rung.doubts, doubted)):
            if most is not None and len(kept) > most:
                best = sorted(kept, key=lambda k: (-self.whole(kept[k] + weights[k]), order[k][0], -kept[k], order[k]))
                for k in best[most:]:
                    del kept[k]
        keep |= doubted
        for k, e in s.terms.items() if len(keep) < len(s.terms) else ():
            if k not in keep:
                tail = larger_size(tail, e + weights[k])
                if in_doubt[k]:
                    s.loss = larger_size(s.loss, e + weights[k])
        s.terms, s.tail = keep, tail
        return s


def _may_coincide(out: str, a: Signal, b: Signal) -> bool:
    """Tests whether leaves of two factors may coincide at an index that both have and their product keeps."""
    shared = any(x in a.indices and x in b.indices for x in out)
    return shared and (a.depends is None or b.depends is None or a.depends & b.depends != 0)
