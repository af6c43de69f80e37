"""Relations of the signals and tensors of a network: experts, gates, gradients, pathways.

Everything that is named by what it does is found here from the equations: no letter, signal or role has a meaning of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from scaling_algebra.spec.axes import FIXED

from .language import Function, Mode, Network, Product, Statement


@dataclass(frozen=True)
class Experts:
    """An aggregation ``out = sum over experts of gate * expert`` and what makes its factors.

    Attributes:
        aggregation: the statement that sums over experts.
        gate: the signal that weighs them; ``source``: the signal it weighs.
        router: role of the tensor behind the gate, where there is one.
        outer: the statement of the last tensor of every expert; ``inner``: that of the one before, if it is one of the
            experts' own. None where the aggregation is not that of one product.
    """

    aggregation: Product
    gate: str = ""
    source: str = ""
    router: str = ""
    outer: Product | None = None
    inner: Product | None = None


def experts(network: Network) -> tuple[Experts, ...]:
    """The aggregations of a network."""
    groups = []
    for statement in network.aggregations:
        terms = network.terms(statement)
        weights = [w.name for w in terms[0].weights]
        weighed = [x.name for x in statement.factors if x.name not in weights]
        gate, source = (weights or [""])[0], (weighed or [""])[0]
        behind = _tensor_behind(network, gate)
        outer = network.producer(source)
        if not (isinstance(outer, Product) and outer.tensor and len(terms) == 1):
            groups.append(Experts(statement, gate, source, behind))
            continue
        below = network.producer(outer.factors[0].name) if len(outer.factors) == 1 else None
        inner = below if isinstance(below, Product) and below.tensor and below.factors else None
        if inner and (not network.producer(inner.factors[0].name) or not network.tensors[inner.tensor.name].experts):  # type: ignore[union-attr]
            inner = None
        groups.append(Experts(statement, gate, source, behind, outer, inner))
    return tuple(groups)


@dataclass(frozen=True)
class Matrix:
    """The letters of a tensor as a stack of linear maps.

    Attributes:
        copies: one matrix for each of these indices. rows, columns: of one of them.
    """

    copies: str
    rows: str
    columns: str


def matrix(network: Network, role: str, flattened: bool = False, per: str = "") -> Matrix:
    """One matrix of a tensor, as an optimizer of matrices takes it: that of one expert in one layer.

    Args:
            Kernels of fixed size, one for each channel, are the rows of one matrix.
        flattened: those of all experts as one operator: rows side by side where all read one signal, columns where each
            reads its own. per: letters that count blocks: each is a matrix by itself.
    """
    tensor, use = network.tensors[role], network.uses(role)[0]
    rows, columns = (
        "".join(x for x in side if network.axes[x] != "L" and x not in per) for side in (tensor.fan_out, tensor.fan_in)
    )
    if columns and not rows and all(network.axes[x] in FIXED for x in columns):  # a kernel for each channel
        rows = "".join(x for x in tensor.letters if x not in columns + tensor.experts + per and network.axes[x] != "L")
    if tensor.experts and (flattened or not rows):  # a router has one row for each expert
        separate = any(tensor.experts in x.letters for x in use.factors)
        rows, columns = (rows, columns + tensor.experts) if separate else (tensor.experts + rows, columns)
    return Matrix("".join(x for x in tensor.letters if x not in rows + columns), rows, columns)


def _tensor_behind(network: Network, signal: str) -> str:
    """The last tensor that a signal went through."""
    statement = network.producer(signal)
    while statement is not None:
        if isinstance(statement, Product) and statement.tensor:
            return statement.tensor.name
        statement = network.producer(statement.inputs[0].name) if statement.inputs else None
    return ""


def first_layer(network: Network, signal: str) -> bool:
    """Is a signal one tensor times the data?"""
    statement = network.producer(signal)
    return one_layer(network, signal) and not network.producer(statement.inputs[0].name)  # type: ignore[union-attr]


def one_layer(network: Network, signal: str) -> bool:
    """Is a signal one tensor times one other signal, or times the data?"""
    statement = network.producer(signal)
    return isinstance(statement, Product) and bool(statement.tensor) and len(statement.factors) == 1


def gradient_name(network: Network, signal: str) -> str:
    """``g3i`` for the gradient at ``h3i``, ``gphi`` for the one at ``phi``; ``gh3i`` where ``g3i`` is a signal."""
    short = "g" + signal[1:]
    return short if signal.startswith("h") and len(signal) > 1 and short not in network.signals else f"g{signal}"


@dataclass(frozen=True)
class Adjoint:
    """A named gradient: of the output with respect to a signal.

    Attributes:
        name: reporting name, e.g. ``g3i`` for the gradient at ``h3i``.
        signal: the signal.
        via: only through the statement that computes this signal; empty for all paths.
        parts: name suffix -> which part of which tensors is kept: ``{"init-update": {"expert_out": "init", ...}}``.
    """

    name: str
    signal: str
    via: str = ""
    parts: Mapping[str, Mapping[str, Mode]] = field(default_factory=dict)


def adjoints(network: Network) -> tuple[Adjoint, ...]:
    """The gradients at all signals, last first: each split by the initial and updated parts of up to two tensors that
    it came through; where it comes on several paths, each path too. The experts' path through three tensors has the
    pieces A4 to E of MSSP paper, App. I.3 (eq. I.6)."""
    gradients = []
    for statement in reversed(network.statements[:-1]):
        signal, uses = statement.out, network.consumers(statement.out)
        if any(isinstance(s, Function) and s.held for s, _ in uses):
            continue  # the gradient of a held gate's argument is that of the gate
        name = gradient_name(network, signal)
        if len(uses) > 1:
            for path, via in pathways(network, signal).items():
                behind = _through(network, *next((s, k) for s, k in uses if s.out == via))
                gradients.append(Adjoint(f"{name}.{path}", signal, via, _parts(path, behind)))
        behind = _through(network, *uses[0]) if len(uses) == 1 else ()
        gradients.append(Adjoint(name, signal, parts=_grid(*behind) if len(behind) <= 2 else {}))
    return tuple(gradients)


def pathways(network: Network, signal: str) -> dict[str, str]:
    """The paths on which the gradient at a signal comes, by name, each with the signal computed on it: ``expert`` and
    ``router`` where there is one of these, else the name of what is computed."""
    outs = list(dict.fromkeys(s.out for s, _ in network.consumers(signal)))
    named = {out: _kind(network, out) for out in outs}
    kinds = list(named.values())
    paths = {(kind if kind and kinds.count(kind) == 1 else out): out for out, kind in named.items()}
    return dict(sorted(paths.items()))


def _kind(network: Network, signal: str) -> str:
    """Does a signal lead to a gate of experts only, or to what is gated only?"""
    ends = set()
    for e in experts(network):
        if signal == e.gate or e.gate in _above(network, signal):
            ends.add("router")
        if signal == e.source or e.source in _above(network, signal):
            ends.add("expert")
    return ends.pop() if len(ends) == 1 else ""


def _above(network: Network, signal: str) -> set[str]:
    """Signals computed from a signal, up to the first aggregation."""
    sums = {s.out for s in network.aggregations}
    above, todo = set[str](), [signal]
    while todo:
        for s, _ in network.consumers(todo.pop()):
            if s.out not in above:
                above.add(s.out)
                todo += [] if s.out in sums else [s.out]
    return above


def _through(network: Network, statement: Statement, k: int) -> tuple[str, ...]:
    """Roles of the tensors that the gradient at the k-th input of a statement comes through, this statement's first;
    empty where it forks, or comes through one of them twice."""
    tensors = _tensors(network, statement, k) if isinstance(statement, Product) else ()
    uses = network.consumers(statement.out)
    if not uses:
        return tensors
    rest = _through(network, *uses[0]) if len(uses) == 1 else ()
    return (*tensors, *rest) if rest and not set(tensors) & set(rest) else ()


def _tensors(network: Network, statement: Product, k: int) -> tuple[str, ...]:
    """Tensors that the gradient at a factor of a product comes through there: its own, or those of what it gates."""
    terms = network.terms(statement, without=k)
    return tuple(x.name for x in terms[0].tensors) if len(terms) == 1 else ()


def _grid(*roles: str) -> dict[str, dict[str, Mode]]:
    """Parts named by the modes of these tensors: ``init-update`` and so on; ``init`` and ``update`` for one."""
    modes: tuple[Mode, Mode] = ("init", "update")
    return {"-".join(m): dict(zip(roles, m, strict=True)) for m in product(modes, repeat=len(roles))} if roles else {}


def _parts(path: str, roles: tuple[str, ...]) -> dict[str, dict[str, Mode]]:
    """Parts of the gradient on a path: those of up to two tensors; the pieces of the experts and the router."""
    if len(roles) == 3 and path == "expert":
        labels = {"init-init": "A4", "init-update": "A5", "update-init": "A6", "update-update": "E"}
        return {
            f"{labels[modes]}.{k}": {**inner, **outer}
            for modes, inner in _grid(*roles[:2]).items()
            for k, (_, outer) in enumerate(_grid(roles[2]).items(), 1)
        }
    if len(roles) == 3 and path == "router":
        pieces: dict[str, dict[str, Mode]] = {}
        for label, router in zip(("Q0", "dQ"), _grid(roles[0]).values(), strict=True):
            pieces[label] = router
            pieces |= {f"{label}.{m}": {**router, **inner} for m, inner in _grid(*roles[1:]).items()}
        return pieces
    return _grid(*roles) if len(roles) <= 2 else {}
