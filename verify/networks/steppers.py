"""Torch classes of the optimizers: those of ``torch.optim``, and optimizers defined here because torch lacks them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from importlib import import_module
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, guard_foreign_code, missing_package_error, quote_value
from scaling_algebra.files import import_python
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import SHAPES, Optimizer, Optimizers, OptimizerSpec

from .scales import NEGLIGIBLE


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum.

    Law: w -= lr sign(b1 m + (1 - b1) g), then m = b2 m + (1 - b2) g. Source: Chen et al. (2023), Algorithm 2.
    """

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters; ``closure`` is ignored."""
        for group in self.param_groups:
            now, later = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    past = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.add_(torch.lerp(p.grad, past, now).sign_(), alpha=-group["lr"])
                    past.lerp_(p.grad, 1 - later)


class SignSGD(Lion):
    """Steps by the sign of the gradient: w -= lr sign(g). Source: Bernstein et al. (2018)."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, lr, (0.0, 0.0))


@dataclass(frozen=True)
class Fold:
    """How a parameter of several dimensions is read as a stack of matrices, for optimizers of matrices such as Muon.

    Attributes:
        copies: dimensions that count the matrices.
        rows: dimensions that together form the rows.
        columns: dimensions that together form the columns.
    """

    copies: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, network: Network, role: str, stored: str, rule: Optimizer) -> Fold:
        """Returns how the parameter of a network's tensor is read as a stack of matrices.

        Args:
            network: the network.
            role: the tensor.
            stored: its index names in the order of storage, after a replica dimension.
            rule: the optimizer, which decides what a matrix is.
        """
        indices = rule.matrix(network, role)
        sides = (indices.copies, indices.rows, indices.columns)
        copies, rows, columns = (tuple(1 + stored.index(x) for x in side) for side in sides)
        return cls((0, *copies), rows, columns)

    @classmethod
    def last(cls, parameter: Tensor) -> Fold:
        """Returns the division in which the last two dimensions of a parameter are rows and columns, and all others
        count the matrices.

        Raises:
            UsageError: the parameter is a vector.
        """
        if (dims := parameter.dim()) < 2:
            raise UsageError(
                "this optimizer trains matrices only, and this parameter is a vector; give it another optimizer, "
                "such as muon+adamw"
            )
        return cls(tuple(range(dims - 2)), (dims - 2,), (dims - 1,))

    @property
    def order(self) -> tuple[int, ...]:
        return (*self.copies, *self.rows, *self.columns)

    def stack_matrices(self, x: Tensor) -> Tensor:
        """Returns a tensor as a stack of matrices, (matrices, out, in)."""
        sizes = [prod(x.shape[k] for k in side) for side in (self.copies, self.rows, self.columns)]
        return x.permute(self.order).reshape(sizes)

    def unstack(self, matrices: Tensor, like: Tensor) -> Tensor:
        """Returns a stack of matrices in the shape of the parameter ``like``."""
        folded = matrices.reshape([like.shape[k] for k in self.order])
        return folded.permute([self.order.index(k) for k in range(like.ndim)])


