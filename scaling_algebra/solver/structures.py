"""The search for the fewest interventions: structures in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator

from scaling_algebra.spec.desiderata import Demand, Intervention, Structure, list_interventions
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.waiting import current_work, describe_work


class Structures:
    """Iterates over the structures that MSSP may choose (which tensors start at zero or alike, which signals are free).

    It begins with the fewest changes to the structure ``base`` (interventions), and yields each structure once.
    Larger ones are yielded only if smaller ones are rejected (``reject``).

    Law: if a demand on one sum over experts fails, only an intervention at this sum can help. Demands are examined in
    the order of the equations, those on signals before those on gradients. So when a demand on a sum fails, the
    demands on the inputs of this sum are met.

    Args:
        network: the network.
        base: the structure without interventions.
        structural: True to try interventions; False to yield ``base`` only.
    """

    def __init__(self, network: Network, base: Structure, structural: bool) -> None:
        self.options: list[Intervention] = list_interventions(network) if structural else []
        self._level: dict[Structure, tuple[int, ...]] = {base: ()}
        self._next: dict[Structure, tuple[int, ...]] = {}
        self.found = False

    def __iter__(self) -> Iterator[Structure]:
        """Yields structures, those with fewer interventions first. Once ``found`` is set, because one has worked, only
        structures with as few interventions follow.
        """
        before = current_work()
        try:
            while self._level:
                for structure in sorted(self._level, key=self._level.__getitem__):
                    describe_work(f"{before}: {structure}" if self.options else before)
                    yield structure
                self._level, self._next = ({} if self.found else self._next), {}
        finally:
            describe_work(before)

    def reject(self, structure: Structure, demand: Demand | None) -> None:
        """Rejects a structure, and adds structures with one more intervention to those that are tried later.

        The further intervention belongs to the sum over experts that the failed ``demand`` is about, or to no sum. If
        the demand is about no sum, or is None, it may be any intervention.
        """
        chosen = self._level[structure]
        for k, option in enumerate(self.options):
            more, mends = option.on(structure), demand is None or not demand.sum or option.sum in ("", demand.sum)
            if mends and more != structure and k not in chosen:
                self._next.setdefault(more, tuple(sorted((*chosen, k))))
