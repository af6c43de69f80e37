"""Refined coordinate check of the Transformer: initial, propagating and effective parts in every MoE layer.

Every weight is W_t = W_0 + dW and every input x_t = x_0 + dx, so a linear map has the parts ``.init`` W_0 x_0,
``.propagating`` W_0 dx and ``.effective`` dW x_t. Per-expert parts and aggregates are taken over the token-expert pairs
that top-K chose at step 0, so that no pair enters or leaves between steps; training itself routes as usual.
Source: MSSP paper, App. Q.2.

Names are those of the MoE block with the layer in brackets: ``h2[1].effective`` is dW2_i x in MoE layer 1 (from 0);
``h1[k]`` is the residual stream that layer k reads, before its norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.verify.decomposition.columns import rms
from scaling_algebra.verify.judging.measurement import INPUT, PARAMETERS, Record, fingerprint
from scaling_algebra.verify.networks.base_shapes import LayerSignals, recipe
from scaling_algebra.verify.networks.scales import BATCH, BETAS, BLOCKS, CONTEXT, HEAD, TRANSFORMER, TRANSFORMER_LR
from scaling_algebra.verify.networks.transformer import Transformer

from .batches import Batch, cross_entropy, descend, text
from .cells import RunCell, Setup
from .predictions import PARTS

MAPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "router": lambda w, x: x @ w.mT,  # (S,M,N) with (S,P,N) -> (S,P,M)
    "expert_in": lambda w, x: (x @ w.flatten(1, 2).mT).view(*x.shape[:2], *w.shape[1:3]),  # (S,M,N_e,N) -> (S,P,M,N_e)
    "expert_out": lambda w, x: torch.einsum("sike,spik->spie", w, x),  # with (S,P,M,N_e) -> (S,P,M,N)
}
"""Linear maps as functions of weight and input, by role."""

Trace = tuple[list[Tensor], list[LayerSignals]]
"""What ``Transformer.stream`` gives: the residual stream at every layer, and the MoE layers."""


def build(setup: Setup, cell: RunCell, device: str) -> Transformer:
    """The Transformer of a cell, one replica for each of its seeds.

    Raises:
        UsageError: a width or parameterization that does not fit, or an optimizer that torch does not have.
    """
    shapes = recipe(setup.derivation.configuration, TRANSFORMER, True)
    model = text(BATCH, CONTEXT, BLOCKS, HEAD).build(shapes, setup.dims_of(cell), cell.seeds, device)
    assert isinstance(model, Transformer)
    return model


def train_transformer(setup: Setup, cell: RunCell, device: str) -> Record:
    """Trains the replicas of a cell and records every part after 0, 1, ..., ``setup.steps`` updates.

    Replicas see different text, each the same at every size; the probe is a batch of held-out text.
    """
    model = build(setup, cell, device)
    data, replicas = text(BATCH, CONTEXT, BLOCKS, HEAD), range(cell.first, cell.first + cell.count)
    batches = [data.batches(replicas, t, device) for t in range(setup.steps)]
    probe = data.batches(replicas, None, device)[0][:, :BATCH]
    inputs = torch.cat([x.flatten(1) for x in (probe, *(tokens for tokens, _ in batches))], 1)
    facts = {
        (INPUT, 0): np.array([fingerprint(x) for x in inputs]),
        (PARAMETERS, 0): np.full(cell.count, float(model.count())),
    }
    return {**_record(model, batches, probe), **facts}


def _record(model: Transformer, batches: Sequence[Batch], probe: Tensor) -> Record:
    """Trains on the batches and returns the root-mean-square of every part on the probe (S,B,T) at every step."""
    model.double()  # parts are differences of larger numbers
    stepper = model.optimizer(TRANSFORMER_LR, betas=BETAS)
    start = {name: p.detach().clone() for name, p in model.weights.items()}
    record: dict[tuple[str, int], Tensor] = {}
    with torch.no_grad():
        first = model.stream(probe)
    masks = [layer.gates > 0 for layer in first[1]]

    def look(t: int) -> None:
        with torch.no_grad():
            parts = split_layers(model, start, first, masks, probe)
            record.update({(name, t): rms(x) for name, x in parts.items()})

    def loss(step: int) -> tuple[Tensor, float]:
        tokens, targets = batches[step]
        return cross_entropy(model(tokens)[0], targets), 0.0

    look(0)
    for t, _ in enumerate(descend(stepper, loss, len(batches)), 1):
        look(t)
    return {key: x.cpu().numpy() for key, x in record.items()}


def split_layers(
    model: Transformer, start: Mapping[str, Tensor], first: Trace, masks: Sequence[Tensor], probe: Tensor
) -> dict[str, Tensor]:
    """Every named part on the probe, with a leading replica dimension; ``h1``, ``psi`` and ``h3`` are all layers.

    Args:
        start: weights at step 0 by name. first: what ``stream`` gave at step 0. masks: routing at step 0, (S,P,M).
    """
    streams, layers = model.stream(probe, [mask.to(first[0][0]) for mask in masks])
    named: dict[str, Tensor] = {"h1": torch.stack(streams, 1)}
    for name in ("psi", "h3"):
        named[name] = torch.stack([getattr(layer, name) for layer in layers], 1)
    for k, (old, new, mask) in enumerate(zip(first[1], layers, masks, strict=True)):
        named |= {f"h1[{k}]": streams[k], f"h1[{k}].change": streams[k] - first[0][k]}
        inputs = {
            "psi": ("router", old.x, new.x),
            "h2": ("expert_in", old.x, new.x),
            "h3i": ("expert_out", F.gelu(old.h2), F.gelu(new.h2)),
        }
        for name, (role, x0, x) in inputs.items():
            apply, w0, w = MAPS[role], start[f"{role}_{k}"], model.weights[f"{role}_{k}"]
            parts = (apply(w0, x0), apply(w0, x - x0), apply(w - w0, x))
            for part, y in zip(PARTS, parts, strict=True):
                named[f"{name}[{k}].{part}"] = y if name == "psi" else chosen_pairs(y, mask)
                if name == "h3i":
                    gates = old.gates if part == "init" else new.gates
                    named[f"h3[{k}].{part}"] = model.multiplier * torch.einsum("spi,spib->spb", gates, y)
        named |= {f"psi[{k}]": new.psi, f"psi[{k}].change": new.psi - old.psi}
    return named


def chosen_pairs(y: Tensor, mask: Tensor) -> Tensor:
    """The rows of the token-expert pairs in the mask, (S,P,M,a) with (S,P,M) -> (S, pairs, a)."""
    return y[mask].view(len(y), -1, y.shape[-1])
