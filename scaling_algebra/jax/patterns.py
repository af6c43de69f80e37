"""Recognises functions of torch in sequences of JAX primitives: ``Patterns``.

JAX writes a softmax, a mean, a variance or an embedding as several primitives; these sequences are recognised by their
form. An elementwise function of one tensor is recognised by its values. The output of the whole model is compared
afterwards, which shows that the replacements are right. Read next: ``program.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

from .primitives import ENTRYWISE, FUNCTIONS, RULES, Params

GRID = torch.linspace(-10, 10, 81, dtype=torch.float64)
"""Points at which elementwise functions are evaluated to recognise them."""
KNOWN = torch.stack([f(GRID) for f in FUNCTIONS.values()])
"""Values at ``GRID`` of the elementwise functions in ``FUNCTIONS``."""
ALIKE = 1e-6
"""Tolerance for the values of a recognised function, per unit of its argument: JAX rounds constants in functions to
float32."""
DEPTH = 12
"""Maximum number of preceding tensors of which a value is tried as an elementwise function."""
RESHAPES = ("broadcast_in_dim", "reshape", "convert_element_type", "copy", "stop_gradient", "squeeze", "expand_dims")


@dataclass(frozen=True)
class Step:
    """One torch call of a program.

    Attributes:
        name: name of a primitive or function in the table ``RULES``.
        params: its parameters.
        inputs: numbers of the values that it reads.
        outputs: numbers of the values that it returns.
    """

    name: str
    params: Params
    inputs: Sequence[int]
    outputs: Sequence[int]


Call = tuple[str, Params, Sequence[int]]


@dataclass
class Patterns:
    """The calls recorded so far, and the patterns that are searched in them.

    Every value has a number, which is the key of the mappings below.

    Attributes:
        constants: tensors and Python numbers that depend on neither parameters nor inputs.
        shapes: the shape of every value in JAX.
        made: the call that returns a value.
        functions: number of a value -> number of a tensor from which elementwise calls compute this value -> the
            results of these calls at the points ``GRID``. In a chain of such calls, every tensor before the value is
            one.
    """

    constants: dict[int, Any] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    made: dict[int, Step] = field(default_factory=dict)
    functions: dict[int, dict[int, Tensor]] = field(default_factory=dict)

    def find_uniform(self, number: int) -> float | None:
        """Return the common value of all entries of a constant; None for any other value."""
        x = self.constants.get(number)
        if not isinstance(x, Tensor) or not x.numel() or x.is_complex() or not bool((x == x.flatten()[0]).all()):
            return None
        return float(x.flatten()[0])

    def find_gained_norm(self, inputs: Sequence[int]) -> tuple[int, int, int] | None:
        """Recognise a normalised signal ``x * (r * w)`` with gain w, where r is the reciprocal root of its mean square.

        Returns:
            The numbers of x, r and w, so that x and r can be multiplied first; None if the product has another form.
        """
        for x, factor in (inputs, inputs[::-1]):
            product = self.made.get(factor)
            for r, w in permutations(product.inputs) if product is not None and product.name == "mul" else ():
                if self.find_maker(r, "rsqrt") is not None and self.shapes[x] != self.shapes[r]:
                    return x, r, w
        return None

    def find_identity(self, name: str, inputs: Sequence[int], shape: tuple[int, ...]) -> int | None:
        """Return the input that a call returns unchanged, such as x in ``x + 0``; None if there is none."""
        if name == "select_n" and len(inputs) == 3:
            chosen = self.find_uniform(inputs[0])
            if chosen is None and self._wraps(inputs):
                chosen = 0
            if chosen is not None and self.shapes[inputs[1 + int(chosen)]] == shape:
                return inputs[1 + int(chosen)]
        neutral = {"add": 0.0, "add_any": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0, "max": -np.inf, "min": np.inf}
        for k in range(2) if name in neutral else ():
            other = inputs[1 - k]
            if self.find_uniform(inputs[k]) == neutral[name] and self.shapes[other] == shape:
                return other if k == 1 or name not in ("sub", "div") else None
        return None

    def _wraps(self, inputs: Sequence[int]) -> bool:
        """Test whether a selection implements negative indexing: ``where(i < 0, i + n, i)``."""
        condition, moved = self.made.get(inputs[0]), self.made.get(inputs[2])
        below = condition is not None and condition.name == "lt" and condition.inputs[0] == inputs[1]
        return below and moved is not None and moved.name == "add" and moved.inputs[0] == inputs[1]

    def find_maker(self, number: int, name: str) -> Step | None:
        """Return the call that made a value, ignoring later reshapes, if it has the given name; otherwise None."""
        while (step := self.made.get(number)) is not None and step.name in RESHAPES:
            number = step.inputs[0]
        return step if step is not None and step.name == name else None

    def find_named(self, name: str, params: Params, inputs: Sequence[int]) -> Call | None:
        """Recognise a call as the last step of a mean, a variance or a softmax; None if it is none of these."""
        if name in ("div", "mul") and (n := self.find_uniform(inputs[1])):
            total = self.find_maker(inputs[0], "reduce_sum")
            if total is not None and total.outputs[0] == inputs[0]:
                summed = prod(self.shapes[total.inputs[0]][d] for d in total.params["axes"])
                if abs((n if name == "div" else 1 / n) / summed - 1) < ALIKE:
                    return "mean", total.params, total.inputs
        if (
            name == "max"
            and self.find_uniform(inputs[0]) == 0
            and (off := self.made.get(inputs[1]))
            and off.name == "sub"
        ):
            return self.find_variance(*off.inputs)
        if name == "div" and (total := self.find_maker(inputs[1], "reduce_sum")) is not None:
            scores = self.made.get(inputs[0])
            if scores is not None and scores.name == "exp" and total.inputs[0] == inputs[0]:
                return self.find_softmax(scores.inputs[0], tuple(total.params["axes"]))
        return None

    def find_softmax(self, scores: int, axes: tuple[int, ...]) -> Call | None:
        """Recognise a softmax: exponentials divided by their sum, where the maximum may have been subtracted from
        the scores."""
        centred = self.made.get(scores)
        if centred is not None and centred.name == "sub":
            largest = self.find_maker(centred.inputs[1], "reduce_max")
            if largest is not None and (largest.inputs[0], tuple(largest.params["axes"])) == (centred.inputs[0], axes):
                scores = centred.inputs[0]
        return ("softmax", {"axis": axes[0]}, [scores]) if len(axes) == 1 else None

    def find_variance(self, squares: int, square: int) -> Call | None:
        """Recognise a variance written as the mean of squares minus the squared mean."""
        mean_square, factor = self.made.get(squares), self.made.get(square)
        if mean_square is None or factor is None or mean_square.name != "mean" or len({*factor.inputs}) > 1:
            return None
        squared, mean = self.made.get(mean_square.inputs[0]), self.made.get(factor.inputs[0])
        of = {s.name in ("square", "integer_pow", "mul") for s in (squared, factor) if s is not None}
        if squared is None or mean is None or mean.name != "mean" or of != {True}:
            return None
        if {*squared.inputs} != {*mean.inputs} or mean.params["axes"] != mean_square.params["axes"]:
            return None
        return "variance", mean.params, mean.inputs

    def find_taken(self, params: Params, inputs: Sequence[int]) -> tuple[str, Params, list[int]]:
        """Convert a gather of whole entries along one dimension, as ``x[ids]`` and ``jnp.take`` write it, to a
        ``take``.

        Raises:
            UsageError: the gather has another form.
        """
        how, shape = params["dimension_numbers"], self.shapes[inputs[0]]
        along, sizes = how.start_index_map, params["slice_sizes"]
        if how.operand_batching_dims or len(along) != 1 or how.collapsed_slice_dims != along:
            raise UsageError("apply: this form of jax.lax.gather is not supported; write x[ids] or jnp.take")
        (axis,) = along
        if any(n != m for d, (n, m) in enumerate(zip(shape, sizes, strict=True)) if d != axis):
            raise UsageError("apply: a gather that also slices the entries is not supported; slice the array first")
        lead = len(self.shapes[inputs[1]]) - 1
        if how.offset_dims != (*range(axis), *range(axis + lead, lead + len(shape) - 1)):
            raise UsageError(
                "apply: a gather that also permutes dimensions is not supported; transpose its result instead"
            )
        ids, whole = inputs[1], self.shapes[inputs[1]]
        while (step := self.made.get(ids)) is not None and step.name in RESHAPES:
            if prod(self.shapes[step.inputs[0]]) != prod(whole):
                break
            ids = step.inputs[0]
        ids = ids if self.shapes[ids] in (whole, whole[:-1]) else inputs[1]
        last = self.shapes[ids] == whole
        return "take", {"axis": axis, "last": last}, [inputs[0], ids]

    def find_function(self, name: str, params: Params, inputs: Sequence[int], out: int) -> Call | None:
        """Recognise a call as the last step of an elementwise torch function, such as GELU, of a preceding tensor.

        The call and those before it are evaluated at ``GRID`` and compared with each known function.

        Args:
            name: the JAX primitive that is called.
            params: its parameters.
            inputs: numbers of the values that it reads.
            out: number of the value that it returns.

        Returns:
            The call of the torch function that replaces it; None if no function has these values.
        """
        numbers = {k: self.find_uniform(k) for k in inputs}
        signals = [k for k, x in numbers.items() if x is None]
        if name not in ENTRYWISE or any(self.shapes[k] != self.shapes[out] for k in signals):
            return None
        values: dict[int, dict[int, Tensor]] = {k: {**self.functions.get(k, {}), k: GRID} for k in signals}
        common = [x for x in values[signals[0]] if all(x in other for other in values.values())][-DEPTH:]
        mine = self.functions.setdefault(out, {})
        for root in common:
            mine[root] = RULES[name](params, *(values[k][root] if k in values else numbers[k] for k in inputs))
            if mine[root].dtype is not GRID.dtype:
                continue
            off = (mine[root] - KNOWN).abs().amax(1)
            for function, difference in zip(FUNCTIONS, off.tolist(), strict=True):
                if difference < ALIKE * float(GRID[-1]):
                    return "function", {"function": function}, [root]
        return None
