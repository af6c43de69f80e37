"""Restricted runs: few tensors train and residual branches are zero. A size found there is a lower bound for the full
run.

Law: each learning rate and init std is a power of n times a constant. The coefficient of the largest power of n in a
quantity is a function of these constants, and analytic where no number by which norms or optimizer steps divide is
zero. If it is nonzero where some of these constants are zero, it is nonzero for generic constants. So a monomial found
in a restricted run whose divisors have the same sizes as in the full run is a lower bound there. A restricted run has
few monomials, so few of them could cancel, even where norms remove the part of a signal along a direction.
Terms of this module: a *restricted point* is a point of the scaling at which most tensors are frozen or zero; a
*branch* is a term added to its own input, such as ``f(h)`` in ``h + f(h)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from scaling_algebra.spec.networks.ancestors import find_last_tensors
from scaling_algebra.spec.networks.language import Network, Product, Statement, Sum
from scaling_algebra.spec.networks.terms import expand_product
from scaling_algebra.spec.scaling import Point

from .quantities import Quantity

SLOW = Fraction(1, 1024)
"""Exponent by which learning rates are reduced in a restricted run, in units of the fastest axis: monomials of higher
order in the learning rates are then smaller and cannot cancel one of lower order."""
ORDERS = 12
"""Maximum number of learning rates that are multiplied in a monomial of a restricted run."""


@dataclass(frozen=True)
class Branch:
    """A part of the network that a restricted run may set to zero: a residual branch (a term of a sum that has another
    term as its input), or the computation of softmax logits.

    Attributes:
        ends: the tensors applied last; if these are zero, the branch is zero.
        inside: signals of the branch.
        after: those signals of the branch that are zero if ``ends`` are.
    """

    ends: frozenset[str]
    inside: frozenset[str]
    after: frozenset[str]


def restricted_points(network: Network, point: Point, signal: str) -> Iterator[Point]:
    """Yields choices of exponents (points) with which few tensors train, so that sizes are easy to compute; a size
    found there is a lower bound. Points with which a signal is most likely to change come first.

    First only the tensor that is nearest to the signal trains, then only one of the others, then the nearest one
    together with one of the others. Tensors that start at zero always train, since without them nothing changes.
    Branches in which nothing trains are zero, unless the signal would then be zero, too. If the signal lies inside a
    branch, that branch first starts at zero, because otherwise a norm mixes its initial value with what it learned; at
    later points it does not.
    """
    candidates = [*find_branches(network), *_find_logit_branches(network)]
    near = _rank_tensors(network, signal)
    around = [b for b in candidates if signal in b.inside - b.after]
    for zeroed in dict.fromkeys((tuple(around), ())):
        for learning in (*({x} for x in near), *({near[0], x} for x in near[1:])):
            yield _restrict_point(network, point, signal, candidates, learning, zeroed)


def _restrict_point(
    network: Network,
    point: Point,
    signal: str,
    candidates: list[Branch],
    learning: set[str],
    zeroed: tuple[Branch, ...],
) -> Point:
    """Returns the choice of exponents with which only some tensors train, and parts of the network in which nothing
    trains are zero.

    Args:
        network: the network.
        point: the exponents of the full run.
        signal: the signal whose size is computed, which must stay nonzero; "" for none.
        candidates: all parts of the network (branches) that may be set to zero.
        learning: tensors that train. Tensors that start at zero, and the last tensors (``ends``) of ``zeroed``, train
            as well.
        zeroed: branches that start at zero.
    """
    ends, exempt = (frozenset[str]().union(*(getattr(b, x) for b in zeroed)) for x in ("ends", "inside"))
    learning = learning | ends
    moved = {s.out for role in learning for s in network.uses(role)}
    idle = [b for b in candidates if signal and signal not in b.after and (b.inside - exempt).isdisjoint(moved)]
    dead = frozenset[str]().union(*(b.ends for b in idle)) - learning
    start = {role: None if role in dead | ends else b for role, b in point.b.items()}
    zero = point.zero - dead
    return replace(point, b=start, frozen=frozenset(network.tensors) - learning - zero)


@lru_cache(maxsize=64)
def find_branches(network: Network) -> tuple[Branch, ...]:
    """Returns the residual branches of a network, such as ``f(h)`` in ``h + f(h)``: terms of a sum that have another
    term of the same sum as an input."""
    residual = []
    for s in network.statements:
        terms = [x.name for x in s.inputs] if isinstance(s, Sum) else []
        for y in terms:
            for z in terms:
                if (
                    z != y
                    and z in (inputs := find_dependencies(network, y))
                    and (last := find_last_tensors(network, y))
                ):
                    inside = inputs - find_dependencies(network, z)
                    outputs = {use.out for role in last for use in network.uses(role)}
                    after = frozenset(x for x in inside if outputs & find_dependencies(network, x))
                    residual.append(Branch(last, inside, after))
    return tuple(residual)


@lru_cache(maxsize=64)
def _find_logit_branches(network: Network) -> tuple[Branch, ...]:
    """Returns, for each softmax, the part of the network that computes its argument (the logits), as a branch that a
    restricted run may set to zero. It contains the signals that are used for nothing else.
    """
    logits = []
    for s in network.functions:
        if s.kind.kind == "softmax" and s.source is not None and (last := find_last_tensors(network, s.source.name)):
            alone: set[str] = {s.source.name}
            for x in reversed(network.statements):
                readers = network.consumers(x.out)
                alone |= {x.out} if readers and all(y.out in alone for y, _ in readers) else set()
            outputs = {use.out for role in last for use in network.uses(role)}
            logits.append(
                Branch(last, frozenset(alone), frozenset(x for x in alone if outputs & find_dependencies(network, x)))
            )
    return tuple(logits)


def _list_tensors(network: Network, s: Statement) -> list[str]:
    """Returns the names of the tensors that a statement multiplies; empty if it is not a product."""
    terms = expand_product(network, s) if isinstance(s, Product) else ()
    return [f.name for term in terms for f in term.tensors]


@lru_cache(maxsize=1024)
def find_dependencies(network: Network, signal: str, dead: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns a signal and all signals that it depends on, without the inputs of the network.

    Args:
        network: the network.
        signal: the signal.
        dead: tensors that are zero and stay zero. A product with one of them is zero, so it does not depend on its
            factors.
    """
    found, todo = set[str](), [signal]
    while todo:
        x = todo.pop()
        s = network.producer(x)
        if x not in found and s is not None:
            found.add(x)
            todo += [] if dead and dead.intersection(_list_tensors(network, s)) else [f.name for f in s.inputs]
    return frozenset(found)


def find_signal(network: Network, quantity: Quantity) -> str:
    """Returns the signal that a quantity describes: ``h2`` for ``h2.change``, and the output ``h2`` for an update
    ``dW2`` with ``h2 = W2 h1``. "" if there is none."""
    if quantity.tensor:
        return network.uses(quantity.tensor)[0].out
    name = quantity.name.partition(".")[0]
    return name if network.producer(name) else ""


def _rank_tensors(network: Network, signal: str) -> list[str]:
    """Returns all tensors in the order in which they are likely to change a signal: first those used to compute it or
    anything before it, in backward order, then the others."""
    statements = network.statements
    at = next((k + 1 for k, s in enumerate(statements) if s.out == signal), 0)
    return list(
        dict.fromkeys(x for s in (*reversed(statements[:at]), *statements[at:]) for x in _list_tensors(network, s))
    )
