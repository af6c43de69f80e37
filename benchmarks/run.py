"""Times commands and plans of whole models in fresh processes, in seconds and relative to ``import sympy``.

Run: ``make bench`` or ``python benchmarks/run.py [--runs 5]``. Figures are medians; slow commands and plans are run a
third as often.
"""

from __future__ import annotations

import click
from fresh import build_command, measure_median
from tabulate import tabulate

from scaling_algebra.spec.axes import REGIMES

WHOLE = (
    ["explain", "--formula", "h3.A2.2@1", "--optimizer", "sgd"],
    ["explain", "--formula", "h3@1", "--optimizer", "sgd"],
    ["derive", "--architecture", "attention", "--ray", "N=1,M=1"],
    ["explain", "h3.A2.2@2", "--regime", "II", "--optimizer", "sgd", "--parameterization", "mup"],
    ["audit", "--source", "mssp"],
    ["table", "j43"],
    ["rays", "--parameterization", "mup", "--optimizer", "sgd"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["derive", "--regime", "III", "--optimizer", "adam", "--parameterization", "mssp", "--prove"],
    ["derive", "--regime", "II", "--optimizer", "adam", "--parameterization", "mup", "--prove"],
    ["signals", "--regime", "II", "--optimizer", "adam", "--parameterization", "mssp", "--steps", "3"],
)
"""Commands that are timed as a user runs them."""

PLAN = """
import torch, transformers as t
from scaling_algebra import plan
def model(N, M=8, L=2):
    heads = dict(num_attention_heads=N // 16, num_key_value_heads=N // 16)
    sizes = dict(hidden_size=N, intermediate_size=2 * N, num_hidden_layers=L, vocab_size=64)
    with torch.device("meta"):
        return t.{name}{head}(t.{name}Config(**sizes, {config}))
print(plan(model({other}), model({one}), lr=1e-3, eps=1e-8, std=0.02))
"""
"""A plan of two models of transformers on the meta device."""

MOE = "moe_intermediate_size=N // 2, num_experts=M, num_experts_per_tok=2, head_dim=16, **heads"
LATENT = "moe_intermediate_size=N // 2, n_routed_experts=M, num_experts_per_tok=2, n_group=1, topk_group=1"
LATENT += ", n_shared_experts=1, first_k_dense_replace=1, num_attention_heads=N // 16, num_key_value_heads=N // 16"
LATENT += ", q_lora_rank={rank}, kv_lora_rank={rank}, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16"
HEADS = {"GPT2": "LMHeadModel"}
PLANS = (
    ("Llama", "**heads", "N=64", "N=128"),
    ("Llama", "**heads", "N=64", "N=64, L=20"),
    ("Mixtral", "num_local_experts=M, num_experts_per_tok=2, **heads", "N=64", "N=128"),
    ("Qwen3Moe", MOE, "N=64", "N=128"),
    ("Qwen3Moe", MOE, "N=64, M=4", "N=64, M=8"),
    ("Olmoe", "num_experts=M, num_experts_per_tok=2, **heads", "N=64", "N=128"),
    ("GPT2", "n_embd=N, n_layer=L, n_head=N // 16", "N=64", "N=128"),
    ("DeepseekV3", LATENT.format(rank="N // 2"), "N=64", "N=128"),
    ("DeepseekV3", LATENT.format(rank=16), "N=64", "N=128"),
)
"""Class of a model, its configuration besides the usual sizes, and the sizes of the tuned and of the large model."""


@click.command()
@click.option("--runs", default=5, show_default=True, help="Runs per figure.")
def main(runs: int) -> None:
    """Print all figures."""
    base = measure_median("import sympy", runs)
    rows = [("import sympy", f"{base:.2f}", "1.0")]
    for regime in REGIMES:
        for optimizer in ("sgd", "adam"):
            args = ["derive", "--regime", regime, "--optimizer", optimizer]
            seconds = measure_median(build_command(*args), runs)
            rows.append((f"derive {regime} {optimizer} (muP and MSSP)", f"{seconds:.2f}", f"{seconds / base:.1f}"))
    for args in WHOLE:
        seconds = measure_median(build_command(*args), max(1, runs // 3))
        rows.append((" ".join(args), f"{seconds:.2f}", f"{seconds / base:.1f}"))
    for name, config, one, other in PLANS:
        seconds = measure_median(
            PLAN.format(name=name, config=config, head=HEADS.get(name, "ForCausalLM"), one=one, other=other),
            max(1, runs // 3),
        )
        rows.append((f"plan of {name}, {one} to {other}", f"{seconds:.1f}", f"{seconds / base:.1f}"))
    print(tabulate(rows, ("cold", "median CPU s", "x import sympy"), tablefmt="github"))


if __name__ == "__main__":
    main()
