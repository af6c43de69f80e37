"""Arithmetic of signals: exact exponents of sums of Gaussian tensor networks, on one ray.

Read next: ``sizes.py`` and ``store.py`` (what it stands on), ``kernels.py`` (the product of two kernels).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

from .kernels import INDICATOR, Exhausted, Kernel, Matching, leaf_kernel, population, witness
from .signals import Made, Scalar, Signal, larger
from .sizes import SignalSizes

PRODUCT = 16
"""Work that a product takes beside its matching searches, in nodes of these."""


class Algebra(SignalSizes):
    """Arithmetic of signals on one ray; see ``KernelStore`` for its arguments."""

    def tensor(self, name: str, letters: str, exponent: int, indices: str | None = None) -> Signal:
        """An initial tensor with entries of size ``exponent``. ``indices``: the letters it truly has (others are
        broadcast: a tensor shared across experts has no expert index)."""
        live = self.live(letters)
        varying = self.live(letters if indices is None else indices)
        kernel = leaf_kernel(name, [self.letters[x] for x in live], [live.index(x) for x in varying])
        flat = frozenset(live) - frozenset(varying)
        depends = None if name.startswith(INDICATOR) else frozenset({name})
        return Signal(
            live, {self.intern(kernel): exponent}, None, varying, made=Made("tensor"), flat=flat, depends=depends
        )

    def constant(self, letters: str, exponent: int = 0) -> Signal:
        """A deterministic tensor with all entries of size ``exponent``."""
        live = self.live(letters)
        kernel = Kernel(tuple(self.letters[x] for x in live), tuple(range(len(live))), ())
        flat: frozenset[str] = frozenset(live)
        return Signal(live, {self.intern(kernel): exponent}, made=Made("constant"), flat=flat, depends=frozenset())

    def unknown(self, letters: str, size: int = 0) -> Signal:
        """A signal of which only a packed bound on the size of its entries is known."""
        return Signal(self.live(letters), {}, size, made=Made("constant"))

    def marked(self, name: str, letters: str, along: str) -> Signal:
        """A constant that depends on some of its indices, as ``centred`` sees it."""
        live = self.live(letters)
        kernel = leaf_kernel(f"{INDICATOR}{name})", [self.letters[x] for x in live], [live.index(x) for x in along])
        return Signal(live, {self.intern(kernel): 0}, made=Made("tensor"), depends=frozenset())

    def nothing(self, letters: str) -> Signal:
        """Exactly zero."""
        return Signal(self.live(letters), {})

    def scaled(self, s: Signal, *scalars: Scalar) -> Signal:
        """Multiply by deterministic factors."""
        exponent = sum(x.size for x in scalars)
        tail = None if s.tail is None else s.tail + exponent
        terms = {k: e + exponent for k, e in s.terms.items()}
        sound = s.zero or (s.sound and all(x.certain for x in scalars))
        made = Made("scaled", (s,), scalars)
        least, loss = (None if x is None else x + exponent for x in (s.least, s.loss))
        zero = {x: Algebra.scaled(self, rest, *scalars) for x, rest in s.centred.items()}
        changes = {"made": made, "least": least, "sound": sound, "loss": loss, "centred": zero}
        return s.but(terms=terms, tail=tail, leaf=None, name="", **changes)

    def centred(self, s: Signal, letter: str, ignoring: str = "") -> Signal:
        """Subtract the mean over an index: the part that is constant along it cancels exactly, the rest keeps its size.

        Law: P = I - 11^T/M annihilates what does not depend on the index, and is a projection of rank M - 1. What is
        left of a square is its fluctuation; that of a sign has none, so where leaves may be signs it is an upper bound.

        Args:
            ignoring: a tensor that counts as constant along the index (a selection, inside its own support).
        """
        if letter not in s.letters:
            raise ValueError(f"cannot centre over {letter!r}: the algebra does not track it")
        if letter in s.flat:
            return Signal(s.letters, {})
        at = s.letters.index(letter)
        keep = {k: e for k, e in s.terms.items() if self._varies(self._kernels[k], at, ignoring)}
        if s.signed:
            squares = [k for k in keep if self._square(self._kernels[k], at)]
            keep |= {self.with_doubt(k): keep.pop(k) - self._later for k in squares}
        zero = {x: Algebra.centred(self, rest, letter, ignoring) for x, rest in s.centred.items()}
        zero |= {} if ignoring else {letter: Signal(s.letters, {})}
        s = s.but(least=None)
        return s.but(terms=keep, leaf=None, name="", made=Made("centred", (s,)), centred=zero)

    def restricted(self, s: Signal, letter: str, to: str) -> Signal:
        """Keep some entries of an index: those of an index of a smaller axis, chosen without regard to the signal.

        Law: the root-mean-square over exchangeable entries does not change, only what later sums run over.
        """
        if letter not in s.letters:
            return s
        at, terms = s.letters.index(letter), dict[int, int]()
        for k, e in s.terms.items():
            number = self.retyped(k, at, to)
            terms[number] = max(e, terms.get(number, e))
        letters, flat = s.letters.replace(letter, to), frozenset(to if x == letter else x for x in s.flat)
        made = Made("restricted", (s,))
        zero = {x: Algebra.restricted(self, rest, letter, to) for x, rest in s.centred.items() if x != letter}
        return s.but(letters=letters, terms=terms, leaf=None, made=made, flat=flat, centred=zero)

    def doubted(self, s: Signal, along: Signal) -> Signal:
        """A signal of which the kernels that another one has may cancel in later products: they are upper bounds."""
        terms = dict[int, int]()
        for k, e in s.terms.items():
            number, e = (self.with_doubt(k), e - self._later) if k in along.terms else (k, e)
            if number not in terms or self._before(number, e, terms[number]):
                terms[number] = e
        loss = larger(s.loss, s.tail) if along is s else s.loss
        zero = {x: self.doubted(rest, rest if along is s else along) for x, rest in s.centred.items()}
        return s.but(terms=terms, least=None, leaf=None, made=Made("doubted", (s,)), loss=loss, centred=zero)

    def less_multiple(self, s: Signal, other: Signal) -> Signal:
        """A signal with a lower bound on what is left of it where a random multiple of another one, entry by entry, is
        taken away: the size of its kernels that are none."""
        multiples = self.multiples(s, other).terms.keys() - other.terms.keys()
        size = self.rms(s.but(terms={k: e for k, e in s.terms.items() if k not in multiples}, least=None))
        return s.but(least=None if size is None else size - self._later, leaf=None, made=Made("doubted", (s,)))

    def multiples(self, s: Signal, of: Signal) -> Signal:
        """Kernels of a signal that may be another signal times something: they have all leaves of a kernel of it."""
        names = [Counter(name for name, _ in self._kernels[k].leaves) for k in of.terms]

        def within(k: int) -> bool:
            leaves = Counter(name for name, _ in self._kernels[k].leaves)
            return any(x <= leaves for x in names)

        return s.but(terms={k: e for k, e in s.terms.items() if within(k)})

    def relabelled(self, s: Signal, old: str, new: str) -> Signal:
        """A signal with its letters ``old`` called ``new``, position by position.

        Raises:
            ValueError: the letters do not correspond one to one, or change their axis.
        """
        if old == new:
            return s
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
        flat = frozenset(to[x] for x in s.flat)
        zero = {to[x]: Algebra.relabelled(self, rest, old, new) for x, rest in s.centred.items()}
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
            tail = larger(tail, s.tail)
            for k, e in s.terms.items():
                if k not in terms or self._before(k, e, terms[k]):
                    terms[k] = e
                elif self.value(terms[k]) == self.value(e):
                    twice.add(k)
        least = max((s.least for s in nonzero if s.least is not None), default=None)
        loss = max((s.loss for s in nonzero if s.loss is not None), default=None)
        whole = Signal(nonzero[0].letters, terms, tail, made=Made("sum", tuple(nonzero)), least=least, loss=loss)
        if twice and not twice.isdisjoint(self.leading(whole)):
            self.notes.add("generic-constants")
        centred = {x for s in nonzero for x in s.centred}
        whole.centred = {x: Algebra.add(self, [s.centred.get(x, s) for s in nonzero]) for x in centred}
        return self._prune(self._shared(whole))

    def reduced(self, s: Signal, by: Signal) -> Signal:
        """A signal plus that multiple of another which removes the leading kernel of the other from it.

        Law: kernels are linearly independent, with deterministic coefficients; so a projection that annihilates ``by``
        makes the same of both, and what is left is not parallel to ``by``. Where a kernel may stand for a nonlinear
        function of its leaves only the linear part is removed, so it stays as an upper bound.
        """
        pivot = self._pivot(s, by)
        if pivot is None:
            return s
        factor = Scalar("what the common direction is multiplied by", s.terms[pivot] - by.terms[pivot])
        rest, multiple = ({k: e for k, e in x.terms.items() if k != pivot} for x in (s, self.scaled(by, factor)))
        if s.curved or by.curved:
            rest[self.with_doubt(pivot)] = s.terms[pivot] - self._later
        zero = {x: self.doubted(left, by) for x, left in s.centred.items()}
        return self.add([s.but(terms=rest, centred=zero), self.scaled(by, factor).but(terms=multiple)])

    def outgrows(self, s: Signal, by: Signal) -> bool:
        """A signal may have more of another one than there is of it."""
        pivot = self._pivot(s, by)
        return pivot is not None and self.value(s.terms[pivot]) >= self.value(by.terms[pivot])

    def _pivot(self, s: Signal, by: Signal) -> int | None:
        """The leading kernel of a signal that another has."""
        leading = self.leading(by)
        order = min((self._degree(by.terms[k]) for k in leading), default=0)
        return next((k for k in leading if k in s.terms and self._degree(by.terms[k]) == order), None)

    def largest(self, s: Signal, most: int) -> Signal:
        """A signal with its largest kernels, and the size of the others as its tail."""
        kept, rest = self._sorted(s)[:most], self._sorted(s)[most:]
        tail = max((size for size, _, _ in rest), default=None)
        loss = max((size for size, k, _ in rest if self._doubted[k]), default=None)
        terms = {k: e for _, k, e in kept}
        return s.but(terms=terms, tail=larger(s.tail, tail), loss=larger(s.loss, loss)) if rest else s

    def uncentred(self, s: Signal) -> Signal:
        """A signal as large, of which no addend is known to sum to zero."""
        return s.but(centred={}) if s.centred else s

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
        for x in sorted({*a.letters, *b.letters} - set(out)):  # of what sums to zero, only a factor that varies is seen
            if x not in b.letters or x not in a.letters:
                a, b = a.centred.get(x, a), b.centred.get(x, b)
            elif x in a.centred and x not in (b.leaf or ""):  # an initial tensor varies, and keeps its operator norm
                return self._apart(a, b, x, out, tag)
            elif x in b.centred and x not in (a.leaf or ""):
                return self._apart(b, a, x, out, tag)
        if a.zero or b.zero:
            return Signal(out, {})
        try:
            product = self._contract(a, b, out, tag, self._gap)
        except Exhausted:
            if self.rung.whole:
                raise
            product = self._contract(a, b, out, tag, -self._step)
        for one, other in ((a, b), (b, a)):
            for x in (x for x in one.centred if x in out and x not in set(other.letters) - other.flat):
                product.centred = {**product.centred, x: Algebra.contract(self, one.centred[x], other, out, tag)}
        return product

    def _apart(self, a: Signal, b: Signal, x: str, out: str, tag: str) -> Signal:
        """A product that sums an index along which addends of the first factor sum to zero, the others apart."""
        factors = (a, self.centred(b, x))
        left, right = (s.but(centred={y: s.centred[y] for y in s.centred if y != x}) for s in factors)
        products = [Algebra.contract(self, left, right, out, tag)]
        if not a.centred[x].zero:
            products.append(Algebra.contract(self, a.centred[x], b, out, tag))
        return Algebra.add(self, products)

    def _contract(self, a: Signal, b: Signal, out: str, tag: str, gap: int) -> Signal:
        self.meter.add(PRODUCT)
        spec, contraction, cost = self._spec(a.letters, b.letters, out)
        extra = self._bound(a, b, out)
        weights = self._weights
        left, right = self._sorted(a), self._sorted(b)
        step, work = self._step, self.rung.work
        terms: dict[int, int] = {}
        lead: int | None = None
        dropped: int | None = None
        doubts = any(self._doubted[k] for _, k, _ in right)
        loss: int | None = None
        for ra, ka, ea in left:
            for rb, kb, eb in right:
                reach, doubted = ra + rb + extra, self._doubted[ka] or self._doubted[kb]
                if lead is not None and (reach < lead - gap if gap >= 0 else self.value(reach) <= self.value(lead)):
                    alike = gap >= 0 and (doubts or doubted) and self.value(reach) >= self.value(lead - gap)
                    if not alike:
                        dropped = larger(dropped, reach)
                        loss = larger(loss, reach) if doubts or doubted else loss
                        break
                    if not doubted:
                        dropped = larger(dropped, reach)
                        continue
                e0 = ea + eb
                top = ra + rb + cost
                slack = max(gap, 0) if lead is None else top - lead + gap
                while True:
                    slack = -(-slack // step) * step
                    try:
                        kernels, cut, nodes = self._product(ka, kb, spec, contraction, slack, work)
                    except Exhausted:
                        self.meter.add(work or 0)
                        raise
                    self.meter.add(nodes)
                    self.spent += nodes
                    if work is not None:
                        work -= nodes
                    for k, gain in kernels:
                        e = e0 + gain
                        if k not in terms or self._before(k, e, terms[k]):
                            terms[k] = e
                            size = e + weights[k]
                            if lead is None or size > lead:
                                lead = size
                    if (lead is not None and slack >= top - lead + gap) or cut is None:
                        break
                    slack = slack + step if lead is None else top - lead + gap
                if cut is not None:
                    dropped = larger(dropped, top + cut)
                    loss = larger(loss, top + cut) if doubted else loss
        if self.rung.whole and dropped is not None:
            raise Exhausted
        ba, bb = self.bound(a), self.bound(b)
        if a.tail is not None and bb is not None:
            dropped = larger(dropped, a.tail + bb + extra)
        if b.tail is not None and ba is not None:
            dropped = larger(dropped, b.tail + ba + extra)
        if a.loss is not None and bb is not None:
            loss = larger(loss, a.loss + bb + extra)
        if b.loss is not None and ba is not None:
            loss = larger(loss, b.loss + ba + extra)
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
                    kernels, _, _ = self._product(ka, kb, spec, contraction, slack, self.rung.work)
                except Exhausted:
                    continue
                gain = dict(kernels).get(k)
                if gain is None or ea + eb + gain != s.terms[k]:
                    continue

                def wanted(kernel: Kernel, coherent: tuple[str, ...], gain: int = gain) -> bool:
                    return kernel == self._kernels[k] and sum(2 * self._half[axis] for axis in coherent) == gain

                def matching(left: Kernel, right: Kernel, slack: int = slack) -> Matching:
                    return witness(left, right, contraction, self._halves, self.grains(slack), wanted)

                return ka, kb, matching
        raise LookupError("no product of the factors has this kernel")

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
        """The order in which two factors of a product should meet: late for a large number."""
        a, b = (pool[k] for k in pair)
        shared, kept = set(a.letters) & set(b.letters), self._kept(pool, *pair, out)
        constants = sum(map(self._deterministic, (a, b)))
        leaves = [s.leaf for s in (a, b) if s.leaf is not None]
        acts = len(leaves) == 1 and bool((shared & set(leaves[0])) - set(kept))
        rank = 0 if constants == 2 else 1 if constants and (acts or not leaves) else 2 if acts else 3
        if rank == 3 and (not shared or len(leaves) == 2):
            rank = 4 if shared else 5
        if kept not in self._dimensions:
            self._dimensions[kept] = sum((self.rate(self.letters[x]) for x in kept), Fraction(0))
        return rank, self._dimensions[kept]

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
        costs = [sums + meet, self._operator_cost(a, b, out), self._operator_cost(b, a, out)]
        if a.depends is not None and b.depends is not None and a.depends.isdisjoint(b.depends):
            saved = (self._uncorrelated(a, out), self._uncorrelated(b, out))
            costs += [sums + meet - x for x in saved if x is not None]
        return min(x for x in costs if x is not None)

    def _uncorrelated(self, a: Signal, out: str) -> int | None:
        """The saving in a product of a signal with an independent one; None if nothing is known.

        Law: entries of a polynomial in Gaussians that differ in an index of a leaf are uncorrelated (kernels are Wick
        products). So a sum over such an index, of products with an independent signal, is one of uncorrelated terms.
        """
        if a.tail is not None:
            return None
        summed = [x for x in a.letters if x not in out]
        if not all(self._kernels[k].along(a.letters.index(x)) for k in a.terms for x in summed):
            return None
        return sum(self._half[self.letters[x]] for x in summed)

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

    @staticmethod
    def _square(kernel: Kernel, at: int) -> bool:
        """Two leaves of a kernel are the same, and vary with an open index."""
        there = kernel.along(at)
        return len(set(there)) < len(there)

    @staticmethod
    def _varies(kernel: Kernel, at: int, ignoring: str) -> bool:
        c = kernel.opens[at]
        return kernel.opens.count(c) > 1 or any(c in classes and name != ignoring for name, classes in kernel.leaves)
