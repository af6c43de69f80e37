"""Rules for batch and tokens from papers and public code, and which invariants each keeps: by substitution.

Read next: ``horizon.toml`` (the rules, with their sources), ``horizon.py`` (what invariants demand).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name

from ..expressions import monomial
from ..monomials import Monomial
from .horizon import AXES, QUANTITIES, Invariant, _data, of

Verdict = Literal["kept", "broken", "silent"]


@dataclass(frozen=True)
class Rule:
    """What somebody does with some quantities.

    Attributes:
        axes: what the rule is about; along others it says nothing.
        powers: of B and T, by quantity.
    """

    name: str
    optimizer: str
    axes: tuple[str, ...]
    powers: Mapping[str, Monomial]
    source: str


@dataclass(frozen=True)
class Check:
    """One monomial of an invariant under a rule.

    Attributes:
        residual: what the rule makes of it, a power of B and T; None where the rule leaves out a quantity.
    """

    rule: Rule
    invariant: Invariant
    fixed: Monomial
    residual: Monomial | None

    @property
    def verdict(self) -> Verdict:
        if self.residual is None:
            return "silent"
        return "broken" if self.residual.powers else "kept"


@dataclass(frozen=True, repr=False)
class RuleAudit(Rendered):
    """Every rule against every invariant of its optimizer."""

    rules: tuple[Rule, ...]
    checks: tuple[Check, ...]

    @property
    def about(self) -> str:
        return f"{len(self.rules)} rules for batch and tokens"

    def document(self) -> Document:
        from .presentation import audit

        return audit(self)


def rules() -> tuple[Rule, ...]:
    """Every rule in the data file."""
    return tuple(read(entry) for entry in _data()["rule"])


def read(entry: Mapping[str, object]) -> Rule:
    """A rule from its entry.

    Raises:
        UsageError: a quantity or axis that is not known, or a power of something else than its axes.
    """
    name, axes, powers = str(entry["name"]), entry["axes"], entry["powers"]
    assert isinstance(axes, list) and isinstance(powers, Mapping)
    found = {}
    for quantity, text in powers.items():
        if quantity not in QUANTITIES:
            raise unknown_name(f"quantity in the rule {name!r}", quantity, QUANTITIES)
        found[quantity] = monomial(text)
        if not found[quantity].quantities <= set(axes) <= set(AXES):
            raise UsageError(f"the rule {name!r} has {quantity} = {text}; give powers of its axes {', '.join(axes)}")
    return Rule(name, str(entry["optimizer"]), tuple(axes), found, str(entry["source"]))


def check(rule: Rule, invariant: Invariant) -> list[Check]:
    """What a rule makes of the monomials of an invariant."""
    found = []
    for fixed in invariant.fixed:
        asked = fixed.quantities & set(QUANTITIES)
        residual = None
        if asked <= set(rule.powers):
            whole = fixed.substituted(rule.powers)
            residual = Monomial.of({axis: whole[axis] for axis in rule.axes})
        found.append(Check(rule, invariant, fixed, residual))
    return found


def audit(some: Iterable[Rule] | None = None) -> RuleAudit:
    """Rules, by default all that are known, against the invariants of their optimizers.

    Examples:
        >>> [c.invariant.name for c in audit().checks if c.rule.name == "Power Lines" and c.verdict == "kept"]
        ['timescale']
    """
    chosen = tuple(rules() if some is None else some)
    return RuleAudit(chosen, tuple(c for rule in chosen for i in of(rule.optimizer).values() for c in check(rule, i)))
