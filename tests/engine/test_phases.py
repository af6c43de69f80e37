"""The map of rays: exact cells and walls, formulas that hold on whole cones, regimes on walls, sound pictures."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import derive
from scaling_algebra.all_rays import covering
from scaling_algebra.all_rays import phases as maps
from scaling_algebra.all_rays.families import load_families
from scaling_algebra.all_rays.phases import PLANE_AXES, compute_map, phases
from scaling_algebra.all_rays.picture import phases_svg
from scaling_algebra.all_rays.presentation import describe_status
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.cone import Cone, bounding
from scaling_algebra.linear.linear import Linear
from scaling_algebra.page import maps as kept_maps
from scaling_algebra.solver.cones import reach
from scaling_algebra.solver.convexity import Looks, cone_holds
from scaling_algebra.solver.newton import find_aligned_start, iterate_newton
from scaling_algebra.solver.points import Places
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.tables.commands.table import EMITTED

from ..shared import scalecalc

pytestmark = pytest.mark.slow


HALF = Fraction(1, 2)
MUP, MSSP = PARAMETERIZATIONS["mup"], PARAMETERIZATIONS["mssp"]


def ray(n, n_e, m):
    return Ray({"N": n, "N_e": n_e, "M": m})


CONES = {
    "B": [ray(0, 0, 1), ray(1, 0, 1), ray(1, 1, 1)],
    "C": [ray(1, 0, 1), ray(1, 1, 0), ray(1, 1, 1)],
    "D": [ray(0, 1, 0), ray(1, 1, 0), ray(1, 1, 1)],
    "E": [ray(0, 1, 0), ray(0, 0, 1), ray(1, 1, 1)],
}
"""Spanning rays of the cones of M + N_e >= N. B: N_e <= N <= M; C: M, N_e <= N; D: M <= N <= N_e; E: N <= M, N_e."""


@pytest.fixture(scope="module")
def mup():
    return phases("sgd", "mup")


@pytest.mark.parametrize("rule", ["sgd"])
def test_five_cells_and_three_walls_under_mup(rule):
    """Without an epsilon, too, where every normaliser is one power on a cell, so that sizes are convex: muon,
    ``tests/measure/test_whole_blocks.py``."""
    p = phases(rule, "mup")
    assert {str(w) for w in p.walls} == {"N_e + M = N", "M = N", "N_e = N"}
    assert [c.name for c in p.cells] == ["A", "B", "C", "D", "E"]
    assert [c.holds for c in p.cells] == [False, True, True, True, True] and all(e.holds for e in p.edges)
    assert p.cells[0].scaling is None and "N_e + M <= N" in p.cells[0].inequalities  # where experts are few and narrow
    area = sum(
        abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(c.corners, c.corners[1:] + c.corners[:1], strict=True)))
        for c in p.cells
    )
    assert area / 2 == 4  # the cells fill the square, exactly


def wrong_router(solve, where=lambda ray: True):
    """The solver, but for the router's init std, which is 1/N on some rays."""

    def solved(at, rule):
        found = solve(at, rule)
        t = found.scaling.tensors["router"]
        planted = {**found.scaling.tensors, "router": replace(t, init_std=Power.of({"N": -1}))}
        return replace(found, scaling=replace(found.scaling, tensors=planted)) if where(at.ray) else found

    return solved


def test_a_wrong_formula_is_not_proved(monkeypatch):
    """Negative control: where the solver is wrong the map says UNDECIDED, and only there."""
    monkeypatch.setattr(covering, "solve", wrong_router(covering.solve, lambda ray: ray["N_e"] < ray["N"] < ray["M"]))
    monkeypatch.setattr(maps, "cover_rays", covering.cover_rays.__wrapped__)
    p = compute_map(MUP, optimizer("sgd"))
    assert {str(w) for w in p.walls} == {"N_e + M = N", "M = N", "N_e = N"}
    wrong = [c for c in p.cells if c.scaling is not None and not c.holds]
    assert [c.inequalities for c in wrong] == [("N_e + M >= N", "M >= N", "N_e <= N")]
    assert describe_status(wrong[0]).startswith("UNDECIDED: only checked at N=1,") and str(p).count("UNDECIDED") == 1


@pytest.mark.parametrize(("rule", "name"), [("sgd", "mup"), ("adam", "mup")])
def test_what_is_emitted_and_what_the_page_keeps_is_todays_map(rule, name, monkeypatch):
    """Pictures of `table --all`, and the maps of the page; those of MSSP: `tests/measure/test_maps.py` and
    `tests/measure/test_cones.py`."""
    p = phases(rule, name)
    monkeypatch.setattr(kept_maps, "phases", lambda *_: p)
    assert json.loads(json.dumps(kept_maps.draw_map(rule, name))) == kept_maps.load_maps()[f"{rule}-{name}"]
    if rule == "sgd":
        assert (EMITTED / f"map_{name}_sgd.svg").read_text(encoding="utf-8") == phases_svg(p) + "\n"


