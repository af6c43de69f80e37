"""``read_equations``: derives the network of a module from a function that builds the module at any size.

Read next: ``recording.py``, ``reader.py``, ``loop_folding.py``, ``equation_writer.py``, in that order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError, guard_foreign_code
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.level import OpenDemand
from scaling_algebra.spec.networks.ancestors import is_trained
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.language import TRACED, Network
from scaling_algebra.spec.powers import Power
from scaling_algebra.waiting import iterate_with_progress

from . import concatenation, data_movement, recognised_functions, routing, rules  # noqa: F401 - fill the table
from .building import Build, RequestedSizes, build_module, call_build, enlarge_axis, in_float64
from .equation_names import Powers, Span
from .equation_writer import NetworkWriter
from .function_recognition import KnownFunctions
from .gradients import (
    FROZEN,
    TRAINING,
    ZERO,
    explain_missing,
    explain_untrained,
    find_frozen_roles,
    join_names,
    match_roles,
)
from .graph import View, describe_wiring
from .loop_folding import LoopFolder, drop_same_size_nodes, split_packed_parameters
from .nodes import (
    ConstantNode,
    ContractionNode,
    IndexClass,
    PartialTensor,
    Restart,
    TracedNode,
    Unreadable,
    make_error,
    walk_graph,
)
from .reader import Reader
from .recording import Recording, find_balance_buffers, record_forward, renumber_tensors
from .rule_application import apply_rule
from .wide_builds import find_wide_builds

LOOP_AXES = ("M", "L")
"""Axes that may be the length of a loop, so that the number of calls may grow with them."""
BALANCE_BUFFER = (
    "a buffer that only affects which experts are selected. It has no gradient (its step is the sign "
    "of a token count): "
    "start it at 0 and keep its rate the same at every size, since the scores that it is added to are Theta(1)"
)
_MAX_RESTARTS = 200
"""Maximum number of times that a reading restarts because a dimension is split."""
TOLERANCE = 1e-5
"""Maximum relative difference between the outputs of the equations and the module, in float64 (parts of it may be
float32)."""

TOP_K_READ_AS_ALL = "a top-K of a fixed number of candidates is read as if it selected all of them"
ALL_ACTIVE = "all experts were active when it was read, so powers of K count as powers of M"
ONE_LAYER = (
    "one layer stands for all, so effects through other layers are lost; build a fixed number of layers (do not use "
    "sizes['L'])"
)
SELECT_BY_TOPK = "or select by torch.topk(scores, K), scatter or gather, which are read at any K"
STARTS_AT_ZERO = "the module initialises it to zero, and so do these numbers; name its init to draw it instead"
DIFFERENCE_PHRASES = " read as ", " left out", " held at "
"""Phrases of the notes on values in the equations that differ from those of the module."""


@dataclass(frozen=True)
class TracedModel:
    """What was read from a module: a network of equations or, if these are not known, one made from its parameters'
    shapes.

    Attributes:
        text: the network as TOML, with the parameter names of the module.
        network: the network.
        factors: maps each multiplier to (path of the module, powers of the sizes that the module itself multiplies by).
        notes: what the equations leave out or approximate, as (path, note).
        calls: maps each signal to the torch call that makes it, as ``TracedNode.call``. Calls whose number grows with
            experts or layers are omitted, as their positions change.
        error: relative difference between the outputs of the equations and the module; NaN if there are no equations.
        base: the sizes of the first build.
        spans: for each part of a parameter that is read separately, by name, the slice of the parameter that it is.
        training: parameters that affect the module only in training mode.
        beside: a network of the parameters ``training``, made from their shapes, or None.
        blocked: parameters whose gradient is exactly zero for all weights.
        how: name of the strategy in ``readings.READINGS`` that succeeded.
        tried: the strategies that failed before, with the reason.
        joint: whether all experts were active in every build, so that powers of K cannot be told from powers of M.
    """

    text: str
    network: Network
    factors: Mapping[str, tuple[str, Powers]]
    notes: Sequence[tuple[str, str]]
    calls: Mapping[str, tuple[str, str, int, int]]
    error: float
    base: Mapping[str, int]
    spans: Mapping[str, Span] = field(default_factory=dict)
    training: Sequence[str] = ()
    beside: Network | None = None
    blocked: Sequence[str] = ()
    how: str = ""
    tried: Mapping[str, str] = field(default_factory=dict)
    joint: bool = False

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks that contain the model's parameters: ``beside``, if there is one, and last ``network``."""
        return (self.network,) if self.beside is None else (self.beside, self.network)

    @property
    def roles(self) -> list[str]:
        """The names of all tensors of ``networks``."""
        return [role for network in self.networks for role in network.tensors]

    def with_frozen(self, found: Mapping[str, str]) -> TracedModel:
        """Returns a copy in which parameters that do not train are marked as frozen, with notes on them.

        Args:
            found: for every parameter the reason why it does not train, or "", as from ``gradients.explain_untrained``.
        """
        frozen, notes = find_frozen_roles(found, self.roles)
        frozen = [role for role in frozen if role in self.network.tensors]
        network = self.network.with_frozen(frozen)
        network = replace(network, lacking={**explain_missing(found, self.roles), **network.lacking})
        of = match_roles(found, network.tensors)
        others = {role for name, state in found.items() if state != ZERO for role in of[name]}
        blocked = [*self.blocked, *dict.fromkeys(role for role in chain(*of.values()) if role not in others)]
        table = f"frozen = {json.dumps(frozen)}\n" if frozen else ""
        text = self.text.replace('equations = """', f'{table}equations = """', 1)
        return replace(self, text=text, network=network, notes=[*self.notes, *notes], blocked=blocked)

    def with_zero_starts(self, build: Build) -> TracedModel:
        """Returns a copy in which those trained matrices are marked that the module initialises to zero (such as B of
        LoRA).

        Args:
            build: the function that builds the module. Values from ``torch.empty`` do not count as zero.
        """
        mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)  # what is empty is filled with NaN
        try:
            named = dict(call_build(build, dict(self.base))[0].named_parameters())
        finally:
            torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        of = match_roles(named, self.network.tensors.keys() - self.network.frozen)
        moved = {role for name, p in named.items() for role in of[name] if p.dim() < 2 or p.is_meta or p.detach().any()}
        if not (zero := [role for role in self.network.tensors if role in {*chain(*of.values())} - moved]):
            return self
        text = self.text.replace('equations = """', f'zero = {json.dumps(zero)}\nequations = """', 1)
        notes = [*self.notes, (join_names(zero), STARTS_AT_ZERO)]
        return replace(self, text=text, network=self.network.with_zero(zero), notes=notes)

    def find_open_shares(self, base: Mapping[str, int], target: Mapping[str, int]) -> tuple[OpenDemand, ...]:
        """Returns which multipliers are undecided because the share of active experts K/M differs between base and
        target.

        This concerns a module that was read with all experts active (``joint``): K and M were then equal, so that it
        is not known whether the module's own factor at a multiplier depends on K or on M.

        Args:
            base: the sizes of the tuned model.
            target: the sizes of the model that gets the numbers.
        """
        sizes = [{"M": 1, **sizes} for sizes in (base, target)]
        changed = len({Fraction(z.get("K", z["M"]), z["M"]) for z in sizes}) > 1
        factors = [name for name, (where, _) in self.factors.items()] if self.joint and changed else []
        demand = "the module's own factor is known"
        return tuple(
            OpenDemand(demand, x, 0, f"{ALL_ACTIVE}; set it by hand for this K/M, {SELECT_BY_TOPK}") for x in factors
        )

    @property
    def lines(self) -> list[str]:
        """The result of ``describe`` if nothing is known about factors that the module should have and lacks."""
        return self.describe({})

    def describe(self, left: Mapping[str, str]) -> list[str]:
        """Returns lines that tell the user how the module was read: one for each note, and one for each multiplier of
        the equations, with the factor that the module itself multiplies by there.

        Args:
            left: for each multiplier, the factor that the module still lacks, as text; "" if it lacks none.
        """
        where: dict[str, list[str]] = {}
        usual = self.network.unread or self.how in ("", "at small sizes", "with half of the experts active")
        how = [] if usual else [f"read {self.how}; {name} failed: {why}" for name, why in self.tried.items()]
        for path, note in self.notes:
            where.setdefault(note, []).append(path or "model")
        lines = [
            f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {n}" for n, paths in where.items()
        ]
        for name, (path, own) in self.factors.items():
            said = f" ({name} in the equations)"
            if self.joint:
                said = f" ({name} in the equations; {ALL_ACTIVE})"
            elif name in left:
                said = f"; also multiply by {left[name]}" if left[name] else f", as required: nothing to do ({name})"
            lines.append(f"{path or 'model'}: the module multiplies by {Power.of(own)} here{said}")
        factors: dict[Power, list[str]] = {}
        for name, power in self.network.multiplied.items():
            factors.setdefault(power, []).append(name)
        return [*how, *lines] + [
            f"{join_names(names)}: the module multiplies this parameter by {own}; these numbers are "
            "for the parameter itself"
            for own, names in factors.items()
        ]


