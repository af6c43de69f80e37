"""Sign descent and Adam with a negligible epsilon, measured; and what is given is what is trained."""

import json

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner

from scaling_algebra import Configuration, UsageError
from scaling_algebra.cli import main
from scaling_algebra.verify.campaigns.plans import Effort, Job, job, load

NEGLIGIBLE = ["--optimizer", "adam", "--epsilon", "negligible"]
QUICK = ["--sizes", "16,24,36,54", "--seeds", "48", "--device", "cpu"]
HELD_GATES = {("h3.cross", 1), ("h3.D", 1), ("g1.expert.E.1", 1), ("g1.expert.E.2", 1)}


def run(*args):
    return CliRunner().invoke(main, ["verify", *args], prog_name="scalecalc")


@pytest.mark.parametrize("rule", [["--optimizer", "signsgd"], NEGLIGIBLE], ids=["signsgd", "adam"])
def test_the_first_step_is_as_large_as_the_second(rule):
    """With a derived epsilon the router's first step is n^(-1/2), in regime II; the claim of that is refuted here."""
    where = ["--regime", "II", "--parameterization", "mup", *rule, "--sizes", "32,64,128,256", "--seeds", "32"]
    right, wrong = ["--claim", "psi.effective@1=0"], ["--claim", "psi.effective@1=-1/2"]
    assert run(*where, *right, "--device", "cpu").exit_code == 0
    assert run(*where, *wrong, "--device", "cpu").exit_code == 1


def test_what_is_given_is_what_is_trained():
    """A readout of std N^-1/2: g3.init, the readout itself, is n^(-1/2) instead of n^-1."""
    where = ["--regime", "III", "--optimizer", "sgd", *QUICK, "--steps", "1"]
    given = ["--given", "readout.init=N^-1/2"]
    for options, claim, verdict in (
        (given, "g3.init@0=-1/2", "AGREES"),
        ([], "g3.init@0=-1/2", "REFUTED"),
        ([], "g3.init@0=-1", "AGREES"),
    ):
        result = run(*where, *options, "--claim", claim, "--format", "json")
        report = json.loads(result.stdout)
        (row,) = report.get("runs", [report])[0]["claims"]
        assert row["verdict"] == verdict, (options, claim)


def test_plans_keep_both():
    asked = Configuration.of("III", "adam", "mup", epsilon="negligible", given={"router.init": "N^-1/2"})
    one = job(asked, Effort(sizes=(8, 12, 16), seeds=4))
    assert Job.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert one.name == "III-adam-negligible-mup-router.init=N^(-1_2)"
    assert (
        one.setup().standard.configuration.given.as_json() == {} and one.setup().standard.optimizer == asked.optimizer
    )
    assert one.setup().recipe != job(asked.but(epsilon="derived"), Effort(sizes=(8, 12, 16), seeds=4)).setup().recipe
    with pytest.raises(UsageError, match=r"leave out given router\.init"):
        job(asked, testbed="transformer")


def test_campaigns_take_it(tmp_path):
    (tmp_path / "a.toml").write_text(
        'steps = 1\n[[run]]\nregimes = ["I"]\noptimizers = ["adam", "adamw"]\nepsilon = "negligible"\n'
        "sizes = [8, 12, 16]\nseeds = 4\n"
    )
    assert all(one.configuration.optimizer.negligible for one in load(str(tmp_path / "a.toml")))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [["--optimizer", "signsgd"], NEGLIGIBLE], ids=["signsgd", "adam"])
@pytest.mark.parametrize(("regime", "name"), [("III", "mup"), ("III", "mssp"), ("II", "mssp"), ("I", "mssp")])
def test_predictions_agree(regime, name, rule):
    found = run("--regime", regime, "--parameterization", name, *rule, "--device", "cpu")
    assert found.exit_code == 0, found.output


@pytest.mark.slow
def test_gates_that_move_make_sums_of_updates_coherent():
    """muP in regime II: predictions that hold the gates are refuted at the first step, and agree where gates rest."""
    where = ["--regime", "II", "--parameterization", "mup", "--optimizer", "signsgd", "--steps", "1", "--device", "cpu"]
    found = json.loads(run(*where, "--format", "json").stdout)
    rows = [q for r in found.get("runs", [found]) for q in r["quantities"]]
    assert {(q["quantity"], q["step"]) for q in rows if q["verdict"] == "REFUTED"} <= HELD_GATES
    resting = run(*where, "--given", "router.init=0", "--given", "router.lr=N^-3")
    assert resting.exit_code == 0 and " 0 refuted" in resting.output
