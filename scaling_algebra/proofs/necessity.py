"""What every single desideratum determines: the unknowns that may differ once it is dropped.

One question to z3 for all of them: a point that meets all demands but one, and differs from the proved one by more than
is known to be free without that one. What it proposes, the engine examines; when nothing is left, every other unknown
is proved to keep its value. Read next: ``prover.py`` (the proof this starts from).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from scaling_algebra.errors import UsageError
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.refine import ROUNDS
from scaling_algebra.solver.demands import concerns
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.scaling import Point

from .candidates import unmet
from .prover import Proof, Prover, System


def freed(proof: Proof) -> dict[str, tuple[str, ...] | None]:
    """What every single desideratum determines: the unknowns that may differ once it is dropped (some of them perhaps
    only together); all others keep their value.

    An empty tuple: the others determine everything. None: undecided. Nothing if the proof did not find exactly one
    point. Where there is an epsilon, demands other than mu-3 determine c - d.

    Raises:
        UsageError: exponents are given.
    """
    asked = proof.configuration
    if asked.given:
        raise UsageError(f"what a desideratum determines is asked without given exponents; leave out {asked.given}")
    if not proof.unique:
        return {}
    system = Prover.of(asked).system(asked.parameterization, proof.outcome.structure)
    point = proof.outcome.points[0]
    unknowns = _freed(system, point)
    rule = asked.optimizer.of
    over = {f"c.{role}": f"c.{role} - d.{role}" for role in asked.network.tensors if rule(role).epsilon}
    unknowns = {name: names and {over.get(x, x) for x in names} for name, names in unknowns.items()}
    faithful = [d for d in system.demands if d.kind == "scale" and concerns(d, asked.optimizer)]
    unknowns |= {d.label: _freed_epsilon(system, d, point) for d in faithful}
    order = [d.label for d in system.demands]
    return {
        x: names if names is None else tuple(sorted(names)) for x in order if x in unknowns for names in [unknowns[x]]
    }


def _freed(system: System, point: Point) -> dict[str, set[str] | None]:
    """Law: if no point meets all demands but one and differs outside some unknowns, the demand determines no more."""
    proved = _values(system, point)
    demands = {d.label: d for d in system.demands if d.kind != "scale"}
    solver = ClauseSolver(system.clauses, system.ray.largest)
    solver.leave_out_one(demands)
    for name in demands:
        solver.where_left_out(name, system.other(proved))
    freed_by: dict[str, set[str] | None] = {name: set() for name in demands}
    cuts: Counter[str] = Counter()
    while (left := solver.left_out()) is not None:
        name, model = left
        values: Mapping[str, Fraction] = {x: model.get(x, Fraction(0)) for x in proved}
        free = freed_by[name] or set()
        try:
            values, cut = _nearest(system, [d for d in system.demands if d.label != name], proved, values)
        except Undecided:
            cut, cuts[name] = None, ROUNDS
        cuts[name] += 1
        if cuts[name] > ROUNDS:
            freed_by[name] = None
            solver.keep(name)
        elif cut is None:
            freed_by[name] = free = free | {x for x in proved if values[x] != proved[x]}
            solver.where_left_out(name, system.other({x: v for x, v in proved.items() if x not in free}))
        else:
            solver.add(cut)
    return freed_by


def _nearest(
    system: System, demands: Sequence[Demand], proved: Mapping[str, Fraction], values: Mapping[str, Fraction]
) -> tuple[Mapping[str, Fraction], Clause | None]:
    """A point that meets the demands halfway to a candidate, or the candidate, with what rules it out.

    Law: a form that is O(1) at the known point, and not on the way, is not at the candidate. Candidates of z3 lie on
    edges, where many sizes tie and the engine works hard; on the way fewer do.

    Raises:
        Undecided: neither point is seen to meet the demands, and nothing rules the candidate out.
    """
    cut = system.examine(demands, values, closely=False)
    if cut is None:
        halfway = {x: (proved[x] + v) / 2 for x, v in values.items()}
        with suppress(Undecided):
            cut = system.examine(demands, halfway)
            if cut is None or cut.atoms[0].sense != "!=":
                return halfway, cut
        cut = system.examine(demands, values)
    return values, cut


def _values(system: System, point: Point) -> dict[str, Fraction]:
    """The unknowns of gradient descent at a point."""
    values = point.values | {f"c.{role}": c - point.d[role] for role, c in point.c.items()}
    return {name: values[name] for name in system.names}


def _freed_epsilon(system: System, demand: Demand, point: Point) -> set[str] | None:
    """A larger epsilon and the learning rate that goes with it, else a smaller one; None if neither is seen to work."""
    role, half = demand.fixes.removeprefix("d."), Fraction(1, 2)
    rest = [d for d in system.demands if d != demand]
    for names, c, d in (
        (("c", "d"), point.c[role] - half, point.d[role] - half),
        (("d",), point.c[role], point.d[role] + half),
    ):
        moved = replace(point, c={**point.c, role: c}, d={**point.d, role: d})
        with suppress(Undecided):
            if unmet(rest, system.look(moved, system.prover.optimizer), certified=True) is None:
                return {f"{name}.{role}" for name in names}
    return None
