"""Signals in normal order: exact exponents of sums of Gaussian tensor networks, on one ray.

A signal maps kernels to packed exponents (``packing.py``). What pruning drops is bounded by ``Signal.tail``.
Read next: ``trajectory.py`` (which signals a network makes), ``kernels.py`` (the product of two kernels),
``monomials.py`` (walks back from a kernel to the initial tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal, Self

from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.powers import Form

from .canonical import Leaf, canonical
from .kernels import (
    DOUBT,
    INDICATOR,
    Contraction,
    Exhausted,
    Kernel,
    Matching,
    leaf_kernel,
    multiply,
    population,
    witness,
)
from .packing import Packing

_DOUBTS = 24
"""Kernels that may cancel others, as many as a signal keeps."""
_WHOLE = Fraction(100)
"""The gap of a rung that drops nothing, in powers of the axis that grows fastest: wider than any two sizes differ."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A deterministic factor: what it is called, its packed size, and whether that size is certified."""

    label: str
    size: int
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """How a signal was made, for walking back (``monomials.py``); no computation reads it.

    Attributes:
        rule: the operation. ``parts`` are its operands, ``scalars`` the factors of ``scaled``.
        tag: what kind of product it is, e.g. ``forward ROLE``: the inner product of a rank-one update with its input.
    """

    rule: Literal["tensor", "constant", "product", "sum", "scaled", "centred", "restricted", "relabelled", "doubted"]
    parts: tuple[Signal, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Rung:
    """How closely signals are kept: one rung of a ladder that is climbed until an answer is certified.

    Attributes:
        gap: kernels this far below the leading one are dropped, in powers of the axis that grows fastest.
        most: a signal keeps at most so many kernels, the largest, and among equals those with the fewest leaves.
        leaves: kernels with more leaves than this are dropped.
        work: nodes of matching searches that one product of two signals may take.
        total: nodes of all products that one question may need.
        whole: nothing is dropped, whatever the gap; a product that takes more work raises ``Exhausted``.
    """

    gap: Fraction
    most: int | None = None
    leaves: int | None = None
    work: int | None = None
    total: int | None = None
    whole: bool = False


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
        flat: letters along which all of it is constant, what pruning dropped included.
        centred: letters along which all of it sums to zero.
        least: packed lower bound on its root-mean-square that no kernel shows.
        sound: every size that it was divided by is certified.
        loss: packed bound on what was dropped and may cancel something else; part of the tail.
    """

    letters: str
    terms: dict[int, int]
    tail: int | None = None
    leaf: str | None = None
    name: str = ""
    made: Made | None = None
    flat: frozenset[str] = frozenset()
    centred: frozenset[str] = frozenset()
    least: int | None = None
    sound: bool = True
    loss: int | None = None

    @property
    def zero(self) -> bool:
        """Exactly zero: no kernels and nothing dropped."""
        return not self.terms and self.tail is None

    def but(self, **changes: Any) -> Self:
        """The same signal with other values of some attributes; quicker than ``dataclasses.replace``."""
        return type(self)(**{**{x: getattr(self, x) for x in self.__dataclass_fields__}, **changes})


class Algebra(Packing):
    """Arithmetic of signals on one ray.

    Args:
        ray: rates of the axes.
        letters: axis of each index letter, e.g. ``{"a": "N", "i": "M"}``.
        unknowns: names whose counts the packed exponents carry.
        gap: see ``Rung``; ``at`` gives the same algebra on another rung.
        tracked: letters to keep even where their axis does not grow, because what depends on them matters.

    Indices of other axes that do not grow have weight 0 everywhere, so they are left out of the kernels. Every product
    of two signals is a pure function of them and of the rung: what was computed before changes no result.
    """

    def __init__(
        self, ray: Ray, letters: Mapping[str, str], unknowns: Sequence[str], gap: Fraction, tracked: str = ""
    ) -> None:
        super().__init__(ray, unknowns)
        self.axes = dict(letters)
        self.letters = {x: axis for x, axis in letters.items() if self.rate(axis) or x in tracked}
        self._half = dict.fromkeys(letters.values(), 0)
        self._half |= {axis: self.pack(ray[axis] / 2, {axis: Fraction(1, 2)}, {}) for axis in AXES}
        self._unit_gap = max(ray[axis] for axis in AXES)
        self._step = self.pack(self._unit_gap / 2, {}, {})
        self._ids: dict[Kernel, int] = {}
        self._kernels: list[Kernel] = []
        self._weights: list[int] = []
        self._doubted: list[bool] = []
        self._clear: dict[int, int] = {}
        """The kernel without a doubt of every one that may cancel."""
        self._order: list[tuple[int, tuple[Leaf, ...], tuple[int, ...], tuple[str, ...]]] = []
        self._halves = {axis: packed + (1 << self._shift - 1) >> self._shift for axis, packed in self._half.items()}
        self._products: dict[tuple[int, int, int], _Searched] = {}
        self._contractions: dict[Contraction, int] = {}
        self._specs: dict[tuple[str, str, str], tuple[int, Contraction, int]] = {}
        self._live: dict[str, str] = {}
        self.work: int | None = None
        self.spent = 0
        """Nodes of the products made so far."""
        self.notes: set[str] = set()
        """What was assumed so far, beyond counting powers, and why something is not known."""
        self.climb(Rung(gap))

    def rate(self, axis: str) -> Fraction:
        """How fast an axis grows."""
        return self.ray[axis] if axis in AXES else Fraction(0)

    def at(self, rung: Rung) -> Algebra:
        """The same algebra on another rung; kernels and their products are shared."""
        other = copy(self)
        other.climb(rung)
        return other

    def climb(self, rung: Rung) -> None:
        """Works on this rung of the ladder of budgets from now on."""
        self.rung, self.work = rung, rung.work
        self._gap = self.pack((_WHOLE if rung.whole else rung.gap) * self._unit_gap, {}, {})

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """What is noted inside, apart from what was before."""
        outer, self.notes = self.notes, set()
        try:
            yield self.notes
        finally:
            self.notes = outer

    # signals ---------------------------------------------------------------------------------------------------

    def tensor(self, name: str, letters: str, exponent: int, indices: str | None = None) -> Signal:
        """An initial tensor with entries of size ``exponent``. ``indices``: the letters it truly has (others are
        broadcast: a tensor shared across experts has no expert index)."""
        live = self.live(letters)
        own = self.live(letters if indices is None else indices)
        kernel = leaf_kernel(name, [self.letters[x] for x in live], [live.index(x) for x in own])
        flat = frozenset(live) - frozenset(own)
        return Signal(live, {self.intern(kernel): exponent}, leaf=own, made=Made("tensor"), flat=flat)

    def constant(self, letters: str, exponent: int = 0) -> Signal:
        """A deterministic tensor with all entries of size ``exponent``."""
        live = self.live(letters)
        kernel = Kernel(tuple(self.letters[x] for x in live), tuple(range(len(live))), ())
        return Signal(live, {self.intern(kernel): exponent}, made=Made("constant"), flat=frozenset(live))

    def unknown(self, letters: str, size: int = 0) -> Signal:
        """A signal of which only a packed bound on the size of its entries is known."""
        return Signal(self.live(letters), {}, size, made=Made("constant"))

    def marked(self, name: str, letters: str, along: str) -> Signal:
        """A constant that depends on some of its indices, as ``centred`` sees it."""
        live = self.live(letters)
        kernel = leaf_kernel(INDICATOR + name, [self.letters[x] for x in live], [live.index(x) for x in along])
        return Signal(live, {self.intern(kernel): 0}, made=Made("tensor"))

    def nothing(self, letters: str) -> Signal:
        """Exactly zero."""
        return Signal(self.live(letters), {})

    def rms(self, s: Signal) -> int | None:
        """Packed exponent of the root-mean-square over entries and initialisation; None for exactly zero.

        Law: each kernel weighs 1/2 per summed class, and -1/2 per repeated open class; the largest kernel wins.
        Source: the half-weight rule, tested against the Wick sum in tests/test_half_weight.py.
        """
        weights, doubted, largest = self._weights, self._doubted, s.least
        for k, e in s.terms.items():
            if (largest is None or e + weights[k] > largest) and not doubted[k]:
                largest = e + weights[k]
        return largest

    def bound(self, s: Signal) -> int | None:
        """Packed upper bound on the root-mean-square of the whole signal, dropped kernels included."""
        weights, largest = self._weights, _max(s.least, s.tail)
        for k, e in s.terms.items():
            if largest is None or e + weights[k] > largest:
                largest = e + weights[k]
        return largest

    def certified(self, s: Signal) -> bool:
        """The leading exponent stands above everything that was dropped, and was divided by certified sizes only."""
        lead, bound = self.rms(s), self.bound(s)
        return self.stands(s) and (bound is None or (lead is not None and self.value(lead) >= self.value(bound)))

    def stands(self, s: Signal) -> bool:
        """The leading exponent is a lower bound: divided by certified sizes, and above all that may cancel it."""
        lead = self.rms(s)
        return s.sound and (s.loss is None or (lead is not None and self.value(lead) > self.value(s.loss)))

    def doubtful(self, s: Signal) -> bool:
        """What may cancel is as large as the rest."""
        lead, bound = self.rms(s), self.bound(s)
        above = s.tail if lead is None else _max(s.tail, lead)
        return bound is not None and (above is None or self.value(bound) > self.value(above))

    def reaches(self, s: Signal, size: int = 0) -> bool:
        """Is a signal at least as large as this?

        Raises:
            Exhausted: that is not certified.
        """
        lead, bound = self.rms(s), self.bound(s)
        if lead is not None and self.value(lead) >= self.value(size):
            return True
        if bound is not None and self.value(bound) >= self.value(size):
            raise Exhausted
        return False

    def varies_apart(self, s: Signal, other: Signal, letter: str) -> bool:
        """Along an index, a signal as large as ``s`` varies where the other does not."""

        def names(x: Signal, kernels: Iterable[int]) -> set[str]:
            return {name for k in kernels for name, _ in self._kernels[k].along(x.letters.index(letter))}

        return bool(names(s, self.leading(s)) - names(other, other.terms))

    def complete(self, s: Signal) -> bool:
        """Certified, and no kernel of the leading size was dropped."""
        lead = self.rms(s)
        return s.sound and (s.tail is None or (lead is not None and self.value(lead) > self.value(s.tail)))

    def powers(self, s: Signal) -> tuple[tuple[Fraction, bool], ...]:
        """Exponents of what a signal is a sum of: of its kernels (True), and a bound on all else that it may hold
        (False)."""
        found = {(self.value(e + self._weights[k]), not self._doubted[k]) for k, e in s.terms.items()}
        bounds = (x for x in (s.tail, s.least) if x is not None)
        return tuple(sorted(found | {(self.value(x), False) for x in bounds}, reverse=True))

    def forms(self, s: Signal) -> tuple[Form, ...]:
        """Sizes of the kernels of a signal, those that may cancel left out, as powers of the axes and counts of the
        unknowns; each once."""
        clear = (e + self._weights[k] for k, e in s.terms.items() if not self._doubted[k])
        return tuple(dict.fromkeys(self.form(x) for x in clear))

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        """Multiply by deterministic factors."""
        exponent = sum(x.size for x in scalars)
        tail = None if s.tail is None else s.tail + exponent
        terms = {k: e + exponent for k, e in s.terms.items()}
        sound = s.zero or (s.sound and all(x.certain for x in scalars))
        made = Made("scaled", (s,), scalars)
        least, loss = (None if x is None else x + exponent for x in (s.least, s.loss))
        return s.but(terms=terms, tail=tail, leaf=None, name="", made=made, least=least, sound=sound, loss=loss)

    def centred(self, s: Signal, letter: str, ignoring: str = "") -> Signal:
        """Subtract the mean over an index: the part that is constant along it cancels exactly, the rest keeps its size.

        Law: P = I - 11^T/M annihilates what does not depend on the index, and is a projection of rank M - 1.

        Args:
            ignoring: a tensor that counts as constant along the index (a selection, inside its own support).
        """
        if letter not in s.letters:
            raise ValueError(f"cannot centre over {letter!r}: the algebra does not track it")
        if letter in s.flat:
            return self.nothing(s.letters)
        at = s.letters.index(letter)
        keep = {k: e for k, e in s.terms.items() if self._varies(self._kernels[k], at, ignoring)}
        s = s.but(least=None)
        zero = s.centred if ignoring else s.centred | {letter}
        return s.but(terms=keep, leaf=None, name="", made=Made("centred", (s,)), centred=zero)

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
        letters, flat = s.letters.replace(letter, to), frozenset(to if x == letter else x for x in s.flat)
        made, zero = Made("restricted", (s,)), s.centred - {letter}
        return s.but(letters=letters, terms=terms, leaf=None, made=made, flat=flat, centred=zero)

    def retyped(self, k: int, at: int, to: str) -> int:
        """A kernel with the axis of one open index replaced by that of a letter."""
        kernel = self._kernels[k]
        types = list(kernel.types)
        types[kernel.opens[at]] = self.letters[to]
        return self.intern(Kernel(*canonical(types, kernel.opens, kernel.leaves)))

    def doubted(self, s: Signal, along: Signal) -> Signal:
        """The part of a signal that is orthogonal to another: what both have may cancel in later products, so there it
        counts as an upper bound only; the size of the whole is known."""
        terms = dict[int, int]()
        for k, e in s.terms.items():
            found = self.with_doubt(k) if k in along.terms else k
            terms[found] = max(e, terms.get(found, e))
        made = Made("doubted", (s,))
        return s.but(terms=terms, least=self.rms(s), leaf=None, made=made)

    def with_doubt(self, k: int) -> int:
        kernel = self._kernels[k]
        if self._doubted[k]:
            return k
        return self.intern(Kernel(kernel.types, kernel.opens, tuple(sorted({*kernel.leaves, DOUBT}))))

    def relabelled(self, s: Signal, old: str, new: str) -> Signal:
        """The same signal with its letters ``old`` called ``new``, position by position.

        Raises:
            ValueError: the letters do not correspond one to one, or change their axis.
        """
        to = dict(zip(old, new, strict=False))
        if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
            raise ValueError(f"cannot call {old!r} {new!r}: letters must correspond one to one")
        for x, y in to.items():
            if self.axes.get(x) is None or self.axes.get(x) != self.axes.get(y):
                raise ValueError(f"cannot call {x!r} {y!r}: they are not letters of one axis")
        if set(s.letters) - set(old):
            raise ValueError(f"cannot call {old!r} {new!r}: the signal has letters {s.letters!r}")
        leaf = None if s.leaf is None else "".join(to[x] for x in s.leaf)
        letters = "".join(to[x] for x in s.letters)
        flat, zero = frozenset(to[x] for x in s.flat), frozenset(to[x] for x in s.centred)
        return s.but(letters=letters, leaf=leaf, made=Made("relabelled", (s,)), flat=flat, centred=zero)

    def add(self, signals: Iterable[Signal]) -> Signal:
        """Sum: equal kernels keep the larger exponent.

        Raises:
            ValueError: the signals have different letters.
        """
        parts = self._aligned(signals)
        nonzero = [s for s in parts if not s.zero]
        if len(nonzero) <= 1:
            return (nonzero or parts)[0]
        terms, tail, twice = dict[int, int](), None, set[int]()
        for s in nonzero:
            tail = _max(tail, s.tail)
            for k, e in s.terms.items():
                if k not in terms or terms[k] < e:
                    terms[k] = e
                elif self.value(terms[k]) == self.value(e):
                    twice.add(k)
        least = max((s.least for s in nonzero if s.least is not None), default=None)
        loss = max((s.loss for s in nonzero if s.loss is not None), default=None)
        whole = Signal(nonzero[0].letters, terms, tail, made=Made("sum", tuple(nonzero)), least=least, loss=loss)
        if twice and not twice.isdisjoint(self.leading(whole)):
            self.notes.add("generic-constants")
        return self._prune(self._shared(whole))

    def reduced(self, s: Signal, by: Signal) -> Signal:
        """A signal plus that multiple of another which removes the leading kernel of the other from it.

        Law: kernels are linearly independent, with deterministic coefficients; so a projection that annihilates ``by``
        makes the same of both, and what is left is not parallel to ``by``.
        """
        pivot = next((k for k in self.leading(by) if k in s.terms), None)
        if pivot is None:
            return s
        factor = Scalar("what the common direction is multiplied by", s.terms[pivot] - by.terms[pivot])
        other = self.scaled(by, factor)
        rest = (x.but(terms={k: e for k, e in x.terms.items() if k != pivot}) for x in (s, other))
        return self.add(rest)

    def contract(self, a: Signal, b: Signal, out: str, tag: str = "") -> Signal:
        """Product of two signals; letters they share are identified, letters not in ``out`` are summed.

        Pairs of kernels are taken from the largest possible product down, and the rest is bounded (``_bound``) once it
        falls ``gap`` below the result; where that takes too much work, once it cannot exceed the result.

        Raises:
            ValueError: ``out`` has a letter that neither signal has.
            Exhausted: the product takes more than the work of the rung.
        """
        out = self.live(out)
        if a.zero or b.zero:
            return Signal(out, {})
        for x in {*a.letters, *b.letters} - set(out):  # of what sums to zero, only a factor that varies is seen
            if (x in a.centred and x not in b.letters) or (x in b.centred and x not in a.letters):
                return Signal(out, {})
            if x in a.centred and x not in (b.leaf or ""):  # an initial tensor varies, and keeps its operator norm
                b = self.centred(b, x)
            elif x in b.centred and x not in (a.leaf or ""):
                a = self.centred(a, x)
        if a.zero or b.zero:
            return Signal(out, {})
        try:
            return self._contract(a, b, out, tag, self._gap)
        except Exhausted:
            if self.rung.whole:
                raise
            return self._contract(a, b, out, tag, -self._step)

    def _contract(self, a: Signal, b: Signal, out: str, tag: str, gap: int) -> Signal:
        spec, contraction, cost = self._spec(a.letters, b.letters, out)
        extra = self._bound(a, b, out)
        weights = self._weights
        left, right = self._sorted(a), self._sorted(b)
        step, work = self._step, self.work
        terms: dict[int, int] = {}
        lead: int | None = None
        dropped: int | None = None
        doubts = any(self._doubted[k] for _, k, _ in right)
        loss: int | None = None
        for ra, ka, ea in left:
            for rb, kb, eb in right:
                reach = ra + rb + extra
                if lead is not None and (reach < lead - gap if gap >= 0 else self.value(reach) <= self.value(lead)):
                    dropped = _max(dropped, reach)
                    loss = _max(loss, reach) if doubts or self._doubted[ka] else loss
                    break
                e0 = ea + eb
                top = ra + rb + cost
                slack = max(gap, 0) if lead is None else top - lead + gap
                while True:
                    slack = -(-slack // step) * step
                    found, cut, nodes = self._product(ka, kb, spec, contraction, slack, work)
                    self.spent += nodes
                    if work is not None:
                        work -= nodes
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
                    loss = _max(loss, top + cut) if self._doubted[ka] or self._doubted[kb] else loss
        if self.rung.whole and dropped is not None:
            raise Exhausted
        ba, bb = self.bound(a), self.bound(b)
        if a.tail is not None and bb is not None:
            dropped = _max(dropped, a.tail + bb + extra)
        if b.tail is not None and ba is not None:
            dropped = _max(dropped, b.tail + ba + extra)
        if a.loss is not None and bb is not None:
            loss = _max(loss, a.loss + bb + extra)
        if b.loss is not None and ba is not None:
            loss = _max(loss, b.loss + ba + extra)
        made = Made("product", (a, b), tag=tag)
        return self._prune(self._shared(Signal(out, terms, dropped, made=made, loss=loss)))

    def product(self, signals: Sequence[Signal], out: str, tag: str = "") -> Signal:
        """Product of any number of signals; letters they share are identified, letters not in ``out`` are summed.

        Factors meet two by two: constants first, then initial tensors and what they act on, since there the operator
        norm bounds what is dropped, then the pair with the smallest result. A letter is summed as soon as no other
        factor has it.

        Raises:
            ValueError: no signals, or ``out`` has a letter that none of them has.
        """
        pool = list(signals)
        if not pool:
            raise ValueError("a product needs factors")
        if len(pool) == 1:
            return self.contract(pool[0], self.constant(""), out, tag)
        out = self.live(out)
        while len(pool) > 2:
            i, j = min(combinations(range(len(pool)), 2), key=lambda pair: self._urgency(pool, pair, out))
            pool[i] = self.contract(pool[i], pool[j], self._kept(pool, i, j, out), tag)
            del pool[j]
        return self.contract(pool[0], pool[1], out, tag)

    # walking back ----------------------------------------------------------------------------------------------

    def leading(self, s: Signal) -> list[int]:
        """Kernels whose exponent is the one of the whole signal, simplest monomial first."""
        lead = self.rms(s)
        if lead is None:
            return []
        size = {k: e + self._weights[k] for k, e in s.terms.items()}
        clear = {k: e for k, e in size.items() if not self._doubted[k]}
        size = clear if any(self.value(e) == self.value(lead) for e in clear.values()) else size
        return sorted((k for k in size if self.value(size[k]) == self.value(lead)), key=lambda k: -size[k])

    def kernel(self, k: int) -> Kernel:
        return self._kernels[k]

    def weight(self, k: int) -> int:
        """Packed size of a kernel with coefficient 1: half of every summed class, less half of every repeated one."""
        return self._weights[k]

    def contraction(self, a: str, b: str, out: str) -> Contraction:
        """How a product of signals with these letters meets."""
        return self._spec(a, b, out)[1]

    def origin(self, s: Signal, k: int) -> tuple[int, int, Callable[[Kernel, Kernel], Matching]]:
        """Kernels of the two factors of a product whose matching made this kernel, and a function that finds that
        matching for any labelling of them."""
        assert s.made is not None and s.made.rule == "product"
        a, b = s.made.parts
        spec, contraction, cost = self._spec(a.letters, b.letters, s.letters)
        extra, size = self._bound(a, b, s.letters), s.terms[k] + self._weights[k]
        for ra, ka, ea in self._sorted(a):
            for rb, kb, eb in self._sorted(b):
                if ra + rb + extra < size:
                    break
                slack = -(-max(ra + rb + cost - size, 0) // self._step) * self._step
                try:
                    found, _, _ = self._product(ka, kb, spec, contraction, slack, self.work)
                except Exhausted:
                    continue
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

    def live(self, letters: str) -> str:
        if letters not in self._live:
            self._live[letters] = "".join(x for x in letters if x in self.letters)
        return self._live[letters]

    def intern(self, kernel: Kernel) -> int:
        if kernel not in self._ids:
            doubted = DOUBT in kernel.leaves
            if doubted:
                clear = self.intern(Kernel(kernel.types, kernel.opens, tuple(x for x in kernel.leaves if x != DOUBT)))
                self._clear[len(self._kernels)] = clear
            self._ids[kernel] = len(self._kernels)
            self._kernels.append(kernel)
            self._doubted.append(doubted)
            self._order.append((len(kernel.leaves), kernel.leaves, kernel.opens, kernel.types))
            weight = sum(self._half[axis] for axis in kernel.summed())
            self._weights.append(weight - sum(self._half[axis] for axis in kernel.deltas()))
        return self._ids[kernel]

    def _aligned(self, signals: Iterable[Signal]) -> list[Signal]:
        """Signals with their letters in the order of the first."""
        parts = list(signals)
        letters = parts[0].letters
        for k, s in enumerate(parts):
            if set(s.letters) != set(letters):
                raise ValueError(f"cannot add signals with letters {letters!r} and {s.letters!r}")
            if s.letters != letters:
                parts[k] = self.contract(s, self.constant(""), letters).but(name=s.name)
        return parts

    def _deterministic(self, s: Signal) -> bool:
        return s.tail is None and not any(self._kernels[k].leaves for k in s.terms)

    def _kept(self, pool: Sequence[Signal], i: int, j: int, out: str) -> str:
        """Letters of two factors that the result or another factor has."""
        rest = set(out).union(*(s.letters for k, s in enumerate(pool) if k not in (i, j)))
        return "".join(x for x in dict.fromkeys(pool[i].letters + pool[j].letters) if x in rest)

    def _urgency(self, pool: Sequence[Signal], pair: tuple[int, int], out: str) -> tuple[int, Fraction]:
        """How late two factors of a product should meet."""
        a, b = (pool[k] for k in pair)
        shared, kept = set(a.letters) & set(b.letters), self._kept(pool, *pair, out)
        constants = sum(map(self._deterministic, (a, b)))
        leaves = [s.leaf for s in (a, b) if s.leaf is not None]
        acts = len(leaves) == 1 and bool((shared & set(leaves[0])) - set(kept))
        rank = 0 if constants == 2 else 1 if constants and (acts or not leaves) else 2 if acts else 3
        if rank == 3 and (not shared or len(leaves) == 2):
            rank = 4 if shared else 5
        return rank, sum((self.rate(self.letters[x]) for x in kept), Fraction(0))

    def _sorted(self, s: Signal) -> list[tuple[int, int, int]]:
        """(size, kernel, exponent) from the largest down, in an order that depends on the kernels alone."""
        found = [(e + self._weights[k], k, e) for k, e in s.terms.items()]
        return sorted(found, key=lambda term: (-term[0], self._order[term[1]]))

    def _spec(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        """How two factors meet, with a number for it, and the packed dimension of what is summed."""
        if (a, b, out) not in self._specs:
            self._specs[a, b, out] = self._met(a, b, out)
        return self._specs[a, b, out]

    def _met(self, a: str, b: str, out: str) -> tuple[int, Contraction, int]:
        number = {x: k for k, x in enumerate(dict.fromkeys(a + b))}
        if not set(out) <= set(number):
            raise ValueError(f"the product has letters {out!r}, its factors only {a!r} and {b!r}")
        axes = {self.letters[x] for x in out}
        if any(axis != population(axis) and population(axis) in axes for axis in axes):
            raise ValueError(
                f"the product keeps letters {out!r} of active and of all experts: how often they meet is open"
            )
        contraction = Contraction(
            tuple(number[x] for x in a), tuple(number[x] for x in b), tuple(number[x] for x in out)
        )
        cost = sum(2 * self._half[self.letters[x]] for x in number if x not in out)
        return self._contractions.setdefault(contraction, len(self._contractions)), contraction, cost

    def _bound(self, a: Signal, b: Signal, out: str) -> int:
        """Upper bound on the size of a product, beyond the sizes of its factors, whatever they are.

        Law: by Cauchy-Schwarz over the summed letters, rms(a b) <= (their dimensions) rms(a) rms(b), entry by entry of
        the letters that both have and the result keeps. A signal is exchangeable along every axis, and moments of
        polynomials in Gaussians are equivalent (hypercontractivity), so an average over such entries loses no power of
        n, but for entries with equal indices: they are rare, and may be larger by the square root of how rare they are.
        So each axis that the factors share and keep in more than one letter costs half its dimension per further one.
        Where a factor is an initial tensor its operator norm is another bound.
        """
        sums = sum(2 * self._half[self.letters[x]] for x in {*a.letters, *b.letters} if x not in out)
        shared: dict[str, list[int]] = {}
        for x in a.letters:
            if x in b.letters and x in out and x not in a.flat | b.flat:
                shared.setdefault(population(self.letters[x]), []).append(self._half[self.letters[x]])
        meet = sum(sum(halves) - min(halves) for halves in shared.values())
        operators = (self._operator_cost(a, b, out), self._operator_cost(b, a, out))
        return min((sums + meet, *(x for x in operators if x is not None)))

    def _operator_cost(self, a: Signal, b: Signal, out: str) -> int | None:
        """Largest growth of the rms of ``b`` under the initial tensor ``a``, beyond the size of its entries.

        Law: a Gaussian matrix of F rows and C columns has operator norm sigma max(F, C)^(1/2), whatever it acts on.
        """
        if a.leaf is None:
            return None
        varying = set(b.letters) - b.flat
        rows = sum(self._half[self.letters[x]] for x in a.leaf if x in out and x not in varying)
        cols = sum(self._half[self.letters[x]] for x in a.leaf if x not in out)
        others = {*a.letters, *b.letters} - {*a.leaf, *out}
        lost = sum(2 * self._half[self.letters[x]] for x in others)
        return max(rows, cols) + cols - rows + lost

    def _product(
        self, ka: int, kb: int, spec: int, contraction: Contraction, slack: int, limit: int | None
    ) -> tuple[tuple[tuple[int, int], ...], int | None, int]:
        """Kernels of a product within ``slack`` of Cauchy-Schwarz, a bound on the others relative to it, and the nodes
        of the search: a pure function of the arguments, remembered.

        Raises:
            Exhausted: the search has more nodes than the limit.
        """
        known = self._products.setdefault((ka, kb, spec), _Searched({}, {}))
        scaled = slack >> self._shift
        if known.complete is not None and known.complete <= scaled:
            scaled = known.complete
        if scaled not in known.found:
            if limit is not None and limit <= known.beyond.get(scaled, -1):
                raise Exhausted
            try:
                product = multiply(self._kernels[ka], self._kernels[kb], contraction, self._halves, scaled, limit)
            except Exhausted:
                assert limit is not None
                known.beyond[scaled] = limit
                raise
            best: dict[int, int] = {}
            for kernel, coherent in product.terms:
                k = self.intern(kernel)
                gain = sum(2 * self._half[axis] for axis in coherent)
                if k not in best or best[k] < gain:
                    best[k] = gain
            cut = None if product.cut is None else product.cut << self._shift
            if cut is None and (known.complete is None or scaled < known.complete):
                known.complete = scaled
            known.found[scaled] = tuple(best.items()), cut, product.nodes
        found = known.found[scaled]
        if limit is not None and found[2] > limit:
            raise Exhausted
        return found

    @staticmethod
    def _varies(kernel: Kernel, at: int, ignoring: str) -> bool:
        c = kernel.opens[at]
        return kernel.opens.count(c) > 1 or any(c in classes and name != ignoring for name, classes in kernel.leaves)

    @staticmethod
    def _shared(s: Signal) -> Signal:
        """A new sum or product, now with what it has because all its parts have it."""
        assert s.made is not None
        parts = s.made.parts
        varying = {x for part in parts for x in part.letters if x not in part.flat}
        if s.made.rule == "sum":
            zero = frozenset.intersection(*(part.centred for part in parts))
        else:
            zero = frozenset(
                x
                for part in parts
                for x in part.centred & set(s.letters)
                if all(x not in set(other.letters) - other.flat for other in parts if other is not part)
            )
        s.flat, s.centred, s.sound = frozenset(s.letters) - varying, zero, all(part.sound for part in parts)
        return s

    def _prune(self, s: Signal) -> Signal:
        """A new signal, now with what the rung does not keep moved to its tail.

        A kernel that may cancel and is as large as the same kernel without a doubt may cancel that, too.
        """
        for k in [k for k in s.terms if self._doubted[k]]:
            clear = self._clear.get(k)
            if clear is not None and clear in s.terms and self.value(s.terms[clear]) <= self.value(s.terms[k]):
                del s.terms[clear]
        lead = self.rms(s)
        if lead is None or self.rung.whole:
            return s
        rung, floor, order, weights = self.rung, lead - self._gap, self._order, self._weights
        doubted = {k: e for k, e in s.terms.items() if self._doubted[k]}
        keep, tail = {k: e for k, e in s.terms.items() if k not in doubted}, s.tail
        if rung.leaves is not None:
            keep = {k: e for k, e in keep.items() if order[k][0] <= rung.leaves}
        keep = {k: e for k, e in keep.items() if e + weights[k] >= floor}
        for most, kept in ((rung.most, keep), (_DOUBTS, doubted)):
            if most is not None and len(kept) > most:
                best = sorted(kept, key=lambda k: (-self.value(kept[k] + weights[k]), order[k][0], -kept[k], order[k]))
                for k in best[most:]:
                    del kept[k]
        keep |= doubted
        for k, e in s.terms.items():
            if k not in keep:
                tail = _max(tail, e + weights[k])
                if self._doubted[k]:
                    s.loss = _max(s.loss, e + weights[k])
        s.terms, s.tail = keep, tail
        return s


@dataclass(slots=True)
class _Searched:
    """What is known of a product of two kernels, by slack.

    Attributes:
        found: kernels with their gains, a bound on the rest, nodes.
        beyond: a limit that the search passed.
        complete: the smallest slack tried that leaves nothing out.
    """

    found: dict[int, tuple[tuple[tuple[int, int], ...], int | None, int]]
    beyond: dict[int, int]
    complete: int | None = None


def _max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None or a >= b else b
