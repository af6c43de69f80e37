"""Projections of signals: removes multiples of another signal, and marks kernels that may cancel as a result.

Used by: ``dynamics/norms.py``.
"""

from __future__ import annotations

from collections import Counter

from .algebra import Algebra
from .kernels import INDICATOR
from .signals import Provenance, Scalar, Signal, larger_size


def mark_doubtful(algebra: Algebra, s: Signal, along: Signal) -> Signal:
    """Marks the kernels that a signal shares with another one as upper bounds, because they may cancel in later
    products."""
    terms = dict[int, int]()
    for k, e in s.terms.items():
        number, e = (algebra.with_doubt(k), e - algebra.later) if k in along.terms else (k, e)
        if number not in terms or algebra.before(number, e, terms[number]):
            terms[number] = e
    loss = larger_size(s.loss, s.tail) if along is s else s.loss
    zero = {x: mark_doubtful(algebra, rest, rest if along is s else along) for x, rest in s.centred.items()}
    return s.but(terms=terms, least=None, leaf=None, made=Provenance("doubted", (s,)), loss=loss, centred=zero)


def replace_by_bound(algebra: Algebra, s: Signal) -> Signal:
    """Replaces the random part of a signal without growing indices by a bound on its size.

    Law: the signal is a few numbers c, which are polynomials in Gaussians. For any Y, rms(c Y) <= C rms(c) rms(Y)
    (Cauchy-Schwarz, then hypercontractivity), so a constant of this size bounds each kernel of c Y from above. It is
    not known which kernels c Y has: it may cancel any that are no larger (``SignalSizes.stands``).
    """
    plain = {k: e for k, e in s.terms.items() if all(x.startswith(INDICATOR) for x, _ in algebra.kernels[k].leaves)}
    rest = {k: e for k, e in s.terms.items() if k not in plain}
    size = algebra.bound(s.but(terms=rest))
    if size is None or not rest:
        return s
    terms = {**plain, algebra.number(s.indices): size}
    return s.but(terms=terms, tail=None, loss=None, least=None, leaf=None, made=Provenance("doubted", (s,)), centred={})


def bound_remainder(algebra: Algebra, s: Signal, other: Signal) -> Signal:
    """Adds a lower bound on what is left of a signal after a random multiple of another one is subtracted, entry by
    entry.

    The bound is the size of the kernels that cannot belong to such a multiple.
    """
    kept = select_multiples(algebra, s, other).terms.keys() - other.terms.keys()
    size = algebra.rms(s.but(terms={k: e for k, e in s.terms.items() if k not in kept}, least=None))
    return s.but(least=None if size is None else size - algebra.later, leaf=None, made=Provenance("doubted", (s,)))


def select_multiples(algebra: Algebra, s: Signal, of: Signal) -> Signal:
    """Keeps the kernels of a signal that may be a multiple of another signal: those with all leaves of one of its
    kernels."""
    names = [Counter(name for name, _ in algebra.kernels[k].leaves) for k in of.terms]

    def within(k: int) -> bool:
        leaves = Counter(name for name, _ in algebra.kernels[k].leaves)
        return any(x <= leaves for x in names)

    return s.but(terms={k: e for k, e in s.terms.items() if within(k)})


def remove_leading(algebra: Algebra, s: Signal, by: Signal) -> Signal:
    """Adds the multiple of another signal that removes its leading kernel.

    Law: kernels are linearly independent, with deterministic coefficients. So a projection that maps ``by`` to zero has
    the same value on both signals, and the result is not parallel to ``by``. If a kernel may stand for a nonlinear
    function of its leaves, only the linear part is removed, so it stays as an upper bound. So does every other kernel
    with the same ratio of coefficients in ``s`` and ``by``: nothing is left of ``2 (h + u)`` less a multiple of ``h +
    u``.
    """
    pivot = _find_pivot(algebra, s, by)
    if pivot is None:
        return s
    factor = Scalar("what the common direction is multiplied by", s.terms[pivot] - by.terms[pivot])
    rest, multiple = ({k: e for k, e in x.terms.items() if k != pivot} for x in (s, algebra.scaled(by, factor)))
    if s.curved or by.curved:
        rest[algebra.with_doubt(pivot)] = s.terms[pivot] - algebra.later
    zero = {x: mark_doubtful(algebra, left, by) for x, left in s.centred.items()}
    left = [s.but(terms=rest, centred=zero), algebra.scaled(by, factor).but(terms=multiple)]
    if alike := {k: e for k, e in multiple.items() if rest.get(k) == e}:
        left = [mark_doubtful(algebra, x, by.but(terms=alike)) for x in left]
    return algebra.add(left)


def may_outgrow(algebra: Algebra, s: Signal, by: Signal) -> bool:
    """Tests whether the coefficient of another signal's leading kernel may be larger in a signal than in that other
    one."""
    pivot = _find_pivot(algebra, s, by)
    return pivot is not None and algebra.value(s.terms[pivot]) >= algebra.value(by.terms[pivot])


def _find_pivot(algebra: Algebra, s: Signal, by: Signal) -> int | None:
    """Returns the leading kernel of ``by`` that ``s`` has, too; None if there is none."""
    leading = algebra.leading(by)
    order = min((algebra.degree(by.terms[k]) for k in leading), default=0)
    return next((k for k in leading if k in s.terms and algebra.degree(by.terms[k]) == order), None)
