"""The leading monomial of an explanation as a graph in dot, which Graphviz draws.

Initial tensors are boxes, indices ovals that say what their sum contributes. Tensors stand from left to right in the
order in which the network applies them, open indices at the right. A matched pair is one box, drawn twice: an index is
random where a line leads to a single box, which is the half-weight rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.powers import Power

from .results import Explanation, LeadingTerm

LOOKS = {  # colour and line of each kind of node
    "tensor": ("#333333", "solid"),
    "pair": ("#7b3294", "solid"),
    "LLN": ("#1b7837", "solid"),
    "CLT": ("#c25100", "dashed"),
    "open": ("#666666", "dotted"),
}


@dataclass(frozen=True)
class Node:
    """A tensor, a matched pair or an index of a monomial.

    Attributes:
        kind: one of ``LOOKS``.
        column: place from left to right; tensors in even ones.
    """

    kind: str
    text: str
    column: int

    def dot(self, name: str) -> str:
        """The statement that declares the node."""
        shape = "box" if self.kind in ("tensor", "pair") else "ellipse"
        twice, colour = 2 if self.kind == "pair" else 1, LOOKS[self.kind][0]
        return f'{name} [label={json.dumps(self.text)}, shape={shape}, peripheries={twice}, color="{colour}"];'


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
        lines += _statements(k, _nodes(e, term), list(_edges(term)))
    if e.outer:
        said.append(f"exponent: {e.arithmetic.replace('+ -', '- ')}")
    return "\n".join(["graph {", "rankdir=LR;", "labelloc=b;", f"label={json.dumps(chr(10).join(said))};", *lines, "}"])


def _statements(k: int, nodes: dict[str, Node], edges: list[tuple[str, str]]) -> Iterator[str]:
    """The nodes and edges of one monomial; a line leads from the left to the right."""
    for name, node in nodes.items():
        yield node.dot(json.dumps(f"{k}{name}"))
    for tensor, index in edges:
        colour, style = LOOKS[nodes[index].kind]
        left, right = sorted((tensor, index), key=lambda name: nodes[name].column)
        yield f'{json.dumps(f"{k}{left}")} -- {json.dumps(f"{k}{right}")} [color="{colour}", style={style}];'


def _edges(term: LeadingTerm) -> Iterator[tuple[str, str]]:
    """From every tensor (``F1, F2, ...``, a pair by its first) to its indices."""
    m = term.monomial
    twins = {pair.right for pair in m.pairs}
    for k in range(len(m.factors)):
        yield from ((f"F{k + 1}", name) for name in dict.fromkeys(m.names(k)) if k not in twins)


def _nodes(e: Explanation, term: LeadingTerm) -> dict[str, Node]:
    m, order = term.monomial, e.derivation.network.tensors
    roles = sorted({f.tensor for f in m.factors}, key=lambda role: [*order, role].index(role))
    partner = {pair.left: pair.right for pair in m.pairs}
    nodes: dict[str, Node] = {}
    for k, factor in enumerate(m.factors):
        if k not in partner.values():
            numbers = f"{k + 1}, {partner[k] + 1}" if k in partner else str(k + 1)
            text = f"{numbers} {factor.tensor}\n[{', '.join(m.names(k))}]"
            nodes[f"F{k + 1}"] = Node("pair" if k in partner else "tensor", text, 2 * roles.index(factor.tensor))
    for c, index in m.indices.items():
        kind = "open" if c in m.opens else "LLN" if index.weight == 1 else "CLT"
        columns = sorted({nodes[tensor].column for tensor, name in _edges(term) if name == index.name}) or [0]
        between = columns[-1] + (-1 if len(columns) > 1 else 1)
        gives = Power.of({index.axis: index.weight})
        text = f"{index.name}: {gives}" if gives.terms else index.name
        nodes[index.name] = Node(kind, text, 2 * len(roles) if kind == "open" else between)
    return nodes