def _record_build(build: Build, sizes: Mapping[str, int], force_topk: int | None = None) -> Recording:
    """Builds the module at some sizes and records one forward pass; ``force_topk`` as for ``record_forward``."""
    model, (inputs, keywords), _ = build_module(build, sizes)
    with in_float64():
        return record_forward(model, inputs, keywords, force_topk=force_topk)


class SizesTooSmall(Unreadable):
    """The error for a module that must be read at larger sizes: at these, a growing dimension has only one entry."""


def choose_first_sizes(build: Build, base: Mapping[str, int] | None = None) -> dict[str, int]:
    """Returns the sizes of the first build: those given, and a small default for any other axis that ``build`` reads.

    There are at least two experts and two layers, so that a loop over them is recognised, and all experts are active.
    """
    call_build(build, asked := RequestedSizes(base or {}))
    start = {axis: max(n, 2) if axis in LOOP_AXES else n for axis, n in asked.items()}
    return start | ({"K": start["M"]} if {"K", "M"} <= start.keys() else {})


def read_equations(build: Build, start: Mapping[str, int], name: str = TRACED, force_topk: bool = False) -> TracedModel:
    """Derives the equations of the module that ``build(sizes)`` returns.

    The module is built and run at the first sizes and once with each axis doubled, in float64 on the CPU. It is run
    once more at a much larger size of each axis along which its constants may change. If fewer than all experts are
    active, K is an axis of its own, and the recordings make all experts active (``record_forward(force_topk=K)``) so
    that each of them is seen.

    Args:
        build: function that returns the module at given sizes.
        start: the first sizes, for every axis that ``build`` asks for.
        name: name of the network.
        force_topk: whether a top-K that selects some of a fixed number of candidates is read as if it selected all.

    Raises:
        Unreadable: a call without a rule, a branch on values, a size that is no multiple of an axis, or equations
            whose output differs from the module's.
    """
    apart = "M" in start and start.get("K", start["M"]) < start["M"]
    alike = [axis for axis in start if axis != "K" or apart]

    def record_sizes(sizes: Mapping[str, int]) -> Recording:
        return _record_build(build, sizes, sizes["K"] if apart else 0 if force_topk else None)

    first = record_sizes(start)
    if force_topk and ("M" in start or not first.partial_topk):
        raise Unreadable("model: every top-K selects all candidates already")
    builds, runs, loops = [start], [first], []
    for axis in iterate_with_progress("reading", "builds", alike):
        run = record_sizes(enlarge_axis(start, axis))
        run.enlarged_axis = axis
        if force_topk and {*run.partial_topk} != {*first.partial_topk}:
            raise Unreadable(
                f"model: topk: the number of candidates grows with {axis}, which equations cannot "
                "express; let build take M and K"
            )
        if run.call_names == first.call_names:
            builds.append(enlarge_axis(start, axis))
            runs.append(run)
        elif axis in LOOP_AXES:
            loops.append(axis)
        else:
            raise _describe_call_mismatch(first, run, axis)
    try:
        reader, output = _read_graph(runs)
        wide = find_wide_builds(reader.runs, [*reader.known_functions.tree.parent], start)
        for axis, times in wide.items():
            run = record_sizes(larger := enlarge_axis(start, axis, times))
            run.enlarged_axis = axis
            if run.call_names != first.call_names:
                raise _describe_call_mismatch(first, run, axis)
            builds.append(larger)
            runs.append(run)
        if wide:
            reader, output = _read_graph(runs)
    except Unreadable as error:
        if _has_growing_unit_dim(runs):
            raise SizesTooSmall(str(error)) from None
        raise
    deviation = check_equations(reader, output, _run_module(build, start) if apart else None)
    longer = []
    for axis in loops:
        others = [record_sizes(enlarge_axis(b, axis)) for b in builds]
        for other, run in zip(others, runs, strict=True):
            other.enlarged_axis = run.enlarged_axis
            if other.call_names != others[0].call_names:
                raise _describe_call_mismatch(others[0], other, axis)
        longer.append(_read_graph(others))
        if changed := longer[-1][0].omitted_factors ^ reader.omitted_factors:
            where, number = min(changed)
            raise make_error(
                where,
                f"a constant factor of {number:g} differs between iterations of a loop or with its "
                "length; make it a parameter",
            )
    output, notes = _fold_graph(reader, output, "L" in start, bool(loops))
    order = list(walk_graph(output.node))
    for axis, (again, made) in zip(loops, longer, strict=True):
        _append_sizes(order, list(walk_graph(_fold_graph(again, made, "L" in start, True)[0].node)), axis)
    output = drop_same_size_nodes(output)[0]
    writer = NetworkWriter(output, [*builds, *(enlarge_axis(start, axis) for axis in loops)], name)
    text, signals = writer.write_toml(), writer.names.signals
    by_signal = {signals[n.number]: n.call for _, _, n in writer.lines if n is not None and n.call is not None}
    counts = [
        Counter((c.module, c.name) for c in run.calls) for run in (first, *(again.runs[0] for again, _ in longer))
    ]
    calls = {s: c for s, c in by_signal.items() if len({count[c[:2]] for count in counts}) == 1}
    try:
        network = from_toml(text, name)
    except UsageError as said:
        at = re.search(r"equation (\d+)", str(said))
        node = writer.lines[int(at[1]) - 1][2] if at else None
        where = (node.where if node else "") or "model"
        why = str(said).removeprefix(f"{name}: ")
        raise Unreadable(
            f"{where}: this computation cannot be written as equations ({why}); give the equations with --network"
        ) from None
    if lost := [x for x in start if x in AXES and x != "K" and x not in network.axes.values()]:
        raise Unreadable(
            f"model: build takes {', '.join(lost)}, but nothing that the output depends on grows with it; remove it"
        )
    notes = [
        *writer.notes,
        *notes,
        *((buffer, BALANCE_BUFFER) for buffer in find_balance_buffers(first)),
        *[("", TOP_K_READ_AS_ALL)] * force_topk,
    ]
    network = replace(
        network, stands=next((note for _, note in notes if any(x in note for x in DIFFERENCE_PHRASES)), "")
    )
    base = {**start, "K": start["M"]} if apart else start
    reading = TracedModel(text, network, writer.factors, notes, calls, deviation, base, writer.names.spans)
    return _check_gradients(reading, build, writer.names.frozen)


