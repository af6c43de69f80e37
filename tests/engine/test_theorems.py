"""Theorems for whole cones of rays: what they rest on, a second solver, and negative controls."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import pytest

from scaling_algebra.all_rays.claims import (
    Region,
    decide_cover,
    decide_exists,
    decide_nowhere,
    exclude_formula,
    list_claims,
)
from scaling_algebra.all_rays.covering import Face
from scaling_algebra.all_rays.theorems import Theorems, theorems
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.formulas.graded import form_algebra
from scaling_algebra.linear.cone import Cone
from scaling_algebra.linear.linear import Linear
from scaling_algebra.proofs.clauses import AllRays
from scaling_algebra.proofs.smtlib import script
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point

from ..shared import scalecalc
from .test_proofs import second_opinion

MUP, MSSP = PARAMETERIZATIONS["mup"], PARAMETERIZATIONS["mssp"]
ZERO_ROUTER = Structure(zero=frozenset({"readout", "router"}))
GROWING = frozenset[str]()


def face(parameterization="mup", rule="sgd", network="moe", fixed=GROWING):
    return Face(ARCHITECTURES[network], OPTIMIZERS[rule], PARAMETERIZATIONS[parameterization], fixed)


@cache
def known(parameterization="mup", rule="sgd", network="moe"):
    return list_claims(face(parameterization, rule, network))


def answer(name, parameterization="mup", rule="sgd", network="moe"):
    """A theorem, proved; its unsatisfiable system, if it is one, is unsatisfiable for cvc5, too."""
    found = Theorems(face(parameterization, rule, network), (known(parameterization, rule, network)[name],))
    decision = found[name].decision
    assert decision.verdict == "proved" and found.proved is True, decision.why
    if decision.clauses:
        assert second_opinion(found.scripts()) == ["unsat"]
    return decision


# --- the facts ------------------------------------------------------------------------------------------------------


def wrong_bounds(rounds, shift=0):
    """Counts in which the engine contradicts the bounds for all rays, at rays and parameters drawn at random.

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
    return AllRays(MOE_BLOCK, MUP.list_demands(MOE_BLOCK, Structure()), Structure())


def test_bounds_hold_on_every_ray():
    """The basis of clauses over rates and unknowns together; a planted monomial, too large by M, is seen."""
    assert wrong_bounds(10) == 0
    assert wrong_bounds(5, shift=1) > 10


def test_what_drops_nothing_never_drops_silently():
    """Too little work is an exception, not a coarser bound: on that the convexity of upper bounds rests."""
    algebra = form_algebra(MOE_BLOCK, Ray({"N": 1, "N_e": 1, "M": 1}))
    for rung in (Budget(Fraction(1, 2), max_nodes=3, keeps_all=True), Budget(Fraction(1, 2), max_nodes=3)):
        algebra.set_budget(rung)
        x = algebra.tensor("expert_out", "ibk", 0)
        y = algebra.contract(x, algebra.tensor("expert_in", "ika", 0), "iba")
        if rung.keeps_all:
            with pytest.raises(Exhausted):
                algebra.contract(y, algebra.rename_indices(y, "iba", "iab"), "i")


# --- existence ------------------------------------------------------------------------------------------------------


def test_mup_exists_on_a_whole_cell():
    """Negative controls: the formula of another cell, and one with one power changed. All cells:
    ``tests/measure/test_walls.py``."""
    assert "checked on the rays that span the cone" in answer("C exists").why
    p, rays = face(), [(1, 1, 0), (1, 0, 1), (1, 1, 1)]  # of C
    b, c = (known()[f"{name} exists"].scaling for name in "BC")
    assert decide_exists(p, c, Structure(), rays).verdict == "proved"
    assert "h1 ~ n^(1/2)" in decide_exists(p, b, Structure(), rays).why
    small = replace(c.tensors["router"], lr=Power.of({"N": -1}))
    wrong = decide_exists(p, replace(c, tensors={**c.tensors, "router": small}), Structure(), rays)
    assert wrong.verdict == "refuted" and "none of its monomials is Theta(1) on all rays of the cone" in wrong.why


