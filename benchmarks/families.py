"""Reads every causal language model with experts that transformers has, and derives it in a fresh process.

Run: ``python benchmarks/families.py run [FAMILY...]`` (an hour; needs transformers; goes on where it stopped), then
``... tell``, which prints a table. Families with the same equations are derived once.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
from fresh import fresh

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "families.json"
SECONDS = 60
"""CPU seconds of a reading, and of a derivation."""
READ = """
import json, signal, sys, tempfile
from pathlib import Path
from transformers import AutoConfig
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.tracing import traced
from scaling_algebra.verify.tracing.sources import build_of
def late(*_): raise UsageError(f"after {sys.argv[1]} s")
signal.signal(signal.SIGALRM, late)
for family in sys.argv[2:]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(AutoConfig.for_model(family).to_dict(), default=str))
        signal.alarm(int(sys.argv[1]))
        try:
            model = traced(*build_of(f"hf:{path}"))
            row = {"read": model.error, "network": model.text}
        except UsageError as error:
            row = {"refused": str(error).replace(f"{path}: ", "")}
        except Exception as error:
            row = {"refused": f"{type(error).__name__}: {error}"}
        signal.alarm(0)
    print(json.dumps({"family": family, **row}), flush=True)
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


def keep(done: dict[str, dict[str, Any]]) -> None:
    EVIDENCE.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")


def rows(code: str, *arguments: str, limit: int = 0) -> list[dict[str, Any]]:
    """What a process prints, as records."""
    return [json.loads(line) for line in fresh(code, *arguments, limit=limit).out.splitlines() if line.startswith("{")]


def nameless(network: str) -> str:
    """A digest of the equations, with names in the order in which they come."""
    names: dict[str, str] = {}
    equations = re.sub(
        r"\w{2,}(?=\[|\s+=)", lambda m: names.setdefault(m[0], f"n{len(names)}"), network.partition('"""')[2]
    )
    return sha256(equations.encode()).hexdigest()[:12]


@click.group()
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1)
def run(names: tuple[str, ...]) -> None:
    """Those that are named again, or all that were not read or derived yet."""
    done = {k: v for k, v in kept().items() if k not in names}
    told = {"refused", "derived", "not derived"}
    asked = names or [f for f in families() if not told & done.get(f, {}).keys()]
    networks: dict[str, list[str]] = {}
    for row in rows(READ, str(SECONDS), *asked) if asked else []:
        family, network = row.pop("family"), row.pop("network", "")
        done[family] = row | ({"equations": nameless(network)} if network else {})
        networks.setdefault(nameless(network), []).append(network)
    keep(done)
    for key, group in list(alike(done).items()):
        known = next((done[f] for f in group if told & done[f].keys()), None)
        if known is None and key not in networks:
            continue
        found = known or next(
            iter(rows(DERIVE, networks[key][0], limit=SECONDS)), {"not derived": f"after {SECONDS} s"}
        )
        done |= {family: done[family] | {k: v for k, v in found.items() if k != "read"} for family in group}
        keep(done)


def alike(done: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Families by their equations."""
    groups: dict[str, list[str]] = {}
    for family, row in done.items():
        if "equations" in row:
            groups.setdefault(row["equations"], []).append(family)
    return groups


PLAN = """
import json, sys
import torch, transformers
from scaling_algebra import plan
family, optimizer, sizes = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def model(k):
    given = {x: v[k] if isinstance(v, list) else v for x, v in sizes.items()}
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **given))
print(str(plan(model(1), model(0), lr=3e-3, eps=1e-8, std=0.02, optimizer=optimizer)).splitlines()[0])
"""
WIDTH: dict[str, Any] = {"hidden_size": [64, 128], "num_attention_heads": [4, 8], "num_key_value_heads": [4, 8]}
WIDTH |= {"num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": None}
INNER, OUTER, ACTIVE = (
    {"moe_intermediate_size": [64, 128]},
    {"intermediate_size": [128, 256]},
    {"num_experts_per_tok": 2},
)
LATENT = {"q_lora_rank": [32, 64], "kv_lora_rank": [32, 64], "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
HEAD = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "mixtral, L grows": ("mixtral", {"num_local_experts": 4, "num_hidden_layers": [2, 4]}),
    "mixtral, M grows": ("mixtral", {"num_local_experts": [4, 8]}),
    "llama, L grows": ("llama", {"num_hidden_layers": [2, 20]}),
    "qwen3-moe": ("qwen3_moe", {"num_experts": 4, "head_dim": 16, **INNER}),
    "qwen3-moe, M grows": ("qwen3_moe", {"num_experts": [4, 8], "head_dim": 16, **INNER}),
    "olmoe": ("olmoe", {"num_experts": 4}),
    "gpt2, tied": ("gpt2", {"tie_word_embeddings": True}),
    "deepseek-v3": ("deepseek_v3", {"n_routed_experts": 4, **INNER, **LATENT, **HEAD}),
}
"""Two-layer models whose widths are doubled: family and sizes, those that grow as a pair."""


@main.command()
@click.option("--optimizer", default="adamw")
@click.argument("names", nargs=-1)
def plans(names: tuple[str, ...], optimizer: str) -> None:
    """CPU seconds, memory and level of ``plan``, the imports of torch and transformers included."""
    for name in names or PLANS:
        family, more = PLANS[name]
        sizes = json.dumps({**WIDTH, **OUTER, **ACTIVE, **more})
        spent = fresh(PLAN, family, optimizer, sizes, limit=5 * SECONDS)
        last = (spent.out or spent.err or "killed").strip().splitlines()[-1]
        click.echo(f"| {name} | {spent.cpu:.0f} s | {spent.megabytes:.0f} MB | {last[:120]} |")


@main.command()
def tell() -> None:
    """How many, which, why."""
    rows: dict[str, list[str]] = {}
    for family, row in sorted(kept().items()):
        if "refused" in row:
            how = "refused: " + re.sub(r"^model\.\S*: ", "", row["refused"]).partition("; ")[0].partition(" (")[0]
        else:
            how = (
                "read and derived" if "derived" in row else f"read; not derived: {row.get('not derived', 'not tried')}"
            )
        rows.setdefault(how[:160], []).append(family)
    for how, found in sorted(rows.items(), key=lambda row: -len(row[1])):
        click.echo(f"| {how} | {len(found)} | {', '.join(found)} |")


if __name__ == "__main__":
    main()
