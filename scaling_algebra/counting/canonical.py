"""Canonical labelling of a kernel's network: isomorphic networks become equal tuples.

Read next: ``kernels.py`` (which builds a ``Kernel`` from the result).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias

Leaf: TypeAlias = tuple[str, tuple[int, ...]]
"""(tensor name, index classes), e.g. ``("W2", (0, 3, 1))``."""

REMEMBERED = 2**17
"""Components whose labelling is kept: some hundred MB at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """A canonical component; equal ones are one object.

    Attributes:
        first: number of open classes; its own are numbered after them.
        types: axes of its own classes.
        leaves: sorted.
    """

    first: int
    types: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def place(self) -> tuple[tuple[str, ...], tuple[Leaf, ...]]:
        """The key that components are sorted by."""
        return self.types, self.leaves


Network: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], tuple[Leaf, ...]]
"""Axes of the classes, the class of each open index, leaves."""


def canonical(types: Sequence[str], opens: Sequence[int], leaves: Sequence[Leaf]) -> Network:
    """Types, open classes and leaves with classes renumbered so that isomorphic networks become equal.

    Components that share only open classes are labelled apart, and sorted; few differ, so they are remembered.
    """
    number = numbered(opens)
    parts = [component(types, part, number) for part in components(leaves, number)]
    return joined(tuple([types[c] for c in number]), tuple([number[c] for c in opens]), parts)


def numbered(opens: Sequence[int]) -> dict[int, int]:
    """Open classes in the order of the open indices."""
    number: dict[int, int] = {}
    for c in opens:
        if c not in number:
            number[c] = len(number)
    return number


def components(leaves: Sequence[Leaf], opened: Container[int]) -> list[list[Leaf]]:
    """Leaves grouped by the summed classes that connect them."""
    groups: list[list[Leaf]] = []
    group: dict[int, list[Leaf]] = {}
    for leaf in leaves:
        whole: list[Leaf] | None = None
        for c in leaf[1]:
            part = group.get(c)
            if part is None or part is whole:
                continue
            if whole is None:
                whole = part
            else:
                whole += part
                for _, classes in part:
                    for d in classes:
                        if d in group:
                            group[d] = whole
                part.clear()
        if whole is None:
            whole = []
            groups.append(whole)
        whole.append(leaf)
        for c in leaf[1]:
            if c not in opened:
                group[c] = whole
    return [whole for whole in groups if whole]


def component(types: Sequence[str], leaves: Sequence[Leaf], number: dict[int, int]) -> Component:
    """The canonical form of one component; ``number`` are the open classes."""
    first, inner, renumbered = local(types, leaves, number)
    return labelled(first, inner, renumbered)[0]


def local(
    types: Sequence[str], leaves: Sequence[Leaf], number: dict[int, int]
) -> tuple[int, tuple[str, ...], tuple[Leaf, ...]]:
    """One component with its own classes numbered as they appear, after the open ones: what looks it up."""
    inner, first = number.copy(), len(number)
    kinds, renumbered = [], []
    for name, classes in leaves if len(leaves) == 1 else sorted(leaves):
        for c in classes:
            if c not in inner:
                inner[c] = len(inner)
                kinds.append(types[c])
        renumbered.append((name, tuple([inner[c] for c in classes])))
    return first, tuple(kinds), tuple(renumbered)


def joined(types: tuple[str, ...], opens: tuple[int, ...], parts: Iterable[Component]) -> Network:
    """The canonical network of these components: axes of the open classes, open indices, components."""
    kinds = list(types)
    leaves: list[Leaf] = []
    for part in sorted(parts, key=PLACE):
        first, offset = part.first, len(kinds) - part.first
        for name, classes in part.leaves:
            leaves.append((name, tuple([c if c < first else c + offset for c in classes])))
        kinds += part.types
    leaves.sort()
    return tuple(kinds), opens, tuple(leaves)


PLACE = attrgetter("place")


