"""Rules for batch and tokens from papers and public code, and which invariants each keeps: by substitution.

Read next: ``horizon.toml`` (the rules, with their sources), ``horizon.py`` (what invariants demand).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Grid, Heading, literal
from scaling_algebra.laws.monomials import Monomial

from .horizon import QUANTITIES, Invariant, PublishedRule, data, of, strings, text


@dataclass(frozen=True)
class RuleCheck:
    """One monomial of an invariant under a rule.

    Attributes:
        residual: what the rule makes of it, a power of B and T; None where the rule leaves out a quantity.
    """

    rule: PublishedRule
    invariant: Invariant
    fixed: Monomial
    residual: Monomial | None

    @property
    def verdict(self) -> str:
        """``kept``, ``broken``, or ``silent`` where the rule leaves out a quantity."""
        return "silent" if self.residual is None else "broken" if self.residual.powers else "kept"

    def __str__(self) -> str:
        return text(self.fixed) + (f" becomes {self.residual}" if self.verdict == "broken" else "")


@dataclass(frozen=True, repr=False)
class RuleAudit(Rendered):
    """Every rule against every invariant of its optimizer."""

    rules: tuple[PublishedRule, ...]
    checks: tuple[RuleCheck, ...]

    @property
    def about(self) -> str:
        return f"{len(self.rules)} rules for batch and tokens"

    def document(self) -> Document:
        """For every rule and invariant what is kept, what is broken and how, what the rule is silent about."""
        about = []
        for r in self.rules:
            powers = ", ".join(f"{text(q)} {m}" for q, m in r.powers.items())
            about.append((r.name, r.optimizer, ", ".join(r.axes), literal(powers), literal(r.source)))
        rows = []
        for rule, invariant in dict.fromkeys((c.rule.name, c.invariant.name) for c in self.checks):
            of_both = [c for c in self.checks if (c.rule.name, c.invariant.name) == (rule, invariant)]
            if {c.verdict for c in of_both} != {"silent"}:
                cells = (", ".join(str(c) for c in of_both if c.verdict == v) for v in ("kept", "broken", "silent"))
                rows.append([rule, invariant, *(literal(cell) or None for cell in cells)])
        blocks = (
            Heading("rules for batch and tokens, and the invariants they keep", 2),
            Grid.of(["rule", "optimizer", "about", "powers", "source"], about),
            Grid.of(["rule", "invariant", "kept", "broken", "says nothing of"], rows),
        )
        return Document(blocks, {"rules": [self._record(r) for r in self.rules]})

    def _record(self, r: PublishedRule) -> dict[str, object]:
        return {
            "rule": r.name,
            "optimizer": r.optimizer,
            "axes": list(r.axes),
            "powers": {text(q): strings(m) for q, m in r.powers.items()},
            "source": r.source,
            "checks": [
                {"invariant": c.invariant.name, "monomial": text(c.fixed), "verdict": c.verdict,
                 "residual": None if c.residual is None else strings(c.residual)}
                for c in self.checks if c.rule is r
            ],
        }  # fmt: skip


def audit(rules: Iterable[PublishedRule] | None = None) -> RuleAudit:
    """Rules, by default all that are known, against the invariants of their optimizers.

    Examples:
        >>> [c.invariant.name for c in audit().checks if c.rule.name == "Power Lines" and c.verdict == "kept"]
        ['timescale']
    """
    chosen, checks = data().rule if rules is None else tuple(rules), []
    for rule, invariant, fixed in ((r, i, m) for r in chosen for i in of(r.optimizer).values() for m in i.fixed):
        whole = fixed.substituted(rule.powers)
        left_out = fixed.quantities & set(QUANTITIES) - set(rule.powers)
        residual = None if left_out else Monomial.of({axis: whole[axis] for axis in rule.axes})
        checks.append(RuleCheck(rule, invariant, fixed, residual))
    return RuleAudit(chosen, tuple(checks))
