"""Compares a measurement with predicted exponents and with claims.

Exit code: 3 if the run was interrupted or a gate failed (it proves nothing, whatever its rows say); else 1 if anything
judged is REFUTED; else 3 if fewer than half of the judged rows agree; else 0, so a few INCONCLUSIVE rows do not fail a
run. With claims, only the claims are judged; the predictions are still reported.
Read next: ``fit.py`` (the verdict of one row), ``gates.py`` (what voids a run).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from .claims import Claim
from .fit import Fit, Verdict, fit, judge_exponent, zeros_to_rounding
from .gates import Gate, gates

if TYPE_CHECKING:
    from .runs import Measurement

Prediction = Mapping[str, Sequence[Fraction | None]]
"""Exponent of n of every quantity after t = 0, 1, ... updates; None is exactly zero."""


@dataclass(frozen=True)
class Row:
    """One quantity at one step: predicted exponent (None: exactly zero), fit and verdict."""

    quantity: str
    step: int
    predicted: Fraction | None
    fit: Fit
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        f = self.fit
        return {
            "quantity": self.quantity,
            "step": self.step,
            "predicted": None if self.predicted is None else str(self.predicted),
            "measured_zero": f.zero,
            "slope": _number(f.slope),
            "se": _number(f.se),
            "ci": None if math.isnan(f.slope) else [_number(f.low), _number(f.high)],
            "sizes": f.sizes,
            "seeds": f.seeds,
            "verdict": str(self.verdict),
        }


@dataclass(frozen=True)
class Report:
    """Everything a run showed.

    Attributes:
        rows: predicted quantities that were measured.
        claims: what was claimed, judged the same way.
        unmeasured: predicted quantities that this model or optimizer does not measure.
    """

    rows: tuple[Row, ...]
    claims: tuple[Row, ...]
    gates: tuple[Gate, ...]
    environment: Mapping[str, Any]
    sizes: tuple[Mapping[str, int], ...]
    interrupted: bool
    unmeasured: tuple[str, ...] = ()

    @property
    def judged(self) -> tuple[Row, ...]:
        """The rows that decide: the claims if there are any."""
        return self.claims or self.rows

    @property
    def counts(self) -> dict[str, int]:
        """Number of judged rows by verdict."""
        found = Counter(row.verdict for row in self.judged)
        return {str(v): found[v] for v in Verdict}

    @property
    def exit_code(self) -> int:
        """See the module text."""
        counts = self.counts
        if self.interrupted or not all(g.passed for g in self.gates):
            return 3
        if counts["REFUTED"]:
            return 1
        agreed = counts["AGREES"]
        return 0 if agreed and 2 * agreed >= len(self.judged) else 3

    def as_json(self) -> dict[str, Any]:
        return {
            "quantities": [row.as_json() for row in self.rows],
            "claims": [row.as_json() for row in self.claims],
            "counts": self.counts,
            "gates": [{"name": g.name, "passed": g.passed, "detail": g.detail} for g in self.gates],
            "dims": [dict(d) for d in self.sizes],
            "unmeasured": list(self.unmeasured),
            "interrupted": self.interrupted,
            "environment": dict(self.environment),
            "exit_code": self.exit_code,
        }

    def text(self) -> str:
        """Aligned tables of the rows and claims, the gates, and one closing line with the counts."""
        blocks = [_table(self.rows)] if self.rows else []
        if self.claims:
            blocks.append("claims\n" + _table(self.claims))
        if self.unmeasured:
            blocks.append("not measured: " + ", ".join(self.unmeasured))
        failed = [g for g in self.gates if not g.passed]
        lines = (f"gate {'passed' if g.passed else 'FAILED'}: {g.name} ({g.detail})" for g in self.gates)
        blocks.append("\n".join(lines))
        e = self.environment
        blocks.append(
            f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}, "
            f"{e['wall_seconds']:.1f} s, peak memory {e['peak_memory_bytes'] / 2**20:.0f} MiB"
        )
        closing = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        if self.interrupted:
            closing += "; interrupted, so the run is INCONCLUSIVE"
        elif failed:
            closing += f"; {len(failed)} of {len(self.gates)} gates failed, so the run is INCONCLUSIVE"
        blocks.append(("claims: " if self.claims else "") + closing)
        return "\n\n".join(blocks)


def judge(measurement: Measurement, prediction: Prediction, claims: Sequence[Claim] = ()) -> Report:
    """Judges every predicted quantity that was measured, and every claim.

    Raises:
        UsageError: a claim about a quantity or step that was not measured.
    """
    for claim in claims:
        claim.check(measurement.names or prediction, measurement.steps)
    fits: dict[tuple[str, int], Fit] = {}

    def row(quantity: str, step: int, predicted: Fraction | None) -> Row:
        if (quantity, step) not in fits:
            fits[quantity, step] = fit_of(measurement, quantity, step)
        found = fits[quantity, step]
        return Row(quantity, step, predicted, found, judge_exponent(found, predicted, _spacing(measurement)))

    known = set(measurement.names)
    rows = [
        row(q, t, p)
        for q, series in prediction.items()
        if q in known
        for t, p in enumerate(series[: measurement.steps + 1])
    ]
    claimed = []
    for claim in claims:
        at = range(measurement.steps + 1) if claim.step is None else [claim.step]
        found = [row(claim.quantity, t, claim.exponent) for t in at]
        if claim.step is None and claim.exponent is not None:
            found = [r for r in found if not r.fit.zero] or found[-1:]
        claimed += found
    return Report(
        tuple(rows),
        tuple(claimed),
        tuple(gates(measurement)),
        measurement.environment,
        tuple(measurement.dims),
        measurement.interrupted,
        tuple(q for q in prediction if known and q not in known),
    )


def fit_of(m: Measurement, quantity: str, step: int) -> Fit:
    """Fit of one quantity; values below rounding of the family it is a part of (``h3.D`` of ``h3``) count as zero."""
    series = m.values.get((quantity, step), [])
    family = [s for (name, t), s in m.values.items() if t == step and name.split(".")[0] == quantity.split(".")[0]]
    scale = [np.max([s[i].max() for s in family]) for i in range(len(series))]
    return fit(m.sizes, [zeros_to_rounding(v, c) for v, c in zip(series, scale, strict=True)])


def _spacing(m: Measurement) -> Fraction:
    """Exponents are half-integer combinations of the rates of the axes, hence multiples of this."""
    return Fraction(1, 2 * math.lcm(*(m.ray[axis].denominator for axis in ("N", "N_e", "M", "K"))))


def _table(rows: Sequence[Row]) -> str:
    body = [
        (r.quantity, r.step, "zero" if r.predicted is None else str(r.predicted), *_shown(r.fit), str(r.verdict))
        for r in rows
    ]
    header = ("quantity", "step", "predicted", "measured", "interval", "verdict")
    align = ("left", "right", "right", "right", "left", "left")
    text: str = tabulate(body, header, tablefmt="simple", disable_numparse=True, colalign=align)
    return text


def _shown(f: Fit) -> tuple[str, str]:
    if f.zero:
        return "zero", ""
    if math.isnan(f.slope):
        return "none", ""
    return f"{f.slope:+.3f}", f"[{f.low:+.3f}, {f.high:+.3f}]"


def _number(x: float) -> float | None:
    return None if math.isnan(x) or math.isinf(x) else round(x, 6)
