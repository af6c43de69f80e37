"""Multipliers of a network that are unknowns, and those that are a choice of gauge.

Law: a product is unchanged where its tensor is divided by the factor that its multipliers are multiplied with. Factors
that leave every product unchanged are the gauge freedom; a multiplier that takes up freedom is a gauge and stays 1,
in the order in which multipliers appear. What is given takes up freedom first: then another member of the class is
derived. Source: abc-symmetry, Yang and Hu (2021), Tensor Programs IV, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

Scales = tuple[str, tuple[str, ...]]
"""The tensor of a product, or an empty text, and its multipliers."""
SHARE = "K/M"
"""The multiplier of sums over experts in a batch of which every token has K of M; no unknown."""


def tensor_of(name: str) -> str:
    """The scale of a tensor, as ``gauges`` calls it, by its role: ``lora_b.init``."""
    return f"tensor {name.partition('.')[0]}"


def gauges(products: Sequence[Scales], held: Iterable[str] = ()) -> tuple[str, ...]:
    """The multipliers that a change of scale of tensors and other multipliers can stand for.

    Args:
        held: multipliers, and tensors (``tensor_of``), whose scale is given.

    Examples:
        >>> once, twice = [("B", ("s",))], [("E", ("emb",)), ("E", ("out",))]
        >>> gauges(once), gauges(twice), gauges(once, ["tensor B"]), gauges(twice, ["out"])
        (('s',), ('emb',), (), ())
    """
    space: list[dict[str, Fraction]] = []
    for tensor, multipliers in products:
        names = [*([tensor_of(tensor)] if tensor else []), *multipliers]
        _adds(space, {name: Fraction(names.count(name)) for name in names})
    for name in held:
        _adds(space, {name: Fraction(1)})
    return tuple(m for m in dict.fromkeys(m for _, x in products for m in x) if _adds(space, {m: Fraction(1)}))


def _adds(space: list[dict[str, Fraction]], row: dict[str, Fraction]) -> bool:
    """Is a row independent of those before it? Then it is one of them, without their first names."""
    for other in space:
        first = next(iter(other))
        if factor := row.get(first, Fraction(0)):
            row = {k: row.get(k, Fraction(0)) - factor * other.get(k, Fraction(0)) for k in {**row, **other}}
    row = {k: x for k, x in row.items() if x}
    if row:
        scale = next(iter(row.values()))
        space.append({k: x / scale for k, x in row.items()})
    return bool(row)
