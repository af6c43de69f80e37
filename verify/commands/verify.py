"""``scalecalc verify``: predicts exponents with the engine, measures them with torch, and compares.

Neither --help nor an error in the arguments needs torch.
Read next: ``campaigns/plans.py`` (what is run), ``campaigns/session.py`` (runs it), ``reports/output.py`` (writes it).
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaling_algebra import limits
from scaling_algebra.commands.options import (
    GIVEN,
    MODEL,
    READOUT_INIT,
    WHERE,
    Count,
    Name,
    PathType,
    Verb,
    choose_network,
    complete_names,
    find_traced,
    format_examples,
    parameterization_option,
)
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.configuration import DEFAULT_ARCHITECTURE, Configuration
from scaling_algebra.spec.networks.library import MOE_BLOCK, TITLES
from scaling_algebra.verify.campaigns import list_campaigns

from .shared import (
    POOL,
    REPORTING,
    choose_place,
    explain_interrupts,
    finish_run,
    open_pool,
    option_with_default,
    parse_bytes,
    parse_integers,
    parse_share,
    read_runs,
)

if TYPE_CHECKING:
    from scaling_algebra.verify.campaigns.plans import Job
    from scaling_algebra.verify.judging.claims import Claim


@click.command(
    "verify",
    cls=Verb,
    forms={"--merge": ("Merge several folders into one report.", "scaling_algebra.verify.commands.report")},
    epilog=format_examples(
        "scalecalc verify --regime III --optimizer adam --parameterization mssp",
        "scalecalc verify --regime II --claim h3.A2.2@2=-1/2 -o runs/a",
        "scalecalc verify --regime I --optimizer sgd --all -o rows.md",
        "scalecalc verify --merge runs/a runs/b -o runs/both",
    ),
)
@WHERE
@parameterization_option()
@READOUT_INIT
@GIVEN
@click.option(
    "--campaign",
    metavar="NAME|FILE",
    **complete_names(list_campaigns),
    help=f"Run many configurations instead: {', '.join(list_campaigns())}, or a TOML file of your own.",
)
@click.option(
    "--architecture",
    type=Name("architecture", TITLES),
    metavar="NAME",
    help=f"Name of a network, see scalecalc list.  [default: {DEFAULT_ARCHITECTURE}]",
)
@click.option(
    "--network", type=PathType(), metavar="FILE.toml", help="Instead of an architecture, a network of your own."
)
@MODEL
@POOL
@option_with_default("--dtype", default="float64", metavar="NAME", help="float64, float32 or bfloat16.")
@click.option("--sizes", metavar="N,N,...", help="Values of n, e.g. 32,48,64; default: chosen to take under a minute.")
@click.option(
    "--seeds",
    type=Count(1, limits.SEEDS),
    metavar="N",
    help="Number of replicas at every size; default: more at small sizes, where they are cheap.",
)
@option_with_default(
    "--steps", type=Count(0, limits.STEPS), default=2, metavar="T", help="Optimizer steps; the first 3 are predicted."
)
@click.option("--max-memory", metavar="SIZE", help="Memory for the models trained at once, e.g. 20GiB.")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="QUANTITY[@t]=EXPONENT",
    help="Test a claim of your own, e.g. h3.A2.2@2=-1/2, or '<h3@0, h3@2>@2=0' (repeatable); only claims decide "
    "the exit code.",
)
@click.option(
    "--planted",
    multiple=True,
    metavar="NAME=POWER",
    help="Train with this power instead, e.g. readout.lr=N^-1/2 (repeatable); the prediction does not "
    "change. A rate that is too large should be refuted; one that is too small may be INCONCLUSIVE.",
)
@click.option(
    "--shard", metavar="I/N", help="Measure only the I-th of N parts, without a report; join the parts with --merge."
)
@REPORTING
@click.option(
    "-o",
    "--output",
    type=PathType(),
    metavar="DIR|FILE",
    help="A folder for report.json, report.md, report.html and the state to resume an interrupted run from; or a file "
    "(ending .json, .md, ...) instead of stdout.",
)
@click.option(
    "--resume", type=PathType(), metavar="DIR", help="Continue an interrupted run that was started with -o DIR."
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Train real torch models at several sizes and compare every measured exponent with the predicted one.

    The standard parameterization (--parameterization sp) is predicted by the same engine.

    Exit codes: 0 at least four in five (--require) of the exponents not predicted to be exactly zero agree, none is
    refuted and every gate passes; 1 one is refuted, for example a predicted zero that is not zero; 2 wrong usage; 3
    fewer agree, or a gate fails, so the run proves nothing; 130 interrupted: what was measured is kept and reported,
    but proves nothing. With --claim only the claims are judged, by the same rule.
    """
    options = {p for p in ctx.params if ctx.get_parameter_source(p) is click.core.ParameterSource.COMMANDLINE}
    resume: Path | None = given["resume"]
    folder, file = choose_place(resume or given["output"], given["form"])
    required = parse_share(given["require"])

    from scaling_algebra.verify.measuring.store import Store, read_plan, write_plan

    most = None if given["max_memory"] is None else parse_bytes(given["max_memory"])
    _check_combination(options)
    plan = {} if resume is None else read_plan(resume)
    jobs, claims, command_line = read_runs(plan) if resume is not None else (*_read_request(given), _get_command_line())
    shard = parse_shard(plan.get("shard") or given["shard"])
    if shard != WHOLE and folder is None:
        raise UsageError("--shard i/n needs -o DIR")
    record = {"scalecalc": version("scalecalc"), "command": command_line, "claims": [str(c) for c in claims]}
    record |= {"shard": _format_shard(shard)} if shard != WHOLE else {}

    # torch is loaded here, after the arguments have been checked
    from scaling_algebra.verify.campaigns.session import Session
    from scaling_algebra.verify.measuring.predictions import has_work_budget

    how = f"continue with: scalecalc verify --resume {folder}" if folder else "give -o DIR to continue next time"
    store = Store(*[folder] if folder else [])
    with store.alone(), open_pool(given, most) as workers:
        session = Session(store, workers, shard)
        if resume is not None:
            session.check_stored(jobs)
            if changes := session.elsewhere(jobs):
                click.echo(f"scalecalc: warning: {changes}", err=True)
        session.check(jobs)
        if store.damaged:
            click.echo(
                f"scalecalc: warning: {len(store.damaged)} stored rows are damaged and are measured again", err=True
            )
        if folder is not None:
            write_plan(folder, {**record, "runs": [run.as_json() for run in jobs]}, resume is not None)
        if any(has_work_budget(job.configuration.network) for job in jobs):
            click.echo(f"scalecalc: {OWN}", err=True)
        with explain_interrupts(folder, how):
            session.perform(jobs)
    if session.interrupted:
        click.echo(f"scalecalc: interrupted; {how}", err=True)
    if shard != WHOLE:
        click.echo(f"shard {_format_shard(shard)} is in {folder}; merge all with: scalecalc verify --merge DIR...")
        return 130 if session.interrupted else 3 if session.failed else 0
    judged = [(run, run.report(session.store, claims, session.interrupted, required)) for run in jobs]
    return finish_run(judged, command_line, folder, file, given["form"], given["every"])


