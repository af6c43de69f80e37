"""Fitted exponents beside the identities of a law: a CSV file, a row for each fit and a column for each exponent."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError
from scaling_algebra.files import read_text
from scaling_algebra.limits import real

from .law import LawAnswer
from .monomials import parameter


@dataclass(frozen=True)
class Residual:
    """An identity in one row: its two sides."""

    label: str
    identity: str
    found: float
    predicted: float


@dataclass(frozen=True, repr=False)
class FittedLaw(Rendered):
    """Every identity of a law in every row that has its exponents."""

    against: LawAnswer
    residuals: tuple[Residual, ...]

    @property
    def about(self) -> str:
        return f"fits beside: {self.against.about}"

    def document(self) -> Document:
        blocks: list[Block] = [Heading(literal(self.about), 2)]
        for identity in dict.fromkeys(r.identity for r in self.residuals):
            rows = [r for r in self.residuals if r.identity == identity]
            apart = [r.found - r.predicted for r in rows]
            table = [(r.label, f"{r.found:.4f}", f"{r.predicted:.4f}", f"{gap:+.4f}", f"{gap / r.predicted:+.1%}")
                     for r, gap in zip(rows, apart, strict=True)]  # fmt: skip
            grid = Grid.of(
                ("fit", "found", "predicted", "difference", "relative"), [[literal(x) for x in row] for row in table]
            )
            mean = f"mean absolute difference {sum(map(abs, apart)) / len(apart):.4f}"
            blocks += [Heading(literal(identity), 3), grid, Lines.of(mean, listed=True)]
        return Document(tuple(blocks), self.record())

    def record(self) -> dict[str, Any]:
        """The JSON contract."""
        return {"law": self.against.law.name, "residuals": [vars(r) for r in self.residuals]}


def compared(against: LawAnswer, path: Path) -> FittedLaw:
    """The rows of a file beside the identities of a law.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, "give a CSV file with fitted exponents", 2**20))))
        residuals = [r for k, row in enumerate(rows, 2) for r in _residuals(against, row, f"line {k}")]
        if not residuals:
            raise UsageError(f"no row has the exponents of an identity: {', '.join(against.identities)}")
    except (csv.Error, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None
    return FittedLaw(against, tuple(residuals))


def _residuals(against: LawAnswer, row: Mapping[str, str], where: str) -> list[Residual]:
    label = ", ".join(f"{name} {x}" for name, x in row.items() if name and name not in against.exponents)
    at = {name: _number(x, f"{where}: {name}") for name, x in row.items() if x and name in against.exponents}
    known = [i for i in against.law.identities if {i.name, *i.needs} <= set(at)]
    put = {parameter(name): x for name, x in at.items()}
    return [Residual(label or where, i.text, at[i.name], float(i.right.xreplace(put))) for i in known]


def _number(text: str, where: str) -> float:
    try:
        return real(text)
    except (TypeError, ValueError):
        raise UsageError(f"{where} is {text!r}; give a number") from None
