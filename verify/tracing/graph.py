"""A module as a graph of equations: indices joined into classes, nodes with exact numbers, torch tensors as views.

A torch dimension is an ordered list of index classes. Classes are joined where indices are contracted or added; the
sizes of a class over all builds say its axis. Every node computes its exact value from its sources, so that a reading
can be held against the module (``models.py``). Read next: ``reading.py`` (makes the graph), ``rules.py`` (calls).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

Sizes = tuple[int, ...]
"""A size at every build."""
Vector = tuple[float, ...]
"""A number at every build."""
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUMBER = re.compile(r"(?<![A-Za-z_\[\d])\d+(?!\])")
"""A number in a parameter's name; the numbers of parts, in brackets, are no places in a loop."""
_COUNT = itertools.count()


class Unreadable(UsageError):
    """A module that cannot be read: where, which call, what to do."""


class NotFinite(Unreadable):
    """A module whose output is infinite or not a number, so that nothing can be said of it."""


class Scaled(Unreadable):
    """A module that multiplies by a power of the sizes where no tensor takes it up: shapes would be wrong, too."""


def refused(where: str, what: str) -> Unreadable:
    """The error of a place in the module."""
    return Unreadable(f"{where or 'model'}: {what}")


class Restart(Exception):
    """A dimension of a leaf is two indices; the reading begins again."""


class IndexClass:
    """A class of indices (union-find). sizes: at every build. leaves: dimensions of parameters and inputs in it."""

    def __init__(self, sizes: Sequence[int], leaf: tuple[Any, ...] | None = None) -> None:
        self.sizes: Sizes = tuple(sizes)
        self.leaves: set[tuple[Any, ...]] = set() if leaf is None else {leaf}
        self.parent: IndexClass | None = None

    def root(self) -> IndexClass:
        index = self
        while index.parent is not None:
            index = index.parent
        return index

    @property
    def fixed(self) -> bool:
        """Is the size the same at every build?"""
        return len(set(self.root().sizes)) == 1


def join(a: IndexClass, b: IndexClass) -> IndexClass:
    """One class of two."""
    a, b = a.root(), b.root()
    if a is not b:
        b.parent = a
        a.leaves |= b.leaves
    return a


Entrywise = Callable[[Tensor], Tensor]


def times(a: Vector, b: Vector) -> Vector:
    """Factors multiplied; an empty one is 1."""
    return tuple(x * y for x, y in zip(a, b, strict=True)) if a and b else a or b


SIZED = {"same", "scale", "turned", "mixed", "entries"}
"""Kinds of nodes of the size of their source: it, times a number, turned, in another order, some of its entries."""
FUNCTION_KINDS, SUM_KINDS, CONSTANT_KINDS = {"func", "stopped"}, {"add", "blend"}, {"fixed", "which"}
"""Kinds of functions; of sums, to leading order; and of constants of the equations."""
Source = tuple["TracedNode", tuple[int, ...]]
"""A node that is read, and the label of each of its slots."""


