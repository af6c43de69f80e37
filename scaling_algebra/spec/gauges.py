"""Gauges: the same parameterization with other multipliers on its tensors, as the tables of Tensor Programs V have it.

Adding one: one more entry in ``GAUGES``. Read next: ``scaling_algebra/solver/derivation.py`` (``Derivation.in_gauge``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from .axes import Ray
from .networks.language import Network, Tensor
from .optimizers import Optimizer, Trained
from .powers import Power
from .scaling import TensorScaling


def moved(optimizer: Optimizer, zero: bool = False) -> dict[str, int]:
    """The powers of m that turn the numbers of w into those of W = m w: ``{"init_std": 1, "lr": 2, ...}`` for SGD.

    Law: the gradient of w is m times that of W, and a change of w changes W by m times as much; a step that is
    normalised does not shrink with the gradient, a relative one grows with w. ``lr * decay`` is kept.
    Source: Yang et al. (2022), Lemma J.1; Yang and Hu (2021), abc-parameterizations.

    Args:
        zero: w starts at zero, where a relative step is relative to a constant.
    """
    rate = int(zero) if optimizer.relative else 1 if optimizer.normalises else 2
    return {"init_std": 1, "lr": rate, "eps": -1, "decay": -rate}


def regauged(t: TensorScaling, multiplier: Power, optimizer: Optimizer) -> TensorScaling:
    """The same tensor W = multiplier * w with another multiplier. Training is the same, by ``moved``."""
    m, powers = multiplier / t.multiplier, moved(optimizer, t.init_std is None)
    now = {x: None if (old := getattr(t, x)) is None else old / m ** powers[x] for x in ("init_std", "lr", "eps")}
    return TensorScaling(**now, multiplier=multiplier)


@dataclass(frozen=True)
class Gauge:
    """Multipliers of vector-like tensors, those that have one growing dimension; all others have none.

    Attributes:
        name, about: for the command line and for reports.
        output: power of the fan-in in the multiplier of a tensor that maps a growing dimension to a fixed one.
        input: power of the fan-out in the multiplier of a tensor that maps a fixed dimension to a growing one.
    """

    name: str
    about: str
    output: Fraction = Fraction(0)
    input: Fraction = Fraction(0)

    def multiplier(self, network: Network, tensor: Tensor, ray: Ray) -> Power:
        """The multiplier of one tensor. The copies for each expert count as a dimension; layers do not."""
        letters = [x for x in tensor.letters if network.axes[x] != "L"]
        read = network.size(x for x in letters if x in tensor.fan_in)
        produced = network.size(x for x in letters if x not in tensor.fan_in and x != tensor.experts)
        experts = network.size(x for x in letters if x == tensor.experts)
        if sum(size.on(ray) > 0 for size in (read, produced, experts)) != 1:
            return Power()
        return read**self.output if read.on(ray) else produced**self.input

    def tensors(
        self, tensors: Mapping[str, TensorScaling], network: Network, ray: Ray, optimizer: Trained
    ) -> dict[str, TensorScaling]:
        """All tensors of a network in this gauge. A multiplier that the module has (``Network.multiplied``) is in the
        numbers of its tensor; ``multiplier`` is what is left to multiply by."""
        found = {}
        for role, t in tensors.items():
            own = Power.of({axis: e for axis, e in network.multiplied.get(role, Power()).terms if ray[axis]})
            gauge = self.multiplier(network, network.tensors[role], ray)
            whole = gauge if gauge.terms else own
            found[role] = replace(regauged(t, whole, optimizer.of(role)), multiplier=whole / own)
        return found


OWN = "table3"
"""The gauge of every derivation."""
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
