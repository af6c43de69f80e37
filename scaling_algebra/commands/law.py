"""``scalecalc law``: exponents of growing quantities, by a sum, a law or assumptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from scaling_algebra.arguments import pairs
from scaling_algebra.errors import UsageError

from .options import Answer, examples, printed


@click.command(
    "law",
    epilog=examples(
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in n',
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in C --constraint "C = n*N" --at beta=1,d=32 --check C',
        "scalecalc law moe-transformer --axis compute --at beta=1,d=32 --check C=1,R=1/4",
        "scalecalc law moe-transformer --at d=32 --invert alpha_N=0.076",
        "scalecalc law switch-cluster --drop Groenwall --set 'K=d**kappa'",
        "scalecalc law mine.toml",
    ),
)
@click.argument("what", metavar="SUM|NAME|FILE.toml")
@click.option("--min", "minimise", default="", metavar="NAMES", help="Of a sum: quantities to choose, e.g. N or N,D.")
@click.option("--in", "grows", default="", metavar="NAMES", help="Of a sum: what grows, the answer's powers.")
@click.option(
    "--constraint", "constraints", multiple=True, metavar="RELATION", help='"C = n*N", "k <= M" (repeatable).'
)
@click.option("--fixed", default="", metavar="NAMES", help="Positive constants, kept in prefactors.")
@click.option("--at", "values", default="", metavar="VALUES", help="Parameters in exponents, constants: beta=1,d=32.")
@click.option("--reach", metavar="MONOMIAL", help="Also the size at which the minimum equals this: 0.01, eps**2.")
@click.option("--check", "rates", metavar="RATES", help="Minimise numerically over twelve decades, e.g. n=1,R=1/2.")
@click.option("--axis", metavar="NAME", help="Of a law: one way to grow, in full.")
@click.option("--choose", multiple=True, metavar="OPTION=CHOICE", help="Of a law with options: rate=slow (repeatable).")
@click.option("--invert", metavar="NAME=VALUE", help="Of a law: the parameter at which an exponent has this value.")
@click.option("--set", "given", multiple=True, metavar="Q=LAW", help="Into assumptions: K=d**kappa (repeatable).")
@click.option("--drop", multiple=True, metavar="NAME", help="Leave out an assumption (repeatable).")
@printed()
def command(
    what: str,
    minimise: str,
    grows: str,
    fixed: str,
    values: str,
    rates: str | None,
    choose: tuple[str, ...],
    invert: str | None,
    given: tuple[str, ...],
    **more: Any,
) -> tuple[Answer, int]:
    """The powers that growing quantities have.

    A SUM of monomials with --in: the powers of its minimum, of where it lies, and which terms balance. Names in bases
    are quantities, names in exponents positive parameters. Without --min: which term is the largest where.

    A law that ships (moe-transformer, chinchilla) or a TOML file: every axis with its exponents and identities.

    Assumptions (switch-cluster, or a TOML file with assume): the window of every exponent, and what binds it. Exit code
    1: assumptions or constraints that contradict each other, or numbers that disagree.
    """
    from scaling_algebra.laws.balance import Balance
    from scaling_algebra.laws.expressions import exponent
    from scaling_algebra.laws.law import LawAnswer, inverted, law
    from scaling_algebra.laws.numeric import checked

    more |= {"choose": pairs("--choose", choose, "rate=slow"), "given": pairs("--set", given, "K=d**kappa")}
    a = law(what, names(minimise), names(grows), fixed=names(fixed), at=parameters("--at", values), **more)
    if rates is not None:
        ray = parameters("--check", rates, "1")
        if isinstance(a, Balance):
            a = replace(a, checks=(checked(a, ray),))
        elif isinstance(a, LawAnswer) and len(a.axes) == 1:
            a = replace(a, axes={n: replace(b, checks=(checked(b, ray),)) for n, b in a.axes.items()})
        else:
            raise UsageError("--check is about one minimum; give a sum, or a law with --axis")
    if invert is not None:
        if not isinstance(a, LawAnswer):
            raise UsageError("--invert is about a law; give one that ships, or a TOML file with exponents")
        ((of, number),) = pairs("--invert", [invert], "alpha_N=0.076").items()
        a = replace(a, inverted=(of, number, inverted(a, of, exponent(number))))
    return a.document(), 0 if a.agrees else 1


def names(text: str) -> list[str]:
    """``N, D`` as a list."""
    values = [x.strip() for x in text.split(",")] if text.strip() else []
    if wrong := [x for x in values if not (x.isascii() and x.isidentifier())]:
        raise UsageError(f"{wrong[0]!r} in {text!r} is no name of a quantity; give names with commas between, as N,D")
    return values


def parameters(option: str, text: str, default: str = "") -> dict[str, object]:
    """``beta=1, d=32`` as exact numbers by name; without ``=`` the default."""
    from scaling_algebra.laws.expressions import exponent

    values: dict[str, object] = {}
    for name, value in pairs(option, text.split(",") if text.strip() else (), "beta=1,d=32", default).items():
        number = exponent(value)
        if not (number.is_Rational and number > 0):
            raise UsageError(f"{name} is {value}; give a positive number")
        values |= dict.fromkeys(names(name), number)
    return values
