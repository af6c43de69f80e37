"""Parses one equation into a tree of names, function calls and sums of products, without looking up any name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scaling_algebra.errors import UsageError

NAME, LETTER, SPACE = re.compile(r"[^\W\d]\w*"), re.compile(r"[^\W\d_]"), re.compile(r"\s*")


LONG = 100
"""Maximum number of characters of an equation that an error quotes."""
DEEP = 50
"""Maximum number of function calls in one equation."""


@dataclass(frozen=True)
class NamedTerm:
    """A name in an equation, with its indices as written; the indices are None if no brackets follow the name."""

    name: str
    indices: str | None

    def __str__(self) -> str:
        return write_indexed(self.name, self.indices or "")


@dataclass(frozen=True)
class FunctionCall:
    """A function call in an equation, such as ``softmax(psi[i]; i)``.

    Attributes:
        name: name of the function.
        argument: the terms of the sum in its parentheses; empty for none.
        over: the index after the semicolon; empty for none.
    """

    name: str
    argument: tuple[Factors, ...]
    over: str

    def __str__(self) -> str:
        inside = " + ".join(" ".join(map(str, factors)) for factors in self.argument)
        return f"{self.name}({inside}{f'; {self.over}' if self.over else ''})"


Factors = tuple["NamedTerm | FunctionCall", ...]
"""A product as written: its factors."""


@dataclass(frozen=True)
class Equation:
    """One equation.

    Attributes:
        number: the number of its line.
        text: the line.
        out: the signal on its left side.
        terms: the terms of the sum on its right side.
    """

    number: int
    text: str
    out: NamedTerm
    terms: tuple[Factors, ...]

    def wrong(self, what: str) -> UsageError:
        """Returns an error that quotes the equation."""
        return _equation_error(self.number, self.text, what)


def write_indexed(name: str, indices: str) -> str:
    """Writes a name with its indices: ``W2[i,k,a]``."""
    return f"{name}[{','.join(indices)}]" if indices else name


def _equation_error(number: int, text: str, what: str) -> UsageError:
    """Returns the error ``equation NUMBER, "TEXT": WHAT``."""
    short = text if len(text) <= LONG else f"{text[:LONG]}..."
    return UsageError(f'equation {number}, "{short}": {what}')


def parse_equation(number: int, text: str) -> Equation:
    """Parses one line of the text.

    Raises:
        UsageError: one line that says where the equation cannot be read.
    """
    if text.count("(") > DEEP:
        raise _equation_error(
            number, text, f"functions are nested more than {DEEP} deep; give the inner ones equations of their own"
        )
    reader = _TokenReader(text)
    try:
        return Equation(number, text, *reader.parse_equation())
    except _Unreadable:
        raise _equation_error(number, text, _explain_syntax(text, reader.at)) from None


class _Unreadable(Exception):
    """Raised if the text does not fit the grammar at the position that the reader has reached."""


class _TokenReader:
    """Recursive-descent parser of one line.

    equation: NAME [indices] "=" sum
    sum: product ("+" product)*
    product: factor ("*"? factor)*
    factor: NAME [indices] | NAME "(" [sum [";" INDEX]] ")"
    indices: "[" INDEX ("," INDEX)* "]"

    Attributes:
        text: the line.
        at: position of the next token.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._skip(0)

    def parse_equation(self) -> tuple[NamedTerm, tuple[Factors, ...]]:
        """Parses the whole line into its left and right side."""
        out = NamedTerm(self._parse_word(NAME), self._parse_letters())
        self._require("=")
        terms = self._parse_sum()
        if self.at < len(self.text):
            raise _Unreadable
        return out, terms

    def _parse_sum(self) -> tuple[Factors, ...]:
        terms = [self._parse_product()]
        while self._take("+"):
            terms.append(self._parse_product())
        return tuple(terms)

    def _parse_product(self) -> Factors:
        factors = [self._parse_factor()]
        while self._take("*") or NAME.match(self.text, self.at):
            factors.append(self._parse_factor())
        return tuple(factors)

    def _parse_factor(self) -> NamedTerm | FunctionCall:
        name = self._parse_word(NAME)
        if not self._take("("):
            return NamedTerm(name, self._parse_letters())
        if self._take(")"):
            return FunctionCall(name, (), "")
        argument, over = self._parse_sum(), self._parse_word(LETTER) if self._take(";") else ""
        self._require(")")
        return FunctionCall(name, argument, over)

    def _parse_letters(self) -> str | None:
        if not self._take("["):
            return None
        indices = self._parse_word(LETTER)
        while self._take(","):
            indices += self._parse_word(LETTER)
        self._require("]")
        return indices

    def _parse_word(self, kind: re.Pattern[str]) -> str:
        found = kind.match(self.text, self.at)
        if not found:
            raise _Unreadable
        self._skip(found.end())
        return found[0]

    def _take(self, mark: str) -> bool:
        """Reads a character such as ``=`` or ``+`` if it is next, and returns whether it was."""
        if not self.text.startswith(mark, self.at):
            return False
        self._skip(self.at + 1)
        return True

    def _require(self, mark: str) -> None:
        if not self._take(mark):
            raise _Unreadable

    def _skip(self, at: int) -> None:
        found = SPACE.match(self.text, at)
        self.at = found.end() if found else at


HINTS = {
    "+=": "write the whole sum, such as h2[a] = h1[a] + V[a,b] h1[b]",
    "-": "signs change no exponent, so write +; differences that cancel are not supported",
    "(": "parentheses are only for functions; give their content an equation of its own",
    "/": "there is no division; write a multiplier, such as alpha, whose power is then derived",
    "^": "there are no powers; write the factor several times",
    "*": "write one * between two factors, and a power as a factor that is repeated",
    ",": "write the index that a function acts along after a semicolon, as in softmax(psi[i,k]; k)",
    "=": "write one = in an equation, and one equation on a line",
    "": "an equation consists of names with indices, +, * and functions",
}
"""Advice about text that cannot be read, by its beginning."""


def _explain_syntax(text: str, at: int) -> str:
    """Says at which place an equation cannot be read, and what to do."""
    before, rest = text[:at].rstrip(), text[at:].lstrip()
    word = re.match(r"\w+|\+=|.", rest)
    last = re.search(r"\S+$", before)
    here = f"cannot read {word[0]!r}" if word else "something is missing"
    where = f"{here} after {last[0]!r}" if last else f"{here} at the beginning"
    if before.count("[") > before.count("]"):
        hint = "write indices as single characters with commas between them, as in W2[i,k,a]"
    elif rest[:1].isdigit():
        hint = "constants change no exponent; leave them out"
    elif "=" not in before and not rest.startswith("+="):
        hint = "write one signal on the left, as in h1[a] = W1[a,x] data[x]"
    elif not rest:
        hint = "write the whole equation on one line, as in h1[a] = W1[a,x] data[x]"
    else:
        hint = next((hint for mark, hint in HINTS.items() if rest.startswith(mark)), HINTS[""])
    return f"{where}; {hint}"