def test_a_wrong_wall_is_seen(monkeypatch):
    """Negative control: a cone without one of its walls holds rays on which a demand fails, and nothing is proved."""
    reach = covering.reach

    def wider(*args):
        found = reach(*args)
        kept = tuple(side for side in found.sides if str(side) != "N_e + M >= N")
        return Cone(found.axes, kept)

    monkeypatch.setattr(covering, "reach", wider)
    monkeypatch.setattr(maps, "cover_rays", covering.cover_rays.__wrapped__)
    cells = compute_map(MUP, optimizer("sgd")).cells
    assert not any(c.holds for c in cells if {"M <= N", "N_e <= N"} <= set(c.inequalities))


def test_a_second_formula_on_a_cell_is_said(monkeypatch):
    """Negative control: a cone that is taken for every ray lies over the cells of other formulas."""
    pieces = covering.cover_rays(covering.Face(MOE_BLOCK, optimizer("sgd"), MUP))
    wide = [replace(p, cone=Cone(p.cone.axes)) if p.name == "E" else p for p in pieces]
    monkeypatch.setattr(maps, "cover_rays", lambda face: wide)
    monkeypatch.setattr(maps, "_is_proved", lambda *_: True)
    p = compute_map(MUP, optimizer("sgd"))
    assert sum(len(c.also) for c in p.cells) == 3 and str(p).count("; the formula of cell ") == 3


def test_the_map_and_the_numbers_on_a_ray_name_each_other(mup):
    told = str(mup).splitlines()[-1].split(": scalecalc ")
    assert told[0].strip() == "cell B" and "--optimizer sgd" in told[1]
    said = scalecalc(*told[1].split()).output
    assert "(scalecalc rays --parameterization mup --optimizer sgd): cell B: N_e + M >= N, M >= N, N_e <= N (" in said
    assert "on the map" not in scalecalc("derive", "--regime", "I", "--optimizer", "sgd").output


def test_regimes_lie_on_walls(mup):
    """Each regime of the MSSP paper is a corner of the map: two walls meet there."""
    walls = {name: {str(w) for w in mup.walls_of(r)} for name, r in REGIMES.items()}
    assert walls == {"I": {"N_e + M = N", "N_e = N"}, "II": {"N_e + M = N", "M = N"}, "III": {"M = N", "N_e = N"}}


def spectral(role, r):
    """min(1, sqrt(rows / columns)) / sqrt(columns) of the operator of all experts stacked, as an exponent."""
    n, n_e, m = (r[axis] for axis in PLANE_AXES)
    columns, rows = {
        "input": (0, n),
        "router": (n, m),
        "expert_in": (n, m + n_e),
        "expert_out": (n_e, m + n),
        "readout": (n, 0),
    }[role]
    return -Fraction(columns) / 2 + min(Fraction(0), rows - columns) / 2


def test_one_learning_rate_formula_and_the_spectral_condition(mup):
    """Where M + N_e >= N the learning rates are one formula. The init std is the spectral condition of the stacked
    operator, but for expert_out, where it is that of one expert: min(1, sqrt(N / N_e)) / sqrt(N_e)."""
    for cell in (c for c in mup.cells if c.scaling is not None):
        lr = {role: str(t.lr) for role, t in cell.scaling.tensors.items()}
        unified = {
            "input": "N",
            "router": "M N^-1",
            "expert_in": "N_e M N^-1",
            "expert_out": "N M N_e^-1",
            "readout": "N^-1",
        }
        assert lr == unified
        inside = [sum(c[k] for c in cell.corners) / len(cell.corners) for k in (0, 1)]
        r = ray(1, *inside)
        for role, t in cell.scaling.tensors.items():
            law = spectral(role, r)
            if role == "expert_out":
                law = -r["N_e"] / 2 + min(Fraction(0), r["N"] - r["N_e"]) / 2
            assert t.init_std.on(r) == law, (cell.name, role)


def test_the_cone_of_a_formula_is_its_cell():
    """Found by cutting, it is the cell of the map, and the one above (existence: ``test_theorems.py``)."""
    for name in ("C", "E"):
        cell = next(c for c in phases("adam", "mup").cells if c.name == name)
        assert cone_holds(cell.scaling, optimizer("adam"), MUP, CONES[name], Structure()) is None
        found = reach(cell.scaling, optimizer("adam"), MUP, Structure(), cell.ray, Looks())
        assert set(found.inequalities) <= set(cell.inequalities)
        assert set(found.rays) == {tuple(r[axis] for axis in PLANE_AXES) for r in CONES[name]}


