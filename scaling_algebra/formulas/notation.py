"""Writes maxima of monomials in readable notation, such as ``max(N, M)``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from scaling_algebra.spec.powers import Form, Power, name_symbol


def text(forms: Sequence[Form], complete: bool) -> str:
    """Writes a formula: ``Theta(multiplier^2 sigma_input^2 max(N, M))``, or ``Omega(...)`` if it is incomplete."""
    if not forms:
        return "0 (exact)"
    groups = (list(group) for _, group in groupby(forms, key=lambda form: form.unknowns))
    parts = [_write_monomial(group[0], maximum([str(x.power) for x in group])) for group in groups]
    return f"{'Theta' if complete else 'Omega'}({maximum(parts)})"


def monomial(form: Form) -> str:
    """Writes one monomial."""
    return _write_monomial(form, str(form.power))


def maximum(parts: Sequence[str]) -> str:
    """Writes the maximum of some terms."""
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"


def inequality(counts: Sequence[tuple[str, int]]) -> str:
    """Writes a linear inequality between rates as one between products: ``N_e M >= N`` for M + N_e - N >= 0."""
    sides = [Power.of({axis: sign * n for axis, n in counts if sign * n > 0}) for sign in (1, -1)]
    return f"{sides[0]} >= {sides[1]}"


def _write_monomial(form: Form, rest: str) -> str:
    """Writes a monomial: the powers of its parameters, followed by ``rest``, the text for its axes."""
    parameters = (name_symbol(u) if n == -1 else f"{name_symbol(u)}^{-n}" for u, n in form.unknowns)
    return " ".join(x for x in (*parameters, rest) if x != "1") or "1"
