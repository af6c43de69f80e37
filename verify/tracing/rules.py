"""Rows of the table for products, sums, and functions along dimensions. Read next: ``products.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .elementwise import TINY, added, function_of, multiplied, same, scaled
from .graph import LESS, View
from .indices import constant, regrouped
from .products import contract
from .reading import Reader
from .recording import Recording, TorchCall, refs
from .table import as_function, rule

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
        matrix = constant(reader, reader.constant([meets.double()] * reader.builds))
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
    return regrouped(reader, x, shapes)


# sums -----------------------------------------------------------------------------------------------------------


@rule("add")
def add(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    return added(reader, [reader.operand(a), reader.operand(b) if alpha == 1 else multiply(reader, b, alpha)])


@rule("sub")
def sub(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    """A sum with the negative. A signal less its largest entry is left for a softmax."""
    largest = isinstance(b, View) and (b.node.kind, b.node.name) == ("func", "max")
    if largest and isinstance(a, View) and b.node.source is a.node:
        out = same(reader, a, lambda v: v - v.amax(-1, keepdim=True))
        out.node.name = "centred"
        return out
    if isinstance(a, View) and isinstance(b, View) and (gone := reader.means.get((a.node.number, b.node.number))):
        out = same(reader, a, lambda v: v)
        out.node.exact, out.node.name, out.node.over = lambda v: v - v.mean(gone, keepdim=True), LESS, gone
        return out
    return add(reader, a, negative(reader, b), alpha)


@rule("neg")
def negative(reader: Reader, x: Any) -> View:
    y = reader.operand(x)
    return reader.constant([-v for v in y.node.value]) if y.node.kind == "const" else multiply(reader, y, -1)


@rule("sum", "mean")
def total(reader: Reader, x: View, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> View:
    n = len(x.dims)
    gone = sorted(d % n for d in (range(n) if dim is None else [dim] if isinstance(dim, int) else dim))
    factor = (1.0,) * reader.builds
    if reader.name == "mean":
        factor = tuple(1 / m for m in map(prod, zip(*(x.sizes(d, reader.builds) for d in gone), strict=True)))
    stay = [d for d in range(n) if d not in gone]
    made = contract(reader, [(x, range(n))], stay, () if set(factor) == {1} else factor)
    slots = tuple(e for d in gone for e in x.dims[d] if isinstance(e, int))
    if reader.name == "mean" and not all(x.node.indices[e].fixed for e in slots):
        reader.means[x.node.number, made.node.number] = slots
    for d in gone if keepdim else ():
        made = View(made.node, [*made.dims[:d], (), *made.dims[d:]])
    return made


@rule("norm", "linalg_norm", "linalg_vector_norm")
def length(
    reader: Reader, x: View, p: Any = 2, dim: Any = None, keepdim: bool = False, ord: Any = None, **_: Any
) -> View:
    """The root of a sum of squares."""
    if (ord or p or 2) not in (2, "fro"):
        raise reader.fail("a norm that is not Euclidean")
    return function_of(reader, "sqrt", total(reader, multiplied(reader, x, x), dim, keepdim), torch.sqrt)


@rule("var", "std")
def variance(
    reader: Reader, x: View, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None
) -> View:
    """The mean square of a signal less its mean; what is taken off the number of entries leaves its size."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    reader.name, root = "mean", reader.name == "std"
    off = sub(reader, x, total(reader, x, dim, True))
    made = total(reader, multiplied(reader, off, off), dim, keepdim)
    n = prod(x.sizes(d, 1)[0] for d in range(len(x.dims))) / prod(reader.shapes[0][0])
    if more := float(unbiased if correction is None else correction):
        made = same(reader, made, lambda v: v * n / (n - more), entry=lambda v: v * n / (n - more))
    return function_of(reader, "sqrt", made, torch.sqrt) if root else made


@rule("mul")
def multiply(reader: Reader, a: Any, b: Any) -> View:
    return multiplied(reader, reader.operand(a), reader.operand(b))


@rule("div")
def divide(reader: Reader, a: Any, b: Any) -> View:
    x, y = reader.operand(a), reader.operand(b)
    if y.node.kind == "const":
        return scaled(reader, x, reader.constant([1 / v for v in y.node.value]))
    return multiplied(reader, x, function_of(reader, "reciprocal", y, torch.reciprocal))


