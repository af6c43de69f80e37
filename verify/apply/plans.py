"""A recipe on a live ``nn.Module``: the role and the numbers of every parameter, initial values, groups: ``plan``.

Roles come from the user's patterns, from labels of modules (``scaling_roles``, a dict by parameter name), or from the
table of the model's family; never from shapes, which are held against the sizes. Read next: ``shapes.py``,
``gates.py``, ``families.toml``, ``presentation.py`` (the coverage report), ``exports.py``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from scaling_algebra.arguments import checked
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, shown, unknown_name
from scaling_algebra.recipes.files import sizes_of
from scaling_algebra.recipes.recipe import VECTORS, Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.spec.optimizers import Optimizer

from .families import Family, family, names
from .gates import NO_GATE, Gate, gate_from
from .shapes import FREE, Shape, base_shape, check_shape, fans, general, refitted, text

LABEL = "scaling_roles"
"""Attribute of a module: the role of each of its own parameters, by name."""
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
        model: the module. recipe: where the numbers come from. family: whose table was read; None: patterns only.
        entries: the parameters, tied ones once. aliases: names of tied ones by the name that stays.
        buffers: names; never the optimizer's. multipliers: what is left for the model's code to multiply, by name.
        gate: what weighs the experts. warnings: what the model does not tell, a line each.
    """

    model: nn.Module
    recipe: Recipe
    family: Family | None
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

    @property
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


@checked
def plan(
    model: nn.Module,
    base: str | Sizes | Recipe | nn.Module,
    target: str | Sizes | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    base_model: nn.Module | None = None,
    **given: Any,
) -> Plan:
    """The role and the numbers of every parameter of a model.

    Args:
        model: at the target size, on any device, also ``meta``.
        base, target: sizes as for ``recipe``; or a Recipe; or the tuned model alone, where the configurations of both
            say their sizes.
        roles: role by regular expression on parameter names (``re.search``, first match); they go before labels of
            modules and the table of the family (``model.config.model_type``).
        base_model: the tuned model, also on ``meta``: how fan-in and fan-out of every tensor grow.
        given: for ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer``, ``parameterization``, ...

    Raises:
        UsageError: a parameter without a role, an unknown role, a pattern that matches nothing, a family that is not
            known, sizes or roles that are not those of the shapes, experts in the sizes and none in the model, a gauge
            with multipliers of tensors, or what ``recipe`` raises.
    """
    small = base if isinstance(base, nn.Module) else base_model
    numbers = _recipe(model, base, target, given)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    own = None if kind is None else family(kind, model.config, strict=False)
    roles = roles or {}
    _check_roles(roles, numbers)
    entries, used, routers = [], Counter[str](), []
    for name, p, module, label, layout in _parameters_of(model):
        rule, role = _match(roles, name) or label or (own and _match(own.roles, name)) or ("", "")
        if not role and p.requires_grad:
            raise UsageError(f"no role for parameter {name}; give roles={{'{re.escape(name)}': ROLE}}, {_of(numbers)}")
        if role and role not in numbers.tensors:
            raise UsageError(f"{name} is {shown(role)} ({rule}), which the recipe lacks; it has {_of(numbers)}")
        used[rule] += 1
        routers += [module] * (role == "router")
        settings = numbers[role] if role else {}
        entries.append(Entry(name, role, rule, tuple(p.shape), layout, settings, not p.requires_grad, role))
    for rule in roles:
        if not used[rule]:
            raise UsageError(f"roles: {rule!r} is the rule of no parameter; leave it out, or put it before others")
    found = {e.role for e in entries}
    if not entries or ("M" in numbers.way.target and not any(r.startswith("expert") for r in found)):
        raise UsageError("the sizes have experts and the model has none; leave out M, N_e and K, or name them in roles")
    _check_sizes(numbers, entries, model, numbers.way.target)
    fitted, warnings = _fitted(numbers, entries, small)
    aliases = _aliases(model)
    gate = gate_from(getattr(model, "config", None), own, routers[0] if routers else None)
    left = _left(numbers, gate, gate if small is None else _base_gate(small, own, entries), aliases, found)
    if "M" in numbers.way.target and not gate.brings:
        warnings += ("what the gate brings to the sum over experts is not known: alpha is for gate and model together",)
    if own is not None and own.name not in names():
        warnings += (f"{own.name} is not in the table of families: its roles are those of names that families share",)
    buffers = tuple(plain_name(n) for n, _ in model.named_buffers())
    return Plan(model, numbers, own, fitted, aliases, buffers, left, gate, warnings)


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


def _recipe(model: nn.Module, base: Any, target: Any, given: Mapping[str, Any]) -> Recipe:
    if isinstance(base, nn.Module):
        configs = [getattr(m, "config", None) for m in (base, model)]
        if None in configs:
            raise UsageError("a model without a configuration does not say its sizes; give sizes, and base_model=")
        base = sizes_of(configs[0], "base model")
        target = sizes_of(configs[1], "model") if target is None else target
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
    return numbers


