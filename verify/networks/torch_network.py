"""Any network of the equation language as a torch module: replicas train side by side with a real optimizer.

Signals are computed from the equations by contraction; no name of an index or tensor has a special meaning. Every
parameter has a leading replica dimension. The optimizers act entrywise and the loss is a sum over replicas, so each
replica trains exactly as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling_algebra.dynamics.sparse_routing import weight_expert_sums
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks import language
from scaling_algebra.spec.networks.functions import FunctionKind
from scaling_algebra.spec.networks.language import DATA, Function, Network, Product, Sum
from scaling_algebra.spec.networks.multipliers import SHARE
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import seed_generators

from .contraction import contract
from .replicas import DTYPE, ReplicaDraw, fill_normal, sample_input
from .scales import DECAY, choose_constants, complete_sizes
from .steppers import Fold, Group, build_group, build_optimizer

OWN: dict[str, Callable[..., Tensor]] = {"centre": lambda x, dim: x - x.mean(dim, keepdim=True)}
"""Functions that torch lacks, by the name ``torch`` in ``functions.toml``: of a tensor, and of the dimension if they
act along one. An entry for a function of every entry: ``"squareplus": lambda x: ...``."""
SELECTED = 0.5
"""Share of the entries that a top-K selection keeps."""

Signals = dict[str, Tensor]


def count_selected(size: int) -> int:
    """Returns how many of ``size`` entries a top-K selection keeps."""
    return max(1, round(SELECTED * size))


def apply_function(function: Function, indices: str, x: Tensor) -> Tensor:
    """Applies a function of the network's equations to its argument.

    In the backward pass, which entries a top-K selection keeps counts as constant.

    Args:
        function: the function.
        `indices`: the indices of x after the replica dimension.
        x: the argument, (S, *indices).
    """
    kind = function.kind
    along = 1 + indices.index(function.over) if function.over else 0
    chosen = None
    if kind.selects:
        picked = x.detach().topk(count_selected(x.shape[along]), along).indices
        chosen = torch.zeros_like(x, dtype=torch.bool).scatter(along, picked, True)
    if kind.kind == "softmax":
        logits = x if chosen is None else x.masked_fill(~chosen, -torch.inf)
        return torch.softmax(logits, along)
    if kind.kind == "norm":
        last = x.movedim(along, -1)
        normalised: Tensor = getattr(functional, kind.torch)(last, last.shape[-1:], eps=TINY)
        return normalised.movedim(-1, along)
    if kind.mixes:
        return find_torch_function(kind)(x, along)
    values = 0 * x + 1 if function.masks else find_torch_function(kind)(x)
    return values if chosen is None else values * chosen


def find_torch_function(kind: FunctionKind) -> Callable[..., Tensor]:
    """Returns the torch function that computes a function which equations of networks can name. It is looked up in
    ``OWN``, ``torch.nn.functional`` and ``torch``.

    Raises:
        UsageError: there is none.
    """
    found: Callable[..., Tensor] | None = OWN.get(kind.torch)
    if (found := found or getattr(functional, kind.torch, getattr(torch, kind.torch, None))) is None:
        where = "define it in OWN, verify/networks/torch_network.py"
        raise UsageError(f"{kind.name}: torch has no function {kind.torch!r}, to which functions.toml maps it; {where}")
    return found


TINY = 1e-40
"""Added to the mean square that a norm divides by, so that exact zero does not divide by zero."""


class TorchNetwork(nn.Module):
    """S replicas of a network as a torch module, initialised with the powers of a parameterization.

    If K is a dimension, this is the network of an infinite batch of tokens, each routed to its own K of M experts:
    every sum over experts gets the factor K/M (``dynamics/sparse_routing.py``).

    Args:
        network: the equations.
        draw: sizes, seeds and device.
        scaling: init stds, tied tensors and multipliers.
        dtype: dtype of weights and signals.

    Attributes:
        weights: parameters by tensor, (S, *indices).
        sizes: size of every index name.
        active: number of experts per token: K, or M if all are active.
        multipliers: value of every multiplier.
        x: the training input.
    """

    def __init__(self, network: Network, draw: ReplicaDraw, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        for s in network.statements:
            if isinstance(s, Function) and s.kind.kind == "entrywise":
                find_torch_function(s.kind)  # fail before the long part
        self.active = draw.dims.get("K", draw.dims.get("M", 0))
        routed = self.active != draw.dims.get("M", 0)
        network = weight_expert_sums(network) if routed else network
        self.network, self.draw, self.scaling, self.constants = network, draw, scaling, choose_constants(network)
        dims = complete_sizes(network, draw.dims)
        self.sizes = {index: dims[axis] for index, axis in network.indices.items() if axis in dims}
        self.weights: dict[str, nn.Parameter] = {}
        seeded, shared = seed_generators(draw.seeds, draw.device), seed_generators(draw.shared, draw.device)
        for role, tensor in network.tensors.items():
            memory, std = self.get_memory_order(tensor), scaling.tensors[role].init_std
            shape = [self.sizes[x] for x in memory]
            weight = torch.zeros(len(draw), *shape, device=draw.device, dtype=dtype)
            weight = weight.permute(0, *(1 + memory.index(x) for x in tensor.indices))
            if std is not None:
                alike = tensor.experts if role in scaling.tied else ""
                drawn = [1 if x == alike else self.sizes[x] for x in tensor.indices]
                fill_normal(weight, drawn, seeded if self.grows(tensor.indices) else shared)
                weight *= self.constants.init_of(role) * std.at(dims)
            self.weights[role] = nn.Parameter(weight)
        self.parameters_in_order = nn.ParameterList(self.weights.values())  # a list, because names may be any text
        self.register_buffer("x", sample_input(network, self.sizes, draw).to(dtype))
        self.x: Tensor
        self.multipliers = {m: (1 / scaling.multipliers[m]).at(dims) for m in scaling.multipliers}
        self.multipliers[SHARE] = self.active / draw.dims["M"] if routed else 1.0
        self._noise = seed_generators([seed + NOISE for seed in draw.shared], draw.device)

    def grows(self, indices: str) -> bool:
        """Whether a tensor with these index names has a growing axis."""
        return any(self.draw.grows(self.network.axes[x]) for x in indices)

    def of_token(self) -> TorchNetwork:
        """Returns the network with only the K experts that one token is routed to: the first ones, since all experts
        are alike.
        """
        seen = copy(self)
        experts = {x for x, axis in self.network.indices.items() if axis == "M"}
        seen.sizes = {x: self.active if x in experts else size for x, size in self.sizes.items()}
        seen.multipliers = {**self.multipliers, SHARE: 1.0}
        return seen

    def select_seen(self, indices: str, x: Tensor) -> Tensor:
        """Returns the part of a tensor that belongs to the first K experts, which are those that a token is routed
        to."""
        for k, index in enumerate(indices, x.ndim - len(indices)):
            if self.network.indices.get(index) == "M":
                x = x.narrow(k, 0, self.active)
        return x

    def noise(self) -> Signals:
        """Draws new values of the signals that the equations define as random noise, by name."""
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
        """Computes every signal from the equations, (S, *indices).

        Args:
            weights: weights by tensor.
            noise: values of the noise signals, by name.
            given: values of signals, by name, that are used instead of computing these signals.
        """
        replicas = len(next(iter(weights.values())))
        data = self.repeat_input(DATA, replicas)
        signals: Signals = {x: self.repeat_input(x, replicas) for x in self.network.constants}
        signals[DATA] = data.detach().requires_grad_() if torch.is_grad_enabled() else data
        for s in self.network.statements:
            if given and s.out in given:
                signals[s.out] = given[s.out]
            elif isinstance(s, Product):
                operands = [(x.indices, signals[x.name]) for x in s.factors]
                if s.tensor:
                    operands.insert(0, (s.tensor.indices, weights[s.tensor.name]))
                product = contract(operands, self.network.signals[s.out], self.sizes)
                signals[s.out] = product * self.multiplier(s.multipliers)
            else:
                signals[s.out] = value = self.compute_statement(s, signals.__getitem__, noise)
                if torch.is_grad_enabled() and not value.requires_grad:
                    value.requires_grad_()  # no gradient passes on, but the one that arrives here is measured
        return signals

    def repeat_input(self, name: str, replicas: int) -> Tensor:
        """Returns the training input or another input (a constant), repeated for a number of replicas."""
        x = self.x if name == DATA else sample_input(self.network, self.sizes, self.draw, name).to(self.x.dtype)
        return x.expand(replicas, *x.shape)

    def compute_statement(
        self, s: Function | Sum, signal: Callable[[str], Tensor], noise: Mapping[str, Tensor]
    ) -> Tensor:
        """Computes the output of an equation that is a sum or a function, (S, *indices).

        Args:
            s: the equation.
            signal: returns a signal by name.
            noise: values of the noise signals, by name.
        """
        indices = self.network.signals[s.out]
        if isinstance(s, Sum):
            return torch.stack([self.permute_axes(signal(x.name), x.indices, indices) for x in s.terms]).sum(0)
        if s.source is None:
            return noise[s.out]
        return apply_function(s, indices, self.permute_axes(signal(s.source.name), s.source.indices, indices))

    def get_memory_order(self, tensor: language.Tensor) -> str:
        """Returns the index names of a tensor in the order in which it is stored.

        This is the order of the equations, except for the tensor of an expert layer whose inputs differ between
        experts: its fan-in is stored after the expert index, so that a sum over both is one matrix product.
        """
        use = next(s for s in self.network.linear if s.tensor and self.network.tensors[s.tensor.name] is tensor)
        if not any(tensor.experts in x.indices for x in use.factors if tensor.experts):
            return tensor.indices
        inner = tensor.fan_in + tensor.fan_out
        return "".join(x for x in tensor.indices if x not in inner) + inner

    def multiplier(self, names: Sequence[str]) -> float:
        """Returns the product of the named multipliers; one that the scaling does not set is 1."""
        return prod(self.multipliers.get(m, 1.0) for m in names)

    def permute_axes(self, x: Tensor, old: str, new: str) -> Tensor:
        """Returns a tensor with its indices permuted from the order ``old`` to ``new``."""
        return x if old == new else x.permute(0, *(1 + old.index(index) for index in new))

    def optimizer(self, trained: OptimizerSpec) -> torch.optim.Optimizer:
        """Returns the torch optimizer of all tensors, with one parameter group per tensor (its own learning rate,
        epsilon and weight decay).

        The key ``symbol`` of a group is the name of its tensor. A frozen tensor has no group.

        Raises:
            UsageError: there is no torch class for an optimizer, or one needs an epsilon that the scaling does not
                give.
        """
        groups, c = list[Group](), self.constants
        dims = complete_sizes(self.network, self.draw.dims)
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
                options["fold"] = Fold.of(self.network, role, tensor.indices, rule)
                options["bound"] = rule.constrains(self.network, role)
            groups.append(build_group(rule, self.weights[role], lr, eps, DECAY, **options))
        return build_optimizer(groups)

    def forward(self) -> Tensor:
        """Returns the output of every replica, (S,), with newly drawn noise."""
        output: Tensor = self.signals(self.weights, self.noise())[self.network.output]
        return output


NOISE = 500_009
"""Offset between the random streams of tensors and of noise."""
