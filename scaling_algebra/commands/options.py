"""Shared parts of the commands: parameter types, options that name a configuration, and output.

Read next: any other file of this folder; each is one command.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import click

from scaling_algebra import files, limits
from scaling_algebra.documents import CSV, FORMATS, Document, format_of, render
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import (
    DEFAULT_ARCHITECTURE,
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
)
from scaling_algebra.spec.gauges import GAUGES, OWN
from scaling_algebra.spec.networks.files import read_network
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, TITLES
from scaling_algebra.spec.optimizer_reading import parse_optimizers as trained_by
from scaling_algebra.spec.optimizers import EPSILONS, OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = Callable[..., Any]


class Verb(click.Command):
    """A command with several forms, such as ``explain`` and ``explain --formula``, each in a module of its own.

    The form is chosen by a flag (``explain --formula``) or by the first word (``study transfer``).

    Args:
        forms: for each flag or word its help text and the module of its form.
    """

    def __init__(self, *arguments: Any, forms: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.forms = dict(forms)
        for flag, (text, _) in reversed(self.forms.items()):
            if flag.startswith("--"):
                self.params.insert(0, QuestionFlag(self, [flag], is_flag=True, expose_value=False, help=text))

    def form(self, flag: str) -> click.Command:
        """Imports and returns the command that runs if ``flag`` is given, one of the flags or first words that choose
        between the forms of this command.
        """
        return import_module(self.forms[flag][1]).command  # type: ignore[no-any-return]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asked = args[: args.index("--")] if "--" in args else args
        flag = next((flag for flag in self.forms if flag in (asked if flag.startswith("--") else asked[:1])), None)
        try:
            if flag is None:
                return super().make_context(info_name, args, parent, **extra)
            where = args.index(flag)
            more = {**self.context_settings, **extra}
            return self.form(flag).make_context(f"{info_name} {flag}", args[:where] + args[where + 1 :], parent, **more)
        except click.NoSuchOption as error:
            name = error.option_name
            others = [f"{self.name} {x}" for x in self.forms if x != flag and name in list_option_names(self.form(x))]
            others = [f"{self.name} alone"] * (flag is not None and name in list_option_names(self)) + others
            if not others:
                raise
            here = " ".join(filter(None, (self.name, flag)))
            raise UsageError(f"{here} does not take {name}; use it with {' or '.join(others)}") from None


class QuestionFlag(click.Option):
    """The flag that chooses a form of a command, such as ``--formula`` of ``explain``; its help text lists the
    options that are permitted together with it.
    """

    def __init__(self, verb: Verb, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.verb = verb

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        (flag,), known = self.opts, list_option_names(self.verb)
        taken = ", ".join(name for name in list_option_names(self.verb.form(flag)) if name in known)
        return flag, f"{self.help} Of the options below it accepts {taken}; see {self.verb.name} {flag} --help."


def list_option_names(command: click.Command) -> list[str]:
    """Returns the long name of every option of a command."""
    return [p.opts[-1] for p in command.params if isinstance(p, click.Option)]


class Name(click.ParamType[str]):
    """Parameter type: one of some known names, in upper or lower case. Shells complete it; errors suggest a name."""

    name = "name"

    def __init__(self, kind: str, names: Collection[str]) -> None:
        self.kind, self.names = kind, names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for name in self.names:
            if str(value).lower() == name.lower():
                return name
        raise unknown_name_error(self.kind, str(value), self.names)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        begun = incomplete.lower()
        return [CompletionItem(name) for name in self.names if name.lower().startswith(begun)]


class TensorOptimizer(Name):
    """Parameter type: the optimizer of all tensors, or of single ones, as text.

    ``A`` trains all tensors; ``A+B`` trains hidden and expert matrices with A and the rest with B; ``A,ROLE=B``
    trains the tensor ROLE with B. Whether the roles exist is checked later, when the network is known.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "=" not in str(value):  # A=B assigns to single tensors and is checked later
            trained_by(str(value))
        return str(value)


class Count(click.ParamType[int]):
    """Parameter type: an integer between two limits, in ASCII digits."""

    name = "integer"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        label = param.name if param is not None and param.name else self.name
        if isinstance(value, str):
            try:
                value = limits.parse_integer(value)
            except ValueError as error:
                between = f"{self.least} to {self.most}"
                raise UsageError(f"{label} is {value!r}, {error}; give an integer from {between}") from None
        return limits.check_range(label, value, self.least, self.most)


