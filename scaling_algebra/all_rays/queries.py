"""One question about a cone of rays: does some ray in it, with some parameters, meet the desiderata?

z3 takes the rates and the unknowns together. What it proposes, the engine examines on that ray; the monomial that
breaks a demand there is linear in both, so that it rules out points on every ray, until nothing is left.
Read next: ``theorems.py`` (which questions are asked), ``facts.py`` (the clauses they start from).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.linear import SIDES, Linear
from scaling_algebra.linear.refine import refine
from scaling_algebra.proofs.clauses import label
from scaling_algebra.proofs.prover import expressible, unmet
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.scaling import Point

from .facts import clauses

_QUICK = 20_000
"""Nodes spent on a first look at a point."""
NUMBERS = ("M",)
"""Axes that count experts, whose gates average out where they grow: then they grow on all rays of a cone."""
RAYS = "the rays"
APART = "another parameterization"

Verdict = Literal["proved", "refuted", "undecided"]


@dataclass(frozen=True)
class Region:
    """Rays on which some axes grow.

    Attributes:
        bounds: linear conditions on their rates. ``fixed``: axes that do not grow on them.
        text: what they say: ``N_e + M >= N, M <= N``. ``beside``: of each group of conditions one holds, too.
    """

    bounds: tuple[Linear, ...]
    fixed: frozenset[str]
    text: str
    beside: tuple[tuple[Linear, ...], ...] = ()


@dataclass(frozen=True)
class Decision:
    """The answer to one question.

    Attributes:
        verdict: ``proved``: no point of the cone meets the demands. ``refuted``: ``why`` names one that does.
        core: the desiderata that together exclude them.
        clauses: the unsatisfiable system.
    """

    verdict: Verdict
    core: tuple[str, ...] = ()
    clauses: tuple[Clause, ...] = ()
    why: str = ""


def nowhere(
    network: Network,
    parameterization: Parameterization,
    structure: Structure,
    region: Region,
    apart: Sequence[Linear] = (),
    demands: Sequence[Demand] | None = None,
) -> Decision:
    """Does no ray of a cone, with no parameters, meet the demands?

    Args:
        apart: of which one holds: parameters that are not those of a formula.
        demands: of the parameterization, by default all.
    """
    demands = parameterization.demanded(network, structure) if demands is None else demands
    axes = [axis for axis in AXES if axis in network.axes.values()]
    names = dict.fromkeys(label(d) for d in demands)
    known = [Clause(RAYS, (x,), region.text) for x in (*directions(axes, region.fixed), *region.bounds)]
    known += [Clause(RAYS, atoms, region.text) for atoms in region.beside]
    known += [Clause(APART, tuple(apart), "not the formula")] if apart else []
    known += [c for c in clauses(network, parameterization, structure, region.fixed) if c.label in names]
    solver = ClauseSolver()
    for clause in known:
        solver.add(clause)

    def learn(clause: Clause) -> None:
        known.append(clause)
        solver.add(clause)

    def ray_of(model: Mapping[str, Fraction]) -> Ray:
        return Ray({axis: model[axis] for axis in axes})

    try:
        model = refine(
            lambda: solver.model((RAYS, APART, *names), ()),
            lambda model: _examined(network, structure, demands, ray_of(model), model),
            learn,
        )
    except Undecided as reason:
        return Decision("undecided", why=str(reason))
    if model is not None:
        shown = ", ".join(f"{x}={v}" for x, v in model.items() if x.partition(".")[0] in ("b", "c", "alpha"))
        return Decision("refuted", why=f"{shown} meets the desiderata on {ray_of(model)}")
    core = solver.core(())
    needed = tuple(c for c in known if c.label in core)
    return Decision("proved", tuple(x for x in core if x not in (RAYS, APART)), needed)


def directions(axes: Sequence[str], fixed: frozenset[str]) -> tuple[Linear, ...]:
    """The rays on which axes grow, one for each direction: the first rate is 1, the others are not negative, and
    numbers of experts grow.

    Law: desiderata depend on a ray, not on how fast it is run through.
    """
    first, *others = (axis for axis in axes if axis not in fixed)
    one = tuple(Linear(((first, 1),), sense, Fraction(-1)) for sense in SIDES)
    positive = [Linear.of({axis: 1}, ">=") for axis in others]
    held = [Linear.of({axis: 1}, "=") for axis in axes if axis in fixed]
    return (*one, *positive, *held, *(Linear.of({axis: 1}, "!=") for axis in others if axis in NUMBERS))


def _examined(
    network: Network, structure: Structure, demands: Sequence[Demand], ray: Ray, model: Mapping[str, Fraction]
) -> Clause | None:
    """What rules out a point of gradient descent on a ray, and is true on every ray; None if all demands hold there.

    Raises:
        Undecided: no certificate, the engine cannot express the point, or nothing like that rules it out.
    """
    zero, roles = Fraction(0), network.tensors
    point = Point(
        {r: None if r in structure.zero else model.get(f"b.{r}", zero) for r in roles},
        {r: model.get(f"c.{r}", zero) for r in roles},
        dict.fromkeys(roles, zero),
        {m: model.get(m, zero) for m in network.free_multipliers},
        structure.tied,
    )
    with expressible():
        look = Analysis(ray, point, OPTIMIZERS["sgd"], network)
        quick = Analysis(ray, point, OPTIMIZERS["sgd"], network).limited(_QUICK, gap=zero)
        failed = unmet(demands, quick, certified=False) or unmet(demands, look, False) or unmet(demands, look, True)
    if failed is None:
        return None
    demand, form, why = failed
    if form is None:
        raise Undecided(f"{why} on {ray}, which the bounds for all rays do not show")
    return Clause(label(demand), (Linear.of({**dict(form.power.terms), **dict(form.unknowns)}, "<="),), why)
