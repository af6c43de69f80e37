"""The torch class behind an optimizer: that of ``torch.optim``, or one of these, which torch lacks.

Read next: ``moe_block.py`` and ``base_shapes.py`` (make one with a group per tensor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizers import Optimizer


class Lion(torch.optim.Optimizer):
    """Sign of a momentum.

    Law: w -= lr sign(b1 m + (1 - b1) g), then m = b2 m + (1 - b2) g. Source: Chen et al. (2023), Algorithm 2.
    """

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update; there is no closure."""
        for group in self.param_groups:
            now, later = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    past = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.add_(torch.lerp(p.grad, past, now).sign_(), alpha=-group["lr"])
                    past.lerp_(p.grad, 1 - later)


class SignSGD(Lion):
    """Sign of the gradient: w -= lr sign(g). Source: Bernstein et al. (2018)."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, lr, (0.0, 0.0))


OWN = {made.__name__: made for made in (Lion, SignSGD)}
"""Optimizers that torch lacks."""


def stepper(rule: Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """The class that steps by a rule.

    Raises:
        UsageError: there is none.
    """
    if rule.untrained:
        raise UsageError(rule.untrained)
    made: Callable[..., torch.optim.Optimizer] = OWN.get(rule.torch) or getattr(torch.optim, rule.torch)
    return made


def class_name(rule: Optimizer) -> str:
    """As reports name it, with its epsilon where that is negligible."""
    where = "scalecalc" if rule.torch in OWN else "torch.optim"
    return f"{where}.{rule.torch}" + (", epsilon negligible" if rule.negligible else "")
