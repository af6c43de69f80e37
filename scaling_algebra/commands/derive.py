"""``scalecalc derive``: the parameterization, its reasons, and on request the proof that it is the only one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import Document
from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.obstacles import EACH, functions, obstacles, without
from scaling_algebra.proofs.presentation import proved
from scaling_algebra.proofs.prover import prove, settled
from scaling_algebra.proofs.smtlib import RESET, scripts_of
from scaling_algebra.solver.demands import Infeasible, NotFound
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.assumptions import listed
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.gauges import OWN
from scaling_algebra.spec.networks.library import MOE_BLOCK

from .options import (
    GAUGE,
    GIVEN,
    READOUT_INIT,
    SMTLIB,
    STRICT,
    WHERE,
    Answer,
    examples,
    network_of,
    parameterization,
    printed,
    tried,
    write,
)

CODES = {True: 0, False: 1, None: 3}
"""Exit code by whether a parameterization is the only one."""


@click.command(
    "derive",
    epilog=examples(
        "scalecalc derive --regime III --optimizer adam",
        "scalecalc derive --ray N=1,N_e=1/2,M=3/2 --optimizer sgd --parameterization mup -o mup.tex",
        "scalecalc derive --regime II --optimizer sgd --parameterization mssp --prove",
        "scalecalc derive --regime III --parameterization mup --given router.init=N^-1/2 --given readout.init=0",
        "scalecalc derive --architecture moe-rmsnorm --regime I --optimizer sgd --without each",
    ),
)
@WHERE
@network_of
@parameterization(default=None, show_default=False, help="Parameterization; without it muP and MSSP, both.")
@READOUT_INIT
@GIVEN
@GAUGE
@click.option("--prove", "proving", is_flag=True, help="Prove that it is the only one, or that none exists.")
@click.option(
    "--without",
    "left_out",
    multiple=True,
    metavar="NAME",
    help=f"Leave a function out: its value is its argument (repeatable); '{EACH}': every one by itself.",
)
@SMTLIB
@STRICT
@printed()
def command(
    parameterization: str | None,
    gauge: str,
    strict: bool,
    left_out: tuple[str, ...],
    proving: bool,
    smtlib: Path | None,
    **where: Any,
) -> Answer | tuple[Answer, int]:
    """Derive init std, learning rate and epsilon of every tensor, with the reason for each number.

    Where no parameterization is found, the exit code is 1 if a proof shows that none exists, else 3.
    --given holds exponents, derives the others, and names every desideratum that does not hold.
    --gauge prints the same parameterization with multipliers; --given is meant without multipliers.
    --without derives another network, without a function: it shows which function makes an answer undecided.
    --strict: exit code 3 where the answer assumes more than counting powers (see the notes, "assumes").
    --prove: exit code 0 if every parameterization is the only one, 1 if not, 3 if that is undecided.
    """
    if smtlib and not proving:
        raise UsageError("--smtlib needs --prove")
    if strict and proving:
        raise UsageError("--strict is about what is derived; leave out --prove")
    if EACH in left_out and (proving or strict or gauge != OWN or len(left_out) > 1):
        others = "--prove, --strict, --gauge and other names"
        raise UsageError(f"--without {EACH} is a search of its own; leave out {others}")
    tried(smtlib, "text", "--smtlib")
    if EACH not in left_out:
        where["network"] = without(where["network"], left_out)
    both = ("mup", "mssp") if where["network"] == MOE_BLOCK else ("mup",)
    regime, optimizer = where.pop("regime"), where.pop("optimizer")
    names = [parameterization] if parameterization else both
    configurations = [Configuration.of(regime, optimizer, name, **where) for name in names]
    if EACH in left_out:
        return [obstacles(configuration).document() for configuration in configurations]
    if proving:
        return _prove(configurations, gauge, smtlib)
    codes, documents = [0], []
    for configuration in configurations:
        try:
            d = derive(configuration).in_gauge(gauge)
        except NotFound as error:
            code, document = missing(error)
            codes.append(code)
            documents.append(document)
            continue
        if strict and d.assumes:
            why = f"{configuration}: UNDECIDED, since it assumes {listed(d.assumes)}"
            click.echo(f"scalecalc: {why}", err=True)
            codes.append(3)
            documents.append(_record(configuration, None, "UNDECIDED", why))
        else:
            documents.append(d.document())
    return documents, 1 if 1 in codes else max(codes)


def missing(error: NotFound) -> tuple[int, Document]:
    """Says on stderr whether what was not found is proved not to exist: exit code 1, else 3; and a record of that."""
    verdict, line = settled(error)
    c, decided = error.configuration, verdict == "impossible"
    hints = []
    if c.network == MOE_BLOCK and c.ray["K"] == c.ray["M"] and c.ray["N"] and not c.given:
        hints.append(f"phases --parameterization {c.parameterization.name} --near RATES names rays that have one")
    if not decided and functions(c.network):
        hints.append(f"derive --without {EACH} names functions that stand in the way")
    click.echo("; ".join([f"scalecalc: {line}", *hints]), err=True)
    return (1 if decided else 3), _record(c, False if decided else None, verdict.upper(), line)


def _record(configuration: Configuration, unique: bool | None, verdict: str, why: str) -> Document:
    return Document((), {**configuration.as_json(), "unique": unique, "verdict": verdict, "why": why})


def _prove(configurations: list[Configuration], gauge: str, file: Path | None) -> tuple[Answer, int]:
    """Derivations with their proofs; the proof alone where nothing was derived."""
    codes, documents, scripts = [0], [], []
    for configuration in configurations:
        proof = prove(configuration)
        try:
            derived = replace(derive(configuration).in_gauge(gauge), unique=proof.unique)
        except Infeasible:
            derived = None
        standard = configuration.given or configuration.readout_init == configuration.parameterization.readout_init
        contradicts = proof.unique if derived is None or derived.unmet else not proof.agrees(derived.scaling)
        if derived is not None and standard and proof.unique is not None and contradicts:
            name = configuration.parameterization.name
            raise Infeasible(f"{name}: the derived parameterization is not the only one that the proof leaves")
        codes.append(CODES[proof.unique])
        scripts.append(scripts_of(proof))
        documents.append(proved(proof, derived))
    if file is not None:
        if systems := RESET.join(filter(None, scripts)):
            write(file, systems)
        else:
            click.echo("scalecalc: nothing was decided, so there is nothing to write to the file", err=True)
    return documents, 1 if 1 in codes else max(codes)
