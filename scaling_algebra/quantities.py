"""Every named quantity of a training run: stable identifiers used by the command line, JSON, tests and reports.

Read next: ``analysis.py`` (evaluates them with a certificate), ``desiderata.py`` (demands on them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from .programs import MOE_BLOCK, Aggregate, Gate, Linear, Program
from .signals import Signal
from .training import Mode, Trajectory

Reading = Callable[[Trajectory, int], Signal | int | None]
"""Signal, or packed entry size (None: exactly zero), after t updates."""

_MODES: tuple[Mode, Mode] = ("init", "update")


@dataclass(frozen=True)
class Quantity:
    """A named quantity: what it is, in symbols, and how to read it off a trajectory."""

    name: str
    formula: str
    read: Reading


def quantities(program: Program = MOE_BLOCK) -> dict[str, Quantity]:
    """All quantities of a program, in reporting order."""
    found = [*_forward(program), *_aggregate(program), *_backward(program), *_sizes(program)]
    return {q.name: q for q in found}


def _forward(program: Program) -> list[Quantity]:
    found = []
    for how in program.statements:
        x, s = how.out, how.source
        found += [
            Quantity(x, f"{x}_t", _value(x)),
            Quantity(f"{x}.change", f"{x}_t - {x}_0", _change(x)),
        ]
        parts = _parts(program, how)
        w = program.tensors[how.tensor].symbol if isinstance(how, Linear) else ""
        texts = {
            "init": f"{w}_0 {s}_0" if w else f"{x} from initial values",
            "propagating": f"{w}_0 d{s}_t" if w else f"{x} from {s}.propagating",
            "effective": f"d{w}_t {s}_0" if w else f"{x} from {s}.effective",
            "cross": f"d{w}_t d{s}_t" if w else f"{x} from {s}.cross",
        }
        if s == "data":
            parts = {k: v for k, v in parts.items() if k in ("init", "effective")}
        found += [Quantity(f"{x}.{part}", texts[part], read) for part, read in parts.items()]
    router, embedding = program.linear("router"), program.linear("input")
    for path, via in (("expert", program.linear("expert_in").out), ("router", router.out)):
        found.append(
            Quantity(
                f"{router.out}.propagating.{path}",
                f"Q_0 times the part of d{embedding.out}_t that came through the {path} pathway",
                _pathway(embedding.out, via),
            )
        )
    return found


def _parts(program: Program, how: Linear | Gate | Aggregate) -> dict[str, Reading]:
    """Readings of the init, propagating, effective and cross part of a statement's output."""
    if isinstance(how, Linear):
        role, s = how.tensor, how.source
        return {
            "init": lambda tr, t: tr.initial(how.out),
            "propagating": lambda tr, t: tr.apply(role, "init", tr.change(s, t), t),
            "effective": lambda tr, t: tr.apply(role, "update", tr.initial(s), t),
            "cross": lambda tr, t: tr.apply(role, "update", tr.change(s, t), t),
        }
    inner = program.producer(how.source)
    assert isinstance(inner, Linear)
    if isinstance(how, Gate):  # Theta(1) value and slope: the parts are those of its argument
        return {**_parts(program, inner), "init": lambda tr, t: tr.initial(how.out)}
    x = inner.source
    return {
        "init": lambda tr, t: tr.initial(how.out),
        "propagating": lambda tr, t: tr.aggregate("init", tr.change(x, t), t),
        "effective": lambda tr, t: tr.aggregate("update", tr.initial(x), t),
        "cross": lambda tr, t: tr.aggregate("update", tr.change(x, t), t),
    }