class PathType(click.ParamType[Path]):
    """Parameter type: a path. Whether it can be written is checked by ``check_output`` before any work."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        text, label = str(value), "the path" if param is None else f"the path of {param.opts[0]}"
        if not text.strip() or "\0" in text:
            raise UsageError(f"{label} is {text!r}; give a name")
        path = Path(text)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # whether this is an error depends on the use of the path
        except (OSError, ValueError) as error:  # a circular link, a name that is too long
            raise UsageError(f"cannot use {path}: {files.describe_cause(error)}; choose another name") from None
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class ModuleName(click.ParamType[str]):
    """Parameter type: a torch module, as ``FILE.py:NAME`` of a function that builds it, or as ``hf:FILE``, a
    configuration of transformers. A missing Python file is refused before torch is imported.
    """

    name = "module"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        files.check_python_file(str(value).rpartition(":")[0])
        return str(value)


def complete_names(names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """Returns keywords for ``click.option`` or ``click.argument`` that let the shell complete these names. Other
    values are accepted, too.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return {"shell_complete": complete}


def _list_quantities() -> Iterable[str]:
    from scaling_algebra.dynamics.quantities import list_quantities

    return list_quantities(ARCHITECTURES[DEFAULT_ARCHITECTURE])


COMPLETED = complete_names(_list_quantities)
"""Completion of quantities: those of the default network."""


def format_examples(*lines: str) -> str:
    """Formats the end of a help text: commands to copy, one to a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def combine_options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combines the decorators of several options into one. The help text lists the options in the given order."""

    def decorate(command: Command) -> Command:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorate


def optimizer_option(default: str = DEFAULT_OPTIMIZER) -> Callable[[Command], Command]:
    """Makes the option --optimizer."""
    return click.option(
        "--optimizer",
        type=TensorOptimizer("optimizer", OPTIMIZERS),
        multiple=True,
        default=[default],
        show_default=True,
        callback=lambda ctx, param, value: ",".join(value),
        metavar="NAME",
        help="Optimizer of all tensors, or of single ones: adamw,expert_in=muon (repeatable). muon+adamw stands for "
        "muon on the matrices of hidden layers and experts and adamw on the rest.",
    )


OPTIMIZER = combine_options(
    optimizer_option(),
    click.option(
        "--epsilon",
        type=Name("epsilon regime", EPSILONS),
        metavar="NAME",
        help="Adam's epsilon: derived (the default) scales it like the gradients; negligible keeps it far below them, "
        "for example at 1e-8.",
    ),
)
WHERE = combine_options(
    click.option(
        "--regime",
        type=Name("regime", REGIMES),
        metavar="NAME",
        help="Which axes grow. I: width and expert width; II: width and number of experts; III: all three.",
    ),
    click.option(
        "--ray",
        metavar="RATES",
        help="Instead of a regime: the rate at which each axis grows, such as N=1,N_e=1/2,M=3/2. Add K=1/2 if the "
        "number of active experts grows more slowly.",
    ),
    OPTIMIZER,
)
"""The options --regime, --ray, --optimizer and --epsilon."""


TRACED = "scaling_algebra.traced"
"""Key in the context of a command: first the module's name from ``--model``, later the traced module."""
TRACING = "scaling_algebra.verify.tracing.model_loading"
CONFIGS = "scaling_algebra.verify.tracing.config_reading"
"""Modules that read a torch module, and a configuration of transformers. They are loaded by name, since only verify
imports torch.
"""


MODEL = click.option(
    "--model",
    type=ModuleName(),
    metavar="FILE.py:NAME",
    callback=lambda ctx, param, value: ctx.meta.update({TRACED: value}),
    expose_value=False,
    help="Instead of an architecture: a torch module, as FILE.py:NAME of a function that builds it, or "
    "hf:config.json of transformers.",
)


def network_options(default: str = DEFAULT_ARCHITECTURE) -> Callable[[Command], Command]:
    """Makes the options --architecture, --network and --model, for ``choose_network``.

    Args:
        default: the default network, as the help text names it.
    """
    names = Name("architecture", TITLES)
    text = "Instead of an architecture: a file with the equations of your own network."
    return combine_options(
        click.option("--architecture", type=names, metavar="NAME", help=f"Network.  [default: {default}]"),
        click.option("--network", type=PathType(), metavar="FILE.toml", help=text),
        MODEL,
    )


def find_config_file() -> Path | None:
    """Returns the path FILE if the command was given ``--model hf:FILE``, else None."""
    name = click.get_current_context().meta.get(TRACED)
    return (
        Path(name.removeprefix(files.HUGGING_FACE))
        if isinstance(name, str) and name.startswith(files.HUGGING_FACE)
        else None
    )


