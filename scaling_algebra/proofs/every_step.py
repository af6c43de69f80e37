"""Every step: bounds that one more update maps into themselves, so that they hold after any number of updates.

Of the changes of signals and of the gradients only a bound on their size is kept; initial tensors and initial signals
are exact. A product is bounded by Cauchy-Schwarz and, where an initial tensor acts, by its operator norm: that of all
experts at once where they act on one vector. If one more update from these bounds does not exceed them, they hold at
every later step, by induction; what is Theta(1) at one step stays so, since no later term takes it back.
Read next: ``prover.py`` (the first steps, exactly), ``counting/signals.py`` (the bound of a product).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.dynamics.analysis import LADDER, Analysis
from scaling_algebra.dynamics.quantities import quantity
from scaling_algebra.dynamics.rules import BeyondPowerCounting, Modes, rule
from scaling_algebra.dynamics.sparse_routing import algebra_for
from scaling_algebra.dynamics.trajectory import Increment, Trajectory
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.networks.language import Factor, Mode, Product

_BOTH: tuple[Mode, ...] = ("init", "update")
ROUNDS = 40
"""Updates of the bounds, before they count as growing without end."""

Bounds = dict[tuple[str, str], int]
"""Packed bound on the size of every ``("change", signal)`` and ``("gradient", signal)`` that is not exactly zero."""


@dataclass(frozen=True)
class EveryStep:
    """What holds after any number of updates.

    Attributes:
        bounds: exponent of the bound on every ``("change", signal)`` and ``("gradient", signal)`` that is not exactly
            zero; empty if none were found.
        open: demands that are not shown to hold at every step, a line each.
    """

    bounds: Mapping[tuple[str, str], Fraction]
    open: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Is every demand met at every step?"""
        return not self.open


def every_step(look: Analysis, demands: Sequence[Demand], last: int) -> EveryStep:
    """Do the demands hold at every step?

    Law: what must be O(1) is by its bound, and what must be Theta(1) besides is so at the last step examined; sizes
    that must agree there are bounded by what they are there. Source: the norms of a spectral argument (Yang, Simon and
    Bernstein 2023), of a sum over experts the norm of all of them together.

    Args:
        look: the engine at a point that meets the demands up to ``last``, of a network that proofs reach.
        last: the update by which what must be Theta(1) is.
    """
    try:
        run = _kept(look)
        if run is None:
            return EveryStep({}, ("no bounds that one more update keeps were found",))
        return EveryStep({k: run.algebra.value(x) for k, x in run.bounds.items()}, _open(run, look, demands, last))
    except (Exhausted, BeyondPowerCounting) as reason:
        return EveryStep({}, (f"undecided: {str(reason) or 'the bounds of a product take too much work'}",))


def _open(run: _LaterRun, look: Analysis, demands: Sequence[Demand], last: int) -> tuple[str, ...]:
    """Demands whose quantities have a bound that is too large."""
    value, lines = run.algebra.value, []
    for demand in demands:
        for name in demand.quantities if demand.kind != "scale" else ():
            bound = run.algebra.bound(quantity(look.table, name).read(run, 1))
            most = look(name, last).size if demand.kind == "balanced" else Fraction(0)
            if bound is not None and (most is None or value(bound) > most):
                lines.append(f"{demand.name}: {name} is bounded by n^({value(bound)}) only")
    for role, d in look.point.d.items() if look.optimizer.epsilon else ():
        bound = run.gradient_bound(role)
        if bound is not None and value(bound) > -d:
            lines.append(f"mu-3: the gradient of {role} is bounded by n^({value(bound)}) only")
    return tuple(dict.fromkeys(lines))


def _kept(look: Analysis) -> _LaterRun | None:
    """A run whose bounds one more update keeps, from zero upwards; None if they grow."""
    algebra = algebra_for(look.network, look.ray, LADDER[-1].gap).at(LADDER[-1])
    bounds: Bounds = {}
    for _ in range(ROUNDS):
        run = _LaterRun(look, algebra, dict(bounds))
        larger = {
            key: x
            for key, x in run.updated()
            if x is not None and (key not in bounds or algebra.value(x) > algebra.value(bounds[key]))
        }
        if not larger:
            return run
        bounds |= larger
    return None


