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
    """Powers of the axes for one tensor.

    Attributes:
        init_std: standard deviation of the initial entries; None is zero init.
        lr: learning rate; None for a tensor that is not trained.
        eps: Adam epsilon; None when the optimizer has none.
        multiplier: what the tensor is multiplied by before it acts; 1 except in another gauge (``gauges.py``).
    """

    init_std: Power | None
    lr: Power | None
    eps: Power | None = None
    multiplier: Power = field(default_factory=Power)


@dataclass(frozen=True)
class Scaling:
    """A complete parameterization.

    Attributes:
        tensors: scaling by role.
        multipliers: by name; one is ``1 / power``, e.g. ``{"alpha": M}`` for a mean over experts.
        tied: roles whose initial values all experts share.
    """

    tensors: Mapping[str, TensorScaling]
    multipliers: Mapping[str, Power] = field(default_factory=dict)
    tied: tuple[str, ...] = ()

    @property
    def alpha(self) -> Power:
        """The aggregation multiplier is one over this."""
        return self.multipliers.get("alpha", Power())

    def unknown(self, name: str) -> Power:
        """The power of the axes whose exponent is an unknown: 1/sigma, 1/lr, 1/eps of a tensor, 1/multiplier."""
        letter, _, role = name.partition(".")
        if not role:
            return self.multipliers.get(name, Power())
        s = self.tensors[role]
        return 1 / ({"b": s.init_std, "c": s.lr, "d": s.eps}[letter] or Power())

    def size(self, form: Form) -> Power:
        """The power of the axes behind a form, its unknowns replaced by this parameterization."""
        return prod((self.unknown(name) ** count for name, count in form.unknowns), start=form.power)

    def point(self, ray: Ray) -> Point:
        """The exponents b, c, d of n on a ray, and those of the multipliers.

        Raises:
            ValueError: a tensor has a multiplier; exponents are those without (``gauges.py``).
        """
        if any(s.multiplier.terms for s in self.tensors.values()):
            raise ValueError("exponents are those of tensors without multipliers; take the gauge table3")
        b = {role: None if s.init_std is None else -s.init_std.on(ray) for role, s in self.tensors.items()}
        c = {role: Fraction(0) if s.lr is None else -s.lr.on(ray) for role, s in self.tensors.items()}
        d = {role: Fraction(0) if s.eps is None else -s.eps.on(ray) for role, s in self.tensors.items()}
        multipliers = {name: p.on(ray) for name, p in self.multipliers.items()}
        frozen = frozenset(role for role, s in self.tensors.items() if s.lr is None)
        return Point(b, c, d, multipliers, frozenset(self.tied), frozen)


@dataclass(frozen=True)
class Point:
    """Numbers for the unknowns on one ray: sigma ~ n^-b, lr ~ n^-c, eps ~ n^-d, multipliers n^-alpha.

    Attributes:
        b: init exponent by role; None is zero init.
        tied: roles whose initial values all experts share.
        frozen: roles of tensors that are not trained; their c and d mean nothing.
    """

    b: Mapping[str, Fraction | None]
    c: Mapping[str, Fraction]
    d: Mapping[str, Fraction]
    multipliers: Mapping[str, Fraction]
    tied: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()

    @cached_property
    def zero(self) -> frozenset[str]:
        """Tensors that start at zero."""
        return frozenset(role for role, b in self.b.items() if b is None)

    @property
    def values(self) -> dict[str, Fraction]:
        """The unknowns ``b.ROLE``, ``c.ROLE``, ``d.ROLE`` and the multipliers; zero init has no value."""
        letters = {"b": self.b, "c": self.c, "d": self.d}
        values = {f"{x}.{role}": e for x, roles in letters.items() for role, e in roles.items() if e is not None}
        return values | dict(self.multipliers)

    @property
    def alpha(self) -> Fraction:
        """Exponent of one over the aggregation multiplier."""
        return self.multipliers.get("alpha", Fraction(0))
