"""Reads transformers configurations: a single one, or one together with the same model at another size.

The family and the options of the configuration are kept. Its sizes are replaced by small ones that follow N, N_e, M, K
and L. No weights are loaded and the hub is not contacted. Read next: ``config_probing.py`` (builds the small models),
``readings.py`` (reads a model).
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
from .gradients import join_names, match_roles
from .models import TracedModel
from .readings import read_module

HEADS_GROW = (
    "both the number of heads and their dimension grow (from {} to {}), but heads of a fixed dimension were read; "
    "the attention scores also need a factor for the dimension, which plan in Python gives"
)
DENOMINATOR = 4
"""Largest denominator of a power that is fitted to a pair of numbers from two configurations."""
DIFFERS = "{} is {} and {} in the two configurations"
FACTOR = f"{DIFFERS}: it is read as a constant proportional to {{}}"
NO_FACTOR = f"{DIFFERS}: it does not act as a factor, and no exponent depends on it"
NOT_ALLOWED_FOR = (
    f"{DIFFERS}: it changes the output, but not by a factor that can be read; these numbers ignore the difference. "
    "Make both configurations agree here if they can"
)
OTHER_CODE = (
    f"{DIFFERS}: these numbers hold for the first of these two models only; make both configurations agree "
    "here if they can"
)


def probe_config_files(text: str, beside: Path | None = None) -> tuple[ProbedConfig, dict[str, Any] | None]:
    """Reads a transformers configuration and infers what its numbers mean, from the shapes of the models built from it.

    Args:
        text: path of the configuration, with or without ``hf:``.
        beside: path of the configuration of the same model at another size.

    Returns:
        The configuration with the meaning of its numbers, and the content of the second file (None without one).

    Raises:
        UsageError: a file is missing, transformers does not know the family, or the two files are of different
            families.
    """
    path = Path(text.removeprefix(HUGGING_FACE))
    record, other = read_config(path), None if beside is None else read_config(beside)
    if other is not None and other["model_type"] != record["model_type"]:
        raise UsageError(
            f"{path} is a {record['model_type']} and {beside} a {other['model_type']}; give two of the same model_type"
        )
    return probe_config(record, str(path)), other


def read_config_sizes(path: Path, beside: Path) -> dict[str, int]:
    """Returns the sizes N, N_e, M, K and L in the configuration file ``beside``.

    Which of its keys are these sizes is inferred from the configuration at ``path``.
    """
    config, other = probe_config_files(str(path), beside)
    return config.sizes(other)


def read_config_file(text: str, beside: Path | None, deep: bool) -> tuple[TracedModel, list[str]]:
    """Reads the model of a configuration file as a network; see ``read_probed_config``.

    A note says which kind of layer was read.

    Args:
        text: ``hf:config.json``.
        beside: the configuration of the same model at another size.
        deep: whether the number of layers is an axis.

    Returns:
        The network, and one line for every difference between the two configurations that it does not take into
        account.
    """
    config, other = probe_config_files(text, beside)
    model, odd = read_probed_config(config, other, deep)
    dims = None if other is None else config.find_head_growth(other)
    notes = [describe_layer_kinds(config, model, deep), *([HEADS_GROW.format(*sorted(dims))] if dims else [])]
    return replace(model, notes=[*model.notes, *(("", note) for note in notes)]), odd


def read_probed_config(
    config: ProbedConfig, other: Mapping[str, Any] | None, deep: bool, strict: bool = False
) -> tuple[TracedModel, list[str]]:
    """Reads the model of a configuration as a network, using a second configuration of the same model at another size.

    A constant that differs between the two (say a multiplier) is taken to be a power of a size that differs, too.

    Args:
        config: the configuration.
        other: the content of the other configuration, or None.
        deep: whether the number of layers is an axis.
        strict: whether it is an error if the equations cannot be read; otherwise the model is then read by the shapes
            of its parameters.

    Returns:
        The network, and one line for every difference between the two that it does not take into account.
    """
    beside = ConfigDifference() if other is None else config.compare(other)
    acting = {name: values for name, values in beside.constants.items() if config.changes_output(name, values)}
    sizes = config.sizes(), config.sizes(other) if other is not None else {}
    powers = {name: _fit_power(math.log(b / a), *sizes) for name, (a, b) in acting.items()}
    known = {name: power for name, power in powers.items() if power is not None}

    def read_with(constants: Mapping[str, tuple[str, Fraction]]) -> TracedModel:
        return read_module(config.make_builder(deep, beside, constants), strict=strict and not constants)

    model = read_with(known)
    if model.network.unread and known:
        known = {name: power for name, power in known.items() if not read_with({name: power}).network.unread}
        model = read_with(known)
    said = {name: Power.of({axis: p}) for name, (axis, p) in known.items()}
    notes = [("", FACTOR.format(name, *map(quote_value, acting[name]), power)) for name, power in said.items()]
    axis = next((x for x, n in sizes[0].items() if sizes[1].get(x, n) != n), "N")
    for name in [name for name in acting if name not in known]:  # not a factor if any power gives the same equations
        trial = read_with({**known, name: (axis, Fraction(1))})
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
    """Returns the powers of the sizes by which a module itself multiplies, so that two readings can be compared.

    Returns:
        The factors that stand where the equations have a multiplier (``TracedModel.factors``), and those before
        products with a single parameter (``Network.multiplied``).
    """
    return reading.factors, reading.network.multiplied


def _fit_power(ratio: float, sizes: Mapping[str, int], others: Mapping[str, int]) -> tuple[str, Fraction] | None:
    """Finds an axis and a power p so that a constant that differs between two configurations is proportional to axis^p.

    Args:
        ratio: the logarithm of the constant's ratio, second configuration over first.
        sizes: the sizes of the first configuration.
        others: the sizes of the second one.

    Returns:
        The axis and p; None if no axis fits. Of several, the one with the simplest p is taken.
    """
    grown = {axis: math.log(others[axis] / n) for axis, n in sizes.items() if others.get(axis, n) != n}
    found = {axis: Fraction(ratio / x).limit_denominator(DENOMINATOR) for axis, x in grown.items()}
    exact = [axis for axis, p in found.items() if math.isclose(p * grown[axis], ratio, rel_tol=1e-6)]
    axis = min(exact, key=lambda x: found[x].denominator, default="")
    return (axis, found[axis]) if axis else None


def merge_layer_names(reading: TracedModel) -> TracedModel:
    """Renames the parameters of a model that was read with one layer, so that they stand for every layer.

    ``layers.0.up`` becomes ``layers.*.up``. Other numbers in the names become ``*``, too, as long as no two names
    become equal.
    """
    names = [dict(zip(reading.roles, (mask_numbers(x, most) for x in reading.roles), strict=True)) for most in (0, 1)]
    apart = next((x for x in names if len({*x.values()}) == len(x)), {})

    def rename_parameter(name: str) -> str:
        return apart.get(name, mask_numbers(name) if name not in names[0] else name)

    text = re.sub(r'"([^"\n]*)"', lambda found: f'"{rename_parameter(found[1])}"', reading.text)
    network = from_toml(text, reading.network.name)
    read = reading.network
    network = replace(network, unread=read.unread, stands=read.stands, lacking=read.lacking)
    spans = {rename_parameter(role): x for role, x in reading.spans.items()}
    return replace(reading, text=text, network=network, spans=spans)


def describe_layer_kinds(config: ProbedConfig, model: TracedModel, deep: bool) -> str:
    """Returns a note on the layers of a configuration: which kind was read, and what parameters the other kinds have
    in addition.

    Args:
        config: the configuration.
        model: what was read from it.
        deep: whether the number of layers is an axis.
    """
    said = "all layers were read as one kind" if deep else "one layer was read; it stands for all layers"
    one = config.with_depth(1)
    for key, kinds in config.full.items():
        if isinstance(kinds, list) and len(kinds) == config.depth and len({*map(str, kinds)}) > 1:
            others = ", ".join(dict.fromkeys(str(x) for x in kinds if [x] != one[key]))
            said += f"; its {key} is {one[key][0]}, and {others} was not read"
    if first := _describe_dense_layers(config):
        said += f"; layers without experts ({first})"
        try:
            dense = call_build(
                probe_config(config.record, config.path, dense=True).make_builder(False), dict(model.base)
            )[0]
        except UsageError:  # transformers cannot build them
            return f"{said} were not read"
        roles = match_roles([name for name, _ in dense.named_parameters()], model.network.tensors)
        names = [name for name, found in roles.items() if not found]
        more = f"also have {join_names(names)}, whose numbers plan in Python gives"
        said += f" {more}" if names else " have the same parameters"
    return said


def list_omitted_parts(record: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yields a line for each part of a model that the small models trained in its place do not contain.

    Such parts are layers without experts, and a top-K that selects fewer than all experts.

    Args:
        record: the configuration of the model, as read from JSON.
        sizes: the sizes of the small models by axis.
    """
    config = probe_config(record, "the configuration")
    if said := _describe_dense_layers(config):
        yield f"layers without experts ({said}) are not part of the small models that were trained"
    its = config.sizes()
    if its.get("K", 0) < its.get("M", 0) and sizes.get("M", 0) == sizes.get("K", 0) > 0:
        yield (
            f"all {sizes['M']} experts are active in these small models, and {its['K']} of {its['M']} in the "
            "configuration; give --base and --target with K < M"
        )


def _describe_dense_layers(config: ProbedConfig) -> str:
    """Returns, as text, the entries of a configuration that make some of the layers dense (without experts).

    An example is ``first_k_dense = 1``. Returns "" if either all layers have experts or none has.
    """
    return ", ".join(f"{k} = {quote_value(config.full[k])}" for k in config.pattern) if config.mixed else ""
