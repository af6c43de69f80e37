"""Derivation: the twelve configurations, the checks behind them, and negative controls."""

import json
from fractions import Fraction

import pytest

from scaling_algebra import REGIMES, Infeasible, Ray, derive, network, signals
from scaling_algebra.linear.linear import solve_linear
from scaling_algebra.solver.demands import violation
from scaling_algebra.spec.desiderata import Structure, mssp_demands
from scaling_algebra.spec.glossary import DESIDERATA
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.parameterizations import DERIVED
from scaling_algebra.spec.powers import Power

from .scenarios import HALF, N, changed, look

ALIKE = {"momentum": "sgd", "rmsprop": "adam", "adamw": "adam", "lion": "signsgd"} | {
    "shampoo": "muon",
    "shampoo-blocks": "signsgd",
}
"""Optimizers that scale as another one: init and learning rates are the same."""
ELSEWHERE = {"adafactor", "signsgd", "adamh", "muonh"}
"""Optimizers that stand in the suite with the largest regime alone."""
CONFIGURATIONS = [
    (r, o, p)
    for r in REGIMES
    for o in OPTIMIZERS
    if o not in ALIKE and (r == "III" or o not in ELSEWHERE)
    for p in DERIVED
    if not (OPTIMIZERS[o].keeps_norm and p != "mup")  # a readout that starts at zero stays there
]


def demands_of(derivation):
    """The demands a derivation must meet, with the structure it chose."""
    exempt = {"h3i"} if any("h3i free" in line for line in derivation.structure[:1]) else set()
    zero = {role for role, s in derivation.scaling.tensors.items() if s.init_std is None}
    structure = Structure(frozenset(zero), frozenset(derivation.scaling.tied), frozenset(exempt))
    return derivation.configuration.parameterization.list_demands(MOE_BLOCK, structure)


def failures(derivation, scaling, certified=True):
    run = look(derivation, scaling)
    return (f for demand in demands_of(derivation) if (f := violation(demand, run, certified)))


@pytest.mark.parametrize(("regime", "rule", "name"), CONFIGURATIONS)
def test_every_demand_holds_and_every_exponent_matters(regime, rule, name):
    """The solution meets all demands; moving any single lr or init std by n^(1/2) breaks one (negative control)."""
    d = derive(regime, rule, name)
    assert list(failures(d, d.scaling)) == []
    for role, s in d.scaling.tensors.items():
        for field in ("lr", "init_std") if s.init_std is not None else ("lr",):
            for bump in (HALF, -HALF):
                wrong = changed(d.scaling, role, **{field: getattr(s, field) * N(bump)})
                assert next(failures(d, wrong, certified=False), None), (role, field, bump)


def test_structures_come_from_desiderata():
    """Zero router in I, the exception in II, both expert tensors tied in III; the others are rejected with a reason."""
    assert derive("I", "sgd", "mssp").scaling.tensors["router"].init_std is None
    assert "h3i free" in derive("II", "adam", "mssp").structure[0]
    assert derive("II", "adam", "mssp").scaling.tied == ()
    three = derive("III", "adam", "mssp")
    assert three.scaling.tied == ("expert_in", "expert_out")
    assert any(line.startswith("rejected: tied expert_in:") for line in three.structure)
    assert any(line.startswith("rejected: tied expert_out:") for line in three.structure)
    for regime in REGIMES:
        assert derive(regime, "sgd", "mup").structure == ()


def test_json_contract():
    data = json.loads(json.dumps(derive("I", "sgd", "mssp").as_json()))
    assert set(data) >= {"regime", "ray", "optimizer", "parameterization", "alpha", "tied", "unique", "tensors"}
    assert data["tensors"]["router"]["b"] == "zero" and data["tensors"]["router"]["init_std"] is None
    assert data["tensors"]["router"]["d"] is None and data["tensors"]["router"]["eps"] is None
    assert data["tensors"]["expert_out"]["init_std"] == {"N_e": "-1/2"}
    assert data["unique"] is None
    table = json.loads(json.dumps(signals("II", "sgd", "mup").as_json()))
    assert table["steps"] == [0, 1, 2]
    assert table["quantities"]["h3.A1"] == ["-1/2", "-1/2", "-1/2"]
    assert table["quantities"]["dW1"][0] is None


