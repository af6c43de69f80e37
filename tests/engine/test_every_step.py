"""What holds after any number of updates: bounds that one more update keeps, and what must break them."""

from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import derive
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.proofs.every_step import open_later
from scaling_algebra.proofs.prover import prove
from scaling_algebra.spec.desiderata import HORIZON, Structure
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS

FREE = {("mssp", "II"): frozenset({"h3i"})}
NETWORKS = [
    *((name, "N=1") for name in ("mlp", "loop", "tied-embedding")),
    ("bottleneck", "N=1,N_e=1"),
    *((name, "N=1,N_e=1,M=0") for name in ("stack2", "shared-expert")),
    *((name, "N=1,N_e=0,M=1") for name in ("residual", "dense-moe")),
    ("deep-mlp", "N=1,L=1"),
    ("deep-moe", "N=1,N_e=1,M=1,L=1"),
]
CASES = [
    *((o, p, "moe", r) for o in ("sgd", "adam") for p in ("mup", "mssp") for r in ("I", "II", "III")),
    *(("sgd", "mup", "moe", f"N=1,N_e={x},M={m}") for x, m in (("1/2", 1), ("1/2", "1/2"), ("3/2", 1), ("3/2", "1/2"))),
    ("sgd", "mup", "moe", "N=1,N_e=1/2,M=2"),
    *(("adam", "mup", *network) for network in NETWORKS),
]


def looked(d, point=None):
    """The engine at a derived point or another one, and the demands under the structure that was derived."""
    c, point = d.configuration, point or d.scaling.point(d.ray)
    zero = frozenset(r for r, b in point.b.items() if b is None)
    structure = Structure(zero, point.tied, FREE.get((c.parameterization.name, d.ray.name), frozenset()))
    demands = PARAMETERIZATIONS[c.parameterization.name].list_demands(d.network, structure)
    return Analysis(d.ray, point, d.optimizer, d.network), demands


def examined(d, point=None):
    return open_later(*looked(d, point), HORIZON)


@pytest.mark.parametrize("optimizer, parameterization, architecture, ray", CASES)
def test_every_demand_holds_at_every_step(optimizer, parameterization, architecture, ray):
    where = {"ray": ray} if "=" in ray else {"regime": ray}
    found = examined(derive(optimizer=optimizer, parameterization=parameterization, architecture=architecture, **where))
    assert found == ()


@pytest.mark.parametrize("parameterization, regime", [("mup", "III"), ("mssp", "II")])
def test_no_size_of_the_first_steps_exceeds_its_bound(parameterization, regime):
    d = derive(regime, "sgd", parameterization)
    look, _ = looked(d)
    seen = 0
    for name in look.table:
        bound = look.upper(name)
        for t in (1, 2, 3) if bound is not None else ():
            size = look(name, t).size
            assert size is None or size <= bound, (name, t)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("role", ["input", "router", "expert_in", "expert_out", "readout"])
@pytest.mark.parametrize("what", ["b", "c"])
def test_a_planted_larger_value_is_not_kept(role, what):
    """The negative control: any init std or learning rate that is larger by n^(1/4)."""
    d = derive("III", "sgd", "mup")
    point = d.scaling.point(d.ray)
    larger = {**getattr(point, what), role: getattr(point, what)[role] - Fraction(1, 4)}
    found = examined(d, replace(point, **{what: larger}))
    assert found


def test_standard_parameterization_is_not_kept():
    d = derive("I", "sgd", "mup")
    assert examined(d, derive("I", "sgd", "sp").scaling.point(d.ray))


def test_beyond_the_wall_the_formula_of_the_next_cell_is_not_kept():
    """M + N_e < N, where no muP exists."""
    inside = derive(ray="N=1,N_e=1/2,M=1/2", optimizer="sgd", parameterization="mup")
    outside = derive(ray="N=1,N_e=1/4,M=1/2", optimizer="sgd", parameterization="sp")
    _, demands = looked(inside)
    look = Analysis(outside.ray, inside.scaling.point(outside.ray), inside.optimizer, inside.network)
    assert open_later(look, demands, HORIZON)


def test_what_takes_too_much_work_is_open(monkeypatch):
    def exhausted(*_):
        raise Exhausted

    derivation = derive("III", "sgd", "mup")
    monkeypatch.setattr(Trajectory, "gate_change", exhausted)
    found = examined(derivation)
    assert "undecided" in found[0]


def test_a_proof_says_it():
    proof = prove("III", "sgd", "mup")
    assert proof.open_later == ()
    assert proof.as_json()["every_step"] == {"holds": True, "open": []}
    assert "after any number of updates: every desideratum holds" in str(proof)
    assert prove("II", "sgd", "mup", readout_init="zero").as_json()["every_step"] is None
