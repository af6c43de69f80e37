"""Defines the nodes of the graph that is made from a module. A node is a tensor; its class says how it is computed.

A slot is one of the dimensions of a node. Every node can compute its exact value from those of its sources, so that
the graph can be compared with the module (``models.py``). Read next: ``graph.py`` (walks and changes graphs).
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
"""A size in each build of the module."""
PerBuild = tuple[float, ...]
"""A number in each build of the module."""
TensorFunction = Callable[[Tensor], Tensor]
_EINSUM_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COUNT = itertools.count()


class Unreadable(UsageError):
    """The error for a module that cannot be read. It says where, at which call, and what to do."""


class NotFinite(Unreadable):
    """The error for a module whose output is infinite or NaN, so that its equations cannot be checked."""


class UnabsorbedFactor(Unreadable):
    """The error for a module that multiplies by a power of the sizes where no parameter can absorb it.

    A factor is absorbed by a parameter if the init std and learning rate of the parameter can make up for it. Reading
    such a module by the shapes of its parameters alone would give wrong numbers, too.
    """


class Restart(Exception):
    """Raised when a dimension of a parameter or input turns out to consist of two indices, as in ``x.view(heads, -1)``.

    The graph must then be made again, with this dimension split from the beginning.
    """


def make_error(where: str, what: str) -> Unreadable:
    """Return the error for a module, with the path ``where`` of the submodule in front of the message."""
    return Unreadable(f"{where or 'model'}: {what}")


class IndexClass:
    """A set of dimensions of tensors that have to be the same index of the equations, since some operation sums over
    them together or adds tensors along them.

    It is an element of a union-find structure: joined classes have one root (``find_root``).

    Args:
        sizes: Size of the index in each build of the module.
        leaf: The dimension of a parameter or input in which it originates; None if a call creates it.
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
        """Whether the size is the same in each build of the module, so that the index does not grow."""
        return len(set(self.find_root().sizes)) == 1


def join_indices(a: IndexClass, b: IndexClass) -> IndexClass:
    """Merge two classes of indices, which turned out to be the same index, and return the merged class."""
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

    A slot is one of the dimensions of the node, given by its number.

    Attributes:
        indices: The index class of each dimension (slot).
        where: Path of the module that makes the tensor.
        sources: The nodes from which it is computed, each with a label for each of its dimensions. A label is the
            number of a dimension of this node; in a contraction (``ContractionNode``) it is a key of ``labels``.
        value_function: Computes the value from those of the sources; None if the class of the node defines how
            (``compute``).
        note: What the equations omit at this node, as a sentence; "" if nothing.
        part: For a part of another node, such as a slice: that node, the slot along which it is cut, and where the
            part begins and ends in each build of the module.
        call: The torch call that makes the tensor, as ``TorchCall.key``, and the position among the results of the
            call.
        cache: Cached results of functions of the node, by function.
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
        """What distinguishes the node from others of its class, such as the name of a parameter; "" if nothing does."""
        return ""

    @property
    def over(self) -> tuple[int, ...]:
        """The dimensions along which the node mixes entries, as a norm or softmax does; empty for other nodes."""
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
        """Whether the node is a parameter, or is computed from parameters only, by products and sums."""
        return bool(self.sources) and all(c.is_weight for c in self.children)

    @property
    def is_input_only(self) -> bool:
        """Whether the node is computed from the input and constants only."""
        return not any(isinstance(node, Parameter) for node in walk_graph(self))

    def __str__(self) -> str:
        name = type(self).__name__.removesuffix("Node")
        kind = "".join(f" {x.lower()}" if x.isupper() else x for x in name)
        return f"{kind.strip()} {self.label}".strip()

    def fail(self, what: str) -> Unreadable:
        """Return an error that names the module in which this node is computed."""
        return make_error(self.where, what)

    def derive(self, kind: type[Node], where: str, **fields: Any) -> Node:
        """Return a new node of class ``kind`` with this node as its source and with the same indices."""
        return kind(indices=list(self.indices), where=where, sources=((self, self.slots),), **fields)

    def sum_to(self, out: tuple[int, ...], where: str) -> TracedNode:
        """Return the node with the dimensions ``out``, in this order, summed over all others."""
        if out == self.slots:
            return self
        of = dict(enumerate(self.indices))
        indices = [of[x] for x in out]
        return ContractionNode(indices=indices, where=where, sources=((self, self.slots),), out=out, labels=of)

    def copy_with(self, **changes: Any) -> Self:
        """Return a copy of the node in which some attributes are changed."""
        return replace(self, **{"number": next(_COUNT), **changes})

    def with_sources(self, sources: tuple[Source, ...]) -> Self:
        """Return the node with other sources; the node itself if each source is the same object as before."""
        alike = all(a is b for (a, _), (b, _) in zip(sources, self.sources, strict=True))
        return self if alike else self.copy_with(sources=sources)

    def evaluate(self, values: dict[int, Tensor]) -> Tensor:
        """Return the exact value of the tensor in the first build of the module, with one dimension for each of
        ``indices``.

        Args:
            values: The known values, by number of the node; every value that is computed is added.
        """
        for node in walk_graph(self, values):
            known = [values[c.number] for c in node.children]
            values[node.number] = node.compute(known) if node.value_function is None else node.value_function(*known)
        return values[self.number]

    def compute(self, sources: list[Tensor]) -> Tensor:
        """Return the value of the node, given the values of its sources. Classes without ``value_function`` override
        it.

        Raises:
            Unreadable: The node has no value of its own, like a parameter that stands for those of all layers.
        """
        raise self.fail(f"reads {self}, which is no signal")


