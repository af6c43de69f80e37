"""Optimizers as update rules on exponents. Adding an optimizer: one more entry in ``OPTIMIZERS``.

Read next: ``training.py`` (applies the rule at every step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import unknown_name


@dataclass(frozen=True)
class Optimizer:
    """How one step turns a gradient into an update.

    Law: update = lr * gradient / normaliser, the normaliser being the size of an entry (a sum of squares in v_t).
    A rank-one gradient u v^T keeps its factors: sign(u v^T) = sign(u) sign(v)^T, and an entrywise odd function of a
    Gaussian-like signal is carried by its linear (first Hermite) part, so the direction is that of the gradient.

    Attributes:
        name: for the command line and reports.
        torch: class in ``torch.optim`` that ``verify`` steps with; empty if torch has none.
        normalises: divide by the gradient's own size (largest so far).
        memory: the normaliser remembers the largest past gradient (v_t is a running mean of squares).
        epsilon: the normaliser is at least epsilon ~ n^-d.
        decoupled_decay: weight decay acts on the weights, not on the gradient. With lr * wd scale-free it multiplies
            W_0 by a Theta(1) factor and changes no exponent.
        note: assumption printed with the result.
    """

    name: str
    torch: str
    normalises: bool = False
    memory: bool = False
    epsilon: bool = False
    decoupled_decay: bool = False
    note: str = ""

    def normaliser(self, gradients: Sequence[int], epsilon: int) -> int:
        """Packed exponent the gradient of this step is divided by.

        Args:
            gradients: packed entry sizes of the gradients so far, this step's last; zeros left out.
            epsilon: packed exponent of Adam's epsilon.
        """
        if not self.normalises:
            return 0
        size = max(gradients) if self.memory else gradients[-1]
        return max(size, epsilon) if self.epsilon else size


_ADAM = "entrywise normalisation is carried by its linear (first Hermite) part; a rank-one sign factorises"

OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer("sgd", "SGD"),
        Optimizer("adam", "Adam", normalises=True, memory=True, epsilon=True, note=_ADAM),
        Optimizer(
            "adamw",
            "AdamW",
            normalises=True,
            memory=True,
            epsilon=True,
            decoupled_decay=True,
            note=_ADAM + "; lr * weight decay is kept scale-free, so in torch's convention weight decay scales as 1/lr",
        ),
        Optimizer("signsgd", "", normalises=True, note=_ADAM),
    )
}
"""Every optimizer, by name."""


def optimizer(name: str) -> Optimizer:
    """The optimizer called ``name``.

    Raises:
        UsageError: no such optimizer.
    """
    if name.lower() not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name.lower()]
