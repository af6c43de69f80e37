"""The models of ``study transfer``: how to build them at any sizes, and the initialisation and learning rate of every
parameter.

The equations of a family of transformers are read with one layer, whatever number is trained. Read next:
``training.py`` (trains one).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.files import HUGGING_FACE
from scaling_algebra.recipes.files import read_config
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.verify.apply.planning import build_plan
from scaling_algebra.verify.apply.plans import Plan
from scaling_algebra.verify.tracing import TracedModel, trace_equations
from scaling_algebra.verify.tracing.building import call_build, get_default_sizes
from scaling_algebra.verify.tracing.config_probing import ProbedConfig, probe_config
from scaling_algebra.verify.tracing.config_reading import merge_layer_names
from scaling_algebra.verify.tracing.measuring import find_parameters
from scaling_algebra.verify.tracing.model_loading import load_model_builder

EPS = 1e-8
"""Epsilon of the optimizer at the base sizes."""
BYTES = 256
"""Size of the vocabulary with which a family is built."""
USUAL = {"N": 32, "N_e": 64, "M": 4, "K": 2, "L": 2}
"""Default base sizes of a family."""
TRAINED: Mapping[str, Any] = {"vocab_size": BYTES, "experts_implementation": "eager", "attn_implementation": "sdpa"}
"""Options of a family in training, in addition to those with which its equations are read."""


@dataclass(frozen=True)
class Trainee:
    """How one parameter is initialised and trained.

    Attributes:
        rule: its optimizer.
        lr: its learning rate relative to the one that is swept.
        eps: epsilon of its optimizer, if that has one.
        std: standard deviation of initial values to draw; None keeps the module's own values.
        alike: whether all experts start with the same values.
    """

    rule: Optimizer
    lr: float = 1.0
    eps: float = EPS
    std: float | None = None
    alike: bool = False

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "rule": self.rule.name}


Numbers = Mapping[str, Trainee]
"""Map: name of a parameter -> its initialisation and learning rate."""


@dataclass(frozen=True)
class Model:
    """A model given by its name: ``FILE.py:build``, ``hf:config.json``, or a model type of the library transformers.

    Attributes:
        name: the name.
        folder: the folder to which paths are relative.
    """

    name: str
    folder: str = field(default_factory=os.getcwd)

    @property
    def own(self) -> bool:
        """Whether the model is a ``build`` function in a file of the user."""
        return ":" in self.name and not self.name.startswith(HUGGING_FACE)

    @cached_property
    def _config(self) -> ProbedConfig:
        path = self.name.removeprefix(HUGGING_FACE)
        return probe_config({"model_type": self.name} if path == self.name else read_config(Path(path)), path)

    @cached_property
    def _build(self) -> Callable[[dict[str, int]], Any]:
        if self.own:
            return load_model_builder(self.name)[0]
        return self._config.make_builder(deep=True, instead=TRAINED)

    def build(self, sizes: Sizes, seed: int) -> nn.Module:
        """Builds the module at these sizes, with the initial values of a seed.

        Raises:
            UsageError: it cannot be built.
        """
        return call_build(self._build, dict(sizes), seed)[0]

    @cached_property
    def base(self) -> dict[str, int]:
        """Default base sizes. For a function of the user they are those given in its file; for other models, small
        ones for every axis that the model needs.
        """
        if self.own:
            return dict(load_model_builder(self.name)[1]) or get_default_sizes(self._build)
        return {axis: n for axis, n in USUAL.items() if axis in self._config.axes}

    def numbers(self, parameterization: str, optimizer: str, sizes: Sequence[Sizes]) -> list[Numbers]:
        """Returns the initialisation and learning rate of every parameter at each of the sizes, the first of which is
        the base.

        At the base, derived parameterizations keep the initialisation and the rates of the module itself. ``sp`` keeps
        them at every size: the module's own initial values and one learning rate.

        Raises:
            UsageError: the parameterization is not one for modules; also all errors of ``plan``.
            Infeasible: there is no such parameterization on the ray.
        """
        derived = PARAMETERIZATIONS[parameterization].derived
        if not derived and parameterization != "sp":
            raise UsageError(
                f"{parameterization} is not available for modules; choose mup, mssp or sp (one rate for all)"
            )
        texts = tuple(tuple(x.items()) for x in sizes)
        plans = _build_plans(self, parameterization if derived else "mup", optimizer, texts)
        found = [{e.name: _get_number(p, e.name) for e in p.entries if not e.frozen} for p in plans]
        if not derived:
            return [{name: Trainee(x.rule) for name, x in numbers.items()} for numbers in found]
        started = {name: replace(x, std=None) if x.std and not x.alike else x for name, x in found[0].items()}
        return [started, *found[1:]]

    def reading(self, base: Sizes) -> TracedModel:
        """Reads the equations of the model at the base sizes."""
        if self.own:
            return trace_equations(self._build, base)
        shallow = {axis: n for axis, n in base.items() if axis != "L"}
        return merge_layer_names(trace_equations(self._config.make_builder(deep=False), shallow))


@lru_cache(maxsize=8)
def _build_plans(
    model: Model, parameterization: str, optimizer: str, sizes: tuple[tuple[tuple[str, int], ...], ...]
) -> list[Plan]:
    """Returns the plan (numbers of every parameter) of one model at each of several sizes, the first of which is the
    base. Its equations are read only once.

    Raises:
        UsageError: the model lacks a multiplier that muP needs.
    """
    base, *_, last = map(dict, sizes)
    reading, small = model.reading(base), model.build(base, 0)
    stds = {role: _get_std(small, role) for role in reading.network.tensors}
    given: dict[str, Any] = {"lr": 1.0, "std": stds, "network": reading.network}
    if any(rule.epsilon for rule in read_optimizers(optimizer, reading.network).rules):
        given["eps"] = EPS
    numbers, plans = recipe(base, last, optimizer, parameterization, **given), []
    for one in map(dict, sizes):
        plans.append(build_plan(model.build(one, 0), reading, numbers.at(one), [small]))
        if left := [f"{name} = {x:g}" for name, x in plans[-1].multipliers.items() if x != 1]:
            raise UsageError(
                f"{model.name} lacks a multiplier that muP needs ({', '.join(left)}); apply it in the model's forward "
                "pass"
            )
    return plans


def _get_std(model: nn.Module, role: str) -> float:
    """Returns the rms of the initial values that the module itself gives to the parameters of a role; 1 if all are
    zero, in which case they remain zero whatever the number.
    """
    return max(float(p.double().square().mean().sqrt()) for p in find_parameters(model, role)) or 1.0


def _get_number(p: Plan, name: str) -> Trainee:
    group = p.groups[p[name].group]
    std = None if group.fill is not None else group.std
    numbers = group.numbers
    return Trainee(group.optimizer, numbers["lr"], numbers.get("eps", EPS), std, group.tied)


def tune_plan(numbers: Numbers, rates: Mapping[str, float]) -> Numbers:
    """Returns the numbers of all parameters with learning rates multiplied by factors.

    Args:
        numbers: initialisation and learning rate of every parameter, by name.
        rates: factors by pattern of names, such as ``*embed*``. If several patterns match, their factors are
            multiplied.

    Raises:
        UsageError: a pattern that no parameter matches.
    """
    for pattern in rates:
        if not any(fnmatchcase(name, pattern) for name in numbers):
            raise UsageError(f"no parameter matches {pattern!r} of --rate; names are such as {next(iter(numbers))}")
    factors = {name: math.prod(f for p, f in rates.items() if fnmatchcase(name, p)) for name in numbers}
    return {name: replace(x, lr=x.lr * factors[name]) for name, x in numbers.items()}


def initialise_model(model: nn.Module, numbers: Numbers) -> None:
    """Draws the initial values of parameters with the std that ``numbers`` gives; those without a std keep the module's
    own values.
    """
    with torch.no_grad():
        for name, p in model.named_parameters():
            if (x := numbers[name]).std is not None:
                p.copy_(torch.empty_like(p[:1] if x.alike else p).normal_(0.0, x.std).expand_as(p))
