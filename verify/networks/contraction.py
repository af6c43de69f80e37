"""Products of tensors with named indices: the order in which they are multiplied, and the multiplication.

A product of many tensors is a series of products of two, each one batched matrix product. Every tensor has a replica
dimension before its letters.
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
    """The product of tensors with the letters missing from ``out`` summed, (S, *out), in the order that costs least.

    Args:
        sizes: of the letters of ``out`` that no tensor has, which are repeated; 1 for other ones.
    """
    have = "".join(letters for letters, _ in operands)
    kept = out if all(x in have for x in out) else "".join(x for x in out if x in have)
    product = _einsum(_last(operands, kept), kept)
    if kept == out:
        return product
    for k, x in enumerate(out):
        if x not in kept:
            product = product.unsqueeze(k + 1)
    return product.expand(-1, *(-1 if x in kept else sizes.get(x, 1) for x in out))


def contract_into(operands: Sequence[Labelled], letters: str, into: Tensor) -> None:
    """Writes the product of tensors into ``into``, (S, *letters); an outer product is never formed beside it."""
    last = _last(operands, letters)
    if len(last) == 1 or not set(last[0][0] + last[1][0]) <= set(letters):
        into.copy_(contract(last, letters, {}))
        return
    shaped = []
    for kept, x in last:
        order = [0, *(1 + kept.index(c) for c in letters if c in kept)]
        shaped.append(x.permute(order)[(slice(None), *(slice(None) if c in kept else None for c in letters))])
    torch.mul(*shaped, out=into)


def _last(operands: Sequence[Labelled], out: str) -> list[Labelled]:
    """One tensor or two whose product it is, after all products before the last."""
    left = list(operands)
    for some in _order(tuple(x for x, _ in left), tuple(tuple(x.shape) for _, x in left), out)[:-1]:
        taken = [left.pop(k) for k in sorted(some, reverse=True)]
        others = out + "".join(x for x, _ in left)
        kept = "".join(x for x in dict.fromkeys("".join(x for x, _ in taken)) if x in others)
        left.append((kept, _einsum(taken, kept)))
    return left


@cache
def _order(letters: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], out: str) -> list[tuple[int, ...]]:
    """Positions of the tensors that are multiplied next, as long as some are left."""
    like = (np.broadcast_to(np.zeros(()), shape) for shape in shapes)
    path: list[tuple[int, ...]] = np.einsum_path(_formula(letters, out), *like, optimize=("optimal", 2**62))[0][1:]
    return path


@cache
def _formula(letters: tuple[str, ...], out: str) -> str:
    symbols = dict(zip(dict.fromkeys("".join(letters)), _SYMBOLS, strict=False))

    def written(x: str) -> str:
        return _REPLICA + "".join(symbols[c] for c in x)

    return ",".join(map(written, letters)) + "->" + written(out)


def _einsum(operands: Sequence[Labelled], out: str) -> Tensor:
    return torch.einsum(_formula(tuple(x for x, _ in operands), out), *(x for _, x in operands))
