"""A torch call as equations: one table, a row for each call. A row added is a call supported.

A rule gets the reader and the call, its tensors as views, and returns the views of its results. Names of functions,
methods and aten are one: ``__radd__``, ``add_`` and ``aten::add`` are ``add``. Read next: ``reading.py`` (products,
sums and slices), ``docs/extending.md`` (how to add a row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.errors import UsageError

from .entries import NAMES, classified
from .graph import IndexClass, Restart, Sizes, TracedNode, View, whole_of
from .reading import Bound, Number, Reader
from .recording import refs

Rule = Callable[[Reader, Bound], Any]
PLACES = ("places",)
"""Among the splits: the places of patches are one axis, which a class token is put before."""
RULES: dict[str, Rule] = {}
ALIASES = {
    "radd": "add", "rmul": "mul", "truediv": "div", "rtruediv": "rdiv", "true_divide": "div", "iadd": "add",
    "imul": "mul", "isub": "sub", "itruediv": "div", "idiv": "div", "multiply": "mul", "divide": "div",
    "subtract": "sub", "rmatmul": "matmul", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "unsafe_view": "view", "safe_softmax": "softmax", "special_softmax": "softmax", "imatmul": "matmul",
    "clip": "clamp", "greater": "gt", "special_expit": "sigmoid", "expit": "sigmoid", "amax": "max",
    "take_along_dim": "gather",
}  # fmt: skip
ENTRYWISE = {
    "tanh", "relu", "silu", "gelu", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal", "softplus", "erf", "log", "elu",
    "leaky_relu", "relu6", "hardtanh", "mish", "log1p", "sin", "cos", "selu", "celu", "softsign", "hardswish",
    "logsigmoid",
}  # fmt: skip
"""Functions of one tensor, entry by entry; those that the language lacks are told apart by their values."""
SAME = {
    "to", "float", "type_as", "contiguous", "clone", "detach", "dropout", "double", "half", "bfloat16", "type", "cpu",
    "alias", "requires_grad", "long", "int", "lift_fresh", "native_dropout", "get_data", "to_copy", "pos",
}  # fmt: skip
COUNTS = {
    "nonzero", "ne", "eq", "gt", "lt", "any", "argsort", "sort", "cumsum", "bincount", "ge", "le", "isin", "all", "sum",
    "floor_divide", "histc", "sub", "add", "max", "min", "remainder", "mul",
}  # fmt: skip
"""Calls whose result, made of chosen experts' numbers, is the same whatever the values: all are chosen."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """One row of the table, under these names."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def plain(name: str) -> str:
    """The name of a call in the table."""
    name = name.strip("_") if name.startswith("__") or name.startswith("_") else name.rstrip("_")
    return "scaled_dot_product_attention" if name.startswith("scaled_dot_product") else ALIASES.get(name, name)


def apply(reader: Reader, call: Bound) -> Any:
    """The views of a call's results.

    Raises:
        Unreadable: no rule, or one that does not hold here.
    """
    name = plain(call.name)
    if name in SAME:
        return call.args[0]
    if name.startswith(("zeros", "ones", "empty", "full", "rand", "new_")):
        return [reader.constant(v) for v in call.values]
    if name in COUNTS and all(v.node.kind == "choice" for v in call.live):
        x = call.live[0]
        if name == "eq" and isinstance(number := call.args[1], Number):
            return View(x.node.but(at=tuple(map(int, number))), x.dims)
        if name == "nonzero" and len(call.values) > 1:
            return _tokens_of(reader, call)
        return [reader.constant(v) for v in call.values]
    if name in ENTRYWISE and call.args[0].node.kind != "const":
        return _entrywise(reader, call, name)
    if name not in RULES:
        todo = "add one (docs/extending.md), or give the equations of this model with --network"
        raise reader.fail(f"no rule for this call; {todo}")
    try:
        return RULES[name](reader, call)
    except UsageError:
        raise
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise reader.fail(f"called in a way that its rule does not read ({type(error).__name__}: {error})") from error


