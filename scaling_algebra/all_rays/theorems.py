"""What holds for whole cones of rays, each statement with its proof or with what stands in the way.

The cells and walls of the map say what to prove. That a formula meets every demand on a cone is seen at the rays that
span it (``solver/cones.py``), that nothing else does, or nothing at all, is one unsatisfiable system for all its rays
(``queries.py``); and one more says that no ray is left out.
Read next: ``claims.py`` (what there is to prove), ``presentation.py`` (how theorems are printed).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, shown, unknown_name
from scaling_algebra.phase_map.phases import phases
from scaling_algebra.proofs.prover import EPSILON, Outcome, provable
from scaling_algebra.proofs.smtlib import RESET, script
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.optimizers import optimizer as _optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.parameterizations import parameterization as _parameterization

from .claims import STEPS, Claim, claims
from .queries import Decision


@dataclass(frozen=True)
class Theorem:
    """A claim about all rays of a cone, and what was found."""

    claim: Claim
    decision: Decision


@dataclass(frozen=True, repr=False)
class Theorems(Rendered):
    """What is proved about one parameterization and optimizer."""

    parameterization: Parameterization
    optimizer: Optimizer
    items: tuple[Theorem, ...]

    @property
    def proved(self) -> bool | None:
        """All of them are; False if one is refuted, None if one is undecided."""
        verdicts = {x.decision.verdict for x in self.items}
        return False if "refuted" in verdicts else None if "undecided" in verdicts else True

    def __getitem__(self, name: str) -> Theorem:
        """The theorem with a name.

        Raises:
            UsageError: there is none.
        """
        found = {x.claim.name: x for x in self.items}
        if name not in found:
            raise unknown_name("theorem", name, found)
        return found[name]

    @property
    def about(self) -> str:
        return f"{self.parameterization.title}, {self.optimizer.name}, {MOE_BLOCK.title}"

    def reading(self) -> tuple[str, ...]:
        """What all theorems share: assumptions and horizon."""
        lines = [
            "axes grow as n^N, n^N_e, n^M with K = M; a rate stands for its axis",
            "sizes are powers of n: init std n^-b, learning rate n^-c, aggregation multiplier n^-alpha",
            f"O(1) is demanded at t = 0 .. {STEPS[0]}, Theta(1) at some t <= {STEPS[1]}",
            "one sample, linear activations, gates held at mean and slope",
        ]
        if self.optimizer.epsilon:
            lines.append("c is the exponent of learning rate over epsilon (c - d): mu-3 makes epsilon the normaliser")
        return tuple(lines)

    def scripts(self) -> str:
        """The unsatisfiable systems as SMT-LIB 2, one script each, for another solver to check."""
        made = []
        for x in self.items:
            if x.decision.clauses:
                outcome = Outcome(Structure(), "impossible", clauses=x.decision.clauses)
                claim = f"{x.claim.name}: {said(x.claim)} ({self.about})"
                made.append(script(outcome, claim, (*self.reading(), _NAMES)))
        return RESET.join(made)

    def as_json(self) -> dict[str, Any]:
        """The JSON contract of ``scalecalc theorems``."""
        return {
            "parameterization": self.parameterization.name,
            "optimizer": self.optimizer.name,
            "steps": {"O(1)": STEPS[0], "Theta(1)": STEPS[1]},
            "proved": self.proved,
            "theorems": [
                {
                    "name": x.claim.name,
                    "statement": said(x.claim),
                    "rays": [str(side) for side in x.claim.sides],
                    "fixed": sorted(x.claim.fixed),
                    "verdict": x.decision.verdict,
                    "core": list(x.decision.core),
                    "clauses": len(x.decision.clauses),
                    "why": x.decision.why or None,
                }
                for x in self.items
            ],
        }

    def document(self) -> Document:
        from .presentation import theorems

        return theorems(self)


_NAME = re.compile(r"(([A-Z][0-9]*|[a-z]) (exists|unique|none)|cover)(, M fixed)?|none: [\w ,]+")
_NAMES = "size.SIGNAL: the change of the signal at t = 2 is n^-size.SIGNAL; log QUANTITY: its exponent"


def said(claim: Claim) -> str:
    """The statement in one sentence."""
    grow = "M is fixed and the other axes grow" if "M" in claim.fixed else "M grows"
    if not claim.sides:
        return f"where {grow}, {claim.about}"
    return f"where {', '.join(map(str, claim.sides))} and {grow}: {claim.about}"


def theorems(
    optimizer: str = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    *,
    only: Sequence[str] = (),
    epsilon: str | None = None,
) -> Theorems:
    """Prove what the map of rays shows, for whole cones of rays.

    Args:
        only: names of theorems, e.g. ``["B unique"]``; all without any.
        epsilon: regime of the optimizer's epsilon.

    Raises:
        UsageError: an unknown name, or an optimizer that proofs do not reach.
    """
    rule, stepper = _parameterization(parameterization), _optimizer(optimizer)
    stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
    rule.check_derived(MOE_BLOCK)
    if reason := provable(MOE_BLOCK, REGIMES["III"], stepper):
        raise UsageError(f"cannot prove: {reason}")
    wanted = [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise UsageError(f"no theorem is called {shown(name)}; names are such as 'B unique', 'cover', 'a exists'")
    known = claims(phases(optimizer, parameterization, epsilon=epsilon))
    for name in wanted:
        if name not in known:
            raise unknown_name("theorem", name, known)
    return Theorems(rule, stepper, tuple(decided(known[name], stepper) for name in wanted or known))


def decided(claim: Claim, optimizer: Optimizer) -> Theorem:
    """A claim with what is found of it; with an epsilon mu-3 is behind it, too, so that a run is one of descent."""
    found = claim.decide()
    if found.core and optimizer.epsilon:
        found = Decision(found.verdict, (*found.core, EPSILON), found.clauses, found.why)
    return Theorem(claim, found)
