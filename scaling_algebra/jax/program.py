"""Converts a jaxpr to a list of torch calls: ``Program``, and ``Inliner``, which also expands nested jaxprs.

Every value has a number. Whatever depends on neither parameters nor inputs is computed once, during the conversion;
calls that the output does not need are dropped. Read next: ``primitives.py`` (the torch call of each primitive),
``patterns.py`` (recognises functions of torch), ``modules.py`` (executes the program).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from jax.extend.core import Literal
from torch import Tensor

from scaling_algebra.errors import UsageError

from .patterns import Patterns, Step
from .primitives import ENTRYWISE, RULES, Params

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters in which a primitive may store a nested jaxpr."""


@dataclass
class Program:
    """The torch calls that compute the output from leaves and inputs.

    Attributes:
        leaves: numbers of the leaves, in order.
        inputs: numbers of the inputs, in order.
        output: number of the output.
        layers: for a leaf that only the layers of a scan read, the numbers of its slices.
        steps: the calls, in execution order.
        constants: tensors and Python numbers, by number.
    """

    leaves: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    output: int = -1
    layers: dict[int, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)

    def run(self, leaves: Mapping[int, Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """Execute the calls and return the output."""
        values: dict[int, Any] = {**self.constants, **leaves, **dict(zip(self.inputs, inputs, strict=True))}
        for step in self.steps:
            values.update(
                zip(step.outputs, call_rule(step.name, step.params, [values[k] for k in step.inputs]), strict=True)
            )
        return values[self.output]


def call_rule(name: str, params: Params, inputs: Sequence[Any]) -> Sequence[Tensor]:
    """Call the rule of a primitive and return its results as a sequence."""
    made = RULES[name](params, *inputs)
    return made if isinstance(made, list | tuple) else [made]


class Inliner(Patterns):
    """Converts a closed jaxpr to a ``Program``.

    Args:
        closed: the jaxpr, traced with the shapes of all leaves and inputs.
        leaves: number of its arguments that are leaves; the remaining ones are inputs.

    Raises:
        UsageError: a JAX primitive is not supported, or control flow depends on values.
    """

    def __init__(self, closed: Any, leaves: int) -> None:
        super().__init__()
        self.program, self.numbers = Program(constants=self.constants), count()
        given = [self.add_value(x.aval.shape) for x in closed.jaxpr.invars]
        self.program.leaves, self.program.inputs = given[:leaves], given[leaves:]
        self.slices: dict[tuple[int, int], int] = {}
        self.steps: list[Step] = []
        outs = self.inline(closed.jaxpr, [self.add_constant(x) for x in closed.consts], given)
        if len(outs) != 1:
            raise UsageError(f"apply returns {len(outs)} arrays; return only the output of the model")
        self.program.output = outs[0]
        self.program.steps = [*self.find_needed()]

    def add_value(self, shape: Sequence[int]) -> int:
        """Register a new value of this shape and return its number."""
        number = next(self.numbers)
        self.shapes[number] = tuple(map(int, shape))
        return number

    def add_constant(self, value: Any) -> int:
        """Register a constant array and return its number."""
        array = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        number = self.add_value(array.shape)
        self.constants[number] = array.double() if array.is_floating_point() else array
        return number

    # jaxprs in jaxprs -------------------------------------------------------------------------------------------

    def inline(self, jaxpr: Any, constants: Sequence[int], arguments: Sequence[int]) -> list[int]:
        """Convert all equations of a jaxpr and return the numbers of its results."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

        def number(x: Any) -> int:
            return self.add_constant(x.val) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            inputs = [number(x) for x in equation.invars]
            known.update(zip(equation.outvars, self.add_equation(equation, inputs), strict=True))
        return [number(x) for x in jaxpr.outvars]

    def inline_closed(self, inner: Any, arguments: Sequence[int]) -> list[int]:
        """Convert a nested jaxpr, with or without constants of its own, and return the numbers of its results."""
        held = getattr(inner, "consts", ())
        return self.inline(getattr(inner, "jaxpr", inner), [self.add_constant(x) for x in held], arguments)

    def add_equation(self, equation: Any, inputs: list[int]) -> list[int]:
        """Convert one equation of a jaxpr and return the numbers of its results."""
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return self.unroll_scan(params, inputs)
        if name == "cond" and (chosen := self.find_uniform(inputs[0])) is not None:
            return self.inline_closed(params["branches"][int(chosen)], inputs[1:])
        if name in ("cond", "while"):
            raise UsageError(
                f"apply: {name} is control flow that depends on values, which cannot be traced; write jnp.where or "
                "lax.scan"
            )
        if inner := next((params[key] for key in INNER if key in params), None):
            return self.inline_closed(inner, inputs)
        if name == "gather":
            name, params, inputs = self.find_taken(params, inputs)
        if name not in RULES:
            raise UsageError(f"apply: the JAX primitive {name} is not supported; express it by other functions")
        return self.add_step(name, params, inputs, [x.aval.shape for x in equation.outvars])

    def unroll_scan(self, params: Params, inputs: list[int]) -> list[int]:
        """Convert a scan by repeating its body for every layer; return the numbers of the carry and of the stacked
        results."""
        held, carried, length = params["num_consts"], params["num_carry"], params["length"]
        constants, carry, over = inputs[:held], inputs[held : held + carried], inputs[held + carried :]
        rows: list[list[int]] = []
        for k in reversed(range(length)) if params["reverse"] else range(length):
            layer = [self.take_layer(x, k) for x in over]
            out = self.inline_closed(params["jaxpr"], [*constants, *carry, *layer])
            carry, rows = out[:carried], [*rows, out[carried:]]
        rows = rows[::-1] if params["reverse"] else rows
        stacks = [[*x] for x in zip(*rows, strict=True)]
        return carry + [self.add_step("stack", {}, x, [(length, *self.shapes[x[0]])])[0] for x in stacks]

    def take_layer(self, number: int, k: int) -> int:
        """Return the id of slice ``k`` of the stacked value with the id ``number``. All scans share this slice."""
        if (number, k) not in self.slices:
            (made,) = self.add_step("layer", {"at": k}, [number], [self.shapes[number][1:]])
            self.slices[number, k] = made
        return self.slices[number, k]

    # steps ------------------------------------------------------------------------------------------------------

    def add_step(self, name: str, params: Params, inputs: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[int]:
        """Append a call, replaced by a torch function if it completes a known pattern, and return the numbers of its
        results."""
        if all(k in self.constants for k in inputs):
            made = call_rule(name, params, [self.constants[k] for k in inputs])
            return [self.add_constant(x.contiguous()) for x in made]
        shape = tuple(map(int, shapes[0]))
        if (same := self.find_identity(name, inputs, shape)) is not None:
            return [same]
        if name == "mul" and (gained := self.find_gained_norm(inputs)):
            x, root, gain = gained
            inputs = [*self.add_step("mul", {}, [x, root], [self.shapes[x]]), gain]
        outputs = [self.add_value(x) for x in shapes]
        found = self.find_named(name, params, inputs) or self.find_function(name, params, inputs, outputs[0])
        name, params, inputs = found or (name, params, inputs)
        if name in ENTRYWISE and any(self.shapes[k] == shape and self.find_uniform(k) is None for k in inputs):
            inputs = [self.make_number(k) for k in inputs]
        step = Step(name, params, [*inputs], outputs)
        self.steps.append(step)
        self.made.update((k, step) for k in outputs)
        return outputs

    def make_number(self, number: int) -> int:
        """Replace a constant with equal entries by a Python number, which broadcasts; leave any other value
        unchanged."""
        if self.find_uniform(number) is None:
            return number
        out = self.add_value(())
        self.constants[out] = self.constants[number].flatten()[0].item()
        return out

    def find_needed(self) -> Iterator[Step]:
        """Yield the calls that the output needs. A leaf that only layers of scans read is replaced by its slices."""
        needed, kept = {self.program.output}, []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed |= {*step.inputs}
                kept.append(step)
        read = {x: {s.name for s in kept if x in s.inputs} for x in self.program.leaves}
        for leaf in (x for x, names in read.items() if names == {"layer"}):
            slices = {s.params["at"]: s.outputs[0] for s in kept if s.inputs[0] == leaf and s.name == "layer"}
            if len(slices) == self.shapes[leaf][0]:
                self.program.layers[leaf] = [slices[k] for k in sorted(slices)]
        return (s for s in reversed(kept) if s.inputs[0] not in self.program.layers)