def mssp_on_walls(rule):
    """The walls on which MSSP exists, and nowhere is it left out."""
    where = {str(claim.where) for name, claim in known("mssp", rule).items() if name.endswith("exists")}
    assert where == {"N_e + M = N", "N_e = N, M <= N", "N_e = N, M >= N"}
    for name in ("a exists", "b exists", "c exists"):
        answer(name, "mssp", rule)


# --- every ray ------------------------------------------------------------------------------------------------------


def test_the_cells_are_all_rays():
    """Negative controls: the cells of many experts begin at M = 2 N; or one cell is missing."""
    answer("cover")
    answer("cover, M fixed")
    sides = [known()[name].where.sides for name in ("A none", "B exists", "C exists", "D exists", "E exists")]
    assert decide_cover(face(), sides).verdict == "proved"
    double = Linear.of({"N": -2, "M": 1}, ">=")
    moved = [[double if str(s) == "M >= N" else s for s in x] for x in sides]
    assert decide_cover(face(), moved).verdict == "refuted"
    assert "no cone contains the ray N=1" in decide_cover(face(), sides[1:]).why


# --- uniqueness and impossibility -----------------------------------------------------------------------------------


def off_walls(*walls):
    return Region(tuple(Linear.wall(("N", "N_e", "M"), w).but("!=") for w in walls))


WALLS = (-1, 1, 0), (-1, 1, 1)
"""N_e = N and N_e + M = N."""


def test_no_mssp_off_the_walls_with_a_zero_router():
    """One of sixteen structures. Without the clauses of any desideratum of its core it is satisfiable (negative
    control), and so it is with one clause of which a monomial is missing."""
    found = decide_nowhere(MOE_BLOCK, MSSP, ZERO_ROUTER, off_walls(*WALLS))
    assert found.verdict == "proved" and found.core
    assert second_opinion(script(found.clauses, "", ())) == ["unsat"]
    for name in found.core:
        rest = tuple(c for c in found.clauses if c.label != name)
        assert second_opinion(script(rest, "", ())) == ["sat"], name


def test_what_is_not_proved_says_so():
    """Without most desiderata there are parameterizations: a ray and a point that the engine certifies."""
    demands = [d for d in MSSP.list_demands(MOE_BLOCK, ZERO_ROUTER) if d.kind == "bounded"]
    found = decide_nowhere(MOE_BLOCK, MSSP, ZERO_ROUTER, off_walls(*WALLS), demands=demands)
    assert found.verdict == "refuted" and "meets the desiderata on N=1" in found.why


# --- other networks, a fixed number of experts, other optimizers ------------------------------------------------------

TWO_WIDTHS = """
h1[a] = W1[a,x] data[x]
h2[k] = W2[k,a] h1[a]
f     = W3[k] h2[k]
"""


def own():
    """A dense MLP of two widths, which grow apart."""
    roles = {"W1": "input", "W2": "hidden", "W3": "readout"}
    return network("two-widths", TWO_WIDTHS, {"a": "N", "x": "D", "k": "N_e"}, roles)


@pytest.mark.parametrize(
    ("which", "rule", "where"),
    [
        ("mlp", "sgd", {"A exists": "all rays"}),
        ("bottleneck", "sgd", {"A none": "N_e < N", "B exists": "N_e >= N"}),
        ("bottleneck", "adam", {"A none": "N_e < N", "B exists": "N_e >= N"}),
    ],
)
def test_mup_of_the_dense_networks(which, rule, where):
    """Everything is decided: where muP exists it is unique, and no ray is left out."""
    found = known("mup", rule, which)
    assert {name: str(claim.where) for name, claim in found.items() if name in where} == where
    for name in found:
        answer(name, "mup", rule, which)


