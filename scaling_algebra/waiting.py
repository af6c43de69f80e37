"""While a verb works: signals that stop it, and a line on the terminal that says that it goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

AFTER = 3.0
"""Seconds until the line is shown."""
_CLEAR = "\r\x1b[2K"


def ended(number: int, frame: Any) -> None:
    """Ends the program where there is nothing to put away: before a verb works, and after it."""
    os.write(2, b"scalecalc: interrupted\n")
    os._exit(130)


def heard() -> dict[Any, Any]:
    """Signals that stop a program, unless they are ignored or somebody else has them: with their handlers."""
    names = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    free = (signal.SIG_DFL, signal.default_int_handler, ended)
    here = threading.current_thread() is threading.main_thread()
    return {s: handler for s in names if here and (handler := signal.getsignal(s)) in free}


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP, as batch systems send them before they kill, act as Ctrl-C, once."""
    usual = heard()

    def stop(number: int, frame: Any) -> None:
        for s in usual:
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt

    for s in usual:
        signal.signal(s, signal.default_int_handler if s is signal.SIGINT else stop)
    try:
        yield
    finally:
        for s, handler in usual.items():
            signal.signal(s, handler)


@contextmanager
def watched(verb: str, after: float = AFTER) -> Iterator[None]:
    """A line on a terminal's stderr that says that a verb goes on; gone before anything else is printed."""
    terminal = sys.stderr
    if not terminal.isatty():
        yield
        return
    line = _Line(verb, terminal)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Behind(sys.stdout, line), _Behind(terminal, line)
    timer = threading.Timer(after, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.clear()
        sys.stdout, sys.stderr = streams


class _Line:
    def __init__(self, verb: str, terminal: TextIO) -> None:
        self.text, self.terminal, self.shown = f"scalecalc {verb}: at work; Ctrl-C stops", terminal, False
        self.lock = threading.Lock()

    def show(self, text: str = "") -> None:
        with self.lock, suppress(OSError, ValueError):
            self.terminal.write(text or self.text)
            self.terminal.flush()
            self.shown = not text

    def clear(self) -> None:
        if self.shown:
            self.show(_CLEAR)


class _Behind:
    """A stream whose text goes where the line was."""

    def __init__(self, stream: Any, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: Any) -> Any:
        self._line.clear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
