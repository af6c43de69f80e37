"""Plans of what to verify: configurations with sizes and seeds, one from the command line or many from a file.

A campaign (``campaigns/*.toml``) has optional top-level keys and tables ``[[run]]``. The top-level keys are ``steps``,
``dtype``, ``largest`` (weight entries of the largest model), ``work`` (weight entries trained at every size, all seeds
together) and ``together`` (replicas in a cell, a power of two; a large GPU profits from more). In a run, the lists
``regimes`` or ``rays``, ``optimizers``, ``parameterizations`` and ``architectures`` are combined; it may override the
top level, and set ``epsilon`` or ``readout_init``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from scaling_algebra import files, limits
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error
from scaling_algebra.solver.derivation import Signals, derive
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import (
    DEFAULT_ARCHITECTURE,
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
)
from scaling_algebra.spec.given import Given
from scaling_algebra.spec.networks.library import MOE_BLOCK, architecture
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.fit import ROUNDING
from scaling_algebra.verify.judging.logged import get_decided
from scaling_algebra.verify.judging.measurement import Measurement, Prediction
from scaling_algebra.verify.judging.report import REQUIRED, Report
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.cells import STANDARD, TOGETHER, Setup, collect_cells
from scaling_algebra.verify.measuring.predictions import EACH, has_work_budget, predict_signals, release_gate
from scaling_algebra.verify.measuring.sizes import (
    LARGEST_ELEMENTS,
    WIDTHS,
    WORK,
    plan_seeds,
    plan_sizes,
)
from scaling_algebra.verify.measuring.store import Store

from . import list_campaigns
from .schema import MOST_RUNS, check_entry, check_run

PREDICTED_STEPS = 3
"""Number of updates up to which exponents are predicted; later steps are measured and displayed only."""

DTYPES = tuple(ROUNDING)
"""Names of the torch dtypes in which a run can be trained."""

MOST = 2**20
"""Maximum size of a campaign file in bytes."""


@dataclass(frozen=True)
class Job:
    """One run: a configuration with the sizes, seeds and steps at which it is measured.

    Attributes:
        configuration: the configuration for which the powers are derived.
        steps: number of updates.
        sizes: values of n.
        seeds: number of replicas at each n.
        dtype: name of a torch dtype.
        products: inner products ``<A@s, B@t>`` of quantities A after s and B after t updates, to measure in addition.
        together: number of replicas that are trained at once (see ``cells.Setup``).
        planted: powers of tensors to train with in place of the derived ones, such as ``readout.lr=N^(-1/2)``; the
            predictions do not change.
    """

    configuration: Configuration
    steps: int
    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    dtype: str = "float64"
    products: tuple[str, ...] = ()
    together: int = TOGETHER
    planted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the run in a plan. It can be used as a file name."""
        configuration, ray = self.configuration, self.configuration.ray
        axes = (*WIDTHS, *(["K"] if ray["K"] != ray["M"] else []), *(["L"] if ray["L"] else []))
        rates = {axis: r for axis, r in ray.rates.items() if axis in axes}
        parts = [ray.name if ray.name in REGIMES else ",".join(f"{axis}={r}" for axis, r in rates.items())]
        parts.append(configuration.optimizer.name)
        if configuration.optimizer.regime == "negligible":
            parts.append("negligible")
        parts.append(configuration.parameterization.name)
        if configuration.network != MOE_BLOCK:
            parts.append(configuration.network.name)
        if configuration.readout_init != configuration.parameterization.starts(configuration.network):
            parts.append(configuration.readout_init)
        parts += [text.replace(" = ", "=").replace(" ", ".") for text in str(configuration.given).split(", ") if text]
        parts += [f"planted.{text.replace(' ', '')}" for text in self.planted]
        parts += [self.dtype] if self.dtype != "float64" else []
        return "-".join(parts).replace("/", "_")

    @property
    def heading(self) -> str:
        """The description of the run in a heading."""
        seeds = self.seeds[:1] if len(set(self.seeds)) == 1 else self.seeds
        later = self.steps > PREDICTED_STEPS
        ends = f"; predictions end after {PREDICTED_STEPS} of {self.steps} updates" if later else ""
        instead = f"; trained with {', '.join(self.planted)} instead" if self.planted else ""
        return f"{self.configuration}; {', '.join(map(str, seeds))} seeds{ends}{instead}"

    def signals(self, claims: Sequence[Claim] = ()) -> Signals:
        """Predicts the exponents of the network with the engine, for the first `PREDICTED_STEPS` updates.

        Args:
            claims: claims whose quantities are predicted first.
        """
        claimed = tuple(claim.quantity for claim in claims)
        return _predict_signals(self.configuration, min(self.steps, PREDICTED_STEPS), claimed)

    def setup(self) -> Setup:
        """Derives the powers with which the network is trained, and returns the run with them, ready to be trained."""
        configuration, standard = self.configuration, None
        if configuration.parameterization.name != STANDARD:
            standard = derive(configuration.but(parameterization=STANDARD, readout_init="maximal", given=None))
        grid, how = (self.steps, self.sizes, self.seeds), (self.dtype, self.products)
        trained = derive(configuration)
        trained = replace(trained, scaling=_parse_planted(configuration, self.planted).over(trained.scaling))
        return Setup(trained, *grid, self.name, *how, standard, self.together)

    def prediction(self) -> Prediction:
        """Returns the certified exponents of the quantities that are measured, for the first ``PREDICTED_STEPS``
        updates, by quantity.
        """
        return get_decided(self.signals())

    def collect_measurement(self, store: Store, interrupted: bool = False) -> Measurement:
        """Collects the measurement of the run from a store."""
        m = collect_cells(self.setup(), store, interrupted)
        m.environment["predicted_with"] = release_gate(derive(self.configuration)).network.name
        return m

    def report(
        self, store: Store, claims: Sequence[Claim] = (), interrupted: bool = False, required: Fraction = REQUIRED
    ) -> Report:
        """Judges the measurement of the run that a store contains against the predictions and the claims."""
        signals = self.signals(claims)
        analysis = signals.derivation.analysis()

        def briefly(name: str, t: int) -> Sequence[tuple[Fraction, bool]]:
            with analysis.meter.limit_work(EACH):
                return analysis.powers(name, t)

        powers = briefly if has_work_budget(self.configuration.network) else analysis.powers
        return judge(self.collect_measurement(store, interrupted), signals, claims, required, powers)

    def as_json(self) -> dict[str, Any]:
        """Returns the entry of the run in ``plan.json``."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"configuration": self.configuration.as_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Reads the entry of a run in ``plan.json``.

        Raises:
            UsageError: the entry does not describe a run.
        """
        older = ("looks", 1), ("testbed", "moe"), ("testbed", "network")  # keys of older plans
        data = {key: value for key, value in data.items() if (key, value) not in older}
        check_run(data, "a run in plan.json")
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        try:
            job = cls(**plain | {"configuration": Configuration.from_json(data["configuration"])})
        except (TypeError, AttributeError, KeyError) as error:
            raise UsageError(f"cannot read a run in plan.json: {error}; start again with another -o DIR") from None
        plan_sizes(job.configuration.ray, job.sizes)
        if job.dtype not in DTYPES:
            raise UsageError(f"cannot read a run in plan.json: {unknown_name_error('dtype', job.dtype, DTYPES)}")
        return job


