"""A plan of a live ``nn.Module``, read off its code: ``plan``.

Read next: ``subjects.py`` (what is read), ``entries.py`` (its numbers), ``plans.py`` (what comes out).
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
from scaling_algebra.verify.tracing import Traced
from scaling_algebra.verify.tracing.config_skeletons import general
from scaling_algebra.waiting import collect_rarely, show_progress

from .entries import entries_of, settings_of, warnings_of
from .frozen import frozen
from .modules import aliases, beginnings, check_named, plain_name
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
    """The numbers of every parameter of a model, by its name.

    Args:
        model: ``build(sizes)``, a function that returns the module, which is read at small sizes and built at the
            target. Or a model of transformers at the target, on any device, also ``meta``: its configuration says how
            to build it.
        base, target: sizes as for ``recipe``; of a model of transformers the tuned model, or its sizes, alone.
        fold: multipliers that muP asks for and that the module lacks go into the matrices that end their branch, so
            that nothing is left to the model.
        strict: refuse what is not certified, and a model that cannot be read, for which the plan is by the shapes of
            its parameters otherwise.
        given: for ``recipe``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer`` (adamw), ``parameterization``, ...

    Raises:
        UsageError: a model that cannot be read or built, a parameter that the output does not depend on, rates without
            epsilons, a multiplier that is to be folded and ends in no matrix, or what ``recipe`` raises.
    """
    with show_progress("plan"), collect_rarely(), torch.random.fork_rng(devices=[]):
        if isinstance(model, nn.Module):
            check_named(model, given)
        return _plan(read_subject(model, base, target, strict), fold, strict, {**given, "strict": strict})


def _plan(subject: PlanSubject, fold: bool, strict: bool, given: Mapping[str, Any]) -> Plan:
    """The plan of what was read, with what its frozen tensors and odd ones leave open."""
    numbers = _numbers(subject.base, subject.target, given, subject.readings)
    parts = subject.small, fold, subject.records, subject.twins
    p = planned(subject.model, subject.reading, numbers, *parts)
    if subject.tuned is None:
        return p
    small, base = subject.tuned
    r = p.recipe
    other = [OpenDemand("there is one on this ray", "the ray", 0, f"{r.missing}; these are powers of {r.instead}")]
    read = [OpenDemand("sizes grow as they are read", "shapes", 0, line) for line in subject.odd]
    held = (*r.open, *(other if r.missing else ()), *read, *frozen(p, small, base))
    if held and strict:
        raise Infeasible(f"{p.about}: {held[0]}", undecided=True)
    warnings = (*_longer_heads(subject, given), *p.warnings, *subject.notes)
    return replace(p, recipe=replace(r, open=held), starts={**beginnings(small), **p.starts}, warnings=warnings)


def _longer_heads(subject: PlanSubject, given: Mapping[str, Any]) -> Iterator[str]:
    """Where heads grow in number and in dimension: what the second asks for. On a first way the dimension grows with
    as many heads, on a second one, that of the plan, their number."""
    if subject.longer is None:
        return
    dims, reading = subject.longer
    base, n = subject.base, subject.base["N"] * dims[1]
    start = {axis: k * dims[0] if axis == "N" else k for axis, k in base.items()}
    numbers = _numbers(start, {**start, "N": n}, given, [reading])
    for name, setting in numbers.multipliers.items():
        place, own = reading.factors.get(name, ("", {}))
        left = setting.factor / Power.of(own).ratio({**start, "N": dims[0]}, {**start, "N": dims[1]})
        if not math.isclose(left, 1):
            yield (
                f"heads grow in number and from dimension {dims[0]} to {dims[1]}: multiply {name} of "
                f"{general(place)} by {left:.4g} in the model for the second, besides; fold does not hold it"
            )


def _numbers(base: Any, target: Any, given: Mapping[str, Any], readings: Sequence[Traced]) -> Recipe:
    check_names("argument of plan", given, TAKEN)
    asked = {"optimizer": "adamw", **given, "network": tuple(n for x in readings for n in x.networks), "starts": ()}
    numbers = with_either_epsilon(base, target, **asked)
    numbers = replace(numbers, open=tuple(o for x in readings for o in x.open_shares(*numbers.way.sizes)))
    if numbers.open and given.get("strict"):
        raise Infeasible(f"{numbers.about}: {numbers.open[0]}", undecided=True)
    if multiplied := [r for r, s in numbers.tensors.items() if "multiplier" in s]:
        raise UsageError(f"a plan sets no multiplier, and {multiplied[0]} has one in this gauge; take the gauge table3")
    numbers = opened(numbers)
    lacking = [r for r, s in numbers.tensors.items() if "eps" in s and s["lr"].base and s["eps"].base is None]
    if lacking:
        who = lacking[0] if len(lacking) < len(numbers.tensors) else "Adam"
        raise UsageError(f"the epsilon of {who} scales, too; give eps=1e-8, or what it is at the base")
    return numbers


def opened(numbers: Recipe) -> Recipe:
    """A recipe certified but for the tensors whose numbers are by shape, beside equations that are known."""
    *others, last = numbers.derivations

    def told(d: Derivation) -> Derivation:
        why, demand = f"by shape: {d.network.unread}", "the numbers of a tensor hold"
        sizes = tuple(OpenDemand(demand, role, 0, why, role) for role in d.network.tensors)
        return replace(d, level=Level(sizes)) if d.network.unread else d

    return numbers if last.network.unread else replace(numbers, derivations=(*map(told, others), last))


def planned(
    model: nn.Module,
    reading: Traced,
    numbers: Recipe,
    small: Sequence[nn.Module],
    fold: bool = False,
    records: Callable[[], Records] | None = None,
    twins: Sequence[nn.Module] = (),
) -> Plan:
    """The numbers of every parameter by its name, as a module's own reading has them.

    Args:
        model, reading, numbers, small, records, twins: as for ``entries_of``.
        fold: as for ``settings_of``.

    Raises:
        UsageError: parameters that the output does not depend on, or a multiplier that is to be folded and ends in no
            matrix.
    """
    besides = {name: "" if x == 1 else f"{x:.4g}" for name, x in settings_of(reading, numbers)[1].items()}
    settings, left = settings_of(reading, numbers, fold)
    entries = entries_of(model, reading, numbers, settings, small, records, twins)
    warnings = warnings_of(model, reading, numbers, entries, small, {} if fold else besides)
    buffers = tuple(plain_name(name) for name, _ in model.named_buffers())
    return Plan(model, numbers, tuple(entries), aliases(model), buffers, left, warnings, beginnings(model))
