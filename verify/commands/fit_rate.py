"""``scalecalc law --fit-rate``: fits the best learning rate by a product of powers of sizes, and compares with
theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from scaling_algebra import files
from scaling_algebra.arguments import parse_pairs
from scaling_algebra.commands.options import (
    Answer,
    choose_network,
    format_examples,
    network_options,
    optimizer_option,
    prints_answer,
)
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError
from scaling_algebra.limits import parse_real
from scaling_algebra.recipes.horizon import AXES, rate_rules
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture as shipped_network
from scaling_algebra.verify.judging.laws import LOSS, RATE, merge_fits
from scaling_algebra.verify.judging.optima import BESIDE
from scaling_algebra.verify.judging.rates import SIZE, FittedRates, Setting, fit_rates
from scaling_algebra.verify.judging.run_tables import RunTable, count_diverged

from .fit_law import APART, CLAIM, COLUMNS, RESIDUALS, FittedAnswer, parse_claims, parse_columns, parse_positive

DENSE = "mlp"
"""The network whose widths the sizes are, if no other is named."""
TERMS = tuple(zip("abcdgh", ("alpha", "beta", "gamma", "delta", "zeta", "eta"), strict=True))
"""Names of constants and powers in the law for losses at the best rates."""


class Theory(NamedTuple):
    """A prediction for the power of one size in the best learning rate.

    Attributes:
        size: name of the column of sizes.
        power: the predicted power.
        rule: name of the rule that predicts it.
        needs: the assumption of the rule, as text.
    """

    size: str
    power: float
    rule: str
    needs: str


def list_theories(sizes: Sequence[str], optimizer: str, network: Network) -> tuple[list[Theory], list[str]]:
    """Returns the predictions for the power of every size in the best learning rate, and notes on sizes without one.

    Columns named batch or B are the batch size, and tokens, T or D the number of tokens; each rule of ``recipe --hold``
    predicts their powers under its own assumption. Every other column is a size of the model: its power is 0 if the
    rate is the base rate of a plan, which takes the size into account itself.

    Args:
        sizes: names of the columns of sizes.
        optimizer: name of the optimizer.
        network: the network, for the power if one rate is used for all its tensors.
    """
    found, notes = list[Theory](), list[str]()
    axes: dict[str, tuple[str, ...]] = {axis: (axis, name) for axis, name in AXES.items()}
    axes["T"] = ("T", "tokens", "D")
    try:
        rules = rate_rules(optimizer)
    except UsageError as error:
        rules = []
        notes.append(f"no theory for batch and tokens: {error}")
    grow = {axis for axis in network.axes.values() if axis not in FIXED}
    for size in sizes:
        if axis := next((axis for axis, names in axes.items() if size in names), None):
            found += [Theory(size, float(rule.rate[axis]), rule.name, rule.because) for rule in rules]
            continue
        plan = "lr is the base rate of a plan, which multiplies it by the power of every tensor"
        if size == "N":
            notes.append("N is taken for the width; if it counts parameters, call it params with --columns params=N")
        found.append(Theory(size, 0.0, "plan", plan))
        if size in grow:
            try:
                ray = {axis: Fraction(axis == size) for axis in sorted(grow)}
                d = derive(optimizer=optimizer, ray=ray, network=network)
                power, role = min((x.lr.on(d.ray), role) for role, x in d.scaling.tensors.items() if x.lr is not None)
                needs = f"lr is the rate of every tensor of {network.name}: {role} bounds it (muP)"
                found.append(Theory(size, float(power), "one rate", needs))
            except (UsageError, Infeasible) as error:
                notes.append(f"no theory for the power of {size} if lr is the rate of every tensor: {error}")
    return found, notes


class RateAnswer(FittedAnswer):
    """The answer of ``law --fit-rate``: fitted and predicted powers of the best rate, with covariances.

    It ends with the command that fits a law to the losses at the best rates.
    """

    fits: Mapping[str, FittedRates]
    theory: Sequence[Theory]
    next_command: str
    apart: float

    def list_verdicts(self) -> list[tuple[str, Theory, str]]:
        """Returns (fitted power, theory, verdict) for every prediction."""
        return [
            (f"{group} {t.size}".lstrip(), t, str(f.verdict(name, t.power, self.apart)))
            for group, f in self.fits.items()
            for t in self.theory
            for name in [f.powers[f.sizes.index(t.size)]]
        ]

    def build_more_blocks(self) -> Sequence[Block]:
        blocks = list[Block]()
        if self.theory:
            rows = [
                (literal(name), f"{t.power:g}", literal(t.rule), verdict, literal(t.needs))
                for name, t, verdict in self.list_verdicts()
            ]
            blocks.append(Heading("what theory says of each power", 3))
            blocks.append(Grid.of(("power of", "theory", "rule", "verdict", "needs"), rows))
        for group, f in self.fits.items():
            if len(f.sizes) > 1:
                matrix = [
                    (literal(a), *(f"{x:.2g}" for x in row)) for a, row in zip(f.powers, f.covariance, strict=True)
                ]
                blocks.append(Heading(literal(f"covariance of powers {group}".rstrip()), 3))
                blocks.append(Grid.of(("power of", *map(literal, f.powers)), matrix))
        blocks.append(Lines.of(literal(f"next, the law of the loss at the best rates: {self.next_command}")))
        return blocks

    def get_more_numbers(self) -> dict[str, Any]:
        keys = ("power", "theory", "rule", "verdict", "needs")
        theory = [
            dict(zip(keys, (name, t.power, t.rule, verdict, t.needs), strict=True))
            for name, t, verdict in self.list_verdicts()
        ]
        covariance = {
            group: {
                a: dict(zip(f.powers, map(float, row), strict=True))
                for a, row in zip(f.powers, f.covariance, strict=True)
            }
            for group, f in self.fits.items()
        }
        return {"theory": theory, "covariance": covariance, "next": self.next_command}


def plot_powers(fits: Mapping[str, FittedRates], path: Path | None) -> None:
    """Draws the best rates against every size, corrected for the other sizes, and their residuals below, into a file;
    does nothing if ``path`` is None.
    """
    if path is None:
        return
    from matplotlib.figure import Figure

    from scaling_algebra.verify.reports.plots import convert_to_svg

    count = max(len(f.sizes) for f in fits.values())
    figure = Figure(figsize=(4 * count, 5), layout="constrained")
    panels = figure.subplots(2, count, squeeze=False, sharex="col", height_ratios=(2, 1))
    for group, f in fits.items():
        for k, (size, (above, below)) in enumerate(zip(f.sizes, panels.T, strict=True)):
            x, power, residual = f.settings[:, k], f.value[f.powers[k]], f.best - f.by_powers
            line = power * np.log(x / np.exp(np.log(x).mean())) + f.best.mean()
            drawn = above.errorbar(
                x, np.exp(line + residual), np.exp(line + residual) * f.errors, fmt="o", markersize=3, label=group
            )
            order = np.argsort(x)
            above.plot(x[order], np.exp(line)[order], linewidth=0.8, color=drawn.lines[0].get_color())
            above.set(xscale="log", yscale="log", ylabel="best rate, other sizes at their mean")
            below.errorbar(x, residual, f.errors, fmt="o", markersize=3)
            below.axhline(0, linewidth=0.8)
            below.set(xlabel=size, ylabel="residual of log rate")
    if any(fits):
        panels[0, 0].legend()
    files.write_file(path, convert_to_svg(figure))


def parse_settings(text: str | None, sizes: Sequence[str]) -> list[Setting]:
    """Parses the option ``--at``: the sizes at which the best rate is to be predicted.

    With one column of sizes, the text is a list, and each size is a setting: ``4096,8192``. With several columns, the
    text is one setting, with a value for each: ``N=4096,tokens=1e10``.

    Raises:
        UsageError: a size is missing, unknown or not a positive number.
    """
    if text is None:
        return []
    if len(sizes) == 1:
        return [(_parse_size(x),) for x in text.split(",")]
    given = parse_pairs("--at", text.split(","), ",".join(f"{name}=4096" for name in sizes))
    if {*given} != {*sizes}:
        raise UsageError(f"--at {text}: give each of {', '.join(sizes)} once, as {sizes[0]}=4096")
    return [tuple(_parse_size(given[name]) for name in sizes)]


def _parse_size(text: str) -> float:
    try:
        number = parse_real(text)
    except (ValueError, OverflowError):
        number = 0.0
    if not 0 < number < np.inf:
        raise UsageError(f"--at {text}: give a positive number, such as 4096 or 1e10")
    return number


@click.command(
    "law --fit-rate",
    epilog=format_examples(
        "scalecalc law --fit-rate runs.csv --claim power=-1 --apart 1/2",
        "scalecalc law --fit-rate runs.csv --size N --size tokens --size batch --residuals powers.svg",
        "scalecalc law --fit-rate runs.csv --at 4096",
    ),
)
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUNS.csv")
@COLUMNS
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="COLUMN",
    help="Column of the file of which the best rate is fitted as a power, such as N, tokens or batch (repeatable).  "
    "[default: size]",
)
@CLAIM
@APART
@click.option(
    "--at", metavar="SIZE,...", help="Predict the best rate at other sizes; with several columns: N=4096,batch=512."
)
@optimizer_option("adamw")
@network_options(DENSE)
@RESIDUALS
@prints_answer()
def command(
    runs: Path,
    columns: str | None,
    sizes: tuple[str, ...],
    claims: tuple[str, ...],
    apart: str,
    at: str | None,
    optimizer: str,
    architecture: str | None,
    network: Path | None,
    residuals: Path | None,
) -> tuple[Answer, int]:
    """Fit the best rate by a product of powers of sizes, with 95 % intervals, and compare each power with theory.

    RUNS.csv has columns lr, loss and size (or those of --size), as study transfer -o RUNS.csv writes them. Runs with
    different names (column name) are fitted separately. Not every combination of sizes is needed. The best rate of a
    combination is the vertex of the parabola in log lr through the best point and its neighbours; the cubic through two
    neighbours on each side is used to estimate its error. Combinations whose best rate is the smallest or largest that
    was tried, and runs that diverged (loss nan, inf or blank), are reported and left out. With --size, every power is
    compared with theory: batch and tokens with the rules of recipe --hold, each under its own assumption; a size of the
    model with 0, if lr is the base rate of a plan, and with the lowest power in the column lr of derive, if all tensors
    have the same lr. Exit codes: 0 fitted, no claim refuted; 1 a claim is refuted; 3 one is inconclusive.
    """
    numbers, far = parse_claims(claims), parse_positive("--apart", apart)
    sizes, named = sizes or (SIZE,), bool(sizes)
    if twice := [name for k, name in enumerate(sizes) if name in (*sizes[:k], RATE, LOSS)]:
        raise UsageError(f"--size {twice[0]}: the column is already used; name each column once")
    groups = RunTable.read(runs, parse_columns(columns)).numbers((*sizes, RATE, LOSS), "name")
    further = parse_settings(at, sizes)
    fits = {name: fit_rates(x, sizes, where=name, further=further) for name, x in groups.items()}
    fitted = merge_fits(fits)
    theory, notes = list[Theory](), list[str]()
    if named:
        theory, notes = list_theories(sizes, optimizer, choose_network(architecture, network) or shipped_network(DENSE))
    left = sum(int(np.isfinite(x[LOSS]).sum()) for x in groups.values()) - len(fitted.residuals)
    how = (
        f"{left} ignored, because their rates are more than {BESIDE} steps from the best one of their size"
        if left
        else "none left out"
    )
    how += count_diverged(groups.values())
    plot_powers(fits, residuals)
    a = RateAnswer("best rate", fitted, numbers, far, how, notes)
    a.fits, a.theory, a.apart = fits, theory, far
    a.next_command = format_loss_command(runs, columns, sizes)
    return a.document(), a.code


def format_loss_command(runs: Path, columns: str | None, sizes: Sequence[str]) -> str:
    """Returns the command line that fits a law to the losses at the best rates, as a sum over the sizes other than the
    batch.
    """
    kept = [name for name in sizes if name not in ("B", AXES["B"])] or [*sizes]
    terms = [f"{a}*{name}**-{alpha}" for (a, alpha), name in zip(TERMS, kept, strict=False)]
    also = f" --columns {columns}" if columns else ""
    return f"scalecalc law '{' + '.join(terms)}' --fit {runs}{also}"
