"""Trains any network with real optimizer steps and records every named quantity at every step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.dynamics.quantities import (
    Quantity,
    find_quantity,
    list_decay_quantities,
    list_quantities,
    parse_inner_product,
)
from scaling_algebra.spec.networks.auxiliary import find_buffers, find_selection_inputs
from scaling_algebra.spec.networks.roles import is_first_layer, name_pathways
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import GRADIENTS, INPUT, PARAMETERS, Record, compute_fingerprint
from scaling_algebra.verify.networks.backward import Backward
from scaling_algebra.verify.networks.moment import compute_rms
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import NotMeasured, SignalEntries, TorchRun, get_state
from scaling_algebra.verify.networks.scales import LOSS_SLOPE
from scaling_algebra.verify.networks.torch_network import TorchNetwork, count_selected

from .cells import Setup


def train_network(setup: Setup, draw: ReplicaDraw, checked: int = 0) -> Record:
    """Trains all replicas and records the root mean square of every quantity at every step.

    Args:
        setup: the run.
        draw: dimensions, seeds and device of the replicas.
        checked: number of replicas whose gradients at the last step are compared with autograd's; for the others the
            difference is recorded as -1.

    Returns:
        Map (quantity, step) -> array of shape (S,), one value for each replica.
    """
    derivation, steps, products = setup.derivation, setup.steps, setup.products
    network = derivation.network
    model = TorchNetwork(network, draw, derivation.scaling, getattr(torch, setup.dtype))
    run = TorchRun(model, derivation.optimizer, keep=bool(products))
    for s in network.statements:
        if is_first_layer(network, s.out):
            for via in name_pathways(network, s.out).values():
                run.trainer.follow(s.out, via)
    table = list_quantities(network) | list_decay_quantities(network, derivation.optimizer)
    recorded = [*table.values(), *(find_quantity(table, name) for name in products)]
    record: dict[tuple[str, int], Tensor] = {}
    for t in range(steps + 1):
        with torch.no_grad():
            for q in recorded:
                if all(step is None or step <= t for _, step in parse_inner_product(q.name)):
                    size = _compute_size(q, run, t)
                    if size is not None:
                        record[q.name, t] = size
            record |= {(name, t): x for name, x in _compute_entropies(run, t).items()}
        if t < steps:
            run.trainer.step()
    parameters = sum(p[0].numel() for p in model.parameters())
    facts = {INPUT: compute_fingerprint(model.x), PARAMETERS: parameters, GRADIENTS: -1.0}
    numbers = {(name, 0): np.full(len(draw), float(fact)) for name, fact in facts.items()}
    if checked:
        numbers[GRADIENTS, 0][:checked] = _compare_gradients(run, steps, checked)[:checked]
    return {key: x.double().cpu().numpy() for key, x in record.items()} | numbers


def _compute_entropies(run: TorchRun, t: int) -> dict[str, Tensor]:
    """Returns the entropy of every softmax of the network, divided by the largest possible one, and 1 minus this ratio,
    by name; both (S,).

    Source: routers paper, Fig. 1 (normalised router entropy).
    """
    sizes: dict[str, Tensor] = {}
    for s in run.network.functions:
        if s.kind.kind == "softmax":
            phi = run.value(s.out, t)
            along = 1 + phi.indices.index(s.over)
            size = phi.entries.shape[along]
            active = count_selected(size) if s.kind.selects else size
            if active > 1:
                entropy = torch.special.entr(phi.entries).sum(along) / math.log(active)
                sizes |= {f"{s.out}.entropy": compute_rms(entropy), f"{s.out}.deficit": compute_rms(1 - entropy)}
    return sizes


def _compute_size(q: Quantity, run: TorchRun, t: int) -> Tensor | None:
    """Returns the rms of a quantity in each replica, (S,), or None if it cannot be measured with this optimizer, whose
    steps mix the parts of a gradient.
    """
    try:
        read = q.read(run, t)
    except NotMeasured:
        return None
    return read.rms() if isinstance(read, SignalEntries) else read


def _compare_gradients(run: TorchRun, t: int, checked: int) -> Array:
    """Compares the gradients that the program computes by its own formulas with those of torch's autograd, in the first
    ``checked`` replicas.

    Returns:
        For each replica the largest relative difference over all signals and tensors.
    """
    batch, network = get_state(run.states, t)[1], run.network
    differences = []
    with torch.no_grad():
        signals, weights = differentiate_with_autograd(batch, checked)
        pairs = [
            (batch.gradient(x, {}), theirs) for x, theirs in signals.items() if x not in find_selection_inputs(network)
        ]
        pairs += [(batch.of_weight(x), theirs) for x, theirs in weights.items() if x not in find_buffers(network)]
        for ours, theirs in pairs:
            difference, size = (compute_rms(x).double() for x in (ours[:checked] - theirs, theirs))
            differences.append(torch.where(size == 0, difference, difference / size))
    largest: Array = torch.stack(differences).amax(0).cpu().numpy()
    return largest


def differentiate_with_autograd(batch: Backward, replicas: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Computes the gradients of the first replicas with torch's autograd, for comparison with those that the program
    computes by its own formulas.

    Returns:
        The gradients at signals, and the gradients of the loss with respect to tensors, both by name.
    """
    model, network, moment = batch.model, batch.network, batch.moment
    weights = {role: w[:replicas].detach().requires_grad_() for role, w in moment.now.items()}
    noise = {name: x[:replicas].detach().requires_grad_() for name, x in moment.noise.items()}
    with torch.enable_grad():
        signals = model.signals(weights, noise)
        names = [s.out for s in network.statements]
        sources = [*(signals[x] for x in names), *weights.values()]
        losses = [signals[x].sum() for x in (network.output, *network.losses)]
        found = torch.autograd.grad(losses, sources, allow_unused=True)
    made = [torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True)]
    raw = {role: LOSS_SLOPE * g for role, g in zip(weights, made[len(names) :], strict=True)}
    return dict(zip(names, made, strict=False)), raw
