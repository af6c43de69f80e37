"""``scalecalc law --fit-rate``: the best learning rate of every size, and its power in the size."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from scaling_algebra.commands.options import Answer, examples, printed
from scaling_algebra.verify.judging.laws import fit_rates, together
from scaling_algebra.verify.judging.optima import BESIDE

from .fit_law import APART, CLAIM, COLUMNS, FittedAnswer, Table, claimed, diverged, positive, renamed


@click.command(
    "law --fit-rate",
    epilog=examples(
        "scalecalc law --fit-rate runs.csv --claim power=-1 --apart 1/2",
        "scalecalc law --fit-rate runs.csv --claim 'mup power=0' --apart 1/2",
        "scalecalc law --fit-rate runs.csv --at 4096",
    ),
)
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUNS.csv")
@COLUMNS
@CLAIM
@APART
@click.option("--at", "sizes", metavar="SIZE,...", help="Other sizes: the best rate there by the fitted power.")
@printed()
def command(
    runs: Path, columns: str | None, claims: tuple[str, ...], apart: str, sizes: str | None
) -> tuple[Answer, int]:
    """Fit the best rate of every size, and its power in the size, with 90 % intervals.

    RUNS.csv has columns size, lr, loss, as study transfer -o RUNS.csv writes them; runs of several names (column name)
    are fitted one by one. The best rate of every size lies between others: the parabola in log lr through it and its
    neighbours is fitted, and compared with the cubic through two on each side. Left out are runs whose loss is nan,
    inf or blank, and sizes whose best rate is the first or last that was tried. The power is held against 0 where lr is
    the base rate of a plan; where one lr is that of every tensor, against the lowest power in the column lr of derive.
    Exit codes: 0 fitted, no claim refuted; 1 a claim is refuted; 3 one is inconclusive.
    """
    numbers, far = claimed(claims), positive("--apart", apart)
    groups = Table.read(runs, renamed(columns)).numbers(("size", "lr", "loss"), "name")
    further = [positive("--at", x) for x in sizes.split(",")] if sizes is not None else []
    fitted = together({name: fit_rates(x, where=name, at_sizes=further) for name, x in groups.items()})
    left = sum(int(np.isfinite(x["loss"]).sum()) for x in groups.values()) - len(fitted.residuals)
    how = f"{left} left out, more than {BESIDE} rates from the best one of their size" if left else "none left out"
    how += diverged(groups.values())
    a = FittedAnswer("best rate", fitted, numbers, far, how)
    return a.document(), a.code
