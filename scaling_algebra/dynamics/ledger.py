"""A cache of results that charges every question for the work of all results it needs, whether cached or not.

So whether a question exceeds its budget depends on the question alone, not on what was asked earlier. Example: a
product costs 500 nodes and two questions need it; it is computed once, and both questions are charged 500.
Read next: ``trajectory.py`` (caches its results here), ``analysis.py`` (asks questions).
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
    """A cached result.

    Attributes:
        work: work for this result, without that for the results it needs.
        notes: notes that were made during the computation.
        needs: keys of the results it needs.
        result: the result.
        done: True if the computation has finished.
    """

    work: int = 0
    notes: set[str] = field(default_factory=set)
    needs: set[Hashable] = field(default_factory=set)
    result: Any = None
    done: bool = False


class Ledger:
    """Caches results, and charges every question for the work of all results it needs.

    Args:
        algebra: counts the work, and has the budget of a question.
    """

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
        """Opens a new question, which has not been charged anything yet. A nested question is charged separately."""
        outer = self._limit, self._charged, self._total, self._open
        self._limit, self._charged, self._total, self._open = self._algebra.budget.max_total_nodes, set(), 0, []
        try:
            with self._algebra.collect_notes():
                yield
        finally:
            self._limit, self._charged, self._total, self._open = outer

    def remember(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Returns the result of a computation, which runs only the first time.

        Args:
            key: identifies the result.
            compute: computes it.

        Raises:
            Exhausted: the question needs more work than its budget allows.
        """
        if key in self._beyond:
            raise Exhausted
        if self._open:
            self._open[-1].needs.add(key)
        entry = self._entries.get(key)
        if entry is None or not entry.done:
            self._algebra.meter.add(0)  # raises if no work is left
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
                if self._limit is not None and self._count_needed_work(key, error) > self._limit:
                    self._beyond.add(key)
                raise
            finally:
                self._open.pop()
        self._charge(key)
        self._algebra.notes.update(entry.notes)
        return entry.result  # type: ignore[no-any-return]

    def _charge(self, key: Hashable) -> None:
        """Adds the work of a result, and of all results it needs, to the question, each only once."""
        if key not in self._charged:
            self._total += self._sum_work(key, self._charged)
        if self._limit is not None and self._total > self._limit:
            raise Exhausted

    def _count_needed_work(self, key: Hashable, error: Exhausted) -> int:
        """Returns the work of everything that an unfinished result needed until it failed, and records it in ``error``.

        The sum consists of the work of the result on which the computation failed (from ``error``) and of that of all
        other results needed before.
        """
        on, known, work = error.needed
        if on not in self._entries[key].needs:  # it failed in another question
            known, work = set[Hashable](), 0
        work += self._sum_work(key, known)
        error.needed = key, known, work
        return work

    def _sum_work(self, key: Hashable, known: set[Hashable]) -> int:
        """Returns the work of a result and of all results it needs, except those in ``known``, to which all of them are
        added."""
        work, todo = 0, [key]
        while todo:
            name = todo.pop()
            if name not in known and (entry := self._entries.get(name)):
                known.add(name)
                work += entry.work
                todo += entry.needs
        return work
