"""``scalecalc check-model``: does a recipe hold on a published family of models? Trains small ones from random weights.

Read next: ``apply/checking.py`` (what is measured), ``apply/models.py`` (what is built).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import click

from scaling_algebra.commands.options import FORMAT, RAY, Count, Place, emit, examples, tried
from scaling_algebra.documents.blocks import Document, Lines
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration

from .shared import integers


@click.command(
    "check-model",
    epilog=examples(
        "scalecalc check-model --family mixtral --regime I",
        "scalecalc check-model --family llama --regime I --widths 32,64,128 --seeds 8",
    ),
)
@click.option("--family", required=True, metavar="NAME", help="llama, mixtral, qwen3_moe, olmoe, ...")
@RAY
@click.option("--widths", default="32,64,128", show_default=True, metavar="N,N,...", help="First: the base.")
@click.option("--seeds", type=Count(1, 1000), default=6, show_default=True, metavar="N", help="Replicas at every size.")
@click.option(
    "--steps", type=Count(2, 100), default=2, show_default=True, metavar="T", help="AdamW steps; two are judged."
)
@click.option("--all", "every", is_flag=True, help="Print every row, not only those that do not agree.")
@FORMAT
@click.option("-o", "--output", type=Place(), metavar="FILE", help="Write to this file instead of stdout.")
def command(
    family: str,
    regime: str | None,
    ray: str | None,
    widths: str,
    seeds: int,
    steps: int,
    every: bool,
    form: str | None,
    output: Path | None,
) -> int:
    """Train a family of transformers at several sizes with a recipe, and judge the parts of its signals.

    Two layers, random weights, the same tokens at every size, real AdamW steps. The base has N = N_e = the first width,
    4 experts and 2 active. Every part is to grow as the engine certifies for the family's gate; one std and one
    learning rate for all is the control.

    Exit codes as of verify: 0 agrees, 1 refuted, 2 wrong usage, 3 inconclusive. Needs transformers.
    """
    tried(output, form)
    numbers = integers("widths", widths)
    if (
        len(numbers) < 2
        or any(a >= b for a, b in pairwise(numbers))
        or any(n < 8 or n % 8 or n > 4096 for n in numbers)
    ):
        raise UsageError(f"--widths are {widths!r}; give two or more growing multiples of 8 up to 4096, e.g. 32,64,128")
    grows = Configuration.of(regime, ray=ray).ray
    if not grows["N"]:
        raise UsageError("the width does not grow on this ray; give one with N=1")

    from scaling_algebra.verify.apply.checking import check_model
    from scaling_algebra.verify.apply.families import AGGREGATION
    from scaling_algebra.verify.apply.families import family as known
    from scaling_algebra.verify.apply.models import build, dense
    from scaling_algebra.verify.judging import presentation

    start = {"N": numbers[0]} if dense(family) else {"N": numbers[0], "N_e": numbers[0], "M": 4, "K": 2}
    rates = {axis: float(grows[axis] / grows["N"]) for axis in start}
    sizes = [{a: round(size * (n / numbers[0]) ** rates[a]) for a, size in start.items()} for n in numbers]
    report = check_model(lambda size: build(family, size), sizes, seeds=seeds, steps=steps)
    gate = known(family).gate
    said = presentation.report(report, f"{family}, {grows}", every)
    blocks = [*said.blocks, *([Lines.of(f"gate: {AGGREGATION[gate]}", listed=True)] if gate else [])]
    emit(Document(tuple(blocks), {**said.record, "gate": gate or None}), form, output)
    return report.exit_code
