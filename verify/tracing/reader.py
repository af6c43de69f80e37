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
"""Maps an index of a leaf to the sizes of the two indices that it is split into, at every build."""


class Reader:
    """One pass over the recordings, which builds the graph call by call.

    Attributes:
        runs: the recordings, one for each build.
        builds: their number.
        apply_rule: reads the current call by its rule.
        read_function: reads a tensor that is a recognised function of another one.
        known_functions: the recognised functions.
        splits: how indices of leaves are split; they survive a restart.
        views: the view of each tensor, by number.
        read_calls: every call that was read, with a result and its view.
        one_hot: the one-hot encodings of integer inputs, by number of the node.
        call: the current call at the first build.
        calls: the same at every build.
        rule_name: the name under which its rule is found.
        created_dims: number of dimensions that the current call has created.
        shapes: shapes of its results, by result, then by build.
        values: values of its results, likewise.
        omitted_factors: the largest entries of constants, and where they multiply.
        equation_constants: constants of the equations, by their entries.
        frozen_constants: constants that vary along a growing axis, by their entries.
        no_grad_tensors: tensors that were computed without gradients (``torch.no_grad``).
        slices: cached slices and entries of nodes, by number of the node, dimension and positions.
        topk_counts: K of the last top-K that was recorded with all experts selected, at every build.
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
            Restart: a leaf was split, so that the reading must begin again.
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
        """Reads one call: each result that the output needs gets a view.

        Args:
            calls: the call at every build.
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
        """Merges an argument at all builds into one: tensors become views, numbers that change ``VaryingNumber``.

        Args:
            trees: the argument at every build: a tensor, a number, or lists, tuples and dicts of them.

        Raises:
            Unreadable: a list has another length at another build.
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
        """Returns the view of a recorded tensor; one that no recorded call made is a constant."""
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
        """Returns the view of a new leaf of the graph: a parameter or the input.

        Args:
            name: name of the parameter, or "data".
            shape: size of every dimension at every build.
            value: value at the first build.
            kind: class of the leaf.
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
        """Returns a view of a constant, which depends on no parameter and no input.

        Args:
            values: its value at every build.
        """
        shapes = zip(*(v.shape for v in values), strict=True)
        dims: Dims = [() if set(sizes) == {1} else (IndexClass(sizes),) for sizes in shapes]
        return View(ConstantNode(values=list(values)), dims)

    def make_result_constants(self, first: int = 0) -> list[View]:
        """Returns the results of the current call as constants, without the first ``first`` ones."""
        return [self.make_constant(v) for v in self.values[first:]]

    def make_scalar(self, numbers: Sequence[float]) -> View:
        """Returns a scalar constant with the given value at every build."""
        return self.make_constant([torch.tensor(float(v), dtype=torch.float64) for v in numbers])

    def convert_operand(self, x: Any) -> View:
        """Returns an operand of a sum or product as a view; a number becomes a constant."""
        return x if isinstance(x, View) else self.make_scalar(self.get_per_build(x))

    def get_per_build(self, x: Any) -> Any:
        """Returns the values of a number at every build as a tuple; anything else is returned unchanged."""
        return x if isinstance(x, VaryingNumber) else self.repeat_per_build(x)

    def repeat_per_build(self, k: int) -> Sizes:
        """Returns the size k at every build."""
        return (k,) * self.builds

    # classes of indices ---------------------------------------------------------------------------------------------

    def make_leaf_indices(self, key: tuple[Any, ...], sizes: Sizes) -> list[IndexClass]:
        """Returns the index classes of one dimension of a leaf: one, several if it is split, none if its size is 1.

        Args:
            key: identifies the dimension: (kind, name, dimension, which half of a split, ...).
            sizes: its size at every build.
        """
        if set(sizes) == {1}:
            return []
        if key in self.splits:
            return [x for k, half in enumerate(self.splits[key]) for x in self.make_leaf_indices((*key, k), half)]
        return [IndexClass(sizes, key)]

    def make_indices(self, sizes: Sizes) -> list[IndexClass]:
        """Returns the index classes of a dimension that the current call creates; like those of leaves, they can be
        split."""
        self.created_dims += 1
        return self.make_leaf_indices(("made", *(self.call.key if self.call else ()), self.created_dims, sizes), sizes)

    def request_split(self, index: IndexClass, head: Sizes) -> Restart | Unreadable:
        """Records that an index class must be split in two, and returns the exception to raise.

        Args:
            index: the index class.
            head: size of the first part at every build; the second part is the quotient.

        Returns:
            ``Restart``, or an error if the sizes are not divisible or the index comes from no leaf.
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
        """Identifies dimensions with each other (as in a sum of two tensors), index class by index class.

        Args:
            sequences: the index classes of each dimension.

        Raises:
            Unreadable: they have different numbers of classes.
            Restart: a class must be split first.
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
    """Checks that a sum does not cancel, since equations have no signs.

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
    """Returns what ``make`` returns; if it fails, a call on the input alone is read as further data.

    Args:
        reader: the reader.
        read: the views that the call reads.
        make: reads the call.

    Raises:
        UsageError: ``make`` fails, and the call reads a parameter or has a result whose shape grows.
    """
    try:
        return make()
    except UsageError:
        if not all(v.node.is_input_only for v in read) or any(len({*shapes}) > 1 for shapes in reader.shapes):
            raise
        return reader.make_result_constants()


def has_trained_parameter(reader: Reader, node: TracedNode) -> bool:
    """Tests whether a gradient of the output reaches one of the parameters that a node is made of."""
    return any(isinstance(x, Parameter) and x.name in reader.runs[0].trained_names for x in walk_graph(node))


def stop_gradient(reader: Reader, x: View) -> View:
    """Returns a view through which no gradient passes.

    Constants, and parameters that no gradient reaches elsewhere either, are returned unchanged.

    Raises:
        Unreadable: it is a matrix that is trained elsewhere.
    """
    if x.is_constant or (x.node.is_weight and not has_trained_parameter(reader, x.node)):
        return x
    if x.node.is_weight and (not isinstance(x.node, Parameter) or sum(not index.fixed for index in x.node.indices) > 1):
        why = "stops the gradient of a matrix that trains elsewhere, which no equation can express; "
        raise reader.fail(why + "use a separate matrix with requires_grad=False")
    return View(x.node.derive(StoppedGradient, reader.where), x.dims)