def _read_request(given: dict[str, Any]) -> tuple[list[Job], list[Claim]]:
    """Returns the runs and claims that the options of the command (``given``) ask for."""
    from scaling_algebra.verify.campaigns.plans import Effort, build_job, load_campaign
    from scaling_algebra.verify.judging.claims import Claim

    if given["campaign"] is not None:
        return load_campaign(given["campaign"]), []
    claims = [Claim.parse(text) for text in given["claims"]]
    where = {key: given[key] for key in ("ray", "readout_init", "epsilon", "given")}
    where["network"] = choose_network(given["architecture"], given["network"]) or MOE_BLOCK
    if find_traced() is not None and given["ray"] is None and given["regime"] is None:
        where["ray"] = find_traced().ray
    configuration = Configuration.of(given["regime"], given["optimizer"], given["parameterization"], **where)
    sizes = None if given["sizes"] is None else parse_integers("sizes", given["sizes"])
    effort = Effort(given["steps"], sizes, given["seeds"], given["dtype"])
    for claim in claims:  # before predictions are computed
        claim.check_steps(given["steps"])
    products = [c.quantity for c in claims if c.quantity.startswith("<")]
    run = build_job(configuration, effort, products, given["planted"])
    for claim in claims:
        claim.check(derive(configuration).analysis().table, run.steps)
    return [run], claims


OWN = (
    "for your own network, training runs first, then predictions get a limited work budget (claims: no limit); "
    "undecided quantities are only compared with the demands"
)
"""Printed before training."""
_WHAT = {"regime", "ray", "optimizer", "epsilon", "parameterization", "readout_init", "architecture", "network"}
_WHAT |= {"given", "planted", "sizes", "seeds", "steps", "dtype", "claims"}


def _check_combination(given: set[str]) -> None:
    for option, others in (("campaign", _WHAT), ("resume", _WHAT | {"campaign", "output", "shard"})):
        if option in given and given & others:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given & others))
            raise UsageError(f"--{option} already determines the runs; leave out {named}")


WHOLE = (1, 1)
WHERE_DONE = {"-o", "--output", "--workers", "--scheduler", "--shard"}
"""Options (each with a value) that do not change what is measured."""


def parse_shard(text: str | None) -> tuple[int, int]:
    """Reads a shard such as ``2/8``, the second of eight parts.

    Raises:
        UsageError: the text is anything else.
    """
    part, _, parts = (text or "1/1").partition("/")
    try:
        shard = limits.parse_integer(part), limits.parse_integer(parts)
    except ValueError:
        shard = 0, 0
    if not 1 <= shard[0] <= shard[1] <= limits.SIZE:
        raise UsageError(f"cannot read the shard {text!r}; write for example 2/8, the second of eight parts")
    return shard


def _format_shard(shard: tuple[int, int]) -> str:
    return "{}/{}".format(*shard)


def _get_command_line() -> str:
    """Returns the command line for the report, without options that only say where the work is done (``WHERE_DONE``),
    so that the report does not depend on them.
    """
    words, told = iter(sys.argv[1:]), []
    for word in words:
        if word in WHERE_DONE:
            next(words, None)
        elif word.partition("=")[0] not in WHERE_DONE:
            told.append(word)
    return "scalecalc " + shlex.join(told)
