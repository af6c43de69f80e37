"""``scalecalc study transfer``: learning-rate sweeps over widths, derived parameterizations beside standard ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import click

from scaling_algebra import limits
from scaling_algebra.commands.options import WHERE, Answer, Count, Name, examples, printed
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS
from scaling_algebra.verify.networks.scales import AXES, Dims
from scaling_algebra.verify.studies.tasks import SWEPT, TASKS, numbers

from .shared import POOL, RESUME, defaulted, integers, kept, pool, positive, progress, reals, resumable


@click.command(
    "study transfer",
    epilog=examples(
        "scalecalc study transfer --regime III --optimizer adam",
        "scalecalc study transfer --ray N=0,N_e=0,M=1,K=1 --along M --widths 4,8,16",
        "scalecalc study transfer --regime II --data text --optimizer adamw --seeds 4 -o runs/text.json",
    ),
)
@WHERE
@defaulted(
    "--data", type=Name("data", TASKS), default="digits", metavar="NAME", help=f"What is learned: {', '.join(TASKS)}."
)
@defaulted(
    "--parameterization",
    "names",
    multiple=True,
    default=("mup", "mssp", "sp"),
    type=Name("parameterization", PARAMETERIZATIONS),
    metavar="NAME",
    help="Repeatable. Those that are not derived are the negative control.",
)
@defaulted(
    "--readout-init",
    "readout",
    type=Name("readout init", READOUTS),
    default="zero",
    metavar="KIND",
    help=f"Of every parameterization: {' or '.join(READOUTS)}.",
)
@defaulted(
    "--along", type=Name("axis", AXES), default="N", metavar="NAME", help="The axis that --widths are values of."
)
@click.option("--widths", metavar="N,N,...", help="At least three for a verdict; default, along N: the data's.")
@click.option(
    "--base", metavar="SIZES", help="Size at which all parameterizations are alike, e.g. N=32,N_e=32,M=4,K=4."
)
@defaulted(
    "--sweep",
    "swept",
    type=Name("constant", SWEPT),
    default="lr",
    metavar="NAME",
    help="The constant that --grid is of: lr; or every init std, every epsilon, alpha of the sum over experts.",
)
@click.option("--lr", metavar="NUMBER", help="Learning rate where another constant is swept.")
@click.option("--grid", metavar="FIRST,LAST[,SPACING]", help="log2 of what is swept, e.g. --grid=-10,-4.")
@defaulted(
    "--extend", default=4, type=Count(0, limits.RATES), help="Rates to add per width while its optimum is on the edge."
)
@defaulted("--seeds", default=8, type=Count(1, limits.SEEDS), help="Replicas, at least four for a verdict.")
@click.option("--steps", type=Count(1, limits.STEPS), help="Number of optimizer steps; default: the data's.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Repeatable, e.g. batch=32, context=1024.")
@POOL
@RESUME
@printed()
def command(**given: Any) -> tuple[Answer, int]:
    """Sweep the learning rate at several widths and say whether the optimum stays where it is.

    Exit codes: 0 TRANSFERS, 1 DRIFTS, 2 wrong usage, 3 INCONCLUSIVE, 130 interrupted. With a negative control beside
    them (sp), derived parameterizations transfer only where the control is seen to drift.
    """
    task = TASKS[given["data"]]
    names = dict.fromkeys(given["names"])
    where = (given["regime"], given["optimizer"])
    configurations = [Configuration.of(*where, name, ray=given["ray"], epsilon=given["epsilon"]) for name in names]
    if given["widths"] is None and given["along"] != "N":
        raise UsageError(f"--along {given['along']} has no default widths; give --widths, e.g. 4,8,16")
    widths = _increasing("widths", integers("widths", given["widths"])) if given["widths"] is not None else task.widths
    swept, lr = given["swept"], 2.0 ** (sum(task.grid[:2]) / 2)
    if swept == "epsilon" and any(x.optimizer.regime is None for x in configurations):
        raise UsageError(f"{given['optimizer']} has no epsilon; leave out --sweep epsilon")
    if given["lr"] is not None:
        if swept == "lr":
            raise UsageError("--lr is the rate of a sweep of another constant; give --sweep init, epsilon or alpha")
        lr = positive("learning rate", given["lr"])
    grid, base = _grid(given["grid"]), {**task.base, **_base(given["base"])}

    import numpy  # noqa: F401  torch warns where it is missing

    from scaling_algebra.verify.networks.base_shapes import recipe
    from scaling_algebra.verify.studies.presentation import study
    from scaling_algebra.verify.studies.sweep import Course
    from scaling_algebra.verify.studies.transfer import check_memory, transfer

    size = base, task.transformer, given["readout"], given["along"]
    recipes = [recipe(configuration, *size) for configuration in configurations]
    data, steps = task.data(given["settings"]), given["steps"] or task.steps
    seeds, store = range(given["seeds"]), kept(given["resume"])
    with store.alone(), pool(given) as workers:
        for each in recipes:  # fail before the long part
            check_memory(workers.free, each, widths[-1], given["seeds"])
            data.build(each, each.dims(widths[0]), [0], "cpu")
        with resumable(given["resume"]), progress() as watch:
            course = Course(task, data, steps, seeds, swept, lr, workers, watch, store)
            result = transfer(course, recipes, widths, grid, given["extend"])
    document = study(result)
    record = {"command": "scalecalc " + " ".join(sys.argv[1:]), **document.record}
    return replace(document, record=record), result.exit_code


def _base(text: str | None) -> Dims:
    wrong = f"cannot read the base size {text!r}; write e.g. N=32,N_e=32,M=4,K=4"
    return numbers("axis of the base size", text.split(",") if text else (), AXES, limits.SIZE, wrong)


def _grid(text: str | None) -> list[float] | None:
    if text is None:
        return None
    rates = reals("grid", text)
    if len(rates) in (2, 3):
        first, last, spacing = (*rates, 1.0)[:3]
        if spacing > 0 and 2 * spacing <= last - first < limits.RATES * spacing and max(-first, last) <= 1000:
            return [first + k * spacing for k in range(int((last - first) / spacing + 1e-9) + 1)]
    raise UsageError(f"the grid is {text!r}; give FIRST,LAST[,SPACING] with three rates or more, e.g. -10,-4")


def _increasing(label: str, numbers: list[int]) -> list[int]:
    if any(n < 1 for n in numbers) or any(a >= b for a, b in pairwise(numbers)):
        raise UsageError(f"{label} are {numbers!r}; give positive ones in increasing order, without repeats")
    return numbers
