"""Multiplies two signals: pairs of Wick monomials from the largest product down, and upper bounds on the rest.

Read next: ``kernels.py`` (the product of two monomials), ``algebra.py`` (products of any number of signals).
"""

from __future__ import annotations

from collections.abc import Callable

from .kernels import Exhausted, Kernel, Matching, find_matching, parent_axis
from .signals import Provenance, Signal, larger_size
from .sizes import SignalSizes

PRODUCT_WORK = 16
"""Work that every product counts in addition to the nodes of its matching searches."""


def multiply_signals(algebra: SignalSizes, a: Signal, b: Signal, out: str, tag: str, gap: int) -> Signal:
    """Multiplies two signals, monomial by monomial, the largest products first. Small products are not computed; only
    an upper bound on their size is kept. ``Algebra.contract`` describes the method.

    Args:
        algebra: the algebra.
        a: the left factor.
        b: the right factor.
        out: indices of the result; all others are summed.
        tag: label of the product for explanations (``Provenance.tag``).
        gap: products of two monomials that are smaller than the largest term by this exponent of n (packed into an
            integer) are only bounded. If negative, all products that cannot exceed the largest term are only bounded.

    Returns:
        The product, without the monomials that the budget does not allow to keep (``SignalSizes.prune``).

    Raises:
        Exhausted: the product exceeds the budget.
    """
    algebra.meter.add(PRODUCT_WORK)
    contraction_id, contraction, cost = algebra.plan_contraction(a.indices, b.indices, out)
    extra = bound_product(algebra, a, b, out)
    weights = algebra.weights
    left, right = algebra.rank_kernels(a), algebra.rank_kernels(b)
    exponent, step, work = algebra.exponent, algebra.slack_step, algebra.budget.max_nodes
    terms: dict[int, int] = {}
    lead: int | None = None
    tail_bound: int | None = None
    doubts = any(algebra.in_doubt[k] for _, k, _ in right)
    doubt_bound: int | None = None
    for ra, ka, ea in left:
        for rb, kb, eb in right:
            reach, doubted = ra + rb + extra, algebra.in_doubt[ka] or algebra.in_doubt[kb]
            if lead is not None and (reach < lead - gap if gap >= 0 else exponent(reach) <= exponent(lead)):
                alike = gap >= 0 and (doubts or doubted) and exponent(reach) >= exponent(lead - gap)
                if not alike:
                    tail_bound = larger_size(tail_bound, reach)
                    doubt_bound = larger_size(doubt_bound, reach) if doubts or doubted else doubt_bound
                    break
                if not doubted:
                    tail_bound = larger_size(tail_bound, reach)
                    continue
            e0 = ea + eb
            top = ra + rb + cost
            slack = max(gap, 0) if lead is None else top - lead + gap
            while True:
                slack = -(-slack // step) * step
                try:
                    kernels, cut, nodes = algebra.multiply_kernels(ka, kb, contraction_id, contraction, slack, work)
                except Exhausted:
                    algebra.meter.add(work or 0)
                    raise
                algebra.meter.add(nodes)
                algebra.nodes_visited += nodes
                if work is not None:
                    work -= nodes
                for k, gain in kernels:
                    e = e0 + gain
                    if k not in terms or algebra.supersedes(k, e, terms[k]):
                        terms[k] = e
                        size = e + weights[k]
                        if lead is None or size > lead:
                            lead = size
                if (lead is not None and slack >= top - lead + gap) or cut is None:
                    break
                slack = slack + step if lead is None else top - lead + gap
            if cut is not None:
                tail_bound = larger_size(tail_bound, top + cut)
                doubt_bound = larger_size(doubt_bound, top + cut) if doubted else doubt_bound
    if algebra.budget.keeps_all and tail_bound is not None:
        raise Exhausted
    for s, other in ((a, b), (b, a)):
        if s.tail_bound is None and s.doubt_bound is None:
            continue
        if (most := _bound_dropped(algebra, s, other, out, extra)) is None:
            continue
        tail_bound = tail_bound if s.tail_bound is None else larger_size(tail_bound, s.tail_bound + most)
        doubt_bound = doubt_bound if s.doubt_bound is None else larger_size(doubt_bound, s.doubt_bound + most)
    origin = Provenance("product", (a, b), tag=tag)
    product = Signal(out, terms, tail_bound, origin=origin, doubt_bound=doubt_bound)
    return algebra.prune(algebra.inherit_attributes(product))


def find_origin(algebra: SignalSizes, s: Signal, k: int) -> tuple[int, int, Callable[[Kernel, Kernel], Matching]]:
    """Finds one monomial of each of two factors such that a given monomial of their product comes from the product of
    these two.

    Args:
        algebra: the algebra.
        s: the product of two signals.
        k: id of the monomial.

    Returns:
        The ids of the two monomials, and a function ``matching(left, right)``. Given these two monomials, with any
        numbering of their index classes, it returns the pairing of their leaves that yields the given monomial.

    Raises:
        LookupError: no two monomials within the budget yield it.
    """
    assert s.origin is not None and s.origin.rule == "product"
    a, b = s.origin.operands
    contraction_id, contraction, cost = algebra.plan_contraction(a.indices, b.indices, s.indices)
    extra, size = bound_product(algebra, a, b, s.indices), s.terms[k] + algebra.weights[k]
    for ra, ka, ea in algebra.rank_kernels(a):
        for rb, kb, eb in algebra.rank_kernels(b):
            if ra + rb + extra < size:
                break
            slack = -(-max(ra + rb + cost - size, 0) // algebra.slack_step) * algebra.slack_step
            try:
                kernels, _, _ = algebra.multiply_kernels(
                    ka, kb, contraction_id, contraction, slack, algebra.budget.max_nodes
                )
            except Exhausted:
                continue
            gain = dict(kernels).get(k)
            if gain is None or ea + eb + gain != s.terms[k]:
                continue

            def is_wanted(kernel: Kernel, coherent: tuple[str, ...], gain: int = gain) -> bool:
                return kernel == algebra.kernels[k] and sum(2 * algebra.half_weights[axis] for axis in coherent) == gain

            def matching(left: Kernel, right: Kernel, slack: int = slack) -> Matching:
                halves, units = algebra.search_half_weights, algebra.to_search_units(slack)
                return find_matching(left, right, contraction, halves, units, is_wanted)

            return ka, kb, matching
    raise LookupError("no two monomials of the factors yield this monomial within the budget")


def bound_product(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int:
    """Returns an upper bound on rms(product) / (rms(a) rms(b)), as an exponent of n packed into an integer.

    Law: by Cauchy-Schwarz over the summed indices, rms(a b) <= (product of their dimensions) rms(a) rms(b), for fixed
    values of the indices that both factors have and the result keeps. All entries along an axis have the same
    distribution, and moments of polynomials in Gaussians are equivalent (hypercontractivity), so an average over
    these values changes no power of n. The exception are entries at which several indices of one axis have equal
    values, such as i = j: they are the fraction 1/M of all entries along M values, and may be larger by M^(1/2). So
    if both factors have several indices of one axis that the result keeps, the bound is raised by half the dimension
    for each of them but the first. If a factor is an initial tensor, its operator norm gives another bound. The
    smallest bound is returned.
    """
    coherent = bound_sum(algebra, a, b, out)
    costs = [coherent, _bound_operator(algebra, a, b, out), _bound_operator(algebra, b, a, out)]
    for s, other in ((a, b), (b, a)):
        if s.tail_bound is None and other.depends_on is not None:
            costs.append(coherent - min((find_saving(algebra, s, k, other, out) for k in s.terms), default=0))
    return min(x for x in costs if x is not None)


def bound_sum(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int:
    """Returns an upper bound on rms(product) / (rms(a) rms(b)) as an exponent of n packed into an integer, which
    follows from the dimensions of their indices alone (Cauchy-Schwarz)."""
    sums = sum(2 * algebra.half_weights[algebra.indices[x]] for x in {*a.indices, *b.indices} if x not in out)
    shared: dict[str, list[int]] = {}
    for x in a.indices:
        if x in b.indices and x in out and x not in a.constant_along | b.constant_along:
            shared.setdefault(parent_axis(algebra.indices[x]), []).append(algebra.half_weights[algebra.indices[x]])
    return sums + sum(sum(halves) - min(halves) for halves in shared.values())


def find_saving(algebra: SignalSizes, s: Signal, k: int, other: Signal, out: str) -> int:
    """Returns by how much ``bound_sum``, the bound on a product of signals, can be lowered for one monomial (``k`` is
    its id) of the signal ``s`` times the signal ``other``. The result is an exponent of n packed into an integer.

    Law: consider the tensors on which ``other`` depends as fixed. If the monomial contains a further tensor, its
    entries at different values of an index of this tensor are uncorrelated (Wick monomials are normal ordered). So a
    sum over such an index is a sum of uncorrelated terms, whatever ``other`` is, and its bound is smaller by half the
    dimension. Indices that are always equal count once.
    """
    if other.depends_on is None:
        return 0
    kernel, classes = algebra.kernels[k], set[int]()
    for at, x in enumerate(s.indices):
        if x not in out and algebra.tensors_along(k, at) & ~other.depends_on:
            classes.add(kernel.open_classes[at])
    return sum(algebra.half_weights[kernel.class_axes[c]] for c in classes)


def _bound_dropped(algebra: SignalSizes, a: Signal, b: Signal, out: str, extra: int) -> int | None:
    """Returns an upper bound on the product of ``b`` and the dropped part D of the signal ``a``, relative to D: on
    rms(D b) / rms(D), as an exponent of n packed into an integer. None if ``b`` is exactly zero.

    Args:
        algebra: the algebra.
        a: the signal of which the part D was dropped.
        b: the other signal.
        out: the indices of the result.
        extra: the result of ``bound_product``: an upper bound on rms(a b) / (rms(a) rms(b)), as an exponent of n
            packed into an integer.
    """
    coherent, rest = bound_sum(algebra, a, b, out), larger_size(b.tail_bound, b.lower_bound)
    largest = None if rest is None else rest + extra
    for k, e in b.terms.items():
        cost = min(extra, coherent - find_saving(algebra, b, k, a, out))
        largest = larger_size(largest, e + algebra.weights[k] + cost)
    return largest


def _bound_operator(algebra: SignalSizes, a: Signal, b: Signal, out: str) -> int | None:
    """Returns the upper bound on rms(a b) / (std(a) rms(b)) that follows from the operator norm of ``a``, as an
    exponent of n packed into an integer; None if ``a`` is not a single initial tensor.

    Law: a Gaussian matrix with R rows, C columns and std sigma has operator norm sigma max(R, C)^(1/2), whatever it
    acts on.
    """
    if a.leaf_indices is None:
        return None
    varying = set(b.indices) - b.constant_along
    rows = sum(algebra.half_weights[algebra.indices[x]] for x in a.leaf_indices if x in out and x not in varying)
    cols = sum(algebra.half_weights[algebra.indices[x]] for x in a.leaf_indices if x not in out)
    others = {*a.indices, *b.indices} - {*a.leaf_indices, *out}
    lost = sum(2 * algebra.half_weights[algebra.indices[x]] for x in others)
    return max(rows, cols) + cols - rows + lost
