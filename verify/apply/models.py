"""Small models of published families, with random weights from their configuration class; needs ``transformers``.

Read next: ``checking.py`` (trains them), ``families.toml`` (their roles).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from scaling_algebra.errors import missing, unknown_name
from scaling_algebra.recipes.sizes import Sizes

from .checking import LENGTH, VOCABULARY
from .families import family

HEAD = 8
"""Dimension of a head, the same at every width."""
LAYERS = 2

_EXPERTS: dict[str, dict[str, str]] = {
    "mixtral": {"M": "num_local_experts", "N_e": "intermediate_size"},
    "qwen3_moe": {"M": "num_experts", "N_e": "moe_intermediate_size"},
    "olmoe": {"M": "num_experts", "N_e": "intermediate_size"},
    "granitemoe": {"M": "num_local_experts", "N_e": "intermediate_size"},
    "qwen2_moe": {"M": "num_experts", "N_e": "moe_intermediate_size"},
    "glm4_moe": {"M": "n_routed_experts", "N_e": "moe_intermediate_size"},
    "deepseek_v3": {"M": "n_routed_experts", "N_e": "moe_intermediate_size"},
}
"""Where the configuration keeps M and N_e, of the families that are built here."""
_ROUTED = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "n_shared_experts": 1}
_FIXED: dict[str, dict[str, int]] = {
    "qwen3_moe": {"head_dim": HEAD},
    "glm4_moe": {"head_dim": HEAD, **_ROUTED},
    "deepseek_v3": {"qk_nope_head_dim": HEAD, "qk_rope_head_dim": HEAD, "v_head_dim": HEAD, **_ROUTED},
}
"""What a family's configuration has besides, the same at every size."""
_WIDE: dict[str, tuple[str, ...]] = {
    "qwen2_moe": ("shared_expert_intermediate_size",),
    "deepseek_v3": ("q_lora_rank", "kv_lora_rank"),
}
"""What grows with the width: it is as large as N."""


def dense(name: str) -> bool:
    """Has the family no experts?

    Raises:
        UsageError: it is not one that ``build`` knows.
    """
    family(name)
    if name not in ("llama", *_EXPERTS):
        raise unknown_name("family to check", name, ("llama", *_EXPERTS))
    return name not in _EXPERTS


def build(name: str, sizes: Sizes) -> nn.Module:
    """One model; every head has the same dimension, keys have as many heads as queries, experts run one by one.

    Raises:
        UsageError: an unknown family, one that needs an adapter, or transformers is not installed.
    """
    stacked = not dense(name)
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError:
        raise missing("check-model", "transformers", "models") from None

    heads = sizes["N"] // HEAD
    given: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes["N"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 2 * sizes["N"],
        "max_position_embeddings": 2 * LENGTH,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    given |= _FIXED.get(name, {}) | dict.fromkeys(_WIDE.get(name, ()), sizes["N"])
    if stacked:
        given |= {field: sizes[axis] for axis, field in _EXPERTS[name].items()}
        given |= {"num_experts_per_tok": sizes["K"], "experts_implementation": "eager"}
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **given))
    return model
