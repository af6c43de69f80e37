"""Searches for the matchings in a product of two Wick monomials: pairs of a left and a right leaf of the same name.

Branch and bound over partial matchings. The upper bound on the size is updated incrementally, the leaf that may reduce
it most is decided next, and among interchangeable components only one is tried.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from .canonical import Leaf


class Exhausted(Exception):
    """Raised when a computation exceeds its work limit, so that the answer is undecided.

    Attributes:
        needed: what failed, as (key of the outermost result that could not be computed, keys of all results that it
            needed, their work).
    """

    def __init__(self) -> None:
        super().__init__()
        self.needed: tuple[Hashable, set[Hashable], int] = None, set(), 0


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Describes which leaves are interchangeable: those at the same position of isomorphic components.

    Attributes:
        components: component of each leaf.
        places: position of each leaf in its component.
        kinds: kind of each component, equal for isomorphic components; negative if no other component is isomorphic.
    """

    components: tuple[int, ...]
    places: tuple[int, ...]
    kinds: tuple[int, ...]


class PartialMatching:
    """A matching in which some leaves are still undecided, and the index classes that result from it.

    Matching two leaves merges their classes. A merged class weighs at most what its classes weighed (1/2 each, 1 for a
    contracted pair), at most 1, and 1/2 once an unmatched leaf touches it. Open classes weigh nothing; merging two of
    them costs 1/2.

    Attributes:
        roots: for each class, the class that it was merged into.
        weight: weight of each class from its parts, in halves; for an open class, 1 minus the number of its open
            indices.
        max_weight: largest weight that each class may have, in halves: 2, or 1 if an unmatched leaf touches it, or 0 if
            it is open.
        upper_bound: upper bound on the size of every matching that extends this one; exact once all leaves are decided.
        touching: for each class the leaves that touch it, as a bit mask.
        undecided: undecided leaves, as a bit mask.
        unmatched: leaves decided to stay unmatched, as a bit mask.
        kinds: kind of each component, as in ``Exchanges``, with the places that were decided to stay unmatched.
        pairs: matched leaves (left, right).
    """

    __slots__ = ("kinds", "max_weight", "pairs", "roots", "touching", "undecided", "unmatched", "upper_bound", "weight")

    def __init__(
        self,
        roots: list[int],
        weight: list[int],
        max_weight: list[int],
        upper_bound: int,
        touching: list[int],
        undecided: int,
        unmatched: int,
        kinds: list[int],
        pairs: tuple[tuple[int, int], ...],
    ) -> None:
        self.roots, self.weight, self.max_weight, self.upper_bound = roots, weight, max_weight, upper_bound
        self.touching, self.undecided, self.unmatched, self.kinds, self.pairs = (
            touching,
            undecided,
            unmatched,
            kinds,
            pairs,
        )


