"""Reads the scaling rules that were transcribed from public code (``rules/*.toml``, one file for each repository).
The engine never imports this module.

To add an implementation, add a file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from scaling_algebra.errors import UsageError, find_entry, unknown_name_error
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.entries import read_value
from scaling_algebra.spec.gauges import gauge_powers
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.optimizers import EPSILONS, OptimizerSpec
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power

FOLDER = Path(__file__).parent / "rules"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
"""Names of the implementations, as ``audit --implementations --source`` takes them."""
MULTIPLIER = "multiplier"
"""Setting of a tensor besides ``init``, ``lr`` and ``eps``: its factor in the forward pass."""
DECAY = "decay"
"""Decoupled weight decay as in torch, multiplied by the learning rate."""


@dataclass(frozen=True)
class SourcePlace:
    """Where in a repository a part of a rule is defined.

    Attributes:
        file: path in the repository.
        says: which part of the rule it is.
        commit: the commit that was read; "" if it is unknown.
    """

    file: str
    says: str
    commit: str = ""


@dataclass(frozen=True)
class ShippedRule:
    """A rule for every tensor of a network, as powers of the axes.

    Attributes:
        name: name on the command line.
        title: one line.
        repository: where the code is.
        read: when the code was read.
        place: the places in the code that define the rule.
        regimes: rays it is compared on, by name or as ``N=1,L=1``.
        parameterization: the derived parameterization it is compared with.
        optimizer: the optimizer it trains with.
        epsilon: sizes of its epsilon that are examined: ``negligible``, and ``derived`` if the rule scales epsilon;
            empty for an optimizer without an epsilon.
        tensors: for each role the powers that the rule sets: ``multiplier``, ``init``, ``lr``, ``eps``, ``decay``;
            None is zero init.
        covers: those of ``regimes`` for which the rule is meant, that is, on which no axis grows that the rule
            assumes to be fixed.
        readout_init: readout init of the parameterization it is compared with; "" for that of the definition.
        architecture: the network.
        variant: name of the rule if its repository has several; "" if it is the only one.
        multipliers: powers of multipliers of signals that the rule sets: ``aggregation`` for the sum over experts,
            others by their name in the network, such as ``res``.
        assumes: what the transcription assumes, one line each.
    """

    name: str
    title: str
    repository: str
    read: str
    place: tuple[SourcePlace, ...]
    regimes: tuple[str, ...]
    parameterization: str
    optimizer: str
    epsilon: tuple[str, ...]
    tensors: Mapping[str, Mapping[str, Power | None]]
    covers: tuple[str, ...] = ()
    readout_init: str = ""
    architecture: str = "moe"
    variant: str = ""
    multipliers: Mapping[str, Power] = field(default_factory=dict)
    assumes: tuple[str, ...] = ()

    @property
    def network(self) -> Network:
        """The network whose tensors the rule is about."""
        return architecture(self.architecture)

    @property
    def label(self) -> str:
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def as_given(self, optimizer: OptimizerSpec) -> dict[str, Power | None]:
        """Converts the powers that the rule sets to the equivalent ones for tensors without multipliers, as
        ``{"ROLE.init": power, ...}``. The multipliers of signals are added to them.

        Law: ``spec/gauges.py`` states how the powers change.

        Args:
            optimizer: the rule's optimizer. Powers of epsilon are included only if it is not negligible.
        """
        powers: dict[str, Power | None] = {}
        for role, settings in self.tensors.items():
            rule = optimizer.of(role)
            factors = {
                x.removesuffix("_std"): p for x, p in gauge_powers(rule, settings.get("init", 0) is None).items()
            }
            forward = settings.get(MULTIPLIER) or Power()
            for setting in SETTINGS:
                if setting in settings and (setting != "eps" or rule.epsilon):
                    power = settings[setting]
                    powers[f"{role}.{setting}"] = None if power is None else power * forward ** factors[setting]
        return powers | dict(self.multipliers)

    @property
    def shrinking(self) -> dict[str, tuple[Power, Power]]:
        """Weight decay and learning rate, as powers of the axes, of every tensor for which the rule sets both, by role.

        Law: their product is by how much one step shrinks the weights: it multiplies them by 1 - lr decay. A
        multiplier of the tensor in the forward pass does not change this.
        """
        pairs = {role: (s.get(DECAY), s.get("lr")) for role, s in self.tensors.items()}
        return {role: (decay, lr) for role, (decay, lr) in pairs.items() if decay is not None and lr is not None}


@cache
def rules() -> tuple[ShippedRule, ...]:
    """Returns every scaling rule that was transcribed from public code, in the order of the files ``rules/*.toml``."""
    return tuple(rule for name in NAMES for rule in parse(name, (FOLDER / f"{name}.toml").read_text("utf-8")))


def parse(name: str, text: str) -> list[ShippedRule]:
    """Reads the scaling rules of one repository.

    Args:
        name: name of its file, without suffix, which messages quote.
        text: content of the file, TOML.

    Raises:
        UsageError: a key, name or power cannot be read; the message names the file.
    """
    try:
        head = tomllib.loads(text)
        entries = head.pop("rule")
        return [_check_rule(read_value(ShippedRule, {"name": name, **head, **entry})) for entry in entries]
    except ValueError as error:
        raise UsageError(f"rules of {name}: {error}") from None


def _check_rule(rule: ShippedRule) -> ShippedRule:
    """Checks that every name in a rule is known, and returns it with the canonical name of its optimizer."""
    for epsilon in rule.epsilon:
        find_entry("regime of epsilon", epsilon, EPSILONS)
    find_entry("parameterization", rule.parameterization, PARAMETERIZATIONS)
    for regime in (*rule.regimes, *rule.covers):
        Ray.parse(regime) if "=" in regime else find_entry("regime", regime, REGIMES)
    for role, settings in rule.tensors.items():
        if role not in rule.network.tensors:
            raise unknown_name_error(f"tensor of {rule.architecture}", role, rule.network.tensors)
        for setting, power in settings.items():
            if setting not in (MULTIPLIER, *SETTINGS, DECAY):
                raise unknown_name_error(f"setting of {role}", setting, (MULTIPLIER, *SETTINGS, DECAY))
            if power is None and setting != "init":
                raise UsageError(f"the {setting} of {role} is 0; only an init can be 0")
        if DECAY in settings and "lr" not in settings:
            raise UsageError(f"{role} has a decay, which the learning rate multiplies; give its lr")
    return replace(rule, optimizer=read_optimizers(rule.optimizer, rule.network).name)
