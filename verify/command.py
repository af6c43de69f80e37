"""``scalecalc verify``: predict with the engine, measure with torch, compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from scaling_algebra.api import PARAMETERIZATIONS, READOUTS, Signals, signals
from scaling_algebra.cli import where_options
from scaling_algebra.errors import UsageError

from .claims import Claim
from .report import Report, judge


@click.command("verify")
@where_options
@click.option(
    "--parameterization", default="mssp", show_default=True, metavar="NAME", help=", ".join(PARAMETERIZATIONS)
)
@click.option("--readout-init", type=str, metavar="KIND", help=f"{' or '.join(READOUTS)}; default: the definition's.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu or cuda")
@click.option("--sizes", metavar="N,N,...", help="Values of n, e.g. 32,48,64; default: chosen to take under a minute.")
@click.option("--seeds", type=int, help="Replicas at every size; default: more where they are cheap.")
@click.option("--steps", type=int, default=2, show_default=True, help="Number of optimizer steps.")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="QUANTITY[@t]=EXPONENT",
    help="Test a claim of your own, e.g. h3.A2.2@2=-1/2, or '<h3@0, h3@2>@2=0' (repeatable); only claims decide "
    "the exit code.",
)
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help="text, json")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as JSON.")
def verify(
    regime: str | None,
    ray: str | None,
    optimizer: str,
    parameterization: str,
    readout_init: str | None,
    device: str,
    sizes: str | None,
    seeds: int | None,
    steps: int,
    claims: tuple[str, ...],
    form: str,
    output: Path | None,
) -> int:
    """Train real torch models at several sizes and compare every measured exponent with the predicted one.

    The standard parameterization (--parameterization sp) is predicted by the same engine. Exit codes: 0 the predictions
    (or claims) hold, 1 one is refuted, 2 wrong usage, 3 inconclusive or interrupted.
    """
    if form not in ("text", "json"):
        raise UsageError(f"no format named {form!r}; use text or json")
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: {output.parent} is not a folder; create it or choose another -o FILE")
    wanted = [Claim.parse(text) for text in claims]
    chosen = None if sizes is None else _sizes(sizes)
    predicted = signals(regime, optimizer, parameterization, ray=ray, steps=steps, readout_init=readout_init)
    for claim in wanted:
        claim.check(predicted.quantities, steps)
    report = run(predicted, device, chosen, seeds, wanted)
    data = {**predicted.derivation.asked(), "command": "scalecalc " + " ".join(sys.argv[1:]), **report.as_json()}
    if output is not None:
        output.write_text(json.dumps(data, indent=1) + "\n")
    click.echo(json.dumps(data, indent=2) if form == "json" else report.text())
    if report.interrupted:
        keep = f"; what was measured is in {output}" if output else ""
        click.echo(
            f"scalecalc: interrupted{keep}. Run the same command again, or give fewer --sizes or --seeds", err=True
        )
    return report.exit_code


def run(predicted: Signals, device: str, sizes: list[int] | None, seeds: int | None, claims: list[Claim]) -> Report:
    """Measure one configuration with a progress bar on stderr, and judge it."""
    from .runs import measure  # torch is loaded here, after the arguments are known to be sound

    d = predicted.derivation
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("training", total=None)

        def progress(done: int, total: int, message: str) -> None:
            bar.update(task, completed=done, total=total, description=message)

        found = measure(
            d.ray,
            d.scaling,
            d.optimizer,
            sizes=sizes,
            seeds=seeds,
            steps=predicted.steps,
            device=device,
            products=[c.quantity for c in claims if c.quantity.startswith("<")],
            progress=progress,
        )
    return judge(found, predicted.prediction(), claims)


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"cannot read the sizes {text!r}; write integers with commas, e.g. 32,48,64") from None
