"""How much of an answer is proved. The first line of a table or plan states it.

A demand restricts a size from above and from below. The upper bound shows that nothing grows too large: the network is
stable. The lower bound shows that the update is large enough: the network learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from scaling_algebra.errors import count_noun

NAMED = 8
"""Maximum number of tensors or signals named in one line."""


@dataclass(frozen=True)
class OpenDemand:
    """A demand that is undecided.

    Attributes:
        demand: the demand, as one line.
        quantity: the quantity whose size is undecided.
        step: number of updates after which it is undecided.
        why: the reason why no certificate was found.
        tensor: role of the tensor whose init std, learning rate or epsilon the demand determines; if it determines
            none, of the tensor that computes the signal of ``quantity``; "" if no tensor does.
        most: largest exponent of n that the demand allows for the quantity; None if it sets no upper bound.
        stable: True if the upper bound is proved, so that only the lower one is missing.
    """

    demand: str
    quantity: str
    step: int
    why: str = ""
    tensor: str = ""
    most: int | None = None
    stable: bool = False

    def __str__(self) -> str:
        return f"{self.quantity} at t = {self.step} is undecided ({self.why or 'no certificate within the work limit'})"

    @property
    def concerns(self) -> str:
        """The tensor, or else the signal, that the demand is about."""
        return self.tensor or self.quantity.partition(".")[0]


@dataclass(frozen=True)
class Level:
    """How much of an answer is proved.

    Attributes:
        open: demands that are undecided; empty if every demand is decided and holds.
        unread: why the equations of a module could not be read, so that its numbers are by shape; "" if they were read.
        failed: number of demands that fail with the values that the user gave.
        bounded: all demands that set an upper bound on a size, each as one line, whether they are decided or not.
        learned: all demands that set a lower bound on a size, each as one line, whether they are decided or not.
    """

    open: tuple[OpenDemand, ...] = ()
    unread: str = ""
    failed: int = 0
    bounded: frozenset[str] = field(default=frozenset(), compare=False)
    learned: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, levels: Iterable[Level | None]) -> Level | None:
        """Combines the levels of several results into one for all of them; None if no result has a level."""
        known = [x for x in levels if x is not None]
        if not known:
            return None
        return cls(
            tuple(dict.fromkeys(y for x in known for y in x.open)),
            next((x.unread for x in known if x.unread), ""),
            bounded=frozenset().union(*(x.bounded for x in known)),
            learned=frozenset().union(*(x.learned for x in known)),
        )

    @property
    def certified(self) -> bool:
        return not (self.open or self.unread or self.failed)

    @property
    def code(self) -> int:
        """The exit code of a command that prints the numbers: 1 if a demand fails, 3 if one is undecided, else 0."""
        return 1 if self.failed else 0 if self.certified else 3

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each reason why the numbers are not certified, such as an undecided demand. They are printed
        below the numbers.
        """
        unread = (f"not certified, by shape: {self.unread}",) if self.unread else ()
        return (*unread, *(f"not certified: {x}" for x in self.open))

    @property
    def unstable(self) -> tuple[OpenDemand, ...]:
        """Undecided demands whose upper bound is missing."""
        return tuple(x for x in self.open if x.demand in self.bounded and not x.stable)

    @property
    def unlearned(self) -> tuple[OpenDemand, ...]:
        """Undecided demands of which only the lower bound is missing."""
        shown = set(self.unstable)
        return tuple(x for x in self.open if x.demand in self.learned and x not in shown)

    @property
    def concerned(self) -> str:
        """One line that names the tensors or signals of undecided demands, in groups: those whose stability is not
        shown, those that may not learn, and all others.
        """
        stated = {*self.unstable, *self.unlearned}
        groups = {
            "not shown to stay bounded": self.unstable,
            "stable, but not shown to learn": self.unlearned,
            "undecided": [x for x in self.open if x not in stated],
        }
        return "; ".join(f"{what}: {_join_first(x.concerns for x in which)}" for what, which in groups.items() if which)

    def __str__(self) -> str:
        if self.failed:
            return f"{self.failed} demands fail" if self.failed > 1 else "1 demand fails"
        if self.unread or not self.open:
            return "by shape" if self.unread else "certified"
        stability = _format_share(len(self.bounded), {x.demand for x in self.unstable})
        learning = _format_share(len(self.learned), {x.demand for x in self.open} & self.learned)
        shown = [f"stability shown for {stability} demands, learning for {learning}"] if self.bounded else []
        others = len(self.open) - len(self.unstable) - len(self.unlearned)
        return ", ".join([*shown, *([f"{count_noun(others, 'size')} undecided"] if others else [])])


def _format_share(asked: int, missing: Set[str]) -> str:
    """Formats how many of ``asked`` demands are not in ``missing``: ``all 12``, or ``10 of 12``."""
    return f"{asked - len(missing)} of {asked}" if missing else f"all {asked}"


def _join_first(names: Iterable[str]) -> str:
    """Joins the first ``NAMED`` distinct names and counts the others: ``router, readout, 3 more``."""
    every = list(dict.fromkeys(names))
    more = [f"{len(every) - NAMED} more"] if len(every) > NAMED else []
    return ", ".join([*every[:NAMED], *more])


CERTIFIED = Level()


def level_as_json(level: Level | None) -> dict[str, Any]:
    """Returns a JSON record that says how much of an answer is proved.

    Args:
        level: how much is proved; None for an answer that has no demands.

    Returns:
        ``level`` (one line, or null), ``open`` (a record for each undecided demand), ``demands`` (the number of demands
        on stability and on learning), and ``unread`` (the reason) if the module could not be read.
    """
    if level is None:
        return {"level": None, "open": []}
    unread = {"unread": level.unread} if level.unread else {}
    asked = {"stability": level.bounded, "learning": level.learned}
    demands = {name: len(every) for name, every in asked.items() if every}
    return {"level": str(level), "open": [vars(x) for x in level.open], "demands": demands, **unread}
