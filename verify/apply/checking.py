"""Does a plan hold on a real model? Real AdamW steps at several sizes, changes of signals, slopes, verdicts.

Every change is to be Theta(1) under muP: exponent 0. The readout starts at zero, so that the first step moves the
logits alone, and the changes of all else are exactly zero until the second. Routing is held where the experts' output
is split: their input, weights and indices are recorded, and ``functional_call`` replays them with initial or trained
weights. The library's own default, one std and one learning rate, is trained beside it and must be refuted.
Read next: ``models.py`` (families of transformers), ``verify/judging/report.py`` (the verdicts).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import Recipe, Setting, recipe
from scaling_algebra.recipes.sizes import Sizes, way
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, judge

from .plans import Plan, plain_name, plan

Build = Callable[[Sizes], nn.Module]
"""A model at these sizes, on the CPU, that maps token ids (batch, length) to logits or an object with ``logits``."""

Signals = dict[str, Tensor]
LAYERS = r"(^|\.)(layers|blocks|h)\.\d+$"
"""Modules whose outputs are the residual stream, by name."""
EPS = 1e-12
"""Adam's epsilon at the base."""
BATCH, LENGTH = 4, 16
VOCABULARY = 64


def check_model(
    build: Build,
    sizes: Sequence[Sizes],
    roles: Mapping[str, str] | None = None,
    *,
    seeds: int = 6,
    steps: int = 3,
    lr: float = 1e-2,
    optimizer: str = "adamw",
    parameterization: str = "mup",
    layers: str = LAYERS,
) -> Report:
    """Trains a model at several sizes with the numbers of a recipe and judges how its signals change.

    Args:
        build: see ``Build``; called under a seed of torch's own generator.
        sizes: on one ray from the base, which is the first.
        roles: as for ``plan``. layers: regular expression on names of the modules whose outputs are watched.
        seeds: replicas at every size. lr: at the base, of every tensor.

    Raises:
        UsageError: fewer than two sizes, sizes off one ray, no layers, or what ``plan`` raises.
    """
    if len(sizes) < 2:
        raise UsageError("give two or more sizes; three are needed for a verdict")
    start, base = time.monotonic(), sizes[0]
    whole = way(base, sizes[-1])
    if whole.ray is None:
        raise UsageError("the sizes lie on no ray: an axis shrinks or K outgrows M")
    numbers = recipe(base, sizes[-1], optimizer, parameterization, lr=lr, eps=EPS, readout_init="zero")
    stds = {role: _std(role, settings["init_std"], base) for role, settings in numbers.tensors.items()}
    tensors = {r: {**x, "init_std": replace(x["init_std"], base=stds[r])} for r, x in numbers.tensors.items()}
    numbers = replace(numbers, tensors=tensors)
    m = Measurement(whole.ray, steps, watched=("logits",))
    m.sizes = [s["N"] / base["N"] for s in sizes]
    m.dims = [dict(s) for s in sizes]
    plain = optimizer, lr
    for i, size in enumerate(sizes):
        for seed in range(seeds):
            model = _built(build, size, seed)
            if seed == 0:
                m.parameters.append(sum(p.numel() for p in model.parameters()))
                m.inputs.append(str(_tokens().sum().item()))
            scaled = plan(model, at(numbers, size), roles=roles)
            _record(m.values, i, len(sizes), _changes(model, scaled, steps, layers))
            _record(m.standard, i, len(sizes), _changes(_built(build, size, seed), plain, steps, layers))
            model = _built(build, base, 10_000 + seed + seeds * i)
            frozen = plan(model, at(numbers, base), roles=roles)
            _record(m.control, i, len(sizes), _changes(model, frozen, steps, layers))
    for series in (m.values, m.standard, m.control):
        series.update({key: [np.array(v) for v in values] for key, values in series.items()})
    m.environment = {
        "optimizer": optimizer,
        "device": "cpu",
        "torch": torch.__version__,
        "dtype": "float32",
        "wall_seconds": time.monotonic() - start,
    }
    flat = [Fraction(0)] * steps
    report = judge(m, {q: [None, *(flat if q == "logits" else [None, *flat[1:]])] for q in m.names})
    if "M" in base and not any(".experts." in q for q in m.names):
        raise UsageError("no module named experts was seen; its output cannot be split")
    return report


