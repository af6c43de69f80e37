"""Readings of configurations of transformers: of one, and of one beside another of the same model at other sizes.

Of a configuration the family and its options stay; sizes become small and follow N, N_e, M, K and L. No weights are
read and no hub is asked. Read next: ``config_probing.py`` (small models), ``readings.py`` (how one is read).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, shown
from scaling_algebra.files import HUGGING_FACE
from scaling_algebra.recipes.files import read_config
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.powers import Power

from .building import called
from .config_probing import Difference, ProbedConfig, probe
from .config_skeletons import general
from .gradients import listed, roles_of
from .models import Traced
from .naming import Powers
from .readings import read

LONGER = (
    "heads grow in number and from dimension {} to {}, and were read with one that stays: the scores need the factor "
    "of a dimension that grows, too (plan has it)"
)
DENOMINATOR = 12
"""Of a power that is read off two numbers; others are taken as they are."""
DIFFERS = "{} is {} and {} in the two configurations"
FACTOR = f"{DIFFERS}: it is read as a factor that goes as {{}} between them"
NO_FACTOR = f"{DIFFERS}: it is no factor, and no number depends on it"
ODD = f"{DIFFERS}: it changes the output, and not by a factor that can be read; these numbers do not allow for it"
OTHER_CODE = f"{DIFFERS}: the first of these models is read, and these numbers do not allow for what the other does"


def config_of(text: str, beside: Path | None = None) -> tuple[ProbedConfig, dict[str, Any] | None]:
    """The configuration that a model's name means, probed, and that of the same model at another size.

    Raises:
        UsageError: no such file, no family that transformers knows, or two families.
    """
    path = Path(text.removeprefix(HUGGING_FACE))
    record, other = read_config(path), None if beside is None else read_config(beside)
    if other is not None and other["model_type"] != record["model_type"]:
        raise UsageError(f"{path} is a {record['model_type']} and {beside} a {other['model_type']}; give one family")
    return probe(record, str(path)), other


def config_sizes(path: Path, beside: Path) -> dict[str, int]:
    """The sizes by axis in a configuration (``beside``) of the family of another one."""
    config, other = config_of(str(path), beside)
    return config.sizes(other)


def read_config_file(text: str, beside: Path | None, deep: bool) -> tuple[Traced, list[str]]:
    """Read the configuration that a model's name means, as ``read_configured``, with a note on its kinds of layers.

    Args:
        text: ``hf:config.json``.
        beside: the configuration of the same model at another size.
        deep: whether the number of layers is an axis.
    """
    config, other = config_of(text, beside)
    model, odd = read_configured(config, other, deep)
    dims = None if other is None else config.heads_grow(other)
    notes = [kinds_of_layers(config, model, deep), *([LONGER.format(*sorted(dims))] if dims else [])]
    return replace(model, notes=[*model.notes, *(("", note) for note in notes)]), odd


def read_configured(
    config: ProbedConfig, other: Mapping[str, Any] | None, deep: bool, strict: bool = False
) -> tuple[Traced, list[str]]:
    """The reading of a configuration, with the constants that another one of the same model has otherwise as powers of
    the sizes that change between both; and a line for everything else that differs.

    Law: a constant is an axis of its own name while the model is read, so that its power is read as that of a size.
    """
    beside = Difference() if other is None else config.compare(other)

    def reading(constants: Sequence[str]) -> Traced:
        return read(config.builder(deep, beside, constants), strict=strict and not constants)

    acting = [name for name, values in beside.constants.items() if config.acts(name, values)]
    known, model = acting, reading(acting)
    if model.network.unread and acting:
        known = [name for name in acting if not reading([name]).network.unread]
        model = reading(known)
    odd = [ODD.format(name, *map(shown, beside.constants[name])) for name in acting if name not in known]
    others = {name: values for name, values in beside.others.items() if config.acts(name, values)}
    odd += [OTHER_CODE.format(name, *map(shown, values)) for name, values in others.items()]
    return _attributed(model if deep else layered(model), config, other, {x: beside.constants[x] for x in known}), odd


def _attributed(
    model: Traced, config: ProbedConfig, other: Mapping[str, Any] | None, constants: Mapping[str, tuple[float, float]]
) -> Traced:
    """A reading in which the powers of constants are those of a size that changes with them."""
    if not constants:
        return model
    sizes = config.sizes(), config.sizes(other)
    powers = {name: _as_power(math.log(b / a), *sizes) for name, (a, b) in constants.items()}

    def put(own: Powers) -> Powers:
        found = Power.of({axis: p for axis, p in own.items() if axis not in powers})
        for axis, p in own.items():
            found = found * powers[axis] ** p if axis in powers else found
        return dict(found.terms)

    of = {axis for own in (*(x for _, x in model.factors.values()), *model.gauge.values()) for axis in own}
    notes = [
        ("", FACTOR.format(name, *map(shown, constants[name]), power)) for name, power in powers.items() if name in of
    ]
    notes += [("", NO_FACTOR.format(name, *map(shown, constants[name]))) for name in powers if name not in of]
    return replace(
        model,
        factors={name: (where, put(own)) for name, (where, own) in model.factors.items()},
        gauge={role: put(own) for role, own in model.gauge.items()},
        notes=[*model.notes, *notes],
        base={axis: n for axis, n in model.base.items() if axis not in constants},
    )


def _as_power(ratio: float, sizes: Mapping[str, int], others: Mapping[str, int]) -> Power:
    """The simplest power of one size that has this logarithm of a ratio between two configurations."""
    grown = {axis: math.log(others[axis] / n) for axis, n in sizes.items() if others.get(axis, n) != n}
    if not grown:
        return Power()
    found = {axis: Fraction(ratio / x).limit_denominator(DENOMINATOR) for axis, x in grown.items()}
    exact = [axis for axis, p in found.items() if math.isclose(p * grown[axis], ratio, rel_tol=1e-6)]
    if exact:
        axis = min(exact, key=lambda x: found[x].denominator)
        return Power.of({axis: found[axis]})
    axis = next(iter(grown))
    return Power.of({axis: Fraction(ratio / grown[axis]).limit_denominator(10**6)})


def layered(reading: Traced) -> Traced:
    """Return a reading of one layer as that of every layer: its number becomes ``*``, and so do other numbers, where
    names stay apart without them."""
    roles = reading.roles
    every = len({*map(general, roles)}) == len(roles)

    def rename(name: str) -> str:
        return general(name, 0 if every else 1)

    text = re.sub(r'"([^"\n]*)"', lambda found: f'"{rename(found[1])}"', reading.text)
    network = from_toml(text, reading.network.name)
    read = reading.network
    network = replace(network, unread=read.unread, stands=read.stands, lacking=read.lacking)
    gauge, spans = ({rename(role): x for role, x in of.items()} for of in (reading.gauge, reading.spans))
    return replace(reading, text=text, gauge=gauge, network=network, spans=spans)


def kinds_of_layers(config: ProbedConfig, model: Traced, deep: bool) -> str:
    """The line that says which layers of a configuration were read, and what others have besides."""
    said = "read with layers of one kind" if deep else "read with one layer, which stands for all"
    one = config.shortened(1)
    for key, kinds in config.full.items():
        if isinstance(kinds, list) and len(kinds) == config.depth and len({*map(str, kinds)}) > 1:
            others = ", ".join(dict.fromkeys(str(x) for x in kinds if [x] != one[key]))
            said += f"; {key} is {one[key][0]} in it, never {others}"
    if first := _said(config):
        said += f"; layers without experts ({first})"
        try:
            dense = called(probe(config.record, config.path, dense=True).builder(False), dict(model.base))[0]
        except UsageError:  # transformers builds none
            return f"{said} are not in it"
        roles = roles_of([name for name, _ in dense.named_parameters()], model.network.tensors)
        names = [name for name, found in roles.items() if not found]
        said += f" have {listed(names)} besides: plan in Python has their numbers" if names else " are alike"
    return said


def not_trained(record: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[str]:
    """What of a configuration is not in small models of it at these sizes, a line each."""
    config = probe(record, "the configuration")
    if said := _said(config):
        yield f"layers without experts ({said}) are not in the models that are trained"
    its = config.sizes()
    if its.get("K", 0) < its.get("M", 0) and sizes.get("M", 0) == sizes.get("K", 0) > 0:
        yield "every expert is active here (K = M), and the configuration selects; give --base and --target with K < M"


def _said(config: ProbedConfig) -> str:
    """What a configuration says of layers without experts, where it has some."""
    return ", ".join(f"{k} = {shown(config.full[k])}" for k in config.pattern) if config.mixed else ""
