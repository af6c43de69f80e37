"""Networks whose tensors are set by a derivation, relative to a base size.

At the base size every parameterization has the same natural init stds (fan_in^-1/2) and learning rates; at another size
each is multiplied by its derived power of (size / base size), axis by axis; ``Multipliers`` are the same at every size.
Source: base shapes as in Yang et al. (2022); MSSP paper, App. B and P.
Every parameter has a leading replica dimension (one replica per seed), as in ``replicas.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import generators

from .replicas import fill
from .scales import AXES, Dims
from .scales import TRANSFORMER_EPS as EPS
from .steppers import Group, assembled, group


@dataclass(frozen=True)
class Multipliers:
    """Constants of every size; they change no exponent (MSSP paper, App. Q.6).

    Attributes:
        init: of every init std. epsilon: of every epsilon.
        alpha: of the sum over experts.
    """

    init: float = 1.0
    alpha: float = 1.0
    epsilon: float = 1.0


@dataclass(frozen=True)
class BaseShapes:
    """The scaling of a network: powers of the axes for every role, the base size, and constants.

    Attributes:
        configuration: what the powers were derived for.
        scaling: powers by role, ``tied`` roles and aggregation; roles as in the MoE block, ``hidden`` for attention.
        base: N, N_e, M and K at which all multipliers are 1.
        along: the axis whose values are called widths.
    """

    configuration: Configuration
    scaling: Scaling
    base: Dims
    multipliers: Multipliers = field(default_factory=Multipliers)
    along: str = "N"

    @property
    def name(self) -> str:
        """The parameterization."""
        return self.configuration.parameterization.name

    def factor(self, power: Power, dims: Dims) -> float:
        """The power at these dimensions over its value at the base size."""
        return power.ratio(self.base, dims)

    def dims(self, width: int) -> dict[str, int]:
        """N, N_e, M, K on the ray through the base size at which the axis ``along`` is ``width``.

        Raises:
            UsageError: K above M, or an axis below 1.
        """
        n, ray = width / self.base[self.along], self.configuration.ray
        dims = {a: round(size * n ** float(ray[a] / ray[self.along])) for a, size in self.base.items()}
        if min(dims.values()) < 1 or dims["K"] > dims["M"]:
            raise UsageError(f"at {self.along}={width} the ray gives {dims}; give larger widths or a larger base size")
        return dims


def recipe(
    configuration: Configuration, base: Dims, transformer: bool, readout: str = "zero", along: str = "N"
) -> BaseShapes:
    """The derived powers of every role. The readout starts at zero (MSSP paper, App. P), or as ``readout`` says.

    In a transformer the roles outside the MoE layers (``input``, ``hidden``, ``readout``) have the powers of the dense
    MLP: muP for muP and MSSP, which differ inside the MoE layers only, and the same rule for SP and the like.

    Raises:
        UsageError: an optimizer that cannot be trained, or a ray on which the axis ``along`` (of a
            transformer N, too) does not grow.
        Infeasible: as ``derive``.
    """
    configuration = configuration.but(readout_init=readout)
    rule, ray = configuration.parameterization, configuration.ray
    if fixed := next((axis for axis in (along, *(["N"] if transformer else [])) if not ray[axis]), None):
        raise UsageError(
            f"widths are values of {along}, but {fixed} does not grow on the ray {ray}; give another ray or --along"
        )
    for stepped in configuration.optimizer.rules:
        if stepped.untrained or stepped.folded:
            raise UsageError(stepped.whole)
    d = derive(configuration)
    tensors = d.scaling.tensors
    if transformer:
        dense = configuration.but(network="mlp", parameterization="mup" if rule.derived else rule)
        tensors = {**tensors, **derive(dense).scaling.tensors}
    scaling = Scaling(tensors, d.scaling.multipliers, d.scaling.tied)
    return BaseShapes(configuration, scaling, {axis: base[axis] for axis in AXES}, along=along)


class LayerSignals(NamedTuple):
    """The signals of one MoE layer: psi and gates (S,P,M), h2 before its nonlinearity (S,P,M,N_e), h3 (S,P,N)."""

    x: Tensor
    psi: Tensor
    gates: Tensor
    h2: Tensor
    h3: Tensor


class Scaled(nn.Module):
    """A network of scaled tensors: draws them, and hands them to a real ``torch.optim`` optimizer.

    Args:
        seeds: one replica is drawn per entry (S of them).

    Attributes:
        weights: parameters by name, shape (S, ...). roles: their roles, by the same names.
        multiplier: of the aggregation.
    """

    def __init__(self, recipe: BaseShapes, dims: Dims, seeds: Sequence[int], device: str) -> None:
        super().__init__()
        self.recipe, self.sizes, self.device = recipe, dict(dims), device
        self.weights = nn.ParameterDict()
        self.roles: dict[str, str] = {}
        self.generators = generators(seeds, device)
        mean = 1 / recipe.base["K"]
        self.multiplier = recipe.multipliers.alpha * mean * recipe.factor(1 / recipe.scaling.alpha, dims)

    def draw(self, name: str, role: str, shape: Sequence[int], fan_in: int, experts: bool = False) -> None:
        """Adds a parameter of shape (S, *shape), with std fan_in^-1/2 at the base size.

        Args:
            fan_in: at the base size.
            experts: the first dimension is the expert index, which tied roles share at init.
        """
        scale, recipe = self.recipe.scaling.tensors[role], self.recipe
        weight = torch.zeros(len(self.generators), *shape, device=self.device)
        if scale.init_std is not None:
            drawn = [1, *shape[1:]] if experts and role in recipe.scaling.tied else list(shape)
            fill(weight, drawn, self.generators)
            weight *= recipe.multipliers.init * fan_in**-0.5 * recipe.factor(scale.init_std, self.sizes)
        self.weights[name] = nn.Parameter(weight)
        self.roles[name] = role

    def draw_moe(self, suffix: str = "") -> None:
        """Adds router (S,M,N), expert_in (S,M,N_e,N) and expert_out (S,M,N_e,N), stored by columns.

        Raises:
            UsageError: K < M with a router that starts at zero, whose logits all tie (MSSP paper, Table B.2, note).
        """
        n, n_e, m, k = (self.sizes[axis] for axis in AXES)
        if self.recipe.scaling.tensors["router"].init_std is None and k < m:
            raise UsageError(
                f"{self.recipe.name} starts the router at zero, so top-K cannot choose {k} of {m} experts; take "
                f"another parameterization, or a base size with K = M (transfer --base M={m},K={m})"
            )
        self.draw(f"router{suffix}", "router", (m, n), self.recipe.base["N"])
        self.draw(f"expert_in{suffix}", "expert_in", (m, n_e, n), self.recipe.base["N"], experts=True)
        self.draw(f"expert_out{suffix}", "expert_out", (m, n_e, n), self.recipe.base["N_e"], experts=True)

    def moe(self, x: Tensor, suffix: str = "", mask: Tensor | None = None) -> LayerSignals:
        """Token-choice top-K: h3 = multiplier * sum over the K chosen experts of phi_i W3_i gelu(W2_i x), (S,P,N).

        phi = sigmoid(Q x); K is at M for soft routing. Every expert is computed for every token, and masked.

        Args:
            mask: (S,P,M) of zeros and ones instead of the choice of the K largest logits.
        """
        w = self.weights
        psi = x @ w[f"router{suffix}"].mT
        if mask is None:
            mask = chosen(psi, self.sizes["K"])
        gates = psi.sigmoid() * mask
        h2 = (x @ w[f"expert_in{suffix}"].flatten(1, 2).mT).unflatten(-1, (self.sizes["M"], -1))
        h3 = self.multiplier * ((gates[..., None] * F.gelu(h2)).flatten(-2) @ w[f"expert_out{suffix}"].flatten(1, 2))
        return LayerSignals(x, psi, gates, h2, h3)

    def optimizer(self, lr: float, decay: float = 0.0, **options: object) -> torch.optim.Optimizer:
        """The real ``torch.optim`` optimizer, one group per parameter with its own lr, epsilon and weight decay.

        Args:
            lr: global learning rate; a role's own is lr * its derived power.
            decay: torch's weight decay at multiplier 1; decoupled decay shrinks every tensor by ``lr * decay`` per
                step, the same at every size (MSSP paper, Table B.2).
            options: passed on where the optimizer takes them, such as ``betas``.
        """
        trained, groups = self.recipe.configuration.optimizer, list[Group]()
        for name, parameter in self.weights.items():
            role = self.roles[name]
            scale, rule = self.recipe.scaling.tensors[role], trained.of(role)
            rate = lr * self.recipe.factor(scale.lr or Power(), self.sizes)
            eps = EPS * self.recipe.multipliers.epsilon * self.recipe.factor(scale.eps or Power(), self.sizes)
            groups.append(group(rule, parameter, rate, eps, decay * lr))
        return assembled(groups, **options)

    def count(self) -> int:
        """Parameters of one replica."""
        return sum(p[0].numel() for p in self.parameters())


class MLPMoE(Scaled):
    """x -> gelu(W1 x) -> MoE -> W4 (MSSP paper, App. P.1), no normalisation and no residual connection.

    Args:
        inputs, classes: sizes of data and logits, the same at every size.
    """

    def __init__(
        self, recipe: BaseShapes, dims: Dims, seeds: Sequence[int], device: str, *, inputs: int, classes: int
    ) -> None:
        super().__init__(recipe, dims, seeds, device)
        self.draw("input", "input", (dims["N"], inputs), inputs)
        self.draw_moe()
        self.draw("readout", "readout", (classes, dims["N"]), recipe.base["N"])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (S,B,classes) of inputs (S,B,inputs), and the auxiliary loss (S,), which is zero here."""
        layer = self.moe(F.gelu(x @ self.weights["input"].mT))
        logits = layer.h3 @ self.weights["readout"].mT
        return logits, logits.new_zeros(len(logits))


def chosen(psi: Tensor, active: int) -> Tensor:
    """Mask of the ``active`` largest logits of every token, (S,P,M) of zeros and ones; no gradient passes."""
    if active >= psi.shape[-1]:
        return torch.ones_like(psi)
    return torch.zeros_like(psi).scatter(-1, psi.detach().topk(active, -1).indices, 1.0)


def balance(psi: Tensor, mask: Tensor) -> Tensor:
    """Load-balancing loss M sum_i f_i P_i of every replica, (S,); 1 at perfect balance.

    f_i: share of the routed pairs that go to expert i; P_i: mean over tokens of phi_i / sum_j phi_j.
    Source: Fedus et al. (2022), with normalised sigmoid scores for the softmax.
    """
    share = mask.sum(-2) / mask.sum((-2, -1))[..., None]
    scores = psi.sigmoid()
    mean = (scores / scores.sum(-1, keepdim=True)).mean(-2)
    result: Tensor = psi.shape[-1] * (share * mean).sum(-1)
    return result
