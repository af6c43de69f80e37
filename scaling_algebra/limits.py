"""Limits of input: length, size, digits. They are checked before any work, so that no input makes the program hang."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from .errors import UsageError, quote_value

LONGEST = 20
"""Maximum number of characters of a number."""
LARGEST = 10**6
"""Maximum numerator or denominator."""
STEPS, SEEDS, RATES, WORKERS = 1_000, 10**6, 1_000, 1_000
"""Maximum numbers of updates, of replicas at one size, of learning rates of a grid, and of parallel processes."""
LINE = 2_000
"""Maximum number of characters of a title or another text of one line."""
SIZE = 10**9
"""Maximum n, and maximum dimension."""
MEMORY = 10**15
"""Maximum number of bytes that can be requested."""

_RATIONAL = re.compile(r"[+-]?(?:[0-9]+(?:/[0-9]+|\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9])?")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def parse_rational(value: Any) -> Fraction:
    """Parses an exact number: ``1``, ``"-1/2"``, ``"0.5"``, a Fraction.

    Raises:
        ValueError: the value is anything else, such as a float or a boolean; it has more than ``LONGEST`` characters or
            digits that are not ASCII; or its numerator or denominator exceeds ``LARGEST``. The message continues a
            sentence about the value, such as "the rate of N is x, not a rational number".

    Examples:
        >>> parse_rational("-1/2"), parse_rational(3)
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
        raise ValueError(f"too large: numerator and denominator may be at most {LARGEST}")
    return number


def parse_integer(text: str) -> int:
    """Parses an integer in ASCII digits.

    Raises:
        ValueError: the text is no integer, or has more than ``LONGEST`` characters.
    """
    if len(text) > LONGEST or not _WHOLE.fullmatch(text.strip()):
        raise ValueError("not an integer")
    return int(text)


def parse_update(text: str) -> int:
    """Parses a number of updates, as in ``h3@2``.

    Raises:
        ValueError: the text is no integer from 0 to ``STEPS``.
    """
    if not 0 <= (number := parse_integer(text)) <= STEPS:
        raise ValueError(f"not a number from 0 to {STEPS}")
    return number


def parse_real(text: str) -> float:
    """Parses a finite number in ASCII digits.

    Raises:
        ValueError: the text is no finite number, or has more than ``LONGEST`` characters.
    """
    if len(text) > LONGEST or not text.isascii() or "_" in text or not math.isfinite(number := float(text)):
        raise ValueError("not a finite number")
    return number


def check_line(label: str, text: str, most: int = LINE) -> str:
    """Checks that a text is one printable line and returns it. Line breaks, NUL and marks of text direction are
    refused.

    Args:
        label: what the text is, for the message.
        text: the text.
        most: maximum number of characters.

    Raises:
        UsageError: the text is too long, or has a character that cannot be printed.
    """
    if len(text) > most:
        raise UsageError(f"{label} has {len(text)} characters; give at most {most}")
    if strange := next((x for x in text if not x.isprintable()), ""):
        raise UsageError(f"{label} holds {strange!a}; give one line of printable characters")
    return text


def check_range(label: str, value: int, least: int, most: int) -> int:
    """Checks that a value is an integer from ``least`` to ``most`` and returns it.

    Raises:
        UsageError: the value is no integer in this range; the message begins with ``label``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{label} is {quote_value(value)}; give an integer")
    if value < least:
        raise UsageError(f"{label} is {quote_value(value)}; give {least} or more")
    if value > most:
        raise UsageError(f"{label} is {quote_value(value)}; give at most {most}")
    return value