def _of(numbers: Recipe) -> str:
    return f"ROLE one of {', '.join(numbers)}"


def _match(roles: Mapping[str, str], name: str) -> tuple[str, str] | None:
    return next(((rule, role) for rule, role in roles.items() if re.search(rule, name)), None)


def _check_roles(roles: Mapping[str, str], numbers: Recipe) -> None:
    for pattern, role in roles.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"roles: {pattern!r} is no regular expression: {error}") from None
        if role not in numbers.tensors:
            raise unknown_name("role", str(role), numbers.tensors)


_COUNTED = {"L": "num_hidden_layers", "K": "num_experts_per_tok"}
"""Sizes that no shape shows, and their names in configurations."""


def _check_sizes(numbers: Recipe, entries: Iterable[Entry], model: nn.Module, sizes: Sizes) -> None:
    for e in entries:
        if e.role:
            check_shape(numbers, e.name, e.role, e.shape, e.layout, sizes)
    for axis, name in _COUNTED.items():
        there = getattr(getattr(model, "config", None), name, None)
        if axis in sizes and isinstance(there, int) and there != sizes[axis]:
            raise UsageError(f"{name} of the model is {there}, but {axis} is {sizes[axis]}; give the model's own sizes")


def _fitted(
    numbers: Recipe, entries: Sequence[Entry], small: nn.Module | None
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Every parameter with the settings of its own fans and its group; and what the models do not tell."""
    width, notes = numbers.way.target["N"], dict[str, dict[str, None]]()
    shapes = {name: tuple(p.shape) for name, p, *_ in _parameters_of(small)} if small is not None else {}
    fitted, kinds = [], dict[str, list[Mapping[str, Setting]]]()
    for e in entries:
        base = base_shape(shapes, e.name)
        if base is not None and e.role:
            check_shape(numbers, f"{e.name} of the base model", e.role, base, e.layout, numbers.way.base)
        sides = None if base is None or not e.role else fans(e.role, base, e.shape, e.layout)
        settings = e.settings
        if sides is not None:
            settings, note = refitted(settings, e.role, trainer(numbers, e.role), sides, numbers)
            notes.setdefault(note, {})[general(e.name)] = None
        elif e.role in FREE and (small is not None or set(e.shape) - {width}):
            why = "has no shape in the base model" if small is not None else "may not grow with N; give base_model="
            notes.setdefault(f"{why}: taken as its role says", {})[f"{general(e.name)} ({text(e.shape)})"] = None
        alike = kinds.setdefault(e.role, [e.settings])
        alike += [] if settings in alike else [settings]
        number = alike.index(settings) + 1
        fitted.append(replace(e, settings=settings, group=e.role if number == 1 else f"{e.role}_{number}"))
    return tuple(fitted), tuple(f"{', '.join(names)}: {note}" for note, names in notes.items() if note)


def _base_gate(small: nn.Module, own: Family | None, entries: Sequence[Entry]) -> Gate:
    names = {general(e.name) for e in entries if e.role == "router"}
    router = next((module for name, _, module, *_ in _parameters_of(small) if general(name) in names), None)
    return gate_from(getattr(small, "config", None), own, router)


def _parameters_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module, tuple[str, str] | None, str]]:
    """Name, tensor, its module, what the module's label says, and how experts are stored; each tensor once."""
    seen = set()
    for prefix, module in model.named_modules():
        label, layout = getattr(module, LABEL, {}), _layout(module)
        for own, p in module.named_parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                name = plain_name(f"{prefix}.{own}" if prefix else own)
                yield name, p, module, (f"{LABEL} of {prefix}", label[own]) if own in label else None, layout


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


def _left(
    numbers: Recipe, gate: Gate, base_gate: Gate, aliases: Collection[str], roles: Collection[str]
) -> dict[str, float]:
    """The multipliers' factors without what the gate brings itself; ``out`` for logits of a tied embedding."""
    found = {name: setting.factor for name, setting in numbers.multipliers.items()}
    way = numbers.way
    if "alpha" in found and gate.brings:
        found["alpha"] *= base_gate.weight(way.base) / gate.weight(way.target)
    if aliases and "readout" not in roles and way.target["N"] > way.base["N"]:
        start, end = ({"N": sizes["N"]} for sizes in (way.base, way.target))
        optimizer, asked = trainer(numbers, "embedding").name, numbers.configuration.parameterization.name
        found["out"] = recipe(start, end, optimizer, asked, architecture="tied-embedding").multipliers["out"].factor
    return {name: 1.0 if math.isclose(x, 1.0) else x for name, x in found.items()}