def _has_growing_unit_dim(runs: Sequence[Recording]) -> bool:
    """Tests whether a dimension has size 1 in the first run and is larger in another; the sizes are then too small to
    be read.
    """
    return any(
        1 in x.shape and any(a == 1 < b for a, b in zip(x.shape, run.tensors[k].shape, strict=False))
        for run in runs[1:]
        for k, x in runs[0].tensors.items()
        if k in run.tensors
    )


def _check_gradients(reading: TracedModel, build: Build, frozen: Sequence[str]) -> TracedModel:
    """Finds the parameters that do not train, and returns the network with these frozen and noted.

    Args:
        reading: what was read so far.
        build: the function that builds the module.
        frozen: names of tensors that are frozen in the equations.

    Raises:
        Unreadable: nothing trains, or the layers read a signal that only other layers change.
    """
    model, (inputs, keywords), _ = build_module(build, reading.base)
    try:
        with guard_foreign_code("the backward pass"), in_float64():
            found = explain_untrained(model, lambda model: model(*inputs, **keywords))
    except UsageError as error:
        if isinstance(error.__cause__, Exception):  # raised by torch: whether the parameters train is unknown
            return replace(reading, notes=[*reading.notes, ("", f"gradients were not checked: {error}")])
        raise Unreadable(str(error)) from None
    of = match_roles(found, reading.network.tensors)
    training = [name for name, state in found.items() if state == TRAINING and not of[name]]
    reading = replace(reading.with_frozen(found | dict.fromkeys(frozen, FROZEN)), training=training)
    if still := _find_untrained_stream(reading.network):
        raise Unreadable(f"layers read {still}, which only other layers change: {ONE_LAYER}")
    return reading


