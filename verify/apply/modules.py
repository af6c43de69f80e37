"""Lists the parameters of a live module for a plan: each once, named without the prefixes of wrappers.

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

from scaling_algebra.errors import unknown_name_error
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizer_reading import compile_glob, parameter_of, parse_optimizers
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.verify.tracing.config_skeletons import mask_numbers

SEEN = 1024
"""Number of entries of a buffer that are compared."""
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


@dataclass(frozen=True)
class Entry:
    """One parameter of a model.

    Attributes:
        name: its name in the model, without the prefixes of wrappers such as DDP.
        tensor: the parameter itself.
        role: its name in the traced equations (``*`` for layer numbers); empty for a frozen parameter that the output
            does not use.
        settings: its init std, lr, eps and decay; if its parts differ, those that they share and the smallest epsilon.
        group: name of its parameter group: the role, or, if the role is a part of a parameter, that parameter.
        fill: the initial value of every entry; None where entries are drawn.
        kept: whether ``Plan.init_`` keeps the module's own values, because they do not look like random draws with mean
            zero.
        filter: whether it is the weight of a convolution.
        rules: the optimizer by role; several if it has parts.
        parts: the settings of its parts, where these or their optimizers differ; otherwise empty.
        spans: part -> (dimension, start, length), where known.
        apart: advice to the user if parts need different numbers, since torch has only one for a parameter.
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
        """Whether the parameter does not require a gradient, so that no optimizer trains it."""
        return not self.tensor.requires_grad

    @property
    def stacked(self) -> bool:
        """Whether the parameter is a stack of matrices (it has more than two dimensions) that an optimizer of matrices,
        such as Muon, trains.
        """
        return self.rules[self.role].normalises == "matrix" and self.tensor.dim() > 2 and not self.frozen


def strip_wrappers(name: str) -> str:
    """Returns a parameter's name without the prefixes of DDP, FSDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def get_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns every parameter by its name without the prefixes of wrappers such as DDP."""
    return {strip_wrappers(name): p for name, p in model.named_parameters()}


def get_modules(model: nn.Module) -> dict[str, Any]:
    """Returns every module inside a model by its name without the prefixes of wrappers such as DDP."""
    return {strip_wrappers(name): module for name, module in model.named_modules()}


def sample_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Returns the first entries of every buffer that is not saved in checkpoints (``persistent=False``), by name.

    Buffers on the meta device, which have no values, are left out. The entries show later whether values were lost.
    """
    found: dict[str, Tensor] = {}
    for name, module in get_modules(model).items():
        for key in sorted(module._non_persistent_buffers_set):
            if (x := module._buffers[key]) is not None and not x.is_meta:
                first = x.detach().flatten()[:SEEN].clone()
                found[f"{name}.{key}".lstrip(".")] = torch.view_as_real(first) if x.is_complex() else first
    return found


def iterate_entries(model: nn.Module) -> Iterator[Entry]:
    """Yields an ``Entry`` for every parameter of a model, in which its numbers are still missing."""
    filters = {id(x.weight) for x in model.modules() if isinstance(x, nn.modules.conv._ConvNd)}
    return (Entry(strip_wrappers(name), p, filter=id(p) in filters) for name, p in model.named_parameters())


def find_weight_norms(model: nn.Module) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name of the magnitudes, magnitudes, norms of the direction matrix) for every matrix that is parameterized
    by torch's ``weight_norm`` and trained.
    """
    for name, module in get_modules(model).items():
        normed = isinstance(module, ParametrizationList) and isinstance(module[-1], _WeightNorm)
        if normed and module.original0.requires_grad:
            yield f"{name}.original0", module.original0, module[-1].right_inverse(module.original1)[0]


def find_aliases(model: nn.Module) -> dict[str, str]:
    """Returns the names of shared parameters beyond their first: alias -> first name."""
    first: dict[int, str] = {}
    names = [(strip_wrappers(name), id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: first[p] for name, p in names if first.setdefault(p, name) != name}


def check_names_exist(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Checks, before the model is read, that it has the parameters named in the arguments of ``plan``.

    Names without a dot are skipped: only the reading can tell what they mean.

    Raises:
        UsageError: a name that no parameter has.
    """
    names = [strip_wrappers(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    asked = {what: given.get(what) for what in ("optimizer", "lr", "eps", "std", "decay")}
    if isinstance(asked["optimizer"], str | Mapping):
        asked["optimizer"] = dict(parse_optimizers(asked["optimizer"])[2])
    for what, values in asked.items():
        dotted = [x for x in map(str, values if isinstance(values, Mapping) else ()) if "." in x and ":" not in x]
        wrong = [x for x in dotted if not any(map(compile_glob(parameter_of(x)).fullmatch, names))]
        if wrong:
            raise unknown_name_error(f"parameter in {what}", wrong, dict.fromkeys(map(mask_numbers, names)))
