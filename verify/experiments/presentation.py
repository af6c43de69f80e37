"""What experiments say. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece
from scaling_algebra.documents.notation import typeset
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.presentation import interval, signed

from .findings import Experiment, Finding

if TYPE_CHECKING:
    from .registry import Result

_HEADER = ("quantity", "by", "claimed", "measured", "interval", "verdict", "data", "source")


def result(r: Result) -> Document:
    """One grid for each trial, and a closing line with the counts."""
    blocks: list[Block] = [Heading(f"{r.experiment.name}: {r.experiment.title}")]
    for k, (title, part) in enumerate(r.findings.items(), 1):
        grid = Grid.of(_HEADER, map(_row, part))
        blocks.append(replace(grid, name=f"{r.experiment.name}-{k}", title=title))
    return Document((*blocks, Lines.of(f"{r.experiment.name}: {r.closing}")), r.as_json())


def shown(results: Sequence[Result]) -> Document:
    """Several results in one document."""
    from .registry import worst

    record = {"experiments": [r.as_json() for r in results], "exit_code": worst(results)}
    return Document(tuple(block for r in results for block in r.document().blocks), record)


def listed(experiments: Sequence[Experiment]) -> Document:
    """Which experiments there are, and their trials."""
    blocks: list[Block] = []
    for e in experiments:
        blocks.append(Heading(f"{e.name}: {e.title} ({e.source})"))
        blocks.append(Lines.of(*(trial.title for trial in e.trials), listed=True))
    record = [
        {"experiment": e.name, "title": e.title, "source": e.source, "trials": [trial.title for trial in e.trials]}
        for e in experiments
    ]
    return Document(tuple(blocks), {"experiments": record})


def _row(f: Finding) -> tuple[Piece, ...]:
    verdict = str(f.verdict)
    if f.outcome is not Verdict.AGREES:
        verdict += f", must be {f.expected}"
    elif f.verdict is not Verdict.AGREES:
        verdict += ", as it must be"
    measured = signed(f.measured), interval(f.low, f.high)
    return f.quantity, str(f.by), typeset(f.claimed), *measured, verdict, f.data, f.source
