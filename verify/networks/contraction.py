"""Products of tensors with named indices, in the order that numpy finds for them.

Every tensor has a replica dimension before its letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

Labelled = tuple[str, Tensor]
"""Index letters, and a tensor with a replica dimension before theirs."""

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
_REPLICA = "Z"


def contract(operands: Sequence[Labelled], out: str, sizes: Mapping[str, int]) -> Tensor:
    """The product of tensors with the letters missing from ``out`` summed, (S, *out).

    Args:
        sizes: how often to repeat a letter of ``out`` that no operand has; by default once.
    """
    todo, have = list(operands), "".join(x for x, _ in operands)
    kept = "".join(x for x in out if x in have)
    for some in _order(tuple(x for x, _ in todo), tuple(x.shape[1:] for _, x in todo), kept):
        chosen = [todo.pop(k) for k in sorted(some, reverse=True)]
        others = kept + "".join(x for x, _ in todo)
        left = "".join(x for x in dict.fromkeys("".join(x for x, _ in chosen)) if x in others) if todo else kept
        formula = _formula(tuple(x for x, _ in chosen), left)
        todo.append((left, torch.einsum(formula, *(x for _, x in chosen))))
    ((_, product),) = todo
    for k, x in enumerate(out):
        product = product if x in kept else product.unsqueeze(k + 1)
    return product if kept == out else product.expand(-1, *(-1 if x in kept else sizes.get(x, 1) for x in out))


@cache
def _order(letters: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], out: str) -> list[tuple[int, ...]]:
    """For each step, the positions of the operands that are multiplied next among those left."""
    tensors = [np.broadcast_to(0.0, shape) for shape in shapes]
    how = "optimal" if len(letters) < 6 else "greedy"
    return list(np.einsum_path(_formula(letters, out, ""), *tensors, optimize=how)[0][1:])


@cache
def _formula(letters: tuple[str, ...], out: str, replica: str = _REPLICA) -> str:
    symbols = dict(zip(dict.fromkeys("".join(letters)), _SYMBOLS, strict=False))
    return "->".join(",".join(replica + "".join(symbols[c] for c in x) for x in side) for side in (letters, (out,)))
