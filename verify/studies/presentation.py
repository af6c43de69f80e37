"""What experiments say. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece
from scaling_algebra.documents.notation import typeset
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.presentation import interval, signed

from .findings import Finding
from .runner import Experiment, Result, worst

_HEADER = ("quantity", "by", "claimed", "measured", "interval", "verdict", "data", "source")


def shown(results: Sequence[Result]) -> Document:
    """One grid for each trial, and a closing line for each experiment with the counts."""
    blocks: list[Block] = []
    for r in results:
        name, (agree, against, undecided) = r.experiment.name, r.counts.values()
        blocks.append(Heading(f"{name}: {r.experiment.title}"))
        for k, (title, part) in enumerate(r.findings.items(), 1):
            blocks.append(replace(Grid.of(_HEADER, map(_row, part)), name=f"{name}-{k}", title=title))
        line = f"{name}: {agree} claims as predicted, {against} against, {undecided} inconclusive"
        end = "; interrupted" if r.interrupted else ""
        blocks.append(Lines.of(f"{line} ({r.seconds:.1f} s on {r.how.device}){end}"))
    return Document(tuple(blocks), {"experiments": [r.as_json() for r in results], "exit_code": worst(results)})


def listed(experiments: Sequence[Experiment]) -> Document:
    """All experiments with their trials."""
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
