"""Assigns a plan's numbers to parameters in three steps: settings by reading name, entries by parameter, warnings.

Read next: ``planning.py`` (combines them), ``modules.py`` (what an entry is).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isclose

from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizer_reading import parameter_of
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing import TracedModel
from scaling_algebra.verify.tracing.gradients import join_names, match_roles
from scaling_algebra.verify.tracing.measuring import find_parameters
from scaling_algebra.verify.tracing.shapes import drop_fixed_map_notes

from .exports import describe_matrix_shape
from .folding import find_fold_target, rescale_settings
from .initial_values import find_structured
from .modules import Entry, find_weight_norms, iterate_entries
from .parts import Records, advise_on_parts, describe_parts, merge_settings
from .parts import locate_parts as spans_of
from .plans import find_optimizer
from .remarks import explain_surprises

NEGLIGIBLE = "these numbers assume a negligible epsilon; set it far below every gradient: 1e-30 suffices, 1e-8 may not"
UNDECAYED = (
    "no decay was given: every group has weight_decay 0, whatever the optimizer itself is given; give decay=NUMBER"
)
ZERO = "{}: starts at zero in the module, but init_ draws random values; to keep it at zero, give no std for it"
KEPT = (
    "{}: init_ keeps the module's own start and does not use their std: under two seeds it is no draw of one law that "
    "is centred at zero"
)
NORMS = (
    "{}: init_ sets these weight-norm magnitudes to the norms of the drawn matrices, as torch does, and ignores their "
    "init std"
)
SHAPED = (
    "{}: more rows than columns; torch.optim.Muon multiplies its rate by sqrt(out/in) unless adjust_lr_fn says"
    " otherwise, which these numbers do not know: plan with muon:original for it, or let your Muon multiply by 1"
)


Settings = dict[str, Mapping[str, Setting]]


def compute_settings(reading: TracedModel, numbers: Recipe, fold: bool = False) -> tuple[Settings, dict[str, float]]:
    """Returns the numbers to set on the module, reduced by the factors that the module's code already applies.

    Args:
        reading: the module as it was traced.
        numbers: the recipe for the network of the reading.
        fold: whether missing multipliers are folded into the tensors at the end of their branch.

    Returns:
        The settings by tensor, and by multiplier the factor that the model still has to apply.

    Raises:
        UsageError: a multiplier to fold ends in no matrix.
    """
    going = numbers.way
    own = {name: Power.of(reading.factors.get(name, ("", {}))[1]) for name in numbers.multipliers}
    left = {name: s.factor / own[name].ratio(going.base, going.target) for name, s in numbers.multipliers.items()}
    left = {name: 1.0 if isclose(x, 1.0) else x for name, x in left.items()}
    settings = dict(numbers.tensors)
    for name in [name for name, x in left.items() if fold and x != 1]:
        rule, x = numbers.multipliers[name].rule, left[name]
        assert rule is not None
        shared = [d.network for d in numbers.derivations if name in d.network.multipliers]  # kinds of layers
        for role in dict.fromkeys(role for one in shared for role in find_fold_target(one, name).roles):
            settings[role] = rescale_settings(settings[role], rule / own[name], x, find_optimizer(numbers, role))
        left[name] = 1.0
    return settings, left


def build_entries(
    model: nn.Module,
    reading: TracedModel,
    numbers: Recipe,
    settings: Settings,
    small: Sequence[nn.Module],
    records: Callable[[], Records] | None = None,
    twins: Sequence[nn.Module] = (),
) -> list[Entry]:
    """Returns every parameter of a model with its numbers (init std, learning rate, ...).

    Args:
        model: the module at the target.
        reading: the traced module.
        numbers: the recipe for it.
        settings: by tensor, the numbers to set (init std, learning rate, ...), as ``compute_settings`` returns them.
        small: the modules that were traced, which show how parameters are initialised.
        records: returns configurations of a model of the library transformers at several sizes, from which the sizes of
            packed parts are found (``parts.locate_parts``); None for other models.
        twins: the modules ``small`` built under another seed, which show whether initial values are random; if empty,
            they are judged without this comparison.

    Raises:
        UsageError: trainable parameters that the output does not depend on.
    """
    going = numbers.way
    filled = {role: find_uniform_start(small, role) for role in numbers.tensors}
    for role, value in filled.items():
        rule = settings[role]["init_std"].rule
        filled[role] = value if value is None or rule is None else value * rule.ratio(going.base, going.target)
    found, named = [], list(iterate_entries(model))
    roles = match_roles([e.name for e in named], numbers)
    _check_trains([e.name for e in named if not e.frozen], roles, reading.network.frozen)
    given = max((d.optimizer.name for d in numbers.derivations), key=len)
    pairs = [*zip(small, twins or small, strict=True)]
    structured = find_structured(pairs, [role for role, value in filled.items() if value is None])
    for e in named:
        mine = roles[e.name]
        rules = {role: find_optimizer(numbers, role) for role in mine}
        kinds = [(settings[role], rules[role]) for role in mine]
        parts = {role: settings[role] for role in mine} if any(x != kinds[0] for x in kinds) else {}
        role, group = (mine[0], parameter_of(mine[0])) if mine else ("", "")
        common = merge_settings(parts) if parts else settings.get(role, {})
        fill, spans = filled.get(role), spans_of(e, parts, reading, going.target, records)
        do = advise_on_parts(rules, group, given) if parts else ""
        e = replace(e, kept=not e.frozen and not structured.isdisjoint(mine))
        e = replace(e, role=role, settings=common, group=group, fill=fill, rules=rules, parts=parts, spans=spans)
        found.append(replace(e, apart=do))
    return found


def _check_trains(train: Sequence[str], roles: Mapping[str, Sequence[str]], frozen: frozenset[str]) -> None:
    """Checks that a gradient reaches every trainable parameter.

    Args:
        train: names of the trainable parameters.
        roles: by parameter, its names in the equations; none if the output does not depend on it.
        frozen: tensors of the equations that no gradient reaches.

    Raises:
        UsageError: no gradient reaches some trainable parameter; the message names it.
    """
    still = {
        "the output does not depend on": [name for name in train if not roles[name]],
        "no gradient of the output reaches": [x for x in train if roles[x] and frozen.issuperset(roles[x])],
    }
    if said := [f"{why} {join_names(names)}" for why, names in still.items() if names]:
        raise UsageError(f"{', and '.join(said)}; freeze these parameters, or remove them from the model")


def collect_warnings(
    model: nn.Module,
    reading: TracedModel,
    numbers: Recipe,
    entries: Sequence[Entry],
    small: Sequence[nn.Module],
    left: Mapping[str, str],
) -> tuple[str, ...]:
    """Returns the warnings of a plan, one line each: notes on how the module was traced, and what parameters need
    besides their numbers.

    Args:
        model: the module at the target.
        reading: the traced module.
        numbers: the recipe for it.
        entries: the parameters of the plan.
        small: the modules that were traced, which show how parameters are initialised.
        left: by multiplier, the factor that the model's code still has to apply, as text; "" if there is none.
    """
    going = numbers.way
    acting = [e for e in entries if e.role]

    def groups(of: Callable[[Entry], bool]) -> str:
        return ", ".join(dict.fromkeys(e.group for e in acting if of(e)))

    kept = dict.fromkeys(e.group for e in entries if e.kept)
    normed = [name for name, *_ in find_weight_norms(model)]
    settings = [s for e in acting for s in (e.parts.values() or [e.settings])]
    tuned = [s for s in settings if "decay" in s and s["lr"].base is not None]
    negligible = any(d.optimizer.regime == "negligible" for d in numbers.derivations)
    undecayed = bool(tuned) and all(s["decay"].base is None for s in tuned)
    stacks: dict[str, dict[str, None]] = {}
    for e in (e for e in acting if e.stacked):
        stacks.setdefault(describe_matrix_shape(e), {})[e.group] = None
    high = groups(_is_scaled_by_muon)
    zero = groups(lambda e: not e.frozen and _starts_at_zero(e, small))
    return (
        *drop_fixed_map_notes(reading, [axis for axis, n in going.base.items() if going.target[axis] != n]).describe(
            left
        ),
        *([NEGLIGIBLE] if negligible else []),
        *dict.fromkeys(line for d in numbers.derivations if not d.network.unread for line in explain_surprises(d)),
        *(describe_parts(e) for e in {e.group: e for e in entries if e.parts}.values()),
        *(f"{', '.join(names)}: {note}" for note, names in stacks.items()),
        *([SHAPED.format(high)] if high else []),
        *([ZERO.format(zero)] if zero else []),
        *([KEPT.format(join_names(kept))] if kept else []),
        *([NORMS.format(join_names(normed))] if normed else []),
        *([UNDECAYED] if undecayed else []),
    )


def _is_scaled_by_muon(e: Entry) -> bool:
    """Whether ``torch.optim.Muon`` would by default scale the step of a parameter by its shape, although the planned
    optimizer has no such factor.
    """
    rule = e.rules[e.role]
    muon = rule.torch == "Muon" and rule.shape == "none" and not e.frozen
    return muon and len(e.shape) == 2 and e.shape[0] > e.shape[1]


def _starts_at_zero(e: Entry, small: Sequence[nn.Module]) -> bool:
    """Whether a parameter is zero in the module as built, although the plan draws random initial values for it."""
    found = [x for model in small for x in find_parameters(model, e.role)]
    stds = [x["init_std"] for x in (e.settings, *e.parts.values()) if "init_std" in x]
    drawn = e.fill is None and any(std.rule is not None for std in stds)
    return drawn and bool(found) and not any(x.any() for x in found)


def find_uniform_start(models: Sequence[nn.Module], role: str) -> float | None:
    """Returns the common initial value of all entries of a vector parameter, such as 1 for a norm's gain or 0 for a
    bias.

    Args:
        models: modules of several sizes in which the parameter is inspected.
        role: name of the parameter.

    Returns:
        The value if all entries have it in every module; None if they differ, or if the parameter is a matrix.
    """
    values = [p.flatten() for model in models for p in find_parameters(model, role)]
    if not values or any(p.dim() > 1 or p.is_meta for model in models for p in find_parameters(model, role)):
        return None
    return float(values[0][0]) if all(bool((x == values[0][0]).all()) for x in values) else None
