"""``scalecalc signals``: the size of every named quantity at every step."""

from __future__ import annotations

import click

from scaling_algebra import limits
from scaling_algebra.documents import Document
from scaling_algebra.errors import UsageError
from scaling_algebra.formulas.every_ray import every_ray as _every_ray
from scaling_algebra.solver.derivation import signals
from scaling_algebra.spec.configuration import Configuration

from .options import COMPLETED, STRICT, Count, configured, examples, printed


@click.command(
    "signals",
    epilog=examples(
        "scalecalc signals --regime II --optimizer sgd",
        "scalecalc signals --regime III --parameterization mssp --quantity h3.A2.2 --quantity '<h3@0, h3@2>' --steps 3",
        "scalecalc signals --ray N=1,N_e=3/4,M=1/2 --every-ray -o cell.tex",
    ),
)
@configured
@click.option(
    "--steps", type=Count(0, limits.STEPS), default=2, show_default=True, metavar="T", help="Number of updates."
)
@click.option(
    "--quantity", "names", multiple=True, metavar="NAME", help="Only this quantity (may be repeated).", **COMPLETED
)
@click.option("--every-ray", is_flag=True, help="As powers of the axes, true on every ray where this formula holds.")
@STRICT
@printed()
def command(
    configuration: Configuration, steps: int, names: tuple[str, ...], every_ray: bool, strict: bool
) -> Document:
    """Print the exponent of every named quantity at t = 0, 1, ..., each certified exact.

    An exponent without a certificate is printed as undecided; with --strict also one that rests on an assumption.
    With --every-ray a size is a maximum of powers of the axes. It holds on all rays on which the formula of this ray is
    the parameterization.
    """
    if every_ray and strict:
        raise UsageError("--strict is about the exponents of one ray; leave out --every-ray")
    if every_ray:
        return _every_ray(configuration, steps=steps, quantities=names or None).document()
    sizes = signals(configuration, steps=steps, quantities=names or None)
    return (sizes.strict() if strict else sizes).document()
