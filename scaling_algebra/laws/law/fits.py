"""Fitted exponents beside the identities of a law.

A CSV file has one row per model or setting: columns named like exponents of the law, their standard errors as
``err_NAME``, and labels. Or it has raw losses, with columns ``exponent,size,loss`` (and labels): then
``loss = c + a size^-alpha`` is fitted for every exponent and label first. Read next: ``library.py`` (the identities).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, literal
from scaling_algebra.errors import UsageError
from scaling_algebra.files import read_text

from ..expressions import parameter
from .library import Answer, sides

RAW = ("exponent", "size", "loss")
LEAST = 4
"""Losses for a fit of three numbers."""
WIDE = 1.96
"""Standard errors of a 95 % interval."""


@dataclass(frozen=True)
class Fit:
    """Exponents of one row with standard errors (None where there is none)."""

    label: str
    exponents: Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Residual:
    """An identity in one row.

    Attributes:
        found, predicted: its two sides. error: standard error of their difference; None where one is missing.
    """

    label: str
    identity: str
    found: float
    predicted: float
    error: float | None

    @property
    def difference(self) -> float:
        return self.found - self.predicted

    @property
    def relative(self) -> float:
        return self.difference / self.predicted

    @property
    def verdict(self) -> str:
        """AGREES or REFUTED by the 95 % interval of the difference; empty without errors."""
        if self.error is None:
            return ""
        return "AGREES" if abs(self.difference) <= WIDE * self.error else "REFUTED"


@dataclass(frozen=True, repr=False)
class Comparison(Rendered):
    """Fits beside the identities of a law; ``missing`` exponents are filled in from identities."""

    against: Answer
    fits: tuple[Fit, ...]
    residuals: tuple[Residual, ...]

    @property
    def about(self) -> str:
        return f"{len(self.fits)} fits beside: {self.against.about}"

    @property
    def agrees(self) -> bool:
        return all(r.verdict != "REFUTED" for r in self.residuals)

    def errors(self) -> dict[str, tuple[float, float]]:
        """Mean absolute difference and mean absolute relative difference, by identity."""
        found = {}
        for identity in dict.fromkeys(r.identity for r in self.residuals):
            own = [r for r in self.residuals if r.identity == identity]
            absolute = sum(abs(r.difference) for r in own) / len(own)
            found[identity] = absolute, sum(abs(r.relative) for r in own) / len(own)
        return found

    def document(self) -> Document:
        names = list(dict.fromkeys(n for f in self.fits for n in f.exponents))
        rows = [(literal(f.label), *(_shown(f.exponents.get(n)) for n in names)) for f in self.fits]
        blocks: list[Block] = [Heading(literal(self.about), 2), Grid.of(("fit", *names), rows)]
        for identity, (absolute, relative) in self.errors().items():
            own = [r for r in self.residuals if r.identity == identity]
            judged = any(r.verdict for r in own)
            table: list[tuple[Piece, ...]] = []
            for r in own:
                cells = (f"{r.found:.4f}", f"{r.predicted:.4f}", f"{r.difference:+.4f}", f"{r.relative:+.1%}")
                table.append((literal(r.label), *(literal(c) for c in cells), *([r.verdict] if judged else [])))
            header = ("fit", "found", "predicted", "difference", "relative", *(["verdict"] if judged else []))
            lines = [f"mean absolute difference {absolute:.4f}, relative {relative:.1%}"]
            if all(r.found * r.predicted < 0 for r in own):
                lines.append("found and predicted have opposite signs in every row")
            blocks += [Heading(literal(identity), 3), Grid.of(header, table), Lines.of(*lines, listed=True)]
        return Document(tuple(blocks), self._record())

    def _record(self) -> dict[str, Any]:
        fits = [{"label": f.label, "exponents": {n: list(x) for n, x in f.exponents.items()}} for f in self.fits]
        residuals = [{**vars(r), "difference": r.difference, "verdict": r.verdict or None} for r in self.residuals]
        means = {i: {"absolute": a, "relative": r} for i, (a, r) in self.errors().items()}
        return {"law": self.against.law.name, "fits": fits, "residuals": residuals, "means": means}


def read_fits(path: Path, known: Sequence[str]) -> list[Fit]:
    """The rows of a CSV file; raw losses are fitted.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, "give a CSV file with fitted exponents", 2**20))))
        if not rows:
            raise UsageError("it has no rows")
        header = set(rows[0])
        if set(RAW) <= header:
            return _fitted(rows, known)
        if not header & set(known):
            raise UsageError(f"it has no column named {', '.join(known)}, nor the columns {','.join(RAW)}")
        found = []
        for line, row in enumerate(rows, 2):
            label = ", ".join(f"{k} {v}" for k, v in row.items() if k and k.removeprefix("err_") not in known)
            read = {n: (_number(row, n, line), _error(row, n, line)) for n in known if row.get(n)}
            found.append(Fit(label or f"line {line}", read))
        return found
    except (csv.Error, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


def compared(against: Answer, fits: Sequence[Fit]) -> Comparison:
    """Every identity in every row that has its exponents; exponents that are missing come from the first identity with
    the most of the others on its right side."""
    identities = [(text, *sides(text)) for text in against.law.identities]
    full, residuals = [], []
    for fit in fits:
        have = dict(fit.exponents)
        used = set()
        for text, name, right in sorted(identities, key=lambda x: -len(x[2].free_symbols)):
            if name not in have and {str(s) for s in right.free_symbols} <= set(have):
                have[name] = _value(right, have)
                used.add(text)
        for text, name, right in identities:
            if text not in used and {name, *(str(s) for s in right.free_symbols)} <= set(have):
                residuals.append(
                    _residual(fit, text, name, right, have, {i[1]: i[2] for i in identities if i[0] in used})
                )
        full.append(Fit(fit.label, have))
    return Comparison(against, tuple(full), tuple(residuals))


# inside --------------------------------------------------------------------------------------------------------


def _residual(fit: Fit, text: str, name: str, right: Any, have: Any, derived: Mapping[str, Any]) -> Residual:
    """With the error of the difference: in what was fitted, so that derived exponents are not independent."""
    put = {parameter(n): e for n, e in derived.items()}
    gap = (parameter(name) - right).xreplace(put).xreplace(put)
    error = _value(gap, fit.exponents)[1]
    return Residual(fit.label, text, have[name][0], _value(right, have)[0], error)


def _value(e: Any, at: Mapping[str, tuple[float, float | None]]) -> tuple[float, float | None]:
    """A function of exponents, with its standard error to first order."""
    symbols = sorted(e.free_symbols, key=str)
    point = {s: sympy.Float(at[str(s)][0]) for s in symbols}
    errors = [at[str(s)][1] for s in symbols]
    value = float(e.xreplace(point))
    if any(x is None for x in errors):
        return value, None
    slopes = [float(sympy.diff(e, s).xreplace(point)) for s in symbols]
    return value, sqrt(sum((d * (x or 0.0)) ** 2 for d, x in zip(slopes, errors, strict=True)))


def _fitted(rows: Sequence[Mapping[str, str]], known: Sequence[str]) -> list[Fit]:
    """``loss = c + a size^-alpha`` by exponent and label, with c >= 0, by least squares of logarithms."""
    groups: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line, row in enumerate(rows, 2):
        if row["exponent"] not in known:
            raise UsageError(f"line {line}: no exponent named {row['exponent']!r}; known: {', '.join(known)}")
        label = ", ".join(f"{k} {v}" for k, v in row.items() if k not in RAW) or "all"
        point = _number(row, "size", line), _number(row, "loss", line)
        groups.setdefault(label, {}).setdefault(row["exponent"], []).append(point)
    return [
        Fit(label, {n: power_law(points, f"{label} {n}") for n, points in own.items()}) for label, own in groups.items()
    ]


def power_law(points: Sequence[tuple[float, float]], of: str = "it") -> tuple[float, float]:
    """alpha and its standard error, of ``loss = c + a size^-alpha``.

    Raises:
        UsageError: too few points, or none that fit.
    """
    import numpy as np
    from scipy.optimize import OptimizeWarning, curve_fit

    if len(points) < LEAST or min(min(p) for p in points) <= 0:
        raise UsageError(f"{of} has {len(points)} points; give {LEAST} or more, with sizes and losses above zero")
    x, y = np.log([p[0] for p in points]), np.log([p[1] for p in points])
    middle = float(np.mean(x))

    def model(x: Any, share: float, scale: float, alpha: float) -> Any:
        return np.log(share * np.exp(y.min()) + np.exp(scale - alpha * (x - middle)))

    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)
            start = (0.1, float(np.mean(y)), max(float(-np.polyfit(x, y, 1)[0]), 1e-3))
            best, spread = curve_fit(model, x, y, start, bounds=([0, -np.inf, 0], [1, np.inf, 10]), maxfev=20_000)
    except (RuntimeError, ValueError, OptimizeWarning) as error:
        raise UsageError(f"no power law fits {of}: {' '.join(str(error).split())}") from None
    return float(best[2]), float(np.sqrt(spread[2, 2]))


def _number(row: Mapping[str, str], name: str, line: int) -> float:
    try:
        found = float(row[name])
    except (TypeError, ValueError):
        found = float("nan")
    if not isfinite(found):
        raise UsageError(f"line {line}: {name} is {row[name]!r}; give a number")
    return found


def _error(row: Mapping[str, str], name: str, line: int) -> float | None:
    return _number(row, f"err_{name}", line) if row.get(f"err_{name}") else None


def _shown(x: tuple[float, float | None] | None) -> str | None:
    if x is None:
        return None
    return f"{x[0]:.4f}" + ("" if x[1] is None else f" +- {x[1]:.4f}")
