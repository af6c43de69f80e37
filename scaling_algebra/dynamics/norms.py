"""Rules of norms under training: division by the root-mean-square of the argument along an index.

A norm y = x / |x| does not change if x is doubled. So it removes from a change of x the part that is a multiple of x,
and from the gradient at y the part that is a multiple of y.
Read next: ``functions.py`` (elementwise functions), ``rules.py`` (all kinds of statements), ``parts.py`` (restricted
runs, which decide what a norm may cancel).
"""

from __future__ import annotations

from collections.abc import Iterator

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.projections import (
    bound_remainder,
    mark_doubtful,
    may_outgrow,
    remove_leading,
    replace_by_bound,
    select_multiples,
)
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.spec.networks.ancestors import find_tensors
from scaling_algebra.spec.networks.language import Function, Network, Product, Statement, Sum

from .functions import Entrywise
from .run import BeyondPowerCounting, Modes, TrainingRun, Which


class Norm:
    """Rule of a norm, y = x / r with the root-mean-square r of x along an index. A LayerNorm subtracts the mean first.

    Law: to first order, the change of y is orthogonal to x, and so is the gradient at x. If the change dx contains a
    multiple of x_0, or the gradient at y a multiple of y, this multiple has no effect, as long as the factor of x_0
    exceeds -1 (otherwise y changes its sign). Let v be what is left of dx, or of the gradient at y, without this
    multiple. Then the change of y is (v - x_0 <x_0 + x_t, v> / (n r_0 r)) / r_t with r = max(r_0, r_t), and the
    gradient at x is (v - y <y, v> / n) / r_t, for n entries. Both are as large as v / r_t, but their terms may cancel
    in later products.
    """

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if acts_entrywise(tr, s):
            return DIRECTION.value(tr, s, t)
        return apply_divisor(tr, s, read_normed(tr, s, "value", t), t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if acts_entrywise(tr, s):
            return DIRECTION.change(tr, s, t)
        first, now = read_normed(tr, s, "initial", 0), read_normed(tr, s, "value", t)
        rest = remove_leading(tr.algebra, read_normed(tr, s, "change", t), first)
        turned = self._project_onto(tr, s, tr.algebra.add([first, now]), rest, first, t)
        larger = min((0, t), key=lambda step: find_divisor(tr, s, step).size)
        turned = apply_divisor(tr, s, apply_divisor(tr, s, turned, 0), larger)
        change = apply_divisor(tr, s, self._remove_projection(tr, s, rest, turned, first), t)
        return _allow_sign_change(tr, s, change, may_outgrow(tr.algebra, read_normed(tr, s, "change", t), first), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        if acts_entrywise(tr, s):
            return DIRECTION.adjoint(tr, s, k, above, t, modes)
        if (
            t and tr.algebra.budget.bounds_inner_products
        ):  # some monomials of y are only bounds, so its multiples are unknown
            raise Exhausted
        y = tr.value(s.out, t)
        if tr.change(s.out, t).is_zero:
            above = tr.gradient(s.out, t, {**dict.fromkeys(_find_removed_steps(tr, s), "init"), **modes})
        rest = remove_leading(tr.algebra, above, y)
        left = self._remove_projection(tr, s, rest, self._project_onto(tr, s, y, rest, y, t), y)
        return apply_divisor(tr, s, tr.algebra.subtract_mean(left, s.over) if s.kind.centres else left, t)

    def _remove_projection(
        self, tr: TrainingRun, s: Function, rest: Signal, along: Signal, direction: Signal
    ) -> Signal:
        """Returns a signal minus its projection on a direction.

        The projection is no larger than the signal, but may cancel it in later products. If the index of the norm does
        not grow, the whole signal may be a multiple of the direction, so only an upper bound on the result is known.

        Args:
            tr: the training run.
            s: the norm.
            rest: the signal, from which the part proportional to the largest monomial of ``direction`` has been
                removed.
            along: the projection of the signal on ``direction`` (``_project_onto``).
            direction: the signal whose multiples are to be removed, such as the norm's output.
        """
        left = (
            bound_remainder(tr.algebra, rest, direction) if tr.grows(s.over) else mark_doubtful(tr.algebra, rest, rest)
        )
        return tr.algebra.add([left, mark_doubtful(tr.algebra, along, along)])

    def _project_onto(self, tr: TrainingRun, s: Function, a: Signal, b: Signal, direction: Signal, t: int) -> Signal:
        """Returns the signal ``direction`` times ``<a, b> / n``, where the inner product is over the n entries along
        the index of the norm. If a and ``direction`` are both the norm's output y, this is the projection of b on y.
        """
        indices = tr.network.signals[s.out]
        inner = tr.algebra.contract(a, b, indices.replace(s.over, ""))
        if tr.algebra.budget.bounds_inner_products and not t and not any(map(tr.grows, inner.indices)):
            inner = replace_by_bound(tr.algebra, inner)
        whole = tr.algebra.contract(direction, inner, indices)
        return tr.algebra.scale_by(whole, Scalar("1/dimension", tr.algebra.pack_powers({tr.network.axes[s.over]: -1})))


class Direction(Entrywise):
    """Rule of a norm along an index that does not grow, whose output is combined with independent entries only
    (``acts_entrywise``).

    Law: y = x / r, where r is the root-mean-square of finitely many entries of x and as random as they are. Since y is
    odd in x and does not change if x is doubled, it is represented by (x + x^3 + ...) / r with generic coefficients.
    A norm removes from a change or a gradient the part that is a multiple of x. If the change is independent of x, a
    share of it is left, so its size stays; if it is a multiple of x, possibly nothing is left. Fails: if y is
    multiplied by y along that index, or by what a tensor learned from y. Then the rule for a growing index (``Norm``)
    is used, which certifies less.
    """

    def read_argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        x = super().read_argument(tr, s, which, t)
        if which != "change":
            return x
        first = super().read_argument(tr, s, "initial", 0)
        rest = remove_leading(tr.algebra, x, first)
        return mark_doubtful(tr.algebra, rest, select_multiples(tr.algebra, rest, first))

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        first, moved = (Entrywise.read_argument(self, tr, s, which, t) for which in ("initial", "change"))
        change = self._divide_by_size(tr, s, super().change(tr, s, t), t)
        return _allow_sign_change(tr, s, change, may_outgrow(tr.algebra, moved, first), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        return apply_divisor(tr, s, super().adjoint(tr, s, k, above, t, modes), t)

    def _make_polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        return self._divide_by_size(tr, s, super()._make_polynomial(tr, s, t), t)

    def _divide_by_size(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divides a signal by the larger one of the norm's divisors before training and after t updates."""
        return tr.algebra.scale_by(signal, min((find_divisor(tr, s, step) for step in {0, t}), key=lambda x: x.size))


DIRECTION = Direction()


def acts_entrywise(tr: TrainingRun, s: Function) -> bool:
    """Whether a norm y of x can be represented by an elementwise polynomial of x. It can if its index does not grow,
    and wherever y is summed over this index, it is multiplied only by signals that are independent of it.

    Law: the entries of y obey one identity that an elementwise polynomial does not: the sum of y^2 is constant. So no
    sum over the index may contain the sum of y^2. Let x be the output of one tensor, possibly times constants. A sum is
    allowed if each term is (1) y times signals that do not depend on this tensor, or (2) one function of y, alone or
    times signals that depend on other tensors, or times itself if it is nonlinear. Not allowed are, for example, sums
    with |y| = relu(y) + relu(-y).
    """
    role = _find_source_tensor(tr.network, s.inputs[0].name)
    if s.kind.centres or tr.grows(s.over) or not role:
        return False
    return _meets_independent_only(tr.network, s.out, tr.network.signals[s.out].index(s.over), role)


def _find_removed_steps(tr: TrainingRun, s: Function) -> Iterator[str]:
    """Yields the tensors whose updates change the gradient at the output y of a norm by nothing but a multiple of y.
    The norm removes this multiple, so as long as y is unchanged, these updates have no effect on the gradient at the
    norm's argument.

    Law: let a tensor W be used once, as ``W y`` summed over the norm's index, with no other factor. Then its update is
    a multiple of g y^T (g is the gradient at ``W y``), and changes the gradient W^T g at y by a multiple of y. This
    also holds for an optimizer that normalises the whole matrix, but not for one that normalises each entry (signs).
    """
    for c, k in tr.network.consumers(s.out):
        if not (isinstance(c, Product) and c.tensor and len(c.factors) == len(tr.network.uses(c.tensor.name)) == 1):
            continue
        indices, rule = c.factors[k].indices, tr.optimizer.of(c.tensor.name)
        over = indices[tr.network.signals[s.out].index(s.over)]
        apart = rule.matrix(tr.network, c.tensor.name).copies if rule.normalises == "matrix" else ""
        alone = over not in tr.network.signals[c.out] + apart and set(indices) <= set(c.tensor.indices)
        if alone and rule.normalises != "entry":
            yield c.tensor.name


def _allow_sign_change(tr: TrainingRun, s: Function, change: Signal, outgrown: bool, t: int) -> Signal:
    """Returns the change of a norm's output, plus an unknown term of size 1 if its argument may change its sign.

    Args:
        tr: the training run.
        s: the norm.
        change: the change of the output if the sign stays the same.
        outgrown: True if the change of the argument may contain -c times its initial value with c >= 1.
        t: number of updates.
    """
    if not outgrown or tr.decays:
        return change
    tr.note(f"the change of {s.inputs[0].name} by t={t} may reverse its direction, so that {s.out} changes its sign")
    return tr.algebra.add([change, tr.algebra.make_bounded(change.indices)])


def read_normed(tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
    """Returns the argument of a norm, without its mean for a norm that subtracts it (LayerNorm).

    Args:
        tr: the training run.
        s: the norm.
        which: "initial", "change" or "value" of the argument.
        t: number of updates.
    """
    x = tr.read_factor(s.inputs[0], which, t)
    return tr.algebra.subtract_mean(x, s.over) if s.kind.centres else x


def find_divisor(tr: TrainingRun, s: Function, t: int) -> Scalar:
    """Returns 1/divisor of a norm after t updates, as a deterministic factor.

    Raises:
        BeyondPowerCounting: the divisor is exactly zero.
    """
    source = s.inputs[0].name
    if s.kind.centres:
        x = read_normed(tr, s, "value", t)
        size, certain = tr.algebra.rms(x), tr.algebra.is_certified(x)
    elif (known := tr.context.certified(source, t)) is not None:
        size, certain = known, True
    else:
        x = tr.value(source, t)
        size = None if x.is_zero else tr.algebra.rms(x)
        certain = x.is_zero or (size is not None and tr.algebra.is_certified(x))
    if size is None and certain:
        raise BeyondPowerCounting(f"{s.name} divides by the size of {source}, which is exactly zero at t={t}")
    return Scalar(f"1/rms of {source}@{t}", -(size or 0), certain)


def apply_divisor(tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
    """Divides a signal by the divisor that a norm has after t updates. The divisor is the size of the norm's
    argument."""
    return tr.algebra.scale_by(signal, find_divisor(tr, s, t))


def _find_source_tensor(network: Network, signal: str) -> str:
    """Returns the tensor that computes a signal, possibly times constants: ``W`` for ``h = W x``. "" if there is
    none."""
    producer = network.producer(signal)
    if not isinstance(producer, Product) or producer.tensor:
        return producer.tensor.name if isinstance(producer, Product) and producer.tensor else ""
    learned = [x.name for x in producer.factors if find_tensors(network, x.name)]
    return _find_source_tensor(network, learned[0]) if len(learned) == 1 else ""


def _meets_independent_only(network: Network, signal: str, at: int, role: str, alone: bool = False) -> bool:
    """Whether a norm's output is multiplied, before its index is summed, only by signals that do not depend on the
    tensor that computes the norm's argument.

    Args:
        network: the network.
        signal: the output of the norm, or a signal computed from it.
        at: position of the norm's index among the indices of ``signal``.
        role: the tensor that computes the norm's argument.
        alone: True if ``signal`` is a single function of the norm's output; such a signal may also be summed without
            other factors.
    """
    made = find_tensors(network, signal)
    bent = isinstance(f := network.producer(signal), Function) and not f.kind.homogeneous
    for s, k in network.consumers(signal):
        if isinstance(s, Function) and s.kind.kind != "entrywise":
            return False
        index, out = s.inputs[k].indices[at], network.signals[s.out]
        if isinstance(s, Function | Sum):
            own = (find_tensors(network, x.name) for x in s.inputs)
            parts = [x for x in own if role in x and x <= made]
            one = isinstance(s, Function) or (alone and len(parts) == 1)
            if not _meets_independent_only(network, s.out, out.index(index), role, one):
                return False
            continue
        others = [x.name for j, x in enumerate(s.factors) if j != k and index in x.indices]
        mine = [x for x in others if role in find_tensors(network, x)]
        if [x for x in mine if not alone or (find_tensors(network, x) <= made and not (bent and x == signal))]:
            return False
        out = network.signals[s.out]
        summed = index not in out
        if summed and not alone and (not others or (s.tensor and index in s.tensor.indices)):
            return False
        if not summed and not _meets_independent_only(network, s.out, out.index(index), role, alone):
            return False
    return True
