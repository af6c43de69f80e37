"""``scalecalc explain``: why an exponent is what it is."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra.documents import Document
from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.explanations import explain
from scaling_algebra.explanations.results import behind
from scaling_algebra.spec.configuration import Configuration

from .options import COMPLETED, PathType, Verb, configured, examples, printed, tried


@click.command(
    "explain",
    cls=Verb,
    forms={"--formula": ("The size as a maximum of monomials, on every ray.", "scaling_algebra.commands.formula")},
    epilog=examples(
        "scalecalc explain router.lr --regime III --optimizer sgd",
        "scalecalc explain h3.A2.2@1 --regime III --optimizer sgd --graph h3.svg",
        "scalecalc explain --formula h3.A2.2@1 --optimizer sgd",
    ),
)
@click.argument("what", metavar="WHAT", **COMPLETED)
@configured
@click.option(
    "--graph", type=PathType(), metavar="FILE", help="Also draw the leading monomial: FILE.svg, FILE.png or FILE.dot."
)
@printed()
def command(configuration: Configuration, what: str, graph: Path | None) -> Document:
    """Why an exponent is what it is: the reason, the sums on the way, the leading monomial, its matching, arithmetic.

    WHAT is a quantity with an optional step (h3.A2.2@1; see scalecalc list), an inner product ("<h2@0, h2@1>"), a
    parameter (expert_out.lr, W3.lr, readout.eps, aggregation), or "alignment" for the alignment exponents p and q
    of every linear map.
    """
    if what == "alignment" and graph is not None:
        raise UsageError("--graph draws one monomial: give a quantity instead of alignment")
    tried(graph, "graph", "--graph")
    explanation = explain(what, configuration)
    if graph is not None:
        from scaling_algebra.explanations.graph import draw

        picture = behind(explanation)
        if picture is None:
            raise UsageError(f"{what} was chosen, not solved: there is no monomial to draw")
        draw(picture, graph)
    return explanation.document()
