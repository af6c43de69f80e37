"""Compares a measurement with predicted exponents and with claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import EllipsisType

import numpy as np

from scaling_algebra.errors import UsageError, count_noun, quote_value
from scaling_algebra.solver.derivation import Derivation, Signals
from scaling_algebra.spec.level import Level, OpenDemand
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import replace_gates

from .arguments import beyond
from .claims import Claim
from .fit import DRIFT, MIN_SEEDS, Fit, Verdict, fit, judge_exponent, means
from .gates import RunGate, below_floor, floor, gates, planted, standard_refuted
from .logged import Logged, Predicted, exponents, logged
from .measurement import Measurement, Prediction
from .mixtures import DEEP, SEEN, TRACE, Powers, powers_below, share
from .report import INTERRUPTED, REQUIRED, Report, ReportRow

HELD = "a norm cancels what gates held at mean and slope (assumption B2) leave alike; they move"
ALONE = 0.25
"""Share of a mean square over many seeds from which one seed makes it."""
FEW = "one seed makes {:.0%} of the mean square, and the geometric mean refutes nothing; a smaller rate, more seeds"
QUOTIENT = ".normalised"
"""The ending of the name of a quantity that is another one, seed by seed, over the size of what that reads."""


@np.errstate(over="ignore", invalid="ignore")
def judge(
    measurement: Measurement | Logged,
    prediction: Predicted,
    claims: Sequence[Claim] = (),
    required: Fraction = REQUIRED,
    powers: Powers | None = None,
    network: Network | None = None,
    direct: Container[str] = (),
) -> Report:
    """Judges every predicted quantity that was measured, and every claim. Needs no torch.

    Args:
        measurement: of ``measure``, or what somebody else logged: a CSV file, or rows with quantity, n, seed, value and
            perhaps step.
        prediction: by quantity an exponent, or one for each step; or what ``signals`` gives.
        required: share of the rows that are not predicted to be exactly zero which must agree.
        powers: what every size is a sum of; by default what the engine finds, if the prediction is of ``signals``.
        network: whose functions may have arguments too large for a verdict; by default that of ``signals``, too.
        direct: quantities that are one product at one power; a slope below the prediction refutes it there, and no
            trace of the predicted power under a larger next one is looked for.

    Raises:
        UsageError: a claim about a quantity or step that was not measured, or a log that cannot be used.
    """
    if not 0 <= required <= 1:
        raise UsageError(f"required is {quote_value(required)}; give a share from 0 to 1")
    ray, moved, asked = None, None, dict[str, OpenDemand]()
    if isinstance(prediction, Signals):
        derivation = prediction.derivation
        asked = {x.quantity: x for x in (derivation.level or Level()).open if x.most is not None}
        ray, network, powers = derivation.ray, network or derivation.network, powers or derivation.analysis().powers
        moved = _moved(derivation)
    m = measurement if isinstance(measurement, Measurement) else logged(measurement, ray)
    by_quantity = exponents(prediction, m.steps)
    undecided: set[tuple[str, int]] = set()
    if isinstance(prediction, Signals):  # what is undecided is held against the demand on it
        answers = {q: row[: m.steps + 1] for q, row in prediction.quantities.items()}
        undecided = {(q, t) for q, row in answers.items() for t, a in enumerate(row) if not a.decided}
        demanded = {
            q: [a.exponent if a.decided else Fraction(x.most or 0) for a in answers[q]]
            for q, x in asked.items()
            if answers.get(q) and answers[q][0].decided
        }
        by_quantity = {**by_quantity, **demanded}
    for claim in claims:
        claim.check(m.names or by_quantity, m.steps)
    rule = _Judge(m, by_quantity, spacing_of(m), powers, network, below_floor(m), direct, moved)
    measured = set(m.names)
    cells = [(q, t, p) for q, row in by_quantity.items() if q in measured for t, p in enumerate(row[: m.steps + 1])]
    cells = [cell for cell in cells if not m.logged or cell[:2] in m.values]
    rows = [rule.row(q, t, p) for q, t, p in cells if not isinstance(p, EllipsisType)]
    last = max((t for _, t, _ in cells), default=m.steps)
    rows = [_demanded(x, asked[x.quantity]) if (x.quantity, x.step) in undecided else x for x in rows]
    undecided -= {(x.quantity, x.step) for x in rows}
    incomplete = INTERRUPTED if m.interrupted else f"{count_noun(m.missing, 'cell')} missing" if m.missing else ""
    checks = gates(m, rule.spacing) if m.sizes or not incomplete else []  # a run that never began fails none
    return Report(
        tuple(rows),
        tuple(row for claim in claims for row in rule.claimed(claim)),
        (*checks, *rule.controls(rows)),
        m.environment,
        tuple(m.sizes),
        tuple(m.dims),
        incomplete,
        tuple(q for q in by_quantity if measured and q not in measured),
        {(q, t): fit_of(m, q, t) for q, t in m.values if t > last and q in by_quantity},
        {key: means(series) for key, series in m.values.items() if key[0] in by_quantity},
        required,
        tuple(q for q in m.names if q in {x for x, _ in undecided} or (m.logged and q not in by_quantity)),
    )


def _demanded(row: ReportRow, asked: OpenDemand) -> ReportRow:
    """A row of a size that is undecided, held against the demand on it: at most that. What is smaller may be so with
    others, or at this step."""
    verdict, note = row.verdict, row.note
    if verdict is Verdict.REFUTED and (row.fit.zero or row.fit.high < (asked.most or 0)):
        verdict, note = Verdict.INCONCLUSIVE, "below what is demanded of it with others, or at some step"
    return replace(row, verdict=verdict, note=f"undecided; {asked.demand}{f'; {note}' if note else ''}")


@dataclass
class _Judge:
    """The rule for one measurement.

    Attributes:
        spoilt: relative distance from float64 of what rounding spoils.
        moved: bounds of the same quantities where gates that the prediction holds move; None where it holds none.
        fits: of the quantities judged so far.
    """

    m: Measurement
    prediction: Prediction
    spacing: Fraction
    powers: Powers | None
    network: Network | None
    spoilt: Mapping[tuple[str, int], float]
    direct: Container[str]
    moved: Callable[[str], Fraction | None] | None = None
    fits: dict[tuple[str, int], Fit] = field(default_factory=dict)

    def predicted(self, quantity: str, step: int) -> Fraction | None:
        """The prediction itself, to which the other powers belong; a claim is judged by its slope."""
        series = self.prediction.get(quantity, ())
        cell = series[step] if step < len(series) else None
        return None if isinstance(cell, EllipsisType) else cell

    def row(self, quantity: str, step: int, predicted: Fraction | None) -> ReportRow:
        """The verdict on one exponent, predicted or claimed."""
        m, key = self.m, (quantity, step)
        if key not in self.fits:
            self.fits[key] = fit_of(m, quantity, step)
        measured = self.fits[key]
        verdict, note = judge_exponent(measured, predicted, self.spacing), ""
        if measured.zero and predicted is not None and any(v.any() for v in m.values.get(key, [])):
            verdict, note = Verdict.INCONCLUSIVE, "below the rounding of what it is a part of"
        if key in self.spoilt and not measured.unfit:
            verdict, note = Verdict.INCONCLUSIVE, f"rounding: {self.spoilt[key]:.0%} away from float64"
        is_prediction = predicted is not None and self.predicted(*key) == predicted
        doubted = verdict is Verdict.REFUTED and is_prediction
        if doubted and self.network and (why := beyond(m, self.network, self.prediction, *key)):
            verdict, note = Verdict.INCONCLUSIVE, f"{why}; smaller learning rates or larger sizes"
        if note or verdict is not Verdict.REFUTED or predicted is None:
            return ReportRow(quantity, step, predicted, measured, verdict, note)
        part = share_of(m, quantity, step, predicted, self.powers)
        note = self._doubt(quantity, step, predicted, measured, part or (0.0, 0.0), is_prediction)
        return ReportRow(quantity, step, predicted, measured, Verdict.INCONCLUSIVE if note else verdict, note, part)

    def _doubt(
        self, quantity: str, step: int, predicted: Fraction, measured: Fit, part: tuple[float, float], own: bool
    ) -> str:
        """Why an exponent may hold although the slope refutes it; empty if it may not. ``own``: it is the prediction,
        to which the other powers belong."""
        if part[0] >= SEEN:
            return f"the predicted n^({predicted}) is seen, beside a larger correction that fades"
        if not measured.zero and (few := self._few(quantity, step, predicted)):
            return few
        if not own:
            return ""
        doubt, parts = "", _parts(self.m, quantity, step)
        if judge_exponent(measured, predicted, self.spacing, later=True) is not Verdict.REFUTED:
            doubt = f"moves towards {predicted} from pair to pair of sizes; take larger sizes"
        elif self.powers and measured.high < predicted and part[1] >= TRACE and quantity not in self.direct:
            doubt = f"the predicted n^({predicted}) may be hidden by a larger correction that fades; try larger sizes"
        elif self.powers and parts and not any(self._refuted(part, step) for part in parts):
            doubt = f"neither {parts[0]} nor {parts[1]}, of which it is the quotient, is refuted; larger sizes"
        if doubt and self._elsewhere(quantity, step):
            return ""
        if doubt or not self.moved or not step or measured.low <= predicted or quantity.endswith(QUOTIENT):
            return doubt
        return HELD if self.moved(quantity) is None else ""

    def _few(self, quantity: str, step: int, predicted: Fraction) -> str:
        """Does one seed make a mean square, so that its slope says nothing, and what most seeds have refute nothing?"""
        square = [np.square(v) for v in self.m.cleaned(quantity, step)]
        alone = max(float(x.max() / x.sum()) for x in square)
        if alone < max(ALONE, MIN_SEEDS / min(map(len, square))):
            return ""
        usual = fit(self.m.sizes, self.m.cleaned(quantity, step), typical=True)
        refuted = judge_exponent(usual, predicted, self.spacing) is Verdict.REFUTED
        return FEW.format(alone) if math.isfinite(usual.slope) and not refuted else ""

    def _elsewhere(self, quantity: str, step: int) -> bool:
        """Between any two neighbouring sizes the slope lies a whole power from all that the engine has, up to drift."""
        known: Iterable[tuple[Fraction, bool]] = ()
        with suppress(LookupError, UsageError):
            known = tuple(self.powers(quantity, step)) if self.powers else ()
        y = means(self.m.cleaned(quantity, step))[0]
        slopes = np.diff(y) / np.diff(np.log2(self.m.sizes))
        return bool(known) and all(abs(x - float(e)) >= 1 - DRIFT for x in slopes for e, _ in known)

    def _refuted(self, quantity: str, step: int) -> bool:
        predicted = self.predicted(quantity, step)
        return predicted is None or self.row(quantity, step, predicted).verdict is Verdict.REFUTED

    def claimed(self, claim: Claim) -> list[ReportRow]:
        """The rows of a claim: of one about every step those where the quantity is not exactly zero."""
        steps = range(self.m.steps + 1) if claim.step is None else [claim.step]
        rows = [self.row(claim.quantity, t, claim.exponent) for t in steps]
        if claim.step is None and claim.exponent is not None:
            rows = [r for r in rows if not r.fit.zero] or rows[-1:]
        return rows

    def controls(self, rows: Sequence[ReportRow]) -> list[RunGate]:
        """Gates that need the predictions: wrong exponents, another parameterization, less precision."""
        checks = []
        agreeing = [(r.fit, r.predicted) for r in rows if r.predicted is not None and r.verdict is Verdict.AGREES]
        if agreeing:
            checks.append(planted(agreeing, self.spacing))
        if self.m.standard:
            standard = replace(self.m, values=self.m.standard)
            keys = [(r.quantity, r.step, r.predicted) for r in rows if (r.quantity, r.step) in standard.values]
            fitted = [judge_exponent(fit_of(standard, q, t), p, self.spacing) for q, t, p in keys]
            checks.append(standard_refuted(fitted))
        if self.m.exact:
            checks.append(floor(self.m))
        return checks


def _moved(d: Derivation) -> Callable[[str], Fraction | None] | None:
    """The bounds of a run with the held gates in its dynamics: what a norm takes away of terms with one gate it leaves
    of those whose gates moved apart."""
    network = replace_gates(d.network) if d.network.norms else d.network
    return (
        None
        if network == d.network
        else replace(d, configuration=d.configuration.but(network=network)).analysis().upper
    )


def fit_of(m: Measurement, quantity: str, step: int) -> Fit:
    """Fit of one quantity; values below rounding of the family it is a part of (``h3.D`` of ``h3``) count as zero."""
    return fit(m.sizes, m.cleaned(quantity, step))


def share_of(
    m: Measurement, quantity: str, step: int, predicted: Fraction, powers: Powers | None = None
) -> tuple[float, float] | None:
    """The share that the predicted power may have in one quantity (``mixtures.share``).

    Args:
        powers: what the quantity is a sum of, asked where a sum of any powers of the grid has a trace of the predicted
            one; by default any power.
    """
    values, spacing, engine_powers = m.cleaned(quantity, step), spacing_of(m), None
    at_most = share(m.sizes, values, [predicted - k * spacing for k in range(DEEP)]) if powers else None
    if powers and (at_most is None or at_most[1] < TRACE):
        return at_most
    with suppress(LookupError, UsageError):  # undecided, or no quantity of the engine
        engine_powers = powers(quantity, step) if powers else None
    rates = {m.ray[axis] for axis in m.ray.axes} - {Fraction(0)}
    return share(m.sizes, values, powers_below(predicted, spacing, rates, engine_powers))


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
    return Fraction(1, 2 * math.lcm(*(m.ray[axis].denominator for axis in m.ray.axes)))
