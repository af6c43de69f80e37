"""JAX primitives as torch calls: the table ``RULES``. To support another primitive, add a row.

A rule is called with the parameters of the jaxpr equation and with its operands. It takes sizes from the operands and
not from these parameters, since tensors have other sizes in a trace in which a top-K selects all entries. Read next:
``program.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.errors import UsageError

Params = Mapping[str, Any]
Rule = Callable[..., Any]


def contract(params: Params, a: Tensor, b: Tensor) -> Tensor:
    """Compute dot_general, a batched product of tensors. The result has the batch dimensions first, then the
    remaining dimensions of ``a``, then those of ``b``.
    """
    (summed_a, summed_b), (batch_a, batch_b) = params["dimension_numbers"]
    indices = iter(ascii_letters)
    of_a = [next(indices) for _ in range(a.dim())]
    same = {d: of_a[c] for c, d in zip((*batch_a, *summed_a), (*batch_b, *summed_b), strict=True)}
    of_b = [same[d] if d in same else next(indices) for d in range(b.dim())]
    out = [of_a[d] for d in batch_a] + [x for d, x in enumerate(of_a) if d not in (*batch_a, *summed_a)]
    out += [x for d, x in enumerate(of_b) if d not in same]
    return torch.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(out)}", a, b)


def broadcast(params: Params, x: Tensor) -> Tensor:
    """Compute broadcast_in_dim: insert dimensions, and repeat those of size 1."""
    shape, places = params["shape"], params["broadcast_dimensions"]
    if x.dim() == 0:
        return x.expand(tuple(shape))
    spread = x
    for d in range(len(shape)):
        if d not in places:
            spread = spread.unsqueeze(d)
    # m differs from n in a top-K that selects all
    sizes = [n if m == 1 else m for n, m in zip(shape, spread.shape, strict=True)]
    return spread if sizes == [*spread.shape] else spread.expand(sizes)


def reshape(params: Params, x: Tensor) -> Tensor:
    """Compute reshape; it may also insert or remove dimensions of size 1."""
    if params["dimensions"] is not None:
        raise UsageError(
            "apply: a reshape that also permutes dimensions is not supported; write a transpose and a reshape"
        )
    sizes = tuple(params["new_sizes"])
    if [n for n in sizes if n != 1] != [n for n in x.shape if n != 1]:
        return x.reshape(sizes)
    return x.reshape(sizes) if tuple(x.shape) != sizes else x


def larger(params: Params, a: Any, b: Any) -> Tensor:
    """Compute the elementwise maximum of two tensors, or of a tensor and a number."""
    x, limit = (b, a) if isinstance(b, Tensor) else (a, b)
    if isinstance(limit, Tensor):
        return torch.maximum(x, limit)
    return torch.relu(x) if limit == 0 else x.clamp(min=limit)


def smaller(params: Params, a: Any, b: Any) -> Tensor:
    """Compute the elementwise minimum of two tensors, or of a tensor and a number."""
    x, limit = (b, a) if isinstance(b, Tensor) else (a, b)
    return torch.minimum(x, limit) if isinstance(limit, Tensor) else x.clamp(max=limit)


def cast(params: Params, x: Tensor) -> Tensor:
    """Convert the dtype (convert_element_type). All floating-point values are in float64 here."""
    kind = params["new_dtype"].kind
    if kind == "b":
        return x != 0 if x.dtype is not torch.bool else x
    if kind in "iu":
        return x if not (x.is_floating_point() or x.dtype is torch.bool) else x.long()
    return x if x.is_floating_point() else x.double()


def choose(params: Params, which: Tensor, *cases: Tensor) -> Tensor:
    """Compute select_n between two tensors, which is ``torch.where``."""
    if len(cases) != 2 or which.dtype is not torch.bool:
        raise UsageError("apply: select_n between more than two arrays is not supported; write jnp.where")
    return torch.where(which, cases[1], cases[0])


def take(params: Params, x: Tensor, ids: Tensor) -> Tensor:
    """Select whole entries along one dimension by an index tensor, as an embedding does."""
    ids, axis = ids[..., 0] if params["last"] else ids, params["axis"]
    if axis == 0 and x.dim() == 2 and ids.dim():
        return F.embedding(ids, x)
    return x[(slice(None),) * axis + (ids,)]


def take_slice(params: Params, x: Tensor) -> Tensor:
    """Compute slice. Dimensions that are not cut are left as they are."""
    strides = params["strides"] or (1,) * x.dim()
    bounds = zip(params["start_indices"], params["limit_indices"], strides, x.shape, strict=True)
    return x[tuple(slice(None) if (a, b, s) == (0, n, 1) else slice(a, b, s) for a, b, s, n in bounds)]


def take_dynamic_slice(params: Params, x: Tensor, *starts: Any) -> Tensor:
    """Compute dynamic_slice, for start positions that are known constants."""
    sizes = params["slice_sizes"]
    limits = [max(0, min(int(a), m - n)) for a, n, m in zip(starts, sizes, x.shape, strict=True)]
    return x[tuple(slice(a, a + n) if n != m else slice(None) for a, n, m in zip(limits, sizes, x.shape, strict=True))]


def stack(params: Params, *parts: Tensor) -> Tensor:
    return torch.stack(parts)


def make_iota(params: Params) -> Tensor:
    """Compute iota: each entry is its position along one dimension."""
    shape, d = tuple(params["shape"]), params["dimension"]
    floats = params["dtype"].kind == "f"
    line = torch.arange(shape[d], dtype=torch.float64 if floats else torch.int64)
    return line.reshape([-1 if k == d else 1 for k in range(len(shape))]).expand(shape)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu, "softplus": F.softplus,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu, "leaky_relu": F.leaky_relu, "elu": F.elu,
    "mish": F.mish, "log_sigmoid": F.logsigmoid, "selu": F.selu,
}  # fmt: skip
"""Elementwise functions of one tensor that torch provides under one name."""
ENTRYWISE: dict[str, Rule] = {
    "add": lambda p, a, b: a + b, "add_any": lambda p, a, b: a + b, "sub": lambda p, a, b: a - b,
    "mul": lambda p, a, b: a * b, "div": lambda p, a, b: a / b, "neg": lambda p, x: -x, "max": larger, "min": smaller,
    "exp": lambda p, x: x.exp(), "exp2": lambda p, x: x.exp2(), "log": lambda p, x: x.log(),
    "log1p": lambda p, x: x.log1p(), "expm1": lambda p, x: x.expm1(), "tanh": lambda p, x: x.tanh(),
    "logistic": lambda p, x: x.sigmoid(), "erf": lambda p, x: x.erf(), "erfc": lambda p, x: x.erfc(),
    "sin": lambda p, x: x.sin(), "cos": lambda p, x: x.cos(), "sqrt": lambda p, x: x.sqrt(),
    "rsqrt": lambda p, x: x.rsqrt(), "abs": lambda p, x: x.abs(), "sign": lambda p, x: x.sign(),
    "square": lambda p, x: x.square(), "integer_pow": lambda p, x: x ** p["y"], "pow": lambda p, a, b: a**b,
    "gt": lambda p, a, b: a > b, "ge": lambda p, a, b: a >= b, "lt": lambda p, a, b: a < b,
    "le": lambda p, a, b: a <= b, "eq": lambda p, a, b: a == b, "ne": lambda p, a, b: a != b,
    "and": lambda p, a, b: a & b, "or": lambda p, a, b: a | b, "not": lambda p, x: ~x,
    "is_finite": lambda p, x: x.isfinite(), "select_n": choose, "convert_element_type": cast,
    "rem": lambda p, a, b: torch.fmod(a, b), "floor": lambda p, x: x.floor(), "ceil": lambda p, x: x.ceil(),
}  # fmt: skip
"""Primitives that act entry by entry."""
RULES: dict[str, Rule] = {
    **ENTRYWISE,
    "function": lambda p, x: FUNCTIONS[p["function"]](x),
    "dot_general": contract, "broadcast_in_dim": broadcast, "reshape": reshape, "take": take, "slice": take_slice,
    "dynamic_slice": take_dynamic_slice, "iota": make_iota, "stack": stack,
    "layer": lambda p, x: x[p["at"]],
    "mean": lambda p, x: x.mean(p["axes"]), "variance": lambda p, x: x.var(p["axes"], correction=0),
    "softmax": lambda p, x: x.softmax(p["axis"]),
    "reduce_sum": lambda p, x: x.sum(p["axes"]), "reduce_max": lambda p, x: x.amax(p["axes"]),
    "reduce_min": lambda p, x: x.amin(p["axes"]), "reduce_and": lambda p, x: x.all(p["axes"][0]),
    "argmax": lambda p, x: x.argmax(p["axes"][0]), "cumsum": lambda p, x: x.cumsum(p["axis"]),
    "top_k": lambda p, x: x.topk(p["k"], p["axis"]),
    "transpose": lambda p, x: x.permute(tuple(p["permutation"])),
    "squeeze": lambda p, x: x.squeeze(tuple(p["dimensions"])),
    "expand_dims": lambda p, x: x.unsqueeze(p["dimensions"][0]),
    "concatenate": lambda p, *parts: torch.cat(parts, p["dimension"]),
    "split": lambda p, x: x.split([int(n) for n in p["sizes"]], p["axis"]),
    "rev": lambda p, x: x.flip(tuple(p["dimensions"])),
    "stop_gradient": lambda p, x: x.detach(), "copy": lambda p, x: x, "optimization_barrier": lambda p, *x: x,
}  # fmt: skip
"""Every primitive, and the calls of torch that patterns of them are."""
