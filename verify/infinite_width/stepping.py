"""Steps that are normalised entry by entry, in the limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.verify.networks.steppers import assembled, group

from .contraction import NONE, Leading
from .vectors import NotCovered


@dataclass
class Stepped:
    """What steps of a torch optimizer add to a tensor, entry by entry: by values at points, of pairs for a matrix.

    Law (OuterNonlin; Yang and Littwin 2023; routers paper, App. C.4): a step is a function of the gradients of one
    entry, sums of products of a function of the row and one of the column; on a vector it acts as the expectation over
    columns, at every row.

    Attributes:
        values: (*letters, points of every index that grows). optimizer: of the values.
        change: what the steps added so far, in the same shape. power: of n, of a step.
        level: power of n of epsilon, or of the gradients where there is none; None before the first one.
    """

    rule: Optimizer
    values: torch.nn.Parameter
    optimizer: torch.optim.Optimizer
    change: Leading
    power: Fraction
    level: Fraction | None

    @classmethod
    def of(
        cls, rule: Optimizer, zero: Leading, rate: tuple[float, Fraction], epsilon: tuple[float, Fraction] | None
    ) -> Stepped:
        """No steps yet of a tensor like ``zero``, with a rate and an epsilon as numbers and powers of n."""
        values = torch.nn.Parameter(torch.zeros(*zero.values.shape, dtype=torch.float64))
        eps, level = epsilon if rule.epsilon and epsilon else (0.0, None)
        return cls(rule, values, assembled([group(rule, values, rate[0], eps, 0.0)]), zero, rate[1], level)

    def step(self, gradient: Leading, name: str) -> None:
        """One step.

        Raises:
            NotCovered: a gradient that has no limit when it is normalised.
        """
        rest = NONE
        if gradient.size > NONE / 2:  # else it is exactly zero
            level = self.level = gradient.power if self.level is None else self.level
            small = gradient.size < level and self.rule.epsilon
            if not small and gradient.rest >= min(level, gradient.power):
                raise NotCovered(
                    f"the gradient of {name} is a random sum of size n^{gradient.rest}, which is normalised"
                )
            if not small and gradient.power != level:
                raise NotCovered(f"the gradient of {name} is n^{gradient.power}, divided by what is n^{level}")
            rest = self.power + (gradient.size if small else gradient.rest) - level
        self.values.grad = torch.as_tensor(gradient.values * float(gradient.power == self.level))
        self.optimizer.step()
        values = self.values.detach().numpy().copy()
        power = self.power if values.any() else NONE
        self.change = replace(self.change, values=values, power=power, rest=max(self.change.rest, rest))
