"""The role and the numbers of every parameter of a model, as data: what a plan says, and what formats write.

Read next: ``plans.py`` (sets them on a live module), ``exports.py``, ``presentation.py`` (the coverage report).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizers import Optimizer

from .gates import NO_GATE, Gate
from .shapes import Shape

ONES = ("gain", "final_gain")
"""Roles that start at one; the other vectors start at zero."""
ADJUSTED = ("original", "match_rms_adamw")
"""Factors of a matrix's shape that ``torch.optim.Muon`` has."""


@dataclass(frozen=True)
class Entry:
    """One parameter.

    Attributes:
        name: in the model, without the prefixes of wrappers. role: empty for a frozen one without a role.
        rule: the pattern or label that gave the role. shape: of the tensor. layout: how experts are stored, as the
            library labels it. settings: of the role, at the tensor's own fans. frozen: takes no gradient, and is not
            the optimizer's. group: of the optimizer: the role, with a number where its settings are others.
    """

    name: str
    role: str
    rule: str
    shape: Shape
    layout: str
    settings: Mapping[str, Setting]
    frozen: bool
    group: str = ""


@dataclass(frozen=True, repr=False)
class PlannedNumbers(Rendered):
    """Every parameter of a model with its role and its numbers.

    Attributes:
        model: the module. recipe: where the numbers come from. family: of the configuration; empty where there is none.
        entries: the parameters, tied ones once. aliases: names of tied ones by the name that stays.
        buffers: names; never the optimizer's. multipliers: what is left for the model's code to multiply, by name.
        gate: what weighs the experts. warnings: what the model does not tell, a line each.
    """

    model: nn.Module
    recipe: Recipe
    family: str
    entries: tuple[Entry, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    multipliers: Mapping[str, float] = field(default_factory=dict)
    gate: Gate = NO_GATE
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Entry:
        """The parameter of this name.

        Raises:
            UsageError: the model has none.
        """
        for entry in self.entries:
            if entry.name in (name, self.aliases.get(name)):
                return entry
        raise unknown_name("parameter", name, [e.name for e in self.entries])

    @cached_property
    def trained(self) -> dict[str, list[Entry]]:
        """What the optimizers get, by group."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if not entry.frozen:
                found.setdefault(entry.group, []).append(entry)
        return found

    def optimizer(self, group: str) -> Optimizer:
        """What trains a group."""
        return trainer(self.recipe, self._first(group).role)

    @property
    def optimizers(self) -> dict[str, list[str]]:
        """Groups by the name of what trains them."""
        found: dict[str, list[str]] = {}
        for group in self.trained:
            found.setdefault(self.optimizer(group).name, []).append(group)
        return found

    def value(self, group: str, what: str) -> float:
        """The number to set: ``lr``, ``eps``, ``decay`` or ``init_std`` of a group.

        Raises:
            UsageError: nothing was tuned at the base.
        """
        settings = self._first(group).settings
        if what not in settings:
            raise UsageError(f"{self.optimizer(group).name} has no {what}")
        number = settings[what].target
        if number is None:
            option = {"init_std": "std"}.get(what, what)
            raise UsageError(f"{self._first(group).role} has no {what} at the base; give plan(..., {option}=NUMBER)")
        return number

    def numbers(self, group: str) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay`` of a group, as torch's optimizers name them."""
        settings = self._first(group).settings
        found = {"lr": self.value(group, "lr")}
        if "eps" in settings:
            found["eps"] = self.value(group, "eps")
        if "decay" in settings:
            found["weight_decay"] = 0.0 if settings["decay"].base is None else self.value(group, "decay")
        return found

    def _first(self, group: str) -> Entry:
        if group not in self.trained:
            raise unknown_name("group of parameters", group, self.trained)
        return self.trained[group][0]

    @property
    def about(self) -> str:
        return f"{self.recipe.about}, {len(self.entries)} parameters"


def adjustment(p: PlannedNumbers, group: str) -> dict[str, str]:
    """The factor of the shape as ``torch.optim.Muon`` takes it with a group."""
    shape = p.optimizer(group).shape
    return {"adjust_lr_fn": shape} if shape in ADJUSTED else {}


def trainer(numbers: Recipe, role: str) -> Optimizer:
    """What trains the tensors of a role."""
    return next(d.optimizer.of(role) for d in numbers.derivations if role in d.network.tensors)
