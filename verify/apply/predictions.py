"""What a recipe predicts of the parts of a model's signals: certified exponents, by role, with the family's own gate.

A recipe is derived with gates that are held at their mean and slope. Where experts are few the softmax of a real gate
matters: its Jacobian takes away what all chosen experts share, so that the gradient of a router is smaller than that of
an entrywise gate. So the exponents are those of the same network with a softmax, at the powers of the recipe.
Read next: ``checking.py`` (measures them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import takewhile

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.quantities import quantities
from scaling_algebra.dynamics.sparse_routing import sparse
from scaling_algebra.recipes.recipe import VECTORS, Recipe
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.roles import experts

PIECES = ("A1", "A2.1", "A2.2", "A3")
"""Of the sum over experts: what initial experts make of their input and of its change, what the update of the first and
of the second matrix of an expert adds (MSSP paper, App. I.3)."""
_WORK = 5_000
"""Nodes of matching searches for one exponent."""
_HELD = re.compile(r"(\w+\[[^]]*\]\s*=) gate\((\w+)\[([^]]*)\]\)")

Exponents = Sequence[Fraction | None]
"""After t = 0, 1, ... updates; None is exactly zero."""


def predicted(numbers: Recipe, gate: str = "") -> Mapping[tuple[str, str], Exponents]:
    """Exponents by role and part, for t = 0 .. ``HORIZON`` as far as they are certified.

    Roles are those of the recipe, ``experts`` for the sum over experts, ``stream`` and ``logits`` (part ``change``).

    Args:
        gate: what the family's gate brings to the sum over experts: ``1/K``: a softmax over the chosen experts.
            ``1/M``: a softmax over all, of which the chosen ones stay: what is claimed of it holds of both gates.
            Empty or 1: the gate of the recipe.
    """
    exponents: dict[tuple[str, str], Exponents] = {}
    for d in numbers.derivations:
        looks = [_look(d, _softmax(d.network))] if gate in ("1/K", "1/M") and _live(d) else []
        looks += [_look(d, d.network)] if not looks or gate == "1/M" else []
        for key, name in _names(d.network).items():
            rows = [_series(look, name, 0 if key[1] in ("init", "A1") else HORIZON) for look in looks]
            agreed = takewhile(lambda cells: len(set(cells)) == 1, zip(*rows, strict=False))
            exponents.setdefault(key, tuple(cells[0] for cells in agreed))
    return {key: row for key, row in exponents.items() if row}


def _names(network: Network) -> dict[tuple[str, str], str]:
    """What is read off a network: the name of the quantity by role and part. Parts of what a tensor makes of its input
    are W_0 x_0, dW_t x_t and W_0 dx_t."""
    known_names, names = quantities(network), {("logits", "change"): f"{network.output}.change"}
    for role in (r for r in network.tensors if r not in VECTORS):
        out = network.uses(role)[0].out
        update = f"{out}.update" if f"{out}.update" in known_names else f"{out}.effective"
        names |= {(role, "init"): f"{out}.init", (role, "update"): update, (role, "propagating"): f"{out}.propagating"}
    for e in experts(network):
        names |= {("experts", piece): f"{e.aggregation.out}.{piece}" for piece in PIECES}
    if "final_gain" in network.tensors:
        names["stream", "change"] = f"{network.uses('final_gain')[0].factors[0].name}.change"
    return {key: name for key, name in names.items() if name in known_names}


def _look(d: Derivation, network: Network) -> Analysis:
    return Analysis(d.ray, d.scaling.point(d.ray), d.optimizer, network).limited(_WORK)


def _series(look: Analysis, name: str, last: int) -> Exponents:
    answers = (look(name, t) for t in range(last + 1))
    return tuple(a.exponent for a in takewhile(lambda a: a.decided, answers))


def _live(d: Derivation) -> bool:
    """Is there a gate, and can it be part of the dynamics on this ray?"""
    return _HELD.search(d.network.origin) is not None and not sparse(d.network, d.ray)


def _softmax(held: Network) -> Network:
    """The network with a softmax over the experts, which brings the multiplier of their sum itself."""
    gate = _HELD.search(held.origin)
    assert gate is not None
    letter = next(x for x in gate[3].split(",") if held.axes[x] == "M")
    text = _HELD.sub(rf"\1 softmax(\2[\3]; {letter})", held.origin).replace("= alpha ", "= ")
    return network(f"{held.name}-softmax", text, held.axes, {t.symbol: r for r, t in held.tensors.items()}, held.title)
