"""The report of a run, and its exit code.

The first rule that applies decides; it looks at the claims if there are any, otherwise at all predictions:

- 130: the run was interrupted.
- 3: cells are missing, so the run proves nothing.
- 1: a row is REFUTED by more than a failed gate may explain; so is a row that is predicted to be exactly zero and is
  not.
- 3: a gate failed, so agreement does not count.
- 3: of the rows that are not predicted to be exactly zero, fewer than ``REQUIRED`` agree, or there are no rows.
- 0: otherwise. Zeros follow from the structure of the network, so they cannot make up for undecided rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import count_noun

from .fit import DRIFT, MIN_SEEDS, MIN_SIZES, Fit, Means, Verdict
from .gates import RunGate

REQUIRED = Fraction(4, 5)
"""Share of the rows not predicted to be exactly zero that must agree."""

INTERRUPTED = "interrupted"
"""Value of ``Report.incomplete`` for a run that the user stopped."""

SPENT = ("wall_seconds", "entries_per_second", "peak_memory_bytes")
"""Keys of the environment that differ between repetitions of a run."""


def split_spent(environment: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Splits the environment of a run for its JSON record into ``environment`` and ``spent`` (time and memory), so that
    two equal runs differ only in ``spent``.
    """
    kept = {key: value for key, value in environment.items() if key not in SPENT}
    return {"environment": kept, "spent": {key: environment[key] for key in SPENT if key in environment}}


@dataclass(frozen=True)
class ReportRow:
    """The verdict on one quantity at one step.

    Attributes:
        quantity: its name.
        step: number of updates done.
        predicted: exponent of n; None if exactly zero.
        fit: the measured exponent.
        verdict: the verdict.
        note: why the verdict differs from the fit's; empty if it does not.
        level: what the prediction rests on, in reports that distinguish this.
        share: smallest and largest share of the mean square at the largest size that the predicted power may have in a
            sum of powers; None if the slope agrees, or no sum fits.
    """

    quantity: str
    step: int
    predicted: Fraction | None
    fit: Fit
    verdict: Verdict
    note: str = ""
    share: tuple[float, float] | None = None
    level: str = ""

    @property
    def apart(self) -> float:
        """Distance of the predicted exponent from the confidence interval of the measured one; negative if the
        prediction lies inside the interval.

        Infinite if the quantity is predicted or measured to be exactly zero.
        """
        if self.predicted is None or self.fit.zero:
            return math.inf
        return max(self.fit.low - float(self.predicted), float(self.predicted) - self.fit.high)

    @property
    def because(self) -> str:
        """Why a row is undecided and what would help: rounding, too few data, no slope, a slope that still bends, an
        interval that barely misses the prediction, or noise."""
        f = self.fit
        if self.note or self.verdict is not Verdict.INCONCLUSIVE:
            return self.note
        if f.sizes < MIN_SIZES or f.seeds < MIN_SEEDS:
            return f"{count_noun(f.sizes, 'size')} and {count_noun(f.seeds, 'seed')} are too few"
        if f.unfit:
            return f.unfit
        if f.bends:
            return f"bends towards {f.trend:+.2f}; take larger sizes"
        if self.predicted is not None and not f.low - DRIFT <= float(self.predicted) <= f.high + DRIFT:
            return "the interval misses the prediction, but by too little to refute it; take larger sizes"
        return f"noise, standard error {f.se:.2f}; take more seeds"

    def as_json(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "step": self.step,
            "predicted": None if self.predicted is None else str(self.predicted),
            **self.fit.as_json(),
            "verdict": str(self.verdict),
            "because": self.because,
            **({"note": self.note} if self.note else {}),
            **({"level": self.level} if self.level else {}),
            "share": None if self.share is None else [round(x, 4) for x in self.share],
        }


@dataclass(frozen=True)
class Tally:
    """Number of rows of a report by verdict.

    Attributes:
        exponents: number of rows by verdict, of those that predict an exponent.
        zeros: number of rows by verdict, of those that are predicted to be exactly zero.
    """

    exponents: Mapping[Verdict, int]
    zeros: Mapping[Verdict, int]

    @classmethod
    def of(cls, rows: Iterable[ReportRow]) -> Tally:
        """Counts the verdicts of rows."""
        rows = list(rows)
        parts = ([r.verdict for r in rows if (r.predicted is None) is zero] for zero in (False, True))
        return cls(*({v: part.count(v) for v in Verdict} for part in parts))

    @property
    def judged(self) -> int:
        """Number of rows that are not predicted to be exactly zero."""
        return sum(self.exponents.values())

    @property
    def refuted(self) -> int:
        """Number of refuted rows, including zeros."""
        return self.exponents[Verdict.REFUTED] + self.zeros[Verdict.REFUTED]

    def enough(self, required: Fraction) -> bool:
        """Whether enough rows agree: there is at least one row, and of the rows not predicted to be zero at least the
        share ``required`` agrees.
        """
        agree = self.exponents[Verdict.AGREES]
        return agree >= required * self.judged and agree + self.zeros[Verdict.AGREES] > 0

    def as_json(self) -> dict[str, dict[str, int]]:
        both = {"exponents": self.exponents, "zeros": self.zeros}
        return {name: {str(v): count for v, count in part.items()} for name, part in both.items()}

    def __str__(self) -> str:
        """Returns ``125 of 136 exponents agree, 0 refuted, 11 inconclusive; 164 exactly zero as predicted``."""
        agree, zeros, zero = self.exponents[Verdict.AGREES], sum(self.zeros.values()), self.zeros[Verdict.AGREES]

        def rest(counts: Mapping[Verdict, int]) -> str:
            return f"{counts[Verdict.REFUTED]} refuted, {counts[Verdict.INCONCLUSIVE]} inconclusive"

        parts = []
        if self.judged or not zeros:
            parts.append(f"{agree} of {self.judged} exponents agree, {rest(self.exponents)}")
        if zero == zeros and zeros:
            parts.append(f"{zeros} exactly zero as predicted")
        elif zeros:
            parts.append(f"only {zero} of {zeros} exactly zero as predicted, {rest(self.zeros)}")
        return "; ".join(parts)


