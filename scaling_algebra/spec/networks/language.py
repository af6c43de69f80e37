"""A network: tensors, signals and the equations that compute them.

A statement is a ``Product`` of at most one tensor, signals and multipliers, in which indices that the result lacks are
summed, a ``Sum`` of signals, or a ``Function`` of one signal. Each interpretation of a network has one rule for each
kind. Read next: ``functions.py`` (every function), ``library.py`` (every network), ``ancestors.py``, ``indices.py``,
``multipliers.py`` and ``roles.py`` (analyses), ``rules.py`` of ``scaling_algebra/dynamics`` (the effect of training).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import islice
from math import prod
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.powers import Power

from .functions import FUNCTIONS, FunctionKind

Mode = Literal["init", "update"]
"""Part of a tensor: its initial value W_0, or its change W_t - W_0."""

TRACED = "traced"
"""Name of a network that was traced from a torch module."""
DATA = "data"
"""Name of the input. Its entries are Theta(1) and do not train, like those of a constant."""


@dataclass(frozen=True)
class Tensor:
    """A trainable tensor.

    Attributes:
        symbol: its name in the equations; its update and gradient are ``dW2`` and ``gW2``.
        indices: its indices where it is first used, such as ``"ika"``.
        fan_in: input indices of the linear map inside one expert.
        fan_out: output indices of this map.
        experts: its expert index, along which initial values may be shared (tied); empty for none.
    """

    symbol: str
    indices: str
    fan_in: str
    fan_out: str
    experts: str = ""


@dataclass(frozen=True)
class Factor:
    """A tensor or a signal as it occurs in an equation.

    Attributes:
        name: role of the tensor, or name of the signal.
        indices: its indices there.
    """

    name: str
    indices: str

    def rename_indices(self, indices: Mapping[str, str]) -> Factor:
        """Returns a copy in which each index is replaced."""
        return Factor(self.name, "".join(indices[x] for x in self.indices))


@dataclass(frozen=True)
class Product:
    """``out = multipliers * tensor * factors``; indices that ``out`` lacks are summed."""

    out: str
    factors: tuple[Factor, ...]
    tensor: Factor | None = None
    multipliers: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Factor, ...]:
        return self.factors

    @property
    def indices(self) -> str:
        """Every index of the product, in order of appearance."""
        whole = (self.tensor, *self.factors) if self.tensor else self.factors
        return "".join(dict.fromkeys("".join(x.indices for x in whole)))


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
    """``out = name(source)``.

    Attributes:
        out: the signal that it computes.
        name: name of the function.
        source: its argument; None for noise.
        over: the index that a softmax, norm or selection acts along; empty for other functions.
    """

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
        """True for a gate that is held fixed: its initial value is taken as independent of the weights."""
        return self.kind.kind == "gate"

    @property
    def masks(self) -> bool:
        """True for a top-K selection that returns only the mask: its values are 0 and 1, and it has no gradient."""
        return self.kind.selects and self.kind.powers == {0}

    @property
    def stands_for(self) -> bool:
        """True if the engine analyses a polynomial in place of the function."""
        return self.kind.kind in ("entrywise", "softmax")

    @property
    def gates(self) -> bool:
        """True if its values may weigh other signals."""
        return self.kind.kind in ("gate", "entrywise", "softmax")


Statement = Product | Sum | Function


@dataclass(frozen=True)
class Network:
    """A feed-forward network as statements in execution order; the last one computes the scalar output.

    Attributes:
        name: its name.
        title: one line for reports.
        tensors: trainable tensors by role, in reporting order.
        axes: axis of each index.
        signals: indices of each signal; ``data`` is the input.
        statements: the equations.
        beside: axes by index name of other networks, if signals of those networks are combined with signals of this
            one.
        held: multipliers, ``ROLE.init`` and ``ROLE.lr`` that the user fixes, so that redundant multipliers become
            unknowns (``multipliers.py``).
        frozen: roles of tensors that are not trained.
        zero: roles of tensors that start at zero.
        constants: signals besides the data that no equation computes.
        losses: scalars besides the output that are added to the loss, each with a weight of its own.
        multiplied: powers by which a module multiplies its tensors before they act, by role. Equations are about the
            product, printed numbers about the tensor itself.
        unread: why the equations of a module are unknown; then only its tensors are known.
        stands: a text that names the values of a module which are replaced by another function, left out, or held
            fixed.
        lacking: why a parameter of a module has no numbers, by name, if no path leads from it to the output.
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
        """Returns the error for a name that is neither a tensor nor one of the other choices.

        Args:
            kind: what the name should be the name of, for the message.
            name: the name. For a parameter in ``lacking`` the message says why it has no numbers.
            choices: allowed names besides the roles of tensors.
        """
        if name in self.lacking:
            return UsageError(f"{name}: {self.lacking[name]}")
        return unknown_name_error(kind, name, (*self.tensors, *choices))

    @cached_property
    def _producers(self) -> dict[str, Statement]:
        return {s.out: s for s in self.statements}

    def producer(self, signal: str) -> Statement | None:
        """Returns the statement that computes a signal; None for the data and for constants."""
        return self._producers.get(signal)

    def consumers(self, signal: str) -> tuple[tuple[Statement, int], ...]:
        """Returns every use of a signal: the statement that reads it, and its position among the inputs."""
        return self._consumers.get(signal, ())

    @cached_property
    def _consumers(self) -> dict[str, tuple[tuple[Statement, int], ...]]:
        uses: dict[str, tuple[tuple[Statement, int], ...]] = {}
        for s in self.statements:
            for k, x in enumerate(s.inputs):
                uses[x.name] = (*uses.get(x.name, ()), (s, k))
        return uses

    def size(self, indices: Iterable[str]) -> Power:
        """Returns the product of the sizes of some indices, as a power of the axes."""
        axes = (self.axes[x] for x in indices)
        return prod((Power.of({axis: 1}) for axis in axes if axis not in FIXED), start=Power())

    def uses(self, role: str) -> tuple[Product, ...]:
        """Returns the products that contain a tensor."""
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
        """Functions whose output may multiply other signals and whose values change in training.

        Sizes are valid as long as these functions do not saturate.
        """
        return tuple(s for s in self.functions if s.gates and not s.held)

    @cached_property
    def norms(self) -> tuple[Function, ...]:
        return tuple(s for s in self.functions if s.kind.kind == "norm")

    def summed_indices(self, statement: Product) -> str:
        """Returns the indices that a product sums."""
        return "".join(x for x in statement.indices if x not in self.signals[statement.out])

    @cached_property
    def multipliers(self) -> tuple[str, ...]:
        """Names of the multipliers, in order of appearance."""
        names = (m for s in self.statements if isinstance(s, Product) for m in s.multipliers)
        return tuple(dict.fromkeys(names))

    def with_frozen(self, roles: Iterable[str]) -> Network:
        """Returns the network in which exactly these tensors are not trained."""
        frozen = frozenset(roles)
        return self if frozen == self.frozen else replace(self, frozen=frozen)

    def with_zero(self, roles: Iterable[str]) -> Network:
        """Returns the network in which exactly these tensors start at zero."""
        zero = frozenset(roles)
        return self if zero == self.zero else replace(self, zero=zero)

    @cached_property
    def known(self) -> dict[Hashable, Any]:
        """The cache in which ``cache_on_network`` stores the results of functions for this network."""
        return {}

    @cached_property
    def indices(self) -> dict[str, str]:
        """Axis of each index: the indices of the network, and spare ones that rename an index where two equations that
        are combined both use it.
        """
        axes = {**self.axes, **self.beside}
        pool = iter([x for x in SPARE if x not in axes])
        own = [axis for axis in dict.fromkeys(self.axes.values()) if axis not in self.beside.values()]
        spares = max(_SPARES, *(len(s.inputs) for s in self.statements))
        most = dict.fromkeys(own, 2)
        for s in self.statements:  # each of its indices may occur together with one of another equation
            there = [self.axes[x] for x in {*self.signals[s.out]}.union(*(x.indices for x in s.inputs))]
            most |= {axis: max(most[axis], there.count(axis)) for axis in most}
        for axis, count in [*((axis, spares) for axis in own), *((axis, 2 * most[axis] - 4) for axis in own)]:
            axes |= dict.fromkeys(islice(pool, count), axis)
        return axes


P = ParamSpec("P")
T = TypeVar("T")


def cache_on_network(function: Callable[Concatenate[Network, P], T]) -> Callable[Concatenate[Network, P], T]:
    """Wraps a function of a network so that its results are stored on the network, by arguments."""

    @wraps(function)
    def once(network: Network, /, *args: P.args, **named: P.kwargs) -> T:
        key = function, args, *named.items()
        if key not in network.known:
            network.known[key] = function(network, *args, **named)
        found: T = network.known[key]
        return found

    return once


SPARE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "".join(map(chr, range(0x0400, 0x0500)))
"""Characters for spare indices. The first ones are those that equations of networks use."""
_SPARES = 4
