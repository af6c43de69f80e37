"""The command line: dispatches commands and turns errors into exit codes.

Each command is a module, imported when it is called. Exit codes: 0 agrees or done, 1 refuted, stale or unsatisfiable, 2
wrong usage, 3 inconclusive, 70 a fault of this program, 130 interrupted. Read next: ``commands`` (the commands),
``tables/commands`` and ``verify/commands``.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import click

from .errors import Unsatisfiable, UsageError, describe_error, missing_package_error, quote_value, shorten
from .files import describe_cause
from .waiting import GARBAGE, current_work, interruptible, show_progress

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "Derive": {
        "derive": ("commands.derive", "Init std, learning rate and epsilon of every tensor."),
        "signals": ("commands.signals", "The size of every signal, gradient and update."),
        "explain": ("commands.explain", "The reasons for an exponent; its formula on all rays."),
        "rays": ("commands.phases", "The map of rays; theorems about whole cones of rays."),
    },
    "Numbers": {
        "recipe": ("commands.recipe", "Hyperparameters of a large model from those of a small one."),
        "law": ("commands.law", "Exponents of losses, risks and other growing quantities."),
    },
    "Print": {
        "table": ("tables.commands.table", "A published table with every cell derived."),
        "audit": ("tables.commands.audit", "Compare published tables with the engine; list errata."),
        "list": ("commands.list", "Every name the other commands accept; a glossary."),
        "page": ("commands.page", "The calculator in a browser, as a folder to serve."),
    },
    "Measure": {
        "verify": ("verify.commands.verify", "Compare exponents measured on torch models with predictions."),
        "check-model": ("verify.commands.check_model", "Check a recipe on your own model by training small copies."),
        "study": ("verify.commands.experiment", "Experiments of the papers; transfer of learning rates."),
    },
}
"""Commands by section: the module that defines ``command``, and one line of help."""
MODULES = {verb: module for section in VERBS.values() for verb, (module, _) in section.items()}

BESIDE = {"plan": " (beside it here: recipe --model, check-model)"}
"""The hint for a Python function that is no command: the commands that do part of it."""

NO_MEMORY = ("out of memory", "cannot allocate memory", "can't allocate memory", "failed to map segment")
"""Messages of z3, torch and the dynamic loader if memory is exhausted."""
TOO_LITTLE = "not enough memory; ask for less, such as smaller --sizes or fewer --steps, or allow more (ulimit -v)"

HELP = ["-h", "--help"]
INSTEAD = {name: f"write --format {name}" for name in ("html", "json", "latex", "markdown", "text")}
INSTEAD["strict"] = (
    "this command prints uncertified exponents as undecided anyway; derive, recipe and check-model have --strict"
)
"""Advice for options that do not exist but that users may expect."""


class Verbs(click.Group):
    """The group of all commands. It imports the module of a command when it is called, and prints every error as one
    line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in MODULES:
            return None
        command: click.Command = importlib.import_module(f"{__package__}.{MODULES[name]}").command
        command.context_settings.setdefault("help_option_names", HELP)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in VERBS.items():
            with formatter.section(section):
                formatter.write_dl([(verb, line) for verb, (_, line) in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in MODULES:
            near = difflib.get_close_matches(args[0], MODULES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            if args[0] in dir(sys.modules["scaling_algebra"]):
                hint = (
                    f"; {args[0]} is a Python function: from scaling_algebra import {args[0]}{BESIDE.get(args[0], '')}."
                )
            raise UsageError(f"no command named {args[0]!r}{hint} known: {', '.join(MODULES)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        if "_SCALECALC_COMPLETE" in os.environ:
            return super().main(*args, **{**extra, "prog_name": "scalecalc"})
        gc.set_threshold(*GARBAGE)
        atexit.register(gc.freeze)  # skip the collection at exit: the system frees the memory
        given = args[0] if args else extra.get("args")
        arguments = list(sys.argv[1:] if given is None else given)
        _open_streams()
        sys.exit(_exit_code(lambda: self._run(arguments, extra.get("prog_name") or "scalecalc"), arguments))

    def _run(self, arguments: list[str], prog_name: str) -> Any:
        verb = next(iter(arguments), "")
        measures = verb in ("verify", "study")  # these report their own progress
        line = nullcontext() if measures else show_progress(verb)
        with interruptible(), line, self.make_context(prog_name, arguments) as context:
            code = self.invoke(context)
        sys.stdout.flush()
        return code


def _open_streams() -> None:
    """Makes the standard streams print any text, even invalid, and replaces closed ones by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _exit_code(run: Callable[[], Any], arguments: list[str]) -> int:
    """Runs a command and returns its exit code; prints an error as one line on stderr."""
    try:
        code = run()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        usage = error.format_message()
        return _say_quietly(lambda: click.echo(usage), 2)
    except click.NoSuchOption as error:
        name = error.option_name.lstrip("-")
        return _fail(f"no option --{name}; {INSTEAD[name]}" if name in INSTEAD else error.format_message(), 2)
    except click.ClickException as error:
        said = error.format_message()
        if type(error) in (click.UsageError, click.MissingParameter) and (asked := getattr(error, "ctx", None)):
            said = f"{said.rstrip('.')}; see scalecalc {asked.command.name} --help"
        return _fail(said, 2)
    except UsageError as error:
        return _fail(str(error), error.code)
    except Unsatisfiable as error:
        from .commands.derive import report_missing as not_found
        from .solver.demands import NotFound  # already imported, since it was raised

        code = 3 if getattr(error, "undecided", False) else 1
        return not_found(error)[0] if isinstance(error, NotFound) else _fail(str(error), code)
    except (click.Abort, KeyboardInterrupt) as stop:
        doing = str(stop) or current_work()
        return _fail(f"interrupted{' while ' + doing if doing else ''}", 130)
    except BrokenPipeError:
        return _discard_output(0)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("scaling_algebra"):
            return _report_fault(error)
        verb = next(iter(arguments), "scalecalc")
        return _fail(str(missing_package_error(verb, str(error.name).partition(".")[0], "verify")), 2)
    except OSError as error:
        where = "" if error.filename is None else f" {error.filename}"
        return _fail(f"the system refused{where}: {describe_cause(error)}; make room, or choose another place", 2)
    except SystemExit as stop:  # raised by foreign code
        return _fail(
            f"the user's code ended the program with exit code {quote_value(stop.code)}; let it return instead", 2
        )
    except RecursionError:
        return _fail("the network is too deep; write equal layers once, with an index of axis L", 2)
    except Exception as error:
        memory = isinstance(error, MemoryError) or any(x in describe_error(error).lower() for x in NO_MEMORY)
        return _fail(TOO_LITTLE, 2) if memory else _report_fault(error)


def _report_fault(error: Exception) -> int:
    """Reports an unexpected exception, a fault of this program, in one line, with a traceback if SCALECALC_DEBUG is
    1. Returns the exit code.
    """
    if os.environ.get("SCALECALC_DEBUG") == "1":
        _say_quietly(lambda: traceback.print_exception(error), 70)
    return _fail(f"internal error (please report): {describe_error(error)}", 70)


def _fail(message: str, code: int) -> int:
    """Prints one line of printable characters on stderr, and returns the exit code."""
    line = "".join(x if x.isprintable() else ascii(x)[1:-1] for x in " ".join(shorten(message).split()))
    return _say_quietly(lambda: click.echo(f"scalecalc: {line}", err=True), code)


def _say_quietly(say: Callable[[], Any], code: int) -> int:
    """Calls ``say``, which prints something, and returns the exit code ``code``, even if the output is closed."""
    with suppress(OSError, ValueError):
        say()
    return code


def _discard_output(code: int) -> int:
    """Redirects standard output and error to the null device after the reader of a pipe has closed it, so that the
    final flush does not fail. Returns the exit code ``code``.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


@click.group(cls=Verbs, no_args_is_help=True, context_settings={"help_option_names": HELP})
@click.version_option(package_name="scalecalc")
def main() -> None:
    """Derive, print and measure exact scaling exponents for Mixture-of-Experts networks.

    \b
    Start with:
      scalecalc derive --regime III --optimizer adam
      scalecalc explain router.lr --regime III --optimizer adam

    Exit codes: 0 agrees or done, 1 refuted, stale or unsatisfiable, 2 wrong usage, 3 inconclusive, 70 a fault of this
    program, 130 interrupted. If the output pipe is closed, it is 0.
    """


if __name__ == "__main__":
    main()
