"""``scalecalc law``: what a law says, at concrete models, inverted, and beside fitted exponents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from scaling_algebra.errors import UsageError
from scaling_algebra.files import read_text

from .balance import names, parameters
from .options import Answer, PathType, Verb, examples, printed

FIT = "fit"


def _question(arguments: Sequence[str]) -> str | None:
    """A sum of monomials has --in; a set of assumptions is one that ships, or a file with ``assume``."""
    from scaling_algebra.laws.feasible import SHIPPED

    if any(x == "--in" or x.startswith("--in=") for x in arguments):
        return "scaling_algebra.commands.balance"
    named = [x for x in arguments if x in SHIPPED or (x.endswith(".toml") and Path(x).is_file())]
    assumed = [
        x
        for x in named
        if x in SHIPPED or re.search(r"^\s*(\[\[)?assume\b", read_text(Path(x), "give a law or assumptions"), re.M)
    ]
    return "scaling_algebra.commands.feasible" if assumed else None


@click.command(
    "law",
    cls=Verb,
    chosen=_question,
    epilog=examples(
        "scalecalc law moe-transformer",
        "scalecalc law moe-transformer --axis compute --at beta=1,d=32 --check C=1,R=1/4",
        "scalecalc law moe-transformer --axis charts --count total",
        "scalecalc law moe-transformer --at d=32 --invert alpha_N=0.076",
        "scalecalc law mine.toml",
        "scalecalc law fit FITS.csv --against moe-transformer",
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in n',
        "scalecalc law switch-cluster --drop Groenwall",
    ),
)
@click.argument("name", metavar="NAME|FILE.toml|fit")
@click.argument("fits", required=False, type=PathType(), metavar="[FITS.csv]")
@click.option("--axis", metavar="NAME", help="One way to grow, in full: model, data, compute, experts, charts.")
@click.option("--rate", metavar="NAME", help="Of moe-transformer: fast (1/n), or slow (n^-1/2), which its proof gives.")
@click.option("--count", metavar="NAME", help="Of moe-transformer: the parameters that are estimated, active or total.")
@click.option("--choose", multiple=True, metavar="OPTION=CHOICE", help="Of a law with options of its own (repeatable).")
@click.option("--at", "values", default="", metavar="VALUES", help="Parameters in exponents: beta=1,d=32.")
@click.option("--invert", metavar="NAME=VALUE", help="The parameter that gives an exponent this value: alpha_N=0.076.")
@click.option("--check", "rates", metavar="RATES", help="With --axis: minimise numerically, e.g. n=1,R=1/4.")
@click.option("--against", default="moe-transformer", show_default=True, metavar="NAME", help="With fit: the law.")
@printed()
def command(
    name: str,
    fits: Path | None,
    axis: str | None,
    rate: str | None,
    count: str | None,
    choose: tuple[str, ...],
    values: str,
    invert: str | None,
    rates: str | None,
    against: str,
) -> tuple[Answer, int]:
    """What a law says: on every axis the optimum and the exponents, with the identities between them.

    NAME is a law that ships (moe-transformer, chinchilla) or a TOML file of your own: sum = "N**-alpha + N/n",
    minimise = ["N"], grows = ["n"]. `law fit FITS.csv` holds fitted exponents against the identities of a law.

    A SUM of monomials with --in NAMES: the powers of its minimum. switch-cluster, or a TOML file with assume = [...]:
    what assumptions between growing quantities allow. Both have options of their own, which --help says beside them.

    Exit code 1: an exponent, or the axis that is asked for, is below what nothing can be below, numbers disagree, or a
    fit refutes an identity. An axis without an exponent of its own is only reported among others.
    """
    from scaling_algebra.laws.expressions import exponent
    from scaling_algebra.laws.fits import compared, read_fits
    from scaling_algebra.laws.law import answer, inverted, law
    from scaling_algebra.laws.numeric import checked

    if (fits is not None) != (name == FIT):
        raise UsageError("a file of fits goes with fit: scalecalc law fit FITS.csv")
    choices = {option: choice for option, choice in (("rate", rate), ("count", count)) if choice is not None}
    for text in choose:
        option, equals, choice = text.partition("=")
        if not equals or option in choices:
            raise UsageError(f"cannot read {text!r}; give an option once with its choice, as rate=slow")
        choices[option] = choice
    a = answer(law(against if name == FIT else name), axis, choices, parameters(values))
    if rates is not None and len(a.axes) != 1:
        raise UsageError(f"--check is about one axis; give --axis, one of {', '.join(a.axes)}")
    if fits is not None:
        comparison = compared(a, read_fits(fits, list(a.exponents)))
        return comparison.document(), 0 if comparison.agrees else 1
    if invert is not None:
        of, equals, number = invert.partition("=")
        if not equals or len(names(of)) != 1:
            raise UsageError(f"cannot read {invert!r}; give an exponent and its value, as alpha_N=0.076")
        a = replace(a, inverted=(of.strip(), number.strip(), inverted(a, of.strip(), exponent(number))))
    if rates is not None:
        a = replace(a, axes={n: replace(b, checks=(checked(b, parameters(rates, "1")),)) for n, b in a.axes.items()})
    return a.document(), 0 if a.agrees else 1
