"""``read_equations``: the network of a module, read from a function that builds it at any size.

Read next: ``recording.py``, ``reading.py``, ``folding.py``, ``writing.py``, in that order.
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

from . import concatenation, functions, layout, routing, rules  # noqa: F401 - fill the table
from .building import Asked, Build, built, called, doubled, exactly
from .folding import Folder, bare, settled
from .gradients import FROZEN, TRAINING, ZERO, frozen_roles, lacking, listed, roles_of, states
from .graph import IndexClass, Restart, TracedNode, Unreadable, View, refused, walk, wiring
from .naming import Powers, Span
from .reading import Reader
from .recording import Recording, choosing, numbered, record
from .regions import Regions
from .table import apply
from .wide_builds import find_wide_builds
from .writing import Writer

COUNTS = ("M", "L")
"""Axes whose number of calls may grow with them."""
LOAD = (
    "a buffer that only shifts which experts are chosen: no gradient, a step is the sign of a count of tokens; it "
    "starts at 0, and its rate stays the same at every size, since the scores it is added to are Theta(1)"
)
_SPLITS = 200
TOLERANCE = 1e-5
"""Relative difference of the outputs, in float64 (a module may compute in float32 inside)."""

EVERY = "a choice among what does not grow in number is read as all of it"
JOINT = "every expert was active where it was read, so that powers of K count as powers of M"
ONE = "a reading with one layer for all leaves that out; build them in a fixed number, without sizes['L']"
SHARE = "or write the choice as torch.topk(scores, K), scatter or gather, which are read at any K"
START = "all zeros at the start, and so derived; it is drawn where its init is given by name"
OTHERWISE = " read as ", " left out", " held at "
"""What notes say of values that are not those of the module."""


@dataclass(frozen=True)
class Traced:
    """A module as a network.

    Attributes:
        text: TOML, with the parameters' names as roles. network: what it says.
        factors: of every multiplier the module's path, and the powers that the module itself multiplies by there.
        notes: what is held or left out, as (path, note). calls: of every signal, the torch call that makes it, as
            ``TracedNode.call``; none of calls of which a module makes more with more experts or layers, because the
            last of few is in the middle of many.
        error: relative difference of the executed equations from the module. base: the first sizes. spans: where
            parts of parameters lie. training: parameters that act in training mode alone. beside: those by shape.
        blocked: roles whose gradient is exactly zero, whatever the weights.
        how: the strategy of ``READINGS`` that read it. tried: those that failed before, with the reason.
        joint: whether factors were read with all experts active alone, so that those of K count as powers of M.
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
        """What has the model's parameters; the equations last."""
        return (self.network,) if self.beside is None else (self.beside, self.network)

    @property
    def roles(self) -> list[str]:
        """The names of all tensors."""
        return [role for network in self.networks for role in network.tensors]

    def freezing(self, found: Mapping[str, str]) -> Traced:
        """The reading of a module of whose parameters some do not train, as ``gradients.states`` says."""
        frozen, notes = frozen_roles(found, self.roles)
        frozen = [role for role in frozen if role in self.network.tensors]
        network = self.network.with_frozen(frozen)
        network = replace(network, lacking={**lacking(found, self.roles), **network.lacking})
        of = roles_of(found, network.tensors)
        others = {role for name, state in found.items() if state != ZERO for role in of[name]}
        blocked = [*self.blocked, *dict.fromkeys(role for role in chain(*of.values()) if role not in others)]
        table = f"frozen = {json.dumps(frozen)}\n" if frozen else ""
        text = self.text.replace('equations = """', f'{table}equations = """', 1)
        return replace(self, text=text, network=network, notes=[*self.notes, *notes], blocked=blocked)

    def starting(self, build: Build) -> Traced:
        """The reading of a module of whose trained matrices some start at zero (B of LoRA); what ``torch.empty`` leaves
        is no zero."""
        mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)  # what is empty is filled with NaN
        try:
            named = dict(called(build, dict(self.base))[0].named_parameters())
        finally:
            torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        of = roles_of(named, self.network.tensors.keys() - self.network.frozen)
        moved = {role for name, p in named.items() for role in of[name] if p.dim() < 2 or p.is_meta or p.detach().any()}
        if not (zero := [role for role in self.network.tensors if role in {*chain(*of.values())} - moved]):
            return self
        text = self.text.replace('equations = """', f'zero = {json.dumps(zero)}\nequations = """', 1)
        notes = [*self.notes, (listed(zero), START)]
        return replace(self, text=text, network=self.network.with_zero(zero), notes=notes)

    def open_shares(self, base: Mapping[str, int], target: Mapping[str, int]) -> tuple[OpenDemand, ...]:
        """Return what is undecided about the module's own factors where the share of active experts, K/M, changes."""
        sizes = [{"M": 1, **sizes} for sizes in (base, target)]
        changed = len({Fraction(z.get("K", z["M"]), z["M"]) for z in sizes}) > 1
        factors = [name for name, (where, _) in self.factors.items()] if self.joint and changed else []
        demand = "the module's own factor is known"
        return tuple(OpenDemand(demand, x, 0, f"{JOINT}; set it by hand for this K/M, {SHARE}") for x in factors)

    @property
    def lines(self) -> list[str]:
        """``described`` without knowledge of what the numbers need."""
        return self.described({})

    def described(self, left: Mapping[str, str]) -> list[str]:
        """What is held and left out, one line each, and the module's own factors.

        Args:
            left: by multiplier, what is left to multiply by besides the module's own factor; empty for nothing.
        """
        where: dict[str, list[str]] = {}
        usual = self.network.unread or self.how in ("", "at small sizes", "with half of the experts active")
        how = [] if usual else [f"read {self.how}; not {name}: {why}" for name, why in self.tried.items()]
        for path, note in self.notes:
            where.setdefault(note, []).append(path or "model")
        lines = [
            f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {n}" for n, paths in where.items()
        ]
        for name, (path, own) in self.factors.items():
            said = f" ({name} in the equations)"
            if self.joint:
                said = f" ({name} in the equations; {JOINT})"
            elif name in left:
                said = f"; multiply by {left[name]} besides" if left[name] else f", as required: nothing to do ({name})"
            lines.append(f"{path or 'model'}: the module multiplies by {_shown(own)} here{said}")
        factors: dict[Power, list[str]] = {}
        for name, power in self.network.multiplied.items():
            factors.setdefault(power, []).append(name)
        return [*how, *lines] + [
            f"{listed(names)}: the module multiplies by {own}; these numbers are for the parameter itself"
            for own, names in factors.items()
        ]


