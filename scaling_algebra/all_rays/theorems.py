"""Theorems about whole cones of rays, each with its proof or with the reason why it is undecided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError, check_names, quote_value
from scaling_algebra.proofs.smtlib import RESET, script
from scaling_algebra.solver.demands import provable
from scaling_algebra.spec.configuration import DEFAULT_ARCHITECTURE, DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.networks.indices import find_aggregations, nonlinear_functions
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.optimizer_reading import OptimizerInput, require_single
from scaling_algebra.spec.parameterizations import parameterization as _parameterization
from scaling_algebra.spec.scaling import Scaling, TensorScaling

from .claims import NUMBERS, Theorem, list_claims
from .covering import Face


@dataclass(frozen=True, repr=False)
class Theorems(Rendered):
    """The theorems about one network, parameterization and optimizer.

    Attributes:
        whole: all rays of the network, with parameterization and optimizer.
        items: the theorems.
        why: the reason why no theorem can be proved; empty if there is none.
    """

    whole: Face
    items: tuple[Theorem, ...]
    why: str = ""

    @property
    def proved(self) -> bool | None:
        """True if all theorems are proved, False if one is refuted, else None."""
        verdicts = {x.decision.verdict for x in self.items}
        return False if "refuted" in verdicts else None if "undecided" in verdicts or self.why else True

    def __getitem__(self, name: str) -> Theorem:
        """Returns the theorem with a name.

        Raises:
            UsageError: there is none.
        """
        by_name = {x.name: x for x in self.items}
        check_names("theorem", [name], by_name)
        return by_name[name]

    @property
    def about(self) -> str:
        """Title of the report."""
        return f"{self.whole.rule.title}, {self.whole.optimizer.name}, {self.whole.network.title}"

    def reading(self) -> tuple[str, ...]:
        """Describes what all theorems assume, and the number of updates that they are about."""
        network, last = self.whole.network, self.whole.steps
        grown = ", ".join(f"n^{axis}" for axis in self.whole.axes)
        summed = {m for s in find_aggregations(network) for m in s.multipliers}
        also = [f", {'aggregation multiplier' if m in summed else m} n^-{m}" for m in find_free_multipliers(network)]
        few = " unless a statement says K < M" if any(x.routed for x in self.items) else ""
        gates = ", gates replaced by their mean and slope" if any(s.gates for s in network.functions) else ""
        layers = ", each layer is linear in the deviation of the residual stream" if "L" in self.whole.axes else ""
        lines = [
            f"axes grow as {grown}{' with K = M' if 'M' in self.whole.axes else ''}{few}; a rate stands for its axis",
            f"rays are those on which {self.whole.axes[0]} grows",
            f"sizes are powers of n: init std n^-b, learning rate n^-c{''.join(also)}",
            f"O(1) is demanded at t = 0 .. {last[0]}, Theta(1) at some t <= {last[1]}",
            f"one sample, linear activations{gates}{layers}",
        ]
        if self.whole.optimizer.epsilon:
            lines.append("c is the exponent of learning rate over epsilon (c - d): mu-3 makes epsilon the normaliser")
        return tuple(lines)

    def scripts(self) -> str:
        """Writes the unsatisfiable systems as SMT-LIB 2, one script each, so that another solver can check them."""
        reading = *self.reading(), _NAMES
        return RESET.join(
            script(x.decision.clauses, f"{x.name}: {write_statement(x, self.whole)} ({self.about})", reading)
            for x in self.items
            if x.decision.clauses
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record that ``scalecalc rays --prove --json`` prints, whose keys are documented and
        stable.
        """
        return {
            "network": self.whole.network.name,
            "parameterization": self.whole.rule.name,
            "optimizer": self.whole.optimizer.name,
            "steps": dict(zip(("O(1)", "Theta(1)"), self.whole.steps, strict=True)),
            "proved": self.proved,
            "why": self.why or None,
            "theorems": [
                {
                    "name": x.name,
                    "statement": write_statement(x, self.whole),
                    "rays": [str(side) for side in x.where.sides],
                    "outside": [list(p.cone.inequalities) for p in x.where.outside],
                    "formula": None if x.scaling is None else formula_as_json(x.scaling),
                    "fixed": sorted(x.where.fixed),
                    "routed": x.routed,
                    "verdict": x.decision.verdict,
                    "core": list(x.decision.core),
                    "clauses": len(x.decision.clauses),
                    "why": x.decision.why or None,
                }
                for x in self.items
            ],
        }


_FIXED = "".join(f"(, {axis} fixed)?" for axis in NUMBERS)
_NAME = re.compile(rf"([A-Za-z][0-9]* (exists|unique|none)|cover|none(: [\w ,]+?)?){_FIXED}(, K < M)?")
_NAMES = "size.SIGNAL: the change of the signal at t = 2 is n^-size.SIGNAL; log QUANTITY: its exponent"


def write_statement(x: Theorem, whole: Face) -> str:
    """Writes a theorem as one sentence."""
    grow = ["K < M"] if x.routed else []
    for axis in (axis for axis in NUMBERS if axis in whole.axes):
        grow.append(f"{axis} is fixed and the other axes grow" if axis in x.where.fixed else f"{axis} grows")
    outside = (f"not ({', '.join(p.cone.inequalities)})" for p in x.where.outside)
    places = [*filter(None, (", ".join(map(str, x.where.sides)), " and ".join(outside)))]
    if not places and not grow:
        return x.about
    return f"where {' and '.join((*places, *grow))}{': ' if places else ', '}{x.about}"


def formula_as_json(s: Scaling) -> dict[str, Any]:
    """Returns a formula in JSON types, with powers of the axes as strings."""

    def texts(t: TensorScaling) -> dict[str, str | None]:
        powers = {"init_std": t.init_std, "lr": t.lr, "eps": t.eps}
        return {name: None if power is None else str(power) for name, power in powers.items()}

    tensors = {role: texts(t) for role, t in s.tensors.items()}
    return {"tensors": tensors, "multipliers": {m: str(1 / x) for m, x in s.multipliers.items()}, "tied": list(s.tied)}


def theorems(
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    *,
    only: Sequence[str] = (),
    epsilon: str | None = None,
    network: Network | str = DEFAULT_ARCHITECTURE,
) -> Theorems:
    """Prove, for cones of rays, where a network's parameterization exists, where it is unique, and where there is none.

    Args:
        optimizer: the optimizer.
        parameterization: name of the parameterization.
        only: names of theorems, e.g. ``["B unique"]``; by default all theorems.
        epsilon: regime of the optimizer's epsilon.
        network: a ``Network``, or the name of a shipped one.

    Examples:
        >>> print(theorems("sgd", network="bottleneck", only=["A none"])["A none"].where)
        N_e < N

    Raises:
        UsageError: an unknown name, or a parameterization that is not derived for the network.
    """
    rule, stepper = _parameterization(parameterization), require_single(optimizer, "a theorem about all rays")
    stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
    net = network if isinstance(network, Network) else architecture(network)
    rule.check_derived(net)
    wanted = [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"no theorem is called {quote_value(name)}; names are such as 'B unique', 'cover', 'a exists'"
            )
    whole = Face(net, stepper, rule)
    if nonlinear_functions(net):
        return Theorems(whole, (), provable(net, whole.ray([1] * len(whole.axes)), stepper))
    by_name = list_claims(whole, wanted)
    check_names("theorem", wanted, by_name)
    return Theorems(whole, tuple(by_name[name] for name in wanted or by_name))
