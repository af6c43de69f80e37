"""Sums over experts, found from the equations: what they weigh, what enters, and the tensors in between.

No letter, signal or role has a meaning of its own. Read next: ``roles.py`` (gradients and pathways).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .ancestors import ends, last_tensor, learns
from .indices import EXPERTS, aggregations
from .language import Network, Product, Sum
from .terms import written_out


@dataclass(frozen=True)
class ExpertSum:
    """A statement ``out = sum over experts of gates * an expert's output``, and what computes that output.

    Attributes:
        aggregation: the statement.
        gates: signals that weigh an expert by a number. ``routers``: the tensors behind them.
        entering: signals without an expert index that experts read.
        body: signals from there to the sum, in the order of the equations.
        inner, outer: tensors of the body; those applied last are outer.
        last: signals between the outer tensors and the sum.
    """

    aggregation: Product
    gates: tuple[str, ...]
    routers: tuple[str, ...]
    entering: tuple[str, ...]
    body: tuple[str, ...]
    inner: tuple[str, ...]
    outer: tuple[str, ...]
    last: tuple[str, ...]

    @property
    def out(self) -> str:
        return self.aggregation.out

    @property
    def source(self) -> str:
        """The signal that the gates weigh."""
        return next((x.name for x in self.aggregation.factors if x.name not in self.gates), "")

    @property
    def weights(self) -> tuple[str, ...]:
        """The gates that are factors of the sum."""
        return tuple(x.name for x in self.aggregation.factors if x.name in self.gates)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensors between what enters and the sum."""
        return (*self.inner, *self.outer)

    @property
    def pieces(self) -> Mapping[str, str]:
        """Pieces of the sum: by name, the only tensor or signal that changes; nothing changes in ``A1``.

        ``A2.k``: a signal that enters, then an inner tensor; ``A3``: the outer tensor, ``A3.k`` if there are several.
        Source: MSSP paper, App. I.3 (eq. I.4).
        """
        if not self.tensors:
            return {}
        middle = {f"A2.{k}": x for k, x in enumerate((*self.entering, *self.inner), 1)}
        outer = {f"A3.{k}" if len(self.outer) > 1 else "A3": role for k, role in enumerate(self.outer, 1)}
        return {"A1": "", **middle, **outer}


@lru_cache(maxsize=256)
def experts(network: Network) -> tuple[ExpertSum, ...]:
    """The sums over experts of a network."""
    return tuple(_found(network, s) for s in aggregations(network))


def _found(network: Network, s: Product) -> ExpertSum:
    gates = list(_weights(network, s) or (x.name for x in written_out(network, s)[0].weights))
    sources = [x.name for x in s.factors if x.name not in gates]
    inside, entering, todo = set[str](), dict[str, None](), list(sources)
    while todo:
        producer = network.producer(name := todo.pop())
        if producer is None or name in inside:
            continue
        if not any(network.axes[x] in EXPERTS for x in network.signals[name]):
            entering[name] = None
            continue
        inside.add(name)
        weights = _weights(network, producer) if isinstance(producer, Product) else ()
        gates += [x for x in weights if x not in gates]
        todo += [x.name for x in producer.inputs if x.name not in weights]
    body = tuple(x.out for x in network.statements if x.out in inside)
    linear = {x.tensor.name: None for x in network.linear if x.out in inside and x.tensor}
    outer = frozenset[str]().union(*(ends(network, x) for x in sources))
    made = {use.out for role in outer for use in network.uses(role)}
    last, todo = dict[str, None](), list(sources if outer else ())
    while todo:
        producer = network.producer(name := todo.pop())
        if name in inside and (name in made or isinstance(producer, Sum)):
            last[name] = None
            todo += [x.name for x in producer.inputs] if isinstance(producer, Sum) else []
    trained = [role for role in linear if role not in network.frozen]
    return ExpertSum(
        s,
        tuple(gates),
        tuple(dict.fromkeys(filter(None, (last_tensor(network, x) for x in gates)))),
        tuple(x for x in dict.fromkeys(y.out for y in network.statements) if x in entering and learns(network, x)),
        body,
        tuple(role for role in trained if role not in outer),
        tuple(role for role in trained if role in outer),
        tuple(last),
    )


def _weights(network: Network, s: Product) -> tuple[str, ...]:
    """Factors with an expert index that weigh each expert by a number: another factor has their letters and more."""
    if s.tensor:
        return ()
    numbers = [x for x in s.factors if any(network.axes[c] in EXPERTS for c in x.letters)]
    return tuple(x.name for x in numbers if any(set(x.letters) < set(y.letters) for y in s.factors))
