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

from .claims import Claim
from .fit import DRIFT, MIN_SEEDS, Fit, Verdict, compute_log_means, fit_exponent, judge_exponent
from .gates import RunGate, build_gates, check_floor, check_planted_exponents, check_standard_refuted, find_rounded
from .large_arguments import find_large_argument
from .logged import Logged, Predicted, read_exponents, read_log
from .measurement import Measurement, Prediction
from .mixtures import DEEP, SEEN, TRACE, Powers, bound_share, list_powers_below
from .report import INTERRUPTED, REQUIRED, Report, ReportRow

HELD = "a norm cancels what gates held at mean and slope (assumption B2) leave alike; they move"
ALONE = 0.25
"""If one seed has at least this share of a mean square over many seeds, the slope says nothing about the others."""
FEW = (
    "one seed contributes {:.0%} of the mean square, and the geometric mean does not refute; choose a smaller rate "
    "or more seeds"
)
QUOTIENT = ".normalised"
"""Suffix of a quantity that is, seed by seed, another quantity divided by the size of its input."""


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
        measurement: the result of ``measure``; or a log: a CSV file, or rows with quantity, n, seed, value and
            optionally step.
        prediction: by quantity an exponent, or one for each step; or the result of ``signals``.
        claims: further exponents to judge, given by the user.
        required: share of the rows not predicted to be exactly zero that must agree.
        powers: for every quantity and step, the powers of n whose sum is its size (see ``mixtures.Powers``); by default
            those of the engine, if the prediction is a result of ``signals``.
        network: the network, whose functions are checked for arguments too large for a verdict; by default that of
            ``signals``.
        direct: quantities that consist of a single product with a single power of n; a slope below their prediction
            refutes it, and cannot be due to another term that is still larger at these sizes.

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
        moved = _bound_with_moving_gates(derivation)
    m = measurement if isinstance(measurement, Measurement) else read_log(measurement, ray)
    by_quantity = read_exponents(prediction, m.steps)
    undecided: set[tuple[str, int]] = set()
    if isinstance(prediction, Signals):  # undecided quantities are compared with the demand on them
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
    rule = _Judge(m, by_quantity, compute_spacing(m), powers, network, find_rounded(m), direct, moved)
    measured = set(m.names)
    cells = [(q, t, p) for q, row in by_quantity.items() if q in measured for t, p in enumerate(row[: m.steps + 1])]
    cells = [cell for cell in cells if not m.logged or cell[:2] in m.values]
    rows = [rule.judge_row(q, t, p) for q, t, p in cells if not isinstance(p, EllipsisType)]
    last = max((t for _, t, _ in cells), default=m.steps)
    rows = [_judge_by_demand(x, asked[x.quantity]) if (x.quantity, x.step) in undecided else x for x in rows]
    undecided -= {(x.quantity, x.step) for x in rows}
    incomplete = INTERRUPTED if m.interrupted else f"{count_noun(m.missing, 'cell')} missing" if m.missing else ""
    checks = build_gates(m, rule.spacing) if m.sizes or not incomplete else []  # a run that never started fails no gate
    return Report(
        tuple(rows),
        tuple(row for claim in claims for row in rule.judge_claim(claim)),
        (*checks, *rule.build_control_gates(rows)),
        m.environment,
        tuple(m.sizes),
        tuple(m.dims),
        incomplete,
        tuple(q for q in by_quantity if measured and q not in measured),
        {(q, t): fit_quantity(m, q, t) for q, t in m.values if t > last and q in by_quantity},
        {key: compute_log_means(series) for key, series in m.values.items() if key[0] in by_quantity},
        required,
        tuple(q for q in m.names if q in {x for x, _ in undecided} or (m.logged and q not in by_quantity)),
    )


