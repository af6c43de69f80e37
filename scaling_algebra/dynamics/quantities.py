"""Every named quantity of a training run: stable identifiers used by the command line, JSON, tests and reports.

Read next: ``analysis.py`` (evaluates them with a certificate), ``desiderata.py`` (demands on them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaling_algebra.counting.signals import Signal
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.networks.language import (
    Adjoint,
    Aggregate,
    Gate,
    Linear,
    Mode,
    Network,
    Noise,
    Norm,
    Statement,
)
from scaling_algebra.spec.networks.library import MOE_BLOCK

from .trajectory import Trajectory

Reading = Callable[[Trajectory, int], Signal | int | None]
"""Signal, or packed entry size (None: exactly zero), after t updates."""


@dataclass(frozen=True)
class Quantity:
    """A named quantity: what it is, in symbols, and how to read it off a trajectory.

    ``tensor`` is the role whose cumulative update or raw gradient it is, if it is one.
    """

    name: str
    formula: str
    read: Reading
    tensor: str = ""


def quantities(network: Network = MOE_BLOCK) -> dict[str, Quantity]:
    """All quantities of a network, in reporting order."""
    entries = [*_forward(network), *_pathways(network), *_aggregates(network), *_backward(network), *_sizes(network)]
    return {q.name: q for q in entries}


def inner_product(name: str) -> list[tuple[str, int | None]]:
    """The sides of ``"<A, B@t>"`` as (quantity, step), step None where none is given; empty for any other name.

    Raises:
        UsageError: a step that is not a number.
    """
    if not (name.startswith("<") and name.endswith(">") and name.count(",") == 1):
        return []
    sides = []
    for side in name[1:-1].split(","):
        inner, at, step = side.strip().partition("@")
        if at and not step.isdigit():
            raise UsageError(f"cannot read {side.strip()!r}: write NAME@t with t = 0, 1, 2, ...")
        sides.append((inner, int(step) if at else None))
    return sides


def quantity(table: Mapping[str, Quantity], name: str) -> Quantity:
    """A quantity by name, or the inner product ``"<A, B>"`` of two of them over all indices but the expert's.

    ``A@t`` takes A after t updates whatever step is asked for.

    Raises:
        UsageError: no such quantity, or an inner product of what has no entries in common.
    """
    if name in table:
        return table[name]
    sides = inner_product(name)
    for side in [inner for inner, _ in sides] or [name]:
        if side not in table:
            raise unknown_name("quantity", side, table)

    def read(tr: Trajectory, t: int) -> Signal:
        left, right = (table[q].read(tr, t if step is None else step) for q, step in sides)
        if not (isinstance(left, Signal) and isinstance(right, Signal)):
            raise UsageError(f"{name}: inner products are of signals (h..., psi, g...), not of tensors")
        experts = "".join(x for x in tr.network.axes if tr.network.axes[x] in ("M", "K"))
        if set(left.letters) - set(experts) != set(right.letters) - set(experts):
            raise UsageError(f"{name}: an inner product is of signals with the same indices; these have others")
        return tr.algebra.contract(left, right, "".join(x for x in experts if x in left.letters + right.letters))

    formulas = (table[q].formula if s is None else table[q].formula.replace("_t", f"_{s}") for q, s in sides)
    return Quantity(name, "inner product of " + " and ".join(formulas), read)


def _forward(network: Network) -> list[Quantity]:
    entries = []
    for statement in network.statements:
        x = statement.out
        entries += [
            Quantity(x, f"{x}_t", _value(x)),
            Quantity(f"{x}.change", f"{x}_t - {x}_0", _change(x)),
        ]
        texts = _texts(network, statement)
        entries += [Quantity(f"{x}.{part}", texts[part], read) for part, read in _parts(network, statement).items()]
        entries += _updated(network, statement)
    for gate in (s for s in network.statements if isinstance(s, Gate) and s.kind != "held"):
        entries.append(Quantity(f"{gate.source}.spread", f"{gate.source}_t minus its mean over experts", _spread(gate)))
    return entries


def _updated(network: Network, statement: Statement) -> list[Quantity]:
    """The update times what it reads now, and that over the size of what it reads (MSSP paper, App. Q.4)."""
    if not isinstance(statement, Linear) or statement.source == "data":
        return []
    whole = f"d{network.tensors[statement.tensor].symbol}_t {statement.source}_t"

    def read(tr: Trajectory, t: int) -> Signal:
        return tr.apply(statement.tensor, "update", tr.value(statement.source, t), t)

    def relative(tr: Trajectory, t: int) -> Signal:
        return tr.relative(read(tr, t), statement.source, t)

    normalised = Quantity(f"{statement.out}.update.normalised", f"{whole} / |{statement.source}_t|", relative)
    return [Quantity(f"{statement.out}.update", whole, read), normalised]


def _texts(network: Network, statement: Statement) -> dict[str, str]:
    if isinstance(statement, Linear):
        w, s = network.tensors[statement.tensor].symbol, statement.source
        return {
            "init": f"{w}_0 {s}_0",
            "propagating": f"{w}_0 d{s}_t",
            "effective": f"d{w}_t {s}_0",
            "cross": f"d{w}_t d{s}_t",
        }
    if isinstance(statement, Noise):
        return {}
    parts = ("propagating", "effective", "cross", "regated")
    whole = "M^-a sum_i phi_i " if isinstance(statement, Aggregate) else f"{statement.out} from "
    return {"init": f"{statement.out} from initial values", **{p: f"{whole}{statement.source}.{p}" for p in parts}}


def _parts(network: Network, statement: Statement) -> dict[str, Reading]:
    """Readings of the init, propagating, effective and cross part of a statement's output."""
    if isinstance(statement, Linear):
        role, s = statement.tensor, statement.source
        parts: dict[str, Reading] = {
            "init": lambda tr, t: tr.initial(statement.out),
            "propagating": lambda tr, t: tr.apply(role, "init", tr.change(s, t), t),
            "effective": lambda tr, t: tr.apply(role, "update", tr.initial(s), t),
            "cross": lambda tr, t: tr.apply(role, "update", tr.change(s, t), t),
        }
        return {k: parts[k] for k in ("init", "effective")} if s == "data" else parts
    if isinstance(statement, Noise):
        return {}
    if not isinstance(statement, Aggregate):  # gate, sum, norm: the parts are those of its argument
        below = network.producer(statement.source)
        assert below is not None
        scale = _normed(statement) if isinstance(statement, Norm) else lambda tr, t, s: s
        inner = {k: _scaled(read, scale) for k, read in _parts(network, below).items()}
        return {**inner, "init": lambda tr, t: tr.initial(statement.out)}
    x = network.linear_into(statement.source).source
    readings: dict[str, Reading] = {
        "init": lambda tr, t: tr.initial(statement.out),
        "propagating": lambda tr, t: tr.aggregate(statement, "init", tr.change(x, t), t),
        "effective": lambda tr, t: tr.aggregate(statement, "update", tr.initial(x), t),
        "cross": lambda tr, t: tr.aggregate(statement, "update", tr.change(x, t), t),
    }
    gate = network.producer(statement.gate)
    if isinstance(gate, Gate) and gate.kind != "held":
        readings["regated"] = lambda tr, t: tr.regated(statement, t)
    return readings


