"""Recipes on models of transformers, trained at several sizes; nothing is downloaded."""

import pytest

pytest.importorskip("torch")

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.apply.families import family, names
from scaling_algebra.verify.apply.models import build
from scaling_algebra.verify.apply.predictions import predicted
from scaling_algebra.verify.judging.fit import Verdict

DENSE = [{"N": n} for n in (32, 64, 128)]
EXPERTS = [{"N": n, "N_e": n, "M": 4, "K": 2} for n in (32, 64, 128)]


@pytest.mark.parametrize(("name", "sizes"), [("llama", DENSE), ("mixtral", EXPERTS), ("qwen3_moe", EXPERTS)])
def test_a_recipe_holds_on_a_family_and_the_default_does_not(name, sizes):
    pytest.importorskip("transformers")
    report = check_model(lambda s: build(name, s), sizes, seeds=4)
    assert not report.tally.refuted
    assert report.tally.exponents[Verdict.AGREES] >= 0.9 * report.tally.judged
    gates = {g.name: g for g in report.gates}
    assert gates["standard parameterization refuted"].passed and gates["planted wrong exponents refuted"].passed


@pytest.mark.parametrize(
    ("role", "what", "rule", "part"),
    [
        ("router", "lr", Power(), "mlp.gate.update"),
        ("router", "init_std", Power(), "mlp.gate.init"),
        ("expert_out", "lr", Power(), "mlp.experts.A3"),
        ("expert_in", "lr", Power(), "mlp.experts.A2.2"),
        ("hidden", "lr", Power(), "self_attn.q_proj.update"),
    ],
)
def test_a_planted_rule_is_refuted_where_it_is_planted(role, what, rule, part):
    pytest.importorskip("transformers")
    report = check_model(lambda s: build("mixtral", s), EXPERTS, seeds=4, rules={role: {what: rule}})
    assert report.exit_code == 1
    step = 0 if what == "init_std" else 2
    verdicts = {(r.quantity, r.step): r.verdict for r in report.rows}
    assert verdicts[f"layer0.{part}", step] is Verdict.REFUTED


def test_the_gate_of_a_family_decides_what_a_router_passes_on():
    """A softmax over the chosen experts takes away what all of them share; held gates do not know of it."""
    numbers = recipe("N=32,N_e=32,M=4,K=2", "N=64,N_e=64,M=4,K=2", readout_init="zero", epsilon="negligible")
    held, chosen, whole = (predicted(numbers, gate) for gate in ("", "1/K", "1/M"))
    assert held["router", "propagating"][2] == 0
    # behind a softmax the square of a sign counts for nothing known: at t = 2 nothing is claimed
    assert len(chosen["router", "propagating"]) == len(whole["router", "propagating"]) == 2
    assert chosen["router", "update"][2] == held["router", "update"][2] == 0


@pytest.mark.parametrize("name", names())
def test_every_family_has_roles(name):
    found = family(name)
    assert "readout" in found.roles.values()
    assert ("router" in found.roles.values()) == bool(found.gate)


def test_bad_input():
    with pytest.raises(UsageError, match="jetmoe has no adapter"):
        family("jetmoe")
    with pytest.raises(UsageError, match="did you mean 'mixtral'"):
        family("mixtrl")
    with pytest.raises(UsageError, match="two or more sizes"):
        check_model(lambda s: None, [{"N": 8}])
    with pytest.raises(UsageError, match="no family to check named 'mistral'"):
        build("mistral", {"N": 32})
