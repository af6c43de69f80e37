"""The functions of the language, with the properties that the engine uses.

To add one of an existing kind, add a table to ``functions.toml``. Read next: ``language.py`` (statements),
``scaling_algebra/dynamics/functions.py`` and ``norms.py`` (what training makes of a function).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scaling_algebra.files import load_shipped_toml
from scaling_algebra.spec.entries import read_registry


@dataclass(frozen=True)
class FunctionKind:
    """The properties of a function that equations may call, such as relu or softmax.

    Sizes are counted for a polynomial with generic coefficients in its place. Which powers occur in it depends only on
    whether the function is odd, has an exactly linear odd part, or has no parity.

    Attributes:
        name: its name in equations.
        torch: the function that ``verify`` calls: its name in ``torch.nn.functional``, or in ``torch``.
        about: one line for users.
        kind: the rule that applies to it (``RULES``):
            ``gate``: its values and slopes are Theta(1), and its initial value is taken as independent of the weights
            (standing assumption B2 of MSSP paper, J.2).
            ``entrywise``, ``softmax``: analysed as a polynomial of its argument (``powers``).
            ``norm``: divides by the root-mean-square along ``over``.
            ``centre``: subtracts the mean along ``over``, and does no more.
            ``noise``: has no argument, and is drawn anew at every step.
            ``stopped``: its gradient is zero (stop-gradient).
        powers: powers in its polynomial, by parity class: odd (1, 3); an exactly linear odd part plus an even part (1,
            2); no parity (0 to 3, where 0 is a mean that does not vanish with the argument).
        bounded: True if its effect is no power of n where its argument exceeds O(1).
        steep: True if its values are no powers of n where its argument exceeds O(1).
        homogeneous: True if f(c x) = c f(x) for every c > 0, for an argument x of any size.
        positive: True if its values are not negative.
        rising: True if its slope is positive wherever it is not zero.
        signed: True if it has the sign of its argument.
        selects: True for a top-K selection along ``over``. The selection is modelled as a random mask of zeros and
            ones, with a Theta(1) fraction of ones, that multiplies the values. The mask is drawn anew when the
            argument has changed by at least its spread, and counts as a constant in the backward pass (routers paper,
            App. F).
        centres: True if a mean along ``over`` is subtracted.
        spared: True if the assumption ``bounded-logits`` is made for it: its argument has no heavy tails (entries
            that are rare and much larger than the others).
    """

    name: str
    torch: str
    about: str
    kind: Literal["gate", "entrywise", "softmax", "norm", "centre", "noise", "stopped"] = "entrywise"
    powers: frozenset[int] = frozenset({1})
    bounded: bool = False
    steep: bool = False
    homogeneous: bool = False
    positive: bool = False
    rising: bool = False
    signed: bool = False
    selects: bool = False
    centres: bool = False
    spared: bool = False

    @property
    def mixes(self) -> bool:
        """True if an entry of its output depends on several entries of its argument, along one index."""
        return self.kind not in ("gate", "entrywise", "noise", "stopped")

    @property
    def named_bounded(self) -> str:
        """Name of the variant of this softmax whose logits are assumed to stay bounded."""
        return "topk_bounded_softmax" if self.selects else "bounded_softmax"

    @property
    def gaps(self) -> bool:
        """True if a share of its values and slopes is exactly zero, as for relu."""
        return (self.homogeneous and not self.signed) or self.selects


FUNCTIONS: dict[str, FunctionKind] = read_registry(
    "functions.toml", load_shipped_toml(__package__, "functions.toml"), FunctionKind
)
"""Every function of the language, by name."""
