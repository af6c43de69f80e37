"""Brute force for one monomial, written plainly and without pruning: the engine is tested and timed against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class TensorNetwork:
    """One monomial: a product of Gaussian leaves, some index letters open, the others summed.

    Attributes:
        leaves: (tensor name, letters), e.g. ``(("W", "ab"), ("W", "ab"))``.
        opens: letters that are not summed.
        dims: exponent of each letter's dimension.
    """

    leaves: tuple[tuple[str, str], ...]
    opens: str
    dims: Mapping[str, Fraction]


def pairings(leaves: Sequence[tuple[str, object]]) -> Iterator[list[tuple[int, int]]]:
    """All ways to pair every leaf with another of the same name."""
    yield from _pair(list(range(len(leaves))), [name for name, _ in leaves])


def _pair(rest: list[int], names: list[str]) -> Iterator[list[tuple[int, int]]]:
    if not rest:
        yield []
        return
    first, *others = rest
    for k in others:
        if names[k] == names[first]:
            for more in _pair([j for j in others if j != k], names):
                yield [(first, k), *more]


def pairing_count(names: Sequence[str]) -> int:
    """Number of pairings of two copies of these leaves: the product over names of (2k - 1)!!."""
    total = 1
    for name in set(names):
        for odd in range(1, 2 * names.count(name), 2):
            total *= odd
    return total


def wick_two_copies(network: TensorNetwork) -> Fraction:
    """log_n of the root-mean-square over entries and initialisation, leaf sizes aside.

    Law: E[X^2] is a sum over all pairings of the leaves of two copies of X that share their open indices; a pairing
    identifies indices and is worth the product of the dimensions of the classes that remain.
    """
    leaves = [(name, [_copy(x, k, network.opens) for x in indices]) for k in (0, 1) for name, indices in network.leaves]
    indices = {x for _, xs in leaves for x in xs} | {_copy(x, k, network.opens) for x in network.dims for k in (0, 1)}
    best: Fraction | None = None
    for pairing in pairings(leaves):
        merged = _classes(
            indices, [(x, y) for i, j in pairing for x, y in zip(leaves[i][1], leaves[j][1], strict=True)]
        )
        worth = sum((network.dims[cls[0][0]] for cls in merged), Fraction(0))
        best = worth if best is None else max(best, worth)
    assert best is not None
    return (best - sum((network.dims[x] for x in network.opens), Fraction(0))) / 2


def half_weight(network: TensorNetwork) -> Fraction:
    """log_n of the root-mean-square by the half-weight rule on ONE copy, over every partial matching.

    Law: each summed class weighs 1 if no unmatched leaf touches it and 1/2 otherwise; an open class weighs 0, and two
    open classes merged cost half a dimension.
    """
    best: Fraction | None = None
    names = [name for name, _ in network.leaves]
    for matching in partial_matchings(list(range(len(names))), names):
        matched = {i for pair in matching for i in pair}
        joins = [(x, y) for i, j in matching for x, y in zip(network.leaves[i][1], network.leaves[j][1], strict=True)]
        touched = {x for k, (_, xs) in enumerate(network.leaves) if k not in matched for x in xs}
        worth = Fraction(0)
        for cls in _classes(set(network.dims), joins):
            opened = sum(x in network.opens for x in cls)
            if opened:
                worth -= network.dims[cls[0]] * Fraction(opened - 1, 2)
            else:
                worth += network.dims[cls[0]] * (Fraction(1, 2) if touched & set(cls) else 1)
        best = worth if best is None else max(best, worth)
    assert best is not None
    return best


def partial_matchings(rest: list[int], names: list[str]) -> Iterator[list[tuple[int, int]]]:
    """All ways to pair some of the leaves ``rest`` with others of the same name."""
    if not rest:
        yield []
        return
    first, *others = rest
    yield from partial_matchings(others, names)
    for k in others:
        if names[k] == names[first]:
            for more in partial_matchings([j for j in others if j != k], names):
                yield [(first, k), *more]


def _copy(index: str, k: int, opens: str) -> str:
    return index if index in opens else index + "'" * k


def _classes(indices: set[str], joins: list[tuple[str, str]]) -> list[list[str]]:
    groups = [{x} for x in sorted(indices)]
    for x, y in joins:
        gx = next(g for g in groups if x in g)
        gy = next(g for g in groups if y in g)
        if gx is not gy:
            gx |= gy
            groups.remove(gy)
    return [sorted(g) for g in groups]
