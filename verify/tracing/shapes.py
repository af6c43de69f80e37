"""Reads a module by the shapes of its parameters, if its equations cannot be read: every tensor acts independently.

The call that uses a parameter tells which of its dimensions are summed. If no call does, its shape decides, and the
answer marks it as ambiguous. Read next: ``models.py`` (tries equations first), ``scaling_algebra/solver/layerwise.py``
(derives the numbers of such a network).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.spec.networks.files import as_toml
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import TRACED, Network
from scaling_algebra.spec.powers import Power

from .building import Build, RequestedSizes, build_module, call_build, enlarge_axis, in_float64
from .equation_names import INDEX_NAMES, Powers, fit_powers, write_indexed
from .gradients import FROZEN
from .graph import NUMBER_IN_NAME
from .linear_probe import rerun_in_float64 as replay
from .models import LOOP_AXES, TracedModel
from .nodes import Sizes, Unreadable
from .recording import Recording, TensorRef, TorchCall, iterate_leaves, iterate_refs, record_forward
from .rule_table import normalise_call_name

DimUses = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The dimensions of a parameter: those that are summed, those that index its output, and those that count separate
maps."""
ENTRYWISE_CALLS = {"add", "sub", "mul", "div", "layer_norm", "native_layer_norm", "rms_norm", "batch_norm",
                   "group_norm", "where", "cat", "addcmul", "prelu"}  # fmt: skip
"""Calls that use a parameter entry by entry."""
SPARE_INDICES = "абвгдежзийклмнопрстуфхцчшщ"
"""Index names for axes that only this build function has."""
NEAREST_POWER = "the sizes {} of a dimension are no power of an axis; the nearest power is used"
GROWING_MAP_COUNT = (
    "the number of these maps grows; epsilons (and the rates of SGD) assume that their outputs are averaged"
)
TIED_USES = (
    "used in two ways; the numbers are for the use with the smaller fan-in. Scale the other use in "
    "the model, such as a "
    "tied readout by 1/fan_in"
)
IGNORED_FACTOR = "these numbers ignore the factor by which the module multiplies; remove it, or multiply elsewhere"
UNRECOGNISED_FACTORS = (
    "factors that depend on a size (1/sqrt(d), alpha/rank) are not recognised; these numbers ignore them"
)
CHOSEN_FEW = "each token selects some of the experts, but their number is not an argument of build"
TAKE_K = "let build take the number of active experts, sizes['K']"
UNKNOWN_FACTOR = (
    "it is not known what this factor multiplies. If it is the norm of a matrix (weight_norm), "
    "initialise it to that norm "
    "and scale its rate by the same power"
)
GROWING_OUTPUT = (
    "its output has {} entries. If these are the entries of a matrix (a hypernetwork), divide the product with that "
    "matrix by its fan-in, which shapes do not show"
)
JOINT_WEIGHT = (
    "it is multiplied with {} entry by entry, and both act as one weight; its numbers assume that its entries start at "
    "Theta(1)"
)
UNKNOWN_DIMS = "no call shows which dimension of its shape {} is summed; {}"


@dataclass
class ParameterShape:
    """A parameter, its sizes, and how calls use its dimensions.

    Attributes:
        name: its name; numbers of layers in it are masked if all layers agree.
        sizes: for each dimension, its size in each build of the module.
        uses: for each call that takes it, which of its dimensions are summed, index the output, or count separate maps.
        frozen: whether it does not require gradients.
        multiplied_by: name of a parameter that it is multiplied with, entry by entry, before both act as one weight;
            "" if none.
    """

    name: str
    sizes: list[Sizes]
    uses: set[DimUses]
    frozen: bool
    multiplied_by: str = ""


