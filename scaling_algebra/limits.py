"""Limits of input: length, size, digits. Checked before any work, so that nothing hangs."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from .errors import UsageError, shown

LONGEST = 20
"""Characters of one number."""
LARGEST = 10**6
"""The largest numerator or denominator."""
STEPS, SEEDS, RATES, WORKERS = 1_000, 10**6, 1_000, 1_000
"""Most updates, replicas at one size, learning rates of a grid, and processes at once."""
LINE = 2_000
"""Characters of a title, or of another text of one line."""
SIZE = 10**9
"""Largest n, and largest dimension."""
MEMORY = 10**15
"""Most bytes that can be asked for."""

_RATIONAL = re.compile(r"[+-]?(?:[0-9]+(?:/[0-9]+|\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9])?")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def rational(value: Any) -> Fraction:
    """An exact number as people give it: ``1``, ``"-1/2"``, ``"0.5"``, a Fraction.

    Raises:
        ValueError: anything else, floats and booleans included; more than ``LONGEST`` characters; digits that are not
            ASCII; a numerator or denominator above ``LARGEST``. The message ends a sentence.

    Examples:
        >>> rational("-1/2"), rational(3)
        (Fraction(-1, 2), Fraction(3, 1))
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) > LONGEST:
            raise ValueError(f"longer than {LONGEST} characters")
        if not _RATIONAL.fullmatch(text):
            raise ValueError("not a rational number")
        value = text
    elif isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise ValueError("not a rational number")
    try:
        number = Fraction(value)
    except ZeroDivisionError:
        raise ValueError("not a rational number") from None
    if max(abs(number.numerator), number.denominator) > LARGEST:
        raise ValueError(f"beyond what is exact here: numerator and denominator go up to {LARGEST}")
    return number


def whole(text: str) -> int:
    """An integer in ASCII digits.

    Raises:
        ValueError: anything else, or more than ``LONGEST`` characters.
    """
    if len(text) > LONGEST or not _WHOLE.fullmatch(text.strip()):
        raise ValueError("not an integer")
    return int(text)


def update(text: str) -> int:
    """A number of updates, as in ``h3@2``.

    Raises:
        ValueError: anything but an integer from 0 to ``STEPS``.
    """
    if not 0 <= (number := whole(text)) <= STEPS:
        raise ValueError(f"not a number from 0 to {STEPS}")
    return number


def real(text: str) -> float:
    """A finite number in ASCII digits.

    Raises:
        ValueError: anything else, or more than ``LONGEST`` characters.
    """
    if len(text) > LONGEST or not text.isascii() or "_" in text or not math.isfinite(number := float(text)):
        raise ValueError("not a finite number")
    return number


def line(label: str, text: str, most: int = LINE) -> str:
    """A text of one line that can be printed: no line break, NUL, or mark that turns the text around.

    Raises:
        UsageError: anything else, or more than ``most`` characters.
    """
    if len(text) > most:
        raise UsageError(f"{label} has {len(text)} characters; give at most {most}")
    if strange := next((x for x in text if not x.isprintable()), ""):
        raise UsageError(f"{label} holds {strange!a}; it must be one line of characters that can be printed")
    return text


def within(label: str, value: int, least: int, most: int) -> int:
    """A count between two limits.

    Raises:
        UsageError: it is no integer, or beyond them.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{label} is {shown(value)}; give an integer")
    if value < least:
        raise UsageError(f"{label} is {shown(value)}; give {least} or more")
    if value > most:
        raise UsageError(f"{label} is {shown(value)}; give at most {most}")
    return value
