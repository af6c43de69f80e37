"""Saves what every command of ``commands.txt`` prints, and compares it with another checkout: a refactoring must not
change any output.

Run: ``python benchmarks/outputs.py BEFORE.json`` in one checkout, ``python benchmarks/outputs.py AFTER.json --against
BEFORE.json`` in the other. The files that commands read are those shown in the guide.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path

import click
from click.testing import CliRunner

from scaling_algebra.cli import main as scalecalc

HOME = Path(__file__).parent
MACHINE = re.compile(
    r'\b\d+(\.\d+)? (s|ms|MiB|million entries)\b|"(wall_|entries_per_|)seconds?": [\d.]+|"peak_memory_bytes": \d+'
)
"""Times and memory in outputs, which differ between runs."""
FILE = re.compile(r'^```\w* title="(.*?)"[^\n]*\n(.*?)^```$', re.S | re.M)
"""A file shown in the guide."""


def run_command(command: str) -> str:
    """Runs one command and returns its exit code and output."""
    sys.argv = shlex.split(command)  # reports name it
    result = CliRunner().invoke(scalecalc, sys.argv[1:])
    return MACHINE.sub("#", f"exit code {result.exit_code}\n{result.output}{result.exception or ''}")


def collect_outputs(commands: list[str]) -> dict[str, str]:
    """Returns the output of each command, run in a folder with the files of the guide."""
    os.environ["COLUMNS"] = "120"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in (HOME.parent / "docs").rglob("*.md"):
            for name, text in FILE.findall(page.read_text(encoding="utf-8")):
                Path(name).write_text(text, encoding="utf-8")
        answers = {}
        for command in commands:
            start = time.process_time()
            answers[command] = run_command(command)
            click.echo(f"{time.process_time() - start:6.1f} s  {command}", err=True)
        os.chdir(HOME)
    return answers


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What another printed.")
@click.option("--only", default="", help="Commands that contain this text.")
def main(file: Path, against: Path | None, only: str) -> None:
    """Write what every command prints to FILE; exit with 1 if another checkout printed something else."""
    file, against = file.resolve(), against and against.resolve()
    answers = collect_outputs(
        [c for c in (HOME / "commands.txt").read_text(encoding="utf-8").splitlines() if only in c]
    )
    file.write_text(json.dumps(answers, indent=1), encoding="utf-8")
    before = json.loads(against.read_text(encoding="utf-8")) if against else {}
    changed = [c for c in answers if c in before and answers[c] != before[c]]
    for command in changed:
        click.echo(command)
        lines = difflib.unified_diff(before[command].splitlines(), answers[command].splitlines(), lineterm="", n=0)
        for line in list(lines)[3:11]:
            click.echo(f"    {line[:200]}")
    click.echo(f"{len(answers)} commands, {len(changed)} print something else")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
