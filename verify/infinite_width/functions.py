"""Evaluates functions and their slopes with torch."""

from __future__ import annotations

import numpy as np
import torch

from scaling_algebra.spec.networks.functions import FunctionKind
from scaling_algebra.spec.networks.language import Function
from scaling_algebra.verify.networks.torch_network import apply_function, count_selected, find_torch_function

from .vectors import NotCovered, Values

MARGIN = 0.05
"""Minimum difference between the selected and the other entries. It exceeds the errors of sampled expectations."""


def evaluate(kind: FunctionKind, x: Values) -> Values:
    """Evaluates a function entry by entry."""
    found: Values = find_torch_function(kind)(torch.tensor(np.asarray(x, np.float64))).numpy()
    return found


def evaluate_slope(kind: FunctionKind, x: Values) -> Values:
    """Evaluates the derivative of a function entry by entry."""
    with torch.enable_grad():
        at = torch.tensor(np.asarray(x, np.float64), requires_grad=True)
        (found,) = torch.autograd.grad(find_torch_function(kind)(at).sum(), at)
    slopes: Values = found.numpy()
    return slopes


def evaluate_numbers(s: Function, indices: str, x: Values, above: Values | None = None) -> Values:
    """Evaluates a function of an array without growing indices, or pulls a gradient back through it.

    Args:
        s: the statement of the function.
        `indices`: the indices of x, one for each dimension.
        x: the argument.
        above: the gradient of the output with respect to the function's value. If it is given, the gradient with
            respect to x is returned instead of the value; which entries a top-K selection keeps counts as constant.

    Raises:
        NotCovered: a selection is too close to call: kept and dropped entries differ by less than ``MARGIN``.
    """
    at = torch.tensor(x, requires_grad=above is not None)
    if s.kind.selects:
        ordered = at.detach().movedim(indices.index(s.over), -1).sort(descending=True).values
        k = count_selected(ordered.shape[-1])
        if bool((ordered[..., k - 1 : k] - ordered[..., k : k + 1] < MARGIN).any()):
            raise NotCovered(
                f"{s.out} selects among entries that are equal in the limit, so that fluctuations of finite networks "
                "decide"
            )
    with torch.set_grad_enabled(above is not None):
        found = apply_function(s, indices, at[None])[0]
    if above is not None:
        (found,) = torch.autograd.grad(found, at, torch.tensor(above))
        found = torch.where(found.abs() > 1e-14 * np.abs(above).max(initial=0), found, 0.0)
    values: Values = found.numpy()
    return values
