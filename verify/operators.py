"""A trained weight as its initial value plus its update, applied to vectors without ever forming the update.

``W_t v = W_0 v + dW v`` is needed part by part. An optimizer that is linear in the gradients leaves dW as a sum of
outer products, one for each step (one sample), and W_0 need not be kept; any other one keeps W_0, and ``dW v`` is the
difference. Weights are groups of matrices, (S, g, out, in): S replicas, g = M for expert out and 1 for all others
(expert in is one matrix with the rows of all experts, because they all read the same vector).
Read next: ``parts.py`` (applies these at every step), ``runs.py`` (makes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling_algebra.optimizers import Optimizer

BLOCK = 2**16
"""Entries of a weight compared at once with its initial value on a CPU: they stay in the cache."""

OWN_INPUT = ("W3",)
"""Tensors whose experts read a vector of their own."""


@dataclass(frozen=True)
class Dense:
    """Keeps the initial value: ``dW = now - start``.

    Attributes:
        now: W_t, shape (S, g, out, in).
        start: W_0, decayed as the optimizer decays it.
    """

    now: Tensor
    start: Tensor

    def forward(self, columns: Tensor, both: int | None = None) -> tuple[Tensor, Tensor]:
        """``(W_0 v, dW v)`` for c vectors, dW only for the first ``both``: (S, g, c, in) -> twice (S, g, c, out)."""
        initial = columns @ self.start.mT
        return initial, columns[:, :, :both] @ self.now.mT - initial[:, :, :both]

    def backward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """``(W_0^T v, dW^T v)`` for c vectors: (S, g, c, out) -> twice (S, g, c, in)."""
        return Dense(self.now.mT, self.start.mT).forward(columns)

    def rows(self, n: int) -> Dense:
        """The first n rows."""
        return Dense(self.now[:, :, :n], self.start[:, :, :n])

    def groups(self, n: int) -> Dense:
        """The first n groups."""
        return Dense(self.now[:, :n], self.start[:, :n])

    def update_rms(self) -> Tensor:
        """Root-mean-square entry of dW of each replica, (S,)."""
        block = BLOCK if self.now.device.type == "cpu" else 2**10 * BLOCK
        sides = (w.reshape(len(w), -1).split(block, 1) for w in (self.now, self.start))
        square = torch.stack([(a - b).double().square_().sum(1) for a, b in zip(*sides, strict=True)]).sum(0)
        return (square / self.now[0].numel()).sqrt()


@dataclass(frozen=True)
class LowRank:
    """Keeps the gradient of every step: ``dW = sum_s coefficients[s] left[s] right[s]^T``. Methods as of ``Dense``.

    Attributes:
        now: W_t, shape (S, g, out, in).
        left, right: shapes (S, g, steps, out) and (S, g, steps, in).
        coefficients: shape (steps,).
    """

    now: Tensor
    left: Tensor
    right: Tensor
    coefficients: Tensor

    def forward(self, columns: Tensor, both: int | None = None) -> tuple[Tensor, Tensor]:
        update = ((columns @ self.right.mT) * self.coefficients) @ self.left
        return columns @ self.now.mT - update, update[:, :, :both]

    def backward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        return LowRank(self.now.mT, self.right, self.left, self.coefficients).forward(columns)

    def rows(self, n: int) -> LowRank:
        return LowRank(self.now[:, :, :n], self.left[..., :n], self.right, self.coefficients)

    def groups(self, n: int) -> LowRank:
        return LowRank(self.now[:, :n], self.left[:, :n], self.right[:, :n], self.coefficients)

    def update_rms(self) -> Tensor:
        left = self.left * self.coefficients[:, None]
        square = ((left @ left.mT) * (self.right @ self.right.mT)).sum((1, 2, 3))
        return (square.clamp(min=0) / self.now[0].numel()).sqrt()


Operator = Dense | LowRank


def matrix(symbol: str, weight: Tensor) -> Tensor:
    """A weight as (S, g, out, in)."""
    return weight if symbol in OWN_INPUT else weight.reshape(len(weight), 1, -1, weight.shape[-1])


def vector(symbol: str, side: Tensor) -> Tensor:
    """What a weight reads or makes, (S, ...), as (S, g, in) or (S, g, out)."""
    return side if symbol in OWN_INPUT else side.flatten(1)[:, None]


def outer(symbol: str, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """``left right^T`` as (S, g, out, in), into the memory of ``out`` if it is given."""
    rows, columns = vector(symbol, left)[..., None], vector(symbol, right)[:, :, None, :]
    return torch.mul(rows, columns, out=None if out is None else matrix(symbol, out))


def linear(rule: Optimizer) -> bool:
    """Is the update a sum of past gradients with fixed coefficients?"""
    return not rule.normalises and not rule.decoupled_decay


class Updates:
    """What has been added to the weights so far, kept with the least memory: gradients as outer products (``LowRank``)
    where the optimizer is linear in them and their rank stays small, else the initial value (``Dense``).

    Coefficients of past gradients come from the optimizer itself: one more copy of it steps a vector with one entry for
    each past gradient, whose gradient at step s is the s-th unit vector. Nothing here knows the rule of the optimizer.
    Decoupled decay moves initial values exactly as torch moves the weights.

    Args:
        weights: by symbol; one parameter group of ``stepper`` each, in order.
        steps: number of updates to come.
    """

    def __init__(
        self, rule: Optimizer, weights: Mapping[str, Tensor], stepper: torch.optim.Optimizer, steps: int
    ) -> None:
        self.linear = linear(rule)
        self._weights, self._done = weights, 0
        thin = {symbol for symbol, w in weights.items() if self.linear and _thin(matrix(symbol, w), steps)}
        self._start = {s: matrix(s, w).detach().clone() for s, w in weights.items() if s not in thin}
        self._sides: dict[str, tuple[Tensor, ...]] = dict.fromkeys(thin, ())
        self._units = {s: torch.zeros(steps, dtype=w.dtype, device=w.device) for s, w in weights.items()}
        groups = list(zip(weights, stepper.param_groups, strict=True))
        self._decay = {s: 1 - g["lr"] * g["weight_decay"] for s, g in groups if rule.decoupled_decay}
        self._stepper = type(stepper)([{**group, "params": [self._units[symbol]]} for symbol, group in groups])

    def step(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """After one update of the weights, whose gradients were ``left right^T``."""
        for symbol, unit in self._units.items():
            unit.grad = torch.zeros_like(unit)
            unit.grad[self._done] = 1
            if symbol in self._sides:
                sides = [vector(symbol, side) for side in factors[symbol]]
                if not self._done:
                    self._sides[symbol] = tuple(s.new_empty(*s.shape[:2], len(unit), s.shape[2]) for s in sides)
                for kept, side in zip(self._sides[symbol], sides, strict=True):
                    kept[:, :, self._done] = side
            elif symbol in self._decay:
                self._start[symbol].mul_(self._decay[symbol])
        self._stepper.step()
        self._done += 1

    def coefficients(self, symbol: str) -> Tensor:
        """What each past gradient of a weight has been multiplied with, shape (updates done,); linear optimizers."""
        return self._units[symbol][: self._done]

    def operators(self) -> dict[str, Operator]:
        """Every weight as it is now."""
        found: dict[str, Operator] = {}
        for symbol, w in self._weights.items():
            now = matrix(symbol, w).detach()
            if symbol in self._start or not self._done:
                found[symbol] = Dense(now, self._start.get(symbol, now))
            else:
                left, right = (side[:, :, : self._done] for side in self._sides[symbol])
                found[symbol] = LowRank(now, left, right, self.coefficients(symbol))
        return found


def _thin(weight: Tensor, steps: int) -> bool:
    """Do the outer products of all steps take less than half the memory of a weight?"""
    rows, columns = weight.shape[2:]
    return 2 * steps * (rows + columns) < rows * columns
