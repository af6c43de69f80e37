"""A plan in the format of a trainer: ``export``. What a format cannot carry stops it, unless it may be dropped.

Formats as read in the trainers' public code; names are those of the module that the plan was made of.
Read next: ``patterns.py`` (expressions that match exactly the parameters of a role).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scaling_algebra.errors import UsageError, named, unknown_name
from scaling_algebra.recipes.recipe import VECTORS

from .numbers import ADJUSTED, ONES, PlannedNumbers, adjustment
from .patterns import expression, globs, substrings

WHAT = ("lr", "eps", "wd", "init", "multiplier")
"""What a plan says; every format carries some of it."""


@dataclass(frozen=True)
class Format:
    """What a trainer reads: what of a plan it carries, who writes it, and whether it names an optimizer by group."""

    carries: tuple[str, ...]
    write: Callable[[PlannedNumbers], str]
    mixed: bool = False


def export(plan: PlannedNumbers, form: str, dropping: Sequence[str] = ()) -> str:
    """See ``Plan.export``."""
    chosen = named("format", form, FORMATS)
    for what in dropping:
        if what not in WHAT:
            raise unknown_name("number to drop", str(what), WHAT)
    if len(plan.optimizers) > 1 and not chosen.mixed:
        listed = " and ".join(plan.optimizers)
        raise UsageError(f"{form} takes one optimizer, and {listed} train this model; take torchtitan, or param_groups")
    lost = [what for what in said(plan) if what not in (*chosen.carries, *dropping)]
    if lost:
        listed = ", ".join(f"'{what}'" for what in lost)
        raise UsageError(
            f"{form} cannot carry {', '.join(lost)}; set {'it' if len(lost) == 1 else 'them'} in the model's or the "
            f"trainer's code (plan.init_, plan.param_groups, plan.multipliers), then give dropping=({listed},)"
        )
    return chosen.write(plan)


def said(plan: PlannedNumbers) -> tuple[str, ...]:
    """What of ``WHAT`` the plan has: eps and decay where the optimizer has them and they differ from none."""
    numbers = [plan.numbers(role) for role in plan.trained]
    there = {
        "lr": True,
        "eps": any("eps" in x for x in numbers),
        "wd": any(x.get("weight_decay") for x in numbers),
        "init": True,
        "multiplier": any(x != 1 for x in plan.multipliers.values()),
    }
    return tuple(what for what in WHAT if there[what])


def _roles(plan: PlannedNumbers) -> list[tuple[str, dict[str, float]]]:
    return [(role, plan.numbers(role)) for role in plan.trained]


def _head(plan: PlannedNumbers) -> str:
    return f"# {plan.about}"


def _torchtitan(plan: PlannedNumbers) -> str:
    """Absolute values; ``re.search``, first match; a pattern without a match is the trainer's error."""
    rows = []
    for group, x in _roles(plan):
        named, kwargs = _optimizer(plan, group, muon=True), {**x, **adjustment(plan, group)}
        pattern = f'pattern={_raw(expression(plan, group))}, optimizer_name="{named}"'
        rows.append(f"        ParamGroupConfig({pattern}, optimizer_kwargs={kwargs!r}),")
    opening = ["optimizers = OptimizersContainer.Config(", "    param_groups=["]
    return "\n".join([_head(plan), *opening, *rows, "    ]", ")"])


def _raw(pattern: str) -> str:
    return repr(pattern) if '"' in pattern or "\n" in pattern else f'r"{pattern}"'


def _megatron(plan: PlannedNumbers) -> str:
    """``ParamKey(name=...)`` are globs; the schedule runs from max_lr, and min_lr stays the trainer's."""
    lines = [_head(plan), "config_overrides = {"]
    for role, x in _roles(plan):
        override = {"max_lr": x["lr"]}
        if "weight_decay" in x:
            override |= {"start_wd": x["weight_decay"], "end_wd": x["weight_decay"]}
        if "eps" in x:
            override["eps"] = x["eps"]
        lines.append(f"    ParamKey(name={tuple(globs(plan, role))!r}): {override!r},  # {role}")
    return "\n".join([*lines, "}"])


def _olmo_core(plan: PlannedNumbers) -> str:
    rows = (f"    OptimGroupOverride(params={globs(plan, role)!r}, opts={x!r}),  # {role}" for role, x in _roles(plan))
    return "\n".join([_head(plan), "group_overrides = [", *rows, "]"])


_GROUPS = """\
import re

import torch

GROUPS = [
{rows}
]


def parameters(model, pattern):
    return [p for name, p in model.named_parameters() if p.requires_grad and re.search(pattern, name)]


def param_groups(model):
    groups = [{{**group, "params": parameters(model, group["pattern"])}} for group in GROUPS]
    assert all(g["params"] for g in groups), "a pattern matches nothing"
    return [{{key: x for key, x in g.items() if key not in ("pattern", "init")}} for g in groups]
"""
_INIT = """

def init_(model):
    with torch.no_grad():
        for group in GROUPS:
            for p in parameters(model, group["pattern"]):
                kind, value = group["init"]
                p.normal_(0.0, value) if kind == "normal" else p.fill_(value)


# Trainer(optimizer_cls_and_kwargs=optimizer(model), ...) after init_(model)
def optimizer(model):
    return torch.optim.{optimizer}, {{"params": param_groups(model)}}
"""