@dataclass(frozen=True, repr=False)
class Report(Rendered):
    """All results of a run.

    Attributes:
        rows: verdicts on predicted quantities that were measured.
        claims: verdicts on the user's claims.
        gates: checks of the run.
        environment: device, versions, time and memory.
        sizes: n at every size.
        dims: dimensions at every size.
        incomplete: why the run is incomplete; empty if it is complete.
        unmeasured: predicted quantities that this model or optimizer does not measure.
        later: fits at steps for which there is no prediction, by (quantity, step).
        means: log2 of the rms over seeds and its standard error at every n, by (quantity, step); for plots.
        required: share of the rows not predicted to be exactly zero that must agree.
        undecided: names of quantities that are not judged, because they have no prediction or demand at some step, or
            were logged by a user under a name without a prediction.
    """

    rows: tuple[ReportRow, ...]
    claims: tuple[ReportRow, ...]
    gates: tuple[RunGate, ...]
    environment: Mapping[str, Any]
    sizes: tuple[float, ...]
    dims: tuple[Mapping[str, int], ...]
    incomplete: str = ""
    unmeasured: tuple[str, ...] = ()
    later: Mapping[tuple[str, int], Fit] = field(default_factory=dict)
    means: Mapping[tuple[str, int], Means] = field(default_factory=dict)
    required: Fraction = REQUIRED
    undecided: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[ReportRow, ...]:
        """The rows that decide: the claims if there are any, otherwise all rows."""
        return self.claims or self.rows

    @property
    def counts(self) -> dict[str, int]:
        """Number of judged rows, by the name of the verdict."""
        verdicts = Counter(row.verdict for row in self.judged)
        return {str(v): verdicts[v] for v in Verdict}

    @property
    def tally(self) -> Tally:
        """Number of judged rows by verdict, separately for those that predict an exponent and those predicted zero."""
        return Tally.of(self.judged)

    @property
    def exit_code(self) -> int:
        """The exit code; the first rule that applies decides. 130: interrupted; 3: incomplete; 1: a row is refuted by
        more
        than failed gates may explain; 3: a gate failed, or too few rows agree; 0: otherwise.
        """
        if self.incomplete:
            return 130 if self.incomplete == INTERRUPTED else 3
        if any(self._find_refuted()):
            return 1
        return 0 if all(g.passed for g in self.gates) and self.tally.enough(self.required) else 3

    def _find_refuted(self) -> Iterator[ReportRow]:
        """Yields the judged rows that are refuted, and whose measured slope is farther from the prediction than failed
        gates may explain.
        """
        explained = max((g.explains for g in self.gates if not g.passed), default=-math.inf)
        return (r for r in self.judged if r.verdict is Verdict.REFUTED and r.apart > explained)

    def as_json(self) -> dict[str, Any]:
        return {
            "quantities": [row.as_json() for row in self.rows],
            "claims": [row.as_json() for row in self.claims],
            "counts": self.counts,
            "tally": self.tally.as_json(),
            "required": str(self.required),
            "gates": [{"name": g.name, "passed": g.passed, "detail": g.detail} for g in self.gates],
            "sizes": list(self.sizes),
            "dims": [dict(d) for d in self.dims],
            "unmeasured": list(self.unmeasured),
            "undecided": list(self.undecided),
            "incomplete": self.incomplete or None,
            "later": [{"quantity": q, "step": t, **f.as_json()} for (q, t), f in self.later.items()],
            **split_spent(self.environment),
            "exit_code": self.exit_code,
        }

    @property
    def about(self) -> str:
        return self.closing

    @property
    def conditions(self) -> str:
        """Optimizer, device and versions in one line, with time and memory where they were recorded."""
        e = self.environment
        if "device" not in e:
            return "sizes that were logged elsewhere" if self.rows else "nothing was measured"
        spent = f", {e['wall_seconds']:.1f} s" if "wall_seconds" in e else ""
        spent += f", peak memory {memory / 2**20:.0f} MiB" if (memory := e.get("peak_memory_bytes")) else ""
        spent += f", {e['entries_per_second'] / 1e6:.0f} million entries a second" if "entries_per_second" in e else ""
        live = e.get("predicted_with") == "moe-sigmoid"
        gates = "; predicted with the gate in the dynamics (moe-sigmoid), as M > N" if live else ""
        return f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}{spent}{gates}"

    @property
    def closing(self) -> str:
        """The result in one line: the number of rows by verdict, and, if the run is incomplete or a gate failed, why it
        proves nothing.
        """
        tally, failed = self.tally, sum(not g.passed for g in self.gates)
        summary, void = f"{'claims: ' if self.claims else ''}{tally}", ""
        if self.incomplete:
            void = self.incomplete
        elif failed:
            void = f"{failed} of {len(self.gates)} gates failed"
            if count := len([*self._find_refuted()]):
                return f"{summary}; {void}, which explains no slope of {count} that are refuted"
        elif not tally.refuted and not tally.enough(self.required):
            void = f"fewer than {self.required} of the exponents agree"
        return f"{summary}; {void}, so the run is INCONCLUSIVE" if void else summary
