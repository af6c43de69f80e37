"""Shared parts of the commands: names that complete and correct themselves, one configuration, one way to print.

Read next: any other file of this folder, each one verb.
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
from scaling_algebra.errors import UsageError, unknown_name
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
    """A verb with several questions, each a file: a flag chooses one (``explain --formula``), or the first word does
    (``study transfer``).

    Args:
        forms: help of every such flag or word, and the module of its question.
    """

    def __init__(self, *arguments: Any, forms: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.forms = dict(forms)
        for flag, (text, _) in reversed(self.forms.items()):
            if flag.startswith("--"):
                self.params.insert(0, QuestionFlag(self, [flag], is_flag=True, expose_value=False, help=text))

    def form(self, flag: str) -> click.Command:
        """The command of one question."""
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
            others = [f"{self.name} {x}" for x in self.forms if x != flag and name in option_names(self.form(x))]
            others = [f"{self.name} alone"] * (flag is not None and name in option_names(self)) + others
            if not others:
                raise
            here = " ".join(filter(None, (self.name, flag)))
            raise UsageError(f"{here} takes no {name}, which goes with {' and '.join(others)}") from None


class QuestionFlag(click.Option):
    """The flag of one question of a verb, whose help says which of the verb's options it takes."""

    def __init__(self, verb: Verb, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.verb = verb

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        (flag,), known = self.opts, option_names(self.verb)
        taken = ", ".join(name for name in option_names(self.verb.form(flag)) if name in known)
        return flag, f"{self.help} Of these options it takes {taken}; see {self.verb.name} {flag} --help."


def option_names(command: click.Command) -> list[str]:
    """The long name of every option."""
    return [p.opts[-1] for p in command.params if isinstance(p, click.Option)]


class Name(click.ParamType[str]):
    """One of a registry's names, in any case. A shell completes it; a wrong one is corrected in one line."""

    name = "name"

    def __init__(self, kind: str, names: Collection[str]) -> None:
        self.kind, self.names = kind, names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for name in self.names:
            if str(value).lower() == name.lower():
                return name
        raise unknown_name(self.kind, str(value), self.names)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        begun = incomplete.lower()
        return [CompletionItem(name) for name in self.names if name.lower().startswith(begun)]


class TensorOptimizer(Name):
    """A name, ``A+B``, or names and ``ROLE=NAME`` with commas between; which tensors there are, the network says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "=" not in str(value):  # with others, this is one of several
            trained_by(str(value))
        return str(value)


class Count(click.ParamType[int]):
    """An integer between two limits, in ASCII digits."""

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
                raise UsageError(f"{label} is {value!r}, {error}; give a number from {between}") from None
        return limits.check_range(label, value, self.least, self.most)


class PathType(click.ParamType[Path]):
    """A path; whether it can be read or written is seen before any work (``tried``)."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        text, label = str(value), "the path" if param is None else f"the path of {param.opts[0]}"
        if not text.strip() or "\0" in text:
            raise UsageError(f"{label} is {text!r}; give a name")
        path = Path(text)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # what that means depends on what the path is for
        except (OSError, ValueError) as error:  # a link in a circle, a name that is too long
            raise UsageError(f"cannot use {path}: {files.describe_cause(error)}; choose another name") from None
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class ModuleName(click.ParamType[str]):
    """A function as ``FILE.py:NAME``, or another name; a file that is missing is refused before torch is imported."""

    name = "module"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        files.check_python_file(str(value).rpartition(":")[0])
        return str(value)


def completing(names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """A shell completes these; what else is typed is as good."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return {"shell_complete": complete}


def _quantities() -> Iterable[str]:
    from scaling_algebra.dynamics.quantities import quantities

    return quantities(ARCHITECTURES[DEFAULT_ARCHITECTURE])


COMPLETED = completing(_quantities)
"""Of what names a quantity: those of the network that is the default."""


def examples(*lines: str) -> str:
    """The end of a help text: commands to copy, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help text."""

    def decorate(command: Command) -> Command:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorate


def optimized(default: str = DEFAULT_OPTIMIZER) -> Callable[[Command], Command]:
    """The option --optimizer."""
    return click.option(
        "--optimizer",
        type=TensorOptimizer("optimizer", OPTIMIZERS),
        multiple=True,
        default=[default],
        show_default=True,
        callback=lambda ctx, param, value: ",".join(value),
        metavar="NAME",
        help="Optimizer, of all tensors or of each: adamw,expert_in=muon (repeatable). muon+adamw: muon for the "
        "matrices of hidden layers and experts, adamw for the rest.",
    )


OPTIMIZER = options(
    optimized(),
    click.option(
        "--epsilon",
        type=Name("epsilon regime", EPSILONS),
        metavar="NAME",
        help="Adam's epsilon: derived scales as the gradients (the default); negligible stays far below, as 1e-8.",
    ),
)
WHERE = options(
    click.option(
        "--regime",
        type=Name("regime", REGIMES),
        metavar="NAME",
        help="I: width and expert width grow; II: width and experts; III: all three.",
    ),
    click.option(
        "--ray",
        metavar="RATES",
        help="Instead of a regime, how each axis of the network grows: N=1,N_e=1/2,M=3/2; K=1/2 for fewer active "
        "experts.",
    ),
    OPTIMIZER,
)
"""--regime or --ray, and --optimizer with its --epsilon."""


TRACED = "scaling_algebra.traced"
"""The key in the context of a command: the name of a module that ``--model`` gives, and then what was read."""
TRACING = "scaling_algebra.verify.tracing.sources"
CONFIGS = "scaling_algebra.verify.tracing.config_reading"
"""The modules that read it, and a configuration of transformers; loaded by name, since only verify imports torch."""


MODEL = click.option(
    "--model",
    type=ModuleName(),
    metavar="FILE.py:NAME",
    callback=lambda ctx, param, value: ctx.meta.update({TRACED: value}),
    expose_value=False,
    help="Instead, a torch module: a function that builds it, or hf:config.json of transformers.",
)


def network_options(default: str = DEFAULT_ARCHITECTURE) -> Callable[[Command], Command]:
    """--architecture and --network, for ``chosen``."""
    names, text = Name("architecture", TITLES), "Instead of an architecture, a network of your own."
    return options(
        click.option("--architecture", type=names, metavar="NAME", help=f"Network.  [default: {default}]"),
        click.option("--network", type=PathType(), metavar="FILE.toml", help=text),
        MODEL,
    )


def configuration() -> Path | None:
    """The file that ``--model hf:FILE`` names, if it does."""
    name = click.get_current_context().meta.get(TRACED)
    return (
        Path(name.removeprefix(files.HUGGING_FACE))
        if isinstance(name, str) and name.startswith(files.HUGGING_FACE)
        else None
    )


def traced(*more: str, beside: Path | None = None) -> Any:
    """The module that ``--model`` names; None where there is none.

    Args:
        more: sizes, beside those in the arguments. beside: the configuration of the same model at another size.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(TRACED) is None:
        return None
    if isinstance(name := context.meta[TRACED], str):
        arguments = [*map(str, context.params.values()), *more]
        base = str(context.params.get("base") or "")
        context.meta[TRACED] = importlib.import_module(TRACING).read(name, arguments, beside, base)
    return context.meta[TRACED]


def chosen(architecture: str | None, network: Path | None) -> Network | None:
    """The network that is named; None for none.

    Raises:
        UsageError: both are given, or a file that is no network.
    """
    names = {"--architecture": architecture, "--network": network, "--model": traced()}
    if len(given := [name for name, value in names.items() if value is not None]) > 1:
        raise UsageError(f"{' and '.join(given)} both say which network; leave out one of them")
    if traced() is not None:
        return traced().network  # type: ignore[no-any-return]
    if network is not None:
        if str(network) in ARCHITECTURES and not network.exists():
            raise UsageError(f"there is no file {network}; to take the network that ships: --architecture {network}")
        return read_network(network)
    return None if architecture is None else ARCHITECTURES[architecture]


def network_of(command: Command) -> Command:
    """--architecture or --network; the command gets ``network``, a Network."""

    @wraps(command)
    def run(*arguments: Any, architecture: str | None, network: Path | None, **rest: Any) -> Any:
        read = chosen(architecture, network) or ARCHITECTURES[DEFAULT_ARCHITECTURE]
        if traced() is not None and "ray" in rest and rest["ray"] is None and rest.get("regime") is None:
            rest["ray"] = traced().ray
        return command(*arguments, network=read, **rest)

    return network_options()(run)


READOUT_INIT = click.option(
    "--readout-init",
    type=Name("readout init", READOUTS),
    metavar="KIND",
    help=f"{' or '.join(READOUTS)}; by default that of the parameterization's definition. In the "
    "paper's block MSSP's demands hold with maximal, too, and a model of text learns sooner with it under AdamW.",
)


GIVEN = click.option(
    "--given",
    multiple=True,
    metavar="NAME=POWER",
    help="Hold an exponent and derive the rest, e.g. router.init=N^-1/2, W2.lr=1/N, readout.init=0, aggregation=M^-1 "
    "(repeatable).",
)


STRICT = click.option(
    "--strict",
    is_flag=True,
    help="Only what is certified: no numbers and exit code 3 where a size is undecided, exit code 2 where a module "
    "cannot be read. recipe: exit code 1 where numbers are of the nearest ray, since that between the sizes has none.",
)


UNASSUMING = click.option(
    "--no-assumptions",
    "bare",
    is_flag=True,
    help="Nothing that assumes more than counting powers: of moe nothing, since its gates are held (derive --why).",
)


GAUGE = click.option(
    "--gauge",
    type=Name("gauge", GAUGES),
    default=OWN,
    show_default=True,
    metavar="NAME",
    help="Where powers stand: in std and rate (table3), or in multipliers (table8, table9 of Tensor Programs V): with "
    "--gauge table8 the readout is multiplied by 1/N. The training is the same.",
)


def parameterization(names: Collection[str] = PARAMETERIZATIONS, **more: Any) -> Callable[[Command], Command]:
    """--parameterization; ``default=None`` and another help text where a command takes several."""
    shown = {"default": DEFAULT_PARAMETERIZATION, "show_default": True, "help": "Parameterization.", **more}
    return click.option("--parameterization", type=Name("parameterization", names), metavar="NAME", **shown)


def asked(command: Command) -> Command:
    """Options that name one configuration; the command gets as its first argument what makes it of them."""

    @wraps(command)
    def run(*arguments: Any, regime: str | None, optimizer: str, parameterization: str, **rest: Any) -> Any:
        where: Any = {key: rest.pop(key) for key in ("ray", "readout_init", "network", "epsilon", "given")}
        return command(partial(Configuration.of, regime, optimizer, parameterization, **where), *arguments, **rest)

    return options(WHERE, parameterization(), network_of, READOUT_INIT, GIVEN)(run)


def configured(command: Command) -> Command:
    """Options that name one configuration; the command gets it as its first argument."""

    @wraps(command)
    def run(make: Callable[[], Configuration], *arguments: Any, **rest: Any) -> Any:
        return command(make(), *arguments, **rest)

    return asked(run)


class FormatName(Name):
    """A format of answers; those of trainers are named as what they are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() in TRAINERS:
            raise UsageError(f"{value} is a format of plans, by parameter: plan(model, base, target).export({value!r})")
        return super().convert(value, param, ctx)


TRAINERS = ("torchtitan", "megatron", "olmo-core", "nemo-automodel")
"""Formats of plans in Python."""


def format_option(extra: Iterable[str] = (), more: str = "") -> Callable[[Command], Command]:
    """--format, with formats that a command has besides those of documents, and what to say of them."""
    names = tuple(dict.fromkeys((*FORMATS, CSV, *extra)))
    text = f"{', '.join(names)}; by default text, or what the ending of -o FILE says.{more}"
    return click.option("--format", "form", type=FormatName("format", names), metavar="FORMAT", help=text)


FORMAT = format_option()
OUTPUT = click.option("-o", "--output", type=PathType(), metavar="FILE", help="Write to this file instead of stdout.")
SMTLIB = click.option(
    "--smtlib",
    type=PathType(),
    metavar="FILE.smt2",
    help="Of a proof: write the unsatisfiable systems as SMT-LIB 2, for another solver.",
)

Answer = str | Document | Sequence[Document]
"""The answer of a command: documents, in the format that is asked for, or a text as it is."""


def printed(extra: Mapping[str, str] | None = None, more: str = "") -> Callable[[Command], Command]:
    """--format and -o: prints or writes what the command returns, an ``Answer`` or that with an exit code.

    Args:
        extra: formats that the command has besides those of documents, with the endings of their files. Then the
            command gets ``form``, the format, and returns a text in these; None: text, or what an ending says.
        more: what the help text says of them.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(*arguments: Any, form: str | None, output: Path | None, **rest: Any) -> int:
            if extra and form is None and output is not None:
                form = next((name for name, ending in extra.items() if ending == output.suffix.lower() != ""), None)
            tried(output, form, besides=filter(None, (extra or {}).values()))
            returned = command(*arguments, **rest, **({"form": form} if extra else {}))
            answer, code = returned if isinstance(returned, tuple) else (returned, 0)
            if traced() is not None:
                answer = traced().beside(answer)
            emit(answer, form, output)
            return int(code)

        return options(format_option(extra or (), more), OUTPUT)(run)

    return decorate


def tried(file: Path | None, form: str | None = None, option: str = "-o", besides: Iterable[str] = ()) -> None:
    """Before the long part: a file that is to be written can be, and its ending names a format if none is given.

    Raises:
        UsageError: it cannot.
    """
    if file is None:
        return
    if form is None:
        format_of(file, "text", besides)
    files.check_writable(files.resolve_link(file), f"choose another {option} FILE")


def emit(answer: Answer, form: str | None, output: Path | None, default: str = "text") -> None:
    """Print documents, or write them to a file; what cannot be written is printed, so that it is not lost."""
    form = form or (format_of(output, default) if output is not None else default)
    text = answer if isinstance(answer, str) else render(answer, form)
    if output is not None:
        try:
            write(output, text + "\n")
        except UsageError:
            click.echo(text)
            raise
        documents = [answer] if isinstance(answer, Document) else () if isinstance(answer, str) else answer
        for closing in filter(None, (document.closing for document in documents)):
            click.echo(f"{closing}; rows in {output}")
    elif text:
        shown = form == "text" and sys.stdout.isatty()
        click.echo(coloured(fitted(text, get_terminal_size().columns)) if shown else text)


COLOURS = {"AGREES": "green", "DISAGREES": "red", "REFUTED": "red", "INCONCLUSIVE": "yellow", "UNDECIDED": "yellow"}


def coloured(text: str) -> str:
    """Verdicts in colour, unless ``NO_COLOR`` is set."""
    if os.environ.get("NO_COLOR"):
        return text
    return re.sub(rf"\b({'|'.join(COLOURS)})\b", lambda word: click.style(word[0], fg=COLOURS[word[0]]), text)


def fitted(text: str, width: int) -> str:
    """Lines that are wider than the terminal go on below where their last column begins."""
    lines: list[str] = []
    for line in text.splitlines():
        column = line.rstrip().rfind("  ", 0, 2 * width // 3) + 2
        start = column if column > 1 else len(line) - len(line.lstrip()) + 2
        wrap = TextWrapper(width, subsequent_indent=" " * start, break_long_words=False, break_on_hyphens=False)
        lines += wrap.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def write(file: Path, text: str) -> None:
    """A text file, in UTF-8 and with plain line ends on every system; behind a link, what it points to.

    Raises:
        UsageError: it cannot be written.
    """
    files.write_file(files.resolve_link(file), text)
