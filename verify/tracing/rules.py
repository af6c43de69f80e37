"""Rows of the table for products, sums, and functions along dimensions. Read next: ``routing.py``, ``reading.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .constants import constant
from .graph import IndexClass, View
from .reading import Reader
from .routing import along, softmax
from .table import rule

# products -------------------------------------------------------------------------------------------------------


@rule("linear")
def linear(reader: Reader, x: View, weight: View, bias: View | None = None) -> View:
    lead = list(range(len(x.dims) - 1))
    out = reader.contract([(weight, ["o", "i"]), (x, [*lead, "i"])], [*lead, "o"])
    return out if bias is None else reader.add([out, bias])


@rule("matmul", "bmm", "mm", "mv", "dot")
def matmul(reader: Reader, a: View, b: View) -> View:
    n = max(len(a.dims), len(b.dims), 2) - 2
    left = ["i"] if len(a.dims) == 1 else [*range(n - len(a.dims) + 2, n), "r", "i"]
    right = ["i"] if len(b.dims) == 1 else [*range(n - len(b.dims) + 2, n), "i", "o"]
    return reader.contract([(a, left), (b, right)], [k for k in (*range(n), "r", "o") if k in (*left, *right)])


@rule("baddbmm", "addmm")
def addmm(reader: Reader, c: View, *given: Any, beta: Any = 1, alpha: Any = 1, **words: Any) -> View:
    a, b = [*given, *(words[x] for x in ("batch1", "mat1", "batch2", "mat2") if x in words)]
    product = matmul(reader, a, b)
    return reader.add(
        [c if beta == 1 else multiply(reader, c, beta), product if alpha == 1 else multiply(reader, product, alpha)]
    )


@rule("einsum")
def einsum(reader: Reader, equation: str, *rest: Any) -> View:
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    left, _, out = equation.partition("->")
    return reader.contract(list(zip(operands, map(list, left.split(",")), strict=True)), list(out))


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
        place, tap, at = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
        meets = at * step - pad + tap * wide == place if transposed else place * step - pad + tap * wide == at
        matrix = constant(reader, reader.constant([meets.double()] * reader.builds))
        out = [*lead, *taps[: d + 1], *here[: d + 1], *(f"q{e}" for e in range(d + 1, n))]
        patches, keys = reader.contract([(matrix, [here[d], taps[d], f"q{d}"]), (patches, keys)], out), out
    sides = [*["g"] * c, "i", "o"] if transposed else [*["g"] * c, "o", "i"]
    y = reader.contract([(weight, [*sides, *taps]), (patches, keys)], ["b", *["g"] * c, "o", *here])
    if c:
        y = View(y.node, [y.dims[0], y.dims[1] + y.dims[2], *y.dims[3:]])
    return y if bias is None else reader.add([y, View(bias.node, [bias.dims[0], *[()] * n])])


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
    return reader.regrouped(x, shapes)


# sums -----------------------------------------------------------------------------------------------------------


@rule("add")
def add(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    return reader.add([reader.operand(a), reader.operand(b) if alpha == 1 else multiply(reader, b, alpha)])


@rule("sub")
def sub(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    """A sum with the negative. A signal less its largest entry is left for a softmax."""
    largest = isinstance(b, View) and (b.node.kind, b.node.name) == ("func", "max")
    if largest and isinstance(a, View) and b.node.source is a.node:
        out = reader.same(a, lambda v: v - v.amax(-1, keepdim=True))
        out.node.name = "centred"
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
    made = reader.contract(
        [(x, range(n))], [d for d in range(n) if d not in gone], () if set(factor) == {1} else factor
    )
    for d in gone if keepdim else ():
        made = View(made.node, [*made.dims[:d], (), *made.dims[d:]])
    return made


@rule("mul")
def multiply(reader: Reader, a: Any, b: Any) -> View:
    return reader.multiply(reader.operand(a), reader.operand(b))


@rule("div")
def divide(reader: Reader, a: Any, b: Any) -> View:
    x, y = reader.operand(a), reader.operand(b)
    if y.node.kind == "const":
        return reader.scaled(x, reader.constant([1 / v for v in y.node.value]))
    return reader.multiply(x, reader.function("reciprocal", y, torch.reciprocal))


ROOTS: dict[Any, tuple[str, Callable[[Tensor], Tensor]]] = {
    0.5: ("sqrt", torch.sqrt), -0.5: ("rsqrt", torch.rsqrt), -1: ("reciprocal", torch.reciprocal)
}  # fmt: skip


@rule("pow", "square")
def power(reader: Reader, x: View, exponent: Any = 2) -> View:
    if isinstance(exponent, View) and exponent.node.kind == "const" and not exponent.dims:
        exponent = float(exponent.node.value[0])
    if exponent in range(2, 9):
        return reader.multiply(x, x if exponent == 2 else power(reader, x, exponent - 1))
    if exponent not in ROOTS:
        raise reader.fail(f"a power {exponent}")
    return reader.function(ROOTS[exponent][0], x, ROOTS[exponent][1])


# functions along dimensions -------------------------------------------------------------------------------------


@rule("rms_norm", "layer_norm", "native_layer_norm")
def norm(reader: Reader, x: View, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = None) -> Any:
    name, function = ("rmsnorm", F.rms_norm) if reader.name == "rms_norm" else ("layernorm", F.layer_norm)
    if len(normalized_shape) != 1:
        raise reader.fail("a norm along several dimensions")
    words = {} if eps is None else {"eps": eps}
    out = along(reader, name, x, -1, lambda v, d: function(v, v.shape[-1:], **words))
    out = out if weight is None else reader.multiply(weight, out)
    out = out if bias is None else reader.add([out, bias])
    return [out, *reader.constants(1)]


@rule("batch_norm", "group_norm", "instance_norm")
def channels(reader: Reader, x: View, *given: Any, **words: Any) -> View:
    """Channels, each centred and divided by its spread along batch and places, as in training; or groups of them."""
    n = len(x.dims)
    if reader.name == "group_norm":
        groups = reader.vector(given[0] if given else words["num_groups"])
        weight, bias = [*given[1:3], None, None][:2]
        y, over = _apart(reader, x, 1, groups), list(range(2, n + 1))
    else:
        weight, bias = [*given[2:4], None, None][:2]
        y, over = x, [d for d in range(n) if d > 1 or (d == 0 and reader.name == "batch_norm")]
    weight, bias, eps = words.get("weight", weight), words.get("bias", bias), words.get("eps", 1e-5)
    if reader.name != "group_norm" and not (words.get("training", given[4] if len(given) > 4 else True)):
        raise reader.fail("a norm with running statistics; it is read in training")
    slots = tuple(e for d in over for e in y.dims[d] if isinstance(e, int))
    if not slots:
        raise reader.fail("a norm along one entry")

    def exact(v: Tensor) -> Tensor:
        mean, square = v.mean(slots, keepdim=True), v.var(slots, correction=0, keepdim=True)
        return (v - mean) / (square + eps).sqrt()

    if all(y.node.indices[e].root().fixed for e in slots):
        raise reader.fail("a norm along batch and places alone; sizes behind it are not decided")
    out = reader.function("layernorm", y, exact, slots, False)
    if reader.name == "group_norm":
        out = View(out.node, [out.dims[0], out.dims[1] + out.dims[2], *out.dims[3:]])
    for p, act in ((weight, reader.multiply), (bias, lambda a, b: reader.add([a, b]))):
        if p is not None:
            out = act(View(p.node, [p.dims[0], *[()] * (n - 2)]), out)
    return out


@rule("normalize")
def unit(reader: Reader, x: View, p: float = 2, dim: int = 1, **_: Any) -> View:
    """x / |x|: a norm, times the length of the axis to the power -1/2."""
    if p != 2:
        raise reader.fail("a norm that is not Euclidean")
    out = along(
        reader, "rmsnorm", x, dim, lambda v, k: F.rms_norm(v.movedim(k, -1), [v.shape[k]], eps=1e-24).movedim(-1, k)
    )
    lengths = x.sizes(dim % len(x.dims), reader.builds)
    return multiply(reader, out, reader.numbers([n**-0.5 for n in lengths]))


@rule("scaled_dot_product_attention")
def attention(
    reader: Reader,
    q: View,
    k: View,
    v: View,
    attn_mask: View | None = None,
    dropout_p: float = 0,
    is_causal: bool = False,
    *_: Any,
    scale: Any = None,
    enable_gqa: bool = False,
    **__: Any,
) -> Any:
    """softmax(scale q k) v; the mask is left out."""
    if enable_gqa:
        repeats = [a // b for a, b in zip(q.sizes(-3, reader.builds), k.sizes(-3, reader.builds), strict=True)]
        if set(repeats) != {1}:
            k, v = (s.with_dim(len(s.dims) - 3, (*s.dims[-3], IndexClass(repeats))) for s in (k, v))
    lead, n = list(range(len(q.dims) - 2)), reader.shapes[0][0][-2]
    logits = reader.contract([(q, [*lead, "t", "e"]), (k, [*lead, "s", "e"])], [*lead, "t", "s"])
    scales = reader.vector(scale) if scale is not None else [s**-0.5 for s in q.sizes(-1, reader.builds)]
    logits = reader.scaled(logits, reader.numbers(scales))
    mask = reader.constant([torch.ones(n, n).tril() > 0] * reader.builds) if is_causal else attn_mask
    if isinstance(mask, View):
        if mask.node.kind == "const" and mask.node.value[0].dtype is torch.bool:
            mask = reader.constant([torch.zeros(m.shape).masked_fill(~m, -torch.inf) for m in mask.node.value])
        logits = reader.add([logits, mask])
    weights = softmax(reader, logits)
    out = reader.contract([(weights, [*lead, "t", "s"]), (v, [*lead, "s", "v"])], [*lead, "t", "v"])
    return [out, *reader.constants(1)]


@rule("addcmul")
def addcmul(reader: Reader, x: View, a: View, b: View, value: float = 1) -> View:
    return add(reader, x, multiply(reader, multiply(reader, a, b), value))


@rule("lerp")
def lerp(reader: Reader, a: View, b: View, weight: Any) -> View:
    """a + w (b - a)"""
    return add(reader, a, multiply(reader, weight, sub(reader, b, a)))


@rule("glu")
def glu(reader: Reader, x: View, dim: int = -1) -> View:
    d, sizes = dim % len(x.dims), x.sizes(dim % len(x.dims), reader.builds)
    half, zero = tuple(n // 2 for n in sizes), reader.same_everywhere(0)
    a, b = reader.narrowed(x, d, zero, half), reader.narrowed(x, d, half, sizes)
    return reader.multiply(a, reader.function("sigmoid", b, torch.sigmoid))


@rule("clamp")
def clamp(reader: Reader, x: View, min: Any = None, max: Any = None) -> View:
    return reader.same(x, lambda v: v.clamp(min, max), "a clip is left out")


@rule("abs")
def absolute(reader: Reader, x: View) -> View:
    raise reader.fail("an absolute value; the equations have relu")
