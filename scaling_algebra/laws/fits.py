"""Fitted exponents beside the identities of a law.

A CSV file has one row per model or setting: columns named like exponents of the law, their standard errors as
``err_NAME``, and labels. Read next: ``law.py`` (the identities).
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
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError
from scaling_algebra.files import read_text

from .law import LawAnswer
from .monomials import Expr, parameter

WIDE = 1.96
"""Standard errors of a 95 % interval."""
Measured = tuple[float, float | None]
"""A fitted exponent with its standard error, None where there is none."""


@dataclass(frozen=True)
class FittedRow:
    """Exponents of one row."""

    label: str
    exponents: Mapping[str, Measured]


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
    def verdict(self) -> str | None:
        """AGREES or REFUTED by the 95 % interval of the difference."""
        if self.error is None:
            return None
        return "AGREES" if abs(self.difference) <= WIDE * self.error else "REFUTED"


@dataclass(frozen=True, repr=False)
class FittedLaw(Rendered):
    """Fits beside the identities of a law; exponents that are missing are filled in from identities."""

    against: LawAnswer
    fits: tuple[FittedRow, ...]
    residuals: tuple[Residual, ...]

    @property
    def about(self) -> str:
        return f"{len(self.fits)} fits beside: {self.against.about}"

    @property
    def agrees(self) -> bool:
        return all(r.verdict != "REFUTED" for r in self.residuals)

    def means(self) -> dict[str, dict[str, float]]:
        """Mean absolute difference and mean absolute relative difference, by identity."""
        by = {r.identity: [x for x in self.residuals if x.identity == r.identity] for r in self.residuals}
        return {identity: {"absolute": sum(abs(r.difference) for r in rows) / len(rows),
                           "relative": sum(abs(r.difference / r.predicted) for r in rows) / len(rows)}
                for identity, rows in by.items()}  # fmt: skip

    def document(self) -> Document:
        names = list(dict.fromkeys(n for f in self.fits for n in f.exponents))
        rows = [(literal(f.label), *(_shown(f.exponents.get(n)) for n in names)) for f in self.fits]
        blocks: list[Block] = [Heading(literal(self.about), 2), Grid.of(("fit", *names), rows)]
        for identity, mean in self.means().items():
            residuals = [r for r in self.residuals if r.identity == identity]
            judged = any(r.verdict for r in residuals)
            header = ("fit", "found", "predicted", "difference", "relative", *(["verdict"] if judged else []))
            table = [(r.label, f"{r.found:.4f}", f"{r.predicted:.4f}", f"{r.difference:+.4f}",
                      f"{r.difference / r.predicted:+.1%}", r.verdict or "")[: len(header)]
                     for r in residuals]  # fmt: skip
            lines = [f"mean absolute difference {mean['absolute']:.4f}, relative {mean['relative']:.1%}"]
            if all(r.found * r.predicted < 0 for r in residuals):
                lines.append("found and predicted have opposite signs in every row")
            grid = Grid.of(header, [[literal(x) for x in row] for row in table])
            blocks += [Heading(literal(identity), 3), grid, Lines.of(*lines, listed=True)]
        return Document(tuple(blocks), self.record())

    def record(self) -> dict[str, Any]:
        """The JSON contract."""
        residuals = [{**vars(r), "difference": r.difference, "verdict": r.verdict} for r in self.residuals]
        return {"law": self.against.law.name, "fits": self.fits, "residuals": residuals, "means": self.means()}


def read_fits(path: Path, names: Sequence[str]) -> list[FittedRow]:
    """The rows of a CSV file with exponents of these names.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, "give a CSV file with fitted exponents", 2**20))))
        if not rows:
            raise UsageError("it has no rows")
        if not set(rows[0]) & set(names):
            raise UsageError(f"it has no column named {', '.join(names)}")
        fits = []
        for number, row in enumerate(rows, 2):
            label = ", ".join(f"{k} {v}" for k, v in row.items() if k and k.removeprefix("err_") not in names)
            numbers = {key: _number(x, f"line {number}: {key}") for key, x in row.items() if x and key in
                       {*names, *(f"err_{n}" for n in names)}}  # fmt: skip
            exponents = {n: (numbers[n], numbers.get(f"err_{n}")) for n in names if n in numbers}
            fits.append(FittedRow(label or f"line {number}", exponents))
        return fits
    except (csv.Error, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


def compared(against: LawAnswer, fits: Sequence[FittedRow]) -> FittedLaw:
    """Every identity in every row that has its exponents; exponents that are missing come from the first identity with
    the most of the others on its right side."""
    full, residuals = [], []
    for fit in fits:
        have, derived = dict(fit.exponents), dict[Expr, Expr]()
        for i in sorted(against.law.identities, key=lambda i: -len(i.needs)):
            if i.name not in have and i.needs <= set(have):
                have[i.name], derived[parameter(i.name)] = _value(i.right, have), i.right
        for i in against.law.identities:
            if derived.get(parameter(i.name)) != i.right and {i.name, *i.needs} <= set(have):
                # the error is one in what was fitted, on which the rest depends
                gap = (parameter(i.name) - i.right).xreplace(derived).xreplace(derived)
                error, predicted = _value(gap, fit.exponents)[1], _value(i.right, have)[0]
                residuals.append(Residual(fit.label, i.text, have[i.name][0], predicted, error))
        full.append(FittedRow(fit.label, have))
    return FittedLaw(against, tuple(full), tuple(residuals))


# inside --------------------------------------------------------------------------------------------------------


def _value(e: Expr, at: Mapping[str, Measured]) -> Measured:
    """A function of exponents, with its standard error to first order."""
    point = {s: sympy.Float(at[str(s)][0]) for s in e.free_symbols}
    value, errors = float(e.xreplace(point)), {s: at[str(s)][1] for s in sorted(point, key=str)}
    if None in errors.values():
        return value, None
    return value, sqrt(sum((float(sympy.diff(e, s).xreplace(point)) * (x or 0.0)) ** 2 for s, x in errors.items()))


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise UsageError(f"{where} is {text!r}; give a number")
    return number


def _shown(x: Measured | None) -> str | None:
    return None if x is None else f"{x[0]:.4f}" + ("" if x[1] is None else f" +- {x[1]:.4f}")
