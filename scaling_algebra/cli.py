"""The command line: a thin layer over ``api`` that prints results and turns errors into one line and an exit code.

Exit codes: 0 agrees or done, 1 refuted, stale or unsatisfiable, 2 wrong usage, 3 inconclusive.
``table``, ``audit``, ``verify`` and ``transfer`` are loaded only when called.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import FORMATS, Document, format_of, render
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.demands import Infeasible, NotFound
from scaling_algebra.solver.derivation import derive, signals
from scaling_algebra.spec.axes import AXES, REGIMES
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS

_LAZY = {
    "table": ("scaling_algebra.tables.commands.table", "table"),
    "audit": ("scaling_algebra.tables.commands.audit", "command"),
    "verify": ("scaling_algebra.verify.commands.verify", "verify"),
    "report": ("scaling_algebra.verify.commands.verify", "report"),
    "experiment": ("scaling_algebra.verify.commands.experiment", "command"),
    "transfer": ("scaling_algebra.verify.commands.transfer", "command"),
}
_HELP = {
    "experiment": "Run the experiments of the papers: routers, Adam's epsilon, clustered data.",
    "audit": "Hold every published table against the engine, cell by cell.",
    "report": "Merge what `verify -o DIR` measured, by one or several processes, into one report.",
    "table": "Print a published table, derived: markdown, latex, csv, json or html.",
    "transfer": "Sweep the learning rate at several widths and say whether the optimum stays where it is.",
    "verify": "Train real torch models at several sizes and compare measured exponents with predicted ones.",
}


class Commands(click.Group):
    """Loads the commands of ``_LAZY`` on demand and prints every user error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_LAZY]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _LAZY:
            module, attribute = _LAZY[name]
            try:
                command: click.Command = getattr(importlib.import_module(module), attribute)
            except ModuleNotFoundError as missing:
                if (missing.name or "").startswith("scaling_algebra"):
                    raise
                raise UsageError(
                    f"{name} needs {missing.name}; install it with: pip install 'scalecalc[verify]'"
                ) from None
            return command
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = None if name in _LAZY else self.get_command(ctx, name)
            rows.append((name, _HELP[name] if command is None else command.get_short_help_str(90)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise UsageError(f"no command named {args[0]!r}{hint} known: {', '.join(known)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = 2
        except click.ClickException as error:
            _fail(error.format_message())
            code = 2
        except UsageError as error:
            _fail(str(error))
            code = 2
        except NotFound as error:
            code = _missing(error)[0]
        except Infeasible as error:
            _fail(str(error))
            code = 1
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted")
            code = 130
        except BrokenPipeError:
            sys.stderr.close()
            code = 0
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo("scalecalc: " + " ".join(message.split()), err=True)


def _missing(error: NotFound) -> tuple[int, dict[str, Any]]:
    """Says whether something that was not found is proved not to exist: exit code 1, else 3; and a record for JSON."""
    from scaling_algebra.proofs.prover import settled

    verdict, line = settled(error)
    _fail(line)
    decided = verdict == "impossible"
    record = {
        **error.configuration.as_json(),
        "unique": False if decided else None,
        "verdict": verdict.upper(),
        "why": line,
    }
    return (1 if decided else 3), record


def where_options(command: Any) -> Any:
    """--regime, --ray, --optimizer: shared by every command that asks about a configuration."""
    for option in (
        click.option("--optimizer", default="adam", show_default=True, metavar="NAME", help=", ".join(OPTIMIZERS)),
        click.option(
            "--ray",
            metavar="RATES",
            help="How each axis grows, e.g. N=1,N_e=1/2,M=3/2; K=1/2 for fewer active experts (instead of --regime).",
        ),
        click.option("--regime", metavar="NAME", help=f"{', '.join(REGIMES)}."),
    ):
        command = option(command)
    return command


def architecture_option(command: Any) -> Any:
    """--architecture: for the commands that can ask about any program."""
    known = ", ".join(ARCHITECTURES)
    return click.option("--architecture", default="moe", show_default=True, metavar="NAME", help=known)(command)


def configuration_options(command: Any) -> Any:
    """Everything that names one configuration of any architecture."""
    known = ", ".join(PARAMETERIZATIONS)
    for option in (
        click.option("--readout-init", metavar="KIND", help=f"{' or '.join(READOUTS)}; default: the definition's."),
        click.option("--parameterization", metavar="NAME", help=f"{known}; default: mssp for moe, else mup."),
        architecture_option,
        where_options,
    ):
        command = option(command)
    return command


@click.group(cls=Commands, no_args_is_help=True)
@click.version_option(package_name="scalecalc")
def main() -> None:
    """Exact scaling exponents for Mixture-of-Experts networks: derive them, print them, measure them.

    Exit codes: 0 agrees or done, 1 refuted or unsatisfiable, 2 wrong usage, 3 inconclusive.
    """


@main.command("derive")
@where_options
@architecture_option
@click.option(
    "--parameterization", metavar="NAME", help=f"{', '.join(PARAMETERIZATIONS)}; without it muP and MSSP, both."
)
@click.option("--readout-init", type=str, metavar="KIND", help=f"{' or '.join(READOUTS)}; default: the definition's.")
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
@click.option("--prove", "proving", is_flag=True, help="Prove that it is the only one, or that none exists.")
@click.option("--drop", is_flag=True, help="With --prove: drop every desideratum in turn and say what it determines.")
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.smt2",
    help="With --prove: write the unsatisfiable systems as SMT-LIB 2, for another solver.",
)
def derive_command(
    regime: str | None,
    ray: str | None,
    optimizer: str,
    architecture: str,
    parameterization: str | None,
    readout_init: str | None,
    form: str,
    proving: bool,
    drop: bool,
    certificate: Path | None,
) -> int:
    """Derive init std, learning rate and epsilon of every tensor, with the reason for each number.

    What the search does not find is examined by proof: exit code 1 if none exists, 3 if that is undecided.
    With --prove the exit code is 0 if every parameterization is the only one, 1 if not, 3 if that is undecided.
    """
    chosen = _choice("format", form, FORMATS)
    if (drop or certificate) and not proving:
        raise UsageError("--drop and --certificate need --prove")
    both = ["mup", "mssp"] if architecture.lower() == "moe" else ["mup"]
    names = [parameterization] if parameterization else both
    where = {"ray": ray, "readout_init": readout_init, "architecture": architecture}
    if proving:
        return _prove(names, (regime, optimizer), where, chosen, drop, certificate)
    codes, documents = [0], []
    for name in names:
        try:
            documents.append(derive(regime, optimizer, name, **where).document())  # type: ignore[arg-type]
        except NotFound as error:
            code, record = _missing(error)
            codes.append(code)
            documents.append(Document((), record))
    if text := render(documents, chosen):
        click.echo(text)
    return 1 if 1 in codes else max(codes)


def _prove(
    names: list[str], what: tuple[str | None, str], where: dict[str, Any], form: str, drop: bool, file: Path | None
) -> int:
    """Derivations with their proofs; the proof alone where nothing was derived."""
    from scaling_algebra.proofs.necessity import freed
    from scaling_algebra.proofs.presentation import proved
    from scaling_algebra.proofs.prover import prove
    from scaling_algebra.proofs.smtlib import RESET, smtlib

    if file is not None and not file.parent.is_dir():
        raise UsageError(f"cannot write {file}: {file.parent} is not a folder; choose another file")
    codes, documents, scripts = [0], [], []
    for name in names:
        proof = prove(*what, name, **where)
        try:
            derived = replace(derive(*what, name, **where), unique=proof.unique)
        except Infeasible:
            derived = None
        asked = proof.configuration
        own = asked.readout_init == asked.parameterization.readout_init
        if derived is not None and own and proof.unique is not None and not proof.agrees(derived.scaling):
            raise Infeasible(f"{name}: the derived parameterization is not the only one that the proof leaves")
        codes.append({True: 0, False: 1, None: 3}[proof.unique])
        scripts.append(smtlib(proof))
        documents.append(proved(proof, derived, freed(proof) if drop else None))
    if file is not None:
        decided = RESET.join(text for text in scripts if text)
        if decided:
            _write(file, decided)
        else:
            click.echo("scalecalc: nothing was decided, so there is no certificate to write", err=True)
    click.echo(render(documents, form))
    return 1 if 1 in codes else max(codes)


@main.command("signals")
@configuration_options
@click.option("--steps", type=int, default=2, show_default=True, help="Number of updates.")
@click.option("--quantity", "names", multiple=True, metavar="NAME", help="Only this quantity (may be repeated).")
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
def signals_command(
    regime: str | None,
    ray: str | None,
    optimizer: str,
    architecture: str,
    parameterization: str | None,
    steps: int,
    readout_init: str | None,
    names: tuple[str, ...],
    form: str,
) -> None:
    """Print the exponent of every named quantity at t = 0, 1, ..., each certified exact."""
    chosen = _choice("format", form, FORMATS)
    found = signals(
        regime,
        optimizer,
        parameterization or _default(architecture),
        ray=ray,
        steps=steps,
        readout_init=readout_init,
        architecture=architecture,
        names=names or None,
    )
    click.echo(render(found.document(), chosen))


@main.command("explain")
@click.argument("what", metavar="WHAT")
@configuration_options
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
@click.option(
    "--graph",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also draw the leading monomial: FILE.svg, FILE.png or FILE.dot.",
)
def explain_command(
    what: str,
    regime: str | None,
    ray: str | None,
    optimizer: str,
    architecture: str,
    parameterization: str | None,
    readout_init: str | None,
    form: str,
    graph: Path | None,
) -> None:
    """Why an exponent is what it is: sums on the way, leading monomial, matching, weights, mechanism, arithmetic.

    WHAT is a quantity with an optional step (h3.A2.2@1; see scalecalc list), an inner product ("<h2@0, h2@1>"), a
    parameter (expert_out.lr, router.init, readout.eps, aggregation), or "alignment" for the alignment exponents p and q
    of every linear map.
    """
    from scaling_algebra.explanations.alignments import alignments
    from scaling_algebra.explanations.explanations import Setting, explain

    chosen = _choice("format", form, FORMATS)
    parameterization = parameterization or _default(architecture)
    if what == "alignment":
        if graph is not None:
            raise UsageError("--graph draws one monomial: give a quantity instead of alignment")
        d = derive(regime, optimizer, parameterization, ray=ray, readout_init=readout_init, architecture=architecture)
        click.echo(render(alignments(d).document(), chosen))
        return
    found = explain(
        what, regime, optimizer, parameterization, ray=ray, readout_init=readout_init, architecture=architecture
    )
    if graph is not None:
        from scaling_algebra.explanations.graph import draw

        picture = found.behind if isinstance(found, Setting) else found
        if picture is None:
            raise UsageError(f"{what} was chosen, not solved: there is no monomial to draw")
        draw(picture, graph)
    click.echo(render(found.document(), chosen))


@main.command("phases")
@click.option("--parameterization", default="mup", show_default=True, metavar="NAME", help="mup or mssp")
@click.option("--optimizer", default="sgd", show_default=True, metavar="NAME", help=", ".join(OPTIMIZERS))
@click.option(
    "--plane", default="N_e,M", show_default=True, metavar="AXES", help="Two of N, N_e, M; the third has rate 1."
)
@click.option(
    "--format", "form", metavar="FORMAT", help=f"{', '.join(FORMATS)}, svg; default: text, or the suffix of -o."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to this file."
)
@click.option("--prove", is_flag=True, help="Prove for every cell without a formula that a ray inside it has none.")
def phases_command(
    parameterization: str, optimizer: str, plane: str, form: str | None, output: Path | None, prove: bool
) -> None:
    """Cut the space of rays into cells with one closed formula each; regimes and model families are placed on it."""
    from scaling_algebra.phase_map.phases import phases
    from scaling_algebra.phase_map.picture import phases_html, phases_svg

    pictures = {"svg": phases_svg, "html": phases_html}
    suffix = output.suffix.lstrip(".") if output is not None else ""
    if form is None and suffix not in pictures:
        form = "text" if output is None else format_of(output, "text")
    chosen = _choice("format", form or suffix, (*FORMATS, "svg"))
    axes = tuple(axis.strip() for axis in plane.split(","))
    if len(axes) != 2:
        raise UsageError(f"the plane is {plane!r}; give two axes, for example N_e,M")
    found = phases(optimizer, parameterization, plane=(axes[0], axes[1]), prove=prove)
    text = pictures[chosen](found) if chosen in pictures else render(found.document(), chosen)
    if output is None:
        click.echo(text)
        return
    _write(output, text + "\n")


@main.command("list")
@architecture_option
def list_command(architecture: str) -> None:
    """List every name the other commands accept, and the quantities of an architecture."""
    from scaling_algebra.dynamics.quantities import quantities

    click.echo("axes: " + ", ".join(f"{axis} ({what})" for axis, what in AXES.items()))
    click.echo("architectures: " + ", ".join(f"{p.name} ({p.title})" for p in ARCHITECTURES.values()))
    click.echo("regimes: " + ", ".join(str(r) for r in REGIMES.values()))
    click.echo("optimizers: " + ", ".join(OPTIMIZERS))
    click.echo("parameterizations: " + ", ".join(PARAMETERIZATIONS))
    chosen = _choice("architecture", architecture, ARCHITECTURES)
    click.echo(f"quantities of {chosen}:")
    for quantity in quantities(ARCHITECTURES[chosen]).values():
        click.echo(f"  {quantity.name:30} {quantity.formula}")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from None


def _default(architecture: str) -> str:
    """MSSP is defined for the MoE block."""
    return "mssp" if architecture.lower() == "moe" else "mup"


def _choice(kind: str, name: str, known: Any) -> str:
    from scaling_algebra.errors import unknown_name

    if name.lower() not in known:
        raise unknown_name(kind, name, known)
    return name.lower()


if __name__ == "__main__":
    main()
