"""Models by name, as ``--model`` takes them: ``FILE.py:build``, or ``hf:config.json``, a configuration on disk.

Loaded by name, so that the engine imports no torch. Of a configuration the family and its options stay; sizes become
small and follow N, N_e, M and L. No weights are read and no hub is asked. Read next: ``models.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from inspect import isfunction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scaling_algebra.documents import Document
from scaling_algebra.documents.blocks import Block, Heading, Lines, literal
from scaling_algebra.errors import UsageError, missing, shown
from scaling_algebra.files import HUGGING_FACE, python_module
from scaling_algebra.recipes.files import read_config, size_names
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.trained import trained

from .gradients import listed, roles_of
from .graph import Unreadable
from .models import Traced, called
from .shapes import along
from .shapes import read as read_model

BESIDE = "SCALING"
"""A dict in the file of a function, with sizes and options."""
HEAD = 16
"""Dimension of a head; the number of heads grows."""
WIDE: Mapping[str, float] = {
    "intermediate_size": 2, "ffn_dim": 2, "n_inner": 2, "q_lora_rank": 0.5, "kv_lora_rank": 0.5, "ffn_hidden_size": 2,
    "word_embed_proj_dim": 1, "embedding_size": 1, "mamba_n_heads": 1 / HEAD,
}  # fmt: skip
"""Sizes that grow as N, and how many times it they are."""
HEADS = ("num_attention_heads", "n_head", "num_heads")
KEYS = ("num_key_value_heads",)
FEW = 2
"""Heads whose number stays: then their dimension grows."""
DIMENSIONS = ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Of heads; they stay, unless another configuration has others."""
SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")
"""Widths of shared experts, which grow as N_e."""
FIXED: Mapping[str, Any] = {
    "head_dim": HEAD, "qk_nope_head_dim": HEAD, "qk_rope_head_dim": HEAD, "v_head_dim": HEAD, "vocab_size": 64,
    "max_position_embeddings": 64, "n_positions": 64, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rotary_dim": HEAD, "n_shared_experts": 1,
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


def build_of(text: str, deep: bool = False, beside: Path | None = None) -> tuple[Callable[..., Any], Mapping[str, int]]:
    """The function that a model's name means, and the sizes at which it is read as far as they are said.

    Args:
        deep: of a configuration: the depth L is an axis; else there is one layer. beside: as for ``small_of``.

    Raises:
        UsageError: no such file or function, or a configuration that transformers does not know.
    """
    if text.startswith(HUGGING_FACE):
        path = Path(text.removeprefix(HUGGING_FACE))
        record, other = read_config(path), None if beside is None else read_config(beside)
        if other is not None and other["model_type"] != record["model_type"]:
            raise UsageError(
                f"{path} is a {record['model_type']} and {beside} a {other['model_type']}; give one family"
            )
        return small_of(record, str(path), deep, beside=other), {}
    build, said = function_of(text)
    base = said.get("base", {})
    return build, read_sizes(base, "base") if base else {}


def small_of(
    record: Mapping[str, Any],
    path: str,
    deep: bool,
    instead: Mapping[str, Any] | None = None,
    dense: bool = False,
    beside: Mapping[str, Any] | None = None,
) -> Callable[[Mapping[str, int]], tuple[nn.Module, dict[str, Any]]]:
    """Small models of a configuration, and their input.

    Args:
        path: for errors. deep: as for ``build_of``. instead: options that replace those of small models. dense: no
            layer has experts. beside: the configuration of the same model at another size: what both have alike stays.
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

    stays, longer = _staying(record, beside or record, named), _longer(record, beside or record, known)

    def build(sizes: Mapping[str, int]) -> tuple[nn.Module, dict[str, Any]]:
        n, depth = sizes["N"], sizes["L"] if deep else 1
        options = {k: _alike(v, most, depth) for k, v in record.items() if k not in DROPPED}
        options |= {k: v for k, v in FIXED.items() if k in known or k in record}
        options |= {
            k: HEAD if k in stays else max(1, int(n * times))
            for k, times in WIDE.items()
            if record.get(k, known.get(k)) is not None
        }
        heads = FEW if stays.intersection(HEADS) else n // HEAD
        options |= dict.fromkeys(longer, n // heads)
        options |= dict.fromkeys((k for k in HEADS if k in known), heads)
        shared = record.get(next((k for k in HEADS if k in record), ""), 1) // (record.get(KEYS[0]) or 10**9) or 1
        alone = stays.intersection(KEYS) and not stays.intersection(HEADS)
        keys = 1 if alone else heads // 2 if shared > 1 else heads
        options |= dict.fromkeys((k for k in KEYS if k in known), keys)
        options |= {"tie_word_embeddings": record.get("tie_word_embeddings", known.get("tie_word_embeddings", True))}
        options |= dict.fromkeys(named["N"], n) | dict.fromkeys(named["L"], depth)
        if dense:
            alike = {k: list(range(depth)) if isinstance(v, list) else depth for k, v in FIXED.items() if k in DENSE}
            options |= {k: v for k, v in alike.items() if k in known or k in record}
        elif "M" in named:
            options |= dict.fromkeys(named["N_e"], sizes["N_e"]) | dict.fromkeys(named["M"], sizes["M"])
            options |= dict.fromkeys(named["K"], sizes["K"])
            options |= {k: HEAD if k in stays else sizes["N_e"] for k in SHARED if k in known}
            options["experts_implementation"] = "batched_mm"
        options |= {"attn_implementation": "eager", "use_cache": False, **(instead or {})}
        try:
            model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
        except Exception as error:
            line = " ".join(str(error).split())[:200]
            raise Unreadable(f"{path}: transformers builds no small {family}: {type(error).__name__}: {line}") from None
        ids = torch.randint(3, 64, (1, 5), generator=torch.Generator().manual_seed(1))
        return model, {"input_ids": ids, "use_cache": False}

    return build


def _staying(record: Mapping[str, Any], other: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> set[str]:
    """Sizes that grow as N or N_e in most models, and stay while these grow from one configuration to another."""
    groups = ("N", (*WIDE, *HEADS, *KEYS)), ("N_e", SHARED)
    grows = {axis for axis, _ in groups if any(record.get(k) != other.get(k) for k in named.get(axis, ()))}
    return {k for axis, keys in groups if axis in grows for k in keys if k in record and record[k] == other.get(k)}


def _longer(record: Mapping[str, Any], other: Mapping[str, Any], known: Mapping[str, Any]) -> set[str]:
    """Dimensions of heads that differ between two configurations; one that is not said is N by heads."""
    found = {k for k in DIMENSIONS if record.get(k) != other.get(k)}
    heads = next((k for k in HEADS if record.get(k)), None)
    width = [x.get("hidden_size", x.get("n_embd")) for x in (record, other)]
    if heads and "head_dim" in known and record.get("head_dim") is None and None not in width:
        return found | ({"head_dim"} if width[0] // record[heads] != width[1] // (other.get(heads) or 1) else set())
    return found


def heads_grow(record: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[int, int] | None:
    """The dimension of heads at two configurations, where it grows, and their number, too."""
    key = next((k for k in HEADS if record.get(k) and other.get(k)), "")
    if not key or record[key] == other[key] or "qk_nope_head_dim" in record:  # of latent attention: said by itself
        return None
    width = size_names(record["model_type"], record)["N"]
    dims = [x.get("head_dim") or next(x[k] for k in width if k in x) // x[key] for x in (other, record)]
    return None if dims[0] == dims[1] else (dims[0], dims[1])


def longer_heads(record: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of twice the width, with as many heads."""
    grow = {*size_names(record["model_type"], record)["N"], *WIDE, "head_dim"}
    return {k: 2 * v if k in grow and isinstance(v, int) else v for k, v in record.items()}


LONGER = (
    "heads grow in number and from dimension {} to {}, and were read with one that stays: the scores need the factor "
    "of a dimension that grows, too (plan has it)"
)


def _alike(value: Any, most: int, depth: int) -> Any:
    """A list with an entry for every layer, for so many: all as most are, with attention where some have it."""
    if isinstance(value, dict) and value and all(str(k).isdecimal() for k in value):
        return {}
    if not (isinstance(value, list) and len(value) == most > 1):
        return value
    return [max(value, key=lambda x: (x == "full_attention", value.count(x)))] * depth


def not_trained(record: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    """What of a configuration is not in small models of it at these sizes, a line each."""
    if first := [f"{key} = {shown(record[key])}" for key in DENSE if record.get(key)]:
        yield f"layers without experts ({', '.join(first)}) are not in the models that are trained"
    named = size_names(record["model_type"], record)
    most, active = (next((record[x] for x in named.get(axis, ()) if x in record), 0) for axis in ("M", "K"))
    if active < most and sizes.get("M", 0) == sizes.get("K", 0) > 0:
        said = f"all {sizes['M']} experts are active in these small models, and {active} of {most} in the configuration"
        yield f"{said}; give --base and --target with K < M to train the choice"


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


WIDTHS = ("N", "N_e")
"""Axes that grow where no ray is given."""


@dataclass(frozen=True)
class ModelOption:
    """A model as the command line names it."""

    model: Traced

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def text(self) -> str:
        """The equations.

        Raises:
            Unreadable: they are not known.
        """
        if self.network.unread:
            raise Unreadable(self.network.unread)
        return self.model.text

    @property
    def ray(self) -> str:
        """The widths grow, and the numbers of experts and layers stay."""
        axes = [axis for axis in AXES if axis in self.network.axes.values()]
        return ",".join(f"{axis}={int(axis in WIDTHS)}" for axis in axes)

    def left(self, multipliers: Mapping[str, Any], base: Mapping[str, int], target: Mapping[str, int]) -> Iterator[str]:
        """Of every multiplier what the module brings and what is left to multiply by, a line each."""
        for name, setting in multipliers.items():
            own = Power.of(self.model.factors.get(name, ("", {}))[1])
            brings, where = own.ratio(base, target), self.model.factors.get(name, ("", {}))[0] or "model"
            rest = setting.factor / brings
            equation = next((x for x in self.model.text.splitlines() if f" {name} " in x.partition("=")[2]), "")
            at = f"{where}, at {' '.join(equation.split())}" if equation else where
            to_do = "nothing is left to do" if math.isclose(rest, 1) else f"multiply by {rest:.6g} in {at}"
            yield f"{name}: of its factor {setting.factor:.6g} the module brings {brings:.6g}; {to_do}"

    def beside(self, answer: Any) -> Any:
        """An answer with the notes of the reading under it."""
        if isinstance(answer, Document):
            return self._noted(answer)
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            return [self._noted(d) if k == len(answer) - 1 else d for k, d in enumerate(answer)]
        return answer

    def _noted(self, d: Document) -> Document:
        rates = d.record.get("ray")
        model = self.model if rates is None else along(self.model, [axis for axis, x in rates.items() if x != "0"])
        lines = [
            *model.described(_left(model, d.record)),
            *_split(d.record.get("tensors", {})),
            *self._besides(d.record),
        ]
        blocks: list[Block] = (
            [Heading("read off the module", 2), Lines.of(*map(literal, lines), listed=True)] if lines else []
        )
        return Document((*d.blocks, *blocks), {**d.record, "left_out": model.lines})

    def _besides(self, record: Mapping[str, Any]) -> Iterator[str]:
        """The powers of tensors that act in training mode alone, beside those that are derived."""
        if self.model.beside is not None and record.get("ray"):
            rule = trained(record["optimizer"], self.model.beside, self.model.networks)
            ray = Ray({axis: Fraction(x) for axis, x in record["ray"].items()})
            for role, t in derive(None, rule, "mup", ray=ray, network=self.model.beside).tensors.items():
                named = {"init std": t.init_std, "lr": t.lr, "eps": t.eps}
                powers = ", ".join(f"{what} {x}" for what, x in named.items() if x is not None)
                yield f"{role}: not certified, by shape: {powers}"


def _left(model: Traced, record: Mapping[str, Any]) -> dict[str, str]:
    """By multiplier of a derivation or a recipe, the power that its module lacks; empty where it lacks none."""
    needed = record.get("multipliers", {})
    powers = {x: Power.parse(p["rule"]) if "rule" in p else Power.of(p) for x, p in needed.items()}
    grows = {axis for axis, rate in (record.get("ray") or {}).items() if rate != "0"}
    left = {x: p / Power.of(model.factors[x][1]) for x, p in powers.items() if x in model.factors}
    left = {x: Power.of({axis: e for axis, e in p.terms if axis in grows}) for x, p in left.items()}
    return {x: str(p) if p.terms else "" for x, p in left.items()}


def _split(tensors: Mapping[str, Any]) -> list[str]:
    """Parts of one parameter that get different powers."""
    parts: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, settings in tensors.items():
        if "[" in name and isinstance(settings, Mapping):
            parts.setdefault(name[: name.index("[")], {})[name] = tuple(
                str(settings.get(x)) for x in ("init_std", "lr", "eps")
            )
    return [
        f"{whole}: its parts get different powers; plan in Python draws each by its own std and takes the least eps; "
        f"where rates differ make {' and '.join(powers)} parameters of their own"
        for whole, powers in parts.items()
        if len(set(powers.values())) > 1
    ]


def read(text: str, arguments: Sequence[str], beside: Path | None = None, smallest: str = "") -> ModelOption:
    """The model of this name, read.

    Args:
        arguments: of the command; where they name the depth, a configuration is read with it. beside: as for
            ``small_of``. smallest: sizes of the base, at which a module that raises at small sizes is read.

    Raises:
        UsageError: no such model, or one that cannot be read.
    """
    deep = any("L=" in x.replace("L=0", "") for x in arguments)
    build, base = build_of(text, deep, beside)
    try:
        model = read_model(build, base)
    except UsageError as error:
        if base or "=" not in smallest or " raises " not in str(error):  # at the small sizes that are usual
            raise
        model = read_model(build, read_sizes(smallest, "base"))
    if text.startswith(HUGGING_FACE):
        path = Path(text.removeprefix(HUGGING_FACE))
        model = model if deep else layered(model)
        record = read_config(path)
        notes = [*model.notes, ("", kinds_of_layers(record, str(path), model, deep))]
        dims = None if beside is None else heads_grow(record, read_config(beside))
        model = replace(model, notes=notes + ([("", LONGER.format(*sorted(dims)))] if dims else []))
    return ModelOption(model)


def layered(reading: Traced) -> Traced:
    """A reading of one layer as that of every layer: its number becomes ``*``."""
    text = general(reading.text)
    network = from_toml(text, reading.network.name)
    read = reading.network
    network = replace(network, unread=read.unread, stands=read.stands, lacking=read.lacking)
    spans = {general(role): x for role, x in reading.spans.items()}
    return replace(reading, text=text, network=network, spans=spans)


def general(name: str) -> str:
    """A name with its numbers left open: those of layers and experts."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def kinds_of_layers(record: Mapping[str, Any], path: str, model: Traced, deep: bool) -> str:
    """The line that says which layers of a configuration were read, and what others have besides."""
    said = "read with layers of one kind" if deep else "read with one layer, which stands for all"
    most = next((record[k] for k in size_names(record["model_type"], record)["L"] if k in record), 0)
    for key, kinds in record.items():
        if isinstance(kinds, list) and len(kinds) == most and len({*map(str, kinds)}) > 1:
            one, *_ = _alike(kinds, most, 1)
            said += f"; {key} is {one} in it, never {', '.join(dict.fromkeys(str(x) for x in kinds if x != one))}"
    if first := [f"{key} = {shown(record[key])}" for key in DENSE if record.get(key)]:
        said += f"; layers without experts ({', '.join(first)})"
        try:
            dense = called(small_of(record, path, deep, dense=True), dict(model.base))[0]
        except UsageError:  # transformers builds none
            return f"{said} are not in it"
        roles = roles_of([name for name, _ in dense.named_parameters()], model.network.tensors)
        names = [name for name, found in roles.items() if not found]
        said += f" have {listed(names)} besides: plan in Python has their numbers" if names else " are alike"
    return said
