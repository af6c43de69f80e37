"""Rules that read products, convolutions, sums, means, powers and pooling as equations.

Each rule gets the reader and the arguments of a torch call, with views in place of tensors, and returns the view of
the result. Read next: ``products.py`` (contractions), ``elementwise.py`` (sums and elementwise products).
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from .data_movement import reshape_view
from .elementwise import add_views, apply_function, multiply_views, scale_view
from .equation_constants import convert_constant
from .graph import View
from .nodes import SameSizeNode
from .products import contract_views
from .reader import Reader
from .rule_table import register_rule

# products -------------------------------------------------------------------------------------------------------


@register_rule("linear")
def read_linear(reader: Reader, x: View, weight: View, bias: View | None = None) -> View:
    """Returns ``x @ weight.T + bias``."""
    lead = list(range(len(x.dims) - 1))
    out = contract_views(reader, [(weight, ["o", "i"]), (x, [*lead, "i"])], [*lead, "o"])
    return out if bias is None else add_views(reader, [out, bias])


@register_rule("matmul", "bmm", "mm", "mv", "dot")
def read_matmul(reader: Reader, a: View, b: View) -> View:
    """Returns ``a @ b`` for vectors, matrices and batches of matrices, whose batch dimensions are broadcast."""
    n = max(len(a.dims), len(b.dims), 2) - 2
    left = ["i"] if len(a.dims) == 1 else [*range(n - len(a.dims) + 2, n), "r", "i"]
    right = ["i"] if len(b.dims) == 1 else [*range(n - len(b.dims) + 2, n), "i", "o"]
    return contract_views(reader, [(a, left), (b, right)], [k for k in (*range(n), "r", "o") if k in (*left, *right)])


@register_rule("bilinear")
def read_bilinear(reader: Reader, a: View, b: View, weight: View, bias: View | None = None) -> View:
    """Returns y[o] = sum over i, j of weight[o,i,j] a[i] b[j], plus the bias."""
    lead = list(range(len(a.dims) - 1))
    one = contract_views(reader, [(weight, ["o", "i", "j"]), (a, [*lead, "i"])], [*lead, "o", "j"])
    out = contract_views(reader, [(one, [*lead, "o", "j"]), (b, [*lead, "j"])], [*lead, "o"])
    return out if bias is None else add_views(reader, [out, bias])


@register_rule("einsum")
def read_einsum(reader: Reader, equation: str, *rest: Any) -> View:
    """Returns the einsum of the operands, which are separate arguments or one list."""
    operands = rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest
    left, _, out = equation.partition("->")
    return contract_views(reader, list(zip(operands, map(list, left.split(",")), strict=True)), list(out))


@register_rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
def read_convolution(
    reader: Reader,
    x: View,
    weight: View,
    bias: View | None = None,
    stride: Any = 1,
    padding: Any = 0,
    *rest: Any,
    **words: Any,
) -> View:
    """Reads a convolution, or transposed convolution, as a product of the input, a constant and the kernel.

    The constant C[p,k,q] is 1 where kernel entry k links output position p to input position q, so that it gathers
    the patches; the kernel is a matrix that acts on them: y[o,p] = W[o,c,k] C[p,k,q] x[c,q]. Several spatial
    dimensions are gathered one after the other.

    Args:
        reader: the reader.
        x: the input, with a batch dimension.
        weight: the kernel.
        bias: the bias, if any.
        stride: number for all spatial dimensions, or one for each.
        padding: likewise, or "same" or "valid".
        rest: further positional arguments, in the order of torch.
        words: further keyword arguments (dilation, groups, output_padding).

    Raises:
        Unreadable: the input has no batch dimension.
    """
    transposed = "transpose" in reader.rule_name
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    given = {"groups": 1, "dilation": 1} | dict(zip(names, rest, strict=False)) | words
    n = len(weight.dims) - 2
    if len(x.dims) != n + 2:
        raise reader.fail("a convolution of an input without a batch dimension; add one, as x[None]")
    groups = reader.get_per_build(given["groups"])
    if c := int(max(groups) > 1):  # grouped: channels become (groups, channels of a group)
        x, weight = _split_groups(reader, x, 1, groups), _split_groups(reader, weight, 0, groups)
    lead, taps, here = ["b", *["g"] * c, "i"], [f"k{d}" for d in range(n)], [f"p{d}" for d in range(n)]
    patches, keys = x, [*lead, *(f"q{d}" for d in range(n))]
    for d in range(n):
        sizes = reader.shapes[0][0][2 + d], weight.get_sizes(2 + c + d, 1)[0], x.get_sizes(2 + c + d, 1)[0]
        step, pad, wide = (_get_for_dim(v, d, n) for v in (stride, padding, given["dilation"]))
        pad = (sizes[1] - 1) * wide // 2 if pad == "same" else 0 if pad == "valid" else pad
        if (sizes[1], step, pad) == (1, 1, 0):  # output position = input position
            here[d] = f"q{d}"
            continue
        place, tap, at = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
        meets = at * step - pad + tap * wide == place if transposed else place * step - pad + tap * wide == at
        matrix = convert_constant(reader, reader.make_constant([meets.double()] * reader.builds))
        out = [*lead, *taps[: d + 1], *here[: d + 1], *(f"q{e}" for e in range(d + 1, n))]
        patches, keys = contract_views(reader, [(matrix, [here[d], taps[d], f"q{d}"]), (patches, keys)], out), out
    sides = [*["g"] * c, "i", "o"] if transposed else [*["g"] * c, "o", "i"]
    y = contract_views(reader, [(weight, [*sides, *taps]), (patches, keys)], ["b", *["g"] * c, "o", *here])
    if c:
        y = View(y.node, [y.dims[0], y.dims[1] + y.dims[2], *y.dims[3:]])
    return y if bias is None else add_views(reader, [y, View(bias.node, [bias.dims[0], *[()] * n])])


def _get_for_dim(given: Any, d: int, n: int) -> Any:
    """Returns the value of an argument such as ``stride`` for spatial dimension d of n.

    Args:
        given: one number for all of them, or a list with one for each.
        d: the dimension.
        n: the number of spatial dimensions.

    Examples:
        >>> _get_for_dim((2, 3), 1, 2), _get_for_dim(4, 1, 2)
        (3, 4)
    """
    return given[d if len(given) == n else 0] if isinstance(given, list | tuple) else given


def _split_groups(reader: Reader, x: View, d: int, groups: tuple[int, ...]) -> View:
    """Splits dimension d, the channels of a grouped convolution, into (groups, channels of a group).

    Args:
        reader: the reader.
        x: the view.
        d: the dimension.
        groups: number of groups in each build of the module.
    """
    sizes = [x.get_sizes(k, reader.builds) for k in range(len(x.dims))]
    shapes = []
    for b, g in enumerate(groups):
        shape = [s[b] for s in sizes]
        shapes.append([*shape[:d], g, shape[d] // g, *shape[d + 1 :]])
    return reshape_view(reader, x, shapes)


# sums -----------------------------------------------------------------------------------------------------------


@register_rule("add")
def read_add(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    """Returns ``a + alpha * b``."""
    return add_views(
        reader,
        [reader.convert_operand(a), reader.convert_operand(b) if alpha == 1 else read_multiply(reader, b, alpha)],
    )


@register_rule("sub")
def read_sub(reader: Reader, a: Any, b: Any, alpha: Any = 1) -> View:
    """Returns ``a - alpha * b``."""
    return read_add(reader, a, read_negative(reader, b), alpha)


@register_rule("neg")
def read_negative(reader: Reader, x: Any) -> View:
    """Returns ``-x``: a constant if x is one, otherwise x times -1."""
    y = reader.convert_operand(x)
    return reader.make_constant([-v for v in y.values]) if y.is_constant else read_multiply(reader, y, -1)


@register_rule("sum", "mean")
def read_sum(reader: Reader, x: View, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> View:
    """Returns the sum over dimensions; for a call of ``mean``, divided by the number of entries that are summed.

    Args:
        reader: the reader.
        x: the view.
        dim: a dimension, several, or None for all.
        keepdim: whether the dimensions stay, with size 1.
        dtype: ignored.
    """
    n = len(x.dims)
    gone = sorted(d % n for d in (range(n) if dim is None else [dim] if isinstance(dim, int) else dim))
    factor = (1.0,) * reader.builds
    if reader.rule_name == "mean":
        factor = tuple(1 / m for m in map(prod, zip(*(x.get_sizes(d, reader.builds) for d in gone), strict=True)))
    stay = [d for d in range(n) if d not in gone]
    made = contract_views(reader, [(x, range(n))], stay, () if set(factor) == {1} else factor)
    for d in gone if keepdim else ():
        made = View(made.node, [*made.dims[:d], (), *made.dims[d:]])
    return made


@register_rule("lerp")
def read_lerp(reader: Reader, a: View, b: View, weight: Any) -> View:
    """Returns ``a + weight * (b - a)``."""
    return add_views(reader, [a, read_multiply(reader, weight, read_sub(reader, b, a))])


@register_rule("prelu")
def read_prelu(reader: Reader, x: View, weight: View) -> View:
    """Returns prelu(x): x where it is positive, otherwise x times ``weight`` (one number, or one for each channel).

    prelu(x)  ->  relu(x) + weight * -relu(-x)
    """
    below = apply_function(reader, "relu", read_negative(reader, x), torch.relu)
    slope = View(weight.node, [*weight.dims, *[()] * (len(x.dims) - 2)]) if any(weight.dims) else weight
    return add_views(
        reader,
        [apply_function(reader, "relu", x, torch.relu), read_multiply(reader, slope, read_negative(reader, below))],
    )


@register_rule("mul")
def read_multiply(reader: Reader, a: Any, b: Any) -> View:
    """Returns the elementwise product ``a * b``."""
    return multiply_views(reader, reader.convert_operand(a), reader.convert_operand(b))


@register_rule("div")
def read_divide(reader: Reader, a: Any, b: Any) -> View:
    """Returns ``a / b`` for a constant b.

    Divisions in norms and normalised gates are recognised earlier, in ``function_recognition.py``.

    Raises:
        Unreadable: b is a signal.
    """
    x, y = reader.convert_operand(a), reader.convert_operand(b)
    if y.is_constant:
        return scale_view(reader, x, reader.make_constant([1 / v for v in y.values]))
    why = "a division by a signal that is neither a norm nor a sum of gates, which no equation can express; "
    raise reader.fail(why + "use a norm or a softmax, or give the equations with --network")


@register_rule("pow", "square")
def read_power(reader: Reader, x: View, exponent: Any = 2) -> View:
    """Returns x to an integer power from 2 to 8, as a product.

    Raises:
        Unreadable: another exponent.
    """
    if isinstance(exponent, View) and exponent.is_constant and not exponent.dims:
        exponent = float(exponent.values[0])
    if exponent in range(2, 9):
        return multiply_views(reader, x, x if exponent == 2 else read_power(reader, x, exponent - 1))
    why = f"the power {exponent} of a signal, which no equation can express; "
    raise reader.fail(why + "use an integer power from 2 to 8, or give the equations with --network")


@register_rule("max_pool1d", "max_pool2d", "max_pool3d")
def read_max_pool(
    reader: Reader, x: View, kernel: Any, stride: Any = None, padding: Any = 0, *_: Any, **__: Any
) -> View:
    """Reads max pooling as the sum over each window of relu(x), which is as large.

    Like the maximum, this is homogeneous of degree one and has a kink. The call itself, applied to unit vectors,
    tells which positions belong to a window.

    Args:
        reader: the reader.
        x: the signal.
        kernel: window size.
        stride: distance of windows; the window size if None.
        padding: padding of the positions.

    Raises:
        Unreadable: at some entry of the recorded result, the maximum is larger than this sum, or one of them is
            positive and the other is not.
    """
    assert reader.call is not None
    n = int(reader.rule_name[-2])
    given, function = (kernel, stride or kernel, padding), reader.call.function
    sizes, places = [x.get_sizes(d, 1)[0] for d in range(len(x.dims) - n, len(x.dims))], list(range(len(x.dims)))
    units = torch.eye(prod(sizes), dtype=torch.float64).reshape(prod(sizes), 1, *sizes)
    meets = function(units, *given)[:, 0].reshape(*sizes, *reader.shapes[0][0][-n:])
    out = [*places[:-n], *(("out", d) for d in places[-n:])]
    operand = convert_constant(reader, reader.make_constant([meets] * reader.builds))
    relu = apply_function(reader, "relu", x, torch.relu)
    y = contract_views(reader, [(operand, [*places[-n:], *out[-n:]]), (relu, places)], out)

    why = "the equations give other values than this call, so its rule is wrong here; use other calls, or --network"
    wrong = reader.fail(why)

    def compute_value(total: Tensor, v: Tensor) -> Tensor:
        most = y.from_torch(function(x.to_torch(v), *given), total)
        if bool(((total > 0) != (most > 0)).any() or (most > total + most.abs() * 1e-9).any()):
            raise wrong
        return most

    node = y.node.derive(
        SameSizeNode,
        reader.where,
        note="max pooling is read as relu and a sum over each window",
        value_function=compute_value,
    )
    node.sources += ((x.node, x.node.slots),)
    return View(node, y.dims)