def _entrywise(reader: Reader, call: Bound, name: str) -> View:
    rest = [a[0] if isinstance(a, Number) else a for a in call.args[1:]]
    words = {k: v[0] if isinstance(v, Number) else v for k, v in call.keywords.items() if k != "input"}
    raw = call.call.function

    def exact(v: Tensor) -> Tensor:
        if not callable(raw) or "inplace" in words:
            return getattr(torch, name, getattr(F, name, None))(v)  # type: ignore[misc]
        return raw(v.clone(), *rest, **words)

    known = name if name in NAMES else classified(exact) or name
    return reader.function(known, call.args[0], exact)


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
        return _where_chosen(reader, a, b) if b.node.kind == "choice" else reader.multiply(a, b)
    x, c = (a, b) if isinstance(a, View) else (b, a)
    return reader.scaled(x, c)


def _where_chosen(reader: Reader, x: View, choice: View) -> View:
    """Values of the chosen times where one expert is, or where each is: the value of the expert, or of each."""
    n = len(choice.dims)
    d = next(k for k, dim in enumerate(choice.dims) if choice.node.slot in dim)
    mine = [()] * (n - len(x.dims)) + x.dims
    if choice.node.at:
        y = reader.pick(View(x.node, mine), d, choice.node.at)
        return View(y.node, [*y.dims[:d], (), *y.dims[d:]])
    if isinstance(choice.dims[-1][0], int) or mine[-1] or d == n - 1:
        raise reader.fail("a product with the numbers of what is chosen")
    return View(x.node, [*mine[:d], (), *mine[d + 1 : -1], mine[d]])


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


# functions along dimensions -----------------------------------------------------------------------------------------


def _over(reader: Reader, x: View, d: int, name: str) -> tuple[int, ...]:
    slots = tuple(e for e in x.dims[d] if isinstance(e, int))
    if len(slots) != len(x.dims[d]) or not slots:
        raise reader.fail(f"{name} along a dimension of one entry, or one that repeats")
    return slots


def _along(reader: Reader, name: str, x: View, d: int, exact: Callable[[Tensor, int], Tensor]) -> View:
    """A function along a torch dimension, exact on the torch tensor."""
    d %= len(x.dims)
    over = _over(reader, x, d, name)
    return reader.function(name, x, lambda v: x.taken_back(exact(x.laid_out(v), d), v), over, entrywise=False)


@rule("softmax")
def softmax(reader: Reader, call: Bound) -> View:
    return _softmax(reader, call.args[0], int(call.get("dim", 1, -1)))


def _softmax(reader: Reader, x: View, d: int) -> View:
    while x.node.kind == "same" and x.node.name == "centred":
        x = View(x.node.source, x.dims)
    f = x.node
    if f.kind == "func" and f.name == "topk":
        return _selection(reader, "topk_softmax", View(f.source, x.dims), f.over, f.at[0])
    return _along(reader, "softmax", x, d, lambda v, k: v.softmax(k))


def _selection(reader: Reader, name: str, x: View, over: tuple[int, ...], k: int) -> View:
    """The k largest along a slot, the others zero.

    Args:
        name: ``topk``; ``topk_softmax``, normalised over the chosen; ``softmax_topk``, over all; ``topk_sigmoid``.
    """
    (slot,) = over

    def exact(v: Tensor) -> Tensor:
        mask = torch.zeros_like(v).scatter(slot, v.topk(k, slot).indices, 1.0)
        if name == "topk_softmax":
            return v.masked_fill(mask == 0, float("-inf")).softmax(slot)
        return (v.sigmoid() if name == "topk_sigmoid" else v.softmax(slot) if name == "softmax_topk" else v) * mask

    made = reader.function(name, x, exact, over, False)
    made.node.at = (k,)
    return made


FEW = "a top-K that leaves experts out (let build take K, which is read with K = M)"
SELECTED = {"softmax": "softmax_topk", "sigmoid": "topk_sigmoid"}
"""Functions over all experts, and what the largest of them are."""


