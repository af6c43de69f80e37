"""The tails of a signal: the degree of the polynomial in Gaussians that its entries are, at most.

Sums over an index that grows are Gaussian, bounded functions have no tails, no function but exp grows faster than its
argument or has slopes that are not bounded. e to the power of degree one has all moments, of degree two or more none
for generic constants.
Read next: ``rules.py`` (asks it of what a softmax along an index that grows reads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scaling_algebra.spec.networks.language import Function, Network, Product, Statement
from scaling_algebra.spec.optimizers import Trained

STEEP = 16
"""The degree of e to the power of a Gaussian: above all of which e to the power has a second moment."""


class Tails:
    """Degrees of the signals of a run, each found once.

    Args:
        grows: does what an index runs over grow?
    """

    def __init__(self, network: Network, optimizer: Trained, grows: Callable[[str], bool]) -> None:
        self._network, self._optimizer, self._grows = network, optimizer, grows
        self._degrees: dict[tuple[str, str, int], int] = {}

    def initial(self, signal: str) -> int:
        """The degree of a signal before training."""
        return self._once("initial", signal, 0, self._initial)

    def change(self, signal: str, t: int) -> int:
        """The degree of the change of a signal after t updates.

        Law: a change is along the gradient where nothing bounds a step, and a square that is summed over an index that
        grows is its mean.
        """
        return self._once("change", signal, t, self._change)

    def gradient(self, signal: str, t: int) -> int:
        """The degree of the gradient at a signal, before the t-th update."""
        return self._once("gradient", signal, t, self._gradient)

    def _once(self, what: str, signal: str, t: int, compute: Callable[[str, int], int]) -> int:
        key = what, signal, t
        if key not in self._degrees:
            self._degrees[key] = compute(signal, t)
        return self._degrees[key]

    def _initial(self, signal: str, t: int) -> int:
        s = self._network.producer(signal)
        if s is None or self._bounded(s):
            return 0
        if _steep(s):
            return STEEP
        degrees = [self.initial(x.name) for x in s.inputs]
        return self._multiplied(s, signal, degrees) if isinstance(s, Product) else max(degrees)

    def _change(self, signal: str, t: int) -> int:
        s = self._network.producer(signal)
        if s is None or self._bounded(s):
            return 0
        if _steep(s):
            return STEEP
        moved = [self.change(x.name, t) for x in s.inputs]
        if not isinstance(s, Product):
            return max(moved)
        first = [self.initial(x.name) for x in s.factors]
        degrees = [0]
        for k, x in enumerate(s.factors):
            if self._network.producer(x.name):
                degrees.append(self._multiplied(s, signal, [*first[:k], moved[k], *first[k + 1 :]], t))
        if s.tensor and self._optimizer.of(s.tensor.name).normalises != "entry":
            letters = self._network.signals[signal]
            acted = [d for x, d in zip(s.factors, first, strict=True) if not self._summed(x.letters, letters)]
            degrees.append(self.gradient(signal, t) + 2 * sum(acted))
        return max(degrees)

    def _gradient(self, signal: str, t: int) -> int:
        paths = [0]
        for s, k in self._network.consumers(signal):
            above = STEEP if _steep(s) else self.gradient(s.out, t)
            if isinstance(s, Product):
                degrees = [above if j == k else self.initial(x.name) for j, x in enumerate(s.factors)]
                letters = [self._network.signals[s.out] if j == k else x.letters for j, x in enumerate(s.factors)]
                above = self._sum(s, s.factors[k].letters, zip(letters, degrees, strict=True), t)
            paths.append(above)
        return max(paths)

    def _multiplied(self, s: Product, signal: str, degrees: Iterable[int], t: int = 1) -> int:
        letters = (x.letters for x in s.factors)
        return self._sum(s, self._network.signals[signal], zip(letters, degrees, strict=True), t)

    def _sum(self, s: Product, out: str, operands: Iterable[tuple[str, int]], t: int) -> int:
        """The degree of a product that sums the letters its output lacks; what a tensor learnt has a degree, too."""
        whole = [*operands, *([(s.tensor.letters, min(t, 2))] if s.tensor else [])]
        kept = [d for letters, d in whole if not self._summed(letters, out)]
        return sum(kept) + (1 if len(kept) < len(whole) else 0)

    def _summed(self, letters: str, out: str) -> bool:
        return any(self._grows(c) for c in letters if c not in out)

    def _bounded(self, s: Statement) -> bool:
        return isinstance(s, Function) and (s.kind.bounded or s.source is None)


def _steep(s: Statement) -> bool:
    return isinstance(s, Function) and s.kind.steep
