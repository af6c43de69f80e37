"""``scalecalc law``: exponents of growing quantities, from a sum, a law or assumptions."""

from __future__ import annotations

from typing import Any

import click

from scaling_algebra.arguments import parse_pairs
from scaling_algebra.errors import UsageError

from .options import Answer, Verb, format_examples, prints_answer


@click.command(
    "law",
    cls=Verb,
    forms={
        "--fit": (
            "Fit the parameters to a table of runs: law NAME --fit RUNS.csv.",
            "scaling_algebra.verify.commands.fit_law",
        ),
        "--fit-rate": (
            "Fit the best learning rate at each size: law --fit-rate RUNS.csv.",
            "scaling_algebra.verify.commands.fit_rate",
        ),
    },
    epilog=format_examples(
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in n',
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in C --constraint "C = n*N" --at beta=1,d=32',
        "scalecalc law moe-transformer --axis compute --at beta=1,d=32,q=1/2",
        "scalecalc law moe-transformer --at d=32 --invert alpha_N=0.076",
        "scalecalc law switch-cluster --drop Groenwall --at 'K=d**kappa'",
        "scalecalc law mine.toml",
    ),
)
@click.argument("what", metavar="SUM|NAME|FILE.toml")
@click.option(
    "--min",
    "minimise",
    default="",
    metavar="NAMES",
    help="For a sum: quantities over which it is minimised, such as N or N,D.",
)
@click.option(
    "--in", "grows", default="", metavar="NAMES", help="For a sum: quantities that grow; the answer is a power of them."
)
@click.option(
    "--constraint",
    "constraints",
    multiple=True,
    metavar="RELATION",
    help='Constraint between quantities, such as "C = n*N" or "k <= M" (repeatable).',
)
@click.option("--fixed", default="", metavar="NAMES", help="Names in the sum that are positive constants.")
@click.option(
    "--at",
    "values",
    default="",
    metavar="VALUES",
    help="Values of parameters, constants or quantities, such as d=32,S=M.",
)
@click.option(
    "--reach",
    metavar="MONOMIAL",
    help="Also print the size at which the minimum equals this value, such as 0.01 or eps**2.",
)
@click.option("--axis", metavar="NAME", help="For a law with several axes: the axis to answer in full.")
@click.option(
    "--invert",
    metavar="NAME=VALUE",
    help="For a law: print the parameter for which an exponent has this value, such as alpha_N=0.076.",
)
@click.option(
    "--drop", multiple=True, metavar="NAME", help="For assumptions: name of an assumption to ignore (repeatable)."
)
@prints_answer()
def command(
    what: str, minimise: str, grows: str, fixed: str, values: str, invert: str | None, **more: Any
) -> tuple[Answer, int]:
    """Print how the minimum of a sum, a loss or a risk scales, as powers of the quantities that grow.

    WHAT is one of three. (1) A sum of monomials, such as "N^(-2*beta/d) + N/n", with the quantities that grow in --in.
    If --min names quantities to minimise over, the command prints the powers of the minimum and of the optimum, and
    which terms balance; otherwise it prints where each term is the largest. Names in bases are quantities, names in
    exponents are positive parameters.

    (2) A shipped law (moe-transformer, chinchilla) or a TOML file with one: the command prints the exponents of every
    way to grow, and whether the published equations between them are true.

    (3) A set of assumptions (switch-cluster, or a TOML file with assume): the command prints the range of every
    exponent and the assumptions that bound it. The exit code is 1 if assumptions or constraints contradict each other.
    """
    from scaling_algebra.laws.assumptions import Windows
    from scaling_algebra.laws.law import LawAnswer, invert_exponent, law

    at: dict[str, Any] = parse_pairs("--at", values.split(",") if values.strip() else (), "beta=1,d=32")
    more |= {"minimise": parse_names(minimise), "grows": parse_names(grows), "fixed": parse_names(fixed)}
    a = law(what, at=at, **more)
    if invert is not None:
        if not isinstance(a, LawAnswer):
            raise UsageError(
                "--invert needs a law with named exponents; give a shipped law (scalecalc list), or a TOML file"
            )
        ((of, number),) = parse_pairs("--invert", [invert], "alpha_N=0.076").items()
        a = law(what, at=at | invert_exponent(a, of, number), **more)
    return a.document(), 1 if isinstance(a, Windows) and a.core else 0


def parse_names(text: str) -> list[str]:
    """Parses ``N, D`` to a list of names."""
    values = [x.strip() for x in text.split(",")] if text.strip() else []
    if wrong := [x for x in values if not (x.isascii() and x.isidentifier())]:
        raise UsageError(
            f"{wrong[0]!r} in {text!r} is not the name of a quantity; give names separated by commas, such as N,D"
        )
    return values
