"""A plan of a live ``nn.Module``: ``plan``.

Roles come from the user's patterns, from labels of modules (``scaling_roles``, a dict by parameter name), or from the
names that published families share; never from shapes, which are held against the sizes. Read next: ``shapes.py``,
``gates.py``, ``families.toml``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from scaling_algebra.arguments import checked
from scaling_algebra.errors import UsageError, named, shown, unknown_name
from scaling_algebra.recipes.files import sizes_of
from scaling_algebra.recipes.recipe import Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes

from .families import roles_of, table
from .gates import AGGREGATION, Gate, gate_from
from .numbers import Entry, trainer
from .plans import Plan, plain_name
from .shapes import FREE, check_shape, fans, general, refitted, shapes_of, text

LABEL = "scaling_roles"
"""Attribute of a module: the role of each of its own parameters, by name."""


@checked
def plan(
    model: nn.Module,
    base: str | Sizes | Recipe | nn.Module,
    target: str | Sizes | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    base_model: nn.Module | None = None,
    gate: str | None = None,
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
        gate: what the gate brings to the sum over experts, ``1/K``, ``1/M`` or ``1``, where the model does not show it.
        given: for ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer``, ``parameterization``, ...

    Raises:
        UsageError: a parameter without a role, an unknown role, a pattern that matches nothing, a family that is not
            known, sizes or roles that are not those of the shapes, experts in the sizes and none in the model, a gauge
            with multipliers of tensors, or what ``recipe`` raises.
    """
    small = base if isinstance(base, nn.Module) else base_model
    numbers = _recipe(model, base, target, given)
    config = getattr(model, "config", None)
    kind, roles = getattr(config, "model_type", ""), roles or {}
    own = roles_of(kind) if kind else {}
    _check_roles(roles, numbers)
    entries, used, routers = [], Counter[str](), []
    for name, p, module, label, layout in _parameters_of(model):
        rule, role = _match(roles, name) or label or _match(own, name) or ("", "")
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
    if gate is not None:
        named("gate", gate, AGGREGATION)
    here = gate_from(config, routers[0] if routers else None) if gate is None else Gate(gate)
    left = _left(numbers, here, here if small is None or gate else _base_gate(small, entries), aliases, found)
    if "M" in numbers.way.target and not here.brings:
        warnings += (
            "what the gate brings to the sum over experts is not known: alpha is for both together; give gate=",
        )
    if kind and kind not in table()["read"]:
        warnings += (f"the code of {kind} was not read: its roles are those of names that families share",)
    buffers = tuple(plain_name(n) for n, _ in model.named_buffers())
    return Plan(model, numbers, kind, fitted, aliases, buffers, left, here, warnings)


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
    shapes = shapes_of((name, tuple(p.shape)) for name, p, *_ in _parameters_of(small)) if small is not None else {}
    fitted, kinds = [], dict[str, list[Mapping[str, Setting]]]()
    for e in entries:
        base = shapes.get(e.name, shapes.get(general(e.name)))
        if base is not None and e.role:
            check_shape(numbers, f"{e.name} of the base model", e.role, base, e.layout, numbers.way.base)
        sides = None if base is None or not e.role else fans(e.role, base, e.shape, e.layout)
        settings = e.settings
        if sides is not None:
            settings, note = refitted(settings, e.role, trainer(numbers, e.role), sides, numbers)
            notes.setdefault(note, {})[general(e.name)] = None
        elif (e.role and base is None and shapes) or (e.role in FREE and (base or set(e.shape) - {width})):
            why = "fans are not shown by the base model" if shapes else "may not grow with N; give base_model="
            notes.setdefault(f"{why}: taken as its role says", {})[f"{general(e.name)} ({text(e.shape)})"] = None
        alike = kinds.setdefault(e.role, [e.settings])
        alike += [] if settings in alike else [settings]
        number = alike.index(settings) + 1
        fitted.append(replace(e, settings=settings, group=e.role if number == 1 else f"{e.role}_{number}"))
    return tuple(fitted), tuple(f"{', '.join(names)}: {note}" for note, names in notes.items() if note)


def _base_gate(small: nn.Module, entries: Sequence[Entry]) -> Gate:
    names = {general(e.name) for e in entries if e.role == "router"}
    router = next((module for name, _, module, *_ in _parameters_of(small) if general(name) in names), None)
    return gate_from(getattr(small, "config", None), router)


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
