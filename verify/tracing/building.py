"""Builds a module at the sizes that are asked for, in float64, with its input.

Nothing here knows how a module is read. Read next: ``recording.py`` (runs what is built here).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scaling_algebra.errors import UsageError, guard_foreign_code, quote_value
from scaling_algebra.verify.networks.steppers import JoinedOptimizers

from .nodes import Unreadable
from .returned import check_returned, check_torch, optimizers_in

DEFAULTS = {"N": 32, "N_e": 24, "M": 4, "K": 4, "L": 2}
"""Sizes at which a module is read where nothing is said; of any other axis ``OTHER``."""
OTHER = 4
MOST = 32
"""Axes that a module may have."""
TOKENS = 5
"""Length of the input."""
STILL = "no parameter of the model grows, so all numbers stay; let build use its sizes"
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Build = Callable[[dict[str, int]], Any]


class Guessed(tuple[Any, ...]):
    """An input that ``build`` does not return."""


class Asked(dict[str, int]):
    """Sizes that note which axes are asked for; those that are not given have a default."""

    def __missing__(self, axis: str) -> int:
        if len(self) >= MOST:
            raise Unreadable(f"build asks for more than {MOST} sizes, the last of them {quote_value(axis)}; give fewer")
        self[axis] = DEFAULTS.get(axis, OTHER)
        return self[axis]

    def get(self, axis: str, default: Any = None) -> Any:
        return self[axis]


class Limited(dict[str, int]):
    """Sizes of which those that are not among ``axes`` keep the default that ``build`` gives them."""

    def __init__(self, sizes: dict[str, int], axes: Collection[str]) -> None:
        super().__init__(sizes)
        self.sizes, self.axes = sizes, axes

    def __missing__(self, axis: str) -> int:
        return self.sizes[axis]

    def get(self, axis: str, default: Any = None) -> Any:
        known = axis in self.axes or default is None
        return self.sizes.get(axis, default) if known else default


def limited(build: Build, axes: Collection[str]) -> Build:
    """A builder whose sizes are ``axes``, and what it asks for without a default."""
    return lambda sizes: build(Limited(sizes, axes))


class MissingSize(KeyError):
    """A size that is not among those given."""

    def __str__(self) -> str:
        return f"{quote_value(self.args[0])}; give {self.args[0]}=NUMBER, too, in base and target"


class SizesGiven(dict[str, int]):
    """Sizes that name the one that is asked for and was not given."""

    def __missing__(self, axis: str) -> int:
        raise MissingSize(axis)


ROUGH = {torch.float32, torch.float16, torch.bfloat16}
CASTS = {"float", "half", "bfloat16"}


class _Exact(TorchFunctionMode):
    """Casts to fewer digits are casts to float64: a module that writes ``t.float()`` reads on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in CASTS and args:
            return args[0].double()
        args = tuple(torch.float64 if isinstance(x, torch.dtype) and x in ROUGH else x for x in args)
        named = {
            k: torch.float64 if isinstance(x, torch.dtype) and x in ROUGH else x for k, x in (kwargs or {}).items()
        }
        return func(*args, **named)


@contextmanager
def exactly() -> Iterator[None]:
    """Tensors that a module makes are of float64, as its parameters are."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Exact():
            yield
    finally:
        torch.set_default_dtype(kept)


def called(build: Build, sizes: dict[str, int], seed: int | None = 0) -> tuple[nn.Module, list[Any]]:
    """What ``build`` returns: the module, and beside it its optimizer, its input, both or nothing.

    Raises:
        UsageError: it raises an error, returns no module or something odd beside it, or changes torch.
    """
    if seed is not None:
        torch.manual_seed(seed)
    try:
        with guard_foreign_code(lambda: f"build({dict(sizes)})"):
            made = build(sizes if isinstance(sizes, Asked) else SizesGiven(sizes))
    except UsageError as error:
        if not any(table.__name__ in str(error) for table in (Asked, Limited, SizesGiven)):
            raise
        raise UsageError(f'{error}; build is called with a table of sizes, which it reads as sizes["N"]') from error
    if isinstance(made, Coroutine):
        made.close()
    model, *rest = made if isinstance(made, tuple) and len(made) in (2, 3) else (made,)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, torch.jit.ScriptModule):
        raise Unreadable("build returns a module of TorchScript, which hides its calls; return the module itself")
    if not isinstance(model, nn.Module):
        raise Unreadable(f"build returns {quote_value(made)}; return a torch.nn.Module, or (model, optimizer, input)")
    parameters = dict(model.named_parameters())
    state = {**parameters, **dict(model.named_buffers())}
    if lazy := [x for x, p in state.items() if nn.parameter.is_lazy(p)]:
        raise Unreadable(f"{lazy[0]} has no shape before the first call; call the model once in build")
    if not parameters:
        raise Unreadable("the model has no parameters")
    check_returned(rest)
    check_torch()
    return model, rest


def built(build: Build, sizes: Mapping[str, int], seed: int = 0) -> tuple[nn.Module, Inputs, Any]:
    """The module at these sizes, in float64, its input, and its optimizer if it brings one, or several as one.

    ``build`` returns a module; or that and its optimizers, its input (a tensor, a tuple, a dict of keywords), or both.

    Raises:
        Unreadable: no module, two inputs, or none that can be guessed.
    """
    model, rest = called(build, dict(sizes), seed)
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # of torch.compile
        model = inner
    if callable(choose := getattr(model, "set_experts_implementation", None)):  # the usual kernels know no float64
        choose("batched_mm")
    if away := [n for n, p in model.named_parameters() if p.device.type != "cpu"]:
        raise Unreadable(f"{away[0]} is not on the CPU at {dict(sizes)}; build small models there")
    optimizers: list[torch.optim.Optimizer] = []
    inputs = []
    for x in rest:
        if found := optimizers_in(x):
            optimizers += found
        elif x is not None:
            inputs.append(x)
    if len(inputs) > 1:
        raise Unreadable("build returns two inputs; return one, a tuple where forward takes several tensors")
    optimizer = JoinedOptimizers(optimizers) if len(optimizers) > 1 else optimizers[0] if optimizers else None
    model = model.double()
    return model, _input(inputs[0]) if inputs else (_guessed(model), {}), optimizer


def _input(given: Any) -> Inputs:
    """An input in float64: what ``forward`` takes by place, and by keyword."""
    if isinstance(given, dict):
        return (), {k: _exact(v) for k, v in given.items()}
    return tuple(map(_exact, given if isinstance(given, tuple) else (given,))), {}


def _guessed(model: nn.Module) -> Guessed:
    """An input for the first layer that says what it takes."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            ids = torch.randint(0, min(module.num_embeddings, 64), (1, TOKENS), generator=generator)
            return Guessed((ids,))
        if isinstance(module, nn.Linear):
            return Guessed((torch.randn(1, module.in_features, generator=generator, dtype=torch.float64),))
    raise Unreadable("the input of the model cannot be guessed; return (model, input) from build")


def _exact(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def doubled(sizes: Mapping[str, int], axis: str, times: int = 2) -> dict[str, int]:
    """Return the sizes with one axis doubled, or so many times larger, and K with M where all experts are active."""
    together = axis == "M" and sizes.get("K") == sizes["M"]
    return {x: n * (times if x == axis or (together and x == "K") else 1) for x, n in sizes.items()}


def usual(build: Build) -> dict[str, int]:
    """Small sizes of every axis that ``build`` asks for.

    Raises:
        UsageError: it asks for none.
    """
    called(build, asked := Asked())
    if not asked:
        raise UsageError(STILL)
    return dict(asked)
