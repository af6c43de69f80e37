"""Reports as files: ``report.json``, ``report.md`` and ``report.html``, which needs no network and no other file.

Read next: ``plots.py`` (pictures), ``judging/presentation.py`` (what a report says).
"""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling_algebra.documents import Document, render
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines
from scaling_algebra.files import make_folder
from scaling_algebra.files import write_file as write_file
from scaling_algebra.verify.campaigns.plans import Job
from scaling_algebra.verify.judging import presentation
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.report import SPENT, Report, ReportRow, Tally

from . import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Judged = Sequence[tuple[Job, Report]]
"""Runs, each with the report of its comparison with the predictions."""


def build_document(judged: Judged, command: str, every: bool = False) -> Document:
    """Returns the output of the command for one or several runs.

    One run gives its report. Several runs give a summary line, a table of the runs, and the rows that do not agree.
    The JSON record has the form that ``verify`` guarantees: the single run, or all runs with their total.

    Args:
        judged: pairs of a measured configuration (job) and its report.
        command: the command line, which the output quotes.
        every: also print the rows that agree and the gates that passed.
    """
    if len(judged) == 1:
        ((job, report),) = judged
        record = {"command": command, **as_json(job, report)}
        return replace(presentation.build_report_document(report, job.heading, every), record=record, source=command)
    header = ("run", "agree", "refuted", "inconclusive", "sizes n", "seeds", "device", "time")
    blocks: list[Block] = [Heading(format_closing(judged)), Grid.of(header, [_build_overview(*run) for run in judged])]
    for job, report in judged:
        lines = [str(gate) for gate in report.gates if every or not gate.passed]
        lines += [presentation.describe_row(row) for row in report.judged if every or row.verdict is not Verdict.AGREES]
        if lines:
            blocks += [Heading(job.name, 2), Lines.of(*lines, listed=True)]
    return Document(tuple(blocks), _build_record(judged, command), command, format_closing(judged))


def _build_overview(job: Job, report: Report) -> tuple[str, ...]:
    seeds, e = f"{min(job.seeds)} to {max(job.seeds)}", report.environment
    sizes, spent = ", ".join(f"{n:g}" for n in report.sizes), e.get("wall_seconds")
    time = "" if spent is None else f"{spent:.0f} s"
    return job.name, *map(str, report.counts.values()), sizes, seeds, e.get("device", ""), time


def _build_record(judged: Judged, command: str) -> dict[str, Any]:
    runs = [{"name": job.name, **as_json(job, report)} for job, report in judged]
    return {"command": command, "total": count_verdicts(judged), "runs": runs}


def as_json(job: Job, report: Report) -> dict[str, Any]:
    """Returns the JSON record of one run: its configuration and its report, with the keys that ``scalecalc verify``
    documents.
    """
    return {**job.configuration.as_json(), "job": job.as_json(), **report.as_json()}


def count_verdicts(judged: Judged) -> dict[str, int]:
    """Counts the measured exponents of all runs, in total and by verdict."""
    counts: Counter[str] = Counter()
    for _, report in judged:
        counts.update(report.counts)
    return {"predicted": sum(counts.values()), **counts}


def format_closing(judged: Judged) -> str:
    """Returns the summary line: the number of runs, the number of exponents by verdict, and the names of runs that are
    inconclusive or were interrupted.
    """
    tally = Tally.of(row for _, report in judged for row in report.judged)
    void = [job.name for job, report in judged if report.exit_code in (3, 130)]
    line = f"{len(judged)} {'run' if len(judged) == 1 else 'runs'}: {tally}"
    return line + (f"; INCONCLUSIVE: {', '.join(void)}" if void else "")


def compute_exit_code(judged: Judged) -> int:
    """Returns the worst exit code of all runs, in the order interrupted, refuted, inconclusive, agreement."""
    codes = {report.exit_code for _, report in judged} or {3}
    return next(code for code in (130, 1, 3, 0) if code in codes)


def build_html(judged: Judged, command: str) -> str:
    """Returns the HTML page: the output of the command, every row of every run, and the pictures."""
    documents = [build_document(judged, command)]
    documents += [presentation.build_report_document(report, job.name, every=True) for job, report in judged]
    pictures = [
        f"<h2>{escape(job.name)}: what does not agree</h2>\n{_draw_picture(drawn)}"
        for job, drawn in _draw_slopes(judged)
    ]
    overview = _draw_picture(plots.draw_overview(plots.list_points(report for _, report in judged)))
    page = render(documents, "html").replace("</h1>", f"</h1>\n{overview}", 1)
    return page.replace("</body>", "\n".join([*pictures, "</body>"]))


def _draw_slopes(judged: Judged) -> Iterator[tuple[Job, Figure]]:
    drawn = ((job, plots.draw_slopes(report)) for job, report in judged)
    return ((job, figure) for job, figure in drawn if figure is not None)


def write_reports(folder: Path, judged: Judged, command: str) -> None:
    """Writes the three report files into a folder.

    Time and memory spent are removed first, so that the bytes do not depend on when the runs were measured or on the
    number of processes.

    Raises:
        UsageError: the folder or a file cannot be written.
    """
    judged = [(job, remove_times(report)) for job, report in judged]
    files = {
        "report.json": render(Document((), _build_record(judged, command)), "json") + "\n",
        "report.md": render(build_document(judged, command), "markdown") + "\n",
        "report.html": build_html(judged, command),
    }
    make_folder(folder, "choose another -o DIR")
    for name, text in files.items():
        write_file(folder / name, text, "make room or choose another -o DIR")


def remove_times(report: Report) -> Report:
    """Returns a report without the time and the memory that its run took."""
    return replace(report, environment={k: x for k, x in report.environment.items() if k not in SPENT})


EVIDENCE = "evidence.json"


def build_evidence(folder: Path, judged: Judged, command: str) -> None:
    """Writes a short record of some runs that is meant to be kept: ``evidence.json`` and a picture.

    The file has one row ``[quantity, updates, predicted, slope, low, high, verdict]`` per judged exponent, and the
    environment (machine and versions) of each measurement; the picture plots predicted against measured exponents.

    Raises:
        UsageError: the folder cannot be written.
    """
    runs = []
    for job, report in judged:
        rows = [
            [r.quantity, r.step, None if r.predicted is None else str(r.predicted), *_round_fit(r), str(r.verdict)]
            for r in report.rows
        ]
        where = {**report.environment, "sizes": list(report.sizes), "gates": all(g.passed for g in report.gates)}
        runs.append({"job": job.as_json(), "environment": where, "rows": rows})
    data = {"command": command, "total": count_verdicts(judged), "runs": runs}
    text = json.dumps(data).replace('{"job"', '\n{"job"').replace("[[", "[\n[").replace("], [", "],\n[")
    make_folder(folder)
    write_file(folder / EVIDENCE, text + "\n", "choose another folder")
    picture = io.BytesIO()
    plots.draw_overview_png(plots.list_points(report for _, report in judged), picture)
    write_file(folder / "predicted_and_measured.png", picture.getvalue(), "choose another folder")


def _round_fit(row: ReportRow) -> list[float | None]:
    f = row.fit
    return [None if x != x else round(x, 3) for x in (f.slope, f.low, f.high)]


def _draw_picture(figure: Figure) -> str:
    svg = base64.b64encode(plots.convert_to_svg(figure).encode()).decode()
    return f'<img style="max-width: 100%" alt="measured and predicted" src="data:image/svg+xml;base64,{svg}">'
