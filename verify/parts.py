"""Splits the signals, gradients and updates of a trained block into the named parts that the engine predicts.

Every weight is W_t = W_0 + dW. With decoupled weight decay W_0 means the decayed initial value, so dW is the part
driven by gradients and every split below stays an identity.
Read next: ``runs.py`` (calls this at every step of every run).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Named = dict[str, Tensor]
MODES = ("init", "update")


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    flat = x.flatten(1)
    size: Tensor = torch.linalg.vector_norm(flat, dim=1) / flat.shape[1] ** 0.5
    return size


class Split:
    """All named parts at one moment of training.

    Args:
        w0: initial weights by symbol (decayed, with AdamW); shapes as in ``MoEBlock.weights``.
        dw: what the gradients added to them.
        x: input, shape (D,).
        multiplier: of the aggregation.
    """

    def __init__(self, w0: Mapping[str, Tensor], dw: Mapping[str, Tensor], x: Tensor, multiplier: float) -> None:
        self.w0, self.dw, self.x, self.multiplier = w0, dw, x, multiplier
        self.named: Named = {}
        h1 = self._first()
        psi = self._linear("psi", "Q", *h1)
        self.phi = torch.sigmoid(psi[0] + psi[1])
        phi0 = torch.sigmoid(psi[0])
        self.named |= {"phi": self.phi, "phi.init": phi0, "phi.change": self.phi - phi0}
        slope = phi0 * (1 - phi0)  # parts of the gate to first order in those of its argument
        self.named |= {f"phi.{p}": slope * self.named[f"psi.{p}"] for p in ("propagating", "effective", "cross")}
        h2 = self._linear("h2", "W2", *h1)
        h3i = self._linear("h3i", "W3", *h2)
        h3 = self._aggregated(h3i, self.phi - phi0, phi0)
        self._linear("f", "W4", *h3)
        self._backward(h2[0] + h2[1])

    def apply(self, weight: Tensor, *signals: Tensor) -> tuple[Tensor, ...]:
        """``weight . signal`` for several signals in one pass over the weight: (S,..,a) with (S,[i,]a) -> (S,..)."""
        columns = torch.stack(signals, -1)
        if weight.ndim == 2:  # readout: (S,b)
            return tuple((weight[:, None, :] @ columns)[:, 0].unbind(-1))
        if weight.ndim == 4 and columns.ndim == 3:  # every expert reads the same vector
            out = weight.flatten(1, 2) @ columns
            return tuple(out.view(*weight.shape[:3], -1).unbind(-1))
        return tuple((weight @ columns).unbind(-1))

    def aggregate(self, x: Tensor, gates: Tensor) -> Tensor:
        """``multiplier * sum_i gates_i x_i``: (S,i,b) with (S,i) -> (S,b)."""
        return self.multiplier * (gates[:, None, :] @ x)[:, 0]

    def _first(self) -> tuple[Tensor, Tensor]:
        start, change = self.w0["W1"] @ self.x, self.dw["W1"] @ self.x
        self.named |= {"h1": start + change, "h1.init": start, "h1.effective": change, "h1.change": change}
        return start, change

    def _linear(self, name: str, symbol: str, start: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Records the four parts of ``W_t x_t``; returns its initial value and its change."""
        init, propagating = self.apply(self.w0[symbol], start, change)
        effective, cross = self.apply(self.dw[symbol], start, change)
        total = propagating + effective + cross
        parts = (init, propagating, effective, cross, total, init + total)
        suffixes = (".init", ".propagating", ".effective", ".cross", ".change", "")
        self.named |= {name + suffix: part for suffix, part in zip(suffixes, parts, strict=True)}
        return init, total

    def _aggregated(self, h3i: tuple[Tensor, Tensor], dphi: Tensor, phi0: Tensor) -> tuple[Tensor, Tensor]:
        """Records A1 .. D (all with the current gates); returns the initial value and the change of h3."""
        n = self.named
        through_h1, through_w2 = self.apply(self.w0["W3"], n["h2.propagating"], n["h2.effective"])
        pieces = {
            "A1": n["h3i.init"],
            "A2.1": through_h1,
            "A2.2": through_w2,
            "A3": n["h3i.effective"],
            "D": n["h3i.cross"],
            "propagating": n["h3i.propagating"],
        }
        n |= {f"h3.{piece}": self.aggregate(x, self.phi) for piece, x in pieces.items()}
        n |= {"h3.init": n["h3.A1"], "h3.effective": n["h3.A3"], "h3.cross": n["h3.D"]}
        start = self.aggregate(h3i[0], phi0)
        change = self.aggregate(h3i[1], self.phi) + self.aggregate(h3i[0], dphi)
        n |= {"h3": start + change, "h3.change": change}
        return start, change

    def _backward(self, h2: Tensor) -> None:
        """Derivatives of f, by hand, one entry per choice of initial or updated part of every weight on the way."""
        n, gates = self.named, self.multiplier * self.phi[..., None]
        readout = {"init": self.w0["W4"], "update": self.dw["W4"]}
        g2: Named = {}
        gphi: Named = {}
        for outer, w3 in zip(MODES, (self.w0["W3"], self.dw["W3"]), strict=True):
            above = (r[:, None, :].expand(-1, w3.shape[1], -1) for r in readout.values())
            back = self.apply(w3.transpose(-1, -2), *above)
            (here,) = self.apply(w3, h2)
            for (inner, r), g in zip(readout.items(), back, strict=True):
                g2[f"{outer}-{inner}"] = gates * g
                gphi[f"{outer}-{inner}"] = self.multiplier * (here @ r[..., None])[..., 0]
        g3i = {mode: gates * r[:, None, :] for mode, r in readout.items()}
        for name, parts in (("g3", readout), ("g3i", g3i), ("g2", g2), ("gphi", gphi)):
            n |= {f"{name}.{part}": g for part, g in parts.items()}
            n[name] = torch.stack(list(parts.values())).sum(0)
        self._into_h1(g2, gphi)

    def _into_h1(self, g2: Named, gphi: Named) -> None:
        n = self.named
        experts: Named = {}
        labels = (("A4", "A5"), ("A6", "E"))
        for row, w2 in zip(labels, (self.w0["W2"], self.dw["W2"]), strict=True):
            stacked = torch.stack([g.flatten(1) for g in g2.values()], -1)  # (S, i*k, 4)
            back = (w2.flatten(1, 2).transpose(1, 2) @ stacked).unbind(-1)
            names = [f"{label}.{k}" for label in row for k in (1, 2)]
            experts |= dict(zip(names, back, strict=True))
        routers: Named = {}
        slope = self.phi * (1 - self.phi)
        for label, q in (("Q0", self.w0["Q"]), ("dQ", self.dw["Q"])):
            back = self.apply(q.transpose(1, 2), *(slope * g for g in gphi.values()))
            routers |= {f"{label}.{part}": g for part, g in zip(gphi, back, strict=True)}
            n[f"g1.router.{label}"] = torch.stack(back).sum(0)
        n |= {f"g1.expert.{part}": g for part, g in experts.items()}
        n |= {f"g1.router.{part}": g for part, g in routers.items()}
        n["g1.expert"] = torch.stack(list(experts.values())).sum(0)
        n["g1.router"] = torch.stack(list(routers.values())).sum(0)
        n["g1"] = n["g1.expert"] + n["g1.router"]