def classify_dims(call: str, position: int, dims: int, arguments: Sequence[Any]) -> DimUses | None:
    """Returns how a call uses the dimensions of a parameter: those that it sums, that index the output, and that
    count maps.

    Separate maps are the matrices of a stack, such as those of the experts. The result is None if the use is not known.

        linear(x, W), position 1, 2 dimensions  ->  summed (1,), output (0,), maps ()

    Args:
        call: name of the call.
        position: position of the parameter among the tensors that the call takes.
        dims: number of dimensions of the parameter.
        arguments: arguments of the call, which for an einsum begin with its equation.
    """
    every = tuple(range(dims))
    stack = every[:-2]
    if call == "linear" and position == 1 and dims > 1:
        return (dims - 1,), (dims - 2,), stack
    if call == "embedding":
        return (0,), every[1:], ()
    if call.startswith("conv") and position == 1:
        summed = (0, *every[2:]) if "transpose" in call else every[1:]
        return summed, tuple(d for d in every if d not in summed), ()
    if call in ("matmul", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "grouped_mm"):
        if dims == 1:
            return every, (), ()
        left = position == (1 if call in ("baddbmm", "addmm") else 0)
        return ((dims - 1,), (dims - 2,), stack) if left else ((dims - 2,), (dims - 1,), stack)
    if call == "einsum" and isinstance(arguments[0], str) and "." not in arguments[0]:
        terms, _, out = arguments[0].replace(" ", "").partition("->")
        mine, *others = sorted(terms.split(","), key=lambda t: terms.split(",").index(t) != position)
        beside = set("".join(others))
        summed = tuple(d for d, x in enumerate(mine) if x not in out)
        return summed, tuple(d for d, x in enumerate(mine) if x in out and x not in beside), tuple(
            d for d, x in enumerate(mine) if x in out and x in beside
        )  # fmt: skip
    return ((), every, ()) if dims == 1 or call in ENTRYWISE_CALLS else None


MATRIX_PRODUCTS = ("matmul", "mm", "bmm")
"""Calls that multiply matrices."""
DimOrder = tuple[int, ...]
"""For each dimension of a tensor, the dimension of the parameter that it is; -1 for one that the parameter lacks."""


