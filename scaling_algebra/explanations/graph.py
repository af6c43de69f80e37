"""The leading monomial of an explanation as a graph in dot, which Graphviz draws.

Initial tensors are boxes, indices ovals that say what their sum contributes. A matched pair is one box, drawn twice: an
index is random where a line leads to a single box, which is the half-weight rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.powers import Power

from .results import Explanation, LeadingTerm


def dot(e: Explanation) -> str:
    """The leading monomial in dot; of an outer product both vectors.

    Raises:
        UsageError: the quantity is exactly zero.
    """
    if not e.terms:
        raise UsageError(f"{e.quantity} is exactly zero at t = {e.step}: there is no monomial to draw")
    said, lines = [e.about], list[str]()
    for k, term in enumerate(e.terms if e.outer else e.terms[:1], 1):
        letters = ", ".join(dict.fromkeys(x.letter for x in term.mechanisms))
        first = f"vector {k}, " if e.outer else f"leading monomial 1 of {e.leading}, " if e.leading > 1 else ""
        said += [f"{first}mechanism {letters}", f"exponent: {term.arithmetic}"]
        lines += _statements(k, term)
    if e.outer:
        said.append(f"exponent: {e.arithmetic.replace('+ -', '- ')}")
    return "\n".join(["graph {", "rankdir=LR;", "labelloc=b;", f"label={json.dumps(chr(10).join(said))};", *lines, "}"])


def _statements(k: int, term: LeadingTerm) -> Iterator[str]:
    """Nodes and edges of one monomial: tensors ``F1, F2, ...``, a pair by its first."""
    m = term.monomial
    partner = {pair.left: pair.right for pair in m.pairs}
    styles: dict[str, str] = {}
    for c, index in m.indices.items():
        styles[index.name] = "dotted" if c in m.opens else "solid" if index.weight == 1 else "dashed"
        gives = Power.of({index.axis: index.weight})
        yield _node(f"{k}{index.name}", f"{index.name}: {gives}" if gives.terms else index.name, "ellipse", 1)
    for j, factor in enumerate(m.factors):
        if j in partner.values():
            continue
        numbers = f"{j + 1}, {partner[j] + 1}" if j in partner else str(j + 1)
        yield _node(f"{k}F{j + 1}", f"{numbers} {factor.tensor}\n[{', '.join(m.names(j))}]", "box", 1 + (j in partner))
        for name in dict.fromkeys(m.names(j)):
            yield f"{json.dumps(f'{k}F{j + 1}')} -- {json.dumps(f'{k}{name}')} [style={styles[name]}];"


def _node(name: str, text: str, shape: str, lines: int) -> str:
    return f"{json.dumps(name)} [label={json.dumps(text)}, shape={shape}, peripheries={lines}];"
