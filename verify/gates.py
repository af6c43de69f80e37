"""Checks that make a pass mean something; a failed one makes the whole run INCONCLUSIVE.

Read next: ``report.py`` (prints them and turns them into an exit code).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .fit import DRIFT, MIN_SEEDS, MIN_SIZES, fit

if TYPE_CHECKING:
    from .runs import Measurement


@dataclass(frozen=True)
class Gate:
    """A named check, whether it passed, and what was seen."""

    name: str
    passed: bool
    detail: str


def gates(m: Measurement) -> list[Gate]:
    """All gates of a measurement."""
    seeds = min((len(v) for series in m.values.values() for v in series), default=0)
    return [
        Gate("enough sizes", len(m.sizes) >= MIN_SIZES, f"{len(m.sizes)} sizes, at least {MIN_SIZES} needed"),
        Gate("enough seeds", seeds >= MIN_SEEDS, f"{seeds} seeds at the size with fewest, at least {MIN_SEEDS} needed"),
        Gate(
            "parameter counts differ",
            bool(m.parameters) and len(set(m.parameters)) == len(m.parameters),
            ", ".join(map(str, m.parameters)),
        ),
        Gate("same input at every size", len(set(m.inputs)) == 1, f"{len(set(m.inputs))} different inputs"),
        _finite(m),
        _flat(m),
    ]


def _finite(m: Measurement) -> Gate:
    bad = sorted({name for (name, _), series in m.values.items() if not all(np.isfinite(v).all() for v in series)})
    return Gate("measured values finite", bool(m.values) and not bad, "not finite: " + ", ".join(bad) if bad else "all")


def _flat(m: Measurement) -> Gate:
    """Same pipeline, dimensions frozen at the first size: whatever slope it shows is an artefact."""
    name = "width-independent control flat"
    seen, passed = [], True
    for quantity in ("h1", "psi", "h3"):
        series = m.control.get((quantity, m.steps), [])
        if series and not any(v.any() for v in series):
            continue  # zero init
        found = fit(m.sizes, series)
        passed &= found.low - DRIFT <= 0 <= found.high + DRIFT
        seen.append(f"{quantity} {found.slope:+.3f}")
    return Gate(name, passed and bool(seen), "slopes at frozen dimensions: " + (", ".join(seen) or "nothing measured"))
