"""Every parameterization, in one registry: derived from desiderata, or defined as it is published.

Adding one: one more table in ``parameterizations.toml``. Read next: ``desiderata.py`` (the demands),
``scaling_algebra/solver/derivation.py`` (makes a scaling of an entry).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from scaling_algebra.errors import UsageError, find_entry, unknown_name
from scaling_algebra.files import load_shipped_toml

from .desiderata import Demand, Structure, mssp_demands, mup_demands
from .entries import registry
from .gauges import regauged
from .networks.auxiliary import buffers
from .networks.indices import aggregations
from .networks.language import Network
from .networks.multipliers import free_multipliers
from .networks.roles import readouts
from .networks.sums import experts
from .optimizers import Optimizer, Trained
from .powers import Power
from .scaling import Scaling, TensorScaling

ReadoutInit = Literal["maximal", "zero"]
READOUTS: tuple[ReadoutInit, ...] = ("maximal", "zero")
"""Readout initialisations: as large as its propagating update allows, or zero."""


@dataclass(frozen=True)
class Abc:
    """A tensor as it is published: forward multiplier, init std and learning rate as powers of the axes.

    Source: MSSP paper, App. G; Yang and Hu (2021), abc-parameterizations.
    """

    multiplier: Power
    init_std: Power
    lr: Power

    def free(self, optimizer: Optimizer) -> TensorScaling:
        """The same tensor without a multiplier (``regauged``), with one global epsilon."""
        tensor = TensorScaling(self.init_std, self.lr, multiplier=self.multiplier)
        return replace(regauged(tensor, Power(), optimizer), eps=Power())


@dataclass(frozen=True)
class Parameterization:
    """A rule for init, learning rate and epsilon of every tensor.

    Attributes:
        name, title: for the command line and for reports.
        about: one line for the glossary.
        demands: the desiderata it is derived from; None where it is defined, not derived.
        structural: may the derivation intervene in the structure (zero, tied, exempt)? Then it is for experts.
        readout_init: the readout initialisation of its definition.
        gauge: the tensors of a defined one, in the multiplier gauge; ``definition``: in words.
        rate: of a defined one: ``one`` global learning rate, or one so large that the first step changes the first
            layer by Theta(1) (``feature``).
        borrowed: the network whose muP it puts on any other of its family; empty for none.
    """

    name: str
    title: str
    about: str
    demands: Callable[[Network, Structure], list[Demand]] | None = None
    structural: bool = False
    readout_init: ReadoutInit = "maximal"
    gauge: Callable[[Network, str], Abc] | None = None
    definition: str = ""
    rate: Literal["one", "feature"] = "one"
    borrowed: str = ""

    @property
    def derived(self) -> bool:
        """Solved from desiderata."""
        return self.demands is not None

    def starts(self, network: Network) -> ReadoutInit:
        """The readout init of the definition, on a network."""
        return self.readout_init if readouts(network) else "maximal"

    def base_structure(self, network: Network, readout_init: str = "") -> Structure:
        """The structure before any intervention. Buffers start at zero, and the tensors that the network names; so does
        the readout if that is the definition's or the given init."""
        zero = frozenset(readouts(network) if (readout_init or self.readout_init) == "zero" else ())
        zero |= {*buffers(network)} | network.zero
        return Structure(zero=zero, readouts=zero)

    def demanded(self, network: Network, structure: Structure) -> list[Demand]:
        """The demands on a network.

        Raises:
            UsageError: not derived, or not defined for this network.
        """
        self.check_derived(network)
        assert self.demands is not None
        return self.demands(network, structure)

    def check_derived(self, network: Network) -> None:
        """Raises UsageError if there is nothing to solve or prove."""
        if not self.derived:
            raise unknown_name("derived parameterization", self.name, DERIVED)
        if self.structural and not any(e.tensors for e in experts(network)):
            raise UsageError(
                f"{self.title} is muP on {network.name}, which has no tensors summed over an M letter: "
                "give --parameterization mup"
            )

    def defined(self, network: Network, optimizer: Trained) -> Scaling:
        """A defined parameterization in the multiplier-free gauge: one global epsilon, mean over the experts."""
        assert self.gauge is not None
        tensors = {role: self.gauge(network, role).free(optimizer.of(role)) for role in network.tensors}
        summed = {m for s in aggregations(network) for m in s.multipliers}
        return Scaling(tensors, {m: Power.of({"M": 1} if m in summed else {}) for m in free_multipliers(network)})


ROOT = Fraction(-1, 2)


def sp(network: Network, role: str) -> Abc:
    """Standard parameterization: no multiplier, init std 1/sqrt(fan_in), one learning rate."""
    return Abc(Power(), network.size(network.tensors[role].fan_in) ** ROOT, Power())


def ntp(network: Network, role: str) -> Abc:
    """Neural tangent parameterization: multiplier 1/sqrt(fan_in), unit init, one learning rate."""
    return Abc(network.size(network.tensors[role].fan_in) ** ROOT, Power(), Power())


def mean_field(network: Network, role: str) -> Abc:
    """Mean-field parameterization: as NTP, but multiplier 1/fan_in in the output layer and one learning rate N."""
    tensor = network.tensors[role]
    power = ROOT if tensor.fan_out else Fraction(-1)
    return Abc(network.size(tensor.fan_in) ** power, Power(), Power.of({"N": 1}))


_CALLED: dict[str, dict[str, Any]] = {
    "demands": {"mup": mup_demands, "mssp": mssp_demands},
    "gauge": {"sp": sp, "ntp": ntp, "mean-field": mean_field},
}
"""Functions that a table names."""
PARAMETERIZATIONS: dict[str, Parameterization] = registry(
    "parameterizations.toml",
    load_shipped_toml(__package__, "parameterizations.toml"),
    Parameterization,
    lambda record: {k: find_entry(k, x, _CALLED[k]) if k in _CALLED else x for k, x in record.items()},
)
"""Every parameterization, by name."""

DERIVED = tuple(p.name for p in PARAMETERIZATIONS.values() if p.derived)
"""Those that are solved from desiderata."""


def parameterization(name: str) -> Parameterization:
    """The parameterization called ``name``.

    Raises:
        UsageError: no such parameterization.
    """
    return find_entry("parameterization", name, PARAMETERIZATIONS)
