"""Compares a measurement with predicted exponents and with claims.

Exit code: 3 if the run is incomplete or a gate failed (it proves nothing, whatever its rows say); else 1 if anything
judged is REFUTED; else 3 if fewer than half of the judged rows agree; else 0, so a few INCONCLUSIVE rows do not fail a
run. With claims, only the claims are judged; the predictions are still reported.
Read next: ``fit.py`` (the verdict of one row), ``gates.py`` (what voids a run), ``output.py`` (reports as files).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from tabulate import tabulate

from .claims import Claim
from .fit import Fit, Means, Verdict, fit, judge_exponent, means
from .gates import Gate, below_floor, floor, gates, planted, standard_refuted
from .measurement import Measurement

Prediction = Mapping[str, Sequence[Fraction | None]]
"""Exponent of n of every quantity after t = 0, 1, ... updates; None is exactly zero."""


@dataclass(frozen=True)
class Row:
    """One quantity at one step: predicted exponent (None: exactly zero), fit and verdict.

    Attributes:
        note: why the verdict is not the one of the fit; empty if it is.
    """

    quantity: str
    step: int
    predicted: Fraction | None
    fit: Fit
    verdict: Verdict
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "step": self.step,
            "predicted": None if self.predicted is None else str(self.predicted),
            **_fit_json(self.fit),
            "verdict": str(self.verdict),
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True)
class Report:
    """Everything a run showed.

    Attributes:
        rows: predicted quantities that were measured.
        claims: what was claimed, judged the same way.
        later: fits of what was measured after the last step with predictions.
        sizes, dims: n, and the dimensions there.
        means: log2 of the root-mean-square over seeds and its standard error at every n, for pictures.
        incomplete: why the run is not complete; empty if it is.
        unmeasured: predicted quantities that this model or optimizer does not measure.
    """

    rows: tuple[Row, ...]
    claims: tuple[Row, ...]
    gates: tuple[Gate, ...]
    environment: Mapping[str, Any]
    sizes: tuple[float, ...]
    dims: tuple[Mapping[str, int], ...]
    incomplete: str = ""
    unmeasured: tuple[str, ...] = ()
    later: Mapping[tuple[str, int], Fit] = field(default_factory=dict)
    means: Mapping[tuple[str, int], Means] = field(default_factory=dict)

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
        if self.incomplete or not all(g.passed for g in self.gates):
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
            "sizes": list(self.sizes),
            "dims": [dict(d) for d in self.dims],
            "unmeasured": list(self.unmeasured),
            "incomplete": self.incomplete or None,
            "later": [{"quantity": q, "step": t, **_fit_json(f)} for (q, t), f in self.later.items()],
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
        blocks.append("\n".join(str(gate) for gate in self.gates))
        blocks.append(self.conditions)
        blocks.append(self.closing)
        return "\n\n".join(blocks)

    @property
    def conditions(self) -> str:
        """One line: optimizer, device, versions, time and memory."""
        e = self.environment
        if "device" not in e:
            return "nothing was measured"
        speed = f", {e['entries_per_second'] / 1e6:.0f} million entries a second" if "entries_per_second" in e else ""
        live = e.get("predicted_with") == "moe-sigmoid"
        gates = "; predicted with the gate in the dynamics (moe-sigmoid), as M > N" if live else ""
        return (
            f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}, "
            f"{e['wall_seconds']:.1f} s, peak memory {e['peak_memory_bytes'] / 2**20:.0f} MiB{speed}{gates}"
        )

    @property
    def closing(self) -> str:
        """One line: the counts, and what voids them."""
        closing = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        failed = sum(not g.passed for g in self.gates)
        if self.incomplete:
            closing += f"; {self.incomplete}, so the run is INCONCLUSIVE"
        elif failed:
            closing += f"; {failed} of {len(self.gates)} gates failed, so the run is INCONCLUSIVE"
        return ("claims: " if self.claims else "") + closing


def judge(measurement: Measurement, prediction: Prediction, claims: Sequence[Claim] = ()) -> Report:
    """Judges every predicted quantity that was measured, and every claim.

    Raises:
        UsageError: a claim about a quantity or step that was not measured.
    """
    m = measurement
    for claim in claims:
        claim.check(m.names or prediction, m.steps)
    spacing, spoilt = _spacing(m), below_floor(m)
    fits: dict[tuple[str, int], Fit] = {}

    def row(quantity: str, step: int, predicted: Fraction | None) -> Row:
        key = quantity, step
        if key not in fits:
            fits[key] = fit_of(m, quantity, step)
        verdict, note = judge_exponent(fits[key], predicted, spacing), ""
        if key in spoilt:
            verdict, note = Verdict.INCONCLUSIVE, f"rounding: {spoilt[key]:.0%} away from float64"
        return Row(quantity, step, predicted, fits[key], verdict, note)

    known = set(m.names)
    asked = [(q, t, p) for q, series in prediction.items() if q in known for t, p in enumerate(series[: m.steps + 1])]
    rows = [row(*one) for one in asked]
    claimed = []
    for claim in claims:
        at = range(m.steps + 1) if claim.step is None else [claim.step]
        found = [row(claim.quantity, t, claim.exponent) for t in at]
        if claim.step is None and claim.exponent is not None:
            found = [r for r in found if not r.fit.zero] or found[-1:]
        claimed += found
    checks = gates(m)
    agreeing = [(r.fit, r.predicted) for r in rows if r.predicted is not None and r.verdict is Verdict.AGREES]
    if agreeing:
        checks.append(planted(agreeing, spacing))
    if m.standard:
        other = replace(m, values=m.standard)
        fitted = [(fit_of(other, q, t), p) for q, t, p in asked if (q, t) in m.standard]
        checks.append(standard_refuted([judge_exponent(f, p, spacing) for f, p in fitted]))
    if m.exact:
        checks.append(floor(m))
    last = max((t for _, t, _ in asked), default=m.steps)
    incomplete = "interrupted" if m.interrupted else f"{m.missing} cells missing" if m.missing else ""
    return Report(
        tuple(rows),
        tuple(claimed),
        tuple(checks),
        m.environment,
        tuple(m.sizes),
        tuple(m.dims),
        incomplete,
        tuple(q for q in prediction if known and q not in known),
        {(q, t): fit_of(m, q, t) for q, t in m.values if t > last and q in prediction},
        {key: means(series) for key, series in m.values.items() if key[0] in prediction},
    )


def fit_of(m: Measurement, quantity: str, step: int) -> Fit:
    """Fit of one quantity; values below rounding of the family it is a part of (``h3.D`` of ``h3``) count as zero."""
    return fit(m.sizes, m.cleaned(quantity, step), m.level)


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


def _fit_json(f: Fit) -> dict[str, Any]:
    return {
        "measured_zero": f.zero,
        "slope": _number(f.slope),
        "se": _number(f.se),
        "ci": None if math.isnan(f.slope) else [_number(f.low), _number(f.high)],
        "sizes": f.sizes,
        "seeds": f.seeds,
    }


def _number(x: float) -> float | None:
    return None if math.isnan(x) or math.isinf(x) else round(x, 6)
