"""The headline experiment: runs the plan that was written before it, judges it by the plan's rule, and draws it.

Run: ``python benchmarks/headline.py run -o DIR`` (trains, about half an hour of one core; goes on where it stopped),
``... judge`` (the table of verdicts), ``... draw DIR`` (the figures); the last two read the committed evidence.
"""

from __future__ import annotations

import shlex
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from scaling_algebra.cli import main as scalecalc

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "headline"
PLAN = EVIDENCE / "plan.toml"


def arguments(plan: dict[str, Any], run: dict[str, str]) -> list[str]:
    """Of ``scalecalc`` for one run of the plan."""
    asked = shlex.split(run["arguments"])
    return ["transfer", *asked, "--base", plan["base"][asked[asked.index("--regime") + 1]], "--device", "cpu"]


@click.group()
def main() -> None:
    """The headline experiment."""


@main.command()
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--deadline/--no-deadline", default=False, help="Begin no run after the plan's deadline.")
def run(folder: Path, deadline: bool) -> None:
    """Trains every run of the plan, in its order; those whose file is there are not run again."""
    plan = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    for one in plan["run"]:
        out = folder / f"{one['name']}.json"
        if deadline and datetime.now(UTC) > datetime.fromisoformat(plan["deadline"]):
            click.echo(f"not run: {one['name']}")
        elif not out.exists():
            asked = [*arguments(plan, one), "--resume", str(folder / "pieces"), "-o", str(out)]
            click.echo(f"{datetime.now(UTC):%H:%M:%S} scalecalc {shlex.join(asked)}")
            try:
                scalecalc(asked)
            except SystemExit as end:  # a verdict is no failure
                if end.code not in (0, 1, 3):
                    raise


if __name__ == "__main__":
    main()
