"""Plans a live ``nn.Module``, whose code is traced: ``plan``.

Read next: ``subjects.py`` (what is read), ``entries.py`` (its numbers), ``plans.py`` (the result).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from scaling_algebra.arguments import check_arguments
from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.recipes.recipe import Recipe, recipe, with_either_epsilon
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.level import Level, OpenDemand
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing import TracedModel
from scaling_algebra.verify.tracing.config_skeletons import mask_numbers
from scaling_algebra.waiting import collect_rarely, show_progress

from .entries import build_entries, collect_warnings, compute_settings
from .frozen import find_misscaled_tensors
from .modules import check_names_exist, find_aliases, sample_buffers, strip_wrappers
from .parts import Records
from .plans import Plan
from .subjects import PlanSubject, read_subject

TAKEN = ("fold", *(x for x in signature(recipe).parameters if x not in ("base", "target", "starts", "where")))
TAKEN += ("readout_init", "epsilon", "effort")
"""Arguments of ``plan`` besides the model and the sizes."""


@check_arguments
def plan(
    model: nn.Module | Callable[[dict[str, int]], Any],
    base: str | Sizes | nn.Module,
    target: str | Sizes | None = None,
    *,
    fold: bool = False,
    strict: bool = False,
    **given: Any,
) -> Plan:
    """Returns the numbers of every parameter of a model, by name.

    Args:
        model: ``build(sizes)``, a function that returns the module; it is traced at small sizes and built at the
            target. Or a model of transformers at the target, on any device (also ``meta``), which is rebuilt from its
            configuration.
        base: sizes as for ``recipe``; for a model of transformers the tuned model, or its sizes.
        target: sizes as for ``recipe``; omitted for a model of transformers.
        fold: put multipliers that muP asks for and the module lacks into the matrices at the end of their branch, so
            that the model's code does not change.
        strict: refuse numbers that are not certified, and a model that cannot be read; without it such a model is
            planned by the shapes of its parameters.
        given: arguments of ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer`` (adamw),
            ``parameterization``, ...

    Raises:
        UsageError: the model cannot be read or built, the output does not depend on a parameter, rates are given
            without epsilons, a multiplier to fold ends in no matrix, or an error of ``recipe``.
    """
    with show_progress("plan"), collect_rarely(), torch.random.fork_rng(devices=[]):
        if isinstance(model, nn.Module):
            check_names_exist(model, given)
        return _build_plan(read_subject(model, base, target, strict), fold, strict, {**given, "strict": strict})


def _build_plan(subject: PlanSubject, fold: bool, strict: bool, given: Mapping[str, Any]) -> Plan:
    """Builds the plan of a model that has been read.

    Its recipe lists as open demands also tensors that keep values of the wrong size, and tensors that do not grow as
    they were read.
    """
    numbers = _derive_recipe(subject.base, subject.target, given, subject.readings)
    parts = subject.small, fold, subject.records, subject.twins
    p = build_plan(subject.model, subject.reading, numbers, *parts)
    if subject.tuned is None:
        return p
    small, base = subject.tuned
    r = p.recipe
    other = [
        OpenDemand(
            "there is one on this ray",
            "the ray",
            0,
            f"{r.missing}; the powers are those of the ray {r.instead}",
        )
    ]
    read = [OpenDemand("sizes grow as they are read", "shapes", 0, line) for line in subject.odd]
    held = (*r.open, *(other if r.missing else ()), *read, *find_misscaled_tensors(p, small, base))
    if held and strict:
        raise Infeasible(f"{p.about}: {held[0]}", undecided=True)
    warnings = (*_describe_longer_heads(subject, given), *p.warnings, *subject.notes)
    return replace(p, recipe=replace(r, open=held), starts={**sample_buffers(small), **p.starts}, warnings=warnings)


def _describe_longer_heads(subject: PlanSubject, given: Mapping[str, Any]) -> Iterator[str]:
    """Yields warnings that name the multipliers needed because attention heads get longer, if they grow both in number
    and in dimension.

    The way from base to target is then split in two: along one part the number of heads grows, which is what the plan
    is for, and along the other one their dimension.
    """
    if subject.longer is None:
        return
    dims, reading = subject.longer
    base, n = subject.base, subject.base["N"] * dims[1]
    start = {axis: k * dims[0] if axis == "N" else k for axis, k in base.items()}
    numbers = _derive_recipe(start, {**start, "N": n}, given, [reading])
    for name, setting in numbers.multipliers.items():
        place, own = reading.factors.get(name, ("", {}))
        left = setting.factor / Power.of(own).ratio({**start, "N": dims[0]}, {**start, "N": dims[1]})
        if not math.isclose(left, 1):
            yield (
                f"heads grow in number and from dimension {dims[0]} to {dims[1]}: multiply {name} of "
                f"{mask_numbers(place)} by {left:.4g} in the model for the second, besides; fold does not hold it"
            )


def _derive_recipe(base: Any, target: Any, given: Mapping[str, Any], readings: Sequence[TracedModel]) -> Recipe:
    """Derives the recipe for a model, whose kinds of layers may have been traced separately.

    Args:
        base: sizes as for ``plan``.
        target: sizes as for ``plan``.
        given: the other arguments of ``plan``.
        readings: the traced model, one for each kind of layer.

    Raises:
        UsageError: an unknown argument, a parameter with a multiplier of its own, or rates without epsilons.
        Infeasible: something is undecided, with ``strict``.
    """
    check_names("argument of plan", given, TAKEN)
    asked = {"optimizer": "adamw", **given, "network": tuple(n for x in readings for n in x.networks), "starts": ()}
    numbers = with_either_epsilon(base, target, **asked)
    numbers = replace(numbers, open=tuple(o for x in readings for o in x.find_open_shares(*numbers.way.sizes)))
    if numbers.open and given.get("strict"):
        raise Infeasible(f"{numbers.about}: {numbers.open[0]}", undecided=True)
    if multiplied := [r for r, s in numbers.tensors.items() if "multiplier" in s]:
        raise UsageError(
            f"a plan cannot set the multiplier that {multiplied[0]} has in this gauge; use the gauge table3"
        )
    numbers = mark_shape_only(numbers)
    lacking = [r for r, s in numbers.tensors.items() if "eps" in s and s["lr"].base and s["eps"].base is None]
    if lacking:
        who = lacking[0] if len(lacking) < len(numbers.tensors) else "Adam"
        raise UsageError(f"the epsilon of {who} scales, too; give its value at the base, such as eps=1e-8")
    return numbers


def mark_shape_only(numbers: Recipe) -> Recipe:
    """Marks tensors whose powers follow from their shapes alone as undecided, if the equations of other tensors are
    known, and returns the recipe.
    """
    *others, last = numbers.derivations

    def mark_open(d: Derivation) -> Derivation:
        why, demand = f"by shape: {d.network.unread}", "the numbers of a tensor hold"
        sizes = tuple(OpenDemand(demand, role, 0, why, role) for role in d.network.tensors)
        return replace(d, level=Level(sizes)) if d.network.unread else d

    return numbers if last.network.unread else replace(numbers, derivations=(*map(mark_open, others), last))


def build_plan(
    model: nn.Module,
    reading: TracedModel,
    numbers: Recipe,
    small: Sequence[nn.Module],
    fold: bool = False,
    records: Callable[[], Records] | None = None,
    twins: Sequence[nn.Module] = (),
) -> Plan:
    """Returns the plan of a module that has been traced, given the recipe for it.

    Args:
        model: the module at the target.
        reading: the traced module.
        numbers: the recipe for it.
        small: the modules that were traced, which show how parameters are initialised.
        fold: whether multipliers that the module lacks are folded into the tensors at the end of their branch.
        records: returns configurations of a model of the library transformers at several sizes; None for other models.
        twins: the modules ``small`` built under another seed, which show whether initial values are random.

    Raises:
        UsageError: the output does not depend on a parameter, or a multiplier to fold ends in no matrix.
    """
    settings, left = compute_settings(reading, numbers)
    besides = {name: "" if x == 1 else f"{x:.4g}" for name, x in left.items()}
    if fold:
        settings, left = compute_settings(reading, numbers, fold)
    entries = build_entries(model, reading, numbers, settings, small, records, twins)
    warnings = collect_warnings(model, reading, numbers, entries, small, {} if fold else besides)
    buffers = tuple(strip_wrappers(name) for name, _ in model.named_buffers())
    return Plan(model, numbers, tuple(entries), find_aliases(model), buffers, left, warnings, sample_buffers(model))
