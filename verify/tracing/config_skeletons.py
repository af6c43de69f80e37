"""Models of a family of transformers that are built of options: without values, as shapes, or small ones that run.

Read next: ``config_kinds.py`` (what the shapes say of a configuration).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .nodes import Unreadable

TABLE = 64
"""Rows of tables (vocabulary, positions) in small models, and the largest number that moves no shape."""
FILE = {"architectures", "transformers_version", "torch_dtype", "dtype", "quantization_config", "auto_map",
        "_name_or_path", "model_type"}  # fmt: skip
"""Entries of a configuration that do not concern the code of the model."""
KERNELS = {"attn_implementation": "eager", "experts_implementation": "batched_mm", "use_cache": False}
Options = dict[str, Any]
Dim = tuple[str, int]
"""A dimension: the name of a parameter, and a place in ``Skeleton.dims``."""


@dataclass(frozen=True)
class Skeleton:
    """A model without values.

    Attributes:
        dims: of every parameter, numbers in its name left open, how many there are of it, and its shape.
        layers: names and shapes of every layer's parameters.
        tables: parameters that are tables of embeddings.
        numbers: attributes of modules that are numbers, and the sizes of buffers, by path.
    """

    dims: Mapping[str, tuple[int, ...]]
    layers: tuple[frozenset[tuple[str, tuple[int, ...]]], ...]
    tables: frozenset[str]
    numbers: Mapping[str, float]

    def moved(self, other: Skeleton) -> dict[Dim, float]:
        """The factor by which every dimension is another one in another model."""
        found: dict[Dim, float] = {}
        for name in self.dims.keys() | other.dims.keys():
            mine, its = self.dims.get(name, (0,)), other.dims.get(name, (0,))
            pairs = zip(mine, its, strict=True) if len(mine) == len(its) else [(1, 0)]
            found |= {(name, k): b / a if a else math.inf for k, (a, b) in enumerate(pairs) if a != b}
        return found

    def stacks(self) -> set[Dim]:
        """The dimensions that count matrices in a stack, or modules in a list within a layer."""
        lists = {(name, 0) for name, (n, *_) in self.dims.items() if name.count("*") > 1 and n > len(self.layers)}
        return lists | {(name, 1) for name, (_, *s) in self.dims.items() if len(s) > 2 and min(s[-2:]) > 1 < s[0]}


def skeleton_of(model: nn.Module) -> Skeleton:
    """Return the shapes of a model's parameters, and the numbers in its modules."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    embedded = {id(x.weight) for x in model.modules() if isinstance(x, nn.Embedding)}
    counts = Counter(general(name) for name in shapes)
    numbered: dict[str, dict[int, set[tuple[str, tuple[int, ...]]]]] = {}
    for name, shape in shapes.items():
        if found := re.match(r"(.*?)\.(\d+)\.(.*)", name):
            head, number, rest = found.groups()
            numbered.setdefault(head, {}).setdefault(int(number), set()).add((general(rest), shape))
    layers = max(numbered.values(), key=lambda x: sum(map(len, x.values())), default={})
    numbers: dict[str, float] = {}
    tables = {general(name) for name, p in model.named_parameters() if id(p) in embedded}
    for path, module in model.named_modules():
        numbers |= {
            f"{path}.{k}": x for k, x in vars(module).items() if isinstance(x, int | float) and not isinstance(x, bool)
        }
        numbers |= {f"{path}.{k}.{d}": n for k, b in module.named_buffers(recurse=False) for d, n in enumerate(b.shape)}
    dims = {general(name): (counts[general(name)], *shape) for name, shape in shapes.items()}
    return Skeleton(dims, tuple(frozenset(layers[k]) for k in sorted(layers)), frozenset(tables), numbers)


def general(name: str, most: int = 0) -> str:
    """Return a name with its numbers, those of layers and experts, replaced by ``*``.

    Args:
        name: of a parameter.
        most: how many of them are replaced, the first ones; 0 for all.
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name, count=most)


@dataclass
class ConfigFamily:
    """A family of transformers, such as ``llama``.

    Attributes:
        family: the ``model_type`` of its configurations.
        path: of the configuration, for errors.
    """

    family: str
    path: str

    def config(self, options: Options) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.for_model(self.family, **options)
        except Exception as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Unreadable:
        line = " ".join(str(error).split())[:200]
        return Unreadable(f"{self.path}: transformers builds no {self.family} of it: {type(error).__name__}: {line}")

    def model(self, options: Options) -> nn.Module:
        """A model with these options.

        Raises:
            Unreadable: transformers builds none.
        """
        from transformers import AutoModelForCausalLM

        config = self.config({**options, **KERNELS})
        try:
            made: nn.Module = AutoModelForCausalLM.from_config(config)
        except Exception as error:
            raise self._refused(error) from None
        return made

    def built(self, options: Options) -> Skeleton:
        with torch.device("meta"):
            return skeleton_of(self.model(options))

    def tried(self, options: Options) -> Skeleton | None:
        try:
            return self.built(options)
        except Unreadable:
            return None


class TopKSpy(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if getattr(func, "__name__", "") == "topk":
            self.found.append((out[0].shape[-1], args[0].shape[-1]))
        return out


def inputs() -> Options:
    """The input of a small model."""
    ids = torch.randint(3, TABLE, (1, 5), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "use_cache": False}


def run(model: nn.Module) -> Tensor:
    """The logits of a small model."""
    with torch.no_grad():
        out: Tensor = model.eval()(**inputs()).logits
    return out
