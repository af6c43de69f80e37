"""The engine at the points that a search visits, with limits on its work there.

Read next: ``newton.py`` (moves the point), ``search.py`` (tries one structure after the other).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Budget
from scaling_algebra.counting.store import Meter
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.budgets import QUICK_BUDGETS
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point

from .layerwise import PLAIN


class Places:
    """Makes analyses of one network, ray and optimizer at the points that a search visits.

    A point is a choice of all exponents (init stds, learning rates, ...). Its analysis computes the sizes of
    quantities.

    Args:
        network: the network.
        ray: the ray.
        optimizer: the optimizer.
        algebras: caches of intermediate results, one for each budget; analyses at all points share them.
        effort: decide every size with the largest budget, and do not limit the work.

    Attributes:
        last: the analysis at the last point visited.
        solved: cache of the solutions in which the user fixes no value, by parameterization and structure; None where
            there is no solution.
    """

    def __init__(
        self,
        network: Network,
        ray: Ray,
        optimizer: OptimizerSpec,
        algebras: dict[Budget, Algebra] | None = None,
        effort: bool = False,
    ) -> None:
        self.network, self.ray, self.optimizer, self.effort = network, ray, optimizer, effort
        self._algebras: dict[Budget, Algebra] = {} if algebras is None else algebras
        self.last: Analysis | None = None
        self.solved: dict[object, Any] = {}

    def analyse_at(self, point: Point) -> Analysis:
        """Returns the analysis at a point, which computes sizes of quantities with these exponents.

        A second call in a row at the same point returns the same analysis, with its cached answers.
        """
        if self.last is None or self.last.point != point:
            self.last = self.fresh(point)
        return self.last

    def fresh(self, point: Point) -> Analysis:
        """Makes a new analysis at a point, without cached answers."""
        budgets = () if self.effort else QUICK_BUDGETS
        return Analysis(self.ray, point, self.optimizer, self.network, self._algebras, budgets=budgets)

    @cached_property
    def meter(self) -> Meter:
        """The meter that counts the work of all analyses."""
        return self.fresh(PLAIN.point(self.network, {})).meter

    def within(self, work: int | None) -> AbstractContextManager[None]:
        """Limits the work inside a context to ``work``, unless full effort was requested."""
        return self.meter.limit_work(None if self.effort else work)

    @cached_property
    def epsilons(self) -> list[str]:
        """Roles of the trained tensors whose update rule has an epsilon that is derived."""
        trained = (role for role in self.network.tensors if role not in self.network.frozen)
        return [role for role in trained if self.optimizer.of(role).epsilon]

    @cached_property
    def descent(self) -> Places:
        """The same analyses with gradient descent in place of every rule that has an epsilon; the object itself if no
        rule has one.
        """
        if not self.epsilons:
            return self
        return Places(self.network, self.ray, self.optimizer.with_descent, self._algebras, self.effort)
