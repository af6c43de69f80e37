"""Groups of a plan: parameters with the same numbers, and what trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizers import Optimizer

from .modules import Entry, apart

ADJUSTED = ("original", "match_rms_adamw")
"""Factors of a matrix's shape that ``torch.optim.Muon`` has."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same numbers, and what trains them.

    Attributes:
        tied: all experts start alike.

    Raises:
        UsageError: of every number: nothing was tuned at the base, or parts of a parameter have different ones.
    """

    name: str
    optimizer: Optimizer
    entries: Sequence[Entry]
    tied: bool

    @property
    def names(self) -> list[str]:
        return [e.name for e in self.entries]

    def value(self, what: str) -> float:
        """The number to set: ``lr``, ``eps``, ``decay`` or ``init_std``."""
        if what not in self.entries[0].settings:
            raise UsageError(f"{self.name}: its parts differ in {what}; {apart(self.entries[0])}")
        number = self.entries[0].settings[what].target
        if number is None:
            option = {"init_std": "std"}.get(what, what)
            raise UsageError(f"{self.name} has no {what} at the base; give plan(..., {option}=NUMBER)")
        return number

    @property
    def std(self) -> float:
        """The standard deviation of the initial values, or 0."""
        return 0.0 if self.fill is not None else self.value("init_std")

    @property
    def fill(self) -> float | None:
        """The value that every entry starts with, if they start alike."""
        return self.entries[0].fill

    @property
    def numbers(self) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay``, as torch's optimizers name them; no decay where none was tuned."""
        settings = self.entries[0].settings
        has = set(settings).union(*self.entries[0].parts.values())
        values: dict[str, float] = {what: self.value(what) for what in ("lr", "eps") if what in has}
        if "decay" in has:
            values["weight_decay"] = (
                0.0 if "decay" in settings and settings["decay"].base is None else self.value("decay")
            )
        return values

    @property
    def keywords(self) -> dict[str, float | str]:
        """The numbers, and the factor of the shape as ``torch.optim.Muon`` takes it."""
        shape = self.optimizer.shape
        return {**self.numbers, **({"adjust_lr_fn": shape} if shape in ADJUSTED else {})}
