"""Prepares what a plan needs of a model: the module at the target, its readings, and small modules for comparison.

A model is a function that builds modules at any sizes, or a model of transformers, which is built from its
configuration. Read next: ``planning.py`` (derives the numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes, read_sizes, way
from scaling_algebra.spec.optimizer_reading import parameter_of
from scaling_algebra.verify.tracing import TracedModel
from scaling_algebra.verify.tracing.building import call_build, limit_sizes
from scaling_algebra.verify.tracing.config_probing import ConfigDifference, probe_config
from scaling_algebra.verify.tracing.config_reading import merge_layer_names, read_probed_config
from scaling_algebra.verify.tracing.config_skeletons import mask_numbers
from scaling_algebra.verify.tracing.gradients import FROZEN, join_names, match_roles
from scaling_algebra.verify.tracing.model_loading import WIDTHS
from scaling_algebra.verify.tracing.readings import read_module

from .entries import find_uniform_start
from .initial_values import build_twin
from .modules import iterate_entries
from .parts import Records

GIVE = "give plan(build, base, target), where build(sizes) returns the module"
MOST_READ = 3 * 10**7
"""Maximum number of parameters of a base that is traced because the model is built differently at small sizes."""
ODD = (
    "these dimensions grow by another factor than the axis as which they were read (N, N_e or M); the numbers follow "
    "that axis"
)


@dataclass(frozen=True)
class PlanSubject:
    """A model to plan, with everything that its plan is computed from.

    Attributes:
        model: the module at the target.
        base: the sizes of the tuned model.
        target: the sizes of ``model``.
        reading: the equations and parameters that tracing found (``TracedModel``).
        readings: one reading for each kind of layer (dense, mixture of experts).
        small: for each reading, a module at the small sizes at which it was traced.
        twins: the modules ``small`` built under another seed.
        records: returns configurations at several sizes, as for ``parts.locate_parts``.
        tuned: a smaller module, whose frozen tensors are compared with those at the target, and its sizes; None if
            there is none.
        odd: warnings on tensors whose sizes do not grow as their axes in the traced equations do; the numbers of the
            plan
            follow the equations all the same.
        notes: further warnings.
        longer: if heads grow in number and in dimension: the two dimensions, and the reading of a module in which only
            the dimension grows.
    """

    model: nn.Module
    base: Sizes
    target: Sizes
    reading: TracedModel
    readings: Sequence[TracedModel]
    small: Sequence[nn.Module]
    twins: Sequence[nn.Module] = ()
    records: Callable[[], Records] | None = None
    tuned: tuple[nn.Module, Mapping[str, int]] | None = None
    odd: Sequence[str] = ()
    notes: Sequence[str] = ()
    longer: tuple[tuple[int, int], TracedModel] | None = None


def read_subject(model: Any, base: Any, target: Any, strict: bool) -> PlanSubject:
    """Traces the model of a plan, and builds the modules that the plan needs.

    Args:
        model: as for ``plan``.
        base: as for ``plan``.
        target: as for ``plan``.
        strict: whether a model whose equations cannot be read is an error.

    Raises:
        UsageError: the model cannot be read or built, or the sizes do not fit it.
    """
    if isinstance(model, nn.Module):
        if target is not None:
            raise UsageError("the sizes of a transformers model are known from its configuration; leave out target")
        return _read_configured(model, base, strict)
    if not callable(model) or isinstance(base, nn.Module) or target is None:
        raise UsageError(f"{GIVE}, and sizes are texts")
    return _read_build_function(model, read_sizes(base, "base"), read_sizes(target, "target"), strict)


def _read_build_function(
    build: Callable[[dict[str, int]], Any], base: Sizes, target: Sizes, strict: bool
) -> PlanSubject:
    """Traces a model given as a ``build`` function, and returns it with the modules that its plan needs."""
    way(base, target)  # checks that both have the same axes
    build, bare = limit_sizes(build, base), _build_on_meta(limit_sizes(build, base), base)
    few = sum(x.numel() for x in bare.parameters()) <= MOST_READ
    made: list[PlanSubject] = []

    def refuse(reading: TracedModel) -> str:
        """Builds the module at the target, and returns the reason to reject a reading: a warning on tensors that do not
        grow as the reading says, or "" if all do.

        Args:
            reading: the equations and parameters that tracing found, to be tested.
        """
        made[:] = [_build_subject(build, reading, base, target)]
        made[0] = replace(made[0], odd=find_odd_growth(made[0], bare))
        return "; ".join(made[0].odd)

    read_module(build, strict=strict, smallest=base if few else None, refuse=refuse)
    return made[0]


def _build_subject(
    build: Callable[[dict[str, int]], Any], reading: TracedModel, base: Sizes, target: Sizes
) -> PlanSubject:
    """Builds the module at the target, and a smaller one that shows how its parameters are initialised, and returns
    both with the reading.
    """
    small = dict(reading.base)
    small |= {x: n for x, n in target.items() if n == base.get(x) and x in small and x not in ("M", "K")}
    start, large = (call_build(build, dict(sizes))[0] for sizes in (small, target))
    if _is_on_meta(start):  # the initial values of its vectors are unknown
        small = dict(reading.base)
        start = call_build(build, small)[0]
    at_base = {**small, **base}
    grows = [x for x in WIDTHS if x in small and target.get(x) != base.get(x)]
    pair = start, call_build(build, small | {x: 2 * small[x] for x in grows})[0]
    if any(len({find_uniform_start([x], role) for x in pair} - {None}) > 1 for role in reading.roles):
        # the initial values of vectors depend on the sizes, so those of the base are needed
        there = call_build(build, dict(at_base))[0]
        small, start = (small, start) if _is_on_meta(there) else (at_base, there)
    return PlanSubject(
        large, base, target, reading, [reading], [start], [build_twin(build, small)], tuned=(start, small)
    )


def _read_configured(model: nn.Module, base: Any, strict: bool) -> PlanSubject:
    """Traces a model of the library transformers, and returns it with the modules that its plan needs. The model is
    traced with one layer, or, if the depth L grows, with the layers as an axis.
    """
    small = base if isinstance(base, nn.Module) else None
    record, other = _get_config(model).to_dict(), None if small is None else _get_config(small).to_dict()
    config = probe_config(record, "the configuration")
    sizes, target = read_sizes(base, "base") if small is None else config.sizes(other), config.sizes()
    deep = sizes.get("L") != target.get("L")
    reading, odd = read_probed_config(config, other, deep, strict)
    readings, kinds = [reading], [config]
    if config.mixed and _find_unread(model, reading):  # layers without experts: read each kind of layer separately
        kinds.insert(0, probe_config(record, "the configuration", dense=True))
        readings.insert(0, read_probed_config(kinds[0], other, deep, strict)[0])
    beside = [ConfigDifference() if other is None else x.compare(other) for x in kinds]
    builds = [x.make_builder(deep, difference) for x, difference in zip(kinds, beside, strict=True)]
    state = {e.name: FROZEN if e.frozen else "" for e in iterate_entries(model)}
    found = [match_roles(state, x.roles) for x in readings]
    elsewhere = [{n for other in found for n in state if other[n] and not mine[n]} for mine in found]
    readings = [
        x.with_frozen({n: why for n, why in state.items() if n not in there})
        for x, there in zip(readings, elsewhere, strict=True)
    ]
    twice = [{axis: n * k for axis, n in readings[-1].base.items()} for k in (1, 2)]
    subject = PlanSubject(
        model,
        sizes,
        target,
        merge_readings(readings),
        readings,
        [call_build(build, dict(x.base))[0] for build, x in zip(builds, readings, strict=True)],
        [build_twin(build, x.base) for build, x in zip(builds, readings, strict=True)],
        records=lambda: (
            [(z, _get_config(call_build(builds[-1], dict(z))[0]).to_dict()) for z in twice] + [(target, record)]
        ),
    )
    if small is None:
        return subject
    dims = config.find_head_growth(other or record)
    longer = config.compare(config.make_longer_heads())
    return replace(
        subject,
        tuned=(small, sizes),
        odd=odd,
        notes=find_odd_growth(subject, small),
        longer=None if dims is None else (dims, merge_layer_names(read_module(config.make_builder(False, longer)))),
    )


def _get_config(model: nn.Module) -> Any:
    """Returns the configuration of a model of the library transformers.

    Raises:
        UsageError: the model has no configuration.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        raise UsageError(f"{type(model).__name__} has no configuration of transformers; {GIVE}")
    return config


