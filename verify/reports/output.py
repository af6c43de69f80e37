"""Reports as files: ``report.json``, ``report.md`` and ``report.html``, which needs no network and no other file.

Read next: ``plots.py`` (pictures), ``report.html.j2`` (the page), ``report.py`` (what a report says).
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from scaling_algebra.documents.writers.json import SCHEMA
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.campaigns.plans import Job
from scaling_algebra.verify.judging.report import Report, Row, Tally, reason

from . import plots

Judged = Sequence[tuple[Job, Report]]
"""Runs with what they show."""


def document(judged: Judged, command: str) -> dict[str, Any]:
    """The content of ``report.json``: every run in the JSON contract of ``verify``, and the total."""
    return {
        "schema": SCHEMA,
        "command": command,
        "total": total(judged),
        "runs": [{"name": job.name, **as_json(job, report)} for job, report in judged],
    }


def contract(judged: Judged, command: str) -> dict[str, Any]:
    """One run in the JSON contract of ``verify``; several as a document."""
    if len(judged) != 1:
        return document(judged, command)
    return {"schema": SCHEMA, "command": command, **as_json(*judged[0])}


def write_json(path: Path, judged: Judged, command: str) -> None:
    """Writes the contract into a file."""
    path.write_text(json.dumps(contract(judged, command), indent=1) + "\n", encoding="utf-8")


def as_json(job: Job, report: Report) -> dict[str, Any]:
    """One run in the JSON contract of ``verify``."""
    return {**job.configuration.as_json(), "job": job.as_json(), **report.as_json()}


def total(judged: Judged) -> dict[str, int]:
    """How many exponents were judged, and the verdicts."""
    counts: Counter[str] = Counter()
    for _, report in judged:
        counts.update(report.counts)
    return {"predicted": sum(counts.values()), **counts}


def closing(judged: Judged) -> str:
    """One line: so many exponents, so many agree, are refuted, are inconclusive; runs that prove nothing."""
    tally = Tally.of(row for _, report in judged for row in report.judged)
    void = [job.name for job, report in judged if report.exit_code in (3, 130)]
    line = f"{len(judged)} run{'s' * (len(judged) > 1)}: {tally}"
    return line + (f"; INCONCLUSIVE: {', '.join(void)}" if void else "")


def exit_code(judged: Judged) -> int:
    """The worst of all runs: interrupted, refuted, inconclusive, then agreement."""
    codes = {report.exit_code for _, report in judged} or {3}
    return next(code for code in (130, 1, 3, 0) if code in codes)


def markdown(judged: Judged, command: str) -> str:
    """A page of text: the command, the closing line, one table of runs, what does not agree, gates that failed."""
    lines = ["# scalecalc verify", "", f"`{command}`", "", closing(judged), ""]
    lines += [
        "| run | agree | refuted | inconclusive | sizes n | seeds | device | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for job, report in judged:
        counts, e = report.counts, report.environment
        seeds = f"{min(job.seeds)} to {max(job.seeds)}"
        sizes = ", ".join(f"{n:g}" for n in report.sizes)
        cells = (job.name, *counts.values(), sizes, seeds, e.get("device", ""), f"{e.get('wall_seconds', 0):.0f} s")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for job, report in judged:
        other = [r for r in report.judged if str(r.verdict) != "AGREES"]
        failed = [str(g) for g in report.gates if not g.passed]
        if other or failed:
            lines += ["", f"## {job.name}", ""]
            lines += [f"- {line}" for line in failed]
            lines += [f"- {sentence(r)}" for r in other]
    return "\n".join(lines) + "\n"


def sentence(row: Row) -> str:
    """One row in words, with the reason why it is not decided."""
    told = "zero" if row.predicted is None else str(row.predicted)
    f = row.fit
    if f.zero:
        return f"{row.verdict}: {row.quantity} at t={row.step}, predicted {told}, measured exactly zero"
    where = f"measured {f.slope:+.3f} in [{f.low:+.3f}, {f.high:+.3f}]"
    why = reason(row)
    return f"{row.verdict}: {row.quantity} at t={row.step}, predicted {told}, {where}" + (f" ({why})" if why else "")


def html(judged: Judged, command: str) -> str:
    """The page, with all pictures in it."""
    text = (Path(__file__).parent / "report.html.j2").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    rows = [(job.name, row) for job, report in judged for row in report.judged if str(row.verdict) != "AGREES"]
    rows.sort(key=lambda found: str(found[1].verdict) != "REFUTED")
    runs = [
        {
            "job": job,
            "report": report,
            "pictures": [plots.slopes(report), plots.over_time(report)] if report.sizes else [],
            "agreeing": [(job.name, row) for row in report.judged if str(row.verdict) == "AGREES"],
        }
        for job, report in judged
    ]
    overview = plots.overview(plots.points(report for _, report in judged))
    return page.render(
        command=command,
        closing=closing(judged),
        runs=runs,
        open=rows,
        overview=overview,
        reason=reason,
        picture=_picture,
    )


def write(folder: Path, judged: Judged, command: str) -> None:
    """Writes all three files into a folder.

    Raises:
        UsageError: it cannot be written.
    """
    files = {
        "report.json": json.dumps(document(judged, command), indent=1) + "\n",
        "report.md": markdown(judged, command),
        "report.html": html(judged, command),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as reason:
        raise UsageError(f"cannot write into {folder}: {reason.strerror}; choose another -o DIR") from None


EVIDENCE = "evidence.json"


def evidence(folder: Path, judged: Judged, command: str) -> None:
    """Writes what is worth keeping of a run: every verdict in one short row, where it was measured, and a picture.

    Rows are ``[quantity, updates, predicted, slope, low, high, verdict]``.

    Raises:
        UsageError: the folder cannot be written.
    """
    runs = []
    for job, report in judged:
        rows = [
            [r.quantity, r.step, None if r.predicted is None else str(r.predicted), *_rounded(r), str(r.verdict)]
            for r in report.rows
        ]
        where = {**report.environment, "sizes": list(report.sizes), "gates": all(g.passed for g in report.gates)}
        runs.append({"job": job.as_json(), "environment": where, "rows": rows})
    data = {"command": command, "total": total(judged), "runs": runs}
    text = json.dumps(data).replace('{"job"', '\n{"job"').replace("[[", "[\n[").replace("], [", "],\n[")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EVIDENCE).write_text(text + "\n", encoding="utf-8")
        plots.overview_png(plots.points(report for _, report in judged), folder / "predicted_and_measured.png")
    except OSError as reason:
        raise UsageError(f"cannot write into {folder}: {reason.strerror}; choose another folder") from None


def _rounded(row: Row) -> list[float | None]:
    f = row.fit
    return [None if x != x else round(x, 3) for x in (f.slope, f.low, f.high)]


def _picture(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
