"""Gauges: the same parameterization with other multipliers on its tensors, as in the tables of Tensor Programs V.

Adding one: one more entry in ``GAUGES``. Read next: ``scaling_algebra/solver/derivation.py`` (``Derivation.in_gauge``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from .axes import Ray
from .networks.language import Network, Tensor
from .optimizers import Optimizer, OptimizerSpec
from .powers import Power
from .scaling import TensorScaling


def gauge_powers(optimizer: Optimizer, zero: bool = False) -> dict[str, int]:
    """Returns the powers of m that convert the settings of a tensor w to those of W = m w, where the number m is a
    multiplier.

    Example: ``{"init_std": 1, "lr": 2, "eps": -1, "decay": -2}`` for SGD: the learning rate of W is m^2 times that of
    w.

    Law: the gradient of w is m times that of W, and a change of w changes W by m times as much. So the power of the
    learning rate is 2 for SGD, 1 if the optimizer normalises the gradient, and 0 if steps are relative to the size of
    w. The product of learning rate and weight decay is unchanged.
    Source: Yang et al. (2022), Lemma J.1; Yang and Hu (2021), abc-parameterizations.

    Args:
        optimizer: the update rule of the tensor.
        zero: True if w starts at zero; a step relative to the size of w is then relative to a constant.
    """
    rate = int(zero) if optimizer.relative else 1 if optimizer.normalises else 2
    return {"init_std": 1, "lr": rate, "eps": -1, "decay": -rate}


def change_multiplier(t: TensorScaling, multiplier: Power, optimizer: Optimizer) -> TensorScaling:
    """Returns the settings of a tensor W = multiplier * w with another multiplier, under which W trains the same.

    Args:
        t: settings with the present multiplier.
        multiplier: the new multiplier.
        optimizer: the update rule of the tensor.
    """
    m, powers = multiplier / t.multiplier, gauge_powers(optimizer, t.init_std is None)
    now = {x: None if (old := getattr(t, x)) is None else old / m ** powers[x] for x in ("init_std", "lr", "eps")}
    return TensorScaling(**now, multiplier=multiplier)


@dataclass(frozen=True)
class Gauge:
    """A convention for the multipliers of vector-like tensors, those with exactly one growing dimension. All other
    tensors have the multiplier 1.

    Attributes:
        name: its name on the command line.
        about: one line for reports.
        output: power of the fan-in in the multiplier of a tensor that maps a growing dimension to a fixed one.
        input: power of the fan-out in the multiplier of a tensor that maps a fixed dimension to a growing one.
    """

    name: str
    about: str
    output: Fraction = Fraction(0)
    input: Fraction = Fraction(0)

    def multiplier(self, network: Network, tensor: Tensor, ray: Ray) -> Power:
        """Returns the multiplier of one tensor on a ray.

        The number of experts counts as a dimension of the tensor, the number of layers does not.
        """
        indices = [x for x in tensor.indices if network.axes[x] != "L"]
        read = network.size(x for x in indices if x in tensor.fan_in)
        produced = network.size(x for x in indices if x not in tensor.fan_in and x != tensor.experts)
        experts = network.size(x for x in indices if x == tensor.experts)
        if sum(size.on(ray) > 0 for size in (read, produced, experts)) != 1:
            return Power()
        return read**self.output if read.on(ray) else produced**self.input

    def tensors(
        self, tensors: Mapping[str, TensorScaling], network: Network, ray: Ray, optimizer: OptimizerSpec
    ) -> dict[str, TensorScaling]:
        """Converts the settings of all tensors to this gauge.

        If the module itself multiplies a tensor (``Network.multiplied``), the new settings account for it, and
        ``multiplier`` is the factor that remains to be applied.
        """
        found = {}
        for role, t in tensors.items():
            own = Power.of({axis: e for axis, e in network.multiplied.get(role, Power()).terms if ray[axis]})
            gauge = self.multiplier(network, network.tensors[role], ray)
            whole = gauge if gauge.terms else own
            found[role] = replace(change_multiplier(t, whole, optimizer.of(role)), multiplier=whole / own)
        return found


OWN = "table3"
"""The gauge in which exponents are derived."""
GAUGES: dict[str, Gauge] = {
    g.name: g
    for g in (
        Gauge(OWN, "no multipliers (Tensor Programs V, Table 3)"),
        Gauge("table8", "readouts multiplied by 1/fan_in, as in mup (Tensor Programs V, Table 8)", output=Fraction(-1)),
        Gauge(
            "table9",
            "readouts multiplied by fan_in^(-1/2), inputs by fan_out^(1/2) (Tensor Programs V, Table 9)",
            output=Fraction(-1, 2),
            input=Fraction(1, 2),
        ),
    )
}
"""Every gauge, by name. Source: Yang et al. (2022), Tables 3, 8 and 9."""
