"""Any network of the language as a torch module: replicas of one size trained side by side by one real optimizer.

Every parameter has a leading replica dimension; the optimizers are entrywise and the loss is a sum over replicas, so
each replica trains exactly as it would alone. Signals follow from the equations by contraction; no letter, role or name
has a meaning of its own.
Read next: ``decomposition/moments.py`` (splits what a network computes into named parts).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import DATA, Factor, Function, Network, Product, Statement, Sum
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import generators

from .scales import DECAY, FIXED_SIZES, LAYERS, NEGLIGIBLE, Constants, constants
from .steppers import Fold, Group, assembled

DTYPE = torch.float64
"""Adam gradients are near 1e-6 and smaller parts are differences of larger ones: float32 would blur them."""

SELECTED = 0.5
"""Share of the entries that a top-K selection takes."""

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
_REPLICA = "Z"

Labelled = tuple[str, Tensor]
"""Index letters, and a tensor with a replica dimension before theirs."""
Signals = dict[str, Tensor]


@dataclass(frozen=True)
class Draw:
    """Networks of one size on a device: S replicas.

    Attributes:
        dims: size of every axis that a network has.
        seeds: of what grows, by replica.
        shared: of what does not grow, by replica: the same at every size, so that limits are conditional on it.
        growing: the axes that grow.
    """

    dims: Mapping[str, int]
    seeds: Sequence[int]
    shared: Sequence[int]
    device: str = "cpu"
    growing: Collection[str] = tuple(AXES)

    def __len__(self) -> int:
        return len(self.seeds)


def contract(operands: Sequence[Labelled], out: str, sizes: Mapping[str, int]) -> Tensor:
    """The product of tensors with the letters missing from ``out`` summed, (S, *out), pair by pair: first the pair that
    frees most memory. A letter of ``out`` that no operand has is repeated."""
    left = list(operands)

    def entries(letters: str) -> int:
        return prod(sizes[x] for x in letters)

    def joined(i: int, j: int) -> str:
        kept = out + "".join(letters for k, (letters, _) in enumerate(left) if k not in (i, j))
        return "".join(x for x in dict.fromkeys(left[i][0] + left[j][0]) if x in kept)

    while len(left) > 1:
        pairs = [
            (entries(joined(i, j)) - entries(a[0]) - entries(b[0]), i, j)
            for (i, a), (j, b) in combinations(enumerate(left), 2)
        ]
        _, i, j = min(pairs)
        a, b = left[i], left[j]
        letters = joined(i, j)
        left = [x for k, x in enumerate(left) if k not in (i, j)] + [(letters, _einsum((a, b), letters))]
    (letters, tensor), there = left[0], [x for x in out if x in left[0][0]]
    found = _einsum(((letters, tensor),), "".join(there)) if letters != "".join(there) else tensor
    if len(there) == len(out):
        return found
    for k, x in enumerate(out):
        if x not in there:
            found = found.unsqueeze(k + 1)
    return found.expand(-1, *(sizes[x] for x in out))


def _einsum(operands: Sequence[Labelled], out: str) -> Tensor:
    symbols = dict(zip(dict.fromkeys("".join(letters for letters, _ in operands)), _SYMBOLS, strict=False))

    def written(letters: str) -> str:
        return _REPLICA + "".join(symbols[x] for x in letters)

    formula = ",".join(written(letters) for letters, _ in operands) + "->" + written(out)
    return torch.einsum(formula, *(x for _, x in operands))


def selected(size: int) -> int:
    """How many of so many entries a top-K selection takes."""
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
        made: Tensor = getattr(functional, kind.torch)(last, last.shape[-1:], eps=TINY)
        return made.movedim(-1, along)
    entrywise = getattr(functional, kind.torch, None) or getattr(torch, kind.torch)
    found: Tensor = entrywise(x)
    return found if chosen is None else found * chosen


TINY = 1e-40
"""Added to the mean of squares that a norm divides by: nothing, unless that is exactly zero."""


def sample(network: Network, sizes: Mapping[str, int], device: str) -> Tensor:
    """The training input, of unit length along the input dimension, independent of size and seed.

    Raises:
        UsageError: its size grows, so that it cannot be the same at every size.
    """
    letters = network.signals.get(DATA, "")
    grows = [x for x in letters if network.axes[x] in AXES]
    if grows:
        raise UsageError(f"{network.name}: data has the letter {grows[0]!r} of a growing axis; measure fixed data only")
    shape = [sizes[x] for x in letters]
    x = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(1), dtype=DTYPE, device="cpu")
    along = [k for k, letter in enumerate(letters) if network.axes[letter] == "D"]
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=along, keepdim=True) if along else x
    return unit.to(device)


class TorchNetwork(nn.Module):
    """A network with the powers of a scaling.

    Args:
        scaling: init stds, tied roles and multipliers.

    Attributes:
        weights: parameters by role, shape (S, *letters).
        sizes: of every index letter.
    """

    def __init__(self, network: Network, draw: Draw, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        self.network, self.draw, self.scaling = network, draw, scaling
        self.constants: Constants = constants(network)
        dims = {"L": LAYERS, **FIXED_SIZES, **draw.dims}
        self.sizes = {letter: dims[axis] for letter, axis in network.letters.items() if axis in dims}
        self.multipliers = {m: (1 / scaling.multipliers[m]).at(draw.dims) for m in scaling.multipliers}
        self.weights: dict[str, nn.Parameter] = {}
        own, shared = generators(draw.seeds, draw.device), generators(draw.shared, draw.device)
        for role, tensor in network.tensors.items():
            shape, std = [self.sizes[x] for x in tensor.letters], scaling.tensors[role].init_std
            weight = torch.zeros(len(draw), *shape, device=draw.device, dtype=dtype)
            if std is not None:
                alike = tensor.experts if role in scaling.tied else ""
                drawn = [1 if letter == alike else n for n, letter in zip(shape, tensor.letters, strict=True)]
                streams = own if self.grows(tensor.letters) else shared
                for replica, stream in zip(weight, streams, strict=True):
                    replica.copy_(torch.randn(drawn, generator=stream, device=draw.device))  # float32: 5x faster
                weight *= self.constants.init_of(role) * std.at(draw.dims)
            self.weights[role] = nn.Parameter(weight)
        self.parameters_in_order = nn.ParameterList(self.weights.values())  # not by role, which may be any name
        self.register_buffer("x", sample(network, self.sizes, draw.device).to(dtype))
        self.x: Tensor
        self._noise = generators(draw.shared, draw.device)
        for stream in self._noise:
            stream.manual_seed(stream.initial_seed() + NOISE)

    def grows(self, letters: str) -> bool:
        """Has it an index of an axis that grows?"""
        return any(self.network.axes[x] in self.draw.growing for x in letters)

    def noise(self) -> Signals:
        """Noise of one step, by signal; every call draws that of the next step."""
        drawn = {}
        for s in self.network.functions:
            if s.kind.kind == "noise":
                shape = [self.sizes[x] for x in self.network.signals[s.out]]
                parts = [torch.randn(shape, generator=g, device=self.draw.device) for g in self._noise]
                drawn[s.out] = torch.stack(parts).to(self.x.dtype)
        return drawn

    def signals(self, weights: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> Signals:
        """Every signal with these weights, (S, *letters)."""
        data = self.x.expand(len(self.draw), *self.x.shape)
        found: Signals = {DATA: data.detach().requires_grad_() if torch.is_grad_enabled() else data}
        for s in self.network.statements:
            found[s.out] = self.computed(s, weights, found, noise)
        return found

    def computed(
        self, s: Statement, weights: Mapping[str, Tensor], signals: Mapping[str, Tensor], noise: Mapping[str, Tensor]
    ) -> Tensor:
        """The output of one statement."""
        letters = self.network.signals[s.out]
        if isinstance(s, Product):
            tensors = [s.tensor] if s.tensor else []
            return self.product(tensors, s.factors, letters, weights, signals) * self.multiplier(s.multipliers)
        if isinstance(s, Sum):
            return torch.stack([self.turned(signals[x.name], x.letters, letters) for x in s.terms]).sum(0)
        if s.source is None:
            return noise[s.out]
        return applied(s, letters, self.turned(signals[s.source.name], s.source.letters, letters))

    def product(
        self,
        tensors: Sequence[Factor],
        factors: Sequence[Factor],
        out: str,
        weights: Mapping[str, Tensor],
        signals: Mapping[str, Tensor],
    ) -> Tensor:
        """Tensors times signals, in these letters."""
        operands = [(x.letters, weights[x.name]) for x in tensors] + [(x.letters, signals[x.name]) for x in factors]
        return contract(operands, out, self.sizes)

    def multiplier(self, names: Sequence[str]) -> float:
        """The product of these multipliers; those that the scaling does not set are 1."""
        return prod(self.multipliers.get(m, 1.0) for m in names)

    def turned(self, x: Tensor, old: str, new: str) -> Tensor:
        """A tensor with its indices in another order."""
        return x if old == new else x.permute(0, *(1 + old.index(letter) for letter in new))

    def forward(self) -> Tensor:
        """The output of every replica, shape (S,), with the noise of the next step."""
        found: Tensor = self.signals(dict(self.weights.items()), self.noise())[self.network.output]
        return found

    def count(self) -> int:
        """Parameters of one replica."""
        return sum(p[0].numel() for p in self.parameters())

    def optimizer(self, trained: Trained) -> torch.optim.Optimizer:
        """The real optimizer, or several as one, one parameter group per tensor with its own lr, eps and weight decay.

        Every group has one more key: the ``symbol`` of its tensor, which is the role here.

        Raises:
            UsageError: it cannot be trained, or the scaling lacks an epsilon that it needs.
        """
        groups, dims, c = list[Group](), self.draw.dims, self.constants
        for role, tensor in self.network.tensors.items():
            rule = trained.of(role)
            scale = self.scaling.tensors[role]
            lr = c.lr_of(role, rule) / rule.first * scale.lr.at(dims)
            group: dict[str, object] = {"params": [self.weights[role]], "lr": lr, "symbol": role}
            if rule.epsilon:
                if scale.eps is None:
                    raise UsageError(f"the scaling gives no epsilon for {role}, but {rule.name} needs one")
                group["eps"] = c.eps / rule.first * scale.eps.at(dims)
            if rule.negligible:
                group["eps"] = NEGLIGIBLE
            if rule.decoupled_decay:
                group["weight_decay"] = DECAY / lr
            if rule.folded:
                group["fold"] = Fold.of(self.network, role, tensor.letters, rule)
            groups.append((rule, group))
        return assembled(groups)


NOISE = 500_009
"""Offset of the random streams of noise from those of the tensors."""
