"""Steps of an optimizer that normalises the gradient of a tensor: its signs, or its singular directions.

A gradient is a sum of products, one for every use of the tensor. A sign drops positive factors, and is not linear in a
sum; orthogonalisation brings every singular direction to one.
Read next: ``trajectory.py`` (takes the steps), ``scaling_algebra/spec/optimizers.py`` (which optimizers these are).
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

from .functions import mean
from .run import BeyondPowerCounting, TrainingRun

Factors = tuple[Signal, ...]
Step = tuple[tuple[Scalar, ...], Factors]
"""A product with factors of its own."""
SQUARED = "a part of it may cancel: the square of a sign is 1"
RAISED = "an inverse root of past gradients raises the directions by which they differ, and these may be as large"
SKEWED = 12
"""Kernels of a gradient of which it is known what they have beside an odd part, as many as the first rung keeps."""
Addend = tuple[int | None, frozenset[str], Any]
"""The gradient at the output of a use of a tensor, and what the tensor acts on there."""


def vanishes(factors: Factors) -> bool:
    """The gradient of a use is exactly zero."""
    return any(s.zero for s in factors)


# signs ----------------------------------------------------------------------------------------------------------


def signs(tr: TrainingRun, role: str, t: int, gradients: Sequence[Factors]) -> list[Factors]:
    """The gradient of a tensor in the form that its sign is read off, use by use.

    Law: sign(u v^T) = sign(u) sign(v)^T, and a positive factor does not change a sign: it is replaced by its mean. Of a
    sum of products only the leading one has a sign that is known.

    Raises:
        BeyondPowerCounting: several products are as large as the whole, or a smaller one decides in places.
        Exhausted: which one leads is not certified.
    """
    there = [k for k, factors in enumerate(gradients) if not vanishes(factors)]
    leading = there[_leading(tr, role, [gradients[k] for k in there])] if len(there) > 1 else there[0]
    if any(f.kind.gaps for f in tr.network.functions):
        net, uses = tr.network, tr.network.uses(role)
        zeros = [zeros_of_gradient(net, use.out).union(*(zeros_of(net, x.name) for x in use.factors)) for use in uses]
        _covered(net.tensors[role].symbol, zeros[leading], [zeros[k] for k in there if k != leading])
        _seen(tr, t, [x.name for x in uses[leading].factors], uses[leading].out)
    signed = list(gradients)
    if not _summed(tr, role, signed[leading]):
        unsigned = tr.factors(role, t, lambda x: _direction(tr, x, t), lambda x: _unsigned(tr, x, t))[leading]
        pairs = zip(unsigned, signed[leading], strict=True)
        signed[leading] = tuple(_sign(tr, _lasting(tr, role, s, whole, t)) for s, whole in pairs)
    return signed


def zeros_of(net: Network, signal: str) -> frozenset[str]:
    """Functions and sums that make a share of the entries of a signal exactly zero."""
    s = net.producer(signal)
    if isinstance(s, Function):
        if s.kind.gaps and not is_linear(net, s):
            return frozenset({signal})
        keeps = (not s.kind.mixes or s.kind.kind == "norm") and 0 not in s.kind.powers and not s.kind.centres
        return zeros_of(net, s.inputs[0].name) if keeps else frozenset()
    if isinstance(s, Sum):
        return frozenset({signal} if all(zeros_of(net, x.name) for x in s.terms) else ())
    if s is None or net.summed_indices(s):
        return frozenset()
    return frozenset[str]().union(*(zeros_of(net, x.name) for x in s.factors))


def zeros_of_gradient(net: Network, signal: str) -> frozenset[str]:
    """The same of the gradient at a signal."""
    uses = [(s, k) for s, k in net.consumers(signal) if not isinstance(s, Function) or s.kind.kind != "stopped"]
    paths = [_zeros_of_path(net, s, k) for s, k in uses]
    return paths[0] if len(paths) == 1 else frozenset({signal} if paths and all(paths) else ())


def _zeros_of_path(net: Network, s: Statement, k: int) -> frozenset[str]:
    if isinstance(s, Function):
        if s.kind.gaps and not is_linear(net, s):
            return frozenset({s.out})
        return frozenset() if s.kind.mixes or s.held else zeros_of_gradient(net, s.out)
    if isinstance(s, Product) and not set(s.indices) <= set(s.factors[k].indices):
        return frozenset()
    others = [x for j, x in enumerate(s.inputs) if j != k and isinstance(s, Product)]
    return zeros_of_gradient(net, s.out).union(*(zeros_of(net, x.name) for x in others))


def _seen(tr: TrainingRun, t: int, values: Sequence[str], gradient: str = "") -> None:
    """Sums that a sign is taken of: none has a largest term that is exactly zero where a smaller one is not.

    Raises:
        BeyondPowerCounting: one has.
    """
    net, rms = tr.network, tr.algebra.rms
    for name in values:
        s = net.producer(name)
        if isinstance(s, Sum):
            terms = [(rms(tr.value(x.name, t)), zeros_of(net, x.name), x.name) for x in s.terms]
            _seen(tr, t, [x for _, _, x in _largest(tr, name, terms)])
        elif isinstance(s, Product) and not net.summed_indices(s):
            _seen(tr, t, [x.name for x in s.factors])
        elif isinstance(s, Function) and s.kind.signed:
            _seen(tr, t, [s.inputs[0].name])
    uses = net.consumers(gradient) if gradient else ()
    paths: list[Addend] = [(0, frozenset(), use) for use in uses]
    if len(uses) > 1:
        paths = [(rms(tr.gradient(gradient, t, via=s.out)), _zeros_of_path(net, s, k), (s, k)) for s, k in uses]
    for _, _, (s, k) in _largest(tr, f"the gradient of {gradient}", paths):
        others = [x.name for j, x in enumerate(s.inputs) if j != k and isinstance(s, Product)]
        if not isinstance(s, Product) or set(s.indices) <= set(s.factors[k].indices):
            _seen(tr, t, others, s.out)


def _largest(tr: TrainingRun, name: str, terms: Sequence[Addend]) -> list[Addend]:
    """The largest of some terms of a sum, each with its size and what makes entries of it zero."""
    values = [None if size is None else tr.algebra.value(size) for size, _, _ in terms]
    top = max((x for x in values if x is not None), default=None)
    largest = [x for x, value in zip(terms, values, strict=True) if value == top]
    if all(zeros for _, zeros, _ in largest):
        smaller = [x[1] for x, value in zip(terms, values, strict=True) if value not in (top, None)]
        _covered(name, largest[0][1] if len(largest) == 1 else frozenset({name}), smaller)
    return largest


def _covered(name: str, zeros: frozenset[str], others: Sequence[frozenset[str]]) -> None:
    if zeros and not all(zeros <= x for x in others):
        raise BeyondPowerCounting(
            f"the sign of {name}: its largest term is exactly zero where {min(zeros)} is, and a smaller one decides"
        )


def _lasting(tr: TrainingRun, role: str, s: Signal, whole: Signal, t: int) -> Signal:
    """A factor of a mean over steps, whose positive factors are those of the other steps only up to a change that may
    be as large as they are: beside what has the sign of this step there is as much again. It is as large as it was."""
    size, full = tr.algebra.rms(s), tr.algebra.rms(whole)
    if size is None or full is None or (s.terms, s.tail, s.flat) == (whole.terms, whole.tail, whole.flat):
        return s
    if tr.algebra.value(size) != tr.algebra.value(full):
        s, size = tr.algebra.scaled(s, Scalar("its size", full - size, tr.algebra.certified(whole))), full
    return s.but(tail=size, leaf=None, flat=frozenset(), centred={}) if tr.optimizer.of(role).memory and t else s


def _leading(tr: TrainingRun, role: str, gradients: Sequence[Factors]) -> int:
    """The product that is larger than all others."""
    entries = [tr.products.entry(role, factors) for factors in gradients]
    if not all(x.certain for x in entries):
        raise Exhausted
    sizes = [tr.algebra.value(x.packed or 0) for x in entries]
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    first, second = (sizes[k] for k in order[:2])
    if first == second:
        symbol = tr.network.tensors[role].symbol
        raise BeyondPowerCounting(f"the sign of a sum: {symbol} is used {len(sizes)} times with gradients of one size")
    return order[0]


def _summed(tr: TrainingRun, role: str, factors: Factors) -> bool:
    """The gradient is a sum over indices that the tensor does not have."""
    indices = tr.network.tensors[role].indices
    return any(c not in indices for s in factors for c in s.indices)


def _direction(tr: TrainingRun, signal: str, t: int) -> Signal:
    """A signal with the sign of the gradient at a signal."""
    uses = tr.network.consumers(signal)
    if len(uses) != 1 or signal in find_selection_inputs(tr.network):
        return tr.gradient(signal, t)
    ((s, k),) = uses
    indices = s.inputs[k].indices
    if indices != tr.network.signals[signal]:
        return tr.gradient(signal, t)
    if isinstance(s, Sum):
        return _direction(tr, s.out, t)
    if isinstance(s, Function):
        passes = s.kind.rising and not s.kind.selects and not tr.gradient(signal, t).zero
        return _direction(tr, s.out, t) if passes else tr.gradient(signal, t)
    others = [x for j, x in enumerate(s.factors) if j != k]
    above = tr.network.signals[s.out]
    if (
        s.tensor
        or not set(indices) >= set(above).union(*(x.indices for x in others))
        or len(set(indices)) < len(indices)
    ):
        return tr.gradient(signal, t)
    operands = [_direction(tr, s.out, t), *(_unsigned(tr, x, t) for x in others)]
    return tr.products.multiplied(tr.products.product(operands, indices), s.multipliers)


def _unsigned(tr: TrainingRun, factor: Factor, t: int) -> Signal:
    """A signal with the sign of another, in the letters that it has in an equation: positive factors are means."""
    s = tr.network.producer(factor.name)
    if isinstance(s, Function) and s.kind.signed and s.source:
        return tr.algebra.relabelled(_unsigned(tr, s.source, t), s.source.indices, factor.indices)
    if isinstance(s, Function) and s.kind.positive:
        return tr.algebra.relabelled(mean(tr, s), tr.network.signals[factor.name], factor.indices)
    return tr.at(factor, "value", t)


def _sign(tr: TrainingRun, s: Signal) -> Signal:
    """What a sign is an odd function of.

    Law: the square of a sign is 1, so what a function makes of it has no product of two of its parts: where there are
    functions, only one part is known, and the others are upper bounds.
    """
    s = s.but(signed=True)
    if not s.indices or not tr.network.live or len(s.terms) < 2:
        return s
    tr.note(SQUARED)
    first = next(iter(tr.algebra.leading(s)), None)  # none, where only the size of the whole is known
    return mark_doubtful(tr.algebra, s, s.but(terms={k: e for k, e in s.terms.items() if k != first}))


def entrywise(tr: TrainingRun, factors: Factors, names: Sequence[str], share: int, again: bool) -> list[Step]:
    """Products that a step which is normalised entry by entry is the sum of, each with a factor of its own.

    Law: a step is g / (v + epsilon), with v as large as a gradient and a function of its sign: what is linear in g,
    and as much less of what is not, F(g) with F odd and generic, as v is smaller than epsilon.

    Args:
        names: what explanations call the factors.
        share: packed size of v / epsilon, at most 0. again: a step before had as much of F.
    """
    odds = (tr.once(("odd", again), s, partial(odd, tr, s, again)) for s in factors)
    bent = tuple(_signed(tr, y, s, name) for y, s, name in zip(odds, factors, names, strict=True))
    if not share:
        return [((), bent)]
    less = Scalar("what the step divides by over epsilon", share)
    if sum(x is not y for x, y in zip(factors, bent, strict=True)) > 1:
        return [((), factors), ((less,), bent)]
    both = ((x, y if x is y else tr.algebra.scaled(y, less)) for x, y in zip(factors, bent, strict=True))
    return [((), tuple(x if x is y else tr.algebra.add([x, y]) for x, y in both))]


def crossed(tr: TrainingRun, role: str, gradients: Sequence[Factors], share: int, again: bool) -> list[Step]:
    """Products of several uses of a tensor that a step which is normalised entry by entry has beside those of each.

    Law: F(u v + x y + ...) with F odd and generic has every product of an odd number of uses, entry by entry. Where
    sizes are not known, or there are many kernels, a bound: it is no larger than the gradient.
    """
    indices = tr.algebra.live(tr.network.tensors[role].indices)
    there, most = [x for x in gradients if not vanishes(x)], odd_powers(tr, indices)[-1]
    if len(there) < 2 or most < 3 or again:
        return []
    sizes = [x.packed for x in (tr.products.entry(role, y) for y in there) if x.packed is not None]
    if len(sizes) < len(there) or sum(len(s.terms) for x in there for s in x) > SKEWED:
        return [((), tuple(Signal(s.indices, {}, tr.algebra.bound(s)) for s in x)) for x in there]
    size = max(sizes, key=tr.algebra.value)
    blocks: list[set[str]] = []  # of letters that some use has in one factor
    for found in (set(s.indices) for x in there for s in x if s.indices):
        joined = [x for x in blocks if x & found]
        blocks = [*(x for x in blocks if not x & found), found.union(*joined)]
    kept = ["".join(c for c in indices if c in x) for x in blocks]
    parts = []
    for factors in there:
        groups = [[s for s in factors if x.issuperset(s.indices) and s.indices] for x in blocks]
        parts.append([tr.products.product(group, x) for group, x in zip(groups, kept, strict=True)])
    steps: list[Step] = []
    for number in range(3, most + 1, 2):
        less = [Scalar("1/a square", (1 - number) * size), Scalar("what the step divides by over epsilon", share)]
        for chosen in combinations_with_replacement(parts, number):
            if any(x is not chosen[0] for x in chosen):
                products = []
                for x, column in zip(kept, zip(*chosen, strict=True), strict=True):
                    products.append(reduce(partial(tr.algebra.contract, out=x), column))
                steps.append((tuple(less), tuple(products)))
    return steps


def odd_powers(tr: TrainingRun, indices: str) -> range:
    """Powers of a signal in an odd function of it, entry by entry: as many as products see at an index that grows.
    At others nothing averages out, and what is linear is as large."""
    most = max((count_multiplicity(tr.network)[x] for x in indices if tr.grows(x)), default=1)
    more = tr.context.degrees == "raised" and (most > 2 or not tr.network.live)
    return range(1, 2 if tr.context.degrees == "lowest" else most + (3 if more else 1), 2)


def odd(tr: TrainingRun, s: Signal, again: bool = False) -> Signal:
    """A factor of a generic odd function of a gradient, entry by entry; the factor itself where that makes it.

    Law: x + x^3 + ... with generic coefficients. What sums to zero does so no more. Powers above the first are seen by
    products of as many signals, which have two terms at least. Of what is not symmetric they have a mean, which every
    sum sees. What of them is not kept is no larger than the gradient, since |F(x)| <= C |x|.
    """
    whole = tr.algebra.uncentred(s)
    size, most = tr.algebra.rms(s), odd_powers(tr, s.indices)[-1] if len(s.terms) > 1 and not again else 1
    few = whole if most > 1 else tr.algebra.largest(whole, SKEWED)
    if any(map(tr.grows, s.indices)) and tr.context.degrees != "lowest":
        most = max(most, _skew(tr, few))
    if size is None or most < 3:
        return whole
    if few is not whole and few.tail is not None and tr.algebra.value(few.tail) >= tr.algebra.value(size):
        return whole.but(tail=few.tail, loss=few.loss)
    parts, power = [whole], few
    for _ in range(3, most + 1, 2):
        power = tr.algebra.contract(tr.algebra.contract(few, power, s.indices), few, s.indices)
        power = tr.algebra.scaled(power, Scalar("1/a square", -2 * size))
        tail, loss = (None if x is None else min(x, size, key=tr.algebra.value) for x in (power.tail, power.loss))
        power = power.but(tail=tail, loss=loss)
        parts.append(power)
    return tr.algebra.add(parts)


def _skew(tr: TrainingRun, s: Signal) -> int:
    """The smallest odd number of random kernels of a signal with a product that is even in every tensor; 0 where there
    is none: then other signs of some tensors give the signal another sign, and it is symmetric. And 0 where it is no
    larger than its mean and squares, or what is not linear is a bound alone: so are functions of it."""
    places: dict[str, int] = {}
    parity: dict[int, int | None] = {}
    for k in s.terms:
        names = [name for name, _ in tr.algebra.kernel(k).leaves if not name.startswith(INDICATOR)]
        bits = [1 << places.setdefault(name, len(places)) for name in names]
        parity[k] = reduce(xor, bits) if bits else None
    exponents = {k: tr.algebra.value(e + tr.algebra.weight(k)) for k, e in s.terms.items()}
    largest = {parity[k] for k, e in exponents.items() if e == max(exponents.values())}
    if None in largest and (0 in largest or s.signed):
        return 0
    products = {x for x in parity.values() if x is not None}
    if not _spans_one([2 * x + 1 for x in products]):
        return 0
    pairs, number = {x ^ y for x in products for y in products}, 1
    while 0 not in products:
        products, number = products | {x ^ y for x in products for y in pairs}, number + 2
    return max(number, 3)


def _spans_one(vectors: Iterable[int]) -> bool:
    """Is 1 a sum of some vectors of bits, modulo two?"""
    basis: list[int] = []

    def reduced(x: int) -> int:
        return reduce(lambda rest, y: min(rest, rest ^ y), basis, x)

    for x in vectors:
        if rest := reduced(x):
            basis = sorted([*basis, rest], reverse=True)
    return reduced(1) == 0


def _signed(tr: TrainingRun, s: Signal, whole: Signal, name: str) -> Signal:
    """A factor of a normalised step, and what is nonlinear in its sign, a Gaussian of its own, where there are norms.

    Law: sign(u) is a multiple of u plus higher Hermite parts, uncorrelated with all that is linear in u. Where a
    norm removes the direction of u these are what is left; else they are never larger than the linear part. Of one
    number beside smaller parts the sign is that of the number: it has no part of its own, and of the smaller ones no
    more than an upper bound is known.
    """
    varying = {k: e for k, e in s.terms.items() if _varies(tr, s, k)}
    if varying and varying.keys().isdisjoint(tr.algebra.leading(s)):
        return mark_doubtful(tr.algebra, s, s.but(terms=varying))
    size = tr.algebra.rms(s)
    if not tr.network.norms or size is None or not s.indices or s.flat.issuperset(s.indices):
        return s
    part = tr.algebra.tensor(f"sign({name})", s.indices, size).but(depends=s.depends)
    return tr.named(tr.algebra.add([s, part]), whole.name)


def _varies(tr: TrainingRun, s: Signal, k: int) -> bool:
    """Tests whether a kernel of a signal differs along its indices."""
    return any(tr.algebra.kernel(k).along(at) for at in range(len(s.indices)))


# singular directions --------------------------------------------------------------------------------------------


def apart(tr: TrainingRun, role: str, gradients: Sequence[Factors]) -> list[Scalar | None]:
    """The factor of every use of a tensor, beyond one over the size of the whole, in a step that brings all
    singular values to one; None where its gradient is exactly zero.

    Law: rank-one matrices with asymptotically orthogonal factors are singular directions, each brought to one by
    itself; of those that share a factor the sum is one rank-one matrix. A fixed number of Newton-Schulz steps does that
    with directions of one size: what is smaller by a power of n stays so, an inverse root brings it to one, too.

    Raises:
        BeyondPowerCounting: the gradient has growing rank, directions that overlap, or of Newton-Schulz steps some that
            are smaller; or tokens differ in a smaller part of it alone.
    """
    symbol = tr.network.tensors[role].symbol
    there = [k for k, factors in enumerate(gradients) if not vanishes(factors)]
    indices = tr.network.tensors[role].indices
    for k in there:
        grown = [c for s in gradients[k] for c in s.indices if c not in indices and tr.grows(c)]
        if grown:
            raise BeyondPowerCounting(f"the gradient of {symbol} has growing rank: it sums over {grown[0]}")
        if (summed := _summed_fixed(tr, role, k)) and any(_one_direction(tr, s) for s in gradients[k]):
            raise BeyondPowerCounting(
                f"the gradient of {symbol} sums over {summed}, along which its largest part has one direction: what is "
                "smaller has others, which are brought to one, too"
            )
    shares: list[Scalar | None] = [None] * len(gradients)
    if len(there) == 1:
        shares[there[0]] = Scalar("all of the gradient", 0)
        return shares
    entries = {k: tr.products.entry(role, gradients[k]) for k in there}
    sizes, certain = {k: x.packed or 0 for k, x in entries.items()}, all(x.certain for x in entries.values())
    group = {k: k for k in there}
    for j, k in combinations(there, 2):
        if _shares(gradients[j], gradients[k]):
            group = {x: group[j] if g == group[k] else g for x, g in group.items()}
        elif tr.optimizer.of(role).memory or not _orthogonal(tr, role, gradients[j], gradients[k]):
            raise BeyondPowerCounting(
                f"{symbol} is used {len(there)} times, and the directions of its gradients overlap"
            )
    largest = max(sizes.values())
    for k in there:
        whole = max(sizes[x] for x in there if group[x] == group[k])
        if tr.algebra.value(largest) != tr.algebra.value(whole) and not tr.optimizer.of(role).memory:
            raise BeyondPowerCounting(
                f"{symbol} is used {len(there)} times with gradients of sizes that differ: Newton-Schulz steps bring "
                "the smaller one to the larger up to some size, and not in the limit"
            )
        ratio = f"the singular value of {symbol}'s largest use over that of this one"
        shares[k] = Scalar(ratio, largest - whole, certain)
    return shares


def _summed_fixed(tr: TrainingRun, role: str, k: int) -> str:
    """Returns an index of fixed length, such as tokens, that the gradient of a use sums over; "" if there is none."""
    use = tr.network.uses(role)[k]
    indices = dict.fromkeys("".join([use.indices, *(x.indices for x in use.factors)]))
    return next((c for c in indices if c not in tr.network.tensors[role].indices and not tr.grows(c)), "")


def _one_direction(tr: TrainingRun, s: Signal) -> bool:
    """Tests whether the largest part of a factor is one vector, whatever the token, and there are smaller ones.

    Law: it differs between tokens by tensors that act on an index of fixed length alone, as on the data.
    """
    leading = tr.algebra.leading(s)
    if not s.indices or len(leading) != 1 or (len(s.terms) == 1 and s.tail is None):
        return False
    tensors = {x.symbol: x.indices for x in tr.network.tensors.values()}
    leaves = [name for name, _ in tr.algebra.kernel(leading[0]).leaves]
    return all(name in tensors and all(map(tr.grows, tensors[name])) for name in leaves)


def turned(tr: TrainingRun, factors: Factors) -> Factors:
    """The factors of a gradient in a step with inverse roots of sums over steps: beside each there is as much again.

    Law: (sum G G^T)^(-1/4) G (sum G^T G)^(-1/4) raises the directions by which gradients of several steps differ, the
    more the smaller they are, up to the size of the largest. What takes the largest one away sees these.
    """
    if not any(f.kind.mixes for f in tr.network.functions):
        return factors
    tr.note(RAISED)
    tails = (tr.algebra.rms(s) if any(map(tr.grows, s.indices)) else None for s in factors)
    return tuple(
        s if x is None else s.but(tail=x, leaf=None, flat=frozenset(), centred={})
        for s, x in zip(factors, tails, strict=True)
    )


def _shares(a: Factors, b: Factors) -> bool:
    """Two rank-one matrices have a factor in common."""
    return len(a) == len(b) == 2 and any(_root(x) is _root(y) for x, y in zip(a, b, strict=True))


def _root(s: Signal) -> Signal:
    """A signal before its letters were renamed."""
    while s.made is not None and s.made.rule == "relabelled":
        (s,) = s.made.parts
    return s


def _orthogonal(tr: TrainingRun, role: str, a: Factors, b: Factors) -> bool:
    """Both factors of two rank-one matrices are asymptotically orthogonal."""
    if len(a) != 2 or len(b) != 2 or _summed(tr, role, a) or _summed(tr, role, b):
        return False
    copies = tr.optimizer.of(role).matrix(tr.network, role).copies
    for x, y in zip(a, b, strict=True):
        if x.indices != y.indices:
            return False
        kept = "".join(c for c in x.indices if c in copies)
        inner = tr.algebra.bound(tr.algebra.contract(x, y, kept))
        sizes = tr.algebra.rms(x), tr.algebra.rms(y)
        if inner is None:
            continue
        if None in sizes or not (tr.algebra.certified(x) and tr.algebra.certified(y)):
            raise Exhausted
        entries = tr.algebra.scale(_entries(tr, "".join(c for c in x.indices if c not in kept)))
        if tr.algebra.value(inner - entries - sum(z for z in sizes if z is not None)) >= 0:
            return False
    return True


def _entries(tr: TrainingRun, indices: str) -> dict[str, int]:
    """The powers of the axes in the number of entries along some letters."""
    powers: dict[str, int] = {}
    for c in indices:
        axis = tr.network.indices[c]
        if axis not in FIXED:
            powers[axis] = powers.get(axis, 0) + 1
    return powers
