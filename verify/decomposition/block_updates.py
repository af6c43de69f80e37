"""A trained weight as its initial value plus its update, applied to vectors without ever forming the update.

``W_t v = W_0 v + dW v`` is needed part by part. An optimizer that is linear in the gradients leaves dW as a sum of
outer products, one for each step (one sample), and W_0 need not be kept; any other one keeps W_0, and ``dW v`` is the
difference. Weights are groups of matrices, (S, g, out, in): S replicas, g = M for expert out and 1 for all others
(expert in is one matrix with the rows of all experts, because they all read the same vector). A vector for g = 1 is one
for all groups.
Read next: ``parts.py`` (applies these at every step), ``measuring/block.py`` (makes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.verify.networks.moe_block import INPUT_FIRST, matrices
from scaling_algebra.verify.networks.steppers import shrinkage

from .updates import Coefficients, linear

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

    def initial(self, columns: Tensor) -> Tensor:
        """``W_0 v`` for c vectors: (S, g, c, in) -> (S, g, c, out)."""
        return times(columns, self.start.mT)

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """``(W_0 v, dW v)`` for c vectors: (S, g, c, in) -> twice (S, g, c, out)."""
        initial = self.initial(columns)
        return initial, times(columns, self.now.mT).sub_(initial)

    def backward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """``(W_0^T v, dW^T v)`` for c vectors: (S, g, c, out) -> twice (S, g, c, in)."""
        return Dense(self.now.mT, self.start.mT).forward(columns)

    def rows(self, n: int) -> Dense:
        """The first n rows."""
        return Dense(self.now[:, :, :n], self.start[:, :, :n])

    def groups(self, some: slice) -> Dense:
        """Some of the groups."""
        return Dense(self.now[:, some], self.start[:, some])

    def joined(self) -> Dense:
        """One matrix for the vectors of all groups, one after the other, which makes the sum of what they make."""
        return Dense(_joined(self.now), _joined(self.start))

    def summed(self, columns: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over groups of what they make of c vectors, ``y = (W_0 v .., dW v ..)``: 2 c vectors of each group.

        Args:
            columns: shape (S, g, c, in).
            gates: shape (S, k, g).

        Returns:
            Inner products ``sum_g y_g y_g^T`` in float64, (S, 2 c, 2 c), and ``sum_g gates_g y_g``, (S, k, 2 c, out).
        """
        outputs = self.forward(columns)
        mixed = torch.cat([_mixed(gates, side) for side in outputs], 2)
        initial, update = (side.double() for side in outputs)
        across = (initial @ update.mT).sum(1)
        return _symmetric((initial @ initial.mT).sum(1), across, (update @ update.mT).sum(1)), mixed

    def update_norm(self) -> Tensor:
        """Frobenius norm of dW of each replica, (S,); in float32 and less, rows are summed in float32."""
        # distances row by row: one pass over both, and the difference is never formed
        rows = ((w if w.is_contiguous() else w.mT).flatten(0, 2)[:, None] for w in (self.now, self.start))
        now, start = (w.float() if w.dtype == torch.bfloat16 else w for w in rows)
        distances = torch.cdist(now, start, compute_mode="donot_use_mm_for_euclid_dist").view(len(self.now), -1)
        return torch.linalg.vector_norm(distances, dim=1, dtype=torch.float64)