class WeightUses:
    """Finds out from a recorded run which dimensions of each parameter are summed by the call that applies it to a
    signal.

    A tensor computed from parameters alone (a transpose, W + B A of LoRA, rows of a table) is followed until it meets
    a signal.

    Attributes:
        found: for each parameter, how each call uses its dimensions.
        multiplied_by: for each parameter that is multiplied with another one, entry by entry, before both act as one
            weight, the name of the other one.
    """

    def __init__(self, run: Recording) -> None:
        self.run = run
        self.found: dict[str, set[DimUses]] = {name: set() for name in run.parameters.values()}
        self.multiplied_by: dict[str, str] = {}
        self._orders: dict[int, list[tuple[str, DimOrder]]] = {
            number: [(name, tuple(range(run.tensors[number].dim())))] for number, name in run.parameters.items()
        }
        self._rows: set[int] = set()  # rows of a table, selected by the data
        self._products: set[int] = set()  # entrywise products of a weight and a signal
        self._signals = set(run.inputs)
        for call in run.calls:
            self._follow_call(call)
        for number in [*self._rows, *self._products]:
            self._note_unsummed(number)

    def _follow_call(self, call: TorchCall) -> None:
        """Follows one call: notes which of its results are weights or signals, and how it uses the weights that it
        takes.
        """
        read, outs = list(call.iterate_inputs()), list(iterate_refs(call.result))
        name, made = normalise_call_name(call.name), outs[0].number if outs else None
        held = [k for k, r in enumerate(read) if r.number in self._orders]
        acted = any(r.number in self._signals for r in read)
        if acted:
            self._signals |= {r.number for r in outs}
        if made is None or not held:
            return
        if name == "embedding" and held == [1]:
            rows = self.run.tensors[read[0].number].dim()
            self._orders[made] = [(x, (order[0],) * rows + order[1:]) for x, order in self._orders[read[1].number]]
            self._rows |= {made} if acted else set()
        elif not acted and len(held) > 1:
            self._combine_weights(name, [read[k].number for k in held], made)
        elif self._follow_permutation(call, name, [r.number for r in read], held, made, acted):
            pass
        else:
            for k in held:
                self._note_use(call, name, k, read[k].number, made, acted)

    def _combine_weights(self, name: str, held: Sequence[int], made: int) -> None:
        """Notes that the result of a call, such as W + B A, stands for the weights of which it is a sum or product.

        Args:
            name: name of the call in the table of rules.
            held: numbers of the weights that the call takes.
            made: number of the result.
        """
        tensors, shape = self.run.tensors, self.run.tensors[made].shape
        parts = [n for n in held if name in MATRIX_PRODUCTS or tensors[n].shape == shape]
        if len(shape) == 2 and all(tensors[n].dim() == 2 for n in parts):
            self._orders[made] = known = [x for n in parts for x in self._orders[n]]
            if name == "mul" and len({x for x, _ in known}) == len(known) > 1:
                self.multiplied_by |= {x: known[0][0] for x, _ in known[1:]}

    def _follow_permutation(
        self, call: TorchCall, name: str, read: Sequence[int], held: Sequence[int], made: int, acted: bool
    ) -> bool:
        """Tests whether a call only permutes the dimensions of one weight, or changes its entries one by one.

        If so, the method notes that its result stands for this weight, with the order of its dimensions.

        Args:
            call: the call.
            name: its name in the table of rules.
            read: numbers of the tensors it takes.
            held: positions of those that are weights.
            made: number of its result.
            acted: whether the call takes a signal, too.
        """
        number = read[held[0]]
        before, after = self.run.tensors[number], self.run.tensors[made]
        if len(held) > 1 or before.dim() != after.dim() or (acted and number not in self._rows):
            return False
        order = _find_permutation(before, after) if len(read) == 1 else None
        if order is None and not acted and name in ENTRYWISE_CALLS and before.shape == after.shape:
            order = [*range(before.dim())]
        if order is not None:
            self._orders[made] = [(x, tuple(own[d] for d in order)) for x, own in self._orders[number]]
            self._rows |= {made} if number in self._rows else set()
            self._rows.discard(number)
        return order is not None

    def _note_use(self, call: TorchCall, name: str, position: int, number: int, made: int, acted: bool) -> None:
        """Notes how a call uses the dimensions of a weight: which it sums, and which index its result.

        If the call multiplies the weight with a signal entry by entry, this is left to a later call, which may sum the
        product.

        Args:
            call: the call.
            name: its name in the table of rules.
            position: position of the weight among the tensors of the call.
            number: number of the weight.
            made: number of the result.
            acted: whether the call takes a signal, too.
        """
        dims, out = self.run.tensors[number].dim(), self.run.tensors[made].dim()
        if number in self._products:
            self._note_unsummed(number, _list_summed_dims(call, dims) if name in ("sum", "mean") else ())
            return
        others = [r.number for r in call.iterate_inputs() if r.number != number]
        if name == "mul" and acted and out >= dims and self._signals.intersection(others):
            fresh = self._orders.get(made, [])
            self._orders[made] = fresh + [(x, (-1,) * (out - dims) + own) for x, own in self._orders[number]]
            self._products.add(made)
            if number in self._rows:
                self._rows.discard(number)
                self._rows.add(made)
            return
        at = classify_dims(name, position, dims, call.arguments)
        if number in self._rows and not (at and at[0] and self._signals.intersection(others)):
            self._note_unsummed(number)
            return
        self._rows.discard(number)
        if at is None and acted:
            at = _probe_dims(call, self.run, number)
        for x, own in self._orders[number] if at is not None else ():
            self._add_use(x, *(tuple(own[d] for d in side) for side in at or ()))

    def _note_unsummed(self, number: int, over: Sequence[int] = ()) -> None:
        """Notes how a weight is used that no matrix product applies to a signal.

        Such weights are a table whose rows are selected (an embedding), and one that multiplies a signal entry by
        entry.

        Args:
            number: number of the tensor: the rows, or the product.
            over: dimensions along which a later call sums or averages it.
        """
        rows = number in self._rows
        for x, own in self._orders.pop(number, ()):
            summed = {own[d] for d in over} - {-1}
            rest = [d for d in own if d not in summed]
            if rows and not summed:
                summed, rest = {0}, [d for d in own if d]
            self._add_use(x, [*summed], rest, ())
        self._rows.discard(number)
        self._products.discard(number)

    def _add_use(self, name: str, *sides: Sequence[int]) -> None:
        """Records that a call sums some dimensions of a parameter, while others index the output or count maps.

        Args:
            name: name of the parameter.
            sides: three lists of dimensions: those that are summed, those that index the output, and those that count
                separate maps. Entries of -1, which stand for no dimension of the parameter, are dropped.
        """
        summed, made, stack = (tuple(sorted({d for d in side if d >= 0})) for side in sides)
        self.found[name].add((summed, made, stack))


