"""Proofs, searches and readings of whole blocks, layers and models that take ten seconds or more.

What is quick of them is in the test that each names.
"""

import pytest

from scaling_algebra import derive, prove

from ..engine import test_given, test_phases, test_sums
from ..engine.test_proofs import mup_is_unique
from ..verify import test_apply, test_tracing_families

DEPENDS = ("derives", "proves", "scaling_algebra/all_rays", "verify/apply", "verify/tracing")


def test_mup_is_unique():
    mup_is_unique("I", "adam")


def test_a_demand_that_a_shared_expert_meets_too_late_is_met_nowhere():
    assert prove("II", "sgd", "mup", architecture="shared-expert").outcome.verdict == "impossible"


def test_five_cells_and_three_walls_under_mup():
    test_phases.test_five_cells_and_three_walls_under_mup("muon")


def test_held_unknowns_are_equations_of_the_proof():
    test_given.test_held_unknowns_are_equations_of_the_proof("III", "sgd", "moe", "router")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("layer", ["mixtral", "qwen3-moe", "deepseek-v3"])
@pytest.mark.parametrize(
    ("regime", "chosen"), [("II", {"exempt": {"h3i"}}), ("III", {"tied": {"expert_in", "expert_out"}})]
)
def test_mssp_of_a_whole_layer_intervenes_as_for_its_experts(layer, regime, chosen, optimizer, monkeypatch):
    test_sums.test_mssp_of_a_whole_layer_intervenes_as_for_its_experts(regime, chosen, optimizer, monkeypatch, layer)


def test_a_model_of_transformers_says_how_it_is_built(monkeypatch):
    test_apply.test_a_model_of_transformers_says_how_it_is_built("mixtral", monkeypatch)


@pytest.mark.parametrize("family", test_tracing_families.LONG)
def test_layers_become_one_letter(family, tmp_path):
    test_tracing_families.test_layers_become_one_letter(family, tmp_path)


def test_mixtral_is_the_network_of_the_library(tmp_path):
    asked = {"ray": "N=1,N_e=1,M=0", "optimizer": "adam", "parameterization": "mup"}
    mine = derive(network=test_tracing_families.read(tmp_path, "mixtral").network, **asked)
    known = derive(architecture="mixtral", **asked)
    answers = [sorted((str(d[r].init_std), str(d[r].lr)) for r in d) for d in (mine, known)]
    assert answers[0] == answers[1]
