"""Rows of the table for products, sums, and functions along dimensions. Read next: ``products.py``."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from .calls import rule
from .elementwise import added, function_of, multiplied, scaled
from .graph import View
from .indices import convert_constant
from .layout import reshaped
from .nodes import SameSize
from .products import contract
from .reading import Reader

# products -------------------------------------------------------------------------------------------------------


@rule("linear")
def linear(reader: Reader, x: View, weight: View, bias: View | None = None) -> View:
    lead = list(range(len(x.dims) - 1))
    out = contract(reader, [(weight, ["o", "i"]), (x, [*lead, "i"])], [*lead, "o"])
    return out if bias is None else added(reader, [out, bias])


@rule("matmul", "bmm", "mm", "mv", "dot")
def matmul(reader: Reader, a: View, b: View) -> View:
    n = max(len(a.dims), len(b.dims), 2) - 2
    left = ["i"] if len(a.dims) == 1 else [*range(n - len(a.dims) + 2, n), "r", "i"]
    right = ["i"] if len(b.dims) == 1 else [*range(n - len(b.dims) + 2, n), "i", "o"]
    return contract(reader, [(a, left), (b, right)], [k for k in (*range(n), "r", "o") if k in (*left, *right)])


@rule("bilinear")
def bilinear(reader: Reader, a: View, b: View, weight: View, bias: View | None = None) -> View:
    """A matrix for each entry, between two signals."""
    lead = list(range(len(a.dims) - 1))
    one = contract(reader, [(weight, ["o", "i", "j"]), (a, [*lead, "i"])], [*lead, "o", "j"])
    out = contract(reader, [(one, [*lead, "o", "j"]), (b, [*lead, "j"])], [*lead, "o"])
    return out if bias is None else added(reader, [out, bias])


@rule("einsum")
def einsum(reader: Reader, equation: str, *rest: Any) -> View:
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    left, _, out = equation.partition("->")
    return contract(reader, list(zip(operands, map(list, left.split(",")), strict=True)), list(out))


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
def convolution(
    reader: Reader,
    x: View,
    weight: View,
    bias: View | None = None,
    stride: Any = 1,
    padding: Any = 0,
    *rest: Any,
    **words: Any,
) -> View:
    """Patches, (places, channels, kernel), are the signal along places times constants, and the kernel a matrix on
    them: y[o,p] = W[o,c,k] C[p,k,q] x[c,q]."""
    transposed = "transpose" in reader.name
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    given = {"groups": 1, "dilation": 1} | dict(zip(names, rest, strict=False)) | words
    n = len(weight.dims) - 2
    if len(x.dims) != n + 2:
        raise reader.fail("a convolution without a batch")
    groups = reader.vector(given["groups"])
    if c := int(max(groups) > 1):  # side by side
        x, weight = _apart(reader, x, 1, groups), _apart(reader, weight, 0, groups)
    lead, taps, here = ["b", *["g"] * c, "i"], [f"k{d}" for d in range(n)], [f"p{d}" for d in range(n)]
    patches, keys = x, [*lead, *(f"q{d}" for d in range(n))]
    for d in range(n):
        sizes = reader.shapes[0][0][2 + d], weight.sizes(2 + c + d, 1)[0], x.sizes(2 + c + d, 1)[0]
        step, pad, wide = (_each(v, d, n) for v in (stride, padding, given["dilation"]))
        pad = (sizes[1] - 1) * wide // 2 if pad == "same" else 0 if pad == "valid" else pad
        if (sizes[1], step, pad) == (1, 1, 0):  # every place by itself
            here[d] = f"q{d}"
            continue
        place, tap, at = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
        meets = at * step - pad + tap * wide == place if transposed else place * step - pad + tap * wide == at
        matrix = convert_constant(reader, reader.constant([meets.double()] * reader.builds))
        out = [*lead, *taps[: d + 1], *here[: d + 1], *(f"q{e}" for e in range(d + 1, n))]
        patches, keys = contract(reader, [(matrix, [here[d], taps[d], f"q{d}"]), (patches, keys)], out), out
    sides = [*["g"] * c, "i", "o"] if transposed else [*["g"] * c, "o", "i"]
    y = contract(reader, [(weight, [*sides, *taps]), (patches, keys)], ["b", *["g"] * c, "o", *here])
    if c:
        y = View(y.node, [y.dims[0], y.dims[1] + y.dims[2], *y.dims[3:]])
    return y if bias is None else added(reader, [y, View(bias.node, [bias.dims[0], *[()] * n])])


def _each(given: Any, d: int, n: int) -> Any:
    """Of a number for each of n dimensions, or for all, that of one."""
    return given[d if len(given) == n else 0] if isinstance(given, list | tuple) else given


def _apart(reader: Reader, x: View, d: int, groups: tuple[int, ...]) -> View:
    """A dimension as groups, and what is inside of one."""
    sizes = [x.sizes(k, reader.builds) for k in range(len(x.dims))]
    shapes = []
    for b, g in enumerate(groups):
        shape = [s[b] for s in sizes]
        shapes.append([*shape[:d], g, shape[d] // g, *shape[d + 1 :]])
    return reshaped(reader, x, shapes)


# sums -----------------------------------------------------------------------------------------------------------


@rule("add")
def add(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    return added(reader, [reader.operand(a), reader.operand(b) if alpha == 1 else multiply(reader, b, alpha)])


@rule("sub")
def sub(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    """A sum with the negative."""
    return add(reader, a, negative(reader, b), alpha)


@rule("neg")
def negative(reader: Reader, x: Any) -> View:
    y = reader.operand(x)
    return reader.constant([-v for v in y.values]) if y.is_constant else multiply(reader, y, -1)


@rule("sum", "mean")
def total(reader: Reader, x: View, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> View:
    n = len(x.dims)
    gone = sorted(d % n for d in (range(n) if dim is None else [dim] if isinstance(dim, int) else dim))
    factor = (1.0,) * reader.builds
    if reader.name == "mean":
        factor = tuple(1 / m for m in map(prod, zip(*(x.sizes(d, reader.builds) for d in gone), strict=True)))
    stay = [d for d in range(n) if d not in gone]
    made = contract(reader, [(x, range(n))], stay, () if set(factor) == {1} else factor)
    for d in gone if keepdim else ():
        made = View(made.node, [*made.dims[:d], (), *made.dims[d:]])
    return made


@rule("lerp")
def interpolated(reader: Reader, a: View, b: View, weight: Any) -> View:
    """a + weight (b - a)"""
    return added(reader, [a, multiply(reader, weight, sub(reader, b, a))])


@rule("prelu")
def kinked(reader: Reader, x: View, weight: View) -> View:
    """x above zero, and below it x times a weight."""
    below = function_of(reader, "relu", negative(reader, x), torch.relu)
    slope = View(weight.node, [*weight.dims, *[()] * (len(x.dims) - 2)]) if any(weight.dims) else weight
    return added(reader, [function_of(reader, "relu", x, torch.relu), multiply(reader, slope, negative(reader, below))])


@rule("mul")
def multiply(reader: Reader, a: Any, b: Any) -> View:
    return multiplied(reader, reader.operand(a), reader.operand(b))


@rule("div")
def divide(reader: Reader, a: Any, b: Any) -> View:
    x, y = reader.operand(a), reader.operand(b)
    if y.is_constant:
        return scaled(reader, x, reader.constant([1 / v for v in y.values]))
    raise reader.fail("a division by a signal that is no norm and no sum of gates; no equation says this")


@rule("pow", "square")
def power(reader: Reader, x: View, exponent: Any = 2) -> View:
    if isinstance(exponent, View) and exponent.is_constant and not exponent.dims:
        exponent = float(exponent.values[0])
    if exponent in range(2, 9):
        return multiplied(reader, x, x if exponent == 2 else power(reader, x, exponent - 1))
    raise reader.fail(f"a power {exponent} of a signal; no equation says this")


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def pooled(reader: Reader, x: View, kernel: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any) -> View:
    """The largest of places: homogeneous of degree one, with a kink, as relu and a sum of places. Which, the call says
    of unit vectors; it must be positive where the sum is, and no larger."""
    assert reader.call is not None
    n = int(reader.name[-2])
    given, function = (kernel, stride or kernel, padding), reader.call.function
    sizes, places = [x.sizes(d, 1)[0] for d in range(len(x.dims) - n, len(x.dims))], list(range(len(x.dims)))
    units = torch.eye(prod(sizes), dtype=torch.float64).reshape(prod(sizes), 1, *sizes)
    meets = function(units, *given)[:, 0].reshape(*sizes, *reader.shapes[0][0][-n:])
    out = [*places[:-n], *(("out", d) for d in places[-n:])]
    operand = convert_constant(reader, reader.constant([meets] * reader.builds))
    relu = function_of(reader, "relu", x, torch.relu)
    y = contract(reader, [(operand, [*places[-n:], *out[-n:]]), (relu, places)], out)

    wrong = reader.fail("the equations give other numbers than this call; its rule does not hold here")

    def exact(total: Tensor, v: Tensor) -> Tensor:
        most = y.from_torch(function(x.to_torch(v), *given), total)
        if bool(((total > 0) != (most > 0)).any() or (most > total + most.abs() * 1e-9).any()):
            raise wrong
        return most

    node = y.node.derive(SameSize, reader.where, note="max pooling is read as relu and a mean", exact=exact)
    node.sources += ((x.node, x.node.slots),)
    return View(node, y.dims)
