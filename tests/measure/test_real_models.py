"""The guide's page on real models: each command prints what is shown, within the CPU time that its table states."""

import json
import re
import resource
import shlex
import subprocess
import sys

import pytest
import torch

from scaling_algebra import plan
from scaling_algebra.solver import search
from scaling_algebra.verify.tracing.building import DEFAULT_SIZES
from scaling_algebra.verify.tracing.config_probing import probe_config

from ..docs.pages import ROOT, cut
from ..docs.test_examples import OWN_TESTS, plain, shows
from ..lanes import SPARE

DEPENDS = ("derives", "scaling_algebra/recipes", "verify/tracing")

PAGE = ROOT / "docs" / "guide" / OWN_TESTS[0]
SMALLER = 8
"""The width of a published model over that of the model that is tuned."""
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads")
FOLLOWS = {
    "mixtral": ("num_key_value_heads",),
    "olmoe": ("num_key_value_heads",),
    "deepseek_v3": ("num_key_value_heads", "q_lora_rank", "kv_lora_rank"),
}
"""By model type, the numbers that shrink with the width beside ``WIDTHS``."""
COMMANDS = [block for block in cut(PAGE) if block.language == "console"]
ROWS = re.findall(r"^\| \[(.+?)\]\(models/.+?\) \|.*\| (.+?) \| ([\d.]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)


def read(name):
    return json.loads((PAGE.parent / "models" / f"{name}.json").read_text(encoding="utf-8"))


def children():
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("block", COMMANDS, ids=lambda b: re.search(r"hf:models/(\S+)\.json", b.text)[1])
def test_a_plan_is_printed_as_shown(block, record_property):
    (command, shown), (_, code) = block.examples()
    before = children()
    words = [sys.executable, "-m", "scaling_algebra", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=PAGE.parent, capture_output=True, text=True)
    spent = children() - before
    record_property("cpu_seconds", round(spent, 1))
    printed = done.stdout.splitlines()
    assert done.returncode == int(code[0]), done.stderr
    assert shows(plain(shown, command), plain(printed, command)), "\n".join(printed[:12])
    ((_, level, stated),) = (row for row in ROWS if f"hf:models/{row[0]}.json" in command)
    assert level in printed[0] and spent < SPARE * float(stated)


@pytest.mark.parametrize("name", [name for name, _, _ in ROWS])
def test_the_tuned_model_is_the_published_one_at_an_eighth_of_its_width(name):
    large, small = read(name), read(f"{name}-small")
    smaller = {*WIDTHS, *FOLLOWS.get(large["model_type"], ())} & large.keys()
    assert small == {key: n // SMALLER if key in smaller else n for key, n in large.items()}


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b"])
def test_what_transformers_takes_for_the_model_is_what_is_published(name):
    """Its defaults are the numbers of these two models. Negative control: those of another size are not."""
    config = read(name)
    from transformers import AutoConfig

    usual = AutoConfig.for_model(config["model_type"]).to_dict()
    names = [key for key, x in config.items() if isinstance(x, int) and key in usual]
    assert len(names) > 9 and all(config[key] == usual[key] for key in names)
    assert any(read(f"{name}-small")[key] != usual[key] for key in names)


def test_a_first_layer_without_experts_is_read_by_itself(monkeypatch):
    """DeepSeek-V3: latent attention, a dense layer, then one with a shared expert; with little work much is open."""
    import transformers

    monkeypatch.setattr(search, "PROPOSAL_WORK", 2_000)

    def model(n, device="meta", layers=2):
        heads = {"num_attention_heads": n // 16, "num_key_value_heads": n // 16, "v_head_dim": 16}
        ranks = {
            "qk_rope_head_dim": 8,
            "kv_lora_rank": n // 2,
            "q_lora_rank": n // 2,
            "qk_nope_head_dim": 16,
            "first_k_dense_replace": 1,
        }
        widths = {"hidden_size": n, "intermediate_size": 2 * n, "moe_intermediate_size": n, "vocab_size": 64}
        sizes = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
        sizes["num_hidden_layers"] = layers
        with torch.device(device):
            config = transformers.DeepseekV3Config(**heads, **ranks, **widths, **sizes)
            return transformers.AutoModelForCausalLM.from_config(config)

    name = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
    decay = {name.replace("1", "*"): 0.2, "": 0.1}
    p = plan(model(128), model(64), lr=1e-3, eps=1e-8, std=0.02, decay=decay)
    assert (p[name].settings["decay"].base, p["lm_head.weight"].settings["decay"].base) == (0.2, 0.1)
    assert "stability shown for" in str(p).splitlines()[0] and p.recipe.level.code == 3
    assert all(e.settings["lr"].target for e in p.entries) and len(p.recipe.derivations) == 2
    plain = {**model(32).config.to_dict(), "q_lora_rank": None}  # as smaller models of the family have it
    assert any(
        "q_proj" in name
        for name, _ in probe_config(plain, "").make_builder(False)({**DEFAULT_SIZES})[0].named_parameters()
    )
    folded = plan(model(64, layers=8), model(64), lr=1e-3, eps=1e-8, std=0.02, fold=True)
    for down in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.shared_experts.down_proj.weight"):
        assert folded[down].settings["lr"].factor == 1 / 4, down  # 1/L on the branches of both kinds of layers
    dense, routed = p["model.layers.0.mlp.up_proj.weight"], p["model.layers.1.mlp.experts.gate_up_proj"]
    assert dense.settings["lr"] == routed.settings["lr"] and "not in the output" not in str(p)
    assert "stable, but not shown to learn: " in str(p)
    drawn = p.init_(model(128, "cpu")).get_parameter(name).detach()
    stds = [s["init_std"].target for s in p[name].parts.values()]
    assert [drawn[:64].std().item(), drawn[64:].std().item()] == [pytest.approx(x, rel=0.1) for x in stds]
    assert stds[0] != stds[1] and p[name].settings["eps"] == min(
        (s["eps"] for s in p[name].parts.values()), key=lambda s: s.target
    )
    said = (
        f"{name.replace('1', '*')}: its parts differ in init_std, eps; init_ draws each by its own std; the least eps"
    )
    assert said in str(p) and f"# {said}" in p.export("torchtitan", dropping=["init", "multiplier"])
