"""A blind test of `verify`: constants that nobody tuned, drawn by a fixed generator, each setting measured once.

The base constants of `verify` were chosen while looking at agreement. Here every init std, learning rate and epsilon is
multiplied by a factor of its own, log-uniform between 1/3 and 3, with other random streams and other sizes; then the
twelve configurations of the MSSP paper are measured, and nothing is run again.
Run: ``python benchmarks/blind.py run -o DIR [--draws 30]`` (about a minute of one core for a draw;
goes on where it stopped), ``... tell`` (the counts of the committed evidence).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
from tabulate import tabulate

from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, Job, job
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.report import ReportRow
from scaling_algebra.verify.measuring import cells
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks import scales

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "blind"
DRAWS, SPREAD = 30, 3.0
"""Settings, and the largest factor on a constant."""
LARGEST, WORK = 7e5, 5e6
"""Weight entries of the largest network (times a factor up to 2 either way) and trained at each size: a seventh of
campaign ``quick``."""
STREAM = 10_000
"""Random streams of a draw begin so far behind those of the one before; draw 0 is not that of ``verify``."""
ZERO = "zero"
RUNS = tuple(product(("I", "II", "III"), ("sgd", "adam"), ("mup", "mssp")))


def setting(draw: int) -> dict[str, Any]:
    """Constants, first random stream and largest network of a draw: all that is random about it."""
    rng = np.random.default_rng([20261123, draw])

    def times(spread: float) -> float:
        return float(spread ** rng.uniform(-1, 1))

    return {
        "init": {role: x * times(SPREAD) for role, x in scales.INIT.items()},
        "lr": {role: x * times(SPREAD) for role, x in scales.LR.items()},
        "eps": scales.EPS * times(SPREAD),
        "stream": STREAM * (draw + 1),
        "largest": LARGEST * times(2.0),
    }


@contextmanager
def measured_with(chosen: dict[str, Any]) -> Iterator[None]:
    """Inside, `verify` trains with these constants and streams."""
    streams = {kind: at + chosen["stream"] for kind, at in cells.STREAMS.items()}
    base = {key: chosen[key] for key in ("init", "lr", "eps")}
    with ExitStack() as patches:
        patches.enter_context(patch.object(scales, "MOE", scales.Constants(**base)))
        patches.enter_context(patch.dict(scales.MOE_CONSTANTS, base))
        patches.enter_context(patch.dict(cells.STREAMS, streams))
        yield


def jobs(chosen: dict[str, Any]) -> list[Job]:
    """The twelve configurations at the sizes of a setting."""
    effort = Effort(largest=chosen["largest"], work=WORK)
    return [job(Configuration.of(*where), effort) for where in RUNS]


def verdict(r: ReportRow) -> str:
    """The verdict on one exponent; exponents that are exactly zero, as predicted, stand apart."""
    return ZERO if r.predicted is None and r.verdict is Verdict.AGREES else str(r.verdict)


def row(r: ReportRow) -> list[Any]:
    """The record of an exponent that does not agree: quantity, step, prediction, slope, its interval, verdict, note."""
    predicted = "0" if r.predicted is None else f"n^{r.predicted}"
    return [r.quantity, r.step, predicted, r.fit.slope, r.fit.low, r.fit.high, str(r.verdict), r.note]


def performed(draw: int) -> dict[str, Any]:
    """One draw: its setting, counts of verdicts for each configuration, and every row that does not agree."""
    chosen, hardware, began, runs = setting(draw), Hardware.of("cpu"), time.perf_counter(), []
    with measured_with(chosen):
        for one, (place, optimizer, rule) in zip(jobs(chosen), RUNS, strict=True):
            store = Store()
            Session(store, Here(hardware)).perform([one])
            report = one.report(store)
            counts = Counter(verdict(r) for r in report.rows)
            rows = [row(r) for r in report.rows if verdict(r) not in ("AGREES", ZERO)]
            gates = [g.name for g in report.gates if not g.passed]
            runs.append(
                {"regime": place, "optimizer": optimizer, "parameterization": rule, "sizes": list(one.sizes)}
                | {"seeds": list(one.seeds), "counts": dict(counts), "failed_gates": gates, "rows": rows}
            )
    here = {k: hardware.describe()[k] for k in ("machine", "torch", "device") if k in hardware.describe()}
    return {"draw": draw, "setting": chosen, "runs": runs, "wall_seconds": time.perf_counter() - began, **here}


@click.group()
def main() -> None:
    """A blind test of `verify`."""


@main.command()
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--draws", default=DRAWS, show_default=True, type=click.IntRange(1))
def run(folder: Path, draws: int) -> None:
    """Measures the draws in their order, each once."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in range(draws):
        path = folder / f"draw_{draw:02}.json"
        if not path.exists():
            text = json.dumps({"command": f"python benchmarks/blind.py run --draws {draws}", **performed(draw)})
            path.write_text(text.replace('{"regime"', '\n{"regime"') + "\n", encoding="utf-8")
            click.echo(f"{datetime.now(UTC):%H:%M:%S} {path.name}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), default=EVIDENCE)
def tell(folder: Path) -> None:
    """The number of exponents that agree, are refuted and inconclusive, and every refuted one.

    A run in which a gate failed measured nothing to be relied on: it is named, and none of its exponents is counted.
    """
    total: dict[tuple[str, ...], Counter[str]] = {where: Counter() for where in RUNS}
    refuted, failed, counted = [], [], 0
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("draw_*.json"))]
    for record in records:
        for one in record["runs"]:
            where = (one["regime"], one["optimizer"], one["parameterization"])
            if one["failed_gates"]:
                failed += [f"draw {record['draw']}, {' '.join(where)}: {name}" for name in one["failed_gates"]]
                continue
            counted += 1
            total[where] += Counter(one["counts"])
            refuted += [(record["draw"], *where, *row[:6]) for row in one["rows"] if row[6] == "REFUTED"]
    words = ("AGREES", "REFUTED", "INCONCLUSIVE", ZERO)
    rows = [[*where, *(counts[w] for w in words)] for where, counts in total.items()]
    rows.append(["all", "", "", *(sum(int(row[k]) for row in rows) for k in range(3, 7))])
    header = ("regime", "optimizer", "parameterization", "agree", "refuted", "inconclusive", "zero, as predicted")
    click.echo(tabulate(rows, header))
    left_out = "; ".join(failed) or "none"
    click.echo(f"\n{len(records)} of {DRAWS} draws, {counted} runs; not counted, since a gate failed: {left_out}\n")
    names = (
        "draw",
        "regime",
        "optimizer",
        "parameterization",
        "quantity",
        "step",
        "predicted",
        "measured",
        "low",
        "high",
    )
    click.echo(tabulate(refuted, names, floatfmt="+.2f") if refuted else "none refuted")


if __name__ == "__main__":
    main()
