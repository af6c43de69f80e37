"""A torch call as equations: one table, a row for each call. A row added is a call supported.

A rule gets the reader and the arguments of the call, its tensors as views, and returns the views of its results. Names
of functions, methods and aten are one: ``__radd__``, ``add_`` and ``aten::add`` are ``add``. Read next: ``rules.py``,
``layout.py``, ``routing.py`` (the rows), ``docs/extending.md`` (how to add one).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.verify.networks.torch_network import entrywise

from .elementwise import Cancels, added, function_of, parted, scaled, shifted
from .entries import NAMES, classified, generic, sign_of
from .fixed import linear
from .graph import Entrywise, View
from .reading import Reader, stopped
from .recording import MAKERS, STOPS, leaves, mapped, refs

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
ALIASES = {
    "radd": "add", "rmul": "mul", "truediv": "div", "rtruediv": "rdiv", "true_divide": "div", "iadd": "add",
    "imul": "mul", "isub": "sub", "itruediv": "div", "idiv": "div", "multiply": "mul", "divide": "div",
    "subtract": "sub", "rmatmul": "matmul", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "unsafe_view": "view", "safe_softmax": "softmax", "special_softmax": "softmax", "imatmul": "matmul",
    "clip": "clamp", "greater": "gt", "special_expit": "sigmoid", "expit": "sigmoid", "arctan": "atan", "amax": "max",
    "unsafe_split": "split", "unsafe_chunk": "chunk",
}  # fmt: skip
ENTRYWISE = {
    "exp", "sqrt", "rsqrt", "reciprocal", "softplus", "erf", "log", "elu",
    "leaky_relu", "relu6", "hardtanh", "mish", "log1p", "sin", "cos", "selu", "celu", "softsign", "hardswish",
    "log_sigmoid", "atan", "hardsigmoid",
}  # fmt: skip
"""Functions of one tensor, entry by entry, beside ``NAMES``; told apart by their values."""
STANDS = ": its powers are the same, its values are not"
"""How a note ends on a function that is read as another."""
ALIKE = 1e-3
"""Difference of values up to which a function is the one that it is read as (approximations of GELU)."""
COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne"}
"""Functions without a gradient."""
PARTED = {"add", "sub", "rms_norm", "layer_norm", "native_layer_norm", "normalize", "softmax"}
"""Calls that take a concatenation along an axis that grows as a sum of its parts."""
SAME = {
    "to", "float", "type_as", "contiguous", "clone", "dropout", "double", "half", "bfloat16", "type", "cpu",
    "alias", "requires_grad", "long", "int", "lift_fresh", "native_dropout", "to_copy", "pos",
    "view_as_complex", "view_as_real",
}  # fmt: skip


def rule(*names: str) -> Callable[[Rule], Rule]:
    """One row of the table, under these names."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def plain(name: str) -> str:
    """The name of a call in the table."""
    name = name.strip("_") if name.startswith("__") or name.startswith("_") else name.rstrip("_")
    return ALIASES.get(name, name)