def _largest(reader: Reader, x: View, over: tuple[int, ...], k: int) -> View:
    """The largest of scores, perhaps behind a function of all of them."""
    f = x.node
    known = f.kind == "func" and f.name in SELECTED and f.over in ((), over)
    return _selection(reader, SELECTED[f.name] if known else "topk", View(f.source if known else f, x.dims), over, k)


@rule("topk")
def topk(reader: Reader, call: Bound) -> list[View]:
    x, k = call.args[0], call.whole("k", 1)
    d = int(call.get("dim", 2, -1)) % len(x.dims)
    if not x.dims[d]:
        return [x, reader.constant(call.values[1])]
    over, source = _over(reader, x, d, "topk"), x.node
    if len(over) > 1:
        raise reader.fail("a top-K along several axes")
    (slot,), most = over, k[0]
    if k != x.sizes(d, reader.builds):  # refused where it is used; groups of experts are chosen by it
        indices = [IndexClass((most,) * reader.builds) if j == slot else i for j, i in enumerate(source.indices)]
        slots = tuple(range(len(indices)))
        few = TracedNode("func", indices, reader.where, ((source, slots),), name=FEW, over=over)
        few.exact = lambda v: v.topk(most, slot).values
        return [View(few, x.dims)] * 2
    chosen = _largest(reader, x, over, most)
    places = TracedNode(
        "choice", source.indices, reader.where, ((source, tuple(range(len(source.indices)))),), slot=slot
    )
    return [chosen, View(places, x.dims)]


@rule("max")
def largest(reader: Reader, call: Bound) -> list[View]:
    x, d = call.args[0], call.get("dim", 1)
    if d is None or isinstance(d, View):
        raise reader.fail("no rule for the largest of a tensor, or of two")
    d = int(d) % len(x.dims)
    dims = list(x.dims)
    node = TracedNode(
        "func",
        list(x.node.indices),
        reader.where,
        ((x.node, tuple(range(len(x.node.indices)))),),
        name="max",
        over=_over(reader, x, d, "max"),
    )
    node.exact = lambda v: x.taken_back(x.laid_out(v).amax(d, keepdim=True).expand(x.laid_out(v).shape), v)
    dims[d] = ()
    view = View(node, x.dims)
    return [view, *(reader.constant(v) for v in call.values[1:])]


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

    out = _along(reader, name, x, -1, exact)
    out = out if w is None else reader.multiply(w, out)
    out = out if b is None else reader.add([out, b])
    return [out, *(reader.constant(v) for v in call.values[1:])] if len(call.values) > 1 else out


