"""Converts pieces of text to rich text, plain text and HTML, and formulas in plain notation to LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape

from scaling_algebra.spec.powers import Power, format_exponent

from .blocks import Cell, Code, Marked, Piece, Size, Text, literal

NOTHING = "\N{EN DASH}"


def rich(piece: Piece | None) -> str:
    """Returns a piece as rich text."""
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
    """Returns a piece as plain text."""
    if piece is None:
        return "-"
    if isinstance(piece, str):
        return "".join(_to_plain(text) if formula else text for formula, text in spans(piece))
    if isinstance(piece, Text):
        return piece.plain
    if isinstance(piece, Marked):
        return f"{piece.power} ({piece.mark})"
    if isinstance(piece, Size):
        return "0" if piece.exponent is None else f"n^{format_exponent(piece.exponent)}"
    return piece.text if isinstance(piece, Code) else str(piece)


def html(piece: Piece | None) -> str:
    """Returns a piece as HTML: powers with subscripts and superscripts, all other formulas as plain text."""
    if piece is None:
        return NOTHING
    if isinstance(piece, Code):
        return f"<code>{escape(piece.text)}</code>"
    if isinstance(piece, Marked):
        return f"{html(piece.power)} ({escape(piece.mark)})"
    if isinstance(piece, Power):
        factors = []
        for axis, e in piece.sort_terms():
            name, _, index = axis.partition("_")
            factors.append(name + (f"<sub>{index}</sub>" if index else "") + ("" if e == 1 else f"<sup>{e}</sup>"))
        return " ".join(factors) or "1"
    if isinstance(piece, Size) and piece.exponent is not None:
        e = piece.exponent
        return f"&Theta;({'n' if e == 1 else f'n<sup>{e}</sup>' if e else '1'})"
    return escape(plain(piece))


def width(piece: Piece | None) -> int:
    """Estimates the width of a typeset piece, in characters. A LaTeX command counts as one."""

    def size(m: re.Match[str]) -> str:
        return "" if m[1] in _FONTS else " x " if _PLAIN_NAMES.get(m[1], "").startswith(" ") else "x"

    shown = (re.sub(r"\\([A-Za-z]+|.) ?", size, text) if formula else text for formula, text in spans(rich(piece)))
    return sum(len(re.sub(r"[{}_^]|(?<= ) ", "", text)) for text in shown)


def join_values(cell: Cell, show: Callable[[Piece | None], str], bar: str = "") -> str:
    """Renders the distinct values of a cell with ``show`` and joins them with ``bar`` (default: that of the cell)."""
    return (bar or cell.bar).join(show(value) for value in cell.shown)


def spans(text: str) -> Iterator[tuple[bool, str]]:
    """Splits rich text into pairs (whether it is a formula, text)."""
    for k, part in enumerate(re.split(r"(?<!\\)\$(.*?)(?<!\\)\$", text)):
        if part:
            yield bool(k % 2), part if k % 2 else part.replace(r"\$", "$")


_PLAIN_NAMES = {
    "in": " in ", "partial": "d", "infty": "inf", "nabla": "grad ", "asymp": " ~ ", "sim": " ~ ", "simeq": " ~ ",
    "approx": " ~ ", "propto": " ~ ", "leq": " <= ", "geq": " >= ", "neq": " != ", "ll": " << ", "gg": " >> ",
    "lesssim": " <~ ", "to": " -> ", "rightarrow": " -> ", "Rightarrow": " => ", "langle": "<", "rangle": ">",
    "lfloor": "floor(", "rfloor": ")", "mid": "|", "cdot": " ", "times": " x ", "top": "T", "prime": "'", "star": "*",
    "ldots": "...", "dots": "...", "ell": "l", "quad": "  ", "Delta": "d", "epsilon": "eps", "varepsilon": "eps",
}  # fmt: skip
"""LaTeX commands that plain text does not spell as their names."""
_FONTS = ("mathrm", "text", "mathbf", "mathbb", "mathcal")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


def _to_plain(tex: str) -> str:
    """Converts a LaTeX formula of a paper to plain text."""
    return re.sub(" {2,}", " ", _sequence(_TOKEN.findall(tex))).strip(" ")


def _sequence(tokens: list[str]) -> str:
    """Converts LaTeX tokens to plain text up to the closing brace, and removes these tokens from the list."""
    out = ""
    while tokens and tokens[0] != "}":
        mark = tokens.pop(0) if tokens[0] in "_^" else ""
        item = _item(tokens)
        out += mark + (f"({item})" if mark and not re.fullmatch(r"-?\w+|'", item) else item)
    return out


def _item(tokens: list[str]) -> str:
    """Converts one LaTeX token with its arguments to plain text, and removes them from the list."""
    token = tokens.pop(0) if tokens else ""
    if token == "{":
        inside = _sequence(tokens)
        del tokens[:1]
        return inside
    name = token[1:].strip() or " "
    if len(token) < 2:
        return token
    if name == "frac":
        return f"({_item(tokens)})/({_item(tokens)})"
    if name == "sqrt":
        return f"sqrt({_item(tokens)})"
    if name in ("dot", "hat", "widehat", "tilde", "widetilde", "bar", "overline", "mathring"):
        return _item(tokens) + ("'" if name == "dot" else "")
    if name in _FONTS:
        return ""  # the group that follows
    if not name.isalpha():
        return {",": " ", ";": " ", "!": ""}.get(name, name)
    shown = _PLAIN_NAMES.get(name, name)
    if tokens[:1] == [" "] and not shown.startswith(" "):
        del tokens[:1]  # the space only ends the name of the command
    return shown


_NAMES = {
    "eps": r"\epsilon",
    "lr": r"\eta",
    **{x: f"\\{x}" for x in ("Theta", "Omega", "max", "sum", "sigma", "phi", "psi", "chi")},
}
_SIGNS = {"<=": r"\leq ", ">=": r"\geq ", "~": r"\sim ", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$"}
_LEXEME = re.compile(r"[A-Za-z]+\d*(?:_\w+)?|\^\([^()]*\)|\^-?\w+|<=|>=|[~%&#$]")


def typeset(text: str) -> Text:
    """Converts plain words to text that every format prints alike."""
    return Text(text, literal(text))


def formula(*texts: str) -> Text:
    """Returns formulas in plain notation as text, separated by commas: ``M^(-1/2) sigma_expert_out = Theta(1)``."""
    return Text(", ".join(texts), ", ".join(f"${tex(text)}$" for text in texts))


def tex(text: str) -> str:
    """Converts a formula in plain notation to LaTeX: names with numbers and indices, exponents, signs."""
    return _LEXEME.sub(_set, text)


def _set(m: re.Match[str]) -> str:
    token = m[0]
    if token[0] == "^":
        return f"^{{{token[1:].strip('()')}}}"
    if token in _SIGNS:
        return _SIGNS[token]
    base, _, index = token.partition("_")
    name = base.rstrip("0123456789")
    number = base[len(name) :]
    if index and name not in _NAMES and len(name) > 1:  # a name of several words
        name, index = token, ""
    shown = _NAMES.get(name) or _upright(name)
    return shown + (f"^{{{number}}}" if number else "") + (f"_{{{_upright(index)}}}" if index else "")


def _upright(name: str) -> str:
    """Sets a single character in italics, and a longer name in upright type."""
    words = name.replace("_", r"\ ")
    return name if len(name) == 1 else rf"\mathrm{{{words}}}"
