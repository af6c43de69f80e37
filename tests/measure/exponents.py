"""Rules without an epsilon, and rays away from the regimes, trained at length."""

from fractions import Fraction

import pytest

from scaling_algebra import signals
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify import judge, measure
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store

DEPENDS = ("derives", "trains", "verify/campaigns")

RULES = [("signsgd", None), ("adam", "negligible")]
PLACES = [("III", "mup"), ("III", "mssp"), ("II", "mssp"), ("I", "mssp")]
HELD_GATES = {("h3.cross", 1), ("h3.D", 1), ("g1.expert.E.1", 1), ("g1.expert.E.2", 1)}
RAYS = {
    "N=1,N_e=3/2,M=1/2": [32, 45, 64, 90, 128],
    "N=1/2,N_e=1/2,M=1": [64, 128, 256, 512, 900],
    "N=1/2,N_e=1,M=1/4": [64, 128, 256, 512, 1024],
}
"""Inside the cell M <= N <= N_e, on the wall N_e = N below M, and on the edge M + N_e > N of narrow networks."""


def trained(asked, steps, record_property, name="exponents"):
    """What `scalecalc verify` says of a configuration."""
    run, store = job(asked, Effort(steps=steps)), Store()
    Session(store, Here(Hardware())).perform([run])
    report = run.report(store)
    record_property(name, {str(k): v for k, v in report.tally.exponents.items()})
    return report


@pytest.mark.parametrize(("rule", "epsilon"), RULES)
@pytest.mark.parametrize(("regime", "name"), PLACES)
def test_predictions_without_an_epsilon_agree(regime, name, rule, epsilon, record_property):
    report = trained(Configuration.of(regime, rule, name, epsilon=epsilon), 2, record_property)
    assert report.exit_code == 0, str(report)


def test_gates_that_move_make_sums_of_updates_coherent(record_property):
    """muP in regime II: predictions that hold the gates are refuted at the first step, and agree where gates rest."""
    asked = Configuration.of("II", "signsgd", "mup")
    moving = trained(asked, 1, record_property, "moving")
    assert {(r.quantity, r.step) for r in moving.rows if r.verdict == "REFUTED"} <= HELD_GATES
    still = Configuration.of("II", "signsgd", "mup", given={"router.init": "0", "router.lr": "N^-3"})
    resting = trained(still, 1, record_property, "resting")
    assert resting.exit_code == 0 and resting.counts["REFUTED"] == 0


@pytest.mark.parametrize("ray", RAYS)
def test_measured_exponents_on_other_rays(ray, record_property):
    """muP with Adam: no exponent is refuted and most agree; half a power more, and none agrees and most are refuted."""
    predicted = signals(None, "adam", "mup", ray=ray)
    found = measure(predicted.derivation, sizes=RAYS[ray], seeds=32)
    report = judge(found, predicted.prediction())
    record_property("exponents", {str(k): v for k, v in report.tally.exponents.items()})
    assert report.counts["REFUTED"] == 0 and 3 * report.counts["AGREES"] > 2 * sum(report.counts.values())
    wrong = {
        name: tuple(None if p is None else p + Fraction(1, 2) for p in row)
        for name, row in predicted.prediction().items()
    }
    planted = [row.verdict for row in judge(found, wrong).rows if row.predicted is not None]
    assert "AGREES" not in planted and 2 * planted.count("REFUTED") > len(planted)
