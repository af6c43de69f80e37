"""Trains a Llama with two key heads from the plan, and with keys and values that start larger, and compares the losses.

Run: ``python benchmarks/key_heads.py run`` (goes on where it stopped), ``... tell`` (a table of the losses). The
expectations in ``verify/evidence/tuned/key_heads.toml`` were written before the runs; ``docs/guide/tuning.md`` has the
result.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from tabulate import tabulate
from torch import nn

from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.studies.data import load_data
from scaling_algebra.verify.studies.models import Model, Numbers
from scaling_algebra.verify.studies.training import How, train_model

FOLDER = Path(__file__).parents[1] / "verify" / "evidence" / "tuned"
PLAN = tomllib.loads((FOLDER / "key_heads.toml").read_text(encoding="utf-8"))
RUNS = FOLDER / "key_heads.jsonl"
BASE, LAST = PLAN["widths"][0], PLAN["widths"][-1]


def build(sizes: dict[str, int]) -> nn.Module:
    """Returns a Llama of two layers with N / 16 query heads and two key heads of dimension 16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    n = sizes["N"]
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=n,
            intermediate_size=n,
            num_hidden_layers=2,
            num_attention_heads=n // 16,
            num_key_value_heads=2,
            vocab_size=256,
            use_cache=False,
        )
    )


def compute_numbers(kind: str, n: int) -> Numbers:
    """Returns how every parameter starts and learns at width n, for `plan` or for `hidden`."""
    numbers = Model(f"{__file__}:build").numbers("mup", "adamw", [{"N": BASE}, {"N": n}])[n != BASE]
    if kind == "plan":
        return numbers
    larger = {name: (n / BASE) ** 0.5 for name in numbers if name.endswith(("k_proj.weight", "v_proj.weight"))}
    return {k: replace(x, std=x.std * larger[k]) if k in larger and x.std else x for k, x in numbers.items()}


def list_runs() -> list[tuple[str, int, int, int]]:
    """Returns every run as (kind, N, log2 rate, seed); at the base both kinds are the same."""
    return [
        (kind, n, rate, seed)
        for n in PLAN["widths"]
        for kind in (("plan",) if n == BASE else ("plan", "hidden"))
        for rate in (PLAN["rates"][:-1] if n == LAST else PLAN["rates"])
        for seed in range(PLAN["seeds"])
    ]


def read_rows() -> list[dict[str, Any]]:
    """Returns the runs that are finished."""
    return [json.loads(x) for x in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def read_losses(kind: str, n: int) -> dict[int, np.ndarray]:
    """Returns the held-out losses of all seeds by log2 rate."""
    kind = "plan" if n == BASE else kind
    found: dict[int, list[float]] = {}
    for r in sorted(read_rows(), key=lambda r: (r["log2_lr"], r["seed"])):
        if (r["kind"], r["N"]) == (kind, n):
            found.setdefault(r["log2_lr"], []).append(r["loss"])
    return {rate: np.array(x) for rate, x in found.items()}


@click.group()
def main() -> None:
    """Compares two initialisations of keys and values."""


@main.command()
def run() -> None:
    """Trains what is not yet in the file of runs."""
    torch.set_num_threads(1)
    settings = (f"batch={PLAN['batch']}",)
    data, done = load_data("text", settings), {(r["kind"], r["N"], r["log2_lr"], r["seed"]) for r in read_rows()}
    how, numbers = How(f"{__file__}:build", "text", settings, data.digest, PLAN["steps"]), dict[Any, Numbers]()
    for key in list_runs():
        if key in done:
            continue
        kind, n, rate, seed = key
        if (kind, n) not in numbers:
            numbers[kind, n] = compute_numbers(kind, n)
        loss = train_model(Hardware(), how, {"N": n}, numbers[kind, n], 2.0**rate, seed)[1]
        with RUNS.open("a", encoding="utf-8") as file:
            row = {"kind": kind, "N": n, "log2_lr": rate, "seed": seed, "loss": round(loss, 4)}
            file.write(json.dumps(row) + "\n")


@main.command()
def tell() -> None:
    """Prints mean losses by width and rate, and their difference with its standard error over seeds."""
    table = []
    for n in PLAN["widths"]:
        plan, hidden = read_losses("plan", n), read_losses("hidden", n)
        for rate in plan:
            apart = hidden[rate] - plan[rate]
            error = apart.std(ddof=1) / len(apart) ** 0.5
            table.append([n, rate, plan[rate].mean(), hidden[rate].mean(), apart.mean(), error])
    head = ["N", "log2 rate", "plan", "hidden", "difference", "error"]
    print(tabulate(table, head, tablefmt="github", floatfmt=("d", "d", ".4f", ".4f", "+.4f", ".4f")))


if __name__ == "__main__":
    main()
