"""Role, numbers, initial values and groups of every parameter of a live ``nn.Module``: ``Plan``.

Read next: ``planning.py`` (makes one), ``presentation.py`` (the coverage report), ``exports.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.recipes.recipe import VECTORS, Recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizers import Optimizer

from .gates import NO_GATE, Gate
from .shapes import Shape

ONES = ("gain", "final_gain")
"""Roles that start at one; the other vectors start at zero."""
ADJUSTED = ("original", "match_rms_adamw")
"""Factors of a matrix's shape that ``torch.optim.Muon`` has."""
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


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
class Plan(Rendered):
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

    def init_(self, model: nn.Module | None = None, generator: torch.Generator | None = None) -> nn.Module:
        """Draws every trained parameter anew: normal with the std of its group at the target; gains 1, biases 0.

        Args:
            model: the one of the plan, or one with the same names (sharded, compiled, or a copy).

        Raises:
            UsageError: no std at the base, other names, or experts to tie that are not stored in one tensor.
        """
        model = self.model if model is None else model
        stds = {
            group: 0.0 if entries[0].role in VECTORS else self.value(group, "init_std")
            for group, entries in self.trained.items()
        }
        drawn = generator_of(generator)
        with torch.no_grad():
            for entry, p in self._parameters(model):
                if entry.role in ONES:
                    p.fill_(1.0)
                elif stds[entry.group] == 0:
                    p.zero_()
                elif entry.role in self.recipe.tied:
                    if p.dim() != 3:
                        raise UsageError(f"{entry.name} is to start alike for all experts, but is no stack of them")
                    p.copy_(torch.empty_like(p[0]).normal_(0.0, stds[entry.group], **drawn).expand_as(p))
                else:
                    p.normal_(0.0, stds[entry.group], **drawn)
        return model

    def param_groups(self, model: nn.Module | None = None, optimizer: str | None = None) -> list[dict[str, Any]]:
        """Groups for an optimizer of torch: ``params``, ``param_names``, ``name``, ``lr``, and as the optimizer has
        them ``eps`` and ``weight_decay`` (0 where no decay was tuned), or ``adjust_lr_fn``.

        Args:
            model: the one of the plan, or one with the same names (sharded, compiled, or a copy).
            optimizer: whose groups, where there are two: ``"muon"`` or ``"adamw"``.

        Raises:
            UsageError: no learning rate or epsilon at the base, other names, or not one optimizer.
        """
        names = [name for name in self.optimizers if optimizer in (None, name, name.partition(":")[0])]
        if optimizer is not None and not names:
            raise unknown_name("optimizer of this plan", optimizer, self.optimizers)
        if len(names) > 1:
            listed = " and ".join(f"param_groups(optimizer={name!r})" for name in names)
            raise UsageError(f"{len(names)} optimizers train this model; give {listed} to one each")
        chosen = {group for name in names for group in self.optimizers[name]}
        groups: dict[str, dict[str, Any]] = {}
        for entry, p in self._parameters(self.model if model is None else model):
            if entry.group in chosen:
                if entry.group not in groups:
                    numbers = {**self.numbers(entry.group), **adjustment(self, entry.group)}
                    groups[entry.group] = {"name": entry.group, "params": [], "param_names": [], **numbers}
                groups[entry.group]["params"].append(p)
                groups[entry.group]["param_names"].append(entry.name)
        return list(groups.values())

    def numbers(self, group: str) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay`` of a group, as torch's optimizers name them."""
        settings = self._first(group).settings
        found = {"lr": self.value(group, "lr")}
        if "eps" in settings:
            found["eps"] = self.value(group, "eps")
        if "decay" in settings:
            found["weight_decay"] = 0.0 if settings["decay"].base is None else self.value(group, "decay")
        return found

    def export(self, form: str, dropping: Sequence[str] = ()) -> str:
        """The numbers as the text that a trainer reads.

        Args:
            form: torchtitan, megatron, olmo-core, hf, nemo-automodel, axolotl or deepspeed.
            dropping: what may be left out: ``lr``, ``eps``, ``wd``, ``init``, ``multiplier``.

        Raises:
            UsageError: the format cannot carry something that is not to be dropped.
        """
        from .exports import export

        return export(self, form, dropping)

    def _first(self, group: str) -> Entry:
        if group not in self.trained:
            raise unknown_name("group of parameters", group, self.trained)
        return self.trained[group][0]

    def _parameters(self, model: nn.Module) -> Iterator[tuple[Entry, nn.Parameter]]:
        there = {plain_name(name): p for name, p in model.named_parameters()}
        for entry in self.entries:
            if not entry.frozen:
                if entry.name not in there:
                    raise UsageError(f"the model has no parameter {entry.name}; make a plan of this model")
                yield entry, there[entry.name]

    @property
    def about(self) -> str:
        return f"{self.recipe.about}, {len(self.entries)} parameters"

    def document(self) -> Document:
        from .presentation import coverage

        return coverage(self)


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of DDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def generator_of(generator: torch.Generator | None) -> dict[str, Any]:
    """As a keyword: sharded tensors take none."""
    return {} if generator is None else {"generator": generator}


def adjustment(p: Plan, group: str) -> dict[str, str]:
    """The factor of the shape as ``torch.optim.Muon`` takes it with a group."""
    shape = p.optimizer(group).shape
    return {"adjust_lr_fn": shape} if shape in ADJUSTED else {}


def trainer(numbers: Recipe, role: str) -> Optimizer:
    """What trains the tensors of a role."""
    return next(d.optimizer.of(role) for d in numbers.derivations if role in d.network.tensors)
