"""check-model of a Qwen3-MoE with norms of queries and keys, whose number of key heads stays while the width grows:
the derived numbers are not refuted, and each of ten planted powers is refuted where it is planted."""

import pytest

transformers = pytest.importorskip("transformers")

from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import checking
from scaling_algebra.verify.apply.blame import find_first_to_blame

DEPENDS = ("derives", "trains", "verify/apply", "verify/tracing")

SIZES = "N=64,M=4,K=4", "N=256,M=4,K=4"
ATTENTION, EXPERTS = "model.layers.0.self_attn", "model.layers.0.mlp"
FAULTS = [
    ("lm_head.weight", "init_std"),
    ("lm_head.weight", "lr"),
    (f"{ATTENTION}.q_proj.weight", "lr"),
    (f"{ATTENTION}.k_proj.weight", "lr"),
    (f"{ATTENTION}.v_proj.weight", "lr"),
    (f"{ATTENTION}.o_proj.weight", "init_std"),
    (f"{EXPERTS}.gate.weight", "lr"),
    (f"{EXPERTS}.experts.down_proj", "lr"),
    (f"{EXPERTS}.experts.gate_up_proj", "lr"),
    (f"{EXPERTS}.experts.gate_up_proj[1]", "init_std"),
]
"""Parameters, or parts of them, of which a number stays at all widths instead of falling."""


def build(sizes):
    """One layer, with two heads of keys and values at every width, and query heads of dimension 8."""
    n = sizes["N"]
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=n,
        intermediate_size=2 * n,
        moe_intermediate_size=n,
        num_hidden_layers=1,
        num_attention_heads=n // 8,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=sizes["M"],
        num_experts_per_tok=sizes["K"],
        norm_topk_prob=True,
    )
    return transformers.Qwen3MoeForCausalLM(config)


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=lambda x: ".".join(x) if x else "right")
def test_only_a_planted_power_is_refuted(fault, record_property):
    name, what = fault or ("", "")
    report = checking.check_model(build, *SIZES, seeds=4, rules={name: {what: Power()}} if fault else None)
    first = find_first_to_blame(report)
    record_property("said", report.closing + (f"; {first.quantity} at step {first.step}" if first else ""))
    if fault is None:
        assert first is None and report.exit_code == 0, str(report)
    else:
        whole = name.partition("[")[0]
        assert report.exit_code == 1 and first is not None, str(report)
        assert first.quantity == f"{whole}.{'init' if what == 'init_std' else 'update'}", str(report)
