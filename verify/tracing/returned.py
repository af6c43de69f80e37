"""Checks of what ``build`` returns and does: what stands beside the module, and torch as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, quote_value

OWNERS: Mapping[Any, tuple[str, Any]] = {
    torch.Tensor: ("torch.Tensor", torch._C.TensorBase),
    torch: ("torch", torch._C._VariableFunctions),
}
"""Where functions of torch can be replaced: what it is called, and what has the names of those that are built in."""


def find_optimizers(value: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers that a value is, or that a list, a tuple or a dict consists of; else an empty list."""
    several = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else [value]
    return several if all(isinstance(x, torch.optim.Optimizer) for x in several) else []


def check_returned(beside: Sequence[Any]) -> None:
    """Check what ``build`` returns beside the module.

    Args:
        beside: Optimizers, the input of the module, or None.

    Raises:
        UsageError: Anything else, or an input that is sparse.
    """
    for value in beside:
        if value is None or find_optimizers(value):
            continue
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
            name = value.__name__
            raise UsageError(f"build returns the class {name} beside the model; return {name}(model.parameters(), ...)")
        if not isinstance(value, dict | Tensor | tuple):
            what = "a second module" if isinstance(value, nn.Module) else quote_value(value)
            what = f"build returns {what} beside the model"
            raise UsageError(
                f"{what}; return (model, optimizer, input), where the input is a tensor, a tuple or a dict"
            )
        for x in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]:
            if isinstance(x, Tensor) and x.layout != torch.strided:
                raise UsageError(f"build returns an input of layout {x.layout}; return a dense tensor, x.to_dense()")


def check_torch() -> None:
    """Check that no foreign code has replaced what torch computes with.

    Raises:
        UsageError: A function of torch, or a method of a tensor, is one of another package.
    """
    for owner, (called, built_in) in OWNERS.items():
        for name, function in vars(owner).items():
            if not isinstance(function, FunctionType) or not hasattr(built_in, name):
                continue
            if (function.__module__ or "").partition(".")[0] != "torch":
                where = Path(function.__code__.co_filename).name
                raise UsageError(f"{where} replaces {called}.{name}, which is computed with here; leave torch as it is")
