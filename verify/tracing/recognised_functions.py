"""Reads recognised functions (elementwise functions, norms, gates, rotations) as equations.

``function_recognition.py`` recognises that one tensor is a known function of another, whatever calls lie between;
``read_function`` turns this into nodes of the graph. Read next: ``function_recognition.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.spec.networks.functions import FUNCTIONS

from .activations import determine_sign
from .elementwise import (
    NORMALISED_GATES,
    add_constant,
    add_views,
    apply_function,
    convert_cat_to_sum,
    derive_same_size,
    multiply_views,
    scale_view,
    skip_same_size_nodes,
)
from .equation_constants import convert_constant
from .function_recognition import KnownFunction
from .graph import View
from .nodes import (
    CentredSignal,
    FunctionNode,
    Parameter,
    Permutation,
    Restart,
    Rotation,
    Selection,
    TensorFunction,
    Unreadable,
    walk_graph,
)
from .products import contract_views
from .reader import Reader
from .recording import TensorRef
from .routing import apply_selection, find_dim_slots

SUBSTITUTE_NOTE = ", which scales with the same powers but has other values"
"""End of the note on a function that is read as another one."""


def read_function(reader: Reader, known: KnownFunction, number: int) -> View:
    """Returns the view of a tensor that is a recognised function of an earlier one, such as the result of a norm.

    Args:
        reader: the reader.
        known: the function, and the tensor that it is applied to.
        number: the number of the tensor that is read.

    Raises:
        Unreadable: no equation can express the function.
        Restart: the tensor must be read call by call instead, in a new attempt.
    """
    x = convert_cat_to_sum(reader, reader.get_view(TensorRef(known.argument)))
    if not known.over:
        return _read_elementwise(reader, known, x)
    try:
        slots = tuple(e for d in known.over for e in find_dim_slots(reader, x, d))
    except Unreadable:
        made = None
    else:
        made = _read_along_dims(reader, known, x, slots)
    if made is None:
        reader.known_functions.exclude(number)
        raise Restart
    return scale_view(reader, made, reader.make_scalar(known.factors))


def _read_along_dims(reader: Reader, known: KnownFunction, x: View, slots: tuple[int, ...]) -> View | None:
    """Returns the result of a function along dimensions (a norm, softmax, mean or rotation), without its constant
    factor.

    Args:
        reader: the reader.
        known: the function.
        x: its argument.
        slots: the dimensions of the node of x along which the function mixes entries.

    Returns:
        The view, or None if the function must be read call by call.

    Raises:
        Unreadable: the function permutes a parameter that is also used elsewhere.
    """

    def compute_value(v: Tensor) -> Tensor:
        return x.from_torch(known.evaluate(x.to_torch(v)), v)

    name, gate, fixed = known.name, skip_same_size_nodes(x.node), all(x.node.indices[e].fixed for e in slots)
    if name in ("turned", "mixed", "signed"):
        joins = any(len(reader.known_functions.tree.list_live_arguments(call)) > 1 for call in known.functions[0].calls)
        if name != "turned" and fixed and not joins:  # read call by call, as a matrix of constants
            return None
        if name != "turned" and x.node.is_weight and _has_other_readers(reader, x):
            why = "a permuted parameter that is also used elsewhere, which no equation can express; "
            raise reader.fail(why + "use another parameter there")
        note = f"{reader.rule_name} permutes or mixes entries and keeps their size; how it does so is left out"
        if name == "turned":
            note = "a constant rotation is left out (rotary angles)"
        if name == "turned" or x.node.is_weight:
            return derive_same_size(reader, x, known.evaluate, Rotation, note=note)
        return derive_same_size(reader, x, known.evaluate, Permutation, note=note, signed=name == "signed")
    if name == "centre" and (fixed or len(slots) > 1):  # read call by call: a constant matrix subtracts it
        return None
    if name == "normed":
        if not isinstance(gate, FunctionNode) or gate.name not in NORMALISED_GATES or gate.value_function is None:
            return None
        before = gate.value_function
        gates = View(gate.source, x.dims)
        chosen: dict[str, Any] = {"kind": Selection, "count": gate.count} if isinstance(gate, Selection) else {}
        return apply_function(
            reader, NORMALISED_GATES[gate.name], gates, lambda v: compute_value(before(v)), gate.over or slots, **chosen
        )
    if name == "softmax" and isinstance(gate, Selection) and gate.name == "topk":
        return apply_selection(reader, "topk_softmax", View(gate.source, x.dims), gate.over, gate.count)
    if name == "layernorm" and fixed:
        x, slots, name = *_subtract_mean(reader, x, known.over), "rmsnorm"
    return apply_function(reader, name, x, compute_value, slots, CentredSignal if name == "centre" else FunctionNode)


def _has_other_readers(reader: Reader, x: View) -> bool:
    """Tests whether more than one call of the module takes a parameter from which a tensor is computed.

    Then the parameter is also used elsewhere, and not only in this tensor.
    """
    run, names = reader.runs[0], {y.name for y in walk_graph(x.node) if isinstance(y, Parameter)}
    own = {number for number, name in run.parameters.items() if name in names}
    return sum(any(r.number in own for r in c.iterate_inputs()) for c in run.calls) > 1


def _subtract_mean(reader: Reader, x: View, over: Sequence[int]) -> tuple[View, tuple[int, ...]]:
    """Subtracts the mean of a signal along dimensions that do not grow, by a product with the constant matrix I - 1/n.

    Args:
        reader: the reader.
        x: the signal.
        over: the dimensions, with n entries together.

    Returns:
        The centred signal, and the numbers that these dimensions have in its node.

    Raises:
        Unreadable: n is less than three.
    """
    here = [(d, k) for d in over for k in range(len(x.dims[d]))]
    sizes = [x.get_index(x.dims[d][k]).sizes[0] for d, k in here]
    if prod(sizes) < 3:
        raise reader.fail("a layer norm along two entries, which keeps their signs only; give a larger input")
    matrix = (torch.eye(prod(sizes)) - 1 / prod(sizes)).reshape(*sizes, *sizes)
    operand = convert_constant(reader, reader.make_constant([matrix] * reader.builds))
    keys = [(d, k) for d, dim in enumerate(x.dims) for k in range(len(dim))]
    out = [("out", key) if key in here else key for key in keys]
    flat = View(x.node, [(e,) for dim in x.dims for e in dim])
    y = contract_views(reader, [(operand, [*(("out", key) for key in here), *here]), (flat, keys)], out)
    of = {key: dim[0] for key, dim in zip(keys, y.dims, strict=True)}
    y = View(y.node, [tuple(of[d, k] for k in range(len(dim))) for d, dim in enumerate(x.dims)])
    return y, tuple(e for d in over for e in y.dims[d] if isinstance(e, int))


def _read_elementwise(reader: Reader, known: KnownFunction, x: View) -> View:
    """Returns the result of a recognised function that acts on each entry.

    Args:
        reader: the reader.
        known: the function; its ``rank`` says how exactly it is known.
        x: its argument.

    Raises:
        Unreadable: no equation has the function.
    """
    if known.rank == 4:
        declared = f"its values contradict the class that functions.toml gives {reader.rule_name}; correct it there"
        raise reader.fail(declared if reader.rule_name in FUNCTIONS else known.why)
    if known.name == "same" and known.rank == 0:
        return scale_view(reader, x, reader.make_scalar(known.factors))
    if known.name == "same":
        return derive_same_size(
            reader, x, known.evaluate, note=f"{reader.rule_name} is left out: it does not change the recorded values"
        )
    if known.name == "abs":  # like |x|, x tanh(x) is even and grows linearly
        sign = apply_function(reader, "tanh", x, torch.sign)
        sign.node.note = f"{reader.rule_name} is read as x tanh(x){SUBSTITUTE_NOTE}"
        made = multiply_views(reader, sign, x)
        return scale_view(reader, made, reader.make_scalar(known.factors))
    if known.rank == 2:
        linear = apply_function(reader, "silu", x, lambda v: known.evaluate(v) - torch.tanh(v))
        linear.node.note = f"{reader.rule_name} is read as {known.name}{SUBSTITUTE_NOTE}"
        made = add_views(reader, [linear, apply_function(reader, "tanh", x, torch.tanh)])
    elif known.rank == 1:
        made = _substitute_function(reader, known.name, x, known.evaluate)
    else:
        made = apply_function(reader, known.name, x, known.evaluate)
        if known.rank == 3:
            made.node.note = f"{reader.rule_name} is read as {known.name}, which it equals at the recorded values"
        made = scale_view(reader, made, reader.make_scalar(known.factors))
    return made if known.offset == 0 else add_constant(reader, made, reader.convert_operand(known.offset))


def _substitute_function(reader: Reader, name: str, x: View, value_function: TensorFunction) -> View:
    """Applies a function of the equations in place of one of the module that scales with the same powers.

    A note says that its values differ.

    Args:
        reader: the reader.
        name: the function of the equations; its negative is used if ``value_function`` has the other sign.
        x: its argument.
        value_function: the function of the module.
    """
    if (sign := determine_sign(value_function)) < 0:
        made = _substitute_function(reader, name, x, lambda v: -value_function(v))
        return scale_view(reader, made, reader.convert_operand(sign))
    made = apply_function(reader, name, x, value_function)
    made.node.note = f"{reader.rule_name} is read as {name}{SUBSTITUTE_NOTE}"
    return made
