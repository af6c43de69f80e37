"""``scalecalc rays --prove``: what is proved for whole cones of rays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from scaling_algebra.all_rays.theorems import theorems
from scaling_algebra.spec.parameterizations import DERIVED

from .derive import EXIT_CODES
from .options import (
    OPTIMIZER,
    SMTLIB,
    Answer,
    check_output,
    format_examples,
    parameterization_option,
    prints_answer,
    with_network,
    write_text,
)


@click.command(
    "rays --prove",
    epilog=format_examples(
        "scalecalc rays --prove --parameterization mup --optimizer sgd --only 'B exists' --only cover",
        "scalecalc rays --prove --parameterization mssp --optimizer sgd --smtlib mssp.smt2",
        "scalecalc rays --prove --architecture bottleneck --parameterization mup --optimizer adam",
    ),
)
@parameterization_option(DERIVED)
@OPTIMIZER
@with_network
@click.option("--only", multiple=True, metavar="NAME", help="Prove only this theorem, such as 'B unique' (repeatable).")
@SMTLIB
@prints_answer()
def command(smtlib: Path | None, **question: Any) -> tuple[Answer, int]:
    """Prove for whole cones of rays that a network's parameterization exists, that it is the only one, or that there is
    none.

    All theorems of one parameterization of the MoE block take minutes. The exit code is 0 if every theorem is proved, 1
    if one is refuted, 3 if one is undecided, or if proofs do not support the network or the optimizer.
    """
    check_output(smtlib, "text", "--smtlib")
    proofs = theorems(**question)
    if smtlib is not None:
        if scripts := proofs.scripts():
            write_text(smtlib, scripts)
        else:
            click.echo(
                "scalecalc: --smtlib: none of these theorems is proved by an unsatisfiable system, so no file is "
                "written",
                err=True,
            )
    return proofs.document(), EXIT_CODES[proofs.proved]