ROOTS: dict[Any, tuple[str, Callable[[Tensor], Tensor]]] = {
    0.5: ("sqrt", torch.sqrt), -0.5: ("rsqrt", torch.rsqrt), -1: ("reciprocal", torch.reciprocal)
}  # fmt: skip


@rule("pow", "square")
def power(reader: Reader, x: View, exponent: Any = 2) -> View:
    if isinstance(exponent, View) and exponent.node.kind == "const" and not exponent.dims:
        exponent = float(exponent.node.value[0])
    if exponent in range(2, 9):
        return multiplied(reader, x, x if exponent == 2 else power(reader, x, exponent - 1))
    if exponent not in ROOTS:
        raise reader.fail(f"a power {exponent}")
    return function_of(reader, ROOTS[exponent][0], x, ROOTS[exponent][1])


# functions along dimensions -------------------------------------------------------------------------------------


def normal(reader: Reader, x: View, over: Sequence[int], centred: bool, eps: float) -> View:
    """A signal less its mean, if centred, divided by its spread along dimensions; of those that do not grow a matrix
    takes the mean off."""
    slots = [tuple(e for d in over for e in x.dims[d] if isinstance(e, int))]
    if not slots[0]:
        raise reader.fail("a norm along one entry")
    fixed = all(x.node.indices[e].fixed for e in slots[0])
    if centred and fixed:
        here = [(d, k) for d in over for k in range(len(x.dims[d]))]
        sizes = [x.index(x.dims[d][k]).sizes[0] for d, k in here]
        if prod(sizes) < 3:
            raise reader.fail("a centred norm along two entries, which leaves their signs alone; give a larger input")
        matrix = (torch.eye(prod(sizes)) - 1 / prod(sizes)).reshape(*sizes, *sizes)
        operand = constant(reader, reader.constant([matrix] * reader.builds))
        keys = [(d, k) for d, dim in enumerate(x.dims) for k in range(len(dim))]
        out = [("out", key) if key in here else key for key in keys]
        flat = View(x.node, [(e,) for dim in x.dims for e in dim])
        y = contract(reader, [(operand, [*(("out", key) for key in here), *here]), (flat, keys)], out)
        of = {key: dim[0] for key, dim in zip(keys, y.dims, strict=True)}
        x = View(y.node, [tuple(of[d, k] for k in range(len(dim))) for d, dim in enumerate(x.dims)])
        slots = [tuple(e for d in over for e in x.dims[d] if isinstance(e, int))]

    def exact(v: Tensor) -> Tensor:
        v = v - v.mean(slots[0], keepdim=True) if centred else v
        return v * (v.square().mean(slots[0], keepdim=True) + eps).rsqrt()

    return function_of(reader, "layernorm" if centred and not fixed else "rmsnorm", x, exact, slots[0], False)


def gained(reader: Reader, x: View, weight: View | None, bias: View | None, after: int = 0) -> View:
    """A signal times a gain, and a bias added; ``after``: dimensions behind those that they have."""
    if weight is not None:
        x = multiplied(reader, View(weight.node, [*weight.dims, *[()] * after]), x)
    return x if bias is None else added(reader, [View(bias.node, [*bias.dims, *[()] * after]), x])


@rule("rms_norm", "layer_norm", "native_layer_norm")
def norm(reader: Reader, x: View, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = None) -> Any:
    plain, n = reader.name == "rms_norm", len(x.dims)
    if plain:
        eps = bias if bias is not None else eps
        bias = None
    eps = eps if eps is not None else torch.finfo(torch.float64).eps if plain else 1e-5
    out = normal(reader, x, range(n - len(normalized_shape), n), not plain, eps)
    return [gained(reader, out, weight, bias), *reader.constants(1)]