def _recorded(build: Build, sizes: Mapping[str, int], every: int | None = None) -> Recording:
    model, (inputs, keywords), _ = built(build, sizes)
    with exactly():
        return record(model, inputs, keywords, every=every)


class Thin(Unreadable):
    """A module that cannot be read at these sizes, where something with one entry grows: larger ones say more."""


def first_sizes(build: Build, base: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the sizes of the first build: what ``build`` asks for beside the given ones has a small default.

    There are at least two experts and two layers, so that they are seen to be a loop, and all experts are active.
    """
    called(build, asked := Asked(base or {}))
    start = {axis: max(n, 2) if axis in COUNTS else n for axis, n in asked.items()}
    return start | ({"K": start["M"]} if {"K", "M"} <= start.keys() else {})


def read_equations(build: Build, start: Mapping[str, int], name: str = TRACED, every: bool = False) -> Traced:
    """Read the equations of the module that ``build(sizes)`` returns.

    The module runs once at the first sizes and once with every axis doubled, in float64 on the CPU, and once more at a
    much larger size of the axes along which its constants differ. With fewer active
    experts than experts, K changes alone like every other axis, and the module is run with all of them
    (``record(every=K)``), so that every expert is seen.

    Args:
        build: function that returns the module at given sizes.
        start: the sizes of the first build, of every axis that ``build`` asks for.
        name: of the network.
        every: whether a top-K that leaves some out of a number that does not grow is read with all.

    Raises:
        Unreadable: a call without a rule, a branch on values, a size that is no multiple of an axis, or equations that
            do not give the module's output.
    """
    apart = "M" in start and start.get("K", start["M"]) < start["M"]
    alike = [axis for axis in start if axis != "K" or apart]

    def recorded(sizes: Mapping[str, int]) -> Recording:
        return _recorded(build, sizes, sizes["K"] if apart else 0 if every else None)

    first = recorded(start)
    if every and ("M" in start or not first.few):
        raise Unreadable("model: every top-K chooses all")
    builds, runs, loops = [start], [first], []
    for axis in iterate_with_progress("reading", "builds", alike):
        run = recorded(doubled(start, axis))
        run.doubled = axis
        if every and {*run.few} != {*first.few}:
            raise Unreadable(f"model: topk: chooses some out of a number that grows with {axis}; no equation says this")
        if run.names == first.names:
            builds.append(doubled(start, axis))
            runs.append(run)
        elif axis in COUNTS:
            loops.append(axis)
        else:
            raise _differ(first, run, axis)
    try:
        reader, output = _read(runs)
        wide = find_wide_builds(reader.runs, [*reader.regions.tree.parent], start)
        for axis, times in wide.items():
            run = recorded(larger := doubled(start, axis, times))
            run.doubled = axis
            if run.names != first.names:
                raise _differ(first, run, axis)
            builds.append(larger)
            runs.append(run)
        if wide:
            reader, output = _read(runs)
    except Unreadable as error:
        if _thin(runs):
            raise Thin(str(error)) from None
        raise
    deviation = guard(reader, output, _output(build, start) if apart else None)
    longer = []
    for axis in loops:
        others = [recorded(doubled(b, axis)) for b in builds]
        for other, run in zip(others, runs, strict=True):
            other.doubled = run.doubled
            if other.names != others[0].names:
                raise _differ(others[0], other, axis)
        longer.append(_read(others))
        if changed := longer[-1][0].left_out ^ reader.left_out:
            where, number = min(changed)
            raise refused(where, f"a constant factor of {number:g} changes along a loop, or with its length")
    output, notes = _folded(reader, output, "L" in start, bool(loops))
    order = list(walk(output.node))
    for axis, (again, made) in zip(loops, longer, strict=True):
        _extend(order, list(walk(_folded(again, made, "L" in start, True)[0].node)), axis)
    output = bare(output)[0]
    writer = Writer(output, [*builds, *(doubled(start, axis) for axis in loops)], name)
    text, signals = writer.text(), writer.names.signals
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
        raise Unreadable(f"{where}: no network says what this computes ({why})") from None
    if lost := [x for x in start if x in AXES and x != "K" and x not in network.axes.values()]:
        raise Unreadable(f"model: build takes {', '.join(lost)}, and nothing that the output depends on grows with it")
    notes = [*writer.notes, *notes, *((buffer, LOAD) for buffer in choosing(first)), *[("", EVERY)] * every]
    network = replace(network, stands=next((note for _, note in notes if any(x in note for x in OTHERWISE)), ""))
    base = {**start, "K": start["M"]} if apart else start
    reading = Traced(text, network, writer.factors, notes, calls, deviation, base, writer.names.spans)
    return _with_gradients(reading, build, writer.names.frozen)


def _thin(runs: Sequence[Recording]) -> bool:
    """Does something with one entry grow, as heads do of which there is one?"""
    return any(
        1 in x.shape and any(a == 1 < b for a, b in zip(x.shape, run.tensors[k].shape, strict=False))
        for run in runs[1:]
        for k, x in runs[0].tensors.items()
        if k in run.tensors
    )


def _with_gradients(reading: Traced, build: Build, frozen: Sequence[str]) -> Traced:
    """The reading with its frozen tensors; parameters that do not train are in its notes."""
    model, (inputs, keywords), _ = built(build, reading.base)
    try:
        with guard_foreign_code("the backward pass"), exactly():
            found = states(model, lambda model: model(*inputs, **keywords))
    except UsageError as error:
        if isinstance(error.__cause__, Exception):  # of torch: whether it can train is not known
            return replace(reading, notes=[*reading.notes, ("", f"gradients are not checked: {error}")])
        raise Unreadable(str(error)) from None
    of = roles_of(found, reading.network.tensors)
    training = [name for name, state in found.items() if state == TRAINING and not of[name]]
    reading = replace(reading.freezing(found | dict.fromkeys(frozen, FROZEN)), training=training)
    if still := _stream(reading.network):
        raise Unreadable(f"layers read {still}, which moves by other layers alone: {ONE}")
    return reading


def _stream(network: Network) -> str:
    """A signal that layers read where nothing below them trains, though they do: one layer is read for all, and what
    others make of its input is left out, which is all that trains there."""
    layers = {x for x, axis in network.axes.items() if axis == "L"}
    within = {s.out for s in network.statements if layers.intersection(network.signals[s.out])}
    read = {x.name for s in network.statements if s.out in within for x in s.inputs} - within
    made = sorted(x for x in read if network.producer(x))
    learning = any(layers.intersection(t.indices) for role, t in network.tensors.items() if role not in network.frozen)
    return made[0] if learning and made and not any(is_trained(network, x) for x in made) else ""


def _read(runs: Sequence[Recording]) -> tuple[Reader, View]:
    """The reader, and the graph of the output."""
    splits: dict[Any, Any] = {}
    runs = [replace(runs[0], places={}), *(numbered(run, runs[0]) for run in runs[1:])]
    regions = Regions(runs)
    for _ in range(_SPLITS):
        reader = Reader(runs, splits, apply, functions.read, regions)
        try:
            return reader, reader.read()
        except Restart:
            continue
    raise Unreadable("model: dimensions are taken apart without end")


def _output(build: Build, sizes: Mapping[str, int]) -> Tensor:
    """Return what the module makes of its input at these sizes."""
    model, (inputs, keywords), _ = built(build, sizes)
    with exactly():
        run = record(model, inputs, keywords, strict=False)
    return run.tensors[run.output.number].double()


def guard(reader: Reader, output: View, chosen: Tensor | None = None) -> float:
    """Executes the equations, before anything is folded, and compares them with the module.

    Args:
        chosen: what the module gives with some experts active, if it was recorded with all of them.

    Returns:
        The difference of the outputs, relative to the largest entry.

    Raises:
        Unreadable: they differ. The first call whose tensor differs, in any order of its entries, is named.
    """
    run, values = reader.runs[0], dict[int, Tensor]()
    if output.node.kind == "const":
        raise Unreadable("the output of the model depends on none of its parameters")
    truth = run.tensors[run.output.number].double() if chosen is None else chosen
    got = output.laid_out(output.node.evaluate(values))
    apart = _apart(got, truth)
    if apart <= TOLERANCE:
        return apart
    for call, ref, view in reader.read_calls if chosen is None else ():
        if view.node.kind in ("const", "pieces"):
            continue
        found = view.laid_out(view.node.evaluate(values)).double().flatten().sort().values
        true = run.tensor(ref).double().flatten().sort().values
        if found.shape == true.shape and _apart(found, true) > TOLERANCE:
            why = "the equations give other numbers than this call; its rule does not hold here"
            raise refused(f"{call.module or 'model'}: {call.name}", why)
    raise Unreadable(f"the equations give other numbers than the model (relative difference {apart:.1g}); not read")


def _apart(found: Tensor, true: Tensor) -> float:
    if found.shape != true.shape:
        return float("inf")
    found, true = (torch.where(torch.isfinite(x), x, torch.zeros_like(x)) for x in (found, true))
    return float((found - true).abs().max()) / max(float(true.abs().max()), 1e-30)


def _folded(reader: Reader, output: View, deep: bool, loops: bool) -> tuple[View, list[tuple[str, str]]]:
    """The folded graph, and what it leaves out. loops: numbers may grow with the length of one."""
    output, notes = bare(output, loops)
    for depth in (False, True)[: 1 + deep]:
        folder = Folder(reader.builds, depth)
        output = View(folder.run(output.node), output.dims)
        notes += folder.notes
    return View(settled(output.node), output.dims), notes


def _extend(order: list[TracedNode], other: list[TracedNode], axis: str) -> None:
    """Puts the sizes at twice the length of a loop beside the others.

    Raises:
        Unreadable: the graphs are not equal, node by node.
    """

    def kinds(nodes: list[TracedNode]) -> list[Any]:
        at = {n.number: k for k, n in enumerate(nodes)}
        return [(n.kind, n.name, len(n.indices), n.over, wiring(n), [at[c.number] for c in n.children]) for n in nodes]

    pairs = enumerate(zip_longest(kinds(order), kinds(other)))
    if (at := next((k for k, (a, b) in pairs if a != b), None)) is not None:
        why = f"a loop whose length grows with {axis} does not fold: its turns are not alike"
        raise refused(order[min(at, len(order) - 1)].where, why)
    seen: dict[IndexClass, int] = {}
    for a, b in zip(order, other, strict=True):
        mine, its = ([*n.indices, *(n.labels[x] for _, m in n.sources for x in m if n.labels)] for n in (a, b))
        seen |= {x.root(): y.root().sizes[0] for x, y in zip(mine, its, strict=True)}
    builds = len(next(iter(seen)).sizes)
    for index, size in seen.items():
        index.sizes = (*index.sizes, size)
    for a, b in zip(order, other, strict=True):
        if a.factor or b.factor:
            a.factor = (*(a.factor or (1.0,) * builds), b.factor[0] if b.factor else 1.0)


def _differ(first: Recording, other: Recording, axis: str) -> Unreadable:
    pairs = zip(first.calls, other.calls, strict=False)
    call = next((a for a, b in pairs if (a.name, a.module) != (b.name, b.module)), first.calls[-1])
    why = f"the calls at a larger {axis} are others; only loops over experts (M) and layers (L) fold"
    return refused(f"{call.module or 'model'}: {call.name}", why)


def _shown(powers: Powers) -> str:
    return " ".join(f"{axis}^{power}" if power != 1 else axis for axis, power in powers.items()) or "1"
