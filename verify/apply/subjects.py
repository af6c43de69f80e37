"""What is planned: a module at the target, its reading, and small modules of it, however the model was given.

A function builds modules at any sizes; a model of transformers does so by its configuration. Read next:
``planning.py`` (derives the numbers of it).
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
from scaling_algebra.verify.tracing import Traced
from scaling_algebra.verify.tracing.building import called, limited
from scaling_algebra.verify.tracing.config_probing import Difference, probe
from scaling_algebra.verify.tracing.config_reading import layered, read_configured
from scaling_algebra.verify.tracing.config_skeletons import general
from scaling_algebra.verify.tracing.gradients import FROZEN, listed, roles_of
from scaling_algebra.verify.tracing.readings import read
from scaling_algebra.verify.tracing.sources import WIDTHS

from .entries import uniform_start
from .modules import parameters
from .parts import Records
from .starts import build_twin

GIVE = "give plan(build, base, target), where build(sizes) returns the module"
MOST_READ = 3 * 10**7
"""Parameters of a base at which a module is read, where it is another one at small sizes."""
ODD = "sizes grow by another factor than the axis that they are read with (N, N_e or M), whose powers they have"


@dataclass(frozen=True)
class PlanSubject:
    """A model that is planned.

    Attributes:
        model: the module at the target.
        base, target: the sizes of the tuned model and of this one.
        reading: of the module. readings: of its kinds of layers, each by itself.
        small: modules of every kind of layers, at sizes at which they were read.
        twins: the same under another seed.
        records: as for ``parts.spans``.
        tuned: the module that frozen tensors are compared with, and its sizes; None where there is none.
        odd: what the numbers leave out, since it is read otherwise; a line each. notes: what to look at.
        longer: where heads grow in number and in dimension: both dimensions, and the reading of a module in which
            their dimension grows alone.
    """

    model: nn.Module
    base: Sizes
    target: Sizes
    reading: Traced
    readings: Sequence[Traced]
    small: Sequence[nn.Module]
    twins: Sequence[nn.Module] = ()
    records: Callable[[], Records] | None = None
    tuned: tuple[nn.Module, Mapping[str, int]] | None = None
    odd: Sequence[str] = ()
    notes: Sequence[str] = ()
    longer: tuple[tuple[int, int], Traced] | None = None


def read_subject(model: Any, base: Any, target: Any, strict: bool) -> PlanSubject:
    """Read the model of a plan.

    Args:
        model, base, target: as for ``plan``.
        strict: equations, or nothing.

    Raises:
        UsageError: a model that cannot be read or built, or sizes that do not fit it.
    """
    if isinstance(model, nn.Module):
        if target is not None:
            raise UsageError("a model of transformers says its own sizes; leave out target")
        return _read_configured(model, base, strict)
    if not callable(model) or isinstance(base, nn.Module) or target is None:
        raise UsageError(f"{GIVE}, and sizes are texts")
    return _read_function(model, read_sizes(base, "base"), read_sizes(target, "target"), strict)


def _read_function(build: Callable[[dict[str, int]], Any], base: Sizes, target: Sizes, strict: bool) -> PlanSubject:
    way(base, target)  # of one set of axes
    build, bare = limited(build, base), _bare(limited(build, base), base)
    few = sum(x.numel() for x in bare.parameters()) <= MOST_READ
    made: list[PlanSubject] = []

    def refuse(reading: Traced) -> str:
        """Builds what a reading plans, and says which tensors grow other than it has them."""
        made[:] = [_at_sizes(build, reading, base, target)]
        made[0] = replace(made[0], odd=grows_otherwise(made[0], bare))
        return "; ".join(made[0].odd)

    read(build, strict=strict, smallest=base if few else None, refuse=refuse)
    return made[0]


def _at_sizes(build: Callable[[dict[str, int]], Any], reading: Traced, base: Sizes, target: Sizes) -> PlanSubject:
    """The module at the target, and the small one that shows how vectors start."""
    small = dict(reading.base)
    small |= {x: n for x, n in target.items() if n == base.get(x) and x in small and x not in ("M", "K")}
    start, large = (called(build, dict(sizes))[0] for sizes in (small, target))
    if _on_meta(start):  # how its vectors start is not known
        small = dict(reading.base)
        start = called(build, small)[0]
    at_base = {**small, **base}
    grows = [x for x in WIDTHS if x in small and target.get(x) != base.get(x)]
    pair = start, called(build, small | {x: 2 * small[x] for x in grows})[0]
    if any(len({uniform_start([x], role) for x in pair} - {None}) > 1 for role in reading.roles):
        there = called(build, dict(at_base))[0]  # vectors start at a value that changes with the sizes
        small, start = (small, start) if _on_meta(there) else (at_base, there)
    return PlanSubject(
        large, base, target, reading, [reading], [start], [build_twin(build, small)], tuned=(start, small)
    )


def _read_configured(model: nn.Module, base: Any, strict: bool) -> PlanSubject:
    """A model of transformers: its code is read with one layer, or with layers as an axis where L grows."""
    small = base if isinstance(base, nn.Module) else None
    record, other = _config(model).to_dict(), None if small is None else _config(small).to_dict()
    config = probe(record, "the configuration")
    sizes, target = read_sizes(base, "base") if small is None else config.sizes(other), config.sizes()
    deep = sizes.get("L") != target.get("L")
    reading, odd = read_configured(config, other, deep, strict)
    readings, kinds = [reading], [config]
    if config.mixed and _unread(model, reading):  # layers without experts, each kind of layer by itself
        kinds.insert(0, probe(record, "the configuration", dense=True))
        readings.insert(0, read_configured(kinds[0], other, deep, strict)[0])
    beside = [Difference() if other is None else x.compare(other) for x in kinds]
    builds = [x.builder(deep, difference) for x, difference in zip(kinds, beside, strict=True)]
    state = {e.name: FROZEN if e.frozen else "" for e in parameters(model)}
    found = [roles_of(state, x.roles) for x in readings]
    elsewhere = [{n for other in found for n in state if other[n] and not mine[n]} for mine in found]
    readings = [
        x.freezing({n: why for n, why in state.items() if n not in there})
        for x, there in zip(readings, elsewhere, strict=True)
    ]
    twice = [{axis: n * k for axis, n in readings[-1].base.items()} for k in (1, 2)]
    subject = PlanSubject(
        model,
        sizes,
        target,
        joined(readings),
        readings,
        [called(build, dict(x.base))[0] for build, x in zip(builds, readings, strict=True)],
        [build_twin(build, x.base) for build, x in zip(builds, readings, strict=True)],
        records=lambda: [(z, _config(called(builds[-1], dict(z))[0]).to_dict()) for z in twice] + [(target, record)],
    )
    if small is None:
        return subject
    dims = config.heads_grow(other or record)
    longer = config.compare(config.longer_heads())
    return replace(
        subject,
        tuned=(small, sizes),
        odd=odd,
        notes=grows_otherwise(subject, small),
        longer=None if dims is None else (dims, layered(read(config.builder(False, longer)))),
    )


def _config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        raise UsageError(f"{type(model).__name__} has no configuration of transformers; {GIVE}")
    return config


def _unread(model: nn.Module, reading: Traced) -> list[str]:
    """Parameters that train and that a reading lacks."""
    train = [e.name for e in parameters(model) if not e.frozen]
    return [name for name, roles in roles_of(train, reading.roles).items() if not roles]


def joined(readings: Sequence[Traced]) -> Traced:
    """The readings of the kinds of layers of one model as one: the equations of the last, with the factors of all."""
    last = readings[-1]
    factors: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name, (place, powers) in ((name, x) for r in readings for name, x in r.factors.items()):
        places = [factors[name][0]] if name in factors and factors[name][0] != place else []
        factors[name] = " and ".join([*places, place]), powers
    notes = list(dict.fromkeys(x for r in readings for x in r.notes))
    spans = {role: x for r in readings for role, x in r.spans.items()}
    return replace(last, factors=factors, notes=notes, spans=spans)


def _bare(model: Callable[[dict[str, int]], Any], sizes: Sizes) -> nn.Module:
    """The module at these sizes, without values where it can be."""
    try:
        with torch.device("meta"):
            return called(model, dict(sizes))[0]
    except UsageError:
        return called(model, dict(sizes))[0]


def _on_meta(model: nn.Module) -> bool:
    return any(x.is_meta for x in model.parameters())


def grows_otherwise(subject: PlanSubject, small: nn.Module) -> list[str]:
    """Tensors whose number of entries grows other than the axes do that they are read with."""
    counts = {name: e.tensor.numel() for e in parameters(small) for name in (general(e.name), e.name)}
    entries = {e.name: e for e in parameters(subject.model)}
    known = {role: network for x in subject.readings for network in x.networks for role in network.tensors}
    odd: dict[str, None] = {}
    for name, roles in roles_of(entries, known).items():
        before = counts.get(name, counts.get(general(name)))
        if roles and before is not None:
            network = known[roles[0]]
            letters = [x for x in network.tensors[roles[0]].letters if network.axes[x] != "L"]
            grows = network.size(letters).ratio(subject.base, subject.target)
            if not math.isclose(entries[name].tensor.numel(), before * grows):
                odd[parameter_of(roles[0])] = None
    return [f"{listed(odd)}: {ODD}"] if odd else []
