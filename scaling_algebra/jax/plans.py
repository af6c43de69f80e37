"""Plans for JAX models, with the numbers as pytrees: ``plan``.

Read next: ``modules.py`` (wraps the model as a torch module, which is planned).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import jax
import numpy as np

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError, missing_package_error
from scaling_algebra.recipes.sizes import Sizes, read_sizes
from scaling_algebra.spec.level import Level
from scaling_algebra.verify.apply import plan as torch_plan
from scaling_algebra.verify.apply.exports import ParameterGroup
from scaling_algebra.verify.apply.modules import Entry
from scaling_algebra.verify.apply.plans import Plan

from .modules import Build, JaxModel, model_at, parts_of, program_of, torch_build


def plan(build: Build, base: str | Sizes, target: str | Sizes, **given: Any) -> JaxPlan:
    """Compute init std, learning rate, epsilon and weight decay of every leaf of a JAX model.

    Args:
        build: a function of sizes that returns (init, apply, x): ``init(key)`` returns the pytree of parameters, and
            ``apply(parameters, x)`` the output. Further inputs may follow x.
        base: sizes of the tuned model, as for ``scaling_algebra.plan``.
        target: sizes of the model to be trained.
        given: further arguments of ``scaling_algebra.plan``: ``lr``, ``eps``, ``std``, ``decay``, ``optimizer``,
            ``fold``, ...

    Raises:
        UsageError: a JAX primitive is not supported, control flow depends on values, or as ``scaling_algebra.plan``.
    """
    model = model_at(build, read_sizes(target, "target"))
    program = program_of(model)
    made = torch_plan(torch_build(build), base, target, **given)
    names = [[x for _, x, _ in parts_of(program, leaf, name, np.empty(shape.shape[:1]))]
             for leaf, name, shape in zip(program.leaves, model.names, model.shapes, strict=True)]  # fmt: skip
    return JaxPlan(made, model, tuple(map(tuple, names)))


@dataclass(frozen=True, repr=False)
class JaxPlan(Rendered):
    """The numbers of every leaf of a JAX model.

    Attributes:
        plan: the plan of the torch module that executes the model.
        model: the model at the target sizes.
        names: for each leaf, the names of its parameters in the torch module: one, or one for each layer of a stack.
    """

    plan: Plan
    model: JaxModel
    names: tuple[tuple[str, ...], ...]

    @cached_property
    def _leaves(self) -> list[list[tuple[Entry, ParameterGroup]]]:
        return [[(e, self.plan.groups[e.group]) for e in map(self.plan.__getitem__, names)] for names in self.names]

    def _tree(self, number: Callable[[ParameterGroup], Any], what: str) -> Any:
        """Return a pytree with one number for each leaf.

        Args:
            number: returns the number of a parameter group.
            what: name of the number, for the message.

        Raises:
            UsageError: the layers of a stacked leaf need different numbers.
        """
        values = []
        for leaf in self._leaves:
            found = {number(group) for _, group in leaf}
            if len(found) > 1:
                raise UsageError(
                    f"{leaf[0][0].name}: the layers of this stack need different values of {what}; stack only layers "
                    "with equal shapes and roles"
                )
            values.append(found.pop())
        return self.model.make_tree(values)

    @property
    def std(self) -> Any:
        """Init std of every leaf, which ``init`` draws with; 0 for a leaf that is not drawn."""
        return self._tree(lambda group: group.std, "std")

    @property
    def lr(self) -> Any:
        """Learning rate of every leaf."""
        return self._tree(lambda group: group.numbers["lr"], "lr")

    @property
    def eps(self) -> Any:
        """Adam's epsilon of every leaf; None if the optimizer has no epsilon."""
        return self._tree(lambda group: group.numbers.get("eps"), "eps")

    @property
    def decay(self) -> Any:
        """Weight decay of every leaf; 0 if none was tuned."""
        return self._tree(lambda group: group.numbers.get("weight_decay", 0.0), "decay")

    @property
    def labels(self) -> Any:
        """Name of the parameter group of every leaf."""
        return self._tree(lambda group: group.name, "group")

    def init(self, key: Any) -> Any:
        """Draw the parameters at the target sizes with the planned init stds.

        Leaves that the model initialises with equal entries, or not by random draws around zero, keep the values that
        the model's own ``init`` returns.

        Args:
            key: a key of ``jax.random``.

        Raises:
            UsageError: no std was given at the base.
        """
        own, *keys = jax.random.split(key, len(self.names) + 1)
        starts = jax.tree_util.tree_leaves(self.model.init(own))
        leaves = []
        for start, key, leaf in zip(starts, keys, self._leaves, strict=True):
            if len(leaf) == 1:
                leaves.append(_draw_leaf(start, key, *leaf[0]))
                continue
            slices = zip(start, jax.random.split(key, len(leaf)), leaf, strict=True)
            leaves.append(jax.numpy.stack([_draw_leaf(x, k, *one) for x, k, one in slices]))
        return self.model.make_tree(leaves)

    def optax_transformation(self, base_optimizer: Callable[..., Any]) -> Any:
        """Build one ``optax`` transformation that trains all leaves with their planned numbers.

        Args:
            base_optimizer: ``optax.adamw``, or a function that calls it with a schedule. It is called once for each
                parameter group with ``learning_rate`` and, if it accepts them, ``eps`` and ``weight_decay``.

        Raises:
            UsageError: the plan has an epsilon or decay that ``base_optimizer`` does not accept, or uses two
                optimizers.
        """
        try:
            import optax
        except ModuleNotFoundError as error:
            raise missing_package_error("optax_transformation", str(error.name), "jax") from None

        if len(self.plan.optimizers) > 1:
            raise UsageError(
                f"the plan uses {' and '.join(self.plan.optimizers)}, and optax_transformation takes one optimizer; "
                "choose one in plan(optimizer=...)"
            )
        taken = signature(base_optimizer).parameters
        every = any(x.kind is Parameter.VAR_KEYWORD for x in taken.values())
        made = {}
        for name, group in self.plan.groups.items():
            numbers = {"learning_rate" if what == "lr" else what: x for what, x in group.numbers.items()}
            lacking = [what for what in numbers if not every and what not in taken]
            if lost := [what for what in lacking if numbers[what]]:
                called = getattr(base_optimizer, "__name__", type(base_optimizer).__name__)
                raise UsageError(
                    f"{called} has no argument {lost[0]}, which the plan sets for {name}; give an optimizer that has it"
                )
            made[name] = base_optimizer(**{what: x for what, x in numbers.items() if what not in lacking})
        return optax.multi_transform(made, self.labels)

    @property
    def about(self) -> str:
        return self.plan.about

    @property
    def level(self) -> Level | None:
        """How much of the powers is proved."""
        return self.plan.level

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the rows of a data frame, as for a plan of a torch module."""
        return self.plan.as_rows()

    def __str__(self) -> str:
        return str(self.plan)


def _draw_leaf(start: Any, key: Any, entry: Entry, group: ParameterGroup) -> Any:
    """Draw the initial values of a leaf, or of one layer of it; values that the plan keeps are returned unchanged."""
    if entry.kept or (entry.fill is not None and not entry.parts):
        return start
    for part, std in group.stds.items():
        own, key = jax.random.split(key)
        dim, at, many = entry.spans[part] if part else (0, 0, 0)
        place = (slice(None),) * dim + (slice(at, at + many),) if part else ...
        shape = start[place].shape
        if group.tied and len(shape) == 3:
            shape = (1, *shape[1:])
        drawn = std * jax.random.normal(own, shape, start.dtype)
        start = start.at[place].set(drawn if std else entry.fill or 0.0)
    return start
