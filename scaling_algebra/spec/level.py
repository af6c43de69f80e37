"""Levels of an answer: how much of it is proved. The first line of a table or plan names its level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scaling_algebra.errors import amount

NAMED = 8
"""How many tensors or signals a line names."""


@dataclass(frozen=True)
class Open:
    """A size that a demand asks for and that is undecided.

    Attributes:
        demand: one line. quantity, step: what is undecided, after how many updates. why: the obstacle.
        tensor: the role whose number the demand fixes, or that makes its signal; empty for none.
        most: the largest exponent that the demand allows; None for no limit.
    """

    demand: str
    quantity: str
    step: int
    why: str = ""
    tensor: str = ""
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.quantity} at t = {self.step} is undecided ({self.why or 'no certificate within the work limit'})"


@dataclass(frozen=True)
class Level:
    """Certified: every demand is decided and holds. Certified but for some sizes: nothing that is decided fails. By
    shape: the layer-wise law at full alignment, from shapes alone. Some demands fail: with what is given.

    Attributes:
        open: the sizes that are undecided.
        unread: what in a module cannot be read, where numbers are by shape.
        failed: the number of demands that fail with what is given.
    """

    open: tuple[Open, ...] = ()
    unread: str = ""
    failed: int = 0

    @classmethod
    def of(cls, levels: Iterable[Level | None]) -> Level | None:
        """The level of numbers from several sources; None where none of these has one."""
        known = [x for x in levels if x is not None]
        unread = next((x.unread for x in known if x.unread), "")
        return cls(tuple(dict.fromkeys(y for x in known for y in x.open)), unread) if known else None

    @property
    def certified(self) -> bool:
        return not (self.open or self.unread or self.failed)

    @property
    def code(self) -> int:
        """The exit code of what prints such numbers."""
        return 1 if self.failed else 0 if self.certified else 3

    @property
    def lines(self) -> tuple[str, ...]:
        """What is not shown, a line each, for below the numbers."""
        unread = (f"not certified, by shape: {self.unread}",) if self.unread else ()
        return (*unread, *(f"not certified: {x}" for x in self.open))

    @property
    def concerned(self) -> str:
        """A line that names the tensors of the undecided demands, then the signals of them that no tensor makes."""
        tensors = _few(x.tensor for x in self.open if x.tensor)
        signals = _few(x.quantity.partition(".")[0] for x in self.open if not x.tensor)
        beside = f"; and on signals that no tensor makes: {signals}" if signals else ""
        return f"undecided demands are on {tensors}{beside}" if tensors else ""

    def __str__(self) -> str:
        some = f"certified but for {amount(len(self.open), 'size')}"
        if self.failed:
            return f"{self.failed} demands fail" if self.failed > 1 else "1 demand fails"
        return "by shape" if self.unread else some if self.open else "certified"


def _few(names: Iterable[str]) -> str:
    """The first names, and the number of the others."""
    every = list(dict.fromkeys(names))
    more = [f"{len(every) - NAMED} more"] if len(every) > NAMED else []
    return ", ".join([*every[:NAMED], *more])


CERTIFIED = Level()


def recorded(level: Level | None) -> dict[str, Any]:
    """The keys of a level in a record: ``level``, ``open`` and, of numbers by shape, ``unread``; null without one."""
    if level is None:
        return {"level": None, "open": []}
    unread = {"unread": level.unread} if level.unread else {}
    return {"level": str(level), "open": [vars(x) for x in level.open], **unread}
