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
    """The sum of all steps of an optimizer such as Adam, which normalises the gradient of each entry.

    It is computed by a real torch optimizer on a finite tensor, in which every growing index has one position for each
    of the points that represent it (see ``Points``).

    Law (OuterNonlin, a rule of Tensor Programs; Yang and Littwin 2023; routers paper, App. C.4): a step of an entry
    is a
    function of the gradients of this entry. Each gradient of a matrix is a sum of products: a random variable of the
    row
    times one of the column. When the matrix is applied to a vector, the sum over columns is an expectation, at every
    row.

    Attributes:
        rule: the optimizer.
        values: sum of the steps as a torch parameter, (*indices, points of every growing index).
        optimizer: the torch optimizer that steps ``values``.
        change: sum of the steps with its power of n, in the same shape.
        power: power of n of one step.
        level: power of n of that by which the gradient is divided: of epsilon, or, if there is none, of the first
            gradient (None before it).
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
        """Makes the empty sum, before the first step.

        Args:
            rule: the optimizer.
            zero: zeros in the shape of the tensor.
            rate: the learning rate as (number, power of n).
            epsilon: epsilon as (number, power of n); None if the tensor has none.
        """
        values = torch.nn.Parameter(torch.zeros(*zero.values.shape, dtype=torch.float64))
        eps, level = epsilon if rule.epsilon and epsilon else (0.0, None)
        return cls(rule, values, build_optimizer([build_group(rule, values, rate[0], eps, 0.0)]), zero, rate[1], level)

    def step(self, gradient: Leading, name: str) -> None:
        """Adds the step for a gradient.

        Args:
            gradient: the gradient of the tensor.
            name: name of the tensor in messages.

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
