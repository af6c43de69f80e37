"""The signal tables of App. J of the MSSP paper as formulas: every signal on every ray of a cell.

Read next: ``signal_tables.py`` (rows and their symbols), ``scaling_algebra/formulas/every_ray.py`` (the formulas).
"""

from __future__ import annotations

from functools import cache

from scaling_algebra.documents.blocks import Cell, Grid, Label, Row, Size
from scaling_algebra.documents.notation import tex
from scaling_algebra.formulas.every_ray import every_ray
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import Configuration

from .signal_tables import ROWS, STEPS, SYMBOLS, WHOLES

RAYS = "N=1,N_e=3/4,M=1/2"
"""A ray inside the cell of muP that has regimes I, II and III on its boundary."""


@cache
def table_rays() -> Grid:
    """The size of every signal under muP as powers of the axes, on a whole cell of rays, and at the regimes."""
    names = [what for sections in ROWS["j32"].values() for what in sections.split()]
    found = every_ray(Configuration.of(None, "sgd", "mup", ray=RAYS), steps=STEPS[-1], quantities=names)

    def cells(what: str) -> tuple[Cell, ...]:
        row = found.sizes[what]
        return tuple(Cell((x.piece,)) for x in row) + tuple(Cell((Size(row[-1].on(r)),)) for r in REGIMES.values())

    rows = tuple(
        Row(Label(part), Label(what, SYMBOLS[what]), cells(what), "." in what and what not in WHOLES)
        for part, sections in ROWS["j32"].items()
        for what in sections.split()
    )
    steps = tuple(Label(f"t={t}", f"$t = {t}$") for t in STEPS)
    last = f"at $t = {STEPS[-1]}$ in regime"
    bounds = ", ".join(f"${tex(x)}$" for x in found.cone.inequalities)
    return Grid(
        "rays",
        "Every signal on every ray: the signal tables of App. J of the MSSP paper as formulas",
        r"Entry sizes after $t$ updates of SGD under $\mu$P, readout init maximal, in the minimal MoE block, for all "
        f"rays with $K = M$ and {bounds} (rates of the axes). Each is the largest of the powers shown, certified at "
        "the corners of the cones on which one of them leads. Regimes I, II and III are rays of this cell; their "
        "columns are the same formulas there.",
        (Label("part"), Label("quantity", "Quantity")),
        ((Label("every ray", "every ray of the cell"), steps), (Label("regime", last), tuple(map(Label, REGIMES)))),
        rows,
        (
            r"$v_t = [\dot\phi_{i,t} \langle h_t^{3,i}, W_t^4 \rangle]_i$; $\Delta_t$ is the change since $t = 0$.",
            "0: exactly zero. Columns of regimes: exponents of $n$.",
        ),
        sections=True,
    )
