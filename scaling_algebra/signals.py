"""Signals in normal order: exact exponents of sums of Gaussian tensor networks, on one ray.

A signal maps kernels to exponents. An exponent is packed into one integer (see ``Algebra``): the value on the ray
leads, the linear form behind it (powers of the axes, counts of the unknown b, c, d, alpha) follows, so that adding and
comparing exponents is adding and comparing integers, exactly. What pruning drops is bounded by ``Signal.tail``.
Read next: ``training.py`` (which signals a network makes), ``kernels.py`` (the product of two kernels).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from .axes import AXES, Ray
from .exponents import Power
from .kernels import Contraction, Kernel, leaf_kernel, multiply

FIELD = 24
"""Bits of each component of a packed exponent; components are small counts, far below 2**23."""


@dataclass(frozen=True, slots=True)
class Form:
    """Where an exponent comes from: a power of the axes plus integer multiples of the unknowns.

    ``value`` on the ray = ``power`` on the ray + sum of ``unknowns[u]`` times the value of u.
    """

    power: Power
    unknowns: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Signal:
    """A random tensor as kernels with exponents.

    Attributes:
        letters: name of each open index, e.g. ``"ik"``; the axis of each letter is fixed by the algebra.
        terms: kernel id -> packed exponent of its coefficient (the std of its leaves included).
        tail: packed upper bound on the root-mean-square of everything pruning dropped; None if nothing was.
        leaf: letters of the tensor when the signal is one initial tensor (enables the operator-norm bound).
    """

    letters: str
    terms: dict[int, int]
    tail: int | None = None
    leaf: str | None = None

    @property
    def zero(self) -> bool:
        """Exactly zero: no kernels and nothing dropped."""
        return not self.terms and self.tail is None


class Algebra:
    """Arithmetic of signals on one ray.

    Args:
        ray: rates of the axes.
        letters: axis of each index letter, e.g. ``{"a": "N", "i": "M"}``.
        unknowns: names whose counts the packed exponents carry.
        gap: kernels this far (in powers of n) below the leading one of a signal are dropped, and bounded.

    Indices of axes that do not grow have weight 0 everywhere, so they are left out of the kernels.
    """

    def __init__(self, ray: Ray, letters: Mapping[str, str], unknowns: Sequence[str], gap: Fraction) -> None:
        self.ray = ray
        self.letters = {x: axis for x, axis in letters.items() if axis in AXES and ray[axis]}
        self.unknowns = tuple(unknowns)
        self._unit = 720720 * lcm(*(ray[axis].denominator for axis in AXES))
        self._shift = FIELD * (len(AXES) + len(self.unknowns) + 1)
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

    # packed exponents ------------------------------------------------------------------------------------------

    def pack(self, value: Fraction, axes: Mapping[str, Fraction | int], unknowns: Mapping[str, int]) -> int:
        """One integer for an exponent. From the top: its value; minus the number of unknown factors, so that of equal
        exponents the simplest monomial wins; counts of the unknowns; twice the power of each axis."""
        scaled = value * self._unit
        if scaled.denominator != 1:
            raise ValueError(f"exponent {value} is finer than the unit 1/{self._unit}")
        packed = scaled.numerator << self._shift
        for k, axis in enumerate(AXES):
            if axis in axes:
                packed += int(2 * axes[axis]) << FIELD * k
        for k, name in enumerate(self.unknowns):
            packed += unknowns.get(name, 0) << FIELD * (len(AXES) + k)
        return packed - (sum(map(abs, unknowns.values())) << FIELD * (len(AXES) + len(self.unknowns)))

    def scale(self, axes: Mapping[str, Fraction | int]) -> int:
        """Packed exponent of a product of powers of the axes."""
        return self.pack(Power.of(axes).on(self.ray), axes, {})

    def value(self, packed: int) -> Fraction:
        """Exponent of n."""
        return Fraction((packed + (1 << self._shift - 1)) >> self._shift, self._unit)

    def form(self, packed: int) -> Form:
        """The linear form behind a packed exponent."""
        counts = []
        for _ in range(len(AXES) + len(self.unknowns)):
            low = packed & (1 << FIELD) - 1
            low -= low >> FIELD - 1 << FIELD
            counts.append(low)
            packed = packed - low >> FIELD
        axes = {axis: Fraction(c, 2) for axis, c in zip(AXES, counts, strict=False)}
        named = zip(self.unknowns, counts[len(AXES) :], strict=True)
        return Form(Power.of(axes), tuple((u, c) for u, c in named if c))

    # signals ---------------------------------------------------------------------------------------------------

    def tensor(self, name: str, letters: str, exponent: int, indices: str | None = None) -> Signal:
        """An initial tensor with entries of size ``exponent``. ``indices``: the letters it truly has (others are
        broadcast: a tensor shared across experts has no expert index)."""
        live = self._live(letters)
        own = self._live(letters if indices is None else indices)
        kernel = leaf_kernel(name, [self.letters[x] for x in live], [live.index(x) for x in own])
        return Signal(live, {self._intern(kernel): exponent}, leaf=own)

    def constant(self, letters: str, exponent: int = 0) -> Signal:
        """A deterministic tensor with all entries of size ``exponent``."""
        live = self._live(letters)
        return Signal(
            live, {self._intern(Kernel(tuple(self.letters[x] for x in live), tuple(range(len(live))), ())): exponent}
        )

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

    def shift(self, s: Signal, exponent: int) -> Signal:
        """Multiply by a constant of the given size."""
        if not exponent:
            return s
        tail = None if s.tail is None else s.tail + exponent
        return Signal(s.letters, {k: e + exponent for k, e in s.terms.items()}, tail)

    def add(self, signals: Iterable[Signal]) -> Signal:
        """Sum: equal kernels keep the larger exponent."""
        parts = list(signals)
        nonzero = [s for s in parts if not s.zero]
        if len(nonzero) <= 1:
            return nonzero[0] if nonzero else parts[0]
        terms = dict(nonzero[0].terms)
        tail = nonzero[0].tail
        for s in nonzero[1:]:
            tail = _max(tail, s.tail)
            for k, e in s.terms.items():
                if k not in terms or terms[k] < e:
                    terms[k] = e
        return self._prune(Signal(nonzero[0].letters, terms, tail))

    def contract(self, a: Signal, b: Signal, out: str) -> Signal:
        """Product of two signals; letters they share are identified, letters not in ``out`` are summed.

        Pairs of kernels are taken from the largest possible product down, and the rest is bounded by Cauchy-Schwarz
        (or, when one factor is an initial tensor, by its operator norm) once it falls ``gap`` below the result.
        """
        out = self._live(out)
        if a.zero or b.zero:
            return Signal(out, {})
        spec, how, cost = self._spec(a.letters, b.letters, out)
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
                    found, cut = self._product(ka, kb, spec, how, slack)
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
        return self._prune(Signal(out, terms, dropped))

    # inside ----------------------------------------------------------------------------------------------------

    def _live(self, letters: str) -> str:
        return "".join(x for x in letters if x in self.letters)

    def _intern(self, kernel: Kernel) -> int:
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
            how = Contraction(tuple(number[x] for x in a), tuple(number[x] for x in b), tuple(number[x] for x in out))
            cost = sum(2 * self._half[self.letters[x]] for x in number if x not in out)
            self._specs[key] = (len(self._specs), how, cost)
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
        self, ka: int, kb: int, spec: int, how: Contraction, slack: int
    ) -> tuple[tuple[tuple[int, int], ...], int | None]:
        """Kernels of a product within ``slack`` of Cauchy-Schwarz, and a bound on the others relative to it."""
        key = (ka, kb, spec)
        known = self._products.get(key)
        if known is None or (known[2] is not None and known[0] < slack):
            scaled = slack >> self._shift
            limit = self.work // 2  # one product may use half of what is left, and loses it if that is not enough
            self.work -= limit
            product = multiply(self._kernels[ka], self._kernels[kb], how, self._halves, scaled, limit)
            self.work += limit - product.nodes
            best: dict[int, int] = {}
            for kernel, coherent in product.terms:
                k = self._intern(kernel)
                gain = sum(2 * self._half[axis] for axis in coherent)
                if k not in best or best[k] < gain:
                    best[k] = gain
            cut = None if product.cut is None else product.cut << self._shift
            known = self._products[key] = (slack, tuple(best.items()), cut)
        return known[1], known[2]

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
        return Signal(s.letters, keep, tail)


def _max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None or a >= b else b
