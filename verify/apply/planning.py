"""A plan of a live ``nn.Module``, read off its code: ``plan``.

Read next: ``verify/tracing`` (the reading), ``folding.py`` (factors that it lacks), ``plans.py`` (what comes out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.arguments import checked
from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.recipes.files import sizes_of
from scaling_algebra.recipes.recipe import Recipe, recipe, with_either_epsilon
from scaling_algebra.recipes.sizes import Sizes, read_sizes
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.level import Level, Open
from scaling_algebra.spec.networks.language import Sum
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.trained import whole
from scaling_algebra.verify.tracing import Traced
from scaling_algebra.verify.tracing.gradients import FROZEN, listed, roles_of
from scaling_algebra.verify.tracing.measuring import of_role
from scaling_algebra.verify.tracing.models import called, limited
from scaling_algebra.verify.tracing.shapes import along, read
from scaling_algebra.verify.tracing.sources import WIDTHS, general, heads_grow, layered, longer_heads, small_of
from scaling_algebra.waiting import rarely_collected, watched

from .exports import shaped
from .folding import ends, scaled
from .modules import Entry, aliases, beginnings, check_named, norms, parameters, plain_name
from .parts import Records, alike, apart, fused
from .parts import spans as spans_of
from .plans import Plan, trainer
from .remarks import remarks
from .starts import build_twin, find_structured

GIVE = "give plan(build, base, target), where build(sizes) returns the module"

APART, CHANCE = 0.05, 3.0
"""Relative difference of the size of a frozen tensor from the power that the numbers need, and standard errors of it,
from which on it is told."""
TAKEN = ("fold", *(x for x in signature(recipe).parameters if x not in ("base", "target", "starts", "where")))
TAKEN += ("readout_init", "epsilon", "effort")
"""Arguments of ``plan`` besides the model and the sizes."""
MOST_READ = 3 * 10**7
"""Parameters of a base at which a module is read, where it is another one at small sizes."""
NEGLIGIBLE = "these are numbers of a negligible epsilon: keep it far below every gradient, as 1e-30 is and 1e-8 may be"
UNDECAYED = (
    "no decay was given: every group has weight_decay 0, whatever the optimizer itself is given; give decay=NUMBER"
)
ZERO = "{}: starts at zero in the module, and init_ draws it; leave out its std, and it stays"
KEPT = (
    "{}: init_ keeps the module's own start and does not use their std: under two seeds it is no draw of one law that "
    "is centred at zero"
)
NORMS = "{}: init_ sets these to the norms of the matrices that it draws, as torch does; their init std is not heeded"
SHAPED = (
    "{}: more rows than columns; torch.optim.Muon multiplies its rate by sqrt(out/in) unless adjust_lr_fn says"
    " otherwise, which these numbers do not know: plan with muon:original for it, or let your Muon multiply by 1"
)


@checked
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
    with watched("plan"), rarely_collected(), torch.random.fork_rng(devices=[]):
        return _plan(model, base, target, fold, strict, given)


def _plan(model: Any, base: Any, target: Any, fold: bool, strict: bool, given: Mapping[str, Any]) -> Plan:
    """The plan of a model of transformers, or of a function that builds a module."""
    if isinstance(model, nn.Module):
        return _configured(model, base, target, fold, strict, given)
    if not callable(model) or isinstance(base, nn.Module) or target is None:
        raise UsageError(f"{GIVE}, and sizes are texts")
    sizes = read_sizes(base, "base")
    model, bare = limited(model, sizes), _bare(limited(model, sizes), sizes)
    few = sum(x.numel() for x in bare.parameters()) <= MOST_READ
    try:
        reading = read(model, strict=strict)
    except UsageError:  # at the small sizes that are usual
        if not few:
            raise
        reading = read(model, sizes, strict)
    if "raises" in reading.network.unread and few:
        reading = read(model, sizes)
    p, start, small = _built(model, reading, base, target, fold, {**given, "strict": strict})
    if (odd := _otherwise(p, bare)) and few and not sizes.items() <= reading.base.items():  # there it is another model
        p, start, small = _built(model, read(model, sizes, strict), base, target, fold, {**given, "strict": strict})
        odd = _otherwise(p, bare)
    return _holding(p, start, small, strict, odd)


def _bare(model: Callable[[dict[str, int]], Any], sizes: Sizes) -> nn.Module:
    """The module at these sizes, without values where it can be."""
    try:
        with torch.device("meta"):
            return called(model, dict(sizes))[0]
    except UsageError:
        return called(model, dict(sizes))[0]


def _built(
    model: Callable[[dict[str, int]], Any],
    reading: Traced,
    base: Any,
    target: Any,
    fold: bool,
    given: Mapping[str, Any],
) -> tuple[Plan, nn.Module, dict[str, int]]:
    """The plan of a reading, the small module that shows how vectors start, and its sizes."""
    numbers = _numbers(base, target, given, [reading])
    going, small = numbers.way, dict(reading.base)
    small |= {x: n for x, n in going.target.items() if n == going.base[x] and x in small and x not in ("M", "K")}
    start, large = (called(model, dict(sizes))[0] for sizes in (small, going.target))
    if _on_meta(start):  # how its vectors start is not known
        small = dict(reading.base)
        start = called(model, small)[0]
    at_base = {**small, **going.base}
    grows = [x for x in WIDTHS if x in small and going.target[x] != going.base[x]]
    wider = small | {x: 2 * small[x] for x in grows}
    pair = start, called(model, wider)[0]
    if any(len({_alike([x], role) for x in pair} - {None}) > 1 for role in numbers.tensors):
        there = called(model, dict(at_base))[0]  # vectors start at a value that changes with the sizes
        small, start = (small, start) if _on_meta(there) else (at_base, there)
    p = planned(large, reading, numbers, [start], fold, twins=[build_twin(model, small)])
    return p, start, small


def _on_meta(model: nn.Module) -> bool:
    return any(x.is_meta for x in model.parameters())


def _holding(p: Plan, small: nn.Module, base: Mapping[str, int], strict: bool, odd: Sequence[str] = ()) -> Plan:
    """A plan with what its frozen tensors and ``odd`` ones leave open, and with how buffers start where its model is on
    meta."""
    r = p.recipe
    other = [Open("there is one on this ray", "the ray", 0, f"{r.missing}; these are powers of {r.instead}")]
    read = [Open("sizes grow as they are read", "shapes", 0, line) for line in odd]
    held = (*r.open, *(other if r.missing else ()), *read, *frozen(p, small, base))
    if held and strict:
        raise Infeasible(f"{p.about}: {held[0]}", undecided=True)
    return replace(p, recipe=replace(p.recipe, open=held), starts={**beginnings(small), **p.starts})


def _configured(model: nn.Module, base: Any, target: Any, fold: bool, strict: bool, given: Mapping[str, Any]) -> Plan:
    """The plan of a model of transformers: its code is read with one layer, or with layers as an axis where L grows."""
    config, small = _config(model), base if isinstance(base, nn.Module) else None
    if target is not None:
        raise UsageError("a model of transformers says its own sizes; leave out target")
    check_named(model, given)
    base = read_sizes(base, "base") if small is None else sizes_of(_config(small), "base model")
    target = sizes_of(config, "model")
    record, deep = config.to_dict(), base.get("L") != target["L"]
    beside = None if small is None else _config(small).to_dict()
    build = small_of(record, "the configuration", deep=deep, beside=beside)
    readings, builds = [layered(read(build, strict=strict))], [build]
    if _unread(model, readings[0]) and "M" in target:  # layers without experts, each kind of layer by itself
        builds.insert(0, small_of(record, "the configuration", deep=deep, dense=True, beside=beside))
        readings.insert(0, layered(read(builds[0], strict=strict)))
    state = {e.name: FROZEN if e.frozen else "" for e in parameters(model)}
    found = [roles_of(state, x.roles) for x in readings]
    elsewhere = [{n for other in found for n in state if other[n] and not mine[n]} for mine in found]
    readings = [
        x.freezing({n: why for n, why in state.items() if n not in there})
        for x, there in zip(readings, elsewhere, strict=True)
    ]
    sizes = [{axis: n * k for axis, n in readings[-1].base.items()} for k in (1, 2)]
    p = planned(
        model,
        joined(readings),
        _numbers(base, target, {**given, "strict": strict}, readings),
        [called(build, dict(x.base))[0] for build, x in zip(builds, readings, strict=True)],
        fold,
        lambda: [(z, _config(called(build, dict(z))[0]).to_dict()) for z in sizes] + [(target, record)],
        [build_twin(build, x.base) for build, x in zip(builds, readings, strict=True)],
    )
    if small is None:
        return p
    longer = _longer_heads(record, beside or record, base, given)
    p = replace(p, warnings=(*longer, *p.warnings, *_otherwise(p, small)))
    return _holding(p, small, base, strict)


def _longer_heads(
    record: Mapping[str, Any], small: Mapping[str, Any], base: Sizes, given: Mapping[str, Any]
) -> Iterator[str]:
    """Where heads grow in number and in dimension: what the second asks for. On a first way the dimension grows with
    as many heads, on a second one, that of the plan, their number."""
    if (dims := heads_grow(record, small)) is None:
        return
    build = small_of(record, "the configuration", deep=False, beside=longer_heads(record))
    reading, n = layered(read(build)), base["N"] * dims[1]
    start = {axis: k * dims[0] if axis == "N" else k for axis, k in base.items()}
    numbers = _numbers({**start, "N": base["N"] * dims[0]}, {**start, "N": n}, given, [reading])
    for name, setting in numbers.multipliers.items():
        place, own = reading.factors.get(name, ("", {}))
        left = setting.factor / Power.of(own).ratio({**start, "N": dims[0]}, {**start, "N": dims[1]})
        if not math.isclose(left, 1):
            yield (
                f"heads grow in number and from dimension {dims[0]} to {dims[1]}: multiply {name} of "
                f"{general(place)} by {left:.4g} in the model for the second, besides; fold does not hold it"
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
        sizes = tuple(Open(demand, role, 0, why, role) for role in d.network.tensors)
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
        small: the modules that were read, which show how parameters start.
        records: as for ``parts.spans``.
        twins: the same modules under another seed; where there are none, each start is judged by itself.

    Raises:
        UsageError: parameters that the output does not depend on, or a multiplier that is to be folded and ends in no
            matrix.
    """
    going, network = numbers.way, reading.network
    own = {name: Power.of(reading.factors.get(name, ("", {}))[1]) for name in numbers.multipliers}
    left = {name: s.factor / own[name].ratio(going.base, going.target) for name, s in numbers.multipliers.items()}
    left = {name: 1.0 if math.isclose(x, 1.0) else x for name, x in left.items()}
    besides = {name: "" if x == 1 else f"{x:.4g}" for name, x in left.items()}
    grown = [axis for axis, n in going.base.items() if going.target[axis] != n]
    lines = along(reading, grown).described({} if fold else besides)
    settings = dict(numbers.tensors)
    for name in [name for name, x in left.items() if fold and x != 1]:
        rule, x = numbers.multipliers[name].rule, left[name]
        assert rule is not None
        shared = [d.network for d in numbers.derivations if name in d.network.multipliers]  # kinds of layers
        for role in dict.fromkeys(role for one in shared for role in ends(one, name).roles):
            settings[role] = scaled(settings[role], rule / own[name], x, trainer(numbers, role))
        left[name] = 1.0
    filled = {role: _alike(small, role) for role in numbers.tensors}
    for role, value in filled.items():
        rule = settings[role]["init_std"].rule
        filled[role] = value if value is None or rule is None else value * rule.ratio(going.base, going.target)
    entries, named = [], list(parameters(model))
    roles = roles_of([e.name for e in named], numbers)
    train = [e.name for e in named if not e.frozen]
    still = {
        "the output does not depend on": [name for name in train if not roles[name]],
        "no gradient of the output reaches": [x for x in train if roles[x] and network.frozen.issuperset(roles[x])],
    }
    if said := [f"{why} {listed(names)}" for why, names in still.items() if names]:
        raise UsageError(f"{', and '.join(said)}; freeze, or leave out of the model")
    given = max((d.optimizer.name for d in numbers.derivations), key=len)
    pairs = [*zip(small, twins or small, strict=True)]
    structured = find_structured(pairs, [role for role, value in filled.items() if value is None])
    for e in named:
        mine = roles[e.name]
        rules = {role: trainer(numbers, role) for role in mine}
        kinds = [(settings[role], rules[role]) for role in mine]
        parts = {role: settings[role] for role in mine} if any(x != kinds[0] for x in kinds) else {}
        role, group = (mine[0], whole(mine[0])) if mine else ("", "")
        common = alike(parts) if parts else settings.get(role, {})
        fill, spans = filled.get(role), spans_of(e, parts, reading, going.target, records)
        do = apart(rules, group, given) if parts else ""
        e = replace(e, kept=not e.frozen and not structured.isdisjoint(mine))
        e = replace(e, role=role, settings=common, group=group, fill=fill, rules=rules, parts=parts, spans=spans)
        entries.append(replace(e, apart=do))
    stacks: dict[str, dict[str, None]] = {}
    for e in (e for e in entries if e.role and e.stacked):
        stacks.setdefault(shaped(e), {})[e.group] = None
    lines += [*([NEGLIGIBLE] if any(d.optimizer.regime == "negligible" for d in numbers.derivations) else [])]
    lines += dict.fromkeys(line for d in numbers.derivations if not d.network.unread for line in remarks(d))
    lines += [fused(e) for e in {e.group: e for e in entries if e.parts}.values()]
    lines += [f"{', '.join(groups)}: {note}" for note, groups in stacks.items()]
    high = dict.fromkeys(e.group for e in entries if e.role and _unshaped(e))
    lines += [*([SHAPED.format(", ".join(high))] if high else [])]
    zero = dict.fromkeys(e.group for e in entries if e.role and not e.frozen and _starts_at_zero(e, small))
    lines += [*([ZERO.format(", ".join(zero))] if zero else [])]
    kept = dict.fromkeys(e.group for e in entries if e.kept)
    lines += [*([KEPT.format(listed(kept))] if kept else [])]
    normed = [name for name, *_ in norms(model)]
    lines += [*([NORMS.format(listed(normed))] if normed else [])]
    tuned = [s for s in settings.values() if "decay" in s and s["lr"].base is not None]
    lines += [UNDECAYED] if tuned and all(s["decay"].base is None for s in tuned) else []
    buffers = tuple(plain_name(name) for name, _ in model.named_buffers())
    return Plan(model, numbers, tuple(entries), aliases(model), buffers, left, tuple(lines), beginnings(model))


