"""Muon in public code: the learning rate that each implementation needs, beside the factor of the shape that it takes.

A step of Muon has operator norm lr; implementations multiply it by a factor of the shape of the matrix. Where two
columns differ, a rate that is carried to a larger model by one rule is off in the other by the quotient.
"""

from __future__ import annotations

from functools import cache

from scaling_algebra.documents.blocks import Cell, Grid, Label, Row
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import REGIMES

from .scaling_tables import heads, setting
from .signal_tables import growth
from .texts import told

FACTORS = {
    "muon": Label("1"),
    "muon:original": Label("sqrt(max(1, out/in))", r"$\max(1, \mathrm{out}/\mathrm{in})^{1/2}$"),
    "muon:match_rms_adamw": Label("0.2 sqrt(max(out, in))", r"$0.2 \max(\mathrm{out}, \mathrm{in})^{1/2}$"),
    "muon:unit_rms_norm": Label("sqrt(out/in)", r"$(\mathrm{out}/\mathrm{in})^{1/2}$"),
    "signsgd": Label("0.2 sqrt(out in) / Frobenius", r"$0.2 (\mathrm{out} \cdot \mathrm{in})^{1/2} / |O|_F$"),
}
"""Factors by the rule that steps with them: rows of one size, which NorMuon makes, and entries of one are one rule."""
TENSORS = ("router", "expert_in", "expert_out")


@cache
def table_muon() -> Grid:
    """The rate of every matrix that Muon trains, by the factor that an implementation multiplies it with."""
    rows = []
    for regime, ray in REGIMES.items():
        found = [derive(regime, {"": "adamw", "router": rule, "hidden": rule}, "mup") for rule in FACTORS]
        group = Label(f"Regime {regime}", f"Regime {regime} ({growth(ray)})")
        rows += [Row(group, Label(role), tuple(Cell((setting(d, role, "lr"),)) for d in found)) for role in TENSORS]
    return Grid(
        "muon",
        **told("muon"),
        heads=heads("regime", "tensor"),
        columns=((Label("factor"), tuple(FACTORS.values())),),
        rows=tuple(rows),
    )
