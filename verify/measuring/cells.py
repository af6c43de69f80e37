"""Divides a run into cells: groups of replicas of one size that are trained together, in any order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.networks.printing import as_text
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.verify.judging.measurement import (
    GRADIENTS,
    INPUT,
    MEMORY,
    PARAMETERS,
    SECONDS,
    Measurement,
    Series,
)
from scaling_algebra.verify.networks.scales import MOE_CONSTANTS, choose_constants

from .sizes import compute_dims, compute_effective_n, count_elements
from .store import Store, Table, concatenate_tables

CELL, TOGETHER = 2**25, 32
"""Maximum number of weight entries in one cell (some seconds of training on a CPU core), and default number of
replicas in it. If a campaign requests more replicas, the maximum number of entries grows by the same factor."""

CHECKED = 4
"""Number of replicas at each size whose gradients are compared with autograd's, however the replicas are divided
into cells."""

CONTROL_SEEDS, STANDARD_SEEDS, EXACT_SEEDS = 64, 8, 4
"""Maximum number of replicas at each size: of the control, of the standard parameterization, and of the comparison
with float64."""

STREAMS = {"values": 0, "control": 1000, "standard": 2000, "exact": 0}
"""Offset of the random streams for each kind of cell (the kinds are the series of ``Measurement``). No two kinds
share a stream, except that the exact replicas repeat the first measured ones."""

SHARED = 3000
"""Offset of the random streams of everything that does not grow: noise, and tensors with fixed indices only."""

STANDARD = "sp"
"""The parameterization that serves as the negative control of all others."""

Kind = Literal["values", "control", "standard", "exact"]


@dataclass(frozen=True)
class Setup:
    """One run: everything that determines how a network is trained at several sizes and measured.

    Attributes:
        derivation: network, powers, optimizer and ray.
        steps: number of updates.
        sizes: values of n.
        seeds: number of replicas at each n.
        run: name under which the results are stored.
        dtype: name of a torch dtype, such as ``float64``.
        products: inner products ``<A@s, B@t>`` to record in addition: quantity A after s updates times B after t.
        standard: the standard parameterization of this optimizer, which must be refuted as a control; None for no such
            control.
        together: for small networks, the number of replicas that are trained at once as one cell; a large GPU profits
            from more.
    """

    derivation: Derivation
    steps: int
    sizes: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    run: str = "run"
    dtype: str = "float64"
    products: tuple[str, ...] = ()
    standard: Derivation | None = None
    together: int = TOGETHER

    def name(self, cell: RunCell) -> str:
        """Returns a name under which the results of a cell are stored; it is the same in every run in which this cell
        is trained equally.
        """
        n = self.sizes[0 if cell.kind == "control" else cell.size]
        return f"{cell.kind}-n{n}-t{self.steps}-{cell.size}-{cell.first}-{cell.count}-{self.digest}"

    @property
    def constants(self) -> Mapping[str, Any]:
        """The factors in front of the powers of n with which the network is trained (see ``networks.scales``)."""
        return MOE_CONSTANTS if self.network == MOE_BLOCK else choose_constants(self.network).as_json()

    @property
    def network(self) -> Network:
        return self.derivation.network

    @cached_property
    def digest(self) -> str:
        """Hash of everything that determines the recorded numbers: powers, optimizer, network, base constants,
        quantities.

        Stored results with another digest are not used.
        """
        powers = [
            [
                {m: str(p) for m, p in s.multipliers.items()},
                *s.tied,
                *[(role, str(t.init_std), str(t.lr), str(t.eps)) for role, t in s.tensors.items()],
            ]
            for s in (d.scaling for d in (self.derivation, self.standard) if d is not None)
        ]
        trained = self.derivation.optimizer
        steps: list[Any] = [[rule.torch, dict(rule.options), rule.first] for rule in trained.rules]
        steps = steps[0] if trained.name in OPTIMIZERS else [trained.name, *steps]
        testbed, equations = ("moe", "") if self.network == MOE_BLOCK else ("network", as_text(self.network))
        text = json.dumps(
            [powers, steps, testbed, equations, self.constants, list(list_quantities(self.network))], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def dims(self, size: int) -> dict[str, int]:
        """Returns the dimensions (axis -> size) at the value of n with the index ``size`` in ``sizes``."""
        return dict(self._dims[size])

    @cached_property
    def _dims(self) -> list[dict[str, int]]:
        return [compute_dims(self.derivation.ray, n) for n in self.sizes]

    @cached_property
    def entries(self) -> list[int]:
        """Number of weight entries of one replica at each size."""
        return [count_elements(dims, self.network) for dims in self._dims]

    def dims_of(self, cell: RunCell) -> dict[str, int]:
        """Returns the dimensions that a cell trains: those of its size, or of the first size if it is a control."""
        return self.dims(0 if cell.kind == "control" else cell.size)

    @property
    def standard_steps(self) -> int:
        """Number of updates of the replicas in the standard parameterization; one suffices to refute it."""
        return min(1, self.steps)

    def of(self, kind: Kind) -> Setup:
        """Returns the run with the derivation, steps and dtype that are used for replicas of one kind (such as the
        control)."""
        if kind == "standard":
            assert self.standard is not None
            return replace(self, derivation=self.standard, steps=self.standard_steps, products=())
        return replace(self, dtype="float64") if kind == "exact" else self


@dataclass(frozen=True)
class RunCell:
    """A group of replicas of one size and one kind that are trained together: the unit of work of a run.

    Attributes:
        kind: the attribute of ``Measurement`` to which their values belong, such as "values" or "control".
        size: position of its size in ``Setup.sizes``.
        first: number of its first replica, counted from 0.
        count: number of replicas.
    """

    kind: Kind
    size: int
    first: int
    count: int

    @property
    def seeds(self) -> list[int]:
        """Seeds of the replicas: different for every kind, size and replica, and independent of the division into
        cells."""
        stream = self.size + STREAMS[self.kind]
        return [compute_seed(stream, replica) for replica in self.replicas]

    @property
    def shared(self) -> list[int]:
        """Seeds of the random numbers that replica k has in common at every size and of every kind: its tensors without
        a growing axis, and noise.
        """
        return [compute_seed(SHARED, replica) for replica in self.replicas]

    @property
    def checked(self) -> int:
        """Number of replicas, counted from the first, whose gradients are compared with autograd's."""
        return max(0, min(CHECKED - self.first, self.count)) if self.kind == "values" else 0

    @property
    def replicas(self) -> range:
        return range(self.first, self.first + self.count)


