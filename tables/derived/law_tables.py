"""Tables of exponents of laws: those of the MoE-laws paper, derived.

Read next: ``layouts.py`` (every table), ``scaling_algebra/laws/law.py`` (the law).
"""

from __future__ import annotations

from fractions import Fraction

import sympy

from scaling_algebra.documents.blocks import Cell, Grid, Label, Row
from scaling_algebra.laws.law import answer, law

CORPORA = (("WikiText-103", "1", 32), ("OpenWebText", "1", 45), ("OpenWebText", "3/2", 45), ("TinyStories", "1", 23))
"""Corpora with smoothness beta and intrinsic dimension d, of Table 2 of the paper."""
EXPONENTS = {"alpha_N": r"$\alpha_N$", "alpha_D": r"$\alpha_D$", "alpha_C": r"$\alpha_C$"}


def table_laws2() -> Grid:
    """Exponents of the risk by corpus, exact."""
    rows = []
    for corpus, beta, d in CORPORA:
        values = {"beta": sympy.Rational(beta), "d": sympy.Integer(d)}
        found = answer(law("moe-transformer"), values=values).exponents
        cells = tuple(Cell((Fraction(str(found[name])),)) for name in EXPONENTS)
        rows.append(Row(Label(corpus), Label(f"beta {beta}, d {d}", rf"$\beta = {beta}$, $d = {d}$"), cells))
    return Grid(
        "laws2",
        "Exponents of the risk of a Mixture-of-Experts Transformer (Table 2 of the MoE-laws paper)",
        r"The risk falls as $N^{-\alpha_N}$ in active parameters, as $n^{-\alpha_D}$ in samples and as $C^{-\alpha_C}$ "
        r"in compute, for targets of smoothness $\beta$ in intrinsic dimension $d$.",
        (Label("corpus", "Corpus"), Label("assumed", "Assumed")),
        ((Label(""), tuple(Label(name, text) for name, text in EXPONENTS.items())),),
        tuple(rows),
        (r"The paper's column $\alpha_N / (1 + \alpha_N)$ is $\alpha_D$ exactly; $\alpha_C$ is not in its table.",),
    )
