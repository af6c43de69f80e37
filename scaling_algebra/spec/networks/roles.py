"""Relations of the signals and tensors of a network: readouts, gradients, pathways.

All of them follow from the equations; no letter, signal or role has a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from scaling_algebra.spec.axes import FIXED

from .ancestors import ends, learns
from .indices import aggregations
from .language import Function, Mode, Network, Product, Statement, remembered
from .sums import ExpertSum, experts
from .terms import written_out

MANY = 4
"""More tensors on the way of a gradient than it is split by (``_parts``)."""


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
    """One matrix of a tensor, as an optimizer of matrices takes it: that of one expert in one layer. Kernels of fixed
    size, one for each channel, are the rows of one matrix.

    Args:
        flattened: take all experts as one operator: rows side by side if all read one signal, else columns.
        per: letters that count blocks, each a matrix by itself.
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


def readouts(network: Network) -> tuple[str, ...]:
    """The trained tensors that make the output and nothing else. They may start at zero.

    A factor of the output that reads no trained signal, such as a temperature, is no readout beside one that does: with
    both at zero no gradient would reach either.
    """
    last = ends(network, network.output) if network.statements else frozenset()
    trained = [role for role in last if any(learns(network, x.name) for s in network.uses(role) for x in s.factors)]
    last = frozenset(trained) or last
    alone = all(len(network.uses(role)) == 1 and role not in network.frozen for role in last)
    return tuple(role for role in network.tensors if role in last) if alone else ()


def first_layer(network: Network, signal: str) -> bool:
    """Is a signal one tensor times the data?"""
    statement = network.producer(signal)
    return one_layer(network, signal) and not network.producer(statement.inputs[0].name)  # type: ignore[union-attr]


def meetings(network: Network) -> tuple[tuple[str, str, str], ...]:
    """Triples of a loss beside the output, a signal that its gradient meets first, such as the logits of a router, and
    the name of the gradient there."""
    met = dict[tuple[str, str, str], None]()
    for loss in network.losses:
        todo = [loss]
        while todo:
            s = network.producer(x := todo.pop())
            if isinstance(s, Product) and s.tensor:
                met |= {(loss, x, gradient_name(network, x)): None} if learns(network, x) else {}
            else:
                todo += [f.name for f in s.inputs] if s else []
    return tuple(met)


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
    """The gradients at all signals, last first. Each is split by the initial and updated parts of up to two tensors on
    its way, and by its paths if there are several. The experts' path through three tensors has the pieces A4 to E of
    MSSP paper, App. I.3 (eq. I.6). Below a sum over experts with more above it, gradients are split by the tensors up
    to the sum."""
    gradients = []
    for statement in reversed(network.statements[:-1]):
        signal, uses = statement.out, network.consumers(statement.out)
        if signal in network.losses or any(isinstance(s, Function) and s.held for s, _ in uses):
            continue  # the gradient of a held gate's argument is that of the gate
        name = gradient_name(network, signal)
        if len(uses) > 1:
            for path, via in pathways(network, signal).items():
                s, k = next((s, k) for s, k in uses if s.out == via)
                parts = _parts(path, _through(network, s, k)) or _below(network, signal, s, k)
                gradients.append(Adjoint(f"{name}.{path}", signal, via, parts))
        behind = _through(network, *uses[0]) if len(uses) == 1 else ()
        parts = _grid(*behind) if len(behind) <= 2 else {}
        parts = parts or (_below(network, signal, *uses[0]) if len(uses) == 1 else {})
        gradients.append(Adjoint(name, signal, parts=parts))
    return tuple(gradients)