class Stacks(torch.optim.Optimizer):
    """Base class of optimizers that step every matrix of a parameter separately.

    Every parameter group has one parameter, and under the key ``fold`` how it is read as a stack of matrices.
    """

    def __init__(self, params: Any, shape: str = "none", **options: Any) -> None:
        super().__init__(params, {"lr": 1.0, "weight_decay": 0.0})
        self.shape, self.options = shape, options

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters; ``closure`` is ignored."""
        for group in self.param_groups:
            (p,) = group["params"]
            if p.grad is not None:
                fold: Fold = group["fold"]
                grads = fold.stack_matrices(p.grad)
                rate = group["lr"] * SHAPES[self.shape].at(*grads.shape[1:])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(fold.unstack(self.compute_direction(self.state[p], grads), p), alpha=-rate)

    def compute_direction(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        """Returns the direction d of the step ``w -= lr d``, (matrices, out, in)."""
        raise NotImplementedError


class Muon(Stacks):
    """Applies ``torch.optim.Muon`` to every matrix of a stack, and multiplies the learning rate by a factor that
    depends
    on the matrix's shape, as one of the rules in ``SHAPES`` says.
    """

    def compute_direction(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        if not state:
            state["each"] = [torch.zeros_like(g) for g in grads]
            state["muon"] = torch.optim.Muon(state["each"], lr=1.0, weight_decay=0.0, **self.options)
        for x, g in zip(state["each"], grads, strict=True):
            x.zero_()
            x.grad = g
        state["muon"].step()
        return torch.stack(state["each"]) / -SHAPES["original"].at(*grads.shape[1:])


class NorMuon(Muon):
    """Muon whose steps have rows of equal size, and the same norm as Muon's own step.

    Law: UV^T is Muon's step, the momentum with all singular values set to about 1. Each of its rows is divided by the
    root of a running mean of the row's mean square; then the matrix is rescaled to the norm of UV^T. Source: Li et al.
    (2025), and their code at e5aaaf42.
    """

    beta2 = 0.95

    def compute_direction(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        step = super().compute_direction(state, grads)
        rows = step.square().mean(dim=-1, keepdim=True)
        past = state.setdefault("rows", torch.zeros_like(rows)).lerp_(rows, 1 - self.beta2)
        turned = step / past.sqrt().clamp_min(TINY)
        return turned * _compute_norm(step) / _compute_norm(turned).clamp_min(TINY)


class Constrained(torch.optim.Optimizer):
    """Wraps another optimizer, and restores a norm of the weights after each of its steps (see ``CONSTRAINTS``).

    Each parameter group has the keys ``fold`` (how the parameter is read as matrices) and ``bound``, which is false if
    the constraint does not apply to it.

    Law: w <- w r / norm(w), where r are the initial norms of matrices, rows or columns; for the spectral norm only if
    it exceeds r. Weights that start at zero stay zero.
    """

    def __init__(self, inner: torch.optim.Optimizer, constraint: str) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.constraint = inner, constraint

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters; ``closure`` is ignored."""
        for group in self.param_groups:
            (p,) = group["params"]
            self.state[p].setdefault("radius", self._compute_norms(group["fold"], p).clone())
        self.inner.step()
        for group in self.param_groups:
            (p,) = group["params"]
            fold = group["fold"]
            if group.get("bound", True):
                back = self.state[p]["radius"] / self._compute_norms(fold, p).clamp_min(TINY)
                back = back.clamp_max(1.0) if self.constraint == "spectral" else back
                back = fold.unstack(back.expand_as(fold.stack_matrices(p)), p)
                group["kept"] = back * (1 - group["lr"] * group.get("weight_decay", 0.0))
                p.mul_(back)

    def _compute_norms(self, fold: Fold, p: Tensor) -> Tensor:
        """Returns the norms of matrices, rows or columns, broadcastable to (matrices, out, in)."""
        matrices = fold.stack_matrices(p)
        if self.constraint == "spectral":
            return torch.linalg.matrix_norm(matrices, 2, keepdim=True)
        dims = {"rows": (2,), "columns": (1,)}.get(self.constraint, (1, 2))
        return torch.linalg.vector_norm(matrices, dim=dims, keepdim=True)


class Hyperball(Stacks):
    """Steps of which each keeps every matrix on a sphere: its Frobenius norm stays the initial one, R.

    Law: w <- R n(w - lr R n(u)) with n(x) = x / |x| and u the step of another optimizer; w = 0 stays 0.
    Source: Wen et al. (2025), Hyperball.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters; ``closure`` is ignored."""
        for group in self.param_groups:
            (p,) = group["params"]
            if p.grad is not None:
                fold, state = group["fold"], self.state[p]
                now, u = (
                    fold.stack_matrices(p),
                    self.compute_direction(state.setdefault("inner", {}), fold.stack_matrices(p.grad)),
                )
                radius = state.setdefault("radius", _compute_norm(now).clone())
                moved = now - group["lr"] * radius * u / _compute_norm(u).clamp_min(TINY)
                back = radius / _compute_norm(moved).clamp_min(TINY)
                p.copy_(fold.unstack(moved * back, p))
                group["kept"] = fold.unstack(back.expand_as(moved), p)


