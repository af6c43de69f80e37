"""Desiderata as data: what each parameterization demands of which quantities, and which unknown a demand fixes.

Adding a desideratum: one more ``Demand`` in ``mup_demands`` or ``mssp_demands``.
Read next: ``search.py`` (solves them), ``quantities.py`` (what the quantities are).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import combinations
from typing import Literal

from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.networks.roles import (
    Adjoint,
    find_forks,
    find_meetings,
    is_one_layer,
    list_gradients,
    readouts,
)
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.networks.terms import expand_product, find_weight_products
from scaling_algebra.spec.scaling import Point

from .networks.ancestors import is_trained
from .networks.auxiliary import find_auxiliary, find_buffers, name_weight
from .networks.indices import find_aggregations
from .networks.multipliers import find_free_multipliers, find_freed, is_always_unknown

Kind = Literal["theta", "bounded", "balanced", "scale"]

NONE = "no intervention"
HORIZON = 2
"""Number of updates after which every demand must hold: with a zero readout, hidden tensors first move at t = 2."""


@dataclass(frozen=True)
class Demand:
    """One requirement on the sizes of quantities after t = 0 .. T updates: the form in which desiderata are solved and
    checked.

    Attributes:
        name: the desideratum, such as ``"mu-2"``.
        kind: what is required:
            ``theta``: the largest of ``quantities`` is O(1) at every t and Theta(1) at some t.
            ``bounded``: the largest of ``quantities`` is O(1) at every t.
            ``balanced``: at the last t all quantities that are not exactly zero have the same exponent.
            ``scale``: n^d times the quantity is Theta(1) at some t > 0, which determines the epsilon exponent d.
        quantities: names of the quantities, such as ``h2.change`` (see ``quantities.py``).
        fixes: the unknown exponent that the demand determines, such as ``"b.router"``; empty if it is only checked.
        because: the requirement in words, for reports.
        horizon: T, the number of updates.
        sum: the signal that the sum over experts computes which the demand is about; empty if it is about none.
    """

    name: str
    kind: Kind
    quantities: tuple[str, ...]
    fixes: str = ""
    because: str = ""
    horizon: int = HORIZON
    sum: str = ""

    @property
    def label(self) -> str:
        """Name and reason in one line: ``mu-2: propagating update W2_0 dh1 = Theta(1)``."""
        return f"{self.name}: {self.because}"


@dataclass(frozen=True)
class Structure:
    """Discrete choices of a parameterization, besides its exponents: which tensors start at zero or alike for all
    experts.

    Attributes:
        zero: roles of tensors that start at zero.
        tied: roles of tensors whose initial values all experts share.
        exempt: signals before a sum over experts whose own size is not constrained (free signals); only the sum must be
            Theta(1).
        readouts: those of ``zero`` that do not count as interventions (changes that MSSP makes): zero readouts, biases
            that only shift a top-K selection, and tensors that start at zero by the network's definition.
    """

    zero: frozenset[str] = frozenset()
    tied: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()
    readouts: frozenset[str] = field(default=frozenset(), compare=False)

    def point(self, network: Network, values: Mapping[str, Fraction]) -> Point:
        """Returns the exponents of all tensors (b of the init std, c of the learning rate, d of the epsilon) and of
        the multipliers, with b = None for tensors that start at zero.

        Args:
            network: the network.
            values: exponent of each unknown, such as ``{"b.router": 1, "alpha": 0}``; 0 for an unknown that is missing.
        """

        def of(letter: str) -> dict[str, Fraction]:
            return {role: values.get(f"{letter}.{role}", Fraction(0)) for role in network.tensors}

        b = {role: None if role in self.zero else x for role, x in of("b").items()}
        multipliers = {name: values.get(name, Fraction(0)) for name in find_free_multipliers(network)}
        return Point(b, of("c"), of("d"), multipliers, self.tied, network.frozen)

    def __str__(self) -> str:
        parts = [f"zero {r}" for r in sorted(self.zero - self.readouts)] + [f"tied {r}" for r in sorted(self.tied)]
        parts += [f"{s} free before aggregation" for s in sorted(self.exempt)]
        return ", ".join(parts) or NONE


def mup_demands(network: Network, structure: Structure) -> list[Demand]:
    """Returns the demands of muP: desiderata mu-1, mu-2, mu-3.

    If a tensor acts at several places of the network, the largest of its effects must be Theta(1).
    Source: MSSP paper, section 3 and App. I.1.
    """
    last = last_step(network, structure)
    return [replace(demand, horizon=last) for demand in _forward_demands(network, structure)]


def last_step(network: Network, structure: Structure) -> int:
    """Returns the number of updates T after which every demand must hold.

    Law: T = ``HORIZON``, plus one if the readout starts at zero and the number of layers grows, plus one for each
    other tensor that starts at zero on the path of a gradient. The first update of a zero readout is computed from
    the sum of all layers' outputs, of which one layer contributes the share 1/L. So what a router learns from its own
    layer becomes the largest part of its update only after the tensors of the layers have changed. If a gradient must
    pass another zero tensor (such as B of LoRA), the tensors behind this one do not train until it has changed, and
    its first gradient may be smaller than later ones.
    """
    last = {*readouts(network)}
    late = bool(structure.zero & last and "L" in network.axes.values())
    return HORIZON + max(
        late, _count_zero_tensors(network, structure.zero - last if structure.zero >= last else structure.zero)
    )


def _count_zero_tensors(network: Network, zero: frozenset[str]) -> int:
    """Returns the largest number of zero tensors that a gradient must pass to reach a trained tensor.

    Each zero tensor delays the gradient by one update. If several paths lead from the output to the trained tensor,
    the path with the fewest zero tensors counts.

    Args:
        network: the network.
        zero: roles of the tensors that start at zero.
    """
    before, found = {network.output: 0}, dict[str, int]()
    for s in reversed(network.statements if zero else ()):
        if s.out in before:
            mine, n = s.tensor.name if isinstance(s, Product) and s.tensor else "", before[s.out]
            found[mine] = min(n, found.get(mine, n))
            for x in s.inputs:
                before[x.name] = min(n + (mine in zero), before.get(x.name, len(zero)))
    return max((n for role, n in found.items() if role not in network.frozen), default=0)


def _forward_demands(network: Network, structure: Structure) -> list[Demand]:
    """Returns the demands of muP, each of which must hold for the default number of updates, ``HORIZON``."""
    demands: list[Demand] = []
    gates = {s.out for s in network.functions if s.gates}
    for out in (s.out for s in network.statements):
        if not (
            out in structure.exempt
            or out in gates
            or out in find_auxiliary(network)
            or out in find_weight_products(network)
        ):
            demands.append(Demand("mu-1", "bounded", (out,), because=f"{out} stays O(1)"))
            if is_trained(network, out):
                because = f"the change of {out} is Theta(1)"
                demands.append(Demand("mu-1", "theta", (f"{out}.change",), because=because))
    for role in network.tensors:
        demands += _tensor_demands(network, structure, role)
    demands += [_loss_weight_demand(network, loss) for loss in network.losses if is_trained(network, loss)]
    weights = {name_weight(network, loss) for loss in network.losses}
    needed = [x for x in network.multipliers if is_always_unknown(network, x) and x not in weights]
    demands += [_multiplier_demand(network, multiplier) for multiplier in needed]
    for multiplier in find_freed(network):
        demands = _redirect_gauge_demand(network, demands, multiplier)
    why = "faithfulness: epsilon has the size of the gradient of {}".format
    trained = ((role, t.symbol) for role, t in network.tensors.items() if role not in network.frozen)
    return [*demands, *(Demand("mu-3", "scale", (f"g{w}",), f"d.{role}", why(w)) for role, w in trained)]


def _tensor_demands(network: Network, structure: Structure, role: str) -> list[Demand]:
    """Returns the demands that determine the init std and the learning rate of a tensor.

    There is no demand on the init std of a tensor that starts at zero, and none on the learning rate of a tensor that
    is not trained.
    """
    w, uses, init = network.tensors[role].symbol, network.uses(role), list[Demand]()
    unscaled = tuple(s for s in uses if not any(is_always_unknown(network, m) for m in s.multipliers))
    uses = unscaled or uses  # the other uses have multipliers of their own, which set their size
    if role in find_buffers(network) and role in structure.zero:
        pass  # zero by choice: the scores that it is added to make the selection Theta(1)
    elif all(_reads_nothing_trained(network, s) for s in uses) and role in network.zero:
        pass  # a class token or position embedding, which is added to something of size Theta(1)
    elif all(_reads_nothing_trained(network, s) for s in uses):
        made = any(network.producer(x.name) for s in uses for x in s.factors)
        signal = "a signal that does not train" if made else "the data"
        why = f"{w}_0 x = Theta(1): {signal} is this layer's incoming signal"
        init = [Demand("mu-2", "theta", tuple(f"{s.out}.init" for s in uses), f"b.{role}", why)]
    elif role not in structure.zero:
        free = [s for s in uses if s.out in structure.exempt]
        through = [s for s in uses if s not in free and not _reads_nothing_trained(network, s)]
        if free:
            why = f"the aggregate of {w}_0 {_describe_changes(network, free[0])} is Theta(1)"
            above = {x: e.out for e in experts(network) for x in e.last}
            names = tuple(f"{above[s.out]}.propagating" for s in free)
            init = [Demand("aggregation", "theta", names, f"b.{role}", why)]
        else:
            why = f"propagating update {w}_0 {_describe_changes(network, through[0])} = Theta(1)"
            init = [
                Demand("mu-2", "theta", tuple(_name_propagating_part(network, s) for s in through), f"b.{role}", why)
            ]
    if role in network.frozen:
        return init
    computed = {s.out: (find_weight_products(network).get(s.out) or (s,))[-1].out for s in uses}
    names = tuple(f"{computed[s.out]}.{part}" for s in uses for part in _name_learned_parts(network, s))
    why = f"effective update d{w} {' '.join(x.name for x in uses[0].factors)} = Theta(1)"
    why += ", as large as the scores that it is added to" if role in find_buffers(network) else ""
    return [*init, Demand("mu-2", "theta", names, f"c.{role}", why)]


def _multiplier_demand(network: Network, multiplier: str) -> Demand:
    """Returns the demand that determines a multiplier: what training adds to the products that contain it is Theta(1).

    If nothing in these products is trained, their values must be Theta(1).
    """
    scaled = [s for s in network.statements if isinstance(s, Product) and multiplier in s.multipliers]
    if not any(is_trained(network, s.out) for s in scaled):
        still = tuple(s.out for s in scaled)
        return Demand("mu-2", "theta", still, multiplier, f"{still[0]} = Theta(1), as none of its factors trains")
    names = tuple(f"{s.out}.{part}" for s in scaled for part in _name_learned_parts(network, s))
    if not any(_has_trained_tensor(network, s) for s in scaled):
        why = f"the change of {scaled[0].out} is Theta(1)"
    elif any(s in find_aggregations(network) for s in scaled):
        why = "the aggregated effective update is Theta(1)"
    else:
        why = f"the effective update of {scaled[0].out} is Theta(1)"
    return Demand("mu-2", "theta", names, multiplier, why)


def _loss_weight_demand(network: Network, loss: str) -> Demand:
    """Returns the demand that determines the weight of an auxiliary loss.

    At the signals where the gradients of the loss and of the output are first added, both must have the same size.
    """
    met = {x: f"{g}.by-{loss}.relative" for name, x, g in find_meetings(network) if name == loss}
    why = f"the gradient of {loss} at {' and '.join(met)} is as large as that of {network.output}"
    return Demand("losses", "theta", tuple(met.values()), name_weight(network, loss), why)


def _redirect_gauge_demand(network: Network, demands: Sequence[Demand], multiplier: str) -> list[Demand]:
    """Returns the demands, of which one is changed: instead of a setting that the user fixed, it determines
    ``multiplier``.

    A multiplier, the init std and the learning rate of the tensor that it multiplies are redundant: one of them can
    be chosen freely. By default this is the multiplier, which is 1. If the user fixes one of the other settings
    instead, the demand that would determine this setting determines the multiplier. If the user fixes several of
    them, this is the demand on a learning rate; if there is none, that on another multiplier; else that on an init
    std.
    """
    roles = [s.tensor.name for s in network.linear if s.tensor and multiplier in s.multipliers]
    others = [m for role in roles for s in network.uses(role) for m in s.multipliers]
    members = {f"{role}.lr": f"c.{role}" for role in roles} | {m: m for m in others}
    members |= {f"{role}.init": f"b.{role}" for role in roles}
    fixing = [u for name, u in members.items() if name in network.held and any(d.fixes == u for d in demands)]
    return [replace(d, fixes=multiplier) if d.fixes in fixing[:1] else d for d in demands]


def _reads_nothing_trained(network: Network, statement: Product) -> bool:
    """Tests whether no input of a product depends on a trained tensor."""
    return not any(is_trained(network, x.name) for x in statement.factors)


def _has_trained_tensor(network: Network, statement: Product) -> bool:
    """Tests whether a product, written out to its tensors, contains a trained one."""
    return any(x.name not in network.frozen for term in expand_product(network, statement) for x in term.tensors)


def _name_propagating_part(network: Network, statement: Product) -> str:
    """Returns the name of the part of a product's output in which the inputs change and its tensor has its initial
    values: ``h2.propagating``.

    If the inputs are multiplied by a product of several tensors, all of these have their initial values.
    """
    (first, *_) = statement.factors
    if statement.out in (x.out for x in find_weight_products(network).get(first.name, ())):
        below = network.producer(first.name)
        while isinstance(below, Product) and below.factors[0].name in find_weight_products(network):
            below = network.producer(below.factors[0].name)
        assert isinstance(below, Product) and below.tensor
        return f"{statement.out}.propagating.{network.tensors[below.tensor.name].symbol}"
    return f"{statement.out}.propagating"


def _name_learned_parts(network: Network, statement: Product) -> tuple[str, ...]:
    """Names the parts of a product's output that updates of its tensors contribute: ``("effective", "cross")``.

    ``effective`` is the update times the initial input, ``cross`` the update times the change of the input, which is
    omitted if the input does not train. If no tensor of the product is trained, the result is ``("change",)``.

    If the inputs are multiplied by a product of several tensors, one of which is that of ``statement``, the only part
    is what the update of this tensor contributes: ``("effective.W",)`` for a tensor W.
    """
    if statement.out in find_weight_products(network) and statement.tensor:
        return (f"effective.{network.tensors[statement.tensor.name].symbol}",)
    if not _has_trained_tensor(network, statement):
        return ("change",)
    signals = [x for term in expand_product(network, statement) for x in term.signals]
    return ("effective", "cross") if any(is_trained(network, x.name) for x in signals) else ("effective",)


def _describe_changes(network: Network, statement: Product) -> str:
    """Formats the inputs of a product for a message, such as ``dh2 data`` for the change of ``h2`` times ``data``.
    Inputs that depend on trained tensors come first; the first one is preceded by ``d`` for its change.
    """
    return "d" + " ".join(x.name for x in sorted(statement.factors, key=lambda x: not is_trained(network, x.name)))


def mssp_demands(network: Network, structure: Structure) -> list[Demand]:
    """Returns the demands of MSSP: those of muP, and further ones for every sum over experts.

    Forward: each piece of the sum, in which one tensor or signal changes (``ExpertSum.pieces``), is Theta(1).
    Backward: the gradients at the inputs of the experts, at the inputs of their tensors and at the gates are split
    into parts (``Adjoint.parts``), and all parts of a gradient have the same size. Pathways: the gradient that comes
    through the experts and the one that comes through the router contribute equally large terms to the propagating
    update of the router.
    Source: MSSP paper, section 4 and App. I.3; the router's pathways: App. C.
    """
    demands = _forward_demands(network, structure)
    for e in experts(network):
        for piece in e.pieces:
            name = f"{e.out}.{piece}"
            why = f"{name} of the aggregate is Theta(1)"
            demands.append(Demand("MSSP-3 forward", "theta", (name,), because=why, sum=e.out))
    named = {(x.signal, x.via): x for x in list_gradients(network)}
    for e in experts(network):
        if not e.tensors:
            continue
        routed = {x.name: s.out for role in e.routers for s in network.uses(role) for x in s.factors}
        read = [x.name for s in network.linear if s.out in e.body for x in s.factors if x.name in e.body]
        keys = [(e.out, ""), *((x, "") for x in dict.fromkeys((*read, *e.gates)))]
        for key in (*keys, *((x, routed[x]) for x in e.entering if x in routed)):
            if key in named and named[key].parts:
                name, parts = named[key].name, _list_finest_parts(named[key])
                why = f"the parts of {name} share one scale"
                demands.append(Demand("MSSP-2 backward", "balanced", parts, because=why, sum=e.out))
        for below in e.entering:
            uses = dict.fromkeys(s.out for s, _ in network.consumers(below))
            ways = [named[below, x if len(uses) > 1 else ""] for x in uses if x in e.body]
            if parts := tuple(part for x in ways for part in _list_finest_parts(x)):
                name = " and ".join(x.name for x in ways)
                why = f"the pieces A4 to E of {name} share one scale"
                demands.append(Demand("MSSP-3 backward", "balanced", parts, because=why, sum=e.out))
            if (paths := find_forks(network, below)) and is_one_layer(network, below) and below in routed:
                router = next(network.tensors[r].symbol for r in e.routers if network.uses(r)[0].out == routed[below])
                names = tuple(f"{routed[below]}.propagating.{path}" for path in paths)
                why = f"the expert and the router pathway contribute to {router}_0 d{below} at one scale, or not at all"
                demands.append(Demand("MSSP pathways", "balanced", names, because=why, sum=e.out))
    last = last_step(network, structure)
    return [replace(demand, horizon=last) for demand in demands]


def _list_finest_parts(gradient: Adjoint) -> tuple[str, ...]:
    """Lists the names of those parts of a gradient for which the most tensors are split into initial value and update
    (``Adjoint.parts``).
    """
    sizes = {k: len(modes) for k, modes in gradient.parts.items()}
    return tuple(f"{gradient.name}.{k}" for k, size in sizes.items() if size == max(sizes.values()))


@dataclass(frozen=True)
class Intervention:
    """A discrete change that MSSP may make to a parameterization, such as a router that starts at zero.

    Attributes:
        field: the field of ``Structure`` that changes.
        names: roles of tensors, or for ``exempt`` names of signals, that are added to this field.
        sum: the signal computed by the sum over experts that these tensors or signals belong to; "" if they belong to
            none.
    """

    field: Literal["zero", "exempt", "tied"]
    names: frozenset[str]
    sum: str

    def on(self, structure: Structure) -> Structure:
        """Returns a copy of a structure to which this intervention is applied."""
        return replace(structure, **{self.field: getattr(structure, self.field) | self.names})


def list_interventions(network: Network) -> list[Intervention]:
    """Returns the interventions that MSSP may make.

    There are three kinds: a router starts at zero, the size of the signals before a sum over experts is not
    constrained, or a tensor has the same initial values in all experts.
    """
    found: list[Intervention] = []
    for e in experts(network):
        found += [Intervention("zero", frozenset({role}), e.out) for role in e.routers]
        found += [Intervention("exempt", frozenset(e.last), e.out)] if e.last else []
    sums = {role: e.out for e in experts(network) for role in e.tensors}
    tied = (role for role, tensor in network.tensors.items() if tensor.experts and role not in network.frozen)
    return [*found, *(Intervention("tied", frozenset({role}), sums.get(role, "")) for role in tied)]


def count_interventions(network: Network, structure: Structure) -> int:
    """Returns how many of the network's possible interventions (``list_interventions``) a structure contains."""
    return sum(x.on(structure) == structure for x in list_interventions(network))


def enumerate_structures(network: Network, base: Structure) -> list[Structure]:
    """Returns every structure that MSSP may choose: ``base`` with each subset of the network's possible
    interventions, the smallest subsets first.

    Args:
        network: the network.
        base: the structure without interventions.
    """
    structures = []
    for size in range(len(every := list_interventions(network)) + 1):
        for chosen in combinations(every, size):
            structures.append(reduce(lambda structure, x: x.on(structure), chosen, base))
    return structures
