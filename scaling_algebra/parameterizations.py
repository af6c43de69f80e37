"""What a derivation returns and an engineer sets: init std, learning rate, epsilon and aggregation of every tensor.

Read next: ``solver.py`` (derives them from desiderata), ``verify`` (trains with them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .axes import Ray
from .exponents import Power
from .programs import Program
from .training import Point


@dataclass(frozen=True)
class TensorScaling:
    """Powers of the axes for one tensor.

    Attributes:
        init_std: standard deviation of the initial entries; None is zero init.
        lr: learning rate.
        eps: Adam epsilon; None when the optimizer has none.
    """

    init_std: Power | None
    lr: Power
    eps: Power | None = None


@dataclass(frozen=True)
class Scaling:
    """A complete parameterization.

    Attributes:
        tensors: scaling by role.
        alpha: the aggregation multiplier is ``1 / alpha``, e.g. alpha = M.
        tied: roles whose initial values all experts share.
    """

    tensors: Mapping[str, TensorScaling]
    alpha: Power
    tied: tuple[str, ...] = ()

    def point(self, ray: Ray) -> Point:
        """The exponents b, c, d, alpha of n on a ray."""
        b = {role: None if s.init_std is None else -s.init_std.on(ray) for role, s in self.tensors.items()}
        c = {role: -s.lr.on(ray) for role, s in self.tensors.items()}
        d = {role: Fraction(0) if s.eps is None else -s.eps.on(ray) for role, s in self.tensors.items()}
        return Point(b, c, d, self.alpha.on(ray), frozenset(self.tied))


def standard(program: Program) -> Scaling:
    """Standard parameterization: init std 1/sqrt(fan_in), one global learning rate and epsilon, mean over experts.

    Source: MSSP paper, App. G (Table G.1, row SP, c = 0).
    """
    tensors = {}
    for role, tensor in program.tensors.items():
        fan_in = {axis: Fraction(-1, 2) for x in tensor.fan_in if (axis := program.axes[x]) != "D"}
        tensors[role] = TensorScaling(Power.of(fan_in), Power(), Power())
    return Scaling(tensors, Power.of({"M": 1}))
