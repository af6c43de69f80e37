"""Kinds of rows of a check: where the prediction of a row comes from, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from types import EllipsisType

from scaling_algebra.verify.judging.report import Report, ReportRow

NEAR = 0.25
"""A slope within this distance of its prediction is nearer to it than to the next possible exponent, half a power
away."""
TOLERANCE = 0.1
"""Distance of a slope from a bound that noise explains."""
CERTIFIED, DEMANDED, BY_SHAPE = "certified", "demand", "by shape"
"""Where the prediction of a row comes from: an exponent of the engine, the upper bound that a demand sets, or the
law of shapes (equations unknown)."""
DIRECT = (".init", ".update")
"""Suffixes of quantities that depend on one tensor's own init std or learning rate only (the signal made by its
initial values, or by its update), if their exponent is the same at every step."""
Cell = Fraction | None | EllipsisType


def add_levels(report: Report, level: Callable[[ReportRow], str]) -> Report:
    """Returns the report with the attribute ``level`` of every row set to the result of the function ``level``: what
    the prediction of this row rests on, such as "certified" or "by shape".
    """
    return replace(report, rows=tuple(replace(r, level=level(r)) for r in report.rows))


def has_single_power(cells: Sequence[Cell]) -> bool:
    """Whether the exponents of a quantity at all steps are decided (not ``...``) and equal; steps at which it is
    exactly zero (None) are ignored.
    """
    return ... not in cells and len({e for e in cells if e is not None}) < 2
