"""A torch call as equations, by its row of ``calls.py``.

A rule gets the reader and the arguments of the call, its tensors as views, and returns the views of its results. Read
next: ``rules.py``, ``layout.py``, ``routing.py`` (the rows), ``docs/extending.md`` (how to add one).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from scaling_algebra.errors import UsageError

from .nodes import DataNode
from .calls import MAKERS, RULES, SAME, plain
from .elementwise import Cancels, cat_as_sum
from .fixed import linear
from .graph import View
from .reading import Reader, stopped
from .recording import STOPS, leaves, mapped, refs

COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne"}
"""Functions without a gradient."""
PARTED = {"add", "sub"}
"""Calls that take a concatenation along an axis that grows as a sum of its parts."""


def apply(reader: Reader, args: list[Any], keywords: Any) -> Any:
    """The views of a call's results.

    Raises:
        Unreadable: no rule, or one that does not hold here.
    """
    assert reader.call is not None
    name = plain(reader.call.name)
    if name in ("rsub", "rdiv"):
        name, args = name[1:], args[::-1]
    reader.name, apart = name, partial(cat_as_sum, reader)
    x: Any = args[0] if args else None
    if name.startswith(MAKERS) or not any(v.numel() for values in reader.values for v in values):
        return reader.constants()
    if reader.call.name in STOPS:
        return stopped(reader, x)
    if name in SAME:
        return x
    if name in PARTED:
        args = mapped(args, View, apart)
    if any(reader.runs[0].tensors[r.number].is_complex() for r in refs((reader.call.arguments, reader.call.keywords))):
        return _linear(reader, reader.fail("complex numbers that no constant multiplies; give real ones"))
    views = list(leaves((args, keywords), View))
    if name not in RULES and all(v.is_constant or _whole(v) for v in views):
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


def _whole(x: View) -> bool:
    return isinstance(x.node, DataNode) and not x.node.value.is_floating_point()
