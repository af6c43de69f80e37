"""A recipe on a live ``nn.Module``: the role and the numbers of every parameter, initial values, groups: ``plan``.

Roles come from the user's patterns, from labels of modules (``scaling_roles``, a dict by parameter name), or from the
table of the model's family; never from shapes. Read next: ``families.toml``, ``presentation.py`` (the coverage
report), ``exports.py``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from scaling_algebra.arguments import checked
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, shown, unknown_name
from scaling_algebra.recipes.recipe import VECTORS, Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes

from .families import Family, family

LABEL = "scaling_roles"
"""Attribute of a module: the role of each of its own parameters, by name."""
ONES = ("gain", "final_gain")
"""Roles that start at one; the other vectors start at zero."""
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


@dataclass(frozen=True)
class Entry:
    """One parameter.

    Attributes:
        name: in the model, without the prefixes of wrappers. role: empty for a frozen one without a role.
        rule: the pattern or label that gave the role. shape: of the tensor. layout: how experts are stored, as the
            library labels it. settings: of the role. frozen: takes no gradient, and is not the optimizer's.
    """

    name: str
    role: str
    rule: str
    shape: tuple[int, ...]
    layout: str
    settings: Mapping[str, Setting]
    frozen: bool


@dataclass(frozen=True, repr=False)
class Plan(Rendered):
    """Every parameter of a model with its role and its numbers.

    Attributes:
        model: the module. recipe: where the numbers come from. family: whose table was read; None: patterns only.
        entries: the parameters, tied ones once. aliases: names of tied ones by the name that stays.
        buffers: names; never the optimizer's. multipliers: what is left for the model's code to multiply, by name.
    """

    model: nn.Module
    recipe: Recipe
    family: Family | None
    entries: tuple[Entry, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    multipliers: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Entry:
        """The parameter of this name.

        Raises:
            UsageError: the model has none.
        """
        for entry in self.entries:
            if entry.name in (name, self.aliases.get(name)):
                return entry
        raise unknown_name("parameter", name, [e.name for e in self.entries])

    @property
    def trained(self) -> dict[str, list[Entry]]:
        """What the optimizer gets, by role."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if not entry.frozen:
                found.setdefault(entry.role, []).append(entry)
        return found

    def value(self, role: str, what: str) -> float:
        """The number to set: ``lr``, ``eps``, ``decay`` or ``init_std`` of a role.

        Raises:
            UsageError: nothing was tuned at the base.
        """
        settings = self.recipe[role]
        if what not in settings:
            raise UsageError(f"{self.recipe.configuration.optimizer.name} has no {what}")
        number = settings[what].target
        if number is None:
            option = {"init_std": "std"}.get(what, what)
            raise UsageError(f"{role} has no {what} at the base; give plan(..., {option}=NUMBER)")
        return number

    def init_(self, model: nn.Module | None = None, generator: torch.Generator | None = None) -> nn.Module:
        """Draws every trained parameter anew: normal with the std of its role at the target; gains 1, biases 0.

        Args:
            model: the one of the plan, or one with the same names (sharded, compiled, or a copy).

        Raises:
            UsageError: no std at the base, other names, or experts to tie that are not stored in one tensor.
        """
        model = self.model if model is None else model
        stds = {r: 0.0 if r in VECTORS else self.value(r, "init_std") for r in self.trained}
        drawn = generator_of(generator)
        with torch.no_grad():
            for entry, p in self._parameters(model):
                if entry.role in ONES:
                    p.fill_(1.0)
                elif stds[entry.role] == 0:
                    p.zero_()
                elif entry.role in self.recipe.tied:
                    if p.dim() != 3:
                        raise UsageError(f"{entry.name} is to start alike for all experts, but is no stack of them")
                    p.copy_(torch.empty_like(p[0]).normal_(0.0, stds[entry.role], **drawn).expand_as(p))
                else:
                    p.normal_(0.0, stds[entry.role], **drawn)
        return model

    def param_groups(self, model: nn.Module | None = None) -> list[dict[str, Any]]:
        """Groups for an optimizer of torch, one for each role: ``params``, ``param_names``, ``name``, ``lr``, and as
        the optimizer has them ``eps`` and ``weight_decay`` (0 where no decay was tuned).

        Args:
            model: the one of the plan, or one with the same names (sharded, compiled, or a copy).

        Raises:
            UsageError: no learning rate or epsilon at the base, or other names.
        """
        groups: dict[str, dict[str, Any]] = {}
        for entry, p in self._parameters(self.model if model is None else model):
            if entry.role not in groups:
                groups[entry.role] = {"name": entry.role, "params": [], "param_names": [], **self.numbers(entry.role)}
            groups[entry.role]["params"].append(p)
            groups[entry.role]["param_names"].append(entry.name)
        return list(groups.values())

    def numbers(self, role: str) -> dict[str, float]:
        """``lr``, ``eps`` and ``weight_decay`` of a role, as torch's optimizers name them."""
        settings = self.recipe[role]
        found = {"lr": self.value(role, "lr")}
        if "eps" in settings:
            found["eps"] = self.value(role, "eps")
        if "decay" in settings:
            found["weight_decay"] = 0.0 if settings["decay"].base is None else self.value(role, "decay")
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


