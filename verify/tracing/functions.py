"""What a tensor is of another one, as equations: functions, norms and gates. Read next: ``regions.py`` (who tells)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.spec.networks.functions import FUNCTIONS

from .elementwise import (
    GATES,
    add_constant,
    added,
    below_same_size,
    cat_as_sum,
    function_of,
    multiplied,
    same_size,
    scaled,
)
from .entries import sign_of
from .graph import View
from .indices import convert_constant
from .nodes import (
    Centred,
    Entrywise,
    FunctionNode,
    Parameter,
    Permutation,
    Restart,
    Rotation,
    Selection,
    Unreadable,
    walk,
)
from .products import contract
from .reading import Reader
from .recording import Ref, refs
from .regions import ToldFunction
from .routing import selection, slots_along

STANDS = ": its powers are the same, its values are not"
"""How a note ends on a function that is read as another."""


def read(reader: Reader, known: ToldFunction, number: int) -> View:
    """A tensor, by number, as what it is of another one.

    Raises:
        Unreadable: no equation says it.
        Restart: it is to be read from the call that makes it.
    """
    x = cat_as_sum(reader, reader.view(Ref(known.x)))
    if not known.over:
        return _entrywise(reader, known, x)
    try:
        slots = tuple(e for d in known.over for e in slots_along(reader, x, d))
    except Unreadable:
        made = None
    else:
        made = _along(reader, known, x, slots)
    if made is None:
        reader.regions.leave(number)
        raise Restart
    return scaled(reader, made, reader.numbers(known.numbers)) if {*known.numbers} != {1.0} else made


def _along(reader: Reader, known: ToldFunction, x: View, slots: tuple[int, ...]) -> View | None:
    """A function along slots without its number; None: it is read call by call."""

    def exact(v: Tensor) -> Tensor:
        return x.from_torch(known.exact(x.to_torch(v)), v)

    name, gate, fixed = known.name, below_same_size(x.node), all(x.node.indices[e].fixed for e in slots)
    if name in ("turned", "mixed", "signed"):
        joins = any(len(reader.regions.tree.live(call)) > 1 for call in known.maps[0].calls)
        if name != "turned" and fixed and not joins:  # a matrix of constants says which
            return None
        if name != "turned" and x.node.weight and _read_again(reader, x):
            raise reader.fail("a tensor in another order that is read elsewhere; no equation says this")
        note = f"{reader.name}: where entries change their places, equations say no more of it; this is left out"
        if name == "turned":
            note = "a constant factor is left out (rotary angles)"
        if name == "turned" or x.node.weight:
            return same_size(reader, x, known.exact, Rotation, note=note)
        return same_size(reader, x, known.exact, Permutation, note=note, signed=name == "signed")
    if name == "centre" and (fixed or len(slots) > 1):  # a matrix takes off a mean along what does not grow
        return None
    if name == "normed":
        if not isinstance(gate, FunctionNode) or gate.name not in GATES or gate.exact is None:
            return None
        before = gate.exact
        gates = View(gate.source, x.dims)
        chosen: dict[str, Any] = {"kind": Selection, "count": gate.count} if isinstance(gate, Selection) else {}
        return function_of(reader, GATES[gate.name], gates, lambda v: exact(before(v)), gate.over or slots, **chosen)
    if name == "softmax" and isinstance(gate, Selection) and gate.name == "topk":
        return selection(reader, "topk_softmax", View(gate.source, x.dims), gate.over, gate.count)
    if name == "layernorm" and fixed:
        x, slots, name = *_less_mean(reader, x, known.over), "rmsnorm"
    return function_of(reader, name, x, exact, slots, Centred if name == "centre" else FunctionNode)


def _read_again(reader: Reader, x: View) -> bool:
    """Does more than one call read a tensor that another one is made of?"""
    run, names = reader.runs[0], {y.name for y in walk(x.node) if isinstance(y, Parameter)}
    own = {number for number, name in run.parameters.items() if name in names}
    return sum(any(r.number in own for r in refs((c.arguments, c.keywords))) for c in run.calls) > 1


def _less_mean(reader: Reader, x: View, over: Sequence[int]) -> tuple[View, tuple[int, ...]]:
    """A signal less its mean along dimensions that do not grow, which a matrix takes off; and their slots."""
    here = [(d, k) for d in over for k in range(len(x.dims[d]))]
    sizes = [x.index(x.dims[d][k]).sizes[0] for d, k in here]
    if prod(sizes) < 3:
        raise reader.fail("a centred norm along two entries, which leaves their signs alone; give a larger input")
    matrix = (torch.eye(prod(sizes)) - 1 / prod(sizes)).reshape(*sizes, *sizes)
    operand = convert_constant(reader, reader.constant([matrix] * reader.builds))
    keys = [(d, k) for d, dim in enumerate(x.dims) for k in range(len(dim))]
    out = [("out", key) if key in here else key for key in keys]
    flat = View(x.node, [(e,) for dim in x.dims for e in dim])
    y = contract(reader, [(operand, [*(("out", key) for key in here), *here]), (flat, keys)], out)
    of = {key: dim[0] for key, dim in zip(keys, y.dims, strict=True)}
    y = View(y.node, [tuple(of[d, k] for k in range(len(dim))) for d, dim in enumerate(x.dims)])
    return y, tuple(e for d in over for e in y.dims[d] if isinstance(e, int))


def _entrywise(reader: Reader, known: ToldFunction, x: View) -> View:
    """A function of every entry."""
    if known.rank == 4:
        declared = f"its values are not of the class that functions.toml gives {reader.name}"
        raise reader.fail(declared if reader.name in FUNCTIONS else known.why)
    if known.name == "same" and known.rank == 0:
        return x if {*known.numbers} == {1.0} else scaled(reader, x, reader.numbers(known.numbers))
    if known.name == "same":
        return same_size(
            reader, x, known.exact, note=f"{reader.name} is left out: it changes no value that was recorded"
        )
    if known.name == "abs":  # even, and as steep as its argument
        sign = function_of(reader, "tanh", x, torch.sign)
        sign.node.note = f"{reader.name} is read as x tanh(x){STANDS}"
        made = multiplied(reader, sign, x)
        return made if {*known.numbers} == {1.0} else scaled(reader, made, reader.numbers(known.numbers))
    if known.rank == 2:
        linear = function_of(reader, "silu", x, lambda v: known.exact(v) - torch.tanh(v))
        linear.node.note = f"{reader.name} is read as {known.name}{STANDS}"
        made = added(reader, [linear, function_of(reader, "tanh", x, torch.tanh)])
    elif known.rank == 1:
        made = _standing(reader, known.name, x, known.exact)
    else:
        made = function_of(reader, known.name, x, known.exact)
        if known.rank == 3:
            made.node.note = f"{reader.name} is read as {known.name}, which it is at the values that were recorded"
        if {*known.numbers} != {1.0}:
            made = scaled(reader, made, reader.numbers(known.numbers))
    return made if known.middle == 0 else add_constant(reader, made, _number(reader, known.middle))


def _number(reader: Reader, number: float) -> View:
    return reader.numbers([number] * reader.builds)


def _standing(reader: Reader, name: str, x: View, exact: Entrywise) -> View:
    """A function that is read as one of the language, or as its negative, with a note that its values differ."""
    if (sign := sign_of(exact)) < 0:
        made = _standing(reader, name, x, lambda v: -exact(v))
        return scaled(reader, made, _number(reader, sign))
    made = function_of(reader, name, x, exact)
    made.node.note = f"{reader.name} is read as {name}{STANDS}"
    return made
