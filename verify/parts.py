"""Splits the signals, gradients and updates of a trained block into the named parts that the engine predicts.

Every weight is W_t = W_0 + dW (``operators.py``), read once forward and once backward for all parts. With decoupled
weight decay W_0 means the decayed initial value, so dW is the part driven by gradients and every split is an identity.
Read next: ``runs.py`` (calls this at every step of every run).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

from .operators import Operator, vector

Named = dict[str, Tensor]
MODES = ("init", "update")


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    flat = x.flatten(1)
    size: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64) / flat.shape[1] ** 0.5
    return size


class Split:
    """All named parts at one moment of training, shapes (S, ...) as in the formulas of ``MoEBlock``.

    Args:
        weights: by symbol.
        x: input, shape (D,).
        multiplier: of the aggregation.
    """

    def __init__(self, weights: Mapping[str, Operator], x: Tensor, multiplier: float) -> None:
        self.weights, self.multiplier = weights, multiplier
        self.experts = weights["Q"].now.shape[2]
        self.named: Named = {}
        self.x = x.expand(len(weights["W1"].now), -1)
        h1 = self._first()
        psi = self._linear("psi", "Q", *h1)
        self.phi = torch.sigmoid(psi[0] + psi[1])
        phi0 = torch.sigmoid(psi[0])
        self.named |= {"phi": self.phi, "phi.init": phi0, "phi.change": self.phi - phi0}
        slope = phi0 * (1 - phi0)  # parts of the gate to first order in those of its argument
        self.named |= {f"phi.{p}": slope * self.named[f"psi.{p}"] for p in ("propagating", "effective", "cross")}
        h2 = self._linear("h2", "W2", *h1)
        h3i = self._linear("h3i", "W3", *h2, self.named["h2.propagating"], self.named["h2.effective"])
        h3 = self._aggregated(h3i, self.phi - phi0, phi0)
        self._linear("f", "W4", *h3)
        self._backward()

    def forward(self, symbol: str, *signals: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """``W_0 v`` of each signal and ``dW v`` of the first two, in one pass over the weight."""
        sides = self.weights[symbol].forward(torch.stack([vector(symbol, v) for v in signals], 2), 2)
        initial, update = ([self._signal(symbol, part) for part in side.unbind(2)] for side in sides)
        return initial, update

    def aggregate(self, x: Tensor, gates: Tensor) -> Tensor:
        """``multiplier * sum_i gates_i x_i``: (S, i, b) with (S, i) -> (S, b)."""
        return self.multiplier * (gates[:, None, :] @ x)[:, 0]

    def _signal(self, symbol: str, made: Tensor) -> Tensor:
        """What a weight made, (S, g, out), in the shape of the signal."""
        if symbol in ("W2", "W3"):
            return made.reshape(len(made), self.experts, -1)
        return made[:, 0, 0] if symbol == "W4" else made[:, 0]

    def _first(self) -> tuple[Tensor, Tensor]:
        (start,), (change,) = self.forward("W1", self.x)
        self.named |= {"h1": start + change, "h1.init": start, "h1.effective": change, "h1.change": change}
        return start, change

    def _linear(self, name: str, symbol: str, start: Tensor, change: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Records the four parts of ``W_t x_t``; returns its initial value, its change, and ``W_0 v`` for ``more``."""
        (init, propagating, *also), (effective, cross) = self.forward(symbol, start, change, *more)
        total = propagating + effective + cross
        parts = (init, propagating, effective, cross, total, init + total)
        suffixes = (".init", ".propagating", ".effective", ".cross", ".change", "")
        self.named |= {name + suffix: part for suffix, part in zip(suffixes, parts, strict=True)}
        return init, total, *also

    def _aggregated(self, h3i: tuple[Tensor, ...], dphi: Tensor, phi0: Tensor) -> tuple[Tensor, Tensor]:
        """Records A1 .. D (all with the current gates); returns the initial value and the change of h3."""
        n = self.named
        init, _, through_h1, through_w2 = h3i
        pieces = {
            "A1": init,
            "A2.1": through_h1,
            "A2.2": through_w2,
            "A3": n["h3i.effective"],
            "D": n["h3i.cross"],
            "propagating": n["h3i.propagating"],
        }
        n |= {f"h3.{piece}": self.aggregate(x, self.phi) for piece, x in pieces.items()}
        n |= {"h3.init": n["h3.A1"], "h3.effective": n["h3.A3"], "h3.cross": n["h3.D"]}
        start = self.aggregate(init, phi0)
        total = n["h3.propagating"] + n["h3.effective"] + n["h3.cross"] + self.aggregate(init, dphi)
        n |= {"h3": start + total, "h3.change": total}
        return start, total

    def _backward(self) -> None:
        """Derivatives of f, by hand, one entry per choice of initial or updated part of every weight on the way."""
        n, gates = self.named, self.multiplier * self.phi[..., None]
        one = torch.ones_like(self.phi[:, None, None, :1])
        readout = dict(zip(MODES, (r[:, 0, 0] for r in self.weights["W4"].backward(one)), strict=True))
        above = torch.stack(list(readout.values()), 1)  # (S, 2, b)
        back = self.weights["W3"].backward(above[:, None].expand(-1, self.experts, -1, -1))
        made = (n["h3i.init"] + n["h3i.propagating"], n["h3i.effective"] + n["h3i.cross"])
        g2: Named = {}
        gphi: Named = {}
        for outer, w3, here in zip(MODES, back, made, strict=True):
            seen = self.multiplier * (here @ above.mT)
            for k, inner in enumerate(readout):
                g2[f"{outer}-{inner}"] = gates * w3[:, :, k]
                gphi[f"{outer}-{inner}"] = seen[..., k]
        g3i = {mode: gates * r[:, None, :] for mode, r in readout.items()}
        for name, parts in (("g3", readout), ("g3i", g3i), ("g2", g2), ("gphi", gphi)):
            n |= {f"{name}.{part}": g for part, g in parts.items()}
            n[name] = reduce(torch.add, parts.values())
        self._into_h1(g2, gphi)

    def _into_h1(self, g2: Named, gphi: Named) -> None:
        n = self.named
        slope = self.phi * (1 - self.phi)
        experts: Named = {}
        routers: Named = {}
        from_w2 = self.weights["W2"].backward(torch.stack([vector("W2", g) for g in g2.values()], 2))
        from_q = self.weights["Q"].backward(torch.stack([vector("Q", slope * g) for g in gphi.values()], 2))
        for labels, w2, q, back in zip((("A4", "A5"), ("A6", "E")), from_w2, from_q, ("Q0", "dQ"), strict=True):
            names = [f"{label}.{k}" for label in labels for k in (1, 2)]
            experts |= dict(zip(names, w2[:, 0].unbind(1), strict=True))
            routers |= {f"{back}.{part}": g for part, g in zip(gphi, q[:, 0].unbind(1), strict=True)}
            n[f"g1.router.{back}"] = q[:, 0].sum(1)
        n |= {f"g1.expert.{part}": g for part, g in experts.items()}
        n |= {f"g1.router.{part}": g for part, g in routers.items()}
        n["g1.expert"] = from_w2[0].sum(2)[:, 0] + from_w2[1].sum(2)[:, 0]
        n["g1.router"] = n["g1.router.Q0"] + n["g1.router.dQ"]
        n["g1"] = n["g1.expert"] + n["g1.router"]

    def factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """``gradient of f = left right^T`` for every weight: what flows back into what it makes, and what it reads."""
        n = self.named
        gpsi = self.phi * (1 - self.phi) * n["gphi"]
        return {
            "W1": (n["g1"], self.x),
            "Q": (gpsi, n["h1"]),
            "W2": (n["g2"], n["h1"]),
            "W3": (n["g3i"], n["h2"]),
            "W4": (torch.ones_like(self.phi[:, :1]), n["h3"]),
        }
