"""Reads the transcribed rules (``rules/*.toml``), one file per repository; the engine never imports this.

Adding an implementation: one more file. Read next: ``comparison.py`` (holds a rule against the derivation).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, named, unknown_name
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.optimizers import EPSILONS, Trained
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.trained import trained

FOLDER = Path(__file__).parent / "rules"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
"""Every implementation, by the name ``audit --implementations --source`` takes."""
MULTIPLIER = "multiplier"
"""What a tensor is multiplied by in the forward pass, besides ``init``, ``lr`` and ``eps``."""
DECAY = "decay"
"""Decoupled weight decay as torch takes it, multiplied by the learning rate."""


@dataclass(frozen=True)
class SourcePlace:
    """Where a part of a rule stands.

    Attributes:
        file: path in the repository.
        commit: the one that was read; empty where the text that was read names none.
        says: what of the rule stands there.
    """

    file: str
    commit: str
    says: str


@dataclass(frozen=True)
class ShippedRule:
    """One rule for every tensor of a network, as powers of the axes.

    Attributes:
        name: for the command line.
        title, repository, read: what it is, whose, and when it was read.
        variant: which of several rules of one repository; empty for the only one.
        places: where it stands.
        regimes: the rays it is compared on, by name or as ``N=1,L=1``; ``covers``: those of them on which nothing grows
            that it does not ask for.
        parameterization: what it is compared with.
        optimizer: what it trains with.
        epsilon: the regimes of its epsilon that it is compared in; ``derived`` only where it scales epsilon.
        network: the tensors it is read for.
        tensors: role -> ``multiplier``, ``init``, ``lr``, ``eps``, ``decay`` as far as it sets them; None is zero init.
        multipliers: those of no tensor, as far as it sets them: ``aggregation``, of the sum over experts, and those of
            the network by name, such as ``res``.
        assumes: what the transcription takes for granted, a line each.
    """

    name: str
    title: str
    repository: str
    read: str
    variant: str
    places: tuple[SourcePlace, ...]
    regimes: tuple[str, ...]
    covers: tuple[str, ...]
    parameterization: str
    optimizer: str
    epsilon: tuple[str, ...]
    network: Network
    tensors: Mapping[str, Mapping[str, Power | None]]
    multipliers: Mapping[str, Power]
    assumes: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def given(self, optimizer: Trained) -> dict[str, Power | None]:
        """What it sets, moved to tensors without multipliers: ``ROLE.init`` and so on, and the others.

        Args:
            optimizer: its own, with the epsilon in one of its regimes; epsilons are given only where they count.

        Law: a tensor W = m V has init std m std(V) and learning rate m^2 lr (SGD) or m lr (normalised steps); the
        gradient of V is m times that of W, so that its epsilon counts as eps/m.
        """
        found: dict[str, Power | None] = {}
        for role, settings in self.tensors.items():
            rule = optimizer.of(role)
            factors = {"init": 1, "lr": rule.factors, "eps": -1}
            forward = settings.get(MULTIPLIER) or Power()
            for setting, factor in factors.items():
                if setting in settings and (setting != "eps" or rule.epsilon):
                    power = settings[setting]
                    found[f"{role}.{setting}"] = None if power is None else power * forward**factor
        return found | dict(self.multipliers)

    @property
    def shrinking(self) -> dict[str, tuple[Power, Power]]:
        """Weight decay and learning rate, as it sets them, of every tensor whose decay it sets, by role.

        Law: a step multiplies the weights by 1 - lr decay, whatever multiplies them in the forward pass.
        """
        pairs = {role: (s.get(DECAY), s.get("lr")) for role, s in self.tensors.items()}
        return {role: (decay, lr) for role, (decay, lr) in pairs.items() if decay is not None and lr is not None}


@cache
def rules() -> tuple[ShippedRule, ...]:
    """Every transcribed rule, in the order of the files."""
    return tuple(rule for name in NAMES for rule in parse(name, (FOLDER / f"{name}.toml").read_text("utf-8")))


def chosen(name: str | None) -> tuple[ShippedRule, ...]:
    """The rules of one implementation, or all.

    Raises:
        UsageError: no such implementation.
    """
    if name is not None and name not in NAMES:
        raise unknown_name("implementation", name, NAMES)
    return tuple(rule for rule in rules() if name in (None, rule.name))


def parse(name: str, text: str) -> list[ShippedRule]:
    """The rules of one file.

    Raises:
        UsageError: a key, name or power that cannot be read; the message names the file.
    """
    try:
        data = tomllib.loads(text)
        head = {k: v for k, v in data.items() if k not in ("rule", "place")}
        places = tuple(SourcePlace(p["file"], p.get("commit", ""), p["says"]) for p in data["place"])
        return [_rule(name, {**head, **entry}, places) for entry in data["rule"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"rules of {name}: {said}; every rule needs the keys of the others") from None


# inside --------------------------------------------------------------------------------------------------------


def _rule(name: str, entry: Mapping[str, Any], places: tuple[SourcePlace, ...]) -> ShippedRule:
    network = architecture(entry.get("network", "moe"))
    rule = trained(entry["optimizer"], network)
    for epsilon in entry["epsilon"]:
        named("regime of epsilon", epsilon, EPSILONS)
    named("parameterization", entry["parameterization"], PARAMETERIZATIONS)
    for regime in (*entry["regimes"], *entry.get("covers", ())):
        _ray(regime)
    tensors = {role: _settings(role, settings, network) for role, settings in entry["tensors"].items()}
    return ShippedRule(
        name,
        entry["title"],
        entry["repository"],
        str(entry["read"]),
        entry.get("variant", ""),
        places,
        tuple(entry["regimes"]),
        tuple(entry.get("covers", ())),
        entry["parameterization"],
        rule.name,
        tuple(entry["epsilon"]),
        network,
        tensors,
        {name: Power.parse(power) for name, power in entry.get("multipliers", {}).items()},
        tuple(entry.get("assumes", ())),
    )


def _ray(text: str) -> Ray:
    return Ray.parse(text) if "=" in text else named("regime", text, REGIMES)


def _settings(role: str, settings: Mapping[str, str], network: Network) -> dict[str, Power | None]:
    if role not in network.tensors:
        raise unknown_name(f"tensor of {network.name}", role, network.tensors)
    for setting in settings:
        if setting not in (MULTIPLIER, *SETTINGS, DECAY):
            raise unknown_name(f"setting of {role}", setting, (MULTIPLIER, *SETTINGS, DECAY))
    if DECAY in settings and "lr" not in settings:
        raise ValueError(f"{role} has a decay, which the learning rate multiplies; give its lr")
    return {k: None if k == "init" and v == "0" else Power.parse(v) for k, v in settings.items()}
