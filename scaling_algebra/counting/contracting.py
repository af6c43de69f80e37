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
    ba, bb = algebra.bound(a), algebra.bound(b)
    if a.tail is not None and bb is not None:
        dropped = larger_size(dropped, a.tail + bb + extra)
    if b.tail is not None and ba is not None:
        dropped = larger_size(dropped, b.tail + ba + extra)
    if a.loss is not None and bb is not None:
        loss = larger_size(loss, a.loss + bb + extra)
    if b.loss is not None and ba is not None:
        loss = larger_size(loss, b.loss + ba + extra)
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
    sums = sum(2 * algebra.half[algebra.indices[x]] for x in {*a.indices, *b.indices} if x not in out)
    shared: dict[str, list[int]] = {}
    for x in a.indices:
        if x in b.indices and x in out and x not in a.flat | b.flat:
            shared.setdefault(population(algebra.indices[x]), []).append(algebra.half[algebra.indices[x]])
    meet = sum(sum(halves) - min(halves) for halves in shared.values())
    costs = [sums + meet, _bound_operator(algebra, a, b, out), _bound_operator(algebra, b, a, out)]
    if a.depends is not None and b.depends is not None and not a.depends & b.depends:
        saved = (_bound_saving(algebra, a, out), _bound_saving(algebra, b, out))
        costs += [sums + meet - x for x in saved if x is not None]
    return min(x for x in costs if x is not None)


def _bound_saving(algebra: SignalSizes, a: Signal, out: str) -> int | None:
    """Returns by how much the bound on a product of a signal with an independent one decreases; None if nothing is
    known.

    Law: entries of a polynomial in Gaussians that differ in an index of a leaf are uncorrelated (kernels are Wick
    products). So a sum over such an index, of products with an independent signal, is a sum of uncorrelated terms.
    """
    if a.tail is not None:
        return None
    summed = [x for x in a.indices if x not in out]
    if not all(algebra.kernels[k].along(a.indices.index(x)) for k in a.terms for x in summed):
        return None
    return sum(algebra.half[algebra.indices[x]] for x in summed)


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
