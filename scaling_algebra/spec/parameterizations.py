"""What a derivation returns and an engineer sets: init std, learning rate, epsilon and aggregation of every tensor.

Read next: ``solver.py`` (derives them from desiderata), ``verify`` (trains with them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.packing import Form
from scaling_algebra.dynamics.trajectory import Point

from .axes import AXES, Ray
from .networks.language import Program
from .powers import Power


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

    def unknown(self, name: str) -> Power:
        """The power of the axes whose exponent is an unknown: 1/sigma, 1/lr, 1/eps of a tensor, or alpha."""
        letter, _, role = name.partition(".")
        if letter == "alpha":
            return self.alpha
        s = self.tensors[role]
        return -({"b": s.init_std, "c": s.lr, "d": s.eps}[letter] or Power())

    def size(self, form: Form) -> Power:
        """The power of the axes behind a form, its unknowns replaced by this parameterization."""
        return sum((self.unknown(name) * count for name, count in form.unknowns), form.power)

    def point(self, ray: Ray) -> Point:
        """The exponents b, c, d, alpha of n on a ray."""
        b = {role: None if s.init_std is None else -s.init_std.on(ray) for role, s in self.tensors.items()}
        c = {role: -s.lr.on(ray) for role, s in self.tensors.items()}
        d = {role: Fraction(0) if s.eps is None else -s.eps.on(ray) for role, s in self.tensors.items()}
        return Point(b, c, d, self.alpha.on(ray), frozenset(self.tied))


@dataclass(frozen=True)
class Abc:
    """A tensor in the multiplier gauge: forward multiplier, init std and learning rate as powers of the axes.

    The same network without multipliers has init std ``multiplier * init_std`` and learning rate
    ``multiplier^2 * lr`` (SGD) or ``multiplier * lr`` (Adam, whose step does not shrink with the gradient).
    Source: MSSP paper, App. G; Yang and Hu (2021), abc-parameterizations.
    """

    multiplier: Power
    init_std: Power
    lr: Power

    def free(self, normalises: bool) -> TensorScaling:
        """The same tensor without a multiplier."""
        factors = 1 if normalises else 2
        return TensorScaling(self.multiplier + self.init_std, self.multiplier * factors + self.lr, Power())


def _fan_in(program: Program, role: str, power: Fraction) -> Power:
    axes = [program.axes[x] for x in program.tensors[role].fan_in]
    return Power.of({axis: power for axis in axes if axis in AXES})


def _output_like(program: Program, role: str) -> bool:
    return not program.tensors[role].fan_out


def sp(program: Program, role: str) -> Abc:
    """Standard parameterization: no multiplier, init std 1/sqrt(fan_in), one learning rate."""
    return Abc(Power(), _fan_in(program, role, Fraction(-1, 2)), Power())


def ntp(program: Program, role: str) -> Abc:
    """Neural tangent parameterization: multiplier 1/sqrt(fan_in), unit init, one learning rate."""
    return Abc(_fan_in(program, role, Fraction(-1, 2)), Power(), Power())


def mean_field(program: Program, role: str) -> Abc:
    """Mean-field parameterization: as NTP, but multiplier 1/fan_in in the output layer and one learning rate N."""
    power = Fraction(-1) if _output_like(program, role) else Fraction(-1, 2)
    return Abc(_fan_in(program, role, power), Power(), Power.of({"N": 1}))


STANDARD: dict[str, Callable[[Program, str], Abc]] = {"sp": sp, "ntp": ntp, "mean-field": mean_field}
"""Parameterizations that are defined, not derived. Source: MSSP paper, App. G (Table G.1, multiplier version)."""


def standard(program: Program, name: str = "sp", normalises: bool = False) -> Scaling:
    """A defined parameterization in the multiplier-free gauge, one global epsilon, mean over the experts."""
    tensors = {role: STANDARD[name](program, role).free(normalises) for role in program.tensors}
    return Scaling(tensors, Power.of({"M": 1}))
