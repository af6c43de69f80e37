"""Obstacles to an answer: functions of a network without which its parameterization is derived.

A function that is left out returns its argument. This makes another network: it shows where the difficulty of the
original one lies, and is no answer for it.
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
    """Every function of a network, left out by itself.

    Attributes:
        configuration: of the whole network.
        tried: each function, with the level of the answer without it, or why there is none.
    """

    configuration: Configuration
    tried: tuple[tuple[Function, Level | str], ...]


def functions(network: Network) -> tuple[Function, ...]:
    """Functions that can be left out: with an argument, and not held constant."""
    return tuple(s for s in network.statements if isinstance(s, Function) and s.source is not None and not s.held)


def without(network: Network, names: Sequence[str]) -> Network:
    """The network without some of its functions; each has the value of its argument.

    Args:
        names: what the equations of the functions are called by: their left sides.

    Raises:
        UsageError: a name that no function has.
    """
    if not names:
        return network
    removable = [s.out for s in functions(network)]
    if not removable:
        raise UsageError(f"{network.name} has no functions to leave out")
    for name in names:
        if name not in removable:
            raise UsageError(f"no function {name!r} to leave out; functions of {network.name}: {', '.join(removable)}")
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
