"""The answer of a derivation: init std, learning rate, epsilon and aggregation of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod

from .axes import Ray
from .powers import Form, Power


@dataclass(frozen=True)
class TensorScaling:
    """Settings of one tensor, as powers of the axes.

    Attributes:
        init_std: standard deviation of the initial entries; None for zero init.
        lr: learning rate; None for a tensor that is not trained.
        eps: Adam epsilon; None if the optimizer has none.
        multiplier: factor that the tensor is multiplied by before it acts; 1 unless a gauge has one (``gauges.py``).
    """

    init_std: Power | None
    lr: Power | None
    eps: Power | None = None
    multiplier: Power = field(default_factory=Power)


@dataclass(frozen=True)
class Scaling:
    """A complete parameterization: the settings of all tensors.

    Attributes:
        tensors: settings by role.
        multipliers: the inverse of each multiplier by name: ``{"alpha": M}`` is a mean over M experts.
        tied: roles of tensors whose initial values all experts share.
    """

    tensors: Mapping[str, TensorScaling]
    multipliers: Mapping[str, Power] = field(default_factory=dict)
    tied: tuple[str, ...] = ()

    @property
    def alpha(self) -> Power:
        """The inverse of the multiplier of the sum over experts."""
        return self.multipliers.get("alpha", Power())

    def unknown(self, name: str) -> Power:
        """Returns the inverse of the setting whose exponent is unknown, as a power of the axes: 1/init std, 1/lr or
        1/eps of a tensor, or 1/multiplier.

        It is inverted because the unknown b is defined by init std ~ n^-b, and the others alike.

        Args:
            name: the unknown: ``b.ROLE``, ``c.ROLE``, ``d.ROLE`` or a multiplier.
        """
        letter, _, role = name.partition(".")
        if not role:
            return self.multipliers.get(name, Power())
        s = self.tensors[role]
        return 1 / ({"b": s.init_std, "c": s.lr, "d": s.eps}[letter] or Power())

    def size(self, form: Form) -> Power:
        """Returns a monomial in settings as a power of the axes, by inserting the settings of this parameterization."""
        return prod((self.unknown(name) ** count for name, count in form.unknowns), start=form.power)

    def point(self, ray: Ray) -> Point:
        """Returns the exponents of all init stds, learning rates, epsilons and multipliers on a ray.

        Raises:
            ValueError: a tensor has a multiplier; exponents are defined for the gauge without multipliers
                (``gauges.py``).
        """
        if any(s.multiplier.terms for s in self.tensors.values()):
            raise ValueError(
                "exponents b, c, d are defined for tensors without multipliers; convert to the gauge table3 first"
            )
        b = {role: None if s.init_std is None else -s.init_std.on(ray) for role, s in self.tensors.items()}
        c = {role: Fraction(0) if s.lr is None else -s.lr.on(ray) for role, s in self.tensors.items()}
        d = {role: Fraction(0) if s.eps is None else -s.eps.on(ray) for role, s in self.tensors.items()}
        multipliers = {name: p.on(ray) for name, p in self.multipliers.items()}
        frozen = frozenset(role for role, s in self.tensors.items() if s.lr is None)
        return Point(b, c, d, multipliers, frozenset(self.tied), frozen)


@dataclass(frozen=True)
class Point:
    """Values of the unknowns on one ray: init std ~ n^-b, lr ~ n^-c, eps ~ n^-d, multipliers ~ n^-alpha.

    Attributes:
        b: init exponent by role; None for zero init.
        c: learning-rate exponent by role.
        d: epsilon exponent by role.
        multipliers: exponent by the name of the multiplier.
        tied: roles of tensors whose initial values all experts share.
        frozen: roles of tensors that are not trained; their c and d have no meaning.
    """

    b: Mapping[str, Fraction | None]
    c: Mapping[str, Fraction]
    d: Mapping[str, Fraction]
    multipliers: Mapping[str, Fraction]
    tied: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()

    @cached_property
    def zero(self) -> frozenset[str]:
        """Roles of tensors that start at zero."""
        return frozenset(role for role, b in self.b.items() if b is None)

    @property
    def values(self) -> dict[str, Fraction]:
        """Value of every unknown ``b.ROLE``, ``c.ROLE``, ``d.ROLE`` and multiplier. A zero init has no value."""
        indices = {"b": self.b, "c": self.c, "d": self.d}
        values = {f"{x}.{role}": e for x, roles in indices.items() for role, e in roles.items() if e is not None}
        return values | dict(self.multipliers)

    @property
    def alpha(self) -> Fraction:
        """Exponent of the inverse of the multiplier of the sum over experts."""
        return self.multipliers.get("alpha", Fraction(0))
