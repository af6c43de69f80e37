"""Names of torch calls, and the table of the rules that read them as equations.

Functions, methods and aten operators share one name: ``__radd__``, ``add_`` and ``aten::add`` are all ``add``. A
function of one tensor that keeps its shape needs no rule, because it is recognised by its values
(``function_recognition.py``). Any other call without a rule is decomposed into aten calls that have one
(``recording.py``). Read next: ``rule_application.py`` (applies the rules), ``docs/extending.md`` (how to add one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
"""The rule of each call, by its name after ``normalise_call_name``; ``register_rule`` adds to it."""
ALIASES = {
    "radd": "add", "rmul": "mul", "truediv": "div", "rtruediv": "rdiv", "true_divide": "div", "iadd": "add",
    "imul": "mul", "isub": "sub", "itruediv": "div", "idiv": "div", "multiply": "mul", "divide": "div",
    "subtract": "sub", "rmatmul": "matmul", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "unsafe_view": "view", "imatmul": "matmul",
    "greater": "gt",
    "unsafe_split": "split", "unsafe_chunk": "chunk",
}  # fmt: skip
"""Other names of calls, each with the name that has the rule."""
IDENTITY_CALLS = {
    "to", "float", "type_as", "contiguous", "clone", "dropout", "double", "half", "bfloat16", "type", "cpu",
    "alias", "requires_grad", "long", "int", "lift_fresh", "native_dropout", "to_copy", "pos",
    "view_as_complex", "view_as_real",
}  # fmt: skip
"""Calls that return their argument unchanged, as far as equations are concerned."""

DECOMPOSED_CALLS = {"group_norm", "native_group_norm", "glu"}
"""Functions of one tensor that act on parts of an axis; they are decomposed into aten calls."""


def register_rule(*names: str) -> Callable[[Rule], Rule]:
    """Returns a decorator that registers a function as the rule by which calls with these names are read as equations.

    Examples:
        ``@register_rule("matmul", "bmm")`` above a function adds it to ``RULES`` twice.
    """

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def normalise_call_name(name: str) -> str:
    """Returns the name by which the rule of a call is looked up: without underscores, and with aliases resolved.

    Examples:
        >>> normalise_call_name("__radd__"), normalise_call_name("mul_")
        ('add', 'mul')
    """
    name = name.strip("_") if name.startswith("__") or name.startswith("_") else name.rstrip("_")
    return ALIASES.get(name, name)


FACTORY_PREFIXES = ("zeros", "ones", "empty", "full", "rand", "arange", "new_")
"""Prefixes of factory functions, whose result does not depend on the values of any tensor."""


def has_rule(name: str) -> bool:
    """Tests whether a call of this name is read by a rule, whatever its arguments are."""
    name = normalise_call_name(name)
    return name in RULES or name in IDENTITY_CALLS or name in ("rsub", "rdiv") or name.startswith(FACTORY_PREFIXES)
