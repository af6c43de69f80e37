"""Canonical numbering of the index classes of a Wick monomial, so that equal monomials become equal tuples.

A *network* here is a monomial as (axis of each class, class of each open index, leaves). The classes of ``A[0,1] x[1]``
and ``A[7,3] x[3]`` are numbered differently, but the networks are isomorphic. A *component* is a set of leaves that
share summed classes. Read next: ``kernels.py`` (which builds a ``Kernel`` from the result).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias

Leaf: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor and the index classes of its indices, e.g. ``("W2", (0, 3, 1))``."""

MAX_CACHED = 2**17
"""Maximum number of cached labellings of components, which take some hundred MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """A component (leaves that share summed index classes) with canonically numbered classes. Equal components are one
    object.

    Attributes:
        open_count: number of open classes, which are numbered 0 to open_count - 1. The summed ones are numbered after
            them.
        axes: axis of each summed class.
        leaves: sorted leaves.
    """

    open_count: int
    axes: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def sort_key(self) -> tuple[tuple[str, ...], tuple[Leaf, ...]]:
        """The pair (axes, leaves), by which the components of a network are sorted."""
        return self.axes, self.leaves


Network: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], tuple[Leaf, ...]]
"""Axis of each class, class of each open index, leaves."""


def canonicalise(axes: Sequence[str], opens: Sequence[int], leaves: Sequence[Leaf]) -> Network:
    """Relabels the classes of a network so that isomorphic networks become equal.

    Components are numbered separately and then sorted. As few different ones occur, their numberings are cached.

    Args:
        axes: axis of each class.
        opens: class of each open index.
        leaves: the leaves.

    Returns:
        The renumbered network.
    """
    number = number_open(opens)
    parts = [canonicalise_component(axes, part, number) for part in split_components(leaves, number)]
    return join_components(tuple([axes[c] for c in number]), tuple([number[c] for c in opens]), parts)


def number_open(opens: Sequence[int]) -> dict[int, int]:
    """Returns new numbers 0, 1, ... for the open index classes, in the order of the open indices: ``[5, 2, 5] -> {5: 0,
    2: 1}``."""
    number: dict[int, int] = {}
    for c in opens:
        if c not in number:
            number[c] = len(number)
    return number


def split_components(leaves: Sequence[Leaf], opened: Container[int]) -> list[list[Leaf]]:
    """Groups leaves into components: leaves that share a summed index class are in the same one.

    Args:
        leaves: the leaves.
        opened: the open classes; leaves that share only these are not connected.
    """
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


def canonicalise_component(axes: Sequence[str], leaves: Sequence[Leaf], number: dict[int, int]) -> Component:
    """Returns the canonical form of one component.

    Args:
        axes: axis of each class of the network.
        leaves: leaves of the component.
        number: new numbers of the open classes.
    """
    open_count, inner, renumbered = renumber_component(axes, leaves, number)
    return label_component(open_count, inner, renumbered)[0]


def renumber_component(
    axes: Sequence[str], leaves: Sequence[Leaf], number: dict[int, int]
) -> tuple[int, tuple[str, ...], tuple[Leaf, ...]]:
    """Numbers the index classes of one component in order of appearance, after the open ones. The result is used as a
    cache key.

    Returns:
        Number of open classes, axis of each summed class, leaves.
    """
    inner, open_count = number.copy(), len(number)
    inner_axes, renumbered = [], []
    for name, classes in leaves if len(leaves) == 1 else sorted(leaves):
        for c in classes:
            if c not in inner:
                inner[c] = len(inner)
                inner_axes.append(axes[c])
        renumbered.append((name, tuple([inner[c] for c in classes])))
    return open_count, tuple(inner_axes), tuple(renumbered)


def join_components(axes: tuple[str, ...], opens: tuple[int, ...], parts: Iterable[Component]) -> Network:
    """Joins canonical components to a canonical network.

    Args:
        axes: axis of each open class.
        opens: class of each open index.
        parts: the components.
    """
    inner_axes = list(axes)
    leaves: list[Leaf] = []
    for part in sorted(parts, key=BY_SORT_KEY):
        open_count, offset = part.open_count, len(inner_axes) - part.open_count
        for name, classes in part.leaves:
            leaves.append((name, tuple([c if c < open_count else c + offset for c in classes])))
        inner_axes += part.axes
    leaves.sort()
    return tuple(inner_axes), opens, tuple(leaves)


BY_SORT_KEY = attrgetter("sort_key")


@lru_cache(MAX_CACHED)
def label_component(
    open_count: int, axes: tuple[str, ...], leaves: tuple[Leaf, ...]
) -> tuple[Component, tuple[int, ...]]:
    """Numbers the classes of a component canonically. Classes below ``open_count`` are open and keep their numbers.

    Method: colour refinement, which splits the classes into cells by the leaves that touch them. If a cell of several
    classes cannot be split, each of its classes is tried as the first one, and the smallest numbering is used.

    Returns:
        The canonical component, and its classes in canonical order.
    """
    rest = range(open_count, open_count + len(axes))
    inner_axes = sorted(axes)
    colour = {
        **{c: c for c in range(open_count)},
        **{c: open_count + inner_axes.index(axes[c - open_count]) for c in rest},
    }
    order, renamed = _find_order(colour, leaves, open_count, rest)
    return _intern_component(open_count, tuple([axes[c - open_count] for c in order[open_count:]]), renamed), tuple(
        order
    )


@lru_cache(MAX_CACHED)
def _intern_component(open_count: int, axes: tuple[str, ...], leaves: tuple[Leaf, ...]) -> Component:
    """Returns the component with these attributes. Equal arguments return the same object."""
    return Component(open_count, axes, leaves)


def _find_order(
    colour: dict[int, int], leaves: Sequence[Leaf], open_count: int, rest: Sequence[int]
) -> tuple[list[int], tuple[Leaf, ...]]:
    """Finds the order of classes whose numbering makes the sorted leaves smallest.

    Args:
        colour: initial colour of each class. Those of ``rest`` are larger than those of the open classes.
        leaves: the leaves.
        open_count: number of classes whose order is known.
        rest: the other classes.

    Returns:
        The order, and the sorted leaves with each class replaced by its position in this order.
    """
    cells = [list(cell) for _, cell in groupby(sorted(rest, key=colour.__getitem__), key=colour.__getitem__)]
    colour = {**colour, **_colour_cells(cells, open_count)}
    while len(cells) < len(rest):
        finer = _refine_cells(cells, colour, leaves)
        if len(finer) == len(cells):
            break
        cells = finer
        colour |= _colour_cells(cells, open_count)
    tied = next((cell for cell in cells if len(cell) > 1), None)
    if tied is None:
        return _apply_order(sorted(colour, key=colour.__getitem__), leaves)
    loose = {c for cell in cells if len(cell) > 1 for c in cell}
    apart = sorted((c for c in colour if c not in loose), key=colour.__getitem__)
    number = {c: k for k, c in enumerate(apart)}
    parts = split_components(leaves, number)
    if len(parts) > 1:  # parts that share only distinguished classes are numbered separately; equal parts stay equal
        blocks = []
        for part in parts:
            inside = sorted({c for _, classes in part for c in classes if c not in number})
            inner = {**number, **{c: len(apart) + colour[c] for c in inside}}
            order, named = _find_order(inner, part, len(apart), inside)
            blocks.append(([colour[c] for c in order[len(apart) :]], named, order[len(apart) :]))
        blocks.sort(key=itemgetter(0, 1))
        return _apply_order([*apart, *(c for _, _, order in blocks for c in order)], leaves)
    options = []
    for c in tied:
        split = {d: k if k < open_count else 2 * k + 1 for d, k in colour.items()}
        split[c] -= 1
        options.append(_find_order(split, leaves, open_count, rest))
    return min(options, key=itemgetter(1))


def _colour_cells(cells: list[list[int]], first: int) -> dict[int, int]:
    """Returns the colour of each class, which is the position of its cell. For ``first`` = 2: ``[[4, 7], [5]] -> {4: 2,
    7: 2, 5: 4}``.

    Args:
        cells: ordered cells; the classes of a cell are not distinguished so far.
        first: colour of the first cell.
    """
    colour = {}
    for cell in cells:
        for c in cell:
            colour[c] = first
        first += len(cell)
    return colour


def _refine_cells(cells: list[list[int]], colour: Mapping[int, int], leaves: Sequence[Leaf]) -> list[list[int]]:
    """Splits each cell of classes into those that are touched by the same leaves, at the same positions and together
    with classes of the same colours."""
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


def _apply_order(order: list[int], leaves: Sequence[Leaf]) -> tuple[list[int], tuple[Leaf, ...]]:
    """Returns the given order of classes, and the sorted leaves with each class replaced by its position in this
    order."""
    number = {c: k for k, c in enumerate(order)}
    return order, tuple(sorted([(name, tuple([number[c] for c in classes])) for name, classes in leaves]))
