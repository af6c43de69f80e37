"""Trains a case of ``networks.py`` in torch float64 and reads every named quantity off it. No code of the engine.

Replicas are a leading dimension, tokens the one behind it in signals: one, or many of which each has its own K of M
experts (then sizes of signals with experts are those of a token's own). The loss is the mean output over tokens.
Gradients are autograd's, one call for each equation and its chain rule by hand, so that a gradient through a part of a
tensor is the same code as the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from .networks import AXES, Line, TrainingCase, is_tensor

FIXED = {"D": 3, "S": 3}
"""Sizes of axes that never grow, and of the others where their rate is 0 (``FLAT``)."""
FLAT = {"N": 4, "N_e": 3, "M": 4, "K": 4, "L": 1}
EPSILON, DECAY = 0.5, 0.1
TOKENS, ACTIVE = 400, 4
"""Tokens where each has its own experts, and how many of these it has at scale 1."""
Tensors = dict[str, Tensor]


def sizes(case: TrainingCase, scale: float) -> dict[str, int]:
    """The size of every letter where the ray has grown by ``scale``: 16 at 1, 8 of an axis that grows faster."""
    found = {}
    for x, axis in AXES.items():
        rate = case.rates.get(axis)
        base = 16 if rate is None or rate <= 1 else 8
        found[x] = FIXED[axis] if axis in FIXED else round(base * scale ** float(rate)) if rate else FLAT[axis]
    return found


def value(line: Line, reads: list[Tensor], multiplier: float, chosen: Tensor | None = None) -> Tensor:
    """What an equation computes, (S, tokens, *letters). ``chosen``: 1 at a token's experts, (S, tokens, M)."""
    if line.kind == "product":
        pairs = [(c, x) for (_, c), x in zip(line.reads, reads, strict=True)]
        if chosen is not None and "i" not in line.indices and any("i" in c for c, _ in pairs):
            pairs.append(("i", chosen))
        return multiplier * contracted(pairs, line.indices)
    if line.kind == "sum":
        return sum(_turned(x, c, line.indices) for (_, c), x in zip(line.reads, reads, strict=True))  # type: ignore
    x = _turned(reads[0], line.reads[0][1], line.indices)
    along = 2 + line.indices.index(line.over) if line.over else 0
    if line.kind.startswith("topk"):
        if chosen is not None and line.over == "i":
            mask = chosen.bool()
        else:
            best = x.detach().topk(max(1, x.shape[along] // 2), along).indices
            mask = torch.zeros_like(x, dtype=torch.bool).scatter(along, best, True)
        if line.kind == "topk_sigmoid":
            return torch.sigmoid(x) * mask
        return torch.softmax(torch.where(mask, x, -torch.inf), along)
    if line.kind == "softmax":
        return torch.softmax(x, along)
    if line.kind == "layernorm":
        x = x - x.mean(along, keepdim=True)
    if line.kind in ("layernorm", "rmsnorm"):
        return x / x.square().mean(along, keepdim=True).sqrt()
    return {"tanh": torch.tanh, "sigmoid": torch.sigmoid}.get(line.kind, getattr(functional, line.kind, None))(x)


def contracted(operands: list[tuple[str, Tensor]], out: str) -> Tensor:
    """The product, letters that ``out`` lacks summed; the small operands first."""
    operands = sorted(operands, key=lambda x: x[1].numel())
    indices, whole = operands[0]
    for k, (more, x) in enumerate(operands[1:], 2):
        kept = out + "".join(c for c, _ in operands[k:])
        both = "".join(c for c in dict.fromkeys(indices + more) if c in kept)
        whole, indices = torch.einsum(f"ZY{indices},ZY{more}->ZY{both}", whole, x), both
    return torch.einsum(f"ZY{indices}->ZY{out}", whole) if indices != out else whole


def _turned(x: Tensor, old: str, new: str) -> Tensor:
    return x if old == new else x.permute(0, 1, *(2 + old.index(c) for c in new))


def matrices(case: TrainingCase, name: str) -> tuple[str, str, str]:
    """Letters of a tensor where it is first used: batch (experts, and what it shares with what it reads), out, in."""
    own = case.tensors[name]
    use = next(x for x in case.lines if any(n == name for n, _ in x.reads))
    acted = {c for n, cs in use.reads if n != name for c in cs}
    made = [c for c in own if c in use.indices]
    bare = [c for c in made if AXES[c] != "M"]
    experts = next((c for c in made if AXES[c] == "M" and (c in acted or bare)), "")
    batch = "".join(c for c in made if c == experts or c in acted)
    return batch, "".join(c for c in made if c not in batch), "".join(c for c in own if c not in made)


class Steps:
    """One optimizer, written plainly: from gradients to updates. ``eps`` and ``lr`` are by tensor."""

    def __init__(self, case: TrainingCase, lr: Mapping[str, float], eps: Mapping[str, float], start: Tensors) -> None:
        self.case, self.lr, self.eps, self.t = case, lr, eps, 0
        self.rule = case.optimizer.removesuffix("-negligible")
        self.negligible = case.optimizer.endswith("-negligible")
        self.kept: dict[str, Tensor] = {}
        self.past: dict[str, list[Tensor]] = {}
        self.zero = {name: not w.any() for name, w in start.items()}

    def averaged(self, key: str, x: Tensor, beta: float) -> Tensor:
        """A running mean that starts at zero."""
        self.kept[key] = beta * self.kept.get(key, torch.zeros_like(x)) + (1 - beta) * x
        return self.kept[key]

    def step(self, gradients: Tensors, weights: Tensors) -> Tensors:
        self.t += 1
        return {name: -self.lr[name] * self.direction(name, g, weights[name]) for name, g in gradients.items()}

    def direction(self, name: str, g: Tensor, w: Tensor) -> Tensor:
        epsilon = 1e-150 if self.negligible else self.eps[name]
        match self.rule:
            case "momentum":
                self.kept[name] = g + 0.9 * self.kept.get(name, 0)
                return self.kept[name]
            case "adam" | "adamw":
                mean = self.averaged(f"m.{name}", g, 0.9) / (1 - 0.9**self.t)
                square = self.averaged(f"v.{name}", g * g, 0.999) / (1 - 0.999**self.t)
                return mean / (square.sqrt() + epsilon)
            case "rmsprop":
                return 0.1 * g / (self.averaged(f"v.{name}", g * g, 0.99).sqrt() + 0.1 * epsilon)
            case "signsgd":
                return g.sign()
            case "lion":
                past = self.kept.get(name, torch.zeros_like(g))
                self.averaged(name, g, 0.99)
                return (0.9 * past + 0.1 * g).sign()
            case "muon" | "shampoo" | "adafactor":
                whole, back = self.matrix(name, g)
                return back(getattr(self, self.rule)(name, whole, w))
        return g

    def matrix(self, name: str, g: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The gradient as matrices, (S, batch, out, in), and the way back."""
        groups, own = matrices(self.case, name), self.case.tensors[name]
        order = "".join(groups)
        moved = g.permute(0, *(1 + own.index(c) for c in order))
        dims = dict(zip(order, moved.shape[1:], strict=True))
        whole = moved.reshape(len(g), *(prod(dims[c] for c in group) for group in groups))
        back = [0, *(1 + order.index(c) for c in own)]
        return whole, lambda x: x.reshape(moved.shape).permute(back)

    def muon(self, name: str, g: Tensor, w: Tensor) -> Tensor:
        return orthogonal(g)

    def shampoo(self, name: str, g: Tensor, w: Tensor) -> Tensor:
        """``(sum G G^T)^(-1/4) G (sum G^T G)^(-1/4)``, in the space that the gradients span."""
        past = self.past.setdefault(name, [])
        past.append(g)
        q, p = spanned(torch.cat(past, -1)), spanned(torch.cat(past, -2).mT)
        small = [q.mT @ x @ p for x in past]
        left, right = (_root(sum(x @ x.mT for x in small)), _root(sum(x.mT @ x for x in small)))
        return q @ (left @ small[-1] @ right) @ p.mT

    def adafactor(self, name: str, g: Tensor, w: Tensor) -> Tensor:
        decay = 1 - self.t**-0.8
        square = g * g
        if min(g.shape[-2:]) > 1:
            rows = self.averaged(f"r.{name}", square.mean(-1, keepdim=True), decay)
            columns = self.averaged(f"c.{name}", square.mean(-2, keepdim=True), decay)
            square = rows * columns / (rows.mean(-2, keepdim=True) + 1e-300)
        else:
            square = self.averaged(f"v.{name}", square, decay)
        u, every = g / (square.sqrt() + 1e-150), (1, 2, 3)
        u = u / u.square().mean(every, keepdim=True).sqrt().clamp(min=1.0)
        size = w.square().flatten(1).mean(1).sqrt()[:, None, None, None]
        return u * (size.clamp(min=1.0) if self.zero[name] else size)


def spanned(x: Tensor, rank: int = 24) -> Tensor:
    """An orthonormal basis of the columns, (..., rows, rank); exact where the rank is at most ``rank``."""
    if min(x.shape[-2:]) > rank:
        probe = torch.randn(x.shape[-1], rank, dtype=x.dtype, generator=torch.Generator().manual_seed(7))
        q = torch.linalg.qr(x @ probe).Q
        if (x - q @ (q.mT @ x)).norm() <= 1e-10 * x.norm():
            return q
    return torch.linalg.qr(x).Q if x.shape[-1] <= x.shape[-2] else torch.eye(x.shape[-2], dtype=x.dtype)


def orthogonal(x: Tensor) -> Tensor:
    """``U V^T`` of the singular value decomposition, directions that the matrix lacks left out."""
    q = spanned(x)
    u, s, v = torch.linalg.svd(q.mT @ x, full_matrices=False)
    return (q @ u) @ ((s > 1e-9 * s[..., :1]).to(x.dtype)[..., None] * v)


def _root(x: Tensor) -> Tensor:
    """``x^(-1/4)`` on the space where x is not zero."""
    s, u = torch.linalg.eigh(x)
    there = s > 1e-13 * s[..., -1:]
    return u @ (torch.where(there, s.clamp(min=1e-300) ** -0.25, 0.0)[..., None] * u.mT)


BOUNDED = {"tanh", "sigmoid", "silu", "gelu", "relu", "topk_sigmoid"}
"""What is nonlinear in an argument beyond its slope: smaller steps would hide that."""
SHARES = {"softmax", "topk_softmax"}
"""What one entry wins at finite n where arguments spread by a few units."""
ROUNDED = 1e-13
"""Of what should be zero: no rate is made for it."""
PROBES = 33
"""Replicas of the run that finds the constants of learning rates."""


@lru_cache(maxsize=64)
def paces(case: TrainingCase, zero: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """By tensor, the rate at which the first step changes what it makes by about as much as there is, at scale 1, and
    the size of an entry of its gradient: where steps were small or epsilon far from gradients, terms of higher order
    would hide behind lower powers of n until sizes no machine has."""
    point = {f"b.{name}": None if name in zero else 0 for name in case.tensors}
    uses = {name: next(x.out for x in case.lines if any(n == name for n, _ in x.reads)) for name in case.tensors}
    rates: dict[str, float] = {}
    gradients: dict[str, float] = {}
    for steps in (1, 2):  # two where the gradient is zero at first
        run = InterpretedRun(case, point, 1.0, PROBES)
        for _ in range(steps):
            for name, g in run.raw.items():
                if g.any():
                    gradients.setdefault(name, g.square().mean().sqrt().item())
            run.steps.lr = {name: rates.get(name, 1.0) for name in uses}
            run.steps.eps = {name: EPSILON * gradients.get(name, 1.0) for name in uses}
            run.step()
        made = {name: x.square().mean().sqrt().item() for name, x in run.quantities()}
        for name, out in uses.items():
            if (moved := made[f"{out}.effective"]) > ROUNDED:
                rates.setdefault(name, min(max(made[f"{out}.init"], 0.4), 1.0) / moved)
    return rates, gradients


class InterpretedRun:
    """Replicas of one size in training: ``quantities()`` now, then ``step()``.

    Args:
        point: exponents b, c, d of tensors and of multipliers, as in ``TrainingCase.point``.
        scale: n.
    """

    def __init__(
        self, case: TrainingCase, point: Mapping[str, object], scale: float, seeds: int, seed: int = 0
    ) -> None:
        self.case, self.sizes = case, sizes(case, scale)
        fixed = torch.Generator().manual_seed(1000 + case.constants)
        draw = torch.Generator().manual_seed(seed * 1_000_003 + round(scale * 1009) + case.constants)

        def constant(low: float, high: float) -> float:
            return low * (high / low) ** torch.rand((), generator=fixed, dtype=torch.float64).item()

        def power(key: str) -> float:
            return scale ** -float(point.get(key) or 0)  # type: ignore[arg-type]

        self.start, lr, eps = {}, {}, {}
        kinds = {x.kind for x in case.lines}
        strength = case.strength * (0.3 if kinds & SHARES else 1.0 if kinds & BOUNDED else 0.4)
        for name, indices in case.tensors.items():
            dims = [self.sizes[c] for c in indices]
            std, lr[name] = (
                constant(0.5, 0.8 if kinds & SHARES else 1.5),
                strength * constant(0.5, 1.0) * power(f"c.{name}"),
            )
            eps[name] = constant(0.5, 2.0) * EPSILON * power(f"d.{name}")
            std *= 0.0 if point[f"b.{name}"] is None else power(f"b.{name}")
            base = self._base(matrices(case, name)[2].replace("x", ""), scale)
            std *= base**-0.5
            self.start[name] = std * torch.randn(seeds, *dims, generator=draw, dtype=torch.float64)
        self.multipliers = {}
        for m in case.multipliers:
            line = next(x for x in case.lines if m in x.multipliers)
            summed = {c for _, cs in line.reads for c in cs} - set(line.indices)
            self.multipliers[m] = constant(0.5, 2.0) * power(m) / self._base(summed, scale)
        data = torch.randn(FIXED["D"], generator=fixed, dtype=torch.float64)
        self.data = (data / data.norm()).expand(seeds, 1, -1)
        self.chosen = self._chosen(scale, seeds, draw) if case.routed else None
        self.moved = {name: torch.zeros_like(w) for name, w in self.start.items()}
        self.steps = Steps(case, lr, eps, self.start)
        self.initial = self.signals(self.start)
        self._look()
        if seeds != PROBES:
            rates, gradients = paces(case, tuple(name for name in self.start if point[f"b.{name}"] is None))
            for mine, found in ((lr, rates), (eps, gradients)):
                mine |= {name: x * found.get(name, 1.0) for name, x in mine.items()}

    def _base(self, indices: Iterable[str], scale: float) -> float:
        """How many entries they have at scale 1: what is divided by it does not start far from Theta(1)."""
        return prod(self.sizes[c] / scale ** float(self.case.rates.get(AXES[c], 0)) for c in indices)

    def _chosen(self, scale: float, seeds: int, draw: torch.Generator) -> Tensor:
        """K of M experts of every token, drawn at random."""
        active = round(ACTIVE * scale ** float(self.case.rates["K"]))
        drawn = torch.rand(seeds, TOKENS, self.sizes["i"], generator=draw, dtype=torch.float64)
        return torch.zeros_like(drawn).scatter(-1, drawn.topk(active, -1).indices, 1.0)

    def _value(self, line: Line, reads: list[Tensor]) -> Tensor:
        return value(line, reads, prod(self.multipliers[m] for m in line.multipliers), self.chosen)

    def signals(self, weights: Tensors) -> Tensors:
        found: Tensors = {"data": self.data}
        for line in self.case.lines:
            reads = [weights[n][:, None] if is_tensor(n) else found[n] for n, _ in line.reads]
            found[line.out] = self._value(line, reads)
        return found

    def _look(self) -> None:
        self.weights = {name: self.start[name] + self.moved[name] for name in self.start}
        self.now = self.signals(self.weights)
        self.raw = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self._found: dict[tuple[object, ...], Tensor] = {}
        for line in self.case.lines[::-1]:
            above = self.gradient(line.out)
            for k, (name, _) in enumerate(line.reads):
                if is_tensor(name):
                    self.raw[name] = self.raw[name] + self._adjoint(line, k, above, {})[:, 0]

    def step(self) -> None:
        updates = self.steps.step(self.raw, self.weights)
        kept = 1 - DECAY if self.steps.rule == "adamw" else 1.0  # W_0 decays, too: W = kept^t W_0 + dW
        self.moved = {name: kept * x + updates[name] for name, x in self.moved.items()}
        if kept < 1:
            self.start = {name: kept * w for name, w in self.start.items()}
            self.initial = self.signals(self.start)
        self._look()

    # backward

    def _adjoint(self, line: Line, k: int, above: Tensor, part: Mapping[str, Tensor]) -> Tensor:
        """The gradient at one read of an equation; ``part``: tensors to take instead of the whole ones."""
        reads = [part.get(n, self.weights[n])[:, None] if is_tensor(n) else self.now[n] for n, _ in line.reads]
        reads[k] = reads[k].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self._value(line, reads), reads[k], above)[0]

    def gradient(self, signal: str, via: str = "", modes: tuple[tuple[str, str], ...] = ()) -> Tensor:
        """df/dsignal, by the chain rule over its uses (only the one that makes ``via``), with parts of tensors."""
        key = (signal, via, modes)
        if key not in self._found:
            parts = {n: self.start[n] if mode == "init" else self.moved[n] for n, mode in modes}
            uses = [(x, k) for x in self.case.lines for k, (n, _) in enumerate(x.reads) if n == signal]
            found = torch.zeros_like(self.now[signal])
            for line, k in uses:
                if via in ("", line.out):
                    above = self.gradient(line.out, "", modes)
                    found = found + self._adjoint(line, k, above, parts)
            self._found[key] = found if uses else torch.ones_like(found) / found.shape[1]
        return self._found[key]

    # what has a name

    def quantities(self) -> Iterator[tuple[str, Tensor]]:
        """Name and root-mean-square over entries of each replica; a scalar with its sign."""
        for name, x in self._entries():
            yield name, x.reshape(len(x), -1).square().mean(1).sqrt() if x.shape[1:] != (1,) else x[:, 0]

    def _entries(self) -> Iterator[tuple[str, Tensor]]:
        for line in self.case.lines:
            x = line.out
            yield x, self._seen(line, self.now[x])
            yield f"{x}.change", self._seen(line, self._exact(self.now[x] - self.initial[x], self.now[x]))
            yield from ((f"{x}.{part}", self._seen(line, y)) for part, y in self._parts(line))
        for line in self.case.lines[:-1] if self.chosen is None else ():  # these are a batch's gradients, not a token's
            x = line.out
            name = "g" + (x[1:] if x.startswith("h") and len(x) > 1 else x)
            yield name, self.gradient(x)
            uses = [(y, k) for y in self.case.lines for k, (n, _) in enumerate(y.reads) if n == x]
            if len(uses) > 1:
                yield from ((f"{name}.{y.out}", self.gradient(x, y.out)) for y, _ in uses)
            behind = self._through(*uses[0]) if len(uses) == 1 else ()
            if behind and len(behind) <= 2:
                for modes in product(("init", "update"), repeat=len(behind)):
                    yield f"{name}.{'-'.join(modes)}", self.gradient(x, "", tuple(zip(behind, modes, strict=True)))
        for name in self.start:
            yield f"d{name}", self.moved[name]
            yield f"g{name}", self.raw[name]

    def _seen(self, line: Line, x: Tensor) -> Tensor:
        """Of a signal that tokens have of their own experts, scaled so that a mean over all is theirs."""
        if self.chosen is None or x.shape[1] == 1 or "i" not in line.indices:
            return x
        shape = [n if c in "ZYi" else 1 for c, n in zip("ZY" + line.indices, x.shape, strict=True)]
        return x * self.chosen.reshape(shape) / self.chosen.mean() ** 0.5

    def _exact(self, x: Tensor, whole: Tensor) -> Tensor:
        """What is left of a difference is rounding where it is far below the whole."""
        return torch.where(x.abs() < 1e-13 * whole.abs(), 0.0, x)

    def _through(self, line: Line, k: int) -> tuple[str, ...]:
        """Tensors that the gradient at a read comes through up to the output; empty where it forks or meets one twice.

        The engine writes products of signals out to their tensors; these paths are left out.
        """
        own = tuple(n for n, _ in line.reads if is_tensor(n))
        others = [n for j, (n, _) in enumerate(line.reads) if j != k]
        if line.kind == "product" and not own and any(map(self._made_by_tensors, others)):
            return ("", "", "")
        uses = [(y, j) for y in self.case.lines for j, (n, _) in enumerate(y.reads) if n == line.out]
        if not uses:
            return own
        rest = self._through(*uses[0]) if len(uses) == 1 else ()
        return (*own, *rest) if rest and not set(own) & set(rest) else ()

    def _made_by_tensors(self, signal: str) -> bool:
        """Is a signal a tensor times something, or a sum?"""
        line = next((x for x in self.case.lines if x.out == signal), None)
        return line is not None and (line.kind == "sum" or any(is_tensor(n) for n, _ in line.reads))

    def _parts(self, line: Line) -> Iterator[tuple[str, Tensor]]:
        """W_0 h_0, W_0 dh, dW h_0, dW dh of a tensor times signals."""
        tensor = next(((n, c) for n, c in line.reads if is_tensor(n)), None)
        if line.kind != "product" or tensor is None:
            return
        signals = [(n, c) for n, c in line.reads if not is_tensor(n)]
        name, _ = tensor

        def times(w: Tensor, values: list[Tensor]) -> Tensor:
            rest = iter(values)
            reads = [w[:, None] if is_tensor(n) else next(rest) for n, _ in line.reads]
            return self._value(line, reads)

        start, moved = self.start[name], self.moved[name]
        first, now = ([which[n] for n, _ in signals] for which in (self.initial, self.now))
        changes = [self._exact(b - a, b) for a, b in zip(first, now, strict=True)]
        yield "init", times(start, first)
        yield "effective", times(moved, first)
        if any(n != "data" for n, _ in signals):
            steps = [[*now[:k], changes[k], *first[k + 1 :]] for k in range(len(signals))]
            yield "propagating", sum(times(start, x) for x in steps)  # type: ignore[misc]
            yield "cross", sum(times(moved, x) for x in steps)  # type: ignore[misc]
            if len(signals) == 1:
                yield "update", times(moved, now)