@dataclass(frozen=True)
class Effort:
    """How much to measure. Sizes and seeds that are None are chosen automatically.

    Attributes:
        steps: number of updates.
        sizes: values of n.
        seeds: number of replicas at each n.
        dtype: name of a torch dtype.
        largest: weight entries of the largest model, from which sizes are chosen.
        work: weight entries trained at each size, all seeds together, from which the number of seeds is chosen.
        together: number of replicas that are trained at once, a power of two.
    """

    steps: int = 2
    sizes: Sequence[int] | None = None
    seeds: int | None = None
    dtype: str = "float64"
    largest: float = LARGEST_ELEMENTS
    work: float = WORK
    together: int = TOGETHER


USUAL = Effort()


def _parse_planted(configuration: Configuration, planted: Sequence[str]) -> Given:
    given = Given.of(planted, configuration.network, configuration.optimizer)
    if zero := [name for name, power in given.items if power is None]:
        raise UsageError(f"cannot train with {zero[0]}=0; give a power such as N^-1/2")
    return given


def build_job(
    configuration: Configuration, effort: Effort = USUAL, products: Sequence[str] = (), planted: Sequence[str] = ()
) -> Job:
    """Makes a run and chooses the sizes and seeds that are not given. Powers are derived only when they are needed.

    Args:
        configuration: the configuration to verify.
        effort: how much to measure.
        products: inner products ``<A@s, B@t>`` to measure in addition, as in ``Job``.
        planted: powers to train with in place of the derived ones, as in ``Job``.

    Raises:
        UsageError: unusable sizes, seeds, steps or powers.
    """
    _parse_planted(configuration, planted)
    e = effort
    limits.check_range("steps", e.steps, 0, limits.STEPS)
    if e.together < 1 or e.together & (e.together - 1):
        raise UsageError(f"together is {e.together}; give a power of two")
    if e.dtype not in DTYPES:
        raise unknown_name_error("dtype", e.dtype, DTYPES)
    network = configuration.network
    chosen = plan_sizes(configuration.ray, e.sizes, e.largest, network)
    counts = plan_seeds(configuration.ray, chosen, e.seeds, e.work, network)
    grid = (e.steps, tuple(chosen), tuple(counts))
    return Job(configuration, *grid, e.dtype, tuple(products), e.together, tuple(planted))


