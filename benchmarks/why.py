"""Why one rate for all, tuned at every width, is lower than the plan: runs the plan file that was written before.

Run: ``python benchmarks/why.py run`` (10 CPU minutes, goes on where it stopped), ``... judge`` (what came of every
expectation). Read next: ``verify/evidence/text/why.toml`` (expectations), ``docs/guide/tuning.md`` (what follows).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.verify.hardware import Hardware, spare_threads
from scaling_algebra.verify.studies.data import Data, load
from scaling_algebra.verify.studies.models import Model, Numbers
from scaling_algebra.verify.studies.training import How, trained

FOLDER = Path(__file__).parents[1] / "verify" / "evidence" / "text"
PLAN = tomllib.loads((FOLDER / "why.toml").read_text(encoding="utf-8"))
RUNS = FOLDER / "why.jsonl"
LOOKS = (1, 3, 10, 30, 100, 300)
"""Steps after which updates are measured."""
Rates = Mapping[str, float]
"""log2 of what the rates of a group are multiplied by."""


def sizes() -> list[dict[str, int]]:
    return [{"N": n, "L": 1} for n in PLAN["widths"]]


@lru_cache(maxsize=1)
def planned() -> dict[tuple[str, int], Numbers]:
    """The numbers of the plan and of one rate for all, by width."""
    model = Model(PLAN["model"])
    by_kind = {kind: model.numbers(kind, "adamw", sizes()) for kind in ("mup", "sp")}
    return {(kind, n): x[k] for kind, x in by_kind.items() for k, n in enumerate(PLAN["widths"])}


def changed(numbers: Numbers, rates: Rates) -> Numbers:
    """The numbers with the rates of groups multiplied."""
    patterns = [(p, 2.0 ** rates[group]) for group, ps in PLAN["groups"].items() if group in rates for p in ps]
    return {
        name: replace(x, lr=x.lr * float(np.prod([f for p, f in patterns if fnmatchcase(name, p)])))
        for name, x in numbers.items()
    }


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
        if step not in LOOKS:
            return
        seen: dict[str, Tensor] = {}
        hooks = [
            x.register_forward_hook(lambda _, given, out, name=name: seen.setdefault(name, given[0]))
            for name, x in linear.items()
        ]
        model(data.batch(0, None, "cpu")[0][:16])
        for hook in hooks:
            hook.remove()
        for name, x in linear.items():
            moved, h = x.weight - self.first[name], seen[name]
            sizes = {"dWh": h @ moved.T, "dW": moved, "h": h, "Wh": h @ self.first[name].T}
            row = {key: float(v.square().mean().sqrt()) for key, v in sizes.items()}
            self.rows.append({"step": step, "weight": name, **row})


def train(kind: str, n: int, log2: float, seed: int, rates: Rates, looks: bool = False) -> dict[str, Any]:
    """One row: the loss, and with ``looks`` what updates do."""
    steps, data = max(LOOKS) if looks else PLAN["steps"], load("text")
    how, watch = How(PLAN["model"], "text", (), data.digest, steps), UpdateSizes() if looks else None
    size = next(s for s in sizes() if s["N"] == n)
    with spare_threads():
        numbers = changed(planned()[kind, n], rates)
        _, held = trained(Hardware(), how, size, numbers, 2.0**log2, seed, watch)
    key = {"kind": kind, "N": n, "log2_lr": log2, "seed": seed, "rates": dict(rates), "steps": steps}
    return {**key, "loss": round(held, 4), **({"updates": watch.rows} if watch else {})}


def rows() -> list[dict[str, Any]]:
    """What was trained."""
    return [json.loads(x) for x in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def means(kind: str, n: int, rates: Rates, steps: int | None = None) -> dict[float, float]:
    """Mean loss by log2 rate."""
    found: dict[float, list[float]] = {}
    for r in rows():
        if (r["kind"], r["N"], r["rates"], r["steps"]) == (kind, n, dict(rates), steps or PLAN["steps"]):
            found.setdefault(r["log2_lr"], []).append(r["loss"])
    return {x: float(np.mean(v)) for x, v in sorted(found.items())}


def best(kind: str, n: int, rates: Rates = {}) -> float:  # noqa: B006
    """log2 of the best rate."""
    by = means(kind, n, rates)
    return min(by, key=lambda x: by[x])


def tuned() -> dict[str, float]:
    """The factors of the four groups that were best at the base."""
    base, at = PLAN["widths"][0], best("mup", PLAN["widths"][0])
    found = {}
    for group in PLAN["groups"]:
        losses = {f: means("mup", base, {group: f}).get(at, np.inf) for f in PLAN["factors"]}
        factor = min(losses, key=lambda f: losses[f])
        if losses[factor] < means("mup", base, {})[at]:
            found[group] = factor
    return found


def asked() -> Iterator[tuple[Any, ...]]:
    """The runs, in order; later ones depend on what earlier ones gave."""
    base, *_, last = PLAN["widths"]
    seeds = range(PLAN["seeds"])
    yield from (("mup", base, x, s, {}) for x in PLAN["rates"] for s in seeds)
    at = best("mup", base)
    yield from (("mup", base, at, s, {g: f}) for g in PLAN["groups"] for f in PLAN["factors"] for s in seeds)
    for kind in ("sp", "mup"):
        yield from ((kind, last, x, s, {}) for x in PLAN["rates"] for s in seeds)
    for rates in (tuned(), {"hidden": 0.5 * np.log2(last / base)}):
        yield from (("mup", last, at + x, s, rates) for x in (-1, 0, 1) for s in seeds)
    yield from (("mup", n, at, 0, {}, True) for n in PLAN["widths"])
    yield from (("sp", n, at, 0, {}, True) for n in PLAN["widths"])


@click.group()
def main() -> None:
    """Why one rate for all, tuned at every width, is lower than the plan."""


@main.command()
def run() -> None:
    """Trains what is asked for and not there."""
    keys = ("kind", "N", "log2_lr", "seed", "rates", "steps")
    there = {json.dumps([r[k] for k in keys]) for r in rows()}
    for kind, n, x, seed, rates, *looks in asked():
        steps = max(LOOKS) if looks else PLAN["steps"]
        key = json.dumps([kind, n, x, seed, rates, steps])
        if key not in there:
            there.add(key)
            row = train(kind, n, x, seed, rates, bool(looks))
            with RUNS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(json.dumps({k: row[k] for k in (*keys, "loss")}))


if __name__ == "__main__":
    main()
