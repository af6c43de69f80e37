"""Does a plan hold on a real model, or do a model's own rates scale? Real steps at several sizes, slopes, verdicts.

Every linear map and every sum over experts is split into what initial tensors make of their input and what updates
add, and each part is held against its certified exponent. Of the recipe's numbers the readout starts at zero: the first
step moves the logits alone, and after the second, the last that is judged, all tensors have moved along a coherent
gradient. One std and one learning rate for all tensors is trained beside it and must be refuted.
Read next: ``contract.py`` (what ``build`` returns), ``parts.py`` (what is measured), ``predictions.py``.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import TRANSFORMER, Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes, read_sizes, way
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.hardware import spare_threads
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, judge
from scaling_algebra.verify.measuring.batches import descend

from .contract import Subject, examined, taken, tokens
from .parts import logits_of
from .planning import plan
from .predictions import predicted

Build = Callable[[dict[str, int]], Any]
"""What ``contract.py`` says."""

Found = dict[tuple[str, int], tuple[tuple[str, str], float]]
"""By name and step: what it is predicted by, and its root-mean-square."""
LAYERS = r"(^|\.)(layers|blocks|h)\.\d+$"
"""Modules whose outputs are the residual stream, by name."""
EPS = 1e-12
"""Adam's epsilon, far below every gradient."""
OFF = 0.1
"""How far a size that was rounded may lie from its place, in parts of the way between two sizes."""


def check_model(
    build: Build,
    base: str | Sizes,
    target: str | Sizes,
    *,
    roles: Mapping[str, str] | None = None,
    points: int = 3,
    seeds: int = 6,
    steps: int = 2,
    lr: float = 1e-2,
    optimizer: str = "adamw",
    parameterization: str = "mup",
    layers: str = LAYERS,
    rules: Mapping[str, Mapping[str, Power]] | None = None,
) -> Report:
    """Trains a model at several sizes, with the numbers of a recipe or with its own, and judges how its signals change.

    Args:
        build: a model at given sizes, or a model and its optimizer; ``contract.py`` says what it must be.
        base: sizes as for ``recipe``.
        target: the same; ``points`` sizes are trained, evenly between both.
        roles: as for ``plan``. layers: regular expression on names of the modules whose outputs are watched.
        seeds: replicas at every size. lr: of every tensor at the base, where ``build`` brings no optimizer.
        rules: powers to train with instead of the derived ones, by role and ``init_std`` or ``lr``; what is predicted
            stays, so that a rule that differs is refuted where it matters.

    Raises:
        UsageError: the contract is not kept, sizes off one ray, or what ``plan`` raises.
        Infeasible: no parameterization is found on the ray.
    """
    start, sizes = time.monotonic(), between(read_sizes(base, "base"), read_sizes(target, "target"), points)
    first, whole = sizes[0], way(sizes[0], sizes[-1])
    assert whole.ray is not None
    asked: Any = {"readout_init": "zero", "epsilon": "negligible"}

    def numbers_of() -> Recipe:
        last = TRANSFORMER["M" in first]  # a recipe looks for another ray where this one has no answer
        derive(None, optimizer, parameterization, ray=whole.ray, architecture=last, **asked)
        return recipe(first, sizes[-1], optimizer, parameterization, lr=lr, **asked)

    numbers = numbers_of()
    subjects = [examined(build, size, numbers, roles, layers) for size in sizes]
    for size, other in zip(sizes, subjects, strict=True):
        if other.kind != subjects[0].kind:
            raise UsageError(
                f"at {dict(first)} build returns {subjects[0].kind}, at {dict(size)} {other.kind}; return alike"
            )
    if subjects[0].optimizer is not None and not subjects[0].reads_zero:
        asked["readout_init"] = "maximal"
        numbers = numbers_of()
    stds = {role: _std(role, settings["init_std"], first) for role, settings in numbers.tensors.items()}
    tensors = {r: {**x, "init_std": replace(x["init_std"], base=stds[r])} for r, x in numbers.tensors.items()}
    trained = _ruled(replace(numbers, tensors=tensors), rules or {})
    known = predicted(numbers, subjects[0].gate)
    m = Measurement(whole.ray, steps, watched=("logits",))
    grows = max(first, key=lambda axis: sizes[-1][axis] / first[axis])
    m.sizes = [s[grows] / first[grows] for s in sizes]
    m.dims = [dict(s) for s in sizes]
    keys: dict[str, tuple[str, str]] = {}

    def run(size: Sizes, subject: Subject, seed: int, how: Recipe | float) -> Found:
        model, own = taken(build, size, seed)
        found = _train(replace(subject, model=model, optimizer=own), size, how, steps)
        keys.update({name: key for (name, _), (key, _) in found.items()})
        return found

    with spare_threads():
        for i, (size, subject) in enumerate(zip(sizes, subjects, strict=True)):
            m.parameters.append(sum(p.numel() for p in subject.model.parameters()))
            m.inputs.append(str(tokens().sum().item()))
            for seed in range(seeds):
                _record(m.values, i, len(sizes), run(size, subject, seed, trained))
                _record(m.standard, i, len(sizes), run(size, subject, seed, lr))
                _record(m.control, i, len(sizes), run(first, subjects[0], 10_000 + seed + seeds * i, trained))
    for series in (m.values, m.standard, m.control):
        series.update({key: [np.array(v) for v in values] for key, values in series.items()})
    if uneven := next((q for (q, _), values in m.values.items() if len({len(v) for v in values}) > 1), None):
        raise UsageError(
            f"{uneven} is not there at every size; build as many layers at every size, with the same names"
        )
    m.environment = {
        "optimizer": optimizer,
        "device": "cpu",
        "torch": torch.__version__,
        "dtype": "float32",
        "wall_seconds": time.monotonic() - start,
        "gate": subjects[0].gate,
    }
    return judge(m, {name: known[key] for name, key in keys.items() if key in known})


