"""``scalecalc study transfer``: does the learning rate tuned on a small model stay the best for a large one?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from scaling_algebra import files, limits
from scaling_algebra.arguments import parse_pairs
from scaling_algebra.commands.options import (
    Answer,
    Count,
    ModuleName,
    Name,
    PathType,
    combine_options,
    format_examples,
    optimizer_option,
    prints_answer,
)
from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes, read_sizes
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS

from .shared import (
    POOL,
    RESUME,
    explain_interrupts,
    open_pool,
    open_store,
    option_with_default,
    parse_integers,
    parse_positive,
    parse_reals,
    show_progress,
)

GROWN = ("N", "N_e")
"""Axes that ``--widths`` scales."""
DATA = ("text", "digits", "teacher")
DTYPES = ("float32", "bfloat16")


@click.command(
    "study transfer",
    epilog=format_examples(
        "scalecalc study transfer",
        "scalecalc study transfer --model mymodel.py:build --data mymodel.py:batches --widths 64,128,256",
        "scalecalc study transfer --base N=64,N_e=128,M=8,K=4 --size N=128,N_e=256,M=16,K=8 --device cuda --workers 10",
    ),
)
@option_with_default(
    "--model",
    default="mixtral",
    type=ModuleName(),
    metavar="NAME",
    help="Your own FILE.py:build, hf:config.json, or a family of transformers, such as mixtral or llama.",
)
@click.option(
    "--data",
    type=ModuleName(),
    metavar="NAME",
    help=f"{', '.join(DATA)}, or your own FILE.py:batches. The default is text for a model with an embedding, else "
    "digits.",
)
@optimizer_option("adamw")
@option_with_default(
    "--parameterization",
    "names",
    multiple=True,
    default=("mup", "sp"),
    type=Name("parameterization", PARAMETERIZATIONS),
    metavar="NAME",
    help="mup or mssp (plans), or sp, the control: the model's own values with one rate for all (repeatable).",
)
@click.option("--base", metavar="SIZES", help="The size that is tuned, such as N=32,N_e=64,M=4,K=2.")
@click.option(
    "--widths",
    metavar="N,N,...",
    help="Values of N, beginning with that of the base; N_e grows by the same factor.  [default: 1, 2 and 4 times N]",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="SIZES",
    help="Sizes of one model to compare with the base, instead of --widths (repeatable).",
)
@click.option(
    "--grid",
    metavar="FIRST,LAST[,SPACING]",
    help="Range FIRST,LAST[,SPACING] of log2 of the learning rates.  [default: -10,-5]",
)
@option_with_default(
    "--extend",
    default=4,
    type=Count(0, limits.RATES),
    help="Maximum number of rates to add per size if the best one is at the edge.",
)
@option_with_default(
    "--seeds",
    default=2,
    type=Count(1, limits.SEEDS),
    help="Number of runs (seeds) at every size and rate; a verdict needs four.",
)
@option_with_default("--steps", default=150, type=Count(2, limits.STEPS), help="Number of optimizer steps.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="PATTERN=FACTOR",
    help='Factor on the rate of some parameters, such as "*embed*=2" (repeatable).',
)
@click.option("--decay", metavar="NUMBER", help="Weight decay at the base; rate times decay is the same at every size.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the data, such as batch=32 (repeatable).",
)
@option_with_default(
    "--dtype", type=Name("dtype", DTYPES), default="float32", metavar="NAME", help="float32 or bfloat16."
)
@click.option("--plot", type=PathType(), metavar="FILE.png", help="Also plot loss against rate.")
@combine_options(POOL, RESUME)
@prints_answer()
def command(**given: Any) -> tuple[Answer, int]:
    """Train a model at several sizes and learning rates, and judge whether the best rate is the same at every size.

    Exit codes: 0 TRANSFERS, 1 DRIFTS, 2 wrong usage, 3 INCONCLUSIVE, 130 interrupted. If the negative control (sp) is
    trained, too, a derived parameterization can only be found to transfer if the control drifts.
    """
    grid, rates = _parse_grid(given["grid"] or "-10,-5"), _parse_rates(given["rates"])
    decay = 0.0 if given["decay"] is None else parse_positive("weight decay", given["decay"])
    if given["plot"] is not None:
        if given["plot"].suffix.lower() != ".png":
            raise UsageError(f"--plot draws a PNG; give FILE.png, not {given['plot']}")
        files.check_place(given["plot"].parent, "choose another --plot FILE.png")
    import numpy  # noqa: F401  torch warns where it is missing
    from torch import nn

    from scaling_algebra.verify.studies.data import load_data
    from scaling_algebra.verify.studies.models import Model
    from scaling_algebra.verify.studies.presentation import build_study_document
    from scaling_algebra.verify.studies.training import How, compute_loss
    from scaling_algebra.verify.studies.transfer import Course, build_points, check_memory, study_transfer

    model = Model(given["model"])
    sizes = choose_sizes(model.base, given["base"], given["widths"], given["sizes"])
    smallest = model.build(sizes[0], 0)
    name = given["data"] or ("text" if any(isinstance(x, nn.Embedding) for x in smallest.modules()) else "digits")
    data, settings = load_data(name, given["settings"]), given["settings"]
    compute_loss(smallest, *data.batch(0, 0, "cpu"), name)  # fail before the long part
    how = How(model.name, name, settings, data.digest, given["steps"], given["dtype"], decay)
    asked = build_points(model, list(dict.fromkeys(given["names"])), given["optimizer"], sizes, rates)
    store = open_store(given["resume"])
    with store.alone(), open_pool(given) as workers:
        check_memory(workers.free, asked[-1])
        with explain_interrupts(given["resume"]), show_progress() as watch:
            course = Course(how, range(given["seeds"]), workers, watch, store)
            result = study_transfer(course, data, given["optimizer"], asked, grid, given["extend"])
    document = build_study_document(result)
    record = {"command": "scalecalc " + " ".join(sys.argv[1:]), **document.record}
    if given["plot"] is not None:
        _draw_picture(given["plot"], record)
    return replace(document, record=record), result.exit_code


def _draw_picture(path: Path, record: Mapping[str, Any]) -> None:
    from scaling_algebra.verify.studies.figures import write_picture

    write_picture("rates", path, [record], [""])


def choose_sizes(usual: Sizes, base: str | None, widths: str | None, sizes: tuple[str, ...]) -> list[dict[str, int]]:
    """Returns the sizes at which a model is trained: the base, followed by the others.

    Args:
        usual: default sizes of the model.
        base: value of --base.
        widths: value of --widths.
        sizes: values of --size.

    Raises:
        UsageError: widths that are not increasing or not multiples of the base, or both widths and sizes.
    """
    own = _read_given_sizes(base, "base") if base else {}
    first = {**usual, **own}
    if unknown := next((axis for axis in first if axis not in usual), None):
        raise UsageError(f"--base gives {unknown}, but the model only has {', '.join(usual)}; leave it out")
    if sizes:
        if widths:
            raise UsageError("--size already gives all sizes; leave out --widths")
        return [first, *({**first, **_read_given_sizes(text, "size")} for text in sizes)]
    if "N" not in first:
        raise UsageError(f"the model has {', '.join(first)} and no N; give --size instead of --widths")
    n = first["N"]
    values = parse_integers("widths", widths) if widths else [n, 2 * n, 4 * n]
    if values[0] != n and "N" in own:
        values = [n, *values]
    if any(a >= b for a, b in pairwise(values)):
        raise UsageError(f"widths are {values!r}, the base's first; give them in increasing order")
    grown = []
    for value in values:
        scaled = {axis: x * value for axis, x in first.items() if axis in GROWN}
        if odd := next((axis for axis, x in scaled.items() if x % n), None):
            raise UsageError(f"at N={value} {odd} is no whole number; give multiples of N={n}, or --size")
        grown.append({**first, **{axis: x // n for axis, x in scaled.items()}})
    return grown


def _read_given_sizes(text: str, label: str) -> dict[str, int]:
    """Parses sizes such as ``N=256,M=8``, and returns only the axes that the text names (no default for K)."""
    return {axis: n for axis, n in read_sizes(text, label).items() if f"{axis}=" in text.replace(" ", "")}


def _parse_rates(texts: tuple[str, ...]) -> dict[str, float]:
    return {
        name: parse_positive(f"factor of {name}", x) for name, x in parse_pairs("--rate", texts, "*embed*=2").items()
    }


def _parse_grid(text: str) -> list[float]:
    rates = parse_reals("grid", text)
    if len(rates) in (2, 3):
        first, last, spacing = (*rates, 1.0)[:3]
        if spacing > 0 and 2 * spacing <= last - first < limits.RATES * spacing and max(-first, last) <= 1000:
            return [first + k * spacing for k in range(int((last - first) / spacing + 1e-9) + 1)]
    raise UsageError(f"the grid is {text!r}; give FIRST,LAST[,SPACING] with three rates or more, e.g. -10,-4")
