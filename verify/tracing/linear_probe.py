"""Reads a call without a rule that is linear along axes that do not grow: y[p,a] = C[p,q] x[q,a].

The matrix C is determined by probing. The call is run again on the outer product of a random tensor along the axes that
do not grow (q) and one random vector along those that grow (a). If every entry of the result, as a multiple of that
vector, equals an entry of the random tensor up to sign, then C selects entries. Otherwise the call is run on each unit
vector along q, and the multiples are the columns of C. Read next: ``products.py`` (contractions),
``rule_application.py`` (tries this when a call has no rule), ``equation_writer.py`` (the constant in the equations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from .elementwise import add_constant, add_views, compute_structure_key
from .equation_constants import collapse_constant, make_fixed_constant
from .graph import Dims, View
from .nodes import IndexClass, PartialTensor
from .products import contract_views
from .reader import Reader
from .recording import Recording, TensorRef, TorchCall, as_real_pairs

MAX_PROBED_ENTRIES = 3000
"""Maximum number of entries along the axes that do not grow, which is also the maximum number of probing calls."""
VALUE_TOLERANCE, COPY_TOLERANCE = 1e-6, 1e-12
"""Maximum difference of values that count as equal: after the arithmetic of a call, and for copied entries."""
CHECKED_SCALES = (1, 1e8)
"""Scales of the values at which C is checked: a clamp on a norm, which a wider tensor may reach, acts at the larger."""


def rerun_in_float64(call: TorchCall, run: Recording, value: Mapping[int, Tensor]) -> list[Tensor]:
    """Runs a recorded call again and returns its results in float64, complex ones as pairs of real numbers.

    Args:
        call: the call.
        run: the recording that it belongs to.
        value: the tensors to use in place of the recorded ones, by number.

    Raises:
        TypeError: a result is neither floating point nor complex.
    """

    def get_tensor(number: int) -> Tensor:
        x = run.tensors[number]
        if x.is_complex():
            return torch.view_as_complex(value.get(number, as_real_pairs(x)).double().contiguous())
        return value.get(number, x).to(x.dtype)

    results = call.rerun(get_tensor)
    if not all(x.is_floating_point() or x.is_complex() for x in results):
        raise TypeError("the results are not floating-point numbers")
    return [as_real_pairs(x).double() for x in results]


def read_linear_map(reader: Reader) -> list[View]:
    """Reads the current call as a linear map: each result is a sum of products of a constant matrix and an argument.

    Raises:
        Unreadable: the call is not linear (plus a constant) in its signals, or it mixes entries along a growing axis.
    """
    numbers = [[r.number for r in c.iterate_inputs()] for c in reader.calls]
    views = {k: reader.get_view(TensorRef(n)) for k, n in enumerate(numbers[0])}
    places = [k for k, v in views.items() if not v.is_constant]
    run = reader.runs[0]
    signals = all(
        run.get_tensor(TensorRef(numbers[0][k])).is_floating_point() and not isinstance(views[k].node, PartialTensor)
        for k in places
    )
    if not places or not signals or len({numbers[0][k] for k in places}) < len(places):
        raise reader.fail("it is not a linear map of its signals")
    sides = [
        _ProbedCall(c, r, {n[k]: torch.zeros_like(r.get_tensor(TensorRef(n[k]))) for k in places})
        for c, r, n in zip(reader.calls, reader.runs, numbers, strict=True)
    ]
    if not sides[0].is_additive():
        raise reader.fail("it is not a sum of one map of each signal")
    terms: list[list[View]] = [[] for _ in reader.shapes]
    alike_made = len({compute_structure_key(views[k].node) for k in places}) < len(places)
    for k in places:
        for found, term in zip(
            terms, _read_contributions(reader, sides, [n[k] for n in numbers], views[k], alike_made), strict=True
        ):
            found += [] if term is None else [term]
    results = []
    for k, found in enumerate(terms):
        y = add_views(reader, found) if len(found) > 1 else found[0] if found else reader.make_result_constants()[k]
        offsets = [side.zero[k] for side in sides]
        if found and any(bool(offset.any()) for offset in offsets):
            for d, sizes in enumerate(zip(*reader.shapes[k], strict=True)):
                offsets = collapse_constant(reader, offsets, d) if len(set(sizes)) > 1 else offsets
            y = add_constant(reader, y, reader.make_constant(offsets))
        results.append(y)
    return results


@dataclass
class _ProbedCall:
    """A call in one build of the module, together with its results when all of its signals are zero.

    Attributes:
        call: the call.
        run: the recording of this build.
        signals: for each argument that is no constant, by its number, a tensor of zeros of the same shape.
        zero: the results of the call for these zeros.
    """

    call: TorchCall
    run: Recording
    signals: Mapping[int, Tensor]

    def __post_init__(self) -> None:
        self.zero = rerun_in_float64(self.call, self.run, self.signals)

    def is_additive(self) -> bool:
        """Whether the call is a sum of functions of one signal each: f(x, y) = g(x) + h(y), tested on random
        signals.
        """
        draw = torch.Generator().manual_seed(5)
        drawn = {k: torch.randn(x.shape, generator=draw, dtype=torch.float64) for k, x in self.signals.items()}
        sums = [sum(parts) for parts in zip(*(self(k, x) for k, x in drawn.items()), strict=True)]
        both = [y - offset for y, offset in zip(rerun_in_float64(self.call, self.run, drawn), self.zero, strict=True)]
        return all(
            float((a - b).abs().max()) <= VALUE_TOLERANCE * (1 + float(b.abs().max()))
            for a, b in zip(both, sums, strict=True)
        )

    def __call__(self, number: int, x: Tensor) -> list[Tensor]:
        """Returns the results for one nonzero signal while the others are zero, minus those for all signals zero.

        Args:
            number: the number of the signal.
            x: its value.
        """
        results = rerun_in_float64(self.call, self.run, {**self.signals, number: x})
        return [y - offset for y, offset in zip(results, self.zero, strict=True)]


def _read_contributions(
    reader: Reader, sides: Sequence[_ProbedCall], numbers: Sequence[int], view: View, signless: bool
) -> list[View | None]:
    """Returns what one signal x contributes to each result of the call: C x with a constant C, or None if it is zero.

    Args:
        reader: the reader.
        sides: the call in each build of the module.
        numbers: the number of the signal in each build of the module.
        view: the view of the signal.
        signless: whether to refuse a C with negative entries. This is needed if the call also adds another signal
            that is computed in the same way, since both may then cancel.

    Raises:
        Unreadable: there is no such C, or it changes with the sizes.
    """
    dims = range(len(view.dims))
    grows = [d for d in dims if not all(view.get_index(e).fixed for e in view.dims[d])]
    stays = [d for d in dims if d not in grows]
    outs = []
    for shapes in reader.shapes:
        along = [d for d, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
        if [tuple(s[d] for s in shapes) for d in along] != [view.get_sizes(d, reader.builds) for d in grows]:
            raise reader.fail("it mixes entries along an axis that grows")
        outs.append(along)
    shape = sides[0].run.get_tensor(TensorRef(numbers[0])).shape
    if prod(shape[d] for d in stays) > MAX_PROBED_ENTRIES:
        raise reader.fail(
            f"a linear map of more than {MAX_PROBED_ENTRIES} entries along axes that do not grow; use smaller sizes"
        )
    generator = torch.Generator().manual_seed(3)

    def draw_normal(shape: Sequence[int], dims: Sequence[int]) -> Tensor:
        """Draws a random tensor with those dimensions of ``shape`` that ``dims`` lists."""
        return torch.randn([shape[d] for d in dims], generator=generator, dtype=torch.float64)

    def make_argument(part: Tensor, ray: Tensor) -> Tensor:
        """Returns the outer product of a tensor along the fixed dimensions and one along the growing dimensions.

        Its dimensions are in the order of the signal.
        """
        order = [*stays, *grows]
        return torch.tensordot(part, ray, 0).permute([order.index(d) for d in dims])

    def move_growing_last(y: Tensor, along: Sequence[int]) -> Tensor:
        """Moves the dimensions ``along``, which grow, to the end."""
        return y.movedim(list(along), [*range(-len(along), 0)])

    def compute_columns(part: Tensor) -> list[Tensor]:
        """Runs the call on the outer product of ``part`` and the random vector ``ray``, which lies along the growing
        dimensions.

        Returns each result as a multiple of this vector.
        """
        columns = []
        for y, along in zip(sides[0](numbers[0], make_argument(part, ray)), outs, strict=True):
            sums = [*range(-len(along), 0)]
            columns.append(
                (move_growing_last(y, along) * ray).sum(sums) / ray.square().sum() if sums else y / float(ray)
            )
        return columns

    ray, part, kept = draw_normal(shape, grows), draw_normal(shape, stays), [shape[d] for d in stays]
    found = [_find_selection_matrix(y, part) for y in compute_columns(part)]
    if all(c is not None for c in found):
        matrices = [c for c in found if c is not None]
    else:
        units = torch.eye(prod(kept), dtype=torch.float64).reshape(-1, *kept)
        matrices = [torch.stack(c, -1) for c in zip(*map(compute_columns, units), strict=True)]
    matrices = [c.reshape([*c.shape[:-1], *kept]) for c in matrices]
    if signless and any(float(c.min()) < 0 for c in matrices):
        raise reader.fail("a difference of two signals of one law may cancel, and the equations have no signs")
    # Check at every build that C also maps other random vectors correctly.
    for (side, number), scale in product(zip(sides, numbers, strict=True), CHECKED_SCALES):
        there = side.run.get_tensor(TensorRef(number)).shape
        part, ray = scale * draw_normal(there, stays), draw_normal(there, grows)
        for y, along, c in zip(side(number, make_argument(part, ray)), outs, matrices, strict=True):
            expected = torch.tensordot(torch.tensordot(c, part, len(stays)), ray, 0)
            y = move_growing_last(y, along)
            if y.shape != expected.shape or float((y - expected).abs().max()) > VALUE_TOLERANCE * max(
                1.0, float(y.abs().max())
            ):
                raise reader.fail("it mixes entries along an axis that grows, or changes with the sizes")
    return [
        _apply_matrix(reader, view, c, (stays, grows, along), len(shapes[0]))
        for c, along, shapes in zip(matrices, outs, reader.shapes, strict=True)
    ]


def _find_selection_matrix(y: Tensor, part: Tensor) -> Tensor | None:
    """Finds out whether every entry of a result is an entry of the random argument, up to sign.

    Args:
        y: the result of a call.
        part: the argument, a tensor of random numbers.

    Returns:
        The matrix of 0, 1 and -1 that selects these entries (with zeros where y is zero), or None if y has other
        entries.
    """
    y, (values, places) = y.contiguous(), part.abs().flatten().sort()
    near = torch.searchsorted((values[1:] + values[:-1]) / 2, y.abs())
    if bool(((y.abs() - values[near]).abs() > COPY_TOLERANCE).logical_and(y.abs() > COPY_TOLERANCE).any()):
        return None
    c = torch.zeros(*y.shape, part.numel(), dtype=y.dtype)
    signs = (y * part.flatten()[places[near]]).sign() * (y.abs() > COPY_TOLERANCE)
    return c.scatter(-1, places[near][..., None], signs[..., None])


def _apply_matrix(reader: Reader, view: View, c: Tensor, where: tuple[list[int], ...], dims: int) -> View | None:
    """Returns the product of a constant C and a signal, or None if C is zero.

    Where C is the identity along a dimension, that dimension is left out of the product and keeps its index.

    Args:
        reader: the reader.
        view: the signal.
        c: the constant: first the dimensions of the result that do not grow, then those of the signal.
        where: the dimensions of the signal that do not grow, those that grow, and those of the result that grow.
        dims: number of dimensions of the result.
    """
    if not bool(c.any()):
        return None
    stays, grows, along = where
    fresh = [("out", d) for d in range(dims) if d not in along]
    keys: list[tuple[str, int]] = [*fresh, *(("in", d) for d in stays)]
    out = [("in", grows[along.index(d)]) if d in along else ("out", d) for d in range(dims)]
    for d in stays:  # is C the identity along it?
        for key in (x for x in fresh if x in keys):
            a, b = keys.index(key), keys.index(("in", d))
            m, n = c.movedim((a, b), (0, 1)), c.shape[a]
            if n != c.shape[b] or n == 1:
                continue
            if torch.equal(m, m[:1, :1] * torch.eye(n, dtype=m.dtype).reshape(n, n, *[1] * (m.dim() - 2))):
                c, keys = m[0, 0], [x for x in keys if x not in (key, ("in", d))]
                out[out.index(key)] = ("in", d)
                break
    if c.numel() == 1 and float(c) == 1:
        return View(view.node, [view.dims[d] if side == "in" else () for side, d in out])
    classes: list[IndexClass] = []
    places: Dims = []
    for (side, d), size in zip(keys, c.shape, strict=True):
        own = [IndexClass(view.get_index(e).sizes) for e in view.dims[d]] if side == "in" else []
        own = own or reader.make_indices(reader.repeat_per_build(size))
        places.append(tuple(range(len(classes), len(classes) + len(own))))
        classes += own
    operand = make_fixed_constant(reader, [c] * reader.builds, classes, places)
    return contract_views(reader, [(operand, keys), (view, [("in", d) for d in range(len(view.dims))])], out)
