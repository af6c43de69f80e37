"""All rays, covered by cones on which one answer holds.

Law: a ray inside what is left is asked, the cone around it on which its answer holds is taken away, until nothing is
left or nothing more is found. That the pieces leave no gap is checked by z3 (``all_rays/claims.covered``).
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
    """Cones, each with its answer, and the parts between them, as far as these have an inside.

    Args:
        around: the answer at a ray, and the cone around it on which it holds; None if there is none.
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
