"""The runs of one training, one for each budget, and what each shows of a quantity.

Read next: ``analysis.py`` (asks the runs, the cheap ones first), ``sparse_routing.py`` (makes a run).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget, EntrySize, Signal
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.ancestors import count_depth
from scaling_algebra.spec.networks.auxiliary import find_buffers
from scaling_algebra.spec.networks.language import Function, Network
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.powers import Form
from scaling_algebra.spec.scaling import Point

from .bounds import BoundRun
from .brackets import NOTHING, Bracket, shown
from .budgets import BEGUN, LADDER, QUICK
from .quantities import Quantity, quantity
from .run import BeyondPowerCounting, Degrees, Divisor, RunContext
from .sparse_routing import algebra_for, bounds_for, trajectory_for
from .steps import SQUARED, odd_powers
from .trajectory import Trajectory

_ORTHOGONAL = "the norm may cancel it: it is orthogonal to what the norm divides"
NONE: Mapping[str, Divisor] = {}
_LONG = 8
"""Tensors on a way from which on kernels have one more leaf for each."""
_FRAMES, _DEEPEST = 200, 60_000
"""Frames of the interpreter that a statement may take, and all of them: signals are read from those they depend on."""


@dataclass(eq=False)
class Runs:
    """The runs of one training at one point.

    Attributes:
        table: the quantities that are read.
        algebras: one for each rung; products of kernels are shared.
        certified: the packed size of what is divided by, where any run certifies it.
        growing, routed, raised: see ``Analysis``.
        linear: rungs on which functions are read as polynomials of degree one.
        started: the run on a rung that values and gradients before training are taken from, where there is one.
    """

    ray: Ray
    point: Point
    optimizer: OptimizerSpec
    network: Network
    table: Mapping[str, Quantity]
    algebras: dict[Budget, Algebra]
    certified: Callable[[Algebra, str, int], int | None]
    growing: frozenset[str] = frozenset()
    routed: bool = False
    raised: bool = False
    linear: tuple[Budget, ...] = ()
    started: Callable[[Budget], Trajectory | None] = lambda rung: None
    _runs: dict[Budget, Trajectory] = field(default_factory=dict)

    def algebra(self, rung: Budget) -> Algebra:
        """The algebra of a rung. Kernels hold the tensors that a signal passed through: a longer way takes more
        leaves."""
        if rung not in self.algebras:
            some = next(iter(self.algebras.values()), None)
            some = some or algebra_for(self.network, self.ray, rung.gap, self.growing, self.routed)
            more = max(0, count_depth(self.network) - _LONG)
            self.algebras[rung] = some.at(replace(rung, leaves=None if rung.leaves is None else rung.leaves + more))
        return self.algebras[rung]

    def on(self, rung: Budget) -> Trajectory:
        """The run on a rung."""
        if rung not in self._runs:
            self._runs[rung] = self.made(rung, self.started(rung))
        return self._runs[rung]

    def made(self, rung: Budget, start: Trajectory | None = None) -> Trajectory:
        """A new run on a rung, which begins as another one."""
        algebra = self.algebra(rung)
        degrees: Degrees = "lowest" if rung in self.linear else "raised" if self.raised else "usual"
        context = RunContext(self.growing, degrees, certified=partial(self.certified, algebra), start=start)
        return trajectory_for(self.network, algebra, self.point, self.optimizer, context, self.routed)

    def bounds(self, divisors: Mapping[str, Divisor] = NONE, still: bool = False) -> BoundRun:
        """A run of upper bounds, settled, or with the reason why there are none.

        Args:
            divisors: what is known of norms that divide by something else after an update.
            still: before the first update.
        """
        algebra = self.algebra(LADDER[0])
        context = RunContext(degrees="raised" if self.raised else "usual", divisors=divisors)
        with self.deep(), algebra.meter.pause_counting():
            point = replace(self.point, frozen=frozenset(self.network.tensors)) if still else self.point
            run = bounds_for(self.network, algebra.at(LADDER[0]), point, self.optimizer, context, self.routed)
            run.settle()
        return run

    def gradient(self, s: Function) -> int | None:
        """Packed bound on the gradient at the argument of a function, through it, before training; None if none is
        known."""
        sizes, source = list[int](), s.inputs[0].name
        for rung in (LADDER[0], BEGUN):
            run = self.on(rung)
            try:
                with run.ledger.question(), self.deep(), run.algebra.meter.pause_counting():
                    size = run.algebra.bound(run.gradient(source, 0, via=s.out))
                    sizes += [] if size is None else [size]
            except (Exhausted, BeyondPowerCounting):
                continue
        return min(sizes, key=self.algebra(LADDER[0]).value, default=None)

    def read(self, name: str, t: int, rung: Budget) -> Bracket:
        """The bracket of a quantity that one run shows."""
        run = self.on(rung)
        try:
            with run.ledger.question():
                read, notes = self.signal(name, t, run), frozenset(run.algebra.notes)
        except Exhausted:
            return Bracket()
        except BeyondPowerCounting as reason:
            return Bracket(why=str(reason))
        algebra, why = run.algebra, ""
        if isinstance(read, Signal):
            packed, certain, below = algebra.rms(read), algebra.certified(read), algebra.stands(read)
            if not certain and algebra.doubtful(read):
                why = SQUARED if SQUARED in notes or not self.network.norms else _ORTHOGONAL
        else:
            packed, certain, below = read.packed, read.certain, read.certain
        if packed is None:
            end = NOTHING if certain else None
            return Bracket(end, end, assumes=notes, why=why)
        return shown(algebra.value(packed), algebra.form(packed), certain, below, why, notes)

    def signal(self, name: str, t: int, run: Trajectory) -> Signal | EntrySize:
        """A quantity in a run."""
        with self.deep():
            read: Signal | EntrySize = quantity(self.table, name).read(run, t)
        return read

    @contextmanager
    def deep(self) -> Iterator[None]:
        """As many frames of the interpreter as the network may take."""
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, min(_FRAMES * len(self.network.statements), _DEEPEST)))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)

    @cached_property
    def curved(self) -> bool:
        """Polynomials stand for functions, or for steps that products of three signals may see more of than a line."""
        return self.stepped() or any(f.stands_for for f in self.network.functions)

    def stepped(self, signs: bool = False) -> bool:
        """Products of three signals, at an index that grows, may see more of a step than what is linear; of a buffer's
        step, which has two values, all is linear.

        Args:
            signs: of one that takes signs.
        """
        run, rules = self.on(LADDER[0]), self.optimizer.of
        tensors, held = self.network.tensors.items(), find_buffers(self.network)
        trained = ((rules(role), x.indices) for role, x in tensors if role not in held)
        entries = (x for rule, x in trained if (rule.is_sign if signs else rule.normalises == "entry"))
        return any(len(odd_powers(run, indices)) > 1 for indices in entries)

    def forms(self, name: str, t: int) -> tuple[Form, ...]:
        """Forms of the monomials that a lower bound of a signal is read off: each is a lower bound of its size, at
        every ray and point. None for exactly zero and for updates of tensors, which are no signals.

        Raises:
            Exhausted: they take more work than a lower bound may. BeyondPowerCounting: nothing follows them.
        """
        run = self.on(QUICK[-1])
        with run.ledger.question():
            read = self.signal(name, t, run)
        return run.algebra.forms(read) if isinstance(read, Signal) else ()

    def step(self, role: str, t: int) -> tuple[Bracket, ...]:
        """The factors of the gradient after t updates in the next one: the learning rate, and what the optimizer
        has of the size of the tensor and one over its normaliser. Empty if the gradient is exactly zero."""
        factors: tuple[Bracket, ...] = ()
        for rung in LADDER:
            run = self.on(rung)
            try:
                with run.ledger.question(), self.deep():
                    scalars = run.steps.scalars(role, t)
            except (Exhausted, BeyondPowerCounting):
                factors = (Bracket(),)
                continue
            value, form = run.algebra.value, run.algebra.form
            factors = tuple(shown(value(x.size), form(x.size), x.certain, x.certain) for x in scalars)
            if all(x.decided for x in factors):
                break
        return factors
