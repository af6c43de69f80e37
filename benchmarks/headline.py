"""Judges the headline experiment by the rule that its plan fixed in advance, and draws it.

Run: ``python benchmarks/headline.py judge`` (the table of verdicts), ``... draw DIR`` (the figures). Both read the
committed evidence, which ``study transfer`` of commit 14223e7e measured on networks of its own.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "headline"
PLAN = EVIDENCE / "plan.toml"
FIRST = ("digits_sgd_I", "digits_sgd_II", "digits_sgd_III")
"""The runs in the figures of the README and of docs/headline.md."""


def read_plan() -> dict[str, Any]:
    """Returns the plan."""
    return tomllib.loads(PLAN.read_text(encoding="utf-8"))


def build_arguments(plan: Mapping[str, Any], run: Mapping[str, str]) -> list[str]:
    """Returns the arguments of ``scalecalc`` for one run of the plan."""
    options = shlex.split(run["arguments"])
    return [
        "study",
        "transfer",
        *options,
        "--base",
        plan["base"][options[options.index("--regime") + 1]],
        "--device",
        "cpu",
    ]


def read_records(folder: Path = EVIDENCE) -> dict[str, dict[str, Any]]:
    """Returns the records of the plan's runs, in its order, without those that were not run."""
    paths = {run["name"]: folder / f"{run['name']}.json" for run in read_plan()["run"]}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def judge_losses(record: Mapping[str, Any]) -> str:
    """Returns the verdict of the plan's rule for improvement with scale, in regimes II and III."""
    scale = {name: p["improvement"]["verdict"] for name, p in record["parameterizations"].items()}
    gap = find_largest_gap(record)["verdict"]
    if gap == "BETTER":
        return "REFUTED"
    if gap != "WORSE":
        return "OPEN"
    return "SHOWN" if scale["mup"] in ("STALLS", "WORSENS") and scale["mssp"] == "IMPROVES" else "GAP ONLY"


def judge_drift(record: Mapping[str, Any]) -> str:
    """Returns the verdict of the plan's rule for the best learning rate, in regimes II and III."""
    mup, mssp = (record["parameterizations"][name]["drift"] for name in ("mup", "mssp"))
    if mup["verdict"] == "TRANSFERS":
        return "REFUTED"
    upwards = mup["verdict"] == "DRIFTS" and mup["slope"] > 0
    return "SHOWN" if upwards and mssp["verdict"] == "TRANSFERS" else "OPEN"


def judge_control(record: Mapping[str, Any]) -> str:
    """Returns the verdict of the plan's rule for regime I."""
    gap = find_largest_gap(record)
    return "HOLDS" if gap["verdict"] == "EQUAL" or gap["low"] <= 0 <= gap["high"] else "FAILS"


def find_largest_gap(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the comparison of muP with MSSP at the largest width."""
    gaps: list[Mapping[str, Any]] = [c for c in record["comparisons"] if (c["one"], c["other"]) == ("mup", "mssp")]
    return max(gaps, key=lambda c: int(c["width"]))


def format_factor(of: Mapping[str, Any], key: str) -> str:
    """Formats a change of log2 of the loss as a factor with its interval."""
    return "{:.2f} [{:.2f}, {:.2f}]".format(*(2 ** of[k] for k in (key, "low", "high")))


@click.group()
def main() -> None:
    """Judge or draw the headline experiment."""


@main.command()
def judge() -> None:
    """Print the verdicts of the plan's rule on the committed evidence."""
    rows, by_name = [], read_records()
    for name, record in by_name.items():
        by = record["parameterizations"]
        scale = [
            f"{format_factor(by[p]['improvement'], 'slope')} {by[p]['improvement']['verdict']}" for p in ("mup", "mssp")
        ]
        control = "_I" in name and "_II" not in name
        verdicts = [judge_control(record), ""] if control else [judge_losses(record), judge_drift(record)]
        maximal = name.endswith("maximal")
        rows.append(
            [name, *scale, format_factor(find_largest_gap(record), "ratio"), *(["", ""] if maximal else verdicts)]
        )
    header = ("run", "muP, per doubling", "MSSP, per doubling", "muP over MSSP, largest N", "loss", "drift")
    click.echo(tabulate(rows, header))
    drifts = []
    for name, record in by_name.items():
        kept = {p: v["drift"] for p, v in record["parameterizations"].items()}
        drift_of = {p: f"{d['slope']:+.2f} [{d['low']:+.2f}, {d['high']:+.2f}] {d['verdict']}" for p, d in kept.items()}
        drifts.append([name, *(drift_of.get(p, "") for p in ("mup", "mssp", "sp"))])
    click.echo()
    click.echo(tabulate(drifts, ("drift per doubling", "muP", "MSSP", "SP")))
    for one in read_plan()["run"]:
        if one["name"] not in by_name:
            click.echo(f"not run: {one['name']}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def draw(folder: Path) -> None:
    """Draw the figures of docs/headline.md from the committed evidence."""
    from scaling_algebra.verify.studies.figures import build_picture

    titles = [f"{task}, {rule.upper()}, regime {regime}" for task, rule, regime in (n.split("_") for n in FIRST)]
    for name, kind in {"headline": "losses", "headline_rates_digits_sgd": "rates"}.items():
        build_picture(kind, folder / f"{name}.png", [EVIDENCE / f"{n}.json" for n in FIRST], titles)


if __name__ == "__main__":
    main()
