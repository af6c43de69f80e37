"""Rewrites networks so that every signal has at most one growing index in addition to that of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaling_algebra.spec.networks.language import Network, Product


def fuse_products(network: Network, growing: frozenset[str]) -> Network:
    """Merges every product of a tensor whose result has several growing indices into the product that reads it, if
    only one does and has no tensor.

    Example: ``e[i,b] = W3[i,b,k] h2[i,k]`` (outputs of all experts) and ``h3[b] = phi[i] e[i,b]`` (their sum) become
    ``h3[b] = phi[i] W3[i,b,k] h2[i,k]``.

    Args:
        network: the network.
        growing: the indices that grow.
    """
    left: dict[str, Any] = {s.out: s for s in network.statements}
    for s in network.statements:
        readers = network.consumers(s.out)
        if not (
            isinstance(s, Product) and s.tensor and len(growing & set(network.signals[s.out])) > 1 and len(readers) == 1
        ):
            continue
        out, k = readers[0]
        reader = left[out.out]
        if isinstance(reader, Product) and not reader.tensor:
            use, indices = out.inputs[k], network.signals[s.out]
            names = {x: x for x in s.indices} | dict(zip(indices, use.indices, strict=True))
            if any(x in reader.indices for x in s.indices if x not in indices):
                continue
            factors = tuple(x for x in reader.factors if x is not use)
            own = [x.rename_indices(names) for x in (s.tensor, *s.factors)]
            multipliers = (*s.multipliers, *reader.multipliers)
            left[out.out] = Product(out.out, (*factors, *own[1:]), own[0], multipliers)
            del left[s.out]
    return replace(network, statements=tuple(left.values()))
