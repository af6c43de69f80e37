"""``scalecalc explain``: why an exponent is what it is."""

from __future__ import annotations

from functools import partial

import click

from scaling_algebra.explanations.explanations import explain
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.waiting import describe_work_inside

from .list import find_words, sections_document
from .options import COMPLETED, Answer, Verb, format_examples, prints_answer, with_configuration_factory


@click.command(
    "explain",
    cls=Verb,
    forms={
        "--formula": ("Print the size as a formula that is valid on every ray.", "scaling_algebra.commands.formula")
    },
    epilog=format_examples(
        "scalecalc explain router.lr --regime III --optimizer sgd",
        "scalecalc explain h3.A2.2@1 --regime III --optimizer sgd",
        "scalecalc explain --formula h3.A2.2@1 --optimizer sgd",
    ),
)
@click.argument("what", metavar="WHAT", **COMPLETED)
@with_configuration_factory
@prints_answer()
def command(make: partial[Configuration], what: str) -> Answer:
    """Explain an exponent: its reason, the intermediate sums, the leading monomial, its matching, the arithmetic.

    WHAT is a quantity with an optional step (h3.A2.2@1; see scalecalc list), an inner product ("<h2@0, h2@1>"), a
    parameter (expert_out.lr, W3.lr, readout.eps, aggregation), or "alignment" for the alignment exponents p and q
    of every linear map; without a regime, a word of the glossary (B, "mechanism B", mu-2).
    """
    (regime, *_), ray = make.args, make.keywords["ray"]
    if not (regime or ray) and (meant := find_words(what)):
        return sections_document(meant, {})
    with describe_work_inside(f"explaining {what}"):
        return explain(what, make()).document()