def _find_untrained_stream(network: Network) -> str:
    """Returns the name of a signal that the layers read and to which no trained tensor contributes; "" if there is
    none.

    The equations have one layer in place of all, so that they lack the changes that earlier layers make to its input.
    If no trained tensor contributes to the input, these are its only changes, and the exponents would be wrong.
    """
    layers = {x for x, axis in network.axes.items() if axis == "L"}
    within = {s.out for s in network.statements if layers.intersection(network.signals[s.out])}
    read = {x.name for s in network.statements if s.out in within for x in s.inputs} - within
    made = sorted(x for x in read if network.producer(x))
    learning = any(layers.intersection(t.indices) for role, t in network.tensors.items() if role not in network.frozen)
    return made[0] if learning and made and not any(is_trained(network, x) for x in made) else ""


def _read_graph(runs: Sequence[Recording]) -> tuple[Reader, View]:
    """Makes the graph of a module from its recordings at several sizes; returns the reader and the view of the
    output.
    """
    splits: dict[Any, Any] = {}
    runs = [replace(runs[0], positions={}), *(renumber_tensors(run, runs[0]) for run in runs[1:])]
    regions = KnownFunctions(runs)
    for _ in range(_MAX_RESTARTS):
        reader = Reader(runs, splits, apply_rule, recognised_functions.read_function, regions)
        try:
            return reader, reader.read()
        except Restart:
            continue
    raise Unreadable("model: dimensions are split again and again; reshape fewer times, or give --network")


