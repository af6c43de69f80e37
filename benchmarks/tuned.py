"""Why one rate for all, tuned at every width, is lower than the plan: runs a plan that was written before, and judges.

Run: ``python benchmarks/tuned.py run`` (three CPU minutes, goes on where it stopped), ``... judge`` (what came of every
expectation). Read next: ``verify/evidence/tuned/plan.toml`` (expectations), ``docs/guide/tuning.md`` (what follows).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from scaling_algebra.verify.hardware import Hardware, use_one_thread
from scaling_algebra.verify.studies.data import Data, load
from scaling_algebra.verify.studies.models import Model, Numbers, tuned
from scaling_algebra.verify.studies.training import How, trained

FOLDER = Path(__file__).parents[1] / "verify" / "evidence" / "tuned"
PLAN = tomllib.loads((FOLDER / "plan.toml").read_text(encoding="utf-8"))
RUNS = FOLDER / "runs.jsonl"
BASE, LAST = PLAN["widths"][0], PLAN["widths"][-1]
HALF = {"hidden": 0.5 * math.log2(LAST / BASE)}
"""What makes the hidden rate N^(-1/2) at the last width."""
KEY = ("kind", "N", "log2_lr", "rates", "steps")
Rates = Mapping[str, float]
"""log2 of what the rates of a group are multiplied by."""


class UpdateSizes:
    """What the updates of every matrix do to the signals of the held-out batch, after some steps."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.first: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, step: int, model: nn.Module, data: Data) -> None:
        linear = {name: x for name, x in model.named_modules() if isinstance(x, nn.Linear)}
        if not self.first:
            self.first = {name: x.weight.detach().clone() for name, x in linear.items()}
        if step not in PLAN["looks"]:
            return
        seen: dict[str, Tensor] = {}
        hooks = [
            x.register_forward_hook(lambda _, given, out, name=name: seen.update({name: given[0]}))
            for name, x in linear.items()
        ]
        model(data.batch(0, None, "cpu")[0])
        for hook in hooks:
            hook.remove()
        for name, x in linear.items():
            moved, h = x.weight - self.first[name], seen[name]
            sizes = {"dWh": h @ moved.T, "dW": moved, "h": h, "Wh": h @ self.first[name].T}
            row = {key: round(float(v.square().mean().sqrt()), 7) for key, v in sizes.items()}
            self.rows.append({"step": step, "weight": name, **row})


@lru_cache(maxsize=1)
def planned() -> dict[tuple[str, int], Numbers]:
    """The numbers of the plan and of one rate for all, by width."""
    model, sizes = Model(PLAN["model"]), [{"N": n} for n in PLAN["widths"]]
    by_kind = {kind: model.numbers(kind, PLAN["optimizer"], sizes) for kind in ("mup", "sp")}
    return {(kind, n): x[k] for kind, x in by_kind.items() for k, n in enumerate(PLAN["widths"])}


def train(kind: str, n: int, log2: float, rates: Rates, steps: int) -> dict[str, Any]:
    """One row: the losses of all seeds, and in long runs what updates do."""
    data, looks = load(PLAN["data"]), steps > PLAN["steps"]
    how = How(PLAN["model"], PLAN["data"], (), data.digest, steps)
    factors = {pattern: 2.0**x for group, x in rates.items() for pattern in PLAN["groups"][group]}
    numbers, losses, updates = tuned(planned()[kind, n], factors), [], []
    for seed in range(2 if looks else PLAN["seeds"]):
        watch = UpdateSizes() if looks else None
        with use_one_thread():
            losses.append(round(trained(Hardware(), how, {"N": n}, numbers, 2.0**log2, seed, watch)[1], 4))
        updates += [{"seed": seed, **row} for row in watch.rows] if watch else []
    row = {"kind": kind, "N": n, "log2_lr": log2, "rates": dict(rates), "steps": steps, "losses": losses}
    return {**row, "updates": updates} if looks else row


def rows() -> list[dict[str, Any]]:
    """What was trained."""
    return [json.loads(x) for x in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def means(kind: str, n: int, rates: Rates | None = None) -> dict[float, tuple[float, float]]:
    """Mean loss with its standard error by log2 rate."""
    found = {}
    for r in rows():
        if [r[key] for key in KEY if key != "log2_lr"] == [kind, n, dict(rates or {}), PLAN["steps"]]:
            x = np.array(r["losses"])
            found[r["log2_lr"]] = float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5)
    return dict(sorted(found.items()))