def apply(reader: Reader, args: list[Any], keywords: Any) -> Any:
    """The views of a call's results.

    Raises:
        Unreadable: no rule, or one that does not hold here.
    """
    assert reader.call is not None
    name = plain(reader.call.name)
    if name in ("rsub", "rdiv"):
        name, args = name[1:], args[::-1]
    reader.name, apart = name, partial(parted, reader)
    x: Any = args[0] if args else None
    if name.startswith((*MAKERS, "new_")) or not any(v.numel() for values in reader.values for v in values):
        return reader.constants()
    if reader.call.name in STOPS:
        return stopped(reader, x)
    if name in SAME:
        return x
    if name in PARTED or name in (*ENTRYWISE, *NAMES):
        args = mapped(args, View, apart)
        x = args[0]
    if name in (*ENTRYWISE, *NAMES) and x.node.kind != "const":
        return _entrywise(reader, name, *args, **keywords)
    if any(reader.runs[0].tensors[r.number].is_complex() for r in refs((reader.call.arguments, reader.call.keywords))):
        return _linear(reader, reader.fail("complex numbers that no constant multiplies; give real ones"))
    views = list(leaves((args, keywords), View))
    if name not in RULES and all(v.node.kind == "const" or _whole(v) for v in views):
        return reader.constants()  # made of the whole numbers of the input
    if name not in RULES:
        todo = "add one (docs/extending.md), or give the equations of this model with --network"
        if name in COMPARISONS and any(call.name == "topk" for call in reader.runs[0].calls):
            todo = "return a loss made of it (a load of experts) beside the output, (logits, aux): it is left out; "
            todo += "where it chooses tokens, run every expert on every token, weighed by its gate"
        elif name in COMPARISONS:
            todo = (
                "write what it selects as one function of torch (relu, threshold, clamp) or with a constant mask, or "
            )
            todo += "give the equations of this model with --network"
        return _linear(reader, reader.fail(f"no rule for this call; {todo}"))
    try:
        try:
            return RULES[name](reader, *args, **keywords)
        except Cancels:
            raise
        except UsageError as error:
            again = mapped((args, keywords), View, apart)
            if [*leaves(again, View)] != views:
                return RULES[name](reader, *again[0], **again[1])
            return _linear(reader, error)
    except UsageError:
        raise
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        todo = "write it with other calls, or give the equations of this model with --network"
        raise reader.fail(f"called in a way that its rule does not read; {todo}") from error


def _linear(reader: Reader, error: UsageError) -> list[View]:
    """What a call that is not read makes, if it is linear along axes that do not grow.

    Raises:
        UsageError: the error that it is, if not.
    """
    try:
        return linear(reader)
    except (UsageError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        raise error from None


def _entrywise(reader: Reader, name: str, x: View, *rest: Any, **words: Any) -> View:
    assert reader.call is not None
    raw, named = reader.call.function, {k: v for k, v in words.items() if k != "inplace"}

    def exact(v: Tensor) -> Tensor:
        made: Tensor = raw(v.clone(), *rest, **named)
        return made

    return as_function(reader, name, x, exact)


def as_function(reader: Reader, name: str, x: View, exact: Entrywise) -> View:
    """A function of one tensor, entry by entry, told apart by its values."""
    if known := classified(exact, name):
        return _known(reader, name, known, x, exact)
    near = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    if name in ("relu6", "hardtanh") and torch.equal(exact(near), near.relu()):
        made = function_of(reader, "relu", x, exact)
        made.node.note = "relu6 is read as relu: its argument stays below 6"
        return made
    middle = float(exact(torch.zeros((), dtype=torch.float64)))
    if known := classified(lambda v: exact(v) - middle):
        made = _known(reader, name, known, x, lambda v: exact(v) - middle)
    elif generic(exact):
        linear = function_of(reader, "silu", x, lambda v: exact(v) - middle - torch.tanh(v))
        bounded = function_of(reader, "tanh", x, torch.tanh)
        made = added(reader, [_standing(linear, name, "silu and tanh", False), bounded])
    elif name in FUNCTIONS:
        raise reader.fail(f"its values are not of the class that functions.toml gives {name}")
    else:
        return reader.constants()[0] if x.node.given else function_of(reader, name, x, exact)
    return made if middle == 0 else shifted(reader, made, reader.numbers([middle] * reader.builds))


def _known(reader: Reader, name: str, known: str, x: View, exact: Entrywise) -> View:
    """A function that is read as one of the language, or as its negative."""
    if (sign := sign_of(exact)) < 0:
        made = _known(reader, name, known, x, lambda v: -exact(v))
        return scaled(reader, made, reader.numbers([sign] * reader.builds))
    return _standing(function_of(reader, known, x, exact), name, known, _values(known, exact))


def _values(known: str, exact: Entrywise) -> bool:
    """Are the values those of the function that is read?"""
    at = torch.linspace(-3, 3, 61, dtype=torch.float64)
    return bool(torch.allclose(exact(at), entrywise(FUNCTIONS[known])(at), atol=ALIKE))


def _standing(made: View, name: str, known: str, alike: bool) -> View:
    """A function that is read as another, with a note where their values differ."""
    if not alike:
        made.node.note = f"{name} is read as {known}{STANDS}"
    return made


def _whole(x: View) -> bool:
    return x.node.kind == "data" and not x.node.value.is_floating_point()
