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
from collections.abc import Callable, Mapping, Sequence
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
from scaling_algebra.verify.judging.measurement import Measurement, Series
from scaling_algebra.verify.judging.report import Report
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.batches import descend

from .contract import Subject, examined, taken
from .parts import Part, Parts, logits_of, tokens
from .planning import plan
from .predictions import predicted

LAYERS = r"(^|\.)(layers|blocks|h)\.\d+$"
"""Modules whose outputs are the residual stream, by name."""
EPS = 1e-12
"""Adam's epsilon, far below every gradient."""
OFF = 0.1
"""How far a size that was rounded may lie from its place, in parts of the way between two sizes."""


def check_model(
    build: Callable[[dict[str, int]], Any],
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
    first, ray = sizes[0], way(sizes[0], sizes[-1]).ray
    assert ray is not None

    def numbers_of(readout: str) -> Recipe:
        options: Any = {"readout_init": readout, "epsilon": "negligible"}
        last = TRANSFORMER["M" in first]  # a recipe looks for another ray where this one has no answer
        derive(None, optimizer, parameterization, ray=ray, architecture=last, **options)
        return recipe(first, sizes[-1], optimizer, parameterization, lr=lr, **options)

    numbers = numbers_of("zero")
    subjects = [examined(build, size, numbers, roles, layers) for size in sizes]
    for size, subject in zip(sizes, subjects, strict=True):
        if subject.kind != subjects[0].kind:
            raise UsageError(
                f"at {dict(first)} build returns {subjects[0].kind}, at {dict(size)} {subject.kind}; return alike"
            )
    if subjects[0].optimizer is not None and not subjects[0].reads_zero:
        numbers = numbers_of("maximal")
    trained, exponents = _trained(numbers, first, rules or {}), predicted(numbers, subjects[0].gate)
    m = Measurement(ray, steps, watched=("logits",))
    grows = max(first, key=lambda axis: sizes[-1][axis] / first[axis])
    m.sizes = [s[grows] / first[grows] for s in sizes]
    m.dims = [dict(s) for s in sizes]
    keys = _measure(m, build, subjects, trained, lr, seeds)
    m.environment = {
        "optimizer": optimizer,
        "device": "cpu",
        "torch": torch.__version__,
        "dtype": "float32",
        "wall_seconds": time.monotonic() - start,
        "gate": subjects[0].gate,
    }
    return judge(m, {name: exponents[key] for name, key in keys.items() if key in exponents})


def _measure(
    m: Measurement, build: Any, subjects: Sequence[Subject], numbers: Recipe, lr: float, seeds: int
) -> dict[str, tuple[str, str]]:
    """Trains the subjects at the dimensions of a measurement and puts in what they did; roles and parts by name.

    Raises:
        UsageError: a part is not there at every size.
    """
    keys: dict[str, tuple[str, str]] = {}

    def record(series: Series, i: int, subject: Subject, size: Sizes, seed: int, how: Recipe | float) -> None:
        model, stepper = taken(build, size, seed)
        for key, part in _parts(replace(subject, model=model, optimizer=stepper), size, how, m.steps).items():
            values = series.setdefault(key, [np.zeros(0) for _ in m.dims])
            values[i] = np.append(values[i], part.size)
            keys[part.name] = part.key

    with spare_threads():
        for i, (size, subject) in enumerate(zip(m.dims, subjects, strict=True)):
            m.parameters.append(sum(p.numel() for p in subject.model.parameters()))
            m.inputs.append(str(tokens().sum().item()))
            for seed in range(seeds):
                record(m.values, i, subject, size, seed, numbers)
                record(m.standard, i, subject, size, seed, lr)
                record(m.control, i, subjects[0], m.dims[0], 10_000 + seed + seeds * i, numbers)
    if uneven := [name for (name, _), values in m.values.items() if len({len(v) for v in values}) > 1]:
        todo = "build as many layers at every size, with the same names"
        raise UsageError(f"{uneven[0]} is not there at every size; {todo}")
    return keys


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
    sizes: list[dict[str, int]] = [{} for _ in range(points)]
    for axis, n in base.items():
        grid, ratio = math.gcd(n, target[axis]), target[axis] / n
        places = [n * ratio ** (k / (points - 1)) for k in range(points)]
        for size, place in zip(sizes, places, strict=True):
            size[axis] = max(1, round(place / grid)) * grid
        apart = ratio ** (OFF / (points - 1))
        if any(max(s[axis] / x, x / s[axis]) > apart for s, x in zip(sizes, places, strict=True) if ratio > 1):
            raise UsageError(
                f"no {points} whole sizes lie between {axis}={n} and {axis}={target[axis]}; give a ratio that is a "
                f"power of {points - 1}, or other points"
            )
    if any(a == b for a, b in pairwise(sizes)):
        raise UsageError(f"{points} points are more than lie between base and target; give fewer")
    return list(sizes)


def _trained(numbers: Recipe, first: Sizes, rules: Mapping[str, Mapping[str, Power]]) -> Recipe:
    """The recipe that is trained: with the powers of ``rules``, and natural stds at the base.

    At the base a std is fan-in^-1/2, or the power itself where that is smaller: what falls faster is not to lead there.
    """
    tensors = {}
    for role, settings in numbers.tensors.items():
        std = settings["init_std"]
        natural = 1.0 if role == "embedding" else first["N_e" if role == "expert_out" else "N"] ** -0.5
        start = natural if std.rule is None else min(natural, std.rule.at({"L": 1, **first}))
        tensors[role] = {**settings, "init_std": replace(std, base=start)}
    for role, powers in rules.items():
        changed = tensors[role] = {**numbers[role], **tensors[role]}
        changed.update({what: replace(changed[what], rule=power) for what, power in powers.items()})
    return replace(numbers, tensors=tensors)


def _at(numbers: Recipe, size: Sizes) -> Recipe:
    """A recipe at another size of its ray, the base itself included."""

    def moved(settings: Mapping[str, Setting]) -> dict[str, Setting]:
        ratios = {x: s.rule.ratio(numbers.way.base, size) for x, s in settings.items() if s.rule is not None}
        return {x: replace(s, factor=ratios.get(x, s.factor)) for x, s in settings.items()}

    tensors, multipliers = {role: moved(x) for role, x in numbers.tensors.items()}, moved(numbers.multipliers)
    return replace(numbers, way=replace(numbers.way, target=size), tensors=tensors, multipliers=multipliers)


def _parts(subject: Subject, size: Sizes, how: Recipe | float, steps: int) -> dict[tuple[str, int], Part]:
    """Every part after every step, by name; ``how``: a recipe, unless the subject has an optimizer; or one learning
    rate for all."""
    model, optimizer = subject.model, subject.optimizer
    if not isinstance(how, Recipe):
        optimizer = torch.optim.AdamW(model.parameters(), lr=how, eps=EPS, weight_decay=0.0)
    elif optimizer is None:
        exactly = {f"^{re.escape(name)}$": role for name, role in subject.roles.items() if role}
        p = plan(model, _at(how, size), roles=exactly, gate=subject.gate or None)
        for name, factor in p.multipliers.items():
            if name in how.multipliers and factor != 1:  # the model itself is to bring every factor
                brings = f" (the gate brings {subject.gate})" if subject.gate else ""
                raise UsageError(
                    f"at {dict(size)} the model must multiply {name} by {factor:g}{brings}; do it in build and return "
                    "the optimizer, too, or choose sizes for which it need not"
                )
        p.init_(model)
        optimizer = torch.optim.AdamW(p.param_groups(model), eps=EPS)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    parts, ids = Parts(model, subject.roles, subject.layers, subject.stacks), tokens()
    parts_by_key = {(part.name, 0): part for part in parts()}

    def loss(step: int) -> tuple[Tensor, float]:
        logits = logits_of(model(ids[:, :-1]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), 0.0

    for t, _ in enumerate(descend(optimizer, loss, steps), 1):
        parts_by_key |= {(part.name, t): part for part in parts()}
    return parts_by_key
