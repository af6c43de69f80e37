"""What users call: ``derive`` and ``signals``, with results whose ``str()`` is the report.

Read next: ``cli.py`` (a thin layer over this), ``solver.py`` and ``analysis.py`` (the work).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from .analysis import Analysis, Answer
from .axes import Ray, regime
from .desiderata import GOALS, Structure
from .errors import UsageError, unknown_name
from .exponents import Power
from .optimizers import Optimizer, optimizer
from .parameterizations import Scaling, standard
from .programs import MOE_BLOCK
from .solver import Infeasible, Solution, Solver

PARAMETERIZATIONS: dict[str, str] = {**{g.name: g.title for g in GOALS.values()}, "sp": "SP"}
"""Every parameterization, by name: derived goals, and the standard parameterization as it is."""
READOUTS = ("maximal", "zero")
"""Readout initialisations: as large as its propagating update allows, or zero."""


@dataclass(frozen=True)
class Derivation:
    """A derived parameterization.

    Attributes:
        ray, optimizer, parameterization: what was asked.
        readout_init: how the readout starts.
        scaling: powers of the axes for every tensor.
        reasons: one line for each ``(role, "init" | "lr" | "eps")`` and for ``("aggregation", "alpha")``.
        structure: why tensors are zero or tied, one line each, in the order of the interventions.
        unique: True or False where uniqueness was proved or refuted, None where it was not examined.
    """

    ray: Ray
    optimizer: Optimizer
    parameterization: str
    readout_init: str
    scaling: Scaling
    reasons: Mapping[tuple[str, str], str]
    structure: tuple[str, ...] = ()
    unique: bool | None = None

    def exponents(self, role: str) -> tuple[Fraction | None, Fraction, Fraction | None]:
        """b, c, d of a tensor on the ray; b is None for zero init, d is None without an epsilon."""
        s = self.scaling.tensors[role]
        return (
            None if s.init_std is None else -s.init_std.on(self.ray),
            -s.lr.on(self.ray),
            None if s.eps is None else -s.eps.on(self.ray),
        )

    def asked(self) -> dict[str, Any]:
        """What was asked, for JSON: the head of every report."""
        return {
            "regime": self.ray.name or None,
            "ray": {axis: str(rate) for axis, rate in self.ray.rates.items()},
            "optimizer": self.optimizer.name,
            "parameterization": self.parameterization,
            "readout_init": self.readout_init,
        }

    def as_json(self) -> dict[str, Any]:
        """The JSON contract: exponents are strings, zero init is ``"b": "zero"``, d and eps null without epsilon."""
        tensors = {}
        for role, s in self.scaling.tensors.items():
            b, c, d = self.exponents(role)
            tensors[role] = {
                "b": "zero" if b is None else str(b),
                "c": str(c),
                "d": None if d is None else str(d),
                "init_std": None if s.init_std is None else s.init_std.as_strings(),
                "lr": s.lr.as_strings(),
                "eps": None if s.eps is None else s.eps.as_strings(),
                "because": {what: why for (r, what), why in self.reasons.items() if r == role},
            }
        return {
            **self.asked(),
            "alpha": str(self.scaling.alpha.on(self.ray)),
            "aggregation": (-self.scaling.alpha).as_strings(),
            "tied": list(self.scaling.tied),
            "structure": list(self.structure),
            "unique": self.unique,
            "tensors": tensors,
        }

    def __str__(self) -> str:
        from .report import derivation_text

        return derivation_text(self)


@dataclass(frozen=True)
class Signals:
    """Certified exponents of every named quantity at t = 0, 1, ..., steps."""

    derivation: Derivation
    steps: int
    quantities: Mapping[str, tuple[Answer, ...]]

    def prediction(self) -> dict[str, tuple[Fraction | None, ...]]:
        """Exponents of n by quantity and step, None for exactly zero; undecided quantities are left out."""
        return {
            name: tuple(a.exponent for a in row) for name, row in self.quantities.items() if all(a.decided for a in row)
        }

    def as_json(self) -> dict[str, Any]:
        """The JSON contract: exponents are strings, null is exactly zero, ``"undecided"`` where no certificate held."""
        cells = {
            name: [
                None if a.decided and a.exponent is None else str(a.exponent) if a.decided else "undecided" for a in row
            ]
            for name, row in self.quantities.items()
        }
        return {**self.derivation.asked(), "steps": list(range(self.steps + 1)), "quantities": cells}

    def __str__(self) -> str:
        from .report import signals_text

        return signals_text(self)


def derive(
    regime: str | None = None,
    optimizer: str = "adam",
    parameterization: str = "mssp",
    *,
    ray: Ray | str | None = None,
    readout_init: str | None = None,
) -> Derivation:
    """Derive how init std, learning rate and epsilon of every tensor must scale.

    The readout initialisation defaults to the one of the parameterization's definition in the MSSP paper (maximal for
    muP, zero for MSSP); another choice replaces the readout's init and leaves the other exponents as derived.

    >>> d = derive(regime="II", optimizer="sgd", parameterization="mssp")
    >>> str(d.scaling.tensors["expert_out"].init_std), str(d.scaling.tensors["expert_out"].lr)
    ('M^(1/2)', 'N M')
    >>> d.exponents("router")
    (Fraction(1, 2), Fraction(0, 1), None)

    Raises:
        UsageError: an unknown name, a ray that is not one, or both a regime and a ray.
        Infeasible: the search found no parameterization that meets the desiderata on this ray; the message names the
            first demand that fails without any intervention.
    """
    where = the_ray(regime, ray)
    rule = _optimizer(optimizer)
    name = parameterization.lower()
    if name not in PARAMETERIZATIONS:
        raise unknown_name("parameterization", parameterization, PARAMETERIZATIONS)
    if readout_init is not None and readout_init not in READOUTS:
        raise unknown_name("readout init", readout_init, READOUTS)
    if name == "sp":
        return _standard(where, rule, readout_init)
    goal = GOALS[name]
    solution = _solve(where, rule, name)
    readout = readout_init or goal.readout_init
    scaling, reasons = solution.scaling, _reasons(solution, rule)
    if readout != goal.readout_init:
        std = None if readout == "zero" else _solve(where, rule, "mup").scaling.tensors["readout"].init_std
        scaling = _with_readout(scaling, std)
        reasons["readout", "init"] = f"chosen: readout init {readout}"
    return Derivation(where, rule, name, readout, scaling, reasons, _structure(solution))


def signals(
    regime: str | None = None,
    optimizer: str = "adam",
    parameterization: str = "mssp",
    *,
    ray: Ray | str | None = None,
    steps: int = 2,
    readout_init: str | None = None,
    names: Sequence[str] | None = None,
) -> Signals:
    """Exponent of every named quantity at t = 0 .. steps, each certified exact.

    >>> s = signals(regime="III", optimizer="sgd", parameterization="mup")
    >>> [str(a) for a in s.quantities["h3.A2.1"]]
    ['0 (exact)', '-1', '-1/2']

    Raises:
        UsageError: as ``derive``; also negative steps or an unknown quantity.
        Infeasible: as ``derive``.
    """
    if steps < 0:
        raise UsageError(f"steps is {steps}; give 0 or more")
    d = derive(regime, optimizer, parameterization, ray=ray, readout_init=readout_init)
    look = Analysis(d.ray, d.scaling.point(d.ray), d.optimizer)
    for name in names or ():
        if name not in look.table:
            raise unknown_name("quantity", name, look.table)
    return Signals(d, steps, look.all(steps, names))


def the_ray(name: str | None, ray: Ray | str | None) -> Ray:
    """The ray of ``--regime`` or ``--ray``; exactly one must be given."""
    if (name is None) == (ray is None):
        raise UsageError("give either a regime (I, II or III) or a ray such as N=1,N_e=1/2,M=1/2")
    if name is not None:
        return regime(name)
    return Ray.parse(ray) if isinstance(ray, str) else ray  # type: ignore[return-value]


_optimizer = optimizer


@lru_cache(maxsize=64)
def _solve(where: Ray, rule: Optimizer, name: str) -> Solution:
    goal = GOALS[name]
    try:
        return _solver(where, rule).solve(goal, goal.readout_init == "zero")
    except Infeasible as failure:
        raise Infeasible(
            f"found no {goal.title} for {rule.name} on {where} (searched, not proved): {failure}"
        ) from None


@lru_cache(maxsize=16)
def _solver(where: Ray, rule: Optimizer) -> Solver:
    return Solver(MOE_BLOCK, where, rule)


def _reasons(solution: Solution, rule: Optimizer) -> dict[tuple[str, str], str]:
    what = {"b": "init", "c": "lr", "d": "eps"}
    found: dict[tuple[str, str], str] = {}
    for role in MOE_BLOCK.tensors:
        for letter, label in what.items():
            fixing = solution.fixed_by.get(f"{letter}.{role}")
            if fixing is not None:
                found[role, label] = f"{fixing.demand.name}: {fixing.demand.because}"
            elif letter == "b" and role == "readout":
                found[role, label] = "chosen: zero readout as in the MSSP paper, App. J (or --readout-init maximal)"
            elif letter == "b":
                found[role, label] = (
                    "MSSP pathways: with zero init both pathways of the propagating update vanish, else they differ"
                )
    if "alpha" in solution.fixed_by:
        demand = solution.fixed_by["alpha"].demand
        found["aggregation", "alpha"] = f"{demand.name}: {demand.because}"
    return found


def _structure(solution: Solution) -> tuple[str, ...]:
    """One line for each structural choice: what failed without it."""
    chosen = solution.structure
    if chosen == Structure(zero=chosen.zero & {"readout"}):
        return ()
    lines = [f"chosen: {chosen}"]
    lines += [f"rejected: {tried}: {why}" for tried, why in solution.rejected]
    return tuple(lines)


def _standard(where: Ray, rule: Optimizer, readout_init: str | None) -> Derivation:
    scaling = standard(MOE_BLOCK)
    readout = readout_init or "maximal"
    if readout == "zero":
        scaling = _with_readout(scaling, None)
    reasons = {(role, "init"): "standard: 1/sqrt(fan_in)" for role in MOE_BLOCK.tensors}
    reasons |= {(role, "lr"): "standard: one global learning rate" for role in MOE_BLOCK.tensors}
    if not rule.epsilon:
        scaling = replace(scaling, tensors={r: replace(s, eps=None) for r, s in scaling.tensors.items()})
    else:
        reasons |= {(role, "eps"): "standard: one global epsilon" for role in MOE_BLOCK.tensors}
    reasons["aggregation", "alpha"] = "standard: mean over the experts"
    return Derivation(where, rule, "sp", readout, scaling, reasons)


def _with_readout(scaling: Scaling, std: Power | None) -> Scaling:
    tensors = dict(scaling.tensors)
    tensors["readout"] = replace(tensors["readout"], init_std=std)
    return replace(scaling, tensors=tensors)