@rule("batch_norm", "group_norm", "instance_norm")
def channels(reader: Reader, x: View, *given: Any, **words: Any) -> View:
    """Channels, each a norm along batch and places, as in training; or groups of them."""
    n, groups = len(x.dims), reader.name == "group_norm"
    names = ["num_groups", "weight", "bias", "eps"] if groups else ["mean", "var", "weight", "bias", "training"]
    given_ = dict(zip(names, given, strict=False)) | words
    if reader.name == "batch_norm" and not given_.get("training", True):
        raise reader.fail("a norm with running statistics; it is read in training")
    y, over = x, [d for d in range(n) if d > 1 or (d == 0 and reader.name == "batch_norm")]
    if groups:
        y, over = _apart(reader, x, 1, reader.vector(given_["num_groups"])), [*range(2, n + 1)]
    out = normal(reader, y, over, True, given_.get("eps", 1e-5))
    if groups:
        out = View(out.node, [out.dims[0], out.dims[1] + out.dims[2], *out.dims[3:]])
    return gained(reader, out, given_.get("weight"), given_.get("bias"), n - 2)


@rule("normalize")
def unit(reader: Reader, x: View, p: float = 2, dim: int = 1, **_: Any) -> View:
    """x / |x|: a norm, times the length of the axis to the power -1/2."""
    if p != 2:
        raise reader.fail("a norm that is not Euclidean")
    lengths = x.sizes(dim % len(x.dims), reader.builds)
    out = normal(reader, x, [dim % len(x.dims)], False, 1e-24)
    return multiply(reader, out, reader.numbers([n**-0.5 for n in lengths]))


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
    operand = constant(reader, reader.constant([meets] * reader.builds))
    relu = function_of(reader, "relu", x, torch.relu)
    y = contract(reader, [(operand, [*places[-n:], *out[-n:]]), (relu, places)], out)

    wrong = reader.fail("the equations give other numbers than this call; its rule does not hold here")

    def exact(total: Tensor, v: Tensor) -> Tensor:
        most = y.taken_back(function(x.laid_out(v), *given), total)
        if bool(((total > 0) != (most > 0)).any() or (most > total + most.abs() * 1e-9).any()):
            raise wrong
        return most

    node = y.node.behind("same", reader.where, note="max pooling is read as relu and a mean", exact=exact)
    node.sources += ((x.node, x.node.slots),)
    return View(node, y.dims)


@rule("clamp", "clamp_min", "clamp_max")
def clamp(reader: Reader, x: View, min: Any = None, max: Any = None) -> View:
    """Left out where it changes no recorded value; at zero from below relu; else the function that its values are."""
    assert reader.call is not None
    if reader.name == "clamp_max":
        min, max = None, min if max is None else max
    low, high = (None if bound is None else _number(reader, bound) for bound in (min, max))
    changes = [_changes(run, call) for run, call in zip(reader.runs, reader.calls, strict=True)]
    below, above = (any(side) for side in zip(*changes, strict=True))
    if any(acts and number is None for acts, number in ((below, low), (above, high))):
        raise reader.fail("a clip whose bound is a signal, or changes with the sizes; no equation says this")
    guards = low is not None and 0 < low <= TINY and max is None and not below  # a division
    if below and not above and low is not None and abs(low) <= TINY:
        x, below = function_of(reader, "relu", x, torch.relu), False
        if (low, max) == (0, None):
            return x
    if below or above:
        bounds = low if below else None, high if above else None
        x = as_function(reader, "clamp", x, lambda v: v.clamp(*bounds))
    if (min is None or below) and (max is None or above):
        return x
    given = (min is None or low is not None) and (max is None or high is not None)
    clipped = (lambda v: v.clamp(low, high)) if given else (lambda v: v)
    note = "" if guards else "a clip is left out"
    return same(reader, x, clipped, note, entry=clipped if given else None)


def _number(reader: Reader, bound: Any) -> float | None:
    """The number that a bound is at every build; None: it is none."""
    values = bound.node.value if isinstance(bound, View) else reader.vector(bound)
    if isinstance(bound, View) and (bound.node.kind != "const" or any(v.numel() != 1 for v in values)):
        return None
    first, *more = map(float, values)
    return first if all(v == first for v in more) else None


def _changes(run: Recording, call: TorchCall) -> tuple[bool, bool]:
    """Does a clip change finite values that are below, or above?"""
    before, after = (run.tensor(next(refs(tree))) for tree in ((call.arguments, call.keywords), call.result))
    there = before.isfinite()
    return bool((after > before)[there].any()), bool((after < before)[there].any())
