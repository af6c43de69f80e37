"""Chooses what a check trains with: rules of the module's optimizers, init std at the base, powers set by the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from scaling_algebra.errors import UsageError, check_names, quote_value
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.spec.optimizer_reading import OptimizerInput, parameter_of
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.networks.steppers import list_optimizers
from scaling_algebra.verify.tracing import TracedModel
from scaling_algebra.verify.tracing.gradients import match_roles
from scaling_algebra.verify.tracing.measuring import find_parameters

RULES = {"Adam": "adamw", "AdamW": "adamw", "Muon": "muon", "SGD": "sgd"}
"""Name of our optimizer rule, by the torch.optim class that ``build`` returns."""


def read_optimizer_rules(own: torch.optim.Optimizer | None, model: nn.Module, reading: TracedModel) -> OptimizerInput:
    """Returns which optimizer trains each parameter of a model whose ``build`` returned torch optimizers (``own``).

    The result is a single name such as "adamw" if all parameters have the same optimizer, otherwise a dict by
    parameter.

    Raises:
        UsageError: the class of an optimizer is not known here.
    """
    found, names = dict[str, str](), {id(p): name for name, p in model.named_parameters()}
    for part in list_optimizers(own) if own is not None else ():
        rule = next((rule for name, rule in RULES.items() if isinstance(part, getattr(torch.optim, name))), None)
        if rule is None:
            known = ", ".join(RULES)
            raise UsageError(f"build brings {type(part).__name__}; a check knows {known}, or say optimizer=RULE")
        found |= {names[id(p)]: rule for g in part.param_groups for p in g["params"]}
    if len({*found.values()}) < 2:
        return next(iter(found.values()), "adamw")
    roles = match_roles([*found], reading.network.tensors)
    return {"": "adamw", **{role: rule for x, mine in roles.items() if (rule := found[x]) != "adamw" for role in mine}}


def choose_base_stds(model: nn.Module, numbers: Recipe) -> dict[str, float]:
    """Returns the init std of every parameter at the base: that of the module's own initial values.

    It is at most the derived power of the base sizes: with a larger std, a term that vanishes with the width could be
    the largest one at small sizes.
    """
    stds = {}
    for role, settings in numbers.tensors.items():
        if (rule := settings["init_std"].rule) is None:
            continue  # it starts at zero
        most = rule.at({"L": 1, **numbers.way.base})
        own = max(float(p.double().square().mean().sqrt()) for p in find_parameters(model, role))
        stds[role] = min(own or most, most)
    return stds


def replace_rules(numbers: Recipe, rules: Mapping[str, Mapping[str, Power]]) -> Recipe:
    """Returns the recipe with some of its powers replaced.

    Args:
        numbers: the recipe.
        rules: name of a tensor, of a part of one, or of a parameter with parts -> ``init_std`` or ``lr`` -> the new
            power.

    Raises:
        UsageError: there is no such tensor or setting, or a value is not a power.
    """
    tensors = dict(numbers.tensors)
    for name, powers in rules.items():
        if not isinstance(powers, Mapping) or not all(isinstance(x, Power) for x in powers.values()):
            said = quote_value(powers)
            raise UsageError(
                f"rules of {name!r} are {said}; give powers by setting, such as {{'lr': Power.parse('N^-1')}}"
            )
        parts = [role for role in tensors if parameter_of(role) == name] or [name]
        for role in parts:
            check_names("setting", powers, [what for what in ("init_std", "lr") if what in numbers[role]])
            changed = {what: replace(numbers[role][what], rule=p) for what, p in powers.items()}
            tensors[role] = {**tensors[role], **changed}
    return replace(numbers, tensors=tensors)
