"""Documents of studies: claims by trial, and sweeps of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from scaling_algebra.documents import document_of, render
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece
from scaling_algebra.documents.notation import formula, plain, typeset
from scaling_algebra.errors import count_noun
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.presentation import format_interval, format_signed
from scaling_algebra.verify.judging.regions import ClaimOutcome

from .curves import Change, LossCurve, measure_regret
from .findings import Finding
from .runner import Experiment, Result, find_worst_code
from .transfer import Study

_HEADER = ("quantity", "by", "claimed", "measured", "interval", "verdict", "data", "source")


def build_result_document(results: Sequence[Result]) -> Document:
    """Returns the output of the command for some experiments: a table of claims for each trial, and a closing line with
    the number of claims of each experiment by outcome.
    """
    blocks: list[Block] = []
    closing = []
    for r in results:
        name, (agree, against, undecided) = r.experiment.name, r.counts.values()
        blocks.append(Heading(f"{name}: {r.experiment.title}"))
        for k, (title, part) in enumerate(r.findings.items(), 1):
            blocks.append(replace(Grid.of(_HEADER, map(_build_row, part)), name=f"{name}-{k}", title=title))
        line = f"{name}: {count_noun(agree, 'claim')} as predicted, {against} against, {undecided} inconclusive"
        end = "; interrupted" if r.interrupted else ""
        closing.append(line + end)
        blocks.append(Lines.of(f"{line} ({r.seconds:.1f} s on {r.how.device}){end}"))
    record = {"experiments": [r.as_json() for r in results], "exit_code": find_worst_code(results)}
    return Document(tuple(blocks), record, closing="; ".join(closing))


def list_experiments(experiments: Sequence[Experiment]) -> Document:
    """Returns a document that lists the experiments with their trials."""
    blocks: list[Block] = []
    for e in experiments:
        blocks.append(Heading(f"{e.name}: {e.title} ({e.source})"))
        blocks.append(Lines.of(*(trial.title for trial in e.trials), listed=True))
    record = [
        {"experiment": e.name, "title": e.title, "source": e.source, "trials": [trial.title for trial in e.trials]}
        for e in experiments
    ]
    return Document(tuple(blocks), {"experiments": record})


def _build_row(f: Finding) -> tuple[Piece, ...]:
    verdict = str(f.verdict)
    if f.outcome is not Verdict.AGREES:
        verdict += f", must be {f.expected}"
    elif f.verdict is not Verdict.AGREES:
        verdict += ", as it must be"
    measured = format_signed(f.measured), format_interval(f.low, f.high)
    return f.quantity, str(f.by), typeset(f.claimed), *measured, verdict, f.data, f.source


@document_of.register
def build_study_document(r: Study) -> Document:
    """Returns the document of a study. It lists the best learning rate of every size, and by how much the loss at the
    best rate of the first size exceeds the smallest loss (the regret). Then come, each with its verdict, the drift of
    the best rate with the width, the improvement of the best loss, and comparisons of the parameterizations.
    """
    axes = list(r.series[0].curves[0].dims)
    header = ("", *axes, "parameters", "log2 lr", "interval", "loss", "transferred", "regret", "interval")
    optima = [(s.name, *_format_optimum(c, s.at)) for s in r.series for c in s.curves]
    blocks: list[Block] = [Heading(f"{r.model} on {r.data.name}, {r.optimizer}"), Grid.of(header, optima)]
    end = ("interval", "verdict", "because")
    blocks.append(Grid.of(("", "drift", *end), [(s.name, *_format_shift(s.drift)) for s in r.series]))
    blocks.append(Grid.of(("", "scale", *end), [(s.name, *_format_factor(s.improvement)) for s in r.series]))
    if r.comparisons:
        rows = [
            (f"{one} over {other}", str(change.used[0]), *_format_factor(change))
            for one, other, change in r.comparisons
        ]
        blocks.append(Grid.of(("", r.along, "loss", *end), rows))
    e, used = r.environment, r.series[0].improvement.used
    lines = [
        f"loss: held out, {r.data.unit}; transferred: at the best rate of the first size; regret: above the best loss",
        f"drift: change of log2 of the best learning rate per doubling of {r.along}",
        f"scale: factor of the best loss per doubling of {r.along}, over {r.along} = {', '.join(map(str, used))}",
        f"{e['device']}, torch {e['torch']}, {e['dtype']}, {e['wall_seconds']:.1f} s, {e['steps']} steps, "
        f"{count_noun(e['seeds'], 'seed')}",
    ]
    if r.diverged:
        lines.append(f"diverged (log2 lr): {r.diverged}")
    if any(s.derived for s in r.series):
        blind = "so that this run could not detect a drift"
        outcomes = {
            ClaimOutcome.DRIFTS: "drifts, so that a drift would be detected",
            ClaimOutcome.TRANSFERS: f"does not drift, {blind}",
        }
        controls = [s for s in r.series if not s.derived]
        unknown = f"has no known drift, {blind}"
        lines += [f"control: {s.name} {outcomes.get(s.drift.verdict, unknown)}" for s in controls]
    blocks.append(Lines.of(*lines))
    closing = f"{render(Document(tuple(blocks), {}))}\n\n{r.verdict}"
    return Document((*blocks, Heading(r.verdict, 2)), r.as_json(), closing=closing)


def _format_optimum(c: LossCurve, at: float) -> tuple[Piece, ...]:
    (value, _, low, high), (loss, error, _) = c.optimum, c.loss
    rate = formula({-1: "<= ", 0: "", 1: ">= "}[c.unknown] + plain(format_signed(value, 2, "unknown")))
    lost, there = measure_regret(c, at), c.mean_at(at)
    more = f"{there:.3f}" if isfinite(there) else "unknown"
    sizes = [str(n) for n in c.dims.values()]
    return (
        *sizes, f"{c.parameters:,}", rate, format_interval(low, high, 2), f"{loss:.3f} +- {error:.3f}", more,
        format_signed(lost.value, 3, "unknown"), format_interval(lost.low, lost.high, 3),
    )  # fmt: skip


def _format_shift(d: Change) -> tuple[Piece, ...]:
    value, _, low, high = d.estimate
    return format_signed(value, 2, "unknown"), format_interval(low, high, 2), d.verdict, d.why


def _format_factor(d: Change) -> tuple[Piece, ...]:
    value, _, low, high = d.estimate
    factor = formula(f"{2**value:.2f}") if isfinite(value) else "unknown"
    between = formula(f"[{2**low:.2f}, {2**high:.2f}]") if isfinite(low) else ""
    return factor, between, d.verdict, d.why
