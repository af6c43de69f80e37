"""What solutions for batch and tokens say, and what rules keep. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal

from ..monomials import Monomial, parameter
from .horizon import AXES, QUANTITIES

if TYPE_CHECKING:
    from .horizon import Conflict, Horizon
    from .rules import Check, RuleAudit

_LATEX = {"lr": r"\eta", "eps": r"\epsilon", "wd": r"\lambda", "warmup": r"\mathrm{warmup}"}
_LATEX |= {f"one_minus_beta{k}": rf"(1-\beta_{{{k}}})" for k in (1, 2)}


def text(m: Monomial | str) -> str:
    """``(1-beta2)/lr^2``."""
    return str(m).replace("one_minus_beta1", "(1-beta1)").replace("one_minus_beta2", "(1-beta2)")


def piece(m: Monomial) -> Text:
    names = {parameter(name): tex for name, tex in _LATEX.items()}
    return Text(text(m), f"${sympy.latex(m.expr, symbol_names=names)}$")


def horizon(
    h: Horizon, numbers: dict[str, tuple[float, float | None]] | None = None, experts: bool = False
) -> Document:
    """The solution, or why there is none.

    Args:
        numbers: factor and, where a base value is given, the new value, by quantity.
        experts: also by what an expert's value differs.
    """
    changing = " and ".join(AXES[axis] for axis in h.axes)
    blocks: list[Block] = [Heading(literal(f"{h.about}; {changing} change"), 2)]
    if h.conflicts:
        blocks.append(Lines.of("these contradict each other:"))
        blocks.append(Grid.of(["cannot stay fixed together", "product", "moves as"], map(_conflict, h.conflicts)))
    else:
        columns = ["quantity", "power", *["expert"] * experts, *(["factor", "value"] if numbers else [])]
        rows = []
        for name, about in QUANTITIES.items():
            if name in h.powers or name in h.free:
                row: list[Piece | None] = [Text(text(name), literal(about))]
                row.append(piece(h.powers[name]) if name in h.powers else "free")
                row += [piece(h.experts[name]) if name in h.experts else None] * experts
                if numbers:
                    factor, value = numbers[name]
                    row += [f"{factor:.6g}", None if value is None else f"{value:.6g}"]
                rows.append(row)
        blocks.append(Grid.of(columns, rows))
    known = [(i.name, literal(i.title), literal(i.because), literal(i.source)) for i in h.held]
    blocks.append(Grid.of(["held", "what stays the same", "because", "source"], known))
    notes = ["a run has T/B steps; powers of the width (derive) multiply these and contain neither B nor T"]
    notes += [f"free: {', '.join(map(text, h.free))}: the invariants held leave it open"] * bool(h.free)
    routed = "and so does its row of the router, unless gates are normalised over all experts"
    notes += [f"an expert sees K/M of batch and tokens, {routed}"] * experts
    blocks.append(Lines.of(*map(literal, notes), listed=True))
    record: dict[str, object] = {
        "optimizer": h.optimizer,
        "held": [i.name for i in h.held],
        "axes": list(h.axes),
        "powers": {text(name): _powers(m) for name, m in h.powers.items()},
        "experts": {text(name): _powers(m) for name, m in h.experts.items()},
        "free": [text(name) for name in h.free],
        "factors": {text(name): factor for name, (factor, _) in (numbers or {}).items()},
        "values": {text(name): value for name, (_, value) in (numbers or {}).items() if value is not None},
        "conflicts": [
            {
                "fixed": [{"invariant": n, "monomial": text(m), "power": str(e)} for (n, m), e in c.parts],
                "product": _powers(c.product),
            }
            for c in h.conflicts
        ],
    }
    return Document(tuple(blocks), record)


def audit(a: RuleAudit) -> Document:
    """For every rule and invariant what is kept, what is broken and how, what the rule is silent about."""
    blocks: list[Block] = [Heading("rules for batch and tokens, and the invariants they keep", 2)]
    about = [(r.name, r.optimizer, ", ".join(r.axes), _rule(r.powers), literal(r.source)) for r in a.rules]
    blocks.append(Grid.of(["rule", "optimizer", "about", "powers", "source"], about))
    groups: dict[tuple[str, str], list[Check]] = {}
    for c in a.checks:
        groups.setdefault((c.rule.name, c.invariant.name), []).append(c)
    rows = []
    for (rule, invariant), checks in groups.items():
        if all(c.verdict == "silent" for c in checks):
            continue
        said = {v: [_check(c) for c in checks if c.verdict == v] for v in ("kept", "broken", "silent")}
        rows.append([rule, invariant, *(_listed(found) for found in said.values())])
    blocks.append(Grid.of(["rule", "invariant", "kept", "broken", "says nothing of"], rows))
    record = {
        "rules": [
            {
                "rule": r.name,
                "optimizer": r.optimizer,
                "axes": list(r.axes),
                "powers": {text(q): _powers(m) for q, m in r.powers.items()},
                "source": r.source,
                "checks": [
                    {
                        "invariant": c.invariant.name,
                        "monomial": text(c.fixed),
                        "verdict": c.verdict,
                        "residual": None if c.residual is None else _powers(c.residual),
                    }
                    for c in a.checks
                    if c.rule is r
                ],
            }
            for r in a.rules
        ]
    }
    return Document(tuple(blocks), record)


def _conflict(c: Conflict) -> list[Piece]:
    fixed = ", ".join(f"{text(m)} ({name})" for (name, m), _ in c.parts)
    product = " ".join(f"({text(m)})" + (f"^({e})" if e != 1 else "") for (_, m), e in c.parts)
    return [fixed, literal(product), piece(c.product)]


def _rule(powers: object) -> Piece:
    assert isinstance(powers, dict)
    return literal(", ".join(f"{text(q)} {m}" for q, m in powers.items()))


def _check(c: Check) -> str:
    return text(c.fixed) + (f" becomes {c.residual}" if c.verdict == "broken" else "")


def _listed(found: list[str]) -> Piece | None:
    return literal(", ".join(found)) if found else None


def _powers(m: Monomial) -> dict[str, str]:
    """For JSON: ``{"B": "1/2", "T": "-1"}``."""
    return {text(name): str(e) for name, e in m.powers}
