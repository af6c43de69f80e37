"""Initial values, groups and exports of every parameter of a live ``nn.Module``: ``Plan``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from warnings import warn

import torch
from torch import nn

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.recipes.recipe import POWER, Recipe
from scaling_algebra.spec.level import Level
from scaling_algebra.spec.optimizers import Optimizer

from .exports import ParameterGroup, export, iterate_rows
from .modules import Entry, find_weight_norms, get_parameters, sample_buffers

FEW = 4
"""Maximum number of buffers that a message names."""


@dataclass(frozen=True, repr=False)
class Plan(Rendered):
    """The numbers of every parameter of a model, to be set on the model.

    Attributes:
        model: the module.
        recipe: where the numbers come from.
        entries: the parameters, shared ones once.
        aliases: other names of shared parameters: alias -> first name.
        buffers: names of the buffers, which no optimizer gets.
        multipliers: by name, the factor by which the model's code still has to multiply; 1 if it need not change.
        warnings: what the user should look at, one line each.
        starts: for buffers that are not saved in checkpoints, their first entries in the planned model, or, if that has
            no values there (meta device), in a small one. They show whether such a buffer lost its values.
    """

    model: nn.Module
    recipe: Recipe
    entries: tuple[Entry, ...]
    aliases: Mapping[str, str]
    buffers: tuple[str, ...]
    multipliers: Mapping[str, float]
    warnings: tuple[str, ...]
    starts: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Entry:
        """Returns the parameter of this name or alias.

        Raises:
            UsageError: the model has none.
        """
        for entry in self.entries:
            if entry.name in (name, self.aliases.get(name)):
                return entry
        raise unknown_name_error("parameter", name, [e.name for e in self.entries])

    @cached_property
    def groups(self) -> dict[str, ParameterGroup]:
        """The parameter groups, by name."""
        trained: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if not entry.frozen:
                trained.setdefault(entry.group, []).append(entry)
        return {name: self._group(name, entries) for name, entries in trained.items()}

    def _group(self, name: str, entries: list[Entry]) -> ParameterGroup:
        role, others = entries[0].role, [e.name for e in self.entries if e.frozen or e.group != name]
        return ParameterGroup(name, entries[0].rules[role], entries, others, role in self.recipe.tied)

    @property
    def optimizers(self) -> dict[str, list[str]]:
        """Names of the groups, by the optimizer that trains them."""
        groups: dict[str, list[str]] = {}
        for name, group in self.groups.items():
            for rule in group.rules:
                groups.setdefault(rule, []).append(name)
        return groups

    def init_(self, model: nn.Module | None = None, generator: torch.Generator | None = None) -> nn.Module:
        """Draws every trainable parameter again, with the init std of its group (or of its parts) at the target.

        Vectors with one value (gains, biases) keep it, and parameters whose values do not look like random draws with
        mean zero keep these. A weight norm is set to the norm of the drawn matrix. Buffers are not touched; a warning
        names those that ``to_empty`` left without values.

        Args:
            model: the planned module, or one with the same names (sharded, compiled, or a copy).
            generator: for the draws; not for sharded tensors.

        Returns:
            The model.

        Raises:
            UsageError: no std was given for the base, the model has other parameter names or is on the meta device, or
                experts that should start alike are not stacked in one tensor.
        """
        model = self.model if model is None else model
        stds = {name: group.stds for name, group in self.groups.items()}
        drawn: Any = {} if generator is None else {"generator": generator}  # sharded tensors do not accept a generator
        if away := [entry.name for entry, p in self._parameters(model) if p.is_meta]:
            do = "give init_ the model after to_empty(device=...)"
            if self.buffers:
                do = "build the model on its device, not by to_empty, which leaves no values in its buffers: "
                do += ", ".join(self.buffers[:FEW]) + (", ..." if self.buffers[FEW:] else "")
            raise UsageError(f"{away[0]} is on the meta device, which holds no values; {do}")
        if lost := [name for name, x in sample_buffers(model).items() if _is_changed(x, self.starts.get(name))]:
            warn(
                f"{', '.join(lost[:FEW])}: init_ sets no buffers, and these differ from those of the planned or tuned "
                "model; to_empty leaves no values in them: build the model on its device",
                stacklevel=2,
            )
        with torch.no_grad():
            for entry, whole in ((e, p) for e, p in self._parameters(model) if not e.kept):
                for part, std in stds[entry.group].items():
                    p = whole.narrow(*entry.spans[part]) if part else whole
                    if std == 0:
                        p.fill_(entry.fill or 0.0)
                    elif not self.groups[entry.group].tied:
                        p.normal_(0.0, std, **drawn)
                    elif p.dim() == 3:
                        p.copy_(torch.empty_like(p[0]).normal_(0.0, std, **drawn).expand_as(p))
                    else:
                        raise UsageError(
                            f"{entry.name} must start alike for all experts, but is not one tensor with all experts "
                            "stacked; stack them"
                        )
            for _, norm, drawn_norm in find_weight_norms(model):
                norm.copy_(drawn_norm)
        return model

    def param_groups(self, model: nn.Module | None = None, optimizer: str | None = None) -> list[dict[str, Any]]:
        """Returns parameter groups for an optimizer of torch.

        Each has ``params``, ``param_names``, ``name``, ``lr``, and, as the optimizer takes them, ``eps``,
        ``weight_decay`` (0 where none was tuned) and ``adjust_lr_fn``.

        Args:
            model: the planned module, or one with the same names (sharded, compiled, or a copy).
            optimizer: which optimizer's groups, where there are two: ``"muon"`` or ``"adamw"``.

        Raises:
            UsageError: no learning rate or epsilon was given for the base, the model has other parameter names, or
                there are several optimizers and none was chosen.
        """
        names = [name for name in self.optimizers if optimizer in (None, name, name.partition(":")[0])]
        if optimizer is not None and not names:
            raise unknown_name_error("optimizer of this plan", optimizer, self.optimizers)
        if len(names) > 1:
            listed = " and ".join(f"param_groups(optimizer={name!r})" for name in names)
            raise UsageError(
                f"this plan uses {len(names)} optimizers; call param_groups once for each, with optimizer={listed}"
            )
        by_name = {entry.name: p for entry, p in self._parameters(self.model if model is None else model)}
        return [
            {"name": name, "params": [by_name[x] for x in group.names], "param_names": group.names, **group.keywords}
            for name, group in self.groups.items()
            if not {*names}.isdisjoint(group.rules)
        ]

    def export(
        self, form: str, dropping: Sequence[str] = (), names: Mapping[str, str | Sequence[str]] | None = None
    ) -> str:
        """Returns the numbers as the text that a trainer reads.

        Args:
            form: torchtitan, megatron, olmo-core or nemo-automodel.
            dropping: what may be left out: ``lr``, ``eps``, ``wd``, ``init``, ``multiplier``.
            names: by group of this plan, its names in the trainer's module, with ``*`` for numbers; by default those of
                the planned module, which then must be the trainer's own.

        Raises:
            UsageError: the format cannot carry a number that may not be dropped; or the model is one of transformers,
                megatron has other names, and no ``names`` are given.
        """
        multiplied = any(x != 1 for x in self.multipliers.values())
        model = type(self.model).__name__
        whose = f"names are those of {model}" if names is None else f"names as given for those of {model}"
        foreign = model if hasattr(getattr(self.model, "config", None), "model_type") else ""
        about = "\n# ".join([self.about, whose, *self.recipe.by_run])
        return export(form, about, list(self.groups.values()), multiplied, dropping, foreign, names)

    def as_rows(self) -> list[dict[str, Any]]:
        """Returns the rows of a data frame: one per parameter, or per part where parts differ in initial values or
        rates. The column ``undecided`` counts the undecided demands on the parameter."""
        level = {} if self.level is None else {"level": str(self.level)}
        own = Counter(x.tensor.partition("[")[0] for x in self.level.open) if self.level else Counter[str]()
        rows = [
            {**row, "undecided": own[e.group]}
            for e in self.entries
            for row in iterate_rows(e, None if e.frozen else self.groups[e.group])
        ]
        return [{**row, **self._betas(row.get("optimizer", "")), **level} for row in rows]

    def _betas(self, optimizer: str) -> dict[str, float]:
        """Returns how the betas of an optimizer change from base to target with batch size and number of tokens.

        An entry such as ``one_minus_beta2_factor`` is the factor on 1 - beta2; an entry such as ``beta2_power`` is the
        power to which beta2 is raised instead.
        """
        run = self.recipe.run.get(optimizer, {})
        factors = {f"{name}_factor": x for name, x in run.items() if name.startswith("one_minus")}
        return factors | {name: x for name, x in run.items() if name.endswith(POWER)}

    @property
    def about(self) -> str:
        return f"{self.recipe.about}, {len(self.entries)} parameters"

    @property
    def level(self) -> Level | None:
        """How much of the plan's powers is proved (certified, by shape, ...)."""
        return self.recipe.level

    def _parameters(self, model: nn.Module) -> Iterator[tuple[Entry, nn.Parameter]]:
        by_name = get_parameters(model)
        for entry in self.entries:
            if not entry.frozen:
                if entry.name not in by_name:
                    raise UsageError(f"the model has no parameter {entry.name}; make a plan of this model")
                mine, planned = list((found := by_name[entry.name]).shape), list(entry.shape)
                if mine != planned and found.numel():  # a sharded tensor may have no entries on this process
                    raise UsageError(
                        f"{entry.name} has shape {mine} in this model but {planned} in the plan; make a plan of this "
                        "model"
                    )
                yield entry, found


def _is_changed(x: torch.Tensor, start: torch.Tensor | None) -> bool:
    """Whether a buffer differs from its initial values by more than rounding; false if these are unknown (None) or
    have another shape.
    """
    if start is None or x.shape != start.shape:
        return False
    return not torch.allclose(x.double().cpu(), start.double().cpu(), rtol=1e-2, atol=1e-6)


def find_optimizer(numbers: Recipe, role: str) -> Optimizer:
    """Returns the optimizer of the tensor ``role``."""
    return next(d.optimizer.of(role) for d in numbers.derivations if role in d.network.tensors)
