"""Converts constant tensors of a call into constants of the equations.

Read next: ``products.py`` (multiplies by them), ``equation_writer.py`` (their names).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .graph import Dims, View
from .nodes import (
    EquationConstant,
    IndexClass,
)
from .reader import Reader


def make_fixed_constant(
    reader: Reader,
    values: Sequence[Tensor],
    classes: Sequence[IndexClass],
    dims: Dims,
    kind: type[EquationConstant] = EquationConstant,
) -> View:
    """Returns a constant tensor of the module as a constant of the equations. The size of its entries must not grow.

    Args:
        reader: the reader.
        values: its value in each build of the module.
        classes: the index class of each of its dimensions.
        dims: the ``dims`` of the view that is returned.
        kind: class of the node.

    Raises:
        Unreadable: its root mean square is zero or changes with the sizes of the model.
    """
    value = values[0].double().reshape([c.find_root().sizes[0] for c in classes])
    sizes = [float(v.double().square().mean().sqrt()) for v in values]
    if min(sizes) <= 0 or max(sizes) > (1 + 1e-3) * min(sizes):
        raise reader.fail(
            "a constant whose entries change with the sizes, which equations cannot express; divide "
            "by a size outside of it"
        )
    mark = kind, tuple(value.shape), value.numpy().tobytes()
    node = reader.equation_constants.setdefault(mark, kind(indices=list(classes), where=reader.where, value=value))
    return View(node, dims)


def convert_constant(reader: Reader, x: View) -> View:
    """Returns a constant argument of a call as a constant of the equations.

    Raises:
        Unreadable: its entries differ along an axis that grows, or their size changes with the sizes of the model.
    """
    classes: list[IndexClass] = []
    dims: Dims = []
    values = x.values
    for d, dim in enumerate(x.dims):
        own = [e for e in dim if isinstance(e, IndexClass)]
        if any(not e.fixed for e in own):
            values, own = collapse_constant(reader, values, d), []
        own = [y for e in own for y in ([e] if e.find_root().leaves else reader.make_indices(e.find_root().sizes))]
        dims.append(tuple(range(len(classes), len(classes) + len(own))))
        classes += own
    return make_fixed_constant(reader, values, classes, dims)


def varies_along_growing_axis(x: View) -> bool:
    """Returns whether the entries of a constant differ along an axis that grows while their root mean square stays
    the same.

    Such a constant can be written as a parameter that is not trained.
    """
    grows = [d for d, dim in enumerate(x.dims) if not all(x.get_index(e).fixed for e in dim)]
    sizes = [float(v.double().square().mean().sqrt()) for v in x.values]
    steady = max(sizes) <= 1.2 * min(sizes)
    return steady and any(bool((v.diff(dim=d) != 0).any()) for v in x.values for d in grows)


def collapse_constant(reader: Reader, values: Sequence[Tensor], d: int) -> list[Tensor]:
    """Returns the values of a constant, shortened to one entry along dimension d; all entries along it must be equal.

    Raises:
        Unreadable: some entries along the dimension differ.
    """
    if any(bool((v.diff(dim=d) != 0).any()) for v in values):
        raise reader.fail("a constant whose entries differ along an axis that grows; make it a parameter, or data")
    return [v.narrow(d, 0, 1) for v in values]
