"""``scalecalc law --fit`` and ``law --fit-rate``: a law, or a best rate, from a table of runs, with intervals."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from scaling_algebra.laws.law import answer, read_law
from scaling_algebra.laws.monomials import Posynomial
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
                "" if np.isnan(f.low[q]) else f"[{f.low[q]:.4g}, {f.high[q]:.4g}]",
                claims.get(q, ""),
                str(self.verdicts.get(q, "")),
            )
            for q, x in f.value.items()
        ]
        spread = f"{len(f.residuals)} runs; residuals {np.sqrt(np.mean(f.residuals**2)):.2g} on average; {self.how}"
        spread += f"; {f.misfit}" if f.misfit else ""
        head = ("number", "fitted", f"{LEVEL:.0%} interval", "claimed", "verdict")
        blocks = (Heading(literal(self.title), 2), Grid.of(head, rows), Lines.of(literal(spread)))
        ends = {q: (None, None) if np.isnan(f.low[q]) else (f.low[q], f.high[q]) for q in f.value}
        numbers = {
            q: {"value": x, "low": ends[q][0], "high": ends[q][1], **self._judged(q)} for q, x in f.value.items()
        }
        return Document(blocks, {"fitted": numbers, "verdicts": {k: str(v) for k, v in self.verdicts.items()}})

    def _judged(self, name: str) -> dict[str, float | str | None]:
        """The claim and verdict of a row; no columns where nothing is claimed."""
        return {"claimed": self.claims.get(name), "verdict": self.verdicts.get(name)} if self.claims else {}


DECIMAL = re.compile(r"[+-]?\d{1,9}\.\d{1,30}")
"""A measured number, which need not be exact."""
NAME = re.compile(r"[A-Za-z][\w-]*")
"""A law's name; a sum has a sign or a power."""


