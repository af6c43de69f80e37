"""Error messages for users: a single line that says what failed, where, and what to do."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from typing import TypeVar

Entry = TypeVar("Entry")


MESSAGE, QUOTED = 700, 160
"""Maximum number of characters of a message, and of one word in it."""
_EXIT = os._exit
ROMAN = {"1": "I", "2": "II", "3": "III"}
NEARBY, NAMED = 400, 6
"""Maximum number of names among which a close match is searched, and of wrong names that a message quotes."""


class UsageError(ValueError):
    """Raised on wrong input. The command line prints the message, shortened, as one line and exits with the attribute
    ``code``, by default 2.
    """

    code = 2

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message))


class Inconclusive(UsageError):
    """Raised if the answer is not known. The command line prints the message and exits with code 3."""

    code = 3


class Unsatisfiable(Exception):
    """Raised if no solution meets the demands. The command line prints the message as one line and exits with code
    1.
    """


def shorten(message: str) -> str:
    """Cuts long words in the middle, and then the message if it is still too long."""
    words = (_cut(word, QUOTED) for word in message[: 2**16].split(" "))
    return _cut(" ".join(words), MESSAGE)


def count_noun(count: int, what: str) -> str:
    """Writes a number with its noun in singular or plural.

    Examples:
        >>> count_noun(1, "update"), count_noun(0, "update")
        ('1 update', '0 updates')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def quote_value(value: object) -> str:
    """Returns the ``repr`` of any value for a message, shortened; it never fails."""
    try:
        return _cut(_join_lines(repr(value)), QUOTED)
    except Exception:  # an integer of thousands of digits, or a foreign object
        return f"a {type(value).__name__} that cannot be printed"


@contextmanager
def forbid_exit() -> Iterator[None]:
    """Makes ``os._exit`` raise SystemExit in foreign code.

    Otherwise foreign code (of the user or a library) that calls ``os._exit(0)`` would end this program as if it had
    succeeded. Child processes that the foreign code starts can still end themselves.
    """
    process = os.getpid()

    def raise_exit(code: int) -> None:
        if os.getpid() != process:
            _EXIT(code)
        raise SystemExit(code)

    before = os._exit
    try:
        os._exit = raise_exit  # type: ignore[assignment]
        yield
    finally:
        os._exit = before


@contextmanager
def guard_foreign_code(where: str | Callable[[], str], instead: str = "") -> Iterator[None]:
    """Runs code of a user or a library inside a context, and reports any failure of it as a UsageError.

    What the code prints goes to stderr, so that stdout has the answer alone.

    Args:
        where: beginning of the message, or a function that returns it when it is needed.
        instead: end of the message: what to do.

    Raises:
        UsageError: the code raises an exception other than UsageError and KeyboardInterrupt, ends the program, or
            closes a standard stream.
    """
    try:
        with forbid_exit(), redirect_stdout(sys.stderr):
            yield
        if _reopen_streams():
            raise ValueError("it closed the standard output")
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        _reopen_streams()
        what = "ends the program" if isinstance(error, SystemExit) else f"raises {describe_error(error)}"
        raise UsageError(f"{where if isinstance(where, str) else where()} {what}{instead}") from error


def _reopen_streams() -> bool:
    """Reopens the standard streams that foreign code closed, and returns whether there were any."""
    closed = [name for name in ("stdout", "stderr") if getattr(getattr(sys, name), "closed", False)]
    for name in closed:
        setattr(sys, name, open(1 + (name == "stderr"), "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    return bool(closed)


def describe_error(error: BaseException) -> str:
    """Describes an exception in one line, even if its own ``str`` fails."""
    try:
        return _join_lines(f"{type(error).__name__}: {error}".strip(": "))
    except Exception:
        return type(error).__name__


def _join_lines(text: str) -> str:
    return " ".join(x.strip() for x in text.splitlines())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def missing_package_error(what: str, module: str, extra: str) -> UsageError:
    """Returns the error for a package that is not installed, with the command that installs it.

    Args:
        what: the command or function that needs it.
        module: the name of the package.
        extra: the name of the group of optional dependencies that contains the package, as in ``scalecalc[EXTRA]``.
    """
    how = f'pip install "scalecalc[{extra}] @ git+<URL of its repository>"'
    return UsageError(f'{what} needs {module}; install it with: {how}, or in a checkout: pip install -e ".[{extra}]"')


def unknown_name_error(kind: str, name: str | Sequence[str], choices: Iterable[str]) -> UsageError:
    """Returns the error for unknown names, with the nearest known ones.

    Example: ``no optimizer named 'adm'; did you mean 'adam'? known: adam, adamw, sgd, signsgd``.

    Args:
        kind: what the names are names of, such as ``optimizer``.
        name: one unknown name or several.
        choices: the known names.
    """
    names, wrong = list(dict.fromkeys(islice(choices, NEARBY))), [name] if isinstance(name, str) else list(name)
    lowered = {n.lower(): n for n in names}
    more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    wrong = [x if len(x) <= QUOTED else _cut(x, QUOTED) for x in wrong[:NAMED]]
    near = [difflib.get_close_matches(ROMAN.get(x, x).lower(), lowered, n=1, cutoff=0.4) for x in wrong]
    meant = dict.fromkeys(lowered[found] for (found,) in filter(None, near))
    hint = f"; did you mean {', '.join(map(repr, meant))}?" if meant else "."
    told = f"no {kind} named {', '.join(map(repr, wrong))}{more}{hint} known: "
    fits = [len(", ".join(names[: k + 1])) + len(told) <= MESSAGE - 20 for k in range(len(names))]
    some = [*names[: sum(fits)], *([f"{fits.count(False)} more"] if not all(fits) else [])]
    return UsageError(told + (("none" if not names else ", ".join(some)) if len(names) <= 40 else "see scalecalc list"))


def check_names(kind: str, names: Iterable[str], choices: Collection[str]) -> None:
    """Checks that names are among the choices.

    Raises:
        UsageError: some of the names are not among the choices; the message quotes them.
    """
    if wrong := [name for name in dict.fromkeys(names) if name not in choices]:
        raise unknown_name_error(kind, wrong, choices)


def find_entry(kind: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """Returns the entry of a registry (a mapping from names to entries) that has this name, in upper or lower case.

    Raises:
        UsageError: there is no entry of this name.
    """
    for key, entry in registry.items():
        if isinstance(name, str) and name.lower() == key.lower():
            return entry
    raise unknown_name_error(kind, name if isinstance(name, str) else quote_value(name), registry)
