"""Splits the signals, gradients and updates of a trained block into the named parts that the engine predicts.

Every weight is W_t = W_0 + dW (``updates.py``), read once forward and once backward for all parts. With decoupled
weight decay W_0 means the decayed initial value, so dW is the part driven by gradients and every split is an identity.
Read next: ``measuring/block.py`` (calls this at every step of every run).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from scaling_algebra.verify.judging.fit import Array

from .block_updates import Operator, vector

Named = dict[str, Tensor]
MODES = ("init", "update")

CACHED = 2**18
"""Entries of the signals of experts that are made at once on a CPU."""


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    flat = x.flatten(1)
    size: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return size / flat.shape[1] ** 0.5


def relative_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> Array:
    """Largest difference within pairs (S, ...), relative to the second of them, for each replica, (S,); NaN where one
    is not finite."""
    differences = []
    for ours, theirs in pairs:
        difference, size = (rms(x).double() for x in (ours - theirs, theirs))
        differences.append(torch.where(size == 0, difference, difference / size))
    largest: Array = torch.stack(differences).amax(0).cpu().numpy()
    return largest


def over(x: Tensor, size: Tensor) -> Tensor:
    """``x / size`` for each replica, (S, ...) with (S,); what is exactly zero stays so."""
    return x.where(x == 0, x / size.view(-1, *[1] * (x.ndim - 1)).to(x))


@dataclass(frozen=True)
class Sums:
    """Named sums of several summands, formed only where somebody reads them: the products of the summands with each
    other give their sizes, and with many narrow experts such signals would outweigh the weights.

    Attributes:
        products: the mean over entries of the product of any two summands, (S, c, c).
        summands: makes all of them, shapes (S, M, b).
        which: numbers of the summands in every sum, by its name.
    """

    products: Tensor
    summands: Callable[[], Sequence[Tensor]]
    which: Mapping[str, list[int]]

    def rms(self) -> dict[str, Tensor]:
        """Root-mean-square of every sum over the entries of each replica, (S,)."""
        squares = {name: self.products[:, k][:, :, k].sum((1, 2)) for name, k in self.which.items()}
        return {name: square.clamp(min=0).sqrt() for name, square in squares.items()}

    def formed(self, name: str) -> Tensor:
        """Shape (S, M, b)."""
        summands = self.summands()
        return reduce(torch.add, [summands[k] for k in self.which[name]])


class NamedSignals(dict[str, Tensor]):
    """Named signals, shapes (S, ...). Those in ``sums`` and ``ratios`` are formed when they are first read.

    Attributes:
        ratios: by name, a signal and another one whose size it is divided by.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[Sums] = []
        self.ratios: dict[str, tuple[str, str]] = {}

    def __missing__(self, name: str) -> Tensor:
        if name in self.ratios:
            signal, divisor = self.ratios[name]
            self[name] = over(self[signal], rms(self[divisor]))
            return self[name]
        for group in self.sums:
            if name in group.which:
                self[name] = group.formed(name)
                return self[name]
        raise KeyError(name)

    def rms(self) -> dict[str, Tensor]:
        """Root-mean-square of every signal over the entries of each replica, (S,)."""
        alike: dict[torch.Size, list[str]] = {}
        for name, x in self.items():
            alike.setdefault(x.shape, []).append(name)
        sizes: dict[str, Tensor] = {}
        for names in alike.values():  # few operations on many signals: each would cost more than its few entries
            stack = torch.stack([self[name] for name in names])
            sizes |= dict(zip(names, rms(stack.flatten(0, 1)).unflatten(0, stack.shape[:2]), strict=True))
        for group in self.sums:
            sizes |= group.rms()
        for name, (signal, divisor) in self.ratios.items():
            sizes[name] = over(sizes[signal], sizes[divisor])
        return sizes


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
        self.named = NamedSignals()
        self.x = x.expand(len(weights["W1"].now), -1)
        h1 = self._first()
        psi = self._linear("psi", "Q", "h1", *h1)
        self.phi, phi0 = (torch.sigmoid(argument) for argument in (psi[0] + psi[1], psi[0]))
        self.gates = multiplier * self.phi
        self.named |= {"phi": self.phi, "phi.init": phi0, "phi.change": self.phi - phi0}
        slope = phi0 * (1 - phi0)  # parts of the gate to first order in those of its argument
        self.named |= {f"phi.{p}": slope * self.named[f"psi.{p}"] for p in ("propagating", "effective", "cross")}
        h2 = self._linear("h2", "W2", "h1", *h1)
        self._linear("f", "W4", "h3", *self._experts(h2, phi0))
        self._backward()

    def forward(self, symbol: str, *signals: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """``W_0 v`` and ``dW v`` of each signal, in one pass over the weight."""
        sides = self.weights[symbol].forward(torch.stack([vector(symbol, v) for v in signals], 2))
        initial, update = ([self._signal(symbol, part) for part in side.unbind(2)] for side in sides)
        return initial, update

    def _signal(self, symbol: str, output: Tensor) -> Tensor:
        """The output of a weight, (S, g, out), in the shape of the signal."""
        if symbol == "W2":
            return output.reshape(len(output), self.experts, -1)
        return output[:, 0, 0] if symbol == "W4" else output[:, 0]

    def _first(self) -> tuple[Tensor, Tensor]:
        (start,), (change,) = self.forward("W1", self.x)
        self.named |= {"h1": start + change, "h1.init": start, "h1.effective": change, "h1.change": change}
        return start, change

    def _linear(self, name: str, symbol: str, source: str, start: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Records the parts of ``W_t x_t``, ``x`` named by ``source``; returns its initial value and its change."""
        (init, propagating), (effective, cross) = self.forward(symbol, start, change)
        learnt = effective + cross
        total = propagating + learnt
        parts = (init, propagating, effective, cross, learnt, total, init + total)
        suffixes = (".init", ".propagating", ".effective", ".cross", ".update", ".change", "")
        for part in ("update", "propagating"):
            self.named.ratios[f"{name}.{part}.normalised"] = f"{name}.{part}", source
        self.named |= {name + suffix: part for suffix, part in zip(suffixes, parts, strict=True)}
        return init, total

    def _experts(self, h2: tuple[Tensor, Tensor], phi0: Tensor) -> tuple[Tensor, Tensor]:
        """Records h3i, and A1 .. D (all with the current gates); returns the initial value and the change of h3."""
        n, w3 = self.named, self.weights["W3"]
        read = torch.stack(h2, 2)
        products, mixed = self._all_experts(read, torch.stack([self.phi, phi0, self.phi - phi0], 1))

        def h3i() -> list[Tensor]:
            return [x for side in w3.forward(read) for x in side.unbind(2)]

        parts = ("init", "propagating", "effective", "cross")
        which = {f"h3i.{part}": [k] for k, part in enumerate(parts)}
        which |= {"h3i.update": [2, 3], "h3i.change": [1, 2, 3], "h3i": [0, 1, 2, 3]}
        n.sums.append(Sums(products, h3i, which))
        n.ratios |= {f"h3i.{part}.normalised": (f"h3i.{part}", "h2") for part in ("update", "propagating")}
        gated, gated_0, regated = (m.unbind(1) for m in (self.multiplier * mixed).unbind(1))
        n |= {f"h3.{part}": m for part, m in zip(parts, gated, strict=True)}
        n |= {"h3.A1": n["h3.init"], "h3.A3": n["h3.effective"], "h3.D": n["h3.cross"]}
        weighted = (self.gates[..., None] * n[f"h2.{part}"] for part in ("propagating", "effective"))
        through = [side.flatten(1)[:, None] for side in weighted]
        n["h3.A2.1"], n["h3.A2.2"] = w3.joined().initial(torch.stack(through, 2))[:, 0].unbind(1)
        start, total = gated_0[0], n["h3.propagating"] + n["h3.effective"] + n["h3.cross"] + regated[0]
        n |= {"h3": start + total, "h3.change": total}
        return start, total

    def _all_experts(self, read: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        """Products of W3 and dW3 with c vectors, for some experts at a time, so that the products stay in a cache.

        Args:
            read: shape (S, M, c, N_e).
            gates: shape (S, k, M).

        Returns:
            The mean over entries of the product of any two of the 2 c vectors made, (S, 2 c, 2 c), and
            ``sum_i gates_i`` of each, (S, k, 2 c, b).
        """
        w3 = self.weights["W3"]
        width = 2 * w3.now.shape[2] * read.shape[2] * len(read)
        together = max(1, (CACHED if read.device.type == "cpu" else 2**10 * CACHED) // width)
        products, mixed = [], []
        for first in range(0, self.experts, together):
            chosen = slice(first, first + together)
            sums = w3.groups(chosen).summed(read[:, chosen], gates[:, :, chosen])
            products.append(sums[0])
            mixed.append(sums[1])
        entries = self.experts * w3.now.shape[2]
        return reduce(torch.add, products) / entries, reduce(torch.add, mixed)

    def _backward(self) -> None:
        """Derivatives of f, by hand, one entry per choice of initial or updated part of every weight on the way."""
        n, gates = self.named, self.gates
        ones = torch.ones_like(self.phi[:, None, None, :1])
        readout = dict(zip(MODES, (r[:, 0, 0] for r in self.weights["W4"].backward(ones)), strict=True))
        above = torch.stack(list(readout.values()), 1)  # (S, 2, b)
        back = self.weights["W3"].backward(above[:, None])
        g2: Named = {}
        gphi: Named = {}
        for outer, w3 in zip(MODES, back, strict=True):
            for k, inner in enumerate(readout):
                g2[f"{outer}-{inner}"] = gates[..., None] * w3[:, :, k]
                gphi[f"{outer}-{inner}"] = self.multiplier * (n["h2"] * w3[:, :, k]).sum(-1)
        both = above.double()
        weight = gates.double().square().sum(1) / (self.experts * both.shape[2])
        products = both @ both.mT * weight[:, None, None]

        def g3i() -> list[Tensor]:
            return [gates[..., None] * r[:, None] for r in readout.values()]

        n.sums.append(Sums(products, g3i, {"g3i.init": [0], "g3i.update": [1], "g3i": [0, 1]}))
        for name, parts in (("g3", readout), ("g2", g2), ("gphi", gphi)):
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
        """``gradient of f = left right^T`` for every weight: what flows back into what it makes, and what it reads.

        Of W3 the gates are on the right, so that its left side is the same for all experts.
        """
        n = self.named
        gpsi = self.phi * (1 - self.phi) * n["gphi"]
        return {
            "W1": (n["g1"], self.x),
            "Q": (gpsi, n["h1"]),
            "W2": (n["g2"], n["h1"]),
            "W3": (n["g3"][:, None], self.gates[..., None] * n["h2"]),
            "W4": (torch.ones_like(self.phi[:, :1]), n["h3"]),
        }
