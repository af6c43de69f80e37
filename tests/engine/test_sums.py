"""Sums over experts of any network: their pieces, MSSP, and the readouts that the equations show."""

from fractions import Fraction

import pytest

from scaling_algebra import derive
from scaling_algebra.errors import UsageError
from scaling_algebra.solver import search
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.points import Places
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Structure, list_interventions, mssp_demands
from scaling_algebra.spec.level import Level, OpenDemand
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.networks.roles import list_gradients, readouts
from scaling_algebra.spec.networks.sums import experts

from .scenarios import network

AXES = {"a": "N", "b": "N", "i": "M", "k": "N_e", "x": "D"}
BLOCK = """h1[a]    = W1[a,x] data[x]
psi[i]   = Q[i,a] h1[a]
phi[i]   = gate(psi[i])
h2[i,k]  = W2[i,k,a] h1[a]
h3i[i,b] = W3[i,b,k] h2[i,k]
h3[b]    = alpha phi[i] h3i[i,b]
"""
BIASED = BLOCK.replace("W3[i,b,k] h2[i,k]", "W3[i,b,k] h2[i,k] + B[i,b] data[x]").replace("data[x]\nh3", "data[x]\nh3")
INSIDE = (
    BLOCK.replace("W3[i,b,k] h2[i,k]", "W3[i,b,k] w[i,k]")
    .replace("alpha phi[i]", "alpha")
    .replace("h3i[i", "w[i,k]   = phi[i] h2[i,k]\nh3i[i", 1)
)


def test_the_pieces_of_experts():
    assert experts(MOE_BLOCK)[0].pieces == {"A1": "", "A2.1": "h1", "A2.2": "expert_in", "A3": "expert_out"}
    for name, read in (("swiglu", "h1"), ("mixtral", "n2"), ("qwen3-moe", "n2"), ("deepseek-v3", "n2")):
        (e,) = experts(ARCHITECTURES[name])
        pieces = {"A1": "", "A2.1": read, "A2.2": "expert_gate", "A2.3": "expert_in", "A3": "expert_out"}
        assert (e.pieces, e.routers, e.last) == (pieces, ("router",), ("h3i",)), name


def test_biases_and_gates_inside_experts():
    (e,) = experts(network("biased", BIASED + "f = W4[b] h3[b]", AXES))
    assert e.outer == ("W3", "B") and set(e.pieces) == {"A1", "A2.1", "A2.2", "A3.1", "A3.2"}
    assert "h3i" in e.last and len(e.last) == 3
    (e,) = experts(network("inside", INSIDE + "f = W4[b] h3[b]", AXES))
    assert (e.gates, e.routers, e.tensors) == (("phi",), ("Q",), ("W2", "W3"))


def test_gradients_below_a_norm_are_split_by_the_tensors_of_the_experts():
    parts = {a.name: list(a.parts) for a in list_gradients(ARCHITECTURES["mixtral"])}
    assert parts["g2"] == parts["gphi"] == ["init", "update"]
    assert parts["gn2.w"] == parts["gn2.router"] == ["init-init", "init-update", "update-init", "update-update"]
    demanded = {q for d in mssp_demands(ARCHITECTURES["mixtral"], Structure()) for q in d.quantities}
    assert {"h3.A2.2", "g2.update", "gn2.w.init-init", "gn2.m.update-init", "psi.propagating.w"} <= demanded


def test_interventions_are_for_tensors_of_experts():
    assert [(x.field, *x.names) for x in list_interventions(ARCHITECTURES["deepseek-v3"])] == [
        *(("zero", "router"), ("exempt", "h3i")),
        *(("tied", role) for role in ("expert_gate", "expert_in", "expert_out")),
    ]


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_mssp_of_gated_experts_of_fixed_width(rule):
    d, mup = derive("II", rule, "mssp", architecture="swiglu"), derive("II", rule, architecture="swiglu")
    assert d.structure[0] == "chosen: h3i free before aggregation"
    assert str(d["expert_out"].init_std) == "M^(1/2)" and d["readout"].init_std is None
    assert all(d[role].lr == mup[role].lr for role in d)
    assert [role for role in d if d[role].init_std != mup[role].init_std] == ["expert_out", "readout"]
    mine = derive("II", rule, "mssp").analysis()
    assert d.analysis()("h3.A2.2", 2).exponent == mine("h3.A2.2", 2).exponent == Fraction(0)


