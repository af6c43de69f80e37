"""What to verify: configurations with sizes and seeds, one from the command line or many from a file.

A campaign (``campaigns/*.toml``) has optional top-level ``steps``, ``dtype``, ``largest`` (weight entries of the
largest model), ``work`` (weight entries trained at every size, all seeds together), ``together`` (replicas in a cell, a
power of two; more suit a large GPU), and tables ``[[run]]`` whose lists ``regimes`` or ``rays``, ``optimizers`` and
``parameterizations`` are combined; a run may override the top level.
Read next: ``cells.py`` (a run as a grid of cells), ``session.py`` (does all runs).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.solver.derivation import Derivation, Signals, derive
from scaling_algebra.spec.networks.library import MOE_BLOCK, live
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.fit import LEVEL
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Prediction, Report, judge
from scaling_algebra.verify.measuring import coordinates
from scaling_algebra.verify.measuring.cells import STANDARD, TOGETHER, Setup, collect
from scaling_algebra.verify.measuring.sizes import (
    LARGEST_ELEMENTS,
    TRANSFORMER,
    TRANSFORMER_SEEDS,
    TRANSFORMER_WIDTHS,
    WORK,
    plan_seeds,
    plan_sizes,
)
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks import moe_block as model

FOLDER = Path(__file__).parent

PREDICTED = 3
"""Updates up to which exponents are predicted; later steps are measured and shown."""

ARCHITECTURES = ("moe", "transformer")
"""Networks that can be measured: the MoE block, and a compact GPT with MoE layers."""

DTYPES = ("float64", "float32", "bfloat16")
"""Of torch."""


@dataclass(frozen=True)
class Job:
    """One run: a configuration, where it is measured, and how often. Everything is a plain value, as in ``plan.json``.

    Attributes:
        regime, ray: one of the two.
        sizes, seeds: n, and replicas at every n.
        products: inner products that are measured as well.
        looks: how often the data may be looked at; intervals are widened accordingly (``budget.py``).
        together: replicas in a cell (``cells.Setup``).
    """

    regime: str | None
    ray: str | None
    optimizer: str
    parameterization: str
    readout_init: str | None
    steps: int
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    dtype: str = "float64"
    products: tuple[str, ...] = ()
    looks: int = 1
    architecture: str = "moe"
    together: int = TOGETHER

    @property
    def name(self) -> str:
        """Names the run in a plan; fit for a file."""
        parts = [self.regime or self.ray or "", self.optimizer, self.parameterization]
        parts += [self.readout_init] if self.readout_init else []
        parts += [self.dtype] if self.dtype != "float64" else []
        parts += [self.architecture] if self.architecture != "moe" else []
        return "-".join(parts).replace("/", "_")

    def derivation(self) -> Derivation:
        """Raises UsageError or Infeasible as ``derive``."""
        return _derived(self.regime, self.optimizer, self.parameterization, self.ray, self.readout_init)

    def signals(self) -> Signals:
        """What the engine predicts, for the first updates."""
        steps = min(self.steps, PREDICTED)
        return _predicted(self.regime, self.optimizer, self.parameterization, self.ray, self.readout_init, steps)

    def setup(self) -> Setup:
        """What to train."""
        d = self.derivation()
        standard = None
        if self.parameterization != STANDARD:
            standard = _derived(self.regime, self.optimizer, STANDARD, self.ray, None).scaling
        shared = (self.steps, self.sizes, self.seeds, self.dtype, self.products)
        base = TRANSFORMER if self.architecture == "transformer" else ()
        trained = (
            d.configuration.parameterization.name,
            base,
            self.together,
            (coordinates if base else model).CONSTANTS,
        )
        return Setup(d.ray, d.scaling, d.optimizer, *shared, standard, *trained)

    def prediction(self) -> Prediction:
        """Exponents of what is measured, for the first updates."""
        if self.architecture == "moe":
            return self.signals().prediction()
        ray = self.derivation().ray
        return coordinates.predicted(ray, self.parameterization, self.optimizer, steps=self.steps)

    def measured(self, store: Store, interrupted: bool = False) -> Measurement:
        """What a store holds of the run."""
        found = collect(self.setup(), store, self.name, interrupted)
        found.environment["predicted_with"] = self.architecture
        if self.architecture == "moe":
            found.environment["predicted_with"] = self.signals().derivation.program.name
        found.level = LEVEL if self.looks == 1 else 1 - (1 - LEVEL) / self.looks
        return found

    def report(self, store: Store, claims: Sequence[Claim] = (), interrupted: bool = False) -> Report:
        """What a store holds of the run, judged."""
        return judge(self.measured(store, interrupted), self.prediction(), claims)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Raises UsageError if it is not one."""
        try:
            found = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})
            counts = (found.steps, found.together, *found.sizes, *found.seeds)
            if all(isinstance(n, int) for n in counts) and found.together > 0:
                return found
        except (TypeError, AttributeError):
            pass
        known = ", ".join(f.name for f in fields(cls))
        raise UsageError(f"a run in plan.json is not one: it must have {known}; start again with another -o DIR")


