"""``scalecalc derive``: prints a parameterization and its reasons, and on request proves that it is the only one.

Modules for proofs and obstacles are imported only when needed; most calls need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import Document, format_of
from scaling_algebra.documents.blocks import Heading, literal
from scaling_algebra.errors import Inconclusive, UsageError
from scaling_algebra.solver.demands import Infeasible, NotFound, provable
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.solver.presentation import add_level, alike, brief, multipliers, table
from scaling_algebra.spec.configuration import EACH, Configuration
from scaling_algebra.spec.gauges import OWN
from scaling_algebra.spec.glossary import join_assumptions
from scaling_algebra.spec.level import CERTIFIED
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.networks.sums import experts

from .options import (
    GAUGE,
    GIVEN,
    READOUT_INIT,
    SMTLIB,
    STRICT,
    UNASSUMING,
    WHERE,
    Answer,
    check_output,
    combine_options,
    format_examples,
    parameterization_option,
    prints_answer,
    with_network,
    write_text,
)

TERMINAL = ""
"""The format of text on a terminal, which is brief; every other format is complete."""
MSSP = "for MSSP instead of muP: --parameterization mssp"
PROOF = "to prove that this is the only parameterization: --prove"
OPEN = "to search longer: --effort; to reject numbers that are not certified: --strict"
WAYS = f"to find the functions that prevent a certificate: --without {EACH}; "
TAILS = (
    "to assume that the logits of a softmax stay bounded: write bounded_softmax (topk_bounded_softmax) in the equations"
)
MORE = (
    "reasons: --why; exponents b, c, d: --exponents; every signal: scalecalc signals",
    "numbers of a model: scalecalc recipe --base SIZES --target SIZES --lr NUMBER",
)
"""Lines about further commands and options, printed below an answer."""
EXIT_CODES = {True: 0, False: 1, None: 3}
"""Exit code by whether a parameterization is the only one; None if this is undecided."""


@click.command(
    "derive",
    epilog=format_examples(
        "scalecalc derive --regime III --optimizer adam",
        "scalecalc derive --ray N=1,N_e=1/2,M=3/2 --optimizer sgd --parameterization mup -o mup.tex",
        "scalecalc derive --regime II --optimizer sgd --parameterization mssp --prove",
        "scalecalc derive --regime III --parameterization mup --given router.init=N^-1/2 --given readout.init=0",
        "scalecalc derive --architecture moe-rmsnorm --regime I --optimizer sgd --without each",
        "scalecalc derive --regime III --optimizer adam --format latex --table-only",
    ),
)
@WHERE
@with_network
@parameterization_option(
    default=None, show_default=False, help="Parameterization.  [default: mup; for the MoE block also mssp]"
)
@READOUT_INIT
@GIVEN
@GAUGE
@click.option("--why", is_flag=True, help="Also print the reason for each number, and the meaning of the assumptions.")
@click.option(
    "--exponents",
    is_flag=True,
    help="Also print the exponents b, c, d: init std n^-b, learning rate n^-c, epsilon n^-d.",
)
@click.option(
    "--prove",
    "proving",
    is_flag=True,
    help="Prove that this is the only parameterization that meets the desiderata, or that none exists.",
)
@click.option(
    "--without",
    "left_out",
    multiple=True,
    metavar="NAME",
    help=f"Derive as if a function were the identity: --without phi (repeatable). --without {EACH} does so for every "
    "function in turn and prints what changes.",
)
@SMTLIB
@combine_options(STRICT, UNASSUMING)
@click.option(
    "--effort",
    is_flag=True,
    help="Continue the search if a desideratum is undecided, with larger budgets: minutes instead of seconds.",
)
@click.option(
    "--table-only",
    "alone",
    is_flag=True,
    help="Print only the table and the multipliers in the terminal's layout: muP, with a column for what MSSP changes.",
)
@prints_answer()
def command(
    parameterization: str | None,
    gauge: str,
    why: bool,
    exponents: bool,
    proving: bool,
    left_out: tuple[str, ...],
    smtlib: Path | None,
    strict: bool,
    bare: bool,
    alone: bool,
    **where: Any,
) -> Answer | tuple[Answer, int]:
    """Derive init std, learning rate and epsilon of every tensor.

    Output to a file, and in every format but text, is complete: exponents, reasons, rejected structures, and MSSP in a
    table of its own below muP. The first line says how much is certified: everything, or for how many demands stability
    and learning are shown (exit code 3). If no parameterization is found, the exit code is 1 if a proof shows that none
    exists, else 3. --given fixes exponents, derives the others, and names every desideratum that then fails; the exit
    code is 1 if one fails. Exponents given with --given refer to the form without multipliers, even if --gauge prints
    one with multipliers. --without derives the network with a function removed, which shows whether that function makes
    an answer undecided. With --prove the exit code is 0 if every parameterization is unique, 1 if one is not, 3 if this
    is undecided.
    """
    each = EACH in left_out
    if smtlib and not proving:
        raise UsageError("--smtlib needs --prove")
    if (strict or bare) and proving:
        raise UsageError("--strict and --no-assumptions have no effect with --prove; leave out one of them")
    if proving and (unread := where["network"].unread):
        raise UsageError(
            f"{unread}; this module is known by the shapes of its parameters only, and --prove needs its equations"
        )
    if each and (proving or strict or bare or alone or gauge != OWN or len(left_out) > 1):
        others = "--prove, --strict, --no-assumptions, --table-only, --gauge and other names"
        raise UsageError(f"--without {EACH} derives once per function and takes no {others}; leave them out")
    if alone and proving:
        raise UsageError("--table-only does not print proofs; leave out --prove")
    check_output(smtlib, "text", "--smtlib")
    form = _choose_format()
    if alone and form == "json":
        raise UsageError("--format json always has all entries; leave out --table-only")
    if left_out and not each:
        from scaling_algebra.explanations.obstacles import without

        where["network"] = without(where["network"], left_out)
    both = ("mup", "mssp") if where["network"] == MOE_BLOCK else ("mup",)
    regime, optimizer = where.pop("regime"), where.pop("optimizer")
    names = [parameterization] if parameterization else both
    configurations = [Configuration.of(regime, optimizer, name, **where) for name in names]
    if each:
        from scaling_algebra.explanations.obstacles import obstacles

        return [obstacles(configuration).document() for configuration in configurations]
    if proving:
        above = partial(brief, more=MORE, why=why, exponents=exponents) if form == TERMINAL else None
        return _prove(configurations, gauge, smtlib, above)
    found, codes = _derive(configurations, gauge, strict or bare, bare)
    ds = [x for x in found if isinstance(x, Derivation)]
    groups = [ds] if all(alike(ds[0], d) for d in ds[1:]) else [[d] for d in ds]
    answer = [x.document() if isinstance(x, Derivation) else x for x in found]
    if alone:
        several = [*filter(None, groups)][1:]
        heads = [(Heading(literal(group[0].about)),) if several else () for group in groups]
        for d in (d for d in ds if d.level is not None and d.level.code):
            click.echo(f"scalecalc: {add_level(d.about, d.level)}", err=True)
        parts = [(*head, table(x, exponents), *multipliers(x)) for head, x in zip(heads, groups, strict=True) if x]
        answer = [Document(blocks, {}) for blocks in parts]
    elif form == TERMINAL:
        c = configurations[0]
        more = MORE if c.network.unread or provable(c.network, c.ray, c.optimizer) else (PROOF, *MORE)
        asks = not parameterization and len(both) == 1 and experts(c.network)
        more = (MSSP, *more) if asks else more
        more = (*more, *_list_map_cells([d.configuration for d in ds])) if where["ray"] else more
        left = [x for d in ds if d.level is not None for x in d.level.open]
        tails = [TAILS] if any("bounded_softmax" in x.why for x in left) else []
        more = (_suggest_without(c) + OPEN, *tails, *more) if left else more
        answer = [brief(group, more, why, exponents) for group in groups if group]
    return answer, 1 if 1 in codes else max(codes)


def _suggest_without(configuration: Configuration) -> str:
    """Returns the hint about ``--without each``; empty if the network has no functions."""
    from scaling_algebra.explanations.obstacles import functions

    return WAYS if functions(configuration.network) else ""


def _list_map_cells(configurations: Sequence[Configuration]) -> list[str]:
    """Returns a line for each shipped map on which a configuration's ray lies: its cell, and the command that prints
    the map."""
    from scaling_algebra.page.maps import locate_ray

    asked = {f"--parameterization {c.parameterization.name} --optimizer {c.optimizer.name}": c for c in configurations}
    return [
        f"position on the map of rays (scalecalc rays {words}): {where}"
        for words, c in asked.items()
        if (where := locate_ray(c))
    ]


def _choose_format() -> str:
    """Returns the format that --format or the output file asks for; ``TERMINAL`` if the answer is printed as text."""
    asked = click.get_current_context().params
    form = asked["form"] or (format_of(asked["output"], "text") if asked["output"] else TERMINAL)
    return TERMINAL if form == "text" and asked["output"] is None else str(form)


def _derive(
    configurations: Sequence[Configuration], gauge: str, strict: bool, bare: bool
) -> tuple[list[Derivation | Document], list[int]]:
    """Derives every configuration.

    Args:
        configurations: the configurations.
        gauge: the convention for multipliers in which powers are printed, one of ``GAUGES``.
        strict: whether to print numbers only if all are certified.
        bare: whether to print numbers only if they need no assumption beyond power counting.

    Returns:
        The derivations, with a JSON record in place of each that is missing or refused, and the exit codes.
    """
    found, codes = list[Derivation | Document](), [0]
    for configuration in configurations:
        try:
            d = _with_either_epsilon(configuration).in_gauge(gauge)
        except NotFound as error:
            code, document = report_missing(error)
            codes.append(code)
            found.append(document)
            continue
        if strict and d.network.unread:
            raise UsageError(d.network.unread)
        left = d.level.lines if d.level is not None else ()
        codes.append(0 if d.level is None else d.level.code)
        if (strict and left) or (bare and d.assumes):
            why = left[0] if left else f"because it assumes {join_assumptions(d.assumes)}"
            codes.append(3)
            found.append(_report_undecided(configuration, why))
        else:
            found.append(d)
    return found, codes


def _with_either_epsilon(configuration: Configuration) -> Derivation:
    """Derives a configuration; if there is no parameterization and --epsilon is not given, tries a negligible epsilon.

    Raises:
        NotFound: there is no parameterization with either epsilon.
    """
    try:
        return derive(configuration)
    except NotFound as error:
        chosen = click.get_current_context().params["epsilon"] is not None
        if chosen or configuration.optimizer.regime != "derived" or error.everywhere:
            raise
        try:
            d = derive(configuration.but(epsilon="negligible"))
        except NotFound:
            raise error from None
        found = (
            "the numbers below have --epsilon negligible and miss it, too"
            if d.level is not None and d.level.failed
            else "the numbers below have --epsilon negligible"
        )
        click.echo(f"scalecalc: no parameterization with --epsilon derived: {error.failure}; {found}", err=True)
        return d


def report_missing(error: NotFound) -> tuple[int, Document]:
    """Says on stderr why no parameterization was found, and whether it is proved that none exists.

    Returns:
        The exit code, 1 if this is proved and else 3, and a record.
    """
    from scaling_algebra.explanations.obstacles import functions
    from scaling_algebra.proofs.prover import Uniqueness, prove_missing

    verdict, line = prove_missing(error)
    c, decided = error.configuration, verdict is Uniqueness.IMPOSSIBLE
    hint = f"; derive --without {EACH} names the functions that prevent an answer" if functions(c.network) else ""
    hint += "; --effort searches longer" if error.undecided and not c.effort else ""
    click.echo(f"scalecalc: {line}{'' if decided else hint}", err=True)
    return (1 if decided else 3), _make_record(c, False if decided else None, verdict.upper(), line)


def _report_undecided(configuration: Configuration, why: str) -> Document:
    """Says on stderr that it is undecided whether a parameterization exists or is the only one, and why; returns this
    as a JSON record.
    """
    line = f"{configuration}: UNDECIDED, {why}"
    click.echo(f"scalecalc: {line}", err=True)
    return _make_record(configuration, None, "UNDECIDED", line)


def _make_record(configuration: Configuration, unique: bool | None, verdict: str, why: str) -> Document:
    """Makes the JSON record of a configuration for which no parameterization was derived.

    Args:
        configuration: the configuration.
        unique: the answer to whether the parameterization is the only one; None if this is undecided.
        verdict: the verdict in one word or two.
        why: the reason.
    """
    return Document((), {**configuration.as_json(), "unique": unique, "verdict": verdict, "why": why})


def _prove(
    configurations: Sequence[Configuration],
    gauge: str,
    file: Path | None,
    above: Callable[[Sequence[Derivation]], Document] | None,
) -> tuple[Answer, int]:
    """Proves every configuration, and prints each derivation with its proof.

    Args:
        configurations: the configurations.
        gauge: the convention for multipliers in which powers are printed, one of ``GAUGES``.
        file: file to which the unsatisfiable systems of constraints behind the proofs are written as SMT-LIB; None
            for none.
        above: prints derivations in brief; None if they are printed in full.

    Returns:
        The answer and the exit code.
    """
    from scaling_algebra.proofs.presentation import render_proved
    from scaling_algebra.proofs.prover import prove
    from scaling_algebra.proofs.smtlib import RESET, scripts_of

    codes, documents, scripts = [0], [], []
    for configuration in configurations:
        try:
            proof = prove(configuration)
        except Inconclusive as why:
            codes.append(3)
            documents.append(_report_undecided(configuration, str(why)))
            continue
        try:
            derived = replace(derive(configuration).in_gauge(gauge), unique=proof.unique)
        except Infeasible:
            derived = None
        if derived is not None and derived.level is not None and derived.level.open and proof.unique is not None:
            derived = replace(derived, level=CERTIFIED) if proof.unique and proof.agrees(derived.scaling) else None
        usual = configuration.parameterization.starts(configuration.network)
        standard = configuration.given or configuration.readout_init == usual
        contradicts = proof.unique if derived is None or derived.unmet else not proof.agrees(derived.scaling)
        if derived is not None and standard and proof.unique is not None and contradicts:
            name = configuration.parameterization.name
            raise Infeasible(f"{name}: the derivation and the proof of uniqueness disagree (please report)")
        codes.append(EXIT_CODES[proof.unique])
        scripts.append(scripts_of(proof))
        shown = None if derived is None else above([derived]) if above else derived.document()
        documents.append(render_proved(proof, shown))
    if file is not None:
        if systems := RESET.join(filter(None, scripts)):
            write_text(file, systems)
        else:
            click.echo("scalecalc: --smtlib: no proof was found, so no file is written", err=True)
    return documents, 1 if 1 in codes else max(codes)
