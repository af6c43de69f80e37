"""Compares a measurement with predicted exponents and with claims.

The rule, for the rows judged (the claims if there are any, else all predictions):

- 130: the run was interrupted.
- 3: cells are missing or a gate failed, so the run proves nothing, whatever its rows say.
- 1: any row is REFUTED; a row that is predicted to be exactly zero and measured to be anything else is.
- 3: of the rows that are not predicted to be exactly zero fewer than ``REQUIRED`` agree, or none is left to judge.
- 0: otherwise. Zeros hold by construction of the network, so that they cannot make up for rows that stay open.

Read next: ``fit.py`` (the verdict of one row), ``gates.py`` (what voids a run), ``presentation.py`` (what it says).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Signals
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import Network

from .arguments import beyond
from .claims import Claim
from .fit import Fit, Means, Verdict, fit, judge_exponent, means
from .gates import RunGate, below_floor, floor, gates, planted, standard_refuted
from .logged import Logged, Predicted, exponents, logged
from .measurement import Measurement
from .measurement import Prediction as Prediction
from .spectrum import EVERY, MOST, Powers, Spectrum, mixed, powers_below, spectrum

REQUIRED = Fraction(4, 5)
"""Share of the rows that are not predicted to be exactly zero which must agree."""

QUOTIENT = ".normalised"
"""How the name of a quantity ends that is another one, seed by seed, over the size of what that reads."""

INTERRUPTED = "interrupted"
"""Why a run is incomplete that the user stopped."""


@dataclass(frozen=True)
class ReportRow:
    """One quantity at one step: predicted exponent (None: exactly zero), fit and verdict.

    Attributes:
        note: why the verdict is not the one of the fit; empty if it is.
        spectrum: what a sum of powers says where the slope does not agree; None where it does, or nothing can be said.
    """

    quantity: str
    step: int
    predicted: Fraction | None
    fit: Fit
    verdict: Verdict
    note: str = ""
    spectrum: Spectrum | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "step": self.step,
            "predicted": None if self.predicted is None else str(self.predicted),
            **_fit_json(self.fit),
            "verdict": str(self.verdict),
            **({"note": self.note} if self.note else {}),
            "spectrum": self.spectrum.as_json() if self.spectrum else None,
        }


@dataclass(frozen=True)
class Tally:
    """How many rows agree, are refuted and inconclusive, those that are predicted to be exactly zero apart."""

    exponents: Mapping[Verdict, int]
    zeros: Mapping[Verdict, int]

    @classmethod
    def of(cls, rows: Iterable[ReportRow]) -> Tally:
        """Of all these rows."""
        rows = list(rows)
        parts = ([r.verdict for r in rows if (r.predicted is None) is zero] for zero in (False, True))
        return cls(*({v: part.count(v) for v in Verdict} for part in parts))

    @property
    def judged(self) -> int:
        """Rows that are not predicted to be exactly zero."""
        return sum(self.exponents.values())

    @property
    def refuted(self) -> int:
        """Zeros included."""
        return self.exponents[Verdict.REFUTED] + self.zeros[Verdict.REFUTED]

    def enough(self, required: Fraction) -> bool:
        """Is this share of the rows that are not predicted to be exactly zero seen to agree?"""
        agree = self.exponents[Verdict.AGREES]
        return agree >= required * self.judged and agree + self.zeros[Verdict.AGREES] > 0

    def as_json(self) -> dict[str, dict[str, int]]:
        both = {"exponents": self.exponents, "zeros": self.zeros}
        return {name: {str(v): count for v, count in part.items()} for name, part in both.items()}

    def __str__(self) -> str:
        """``125 of 136 exponents agree, 0 refuted, 11 inconclusive; 164 exactly zero as predicted``."""
        agree, zeros, zero = self.exponents[Verdict.AGREES], sum(self.zeros.values()), self.zeros[Verdict.AGREES]
        said = []
        if self.judged or not zeros:
            rest = (f"{self.exponents[v]} {v.lower()}" for v in (Verdict.REFUTED, Verdict.INCONCLUSIVE))
            said.append(", ".join([f"{agree} of {self.judged} exponents agree", *rest]))
        if zero == zeros and zeros:
            said.append(f"{zeros} exactly zero as predicted")
        elif zeros:
            rest = (f"{self.zeros[v]} {v.lower()}" for v in (Verdict.REFUTED, Verdict.INCONCLUSIVE))
            said.append(", ".join([f"only {zero} of {zeros} exactly zero as predicted", *rest]))
        return "; ".join(said)


@dataclass(frozen=True, repr=False)
class Report(Rendered):
    """Everything a run showed.

    Attributes:
        rows: predicted quantities that were measured.
        claims: what was claimed, judged the same way.
        later: fits of what was measured after the last step with predictions.
        sizes, dims: n, and the dimensions there.
        means: log2 of the root-mean-square over seeds and its standard error at every n, for pictures.
        incomplete: why the run is not complete; empty if it is.
        unmeasured: predicted quantities that this model or optimizer does not measure.
        required: share of the rows that are not predicted to be exactly zero which must agree.
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

    @property
    def judged(self) -> tuple[ReportRow, ...]:
        """The rows that decide: the claims if there are any."""
        return self.claims or self.rows

    @property
    def counts(self) -> dict[str, int]:
        """Number of judged rows by verdict."""
        found = Counter(row.verdict for row in self.judged)
        return {str(v): found[v] for v in Verdict}

    @property
    def tally(self) -> Tally:
        """Of the judged rows."""
        return Tally.of(self.judged)

    @property
    def exit_code(self) -> int:
        """See the module text."""
        if self.incomplete:
            return 130 if self.incomplete == INTERRUPTED else 3
        if not all(g.passed for g in self.gates):
            return 3
        tally = self.tally
        return 1 if tally.refuted else 0 if tally.enough(self.required) else 3

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
            "incomplete": self.incomplete or None,
            "later": [{"quantity": q, "step": t, **_fit_json(f)} for (q, t), f in self.later.items()],
            "environment": dict(self.environment),
            "exit_code": self.exit_code,
        }

    @property
    def about(self) -> str:
        return self.closing

    @property
    def conditions(self) -> str:
        """One line: optimizer, device, versions, time and memory."""
        e = self.environment
        if "device" not in e:
            return "nothing was measured"
        memory = e.get("peak_memory_bytes")
        peak = f"peak memory {memory / 2**20:.0f} MiB" if memory else "peak memory unknown"
        speed = f", {e['entries_per_second'] / 1e6:.0f} million entries a second" if "entries_per_second" in e else ""
        live = e.get("predicted_with") == "moe-sigmoid"
        gates = "; predicted with the gate in the dynamics (moe-sigmoid), as M > N" if live else ""
        return (
            f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}, "
            f"{e['wall_seconds']:.1f} s, {peak}{speed}{gates}"
        )

    @property
    def closing(self) -> str:
        """One line: the counts, and what voids them."""
        tally, failed = self.tally, sum(not g.passed for g in self.gates)
        void = ""
        if self.incomplete:
            void = self.incomplete
        elif failed:
            void = f"{failed} of {len(self.gates)} gates failed"
        elif not tally.refuted and not tally.enough(self.required):
            void = f"fewer than {self.required} of the exponents agree"
        told = f"{'claims: ' if self.claims else ''}{tally}"
        return f"{told}; {void}, so the run is INCONCLUSIVE" if void else told


