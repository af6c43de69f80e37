"""Finds the refuted row of a report that most likely causes the others."""

from __future__ import annotations

import numpy as np

from scaling_algebra.verify.judging.fit import DRIFT, Verdict
from scaling_algebra.verify.judging.report import Report, ReportRow

from .rows import DIRECT, NEAR


def find_first_to_blame(report: Report) -> ReportRow | None:
    """Returns the row that most likely causes the refuted rows of a report, or None if no row is refuted.

    Candidates are the refuted rows, and those inconclusive ``DIRECT`` rows (which depend on the init std or learning
    rate of one tensor only) whose slope lies nearer to another possible exponent than to the predicted one. They are
    compared by these criteria in turn: rows that agree if the smallest sizes are left out come last; earlier steps come
    first; then ``DIRECT`` rows; then refuted rows; then rows that are computed earlier, since later failures may be
    their consequences.
    """
    if not (refuted := [r for r in report.rows if r.verdict is Verdict.REFUTED]):
        return None
    suspects = [r for r in report.rows if r in refuted or _is_nearer_to_another(r)]

    def rank(r: ReportRow) -> tuple[bool, int, bool, bool]:
        return _agrees_at_larger_sizes(report, r), r.step, not r.quantity.endswith(DIRECT), r not in refuted

    return min(suspects, key=rank)


def _is_nearer_to_another(r: ReportRow) -> bool:
    """Whether a row is inconclusive and ``DIRECT`` (it depends on the init std or learning rate of one tensor only),
    and its slope lies nearer to another possible exponent than to the predicted one.
    """
    if r.predicted is None or r.fit.zero or r.note or not r.quantity.endswith(DIRECT):
        return False
    apart = r.apart > DRIFT and abs(r.fit.slope - float(r.predicted)) > NEAR
    return apart and r.verdict is Verdict.INCONCLUSIVE


def _agrees_at_larger_sizes(report: Report, r: ReportRow) -> bool:
    """Whether the slope of a row is the predicted one if the two smallest sizes are left out (only the smallest if
    there
    are three sizes).
    """
    if r.predicted is None or r.fit.zero or (r.quantity, r.step) not in report.means:
        return False
    left = slice(min(2, len(report.sizes) - 2), None)
    slope = np.polyfit(np.log2(report.sizes[left]), report.means[r.quantity, r.step][0][left], 1)[0]
    return bool(abs(slope - float(r.predicted)) < DRIFT)
