"""Maxima of monomials as people write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from scaling_algebra.spec.powers import Form, Power, symbol


def text(forms: Sequence[Form], complete: bool) -> str:
    """``Theta(multiplier^2 sigma_input^2 max(N, M))``; of an incomplete formula ``Omega(...)``."""
    if not forms:
        return "0 (exact)"
    groups = (list(group) for _, group in groupby(forms, key=lambda form: form.unknowns))
    parts = [_joined(group[0], maximum([str(x.power) for x in group])) for group in groups]
    return f"{'Theta' if complete else 'Omega'}({maximum(parts)})"


def monomial(form: Form) -> str:
    return _joined(form, str(form.power))


def maximum(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"


def inequality(counts: Sequence[tuple[str, int]]) -> str:
    """``N_e M >= N`` for M + N_e - N >= 0."""
    sides = [Power.of({axis: sign * n for axis, n in counts if sign * n > 0}) for sign in (1, -1)]
    return f"{sides[0]} >= {sides[1]}"


def _joined(form: Form, rest: str) -> str:
    """The parameters of a monomial, and what stands behind them."""
    parameters = (symbol(u) if n == -1 else f"{symbol(u)}^{-n}" for u, n in form.unknowns)
    return " ".join(x for x in (*parameters, rest) if x != "1") or "1"