def _aggregate(program: Program) -> list[Quantity]:
    """The pieces A1, A2.1, A2.2, A3, D of the aggregation (MSSP paper, App. I.3)."""
    how = program.aggregate
    outer = program.producer(how.source)
    assert isinstance(outer, Linear)
    inner = program.producer(outer.source)
    assert isinstance(inner, Linear)
    parts = _parts(program, how)
    below = _parts(program, inner)

    def through(part: str) -> Reading:
        read = below[part]
        return lambda tr, t: tr.aggregate("init", _signal(read(tr, t)), t)

    return [
        Quantity("h3.A1", "M^-a sum_i phi_i W3_0 W2_0 h1_0", parts["init"]),
        Quantity("h3.A2.1", "M^-a sum_i phi_i W3_0 W2_0 dh1_t", through("propagating")),
        Quantity("h3.A2.2", "M^-a sum_i phi_i W3_0 dW2_t h1_0", through("effective")),
        Quantity("h3.A3", "M^-a sum_i phi_i dW3_t h2_0", parts["effective"]),
        Quantity("h3.D", "M^-a sum_i phi_i dW3_t dh2_t", parts["cross"]),
    ]


def _backward(program: Program) -> list[Quantity]:
    found = []
    split = {
        "g3": ("readout",),
        "g3i": ("readout",),
        "g2": ("expert_out", "readout"),
        "gphi": ("expert_out", "readout"),
    }
    for signal, name in program.adjoints.items():
        if name in split:
            found.append(_gradient(name, signal, {}, None))
            for modes in product(_MODES, repeat=len(split[name])):
                chosen: dict[str, Mode] = dict(zip(split[name], modes, strict=True))
                found.append(_gradient(f"{name}.{'-'.join(modes)}", signal, chosen, None))
    expert, router = program.linear("expert_in").out, program.linear("router").out
    found.append(_gradient("g1.expert", "h1", {}, expert))
    labels: dict[tuple[Mode, Mode], str] = {
        ("init", "init"): "A4",
        ("init", "update"): "A5",
        ("update", "init"): "A6",
        ("update", "update"): "E",
    }
    for (w2, w3), label in labels.items():
        for k, w4 in enumerate(_MODES, 1):
            modes3: dict[str, Mode] = {"expert_in": w2, "expert_out": w3, "readout": w4}
            found.append(_gradient(f"g1.expert.{label}.{k}", "h1", modes3, expert))
    found.append(_gradient("g1.router", "h1", {}, router))
    for q, label in zip(_MODES, ("Q0", "dQ"), strict=True):
        found.append(_gradient(f"g1.router.{label}", "h1", {"router": q}, router))
        for w3, w4 in product(_MODES, repeat=2):
            modes3 = {"router": q, "expert_out": w3, "readout": w4}
            found.append(_gradient(f"g1.router.{label}.{w3}-{w4}", "h1", modes3, router))
    found.append(_gradient("g1", "h1", {}, None))
    return found


def _gradient(name: str, signal: str, modes: dict[str, Mode], via: str | None) -> Quantity:
    how = ", ".join(f"{role} {mode}" for role, mode in modes.items())
    path = f" through {via}" if via else ""
    formula = f"df/d{signal}{path}" + (f" with {how}" if how else "")
    return Quantity(name, formula, lambda tr, t: tr.gradient(signal, t, modes, via))


def _sizes(program: Program) -> list[Quantity]:
    found = []
    for role, tensor in program.tensors.items():
        w = tensor.symbol
        found.append(Quantity(f"d{w}", f"{w}_t - {w}_0", _update(role)))
    for role, tensor in program.tensors.items():
        w = tensor.symbol
        found.append(Quantity(f"g{w}", f"dL/d{w}", _raw(role)))
    return found


def _value(x: str) -> Reading:
    return lambda tr, t: tr.value(x, t)


def _change(x: str) -> Reading:
    return lambda tr, t: tr.change(x, t)


def _pathway(x: str, via: str) -> Reading:
    return lambda tr, t: tr.apply("router", "init", tr.change_via(x, t, via), t)


def _update(role: str) -> Reading:
    return lambda tr, t: tr.update_size(role, t)


def _raw(role: str) -> Reading:
    return lambda tr, t: tr.raw_gradient_size(role, t)


def _signal(read: Signal | int | None) -> Signal:
    assert isinstance(read, Signal)
    return read
