"""The parts of a model's signals after some updates: what initial tensors make of their input, what updates add.

Linear maps are split by their inputs and weights; stacked experts by replaying their module, routing held, with initial
or trained weights (``torch.func.functional_call``). Read next: ``predictions.py`` (what the parts are to be).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError

from .plans import plain_name


@dataclass(frozen=True)
class Part:
    """One number: the name it is reported under, the role and part it is predicted by, and its root-mean-square."""

    name: str
    key: tuple[str, str]
    size: float


@dataclass(frozen=True)
class Call:
    """What a module was called with."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass
class Seen:
    """One forward pass: by module the first input, the call and the first output, and the logits."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    calls: dict[str, Call]
    returned: dict[str, Any]
    logits: Tensor


def look(model: nn.Module, ids: Tensor, instead: Mapping[str, Tensor] | None = None) -> Seen:
    """One forward pass; ``instead``: other values of parameters, by name."""
    seen = Seen({}, {}, {}, {}, torch.empty(0))

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, named: Any, out: Any) -> None:
            if arguments and isinstance(arguments[0], Tensor):
                seen.inputs[name] = arguments[0].detach().clone()
            seen.calls[name] = Call(tuple(_kept(x) for x in arguments), {k: _kept(x) for k, x in named.items()})
            first = out[0] if isinstance(out, tuple) else out
            if isinstance(first, Tensor):
                seen.outputs[name], seen.returned[name] = first.detach().clone(), out

        return hook

    values = {n: (instead or {}).get(plain_name(n), p.detach()) for n, p in model.named_parameters()}
    handles = [m.register_forward_hook(keep(plain_name(n)), with_kwargs=True) for n, m in model.named_modules()]
    try:
        with torch.no_grad():
            seen.logits = logits_of(torch.func.functional_call(model, values, (ids,))).detach().clone()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def logits_of(out: Any) -> Tensor:
    """What a model returns, or its ``logits``.

    Raises:
        UsageError: neither is a tensor.
    """
    logits = getattr(out, "logits", out)
    if not isinstance(logits, Tensor):
        raise UsageError(f"the model returns {type(logits).__name__}; return logits, or an object that has them")
    return logits


def stacks(model: nn.Module, roles: Mapping[str, str], seen: Seen, experts: int) -> tuple[str, ...]:
    """The smallest modules that are called and hold this many experts, by shape: tensors with the roles ``expert_in``
    and ``expert_out``, so many in front or so many of them."""

    def held(module: str, role: str) -> int:
        inside = (p for n, p in there.items() if n.startswith(f"{module}.") and roles.get(n) == role)
        return sum(p.shape[0] if p.dim() == 3 else 1 for p in inside)

    there = {plain_name(n): p for n, p in model.named_parameters()}
    full = [n for n in seen.outputs if n and min(held(n, "expert_in"), held(n, "expert_out")) >= experts]
    return tuple(n for n in full if not any(x.startswith(f"{n}.") for x in full))


class Parts:
    """Splits a model's signals relative to the moment it is made."""

    def __init__(
        self, model: nn.Module, ids: Tensor, roles: Mapping[str, str], layers: str, stacks: Sequence[str] = ()
    ) -> None:
        """Watches a model from now on.

        Args:
            ids: (batch, length + 1) token ids, the targets included. roles: by name of parameter. layers: pattern of
                names of modules of the stream.
            stacks: modules that sum experts.
        """
        self.model, self.ids, self.roles, self.layers, self.stacks = model, ids[:, :-1], roles, layers, stacks
        self.targets = ids[:, 1:].unique()
        self.modules = {plain_name(n): module for n, module in model.named_modules()}
        self.weights = {plain_name(n): p.detach().clone() for n, p in model.named_parameters()}
        self.first = look(model, self.ids)
        owners = {n: roles[f"{n}.weight"] for n in self.first.outputs if f"{n}.weight" in roles}
        self.maps = {n: r for n, r in owners.items() if self.weights[f"{n}.weight"].dim() == 2 and self._measured(n, r)}

    def _measured(self, name: str, role: str) -> bool:
        """Experts are measured as a sum; a gate of a shared expert scales as a readout, and is none."""
        return not role.startswith("expert") and (role != "readout" or self.first.outputs[name].shape[-1] > 1)

    def __call__(self) -> Iterator[Part]:
        """Every part as it is now."""
        now, first = look(self.model, self.ids), self.first
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
            moved = weight - initial
            if role == "router":  # few tokens choose few experts: those that moved stand for all
                moved = moved[moved.any(dim=1)] if moved.any() else moved
            yield Part(f"{_short(name)}.update", (role, "update"), _rms(apply(x, moved)))
            if x.is_floating_point():
                # the stream moves along the rows of the targets, which are few of the vocabulary
                rows = initial[self.targets] if role == "readout" else initial
                yield Part(f"{_short(name)}.propagating", (role, "propagating"), _rms(apply(x - x0, rows)))
        for name in self.stacks:
            yield from self._pieces(name, now)

    def _pieces(self, name: str, now: Seen) -> Iterator[Part]:
        """A1, A2.1, A2.2 and A3 of one sum over experts, routed as at first."""
        module, call = self.modules[name], self.first.calls[name]
        (x0, *rest), x = call.arguments, now.calls[name].arguments[0]
        own = [plain_name(key) for key, _ in module.named_parameters()]
        initial = {key: self.weights[f"{name}.{key}"] for key in own}
        trained = {plain_name(key): p.detach() for key, p in module.named_parameters()}
        routers = [n for n, r in self.maps.items() if r == "router" and n.startswith(f"{name}.")]

        def run(x: Tensor, role: str = "") -> Tensor:
            moved = {key: trained[key] for key in own if role and self.roles.get(f"{name}.{key}") == role}
            held = [self._hold(router) for router in routers]
            try:
                out = torch.func.functional_call(module, {**initial, **moved}, (x, *rest), dict(call.named))
            finally:
                for handle in held:
                    handle.remove()
            return (out[0] if isinstance(out, tuple) else out).detach()

        start = run(x0)
        pieces = {"A1": start, "A2.1": run(x) - start}
        pieces |= {"A2.2": run(x0, "expert_in") - start, "A3": run(x0, "expert_out") - start}
        for piece, value in pieces.items():
            yield Part(f"{_short(name)}.{piece}", ("experts", piece), _rms(value))

    def _hold(self, router: str) -> Any:
        """Lets a router inside say what it said at first."""
        return self.modules[router].register_forward_hook(lambda *_: self.first.returned[router])


def _kept(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def _short(name: str) -> str:
    """``layer0.self_attn.q_proj`` for ``model.layers.0.self_attn.q_proj``; other names lose their first part."""
    found = re.search(r"(?:^|\.)[a-z]+\.(\d+)(.*)$", name)
    return f"layer{found[1]}{found[2]}" if found else name.removeprefix("model.")


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
