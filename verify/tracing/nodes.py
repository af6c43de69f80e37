"""The nodes of the graph that a module is read as: a class for each kind of node.

A slot is one of the indices of a node. Every node computes its exact value from those of its sources, so that a reading
can be held against the module (``models.py``). Read next: ``graph.py`` (walks and changes graphs).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

Sizes = tuple[int, ...]
"""A size at every build."""
PerBuild = tuple[float, ...]
"""A number at every build."""
TensorFunction = Callable[[Tensor], Tensor]
_EINSUM_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COUNT = itertools.count()


class Unreadable(UsageError):
    """A module that cannot be read: where, which call, what to do."""


class NotFinite(Unreadable):
    """A module whose output is infinite or not a number, so that nothing can be said of it."""


class UnabsorbedFactor(Unreadable):
    """A module that multiplies by a power of the sizes where no tensor takes it up: shapes would be wrong, too."""


class Restart(Exception):
    """A dimension of a leaf is two indices; the reading begins again."""


def make_error(where: str, what: str) -> Unreadable:
    """Return the error of a place in the module."""
    return Unreadable(f"{where or 'model'}: {what}")


class IndexClass:
    """A class of indices that are one, as a union-find structure.

    Args:
        sizes: Size of the index at every build.
        leaf: The dimension of a parameter or an input that it begins with, if any.
    """

    def __init__(self, sizes: Sequence[int], leaf: tuple[Any, ...] | None = None) -> None:
        self.sizes: Sizes = tuple(sizes)
        self.leaves: set[tuple[Any, ...]] = set() if leaf is None else {leaf}
        self.parent: IndexClass | None = None

    def find_root(self) -> IndexClass:
        index = self
        while index.parent is not None:
            index = index.parent
        return index

    @property
    def fixed(self) -> bool:
        """Return whether the size is the same at every build."""
        return len(set(self.find_root().sizes)) == 1


def join_indices(a: IndexClass, b: IndexClass) -> IndexClass:
    """Make one class of two, and return it."""
    a, b = a.find_root(), b.find_root()
    if a is not b:
        b.parent = a
        a.leaves |= b.leaves
    return a


Source = tuple["TracedNode", tuple[int, ...]]
"""A node that is read, and the label of each of its slots."""


@dataclass(eq=False, kw_only=True)
class TracedNode:
    """One tensor of the graph.

    Attributes:
        indices: The index class of each slot.
        where: Path of the module that makes the tensor.
        sources: What the node reads. A label is a slot of this node, except in a contraction.
        value_function: Returns the value from those of the sources, where the kind does not say it.
        note: What the equations leave out here.
        part: For a part of another node: that node, its slot, and where the part begins and ends at every build.
        call: The torch call that makes the tensor, as ``TorchCall.key``, and the place among its results.
        cache: What functions have said of the node, by function.
    """

    indices: list[IndexClass] = field(default_factory=list)
    where: str = ""
    sources: tuple[Source, ...] = ()
    value_function: Callable[..., Tensor] | None = None
    note: str = ""
    part: tuple[TracedNode, int, Sizes, Sizes] | None = None
    call: tuple[str, str, int, int] | None = None
    number: int = field(default_factory=lambda: next(_COUNT))
    cache: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def label(self) -> str:
        """The name that tells the node from others of its kind, or ""."""
        return ""

    @property
    def over(self) -> tuple[int, ...]:
        """The slots that a function goes along."""
        return ()

    @property
    def children(self) -> list[TracedNode]:
        return [node for node, _ in self.sources]

    @property
    def source(self) -> TracedNode:
        return self.sources[0][0]

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(range(len(self.indices)))

    @cached_property
    def is_weight(self) -> bool:
        """Whether the node is made of parameters alone, without functions."""
        return bool(self.sources) and all(c.is_weight for c in self.children)

    @property
    def is_input_only(self) -> bool:
        """Whether the node is made of the input and of constants alone."""
        return not any(isinstance(node, Parameter) for node in walk_graph(self))

    def __str__(self) -> str:
        name = type(self).__name__.removesuffix("Node")
        kind = "".join(f" {x.lower()}" if x.isupper() else x for x in name)
        return f"{kind.strip()} {self.label}".strip()

    def fail(self, what: str) -> Unreadable:
        """Return the error of this node."""
        return make_error(self.where, what)

    def derive(self, kind: type[Node], where: str, **fields: Any) -> Node:
        """Return a node of a kind that reads this one and has its indices."""
        return kind(indices=list(self.indices), where=where, sources=((self, self.slots),), **fields)

    def sum_to(self, out: tuple[int, ...], where: str) -> TracedNode:
        """Return these slots of the node, in this order, summed over the others."""
        if out == self.slots:
            return self
        of = dict(enumerate(self.indices))
        indices = [of[x] for x in out]
        return ContractionNode(indices=indices, where=where, sources=((self, self.slots),), out=out, labels=of)

    def copy_with(self, **changes: Any) -> Self:
        """Return another node, which differs in some attributes."""
        return replace(self, **{"number": next(_COUNT), **changes})

    def with_sources(self, sources: tuple[Source, ...]) -> Self:
        """Return the node with other sources; the node itself if each source is the same object as before."""
        alike = all(a is b for (a, _), (b, _) in zip(sources, self.sources, strict=True))
        return self if alike else self.copy_with(sources=sources)

    def evaluate(self, values: dict[int, Tensor]) -> Tensor:
        """Return the exact value at the first build, its dimensions as ``indices``.

        Args:
            values: The values that are known, by number of the node; all that are computed are added.
        """
        for node in walk_graph(self, values):
            known = [values[c.number] for c in node.children]
            values[node.number] = node.compute(known) if node.value_function is None else node.value_function(*known)
        return values[self.number]

    def compute(self, sources: list[Tensor]) -> Tensor:
        """Return the value from those of the sources, as the kind says.

        Raises:
            Unreadable: The node is no signal.
        """
        raise self.fail(f"reads {self}, which is no signal")


Node = TypeVar("Node", bound=TracedNode)


# leaves -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Leaf(TracedNode):
    """A tensor that is made of no other one.

    Attributes:
        value: The value at the first build; None for a leaf that stands for several.
    """

    value: Any = None

    def compute(self, sources: list[Tensor]) -> Tensor:
        return super().compute(sources) if self.value is None else torch.as_tensor(self.value)


@dataclass(eq=False, kw_only=True)
class Parameter(Leaf):
    """A parameter, or a part of one.

    Attributes:
        name: Its name in the module.
        axes: The dimension of the parameter that each slot belongs to.
        frozen: Whether it is a constant of the module that stands in the equations as a frozen parameter.
    """

    name: str
    axes: tuple[int, ...] = ()
    frozen: bool = False

    @property
    def label(self) -> str:
        return self.name

    @cached_property
    def is_weight(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class DataNode(Leaf):
    """The input of the module."""


@dataclass(eq=False, kw_only=True)
class ConstantNode(TracedNode):
    """A tensor that depends on no parameter and no input; its views have the index classes.

    Attributes:
        values: The value at every build.
    """

    values: Sequence[Tensor] = ()


@dataclass(eq=False, kw_only=True)
class EquationConstant(Leaf):
    """A constant that stands in the equations."""


@dataclass(eq=False, kw_only=True)
class PartSelector(EquationConstant):
    """A constant that says which part of a concatenation its factor is."""


@dataclass(eq=False, kw_only=True)
class PartialTensor(TracedNode):
    """A new tensor of which parts are written.

    Attributes:
        pieces: Where each part begins and ends, its dimension and its view.
    """

    pieces: list[tuple[int, int, int, Any]] = field(default_factory=list)


# products and sums --------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ContractionNode(TracedNode):
    """A product, summed over the labels that are not in ``out``.

    Attributes:
        out: The label of each slot.
        labels: The index class of every label.
        factor: The number that the module itself multiplies by, at every build; empty for 1.
    """

    out: tuple[int, ...] = ()
    labels: dict[int, IndexClass] = field(default_factory=dict)
    factor: PerBuild = ()

    def compute(self, sources: list[Tensor]) -> Tensor:
        names = {label: _EINSUM_LETTERS[k] for k, label in enumerate(self.labels)}
        sides = ["".join(names[x] for x in labels) for _, labels in self.sources]
        product = torch.einsum(f"{','.join(sides)}->{''.join(names[x] for x in self.out)}", *sources)
        return product * self.factor[0] if self.factor else product


@dataclass(eq=False, kw_only=True)
class SumNode(TracedNode):
    """A sum; a term that lacks a slot is repeated along it."""

    def compute(self, sources: list[Tensor]) -> Tensor:
        total: Tensor | float = 0.0
        for value, (_, labels) in zip(sources, self.sources, strict=True):
            order = sorted(range(len(labels)), key=labels.__getitem__)
            shape = [1] * len(self.indices)
            for k in order:
                shape[labels[k]] = value.shape[k]
            total = total + value.permute(order).reshape(shape)
        assert isinstance(total, Tensor)
        return total


@dataclass(eq=False, kw_only=True)
class FixedConcatenation(SumNode):
    """Parts beside each other along an axis that does not grow: to leading order their sum.

    Attributes:
        slot: The slot along which they stand.
        begins: Where each part begins, at every build.
    """

    slot: int = 0
    begins: list[Sizes] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Concatenation(TracedNode):
    """Parts beside each other along an axis that grows; attributes as of ``FixedConcatenation``."""

    slot: int = 0
    begins: list[Sizes] = field(default_factory=list)


# functions ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class FunctionNode(TracedNode):
    """A function of one signal.

    Attributes:
        name: Its name in the equations.
        over: The slots that it goes along; none where it acts entry by entry.
    """

    name: str
    over: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        return self.name

    @cached_property
    def is_weight(self) -> bool:
        return False


@dataclass(eq=False, kw_only=True)
class Selection(FunctionNode):
    """The largest entries of scores along a slot, perhaps behind a function, the others zero.

    Attributes:
        count: How many are chosen.
    """

    count: int = 0


@dataclass(eq=False, kw_only=True)
class CentredSignal(FunctionNode):
    """A signal less its mean along a slot: linear, so that the signal itself may be taken off again."""


@dataclass(eq=False, kw_only=True)
class PartialTopK(FunctionNode):
    """The values of a top-K that leaves entries out; groups of experts are chosen by it, and no equation says it."""

    name: str = "few_chosen"


@dataclass(eq=False, kw_only=True)
class StoppedGradient(FunctionNode):
    """A signal through which no gradient passes."""

    name: str = "stopped"
    value_function: Callable[..., Tensor] | None = field(default=lambda v: v)


@dataclass(eq=False, kw_only=True)
class ShiftedSignal(TracedNode):
    """A signal to which a constant is added.

    Attributes:
        values: The constant at every build.
        frozen: Whether it differs along an axis that grows.
        entrywise: Whether ``exact`` acts on every entry, whatever the shape.
    """

    values: Sequence[Tensor]
    frozen: bool = False
    entrywise: bool = False

    @property
    def label(self) -> str:
        return f"{float(self.values[0].abs().max()):g}"


@dataclass(eq=False, kw_only=True)
class EntryPick(TracedNode):
    """One entry along a slot of the source.

    Attributes:
        slot: The slot of the source.
        at: The entry, at every build.
    """

    slot: int
    at: Sizes

    def compute(self, sources: list[Tensor]) -> Tensor:
        return sources[0].select(self.slot, self.at[0])


# of the size of the source ------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class SameSizeNode(TracedNode):
    """A tensor of the size of its source, the first one.

    Attributes:
        entrywise: Whether ``exact`` acts on every entry, whatever the shape.
    """

    entrywise: bool = False


@dataclass(eq=False, kw_only=True)
class ScaledSignal(SameSizeNode):
    """A signal times a number.

    Attributes:
        factor: The number, at every build.
    """

    factor: PerBuild = ()


@dataclass(eq=False, kw_only=True)
class Rotation(SameSizeNode):
    """A rotated signal, which meets the signal itself as that meets itself (rotary positions)."""


@dataclass(eq=False, kw_only=True)
class Permutation(SameSizeNode):
    """The entries of a signal in another order.

    Attributes:
        signed: Whether some of them have another sign.
    """

    signed: bool = False


@dataclass(eq=False, kw_only=True)
class EntrySelection(SameSizeNode):
    """Some entries of a signal along an axis that does not grow."""


# walks --------------------------------------------------------------------------------------------------------------


def walk_graph(root: TracedNode, known: Iterable[int] = ()) -> Iterator[TracedNode]:
    """Yield every node once, sources first.

    Args:
        known: Numbers of nodes that are left out, with what they alone read.
    """
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


Result = TypeVar("Result")


def cache_on_node(function: Callable[[TracedNode], Result]) -> Callable[[TracedNode], Result]:
    """Make a function of a node keep its answer with the node."""

    @wraps(function)
    def look_up(node: TracedNode) -> Result:
        if function not in node.cache:
            node.cache[function] = function(node)
        answer: Result = node.cache[function]
        return answer

    return look_up
