"""Expands products down to their tensors, such as the output of an expert inside the sum over experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .indices import rename_apart
from .language import Factor, Function, Network, Product, Sum, cache_on_network


@dataclass(frozen=True)
class Term:
    """One term of an expanded product: ``multipliers * weights * tensors * signals``.

    Attributes:
        weights: signals that gate the others.
        tensors: tensors, by role.
        signals: signals that the tensors act on.
        multipliers: names of the multipliers (numbers that the forward pass multiplies by).
    """

    weights: tuple[Factor, ...]
    tensors: tuple[Factor, ...]
    signals: tuple[Factor, ...]
    multipliers: tuple[str, ...]


@cache_on_network
def expand_product(network: Network, statement: Product, without: int | None = None) -> tuple[Term, ...]:
    """Expands a product to a sum of terms in which the tensors are explicit.

    A factor that is a tensor times signals, or a sum of such products, is replaced by them, so that a sum over experts
    is taken over their tensors. Gates stay as they are.

    Args:
        network: the network.
        statement: the product.
        without: position of a factor to leave out; None for none.
    """
    if statement.tensor:
        factors = tuple(x for k, x in enumerate(statement.factors) if k != without)
        return (Term((), (statement.tensor,), factors, statement.multipliers),)
    gating = {s.out for s in network.functions if s.gates}
    gates = [k for k, x in enumerate(statement.factors) if x.name in gating]
    gates = gates if len(gates) < len(statement.factors) else gates[:-1]
    weights = tuple(statement.factors[k] for k in gates if k != without)
    found, taken = [Term(weights, (), (), statement.multipliers)], statement.indices
    for k, factor in enumerate(statement.factors):
        if k in gates or k == without:
            continue
        parts = _expand_factor(network, factor, taken)
        taken += "".join(x.indices for part in parts for x in (*part.tensors, *part.signals))
        found = [
            Term(t.weights, t.tensors + p.tensors, t.signals + p.signals, t.multipliers + p.multipliers)
            for t in found
            for p in parts
        ]
    return tuple(found)


@cache_on_network
def find_weight_products(network: Network) -> Mapping[str, tuple[Product, ...]]:
    """Finds products of tensors, entry by entry, that together act as one weight matrix.

    Example: for ``y[b] = S[b,a] W[b,a] h[a]`` the network has ``y_1[b,a] = W[b,a] h[a]``, which no module computes.

    Returns:
        For each such signal (``y_1``) the products that read it, one after the other, up to a signal that a module
        computes (``y``).
    """
    spread = set[str]()  # signals with an index that only a tensor introduces and no sum has removed yet
    for s in network.linear:
        read = "".join(x.indices for x in s.factors)
        own = s.tensor is not None and not set(s.tensor.indices) <= set(read)
        if not network.summed_indices(s) and (own or spread.intersection(x.name for x in s.factors)):
            spread.add(s.out)
    found: dict[str, tuple[Product, ...]] = {}
    for s in reversed(network.linear):
        (above, k), *others = network.consumers(s.out) or ((None, 0),)
        if s.out not in spread or others or not isinstance(above, Product) or not (s.tensor and above.tensor):
            continue
        here = dict(zip(network.signals[s.out], above.factors[k].indices, strict=True))
        if {here[x] for x in s.tensor.indices} == {*above.tensor.indices}:
            found[s.out] = (above, *found.get(above.out, ()))
    return found


def find_product(network: Network, signal: str) -> Product:
    """Returns the product that computes a signal."""
    statement = network.producer(signal)
    assert isinstance(statement, Product)
    return statement


def is_held(network: Network, signal: str) -> bool:
    """Tests whether a signal is a gate whose mean and slope are held fixed."""
    statement = network.producer(signal)
    return isinstance(statement, Function) and statement.held


def _expand_factor(network: Network, factor: Factor, taken: str) -> list[Term]:
    """Expands one factor of a product to a sum of terms.

    Args:
        network: the network.
        factor: the factor, with its indices in the product.
        taken: indices of the product, with which new ones must not clash.
    """
    statement = network.producer(factor.name)
    if isinstance(statement, Sum):
        renamed = dict(zip(network.signals[factor.name], factor.indices, strict=True))
        return [term for x in statement.terms for term in _expand_factor(network, x.rename_indices(renamed), taken)]
    if not (isinstance(statement, Product) and statement.tensor):
        return [Term((), (), (factor,), ())]
    names = rename_apart(network, network.signals[factor.name], factor.indices, statement.indices, taken)
    tensor, factors = statement.tensor.rename_indices(names), tuple(x.rename_indices(names) for x in statement.factors)
    return [Term((), (tensor,), factors, statement.multipliers)]
