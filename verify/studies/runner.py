"""All experiments by name, and their execution, which gives a table of claims, counts and an exit code.

To add an experiment, write a file in ``claims/`` whose trials name a laboratory of ``LABORATORIES``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from scaling_algebra.errors import UsageError
from scaling_algebra.files import load_shipped_toml
from scaling_algebra.spec.axes import regime
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.report import split_spent
from scaling_algebra.verify.measuring.pool import Failed, Here, Work
from scaling_algebra.verify.measuring.sizes import plan_sizes
from scaling_algebra.verify.measuring.store import Store

from . import blocks, charts, clusters, rules
from .findings import Conditions, Finding, Observation, judge_claims

Laboratory = Callable[..., Mapping[str, Observation]]
"""Called with ``Conditions``, the names of the quantities to measure, and the settings of the trial; returns an
observation of each."""

LABORATORIES: dict[str, Laboratory] = {
    "block": blocks.measure_block,
    "charts": charts.draw_charts,
    "dispatch": clusters.measure_dispatch,
    "experts' gradient": rules.measure_expert_gradient,
    "experts' rates": rules.measure_expert_rates,
    "margins": clusters.measure_margins,
    "matched time": rules.measure_matched_time,
    "quadratic": rules.measure_quadratic,
}


@dataclass(frozen=True)
class Trial:
    """A training of one configuration, or of a few to compare, with the claims about what is measured.

    Attributes:
        title: its title in reports.
        run: trains and returns the measured values of quantities, by name.
        claims: the claims, each a table as for ``judge_claims``.
    """

    title: str
    run: Laboratory
    claims: tuple[Mapping[str, str], ...]

    def findings(self, how: Conditions) -> list[Finding]:
        """Runs the trial and judges every claim."""
        observations = self.run(how, list(dict.fromkeys(claim["of"] for claim in self.claims)))
        return [finding for claim in self.claims for finding in judge_claims(claim, observations[claim["of"]])]


@dataclass(frozen=True)
class Experiment:
    """Trials that together answer one question. With the default sizes (empty if the size is fixed) and seeds they
    take some minutes.
    """

    name: str
    title: str
    source: str
    trials: tuple[Trial, ...]
    sizes: tuple[int, ...]
    seeds: int


def _read_experiment(name: str) -> Experiment:
    data = load_shipped_toml(__package__, f"claims/{name}.toml")
    lists, common, trials = data.get("claims", {}), data.get("with", {}), []
    for trial in ({**data, **own_entries} for own_entries in data["trials"]):  # settings of the file are defaults
        claims = lists[trial["claims"]] if isinstance(trial["claims"], str) else trial["claims"]
        claims = [{"source": trial["source"], **claim} for claim in claims]
        run = partial(LABORATORIES[trial["run"]], **{**common, **trial.get("with", {})})
        trials.append(Trial(trial["title"], run, tuple(claims)))
    return Experiment(name, data["title"], data["source"], tuple(trials), tuple(data.get("sizes", ())), data["seeds"])


EXPERIMENTS: dict[str, Experiment] = {
    name: _read_experiment(name) for name in ("routers", "epsilon", "clusters", "charts", "batch", "sde", "experts")
}
"""All experiments by name."""


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment.

    Attributes:
        experiment: the experiment.
        how: device, sizes and seeds.
        findings: findings by trial, in the order of the experiment; trials after an interruption are missing.
        seconds: wall time.
        interrupted: whether the user interrupted the experiment.
    """

    experiment: Experiment
    how: Conditions
    findings: dict[str, list[Finding]]
    seconds: float
    interrupted: bool = False

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of claims by outcome: as expected (AGREES), the opposite of it (REFUTED), or INCONCLUSIVE."""
        outcomes = Counter(f.outcome for part in self.findings.values() for f in part)
        return {v: outcomes[v] for v in Verdict}

    @property
    def exit_code(self) -> int:
        """130 if interrupted; 1 if a verdict is the opposite of the expected one; 3 if one is inconclusive; else 0."""
        _, against, undecided = self.counts.values()
        if self.interrupted:
            return 130
        return 1 if against else 3 if undecided or not self.findings else 0

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record of the result, with the keys that ``scalecalc study`` documents."""
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "source": self.experiment.source,
            "sizes": list(self.how.sizes) or None,
            "seeds": self.how.seeds,
            "trials": {title: [f.as_json() for f in part] for title, part in self.findings.items()},
            "outcomes": {str(v): count for v, count in self.counts.items()},
            "interrupted": self.interrupted,
            **split_spent({**Hardware(self.how.device).describe(), "wall_seconds": round(self.seconds, 2)}),
            "exit_code": self.exit_code,
        }


def find_worst_code(results: Sequence[Result]) -> int:
    """Returns the worst exit code of several results. From the worst: interrupted (130), a verdict against the
    expectation (1), inconclusive (3), all as expected (0).
    """
    return max((r.exit_code for r in results), key=(0, 3, 1, 130).index)


def plan_conditions(
    chosen: Experiment, device: str, sizes: Sequence[int] | None = None, seeds: int | None = None
) -> Conditions:
    """Returns device, sizes and seeds for an experiment: its own sizes and seeds unless others are given.

    Raises:
        UsageError: the sizes cannot be used, or the experiment has a fixed size.
    """
    if sizes is not None and not chosen.sizes:
        raise UsageError(f"{chosen.name} has a fixed size; leave out --sizes")
    checked = chosen.sizes if sizes is None else tuple(plan_sizes(regime("I"), sizes))
    return Conditions(device, checked, seeds or chosen.seeds)


def run_experiments(
    chosen: Experiment,
    how: Conditions,
    pool: Here,
    store: Store | None = None,
    watch: Callable[[int, str], None] = lambda done, what: None,
) -> Result:
    """Runs all trials of an experiment. After an interruption the completed trials are returned.

    Args:
        chosen: the experiment.
        how: device, sizes and seeds.
        pool: the processes that train.
        store: keeps completed trials for the next time.
        watch: called before the first trial and after each one with the number of completed trials and a title: that of
            the experiment, then that of the last trial.

    Raises:
        UsageError: a trial failed.
    """
    store, started, interrupted = store or Store(), time.perf_counter(), False
    question = {"experiment": chosen.name, "device": how.device, "sizes": list(how.sizes), "seeds": how.seeds}
    kept = {trial.title: store.piece({**question, "trial": trial.title}) for trial in chosen.trials}
    todo = [Work(f"{chosen.name}, {t.title}", run_trial, (t, how)) for t in chosen.trials if kept[t.title] is None]
    failed: list[Failed] = []
    try:
        watch(len(kept) - len(todo), chosen.title)
        for left, (task, result) in enumerate(pool(todo), 1 - len(todo)):
            title = task.arguments[0].title
            if isinstance(result, Failed):
                failed.append(result)
            else:
                kept[title] = store.keep({**question, "trial": title}, result)
            watch(len(kept) + left, title)
    except KeyboardInterrupt:
        interrupted = True
    for reason in failed:
        raise UsageError(str(reason))
    judged = {title: msgspec.convert(found, list[Finding]) for title, found in kept.items() if found is not None}
    return Result(chosen, how, judged, time.perf_counter() - started, interrupted)


def run_trial(hardware: Hardware, trial: Trial, how: Conditions) -> Any:
    """Runs a trial on some hardware and returns its findings in JSON types."""
    return msgspec.to_builtins(trial.findings(replace(how, device=hardware.device)))