class AdamH(Hyperball):
    """Keeps every matrix on a sphere, as ``Hyperball`` does, and takes the step of Adam with a negligible epsilon."""

    betas = 0.9, 0.999

    def compute_direction(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        state["t"] = state.get("t", 0) + 1
        moments = []
        for beta, x in zip(self.betas, (grads, grads.square()), strict=True):
            past = state.setdefault(f"moment {beta}", torch.zeros_like(x)).lerp_(x, 1 - beta)
            moments.append(past / (1 - beta ** state["t"]))
        return moments[0] / moments[1].sqrt().clamp_min(TINY)


class MuonH(Hyperball, Muon):
    """Keeps every matrix on a sphere, as ``Hyperball`` does, and takes the step of Muon."""


def get_shrinkage(group: Mapping[str, Any]) -> Tensor | float:
    """Returns the factor by which the last step of an optimizer shrank a weight, by weight decay or by rescaling it to
    keep its norm. ``group`` is the parameter group of the weight.
    """
    decay: float = 1 - group["lr"] * group.get("weight_decay", 0.0)
    factor: Tensor | float = group.get("kept", decay)
    return factor


TINY = 1e-30
"""Lower bound on divisors."""


def _compute_norm(matrices: Tensor) -> Tensor:
    """Returns the Frobenius norms of matrices, (matrices, 1, 1)."""
    return torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)


class Shampoo(Stacks):
    """Multiplies the gradient by a preconditioner on both sides.

    Law: w -= lr L^-1/4 g R^-1/4, where L and R are the sums of g g^T and g^T g over all steps; directions in which all
    gradients vanish are not stepped. If ``blocks`` is not 0, every block of this side length is a matrix of its own.
    Source: Gupta et al. (2018), Algorithm 1.
    """

    def __init__(self, params: Any, blocks: int = 0, **options: Any) -> None:
        super().__init__(params, **options)
        self.blocks = blocks

    def compute_direction(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        if self.blocks:
            rows, columns = grads.shape[1:]
            filled = F.pad(grads, (0, -columns % self.blocks, 0, -rows % self.blocks))
            cut = filled.unflatten(2, (-1, self.blocks)).unflatten(1, (-1, self.blocks)).transpose(2, 3)
            return self._precondition(state, cut).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :rows, :columns]
        return self._precondition(state, grads)

    def _precondition(self, state: dict[str, Any], grads: Tensor) -> Tensor:
        for side, square in (("left", grads @ grads.mT), ("right", grads.mT @ grads)):
            state[side] = state[side] + square if side in state else square
        return _compute_root(state["left"]) @ grads @ _compute_root(state["right"])


def _compute_root(squares: Tensor) -> Tensor:
    """Returns positive semidefinite matrices to the power -1/4. Directions in which a matrix is zero stay zero."""
    sizes, directions = torch.linalg.eigh(squares)
    nonzero = sizes > 1e-10 * sizes[..., -1:]
    powers = torch.where(nonzero, sizes, 1.0) ** -0.25 * nonzero
    root: Tensor = (directions * powers[..., None, :]) @ directions.mT
    return root


class JoinedOptimizers(torch.optim.Optimizer):
    """Several torch optimizers used as one, whose parameter groups are those of all."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for x in optimizers for group in x.param_groups], {})
        self.optimizers = optimizers

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates the parameters by a step of every member; ``closure`` is ignored."""
        for optimizer in self.optimizers:
            optimizer.step()


def list_optimizers(optimizer: torch.optim.Optimizer) -> Sequence[torch.optim.Optimizer]:
    """Returns the members of an optimizer if it is a ``JoinedOptimizers``, otherwise a list of the optimizer itself."""
    return optimizer.optimizers if isinstance(optimizer, JoinedOptimizers) else [optimizer]


PUBLIC = "pytorch_optimizer"
"""A package whose optimizers can be named as those of torch can."""
OWN = {cls.__name__: cls for cls in (Lion, SignSGD, Muon, NorMuon, Shampoo, AdamH, MuonH)}
"""Optimizers that torch lacks, or that it has for single matrices only."""

Group = tuple[Optimizer, Mapping[str, object]]
"""The rule of a tensor, and its parameter group."""


