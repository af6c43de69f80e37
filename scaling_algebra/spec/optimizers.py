"""Optimizers as update rules on exponents. Adding an optimizer: one more entry in ``OPTIMIZERS``.

Read next: ``trajectory.py`` (applies the rule at every step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scaling_algebra.errors import UsageError, named

Epsilon = Literal["derived", "negligible"]
EPSILONS: dict[str, str] = {
    "derived": "of the size of the largest gradient (mu-3), an exponent like any other",
    "negligible": "far below every gradient, as torch's 1e-8 mostly is: the normaliser is the gradient's size alone",
}
"""Regimes of an optimizer's epsilon."""


@dataclass(frozen=True)
class Optimizer:
    """How one step turns a gradient into an update.

    Law: update = lr * gradient / normaliser, times the size of the tensor for a relative one. The normaliser is the
    size of an entry (a running mean of squares, or a sign), or of the whole matrix of one expert (a spectral step). A
    rank-one gradient u v^T keeps its factors: sign(u v^T) = sign(u) sign(v)^T, orthogonalising it gives
    u v^T / (|u| |v|), and an entrywise odd function of a Gaussian-like signal is carried by its linear (first Hermite)
    part, so the direction is that of the gradient.
    A momentum buffer adds Theta(1) multiples of past gradients, which the cumulative update holds already: it changes
    no exponent.

    Attributes:
        name: for the command line and reports.
        torch: class that ``verify`` steps with, of ``torch.optim`` or ``verify/networks/steppers.py``, and its
            options; empty if there is none.
        first: size of torch's first step, in learning rates. The MoE block is trained with learning rate and epsilon
            divided by it, so that all rules that normalise start with the same step.
        normalises: divide by the size of an ``entry`` or of the ``matrix``; empty for none.
        memory: the normaliser remembers the largest past gradient (v_t is a running mean of squares).
        epsilon: the normaliser is at least epsilon ~ n^-d.
        negligible: it has an epsilon, which is far below every gradient and plays no role; then ``epsilon`` is False.
        relative: the step is relative to the size of the tensor it changes; to Theta(1) where that starts at zero.
        decoupled_decay: weight decay acts on the weights, not on the gradient.
        note: assumption printed with the result.
        source: where the rule is published.
    """

    name: str
    torch: str
    options: Mapping[str, Any] = field(default_factory=dict)
    first: float = 1.0
    normalises: Literal["", "entry", "matrix"] = ""
    memory: bool = False
    epsilon: bool = False
    negligible: bool = False
    relative: bool = False
    decoupled_decay: bool = False
    note: str = ""
    source: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def factors(self) -> int:
        """Of a forward multiplier in the update of the weight it multiplies: one of the gradient, one of the weight."""
        return 0 if self.relative else 1 if self.normalises else 2

    @property
    def signs(self) -> bool:
        """A step is a sign, up to Theta(1) factors that depend on past gradients."""
        return self.normalises == "entry" and not self.epsilon

    @property
    def assumes(self) -> str:
        """What a step of it rests on (``assumptions.py``); empty for counting powers alone."""
        if self.normalises == "matrix":
            return "singular-directions"
        return "rank-one-sign" if self.signs else "first-hermite" if self.normalises else ""

    @property
    def untrained(self) -> str:
        """Why it cannot be trained here; empty if it can."""
        why = "its step is of whole tensors, and only steps of entries are taken here; take another optimizer"
        return "" if self.torch else f"{self.name} cannot be trained: {why}"

    @property
    def regime(self) -> Epsilon | None:
        """That of its epsilon; None if it has none."""
        return "negligible" if self.negligible else "derived" if self.epsilon else None

    def with_epsilon(self, regime: str) -> Optimizer:
        """The same rule with its epsilon in a regime, one of ``EPSILONS``.

        Raises:
            UsageError: no such regime, or an optimizer without an epsilon.
        """
        named("epsilon regime", regime, EPSILONS)
        if self.regime is None:
            raise UsageError(f"{self.name} has no epsilon; leave out epsilon {regime!r}")
        negligible = regime.lower() == "negligible"
        return replace(self, epsilon=not negligible, negligible=negligible)

    def normaliser(self, gradients: Sequence[int], epsilon: int, entries: int) -> int:
        """Packed exponent the gradient of this step is divided by.

        Args:
            gradients: packed entry sizes of the gradients so far, this step's last; zeros left out.
            epsilon: packed exponent of Adam's epsilon.
            entries: packed square root of the number of entries of one expert's matrix.
        """
        if not self.normalises:
            return 0
        size = max(gradients) if self.memory else gradients[-1]
        if self.epsilon:
            size = max(size, epsilon)
        return size + entries if self.normalises == "matrix" else size


_ENTRY = "entrywise normalisation is carried by its linear (first Hermite) part; a rank-one sign factorises"
_MATRIX = (
    "the gradient of a matrix has rank Theta(1) (batch of Theta(1) samples): orthogonalised, it is the gradient over "
    "its Frobenius norm, with operator norm lr; applied to every tensor, each expert apart"
)
_RELATIVE = (
    "a step is relative to the rms of its tensor, which stays above the floor that the rule sets for it; a tensor that "
    "starts at zero is at the floor, which is Theta(1)"
)
_DECAY = (
    "lr * weight decay is kept scale-free, so in torch's convention weight decay scales as 1/lr; in the original one, "
    "where decay is not multiplied by lr, it is constant"
)

OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer("sgd", "SGD"),
        Optimizer("momentum", "SGD", {"momentum": 0.9}, note="momentum changes no exponent"),
        Optimizer("adam", "Adam", normalises="entry", memory=True, epsilon=True, note=_ENTRY),
        Optimizer(
            "adamw",
            "AdamW",
            normalises="entry",
            memory=True,
            epsilon=True,
            decoupled_decay=True,
            note=f"{_ENTRY}; {_DECAY}",
            source="Loshchilov and Hutter (2019)",
        ),
        Optimizer(  # the mean of squares starts at 0 and is not corrected for it: 1 / sqrt(1 - alpha), alpha = 0.99
            "rmsprop", "RMSprop", first=10.0, normalises="entry", memory=True, epsilon=True, note=_ENTRY
        ),
        Optimizer("signsgd", "SignSGD", normalises="entry", note=_ENTRY, source="Bernstein et al. (2018)"),
        Optimizer("lion", "Lion", normalises="entry", memory=True, note=_ENTRY, source="Chen et al. (2023)"),
        Optimizer(
            "adafactor",
            "",
            normalises="entry",
            memory=True,
            relative=True,
            note=f"{_ENTRY}; {_RELATIVE}",
            source="Shazeer and Stern (2018)",
        ),
        Optimizer("muon", "", normalises="matrix", note=_MATRIX, source="Jordan et al. (2024)"),
        Optimizer("shampoo", "", normalises="matrix", memory=True, note=_MATRIX, source="Gupta et al. (2018)"),
    )
}
"""Every optimizer, by name."""


def optimizer(name: str) -> Optimizer:
    """The optimizer called ``name``.

    Raises:
        UsageError: no such optimizer.
    """
    return named("optimizer", name, OPTIMIZERS)