def _below(network: Network, signal: str, s: Statement, k: int) -> dict[str, dict[str, Mode]]:
    """Parts of the gradient at a gate of experts, or at what experts and their tensors read, by the tensors up to the
    sum."""
    for e in experts(network):
        inside = s is e.aggregation or s.out in e.body
        if signal in e.entering and (inside or "router" in _reached(network, s.out, e)):
            return _grid(*_between(network, s, k, e))
        if inside and (signal in e.gates or (signal in e.body and isinstance(s, Product) and s.tensor)):
            return _grid(*_between(network, s, k, e))
    return {}


def _between(network: Network, s: Statement, k: int, e: ExpertSum) -> tuple[str, ...]:
    """Tensors on every path from an input of a statement to a sum over experts; none if a path has one of them
    twice."""
    if s is e.aggregation:
        return _tensors(network, e.aggregation, k)
    own = (s.tensor.name,) if isinstance(s, Product) and s.tensor else ()
    uses = [(x, j) for x, j in network.consumers(s.out) if x is e.aggregation or _reached(network, x.out, e)]
    paths = [_between(network, x, j, e) for x, j in uses]
    rest = tuple(x for x in paths[0] if all(x in path for path in paths)) if paths else ()
    return (*own, *rest) if not set(own) & set(rest) else ()


def pathways(network: Network, signal: str) -> dict[str, str]:
    """The paths of the gradient at a signal: by name, the signal that is computed first on each. The names are
    ``expert`` and ``router`` if there is one of these, else that of the signal."""
    outs = list(dict.fromkeys(s.out for s, _ in network.consumers(signal)))
    named = {out: _kind(network, out) for out in outs}
    kinds = list(named.values())
    paths = {(kind if kind and kinds.count(kind) == 1 else out): out for out, kind in named.items()}
    return dict(sorted(paths.items()))


def forks(network: Network, signal: str) -> tuple[str, ...]:
    """Names of the paths of a signal to experts and to their router; empty if it does not lead to both."""
    paths = {path: _kind(network, via) for path, via in pathways(network, signal).items()}
    return tuple(x for x, kind in paths.items() if kind) if {"expert", "router"} <= {*paths.values()} else ()


def _kind(network: Network, signal: str) -> str:
    """``router`` if a signal leads only to gates of experts, ``expert`` if only to experts, else ""."""
    ends = set[str]().union(*(_reached(network, signal, e) for e in experts(network)))
    return ends.pop() if len(ends) == 1 else ""


def _reached(network: Network, signal: str, e: ExpertSum) -> set[str]:
    """Where a signal leads before any sum over experts: ``router``, ``expert``, both or neither."""
    sums, ends, seen, todo = {s.out for s in aggregations(network)}, set[str](), set[str](), [signal]
    while todo:
        x = todo.pop()
        if x in e.gates or x in e.body:
            ends.add("router" if x in e.gates else "expert")
        elif x not in sums or x == signal:
            todo += [s.out for s, _ in network.consumers(x) if s.out not in seen]
            seen |= {*todo}
    return ends


@remembered
def _through(network: Network, statement: Statement, k: int) -> tuple[str, ...]:
    """Return the tensors on the path of the gradient to the k-th input of a statement, its own first.

    Returns:
        The first ``MANY`` roles; empty if the path forks or has one of them twice. No gradient is split by so many.
    """
    tensors = _tensors(network, statement, k) if isinstance(statement, Product) else ()
    uses = network.consumers(statement.out)
    if not uses:
        return tensors
    rest = _through(network, *uses[0]) if len(uses) == 1 else ()
    return (*tensors, *rest)[:MANY] if rest and not set(tensors) & set(rest) else ()


def _tensors(network: Network, statement: Product, k: int) -> tuple[str, ...]:
    """Tensors between the output and a factor of a product: its own, or those of what the factor gates."""
    terms = written_out(network, statement, without=k)
    return tuple(x.name for x in terms[0].tensors) if len(terms) == 1 else ()


def _grid(*roles: str) -> dict[str, dict[str, Mode]]:
    """Parts by the modes of some tensors, ``init`` and ``update``, for two ``init-init``, ``init-update`` etc."""
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
