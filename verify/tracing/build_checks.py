"""Checks what ``build`` returns with the module, and that it did not replace functions of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, quote_value

PATCHABLE_OBJECTS: Mapping[Any, tuple[str, Any]] = {
    torch.Tensor: ("torch.Tensor", torch._C.TensorBase),
    torch: ("torch", torch._C._VariableFunctions),
}
"""Objects whose torch functions could be replaced: the name of each, and the object with the built-in names."""


def find_optimizers(value: Any) -> list[torch.optim.Optimizer]:
    """Returns the torch optimizers that a value consists of.

    The value is an optimizer, or a list, tuple or dict of optimizers. If anything in it is not an optimizer, the result
    is an empty list.
    """
    several = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list | tuple) else [value]
    return several if all(isinstance(x, torch.optim.Optimizer) for x in several) else []


def check_build_result(beside: Sequence[Any]) -> None:
    """Checks what ``build`` returns in addition to the module.

    Args:
        beside: the values returned with the module; optimizers, the input of the module and None are allowed.

    Raises:
        UsageError: there is anything else, or a sparse input.
    """
    for value in beside:
        if value is None or find_optimizers(value):
            continue
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
            name = value.__name__
            raise UsageError(
                f"build returns the class {name} with the model; return an instance, {name}(model.parameters(), ...)"
            )
        if not isinstance(value, dict | Tensor | tuple):
            what = "a second module" if isinstance(value, nn.Module) else quote_value(value)
            what = f"build returns {what} with the model"
            raise UsageError(
                f"{what}; return (model, optimizer, input), where the input is a tensor, a tuple or a dict"
            )
        for x in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]:
            if isinstance(x, Tensor) and x.layout != torch.strided:
                raise UsageError(f"build returns an input of layout {x.layout}; return a dense tensor, x.to_dense()")


def check_torch_unpatched() -> None:
    """Checks that no other package has replaced a function of torch or a method of tensors.

    Raises:
        UsageError: a package has replaced one; the message names the function.
    """
    for owner, (called, built_in) in PATCHABLE_OBJECTS.items():
        for name, function in vars(owner).items():
            if not isinstance(function, FunctionType) or not hasattr(built_in, name):
                continue
            if (function.__module__ or "").partition(".")[0] != "torch":
                where = Path(function.__code__.co_filename).name
                raise UsageError(
                    f"{where} replaces {called}.{name}, which scalecalc uses; do not modify torch in build"
                )
