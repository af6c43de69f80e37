"""Registry of the parameterizations: derived from desiderata, or defined by a publication.

To add one, add a table to ``parameterizations.toml``. Read next: ``desiderata.py`` (the demands),
``scaling_algebra/solver/derivation.py`` (derives or defines the settings of all tensors from an entry).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from scaling_algebra.errors import UsageError, find_entry, unknown_name_error
from scaling_algebra.files import load_shipped_toml

from .desiderata import Demand, Structure, mssp_demands, mup_demands
from .entries import read_registry
from .gauges import change_multiplier
from .networks.auxiliary import find_buffers
from .networks.indices import find_aggregations
from .networks.language import Network
from .networks.multipliers import find_free_multipliers
from .networks.roles import readouts
from .networks.sums import experts
from .optimizers import Optimizer, OptimizerSpec
from .powers import Power
from .scaling import Scaling, TensorScaling

ReadoutInit = Literal["maximal", "zero"]
READOUTS: tuple[ReadoutInit, ...] = ("maximal", "zero")
"""Readout initialisations: as large as its propagating update allows, or zero."""


@dataclass(frozen=True)
class Abc:
    """A tensor in abc-parameterization.

    Attributes:
        multiplier: forward multiplier, as a power of the axes.
        init_std: standard deviation of the initial entries, as a power of the axes.
        lr: learning rate, as a power of the axes.

    Source: MSSP paper, App. G; Yang and Hu (2021), abc-parameterizations.
    """

    multiplier: Power
    init_std: Power
    lr: Power

    def without_multiplier(self, optimizer: Optimizer) -> TensorScaling:
        """Returns settings with multiplier 1 under which the tensor trains the same. Their epsilon is not converted,
        but set to Theta(1).
        """
        tensor = TensorScaling(self.init_std, self.lr, multiplier=self.multiplier)
        return replace(change_multiplier(tensor, Power(), optimizer), eps=Power())


@dataclass(frozen=True)
class Parameterization:
    """A rule for init std, learning rate and epsilon of every tensor.

    Attributes:
        name: its name on the command line.
        title: its name in reports.
        about: one line for the glossary.
        demands: the desiderata that it is derived from; None if it is defined by a formula.
        structural: True if the derivation may change which tensors start at zero or alike and which signals are free
            (``Structure``); it then needs experts.
        readout_init: the readout initialisation of its definition.
        gauge: for a defined one: returns the settings of a tensor, from network and role.
        definition: for a defined one: the formula in words.
        rate: for a defined one: ``one`` global learning rate, or one so large that the first step changes the first
            layer by Theta(1) (``feature``).
        borrowed: name of a network. All networks of the same family get the powers that muP has there, by role; empty
            if the powers are not taken from another network.
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
        """True if its powers are derived from desiderata, not defined by a formula."""
        return self.demands is not None

    def starts(self, network: Network) -> ReadoutInit:
        """Returns the default readout init on a network; ``maximal`` if the network has no readout."""
        return self.readout_init if readouts(network) else "maximal"

    def base_structure(self, network: Network, readout_init: str = "") -> Structure:
        """Returns which tensors start at zero before MSSP makes any change (intervention).

        These are biases that only shift a top-K selection, the tensors in ``network.zero``, and the readouts if
        ``readout_init`` is ``zero`` or, where it is empty, if this parameterization is defined with zero readouts.
        """
        zero = frozenset(readouts(network) if (readout_init or self.readout_init) == "zero" else ())
        zero |= {*find_buffers(network)} | network.zero
        return Structure(zero=zero, readouts=zero)

    def list_demands(self, network: Network, structure: Structure) -> list[Demand]:
        """Returns the demands on a network with this structure.

        Raises:
            UsageError: the parameterization is not derived, or needs experts that the network lacks.
        """
        self.check_derived(network)
        assert self.demands is not None
        return self.demands(network, structure)

    def check_derived(self, network: Network) -> None:
        """Checks that the parameterization can be solved for on a network.

        Raises:
            UsageError: it is defined by a formula, or needs experts that the network lacks.
        """
        if not self.derived:
            raise unknown_name_error("derived parameterization", self.name, DERIVED)
        if self.structural and not any(e.tensors for e in experts(network)):
            raise UsageError(
                f"{self.title} is muP on {network.name}, which has no tensors summed over an index of axis M: "
                "give --parameterization mup"
            )

    def define_scaling(self, network: Network, optimizer: OptimizerSpec) -> Scaling:
        """Returns the settings of all tensors for a parameterization that is defined by a formula, such as SP.

        Multipliers on tensors are converted to equivalent init stds and learning rates.

        All tensors have an epsilon of Theta(1), and sums over experts are multiplied by 1/M.
        """
        assert self.gauge is not None
        tensors = {role: self.gauge(network, role).without_multiplier(optimizer.of(role)) for role in network.tensors}
        summed = {m for s in find_aggregations(network) for m in s.multipliers}
        return Scaling(tensors, {m: Power.of({"M": 1} if m in summed else {}) for m in find_free_multipliers(network)})


ROOT = Fraction(-1, 2)


def sp(network: Network, role: str) -> Abc:
    """Defines the standard parameterization: no multiplier, init std 1/sqrt(fan_in), one learning rate."""
    return Abc(Power(), network.size(network.tensors[role].fan_in) ** ROOT, Power())


def ntp(network: Network, role: str) -> Abc:
    """Defines the neural tangent parameterization: multiplier 1/sqrt(fan_in), unit init, one learning rate."""
    return Abc(network.size(network.tensors[role].fan_in) ** ROOT, Power(), Power())


def mean_field(network: Network, role: str) -> Abc:
    """Defines the mean-field parameterization: as NTP, with multiplier 1/fan_in in the output layer and learning
    rate N."""
    tensor = network.tensors[role]
    power = ROOT if tensor.fan_out else Fraction(-1)
    return Abc(network.size(tensor.fan_in) ** power, Power(), Power.of({"N": 1}))


_CALLED: dict[str, dict[str, Any]] = {
    "demands": {"mup": mup_demands, "mssp": mssp_demands},
    "gauge": {"sp": sp, "ntp": ntp, "mean-field": mean_field},
}
"""Functions that ``parameterizations.toml`` names, by key and name."""
PARAMETERIZATIONS: dict[str, Parameterization] = read_registry(
    "parameterizations.toml",
    load_shipped_toml(__package__, "parameterizations.toml"),
    Parameterization,
    lambda record: {k: find_entry(k, x, _CALLED[k]) if k in _CALLED else x for k, x in record.items()},
)
"""Every parameterization, by name."""

DERIVED = tuple(p.name for p in PARAMETERIZATIONS.values() if p.derived)
"""Names of the parameterizations that are solved from desiderata."""


def parameterization(name: str) -> Parameterization:
    """Returns the parameterization of this name.

    Raises:
        UsageError: there is none.
    """
    return find_entry("parameterization", name, PARAMETERIZATIONS)
