"""The parts of a model's signals after some updates: what initial tensors make of their input, what updates add.

Linear maps are split by their inputs and weights; stacked experts by replaying their module, routing held, with initial
or trained weights (``torch.func.functional_call``). Read next: ``predictions.py`` (what the parts are to be).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError

from .plans import plain_name

EXPERTS = r"(^|\.)experts$"
"""Modules of stacked experts, by name."""


@dataclass(frozen=True)
class Part:
    """One number: the name it is reported under, the role and part it is predicted by, and its root-mean-square."""

    name: str
    key: tuple[str, str]
    size: float


@dataclass
class Seen:
    """One forward pass: inputs and outputs of modules, what stacked experts were called with, and the logits."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    calls: dict[str, tuple[Tensor, ...]]
    logits: Tensor


class Parts:
    """Splits a model's signals relative to the moment it is made."""

    def __init__(self, model: nn.Module, ids: Tensor, roles: Mapping[str, str], layers: str) -> None:
        """Watches a model from now on.

        Args:
            ids: (batch, length) token ids. roles: by name of parameter. layers: names of modules of the stream.

        Raises:
            UsageError: no module has such a name.
        """
        self.model, self.ids, self.roles, self.layers = model, ids, roles, layers
        named = {plain_name(n): module for n, module in model.named_modules()}
        self.maps = {n: roles[f"{n}.weight"] for n in named if f"{n}.weight" in roles}
        self.maps = {n: r for n, r in self.maps.items() if named[n].weight.dim() == 2}
        self.stacks = [n for n in named if re.search(EXPERTS, n)]
        self.modules = named
        if not any(re.search(layers, n) for n in named):
            raise UsageError(f"no module matches layers={layers!r}; give a pattern of your layers' names")
        self.weights = {plain_name(n): p.detach().clone() for n, p in model.named_parameters()}
        self.first = self._look()
        small = [n for n, r in self.maps.items() if r == "readout" and self.first.outputs[n].shape[-1] == 1]
        for name in small:  # a gate of a shared expert scales as a readout, and is none
            del self.maps[name]

    def __call__(self) -> Iterator[Part]:
        """Every part as it is now."""
        now, first = self._look(), self.first
        yield Part("logits", ("logits", "change"), _rms(now.logits - first.logits))
        for name, x in now.outputs.items():
            if re.search(self.layers, name):
                yield Part(_short(name), ("stream", "change"), _rms(x - first.outputs[name]))
        for name, role in self.maps.items():
            weight, initial = self.modules[name].weight.detach(), self.weights[f"{name}.weight"]
            x, x0 = now.inputs[name], first.inputs[name]
            apply: Callable[[Tensor, Tensor], Tensor] = nn.functional.linear
            if not x.is_floating_point():
                apply = lambda x, w: nn.functional.embedding(x, w)  # noqa: E731
            yield Part(f"{_short(name)}.init", (role, "init"), _rms(apply(x0, initial)))
            yield Part(f"{_short(name)}.update", (role, "update"), _rms(apply(x, weight - initial)))
            if x.is_floating_point():
                yield Part(f"{_short(name)}.propagating", (role, "propagating"), _rms(apply(x - x0, initial)))
        for name in self.stacks:
            yield from self._pieces(name, now)

    def _pieces(self, name: str, now: Seen) -> Iterator[Part]:
        """A1, A2.1, A2.2 and A3 of one sum over experts, routed as at first."""
        module, (x0, *rest), x = self.modules[name], self.first.calls[name], now.calls[name][0]
        own = [key for key, _ in module.named_parameters()]
        initial = {key: self.weights[f"{name}.{key}"] for key in own}
        trained = {key: p.detach() for key, p in module.named_parameters()}

        def run(x: Tensor, role: str = "") -> Tensor:
            moved = {key: trained[key] for key in own if role and self.roles.get(f"{name}.{key}") == role}
            result: Tensor = torch.func.functional_call(module, {**initial, **moved}, (x, *rest))
            return result

        start = run(x0)
        pieces = {"A1": start, "A2.1": run(x) - start}
        pieces |= {"A2.2": run(x0, "expert_in") - start, "A3": run(x0, "expert_out") - start}
        for piece, value in pieces.items():
            yield Part(f"{_short(name)}.{piece}", ("experts", piece), _rms(value))

    def _look(self) -> Seen:
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        calls: dict[str, tuple[Tensor, ...]] = {}
        with torch.no_grad(), _hooks(self.model, inputs, outputs, calls):
            out = self.model(self.ids)
        return Seen(inputs, outputs, calls, getattr(out, "logits", out).detach().clone())


@contextmanager
def _hooks(model: nn.Module, inputs: Any, outputs: Any, calls: Any) -> Iterator[None]:
    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, out: Any) -> None:
            if given and isinstance(given[0], Tensor):
                inputs[name] = given[0].detach().clone()
                calls[name] = tuple(x.detach().clone() for x in given if isinstance(x, Tensor))
            first = out[0] if isinstance(out, tuple) else out
            if isinstance(first, Tensor):
                outputs[name] = first.detach().clone()

        return hook

    handles = [module.register_forward_hook(keep(plain_name(n))) for n, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _short(name: str) -> str:
    """``layer0.self_attn.q_proj`` for ``model.layers.0.self_attn.q_proj``; other names lose their first part."""
    found = re.search(r"(?:^|\.)[a-z]+\.(\d+)(.*)$", name)
    return f"layer{found[1]}{found[2]}" if found else name.removeprefix("model.")


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