@lru_cache
def find_stepper(rule: Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """Returns the torch class that does the steps of an optimizer, after it has done a trial step on a small tensor.

    Raises:
        UsageError: there is no such class, one of the optimizer's options is set for every tensor separately, or the
            trial step fails or gives weights that are not finite.
    """
    if rule.untrained:
        raise UsageError(rule.untrained)
    what, (file, _, name) = f"{rule.torch}, which {rule.name} steps with,", rule.torch.rpartition(":")
    place: Any = import_python(file) if file.endswith(".py") else torch.optim
    if file == PUBLIC:
        try:
            place = import_module(PUBLIC)
        except ModuleNotFoundError:
            raise missing_package_error(f"training with {rule.name}", PUBLIC, "verify") from None
    found: Any = OWN.get(rule.torch) or getattr(place, name, None)
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise UsageError(f"{what} is not an optimizer; name a class of torch.optim, or FILE.py:Class")
    cls: Callable[..., torch.optim.Optimizer] = found
    stacks = rule.normalises == "matrix" or rule.blocks or rule.keeps_norm
    sides = {"shape": rule.shape, **({"blocks": rule.blocks} if rule.blocks else {})} if stacks else {}
    cls = partial(cls, **sides) if sides else cls
    weight = nn.Parameter(torch.ones(1, 2, 2, device="cpu"))
    weight.grad = torch.ones_like(weight)
    numbers = build_group(
        rule, weight, 0.1, 1e-8, 0.0, **({"fold": Fold((0,), (1,), (2,))} if rule.acts_on_matrices else {})
    )[1]
    if taken := [x for x in rule.options if x in numbers or x in sides]:
        raise UsageError(f"{taken[0]} in the options of {rule.name} is set separately for every tensor; leave it out")
    with guard_foreign_code(what):
        cls([dict(numbers)], **rule.options).step()
    if not weight.isfinite().all():
        raise UsageError(
            f"a trial step of {what} gives weights that are not finite; change its options {quote_value(rule.options)}"
        )
    return cls if rule.keeps_norm or not rule.constraint else _add_constraint(cls, rule.constraint)


def _add_constraint(cls: Callable[..., torch.optim.Optimizer], constraint: str) -> Callable[..., torch.optim.Optimizer]:
    @wraps(cls, assigned=())
    def build_constrained(params: Any, **options: Any) -> torch.optim.Optimizer:
        return Constrained(cls(params, **options), constraint)

    return build_constrained


def build_group(
    rule: Optimizer, parameter: nn.Parameter, lr: float, eps: float, lr_times_decay: float, **options: object
) -> Group:
    """Returns the parameter group of one parameter for its optimizer.

    Args:
        rule: the optimizer; only if it has an epsilon or a weight decay does the group get one.
        parameter: the parameter.
        lr: learning rate.
        eps: epsilon.
        lr_times_decay: product of learning rate and weight decay.
        options: further entries of the group.
    """
    numbers: dict[str, object] = {"params": [parameter], "lr": lr, **options}
    if rule.epsilon:
        numbers["eps"] = eps
    if rule.negligible:
        numbers["eps"] = NEGLIGIBLE
    if rule.decoupled_decay:
        numbers["weight_decay"] = lr_times_decay / lr
    return rule, numbers


def build_optimizer(groups: Sequence[Group], **options: object) -> torch.optim.Optimizer:
    """Returns one torch optimizer for all parameter groups, each of which may have another rule.

    Args:
        groups: pairs (optimizer rule, parameter group).
        options: options such as ``betas``, given to each torch class that accepts them.

    Raises:
        UsageError: there is no torch class for a rule.
    """
    parts = []
    for rule in dict.fromkeys(rule for rule, _ in groups):
        cls = find_stepper(rule)
        taken = {k: v for k, v in options.items() if k in inspect.signature(cls).parameters}
        parts.append(cls([dict(numbers) for of, numbers in groups if of == rule], **{**rule.options, **taken}))
    return parts[0] if len(parts) == 1 else JoinedOptimizers(parts)


def format_class_name(trained: OptimizerSpec) -> str:
    """Returns the name of an optimizer for reports, such as ``torch.optim.Adam, epsilon negligible``."""
    names = []
    for rule in trained.rules:
        where = "scalecalc." if rule.torch in OWN and not hasattr(torch.optim, rule.torch) else "torch.optim."
        where = "" if {".", ":"} & {*rule.torch} else where
        names.append(
            where + rule.torch.replace(f"{PUBLIC}:", f"{PUBLIC}.") + (", epsilon negligible" if rule.negligible else "")
        )
    named = isinstance(trained, Optimizers) or ":" in trained.name
    return " and ".join(names) + (f" ({trained.name})" if named else "")