def compute_seed(stream: int, replica: int) -> int:
    """Returns the seed of a replica. Different ``stream`` numbers give the same replica independent seeds, for example
    one for each size.
    """
    return 1 + replica + 1_000_003 * stream


def list_cells(setup: Setup) -> list[RunCell]:
    """Lists all cells (groups of replicas that are trained together) of a run, small sizes first.

    Increasing the number of seeds by a multiple of ``together`` adds cells and changes none.
    """
    cut: list[RunCell] = []
    for size, count in enumerate(setup.seeds):
        cut += _split_into_cells(setup, "values", size, count)
        cut += _split_into_cells(setup, "control", size, min(CONTROL_SEEDS, count))
        if setup.standard is not None:
            cut += _split_into_cells(setup, "standard", size, min(STANDARD_SEEDS, count))
        if setup.dtype != "float64":
            cut += _split_into_cells(setup, "exact", size, min(EXACT_SEEDS, count))
    return cut


def estimate_cost(setup: Setup, cell: RunCell) -> int:
    """Returns a number that is about proportional to the time that a cell (group of replicas) takes: weight entries of
    all replicas times steps.
    """
    steps = setup.standard_steps if cell.kind == "standard" else setup.steps
    return setup.entries[0 if cell.kind == "control" else cell.size] * cell.count * (steps + 1)