def judge(
    measurement: Measurement | Logged,
    prediction: Predicted,
    claims: Sequence[Claim] = (),
    required: Fraction = REQUIRED,
    powers: Powers | None = None,
    network: Network | None = None,
) -> Report:
    """Judges every predicted quantity that was measured, and every claim. Needs no torch.

    Args:
        measurement: of ``measure``, or what somebody else logged: a CSV file, or rows with quantity, n, seed, value and
            perhaps step.
        prediction: by quantity an exponent, or one for each step; or what ``signals`` gives.
        required: share of the rows that are not predicted to be exactly zero which must agree.
        powers: what every size is a sum of; by default what the engine finds, if the prediction is of ``signals``.
        network: whose functions may have arguments too large for a verdict; by default that of ``signals``, too.

    Raises:
        UsageError: a claim about a quantity or step that was not measured, or a log that cannot be used.
    """
    ray = prediction.derivation.ray if isinstance(prediction, Signals) else None
    if network is None and isinstance(prediction, Signals):
        network = prediction.derivation.network
    if powers is None and isinstance(prediction, Signals):
        powers = prediction.derivation.analysis().powers
    m = measurement if isinstance(measurement, Measurement) else logged(measurement, ray)
    prediction = exponents(prediction, m.steps)
    for claim in claims:
        claim.check(m.names or prediction, m.steps)
    spacing, spoilt = spacing_of(m), below_floor(m)
    fits: dict[tuple[str, int], Fit] = {}

    def own(quantity: str, step: int) -> Fraction | None:
        """The prediction itself, to which the other powers belong; a claim is judged by its slope."""
        series = prediction.get(quantity, ())
        return series[step] if step < len(series) else None

    def row(quantity: str, step: int, predicted: Fraction | None) -> ReportRow:
        key = quantity, step
        if key not in fits:
            fits[key] = fit_of(m, quantity, step)
        verdict, note = judge_exponent(fits[key], predicted, spacing), ""
        if fits[key].zero and predicted is not None and any(v.any() for v in m.values.get(key, [])):
            verdict, note = Verdict.INCONCLUSIVE, "below the rounding of what it is a part of"
        if key in spoilt:
            verdict, note = Verdict.INCONCLUSIVE, f"rounding: {spoilt[key]:.0%} away from float64"
        mine = predicted is not None and own(*key) == predicted
        if verdict is Verdict.REFUTED and mine and network and (why := beyond(m, network, prediction, *key)):
            verdict, note = Verdict.INCONCLUSIVE, f"{why}; smaller learning rates or larger sizes"
        if note or verdict is Verdict.AGREES or predicted is None:
            return ReportRow(quantity, step, predicted, fits[key], verdict, note)
        found = spectrum_of(m, quantity, step, predicted, powers)
        if verdict is Verdict.REFUTED and found and found.verdict is Verdict.AGREES:
            verdict, note = Verdict.INCONCLUSIVE, f"n^({predicted}) is seen beside a larger next power"
        elif verdict is Verdict.REFUTED and found and powers and mine:
            below = _below(m, quantity, step, predicted, powers, EVERY)
            if fits[key].high < predicted and mixed(m.sizes, m.cleaned(quantity, step), below):
                note = f"n^({predicted}) may lie below a larger next power; larger sizes"
            elif (parts := _parts(m, quantity, step)) and not any(refuted(x, step) for x in parts):
                note = f"neither {parts[0]} nor {parts[1]}, of which it is the quotient, is refuted; larger sizes"
            verdict = Verdict.INCONCLUSIVE if note else verdict
        return ReportRow(quantity, step, predicted, fits[key], verdict, note, found)

    def refuted(quantity: str, step: int) -> bool:
        predicted = own(quantity, step)
        return predicted is None or row(quantity, step, predicted).verdict is Verdict.REFUTED

    known = set(m.names)
    asked = [(q, t, p) for q, series in prediction.items() if q in known for t, p in enumerate(series[: m.steps + 1])]
    asked = [one for one in asked if not m.logged or one[:2] in m.values]
    rows = [row(*one) for one in asked]
    claimed = []
    for claim in claims:
        at = range(m.steps + 1) if claim.step is None else [claim.step]
        found = [row(claim.quantity, t, claim.exponent) for t in at]
        if claim.step is None and claim.exponent is not None:
            found = [r for r in found if not r.fit.zero] or found[-1:]
        claimed += found
    incomplete = INTERRUPTED if m.interrupted else f"{m.missing} cells missing" if m.missing else ""
    checks = gates(m, spacing) if m.sizes or not incomplete else []  # a run that never began fails none
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
        required,
    )