def _run_module(build: Build, sizes: Mapping[str, int]) -> Tensor:
    """Builds the module at these sizes, runs it and returns its output."""
    model, (inputs, keywords), _ = build_module(build, sizes)
    with in_float64():
        run = record_forward(model, inputs, keywords, strict=False)
    return run.tensors[run.output.number].double()


def check_equations(reader: Reader, output: View, chosen: Tensor | None = None) -> float:
    """Computes the output of the graph and compares it with that of the module, before loops are merged.

    Args:
        reader: the reader that made the graph.
        output: the view of the output.
        chosen: the output of the module with only K experts active, if all are active in the recording.

    Returns:
        The maximum difference, relative to the largest entry.

    Raises:
        Unreadable: the outputs differ. The error names the first call for which the values of the graph, in any order,
            differ from those of the module.
    """
    run, values = reader.runs[0], dict[int, Tensor]()
    if output.is_constant:
        raise Unreadable("the output of the model depends on none of its parameters; let forward use them")
    truth = run.tensors[run.output.number].double() if chosen is None else chosen
    got = output.to_torch(output.node.evaluate(values))
    apart = _compute_relative_difference(got, truth)
    if apart <= TOLERANCE:
        return apart
    for call, ref, view in reader.read_calls if chosen is None else ():
        if isinstance(view.node, ConstantNode | PartialTensor):
            continue
        found = view.to_torch(view.node.evaluate(values)).double().flatten().sort().values
        true = run.get_tensor(ref).double().flatten().sort().values
        if found.shape == true.shape and _compute_relative_difference(found, true) > TOLERANCE:
            why = (
                "the equations give other values than this call, so its rule is wrong here; use other "
                "calls, or --network"
            )
            raise make_error(f"{call.module or 'model'}: {call.name}", why)
    raise Unreadable(
        f"the equations give other values than the model (relative difference {apart:.1g}); give them with --network"
    )


