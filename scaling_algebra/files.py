"""Reads and writes files: UTF-8, written completely or not at all, and every error is one line.

A file is written to a temporary name in its folder, flushed to the disk and renamed. So a full disk, a kill or a second
process leaves either the old file or the new one.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files as resources
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from .errors import UsageError, guard_foreign_code

MOST = 2**24
"""Maximum number of bytes of a text that is read."""

DOTS = 64
"""Maximum number of dots in a TOML key; each is a nested table."""

HUGGING_FACE = "hf:"
"""Prefix of a model argument that names a Hugging Face configuration: ``hf:CONFIG.json``."""


def read_text(path: Path, instead: str, most: int = MOST) -> str:
    """Returns the text of a file, without a byte order mark.

    Args:
        path: a regular file; a pipe or a device, which may never end, is refused without being opened.
        instead: what to do if it cannot be read; the end of the message.
        most: maximum number of bytes.

    Raises:
        UsageError: the file cannot be read, is larger than ``most``, or is not text in UTF-8.
    """
    with _report_in_one_line(f"read {path}", instead):
        if _is_special(path):
            raise ValueError("it is a pipe or a device, not a regular file")
        with open(path, "rb") as file:
            content = file.read(most + 1)
    if len(content) > most:
        size = f"{most // 2**20} MiB" if most >= 2**20 else f"{most // 2**10} KiB"
        raise UsageError(f"cannot read {path}: it is larger than {size}; {instead}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: this is not text in UTF-8; {instead}") from None


def parse_toml(text: str, number: Callable[[str], Any] = float) -> dict[str, Any]:
    """Parses TOML written by a user.

    Args:
        text: the TOML.
        number: converts a number with a decimal point; by default to a float.

    Raises:
        UsageError: the text is not TOML, is nested too deeply, or has an integer of thousands of digits.
    """
    keys = (part for line in text.splitlines() for part in line.split("=")[:-1] or [line])
    if any(part.count(".") > DOTS for part in keys):
        raise UsageError(f"a key has more than {DOTS} dots; nest fewer tables")
    try:
        return tomllib.loads(text, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not valid TOML: {error}") from None


def load_shipped_toml(package: str, name: str) -> dict[str, Any]:
    """Loads a TOML file that is installed with a package.

    Args:
        package: the dotted name of the package.
        name: the file name.
    """
    return tomllib.loads((resources(package) / name).read_text("utf-8"))


def check_python_file(where: str) -> None:
    """Checks that a module given by its file, `FILE.py`, exists.

    Raises:
        UsageError: there is no such file, or it is no regular file.
    """
    with _report_in_one_line(f"read {where}", "give a file of Python as FILE.py:NAME"):
        if where.endswith(".py") and not Path(where).is_file():
            raise UsageError(f"no file {where}; give a file of Python as FILE.py:NAME")


def import_python(where: str) -> Any:
    """Imports a Python file, or an installed module by name; this runs its code.

    Raises:
        UsageError: there is no such file, or its code fails.
    """
    check_python_file(where)
    path, file = Path(where), where.endswith(".py")
    folder = str(path.parent.resolve()) if file else ""
    sys.path.insert(0, folder)
    try:
        with guard_foreign_code(where, "; the file must run without errors when it is imported"):
            spec: Any = spec_from_file_location(f"_scaling_{path.stem}", path) if file else None
            if spec is None:
                return importlib.import_module(where)
            module = sys.modules[spec.name] = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    finally:
        sys.path.remove(folder)


def write_file(path: Path, content: bytes | str, instead: str = "choose another file") -> None:
    """Writes a file completely or not at all; text in UTF-8 with plain line ends.

    A link is replaced, not followed. A pipe or a device is written into.

    Args:
        path: the file.
        content: its content.
        instead: what to do if it cannot be written; the end of the message.

    Raises:
        UsageError: it cannot be written.
    """
    content = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with _report_in_one_line(f"write {path}", instead):
        if _is_special(path):
            path.write_bytes(content)
            return
        part = _name_temporary(path.parent)
        try:
            with open(part, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def resolve_link(path: Path) -> Path:
    """Returns the target of a symbolic link, and any other path unchanged.

    Raises:
        UsageError: the link is circular.
    """
    try:
        return path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError):
        raise UsageError(f"cannot use {path}: it is a link that goes in a circle; choose another name") from None


def check_writable(path: Path, instead: str = "choose another file") -> None:
    """Checks that a file can be written, without creating or changing it.

    Args:
        path: the file; it need not exist.
        instead: what to do if it cannot be written; the end of the message.

    Raises:
        UsageError: it cannot be written.
    """
    with _report_in_one_line(f"write {path}", instead):
        if _is_special(path):
            return
        if path.is_dir():
            raise ValueError("it is a folder")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: {path.parent} is not a folder; create it or {instead}")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        check_folder(path.parent)


def make_folder(folder: Path, instead: str = "choose another folder") -> None:
    """Creates a folder if it does not exist, and checks that files can be written into it.

    Raises:
        UsageError: it cannot be created, or not be written into.
    """
    with _report_in_one_line(f"write into {folder}", instead):
        folder.mkdir(parents=True, exist_ok=True)
        check_folder(folder)


def check_place(folder: Path, instead: str = "choose another folder") -> None:
    """Checks that a folder can be created, or written into if it exists. The check leaves no folder or file behind.

    Raises:
        UsageError: the folder cannot be created, or not be written into.
    """
    with _report_in_one_line(f"write into {folder}", instead):
        check_folder(next(place for place in (folder, *folder.absolute().parents) if place.exists()))


def check_folder(folder: Path) -> None:
    """Checks that files can be written into an existing folder.

    Raises:
        OSError: no file can be written there.
    """
    part = _name_temporary(folder)
    part.touch(exist_ok=False)
    part.unlink()


@contextmanager
def lock(folder: Path, instead: str) -> Iterator[None]:
    """Locks a folder against other processes. The system releases the lock if the process is killed.

    Raises:
        UsageError: another process has the lock.
    """
    try:
        import fcntl  # Windows has none
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process writes into {folder}; {instead}") from None
        yield
    finally:
        os.close(handle)


def _name_temporary(folder: Path) -> Path:
    """Returns a name for a temporary file in a folder, which no existing file has."""
    return folder / f".scalecalc-{uuid.uuid4().hex}.part"


@contextmanager
def _report_in_one_line(what: str, instead: str) -> Iterator[None]:
    """Turns an OSError or ValueError that is raised inside the context into a UsageError with the message ``cannot
    WHAT: CAUSE; INSTEAD``.
    """
    try:
        yield
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot {what}: {describe_cause(error)}; {instead}") from None


def describe_cause(error: Exception) -> str:
    """Returns the operating system's reason for an error, or else the error's own message."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _is_special(path: Path) -> bool:
    """Tests whether a path is a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
