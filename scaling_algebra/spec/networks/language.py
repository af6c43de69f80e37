"""A network: tensors, signals and the equations that compute them.

A statement is a ``Product`` of a tensor, signals and multipliers in which missing letters are summed, a ``Sum`` of
signals, or a ``Function`` of one signal. Every reading of a network has one rule for each kind. Read next:
``functions.py`` (every function), ``library.py`` (every network), ``ancestors.py``, ``indices.py``, ``multipliers.py``
and ``roles.py`` (analyses of a network), ``rules.py`` of ``scaling_algebra/dynamics`` (the effect of training).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import islice
from math import prod
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.powers import Power

from .functions import FUNCTIONS, FunctionKind

Mode = Literal["init", "update"]
"""Part of a tensor: its initial value W_0, or W_t - W_0."""

TRACED = "traced"
"""The name of a network that is read off a module."""
DATA = "data"
"""The name of the input. Its entries are Theta(1) and do not train, like those of a constant."""


@dataclass(frozen=True)
class Tensor:
    """A trainable tensor.

    Attributes:
        symbol: its name in the equations, used for update and gradient quantities (``dW2``, ``gW2``).
        letters: its index letters where it is first used, e.g. ``"ika"``.
        fan_in, fan_out: letters of the linear map inside one expert.
        experts: letter of the expert index it has, if any: initial values may be shared (tied) along it.
    """

    symbol: str
    letters: str
    fan_in: str
    fan_out: str
    experts: str = ""


@dataclass(frozen=True)
class Factor:
    """A tensor (by role) or a signal (by name) in an equation, with the letters it has there."""

    name: str
    letters: str

    def renamed(self, letters: Mapping[str, str]) -> Factor:
        """The same with each letter replaced."""
        return Factor(self.name, "".join(letters[x] for x in self.letters))


@dataclass(frozen=True)
class Product:
    """``out = multipliers * tensor * factors``, the letters that ``out`` does not have summed."""

    out: str
    factors: tuple[Factor, ...]
    tensor: Factor | None = None
    multipliers: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Factor, ...]:
        return self.factors

    @property
    def letters(self) -> str:
        """Every letter of the product, in the order of appearance."""
        whole = (self.tensor, *self.factors) if self.tensor else self.factors
        return "".join(dict.fromkeys("".join(x.letters for x in whole)))


@dataclass(frozen=True)
class Sum:
    """``out = term + term + ...``."""

    out: str
    terms: tuple[Factor, ...]

    @property
    def inputs(self) -> tuple[Factor, ...]:
        return self.terms


@dataclass(frozen=True)
class Function:
    """``out = function(source)``. ``over``: the letter a softmax, a norm or a selection goes along."""

    out: str
    name: str
    source: Factor | None = None
    over: str = ""

    @property
    def inputs(self) -> tuple[Factor, ...]:
        return () if self.source is None else (self.source,)

    @property
    def kind(self) -> FunctionKind:
        return FUNCTIONS[self.name]

    @property
    def held(self) -> bool:
        """Is it a gate whose initial value does not depend on the weights?"""
        return self.kind.kind == "gate"

    @property
    def masks(self) -> bool:
        """Is it a selection alone, 1 or 0? Then it has no gradient."""
        return self.kind.selects and self.kind.powers == {0}

    @property
    def stands_for(self) -> bool:
        """Is it represented by a polynomial that is not the function itself?"""
        return self.kind.kind in ("entrywise", "softmax")

    @property
    def gates(self) -> bool:
        """May it weigh other signals?"""
        return self.kind.kind in ("gate", "entrywise", "softmax")


Statement = Product | Sum | Function


@dataclass(frozen=True)
class Network:
    """A feed-forward network as statements in execution order; the last one is the scalar output.

    Attributes:
        tensors: trainable tensors by role, in reporting order.
        axes: axis of each index letter.
        signals: index letters of each signal; ``data`` is the input.
        statements: what is computed.
        beside: letters, with their axes, of other networks whose signals meet those of this one.
        held: multipliers, ``ROLE.init`` and ``ROLE.lr`` that are given and take up a gauge freedom.
        frozen: roles of tensors that are not trained. zero: of those that start at zero.
        constants: signals that nothing computes, besides the data.
        losses: numbers beside the output that are added to the loss, each with a weight of its own.
        multiplied: powers that a module multiplies tensors by before they act, by role. Equations are about the
            product, and the printed numbers about the tensor itself.
        unread: why the equations of a module are not known; then tensors are all that is known.
        stands: values of a module that are read as another function, left out, or held.
        lacking: why parameters of a module without a path to its output have no numbers, by name.
    """

    name: str
    title: str
    tensors: Mapping[str, Tensor]
    axes: Mapping[str, str]
    signals: Mapping[str, str]
    statements: tuple[Statement, ...]
    beside: Mapping[str, str] = field(default_factory=dict, compare=False)
    held: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    zero: frozenset[str] = frozenset()
    constants: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    multiplied: Mapping[str, Power] = field(default_factory=dict)
    unread: str = ""
    stands: str = ""
    lacking: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def output(self) -> str:
        return self.statements[-1].out

    def unknown(self, kind: str, name: str, choices: Iterable[str] = ()) -> UsageError:
        """The error for a name that is neither a tensor nor one of the other choices."""
        if name in self.lacking:
            return UsageError(f"{name}: {self.lacking[name]}")
        return unknown_name(kind, name, (*self.tensors, *choices))

    @cached_property
    def _producers(self) -> dict[str, Statement]:
        return {s.out: s for s in self.statements}

    def producer(self, signal: str) -> Statement | None:
        """The statement that computes a signal; None for the data and for constants."""
        return self._producers.get(signal)

    def consumers(self, signal: str) -> tuple[tuple[Statement, int], ...]:
        """Every use of a signal: the statement that reads it, and the position among its inputs."""
        return self._consumers.get(signal, ())

    @cached_property
    def _consumers(self) -> dict[str, tuple[tuple[Statement, int], ...]]:
        uses: dict[str, tuple[tuple[Statement, int], ...]] = {}
        for s in self.statements:
            for k, x in enumerate(s.inputs):
                uses[x.name] = (*uses.get(x.name, ()), (s, k))
        return uses

    def size(self, letters: Iterable[str]) -> Power:
        """The product of the sizes of some indices, as a power of the axes."""
        axes = (self.axes[x] for x in letters)
        return prod((Power.of({axis: 1}) for axis in axes if axis not in FIXED), start=Power())

    def uses(self, role: str) -> tuple[Product, ...]:
        """The products that a tensor is in."""
        return self._uses.get(role, ())

    @cached_property
    def _uses(self) -> dict[str, tuple[Product, ...]]:
        uses: dict[str, tuple[Product, ...]] = {}
        for s in self.linear:
            if s.tensor:
                uses[s.tensor.name] = (*uses.get(s.tensor.name, ()), s)
        return uses

    @cached_property
    def linear(self) -> tuple[Product, ...]:
        """The products with a tensor."""
        return tuple(s for s in self.statements if isinstance(s, Product) and s.tensor)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return tuple(s for s in self.statements if isinstance(s, Function))

    @cached_property
    def live(self) -> tuple[Function, ...]:
        """Gates that take part in the dynamics. Sizes hold while these do not saturate."""
        return tuple(s for s in self.functions if s.gates and not s.held)

    @cached_property
    def norms(self) -> tuple[Function, ...]:
        return tuple(s for s in self.functions if s.kind.kind == "norm")

    def summed(self, statement: Product) -> str:
        """The letters that a product sums."""
        return "".join(x for x in statement.letters if x not in self.signals[statement.out])

    @cached_property
    def multipliers(self) -> tuple[str, ...]:
        """Named multipliers, in the order of appearance."""
        names = (m for s in self.statements if isinstance(s, Product) for m in s.multipliers)
        return tuple(dict.fromkeys(names))

    def freezing(self, roles: Iterable[str]) -> Network:
        """The network in which these tensors, and no others, are not trained."""
        frozen = frozenset(roles)
        return self if frozen == self.frozen else replace(self, frozen=frozen)

    def starting(self, roles: Iterable[str]) -> Network:
        """The network in which these tensors, and no others, start at zero."""
        zero = frozenset(roles)
        return self if zero == self.zero else replace(self, zero=zero)

    @cached_property
    def known(self) -> dict[Hashable, Any]:
        """Answers of functions of this network (``remembered``)."""
        return {}

    @cached_property
    def letters(self) -> dict[str, str]:
        """Axis of each letter: the network's own, and spare ones for indices that meet twice."""
        axes = {**self.axes, **self.beside}
        pool = iter([x for x in SPARE if x not in axes])
        own = [axis for axis in dict.fromkeys(self.axes.values()) if axis not in self.beside.values()]
        spares = max(_SPARES, *(len(s.inputs) for s in self.statements))
        most = dict.fromkeys(own, 2)
        for s in self.statements:  # an index of each of its letters may meet one of another equation
            there = [self.axes[x] for x in {*self.signals[s.out]}.union(*(x.letters for x in s.inputs))]
            most |= {axis: max(most[axis], there.count(axis)) for axis in most}
        for axis, count in [*((axis, spares) for axis in own), *((axis, 2 * most[axis] - 4) for axis in own)]:
            axes |= dict.fromkeys(islice(pool, count), axis)
        return axes


P = ParamSpec("P")
T = TypeVar("T")


def remembered(function: Callable[Concatenate[Network, P], T]) -> Callable[Concatenate[Network, P], T]:
    """A function of a network that is computed once for each of its arguments."""

    @wraps(function)
    def once(network: Network, /, *args: P.args, **named: P.kwargs) -> T:
        key = function, args, *named.items()
        if key not in network.known:
            network.known[key] = function(network, *args, **named)
        found: T = network.known[key]
        return found

    return once


SPARE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "".join(map(chr, range(0x0400, 0x0500)))
"""Letters for indices that meet twice: those that networks are written with first."""
_SPARES = 4