def find_traced(*more: str, beside: Path | None = None) -> Any:
    """Returns the torch module of ``--model`` as it was read (traced); None if the option was not given.

    The module is read on the first call of this function.

    Args:
        more: further texts with sizes, which determine the axes that the module is read with.
        beside: configuration file of the same model at another size.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(TRACED) is None:
        return None
    if isinstance(name := context.meta[TRACED], str):
        arguments = [*map(str, context.params.values()), *more]
        base = str(context.params.get("base") or "")
        context.meta[TRACED] = importlib.import_module(TRACING).read_model_option(name, arguments, beside, base)
    return context.meta[TRACED]


def choose_network(architecture: str | None, network: Path | None) -> Network | None:
    """Returns the network that the user names with --architecture, --network or --model; None if none of them is given.

    Raises:
        UsageError: several are named, or a file is no network.
    """
    names = {"--architecture": architecture, "--network": network, "--model": find_traced()}
    if len(given := [name for name, value in names.items() if value is not None]) > 1:
        raise UsageError(f"{' and '.join(given)} each choose a network; leave out one of them")
    if find_traced() is not None:
        return find_traced().network  # type: ignore[no-any-return]
    if network is not None:
        if str(network) in ARCHITECTURES and not network.exists():
            raise UsageError(
                f"there is no file {network}; for the shipped network of this name give --architecture {network}"
            )
        return read_network(network)
    return None if architecture is None else ARCHITECTURES[architecture]


def with_network(command: Command) -> Command:
    """Adds the options of ``network_options``; the command gets ``network``, a Network."""

    @wraps(command)
    def run(*arguments: Any, architecture: str | None, network: Path | None, **rest: Any) -> Any:
        read = choose_network(architecture, network) or ARCHITECTURES[DEFAULT_ARCHITECTURE]
        if find_traced() is not None and "ray" in rest and rest["ray"] is None and rest.get("regime") is None:
            rest["ray"] = find_traced().ray
        return command(*arguments, network=read, **rest)

    return network_options()(run)


READOUT_INIT = click.option(
    "--readout-init",
    type=Name("readout init", READOUTS),
    metavar="KIND",
    help=f"{' or '.join(READOUTS)}. The default is that of the parameterization's definition: maximal for muP, zero "
    "for MSSP. MSSP's desiderata also hold with maximal, which trains faster with AdamW.",
)


GIVEN = click.option(
    "--given",
    multiple=True,
    metavar="NAME=POWER",
    help="Fix a power and derive the others: router.init=N^-1/2, W2.lr=1/N, readout.init=0, aggregation=M^-1 "
    "(repeatable).",
)


STRICT = click.option(
    "--strict",
    is_flag=True,
    help="Print numbers only if all are certified: exit code 3 if a size is undecided, 2 if a module cannot be read. "
    "recipe: exit code 1 if the numbers are those of a nearby ray, because the ray between the sizes has none.",
)


UNASSUMING = click.option(
    "--no-assumptions",
    "bare",
    is_flag=True,
    help="Print only exponents that need no assumptions beyond power counting: none for the MoE block, whose gates "
    "are replaced by their mean and slope (derive --why).",
)


GAUGE = click.option(
    "--gauge",
    type=Name("gauge", GAUGES),
    default=OWN,
    show_default=True,
    metavar="NAME",
    help="Where the powers go: into init std and learning rate (table3), or into multipliers (table8, table9 of Tensor "
    "Programs V), such as 1/N on the readout. Training is the same.",
)


def parameterization_option(names: Collection[str] = PARAMETERIZATIONS, **more: Any) -> Callable[[Command], Command]:
    """Makes the option --parameterization.

    Args:
        names: the permitted names.
        more: other settings of the option, such as ``default=None`` if a command answers for several.
    """
    shown = {"default": DEFAULT_PARAMETERIZATION, "show_default": True, "help": "Parameterization.", **more}
    return click.option("--parameterization", type=Name("parameterization", names), metavar="NAME", **shown)


def with_configuration_factory(command: Command) -> Command:
    """Adds the options that name a configuration; as its first argument, the command gets a function that builds this
    configuration.
    """

    @wraps(command)
    def run(*arguments: Any, regime: str | None, optimizer: str, parameterization: str, **rest: Any) -> Any:
        where: Any = {key: rest.pop(key) for key in ("ray", "readout_init", "network", "epsilon", "given")}
        return command(partial(Configuration.of, regime, optimizer, parameterization, **where), *arguments, **rest)

    return combine_options(WHERE, parameterization_option(), with_network, READOUT_INIT, GIVEN)(run)


def with_configuration(command: Command) -> Command:
    """Adds the options that name a configuration; the command gets the configuration as its first argument."""

    @wraps(command)
    def run(make: Callable[[], Configuration], *arguments: Any, **rest: Any) -> Any:
        return command(make(), *arguments, **rest)

    return with_configuration_factory(run)


class FormatName(Name):
    """Parameter type: a format of answers. If the user names a format of a plan for some training framework instead,
    the error says which Python call writes it.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() in TRAINERS:
            raise UsageError(
                f"{value} is a format of plans of torch models; in Python: plan(model, base, target).export({value!r})"
            )
        return super().convert(value, param, ctx)


