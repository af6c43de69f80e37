"""``scalecalc signals``: the size of every named quantity at every step."""

from __future__ import annotations

import click

from scaling_algebra import limits
from scaling_algebra.documents import Document
from scaling_algebra.solver.derivation import signals
from scaling_algebra.spec.configuration import Configuration

from .options import COMPLETED, UNASSUMING, Count, format_examples, prints_answer, with_configuration


@click.command(
    "signals",
    epilog=format_examples(
        "scalecalc signals --regime II --optimizer sgd",
        "scalecalc signals --regime III --parameterization mssp --quantity h3.A2.2 --quantity '<h3@0, h3@2>' --steps 3",
    ),
)
@with_configuration
@click.option(
    "--steps", type=Count(0, limits.STEPS), default=2, show_default=True, metavar="T", help="Number of updates."
)
@click.option(
    "--quantity", "names", multiple=True, metavar="NAME", help="Print only this quantity (repeatable).", **COMPLETED
)
@UNASSUMING
@prints_answer()
def command(configuration: Configuration, steps: int, names: tuple[str, ...], bare: bool) -> Document:
    """Print the exponent of every named quantity at t = 0, 1, ..., each certified exact.

    An exponent without a certificate is printed as undecided; with --no-assumptions one that assumes more is, too.
    """
    sizes = signals(configuration, steps=steps, quantities=names or None)
    return (sizes.without_assumptions() if bare else sizes).document()
