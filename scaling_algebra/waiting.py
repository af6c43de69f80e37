"""What surrounds a running command: signals that stop it, a progress line on the terminal, rare garbage collections."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar

Item = TypeVar("Item")
AFTER = 1.0
"""Seconds until the progress line is shown, and between its updates."""
GARBAGE = 200_000, 10, 100
"""Thresholds of the cyclic garbage collector. Almost nothing that is computed here is garbage; with Python's default
thresholds the collector takes a fifth of the time for a large network.
"""
_CLEAR = "\r\x1b[2K"
_NOW = [""]
_COLLECTING, _THRESHOLDS = threading.Lock(), list[tuple[int, int, int]]()


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Makes Python's garbage collections rare inside a context, by the thresholds ``GARBAGE``. The previous
    thresholds are restored when no thread is inside such a context any more.
    """
    with _COLLECTING:
        _THRESHOLDS.append(_THRESHOLDS[0] if _THRESHOLDS else gc.get_threshold())
        gc.set_threshold(*GARBAGE)
    try:
        yield
    finally:
        with _COLLECTING:
            before = _THRESHOLDS.pop()
            if not _THRESHOLDS:
                gc.set_threshold(*before)


def describe_work(text: str = "") -> None:
    """Sets the description of the current work, such as ``deriving: 61 of 74 demands``; empty for no work."""
    _NOW[0] = text


def current_work() -> str:
    """Returns the description that ``describe_work`` set; empty for no work."""
    return _NOW[0]


def iterate_with_progress(doing: str, what: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yields items one by one and describes each as the current work: ``deriving: 61 of 74 demands``.

    Args:
        doing: the activity, ``deriving``.
        what: the plural of the items, ``demands``.
        items: the items.
    """
    before = said = current_work()
    try:
        for k, x in enumerate(items, 1):
            describe_work(said := f"{doing}: {k} of {len(items)} {what}")
            yield x
    finally:
        if current_work() == said:  # a loop left by an error may be closed late
            describe_work(before)


@contextmanager
def describe_work_inside(text: str) -> Iterator[None]:
    """Sets the description of the current work for the progress line, and restores the previous one after the
    context."""
    before = current_work()
    describe_work(text)
    try:
        yield
    finally:
        describe_work(before)


def end_now(number: int, frame: Any) -> None:
    """Ends the program at once, as a signal handler.

    The handler is installed before a command starts to work and after it has ended, when there is nothing to clean up.
    """
    os.write(2, b"scalecalc: interrupted\n")
    os._exit(130)


def find_stop_handlers() -> dict[Any, Any]:
    """Returns the signals that stop a program with their handlers, except those that are ignored or handled by other
    code.

    The result is empty outside the main thread, where Python cannot set handlers.
    """
    names = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    free = (signal.SIG_DFL, signal.default_int_handler, end_now)
    here = threading.current_thread() is threading.main_thread()
    return {s: handler for s in names if here and (handler := signal.getsignal(s)) in free}


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP, which batch systems send before a kill, act as Ctrl-C, once.

    The KeyboardInterrupt that is raised contains the description of the current work, since ``current_work`` no
    longer returns it when the exception is handled.
    """
    usual = find_stop_handlers()

    def stop(number: int, frame: Any) -> None:
        for s in usual if number != signal.SIGINT else ():
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt(current_work())

    for s in usual:
        signal.signal(s, stop)
    try:
        yield
    finally:
        for s, handler in usual.items():
            signal.signal(s, handler)


@contextmanager
def show_progress(verb: str, after: float = AFTER) -> Iterator[None]:
    """Shows a progress line on a terminal's stderr, and removes it before anything else is printed.

    Args:
        verb: the command.
        after: seconds until the line is shown, and between its updates.
    """
    terminal = sys.stderr
    if not terminal.isatty():
        yield
        return
    line = _Line(verb, terminal)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _ClearingStream(sys.stdout, line), _ClearingStream(terminal, line)
    threading.Thread(target=line.keep, args=(after,), daemon=True).start()
    try:
        yield
    finally:
        line.clear()
        sys.stdout, sys.stderr = streams


class _Line:
    """The progress line of a command."""

    def __init__(self, verb: str, terminal: TextIO) -> None:
        self.verb, self.terminal, self.shown = verb, terminal, False
        self.lock, self.gone = threading.Lock(), threading.Event()

    def keep(self, every: float) -> None:
        while not self.gone.wait(every):
            self.show(
                f"{_CLEAR if self.shown else ''}scalecalc {self.verb}: {current_work() or 'at work'}; Ctrl-C stops",
                True,
            )

    def show(self, text: str, stays: bool) -> None:
        with self.lock, suppress(OSError, ValueError):
            if stays == self.gone.is_set():
                return
            self.terminal.write(text)
            self.terminal.flush()
            self.shown = stays

    def clear(self) -> None:
        self.gone.set()
        if self.shown:
            self.show(_CLEAR, False)


class _ClearingStream:
    """A standard stream that removes the progress line before it writes."""

    def __init__(self, stream: Any, line: _Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: Any) -> Any:
        self._line.clear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
