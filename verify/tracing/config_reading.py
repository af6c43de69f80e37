"""Readings of configurations of transformers: of one, and of one beside another of the same model at other sizes.

Of a configuration the family and its options stay; sizes become small and follow N, N_e, M, K and L. No weights are
read and no hub is asked. Read next: ``config_probing.py`` (small models), ``readings.py`` (how one is read).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.files import HUGGING_FACE
from scaling_algebra.recipes.files import read_config
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.powers import Power

from .building import call_build
from .config_probing import ConfigDifference, ProbedConfig, probe_config
from .config_skeletons import mask_numbers
from .gradients import join_names, roles_of
from .models import TracedModel
from .readings import read_module

HEADS_GROW = (
    "heads grow in number and from dimension {} to {}, and were read with one that stays: the scores need the factor "
    "of a dimension that grows, too (plan has it)"
)
DENOMINATOR = 4
"""The largest of a power that is read off two numbers, as off several builds."""
DIFFERS = "{} is {} and {} in the two configurations"
FACTOR = f"{DIFFERS}: it is read as a constant that goes as {{}}"
NO_FACTOR = f"{DIFFERS}: it is no factor, and no number depends on it"
NOT_ALLOWED_FOR = (
    f"{DIFFERS}: it changes the output, and not by a factor that can be read; these numbers do not allow for it"
)
OTHER_CODE = f"{DIFFERS}: the first of these models is read, and these numbers do not allow for what the other does"


def probe_config_files(text: str, beside: Path | None = None) -> tuple[ProbedConfig, dict[str, Any] | None]:
    """The configuration that a model's name means, probed, and that of the same model at another size.

    Raises:
        UsageError: no such file, no family that transformers knows, or two families.
    """
    path = Path(text.removeprefix(HUGGING_FACE))
    record, other = read_config(path), None if beside is None else read_config(beside)
    if other is not None and other["model_type"] != record["model_type"]:
        raise UsageError(f"{path} is a {record['model_type']} and {beside} a {other['model_type']}; give one family")
    return probe_config(record, str(path)), other


def read_config_sizes(path: Path, beside: Path) -> dict[str, int]:
    """The sizes by axis in a configuration (``beside``) of the family of another one."""
    config, other = probe_config_files(str(path), beside)
    return config.sizes(other)


def read_config_file(text: str, beside: Path | None, deep: bool) -> tuple[TracedModel, list[str]]:
    """Read the configuration that a model's name means, as ``read_configured``, with a note on its kinds of layers.

    Args:
        text: ``hf:config.json``.
        beside: the configuration of the same model at another size.
        deep: whether the number of layers is an axis.
    """
    config, other = probe_config_files(text, beside)
    model, odd = read_probed_config(config, other, deep)
    dims = None if other is None else config.find_head_growth(other)
    notes = [describe_layer_kinds(config, model, deep), *([HEADS_GROW.format(*sorted(dims))] if dims else [])]
    return replace(model, notes=[*model.notes, *(("", note) for note in notes)]), odd


def read_probed_config(
    config: ProbedConfig, other: Mapping[str, Any] | None, deep: bool, strict: bool = False
) -> tuple[TracedModel, list[str]]:
    """Read a configuration beside another one of the same model; return a line for what differs and is not read, too.

    Law: a constant that differs goes as a power of a size that changes between both while the model is read.
    """
    beside = ConfigDifference() if other is None else config.compare(other)
    acting = {name: values for name, values in beside.constants.items() if config.changes_output(name, values)}
    sizes = config.sizes(), config.sizes(other) if other is not None else {}
    powers = {name: _fit_power(math.log(b / a), *sizes) for name, (a, b) in acting.items()}
    known = {name: power for name, power in powers.items() if power is not None}

    def reading(constants: Mapping[str, tuple[str, Fraction]]) -> TracedModel:
        return read_module(config.make_builder(deep, beside, constants), strict=strict and not constants)

    model = reading(known)
    if model.network.unread and known:
        known = {name: power for name, power in known.items() if not reading({name: power}).network.unread}
        model = reading(known)
    said = {name: Power.of({axis: p}) for name, (axis, p) in known.items()}
    notes = [("", FACTOR.format(name, *map(quote_value, acting[name]), power)) for name, power in said.items()]
    axis = next((x for x, n in sizes[0].items() if sizes[1].get(x, n) != n), "N")
    for name in [name for name in acting if name not in known]:  # where it may be any power, it is no factor
        trial = reading({**known, name: (axis, Fraction(1))})
        if not trial.network.unread and _get_own_factors(trial) == _get_own_factors(model):
            notes.append(("", NO_FACTOR.format(name, *map(quote_value, acting.pop(name)))))
    model = replace(model, notes=[*model.notes, *notes])
    odd = [
        NOT_ALLOWED_FOR.format(name, *map(quote_value, values)) for name, values in acting.items() if name not in known
    ]
    others = {name: values for name, values in beside.others.items() if config.changes_output(name, values)}
    odd += [OTHER_CODE.format(name, *map(quote_value, values)) for name, values in others.items()]
    return model if deep else merge_layer_names(model), odd


def _get_own_factors(reading: TracedModel) -> tuple[Any, Any]:
    """Return what a module multiplies by, at multipliers and beside tensors."""
    return reading.factors, reading.network.multiplied


def _fit_power(ratio: float, sizes: Mapping[str, int], others: Mapping[str, int]) -> tuple[str, Fraction] | None:
    """Return the simplest power of one size that has this logarithm of a ratio between two configurations."""
    grown = {axis: math.log(others[axis] / n) for axis, n in sizes.items() if others.get(axis, n) != n}
    found = {axis: Fraction(ratio / x).limit_denominator(DENOMINATOR) for axis, x in grown.items()}
    exact = [axis for axis, p in found.items() if math.isclose(p * grown[axis], ratio, rel_tol=1e-6)]
    axis = min(exact, key=lambda x: found[x].denominator, default="")
    return (axis, found[axis]) if axis else None


def merge_layer_names(reading: TracedModel) -> TracedModel:
    """Return a reading of one layer as that of every layer: its number becomes ``*``, and so do other numbers, where
    names stay apart without them."""
    names = [dict(zip(reading.roles, (mask_numbers(x, most) for x in reading.roles), strict=True)) for most in (0, 1)]
    apart = next((x for x in names if len({*x.values()}) == len(x)), {})

    def rename(name: str) -> str:
        return apart.get(name, mask_numbers(name) if name not in names[0] else name)

    text = re.sub(r'"([^"\n]*)"', lambda found: f'"{rename(found[1])}"', reading.text)
    network = from_toml(text, reading.network.name)
    read = reading.network
    network = replace(network, unread=read.unread, stands=read.stands, lacking=read.lacking)
    spans = {rename(role): x for role, x in reading.spans.items()}
    return replace(reading, text=text, network=network, spans=spans)


def describe_layer_kinds(config: ProbedConfig, model: TracedModel, deep: bool) -> str:
    """The line that says which layers of a configuration were read, and what others have besides."""
    said = "read with layers of one kind" if deep else "read with one layer, which stands for all"
    one = config.with_depth(1)
    for key, kinds in config.full.items():
        if isinstance(kinds, list) and len(kinds) == config.depth and len({*map(str, kinds)}) > 1:
            others = ", ".join(dict.fromkeys(str(x) for x in kinds if [x] != one[key]))
            said += f"; {key} is {one[key][0]} in it, never {others}"
    if first := _describe_dense_layers(config):
        said += f"; layers without experts ({first})"
        try:
            dense = call_build(
                probe_config(config.record, config.path, dense=True).make_builder(False), dict(model.base)
            )[0]
        except UsageError:  # transformers builds none
            return f"{said} are not in it"
        roles = roles_of([name for name, _ in dense.named_parameters()], model.network.tensors)
        names = [name for name, found in roles.items() if not found]
        said += f" have {join_names(names)} besides: plan in Python has their numbers" if names else " are alike"
    return said


def list_omitted_parts(record: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    """What of a configuration is not in small models of it at these sizes, a line each."""
    config = probe_config(record, "the configuration")
    if said := _describe_dense_layers(config):
        yield f"layers without experts ({said}) are not in the models that are trained"
    its = config.sizes()
    if its.get("K", 0) < its.get("M", 0) and sizes.get("M", 0) == sizes.get("K", 0) > 0:
        yield (
            f"all {sizes['M']} experts are active in these small models, and {its['K']} of {its['M']} in the "
            "configuration; give --base and --target with K < M"
        )


def _describe_dense_layers(config: ProbedConfig) -> str:
    """What a configuration says of layers without experts, where it has some."""
    return ", ".join(f"{k} = {quote_value(config.full[k])}" for k in config.pattern) if config.mixed else ""