class MatchingSearch:
    """Finds all matchings of left leaves with right leaves of the same name, up to exchanges of isomorphic components.

    A matching that leaves two leaves with the same name and classes unmatched is never larger than the one that matches
    them. It is omitted unless they have a class along which a mean may be subtracted (``centred``).

    Args:
        half_weights: half the exponent of each class's dimension.
        is_active: whether each class is an index of active experts.
        leaves: left leaves, then right leaves.
        left_count: number of left leaves.
        exchanges: interchangeable leaves; None if there are none.
        centred: classes along which a mean may be subtracted later.

    Attributes:
        matchings: the matchings that were found.
        omitted_bound: upper bound on the size of those below the floor; None if there are none.
        nodes_visited: number of partial and complete matchings visited.
    """

    def __init__(
        self,
        half_weights: Sequence[int],
        is_active: Sequence[bool],
        leaves: Sequence[Leaf],
        left_count: int,
        exchanges: Exchanges | None,
        centred: frozenset[int],
    ) -> None:
        self.half_weights, self.is_active, self.exchanges, self.centred = half_weights, is_active, exchanges, centred
        self.classes = [classes for _, classes in leaves]
        self.left_count = left_count
        sides: dict[str, list[int]] = {}
        for k, (name, _) in enumerate(leaves):
            sides.setdefault(name, [0, 0])[k >= left_count] |= 1 << k
        self.same_name = [sides[name][k < left_count] for k, (name, _) in enumerate(leaves)]
        self.candidates = list(self.same_name)
        self.floor: int | None = None
        self.matchings: list[PartialMatching] = []
        self.omitted_bound: int | None = None
        self.nodes_visited = 0

    def search(self, start: PartialMatching, floor: int | None, limit: int | None) -> None:
        """Collects the matchings whose size is at least ``floor`` in ``matchings``.

        Args:
            start: the partial matching to extend.
            floor: smallest size; None for all matchings.
            limit: maximum number of nodes; None for no limit.

        Raises:
            Exhausted: the limit is exceeded.
        """
        self.floor = floor
        if not self._reaches_floor(start.upper_bound) or not self._exclude_pairs(start):
            return
        stack = [start]
        while stack:
            partial = stack.pop()
            while True:
                self.nodes_visited += 1
                if limit is not None and self.nodes_visited > limit:
                    raise Exhausted
                if not partial.undecided:
                    if not self._is_dominated(partial):
                        self.matchings.append(partial)
                    break
                x = self._choose_leaf(partial)
                self._push_matches(partial, x, stack)
                if not self._leave_unmatched(partial, self._find_copies(partial, x)):
                    break
        self.matchings.reverse()  # matchings with a leaf matched come before those without

    def _exclude_pairs(self, start: PartialMatching) -> bool:
        """Excludes pairs of leaves whose matching would make the size too small (below the floor), and leaves those
        without any other partner unmatched.

        Returns:
            Whether a matching that extends the result can still reach the floor.
        """
        while True:
            alone = 0
            for x, options in enumerate(self.candidates):
                if start.undecided >> x & 1:
                    if x < self.left_count:
                        for y in iterate_bits(options & start.undecided):
                            if not self._pair_may_fit(start, x, y) and self._try_match(start, x, y) is None:
                                options ^= 1 << y
                                self.candidates[y] ^= 1 << x
                        self.candidates[x] = options
                    if not options & start.undecided:
                        alone |= 1 << x
            if not alone:
                return True
            if not self._leave_unmatched(start, alone):
                return False

    def _push_matches(self, partial: PartialMatching, x: int, stack: list[PartialMatching]) -> None:
        """Pushes the partial matchings in which leaf ``x`` is matched onto the stack, one for each essentially
        different partner."""
        exchanges = self.exchanges
        tried = set()
        for y in iterate_bits(self.candidates[x] & partial.undecided):
            if exchanges is not None:
                kind = partial.kinds[exchanges.components[y]], exchanges.places[y]
                if kind in tried:
                    continue
                tried.add(kind)
            if self._pair_may_fit(partial, x, y):
                after = self._try_match(partial, x, y)
                if after is not None:
                    stack.append(after)

    def _pair_may_fit(self, partial: PartialMatching, x: int, y: int) -> bool:
        """Tests quickly whether matching leaves ``x`` and ``y`` may give a size that reaches the floor.

        It cannot if merging a single pair of their classes loses too much. Always True if a matching below the floor
        may be larger than all that were excluded so far, so that ``omitted_bound`` is correct.
        """
        floor, cut = self.floor, self.omitted_bound
        if floor is None or cut is None:
            return True
        roots, weight, max_weight, half_weights = partial.roots, partial.weight, partial.max_weight, self.half_weights
        spare = partial.upper_bound - floor
        for c, d in zip(self.classes[x], self.classes[y], strict=True):
            r, s = roots[c], roots[d]
            if r != s:
                if self.is_active[s]:
                    r, s = s, r
                whole, both = merge_weights(weight[r], max_weight[r], weight[s], max_weight[s])
                loss = half_weights[r] * (min(weight[r], max_weight[r]) - min(whole, both)) + half_weights[s] * min(
                    weight[s], max_weight[s]
                )
                if loss > spare and partial.upper_bound - loss <= cut:
                    return False
        return True

    def _choose_leaf(self, partial: PartialMatching) -> int:
        """Chooses the leaf to decide next: of those that touch a class which may still weigh 1, the one with the
        fewest partners."""
        hot, undecided = 0, partial.undecided
        half_weights, weight, touching = self.half_weights, partial.weight, partial.touching
        for r, max_weight in enumerate(partial.max_weight):
            if max_weight == 2 and weight[r] >= 2 and half_weights[r]:
                hot |= touching[r]
        hot &= undecided
        if not hot:
            return (undecided & -undecided).bit_length() - 1
        best, fewest = -1, 0
        while hot:
            x = (hot & -hot).bit_length() - 1
            hot &= hot - 1
            options = (self.candidates[x] & undecided).bit_count()
            if best < 0 or options < fewest:
                best, fewest = x, options
        return best

    def _try_match(self, partial: PartialMatching, x: int, y: int) -> PartialMatching | None:
        """Returns the partial matching with leaves ``x`` and ``y`` matched, too; None if it falls below the floor."""
        roots, bound, half_weights = partial.roots, partial.upper_bound, self.half_weights
        weight, max_weight = partial.weight.copy(), partial.max_weight.copy()
        touching = partial.touching.copy()
        for c, d in zip(self.classes[x], self.classes[y], strict=True):
            r, s = roots[c], roots[d]
            if r == s:
                continue
            if self.is_active[s]:
                r, s = s, r
            whole, both = merge_weights(weight[r], max_weight[r], weight[s], max_weight[s])
            bound += half_weights[r] * (min(whole, both) - min(weight[r], max_weight[r])) - half_weights[s] * min(
                weight[s], max_weight[s]
            )
            roots = merge_roots(roots, r, s)
            weight[r], max_weight[r], weight[s], max_weight[s] = whole, both, 0, 0
            touching[r] |= touching[s]
        if not self._reaches_floor(bound):
            return None
        kind = partial.kinds
        if self.exchanges is not None:
            p, q = self.exchanges.components[x], self.exchanges.components[y]
            kind = kind.copy()
            kind[p], kind[q] = ~p, ~q
        pair = (x, y) if x < y else (y, x)
        after = PartialMatching(
            roots,
            weight,
            max_weight,
            bound,
            touching,
            partial.undecided & ~(1 << x | 1 << y),
            partial.unmatched,
            kind,
            (*partial.pairs, pair),
        )
        alone = 0
        for z in iterate_bits(after.undecided & (self.candidates[x] | self.candidates[y])):
            if not self.candidates[z] & after.undecided:
                alone |= 1 << z
        return after if not alone or self._leave_unmatched(after, alone) else None

    def _find_copies(self, partial: PartialMatching, x: int) -> int:
        """Returns a leaf and all undecided leaves that it is interchangeable with, as a bit mask.

        If the leaf is to stay unmatched, all of these may stay unmatched, too, since exchanging them gives the same
        monomials.
        """
        exchanges = self.exchanges
        if exchanges is None or partial.kinds[exchanges.components[x]] < 0:
            return 1 << x
        kind, place, copies = partial.kinds[exchanges.components[x]], exchanges.places[x], 0
        for z, component in enumerate(exchanges.components):
            if exchanges.places[z] == place and partial.kinds[component] == kind:
                copies |= 1 << z
        return copies

    def _leave_unmatched(self, partial: PartialMatching, leaves: int) -> bool:
        """Decides, in place, that some leaves stay unmatched, and with them those that have no other partner.

        Args:
            partial: the partial matching to change.
            leaves: the leaves, as a bit mask.

        Returns:
            Whether the result can still reach the floor.
        """
        exchanges, roots, max_weight = self.exchanges, partial.roots, partial.max_weight
        while leaves:
            partial.undecided &= ~leaves
            partial.unmatched |= leaves
            partners = 0
            for x in iterate_bits(leaves):
                partners |= self.candidates[x]
                for c in self.classes[x]:
                    r = roots[c]
                    if max_weight[r] == 2:
                        max_weight[r] = 1
                        if partial.weight[r] > 1:
                            partial.upper_bound -= self.half_weights[r]
                if exchanges is not None and partial.kinds[exchanges.components[x]] >= 0:
                    partial.kinds[exchanges.components[x]] |= 1 << exchanges.places[x]
            leaves = 0
            for y in iterate_bits(partners & partial.undecided):
                if not self.candidates[y] & partial.undecided:
                    leaves |= 1 << y
        return self._reaches_floor(partial.upper_bound)

    def _reaches_floor(self, bound: int) -> bool:
        """Tests whether an upper bound on a size is at least the floor. If it is not, the matching is omitted, and
        ``omitted_bound`` is raised to the bound."""
        if self.floor is not None and bound < self.floor:
            if self.omitted_bound is None or bound > self.omitted_bound:
                self.omitted_bound = bound
            return False
        return True

    def _is_dominated(self, partial: PartialMatching) -> bool:
        """Tests whether a matching leaves two leaves with the same name and classes unmatched, a left and a right one,
        so that another one is at least as large."""
        roots = partial.roots
        centred = {roots[c] for c in self.centred}
        for x in iterate_bits(partial.unmatched & (1 << self.left_count) - 1):
            left = [roots[c] for c in self.classes[x]]
            if centred.isdisjoint(left):
                for y in iterate_bits(self.same_name[x] & partial.unmatched):
                    if left == [roots[d] for d in self.classes[y]]:
                        return True
        return False


def merge_weights(weight: int, max_weight: int, other: int, other_max: int) -> tuple[int, int]:
    """Returns the weight of the class that results from merging two classes of weights ``weight`` and ``other``.

    Returns:
        Weight and maximum weight of the merged class, in halves.
    """
    if max_weight and other_max:
        return weight + other, min(max_weight, other_max)
    if max_weight or other_max:
        return (other if max_weight else weight), 0
    return weight + other - 1, 0


def iterate_bits(mask: int) -> Iterator[int]:
    """Yields the positions of the bits of a number."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def merge_roots(roots: list[int], kept: int, gone: int) -> list[int]:
    """Returns the root of each class after the class ``gone`` is merged into ``kept``."""
    return [kept if r == gone else r for r in roots]