def fit_of(m: Measurement, quantity: str, step: int) -> Fit:
    """Fit of one quantity; values below rounding of the family it is a part of (``h3.D`` of ``h3``) count as zero."""
    return fit(m.sizes, m.cleaned(quantity, step), m.level)


def spectrum_of(
    m: Measurement, quantity: str, step: int, predicted: Fraction, powers: Powers | None = None
) -> Spectrum | None:
    """One quantity as a sum of the predicted power and the next ones, and whether it needs a larger one.

    Args:
        powers: what it is a sum of; by default any power of the grid.
    """
    below = _below(m, quantity, step, predicted, powers, MOST)
    return spectrum(m.sizes, m.cleaned(quantity, step), below, predicted + spacing_of(m), m.level)


def _below(
    m: Measurement, quantity: str, step: int, predicted: Fraction, powers: Powers | None, most: int
) -> tuple[Fraction, ...]:
    """The predicted power and the next ones."""
    known = None
    with suppress(LookupError, UsageError):  # undecided, or no quantity of the engine
        known = powers(quantity, step) if powers else None
    rates = {m.ray[axis] for axis in AXES} - {Fraction(0)}
    return powers_below(predicted, spacing_of(m), rates, known, most)


def _parts(m: Measurement, quantity: str, step: int) -> tuple[str, str] | None:
    """Of a quotient, what is divided and, seed by seed, what it is divided by, if both were measured."""
    whole = quantity.removesuffix(QUOTIENT)
    if whole == quantity or (whole, step) not in m.values:
        return None
    product = [np.concatenate(m.values[key]) for key in ((whole, step), (quantity, step))]
    for (name, t), values in m.values.items():
        if t == step and np.allclose(product[1] * np.concatenate(values), product[0], rtol=1e-3, atol=0):
            return whole, name
    return None


def spacing_of(m: Measurement) -> Fraction:
    """Exponents are half-integer combinations of the rates of the axes, hence multiples of this."""
    return Fraction(1, 2 * math.lcm(*(m.ray[axis].denominator for axis in AXES)))


def _fit_json(f: Fit) -> dict[str, Any]:
    return {
        "measured_zero": f.zero,
        "slope": number(f.slope),
        "se": number(f.se),
        "ci": None if math.isnan(f.slope) else [number(f.low), number(f.high)],
        "sizes": f.sizes,
        "seeds": f.seeds,
    }


def number(x: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(x) or math.isinf(x) else round(x, 6)
