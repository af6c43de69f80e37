"""Reads a torch call as equations, by its rule in ``rule_table.py``.

A rule gets the reader and the arguments of the call, with views in place of tensors, and returns the views of its
results. Read next: ``rules.py``, ``data_movement.py``, ``routing.py`` (the rules), ``docs/extending.md`` (how to add
one).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from scaling_algebra.errors import UsageError

from .elementwise import PossibleCancellation, convert_cat_to_sum
from .graph import View
from .linear_probe import read_linear_map
from .nodes import DataNode
from .reader import Reader, stop_gradient
from .recording import GRADIENT_STOPS, iterate_leaves, map_leaves
from .rule_table import FACTORY_PREFIXES, IDENTITY_CALLS, RULES, normalise_call_name

COMPARISON_CALLS = {"gt", "lt", "ge", "le", "eq", "ne"}
"""Comparisons, which have no gradient."""
CALLS_ON_SUMMED_PARTS = {"add", "sub"}
"""Calls that read a concatenation along an axis that grows as a sum of its parts."""


def apply_rule(reader: Reader, args: list[Any], keywords: Any) -> Any:
    """Reads a torch call by its rule, a function that is registered in ``rule_table.py``; returns the views of its
    results.

    Args:
        reader: the reader, whose ``call`` is the call.
        args: its positional arguments, with views in place of tensors.
        keywords: its keyword arguments, likewise.

    Raises:
        Unreadable: the call has no rule, or its rule does not cover these arguments.
    """
    assert reader.call is not None
    name = normalise_call_name(reader.call.name)
    if name in ("rsub", "rdiv"):
        name, args = name[1:], args[::-1]
    reader.rule_name, apart = name, partial(convert_cat_to_sum, reader)
    x: Any = args[0] if args else None
    if name.startswith(FACTORY_PREFIXES) or not any(v.numel() for values in reader.values for v in values):
        return reader.make_result_constants()
    if reader.call.name in GRADIENT_STOPS:
        return stop_gradient(reader, x)
    if name in IDENTITY_CALLS:
        return x
    if name in CALLS_ON_SUMMED_PARTS:
        args = map_leaves(args, View, apart)
    if any(reader.runs[0].tensors[r.number].is_complex() for r in reader.call.iterate_inputs()):
        return _try_linear_map(
            reader, reader.fail("computes with complex numbers other than by a constant factor; use real numbers")
        )
    views = list(iterate_leaves((args, keywords), View))
    if name not in RULES and all(v.is_constant or _is_integer_input(v) for v in views):
        return reader.make_result_constants()  # computed from integer inputs alone
    if name not in RULES:
        todo = "add one (docs/extending.md), or give the equations of this model with --network"
        if name in COMPARISON_CALLS and any(call.name == "topk" for call in reader.runs[0].calls):
            todo = "if it is part of a loss (a load of experts), return that next to the output, (logits, aux); "
            todo += "if it selects tokens, run every expert on every token and multiply by its gate"
        elif name in COMPARISON_CALLS:
            todo = "replace the selection by one torch function (relu, threshold, clamp) or a constant mask, or "
            todo += "give the equations of this model with --network"
        return _try_linear_map(reader, reader.fail(f"no rule for this call; {todo}"))
    try:
        try:
            return RULES[name](reader, *args, **keywords)
        except PossibleCancellation:
            raise
        except UsageError as error:
            again = map_leaves((args, keywords), View, apart)
            if [*iterate_leaves(again, View)] != views:
                return RULES[name](reader, *again[0], **again[1])
            return _try_linear_map(reader, error)
    except UsageError:
        raise
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        todo = "use other calls, or give the equations of this model with --network"
        raise reader.fail(f"its rule does not cover these arguments; {todo}") from error


def _try_linear_map(reader: Reader, error: UsageError) -> list[View]:
    """Reads the current call as a linear map along axes of fixed size (``linear_probe.py``), if it is one.

    Args:
        reader: the reader.
        error: the error to raise if it is not.

    Raises:
        UsageError: ``error``.
    """
    try:
        return read_linear_map(reader)
    except (UsageError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        raise error from None


def _is_integer_input(x: View) -> bool:
    """Returns whether a tensor is the integer input of the module, such as token ids."""
    return isinstance(x.node, DataNode) and not x.node.value.is_floating_point()