def load_campaign(name: str) -> list[Job]:
    """Loads the runs of a campaign, given its name or the path of its file.

    Raises:
        UsageError: there is no such campaign, or its file cannot be used; the message names the place.
    """
    path = list_campaigns().get(name, Path(name))
    if not path.is_file():
        raise unknown_name_error("campaign", name, list_campaigns())
    text = files.read_text(path, "write TOML with tables [[run]]", MOST)
    try:
        data = files.parse_toml(text)
    except UsageError as reason:
        raise UsageError(f"cannot read {path}: {reason}; write TOML with tables [[run]]") from None
    shared = {key: value for key, value in data.items() if key not in ("run", "title")}
    runs = data.get("run")
    if not isinstance(runs, list) or not runs:
        raise UsageError(f"{path} has no table [[run]]; write one for each set of configurations")
    if not all(isinstance(run, dict) for run in runs):
        raise UsageError(f"{path}: run is a list of {quote_value(runs[0])}; write tables [[run]]")
    entries = [({**shared, **run}, f"{path}, run {k}") for k, run in enumerate(runs, 1)]
    for entry, where in entries:
        check_entry(entry, where)
    if sum(math.prod(len(entry.get(key, "1")) for key in _LISTS) for entry, _ in entries) > MOST_RUNS:
        raise UsageError(f"{path} has more than {MOST_RUNS} configurations; write several campaigns")
    return remove_duplicates([job for entry, where in entries for job in _expand(entry, where)], str(path))


def remove_duplicates(jobs: Sequence[Job], where: str) -> list[Job]:
    """Checks that no two runs have the same name, and returns the runs unchanged; nothing is removed.

    Args:
        jobs: the runs.
        where: their source, which the message names.

    Raises:
        UsageError: two runs have the same name (regardless of case).
    """
    names: set[str] = set()
    for job in jobs:
        if job.name.lower() in names:
            raise UsageError(f"{where} has two identical runs {job.name}; leave one out")
        names.add(job.name.lower())
    return list(jobs)


_LISTS = ("regimes", "rays", "optimizers", "parameterizations", "architectures")


def _expand(run: Mapping[str, Any], where: str) -> list[Job]:
    places = [(r, None) for r in run.get("regimes", [])] + [(None, r) for r in run.get("rays", [])]
    rules = product(
        places, run.get("optimizers", [DEFAULT_OPTIMIZER]), run.get("parameterizations", [DEFAULT_PARAMETERIZATION])
    )
    try:
        effort, jobs = Effort(**{f.name: run[f.name] for f in fields(Effort) if f.name in run}), []
        options: Any = {"readout_init": run.get("readout_init"), "epsilon": run.get("epsilon")}
        for name, ((r, ray), o, p) in product(run.get("architectures", [DEFAULT_ARCHITECTURE]), rules):
            jobs.append(build_job(Configuration.of(r, o, p, ray=ray, network=architecture(name), **options), effort))
        return jobs
    except (UsageError, TypeError) as reason:
        raise UsageError(f"{where}: {reason}") from None


@lru_cache(maxsize=256)
def _predict_signals(configuration: Configuration, steps: int, claimed: Sequence[str]) -> Signals:
    return predict_signals(derive(configuration), steps, claimed)
