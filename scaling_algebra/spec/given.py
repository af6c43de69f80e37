"""Exponents that the user fixes instead of deriving them.

Examples: ``router.init=N^-1/2``, ``W2.lr=N^-1``, ``readout.init=0``, and ``W2.lr=0`` for a tensor that is not trained.
Read next: ``configuration.py`` (a part of every question), ``scaling_algebra/solver/search.py`` (derives the rest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scaling_algebra.arguments import parse_pairs
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error

from .axes import AXES
from .desiderata import Demand, Structure
from .networks.indices import find_aggregations, list_power_axes
from .networks.language import Network
from .networks.multipliers import hold_names
from .networks.roles import readouts
from .optimizers import OptimizerSpec
from .powers import Power
from .scaling import Scaling

SETTINGS = {"init": "b", "lr": "c", "eps": "d"}
"""Settings of a tensor that can be fixed or explained, with the prefix of their unknown: ``router.init`` is
``b.router``."""
AGGREGATION = "aggregation"
"""Name of the multiplier of the sum over experts."""

GivenInput = Mapping[str, "Power | str | int | None"] | Iterable[str]
"""``{"router.init": "N^-1/2", "readout.init": 0}``, or texts such as ``"router.init=N^-1/2"``."""


@dataclass(frozen=True)
class Given:
    """Exponents that the user fixes, by the name of the setting.

    Attributes:
        items: sorted pairs (name, power). Names are ``ROLE.init``, ``ROLE.lr``, ``ROLE.eps``, ``aggregation`` and those
            of other multipliers. A power of None is an init or a learning rate of zero.
    """

    items: tuple[tuple[str, Power | None], ...] = ()

    @classmethod
    def of(cls, given: Given | GivenInput | None, network: Network, optimizer: OptimizerSpec) -> Given:
        """Reads the values that a user wrote.

        Args:
            given: a dict, or texts ``NAME=POWER``; a tensor is named by its role or by its symbol in the equations.
            network: the network.
            optimizer: the optimizer, which determines whether a tensor has an epsilon.

        Raises:
            UsageError: an unknown tensor or setting, an unreadable power, an axis that the network lacks, a zero for
                anything but init and learning rate, an epsilon where there is none, or one name twice.
        """
        if isinstance(given, Given):
            given = dict(given.items)
        named = given if isinstance(given, Mapping) else parse_pairs("given", _list_texts(given), "router.init=N^-1/2")
        powers: dict[str, Power | None] = {}
        for label, value in named.items():
            name = _read_name(label if isinstance(label, str) else quote_value(label), network, optimizer)
            if name in powers:
                raise UsageError(f"--given has {name} twice; give it once")
            powers[name] = _read_power(name, value, network)
            role = name.rpartition(".")[0]
            if powers[name] is not None and role in network.multiplied:
                what = f"the module multiplies {role} by {network.multiplied[role]}"
                raise UsageError(f"cannot fix {name}: {what}; remove this factor from the module first")
        settings = (f"{role}.{setting}" for role in network.tensors for setting in SETTINGS)
        order = [*settings, AGGREGATION, *network.multipliers]
        return cls(tuple((name, powers[name]) for name in order if name in powers))

    def __bool__(self) -> bool:
        return bool(self.items)

    def __contains__(self, name: str) -> bool:
        return name in dict(self.items)

    @property
    def zero(self) -> frozenset[str]:
        """Roles of tensors whose init is fixed to zero."""
        return frozenset(n.removesuffix(".init") for n, power in self.items if power is None and n.endswith(".init"))

    @property
    def frozen(self) -> frozenset[str]:
        """Roles of tensors whose learning rate is fixed to zero."""
        return frozenset(n.removesuffix(".lr") for n, power in self.items if power is None and n.endswith(".lr"))

    def within(self, network: Network) -> Network:
        """Returns the network with the changes that the fixed values imply.

        Tensors with a fixed learning rate of zero become frozen. If a multiplier and the scale of a tensor are
        redundant (either could absorb the other), the one that the user fixes keeps its value and the other one
        becomes an unknown.
        """
        network = network.with_frozen(network.frozen | self.frozen)
        given = ("alpha" if n == AGGREGATION else n for n, power in self.items if power is not None)
        return hold_names(network, given)

    @property
    def held(self) -> dict[str, Power]:
        """The fixed values by unknown (``b.ROLE``, ``c.ROLE``, ``d.ROLE``, ``alpha``). As exponents count downwards
        (init std ~ n^-b), each value is inverted: 1/init std, 1/learning rate, 1/epsilon, 1/multiplier.
        """
        return {name_unknown(name): 1 / power for name, power in self.items if power is not None}

    @property
    def started(self) -> frozenset[str]:
        """Roles of tensors whose init std is fixed to a power of the axes instead of zero."""
        return frozenset(n.rpartition(".")[0] for n, power in self.items if n.endswith(".init") and power is not None)

    def structure(self, base: Structure) -> Structure:
        """Returns ``base`` with one change: a tensor whose init std the user fixes starts at zero if it is fixed to
        zero, and otherwise does not.
        """
        return replace(base, zero=(base.zero - self.started) | self.zero)

    def relax_demands(self, network: Network, demands: Iterable[Demand]) -> list[Demand]:
        """Returns the demands; one that determines the init std of a readout becomes an upper bound if the user fixes
        this init std.

        Law: muP allows a readout to start at zero as well as with its maximal init std, and so with any init std in
        between, because the first update makes the readout as large as the maximal one.
        """
        inits = {f"b.{role}" for role in self.started.intersection(readouts(network))}
        return [replace(d, kind="bounded") if d.fixes in inits and d.kind == "theta" else d for d in demands]

    def filter_structures(self, structures: Iterable[Structure]) -> list[Structure]:
        """Returns the distinct structures that do not set a tensor to zero whose init is fixed to a power."""
        return [s for s in dict.fromkeys(structures) if not s.zero & self.started]

    def over(self, scaling: Scaling) -> Scaling:
        """Returns a copy of a parameterization's settings in which the fixed values replace the derived ones."""
        tensors, multipliers = dict(scaling.tensors), dict(scaling.multipliers)
        for name, power in self.items:
            role, _, setting = name.rpartition(".")
            if role:
                changed: dict[str, Any] = {"init_std" if setting == "init" else setting: power}
                tensors[role] = replace(tensors[role], **changed)
            elif power is not None:  # only an init or a rate can be zero
                multipliers[name_unknown(name)] = 1 / power
        return replace(scaling, tensors=tensors, multipliers=multipliers)

    def as_json(self) -> dict[str, str]:
        """Returns the values by name, ``{"router.init": "N^(-1/2)"}``; zero is ``"0"``."""
        return {name: "0" if power is None else str(power) for name, power in self.items}

    def __str__(self) -> str:
        return ", ".join(f"{name} = {power}" for name, power in self.as_json().items())