@dataclass(frozen=True)
class Table:
    """A CSV file.

    Attributes:
        path: of it. columns: names, as ``--columns`` renames them. rows: texts by name, with their line.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[tuple[int, Mapping[str, str]]]

    @classmethod
    def read(cls, path: Path, names: Mapping[str, str]) -> Table:
        """A file; names: columns of the file by what they are called instead."""
        instead = "give a CSV file with a line of names"
        reader = csv.reader(io.StringIO(files.read_text(path, instead, MOST), newline=""), skipinitialspace=True)
        try:
            lines = [(reader.line_num, [x.strip() for x in row]) for row in reader if any(map(str.strip, row))]
        except csv.Error as error:
            raise UsageError(f"{path} is no CSV ({error}); {instead}") from None
        header = lines[0][1] if lines else []
        if gone := [old for old in names.values() if old not in header]:
            raise UsageError(f"--columns: {_without(path, gone, header)}")
        new = {old: name for name, old in names.items()}
        columns = [new.get(old, "" if old in names else old) for old in header]
        rows = [(k, dict(zip(columns, row + [""] * len(columns), strict=False))) for k, row in lines[1:]]
        return cls(path, tuple(columns), rows)

    def numbers(self, wanted: Sequence[str], by: str = "") -> dict[str, Columns]:
        """Positive numbers of columns: by what the column ``by`` says, if there is one. A loss that diverged (nan, inf
        or blank) is nan.

        Raises:
            UsageError: columns or entries that cannot be used.
        """
        instead = f"give a CSV file with columns {', '.join(wanted)}, or name them: --columns {wanted[0]}=..."
        if gone := [name for name in wanted if name not in self.columns]:
            raise UsageError(f"{_without(self.path, gone, self.columns)}; {instead}")
        found: dict[str, dict[str, list[float]]] = {}
        for k, row in self.rows:
            group = found.setdefault(row.get(by, "") if by else "", {name: [] for name in wanted})
            for name in wanted:
                try:
                    number = float(row[name] or ("nan" if name == LOSS else ""))
                except ValueError:
                    number = -1.0
                if name == LOSS and not np.isfinite(number) and number != -np.inf:
                    number = np.nan
                elif not 0 < number < np.inf:
                    raise UsageError(f"{self.path}, line {k}: {name} is {shown(row[name])}; give a positive number")
                group[name].append(number)
        if not self.rows:
            raise UsageError(f"{self.path} has no rows; {instead}")
        return {key: {name: np.array(values) for name, values in group.items()} for key, group in found.items()}


def _without(path: Path, gone: Sequence[str], columns: Sequence[str]) -> str:
    """The columns that a file lacks, and those that it has."""
    there = f"it has {', '.join(columns)}" if columns else "it is empty"
    if len(columns) == 1 and ";" in columns[0]:
        there = f"its columns are separated by semicolons ({columns[0]}), give commas"
    return f"{path} has no column {', '.join(map(repr, gone))}; {there}"


def renamed(text: str | None) -> dict[str, str]:
    """The value of ``--columns``: columns of the file by name."""
    return pairs("--columns", text.split(",") if text else (), "N=params,loss=final_loss")


def diverged(groups: Iterable[Columns]) -> str:
    """How many runs ended in no number, as the end of a line; empty where none did."""
    count = sum(int(np.isnan(x[LOSS]).sum()) for x in groups)
    return f"; {count} that diverged left out" if count else ""


def model(what: str, columns: Sequence[str]) -> FittedSum:
    """The sum of a law, or a sum that is written out, over the columns of a table, and its optimum if it has one.

    A name that is a column is data, even where the law fixes it. So is one whose power is fitted, in a term that has
    another constant: beside that one it would change nothing.
    """
    found = read_law(what) if NAME.fullmatch(what) or what.endswith(".toml") else None
    if found is None:
        written = expression(what)
        return FittedSum(written, _data(written, columns), {})
    axes = [(name, axis) for name, axis in found.axes.items() if axis.minimise] or list(found.axes.items())
    if not axes:
        raise UsageError(f"{what} has no sum; give a law with one, or a sum such as 'a*N**-alpha + b*D**-beta'")
    name, axis = axes[0]
    free = {str(x) for term in axis.sum.terms for _, e in term.powers for x in e.free_symbols}
    found = replace(found, at={key: value for key, value in found.at.items() if key not in free})  # these are fitted
    solved = answer(found, name)
    cells = solved.axes[name].cells
    derived = {f"{q} in {g}": m[g] for g in axis.grows for q, m in cells[0].optimum.items()} if len(cells) == 1 else {}
    derived |= {x: e for x, e in solved.exponents.items() if derived and not e.is_Symbol}
    return FittedSum(axis.sum, _data(axis.sum, [*columns, *axis.sum.quantities - set(axis.fixed)]), derived)


def _data(of: Posynomial, known: Sequence[str]) -> tuple[str, ...]:
    """The names of a sum that are data: those that are known to be, and what only data can be."""
    found = of.quantities & set(known)
    for term in of.terms:
        constants = {q: e for q, e in term.powers if q not in found}
        if len(constants) > 1:
            found |= {q for q, e in constants.items() if e.free_symbols}
    return tuple(sorted(found))


def claimed(texts: tuple[str, ...]) -> dict[str, float]:
    """Claims NAME=VALUE."""
    return {name: _number(f"--claim {name}", x) for name, x in pairs("--claim", texts, "alpha=0.34").items()}


def positive(option: str, text: str) -> float:
    """The value of ``--apart`` and the like.

    Raises:
        UsageError: no positive number.
    """
    if (number := _number(option, text)) <= 0:
        raise UsageError(f"{option} {text}: give a positive number, such as 1/10")
    return number


def _number(what: str, text: str) -> float:
    try:
        return float(text) if DECIMAL.fullmatch(text) else float(rational(text))
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


COLUMNS = click.option(
    "--columns", metavar="NAME=COLUMN,...", help="Columns that have other names, such as N=params,loss=final_loss."
)
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
@COLUMNS
@CLAIM
@APART
@click.option("--residuals", type=click.Path(path_type=Path), metavar="FILE.svg", help="Also a picture of residuals.")
@printed()
def command(
    what: str, runs: Path, columns: str | None, claims: tuple[str, ...], apart: str, residuals: Path | None
) -> tuple[Answer, int]:
    """Fit a law to a table of runs: its parameters, and the powers of its optimum, with 90 % intervals.

    RUNS.csv has a column for every quantity of the sum, and loss; a column C = 6 N D may stand for D. To the sum a
    constant E is added. The Huber loss of logs has its threshold at 0.001. Exit codes: 0 fitted, no claim refuted; 1 a
    claim is refuted; 3 one is inconclusive.
    """
    numbers, far = claimed(claims), positive("--apart", apart)
    data = Table.read(runs, renamed(columns))
    of = model(what, data.columns)
    compute = "D" in of.names and "D" not in data.columns and "C" in data.columns
    every = dict(data.numbers(tuple("C" if name == "D" and compute else name for name in (*of.names, LOSS)))[""])
    if compute:
        every["D"] = every["C"] / (6 * every["N"])
    x = {name: values[np.isfinite(every[LOSS])] for name, values in every.items()}
    if not len(x[LOSS]):
        raise UsageError(f"{runs}: every run diverged; give runs whose loss is a number")
    fitted = of.fit(x)
    plotted(fitted, x[LOSS], residuals)
    bare = [str(term) for term in of.sum.terms if {q for q, _ in term.powers} <= {*of.names}]
    alone = f"; no constant is fitted before {', '.join(bare)} (a*N**-alpha has one)" if bare else ""
    how = f"Huber threshold {HUBER:g} in the log of the loss{diverged([every])}{alone}"
    a = FittedAnswer(f"E + {of.sum}", fitted, numbers, far, how)
    return a.document(), a.code