@rule("normalize")
def unit(reader: Reader, call: Bound) -> View:
    """x / |x|: a norm, times the length of the axis to the power -1/2."""
    x, d = call.args[0], int(call.get("dim", 2, 1)) % len(call.args[0].dims)
    if call.get("p", 1, 2) != 2:
        raise reader.fail("a norm that is not Euclidean")
    out = _along(
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
    weights = _softmax(reader, logits, -1)
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


# views --------------------------------------------------------------------------------------------------------------


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def regroup(reader: Reader, call: Bound) -> View:
    return reader.regrouped(call.args[0], call.shapes[0])


@rule("transpose", "t", "get_T", "get_mT", "adjoint", "permute", "movedim")
def permute(reader: Reader, call: Bound) -> View:
    x, n, name = call.args[0], len(call.args[0].dims), plain(call.name)
    order = list(range(n))
    if name == "permute":
        given = (
            call.args[1]
            if isinstance(call.args[1], list | tuple) and not isinstance(call.args[1], Number)
            else call.args[1:]
        )
        order = [int(v[0]) % n for v in given]
    elif name == "movedim":
        order.insert(int(call.args[2][0]) % n, order.pop(int(call.args[1][0])))
    elif n > 1:
        a, b = (int(call.args[k][0]) for k in (1, 2)) if name == "transpose" else (-1, -2)
        order[a], order[b] = order[b], order[a]
    return View(x.node, [x.dims[d] for d in order])


@rule("expand", "expand_as", "repeat", "broadcast_to", "repeat_interleave")
def expand(reader: Reader, call: Bound) -> View:
    """Entries that repeat, along a class that no slot has."""
    x, shapes, name = call.args[0], call.shapes[0], plain(call.name)
    dims: list[tuple[int | IndexClass, ...]] = [()] * (len(shapes[0]) - len(x.dims)) + list(x.dims)
    for d, sizes in enumerate(zip(*shapes, strict=True)):
        have = View(x.node, dims).sizes(d, reader.builds)
        if have != sizes:
            times = IndexClass(tuple(n // m for n, m in zip(sizes, have, strict=True)))
            if dims[d] and name != "repeat_interleave":
                raise reader.fail("a repeat of an axis")
            dims[d] = (*dims[d], times)
    return View(x.node, dims)


@rule("chunk", "split", "tensor_split", "unbind", "split_with_sizes")
def chunk(reader: Reader, call: Bound) -> list[View]:
    x, unbind = call.args[0], plain(call.name) == "unbind"
    d = int(call.get("dim", 1 if unbind else 2, 0)) % len(x.dims)
    if unbind:
        return [reader.pick(x, d, (k,) * reader.builds) for k in range(len(call.shapes))]
    sizes = [tuple(shape[d] for shape in shapes) for shapes in call.shapes]
    parts, start = [], (0,) * reader.builds
    for k, size in enumerate(sizes):
        stop = tuple(a + n for a, n in zip(start, size, strict=True))
        parts.append(reader.narrowed(x, d, start, stop, sizes, k))
        start = stop
    return parts


@rule("narrow", "select")
def narrow(reader: Reader, call: Bound) -> View:
    x, d = call.args[0], int(call.args[1][0]) % len(call.args[0].dims)
    at = tuple(int(v) for v in call.args[2])
    if plain(call.name) == "select":
        return reader.pick(x, d, tuple(v % n for v, n in zip(at, x.sizes(d, reader.builds), strict=True)))
    return reader.narrowed(x, d, at, tuple(a + int(n) for a, n in zip(at, call.args[3], strict=True)))


@rule("getitem")
def getitem(reader: Reader, call: Bound) -> View:
    x, keys = call.args[0], _keys(call.args[1], len(call.args[0].dims), reader.builds)
    keys = [_number(k) for k in keys]
    if any(isinstance(k, View) for k in keys):
        return _indexed(reader, call, x, keys)
    d = 0
    for k in keys:
        size = x.sizes(d, reader.builds) if d < len(x.dims) else ()
        if k is None:
            x = View(x.node, [*x.dims[:d], (), *x.dims[d:]])
            d += 1
        elif isinstance(k, Number):
            at = tuple(int(v) % n for v, n in zip(k, size, strict=True))
            x = _expert(reader, x, d, at) if x.node.kind == "choice" else reader.pick(x, d, at)
        else:
            bounds = [s.indices(n) for s, n in zip(k, size, strict=True)]
            start, stop, step = (tuple(b[j] for b in bounds) for j in range(3))
            x = _stepped(reader, x, d, start[0], step[0]) if set(step) != {1} else reader.narrowed(x, d, start, stop)
            d += 1
    return x


def _keys(key: Any, n: int, builds: int) -> list[Any]:
    """The keys of an index, an ellipsis written out."""
    whole = not isinstance(key, tuple) or isinstance(key, Number)
    keys = [key] if whole else list(key)
    used = sum(k is not None and k is not Ellipsis for k in keys)
    for at, k in enumerate(keys):
        if k is Ellipsis:
            keys[at : at + 1] = [[slice(None)] * builds] * (n - used)
            break
    return keys


def _number(k: Any) -> Any:
    if (
        isinstance(k, View)
        and k.node.kind == "const"
        and not k.dims
        and not k.node.value[0].is_floating_point()
        and k.node.value[0].dtype is not torch.bool
    ):
        return Number(int(v) for v in k.node.value)
    return k


def _stepped(reader: Reader, x: View, d: int, first: int, step: int) -> View:
    dim = x.dims[d]
    if dim and x.index(dim[-1]).sizes == (step,) * reader.builds and first < step:
        y = View(x.node, [*x.dims[:d], dim[:-1], dim[-1:], *x.dims[d + 1 :]])
        return reader.pick(y, d + 1, (first,) * reader.builds)
    return reader.stepped(x, d, first, step)


def _expert(reader: Reader, x: View, d: int, at: Sizes) -> View:
    """Of the one-hot numbers of the chosen: those of one expert."""
    node = x.node.but(at=at)
    return View(node, [*x.dims[:d], *x.dims[d + 1 :]])


def _indexed(reader: Reader, call: Bound, x: View, keys: list[Any]) -> View:
    """By the numbers of chosen experts: their letter stays. By constants along a Theta(1) axis: entries of it."""
    tensors = [(d, k) for d, k in enumerate(keys) if isinstance(k, View)]
    places = [(d, k) for d, k in tensors if k.node.kind == "choice"]
    if len(tensors) == 1 and places:
        d, choice = places[0]
        if len(x.dims[d]) != 1 or not isinstance(x.dims[d][0], int):
            raise reader.fail("an index along several axes")
        e = x.dims[d][0]
        reader.align([[x.index(e)], [choice.node.indices[choice.node.slot].root()]])
        new = [tuple(e if q == choice.node.slot else choice.index(q) for q in dim) for dim in choice.dims]
        return View(x.node, [*x.dims[:d], *new, *x.dims[d + 1 :]])
    if places:
        raise reader.fail("an index by what is computed")
    out, d, gone = x, 0, False
    expert = next((k.node.at for _, k in tensors if k.node.at), None)
    for k in keys:
        if k is None:
            out = View(out.node, [*out.dims[:d], (), *out.dims[d:]])
        elif isinstance(k, View) and expert is not None and k.node.slot:
            out = reader.pick(out, d, expert)
            continue
        elif isinstance(k, View):
            if len(k.dims) > 1 or gone:
                raise reader.fail("an index of several dimensions")
            if out.dims[d]:
                at = k.node.value[0]
                at = at.nonzero()[:, 0] if at.dtype is torch.bool else at
                if at.dim() == 0:
                    raise reader.fail("an index that is a tensor")
                if sorted(at.tolist()) != list(range(out.sizes(d, 1)[0])):
                    out = reader.entries_of(out, d, at)
            gone = expert is None
        elif isinstance(k, Number):
            out = reader.pick(out, d, tuple(int(v) % n for v, n in zip(k, out.sizes(d, reader.builds), strict=True)))
            continue
        d += 1
    return out


@rule("setitem")
def setitem(reader: Reader, call: Bound) -> View:
    """A part of a new tensor, or all that a constant index names."""
    base, value = call.args[0], call.args[2]
    keys = [_number(k) for k in _keys(call.args[1], len(base.dims), reader.builds)]
    if not isinstance(value, View):
        raise reader.fail("writes numbers into a signal")
    if len(keys) == 1 and isinstance(keys[0], View) and keys[0].node.kind == "const":
        at = keys[0].node.value[0]
        if sorted(at.flatten().tolist()) == list(range(base.sizes(0, 1)[0])):
            return value
    cut = [(d, k) for d, k in enumerate(keys) if isinstance(k, list) and k[0] != slice(None)]
    if base.node.kind == "const" and len(cut) == 1 and all(isinstance(k, list) for k in keys):
        d, k = cut[0]
        start, stop, step = k[0].indices(call.shapes[0][0][d])
        if step == 1:
            (made,) = refs(call.call.result)
            reader.pieces[made.number] = reader.pieces.pop(call.call.arguments[0].number, [])
            return _written(reader, made.number, d, start, stop, value) or base
    raise reader.fail("writes into a part of a tensor; torch.cat its parts")


def _written(reader: Reader, base: int, dim: int, start: int, stop: int, view: View) -> View | None:
    """A part of a new tensor is written; all parts together are a concatenation."""
    done = reader.pieces.setdefault(base, [])
    done.append((start, stop, dim, view))
    done.sort(key=lambda piece: piece[:2])
    size = reader.runs[0].shapes[base][dim]
    if [a for a, *_ in done] != [0, *(b for _, b, *_ in done[:-1])] or done[-1][1] != size:
        return None
    shapes = [run.shapes[base] for run in reader.runs]
    reader.views[base] = concatenated(reader, [v for *_, v in done], dim, shapes)
    reader.repaired.add(base)
    del reader.pieces[base]
    return reader.views[base]


@rule("copy")
def copy(reader: Reader, call: Bound) -> View:
    target, value = call.call.arguments[0].number, call.args[1]
    if target in reader.bases:
        base, dim, start, stop = reader.bases[target]
        _written(reader, base, dim, start, stop, value)
    elif call.args[0].node.kind != "const":
        raise reader.fail("writes into a signal; make a new one")
    return value


@rule("cat")
def cat(reader: Reader, call: Bound) -> View:
    parts = call.args[0]
    d = int(call.get("dim", 1, 0)) % len(parts[0].dims)
    return concatenated(reader, parts, d, call.shapes[0])


@rule("stack")
def stack(reader: Reader, call: Bound) -> View:
    """Of tensors of one kind along a new Theta(1) axis: all parts of one whole are the whole."""
    parts, d = call.args[0], int(call.get("dim", 1, 0)) % len(call.shapes[0][0])
    wide = [View(p.node, [*p.dims[:d], (), *p.dims[d:]]) for p in parts]
    return concatenated(reader, wide, d, call.shapes[0], d)


def concatenated(
    reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]], new: int | None = None
) -> View:
    """Along an axis that grows: kept apart until a product sums over it. Along a Theta(1) axis: a sum.

    Args:
        new: the dimension that a stack makes; behind that of the parts of one whole, it interleaves them.
    """
    live = [p for p in parts if p.node.kind != "const"]
    wholes = [whole_of(p.node) for p in parts]
    first = wholes[0]
    if (
        first is not None
        and all(w == first for w in wholes)
        and len(parts) == first[2]
        and all(p.dims == parts[0].dims for p in parts)
    ):
        node, slot, _ = first
        slots = tuple(range(len(node.indices)))
        mixed = TracedNode(
            "same", list(node.indices), reader.where, ((node, slots), *((p.node, slots) for p in parts)), name="mixed"
        )
        between = new is not None and slot in parts[0].dims[new - 1]
        mixed.exact = lambda whole, *v: (
            torch.stack(v, slot + 1).flatten(slot, slot + 1) if between else torch.cat(v, slot)
        )
        return View(mixed, parts[0].dims)
    sizes = tuple(shape[d] for shape in shapes)
    wide = (p.index(e) for p in live for k, dim in enumerate(p.dims) if k != d for e in dim if not isinstance(e, int))
    apart = not all(index.fixed for index in wide)
    if (
        not apart
        and len(set(sizes)) == 1
        and all(not p.dims[d] or all(p.index(e).fixed for e in p.dims[d]) for p in live)
    ):
        return _blend(reader, parts, d, sizes)
    if any(len(p.dims[d]) != 1 or not isinstance(p.dims[d][0], int) for p in parts) or len(live) < len(parts):
        raise reader.fail("a concatenation with what repeats, or with constants")
    return _kept_apart(reader, parts, d, sizes)


def _blend(reader: Reader, parts: Sequence[View], d: int, sizes: Sizes) -> View:
    """Along a Theta(1) axis: a sum, to leading order; constants among the parts are left out."""
    live = [p for p in parts if p.node.kind != "const"]
    n = len(parts[0].dims)
    whole = IndexClass(sizes)
    cut = [View(p.node, [dim if k != d else () for k, dim in enumerate(p.dims)]) for p in live]
    labels, classes, owned, terms = reader._labelled([(p, range(n)) for p in cut])
    order = [x for key in range(n) for x in labels.get(key, ()) if x in owned]
    indices = [*(classes[x] for x in order), whole]
    own = {x: k for k, x in enumerate(order)}
    sources = []
    for node, mine in terms:
        kept = tuple(own[x] if x >= 0 else len(order) for x in mine)
        if kept.count(len(order)) > 1:
            if node.kind != "param" and PLACES not in reader.splits:
                reader.splits[PLACES] = ((), ())
                raise Restart
            raise reader.fail("a concatenation along several axes")
        sources.append((node, kept))
    dims: list[tuple[int | IndexClass, ...]] = [
        tuple(own.get(x, classes[x]) for x in labels.get(k, ())) if k != d else (len(order),) for k in range(n)
    ]
    node = TracedNode("add", indices, reader.where, tuple(sources), name="blend")
    view, constants = View(node, dims), {k: p.node.value[0] for k, p in enumerate(parts) if p.node.kind == "const"}

    def exact(*values: Tensor) -> Tensor:
        rest, laid = iter(values), []
        for k, p in enumerate(parts):
            laid.append(constants[k].double() if k in constants else p.laid_out(next(rest)))
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.taken_back(y, torch.empty([i.root().sizes[0] for i in indices]))

    node.exact = exact
    if constants:
        node.note = "constants among the parts of a concatenation are left out"
    return view


def _kept_apart(reader: Reader, parts: Sequence[View], d: int, sizes: Sizes) -> View:
    """Parts beside each other; one may repeat along an axis that another has."""
    first = max(parts, key=lambda p: len(p.node.indices))
    slot, sources = first.dims[d][0], []
    assert isinstance(slot, int)
    for p in parts:
        labels = [-1] * len(p.node.indices)
        for a, b in zip(first.dims, p.dims, strict=True):
            if len(a) != len(b):
                raise reader.fail("a concatenation of unlike axes")
            for x, y in zip(a, b, strict=True):
                if isinstance(y, int):
                    if not isinstance(x, int):
                        raise reader.fail("a concatenation of unlike axes")
                    labels[y] = x
                if x != slot:
                    reader.align([[first.index(x)], [p.index(y)]])
        sources.append((p.node, tuple(labels)))
    indices = [IndexClass(sizes) if k == slot else x for k, x in enumerate(first.node.indices)]
    return View(TracedNode("cat", indices, reader.where, tuple(sources), slot=slot), first.dims)


# choices ------------------------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(reader: Reader, call: Bound) -> View:
    """A product with one-hot data; rows by position are a tensor that acts on nothing."""
    ids, w = call.args[0], call.whole("weight", 1)
    if plain(call.call.name) == "embedding" and isinstance(w, View) and ids.node.kind not in ("const", "data"):
        raise reader.fail("an embedding of what is not the input")
    if ids.node.kind == "const":
        at, spots = ids.node.value[0], [d for d, dim in enumerate(ids.dims) if dim]
        if len(spots) > 1:
            raise reader.fail("positions along several axes")
        rows = reader.entries_of(w, 0, at.flatten())
        return View(rows.node, [*(rows.dims[0] if d in spots else () for d in range(len(ids.dims))), rows.dims[1]])
    if ids.node.value.is_floating_point():
        raise reader.fail("an embedding of what is not whole numbers")
    number = ids.node.number
    if number not in reader.one_hot:
        count = w.sizes(0, reader.builds)
        hot = TracedNode("data", [*ids.node.indices, IndexClass(count, ("data", "vocabulary"))], name="data")
        hot.value = F.one_hot(ids.node.value.long(), count[0]).double()
        reader.one_hot[number] = hot
    hot = reader.one_hot[number]
    keys = list(range(len(ids.dims)))
    return reader.contract(
        [(w, ["v", "o"]), (View(hot, [*ids.dims, (len(hot.indices) - 1,)]), [*keys, "v"])], [*keys, "o"]
    )


@rule("where", "masked_fill")
def where(reader: Reader, call: Bound) -> Any:
    """Where a mask of one expert is true: its tokens, and its places among the chosen. Else a mask of constants."""
    if plain(call.name) == "where" and len(call.args) == 1:
        return _tokens_of(reader, call)
    fill = plain(call.name) == "masked_fill"
    x, mask, other = call.args if fill else (call.args[1], call.args[0], call.args[2])
    if mask.node.kind != "const":
        raise reader.fail("a choice by what is computed")
    if isinstance(x, View) and isinstance(other, View) and "const" not in (x.node.kind, other.node.kind):
        raise reader.fail("a choice between two signals")
    kept = x if isinstance(x, View) and x.node.kind != "const" else other
    rest = other if kept is x else x
    value = rest.node.value[0] if isinstance(rest, View) else torch.tensor(float(rest[0]))
    m = mask.node.value[0].bool() if (kept is x) != fill else ~mask.node.value[0].bool()
    low = float(value.max()) < -1e3 or not m.logical_not().any()
    if not low and float(value.abs().max()) > 0:
        raise reader.fail("entries are set to a constant")
    return reader.same(
        reader.spread(kept, mask),
        lambda v: torch.where(m, v, value.to(v.dtype)),
        "a mask is left out" if not m.all() else "",
    )


def _tokens_of(reader: Reader, call: Bound) -> list[View]:
    x, found = call.args[0], [reader.constant(v) for v in call.values]
    if x.node.kind == "choice" and x.node.at:
        for view, dim in zip(found, x.dims, strict=True):
            view.node.at = x.node.at
            view.node.slot = int(any(e == x.node.slot for e in dim if isinstance(e, int)))
    return found


@rule("one_hot")
def one_hot(reader: Reader, call: Bound) -> View:
    x = call.args[0]
    if x.node.kind != "choice":
        raise reader.fail("a one-hot of what is not a chosen expert")
    return View(x.node, [*x.dims, (IndexClass(tuple(s[-1] for s in call.shapes[0])),)])


@rule("gather")
def gather(reader: Reader, call: Bound) -> View:
    """Scores of the chosen experts, in the order of the experts."""
    x = call.args[0]
    method = call.call.name != "take_along_dim"
    choice, d = (call.args[2], int(call.args[1][0])) if method else (call.args[1], int(call.get("dim", 2, -1)))
    if choice.node.kind != "choice":
        raise reader.fail("a gather that is not by chosen experts")
    over = _over(reader, x, d % len(x.dims), "gather")
    if choice.sizes(d % len(x.dims), 1) != x.sizes(d % len(x.dims), 1) or len(over) > 1:
        raise reader.fail("a gather of some experts; build with K = M")
    k = x.sizes(d % len(x.dims), reader.builds)[0]
    if call.shapes[0][0][d] != k:
        raise reader.fail("a gather of some experts; let build take K, which is traced with K = M")
    return _largest(reader, x, over, k)


@rule("scatter", "scatter_add")
def scatter(reader: Reader, call: Bound) -> View:
    """Values of the chosen experts in their places, zero elsewhere."""
    base, choice, source = call.args[0], call.args[2], call.whole("src", 3)
    if base.node.kind == "const" and choice.node.kind == "choice":
        if not isinstance(source, View) or source.node.kind == "const":
            return reader.constant(call.values[0])
        if all(bool((v < -1e3).all()) for v in base.node.value):
            return View(source.node, source.dims)
        if not any(float(v.abs().max()) for v in base.node.value):
            return reader.same(source, lambda v: v)  # the others are there, too
    raise reader.fail("a scatter that is not of chosen values into zeros, or -inf")


@rule("index_add")
def index_add(reader: Reader, call: Bound) -> View:
    base, source = call.args[0], call.whole("source", 3)
    index = call.whole("index", 2)
    if index.node.kind != "const" or sorted(index.node.value[0].tolist()) != list(
        range(call.shapes[0][0][int(call.get("dim", 1, 0))])
    ):
        raise reader.fail("adds to some entries; build with K = M (every expert)")
    if base.node.kind == "const":
        if any(float(v.abs().max()) for v in base.node.value):
            raise reader.fail("adds to a constant")
        return source
    return reader.add([base, source])


@rule("index_select")
def index_select(reader: Reader, call: Bound) -> View:
    x, d = call.args[0], int(call.get("dim", 1))
    return _indexed(reader, call, x, [*[[slice(None)] * reader.builds] * d, call.args[2]])
