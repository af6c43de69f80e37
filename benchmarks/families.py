"""Reads and derives every causal language model with experts that transformers has, each in a fresh process.

Run: ``python benchmarks/families.py run [FAMILY...]`` (an hour; needs transformers; goes on where it stopped), then
``... tell``, which prints the table of docs/guide/check.md. Families with the same equations are derived once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
from fresh import fresh

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "families.json"
SECONDS = 60
"""CPU seconds of a reading, and of a derivation."""
READ = """
import json, sys, tempfile
from pathlib import Path
from transformers import AutoConfig
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.tracing import traced
from scaling_algebra.verify.tracing.sources import build_of
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "config.json")
    path.write_text(json.dumps(AutoConfig.for_model(sys.argv[1]).to_dict(), default=str))
    try:
        model = traced(*build_of(f"hf:{path}"))
        print(json.dumps({"read": model.error, "network": model.text}))
    except UsageError as error:
        print(json.dumps({"refused": str(error).replace(f"{path}: ", "")}))
"""
DERIVE = """
import json, sys
from scaling_algebra import derive
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.files import from_toml
network = from_toml(sys.argv[1], "traced")
ray = ",".join(f"{x}={int(x in ('N', 'N_e'))}" for x in ("N", "N_e", "M") if x in network.axes.values())
try:
    d = derive(ray=ray, optimizer="adam", parameterization="mup", network=network)
    print(json.dumps({"derived": sorted({f"{d[name].init_std}, {d[name].lr}" for name in d})}))
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
        except Exception:  # of a configuration that has no defaults
            continue
        if any("expert" in str(k) and type(v) is int for k, v in sizes.items()):
            found.append(family)
    return found


def kept() -> dict[str, dict[str, Any]]:
    return json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}


def keep(done: dict[str, dict[str, Any]], *changed: str) -> None:
    EVIDENCE.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
    for family in changed:
        click.echo(f"{family}: {json.dumps({k: v for k, v in done[family].items() if k != 'network'})[:200]}")


def answer(code: str, argument: str, kind: str) -> dict[str, Any]:
    """The row that a process prints, or how it ended."""
    spent = fresh(code, argument, limit=SECONDS)
    lines = [line for line in spent.out.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    late = spent.cpu >= SECONDS - 5
    return {kind: f"after {SECONDS} s" if late else spent.err.strip().splitlines()[-1][:200]}


def nameless(network: str) -> str:
    """The equations with names in the order in which they come."""
    names: dict[str, str] = {}
    equations = network.partition('"""')[2]
    return re.sub(r"\w{2,}(?=\[|\s+=)", lambda m: names.setdefault(m[0], f"n{len(names)}"), equations)


@click.group()
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1)
def run(names: tuple[str, ...]) -> None:
    """Those that are named again, or all that were not read or derived yet."""
    done = {k: v for k, v in kept().items() if k not in names}
    for family in names or [f for f in families() if f not in done]:
        done[family] = answer(READ, family, "refused")
        keep(done, family)
    alike: dict[str, list[str]] = {}
    for family, row in done.items():
        if "network" in row:
            alike.setdefault(nameless(row["network"]), []).append(family)
    for group in alike.values():
        known = next((f for f in group if len(done[f]) > 2), None)
        row = done[known] if known else answer(DERIVE, done[group[0]]["network"], "not derived")
        for family in group:
            done[family] |= {k: v for k, v in row.items() if k not in ("read", "network")}
        keep(done, *group)


@main.command()
def tell() -> None:
    """The table of the docs: how many, which, why."""
    rows: dict[str, list[str]] = {}
    for family, row in sorted(kept().items()):
        if "derived" in row:
            how = "read and derived"
        elif "read" in row:
            how = f"read; not derived: {row.get('not derived', 'not tried')}"
        else:
            how = "refused: " + re.sub(r"^\S*?(\w*[a-z]\w*): (?=\w+: )", "", row["refused"]).partition(";")[0]
        rows.setdefault(re.sub(r"\(.*", "", how), []).append(family)
    for how, found in sorted(rows.items(), key=lambda row: -len(row[1])):
        click.echo(f"| {how} | {len(found)} | {', '.join(found)} |")


if __name__ == "__main__":
    main()
