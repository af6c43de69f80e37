"""Steps of an optimizer that normalises the gradient of a tensor: by the signs of its entries (Adam), or by its
singular values (Muon).

A gradient is a sum of products, one for each use of the tensor, such as ``g x^T``. The sign of a product does not
depend on positive factors, and the sign of a sum is not the sum of the signs. Orthogonalisation sets all singular
values to one.
Read next: ``updates.py`` (takes the steps), ``scaling_algebra/spec/optimizers.py`` (which optimizers these are).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from itertools import combinations, combinations_with_replacement
from operator import xor
from typing import Any

from scaling_algebra.counting.kernels import INDICATOR, Exhausted
from scaling_algebra.counting.projections import mark_doubtful
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.networks.ancestors import is_linear
from scaling_algebra.spec.networks.auxiliary import find_selection_inputs
from scaling_algebra.spec.networks.indices import count_multiplicity
from scaling_algebra.spec.networks.language import Factor, Function, Network, Product, Statement, Sum

from .functions import mean_value
from .run import BeyondPowerCounting, TrainingRun

Factors = tuple[Signal, ...]
"""The factors of a gradient for one use of a tensor: the gradient at the output, then the inputs."""
Step = tuple[tuple[Scalar, ...], Factors]
"""One product in an optimizer step, as a pair (scalar factors, signals)."""
SQUARED = "its largest term may cancel, since the square of a sign is 1"
RAISED = "an inverse root of past gradients enlarges the directions in which they differ, perhaps to the largest size"
SKEWED = 12
"""Maximum number of monomials of a gradient for which higher powers in a step are computed; as many as the first
budget keeps."""
Addend = tuple[int | None, frozenset[str], Any]
"""A term of a sum, as (its size as a packed exponent, or None if it is unknown or zero; names of the functions and sums
that make entries of it exactly zero; the term itself)."""


def vanishes(factors: Factors) -> bool:
    """Whether a product of signals is exactly zero because one of its factors is."""
    return any(s.is_zero for s in factors)


# signs ----------------------------------------------------------------------------------------------------------


def sign_factors(tr: TrainingRun, role: str, t: int, gradients: Sequence[Factors]) -> list[Factors]:
    """Returns the gradient of a tensor, prepared for an optimizer that uses only its sign: for each use of the tensor a
    tuple of factors, whose product is the gradient due to this use. In the largest of these products, factors are
    replaced by simpler signals of the same sign.

    Law: sign(u v^T) = sign(u) sign(v)^T, and positive factors do not change a sign, so they are replaced by their
    means. The sign of a sum of products is known only if one of them is larger than all others.

    Raises:
        BeyondPowerCounting: several products are equally large, or a smaller one decides the sign of some entries.
        Exhausted: it is not certified which product is the largest.
    """
    there = [k for k, factors in enumerate(gradients) if not vanishes(factors)]
    leading = there[_find_leading(tr, role, [gradients[k] for k in there])] if len(there) > 1 else there[0]
    if any(f.kind.gaps for f in tr.network.functions):
        net, uses = tr.network, tr.network.uses(role)
        zeros = [
            find_gradient_zeros(net, use.out).union(*(find_zeros(net, x.name) for x in use.factors)) for use in uses
        ]
        _check_zeros(net.tensors[role].symbol, zeros[leading], [zeros[k] for k in there if k != leading])
        _check_sums(tr, t, [x.name for x in uses[leading].factors], uses[leading].out)
    signed = list(gradients)
    if not _sums_indices(tr, role, signed[leading]):
        unsigned = tr.gradient_factors(
            role, t, lambda x: _read_gradient_sign(tr, x, t), lambda x: _read_sign(tr, x, t)
        )[leading]
        pairs = zip(unsigned, signed[leading], strict=True)
        signed[leading] = tuple(_mark_sign(tr, _allow_memory(tr, role, s, whole, t)) for s, whole in pairs)
    return signed


def find_zeros(net: Network, signal: str) -> frozenset[str]:
    """Returns the names of the functions and sums, such as relu, that make a fraction of a signal's entries exactly
    zero."""
    s = net.producer(signal)
    if isinstance(s, Function):
        if s.kind.gaps and not is_linear(net, s):
            return frozenset({signal})
        keeps = (not s.kind.mixes or s.kind.kind == "norm") and 0 not in s.kind.powers and not s.kind.centres
        return find_zeros(net, s.inputs[0].name) if keeps else frozenset()
    if isinstance(s, Sum):
        return frozenset({signal} if all(find_zeros(net, x.name) for x in s.terms) else ())
    if s is None or net.summed_indices(s):
        return frozenset()
    return frozenset[str]().union(*(find_zeros(net, x.name) for x in s.factors))


def find_gradient_zeros(net: Network, signal: str) -> frozenset[str]:
    """Returns the names of the functions and sums that make a fraction of the entries of the gradient at a signal
    exactly zero."""
    uses = [(s, k) for s, k in net.consumers(signal) if not isinstance(s, Function) or s.kind.kind != "stopped"]
    paths = [_find_path_zeros(net, s, k) for s, k in uses]
    return paths[0] if len(paths) == 1 else frozenset({signal} if paths and all(paths) else ())


def _find_path_zeros(net: Network, s: Statement, k: int) -> frozenset[str]:
    """Returns the same as ``find_gradient_zeros``, but only for the gradient that comes through the k-th input of the
    statement ``s``."""
    if isinstance(s, Function):
        if s.kind.gaps and not is_linear(net, s):
            return frozenset({s.out})
        return frozenset() if s.kind.mixes or s.held else find_gradient_zeros(net, s.out)
    if isinstance(s, Product) and not set(s.indices) <= set(s.factors[k].indices):
        return frozenset()
    others = [x for j, x in enumerate(s.inputs) if j != k and isinstance(s, Product)]
    return find_gradient_zeros(net, s.out).union(*(find_zeros(net, x.name) for x in others))


def _check_sums(tr: TrainingRun, t: int, values: Sequence[str], gradient: str = "") -> None:
    """Checks sums on whose sign an optimizer step depends. The sign of a sum is that of its largest term only if the
    other terms are zero wherever the largest one is.

    Args:
        tr: the training run.
        t: number of updates.
        values: signals whose sign is used.
        gradient: a signal whose gradient's sign is used; "" for none.

    Raises:
        BeyondPowerCounting: the sign of some entries of a sum depends on a smaller term.
    """
    net, rms = tr.network, tr.algebra.rms
    for name in values:
        s = net.producer(name)
        if isinstance(s, Sum):
            terms = [(rms(tr.value(x.name, t)), find_zeros(net, x.name), x.name) for x in s.terms]
            _check_sums(tr, t, [x for _, _, x in _select_largest(tr, name, terms)])
        elif isinstance(s, Product) and not net.summed_indices(s):
            _check_sums(tr, t, [x.name for x in s.factors])
        elif isinstance(s, Function) and s.kind.signed:
            _check_sums(tr, t, [s.inputs[0].name])
    uses = net.consumers(gradient) if gradient else ()
    paths: list[Addend] = [(0, frozenset(), use) for use in uses]
    if len(uses) > 1:
        paths = [(rms(tr.gradient(gradient, t, via=s.out)), _find_path_zeros(net, s, k), (s, k)) for s, k in uses]
    for _, _, (s, k) in _select_largest(tr, f"the gradient of {gradient}", paths):
        others = [x.name for j, x in enumerate(s.inputs) if j != k and isinstance(s, Product)]
        if not isinstance(s, Product) or set(s.indices) <= set(s.factors[k].indices):
            _check_sums(tr, t, others, s.out)


def _select_largest(tr: TrainingRun, name: str, terms: Sequence[Addend]) -> list[Addend]:
    """Returns the largest terms of a sum. Before, it checks that the smaller terms do not decide the sign where the
    largest is zero (``_check_zeros``)."""
    values = [None if size is None else tr.algebra.exponent(size) for size, _, _ in terms]
    top = max((x for x in values if x is not None), default=None)
    largest = [x for x, value in zip(terms, values, strict=True) if value == top]
    if all(zeros for _, zeros, _ in largest):
        smaller = [x[1] for x, value in zip(terms, values, strict=True) if value not in (top, None)]
        _check_zeros(name, largest[0][1] if len(largest) == 1 else frozenset({name}), smaller)
    return largest


def _check_zeros(name: str, zeros: frozenset[str], others: Sequence[frozenset[str]]) -> None:
    """Checks that the other terms of a sum are zero wherever its largest term is zero.

    Args:
        name: the sum, for the message.
        zeros: names of the functions that make entries of the largest term zero.
        others: the same for each of the other terms.

    Raises:
        BeyondPowerCounting: a smaller term decides the sign of these entries.
    """
    if zeros and not all(zeros <= x for x in others):
        raise BeyondPowerCounting(
            f"the sign of {name} is unknown: where {min(zeros)} is exactly zero, so is its largest term, and a smaller "
            "one decides"
        )


def _allow_memory(tr: TrainingRun, role: str, s: Signal, whole: Signal, t: int) -> Signal:
    """Returns the factor ``s`` of an optimizer step, rescaled to the size that it had before its positive factors were
    replaced by their means (``whole``). If the optimizer averages gradients over several steps, an unknown term of the
    same size is added.

    This is because the average contains the positive factors of other steps, which may differ from those of this step
    by as much as their size.

    Args:
        tr: the training run.
        role: the parameter.
        s: the factor after those signals of which it is a product, and which are positive, were replaced by their
            means.
        whole: the same factor before this replacement.
        t: number of updates.
    """
    size, full = tr.algebra.rms(s), tr.algebra.rms(whole)
    if (
        size is None
        or full is None
        or (s.terms, s.tail_bound, s.constant_along) == (whole.terms, whole.tail_bound, whole.constant_along)
    ):
        return s
    if tr.algebra.exponent(size) != tr.algebra.exponent(full):
        s, size = (
            tr.algebra.scale_by(s, Scalar("size of its positive factors", full - size, tr.algebra.is_certified(whole))),
            full,
        )
    return (
        s.replace(tail_bound=size, leaf_indices=None, constant_along=frozenset(), without_centred={})
        if tr.optimizer.of(role).memory and t
        else s
    )


def _find_leading(tr: TrainingRun, role: str, gradients: Sequence[Factors]) -> int:
    """Returns which of the products in ``gradients`` (one for each use of the tensor) is larger than all others, as its
    position.

    Raises:
        BeyondPowerCounting: two products are equally large.
        Exhausted: a size is not certified.
    """
    entries = [tr.products.measure_entry(role, factors) for factors in gradients]
    if not all(x.certain for x in entries):
        raise Exhausted
    sizes = [tr.algebra.exponent(x.packed or 0) for x in entries]
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    first, second = (sizes[k] for k in order[:2])
    if first == second:
        symbol = tr.network.tensors[role].symbol
        raise BeyondPowerCounting(
            f"the sign of the gradient of {symbol} is unknown: {symbol} is used {len(sizes)} times with gradients of "
            "equal size"
        )
    return order[0]


def _sums_indices(tr: TrainingRun, role: str, factors: Factors) -> bool:
    """Whether the product of the given factors of a gradient sums over indices that the tensor does not have."""
    indices = tr.network.tensors[role].indices
    return any(c not in indices for s in factors for c in s.indices)


def _read_gradient_sign(tr: TrainingRun, signal: str, t: int) -> Signal:
    """Returns a signal that has the same sign as the gradient at a signal. As far as possible, positive factors of the
    gradient are replaced by their means."""
    uses = tr.network.consumers(signal)
    if len(uses) != 1 or signal in find_selection_inputs(tr.network):
        return tr.gradient(signal, t)
    ((s, k),) = uses
    indices = s.inputs[k].indices
    if indices != tr.network.signals[signal]:
        return tr.gradient(signal, t)
    if isinstance(s, Sum):
        return _read_gradient_sign(tr, s.out, t)
    if isinstance(s, Function):
        passes = s.kind.rising and not s.kind.selects and not tr.gradient(signal, t).is_zero
        return _read_gradient_sign(tr, s.out, t) if passes else tr.gradient(signal, t)
    others = [x for j, x in enumerate(s.factors) if j != k]
    above = tr.network.signals[s.out]
    if (
        s.tensor
        or not set(indices) >= set(above).union(*(x.indices for x in others))
        or len(set(indices)) < len(indices)
    ):
        return tr.gradient(signal, t)
    operands = [_read_gradient_sign(tr, s.out, t), *(_read_sign(tr, x, t) for x in others)]
    return tr.products.apply_multipliers(tr.products.multiply(operands, indices), s.multipliers)


def _read_sign(tr: TrainingRun, factor: Factor, t: int) -> Signal:
    """Returns a signal that has the same sign as a factor of an equation, and the factor's indices. Positive factors
    are replaced by their means."""
    s = tr.network.producer(factor.name)
    if isinstance(s, Function) and s.kind.signed and s.source:
        return tr.algebra.rename_indices(_read_sign(tr, s.source, t), s.source.indices, factor.indices)
    if isinstance(s, Function) and s.kind.positive:
        return tr.algebra.rename_indices(mean_value(tr, s), tr.network.signals[factor.name], factor.indices)
    return tr.read_factor(factor, "value", t)


def _mark_sign(tr: TrainingRun, s: Signal) -> Signal:
    """Marks a signal as one whose sign an optimizer step uses. If the network has nonlinear functions, only upper
    bounds are kept on all monomials but the largest.

    Law: the square of a sign is 1, whereas a function of the sum of its monomials would contain products of two
    monomials that a function of the sign does not contain. With one monomial there is no such product.
    """
    s = s.replace(may_be_signs=True)
    if not s.indices or not tr.network.live or len(s.terms) < 2:
        return s
    tr.note(SQUARED)
    first = next(iter(tr.algebra.find_leading(s)), None)  # None if only a bound on its size is known
    return mark_doubtful(tr.algebra, s, s.replace(terms={k: e for k, e in s.terms.items() if k != first}))


def expand_entrywise(tr: TrainingRun, factors: Factors, names: Sequence[str], share: int, again: bool) -> list[Step]:
    """Returns the step of an optimizer that normalises each entry of a gradient, such as Adam, as a sum of products.
    Each product is a pair (scalar factors, signals).

    Law: a step is g / (v + epsilon), where v has the size of g. So it is a multiple of g, plus a nonlinear part F(g)
    with a generic odd function F. The nonlinear part is smaller than g by the factor v / epsilon if epsilon exceeds v.

    Args:
        tr: the training run.
        factors: the factors of the gradient g, which is their product.
        names: names of the factors in explanations.
        share: size of v / epsilon as an exponent of n packed into an integer; 0 if v exceeds epsilon.
        again: True if the nonlinear part of an earlier step of this tensor was as large as that of this one.
    """
    odds = (tr.compute_once(("odd", again), s, partial(make_odd_function, tr, s, again)) for s in factors)
    bent = tuple(_add_sign_part(tr, y, s, name) for y, s, name in zip(odds, factors, names, strict=True))
    if not share:
        return [((), bent)]
    less = Scalar("gradient over epsilon", share)
    if sum(x is not y for x, y in zip(factors, bent, strict=True)) > 1:
        return [((), factors), ((less,), bent)]
    both = ((x, y if x is y else tr.algebra.scale_by(y, less)) for x, y in zip(factors, bent, strict=True))
    return [((), tuple(x if x is y else tr.algebra.add([x, y]) for x, y in both))]


def expand_cross_terms(tr: TrainingRun, role: str, gradients: Sequence[Factors], share: int, again: bool) -> list[Step]:
    """Returns further products of an optimizer step that normalises each entry of the gradient, for a tensor that the
    network uses several times: those that combine gradients of different uses. The products of a single use are those
    of ``expand_entrywise``.

    Law: let g = u v + x y + ... be the gradient, with one product for each use. F(g) with a generic odd F contains the
    elementwise product of any odd number of these products. If sizes are unknown, or there are many monomials, the
    result is only an upper bound, since F(g) is no larger than g.

    Args:
        tr: the training run.
        role: the parameter.
        gradients: for each use, the factors whose product is the gradient due to this use.
        share: size of v / epsilon (see ``expand_entrywise``).
        again: True if the nonlinear part of an earlier step of this tensor was as large as that of this one; then no
            further products are needed.
    """
    indices = tr.algebra.drop_fixed(tr.network.tensors[role].indices)
    there, most = [x for x in gradients if not vanishes(x)], list_odd_powers(tr, indices)[-1]
    if len(there) < 2 or most < 3 or again:
        return []
    sizes = [x.packed for x in (tr.products.measure_entry(role, y) for y in there) if x.packed is not None]
    if len(sizes) < len(there) or sum(len(s.terms) for x in there for s in x) > SKEWED:
        return [((), tuple(Signal(s.indices, {}, tr.algebra.upper_bound(s)) for s in x)) for x in there]
    size = max(sizes, key=tr.algebra.exponent)
    blocks: list[set[str]] = []  # sets of indices that one factor of some use has
    for found in (set(s.indices) for x in there for s in x if s.indices):
        joined = [x for x in blocks if x & found]
        blocks = [*(x for x in blocks if not x & found), found.union(*joined)]
    kept = ["".join(c for c in indices if c in x) for x in blocks]
    parts = []
    for factors in there:
        groups = [[s for s in factors if x.issuperset(s.indices) and s.indices] for x in blocks]
        parts.append([tr.products.multiply(group, x) for group, x in zip(groups, kept, strict=True)])
    steps: list[Step] = []
    for number in range(3, most + 1, 2):
        less = [Scalar("1/a square", (1 - number) * size), Scalar("gradient over epsilon", share)]
        for chosen in combinations_with_replacement(parts, number):
            if any(x is not chosen[0] for x in chosen):
                products = []
                for x, column in zip(kept, zip(*chosen, strict=True), strict=True):
                    products.append(reduce(partial(tr.algebra.contract, out=x), column))
                steps.append((tuple(less), tuple(products)))
    return steps


def list_odd_powers(tr: TrainingRun, indices: str) -> range:
    """Returns the powers 1, 3, ... that the polynomial of an odd elementwise function needs, if it is applied to a
    signal with these indices.

    They go up to the largest number of factors that the network multiplies at one of the indices that grow. At other
    indices nothing averages out, so the linear part is as large as all others and is enough.
    """
    most = max((count_multiplicity(tr.network)[x] for x in indices if tr.grows(x)), default=1)
    more = tr.context.degrees == "raised" and (most > 2 or not tr.network.live)
    return range(1, 2 if tr.context.degrees == "lowest" else most + (3 if more else 1), 2)


def make_odd_function(tr: TrainingRun, s: Signal, again: bool = False) -> Signal:
    """Returns x + x^3 + ... with unknown (generic) coefficients for a signal x, elementwise: it stands for any odd
    function, such as the sign. Returns x itself if only the linear part matters.

    Law: where the monomials of x cancel in a sum, those of F(x) = x + x^3 + ... need not. If x has two or more
    monomials, the power x^p matters where the network multiplies at least p signals. If the distribution of x is not
    symmetric, x^p has a nonzero mean, which appears in every sum. Whatever is dropped is no larger than x, since
    |F(x)| <= C |x|.

    Args:
        tr: the training run.
        s: the signal x, a factor of a gradient.
        again: True if the nonlinear part of an earlier step was as large; then x itself stands for F(x).
    """
    whole = tr.algebra.forget_centred(s)
    size, most = tr.algebra.rms(s), list_odd_powers(tr, s.indices)[-1] if len(s.terms) > 1 and not again else 1
    few = whole if most > 1 else tr.algebra.keep_largest(whole, SKEWED)
    if any(map(tr.grows, s.indices)) and tr.context.degrees != "lowest":
        most = max(most, _find_even_number(tr, few))
    if size is None or most < 3:
        return whole
    if (
        few is not whole
        and few.tail_bound is not None
        and tr.algebra.exponent(few.tail_bound) >= tr.algebra.exponent(size)
    ):
        return whole.replace(tail_bound=few.tail_bound, doubt_bound=few.doubt_bound)
    parts, power = [whole], few
    for _ in range(3, most + 1, 2):
        power = tr.algebra.contract(tr.algebra.contract(few, power, s.indices), few, s.indices)
        power = tr.algebra.scale_by(power, Scalar("1/a square", -2 * size))
        tail, loss = (
            None if x is None else min(x, size, key=tr.algebra.exponent) for x in (power.tail_bound, power.doubt_bound)
        )
        power = power.replace(tail_bound=tail, doubt_bound=loss)
        parts.append(power)
    return tr.algebra.add(parts)


def _find_even_number(tr: TrainingRun, s: Signal) -> int:
    """Returns the smallest of the odd powers 3, 5, ... of a signal that may have a nonzero mean; 0 if none may.

    Law: such a power contains a product of as many of the signal's monomials (repetitions allowed) that is even in
    every initial tensor. For the monomials {U, V, U V} the result is 3, since U V (U V) is even. If there is no such
    product, the signal changes its sign if certain tensors do, so its distribution is symmetric.

    The result is 0 also if the signal is no larger than its mean and its squares, or if its nonlinear part is only a
    bound, since functions of it are no larger either.
    """
    places: dict[str, int] = {}
    parity: dict[int, int | None] = {}
    for k in s.terms:
        names = [name for name, _ in tr.algebra.kernel(k).leaves if not name.startswith(INDICATOR)]
        bits = [1 << places.setdefault(name, len(places)) for name in names]
        parity[k] = reduce(xor, bits) if bits else None
    exponents = {k: tr.algebra.exponent(e + tr.algebra.weight(k)) for k, e in s.terms.items()}
    largest = {parity[k] for k, e in exponents.items() if e == max(exponents.values())}
    if None in largest and (0 in largest or s.may_be_signs):
        return 0
    products = {x for x in parity.values() if x is not None}
    if not _spans_one([2 * x + 1 for x in products]):
        return 0
    pairs, number = {x ^ y for x in products for y in products}, 1
    while 0 not in products:
        products, number = products | {x ^ y for x in products for y in pairs}, number + 2
    return max(number, 3)


def _spans_one(vectors: Iterable[int]) -> bool:
    """Whether the number 1 is the exclusive or (``^``) of some of the given integers. If these are ``2 x + 1``, the
    answer tells whether some odd number of the integers x has the exclusive or 0.
    """
    basis: list[int] = []

    def reduce_modulo_basis(x: int) -> int:
        """Subtracts vectors of the basis from a bit vector (by exclusive or) as long as this makes it smaller. The
        result is 0 if the bit vector is an exclusive or of vectors of the basis."""
        return reduce(lambda rest, y: min(rest, rest ^ y), basis, x)

    for x in vectors:
        if rest := reduce_modulo_basis(x):
            basis = sorted([*basis, rest], reverse=True)
    return reduce_modulo_basis(1) == 0


def _add_sign_part(tr: TrainingRun, s: Signal, whole: Signal, name: str) -> Signal:
    """Returns a factor of a normalised optimizer step. If the network has norms, an independent Gaussian is added for
    the nonlinear part of the factor's sign.

    Law: sign(u) is a multiple of u plus a nonlinear part (its higher Hermite polynomials), which is uncorrelated with
    everything linear in u. If a norm removes the multiple of u, the nonlinear part is what remains; otherwise it is no
    larger than the multiple of u. If the largest part of u is the same number for all entries, the sign is that of the
    number, and only an upper bound on the effect of the smaller parts is known.

    Args:
        tr: the training run.
        s: the factor, or an odd function of it that represents its sign.
        whole: the factor itself, whose name the result gets.
        name: name of the factor in explanations.
    """
    varying = {k: e for k, e in s.terms.items() if _varies(tr, s, k)}
    if varying and varying.keys().isdisjoint(tr.algebra.find_leading(s)):
        return mark_doubtful(tr.algebra, s, s.replace(terms=varying))
    size = tr.algebra.rms(s)
    if not tr.network.norms or size is None or not s.indices or s.constant_along.issuperset(s.indices):
        return s
    part = tr.algebra.tensor(f"sign({name})", s.indices, size).replace(depends_on=s.depends_on)
    return tr.with_name(tr.algebra.add([s, part]), whole.name)


def _varies(tr: TrainingRun, s: Signal, k: int) -> bool:
    """Whether the monomial with the id ``k`` varies along any index of a signal."""
    return any(tr.algebra.kernel(k).leaves_along(at) for at in range(len(s.indices)))


# singular directions --------------------------------------------------------------------------------------------


def scale_singular_values(tr: TrainingRun, role: str, gradients: Sequence[Factors]) -> list[Scalar | None]:
    """Returns, for each use of a tensor, the factor by which orthogonalising the whole gradient enlarges the part of
    the gradient due to this use, compared with the part of the use whose gradient is largest; None if the part is
    exactly zero.

    Law: the parts are rank-one matrices. If their factors are asymptotically orthogonal, each part has its own singular
    directions, and its singular value is set to one. Parts that share a factor add up to one rank-one matrix. An
    optimizer that orthogonalises by a fixed number of Newton-Schulz steps (Muon) does this only for parts of equal
    size: one that is smaller by a power of n stays smaller. One that multiplies by an inverse root (Shampoo) sets the
    smaller singular values to one as well.

    Args:
        tr: the training run.
        role: the tensor.
        gradients: for each use, the factors whose product is the part of the gradient due to this use.

    Raises:
        BeyondPowerCounting: the gradient has growing rank, or parts that are not orthogonal; or Newton-Schulz steps are
            applied to parts of different size; or only smaller terms of the gradient differ between tokens.
    """
    symbol = tr.network.tensors[role].symbol
    there = [k for k, factors in enumerate(gradients) if not vanishes(factors)]
    indices = tr.network.tensors[role].indices
    for k in there:
        grown = [c for s in gradients[k] for c in s.indices if c not in indices and tr.grows(c)]
        if grown:
            raise BeyondPowerCounting(f"the gradient of {symbol} has growing rank: it sums over {grown[0]}")
        if (summed := _find_summed_index(tr, role, k)) and any(_has_one_direction(tr, s) for s in gradients[k]):
            raise BeyondPowerCounting(
                f"the gradient of {symbol} sums over {summed}, but its largest part has the same direction for each "
                f"{summed}: smaller parts have other directions, whose singular values are set to one, too"
            )
    shares: list[Scalar | None] = [None] * len(gradients)
    if len(there) == 1:
        shares[there[0]] = Scalar("all of the gradient", 0)
        return shares
    entries = {k: tr.products.measure_entry(role, gradients[k]) for k in there}
    sizes, certain = {k: x.packed or 0 for k, x in entries.items()}, all(x.certain for x in entries.values())
    group = {k: k for k in there}
    for j, k in combinations(there, 2):
        if _share_factor(gradients[j], gradients[k]):
            group = {x: group[j] if g == group[k] else g for x, g in group.items()}
        elif tr.optimizer.of(role).memory or not _are_orthogonal(tr, role, gradients[j], gradients[k]):
            raise BeyondPowerCounting(
                f"{symbol} is used {len(there)} times, and the directions of its gradients overlap"
            )
    largest = max(sizes.values())
    for k in there:
        whole = max(sizes[x] for x in there if group[x] == group[k])
        if tr.algebra.exponent(largest) != tr.algebra.exponent(whole) and not tr.optimizer.of(role).memory:
            raise BeyondPowerCounting(
                f"{symbol} is used {len(there)} times with gradients of different sizes: Newton-Schulz steps bring "
                "the smaller one to the larger one at moderate sizes, but not in the limit"
            )
        ratio = f"the singular value of {symbol}'s largest use over that of this one"
        shares[k] = Scalar(ratio, largest - whole, certain)
    return shares


def _find_summed_index(tr: TrainingRun, role: str, k: int) -> str:
    """Returns an index of fixed length, such as that of tokens, over which the gradient due to the k-th use of a tensor
    is a sum; "" if it is a sum over no such index."""
    use = tr.network.uses(role)[k]
    indices = dict.fromkeys("".join([use.indices, *(x.indices for x in use.factors)]))
    return next((c for c in indices if c not in tr.network.tensors[role].indices and not tr.grows(c)), "")


def _has_one_direction(tr: TrainingRun, s: Signal) -> bool:
    """Tests whether the largest monomials of a factor of a gradient are the same vector for all tokens, although
    smaller monomials are not.

    Law: a monomial differs between tokens if it contains an initial tensor with an index of fixed length, since such a
    tensor is applied to the data.
    """
    leading = tr.algebra.find_leading(s)
    if not s.indices or not leading or (len(s.terms) == len(leading) and s.tail_bound is None):
        return False
    tensors = {x.symbol: x.indices for x in tr.network.tensors.values()}
    leaves = {name for k in leading for name, _ in tr.algebra.kernel(k).leaves}
    return all(name in tensors and all(map(tr.grows, tensors[name])) for name in leaves)


def add_raised_directions(tr: TrainingRun, factors: Factors) -> Factors:
    """Returns the factors of a gradient with an unknown term of equal size added to each, for optimizers that multiply
    by inverse roots of sums over steps (Shampoo). In a network without norms or softmax the factors are returned
    unchanged.

    Law: the step (sum G G^T)^(-1/4) G (sum G^T G)^(-1/4), with sums over the gradients G of several steps, enlarges the
    singular directions in which these gradients differ: the smaller the singular value, the more, up to the size of the
    largest. These directions matter if a norm removes the largest one.
    """
    if not any(f.kind.mixes for f in tr.network.functions):
        return factors
    tr.note(RAISED)
    tails = (tr.algebra.rms(s) if any(map(tr.grows, s.indices)) else None for s in factors)
    return tuple(
        s if x is None else s.replace(tail_bound=x, leaf_indices=None, constant_along=frozenset(), without_centred={})
        for s, x in zip(factors, tails, strict=True)
    )


def _share_factor(a: Factors, b: Factors) -> bool:
    """Whether two rank-one matrices, each given by its two factors, have the left or the right factor in common."""
    return len(a) == len(b) == 2 and any(
        _undo_relabelling(x) is _undo_relabelling(y) for x, y in zip(a, b, strict=True)
    )


def _undo_relabelling(s: Signal) -> Signal:
    """Returns the signal from which a signal was obtained by renaming indices, or the signal itself if its indices were
    not renamed. Two signals are the same up to the names of their indices if the results are the same object.
    """
    while s.origin is not None and s.origin.rule == "relabelled":
        (s,) = s.origin.operands
    return s


def _are_orthogonal(tr: TrainingRun, role: str, a: Factors, b: Factors) -> bool:
    """Whether two rank-one matrices, each given by its two factors, are asymptotically orthogonal in both factors: each
    inner product is smaller than the product of the norms by a power of n."""
    if len(a) != 2 or len(b) != 2 or _sums_indices(tr, role, a) or _sums_indices(tr, role, b):
        return False
    copies = tr.optimizer.of(role).matrix(tr.network, role).copies
    for x, y in zip(a, b, strict=True):
        if x.indices != y.indices:
            return False
        kept = "".join(c for c in x.indices if c in copies)
        inner = tr.algebra.upper_bound(tr.algebra.contract(x, y, kept))
        sizes = tr.algebra.rms(x), tr.algebra.rms(y)
        if inner is None:
            continue
        if None in sizes or not (tr.algebra.is_certified(x) and tr.algebra.is_certified(y)):
            raise Exhausted
        entries = tr.algebra.pack_powers(_count_entries(tr, "".join(c for c in x.indices if c not in kept)))
        if tr.algebra.exponent(inner - entries - sum(z for z in sizes if z is not None)) >= 0:
            return False
    return True


def _count_entries(tr: TrainingRun, indices: str) -> dict[str, int]:
    """Returns the number of entries along some indices as a map: axis -> how many of the indices run along it. Axes of
    fixed length are left out."""
    powers: dict[str, int] = {}
    for c in indices:
        axis = tr.network.indices[c]
        if axis not in FIXED:
            powers[axis] = powers.get(axis, 0) + 1
    return powers
