"""``scalecalc explain --formula``: a size as a maximum of monomials, on every ray and at every parameter."""

from __future__ import annotations

from typing import Any

import click

from scaling_algebra.formulas.formula import formula
from scaling_algebra.spec.optimizer_reading import require_single

from .options import COMPLETED, OPTIMIZER, READOUT_INIT, Answer, format_examples, prints_answer, with_network

SYMPY = "sympy"
"""A format of this command only: the expression in sympy's syntax."""


@click.command(
    "explain --formula",
    epilog=format_examples(
        "scalecalc explain --formula h3.A2.2@1 --optimizer sgd",
        "scalecalc explain --formula psi.effective@1 --structure 'tied expert_in' --format latex",
        "scalecalc explain --formula h2@1 --architecture mlp --format sympy",
    ),
)
@click.argument("what", metavar="QUANTITY[@t]", **COMPLETED)
@OPTIMIZER
@with_network
@READOUT_INIT
@click.option(
    "--structure",
    default="",
    metavar="TEXT",
    help="Tensors that start at zero (zero), or at the same values for all experts (tied), such as 'tied expert_in' or "
    "'zero router, tied expert_out'.",
)
@click.option("--fixed", multiple=True, metavar="AXIS", help="An axis that does not grow, such as M (repeatable).")
@prints_answer({SYMPY: ""})
def command(
    what: str, optimizer: str, epsilon: str | None, readout_init: str | None, form: str | None, **more: Any
) -> Answer:
    """Print the size of a quantity after t updates (default 1) as a formula that is valid on every ray, at every
    parameter.

    It is a maximum of monomials in the axes N, N_e, M and in sigma (init std), lr, eps and multiplier of every tensor,
    with the mechanism behind each monomial and the rays on which it is the largest of those with its parameters. Every
    monomial that leads on some ray is printed; if one may be missing, a line says so.
    """
    rule = require_single(optimizer, "a formula")
    rule = rule if epsilon is None else rule.with_epsilon(epsilon)
    f = formula(what, rule, readout_init=readout_init or "maximal", **more)
    return str(f.expr) if form == SYMPY else f.document()