def _list_summed_dims(call: TorchCall, dims: int) -> list[int]:
    """Returns the dimensions over which a call of ``sum`` or ``mean`` goes; ``dims`` is the number of dimensions."""
    given = call.keywords.get("dim", call.arguments[1] if len(call.arguments) > 1 else None)
    over = range(dims) if given is None else [given] if isinstance(given, int) else given
    return [d % dims for d in over]


def _probe_dims(call: TorchCall, run: Recording, number: int) -> DimUses | None:
    """Finds out how a call without a rule uses the dimensions of a weight, by changing some of its entries.

    A dimension indexes the output if changing the entries at its position j changes the result at a single position
    of a dimension of the same size. Otherwise it is summed. None means that the call cannot be run again.

    Examples:
        >>> _probe_dims(call, run, number)  # of torch.tensordot(x, w, 1), w of shape (8, 3)
        ((0,), (1,), ())
    """
    weight, draw = run.tensors[number].double(), torch.Generator().manual_seed(4)
    if not run.tensors[number].is_floating_point():
        return None
    with suppress(Exception):  # a call that cannot be run again is not probed
        before, *_ = replay(call, run, {number: weight})
        summed, made = list[int](), list[int]()
        for d, n in enumerate(weight.shape):
            kept = n > 1
            for j in {0, n - 1} if kept else ():
                moved = weight.clone()
                moved.select(d, j).add_(torch.randn(moved.select(d, j).shape, generator=draw, dtype=moved.dtype))
                changed = (replay(call, run, {number: moved})[0] != before).nonzero()
                alone = (len(changed[:, e].unique()) == 1 for e in range(before.dim()) if before.shape[e] == n)
                kept = kept and len(changed) > 0 and any(alone)
            (made if kept else summed).append(d)
        return tuple(summed), tuple(made), ()
    return None


def _find_permutation(before: Tensor, after: Tensor) -> list[int] | None:
    """Finds the order of dimensions that turns one tensor into another: the same order, or a transpose of the last two.

    Returns None if neither does.
    """
    if after.numel() != before.numel() or sorted(before.shape) != sorted(after.shape):
        return None
    if before.shape == after.shape and bool((before == after).all()):
        return [*range(before.dim())]
    if before.dim() < 2:
        return None
    for order in ([*range(before.dim() - 2), before.dim() - 1, before.dim() - 2],):
        moved = before.permute(order)
        if moved.shape == after.shape and bool((moved == after).all()):
            return order
    return None


def read_parameter_shapes(models: Sequence[nn.Module], run: Recording | None) -> Iterator[ParameterShape]:
    """Yields every parameter of a module, with its sizes in all builds and how calls use it.

    Args:
        models: the module in each build.
        run: a recording of the first one, or None if it does not run.

    Raises:
        Unreadable: another build lacks a parameter of the first one.
    """
    uses, beside = ({}, {}) if run is None else ((known := WeightUses(run)).found, known.multiplied_by)
    owners = {id(p): module for module in models[0].modules() for p in module.parameters(recurse=False)}
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in models]
    for name, p in models[0].named_parameters():
        if lacks := next((k for k, other in enumerate(shapes) if len(other.get(name, ())) != p.dim()), None):
            raise Unreadable(
                f"{name}: build number {lacks + 1} has no such parameter; let build return the same "
                "parameters at all sizes"
            )
        mine = uses.get(name) or {x for x in [_classify_by_module(owners[id(p)], p.dim())] if x is not None}
        sizes = [*zip(*(s[name] for s in shapes), strict=True)]
        yield ParameterShape(name, sizes, mine, not p.requires_grad, beside.get(name, ""))


