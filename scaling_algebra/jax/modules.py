"""Wraps a JAX model as a torch module that executes the model's jaxpr: ``torch_build``.

Read next: ``program.py`` (how the jaxpr is executed), ``plans.py`` (plans as pytrees).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, guard_foreign_code, quote_value

from .program import Inliner, Program

Build = Callable[[Mapping[str, int]], Any]
GIVE = "return (init, apply, x): init(key) makes the parameters, and apply(parameters, x) gives the output"
TOLERANCE = 1e-5
"""Maximum relative difference between the output of the torch calls and that of JAX."""
MOST = 3 * 10**7
"""Number of parameters above which a module is built with shapes only, on the meta device."""


@dataclass(frozen=True)
class JaxModel:
    """A JAX model at given sizes, as the user's ``build`` returns it.

    Attributes:
        init: returns the pytree of parameters for a random key.
        apply: returns the output for parameters and inputs.
        inputs: inputs of one call, without the parameters.
        names: name of every leaf, in the order of the pytree.
        tree: structure of the pytree.
        shapes: shape and dtype of every leaf.
    """

    init: Callable[[Any], Any]
    apply: Callable[..., Any]
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    tree: Any
    shapes: tuple[Any, ...]

    def make_tree(self, leaves: Sequence[Any]) -> Any:
        """Assemble a pytree from values for its leaves."""
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def model_at(build: Build, sizes: Mapping[str, int]) -> JaxModel:
    """Call the user's ``build`` at given sizes, and name the leaves of its parameters.

    Raises:
        UsageError: the result is not a tuple (init, apply, x), the user's code fails, or a leaf is not an array of
            floats.
    """
    if not callable(build):
        raise UsageError(f"build is {quote_value(build)}; give a function of sizes: {GIVE}")
    with guard_foreign_code(lambda: f"build({dict(sizes)})"):
        made = build(sizes)
    if not isinstance(made, tuple) or len(made) < 3 or not all(map(callable, made[:2])):
        raise UsageError(f"build returns {quote_value(made)}; {GIVE}")
    init, apply, *inputs = made
    with guard_foreign_code("init(key)", f"; {GIVE}"):
        abstract = jax.eval_shape(init, jax.random.key(0))
    paths, tree = jax.tree_util.tree_flatten_with_path(abstract)
    if odd := [name_of(path) for path, x in paths if not np.issubdtype(x.dtype, np.floating)]:
        raise UsageError(f"{odd[0]} is not an array of floats; let init return trainable parameters only")
    names = [name_of(path) for path, _ in paths]
    numbered = [re.sub(r"_(\d+)(?=\.|$)", r".\1", name) for name in names]  # block_0 corresponds to block.0 of torch
    apart = len({*numbered}) == len(names) and not any(a.startswith(f"{b}.") for a in numbered for b in numbered)
    return JaxModel(init, apply, tuple(inputs), tuple(numbered if apart else names), tree, tuple(x for _, x in paths))


def name_of(path: Any) -> str:
    """Return the name of a leaf: the keys of its path in the pytree, joined by dots."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "parameters"


class JaxModule(nn.Module):
    """A torch module with the leaves of a JAX model as named parameters; ``forward`` executes the jaxpr.

    Args:
        model: the JAX model.
        program: its jaxpr as a list of torch calls.
        values: values of the leaves; if None, the parameters are on the meta device.
    """

    def __init__(self, model: JaxModel, program: Program, values: Sequence[Any] | None) -> None:
        super().__init__()
        self.program, self.places = program, dict[int, str]()
        for k, (leaf, name) in enumerate(zip(program.leaves, model.names, strict=True)):
            shape = model.shapes[k].shape
            whole = torch.empty(shape, device="meta") if values is None else torch.tensor(values[k])
            for number, part, x in parts_of(program, leaf, name, whole):
                self._set(part, nn.Parameter(x.clone()))
                self.places[number] = part

    def _set(self, name: str, value: nn.Parameter) -> None:
        *path, last = name.split(".")
        module: nn.Module = self
        for key in path:
            if key not in module._modules:
                module.add_module(key, nn.Module())
            module = module._modules[key]  # type: ignore[assignment]
        module.register_parameter(last, value)

    def forward(self, *inputs: Tensor) -> Tensor:
        by_name = dict(self.named_parameters(remove_duplicate=False))
        return self.program.run({number: by_name[name] for number, name in self.places.items()}, inputs)


