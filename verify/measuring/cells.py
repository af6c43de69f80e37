"""A run as a grid of independent cells: what to train, cut into pieces that may be done in any order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from scaling_algebra.dynamics.quantities import quantities
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
from scaling_algebra.verify.networks.scales import MOE_CONSTANTS, constants

from .sizes import dims_at, effective_n, elements
from .store import Store, Table, joined

CELL, TOGETHER = 2**25, 32
"""Most weight entries (some seconds on a CPU core) and replicas trained in one cell, unless a campaign wants more
replicas: then it may have as many times more entries."""

CHECKED = 4
"""Replicas at every size whose gradients are compared with autograd's, however replicas are cut into cells."""

CONTROL_SEEDS, STANDARD_SEEDS, EXACT_SEEDS = 64, 8, 4
"""Most replicas at every size of the controls, and of the comparison with float64."""

STREAMS = {"values": 0, "control": 1000, "standard": 2000, "exact": 0}
"""Offsets of the random streams by kind of cell, as ``Measurement`` names its series: no two of them coincide, but the
exact replicas repeat the first ones."""

SHARED = 3000
"""Offset of the random streams of what does not grow: noise, and tensors with fixed indices only."""

STANDARD = "sp"
"""The parameterization that every other one is told apart from."""

Kind = Literal["values", "control", "standard", "exact"]


@dataclass(frozen=True)
class Setup:
    """A run as it is trained and measured.

    Attributes:
        derivation: how.
        sizes, seeds: n, and replicas at every n.
        run: name under which its pieces are kept.
        dtype: of torch, such as ``float64``.
        products: inner products ``<A@s, B@t>`` to record as well.
        standard: the standard parameterization of this optimizer, to be refuted as a control; None for no such control.
        together: replicas in a cell where they are small; more suit a large GPU, which waits for small networks.
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
        """Names what a cell measures, in this run or another one; fit for a file."""
        n = self.sizes[0 if cell.kind == "control" else cell.size]
        return f"{cell.kind}-n{n}-t{self.steps}-{cell.size}-{cell.first}-{cell.count}-{self.digest}"

    @property
    def constants(self) -> Mapping[str, Any]:
        """Base constants of what is trained."""
        return MOE_CONSTANTS if self.network == MOE_BLOCK else constants(self.network).as_json()

    @property
    def network(self) -> Network:
        return self.derivation.network

    @cached_property
    def digest(self) -> str:
        """A digest of what was trained and recorded. Pieces with other powers, base constants or quantities are not
        used."""
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
            [powers, steps, testbed, equations, self.constants, list(quantities(self.network))], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def dims(self, size: int) -> dict[str, int]:
        """Dimensions at the size with this index."""
        return dict(self._dims[size])

    @cached_property
    def _dims(self) -> list[dict[str, int]]:
        return [dims_at(self.derivation.ray, n) for n in self.sizes]

    @cached_property
    def entries(self) -> list[int]:
        """Weight entries of a replica at every size."""
        return [elements(dims, self.network) for dims in self._dims]

    def dims_of(self, cell: RunCell) -> dict[str, int]:
        """Dimensions that a cell trains: those of its size, but controls all have the first one."""
        return self.dims(0 if cell.kind == "control" else cell.size)

    @property
    def standard_steps(self) -> int:
        """Updates after which standard parameterization shows."""
        return min(1, self.steps)

    def of(self, kind: Kind) -> Setup:
        """The run with the derivation, steps and dtype of cells of this kind."""
        if kind == "standard":
            assert self.standard is not None
            return replace(self, derivation=self.standard, steps=self.standard_steps, products=())
        return replace(self, dtype="float64") if kind == "exact" else self


@dataclass(frozen=True)
class RunCell:
    """Replicas first .. first + count - 1 of one size (by index), of one kind (see ``Measurement``)."""

    kind: Kind
    size: int
    first: int
    count: int

    @property
    def seeds(self) -> list[int]:
        """A different random stream for every kind, size and replica, the same however replicas are cut into cells."""
        stream = self.size + STREAMS[self.kind]
        return [seed(stream, replica) for replica in self.replicas]

    @property
    def shared(self) -> list[int]:
        """Random streams that the replicas of all sizes and kinds share."""
        return [seed(SHARED, replica) for replica in self.replicas]

    @property
    def checked(self) -> int:
        """The number of first replicas whose gradients are compared with autograd's."""
        return max(0, min(CHECKED - self.first, self.count)) if self.kind == "values" else 0

    @property
    def replicas(self) -> range:
        return range(self.first, self.first + self.count)


