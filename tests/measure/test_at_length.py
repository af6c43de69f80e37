"""Checks of other rooms on the cases that take ten seconds or more; what is quick of them is in the test they name."""

from dataclasses import replace
from functools import partial

import pytest

from scaling_algebra import NotFound, Power, derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.solver.demands import unfaithful, violation
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.verify.studies.runner import EXPERIMENTS

from ..engine import test_given, test_routing
from ..engine.test_given import ALL_HOLD, HALF, settings_of
from ..verify import test_infinite_width
from ..verify.test_experiments import AGREES, REFUTED, of

DEPENDS = ("derives", "trains", "scaling_algebra/proofs", "verify/studies", "verify/infinite_width")


@pytest.mark.parametrize(("regime", "rule"), [("I", "sgd"), ("III", "sgd")])
def test_another_value_breaks_a_desideratum(regime, rule):
    """muP is the only one, so that no other value leaves all desiderata whole; what is named is what fails."""
    plain = derive(regime, rule, "mup")
    for name, power in settings_of(plain):
        for step in (HALF, -HALF):
            moved = power * Power.of({"N": step})
            try:
                d = derive(regime, rule, "mup", given={name: moved})
            except NotFound as failure:
                assert name in str(failure)
                continue
            assert dict(settings_of(d))[name] == moved
            assert d.unmet and ALL_HOLD not in str(d), name
            look = Analysis(d.ray, d.scaling.point(d.ray), d.optimizer)
            demands = d.configuration.parameterization.list_demands(d.network, Structure())
            demands = [x for x in demands if x.kind != "scale" or d.optimizer.epsilon]
            failures = {x.label for x in demands if violation(x, look) or unfaithful(x, look)}
            named = {x.label for x in demands if any(line.startswith(x.label) for line in d.unmet)}
            assert failures <= named | {x.demand for x in d.level.open}, name  # as failing, or as undecided
            for line in d.unmet:
                assert any(line.startswith(x) for x in failures) or "t=3" in line or "undecided" in line, name


def test_held_unknowns_are_equations_of_the_proof():
    test_given.test_held_unknowns_are_equations_of_the_proof("III", "adam", "moe", "router")


def test_measured_with_a_fixed_number_of_active_experts():
    test_routing.test_measured_with_few_active_experts(test_routing.SPARSE[1])


@pytest.mark.parametrize("case", test_infinite_width.LONG)
def test_training_comes_nearer(case):
    test_infinite_width.test_training_comes_nearer(case)


def test_cubic_experts_specialise_and_linear_ones_fail_the_same_claims():
    networks = {"cubic": {"steps": 200}, "linear": {"steps": 60, "cubic": False}}
    trial, how = EXPERIMENTS["clusters"].trials[0], of(4)
    found = replace(trial, run=partial(trial.run, networks=networks, n=1000)).findings(how)
    assert all(f.outcome is AGREES for f in found)
    claims = tuple({**claim, "of": claim["of"].replace("cubic", "linear")} for claim in trial.claims[:2])
    linear = partial(trial.run, networks={"linear": networks["linear"]}, n=1000)
    assert [f.outcome for f in replace(trial, run=linear, claims=claims).findings(how)] == [REFUTED, REFUTED]