def collect_cells(setup: Setup, store: Store, interrupted: bool = False) -> Measurement:
    """Collects from a store what was measured in all cells of a run. Sizes for which replicas of some kind (such as the
    control) are not stored are omitted; ``interrupted`` says whether the user stopped the run.
    """
    ray = setup.derivation.ray
    measured = Measurement(ray, setup.steps, interrupted=interrupted)
    if setup.network != MOE_BLOCK:
        measured.watched = choose_watched(setup.network)
    tables: dict[tuple[Kind, int], list[Table]] = {}
    planned, done = list_cells(setup), 0
    for cell in planned:
        table = load_record(setup, cell, store)
        if table is None:
            measured.missing += 1
        else:
            tables.setdefault((cell.kind, cell.size), []).append(table)
            done += estimate_cost(setup, cell)
    kinds: list[Kind] = list(dict.fromkeys(cell.kind for cell in planned))
    for size in range(len(setup.sizes)):
        if all((kind, size) in tables for kind in kinds):
            dims = setup.dims(size)
            measured.sizes.append(compute_effective_n(ray, dims, setup.dims(0), setup.sizes[0]))
            measured.dims.append(dims)
            for kind in kinds:
                series: Series = getattr(measured, kind)
                for key, values in concatenate_tables(tables[kind, size]).items():
                    series.setdefault(key, []).append(values)
    measured.environment = store.environment(setup.run) | _take_facts(measured, done)
    return measured


def _take_facts(measured: Measurement, done: float) -> dict[str, Any]:
    """Moves facts about the run, such as parameter counts and seconds, out of the measured values.

    They are stored like values of quantities. Afterwards parameter counts, inputs and gradients are attributes of the
    measurement; time and memory are returned.

    Args:
        measured: the measurement, which is changed.
        done: cost of the cells that were trained (``estimate_cost``), to compute the speed.

    Returns:
        Time, speed and peak memory, for the report.
    """
    every = [getattr(measured, kind) for kind in STREAMS]
    parameters, inputs, seconds, memory, gradients = (
        [series.pop((name, 0), []) for series in every] for name in (PARAMETERS, INPUT, SECONDS, MEMORY, GRADIENTS)
    )
    measured.parameters = [int(x) for v in parameters[0] for x in np.unique(v)]
    shared = min(map(len, inputs[0]), default=0)  # number of replicas that every size has
    measured.inputs = [hashlib.sha256(v[:shared].tobytes()).hexdigest() for v in inputs[0]]
    checked = [v[~(v < 0)] for v in gradients[0]]
    measured.gradients = [float(v.max()) for v in checked if len(v)]
    spent = sum(float(v.sum()) for series in seconds for v in series)
    peak = [float(x) for series in memory for v in series for x in v if x == x]
    speed = {"wall_seconds": round(spent, 2), "entries_per_second": round(done / spent) if spent else 0}
    return {**speed, "peak_memory_bytes": int(max(peak)) if peak else None}


def load_record(setup: Setup, cell: RunCell, store: Store) -> Table | None:
    """Loads what a cell measured from a store; returns None if the cell is still to be measured."""
    return store.load(setup.run, setup.name(cell), cell.count)


def choose_watched(network: Network) -> tuple[str, ...]:
    """Returns the names of up to three signals that must show no slope in the control, where all replicas have the same
    dimensions: the first, the middle and the last product among the equations, except the output.
    """
    signals = [s.out for s in network.statements if isinstance(s, Product) and s.out != network.output]
    spread = {round(k * (len(signals) - 1) / 2) for k in range(3)} if signals else set()
    return tuple(signals[k] for k in sorted(spread))


def _split_into_cells(setup: Setup, kind: Kind, size: int, count: int) -> list[RunCell]:
    most = together = setup.together
    entries = setup.entries[0 if kind == "control" else size]
    while most > 1 and most * entries > CELL * max(1, together / TOGETHER):
        most //= 2
    return [RunCell(kind, size, k, min(most, count - k)) for k in range(0, count, most)]
