"""Builds a module at given sizes, in float64, together with its input.

This module does not depend on how a module is read. Read next: ``recording.py`` (runs what is built here).
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

from .build_checks import check_build_result, check_torch_unpatched, find_optimizers
from .nodes import Unreadable

DEFAULT_SIZES = {"N": 32, "N_e": 24, "M": 4, "K": 4, "L": 2}
"""Default size of each axis when a module is read; any other axis has ``OTHER_DEFAULT_SIZE``."""
OTHER_DEFAULT_SIZE = 4
MAX_AXES = 32
"""Maximum number of axes of a module."""
GUESSED_TOKENS = 5
"""Number of tokens in a guessed input."""
NOTHING_GROWS = (
    "no parameter of the model grows, so nothing would change; let build use its argument, such as sizes['N']"
)
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of ``forward``."""
Build = Callable[[dict[str, int]], Any]


class GuessedInput(tuple[Any, ...]):
    """The positional arguments of ``forward``, guessed because ``build`` returned no input."""


class RequestedSizes(dict[str, int]):
    """A dict of sizes for a first call of ``build``, which finds out the axes that ``build`` reads.

    An axis that is not given gets a default size and is added to the dict, also if it is read by ``get``.
    """

    def __missing__(self, axis: str) -> int:
        if len(self) >= MAX_AXES:
            raise Unreadable(f"build reads more than {MAX_AXES} sizes, the last one {quote_value(axis)}; use fewer")
        self[axis] = DEFAULT_SIZES.get(axis, OTHER_DEFAULT_SIZE)
        return self[axis]

    def get(self, axis: str, default: Any = None) -> Any:
        return self[axis]


class LimitedSizes(dict[str, int]):
    """A dict of sizes that hides some axes from ``build``: for these, ``sizes.get(axis, default)`` returns the default.

    Attributes:
        sizes: the sizes of all axes.
        axes: the axes that are not hidden.
    """

    def __init__(self, sizes: dict[str, int], axes: Collection[str]) -> None:
        super().__init__(sizes)
        self.sizes, self.axes = sizes, axes

    def __missing__(self, axis: str) -> int:
        return self.sizes[axis]

    def get(self, axis: str, default: Any = None) -> Any:
        known = axis in self.axes or default is None
        return self.sizes.get(axis, default) if known else default


def limit_sizes(build: Build, axes: Collection[str]) -> Build:
    """Wraps ``build`` so that ``sizes.get(axis, default)`` returns the default for all axes but the given ones.

    An axis that is read without a default, as ``sizes["N"]``, always has its size.
    """
    return lambda sizes: build(LimitedSizes(sizes, axes))


class MissingSize(KeyError):
    """The error for a size that ``build`` reads and that was not given."""

    def __str__(self) -> str:
        return f"build reads the size {quote_value(self.args[0])}; add {self.args[0]}=NUMBER to base and target"


class GivenSizes(dict[str, int]):
    """A dict of sizes in which reading a missing axis raises ``MissingSize``; the error names the axis."""

    def __missing__(self, axis: str) -> int:
        raise MissingSize(axis)


LOW_PRECISION = {torch.float32, torch.float16, torch.bfloat16}
CAST_METHODS = {"float", "half", "bfloat16"}
"""Names of the tensor methods that cast to ``LOW_PRECISION``."""


class _CastToFloat64(TorchFunctionMode):
    """Turns casts to lower precision, such as ``t.float()``, into casts to float64, so that a module can run in
    float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in CAST_METHODS and args:
            return args[0].double()
        args = tuple(torch.float64 if isinstance(x, torch.dtype) and x in LOW_PRECISION else x for x in args)
        named = {
            k: torch.float64 if isinstance(x, torch.dtype) and x in LOW_PRECISION else x
            for k, x in (kwargs or {}).items()
        }
        return func(*args, **named)


@contextmanager
def in_float64() -> Iterator[None]:
    """Makes float64 the default type and turns casts to lower precision into casts to float64."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _CastToFloat64():
            yield
    finally:
        torch.set_default_dtype(kept)


