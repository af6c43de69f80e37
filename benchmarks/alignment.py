"""How well updates of a Transformer are aligned with what they meet, after some steps: a plan written before is run.

Run: ``python benchmarks/alignment.py`` (a CPU minute). Read next: ``verify/evidence/tuned/alignment.toml`` (the plan).
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn

from scaling_algebra.verify.hardware import Hardware, use_one_thread
from scaling_algebra.verify.studies.data import Data, load
from scaling_algebra.verify.studies.models import Model
from scaling_algebra.verify.studies.training import How, trained

FOLDER = Path(__file__).parents[1] / "verify" / "evidence" / "tuned"
PLAN = tomllib.loads((FOLDER / "alignment.toml").read_text(encoding="utf-8"))
KINDS = {"q_proj": "attention q", "v_proj": "attention v", "o_proj": "attention o", "gate_up_proj": "experts, first",
         "lm_head": "readout"}  # fmt: skip


class AlignmentLog:
    """What the change of every matrix since the start does to held-out text: rms of dW h, dW and h."""

    def __init__(self) -> None:
        self.start: dict[str, Tensor] = {}
        self.rows: dict[tuple[str, int], list[tuple[float, float, float]]] = {}

    @torch.no_grad()
    def __call__(self, step: int, model: nn.Module, data: Data) -> None:
        weights = {n: p for n, p in model.named_parameters() if n.removesuffix(".weight").split(".")[-1] in KINDS}
        self.start = self.start or {n: p.detach().clone() for n, p in weights.items()}
        if step not in PLAN["looks"]:
            return
        seen: dict[str, Tensor] = {}
        modules, hooks = dict(model.named_modules()), []
        for name in weights:
            owner = modules[name.rpartition(".")[0]]
            hooks.append(owner.register_forward_hook(lambda _, given, out, name=name: seen.update({name: given[0]})))
        model(data.batch(0, None, "cpu")[0][:32])
        for hook in hooks:
            hook.remove()
        for name, p in weights.items():
            moved, h = p - self.start[name], seen[name].flatten(0, -2)
            made = h @ moved.flatten(0, -2).T
            sizes = (float(x.square().mean().sqrt()) for x in (made, moved, h))
            self.rows.setdefault((KINDS[name.removesuffix(".weight").split(".")[-1]], step), []).append(tuple(sizes))


def measured() -> list[dict[str, Any]]:
    """A row for every kind, step and size: mean logs over layers and seeds, and the standard error over seeds."""
    model, sizes, data = Model(PLAN["model"]), PLAN["sizes"], load("text")
    how, rows = How(PLAN["model"], "text", (), data.digest, PLAN["steps"]), []
    for one, numbers in zip(sizes, model.numbers("mup", "adamw", sizes), strict=True):
        logs: dict[tuple[str, int], list[Any]] = {}
        for seed in range(PLAN["seeds"]):
            look = AlignmentLog()
            trained(Hardware(), how, one, numbers, 2.0 ** PLAN["log2_lr"], seed, look)
            for key, found in look.rows.items():
                logs.setdefault(key, []).append(np.log2(np.array(found)).mean(axis=0))
        for (kind, step), found in logs.items():
            made, moved, h = np.array(found).T
            rows += [
                {"kind": kind, "step": step, "N": one["N"], "dWh": made.tolist(), "ratio": (made - moved - h).tolist()}
            ]
    return rows


def slope(rows: list[dict[str, Any]], what: str) -> tuple[float, float]:
    """The exponent in N, and its standard error over seeds."""
    x = np.log2([r["N"] for r in rows])
    per_seed = [np.polyfit(x, [r[what][k] for r in rows], 1)[0] for k in range(PLAN["seeds"])]
    return float(np.mean(per_seed)), float(np.std(per_seed, ddof=1) / math.sqrt(len(per_seed)))


def main() -> None:
    """Measures, keeps the rows, and prints the exponents."""
    with use_one_thread():
        rows = measured()
    (FOLDER / "alignment.json").write_text(
        json.dumps({"torch": torch.__version__, "rows": rows}) + "\n", encoding="utf-8"
    )
    table = []
    for kind in KINDS.values():
        line = [kind]
        for step in PLAN["looks"]:
            p, error = slope([r for r in rows if (r["kind"], r["step"]) == (kind, step)], "ratio")
            line.append(f"{p:.2f} +- {error:.2f}")
        size, error = slope([r for r in rows if (r["kind"], r["step"]) == (kind, PLAN["looks"][-1])], "dWh")
        table.append([*line, f"{size:+.2f} +- {error:.2f}"])
    head = ["p", *(f"step {x}" for x in PLAN["looks"]), f"rms(dW h), step {PLAN['looks'][-1]}"]
    print(tabulate(table, head))


if __name__ == "__main__":
    main()
