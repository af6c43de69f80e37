"""Derives every network of the library in fresh processes, with the CPU time of each.

Run: ``python benchmarks/library.py run [--seconds 60]`` (a quarter of an hour; goes on where it stopped), then
``... tell``, which writes benchmarks/library.md (exponents, training, times) and prints the table of docs/library.md.
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
from fresh import command, fresh

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.networks.library import ARCHITECTURES

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence"
WRITTEN = Path(__file__).with_suffix(".md")
DERIVED, TRAINED = EVIDENCE / "library.json", EVIDENCE / "measure" / "library.json"
OPTIMIZERS = ("sgd", "adam", "adamw", "muon")
DEEP = "N=1,N_e=1,M=1,L=1"
"""The ray of networks that have depth, as far as they have its axes."""
SHOWN = ("sgd", "adam")
"""Optimizers whose exponents the docs show."""


def cases() -> Iterator[tuple[str, str, str]]:
    """Network, regimes that are one for it (with depth a ray), optimizer."""
    for name in ARCHITECTURES:
        axes = {*ARCHITECTURES[name].axes.values()}
        alike: dict[tuple[object, ...], list[str]] = {}
        for regime, ray in REGIMES.items():
            alike.setdefault(tuple(ray[x] for x in ("N", "N_e", "M") if x in axes), []).append(regime)
        deep = ",".join(x for x in DEEP.split(",") if x.partition("=")[0] in axes)
        for where in [deep] if "L" in axes else [", ".join(x) for x in alike.values()]:
            yield from ((name, where, rule) for rule in OPTIMIZERS)


def derived(name: str, where: str, rule: str, seconds: int) -> dict[str, Any]:
    """The answer of ``derive`` about muP, and the CPU time of its process."""
    place = ["--ray", where] if "=" in where else ["--regime", where.partition(",")[0]]
    command_line = ["derive", "--architecture", name, *place, "--optimizer", rule, "--parameterization", "mup"]
    done = fresh(command(*command_line), limit=seconds)
    record = {"network": name, "where": where, "optimizer": rule, "seconds": round(done.cpu, 1)}
    if done.status == 0:
        return {**record, "verdict": "found", "answer": answer(done.out)}
    why = re.split("; (?:derive )?--", done.err.strip().rpartition("\n")[2].partition("): ")[2])[0]
    if left := re.search(r"not certified: (.+?) at t = (\d+) is undecided", done.out):
        why = f"{left[1]} at t={left[2]} is undecided"
    verdicts = {1: "none exists", 3: "UNDECIDED", -signal.SIGXCPU: f"no answer within {seconds} s"}
    if done.status not in verdicts:
        raise click.ClickException(f"{' '.join(command_line)}: exit code {done.status}\n{done.err}")
    return {**record, "verdict": verdicts[done.status], "answer": why}


def answer(text: str) -> str:
    """Multipliers, then init std, learning rate and epsilon of every tensor, on one line."""
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


def records() -> list[dict[str, Any]]:
    """The kept records, in the order of ``cases``."""
    kept = json.loads(DERIVED.read_text(encoding="utf-8"))["derived"] if DERIVED.exists() else []
    by = {(x["network"], x["where"], x["optimizer"]): x for x in kept}
    return [by[case] for case in cases() if case in by]


@click.group()
def main() -> None:
    """Every network of the library."""


@main.command()
@click.option("--seconds", default=60, show_default=True, help="CPU seconds for one answer.")
def run(seconds: int) -> None:
    """Derive what is not kept."""
    answers = records()
    for case in cases():
        if case not in {(x["network"], x["where"], x["optimizer"]) for x in answers}:
            answers.append(derived(*case, seconds))
            print(*case, answers[-1]["seconds"], answers[-1]["verdict"], flush=True)
            commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
            head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit}
            head["command"] = f"python benchmarks/library.py run --seconds {seconds}"
            DERIVED.write_text(json.dumps({**head, "derived": answers}, indent=1) + "\n", encoding="utf-8")


@main.command()
def tell() -> None:
    """Write the page of all tables and print the verdicts."""
    WRITTEN.write_text(page(), encoding="utf-8")
    print(verdicts())


def page() -> str:
    """Exponents, verdicts of training, CPU seconds."""
    parts = ["# Every network of the library", "Written by `python benchmarks/library.py tell`."]
    for rule in SHOWN:
        rows = [
            (f"`{x['network']}`", x["where"], x["answer"] if x["verdict"] == "found" else _without(x))
            for x in records()
            if x["optimizer"] == rule
        ]
        powers = "init std, learning rate" + ("" if rule == "sgd" else ", epsilon")
        parts += [f"## muP, {rule}", table(("network", "on", powers), rows)]
    parts += [
        "## Training",
        table(("trained", "agree", "refuted", "open", "of the refuted at small sizes"), measured()),
    ]
    return "\n\n".join([*parts, "## CPU seconds", times(), ""])


def verdicts() -> str:
    """Of every network where muP with SGD and with Adam is found, where none exists, and where the search ends."""
    rows: dict[str, list[str]] = {}
    for rule in SHOWN:
        for name in dict.fromkeys(x["network"] for x in records()):
            by: dict[str, list[str]] = {}
            for x in records():
                if (x["network"], x["optimizer"]) == (name, rule):
                    by.setdefault(_because(x), []).append(x["where"])
            rows.setdefault(name, []).append("; ".join(f"{v} on {', '.join(w)}" for v, w in by.items()))
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows.items():
        groups.setdefault(tuple(dict.fromkeys(cells)), []).append(f"`{name}`")
    return table(("networks", "muP"), ((", ".join(names), " / ".join(cells)) for cells, names in groups.items()))


def _because(x: dict[str, Any]) -> str:
    """The verdict, and of an undecided one the first demand or size that is open."""
    why = x["answer"].partition(", but ")[2] or x["answer"]
    return f"{x['verdict']} ({why.partition(';')[0]})" if x["verdict"] == "UNDECIDED" else x["verdict"]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown, without padding: cells are long."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def _without(x: dict[str, Any]) -> str:
    return f"{x['verdict']}: `{x['answer']}`" if x["answer"] else x["verdict"]


def measured() -> Iterator[tuple[str, str, int, int, str]]:
    """Run, agreeing of all, refuted, open, refuted at sizes that are called too small."""
    for name, test in json.loads(TRAINED.read_text(encoding="utf-8"))["tests"].items():
        if "exponents" in test:
            agree, refuted, left = (test["exponents"][x] for x in ("AGREES", "REFUTED", "INCONCLUSIVE"))
            run = name.partition("[")[2].rstrip("]")
            yield f"`{run}`", f"{agree} of {agree + refuted + left}", refuted, left, ", ".join(test["excused"])


def times() -> str:
    """CPU seconds of cold processes; in italics where muP is not decided."""
    rows: dict[tuple[str, str], list[str]] = {}
    for x in records():
        cell = f"{x['seconds']:.1f}"
        decided = x["verdict"] in ("found", "none exists")
        rows.setdefault((f"`{x['network']}`", x["where"]), []).append(cell if decided else f"*{cell}*")
    return table(("network", "on", *OPTIMIZERS), ((*k, *v) for k, v in rows.items())) + f"\n\n{summary()}"


def summary() -> str:
    """The times in a line."""
    seconds = sorted(x["seconds"] for x in records())
    late = sum(x > 5 for x in seconds)
    open_ = sum(x["verdict"] not in ("found", "none exists") for x in records())
    return f"{len(seconds)} answers: median {statistics.median(seconds):.1f} s, {late} over 5 s, {open_} undecided."


if __name__ == "__main__":
    main()
