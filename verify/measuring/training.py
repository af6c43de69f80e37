"""Trains any network with real optimizer steps and records every named quantity at every step."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.dynamics.quantities import Quantity, inner_product, quantities, quantity, with_decay
from scaling_algebra.spec.networks.auxiliary import buffers, counted
from scaling_algebra.spec.networks.roles import first_layer, pathways
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import GRADIENTS, INPUT, PARAMETERS, Record, fingerprint
from scaling_algebra.verify.networks.backward import Backward
from scaling_algebra.verify.networks.moment import rms
from scaling_algebra.verify.networks.replicas import Draw
from scaling_algebra.verify.networks.run import NotMeasured, SignalEntries, TorchRun, at
from scaling_algebra.verify.networks.scales import LOSS_SLOPE
from scaling_algebra.verify.networks.torch_network import TorchNetwork, selected

from .cells import Setup


def train_network(setup: Setup, draw: Draw, checked: int = 0) -> Record:
    """Trains all replicas and returns the root-mean-square of every quantity at every step, one for each replica.

    Of the first ``checked`` replicas autograd's gradients at the last step are compared with those of the chain rule;
    -1 stands for the others.
    """
    derivation, steps, products = setup.derivation, setup.steps, setup.products
    network = derivation.network
    model = TorchNetwork(network, draw, derivation.scaling, getattr(torch, setup.dtype))
    run = TorchRun(model, derivation.optimizer, keep=bool(products))
    for s in network.statements:
        if first_layer(network, s.out):
            for via in pathways(network, s.out).values():
                run.trainer.follow(s.out, via)
    table = quantities(network) | with_decay(network, derivation.optimizer)
    recorded = [*table.values(), *(quantity(table, name) for name in products)]
    record: dict[tuple[str, int], Tensor] = {}
    for t in range(steps + 1):
        with torch.no_grad():
            for q in recorded:
                if all(step is None or step <= t for _, step in inner_product(q.name)):
                    size = _size(q, run, t)
                    if size is not None:
                        record[q.name, t] = size
            record |= {(name, t): x for name, x in _entropies(run, t).items()}
        if t < steps:
            run.trainer.step()
    parameters = sum(p[0].numel() for p in model.parameters())
    facts = {INPUT: fingerprint(model.x), PARAMETERS: parameters, GRADIENTS: -1.0}
    numbers = {(name, 0): np.full(len(draw), float(fact)) for name, fact in facts.items()}
    if checked:
        numbers[GRADIENTS, 0][:checked] = _gradient_difference(run, steps, checked)[:checked]
    return {key: x.double().cpu().numpy() for key, x in record.items()} | numbers


def _entropies(run: TorchRun, t: int) -> dict[str, Tensor]:
    """Entropy of every softmax in units of the most that its active entries allow, and what lacks to it, (S,).

    Source: routers paper, Fig. 1 (normalised router entropy).
    """
    sizes: dict[str, Tensor] = {}
    for s in run.network.functions:
        if s.kind.kind == "softmax":
            phi = run.value(s.out, t)
            along = 1 + phi.letters.index(s.over)
            size = phi.entries.shape[along]
            active = selected(size) if s.kind.selects else size
            if active > 1:
                entropy = torch.special.entr(phi.entries).sum(along) / math.log(active)
                sizes |= {f"{s.out}.entropy": rms(entropy), f"{s.out}.deficit": rms(1 - entropy)}
    return sizes


def _size(q: Quantity, run: TorchRun, t: int) -> Tensor | None:
    """The size of a quantity of each replica, (S,); None where the optimizer does not leave it apart."""
    try:
        read = q.read(run, t)
    except NotMeasured:
        return None
    return read.rms() if isinstance(read, SignalEntries) else read


def _gradient_difference(run: TorchRun, t: int, checked: int) -> Array:
    """Largest relative difference between gradients by the chain rule and autograd's, over signals and tensors, for
    each of the first replicas."""
    batch, network = at(run.states, t)[1], run.network
    differences = []
    with torch.no_grad():
        signals, weights = by_autograd(batch, checked)
        pairs = [(batch.gradient(x, {}), theirs) for x, theirs in signals.items() if x not in counted(network)]
        pairs += [(batch.of_weight(x), theirs) for x, theirs in weights.items() if x not in buffers(network)]
        for ours, theirs in pairs:
            difference, size = (rms(x).double() for x in (ours[:checked] - theirs, theirs))
            differences.append(torch.where(size == 0, difference, difference / size))
    largest: Array = torch.stack(differences).amax(0).cpu().numpy()
    return largest


def by_autograd(batch: Backward, replicas: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of the first replicas as torch has them, at signals and of the loss with respect to tensors: what
    those by the chain rule must equal."""
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
