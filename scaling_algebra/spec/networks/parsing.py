"""One equation as a tree: names, functions and sums of products, as they are written; no name means anything yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaling_algebra.errors import UsageError

NAME, LETTER, SPACE = re.compile(r"[^\W\d]\w*"), re.compile(r"[^\W\d_]"), re.compile(r"\s*")


LONG = 100
"""Characters of an equation that an error quotes."""
DEEP = 50
"""Functions in one equation, at most."""


@dataclass(frozen=True)
class Named:
    """A name with its letters as written; None for none."""

    name: str
    letters: str | None

    def __str__(self) -> str:
        return indexed(self.name, self.letters or "")


@dataclass(frozen=True)
class Called:
    """A function of an expression."""

    name: str
    argument: tuple[Factors, ...]
    over: str

    def __str__(self) -> str:
        inside = " + ".join(" ".join(map(str, factors)) for factors in self.argument)
        return f"{self.name}({inside}{f'; {self.over}' if self.over else ''})"


Factors = tuple["Named | Called", ...]
"""A product, as it is written."""


@dataclass(frozen=True)
class Equation:
    """A line of the text: the signal on its left, and the sum of products on its right."""

    number: int
    text: str
    out: Named
    terms: tuple[Factors, ...]

    def wrong(self, what: str) -> UsageError:
        return _wrong(self.number, self.text, what)


def indexed(name: str, letters: str) -> str:
    """``W2[i,k,a]``."""
    return f"{name}[{','.join(letters)}]" if letters else name


def _wrong(number: int, text: str, what: str) -> UsageError:
    short = text if len(text) <= LONG else f"{text[:LONG]}..."
    return UsageError(f'equation {number}, "{short}": {what}')


def parsed(number: int, text: str) -> Equation:
    """One line of the text.

    Raises:
        UsageError: one line that says where it cannot be read.
    """
    if text.count("(") > DEEP:
        raise _wrong(number, text, f"more than {DEEP} functions; give the inner ones equations of their own")
    reader = _TokenReader(text)
    try:
        return Equation(number, text, *reader.equation())
    except _Unreadable:
        raise _wrong(number, text, _unreadable(text, reader.at)) from None


class _Unreadable(Exception):
    """The text does not fit the grammar where the reader stands."""


class _TokenReader:
    """Reads one line from left to right.

    equation: NAME [letters] "=" sum
    sum: product ("+" product)*
    product: factor ("*"? factor)*
    factor: NAME [letters] | NAME "(" [sum [";" LETTER]] ")"
    letters: "[" LETTER ("," LETTER)* "]"

    Attributes:
        at: characters that are read; white space goes with what it follows.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._skip(0)

    def equation(self) -> tuple[Named, tuple[Factors, ...]]:
        """Both sides of the whole line."""
        out = Named(self._word(NAME), self._letters())
        self._need("=")
        terms = self._sum()
        if self.at < len(self.text):
            raise _Unreadable
        return out, terms

    def _sum(self) -> tuple[Factors, ...]:
        terms = [self._product()]
        while self._take("+"):
            terms.append(self._product())
        return tuple(terms)

    def _product(self) -> Factors:
        factors = [self._factor()]
        while self._take("*") or NAME.match(self.text, self.at):
            factors.append(self._factor())
        return tuple(factors)

    def _factor(self) -> Named | Called:
        name = self._word(NAME)
        if not self._take("("):
            return Named(name, self._letters())
        if self._take(")"):
            return Called(name, (), "")
        argument, over = self._sum(), self._word(LETTER) if self._take(";") else ""
        self._need(")")
        return Called(name, argument, over)

    def _letters(self) -> str | None:
        if not self._take("["):
            return None
        letters = self._word(LETTER)
        while self._take(","):
            letters += self._word(LETTER)
        self._need("]")
        return letters

    def _word(self, kind: re.Pattern[str]) -> str:
        found = kind.match(self.text, self.at)
        if not found:
            raise _Unreadable
        self._skip(found.end())
        return found[0]

    def _take(self, mark: str) -> bool:
        """Reads a mark if it is next."""
        if not self.text.startswith(mark, self.at):
            return False
        self._skip(self.at + 1)
        return True

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            raise _Unreadable

    def _skip(self, at: int) -> None:
        found = SPACE.match(self.text, at)
        self.at = found.end() if found else at


HINTS = {
    "+=": "write the whole sum, such as h2[a] = h1[a] + V[a,b] h1[b]",
    "-": "signs change no exponent, so write +; a difference that cancels is not covered",
    "(": "parentheses belong to functions; give what is inside an equation of its own",
    "/": "there is no division; name a multiplier, such as alpha, and its power is derived",
    "^": "there are no powers; write the factor twice",
    "*": "one * between two factors, and a power as the factor twice",
    ",": "the letter that a function goes along stands behind a semicolon, as in softmax(psi[i,k]; k)",
    "=": "one = in an equation, and one equation on a line",
    "": "an equation has names with letters, +, * and functions",
}
"""Advice about text that cannot be read, by its beginning."""


def _unreadable(text: str, at: int) -> str:
    """The place where an equation cannot be read, and what to do."""
    before, rest = text[:at].rstrip(), text[at:].lstrip()
    word = re.match(r"\w+|\+=|.", rest)
    last = re.search(r"\S+$", before)
    here = f"cannot read {word[0]!r}" if word else "something is missing"
    where = f"{here} after {last[0]!r}" if last else f"{here} at the beginning"
    if before.count("[") > before.count("]"):
        hint = "letters are single characters with commas between them, as in W2[i,k,a]"
    elif rest[:1].isdigit():
        hint = "constants change no exponent; leave them out"
    elif "=" not in before and not rest.startswith("+="):
        hint = "one signal stands on the left, as in h1[a] = W1[a,x] data[x]"
    elif not rest:
        hint = "an equation is on one line, as in h1[a] = W1[a,x] data[x]"
    else:
        hint = next((hint for mark, hint in HINTS.items() if rest.startswith(mark)), HINTS[""])
    return f"{where}; {hint}"
