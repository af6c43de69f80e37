"""Does a plan hold on a real model? Real AdamW steps at several sizes, parts of signals, slopes, verdicts.

Every linear map and every sum over experts is split into what initial tensors make of their input and what updates
add, and each part is held against its certified exponent. The readout starts at zero: the first step moves the logits
alone, and after the second, the last that is judged, all tensors have moved along a coherent gradient. A batch has few
tokens, since the gradients of T tokens share a sign sum: each keeps T^-1/2 of the coherent part, beside a random part
N^-1/2. The library's own default, one std and one learning rate, is trained beside it and must be refuted.
Read next: ``parts.py`` (what is measured), ``predictions.py`` (what it is to be), ``models.py`` (families).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes, way
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, judge
from scaling_algebra.verify.measuring.batches import descend

from .parts import Parts
from .plans import Plan, plan
from .predictions import predicted

Build = Callable[[Sizes], nn.Module]
"""A model at these sizes, on the CPU, that maps token ids (batch, length) to logits or an object with ``logits``."""

Found = dict[tuple[str, int], tuple[tuple[str, str], float]]
"""By name and step: what it is predicted by, and its root-mean-square."""
LAYERS = r"(^|\.)(layers|blocks|h)\.\d+$"
"""Modules whose outputs are the residual stream, by name."""
EPS = 1e-12
"""Adam's epsilon, far below every gradient."""
BATCH, LENGTH = 1, 4
"""Few tokens: see the module text."""
VOCABULARY = 64


def check_model(
    build: Build,
    sizes: Sequence[Sizes],
    roles: Mapping[str, str] | None = None,
    *,
    seeds: int = 6,
    steps: int = 2,
    lr: float = 1e-2,
    optimizer: str = "adamw",
    parameterization: str = "mup",
    layers: str = LAYERS,
    rules: Mapping[str, Mapping[str, Power]] | None = None,
) -> Report:
    """Trains a model at several sizes with the numbers of a recipe and judges how its signals change.

    Args:
        build: see ``Build``; called under a seed of torch's own generator.
        sizes: on one ray from the base, which is the first.
        roles: as for ``plan``. layers: regular expression on names of the modules whose outputs are watched.
        seeds: replicas at every size. lr: at the base, of every tensor.
        rules: powers to train with instead of the derived ones, by role and ``init_std`` or ``lr``; what is predicted
            stays, so that a rule that differs is refuted where it matters.

    Raises:
        UsageError: fewer than two sizes, sizes off one ray, no layers, or what ``plan`` raises.
    """
    if len(sizes) < 2:
        raise UsageError("give two or more sizes; three are needed for a verdict")
    start, base = time.monotonic(), sizes[0]
    whole = way(base, sizes[-1])
    if whole.ray is None:
        raise UsageError("the sizes lie on no ray: an axis shrinks or K outgrows M")
    asked: Any = {"readout_init": "zero", "epsilon": "negligible"}
    numbers = recipe(base, sizes[-1], optimizer, parameterization, lr=lr, **asked)
    stds = {role: _std(role, settings["init_std"], base) for role, settings in numbers.tensors.items()}
    tensors = {r: {**x, "init_std": replace(x["init_std"], base=stds[r])} for r, x in numbers.tensors.items()}
    numbers = replace(numbers, tensors=tensors)
    trained = _ruled(numbers, rules or {})
    m = Measurement(whole.ray, steps, watched=("logits",))
    m.sizes = [s["N"] / base["N"] for s in sizes]
    m.dims = [dict(s) for s in sizes]
    keys: dict[str, tuple[str, str]] = {}
    plain, gate = (optimizer, lr), ""
    for i, size in enumerate(sizes):
        for seed in range(seeds):
            model = _built(build, size, seed)
            if seed == 0:
                m.parameters.append(sum(p.numel() for p in model.parameters()))
                m.inputs.append(str(_tokens().sum().item()))
            scaled = plan(model, at(trained, size), roles=roles)
            by_name = {e.name: e.role for e in scaled.entries}
            seen = _train(model, scaled, by_name, steps, layers)
            keys |= {name: key for (name, _), (key, _) in seen.items()}
            gate = scaled.family.gate if scaled.family else gate
            _record(m.values, i, len(sizes), seen)
            _record(m.standard, i, len(sizes), _train(_built(build, size, seed), plain, by_name, steps, layers))
            model = _built(build, base, 10_000 + seed + seeds * i)
            frozen = plan(model, at(trained, base), roles=roles)
            _record(m.control, i, len(sizes), _train(model, frozen, by_name, steps, layers))
    for series in (m.values, m.standard, m.control):
        series.update({key: [np.array(v) for v in values] for key, values in series.items()})
    m.environment = {
        "optimizer": optimizer,
        "device": "cpu",
        "torch": torch.__version__,
        "dtype": "float32",
        "wall_seconds": time.monotonic() - start,
    }
    if "M" in base and not any(role == "experts" for role, _ in keys.values()):
        raise UsageError("no module named experts was seen; its output cannot be split")
    known = predicted(numbers, gate)
    return judge(m, {name: known[key] for name, key in keys.items() if key in known})