def between(base: Sizes, target: Sizes, points: int) -> list[Sizes]:
    """Sizes from a base to a target, evenly on a logarithmic scale, multiples of whatever both are multiples of.

    Examples:
        >>> between({"N": 32, "M": 4}, {"N": 128, "M": 16}, 3)[1]
        {'N': 64, 'M': 8}

    Raises:
        UsageError: fewer than two, they grow on no ray, the depth grows, or no whole size lies where it should.
    """
    whole = way(base, target)
    if whole.ray is None or not whole.exact:
        raise UsageError(
            "the sizes lie on no ray: an axis shrinks, K outgrows M, or the axes grow by no powers of one number; "
            "give for example N=32,M=4 and N=128,M=16"
        )
    if base.get("L") != target.get("L"):
        raise UsageError("the depth L grows; a check keeps the layers, so give both sizes the same L")
    if points < 2:
        raise UsageError(f"points is {points}; give two or more, three for a verdict")
    found: list[dict[str, int]] = [{} for _ in range(points)]
    for axis, n in base.items():
        grid, ratio = math.gcd(n, target[axis]), target[axis] / n
        places = [n * ratio ** (k / (points - 1)) for k in range(points)]
        for size, place in zip(found, places, strict=True):
            size[axis] = max(1, round(place / grid)) * grid
        apart = ratio ** (OFF / (points - 1))
        if any(max(s[axis] / x, x / s[axis]) > apart for s, x in zip(found, places, strict=True) if ratio > 1):
            raise UsageError(
                f"no {points} whole sizes lie between {axis}={n} and {axis}={target[axis]}; give a ratio that is a "
                f"power of {points - 1}, or other points"
            )
    if any(a == b for a, b in pairwise(found)):
        raise UsageError(f"{points} points are more than lie between base and target; give fewer")
    return list(found)


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


def _record(series: dict[Any, list[Any]], i: int, sizes: int, found: Found) -> None:
    for key, (_, value) in found.items():
        series.setdefault(key, [[] for _ in range(sizes)])[i].append(value)


def _train(subject: Subject, size: Sizes, how: Recipe | float, steps: int) -> Found:
    """Sizes of every part after every step; ``how``: a recipe, unless the subject has an optimizer; or one learning
    rate for all."""
    model, own = subject.model, subject.optimizer
    if not isinstance(how, Recipe):
        own = torch.optim.AdamW(model.parameters(), lr=how, eps=EPS, weight_decay=0.0)
    elif own is None:
        _check_multipliers(subject.gate, how, size)
        p = plan(model, at(how, size), roles=_exactly(subject.roles))
        p.init_(model)
        own = torch.optim.AdamW(p.param_groups(model), eps=EPS)
    for group in own.param_groups:
        group["weight_decay"] = 0.0
    parts, ids = subject.parts(), tokens()
    found: Found = {(part.name, 0): (part.key, part.size) for part in parts()}

    def loss(step: int) -> tuple[Tensor, float]:
        logits = logits_of(model(ids[:, :-1]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), 0.0

    for t, _ in enumerate(descend(own, loss, steps), 1):
        found |= {(part.name, t): (part.key, part.size) for part in parts()}
    return found


def _check_multipliers(gate: str, numbers: Recipe, size: Sizes) -> None:
    """Does the model itself bring every factor on the sum over experts?"""
    for name, setting in at(numbers, size).multipliers.items():
        axis = {"1/K": "K", "1/M": "M"}.get(gate, "") if name == "alpha" else ""
        factor = setting.factor * (size[axis] / numbers.way.base[axis] if axis else 1.0)
        if not math.isclose(factor, 1.0):
            brings = f" (the gate brings {gate})" if gate else ""
            raise UsageError(
                f"at {dict(size)} the model must multiply {name} by {factor:g}{brings}; do it in build and return the "
                "optimizer, too, or choose sizes for which it need not"
            )


def _exactly(roles: Mapping[str, str]) -> dict[str, str]:
    """Roles by name as patterns."""
    return {f"^{re.escape(name)}$": role for name, role in roles.items() if role}
