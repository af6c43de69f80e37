"""Checks demands at one point: which fail and why, which monomial must become Theta(1), and which sizes are undecided.

Read next: ``newton.py`` (moves the point until none fails), ``scaling_algebra/spec/desiderata.py`` (the demands).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from scaling_algebra.dynamics.analysis import (
    LEAD,
    MINIMAL,
    QUICKLY,
    RESTRICTED,
    WITNESS,
    Analysis,
    Method,
    explain_open,
    limit_lead,
)
from scaling_algebra.dynamics.brackets import Bracket, Exponent
from scaling_algebra.dynamics.budgets import (
    DEMAND_WORK,
    FIRST_DEMAND_WORK,
    FOUND,
    NEXT_UPDATE_WORK,
    PIECE_WORK,
    QUICK_BUDGETS,
    SEARCH_BUDGETS,
    WORK_LIMIT_REASON,
)
from scaling_algebra.dynamics.sparse_routing import is_sparse
from scaling_algebra.errors import Unsatisfiable
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import HORIZON, Demand
from scaling_algebra.spec.level import Level, OpenDemand
from scaling_algebra.spec.networks.indices import nonlinear_functions
from scaling_algebra.spec.networks.language import Function, Network, Product
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.powers import Form
from scaling_algebra.waiting import iterate_with_progress

from .points import Places


@dataclass(frozen=True)
class Failure:
    """A demand that fails, or that is undecided.

    Attributes:
        reason: the reason, in one line.
        undecided: True if the demand is neither known to hold nor known to fail.
        step: the update after which the failure shows.
        open: the first undecided size; None if the demand is known to fail.
    """

    reason: str
    undecided: bool = False
    step: int = HORIZON + 1
    open: OpenDemand | None = None

    def __str__(self) -> str:
        return self.reason


CHANGES = frozenset({"change", "propagating", "effective", "cross"})
"""Parts of a change, which are zero before the first update. If work runs out, step 0 is undecided as well; the report
then names a later step.
"""
NO_COMMON = "the desiderata that determine the parameters have no common solution"
"""Reason of a search that fails although each demand by itself has a solution."""
_AHEAD = limit_lead(NEXT_UPDATE_WORK)
"""Budget for the update after the horizon."""
_SPENT = "adding up its terms takes more work than the largest limit (--effort)"
"""The reason of an undecided size where the search has used every budget."""
_SHARED = 3
"""Number of undecided sizes after which the remaining ones get the smallest budget only."""


class Infeasible(Unsatisfiable):
    """Raised if no parameterization meets the demands. The message is the first demand that failed.

    Attributes:
        undecided: True if that demand is undecided, so that it is not known to fail.
        demand: that demand; None if the failure is of another kind.
        everywhere: True if that demand fails at any powers, since a quantity is exactly zero whatever the powers are.
    """

    def __init__(
        self, reason: str | Failure, undecided: bool = False, demand: Demand | None = None, everywhere: bool = False
    ) -> None:
        self.undecided = reason.undecided if isinstance(reason, Failure) else undecided
        self.demand, self.everywhere = demand, everywhere
        super().__init__(str(reason))


class NotFound(Infeasible):
    """Raised if the search found no parameterization. This does not prove that there is none;
    ``prover.prove_missing`` may prove it.

    Attributes:
        configuration: the network, ray, optimizer and parameterization of the search.
        failure: the demand that fails without any intervention (a change of which tensors start at zero or alike in
            all experts, or of which signals are constrained).
    """

    def __init__(
        self, configuration: Configuration, failure: str, undecided: bool = False, everywhere: bool = False
    ) -> None:
        self.configuration, self.failure = configuration, failure
        super().__init__(self.line("searched, not proved"), undecided, everywhere=everywhere)

    def line(self, how: str) -> str:
        """Returns one line: what is missing, how that is known, and the demand that fails without any intervention."""
        asked = self.configuration
        missing = f"{asked.parameterization.title} for {asked.optimizer.name} on {asked.ray}"
        missing += f" with {asked.given}" if asked.given else ""
        miss = "muP's numbers violate " if self.failure.startswith("MSSP") and not asked.given else ""
        return f"found no {missing} ({how}): {miss}{self.failure}"


def provable(network: Network, ray: Ray, optimizer: OptimizerSpec) -> str:
    """Explains why nothing can be proved of a configuration, such as that its demands have no solution; empty if
    proofs cover it.
    """
    if bent := [s for s in nonlinear_functions(network) if not first_power(network, ray, s)]:
        stops = [s for s in bent if s.kind.kind == "stopped"]
        does, by = "stops gradients" if stops else "divides or gates by unknown sizes", [s.out for s in stops or bent]
        without = " ".join(f"--without {name}" for name in by)
        how = f"{', '.join(by)}; derive {without} leaves {'them' if by[1:] else 'it'} out"
        return f"{network.name} {does} ({how}); proofs are for products, sums and held gates"
    if is_sparse(network, ray):
        return f"proofs support K = M only, but K < M on {ray}"
    for rule in optimizer.rules:
        if rule.normalises and not rule.epsilon:
            who = f"{rule.name} with a negligible epsilon" if rule.negligible else rule.name
            return f"{who} divides by unknown sizes; proofs are for sgd, momentum and optimizers with a derived epsilon"
    return ""


def first_power(network: Network, ray: Ray, s: Function) -> bool:
    """Tests whether a function f(x) can be replaced by a multiple of its argument x while the demands hold, since
    higher powers of x add nothing larger.

    Law: x is O(1) by demand mu-1. If no axis of x grows, x has finitely many entries, and no sum over them averages
    out. Then a product with x^p is no larger than the same product with x.
    """
    indices = network.signals[s.out] + s.over
    plain = s.stands_for and not s.kind.gaps and 1 in s.kind.powers
    freed = {x for e in experts(network) for x in e.last}  # exempt from mu-1 by an intervention
    return plain and not any(ray[network.axes[x]] for x in indices) and freed.isdisjoint(x.name for x in s.inputs)


@dataclass(frozen=True)
class Fixing:
    """The condition that determines one unknown exponent.

    Attributes:
        demand: the demand.
        quantity: the quantity whose size the demand restricts.
        step: the number of updates after which this size is the largest, or after which it first exceeds its bound.
        form: the monomial that must be Theta(1); its exponent is a linear function of the unknown exponents.
    """

    demand: Demand
    quantity: str
    step: int
    form: Form


def concerns(demand: Demand, optimizer: OptimizerSpec) -> bool:
    """Tests whether a demand applies to an optimizer. A demand on the epsilon of a tensor applies only if the update
    rule of this tensor has an epsilon; every other demand applies.
    """
    return demand.kind != "scale" or optimizer.of(demand.fixes.removeprefix("d.")).epsilon


def check(demands: Iterable[Demand], look: Analysis) -> None:
    """Checks that the largest monomial found of each quantity, which is a lower bound on its size, violates no demand.

    This check is quick and rejects most wrong exponents.

    Raises:
        Infeasible: a demand fails.
    """
    for demand in demands:
        if failure := violation(demand, look, certified=False):
            raise Infeasible(failure, demand=demand)


def is_met(demand: Demand, look: Analysis) -> bool:
    """Tests whether a demand is proved to be met: by an upper bound and, for Theta(1), also by a monomial that reaches
    it.

    Law: a quantity that must be O(1) is bounded by 1 after any number of updates. A quantity that must be Theta(1) has
    in addition a monomial of this size at some step up to the horizon, which no later term cancels.
    """
    if demand.kind == "scale" and not concerns(demand, look.optimizer):
        return True
    if look.bounds.why:
        return False
    if demand.kind == "balanced":
        return _alike(look, demand)
    if demand.kind == "scale":
        size = -look.point.d[demand.fixes.removeprefix("d.")]
        uppers = [look.upper(name) for name in demand.quantities]
        within = all(x is not None and x <= size for x in uppers)
        return within and _is_reached(look, demand, range(1, demand.horizon + 1), size)
    if not is_bounded(demand, look):
        return False
    steps = (*range(1, demand.horizon + 1), 0) if demand.kind == "theta" else ()
    return not steps or _is_reached(look, demand, steps, 0)


def is_bounded(demand: Demand, look: Analysis) -> bool:
    """Tests whether quantities that must be O(1) are bounded by 1 after any number of updates."""
    return all((x := look.upper(name)) is not None and x <= 0 for name in demand.quantities)


def below(demand: Demand, look: Analysis) -> Failure | None:
    """Reports a demand for Theta(1) that fails since upper bounds show that its quantities are smaller at every step.

    Returns None if they do not show this, and for demands of another kind.
    """
    uppers = [look.upper(name) for name in demand.quantities]
    sizes = [x for x in uppers if x is not None]
    if demand.kind != "theta" or len(sizes) < len(uppers) or max(sizes) >= 0:
        return None
    start = [look(name, 0, QUICKLY) for name in demand.quantities]
    if not all(x.decided and (x.size is None or x.size < 0) for x in start):
        return None
    return Failure(f"{demand.label}, but {' + '.join(demand.quantities)} ~ n^({max(sizes)})")


def dwindles(demand: Demand, look: Analysis, closer: Analysis) -> Failure | None:
    """Reports a demand that fails since the effect of an update is too small at every step up to the horizon.

    Law: the effect of an update dW on an input x is a sum of products dW x. By Cauchy-Schwarz it is at most (number
    of terms) * (size of dW) * (size of x).

    Args:
        demand: the demand; any other than one on the effect of an update is ignored.
        look: the analysis.
        closer: an analysis with a larger budget, used for changes that ``look`` does not decide quickly.

    Returns:
        The failure; None if the effect may be large enough.
    """
    statement = look.network.producer(demand.quantities[0].partition(".")[0])
    acts = {f"{statement.out}.{part}" for part in ("effective", "cross")} if statement is not None else set()
    if demand.kind != "theta" or not acts.issuperset(demand.quantities) or is_sparse(look.network, look.ray):
        return None
    if not isinstance(statement, Product) or statement.tensor is None or statement.multipliers:
        return None
    network, tensor = look.network, look.network.tensors[statement.tensor.name]
    terms = network.size(network.summed_indices(statement)).on(look.ray)
    for x in statement.factors:
        read = [look.upper(name) if name in look.table else None for name in (x.name, f"{x.name}.change")]
        if None in read:
            return None
        terms += max(size for size in read if size is not None)
    moved = []
    for t in range(1, demand.horizon + 1):
        quick = look(f"d{tensor.symbol}", t, QUICKLY)
        answer = quick if quick.decided else closer(f"d{tensor.symbol}", t)
        size = answer.size if answer.decided else look.upper(f"d{tensor.symbol}")
        if size is None and not answer.decided:
            return None
        moved += [] if size is None else [size + terms]
    top = max(moved, default=None)
    if top is None or top >= 0:
        return None
    return Failure(f"{demand.label}, but {' + '.join(demand.quantities)} ~ n^({top}) at most")


def _alike(look: Analysis, demand: Demand) -> bool:
    """Tests whether an upper bound and a monomial prove that all quantities of a demand have one size; exact zeros are
    ignored.

    Networks without norms are counted exactly and need no such proof; for them only exact zeros give True.
    """
    last = demand.horizon
    there = [x for x in demand.quantities if look.upper(x) is not None or not look(x, last, QUICKLY).zero]
    sizes = {look.upper(name) for name in there} if look.network.norms else {None}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        return not there
    return all(size in (look(name, last, RESTRICTED).low, look(name, last, WITNESS).low) for name in there)


def _is_reached(look: Analysis, demand: Demand, steps: Sequence[int], size: Fraction | int) -> bool:
    """Tests whether a monomial is found that gives one of the quantities exactly this size at one of the steps.

    Monomials of the quantity in training runs in which only one tensor is trained take the least work, so they are
    tried first, for all steps.
    """
    cheap = (look(name, max(steps), RESTRICTED) for name in demand.quantities)
    return any(x.low == size for x in cheap) or any(
        look(name, t, WITNESS).low == size for t in steps for name in demand.quantities
    )


def look_ahead(demand: Demand, look: Analysis, means: Method = LEAD) -> Failure | None:
    """Reports a quantity that diverges one update after the horizon, as far as a small budget shows; None if none does.

    A quantity that grows from step to step may still be O(1) at the horizon, the last step of the demand. Lower bounds
    on sizes are enough to reject.

    Args:
        demand: the demand on the quantity.
        look: the analysis.
        means: the method that computes sizes; by default the largest monomial found is taken as a lower bound.
    """
    for name in demand.quantities if demand.kind in ("theta", "bounded") else ():
        later = look(name, demand.horizon + 1, means).lead
        if later is not None and later > 0:
            return Failure(f"{demand.label}, but {name} ~ n^({later}) at t={demand.horizon + 1}")
    return None


def violation(
    demand: Demand, look: Analysis, certified: bool = True, horizon: int | None = None, closer: Analysis | None = None
) -> Failure | None:
    """Explains why a demand fails or is undecided; None if it holds.

    A quantity that is known to exceed O(1) is reported before any that is undecided.

    Args:
        demand: the demand.
        look: the analysis.
        certified: if True, sizes that are not certified are reported as undecided; if False, the largest known
            monomial is taken for the size.
        horizon: the last step examined; by default that of the demand.
        closer: an analysis with a larger budget, used for what ``look`` leaves undecided.
    """
    horizon = demand.horizon if horizon is None else horizon
    last = demand.kind == "balanced"  # only sizes at the last step count; lower bounds that differ prove nothing

    def ask(name: str, t: int) -> Bracket:
        answer = look(name, t) if certified or last else look(name, t, LEAD)
        return answer if answer.decided or closer is None else closer(name, t)

    steps = range(horizon if last else 0, horizon + 1)
    answers = {(name, t): ask(name, t) for name in demand.quantities for t in steps}
    undecided = [key for key, answer in answers.items() if not answer.decided]
    open_to = [(a.lead, t) for (_, t), a in answers.items() if a.decided or not certified]
    sizes: list[tuple[Exponent, int]] = [(x, t) for x, t in open_to if x is not None]
    sizes += [(a.low, t) for (_, t), a in answers.items() if not a.decided and a.low is not None and a.low > 0]
    top, limited = max((size for size, _ in sizes), default=None), demand.kind in ("theta", "bounded")
    too_small = demand.kind == "theta" and not undecided and (top is None or top < 0)
    if limited and top is not None and top > 0:
        first = min(t for size, t in sizes if size > 0)
        reached = f"n^({max(size for size, t in sizes if t == first)}) at t={first}"
        return Failure(f"{demand.label}, but {' + '.join(demand.quantities)} ~ {reached}", step=first)
    if too_small:
        reached = "exactly zero" if top is None else f"n^({top})"
        return Failure(f"{demand.label}, but {' + '.join(demand.quantities)} ~ {reached}")
    if certified and undecided:
        name, t = next((x for x in undecided if x[1] or CHANGES.isdisjoint(x[0].split("."))), undecided[0])
        most = 0 if limited else None
        stable = limited and all(a.high is not None and a.high <= 0 for a in answers.values())
        tensor = _tensor(demand, name, look.network)
        open_ = OpenDemand(demand.label, name, t, answers[name, t].why, tensor, most, stable)
        return Failure(f"{demand.label}, but {name} at t={t} is undecided", undecided=True, open=open_)
    if last and not undecided:
        found = {name: size for name in demand.quantities if (size := answers[name, horizon].size) is not None}
        if len(set(found.values())) > 1:
            low, high = min(found, key=lambda k: found[k]), max(found, key=lambda k: found[k])
            return Failure(f"{demand.label}, but {low} ~ n^({found[low]}) and {high} ~ n^({found[high]})")
    return None


def _tensor(demand: Demand, quantity: str, network: Network) -> str:
    """Returns the role of the tensor that a demand is about: the one whose init std, learning rate or epsilon it
    determines.

    If the demand determines none of these, the result is the tensor in the equation of the signal that the name
    ``quantity`` begins with (``h2`` of ``h2.change``); "" if that equation has no tensor.
    """
    if (role := demand.fixes.partition(".")[2]) in network.tensors:
        return role
    made = [s for s in network.statements if s.out == quantity.partition(".")[0] and isinstance(s, Product)]
    return made[0].tensor.name if made and made[0].tensor is not None else ""


def level_of(demands: Iterable[Demand], left: Sequence[OpenDemand], optimizer: OptimizerSpec) -> Level:
    """Returns how much of a solution is proved: how many demands there are, and which of them are undecided.

    Args:
        demands: all demands that were examined.
        left: those of them that are undecided.
        optimizer: the optimizer; demands that do not apply to it are not counted (``concerns``).
    """
    asked = [d for d in demands if concerns(d, optimizer)]
    bounded = frozenset(d.label for d in asked if d.kind in ("theta", "bounded"))
    learned = frozenset(d.label for d in asked if d.kind != "bounded")
    return Level(tuple(left), bounded=bounded, learned=learned)


def causes_first(failures: Mapping[Demand, Failure | None], network: Network) -> list[tuple[Demand, Failure]]:
    """Sorts the demands that fail or are undecided, the likeliest cause first; demands that hold (None) are omitted.

    Demands that are known to fail come before undecided ones, then earlier updates before later ones, then signals
    that the forward pass computes earlier, then demands that determine an init std, learning rate, epsilon or
    multiplier before those that determine none.
    """
    order = {s.out: k for k, s in enumerate(network.statements)}

    def cause(x: tuple[Demand, Failure]) -> tuple[bool, int, int, bool]:
        signal = order.get(x[0].quantities[0].partition(".")[0], len(order))
        return x[1].undecided, x[1].step, signal, not x[0].fixes

    return sorted(((demand, failure) for demand, failure in failures.items() if failure), key=cause)


def summarise_failures(failures: Sequence[str], where: str) -> list[str]:
    """Returns the first failure, and one line that counts the others by the name of their demand: ``and 3 more (mu-1
    2, mu-2 1): WHERE``.

    Args:
        failures: the failures, one line each, that begins with the name of the demand and a colon.
        where: a text that says how to see the others.
    """
    others = Counter(line.partition(":")[0] for line in failures[1:])
    listed = ", ".join(f"{name} {k}" for name, k in others.items())
    return [*failures[:1], *([f"and {others.total()} more ({listed}): {where}"] if others else [])]


def unfaithful(demand: Demand, look: Analysis) -> Failure | None:
    """Explains why an epsilon that the user fixed does not have the size of its gradient; None if it does."""
    role = demand.fixes.removeprefix("d.")
    if demand.kind != "scale" or not concerns(demand, look.optimizer):
        return None
    later = (look(name, t).exponent for name in demand.quantities for t in range(1, demand.horizon + 1))
    size, epsilon = max((x for x in later if x is not None), default=None), -look.point.d[role]
    if size is None or size == epsilon:
        return None
    return Failure(f"{demand.label}, but the gradient is n^({size}) and epsilon n^({epsilon})")


def diverges(look: Analysis, demand: Demand) -> bool:
    """Tests whether a lower bound shows that a quantity which must be O(1) is larger."""
    if demand.kind not in ("theta", "bounded"):
        return False
    names = [name for name in demand.quantities if (upper := look.upper(name)) is None or upper > 0]
    leads = (look(name, t, LEAD).lead for t in range(1, demand.horizon + 1) for name in names)
    return any(x is not None and x > 0 for x in leads)


def largest(look: Analysis, demand: Demand, meeting: bool = True) -> Fixing | None:
    """Finds the monomial that must become Theta(1), as a linear form in the unknown exponents.

    It is the largest monomial of the demanded quantity, after the first update at which this exceeds O(1), or else
    after the update at which it is largest. A signal that is too large makes later updates too large, so the earliest
    excess is corrected. Returns None if the quantity is exactly zero after every update.

    Args:
        look: the analysis.
        demand: the demand on the quantity.
        meeting: first try monomials that an upper bound proves to be the largest. It has no effect if some signal
            exceeds O(1), since there are no upper bounds then.

    Raises:
        Infeasible: nothing is known of the quantity.
    """
    shown = _meeting(look, demand) if meeting else None
    if shown is not None:
        return shown
    best: tuple[Fraction, Fixing] | None = None
    for t in range(1 if demand.kind == "scale" else 0, demand.horizon + 1):
        for name in demand.quantities:
            answer = look(name, t, LEAD)
            if answer.lead is not None and answer.form is not None and (best is None or answer.lead > best[0]):
                best = answer.lead, Fixing(demand, name, t, _scale_form(demand, answer.form))
        if demand.kind == "theta" and best is not None and best[0] > 0:
            break
    if best is None and (failure := unknown([demand], look)):
        raise Infeasible(failure)
    return None if best is None else best[1]


def unknown(demands: Iterable[Demand], look: Analysis) -> Failure | None:
    """Reports the first demand on a quantity for which the engine finds no largest monomial after some number of
    updates.

    So the update after which this quantity is largest is unknown. Returns None if there is no such demand.
    """
    for demand in demands:
        for t in range(1 if demand.kind == "scale" else 0, demand.horizon + 1):
            for name in demand.quantities:
                if look(name, t, LEAD).unknown:
                    return Failure(f"{demand.name}: {name} at t={t} is undecided", undecided=True)
    return None


def _meeting(look: Analysis, demand: Demand) -> Fixing | None:
    """Finds a monomial of a demanded quantity that is as large as the upper bound on it, which holds after any number
    of updates.

    The monomial is thereby proved to be the largest. Returns None if none is found.
    """
    uppers = [look.upper(name) for name in demand.quantities]
    top = max((x for x in uppers if x is not None), default=None)
    if top is None or None in uppers or (top > 0 and demand.kind != "scale"):
        return None
    for name in demand.quantities:  # restricted runs cost the least and have few monomials
        answer = look(name, demand.horizon, RESTRICTED)
        if answer.form is not None and answer.low == top:
            return Fixing(demand, name, demand.horizon, _scale_form(demand, answer.form))
    for t in range(1, demand.horizon + 1):
        for name in demand.quantities:
            answer = look(name, t, WITNESS)
            if answer.form is not None and answer.low == top:
                simplest = look(name, t, MINIMAL)
                form = simplest.form if simplest.form is not None and simplest.lead == top else answer.form
                return Fixing(demand, name, t, _scale_form(demand, form))
    return None


def _scale_form(demand: Demand, form: Form) -> Form:
    """Returns the monomial that a demand requires to be Theta(1).

    It is ``form``, the largest monomial of the demanded quantity. A demand of kind ``scale`` requires that an epsilon
    ~ n^-d has the size of the quantity; for it the result is ``form`` times n^d.
    """
    if demand.kind != "scale":
        return form
    counts = dict(form.unknowns)
    counts[demand.fixes] = counts.get(demand.fixes, 0) + 1
    return Form(form.power, tuple(counts.items()))


# all demands ----------------------------------------------------------------------------------------------------


def left_open(at: Places, demands: Iterable[Demand], look: Analysis) -> tuple[OpenDemand, ...]:
    """Returns the demands that stay undecided, after checking that no demand is known to fail.

    A demand is proved to be met if an upper bound and a monomial have the demanded size. All other demands are
    examined update by update. Unless full effort is requested, only the first demand that is undecided then is
    examined again with larger budgets, and after a few undecided demands the rest is examined with the smallest
    budget only.

    Raises:
        Infeasible: a demand does not hold.
    """
    demands = list(demands)
    for one, every in DEMAND_WORK:
        if one is None:
            check(demands, look)
        with at.within(every):
            demands = [
                *(
                    d
                    for d in iterate_with_progress("deriving", "demands", demands)
                    if not _is_met_within(at, d, look, one)
                )
            ]
    ahead = at.fresh(look.point)
    for demand in demands:
        if failure := look_ahead(demand, ahead, _AHEAD):
            raise Infeasible(failure)
    left: list[OpenDemand] = []
    closer, quick = look.with_budgets(() if at.effort else SEARCH_BUDGETS), look.with_budgets(QUICK_BUDGETS[:1])
    for demand in iterate_with_progress("certifying", "demands left", demands):
        failure = violation(demand, quick if len(left) >= _SHARED and not at.effort else look)
        if failure and failure.undecided and (at.effort or not left):
            failure = violation(demand, look, closer=closer)
        if failure and failure.open is None:
            raise Infeasible(failure, demand=demand)
        if failure and failure.open:
            limited = demand.kind in ("theta", "bounded")
            left.append(replace(failure.open, stable=failure.open.stable or (limited and is_bounded(demand, look))))
    return tuple(replace(x, why=why) for x, why in zip(left, _explain_left(at, left, look), strict=True))


def _explain_left(at: Places, left: Sequence[OpenDemand], look: Analysis) -> Iterable[str]:
    """Yields the reason why each size is undecided: there are no upper bounds at all, or the reason that the analysis
    gave, or else the largest monomial that was found and the upper bound.
    """
    with at.meter.pause_counting(), at.meter.limit_work(NEXT_UPDATE_WORK * len(left)):
        for x in left:
            if look.bounds.why and (x.why in ("", WORK_LIMIT_REASON) or x.why.startswith(FOUND)):
                yield look.bounds.why
            elif x.why in ("", WORK_LIMIT_REASON):
                leads = [look(x.quantity, t, _AHEAD).lead for t in range(1, HORIZON + 1)]
                lead = max((e for e in leads if e is not None), default=None)
                why = explain_open(lead, look.upper(x.quantity))
                yield _SPENT if at.effort and why == WORK_LIMIT_REASON else why
            else:
                yield x.why


def _is_met_within(at: Places, demand: Demand, look: Analysis, work: int | None) -> bool:
    """Tests whether a demand is proved to be met, spending at most ``work``."""
    with at.within(work):
        return is_met(demand, look)


def unmet(
    at: Places, demands: Iterable[Demand], look: Analysis, work: int | None = None
) -> tuple[tuple[tuple[Demand, str], ...], tuple[OpenDemand, ...]]:
    """Returns the demands that fail, in order of update and signal, and those that are undecided.

    Args:
        at: provides analyses at other exponents, and limits their work.
        demands: the demands to examine.
        look: the analysis at the exponents that are judged.
        work: limit on the work for all demands. With a limit, divergence after one update is examined first, since this
            takes the least work.
    """
    ahead = at.fresh(look.point)
    failures: dict[Demand, Failure | None] = {}
    demands = [d for d in demands if concerns(d, at.optimizer)]

    def failure(d: Demand, first: bool) -> Failure | None:
        if first and not is_met(d, look):
            early = violation(d, look, horizon=1)
            return early if early and early.step <= 1 else Failure("", undecided=True)
        return None if is_met(d, look) else violation(d, look) or unfaithful(d, look) or look_ahead(d, ahead, _AHEAD)

    with at.within(work):
        for one in (None,) if work is None else (FIRST_DEMAND_WORK, work // 4, None):
            for d in iterate_with_progress("certifying", "demands", demands):
                with at.within(one):
                    failures[d] = failure(d, one is not None)
            demands = [d for d in demands if (left := failures[d]) and left.undecided]
    if work is None and demands:  # a fresh analysis has its whole budget
        alone = Analysis(at.ray, look.point, at.optimizer, at.network)
        alone.notes = look.notes  # assumptions of its answers are reported here, too
        failures |= {d: violation(d, alone) or unfaithful(d, alone) for d in demands}
    closer = look.with_settings(budgets=())
    with at.within(PIECE_WORK):
        failures |= {d: dwindles(d, look, closer) or x for d, x in failures.items() if x and x.undecided}
    found = causes_first(failures, at.network)
    return tuple((d, x.reason) for d, x in found if not x.undecided), tuple(x.open for _, x in found if x.open)


def not_below(demands: Iterable[Demand], look: Analysis) -> None:
    """Checks by upper bounds alone that no quantity is smaller than a demand requires.

    Raises:
        Infeasible: a quantity is smaller.
    """
    for d in demands:
        if failure := below(d, look):
            raise Infeasible(failure, demand=d)


def pieces(at: Places, demands: Sequence[Demand], look: Analysis) -> None:
    """Checks that demands on pieces of sums over experts are decided and met. A piece is the part of the sum to which
    training contributes the change of one tensor only, or no change (``ExpertSum.pieces``).

    This is stricter than ``left_open``, which accepts undecided demands: every quantity must have an upper bound, and
    each piece must be decided with a small budget.

    Raises:
        Infeasible: there are no upper bounds, a quantity is smaller than demanded, or a piece fails its demand or is
            undecided.
    """
    if look.bounds.why:
        raise Infeasible(look.bounds.why, undecided=True)
    not_below(demands, look)
    names = {f"{e.out}.{k}" for e in experts(at.network) for k, x in e.pieces.items() if x not in e.entering}
    for d in (d for d in demands if names.intersection(d.quantities)):
        with at.within(PIECE_WORK):
            if failure := violation(d, look.with_budgets(QUICK_BUDGETS[:1])):
                raise Infeasible(failure, demand=d)