def test_mup_of_an_mlp_of_two_widths():
    """On all its rays, by one formula or two."""
    found = theorems("sgd", "mup", network=own())
    assert found.proved is True and second_opinion(found.scripts()) == ["unsat"] * found.scripts().count("(check-sat)")
    assert not any(x.name.endswith("none") for x in found.items)


def test_what_a_dense_network_has_not_is_refuted():
    """Negative controls: a formula beyond its wall, one with one power changed, a desideratum that is dropped."""
    on, claim = face(network="bottleneck"), known(network="bottleneck")["B exists"]
    assert decide_exists(on, claim.scaling, Structure(), [(1, 0), (1, 1)]).verdict == "refuted"
    readout = replace(claim.scaling.tensors["readout"], lr=Power.of({"N": -2}))
    wrong = replace(claim.scaling, tensors={**claim.scaling.tensors, "readout": readout})
    assert decide_exists(on, wrong, Structure(), [(0, 1), (1, 1)]).verdict == "refuted"
    net, inside = ARCHITECTURES["bottleneck"], Region(claim.where.sides)
    assert decide_nowhere(net, MUP, Structure(), inside, exclude_formula(on, wrong)).verdict == "refuted"
    demands = [d for d in MUP.list_demands(net, Structure()) if d.label != "mu-2: effective update dW3 h2 = Theta(1)"]
    assert len(demands) + 1 == len(MUP.list_demands(net, Structure()))
    assert (
        decide_nowhere(net, MUP, Structure(), inside, exclude_formula(on, claim.scaling), demands).verdict == "refuted"
    )


def test_a_covering_takes_each_inside_once():
    """The rest of all rays, and of another cone, beside a cone has an inside and none in common with it."""
    wall = Linear.wall(("N", "N_e"), (-1, 1))
    whole, above, below = (Cone(("N", "N_e"), sides) for sides in ((), (wall.but(">="),), (wall.but("<="),)))
    assert whole.without(above) == [below] and below.without(above) == [below] and above.without(whole) == []


def test_bounds_for_all_rays_do_not_count_layers():
    """So that on a deep network only existence is proved."""
    found = list_claims(face(network="deep-mlp"), ["A exists"])
    assert found["A exists"].decision.verdict == "proved"
    decision = found["A unique"].decision
    assert decision.verdict == "undecided" and "layers" in decision.why


FEW = ("B exists, K < M", "C exists, K < M", "D exists, K < M", "E exists, K < M")


def few_active(rule):
    """Whatever K < M does, the cells are the same, the sum has one over K, and all other powers are those at K = M."""
    found, same = list_claims(face(rule=rule), FEW), list_claims(face(rule=rule), ["cover"])
    assert set(found) == set(FEW)
    for name in FEW:
        claim, plain = found[name], same[name.removesuffix(", K < M")]
        assert claim.decision.verdict == "proved" and str(claim.where) == str(plain.where)
        assert claim.scaling.tensors == plain.scaling.tensors
        assert str(claim.scaling.multipliers["alpha"]) == "K" and str(plain.scaling.multipliers["alpha"]) == "M"


def test_a_formula_of_all_experts_fails_where_few_are_active():
    """With K = M a mean over all experts is right. The cells: ``tests/measure/test_walls.py``."""
    on = replace(face(), routed=True)
    formula = list_claims(face(), ["cover"])["B exists"].scaling
    rays = [(0, 0, 1), (1, 0, 1), (1, 1, 1)]
    assert decide_exists(face(), formula, Structure(), rays).verdict == "proved"
    decision = decide_exists(on, formula, Structure(), [(*x, k) for x in rays for k in (0, 1)])
    assert decision.verdict == "refuted" and "the change of h1 is Theta(1)" in decision.why