def parts_of(program: Program, leaf: int, name: str, whole: Any) -> list[tuple[int, str, Any]]:
    """Return (number, name, value) of the torch parameters for one leaf.

    This is the whole leaf, or one slice for each layer if only the layers of a scan read it.
    """
    if leaf not in program.layers:
        return [(leaf, name, whole)]
    return [(number, f"{name}.{k}", whole[k]) for k, number in enumerate(program.layers[leaf])]


def torch_build(build: Build) -> Callable[[Mapping[str, int]], tuple[JaxModule, tuple[Tensor, ...]]]:
    """Convert a ``build`` function for JAX into one for torch.

    The result takes sizes and returns a torch module with its input. ``scaling_algebra.plan``, ``check_model`` and
    ``scalecalc list --model`` accept it.

    Args:
        build: a function of sizes that returns (init, apply, x).

    Raises:
        UsageError: when the result is called: a JAX primitive is not supported, or the outputs of torch and JAX differ.
    """
    programs: dict[str, Program] = {}

    def build_torch(sizes: Mapping[str, int]) -> tuple[JaxModule, tuple[Tensor, ...]]:
        model = model_at(build, sizes)
        key = repr((dict(sizes), dict(getattr(sizes, "sizes", {})), model.shapes))  # the program depends on the sizes
        if key not in programs:
            programs[key] = program_of(model)
        return build_module(model, programs[key])

    return build_torch


def program_of(model: JaxModel) -> Program:
    """Convert a model to torch calls, by way of its jaxpr in float64.

    Raises:
        UsageError: ``apply`` fails, does not return floats, or uses a JAX primitive that is not supported.
    """
    floats = [jax.ShapeDtypeStruct(x.shape, np.float64) for x in model.shapes]
    with jax.enable_x64(True):
        with guard_foreign_code("apply(parameters, x), in float64,", f"; {GIVE}"):
            closed = jax.make_jaxpr(model.apply)(model.make_tree(floats), *map(widen_input, model.inputs))
        if odd := [x for x in closed.out_avals if not np.issubdtype(x.dtype, np.floating)]:
            raise UsageError(f"apply returns {odd[0].str_short()}; return floats, the output of the model")
        with torch.device("cpu"):
            return Inliner(closed, len(floats)).program


def widen_input(x: Any) -> Any:
    """Convert an input of floats to float64; leave any other input unchanged."""
    array = np.asarray(x)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


def build_module(model: JaxModel, program: Program) -> tuple[JaxModule, tuple[Tensor, ...]]:
    """Build the torch module of a model, and its input, and compare its output with that of JAX.

    The comparison is omitted on the meta device and for models of more than ``MOST`` parameters.

    Raises:
        UsageError: the outputs differ, or the output of JAX is not finite.
    """
    many = sum(prod(x.shape) for x in model.shapes) > MOST
    if many or torch.get_default_device().type == "meta":
        return JaxModule(model, program, None), tuple(torch.tensor(widen_input(x)) for x in model.inputs)
    made = model.init(jax.random.key(torch.initial_seed() % 2**31))
    values = [np.asarray(x, np.float64) for x in jax.tree_util.tree_leaves(made)]
    module, inputs = JaxModule(model, program, values), tuple(torch.tensor(widen_input(x)) for x in model.inputs)
    with jax.enable_x64(True):
        true = np.asarray(model.apply(model.make_tree(values), *map(widen_input, model.inputs)), np.float64)
    if not np.isfinite(true).all():
        raise UsageError(
            "the output of apply is infinite or not a number; give sizes and an input at which it is finite"
        )
    with torch.no_grad():
        found = module(*inputs).double().numpy()
    if found.shape != true.shape or not np.allclose(found, true, TOLERANCE, TOLERANCE * np.abs(true).max()):
        off = "of another shape, different" if found.shape != true.shape else f"{np.abs(found - true).max():.2g} away"
        raise UsageError(f"the output of apply in torch is {off}from the output of JAX (please report)")
    return module, inputs
