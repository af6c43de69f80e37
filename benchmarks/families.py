"""Records how each causal language model of transformers is answered (read, by shape, or refused), at small sizes.

Run: ``python benchmarks/families.py run [FAMILY...]`` (twenty CPU minutes; continues where it stopped), then ``...
tell``, which prints a table. ``... plans`` times some plans.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
from fresh import run_fresh

EVIDENCE = Path(__file__).parents[1] / "verify" / "evidence" / "families.json"
SECONDS = 10
"""Limit on the CPU seconds of one reading."""
READ = """
import json, signal, sys, tempfile
from pathlib import Path
from transformers import AutoConfig
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.tracing.config_reading import probe_config_files, read_probed_config
def late(*_): raise UsageError(f"after {sys.argv[1]} s")
signal.signal(signal.SIGPROF, late)
said = json.loads(sys.argv[2])
for family in sys.argv[3:]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        try:
            path.write_text(json.dumps(AutoConfig.for_model(family).to_dict() | said.get(family, {}), default=str))
            config = probe_config_files(f"hf:{path}")[0]
            signal.setitimer(signal.ITIMER_PROF, int(sys.argv[1]))
            model, _ = read_probed_config(config, None, False)
            row = {"by shape": model.network.unread} if model.network.unread else {"read": float(f"{model.error:.1e}")}
        except UsageError as error:
            row = {"refused": str(error)}
        except Exception as error:
            row = {"refused": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
    row = {k: " ".join(v.replace(f"{path}: ", "").split())[:300] if isinstance(v, str) else v for k, v in row.items()}
    print(json.dumps({"family": family, **row}), flush=True)
"""


SAID: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "glm4_moe": {"head_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "lfm2_moe": {"layer_types": ["full_attention"] * 32},
    "qwen4_exp_text": {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64,
                       "indexer_compress_ratio": 4},
}  # fmt: skip
"""Entries that the default configuration of a family lacks, so that transformers cannot build its model."""


def list_families() -> list[str]:
    """Returns the configurations that ``AutoModelForCausalLM`` builds, except those with a nested configuration
    (images)."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING))
    return [x for x in names if not getattr(CONFIG_MAPPING[x], "sub_configs", {})]


def read_kept() -> dict[str, dict[str, Any]]:
    return json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}


def write_kept(done: dict[str, dict[str, Any]]) -> None:
    EVIDENCE.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")


def run_for_rows(code: str, *arguments: str, limit: int = 0) -> list[dict[str, Any]]:
    """Runs code in a fresh process and returns the JSON records that it prints."""
    return [
        json.loads(line) for line in run_fresh(code, *arguments, limit=limit).out.splitlines() if line.startswith("{")
    ]


@click.group()
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1)
def run(names: tuple[str, ...]) -> None:
    """Read the named families again, or all that are not in the evidence, ten per process."""
    asked = names or [f for f in list_families() if f not in read_kept()]
    for k in range(0, len(asked), 10):
        done = read_kept()
        for row in run_for_rows(READ, str(SECONDS), json.dumps(SAID), *asked[k : k + 10]):
            done[row.pop("family")] = row
        write_kept(done)


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
"""Two-layer models whose widths are doubled: family and sizes; a growing size is a pair."""


@main.command()
@click.option("--optimizer", default="adamw")
@click.argument("names", nargs=-1)
def plans(names: tuple[str, ...], optimizer: str) -> None:
    """Print the CPU seconds, memory and first line of some plans, including the imports of torch and transformers."""
    for name in names or PLANS:
        family, more = PLANS[name]
        sizes = json.dumps({**WIDTH, **OUTER, **ACTIVE, **more})
        spent = run_fresh(PLAN, family, optimizer, sizes, limit=300)
        last = (spent.out or spent.err or "killed").strip().splitlines()[-1]
        click.echo(f"| {name} | {spent.cpu:.0f} s | {spent.megabytes:.0f} MB | {last[:120]} |")


@main.command()
def tell() -> None:
    """Print the families by level, as rows of docs/guide/check.md, then by reason."""
    levels: dict[str, list[str]] = {"read": [], "by shape": [], "refused": []}
    for family, row in sorted(read_kept().items()):
        levels[next(iter(row))].append(family)
    click.echo(f"{len(read_kept())} families of transformers")
    for level, names in levels.items():
        click.echo(f"| {level} | {len(names)} | {', '.join(names)} |")
    found: dict[str, list[str]] = {}
    for family, row in sorted(read_kept().items()):
        how, why = next(iter(row.items()))
        why = re.sub(r"^\S*: ", "", str(why)).partition("; ")[0].partition(" (")[0][:120]
        found.setdefault(how if how == "read" else f"{how}: {why}", []).append(family)
    for how, names in sorted(found.items(), key=lambda row: -len(row[1])):
        click.echo(f"| {how} | {len(names)} | {', '.join(names)} |")


if __name__ == "__main__":
    main()
