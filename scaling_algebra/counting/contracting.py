"""Multiplies two signals: pairs of kernels from the largest product down, and upper bounds on the rest.

Read next: ``kernels.py`` (the product of two kernels), ``algebra.py`` (products of any number).
"""

from __future__ import annotations

from collections.abc import Callable

from .kernels import Exhausted, Kernel, Matching, find_matching, population
from .signals import Provenance, Signal, larger_size
from .sizes import SignalSizes

PRODUCT_WORK = 16
"""Work of a product besides its matching searches, in nodes of these."""


def multiply_signals(algebra: SignalSizes, a: Signal, b: Signal, out: str, tag: str, gap: int) -> Signal:
    """Multiplies two signals, as ``Algebra.contract`` describes.

    Args:
        algebra: the algebra.
        a: the first factor.
        b: the second factor.
        out: the indices of the result.
        tag: the kind of product.
        gap: packed size; products of kernels this far below the result are dropped. If negative, only those that cannot
            exceed the result are dropped.

    Raises:
        Exhausted: the product exceeds the work budget.
    """
    algebra.meter.add(PRODUCT_WORK)
    spec, contraction, cost = algebra.meeting(a.indices, b.indices, out)
    extra = bound_product(algebra, a, b, out)
    weights = algebra.weights
    left, right = algebra.rank_kernels(a), algebra.rank_kernels(b)
    step, work = algebra.step, algebra.rung.work
    terms: dict[int, int] = {}
    lead: int | None = None
    dropped: int | None = None
    doubts = any(algebra.in_doubt[k] for _, k, _ in right)
    loss: int | None = None
    for ra, ka, ea in left:
        for rb, kb, eb in right:
            reach, doubted = ra + rb + extra, algebra.in_doubt[ka] or algebra.in_doubt[kb]
            if lead is not None and (reach < lead - gap if gap >= 0 else algebra.value(reach) <= algebra.value(lead)):
                alike = gap >= 0 and (doubts or doubted) and algebra.value(reach) >= algebra.value(lead - gap)
                if not alike:
                    dropped = larger_size(dropped, reach)
                    loss = larger_size(loss, reach) if doubts or doubted else loss
                    break
                if not doubted:
                    dropped = larger_size(dropped, reach)
                    continue
            e0 = ea + eb
            top = ra + rb + cost
            slack = max(gap, 0) if lead is None else top - lead + gap
            while True:
                slack = -(-slack // step) * step
                try:
                    kernels, cut, nodes = algebra.multiply_kernels(ka, kb, spec, contraction, slack, work)
                except Exhausted:
                    algebra.meter.add(work or 0)
                    raise
                algebra.meter.add(nodes)
                algebra.spent += nodes
                if work is not None:
                    work -= nodes
                for k, gain in kernels:
                    e = e0 + gain
                    if k not in terms or algebra.before(k, e, terms[k]):
                        terms[k] = e
                        size = e + weights[k]
                        if lead is None or size > lead:
                            lead = size
                if (lead is not None and slack >= top - lead + gap) or cut is None:
                    break
                slack = slack + step if lead is None else top - lead + gap
            if cut is not None:
                dropped = larger_size(dropped, top + cut)
                loss = larger_size(loss, top + cut) if doubted else loss
    if algebra.rung.whole and dropped is not None:
        raise Exhausted
    for s, other in ((a, b), (b, a)):
        if (s.tail is None and s.loss is None) or (most := _bound_dropped(algebra, s, other, out, extra)) is None:
            continue
        dropped = dropped if s.tail is None else larger_size(dropped, s.tail + most)
        loss = loss if s.loss is None else larger_size(loss, s.loss + most)
    made = Provenance("product", (a, b), tag=tag)
    return algebra.prune(algebra.inherit_attributes(Signal(out, terms, dropped, made=made, loss=loss)))


def find_origin(algebra: SignalSizes, s: Signal, k: int) -> tuple[int, int, Callable[[Kernel, Kernel], Matching]]:
    """Finds a pair of kernels of the two factors of a product whose product contains a kernel.

    Args:
        algebra: the algebra.
        s: the product.
        k: id of the kernel.

    Returns:
        The ids of the two kernels, and a function that finds the matching for any labelling of their leaves.
    """
    assert s.made is not None and s.made.rule == "product"
    a, b = s.made.parts
    spec, contraction, cost = algebra.meeting(a.indices, b.indices, s.indices)
    extra, size = bound_product(algebra, a, b, s.indices), s.terms[k] + algebra.weights[k]
    for ra, ka, ea in algebra.rank_kernels(a):
        for rb, kb, eb in algebra.rank_kernels(b):
            if ra + rb + extra < size:
                break
            slack = -(-max(ra + rb + cost - size, 0) // algebra.step) * algebra.step
            try:
                kernels, _, _ = algebra.multiply_kernels(ka, kb, spec, contraction, slack, algebra.rung.work)
            except Exhausted:
                continue
            gain = dict(kernels).get(k)
            if gain is None or ea + eb + gain != s.terms[k]:
                continue

            def is_wanted(kernel: Kernel, coherent: tuple[str, ...], gain: int = gain) -> bool:
                return kernel == algebra.kernels[k] and sum(2 * algebra.half[axis] for axis in coherent) == gain

            def matching(left: Kernel, right: Kernel, slack: int = slack) -> Matching:
                return find_matching(left, right, contraction, algebra.halves, algebra.grains(slack), is_wanted)

            return ka, kb, matching
    raise LookupError("no product of the factors has this kernel")


def bound_product(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int:
    """Returns an upper bound on the size of a product, relative to the product of the sizes of its factors.

    Law: by Cauchy-Schwarz over the summed indices, rms(a b) <= (their dimensions) rms(a) rms(b), entry by entry of the
    indices that both have and the result keeps. A signal is exchangeable along every axis, and moments of polynomials
    in Gaussians are equivalent (hypercontractivity), so an average over such entries loses no power of n, except for
    entries with equal indices: they are rare, and may be larger by the square root of how rare they are. So if the
    factors share and keep several indices of one axis, each but the first costs half its dimension. If a factor is an
    initial tensor, its operator norm gives another bound. The smallest bound is returned.
    """
    coherent = bound_sum(algebra, a, b, out)
    costs = [coherent, _bound_operator(algebra, a, b, out), _bound_operator(algebra, b, a, out)]
    for s, other in ((a, b), (b, a)):
        if s.tail is None and other.depends is not None:
            costs.append(coherent - min((find_saving(algebra, s, k, other, out) for k in s.terms), default=0))
    return min(x for x in costs if x is not None)


def bound_sum(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int:
    """Returns the bound of ``bound_product`` where nothing but the sizes of both factors is known."""
    sums = sum(2 * algebra.half[algebra.indices[x]] for x in {*a.indices, *b.indices} if x not in out)
    shared: dict[str, list[int]] = {}
    for x in a.indices:
        if x in b.indices and x in out and x not in a.flat | b.flat:
            shared.setdefault(population(algebra.indices[x]), []).append(algebra.half[algebra.indices[x]])
    return sums + sum(sum(halves) - min(halves) for halves in shared.values())


def find_saving(algebra: SignalSizes, s: Signal, k: int, other: Signal, out: str) -> int:
    """Returns by how much the bound on a product of one kernel of a signal with another signal decreases.

    Law: given the tensors that the other signal depends on, entries of a kernel that differ in an index of a leaf of
    any further tensor are uncorrelated (kernels are Wick products). So a sum over such an index is one of uncorrelated
    terms, whatever the other factor is. Indices that are always equal count once.
    """
    if other.depends is None:
        return 0
    kernel, classes = algebra.kernels[k], set[int]()
    for at, x in enumerate(s.indices):
        if x not in out and algebra.tensors_along(k, at) & ~other.depends:
            classes.add(kernel.opens[at])
    return sum(algebra.half[kernel.types[c]] for c in classes)


def _bound_dropped(algebra: SignalSizes, a: Signal, b: Signal, out: str, extra: int) -> int | None:
    """Returns a bound on the product of what was dropped of a signal with another one, relative to what was dropped.

    Args:
        algebra: the algebra.
        a: the signal.
        b: the other one.
        out: the indices of the result.
        extra: the bound on all of the product.
    """
    coherent, rest = bound_sum(algebra, a, b, out), larger_size(b.tail, b.least)
    largest = None if rest is None else rest + extra
    for k, e in b.terms.items():
        cost = min(extra, coherent - find_saving(algebra, b, k, a, out))
        largest = larger_size(largest, e + algebra.weights[k] + cost)
    return largest


def _bound_operator(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int | None:
    """Returns the largest growth of the rms of ``b`` under the initial tensor ``a``, relative to the size of its
    entries.

    Law: a Gaussian matrix with F rows and C columns has operator norm sigma max(F, C)^(1/2), whatever it acts on.
    Returns None if ``a`` is no initial tensor.
    """
    if a.leaf is None:
        return None
    varying = set(b.indices) - b.flat
    rows = sum(algebra.half[algebra.indices[x]] for x in a.leaf if x in out and x not in varying)
    cols = sum(algebra.half[algebra.indices[x]] for x in a.leaf if x not in out)
    others = {*a.indices, *b.indices} - {*a.leaf, *out}
    lost = sum(2 * algebra.half[algebra.indices[x]] for x in others)
    return max(rows, cols) + cols - rows + lost
