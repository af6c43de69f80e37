"""The exponents that a trained network must have, from the engine. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from scaling_algebra.solver.derivation import Derivation, Signals
from scaling_algebra.spec.networks.library import moving


def predicted_signals(d: Derivation, steps: int) -> Signals:
    """Exponents of the quantities of a network after 0 .. ``steps`` updates."""
    trained = as_trained(d)
    return Signals(trained, steps, trained.analysis().all(steps, d.analysis().table))


def as_trained(d: Derivation) -> Derivation:
    """The derivation with the gate in the dynamics, as torch has it, where holding it at its mean and slope (assumption
    B2 of MSSP paper, J.2) would change exponents: where there are more experts than neurons."""
    if d.ray["M"] <= d.ray["N"]:
        return d
    return replace(d, configuration=d.configuration.but(network=moving(d.network)))
