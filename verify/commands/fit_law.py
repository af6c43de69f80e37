"""``scalecalc law --fit`` and ``law --fit-rate``: a law, or a best rate, from a table of runs, with intervals."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import click
import numpy as np

from scaling_algebra import files
from scaling_algebra.arguments import pairs
from scaling_algebra.commands.options import Answer, examples, printed
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError, shown
from scaling_algebra.laws.expressions import expression
from scaling_algebra.laws.law import Law, answer, read_law
from scaling_algebra.limits import rational
from scaling_algebra.verify.judging.laws import HUBER, LEVEL, LOSS, Columns, Fitted, FittedSum
from scaling_algebra.verify.judging.regions import Verdict

MOST = 2**24
"""Bytes of a table."""
CODES = {Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}


class FittedAnswer(Rendered):
    """Fitted numbers with verdicts on those that are claimed."""

    def __init__(self, title: str, fitted: Fitted, claims: dict[str, float], apart: float, how: str) -> None:
        self.title, self.fitted, self.claims, self.how = title, fitted, claims, how
        if wrong := [name for name in claims if name not in fitted.value]:
            raise UsageError(f"no fitted number named {wrong[0]!r}; there are {', '.join(fitted.value)}")
        self.verdicts = {name: fitted.verdict(name, claim, apart) for name, claim in claims.items()}

    @property
    def code(self) -> int:
        """Exit code: 1 where a claim is refuted, 3 where one is inconclusive."""
        return min((CODES[v] for v in self.verdicts.values() if v in CODES), default=0)

    def document(self) -> Document:
        f = self.fitted
        claims = {name: f"{x:g}" for name, x in self.claims.items()}
        rows = [
            (
                literal(q),
                f"{x:.4g}",
                f"[{f.low[q]:.4g}, {f.high[q]:.4g}]",
                claims.get(q, ""),
                str(self.verdicts.get(q, "")),
            )
            for q, x in f.value.items()
        ]
        spread = f"{len(f.residuals)} runs; residuals {np.sqrt(np.mean(f.residuals**2)):.2g} on average; {self.how}"
        head = ("number", "fitted", f"{LEVEL:.0%} interval", "claimed", "verdict")
        blocks = (Heading(literal(self.title), 2), Grid.of(head, rows), Lines.of(literal(spread)))
        numbers = {name: {"value": x, "low": f.low[name], "high": f.high[name]} for name, x in f.value.items()}
        return Document(blocks, {"fitted": numbers, "verdicts": {k: str(v) for k, v in self.verdicts.items()}})


NAME = re.compile(r"[A-Za-z][\w-]*")
"""A law's name; a sum has a sign or a power."""


def table(path: Path, wanted: tuple[str, ...], by: str = "") -> dict[str, Columns]:
    """The columns of a CSV file that are wanted, positive numbers all: by what the column ``by`` says, if there is one.

    Raises:
        UsageError: a file, column or entry that cannot be used.
    """
    instead = f"give a CSV file with columns {', '.join(wanted)}"
    reader = csv.DictReader(io.StringIO(files.read_text(path, instead, MOST), newline=""))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise UsageError(f"{path} is no CSV ({error}); {instead}") from None
    if gone := [name for name in wanted if name not in (reader.fieldnames or ())]:
        raise UsageError(f"{path} has no column {gone[0]!r}; {instead}")
    found: dict[str, dict[str, list[float]]] = {}
    for k, row in enumerate(rows, 2):
        group = found.setdefault(row.get(by) or "", {name: [] for name in wanted})
        for name in wanted:
            try:
                number = float(row[name])
            except (TypeError, ValueError):
                number = np.nan
            if not 0 < number < np.inf:
                raise UsageError(f"{path}, line {k}: {name} is {shown(row[name])}; give a positive number")
            group[name].append(number)
    if not rows:
        raise UsageError(f"{path} has no rows; {instead}")
    return {key: {name: np.array(values) for name, values in group.items()} for key, group in found.items()}


