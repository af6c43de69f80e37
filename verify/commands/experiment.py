"""``scalecalc study``: repeats the experiments of the papers and judges each of their claims."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from scaling_algebra import limits
from scaling_algebra.commands.options import Answer, Count, Verb, format_examples, prints_answer
from scaling_algebra.errors import UsageError, find_entry

from .shared import POOL, RESUME, advise_resuming, open_pool, open_store, parse_integers, show_progress

STUDIES = {
    "transfer": (
        "Test whether the learning rate tuned on a small model is the best one for a large model.",
        "scaling_algebra.verify.commands.transfer",
    ),
    "limit": ("Compute the limit of infinite width.", "scaling_algebra.verify.commands.limit"),
}
"""Studies that have their own command with its own options."""


@click.command(
    "study",
    cls=Verb,
    forms=STUDIES,
    epilog=format_examples(
        "scalecalc study --list",
        "scalecalc study routers --only softmax --seeds 64 -o routers.md",
        "scalecalc study transfer --model mymodel.py:build",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the experiments and their trials.")
@click.option("--only", metavar="TEXT", help="Only trials whose title contains this text.")
@POOL
@click.option("--sizes", metavar="N,N,...", help="Values of n, e.g. 64,128,256; default: the experiment's own.")
@click.option("--seeds", type=Count(1, limits.SEEDS), help="Replicas at every size; default: the experiment's own.")
@RESUME
@prints_answer()
def command(
    names: tuple[str, ...],
    listing: bool,
    only: str | None,
    sizes: str | None,
    seeds: int | None,
    resume: Path | None,
    **who: Any,
) -> tuple[Answer, int]:
    """Run experiments of the papers (without NAME all of them) and judge every claim.

    `study transfer` trains a model at several sizes and rates, `study limit` computes the limit of infinite width; each
    has options of its own (study transfer --help).

    A claim is predicted, published or planted; a claim that contradicts the prediction must be refuted. Exit codes: 0
    every claim came out as predicted, 1 one did not, 2 wrong usage, 3 inconclusive, 130 interrupted (complete trials
    are reported).
    """
    import numpy  # noqa: F401  torch warns where it is missing
    import torch  # noqa: F401  scipy stumbles where it is missing

    from scaling_algebra.verify.studies.presentation import build_result_document, list_experiments
    from scaling_algebra.verify.studies.runner import EXPERIMENTS, find_worst_code, plan_conditions, run_experiments

    if other := next((name for name in names if name in STUDIES), ""):
        raise UsageError(f"{other} is a command of its own with other options; write scalecalc study {other} ...")
    for name in names:
        find_entry("study", name, {**EXPERIMENTS, **STUDIES})
    chosen = [find_entry("study", name, EXPERIMENTS) for name in dict.fromkeys(names or EXPERIMENTS)]
    if only is not None:
        matching = [tuple(t for t in e.trials if only.lower() in t.title.lower()) for e in chosen]
        chosen = [replace(e, trials=trials) for e, trials in zip(chosen, matching, strict=True) if trials]
        if not chosen:
            raise UsageError(f"no trial has {only!r} in its title; see scalecalc study --list")
    if listing:
        return list_experiments(chosen), 0
    values = None if sizes is None else parse_integers("sizes", sizes)
    results, store = [], open_store(resume)
    with store.alone(), open_pool(who) as workers, show_progress() as watch:
        plans = [plan_conditions(e, workers.hardware.device, values, seeds) for e in chosen]
        for e, how in zip(chosen, plans, strict=True):
            results.append(run_experiments(e, how, workers, store, partial(watch, len(e.trials))))
            if results[-1].interrupted:
                break
    if any(result.interrupted for result in results):
        click.echo(f"scalecalc: interrupted; {advise_resuming(resume)}", err=True)
    return build_result_document(results), find_worst_code(results)
