"""``scalecalc law`` of assumptions: assumptions between growing quantities, and what they allow."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.feasible import assumptions, feasible
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.limits import real

from .options import Answer, PathType, examples, printed


@click.command(
    "law",
    epilog=examples(
        "scalecalc law switch-cluster",
        "scalecalc law switch-cluster --drop Groenwall --set 'K=d**kappa'",
        "scalecalc law switch-cluster --set 'sigma_0=d**(-1/4)' --onset K=4,M=8",
        "scalecalc law assumptions.toml",
    ),
)
@click.argument("what", metavar="NAME|FILE.toml", type=PathType())
@click.option(
    "--set", "laws", multiple=True, metavar="Q=LAW", help="A growth law put in, e.g. K=d**kappa (repeatable)."
)
@click.option("--drop", multiple=True, metavar="NAME", help="Leave out an assumption (repeatable).")
@click.option("--onset", metavar="Q=X,...", help="From which size on each inequality holds, at these values.")
@printed()
def command(what: Path, laws: tuple[str, ...], drop: tuple[str, ...], onset: str | None) -> tuple[Answer, int]:
    """Windows of the exponents that assumptions allow, and the assumption that binds each end; or a contradiction.

    Assumptions are relations (<<, <=, =) between monomials in quantities that are powers of one that grows; constants
    and powers of logarithms do not count. Exit code 1: they contradict each other, and a smallest set is named.
    """
    given: dict[str, Monomial] = {}
    for text in laws:
        name, sign, law = text.partition("=")
        if not sign or name.strip() in given:
            raise UsageError(f"--set is {text!r}; give one law for each quantity, as K=d**kappa")
        given[name.strip()] = monomial(law)
    f = feasible(assumptions(str(what)), given, drop)
    return f.document(() if onset is None else f.onsets(_values(onset))), 1 if f.core else 0


def _values(text: str) -> dict[str, float]:
    """``K=4,M=8``."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            value = real(number)
        except (ValueError, OverflowError):
            raise UsageError(f"the value {part!r} is no number; write for example K=4") from None
        if not 0 < value < 1e30 or name.strip() in values:
            raise UsageError(f"--onset has {part!r}; give each quantity once, with a positive number below 1e30")
        values[name.strip()] = value
    return values
