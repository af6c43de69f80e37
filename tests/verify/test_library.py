"""Every network of the library, trained: what is kept of all of them, the cheapest three again, and one's own."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive, signals
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES
from scaling_algebra.verify import judge, measure
from scaling_algebra.verify.campaigns.plans import Effort, Job, job, load
from scaling_algebra.verify.judging.fit import Verdict

from ..measure import evidence
from ..measure import test_library as measured
from ..shared import scalecalc

UNDERIVED = {"moe-rmsnorm", "lora", "linear-attention"}
"""No muP is found, or proved not to exist: nothing to train."""

AGAIN = {"N=1,N_e=0,M=0-adam-mup-mlp", "III-sgd-mup", "I-adam-mup-dense-moe"}


def test_the_campaign_trains_every_network_with_sgd_and_adam():
    trained = {(job.configuration.network.name, job.configuration.optimizer.name) for job in load("library")}
    assert trained == {(name, rule) for name in set(ARCHITECTURES) - UNDERIVED for rule in ("sgd", "adam")}, (
        "name every network in verify/campaigns/library.toml"
    )


def test_the_evidence_is_of_every_network_and_most_exponents_agree():
    file = evidence.ROOT / "tests" / "measure" / "test_library.py"
    kept = evidence.kept(file)["tests"]
    wanted = {f"test_nothing_certified_is_refuted[{job.name}]" for job in measured.JOBS}
    assert set(kept) == wanted, f"measure the networks again: {evidence.command(file)}"
    for name, run in kept.items():
        agree, judged = run["exponents"]["AGREES"], sum(run["exponents"].values())
        assert agree > judged / 3 and len(run["excused"]) == run["exponents"]["REFUTED"] < judged / 10, name


@pytest.mark.parametrize("job", [x for x in measured.JOBS if x.name in AGAIN], ids=lambda job: job.name)
def test_nothing_certified_is_refuted(job):
    measured.check(job, measured.trained(job))


def test_verify_measures_a_network_of_the_library_or_of_ones_own(tmp_path):
    args = ["--ray", "N=1,N_e=0,M=0", "--sizes", "24,48,96", "--seeds", "16", "--device", "cpu"]
    found = scalecalc("verify", "--architecture", "mlp", *args, "--claim", "h2.change@1=0")
    assert found.exit_code == 0 and "h2.change" in found.output, found.output
    wrong = scalecalc("verify", "--architecture", "mlp", *args, "--claim", "h2.change@1=1")
    assert wrong.exit_code == 1 and "REFUTED" in wrong.output


def test_a_network_of_ones_own_stands_in_the_plan_of_its_run():
    own = network("own", "h[a] = W1[a,x] data[x]\ng[b] = W[b,a] tanh(h[a])\nf = U[b] g[b]", AXES, {"U": "readout"})
    asked = Configuration.of(None, "sgd", "sp", ray="N=1,N_e=0,M=0").but(network=own)
    made = job(asked, Effort(sizes=(8, 12, 18), seeds=4))
    again = Job.from_json(json.loads(json.dumps(made.as_json())))
    assert again == made and again.configuration.network.statements == own.statements
    measured = measure(derive(asked), sizes=[8, 12, 18], seeds=4, device="cpu")
    assert judge(measured, made.prediction()).gates[-1].name.startswith(("planted", "width"))


def test_an_axis_of_ones_own_grows():
    """The rank of an adapter that alone grows: its matrix back has rate 1/rank, and a constant rate is refuted."""
    text = "h[a] = E[a,x] data[x]\nz[r] = A[r,a] h[a]\ng[b] = h[b] + B[b,r] z[r]\nf = U[b] g[b]"
    net = network("adapter", text, {"a": "N", "b": "N", "r": "rank", "x": "D"}, {"U": "readout"}).with_frozen(
        ["E", "U"]
    )
    asked = {"ray": "N=0,rank=1", "network": net, "given": {"B.init": 0}}
    found = derive(None, "adam", "mup", **asked)
    assert str(found["B"].lr) == "rank^-1"
    measured = measure(found, sizes=[16, 32, 64, 128], seeds=32, device="cpu")
    assert [d["rank"] for d in measured.dims] == [16, 32, 64, 128] == measured.sizes
    report = judge(measured, signals(found.configuration, steps=2))
    assert not report.tally.refuted and report.tally.exponents[Verdict.AGREES] > 10, str(report.document())
    wrong = derive(None, "adam", "mup", **asked | {"given": {"B.init": 0, "B.lr": "1"}})
    report = judge(
        measure(wrong, sizes=[16, 32, 64, 128], seeds=32, device="cpu"), signals(found.configuration, steps=2)
    )
    assert report.tally.refuted


def test_other_shares_of_active_experts_are_one_line():
    asked = Configuration.of(None, "sgd", "sp", ray="N=1,N_e=1,M=1,K=1/2").but(network="moe-rmsnorm")
    with pytest.raises(UsageError, match="measured with K = M") as error:
        measure(derive(asked), sizes=[8, 12, 18], seeds=4, device="cpu")
    assert "\n" not in str(error.value)
