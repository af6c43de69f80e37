"""The reason in a sentence or two: what adds up and why, what it is multiplied by, and what that leaves.

Read off the winning matching of any monomial; nothing here knows the name of a quantity.
Read next: ``mechanisms.py`` (the same matching, by the taxonomy of the MSSP paper, App. I.7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.powers import Power, exponent_text

from .mechanisms import EXPERTS
from .monomials import Index, MatchedMonomial
from .results import Constant, Explanation, LeadingTerm, SettingExplanation


def reason(e: Explanation) -> str:
    """Why a quantity has its size."""
    if e.exponent is None:
        return f"It is exactly zero: {e.note}."
    if e.outer:
        sizes = " and ".join(str(_power(term)) for term in e.terms)
        factors = f", times {_factors(e.constants)}" if e.constants else ""
        return f"Every entry is a product of two entries, of size {sizes}{factors}: n^{exponent_text(e.exponent)}."
    term = e.terms[0]
    others = "" if e.leading == 1 else f" {e.leading - 1} more of the same size: see below."
    return f"{_sums(term.monomial)}. {_result(e, term)}{others}"


def setting_reason(s: SettingExplanation) -> str:
    """What fixes a parameter: what its quantity is without it, and the value that makes it Theta(1)."""
    if s.value is None and s.behind is None:
        return f"{s.because}."
    if s.behind is None or s.value is None or not s.behind.terms:
        return f"{_capital(s.because)}."
    wanted = "the aggregation multiplier" if s.name.startswith("aggregation") else s.name
    if s.behind.outer or s.name.endswith(".eps"):
        behind = s.behind.reason
        return f"Epsilon has the size of the gradient, {s.value}: {behind[0].lower()}{behind[1:]}"
    term, label = s.behind.terms[0], _label(s.name)
    others = [c for c in term.constants if c.label != label]
    times = len(term.constants) - len(others)
    if not times:
        return f"{_capital(s.because)}. {s.behind.reason}"
    rest = _power(term) / s.value**times
    without = f" {rest}" if rest.terms else ""
    same = "" if rest == 1 / s.value**times else " (the same power of n here)"
    unknown = wanted if times == 1 else f"{wanted}^{times}"
    return (
        f"{_sums(term.monomial)}. Besides {wanted} it carries {_factors(others)}; so {s.behind.quantity} ~ "
        f"{unknown}{without}, and Theta(1) needs {wanted} = {s.value}{same}."
    )


def _result(e: Explanation, term: LeadingTerm) -> str:
    assert e.exponent is not None
    adds, carries = _added(term.monomial), _factors(term.constants)
    total = f"n^{exponent_text(e.exponent)}"
    if not adds.terms:
        return f"It carries {carries}, so {e.quantity} ~ {total}."
    return f"Together the sums give {adds}; it carries {carries}; so {e.quantity} ~ {_power(term)}, {total} here."


def _sums(m: MatchedMonomial) -> str:
    """Every sum over an index that grows, with what makes it coherent or random."""
    growing = [c for c, i in m.indices.items() if i.weight > 0 and i.rate]
    phrases: list[str] = []
    told: set[int] = set()
    for inner in m.inner:
        sums = [c for c in inner.classes if c in growing and c not in told and m.indices[c].weight == 1]
        if sums:
            side = "input" if inner.where == "forward" else "gradient"
            phrases.append(f"the update of {inner.tensor} meets its own {side} again, {_coherent(m, sums)}")
            told.update(sums)
    for pair in m.pairs:
        sums = [c for c in m.factors[pair.left].classes if c in growing and c not in told and m.indices[c].weight == 1]
        sums = [c for c in sums if m.indices[c].axis not in EXPERTS]
        if sums:
            phrases.append(f"{m.factors[pair.left].tensor} meets its own transpose, {_coherent(m, sums)}")
            told.update(sums)
    for c in growing:
        index = m.indices[c]
        if c in told:
            continue
        if index.weight == 1:
            what = "all experts push the same way" if index.axis in EXPERTS else "nothing random is left"
            phrases.append(f"{what}, {_coherent(m, [c])}")
        else:
            names = dict.fromkeys(m.factors[k].tensor for k in index.touched)
            stay = "stays" if len(names) == 1 else "stay"
            phrases.append(f"{_and(names)} {stay} random over {_run(index)}, a random sum of size {_size(index)}")
    if not phrases:
        return "Nothing that grows is summed"
    text = "; ".join(_counted(phrases))
    return text if text.partition(" ")[0] in {f.tensor for f in m.factors} else _capital(text)


def _coherent(m: MatchedMonomial, classes: Sequence[int]) -> str:
    sums = [m.indices[c] for c in classes]
    many = "a coherent sum" if len(sums) == 1 else "coherent sums"
    return f"{many} over {_and(_run(i) for i in sums)}"


def _run(index: Index) -> str:
    return f"{AXES[index.axis]} {index.axis}"


def _size(index: Index) -> Power:
    return Power.of({index.axis: index.weight})


def _added(m: MatchedMonomial) -> Power:
    return prod((Power.of({i.axis: i.weight}) for i in m.indices.values() if i.rate), start=Power())


def _power(term: LeadingTerm) -> Power:
    """The size of a monomial as a power of the axes."""
    return prod((c.power for c in term.constants), start=_added(term.monomial))


def _factors(constants: Iterable[Constant]) -> str:
    """``lr of expert_in N_e M N^-1, std of readout N^-1``; factors of size 1 are left out."""
    times = Counter(c for c in constants if c.power.terms)
    parts = [
        f"{c.label} {c.power}" + (" twice" if k == 2 else f" {k} times" if k > 2 else "") for c, k in times.items()
    ]
    return ", ".join(parts) or "factors of size 1 only"


def _label(name: str) -> str:
    """What a monomial calls a parameter."""
    role, _, what = name.partition(".")
    return "aggregation multiplier" if role == "aggregation" else f"{ {'init': 'std'}.get(what, what) } of {role}"


def _counted(phrases: Sequence[str]) -> list[str]:
    """Each phrase once, with how often it is there."""
    return [p if k == 1 else f"{p} ({k} times)" for p, k in Counter(phrases).items()]


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
