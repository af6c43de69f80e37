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
    """Whether a product is exactly zero because one of its factors is."""
    return any(s.is_zero for s in factors)


# signs ----------------------------------------------------------------------------------------------------------


def sign_factors(tr: TrainingRun, role: str, t: int, gradients: Sequence[Factors]) -> list[Factors]:
    """Returns the gradient of a tensor, for each use as a tuple of factors, for an optimizer that uses only its sign.
    In the largest of these products, factors are replaced by simpler signals of the same sign.

    Law: sign(u v^T) = sign(u) sign(v)^T, and positive factors do not change a sign, so they are replaced by their
    means. The sign of a sum is known only if one product leads.

    Raises:
        BeyondPowerCounting: several products are as large as the sum, or a smaller one decides the sign of some
            entries.
        Exhausted: it is not certified which product leads.
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
    """Returns the same as ``find_gradient_zeros``, for the gradient that comes through the k-th input of one statement
    only."""
    if isinstance(s, Function):
        if s.kind.gaps and not is_linear(net, s):
            return frozenset({s.out})
        return frozenset() if s.kind.mixes or s.held else find_gradient_zeros(net, s.out)
    if isinstance(s, Product) and not set(s.indices) <= set(s.factors[k].indices):
        return frozenset()
    others = [x for j, x in enumerate(s.inputs) if j != k and isinstance(s, Product)]
    return find_gradient_zeros(net, s.out).union(*(find_zeros(net, x.name) for x in others))


def _check_sums(tr: TrainingRun, t: int, values: Sequence[str], gradient: str = "") -> None:
    """Checks the sums whose signs an optimizer uses: entries at which the largest term is zero must be zero in the
    other terms, too.

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
    """Returns the largest terms of a sum, after checking that the smaller ones decide no sign (``_check_zeros``)."""
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
    """Returns a factor of a step, rescaled to the size of ``whole``. If the optimizer averages over steps, an unknown
    term of the same size is added.

    The average contains the positive factors of other steps, which may differ from those of this step by as much as
    their size.

    Args:
        tr: the training run.
        role: the parameter.
        s: the factor after its own positive factors were replaced by their means.
        whole: the factor before that.
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
    """Returns the position in ``gradients`` of the product that is larger than all others.

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
    """Returns a signal marked as the argument of a sign. If the network has nonlinear functions, only an upper bound is
    kept of all monomials but the leading one.

    Law: the square of a sign is 1. So a function of a sign contains no product of two of its parts, and in networks
    with functions only one part is known.
    """
    s = s.replace(may_be_signs=True)
    if not s.indices or not tr.network.live or len(s.terms) < 2:
        return s
    tr.note(SQUARED)
    first = next(iter(tr.algebra.find_leading(s)), None)  # None if only a bound on its size is known
    return mark_doubtful(tr.algebra, s, s.replace(terms={k: e for k, e in s.terms.items() if k != first}))


def expand_entrywise(tr: TrainingRun, factors: Factors, names: Sequence[str], share: int, again: bool) -> list[Step]:
    """Returns an optimizer step that normalises each entry of a gradient as a sum of products, each with its scalar
    factors.

    Law: a step is g / (v + epsilon), where v is as large as g and a function of its sign. So it is linear in g, plus a
    nonlinear part F(g) with a generic odd function F, which is smaller by the factor v / epsilon.

    Args:
        tr: the training run.
        factors: the factors of the gradient g.
        names: names of the factors in explanations.
        share: size of v / epsilon as an exponent of n packed into an integer, at most 0.
        again: True if an earlier step had an equally large nonlinear part.
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
    """Returns the products that combine several uses of a tensor in a step that normalises each entry of the gradient.
    The products of a single use are those of ``expand_entrywise``.

    Law: F(u v + x y + ...) with a generic odd F contains each product of an odd number of uses, elementwise. If sizes
    are unknown, or there are many monomials, the result is a bound: F(g) is no larger than g.

    Args:
        tr: the training run.
        role: the parameter.
        gradients: factors of the gradient for each use.
        share: size of v / epsilon (see ``expand_entrywise``).
        again: True if an earlier step had an equally large nonlinear part.
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
    """Returns the powers 1, 3, ... in the polynomial that represents an odd elementwise function of a signal with these
    indices.

    They go up to the number of factors that products have at an index that grows. At other indices nothing averages
    out, so the linear part is as large as all others and is enough.
    """
    most = max((count_multiplicity(tr.network)[x] for x in indices if tr.grows(x)), default=1)
    more = tr.context.degrees == "raised" and (most > 2 or not tr.network.live)
    return range(1, 2 if tr.context.degrees == "lowest" else most + (3 if more else 1), 2)


