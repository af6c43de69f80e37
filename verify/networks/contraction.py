"""Products of tensors with named indices: the order in which they are multiplied, and the multiplication.

A product of many tensors is a tree of products of two, each one batched matrix product. Every tensor has a replica
dimension before its letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod

import torch
from torch import Tensor

Labelled = tuple[str, Tensor]
"""Index letters, and a tensor with a replica dimension before theirs."""

_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
_REPLICA = "Z"

TRAFFIC = 8
"""Multiplications that take the time of writing an entry and reading it again."""

Tree = int | tuple["Tree", "Tree"]
"""The position of a tensor, or a product of two trees."""
Known = frozenset[tuple[int, int]]
"""Pairs of tensors whose product is there already."""


@dataclass
class Products:
    """Products of two tensors that were computed before, and may be taken again instead of computed."""

    made: dict[tuple[object, ...], tuple[Tensor, Tensor, Labelled]] = field(default_factory=dict)

    def key(self, a: Labelled, b: Labelled, out: str) -> tuple[object, ...]:
        """Names a product."""
        return id(a[1]), a[0], id(b[1]), b[0], frozenset(out)


def contract(operands: Sequence[Labelled], out: str, sizes: Mapping[str, int], known: Products | None = None) -> Tensor:
    """The product of tensors with the letters missing from ``out`` summed, (S, *out), in the order that costs least.

    Args:
        sizes: of the letters of ``out`` that no tensor has, which are repeated; 1 for other ones.
        known: products of two of the tensors that are not computed again; those computed here are added.
    """
    have = "".join(letters for letters, _ in operands)
    kept = out if all(x in have for x in out) else "".join(x for x in out if x in have)
    if len(operands) == 1:
        (letters, product) = operands[0]
        if letters != kept:
            product = _einsum(operands, kept)
    else:
        product = _computed(operands, kept, known)
    if kept == out:
        return product
    for k, x in enumerate(out):
        if x not in kept:
            product = product.unsqueeze(k + 1)
    return product.expand(-1, *(-1 if x in kept else sizes.get(x, 1) for x in out))


def _computed(operands: Sequence[Labelled], out: str, known: Products | None) -> Tensor:
    """The product of two tensors or more, (S, *out)."""
    letters = tuple(x for x, _ in operands)
    shapes = tuple(tuple(x.shape[1:]) for _, x in operands)
    there: list[tuple[int, int]] = []
    if known is not None and known.made and len(operands) > 2:
        for j in range(1, len(operands)):
            for i in range(j):
                a, b = operands[i], operands[j]
                if known.key(a, b, _left(letters, (i, j), out)) in known.made:
                    there.append((i, j))

    tree = plan(letters, shapes, out, None if known is None else frozenset(there))
    return _product(tree, operands, letters, out, known)[1]


def _product(
    tree: Tree, operands: Sequence[Labelled], letters: tuple[str, ...], out: str, known: Products | None
) -> Labelled:
    """The product of the tensors of a tree, with the letters that it keeps."""
    if isinstance(tree, int):
        return operands[tree]
    leaves = _leaves(tree)
    result = out if len(leaves) == len(operands) else _left(letters, leaves, out)
    a, b = (_product(branch, operands, letters, out, known) for branch in tree)
    if known is None or len(leaves) > 2:
        return result, _einsum((a, b), result)
    key = known.key(a, b, result)
    if key not in known.made:
        known.made[key] = (a[1], b[1], (result, _einsum((a, b), result)))  # with both, whose ids stay theirs
    made = known.made[key][2]
    return result, made[1] if made[0] == result else _einsum((made,), result)


def _leaves(tree: Tree) -> tuple[int, ...]:
    return (tree,) if isinstance(tree, int) else (*_leaves(tree[0]), *_leaves(tree[1]))


def _left(letters: Sequence[str], some: Sequence[int], out: str) -> str:
    """The letters that the product of some of the tensors keeps: those that others, or the result, have."""
    others = out + "".join(x for k, x in enumerate(letters) if k not in some)
    return "".join(x for x in dict.fromkeys("".join(letters[k] for k in some)) if x in others)


@cache
def plan(letters: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], out: str, known: Known | None = None) -> Tree:
    """The order of products of two tensors that costs least: multiplications, and entries made; of equal ones that
    which begins with the largest tensor, if products may be taken again (``known``), else with the smallest.

    Law: the best tree of a set of tensors is two best trees of a split of the set.
    """
    size = {x: n for names, shape in zip(letters, shapes, strict=True) for x, n in zip(names, shape, strict=True)}
    sign = 1 if known is None else -1
    best: dict[int, tuple[float, int, Tree]] = {1 << k: (0.0, 0, k) for k in range(len(letters))}

    def kept(some: int) -> str:
        return _left(letters, [k for k in range(len(letters)) if some >> k & 1], out)

    for some in range(3, 1 << len(letters)):
        if some in best:
            continue
        lowest, result = some & -some, kept(some)
        choices, part = [], (some - 1) & some
        while part:
            if part & lowest:
                (cost_a, begun_a, a), (cost_b, begun_b, b) = best[part], best[some ^ part]
                begun = max(begun_a, begun_b)
                if isinstance(a, int) and isinstance(b, int):
                    begun = prod(shapes[a]) + prod(shapes[b])
                if isinstance(a, int) and isinstance(b, int) and (a, b) in (known or ()):
                    cost = 0.0
                else:
                    each = set(kept(part) if not isinstance(a, int) else letters[a])
                    each |= set(kept(some ^ part) if not isinstance(b, int) else letters[b])
                    cost = prod(size[x] for x in each) + TRAFFIC * prod(size[x] for x in result)
                choices.append((cost_a + cost_b + cost, sign * begun, part, (a, b)))
            part = (part - 1) & some
        cost, begun, _, tree = min(choices, key=lambda choice: choice[:3])
        best[some] = cost, sign * begun, tree
    return best[(1 << len(letters)) - 1][2]


@cache
def _formula(letters: tuple[str, ...], out: str) -> str:
    symbols = dict(zip(dict.fromkeys("".join(letters)), _SYMBOLS, strict=False))

    def written(x: str) -> str:
        return _REPLICA + "".join(symbols[c] for c in x)

    return ",".join(map(written, letters)) + "->" + written(out)


def _einsum(operands: Sequence[Labelled], out: str) -> Tensor:
    return torch.einsum(_formula(tuple(x for x, _ in operands), out), *(x for _, x in operands))


def contract_into(operands: Sequence[Labelled], letters: str, into: Tensor) -> None:
    """Writes the product of tensors into ``into``, (S, *letters); an outer product is never formed beside it."""
    names = tuple(x for x, _ in operands)
    tree = plan(names, tuple(tuple(x.shape[1:]) for _, x in operands), letters)
    if isinstance(tree, int):
        into.copy_(contract(operands, letters, {}))
        return
    sides = []
    for branch in tree:
        leaves = _leaves(branch)
        kept = _left(names, leaves, letters)
        sides.append((kept, contract([operands[k] for k in leaves], kept, {})))
    if not set(sides[0][0] + sides[1][0]) <= set(letters):
        into.copy_(contract(sides, letters, {}))
        return
    shaped = []
    for kept, x in sides:
        order = [0, *(1 + kept.index(c) for c in letters if c in kept)]
        shaped.append(x.permute(order)[(slice(None), *(slice(None) if c in kept else None for c in letters))])
    torch.mul(*shaped, out=into)
