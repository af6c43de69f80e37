"""Small models of published families, with random weights from their configuration class; needs ``transformers``.

Read next: ``checking.py`` (trains them), ``families.toml`` (their roles, and what is built).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from scaling_algebra.errors import missing, unknown_name
from scaling_algebra.recipes.sizes import Sizes

from .contract import LENGTH, VOCABULARY
from .families import roles_of, table

HEAD, LAYERS = 8, 2
"""Dimension of a head, the same at every width, and layers."""


def dense(name: str) -> bool:
    """Has the family no experts?

    Raises:
        UsageError: it is not one that ``build`` knows.
    """
    roles_of(name)
    if name not in table()["build"]:
        raise unknown_name("family to check", name, table()["build"])
    return "M" not in table()["build"][name]


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

    entry, heads = table()["build"][name], sizes["N"] // HEAD
    given: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes["N"],
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 2 * sizes["N"],
        "max_position_embeddings": 2 * LENGTH,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        **entry.get("fixed", {}),
        **dict.fromkeys(entry.get("wide", ()), sizes["N"]),
    }
    if stacked:
        given |= {entry[axis]: sizes[axis] for axis in ("M", "N_e")}
        given |= {"num_experts_per_tok": sizes["K"], "experts_implementation": "eager"}
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **given))
    return model
