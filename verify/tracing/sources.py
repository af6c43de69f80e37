"""Builds by name: ``FILE.py:build``, or ``hf:config.json``, a configuration of transformers on disk.

Of a configuration the family and its options stay; sizes become small and follow N, N_e, M and L. No weights are read
and no hub is asked. Read next: ``models.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError, missing, shown
from scaling_algebra.files import python_module
from scaling_algebra.recipes.files import read_config, size_names
from scaling_algebra.recipes.sizes import read_sizes

from .graph import Unreadable

BESIDE = "SCALING"
"""A dict in the file of a function, with sizes and options."""
HUGGING_FACE = "hf:"
HEAD = 16
"""Dimension of a head; the number of heads grows."""
WIDE: Mapping[str, float] = {
    "intermediate_size": 2, "ffn_dim": 2, "n_inner": 2, "q_lora_rank": 0.5, "kv_lora_rank": 0.5, "ffn_hidden_size": 2,
    "word_embed_proj_dim": 1, "embedding_size": 1,
}  # fmt: skip
"""Sizes that grow as N, and how many times it they are."""
HEADS = ("num_attention_heads", "n_head", "num_heads")
KEYS = ("num_key_value_heads",)
SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Widths of shared experts, which grow as N_e."""
FIXED: Mapping[str, Any] = {
    "head_dim": HEAD, "qk_nope_head_dim": HEAD, "qk_rope_head_dim": HEAD, "v_head_dim": HEAD, "vocab_size": 64,
    "max_position_embeddings": 64, "n_positions": 64, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    "mlp_only_layers": [], "decoder_sparse_step": 1, "attention_dropout": 0.0,
    "num_nextn_predict_layers": 0, "moe_layer_freq": 1, "interleave_moe_layer_step": 1, "num_dense_layers": 0,
    "num_expert_group": 1, "moe_layer_start_index": 0,
}  # fmt: skip
"""Everything else that is a size, or a list of layers: small, and alike for all layers."""
DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "mlp_only_layers")
"""Options that say which layers have no experts: how many first ones, or their numbers."""
DROPPED = {
    "architectures", "transformers_version", "torch_dtype", "dtype", "quantization_config", "auto_map", "_name_or_path",
    "model_type",
}  # fmt: skip


def build_of(text: str, deep: bool = False) -> tuple[Callable[..., Any], Mapping[str, int]]:
    """The function that a model's name means, and the sizes at which it is read as far as they are said.

    Args:
        deep: of a configuration: the depth L is an axis; else there is one layer.

    Raises:
        UsageError: no such file or function, or a configuration that transformers does not know.
    """
    if text.startswith(HUGGING_FACE):
        path = Path(text.removeprefix(HUGGING_FACE))
        return small_of(read_config(path), str(path), deep), {}
    build, beside = function_of(text)
    base = beside.get("base", {})
    return build, read_sizes(base, "base") if base else {}


def small_of(
    record: Mapping[str, Any], path: str, deep: bool, instead: Mapping[str, Any] | None = None, dense: bool = False
) -> Callable[[Mapping[str, int]], tuple[nn.Module, dict[str, Any]]]:
    """Small models of a configuration, and their input.

    Args:
        path: for errors. deep: as for ``build_of``. instead: options that replace those of small models. dense: no
            layer has experts.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError:
        raise missing("--model hf:", "transformers", "models") from None
    family = record["model_type"]
    named = size_names(family, record)
    most = next((record[k] for k in named["L"] if k in record), 0)
    try:
        known = AutoConfig.for_model(family).to_dict()
    except ValueError:
        raise UsageError(f"transformers knows no family {family} (model_type of {path}); give FILE.py:build") from None

    def build(sizes: Mapping[str, int]) -> tuple[nn.Module, dict[str, Any]]:
        n, depth = sizes["N"], sizes["L"] if deep else 1
        options = {k: _alike(v, most, depth) for k, v in record.items() if k not in DROPPED}
        options |= {k: v for k, v in FIXED.items() if k in known or k in record}
        options |= {
            k: max(1, int(n * times)) for k, times in WIDE.items() if (record.get(k) or known.get(k)) is not None
        }
        heads = n // HEAD
        options |= dict.fromkeys((k for k in HEADS if k in known), heads)
        shared = record.get(next((k for k in HEADS if k in record), ""), 1) // (record.get(KEYS[0]) or 10**9) or 1
        options |= dict.fromkeys((k for k in KEYS if k in known), heads // 2 if shared > 1 else heads)
        options |= {"tie_word_embeddings": record.get("tie_word_embeddings", known.get("tie_word_embeddings", True))}
        options |= dict.fromkeys(named["N"], n) | dict.fromkeys(named["L"], depth)
        if dense:
            alike = {k: list(range(depth)) if isinstance(v, list) else depth for k, v in FIXED.items() if k in DENSE}
            options |= {k: v for k, v in alike.items() if k in known or k in record}
        elif "M" in named:
            options |= dict.fromkeys(named["N_e"], sizes["N_e"]) | dict.fromkeys(named["M"], sizes["M"])
            options |= dict.fromkeys(named["K"], sizes["K"])
            options |= dict.fromkeys((k for k in SHARED if k in known), sizes["N_e"])
            options["experts_implementation"] = "batched_mm"
        options |= {"attn_implementation": "eager", "use_cache": False, **(instead or {})}
        try:
            model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
        except Exception as error:
            line = " ".join(str(error).split())[:200]
            raise Unreadable(f"{path}: transformers builds no small {family}: {type(error).__name__}: {line}") from None
        ids = torch.randint(0, 64, (1, 5), generator=torch.Generator().manual_seed(1))
        return model, {"input_ids": ids, "use_cache": False}

    return build


def _alike(value: Any, most: int, depth: int) -> Any:
    """A list with an entry for every layer, for so many: all as most are, with attention where some have it."""
    if isinstance(value, dict) and value and all(str(k).isdecimal() for k in value):
        return {}
    if not (isinstance(value, list) and len(value) == most > 1):
        return value
    return [max(value, key=lambda x: (x == "full_attention", value.count(x)))] * depth


def function_of(text: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """``build``, and the dict beside it.

    Raises:
        UsageError: no such file, module or function, its code fails, or what stands beside it is no dict.
    """
    where, colon, name = text.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise UsageError(f"cannot read the model {shown(text)}; write FILE.py:NAME, for example mymodel.py:build")
    module = python_module(where)
    build = getattr(module, name, None)
    if not callable(build):
        lacks = "has no function" if build is None else f"{name} is {shown(build)}, no function; it has"
        functions = [x for x, y in vars(module).items() if isfunction(y)]
        raise UsageError(f"{where} {lacks} {name}: {', '.join(functions) or 'none'}; write FILE.py:NAME of yours")
    beside = getattr(module, BESIDE, {})
    if not isinstance(beside, dict):
        raise UsageError(f"{BESIDE} in {where} is {shown(beside)}; give a dict of keywords, such as base and target")
    return build, beside