@dataclass(eq=False)
class TracedNode:
    """One tensor of the graph; a slot is one of its indices.

    Attributes:
        kind: ``param``, ``data``, ``const``, ``fixed`` (a constant of the equations), ``which`` (one that says which
            part); ``contract`` (a product, other labels summed), ``add``, ``blend`` (parts beside each other along an
            axis that does not grow), ``cat`` (along one that does), ``func``, ``stopped`` (a function without a
            gradient), ``shift`` (a constant is added), ``pick`` (one entry along a slot), ``pieces`` (a new tensor of
            which parts are written), or one of ``SIZED``.
        indices: of its slots. where: path of the module.
        sources: what it reads. A label is a slot of this node, but in a contraction, whose ``out`` are those of its
            slots and whose ``labels`` have the index of each.
        factor: at every build, what the module itself multiplies by. name: of a parameter, or of a function.
        over: slots a function goes along. slot, at: of a pick or a cat. value: of a leaf, at the first build.
        exact: the value from those of the sources, where the kind does not say it.
        entrywise: is ``exact`` one of every entry, whatever the shape?
        note: what the equations leave out here. part: of a part the whole, its slot, where it begins and ends.
        frozen: of an added constant, whether it differs along an axis that grows.
        axes: of a parameter the dimension of each slot.
        call: the torch call that made the tensor, as ``TorchCall.key``, and the place among its results.
    """

    kind: str
    indices: list[IndexClass]
    where: str = ""
    sources: tuple[Source, ...] = ()
    out: tuple[int, ...] = ()
    labels: dict[int, IndexClass] = field(default_factory=dict)
    factor: Vector = ()
    name: str = ""
    over: tuple[int, ...] = ()
    slot: int = 0
    at: Sizes = ()
    value: Any = None
    exact: Callable[..., Tensor] | None = None
    entrywise: bool = False
    note: str = ""
    part: tuple[TracedNode, int, Sizes, Sizes] | None = None
    call: tuple[str, str, int, int] | None = None
    axes: tuple[int, ...] = ()
    frozen: bool = False
    number: int = field(default_factory=lambda: next(_COUNT))
    answers: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def children(self) -> list[TracedNode]:
        return [node for node, _ in self.sources]

    @property
    def source(self) -> TracedNode:
        return self.sources[0][0]

    @cached_property
    def weight(self) -> bool:
        """Is it made of parameters alone, without functions?"""
        made = bool(self.sources) and self.kind not in FUNCTION_KINDS and all(c.weight for c in self.children)
        return self.kind == "param" or made

    @property
    def sized(self) -> bool:
        """Is it of the size of its source?"""
        return self.kind in SIZED

    @property
    def given(self) -> bool:
        """Is it made of the input and of constants alone?"""
        return all(node.kind != "param" for node in walk(self))

    def fail(self, what: str) -> Unreadable:
        return refused(self.where, what)

    def behind(self, kind: str, where: str, **fields: Any) -> TracedNode:
        """A node that reads this one, with its indices."""
        return TracedNode(kind, list(self.indices), where, ((self, self.slots),), **fields)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(range(len(self.indices)))

    def summed(self, out: tuple[int, ...], where: str) -> TracedNode:
        """These of the node's slots, in this order, and a sum over the others."""
        if out == self.slots:
            return self
        of = dict(enumerate(self.indices))
        return TracedNode("contract", [of[x] for x in out], where, ((self, self.slots),), out, of)

    def but(self, **changes: Any) -> TracedNode:
        """The same with something changed, as another node."""
        return replace(self, **{"number": next(_COUNT), **changes})

    def evaluate(self, values: dict[int, Tensor]) -> Tensor:
        """The exact value at the first build, its dimensions as ``indices``; ``values`` keeps those that are known."""
        for node in walk(self, values):
            values[node.number] = node._compute([values[c.number] for c in node.children])
        return values[self.number]

    def _compute(self, sources: list[Tensor]) -> Tensor:
        if self.exact is not None:
            return self.exact(*sources)
        if self.kind == "contract":
            names = {label: _LETTERS[k] for k, label in enumerate(self.labels)}
            sides = ["".join(names[x] for x in labels) for _, labels in self.sources]
            product = torch.einsum(f"{','.join(sides)}->{''.join(names[x] for x in self.out)}", *sources)
            return product * self.factor[0] if self.factor else product
        if self.kind in SUM_KINDS:
            return sum_of([(v, labels) for v, (_, labels) in zip(sources, self.sources, strict=True)], self.indices)
        if self.kind == "pick":
            return sources[0].select(self.slot, self.at[0])
        if self.value is None or self.kind == "pieces":
            raise self.fail(f"reads {self.kind}, which is no signal")
        return torch.as_tensor(self.value)


Answer = TypeVar("Answer")


def asked_once(function: Callable[[TracedNode], Answer]) -> Callable[[TracedNode], Answer]:
    """Make a function of a node keep its answer with the node."""

    @wraps(function)
    def ask(node: TracedNode) -> Answer:
        if function not in node.answers:
            node.answers[function] = function(node)
        answer: Answer = node.answers[function]
        return answer

    return ask


def sum_of(terms: Sequence[tuple[Tensor, tuple[int, ...]]], indices: Sequence[IndexClass]) -> Tensor:
    """Terms added, each with the slot of every dimension; a dimension that a term lacks is repeated."""
    total: Tensor | float = 0.0
    for value, labels in terms:
        order = sorted(range(len(labels)), key=labels.__getitem__)
        shape = [1] * len(indices)
        for k in order:
            shape[labels[k]] = value.shape[k]
        total = total + value.permute(order).reshape(shape)
    assert isinstance(total, Tensor)
    return total


def walk(root: TracedNode, known: Iterable[int] = ()) -> Iterator[TracedNode]:
    """Every node once, sources first; without those of known numbers, and what they alone read."""
    seen = {*known}
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node.number not in seen:
            seen.add(node.number)
            stack.append((node, True))
            stack += [(c, False) for c in reversed(node.children)]


def rebuilt(root: TracedNode, change: Callable[[TracedNode], TracedNode]) -> TracedNode:
    """The graph with ``change`` applied to every node, its sources changed first."""
    made: dict[int, TracedNode] = {}
    for node in walk(root):
        sources = tuple((made[c.number], labels) for c, labels in node.sources)
        alike = all(a is b for (a, _), (b, _) in zip(sources, node.sources, strict=True))
        made[node.number] = change(node if alike else node.but(sources=sources))
    return made[root.number]


