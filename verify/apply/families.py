"""Which role every parameter of a published family has. Read next: ``families.toml`` (the data), ``plans.py``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name


@dataclass(frozen=True)
class Family:
    """A published family of models.

    Attributes:
        name: ``model_type`` of its configuration.
        roles: role by regular expression on names; the first that matches.
        gate: the power of M or K that its gate brings to the sum over experts, ``1/K``, ``1/M`` or ``1``; empty: dense.
    """

    name: str
    roles: Mapping[str, str] = field(default_factory=dict)
    gate: str = ""


AGGREGATION: Mapping[str, str] = {
    "1/K": "the weights of the chosen experts sum to 1: the gate brings 1/K to their sum; K and M may change, and "
    "nothing is left to multiply",
    "1/M": "a softmax over all experts, not renormalised: the gate brings 1/M to the sum over the K chosen; where "
    "K / M changes multiply that sum by M / K, target over base",
    "1": "sigmoids, not renormalised: the gate brings nothing to the sum over the chosen experts, which needs 1/M",
}
"""What a gate means for transfer, by what it brings to the sum over experts."""


@cache
def table() -> Mapping[str, Any]:
    """What ``families.toml`` says."""
    return tomllib.loads(files(__package__).joinpath("families.toml").read_text("utf-8"))


def names() -> tuple[str, ...]:
    """Every family that is known."""
    return tuple(table()["family"])


def family(name: str, config: Any = None, strict: bool = True) -> Family:
    """The family of this name.

    Args:
        config: of a model: whether the weights of the chosen experts are renormalised (``norm_topk_prob``), and what
            they are of (``scoring_func``), decide what the gate brings; else the family's default does.
        strict: a name that is not known is an error; else it is a family with the names that all share.

    Raises:
        UsageError: there is none, or it is one that needs an adapter.
    """
    data = table()
    if name in data["refused"]:
        raise UsageError(f"{name} has no adapter: {data['refused'][name]}; give a model of {', '.join(names())}")
    if name not in data["family"]:
        if strict:
            raise unknown_name("family", name, names())
        return Family(name, {**data["experts"], **data["shared"]})
    record = data["family"][name]
    gate = record.get("gate", "")
    renormalised = getattr(config, "norm_topk_prob", None)
    if gate and isinstance(renormalised, bool):
        plain = {"softmax": "1/M", "sigmoid": "1"}.get(getattr(config, "scoring_func", ""), record.get("plain", gate))
        gate = "1/K" if renormalised else plain
    return Family(name, {**record.get("roles", {}), **(data["experts"] if gate else {}), **data["shared"]}, gate)
