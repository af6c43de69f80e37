"""Analyses of the indices of a network: sums over experts, products at one index, means that are subtracted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scaling_algebra.spec.axes import FIXED, sort_axes

from .auxiliary import aside
from .language import Function, Network, Product, remembered

EXPERTS = ("M", "K")
"""Axes of experts."""


def apart(network: Network, old: str, new: str, letters: str, taken: str = "", avoid: str = "") -> Mapping[str, str]:
    """New names of letters: ``new`` for ``old``. Any other letter keeps its name, or gets a free letter of its axis if
    its name is taken."""
    names = dict(zip(old, new, strict=True))
    for x in letters:
        if x not in names:
            used = {*taken, *names.values()}
            free = (c for c, axis in network.letters.items() if axis == network.letters[x] and c not in {*used, *avoid})
            names[x] = next(free) if x in used else x
    return names


def may_grow(network: Network) -> tuple[str, ...]:
    """Axes that may grow, in the order of ``ordered``."""
    return tuple(sort_axes({*network.axes.values()} - {*FIXED}))


def in_powers(network: Network) -> list[str]:
    """Axes that a power may have: those that may grow, and K where experts are summed."""
    return sort_axes({*may_grow(network), *(["K"] if aggregations(network) else [])})


@remembered
def aggregations(network: Network) -> tuple[Product, ...]:
    """The products that sum the outputs of experts, on the way to the output."""
    sums = (s for s in network.statements if isinstance(s, Product) and not s.tensor and expert_letters(network, s))
    return tuple(s for s in sums if s.out not in aside(network))


def expert_letters(network: Network, statement: Product) -> str:
    """The expert letters that a product sums."""
    return "".join(x for x in network.summed(statement) if network.axes[x] in EXPERTS)


@remembered
def tracked(network: Network) -> str:
    """Letters of the axes along which functions act. Signals keep them even where these axes do not grow."""
    gates = (balanced(network, s, k) for s in aggregations(network) for k in range(len(s.factors)))
    along = {network.axes[x] for x in "".join((*(s.over for s in spreading(network)), *gates))}
    return "".join(x for x, axis in network.letters.items() if axis in along)


@remembered
def centred(network: Network) -> frozenset[str]:
    """Axes along which a mean is subtracted."""
    means = "".join((tracked(network), *(s.over for s in network.functions if s.kind.centres)))
    return frozenset(network.letters[x] for x in means)


def curved(network: Network) -> list[Function]:
    """The functions that need not be linear in what they read: all that read something but held gates."""
    return [*network.live, *(s for s in network.functions if s.inputs and not s.gates)]


@remembered
def spreading(network: Network) -> tuple[Function, ...]:
    """The functions whose argument matters by its spread along an index: softmax, selections, gates of experts."""
    along = (s for s in network.live if s.over)
    return tuple(s for s in along if s.kind.kind == "softmax" or s.kind.selects or network.axes[s.over] == "M")


@remembered
def multiplicity(network: Network) -> Mapping[str, int]:
    """For each index letter, the largest number of signals multiplied at that index, counting the factors of nested
    products. Letters used for the same index of a signal or tensor count as one. A function counts as what it reads,
    and what a tensor makes as one."""
    held_by: dict[str, dict[str, int]] = {}
    most, alike = dict.fromkeys(network.letters, 1), {x: {x} for x in network.letters}
    for s in network.statements:
        counts = []
        for x in s.inputs:
            pairs = list(zip(network.signals[x.name], x.letters, strict=True))
            counts.append({c: held_by.get(x.name, {}).get(mine, 1) for mine, c in pairs})
            _join(alike, pairs)
        letters = {c for x in counts for c in x}
        joined = sum if isinstance(s, Product) else max
        held = {c: joined(x.get(c, 0) for x in counts) for c in letters}
        most |= {c: max(most[c], number) for c, number in held.items()}
        new = s.tensor.letters if isinstance(s, Product) and s.tensor else ""
        if isinstance(s, Product) and s.tensor:
            _join(alike, zip(network.tensors[s.tensor.name].letters, new, strict=True))
        held_by[s.out] = {c: 1 if c in new else held.get(c, 1) for c in network.signals[s.out]}
    return {c: max(most[x] for x in same) for c, same in alike.items()}


def reads_normed(network: Network, function: Function) -> bool:
    """Whether the argument of a function is computed, entry by entry, from what a norm makes along the same index."""
    return function.source is not None and bool(_normed_signals(network).get(function.source.name))


@remembered
def _normed_signals(network: Network) -> Mapping[str, frozenset[int]]:
    """Return the positions of each signal's indices along which a norm made it, or what it is computed from."""
    found: dict[str, frozenset[int]] = {}
    for s in network.statements:
        letters = {x.letters[at] for x in s.inputs for at in found.get(x.name, ())}
        letters |= {s.over} if isinstance(s, Function) and s.kind.kind == "norm" else set()
        found[s.out] = frozenset(k for k, x in enumerate(network.signals[s.out]) if x in letters)
    return found


def balanced(network: Network, statement: Product, k: int) -> str:
    """Letters along which the gradient at a gate has no constant part that is larger than the rest.

    Law: of x = sum_i gate_i h_i under a norm, the gradient is orthogonal to x, so sum_i gate_i df/dgate_i = 0, and
    a gate with a mean leaves no room for a constant part.
    """
    uses = network.consumers(statement.out)
    factor = statement.factors[k]
    gate = network.producer(factor.name)
    if statement.tensor or len(uses) != 1 or not isinstance(gate, Function):
        return ""
    above = uses[0][0]
    if not isinstance(above, Function) or above.kind.kind != "norm" or above.kind.centres:
        return ""
    if not gate.gates or 0 not in gate.kind.powers or network.signals[statement.out] != above.over:
        return ""
    return "".join(x for x in factor.letters if x not in network.signals[statement.out])


def _join(alike: dict[str, set[str]], pairs: Iterable[tuple[str, str]]) -> None:
    """Puts the letters of each pair into one class."""
    for x, y in pairs:
        alike[x] |= alike[y]
        alike |= dict.fromkeys(alike[x], alike[x])
