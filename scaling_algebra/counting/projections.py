"""Subtracts multiples of one signal from another, and marks the monomials that may cancel as a result.

Used by: ``dynamics/norms.py``.
"""

from __future__ import annotations

from collections import Counter

from .algebra import Algebra
from .kernels import INDICATOR
from .signals import Scalar, Signal, larger_size


def mark_doubtful(algebra: Algebra, s: Signal, along: Signal) -> Signal:
    """Marks the monomials that two signals share as upper bounds only, because they may cancel in later products.

    Args:
        algebra: the algebra.
        s: the signal to mark.
        along: the other signal. If it is ``s`` itself, all monomials are marked, dropped ones included.

    Returns:
        ``s``, in which only an upper bound is known of the shared monomials.
    """
    terms = dict[int, int]()
    for k, e in s.terms.items():
        marked, e = (algebra.mark_doubt(k), e - algebra.doubt_offset) if k in along.terms else (k, e)
        if marked not in terms or algebra.supersedes(marked, e, terms[marked]):
            terms[marked] = e
    bound = larger_size(s.doubt_bound, s.tail_bound) if along is s else s.doubt_bound
    rest = {x: mark_doubtful(algebra, part, part if along is s else along) for x, part in s.without_centred.items()}
    return s.derive("doubted", terms=terms, lower_bound=None, doubt_bound=bound, without_centred=rest)


def replace_by_bound(algebra: Algebra, s: Signal) -> Signal:
    """Replaces the random part of a signal whose indices do not grow by unknown numbers of the same size.

    Law: the signal consists of a few numbers c, which are polynomials in Gaussians. For any Y, rms(c Y) <= C rms(c)
    rms(Y) (Cauchy-Schwarz, then hypercontractivity), so a constant of this size bounds each monomial of c Y from above.
    It is not known which monomials c Y has, so it may cancel any that are no larger (``SignalSizes.is_lower_bound``).
    """
    plain = {k: e for k, e in s.terms.items() if all(x.startswith(INDICATOR) for x, _ in algebra.kernels[k].leaves)}
    rest = {k: e for k, e in s.terms.items() if k not in plain}
    size = algebra.upper_bound(s.replace(terms=rest))
    if size is None or not rest:
        return s
    terms = {**plain, algebra.make_unknown_numbers(s.indices): size}
    return s.derive("doubted", terms=terms, tail_bound=None, doubt_bound=None, lower_bound=None, without_centred={})


def bound_remainder(algebra: Algebra, s: Signal, other: Signal) -> Signal:
    """Finds a lower bound on the size of ``s`` after each of its entries loses a random multiple of the same entry of
    ``other``.

    Returns:
        ``s`` with ``lower_bound`` set to the size of its monomials that cannot belong to such a multiple.
    """
    removable = select_multiples(algebra, s, other).terms.keys() - other.terms.keys()
    size = algebra.rms(s.replace(terms={k: e for k, e in s.terms.items() if k not in removable}, lower_bound=None))
    return s.derive("doubted", lower_bound=None if size is None else size - algebra.doubt_offset)


def select_multiples(algebra: Algebra, s: Signal, of: Signal) -> Signal:
    """Returns the part of ``s`` that may be a random multiple of ``of``.

    Its monomials contain all leaves of some monomial of ``of``: ``A B x`` may be a multiple of ``B x``, ``A x`` may
    not.
    """
    names = [Counter(name for name, _ in algebra.kernels[k].leaves) for k in of.terms]

    def contains_one(k: int) -> bool:
        leaves = Counter(name for name, _ in algebra.kernels[k].leaves)
        return any(x <= leaves for x in names)

    return s.replace(terms={k: e for k, e in s.terms.items() if contains_one(k)})


def remove_leading(algebra: Algebra, s: Signal, by: Signal) -> Signal:
    """Subtracts a multiple of ``by`` from ``s`` such that the leading monomial of ``by`` disappears from ``s``.

    Example: ``s = h + u`` and ``by = h + v`` with ``h`` leading give ``u - v``.

    Law: monomials are linearly independent, with deterministic coefficients. So a projection that maps ``by`` to zero
    has the same value on ``s`` and on the result, and the result is not parallel to ``by``. If a monomial may stand for
    a nonlinear function of its leaves, only the linear part is removed, so the monomial stays as an upper bound. So
    does every other monomial with the same ratio of coefficients in ``s`` and ``by``, since it may cancel, too: nothing
    is left of ``2 (h + u)`` after its multiple of ``h + u`` is subtracted.
    """
    pivot = _find_pivot(algebra, s, by)
    if pivot is None:
        return s
    factor = Scalar("what the common direction is multiplied by", s.terms[pivot] - by.terms[pivot])
    rest, multiple = ({k: e for k, e in x.terms.items() if k != pivot} for x in (s, algebra.scale_by(by, factor)))
    if s.may_be_nonlinear or by.may_be_nonlinear:
        rest[algebra.mark_doubt(pivot)] = s.terms[pivot] - algebra.doubt_offset
    zero = {x: mark_doubtful(algebra, left, by) for x, left in s.without_centred.items()}
    left = [s.replace(terms=rest, without_centred=zero), algebra.scale_by(by, factor).replace(terms=multiple)]
    if alike := {k: e for k, e in multiple.items() if rest.get(k) == e}:
        left = [mark_doubtful(algebra, x, by.replace(terms=alike)) for x in left]
    return algebra.add(left)


def may_outgrow(algebra: Algebra, s: Signal, by: Signal) -> bool:
    """Tests whether ``s`` contains the leading monomial of ``by`` with a coefficient at least as large as in ``by``."""
    pivot = _find_pivot(algebra, s, by)
    return pivot is not None and algebra.exponent(s.terms[pivot]) >= algebra.exponent(by.terms[pivot])


def _find_pivot(algebra: Algebra, s: Signal, by: Signal) -> int | None:
    """Returns a leading monomial of ``by`` that ``s`` contains, the one with the fewest learning rates; None if there
    is none."""
    leading = algebra.find_leading(by)
    order = min((algebra.count_rates(by.terms[k]) for k in leading), default=0)
    return next((k for k in leading if k in s.terms and algebra.count_rates(by.terms[k]) == order), None)
