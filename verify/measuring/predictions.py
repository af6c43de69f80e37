"""The exponents that the parts of a trained network must have, from the engine. Needs no torch.

The MoE block has the quantities that the engine names. The parts of the Transformer (``coordinates.py``) follow from
them. Why the predictions carry over from the block: the norm in front of every MoE layer gives it a Theta(1) input, the
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
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.solver.derivation import Derivation, Signals, signals
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.language import Function, Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.verify.judging.measurement import Prediction
from scaling_algebra.verify.networks.scales import BLOCKS

PARTS = ("init", "propagating", "effective")
LINEAR = ("psi", "h2", "h3i")
"""Outputs of router, expert_in and expert_out, one expert each."""

JUDGED = {f"{x}.{part}" for x in (*LINEAR, "h3") for part in PARTS[1:]} | {"h1.change", "psi.change"}
"""Parts whose exponent may follow from a desideratum."""


def predicted_signals(d: Derivation, steps: int) -> Signals:
    """Exponents of the quantities of a network after 0 .. ``steps`` updates."""
    trained = as_trained(d)
    return Signals(trained, steps, trained.analysis().all(steps, d.analysis().table))


def as_trained(d: Derivation) -> Derivation:
    """The derivation with the gate in the dynamics, as torch has it, where holding it at its mean and slope (assumption
    B2 of MSSP paper, J.2) would change exponents: where there are more experts than neurons."""
    if d.ray["M"] <= d.ray["N"]:
        return d
    return replace(d, configuration=d.configuration.but(network=live(d.network)))


def live(network: Network) -> Network:
    """The network with its held gates in the dynamics."""
    if network == MOE_BLOCK:
        return ARCHITECTURES["moe-sigmoid"]
    if not any(s.held for s in network.functions):
        return network
    trained = [replace(s, name="sigmoid") if isinstance(s, Function) and s.held else s for s in network.statements]
    return replace(network, name=f"{network.name}-sigmoid", statements=tuple(trained))


def predicted_layers(configuration: Configuration, steps: int = 2) -> Prediction:
    """Exponents of n of the parts, by name and step; what follows neither from desiderata nor from init is left out.

    Raises:
        UsageError: a parameterization that is not derived from desiderata.
    """
    names = [f"{x}.init" for x in (*LINEAR, "h3")]
    configuration.parameterization.check_derived(MOE_BLOCK)
    block = signals(configuration.but(readout_init="zero"), steps=0, quantities=names)
    init = {x: block.prediction()[f"{x}.init"][0] for x in (*LINEAR, "h3")}
    free = frozenset(x for x in LINEAR if (init[x] or 0) > 0)  # mu-1 bounds every other signal
    scaling = block.derivation.scaling
    zero = frozenset(role for role, scale in scaling.tensors.items() if scale.init_std is None)
    demands = configuration.parameterization.demanded(MOE_BLOCK, Structure(zero, frozenset(scaling.tied), free))
    theta = {q for demand in demands if demand.kind == "theta" for q in demand.quantities}
    if theta >= {"h3.A2.1", "h3.A2.2"}:  # a sum of positive parts has the size of the largest
        theta.add("h3.propagating")
    exponents: dict[str, list[Fraction | None]] = {}
    for k in range(BLOCKS):
        exponents[f"h1[{k}]"] = [Fraction(0)] * (steps + 1)
        exponents |= {f"{x}[{k}].init": [init[x]] for x in init}
        later = {f"{x}.propagating": init[x] for x in LINEAR}
        later |= {q: Fraction(0) for q in theta if q in JUDGED}
        for q, exponent in sorted(later.items()):
            name, _, part = q.partition(".")
            exponents[f"{name}[{k}].{part}"] = [None, None, *[exponent] * (steps - 1)][: steps + 1]
    return exponents