def _classify_by_module(module: nn.Module, dims: int) -> DimUses | None:
    """Returns how a torch module (``nn.Linear``, ...) uses the dimensions of its weight; None if its type is not
    known.
    """
    kinds = {nn.Linear: "linear", nn.Embedding: "embedding", nn.modules.conv._ConvTransposeNd: "conv_transpose",
             nn.modules.conv._ConvNd: "conv", nn.RNNBase: "linear", nn.RNNCellBase: "linear",
             nn.MultiheadAttention: "linear"}  # fmt: skip
    call = next((x for kind, x in kinds.items() if isinstance(module, kind) and dims > 1), "")
    matrix = call != "linear" or dims == 2  # other parameters of MultiheadAttention are tokens of shape (1, 1, N)
    return classify_dims(call, 1, dims, ("",)) if matrix else None


def _find_unused_stem(stem: str, names: Sequence[str]) -> str:
    """Returns a stem, extended by underscores until no parameter is called like it, with or without a number."""
    while any(re.fullmatch(rf"{stem}\d*", x) for x in names):
        stem += "_"
    return stem


class ShapeNetwork:
    """Builds a network without knowing the forward pass: each parameter has one equation, in which it acts on a
    constant input.

    For a matrix this is ``s1[a] = W1[a,b] data[b]``, from which its exponents follow if all its inputs and outputs
    are Theta(1).

    Args:
        parameters: the parameters.
        builds: the sizes of each build of the module; each but the first has one axis doubled.
        counted: for each parameter of which there are more when an axis grows (one for each expert), this axis.

    Attributes:
        notes: what is assumed about single parameters, such as an ambiguous shape, as (name, note).
        axes: axis of each index name.
        constants: for each list of axes, written as in ``"N M"``, the name of the constant input with these axes.
        lines: the equations.
        roles: parameter name of each symbol.
        multiplied: for each parameter, the power of the sizes by which the module multiplies it
            (``Network.multiplied``).
        stems: beginnings of the names of products, of the sums of their entries, and of the output.
    """

    def __init__(
        self, parameters: Sequence[ParameterShape], builds: Sequence[Mapping[str, int]], counted: Mapping[str, str]
    ):
        self.builds, self.counted = builds, counted
        self.notes: list[tuple[str, str]] = []
        self.axes: dict[str, str] = {"x": "D"}
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self.roles: dict[str, str] = {}
        self.multiplied: dict[str, Power] = {}
        self.stems = tuple(_find_unused_stem(x, [p.name for p in parameters]) for x in "sof")
        groups: dict[str, list[ParameterShape]] = {}
        for p in parameters:
            groups.setdefault(NUMBER_IN_NAME.sub("*", p.name), []).append(p)
        for pattern, group in groups.items():
            same = all(replace(p, name="") == replace(group[0], name="") for p in group)
            if same and not pattern.startswith("*"):  # a parameter name must not start with *
                group = [replace(group[0], name=pattern)]
            for p in group:
                self._add_parameter(p)

    def _fit_size(self, name: str, sizes: Sizes) -> Powers:
        """Returns the powers of the axes to which the size of a dimension is proportional.

        If it is not proportional to any, the nearest powers are taken and a note says so.

        Args:
            name: name of the parameter, for the note.
            sizes: the size in each build of the module.

        Raises:
            Unreadable: the size is 0.
        """
        if 0 in sizes:
            raise Unreadable(f"{name}: one of its dimensions is 0 at {self.builds[sizes.index(0)]}; give larger sizes")
        powers = fit_powers(sizes, self.builds)
        if powers is None or any(p.denominator > 1 for p in powers.values()):
            self.notes.append((name, NEAREST_POWER.format(tuple(sizes))))
            powers = fit_powers([2.0 ** round(math.log2(n / sizes[0])) for n in sizes], self.builds) or {}
        return powers

    def _add_parameter(self, p: ParameterShape) -> None:
        """Writes the equation of one parameter, and the notes on it."""
        name, grows = p.name, [self._fit_size(p.name, s) for s in p.sizes]
        summed, made, stack = self._choose_dim_uses(name, p, grows)
        taken: dict[str, int] = {}
        if p.multiplied_by:  # the product of both has the size of the weight
            entries = Power()
            for d in summed:
                entries *= Power.of(grows[d])
            self.multiplied[name] = entries ** Fraction(-1, 2)
            self.notes.append((name, JOINT_WEIGHT.format(p.multiplied_by)))

        def name_dims(dims: Sequence[int]) -> str:
            """Returns index names for some dimensions; one that is proportional to N^2 gets two, and one of fixed
            size gets none.
            """
            found = ""
            for axis, count in ((a, int(n)) for d in dims for a, n in grows[d].items()):
                for _ in range(abs(count)):
                    taken[axis] = k = taken.get(axis, -1) + 1
                    pool = INDEX_NAMES.get(axis) or SPARE_INDICES[4 * len(set(self.axes.values()) - {*INDEX_NAMES}) :]
                    known = [x for x, a in self.axes.items() if a == axis]
                    index_name = known[k] if k < len(known) else next(x for x in pool if x not in self.axes)
                    self.axes[index_name] = axis
                    found += index_name
            return found

        read, out, maps = name_dims(summed), name_dims(made), name_dims(stack)
        for d in (d for d in made if len(p.sizes) > 1 and sum(map(abs, grows[d].values())) > 1):
            self.notes.append((name, GROWING_OUTPUT.format(Power.of(grows[d]))))
        if (axis := self.counted.get(name)) is not None:
            index_name = next((x for x, a in self.axes.items() if a == axis), INDEX_NAMES[axis][0])
            self.axes[index_name], maps = axis, index_name
        if maps and any(self.axes[x] == "M" for x in maps):
            self.notes.append((name, GROWING_MAP_COUNT))
        symbol, k = f"W{len(self.roles) + 1}", len(self.roles) + 1
        self.roles[symbol] = name
        source = write_indexed(self._name_constant(read + maps), [*(read + maps)] or ["x"])
        whole = [*out, *maps, *read] or ["x"]
        product, behind, _ = (f"{stem}{k}" for stem in self.stems)
        self.lines.append(f"{write_indexed(product, [*out, *maps])} = {write_indexed(symbol, whole)} {source}")
        if out or maps:
            self.lines.append(f"{behind} = {write_indexed(product, [*out, *maps])}")

    def _name_constant(self, indices: str) -> str:
        """Returns the name of the constant input with these indices.

        A constant that another parameter acts on is used again if its indices have the same axes.
        """
        key = " ".join(self.axes[x] for x in indices)
        return self.constants.setdefault(key, f"x{len(self.constants)}" if self.constants else "data")

    def _choose_dim_uses(self, name: str, p: ParameterShape, grows: Sequence[Powers]) -> DimUses:
        """Returns which dimensions of a parameter are summed, which index its output, and which count separate maps.

        The calls that use it decide, or else its shape, with a note if the shape is ambiguous.

        Args:
            name: the name of the parameter.
            p: the parameter.
            grows: for each dimension, the powers of the axes to which its size is proportional.
        """
        growing = [d for d, powers in enumerate(grows) if powers]
        kinds = {
            tuple(tuple(tuple(sorted(grows[d].items())) for d in side if grows[d]) for side in use): use
            for use in p.uses
        }
        if len(kinds) > 1:
            use = min(kinds.values(), key=lambda u: [str(grows[d]) for d in u[0] if grows[d]])
            self.notes.append((name, TIED_USES))
            return use
        if kinds:
            return next(iter(kinds.values()))
        shape = tuple(sizes[0] for sizes in p.sizes)
        if len({str(grows[d]) for d in growing}) > 1 or len(growing) > 2:
            self.notes.append((name, UNKNOWN_DIMS.format(shape, "the last one is assumed")))
        elif len(growing) == 1 and (len(p.sizes) == 2 or sum(set(s) != {1} for s in p.sizes) > 1):
            self.notes.append((name, UNKNOWN_DIMS.format(shape, "it is treated as an input weight, not a readout")))
        elif not growing and len(p.sizes) != 1:
            self.notes.append((name, UNKNOWN_FACTOR))
        if len(growing) < 2:
            return (), tuple(range(len(p.sizes))), ()
        *stack, made, summed = growing
        return (summed,), (made,), tuple(stack)

    def make_network(self, name: str, why: str) -> Network:
        """Returns the network with the equations of all parameters.

        Args:
            name: name of the network.
            why: the reason why the equations of the module itself are not known.
        """
        outs = [x.partition(" ")[0] for x in self.lines if "[" not in x.partition("=")[0]]
        product, _, last = self.stems
        made = {x for line in self.lines for x in re.findall(rf"\b{product}\d+\b", line.partition("=")[2])}
        outs = [x for x in outs if x not in made]
        text = "\n".join([*self.lines, f"{last} = {' + '.join(outs)}"])
        used = set(re.findall(r"(?<=[\[,])\w(?=[\],])", text))
        axes = {x: a for x, a in self.axes.items() if x in used}
        read = network(name, text, axes, self.roles, constants=[x for x in self.constants.values() if x != "data"])
        return replace(read, unread=why, multiplied=self.multiplied)


