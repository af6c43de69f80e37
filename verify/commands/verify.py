"""``scalecalc verify`` and ``scalecalc report``: predict with the engine, measure with torch, compare, merge.

Read next: ``campaign.py`` (what is run), ``session.py`` (runs it), ``output.py`` (what is written).
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from scaling_algebra.commands.options import WHERE
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS
from scaling_algebra.verify.campaigns.budget import in_bytes, seconds
from scaling_algebra.verify.campaigns.campaign import ARCHITECTURES, Job, campaigns, job, load
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.measuring.cells import rank
from scaling_algebra.verify.measuring.store import Store, read_plan, write_plan
from scaling_algebra.verify.reports.output import Judged, as_json, closing, document, exit_code, sentence, write
from scaling_algebra.verify.reports.output import evidence as write_evidence

FORMATS = ("text", "json")


@click.command("verify")
@WHERE
@click.option(
    "--parameterization", default="mssp", show_default=True, metavar="NAME", help=", ".join(PARAMETERIZATIONS)
)
@click.option("--readout-init", type=str, metavar="KIND", help=f"{' or '.join(READOUTS)}; default: the definition's.")
@click.option(
    "--campaign",
    metavar="NAME|FILE",
    help=f"Run many configurations instead: {', '.join(campaigns())}, or a TOML file of your own.",
)
@click.option("--architecture", default="moe", show_default=True, metavar="NAME", help=", ".join(ARCHITECTURES))
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu or cuda")
@click.option("--dtype", default="float64", show_default=True, metavar="NAME", help="float64, float32 or bfloat16")
@click.option("--sizes", metavar="N,N,...", help="Values of n, e.g. 32,48,64; default: chosen to take under a minute.")
@click.option("--seeds", type=int, help="Replicas at every size; default: more where they are cheap.")
@click.option("--steps", type=int, default=2, show_default=True, help="Optimizer steps; the first 3 are predicted.")
@click.option("--budget", metavar="TIME", help="Choose sizes and seeds for this time, e.g. 60s or 5m (all runs).")
@click.option("--max-memory", metavar="SIZE", help="Memory for the models trained at once, e.g. 20GiB.")
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="QUANTITY[@t]=EXPONENT",
    help="Test a claim of your own, e.g. h3.A2.2@2=-1/2, or '<h3@0, h3@2>@2=0' (repeatable); only claims decide "
    "the exit code.",
)
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE.json",
    help="Write report.json, report.md and report.html here, and what is needed to go on after an interrupt.",
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with an interrupted -o DIR.")
@click.pass_context
def command(
    ctx: click.Context,
    regime: str | None,
    ray: str | None,
    optimizer: str,
    parameterization: str,
    readout_init: str | None,
    campaign: str | None,
    architecture: str,
    device: str,
    dtype: str,
    sizes: str | None,
    seeds: int | None,
    steps: int,
    budget: str | None,
    max_memory: str | None,
    claims: tuple[str, ...],
    form: str,
    output: Path | None,
    resume: Path | None,
) -> int:
    """Train real torch models at several sizes and compare every measured exponent with the predicted one.

    The standard parameterization (--parameterization sp) is predicted by the same engine. Exit codes: 0 the predictions
    (or claims) hold, 1 one is refuted, 2 wrong usage, 3 inconclusive or interrupted. Started by torchrun or as a Slurm
    array with -o DIR, every process does its share; `scalecalc report DIR` merges them.
    """
    _check_format(form)
    given = {p for p in ctx.params if ctx.get_parameter_source(p) is click.core.ParameterSource.COMMANDLINE}
    folder, command = resume or (output if output and output.suffix != ".json" else None), _command()
    mine, processes = rank()
    time_allowed, most = None if budget is None else seconds(budget), in_bytes(max_memory) if max_memory else None
    _check_combination(given, folder, processes)
    if output is not None and folder is None and not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: {output.parent} is not a folder; create it or choose another -o FILE")
    if resume is not None:
        plan = read_plan(resume)
        jobs, wanted, command = _planned(plan)
    elif campaign is not None:
        jobs, wanted = load(campaign), []
    else:
        wanted = [Claim.parse(text) for text in claims]
        products = [c.quantity for c in wanted if c.quantity.startswith("<")]
        options: dict[str, Any] = {
            "architecture": architecture,
            "ray": ray,
            "readout_init": readout_init,
            "steps": steps,
            "dtype": dtype,
        }
        chosen = None if sizes is None else _sizes(sizes)
        jobs = [job(regime, optimizer, parameterization, sizes=chosen, seeds=seeds, products=products, **options)]
        for claim in wanted:
            claim.check(jobs[0].signals().quantities if architecture == "moe" else jobs[0].prediction(), steps)

    if time_allowed and any(run.architecture == "transformer" for run in jobs):
        raise UsageError("--budget chooses sizes of the MoE block; give --sizes and --seeds for a transformer")

    # torch is loaded here, after the arguments are known to be sound
    from scaling_algebra.verify.campaigns.session import Session, device_of

    session = Session(Store(*[folder] if folder else []), device_of(device), most, mine, processes)

    def keep(runs: Sequence[Job], again: bool = False) -> None:
        if folder is not None:
            plan = {"scalecalc": version("scalecalc"), "command": command, "claims": [str(c) for c in wanted]}
            write_plan(folder, {**plan, "runs": [run.as_json() for run in runs]}, again or resume is not None)

    keep(jobs)
    if time_allowed:
        jobs = session.within(jobs, float(time_allowed), keep)
    else:
        session.perform(jobs)
    if processes > 1:
        click.echo(f"process {mine} of {processes} is done; merge with: scalecalc report {folder}", err=True)
        return 3 if session.interrupted else 0
    judged = [(run, run.report(session.store, wanted, session.interrupted)) for run in jobs]
    code = _finish(judged, command, form, folder)
    if output is not None and folder is None:
        output.write_text(json.dumps(_json(judged, command), indent=1) + "\n")
    if session.interrupted:
        again = f"continue with: scalecalc verify --resume {folder}" if folder else "give -o DIR to continue next time"
        click.echo(f"scalecalc: interrupted; {again}", err=True)
    return code


@click.command("report")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Default: the first DIR.")
@click.option("--evidence", type=click.Path(path_type=Path), metavar="DIR", help="Also write a short record to keep.")
def report(folders: tuple[Path, ...], form: str, output: Path | None, evidence: Path | None) -> int:
    """Merge what one or several processes measured into one report: report.json, report.md, report.html.

    All DIRs must hold parts of the same plan, as `scalecalc verify -o DIR` writes it. Exit codes as of verify; 3 if
    parts are missing.
    """
    _check_format(form)
    plans = [read_plan(folder) for folder in folders]
    for folder, plan in zip(folders, plans, strict=True):
        if plan["runs"] != plans[0]["runs"]:
            raise UsageError(f"{folder} holds other runs than {folders[0]}; report them separately")
    jobs, wanted, command = _planned(plans[0])
    store = Store(*folders)
    judged = [(run, run.report(store, wanted)) for run in jobs]
    if evidence is not None:
        write_evidence(evidence, judged, command)
    return _finish(judged, command, form, output or folders[0])


def _finish(judged: Judged, command: str, form: str, folder: Path | None) -> int:
    """Prints and writes; the exit code."""
    if folder is not None:
        write(folder, judged, command)
    if form == "json":
        click.echo(json.dumps(_json(judged, command), indent=2))
    else:
        click.echo(judged[0][1].text() if len(judged) == 1 else _summary(judged))
    return exit_code(judged)


def _json(judged: Judged, command: str) -> dict[str, Any]:
    """One run in the contract of ``verify``; several as a document."""
    return {"command": command, **as_json(*judged[0])} if len(judged) == 1 else document(judged, command)


def _summary(judged: Judged) -> str:
    """A table of runs, what does not agree, and one closing line."""
    rows = [
        (run.name, *found.counts.values(), f"{found.environment.get('wall_seconds', 0):.0f} s") for run, found in judged
    ]
    table = tabulate(rows, ("run", "agree", "refuted", "inconclusive", "time"), tablefmt="simple")
    open_rows = [
        f"{run.name}: {line}"
        for run, found in judged
        for line in [
            *(str(g) for g in found.gates if not g.passed),
            *(sentence(r) for r in found.judged if str(r.verdict) != "AGREES"),
        ]
    ]
    return "\n\n".join([table, *(["\n".join(open_rows)] if open_rows else []), closing(judged)])


def _planned(plan: dict[str, Any]) -> tuple[list[Job], list[Claim], str]:
    claims = [Claim.parse(text) for text in plan.get("claims", [])]
    return [Job.from_json(run) for run in plan["runs"]], claims, str(plan.get("command", ""))


_WHAT = {
    "architecture",
    "regime",
    "ray",
    "optimizer",
    "parameterization",
    "readout_init",
    "sizes",
    "seeds",
    "steps",
    "dtype",
    "claims",
}


def _check_combination(given: set[str], folder: Path | None, processes: int) -> None:
    for one, others in (("campaign", _WHAT), ("resume", _WHAT | {"campaign", "output", "budget"})):
        if one in given and given & others:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given & others))
            raise UsageError(f"--{one} says what to run; leave out {named}")
    if "budget" in given and given & {"sizes", "seeds"}:
        raise UsageError("--budget chooses sizes and seeds; leave out --sizes and --seeds")
    if processes > 1 and folder is None:
        raise UsageError(f"{processes} processes share a folder; give -o DIR")
    if processes > 1 and "budget" in given:
        raise UsageError("--budget is for one process; give --sizes and --seeds, or a --campaign")


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise UsageError(f"no format named {form!r}; use {' or '.join(FORMATS)}")


def _command() -> str:
    return "scalecalc " + shlex.join(sys.argv[1:])


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"cannot read the sizes {text!r}; write integers with commas, e.g. 32,48,64") from None
