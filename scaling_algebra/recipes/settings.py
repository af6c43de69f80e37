"""Classes for one number of a recipe, and for a signal that grows although the recipe is followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaling_algebra.spec.powers import Power

from .sizes import Way


@dataclass(frozen=True)
class Setting:
    """One number of one tensor, or one multiplier.

    Attributes:
        rule: the power of the axes that it follows; None for zero init.
        factor: target over base; 0 for zero init.
        base: the tuned value; None if it was not given.
        before: the power that the number follows at the base, if it differs from ``rule``, the power at the target;
            else None.
    """

    rule: Power | None
    factor: float
    base: float | None = None
    before: Power | None = None

    @classmethod
    def of(
        cls, going: Way, before: Power | None, after: Power | None, base: float | None = None, more: float = 1.0
    ) -> Setting:
        """Makes the setting that follows one power at the base and another at the target.

        Args:
            going: base and target sizes.
            before: the power at the base; None for zero init.
            after: the power at the target; None for zero init.
            base: the tuned value.
            more: a further factor, with which the factor of the powers is multiplied.
        """
        if before is None or after is None:
            return cls(None, 0.0, base)
        if before == after:
            return cls(after, after.ratio(going.base, going.target) * more, base)
        return cls(after, after.at(going.target) / before.at(going.base) * more, base, before)

    @property
    def target(self) -> float | None:
        """The number to set; None if no base value was given. Zero init needs none."""
        return 0.0 if self.rule is None else None if self.base is None else self.base * self.factor

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record, with the rule as text."""
        rule = "0" if self.rule is None else str(self.rule)
        record = {"base": self.base, "rule": rule, "factor": self.factor, "target": self.target}
        return record if self.before is None else {**record, "rule_at_base": str(self.before)}


@dataclass(frozen=True)
class Breaks:
    """A signal that grows, because there is no parameterization on the ray of the sizes and powers of a nearby ray are
    used.

    Attributes:
        signal: the signal.
        step: the number of updates after which it is largest.
        growth: the power of the axes with which it grows.
        factor: the factor by which it grows from the base to the target.
    """

    signal: str
    step: int
    growth: Power
    factor: float
