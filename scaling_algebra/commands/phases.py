"""``scalecalc rays``: the map of rays."""

from __future__ import annotations

from typing import Any

import click

from scaling_algebra.all_rays.phases import phases
from scaling_algebra.spec.parameterizations import DERIVED

from .options import OPTIMIZER, Answer, Verb, format_examples, parameterization_option, prints_answer

DRAWING = "svg"
"""The format that draws the map."""


@click.command(
    "rays",
    cls=Verb,
    forms={"--prove": ("Prove theorems about whole cones of rays.", "scaling_algebra.commands.theorems")},
    epilog=format_examples(
        "scalecalc rays --parameterization mup --optimizer sgd",
        "scalecalc rays --parameterization mssp --optimizer sgd -o map.svg",
        "scalecalc rays --prove --parameterization mup --optimizer sgd --only cover",
    ),
)
@parameterization_option(DERIVED)
@OPTIMIZER
@prints_answer({DRAWING: f".{DRAWING}"}, " svg draws the map.")
def command(form: str | None, **question: Any) -> Answer:
    """Divide the space of rays into regions (cells) with one closed formula each, and print in which of them the
    papers'
    regimes and some model families lie.
    """
    plane_map = phases(**question)
    if form != DRAWING:
        return plane_map.document()
    from scaling_algebra.all_rays.picture import phases_svg

    return phases_svg(plane_map)
