"""How demands fare at one point: which fail, why, and which monomial must become Theta(1).

Read next: ``newton.py`` (moves the point until none fails), ``scaling_algebra/spec/desiderata.py`` (the demands).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.powers import Form

HORIZON = 2
"""Updates after which every demand must hold: with a zero readout the hidden tensors first move at t = 2."""


class Infeasible(Exception):
    """No parameterization met the demands: the first demand that failed is the message."""


class NotFound(Infeasible):
    """The search found no parameterization, which proves nothing by itself: ``prover.settled`` may.

    Attributes:
        configuration: what was asked. failure: the demand that fails without any intervention.
    """

    def __init__(self, configuration: Configuration, failure: str) -> None:
        self.configuration, self.failure = configuration, failure
        super().__init__(self.said("searched, not proved"))

    def said(self, known: str) -> str:
        """One line: what is missing, how that is known, and the demand that fails without any intervention."""
        asked = self.configuration
        missing = f"{asked.parameterization.title} for {asked.optimizer.name} on {asked.ray}"
        return f"found no {missing} ({known}): {self.failure}"


@dataclass(frozen=True)
class Fixing:
    """What fixes one unknown: a demand, the quantity and step at which it binds, the form that is set to Theta(1)."""

    demand: Demand
    quantity: str
    step: int
    form: Form


def check(demands: Iterable[Demand], look: Analysis, certified: bool) -> None:
    """Lower bounds are quick and mostly enough to reject; certificates decide."""
    for demand in demands:
        failure = violation(demand, look, certified)
        if failure:
            raise Infeasible(failure)


def look_ahead(demands: Iterable[Demand], look: Analysis) -> None:
    """Growth from step to step can start below the horizon and pass it: nothing may diverge one update later either, as
    far as a little work shows. Lower bounds are enough to reject."""
    for demand in demands:
        for name in demand.quantities if demand.kind in ("theta", "bounded") else ():
            later = look.lower(name, HORIZON + 1).exponent
            if later is not None and later > 0:
                raise Infeasible(f"{demand.name}: {demand.because}, but {name} ~ n^({later}) at t={HORIZON + 1}")


def violation(demand: Demand, look: Analysis, certified: bool = True, horizon: int = HORIZON) -> str:
    """Why a demand fails, or an empty string."""
    ask = look if certified else look.lower
    answers = {name: [ask(name, t) for t in range(horizon + 1)] for name in demand.quantities}
    for name, row in answers.items():
        for t, answer in enumerate(row):
            if certified and not answer.decided:
                return f"{demand.name}: {name} at t={t} is undecided"
    if demand.kind == "scale":
        return ""
    if demand.kind == "balanced":
        last = {name: row[-1].exponent for name, row in answers.items() if row[-1].exponent is not None}
        if len(set(last.values())) > 1:
            low, high = min(last, key=lambda k: last[k]), max(last, key=lambda k: last[k])
            return f"{demand.name}: {demand.because}, but {low} ~ n^({last[low]}) and {high} ~ n^({last[high]})"
        return ""
    top = max((a.exponent for row in answers.values() for a in row if a.exponent is not None), default=None)
    if top is None and demand.kind == "bounded":
        return ""
    if top is None or top > 0 or (demand.kind == "theta" and top < 0):
        size = "exactly zero" if top is None else f"n^({top})"
        return f"{demand.name}: {demand.because}, but {' + '.join(demand.quantities)} ~ {size}"
    return ""


def largest(look: Analysis, demand: Demand) -> Fixing | None:
    """The form that must become Theta(1): of the first step at which the quantity diverges, else of its largest step.

    A divergence feeds every later step, so the earliest one is the one to correct. None if all are exactly zero.
    """
    best: tuple[Fraction, Fixing] | None = None
    for t in range(1 if demand.kind == "scale" else 0, HORIZON + 1):
        for name in demand.quantities:
            answer = look.lower(name, t)
            if answer.exponent is not None and answer.form is not None and (best is None or answer.exponent > best[0]):
                best = answer.exponent, Fixing(demand, name, t, _scaled(demand, answer.form))
        if demand.kind == "theta" and best is not None and best[0] > 0:
            break
    return None if best is None else best[1]


def _scaled(demand: Demand, form: Form) -> Form:
    """For a ``scale`` demand: the form of n^d times the quantity."""
    if demand.kind != "scale":
        return form
    counts = dict(form.unknowns)
    counts[demand.fixes] = counts.get(demand.fixes, 0) + 1
    return Form(form.power, tuple(counts.items()))
