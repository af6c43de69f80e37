"""Shapes of a model's tensors: held against the sizes of a recipe, and their fans, which set powers of their own.

Where fan-in and fan-out of a dense layer do not both grow as N (a fixed rank, shared key heads, a shared expert), its
powers are those of a layer from N to N_e (``bottleneck``), with N its fan-in and N_e its fan-out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from torch import nn

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import TUNED, VECTORS, Recipe, recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.configuration import Where
from scaling_algebra.spec.networks.roles import matrix
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Power

from .modules import TRANSPOSED, parameters

Shape = tuple[int, ...]
Fans = tuple[tuple[int, int], tuple[int, int]]
"""(fan-in, fan-out) at the base and at the target."""
Settings = Mapping[str, Setting]
DENSE = ("hidden", "hidden_out")
"""Roles of layers whose widths are their own."""
FREE = (*DENSE, "gain", "bias")
"""Roles of tensors of any shape."""


def text(shape: Shape) -> str:
    """``8 x 16``."""
    return " x ".join(map(str, shape)) or "one number"


def check_shape(numbers: Recipe, name: str, role: str, shape: Shape, layout: str, sizes: Sizes) -> None:
    """Holds a tensor's shape against the sizes that it is to have; a gate may be stored in the rows of its matrix.

    Raises:
        UsageError: it has others, or another role's.
    """
    axes = _axes(numbers, role)
    if not axes:
        return
    whole, kinds = tuple(sizes[axis] for axis in axes), list[Shape]()
    if len(whole) == 3:  # experts one by one, or all in one matrix; with a gate or without
        copies, rows, columns = whole
        for r in (rows, 2 * rows):
            expert = (columns, r) if TRANSPOSED in layout else (r, columns)
            kinds += [(copies, *expert), expert, (copies * expert[0], expert[1])]
    if shape in (kinds or (whole, whole[::-1])) or (len(whole) == 1 and whole[0] in shape):
        return
    wrong = f"{name} is {text(shape)}, but {role} with these sizes has {' x '.join(axes)} = {text(whole)}"
    if shape in [kind[:-2] + kind[:-3:-1] for kind in kinds]:
        wrong += "; swap the roles of w1 and w2, or set is_transposed = True on its module if that stores in x out"
    raise UsageError(f"{wrong}; give sizes and roles of this model")


def _axes(numbers: Recipe, role: str) -> list[str]:
    """Axes of the copies, rows and columns of a tensor; empty where its shape is free."""
    if role in FREE:
        return []
    network = next(d.network for d in numbers.derivations if role in d.network.tensors)
    letters = matrix(network, role)
    sides = (letters.copies, letters.rows, letters.columns)
    axes = [[network.axes[x] for x in side if network.axes[x] != "L"] for side in sides]
    free = any(len(side) > 1 for side in axes)
    return [] if free else [axis for side in axes for axis in side if axis in numbers.way.base]


def general(name: str) -> str:
    """A name with its numbers left open: those of layers and experts."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    """Shapes by name, and by the name with numbers left open where all of that name have one shape."""
    named, alike = {p.name: p.shape for p in parameters(model)}, dict[str, set[Shape]]()
    for name, shape in named.items():
        alike.setdefault(general(name), set()).add(shape)
    return {name: shapes.pop() for name, shapes in alike.items() if len(shapes) == 1} | named


def fans(role: str, base: Shape, target: Shape, layout: str) -> Fans | None:
    """Fans of a dense matrix, or twice the length of a vector; None of other tensors."""
    if role in VECTORS:
        return (math.prod(base),) * 2, (math.prod(target),) * 2
    if role not in DENSE or not len(base) == len(target) == 2:
        return None
    (a, b), (c, d) = (shape if TRANSPOSED in layout else shape[::-1] for shape in (base, target))
    return (a, b), (c, d)


def refitted(settings: Settings, role: str, rule: Optimizer, sides: Fans, numbers: Recipe) -> tuple[Settings, str]:
    """The settings of a tensor with its own fans, and what they do not keep.

    Law: what a rule says of N it says of the fans; epsilon is that of a gradient's entry, 1 / fan-out.
    """
    base, target = numbers.way.base, numbers.way.target
    if all(after * base["N"] == before * target["N"] for before, after in zip(*sides, strict=True)):
        return settings, ""
    powers, note = ({}, "") if role in VECTORS else _layer(rule.name, rule.regime, *sides)
    if note and not powers:
        return settings, note

    def moved(what: str, s: Setting) -> Setting:
        if s.rule is None or (role not in VECTORS and what not in (*powers, "eps")):
            return s
        ends = {"before": s.before or s.rule, "after": s.rule}
        width = {end: Power.of({"N": power["N"]}) for end, power in ends.items()}
        alone = {end: Power.of({"N_e": power["N"]}) for end, power in ends.items()}  # of fan-out
        out_base, out_target = ({"N_e": side[1]} for side in sides)
        factor = alone["after"].at(out_target) / alone["before"].at(out_base)
        if what in powers:
            x = powers[what]
            assert x.rule is not None
            alone, factor = {"before": x.before or x.rule, "after": x.rule}, x.factor
        factor *= s.factor * width["before"].at(base) / width["after"].at(target)
        before, after = (ends[end] / width[end] * alone[end] for end in ends)
        return replace(s, rule=after, factor=factor, before=None if before == after else before)

    return {what: moved(what, s) for what, s in settings.items()}, note


@cache
def _layer(rule: str, regime: str | None, base: tuple[int, int], target: tuple[int, int]) -> tuple[Settings, str]:
    """Powers of a dense layer with these fans, in N, its fan-in, and N_e, its fan-out; and what they do not keep."""
    if base == target:
        return dict.fromkeys(TUNED, Setting(Power(), 1.0)), ""
    if base[0] >= target[0] and base[1] >= target[1]:
        back, note = _layer(rule, regime, target, base)
        return {what: replace(s, rule=s.before or s.rule, factor=1 / s.factor) for what, s in back.items()}, note
    start, end = ({"N": fan_in, "N_e": fan_out, "M": 1, "K": 1} for fan_in, fan_out in (base, target))
    where: Where = {"network": "bottleneck"} if regime is None else {"network": "bottleneck", "epsilon": "negligible"}
    why = "no muP keeps all demands where fan-out grows more slowly than fan-in; what is set is the nearest"
    try:
        layer = recipe(start, end, rule, **where)
    except Infeasible:
        return {}, why
    return {what: s for what, s in layer["down"].items() if what != "eps"}, why if layer.instead else ""
