"""Every function of the language, as the engine sees it.

To add one of these kinds, add a table to ``functions.toml``. Read next: ``language.py`` (statements),
``scaling_algebra/dynamics/functions.py`` and ``norms.py`` (what training makes of a function).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scaling_algebra.files import load_shipped_toml
from scaling_algebra.spec.entries import read_registry


@dataclass(frozen=True)
class FunctionKind:
    """A function as the engine sees it: the generic polynomial of its parity class.

    Attributes:
        name: in equations.
        torch: what ``verify`` computes: the name in ``torch.nn.functional``, or in ``torch``.
        about: one line for users.
        kind: ``gate``: Theta(1) with Theta(1) slope, its initial value taken as independent of the weights (standing
            assumption B2 of MSSP paper, J.2). ``entrywise`` and ``softmax``: part of the dynamics. ``norm``: divides by
            the root-mean-square along ``over``. ``noise``: reads nothing, drawn anew at every step. ``stopped``:
            its adjoint is zero. Others: as their rule says (``RULES``), along ``over``.
        powers: powers of the argument in its polynomial, by its parity class: odd (1, 3), an odd part that is exactly
            linear and an even one (1, 2), no parity (0 to 3; 0: a mean that does not vanish with the argument).
        bounded: what happens to an argument beyond O(1) is no power of n.
        steep: of an argument beyond O(1) its values are no power of n.
        homogeneous: of degree one: of an argument of any size.
        positive: its values are. ``rising``: its slope is, where it is not flat. ``signed``: it has the sign of its
            argument.
        centres: a mean along ``over`` is subtracted.
        selects: top-K along ``over``: a random mask with a Theta(1) fraction of ones multiplies the value. It is drawn
            anew when the argument moved by at least its spread, and is constant in the backward pass (routers paper,
            App. F).
        spared: heavy tails of its argument, by the assumption ``bounded-logits``.
    """

    name: str
    torch: str
    about: str
    kind: Literal["gate", "entrywise", "softmax", "norm", "noise", "stopped"] = "entrywise"
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
        """Is an entry of its output made of several entries of its argument, along a letter?"""
        return self.kind not in ("gate", "entrywise", "noise", "stopped")

    @property
    def named_bounded(self) -> str:
        """The softmax whose logits stay bounded."""
        return "topk_bounded_softmax" if self.selects else "bounded_softmax"

    @property
    def gaps(self) -> bool:
        """Is a share of its values and slopes exactly zero, as of relu?"""
        return (self.homogeneous and not self.signed) or self.selects


FUNCTIONS: dict[str, FunctionKind] = read_registry(
    "functions.toml", load_shipped_toml(__package__, "functions.toml"), FunctionKind
)
"""Every function of the language, by name."""
