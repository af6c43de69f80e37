"""While a verb works: signals that stop it, and a line on the terminal that says that it goes on."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

AFTER, EVERY = 3.0, 1.0
"""Seconds until the line is shown, and between two of them."""
_CLEAR = "\r\x1b[2K"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP, as batch systems send them before they kill, act as Ctrl-C: once, and unless ignored."""
    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    usual = {s: signal.getsignal(s) for s in names if signal.getsignal(s) is signal.SIG_DFL}
    if threading.current_thread() is not threading.main_thread():
        usual = {}

    def stop(number: int, frame: Any) -> None:
        for s in usual:
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt

    for s in usual:
        signal.signal(s, stop)
    try:
        yield
    finally:
        for s, handler in usual.items():
            signal.signal(s, handler)


@contextmanager
def watched(verb: str, after: float = AFTER) -> Iterator[None]:
    """A line on stderr, where that is a terminal, that says how long a verb has worked; gone before anything else is
    printed."""
    terminal = sys.stderr
    if not terminal.isatty():
        yield
        return
    line = _Line(verb, terminal)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Behind(sys.stdout, line), _Behind(terminal, line)
    thread = threading.Thread(target=line.keep, args=(after,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        line.over.set()
        thread.join()
        line.clear()
        sys.stdout, sys.stderr = streams


class _Line:
    def __init__(self, verb: str, terminal: TextIO) -> None:
        self.verb, self.terminal = verb, terminal
        self.over, self.lock, self.shown, self.began = threading.Event(), threading.Lock(), False, time.monotonic()

    def keep(self, after: float) -> None:
        while not self.over.wait(after):
            self._write(
                f"{_CLEAR}scalecalc {self.verb}: at work for {time.monotonic() - self.began:.0f} s; Ctrl-C stops"
            )
            after = min(after, EVERY)

    def clear(self) -> None:
        if self.shown:
            self._write("")

    def _write(self, text: str) -> None:
        with self.lock, suppress(OSError, ValueError):
            self.terminal.write(text or _CLEAR)
            self.terminal.flush()
            self.shown = bool(text)


class _Behind:
    """A stream whose text goes where the line was."""

    def __init__(self, stream: Any, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: Any) -> Any:
        self._line.clear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