Node = TypeVar("Node", bound=TracedNode)


# leaves -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Leaf(TracedNode):
    """A node without sources: a parameter, an input or a constant of the equations.

    Attributes:
        value: The value in the first build of the module; None if the node stands for several tensors, such as the
            parameters of all layers.
    """

    value: Any = None

    def compute(self, sources: list[Tensor]) -> Tensor:
        return super().compute(sources) if self.value is None else torch.as_tensor(self.value)


@dataclass(eq=False, kw_only=True)
class Parameter(Leaf):
    """A parameter, or a part of one.

    Attributes:
        name: Its name in the module.
        axes: For each dimension of the node, the dimension of the parameter that it belongs to (a split dimension
            gives several).
        frozen: Whether it is a constant of the module that the equations contain as a frozen parameter.
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
    """A constant of the module: a tensor that depends on no parameter and no input.

    Attributes:
        values: The value in each build of the module.
    """

    values: Sequence[Tensor] = ()


@dataclass(eq=False, kw_only=True)
class EquationConstant(Leaf):
    """A constant that the equations contain by name, such as ``C`` in ``y[a] = C[a,b] x[b]``."""


@dataclass(eq=False, kw_only=True)
class PartSelector(EquationConstant):
    """A constant of zeros and ones that marks one part of a concatenation.

    A concatenation of equal parts is the sum of the parts, each times the constant that is 1 at its position.
    """


@dataclass(eq=False, kw_only=True)
class PartialTensor(TracedNode):
    """A new tensor (such as ``torch.empty``) to which values are assigned part by part.

    Attributes:
        pieces: For each assigned part: the dimension along which it is cut, where it begins and ends along this
            dimension, and the view that was assigned.
    """

    pieces: list[tuple[int, int, int, Any]] = field(default_factory=list)


# products and sums --------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ContractionNode(TracedNode):
    """A product of tensors, summed over the labels that are not in ``out``, as by ``torch.einsum``.

    A label is an integer that stands for one index of the einsum.

    Attributes:
        out: The label of each dimension of the result.
        labels: The index class of every label.
        factor: The number that the module itself multiplies by, in each build of the module; empty for 1.
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
    """An elementwise sum; a term that lacks a dimension is repeated along it."""

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
    """A concatenation along an axis of fixed size.

    Equations write it as the sum of the parts, which is as large (in powers of the sizes).

    Attributes:
        slot: The dimension along which parts are concatenated.
        begins: For each part, the position at which it begins, in each build of the module.
    """

    slot: int = 0
    begins: list[Sizes] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Concatenation(TracedNode):
    """A concatenation along an axis that grows. Its attributes are those of ``FixedConcatenation``."""

    slot: int = 0
    begins: list[Sizes] = field(default_factory=list)


