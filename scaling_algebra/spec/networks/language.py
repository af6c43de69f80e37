"""What a network is: tensors, signals and the statements that compute them.

Read next: ``library.py`` (every network), ``scaling_algebra/dynamics/trajectory.py`` (runs and differentiates one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["init", "update"]
"""Part of a tensor: its initial value W_0, or W_t - W_0."""


@dataclass(frozen=True)
class Tensor:
    """A trainable tensor.

    Attributes:
        symbol: the paper's name, used for update and gradient quantities (``dW2``, ``gW2``).
        letters: its index letters, e.g. ``"ika"``.
        experts: letter of the expert index it has, if any: initial values may be shared (tied) along it.
        fan_in, fan_out: letters of the linear map inside one expert.
    """

    symbol: str
    letters: str
    fan_in: str
    fan_out: str
    experts: str = ""


@dataclass(frozen=True)
class Linear:
    """``out = tensor . source``: one weight tensor applied to a signal, by index letters."""

    out: str
    tensor: str
    source: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class GateKind:
    """A gate that takes part in the dynamics: mean and slope are Theta(1) while its argument is O(1).

    Attributes:
        name: that of the function in ``torch.nn.functional``, too.
        normalised: over the last index: it ignores a common shift, and its Jacobian annihilates what is constant
            there. Else it is entrywise.
    """

    name: str
    normalised: bool = False


GATES: dict[str, GateKind] = {g.name: g for g in (GateKind("softmax", normalised=True), GateKind("sigmoid"))}
"""Every gate that takes part in the dynamics, by name. Adding one: one more entry."""


@dataclass(frozen=True)
class Gate:
    """``out = gate(source)``.

    Attributes:
        kind: one of ``GATES``, or ``held``: Theta(1) with Theta(1) slope, dependence on its argument left out of the
            aggregate (standing assumption B2 of MSSP paper, J.2).
        selects: top-K: a random mask with a Theta(1) fraction of ones multiplies the gate. It is drawn anew when the
            logits moved by at least their spread, and is constant in the backward pass (routers paper, App. F).
    """

    out: str
    source: str
    kind: str = "held"
    selects: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def normalised(self) -> bool:
        """See ``GateKind``."""
        return self.kind in GATES and GATES[self.kind].normalised


@dataclass(frozen=True)
class Sum:
    """``out = source + other``."""

    out: str
    source: str
    other: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source, self.other)


@dataclass(frozen=True)
class Noise:
    """``out`` is Theta(1) noise, drawn anew at every step."""

    out: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Norm:
    """``out = source / rms(source)``: RMSNorm with negligible epsilon."""

    out: str
    source: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True)
class Aggregate:
    """``out = multiplier * sum over experts of gate * source``."""

    out: str
    gate: str
    source: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.gate, self.source)


Statement = Linear | Gate | Sum | Noise | Norm | Aggregate


@dataclass(frozen=True)
class Adjoint:
    """A named gradient: of the output with respect to a signal.

    Attributes:
        name: reporting name, e.g. ``g3i`` for the gradient at ``h3i``.
        signal: the signal.
        via: only through the statement that computes this signal; empty for all paths.
        parts: name suffix -> which part of which tensors is kept: ``{"init-update": {"expert_out": "init", ...}}``.
    """

    name: str
    signal: str
    via: str = ""
    parts: Mapping[str, Mapping[str, Mode]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A feed-forward network as statements in execution order; the last one is the scalar output.

    Attributes:
        tensors: trainable tensors by role, in reporting order.
        axes: axis of each index letter.
        signals: index letters of each signal; ``data`` is the input vector.
        statements: what is computed.
        adjoints: named gradients, in reporting order.
        pathways: (signal, via): the part of the signal's change whose gradient came through the statement ``via``; its
            propagation through the router is a quantity of its own.
        tracked: index letters whose dependence matters even where their axis does not grow.
    """

    name: str
    title: str
    tensors: Mapping[str, Tensor]
    axes: Mapping[str, str]
    signals: Mapping[str, str]
    statements: tuple[Statement, ...]
    adjoints: tuple[Adjoint, ...]
    pathways: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tracked: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(s for s in self.statements if isinstance(s, Aggregate))

    def producer(self, signal: str) -> Statement | None:
        """The statement that computes a signal; None for the data."""
        return next((s for s in self.statements if s.out == signal), None)

    def linear_into(self, signal: str) -> Linear:
        """The linear statement that computes a signal, itself or under a sum, a norm or a gate."""
        statement = self.producer(signal)
        while isinstance(statement, Gate | Sum | Norm):
            statement = self.producer(statement.source)
        assert isinstance(statement, Linear)
        return statement

    def consumers(self, signal: str) -> tuple[Statement, ...]:
        """The statements that read a signal."""
        return tuple(s for s in self.statements if signal in s.inputs)

    def linear(self, role: str) -> Linear:
        """The statement that applies a tensor."""
        return next(s for s in self.statements if isinstance(s, Linear) and s.tensor == role)
