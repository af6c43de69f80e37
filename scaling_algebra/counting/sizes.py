"""Sizes of signals: the leading exponent, upper bounds, whether these are certified, and pruning to a budget."""

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
    """Computes sizes of signals from the monomials that they consist of. A size is an exponent of n, packed into an
    integer together with its formula."""

    def rms(self, s: Signal) -> int | None:
        """Returns the size of a signal: the exponent of n of its root-mean-square over entries and initialisation,
        packed into an integer.

        It is that of the largest monomial, or ``Signal.lower_bound`` if that is larger. Monomials of which only an
        upper bound is known do not count; None if there are no others and no lower bound.

        Law: a monomial with coefficient 1 is the square root of the product of the dimensions of its summed indices,
        where indices that must be equal count once; each index of the result that must equal another one divides it
        by the square root of its dimension. Source: the half-weight rule, tested against the Wick sum in
        tests/engine/test_half_weight.py.
        """
        weights, doubted, largest = self.weights, self.in_doubt, s.lower_bound
        for k, e in s.terms.items():
            if (largest is None or e + weights[k] > largest) and not doubted[k]:
                largest = e + weights[k]
        return largest

    def upper_bound(self, s: Signal) -> int | None:
        """Returns an upper bound on the root-mean-square of a signal, as an exponent of n packed into an integer; None
        if the signal is exactly zero.

        Unlike ``rms``, it includes dropped monomials and those of which only an upper bound is known.
        """
        weights, largest = self.weights, larger_size(s.lower_bound, s.tail_bound)
        for k, e in s.terms.items():
            if largest is None or e + weights[k] > largest:
                largest = e + weights[k]
        return largest

    def is_certified(self, s: Signal) -> bool:
        """Tests whether ``rms`` is the exact size of a signal: it is a lower bound, and neither a dropped monomial nor
        one of which only an upper bound is known is larger."""
        lead, bound = self.rms(s), self.upper_bound(s)
        complete = bound is None or (lead is not None and self.exponent(lead) >= self.exponent(bound))
        return self.is_lower_bound(s) and complete

    def is_lower_bound(self, s: Signal) -> bool:
        """Tests whether ``rms`` is a lower bound on the size of a signal: it exceeds every term that may cancel it,
        and every size by which the signal was divided is certified.
        """
        lead, doubt = self.rms(s), s.doubt_bound
        for k, e in s.terms.items():
            if self.has_unknown_numbers[k]:
                doubt = larger_size(doubt, e + self.weights[k])
        above = doubt is None or (lead is not None and self.exponent(lead) > self.exponent(doubt))
        return s.certified_divisors and above

    def is_led_by_doubt(self, s: Signal) -> bool:
        """Tests whether the largest term of a signal is a monomial of which only an upper bound is known: this bound
        exceeds ``rms`` and all dropped terms."""
        lead, bound = self.rms(s), self.upper_bound(s)
        above = s.tail_bound if lead is None else larger_size(s.tail_bound, lead)
        return bound is not None and (above is None or self.exponent(bound) > self.exponent(above))

    def reaches_size(self, s: Signal, size: int = 0) -> bool:
        """Tests whether the size of a signal is at least ``size``, an exponent of n packed into an integer.

        Raises:
            Exhausted: neither answer is certified.
        """
        lead, bound = self.rms(s), self.upper_bound(s)
        if lead is not None and self.exponent(lead) >= self.exponent(size):
            return True
        if bound is not None and self.exponent(bound) >= self.exponent(size):
            raise Exhausted
        return False

    def varies_independently(self, s: Signal, other: Signal, index: str) -> bool:
        """Tests whether ``s`` varies along an index independently of ``other``.

        It does if one of the largest monomials of ``s`` contains a tensor that varies along this index, and this
        tensor does not vary along it in any monomial of ``other``.
        """

        def names(x: Signal, kernels: Iterable[int]) -> set[str]:
            return {name for k in kernels for name, _ in self.kernels[k].leaves_along(x.indices.index(index))}

        return bool(names(s, self.find_leading(s)) - names(other, other.terms))

    def keeps_all_leading(self, s: Signal) -> bool:
        """Tests whether the size of a signal is certified, and all dropped monomials are smaller than the signal."""
        lead = self.rms(s)
        return s.certified_divisors and (
            s.tail_bound is None or (lead is not None and self.exponent(lead) > self.exponent(s.tail_bound))
        )

    def list_exponents(self, s: Signal) -> tuple[tuple[Fraction, bool], ...]:
        """Returns the exponents of n of a signal's monomials and of the bounds ``tail_bound`` and ``lower_bound``,
        each once, largest first.

        Returns:
            Pairs (exponent, exact). ``exact`` is False for monomials of which only an upper bound is known, for
            ``tail_bound`` and for ``lower_bound``.
        """
        exponents = {(self.exponent(e + self.weights[k]), not self.in_doubt[k]) for k, e in s.terms.items()}
        bounds = (x for x in (s.tail_bound, s.lower_bound) if x is not None)
        return tuple(sorted(exponents | {(self.exponent(x), False) for x in bounds}, reverse=True))

    def list_forms(self, s: Signal) -> tuple[Form, ...]:
        """Returns the formulas of the sizes of a signal's monomials, each once. Monomials of which only an upper bound
        is known are left out."""
        clear = (e + self.weights[k] for k, e in s.terms.items() if not self.in_doubt[k])
        return tuple(dict.fromkeys(self.form(x) for x in clear))

    def find_leading(self, s: Signal) -> list[int]:
        """Returns the ids of the monomials that are as large as the whole signal, simplest formula first.

        Monomials of which only an upper bound is known are returned only if no other monomial is as large.
        """
        lead = self.rms(s)
        if lead is None:
            return []
        size = {k: e + self.weights[k] for k, e in s.terms.items()}
        clear = {k: e for k, e in size.items() if not self.in_doubt[k]}
        size = clear if any(self.units(e) == self.units(lead) for e in clear.values()) else size
        return sorted((k for k in size if self.units(size[k]) == self.units(lead)), key=lambda k: -size[k])

    def rank_kernels(self, s: Signal) -> list[tuple[int, int, int]]:
        """Returns the monomials of a signal as triples (size, monomial id, coefficient), largest size first. The order
        of equally large ones depends on the monomials only."""
        ranked = [(e + self.weights[k], k, e) for k, e in s.terms.items()]
        return sorted(ranked, key=lambda term: (-term[0], self._order[term[1]]))

    @staticmethod
    def inherit_attributes(s: Signal) -> Signal:
        """Sets, in place, those attributes of a new sum or product ``s`` that follow from the signals which were
        added or multiplied (the operands of its ``origin``), such as the tensors it depends on.

        Returns:
            The same signal.
        """
        assert s.origin is not None
        parts = s.origin.operands
        varying = {x for part in parts for x in part.indices if x not in part.constant_along}
        s.constant_along = frozenset(s.indices) - varying
        s.certified_divisors = all(part.certified_divisors for part in parts)
        bits = [part.depends_on for part in parts]
        s.depends_on = None if None in bits else reduce(or_, (x for x in bits if x is not None), 0)
        s.may_be_signs = any(part.may_be_signs for part in parts)
        coincide = s.origin.rule == "product" and _may_coincide(s.indices, *parts)
        s.may_be_nonlinear = coincide or any(part.may_be_nonlinear for part in parts)
        return s

    def count_rates(self, packed: int) -> int:
        """Returns how many learning rates are multiplied in the formula that is stored in ``packed``, an exponent of n
        with its formula in one integer."""
        return -sum(count for name, count in self.form(packed).unknowns if name.startswith("c."))

    def supersedes(self, k: int, e: int, other: int) -> bool:
        """Tests whether the coefficient ``other`` of a monomial in a sum must be replaced by ``e``, the coefficient
        of the same monomial in a further term of the sum.

        The larger coefficient is kept. If both are equally large and only an upper bound on the monomial is known,
        the one with fewer learning rates is kept, because it may cancel more terms.

        Args:
            k: id of the monomial.
            e: the new coefficient, as an exponent of n packed into an integer.
            other: the coefficient so far, as an exponent of n packed into an integer.
        """
        if not self.in_doubt[k] or self.units(e) != self.units(other):
            return e > other
        return self.count_rates(e) < self.count_rates(other)

    def prune(self, s: Signal) -> Signal:
        """Drops, in place, the monomials of a new signal that the budget does not allow, and adds their size to
        ``tail_bound``.

        A monomial may occur twice: exactly, and as an upper bound on a term that may cancel it. If this bound is at
        least as large, the exact monomial is dropped. A term cannot cancel one that contains fewer learning rates, so
        if both are equally large, an exact monomial with fewer learning rates than the bound is kept.

        Returns:
            The same signal.
        """
        for k in [k for k in s.terms if self.in_doubt[k]]:
            e, certain = s.terms[k], s.terms.get(self._certain[k])
            if certain is None or self.units(certain) > self.units(e):
                continue
            if self.units(certain) < self.units(e) or self.count_rates(certain) >= self.count_rates(e):
                del s.terms[self._certain[k]]
        lead = self.rms(s)
        if lead is None or self.budget.keeps_all:
            return s
        budget, floor, order, weights = self.budget, lead - self._gap, self._order, self.weights
        in_doubt, leaves, tail = self.in_doubt, budget.max_leaves, s.tail_bound
        keep, doubted = dict[int, int](), dict[int, int]()
        for k, e in s.terms.items():
            if in_doubt[k]:
                doubted[k] = e
            elif e + weights[k] >= floor and (leaves is None or order[k][0] <= leaves):
                keep[k] = e
        for most, kept in ((budget.max_kernels, keep), (budget.max_doubts, doubted)):
            if most is not None and len(kept) > most:
                best = sorted(kept, key=lambda k: (-self.units(kept[k] + weights[k]), order[k][0], -kept[k], order[k]))
                for k in best[most:]:
                    del kept[k]
        keep |= doubted
        for k, e in s.terms.items() if len(keep) < len(s.terms) else ():
            if k not in keep:
                tail = larger_size(tail, e + weights[k])
                if in_doubt[k]:
                    s.doubt_bound = larger_size(s.doubt_bound, e + weights[k])
        s.terms, s.tail_bound = keep, tail
        return s


def _may_coincide(out: str, a: Signal, b: Signal) -> bool:
    """Tests whether a product of two signals may contain the square of an entry of a Gaussian tensor. It may if both
    factors have a common index in ``out``, the indices of the product, and may depend on the same tensor.
    """
    shared = any(x in a.indices and x in b.indices for x in out)
    return shared and (a.depends_on is None or b.depends_on is None or a.depends_on & b.depends_on != 0)
