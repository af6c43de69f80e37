"""Assumptions of an exponent beyond counting powers. Every answer names what it assumes.

Read next: ``scaling_algebra/dynamics/rules.py`` and ``steps.py`` (which assume them), ``analysis.py`` (collects them).
"""

from __future__ import annotations

from collections.abc import Collection

ASSUMPTIONS: dict[str, str] = {
    "generic-constants": "terms of one size do not cancel, nor what is there with some constants at zero",
    "held-gates": "a gate is held at its mean and slope, independent of the weights (standing assumption B2)",
    "polynomials": "a function counts as the generic polynomial of its parity class, and two degrees more agree",
    "bounded-logits": "the logits of a bounded_softmax stay bounded in training, so that no entry takes all",
    "random-selection": "a top-K selection is drawn without regard to the weights",
    "random-routing": "every token goes to K of M experts without regard to the weights, and a batch has many tokens",
    "first-hermite": "an entrywise normalisation is carried by its linear (first Hermite) part, and by higher ones "
    "where products see them",
    "rank-one-sign": "a sign is carried as that is, and that of a rank-one gradient is the product of two",
    "singular-directions": "the gradient of a matrix has rank Theta(1), and directions of one size are brought to one; "
    "what is smaller by a power of n stays so, as under a fixed number of Newton-Schulz steps; it is the gradient of "
    "that step, as without momentum, which mixes directions before they are brought to one",
    "tensor-floor": "the rms of a tensor, which its steps are relative to, stays above the floor of the rule",
}
"""Every assumption, by the name that answers carry."""


def listed(names: Collection[str]) -> str:
    """Some assumptions, in the order of ``ASSUMPTIONS``."""
    return ", ".join(x for x in ASSUMPTIONS if x in names)
