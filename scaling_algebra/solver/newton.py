"""Exact Newton iteration on max-plus equations.

At a point each demanded quantity is a linear form in the unknown b, c, d, alpha: the monomial that leads there. Setting
the forms to Theta(1) is a linear system; its solution is the next point. A quantity is a maximum of such forms, so the
iteration is Newton's method on convex piecewise linear functions. At a fixed point every demand that fixes an unknown
holds, and the same linear system, solved per axis, gives the powers of the axes. No published number is used.
Read next: ``demands.py`` (checks demands at a point), ``search.py`` (calls the iteration and checks its result).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from scaling_algebra.dynamics.analysis import LEAD, QUICKLY, WITNESS, Analysis
from scaling_algebra.dynamics.run import name_unknowns
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.linear import Row, solve_linear
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.auxiliary import name_weight
from scaling_algebra.spec.networks.roles import find_meetings
from scaling_algebra.spec.powers import Form, Power
from scaling_algebra.waiting import iterate_with_progress

from .demands import NO_COMMON, Fixing, Infeasible, check, concerns, diverges, is_met, largest, unknown
from .layerwise import PLAIN, at_full_alignment
from .points import Places

_LAZY = Fraction(2)
"""Exponent x of the vanishing learning rates n^-x, in units of the largest rate of the ray."""
_ROUNDS = 24

Values = Mapping[str, Fraction]
"""Values of the unknowns, or of some of them."""
NONE_HELD: Values = {}


def find_aligned_start(at: Places, structure: Structure = PLAIN) -> dict[str, Fraction]:
    """Returns exponents from which the search starts: those that follow from the shapes of the tensors alone.

    They are ``layerwise.at_full_alignment`` on the ray. An auxiliary loss is weighted such that each entry of its
    gradient at a signal is one over the number of entries of that signal.

    Args:
        at: the network, ray and optimizer, with their analyses.
        structure: which tensors start at zero or alike, and which signals are free.
    """
    law = at_full_alignment(at.network, at.ray, at.optimizer, structure)
    values = dict.fromkeys(name_unknowns(at.network), Fraction(0)) | {
        name: power.on(at.ray) for name, power in law.items()
    }
    for loss, x, g in find_meetings(at.network):
        weight = name_weight(at.network, loss)
        look = at.analyse_at(structure.point(at.network, values | {weight: Fraction(0)}))
        size = look(f"{g}.by-{loss}", 0, QUICKLY).lead or Fraction(0)
        values[weight] = at.network.size(at.network.signals[x]).on(at.ray) + size
    return values


def make_lazy_start(at: Places) -> dict[str, Fraction]:
    """Returns exponents from which a search may start: variance-preserving init stds and vanishing learning rates.

    At such small learning rates the largest monomial of every change contains only one learning rate.
    """
    values = dict.fromkeys(name_unknowns(at.network), Fraction(0))
    for role, tensor in at.network.tensors.items():
        values[f"b.{role}"] = at.network.size(tensor.fan_in).on(at.ray) / 2
        values[f"c.{role}"] = _LAZY * at.ray.largest
    return values


def _stands(at: Places, demands: Sequence[Demand], structure: Structure, values: Values) -> bool:
    """Tests whether exponents are proved to meet the demands for O(1) and Theta(1), by upper bounds and monomials that
    attain them.
    """
    look = at.analyse_at(structure.point(at.network, values))
    asked = [d for d in demands if d.kind in ("theta", "bounded")]
    return all(is_met(d, look) for d in iterate_with_progress("deriving", "demands", asked))


def iterate_newton(
    at: Places,
    demands: Sequence[Demand],
    structure: Structure,
    start: Values,
    held: Values = NONE_HELD,
    suspected: Sequence[Demand] = (),
) -> tuple[Analysis, dict[str, Fixing]]:
    """Solves the demands for the unknown exponents by Newton's method.

    Returns the analysis at the solution, and for each unknown the condition that determines it.

    For rules with an epsilon it starts at the solution of gradient descent, unless ``start`` is proved to be the
    solution.

    Args:
        at: provides analyses, which compute sizes, at the points (choices of all exponents) that are visited.
        demands: the demands; those that fix an unknown give the equations.
        structure: which tensors start at zero or alike in all experts, and which signals are not constrained.
        start: first values of all unknowns.
        held: unknowns that keep their values.
        suspected: demands that are likely to fail; they are examined first, at the solution of gradient descent.

    Raises:
        Infeasible: the iteration does not converge, or the demands leave an unknown free.
    """
    begin: Values = {**start, **held}
    if suspected or (at.epsilons and not _stands(at, demands, structure, begin)):
        begin = _after_descent(at, demands, structure, begin, held, suspected)
    return newton(at, demands, structure, begin, held)


def newton(
    at: Places, demands: Iterable[Demand], structure: Structure, start: Values, held: Values, shown: bool = True
) -> tuple[Analysis, dict[str, Fixing]]:
    """Solves the demands for the unknown exponents by Newton's method, from given first values.

    Returns the analysis at the solution, and for each unknown the condition that determines it.

    Args:
        at: provides analyses, which compute sizes, at the points (choices of all exponents) that are visited.
        demands: the demands; those that fix an unknown give the equations.
        structure: which tensors start at zero or alike in all experts, and which signals are not constrained.
        start: first values of all unknowns.
        held: unknowns that keep their values.
        shown: prefer monomials that an upper bound proves to be the largest to those that are the largest known ones.

    Raises:
        Infeasible: the iteration does not converge, or the demands leave an unknown free.
    """
    fixed = {*held, *(f"b.{role}" for role in structure.zero)}
    wanted = [d for d in demands if d.fixes and d.fixes not in fixed and concerns(d, at.optimizer)]
    names, values = [d.fixes for d in wanted], {**start, **held}
    seen = list[Values]()
    for _ in range(_ROUNDS):
        if values in seen:  # the iteration cycles
            break
        seen.append(values)
        try:
            look = at.analyse_at(structure.point(at.network, values))
            look(at.network.statements[0].out, 0, LEAD)
        except UsageError:
            raise
        except ValueError:  # a fraction too fine for the engine: the iteration does not converge
            raise Infeasible(NO_COMMON) from None
        forms = dict[str, Fixing]()
        meeting = shown and not any(diverges(look, demand) for demand in wanted)
        for demand in wanted:
            fixing = largest(look, demand, meeting)
            if fixing is None:
                last = demand.horizon
                zero = f"{demand.label}, but it is exactly zero up to t={last}"
                raise Infeasible(zero, everywhere=_asleep(look, structure, last))
            forms[demand.fixes] = fixing
        rows = [_row(look, x.form, held) for x in forms.values()]
        holds = [sum(n * values[u] for u, n in row.items()) == rhs for row, rhs in rows]
        if all(holds):
            if solve_linear(rows, names) is None:
                raise Infeasible("the desiderata do not determine all parameters")
            return look, forms
        keep: list[Row] = [
            ({name: 1}, values[name]) for name in names
        ]  # for directions that the forms do not determine
        simplest = sorted(range(len(rows)), key=lambda k: sum(abs(Fraction(n)) for n in rows[k][0].values()))
        unmet_first = sorted(simplest, key=lambda k: holds[k])
        before = values
        for order in (simplest, unmet_first):  # the first independent rows decide
            values = {**before, **(solve_linear([rows[k] for k in order] + keep, names) or {})}
            if values != before:
                break
    left = next((fixing.demand.label for fixing, x in zip(forms.values(), holds, strict=True) if not x), "")
    raise Infeasible(unknown(wanted, look) or f"{NO_COMMON}, such as {left}")


def _asleep(look: Analysis, structure: Structure, last: int) -> bool:
    """Tests whether quantities that are exactly zero after ``last`` updates stay zero forever.

    Law: a quantity is exactly zero only because some tensors are zero. If the gradients of all zero tensors vanish at
    one update, these tensors stay zero, and their gradients vanish at every later update, too.
    """
    zero = structure.zero - look.network.frozen
    for t in range(last):
        gradients = {role: look(f"g{look.network.tensors[role].symbol}", t, LEAD) for role in zero}
        if any(x.unknown for x in gradients.values()):
            return False
        if all(x.zero for x in gradients.values()):
            return True
        zero = frozenset(role for role, x in gradients.items() if x.zero)
    return False


def _row(look: Analysis, form: Form, held: Values) -> Row:
    """Returns the linear equation which says that a monomial is Theta(1), in the unknowns without a fixed value."""
    constant = sum((n * held[u] for u, n in form.unknowns if u in held), form.power.on(look.ray))
    return {u: n for u, n in form.unknowns if u not in held}, -constant


def _after_descent(
    at: Places,
    demands: Sequence[Demand],
    structure: Structure,
    start: Values,
    held: Values,
    suspected: Sequence[Demand],
) -> Values:
    """Returns a start for rules with an epsilon: the solution of gradient descent.

    Law: let c be the exponent of a learning rate, and d that of an epsilon (lr ~ n^-c, epsilon ~ n^-d). If epsilon is
    as large as the largest gradient (demand mu-3), the optimizer divides every gradient by a number of size n^-d.
    Training is then gradient descent with the learning-rate exponent c - d in place of c. So if gradient descent has
    no solution, neither has this optimizer. If the demands are undecided for gradient descent, they may be decided
    for this optimizer, since its steps need not have the heavy tails (rare, very large entries) of gradient descent.
    If the user fixes c, c - d depends on d, and gradient descent is solved again until d no longer changes. If the
    user fixes d, mu-3 need not hold, and the result is only a start.
    """
    values, last = dict(start), max(demand.horizon for demand in demands)
    rates = [role for role in at.epsilons if f"c.{role}" in held]
    for turn in range(_ROUNDS if rates else 1):
        counted = {**values, **{f"c.{role}": values[f"c.{role}"] - values[f"d.{role}"] for role in at.epsilons}}
        kept = {name: x for name, x in held.items() if name[:2] not in ("c.", "d.") or name[2:] not in at.epsilons}
        kept |= {f"c.{role}": counted[f"c.{role}"] for role in rates}
        try:
            look, _ = newton(at.descent, demands, structure, counted, kept, shown=not suspected)
            check(suspected, look)
        except UsageError:
            if not turn:
                raise
            return start  # c - d depends on d and does not converge: its fractions get finer
        except Infeasible as failure:
            if failure.everywhere or failure.undecided or any(name[:2] in ("c.", "d.") for name in held):
                return start
            raise
        before, values = values, _faithful(at, look, last, held)
        if values == before:
            break
    return values


def _faithful(at: Places, look: Analysis, last: int, held: Values) -> dict[str, Fraction]:
    """Converts exponents that solve the demands for gradient descent to those for optimizers with an epsilon.

    The exponent d of each epsilon becomes that of the tensor's largest gradient in training with gradient descent.
    The exponent c of the learning rate becomes c + d, so that learning rate / epsilon is the learning rate of
    gradient descent. Unknowns in ``held`` keep their values.
    """
    values = dict(look.point.values)
    for role in at.epsilons:
        gradient = _largest_gradient(look, at.network.tensors[role].symbol, last)
        values[f"d.{role}"] = held.get(f"d.{role}", -gradient)
        values[f"c.{role}"] = held.get(f"c.{role}", values[f"c.{role}"] + values[f"d.{role}"])
    return values


def _largest_gradient(look: Analysis, symbol: str, last: int) -> Fraction:
    """Returns the exponent of the largest gradient of a tensor after the first update; 0 if all are exactly zero.

    Raises:
        Infeasible: nothing is known of a gradient.
    """
    steps, name = range(1, last + 1), f"g{symbol}"
    top = look.upper(name)
    if top is not None and any(look(name, t, WITNESS).low == top for t in steps):
        return top
    sizes = {t: look(name, t, LEAD) for t in steps}
    if open_at := [t for t, x in sizes.items() if x.unknown]:
        raise Infeasible(f"mu-3: {name} at t={open_at[0]} is undecided")
    return max((x.lead for x in sizes.values() if x.lead is not None), default=Fraction(0))


def by_axis(forms: Mapping[str, Fixing], held: Mapping[str, Power]) -> dict[str, Power]:
    """Solves, for each axis separately, the conditions that monomials are Theta(1).

    So the results are powers of the axes, such as N^-1 M^(1/2). The exponents of n on a ray would not show which axis
    they come from.

    Args:
        forms: the condition that determines each unknown.
        held: settings that the user fixed, by unknown, each inverted (1/init std, 1/learning rate, ...), as in
            ``Given.held``.
    """
    powers: dict[str, dict[str, Fraction]] = {name: {} for name in forms}
    behind = [*(fixing.form.power for fixing in forms.values()), *held.values()]
    for axis in dict.fromkeys(axis for power in behind for axis, _ in power.terms):
        rows: list[Row] = []
        for fixing in forms.values():
            counts, constant = dict(fixing.form.unknowns), fixing.form.power[axis]
            constant += sum((n * held[u][axis] for u, n in counts.items() if u in held), Fraction(0))
            rows.append(({u: n for u, n in counts.items() if u not in held}, -constant))
        solved = solve_linear(rows, list(forms))
        assert solved is not None
        for name, x in solved.items():
            powers[name][axis] = x
    return {name: Power.of(p) for name, p in powers.items()}
