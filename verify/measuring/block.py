"""Trains the MoE block with real optimizer steps and records every named quantity at every step.

Read next: ``decomposition/parts.py`` (what is recorded), ``runs.py`` (calls this for every cell of a run).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scaling_algebra.dynamics.quantities import inner_product
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.decomposition.block_parts import NamedSignals, Split, relative_difference, rms
from scaling_algebra.verify.decomposition.block_updates import BlockUpdates, Operator, outer, outer_norm
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import Record
from scaling_algebra.verify.networks.moe_block import MoEBlock
from scaling_algebra.verify.networks.replicas import Draw
from scaling_algebra.verify.networks.scales import LOSS_SLOPE

from .cells import Setup
from .training import with_facts


def train_block(setup: Setup, draw: Draw, checked: int = 0) -> Record:
    """Trains all replicas and returns the root-mean-square of every quantity at every step, one for each replica.

    The split of the signals gives the gradients as well, so that a step reads every weight once forward and once
    backward. Of the first ``checked`` replicas the gradients of the last step are compared with those of autograd.

    With K in the dimensions the replicas train as an infinite batch of tokens trains them, each routed to its own K of
    M experts, and the quantities are those of one token; gradients and updates of tensors are those of the batch.
    """
    rule = setup.derivation.optimizer
    model = MoEBlock(draw, setup.derivation.scaling, getattr(torch, setup.dtype))
    weights, stepper = dict(model.weights.items()), model.optimizer(rule)
    memory = BlockUpdates(rule, weights, stepper, setup.steps)
    experts = draw.dims["M"]
    active = draw.dims.get("K", experts)
    products = _Products(setup.products, weights)
    routed: list[dict[str, Tensor]] = []
    record: dict[tuple[str, int], Tensor] = {}
    for t in range(setup.steps + 1):
        with torch.no_grad():
            operators = memory.operators()
            batch = Split(operators, model.x, model.multiplier)
            factors = {s: (LOSS_SLOPE * left, right) for s, (left, right) in batch.factors().items()}
            for symbol, w in weights.items():
                w.grad = outer(symbol, *factors[symbol], torch.empty_like(w) if w.grad is None else w.grad)
            named = batch.named if active == experts else _token(operators, model)
            if memory.linear:
                for path in ("expert", "router"):
                    moved = _moved(memory.coefficients("W1"), [g[path] for g in routed], named["h1"], model.x)
                    named[f"psi.propagating.{path}"] = operators["Q"].forward(moved[:, None, None])[0][:, 0, 0, :active]
                routed.append({path: LOSS_SLOPE * batch.named[f"g1.{path}"] for path in ("expert", "router")})
            record |= {(name, t): size for name, size in named.rms().items()}
            for symbol, operator in operators.items():
                scale = weights[symbol][0].numel() ** 0.5
                record[f"d{symbol}", t] = operator.update_norm() / scale
                record[f"g{symbol}", t] = outer_norm(symbol, *factors[symbol]) / scale
            record |= {(name, t): size for name, size in products.at(t, named).items()}
        if t < setup.steps:
            stepper.step()
            memory.step(factors)
    return with_facts(record, model, checked, lambda: _gradient_difference(model))


class _Products:
    """Inner products ``<A@s, B@t>`` of signals, at every step where both sides are known.

    Raises:
        UsageError: one of a matrix.
    """

    def __init__(self, names: Sequence[str], weights: Mapping[str, Tensor]) -> None:
        self.sides = {name: inner_product(name) for name in names}
        self.kept: dict[tuple[str, int], Tensor] = {}
        unknown = [q for pair in self.sides.values() for q, _ in pair if q[0] in "dg" and q[1:] in weights]
        if unknown:
            raise UsageError(f"inner products are of signals, but {unknown[0]} is a matrix; claim its size instead")

    def at(self, t: int, named: NamedSignals) -> dict[str, Tensor]:
        """Root-mean-square over experts of all products at this step."""
        self.kept |= {(q, t): named[q] for pair in self.sides.values() for q, _ in pair}
        sizes = {}
        for name, pair in self.sides.items():
            (a, b) = (self.kept.get((q, t if step is None else step)) for q, step in pair)
            if a is not None and b is not None:
                sizes[name] = rms(_dot(a, b))
        return sizes


def _gradient_difference(model: MoEBlock) -> Array:
    """Largest relative difference between the gradients of a model and autograd's, over weights, for each replica."""
    ours = [w.grad for w in model.parameters()]
    model.zero_grad()
    (LOSS_SLOPE * model().sum()).backward()
    theirs = [w.grad for w in model.parameters()]
    return relative_difference((a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None)


def _moved(coefficients: Tensor, gradients: Sequence[Tensor], like: Tensor, x: Tensor) -> Tensor:
    """How far gradients with respect to h1 have moved h1 through W1, (S, a)."""
    total = torch.zeros_like(like)
    for c, g in zip(coefficients, gradients, strict=True):
        total += c * x.square().sum() * g
    return total


def _token(operators: Mapping[str, Operator], model: MoEBlock) -> NamedSignals:
    """Parts as one token sees them: its experts are the first K, which are as good as any others."""
    dims = model.draw.dims
    active = dims["K"]
    seen = {
        **operators,
        "Q": operators["Q"].rows(active),
        "W2": operators["W2"].rows(active * dims["N_e"]),
        "W3": operators["W3"].groups(slice(active)),
    }
    return Split(seen, model.x, model.multiplier * dims["M"] / active).named


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product over the last index, per replica and, where either has it, per expert: (S, [i,] a) -> (S, [i])."""
    if a.ndim < b.ndim:
        a, b = b, a
    while b.ndim < a.ndim:
        b = b[:, None]
    return (a * b).sum(-1)
