"""The cost of a question: the work of every intermediate result it needs, whether or not that was computed before.

So that what is decided depends on the question alone, not on what was asked earlier. Read next: ``trajectory.py``
(remembers its results here), ``analysis.py`` (asks questions).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted

Result = TypeVar("Result")


@dataclass
class _Entry:
    """A result, the work of it alone, the results it needed, and what is noted of it."""

    work: int = 0
    notes: set[str] = field(default_factory=set)
    needs: set[Hashable] = field(default_factory=set)
    result: Any = None
    done: bool = False


class Ledger:
    """Remembers results, and charges every question for all that it needs."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._limit: int | None = None
        self._entries: dict[Hashable, _Entry] = {}
        self._open: list[_Entry] = []
        self._charged: set[Hashable] = set()
        self._total = 0
        self._beyond: set[Hashable] = set()

    @contextmanager
    def question(self) -> Iterator[None]:
        """A new question: nothing is charged yet. Inside another one it is charged for itself."""
        outer = self._limit, self._charged, self._total, self._open
        self._limit, self._charged, self._total, self._open = self._algebra.budget.max_total_nodes, set(), 0, []
        try:
            with self._algebra.collect_notes():
                yield
        finally:
            self._limit, self._charged, self._total, self._open = outer

    def remembered(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The result of a computation, done once.

        Raises:
            Exhausted: the question needs more work than the rung has.
        """
        if key in self._beyond:
            raise Exhausted
        if self._open:
            self._open[-1].needs.add(key)
        entry = self._entries.get(key)
        if entry is None or not entry.done:
            self._algebra.meter.add(0)  # where no work is left, none is begun
            entry = self._entries[key] = _Entry()
            self._open.append(entry)
            try:
                with self._algebra.collect_notes() as notes:
                    try:
                        entry.result = compute()
                    finally:
                        entry.work = self._algebra.nodes_visited
                entry.notes, entry.done = notes, True
            except Exhausted as error:
                if self._limit is not None and self._failed(key, error) > self._limit:
                    self._beyond.add(key)
                raise
            finally:
                self._open.pop()
        self._charge(key)
        self._algebra.notes.update(entry.notes)
        return entry.result  # type: ignore[no-any-return]

    def _charge(self, key: Hashable) -> None:
        if key not in self._charged:
            self._total += self._work(key, self._charged)
        if self._limit is not None and self._total > self._limit:
            raise Exhausted

    def _failed(self, key: Hashable, error: Exhausted) -> int:
        """The work of all that a result needed before it failed: that of the one it failed on, and the rest."""
        on, known, work = error.needed
        if on not in self._entries[key].needs:  # of another question
            known, work = set[Hashable](), 0
        work += self._work(key, known)
        error.needed = key, known, work
        return work

    def _work(self, key: Hashable, known: set[Hashable]) -> int:
        """The work of a result and of all that it needed, without what is known; now it is."""
        work, todo = 0, [key]
        while todo:
            name = todo.pop()
            if name not in known and (entry := self._entries.get(name)):
                known.add(name)
                work += entry.work
                todo += entry.needs
        return work