def make_odd_function(tr: TrainingRun, s: Signal, again: bool = False) -> Signal:
    """Returns a generic odd function of a signal x, elementwise; x itself if only the linear part matters.

    Law: the function is x + x^3 + ... with generic coefficients. Terms of x that sum to zero do so no longer. Powers
    above the first matter in products of as many signals, if x has two or more monomials. If x is not symmetric, these
    powers have a mean, which appears in every sum. Whatever is dropped is no larger than x, since |F(x)| <= C |x|.

    Args:
        tr: the training run.
        s: the signal x, a factor of a gradient.
        again: True if an earlier step had an equally large nonlinear part.
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
    """Returns the smallest odd number of monomials of a signal whose product is even in every tensor; 0 if there is
    none. For the monomials {U, V, U V} it is 3: the product U V (U V) is even.

    If there is none, some change of signs of the tensors changes the sign of the signal, which is therefore symmetric.
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
    """Whether the number 1 is the exclusive or (``^``) of some of the given integers."""
    basis: list[int] = []

    def reduce_modulo_basis(x: int) -> int:
        """Returns the remainder of a bit vector modulo the basis."""
        return reduce(lambda rest, y: min(rest, rest ^ y), basis, x)

    for x in vectors:
        if rest := reduce_modulo_basis(x):
            basis = sorted([*basis, rest], reverse=True)
    return reduce_modulo_basis(1) == 0


def _add_sign_part(tr: TrainingRun, s: Signal, whole: Signal, name: str) -> Signal:
    """Returns a factor of a normalised step, with an independent Gaussian added for the nonlinear part of its sign if
    the network has norms.

    Law: sign(u) is a multiple of u plus higher Hermite parts, which are uncorrelated with everything linear in u. If a
    norm removes the direction of u, these parts are what remains; otherwise they are no larger than the linear part. If
    the largest part of u is a single number, the sign is that of the number, and only an upper bound on the effect of
    the smaller parts is known.

    Args:
        tr: the training run.
        s: the factor, or an odd function of it.
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
    """Whether a monomial (``k`` is its id) varies along any index of a signal."""
    return any(tr.algebra.kernel(k).leaves_along(at) for at in range(len(s.indices)))


# singular directions --------------------------------------------------------------------------------------------


def scale_singular_values(tr: TrainingRun, role: str, gradients: Sequence[Factors]) -> list[Scalar | None]:
    """Returns, for each use of a tensor, the factor by which orthogonalising the whole gradient enlarges the gradient
    of this use, relative to the largest one; None if the gradient of the use is exactly zero.

    Law: rank-one matrices with asymptotically orthogonal factors are singular directions, and each is scaled to
    singular value one. Those that share a factor add up to one rank-one matrix. A fixed number of Newton-Schulz steps
    does this for directions of equal size: one that is smaller by a power of n stays smaller, whereas an inverse root
    scales it to one as well.

    Raises:
        BeyondPowerCounting: the gradient has growing rank or overlapping directions; or Newton-Schulz steps are applied
            to directions of different size; or only a smaller part of the gradient differs between tokens.
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
    """Returns an index of fixed length, such as that of tokens, over which the gradient of the k-th use of a tensor is
    a sum; "" if there is none."""
    use = tr.network.uses(role)[k]
    indices = dict.fromkeys("".join([use.indices, *(x.indices for x in use.factors)]))
    return next((c for c in indices if c not in tr.network.tensors[role].indices and not tr.grows(c)), "")


def _has_one_direction(tr: TrainingRun, s: Signal) -> bool:
    """Tests whether the largest monomials of a factor are the same vector for all tokens, although smaller monomials
    are not.

    Law: a monomial differs between tokens if it has a tensor with an index of fixed length, by which it acts on data.
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

    Law: (sum G G^T)^(-1/4) G (sum G^T G)^(-1/4) enlarges the directions in which the gradients of several steps differ,
    the smaller ones more, up to the size of the largest. They matter if a norm removes the largest direction.
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
    """Whether two rank-one matrices have a common factor."""
    return len(a) == len(b) == 2 and any(
        _undo_relabelling(x) is _undo_relabelling(y) for x, y in zip(a, b, strict=True)
    )


def _undo_relabelling(s: Signal) -> Signal:
    """Returns the signal from which a signal was obtained by renaming indices; the signal itself if it was not."""
    while s.origin is not None and s.origin.rule == "relabelled":
        (s,) = s.origin.operands
    return s


def _are_orthogonal(tr: TrainingRun, role: str, a: Factors, b: Factors) -> bool:
    """Whether two rank-one matrices are asymptotically orthogonal in both of their factors."""
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
