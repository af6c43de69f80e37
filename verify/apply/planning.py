"""A plan of a live ``nn.Module``: ``plan``.

Roles come from the user's patterns, from labels of modules (``scaling_roles``, a dict by parameter name), or from the
names that published families share; never from shapes, which are held against the sizes. Read next: ``shapes.py``,
``gates.py``, ``families.toml``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from scaling_algebra.arguments import checked
from scaling_algebra.errors import UsageError, named, shown, unknown_name
from scaling_algebra.recipes.files import sizes_of
from scaling_algebra.recipes.recipe import Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes, Way, read_sizes
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing import Traced, traced
from scaling_algebra.verify.tracing.measuring import roles_of
from scaling_algebra.verify.tracing.models import called

from .families import roles_of as family_roles
from .families import table
from .gates import AGGREGATION, Gate, gate_from
from .modules import Entry, aliases, parameters, plain_name
from .plans import Plan, trainer
from .shapes import FREE, check_shape, fans, general, refitted, shapes_of, text

NAMED = 8
"""Parameters without a role that an error names."""
_COUNTED = {"L": "num_hidden_layers", "K": "num_experts_per_tok"}
"""Sizes that no shape shows, and their names in configurations."""


def planned(model: nn.Module, reading: Traced, numbers: Recipe) -> Plan:
    """The numbers of every parameter by its name, as a module's own reading has them.

    Law: where the module itself multiplies a tensor by a power, the tensor's numbers are those of the product of both.

    Raises:
        UsageError: a parameter that the output does not depend on, or one whose parts have different powers.
    """
    named, entries = list(parameters(model)), []
    roles, going = roles_of([e.name for e in named], numbers), numbers.way
    for e in named:
        mine = roles[e.name]
        if not mine and not e.frozen:
            raise UsageError(f"the output does not depend on {e.name}; freeze it, or leave it out of the model")
        settings = [_with_own(numbers[role], reading.gauge.get(role, {}), going) for role in mine]
        if any(s != settings[0] for s in settings):
            todo = f"make {' and '.join(mine)} parameters of their own"
            raise UsageError(f"{e.name}: its parts have different powers; {todo}")
        group = re.sub(r"(\[\d+\])+$", "", mine[0]) if mine else ""
        role = mine[0] if mine else ""
        entries.append(replace(e, role=role, settings=settings[0] if mine else {}, group=group, fill=_fill(e)))
    left = {
        name: s.factor / Power.of(reading.factors.get(name, ("", {}))[1]).ratio(going.base, going.target)
        for name, s in numbers.multipliers.items()
    }
    tied, buffers = aliases(model), tuple(plain_name(name) for name, _ in model.named_buffers())
    left = {name: 1.0 if math.isclose(x, 1.0) else x for name, x in left.items()}
    return Plan(model, numbers, "", tuple(entries), tied, buffers, left, Gate(), tuple(reading.lines))


def _with_own(settings: Mapping[str, Setting], own: Mapping[str, Any], going: Way) -> Mapping[str, Setting]:
    """The settings of w in ``own w``, of those of the product (Adam)."""
    power, sign = Power.of(own), {"init_std": -1, "lr": -1, "eps": 1, "decay": 1}

    def moved(what: str, s: Setting) -> Setting:
        if s.rule is None or not own:
            return s
        more = power ** sign[what]
        return replace(s, rule=s.rule * more, factor=s.factor * more.ratio(going.base, going.target))

    return {what: moved(what, s) for what, s in settings.items()}


def _fill(e: Entry) -> float | None:
    """The value that all entries of a vector start with, as the module has it."""
    value = e.tensor.detach().flatten()
    alike = e.tensor.dim() < 2 and not value.is_meta and value.numel() > 0 and bool((value == value[0]).all())
    return float(value[0]) if alike else None


@checked
def plan(
    model: nn.Module | Callable[[dict[str, int]], Any],
    base: str | Sizes | Recipe | nn.Module,
    target: str | Sizes | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    base_model: nn.Module | None = None,
    gate: str | None = None,
    **given: Any,
) -> Plan:
    """The numbers of every parameter of a model.

    Args:
        model: ``build(sizes)``, a function that returns the module, which is read at small sizes and built at the
            target: then groups go by the parameters' names, and nothing else is to be said. Or a module at the target
            size, on any device, also ``meta``, whose parameters have roles.
        base, target: sizes as for ``recipe``; or a Recipe; or the tuned model alone, where the configurations of both
            say their sizes.
        roles: role by regular expression on parameter names (``re.search``, first match); they go before labels of
            modules and the table of the family (``model.config.model_type``).
        base_model: the tuned model, also on ``meta``: how fan-in and fan-out of every tensor grow.
        gate: what the gate brings to the sum over experts, ``1/K``, ``1/M`` or ``1``, where the model does not show it.
        given: for ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer`` (adamw), ``parameterization``, ...

    Raises:
        UsageError: a parameter without a role, an unknown role, a pattern that matches nothing, a family that is not
            known, sizes or roles that are not those of the shapes, experts in the sizes and none in the model, a gauge
            with multipliers of tensors, or what ``recipe`` raises.
    """
    if not isinstance(model, nn.Module):
        roleless = roles is None and base_model is None and gate is None
        return _read(model, base, target, given if roleless else {"roles": roles, **given})
    small = base if isinstance(base, nn.Module) else base_model
    numbers = _recipe(model, base, target, given, shapes=small is not None)
    config = getattr(model, "config", None)
    family = getattr(config, "model_type", "")
    entries = _entries(model, numbers, roles or {}, family_roles(family) if family else {})
    experts, names = "M" in numbers.way.target, {e.role for e in entries}
    if not entries or (experts and not any(role.startswith("expert") for role in names)):
        raise UsageError("the sizes have experts and the model has none; leave out M, N_e and K, or name them in roles")
    for e in entries:
        if e.role:
            check_shape(numbers, e.name, e.role, e.shape, e.layout, numbers.way.target)
    for axis, name in _COUNTED.items():
        stated, size = getattr(config, name, None), numbers.way.target.get(axis)
        if size is not None and isinstance(stated, int) and stated != size:
            raise UsageError(f"{name} of the model is {stated}, but {axis} is {size}; give the model's own sizes")
    fitted, warnings = _fitted(numbers, entries, small)
    if gate is not None:
        named("gate", gate, AGGREGATION)
    here = _gate(model, entries) if gate is None else Gate(gate)
    start = here if small is None or gate else _gate(small, entries)
    if experts and not here.brings:
        warnings.append(
            "what the gate brings to the sum over experts is not known: alpha is for both together; give gate="
        )
    if family and family not in table()["read"]:
        warnings.append(f"the code of {family} was not read: its roles are those of names that families share")
    tied, buffers = aliases(model), tuple(plain_name(name) for name, _ in model.named_buffers())
    left = _left(numbers, start, here, bool(tied) and "readout" not in names)
    return Plan(model, numbers, family, fitted, tied, buffers, left, here, tuple(warnings))


def _read(build: Any, base: Any, target: Any, given: Mapping[str, Any]) -> Plan:
    """The plan of a module that is read."""
    if not callable(build) or isinstance(base, Recipe | nn.Module) or target is None or "roles" in given:
        raise UsageError("give plan(build, base, target, lr=...), sizes as texts; roles are for a module without build")
    reading = traced(build)
    numbers = recipe(base, target, **{"optimizer": "adamw", **given, "network": reading.network})
    return planned(called(build, dict(numbers.way.target), None)[0], reading, numbers)


def _recipe(model: nn.Module, base: Any, target: Any, given: Mapping[str, Any], shapes: bool) -> Recipe:
    """The numbers between two sizes; ``shapes``: by those of both models, which may differ where no size does."""
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
        base, target = read_sizes(base, "base"), read_sizes(target, "target")
        wider = {axis: 2 * n if axis in ("N", "N_e") else n for axis, n in target.items()}
        still = shapes and base == target  # no axis grows: the powers of any ray are 1
        numbers = recipe(base, wider if still else target, **{"optimizer": "adamw", **given})
        numbers = numbers.at(target) if still else numbers
    multiplied = next((role for role, settings in numbers.tensors.items() if "multiplier" in settings), None)
    if multiplied is not None:
        raise UsageError(f"a plan sets no multiplier, and {multiplied} has one in this gauge; take the gauge table3")
    return numbers


def _entries(model: nn.Module, numbers: Recipe, roles: Mapping[str, str], published: Mapping[str, str]) -> list[Entry]:
    """Every parameter with its role and the settings of that."""
    for pattern, role in roles.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"roles: {pattern!r} is no regular expression: {error}") from None
        if role not in numbers.tensors:
            raise unknown_name("role", str(role), numbers.tensors)

    def first(rules: Mapping[str, str], name: str) -> tuple[str, str] | None:
        return next(((rule, role) for rule, role in rules.items() if re.search(rule, name)), None)

    entries, lacking, one_of = [], list[str](), f"ROLE one of {', '.join(numbers)}"
    for e in parameters(model):
        labelled = (e.rule, e.role) if e.rule else None
        rule, role = first(roles, e.name) or labelled or first(published, e.name) or ("", "")
        if not role and not e.frozen:
            lacking.append(e.name)
        if role and role not in numbers.tensors:
            raise UsageError(f"{e.name} is {shown(role)} ({rule}), which the recipe lacks; it has {one_of}")
        entries.append(replace(e, rule=rule, role=role, settings=numbers[role] if role else {}))
    if lacking:
        who = f"parameter{'s' if lacking[1:] else ''} {', '.join(lacking[:NAMED])}"
        who += f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        raise UsageError(f"no role for {who}; give roles={{'{re.escape(lacking[0])}': ROLE}}, {one_of}")
    used = {e.rule for e in entries}
    for rule in roles:
        if rule not in used:
            raise UsageError(f"roles: {rule!r} is the rule of no parameter; leave it out, or put it before others")
    return entries


def _fitted(numbers: Recipe, entries: Sequence[Entry], small: nn.Module | None) -> tuple[tuple[Entry, ...], list[str]]:
    """Every parameter with the settings of its own fans and its group; and what the models do not tell."""
    width, notes = numbers.way.target["N"], dict[str, dict[str, None]]()
    shapes = {} if small is None else shapes_of(small)
    fitted, kinds = [], dict[str, list[Mapping[str, Setting]]]()
    for e in entries:
        base, settings, sides = shapes.get(e.name, shapes.get(general(e.name))), e.settings, None
        if base is not None and e.role:
            check_shape(numbers, f"{e.name} of the base model", e.role, base, e.layout, numbers.way.base)
            sides = fans(e.role, base, e.shape, e.layout)
        if sides is not None:
            settings, note = refitted(settings, e.role, trainer(numbers, e.role), sides, numbers)
            notes.setdefault(note, {})[general(e.name)] = None
        elif (e.role and base is None and shapes) or (e.role in FREE and (base or set(e.shape) - {width})):
            why = "fans are not shown by the base model" if shapes else "may not grow with N; give base_model="
            notes.setdefault(f"{why}: taken as its role says", {})[f"{general(e.name)} ({text(e.shape)})"] = None
        alike = kinds.setdefault(e.role, [e.settings])
        if settings not in alike:
            alike.append(settings)
        number = alike.index(settings) + 1
        fitted.append(replace(e, settings=settings, group=e.role if number == 1 else f"{e.role}_{number}"))
    return tuple(fitted), [f"{', '.join(names)}: {note}" for note, names in notes.items() if note]


def _gate(model: nn.Module, entries: Sequence[Entry]) -> Gate:
    """The gate of a model with the roles of these entries."""
    routers = {general(e.name) for e in entries if e.role == "router"}
    router = next((e.module for e in parameters(model) if general(e.name) in routers), None)
    return gate_from(getattr(model, "config", None), router)


def _left(numbers: Recipe, start: Gate, end: Gate, tied: bool) -> dict[str, float]:
    """The multipliers' factors without what the gate brings itself; ``out`` for logits of a tied embedding."""
    factors, way = {name: setting.factor for name, setting in numbers.multipliers.items()}, numbers.way
    if "alpha" in factors and end.brings:
        factors["alpha"] *= start.weight(way.base) / end.weight(way.target)
    if tied and way.target["N"] > way.base["N"]:
        small, large = ({"N": sizes["N"]} for sizes in (way.base, way.target))
        optimizer, parameterization = trainer(numbers, "embedding").name, numbers.configuration.parameterization.name
        logits = recipe(small, large, optimizer, parameterization, architecture="tied-embedding")
        factors["out"] = logits.multipliers["out"].factor
    return {name: 1.0 if math.isclose(x, 1.0) else x for name, x in factors.items()}
