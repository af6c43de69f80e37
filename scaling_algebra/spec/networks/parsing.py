"""One equation as a tree: names, functions and sums of products, as they are written; no name means anything yet.

Read next: ``grammar.py`` (what the names mean).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from scaling_algebra.errors import UsageError

GRAMMAR = r"""
start: NAME [letters] "=" sum
sum: product ("+" product)*
product: factor ("*"? factor)*
factor: NAME [letters]                 -> named
      | NAME "(" [sum [";" LETTER]] ")" -> called
letters: "[" LETTER ("," LETTER)* "]"
NAME: /[^\W\d]\w*/
LETTER: /[^\W\d_]/
%ignore /\s+/
"""


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
    from lark.exceptions import UnexpectedInput

    if text.count("(") > DEEP:
        raise _wrong(number, text, f"more than {DEEP} functions; give the inner ones equations of their own")
    try:
        out, terms = _builder().transform(_parser().parse(text))
    except UnexpectedInput as problem:
        token = getattr(problem, "token", None)
        at = len(text) if token is not None and token.type == "$END" else problem.pos_in_stream or 0
        raise _wrong(number, text, _unreadable(text, at)) from None
    return Equation(number, text, out, terms)


@cache
def _parser() -> Any:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr")


@cache
def _builder() -> Any:
    from lark import Transformer

    class Build(Transformer[Any, Any]):
        def letters(self, children: list[Any]) -> str:
            return "".join(map(str, children))

        def named(self, children: list[Any]) -> Named:
            return Named(str(children[0]), children[1])

        def called(self, children: list[Any]) -> Called:
            name, argument, over = (*children, None)[:3]
            return Called(str(name), argument or (), str(over or ""))

        product = sum = tuple

        def start(self, children: list[Any]) -> tuple[Named, Any]:
            return self.named(children), children[2]

    return Build()


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
