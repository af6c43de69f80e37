"""What assumptions allow, or which of them contradict each other. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.spec.powers import exponent_text

from ..monomials import Monomial

if TYPE_CHECKING:
    from .feasible import Assumption, Feasible
    from .onset import Onset
    from .windows import End, Window


def feasible(f: Feasible, onsets: Sequence[Onset] = ()) -> Document:
    """Windows of every exponent with what binds them, defined quantities, misprints; or a contradiction."""
    blocks: list[Block] = [Heading(literal(f.system.title), 2)]
    laws = [f"{name} = {m}" for name, m in f.given.items()] + [f"without {name}" for name in f.dropped]
    blocks += [Lines.of(literal(", ".join(laws)))] if laws else []
    by_name = {a.name: a for a in f.system.assumptions}
    if f.core:
        blocks.append(Lines.of("no size of anything meets these together:"))
        put = f.system.defined(f.given) | dict(f.given)
        rows = [_assumption(by_name[name], put) for name in f.core]
        blocks.append(Grid.of(["assumption", "relation", "that is", "because", "source"], rows))
    else:
        grows = f.system.grows
        columns = ["quantity", "from", "because of", "to", "because of"]
        parameters = {p for m in f.given.values() for p in m.parameters}
        rows = [[name, *_ends(w, "" if name in parameters else grows)] for name, w in f.windows.items()]
        blocks.append(Grid.of(columns, rows))
    if f.system.definitions:
        blocks.append(Grid.of(["defined", "is", "from", "to", "printed", "source"], _definitions(f)))
    if onsets:
        blocks.append(
            Grid.of(["assumption", f"holds from {f.system.grows} ="], [(o.name, literal(str(o))) for o in onsets])
        )
    notes = [f"exponents of {f.system.grows}; constants and powers of logarithms do not count"]
    if f.even:
        notes.append(f"only with equal powers on both sides, where logarithms decide: {', '.join(f.even)}")
    for d in f.misprints():
        notes.append(f"{d.name} is printed as {d.printed}; it is {f.defined[d.name][0]} ({d.source})")
    blocks.append(Lines.of(*map(literal, notes), listed=True))
    return Document(tuple(blocks), record(f, onsets))


def record(f: Feasible, onsets: Sequence[Onset] = ()) -> dict[str, object]:
    """The JSON contract."""
    wrong = {d.name for d in f.misprints()}
    return {
        "assumptions": f.system.name,
        "grows": f.system.grows,
        "set": {name: str(m) for name, m in f.given.items()},
        "dropped": list(f.dropped),
        "feasible": not f.core,
        "windows": {name: _window(w) for name, w in f.windows.items()},
        "defined": {
            d.name: {
                "is": str(f.defined[d.name][0]),
                "printed": None if d.printed is None else str(d.printed),
                "agrees": None if d.printed is None else d.name not in wrong,
                "window": None if (w := f.defined[d.name][1]) is None else _window(w),
            }
            for d in f.system.definitions
        },
        "contradiction": [
            {"name": a.name, "relation": str(a.relation), "source": a.source} for a in f.assumed if a.name in f.core
        ],
        "even": list(f.even),
        "onsets": [{"name": o.name, "log10": o.log10, "why": o.why} for o in onsets],
    }


def _assumption(a: Assumption, put: Mapping[str, Monomial]) -> list[Piece | None]:
    r = a.relation
    here = f"{r.left.substituted(put)} {r.sign} {r.right.substituted(put)}"
    here = "" if here == str(r) else here
    return [Text(a.name, literal(a.name)), *(literal(x) or None for x in (str(r), here, a.because, a.source))]


def _ends(w: Window, grows: str) -> list[Piece | None]:
    """Both ends with what binds them; of a parameter the ends are numbers."""
    found: list[Piece | None] = []
    for e in (w.low, w.high):
        found += [_end(e, grows), literal(", ".join(e.binding)) if e.binding else None]
    return found


def _end(e: End, grows: str) -> Piece | None:
    if e.value is None:
        return None
    mark = ", open" if e.open else ""
    if not grows:
        return f"{e.value}{mark}"
    m = Monomial.of({grows: sympy.Rational(e.value)})
    text = "1" if e.value == 0 else grows if e.value == 1 else f"{grows}^{exponent_text(e.value)}"
    return Text(text + mark, f"${sympy.latex(m.expr)}${mark}")


def _definitions(f: Feasible) -> list[list[Piece | None]]:
    wrong, rows = {d.name for d in f.misprints()}, []
    for d in f.system.definitions:
        m, w = f.defined[d.name]
        ends: list[Piece | None] = (
            [None, None] if w is None else [_end(w.low, f.system.grows), _end(w.high, f.system.grows)]
        )
        printed = "" if d.printed is None else f"{d.printed}{', wrong' if d.name in wrong else ''}"
        rows.append([literal(d.name), literal(str(m)), *ends, literal(printed) or None, literal(d.source) or None])
    return rows


def _window(w: Window) -> dict[str, object]:
    return {
        side: {"exponent": None if e.value is None else str(e.value), "binding": list(e.binding), "open": e.open}
        for side, e in (("low", w.low), ("high", w.high))
    }
