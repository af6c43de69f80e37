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
from scaling_algebra.spec.networks.roles import Adjoint, adjoints, forks, meetings, one_layer, readouts
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.networks.terms import weight_products, written_out
from scaling_algebra.spec.scaling import Point

from .networks.ancestors import learns
from .networks.auxiliary import aside, buffers, weight_of
from .networks.indices import aggregations
from .networks.multipliers import free_multipliers, needs, opened

Kind = Literal["theta", "bounded", "balanced", "scale"]

NONE = "no intervention"
HORIZON = 2
"""Updates after which every demand must hold: with a zero readout the hidden tensors first move at t = 2."""


@dataclass(frozen=True)
class Demand:
    """One demand on quantities over t = 0 .. T.

    Attributes:
        name: the desideratum, e.g. ``"mu-2"``.
        kind: ``theta``: the largest of ``quantities`` is O(1) at every t and Theta(1) at some t.
            ``bounded``: O(1) at every t. ``balanced``: at the last t all have one exponent, exact zeros aside.
            ``scale``: n^d times the quantity is Theta(1) at some t > 0 (it fixes d and demands nothing else).
        quantities: names from ``quantities.py``.
        fixes: the unknown this demand determines, e.g. ``"b.router"``; empty for a pure check.
        because: one line for reports.
        horizon: T.
        sum: the sum over experts that it is stated on, by what it makes; empty for none.
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
        """``mu-2: propagating update W2_0 dh1 = Theta(1)``."""
        return f"{self.name}: {self.because}"


@dataclass(frozen=True)
class Structure:
    """Discrete choices of a parameterization: what is zero, what experts share, which exception is allowed.

    Attributes:
        zero: roles initialised to zero; ``readouts``: those of them that are no intervention but a choice: of readout
            init, or buffers.
        tied: roles whose initial values all experts share.
        exempt: signals before the aggregation whose own size is left free (only their aggregate must be Theta(1)).
    """

    zero: frozenset[str] = frozenset()
    tied: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()
    readouts: frozenset[str] = field(default=frozenset(), compare=False)

    def point(self, network: Network, values: Mapping[str, Fraction]) -> Point:
        """The point at some values of the unknowns; an unknown without a value is 0."""

        def of(letter: str) -> dict[str, Fraction]:
            return {role: values.get(f"{letter}.{role}", Fraction(0)) for role in network.tensors}

        b = {role: None if role in self.zero else x for role, x in of("b").items()}
        multipliers = {name: values.get(name, Fraction(0)) for name in free_multipliers(network)}
        return Point(b, of("c"), of("d"), multipliers, self.tied, network.frozen)

    def __str__(self) -> str:
        parts = [f"zero {r}" for r in sorted(self.zero - self.readouts)] + [f"tied {r}" for r in sorted(self.tied)]
        parts += [f"{s} free before aggregation" for s in sorted(self.exempt)]
        return ", ".join(parts) or NONE


def mup_demands(network: Network, structure: Structure) -> list[Demand]:
    """Desiderata mu-1, mu-2, mu-3. Source: MSSP paper, section 3 and App. I.1.

    A tensor that is used more than once is demanded of by its largest use.
    """
    last = horizon(network, structure)
    return [replace(demand, horizon=last) for demand in _mup(network, structure)]


def horizon(network: Network, structure: Structure) -> int:
    """The number of updates after which every demand must hold. One is added where the readout starts at zero above
    layers whose number grows, and one for each other tensor that starts at zero on the way of a gradient.

    Law: such a readout first moves along the whole stream, of which one layer is 1/L. What a router learns of its own
    layer leads only after the tensors of the layers have moved. Behind another zero (B of LoRA) nothing trains until
    that tensor has moved, by a first gradient that may be smaller than later ones.
    """
    last = {*readouts(network)}
    late = bool(structure.zero & last and "L" in network.axes.values())
    return HORIZON + max(late, _asleep(network, structure.zero - last if structure.zero >= last else structure.zero))


def _asleep(network: Network, zero: frozenset[str]) -> int:
    """How many tensors that start at zero a gradient passes on its best path to a trained tensor, at most over all
    trained tensors."""
    before, found = {network.output: 0}, dict[str, int]()
    for s in reversed(network.statements if zero else ()):
        if s.out in before:
            mine, n = s.tensor.name if isinstance(s, Product) and s.tensor else "", before[s.out]
            found[mine] = min(n, found.get(mine, n))
            for x in s.inputs:
                before[x.name] = min(n + (mine in zero), before.get(x.name, len(zero)))
    return max((n for role, n in found.items() if role not in network.frozen), default=0)


def _mup(network: Network, structure: Structure) -> list[Demand]:
    demands: list[Demand] = []
    gates = {s.out for s in network.functions if s.gates}
    for out in (s.out for s in network.statements):
        if not (out in structure.exempt or out in gates or out in aside(network) or out in weight_products(network)):
            demands.append(Demand("mu-1", "bounded", (out,), because=f"{out} stays O(1)"))
            if learns(network, out):
                because = f"the change of {out} is Theta(1)"
                demands.append(Demand("mu-1", "theta", (f"{out}.change",), because=because))
    for role in network.tensors:
        demands += _of_tensor(network, structure, role)
    demands += [_of_weight(network, loss) for loss in network.losses if learns(network, loss)]
    weights = {weight_of(network, loss) for loss in network.losses}
    needed = [x for x in network.multipliers if needs(network, x) and x not in weights]
    demands += [_of_multiplier(network, multiplier) for multiplier in needed]
    for multiplier in opened(network):
        demands = _instead(network, demands, multiplier)
    why = "faithfulness: epsilon has the size of the gradient of {}".format
    trained = ((role, t.symbol) for role, t in network.tensors.items() if role not in network.frozen)
    return [*demands, *(Demand("mu-3", "scale", (f"g{w}",), f"d.{role}", why(w)) for role, w in trained)]


def _of_tensor(network: Network, structure: Structure, role: str) -> list[Demand]:
    """The demands that fix init and learning rate of a tensor. A tensor that starts at zero has no demand on its init,
    and a frozen tensor has none on its rate."""
    w, uses, init = network.tensors[role].symbol, network.uses(role), list[Demand]()
    unscaled = tuple(s for s in uses if not any(needs(network, m) for m in s.multipliers))
    uses = unscaled or uses  # a use with a multiplier of its own is set by that
    if role in buffers(network) and role in structure.zero:
        pass  # a choice: the selection is Theta(1) by the scores beside it
    elif all(_fixed(network, s) for s in uses) and role in network.zero:
        pass  # a class token or places, beside what is Theta(1)
    elif all(_fixed(network, s) for s in uses):
        made = any(network.producer(x.name) for s in uses for x in s.factors)
        signal = "a signal that does not train" if made else "the data"
        why = f"{w}_0 x = Theta(1): {signal} is this layer's incoming signal"
        init = [Demand("mu-2", "theta", tuple(f"{s.out}.init" for s in uses), f"b.{role}", why)]
    elif role not in structure.zero:
        free = [s for s in uses if s.out in structure.exempt]
        through = [s for s in uses if s not in free and not _fixed(network, s)]
        if free:
            why = f"the aggregate of {w}_0 {_changed(network, free[0])} is Theta(1)"
            above = {x: e.out for e in experts(network) for x in e.last}
            names = tuple(f"{above[s.out]}.propagating" for s in free)
            init = [Demand("aggregation", "theta", names, f"b.{role}", why)]
        else:
            why = f"propagating update {w}_0 {_changed(network, through[0])} = Theta(1)"
            init = [Demand("mu-2", "theta", tuple(_propagating(network, s) for s in through), f"b.{role}", why)]
    if role in network.frozen:
        return init
    computed = {s.out: (weight_products(network).get(s.out) or (s,))[-1].out for s in uses}
    names = tuple(f"{computed[s.out]}.{part}" for s in uses for part in _learned(network, s))
    why = f"effective update d{w} {' '.join(x.name for x in uses[0].factors)} = Theta(1)"
    why += ", as the scores beside it are by which is selected" if role in buffers(network) else ""
    return [*init, Demand("mu-2", "theta", names, f"c.{role}", why)]


def _of_multiplier(network: Network, multiplier: str) -> Demand:
    """The demand that fixes a multiplier: the products with it learn Theta(1), or are Theta(1) where nothing trains."""
    scaled = [s for s in network.statements if isinstance(s, Product) and multiplier in s.multipliers]
    if not any(learns(network, s.out) for s in scaled):
        still = tuple(s.out for s in scaled)
        return Demand("mu-2", "theta", still, multiplier, f"{still[0]} = Theta(1), of signals that do not train")
    names = tuple(f"{s.out}.{part}" for s in scaled for part in _learned(network, s))
    if not any(_written(network, s) for s in scaled):
        why = f"the change of {scaled[0].out} is Theta(1)"
    elif any(s in aggregations(network) for s in scaled):
        why = "the aggregated effective update is Theta(1)"
    else:
        why = f"the effective update of {scaled[0].out} is Theta(1)"
    return Demand("mu-2", "theta", names, multiplier, why)


def _of_weight(network: Network, loss: str) -> Demand:
    """The demand that fixes the weight of a loss beside the output."""
    met = {x: f"{g}.by-{loss}.relative" for name, x, g in meetings(network) if name == loss}
    why = f"the gradient of {loss} at {' and '.join(met)} is as large as that of {network.output}"
    return Demand("losses", "theta", tuple(met.values()), weight_of(network, loss), why)


def _instead(network: Network, demands: Sequence[Demand], multiplier: str) -> list[Demand]:
    """The demands where a member of a gauge class is given. The demand that would fix the member fixes the multiplier
    that was the gauge: first that of a rate, then of another multiplier, then of an init."""
    roles = [s.tensor.name for s in network.linear if s.tensor and multiplier in s.multipliers]
    others = [m for role in roles for s in network.uses(role) for m in s.multipliers]
    members = {f"{role}.lr": f"c.{role}" for role in roles} | {m: m for m in others}
    members |= {f"{role}.init": f"b.{role}" for role in roles}
    fixing = [u for name, u in members.items() if name in network.held and any(d.fixes == u for d in demands)]
    return [replace(d, fixes=multiplier) if d.fixes in fixing[:1] else d for d in demands]


def _fixed(network: Network, statement: Product) -> bool:
    """Does a product read nothing that trains?"""
    return not any(learns(network, x.name) for x in statement.factors)


def _written(network: Network, statement: Product) -> bool:
    """Are there tensors that train in the terms of a product?"""
    return any(x.name not in network.frozen for term in written_out(network, statement) for x in term.tensors)


def _propagating(network: Network, statement: Product) -> str:
    """Return the part of a product that its initial tensors pass on; of a weight that is a product of tensors all are
    meant."""
    (first, *_) = statement.factors
    if statement.out in (x.out for x in weight_products(network).get(first.name, ())):
        below = network.producer(first.name)
        while isinstance(below, Product) and below.factors[0].name in weight_products(network):
            below = network.producer(below.factors[0].name)
        assert isinstance(below, Product) and below.tensor
        return f"{statement.out}.propagating.{network.tensors[below.tensor.name].symbol}"
    return f"{statement.out}.propagating"


def _learned(network: Network, statement: Product) -> tuple[str, ...]:
    """Return the parts of the output of a product that updates of its tensors make; of a factor of a weight, the part
    of the signal that the weight makes."""
    if statement.out in weight_products(network) and statement.tensor:
        return (f"effective.{network.tensors[statement.tensor.name].symbol}",)
    if not _written(network, statement):
        return ("change",)
    signals = [x for term in written_out(network, statement) for x in term.signals]
    return ("effective", "cross") if any(learns(network, x.name) for x in signals) else ("effective",)


def _changed(network: Network, statement: Product) -> str:
    """The changed inputs of a product: signals that train come first, as ``dh2 data``."""
    return "d" + " ".join(x.name for x in sorted(statement.factors, key=lambda x: not learns(network, x.name)))


def mssp_demands(network: Network, structure: Structure) -> list[Demand]:
    """Maximal scale stability: the forward desiderata, and balance backward and across experts.

    The demands are stated for every sum over experts: on its pieces, each with one tensor or signal that changes, and
    on the parts of the gradients at what its experts, their tensors and its gates read. Source: MSSP paper, section 4
    and App. I.3; the router's pathways: App. C.
    """
    demands = _mup(network, structure)
    for e in experts(network):
        for piece in e.pieces:
            name = f"{e.out}.{piece}"
            why = f"{name} of the aggregate is Theta(1)"
            demands.append(Demand("MSSP-3 forward", "theta", (name,), because=why, sum=e.out))
    named = {(x.signal, x.via): x for x in adjoints(network)}
    for e in experts(network):
        if not e.tensors:
            continue
        routed = {x.name: s.out for role in e.routers for s in network.uses(role) for x in s.factors}
        read = [x.name for s in network.linear if s.out in e.body for x in s.factors if x.name in e.body]
        keys = [(e.out, ""), *((x, "") for x in dict.fromkeys((*read, *e.gates)))]
        for key in (*keys, *((x, routed[x]) for x in e.entering if x in routed)):
            if key in named and named[key].parts:
                name, parts = named[key].name, _finest(named[key])
                why = f"the parts of {name} share one scale"
                demands.append(Demand("MSSP-2 backward", "balanced", parts, because=why, sum=e.out))
        for below in e.entering:
            uses = dict.fromkeys(s.out for s, _ in network.consumers(below))
            ways = [named[below, x if len(uses) > 1 else ""] for x in uses if x in e.body]
            if parts := tuple(part for x in ways for part in _finest(x)):
                name = " and ".join(x.name for x in ways)
                why = f"the pieces A4 to E of {name} share one scale"
                demands.append(Demand("MSSP-3 backward", "balanced", parts, because=why, sum=e.out))
            if (paths := forks(network, below)) and one_layer(network, below) and below in routed:
                router = next(network.tensors[r].symbol for r in e.routers if network.uses(r)[0].out == routed[below])
                names = tuple(f"{routed[below]}.propagating.{path}" for path in paths)
                why = f"the expert and the router pathway contribute to {router}_0 d{below} at one scale, or not at all"
                demands.append(Demand("MSSP pathways", "balanced", names, because=why, sum=e.out))
    last = horizon(network, structure)
    return [replace(demand, horizon=last) for demand in demands]


def _finest(gradient: Adjoint) -> tuple[str, ...]:
    """The finest parts of a gradient: those split by the most tensors."""
    sizes = {k: len(modes) for k, modes in gradient.parts.items()}
    return tuple(f"{gradient.name}.{k}" for k, size in sizes.items() if size == max(sizes.values()))


@dataclass(frozen=True)
class Intervention:
    """Names that are added to one field of a structure, and the sum over experts that they belong to, or ""."""

    field: Literal["zero", "exempt", "tied"]
    names: frozenset[str]
    sum: str

    def on(self, structure: Structure) -> Structure:
        """The structure with this intervention."""
        return replace(structure, **{self.field: getattr(structure, self.field) | self.names})


def options(network: Network) -> list[Intervention]:
    """Interventions MSSP may choose from: zero router init, the exception that a signal before the aggregation may
    grow, and initial values shared by the experts in a tensor."""
    found: list[Intervention] = []
    for e in experts(network):
        found += [Intervention("zero", frozenset({role}), e.out) for role in e.routers]
        found += [Intervention("exempt", frozenset(e.last), e.out)] if e.last else []
    sums = {role: e.out for e in experts(network) for role in e.tensors}
    tied = (role for role, tensor in network.tensors.items() if tensor.experts and role not in network.frozen)
    return [*found, *(Intervention("tied", frozenset({role}), sums.get(role, "")) for role in tied)]


def number(network: Network, structure: Structure) -> int:
    """The number of interventions in a structure."""
    return sum(x.on(structure) == structure for x in options(network))


def interventions(network: Network, base: Structure) -> list[Structure]:
    """Structures MSSP may choose from, fewest interventions first."""
    structures = []
    for size in range(len(every := options(network)) + 1):
        for chosen in combinations(every, size):
            structures.append(reduce(lambda structure, x: x.on(structure), chosen, base))
    return structures
