"""The exponents that a trained network must have, from the engine. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling_algebra.dynamics.analysis import SHORTLY, Analysis
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.dynamics.budgets import WORK
from scaling_algebra.solver.derivation import Derivation, Signals
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, moving
from scaling_algebra.waiting import each

EACH, ALL = 40_000, 400_000
"""Work of one prediction, and of all, where a network is not one that ships: what takes more is undecided."""


def predicted_signals(d: Derivation, steps: int, claimed: Sequence[str] = ()) -> Signals:
    """Exponents of the quantities of a network after 0 .. ``steps`` updates: of one that ships all that can be
    certified, of another what a bounded amount of work certifies, and of what is claimed all.

    Args:
        claimed: quantities that are asked for first.
    """
    trained = as_trained(d)
    look, table = trained.analysis(), d.analysis().table
    if not bounded(d.network):
        return Signals(trained, steps, look.all(steps, table))
    first = look.all(steps, [name for name in table if name in claimed]) if claimed else {}
    rows = dict[str, tuple[Bracket, ...]]()
    with look.meter.within(ALL):
        for name in each("predicting", "quantities", list(table)):
            rows[name] = first.get(name) or tuple(briefly(look, name, t) for t in range(steps + 1))
    return Signals(trained, steps, rows)


def briefly(look: Analysis, name: str, t: int) -> Bracket:
    """An exponent, if ``EACH`` is enough work for it."""
    with look.meter.within(EACH):
        answer = look(name, t, SHORTLY)
        return look(name, t) if answer.decided else Bracket(why=WORK)


def bounded(network: Network) -> bool:
    """Predictions take a bounded amount of work: the network is not one that ships."""
    return network.name not in ARCHITECTURES


def as_trained(d: Derivation) -> Derivation:
    """The derivation with the gate in the dynamics, as torch has it, where holding it at its mean and slope (assumption
    B2 of MSSP paper, J.2) would change exponents: where there are more experts than neurons."""
    if d.ray["M"] <= d.ray["N"]:
        return d
    return replace(d, configuration=d.configuration.but(network=moving(d.network)))