@pytest.mark.parametrize(
    ("ray", "bounds"),
    [("N=1,N_e=2,M=0", {"M = 0", "N_e >= N"}), ("N=1,N_e=0,M=2", {"N_e = 0", "M >= N"})],
)
def test_a_flat_cone_keeps_its_ends(ray, bounds):
    """A cone of two rays: the plane it lies in, and where it ends."""
    d = derive(None, "sgd", "mup", ray=ray)
    assert set(reach(d.scaling, d.optimizer, MUP, Structure(), d.ray, Looks()).inequalities) == bounds


def test_what_bounds_a_cone():
    """Of a polygon the walls along its sides, of a ray all that it lies on; a ray beyond any of them is not in it."""
    walls = [Linear.wall(PLANE_AXES, x) for x in ((-1, 0, 1), (-1, 1, 0), (-1, 1, 1))]
    at = [tuple(r[axis] for axis in PLANE_AXES) for r in CONES["C"]]
    assert [str(w) for w in bounding(walls, PLANE_AXES, at)] == ["M = N", "N_e = N", "N_e + M = N"]
    assert [str(w) for w in bounding(walls, PLANE_AXES, at[2:])] == ["M = N", "N_e = N"]
    sides = [w.facing(size) for w, size in zip(walls, (-1, -1, 1), strict=True)]
    whole, one = Cone(PLANE_AXES, tuple(sides)), Cone(PLANE_AXES, tuple(walls[:2]))
    assert set(whole.rays) == set(at) and one.rays == ((1, 1, 1),)
    assert whole.contains((4, 3, 2)) and not whole.contains((4, 2, 1)) and not whole.contains((4, 3, 5))
    assert one.contains((2, 2, 2)) and not one.contains((4, 3, 2))
    assert whole.inequalities == ("M <= N", "N_e <= N", "N_e + M >= N") and one.inequalities == ("M = N", "N_e = N")


def test_epsilon_must_be_the_gradient_on_the_whole_cone():
    """Negative control of mu-3: every learning rate and epsilon too large by N; updates are the same."""
    d = derive(None, "adam", "mup", ray="N=1,N_e=5/4,M=3/2")
    more = Power.of({"N": 1})
    wrong = {r: TensorScaling(t.init_std, t.lr * more, t.eps * more) for r, t in d.scaling.tensors.items()}
    found = cone_holds(Scaling(wrong, d.scaling.multipliers), d.optimizer, MUP, CONES["E"], Structure())
    assert "mu-3" in str(found)


def test_a_formula_fails_outside_its_cone(mup):
    """Negative controls: B of another optimizer and of MSSP, and a network whose sizes are not convex. Beyond a wall,
    and with one power changed: ``test_theorems.py``."""
    cells = {c.name: c.scaling for c in mup.cells}
    with pytest.raises(UsageError, match="not convex"):
        cone_holds(cells["B"], optimizer("sgd"), MUP, CONES["B"], Structure(), network=ARCHITECTURES["swiglu"])
    assert "but psi ~ n^(1)" in str(cone_holds(cells["B"], optimizer("signsgd"), MUP, CONES["B"], Structure()))
    no_mssp = cone_holds(cells["B"], optimizer("sgd"), MSSP, CONES["B"], Structure())
    assert "MSSP-3 forward: h3.A1 of the aggregate is Theta(1), but none of its monomials is Theta(1)" in str(no_mssp)


def test_a_gradient_above_its_epsilon_is_not_a_proof():
    """Negative control: Adam's formula of B with the readout's epsilon below its gradient."""
    cell = next(c.scaling for c in phases("adam", "mup").cells if c.name == "B")
    small = TensorScaling(*(getattr(cell.tensors["readout"], x) for x in ("init_std", "lr")), Power.of({"N": -1}))
    wrong = Scaling({**cell.tensors, "readout": small}, cell.multipliers)
    assert "exceeds its epsilon" in str(cone_holds(wrong, optimizer("adam"), MUP, CONES["B"], Structure()))


def test_the_solution_does_not_depend_on_the_start():
    """Every start that converges ends at the same exponents."""
    at = Places(MOE_BLOCK, ray(1, "3/4", "1/2"), optimizer("sgd"))
    demands = MUP.list_demands(MOE_BLOCK, Structure())
    reached = []
    for start in (find_aligned_start(at), {k: v + Fraction(1, 5) for k, v in find_aligned_start(at).items()}):
        look, _ = iterate_newton(at, demands, Structure(), start)
        reached.append((look.point.b, look.point.c, look.point.alpha))
    assert reached[0] == reached[1]


def test_families_are_placed_where_their_shapes_say():
    rates = {f.name: f.rates for f in load_families()}
    assert rates["Qwen3 MoE"]["N_e"] == 1 and rates["Mixtral"]["M"] == 0 and rates["GPT-OSS"] == {}
    assert 1 < rates["DeepSeek"]["M"] < 1.5
    assert all(f.source for f in load_families())
