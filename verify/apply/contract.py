"""What ``build(sizes)`` returns, found to keep its contract before anything is trained: ``examined``.

The contract. ``sizes`` is a dict of whole numbers by axis (N, N_e, M, K). ``build`` returns a ``torch.nn.Module``,
which is then drawn and trained with the numbers of the recipe; or that and its ``torch.optim.Optimizer``: then its own
initial values and rates are checked, with weight decay left out. The module

1. lies on the CPU and maps ids (batch, length) below 64 to logits (batch, length, 64 or more), or to an object with
   ``logits``;
2. has a role for every parameter: by ``roles``, by labels ``scaling_roles``, or as a family that is known;
3. calls the owner of every matrix, an ``nn.Linear`` or ``nn.Embedding``; a matrix without one is not measured;
4. sums its experts in one module, which gets their input first and returns that sum and nothing else; the experts are
   parameters with the roles ``expert_in`` and ``expert_out``, M in front or M of them, under any name; its router may
   be inside, as an ``nn.Linear``, or what it says comes as further arguments;
5. has modules whose outputs are the residual stream, named as ``layers`` says, as many at every size.

Read next: ``parts.py`` (what is measured), ``checking.py`` (trains).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, foreign, shown
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.recipes.sizes import Sizes

from .modules import modules, tensors
from .parts import BATCH, LENGTH, VOCABULARY, Seen, look
from .planning import plan

SAME = 1e-4
"""Relative difference of two sums over experts that are one but for rounding."""
EXPERT = ("expert_in", "expert_out")


@dataclass(frozen=True)
class Subject:
    """A model as ``build`` returned it at one size.

    Attributes:
        optimizer: its own; None: the recipe's. roles: by name of parameter. layers: names of modules of the stream.
        stacks: modules that sum experts. gate: what the gate brings to that sum, ``1/K``, ``1/M`` or ``1``; or nothing.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    roles: Mapping[str, str]
    layers: str
    stacks: tuple[str, ...] = ()
    gate: str = ""

    @property
    def kind(self) -> str:
        """The kind of model, which must be the same at every size."""
        what = "a model and its optimizer" if self.optimizer is not None else "a model"
        return what + (f" whose gate brings {self.gate}" if self.gate else "")

    @property
    def reads_zero(self) -> bool:
        """Does the readout start at zero?"""
        return not any(p.any() for name, p in tensors(self.model).items() if self.roles.get(name) == "readout")


def taken(build: Any, size: Sizes, seed: int) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """The model that ``build`` returns, not in training mode, and its own optimizer.

    Raises:
        UsageError: it raises an error, or returns something else.
    """
    at = f"build({dict(size)})"
    torch.manual_seed(seed)
    with foreign(at):
        built = build(dict(size))
    model, optimizer = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer | None):
        kinds = f"({type(model).__name__}, {type(optimizer).__name__})" if isinstance(built, tuple) else shown(built)
        raise UsageError(f"{at} returns {kinds}; return a torch.nn.Module, or it and its torch.optim.Optimizer")
    if away := [n for n, p in model.named_parameters() if p.device.type != "cpu"]:
        raise UsageError(f"{at}: {away[0]} is not on the CPU; build the model there")
    if optimizer is not None:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        lacks = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in trained]
        if lacks:
            raise UsageError(f"{at}: the optimizer lacks {lacks[0]}; give it every parameter that takes a gradient")
    return model.train(False), optimizer


def examined(build: Any, size: Sizes, numbers: Recipe, roles: Mapping[str, str] | None, layers: str) -> Subject:
    """The model that ``build`` returns at one size, if it keeps the contract.

    Raises:
        UsageError: it does not; the message names what, where, and what to do.
    """
    model, optimizer = taken(build, size, 0)
    here = replace(numbers, way=replace(numbers.way, target=size))
    by_name = {e.name: e.role for e in plan(model, here, roles=roles).entries}
    seen = _seen(model)
    if not any(re.search(layers, name) for name in seen.calls):
        raise UsageError(f"no module that is called matches layers={layers!r}; give a pattern of your layers' names")
    named = modules(model)
    reads = [n for n in seen.calls if by_name.get(f"{n}.weight") == "readout"]
    heads = [n for n in reads if seen.calls[n].output.shape == seen.logits.shape]
    for owner in reads:  # a gate of a shared expert is one number, scales as a readout, and is not measured
        if owner not in heads[-1:] and seen.calls[owner].output.shape[-1] > 1:
            raise UsageError(
                f"{owner} (readout) does not give the logits: no role says what lies behind it; write the network's "
                "equations, and give them to derive and verify"
            )
    for name, role in by_name.items():
        owner = name.removesuffix(".weight")
        matrix = owner in named and role not in EXPERT and named[owner].weight.dim() == 2
        if matrix and owner not in seen.calls:
            raise UsageError(
                f"{owner} ({role}) is never called, only its weight is used; call the module, as {owner}(x)"
            )
    if "M" not in size:
        return Subject(model, optimizer, by_name, layers)
    sums = _stacks(model, by_name, seen, size["M"])
    if not sums:
        raise UsageError(
            f"no module that is called has {size['M']} experts at {dict(size)}: parameters with the roles expert_in "
            f"and expert_out, {size['M']} in front or so many of them; sum the experts in a module of their own"
        )
    for name in sums:
        _check_sum(model, name, by_name, seen)
    return Subject(model, optimizer, by_name, layers, sums, _gate(model, by_name, sums[0], size["M"]))


