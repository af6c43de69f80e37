"""Certified exponents of named quantities: evaluate, and widen the search until every answer is proved.

Read next: ``quantities.py`` (what can be asked), ``newton.py`` and ``derivation.py`` (who asks).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import count, islice

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import EntrySize, Rung, Signal
from scaling_algebra.counting.store import Kept
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.glossary import ASSUMPTIONS
from scaling_algebra.spec.networks.ancestors import depth
from scaling_algebra.spec.networks.auxiliary import buffers
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.powers import Form
from scaling_algebra.spec.scaling import Point
from scaling_algebra.waiting import each

from .answers import LADDER, NEAR, PARTS, QUICK, SIMPLEST, WITNESSES, Answer
from .bounds import BoundRun
from .parts import ORDERS, SLOW, parts, signal_of
from .quantities import Quantity, quantities, quantity, with_decay
from .run import BeyondPowerCounting, Degrees, RunContext
from .sparse_routing import algebra_for, bounds_for, trajectory_for
from .steps import SQUARED
from .trajectory import Trajectory

_ORTHOGONAL = "the norm may cancel it: it is orthogonal to what the norm divides"
WORK = "what was left out may be as large: all of it takes more work than a question may"
_RAISED = "functions are read as polynomials, and two degrees more give"
_CUBES = "a product may see the cubic part of a sign, of which functions leave an upper bound alone"
_ALONE = 60_000
"""Work, in nodes of matching searches, for a run that certifies by itself what one in which less happens shows."""
_LONG = 8
"""Tensors on a way from which on kernels have one more leaf for each."""
_FRAMES, _DEEPEST = 200, 60_000
"""Frames of the interpreter that a statement may take, and all of them: signals are read from those they depend on."""


class Analysis:
    """Quantities of one training run, evaluated on demand, each certified exact.

    Args:
        algebras: to share products of kernels with other runs on the ray (of the same ``growing``).
        growing: axes that count as growing whatever the ray says: sizes are limits of those on rays near by.
        routed: K counts as less than M whatever the ray says, in the same sense.
        raised: the polynomials that stand for functions are two degrees higher.
        whole: the run that this is a part of (``parts.py``), whose algebras are shared and whose bounds hold here, too.
        ladder: the rungs that a question may climb, by default all.
    """

    def __init__(
        self,
        ray: Ray,
        point: Point,
        optimizer: Trained,
        network: Network = MOE_BLOCK,
        algebras: dict[Rung, Algebra] | None = None,
        growing: frozenset[str] = frozenset(),
        routed: bool = False,
        raised: bool = False,
        whole: Analysis | None = None,
        ladder: Sequence[Rung] = (),
    ) -> None:
        if network.unread:
            raise UsageError(f"{network.unread}; of this module shapes alone are known, and nothing of its signals")
        self.ray, self.point, self.optimizer, self.network = ray, point, optimizer, network
        self.growing, self.routed, self.raised, self._whole = growing, routed, raised, whole
        self._ladder = ladder
        own = whole.table if whole is not None else quantities(network) | with_decay(network, optimizer)
        self.table: Mapping[str, Quantity] = own
        shared = whole._algebras if whole is not None else algebras
        self._algebras: dict[Rung, Algebra] = {} if shared is None else shared
        self._runs: dict[Rung, Trajectory] = {}
        self.meter = self._algebra(LADDER[0]).meter
        self._answers = Kept[tuple[str, int], Answer](self.meter)
        self._bounds = Kept[tuple[str, int], Answer](self.meter)
        self._quick: tuple[Rung, ...] = QUICK
        self._uppers = Kept[str, Fraction | None](self.meter)
        self._shown = Kept[tuple[str, int], Answer | None](self.meter)
        self._notes: set[str] = set()
        self._partial = Kept[tuple[frozenset[str], frozenset[str]], Analysis | None](self.meter)
        self._alike = Kept[frozenset[str], bool](self.meter)
        self._starts: dict[tuple[frozenset[str], Rung], Trajectory] = {}
        self._points: dict[str, tuple[list[Point], Iterator[Point]]] = {}

    def __call__(self, name: str, t: int) -> Answer:
        """The exponent of a quantity after t updates."""
        return self._answers((name, t), partial(self._answered, name, t))

    def _answered(self, name: str, t: int) -> Answer:
        answer = self._agreed(name, t, self._climb(name, t, LADDER[:1] if self._whole else self._ladder or LADDER))
        notes = answer.assumes
        if not answer.decided:
            high, why = (
                self.upper(name) if t else None,
                answer.why or min(notes - ASSUMPTIONS.keys(), default=WORK),
            )
            answer = Answer(None, None, decided=False, why=why, low=answer.low, high=high)
        return replace(answer, assumes=notes & ASSUMPTIONS.keys())

    def quick(self, name: str, t: int) -> Answer:
        """The exponent of a quantity after t updates, if it is found at the price of the first rung."""
        return self(name, t) if (name, t) in self._answers else self._climb(name, t, LADDER[:1])

    def _agreed(self, name: str, t: int, answer: Answer) -> Answer:
        """An answer that rests on polynomials standing for functions, if two degrees more show nothing larger."""
        if self.raised or answer.size is None or not answer.decided or not self._curved:
            return answer
        if any(answer.size == run._higher.upper(name) for run in (self._whole, self) if run is not None):
            return answer
        higher = self._higher.witness(name, t)
        if t and self.network.live and self._stepped(signs=True) and (higher is None or not higher.decided):
            return replace(answer, decided=False, why=_CUBES)
        if higher is not None and higher.size is not None and higher.size > answer.size:
            return replace(answer, decided=False, why=f"{_RAISED} n^({higher.size}) instead of n^({answer.size})")
        return answer

    @cached_property
    def _curved(self) -> bool:
        """Polynomials stand for functions, or for steps that products of three signals may see more of than a line."""
        return self._stepped() or any(f.stands_for for f in self.network.functions)

    def _stepped(self, signs: bool = False) -> bool:
        """Products of three signals, at an index that grows, may see more of a step than what is linear; of a buffer's
        step, which has two values, all is linear.

        Args:
            signs: of one that takes signs.
        """
        run, rules = self._run(LADDER[0]), self.optimizer.of
        tensors, held = self.network.tensors.items(), buffers(self.network)
        trained = ((rules(role), x.letters) for role, x in tensors if role not in held)
        entries = (x for rule, x in trained if (rule.signs if signs else rule.normalises == "entry"))
        return any(len(run.odd_powers(letters)) > 1 for letters in entries)

    @cached_property
    def _higher(self) -> Analysis:
        """The same run with the polynomials that stand for functions two degrees higher."""
        asked = self.ray, self.point, self.optimizer, self.network, self._algebras, self.growing, self.routed
        return Analysis(*asked, raised=True, ladder=self._ladder)

    def _climb(self, name: str, t: int, rungs: Sequence[Rung]) -> Answer:
        shown = self.witness(name, t) if t else None
        if shown is not None and shown.decided:
            return shown
        low = shown.size if shown is not None else None
        for rung in rungs:
            answer = self._two_sided(name, t, rung)
            if answer.decided or (answer.why and rung.most is None):
                break
            if answer.below and answer.size is not None:
                low = answer.size if low is None else max(low, answer.size)
        return answer if answer.decided else replace(answer, low=low)

    def lower(self, name: str, t: int) -> Answer:
        """A lower bound at the price of the first rungs, for searching: the leading kernel taken as it is."""
        return self._bounds((name, t), partial(self._least, name, t))

    def _least(self, name: str, t: int) -> Answer:
        best = Answer(None, None, decided=False)
        for rung in self._quick:
            answer = self._read(name, t, rung)
            if answer.decided or best.size is None or (answer.size is not None and answer.size > best.size):
                best = answer
            if answer.decided or answer.why:
                break
        if best.unknown and t and self._quick == QUICK:
            best = self.witness(name, t) or best
        return self(name, t) if best.unknown and self._quick == QUICK else best

    def witness(self, name: str, t: int) -> Answer | None:
        """A lower bound on the exponent of a quantity at the least price: its largest monomial that is found among few;
        None if none is found, or only with sizes that are not certified."""
        best = (self._still(name, t) if t == 1 else None) or self.in_parts(name, t)
        if best is not None:
            return best
        many = self.raised and not t  # kernels of as many leaves as products have signals
        for rung in PARTS if self._whole or many else WITNESSES:
            answer = self._two_sided(name, t, rung)
            if answer.size is not None and answer.below and (best is None or answer.size > (best.size or 0)):
                best = answer
            if answer.decided or (self._whole and not self._meets(name, answer.size)):
                break
        return best

    def in_parts(self, name: str, t: int) -> Answer | None:
        """A witness as large as the bound on every step, from a run in which less happens; None if there is none.
        Every further update costs much more: few are asked of all runs, then one more of the likeliest of them."""
        return self._shown((name, t), partial(self._earliest, name, t)) if t else None

    def _earliest(self, name: str, t: int) -> Answer | None:
        earlier = self.in_parts(name, t - 1) if t > 2 else None
        alone = t > 2 or self._still(name, t - 1)
        return earlier or self._in_parts(name, (t,) if alone else range(t + 1))

    def _still(self, name: str, t: int) -> Answer | None:
        """Exactly zero, at the least price; None where that is not shown: it is in every part, too."""
        answer = self._two_sided(name, t, WITNESSES[0]) if self.point.zero and not self._whole else None
        return answer if answer is not None and answer.zero else None

    def _in_parts(self, name: str, steps: Collection[int]) -> Answer | None:
        """The witness of ``in_parts`` at these steps; a network without norms needs no such runs."""
        if self._whole or not self.network.norms or self.upper(name) is None:
            return None
        begun = set[frozenset[str]]()
        for step, point in self._ranked(signal_of(self.network, self.table[name]), steps):
            if self.meter.spent:
                break
            if not step and point.zero in begun:  # before training, parts that begin alike are one
                continue
            part = self._part(point)
            answer = part.witness(name, step) if part is not None else None
            if part is not None and answer is not None and part._meets(name, answer.size):
                assumes = answer.assumes | self.bounds.assumes | {"generic-constants"}
                self._notes |= assumes
                return replace(answer, size=self.upper(name), decided=True, assumes=assumes)
            if part is not None and not step:
                begun.add(point.zero)
        return None

    def _ranked(self, signal: str, steps: Collection[int]) -> Iterator[tuple[int, Point]]:
        """Steps and the points of ``parts``, few steps first; at the first point one step more."""
        for least in range(min(steps) - 1, max(steps) + 1):
            for k, point in enumerate(self._likely(signal)):
                if (step := least if k else least + 1) in steps:
                    yield step, point

    def _likely(self, signal: str) -> Iterator[Point]:
        """The points of ``parts``, each made once, when it is asked for."""
        made, rest = self._points.setdefault(signal, ([], parts(self.network, self.point, signal)))
        for k in count():
            made += islice(rest, max(0, k + 1 - len(made)))
            if k == len(made):
                return
            yield made[k]

    def _meets(self, name: str, size: Fraction | None) -> bool:
        """A size is the bound on every step; in a part, which learns slowly, at some order in the learning rates."""
        upper = self.upper(name)
        if size is None or upper is None or self._whole is None:
            return size is not None and size == upper
        order = (upper - size) / self._slow
        return order.denominator == 1 and 0 <= order <= ORDERS

    @property
    def _slow(self) -> Fraction:
        """The addition to the exponents c of a part."""
        return self.ray.largest * SLOW

    def _part(self, point: Point) -> Analysis | None:
        """The run at a point where less happens; None if it divides by other sizes."""
        return self._partial((point.zero, point.frozen), partial(self._where_less, point))

    def _where_less(self, point: Point) -> Analysis | None:
        slow = replace(point, c={role: c + self._slow for role, c in point.c.items()})
        asked = self.ray, slow, self.optimizer, self.network
        part = Analysis(*asked, growing=self.growing, routed=self.routed, whole=self)
        return part if self.divides_alike(part) else None

    def divides_alike(self, part: Analysis) -> bool:
        """Everything that a part divides by is as large as in the whole run: what norms and homogeneous functions read,
        and normalisers, which are epsilon."""
        learning = self.network.tensors.keys() - part.point.frozen
        rules = {role: self.optimizer.of(role) for role in learning}
        if any(x.normalises and not (x.epsilon and self._within(role)) for role, x in rules.items()):
            return False
        return self._alike(part.point.zero, partial(self._as_large, part))

    def _as_large(self, part: Analysis) -> bool:
        read = [f.inputs[0].name for f in self.network.functions if f.kind.kind == "norm" or f.kind.homogeneous]
        return all(part(x, 0).decided and part(x, 0).size == self(x, 0).size for x in read)

    def simplest(self, name: str, t: int) -> Answer | None:
        """A rung that keeps more kernels, if it takes little work: of monomials of one size, the simplest."""
        answer = self._two_sided(name, t, SIMPLEST)
        return None if answer.unknown else answer

    def leading(self, names: Sequence[str], t: int) -> Answer:
        """The size of the largest of some quantities: that of the first witness as large as the bounds on all of them,
        else of all of them at the price of the first rung."""
        uppers = [self.upper(name) for name in names]
        top = max((x for x in uppers if x is not None), default=None)
        for name in names if None not in uppers and t else ():
            shown = self.witness(name, t)
            if shown is not None and shown.size == top:
                return replace(shown, decided=True, assumes=shown.assumes | self.bounds.assumes)
        answers = [self.quick(name, t) for name in names]
        if not all(x.decided for x in answers):
            return Answer(None, None, decided=False)
        return max(answers, key=lambda x: (x.size is not None, x.size))

    def _two_sided(self, name: str, t: int, rung: Rung) -> Answer:
        """The answer of one rung: decided by its own certificate, or where a monomial of it is as large as
        the bound on every later step."""
        answer = self._read(name, t, rung)
        if t and not answer.decided and answer.below and self._meets(name, answer.size):
            answer = replace(answer, decided=True, why="", assumes=answer.assumes | self.bounds.assumes)
        if answer.decided:
            self._notes |= answer.assumes
        return answer

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions, beyond counting powers, of all that was decided so far."""
        return tuple(x for x in ASSUMPTIONS if x in self._notes)

    def limited(self, work: int, gap: Fraction = NEAR) -> Analysis:
        """A copy with less work for lower bounds: what the work does not suffice for comes out as no bound.

        At gap 0 only the leading kernels are kept, which is cheap, and a lower bound all the same.
        """
        cheaper = copy(self)
        cheaper._quick, cheaper._bounds = (replace(LADDER[0], gap=gap, work=work),), Kept(self.meter)
        return cheaper

    def closely(self, ladder: Sequence[Rung]) -> Analysis:
        """The run on other rungs; what its answers assume counts here, too."""
        asked = self.ray, self.point, self.optimizer, self.network, self._algebras, self.growing, self.routed
        run = Analysis(*asked, ladder=ladder)
        run._notes = self._notes
        return run

    def all(self, steps: int, names: Iterable[str] | None = None) -> dict[str, tuple[Answer, ...]]:
        """Every quantity at t = 0 .. steps."""
        every = each("certifying", "quantities", list(names or self.table))
        return {name: tuple(self(name, t) for t in range(steps + 1)) for name in every}

    def run(self, name: str, t: int) -> Trajectory:
        """The trajectory whose pruning was mild enough to certify an answer, and to hold every monomial of its size if
        one does.

        Raises:
            LookupError: no run certifies it by itself: it is undecided, or shown by a bound and a run in which less
                happens.
        """
        with self.meter.within(_ALONE if self.in_parts(name, t) else None):
            return self._alone(name, t)

    def _alone(self, name: str, t: int) -> Trajectory:
        decided: list[Rung] = []
        for rung in LADDER:
            if self._read(name, t, rung).decided:
                run = self._run(rung)
                with run.ledger.question():
                    read = self._signal(name, t, run)
                if not isinstance(read, Signal) or run.algebra.complete(read):
                    return run
                decided.append(rung)
        decided = decided or [rung for rung in LADDER if self._two_sided(name, t, rung).decided][:1]
        if not decided:
            raise LookupError(f"{name} at t={t} is certified by no run alone")
        return self._run(next((rung for rung in decided if rung.most is None), decided[0]))

    def powers(self, name: str, t: int) -> tuple[tuple[Fraction, bool], ...]:
        """Exponents of the kernels that an answer was read off (True), and bounds on all else it is a sum of (False).

        Raises:
            LookupError: the answer is undecided, or takes more work than is left.
        """
        try:
            run = self.run(name, t)
            with run.ledger.question():
                read = self._signal(name, t, run)
        except Exhausted:
            raise LookupError(f"{name} at t={t} takes more work than is left") from None
        if isinstance(read, Signal):
            return run.algebra.powers(read)
        return () if read.packed is None else ((run.algebra.value(read.packed), False),)

    def forms(self, name: str, t: int) -> tuple[Form, ...]:
        """Forms of the monomials that a lower bound of a signal is read off: each is a lower bound of its size, at
        every ray and point. None for exactly zero and for updates of tensors, which are no signals.

        Raises:
            Exhausted: they take more work than a lower bound may. BeyondPowerCounting: nothing follows them.
        """
        run = self._run(QUICK[-1])
        with run.ledger.question():
            read = self._signal(name, t, run)
        return run.algebra.forms(read) if isinstance(read, Signal) else ()

    def step(self, role: str, t: int) -> tuple[Answer, ...]:
        """The factors of the gradient after t updates in the next one: the learning rate, and what the optimizer
        has of the size of the tensor and one over its normaliser. Empty if the gradient is exactly zero."""
        answers: tuple[Answer, ...] = ()
        for rung in LADDER:
            run = self._run(rung)
            try:
                with run.ledger.question(), self._deep():
                    scalars = run.scalars(role, t)
            except (Exhausted, BeyondPowerCounting):
                answers = (Answer(None, None, decided=False),)
                continue
            value, form = run.algebra.value, run.algebra.form
            answers = tuple(Answer(value(x.size), form(x.size), x.certain) for x in scalars)
            if all(x.decided for x in answers):
                break
        return answers

    def _read(self, name: str, t: int, rung: Rung) -> Answer:
        run = self._run(rung)
        try:
            with run.ledger.question():
                read, notes = self._signal(name, t, run), frozenset(run.algebra.notes)
        except Exhausted:
            return Answer(None, None, decided=False)
        except BeyondPowerCounting as reason:
            return Answer(None, None, decided=False, why=str(reason))
        algebra, why = run.algebra, ""
        if isinstance(read, Signal):
            packed, decided, below = algebra.rms(read), algebra.certified(read), algebra.stands(read)
            if not decided and algebra.doubtful(read):
                why = SQUARED if SQUARED in notes or not self.network.norms else _ORTHOGONAL
        else:
            packed, decided, below = read.packed, read.certain, read.certain
        if packed is None:
            return Answer(None, None, decided, why, assumes=notes)
        return Answer(algebra.value(packed), algebra.form(packed), decided, why, below, assumes=notes)

    def _signal(self, name: str, t: int, run: Trajectory) -> Signal | EntrySize:
        with self._deep():
            read: Signal | EntrySize = quantity(self.table, name).read(run, t)
        return read

    @contextmanager
    def _deep(self) -> Iterator[None]:
        """As many frames of the interpreter as the network may take."""
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, min(_FRAMES * len(self.network.statements), _DEEPEST)))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)

    def _certified(self, algebra: Algebra, name: str, t: int) -> int | None:
        """Packed size of a quantity where any rung certifies it; of a gradient that never exceeds epsilon, epsilon.
        What that rests on is noted."""
        role = self.table[name].tensor if name in self.table else ""
        if role and name.startswith("g") and self.optimizer.of(role).epsilon and self._within(role):
            algebra.notes.update(self.bounds.assumes)
            return algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        answer = self(name, t)
        if self.meter.spent:
            raise Exhausted
        algebra.notes.update(answer.assumes)
        if not answer.decided or answer.size is None or answer.form is None:
            return None
        return algebra.pack(answer.size, dict(answer.form.power.terms), dict(answer.form.unknowns))

    @cached_property
    def bounds(self) -> BoundRun:
        """Upper bounds on every size after any number of updates, or why there are none."""
        if self._whole is not None:
            return self._whole.bounds
        with self._deep(), self.meter.uncharged():
            asked = self.network, self._algebra(LADDER[0]).at(LADDER[0]), self.point, self.optimizer
            run = bounds_for(*asked, RunContext(degrees="raised" if self.raised else "usual"), self.routed)
            run.settle()
        return run

    def upper(self, name: str) -> Fraction | None:
        """An upper bound on the exponent of a quantity after any number of updates; None if there is none."""
        return self._uppers(name, partial(self._upper, name))

    def _upper(self, name: str) -> Fraction | None:
        decays = name.endswith(".with-decay")  # what decay takes from initial values is in no bound
        if self.bounds.why or name not in self.table or decays:
            return None
        try:
            with self.bounds.algebra.accounting() as notes:
                largest = self.bounds.largest(self.table[name])
        except (Exhausted, BeyondPowerCounting):
            return None
        self.bounds.assumes.update(notes)
        self._notes |= self.bounds.assumes
        return None if largest is None else self.bounds.algebra.value(largest)

    def _within(self, role: str) -> bool:
        """The gradient of a tensor never exceeds epsilon."""
        largest = self.upper(f"g{self.network.tensors[role].symbol}")
        return largest is not None and largest <= -self.point.d[role]

    def _algebra(self, rung: Rung) -> Algebra:
        if rung not in self._algebras:
            some = next(iter(self._algebras.values()), None)
            some = some or algebra_for(self.network, self.ray, rung.gap, self.growing, self.routed)
            self._algebras[rung] = some.at(replace(rung, leaves=self._leaves(rung)))
        return self._algebras[rung]

    def _leaves(self, rung: Rung) -> int | None:
        """Kernels hold the tensors that a signal passed through: a longer way takes more leaves."""
        return None if rung.leaves is None else rung.leaves + max(0, depth(self.network) - _LONG)

    def _run(self, rung: Rung) -> Trajectory:
        if rung not in self._runs:
            start = self._whole._started(self, rung) if self._whole is not None else None
            self._runs[rung] = self._made(rung, start)
        return self._runs[rung]

    def _started(self, part: Analysis, rung: Rung) -> Trajectory:
        """The run that all parts which begin alike have before training; no question is asked of it, so none is charged
        for it."""
        key = part.point.zero, rung
        if key not in self._starts:
            self._starts[key] = part._made(rung)
        return self._starts[key]

    def _made(self, rung: Rung, start: Trajectory | None = None) -> Trajectory:
        algebra = self._algebra(rung)
        lowest = self._whole is not None and rung == PARTS[0]
        degrees: Degrees = "lowest" if lowest else "raised" if self.raised else "usual"
        context = RunContext(self.growing, degrees, certified=partial(self._certified, algebra), start=start)
        return trajectory_for(self.network, algebra, self.point, self.optimizer, context, self.routed)
