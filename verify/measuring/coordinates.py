"""Refined coordinate check of the Transformer: initial, propagating and effective parts in every MoE layer.

Every weight is W_t = W_0 + dW and every input x_t = x_0 + dx, so a linear map has the parts ``.init`` W_0 x_0,
``.propagating`` W_0 dx and ``.effective`` dW x_t. Per-expert parts and aggregates are taken over the token-expert pairs
that top-K chose at step 0, so that no pair enters or leaves between steps; training itself routes as usual.
Source: MSSP paper, App. Q.2.

Names are those of the MoE block with the layer in brackets: ``h2[1].effective`` is dW2_i x in MoE layer 1 (from 0);
``h1[k]`` is the residual stream that layer k reads, before its norm.

Why the predictions carry over from the block: the norm in front of every MoE layer gives it a Theta(1) input, the
residual stream moves by Theta(1) through embedding and attention (muP for dense layers), and Adam's epsilon is far
below the gradients, so that one step of every tensor has the size of its learning rate. Hence

- ``.init`` at every step is what the engine derives for the block at t = 0: it depends on W_0 alone.
- ``.propagating`` of router, expert_in and expert_out has the exponent of ``.init``: the same tensor applied to another
  Theta(1) vector. Where expert outputs are free before the aggregation (MSSP, regime II) this is not 0.
- ``.effective`` and the changes of what mu-1 and mu-2 demand to be Theta(1) have the exponent 0; so has the aggregated
  ``h3.propagating`` where its parts A2.1 and A2.2 are demanded to be (MSSP).
- The readout starts at zero, so nothing but the readout moves in the first step; the load-balancing loss is left out
  here, because its gradient would.

With K < M growing apart every expert sees a shrinking share K/M of the batch, while the derivation averages over many
tokens (``sparse_routing``): at a fixed batch the updates of experts and router then shrink, too.

Read next: ``transformer.py`` (the network), ``report.py`` (``judge`` compares the result with ``predicted``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.solver.derivation import signals
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.verify.decomposition.parts import Named, rms
from scaling_algebra.verify.judging.measurement import INPUT, PARAMETERS, Record, fingerprint
from scaling_algebra.verify.judging.report import Prediction
from scaling_algebra.verify.networks.base_shapes import EPS, Layer, recipe
from scaling_algebra.verify.networks.transformer import Transformer
from scaling_algebra.verify.transfer.sweep import cross_entropy, spare_threads
from scaling_algebra.verify.transfer.tasks import Batch, text

from .cells import Cell, Setup
from .sizes import TRANSFORMER

Map = Callable[[Tensor, Tensor], Tensor]
"""A linear map as a function of weight and input."""

Trace = tuple[list[Tensor], list[Layer]]
"""What ``Transformer.stream`` gives: the residual stream at every layer, and the MoE layers."""

BATCH, CONTEXT, BLOCKS, HEAD = 2, 32, 2, 16
"""Sequences in a step, their length, blocks of the network, dimension of a head: the same at every size."""

LR = 2.0**-8
"""Global learning rate, constant: the same at every size, so it changes no exponent."""

BETAS = (0.9, 0.95)
"""Of AdamW (MSSP paper, App. P.2)."""

CONSTANTS = {"base": dict(TRANSFORMER), "lr": LR, "betas": BETAS, "eps": EPS}
CONSTANTS |= {"batch": BATCH, "context": CONTEXT, "blocks": BLOCKS, "head": HEAD}
"""The same at every size; pieces trained with others are not mixed (``cells.Setup.recipe``)."""

PARTS = ("init", "propagating", "effective")
LINEAR = ("psi", "h2", "h3i")
"""Outputs of router, expert_in and expert_out, one expert each."""

JUDGED = {f"{x}.{part}" for x in (*LINEAR, "h3") for part in PARTS[1:]} | {"h1.change", "psi.change"}
"""Parts whose exponent may follow from a desideratum."""


def network(setup: Setup, cell: Cell, parameterization: str, device: str) -> Transformer:
    """The Transformer of a cell, one replica for each of its seeds.

    Raises:
        UsageError: a width or parameterization that does not fit, or an optimizer that torch does not have.
    """
    made = recipe(setup.ray, setup.optimizer.name, parameterization, dict(setup.base), True)
    model = text(BATCH, CONTEXT, BLOCKS, HEAD).build(made, setup.dims_of(cell), cell.seeds, device)
    assert isinstance(model, Transformer)
    return model


def measure(setup: Setup, cell: Cell, device: str) -> Record:
    """Trains the replicas of a cell and records every part after 0, 1, ..., ``setup.steps`` updates.

    Replicas see different text, each the same at every size; the probe is a batch of held-out text.
    """
    model = network(setup, cell, setup.parameterization, device)
    data, replicas = text(BATCH, CONTEXT, BLOCKS, HEAD), range(cell.first, cell.first + cell.count)
    batches = [data.batches(replicas, t, device) for t in range(setup.steps)]
    probe = data.batches(replicas, None, device)[0][:, :BATCH]
    seen = torch.cat([x.flatten(1) for x in (probe, *(tokens for tokens, _ in batches))], 1)
    facts = {
        (INPUT, 0): np.array([fingerprint(x) for x in seen]),
        (PARAMETERS, 0): np.full(cell.count, float(model.count())),
    }
    return {**train(model, batches, probe), **facts}


@spare_threads()
def train(model: Transformer, batches: Sequence[Batch], probe: Tensor) -> Record:
    """Trains on the batches and returns the root-mean-square of every part on the probe (S,B,T) at every step."""
    model.double()  # parts are differences of larger numbers
    stepper = model.optimizer(LR, betas=BETAS)
    start = {name: p.detach().clone() for name, p in model.weights.items()}
    record: dict[tuple[str, int], Tensor] = {}
    with torch.no_grad():
        first = model.stream(probe)
    masks = [layer.gates > 0 for layer in first[1]]
    for t in range(len(batches) + 1):
        with torch.no_grad():
            record |= {(name, t): rms(x) for name, x in split(model, start, first, masks, probe).items()}
        if t < len(batches):
            tokens, targets = batches[t]
            stepper.zero_grad()
            cross_entropy(model(tokens)[0], targets).sum().backward()  # type: ignore[no-untyped-call]
            stepper.step()
    return {key: x.cpu().numpy() for key, x in record.items()}


def split(
    model: Transformer, start: Mapping[str, Tensor], first: Trace, masks: Sequence[Tensor], probe: Tensor
) -> Named:
    """Every named part on the probe, with a leading replica dimension; ``h1``, ``psi`` and ``h3`` are all layers.

    Args:
        start: weights at step 0 by name. first: what ``stream`` gave at step 0. masks: routing at step 0, (S,P,M).
    """
    streams, layers = model.stream(probe, [mask.to(first[0][0]) for mask in masks])
    named: Named = {"h1": torch.stack(streams, 1)}
    for name in ("psi", "h3"):
        named[name] = torch.stack([getattr(layer, name) for layer in layers], 1)
    for k, (old, new, mask) in enumerate(zip(first[1], layers, masks, strict=True)):
        named |= {f"h1[{k}]": streams[k], f"h1[{k}].change": streams[k] - first[0][k]}
        hidden = [F.gelu(layer.h2) for layer in (old, new)]
        maps: dict[str, tuple[str, Map, Tensor, Tensor]] = {
            "psi": (f"router_{k}", router, old.x, new.x),
            "h2": (f"expert_in_{k}", expert_in, old.x, new.x),
            "h3i": (f"expert_out_{k}", expert_out, hidden[0], hidden[1]),
        }
        for name, (weight, apply, x0, x) in maps.items():
            w0 = start[weight]
            parts = (apply(w0, x0), apply(w0, x - x0), apply(model.weights[weight] - w0, x))
            for part, y in zip(PARTS, parts, strict=True):
                named[f"{name}[{k}].{part}"] = y if name == "psi" else chosen_pairs(y, mask)
                if name == "h3i":
                    gates = old.gates if part == "init" else new.gates
                    named[f"h3[{k}].{part}"] = model.multiplier * torch.einsum("spi,spib->spb", gates, y)
        named |= {f"psi[{k}]": new.psi, f"psi[{k}].change": new.psi - old.psi}
    return named


def router(w: Tensor, x: Tensor) -> Tensor:
    """(S,M,N) with (S,P,N) -> (S,P,M)."""
    return x @ w.mT


def expert_in(w: Tensor, x: Tensor) -> Tensor:
    """(S,M,N_e,N) with (S,P,N) -> (S,P,M,N_e)."""
    return (x @ w.flatten(1, 2).mT).view(*x.shape[:2], *w.shape[1:3])


def expert_out(w: Tensor, x: Tensor) -> Tensor:
    """(S,M,N_e,N) with (S,P,M,N_e) -> (S,P,M,N)."""
    return torch.einsum("sike,spik->spie", w, x)


def chosen_pairs(y: Tensor, mask: Tensor) -> Tensor:
    """The rows of the token-expert pairs in the mask, (S,P,M,a) with (S,P,M) -> (S, pairs, a)."""
    return y[mask].view(len(y), -1, y.shape[-1])


def predicted(ray: Ray, parameterization: str, rule: str = "adamw", *, steps: int = 2) -> Prediction:
    """Exponents of n of the parts, by name and step; what follows neither from desiderata nor from init is left out.

    Raises:
        UsageError: a parameterization that is not derived from desiderata.
    """
    names = [f"{x}.init" for x in (*LINEAR, "h3")]
    block = signals(None, rule, parameterization, ray=ray, steps=0, readout_init="zero", names=names)
    goal = PARAMETERIZATIONS[parameterization]
    init = {x: block.prediction()[f"{x}.init"][0] for x in (*LINEAR, "h3")}
    free = frozenset(x for x in LINEAR if (init[x] or 0) > 0)  # mu-1 bounds every other signal
    scaling = block.derivation.scaling
    zero = frozenset(role for role, scale in scaling.tensors.items() if scale.init_std is None)
    demands = goal.demanded(MOE_BLOCK, Structure(zero, frozenset(scaling.tied), free))
    theta = {q for demand in demands if demand.kind == "theta" for q in demand.quantities}
    if theta >= {"h3.A2.1", "h3.A2.2"}:  # a sum of positive parts has the size of the largest
        theta.add("h3.propagating")
    found: dict[str, list[Fraction | None]] = {}
    for k in range(BLOCKS):
        found[f"h1[{k}]"] = [Fraction(0)] * (steps + 1)
        found |= {f"{x}[{k}].init": [init[x]] for x in init}
        later = {f"{x}.propagating": init[x] for x in LINEAR}
        later |= {q: Fraction(0) for q in theta if q in JUDGED}
        for q, exponent in sorted(later.items()):
            name, _, part = q.partition(".")
            found[f"{name}[{k}].{part}"] = [None, None, *[exponent] * (steps - 1)][: steps + 1]
    return found
