"""Architectures as programs: written once, read as exponents by the engine and as torch by ``verify``.

Adding an architecture: one more ``Program`` in ``ARCHITECTURES``.
Read next: ``training.py`` (runs and differentiates a program).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class Gate:
    """``out = gate(source)`` entrywise: Theta(1) with Theta(1) slope (standing assumption B2 of MSSP paper, J.2)."""

    out: str
    source: str


@dataclass(frozen=True)
class Aggregate:
    """``out = multiplier * sum over experts of gate * source``."""

    out: str
    gate: str
    source: str


Statement = Linear | Gate | Aggregate


@dataclass(frozen=True)
class Program:
    """A feed-forward network as statements in execution order; the last one is the scalar output.

    Attributes:
        tensors: trainable tensors by role, in reporting order.
        axes: axis of each index letter.
        signals: index letters of each signal; ``data`` is the input vector.
        statements: what is computed.
        adjoints: reporting name of the gradient at each signal (``h3i`` -> ``g3i``).
    """

    name: str
    title: str
    tensors: Mapping[str, Tensor]
    axes: Mapping[str, str]
    signals: Mapping[str, str]
    statements: tuple[Statement, ...]
    adjoints: Mapping[str, str]
    aggregate: Aggregate = field(init=False)

    def __post_init__(self) -> None:
        (aggregate,) = (s for s in self.statements if isinstance(s, Aggregate))
        object.__setattr__(self, "aggregate", aggregate)

    def producer(self, signal: str) -> Statement | None:
        """The statement that computes a signal; None for the data."""
        return next((s for s in self.statements if s.out == signal), None)

    def consumers(self, signal: str) -> tuple[Statement, ...]:
        """The statements that read a signal."""
        return tuple(
            s for s in self.statements if s.source == signal or (isinstance(s, Aggregate) and s.gate == signal)
        )

    def linear(self, role: str) -> Linear:
        """The statement that applies a tensor."""
        return next(s for s in self.statements if isinstance(s, Linear) and s.tensor == role)


MOE_BLOCK = Program(
    name="moe",
    title="minimal MoE block (MSSP paper, App. J.1)",
    tensors={
        "input": Tensor("W1", "ax", fan_in="x", fan_out="a"),
        "router": Tensor("Q", "ia", fan_in="a", fan_out="i"),
        "expert_in": Tensor("W2", "ika", fan_in="a", fan_out="k", experts="i"),
        "expert_out": Tensor("W3", "ibk", fan_in="k", fan_out="b", experts="i"),
        "readout": Tensor("W4", "b", fan_in="b", fan_out=""),
    },
    axes={"x": "D", "a": "N", "b": "N", "i": "M", "k": "N_e"},
    signals={"data": "x", "h1": "a", "psi": "i", "phi": "i", "h2": "ik", "h3i": "ib", "h3": "b", "f": ""},
    statements=(
        Linear("h1", "input", "data"),
        Linear("psi", "router", "h1"),
        Gate("phi", "psi"),
        Linear("h2", "expert_in", "h1"),
        Linear("h3i", "expert_out", "h2"),
        Aggregate("h3", "phi", "h3i"),
        Linear("f", "readout", "h3"),
    ),
    adjoints={"h3": "g3", "h3i": "g3i", "h2": "g2", "phi": "gphi", "h1": "g1"},
)

ARCHITECTURES: dict[str, Program] = {MOE_BLOCK.name: MOE_BLOCK}
"""Every architecture, by name."""
