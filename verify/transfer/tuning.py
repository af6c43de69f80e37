"""Tunes multipliers at the base size, for all sizes: a random search, then steps in one coordinate at a time.

Without tuned multipliers an effective update can be negligible at every size one can train (MSSP paper, App. Q.6). The
search is small: App. Q.7 shows cases where one of this kind stops short of the optimum.
Read next: ``study.py`` (uses the result at every width).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.networks.base_shapes import BaseShapes, Multipliers

from .sweep import Course, losses

REACH, STEPS, FARTHEST = 2, (2, 1), 4
"""log2 of the farthest random multiplier, of the factors tried in the local search, and of the farthest one it reaches.

A search left free may freeze a tensor, because that is a little better for few steps; a frozen tensor is the same in
every parameterization, and its own scaling would not be tested.
"""


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        log2_lr: global learning rate. multipliers: everything else.
        loss, untuned: mean loss with them, and of the first trial (all multipliers 1).
        trials: networks trained, all seeds counted once.
    """

    log2_lr: float
    multipliers: Multipliers
    loss: float
    untuned: float
    trials: int


def tune(course: Course, recipe: BaseShapes, log2_lr: float, trials: int) -> Tuned:
    """Best of ``trials`` settings at the base size: half of them at random around ``log2_lr``, the rest local steps.

    A local step is taken where it lowers the loss by more than its standard error over seeds, pairwise. The same random
    numbers are drawn for every parameterization, so all get the same chance.
    """
    rng = np.random.default_rng(20240)
    seen: dict[tuple[int, ...], Array] = {}
    trial = replace(course, compiled=False)  # every trial has constants of its own

    def multipliers(point: tuple[int, ...]) -> tuple[float, Multipliers]:
        shift, init, aggregation, *rates = point
        factors = {role: 2.0**x for role, x in zip(recipe.scaling.tensors, rates, strict=True)}
        return log2_lr + shift, Multipliers(2.0**init, 2.0**aggregation, factors)

    def at(point: tuple[int, ...]) -> Array:
        if point not in seen:
            course.say(f"{recipe.name}, tuning at N={recipe.base['N']}, trial {len(seen) + 1} of {trials}")
            lr, tuned = multipliers(point)
            seen[point] = losses(trial, replace(recipe, multipliers=tuned), recipe.base, 2.0**lr)[0]
        return seen[point]

    size = 3 + len(recipe.scaling.tensors)  # lr, init, aggregation, and the lr of every tensor
    untuned = at((0,) * size)
    while len(seen) < max(1, trials // 2):
        at(tuple(int(x) for x in rng.integers(-REACH, REACH + 1, size)))
    best = min(seen, key=lambda point: float(seen[point].mean()))
    moves = [(k, sign * step) for step in STEPS for k in range(size) for sign in (1, -1)]
    tried = 0
    while len(seen) < trials and tried < len(moves):  # every move failed in a row: a local optimum
        k, shift = moves[tried]
        other = (*best[:k], best[k] + shift, *best[k + 1 :])
        tried += 1
        if abs(other[k]) <= FARTHEST and better(at(other), at(best)):
            best, moves, tried = other, moves[tried - 1 :] + moves[: tried - 1], 0
    return Tuned(*multipliers(best), float(at(best).mean()), float(untuned.mean()), len(seen))


def better(losses: Array, than: Array) -> bool:
    """Is the mean over seeds lower by more than the standard error of the pairwise difference?"""
    gain = than - losses
    error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return bool(gain.mean() > error)
