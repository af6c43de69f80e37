"""Subtracts multiples of one signal from another, and marks the monomials that may cancel as a result.

Used by: ``dynamics/norms.py``.
"""

from __future__ import annotations

from collections import Counter

from .algebra import Algebra
from .kernels import INDICATOR
from .signals import Scalar, Signal, larger_size


def mark_doubtful(algebra: Algebra, s: Signal, along: Signal) -> Signal:
    """Marks the monomials of ``s`` that the signal ``along`` contains, too: from now on only an upper bound on them
    counts as known, because they may cancel later.

    Args:
        algebra: the algebra.
        s: the signal to mark.
        along: the other signal. If it is ``s`` itself, all monomials are marked, dropped ones included.

    Returns:
        A copy of ``s`` with these marks.
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
    """Replaces the random part of a signal none of whose indices grows, and which therefore consists of finitely many
    numbers, by unknown numbers of the same size.

    Law: let c be these numbers, which are polynomials in Gaussians, and Y any signal. Then rms(c Y) <= C rms(c)
    rms(Y) with a constant C (Cauchy-Schwarz, then hypercontractivity). So unknown numbers of the size of c give an
    upper bound on c Y. As the monomials of c Y are unknown, c Y may cancel any other term that is not larger
    (``SignalSizes.is_lower_bound``).
    """
    plain = {k: e for k, e in s.terms.items() if all(x.startswith(INDICATOR) for x, _ in algebra.kernels[k].leaves)}
    rest = {k: e for k, e in s.terms.items() if k not in plain}
    size = algebra.upper_bound(s.replace(terms=rest))
    if size is None or not rest:
        return s
    terms = {**plain, algebra.make_unknown_numbers(s.indices): size}
    return s.derive("doubted", terms=terms, tail_bound=None, doubt_bound=None, lower_bound=None, without_centred={})


def bound_remainder(algebra: Algebra, s: Signal, other: Signal) -> Signal:
    """Finds a lower bound on the size of ``s`` after a random multiple of ``other``, entry by entry, is subtracted
    from it.

    Returns:
        A copy of ``s`` with ``lower_bound`` set to the size of those monomials of ``s`` that no such multiple contains.
    """
    removable = select_multiples(algebra, s, other).terms.keys() - other.terms.keys()
    size = algebra.rms(s.replace(terms={k: e for k, e in s.terms.items() if k not in removable}, lower_bound=None))
    return s.derive("doubted", lower_bound=None if size is None else size - algebra.doubt_offset)


def select_multiples(algebra: Algebra, s: Signal, of: Signal) -> Signal:
    """Returns the monomials of ``s`` that may belong to a random multiple of the signal ``of``.

    These are the monomials that contain all tensors of some monomial of ``of``: ``A B x`` may be a multiple of ``B
    x``, but ``A x`` may not.
    """
    names = [Counter(name for name, _ in algebra.kernels[k].leaves) for k in of.terms]

    def contains_one(k: int) -> bool:
        leaves = Counter(name for name, _ in algebra.kernels[k].leaves)
        return any(x <= leaves for x in names)

    return s.replace(terms={k: e for k, e in s.terms.items() if contains_one(k)})


def remove_leading(algebra: Algebra, s: Signal, by: Signal) -> Signal:
    """Subtracts a multiple of ``by`` from ``s`` such that the leading monomial of ``by`` disappears from ``s``.

    Example: ``s = h + u`` and ``by = h + v`` with ``h`` leading give ``u - v``.

    Law: monomials are linearly independent, and their coefficients are deterministic. So a projection that maps
    ``by`` to zero has the same value on ``s`` and on the result, and the result is not parallel to ``by``. If a
    monomial may stand for a nonlinear function of its tensors, the subtraction removes only the linear part, so the
    monomial is kept as an upper bound. Another monomial whose coefficients in ``s`` and ``by`` have the same ratio is
    kept as an upper bound as well, since it may be cancelled, too: nothing is left of ``2 (h + u)`` after twice ``h +
    u`` is subtracted.
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
    """Tests whether ``s`` contains the largest monomial of ``by``, with a coefficient at least as large as in ``by``.
    If so, and if ``s`` is the change of the signal ``by`` in training, the changed signal may point in the opposite
    direction.
    """
    pivot = _find_pivot(algebra, s, by)
    return pivot is not None and algebra.exponent(s.terms[pivot]) >= algebra.exponent(by.terms[pivot])


def _find_pivot(algebra: Algebra, s: Signal, by: Signal) -> int | None:
    """Returns the id of a monomial that is among the largest of ``by`` and occurs in ``s``, too; None if there is
    none. If several monomials of ``by`` are equally large, only those with the fewest learning rates are
    considered.
    """
    leading = algebra.find_leading(by)
    order = min((algebra.count_rates(by.terms[k]) for k in leading), default=0)
    return next((k for k in leading if k in s.terms and algebra.count_rates(by.terms[k]) == order), None)