def test_the_readout_is_found_from_the_equations():
    mine = network("mine", BLOCK + "f = W4[b] h3[b]", AXES)
    assert readouts(mine) == ("W4",) and readouts(MOE_BLOCK) == ("readout",)
    names = dict(zip(mine.tensors, MOE_BLOCK.tensors, strict=True))
    for where in ({"readout_init": "zero"}, {"parameterization": "mssp"}):
        own, block = derive("II", "adam", network=mine, **where), derive("II", "adam", **where)
        assert {names[role]: own[role] for role in own} == dict(block.tensors)
    assert "readout" not in str(Configuration.of("II", network=mine, given={"W4.init": 0}))
    assert readouts(mine.with_frozen({"W4"})) == () == readouts(ARCHITECTURES["tied-embedding"])
    with pytest.raises(UsageError, match="has no readout"):
        derive("I", architecture="tied-embedding", readout_init="zero")


def test_structures_that_do_with_as_few_interventions_are_named(monkeypatch):
    asked = Configuration.of("II", "adam", "mssp", architecture="mixtral")
    base = asked.parameterization.base_structure(asked.network, asked.readout_init)
    doubts = {"exempt": 1, "tied": 2}

    def judged(at, demands, structure):
        if structure == base:
            raise Infeasible("fails")
        left = doubts["exempt" if structure.exempt else "tied"] * (OpenDemand("", "h", 1),)
        return search.Solution(None, structure, {}, level=Level(left))

    monkeypatch.setattr(search, "judge_law", judged)
    found = search.solve(Places(asked.network, asked.ray, asked.optimizer), asked.parameterization, base)
    assert found.structure.exempt and found.others and not any(x.exempt for x in found.others)
    assert all(len(x.tied) == 1 or x.zero != base.zero for x in found.others) and len(found.rejected) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("regime", "chosen"), [("II", {"exempt": {"h3i"}})])
def test_mssp_of_a_whole_layer_intervenes_as_for_its_experts(regime, chosen, optimizer, monkeypatch, layer="mixtral"):
    """What is smaller is refuted by a bound on the first piece, or left out where a piece is undecided; descent, of
    whose pieces some stay undecided, has the structure of Adam and its c - d. In III, and of other layers:
    ``tests/measure/test_whole_blocks.py``."""
    monkeypatch.setattr(search, "PROPOSAL_WORK", 2_000)
    asked = Configuration.of(regime, optimizer, "mssp", architecture=layer)
    base = asked.parameterization.base_structure(asked.network, asked.readout_init)
    found = search.solve(Places(asked.network, asked.ray, asked.optimizer), asked.parameterization, base)
    for field in ("exempt", "tied"):
        assert getattr(found.structure, field) == chosen.get(field, set())
    assert not found.level.certified and found.structure.zero == {"readout"}
    assert {s: why.split(" but ")[-1] for s, why in found.rejected}[base] == "h3.A1 ~ n^(-1/2)"
    assert str(found.scaling.tensors["expert_out"].init_std) == {"II": "M^(1/2)", "III": "N_e^(-1/2)"}[regime]
    rates = {"II": {"sgd": "N M", "adam": "1"}, "III": {"sgd": "N M N_e^-1", "adam": "N_e^-1"}}
    assert str(found.scaling.tensors["expert_out"].lr) == rates[regime][optimizer]
    assert str(found.scaling.tensors["query"].lr) == {"sgd": "1", "adam": "N^-1"}[optimizer]