def _compute_relative_difference(found: Tensor, true: Tensor) -> float:
    """Returns the maximum difference of two tensors relative to the largest entry of the second; infinity if shapes
    differ."""
    if found.shape != true.shape:
        return float("inf")
    found, true = (torch.where(torch.isfinite(x), x, torch.zeros_like(x)) for x in (found, true))
    return float((found - true).abs().max()) / max(float(true.abs().max()), 1e-30)


def _fold_graph(reader: Reader, output: View, deep: bool, loops: bool) -> tuple[View, list[tuple[str, str]]]:
    """Merges the terms that loops over experts (and layers) made in a graph, and splits packed parameters such as qkv.

    Args:
        reader: the reader that made the graph.
        output: the view of the output.
        deep: whether to merge loops over layers, too.
        loops: whether the length of a loop grows with an axis.

    Returns:
        The new view of the output, and notes on what is left out, as (path of the module, note).
    """
    output, notes = drop_same_size_nodes(output, loops)
    for depth in (False, True)[: 1 + deep]:
        folder = LoopFolder(reader.builds, depth)
        output = View(folder.fold_graph(output.node), output.dims)
        notes += folder.notes
    return View(split_packed_parameters(output.node), output.dims), notes


def _append_sizes(order: list[TracedNode], other: list[TracedNode], axis: str) -> None:
    """Extends the sizes in a graph by another build, in which a loop is twice as long and which therefore has an own
    graph.

    Args:
        order: the nodes of the first graph, to whose indices and factors the sizes are added.
        other: the nodes of the second graph.
        axis: the axis of the loop.

    Raises:
        Unreadable: the two graphs differ in structure.
    """

    def describe_nodes(nodes: list[TracedNode]) -> list[Any]:
        at = {n.number: k for k, n in enumerate(nodes)}
        return [
            (type(n), n.label, len(n.indices), n.over, describe_wiring(n), [at[c.number] for c in n.children])
            for n in nodes
        ]

    pairs = enumerate(zip_longest(describe_nodes(order), describe_nodes(other)))
    if (at := next((k for k, (a, b) in pairs if a != b), None)) is not None:
        why = f"the iterations of a loop over {axis} differ; make them alike, or fix the length of the loop"
        raise make_error(order[min(at, len(order) - 1)].where, why)
    seen: dict[IndexClass, int] = {}
    for a, b in zip(order, other, strict=True):
        mine, its = map(_list_all_indices, (a, b))
        seen |= {x.find_root(): y.find_root().sizes[0] for x, y in zip(mine, its, strict=True)}
    builds = len(next(iter(seen)).sizes)
    for index, size in seen.items():
        index.sizes = (*index.sizes, size)
    for a, b in zip(order, other, strict=True):
        if isinstance(a, ContractionNode) and isinstance(b, ContractionNode) and (a.factor or b.factor):
            a.factor = (*(a.factor or (1.0,) * builds), b.factor[0] if b.factor else 1.0)


def _list_all_indices(node: TracedNode) -> list[IndexClass]:
    """Returns the indices of a node, and for a product also those that it sums over."""
    summed = [node.labels[x] for _, m in node.sources for x in m] if isinstance(node, ContractionNode) else []
    return [*node.indices, *summed]


def _describe_call_mismatch(first: Recording, other: Recording, axis: str) -> Unreadable:
    """Returns the error for a module whose calls change when it is built with a larger size of an axis."""
    pairs = zip(first.calls, other.calls, strict=False)
    call = next((a for a, b in pairs if (a.name, a.module) != (b.name, b.module)), first.calls[-1])
    why = f"the module makes other calls if {axis} is larger; only loops over experts (M) and layers (L) may grow"
    return make_error(f"{call.module or 'model'}: {call.name}", why)
