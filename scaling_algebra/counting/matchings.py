"""Searches for the matchings of a product: leaves of one kernel with leaves of the same name of another.

Branch and bound over partial matchings. The bound is updated incrementally, the leaf that may reduce it most is decided
next, and among interchangeable components only one is tried.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from .canonical import Leaf


class Exhausted(Exception):
    """A search exceeded its work limit, so that the answer is undecided.

    Attributes:
        needed: the result that failed last on the way out, all results that it needed, and their work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.needed: tuple[Hashable, set[Hashable], int] = None, set(), 0


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Which leaves may be exchanged.

    Attributes:
        component: component of each leaf.
        place: position of each leaf in its component.
        kind: kind of each component. Components of one kind may be exchanged, position by position. Negative if no
            other component has this kind.
    """

    component: tuple[int, ...]
    place: tuple[int, ...]
    kind: tuple[int, ...]


class PartialMatching:
    """A matching of some leaves, and the index classes that result from it.

    A merged class weighs at most what its classes weighed (1/2 each, 1 for a contracted pair), at most 1, and 1/2 once
    an unmatched leaf touches it. Open classes weigh nothing; merging two of them costs 1/2.

    Attributes:
        forest: for each class, the class that it was merged into.
        mass: weight of each class from its parts, in halves; for an open one, 1 minus the number of its open indices.
        most: largest weight that it may have, in halves: 2, or 1 if an unmatched leaf touches it, or 0 if it is open.
        bound: upper bound on the rms of every matching that extends this one; exact when all leaves are decided.
        near: leaves that touch each class, as a bit mask.
        rest: undecided leaves, as a bit mask.
        apart: leaves decided to stay unmatched, as a bit mask.
        kind: kind of each component, as in ``Exchanges``, with the positions that were decided to stay unmatched.
        pairs: matched leaves (left, right).
    """

    __slots__ = ("apart", "bound", "forest", "kind", "mass", "most", "near", "pairs", "rest")

    def __init__(
        self,
        forest: list[int],
        mass: list[int],
        most: list[int],
        bound: int,
        near: list[int],
        rest: int,
        apart: int,
        kind: list[int],
        pairs: tuple[tuple[int, int], ...],
    ) -> None:
        self.forest, self.mass, self.most, self.bound, self.near = forest, mass, most, bound, near
        self.rest, self.apart, self.kind, self.pairs = rest, apart, kind, pairs


class MatchingSearch:
    """Finds the matchings of the first ``lefts`` leaves with the others, by name, up to exchanges of equal components.

    A matching that leaves two leaves with the same name and classes unmatched is never larger than the one that matches
    them. It is omitted unless they have a class along which a mean may be subtracted (``centred``).

    Attributes:
        matchings: the matchings within the floor.
        cut: upper bound on the rms of the others; None if there are none.
        nodes: number of partial and complete matchings visited.
    """

    def __init__(
        self,
        half: Sequence[int],
        active: Sequence[bool],
        leaves: Sequence[Leaf],
        lefts: int,
        alike: Exchanges | None,
        centred: frozenset[int],
    ) -> None:
        self.half, self.active, self.alike, self.centred = half, active, alike, centred
        self.touched = [classes for _, classes in leaves]
        self.lefts = lefts
        sides: dict[str, list[int]] = {}
        for k, (name, _) in enumerate(leaves):
            sides.setdefault(name, [0, 0])[k >= lefts] |= 1 << k
        self.partners = [sides[name][k < lefts] for k, (name, _) in enumerate(leaves)]
        self.allowed = list(self.partners)
        self.floor: int | None = None
        self.matchings: list[PartialMatching] = []
        self.cut: int | None = None
        self.nodes = 0

    def run(self, start: PartialMatching, floor: int | None, limit: int | None) -> None:
        """Finds the matchings whose rms is at least ``floor``; all of them if it is None.

        Raises:
            Exhausted: the search has more nodes than ``limit``.
        """
        self.floor = floor
        if not self._within(start.bound) or not self._allow(start):
            return
        stack = [start]
        while stack:
            at = stack.pop()
            while True:
                self.nodes += 1
                if limit is not None and self.nodes > limit:
                    raise Exhausted
                if not at.rest:
                    if not self._is_dominated(at):
                        self.matchings.append(at)
                    break
                x = self._next(at)
                self._match(at, x, stack)
                if not self._leave(at, self._copies(at, x)):
                    break
        self.matchings.reverse()  # those that match come before those that do not

    def _allow(self, start: PartialMatching) -> bool:
        """Excludes pairs below the floor, and decides leaves that then have no partner.

        Returns:
            Whether the result is still within the floor.
        """
        while True:
            alone = 0
            for x, options in enumerate(self.allowed):
                if start.rest >> x & 1:
                    if x < self.lefts:
                        for y in iterate_bits(options & start.rest):
                            if not self._single(start, x, y) and self._try_match(start, x, y) is None:
                                options ^= 1 << y
                                self.allowed[y] ^= 1 << x
                        self.allowed[x] = options
                    if not options & start.rest:
                        alone |= 1 << x
            if not alone:
                return True
            if not self._leave(start, alone):
                return False

    def _match(self, at: PartialMatching, x: int, stack: list[PartialMatching]) -> None:
        """Pushes the partial matchings in which a leaf is matched, one for each different partner."""
        alike = self.alike
        tried = set()
        for y in iterate_bits(self.allowed[x] & at.rest):
            if alike is not None:
                kind = at.kind[alike.component[y]], alike.place[y]
                if kind in tried:
                    continue
                tried.add(kind)
            if self._single(at, x, y):
                after = self._try_match(at, x, y)
                if after is not None:
                    stack.append(after)

    def _single(self, at: PartialMatching, x: int, y: int) -> bool:
        """Tests cheaply whether a pair of leaves may be within the floor.

        It is not if merging one pair of classes alone loses too much. Always True if a matching below the floor may be
        larger than all that were excluded so far, so that ``cut`` is correct.
        """
        floor, cut = self.floor, self.cut
        if floor is None or cut is None:
            return True
        forest, mass, most, half = at.forest, at.mass, at.most, self.half
        spare = at.bound - floor
        for c, d in zip(self.touched[x], self.touched[y], strict=True):
            r, s = forest[c], forest[d]
            if r != s:
                if self.active[s]:
                    r, s = s, r
                whole, both = merge_weights(mass[r], most[r], mass[s], most[s])
                loss = half[r] * (min(mass[r], most[r]) - min(whole, both)) + half[s] * min(mass[s], most[s])
                if loss > spare and at.bound - loss <= cut:
                    return False
        return True

    def _next(self, at: PartialMatching) -> int:
        """Chooses the leaf to decide next: one that touches a class which may still weigh 1, with the fewest
        partners."""
        hot, rest = 0, at.rest
        half, mass, near = self.half, at.mass, at.near
        for r, most in enumerate(at.most):
            if most == 2 and mass[r] >= 2 and half[r]:
                hot |= near[r]
        hot &= rest
        if not hot:
            return (rest & -rest).bit_length() - 1
        best, fewest = -1, 0
        while hot:
            x = (hot & -hot).bit_length() - 1
            hot &= hot - 1
            options = (self.allowed[x] & rest).bit_count()
            if best < 0 or options < fewest:
                best, fewest = x, options
        return best

    def _try_match(self, at: PartialMatching, x: int, y: int) -> PartialMatching | None:
        """Returns a partial matching with one more pair; None if it falls below the floor."""
        forest, mass, most, near, bound = at.forest, at.mass.copy(), at.most.copy(), at.near.copy(), at.bound
        half = self.half
        for c, d in zip(self.touched[x], self.touched[y], strict=True):
            r, s = forest[c], forest[d]
            if r == s:
                continue
            if self.active[s]:
                r, s = s, r
            whole, both = merge_weights(mass[r], most[r], mass[s], most[s])
            bound += half[r] * (min(whole, both) - min(mass[r], most[r])) - half[s] * min(mass[s], most[s])
            forest = merge_roots(forest, r, s)
            mass[r], most[r], mass[s], most[s] = whole, both, 0, 0
            near[r] |= near[s]
        if not self._within(bound):
            return None
        kind = at.kind
        if self.alike is not None:
            p, q = self.alike.component[x], self.alike.component[y]
            kind = kind.copy()
            kind[p], kind[q] = ~p, ~q
        pair = (x, y) if x < y else (y, x)
        after = PartialMatching(
            forest, mass, most, bound, near, at.rest & ~(1 << x | 1 << y), at.apart, kind, (*at.pairs, pair)
        )
        alone = 0
        for z in iterate_bits(after.rest & (self.allowed[x] | self.allowed[y])):
            if not self.allowed[z] & after.rest:
                alone |= 1 << z
        return after if not alone or self._leave(after, alone) else None

    def _copies(self, at: PartialMatching, x: int) -> int:
        """Returns a leaf and the leaves that it may be exchanged with, as a bit mask.

        If the leaf is decided to stay unmatched, all of these may be.
        """
        alike = self.alike
        if alike is None or at.kind[alike.component[x]] < 0:
            return 1 << x
        kind, place, copies = at.kind[alike.component[x]], alike.place[x], 0
        for z, component in enumerate(alike.component):
            if alike.place[z] == place and at.kind[component] == kind:
                copies |= 1 << z
        return copies

    def _leave(self, at: PartialMatching, leaves: int) -> bool:
        """Decides that leaves stay unmatched, and with them those that have no other partner.

        Returns:
            Whether the result is within the floor.
        """
        alike, forest, most = self.alike, at.forest, at.most
        while leaves:
            at.rest &= ~leaves
            at.apart |= leaves
            partners = 0
            for x in iterate_bits(leaves):
                partners |= self.allowed[x]
                for c in self.touched[x]:
                    r = forest[c]
                    if most[r] == 2:
                        most[r] = 1
                        if at.mass[r] > 1:
                            at.bound -= self.half[r]
                if alike is not None and at.kind[alike.component[x]] >= 0:
                    at.kind[alike.component[x]] |= 1 << alike.place[x]
            leaves = 0
            for y in iterate_bits(partners & at.rest):
                if not self.allowed[y] & at.rest:
                    leaves |= 1 << y
        return self._within(at.bound)

    def _within(self, bound: int) -> bool:
        """Tests whether a bound is at least the floor; if not, updates ``cut``."""
        if self.floor is not None and bound < self.floor:
            if self.cut is None or bound > self.cut:
                self.cut = bound
            return False
        return True

    def _is_dominated(self, at: PartialMatching) -> bool:
        """Tests whether two leaves with the same name and classes are left unmatched."""
        forest = at.forest
        centred = {forest[c] for c in self.centred}
        for x in iterate_bits(at.apart & (1 << self.lefts) - 1):
            roots = [forest[c] for c in self.touched[x]]
            if centred.isdisjoint(roots):
                for y in iterate_bits(self.partners[x] & at.apart):
                    if roots == [forest[d] for d in self.touched[y]]:
                        return True
        return False


def merge_weights(mass: int, most: int, other: int, other_most: int) -> tuple[int, int]:
    """Returns mass and maximum weight of the class that two classes are merged to, in halves."""
    if most and other_most:
        return mass + other, min(most, other_most)
    if most or other_most:
        return (other if most else mass), 0
    return mass + other - 1, 0


def iterate_bits(mask: int) -> Iterator[int]:
    """Yields the positions of the bits of a number."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def merge_roots(forest: list[int], kept: int, gone: int) -> list[int]:
    """Returns the forest (root of each class) with the root ``gone`` replaced by ``kept``."""
    return [kept if r == gone else r for r in forest]
