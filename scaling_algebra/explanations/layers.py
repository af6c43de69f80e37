"""A monomial as a network in layers: tensors in columns, indices between them, open indices at the right.

Pure data and geometry in inches; read next: ``graph.py`` (draws it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from scaling_algebra.spec.powers import Power

from .results import Explanation, LeadingTerm

ROW, LINE, LETTER, GAP = 0.68, 0.2, 0.085, 0.36
"""Inches: rows of boxes, lines of text, a letter, between columns."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Node:
    """A tensor, a matched pair or an index of a monomial.

    Attributes:
        kind: ``tensor``, ``pair``, ``LLN``, ``CLT`` or ``open``.
        lines: what is written in it; ``power``: what an index contributes, None at tensors.
        column: its place from left to right; tensors in even ones.
    """

    kind: str
    lines: tuple[str, ...]
    column: int
    power: Power | None = None

    @property
    def text(self) -> str:
        plain = self.power is None or not self.power.terms
        return "\n".join(self.lines) if plain else f"{self.lines[0]}: {self.power}"

    @property
    def math(self) -> str:
        """The text as matplotlib sets it."""
        if self.power is None or not self.power.terms:
            return self.text
        factors = (axis if e == 1 else f"{axis}^{{{e}}}" for axis, e in self.power.ordered())
        return f"{self.lines[0]}: ${' '.join(factors)}$"

    @property
    def size(self) -> Point:
        """Width and height in inches."""
        return LETTER * max(
            len(re.sub(r"[\^()]", "", line)) for line in self.text.split("\n")
        ) + 0.25, 0.1 + LINE * len(self.lines)


@dataclass(frozen=True)
class Graph:
    """A monomial as nodes (``F1, F2, ...`` for tensors, a pair under its first) and edges from tensors to indices."""

    nodes: dict[str, Node]
    edges: tuple[tuple[str, str], ...]

    def parts(self) -> list[set[str]]:
        """Names of the nodes of each connected part, those with open indices first."""
        components: list[set[str]] = []
        for name in sorted(self.nodes, key=lambda name: self.nodes[name].kind != "open"):
            part = {name}.difference(*components)
            while more := {end for edge in self.edges if part & set(edge) for end in edge} - part:
                part |= more
            components += [part] if part else []
        return components


def graph_of(explanation: Explanation, term: LeadingTerm) -> Graph:
    """The nodes and edges of one monomial."""
    m, order = term.monomial, explanation.derivation.network.tensors
    roles = sorted({f.tensor for f in m.factors}, key=lambda role: [*order, role].index(role))
    twin = {pair.right: pair.left for pair in m.pairs}
    nodes: dict[str, Node] = {}
    edges = []
    for k, factor in enumerate(m.factors):
        if k in twin:
            continue
        same = [k, *(right for right, left in twin.items() if left == k)]
        lines = f"{', '.join(str(j + 1) for j in same)} {factor.tensor}", f"[{', '.join(m.names(k))}]"
        nodes[f"F{k + 1}"] = Node("pair" if len(same) > 1 else "tensor", lines, 2 * roles.index(factor.tensor))
        edges += [(f"F{k + 1}", name) for name in dict.fromkeys(m.names(k))]
    for c, index in m.indices.items():
        columns = sorted({nodes[tensor].column for tensor, name in edges if name == index.name}) or [0]
        kind = "open" if c in m.opens else "LLN" if index.weight == 1 else "CLT"
        place = 2 * len(roles) if kind == "open" else columns[-1] + (-1 if len(columns) > 1 else 1)
        nodes[index.name] = Node(kind, (index.name,), place, Power.of({index.axis: index.weight}))
    return Graph(nodes, tuple(edges))


def layout(net: Graph) -> tuple[dict[str, Point], dict[tuple[str, str], list[Point]]]:
    """Centres of the nodes and the points each edge runs through, in inches from the top left corner.

    Every column is sorted by the means of its neighbours, edges that cross one included; parts that share nothing
    are stacked.
    """
    columns = range(max((node.column for node in net.nodes.values()), default=0) + 1)
    widths = [max((node.size[0] for node in net.nodes.values() if node.column == c), default=0.0) for c in columns]
    x = [sum(widths[:c]) + widths[c] / 2 + GAP * c for c in columns]
    free = [0.0 for _ in columns]  # first free row
    points: dict[tuple[str, int], Point] = {}
    chains = {edge: _chain(net, *edge) for edge in net.edges}
    for part in net.parts():
        links = [link for edge, chain in chains.items() if edge[0] in part for link in pairwise(chain)]
        nodes = [(name, node.column) for name, node in net.nodes.items() if name in part]
        items = list(dict.fromkeys([*nodes, *(item for link in links for item in link)]))
        near = {item: [a if b == item else b for a, b in links if item in (a, b)] for item in items}
        span = range(min(c for _, c in items), max(c for _, c in items) + 1)
        row = dict.fromkeys(items, 0.0)
        for c in [*span, *reversed(span)] * 3:
            means = {item: fmean([row[end] for end in near[item]] or [0.0]) for item in items if item[1] == c}
            layer = sorted(means, key=means.__getitem__)
            row |= {item: k - (len(layer) - 1) / 2 for k, item in enumerate(layer)}
        top = max(free[c] for c in span) - min(row.values())
        points |= {item: (x[item[1]], ROW * (top + y)) for item, y in row.items()}
        for c in span:
            free[c] = top + max(row.values()) + 1
    centres = {name: points[name, node.column] for name, node in net.nodes.items()}
    edges: dict[tuple[str, str], list[Point]] = {}
    for edge, chain in chains.items():  # from side to side: level beside boxes, bent between columns only
        reach = [net.nodes[name].size[0] / 2 if name in net.nodes else widths[c] / 2 for name, c in chain]
        sides = [
            (points[item][0] + s * w, points[item][1]) for item, w in zip(chain, reach, strict=True) for s in (-1, 1)
        ]
        edges[edge] = sides[1:-1]
    return centres, edges


def _chain(net: Graph, tensor: str, index: str) -> list[tuple[str, int]]:
    """An edge from left to right: its ends and, in every column between them, a place to pass through."""
    (first, left), (last, right) = sorted(((n, net.nodes[n].column) for n in (tensor, index)), key=lambda end: end[1])
    return [(first, left), *((f"{tensor} {index}", c) for c in range(left + 1, right)), (last, right)]
