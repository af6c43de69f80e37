"""Every experiment by name, and what running one gives: a table of claims, counts and an exit code.

Adding an experiment: one more ``Experiment`` in ``EXPERIMENTS``.
Read next: ``findings.py`` (claims and verdicts), ``presentation.py`` (what a result says).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scaling_algebra import limits
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.axes import regime
from scaling_algebra.verify.hardware import Hardware, spare_threads
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.measuring.pieces import Pieces
from scaling_algebra.verify.measuring.sizes import plan_sizes

from .batch import BATCH
from .charts import CHARTS
from .cluster_claims import CLUSTERED
from .epsilon import EPSILON
from .expert_rates import EXPERT_RATES
from .findings import Experiment, Finding, Plan, Trial, restored
from .matched_time import MATCHED
from .routers import ROUTERS

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e for e in (ROUTERS, EPSILON, CLUSTERED, CHARTS, BATCH, MATCHED, EXPERT_RATES)
}
"""Every experiment, by name."""

Watch = Callable[[int, int, str], None]
"""Called with (trials done, trials in all, what is being trained)."""


@dataclass(frozen=True, repr=False)
class Result(Rendered):
    """What an experiment showed.

    Attributes:
        findings: by trial, in the order of the experiment; trials after an interruption are missing.
        seconds: wall time.
    """

    experiment: Experiment
    plan: Plan
    findings: dict[str, list[Finding]]
    seconds: float
    interrupted: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Claims by outcome: as they must be, the opposite, undecided."""
        outcomes = Counter(f.outcome for part in self.findings.values() for f in part)
        return {str(v): outcomes[v] for v in Verdict}

    @property
    def exit_code(self) -> int:
        """130 if interrupted; 1 if any claim came out against the prediction; 3 if any is inconclusive; else 0."""
        counts = self.counts
        if self.interrupted:
            return 130
        return 1 if counts[Verdict.REFUTED] else 3 if counts[Verdict.INCONCLUSIVE] or not self.findings else 0

    def as_json(self) -> dict[str, Any]:
        """The JSON contract of one experiment."""
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "source": self.experiment.source,
            "sizes": list(self.plan.sizes) or None,
            "seeds": self.plan.seeds,
            "trials": {title: [f.as_json() for f in part] for title, part in self.findings.items()},
            "outcomes": self.counts,
            "interrupted": self.interrupted,
            "environment": {**Hardware(self.plan.device).described(), "wall_seconds": round(self.seconds, 2)},
            "exit_code": self.exit_code,
        }

    @property
    def about(self) -> str:
        return f"{self.experiment.name}, {self.closing}"

    @property
    def closing(self) -> str:
        """One line: the counts, and how long it took."""
        agree, against, undecided = self.counts.values()
        line = f"{agree} claims as predicted, {against} against, {undecided} inconclusive"
        return f"{line} ({self.seconds:.1f} s on {self.plan.device})" + ("; interrupted" if self.interrupted else "")

    def document(self) -> Document:
        """One grid for each trial, and a closing line with the counts."""
        from .presentation import result

        return result(self)


def worst(results: Sequence[Result]) -> int:
    """The exit code of several: interrupted, against the prediction, inconclusive, then agreement."""
    return max((r.exit_code for r in results), key=(0, 3, 1, 130).index)


def experiment(name: str) -> Experiment:
    """The experiment called ``name``.

    Raises:
        UsageError: no such experiment.
    """
    if name.lower() not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name.lower()]


def planned(chosen: Experiment, device: str, sizes: Sequence[int] | None = None, seeds: int | None = None) -> Plan:
    """How an experiment is run: its own sizes and seeds unless others are given.

    Raises:
        UsageError: unusable sizes, seeds or device, or sizes for an experiment that has none.
    """
    if sizes is not None and not chosen.sizes:
        raise UsageError(f"{chosen.name} has a fixed size; leave out --sizes")
    if seeds is not None:
        limits.within("seeds", seeds, 1, limits.SEEDS)
    checked = chosen.sizes if sizes is None else tuple(plan_sizes(regime("I"), sizes))
    return Plan(Hardware.of(device).device, checked, chosen.seeds if seeds is None else seeds)


def run_trials(chosen: Experiment, plan: Plan, watch: Watch | None = None, pieces: Pieces | None = None) -> Result:
    """Runs every trial of an experiment; an interruption keeps the trials that are complete.

    Args:
        pieces: where complete trials are kept, for the next time.
    """
    pieces = pieces or Pieces()
    asked = {"experiment": chosen.name, "device": plan.device, "sizes": list(plan.sizes), "seeds": plan.seeds}
    started, findings, interrupted = time.perf_counter(), dict[str, list[Finding]](), False
    try:
        with spare_threads():
            for done, trial in enumerate(chosen.trials):

                def say(what: str, done: int = done, title: str = trial.title) -> None:
                    if watch:
                        watch(done, len(chosen.trials), f"{title}{what}")

                say("")

                def run(trial: Trial = trial, say: Callable[[str], None] = say) -> list[dict[str, Any]]:
                    return [asdict(finding) for finding in trial.run(replace(plan, say=say))]

                kept = pieces.of({**asked, "trial": trial.title}, run)
                findings[trial.title] = [Finding(**restored(x)) for x in kept]
    except KeyboardInterrupt:
        interrupted = True
    return Result(chosen, plan, findings, time.perf_counter() - started, interrupted)
