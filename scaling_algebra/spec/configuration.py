"""What is asked: a network, the ray along which it grows, an optimizer and a parameterization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict, Unpack

from scaling_algebra.errors import UsageError, find_entry, quote_value, unknown_name_error

from .axes import AXES, Ray, regime, sort_axes
from .given import NOTHING, Given, GivenInput
from .networks.files import as_toml, from_toml
from .networks.indices import list_growing_axes
from .networks.language import Network
from .networks.library import ARCHITECTURES, MOE_BLOCK, architecture
from .networks.multipliers import hold_names
from .networks.roles import readouts
from .optimizer_reading import OptimizerInput, read_optimizers
from .optimizers import OptimizerSpec
from .parameterizations import READOUTS, Parameterization, ReadoutInit
from .parameterizations import parameterization as called
from .records import convert_to_json

DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION, DEFAULT_ARCHITECTURE = "adam", "mup", MOE_BLOCK.name
"""Defaults of every command and function."""
EACH = "each"
"""Argument of ``--without`` that leaves out every function in turn."""


class ConfigurationOptions(TypedDict, total=False):
    """Keyword arguments that ``derive`` and the like take besides regime, optimizer and parameterization.

    Attributes:
        ray: instead of a regime: ``"N=1,N_e=1/2,M=1"``, ``{"N": 1, "N_e": "1/2", "M": 1}`` or a ``Ray``.
        readout_init: ``maximal`` or ``zero``; by default that of the parameterization's definition.
        architecture: the name of a shipped network.
        network: instead of an architecture: a ``Network`` or its name.
        epsilon: how the optimizer's epsilon scales: ``derived`` from the demands (the default), or ``negligible``, far
            below every gradient.
        given: exponents that are fixed, ``{"router.init": "N^-1/2", "readout.init": 0, "aggregation": "M^-1"}``; the
            rest is derived.
        effort: True to examine every demand with the largest work limits, also after some demand stays undecided.
    """

    ray: Ray | Mapping[str, Any] | str | None
    readout_init: str | None
    architecture: str
    network: Network | str
    epsilon: str | None
    given: Given | GivenInput | None
    effort: bool


Where = ConfigurationOptions
"""The former name of ``ConfigurationOptions``."""


@dataclass(frozen=True)
class Configuration:
    """Everything that an answer depends on: a network, how it grows, its optimizer and its parameterization.

    Equal configurations have equal answers, so that a configuration can be a cache key.

    Attributes:
        network: the network.
        ray: how its axes grow; it has a rate for every growing axis of the network.
        optimizer: the update rule, one for all tensors or one for each; it contains the choice between a derived and a
            negligible epsilon.
        parameterization: the rule for init std and learning rate of the tensors.
        readout_init: ``maximal`` or ``zero``.
        given: exponents that are fixed by the user.
        effort: True to examine every demand with the largest work limits.

    Examples:
        >>> print(Configuration.of("III", "sgd"))
        muP, sgd, regime III (N=1,N_e=1,M=1,K=1,L=0), readout init maximal
        >>> print(Configuration.of("I", "adam", epsilon="negligible"))
        muP, adam, regime I (N=1,N_e=1,M=0,K=0,L=0), readout init maximal, epsilon negligible
        >>> print(Configuration.of("III", {"": "adamw", "expert_in": "muon"}))
        muP, adamw,expert_in=muon, regime III (N=1,N_e=1,M=1,K=1,L=0), readout init maximal, epsilon derived
    """

    network: Network
    ray: Ray
    optimizer: OptimizerSpec
    parameterization: Parameterization
    readout_init: ReadoutInit
    given: Given = NOTHING
    effort: bool = False

    def __post_init__(self) -> None:
        mine = {*AXES, *list_growing_axes(self.network)}
        if strange := [axis for axis in self.ray.rates if axis not in mine]:
            raise unknown_name_error(f"axis of {self.network.name}", strange[0], sort_axes(mine))
        if lacks := self.ray.find_missing_axes(self.network.axes.values()):
            axis = lacks[0]
            raise UsageError(f"the ray leaves out {axis} ({AXES[axis]}); give it, for example {axis}=0 if it is fixed")
        if self.ray["L"] and "L" not in self.network.axes.values():
            raise UsageError(f"L grows on the ray, but {self.network.name} has no depth axis; give L=0 or leave it out")
        name = self.network.name
        if name in ARCHITECTURES and ARCHITECTURES[name] != hold_names(self.network.with_frozen(()), ()):
            raise UsageError(f"{name} is the name of a shipped network; give yours another name")

    @classmethod
    def of(
        cls,
        regime: str | Configuration | None = None,
        optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
        parameterization: str = DEFAULT_PARAMETERIZATION,
        **where: Unpack[ConfigurationOptions],
    ) -> Configuration:
        """Builds a configuration from names, as on the command line; returns a configuration unchanged.

        Args:
            regime: I, II or III, instead of a ray; or a configuration.
            optimizer: one for all tensors, or one for each: ``"muon+adamw"``, ``{"": "adamw", "hidden": "muon"}``.
            parameterization: its name.
            where: further options, which ``ConfigurationOptions`` describes.

        Raises:
            UsageError: an unknown name, an invalid ray or one without an axis of the network, not exactly one of regime
                and ray, or both an architecture and a network.
        """
        if unknown := set(where) - set(ConfigurationOptions.__annotations__):
            raise unknown_name_error(
                "argument",
                min(unknown),
                ("regime", "optimizer", "parameterization", *ConfigurationOptions.__annotations__),
            )
        if isinstance(regime, Configuration):
            if where or (optimizer, parameterization) != (DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION):
                raise UsageError(
                    "a Configuration already contains all options; change one with configuration.but(optimizer=...)"
                )
            return regime
        if "architecture" in where and "network" in where:
            raise UsageError(
                "both architecture (the name of a shipped network) and network are given; leave out one of them"
            )
        network = where.get("network", where.get("architecture", DEFAULT_ARCHITECTURE))
        rule, readout = called(parameterization), where.get("readout_init")
        network = network if isinstance(network, Network) else architecture(network)
        stepper, epsilon = read_optimizers(optimizer, network), where.get("epsilon")
        stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
        given = Given.of(where.get("given"), network, stepper)
        network, last = given.within(network), readouts(network)
        usual: ReadoutInit = "zero" if last and network.zero.issuperset(last) else rule.starts(network)
        chosen = usual if readout is None else find_entry("readout init", readout, {x: x for x in READOUTS})
        network = network if chosen == "zero" or readout is None else network.with_zero(network.zero - {*last})
        if chosen == "zero" and not last:
            raise UsageError(
                f"{network.name} has no readout (a tensor that produces the output by itself), so that readout init "
                "has no effect; leave it out"
            )
        if any(f"{role}.init" in given for role in last):
            starts: ReadoutInit = "zero" if given.zero.issuperset(last) else "maximal"
            if readout is not None and chosen != starts:
                raise UsageError(f"readout init {chosen} contradicts {given}; leave one of them out")
            chosen = starts
        asked = network, read_ray(regime, where.get("ray")), stepper, rule, chosen, given
        return cls(*asked, effort=bool(where.get("effort")))

    def but(self, **changes: Any) -> Self:
        """Returns a copy with changes: ``asked.but(parameterization="mup", ray=ray)``.

        A new optimizer has its default epsilon; ``epsilon="negligible"`` changes that.
        """
        if isinstance(changes.get("network"), str):
            changes["network"] = architecture(changes["network"])
        same_network = self.network.with_frozen(self.network.frozen - self.given.frozen)
        network, given = changes.get("network", same_network), changes.pop("given", self.given)
        if isinstance(changes.get("parameterization"), str):
            changes["parameterization"] = called(changes["parameterization"])
        same = self.optimizer if network == same_network else self.optimizer.name
        epsilon = changes.pop("epsilon", None if "optimizer" in changes else self.optimizer.regime)
        stepper = read_optimizers(changes.get("optimizer", same), network, (self.network,))
        changes["optimizer"] = stepper if epsilon is None else stepper.with_epsilon(epsilon)
        given = Given.of(given, network, changes["optimizer"])
        return replace(self, **{**changes, "network": given.within(network), "given": given})

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record that begins every report; ``from_json`` reads it.

        A network of the user's own is included as TOML.
        """
        network = {} if self.network.name in ARCHITECTURES else {"network": as_toml(self.network)}
        return {
            "architecture": self.network.name,
            **network,
            "regime": self.ray.name or None,
            "ray": convert_to_json(self.ray.rates),
            "optimizer": self.optimizer.name,
            "epsilon": self.optimizer.regime,
            "parameterization": self.parameterization.name,
            "readout_init": self.readout_init,
            "given": self.given.as_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Configuration:
        """Reads the record that ``as_json`` wrote.

        Raises:
            UsageError: a value in the record is wrong.
            KeyError: the record lacks a key.
        """
        return cls.of(
            record["regime"],
            record["optimizer"],
            record["parameterization"],
            ray=None if record["regime"] else record["ray"],
            readout_init=record["readout_init"],
            network=from_toml(record["network"]) if "network" in record else record["architecture"],
            epsilon=record.get("epsilon"),
            given=record.get("given"),
        )

    @property
    def readout_given(self) -> bool:
        """True if the user fixed the init std of a readout: ``given`` contains ``ROLE.init`` for the role of a
        readout.
        """
        return any(f"{role}.init" in self.given for role in readouts(self.network))

    def __repr__(self) -> str:
        return f"<Configuration: {self}>"

    def __str__(self) -> str:
        where = "" if self.network == MOE_BLOCK else f"{self.network.title}, "
        who = f"{self.parameterization.title}, {where}{self.optimizer.name}"
        epsilon = "" if self.optimizer.regime is None else f", epsilon {self.optimizer.regime}"
        readout = "" if self.readout_given else f", readout init {self.readout_init}"
        given = f", given {self.given}" if self.given else ""
        return f"{who}, {self.ray}{readout}{epsilon}{given}"


def read_ray(name: str | None, ray: Ray | Mapping[str, Any] | str | None) -> Ray:
    """Returns the ray that is given either by the name of a regime or by its rates (``--regime`` or ``--ray``).

    Raises:
        UsageError: both or neither are given, or the one that is given cannot be read.
    """
    if (name is None) == (ray is None):
        raise UsageError("give either a regime (I, II or III) or a ray such as N=1,N_e=1/2,M=1/2")
    if isinstance(ray, Ray):
        return ray
    if name is not None:
        if not isinstance(name, str):
            raise UsageError(f"the regime is {quote_value(name)}; give 'I', 'II' or 'III', or ray=...")
        return regime(name)
    if isinstance(ray, str):
        return Ray.parse(ray)
    if isinstance(ray, Mapping):
        return Ray(ray)
    raise UsageError(f"the ray is {quote_value(ray)}; give a text or dict of rates such as 'N=1,N_e=1/2,M=1/2'")