def call_build(build: Build, sizes: dict[str, int], seed: int | None = 0) -> tuple[nn.Module, list[Any]]:
    """Calls ``build`` and returns the module and a list of what was returned with it: optimizers, an input, or nothing.

    Args:
        build: the function.
        sizes: its argument.
        seed: seed of the random initial values; None leaves the random state as it is.

    Raises:
        UsageError: ``build`` raised an error, returned something else, or replaced functions of torch.
    """
    if seed is not None:
        torch.manual_seed(seed)
    try:
        with guard_foreign_code(lambda: f"build({dict(sizes)})"):
            made = build(sizes if isinstance(sizes, RequestedSizes) else GivenSizes(sizes))
    except UsageError as error:
        if not any(table.__name__ in str(error) for table in (RequestedSizes, LimitedSizes, GivenSizes)):
            raise
        raise UsageError(f'{error}; build gets a dict of sizes: read a size as sizes["N"]') from error
    if isinstance(made, Coroutine):
        made.close()
    model, *rest = made if isinstance(made, tuple) and len(made) in (2, 3) else (made,)
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, torch.jit.ScriptModule):
        raise Unreadable("build returns a TorchScript module, whose calls cannot be recorded; return the plain module")
    if not isinstance(model, nn.Module):
        raise Unreadable(f"build returns {quote_value(made)}; return a torch.nn.Module, or (model, optimizer, input)")
    parameters = dict(model.named_parameters())
    state = {**parameters, **dict(model.named_buffers())}
    if lazy := [x for x, p in state.items() if nn.parameter.is_lazy(p)]:
        raise Unreadable(f"{lazy[0]} has no shape before the first call; call the model once in build")
    if not parameters:
        raise Unreadable("the model has no parameters; let build return a module with some")
    check_build_result(rest)
    check_torch_unpatched()
    return model, rest


def build_module(build: Build, sizes: Mapping[str, int], seed: int = 0) -> tuple[nn.Module, Inputs, Any]:
    """Builds a module in float64 on the CPU, and its input.

    Args:
        build: function that returns a module, or a tuple of it and its optimizers, its input (a tensor, a tuple, or a
            dict of keywords), or both.
        sizes: its argument.
        seed: seed of the random initial values.

    Returns:
        The module, its input (guessed if none was returned), and its optimizer (several are joined into one) or None.

    Raises:
        Unreadable: there is no module, more than one input, or none and it cannot be guessed.
    """
    model, rest = call_build(build, dict(sizes), seed)
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # of torch.compile
        model = inner
    if callable(
        choose := getattr(model, "set_experts_implementation", None)
    ):  # the default kernels do not support float64
        choose("batched_mm")
    if away := [n for n, p in model.named_parameters() if p.device.type != "cpu"]:
        raise Unreadable(f"{away[0]} is not on the CPU at {dict(sizes)}; let build create small models on the CPU")
    optimizers: list[torch.optim.Optimizer] = []
    inputs = []
    for x in rest:
        if found := find_optimizers(x):
            optimizers += found
        elif x is not None:
            inputs.append(x)
    if len(inputs) > 1:
        raise Unreadable("build returns two inputs; return a single tuple if forward takes several tensors")
    optimizer = JoinedOptimizers(optimizers) if len(optimizers) > 1 else optimizers[0] if optimizers else None
    model = model.double()
    return model, _split_input(inputs[0]) if inputs else (_guess_input(model), {}), optimizer


def _split_input(given: Any) -> Inputs:
    """Splits an input that ``build`` returned into positional and keyword arguments of ``forward``, in float64."""
    if isinstance(given, dict):
        return (), {k: _to_float64(v) for k, v in given.items()}
    return tuple(map(_to_float64, given if isinstance(given, tuple) else (given,))), {}


def _guess_input(model: nn.Module) -> GuessedInput:
    """Guesses an input: random ids if the first embedding or linear layer is an embedding, else a random vector.

    Raises:
        Unreadable: the module has neither.
    """
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            ids = torch.randint(0, min(module.num_embeddings, 64), (1, GUESSED_TOKENS), generator=generator)
            return GuessedInput((ids,))
        if isinstance(module, nn.Linear):
            return GuessedInput((torch.randn(1, module.in_features, generator=generator, dtype=torch.float64),))
    raise Unreadable("the input of the model cannot be guessed; let build return (model, input)")


def _to_float64(x: Any) -> Any:
    """Casts a floating-point tensor to float64 and returns anything else unchanged."""
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def enlarge_axis(sizes: Mapping[str, int], axis: str, times: int = 2) -> dict[str, int]:
    """Returns the sizes with that of one axis multiplied by ``times``.

    If the axis is the number of experts M and all of them are active (K = M), K is multiplied, too.
    """
    together = axis == "M" and sizes.get("K") == sizes["M"]
    return {x: n * (times if x == axis or (together and x == "K") else 1) for x, n in sizes.items()}


def get_default_sizes(build: Build) -> dict[str, int]:
    """Returns a small size for every axis that ``build`` reads.

    Raises:
        UsageError: ``build`` reads no axis, so that nothing in the module can grow.
    """
    call_build(build, asked := RequestedSizes())
    if not asked:
        raise UsageError(NOTHING_GROWS)
    return dict(asked)
