"""What the networks of ``scalecalc transfer`` learn: handwritten digits, or the next byte of Python sources.

Adding a task: one more entry in ``TASKS``. Batches depend on seed and step only, so they are the same at every size,
learning rate and parameterization.
Read next: ``sweep.py`` (trains on them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.measuring.text import VOCABULARY, standard_library, windows
from scaling_algebra.verify.networks.base_shapes import Dims, Recipe, Scaled
from scaling_algebra.verify.networks.mlp import MLPMoE
from scaling_algebra.verify.networks.transformer import Transformer

Batch = tuple[Tensor, Tensor]
"""Inputs and targets; the leading dimension is the replica."""


@dataclass(frozen=True)
class Task:
    """Data, network and schedule.

    Attributes:
        name, title: for the command line and reports.
        transformer: is the network one? (It has dense parts outside the MoE block.)
        base: default base size. widths: default values of N. grid: default log2 learning rates (first, last, spacing).
        steps: default number of updates.
        warmup: share of the steps with growing learning rate. final: learning rate at the end over its maximum
            (cosine in between; 1: constant).
        decay: weight decay, where the optimizer has a decoupled one.
        options: other options of the optimizer.
        prepare: loads the data; returns the network and ``batch(seed, step)``, step None for the held-out batch, and a
            digest of the data.
    """

    name: str
    title: str
    transformer: bool
    base: Dims
    widths: tuple[int, ...]
    grid: tuple[float, float, float]
    steps: int
    warmup: float
    final: float
    decay: float
    prepare: Callable[..., Prepared]
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """A task with its data in memory: see ``Task.prepare``."""

    build: Callable[[Recipe, Dims, Sequence[int], str], Scaled]
    batch: Callable[[int, int | None], tuple[np.ndarray, np.ndarray]]
    digest: str

    def batches(self, seeds: Sequence[int], step: int | None, device: str) -> Batch:
        """One batch per replica, stacked."""
        found = [self.batch(seed, step) for seed in seeds]
        inputs, targets = (torch.from_numpy(np.stack(part)).to(device) for part in zip(*found, strict=True))
        return inputs, targets


def digits(batch: int = 32) -> Prepared:
    """8x8 images of digits that ship with scikit-learn, standardised; one in five is held out.

    Raises:
        UsageError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UsageError("digits needs scikit-learn; install it with: pip install 'scalecalc[verify]'") from None
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    held = np.arange(len(images)) % 5 == 4
    x, y = images[~held], labels[~held]

    def cut(seed: int, step: int | None) -> tuple[np.ndarray, np.ndarray]:
        if step is None:
            return images[held], labels[held]
        rows = np.random.default_rng([seed, step]).integers(0, len(x), batch)
        return x[rows], y[rows]

    def build(recipe: Recipe, dims: Dims, seeds: Sequence[int], device: str) -> Scaled:
        return MLPMoE(recipe, dims, seeds, device, inputs=x.shape[1], classes=10)

    return Prepared(build, cut, hashlib.sha256(images.tobytes()).hexdigest()[:16])


def text(batch: int = 8, context: int = 64, blocks: int = 2, head: int = 16) -> Prepared:
    """Bytes of the Python standard library; the held-out batch is the same for every seed."""
    source = standard_library()

    def cut(seed: int, step: int | None) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, step] if step is not None else [0])
        held = step is None
        found = windows(source.held if held else source.train, 8 * batch if held else batch, context, rng)
        return found[:, :-1], found[:, 1:]

    def build(recipe: Recipe, dims: Dims, seeds: Sequence[int], device: str) -> Scaled:
        sizes = {"vocabulary": VOCABULARY, "context": context, "blocks": blocks, "head": head}
        return Transformer(recipe, dims, seeds, device, **sizes)

    return Prepared(build, cut, source.digest)


TASKS: dict[str, Task] = {
    t.name: t
    for t in (
        Task(
            "digits",
            "MLP MoE on handwritten digits (MSSP paper, App. P.1)",
            transformer=False,
            base={"N": 32, "N_e": 32, "M": 4, "K": 4},
            widths=(32, 64, 128),
            grid=(-10.0, -4.0, 1.0),
            steps=60,
            warmup=0.0,
            final=1.0,
            decay=0.0,
            prepare=digits,
        ),
        Task(
            "text",
            "Transformer MoE on bytes of Python sources (MSSP paper, App. P.2)",
            transformer=True,
            base={"N": 32, "N_e": 16, "M": 4, "K": 2},
            widths=(32, 64, 128),
            grid=(-11.0, -3.0, 1.0),
            steps=200,
            warmup=700 / 4768,
            final=0.1,
            decay=0.1,
            prepare=text,
            options={"betas": (0.9, 0.95)},
        ),
    )
}
"""Every task, by name."""
