"""Finds tensors that keep the module's values (frozen ones, for example) although the numbers need them to scale with
size.

Read next: ``planning.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.spec.level import OpenDemand
from scaling_algebra.spec.networks.language import Sum
from scaling_algebra.verify.tracing.measuring import find_parameters

from .plans import Plan

APART, CHANCE = 0.05, 3.0
"""A frozen tensor is reported if its size differs from the needed power by more than this relative difference, and
by more than this many standard errors."""


def find_misscaled_tensors(p: Plan, small: nn.Module, base: Mapping[str, int]) -> Iterator[OpenDemand]:
    """Compares the rms of every tensor that keeps the module's values (because it is frozen, for example) at two
    sizes, and yields an unmet demand for each tensor whose rms does not change with the sizes as the recipe needs.

    Tensors whose parts need different powers are yielded without a comparison.

    Args:
        p: the plan, with the module at the target.
        small: the module at smaller sizes, whose values are compared with those at the target.
        base: the sizes of ``small``.
    """
    for e in (e for e in p.entries if (e.frozen or e.kept) and e.role):
        what, do = ("it is frozen", "let it train") if e.frozen else ("init_ keeps its start", "draw it around zero")
        found, demand = (
            [*find_parameters(small, e.role)[:1], e.tensor],
            "a tensor that is not drawn has the derived size",
        )
        if any(x.is_meta for x in found):  # has no values
            continue
        if "init_std" not in e.settings:
            yield OpenDemand(demand, e.name, 0, f"{what}, but its parts need different powers of the sizes", e.role)
            continue
        rule, sizes = e.settings["init_std"].rule, [_compute_rms(x) for x in found]
        if rule is None or not all(sizes):
            continue
        going = p.recipe.way
        off = rule.ratio(base, going.target) / (sizes[-1] / sizes[0])
        if off > 1 and _is_bias(p.recipe, e.role):  # a smaller bias does no harm
            continue
        if abs(math.log(off)) > max(APART, CHANCE * math.sqrt(sum(1 / (2 * x.numel()) for x in found))):
            at = ",".join(f"{axis}={n}" for axis, n in going.base.items())
            off **= _compute_share(base, going.base, going.target)
            why = f"{what}, and the numbers need that it goes as {rule}: from {at} on the module's own is"
            why += f" {1 / off:.3g} times that; multiply it, or what it makes, by {off:.3g}, or {do}"
            yield OpenDemand(demand, e.name, 0, why, e.role)


def _is_bias(numbers: Recipe, role: str) -> bool:
    """Whether a tensor is a bias, which does no harm if it is too small: it has no fan-in, multiplies no computed
    signal, and is only used as a term of sums.
    """
    network = next(d.network for d in numbers.derivations if role in d.network.tensors)
    read = (x.name for s in network.uses(role) for x in s.factors)
    readers = (x for s in network.uses(role) for x, _ in network.consumers(s.out))
    added = all(isinstance(x, Sum) for x in readers) and all(network.producer(name) is None for name in read)
    return added and not network.tensors[role].fan_in


def _compute_share(small: Mapping[str, int], base: Mapping[str, int], target: Mapping[str, int]) -> float:
    """Returns which fraction of the growth from the sizes ``small`` to the target, on a log scale, lies between base
    and target.

    A deviation that is found between ``small`` and the target is reduced to this fraction. The growth is measured along
    the axis that grows most from base to target.
    """
    axis = max(base, key=lambda x: target[x] / base[x])
    far = math.log(target[axis] / small[axis]) if target[axis] != small.get(axis, 0) else 0.0
    return math.log(target[axis] / base[axis]) / far if far else 1.0


def _compute_rms(x: Tensor) -> float:
    """Returns the root mean square of a tensor."""
    return float(x.detach().double().square().mean().sqrt())