def seed(stream: int, replica: int) -> int:
    """The seed of a replica, another one for every stream and replica."""
    return 1 + replica + 1_000_003 * stream


def cells(setup: Setup) -> list[RunCell]:
    """All cells of a run, small sizes first. More seeds, in multiples of ``together``, add cells and change none."""
    cut: list[RunCell] = []
    for size, count in enumerate(setup.seeds):
        cut += _cut(setup, "values", size, count)
        cut += _cut(setup, "control", size, min(CONTROL_SEEDS, count))
        if setup.standard is not None:
            cut += _cut(setup, "standard", size, min(STANDARD_SEEDS, count))
        if setup.dtype != "float64":
            cut += _cut(setup, "exact", size, min(EXACT_SEEDS, count))
    return cut


def cost(setup: Setup, cell: RunCell) -> int:
    """Weight entries a cell trains, times updates and their measurement: proportional to its time."""
    steps = setup.standard_steps if cell.kind == "standard" else setup.steps
    return setup.entries[0 if cell.kind == "control" else cell.size] * cell.count * (steps + 1)


def collect(setup: Setup, store: Store, interrupted: bool = False) -> Measurement:
    """All that a store holds of a run; sizes without a replica of every kind are left out."""
    ray = setup.derivation.ray
    measured = Measurement(ray, setup.steps, interrupted=interrupted)
    if setup.network != MOE_BLOCK:
        measured.watched = watched(setup.network)
    tables: dict[tuple[Kind, int], list[Table]] = {}
    planned, done = cells(setup), 0
    for cell in planned:
        table = kept(setup, cell, store)
        if table is None:
            measured.missing += 1
        else:
            tables.setdefault((cell.kind, cell.size), []).append(table)
            done += cost(setup, cell)
    kinds: list[Kind] = list(dict.fromkeys(cell.kind for cell in planned))
    for size in range(len(setup.sizes)):
        if all((kind, size) in tables for kind in kinds):
            dims = setup.dims(size)
            measured.sizes.append(effective_n(ray, dims, setup.dims(0), setup.sizes[0]))
            measured.dims.append(dims)
            for kind in kinds:
                series: Series = getattr(measured, kind)
                for key, values in joined(tables[kind, size]).items():
                    series.setdefault(key, []).append(values)
    measured.environment = store.environment(setup.run) | _take_facts(measured, done)
    return measured


def _take_facts(measured: Measurement, done: float) -> dict[str, Any]:
    """Moves the facts recorded with replicas to their places; what the run took.

    Args:
        done: its cost.
    """
    every = [getattr(measured, kind) for kind in STREAMS]
    parameters, inputs, seconds, memory, gradients = (
        [series.pop((name, 0), []) for series in every] for name in (PARAMETERS, INPUT, SECONDS, MEMORY, GRADIENTS)
    )
    measured.parameters = [int(x) for v in parameters[0] for x in np.unique(v)]
    shared = min(map(len, inputs[0]), default=0)  # replicas that every size has
    measured.inputs = [hashlib.sha256(v[:shared].tobytes()).hexdigest() for v in inputs[0]]
    checked = [v[~(v < 0)] for v in gradients[0]]
    measured.gradients = [float(v.max()) for v in checked if len(v)]
    spent = sum(float(v.sum()) for series in seconds for v in series)
    peak = [float(x) for series in memory for v in series for x in v if x == x]
    speed = {"wall_seconds": round(spent, 2), "entries_per_second": round(done / spent) if spent else 0}
    return {**speed, "peak_memory_bytes": int(max(peak)) if peak else None}


def kept(setup: Setup, cell: RunCell, store: Store) -> Table | None:
    """The record of a cell that a store holds; None if the cell must be measured."""
    return store.load(setup.run, setup.name(cell), cell.count)


def watched(network: Network) -> tuple[str, ...]:
    """Three signals from first to last that tensors make."""
    signals = [s.out for s in network.statements if isinstance(s, Product) and s.out != network.output]
    spread = {round(k * (len(signals) - 1) / 2) for k in range(3)} if signals else set()
    return tuple(signals[k] for k in sorted(spread))


def _cut(setup: Setup, kind: Kind, size: int, count: int) -> list[RunCell]:
    most = together = setup.together
    entries = setup.entries[0 if kind == "control" else size]
    while most > 1 and most * entries > CELL * max(1, together / TOGETHER):
        most //= 2
    return [RunCell(kind, size, k, min(most, count - k)) for k in range(0, count, most)]