@dataclass(frozen=True)
class LowRank:
    """Keeps the gradient of every step: ``dW = sum_s coefficients_s left_s right_s^T``. Methods as of ``Dense``.

    Attributes:
        now: W_t, shape (S, g, out, in).
        left, right: shapes (S, g, steps, out) and (S, g, steps, in); either may have g = 1 where all groups share it.
        coefficients: shape (steps,).
    """

    now: Tensor
    left: Tensor
    right: Tensor
    coefficients: Tensor

    def initial(self, columns: Tensor) -> Tensor:
        return self.forward(columns)[0]

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        update = times(self._shares(columns), self.left)
        return times(columns, self.now.mT).sub_(update), update

    def backward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        return LowRank(self.now.mT, self.right, self.left, self.coefficients).forward(columns)

    def rows(self, n: int) -> LowRank:
        return LowRank(self.now[:, :, :n], self.left[..., :n], self.right, self.coefficients)

    def groups(self, some: slice) -> LowRank:
        left, right = (side if side.shape[1] == 1 else side[:, some] for side in (self.left, self.right))
        return LowRank(self.now[:, some], left, right, self.coefficients)

    def joined(self) -> LowRank:
        return LowRank(_joined(self.now), self.left, _joined(self.right), self.coefficients)

    def summed(self, columns: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        """As of ``Dense``, for groups that share their left side: ``dW v`` is ``shares @ left``, and never formed."""
        assert self.left.shape[1] == 1
        shares, left = self._shares(columns), self.left[:, 0]
        flat = times(columns, self.now.mT).flatten(1, 2).baddbmm_(shares.flatten(1, 2), left, alpha=-1)
        initial = flat.unflatten(1, shares.shape[1:3])
        mixed = torch.cat([_mixed(gates, initial), _mixed(gates, shares) @ left[:, None]], 2)
        initial, shares, left = initial.double(), shares.double(), left.double()
        met = (initial.flatten(1, 2) @ left.mT).view_as(shares)
        across = _by_column(met).mT @ _by_column(shares)
        update = _by_column(shares @ (left @ left.mT)[:, None]).mT @ _by_column(shares)
        return _symmetric((initial @ initial.mT).sum(1), across, update), mixed

    def _shares(self, columns: Tensor) -> Tensor:
        """How much of each left side ``dW v`` has, (S, g, c, steps)."""
        return times(columns, self.right.mT) * self.coefficients

    def update_norm(self) -> Tensor:
        left = self.left * self.coefficients[:, None]
        square = ((left @ left.mT) * (self.right @ self.right.mT)).sum((1, 2, 3))
        return square.clamp(min=0).sqrt()


Operator = Dense | LowRank


def times(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for groups of matrices, (S, g, c, k) with (S, g, k, out); what has g = 1 is not copied."""
    if a.shape[1] == b.shape[1]:
        return a @ b
    if b.shape[1] == 1:
        return (a.flatten(1, 2) @ b[:, 0]).unflatten(1, a.shape[1:3])
    wide = b.mT
    return (wide.flatten(1, 2) @ a[:, 0].mT).unflatten(1, wide.shape[1:3]).mT


def _joined(groups: Tensor) -> Tensor:
    """Matrices side by side, (S, g, out, in) -> (S, 1, out, g * in)."""
    return groups.mT.flatten(1, 2)[:, None].mT


def _mixed(gates: Tensor, sides: Tensor) -> Tensor:
    """``sum_g gates_g sides_g``, (S, k, g) with (S, g, c, n) -> (S, k, c, n)."""
    return (gates @ sides.flatten(2)).unflatten(2, sides.shape[2:])


def _by_column(sides: Tensor) -> Tensor:
    """(S, g, c, n) -> (S, g n, c)."""
    return sides.transpose(2, 3).flatten(1, 2)


def _symmetric(first: Tensor, across: Tensor, last: Tensor) -> Tensor:
    """The matrix with these blocks, (S, c, c) each -> (S, 2 c, 2 c)."""
    return torch.cat([torch.cat([first, across], 2), torch.cat([across.mT, last], 2)], 1)


def matrix(symbol: str, weight: Tensor) -> Tensor:
    """A weight as (S, g, out, in)."""
    full = matrices(symbol, weight)
    return full if symbol in OWN_INPUT else full.reshape(len(weight), 1, -1, weight.shape[-1])


def vector(symbol: str, side: Tensor) -> Tensor:
    """An input or output of a weight, (S, ...), as (S, g, in) or (S, g, out)."""
    return side if symbol in OWN_INPUT else side.flatten(1)[:, None]


def outer(symbol: str, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Writes ``left right^T`` into ``out``, which has the shape of the weight, and returns it."""
    sides = [vector(symbol, side) for side in (left, right)]
    rows, columns = reversed(sides) if symbol in INPUT_FIRST else sides
    torch.mul(rows[..., None], columns[:, :, None], out=out.view(len(out), -1, rows.shape[2], columns.shape[2]))
    return out


def outer_norm(symbol: str, left: Tensor, right: Tensor) -> Tensor:
    """Frobenius norm of ``left right^T`` of each replica, (S,)."""
    squares = [vector(symbol, side).double().square().sum(2) for side in (left, right)]
    return (squares[0] * squares[1]).sum(1).sqrt()


class BlockUpdates:
    """The updates of the weights so far, kept with the least memory: gradients as outer products (``LowRank``)
    where the optimizer is linear in them and their rank stays small, else the initial value (``Dense``).

    Decoupled decay moves initial values exactly as torch moves the weights.

    Args:
        weights: by symbol.
        stepper: their optimizer, with the ``symbol`` in every group (``MoEBlock.optimizer``).
        steps: number of updates to come.
    """

    def __init__(
        self, trained: Trained, weights: Mapping[str, Tensor], stepper: torch.optim.Optimizer, steps: int
    ) -> None:
        self.linear = linear(trained)
        self._weights, self._done = weights, 0
        self._start: dict[str, Tensor] = {}
        self._sides: dict[str, tuple[Tensor, Tensor]] = {}
        for symbol, weight in weights.items():
            w = matrix(symbol, weight).detach()
            thin = self.linear and _thin(w, steps)
            seeds, experts, rows, columns = w.shape
            rank = steps if thin else 0
            self._sides[symbol] = (w.new_empty(seeds, 1, rank, rows), w.new_empty(seeds, experts, rank, columns))
            if not thin:
                self._start[symbol] = w.clone()
        self._stepper, self._coefficients = stepper, Coefficients(stepper, steps) if self.linear else None

    def step(self, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """After one update of the weights, whose gradients were ``left right^T``."""
        for group in self._stepper.param_groups:
            symbol = group["symbol"]
            if symbol in self._start and (group.get("weight_decay") or "kept" in group):
                factor = shrinkage(group)
                self._start[symbol] *= matrix(symbol, factor) if isinstance(factor, Tensor) else factor
        for symbol in self._weights.keys() - self._start.keys():
            for kept, side in zip(self._sides[symbol], factors[symbol], strict=True):
                kept[:, :, self._done] = vector(symbol, side)
        if self._coefficients is not None:
            self._coefficients.step()
        self._done += 1

    def coefficients(self, symbol: str) -> Tensor:
        """The coefficient of each past gradient of a weight, (updates done,); linear optimizers."""
        return self._weights[symbol].new_zeros(0) if self._coefficients is None else self._coefficients.of(symbol)

    def operators(self) -> dict[str, Operator]:
        """Every weight as it is now."""
        weights: dict[str, Operator] = {}
        for symbol, w in self._weights.items():
            now = matrix(symbol, w).detach()
            if symbol in self._start and self._done:
                weights[symbol] = Dense(now, self._start[symbol])
            else:  # before the first update nothing has been added to any weight
                left, right = (side[:, :, : self._done] for side in self._sides[symbol])
                weights[symbol] = LowRank(now, left, right, self.coefficients(symbol))
        return weights


def _thin(weight: Tensor, steps: int) -> bool:
    """Do the outer products of all steps take less than half the memory of a weight? Groups share their left side."""
    groups, rows, columns = weight.shape[1:]
    return 2 * steps * (rows + groups * columns) < groups * rows * columns
