"""The parts of a model's signals after some updates: what initial tensors make of their input, what updates add.

Linear maps are split by their inputs and weights; stacked experts by replaying their module, routing held, with initial
or trained weights (``torch.func.functional_call``). Read next: ``predictions.py`` (what the parts are to be).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError

from .modules import modules, plain_name, tensors

VOCABULARY, BATCH, LENGTH = 64, 1, 4
"""Ids, and few of them: the gradients of T tokens share a sign sum, of which each keeps T^-1/2 of the coherent part."""


def tokens() -> Tensor:
    """(BATCH, LENGTH + 1) ids, the targets included; the same at every size."""
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))


class Part(NamedTuple):
    """One number: the name it is reported under, the role and part it is predicted by, and its root-mean-square."""

    name: str
    key: tuple[str, str]
    size: float


@dataclass(frozen=True)
class Call:
    """The arguments of a module's call, its first output, and all outputs."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    output: Tensor
    returned: Any


class Seen(NamedTuple):
    """One forward pass: the last call of every module whose first output is a tensor, and the logits."""

    calls: dict[str, Call]
    logits: Tensor


def look(model: nn.Module, instead: Mapping[str, Tensor] | None = None) -> Seen:
    """One forward pass on ``tokens``; ``instead``: other values of parameters, by name."""
    calls: dict[str, Call] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, named: Any, out: Any) -> None:
            output = _first(out)
            if isinstance(output, Tensor):
                keywords = {key: _kept(x) for key, x in named.items()}
                calls[name] = Call(tuple(map(_kept, arguments)), keywords, _kept(output), out)

        return hook

    values = {n: (instead or {}).get(plain_name(n), p.detach()) for n, p in model.named_parameters()}
    handles = [m.register_forward_hook(keep(name), with_kwargs=True) for name, m in modules(model).items()]
    try:
        with torch.no_grad():
            out = torch.func.functional_call(model, values, (tokens()[:, :-1],))
        return Seen(calls, _kept(logits_of(out)))
    finally:
        for handle in handles:
            handle.remove()


def logits_of(out: Any) -> Tensor:
    """The output of a model, or its ``logits``.

    Raises:
        UsageError: neither is a tensor.
    """
    logits = getattr(out, "logits", out)
    if not isinstance(logits, Tensor):
        raise UsageError(f"the model returns {type(logits).__name__}; return logits, or an object that has them")
    return logits


class Parts:
    """Splits a model's signals relative to the moment it is made.

    Args:
        roles: by name of parameter. layers: pattern of names of modules of the stream. stacks: modules that sum
            experts.
    """

    def __init__(self, model: nn.Module, roles: Mapping[str, str], layers: str, stacks: Sequence[str] = ()) -> None:
        self.model, self.roles, self.layers, self.stacks = model, roles, layers, stacks
        self.modules, self.first = modules(model), look(model)
        self.weights = {name: p.detach().clone() for name, p in tensors(model).items()}
        self.maps: dict[str, str] = {}
        for name, call in self.first.calls.items():
            role, weight = roles.get(f"{name}.weight", ""), self.weights.get(f"{name}.weight")
            # experts are measured as a sum; a gate of a shared expert scales as a readout, and is none
            left_out = role.startswith("expert") or (role == "readout" and call.output.shape[-1] == 1)
            if role and not left_out and weight is not None and weight.dim() == 2:
                self.maps[name] = role

    def __call__(self) -> Iterator[Part]:
        """Every part as it is now."""
        now, first = look(self.model), self.first
        yield Part("logits", ("logits", "change"), _rms(now.logits - first.logits))
        for name, call in now.calls.items():
            if re.search(self.layers, name):
                yield Part(_short(name), ("stream", "change"), _rms(call.output - first.calls[name].output))
        for name, role in self.maps.items():
            initial = self.weights[f"{name}.weight"]
            moved = self.modules[name].weight.detach() - initial
            x, x0 = now.calls[name].arguments[0], first.calls[name].arguments[0]
            linear = x.is_floating_point()
            apply: Callable[..., Tensor] = nn.functional.linear if linear else nn.functional.embedding
            yield Part(f"{_short(name)}.init", (role, "init"), _rms(apply(x0, initial)))
            if role == "router" and moved.any():  # few tokens choose few experts: those that moved stand for all
                moved = moved[moved.any(dim=1)]
            yield Part(f"{_short(name)}.update", (role, "update"), _rms(apply(x, moved)))
            if linear:
                # the stream moves along the rows of the targets, which are few of the vocabulary
                rows = initial[tokens()[:, 1:].unique()] if role == "readout" else initial
                yield Part(f"{_short(name)}.propagating", (role, "propagating"), _rms(apply(x - x0, rows)))
        for name in self.stacks:
            yield from self._pieces(name, now.calls[name].arguments[0])

    def _pieces(self, name: str, x: Tensor) -> Iterator[Part]:
        """A1, A2.1, A2.2 and A3 of one sum over experts, routed as at first."""
        module, call = self.modules[name], self.first.calls[name]
        x0, *rest = call.arguments
        trained = tensors(module)
        routers = [n for n, role in self.maps.items() if role == "router" and n.startswith(f"{name}.")]

        def run(x: Tensor, role: str = "none") -> Tensor:
            values = {
                key: p.detach() if self.roles.get(f"{name}.{key}") == role else self.weights[f"{name}.{key}"]
                for key, p in trained.items()
            }
            held = [self._hold(router) for router in routers]
            try:
                out = torch.func.functional_call(module, values, (x, *rest), dict(call.named))
            finally:
                for handle in held:
                    handle.remove()
            return _first(out).detach()

        start = run(x0)
        yield Part(f"{_short(name)}.A1", ("experts", "A1"), _rms(start))
        for piece, given in (("A2.1", (x,)), ("A2.2", (x0, "expert_in")), ("A3", (x0, "expert_out"))):
            yield Part(f"{_short(name)}.{piece}", ("experts", piece), _rms(run(*given) - start))

    def _hold(self, router: str) -> Any:
        """Lets a router inside say what it said at first."""
        return self.modules[router].register_forward_hook(lambda *_: self.first.calls[router].returned)


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out


def _kept(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def _short(name: str) -> str:
    """``layer0.self_attn.q_proj`` for ``model.layers.0.self_attn.q_proj``; other names lose their first part."""
    numbered = re.search(r"(?:^|\.)[a-z]+\.(\d+)(.*)$", name)
    return f"layer{numbered[1]}{numbered[2]}" if numbered else name.removeprefix("model.")


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