def at(numbers: Recipe, size: Sizes) -> Recipe:
    """A recipe at another size of its ray, the base itself included."""

    def moved(s: Setting) -> Setting:
        return s if s.rule is None else replace(s, factor=s.rule.ratio(numbers.way.base, size))

    tensors = {role: {what: moved(s) for what, s in settings.items()} for role, settings in numbers.tensors.items()}
    multipliers = {name: moved(s) for name, s in numbers.multipliers.items()}
    return replace(numbers, way=replace(numbers.way, target=size), tensors=tensors, multipliers=multipliers)


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


def _record(series: dict[Any, list[Any]], i: int, sizes: int, found: Mapping[tuple[str, int], float]) -> None:
    for key, value in found.items():
        series.setdefault(key, [[] for _ in range(sizes)])[i].append(value)


def _changes(model: nn.Module, how: Plan | tuple[str, float], steps: int, layers: str) -> dict[tuple[str, int], float]:
    """Root-mean-square changes since the start after every step; ``how``: a plan, or one learning rate for all."""
    if isinstance(how, Plan):
        if left := [name for name, x in how.multipliers.items() if x != 1]:
            raise UsageError(f"the model must multiply {left[0]} itself on this ray; choose one on which it need not")
        how.init_(model)
        optimizer = torch.optim.AdamW(how.param_groups(model))
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=how[1], eps=EPS, weight_decay=0.0)
    tokens = _tokens()
    first = {name: module for name, module in model.named_modules() if re.search(r"(^|\.)experts$", name)}
    weights = {n: {k: p.detach().clone() for k, p in module.named_parameters()} for n, module in first.items()}
    begin, held = _watched(model, tokens, layers)
    found: dict[tuple[str, int], float] = {}
    for t in range(steps + 1):
        if t:
            optimizer.zero_grad()
            logits = _logits(model, tokens[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
        with torch.no_grad():
            now, calls = _watched(model, tokens, layers)
            found |= {(name, t): _rms(x - begin[name]) for name, x in now.items()}
            for name, module in first.items():
                x, rest = calls[name][0], held[name][1:]
                old = torch.func.functional_call(module, weights[name], (x, *rest))
                base = torch.func.functional_call(module, weights[name], held[name])
                short = _short(name)
                found[f"{short}.effective", t] = _rms(module(x, *rest) - old)
                found[f"{short}.propagating", t] = _rms(old - base)
    return found


def _watched(model: nn.Module, tokens: Tensor, layers: str) -> tuple[Signals, dict[str, tuple[Tensor, ...]]]:
    """Outputs of layers and routers and the logits; and what every module of experts was called with."""
    seen: Signals = {}
    calls: dict[str, tuple[Tensor, ...]] = {}
    with torch.no_grad(), _hooks(model, layers, seen, calls):
        logits = _logits(model, tokens[:, :-1])
    if not seen:
        raise UsageError(f"no module matches layers={layers!r}; give a pattern of your layers' names")
    return {**seen, "logits": logits}, calls


@contextmanager
def _hooks(model: nn.Module, layers: str, seen: Signals, calls: dict[str, tuple[Tensor, ...]]) -> Iterator[None]:
    def output(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, given: Any, out: Any) -> None:
            seen[name] = (out[0] if isinstance(out, tuple) else out).detach().clone()

        return keep

    def given(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, arguments: Any) -> None:
            calls[name] = tuple(x.detach().clone() for x in arguments)

        return keep

    handles = []
    for name, module in model.named_modules():
        if re.search(layers, name) or re.search(r"(mlp\.gate|\.router)$", name):
            handles.append(module.register_forward_hook(output(_short(name))))
        elif re.search(r"(^|\.)experts$", name):
            handles.append(module.register_forward_pre_hook(given(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _short(name: str) -> str:
    """``layer0``, ``layer0.router``, ``layer0.experts``."""
    name = plain_name(name)
    number = next((part for part in name.split(".") if part.isdigit()), "")
    last = {"gate": ".router", "router": ".router", "experts": ".experts"}.get(name.rsplit(".", 1)[-1], "")
    return f"layer{number}{last}"


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    out = model(ids)
    return getattr(out, "logits", out)


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