TRAINERS = ("torchtitan", "megatron", "olmo-core", "nemo-automodel")
"""Formats that only ``plan`` writes, a function of Python."""


def format_option(extra: Iterable[str] = (), more: str = "") -> Callable[[Command], Command]:
    """Makes the option --format.

    Args:
        extra: formats of the command besides those of documents.
        more: what the help text says of these.
    """
    names = tuple(dict.fromkeys((*FORMATS, CSV, *extra)))
    text = f"{', '.join(names)}; by default text, or the format of the ending of -o FILE.{more}"
    return click.option("--format", "form", type=FormatName("format", names), metavar="FORMAT", help=text)


FORMAT = format_option()
OUTPUT = click.option("-o", "--output", type=PathType(), metavar="FILE", help="Write to this file instead of stdout.")
SMTLIB = click.option(
    "--smtlib",
    type=PathType(),
    metavar="FILE.smt2",
    help="Write the unsatisfiable systems of the proof to this file as SMT-LIB 2, so that another solver can check "
    "them.",
)

Answer = str | Document | Sequence[Document]
"""The answer of a command: documents, to be rendered in the format that is asked for, or a text."""


def prints_answer(extra: Mapping[str, str] | None = None, more: str = "") -> Callable[[Command], Command]:
    """Adds the options --format and -o, and prints or writes what the command returns: an ``Answer``, or one and an
    exit code.

    Args:
        extra: formats that the command has besides those of documents, with the endings of their files. The command
            then gets ``form``: the format, for which it returns a text, or None for a format of documents.
        more: what the help text says of these formats.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*arguments: Any, form: str | None, output: Path | None, **rest: Any) -> int:
            if extra and form is None and output is not None:
                form = next((name for name, ending in extra.items() if ending == output.suffix.lower() != ""), None)
            check_output(output, form, besides=filter(None, (extra or {}).values()))
            returned = command(*arguments, **rest, **({"form": form} if extra else {}))
            answer, code = returned if isinstance(returned, tuple) else (returned, 0)
            if find_traced() is not None:
                answer = find_traced().append_notes(answer)
            print_or_write(answer, form, output)
            return int(code)

        return combine_options(format_option(extra or (), more), OUTPUT)(run)

    return decorate


def check_output(file: Path | None, form: str | None = None, option: str = "-o", besides: Iterable[str] = ()) -> None:
    """Checks before a long computation that its output file can be written, and that its ending names a format.

    Args:
        file: the file; None for none.
        form: the format; None if it is to be determined by the ending.
        option: the option that names the file, for messages.
        besides: further endings that are permitted.

    Raises:
        UsageError: the file cannot be written, or its ending is unknown.
    """
    if file is None:
        return
    if form is None:
        format_of(file, "text", besides)
    files.check_writable(files.resolve_link(file), f"choose another {option} FILE")


def print_or_write(answer: Answer, form: str | None, output: Path | None, default: str = "text") -> None:
    """Prints an answer, or writes it to a file. If the file cannot be written, the answer is printed, so that it is
    not lost."""
    form = form or (format_of(output, default) if output is not None else default)
    text = answer if isinstance(answer, str) else render(answer, form)
    if output is not None:
        try:
            write_text(output, text + "\n")
        except UsageError:
            click.echo(text)
            raise
        documents = [answer] if isinstance(answer, Document) else () if isinstance(answer, str) else answer
        for closing in filter(None, (document.closing for document in documents)):
            click.echo(f"{closing}; rows in {output}")
    elif text:
        shown = form == "text" and sys.stdout.isatty()
        click.echo(colour_verdicts(wrap_lines(text, get_terminal_size().columns)) if shown else text)


COLOURS = {"AGREES": "green", "DISAGREES": "red", "REFUTED": "red", "INCONCLUSIVE": "yellow", "UNDECIDED": "yellow"}


def colour_verdicts(text: str) -> str:
    """Returns a text with its verdicts in colour, unless ``NO_COLOR`` is set."""
    if os.environ.get("NO_COLOR"):
        return text
    return re.sub(rf"\b({'|'.join(COLOURS)})\b", lambda word: click.style(word[0], fg=COLOURS[word[0]]), text)


def wrap_lines(text: str, width: int) -> str:
    """Wraps lines that are wider than the terminal, indented to the beginning of their last column."""
    lines: list[str] = []
    for line in text.splitlines():
        column = line.rstrip().rfind("  ", 0, 2 * width // 3) + 2
        start = column if column > 1 else len(line) - len(line.lstrip()) + 2
        wrap = TextWrapper(width, subsequent_indent=" " * start, break_long_words=False, break_on_hyphens=False)
        lines += wrap.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def write_text(file: Path, text: str) -> None:
    """Writes a text file in UTF-8 with plain line ends; follows a link.

    Raises:
        UsageError: it cannot be written.
    """
    files.write_file(files.resolve_link(file), text)