def _hf(plan: PlannedNumbers) -> str:
    return _python(plan, lambda role: {"init": _start(plan, role)}) + _INIT.format(
        optimizer=_optimizer(plan, next(iter(plan.trained)))
    )


def _deepspeed(plan: PlannedNumbers) -> str:
    """Groups of torch with a name; DeepSpeed's own expert parallelism wants ``moe`` on those of experts."""
    return _python(plan, lambda role: {"moe": True} if plan.trained[role][0].role.startswith("expert") else {})


def _python(plan: PlannedNumbers, more: Callable[[str], Mapping[str, object]]) -> str:
    rows = (
        f"    { ({'name': role, 'pattern': expression(plan, role), **x, **more(role)})!r}," for role, x in _roles(plan)
    )
    return f"{_head(plan)}\n{_GROUPS.format(rows=chr(10).join(rows))}"


def _start(plan: PlannedNumbers, group: str) -> tuple[str, float]:
    role = plan.trained[group][0].role
    if role in VECTORS:
        return "fill", 1.0 if role in ONES else 0.0
    if role in plan.recipe.tied:
        raise UsageError(f"{role} starts alike for all experts, which this format cannot say; use plan.init_")
    std = plan.value(group, "init_std")
    return ("normal", std) if std else ("fill", 0.0)


def _automodel(plan: PlannedNumbers) -> str:
    """Factors on the optimizer's own lr and decay; first match."""
    rows = _roles(plan)
    lr, wd = max(x["lr"] for _, x in rows), max(x.get("weight_decay", 0.0) for _, x in rows)
    lines = [_head(plan), "optimizer:", f"  lr: {lr!r}", f"  weight_decay: {wd!r}", "  param_group_overrides:"]
    for role, x in rows:
        lines.append(f"    - pattern: {json.dumps(expression(plan, role))}  # {role}")
        lines.append(f"      lr_mult: {x['lr'] / lr!r}")
        if wd:
            lines.append(f"      wd_mult: {x['weight_decay'] / wd!r}")
    return "\n".join(lines)


EMBEDDED = ("embed_tokens", "lm_head")
"""Parts of names that axolotl trains with ``embedding_lr``, whatever ``lr_groups`` say."""


def _axolotl(plan: PlannedNumbers) -> str:
    """``modules`` are parts of names; the first match counts.

    Names with ``embed_tokens`` or ``lm_head`` come before all groups and share ``embedding_lr``; norms and biases are
    in no group and have ``learning_rate``.
    """
    rows = _roles(plan)
    apart = {role for role in plan.trained for e in plan.trained[role] if any(part in e.name for part in EMBEDDED)}
    embedded = _alike([(role, x["lr"]) for role, x in rows if role in apart], f"names with {' or '.join(EMBEDDED)}")
    vectors = _alike([(role, x["lr"]) for role, x in rows if plan.trained[role][0].role in VECTORS], "norms and biases")
    learning = max(x["lr"] for _, x in rows) if vectors is None else vectors
    lines = [_head(plan), f"learning_rate: {learning!r}"]
    lines += [] if embedded is None else [f"embedding_lr: {embedded!r}"]
    lines.append("lr_groups:")
    for role, x in rows:
        lines += [
            f"  - name: {role}",
            f"    modules: {json.dumps(substrings(plan, role))}",
            f"    lr: {x['lr']!r}",
        ]
    return "\n".join(lines)


def _alike(rates: Sequence[tuple[str, float]], what: str) -> float | None:
    """The one learning rate of some roles; None where there are none.

    Raises:
        UsageError: they differ.
    """
    if len({lr for _, lr in rates}) > 1:
        listed = ", ".join(f"{role} {lr:.3g}" for role, lr in rates)
        raise UsageError(
            f"axolotl gives {what} one learning rate, but they have {listed}; take another form, such as hf"
        )
    return rates[0][1] if rates else None


def _optimizer(plan: PlannedNumbers, group: str, muon: bool = False) -> str:
    name = plan.optimizer(group).name
    known = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD"} | {f"muon:{x}": "Muon" for x in ADJUSTED if muon}
    if name not in known:
        raise UsageError(f"{name} is no optimizer that this format names; it has {', '.join(known)}")
    return known[name]


FORMATS: Mapping[str, Format] = {
    "torchtitan": Format(("lr", "eps", "wd"), _torchtitan, mixed=True),
    "megatron": Format(("lr", "eps", "wd"), _megatron),
    "olmo-core": Format(("lr", "eps", "wd"), _olmo_core),
    "hf": Format(("lr", "eps", "wd", "init"), _hf),
    "nemo-automodel": Format(("lr", "wd"), _automodel),
    "axolotl": Format(("lr",), _axolotl),
    "deepspeed": Format(("lr", "eps", "wd"), _deepspeed),
}
"""Every format, by name."""
