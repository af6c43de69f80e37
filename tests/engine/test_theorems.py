"""Theorems for whole cones of rays: what they rest on, a second solver, and negative controls."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from click.testing import CliRunner

from scaling_algebra import UsageError
from scaling_algebra.all_rays.claims import Side, apart, claims, cone, covered, holds
from scaling_algebra.all_rays.facts import AllRays
from scaling_algebra.all_rays.queries import nowhere
from scaling_algebra.all_rays.theorems import Theorem, Theorems, theorems
from scaling_algebra.cli import main
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Rung
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.formulas.graded import form_algebra
from scaling_algebra.phase_map.phases import phases
from scaling_algebra.proofs.clauses import label
from scaling_algebra.proofs.prover import Outcome
from scaling_algebra.proofs.smtlib import script
from scaling_algebra.solver.walls import Wall
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure, interventions
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point

from .test_proofs import second_opinion

MUP, MSSP = PARAMETERIZATIONS["mup"], PARAMETERIZATIONS["mssp"]
ZERO_ROUTER = Structure(zero=frozenset({"readout", "router"}))
GROWING = frozenset[str]()


@cache
def known(parameterization="mup", rule="sgd"):
    return claims(phases(rule, parameterization))


def answer(name, parameterization="mup", rule="sgd"):
    """A theorem, proved; its unsatisfiable system, if it is one, is unsatisfiable for cvc5, too."""
    claim = known(parameterization, rule)[name]
    found = Theorems(PARAMETERIZATIONS[parameterization], OPTIMIZERS[rule], (Theorem(claim, claim.decide()),))
    decision = found[name].decision
    assert decision.verdict == "proved" and found.proved is True, decision.why
    if decision.clauses:
        assert second_opinion(found.scripts()) == ["unsat"]
    return decision


# --- the facts ------------------------------------------------------------------------------------------------------


def wrong_bounds(rounds, shift=0):
    """How often the engine contradicts the bounds for all rays, at rays and parameters drawn at random.

    ``shift`` plants an error: a power of M by which every monomial is multiplied.
    """
    rng, wrong, compared = random.Random(3), 0, 0
    names = [(x, 1) for x in ("h1", "h3", "h3i.propagating", "f.effective", "f")]
    names += [
        (x, 2) for x in ("h2.effective", "h3i.propagating", "h3.cross", "h3.effective", "f.propagating", "f.cross")
    ]
    for _ in range(rounds):
        ray = Ray({a: Fraction(rng.randint(1, 8), 6) for a in ("N", "N_e", "M")})
        b, c = ({r: Fraction(rng.randint(2, 9), 4) for r in MOE_BLOCK.tensors} for _ in "bc")
        point = Point(b, c, dict.fromkeys(b, Fraction(0)), {"alpha": Fraction(rng.randint(0, 4), 4)})
        look = Analysis(ray, point, OPTIMIZERS["sgd"])
        if (look("psi.change", 2).size or 0) > 0:
            continue
        values = {f"b.{r}": x for r, x in b.items()} | {f"c.{r}": x for r, x in c.items()} | {"alpha": point.alpha}
        for signal in ("h1", "h2", "h3i", "h3"):  # upper bounds may name the sizes of late changes
            values[f"size.{signal}"] = -look(f"{signal}.change", 2).size

        def at(form, ray=ray, values=values):
            return form.power.on(ray) + sum(n * values[u] for u, n in form.unknowns) + shift * ray["M"]

        for name, t in names:
            bounds, size = all_rays().bounds(name, t), look(name, t).size
            if look(name, t).decided and size is not None:
                compared += 1
                low = max(map(at, bounds.lower), default=size)
                wrong += not low <= size <= max(map(at, bounds.upper))
    assert compared > 4 * rounds
    return wrong


@cache
def all_rays():
    return AllRays(MOE_BLOCK, MUP.demanded(MOE_BLOCK, Structure()), Structure())


def test_bounds_hold_on_every_ray():
    """What clauses over rates and unknowns together rest on; a planted monomial, too large by M, is seen."""
    assert wrong_bounds(10) == 0
    assert wrong_bounds(5, shift=1) > 10


def test_what_drops_nothing_never_drops_silently():
    """Too little work is an exception, not a coarser bound: on that the convexity of upper bounds rests."""
    algebra = form_algebra(MOE_BLOCK, Ray({"N": 1, "N_e": 1, "M": 1}))
    for rung in (Rung(Fraction(1, 2), work=3, whole=True), Rung(Fraction(1, 2), work=3)):
        algebra.climb(rung)
        x = algebra.tensor("expert_out", "ibk", 0)
        y = algebra.contract(x, algebra.tensor("expert_in", "ika", 0), "iba")
        if rung.whole:
            with pytest.raises(Exhausted):
                algebra.contract(y, algebra.relabelled(y, "iba", "iab"), "i")


# --- existence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["B exists", "C exists", "D exists", "E exists", "D exists, M fixed"])
def test_mup_exists_on_whole_cells(name):
    assert "seen at the rays that span the cone" in answer(name).why


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_mssp_exists_on_walls(rule):
    where = {str(claim.where) for name, claim in known("mssp", rule).items() if name.endswith("exists")}
    assert where == {"N_e + M = N", "N_e = N, M <= N", "N_e = N, M >= N"}
    for name in ("a exists", "b exists", "c exists"):
        answer(name, "mssp", rule)


def test_a_wrong_formula_is_refuted():
    """Negative control: the formula of another cell, and one with one power changed."""
    p, rays = phases("sgd", "mup"), [(1, 1, 0), (1, 0, 1), (1, 1, 1)]  # of C
    b, c = (next(x.scaling for x in p.cells if x.name == name) for name in "BC")
    assert holds(p, c, Structure(), rays).verdict == "proved"
    assert "psi ~ n^(1/2)" in holds(p, b, Structure(), rays).why
    small = replace(c.tensors["router"], lr=Power.of({"N": -1}))
    wrong = holds(p, replace(c, tensors={**c.tensors, "router": small}), Structure(), rays)
    assert wrong.verdict == "refuted" and "no monomial of it is Theta(1) on all rays" in wrong.why


# --- every ray ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cover", "cover, M fixed"])
def test_the_cells_are_all_rays(name):
    answer(name)


def test_a_wrong_wall_leaves_rays_out():
    """Negative control: the cells of many experts begin at M = 2 N; or one cell is missing."""
    sides = [known()[name].sides for name in ("A none", "B exists", "C exists", "D exists", "E exists")]
    assert covered(sides, GROWING).verdict == "proved"
    double = Side(Wall((-2, 0, 1)), ">=")
    moved = [[double if str(s) == "M >= N" else s for s in x] for x in sides]
    assert covered(moved, GROWING).verdict == "refuted"
    assert "not so at N=1" in covered(sides[1:], GROWING).why


# --- uniqueness and impossibility -----------------------------------------------------------------------------------


def off_walls(*walls):
    return cone([Side(Wall(w), "!=") for w in walls], GROWING)


WALLS = (-1, 1, 0), (-1, 1, 1)
"""N_e = N and N_e + M = N."""


def outcome(clauses):
    return Outcome(Structure(), "impossible", clauses=tuple(clauses))


def test_no_mssp_off_the_walls_with_a_zero_router():
    """One of sixteen structures. Without the clauses of any desideratum of its core it is satisfiable (negative
    control), and so it is with one clause of which a monomial is missing."""
    found = nowhere(MOE_BLOCK, MSSP, ZERO_ROUTER, off_walls(*WALLS))
    assert found.verdict == "proved" and found.core
    assert second_opinion(script(outcome(found.clauses), "", ())) == ["unsat"]
    for name in found.core:
        rest = tuple(c for c in found.clauses if c.label != name)
        assert second_opinion(script(outcome(rest), "", ())) == ["sat"], name


def test_what_is_not_proved_says_so():
    """Without most desiderata there are parameterizations: a ray and a point that the engine certifies."""
    demands = [d for d in MSSP.demanded(MOE_BLOCK, ZERO_ROUTER) if d.kind == "bounded"]
    found = nowhere(MOE_BLOCK, MSSP, ZERO_ROUTER, off_walls(*WALLS), demands=demands)
    assert found.verdict == "refuted" and "meets the desiderata on N=1" in found.why


@pytest.mark.slow
def test_mup_is_unique_on_whole_cells():
    """And only there: Result 1 of the MSSP paper for all rays on which M grows. Negative controls: a desideratum that
    is dropped, and the formula of another cell."""
    for name in ("A none", "B unique", "C unique", "D unique", "E unique"):
        answer(name)
    p, b, c = phases("sgd", "mup"), known()["B unique"], known()["C unique"]
    inside = cone(b.sides, GROWING)
    own, other = (apart(p, x.scaling, GROWING) for x in (b, c))
    assert nowhere(MOE_BLOCK, MUP, Structure(), inside, other).verdict == "refuted"
    demands = MUP.demanded(MOE_BLOCK, Structure())
    demands = [d for d in demands if label(d) != "mu-2: effective update dQ h1 = Theta(1)"]
    assert nowhere(MOE_BLOCK, MUP, Structure(), inside, own, demands).verdict == "refuted"


@pytest.mark.slow
def test_mssp_is_unique_on_a_wall_and_nowhere_beside_it():
    """N_e = N with tied experts; negative control: off the other wall alone, one is found on this one."""
    answer("b unique", "mssp")
    tied = next(s for s in interventions(MOE_BLOCK, MSSP.base_structure("zero")) if len(s.tied) == 2 and not s.exempt)
    found = nowhere(MOE_BLOCK, MSSP, replace(tied, zero=ZERO_ROUTER.zero), off_walls(WALLS[1]))
    assert found.verdict == "refuted"


# --- command line ---------------------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(main, ["theorems", "--parameterization", "mup", "--optimizer", "sgd", *args])


def test_theorems_are_printed_and_written(tmp_path):
    file = tmp_path / "cover.smt2"
    result = run("--only", "cover", "--smtlib", str(file), "--format", "json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["proved"] is True and data["steps"] == {"O(1)": 3, "Theta(1)": 2}
    assert file.read_text().startswith("; cover: where M grows, every ray is in one of these cones (muP, sgd,")
    assert second_opinion(file.read_text()) == ["unsat"]
    result = run("--only", "B exists")
    assert result.exit_code == 0 and "\nB exists: proved\n" in result.output
    assert "where M >= N, N_e <= N and M grows: muP by the formula of cell B" in result.output


def test_wrong_names_and_optimizers_are_one_line():
    result = run("--only", "the best")
    assert result.exit_code == 2 and "no theorem is called 'the best'" in result.output
    assert run("--only", "Z exists").exit_code == 2
    with pytest.raises(UsageError, match="cannot prove"):
        theorems("signsgd", "mup")
