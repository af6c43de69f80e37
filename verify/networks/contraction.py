"""Products of tensors with named indices, in the order that numpy's einsum_path finds.

Every tensor has a replica dimension before its indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

Labelled = tuple[str, Tensor]
"""The names of the indices, and a tensor of shape (S, *indices)."""

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
_REPLICA = "Z"


def contract(operands: Sequence[Labelled], out: str, sizes: Mapping[str, int]) -> Tensor:
    """Multiplies tensors and sums over the indices missing from ``out``, (S, *out).

    Args:
        operands: the tensors.
        out: indices of the result, one character each.
        sizes: size of each index of ``out`` that no operand has (the result is repeated along it); by default 1.
    """
    todo, have = list(operands), "".join(x for x, _ in operands)
    kept = "".join(x for x in out if x in have)
    for some in _find_order(tuple(x for x, _ in todo), tuple(x.shape[1:] for _, x in todo), kept):
        chosen = [todo.pop(k) for k in sorted(some, reverse=True)]
        others = kept + "".join(x for x, _ in todo)
        left = "".join(x for x in dict.fromkeys("".join(x for x, _ in chosen)) if x in others) if todo else kept
        formula = _format_einsum(tuple(x for x, _ in chosen), left)
        todo.append((left, torch.einsum(formula, *(x for _, x in chosen))))
    ((_, product),) = todo
    for k, x in enumerate(out):
        product = product if x in kept else product.unsqueeze(k + 1)
    return product if kept == out else product.expand(-1, *(-1 if x in kept else sizes.get(x, 1) for x in out))


@cache
def _find_order(indices: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], out: str) -> list[tuple[int, ...]]:
    """Returns the order in which operands are multiplied: for each step, the positions of those to multiply among the
    operands and results that are left, as ``numpy.einsum_path`` does.

    Args:
        indices: the indices of each operand.
        shapes: the shape of each operand.
        out: indices of the result.
    """
    tensors = [np.broadcast_to(0.0, shape) for shape in shapes]
    how = "optimal" if len(indices) < 6 else "greedy"
    return list(np.einsum_path(_format_einsum(indices, out, ""), *tensors, optimize=how)[0][1:])


@cache
def _format_einsum(indices: tuple[str, ...], out: str, replica: str = _REPLICA) -> str:
    """Returns the einsum formula of a product, with a replica dimension on every operand."""
    symbols = dict(zip(dict.fromkeys("".join(indices)), _SYMBOLS, strict=False))
    return "->".join(",".join(replica + "".join(symbols[c] for c in x) for x in side) for side in (indices, (out,)))
