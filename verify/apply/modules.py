"""A live module as a plan reads it: every tensor once, under the name that it has without wrappers.

Read next: ``planning.py`` (gives each its numbers).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList

from scaling_algebra.errors import unknown_name
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizer_reading import compile_glob, parameter_of, parse_optimizers
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.verify.tracing.config_skeletons import general

SEEN = 1024
"""Entries of a buffer that are compared."""
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


@dataclass(frozen=True)
class Entry:
    """One parameter.

    Attributes:
        name: in the model, without the prefixes of wrappers.
        role: as its reading calls it; empty for a frozen one that the output does not depend on.
        settings: of the role. group: of the optimizer: the role, or the parameter that it is a part of.
        fill: the value that every entry starts with; None where entries are drawn.
        kept: whether the module's own start stays, which is no draw of one law centred at zero.
        filter: whether it is the weight of a convolution.
        rules: the optimizer of every role.
        parts: settings of its parts by role, where they or the optimizers differ; ``settings`` has those that are
            alike, and the least epsilon.
        spans: of every part the dimension, where it begins, and how many entries it has, where known.
        apart: what to do where torch has one number for parts that need two.
    """

    name: str
    tensor: nn.Parameter
    role: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    group: str = ""
    fill: float | None = None
    kept: bool = False
    filter: bool = False
    rules: Mapping[str, Optimizer] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    spans: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    apart: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def frozen(self) -> bool:
        """Does the parameter take no gradient? Then no optimizer gets it."""
        return not self.tensor.requires_grad

    @property
    def stacked(self) -> bool:
        """Does an optimizer of matrices get a stack of them?"""
        return self.rules[self.role].normalises == "matrix" and self.tensor.dim() > 2 and not self.frozen


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of DDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter by its plain name."""
    return {plain_name(name): p for name, p in model.named_parameters()}


def modules(model: nn.Module) -> dict[str, Any]:
    """Every module by its plain name."""
    return {plain_name(name): module for name, module in model.named_modules()}


def beginnings(model: nn.Module) -> dict[str, Tensor]:
    """The first entries of every buffer that no checkpoint has (``persistent=False``), off meta."""
    found: dict[str, Tensor] = {}
    for name, module in modules(model).items():
        for key in sorted(module._non_persistent_buffers_set):
            if (x := module._buffers[key]) is not None and not x.is_meta:
                first = x.detach().flatten()[:SEEN].clone()
                found[f"{name}.{key}".lstrip(".")] = torch.view_as_real(first) if x.is_complex() else first
    return found


def parameters(model: nn.Module) -> Iterator[Entry]:
    """Every parameter."""
    filters = {id(x.weight) for x in model.modules() if isinstance(x, nn.modules.conv._ConvNd)}
    return (Entry(plain_name(name), p, filter=id(p) in filters) for name, p in model.named_parameters())


def norms(model: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Of every weight norm of torch its name, the tensor of norms, and the norms of the matrix beside it."""
    for name, module in modules(model).items():
        normed = isinstance(module, ParametrizationList) and isinstance(module[-1], _WeightNorm)
        if normed and module.original0.requires_grad:
            yield f"{name}.original0", module.original0, module[-1].right_inverse(module.original1)[0]


def aliases(model: nn.Module) -> dict[str, str]:
    """Names of tensors that have another name already, by the name that stays."""
    first: dict[int, str] = {}
    names = [(plain_name(name), id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: first[p] for name, p in names if first.setdefault(p, name) != name}


def check_named(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises UsageError for names of parameters that the model does not have, before it is read; a name without dots is
    of what is not known yet."""
    names = [plain_name(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    asked = {what: given.get(what) for what in ("optimizer", "lr", "eps", "std", "decay")}
    if isinstance(asked["optimizer"], str | Mapping):
        asked["optimizer"] = dict(parse_optimizers(asked["optimizer"])[2])
    for what, values in asked.items():
        dotted = [x for x in map(str, values if isinstance(values, Mapping) else ()) if "." in x and ":" not in x]
        wrong = [x for x in dotted if not any(map(compile_glob(parameter_of(x)).fullmatch, names))]
        if wrong:
            raise unknown_name(f"parameter in {what}", wrong, dict.fromkeys(map(general, names)))
