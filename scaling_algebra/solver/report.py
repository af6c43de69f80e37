"""How results are printed: text, markdown, LaTeX. Adding a format: one more entry in ``FORMATS``.

Read next: ``cli.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from scaling_algebra.spec.powers import Power, exponent_text

from .demands import HORIZON

if TYPE_CHECKING:
    from scaling_algebra.dynamics.analysis import Answer
    from scaling_algebra.proofs.prover import Proof

    from .derivation import Derivation, Signals

_HEADER = ("tensor", "b", "c", "d", "init std", "lr", "eps", "tied")


def title(d: Derivation) -> str:
    """``MSSP, adam, regime III (N=1, ...), readout init zero``."""
    return str(d.configuration)


def derivation_text(d: Derivation) -> str:
    """Plain report of one derivation, with the reason for every number."""
    rows = _rows(d, str)
    lines = [title(d)]
    if d.program.aggregates:
        lines.append(f"aggregation multiplier: {-d.scaling.alpha}   ({d.reasons['aggregation', 'alpha']})")
    lines.append("")
    lines += aligned([_HEADER, *rows])
    lines += ["", "why:"]
    lines += aligned([(f"  {role}", what, why) for (role, what), why in d.reasons.items() if role != "aggregation"])
    if d.structure:
        lines += ["", "structure:"] + [f"  {line}" for line in d.structure]
    if d.cone is not None:
        lines += ["", f"the same formula for all rays with K = M and: {d.cone} (proved for t = 0 .. {HORIZON})"]
    if d.optimizer.note:
        lines += ["", f"note: {d.optimizer.note}"]
    return "\n".join(lines)


def derivation_markdown(d: Derivation) -> str:
    """A markdown table with a caption and the reasons as a list."""
    lines = [f"**{title(d)}**", "", markdown_table(_HEADER, _rows(d, lambda p: f"${latex_power(p)}$"))]
    lines += ["", f"Aggregation multiplier ${latex_power(-d.scaling.alpha)}$."]
    lines += ["", *(f"- {role} {what}: {why}" for (role, what), why in d.reasons.items())]
    lines += [f"- {line}" for line in d.structure]
    lines += (
        [f"- The same formula for all rays with K = M and: {d.cone} (proved for t = 0 .. {HORIZON})"]
        if d.cone is not None
        else []
    )
    return "\n".join(lines)


def derivation_latex(d: Derivation) -> str:
    """A booktabs tabular; the preamble needs ``\\usepackage{booktabs}``."""
    caption = latex_escape(title(d))
    rows = _rows(d, lambda p: f"${latex_power(p)}$")
    return f"% {caption}\n" + latex_table([_HEADER], [[c if "$" in c else latex_escape(c) for c in r] for r in rows])


def derivation_json(d: Derivation) -> str:
    return json.dumps(d.as_json(), indent=2)


DERIVATION_FORMATS: dict[str, Callable[[Derivation], str]] = {
    "text": derivation_text,
    "json": derivation_json,
    "markdown": derivation_markdown,
    "latex": derivation_latex,
}
"""Formats of ``derive``."""


_VERDICTS = {
    "unique": "exactly one parameterization with these interventions; every other point breaks one of",
    "impossible": "no parameterization; these contradict each other",
    "several": "more than one parameterization",
    "undecided": "undecided",
}


def proof_lines(p: Proof, freed: Mapping[str, tuple[str, ...] | None]) -> list[str]:
    """What was proved, from which desiderata, and what each of them determines."""
    lines = [f"proof: {p.outcome.verdict} (O(1) at t = 0 .. {p.steps[0]}, Theta(1) by t = {p.steps[1]})", f"  {p}"]
    for a in p.attempts:
        lines.append(f"  {a.structure}: {_VERDICTS[a.verdict]}" + (f": {a.why}" if a.why else ""))
        lines += [f"    {name}" for name in a.core]
        lines += [f"    found: {point}" for point in p.shown(a)]
    if freed:
        lines += ["", "dropping one desideratum:"]
        rows = [
            (f"  {name}", "undecided" if names is None else f"frees {', '.join(names)}" if names else "frees nothing")
            for name, names in freed.items()
        ]
        lines += aligned(rows)
    return lines


def signals_text(s: Signals) -> str:
    """Exponents of n, one line per quantity."""
    header = ("quantity", *(f"t={t}" for t in range(s.steps + 1)))
    rows = [(name, *(_theta(a) for a in row)) for name, row in s.quantities.items()]
    return "\n".join([title(s.derivation), "sizes as powers of n; 0 is exactly zero", "", *aligned([header, *rows])])


def _theta(a: Answer) -> str:
    if not a.decided:
        return "undecided"
    return "0" if a.exponent is None else f"n^{exponent_text(a.exponent)}"


def _rows(d: Derivation, show: Callable[[Power], str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for role, s in d.scaling.tensors.items():
        b, c, e = d.exponents(role)
        rows.append(
            (
                role,
                "zero" if b is None else str(b),
                str(c),
                "-" if e is None else str(e),
                "0" if s.init_std is None else show(s.init_std),
                show(s.lr),
                "-" if s.eps is None else show(s.eps),
                "tied" if role in d.scaling.tied else "",
            )
        )
    return rows


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with columns padded to equal width."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """GitHub-flavoured markdown; a bar inside a cell is escaped."""
    from tabulate import tabulate

    clean = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return str(tabulate(clean, headers=list(header), tablefmt="github", disable_numparse=True))


def latex_table(header: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> str:
    """Booktabs tabular of cells that are already LaTeX; headers are escaped here."""
    head = "\n".join(" & ".join(map(latex_escape, line)) + r" \\" for line in header)
    body = "\n".join(" & ".join(row) + r" \\" for row in rows)
    columns = "l" * len(header[0])
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", body, r"\bottomrule", r"\end{tabular}"]
    )


def latex_power(p: Power) -> str:
    """``M^{1/2} N_e^{-1/2}``, each factor set by sympy."""
    from sympy import Rational, Symbol, latex

    factors = ((latex(Symbol(axis)), Rational(e.numerator, e.denominator)) for axis, e in p.ordered())
    return " ".join(base if e == 1 else f"{base}^{{{e}}}" for base, e in factors) or "1"


def latex_escape(text: str) -> str:
    """Escape what LaTeX would read as markup."""
    special = {"^": r"\^{}", "<": r"\textless{}", ">": r"\textgreater{}", "~": r"\textasciitilde{}"}
    return "".join(special.get(c, "\\" + c if c in "_%&#{}" else c) for c in text)