def _find_unread(model: nn.Module, reading: TracedModel) -> list[str]:
    """Returns the names of the trainable parameters that do not occur in the traced equations."""
    train = [e.name for e in iterate_entries(model) if not e.frozen]
    return [name for name, roles in match_roles(train, reading.roles).items() if not roles]


def merge_readings(readings: Sequence[TracedModel]) -> TracedModel:
    """Merges the readings of one model, one for each kind of layer: the result has the equations of the last one, and
    the multipliers, notes and packed parts of all.
    """
    last = readings[-1]
    factors: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name, (place, powers) in ((name, x) for r in readings for name, x in r.factors.items()):
        places = [factors[name][0]] if name in factors and factors[name][0] != place else []
        factors[name] = " and ".join([*places, place]), powers
    notes = list(dict.fromkeys(x for r in readings for x in r.notes))
    spans = {role: x for r in readings for role, x in r.spans.items()}
    return replace(last, factors=factors, notes=notes, spans=spans)


def _build_on_meta(model: Callable[[dict[str, int]], Any], sizes: Sizes) -> nn.Module:
    """Builds the module on the meta device, without values; if that fails, builds it with values."""
    try:
        with torch.device("meta"):
            return call_build(model, dict(sizes))[0]
    except UsageError:
        return call_build(model, dict(sizes))[0]


def _is_on_meta(model: nn.Module) -> bool:
    return any(x.is_meta for x in model.parameters())


def find_odd_growth(subject: PlanSubject, small: nn.Module) -> list[str]:
    """Returns a warning on the tensors whose number of entries does not grow from the base to the target as their axes
    in the traced equations do; an empty list if there are none.

    Args:
        subject: the model, with its readings.
        small: the module at the base.
    """
    counts = {name: e.tensor.numel() for e in iterate_entries(small) for name in (mask_numbers(e.name), e.name)}
    entries = {e.name: e for e in iterate_entries(subject.model)}
    known = {role: network for x in subject.readings for network in x.networks for role in network.tensors}
    odd: dict[str, None] = {}
    for name, roles in match_roles(entries, known).items():
        before = counts.get(name, counts.get(mask_numbers(name)))
        if roles and before is not None:
            network = known[roles[0]]
            indices = [x for x in network.tensors[roles[0]].indices if network.axes[x] != "L"]
            grows = network.size(indices).ratio(subject.base, subject.target)
            if not math.isclose(entries[name].tensor.numel(), before * grows):
                odd[parameter_of(roles[0])] = None
    return [f"{join_names(odd)}: {ODD}"] if odd else []
