"""Predicts the exponents with which a check compares its measured series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import EllipsisType

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.verify.judging.mixtures import Powers
from scaling_algebra.verify.measuring.predictions import ALL, predict_briefly
from scaling_algebra.waiting import iterate_with_progress

from .rows import Cell


def predict_exponents(
    d: Derivation,
    zero: Sequence[str],
    names: Mapping[str, Sequence[str]],
    steps: int,
    moved: Mapping[str, Fraction],
    left: set[str],
) -> tuple[dict[str, Sequence[Cell]], dict[str, Cell], Powers]:
    """Predicts the exponents of the measured series (the values of one quantity of the module at all steps).

    Args:
        d: the derivation.
        zero: tensors that start at zero instead of as derived.
        names: by series, the quantities of the equations that it is compared with; several for repeated layers.
        steps: number of steps.
        moved: by signal, the exponent of n that is added to its own, since multipliers are folded into tensors before
            it.
        left: undecided signals that are demanded to be O(1), which is their bound where no other is known.

    Returns:
        Three results. By series, the exponent at every step, ``...`` where it is not certified or the quantities of
        one series differ. By series with such a step, an upper bound for all steps, ``...`` if none is known. And a
        function (series, step) -> all powers of n that occur in the series at this step, as ``Powers`` describes.
    """
    tensors = {role: replace(t, init_std=None) if role in zero else t for role, t in d.scaling.tensors.items()}
    point = replace(d.scaling, tensors=tensors).point(d.ray)
    analysis = Analysis(d.ray, point, d.optimizer, d.network)
    lows: dict[tuple[str, int], Fraction | None] = {}

    def more(quantity: str) -> Fraction:
        return moved.get(get_signal(quantity), Fraction(0))

    def cell(quantity: str, t: int) -> Cell:
        answer = predict_briefly(analysis, quantity, t)
        exponent = answer.exponent if answer.decided else ...
        lows[quantity, t] = answer.low if isinstance(answer.low, Fraction) else None
        return exponent + more(quantity) if isinstance(exponent, Fraction) else exponent

    def row(quantity: str) -> list[Cell]:
        return [cell(quantity, t) for t in range(1 if quantity.endswith(".init") else steps + 1)]

    def powers(name: str, t: int) -> list[tuple[Fraction, bool]]:
        if ... not in rows[name][t]:
            return [(e + more(x), seen) for x in names[name] for e, seen in analysis.powers(x, t)]
        if isinstance(bound := bounds[name], EllipsisType) or bound is None:
            raise LookupError(f"{name} at t={t} has no bound")
        shown = ((x, lows.get((x, t))) for x in names[name])
        return [(bound, False), *((e + more(x), True) for x, e in shown if e is not None)]

    def at_most(quantities: Sequence[str]) -> Cell:
        bounds = [Fraction(0) if (b := analysis.upper(x)) is None and get_signal(x) in left else b for x in quantities]
        known = [b + more(x) for b, x in zip(bounds, quantities, strict=True) if b is not None]
        return max(known) if known and len(known) == len(bounds) else ...

    asked = iterate_with_progress("predicting", "signals and parameters", list(names.items()))
    with analysis.meter.limit_work(ALL):
        rows = {name: list(zip(*map(row, quantities), strict=True)) for name, quantities in asked}
    predicted: dict[str, Sequence[Cell]] = {
        name: [cells[0] if len(set(cells)) == 1 else ... for cells in row] for name, row in rows.items()
    }
    bounds = {name: at_most(x) for name, x in names.items() if ... in predicted[name]}
    return predicted, bounds, powers


def get_signal(quantity: str) -> str:
    """Returns the signal that a quantity belongs to (``h`` of ``h.change``)."""
    return quantity.partition(".")[0]