@checked
def plan(
    model: nn.Module,
    base: str | Sizes | Recipe,
    target: str | Sizes | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    **given: Any,
) -> Plan:
    """The role and the numbers of every parameter of a model.

    Args:
        model: at the target size, on any device, also ``meta``.
        base, target: sizes as for ``recipe``; or a Recipe.
        roles: role by regular expression on parameter names (``re.search``, first match); they go before labels of
            modules and the table of the family (``model.config.model_type``).
        given: for ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer``, ``parameterization``, ...

    Raises:
        UsageError: a parameter without a role, an unknown role, a pattern that matches nothing, a family that is not
            known, experts in the sizes and none in the model, a gauge with multipliers of tensors, or what ``recipe``
            raises.
    """
    if isinstance(base, Recipe):
        if target is not None or given:
            raise UsageError("a Recipe has its sizes and values; leave out target and values")
        numbers = base
    elif target is None:
        raise UsageError("give the sizes of the target, or a Recipe")
    else:
        numbers = recipe(base, target, **given)
    multiplied = next((role for role, settings in numbers.tensors.items() if "multiplier" in settings), None)
    if multiplied is not None:
        raise UsageError(f"a plan sets no multiplier, and {multiplied} has one in this gauge; take the gauge table3")
    kind = getattr(getattr(model, "config", None), "model_type", None)
    own = None if kind is None or (roles and not _known(kind)) else family(kind, model.config)
    roles = roles or {}
    _check_roles(roles, numbers)
    entries, used = [], Counter[str]()
    for name, p, label, layout in _parameters_of(model):
        rule, role = _match(roles, name) or label or (own and _match(own.roles, name)) or ("", "")
        if not role and p.requires_grad:
            raise UsageError(f"no role for parameter {name}; give roles={{'{re.escape(name)}': ROLE}}, {_of(numbers)}")
        if role and role not in numbers.tensors:
            raise UsageError(f"{name} is {shown(role)} ({rule}), which the recipe lacks; it has {_of(numbers)}")
        used[rule] += 1
        settings = numbers[role] if role else {}
        entries.append(Entry(name, role, rule, tuple(p.shape), layout, settings, not p.requires_grad))
    for rule in roles:
        if not used[rule]:
            raise UsageError(f"roles: {rule!r} is the rule of no parameter; leave it out, or put it before others")
    found = {e.role for e in entries}
    if not entries or ("M" in numbers.way.target and not any(r.startswith("expert") for r in found)):
        raise UsageError("the sizes have experts and the model has none; leave out M, N_e and K, or name them in roles")
    aliases = _aliases(model)
    left = _left(numbers, own, bool(aliases) and "readout" not in found)
    buffers = tuple(plain_name(n) for n, _ in model.named_buffers())
    return Plan(model, numbers, own, tuple(entries), aliases, buffers, left)


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of DDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def generator_of(generator: torch.Generator | None) -> dict[str, Any]:
    """As a keyword: sharded tensors take none."""
    return {} if generator is None else {"generator": generator}


def _of(numbers: Recipe) -> str:
    return f"ROLE one of {', '.join(numbers)}"


def _match(roles: Mapping[str, str], name: str) -> tuple[str, str] | None:
    return next(((rule, role) for rule, role in roles.items() if re.search(rule, name)), None)


def _known(kind: str) -> bool:
    try:
        family(kind)
    except UsageError:
        return False
    return True


def _check_roles(roles: Mapping[str, str], numbers: Recipe) -> None:
    for pattern, role in roles.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"roles: {pattern!r} is no regular expression: {error}") from None
        if role not in numbers.tensors:
            raise unknown_name("role", str(role), numbers.tensors)


def _parameters_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, tuple[str, str] | None, str]]:
    """Name, tensor, what its module's label says, and how experts are stored; each tensor once."""
    seen = set()
    for prefix, module in model.named_modules():
        label, layout = getattr(module, LABEL, {}), _layout(module)
        for own, p in module.named_parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                name = plain_name(f"{prefix}.{own}" if prefix else own)
                yield name, p, (f"{LABEL} of {prefix}", label[own]) if own in label else None, layout


def _layout(module: nn.Module) -> str:
    """What the library says of stacked experts (``use_experts_implementation`` of transformers)."""
    if not hasattr(module, "is_transposed"):
        return ""
    matrix = "in x out" if module.is_transposed else "out x in"
    fused = "concatenated" if getattr(module, "is_concatenated", True) else "interleaved"
    return f"M x {matrix}" + (f", gate and up {fused}" if getattr(module, "has_gate", False) else "")


def _aliases(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    found = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if (stays := first.setdefault(id(p), plain_name(name))) != plain_name(name):
            found[plain_name(name)] = stays
    return found


def _left(numbers: Recipe, own: Family | None, tied: bool) -> dict[str, float]:
    """The multipliers' factors without what the gate brings itself; ``out`` for logits of a tied embedding."""
    found = {name: setting.factor for name, setting in numbers.multipliers.items()}
    way = numbers.way
    if "alpha" in found and own is not None and own.gate in ("1/K", "1/M"):
        axis = own.gate.removeprefix("1/")
        found["alpha"] *= way.target[axis] / way.base[axis]
    if tied and way.target["N"] > way.base["N"]:
        asked = numbers.configuration
        small = recipe(
            {"N": way.base["N"]},
            {"N": way.target["N"]},
            asked.optimizer.name,
            asked.parameterization.name,
            architecture="tied-embedding",
        )
        found["out"] = small.multipliers["out"].factor
    return {name: 1.0 if math.isclose(x, 1.0) else x for name, x in found.items()}
