"""``scalecalc law --fit``: fits a law to a table of runs, with intervals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from scaling_algebra import files
from scaling_algebra.arguments import parse_pairs
from scaling_algebra.commands.options import Answer, format_examples, prints_answer
from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.laws.expressions import expression
from scaling_algebra.laws.law import answer_law, read_law
from scaling_algebra.laws.monomials import Posynomial
from scaling_algebra.limits import parse_rational
from scaling_algebra.verify.judging.laws import HUBER, LOSS, RATE, Fitted, FittedSum
from scaling_algebra.verify.judging.regions import Verdict
from scaling_algebra.verify.judging.resampling import LEVEL
from scaling_algebra.verify.judging.run_tables import RunTable, count_diverged, select_best_rate_runs

CODES = {Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}


class FittedAnswer(Rendered):
    """The answer of ``law --fit``: fitted numbers, and a verdict on each claimed value."""

    def __init__(
        self, title: str, fitted: Fitted, claims: dict[str, float], apart: float, how: str, asks: Sequence[str] = ()
    ) -> None:
        self.title, self.fitted, self.claims, self.how, self.asks = title, fitted, claims, how, asks
        if wrong := [name for name in claims if name not in fitted.value]:
            raise UsageError(
                f"--claim: no fitted number is named {wrong[0]!r}; choose one of {', '.join(fitted.value)}"
            )
        self.verdicts = {name: fitted.verdict(name, claim, apart) for name, claim in claims.items()}

    @property
    def code(self) -> int:
        """Returns the exit code: 1 if a claim is refuted, 3 if one is inconclusive, otherwise 0."""
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
        asked = [Lines.of(*map(literal, self.asks), listed=True)] if self.asks else []
        blocks = (
            Heading(literal(self.title), 2),
            *asked,
            Grid.of(head, rows),
            Lines.of(literal(spread)),
            *self.build_more_blocks(),
        )
        ends = {q: (None, None) if np.isnan(f.low[q]) else (f.low[q], f.high[q]) for q in f.value}
        numbers = {
            q: {"value": x, "low": ends[q][0], "high": ends[q][1], **self._get_claim(q)} for q, x in f.value.items()
        }
        record = {"fitted": numbers, "verdicts": {k: str(v) for k, v in self.verdicts.items()}}
        return Document(blocks, record | self.get_more_numbers())

    def build_more_blocks(self) -> Sequence[Block]:
        """Returns what is printed after the table of fitted numbers: nothing here, more tables in a subclass."""
        return ()

    def get_more_numbers(self) -> dict[str, Any]:
        """Returns further entries of the JSON record: none here, some in a subclass."""
        return {}

    def _get_claim(self, name: str) -> dict[str, float | str | None]:
        """Returns the claimed value and the verdict of a fitted number for the JSON record, None where it has no claim;
        empty if nothing is claimed at all.
        """
        return {"claimed": self.claims.get(name), "verdict": self.verdicts.get(name)} if self.claims else {}


DECIMAL = re.compile(r"[+-]?\d{1,9}\.\d{1,30}")
"""A measured number in decimals, which need not be exact."""
NAME = re.compile(r"[A-Za-z][\w-]*")
"""The name of a law, as opposed to a sum, which has a sign or a power."""


def parse_columns(text: str | None) -> dict[str, str]:
    """Parses the option ``--columns``, such as ``N=params``: name of a quantity -> name of its column in the file."""
    return parse_pairs("--columns", text.split(",") if text else (), "N=params,loss=final_loss")


def build_model(what: str, columns: Sequence[str]) -> FittedSum:
    """Returns the model to fit to a table of runs, together with formulas for the optimum if the law has one.

    The names in the sum of the law are data (columns of the table) or constants to fit. A name that is a column of the
    table is data, even if the law fixes its value. If a term would have several constants, those with a fitted power
    are
    data, too, since only one constant per term can be fitted.

    Args:
        what: the name of a law, or a sum.
        columns: names of the columns.
    """
    found = read_law(what) if NAME.fullmatch(what) or what.endswith(".toml") else None
    if found is None:
        written = expression(what)
        return FittedSum(written, _find_data_names(written, columns), {})
    axes = [(name, axis) for name, axis in found.axes.items() if axis.minimise] or list(found.axes.items())
    if not axes:
        raise UsageError(f"{what} has no sum; give a law with one, or a sum such as 'a*N**-alpha + b*D**-beta'")
    name, axis = axes[0]
    free = {str(x) for term in axis.sum.terms for _, e in term.powers for x in e.free_symbols}
    # given values of exponents are ignored, because these are fitted
    found = replace(found, at={key: value for key, value in found.at.items() if key not in free})
    solved = answer_law(found, name)
    cells = solved.axes[name].cells
    derived = {f"{q} in {g}": m[g] for g in axis.grows for q, m in cells[0].optimum.items()} if len(cells) == 1 else {}
    derived |= {x: e for x, e in solved.exponents.items() if derived and not e.is_Symbol}
    return FittedSum(axis.sum, _find_data_names(axis.sum, [*columns, *axis.sum.quantities - set(axis.fixed)]), derived)


def _find_data_names(of: Posynomial, known: Sequence[str]) -> tuple[str, ...]:
    """Returns the names in a sum that are data (columns of the table of runs) and not constants to fit.

    In a term with several names that are not known to be columns, those with a fitted power are taken to be data, too.

    Args:
        of: the sum.
        known: names that are known to be columns.
    """
    found = of.quantities & set(known)
    for term in of.terms:
        constants = {q: e for q, e in term.powers if q not in found}
        if len(constants) > 1:
            found |= {q for q, e in constants.items() if e.free_symbols}
    return tuple(sorted(found))


def parse_claims(texts: tuple[str, ...]) -> dict[str, float]:
    """Parses claims ``NAME=VALUE`` about fitted numbers: name -> value."""
    return {
        name: _parse_number(f"--claim {name}", x) for name, x in parse_pairs("--claim", texts, "alpha=0.34").items()
    }


def parse_positive(option: str, text: str) -> float:
    """Parses the value of an option such as ``--apart``, a positive number.

    Raises:
        UsageError: it is not a positive number.
    """
    if (number := _parse_number(option, text)) <= 0:
        raise UsageError(f"{option} {text}: give a positive number, such as 1/10")
    return number


def _parse_number(what: str, text: str) -> float:
    try:
        return float(text) if DECIMAL.fullmatch(text) else float(parse_rational(text))
    except ValueError as error:
        raise UsageError(f"{what}: {quote_value(text)} is {error}; give a number such as 1/2 or 0.34") from None


def plot_residuals(fitted: Fitted, losses: np.ndarray, path: Path | None) -> None:
    """Draws the residuals of a fit against the losses into a file; does nothing if ``path`` is None."""
    if path is None:
        return
    from matplotlib.figure import Figure

    from scaling_algebra.verify.reports.plots import convert_to_svg

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, fitted.residuals, "o", markersize=3)
    axes.axhline(0, linewidth=0.8)
    axes.set(xlabel="loss", ylabel="residual", xscale="log")
    files.write_file(path, convert_to_svg(figure))


COLUMNS = click.option(
    "--columns",
    metavar="NAME=COLUMN,...",
    help="Names of the columns in the file, if they differ, such as N=params,loss=final_loss.",
)
CLAIM = click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=VALUE",
    help="Claimed value of a fitted number, to be judged, such as 'N in F=1/2' (repeatable).",
)
APART = click.option(
    "--apart",
    default="1/10",
    show_default=True,
    metavar="NUMBER",
    help="Smallest difference that counts. A claim AGREES if the interval comes within 1/5 of this difference and "
    "ends within 4/5 of it; it is REFUTED if the interval is farther away than half of it and than half its own "
    "width.",
)
RESIDUALS = click.option(
    "--residuals",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Also plot the residuals of the fit to this file.",
)


@click.command(
    "law --fit",
    epilog=format_examples(
        "scalecalc law chinchilla --fit runs.csv --claim 'N in F=1/2'",
        "scalecalc law 'a*N**-alpha + b*D**-beta' --fit runs.csv --residuals residuals.svg",
    ),
)
@click.argument("what", metavar="SUM|NAME|FILE.toml")
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUNS.csv")
@COLUMNS
@CLAIM
@APART
@RESIDUALS
@prints_answer()
def command(
    what: str, runs: Path, columns: str | None, claims: tuple[str, ...], apart: str, residuals: Path | None
) -> tuple[Answer, int]:
    """Fit a law to a table of runs: its parameters, and the powers of its optimum, with 95 % intervals.

    RUNS.csv has a column for every quantity of the sum, and loss; a column C = 6 N D may replace D. If it has a column
    lr, only the runs at the best rate of each size are fitted. A constant E is added to the sum. The Huber loss of the
    logs has the threshold 0.001. Exit codes: 0 fitted, no claim refuted; 1 a claim is refuted; 3 one is inconclusive.
    """
    numbers, far = parse_claims(claims), parse_positive("--apart", apart)
    data = RunTable.read(runs, parse_columns(columns))
    of = build_model(what, data.columns)
    compute = "D" in of.names and "D" not in data.columns and "C" in data.columns
    sizes = ["C" if name == "D" and compute else name for name in of.names]
    rated = [RATE] if RATE in data.columns and RATE not in sizes else []
    every = dict(data.numbers((*sizes, *rated, LOSS))[""])
    best, edges = select_best_rate_runs(every, sizes) if rated else (np.isfinite(every[LOSS]), [])
    if compute:
        every["D"] = every["C"] / (6 * every["N"])
    x = {name: values[best] for name, values in every.items()}
    if not len(x[LOSS]):
        raise UsageError(f"{runs}: every run diverged; give runs whose loss is a number")
    fitted = of.fit(x)
    plot_residuals(fitted, x[LOSS], residuals)
    asks = []
    if bare := [str(term) for term in of.sum.terms if {q for q, _ in term.powers} <= {*of.names}]:
        asks.append(
            f"{', '.join(bare)} has no constant factor, so that it is fixed at 1; to fit one, write a*N**-alpha"
        )
    if other := [] if rated else data.varying_beside(sizes):
        asks.append(
            f"runs of one size differ in {', '.join(other)}; if this is the learning rate, give --columns "
            f"lr={other[0]} to fit the best run of each size"
        )
    if rated:
        asks.append(f"of {len(every[LOSS])} runs, the {len(x[LOSS])} at the best rate of their size are fitted")
    if edges:
        asks.append(f"the best rate is the first or last that was tried at {'; '.join(edges)}: try rates beyond it")
    how = f"Huber threshold {HUBER:g} in the log of the loss{count_diverged([every])}"
    a = FittedAnswer(f"E + {of.sum}", fitted, numbers, far, how, asks)
    return a.document(), a.code
