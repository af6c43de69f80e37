"""Chooses the sizes and the number of seeds of a run by arithmetic on dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, count_noun
from scaling_algebra.spec.axes import FIXED as NEVER
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.verify.judging.fit import MIN_SIZES
from scaling_algebra.verify.networks.scales import complete_sizes

FIXED = 4
"""Size of an axis that does not grow."""

WIDEST = 64
"""Maximum ratio of the largest to the smallest default size."""

COUNT = 5
"""Number of sizes in a default run."""

SMALLEST = {2: 64, 3: 44}
"""Smallest default n by growth of the largest tensor (rate of N + N_e + M, rounded). At smaller n the power law
bends too much."""

LARGEST_ELEMENTS = 7.2e6
"""Number of weight entries of one replica at the largest default size."""

WORK = 1.2e8
"""Number of weight entries trained at each size of a default run, all seeds together (about eight seconds on two
cores)."""

SEEDS = (32, 256)
"""Minimum and maximum number of seeds of a default run."""

WIDTHS = ("N", "N_e", "M")
"""Axes that have a size on every ray."""


def compute_dims(ray: Ray, n: int) -> dict[str, int]:
    """Returns the dimensions at size n: ``n**rate`` on a growing axis, a constant on the others.

    The sizes of two axes that grow at different rates therefore differ, as they do on the ray; with equal sizes, powers
    that differ on the ray would have equal values. K is included only if K < M.

    Raises:
        UsageError: an axis would be too large.
    """
    if n > 1 and float(ray.largest) * math.log10(n) > math.log10(limits.SIZE):
        raise UsageError(f"at n={n} an axis of {ray} is larger than {limits.SIZE}; give smaller --sizes")
    grown = (axis for axis in ray.axes if ray[axis] and axis not in (*WIDTHS, "K"))
    axes = (*WIDTHS, *(["K"] if ray["K"] != ray["M"] else []), *grown)
    dims = {axis: max(2, round(n ** float(ray[axis]))) if ray[axis] else FIXED for axis in axes}
    return {axis: min(size, dims["M"]) if axis == "K" else size for axis, size in dims.items()}


def compute_effective_n(ray: Ray, dims: Mapping[str, int], first_dims: Mapping[str, int], first: int) -> float:
    """Returns the n that describes a size best, since dimensions n^rate are rounded to whole numbers: by least squares
    in logs, it is the n whose powers fit them.

    Args:
        ray: the ray, which gives the rate of every axis.
        dims: the rounded dimensions.
        first_dims: the dimensions of the first size.
        first: n at the first size.
    """
    rates = {axis: float(ray[axis]) for axis in dims if axis != "K"}
    fitted = sum(r * math.log(dims[axis] / first_dims[axis]) for axis, r in rates.items())
    return round(first * math.exp(fitted / sum(r * r for r in rates.values())), 9)


def count_elements(dims: Mapping[str, int], network: Network = MOE_BLOCK) -> int:
    """Counts the weight entries of one replica approximately: of tensors with at least two indices that can grow, or of
    all tensors if there are none.
    """
    size = {"K": dims["M"], **complete_sizes(network, dims)}
    axes = [[network.axes[x] for x in t.indices] for t in network.tensors.values()]
    largest = [tensor_axes for tensor_axes in axes if sum(axis not in NEVER for axis in tensor_axes) > 1] or axes
    return sum(math.prod(size[axis] for axis in tensor_axes) for tensor_axes in largest)


def plan_sizes(
    ray: Ray, sizes: Sequence[int] | None, largest: float = LARGEST_ELEMENTS, network: Network = MOE_BLOCK
) -> list[int]:
    """Returns the sizes n of a run: the given ones after a check, or ``COUNT`` sizes in geometric progression, of which
    the last has about ``largest`` weight entries.

    Raises:
        UsageError: the sizes are fewer than 3, below 2, or not increasing.
    """
    if sizes is not None:
        if len(sizes) > limits.RATES:
            raise UsageError(f"{len(sizes)} sizes are too many; give at most {limits.RATES}")
        if len(sizes) < MIN_SIZES:
            raise UsageError(
                f"{count_noun(len(sizes), 'size')} cannot show a power law; give at least {MIN_SIZES}, e.g. 32,64,128"
            )
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 2 for n in sizes):
            raise UsageError(f"sizes are {list(sizes)!r}; give integers of at least 2")
        if any(a >= b for a, b in pairwise(sizes)):
            raise UsageError(f"sizes are {list(sizes)!r}; give them in increasing order, without repeats")
        return list(sizes)
    growth = round(max(_compute_growth(ray, network, t.indices) for t in network.tensors.values()))
    first = SMALLEST.get(growth, SMALLEST[2 if growth < 2 else 3])
    while first > 1 and count_elements(compute_dims(ray, 2 * first), network) > largest:
        first -= 1
    last, step = first, max(1, first // 4)
    while count_elements(compute_dims(ray, last + step), network) <= largest and last < WIDEST * first:
        last += step
    spread = [round(first * (last / first) ** (i / (COUNT - 1))) for i in range(COUNT)]
    if len(set(spread)) < MIN_SIZES:
        raise UsageError(f"{ray} grows too fast for default sizes; give --sizes of your own, e.g. 2,3,4")
    return sorted(set(spread))


def _compute_growth(ray: Ray, network: Network, indices: str) -> Fraction:
    """Returns the exponent of n with which the number of entries of a tensor with these indices grows on a ray."""
    return sum((ray[network.axes[x]] for x in indices), Fraction(0))


def plan_seeds(
    ray: Ray, sizes: Sequence[int], seeds: int | None, work: float = WORK, network: Network = MOE_BLOCK
) -> list[int]:
    """Returns the number of seeds at each size: the given number, or as many as ``work`` weight entries in all allow.

    Raises:
        UsageError: the given number is below one or too large.
    """
    if seeds is not None:
        limits.check_range("seeds", seeds, 1, limits.SEEDS)
        return [seeds] * len(sizes)
    few, many = SEEDS
    return [min(many, max(few, int(work / count_elements(compute_dims(ray, n), network)))) for n in sizes]
