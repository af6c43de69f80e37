"""Derives the learning rate that each public implementation of Muon needs, given the factor by which it multiplies
its steps.

A step of Muon has operator norm lr; implementations multiply it by a factor of the matrix shape. If two columns
differ, a learning rate transferred to a larger model by one rule is wrong in the other by their quotient.
"""

from __future__ import annotations

from functools import cache

from scaling_algebra.documents.blocks import Cell, Grid, Label, Row
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import REGIMES

from .scaling_tables import heads, setting
from .signal_tables import growth
from .texts import read_texts

FACTORS = {
    "muon": Label("1"),
    "muon:original": Label("sqrt(max(1, out/in))", r"$\max(1, \mathrm{out}/\mathrm{in})^{1/2}$"),
    "muon:match_rms_adamw": Label("0.2 sqrt(max(out, in))", r"$0.2 \max(\mathrm{out}, \mathrm{in})^{1/2}$"),
    "muon:unit_rms_norm": Label("sqrt(out/in)", r"$(\mathrm{out}/\mathrm{in})^{1/2}$"),
    "signsgd": Label("0.2 sqrt(out in) / Frobenius", r"$0.2 (\mathrm{out} \cdot \mathrm{in})^{1/2} / |O|_F$"),
}
"""Factor of each optimizer rule. Rows of equal size, as NorMuon makes them, and entries of equal size are one rule."""
TENSORS = ("router", "expert_in", "expert_out")


@cache
def table_muon() -> Grid:
    """Derives the learning rate of every matrix that Muon trains, for each factor by which implementations multiply
    its steps.
    """
    rows = []
    for regime, ray in REGIMES.items():
        found = [derive(regime, {"": "adamw", "router": rule, "hidden": rule}, "mup") for rule in FACTORS]
        group = Label(f"Regime {regime}", f"Regime {regime} ({growth(ray)})")
        rows += [Row(group, Label(role), tuple(Cell((setting(d, role, "lr"),)) for d in found)) for role in TENSORS]
    return Grid(
        "muon",
        **read_texts("muon"),
        heads=heads("regime", "tensor"),
        columns=((Label("factor"), tuple(FACTORS.values())),),
        rows=tuple(rows),
    )
