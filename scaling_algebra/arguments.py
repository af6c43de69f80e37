"""Parses ``NAME=VALUE`` arguments, and checks arguments of public functions against their annotations.

So an argument of a wrong type raises a ``UsageError`` that names it, before the function uses it. The exception is a
float where an exact number is required, for which the function itself raises a TypeError.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from functools import cache, wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from .errors import UsageError, quote_value

P = ParamSpec("P")
R = TypeVar("R")


def parse_pairs(what: str, texts: Iterable[str], example: str) -> dict[str, str]:
    """Parses texts ``NAME=VALUE`` into a dict.

    Args:
        what: the option or argument that the texts belong to, for the message.
        texts: the texts.
        example: a correct text, for the message.

    Returns:
        The value of each name, without surrounding blanks.

    Raises:
        UsageError: a name has no value, or occurs twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = (x.strip() for x in text.partition("="))
        if not (name and value) or name in values:
            raise UsageError(f"cannot read {what} {text!r}; give each name once with its value, as {example}")
        values[name] = value
    return values


ENGINE_LOCK = threading.RLock()
"""Lock of the engine: its caches, and z3, support one thread only."""
_WORDS: dict[Any, str] = {
    str: "a text",
    int: "an integer",
    float: "a finite number",
    bool: "True or False",
    Fraction: "a Fraction",
    NoneType: "None",
}


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function so that an argument that does not match its annotation raises UsageError.

    Calls of wrapped functions run one at a time; other threads wait.

    Examples:
        >>> @check_arguments
        ... def twice(x: int) -> int:
        ...     return 2 * x
        >>> twice(2), twice(None)
        Traceback (most recent call last):
        ...
        scaling_algebra.errors.UsageError: twice: x is None; give an integer
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            bound = signature.bind(*arguments, **named).arguments
        except TypeError:
            return function(*arguments, **named)  # its TypeError names the missing or unknown argument
        for name, value in bound.items():
            if (parameter := signature.parameters[name]).kind is parameter.VAR_KEYWORD:
                each = [(key, x, _resolve_hints(function, name).get(key, Any)) for key, x in value.items()]
            elif parameter.kind is parameter.VAR_POSITIONAL:
                each = [(name, x, _resolve_hints(function, name)[name]) for x in value]
            else:
                each = [(name, value, _resolve_hints(function, name)[name])]
            for label, given, hint in each:
                if not _fits(given, hint):
                    raise UsageError(
                        f"{function.__qualname__}: {label} is {quote_value(given)}; give {_describe(hint)}"
                    )
        try:
            with ENGINE_LOCK:
                return function(*arguments, **named)
        except RecursionError:
            raise UsageError(
                f"{function.__qualname__}: the network is too deep; write equal layers once, with an index of axis L"
            ) from None

    return call


@cache
def _resolve_hints(function: Any, name: str) -> Mapping[str, Any]:
    """Evaluates the annotation of one argument of a function, which may be a text in the source.

    Returns:
        ``{name: annotation}``. For keyword arguments described by a TypedDict, the annotation of each of its keys.
    """
    try:
        text = {name: function.__annotations__.get(name, Any)}
        hints = get_type_hints(SimpleNamespace(__annotations__=text), function.__globals__)
        described = get_args(hints[name])
        return get_type_hints(described[0]) if described and is_typeddict(described[0]) else hints
    except NameError:  # a class that is only imported for type checkers
        return {name: Any}


def _fits(value: Any, hint: Any) -> bool:
    """Tests whether a value matches an annotation; True if this cannot be decided."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if hint in (None, NoneType):
        return value is None
    if origin is Literal:
        return any(value is part or (type(value) is type(part) and value == part) for part in parts)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Fraction:
        return isinstance(value, Fraction | float)  # the function reports that a float is inexact
    kind = origin or hint
    if not inspect.isclass(kind) or kind is object:
        return True
    try:
        if not isinstance(value, (tuple, list) if kind is tuple else kind):
            return False
    except TypeError:  # a protocol that isinstance does not support
        return True
    if kind is tuple and isinstance(value, tuple | list):
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return not parts or (len(each) == len(value) and all(map(_fits, value, each)))
    if isinstance(value, Mapping):
        return not parts or all(_fits(k, parts[0]) and _fits(x, parts[1]) for k, x in value.items())
    if issubclass(kind, Iterable) and parts:
        if isinstance(value, str | bytes):
            return parts[0] is str and isinstance(value, str)
        each = get_origin(parts[0]) or parts[0]
        if inspect.isclass(each) and issubclass(each, Mapping):  # records, which the function checks itself
            return True
        return not isinstance(value, Collection) or all(_fits(x, parts[0]) for x in value)
    return True


def _describe(hint: Any) -> str:
    """Describes an annotation in words for an error message, such as ``an integer``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and len(parts) == 2 and parts[0] == parts[1]:
        return f"two {_describe(parts[0]).split(maxsplit=1)[-1]}s"
    if origin is tuple:
        return f"({', '.join('...' if part is ... else _describe(part) for part in parts)})"
    kind = origin or hint
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return "a dict" + (f" of {_describe(parts[0])} to {_describe(parts[1])}" if parts else "")
    if inspect.isclass(kind) and issubclass(kind, Iterable) and parts:
        return f"a list of {_describe(parts[0]).split(maxsplit=1)[-1]}s"
    return _WORDS.get(hint) or f"a {getattr(hint, '__name__', 'value')}"
