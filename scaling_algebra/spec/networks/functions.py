"""Every function of the language, and what it is to the engine.

Adding one of these kinds: one more entry in ``FUNCTIONS``. Read next: ``language.py`` (statements),
``scaling_algebra/dynamics/functions.py`` and ``norms.py`` (what training makes of a function).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class FunctionKind:
    """A function as the engine sees it: the generic polynomial of its parity class.

    Attributes:
        name: in equations.
        torch: what ``verify`` computes: the name in ``torch.nn.functional``, or in ``torch``.
        about: one line for users.
        kind: ``gate``: Theta(1) with Theta(1) slope, its initial value taken as independent of the weights (standing
            assumption B2 of MSSP paper, J.2). ``entrywise`` and ``softmax``: part of the dynamics. ``norm``: divides by
            the root-mean-square along ``over``. ``noise``: reads nothing, drawn anew at every step.
        powers: powers of the argument in its polynomial (0: a mean that does not vanish with the argument).
        bounded: what happens to an argument beyond O(1) is no power of n.
        homogeneous: of degree one: of an argument of any size.
        positive: its values are. ``rising``: its slope is, where it is not flat. ``signed``: it has the sign of its
            argument.
        selects: top-K along ``over``: a random mask with a Theta(1) fraction of ones multiplies the value. It is drawn
            anew when the argument moved by at least its spread, and is constant in the backward pass (routers paper,
            App. F).
        spared: heavy tails of its argument, by the assumption ``bounded-logits``.
    """

    name: str
    torch: str
    about: str
    kind: Literal["gate", "entrywise", "softmax", "norm", "noise"] = "entrywise"
    powers: frozenset[int] = frozenset({1})
    bounded: bool = False
    homogeneous: bool = False
    positive: bool = False
    rising: bool = False
    signed: bool = False
    selects: bool = False
    centres: bool = False
    spared: bool = False

    @property
    def gaps(self) -> bool:
        """A share of its values, and of its slopes, is exactly zero."""
        return self.homogeneous or self.selects


_ODD, _EVEN, _ANY = frozenset({1, 3}), frozenset({1, 2}), frozenset({0, 1, 2, 3})
"""Parity classes: odd; an odd part that is exactly linear, and an even one; no parity."""
_TOP = "times a top-K selection"
_GATE: dict[str, Any] = {"bounded": True, "positive": True, "rising": True}
_SOFTMAX: dict[str, Any] = {"kind": "softmax", "powers": _ANY, "bounded": True}
FUNCTIONS: dict[str, FunctionKind] = {
    f.name: f
    for f in (
        FunctionKind(
            "gate",
            "sigmoid",
            "a gate held at its mean and slope (standing assumption B2)",
            "gate",
            powers=frozenset({0, 1}),
            **_GATE,
        ),
        FunctionKind("sigmoid", "sigmoid", "sigmoid, entrywise", powers=_ODD | {0}, **_GATE),
        FunctionKind("softmax", "softmax", "softmax along a letter", positive=True, **_SOFTMAX),
        FunctionKind(
            "bounded_softmax",
            "softmax",
            "softmax of logits that stay bounded (a small rate, a z-loss)",
            positive=True,
            spared=True,
            **_SOFTMAX,
        ),
        FunctionKind("topk_sigmoid", "sigmoid", f"sigmoid {_TOP}", powers=_ODD | {0}, bounded=True, selects=True),
        FunctionKind("topk_softmax", "softmax", f"softmax {_TOP}", selects=True, **_SOFTMAX),
        FunctionKind("tanh", "tanh", "tanh, entrywise", powers=_ODD, bounded=True, rising=True, signed=True),
        FunctionKind("silu", "silu", "SiLU, entrywise", powers=_EVEN, signed=True),
        FunctionKind("gelu", "gelu", "GELU, entrywise", powers=_EVEN, signed=True),
        FunctionKind("relu", "relu", "ReLU, entrywise", powers=_EVEN, homogeneous=True),
        FunctionKind("rmsnorm", "rms_norm", "divided by its root-mean-square along a letter", "norm", powers=_ODD),
        FunctionKind(
            "layernorm", "layer_norm", "centred, then divided by its spread along a letter", "norm", centres=True
        ),
        FunctionKind("noise", "randn", "Theta(1) noise, drawn anew at every step", "noise"),
    )
}
"""Every function of the language, by name."""