def _unshaped(e: Entry) -> bool:
    """Would ``torch.optim.Muon`` scale a step by its shape, of which the rule does not say how?"""
    rule = e.rules[e.role]
    muon = rule.torch == "Muon" and rule.shape == "none" and not e.frozen
    return muon and len(e.shape) == 2 and e.shape[0] > e.shape[1]


def _starts_at_zero(e: Entry, small: Sequence[nn.Module]) -> bool:
    """Does a parameter that is drawn start at zero in the module?"""
    found = [x for model in small for x in of_role(model, e.role)]
    stds = [x["init_std"] for x in (e.settings, *e.parts.values()) if "init_std" in x]
    drawn = e.fill is None and any(std.rule is not None for std in stds)
    return drawn and bool(found) and not any(x.any() for x in found)


def _alike(models: Sequence[nn.Module], role: str) -> float | None:
    """The value that all entries of a vector start with, as the modules have it; None where they do not start alike."""
    values = [p.flatten() for model in models for p in of_role(model, role)]
    if not values or any(p.dim() > 1 or p.is_meta for model in models for p in of_role(model, role)):
        return None
    return float(values[0][0]) if all(bool((x == values[0][0]).all()) for x in values) else None


def frozen(p: Plan, small: nn.Module, base: Mapping[str, int]) -> Iterator[Open]:
    """Yield the tensors that keep the module's own values, where these change with its size by more than chance in
    another way than the numbers need. Those whose parts need different powers are not compared."""
    for e in (e for e in p.entries if (e.frozen or e.kept) and e.role):
        what, do = ("it is frozen", "let it train") if e.frozen else ("init_ keeps its start", "draw it around zero")
        found, demand = [*of_role(small, e.role)[:1], e.tensor], "a tensor that is not drawn is as large as derived"
        if any(x.is_meta for x in found):  # has no values
            continue
        if "init_std" not in e.settings:
            yield Open(demand, e.name, 0, f"{what}, and its parts are to go by different powers", e.role)
            continue
        rule, sizes = e.settings["init_std"].rule, [_size(x) for x in found]
        if rule is None or not all(sizes):
            continue
        going = p.recipe.way
        off = rule.ratio(base, going.target) / (sizes[-1] / sizes[0])
        if off > 1 and _added(p.recipe, e.role):  # a bias that is smaller does no harm
            continue
        if abs(math.log(off)) > max(APART, CHANCE * math.sqrt(sum(1 / (2 * x.numel()) for x in found))):
            at = ",".join(f"{axis}={n}" for axis, n in going.base.items())
            off **= _share(base, going.base, going.target)
            why = f"{what}, and the numbers need that it goes as {rule}: from {at} on the module's own is"
            why += f" {1 / off:.3g} times that; multiply it, or what it makes, by {off:.3g}, or {do}"
            yield Open(demand, e.name, 0, why, e.role)