def _normed(statement: Norm) -> Callable[[Trajectory, int, Signal], Signal]:
    return lambda tr, t, s: tr.normalised(statement, s, t)


def _scaled(read: Reading, scale: Callable[[Trajectory, int, Signal], Signal]) -> Reading:
    return lambda tr, t: scale(tr, t, _signal(read(tr, t)))


def _pathways(network: Network) -> list[Quantity]:
    def read(x: str, via: str) -> Reading:
        return lambda tr, t: tr.apply("router", "init", tr.change_via(x, t, via), t)

    out = "" if not network.pathways else network.linear("router").out
    entries = []
    for path, (x, via) in network.pathways.items():
        formula = f"Q_0 times the part of d{x}_t that came through the {path} pathway"
        entries.append(Quantity(f"{out}.propagating.{path}", formula, read(x, via)))
    return entries


def _aggregates(network: Network) -> list[Quantity]:
    """The pieces A1, A2.1, A2.2, A3, D of an aggregation of two-layer experts (MSSP paper, App. I.3)."""
    entries = []
    for statement in network.aggregates:
        outer = network.linear_into(statement.source)
        inner = network.producer(outer.source)
        if not isinstance(inner, Linear) or inner.source == "data":
            continue
        x, w, v = statement.out, network.tensors[outer.tensor].symbol, network.tensors[inner.tensor].symbol
        parts, below, sums = _parts(network, statement), _parts(network, inner), "M^-a sum_i phi_i"
        entries += [
            Quantity(f"{x}.A1", f"{sums} {w}_0 {v}_0 {inner.source}_0", parts["init"]),
            Quantity(f"{x}.A2.1", f"{sums} {w}_0 {v}_0 d{inner.source}_t", _through(statement, below["propagating"])),
            Quantity(f"{x}.A2.2", f"{sums} {w}_0 d{v}_t {inner.source}_0", _through(statement, below["effective"])),
            Quantity(f"{x}.A3", f"{sums} d{w}_t {outer.source}_0", parts["effective"]),
            Quantity(f"{x}.D", f"{sums} d{w}_t d{outer.source}_t", parts["cross"]),
        ]
    return entries


