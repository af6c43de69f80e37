"""Configurations of transformers that are read: their output is that of the equations (at length: what they derive)."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.tracing import trace_equations
from scaling_algebra.verify.tracing.config_probing import probe_config
from scaling_algebra.verify.tracing.config_reading import describe_layer_kinds, list_omitted_parts, probe_config_files
from scaling_algebra.verify.tracing.model_loading import ModelOption, load_model_builder

from ..shared import scalecalc


def read(folder, family, deep=False):
    config = folder / "config.json"
    config.write_text(json.dumps(transformers.AutoConfig.for_model(family).to_dict(), default=str))
    return trace_equations(*load_model_builder(f"hf:{config}", deep))


def test_a_recipe_takes_the_target_from_the_model_and_says_what_is_left(tmp_path):
    """Its rows are of every layer, whether or not the depth grows."""
    small = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    for name, n in (("small", 64), ("large", 256)):
        (tmp_path / name).write_text(json.dumps({**small, "hidden_size": n, "intermediate_size": 2 * n}))
    answer = scalecalc(
        "recipe", "--model", f"hf:{tmp_path / 'large'}", "--base-hf", str(tmp_path / "small"), "--format", "toml"
    )
    assert answer.exit_code == 0 and "N=64,L=2 to N=256,L=2" in answer.output
    assert "model.layers.*.mlp.up_proj.weight" in answer.output and "layers.0.mlp.up_proj" not in answer.output
    text = "h[i,k] = W[i,k,a] x[a]\ny[k]   = alpha phi[i] h[i,k]\n"
    model = ModelOption(SimpleNamespace(factors={"alpha": ("mlp.experts", {"M": "-1"})}, text=text))
    asked = {"alpha": Setting(Power.of({"M": "-1", "L": "-1"}), 1 / 16)}, {"M": 2, "L": 4}, {"M": 8, "L": 16}
    assert [*model.describe_remaining_factors(*asked)] == [
        "alpha: its factor is 0.0625, of which the module applies 0.25; multiply by 0.25 in mlp.experts, "
        "at y[k] = alpha phi[i] h[i,k]"
    ]


def test_a_check_says_what_of_a_configuration_it_does_not_train():
    record = {"model_type": "deepseek_v3", "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}
    dense, every = list_omitted_parts(record, {"M": 4, "K": 4})
    assert (
        dense == "layers without experts (first_k_dense_replace = 1) are not part of the small models that were trained"
    )
    assert every.startswith("all 4 experts are active in these small models, and 2 of 8 in the configuration; give --b")
    assert [*list_omitted_parts(record, {"M": 4, "K": 2})] == [dense]
    assert not [*list_omitted_parts({"model_type": "llama"}, {"N": 64})]


BESIDE = {
    "deepseek_v3": "(first_k_dense_replace = 3) also have model.layers.0.mlp.gate_proj.weight",
    "gpt_oss": "; its layer_types is full_attention, and sliding_attention was not read",
}
"""What layers of other kinds have, by family."""


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"]
)
def test_families_are_read_and_executed(family, tmp_path):
    model = read(tmp_path, family)
    assert model.error < 1e-6
    assert ("alpha" in model.factors) is (family not in ("llama", "qwen3", "gpt2"))
    assert any("mask is left out" in line for line in model.lines)
    said = describe_layer_kinds(probe_config_files(f"hf:{tmp_path / 'config.json'}")[0], model, False)
    assert said.startswith("one layer was read; it stands for all layers") and BESIDE.get(family, "") in said
    assert (said.count(";") > 1) is (family in BESIDE), said


PROBED = {
    "gpt2": {"N": "n_embd", "L": "n_layer"},
    "mixtral": {"N": "hidden_size", "L": "num_hidden_layers", "M": "num_local_experts", "N_e": "intermediate_size",
                "K": "num_experts_per_tok"},
    "lfm2_moe": {"N": "hidden_size", "L": "num_hidden_layers", "M": "num_experts", "N_e": "moe_intermediate_size",
                 "K": "num_experts_per_tok"},
    "mamba2": {"N": "hidden_size", "L": "num_hidden_layers"},
}  # fmt: skip
SAID = {"lfm2_moe": {"layer_types": ["full_attention"] * 32}}
KINDS = {
    "gpt2": {"n_head": "count", "vocab_size": "table", "n_positions": "table"},
    "mixtral": {"num_attention_heads": "count", "num_key_value_heads": "count", "intermediate_size": "expert"},
    "lfm2_moe": {"num_attention_heads": "count", "num_key_value_heads": "count"},
    "mamba2": {"num_heads": "count", "head_dim": "dimension", "vocab_size": "table"},
}


@pytest.mark.parametrize("family", PROBED)
def test_numbers_of_a_configuration_are_told_by_what_moves(family):
    """Of mamba2 no number changes alone: width times 2 is heads times their dimension. The first two layers of lfm2_moe
    have no experts."""
    config = probe_config({"model_type": family, **SAID.get(family, {})}, "config.json")
    assert config.axes == PROBED[family] and KINDS[family].items() <= config.kinds.items() and config.error is None
    assert ("num_dense_layers" in config.pattern) is config.mixed is (family == "lfm2_moe")
    assert (
        config.sizes({"model_type": family, **config.full}) == config.sizes()
        and config.sizes().keys() == config.axes.keys()
    )


def granite(n, **more):
    heads = {"num_attention_heads": n // 16, "num_key_value_heads": n // 16, "attention_multiplier": 1 / 16}
    sizes = {"hidden_size": n, "intermediate_size": 2 * n, "num_hidden_layers": 1, "vocab_size": 64}
    with torch.device("meta"):
        config = transformers.GraniteConfig(**heads, **sizes, residual_multiplier=0.22, **more)
        return transformers.GraniteForCausalLM(config)


@pytest.mark.parametrize(("scaling", "left"), [((8.0, 8.0), 0.5), ((8.0, 16.0), 1.0), ((8.0, 32.0), 2.0)])
def test_a_constant_that_two_configurations_have_otherwise_is_a_factor(scaling, left):
    """The logits of a tied embedding are to be divided by the width; a constant may do so, or more, or not at all."""
    small, large = (
        granite(n, logits_scaling=x, tie_word_embeddings=True) for n, x in zip((32, 64), scaling, strict=True)
    )
    p = plan(large, small, lr=1e-3, eps=1e-8, std=0.02)
    assert p.multipliers["scale"] == pytest.approx(left) and p.level.certified
    told = f"logits_scaling is {scaling[1]} and {scaling[0]} in the two configurations"
    assert (told in str(p)) is (scaling[0] != scaling[1])


def test_what_no_number_says_of_two_configurations_is_open():
    """Another activation is another model; the base of rotary angles is no factor; an idle number is not named."""
    odd = plan(granite(64, logits_scaling=24.0), granite(32), lr=1e-3, eps=1e-8, std=0.02)
    assert odd.level.code == 3 and "logits_scaling is 24.0 and 1.0 in the two" in odd.level.lines[0]  # no power of 2
    other = {"hidden_act": "gelu", "rope_theta": 5e5, "max_position_embeddings": 512, "attention_dropout": 0.1}
    p = plan(granite(64), granite(32, **other), lr=1e-3, eps=1e-8, std=0.02)
    assert p.level.code == 3 and "hidden_act is 'silu' and 'gelu'" in p.level.lines[0]
    assert "max_position_embeddings" not in str(p) and "attention_dropout" not in str(p)


DEEP = {
    "llama": "model.layers.*.mlp.up_proj.weight",
    "gpt2": "transformer.h.*.mlp.c_fc.bias",  # adds the stream to the branch, and biases to both
    "deepseek_v3": "model.layers.*.mlp.experts.gate_up_proj[0]",
}
LONG = ("deepseek_v3",)
"""Families that `make measure` reads."""


@pytest.mark.parametrize("family", [x for x in DEEP if x not in LONG])
def test_layers_become_one_letter(family, tmp_path):
    model = read(tmp_path, family, deep=True)
    assert DEEP[family] in model.network.tensors
    assert model.network.axes["l"] == "L" and {"scale", "scale_2"} <= set(model.factors)


def test_two_configurations_are_of_one_family(tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for path, family in ((one, "llama"), (other, "mixtral")):
        path.write_text(json.dumps({"model_type": family}))
    with pytest.raises(UsageError, match="give two of the same model_type"):
        load_model_builder(f"hf:{one}", beside=other)


def test_a_model_of_ones_own_with_a_single_head_and_experts_in_their_usual_kernels():
    """With N = 32 it has one head; the usual kernels of experts take no float64."""

    def build(sizes):
        n, heads = sizes["N"], {"num_attention_heads": sizes["N"] // 32, "num_key_value_heads": sizes["N"] // 32}
        rest = {"num_hidden_layers": 1, "vocab_size": 64}
        rest |= {"num_local_experts": sizes["M"], "num_experts_per_tok": sizes["K"]}
        return transformers.MixtralForCausalLM(
            transformers.MixtralConfig(hidden_size=n, intermediate_size=n, head_dim=32, **heads, **rest)
        )

    model = trace_equations(build)
    assert model.error < 1e-6 and model.base["N"] == 32 and "topk_softmax" in model.text
