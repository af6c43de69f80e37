"""Norms under training: division by the root-mean-square of its argument along an index.

Read next: ``functions.py`` (functions of the entries), ``rules.py`` (all kinds of statements), ``parts.py`` (runs in
which little happens, for what a norm may take away).
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
    """Division by the root-mean-square r along an index: y = x / r. A LayerNorm centres first.

    Law: the change of y and the gradient at x are orthogonal to x. A multiple of x in dx, or of y in the gradient, is
    removed exactly, where that in dx is above -1: beyond, y turns its sign. What is left, v, is not along it: the
    change is (v - x_0 <x_0 + x_t, v> / (dim r_0 r)) / r_t with r the larger of r_0 and r_t, and the gradient
    (v - y <y, v> / dim) / r_t. They are as large as v / r_t; but what they share with x may cancel in later products.
    """

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return DIRECTION.value(tr, s, t)
        return over(tr, s, normed(tr, s, "value", t), t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return DIRECTION.change(tr, s, t)
        first, now = normed(tr, s, "initial", 0), normed(tr, s, "value", t)
        rest = remove_leading(tr.algebra, normed(tr, s, "change", t), first)
        turned = self._along(tr, s, tr.algebra.add([first, now]), rest, first, t)
        larger = min((0, t), key=lambda step: divisor(tr, s, step).size)
        turned = over(tr, s, over(tr, s, turned, 0), larger)
        change = over(tr, s, self._orthogonal(tr, s, rest, turned, first), t)
        return _perhaps_negative(tr, s, change, may_outgrow(tr.algebra, normed(tr, s, "change", t), first), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return DIRECTION.adjoint(tr, s, k, above, t, modes)
        if t and tr.algebra.rung.numbers:  # what is a multiple of y is not known, where y has kernels that are not
            raise Exhausted
        y = tr.value(s.out, t)
        if tr.change(s.out, t).zero:
            above = tr.gradient(s.out, t, {**dict.fromkeys(_steps_along(tr, s), "init"), **modes})
        rest = remove_leading(tr.algebra, above, y)
        left = self._orthogonal(tr, s, rest, self._along(tr, s, y, rest, y, t), y)
        return over(tr, s, tr.algebra.centred(left, s.over) if s.kind.centres else left, t)

    def _orthogonal(self, tr: TrainingRun, s: Function, rest: Signal, along: Signal, direction: Signal) -> Signal:
        """A signal less what it has along a direction, which is no larger and may cancel it in later products; of
        finitely many entries all may be along it."""
        left = (
            bound_remainder(tr.algebra, rest, direction) if tr.grows(s.over) else mark_doubtful(tr.algebra, rest, rest)
        )
        return tr.algebra.add([left, mark_doubtful(tr.algebra, along, along)])

    def _along(self, tr: TrainingRun, s: Function, a: Signal, b: Signal, direction: Signal, t: int) -> Signal:
        """``direction <a, b> / dim``."""
        indices = tr.network.signals[s.out]
        inner = tr.algebra.contract(a, b, indices.replace(s.over, ""))
        if tr.algebra.rung.numbers and not t and not any(map(tr.grows, inner.indices)):
            inner = replace_by_bound(tr.algebra, inner)
        whole = tr.algebra.contract(direction, inner, indices)
        return tr.algebra.scaled(whole, Scalar("1/dimension", tr.algebra.scale({tr.network.axes[s.over]: -1})))


class Direction(Entrywise):
    """A norm along an index that does not grow, of entries that meet others than their own, or functions of them.

    Law: y = x / r is odd and of degree zero in finitely many entries of x, and r is as random as they are; so y is
    (x + x^3 + ...) / r with generic coefficients. A change and a gradient lose what is along x: a share of what is
    independent of x, and perhaps all of what is a multiple of x. Fails: where y meets y along that index, or what a
    tensor learned from y (``of_few_entries``); there the rule of a growing index holds, which certifies less.
    """

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        x = super().argument(tr, s, which, t)
        if which != "change":
            return x
        first = super().argument(tr, s, "initial", 0)
        rest = remove_leading(tr.algebra, x, first)
        return mark_doubtful(tr.algebra, rest, select_multiples(tr.algebra, rest, first))

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        first, moved = (Entrywise.argument(self, tr, s, which, t) for which in ("initial", "change"))
        change = self._over(tr, s, super().change(tr, s, t), t)
        return _perhaps_negative(tr, s, change, may_outgrow(tr.algebra, moved, first), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        return over(tr, s, super().adjoint(tr, s, k, above, t, modes), t)

    def _polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        return self._over(tr, s, super()._polynomial(tr, s, t), t)

    def _over(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divided by the larger of the initial and the present size."""
        return tr.algebra.scaled(signal, min((divisor(tr, s, step) for step in {0, t}), key=lambda x: x.size))


