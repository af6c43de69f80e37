"""Rows of the table for products, sums, and functions along dimensions. Read next: ``routing.py``, ``reading.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .graph import Dims, IndexClass, TracedNode, View
from .layout import PLACES
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


@rule("addmm")
def addmm(reader: Reader, c: View, a: View, b: View) -> View:
    return reader.add([c, matmul(reader, a, b)])


@rule("baddbmm")
def baddbmm(reader: Reader, c: View, batch1: View, batch2: View) -> View:
    return addmm(reader, c, batch1, batch2)


@rule("einsum")
def einsum(reader: Reader, equation: str, *rest: Any) -> View:
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    left, _, out = equation.partition("->")
    return reader.contract(list(zip(operands, map(list, left.split(",")), strict=True)), list(out))


@rule("conv1d", "conv2d")
def convolution(
    reader: Reader,
    x: View,
    weight: View,
    bias: View | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> View:
    """Of the input: its patches, (places, channels, kernel), are the data, and the kernel a matrix on them."""
    if x.node.kind != "data" or groups != 1 or isinstance(padding, str):
        raise reader.fail("a convolution that is not of the input; only patches of it are read")
    spatial, outs = len(weight.dims) - 2, reader.shapes[0][0][2:]

    def each(given: Any, missing: int) -> tuple[int, ...]:
        numbers = list(given) if isinstance(given, list | tuple) else [given]
        return (*[missing] * (2 - spatial), *(numbers * spatial)[:spatial])

    image = x.laid_out(x.node.value)
    kernel = each([weight.sizes(2 + k, 1)[0] for k in range(spatial)], 1)
    flat = image if spatial == 2 else image[:, :, None]
    cut = F.unfold(flat, kernel, each(dilation, 1), each(padding, 0), each(stride, 1)).transpose(1, 2)
    places = [prod(outs)] + [1] * (spatial - 1) if PLACES in reader.splits else [*outs]
    sizes = [len(image), *places, image.shape[1], *kernel[2 - spatial :]]
    names = ["batch"] + ["place"] * spatial + ["patch"] * (1 + spatial)
    real = [k for k, n in enumerate(sizes) if n > 1]
    indices = [IndexClass(reader.same_everywhere(sizes[k]), ("data", names[k], k)) for k in real]
    node = TracedNode("data", indices, name="data", value=cut.reshape([sizes[k] for k in real]))
    dims: Dims = [(real.index(k),) if k in real else () for k in range(len(sizes))]
    lead, inner = ["b", *range(spatial)], [f"k{k}" for k in range(1 + spatial)]
    out = reader.contract([(weight, ["o", *inner]), (View(node, dims), [*lead, *inner])], ["b", "o", *lead[1:]])
    return out if bias is None else reader.add([out, View(bias.node, [bias.dims[0], *[()] * spatial])])


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
    if exponent in (2, 3):
        return reader.multiply(x, x) if exponent == 2 else reader.multiply(power(reader, x), x)
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


@rule("clamp")
def clamp(reader: Reader, x: View, min: Any = None, max: Any = None) -> View:
    return reader.same(x, lambda v: v.clamp(min, max), "a clip is left out")


@rule("abs")
def absolute(reader: Reader, x: View) -> View:
    raise reader.fail("an absolute value; the equations have relu")
