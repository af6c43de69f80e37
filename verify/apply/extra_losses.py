"""Compares losses that a module returns besides its output with the output's loss, by their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import guard_foreign_code
from scaling_algebra.verify.judging.fit import fit_exponent
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.tracing.building import Inputs, in_float64
from scaling_algebra.verify.tracing.recording import find_losses, find_output

from .rows import TOLERANCE

DRIFTS = 0.25
"""Largest power of n by which the gradients of two losses may drift apart under one constant weight."""
GradientRatios = dict[str, dict[str, list[Any]]]
"""``ratios[loss][parameter][i]``: at the i-th size, for every seed, the norm of the gradient of an extra loss
divided by that of the output's loss."""


def compute_loss(out: Tensor) -> Tensor:
    """Returns the loss on the output with which models are trained here: the mean squared distance from fixed random
    targets.
    """
    draw = torch.Generator().manual_seed(2)
    return (out - torch.randn(out.shape, generator=draw, dtype=out.dtype)).square().mean()


def compare_extra_losses(model: nn.Module, inputs: Inputs) -> dict[tuple[str, str], float]:
    """Compares the gradients of losses that a module returns besides its output, such as a load-balancing loss, with
    that of the output's loss (``compute_loss``).

    Returns:
        ``(loss, parameter)`` -> norm of the gradient of the loss at the parameter, divided by that of the output's
        loss, where both are nonzero.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with in_float64(), guard_foreign_code("the model"):
        out = model(*inputs[0], **inputs[1])
        found = {k: x for k, x in find_losses(out).items() if x.requires_grad}
        if not found:
            return {}
        losses = {"": compute_loss(find_output(out)), **found}
        grads = {k: torch.autograd.grad(x, [*named.values()], None, True, allow_unused=True) for k, x in losses.items()}
    return {
        (loss, name): float(g.norm() / main.norm())
        for loss in grads.keys() - {""}
        for name, g, main in zip(named, grads[loss], grads[""], strict=True)
        if g is not None and main is not None and g.any() and main.any()
    }


def describe_loss_weight(loss: str, found: Mapping[str, Sequence[Any]], m: Measurement) -> str:
    """Returns a sentence on how the gradient of an extra loss scales relative to that of the output's loss, and whether
    the extra loss needs a weight that is a power of n.

    The power is fitted at the parameter where the ratio of the two gradients is largest at the base.

    Args:
        loss: name of the loss.
        found: by parameter, the gradient ratios at every size.
        m: the measurement, for the sizes.
    """
    there = [x for x in found if all(map(len, found[x]))]
    if not there:
        return f"loss {loss}: its gradient is zero at some of these sizes, so that no power of n can be fitted"
    name = max(there, key=lambda x: float(np.median(found[x][0])))
    power, ends = fit_exponent(m.sizes, found[name]), [float(np.median(found[name][k])) for k in (0, -1)]
    said = f"loss {loss}: its gradient at {name} over that of the output's loss is {ends[0]:.2g} at the base"
    said += f" and {ends[1]:.2g} at the target, n^({power.slope:+.2f}) [{power.low:+.2f}, {power.high:+.2f}]"
    flat = "one weight does" if max(-power.low, power.high) < DRIFTS else "undecided, take more seeds"
    apart = power.low > TOLERANCE or power.high < -TOLERANCE
    return f"{said}: {f'WARNING, its weight is to go as n^({-power.slope:+.2f})' if apart else flat}"
