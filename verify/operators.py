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
"""Entries of a weight compared at once with its initial value: they stay in the cache."""

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

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """``(W_0 v, dW v)`` for c vectors: (S, g, c, in) -> twice (S, g, c, out)."""
        initial = columns @ self.start.mT
        return initial, columns @ self.now.mT - initial

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
        sides = (w.reshape(len(w), -1).split(BLOCK, 1) for w in (self.now, self.start))
        square = torch.stack([(a - b).square_().sum(1) for a, b in zip(*sides, strict=True)]).sum(0)
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

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        update = ((columns @ self.right.mT) * self.coefficients) @ self.left
        return columns @ self.now.mT - update, update

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


class Initial:
    """Initial values of the weights, kept (``Dense``), and decayed exactly as decoupled decay moves the weights."""

    def __init__(self, weights: Mapping[str, Tensor], stepper: torch.optim.Optimizer, decays: bool) -> None:
        self._weights = weights
        self._start = {symbol: matrix(symbol, w).detach().clone() for symbol, w in weights.items()}
        rates = [1 - g["lr"] * g["weight_decay"] for g in stepper.param_groups] if decays else []
        self._decay = dict(zip(weights, rates, strict=False))

    def step(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """After one update of the weights."""
        for symbol, rate in self._decay.items():
            self._start[symbol].mul_(rate)

    def operators(self) -> dict[str, Operator]:
        return {s: Dense(matrix(s, w).detach(), self._start[s]) for s, w in self._weights.items()}


class History:
    """Gradients of the weights so far, as outer products (``LowRank``).

    The coefficients come from the optimizer itself: one more copy of it steps a vector with one entry for each past
    gradient, whose gradient at step s is the s-th unit vector. Nothing here knows the rule of the optimizer.

    Args:
        weights: by symbol; one parameter group of ``stepper`` each, in order.
        steps: number of updates to come.
    """

    def __init__(self, weights: Mapping[str, Tensor], stepper: torch.optim.Optimizer, steps: int) -> None:
        self._weights, self._done = weights, 0
        self._units = {s: torch.zeros(steps, dtype=w.dtype, device=w.device) for s, w in weights.items()}
        groups = zip(stepper.param_groups, self._units.values(), strict=True)
        self._stepper = type(stepper)([{**group, "params": [unit]} for group, unit in groups])
        self._sides: dict[str, tuple[Tensor, Tensor]] = {}

    def step(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """After one update of the weights, whose gradients were ``left right^T``."""
        for symbol, unit in self._units.items():
            unit.grad = torch.zeros_like(unit)
            unit.grad[self._done] = 1
            sides = [vector(symbol, side) for side in factors[symbol]]
            if not self._done:
                steps = len(unit)
                self._sides[symbol] = tuple(s.new_empty(*s.shape[:2], steps, s.shape[2]) for s in sides)
            for kept, side in zip(self._sides[symbol], sides, strict=True):
                kept[:, :, self._done] = side
        self._stepper.step()
        self._done += 1

    def coefficients(self, symbol: str) -> Tensor:
        """What each past gradient of a weight has been multiplied with, shape (updates done,)."""
        return self._units[symbol][: self._done]

    def operators(self) -> dict[str, Operator]:
        found: dict[str, Operator] = {}
        for symbol, w in self._weights.items():
            now = matrix(symbol, w).detach()
            if not self._done:
                found[symbol] = Dense(now, now)
                continue
            left, right = (side[:, :, : self._done] for side in self._sides[symbol])
            found[symbol] = LowRank(now, left, right, self.coefficients(symbol))
        return found


def updates(
    rule: Optimizer, weights: Mapping[str, Tensor], stepper: torch.optim.Optimizer, steps: int
) -> Initial | History:
    """What remembers the updates of an optimizer with the least memory."""
    if linear(rule):
        return History(weights, stepper, steps)
    return Initial(weights, stepper, rule.decoupled_decay)
