"""``scalecalc rays``: the map of rays."""

from __future__ import annotations

from typing import Any

import click

from scaling_algebra.all_rays.nearest import nearest
from scaling_algebra.all_rays.phases import phases
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.parameterizations import DERIVED

from .options import OPTIMIZER, Answer, Verb, examples, parameterization, printed

DRAWINGS = ("svg", "html")
"""Formats that draw the map."""


@click.command(
    "rays",
    cls=Verb,
    forms={"--prove": ("What is proved for whole cones of rays.", "scaling_algebra.commands.theorems")},
    epilog=examples(
        "scalecalc rays --parameterization mup --optimizer sgd",
        "scalecalc rays --parameterization mssp --optimizer sgd -o map.html",
        "scalecalc rays --parameterization mssp --optimizer sgd --near N=1,N_e=1/2,M=0",
        "scalecalc rays --prove --parameterization mup --optimizer sgd --only cover",
    ),
)
@parameterization(DERIVED)
@OPTIMIZER
@click.option(
    "--plane", default="N_e,M", show_default=True, metavar="AXES", help="Two of N, N_e, M; the third has rate 1."
)
@click.option(
    "--near", metavar="RATES", help="Instead of the map: the rays next to this one that have a parameterization."
)
@click.option(
    "--prove-cells", "prove", is_flag=True, help="Prove for every cell without a formula that a ray inside it has none."
)
@printed({drawing: f".{drawing}" for drawing in DRAWINGS}, " html and svg draw the map.")
def command(plane: str, near: str | None, prove: bool, form: str | None, **question: Any) -> Answer:
    """Cut the space of rays into cells with one closed formula each; regimes and model families are placed on it."""
    axes = tuple(axis.strip() for axis in plane.split(","))
    if len(axes) != 2:
        raise UsageError(f"the plane is {plane!r}; give two axes, for example N_e,M")
    ray = None if near is None else Ray.parse(near)
    if ray is not None and (prove or form in DRAWINGS):
        raise UsageError("--near prints rays, no map: leave out --prove-cells, svg and html")
    plane_map = phases(**question, plane=(axes[0], axes[1]), prove=prove)
    if ray is not None:
        return nearest(plane_map, ray).document()
    if form not in DRAWINGS:
        return plane_map.document()
    from scaling_algebra.all_rays.picture import phases_html, phases_svg

    return (phases_svg if form == "svg" else phases_html)(plane_map)