# functions ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class FunctionNode(TracedNode):
    """A function of one signal.

    Attributes:
        name: Name of the function in the equations.
        over: The dimensions along which it mixes entries, as a norm does; empty if it is elementwise.
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
    """A top-K: keeps the K largest entries of scores along a dimension (or a function of them) and sets the others to
    zero.

    Attributes:
        count: The number K of entries that are kept.
    """

    count: int = 0


@dataclass(eq=False, kw_only=True)
class CentredSignal(FunctionNode):
    """A signal minus its mean along a dimension.

    Unlike other functions this one is linear, so that in a difference such as (x - mean x) - x the signal cancels.
    """


@dataclass(eq=False, kw_only=True)
class PartialTopK(FunctionNode):
    """The values of a top-K over a fixed number of candidates, such as groups of experts.

    Equations cannot express it.
    """

    name: str = "few_chosen"


@dataclass(eq=False, kw_only=True)
class StoppedGradient(FunctionNode):
    """A signal through which no gradient passes, as ``x.detach()`` returns it."""

    name: str = "stopped"
    value_function: Callable[..., Tensor] | None = field(default=lambda v: v)


@dataclass(eq=False, kw_only=True)
class ShiftedSignal(TracedNode):
    """A signal to which a constant is added.

    Attributes:
        values: The constant, in each build of the module.
        frozen: Whether the entries of the constant differ along an axis that grows, so that the equations need a frozen
            parameter for it.
        entrywise: Whether ``value_function`` acts on each entry separately, so that it also applies to a slice of the
            signal.
    """

    values: Sequence[Tensor]
    frozen: bool = False
    entrywise: bool = False

    @property
    def label(self) -> str:
        return f"{float(self.values[0].abs().max()):g}"


@dataclass(eq=False, kw_only=True)
class EntryPick(TracedNode):
    """One entry of the source along one of its dimensions, as ``x.select(dim, index)`` returns it, without this
    dimension.

    Attributes:
        slot: The number of this dimension in the source.
        at: The index of the entry, in each build of the module.
    """

    slot: int
    at: Sizes

    def compute(self, sources: list[Tensor]) -> Tensor:
        return sources[0].select(self.slot, self.at[0])


# of the size of the source ------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class SameSizeNode(TracedNode):
    """A tensor whose entries are as large as those of its first source (up to a constant factor), though other numbers.

    Attributes:
        entrywise: Whether ``value_function`` acts on each entry separately, so that it also applies to a slice of the
            source.
    """

    entrywise: bool = False


@dataclass(eq=False, kw_only=True)
class ScaledSignal(SameSizeNode):
    """A signal times a number.

    Attributes:
        factor: The number, in each build of the module.
    """

    factor: PerBuild = ()


@dataclass(eq=False, kw_only=True)
class Rotation(SameSizeNode):
    """A signal that is rotated, as by rotary position embeddings.

    The product of the rotated signal x' with x itself is as large as that of x with x; for a general orthogonal map
    it could be smaller.
    """


@dataclass(eq=False, kw_only=True)
class Permutation(SameSizeNode):
    """The entries of a signal in another order.

    Attributes:
        signed: Whether some of them are also negated.
    """

    signed: bool = False


@dataclass(eq=False, kw_only=True)
class EntrySelection(SameSizeNode):
    """Some entries of a signal along an axis that does not grow, as by ``torch.index_select``."""


# walks --------------------------------------------------------------------------------------------------------------


def walk_graph(root: TracedNode, known: Iterable[int] = ()) -> Iterator[TracedNode]:
    """Yield each node from which the last one, ``root``, is computed, once, and the sources of a node before the node.

    Args:
        root: The last node.
        known: Numbers of nodes that are not visited; nodes that are needed only for these are left out, too.
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
    """Make a function of a node store its result in ``node.cache``, so that it is computed once for each node."""

    @wraps(function)
    def look_up(node: TracedNode) -> Result:
        if function not in node.cache:
            node.cache[function] = function(node)
        answer: Result = node.cache[function]
        return answer

    return look_up