def job(
    regime: str | None = None,
    optimizer: str = "adam",
    parameterization: str = "mssp",
    *,
    ray: str | None = None,
    readout_init: str | None = None,
    steps: int = 2,
    sizes: Sequence[int] | None = None,
    seeds: int | None = None,
    dtype: str = "float64",
    products: Sequence[str] = (),
    architecture: str = "moe",
    largest: float = LARGEST_ELEMENTS,
    work: float = WORK,
    together: int = TOGETHER,
) -> Job:
    """A run with its sizes and seeds chosen where they are not given.

    Raises:
        UsageError, Infeasible: as ``derive``; also unusable sizes, seeds or steps.
    """
    if steps < 0:
        raise UsageError(f"steps is {steps}; give 0 or more")
    if together < 1 or together & (together - 1):
        raise UsageError(f"together is {together}; give a power of two")
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if architecture not in ARCHITECTURES:
        raise unknown_name("architecture", architecture, ARCHITECTURES)
    if architecture == "transformer":
        if dtype != "float64" or readout_init is not None:
            raise UsageError("a transformer is measured in float64 with a zero readout; leave these options out")
        sizes = TRANSFORMER_WIDTHS if sizes is None else sizes
        seeds = TRANSFORMER_SEEDS if seeds is None else seeds
    where = _derived(regime, optimizer, parameterization, ray, readout_init).ray
    chosen = plan_sizes(where, sizes, largest)
    counts = plan_seeds(where, chosen, seeds, work)
    shared = (optimizer, parameterization, readout_init, steps, tuple(chosen), tuple(counts))
    return Job(regime, ray, *shared, dtype, tuple(products), architecture=architecture, together=together)


def campaigns() -> dict[str, Path]:
    """Campaign files that come with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def load(name: str) -> list[Job]:
    """The runs of a campaign, by name or path of its file.

    Raises:
        UsageError: no such campaign, or a file that cannot be used; the message names the place.
    """
    path = campaigns().get(name, Path(name))
    if not path.is_file():
        raise unknown_name("campaign", name, campaigns())
    try:
        data = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as reason:
        raise UsageError(f"cannot read {path}: {reason}; write TOML with tables [[run]]") from None
    shared = {key: value for key, value in data.items() if key not in ("run", "title")}
    runs = data.get("run")
    if not isinstance(runs, list) or not runs:
        raise UsageError(f"{path} has no table [[run]]; write one for each set of configurations")
    if not all(isinstance(run, dict) for run in runs):
        raise UsageError(f"{path}: run is a list of {runs[0]!r}; write tables [[run]]")
    return [found for k, run in enumerate(runs, 1) for found in _expand({**shared, **run}, f"{path}, run {k}")]


_LISTS = ("regimes", "rays", "optimizers", "parameterizations")
_VALUES = ("steps", "dtype", "largest", "work", "sizes", "seeds", "readout_init", "architecture", "together")


def _expand(run: Mapping[str, Any], where: str) -> list[Job]:
    for key in ("steps", "seeds", "together"):
        if not isinstance(run.get(key, 1), int):
            raise UsageError(f"{where}: {key} is {run[key]!r}; write an integer")
    for key in run:
        if key not in (*_LISTS, *_VALUES):
            raise unknown_name(f"key in {where}", key, (*_LISTS, *_VALUES))
    for key in _LISTS:
        if not isinstance(run.get(key, []), list):
            raise UsageError(f"{where}: {key} is {run[key]!r}; write a list")
    if not run.get("regimes") and not run.get("rays"):
        raise UsageError(f"{where} names no regimes and no rays; write for example regimes = ['III']")
    places = [("regime", r) for r in run.get("regimes", [])] + [("ray", r) for r in run.get("rays", [])]
    options = {key: run[key] for key in _VALUES if key in run}
    made = product(places, run.get("optimizers", ["adam"]), run.get("parameterizations", ["mssp"]))
    try:
        return [job(optimizer=o, parameterization=p, **{kind: place}, **options) for (kind, place), o, p in made]
    except (UsageError, TypeError) as reason:
        raise UsageError(f"{where}: {reason}") from None


@lru_cache(maxsize=256)
def _derived(regime: str | None, rule: str, name: str, ray: str | None, readout: str | None) -> Derivation:
    return derive(regime, rule, name, ray=ray, readout_init=readout)


@lru_cache(maxsize=256)
def _predicted(regime: str | None, rule: str, name: str, ray: str | None, readout: str | None, steps: int) -> Signals:
    d = _derived(regime, rule, name, ray, readout)
    trained = as_trained(d)
    return Signals(trained, steps, trained.analysis().all(steps, d.analysis().table))


def as_trained(d: Derivation) -> Derivation:
    """The derivation with the gate in the dynamics, as torch has it, where holding it at its mean and slope (assumption
    B2 of MSSP paper, J.2) would change exponents: where there are more experts than neurons."""
    return replace(d, configuration=d.configuration.but(network=live(MOE_BLOCK))) if d.ray["M"] > d.ray["N"] else d
