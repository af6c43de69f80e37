"""One loop of training for all networks with replicas: ``descend``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def descend(optimizer: torch.optim.Optimizer, losses: Callable[[int], Tensor], steps: int) -> Iterator[Tensor]:
    """Trains all replicas: yields after every step the loss (S,) before it.

    Args:
        losses: of a step, (S,).
    """
    for step in range(steps):
        loss = losses(step)
        optimizer.zero_grad()
        loss.sum().backward()  # replicas do not meet: a sum trains each alone
        optimizer.step()
        yield loss.detach()
