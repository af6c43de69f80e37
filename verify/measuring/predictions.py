"""Predicts with the engine the exponents that a trained network must have. Does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling_algebra.dynamics.analysis import QUICKLY, Analysis
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.dynamics.budgets import WORK_LIMIT_REASON
from scaling_algebra.solver.derivation import Derivation, Signals
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, replace_gates
from scaling_algebra.waiting import iterate_with_progress

EACH, ALL = 40_000, 400_000
"""Work budgets of one prediction and of all predictions for a network that does not ship with the package. A
quantity that needs more is undecided."""


def predict_signals(d: Derivation, steps: int, claimed: Sequence[str] = ()) -> Signals:
    """Predicts the exponents of the quantities of a network after 0 .. ``steps`` updates.

    For a network that ships with the package, everything that can be certified is returned. For any other network the
    work is bounded, except for the quantities of claims.

    Args:
        d: the derivation, with the powers to train with.
        steps: number of updates.
        claimed: quantities of claims, which are predicted first and without a budget.
    """
    trained = release_gate(d)
    analysis, table = trained.analysis(), d.analysis().table
    if not has_work_budget(d.network):
        return Signals(trained, steps, analysis.evaluate_all(steps, table))
    first = analysis.evaluate_all(steps, [name for name in table if name in claimed]) if claimed else {}
    rows = dict[str, tuple[Bracket, ...]]()
    with analysis.meter.limit_work(ALL):
        for name in iterate_with_progress("predicting", "quantities", list(table)):
            rows[name] = first.get(name) or tuple(predict_briefly(analysis, name, t) for t in range(steps + 1))
    return Signals(trained, steps, rows)


def predict_briefly(analysis: Analysis, name: str, t: int) -> Bracket:
    """Predicts the exponent of the quantity ``name`` after t updates, within the work limit ``EACH``; the answer is
    undecided if that does not suffice.
    """
    with analysis.meter.limit_work(EACH):
        answer = analysis(name, t, QUICKLY)
        return analysis(name, t) if answer.decided else Bracket(why=WORK_LIMIT_REASON)


def has_work_budget(network: Network) -> bool:
    """Tells whether the work of predictions for a network is limited, as is the case unless it ships with the
    package.
    """
    return network.name not in ARCHITECTURES


def release_gate(d: Derivation) -> Derivation:
    """Returns a derivation in which gates change during training, as they do in torch, if this changes exponents, which
    it does if the number of experts grows faster than the width.

    Otherwise the derivation is returned as it is: its gates are constants, a mean and a slope (assumption B2 of MSSP
    paper, J.2).
    """
    if d.ray["M"] <= d.ray["N"]:
        return d
    return replace(d, configuration=d.configuration.but(network=replace_gates(d.network)))
