"""Rows of the table for products, sums, and functions along dimensions. Read next: ``routing.py``, ``reading.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .graph import IndexClass, TracedNode, View
from .layout import PLACES
from .reading import Bound, Number, Reader
from .routing import along, softmax_of, where_chosen
from .table import plain, rule

# products -------------------------------------------------------------------------------------------------------


@rule("linear")
def linear(reader: Reader, call: Bound) -> View:
    x, w, bias = call.args[0], call.whole("weight", 1), call.whole("bias", 2)
    lead = list(range(len(x.dims) - 1))
    out = reader.contract([(w, ["o", "i"]), (x, [*lead, "i"])], [*lead, "o"])
    return out if bias is None else reader.add([out, bias])


@rule("matmul", "bmm", "mm", "mv", "dot")
def matmul(reader: Reader, call: Bound) -> View:
    return _matmul(reader, call.args[0], call.args[1])


def _matmul(reader: Reader, a: View, b: View) -> View:
    if len(b.dims) == 1:
        lead = list(range(len(a.dims) - 1))
        return reader.contract([(a, [*lead, "i"]), (b, ["i"])], lead)
    if len(a.dims) == 1:
        lead = list(range(len(b.dims) - 2))
        return reader.contract([(a, ["i"]), (b, [*lead, "i", "o"])], [*lead, "o"])
    n = max(len(a.dims), len(b.dims)) - 2
    la, lb = (list(range(n - (len(v.dims) - 2), n)) for v in (a, b))
    live = [v for v in (a, b) if v.node.kind != "const"]
    if len(live) == 1:
        raise reader.fail("a signal is mixed by a constant matrix")
    return reader.contract([(a, [*la, "r", "i"]), (b, [*lb, "i", "o"])], [*range(n), "r", "o"])


@rule("baddbmm", "addmm")
def addmm(reader: Reader, call: Bound) -> View:
    return reader.add([call.args[0], _matmul(reader, call.args[1], call.args[2])])


@rule("einsum")
def einsum(reader: Reader, call: Bound) -> View:
    equation, rest = call.args[0], call.args[1:]
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    left, _, out = equation.partition("->")
    return reader.contract(list(zip(operands, map(list, left.split(",")), strict=True)), list(out))


@rule("conv1d", "conv2d")
def convolution(reader: Reader, call: Bound) -> View:
    """Of the input: its patches, (places, channels, kernel), are the data, and the kernel a matrix on them."""
    x, w, bias = call.args[0], call.whole("weight", 1), call.whole("bias", 2)
    if x.node.kind != "data" or call.get("groups", 6, 1) != 1:
        raise reader.fail("a convolution that is not of the input; only patches of it are read")
    spatial, outs = len(w.dims) - 2, call.shapes[0][0][2:]

    def each(name: str, place: int, default: int) -> tuple[int, ...]:
        given = call.whole(name, place)
        given = (default,) if given is None or isinstance(given, str) else given
        numbers = [int(v[0]) if isinstance(v, Number) else int(v) for v in given]
        numbers = numbers * spatial if len(numbers) < spatial else numbers
        return (*[0 if name == "padding" else 1] * (2 - spatial), *numbers[:spatial])

    image = x.laid_out(x.node.value)
    kernel = (*[1] * (2 - spatial), *(w.sizes(2 + k, 1)[0] for k in range(spatial)))
    dilation, padding, stride = each("dilation", 5, 1), each("padding", 4, 0), each("stride", 3, 1)
    flat = image if spatial == 2 else image[:, :, None]
    cut = F.unfold(flat, kernel, dilation=dilation, padding=padding, stride=stride).transpose(1, 2)
    places = [prod(outs)] + [1] * (spatial - 1) if PLACES in reader.splits else [*outs]
    sizes = [len(image), *places, image.shape[1], *kernel[2 - spatial :]]
    names = ["batch"] + ["place"] * spatial + ["patch"] * (1 + spatial)
    real = [k for k, n in enumerate(sizes) if n > 1]
    indices = [IndexClass((sizes[k],) * reader.builds, ("data", names[k], k)) for k in real]
    node = TracedNode("data", indices, name="data", value=cut.reshape([sizes[k] for k in real]))
    dims: list[tuple[int | IndexClass, ...]] = [(real.index(k),) if k in real else () for k in range(len(sizes))]
    lead, inner = ["b", *range(spatial)], [f"k{k}" for k in range(1 + spatial)]
    out = reader.contract([(w, ["o", *inner]), (View(node, dims), [*lead, *inner])], ["b", "o", *lead[1:]])
    return out if bias is None else reader.add([out, View(bias.node, [bias.dims[0], *[()] * spatial])])


# sums -----------------------------------------------------------------------------------------------------------


@rule("add", "sub", "rsub")
def add(reader: Reader, call: Bound) -> View:
    """Sums, and sums with a constant. A signal less its largest entry is left for a softmax."""
    a, b = call.args[0], call.args[1]
    alpha = call.keywords.get("alpha")
    if alpha is not None:
        b = reader.scaled(b, alpha) if isinstance(b, View) else Number(v * alpha[0] for v in b)
    minus = plain(call.name)
    if minus == "rsub":
        a, b = b, a
    if minus in ("sub", "rsub"):
        if not isinstance(b, View):
            b = Number(-v for v in b)
        elif b.node.kind == "const":
            b = reader.constant([-v for v in b.node.value])
        elif (
            isinstance(a, View)
            and a.node.kind != "const"
            and b.node.kind == "func"
            and b.node.name == "max"
            and b.node.source is a.node
        ):
            out = reader.same(a, lambda v: v - v.amax(-1, keepdim=True))
            out.node.name = "centred"
            return out
        else:
            b = reader.scaled(b, (-1.0,) * reader.builds)
    if not isinstance(a, View) or not isinstance(b, View):
        x, c = (a, b) if isinstance(a, View) else (b, a)
        return reader.shifted(x, c)
    if b.node.kind == "choice" or a.node.kind == "choice":
        return reader.constant(call.values[0])
    if "const" in (a.node.kind, b.node.kind):
        x, c = (a, b) if b.node.kind == "const" else (b, a)
        if x.node.kind != "const" and not any(float(v.abs().max()) if v.numel() else 0 for v in c.node.value):
            return reader.spread(x, c)
    return reader.add([a, b])


@rule("sum", "mean")
def total(reader: Reader, call: Bound) -> View:
    x, n = call.args[0], len(call.args[0].dims)
    dims = call.whole("dim", 1)
    where = range(n) if dims is None else [dims[0]] if isinstance(dims, Number) else [v[0] for v in dims]
    gone = [int(d) % n for d in where]
    factor = [1.0] * reader.builds
    if plain(call.name) == "mean":
        for d in gone:
            factor = [f / s for f, s in zip(factor, x.sizes(d, reader.builds), strict=True)]
    scale = tuple(factor) if set(factor) != {1.0} else ()
    if x.node.kind == "contract" and all(isinstance(e, int) for d in gone for e in x.dims[d]):
        slots = {e for d in gone for e in x.dims[d]}
        f = x.node
        out = tuple(label for k, label in enumerate(f.out) if k not in slots)
        node = reader.product(
            list(f.sources),
            out,
            dict(f.labels),
            tuple(a * b for a, b in zip(f.factor or (1.0,) * reader.builds, factor, strict=True))
            if scale or f.factor
            else (),
        )
        down = {old: k for k, old in enumerate(k for k in range(len(f.out)) if k not in slots)}
        dims_ = [
            tuple(down[e] if isinstance(e, int) else e for e in dim) for d, dim in enumerate(x.dims) if d not in gone
        ]
        made = View(node, dims_)
    else:
        made = reader.contract([(x, range(n))], [d for d in range(n) if d not in gone], scale)
    if call.get("keepdim", 2, False):
        for d in sorted(gone):
            made = View(made.node, [*made.dims[:d], (), *made.dims[d:]])
    return made


@rule("mul")
def multiply(reader: Reader, call: Bound) -> View:
    a, b = call.args[0], call.args[1]
    if isinstance(a, View) and isinstance(b, View):
        a, b = (b, a) if a.node.kind == "choice" else (a, b)
        return where_chosen(reader, a, b) if b.node.kind == "choice" else reader.multiply(a, b)
    x, c = (a, b) if isinstance(a, View) else (b, a)
    return reader.scaled(x, c)


@rule("neg")
def negative(reader: Reader, call: Bound) -> View:
    return reader.scaled(call.args[0], (-1.0,) * reader.builds)


@rule("div", "rdiv")
def divide(reader: Reader, call: Bound) -> View:
    a, b = call.args[0], call.args[1]
    if plain(call.name) == "rdiv":
        a, b = b, a
    if not isinstance(b, View):
        return reader.scaled(a, tuple(1 / v for v in b))
    if b.node.kind == "const":
        return reader.scaled(a, reader.constant([1 / v for v in b.node.value]))
    inverse = reader.function("reciprocal", b, torch.reciprocal)
    if isinstance(a, View):
        return reader.multiply(a, inverse)
    return reader.scaled(inverse, a)


@rule("pow", "square")
def power(reader: Reader, call: Bound) -> View:
    x, e = call.args[0], 2 if plain(call.name) == "square" else call.get("exponent", 1)
    if isinstance(e, View) and e.node.kind == "const" and not e.dims:
        e = float(e.node.value[0])
    if e in (2, 3):
        y = reader.multiply(x, x)
        return y if e == 2 else reader.multiply(y, x)
    names: dict[Any, tuple[str, Callable[[Tensor], Tensor]]] = {
        0.5: ("sqrt", torch.sqrt), -0.5: ("rsqrt", torch.rsqrt), -1: ("reciprocal", torch.reciprocal)
    }  # fmt: skip
    if e not in names:
        raise reader.fail(f"a power {e}")
    return reader.function(names[e][0], x, names[e][1])


@rule("rms_norm", "layer_norm", "native_layer_norm")
def norm(reader: Reader, call: Bound) -> Any:
    x, shape = call.args[0], call.whole("normalized_shape", 1)
    name = "rmsnorm" if plain(call.name) == "rms_norm" else "layernorm"
    w, b = call.whole("weight", 2), call.whole("bias", 3) if name == "layernorm" else None
    if len(shape) != 1:
        raise reader.fail("a norm along several dimensions")
    eps = call.get("eps", 4 if name == "layernorm" else 3)

    def exact(v: Tensor, d: int) -> Tensor:
        if name == "rmsnorm":
            return F.rms_norm(v, [v.shape[d]], eps=eps)
        return F.layer_norm(v, [v.shape[d]], eps=1e-5 if eps is None else eps)

    out = along(reader, name, x, -1, exact)
    out = out if w is None else reader.multiply(w, out)
    out = out if b is None else reader.add([out, b])
    return [out, *(reader.constant(v) for v in call.values[1:])] if len(call.values) > 1 else out


@rule("normalize")
def unit(reader: Reader, call: Bound) -> View:
    """x / |x|: a norm, times the length of the axis to the power -1/2."""
    x, d = call.args[0], int(call.get("dim", 2, 1)) % len(call.args[0].dims)
    if call.get("p", 1, 2) != 2:
        raise reader.fail("a norm that is not Euclidean")
    out = along(
        reader, "rmsnorm", x, d, lambda v, k: F.rms_norm(v.movedim(k, -1), [v.shape[k]], eps=1e-24).movedim(-1, k)
    )
    return reader.scaled(out, tuple(n**-0.5 for n in x.sizes(d, reader.builds)))


@rule("scaled_dot_product_attention")
def attention(reader: Reader, call: Bound) -> Any:
    """softmax(scale q k) v; the mask is left out."""
    q, k, v = call.args[:3]
    scale, mask = call.keywords.get("scale"), call.whole("attn_mask", 3)
    scale = tuple(scale) if isinstance(scale, Number) else tuple(s**-0.5 for s in q.sizes(-1, reader.builds))
    if call.get("enable_gqa", 7, False) and q.sizes(-3, reader.builds) != k.sizes(-3, reader.builds):
        repeats = tuple(a // b for a, b in zip(q.sizes(-3, reader.builds), k.sizes(-3, reader.builds), strict=True))
        k, v = (View(s.node, [*s.dims[:-3], s.dims[-3] + (IndexClass(repeats),), *s.dims[-2:]]) for s in (k, v))
    lead = list(range(len(q.dims) - 2))
    logits = reader.contract([(q, [*lead, "t", "e"]), (k, [*lead, "s", "e"])], [*lead, "t", "s"])
    logits = reader.scaled(logits, scale)
    if call.get("is_causal", 5, False):
        n = call.shapes[0][0][-2]
        hidden = torch.zeros(n, n, dtype=torch.float64).masked_fill(torch.ones(n, n).triu(1) > 0, float("-inf"))
        logits = reader.shifted(logits, reader.constant([hidden] * reader.builds))
    elif isinstance(mask, View):
        values = [
            torch.zeros(m.shape, dtype=torch.float64).masked_fill(~m, float("-inf")) if m.dtype is torch.bool else m
            for m in mask.node.value
        ]
        logits = reader.shifted(logits, reader.constant(values))
    weights = softmax_of(reader, logits, -1)
    out = reader.contract([(weights, [*lead, "t", "s"]), (v, [*lead, "s", "v"])], [*lead, "t", "v"])
    return [out, *(reader.constant(x) for x in call.values[1:])] if len(call.values) > 1 else out


@rule("clamp")
def clamp(reader: Reader, call: Bound) -> View:
    x = call.args[0]
    low, high = call.get("min", 1), call.get("max", 2)
    if x.node.kind == "choice":
        return x
    return reader.same(x, lambda v: v.clamp(low, high), "a clip is left out")


@rule("abs")
def absolute(reader: Reader, call: Bound) -> View:
    raise reader.fail("an absolute value; the equations have relu")
