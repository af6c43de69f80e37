"""Canonical labelling of a kernel's network: isomorphic networks become equal tuples.

Read next: ``kernels.py`` (which builds a ``Kernel`` from the result).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

Leaf: TypeAlias = tuple[str, tuple[int, ...]]
"""(tensor name, index classes), e.g. ``("W2", (0, 3, 1))``."""

REMEMBERED = 2**17
"""Networks whose labelling is kept: some hundred MB at most."""


def canonical(
    types: Sequence[str], opens: Sequence[int], leaves: Sequence[Leaf]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Leaf, ...]]:
    """Types, open classes and leaves with classes renumbered so that isomorphic networks become equal.

    Components that share only open classes are labelled apart and sorted. Within one: colour refinement, then the
    smallest labelling over the individualisations of the first class that refinement cannot separate. Before that,
    numbering classes as they appear is cheap and makes most networks equal to one that was seen before.
    """
    number: dict[int, int] = {}
    for c in opens:
        number.setdefault(c, len(number))
    found = []
    for name, classes in sorted(leaves):
        for c in classes:
            number.setdefault(c, len(number))
        found.append((name, tuple(number[c] for c in classes)))
    return _canonical(tuple(types[c] for c in number), tuple(number[c] for c in opens), tuple(found))


@lru_cache(REMEMBERED)
def _canonical(
    types: tuple[str, ...], opens: tuple[int, ...], leaves: tuple[Leaf, ...]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Leaf, ...]]:
    """As ``canonical``, without looking anything up first."""
    colour: dict[int, int] = {}
    for c in opens:
        colour.setdefault(c, len(colour))
    first = len(colour)
    parts = []
    for part in _components(leaves, colour):
        rest = sorted({c for _, classes in part for c in classes if c not in colour})
        kinds = sorted({types[c] for c in rest})
        order, labelled = _label({**colour, **{c: first + kinds.index(types[c]) for c in rest}}, part, first, rest)
        parts.append((tuple(types[c] for c in order[first:]), labelled))
    parts.sort()
    kinds_out = [types[c] for c in colour]
    found: list[Leaf] = []
    for inner, labelled in parts:
        offset = len(kinds_out) - first
        found += [(name, tuple(c if c < first else c + offset for c in classes)) for name, classes in labelled]
        kinds_out += inner
    return tuple(kinds_out), tuple(colour[c] for c in opens), tuple(sorted(found))


def _components(leaves: Sequence[Leaf], opened: Mapping[int, int]) -> list[list[Leaf]]:
    """Leaves grouped by the summed classes that connect them."""
    groups: list[tuple[set[int], list[Leaf]]] = []
    for leaf in leaves:
        classes = {c for c in leaf[1] if c not in opened}
        joined = [g for g in groups if g[0] & classes]
        groups = [g for g in groups if not g[0] & classes]
        members = [x for g in joined for x in g[1]] + [leaf]
        groups.append((classes.union(*(g[0] for g in joined)), members))
    return [members for _, members in groups]


def _label(
    colour: dict[int, int], leaves: list[Leaf], first: int, rest: list[int]
) -> tuple[list[int], tuple[Leaf, ...]]:
    """Best class order and its sorted leaves."""
    cells = -1
    while True:
        incident: dict[int, list[tuple[str, tuple[int, ...], int]]] = {c: [] for c in rest}
        for name, classes in leaves:
            seen = tuple(colour[c] for c in classes)
            for pos, c in enumerate(classes):
                if c in incident:
                    incident[c].append((name, seen, pos))
        keys = {c: (colour[c], sorted(incident[c])) for c in rest}
        distinct: list[tuple[int, list[tuple[str, tuple[int, ...], int]]]] = []
        for key in sorted(keys.values()):
            if not distinct or distinct[-1] != key:
                distinct.append(key)
        if len(distinct) == cells:
            break
        cells = len(distinct)
        rank = {(k[0], tuple(k[1])): first + j for j, k in enumerate(distinct)}
        colour = {**colour, **{c: rank[(keys[c][0], tuple(keys[c][1]))] for c in rest}}
        if cells == len(rest):
            break
    by_colour: dict[int, list[int]] = {}
    for c in rest:
        by_colour.setdefault(colour[c], []).append(c)
    tied = next((by_colour[k] for k in sorted(by_colour) if len(by_colour[k]) > 1), None)
    if tied is None:
        return _ordered(sorted(colour, key=colour.__getitem__), leaves)
    apart = sorted((c for c in colour if len(by_colour.get(colour[c], ())) < 2), key=colour.__getitem__)
    known = {c: k for k, c in enumerate(apart)}
    parts = _components(leaves, known)
    if len(parts) > 1:  # what only meets in classes that are told apart is labelled apart, and copies are equal
        labelled = []
        for part in parts:
            loose = sorted({c for _, classes in part for c in classes if c not in known})
            inner = {**known, **{c: len(apart) + colour[c] for c in loose}}
            order, named = _label(inner, part, len(apart), loose)
            labelled.append(([colour[c] for c in order[len(apart) :]], named, order[len(apart) :]))
        labelled.sort(key=lambda x: x[:2])
        return _ordered([*apart, *(c for _, _, order in labelled for c in order)], leaves)
    options = []
    for c in tied:
        split = {d: k if k < first else 2 * k + 1 for d, k in colour.items()}
        split[c] -= 1
        options.append(_label(split, leaves, first, rest))
    return min(options, key=lambda option: option[1])


def _ordered(order: list[int], leaves: Sequence[Leaf]) -> tuple[list[int], tuple[Leaf, ...]]:
    """The order with the leaves in its numbering."""
    number = {c: k for k, c in enumerate(order)}
    return order, tuple(sorted((name, tuple(number[c] for c in classes)) for name, classes in leaves))
