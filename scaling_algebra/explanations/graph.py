"""A picture of a monomial: initial tensors as nodes, shared indices as edges, matched tensors joined.

Needs networkx (and matplotlib for svg and png, pydot for dot): they are imported when a picture is asked for.
"""

from __future__ import annotations

import importlib
from itertools import combinations, pairwise
from math import dist
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError

from .explanations import Explanation, Term

GRAPH_FORMATS = ("svg", "png", "dot")
_COLOURS = {"CLT": "#d95f02", "LLN": "#1b7837", "open": "#555555", "matched": "#7b3294"}
_NAMES = {"CLT": "random sum (CLT, weight 1/2)", "LLN": "coherent sum (LLN, weight 1)", "open": "open index"}


def network(term: Term) -> Any:
    """The monomial as a ``networkx.Graph``.

    Nodes: ``F1, F2, ...`` for the initial tensors, and one node per index that is open or does not join exactly two
    tensors. Edge attributes: ``indices`` (names), ``kind`` (``CLT``, ``LLN`` or ``open``; of several the weakest sum),
    ``matched`` (the two tensors are paired).
    """
    graph = _load("networkx").Graph()
    m = term.monomial
    for k, factor in enumerate(m.factors, 1):
        graph.add_node(
            f"F{k}", label=f"{k} {factor.tensor}\n[{','.join(m.indices[c].name for c in factor.classes)}]", kind=""
        )
    for c, index in m.indices.items():
        kind = "open" if c in m.opens else "LLN" if index.weight == 1 else "CLT"
        ends = [f"F{k}" for k, factor in enumerate(m.factors, 1) for d in factor.classes if d == c]
        if len(ends) == 2 and kind != "open":
            _join(graph, ends[0], ends[1], index.name, kind)
            continue
        graph.add_node(index.name, label=index.name, kind=kind)
        for end in ends:
            _join(graph, index.name, end, "", kind)
    for pair in m.pairs:
        _join(graph, f"F{pair.left + 1}", f"F{pair.right + 1}", "", "LLN", matched=True)
    return graph


def _join(graph: Any, u: str, v: str, name: str, kind: str, matched: bool = False) -> None:
    old = graph.get_edge_data(u, v, {"indices": [], "kind": kind, "matched": False})
    weakest = kind if kind == "CLT" else old["kind"]
    graph.add_edge(
        u, v, indices=old["indices"] + ([name] if name else []), kind=weakest, matched=matched or old["matched"]
    )


def draw(found: Explanation, path: Path) -> None:
    """Draw the leading monomial of an explanation; the suffix of the path chooses svg, png or dot.

    Raises:
        UsageError: another suffix, nothing to draw, a missing library, or a path that cannot be written.
    """
    form = path.suffix.lstrip(".").lower()
    if form not in GRAPH_FORMATS:
        raise UsageError(f"cannot draw {path}: the name must end in .svg, .png or .dot")
    if not found.terms:
        raise UsageError(f"{found.quantity} is exactly zero at t = {found.step}: there is no monomial to draw")
    term = max(found.terms, key=lambda t: len(t.monomial.factors)) if found.outer else found.terms[0]
    try:
        if form == "dot":
            path.write_text(_dot(network(term)))
        else:
            _picture(network(term), _title(found, term), path, form)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --graph FILE") from None


def _title(found: Explanation, term: Term) -> str:
    letters = ", ".join(dict.fromkeys(x.letter for x in term.mechanisms))
    updates = f"{found.step} update{'' if found.step == 1 else 's'}"
    tied = f" (leading monomial 1 of {found.leading})" if found.leading > 1 else ""
    return f"{found.quantity} after {updates} $\\sim n^{{{found.exponent}}}$, mechanism {letters}{tied}"


def _picture(graph: Any, title: str, path: Path, form: str) -> None:
    nx = _load("networkx")
    _load("matplotlib").use("Agg")
    plt = _load("matplotlib.pyplot")
    place = _layout(nx, graph)
    side = min(max(6.0, 4.2 / _nearest(place)), 24.0)  # inches: nodes need 1.5 inches from centre to centre
    figure, axes = plt.subplots(figsize=(side, side))
    for matched, kind in ((m, k) for m in (True, False) for k in _NAMES):
        edges = [(u, v) for u, v, d in graph.edges(data=True) if d["matched"] == matched and d["kind"] == kind]
        if matched:
            nx.draw_networkx_edges(graph, place, edges, ax=axes, width=9, edge_color=_COLOURS["matched"], alpha=0.25)
        nx.draw_networkx_edges(graph, place, edges, ax=axes, width=2, edge_color=_COLOURS[kind])
    names = {(u, v): ", ".join(d["indices"]) for u, v, d in graph.edges(data=True) if d["indices"]}
    nx.draw_networkx_edge_labels(graph, place, names, ax=axes, font_size=11, rotate=False)
    tensors = [node for node, d in graph.nodes(data=True) if not d["kind"]]
    nx.draw_networkx_nodes(graph, place, tensors, ax=axes, node_size=3000, node_color="#dbe9f6", edgecolors="#333333")
    for kind, colour in list(_COLOURS.items())[:3]:
        nodes = [node for node, d in graph.nodes(data=True) if d["kind"] == kind]
        nx.draw_networkx_nodes(
            graph, place, nodes, ax=axes, node_shape="s", node_size=450, node_color="white", edgecolors=colour
        )
    nx.draw_networkx_labels(graph, place, dict(graph.nodes(data="label")), ax=axes, font_size=9)
    lines = [plt.Line2D([], [], color=_COLOURS[k], lw=2, label=_NAMES[k]) for k in _NAMES]
    lines.append(plt.Line2D([], [], color=_COLOURS["matched"], lw=9, alpha=0.25, label="matched tensors"))
    axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2, frameon=False)
    axes.set_title(title)
    axes.margins(0.2)
    axes.axis("off")
    figure.savefig(path, format=form, bbox_inches="tight", dpi=130)
    plt.close(figure)


def _layout(nx: Any, graph: Any) -> Any:
    """Kamada-Kawai, with the components held together by invisible edges."""
    plain = nx.Graph(graph.edges)
    plain.add_nodes_from(graph)
    for left, right in pairwise([next(iter(part)) for part in nx.connected_components(plain)]):
        plain.add_edge(left, right)
    return nx.kamada_kawai_layout(plain) if len(plain) > 1 else {node: (0.0, 0.0) for node in plain}


def _nearest(place: Any) -> float:
    """Smallest distance of two nodes; the layout fills the square from -1 to 1."""
    return min((dist(place[u], place[v]) for u, v in combinations(place, 2)), default=1.0)


def _dot(graph: Any) -> str:
    nx = _load("networkx")
    _load("pydot")
    plain = nx.Graph()
    for node, data in graph.nodes(data=True):
        plain.add_node(node, label=data["label"].replace("\n", "\\n"), shape="box" if data["kind"] else "ellipse")
    for u, v, data in graph.edges(data=True):
        style = "bold" if data["matched"] else "solid"
        plain.add_edge(u, v, label=", ".join(data["indices"]), style=style, color=_COLOURS[data["kind"]])
    return str(nx.nx_pydot.to_pydot(plain).to_string())


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        missing = name.partition(".")[0]
        raise UsageError(f"--graph needs {missing}; install it with: pip install 'scalecalc[graph]'") from None