@lru_cache(REMEMBERED)
def labelled(first: int, types: tuple[str, ...], leaves: tuple[Leaf, ...]) -> tuple[Component, tuple[int, ...]]:
    """The canonical form of a component whose classes below ``first`` are open, and its classes in canonical order.

    Colour refinement, then the smallest labelling over the individualisations of the first class that refinement
    cannot separate.
    """
    rest = range(first, first + len(types))
    kinds = sorted(types)
    colour = {**{c: c for c in range(first)}, **{c: first + kinds.index(types[c - first]) for c in rest}}
    order, renamed = _label(colour, leaves, first, rest)
    return _interned(first, tuple([types[c - first] for c in order[first:]]), renamed), tuple(order)


@lru_cache(REMEMBERED)
def _interned(first: int, types: tuple[str, ...], leaves: tuple[Leaf, ...]) -> Component:
    return Component(first, types, leaves)


def _label(
    colour: dict[int, int], leaves: Sequence[Leaf], first: int, rest: Sequence[int]
) -> tuple[list[int], tuple[Leaf, ...]]:
    """Best class order and its sorted leaves. Colours of the ``rest`` are above those of the ``first`` classes."""
    cells = [list(cell) for _, cell in groupby(sorted(rest, key=colour.__getitem__), key=colour.__getitem__)]
    colour = {**colour, **_coloured(cells, first)}
    while len(cells) < len(rest):
        finer = _refined(cells, colour, leaves)
        if len(finer) == len(cells):
            break
        cells = finer
        colour |= _coloured(cells, first)
    tied = next((cell for cell in cells if len(cell) > 1), None)
    if tied is None:
        return _ordered(sorted(colour, key=colour.__getitem__), leaves)
    loose = {c for cell in cells if len(cell) > 1 for c in cell}
    apart = sorted((c for c in colour if c not in loose), key=colour.__getitem__)
    number = {c: k for k, c in enumerate(apart)}
    parts = components(leaves, number)
    if len(parts) > 1:  # what only meets in classes that are told apart is labelled apart, and copies are equal
        blocks = []
        for part in parts:
            inside = sorted({c for _, classes in part for c in classes if c not in number})
            inner = {**number, **{c: len(apart) + colour[c] for c in inside}}
            order, named = _label(inner, part, len(apart), inside)
            blocks.append(([colour[c] for c in order[len(apart) :]], named, order[len(apart) :]))
        blocks.sort(key=itemgetter(0, 1))
        return _ordered([*apart, *(c for _, _, order in blocks for c in order)], leaves)
    options = []
    for c in tied:
        split = {d: k if k < first else 2 * k + 1 for d, k in colour.items()}
        split[c] -= 1
        options.append(_label(split, leaves, first, rest))
    return min(options, key=itemgetter(1))


def _coloured(cells: list[list[int]], first: int) -> dict[int, int]:
    """Each class with the place of its cell."""
    colour = {}
    for cell in cells:
        for c in cell:
            colour[c] = first
        first += len(cell)
    return colour


def _refined(cells: list[list[int]], colour: Mapping[int, int], leaves: Sequence[Leaf]) -> list[list[int]]:
    """Cells split by what their classes touch."""
    touching: dict[int, list[tuple[str, tuple[int, ...], int]]]
    touching = {c: [] for cell in cells if len(cell) > 1 for c in cell}
    for name, classes in leaves:
        seen = None
        for place, c in enumerate(classes):
            if c in touching:
                seen = seen or tuple([colour[d] for d in classes])
                touching[c].append((name, seen, place))
    for places in touching.values():
        places.sort()
    finer = []
    for cell in cells:
        if len(cell) > 1:
            cell.sort(key=touching.__getitem__)
            finer += [list(same) for _, same in groupby(cell, key=touching.__getitem__)]
        else:
            finer.append(cell)
    return finer


def _ordered(order: list[int], leaves: Sequence[Leaf]) -> tuple[list[int], tuple[Leaf, ...]]:
    """The order with the leaves in its numbering."""
    number = {c: k for k, c in enumerate(order)}
    return order, tuple(sorted([(name, tuple([number[c] for c in classes])) for name, classes in leaves]))