NOTHING = Given()
"""No fixed value: everything is derived."""


def name_unknown(name: str) -> str:
    """Returns the name of a setting's unknown exponent: ``b.router`` for ``router.init``, ``alpha`` for
    ``aggregation``.
    """
    role, _, setting = name.rpartition(".")
    return f"{SETTINGS[setting]}.{role}" if role else "alpha" if name == AGGREGATION else name


def _list_texts(given: Iterable[str] | None) -> list[str]:
    """Returns what the user gives, a dict or texts, as a list of texts ``NAME=POWER``; empty for None."""
    if isinstance(given, str):
        return [given]
    try:
        return [str(text) for text in given or ()]
    except TypeError:
        raise UsageError(f"given is {quote_value(given)}; give a dict such as {{'router.init': 'N^-1/2'}}") from None


def _read_name(label: str, network: Network, optimizer: OptimizerSpec) -> str:
    """Checks the name of a setting that the user fixes, and returns it with the tensor's role in place of its symbol.

    Example: ``Q.init`` -> ``router.init``.
    """
    if label == AGGREGATION:
        if not find_aggregations(network):
            raise UsageError(f"{network.name} has no sum over experts to multiply; leave out {label!r}")
        return label
    if label in network.multipliers:
        return AGGREGATION if label == "alpha" and find_aggregations(network) else label
    tensor, _, setting = label.rpartition(".")
    if not tensor:
        tensor, setting = label, ""
    if tensor in network.multipliers:
        raise UsageError(
            f"cannot fix {label!r}: {tensor} is a multiplier and has no init or learning rate; give {tensor}=POWER"
        )
    symbols = {t.symbol: role for role, t in network.tensors.items()}
    role = symbols.get(tensor, tensor)
    if role not in network.tensors:
        others = (m for m in network.multipliers if m != "alpha")
        raise network.unknown(f"tensor or multiplier of {network.name}", tensor, (*symbols, *others))
    if setting not in SETTINGS:
        example = " or ".join(f"{tensor}.{s}" for s in SETTINGS)
        raise UsageError(f"cannot fix {label!r}; give a parameter of a tensor, such as {example}, or {AGGREGATION}")
    rule = optimizer.of(role)
    if setting != "init" and role in network.frozen:
        raise UsageError(f"cannot fix {label!r}: {role} is frozen and has no {setting}; leave it out")
    if setting == "eps" and not rule.epsilon:
        why = "is negligible" if rule.negligible else "does not exist"
        raise UsageError(f"cannot fix {label!r}: the epsilon of {rule.name} {why}; leave it out")
    return f"{role}.{setting}"


def _read_power(name: str, value: Power | str | int | None, network: Network) -> Power | None:
    """Reads the value of a setting that the user fixes, and checks that the network has its axes. Returns None for a
    value of zero.
    """
    text = value if isinstance(value, str) else quote_value(value)
    if value is None or text.strip() == "0":
        if not name.endswith((".init", ".lr")):
            why = "only an init or a learning rate (a tensor that is not trained) can be zero"
            raise UsageError(f"{name} is given as 0, but {why}; give a power such as N^-1")
        return None
    axes = list_power_axes(network)
    power = value if isinstance(value, Power) else Power.parse(text, (*AXES, *axes))
    for axis, _ in power.terms:
        if axis not in axes:
            raise unknown_name_error(f"axis of {network.name}, in {name}={value}:", axis, axes)
    return power
