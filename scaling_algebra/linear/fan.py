"""Covers the cone of all rays by cones on each of which one answer is valid.

Method: compute the answer at a ray of the remaining region, remove the cone on which it is valid, and repeat until
nothing remains or no more answers are found. z3 checks that the pieces leave no gap (``all_rays/claims.decide_cover``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .cone import Cone
from .linear import Vector

Answered = TypeVar("Answered")


def fan(
    whole: Cone, around: Callable[[Vector], tuple[Cone, Answered] | None]
) -> tuple[list[tuple[Cone, Answered]], list[Cone]]:
    """Covers a cone by smaller cones on each of which one answer is valid.

    Args:
        whole: the cone to cover.
        around: returns, for a ray, a cone that contains it and the answer that is valid on this cone; None if there is
            no answer at this ray.

    Returns:
        The cones with their answers, and those parts of ``whole`` with an interior that none of them covers.
    """
    pieces: list[tuple[Cone, Answered]] = []
    empty: list[Cone] = []
    todo = [whole]
    while todo:
        part = todo.pop(0)
        piece = next(filter(None, map(around, part.inside())), None)
        if piece is None:
            empty.append(part)
            continue
        pieces.append(piece)
        todo = [rest for x in (part, *todo) for rest in x.without(piece[0])]
        empty = [rest for x in empty for rest in x.without(piece[0])]
    return pieces, empty
