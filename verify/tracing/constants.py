"""Constants of a call as constants of the equations. Read next: ``fixed.py`` (calls that are linear)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .graph import Dims, IndexClass, TracedNode, View
from .indices import Indices


def fixed(reader: Indices, values: Sequence[Tensor], classes: Sequence[IndexClass], dims: Dims) -> View:
    """A constant of the equations.

    Args:
        values: at every build. classes: of its indices. dims: the indices of every dimension.

    Raises:
        Unreadable: entries that change with the sizes.
    """
    value = values[0].double().reshape([c.root().sizes[0] for c in classes])
    sizes = [float(v.double().square().mean().sqrt()) for v in values]
    if min(sizes) <= 0 or max(sizes) > (1 + 1e-3) * min(sizes):
        raise reader.fail("a constant whose entries change with the sizes; no equation says this")
    mark = tuple(value.shape), value.numpy().tobytes()
    node = reader.fixed.setdefault(mark, TracedNode("fixed", list(classes), reader.where, value=value))
    return View(node, dims)


def constant(reader: Indices, x: View) -> View:
    """A constant tensor of a call as one of the equations; along an axis that grows all of its entries are one.

    Raises:
        Unreadable: they are not.
    """
    classes: list[IndexClass] = []
    dims: Dims = []
    values = x.node.value
    for d, dim in enumerate(x.dims):
        own = [e for e in dim if isinstance(e, IndexClass)]
        if any(not e.fixed for e in own):
            values, own = alike(reader, values, d), []
        dims.append(tuple(range(len(classes), len(classes) + len(own))))
        classes += own
    return fixed(reader, values, classes, dims)


def differs(reader: Indices, x: View) -> bool:
    """Do the entries of a constant differ along an axis that grows, and are they as large at every build?"""
    grows = [d for d, dim in enumerate(x.dims) if not all(x.index(e).fixed for e in dim)]
    sizes = [float(v.double().square().mean().sqrt()) for v in x.node.value]
    return (
        bool(grows)
        and any(bool((v.diff(dim=d) != 0).any()) for v in x.node.value for d in grows)
        and (max(sizes) <= 1.2 * min(sizes))
    )


def alike(reader: Indices, values: Sequence[Tensor], d: int) -> list[Tensor]:
    """Values with one entry along a dimension.

    Raises:
        Unreadable: several differ.
    """
    if any(bool((v.diff(dim=d) != 0).any()) for v in values):
        raise reader.fail("a constant that differs along an axis that grows; make it a parameter, or data")
    return [v.narrow(d, 0, 1) for v in values]
