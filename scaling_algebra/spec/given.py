"""Exponents that are given instead of derived: ``router.init=N^-1/2``, ``W2.lr=N^-1``, ``readout.init=0``, and tensors
that are not trained: ``W2.lr=0``.

Read next: ``configuration.py`` (a part of every question), ``scaling_algebra/solver/search.py`` (derives the rest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scaling_algebra.arguments import parse_pairs
from scaling_algebra.errors import UsageError, quote_value, unknown_name

from .axes import AXES
from .desiderata import Demand, Structure
from .networks.indices import aggregations, in_powers
from .networks.language import Network
from .networks.multipliers import holding
from .networks.roles import readouts
from .optimizers import Trained
from .powers import Power
from .scaling import Scaling

SETTINGS = {"init": "b", "lr": "c", "eps": "d"}
"""Settings of a tensor that can be given or explained, and the unknown behind it."""
AGGREGATION = "aggregation"
"""The multiplier of the sum over experts."""

GivenInput = Mapping[str, "Power | str | int | None"] | Iterable[str]
"""``{"router.init": "N^-1/2", "readout.init": 0}``, or texts such as ``"router.init=N^-1/2"``."""


@dataclass(frozen=True)
class Given:
    """Held values, as sorted (name, power) pairs; None is zero init, and a rate of zero.

    Names are ``ROLE.init``, ``ROLE.lr``, ``ROLE.eps``, ``aggregation`` and those of other multipliers.
    """

    items: tuple[tuple[str, Power | None], ...] = ()

    @classmethod
    def of(cls, given: Given | GivenInput | None, network: Network, optimizer: Trained) -> Given:
        """The held values that a user wrote, with tensors by their role or symbol.

        Raises:
            UsageError: an unknown tensor or setting, a power that cannot be read, an axis that the network lacks, a
                zero that is no init, an epsilon where there is none, or one name twice.
        """
        if isinstance(given, Given):
            given = dict(given.items)
        named = given if isinstance(given, Mapping) else parse_pairs("given", _texts(given), "router.init=N^-1/2")
        powers: dict[str, Power | None] = {}
        for label, value in named.items():
            name = _name(label if isinstance(label, str) else quote_value(label), network, optimizer)
            if name in powers:
                raise UsageError(f"{name} is given twice; give it once")
            powers[name] = _power(name, value, network)
            role = name.rpartition(".")[0]
            if powers[name] is not None and role in network.multiplied:
                what = f"the module multiplies {role} by {network.multiplied[role]}"
                raise UsageError(f"cannot hold {name}: {what}; take this factor out of the module to hold it")
        settings = (f"{role}.{setting}" for role in network.tensors for setting in SETTINGS)
        order = [*settings, AGGREGATION, *network.multipliers]
        return cls(tuple((name, powers[name]) for name in order if name in powers))

    def __bool__(self) -> bool:
        return bool(self.items)

    def __contains__(self, name: str) -> bool:
        return name in dict(self.items)

    @property
    def zero(self) -> frozenset[str]:
        """Roles that are given a zero init."""
        return frozenset(n.removesuffix(".init") for n, power in self.items if power is None and n.endswith(".init"))

    @property
    def frozen(self) -> frozenset[str]:
        """Roles that are given a learning rate of zero."""
        return frozenset(n.removesuffix(".lr") for n, power in self.items if power is None and n.endswith(".lr"))

    def within(self, network: Network) -> Network:
        """A network in which tensors with a rate of zero are frozen, and what is given takes up gauge freedom."""
        network = network.freezing(network.frozen | self.frozen)
        given = ("alpha" if n == AGGREGATION else n for n, power in self.items if power is not None)
        return holding(network, given)

    @property
    def held(self) -> dict[str, Power]:
        """The unknowns ``b.ROLE``, ``c.ROLE``, ``d.ROLE``, ``alpha`` that are held, each as the power of the axes whose
        exponent it is: 1/sigma, 1/lr, 1/eps, 1/multiplier."""
        return {unknown(name): 1 / power for name, power in self.items if power is not None}

    @property
    def started(self) -> frozenset[str]:
        """Roles that are given an init that is not zero."""
        return frozenset(n.rpartition(".")[0] for n, power in self.items if n.endswith(".init") and power is not None)

    def structure(self, base: Structure) -> Structure:
        """A structure in which, of the tensors with a given init, exactly those given as zero are zero."""
        return replace(base, zero=(base.zero - self.started) | self.zero)

    def eased(self, network: Network, demands: Iterable[Demand]) -> list[Demand]:
        """Return the demands, those on the init of a readout whose init is given as upper bounds.

        Law: muP allows a readout to start at zero as well as at its maximal init, and so anywhere in between: its first
        update makes it as large.
        """
        inits = {f"b.{role}" for role in self.started.intersection(readouts(network))}
        return [replace(d, kind="bounded") if d.fixes in inits and d.kind == "theta" else d for d in demands]

    def allowed(self, structures: Iterable[Structure]) -> list[Structure]:
        """The structures that keep every given init, each once."""
        return [s for s in dict.fromkeys(structures) if not s.zero & self.started]

    def over(self, scaling: Scaling) -> Scaling:
        """A scaling in which the given values replace the derived ones."""
        tensors, multipliers = dict(scaling.tensors), dict(scaling.multipliers)
        for name, power in self.items:
            role, _, setting = name.rpartition(".")
            if role:
                changed: dict[str, Any] = {"init_std" if setting == "init" else setting: power}
                tensors[role] = replace(tensors[role], **changed)
            elif power is not None:  # only an init or a rate can be zero
                multipliers[unknown(name)] = 1 / power
        return replace(scaling, tensors=tensors, multipliers=multipliers)

    def as_json(self) -> dict[str, str]:
        """``{"router.init": "N^(-1/2)"}``; ``"0"`` is zero."""
        return {name: "0" if power is None else str(power) for name, power in self.items}

    def __str__(self) -> str:
        return ", ".join(f"{name} = {power}" for name, power in self.as_json().items())


NOTHING = Given()
"""Everything is derived."""


def unknown(name: str) -> str:
    """``router.init`` as the unknown ``b.router``; ``aggregation`` as ``alpha``."""
    role, _, setting = name.rpartition(".")
    return f"{SETTINGS[setting]}.{role}" if role else "alpha" if name == AGGREGATION else name


def _texts(given: Iterable[str] | None) -> list[str]:
    if isinstance(given, str):
        return [given]
    try:
        return [str(text) for text in given or ()]
    except TypeError:
        raise UsageError(f"given is {quote_value(given)}; give a dict such as {{'router.init': 'N^-1/2'}}") from None


def _name(label: str, network: Network, optimizer: Trained) -> str:
    if label == AGGREGATION:
        if not aggregations(network):
            raise UsageError(f"{network.name} has no aggregation; leave out {label!r}")
        return label
    if label in network.multipliers:
        return AGGREGATION if label == "alpha" and aggregations(network) else label
    tensor, _, setting = label.rpartition(".")
    if not tensor:
        tensor, setting = label, ""
    if tensor in network.multipliers:
        raise UsageError(f"cannot hold {label!r}: {tensor} is a multiplier, without init and rate; give {tensor}=POWER")
    symbols = {t.symbol: role for role, t in network.tensors.items()}
    role = symbols.get(tensor, tensor)
    if role not in network.tensors:
        others = (m for m in network.multipliers if m != "alpha")
        raise network.unknown(f"tensor or multiplier of {network.name}", tensor, (*symbols, *others))
    if setting not in SETTINGS:
        example = " or ".join(f"{tensor}.{s}" for s in SETTINGS)
        raise UsageError(f"cannot hold {label!r}; give {example}, or {AGGREGATION}")
    rule = optimizer.of(role)
    if setting != "init" and role in network.frozen:
        raise UsageError(f"cannot hold {label!r}: {role} is frozen, so it has no {setting}; leave it out")
    if setting == "eps" and not rule.epsilon:
        why = "is negligible" if rule.negligible else "does not exist"
        raise UsageError(f"cannot hold {label!r}: the epsilon of {rule.name} {why}; leave it out")
    return f"{role}.{setting}"


def _power(name: str, value: Power | str | int | None, network: Network) -> Power | None:
    text = value if isinstance(value, str) else quote_value(value)
    if value is None or text.strip() == "0":
        if not name.endswith((".init", ".lr")):
            why = "only an init or a learning rate (a tensor that is not trained) can be zero"
            raise UsageError(f"{name} is given as 0; {why}: give a power such as N^-1")
        return None
    axes = in_powers(network)
    power = value if isinstance(value, Power) else Power.parse(text, (*AXES, *axes))
    for axis, _ in power.terms:
        if axis not in axes:
            raise unknown_name(f"axis of {network.name}, in {name}={value}:", axis, axes)
    return power
