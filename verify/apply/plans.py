"""Initial values, groups and exports of every parameter of a live ``nn.Module``: ``Plan``.

Read next: ``planning.py`` (makes one), ``numbers.py`` (what it says), ``exports.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.recipes.recipe import VECTORS

from .exports import export
from .numbers import ONES, Entry, PlannedNumbers, adjustment

_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class Plan(PlannedNumbers):
    """Every parameter of a model with its role and its numbers, to set on the model; attributes as of the numbers."""

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

    def export(self, form: str, dropping: Sequence[str] = ()) -> str:
        """The numbers as the text that a trainer reads.

        Args:
            form: torchtitan, megatron, olmo-core, hf, nemo-automodel, axolotl or deepspeed.
            dropping: what may be left out: ``lr``, ``eps``, ``wd``, ``init``, ``multiplier``.

        Raises:
            UsageError: the format cannot carry something that is not to be dropped.
        """
        return export(self, form, dropping)

    def _parameters(self, model: nn.Module) -> Iterator[tuple[Entry, nn.Parameter]]:
        there = {plain_name(name): p for name, p in model.named_parameters()}
        for entry in self.entries:
            if not entry.frozen:
                if entry.name not in there:
                    raise UsageError(f"the model has no parameter {entry.name}; make a plan of this model")
                yield entry, there[entry.name]


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of DDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def generator_of(generator: torch.Generator | None) -> dict[str, Any]:
    """As a keyword: sharded tensors take none."""
    return {} if generator is None else {"generator": generator}
