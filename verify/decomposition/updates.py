"""Trained weights as initial values plus updates.

Read next: ``parts.py`` and ``gradients.py`` (apply weights at every step), ``moments.py`` (makes them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Mode
from scaling_algebra.spec.optimizers import Optimizer, Trained
from scaling_algebra.verify.networks.steppers import shrinkage


@dataclass(frozen=True)
class TrainedWeight:
    """A weight after some updates.

    Attributes:
        letters: index letters.
        now: W_t, shape (S, *letters).
        start: W_0, decayed as the optimizer decays it.
        moved: has there been an update?
    """

    letters: str
    now: Tensor
    start: Tensor
    moved: bool = True

    @cached_property
    def update(self) -> Tensor:
        """dW, (S, *letters)."""
        return self.now - self.start

    def seen(self, cut: Callable[[str, Tensor], Tensor]) -> TrainedWeight:
        """Some entries, which ``cut`` takes of a tensor with these index letters."""
        return TrainedWeight(self.letters, cut(self.letters, self.now), cut(self.letters, self.start), self.moved)

    def part(self, mode: Mode | None) -> Tensor:
        """W_0, the update, or the whole, (S, *letters)."""
        return self.now if mode is None else self.start if mode == "init" else self.update


def linear(trained: Trained) -> bool:
    """Is every update a sum of past gradients with fixed coefficients, by one optimizer?"""
    return isinstance(trained, Optimizer) and not trained.normalises and not trained.decoupled_decay


class Coefficients:
    """The coefficient of each past gradient of a tensor in its update by a linear optimizer.

    They come from the optimizer itself: one more copy of it steps a vector with one entry for each past gradient, whose
    gradient at step s is the s-th unit vector. Nothing here knows the rule of the optimizer.

    Args:
        stepper: the optimizer, with the ``symbol`` of a tensor in every group.
        steps: number of updates to come.
    """

    def __init__(self, stepper: torch.optim.Optimizer, steps: int) -> None:
        groups = [{**group, "params": [group["params"][0].new_zeros(steps)]} for group in stepper.param_groups]
        again: Callable[..., torch.optim.Optimizer] = type(stepper)
        self._stepper, self._done = again(groups), 0

    def step(self) -> None:
        """After one update."""
        for group in self._stepper.param_groups:
            (unit,) = group["params"]
            unit.grad = torch.zeros_like(unit)
            unit.grad[self._done] = 1
        self._stepper.step()
        self._done += 1

    def of(self, symbol: str) -> Tensor:
        """The coefficients of a tensor, (updates done,)."""
        group = next(g for g in self._stepper.param_groups if g["symbol"] == symbol)
        coefficients: Tensor = group["params"][0][: self._done]
        return coefficients


class Updates:
    """The weights of a network, and their initial values.

    Decoupled decay, and the way back to a sphere, move initial values exactly as the optimizer moves the weights.

    Args:
        letters, weights: by role.
        stepper: their optimizer, with the role as ``symbol`` in every group.
        steps: number of updates to come.
        keep: may earlier weights be read later on? That takes a copy of them for each step.
    """

    def __init__(
        self,
        letters: Mapping[str, str],
        trained: Trained,
        weights: Mapping[str, Tensor],
        stepper: torch.optim.Optimizer,
        steps: int,
        keep: bool = False,
    ) -> None:
        self._letters, self._weights, self._stepper, self._keep = letters, weights, stepper, keep
        self.coefficients = Coefficients(stepper, steps) if linear(trained) else None
        self._start: dict[str, Tensor] = {}

    def step(self) -> None:
        """One update of the weights, by the gradients that they have."""
        if not self._start:
            trained = [group["symbol"] for group in self._stepper.param_groups]
            self._start = {role: self._weights[role].detach().clone() for role in trained}
        self._stepper.step()
        self._start = dict(self._start)  # moments keep the earlier ones
        for group in self._stepper.param_groups:
            if group.get("weight_decay") or "kept" in group:
                role, decay = group["symbol"], shrinkage(group)
                self._start[role] = self._start[role] * decay if self._keep else self._start[role].mul_(decay)
        if self.coefficients is not None:
            self.coefficients.step()

    def now(self) -> dict[str, TrainedWeight]:
        """Every weight as it is now."""
        return {role: self._weight(role, w.detach()) for role, w in self._weights.items()}

    def _weight(self, role: str, w: Tensor) -> TrainedWeight:
        now = w.clone() if self._keep else w
        return TrainedWeight(self._letters[role], now, self._start.get(role, now), role in self._start)
