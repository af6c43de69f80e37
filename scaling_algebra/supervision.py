"""Runs the command line in a child process if it calls foreign code, which may end the process without an answer.

``posix._exit``, ``os.execv`` or a crash in a library end a process regardless of any Python code still to run, with an
exit code that may mean success. The parent returns the exit code that the child reports, never the one it ends with.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that are passed on to the child."""


def find_foreign_code(arguments: Sequence[str]) -> str:
    """Returns the command-line argument that names code of the user, or an empty string if there is none.

    Such an argument is a module (``FILE.py:NAME``, ``hf:CONFIG.json``) or, for ``verify``, an optimizer in a TOML
    file, which may name a class of the user. Another argument that looks alike may be returned, too; then the command
    runs in a child process needlessly.
    """
    steps = next(iter(arguments), "") == "verify"
    return next((x for x in arguments if ":" in x or (steps and x.endswith(".toml"))), "")


def supervise(what: str, run: Callable[[], object]) -> int:
    """Runs a function that ends with SystemExit in a child process, and returns the exit code that it reports.

    Args:
        what: the argument that names foreign code, for the message.
        run: prints the answer, then raises SystemExit with the exit code.

    Returns:
        The exit code; 2 after a line on stderr if the child ended without one, 130 if it was interrupted before.
    """
    reading, writing = os.pipe()
    stops = {getattr(signal, name) for name in STOPS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*stops, signal.SIGCHLD})
    parent = os.getpid()
    if not (child := os.fork()):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _end_with(parent)
        _report(run, writing)
    os.close(writing)
    stopped, status = False, None
    while status is None:
        heard = signal.sigwaitinfo({*stops, signal.SIGCHLD})
        if heard.si_signo == signal.SIGCHLD:
            found, ended = os.waitpid(child, os.WNOHANG)
            status = ended if found else None
        else:
            stopped = True
            if heard.si_code <= 0:  # sent to this process alone; a terminal signals the child, too
                os.kill(child, heard.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.set_blocking(reading, False)  # a process that the child left behind may keep its end open
    with suppress(BlockingIOError):
        if reported := os.read(reading, 1):
            return reported[0]
    if stopped:
        return 130
    code = os.waitstatus_to_exitcode(status)
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    said = f"the code of {what} ended the program before there was an answer, {how}; let it return instead"
    sys.stderr.write(f"scalecalc: {''.join(x if x.isprintable() else ascii(x)[1:-1] for x in said)}\n")
    return 2


def _report(run: Callable[[], object], writing: int) -> None:
    """Runs a function in the child process, writes the exit code with which it ends to the pipe ``writing``, and ends
    the process.

    Output that code of the user prints after the function has ended is discarded.
    """
    code = 70
    try:
        run()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError):  # foreign code closed the pipe
        os.write(writing, bytes([code & 255]))
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for place in (1, 2):
            os.dup2(nowhere, place)
    sys.exit(code)


def _end_with(parent: int) -> None:
    """Asks the system to terminate this process when its parent is killed."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