def model(what: str, columns: list[str]) -> tuple[Law | None, FittedSum]:
    """The sum of a law, or a sum that is written out, over the columns of a table, and its optimum if it has one."""
    found = read_law(what) if NAME.fullmatch(what) or what.endswith(".toml") else None
    if found is None:
        written = expression(what)
        return None, FittedSum(written, tuple(sorted(written.quantities & set(columns))), {})
    axes = [(name, axis) for name, axis in found.axes.items() if axis.minimise] or list(found.axes.items())
    if not axes:
        raise UsageError(f"{what} has no sum; give a law with one, or a sum such as 'a*N**-alpha + b*D**-beta'")
    name, axis = axes[0]
    cells = answer(found, name).axes[name].cells
    derived = {f"{q} in {g}": m[g] for g in axis.grows for q, m in cells[0].optimum.items()} if len(cells) == 1 else {}
    return found, FittedSum(axis.sum, tuple(sorted(axis.sum.quantities - set(axis.fixed))), derived)


def claimed(texts: tuple[str, ...]) -> dict[str, float]:
    """Claims NAME=VALUE."""
    return {name: _number(f"--claim {name}", x) for name, x in pairs("--claim", texts, "alpha=0.34").items()}


def distance(apart: str) -> float:
    """The value of ``--apart``.

    Raises:
        UsageError: no positive number.
    """
    if (number := _number("--apart", apart)) <= 0:
        raise UsageError(f"--apart {apart}: give a positive number, such as 1/10")
    return number


def _number(what: str, text: str) -> float:
    try:
        return float(rational(text))
    except ValueError as error:
        raise UsageError(f"{what}: {shown(text)} is {error}; give a number such as 1/2 or 0.34") from None


def plotted(fitted: Fitted, losses: np.ndarray, path: Path | None) -> None:
    """Writes the residuals over the losses as a picture."""
    if path is None:
        return
    from matplotlib.figure import Figure

    from scaling_algebra.verify.reports.plots import svg

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, fitted.residuals, "o", markersize=3)
    axes.axhline(0, linewidth=0.8)
    axes.set(xlabel="loss", ylabel="residual", xscale="log")
    files.write(path, svg(figure))


CLAIM = click.option("--claim", "claims", multiple=True, metavar="NAME=VALUE", help="A number to judge (repeatable).")
APART = click.option(
    "--apart",
    default="1/10",
    show_default=True,
    metavar="NUMBER",
    help="Numbers this far apart are told from each other. AGREES: the interval comes within 1/5 of it to the claim, "
    "and ends within 4/5 of it. REFUTED: it is farther away than half of it, and than half its own width.",
)


@click.command(
    "law --fit",
    epilog=examples(
        "scalecalc law chinchilla --fit runs.csv --claim 'N in F=1/2'",
        "scalecalc law 'a*N**-alpha + b*D**-beta' --fit runs.csv --residuals residuals.svg",
    ),
)
@click.argument("what", metavar="SUM|NAME|FILE.toml")
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUNS.csv")
@CLAIM
@APART
@click.option("--residuals", type=click.Path(path_type=Path), metavar="FILE.svg", help="Also a picture of residuals.")
@printed()
def command(what: str, runs: Path, claims: tuple[str, ...], apart: str, residuals: Path | None) -> tuple[Answer, int]:
    """Fit a law to a table of runs: its parameters, and the powers of its optimum, with 90 % intervals.

    RUNS.csv has a column for every quantity of the sum, and loss; a column C = 6 N D may stand for D. To the sum a
    constant E is added. The Huber loss of logs has its threshold at 0.001. Exit codes: 0 fitted, no claim refuted; 1 a
    claim is refuted; 3 one is inconclusive.
    """
    numbers, far = claimed(claims), distance(apart)
    header = files.read_text(runs, "give a CSV file", MOST).partition("\n")[0].strip().split(",")
    _, of = model(what, header)
    compute = "D" in of.names and "D" not in header and "C" in header
    x = dict(table(runs, tuple("C" if name == "D" and compute else name for name in (*of.names, LOSS)))[""])
    if compute:
        x["D"] = x["C"] / (6 * x["N"])
    fitted = of.fit(x)
    plotted(fitted, x[LOSS], residuals)
    how = f"Huber threshold {HUBER:g} in the log of the loss"
    a = FittedAnswer(f"E + {of.sum}", fitted, numbers, far, how)
    return a.document(), a.code
