"""Relations between the signals and tensors of a network: readouts, gradients, pathways.

All of them follow from the equations; no name has a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from scaling_algebra.spec.axes import FIXED

from .ancestors import find_last_tensors, is_trained
from .indices import find_aggregations
from .language import Function, Mode, Network, Product, Statement, cache_on_network
from .sums import ExpertSum, experts
from .terms import expand_product

MANY = 4
"""A gradient with this many tensors on its path is not split by tensors (``_split_path``)."""


@dataclass(frozen=True)
class MatrixShape:
    """The indices of a tensor, seen as a stack of matrices.

    Attributes:
        copies: indices that count the matrices.
        rows: row indices of one matrix.
        columns: column indices of one matrix.
    """

    copies: str
    rows: str
    columns: str


def matrix_shape(network: Network, role: str, flattened: bool = False, per: str = "") -> MatrixShape:
    """Returns which indices of a tensor a matrix optimizer takes as rows and columns, and which count separate
    matrices.

    By default every expert of every layer has a matrix of its own. If every channel has a convolution kernel of fixed
    size, the kernels are the rows of one matrix.

    Args:
        network: the network.
        role: the tensor.
        flattened: take all experts as one matrix: rows side by side if all experts read one signal, else columns.
        per: indices that count separate matrices, such as heads.
    """
    tensor, use = network.tensors[role], network.uses(role)[0]
    rows, columns = (
        "".join(x for x in side if network.axes[x] != "L" and x not in per) for side in (tensor.fan_out, tensor.fan_in)
    )
    if columns and not rows and all(network.axes[x] in FIXED for x in columns):  # a kernel for each channel
        rows = "".join(x for x in tensor.indices if x not in columns + tensor.experts + per and network.axes[x] != "L")
    if tensor.experts and (flattened or not rows):  # a router has one row for each expert
        separate = any(tensor.experts in x.indices for x in use.factors)
        rows, columns = (rows, columns + tensor.experts) if separate else (tensor.experts + rows, columns)
    return MatrixShape("".join(x for x in tensor.indices if x not in rows + columns), rows, columns)


def readouts(network: Network) -> tuple[str, ...]:
    """Returns the roles of the readouts: the trained tensors that compute the output and no other signal. They may
    start at zero.

    A tensor that multiplies the output but reads no trained signal, such as a temperature, is no readout if there is
    another one that does: with both at zero no gradient would reach either.
    """
    last = find_last_tensors(network, network.output) if network.statements else frozenset()
    trained = [role for role in last if any(is_trained(network, x.name) for s in network.uses(role) for x in s.factors)]
    last = frozenset(trained) or last
    alone = all(len(network.uses(role)) == 1 and role not in network.frozen for role in last)
    return tuple(role for role in network.tensors if role in last) if alone else ()


def is_first_layer(network: Network, signal: str) -> bool:
    """Tests whether a signal is one tensor times the data."""
    statement = network.producer(signal)
    return is_one_layer(network, signal) and not network.producer(statement.inputs[0].name)  # type: ignore[union-attr]


def find_meetings(network: Network) -> tuple[tuple[str, str, str], ...]:
    """Finds the signals at which the gradient of an auxiliary loss joins that of the output, such as a router's logits.

    Returns:
        Triples (loss, signal, name of the gradient at the signal).
    """
    met = dict[tuple[str, str, str], None]()
    for loss in network.losses:
        todo = [loss]
        while todo:
            s = network.producer(x := todo.pop())
            if isinstance(s, Product) and s.tensor:
                met |= {(loss, x, gradient_name(network, x)): None} if is_trained(network, x) else {}
            else:
                todo += [f.name for f in s.inputs] if s else []
    return tuple(met)


def is_one_layer(network: Network, signal: str) -> bool:
    """Tests whether a signal is one tensor times one other signal, or times the data."""
    statement = network.producer(signal)
    return isinstance(statement, Product) and bool(statement.tensor) and len(statement.factors) == 1


def gradient_name(network: Network, signal: str) -> str:
    """Names the gradient at a signal: ``g3i`` for ``h3i``, ``gphi`` for ``phi``; ``gh3i`` if ``g3i`` is a signal."""
    short = "g" + signal[1:]
    return short if signal.startswith("h") and len(signal) > 1 and short not in network.signals else f"g{signal}"


@dataclass(frozen=True)
class Adjoint:
    """A named gradient of the output with respect to a signal.

    Attributes:
        name: its name in reports, such as ``g3i`` for the gradient at ``h3i``.
        signal: the signal.
        via: if not empty, only the part of the gradient is meant that comes through the equation of this signal;
            empty for the whole gradient.
        parts: the parts into which it splits: for each suffix of the name, whether a tensor enters the part with its
            initial value (``init``) or its change (``update``): ``{"init-update": {"expert_out": "init", ...}}``.
    """

    name: str
    signal: str
    via: str = ""
    parts: Mapping[str, Mapping[str, Mode]] = field(default_factory=dict)


def list_gradients(network: Network) -> tuple[Adjoint, ...]:
    """Returns the gradients at all signals, last signal first.

    Each is split by the initial values and updates of up to two tensors on its path, and by its paths if there are
    several. The experts' path through three tensors has the pieces A4 to E of MSSP paper, App. I.3 (eq. I.6). Below a
    sum over experts with further layers above it, gradients are split by the tensors up to the sum.
    """
    gradients = []
    for statement in reversed(network.statements[:-1]):
        signal, uses = statement.out, network.consumers(statement.out)
        if signal in network.losses or any(isinstance(s, Function) and s.held for s, _ in uses):
            continue  # the gradient of a held gate's argument is that of the gate
        name = gradient_name(network, signal)
        if len(uses) > 1:
            for path, via in name_pathways(network, signal).items():
                s, k = next((s, k) for s, k in uses if s.out == via)
                parts = _split_path(path, _tensors_on_path(network, s, k)) or _split_below_experts(
                    network, signal, s, k
                )
                gradients.append(Adjoint(f"{name}.{path}", signal, via, parts))
        behind = _tensors_on_path(network, *uses[0]) if len(uses) == 1 else ()
        parts = _split_by_modes(*behind) if len(behind) <= 2 else {}
        parts = parts or (_split_below_experts(network, signal, *uses[0]) if len(uses) == 1 else {})
        gradients.append(Adjoint(name, signal, parts=parts))
    return tuple(gradients)


def _split_below_experts(network: Network, signal: str, s: Statement, k: int) -> dict[str, dict[str, Mode]]:
    """Splits a gradient by the tensors between its signal and the sum over experts that the signal leads to.

    Returns the parts as in ``Adjoint.parts`` for gates and for inputs of experts or of their tensors; empty for all
    other signals.

    Args:
        network: the network.
        signal: the signal of the gradient.
        s: the statement that reads the signal.
        k: position of the signal among the inputs of this statement.
    """
    for e in experts(network):
        inside = s is e.aggregation or s.out in e.body
        if signal in e.entering and (inside or "router" in _find_ends(network, s.out, e)):
            return _split_by_modes(*_tensors_up_to_sum(network, s, k, e))
        if inside and (signal in e.gates or (signal in e.body and isinstance(s, Product) and s.tensor)):
            return _split_by_modes(*_tensors_up_to_sum(network, s, k, e))
    return {}


def _tensors_up_to_sum(network: Network, s: Statement, k: int, e: ExpertSum) -> tuple[str, ...]:
    """Returns the tensors on every path from the k-th input of a statement to a sum over experts.

    Empty if a path contains one of them twice.
    """
    if s is e.aggregation:
        return _tensors_of_factor(network, e.aggregation, k)
    own = (s.tensor.name,) if isinstance(s, Product) and s.tensor else ()
    uses = [(x, j) for x, j in network.consumers(s.out) if x is e.aggregation or _find_ends(network, x.out, e)]
    paths = [_tensors_up_to_sum(network, x, j, e) for x, j in uses]
    rest = tuple(x for x in paths[0] if all(x in path for path in paths)) if paths else ()
    return (*own, *rest) if not set(own) & set(rest) else ()


def name_pathways(network: Network, signal: str) -> dict[str, str]:
    """Names the paths of the gradient at a signal.

    Returns:
        For each path the first signal that is computed on it. A path is named ``expert`` or ``router`` if it is the
        only one of this kind, else by that signal.
    """
    outs = list(dict.fromkeys(s.out for s, _ in network.consumers(signal)))
    named = {out: _find_kind(network, out) for out in outs}
    kinds = list(named.values())
    paths = {(kind if kind and kinds.count(kind) == 1 else out): out for out, kind in named.items()}
    return dict(sorted(paths.items()))


def find_forks(network: Network, signal: str) -> tuple[str, ...]:
    """Returns the names of the paths (``name_pathways``) on which a signal is used by experts or by their router;
    empty unless it is used by both.
    """
    paths = {path: _find_kind(network, via) for path, via in name_pathways(network, signal).items()}
    return tuple(x for x, kind in paths.items() if kind) if {"expert", "router"} <= {*paths.values()} else ()


def _find_kind(network: Network, signal: str) -> str:
    """Returns ``router`` if a signal enters sums over experts only as a gate, ``expert`` if only as a term, else ""."""
    ends = set[str]().union(*(_find_ends(network, signal, e) for e in experts(network)))
    return ends.pop() if len(ends) == 1 else ""


def _find_ends(network: Network, signal: str, e: ExpertSum) -> set[str]:
    """Follows a signal through the equations that use it, up to the next sums over experts.

    Returns:
        How the signal enters the sum ``e``: ``router`` (as a gate), ``expert`` (as a term), both, or neither.
    """
    sums, ends, seen, todo = {s.out for s in find_aggregations(network)}, set[str](), set[str](), [signal]
    while todo:
        x = todo.pop()
        if x in e.gates or x in e.body:
            ends.add("router" if x in e.gates else "expert")
        elif x not in sums or x == signal:
            todo += [s.out for s, _ in network.consumers(x) if s.out not in seen]
            seen |= {*todo}
    return ends


@cache_on_network
def _tensors_on_path(network: Network, statement: Statement, k: int) -> tuple[str, ...]:
    """Returns the tensors on the path of the gradient to the k-th input of a statement, its own first.

    Returns:
        At most ``MANY`` roles, since a gradient with so many tensors on its path is not split; empty if the path
        forks or contains one of them twice.
    """
    tensors = _tensors_of_factor(network, statement, k) if isinstance(statement, Product) else ()
    uses = network.consumers(statement.out)
    if not uses:
        return tensors
    rest = _tensors_on_path(network, *uses[0]) if len(uses) == 1 else ()
    return (*tensors, *rest)[:MANY] if rest and not set(tensors) & set(rest) else ()


def _tensors_of_factor(network: Network, statement: Product, k: int) -> tuple[str, ...]:
    """Returns the tensors that multiply the k-th factor of a product: the tensor of the product, or, if the factor is
    a gate, the tensors that compute the signal which it weighs. Empty if the expanded product (``expand_product``)
    has several terms.
    """
    terms = expand_product(network, statement, without=k)
    return tuple(x.name for x in terms[0].tensors) if len(terms) == 1 else ()


def _split_by_modes(*roles: str) -> dict[str, dict[str, Mode]]:
    """Enumerates the choices of an initial value or an update for each of some tensors, in the form of
    ``Adjoint.parts``.

    Example: ``"A", "B"`` -> ``{"init-init": {"A": "init", "B": "init"}, "init-update": ...}``.
    """
    modes: tuple[Mode, Mode] = ("init", "update")
    return {"-".join(m): dict(zip(roles, m, strict=True)) for m in product(modes, repeat=len(roles))} if roles else {}


def _split_path(path: str, roles: tuple[str, ...]) -> dict[str, dict[str, Mode]]:
    """Splits the gradient on a path by the initial values and updates of one or two tensors.

    Paths through three tensors are split into the pieces of MSSP paper, App. I.3, if they are named ``expert`` or
    ``router``. For all other paths the result is empty.

    Args:
        path: name of the path (``name_pathways``).
        roles: the tensors on it.
    """
    if len(roles) == 3 and path == "expert":
        labels = {"init-init": "A4", "init-update": "A5", "update-init": "A6", "update-update": "E"}
        return {
            f"{labels[modes]}.{k}": {**inner, **outer}
            for modes, inner in _split_by_modes(*roles[:2]).items()
            for k, (_, outer) in enumerate(_split_by_modes(roles[2]).items(), 1)
        }
    if len(roles) == 3 and path == "router":
        pieces: dict[str, dict[str, Mode]] = {}
        for label, router in zip(("Q0", "dQ"), _split_by_modes(roles[0]).values(), strict=True):
            pieces[label] = router
            pieces |= {f"{label}.{m}": {**router, **inner} for m, inner in _split_by_modes(*roles[1:]).items()}
        return pieces
    return _split_by_modes(*roles) if len(roles) <= 2 else {}
