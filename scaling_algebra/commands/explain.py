"""``scalecalc explain``: why an exponent is what it is."""

from __future__ import annotations

import click

from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.explanations import explain
from scaling_algebra.explanations.graph import dot
from scaling_algebra.explanations.results import behind
from scaling_algebra.spec.configuration import Configuration

from .glossary import meant
from .options import COMPLETED, Answer, Verb, configured, examples, printed

DOT = "dot"
"""A format of this command alone: the leading monomial as a graph."""


@click.command(
    "explain",
    cls=Verb,
    forms={"--formula": ("The size as a maximum of monomials, on every ray.", "scaling_algebra.commands.formula")},
    chosen=meant,
    epilog=examples(
        "scalecalc explain router.lr --regime III --optimizer sgd",
        "scalecalc explain h3.A2.2@1 --regime III --optimizer sgd --graph -o h3.dot",
        "scalecalc explain --formula h3.A2.2@1 --optimizer sgd",
    ),
)
@click.argument("what", metavar="WHAT", **COMPLETED)
@configured
@click.option("--graph", is_flag=True, help="The leading monomial as a graph in dot, which Graphviz draws.")
@printed({DOT: ".dot"}, " dot is --graph.")
def command(configuration: Configuration, what: str, graph: bool, form: str | None) -> Answer:
    """Why an exponent is what it is: the reason, the sums on the way, the leading monomial, its matching, arithmetic.

    WHAT is a quantity with an optional step (h3.A2.2@1; see scalecalc list), an inner product ("<h2@0, h2@1>"), a
    parameter (expert_out.lr, W3.lr, readout.eps, aggregation), or "alignment" for the alignment exponents p and q
    of every linear map; without a regime, a word of the glossary (B, "mechanism B", mu-2).
    """
    drawn = graph or form == DOT
    if graph and form not in (None, DOT):
        raise UsageError(f"--graph prints dot; leave out --format {form}")
    if what == "alignment" and drawn:
        raise UsageError("--graph draws one monomial: give a quantity instead of alignment")
    explanation = explain(what, configuration)
    if not drawn:
        return explanation.document()
    leading = behind(explanation)
    if leading is None:
        raise UsageError(f"{what} was chosen, not solved: there is no monomial to draw")
    return dot(leading)
