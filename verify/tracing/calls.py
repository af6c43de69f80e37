"""Names of torch calls, and the rules that read them: a call belongs here, in one row, or nowhere.

Names of functions, methods and aten are one: ``__radd__``, ``add_`` and ``aten::add`` are ``add``. A function of one
tensor that keeps its shape needs no row (``regions.py``); any other call without one is taken apart into calls of aten
where these have rows (``recording.py``). Read next: ``table.py`` (reads a call), ``docs/extending.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
ALIASES = {
    "radd": "add", "rmul": "mul", "truediv": "div", "rtruediv": "rdiv", "true_divide": "div", "iadd": "add",
    "imul": "mul", "isub": "sub", "itruediv": "div", "idiv": "div", "multiply": "mul", "divide": "div",
    "subtract": "sub", "rmatmul": "matmul", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "unsafe_view": "view", "imatmul": "matmul",
    "greater": "gt",
    "unsafe_split": "split", "unsafe_chunk": "chunk",
}  # fmt: skip
SAME = {
    "to", "float", "type_as", "contiguous", "clone", "dropout", "double", "half", "bfloat16", "type", "cpu",
    "alias", "requires_grad", "long", "int", "lift_fresh", "native_dropout", "to_copy", "pos",
    "view_as_complex", "view_as_real",
}  # fmt: skip


APART = {"group_norm", "native_group_norm", "glu"}
"""Functions of one tensor along parts of an axis, which are taken apart."""


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


MAKERS = ("zeros", "ones", "empty", "full", "rand", "arange", "new_")
"""Beginnings of names whose result depends on no argument's values."""


def ruled(name: str) -> bool:
    """Is a call of this name read by a rule, whatever its arguments are?"""
    name = plain(name)
    return name in RULES or name in SAME or name in ("rsub", "rdiv") or name.startswith(MAKERS)
