"""One question: which network, growing how, trained by what, parameterized how. Everything else follows from it.

Read next: ``parameterizations.py``, ``optimizers.py``, ``axes.py`` and ``networks`` (what it is made of).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict, Unpack

from scaling_algebra.errors import UsageError, named, unknown_name

from .axes import Ray, regime
from .networks.language import Network
from .networks.library import MOE_BLOCK, architecture
from .optimizers import Optimizer, optimizer
from .parameterizations import READOUTS, Parameterization, ReadoutInit, parameterization

DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION, DEFAULT_ARCHITECTURE = "adam", "mup", MOE_BLOCK.name
"""What every command and function takes where nothing is said."""


class Where(TypedDict, total=False):
    """What every function that asks takes by name, besides regime, optimizer and parameterization.

    Attributes:
        ray: instead of a regime: ``"N=1,N_e=1/2,M=1"``, ``{"N": 1, "N_e": "1/2", "M": 1}`` or a ``Ray``.
        readout_init: ``maximal`` or ``zero``; by default that of the parameterization's definition.
        architecture: the network.
    """

    ray: Ray | Mapping[str, Any] | str | None
    readout_init: str | None
    architecture: str


@dataclass(frozen=True)
class Configuration:
    """What is asked. Equal configurations have equal answers; the value is its own key.

    Attributes:
        network: the network.
        ray: how it grows.
        optimizer: what trains it.
        parameterization: how its tensors are set.
        readout_init: how the readout starts.

    Examples:
        >>> print(Configuration.of("III", "sgd"))
        muP, sgd, regime III (N=1,N_e=1,M=1,K=1,L=0), readout init maximal
    """

    network: Network
    ray: Ray
    optimizer: Optimizer
    parameterization: Parameterization
    readout_init: ReadoutInit

    @classmethod
    def of(
        cls,
        regime: str | Configuration | None = None,
        optimizer: str = DEFAULT_OPTIMIZER,
        parameterization: str = DEFAULT_PARAMETERIZATION,
        **where: Unpack[Where],
    ) -> Configuration:
        """From names, as they come from the command line; a configuration stays what it is.

        Args:
            regime: I, II or III, instead of a ray.
            where: see ``Where``.

        Raises:
            UsageError: an unknown name, a ray that is not one, or not exactly one of regime and ray.
        """
        if unknown := set(where) - set(Where.__annotations__):
            raise unknown_name(
                "argument", min(unknown), ("regime", "optimizer", "parameterization", *Where.__annotations__)
            )
        if isinstance(regime, Configuration):
            if where or (optimizer, parameterization) != (DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION):
                raise UsageError("a configuration says everything; change it with configuration.but(optimizer=...)")
            return regime
        rule, readout = _parameterization(parameterization), where.get("readout_init")
        return cls(
            _architecture(where.get("architecture", DEFAULT_ARCHITECTURE)),
            the_ray(regime, where.get("ray")),
            _optimizer(optimizer),
            rule,
            rule.readout_init if readout is None else _readout(readout),
        )

    def but(self, **changes: Any) -> Self:
        """The same question with something changed: ``asked.but(parameterization="mup", ray=ray)``."""
        made: dict[str, Callable[[str], Any]] = {
            "optimizer": _optimizer,
            "parameterization": _parameterization,
            "network": _architecture,
        }
        named: dict[str, Any] = {k: made[k](v) if k in made and isinstance(v, str) else v for k, v in changes.items()}
        return replace(self, **named)

    def as_json(self) -> dict[str, Any]:
        """The head of every report; ``from_json`` reads it."""
        return {
            "architecture": self.network.name,
            "regime": self.ray.name or None,
            "ray": {axis: str(rate) for axis, rate in self.ray.rates.items()},
            "optimizer": self.optimizer.name,
            "parameterization": self.parameterization.name,
            "readout_init": self.readout_init,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Configuration:
        """Raises UsageError (or KeyError, where something is missing) for what ``as_json`` did not write."""
        return cls.of(
            record["regime"],
            record["optimizer"],
            record["parameterization"],
            ray=None if record["regime"] else record["ray"],
            readout_init=record["readout_init"],
            architecture=record["architecture"],
        )

    def __repr__(self) -> str:
        return f"<Configuration: {self}>"

    def __str__(self) -> str:
        where = "" if self.network == MOE_BLOCK else f"{self.network.title}, "
        who = f"{self.parameterization.title}, {where}{self.optimizer.name}"
        return f"{who}, {self.ray}, readout init {self.readout_init}"


def the_ray(name: str | None, ray: Ray | Mapping[str, Any] | str | None) -> Ray:
    """The ray of ``--regime`` or ``--ray``.

    Raises:
        UsageError: not exactly one of them, or one that cannot be read.
    """
    if (name is None) == (ray is None):
        raise UsageError("give either a regime (I, II or III) or a ray such as N=1,N_e=1/2,M=1/2")
    if isinstance(ray, Ray):
        return ray
    if name is not None:
        if not isinstance(name, str):
            raise UsageError(f"the regime is {name!r}; give 'I', 'II' or 'III', or ray=...")
        return regime(name)
    if isinstance(ray, str):
        return Ray.parse(ray)
    if isinstance(ray, Mapping):
        return Ray(ray)
    raise UsageError(f"the ray is {ray!r}; give a text or dict of rates such as 'N=1,N_e=1/2,M=1/2'")


def _readout(name: str) -> ReadoutInit:
    return named("readout init", name, {known: known for known in READOUTS})


_optimizer, _parameterization, _architecture = optimizer, parameterization, architecture
