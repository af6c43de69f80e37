"""Explains numbers of a plan that surprise, and how to get others."""

from __future__ import annotations

from collections.abc import Iterator

from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import Function
from scaling_algebra.spec.networks.roles import readouts
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing.gradients import join_names

NARROW = (
    "{}: init std {}, as of a readout, since they read what grows and what they make stays as large; for the {} of a "
    "hidden matrix let it grow alike (of keys and values: as many more key heads)"
)
NORMED = (
    "{}: a norm alone reads what they make; after the first update the size of their initial values does not matter"
)
"""Remarks on matrices that map a growing axis to a fixed one, and on those whose output is normalised."""


def explain_surprises(d: Derivation) -> Iterator[str]:
    """Yields remarks on matrices that are no readouts but get the init std of one, since they map a growing axis to a
    fixed one.

    The first lines name them, with their init std and that of a hidden matrix; a last line names those whose output is
    normalised, as keys are by a QK-norm.
    """
    network, ends = d.network, {*readouts(d.network), *(role for e in experts(d.network) for role in e.routers)}
    narrow: dict[tuple[str, str], list[str]] = {}
    normed: list[str] = []
    for role, tensor in network.tensors.items():
        read, made = (network.size(indices) for indices in (tensor.fan_in, tensor.fan_out))
        std = d.tensors[role].init_std
        if role in ends or role in network.frozen or std is None or not read.on(d.ray) or made.on(d.ray):
            continue
        if std.on(d.ray) != -read.on(d.ray):
            continue
        hidden = Power.of({axis: e / 2 for axis, e in std.terms})
        narrow.setdefault((str(std), str(hidden)), []).append(role)
        readers = [s for use in network.uses(role) for s, _ in network.consumers(use.out)]
        if readers and all(isinstance(s, Function) and s.kind.kind == "norm" for s in readers):
            normed.append(role)
    for (std_text, hidden_text), roles in narrow.items():
        yield NARROW.format(join_names(roles), std_text, hidden_text)
    if normed:
        yield NORMED.format(join_names(normed))
