"""Reads recordings of one module at several sizes as one graph: ``Reader``.

The recordings have the same calls at other sizes. A view that takes a dimension apart splits it at its leaf, a
dimension of a parameter or of the input, and the reading begins again. Read next: ``indices.py`` (slices),
``rules.py`` (a row for each call), ``models.py`` (is the reading true?).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

from .graph import Dims, View
from .nodes import (
    ConstantNode,
    DataNode,
    IndexClass,
    Leaf,
    Parameter,
    Pieces,
    Restart,
    Sizes,
    Stopped,
    SumNode,
    TracedNode,
    Unreadable,
    join,
    refused,
    walk,
)
from .recording import Recording, Ref, TorchCall, VaryingNumber, refs
from .regions import Regions, ToldFunction

Splits = dict[tuple[Any, ...], tuple[Sizes, Sizes]]


class Reader:
    """One reading.

    Attributes:
        apply: the table of rules. told: reads what a tensor is of another one, which ``regions`` has.
        splits: of leaves, kept by a reading that begins again.
        call, calls: what is read, at the first build and at all. name: of the call in the table.
        shapes, values: of its results, by result, then by build.
        left_out: the largest entries of constants, and where they multiply.
        fixed: constants of the equations, by their entries.
        frozen: constants that differ along an axis that grows, by their entries. held: tensors made without gradients.
        cut: parts and entries of nodes, by the number of the node, the slot and the places.
        chosen: K of the last top-K that was recorded with all experts, at every build.
    """

    def __init__(
        self,
        runs: Sequence[Recording],
        splits: Splits,
        apply: Callable[[Reader, list[Any], Any], Any],
        told: Callable[[Reader, ToldFunction, int], View],
        regions: Regions,
    ):
        self.runs, self.builds, self.splits, self.apply, self.told = runs, len(runs), splits, apply, told
        self.regions = regions
        self.views: dict[int, View] = {}
        self.read_calls: list[tuple[TorchCall, Ref, View]] = []
        self.one_hot: dict[int, TracedNode] = {}
        self.left_out: set[tuple[str, float]] = set()
        self.fixed: dict[Any, TracedNode] = {}
        self.frozen: dict[bytes, View] = {}
        self.cut: dict[tuple[Any, ...], TracedNode] = {}
        self.held: set[int] = set()
        self.chosen: Sizes = ()
        self.call: TorchCall | None = None
        self.name, self.made = "", 0
        self.calls: Sequence[TorchCall] = ()
        self.shapes: list[list[tuple[int, ...]]] = []
        self.values: list[list[Tensor]] = []

    def read(self) -> View:
        """The output.

        Raises:
            Unreadable: a call without a rule, or something that no equation says.
            Restart: a leaf was split.
        """
        first = self.runs[0]
        leaves: list[Any] = [(Parameter, name, number) for number, name in first.parameters.items()]
        leaves += [(DataNode, "data", number) for number, place in first.inputs.items() if place == 0]
        for kind, name, number in leaves:
            shape, value = zip(*(run.tensors[number].shape for run in self.runs), strict=True), first.tensors[number]
            value = value.double() if value.is_floating_point() else value
            self.views[number] = self.leaf_view(name, shape, value, kind)
        for calls in zip(*(run.calls for run in self.runs), strict=True):
            self.call, self.calls, self.made, self.name = calls[0], calls, 0, calls[0].name.strip("_")
            if any(r.number in self.regions.needed for r in refs(calls[0].result)):
                self._step(calls)
        self.call = None
        return self.view(first.output)

    def _step(self, calls: Sequence[TorchCall]) -> None:
        """Reads one call: those of its results that are needed become views."""
        call, found = calls[0], self.regions.found
        results, numbers = list(refs(call.result)), {r.number for r in refs((call.arguments, call.keywords))}
        self.values = [[run.tensor(r) for run in self.runs] for r in results]
        self.shapes = [[tuple(v.shape) for v in values] for values in self.values]
        for k, r in enumerate(results):
            if r.number in found and r.number not in numbers:
                x, told = self.view(Ref(found[r.number].x)), partial(self.told, self, found[r.number], r.number)
                made = [self.constant(v) for v in self.values] if x.is_constant else _given(self, [x], told)
                self._put(call, k, r, made)
        if not any(r.number in self.regions.needed - found.keys() for r in results):
            return
        if call.stale:  # the values of now are not known
            raise self.fail("reads what was written in place through a view; write whole tensors, or torch.cat")
        for number in numbers & self.held if not call.held else ():
            if trains(self, self.views[number].node):
                self.views[number] = stopped(self, self.views[number])
            self.held.discard(number)
        read = [self.view(r) for r in refs((call.arguments, call.keywords))]
        if all(v.is_constant for v in read):
            self.views |= {r.number: self.constant(v) for r, v in zip(results, self.values, strict=True)}
            return
        if any(isinstance(v.node, Pieces) for v in read[call.name in ("__setitem__", "__getitem__") :]):
            raise self.fail("reads a tensor of which parts alone are written; torch.cat its parts")
        args = list(self._bound([c.arguments for c in calls]))
        keywords = self._bound([c.keywords for c in calls])
        args += [keywords.pop(key) for k, key in enumerate(("input", "other")) if key in keywords and len(args) == k]
        made = _given(self, read, lambda: self.apply(self, args, keywords))
        _check_kept(self, results, made)
        for k, (r, view) in enumerate(zip(results, made if isinstance(made, list) else [made], strict=False)):
            if r.number not in found:
                self._put(call, k, r, view)

    def _put(self, call: TorchCall, k: int, ref: Ref, view: Any) -> None:
        """Keeps a result, the one in this place, of a call."""
        view = view[k] if isinstance(view, list) else view
        if view.node.call is None:
            view.node.call = (*call.key, k)
        self.views[ref.number] = view
        if call.held:
            self.held.add(ref.number)
        self.read_calls.append((call, ref, view))

    def _bound(self, trees: Sequence[Any]) -> Any:
        """Arguments at all builds: tensors are views, numbers that change are ``Number``."""
        x = trees[0]
        if isinstance(x, Ref):
            return self.view(x)
        if isinstance(x, list | tuple):
            if len({len(t) for t in trees}) > 1:
                raise self.fail("takes a list that is longer at other sizes; take a tensor, or loop over M or L")
            return type(x)(map(self._bound, zip(*trees, strict=True)))
        if isinstance(x, dict):
            return {k: self._bound([t[k] for t in trees]) for k in x}
        return VaryingNumber(trees) if isinstance(x, int | float) and len(set(trees)) > 1 else x

    @property
    def where(self) -> str:
        """The path of the module that makes the call."""
        return self.call.module if self.call else ""

    def fail(self, what: str) -> Unreadable:
        """The error of the call that is read."""
        return refused(f"{self.call.module or 'model'}: {self.call.name}" if self.call else "", what)

    # tensors and numbers of a call ----------------------------------------------------------------------------------

    def view(self, ref: Ref) -> View:
        """The tensor of this number; one that no call made is a constant."""
        if ref.number not in self.views:
            self.views[ref.number] = self.constant([run.tensors[ref.number] for run in self.runs])
        return self.views[ref.number]

    def leaf_view(
        self,
        name: str,
        shape: Iterable[Sizes],
        value: Tensor,
        kind: type[Parameter | DataNode] = Parameter,
        frozen: bool = False,
    ) -> View:
        """Return a leaf of the graph.

        Args:
            shape: The size of every dimension, at every build.
            value: The value at the first build.
            frozen: Whether it is a constant of the module that stands as a frozen parameter.
        """
        origin = "frozen" if frozen else "param" if kind is Parameter else "data"
        found = [self.leaf((origin, name, d), sizes) for d, sizes in enumerate(shape)]
        indices = [index for dim in found for index in dim]
        axes, places = tuple(d for d, dim in enumerate(found) for _ in dim), iter(range(len(indices)))
        value = value.reshape([x.sizes[0] for x in indices])
        node: Leaf = DataNode(indices=indices, value=value)
        if kind is Parameter:
            node = Parameter(indices=indices, value=value, name=name, axes=axes, frozen=frozen)
        return View(node, [tuple(next(places) for _ in dim) for dim in found])

    def constant(self, values: Sequence[Tensor]) -> View:
        """Values that come from no parameter and no input."""
        shapes = zip(*(v.shape for v in values), strict=True)
        dims: Dims = [() if set(sizes) == {1} else (IndexClass(sizes),) for sizes in shapes]
        return View(ConstantNode(values=list(values)), dims)

    def constants(self, first: int = 0) -> list[View]:
        """The results of the call, but the first ones, as constants."""
        return [self.constant(v) for v in self.values[first:]]

    def numbers(self, numbers: Sequence[float]) -> View:
        """A number at every build as a constant."""
        return self.constant([torch.tensor(float(v), dtype=torch.float64) for v in numbers])

    def operand(self, x: Any) -> View:
        """What is added or multiplied: a number is a constant."""
        return x if isinstance(x, View) else self.numbers(self.vector(x))

    def vector(self, x: Any) -> Any:
        """A number at every build."""
        return x if isinstance(x, VaryingNumber) else self.same_everywhere(x)

    def same_everywhere(self, k: int) -> Sizes:
        """A size that is the same at every build."""
        return (k,) * self.builds

    # classes of indices ---------------------------------------------------------------------------------------------

    def leaf(self, key: tuple[Any, ...], sizes: Sizes) -> list[IndexClass]:
        """The classes of one dimension of a leaf."""
        if set(sizes) == {1}:
            return []
        if key in self.splits:
            return [x for k, half in enumerate(self.splits[key]) for x in self.leaf((*key, k), half)]
        return [IndexClass(sizes, key)]

    def fresh(self, sizes: Sizes) -> list[IndexClass]:
        """The classes of a dimension that the call makes, which may be taken apart as those of leaves."""
        self.made += 1
        return self.leaf(("made", *(self.call.key if self.call else ()), self.made, sizes), sizes)

    def split(self, index: IndexClass, head: Sizes) -> Restart | Unreadable:
        """A class is to be two: of these sizes, and the rest."""
        index = index.root()
        if not index.leaves or any(n % h for n, h in zip(index.sizes, head, strict=True)):
            return self.fail(f"an axis of sizes {index.sizes} cannot be taken apart as {head}")
        rest = tuple(n // h for n, h in zip(index.sizes, head, strict=True))
        self.splits |= {key: (tuple(head), rest) for key in index.leaves}
        return Restart()

    def align(self, sequences: Sequence[Sequence[IndexClass]]) -> None:
        """Joins dimensions that are one, class by class."""
        rows = [[x.root() for x in s] for s in sequences if s]
        for column in range(max(map(len, rows), default=0)):
            heads = [s[column].root() if len(s) > column else None for s in rows]
            found = [h for h in heads if h is not None]
            if len(found) < len(heads):
                raise self.fail(f"dimensions do not match: {[[x.sizes for x in s] for s in rows]}")
            least = min((h.sizes for h in found), key=prod)
            for h in found:
                if h.sizes != least:
                    raise self.split(h, least)
            for h in found[1:]:
                join(found[0], h)


def _check_kept(reader: Reader, results: Sequence[Ref], made: Any) -> None:
    """A sum is no smaller than rounding leaves of its terms: signs are in no equation."""
    if isinstance(made, View) and isinstance(made.node, SumNode):
        terms = (
            reader.runs[0].tensors.get(r.number) for r in refs((reader.calls[0].arguments, reader.calls[0].keywords))
        )
        size = [float(x.abs().max()) for x in terms if x is not None and x.numel()]
        got = float(reader.runs[0].tensors[results[0].number].abs().max())
        if size and min(size) > 0 and got <= 1e-9 * max(size):
            raise reader.fail("a sum that cancels, and the equations have no signs")


def _given(reader: Reader, read: Sequence[View], make: Callable[[], Any]) -> Any:
    """What a call makes; of the input alone, where it does not grow, it is an input."""
    try:
        return make()
    except UsageError:
        if not all(v.node.given for v in read) or any(len({*shapes}) > 1 for shapes in reader.shapes):
            raise
        return reader.constants()


def trains(reader: Reader, node: TracedNode) -> bool:
    """Does a gradient of the output reach a tensor that a node is made of?"""
    return any(isinstance(x, Parameter) and x.name in reader.runs[0].trained_names for x in walk(node))


def stopped(reader: Reader, x: View) -> View:
    """A signal through which no gradient passes; a tensor as it is, if none reaches it elsewhere.

    Raises:
        Unreadable: a gradient reaches a matrix elsewhere.
    """
    if x.is_constant or (x.node.weight and not trains(reader, x.node)):
        return x
    if x.node.weight and (not isinstance(x.node, Parameter) or sum(not index.fixed for index in x.node.indices) > 1):
        raise reader.fail("stops the gradient of a matrix that trains elsewhere; no equation says this")
    return View(x.node.derive(Stopped, reader.where), x.dims)
