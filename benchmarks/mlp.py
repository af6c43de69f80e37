"""A dense network for ``study transfer --model benchmarks/mlp.py:build`` and ``tuned.py``: three matrices, ReLU."""

from collections.abc import Mapping

from torch import nn


def build(sizes: Mapping[str, int]) -> nn.Module:
    """Returns a network for 8x8 images and ten classes."""
    n = sizes["N"]
    return nn.Sequential(
        nn.Linear(64, n, bias=False), nn.ReLU(), nn.Linear(n, n, bias=False), nn.ReLU(), nn.Linear(n, 10, bias=False)
    )
