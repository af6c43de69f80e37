"""A jaxpr as a list of torch calls: ``Program``, and ``Inliner``, which makes it of all that the jaxpr calls.

Values are known by number. What depends on no parameter and no input is computed once, while the jaxpr is inlined; what
the output does not need is not run. Read next: ``primitives.py`` (a row for each primitive), ``patterns.py`` (what
torch has a name for), ``modules.py`` (who runs it).
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
"""Where a primitive keeps the jaxpr that it calls."""


@dataclass
class Program:
    """The steps from leaves and inputs to the output.

    Attributes:
        leaves: the numbers of the leaves, in order.
        inputs: those of the inputs.
        output: that of the output.
        layers: of a leaf that is read by the layers of a scan alone, the numbers of its slices.
        steps: what is run, in order.
        constants: tensors and numbers of Python, by number.
    """

    leaves: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    output: int = -1
    layers: dict[int, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)

    def run(self, leaves: Mapping[int, Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """Return the output."""
        values: dict[int, Any] = {**self.constants, **leaves, **dict(zip(self.inputs, inputs, strict=True))}
        for step in self.steps:
            values.update(
                zip(step.outputs, call_rule(step.name, step.params, [values[k] for k in step.inputs]), strict=True)
            )
        return values[self.output]


def call_rule(name: str, params: Params, inputs: Sequence[Any]) -> Sequence[Tensor]:
    """Return the results of a row of the table."""
    made = RULES[name](params, *inputs)
    return made if isinstance(made, list | tuple) else [made]


class Inliner(Patterns):
    """Inlines a jaxpr into a program.

    Args:
        closed: made at the shapes of all leaves and inputs.
        leaves: how many of its arguments are leaves; the others are inputs.

    Raises:
        UsageError: a primitive without a rule, or control flow that depends on values.
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
            raise UsageError(f"apply returns {len(outs)} arrays; return one, the output of the model")
        self.program.output = outs[0]
        self.program.steps = [*self.find_needed()]

    def add_value(self, shape: Sequence[int]) -> int:
        """Return the number of a new value."""
        number = next(self.numbers)
        self.shapes[number] = tuple(map(int, shape))
        return number

    def add_constant(self, value: Any) -> int:
        """Return the number of an array that depends on nothing."""
        array = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        number = self.add_value(array.shape)
        self.constants[number] = array.double() if array.is_floating_point() else array
        return number

    # jaxprs in jaxprs -------------------------------------------------------------------------------------------

    def inline(self, jaxpr: Any, constants: Sequence[int], arguments: Sequence[int]) -> list[int]:
        """Return the results of a jaxpr."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

        def number(x: Any) -> int:
            return self.add_constant(x.val) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            inputs = [number(x) for x in equation.invars]
            known.update(zip(equation.outvars, self.add_equation(equation, inputs), strict=True))
        return [number(x) for x in jaxpr.outvars]

    def inline_closed(self, inner: Any, arguments: Sequence[int]) -> list[int]:
        """Return the results of a jaxpr that brings its constants, or has none."""
        held = getattr(inner, "consts", ())
        return self.inline(getattr(inner, "jaxpr", inner), [self.add_constant(x) for x in held], arguments)

    def add_equation(self, equation: Any, inputs: list[int]) -> list[int]:
        """Return the results of an equation."""
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return self.unroll_scan(params, inputs)
        if name == "cond" and (chosen := self.find_uniform(inputs[0])) is not None:
            return self.inline_closed(params["branches"][int(chosen)], inputs[1:])
        if name in ("cond", "while"):
            raise UsageError(f"apply: {name} depends on values, so no equation says it; write jnp.where or lax.scan")
        if inner := next((params[key] for key in INNER if key in params), None):
            return self.inline_closed(inner, inputs)
        if name == "gather":
            name, params, inputs = self.find_taken(params, inputs)
        if name not in RULES:
            raise UsageError(f"apply: the primitive {name} of JAX has no rule; write it in others")
        return self.add_step(name, params, inputs, [x.aval.shape for x in equation.outvars])

    def unroll_scan(self, params: Params, inputs: list[int]) -> list[int]:
        """Return the carry and the stacked results of a scan, layer by layer."""
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
        """Return the slice of a stack; once, however many scans read it."""
        if (number, k) not in self.slices:
            (made,) = self.add_step("layer", {"at": k}, [number], [self.shapes[number][1:]])
            self.slices[number, k] = made
        return self.slices[number, k]

    # steps ------------------------------------------------------------------------------------------------------

    def add_step(self, name: str, params: Params, inputs: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[int]:
        """Return the results of a step, perhaps by another call that has a name in torch."""
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
        """Return a constant whose entries are all alike as a number of Python, which broadcasts; else what is given."""
        if self.find_uniform(number) is None:
            return number
        out = self.add_value(())
        self.constants[out] = self.constants[number].flatten()[0].item()
        return out

    def find_needed(self) -> Iterator[Step]:
        """Yield the steps that the output needs; leaves that layers of scans alone read become their slices."""
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
