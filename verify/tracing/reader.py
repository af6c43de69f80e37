"""Translates recordings of one module at several sizes into one graph: ``Reader``.

The recordings (builds) have the same calls at different sizes. When a call splits a dimension, as
``x.view(heads, -1)`` does, the dimension of the parameter or input that it comes from is split, and the reading
restarts from the beginning. Read next: ``slicing.py`` (slices), ``rules.py`` (a rule for each call), ``models.py``
(checks the equations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

from .function_recognition import KnownFunction, KnownFunctions
from .graph import Dims, View
from .nodes import (
    ConstantNode,
    DataNode,
    IndexClass,
    Leaf,
    Parameter,
    PartialTensor,
    Restart,
    Sizes,
    StoppedGradient,
    SumNode,
    TracedNode,
    Unreadable,
    join_indices,
    make_error,
    walk_graph,
)
from .recording import Recording, TensorRef, TorchCall, VaryingNumber, iterate_refs

Splits = dict[tuple[Any, ...], tuple[Sizes, Sizes]]
"""Maps an index of a leaf to the sizes of the two indices that it is split into, in each build of the module."""


class Reader:
    """One attempt to make the graph of a module from its recordings, call by call; a restart makes a new ``Reader``.

    A leaf is a node of the graph without sources: a parameter or the input. A build is the module at certain sizes.

    Attributes:
        runs: the recordings, one for each build of the module.
        builds: the number of recordings.
        apply_rule: reads the current call by its rule.
        read_function: reads a tensor that is a recognised function of another one.
        known_functions: the recognised functions.
        splits: for each dimension of a leaf that consists of two indices, the sizes of both; the next attempt starts
            with these.
        views: the view of each tensor, by number.
        read_calls: for every result that was read: the call, the result and its view.
        one_hot: the node of the one-hot encoding of each integer input, by the number of the input's node.
        call: the current call in the first build.
        calls: the current call in each build.
        rule_name: the name under which the rule of the call is found.
        created_dims: number of dimensions that the current call has created.
        shapes: for each result of the current call, its shape in each build.
        values: for each result of the current call, its entries in each build.
        omitted_factors: constants that equations omit, as (path of the module that multiplies by it, largest entry).
        equation_constants: constants of the equations, by their entries.
        frozen_constants: constants that vary along a growing axis and become frozen parameters, by their entries.
        no_grad_tensors: tensors that were computed without gradients (``torch.no_grad``).
        slices: cached slices and entries of nodes, by number of the node, dimension and positions.
        topk_counts: the number K that the module passed to the last top-K that was recorded as selecting all experts,
            in each build.
    """

    def __init__(
        self,
        runs: Sequence[Recording],
        splits: Splits,
        apply_rule: Callable[[Reader, list[Any], Any], Any],
        read_function: Callable[[Reader, KnownFunction, int], View],
        known_functions: KnownFunctions,
    ):
        self.runs = runs
        self.builds = len(runs)
        self.splits = splits
        self.apply_rule = apply_rule
        self.read_function = read_function
        self.known_functions = known_functions
        self.views: dict[int, View] = {}
        self.read_calls: list[tuple[TorchCall, TensorRef, View]] = []
        self.one_hot: dict[int, TracedNode] = {}
        self.omitted_factors: set[tuple[str, float]] = set()
        self.equation_constants: dict[Any, TracedNode] = {}
        self.frozen_constants: dict[bytes, View] = {}
        self.slices: dict[tuple[Any, ...], TracedNode] = {}
        self.no_grad_tensors: set[int] = set()
        self.topk_counts: Sizes = ()
        self.call: TorchCall | None = None
        self.rule_name, self.created_dims = "", 0
        self.calls: Sequence[TorchCall] = ()
        self.shapes: list[list[tuple[int, ...]]] = []
        self.values: list[list[Tensor]] = []

    def read(self) -> View:
        """Reads all calls that the output needs and returns the view of the output.

        Raises:
            Unreadable: a call has no rule, or no equation can express it.
            Restart: a dimension of a parameter or of the input must be split into two indices first.
        """
        first = self.runs[0]
        leaves: list[Any] = [(Parameter, name, number) for number, name in first.parameters.items()]
        leaves += [(DataNode, "data", number) for number, place in first.inputs.items() if place == 0]
        for kind, name, number in leaves:
            shape, value = zip(*(run.tensors[number].shape for run in self.runs), strict=True), first.tensors[number]
            value = value.double() if value.is_floating_point() else value
            self.views[number] = self.make_leaf(name, shape, value, kind)
        for calls in zip(*(run.calls for run in self.runs), strict=True):
            self.call, self.calls, self.created_dims, self.rule_name = calls[0], calls, 0, calls[0].name.strip("_")
            if any(r.number in self.known_functions.needed for r in iterate_refs(calls[0].result)):
                self._read_call(calls)
        self.call = None
        return self.get_view(first.output)

    def _read_call(self, calls: Sequence[TorchCall]) -> None:
        """Reads one call, so that each of its results that the output needs gets a view.

        Args:
            calls: the call in each build of the module.
        """
        call, found = calls[0], self.known_functions.found
        results = list(iterate_refs(call.result))
        numbers = {r.number for r in call.iterate_inputs()}
        self.values = [[run.get_tensor(r) for run in self.runs] for r in results]
        self.shapes = [[tuple(v.shape) for v in values] for values in self.values]
        for k, r in enumerate(results):
            if r.number in found and r.number not in numbers:
                x = self.get_view(TensorRef(found[r.number].argument))
                told = partial(self.read_function, self, found[r.number], r.number)
                made = (
                    [self.make_constant(v) for v in self.values]
                    if x.is_constant
                    else _read_or_use_as_data(self, [x], told)
                )
                self._store_view(call, k, r, made)
        if not any(r.number in self.known_functions.needed - found.keys() for r in results):
            return
        if call.stale:  # the values at the time of the call were not recorded
            raise self.fail("reads a tensor modified in place through a view; assign whole tensors, or use torch.cat")
        for number in numbers & self.no_grad_tensors if not call.without_gradients else ():
            if has_trained_parameter(self, self.views[number].node):
                self.views[number] = stop_gradient(self, self.views[number])
            self.no_grad_tensors.discard(number)
        read = [self.get_view(r) for r in call.iterate_inputs()]
        if all(v.is_constant for v in read):
            self.views |= {r.number: self.make_constant(v) for r, v in zip(results, self.values, strict=True)}
            return
        if any(isinstance(v.node, PartialTensor) for v in read[call.name in ("__setitem__", "__getitem__") :]):
            raise self.fail("reads a tensor that was only partly assigned; assign all of it or use torch.cat")
        args = list(self._bind_argument([c.arguments for c in calls]))
        keywords = self._bind_argument([c.keywords for c in calls])
        args += [keywords.pop(key) for k, key in enumerate(("input", "other")) if key in keywords and len(args) == k]
        made = _read_or_use_as_data(self, read, lambda: self.apply_rule(self, args, keywords))
        _check_cancellation(self, results, made)
        for k, (r, view) in enumerate(zip(results, made if isinstance(made, list) else [made], strict=False)):
            if r.number not in found:
                self._store_view(call, k, r, view)

    def _store_view(self, call: TorchCall, k: int, ref: TensorRef, view: Any) -> None:
        """Stores the view of one result of a call, so that later calls can read it.

        Args:
            call: the call.
            k: position of the result among the results.
            ref: the result.
            view: its view, or the views of all results.
        """
        view = view[k] if isinstance(view, list) else view
        if view.node.call is None:
            view.node.call = (*call.key, k)
        self.views[ref.number] = view
        if call.without_gradients:
            self.no_grad_tensors.add(ref.number)
        self.read_calls.append((call, ref, view))

    def _bind_argument(self, trees: Sequence[Any]) -> Any:
        """Merges the values that an argument of a call has in the builds of the module into one object.

        Tensors become views, and numbers that differ between builds become ``VaryingNumber``.

        Args:
            trees: the argument in each build: a tensor, a number, or lists, tuples and dicts of them.

        Raises:
            Unreadable: a list has another length in another build.
        """
        x = trees[0]
        if isinstance(x, TensorRef):
            return self.get_view(x)
        if isinstance(x, list | tuple):
            if len({len(t) for t in trees}) > 1:
                raise self.fail("takes a list that is longer at other sizes; pass a tensor, or loop over M or L")
            return type(x)(map(self._bind_argument, zip(*trees, strict=True)))
        if isinstance(x, dict):
            return {k: self._bind_argument([t[k] for t in trees]) for k in x}
        return VaryingNumber(trees) if isinstance(x, int | float) and len(set(trees)) > 1 else x

    @property
    def where(self) -> str:
        """The path of the module that makes the current call."""
        return self.call.module if self.call else ""

    def fail(self, what: str) -> Unreadable:
        """Returns an error at the current call, to be raised.

        Args:
            what: what failed, and what to do.
        """
        return make_error(f"{self.call.module or 'model'}: {self.call.name}" if self.call else "", what)

    # tensors and numbers of a call ----------------------------------------------------------------------------------

    def get_view(self, ref: TensorRef) -> View:
        """Returns the view of a recorded tensor. One without a view so far comes from no call that was read and is a
        constant.
        """
        if ref.number not in self.views:
            self.views[ref.number] = self.make_constant([run.tensors[ref.number] for run in self.runs])
        return self.views[ref.number]

    def make_leaf(
        self,
        name: str,
        shape: Iterable[Sizes],
        value: Tensor,
        kind: type[Parameter | DataNode] = Parameter,
        frozen: bool = False,
    ) -> View:
        """Adds a node without sources (a parameter or the input) to the graph and returns its view.

        Args:
            name: name of the parameter, or "data".
            shape: for each dimension, its size in each build of the module.
            value: value in the first build.
            kind: class of the node.
            frozen: whether it is a constant of the module that becomes a frozen parameter of the equations.
        """
        origin = "frozen" if frozen else "param" if kind is Parameter else "data"
        found = [self.make_leaf_indices((origin, name, d), sizes) for d, sizes in enumerate(shape)]
        indices = [index for dim in found for index in dim]
        axes, places = tuple(d for d, dim in enumerate(found) for _ in dim), iter(range(len(indices)))
        value = value.reshape([x.sizes[0] for x in indices])
        node: Leaf = DataNode(indices=indices, value=value)
        if kind is Parameter:
            node = Parameter(indices=indices, value=value, name=name, axes=axes, frozen=frozen)
        return View(node, [tuple(next(places) for _ in dim) for dim in found])

    def make_constant(self, values: Sequence[Tensor]) -> View:
        """Returns a view of a constant tensor, which depends on no parameter and no input.

        Args:
            values: its value in each build of the module.
        """
        shapes = zip(*(v.shape for v in values), strict=True)
        dims: Dims = [() if set(sizes) == {1} else (IndexClass(sizes),) for sizes in shapes]
        return View(ConstantNode(values=list(values)), dims)

    def make_result_constants(self, first: int = 0) -> list[View]:
        """Returns the results of the current call as constants, except the first ``first`` results."""
        return [self.make_constant(v) for v in self.values[first:]]

    def make_scalar(self, numbers: Sequence[float]) -> View:
        """Returns a constant scalar as a view; ``numbers`` has its value in each build of the module."""
        return self.make_constant([torch.tensor(float(v), dtype=torch.float64) for v in numbers])

    def convert_operand(self, x: Any) -> View:
        """Returns an operand of a sum or product as a view; a Python number becomes a constant."""
        return x if isinstance(x, View) else self.make_scalar(self.get_per_build(x))

    def get_per_build(self, x: Any) -> Any:
        """Returns a tuple of the values of a number, one for each build of the module.

        A number that does not depend on the sizes, and so is no ``VaryingNumber``, is repeated.
        """
        return x if isinstance(x, VaryingNumber) else self.repeat_per_build(x)

    def repeat_per_build(self, k: int) -> Sizes:
        """Returns a tuple of the size ``k``, once for each build of the module."""
        return (k,) * self.builds

    # classes of indices ---------------------------------------------------------------------------------------------

    def make_leaf_indices(self, key: tuple[Any, ...], sizes: Sizes) -> list[IndexClass]:
        """Makes the index classes of one dimension of a parameter, of the input or of a result of the current call.

        The dimension has one index; several if a call was found to split it; none if its size is 1.

        Args:
            key: identifies the dimension: (kind, name, dimension, which half of a split, ...).
            sizes: its size in each build of the module.
        """
        if set(sizes) == {1}:
            return []
        if key in self.splits:
            return [x for k, half in enumerate(self.splits[key]) for x in self.make_leaf_indices((*key, k), half)]
        return [IndexClass(sizes, key)]

    def make_indices(self, sizes: Sizes) -> list[IndexClass]:
        """Makes the index classes of a dimension that the current call creates, such as one of a constant.

        If a later call turns out to split the dimension, there are several.

        Args:
            sizes: its size in each build of the module.
        """
        self.created_dims += 1
        return self.make_leaf_indices(("made", *(self.call.key if self.call else ()), self.created_dims, sizes), sizes)

    def request_split(self, index: IndexClass, head: Sizes) -> Restart | Unreadable:
        """Records that an index must be split into two, as ``x.view(heads, -1)`` requires, and returns the exception
        to raise.

        Args:
            index: the index class.
            head: size of the first of the two in each build of the module; that of the second is the quotient.

        Returns:
            ``Restart``, so that the graph is made again with the two; an error if sizes are not divisible, or if it
            is not known where the index comes from.
        """
        index = index.find_root()
        if not index.leaves or any(n % h for n, h in zip(index.sizes, head, strict=True)):
            return self.fail(
                f"cannot split an axis of sizes {index.sizes} into {tuple(head)} times a rest; use divisible sizes"
            )
        rest = tuple(n // h for n, h in zip(index.sizes, head, strict=True))
        self.splits |= {key: (tuple(head), rest) for key in index.leaves}
        return Restart()

    def align_dims(self, sequences: Sequence[Sequence[IndexClass]]) -> None:
        """Declares some dimensions to be the same, as those of two tensors that are added.

        If each consists of several indices, these are identified one by one.

        Args:
            sequences: the index classes of each dimension.

        Raises:
            Unreadable: the dimensions consist of different numbers of indices.
            Restart: an index must be split first.
        """
        rows = [[x.find_root() for x in s] for s in sequences if s]
        for column in range(max(map(len, rows), default=0)):
            heads = [s[column].find_root() if len(s) > column else None for s in rows]
            found = [h for h in heads if h is not None]
            if len(found) < len(heads):
                raise self.fail(
                    f"dimensions do not match; their sizes at each build: {[[x.sizes for x in s] for s in rows]}"
                )
            least = min((h.sizes for h in found), key=prod)
            for h in found:
                if h.sizes != least:
                    raise self.request_split(h, least)
            for h in found[1:]:
                join_indices(found[0], h)


def _check_cancellation(reader: Reader, results: Sequence[TensorRef], made: Any) -> None:
    """Checks that the terms of a sum do not cancel in the first recording.

    Equations have no signs, so that the sum would be taken to be as large as its terms.

    Args:
        reader: the reader.
        results: the results of the current call.
        made: the view that was read; only a sum is checked.

    Raises:
        Unreadable: the sum is smaller than 1e-9 of its largest term.
    """
    if isinstance(made, View) and isinstance(made.node, SumNode):
        terms = (reader.runs[0].tensors.get(r.number) for r in reader.calls[0].iterate_inputs())
        size = [float(x.abs().max()) for x in terms if x is not None and x.numel()]
        got = float(reader.runs[0].tensors[results[0].number].abs().max())
        if size and min(size) > 0 and got <= 1e-9 * max(size):
            raise reader.fail("a sum that cancels, and the equations have no signs; leave out its terms")


def _read_or_use_as_data(reader: Reader, read: Sequence[View], make: Callable[[], Any]) -> Any:
    """Reads a call; if this fails and the call depends on the input alone, its results are taken as part of the data.

    Args:
        reader: the reader.
        read: the views that the call reads.
        make: reads the call and returns its results.

    Returns:
        What ``make`` returns, or the results as constants.

    Raises:
        UsageError: ``make`` fails, and the call depends on a parameter or has a result whose shape grows.
    """
    try:
        return make()
    except UsageError:
        if not all(v.node.is_input_only for v in read) or any(len({*shapes}) > 1 for shapes in reader.shapes):
            raise
        return reader.make_result_constants()


def has_trained_parameter(reader: Reader, node: TracedNode) -> bool:
    """Tests whether one of the parameters from which a node is computed gets a gradient of the output."""
    return any(isinstance(x, Parameter) and x.name in reader.runs[0].trained_names for x in walk_graph(node))


def stop_gradient(reader: Reader, x: View) -> View:
    """Returns a tensor as ``x.detach()`` does: with the same value, but without a gradient.

    Constants, and parameters that get no gradient elsewhere either, are returned unchanged.

    Raises:
        Unreadable: x is a matrix made of parameters, some of which get a gradient where they are used elsewhere.
    """
    if x.is_constant or (x.node.is_weight and not has_trained_parameter(reader, x.node)):
        return x
    if x.node.is_weight and (not isinstance(x.node, Parameter) or sum(not index.fixed for index in x.node.indices) > 1):
        why = "stops the gradient of a matrix that trains elsewhere, which no equation can express; "
        raise reader.fail(why + "use a separate matrix with requires_grad=False")
    return View(x.node.derive(StoppedGradient, reader.where), x.dims)