def drop_fixed_map_notes(reading: TracedModel, growing: Collection[str]) -> TracedModel:
    """Returns a copy without the notes that the number of a parameter's matrices (one for each expert) grows, unless
    M is among the axes that grow for this user.
    """
    notes = [x for x in reading.notes if x[1] != GROWING_MAP_COUNT or "M" in growing]
    return replace(reading, notes=notes)


def read_by_shape(
    build: Build, base: Mapping[str, int] | None, why: str, name: str = TRACED, only: Collection[str] = ()
) -> TracedModel:
    """Reads a module by the shapes of its parameters alone, as a network in which each parameter acts on a constant
    input.

    Args:
        build: function that returns the module at given sizes.
        base: sizes at which it is read; missing ones have a small default.
        why: the reason why there are no equations.
        name: name of the network.
        only: the parameters to read; all if empty.
    """
    asked = RequestedSizes(base or {})
    call_build(build, asked)
    start = {axis: max(n, 2) if axis in LOOP_AXES else n for axis, n in asked.items()}
    few = {**start, "K": start["M"] // 2} if start.get("K", 0) >= start.get("M", 1) > 1 else start
    builds = [few, *(enlarge_axis(few, axis) for axis in few)]  # with K < M, so that K and M change independently
    models = [call_build(build, sizes)[0] for sizes in builds]
    run = None
    for training in (True, False):  # in training mode, random noise may prevent the recording
        with (
            suppress(Exception),
            in_float64(),
        ):  # an error in both modes also prevents the equations and is reported there
            if run is None:
                model, (inputs, keywords), _ = build_module(build, start)
                run = record_forward(model, inputs, keywords, strict=False, training=training, decompose=False)
    numbers = [Counter(NUMBER_IN_NAME.sub("*", x) for x, _ in m.named_parameters()) for m in models]
    counted: dict[str, str] = {}
    for pattern in numbers[0]:
        powers = fit_powers([n[pattern] or 1 for n in numbers], builds) or {}
        counted |= {pattern: "M"} if "M" in powers else {}
    shapes = ShapeNetwork(
        [p for p in read_parameter_shapes(models, run) if not only or p.name in only], builds, counted
    )
    chosen = run is not None and "M" in start and _has_free_topk(run, start["M"], start.get("K", 0))
    network = shapes.make_network(name, f"{TAKE_K}; {why}" if chosen else why)
    shapes.notes += [("", CHOSEN_FEW)] if chosen else []
    found = {x: "" if p.requires_grad else FROZEN for x, p in models[0].named_parameters() if not only or x in only}
    return TracedModel(as_toml(network), network, {}, shapes.notes, {}, math.nan, start).with_frozen(found)


def _has_free_topk(run: Recording, experts: int, given: int) -> bool:
    """Tests whether a top-K selects some of the experts, but not as many as ``build`` is told, so that K is not known.

    A top-K along another dimension (experts that choose tokens) does not count.

    Args:
        run: the recording.
        experts: the number of experts.
        given: the number of active experts that ``build`` was told; 0 if it takes none.
    """
    calls = [
        (next(iterate_leaves(c.arguments, TensorRef)), next(iterate_leaves(c.result, TensorRef)))
        for c in run.calls
        if c.name == "topk"
    ]
    shapes = [(run.tensors[a.number].shape, run.tensors[b.number].shape) for a, b in calls]
    kept = [(b, a) for one, other in shapes for a, b in zip(one, other, strict=True) if a != b]
    return any(whole == experts and few != given for few, whole in kept)
