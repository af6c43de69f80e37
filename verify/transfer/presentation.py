"""What a study of transfer says. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece
from scaling_algebra.documents.notation import formula, plain
from scaling_algebra.verify.judging.presentation import interval, signed

from .improvement import Comparison
from .optimum import Curve, Optimum, Transfer
from .tuning import Tuned

if TYPE_CHECKING:
    from .study import Swept, TransferReport


def study(r: TransferReport) -> Document:
    """Optima by width, tuned multipliers, drifts, improvements and comparisons with verdicts, and one closing line."""
    optima = [_optimum(s, o, c) for s in r.series for o, c in zip(s.optima, s.curves, strict=True)]
    header = ("", "N", "N_e", "M", "K", "parameters", "log2 lr", "interval", "loss", "held out")
    blocks: list[Block] = [Heading(r.title), Grid.of(header, optima)]
    if tuned := [_multipliers(s.recipe.name, s.tuned) for s in r.series if s.tuned]:
        blocks.append(Lines.of(*tuned))
    blocks.append(Grid.of(("", "drift", "interval", "verdict", "because"), map(_drift, r.series)))
    blocks.append(Grid.of(("", "scale", "interval", "verdict", "because"), map(_scale, r.series)))
    if r.comparisons:
        blocks.append(Grid.of(("", "N", "loss", "interval", "verdict", "because"), map(_comparison, r.comparisons)))
    e, used = r.environment, r.series[0].improvement.used
    told = [
        "drift: change of log2 of the best learning rate per doubling of N",
        f"scale: factor of the best loss per doubling of N, over N = {', '.join(map(str, used))}",
        f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}, {e['wall_seconds']:.1f} s, "
        f"{r.course.steps} steps, {len(r.course.seeds)} seeds{', compiled' if r.course.compiled else ''}",
    ]
    controls = [s for s in r.series if not s.derived]
    if len(controls) < len(r.series):
        seen = {True: "drifts, so a drift would be seen", False: "does not drift, so this run CANNOT SEE a drift"}
        told += [f"control: {s.recipe.name} {seen[s.drift.verdict == Transfer.DRIFTS]}" for s in controls]
    return Document((*blocks, Lines.of(*told), Heading(str(r.verdict), 2)), r.as_json())


def _optimum(s: Swept, o: Optimum, c: Curve) -> tuple[Piece, ...]:
    sizes = (str(c.dims[axis]) for axis in ("N", "N_e", "M", "K"))
    edge = {-1: "<= ", 0: "", 1: ">= "}[o.edge]
    optimum = formula(edge + plain(signed(o.log2_lr, 2, "unknown")))
    loss = f"{o.loss:.3f} +- {o.loss_se:.3f}"
    return s.recipe.name, *sizes, str(c.parameters), optimum, interval(o.low, o.high, 2), loss, f"{o.held:.3f}"


def _drift(s: Swept) -> tuple[Piece, ...]:
    d = s.drift
    return s.recipe.name, signed(d.slope, 2, "unknown"), interval(d.low, d.high, 2), str(d.verdict), d.why


def _scale(s: Swept) -> tuple[Piece, ...]:
    i = s.improvement
    return s.recipe.name, _factor(i.slope), _factors(i.low, i.high), str(i.verdict), i.why


def _comparison(c: Comparison) -> tuple[Piece, ...]:
    told = _factor(c.ratio), _factors(c.low, c.high), str(c.verdict), c.why
    return f"{c.one} over {c.other}", str(c.width), *told


def _factor(log2: float) -> Piece:
    return formula(f"{2**log2:.2f}") if isfinite(log2) else "unknown"


def _factors(low: float, high: float) -> Piece:
    return formula(f"[{2**low:.2f}, {2**high:.2f}]") if isfinite(low) else ""


def _multipliers(name: str, tuned: Tuned) -> str:
    m = tuned.multipliers
    rates = ", ".join(f"{role} {x:g}" for role, x in m.lr.items())
    return (
        f"{name} tuned in {tuned.trials} trials, loss {tuned.untuned:.3f} to {tuned.loss:.3f}: log2 lr "
        f"{tuned.log2_lr:g}, init {m.init:g}, aggregation {m.aggregation:g}, lr of {rates}"
    )
