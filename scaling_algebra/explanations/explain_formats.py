"""Explanations as text, markdown, LaTeX and JSON: one layout of blocks, one writer per format.

Adding a format: one more entry in ``EXPLANATION_FORMATS``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from scaling_algebra.solver.demands import HORIZON
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.solver.report import aligned, latex_escape, latex_power, latex_table, markdown_table, title
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.powers import Power, exponent_text

from .alignments import Alignment
from .explanations import Explanation, Setting, Term


@dataclass(frozen=True)
class Size:
    """An exponent of n to print; None is exactly zero."""

    exponent: Fraction | None


Cell: TypeAlias = "str | Power | Size"


@dataclass(frozen=True)
class Head:
    text: str
    level: int = 1


@dataclass(frozen=True)
class Lines:
    lines: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Grid:
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


Block: TypeAlias = "Head | Lines | Grid"


def _blocks(found: Explanation | Setting) -> list[Block]:
    return _setting(found) if isinstance(found, Setting) else _explanation(found)


def _explanation(e: Explanation) -> list[Block]:
    blocks: list[Block] = [
        Head(f"{e.quantity} after {e.step} update{'' if e.step == 1 else 's'}"),
        Lines(((e.formula,), (title(e.derivation),), ("size: ", Size(e.exponent)))),
    ]
    if e.exponent is None:
        return [*blocks, Lines(((f"exactly zero: {e.note}",),))]
    if e.choices:
        rows: list[tuple[Cell, ...]] = []
        for choice in e.choices:
            for k, (name, exponent) in enumerate(choice.parts):
                rows.append((choice.name if not k else "", name, Size(exponent), "leads" if k == choice.chosen else ""))
        first = "" if e.outer or e.leading < 2 else " to the first leading monomial"
        blocks += [Head(f"sums on the way{first}", 2), Grid(("sum", "part", "size", ""), tuple(rows))]
    if e.outer:
        blocks += [Head("entries of a rank-one matrix: rms(u v^T) = rms(u) rms(v)", 2)]
        rows = [(c.label, c.power, Size(c.exponent)) for c in e.constants]
        rows += [(f"vector {k}", "", Size(term.exponent)) for k, term in enumerate(e.terms, 1)]
        total = " + ".join(str(x) for x in (*(c.exponent for c in e.constants), *(t.exponent for t in e.terms)))
        blocks += [Grid(("factor", "power", "size"), tuple(rows)), Lines(((f"exponent: {total} = {e.total()}",),))]
    for k, term in enumerate(e.terms, 1):
        if e.outer:
            blocks += [Head(f"vector {k}", 2), *_term(term)]
        elif k == 1:
            blocks += [Head("leading monomial" + (f", 1 of {e.leading} of equal size" if e.leading > 1 else ""), 2)]
            blocks += _term(term)
        else:
            pairs = ", ".join(f"{_symbol(term, p.left)} with {_symbol(term, p.right)}" for p in term.monomial.pairs)
            before = f"before matching: {term.monomial.contracted}"
            lines = Lines(((before,), (f"matched: {pairs or 'nothing'}",)))
            blocks += [Head(f"leading monomial {k} of {e.leading}", 2), lines]
            blocks += [_reading(term)]
    return blocks


def _term(term: Term) -> list[Block]:
    m = term.monomial
    held = {k: j for p in m.pairs for k, j in ((p.left, p.right), (p.right, p.left))}
    blocks: list[Block] = [Lines(((f"before matching: {m.contracted}",),))]
    if m.factors:
        factors = tuple(
            (str(k + 1), f.tensor, _indices(term, k), f"with {held[k] + 1}" if k in held else "-")
            for k, f in enumerate(m.factors)
        )
        blocks.append(Grid(("no.", "initial tensor", "indices", "matched"), factors))
    if m.indices:
        indices: list[tuple[Cell, ...]] = []
        for i in m.indices.values():
            indices.append((i.name, AXES[i.axis], _weight(i.weight, i.touched), Power.of({i.axis: i.weight})))
        blocks.append(Grid(("index", "runs over", "weight", "gives"), tuple(indices)))
    if term.constants:
        times = Counter(term.constants)
        rows = tuple((c.label, c.power, Size(c.exponent), f"x {k}" if k > 1 else "") for c, k in times.items())
        blocks.append(Grid(("constant", "power", "size", ""), rows))
    return [*blocks, _reading(term)]


def _reading(term: Term) -> Lines:
    lines: list[tuple[Cell, ...]] = [(f"mechanism {x}",) for x in term.mechanisms]
    return Lines((*lines, (f"exponent: {term.arithmetic}",)))


def _indices(term: Term, k: int) -> str:
    return "[" + ", ".join(term.monomial.indices[c].name for c in term.monomial.factors[k].classes) + "]"


def _symbol(term: Term, k: int) -> str:
    return term.monomial.factors[k].tensor + _indices(term, k)


def _weight(weight: Fraction, touched: tuple[int, ...]) -> str:
    if weight == 1:
        return "1: coherent (LLN), nothing unmatched touches it"
    if weight > 0:
        return f"1/2: random (CLT), touched by {', '.join(str(k + 1) for k in touched)}"
    return "0: open" if weight == 0 else f"{weight}: open and repeated"


def _setting(s: Setting) -> list[Block]:
    lines: list[tuple[Cell, ...]] = [(title(s.derivation),)]
    nothing = "no such setting" if s.because.endswith("has no epsilon") else "0"
    lines.append(("value: ", nothing if s.value is None else s.value))
    lines.append((f"fixed by {s.because}" if s.equation else s.because,))
    if s.equation:
        lines.append((f"equation: {s.equation}",))
    lines += [(f"structure {line}",) for line in s.structure]
    blocks: list[Block] = [Head(s.name), Lines(tuple(lines))]
    return blocks + ([] if s.behind is None else [Head("the quantity behind it", 2), *_blocks(s.behind)])


def _alignments(d: Derivation, found: Sequence[Alignment]) -> list[Block]:
    def show(x: Fraction | None) -> str:
        return "-" if x is None else str(x)

    lines: tuple[tuple[Cell, ...], ...] = (
        (title(d),),
        ("forward: |dW x| = fan_in^p |dW| |x|, |W_0 dx| = fan_in^q |W_0| |dx|; backward: the transpose, with fan_out",),
        ("-: the fan does not grow, a factor is exactly zero, or a size is not certified",),
    )
    rows = tuple((a.role, show(a.p), show(a.q), show(a.p_back), show(a.q_back)) for a in found)
    grid = Grid(("tensor", "p", "q", "p backward", "q backward"), rows)
    return [Head(f"alignment exponents after {HORIZON} updates"), Lines(lines), grid]


def _alignments_json(d: Derivation, found: Sequence[Alignment]) -> str:
    maps = [{k: v if v is None else str(v) for k, v in vars(a).items()} for a in found]
    return json.dumps({**d.configuration.as_json(), "step": HORIZON, "maps": maps}, indent=2)


# writers -------------------------------------------------------------------------------------------------------


def _plain(cell: Cell) -> str:
    if isinstance(cell, Size):
        return "0" if cell.exponent is None else f"n^{exponent_text(cell.exponent)}"
    return str(cell)


def _math(cell: Cell) -> str:
    if isinstance(cell, Size):
        return "$0$" if cell.exponent is None else f"$n^{{{cell.exponent}}}$"
    return f"${latex_power(cell)}$" if isinstance(cell, Power) else latex_escape(cell)


def _text(blocks: Sequence[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Head):
            lines += ["", block.text] if lines else [block.text]
        elif isinstance(block, Lines):
            lines += ["".join(map(_plain, line)) for line in block.lines]
        else:
            lines += aligned(
                [tuple(f"  {h}" for h in block.header), *([f"  {_plain(c)}" for c in row] for row in block.rows)]
            )
    return "\n".join(lines)


def _markdown(blocks: Sequence[Block]) -> str:
    parts = []
    for block in blocks:
        if isinstance(block, Head):
            parts.append(f"{'#' * (block.level + 2)} {block.text}")
        elif isinstance(block, Lines):
            parts.append("\n".join(f"- {''.join(_mark(c) for c in line)}" for line in block.lines))
        else:
            parts.append(markdown_table(block.header, [[_mark(c) for c in row] for row in block.rows]))
    return "\n\n".join(parts)


def _mark(cell: Cell) -> str:
    return cell if isinstance(cell, str) else _math(cell)


def _latex(blocks: Sequence[Block]) -> str:
    """Paragraphs and booktabs tabulars; the preamble needs ``\\usepackage{booktabs}``."""
    parts = []
    for block in blocks:
        if isinstance(block, Head):
            parts.append(rf"\{'paragraph' if block.level == 1 else 'subparagraph'}{{{latex_escape(block.text)}}}")
        elif isinstance(block, Lines):
            parts.append(" \\\\\n".join("".join(map(_math, line)) for line in block.lines) + "\n")
        else:
            parts.append(latex_table([block.header], [[_math(c) for c in row] for row in block.rows]))
    return "\n\n".join(parts)


def explanation_text(found: Explanation) -> str:
    return _text(_blocks(found))


def setting_text(found: Setting) -> str:
    return _text(_blocks(found))


def as_json(found: Explanation | Setting) -> dict[str, Any]:
    """The JSON contract: exponents are strings, null is exactly zero."""
    if isinstance(found, Setting):
        return {
            **found.derivation.configuration.as_json(),
            "parameter": found.name,
            "value": None if found.value is None else found.value.as_strings(),
            "because": found.because,
            "equation": found.equation,
            "structure": list(found.structure),
            "behind": None if found.behind is None else as_json(found.behind),
        }
    return {
        **found.derivation.configuration.as_json(),
        "quantity": found.quantity,
        "step": found.step,
        "formula": found.formula,
        "exponent": None if found.exponent is None else str(found.exponent),
        "note": found.note,
        "sums": [
            {"name": c.name, "parts": [[n, None if e is None else str(e)] for n, e in c.parts], "leads": c.chosen}
            for c in found.choices
        ],
        "outer": found.outer,
        "constants": [[c.label, c.power.as_strings(), str(c.exponent)] for c in found.constants],
        "leading": found.leading,
        "monomials": [_term_json(term) for term in found.terms],
    }


def _term_json(term: Term) -> dict[str, Any]:
    m = term.monomial
    return {
        "before_matching": str(m.contracted),
        "factors": [[f.tensor, [m.indices[c].name for c in f.classes]] for f in m.factors],
        "pairs": [[p.left + 1, p.right + 1] for p in m.pairs],
        "indices": [
            {"name": i.name, "axis": i.axis, "weight": str(i.weight), "dimension": str(i.rate)}
            for i in m.indices.values()
        ],
        "constants": [[c.label, c.power.as_strings(), str(c.exponent)] for c in term.constants],
        "mechanisms": [{"letter": x.letter, "title": x.title, "evidence": x.evidence} for x in term.mechanisms],
        "arithmetic": term.arithmetic,
        "exponent": str(term.exponent),
    }


EXPLANATION_FORMATS: dict[str, Callable[[Explanation | Setting], str]] = {
    "text": lambda found: _text(_blocks(found)),
    "markdown": lambda found: _markdown(_blocks(found)),
    "latex": lambda found: _latex(_blocks(found)),
    "json": lambda found: json.dumps(as_json(found), indent=2),
}
"""Formats of ``explain``."""

ALIGNMENT_FORMATS: dict[str, Callable[[Derivation, Sequence[Alignment]], str]] = {
    "text": lambda d, found: _text(_alignments(d, found)),
    "markdown": lambda d, found: _markdown(_alignments(d, found)),
    "latex": lambda d, found: _latex(_alignments(d, found)),
    "json": _alignments_json,
}
"""Formats of the table of alignment exponents."""
