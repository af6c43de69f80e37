"""Reads every causal language model with experts that transformers has, each in a fresh process.

Run: ``python benchmarks/families.py run [FAMILY...]`` (half an hour; needs transformers; goes on where it stopped), then
``... tell``, which prints the table of docs/guide/check.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
from fresh import fresh

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "families.json"
SECONDS = 60
READ = """
import json, sys, tempfile
from pathlib import Path
from transformers import AutoConfig
from scaling_algebra import derive
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.tracing import traced
from scaling_algebra.verify.tracing.sources import build_of
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "config.json")
    path.write_text(json.dumps(AutoConfig.for_model(sys.argv[1]).to_dict(), default=str))
    try:
        model = traced(*build_of(f"hf:{path}"))
    except UsageError as error:
        sys.exit(print(json.dumps({"refused": str(error).replace(str(path), "config.json")})))
print(json.dumps({"read": model.error}), flush=True)
ray = ",".join(f"{axis}={int(axis in ('N', 'N_e'))}" for axis in dict.fromkeys(model.network.axes.values()) if axis in "N N_e M L K".split())
try:
    d = derive(ray=ray, optimizer="adam", parameterization="mup", network=model.network)
    print(json.dumps({"derived": {name: [str(d[name].init_std), str(d[name].lr)] for name in d}}))
except UsageError as error:
    print(json.dumps({"not derived": str(error)}))
"""


def families() -> list[str]:
    """Names of configurations with experts that ``AutoModelForCausalLM`` builds."""
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = []
    for family in sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING)):
        try:
            sizes = AutoConfig.for_model(family).to_dict()
        except Exception:  # of others, code
            continue
        if any("expert" in k and type(v) is int for k, v in sizes.items()):
            found.append(family)
    return found


def kept() -> dict[str, dict[str, Any]]:
    return json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}


@click.group()
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1)
def run(names: tuple[str, ...]) -> None:
    """Those that are named again, or all that were not read yet."""
    done = kept()
    for family in names or [f for f in families() if f not in done]:
        spent = fresh(READ, family, limit=SECONDS)
        lines = [line for line in spent.out.splitlines() if line.startswith("{")]
        row = {k: v for line in lines for k, v in json.loads(line).items()}
        if spent.status and "refused" not in row:
            row["stopped"] = spent.err.strip().splitlines()[-1][:300] if spent.status > 0 else f"{SECONDS} s"
        done[family] = row | {"seconds": round(spent.cpu)}
        EVIDENCE.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
        click.echo(f"{family}: {json.dumps(done[family])[:200]}")


@main.command()
def tell() -> None:
    done = kept()
    print(Counter(next(iter(row)) for row in done.values()))


if __name__ == "__main__":
    main()