def _through(statement: Aggregate, read: Reading) -> Reading:
    return lambda tr, t: tr.aggregate(statement, "init", _signal(read(tr, t)), t)


def _backward(network: Network) -> list[Quantity]:
    entries = []
    for adjoint in network.adjoints:
        entries.append(_gradient(network, adjoint, "", {}))
        entries += [_gradient(network, adjoint, suffix, modes) for suffix, modes in adjoint.parts.items()]
    return entries


def _gradient(network: Network, adjoint: Adjoint, suffix: str, modes: Mapping[str, Mode]) -> Quantity:
    name = f"{adjoint.name}.{suffix}" if suffix else adjoint.name
    statement = ", ".join(f"{network.tensors[role].symbol} {mode}" for role, mode in modes.items())
    path = f" through {adjoint.via}" if adjoint.via else ""
    formula = f"df/d{adjoint.signal}{path}" + (f" with {statement}" if statement else "")
    return Quantity(name, formula, lambda tr, t: tr.gradient(adjoint.signal, t, modes, adjoint.via))


def _sizes(network: Network) -> list[Quantity]:
    entries = []
    for role, tensor in network.tensors.items():
        w = tensor.symbol
        entries.append(Quantity(f"d{w}", f"{w}_t - {w}_0", _update(role), role))
    for role, tensor in network.tensors.items():
        w = tensor.symbol
        entries.append(Quantity(f"g{w}", f"dL/d{w}", _raw(role), role))
    return entries


def _value(x: str) -> Reading:
    return lambda tr, t: tr.value(x, t)


def _change(x: str) -> Reading:
    return lambda tr, t: tr.change(x, t)


def _spread(gate: Gate) -> Reading:
    return lambda tr, t: tr.algebra.centred(tr.value(gate.source, t), tr.network.signals[gate.source][-1])


def _update(role: str) -> Reading:
    return lambda tr, t: tr.update_size(role, t)


def _raw(role: str) -> Reading:
    return lambda tr, t: tr.raw_gradient_size(role, t)


def _signal(read: Signal | int | None) -> Signal:
    assert isinstance(read, Signal)
    return read
