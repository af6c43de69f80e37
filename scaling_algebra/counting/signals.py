"""Signals in normal order: exact exponents of sums of Gaussian tensor networks, on one ray.

A signal maps kernels to packed exponents (``packing.py``). What pruning drops is bounded by ``Signal.tail``.
Read next: ``trajectory.py`` (which signals a network makes), ``kernels.py`` (the product of two kernels),
``monomials.py`` (walks back from a kernel to the initial tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from scaling_algebra.spec.axes import AXES, Ray

from .canonical import canonical
from .kernels import Contraction, Kernel, Matching, leaf_kernel, multiply, witness
from .packing import Packing


@dataclass(frozen=True, slots=True)
class Scalar:
    """A deterministic factor: what it is called, and its packed size."""

    label: str
    size: int


@dataclass(frozen=True, slots=True)
class Made:
    """How a signal was made, for walking back (``monomials.py``); no computation reads it.

    Attributes:
        rule: the operation. ``parts`` are its operands, ``scalars`` the factors of ``scaled``.
        tag: what kind of product it is, e.g. ``forward ROLE``: the inner product of a rank-one update with its input.
    """

    rule: Literal["tensor", "constant", "product", "sum", "scaled", "centred", "restricted"]
    parts: tuple[Signal, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    tag: str = ""


@dataclass(slots=True)
class Signal:
    """A random tensor as kernels with exponents.

    Attributes:
        letters: name of each open index, e.g. ``"ik"``; the axis of each letter is fixed by the algebra.
        terms: kernel id -> packed exponent of its coefficient (the std of its leaves included).
        tail: packed upper bound on the root-mean-square of everything pruning dropped; None if nothing was.
        leaf: letters of the tensor when the signal is one initial tensor (enables the operator-norm bound).
        name: what explanations call it; empty for intermediate results.
        made: how it was made.
    """

    letters: str
    terms: dict[int, int]
    tail: int | None = None
    leaf: str | None = None
    name: str = ""
    made: Made | None = None

    @property
    def zero(self) -> bool:
        """Exactly zero: no kernels and nothing dropped."""
        return not self.terms and self.tail is None


class Algebra(Packing):
    """Arithmetic of signals on one ray.

    Args:
        ray: rates of the axes.
        letters: axis of each index letter, e.g. ``{"a": "N", "i": "M"}``.
        unknowns: names whose counts the packed exponents carry.
        gap: kernels this far (in powers of n) below the leading one of a signal are dropped, and bounded.
        tracked: letters to keep even where their axis does not grow, because what depends on them matters.

    Indices of other axes that do not grow have weight 0 everywhere, so they are left out of the kernels.
    """

    def __init__(
        self, ray: Ray, letters: Mapping[str, str], unknowns: Sequence[str], gap: Fraction, tracked: str = ""
    ) -> None:
        super().__init__(ray, unknowns)
        self.letters = {x: axis for x, axis in letters.items() if axis in AXES and (ray[axis] or x in tracked)}
        self._half = {axis: self.pack(ray[axis] / 2, {axis: Fraction(1, 2)}, {}) for axis in AXES}
        self.work = 0
        """Nodes of matching searches left: each analysis sets it, and what it does not suffice for is undecided."""
        self._gap, self._step = self.pack(gap, {}, {}), self.pack(Fraction(1, 2), {}, {})
        self._ids: dict[Kernel, int] = {}
        self._kernels: list[Kernel] = []
        self._weights: list[int] = []
        self._halves = {axis: packed + (1 << self._shift - 1) >> self._shift for axis, packed in self._half.items()}
        self._products: dict[tuple[int, int, int], tuple[int, tuple[tuple[int, int], ...], int | None]] = {}
        self._specs: dict[tuple[str, str, str], tuple[int, Contraction, int]] = {}

    # signals ---------------------------------------------------------------------------------------------------

    def tensor(self, name: str, letters: str, exponent: int, indices: str | None = None) -> Signal:
        """An initial tensor with entries of size ``exponent``. ``indices``: the letters it truly has (others are
        broadcast: a tensor shared across experts has no expert index)."""
        live = self._live(letters)
        own = self._live(letters if indices is None else indices)
        kernel = leaf_kernel(name, [self.letters[x] for x in live], [live.index(x) for x in own])
        return Signal(live, {self.intern(kernel): exponent}, leaf=own, made=Made("tensor"))

    def constant(self, letters: str, exponent: int = 0) -> Signal:
        """A deterministic tensor with all entries of size ``exponent``."""
        live = self._live(letters)
        kernel = Kernel(tuple(self.letters[x] for x in live), tuple(range(len(live))), ())
        return Signal(live, {self.intern(kernel): exponent}, made=Made("constant"))

    def nothing(self, letters: str) -> Signal:
        """Exactly zero."""
        return Signal(self._live(letters), {})

    def rms(self, s: Signal) -> int | None:
        """Packed exponent of the root-mean-square over entries and initialisation; None for exactly zero.

        Law: each kernel weighs 1/2 per summed class, and -1/2 per repeated open class; the largest kernel wins.
        Source: the half-weight rule, tested against the Wick sum in tests/test_half_weight.py.
        """
        return max((e + self._weights[k] for k, e in s.terms.items()), default=None)

    def bound(self, s: Signal) -> int | None:
        """Packed upper bound on the root-mean-square of the whole signal, dropped kernels included."""
        return _max(self.rms(s), s.tail)

    def certified(self, s: Signal) -> bool:
        """The leading exponent stands above everything that was dropped."""
        lead = self.rms(s)
        return s.tail is None or (lead is not None and self.value(lead) >= self.value(s.tail))

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        """Multiply by deterministic factors."""
        exponent = sum(x.size for x in scalars)
        tail = None if s.tail is None else s.tail + exponent
        terms = {k: e + exponent for k, e in s.terms.items()}
        return Signal(s.letters, terms, tail, made=Made("scaled", (s,), scalars))

    def centred(self, s: Signal, letter: str, ignoring: str = "") -> Signal:
        """Subtract the mean over an index: the part that is constant along it cancels exactly, the rest keeps its size.

        Law: P = I - 11^T/M annihilates what does not depend on the index, and is a projection of rank M - 1.

        Args:
            ignoring: a tensor that counts as constant along the index (a selection, inside its own support).
        """
        if letter not in s.letters:
            raise ValueError(f"cannot centre over {letter!r}: the algebra does not track it")
        at = s.letters.index(letter)
        keep = {k: e for k, e in s.terms.items() if self._varies(self._kernels[k], at, ignoring)}
        return Signal(s.letters, keep, s.tail, made=Made("centred", (s,)))

    def restricted(self, s: Signal, letter: str, to: str) -> Signal:
        """Keep some entries of an index: those of an index of a smaller axis, chosen without regard to the signal.

        Law: the root-mean-square over exchangeable entries does not change, only what later sums run over.
        """
        if letter not in s.letters:
            return s
        at, terms = s.letters.index(letter), dict[int, int]()
        for k, e in s.terms.items():
            found = self.retyped(k, at, to)
            terms[found] = max(e, terms.get(found, e))
        return replace(s, letters=s.letters.replace(letter, to), terms=terms, made=Made("restricted", (s,)))

    def retyped(self, k: int, at: int, to: str) -> int:
        """A kernel with the axis of one open index replaced by that of a letter."""
        kernel = self._kernels[k]
        types = list(kernel.types)
        types[kernel.opens[at]] = self.letters[to]
        return self.intern(Kernel(*canonical(types, kernel.opens, kernel.leaves)))

    def add(self, signals: Iterable[Signal]) -> Signal:
        """Sum: equal kernels keep the larger exponent."""
        parts = list(signals)
        nonzero = [s for s in parts if not s.zero]
        if len(nonzero) <= 1:
            return replace(nonzero[0] if nonzero else parts[0])
        terms = dict(nonzero[0].terms)
        tail = nonzero[0].tail
        for s in nonzero[1:]:
            tail = _max(tail, s.tail)
            for k, e in s.terms.items():
                if k not in terms or terms[k] < e:
                    terms[k] = e
        return self._prune(Signal(nonzero[0].letters, terms, tail, made=Made("sum", tuple(nonzero))))

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        """Product of two signals; letters they share are identified, letters not in ``out`` are summed.

        Pairs of kernels are taken from the largest possible product down, and the rest is bounded by Cauchy-Schwarz
        (or, when one factor is an initial tensor, by its operator norm) once it falls ``gap`` below the result.
        """
        out = self._live(out)
        if a.zero or b.zero:
            return Signal(out, {})
        spec, contraction, cost = self._spec(a.letters, b.letters, out)
        extra = min(x for x in (cost, self._operator_cost(a, b, out), self._operator_cost(b, a, out)) if x is not None)
        weights = self._weights
        left = sorted(((e + weights[k], k, e) for k, e in a.terms.items()), reverse=True)
        right = sorted(((e + weights[k], k, e) for k, e in b.terms.items()), reverse=True)
        gap, step = self._gap, self._step
        terms: dict[int, int] = {}
        lead: int | None = None
        dropped: int | None = None
        for ra, ka, ea in left:
            for rb, kb, eb in right:
                reach = ra + rb + extra
                if lead is not None and reach < lead - gap:
                    dropped = _max(dropped, reach)
                    break
                e0 = ea + eb
                top = ra + rb + cost
                slack = gap if lead is None else top - lead + gap
                while True:
                    slack = -(-slack // step) * step
                    found, cut = self._product(ka, kb, spec, contraction, slack)
                    for k, gain in found:
                        e = e0 + gain
                        if k not in terms or terms[k] < e:
                            terms[k] = e
                            size = e + weights[k]
                            if lead is None or size > lead:
                                lead = size
                    if (lead is not None and slack >= top - lead + gap) or cut is None:
                        break
                    slack = slack + step if lead is None else top - lead + gap
                if cut is not None:
                    dropped = _max(dropped, top + cut)
        ba, bb = self.bound(a), self.bound(b)
        if a.tail is not None and bb is not None:
            dropped = _max(dropped, a.tail + bb + extra)
        if b.tail is not None and ba is not None:
            dropped = _max(dropped, b.tail + ba + extra)
        return self._prune(Signal(out, terms, dropped, made=Made("product", (a, b), tag=tag)))

    # walking back ----------------------------------------------------------------------------------------------

    def leading(self, s: Signal) -> list[int]:
        """Kernels whose exponent is the one of the whole signal, simplest monomial first."""
        lead = self.rms(s)
        if lead is None:
            return []
        size = {k: e + self._weights[k] for k, e in s.terms.items()}
        return sorted((k for k in size if self.value(size[k]) == self.value(lead)), key=lambda k: -size[k])

    def kernel(self, k: int) -> Kernel:
        return self._kernels[k]

    def contraction(self, a: str, b: str, out: str) -> Contraction:
        """How a product of signals with these letters meets."""
        return self._spec(a, b, out)[1]

    def origin(self, s: Signal, k: int) -> tuple[int, int, Callable[[Kernel, Kernel], Matching]]:
        """Kernels of the two factors of a product whose matching made this kernel, and a function that finds that
        matching for any labelling of them."""
        assert s.made is not None and s.made.rule == "product"
        a, b = s.made.parts
        spec, contraction, _ = self._spec(a.letters, b.letters, s.letters)
        for ka, ea in a.terms.items():
            for kb, eb in b.terms.items():
                slack, found, _ = self._products.get((ka, kb, spec), (0, (), None))
                gain = dict(found).get(k)
                if gain is None or ea + eb + gain != s.terms[k]:
                    continue

                def wanted(kernel: Kernel, coherent: tuple[str, ...], gain: int = gain) -> bool:
                    return kernel == self._kernels[k] and sum(2 * self._half[axis] for axis in coherent) == gain

                def matching(left: Kernel, right: Kernel, slack: int = slack) -> Matching:
                    return witness(left, right, contraction, self._halves, slack >> self._shift, wanted)

                return ka, kb, matching
        raise LookupError("no product of the factors has this kernel")

    # inside ----------------------------------------------------------------------------------------------------

    def _live(self, letters: str) -> str:
        return "".join(x for x in letters if x in self.letters)

    def intern(self, kernel: Kernel) -> int:
        if kernel not in self._ids:
            self._ids[kernel] = len(self._kernels)
            self._kernels.append(kernel)
            weight = sum(self._half[axis] for axis in kernel.summed())
            self._weights.append(weight - sum(self._half[axis] for axis in kernel.deltas()))
        return self._ids[kernel]

    def _spec(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        key = (a, b, out)
        if key not in self._specs:
            number = {x: k for k, x in enumerate(dict.fromkeys(a + b))}
            contraction = Contraction(
                tuple(number[x] for x in a), tuple(number[x] for x in b), tuple(number[x] for x in out)
            )
            cost = sum(2 * self._half[self.letters[x]] for x in number if x not in out)
            self._specs[key] = (len(self._specs), contraction, cost)
        return self._specs[key]

    def _operator_cost(self, a: Signal, b: Signal, out: str) -> int | None:
        """Largest growth of the rms of ``b`` under the initial tensor ``a``, beyond the size of its entries.

        Law: a Gaussian matrix of F rows and C columns has operator norm sigma max(F, C)^(1/2), whatever it acts on.
        """
        if a.leaf is None:
            return None
        rows = sum(self._half[self.letters[x]] for x in a.leaf if x in out and x not in b.letters)
        cols = sum(self._half[self.letters[x]] for x in a.leaf if x not in out)
        lost = sum(2 * self._half[self.letters[x]] for x in b.letters if x not in out and x not in a.leaf)
        return max(rows, cols) + cols - rows + lost

    def _product(
        self, ka: int, kb: int, spec: int, contraction: Contraction, slack: int
    ) -> tuple[tuple[tuple[int, int], ...], int | None]:
        """Kernels of a product within ``slack`` of Cauchy-Schwarz, and a bound on the others relative to it."""
        key = (ka, kb, spec)
        known = self._products.get(key)
        if known is None or (known[2] is not None and known[0] < slack):
            scaled = slack >> self._shift
            limit = self.work // 2  # one product may use half of what is left, and loses it if that is not enough
            self.work -= limit
            product = multiply(self._kernels[ka], self._kernels[kb], contraction, self._halves, scaled, limit)
            self.work += limit - product.nodes
            best: dict[int, int] = {}
            for kernel, coherent in product.terms:
                k = self.intern(kernel)
                gain = sum(2 * self._half[axis] for axis in coherent)
                if k not in best or best[k] < gain:
                    best[k] = gain
            cut = None if product.cut is None else product.cut << self._shift
            known = self._products[key] = (slack, tuple(best.items()), cut)
        return known[1], known[2]

    @staticmethod
    def _varies(kernel: Kernel, at: int, ignoring: str) -> bool:
        c = kernel.opens[at]
        return kernel.opens.count(c) > 1 or any(c in classes and name != ignoring for name, classes in kernel.leaves)

    def _prune(self, s: Signal) -> Signal:
        lead = self.rms(s)
        if lead is None:
            return s
        floor = lead - self._gap
        keep: dict[int, int] = {}
        tail = s.tail
        for k, e in s.terms.items():
            size = e + self._weights[k]
            if size >= floor:
                keep[k] = e
            else:
                tail = _max(tail, size)
        return replace(s, terms=keep, tail=tail)


def _max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None or a >= b else b