def _judge_by_demand(row: ReportRow, asked: OpenDemand) -> ReportRow:
    """Returns the row of a quantity whose exponent the engine leaves undecided, with a note that says so. Such a row
    was
    judged by the exponent that the demand on the quantity sets.

    This exponent is only an upper bound, so that a smaller measured size becomes INCONCLUSIVE and not REFUTED.

    Args:
        row: the row as judged.
        asked: the demand.
    """
    verdict, note = row.verdict, row.note
    if verdict is Verdict.REFUTED and (row.fit.zero or row.fit.high < (asked.most or 0)):
        verdict, note = (
            Verdict.INCONCLUSIVE,
            "below its upper bound; the desideratum is about the largest of several sizes, or only about some step",
        )
    return replace(row, verdict=verdict, note=f"undecided; {asked.demand}{f'; {note}' if note else ''}")


@dataclass
class _Judge:
    """Judges the quantities of one measurement.

    Attributes:
        m: the measurement.
        prediction: exponents by quantity and step.
        spacing: the exponents that could occur are multiples of this.
        powers: all powers of n in every quantity (see ``mixtures.Powers``); None if unknown.
        network: the network, whose functions are checked for large arguments; None for no check.
        spoilt: for quantities dominated by rounding, their relative difference from float64.
        direct: quantities that consist of a single product with a single power of n (see ``judge``).
        moved: gives an upper bound on the exponent of a quantity if gates change during training; None if the network
            has
            no gates that matter here (see ``_bound_with_moving_gates``).
        fits: cache of the fits.
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

    def get_prediction(self, quantity: str, step: int) -> Fraction | None:
        """Returns the predicted exponent of a quantity after ``step`` updates; None if it is predicted to be exactly
        zero, or if there is no prediction.
        """
        series = self.prediction.get(quantity, ())
        cell = series[step] if step < len(series) else None
        return None if isinstance(cell, EllipsisType) else cell

    def judge_row(self, quantity: str, step: int, predicted: Fraction | None) -> ReportRow:
        """Judges one exponent, which may be a prediction or a claim, and returns the row of the report.

        Args:
            quantity: name of the quantity.
            step: number of updates done.
            predicted: the exponent; None for exactly zero.
        """
        m, key = self.m, (quantity, step)
        if key not in self.fits:
            self.fits[key] = fit_quantity(m, quantity, step)
        measured = self.fits[key]
        verdict, note = judge_exponent(measured, predicted, self.spacing), ""
        if measured.zero and predicted is not None and any(v.any() for v in m.values.get(key, [])):
            verdict, note = Verdict.INCONCLUSIVE, "smaller than the rounding error of the signal of which it is a part"
        if key in self.spoilt and not measured.unfit:
            verdict, note = Verdict.INCONCLUSIVE, f"rounding: {self.spoilt[key]:.0%} away from float64"
        is_prediction = predicted is not None and self.get_prediction(*key) == predicted
        doubted = verdict is Verdict.REFUTED and is_prediction
        if doubted and self.network and (why := find_large_argument(m, self.network, self.prediction, *key)):
            verdict, note = Verdict.INCONCLUSIVE, f"{why}; choose smaller learning rates or larger sizes"
        if note or verdict is not Verdict.REFUTED or predicted is None:
            return ReportRow(quantity, step, predicted, measured, verdict, note)
        part = bound_share_of(m, quantity, step, predicted, self.powers)
        note = self._find_doubt(quantity, step, predicted, measured, part or (0.0, 0.0), is_prediction)
        return ReportRow(quantity, step, predicted, measured, Verdict.INCONCLUSIVE if note else verdict, note, part)

    def _find_doubt(
        self, quantity: str, step: int, predicted: Fraction, measured: Fit, part: tuple[float, float], own: bool
    ) -> str:
        """Returns a reason why a refuted exponent may still be right, or "" if there is none.

        Args:
            quantity: its name.
            step: number of updates done.
            predicted: the exponent.
            measured: the fit that refutes it.
            part: bounds on the share that the predicted power has of the quantity (see ``mixtures.bound_share``).
            own: whether the exponent is the prediction and not a claim, so that the engine's other powers of n in this
                quantity apply.
        """
        if part[0] >= SEEN:
            return f"the predicted n^({predicted}) is seen, beside a larger correction that fades"
        if not measured.zero and (few := self._explain_one_seed(quantity, step, predicted)):
            return few
        if not own:
            return ""
        doubt, parts = "", _find_quotient_parts(self.m, quantity, step)
        if judge_exponent(measured, predicted, self.spacing, later=True) is not Verdict.REFUTED:
            doubt = f"the slope moves towards {predicted} from one pair of sizes to the next; choose larger sizes"
        elif self.powers and measured.high < predicted and part[1] >= TRACE and quantity not in self.direct:
            doubt = f"the predicted n^({predicted}) may be hidden by a larger correction that fades; try larger sizes"
        elif self.powers and parts and not any(self._is_refuted(part, step) for part in parts):
            doubt = f"it is the quotient of {parts[0]} and {parts[1]}, neither of which is refuted; choose larger sizes"
        if doubt and self._is_far_from_powers(quantity, step):
            return ""
        if doubt or not self.moved or not step or measured.low <= predicted or quantity.endswith(QUOTIENT):
            return doubt
        return HELD if self.moved(quantity) is None else ""

    def _explain_one_seed(self, quantity: str, step: int, predicted: Fraction) -> str:
        """Returns a note if a refutation may be due to one seed, otherwise "". This is so if one seed dominates the
        mean
        square over seeds, and the geometric mean over seeds, which no single seed dominates, does not refute the
        prediction.
        """
        square = [np.square(v) for v in self.m.get_cleaned(quantity, step)]
        alone = max(float(x.max() / x.sum()) for x in square)
        if alone < max(ALONE, MIN_SEEDS / min(map(len, square))):
            return ""
        usual = fit_exponent(self.m.sizes, self.m.get_cleaned(quantity, step), typical=True)
        refuted = judge_exponent(usual, predicted, self.spacing) is Verdict.REFUTED
        return FEW.format(alone) if math.isfinite(usual.slope) and not refuted else ""

    def _is_far_from_powers(self, quantity: str, step: int) -> bool:
        """Whether every slope between neighbouring sizes differs by at least one (up to ``DRIFT``) from each exponent
        of n that the quantity is known to contain, so that no mixture of them explains it.
        """
        known: Iterable[tuple[Fraction, bool]] = ()
        with suppress(LookupError, UsageError):
            known = tuple(self.powers(quantity, step)) if self.powers else ()
        y = compute_log_means(self.m.get_cleaned(quantity, step))[0]
        slopes = np.diff(y) / np.diff(np.log2(self.m.sizes))
        return bool(known) and all(abs(x - float(e)) >= 1 - DRIFT for x in slopes for e, _ in known)

    def _is_refuted(self, quantity: str, step: int) -> bool:
        """Whether the measured values of a quantity refute its predicted exponent. Also true if the quantity has no
        predicted exponent.
        """
        predicted = self.get_prediction(quantity, step)
        return predicted is None or self.judge_row(quantity, step, predicted).verdict is Verdict.REFUTED

    def judge_claim(self, claim: Claim) -> list[ReportRow]:
        """Returns the rows of a claim: one if it names a step, otherwise one for every step. If an exponent is
        claimed for
        every step, steps at which the quantity is exactly zero are left out, but for the last one if it is always zero.
        """
        steps = range(self.m.steps + 1) if claim.step is None else [claim.step]
        rows = [self.judge_row(claim.quantity, t, claim.exponent) for t in steps]
        if claim.step is None and claim.exponent is not None:
            rows = [r for r in rows if not r.fit.zero] or rows[-1:]
        return rows

    def build_control_gates(self, rows: Sequence[ReportRow]) -> list[RunGate]:
        """Returns the checks of the run that need judged predictions (``rows``): wrong exponents must be refuted, and
        so must predictions in the standard parameterization, and rounding must not dominate.
        """
        checks = []
        agreeing = [(r.fit, r.predicted) for r in rows if r.predicted is not None and r.verdict is Verdict.AGREES]
        if agreeing:
            checks.append(check_planted_exponents(agreeing, self.spacing))
        if self.m.standard:
            standard = replace(self.m, values=self.m.standard)
            keys = [(r.quantity, r.step, r.predicted) for r in rows if (r.quantity, r.step) in standard.values]
            fitted = [judge_exponent(fit_quantity(standard, q, t), p, self.spacing) for q, t, p in keys]
            checks.append(check_standard_refuted(fitted))
        if self.m.exact:
            checks.append(check_floor(self.m))
        return checks


def _bound_with_moving_gates(d: Derivation) -> Callable[[str], Fraction | None] | None:
    """Returns a function quantity -> upper bound on its exponent (None if there is none) that does not rely on constant
    gates, or None if the network has no gates that matter here.

    Predictions treat gates as constants during training. A norm can cancel terms that share one gate, but not terms
    whose gates have moved apart, so that such a quantity may be larger than predicted.
    """
    network = replace_gates(d.network) if d.network.norms else d.network
    return (
        None
        if network == d.network
        else replace(d, configuration=d.configuration.but(network=network)).analysis().upper
    )


def fit_quantity(m: Measurement, quantity: str, step: int) -> Fit:
    """Fits the exponent of n of one quantity after ``step`` updates. Values below the rounding error of the signal of
    which it is a part (``h3`` for ``h3.D``) count as zero.
    """
    return fit_exponent(m.sizes, m.get_cleaned(quantity, step))


def bound_share_of(
    m: Measurement, quantity: str, step: int, predicted: Fraction, powers: Powers | None = None
) -> tuple[float, float] | None:
    """Bounds how large a part of one measured quantity the predicted power of n can be (see ``mixtures.bound_share``).

    Args:
        m: the measurement.
        quantity: its name.
        step: number of updates done.
        predicted: the exponent.
        powers: gives the powers of n of which the quantity is a sum (see ``mixtures.Powers``); by default any possible
            exponent may occur. It is called only if some sum of possible powers can contain the predicted one.
    """
    values, spacing, engine_powers = m.get_cleaned(quantity, step), compute_spacing(m), None
    at_most = bound_share(m.sizes, values, [predicted - k * spacing for k in range(DEEP)]) if powers else None
    if powers and (at_most is None or at_most[1] < TRACE):
        return at_most
    with suppress(LookupError, UsageError):  # undecided, or no quantity of the engine
        engine_powers = powers(quantity, step) if powers else None
    rates = {m.ray[axis] for axis in m.ray.axes} - {Fraction(0)}
    return bound_share(m.sizes, values, list_powers_below(predicted, spacing, rates, engine_powers))


def _find_quotient_parts(m: Measurement, quantity: str, step: int) -> tuple[str, str] | None:
    """Returns the names of the numerator and the denominator if the quantity is a quotient of two measured quantities,
    otherwise None.
    """
    whole = quantity.removesuffix(QUOTIENT)
    if whole == quantity or (whole, step) not in m.values:
        return None
    product = [np.concatenate(m.values[key]) for key in ((whole, step), (quantity, step))]
    for (name, t), values in m.values.items():
        if t == step and np.allclose(product[1] * np.concatenate(values), product[0], rtol=1e-3, atol=0):
            return whole, name
    return None


def compute_spacing(m: Measurement) -> Fraction:
    """Returns the distance between neighbouring possible exponents of n, which are half-integer combinations of the
    growth rates of the axes on the ray of the measurement.
    """
    return Fraction(1, 2 * math.lcm(*(m.ray[axis].denominator for axis in m.ray.axes)))
