"""Batches that networks learn from: handwritten digits, what a random network says, or the next byte of Python sources.

Batches depend on seed and step only, so they are the same at every size, learning rate and parameterization.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.errors import missing
from scaling_algebra.verify.networks.base_shapes import BaseShapes, MLPMoE, Scaled
from scaling_algebra.verify.networks.scales import Dims
from scaling_algebra.verify.networks.transformer import Transformer

from .text import VOCABULARY, standard_library, windows

Batch = tuple[Tensor, Tensor]
"""Inputs and targets; the leading dimension is the replica."""


CLASSES = 10
"""Of digits, and of the teacher's answers: the loss starts at log 10."""


@dataclass(frozen=True)
class Data:
    """Batches in memory, and the network that learns them.

    Attributes:
        build: the network of a recipe at some dimensions, one replica for each seed, on a device.
        batch: inputs and targets by seed and step; step None for the held-out batch.
        digest: tells data apart.
        settings: what the task was given.
    """

    build: Callable[[BaseShapes, Dims, Sequence[int], str], Scaled]
    batch: Callable[[int, int | None], tuple[np.ndarray, np.ndarray]]
    digest: str
    settings: Mapping[str, int] = field(default_factory=dict)

    def batches(self, seeds: Sequence[int], step: int | None, device: str) -> Batch:
        """One batch per replica, stacked."""
        drawn = [self.batch(seed, step) for seed in seeds]
        inputs, targets = (torch.from_numpy(np.stack(part)).to(device) for part in zip(*drawn, strict=True))
        return inputs, targets


def digits(batch: int) -> Data:
    """8x8 images of digits that ship with scikit-learn, standardised; one in five is held out.

    Raises:
        UsageError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise missing("digits", "scikit-learn", "verify") from None
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    held = np.arange(len(images)) % 5 == 4
    x, y = images[~held], labels[~held]

    def cut(seed: int, step: int | None) -> tuple[np.ndarray, np.ndarray]:
        if step is None:
            return images[held], labels[held]
        rows = np.random.default_rng([seed, step]).integers(0, len(x), batch)
        return x[rows], y[rows]

    return Data(partial(MLPMoE, inputs=x.shape[1], classes=CLASSES), cut, _digest(images))


def _digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()[:16]


HELD_OUT = 1024
"""Examples in the teacher's held-out batch."""


def teacher(batch: int, inputs: int, units: int) -> Data:
    """Gaussian inputs, never the same twice, and the class that a fixed random network of one hidden layer gives them.

    class = argmax(V tanh(U x)), x of ``inputs`` entries, U with rows of norm about 2, V Gaussian. A network that knew U
    and V would reach loss 0.
    """
    rng = np.random.default_rng([inputs, units])
    u, v = 2 * rng.standard_normal((inputs, units)) / inputs**0.5, rng.standard_normal((units, CLASSES))

    def cut(seed: int, step: int | None) -> tuple[np.ndarray, np.ndarray]:
        drawn = np.random.default_rng([1, seed, step] if step is not None else [0])
        x = drawn.standard_normal((HELD_OUT if step is None else batch, inputs))
        return x.astype(np.float32), (np.tanh(x @ u) @ v).argmax(axis=1)

    return Data(partial(MLPMoE, inputs=inputs, classes=CLASSES), cut, _digest(u, v))


def text(batch: int, context: int, blocks: int, head: int) -> Data:
    """Bytes of the Python standard library for a Transformer; the held-out batch is the same for every seed."""
    source = standard_library()

    def cut(seed: int, step: int | None) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, step] if step is not None else [0])
        held = step is None
        sequences = windows(source.held if held else source.train, 8 * batch if held else batch, context, rng)
        return sequences[:, :-1], sequences[:, 1:]

    build = partial(Transformer, vocabulary=VOCABULARY, context=context, blocks=blocks, head=head)
    return Data(build, cut, source.digest)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all but the replica dimension, nats, (S,): logits (S,...,classes), targets (S,...)."""
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)


def descend(
    optimizer: torch.optim.Optimizer, losses: Callable[[int], tuple[Tensor, Tensor | float]], steps: int
) -> Iterator[Tensor]:
    """Trains all replicas: yields after every step the loss (S,) before it.

    Args:
        losses: of a step, (S,), and what is added to it for the gradient alone.
    """
    for step in range(steps):
        loss, penalty = losses(step)
        optimizer.zero_grad()
        (loss + penalty).sum().backward()  # replicas do not meet: a sum trains each alone
        optimizer.step()
        yield loss.detach()
