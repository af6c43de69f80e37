"""Trains one model of ``study transfer``: any module, its real optimizer, one seed and one rate.

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
from scaling_algebra.verify.hardware import Hardware, out_of_memory
from scaling_algebra.verify.networks.steppers import Fold, assembled, group
from scaling_algebra.verify.tracing.recording import output_of

from .data import Data, load
from .models import Model, Numbers, start

WARMUP = 0.1
"""Share of the steps in which the rate grows; it falls to zero in the others, both linearly."""
DTYPES = ("float32", "bfloat16")
"""Of a training; with bfloat16 products are rounded (autocast), and weights are not."""
PART = 32
"""Examples of the held-out batch that are in memory at once."""


@dataclass(frozen=True)
class How:
    """What all runs of a study share.

    Attributes:
        settings: of the data. digest: of the data, which must be the same wherever they are trained.
        decay: weight decay over the learning rate's own factor: every tensor shrinks by rate times decay a step.
    """

    model: str
    data: str
    settings: tuple[str, ...]
    digest: str
    steps: int
    dtype: str = "float32"
    decay: float = 0.0


@lru_cache(maxsize=4)
def _model(name: str, folder: str) -> Model:
    return Model(name, folder)


def trained(
    hardware: Hardware, how: How, sizes: Sizes, numbers: Numbers, lr: float, seed: int, watch: Watched | None = None
) -> tuple[float, float]:
    """The loss of the first batch, and that of the held-out data after training; not finite where it diverged.

    Args:
        watch: called with the module before every step, and after the last.

    Raises:
        UsageError: the data are other ones here, or the model does not take them.
    """
    data, device = load(how.data, how.settings), hardware.device
    if data.digest != how.digest:
        raise UsageError(f"the data {how.data} are other ones on another machine; train on alike ones")
    if hardware.kind == "cuda":
        torch.set_float32_matmul_precision("high")
    model = _model(how.model, os.getcwd()).build(sizes, seed)
    start(model, numbers)
    model.to(device).train()
    stepper = optimizer(model, numbers, lr, how.decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, how.steps))
    first = torch.tensor(math.nan)
    for step in range(how.steps):
        if watch is not None:
            watch(step, model, data)
        with torch.autocast(hardware.kind, torch.bfloat16, enabled=how.dtype == "bfloat16"):
            value = loss(model, *data.batch(seed, step, device), how.data)
        first = value.detach() if step == 0 else first
        stepper.zero_grad()
        value.backward()
        stepper.step()
        schedule.step()
    if watch is not None:
        watch(how.steps, model, data)
    return float(first), held_out(model, data, hardware, how)


Watched = Callable[[int, nn.Module, Data], None]


@torch.no_grad()
def held_out(model: nn.Module, data: Data, hardware: Hardware, how: How) -> float:
    """The mean loss of the held-out batch."""
    model.eval()
    x, y = data.batch(0, None, hardware.device)
    with torch.autocast(hardware.kind, torch.bfloat16, enabled=how.dtype == "bfloat16"):
        pairs = zip(x.split(PART), y.split(PART), strict=True)
        parts = [loss(model, *pair, how.data) * len(pair[0]) for pair in pairs]
    return float(torch.stack(parts).sum()) / len(x)


def loss(model: nn.Module, x: Tensor, y: Tensor, what: str) -> Tensor:
    """Cross entropy of classes, or the mean square of a difference from numbers.

    Raises:
        UsageError: the model does not take such data.
    """
    try:
        out = output_of(model(x)).float()
        if y.is_floating_point():
            return F.mse_loss(out, y.to(out.dtype))
        return F.cross_entropy(out.flatten(0, -2), y.flatten())
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if out_of_memory(error):
            raise
        line = " ".join(str(error).split())[:160]
        raise UsageError(
            f"the model does not learn {what}, inputs {tuple(x.shape)}: {line}; give other --data"
        ) from None


def optimizer(model: nn.Module, numbers: Numbers, lr: float, decay: float = 0.0) -> torch.optim.Optimizer:
    """The real optimizer, a group for each parameter with its own rate and epsilon."""
    groups = []
    for name, p in model.named_parameters():
        if name in numbers:
            x = numbers[name]
            if x.rule.constraint and not x.rule.sphere:
                raise UsageError(f"a study does not train with a constraint, as {x.rule.name} has; take verify")
            fold: Any = {"fold": matrices(p)} if x.rule.folded else {}
            groups.append(group(x.rule, p, lr * x.lr, x.eps, lr * decay, **fold))
    return assembled(groups)


def matrices(p: Tensor) -> Fold:
    """A parameter as matrices: the last two dimensions, or one column."""
    places = tuple(range(p.ndim))
    return Fold(places[:-2], places[-2:-1], places[-1:]) if p.ndim > 1 else Fold((), places, ())


def rate(step: int, steps: int) -> float:
    """Learning rate over its maximum."""
    first = max(1, round(WARMUP * steps))
    return min(1.0, (step + 1) / first) * (1 - step / steps)
