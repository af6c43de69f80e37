"""How a piece of text reads: as rich text, as plain text; and what a formula is in plain text and in HTML.

Read next: ``writers`` (who asks).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape, unescape
from html.entities import html5

from scaling_algebra.spec.powers import Power, exponent_text

from .blocks import Cell, Code, Marked, Piece, Size, Text, literal

NOTHING = "\N{EN DASH}"


def rich(piece: Piece | None) -> str:
    """A piece as rich text."""
    if piece is None:
        return NOTHING
    if isinstance(piece, str):
        return piece
    if isinstance(piece, Text):
        return piece.rich
    if isinstance(piece, Power):
        return f"${piece.latex}$"
    if isinstance(piece, Marked):
        return rf"$({piece.power.latex})^{{\mathrm{{{piece.mark}}}}}$"
    if isinstance(piece, Size):
        e = piece.exponent
        return "$0$" if e is None else rf"$\Theta({'n' if e == 1 else f'n^{{{e}}}' if e else '1'})$"
    return literal(piece.text) if isinstance(piece, Code) else f"${piece}$"


def plain(piece: Piece | None) -> str:
    """A piece as plain text."""
    if piece is None:
        return "-"
    if isinstance(piece, str):
        return "".join(_PLAIN.formula(text) if formula else text for formula, text in spans(piece))
    if isinstance(piece, Text):
        return piece.plain
    if isinstance(piece, Marked):
        return f"{piece.power} ({piece.mark})"
    if isinstance(piece, Size):
        return "0" if piece.exponent is None else f"n^{exponent_text(piece.exponent)}"
    return piece.text if isinstance(piece, Code) else str(piece)


def html(piece: Piece | None) -> str:
    """A piece as HTML: formulas are set with characters, subscripts and superscripts."""
    if isinstance(piece, Code):
        return f"<code>{escape(piece.text)}</code>"
    return "".join(_HTML.formula(text) if formula else escape(text) for formula, text in spans(rich(piece)))


def width(piece: Piece | None) -> int:
    """About how many characters wide it is when its formulas are set."""
    return len(unescape(re.sub(r"<.*?>", "", html(piece))))


def joined(cell: Cell, show: Callable[[Piece | None], str], bar: str = "") -> str:
    """The values of a cell, each once."""
    return (bar or cell.bar).join(show(value) for value in cell.shown)


def spans(text: str) -> Iterator[tuple[bool, str]]:
    """Rich text in pieces: is it a formula, and what stands there."""
    for k, part in enumerate(re.split(r"(?<!\\)\$(.*?)(?<!\\)\$", text)):
        if part:
            yield bool(k % 2), part if k % 2 else part.replace(r"\$", "$")


# from LaTeX ----------------------------------------------------------------------------------------------------

_PLAIN_NAMES = {
    "in": " in ", "partial": "d", "infty": "inf", "nabla": "grad ", "asymp": " ~ ", "sim": " ~ ", "simeq": " ~ ",
    "approx": " ~ ", "propto": " ~ ", "leq": " <= ", "geq": " >= ", "neq": " != ", "ll": " << ", "gg": " >> ",
    "lesssim": " <~ ", "to": " -> ", "rightarrow": " -> ", "Rightarrow": " => ", "langle": "<", "rangle": ">",
    "lfloor": "floor(", "rfloor": ")", "mid": "|", "cdot": " ", "times": " x ", "top": "T", "prime": "'", "star": "*",
    "ldots": "...", "dots": "...", "ell": "l", "quad": "  ", "Delta": "d", "epsilon": "eps", "varepsilon": "eps",
}  # fmt: skip
"""LaTeX commands that plain text does not write with their names."""
_ENTITIES = {
    "asymp": "asympeq", "partial": "part", "to": "rarr", "infty": "infin", "neq": "ne", "cdot": "middot",
    "star": "ast", "ldots": "hellip", "dots": "hellip", "quad": "emsp", "sqrt": "radic", "sup": "", "in": "isin",
}  # fmt: skip
"""LaTeX commands whose HTML entity has another name, or is something else."""
_MARKS = {"dot": "\u0307", "hat": "\u0302", "widehat": "\u0302", "tilde": "\u0303", "widetilde": "\u0303"}
_MARKS |= {"bar": "\u0304", "overline": "\u0304", "mathring": "\u030a"}
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


@dataclass(frozen=True)
class Printer:
    """How a format writes the parts of a formula.

    Attributes:
        sign: a character. symbol: what a LaTeX command of this name stands for.
        script: what stands below (``_``) or above (``^``). accent: a letter with the mark of this name.
    """

    sign: Callable[[str], str]
    symbol: Callable[[str], str]
    script: Callable[[str, str], str]
    accent: Callable[[str, str], str]

    def formula(self, tex: str) -> str:
        """A formula that is written in LaTeX."""
        return re.sub(" {2,}", " ", self._sequence(_TOKEN.findall(tex))).strip(" ")

    def _sequence(self, tokens: list[str]) -> str:
        """Items up to the end of the group; their tokens are used up."""
        out = ""
        while tokens and tokens[0] != "}":
            mark = tokens.pop(0) if tokens[0] in "_^" else ""
            item = self._item(tokens)
            out += self.script(mark, item) if mark else item
        return out

    def _item(self, tokens: list[str]) -> str:
        """One token with its argument."""
        if not tokens:
            return ""
        token = tokens.pop(0)
        if token == "{":
            inside = self._sequence(tokens)
            del tokens[:1]
            return inside
        if not token.startswith("\\") or len(token) == 1:
            return self.sign(token)
        name = token[1:].strip() or " "
        if name == "frac":
            return f"({self._item(tokens)})/({self._item(tokens)})"
        if name == "sqrt":
            return f"{self.symbol(name)}({self._item(tokens)})"
        if name in _MARKS:
            return self.accent(self._item(tokens), name)
        if name in ("mathrm", "text", "mathbf", "mathbb", "mathcal"):
            return ""  # what it is about follows as a group
        if not name.isalpha():
            return {",": " ", ";": " ", "!": ""}.get(name, self.sign(name))
        if tokens[:1] == [" "] and not _apart(name):
            del tokens[:1]  # a letter, and a space that only ends its name
        return self.symbol(name)


def _apart(name: str) -> bool:
    """Whether a command stands between spaces."""
    return _PLAIN_NAMES.get(name, "").startswith(" ")


def _entity(name: str) -> str:
    entity = f"{_ENTITIES.get(name, name)};"
    shown = f"&{entity}" if entity in html5 else name
    return f" {shown} " if _apart(name) else shown


def _tagged(mark: str, item: str) -> str:
    tag = "sub" if mark == "_" else "sup"
    return f"<{tag}>{item}</{tag}>"


_PLAIN = Printer(
    sign=str,
    symbol=lambda name: _PLAIN_NAMES.get(name, name),
    script=lambda mark, item: mark + (item if re.fullmatch(r"-?\w+|'", item) else f"({item})"),
    accent=lambda item, name: item + "'" if name == "dot" else item,
)
_HTML = Printer(escape, _entity, _tagged, lambda item, name: item + _MARKS[name])


# to LaTeX ------------------------------------------------------------------------------------------------------

_EXPONENT = r"\^(?:\([^()]*\)|-?[\w/]+)"
_SCRIPTS = rf"(?:_[A-Za-z0-9]+(?:_[a-z]+)*)?'*(?:\[[^\]]*\])?(?:{_EXPONENT})?"
_NAME = re.compile(rf"(d(?=[WQhgpf])|)([A-Za-z]+?)(\d*)(i?)({_SCRIPTS})(?!\w|\.\w)")
_SIGNAL = r"\|?(?:d?(?:[WQh]|psi|phi|chi)\d?i?_[0-9ti]|d?[Whg]\d+i?|\bdQ)\|?"  # W3_0, dh1, h3i, |W4_0|
_ATOM = (
    r"(?:(?:Theta|O)\((?:[^()]|\([^()]*\))*\)|d\w+/d\w+|"  # Theta(1), df/dh3
    rf"[A-Za-z]+(?:_[A-Za-z0-9]+(?:_[a-z]+)*)?'*\[[^\]\s][^\]]*\](?:{_EXPONENT})?|"  # expert_out[b,k]
    rf"[A-Za-z]\w*{_EXPONENT}|"  # N_e^(-1/2)
    rf"<{_SIGNAL}, {_SIGNAL}>|{_SIGNAL}(?:{_EXPONENT})?|sum_[a-z]|\bN_e|\b[a-z]'+)"
    r"(?![\w@]|\.\w|-\d)"
)
_BETWEEN = r"(?: ?(?:=|~|<=|>=|\+|-|/) ?| )"
_RUN = re.compile(rf"(?<![\w.@,\[<|-]){_ATOM}(?:{_BETWEEN}{_ATOM})*")
_LEXER = re.compile(rf"<=|>=|d\w+/d\w+|(?:Theta|O)\(|{_NAME.pattern}|\d+|.")


def typeset(text: str) -> Text:
    """Words with formulas in the plain notation of reasons and quantities: ``update dQ h1 = Theta(1)``."""
    return Text(text, _RUN.sub(lambda m: f"${tex(m[0])}$", literal(text)))


def formula(*texts: str) -> Text:
    """Formulas in plain notation, whole, with commas between: ``M^(-1/2) sigma_expert_out = Theta(1)``."""
    return Text(", ".join(texts), ", ".join(f"${tex(text)}$" for text in texts))


def tex(text: str) -> str:
    """A formula in plain notation as LaTeX."""
    return _LEXER.sub(_lexed, text)


def _lexed(m: re.Match[str]) -> str:
    token = m[0]
    if token in _OPERATORS:
        return _OPERATORS[token]
    if token.startswith(("Theta(", "O(")):
        return token.replace("Theta", r"\Theta")
    if re.fullmatch(r"d\w+/d\w+", token):
        over, under = token.split("/")
        return rf"\partial {tex(over[1:])} / \partial {tex(under[1:])}"
    name = _NAME.fullmatch(token)
    return token if name is None else _named(*name.groups())


_OPERATORS = {"<=": r"\leq ", ">=": r"\geq ", "~": r"\sim ", "<": r"\langle ", ">": r"\rangle ",
              "$": r"\$", "%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_"}  # fmt: skip
_KNOWN = {"eps": r"\epsilon", "lr": r"\eta", **{x: f"\\{x}" for x in ("sum", "sigma", "phi", "psi", "chi")}}


def _named(change: str, base: str, number: str, each: str, scripts: str) -> str:
    """``dW3_0[b,k]^2``: a change, a name, a number above it, an index, an exponent."""
    if each and not number:  # an i that is part of the name
        base, each = base + each, ""
    power = re.search(_EXPONENT + "$", scripts)
    rest = scripts[: power.start()] if power else scripts
    below, primes, inside = re.fullmatch(r"(?:_(\w+))?('*)(?:\[(.*)\])?", rest).groups()  # type: ignore[union-attr]
    if base not in _KNOWN and len(base) > 1 and below:  # a name of several words
        base, below = f"{base}_{below}", ""
    tex = _KNOWN.get(base, base if len(base) == 1 else rf"\mathrm{{{_spaced(base)}}}")
    words = _spaced(below or "")
    words = rf"\mathrm{{{words}}}" if len(words) > 1 else words
    lower = ",".join(filter(None, (words, (inside or "").replace(" ", ""))))
    upper = ",".join(filter(None, (number, each)))
    exponent = power[0][1:].strip("()") if power else ""
    tex += f"_{{{lower}}}" if lower else ""
    tex += f"^{{{upper}}}" if upper else ""
    tex = ("\\Delta " if change else "") + tex + primes
    if not exponent:
        return tex
    return f"({tex})^{{{exponent}}}" if upper or primes else f"{tex}^{{{exponent}}}"


def _spaced(words: str) -> str:
    return words.replace("_", r"\ ")
