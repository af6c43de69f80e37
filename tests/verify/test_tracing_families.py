"""Configurations of transformers that are read: their output is that of the equations, their networks are known."""

import json

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scaling_algebra import derive
from scaling_algebra.verify.tracing import Unreadable, traced
from scaling_algebra.verify.tracing.sources import build_of


def read(folder, family, deep=False):
    config = folder / "config.json"
    config.write_text(json.dumps(transformers.AutoConfig.for_model(family).to_dict(), default=str))
    return traced(*build_of(f"hf:{config}", deep))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "olmoe", "gpt_oss"])
def test_families_are_read_and_executed(family, tmp_path):
    model = read(tmp_path, family)
    assert model.error < 1e-6
    assert ("alpha" in model.factors) is (family in ("mixtral", "qwen3_moe", "olmoe", "gpt_oss"))
    assert any("mask is left out" in line for line in model.lines)


def test_layers_of_llama_become_one_letter(tmp_path):
    model = read(tmp_path, "llama", deep=True)
    assert "model.layers.*.mlp.up_proj.weight" in model.network.tensors
    assert model.network.axes["l"] == "L" and {"scale", "scale_2"} == set(model.factors)


def test_writes_into_new_buffers_are_refused(tmp_path):
    """DeepSeek copies the rotary part of its keys into a buffer."""
    with pytest.raises(Unreadable, match=r"self_attn: .*in place through a view"):
        read(tmp_path, "deepseek_v3")


@pytest.mark.slow
def test_mixtral_is_the_network_of_the_library(tmp_path):
    asked = {"ray": "N=1,N_e=1,M=0", "optimizer": "adam", "parameterization": "mup"}
    mine, known = derive(network=read(tmp_path, "mixtral").network, **asked), derive(architecture="mixtral", **asked)
    answers = [sorted((str(d[r].init_std), str(d[r].lr)) for r in d) for d in (mine, known)]
    assert answers[0] == answers[1]
