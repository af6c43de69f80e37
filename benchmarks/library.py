"""Derives every network of the library in fresh processes, with the CPU time of each.

Run: ``python benchmarks/library.py run [--seconds 60]`` (a quarter of an hour; continues where it stopped), then ``...
tell``, which writes benchmarks/library.md (exponents, training, times) and prints the table of docs/library.md.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from fresh import build_command, run_fresh

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.networks.library import ARCHITECTURES

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence"
WRITTEN = Path(__file__).with_suffix(".md")
DERIVED, TRAINED = EVIDENCE / "library.json", EVIDENCE / "measure" / "library.json"
OPTIMIZERS = ("sgd", "adam", "adamw", "muon")
DEEP = "N=1,N_e=1,M=1,L=1"
"""The ray of networks with depth, restricted to their axes."""
SHOWN = ("sgd", "adam")
"""Optimizers whose exponents the docs show."""


def list_cases() -> Iterator[tuple[str, str, str]]:
    """Yields (network, regimes, optimizer); regimes that are the same for a network are one case, and with depth it
    is a ray."""
    for name in ARCHITECTURES:
        axes = {*ARCHITECTURES[name].axes.values()}
        alike: dict[tuple[object, ...], list[str]] = {}
        for regime, ray in REGIMES.items():
            alike.setdefault(tuple(ray[x] for x in ("N", "N_e", "M") if x in axes), []).append(regime)
        deep = ",".join(x for x in DEEP.split(",") if x.partition("=")[0] in axes)
        for where in [deep] if "L" in axes else [", ".join(x) for x in alike.values()]:
            yield from ((name, where, rule) for rule in OPTIMIZERS)


def derive_case(name: str, where: str, rule: str, seconds: int) -> dict[str, Any]:
    """Runs ``derive`` for muP and returns the answer and its CPU time."""
    place = ["--ray", where] if "=" in where else ["--regime", where.partition(",")[0]]
    command_line = ["derive", "--architecture", name, *place, "--optimizer", rule, "--parameterization", "mup"]
    done = run_fresh(build_command(*command_line), limit=seconds)
    record = {"network": name, "where": where, "optimizer": rule, "seconds": round(done.cpu, 1)}
    if done.status == 0:
        return {**record, "verdict": "found", "answer": parse_answer(done.out)}
    why = re.split("; (?:derive )?--", done.err.strip().rpartition("\n")[2].partition("): ")[2])[0]
    if left := re.search(r"not certified: (.+?) at t = (\d+) is undecided", done.out):
        why = f"{left[1]} at t={left[2]} is undecided"
    verdicts = {1: "none exists", 3: "UNDECIDED", -signal.SIGXCPU: f"no answer within {seconds} s"}
    if done.status not in verdicts:
        raise click.ClickException(f"{' '.join(command_line)}: exit code {done.status}\n{done.err}")
    return {**record, "verdict": verdicts[done.status], "answer": why}


def parse_answer(text: str) -> str:
    """Returns the multipliers, then init std, learning rate and epsilon of every tensor, on one line."""
    multipliers = re.findall(r"^(?:aggregation )?multiplier(?: (\w+))?: (\S+)", text, re.M)
    rows = text.partition("\ntensor ")[2].partition("\n\n")[0].splitlines()
    head = re.split(r" {2,}", f"tensor  {rows[0].strip()}")
    columns = [head.index(x) for x in ("init std", "lr", "eps") if x in head]
    tensors: dict[str, list[str]] = {}
    for cells in (re.split(r" {2,}", x.strip()) for x in rows[1:]):
        powers = ", ".join(cells[k] for k in columns).removesuffix(", -")
        tensors.setdefault(powers, []).append(cells[0])
    parts = [f"{name or 'multiplier'} {power}" for name, power in multipliers]
    return "; ".join([*parts, *(f"{', '.join(names)} {powers}" for powers, names in tensors.items())])


def read_records() -> list[dict[str, Any]]:
    """Returns the saved records, in the order of ``list_cases``."""
    kept = json.loads(DERIVED.read_text(encoding="utf-8"))["derived"] if DERIVED.exists() else []
    by = {(x["network"], x["where"], x["optimizer"]): x for x in kept}
    return [by[case] for case in list_cases() if case in by]


@click.group()
def main() -> None:
    """Derive every network of the library, or write the tables."""


@main.command()
@click.option("--seconds", default=60, show_default=True, help="CPU seconds for one answer.")
def run(seconds: int) -> None:
    """Derive the cases that are not in the evidence."""
    answers = read_records()
    for case in list_cases():
        if case not in {(x["network"], x["where"], x["optimizer"]) for x in answers}:
            answers.append(derive_case(*case, seconds))
            print(*case, answers[-1]["seconds"], answers[-1]["verdict"], flush=True)
            commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
            head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit}
            head["command"] = f"python benchmarks/library.py run --seconds {seconds}"
            DERIVED.write_text(json.dumps({**head, "derived": answers}, indent=1) + "\n", encoding="utf-8")


@main.command()
def tell() -> None:
    """Write the page with all tables and print the verdicts."""
    WRITTEN.write_text(build_page(), encoding="utf-8")
    print(build_verdict_table())


def build_page() -> str:
    """Returns the page: exponents, verdicts of training, CPU seconds."""
    parts = ["# Every network of the library", "Written by `python benchmarks/library.py tell`."]
    for rule in SHOWN:
        rows = [
            (f"`{x['network']}`", x["where"], x["answer"] if x["verdict"] == "found" else _format_open_case(x))
            for x in read_records()
            if x["optimizer"] == rule
        ]
        powers = "init std, learning rate" + ("" if rule == "sgd" else ", epsilon")
        parts += [f"## muP, {rule}", format_table(("network", "on", powers), rows)]
    parts += [
        "## Training",
        format_table(("trained", "agree", "refuted", "open", "of the refuted at small sizes"), read_measured()),
    ]
    return "\n\n".join([*parts, "## CPU seconds", build_time_table(), ""])


def build_verdict_table() -> str:
    """Returns a table: for each network, where muP is found, where none exists, and where it is undecided, with SGD
    and Adam."""
    rows: dict[str, list[str]] = {}
    for rule in SHOWN:
        for name in dict.fromkeys(x["network"] for x in read_records()):
            by: dict[str, list[str]] = {}
            for x in read_records():
                if (x["network"], x["optimizer"]) == (name, rule):
                    by.setdefault(_explain_verdict(x), []).append(x["where"])
            rows.setdefault(name, []).append("; ".join(f"{v} on {', '.join(w)}" for v, w in by.items()))
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        groups.setdefault(tuple(dict.fromkeys(cells)), []).append(f"`{name}`")
    return format_table(("networks", "muP"), ((", ".join(names), " / ".join(cells)) for cells, names in groups.items()))


def _explain_verdict(x: dict[str, Any]) -> str:
    """Returns the verdict; if it is UNDECIDED, with the first open demand or size."""
    why = x["answer"].partition(", but ")[2] or x["answer"]
    return f"{x['verdict']} ({why.partition(';')[0]})" if x["verdict"] == "UNDECIDED" else x["verdict"]


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Formats a Markdown table without padding, since cells are long."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _format_open_case(x: dict[str, Any]) -> str:
    return f"{x['verdict']}: `{x['answer']}`" if x["answer"] else x["verdict"]


def read_measured() -> Iterator[tuple[str, str, int, int, str]]:
    """Yields, for every trained run, the rows of the table of training (see ``build_page``)."""
    for name, test in json.loads(TRAINED.read_text(encoding="utf-8"))["tests"].items():
        if "exponents" in test:
            agree, refuted, left = (test["exponents"][x] for x in ("AGREES", "REFUTED", "INCONCLUSIVE"))
            run = name.partition("[")[2].rstrip("]")
            yield f"`{run}`", f"{agree} of {agree + refuted + left}", refuted, left, ", ".join(test["excused"])


def build_time_table() -> str:
    """Returns a table of the CPU seconds of fresh processes, in italics where muP is undecided."""
    rows: dict[tuple[str, str], list[str]] = {}
    for x in read_records():
        cell = f"{x['seconds']:.1f}"
        decided = x["verdict"] in ("found", "none exists")
        rows.setdefault((f"`{x['network']}`", x["where"]), []).append(cell if decided else f"*{cell}*")
    return (
        format_table(("network", "on", *OPTIMIZERS), ((*k, *v) for k, v in rows.items())) + f"\n\n{summarise_times()}"
    )


def summarise_times() -> str:
    """Returns the times in one line."""
    seconds = sorted(x["seconds"] for x in read_records())
    late = sum(x > 5 for x in seconds)
    open_ = sum(x["verdict"] not in ("found", "none exists") for x in read_records())
    return f"{len(seconds)} answers: median {statistics.median(seconds):.1f} s, {late} over 5 s, {open_} undecided."


if __name__ == "__main__":
    main()
