"""Maxima of monomials as people write them, in text and in LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from scaling_algebra.spec.powers import Form, Power, symbol

_GREEK = {"sigma": r"\sigma", "lr": r"\eta", "eps": r"\epsilon", "v": "v"}


def text(forms: Sequence[Form], complete: bool) -> str:
    """``Theta(multiplier^2 sigma_input^2 max(N, M))``; of an incomplete formula ``Omega(...)``."""
    if not forms:
        return "0 (exact)"
    return f"{'Theta' if complete else 'Omega'}({maximum(_groups(forms, _parameters, str))})"


def latex(forms: Sequence[Form], complete: bool) -> str:
    """``\\Theta\\left(...\\right)``, without dollar signs."""
    if not forms:
        return "0"
    inside = maximum(_groups(forms, _latex_parameters, lambda p: p.latex, r"\max"), r"\max")
    order = r"\Theta" if complete else r"\Omega"
    return rf"{order}\left({inside}\right)"


def monomial(form: Form) -> str:
    return _joined(_parameters(form), str(form.power))


def latex_monomial(form: Form) -> str:
    return _joined(_latex_parameters(form), form.power.latex)


def maximum(parts: Sequence[str], word: str = "max") -> str:
    return parts[0] if len(parts) == 1 else f"{word}({', '.join(parts)})"


def inequality(counts: Sequence[tuple[str, int]]) -> str:
    """``N_e M >= N`` for M + N_e - N >= 0."""
    sides = [Power.of({axis: sign * n for axis, n in counts if sign * n > 0}) for sign in (1, -1)]
    return f"{sides[0]} >= {sides[1]}"


def _groups(
    forms: Sequence[Form], parameters: Callable[[Form], str], power: Callable[[Power], str], word: str = "max"
) -> list[str]:
    """Monomials with the same parameters together."""
    groups = (list(group) for _, group in groupby(forms, key=lambda form: form.unknowns))
    return [_joined(parameters(group[0]), maximum([power(x.power) for x in group], word)) for group in groups]


def _joined(parameters: str, rest: str) -> str:
    return " ".join(x for x in (parameters, rest) if x and x != "1") or "1"


def _parameters(form: Form) -> str:
    return " ".join(symbol(u) if n == -1 else f"{symbol(u)}^{-n}" for u, n in form.unknowns)


def _latex_parameters(form: Form) -> str:
    return " ".join(_latex_symbol(u, -n) for u, n in form.unknowns)


def _latex_symbol(unknown: str, count: int) -> str:
    letter, _, rest = symbol(unknown).partition("_")
    name = rf"{_GREEK[letter]}_{{\mathrm{{{rest.replace('_', ' ')}}}}}" if rest else r"\alpha"
    return name if count == 1 else f"{name}^{{{count}}}"
