"""Trains one model of ``study transfer``: any module with its real optimizer, one seed and one learning rate.

Read next: ``transfer.py`` (which rates and seeds), ``models.py`` (the numbers of every parameter).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.verify.hardware import Hardware, is_out_of_memory
from scaling_algebra.verify.networks.steppers import Fold, build_group, build_optimizer
from scaling_algebra.verify.tracing.recording import find_output

from .data import Data, load_data
from .models import Model, Numbers, initialise_model

WARMUP = 0.1
"""Share of the steps in which the learning rate grows; in the others it falls to zero. Both are linear."""
DTYPES = ("float32", "bfloat16")
"""Dtypes of a training. With bfloat16 products are rounded (autocast), but weights are not."""
PART = 32
"""Number of examples of the held-out batch that are evaluated at once."""


@dataclass(frozen=True)
class How:
    """The settings that all training runs of a study have in common.

    Attributes:
        model: name of the model.
        data: name of the data.
        settings: settings of the data, as ``name=number``.
        digest: hash of the data, which must be the same on every machine.
        steps: number of steps.
        dtype: one of ``DTYPES``.
        decay: weight decay. In a step every tensor shrinks by the swept learning rate times ``decay``, whatever the
            factor on its own learning rate.
    """

    model: str
    data: str
    settings: tuple[str, ...]
    digest: str
    steps: int
    dtype: str = "float32"
    decay: float = 0.0


@lru_cache(maxsize=4)
def _load_model(name: str, folder: str) -> Model:
    return Model(name, folder)


def train_model(
    hardware: Hardware, how: How, sizes: Sizes, numbers: Numbers, lr: float, seed: int, watch: Watched | None = None
) -> tuple[float, float]:
    """Trains a model and returns the loss of the first batch before training, and that of the held-out data after
    training, which is not finite if the training diverged.

    Args:
        hardware: the device to use.
        how: model, data and number of steps, common to the whole study.
        sizes: sizes of the model.
        numbers: initialisation and learning rate of every parameter.
        lr: the learning rate that is swept.
        seed: seed of the initial values and of the batches.
        watch: called with (step, module, data) before every step and after the last one.

    Raises:
        UsageError: the data differ on this machine, or the model cannot process them.
    """
    data, device = load_data(how.data, how.settings), hardware.device
    if data.digest != how.digest:
        raise UsageError(f"the data {how.data} differ between machines; use the same data everywhere")
    if hardware.kind == "cuda":
        torch.set_float32_matmul_precision("high")
    model = _load_model(how.model, os.getcwd()).build(sizes, seed)
    initialise_model(model, numbers)
    model.to(device).train()
    stepper = build_torch_optimizer(model, numbers, lr, how.decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: compute_rate(step, how.steps))
    first = torch.tensor(math.nan)
    for step in range(how.steps):
        if watch is not None:
            watch(step, model, data)
        with torch.autocast(hardware.kind, torch.bfloat16, enabled=how.dtype == "bfloat16"):
            value = compute_loss(model, *data.batch(seed, step, device), how.data)
        first = value.detach() if step == 0 else first
        stepper.zero_grad()
        value.backward()
        stepper.step()
        schedule.step()
    if watch is not None:
        watch(how.steps, model, data)
    return float(first), compute_held_out_loss(model, data, hardware, how)


Watched = Callable[[int, nn.Module, Data], None]


@torch.no_grad()
def compute_held_out_loss(model: nn.Module, data: Data, hardware: Hardware, how: How) -> float:
    """Returns the mean loss of the held-out batch."""
    model.eval()
    x, y = data.batch(0, None, hardware.device)
    with torch.autocast(hardware.kind, torch.bfloat16, enabled=how.dtype == "bfloat16"):
        pairs = zip(x.split(PART), y.split(PART), strict=True)
        parts = [compute_loss(model, *pair, how.data) * len(pair[0]) for pair in pairs]
    return float(torch.stack(parts).sum()) / len(x)


def compute_loss(model: nn.Module, x: Tensor, y: Tensor, what: str) -> Tensor:
    """Returns the cross entropy for integer targets, or the mean squared error for floating-point targets.

    Raises:
        UsageError: the model cannot process such data; the message names them as ``what``.
    """
    try:
        out = find_output(model(x)).float()
        if y.is_floating_point():
            return F.mse_loss(out, y.to(out.dtype))
        return F.cross_entropy(out.flatten(0, -2), y.flatten())
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        line = " ".join(str(error).split())[:160]
        raise UsageError(
            f"the model cannot be trained on {what}, with inputs of shape {tuple(x.shape)}: {line}; give other --data"
        ) from None


def build_torch_optimizer(model: nn.Module, numbers: Numbers, lr: float, decay: float = 0.0) -> torch.optim.Optimizer:
    """Makes the torch optimizer of a model, with one parameter group for each parameter, since each has its own
    learning rate and epsilon.

    Args:
        model: the model.
        numbers: the optimizer, learning rate and epsilon of every parameter.
        lr: the swept learning rate, which multiplies the rate of every parameter.
        decay: weight decay; in a step every tensor shrinks by ``lr`` times this.

    Raises:
        UsageError: the optimizer of a parameter has a constraint other than a sphere.
    """
    groups = []
    for name, p in model.named_parameters():
        if name in numbers:
            x = numbers[name]
            if x.rule.constraint and not x.rule.keeps_norm:
                raise UsageError(
                    f"study transfer cannot train with the constraint of {x.rule.name}; use scalecalc verify"
                )
            fold: Any = {"fold": fold_matrices(p)} if x.rule.acts_on_matrices else {}
            groups.append(build_group(x.rule, p, lr * x.lr, x.eps, lr * decay, **fold))
    return build_optimizer(groups)


def fold_matrices(p: Tensor) -> Fold:
    """Returns how an optimizer of matrices reads a parameter: its last two dimensions are rows and columns; a vector is
    a single column.
    """
    places = tuple(range(p.ndim))
    return Fold(places[:-2], places[-2:-1], places[-1:]) if p.ndim > 1 else Fold((), places, ())


def compute_rate(step: int, steps: int) -> float:
    """Returns the learning rate at a step relative to its maximum."""
    first = max(1, round(WARMUP * steps))
    return min(1.0, (step + 1) / first) * (1 - step / steps)
