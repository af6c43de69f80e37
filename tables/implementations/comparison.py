"""Compares a rule of public code with the derivation: which powers differ, and which desiderata fail with the rule.

A power that differs is a fact about two rules, not a defect. Whether the rule meets the demands is computed by the
engine, with the powers that the rule sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Code, Grid, Heading, Lines, Piece, literal
from scaling_algebra.documents.notation import typeset
from scaling_algebra.dynamics.analysis import LEAD, Analysis
from scaling_algebra.errors import unknown_name_error
from scaling_algebra.solver.demands import causes_first, concerns, summarise_failures, unfaithful, violation
from scaling_algebra.solver.derivation import Derivation, derive, find_solution
from scaling_algebra.spec.configuration import ConfigurationOptions
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.given import AGGREGATION, Given
from scaling_algebra.spec.powers import Power

from .shipped import NAMES, ShippedRule, rules

Verdict = Literal["holds", "fails", "undecided"]
DIFFERS = ("implementation", "regime", "epsilon", "quantity", "rule", "derived")


@dataclass(frozen=True)
class ComparedPower:
    """One power that a rule sets, converted to a tensor without multipliers, and the derived one.

    Attributes:
        name: ``ROLE.init``, ``ROLE.lr``, ``ROLE.eps``, ``ROLE.decay``, ``aggregation`` or another multiplier.
        rule: power of the axes in the rule; None for zero init.
        derived: derived power of the axes; None for zero init.
        equal: True if both are the same power of n on the ray, even if the axes differ.
    """

    name: str
    rule: Power | None
    derived: Power | None
    equal: bool

    def as_json(self) -> dict[str, str]:
        return {"quantity": self.name, "rule": text(self.rule), "derived": text(self.derived)}


@dataclass(frozen=True)
class Held:
    """How a rule of public code compares with the derivation on one ray, for one size of its epsilon.

    Attributes:
        rule: the rule.
        regime: the ray.
        epsilon: ``derived`` (as large as the gradient at the base, so that its power has an effect), ``negligible``,
            or "" for an optimizer without an epsilon.
        cells: every power that the rule sets.
        failures: desiderata that do not hold for t = 0 .. 2, one line each; if a quantity diverges, only that one.
        undecided: undecided desiderata, one line each.
    """

    rule: ShippedRule
    regime: str
    epsilon: str
    cells: tuple[ComparedPower, ...]
    failures: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def covered(self) -> bool:
        return self.regime in self.rule.covers

    @property
    def differing(self) -> tuple[ComparedPower, ...]:
        return tuple(c for c in self.cells if not c.equal)

    @property
    def verdict(self) -> Verdict:
        """Whether all desiderata hold with the rule: ``fails``, ``undecided`` or ``holds``."""
        return "fails" if self.failures else "undecided" if self.undecided else "holds"

    def as_json(self) -> dict[str, Any]:
        r = self.rule
        return {
            "implementation": r.name,
            "variant": r.variant,
            "repository": r.repository,
            "regime": self.regime,
            "covered": self.covered,
            "optimizer": r.optimizer,
            "epsilon": self.epsilon,
            "parameterization": r.parameterization,
            "cells": len(self.cells),
            "differs": [c.as_json() for c in self.differing],
            "verdict": self.verdict,
            "fails": list(self.failures),
            "undecided": list(self.undecided),
        }


@dataclass(frozen=True, repr=False)
class Implementations(Rendered):
    """The results for rules of public code, one for each ray and size of epsilon."""

    held: tuple[Held, ...]

    @property
    def about(self) -> str:
        differ = sum(bool(h.differing) for h in self.held)
        return f"{len(self.held)} rules on rays, {differ} differ from the derivation"

    def document(self) -> Document:
        """Renders an overview, every power that differs, and for every rule its source, assumptions and failures."""
        header = ("implementation", "regime", "covered", "epsilon", "compared with", "equal", "desiderata")
        rows = [
            (h.rule.label, h.regime, h.epsilon, c.name, text(c.rule), text(c.derived))
            for h in self.held
            for c in h.differing
        ]
        blocks: list[Block] = [
            Heading("shipped rules against the derivation"),
            Grid.of(header, map(_line, self.held)),
            Heading("what differs", 2),
            Grid.of(DIFFERS, [[literal(x) for x in row] for row in rows]),
        ]
        for name in dict.fromkeys(h.rule.name for h in self.held):
            blocks += _about([h for h in self.held if h.rule.name == name])
        return Document(tuple(blocks), {"implementations": [h.as_json() for h in self.held]}, "scalecalc audit")


def implementations(name: str | None = None) -> Implementations:
    """Compares the rules of one implementation, or of all, with the derivation, on all rays and for all sizes of
    epsilon (``derived``, ``negligible``) that their files name.

    Raises:
        UsageError: there is no such implementation.
    """
    if name is not None and name not in NAMES:
        raise unknown_name_error("implementation", name, NAMES)
    chosen = (rule for rule in rules() if name in (None, rule.name))
    asked = ((r, regime, e) for r in chosen for regime in r.regimes for e in r.epsilon or ("",))
    return Implementations(tuple(hold(*x) for x in asked))


def hold(rule: ShippedRule, regime: str, epsilon: str) -> Held:
    """Compares a rule of public code with the derivation on one ray: its powers, and the desiderata that hold with it.

    Powers that the rule does not set are taken from the derivation.

    Raises:
        UsageError: a power of an axis that the network lacks.
    """
    where: ConfigurationOptions = {
        "network": rule.network,
        "epsilon": epsilon or None,
        "readout_init": rule.readout_init or None,
    }
    if ray := "=" in regime:
        where["ray"] = regime
    d = derive(None if ray else regime, rule.optimizer, rule.parameterization, **where)
    given = Given.of(rule.as_given(d.optimizer), rule.network, d.optimizer)
    cells = tuple(_cell(name, power, d) for name, power in given.items)
    cells += tuple(_decay(role, decay, lr, d) for role, (decay, lr) in rule.shrinking.items())
    failures, undecided = _find_failures(d, given)
    return Held(rule, regime, epsilon, cells, failures, undecided)


def text(power: Power | None) -> str:
    """Writes a power, or 0 for zero init."""
    return "0" if power is None else str(power)


# inside --------------------------------------------------------------------------------------------------------


def _line(h: Held) -> tuple[Piece, ...]:
    equal = f"{len(h.cells) - len(h.differing)} of {len(h.cells)}"
    failed = {"holds": "all hold", "fails": f"{len(h.failures)} fail", "undecided": f"{len(h.undecided)} undecided"}
    covered = "yes" if h.covered else "no"
    return literal(h.rule.label), h.regime, covered, h.epsilon, h.rule.parameterization, equal, failed[h.verdict]


def _about(held: list[Held]) -> list[Block]:
    first = held[0].rule
    lines: list[tuple[Piece, ...]] = [("repository ", Code(first.repository), f", read {first.read}")]
    for p in first.place:
        lines.append((Code(p.file), literal((f" at {p.commit[:12]}" if p.commit else "") + f": {p.says}")))
    lines += [("assumed: ", literal(a)) for a in first.assumes]
    blocks: list[Block] = [Heading(literal(first.title), 2), Lines.of(*lines, listed=True)]
    for h in held:
        if h.failures or h.undecided:
            where = f"{h.rule.label}, regime {h.regime}, epsilon {h.epsilon}"
            shown = [line for found in (h.failures, h.undecided) for line in summarise_failures(found, "--format json")]
            blocks += [Heading(literal(where), 3), Lines.of(*map(typeset, shown), listed=True)]
    return blocks


def _cell(name: str, power: Power | None, d: Derivation) -> ComparedPower:
    role, _, setting = name.partition(".")
    derived: Power | None
    if not setting:
        derived = 1 / (d.scaling.alpha if name == AGGREGATION else d.scaling.multipliers[name])
    else:
        s = d.scaling.tensors[role]
        derived = {"init": s.init_std, "lr": s.lr, "eps": s.eps}[setting]
    equal = power is derived if power is None or derived is None else power.on(d.ray) == derived.on(d.ray)
    return ComparedPower(name, power, derived, equal)


def _decay(role: str, decay: Power, lr: Power, d: Derivation) -> ComparedPower:
    """Compares a weight decay with 1/lr, the power for which one step shrinks the weights by the same factor at
    every size."""
    return ComparedPower(f"{role}.decay", decay, 1 / lr, decay.on(d.ray) == -lr.on(d.ray))


def _find_failures(d: Derivation, given: Given) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns failed and undecided demands at the derived parameterization with the given powers substituted.

    If the largest monomial found in a quantity that must stay O(1) grows, only such demands are examined, because
    every later quantity grows, too. Otherwise every demand is examined.
    """
    structure = given.structure(find_solution(d.configuration).structure)
    demands = given.relax_demands(d.network, d.configuration.parameterization.list_demands(d.network, structure))
    demands = [x for x in demands if concerns(x, d.optimizer)]
    scaling = given.over(d.scaling)
    look = Analysis(d.ray, scaling.point(d.ray), d.optimizer, d.network)
    if diverging := [x for x in demands if _diverges(x, look)]:
        failures = {x: violation(x, look, certified=False) for x in diverging}
        return tuple(why.reason for _, why in causes_first(failures, d.network)), ()
    failures = {x: violation(x, look) or unfaithful(x, look) for x in demands}
    found = [why for _, why in causes_first(failures, d.network)]
    failed, unsure = (tuple(why.reason for why in found if why.undecided == unknown) for unknown in (False, True))
    return failed, unsure


def _diverges(demand: Demand, look: Analysis) -> bool:
    """Tests whether a demand says that a quantity stays O(1), although the largest monomial found in it grows."""
    times = range(demand.horizon + 1) if demand.kind in ("theta", "bounded") else ()
    sizes = (look(name, t, LEAD).lead for name in demand.quantities for t in times)
    return any(size is not None and size > 0 for size in sizes)