@pytest.mark.parametrize(
    ("regime", "rule", "name", "readout"),
    [*((*c, "maximal") for c in CONFIGURATIONS), *((*c, "zero") for c in CONFIGURATIONS if c[1] == "sgd")],
)
def test_every_signal_of_every_configuration_is_certified(regime, rule, name, readout):
    found = signals(regime, rule, name, readout_init=readout)
    assert all(a.decided for row in found.quantities.values() for a in row)
    assert all(a.exponent is None for a in (found.quantities["f.change"][0], found.quantities["dW2"][0]))
    zero = found.quantities["f"][0].exponent is None
    assert zero == (readout == "zero")


def test_totals_are_the_largest_of_their_parts():
    q = signals("II", "adam", "mup").quantities
    for total in ("psi", "h2", "h3i", "h3", "f"):
        for t in range(3):
            parts = [q[f"{total}.{p}"][t].exponent for p in ("init", "propagating", "effective", "cross")]
            assert q[total][t].exponent == max(x for x in parts if x is not None)


def test_other_rays():
    """One formula for the learning rates off the regimes, and a plain answer where MSSP does not exist."""
    d = derive(ray="N=1,N_e=1/2,M=1/2", optimizer="sgd", parameterization="mup")
    assert str(d.scaling.tensors["expert_out"].lr) == "N M N_e^-1"
    with pytest.raises(Infeasible, match="found no MSSP"):
        derive(ray="N=1,N_e=0,M=1/2", optimizer="sgd", parameterization="mssp")


def test_exponents_are_exact():
    with pytest.raises(TypeError):
        Power.of({"N": 0.5})
    with pytest.raises(TypeError):
        Ray({"N": 1.0, "N_e": 1, "M": 1})


def test_solve_linear():
    """x + y = 3, x - y = 1; a free direction is told apart from a solution."""
    rows = [({"x": 1, "y": 1}, Fraction(3)), ({"x": 1, "y": -1}, Fraction(1))]
    assert solve_linear(rows, ["x", "y"]) == {"x": 2, "y": 1}
    assert solve_linear(rows[:1], ["x", "y"]) is None
    assert optimizer("ADAM").name == "adam"


@pytest.mark.parametrize(("regime", "name"), [*((r, "mup") for r in REGIMES), ("III", "mssp")])
@pytest.mark.parametrize(("rule", "same"), ALIKE.items())
def test_optimizers_that_scale_alike(regime, name, rule, same):
    """Momentum adds past gradients, memory changes no normaliser at these points."""
    one, other = derive(regime, rule, name), derive(regime, same, name)
    for role, s in one.scaling.tensors.items():
        t = other.scaling.tensors[role]
        assert (s.init_std, s.lr) == (t.init_std, t.lr)
    assert one.structure[:1] == other.structure[:1]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", DERIVED)
def test_muon_has_the_published_spectral_rule(regime, name):
    """Learning rate sqrt(fan_out / fan_in) for a step of operator norm lr (Yang, Simon and Bernstein 2023; modula)."""
    d = derive(regime, "muon", name)
    for role, tensor in MOE_BLOCK.tensors.items():
        axes = [[MOE_BLOCK.axes[x] for x in side] for side in (tensor.fan_out, tensor.fan_in)]
        out, into = (sum((d.ray[a] for a in side if a != "D"), Fraction(0)) for side in axes)
        assert d.scaling.tensors[role].lr.on(d.ray) == (out - into) / 2


def test_every_desideratum_is_in_the_glossary():
    free = Structure(exempt=frozenset({"h3i"}))
    demanded = {d.name for s in (Structure(), free) for d in mssp_demands(MOE_BLOCK, s)}
    assert demanded == set(DESIDERATA)


def test_a_sum_of_signals_may_weigh_experts():
    """It has no learned part of its own; before, that ended in an internal error."""
    text = """h1[a] = W1[a,x] data[x]
psi[i] = Q[i,a] h1[a]
chi[i] = R[i,a] h1[a]
phi[i] = psi[i] + chi[i]
h3i[i,b] = W3[i,b,a] h1[a]
h3[b] = alpha phi[i] h3i[i,b]
f = W4[b] h3[b]"""
    found = derive("III", "sgd", "mup", network=network("summed", text, MOE_BLOCK.axes)).scaling.tensors
    assert found["Q"] == found["R"] and str(found["Q"].lr) == "M N^-1"
