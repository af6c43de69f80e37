"""Any network of the language as a torch module: replicas that train side by side, with the real optimizer.

Signals follow from the equations by contraction; no letter, role or name has a meaning of its own. Every parameter has
a leading replica dimension; the optimizers are entrywise and the loss is a sum over replicas, so each replica trains
exactly as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling_algebra.dynamics.sparse_routing import averaged
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks import language
from scaling_algebra.spec.networks.functions import FunctionKind
from scaling_algebra.spec.networks.language import DATA, Function, Network, Product, Sum
from scaling_algebra.spec.networks.multipliers import SHARE
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import generators

from .contraction import contract
from .replicas import DTYPE, Draw, fill, sample
from .scales import DECAY, constants, every_size
from .steppers import Fold, Group, assembled, group

OWN: dict[str, Callable[..., Tensor]] = {}
"""Functions that torch lacks, by ``torch`` of ``functions.toml``, of a tensor, and of the dimension they go along:
``"squareplus": lambda x: ...``, ``"centre": lambda x, dim: x - x.mean(dim, keepdim=True)``."""
SELECTED = 0.5
"""Share of the entries that a top-K selection takes."""

Signals = dict[str, Tensor]


def selected(size: int) -> int:
    """The number of entries that a top-K selection takes of this many."""
    return max(1, round(SELECTED * size))


def applied(function: Function, letters: str, x: Tensor) -> Tensor:
    """A function of its argument, (S, *letters); a selection is constant in the backward pass."""
    kind = function.kind
    along = 1 + letters.index(function.over) if function.over else 0
    chosen = None
    if kind.selects:
        picked = x.detach().topk(selected(x.shape[along]), along).indices
        chosen = torch.zeros_like(x, dtype=torch.bool).scatter(along, picked, True)
    if kind.kind == "softmax":
        logits = x if chosen is None else x.masked_fill(~chosen, -torch.inf)
        return torch.softmax(logits, along)
    if kind.kind == "norm":
        last = x.movedim(along, -1)
        normalised: Tensor = getattr(functional, kind.torch)(last, last.shape[-1:], eps=TINY)
        return normalised.movedim(-1, along)
    if kind.mixes:
        return entrywise(kind)(x, along)
    values = 0 * x + 1 if function.masks else entrywise(kind)(x)
    return values if chosen is None else values * chosen


def entrywise(kind: FunctionKind) -> Callable[..., Tensor]:
    """The torch function of a function: from ``OWN``, ``torch.nn.functional`` or ``torch``.

    Raises:
        UsageError: there is none.
    """
    found: Callable[..., Tensor] | None = OWN.get(kind.torch)
    if (found := found or getattr(functional, kind.torch, getattr(torch, kind.torch, None))) is None:
        where = "define it in OWN, verify/networks/torch_network.py"
        raise UsageError(f"{kind.name}: torch has no function {kind.torch!r}, which it is in functions.toml; {where}")
    return found


TINY = 1e-40
"""Added to the mean of squares that a norm divides by: nothing, unless that is exactly zero."""


class TorchNetwork(nn.Module):
    """Replicas of a network with the powers of a scaling.

    If K is a dimension, it is the network of an infinite batch of tokens, each routed to its own K of M experts: every
    sum over experts has the share K/M (``dynamics/sparse_routing.py``). ``active`` is K, else M.

    Args:
        scaling: init stds, tied roles and multipliers.

    Attributes:
        weights: parameters, shape (S, *letters), by role.
        sizes: of every index letter.
        x: the training input.
    """

    def __init__(self, network: Network, draw: Draw, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        for s in network.statements:
            if isinstance(s, Function) and s.kind.kind == "entrywise":
                entrywise(s.kind)  # fail before the long part
        self.active = draw.dims.get("K", draw.dims.get("M", 0))
        routed = self.active != draw.dims.get("M", 0)
        network = averaged(network) if routed else network
        self.network, self.draw, self.scaling, self.constants = network, draw, scaling, constants(network)
        dims = every_size(network, draw.dims)
        self.sizes = {letter: dims[axis] for letter, axis in network.letters.items() if axis in dims}
        self.weights: dict[str, nn.Parameter] = {}
        seeded, shared = generators(draw.seeds, draw.device), generators(draw.shared, draw.device)
        for role, tensor in network.tensors.items():
            memory, std = self.memory(tensor), scaling.tensors[role].init_std
            shape = [self.sizes[x] for x in memory]
            weight = torch.zeros(len(draw), *shape, device=draw.device, dtype=dtype)
            weight = weight.permute(0, *(1 + memory.index(x) for x in tensor.letters))
            if std is not None:
                alike = tensor.experts if role in scaling.tied else ""
                drawn = [1 if x == alike else self.sizes[x] for x in tensor.letters]
                fill(weight, drawn, seeded if self.grows(tensor.letters) else shared)
                weight *= self.constants.init_of(role) * std.at(dims)
            self.weights[role] = nn.Parameter(weight)
        self.parameters_in_order = nn.ParameterList(self.weights.values())  # not by name, which may be any text
        self.register_buffer("x", sample(network, self.sizes, draw).to(dtype))
        self.x: Tensor
        self.multipliers = {m: (1 / scaling.multipliers[m]).at(dims) for m in scaling.multipliers}
        self.multipliers[SHARE] = self.active / draw.dims["M"] if routed else 1.0
        self._noise = generators([seed + NOISE for seed in draw.shared], draw.device)

    def grows(self, letters: str) -> bool:
        """Has a tensor with these letters an index of an axis that grows?"""
        return any(self.draw.grows(self.network.axes[x]) for x in letters)

    def of_token(self) -> TorchNetwork:
        """The network as one token sees it: its experts are the first K, which are as good as any others."""
        seen = copy(self)
        experts = {x for x, axis in self.network.letters.items() if axis == "M"}
        seen.sizes = {x: self.active if x in experts else size for x, size in self.sizes.items()}
        seen.multipliers = {**self.multipliers, SHARE: 1.0}
        return seen

    def seen(self, letters: str, x: Tensor) -> Tensor:
        """The entries of a tensor with these index letters that a token sees."""
        for k, letter in enumerate(letters, x.ndim - len(letters)):
            if self.network.letters.get(letter) == "M":
                x = x.narrow(k, 0, self.active)
        return x

    def noise(self) -> Signals:
        """Noise of one step, by signal; every call draws that of the next step."""
        drawn = {}
        for s in self.network.functions:
            if s.kind.kind == "noise":
                shape = [self.sizes[x] for x in self.network.signals[s.out]]
                parts = [torch.randn(shape, generator=g, device=self.draw.device) for g in self._noise]
                drawn[s.out] = torch.stack(parts).to(self.x.dtype)
        return drawn

    def signals(
        self, weights: Mapping[str, Tensor], noise: Mapping[str, Tensor], given: Mapping[str, Tensor] | None = None
    ) -> Signals:
        """Every signal with these weights, (S, *letters). ``given`` signals are taken as they are."""
        replicas = len(next(iter(weights.values())))
        data = self.steady(DATA, replicas)
        signals: Signals = {x: self.steady(x, replicas) for x in self.network.constants}
        signals[DATA] = data.detach().requires_grad_() if torch.is_grad_enabled() else data
        for s in self.network.statements:
            if given and s.out in given:
                signals[s.out] = given[s.out]
            elif isinstance(s, Product):
                operands = [(x.letters, signals[x.name]) for x in s.factors]
                if s.tensor:
                    operands.insert(0, (s.tensor.letters, weights[s.tensor.name]))
                product = contract(operands, self.network.signals[s.out], self.sizes)
                signals[s.out] = product * self.multiplier(s.multipliers)
            else:
                signals[s.out] = value = self.made(s, signals.__getitem__, noise)
                if torch.is_grad_enabled() and not value.requires_grad:
                    value.requires_grad_()  # no gradient goes on from here, but one comes
        return signals

    def steady(self, name: str, replicas: int) -> Tensor:
        """The training input, or a constant, repeated for some replicas."""
        x = self.x if name == DATA else sample(self.network, self.sizes, self.draw, name).to(self.x.dtype)
        return x.expand(replicas, *x.shape)

    def made(self, s: Function | Sum, signal: Callable[[str], Tensor], noise: Mapping[str, Tensor]) -> Tensor:
        """The output of a sum or a function, (S, *letters), from the signals below."""
        letters = self.network.signals[s.out]
        if isinstance(s, Sum):
            return torch.stack([self.turned(signal(x.name), x.letters, letters) for x in s.terms]).sum(0)
        if s.source is None:
            return noise[s.out]
        return applied(s, letters, self.turned(signal(s.source.name), s.source.letters, letters))

    def memory(self, tensor: language.Tensor) -> str:
        """The letters of a tensor in the order of memory. If experts read signals of their own, fan-in comes next to
        the letter of the expert: a sum over both is one matrix product."""
        use = next(s for s in self.network.linear if s.tensor and self.network.tensors[s.tensor.name] is tensor)
        if not any(tensor.experts in x.letters for x in use.factors if tensor.experts):
            return tensor.letters
        inner = tensor.fan_in + tensor.fan_out
        return "".join(x for x in tensor.letters if x not in inner) + inner

    def multiplier(self, names: Sequence[str]) -> float:
        """The product of these multipliers; those that the scaling does not set are 1."""
        return prod(self.multipliers.get(m, 1.0) for m in names)

    def turned(self, x: Tensor, old: str, new: str) -> Tensor:
        """A tensor with its indices in another order."""
        return x if old == new else x.permute(0, *(1 + old.index(letter) for letter in new))

    def optimizer(self, trained: OptimizerSpec) -> torch.optim.Optimizer:
        """The real optimizer, or several as one, one parameter group per tensor with its own lr, eps and weight decay.

        Every group has one more key, ``symbol``: the role of its tensor. A frozen tensor is in no group.

        Raises:
            UsageError: it cannot be trained, or the scaling lacks an epsilon that it needs.
        """
        groups, c = list[Group](), self.constants
        dims = every_size(self.network, self.draw.dims)
        for role, tensor in self.network.tensors.items():
            rule, scale = trained.of(role), self.scaling.tensors[role]
            if scale.lr is None:
                continue
            if rule.epsilon and scale.eps is None:
                raise UsageError(f"the scaling gives no epsilon for {role}, but {rule.name} needs one")
            lr = c.lr_of(role, rule) / rule.first * scale.lr.at(dims)
            eps = 0.0 if scale.eps is None else c.eps / rule.first * scale.eps.at(dims)
            options: dict[str, object] = {"symbol": role}
            if rule.acts_on_matrices:
                options["fold"] = Fold.of(self.network, role, tensor.letters, rule)
                options["bound"] = rule.constrains(self.network, role)
            groups.append(group(rule, self.weights[role], lr, eps, DECAY, **options))
        return assembled(groups)

    def forward(self) -> Tensor:
        """The output of every replica, shape (S,), with the noise of the next step."""
        output: Tensor = self.signals(self.weights, self.noise())[self.network.output]
        return output


NOISE = 500_009
"""Offset of the random streams of noise from those of the tensors."""