def _added(numbers: Recipe, role: str) -> bool:
    """Is a tensor one number for each entry of what it is added to?"""
    network = next(d.network for d in numbers.derivations if role in d.network.tensors)
    read = (x.name for s in network.uses(role) for x in s.factors)
    readers = (x for s in network.uses(role) for x, _ in network.consumers(s.out))
    added = all(isinstance(x, Sum) for x in readers) and all(network.producer(name) is None for name in read)
    return added and not network.tensors[role].fan_in


def _share(small: Mapping[str, int], base: Mapping[str, int], target: Mapping[str, int]) -> float:
    """The share of the way from small sizes to the target that is from the base on, along what grows most."""
    axis = max(base, key=lambda x: target[x] / base[x])
    far = math.log(target[axis] / small[axis]) if target[axis] != small.get(axis, 0) else 0.0
    return math.log(target[axis] / base[axis]) / far if far else 1.0


def _size(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def _otherwise(p: Plan, small: nn.Module) -> list[str]:
    """Tensors whose number of entries grows other than the axes do that they are read with."""
    way, networks = p.recipe.way, [d.network for d in p.recipe.derivations]
    counts = {name: e.tensor.numel() for e in parameters(small) for name in (general(e.name), e.name)}
    odd: dict[str, None] = {}
    for e in p.entries:
        name = e.name if e.name in counts else general(e.name)
        if e.role and name in counts:
            network = next(x for x in networks if e.role in x.tensors)
            letters = [x for x in network.tensors[e.role].letters if network.axes[x] != "L"]
            grows = network.size(letters).ratio(way.base, way.target)
            if not math.isclose(e.tensor.numel(), counts[name] * grows):
                odd[e.group] = None
    why = "sizes grow by another factor than the axis that they are read with (N, N_e or M), whose powers they have"
    return [f"{listed(odd)}: {why}"] if odd else []
