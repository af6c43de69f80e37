"""Builds models from a transformers configuration: without values (shapes only), or as small models that can run.

Read next: ``config_kinds.py`` (infers from the shapes what each number of a configuration means).
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

TABLE_ROWS = 64
"""Rows of every table (vocabulary, positions) in a small model; larger numbers that change no shape are cut to this,
too."""
METADATA_KEYS = {"architectures", "transformers_version", "torch_dtype", "dtype", "quantization_config", "auto_map",
        "_name_or_path", "model_type"}  # fmt: skip
"""Keys of a configuration that do not affect the code of the model."""
REFERENCE_KERNELS = {"attn_implementation": "eager", "experts_implementation": "batched_mm", "use_cache": False}
"""Options that select the plain PyTorch implementation of attention and experts, without a key-value cache."""
Options = dict[str, Any]
Dim = tuple[str, int]
"""A dimension of a parameter: its name in ``Skeleton.dims``, and the position in the tuple found there."""


@dataclass(frozen=True)
class Skeleton:
    """The shapes of a model's parameters, and the numbers stored in its modules.

    Attributes:
        dims: for each parameter name, with layer and expert numbers masked (``layers.*.up``), a tuple: the number of
            parameters of that name, then their shape.
        layers: for every layer, the set of (parameter name, shape).
        tables: names of the parameters that are weights of an embedding.
        numbers: the number stored in each ``module.attribute``, and the size of each ``module.buffer.dimension``.
    """

    dims: Mapping[str, tuple[int, ...]]
    layers: tuple[frozenset[tuple[str, tuple[int, ...]]], ...]
    tables: frozenset[str]
    numbers: Mapping[str, float]

    def compare_shapes(self, other: Skeleton) -> dict[Dim, float]:
        """Returns which dimensions have another size in another model, with the ratio other / self.

        A dimension is given as (name, position in ``dims``). A parameter that only one of the models has, or whose
        number of dimensions differs, has the ratio infinity.
        """
        found: dict[Dim, float] = {}
        for name in self.dims.keys() | other.dims.keys():
            mine, its = self.dims.get(name, (0,)), other.dims.get(name, (0,))
            pairs = zip(mine, its, strict=True) if len(mine) == len(its) else [(1, 0)]
            found |= {(name, k): b / a if a else math.inf for k, (a, b) in enumerate(pairs) if a != b}
        return found

    def find_stacks(self) -> set[Dim]:
        """Returns the dimensions that count matrices, as the one of experts in a parameter of shape (experts, rows,
        columns).

        If each layer has a list of modules instead, this is the number of modules. Dimensions are given as (name,
        position in ``dims``).
        """
        lists = {(name, 0) for name, (n, *_) in self.dims.items() if name.count("*") > 1 and n > len(self.layers)}
        return lists | {(name, 1) for name, (_, *s) in self.dims.items() if len(s) > 2 and min(s[-2:]) > 1 < s[0]}


def read_skeleton(model: nn.Module) -> Skeleton:
    """Returns the shapes of a model's parameters and the numbers in its modules."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    embedded = {id(x.weight) for x in model.modules() if isinstance(x, nn.Embedding)}
    counts = Counter(mask_numbers(name) for name in shapes)
    numbered: dict[str, dict[int, set[tuple[str, tuple[int, ...]]]]] = {}
    for name, shape in shapes.items():
        if found := re.match(r"(.*?)\.(\d+)\.(.*)", name):
            head, number, rest = found.groups()
            numbered.setdefault(head, {}).setdefault(int(number), set()).add((mask_numbers(rest), shape))
    layers = max(numbered.values(), key=lambda x: sum(map(len, x.values())), default={})
    numbers: dict[str, float] = {}
    tables = {mask_numbers(name) for name, p in model.named_parameters() if id(p) in embedded}
    for path, module in model.named_modules():
        numbers |= {
            f"{path}.{k}": x for k, x in vars(module).items() if isinstance(x, int | float) and not isinstance(x, bool)
        }
        numbers |= {f"{path}.{k}.{d}": n for k, b in module.named_buffers(recurse=False) for d, n in enumerate(b.shape)}
    dims = {mask_numbers(name): (counts[mask_numbers(name)], *shape) for name, shape in shapes.items()}
    return Skeleton(dims, tuple(frozenset(layers[k]) for k in sorted(layers)), frozenset(tables), numbers)


def mask_numbers(name: str, most: int = 0) -> str:
    """Replaces the numbers of layers and experts in a parameter name by ``*``.

    Args:
        name: the name of a parameter.
        most: how many numbers to replace, from the left; 0 replaces all.

    Examples:
        >>> mask_numbers("layers.3.experts.7.up"), mask_numbers("layers.3.experts.7.up", 1)
        ('layers.*.experts.*.up', 'layers.*.experts.7.up')
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name, count=most)


@dataclass
class ConfigFamily:
    """Builds the models of one family of transformers, such as ``llama``, with given options.

    Options are the entries of a configuration.

    Attributes:
        family: the ``model_type`` of its configurations.
        path: the path of the configuration, quoted in error messages.
    """

    family: str
    path: str

    def build_config(self, options: Options) -> Any:
        """Returns the transformers configuration with these options.

        Raises:
            Unreadable: transformers rejects them.
        """
        from transformers import AutoConfig

        try:
            return AutoConfig.for_model(self.family, **options)
        except Exception as error:
            raise self._make_error(error) from None

    def _make_error(self, error: Exception) -> Unreadable:
        """Returns the error for a configuration of which transformers cannot build a model; it quotes the error of
        transformers.
        """
        line = " ".join(str(error).split())[:200]
        return Unreadable(
            f"{self.path}: transformers cannot build a {self.family} from it: {type(error).__name__}: {line}"
        )

    def build_model(self, options: Options) -> nn.Module:
        """Returns a causal language model with these options and random weights.

        Raises:
            Unreadable: transformers cannot build it.
        """
        from transformers import AutoModelForCausalLM

        config = self.build_config({**options, **REFERENCE_KERNELS})
        try:
            made: nn.Module = AutoModelForCausalLM.from_config(config)
        except Exception as error:
            raise self._make_error(error) from None
        return made

    def build_skeleton(self, options: Options) -> Skeleton:
        """Builds the model with these options without values (on the meta device) and returns its shapes."""
        with torch.device("meta"):
            return read_skeleton(self.build_model(options))

    def try_skeleton(self, options: Options) -> Skeleton | None:
        """Returns the shapes of the model with these options, or None if transformers cannot build it."""
        try:
            return self.build_skeleton(options)
        except Unreadable:
            return None


class TopKSpy(TorchFunctionMode):
    """A context that records every ``topk`` call made inside it.

    Attributes:
        found: a pair (k, number of candidates) for each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if getattr(func, "__name__", "") == "topk":
            self.found.append((out[0].shape[-1], args[0].shape[-1]))
        return out


def make_inputs() -> Options:
    """Returns the keyword arguments for one forward pass of a small model: five random token ids."""
    ids = torch.randint(3, TABLE_ROWS, (1, 5), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "use_cache": False}


def compute_logits(model: nn.Module) -> Tensor:
    """Runs a small model on ``make_inputs()`` and returns its logits."""
    with torch.no_grad():
        out: Tensor = model.eval()(**make_inputs()).logits
    return out
