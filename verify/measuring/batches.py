"""The training loop ``descend``, shared by all networks that train several replicas at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def descend(optimizer: torch.optim.Optimizer, losses: Callable[[int], Tensor], steps: int) -> Iterator[Tensor]:
    """Trains all replicas, and yields after every step the loss that each had before this step, (S,).

    Args:
        optimizer: optimizer of the parameters of all replicas.
        losses: maps the number of a step to the loss of each of the S replicas, (S,).
        steps: number of steps.
    """
    for step in range(steps):
        loss = losses(step)
        optimizer.zero_grad()
        loss.sum().backward()  # replicas do not interact, so a sum trains each of them independently
        optimizer.step()
        yield loss.detach()
