"""A cache of results that charges every query for the work of all results it needs, whether they were cached or not.

A *query* is one request from outside for the size of a quantity. Whether it exceeds its budget depends on this query
alone, not on earlier ones. Example: a product costs 500 nodes and two queries need it; it is computed once, and both
queries are charged 500.
Read next: ``trajectory.py`` (caches its results here), ``analysis.py`` (makes the queries).
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
        work: nodes visited to compute this result, without those for the results it needs.
        notes: the assumptions and reasons that the computation recorded (``TrainingRun.note``).
        needs: keys of the results it needs.
        result: the result; None until the computation has finished.
        done: True if the computation has finished.
    """

    work: int = 0
    notes: set[str] = field(default_factory=set)
    needs: set[Hashable] = field(default_factory=set)
    result: Any = None
    done: bool = False


class Ledger:
    """A cache of results that charges every query (a request for the size of a quantity) for the work of all results it
    needs, whether they were cached or not.

    Args:
        algebra: the algebra that counts the work and whose budget limits the work of a query.
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
        """Context manager for answering one query, that is, one request for the size of a quantity: at the start, no
        work has been charged to it. The work of a query inside another query is charged to the inner one only.
        """
        outer = self._limit, self._charged, self._total, self._open
        self._limit, self._charged, self._total, self._open = self._algebra.budget.max_total_nodes, set(), 0, []
        try:
            with self._algebra.collect_notes():
                yield
        finally:
            self._limit, self._charged, self._total, self._open = outer

    def remember(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Returns a cached result, or computes and caches it. In both cases its work is charged to the current query.

        Args:
            key: identifies the result.
            compute: computes it.

        Raises:
            Exhausted: the query needs more work than its budget allows.
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
        """Adds the work of a result, and of all results it needs, to the work of the current query. What this query has
        been charged for already is not added again.

        Raises:
            Exhausted: the total exceeds the budget of the query.
        """
        if key not in self._charged:
            self._total += self._sum_work(key, self._charged)
        if self._limit is not None and self._total > self._limit:
            raise Exhausted

    def _count_needed_work(self, key: Hashable, error: Exhausted) -> int:
        """Returns the work that the result ``key`` had needed when its computation failed because the work limit was
        exceeded, and records it in ``error``.

        If the limit was exceeded while another result was computed that this one needs, the work of that result is read
        from ``error``; the work of all results needed before is added.
        """
        on, known, work = error.needed
        if on not in self._entries[key].needs:  # it failed in another query
            known, work = set[Hashable](), 0
        work += self._sum_work(key, known)
        error.needed = key, known, work
        return work

    def _sum_work(self, key: Hashable, known: set[Hashable]) -> int:
        """Returns the work (nodes that searches visited) for a result and for all results it needs, except those whose
        keys are in ``known``. Adds the keys of the counted results to ``known``."""
        work, todo = 0, [key]
        while todo:
            name = todo.pop()
            if name not in known and (entry := self._entries.get(name)):
                known.add(name)
                work += entry.work
                todo += entry.needs
        return work