def _stacks(model: nn.Module, roles: Mapping[str, str], seen: Seen, experts: int) -> tuple[str, ...]:
    """The smallest modules that are called and hold this many experts, by shape: tensors with the roles ``expert_in``
    and ``expert_out``, so many in front or so many of them."""

    def held(module: str, role: str) -> int:
        inside = [p for name, p in _inside(model, module).items() if roles.get(name) == role]
        return sum(p.shape[0] if p.dim() == 3 else 1 for p in inside)

    full = [n for n in seen.calls if n and min(held(n, role) for role in EXPERT) >= experts]
    return tuple(n for n in full if not any(x.startswith(f"{n}.") for x in full))


def _gate(model: nn.Module, roles: Mapping[str, str], stack: str, experts: int) -> str:
    """What the gate brings to a sum over experts, measured: with experts that are all alike the sum is the gates' sum
    times one of them. It stays as it is whatever the router says (``1/K``: chosen weights sum to a constant), or where
    all logits are shifted alike (``1/M``: a softmax over all experts), or neither (``1``). Empty: no router.
    """
    routers = {n: p for n, p in tensors(model).items() if roles.get(n) == "router" and p.dim() == 2}
    if not routers:
        return ""
    alike: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    for name, p in _inside(model, stack).items():
        role = roles.get(name)
        if role in EXPERT and p.dim() == 2:
            alike[name] = first.setdefault(re.sub(r"\d+", "#", name.removeprefix(stack)), p)
        elif role in (*EXPERT, "bias") and p.dim() > 1 and p.shape[0] == experts:
            alike[name] = p[:1].expand_as(p)
    draw = torch.Generator().manual_seed(2)
    noise = {n: torch.randn(p.shape, generator=draw) * p.shape[1] ** -0.5 for n, p in routers.items()}
    shift = {n: x[:1].expand_as(x) for n, x in noise.items()}

    def sum_with(moved: Mapping[str, Tensor]) -> Tensor:
        return look(model, {**alike, **{n: routers[n].detach() + x for n, x in moved.items()}}).calls[stack].output

    start = sum_with({})
    for gate, moved in (("1/K", noise), ("1/M", shift)):
        if (sum_with(moved) - start).norm() <= SAME * start.norm():
            return gate
    return "1"


def _seen(model: nn.Module) -> Seen:
    """One forward pass, with logits as they should be."""
    maps = f"maps ids of shape ({BATCH}, {LENGTH}) below {VOCABULARY}"
    with foreign("the model", f"; let it take ids of shape ({BATCH}, {LENGTH}) below {VOCABULARY}"):
        seen = look(model)
    shape = tuple(seen.logits.shape)
    if shape[:-1] != (BATCH, LENGTH) or shape[-1] < VOCABULARY:
        raise UsageError(
            f"the model {maps} to {shape}; return logits of shape ({BATCH}, {LENGTH}, {VOCABULARY} or more)"
        )
    if not seen.logits.isfinite().all():
        raise UsageError(f"the model {maps} to logits that are not finite; look at its initial values")
    return seen


def _check_sum(model: nn.Module, name: str, roles: Mapping[str, str], seen: Seen) -> None:
    """Does the module get x first, hold its router as a module, and return the sum over experts alone?"""
    if not seen.calls[name].arguments or not isinstance(seen.calls[name].arguments[0], Tensor):
        raise UsageError(f"{name} sums the experts; give it their input as the first argument")
    inside = _inside(model, name)
    for router in (n for n in inside if roles.get(n) == "router"):
        owner = router.rpartition(".")[0]
        if owner not in seen.calls or owner == name:
            raise UsageError(
                f"{router} (router) is a bare parameter of {name}, which sums the experts; make it an nn.Linear"
            )
    none = {n: torch.zeros_like(p) for n, p in inside.items() if roles.get(n) in ("expert_out", "bias")}
    if look(model, none).calls[name].output.any():
        raise UsageError(
            f"{name} returns more than the sum over its experts: it is not zero where expert_out is; leave residual, "
            "norm and shared experts to the module around it"
        )


def _inside(model: nn.Module, module: str) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in tensors(model).items() if n.startswith(f"{module}.")}