class _LaterRun(Trajectory):
    """Training after any number of updates: ``t = 1`` stands for every later step."""

    def __init__(self, look: Analysis, algebra: Algebra, bounds: Bounds) -> None:
        super().__init__(look.network, algebra, look.point, look.optimizer)
        self.bounds = bounds

    def updated(self) -> Iterator[tuple[tuple[str, str], int | None]]:
        """The bounds after one more update."""
        for statement in self.network.statements:
            x = statement.out
            yield ("change", x), self.algebra.bound(rule(statement).change(self, statement, 1))
            if self.network.consumers(x):
                yield ("gradient", x), self.algebra.bound(self._gradient(x, 1, {}, ""))

    def gradient_bound(self, role: str) -> int | None:
        """Packed bound on the entries of the gradient of a tensor."""
        uses = [[self.algebra.bound(s) for s in self.entries(role, f)] for f in self.factors(role, 1)]
        return max((sum(x for x in sizes if x is not None) for sizes in uses if None not in sizes), default=None)

    # what is known ---------------------------------------------------------------------------------------------

    def value(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().value(signal, t)
        return self.algebra.add([self.initial(signal), self.change(signal, t)])

    def change(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().change(signal, t)
        return self._bounded("change", signal)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        if modes or via or not self.network.consumers(signal):
            return super().gradient(signal, t, modes, via)
        return self._bounded("gradient", signal)

    def transposed(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """As for the exact run, but the gradient above is written out where a weighted sum is all that reads the
        statement: there an initial tensor of all experts meets the gradient of the sum, one vector."""
        written = [] if modes else self._written(statement.out, t)
        if not written:
            return super().transposed(statement, k, above, t, modes, out)
        parts, out = [], statement.factors[k].letters if out is None else out
        for term in self.network.terms(statement, without=k):
            others = [*(self.at(x, "value", t) for x in term.signals), *(self._gate(x, t) for x in term.weights)]
            for mode in product(*[_BOTH] * len(term.tensors)):
                parts.append(self._multiplied(term, mode, written, others, out, t))
        return self.algebra.add(parts)

    def _written(self, signal: str, t: int) -> list[Signal]:
        """The gradient at a signal as a product, where all that reads it is a product with gates."""
        readers = self.network.consumers(signal)
        if len(readers) != 1:
            return []
        ((reader, at),) = readers
        if not isinstance(reader, Product) or reader.tensor:
            return []
        own, gates = reader.factors[at].letters, [x for k, x in enumerate(reader.factors) if k != at]
        above = self.network.signals[reader.out]
        if own != self.network.signals[signal] or not set(own).issuperset(above.join(x.letters for x in gates) + above):
            return []
        factors = [self.gradient(reader.out, t), *(self._gate(x, t) for x in gates)]
        return [self.multiplied(factors[0], reader.multipliers), *factors[1:]]

    def _gate(self, factor: Factor, t: int) -> Signal:
        return self.at(factor, "initial" if self.network.is_held(factor.name) else "value", t)

    def _bounded(self, what: str, signal: str) -> Signal:
        letters = self.algebra.live(self.network.signals[signal])
        return Signal(letters, {}, self.bounds.get((what, signal)), name=f"{what} of {signal}")

    def _updates(self, role: str, t: int) -> list[Increment]:
        """All updates so far: as many as one for the exponents."""
        return self._stepped(role, 1, self._rate(role, 1)) if t else []

    def _rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        """The learning rate, over epsilon where there is one: a normaliser is at least that."""
        c, d = f"c.{role}", f"d.{role}"
        rates = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {c: -1}))]
        if self.optimizer.normalises:
            rates.append(Scalar(f"1/eps of {role}", self.algebra.pack(self.point.d[role], {}, {d: 1})))
        return tuple(rates)
