"""``scalecalc feasible``: assumptions between growing quantities, and what they allow."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.feasible.feasible import feasible
from scaling_algebra.laws.feasible.files import SHIPPED, read_assumptions, shipped
from scaling_algebra.laws.feasible.presentation import feasible as document
from scaling_algebra.laws.monomials import Monomial

from .options import Place, emit, examples, printed


@click.command(
    "feasible",
    epilog=examples(
        "scalecalc feasible switch-cluster",
        "scalecalc feasible switch-cluster --drop Groenwall --set 'K=d**kappa'",
        "scalecalc feasible switch-cluster --set 'sigma_0=d**(-1/4)' --onset K=4,M=8",
        "scalecalc feasible assumptions.toml",
    ),
)
@click.argument("what", metavar="NAME|FILE.toml", type=Place())
@click.option(
    "--set", "laws", multiple=True, metavar="Q=LAW", help="A growth law put in, e.g. K=d**kappa (repeatable)."
)
@click.option("--drop", multiple=True, metavar="NAME", help="Leave out an assumption (repeatable).")
@click.option("--onset", metavar="Q=X,...", help="From which size on each inequality holds, at these values.")
@printed
def command(
    what: Path, laws: tuple[str, ...], drop: tuple[str, ...], onset: str | None, form: str | None, output: Path | None
) -> int:
    """Windows of the exponents that assumptions allow, and the assumption that binds each end; or a contradiction.

    Assumptions are relations (<<, <=, =) between monomials in quantities that are powers of one that grows; constants
    and powers of logarithms do not count. Exit code 1: they contradict each other, and a smallest set is named.
    """
    from scaling_algebra.laws.feasible.onset import onsets, value

    system = shipped(str(what)) if str(what) in SHIPPED or not _file(what) else read_assumptions(what)
    given: dict[str, Monomial] = {}
    for text in laws:
        name, sign, law = text.partition("=")
        if not sign or name.strip() in given:
            raise UsageError(f"--set is {text!r}; give one law for each quantity, as K=d**kappa")
        given[name.strip()] = monomial(law)
    found = feasible(system, given, drop)
    values = [value(part) for part in onset.split(",")] if onset is not None else []
    if len(dict(values)) < len(values):
        raise UsageError(f"--onset is {onset!r}; give each quantity once")
    emit(document(found, onsets(found, dict(values)) if onset is not None else ()), form, output)
    return 1 if found.core else 0


def _file(path: Path) -> bool:
    return path.suffix == ".toml" or len(path.parts) > 1 or path.exists()
