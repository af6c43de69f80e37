"""``scalecalc law SUM``: the minimum of a sum of monomials, in exact exponents."""

from __future__ import annotations

from dataclasses import replace

import click

from scaling_algebra.errors import UsageError

from .options import Answer, examples, printed


@click.command(
    "law",
    epilog=examples(
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in n',
        'scalecalc law "N**(-2*beta/d) + N/n" --min N --in C --constraint "C = n*N" --at beta=1,d=32 --check C',
        'scalecalc law "N**-p + N/n + R/n" --in N,n,R',
    ),
)
@click.argument("expression", metavar="SUM")
@click.option("--min", "minimise", default="", metavar="NAMES", help="Quantities to choose, e.g. N or N,D.")
@click.option("--in", "growing", required=True, metavar="NAMES", help="Quantities that grow: the answer's powers.")
@click.option(
    "--constraint", "constraints", multiple=True, metavar="RELATION", help='"C = n*N", "k <= M" (may be repeated).'
)
@click.option("--fixed", default="", metavar="NAMES", help="Positive constants, kept in prefactors.")
@click.option("--at", "values", default="", metavar="VALUES", help="Parameters in exponents: beta=1,d=32.")
@click.option("--reach", metavar="MONOMIAL", help="Also the size at which the minimum equals this, e.g. eps**2.")
@click.option("--check", "rates", metavar="RATES", help="Minimise numerically over twelve decades, e.g. n=1,R=1/2.")
@printed()
def command(
    expression: str,
    minimise: str,
    growing: str,
    constraints: tuple[str, ...],
    fixed: str,
    values: str,
    reach: str | None,
    rates: str | None,
) -> tuple[Answer, int]:
    """Minimise a SUM of monomials exactly: the powers of the minimum and of where it lies, and which terms balance.

    Names in bases are quantities, names in exponents positive parameters. Without --min: which term is the largest
    where. What a sum cannot decide by itself is said in cells.
    """
    from scaling_algebra.laws.balance import balance
    from scaling_algebra.laws.numeric import checked

    b = balance(expression, names(minimise), names(growing), constraints, names(fixed), parameters(values))
    checks = () if rates is None else (checked(b, parameters(rates, "1")),)
    b = replace(b, reach=reach, checks=checks)
    return b.document(), 0 if b.agrees else 1


def names(text: str) -> list[str]:
    """``N, D`` as a list."""
    values = [x.strip() for x in text.split(",")] if text.strip() else []
    if wrong := [x for x in values if not (x.isascii() and x.isidentifier())]:
        raise UsageError(f"{wrong[0]!r} in {text!r} is no name of a quantity; give names with commas between, as N,D")
    return values


def parameters(text: str, default: str = "") -> dict[str, object]:
    """``beta=1, d=32`` as exact numbers by name; without ``=`` the default."""
    from scaling_algebra.laws.expressions import exponent

    values: dict[str, object] = {}
    for part in text.split(",") if text.strip() else []:
        name, equals, value = part.partition("=")
        (name,) = names(name) or [""]
        if name in values or not name or not (value.strip() or (default and not equals)):
            raise UsageError(f"cannot read {part!r} in {text!r}; give each name once with its value, as beta=1,d=32")
        number = exponent(value if equals else default)
        if not (number.is_Rational and number > 0):
            raise UsageError(f"{name} is {value.strip()}; give a positive number")
        values[name] = number
    return values
