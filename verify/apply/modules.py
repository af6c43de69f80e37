"""A live module as a plan reads it: every tensor once, under the name that it has without wrappers.

Read next: ``planning.py`` (gives each a role), ``parts.py`` (what goes through them).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from scaling_algebra.recipes.settings import Setting

LABEL = "scaling_roles"
"""Attribute of a module: the role of each of its own parameters, by name."""
TRANSPOSED = "in x out"
"""In the layout of a stack that is stored so."""
_WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


@dataclass(frozen=True)
class Entry:
    """One parameter.

    Attributes:
        name: in the model, without the prefixes of wrappers. module: its own. layout: how experts are stored there, as
            the library labels it (``use_experts_implementation`` of transformers).
        role: empty for a frozen one without a role. rule: the pattern or label that gave it.
        settings: of the role, at the tensor's own fans. group: of the optimizer: the role, with a number where its
            settings are others. fill: the value that every entry starts with; None where entries are drawn.
    """

    name: str
    tensor: nn.Parameter
    module: nn.Module
    layout: str
    rule: str = ""
    role: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    group: str = ""
    fill: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def frozen(self) -> bool:
        """Does the parameter take no gradient? Then no optimizer gets it."""
        return not self.tensor.requires_grad


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of DDP, torch.compile and checkpointing."""
    return _WRAPPERS.sub("", name)


def tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter by its plain name."""
    return {plain_name(name): p for name, p in model.named_parameters()}


def modules(model: nn.Module) -> dict[str, Any]:
    """Every module by its plain name."""
    return {plain_name(name): module for name, module in model.named_modules()}


def parameters(model: nn.Module) -> Iterator[Entry]:
    """Every parameter, with the role of its module's label."""
    seen = set()
    for prefix, module in model.named_modules():
        label, layout = getattr(module, LABEL, {}), _layout(module)
        for short, p in module.named_parameters(recurse=False):
            if id(p) not in seen:
                seen.add(id(p))
                rule = f"{LABEL} of {prefix}" if short in label else ""
                yield Entry(plain_name(f"{prefix}.{short}".lstrip(".")), p, module, layout, rule, label.get(short, ""))


def aliases(model: nn.Module) -> dict[str, str]:
    """Names of tensors that have another name already, by the name that stays."""
    first: dict[int, str] = {}
    names = [(plain_name(name), id(p)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: first[p] for name, p in names if first.setdefault(p, name) != name}


def _layout(module: nn.Module) -> str:
    if not hasattr(module, "is_transposed"):
        return ""
    matrix = TRANSPOSED if module.is_transposed else "out x in"
    fused = "concatenated" if getattr(module, "is_concatenated", True) else "interleaved"
    return f"M x {matrix}" + (f", gate and up {fused}" if getattr(module, "has_gate", False) else "")