def best(kind: str, n: int, rates: Rates | None = None) -> float:
    """log2 of the best rate."""
    by = means(kind, n, rates)
    return min(by, key=lambda x: by[x])


def found_at_base() -> dict[str, float]:
    """The factors of the groups that were best at the base, where they are better than none."""
    at, chosen = best("mup", BASE), {}
    for group in PLAN["groups"]:
        losses = {0: means("mup", BASE)[at][0]} | {f: means("mup", BASE, {group: f})[at][0] for f in PLAN["factors"]}
        if factor := min(losses, key=lambda f: losses[f]):
            chosen[group] = factor
    return chosen


def asked() -> Iterator[tuple[str, int, float, Rates, int]]:
    """The runs, in order; later ones depend on what earlier ones gave."""
    short, looks = PLAN["steps"], max(PLAN["looks"])
    yield from (("mup", BASE, x, {}, short) for x in PLAN["rates"])
    at = best("mup", BASE)
    yield from (("mup", BASE, at, {g: f}, short) for g in PLAN["groups"] for f in PLAN["factors"])
    for kind in ("sp", "mup"):
        yield from ((kind, LAST, x, {}, short) for x in PLAN["rates"])
    for rates in (found_at_base(), HALF):
        for n in (BASE, LAST) if rates != HALF else (LAST,):
            yield from (("mup", n, at + x, rates, short) for x in (-2, -1, 0, 1))
    yield from (("mup", n, at, {}, looks) for n in PLAN["widths"])


def exponents() -> dict[str, dict[int, float]]:
    """By matrix and step: p, the exponent in N of rms(dW h) / (rms(dW) rms(h))."""
    made: dict[tuple[str, int], dict[int, list[float]]] = {}
    for r in rows():
        for x in r.get("updates", ()):
            ratio = x["dWh"] / (x["dW"] * x["h"])
            made.setdefault((x["weight"], x["step"]), {}).setdefault(r["N"], []).append(math.log2(ratio))
    slopes: dict[str, dict[int, float]] = {}
    for (weight, step), by in made.items():
        x, y = np.log2(list(by)), [np.mean(v) for v in by.values()]
        slopes.setdefault(weight, {})[step] = float(np.polyfit(x, y, 1)[0])
    return slopes


@click.group()
def main() -> None:
    """Why one rate for all, tuned at every width, is lower than the plan."""


@main.command()
def run() -> None:
    """Trains what is asked for and not there."""
    for one in asked():
        if list(one) not in [[r[key] for key in KEY] for r in rows()]:
            row = train(*one)
            with RUNS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(json.dumps({key: row[key] for key in KEY}) + f" {np.mean(row['losses']):.4f}")


@main.command()
def judge() -> None:
    """What came of every expectation."""
    at, one = best("mup", BASE), best("sp", LAST)
    tuned_one, plain = means("sp", LAST)[one], means("mup", LAST)[at]
    factors = found_at_base()
    cases = {"plan": {}, "tuned at the base": factors, "hidden rate N^(-1/2)": HALF}
    table = [["one rate for all", f"{tuned_one[0]:.3f} +- {tuned_one[1]:.3f}", f"{one:g}", ""]]
    for name, rates in cases.items():
        by = means("mup", LAST, rates)
        share = (plain[0] - by[at][0]) / (plain[0] - tuned_one[0])
        table.append([name, f"{by[at][0]:.3f} +- {by[at][1]:.3f}", f"{best('mup', LAST, rates):g}", f"{share:.0%}"])
    click.echo(tabulate(table, (f"N = {LAST}", f"loss at 2^{at:g}", "best log2 rate", "of the gap")))
    chosen = ", ".join(f"{g} 2^{f:+g}" for g, f in factors.items()) or "none"
    before, after = (means("mup", BASE, x)[at][0] for x in ({}, factors))
    click.echo(f"\nfactors tuned at N = {BASE}: {chosen}; the loss there {before:.3f}, with them {after:.3f}\n")
    slopes = exponents()
    looks = [step for step in PLAN["looks"] if all(step in by for by in slopes.values())]
    lines = [
        [group, *(f"{slopes[pattern.removesuffix('.weight')][step]:.2f}" for step in looks)]
        for group, (pattern,) in PLAN["groups"].items()
        if slopes and group != "input"
    ]
    click.echo(tabulate(lines, ("p after step", *looks)) if lines else "the updates were not measured")


if __name__ == "__main__":
    main()
