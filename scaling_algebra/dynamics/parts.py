"""Runs in which few tensors learn and side branches are zero: what a size is there it is at least in the whole run.

Law: the leading coefficient of a quantity is a function of the constants of all learning rates and init stds, analytic
where no divisor vanishes. What it is where some of these constants are zero it is at least for generic constants. So a
monomial that is shown in a part that divides by the same sizes is a witness for the whole; where norms take something
away, few other monomials are left there that could cancel it.
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
"""Power of n by which a part learns more slowly, in units of the fastest axis: what is of higher order in the learning
rates is smaller there, and cancels nothing of lower order."""
ORDERS = 12
"""Learning rates that a monomial of a part may be a product of."""


@dataclass(frozen=True)
class Branch:
    """A term that is added to what it was computed from, or the logits of a softmax, which weighs alike without them.

    Attributes:
        ends: the tensors applied last: where these are zero, the term is.
        inside: signals of the branch.
        after: those that are zero where ``ends`` are.
    """

    ends: frozenset[str]
    inside: frozenset[str]
    after: frozenset[str]


def parts(network: Network, point: Point, signal: str) -> Iterator[Point]:
    """Points at which few tensors learn: one, those first by which a signal is likely to move; then the nearest and
    another. Tensors that start at zero learn always: without these nothing moves. Branches in which nothing learns are
    zero, but for those that the signal is what comes out of. Branches that it is inside of start at zero first, where
    a norm mixes what they start with and what they learn; then they do not."""
    along = [*branches(network), *_logits(network)]
    near = _nearest(network, signal)
    around = [b for b in along if signal in b.inside - b.after]
    for begun in dict.fromkeys((tuple(around), ())):
        for learning in (*({x} for x in near), *({near[0], x} for x in near[1:])):
            yield _part(network, point, signal, along, learning, begun)


def _part(
    network: Network, point: Point, signal: str, along: list[Branch], learning: set[str], begun: tuple[Branch, ...]
) -> Point:
    """The point at which these tensors learn, and the ends of the branches that begin at zero."""
    ends, beside = (frozenset[str]().union(*(getattr(b, x) for b in begun)) for x in ("ends", "inside"))
    learning = learning | ends
    moved = {s.out for role in learning for s in network.uses(role)}
    idle = [b for b in along if signal and signal not in b.after and (b.inside - beside).isdisjoint(moved)]
    dead = frozenset[str]().union(*(b.ends for b in idle)) - learning
    start = {role: None if role in dead | ends else b for role, b in point.b.items()}
    zero = point.zero - dead
    return replace(point, b=start, frozen=frozenset(network.tensors) - learning - zero)


@lru_cache(maxsize=64)
def branches(network: Network) -> tuple[Branch, ...]:
    """Residual branches: terms of a sum that another term of it is an input of."""
    residual = []
    for s in network.statements:
        terms = [x.name for x in s.inputs] if isinstance(s, Sum) else []
        for y in terms:
            for z in terms:
                if z != y and z in (inputs := ancestors(network, y)) and (last := find_last_tensors(network, y)):
                    inside = inputs - ancestors(network, z)
                    outputs = {use.out for role in last for use in network.uses(role)}
                    after = frozenset(x for x in inside if outputs & ancestors(network, x))
                    residual.append(Branch(last, inside, after))
    return tuple(residual)


@lru_cache(maxsize=64)
def _logits(network: Network) -> tuple[Branch, ...]:
    """The logits of every softmax, with what is computed for these alone."""
    logits = []
    for s in network.functions:
        if s.kind.kind == "softmax" and s.source is not None and (last := find_last_tensors(network, s.source.name)):
            alone: set[str] = {s.source.name}
            for x in reversed(network.statements):
                readers = network.consumers(x.out)
                alone |= {x.out} if readers and all(y.out in alone for y, _ in readers) else set()
            outputs = {use.out for role in last for use in network.uses(role)}
            logits.append(
                Branch(last, frozenset(alone), frozenset(x for x in alone if outputs & ancestors(network, x)))
            )
    return tuple(logits)


@lru_cache(maxsize=1024)
def ancestors(network: Network, signal: str) -> frozenset[str]:
    """A signal and all that it is computed from."""
    ancestors, todo = set[str](), [signal]
    while todo:
        x = todo.pop()
        producer = network.producer(x)
        if x not in ancestors and producer is not None:
            ancestors.add(x)
            todo += [f.name for f in producer.inputs]
    return frozenset(ancestors)


def _tensors(network: Network, s: Statement) -> list[str]:
    terms = expand_product(network, s) if isinstance(s, Product) else ()
    return [f.name for term in terms for f in term.tensors]


@lru_cache(maxsize=1024)
def counting(network: Network, signal: str, dead: frozenset[str]) -> frozenset[str]:
    """A signal and all that it depends on where some tensors are zero and stay so."""
    found, todo = set[str](), [signal]
    while todo:
        x = todo.pop()
        s = network.producer(x)
        if x not in found and s is not None:
            found.add(x)
            todo += [] if dead.intersection(_tensors(network, s)) else [f.name for f in s.inputs]
    return frozenset(found)


def signal_of(network: Network, quantity: Quantity) -> str:
    """The signal that a quantity is of, or that its tensor makes; empty if that is not known."""
    if quantity.tensor:
        return network.uses(quantity.tensor)[0].out
    name = quantity.name.partition(".")[0]
    return name if network.producer(name) else ""


def _nearest(network: Network, signal: str) -> list[str]:
    """Tensors used on the way to a signal, the last ones first, then the others."""
    statements = network.statements
    at = next((k + 1 for k, s in enumerate(statements) if s.out == signal), 0)
    return list(dict.fromkeys(x for s in (*reversed(statements[:at]), *statements[at:]) for x in _tensors(network, s)))