def without(indices: Sequence[IndexClass], slot: int) -> list[IndexClass]:
    return [x for k, x in enumerate(indices) if k != slot]


def pushed(node: TracedNode, slot: int, change: Callable[[TracedNode, int], TracedNode]) -> TracedNode:
    """A node of which one slot became several or none, because it did so in every source that has it.

    Args:
        change: a source and its slot, to the source in which others stand in its place.
    """
    product = node.kind == "contract"
    mine = node.out[slot] if product else slot + (node.kind == "pick" and slot >= node.slot)
    made, found = [], list[IndexClass]()
    for c, labels in node.sources:
        if mine in labels:
            at, c, before = labels.index(mine), change(c, labels.index(mine)), len(labels)
            here = c.indices[at : at + 1 + len(c.indices) - before]
            found = found or here
            for a, b in zip(found, here, strict=True):
                join(a, b)
        made.append((c, labels))
    count = len(found)
    fresh = [max(node.labels) + 1 + k for k in range(count)] if product else [mine + k for k in range(count)]

    def spread(labels: Sequence[int], product: bool = product) -> tuple[int, ...]:
        rest = 0 if product else count - 1
        return tuple(y for x in labels for y in (fresh if x == mine else [x + rest * (x > mine)]))

    more: dict[str, Any] = {"call": None, "out": spread(node.out) if product else ()}
    more["over"] = moved(node.over, slot, count)
    if product:
        kept = {x: index for x, index in node.labels.items() if x != mine}
        more["labels"] = kept | dict(zip(fresh, found, strict=True))
    if node.kind == "pick":
        more["slot"] = node.slot + (count - 1) * (node.slot > mine)
    indices = [*node.indices[:slot], *found, *node.indices[slot + 1 :]]
    return node.but(sources=tuple((c, spread(labels)) for c, labels in made), indices=indices, **more)


def moved(slots: Iterable[Any], slot: int, count: int) -> tuple[Any, ...]:
    """Slots where so many stand in the place of one."""
    return tuple(
        y
        for x in slots
        for y in ([x] if not isinstance(x, int) or x < slot else range(x, x + count) if x == slot else [x + count - 1])
    )


def wiring(node: TracedNode) -> tuple[Any, ...]:
    """How a node reads its sources, the labels of a product in the order in which they come."""
    if node.kind != "contract":
        return tuple(labels for _, labels in node.sources)
    names: dict[int, int] = {}
    read = tuple(tuple(names.setdefault(x, len(names)) for x in labels) for _, labels in node.sources)
    return *read, tuple(names[x] for x in node.out)


Dims = list[tuple[int | IndexClass, ...]]


@dataclass
class View:
    """A torch tensor: a node, and of each dimension the slots, or the classes along which it repeats."""

    node: TracedNode
    dims: Dims

    def with_dim(self, d: int, *dims: tuple[int | IndexClass, ...]) -> View:
        """The view with others in the place of one dimension."""
        return View(self.node, [*self.dims[:d], *dims, *self.dims[d + 1 :]])

    def index(self, entry: int | IndexClass) -> IndexClass:
        return (self.node.indices[entry] if isinstance(entry, int) else entry).root()

    def sizes(self, dim: int, builds: int) -> Sizes:
        sizes = [self.index(e).sizes for e in self.dims[dim]]
        return tuple(prod(column) for column in zip(*sizes, strict=True)) if sizes else (1,) * builds

    def laid_out(self, value: Tensor) -> Tensor:
        """The node's value in the dimensions of the torch tensor."""
        entries = [e for dim in self.dims for e in dim]
        value = value.permute([e for e in entries if isinstance(e, int)])
        for k, e in enumerate(entries):
            if not isinstance(e, int):
                value = value.unsqueeze(k)
        whole = [value.shape[k] if isinstance(e, int) else self.index(e).sizes[0] for k, e in enumerate(entries)]
        value, at, shape = value.expand(whole), 0, []
        for dim in self.dims:
            shape.append(prod(whole[at : at + len(dim)]))
            at += len(dim)
        return value.reshape(shape)

    def taken_back(self, value: Tensor, like: Tensor) -> Tensor:
        """The node's value from the torch tensor's, ``like`` one of its shape; the inverse of ``laid_out``."""
        entries = [e for dim in self.dims for e in dim]
        whole = [like.shape[e] if isinstance(e, int) else self.index(e).sizes[0] for e in entries]
        value = value.reshape(whole)
        for k in reversed(range(len(entries))):
            if not isinstance(entries[k], int):
                value = value.select(k, 0)
        slots = [e for e in entries if isinstance(e, int)]
        return value.permute([slots.index(k) for k in range(len(slots))])
