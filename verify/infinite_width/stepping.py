"""Optimizer steps that are normalised entry by entry, in the limit of infinite width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.verify.networks.steppers import build_group, build_optimizer

from .contraction import NONE, Leading
from .vectors import NotCovered


@dataclass
class Stepped:
    """The sum of all steps of a torch optimizer at a tensor, given entry by entry: at points, or at pairs of points for
    a matrix.

    Law (OuterNonlin; Yang and Littwin 2023; routers paper, App. C.4): a step is a function of the gradients of one
    entry, sums of products of a function of the row and one of the column; on a vector it acts as the expectation over
    columns, at every row.

    Attributes:
        rule: the optimizer.
        values: sum of the steps as a torch parameter, (*indices, points of every growing index).
        optimizer: torch optimizer of the values.
        change: sum of the steps with its power of n, in the same shape.
        power: power of n of one step.
        level: power of n of epsilon, or of the gradients if there is no epsilon; None before the first gradient.
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
        """Makes the sum of no steps for a tensor with the shape of ``zero``, given the rate and epsilon as (number,
        power of n)."""
        values = torch.nn.Parameter(torch.zeros(*zero.values.shape, dtype=torch.float64))
        eps, level = epsilon if rule.epsilon and epsilon else (0.0, None)
        return cls(rule, values, build_optimizer([build_group(rule, values, rate[0], eps, 0.0)]), zero, rate[1], level)

    def step(self, gradient: Leading, name: str) -> None:
        """Adds one step.

        Raises:
            NotCovered: the normalised gradient has no limit.
        """
        rest = NONE
        if gradient.size > NONE / 2:  # else it is exactly zero
            level = self.level = gradient.power if self.level is None else self.level
            small = gradient.size < level and self.rule.epsilon
            if not small and gradient.rest >= min(level, gradient.power):
                raise NotCovered(
                    f"the gradient of {name} is a random sum of size n^{gradient.rest}, and the optimizer normalises "
                    "it: its limit is random"
                )
            if not small and gradient.power != level:
                raise NotCovered(f"the gradient of {name} is n^{gradient.power}, divided by what is n^{level}")
            rest = self.power + (gradient.size if small else gradient.rest) - level
        self.values.grad = torch.as_tensor(gradient.values * float(gradient.power == self.level))
        self.optimizer.step()
        values = self.values.detach().numpy().copy()
        power = self.power if values.any() else NONE
        self.change = replace(self.change, values=values, power=power, rest=max(self.change.rest, rest))
