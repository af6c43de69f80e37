"""Finds the sums over experts in the equations: their gates, their inputs, and the tensors of the experts.

No index, signal or role has a meaning of its own. Read next: ``roles.py`` (gradients and pathways).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .ancestors import find_last_tensor, find_last_tensors, is_trained
from .indices import EXPERTS, find_aggregations
from .language import Network, Product, Sum
from .terms import expand_product


@dataclass(frozen=True)
class ExpertSum:
    """A statement ``out = sum over experts of gates * an expert's output``, and the tensors and signals that it uses.

    Attributes:
        aggregation: the statement.
        gates: signals that weigh each expert by a number.
        routers: last tensors on the paths to the gates.
        entering: signals without an expert index that experts read and that depend on trained tensors.
        body: signals that the experts compute, in the order of the equations.
        inner: tensors of the experts after which another tensor of the expert acts.
        outer: tensors of the experts that act last.
        last: signals that are computed after the outer tensors and before the sum.
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
        """The gates that are factors of the summed product; other gates act inside the experts."""
        return tuple(x.name for x in self.aggregation.factors if x.name in self.gates)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensors of the experts."""
        return (*self.inner, *self.outer)

    @property
    def pieces(self) -> Mapping[str, str]:
        """The pieces of the sum: name -> the only tensor or signal that has changed in this piece, while everything
        else has its initial value.

        ``A1``: nothing has changed; ``A2.1``, ``A2.2``, ...: first each entering signal, then each inner tensor;
        ``A3``: the outer tensor, or ``A3.1``, ``A3.2``, ... if there are several.
        Source: MSSP paper, App. I.3 (eq. I.4).
        """
        if not self.tensors:
            return {}
        middle = {f"A2.{k}": x for k, x in enumerate((*self.entering, *self.inner), 1)}
        outer = {f"A3.{k}" if len(self.outer) > 1 else "A3": role for k, role in enumerate(self.outer, 1)}
        return {"A1": "", **middle, **outer}


@lru_cache(maxsize=256)
def experts(network: Network) -> tuple[ExpertSum, ...]:
    """Returns the sums over experts of a network."""
    return tuple(_analyse_sum(network, s) for s in find_aggregations(network))


def _analyse_sum(network: Network, s: Product) -> ExpertSum:
    """Finds the parts of a sum over experts."""
    gates = list(_find_weights(network, s) or (x.name for x in expand_product(network, s)[0].weights))
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
        weights = _find_weights(network, producer) if isinstance(producer, Product) else ()
        gates += [x for x in weights if x not in gates]
        todo += [x.name for x in producer.inputs if x.name not in weights]
    body = tuple(x.out for x in network.statements if x.out in inside)
    linear = {x.tensor.name: None for x in network.linear if x.out in inside and x.tensor}
    outer = frozenset[str]().union(*(find_last_tensors(network, x) for x in sources))
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
        tuple(dict.fromkeys(filter(None, (find_last_tensor(network, x) for x in gates)))),
        tuple(x for x in dict.fromkeys(y.out for y in network.statements) if x in entering and is_trained(network, x)),
        body,
        tuple(role for role in trained if role not in outer),
        tuple(role for role in trained if role in outer),
        tuple(last),
    )


def _find_weights(network: Network, s: Product) -> tuple[str, ...]:
    """Returns the factors with an expert index that weigh each expert by a number.

    These are factors whose indices are a proper subset of another factor's.
    """
    if s.tensor:
        return ()
    numbers = [x for x in s.factors if any(network.axes[c] in EXPERTS for c in x.indices)]
    return tuple(x.name for x in numbers if any(set(x.indices) < set(y.indices) for y in s.factors))
