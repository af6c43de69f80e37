"""What a direction takes from a signal: multiples of another one, and what may cancel with them.

Read next: ``dynamics/norms.py`` (asks for them).
"""

from __future__ import annotations

from collections import Counter

from .algebra import Algebra
from .kernels import INDICATOR
from .signals import Made, Scalar, Signal, larger


def doubted(algebra: Algebra, s: Signal, along: Signal) -> Signal:
    """A signal of which the kernels that another one has may cancel in later products: they are upper bounds."""
    terms = dict[int, int]()
    for k, e in s.terms.items():
        number, e = (algebra.with_doubt(k), e - algebra.later) if k in along.terms else (k, e)
        if number not in terms or algebra.before(number, e, terms[number]):
            terms[number] = e
    loss = larger(s.loss, s.tail) if along is s else s.loss
    zero = {x: doubted(algebra, rest, rest if along is s else along) for x, rest in s.centred.items()}
    return s.but(terms=terms, least=None, leaf=None, made=Made("doubted", (s,)), loss=loss, centred=zero)


def numbered(algebra: Algebra, s: Signal) -> Signal:
    """A signal without an index that grows, of which the random part is kept by a bound on its size alone.

    Law: it is a few numbers c, polynomials in Gaussians. Whatever Y is made of what they multiply, rms(c Y) <= C rms(c)
    rms(Y) (Cauchy-Schwarz, then hypercontractivity), so a constant of that size bounds each kernel of c Y from above.
    Which kernels c Y has is not known: it may cancel any that are no larger (``SignalSizes.stands``).
    """
    plain = {k: e for k, e in s.terms.items() if all(x.startswith(INDICATOR) for x, _ in algebra.kernels[k].leaves)}
    rest = {k: e for k, e in s.terms.items() if k not in plain}
    size = algebra.bound(s.but(terms=rest))
    if size is None or not rest:
        return s
    terms = {**plain, algebra.number(s.letters): size}
    return s.but(terms=terms, tail=None, loss=None, least=None, leaf=None, made=Made("doubted", (s,)), centred={})


def less_multiple(algebra: Algebra, s: Signal, other: Signal) -> Signal:
    """A signal with a lower bound on what is left of it where a random multiple of another one, entry by entry, is
    taken away: the size of its kernels that are none."""
    kept = multiples(algebra, s, other).terms.keys() - other.terms.keys()
    size = algebra.rms(s.but(terms={k: e for k, e in s.terms.items() if k not in kept}, least=None))
    return s.but(least=None if size is None else size - algebra.later, leaf=None, made=Made("doubted", (s,)))


def multiples(algebra: Algebra, s: Signal, of: Signal) -> Signal:
    """Kernels of a signal that may be another signal times something: they have all leaves of a kernel of it."""
    names = [Counter(name for name, _ in algebra.kernels[k].leaves) for k in of.terms]

    def within(k: int) -> bool:
        leaves = Counter(name for name, _ in algebra.kernels[k].leaves)
        return any(x <= leaves for x in names)

    return s.but(terms={k: e for k, e in s.terms.items() if within(k)})


def reduced(algebra: Algebra, s: Signal, by: Signal) -> Signal:
    """A signal plus that multiple of another which removes the leading kernel of the other from it.

    Law: kernels are linearly independent, with deterministic coefficients; so a projection that annihilates ``by``
    makes the same of both, and what is left is not parallel to ``by``. Where a kernel may stand for a nonlinear
    function of its leaves only the linear part is removed, so it stays as an upper bound. So does every other kernel
    that ``s`` has as many times as ``by``: of ``2 (h + u)`` less a multiple of ``h + u`` nothing is left.
    """
    pivot = _pivot(algebra, s, by)
    if pivot is None:
        return s
    factor = Scalar("what the common direction is multiplied by", s.terms[pivot] - by.terms[pivot])
    rest, multiple = ({k: e for k, e in x.terms.items() if k != pivot} for x in (s, algebra.scaled(by, factor)))
    if s.curved or by.curved:
        rest[algebra.with_doubt(pivot)] = s.terms[pivot] - algebra.later
    zero = {x: doubted(algebra, left, by) for x, left in s.centred.items()}
    left = [s.but(terms=rest, centred=zero), algebra.scaled(by, factor).but(terms=multiple)]
    if alike := {k: e for k, e in multiple.items() if rest.get(k) == e}:
        left = [doubted(algebra, x, by.but(terms=alike)) for x in left]
    return algebra.add(left)


def outgrows(algebra: Algebra, s: Signal, by: Signal) -> bool:
    """A signal may have more of another one than there is of it."""
    pivot = _pivot(algebra, s, by)
    return pivot is not None and algebra.value(s.terms[pivot]) >= algebra.value(by.terms[pivot])


def _pivot(algebra: Algebra, s: Signal, by: Signal) -> int | None:
    """The leading kernel of a signal that another has."""
    leading = algebra.leading(by)
    order = min((algebra.degree(by.terms[k]) for k in leading), default=0)
    return next((k for k in leading if k in s.terms and algebra.degree(by.terms[k]) == order), None)