DIRECTION = Direction()


def of_few_entries(tr: TrainingRun, s: Function) -> bool:
    """The index that a norm goes along does not grow, and its output meets only entries that are independent of it.

    Law: x is what a tensor makes, perhaps times constants. A sum over the index has no identity as that of sum y^2 if
    it is of y and of signals without a part of this tensor; or of one function of y alone, or with signals that other
    tensors have a part in, or with itself where the function is curved. |y| = relu(y) + relu(-y) has such an identity.
    """
    role = _drawn(tr.network, s.inputs[0].name)
    if s.kind.centres or tr.grows(s.over) or not role:
        return False
    return _meets_others(tr.network, s.out, tr.network.signals[s.out].index(s.over), role)


def _steps_along(tr: TrainingRun, s: Function) -> Iterator[str]:
    """Tensors whose steps a norm takes away as long as its output y stays what it is.

    Law: a tensor that is used once, in a sum over the index of the norm of itself times y and nothing else, has the
    gradient g y, and gives back a multiple of y; so it does after steps of a whole matrix, g' y. Signs are not along y.
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


def _perhaps_negative(tr: TrainingRun, s: Function, change: Signal, outgrown: bool, t: int) -> Signal:
    """The change of what a norm divides: as large as that where it may be more than taken away."""
    if not outgrown or tr.decays:
        return change
    tr.note(f"{s.inputs[0].name} may change by a multiple of itself, below -1 at t={t}, and what divides it turns sign")
    return tr.algebra.add([change, tr.algebra.unknown(change.indices)])


def normed(tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
    """The part of its argument that a norm sees."""
    x = tr.at(s.inputs[0], which, t)
    return tr.algebra.centred(x, s.over) if s.kind.centres else x


def divisor(tr: TrainingRun, s: Function, t: int) -> Scalar:
    """The divisor of a norm.

    Raises:
        BeyondPowerCounting: it is exactly zero.
    """
    source = s.inputs[0].name
    if s.kind.centres:
        x = normed(tr, s, "value", t)
        size, certain = tr.algebra.rms(x), tr.algebra.certified(x)
    elif (known := tr.context.certified(source, t)) is not None:
        size, certain = known, True
    else:
        x = tr.value(source, t)
        size = None if x.zero else tr.algebra.rms(x)
        certain = x.zero or (size is not None and tr.algebra.certified(x))
    if size is None and certain:
        raise BeyondPowerCounting(f"{s.name} divides by the size of {source}, exactly zero at t={t}")
    return Scalar(f"1/rms of {source}@{t}", -(size or 0), certain)


def over(tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
    """A signal divided by the size of what a norm reads."""
    return tr.algebra.scaled(signal, divisor(tr, s, t))


def _drawn(network: Network, signal: str) -> str:
    """The tensor that makes a signal, perhaps times constants; "" if there is none."""
    producer = network.producer(signal)
    if not isinstance(producer, Product) or producer.tensor:
        return producer.tensor.name if isinstance(producer, Product) and producer.tensor else ""
    learned = [x.name for x in producer.factors if find_tensors(network, x.name)]
    return _drawn(network, learned[0]) if len(learned) == 1 else ""


def _meets_others(network: Network, signal: str, at: int, role: str, alone: bool = False) -> bool:
    """Every sum over an index of a signal is of products with signals that a tensor has no part in.

    Args:
        at: position of the index in the signal.
        role: the tensor.
        alone: it is made from one function of what the norm makes, and may be summed alone.
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
            if not _meets_others(network, s.out, out.index(index), role, one):
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
        if not summed and not _meets_others(network, s.out, out.index(index), role, alone):
            return False
    return True
