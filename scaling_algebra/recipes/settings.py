"""One number of a recipe, and what a recipe does not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaling_algebra.spec.powers import Power

from .sizes import Way


@dataclass(frozen=True)
class Setting:
    """One number of one tensor, or one multiplier.

    Attributes:
        rule: the power of the axes it follows; None is zero init.
        factor: target over base; 0 for zero init.
        base: what was tuned; None where it was not given.
        before: the power at the base, where that is another one.
    """

    rule: Power | None
    factor: float
    base: float | None = None
    before: Power | None = None

    @classmethod
    def of(
        cls, going: Way, before: Power | None, after: Power | None, base: float | None = None, more: float = 1.0
    ) -> Setting:
        """The setting that follows one power at the base and another at the target; ``more`` is one more factor."""
        if before is None or after is None:
            return cls(None, 0.0, base)
        if before == after:
            return cls(after, after.ratio(going.base, going.target) * more, base)
        return cls(after, after.at(going.target) / before.at(going.base) * more, base, before)

    @property
    def target(self) -> float | None:
        """The number to set; None where no base value was given. Zero init needs none."""
        return 0.0 if self.rule is None else None if self.base is None else self.base * self.factor

    def as_json(self) -> dict[str, Any]:
        """JSON: the rule as a text."""
        rule = "0" if self.rule is None else str(self.rule)
        record = {"base": self.base, "rule": rule, "factor": self.factor, "target": self.target}
        return record if self.before is None else {**record, "rule_at_base": str(self.before)}


@dataclass(frozen=True)
class Breaks:
    """A signal that grows on this ray, with the powers of the nearest one that has a parameterization.

    Attributes:
        signal: which one. step: after how many updates it is largest. growth: the power that it grows as.
        factor: by which it grows from the base to the target.
    """

    signal: str
    step: int
    growth: Power
    factor: float
