"""Finds the functions of a network that prevent a certified answer, by deriving the parameterization without each.

An omitted function is replaced by the identity. The result belongs to another network: it shows which function makes
the original network difficult, but is not an answer for the original network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.demands import NotFound
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.configuration import EACH, Configuration
from scaling_algebra.spec.level import CERTIFIED, Level
from scaling_algebra.spec.networks.language import Function, Network, Sum


@dataclass(frozen=True, repr=False)
class Obstacles(Rendered):
    """Results with each function of a network omitted in turn.

    Attributes:
        configuration: the configuration of the whole network.
        tried: each function, with the level of the answer without it, or the reason why there is none.
    """

    configuration: Configuration
    tried: tuple[tuple[Function, Level | str], ...]


def functions(network: Network) -> tuple[Function, ...]:
    """Returns the functions of a network that can be omitted.

    They have an argument, and their value is not treated as a constant.
    """
    return tuple(s for s in network.statements if isinstance(s, Function) and s.source is not None and not s.held)


def without(network: Network, names: Sequence[str]) -> Network:
    """Returns the network with some of its functions replaced by the identity.

    Args:
        network: the network.
        names: the signals that the functions return, which are the left-hand sides of their equations.

    Raises:
        UsageError: no function has one of these names.
    """
    if not names:
        return network
    removable = [s.out for s in functions(network)]
    if not removable:
        raise UsageError(f"{network.name} has no functions that --without could leave out")
    for name in names:
        if name not in removable:
            raise UsageError(
                f"no function {name!r} to leave out; functions that --without can leave out from {network.name}: "
                f"{', '.join(removable)}"
            )
    statements = tuple(Sum(s.out, s.inputs) if s.out in names else s for s in network.statements)
    name, title = (f"{x} without {', '.join(names)}" if x else "" for x in (network.name, network.title))
    return replace(network, name=name, title=title, statements=statements)


def obstacles(configuration: Configuration) -> Obstacles:
    """Derives the parameterization without each function in turn.

    Raises:
        UsageError: the network has no functions.
    """
    network = configuration.network
    if not functions(network):
        without(network, [EACH])  # raises
    tried = list[tuple[Function, Level | str]]()
    for function in functions(network):
        left: Level | str
        try:
            left = derive(configuration.but(network=without(network, [function.out]))).level or CERTIFIED
        except NotFound as why:
            left = why.failure
        tried.append((function, left))
    return Obstacles(configuration, tuple(tried))