def at(numbers: Recipe, size: Sizes) -> Recipe:
    """A recipe at another size of its ray, the base itself included."""

    def moved(s: Setting) -> Setting:
        return s if s.rule is None else replace(s, factor=s.rule.ratio(numbers.way.base, size))

    tensors = {role: {what: moved(s) for what, s in settings.items()} for role, settings in numbers.tensors.items()}
    multipliers = {name: moved(s) for name, s in numbers.multipliers.items()}
    return replace(numbers, way=replace(numbers.way, target=size), tensors=tensors, multipliers=multipliers)


def _ruled(numbers: Recipe, rules: Mapping[str, Mapping[str, Power]]) -> Recipe:
    """The recipe with other powers for some tensors."""
    tensors = {role: dict(numbers[role]) for role in (*numbers, *rules)}
    for role, powers in rules.items():
        for what, power in powers.items():
            tensors[role][what] = replace(numbers[role][what], rule=power)
    return replace(numbers, tensors=tensors)


def _std(role: str, setting: Setting, base: Sizes) -> float:
    """At the base fan-in^-1/2, or the power itself where that is smaller: what falls faster is not to lead there."""
    natural = 1.0 if role == "embedding" else base["N_e" if role == "expert_out" else "N"] ** -0.5
    return natural if setting.rule is None else min(natural, setting.rule.at({"L": 1, **base}))


def _built(build: Build, size: Sizes, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build(size).train(False)


def _tokens() -> Tensor:
    """(BATCH, LENGTH + 1) ids, the same at every size."""
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def _record(series: dict[Any, list[Any]], i: int, sizes: int, found: Found) -> None:
    for key, (_, value) in found.items():
        series.setdefault(key, [[] for _ in range(sizes)])[i].append(value)


def _train(model: nn.Module, how: Plan | tuple[str, float], roles: Mapping[str, str], steps: int, layers: str) -> Found:
    """Sizes of every part after every step; ``how``: a plan, or one learning rate for all."""
    if isinstance(how, Plan):
        if left := [name for name, x in how.multipliers.items() if x != 1]:
            raise UsageError(f"the model must multiply {left[0]} itself on this ray; choose one on which it need not")
        how.init_(model)
        optimizer = torch.optim.AdamW(how.param_groups(model), eps=EPS)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=how[1], eps=EPS, weight_decay=0.0)
    tokens = _tokens()
    parts = Parts(model, tokens[:, :-1], roles, layers)
    found: Found = {(part.name, 0): (part.key, part.size) for part in parts()}

    def loss(step: int) -> tuple[Tensor, float]:
        out = model(tokens[:, :-1])
        logits = getattr(out, "logits", out)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), 0.0

    for t, _ in enumerate(descend(optimizer, loss, steps), 1):
        found |= {(part.name, t): (part.key, part.size) for part in parts()}
    return found
