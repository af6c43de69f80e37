"""Training rules: for each kind of statement its value, its change, and the gradient at its inputs.

All rules are in the table ``RULES``. A rule does not depend on the network: changes and gradients follow from the
product rule, and no signal, tensor or index has a special meaning. For ``h = W x``, the rule of a product gives the
change ``W_0 dx + dW x_t`` and the gradient ``W^T g`` at x.
Read next: ``functions.py`` and ``norms.py`` (rules of functions), ``trajectory.py`` (applies the rules),
``quantities.py`` (names the results).
"""

from __future__ import annotations

from typing import Protocol

from scaling_algebra.counting.signals import Signal
from scaling_algebra.spec.networks.indices import balanced_indices
from scaling_algebra.spec.networks.language import Function, Product, Statement

from .functions import SOFTMAX, Centre, Entrywise, explain_saturation
from .norms import Norm
from .run import BeyondPowerCounting, Modes, TrainingRun


class Rule(Protocol):
    """Protocol for the rules of one kind of statement: its output, the change of its output, and the gradient at its
    inputs. ``t`` is the number of updates."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """Returns the output after t updates."""

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """Returns the output after t > 0 updates minus the initial output."""

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        """Returns the gradient of the network's output with respect to one input of a statement.

        Args:
            tr: the training run.
            s: the statement.
            k: position of the input.
            above: the gradient with respect to the output of the statement.
            t: number of updates.
            modes: tensors of which only the initial value or only the update is used.

        Returns:
            The gradient, with the indices that the input has in the statement.
        """


class _Product:
    """Rule of a product, such as ``h = W x``: the change is W_0 dx + dW x_t, and the gradient at x is W^T g.

    Law: the change is a sum over the factors, where one factor is replaced by its change, those before it have their
    present values and those after it their initial values. The gradient at a factor is the gradient above times all
    other factors.
    """

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
        return tr.algebra.add([tr.with_name(x, name) for x, name in named])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Product)
        gradient = tr.transpose_product(s, k, above, t, modes)
        for x in balanced_indices(tr.network, s, k):
            gradient = tr.algebra.subtract_mean(gradient, x)
        return gradient


class _Sum:
    """Rule of a sum: its value and its change are the sums of those of its terms, and the gradient at each term is the
    gradient at the sum."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.read_factor(x, "value", t) for x in s.inputs])

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.read_factor(x, "change", t) for x in s.inputs])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        return above


class _Gate:
    """Rule of a gate that is replaced by its mean and slope. Its initial value is Theta(1) and independent of the
    weights, and its change is the change of its argument. Source: standing assumption B2 of MSSP paper, J.2."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        initial = tr.algebra.constant(tr.network.signals[s.out])
        return tr.algebra.add([initial, tr.change(s.out, t)]) if t else initial

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        change = tr.read_factor(s.inputs[0], "change", t)
        return tr.algebra.make_bounded(tr.network.signals[s.out]) if explain_saturation(tr, s, change, t) else change

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        tr.note("held-gates")
        if reason := explain_saturation(tr, s, tr.read_factor(s.inputs[0], "change", t), t):
            raise BeyondPowerCounting(reason)
        return above


class _Noise:
    """Rule of noise, which is drawn anew at every step. If no axis of the noise grows, the same draw is used at all
    steps: a sum over finitely many entries has the same size whether they are correlated or not."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        indices = tr.network.signals[s.out]
        grows = any(map(tr.grows, indices))
        return tr.algebra.tensor(f"{s.out}@{t if grows else 0}", indices, 0)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([self.value(tr, s, t), tr.initial(s.out)])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        raise AssertionError("noise reads nothing")


class _StopGradient:
    """Rule of ``stop_gradient``: it returns its argument in the forward pass, and counts as a constant in the backward
    pass."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.read_factor(s.inputs[0], "value", t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.read_factor(s.inputs[0], "change", t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        return tr.algebra.zeros(s.inputs[0].indices)


ENTRYWISE = Entrywise()
RULES: dict[str, Rule] = {
    "product": _Product(),
    "sum": _Sum(),
    "gate": _Gate(),
    "entrywise": ENTRYWISE,
    "softmax": SOFTMAX,
    "norm": Norm(),
    "centre": Centre(),
    "noise": _Noise(),
    "stopped": _StopGradient(),
}
"""The rule of each kind of statement, and of each kind of function."""


def find_rule(statement: Statement) -> Rule:
    """Returns the training rule for the kind of a statement."""
    if isinstance(statement, Function):
        return RULES[statement.kind.kind]
    return RULES["product" if isinstance(statement, Product) else "sum"]
