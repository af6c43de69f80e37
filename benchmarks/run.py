"""Prints medians and ratios: cold commands against ``import sympy``, and cold signals of every configuration.

Run: ``make bench`` or ``python benchmarks/run.py [--runs 5]``. Every cold figure is a fresh process.
"""

from __future__ import annotations

import click
from fresh import command
from fresh import median as cold
from tabulate import tabulate

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.optimizers import OPTIMIZERS

WHOLE = (
    ["explain", "--formula", "h3.A2.2@1", "--optimizer", "sgd"],
    ["explain", "--formula", "h3@1", "--optimizer", "sgd"],
    ["derive", "--architecture", "attention", "--ray", "N=1,M=1"],
    ["explain", "h3.A2.2@2", "--regime", "II", "--optimizer", "sgd", "--parameterization", "mup"],
    ["audit", "--source", "mssp"],
    ["table", "--all", "--check"],
    ["rays", "--parameterization", "mup", "--optimizer", "sgd"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mssp", "--prove"],
    ["derive", "--regime", "II", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["signals", "--regime", "II", "--optimizer", "adam", "--parameterization", "mssp", "--steps", "3"],
)
"""Commands that are timed as a user runs them."""


@click.command()
@click.option("--runs", default=5, show_default=True, help="Runs per figure.")
def main(runs: int) -> None:
    """Print all figures."""
    base = cold("import sympy", runs)
    rows = [("import sympy", f"{base:.2f}", "1.0")]
    for regime in REGIMES:
        for optimizer in ("sgd", "adam"):
            args = ["derive", "--regime", regime, "--optimizer", optimizer]
            seconds = cold(command(*args), runs)
            rows.append((f"derive {regime} {optimizer} (muP and MSSP)", f"{seconds:.2f}", f"{seconds / base:.1f}"))
    for args in WHOLE:
        seconds = cold(command(*args), max(1, runs // 3))
        rows.append((" ".join(args), f"{seconds:.2f}", f"{seconds / base:.1f}"))
    print(tabulate(rows, ("cold command", "median CPU s", "x import sympy"), tablefmt="github"), "\n")
    rows, total = [], 0.0
    for regime in REGIMES:
        for optimizer in OPTIMIZERS:
            for name in ("mup", "mssp"):
                for readout in ("maximal", "zero"):
                    args = ["signals", "--regime", regime, "--optimizer", optimizer, "--parameterization", name]
                    seconds = cold(command(*args, "--readout-init", readout), max(1, runs // 3))
                    rows.append((regime, optimizer, name, readout, f"{seconds:.2f}"))
                    total += seconds
    rows.append(("all", "", "", "", f"{total:.1f}"))
    print(
        tabulate(rows, ("regime", "optimizer", "parameterization", "readout", "signals, CPU s"), tablefmt="github"),
        "\n",
    )


if __name__ == "__main__":
    main()
