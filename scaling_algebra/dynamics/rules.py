"""Each kind of statement under training: its value, its change, the gradient at what it reads, and its parts.

One table, ``RULES``. A rule is written once for every network: changes and gradients follow from the product rule, and
no signal, tensor or letter has a meaning of its own.
Read next: ``functions.py`` and ``norms.py`` (rules of functions), ``trajectory.py`` (runs the rules), ``quantities.py``
(names what they make).
"""

from __future__ import annotations

from typing import Protocol

from scaling_algebra.counting.signals import Signal
from scaling_algebra.spec.networks.indices import balanced_indices
from scaling_algebra.spec.networks.language import Function, Product, Statement

from .functions import SOFTMAX, Entrywise, saturated
from .norms import Norm
from .run import BeyondPowerCounting, Modes, TrainingRun


class Rule(Protocol):
    """The readings of one kind of statement. ``t`` counts updates."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """The output after t updates."""

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """The output after t > 0 updates minus the initial output."""

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        """Derivative of the network's output with respect to the k-th input, from the one with respect to the output
        of the statement, in the letters that the input has there."""


class _Product:
    """Law: the change of a product is the sum over its factors of its change, with what stands before at its present
    value and what stands behind at its initial one; the adjoint of a factor is the product of the others."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Product)
        if t:
            return tr.algebra.add([tr.initial(s.out), tr.change(s.out, t)])
        return tr.part(s, "init", "initial", 0)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Product)
        propagated, updated = tr.part(s, "init", "change", t), tr.part(s, "update", "value", t)
        if s.tensor:
            return tr.algebra.add([propagated, updated])
        named = [(propagated, f"{s.out}.propagating"), (updated, f"{s.out} from updated tensors")]
        named.append((tr.gate_change(s, t), f"{s.out}.regated"))
        return tr.algebra.add([tr.named(x, name) for x, name in named])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Product)
        gradient = tr.transposed(s, k, above, t, modes)
        for x in balanced_indices(tr.network, s, k):
            gradient = tr.algebra.centred(gradient, x)
        return gradient


class _Sum:
    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.at(x, "value", t) for x in s.inputs])

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.at(x, "change", t) for x in s.inputs])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        return above


class _Gate:
    """A gate held at its mean and slope: its initial value is Theta(1) and independent of the weights, its change is
    that of its argument. Source: standing assumption B2 of MSSP paper, J.2."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        initial = tr.algebra.constant(tr.network.signals[s.out])
        return tr.algebra.add([initial, tr.change(s.out, t)]) if t else initial

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        change = tr.at(s.inputs[0], "change", t)
        return tr.algebra.unknown(tr.network.signals[s.out]) if saturated(tr, s, change, t) else change

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        tr.note("held-gates")
        if reason := saturated(tr, s, tr.at(s.inputs[0], "change", t), t):
            raise BeyondPowerCounting(reason)
        return above


class _Noise:
    """Along an axis that does not grow one leaf stands for the draws of all steps: a sum over finitely many entries is
    as large whether they are correlated or not."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        indices = tr.network.signals[s.out]
        grows = any(map(tr.grows, indices))
        return tr.algebra.tensor(f"{s.out}@{t if grows else 0}", indices, 0)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([self.value(tr, s, t), tr.initial(s.out)])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        raise AssertionError("noise reads nothing")


class _Stopped:
    """The argument, and in the backward pass a constant."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.at(s.inputs[0], "value", t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.at(s.inputs[0], "change", t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        return tr.algebra.nothing(s.inputs[0].indices)


ENTRYWISE = Entrywise()
RULES: dict[str, Rule] = {
    "product": _Product(),
    "sum": _Sum(),
    "gate": _Gate(),
    "entrywise": ENTRYWISE,
    "softmax": SOFTMAX,
    "norm": Norm(),
    "noise": _Noise(),
    "stopped": _Stopped(),
}
"""The rule of each kind of statement, and of each kind of function."""


def rule(statement: Statement) -> Rule:
    """The rule of a statement."""
    if isinstance(statement, Function):
        return RULES[statement.kind.kind]
    return RULES["product" if isinstance(statement, Product) else "sum"]