def test_mssp_of_a_fixed_number_of_experts():
    """MSSP exists where N_e = N, with a zero router, is unique there, and there is none elsewhere."""
    found = list_claims(face("mssp"), ["a exists, M fixed"])
    assert {str(claim.where) for name, claim in found.items() if "exists" in name} == {"N_e = N"}
    for name in ("a exists, M fixed", "a unique, M fixed", "none: zero router, M fixed"):
        decision = found[name].decision
        assert decision.verdict == "proved", (name, decision.why)
        if decision.clauses:
            assert second_opinion(script(decision.clauses, "", ())) == ["unsat"]
    everywhere = Region((), frozenset({"M"}))
    assert decide_nowhere(MOE_BLOCK, MSSP, ZERO_ROUTER, everywhere).verdict == "refuted"  # negative control


@pytest.mark.parametrize("rule", ["signsgd", "muon"])
def test_mup_exists_without_an_epsilon(rule):
    """On both sides of N_e = N; uniqueness is open, and the reason is the answer."""
    found = known("mup", rule, "bottleneck")
    assert {str(claim.where) for name, claim in found.items() if "exists" in name} == {"N_e <= N", "N_e >= N"}
    for name in ("A exists", "B exists"):
        answer(name, "mup", rule, "bottleneck")
    left = found["A unique"].decision
    assert left.verdict == "undecided" and f"{rule} divides by unknown sizes" in left.why


def test_a_divisor_of_two_sizes_proves_nothing():
    """Negative controls: formulas on the other side of the wall, and a readout whose first change overtakes it."""
    on, found = face(rule="signsgd", network="bottleneck"), known("mup", "signsgd", "bottleneck")
    for name, rays in (("A exists", [(0, 1), (1, 1)]), ("B exists", [(1, 0), (1, 1)])):
        assert decide_exists(on, found[name].scaling, Structure(), rays).verdict != "proved"
    slow = {r: replace(t, lr=t.lr * Power.of({"N": -5})) for r, t in found["A exists"].scaling.tensors.items()}
    slow["readout"] = replace(slow["readout"], init_std=Power.of({"N": -6, "N_e": 2}))  # its change is of size N^-5
    decision = decide_exists(on, replace(found["A exists"].scaling, tensors=slow), Structure(), [(1, 0), (1, 1)])
    assert decision.verdict == "undecided" and "is not one power of the axes on the cone" in decision.why


# --- command line ---------------------------------------------------------------------------------------------------

run = partial(scalecalc, "rays", "--prove", "--parameterization", "mup", "--optimizer", "sgd")


def test_theorems_are_printed_and_written(tmp_path):
    file = tmp_path / "cover.smt2"
    result = run("--only", "cover", "--smtlib", str(file), "--format", "json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["proved"] is True and data["steps"] == {"O(1)": 3, "Theta(1)": 2}
    assert file.read_text().startswith("; cover: where M grows, every ray is in one of these cones (muP, sgd,")
    assert second_opinion(file.read_text()) == ["unsat"]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--architecture", "swiglu"), "swiglu divides or gates by unknown sizes"),
        (("--architecture", "moe-rmsnorm"), "moe-rmsnorm divides or gates by unknown sizes"),
        (("--network", "stops.toml"), "stops stops gradients (h1_3; derive --without h1_3 leaves it out); proofs are"),
    ],
)
def test_where_proofs_do_not_reach_the_reason_is_the_answer(args, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stops.toml").write_text(
        'axes = { a = "N", b = "N", x = "D" }\nequations = """\nh0[a] = W1[a,x] data[x]\n'
        'h1[b] = W[b,a] h0[a] + V[b,a] stopped(h0[a])\nf = W2[a] h1[a]\n"""\n'
    )
    result = run(*args)
    assert result.exit_code == 3 and f"UNDECIDED: {reason}" in result.output
    data = json.loads(run(*args, "--format", "json").stdout)
    assert data["proved"] is None and data["why"].startswith(reason) and data["theorems"] == []
