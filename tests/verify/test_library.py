"""Every network of the library, trained at a few small sizes: nothing that the engine certifies is refuted."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.cli import main
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES
from scaling_algebra.verify import judge, measure
from scaling_algebra.verify.campaigns.plans import Effort, Job, job, load

JOBS = load("library")
SIZES = {"III": (12, 17, 24, 34), None: (48, 72, 108, 162), "I": (48, 72, 108, 162)}
DEEP = {"deep-mlp": (16, 23, 32, 46, 64), "deep-moe": (8, 12, 17, 24)}
"""Sizes where depth grows, too."""
SEEDS = {"deep-mlp": 32}
"""Replicas; 16 of every other network."""

SMALL = {
    "stack2": "two blocks in sequence are heavy-tailed: products of more Gaussian factors, and slopes still bend",
    "topk": "a signal that moves only where a selection has switched needs more seeds and larger sizes",
    "I-adam-mup-sigmoid-routers-softmax ": "gradients at the logits reach n^(-1/2) only above n = 1000",
    "psi.propagating": "at t=2 the slope still bends, from -0.4 to 0 above n = 500",
    "adam-mup-attention-wide p_1.propagating": "at t=2 the slope is -0.5 here, and bends towards 0 above n = 500",
    "adam-mup-attention-wide p.propagating": "the same, behind the softmax",
    "dQ.": "twice through the router's update: at t=1 a part of order n^-2 hides the leading one up to n = 1000",
}
"""Whose slopes are not those of large n at these sizes, and why: part of a run's or a quantity's name."""

UNDERIVED = {"moe-rmsnorm", "lora", "linear-attention"}
"""No muP is found, or proved not to exist: nothing to train."""

SLOW = {"deep-transformer"}
"""Minutes of predictions; docs/library.md has what is measured."""


def test_the_campaign_trains_every_network_with_sgd_and_adam():
    trained = {(job.configuration.network.name, job.configuration.optimizer.name) for job in JOBS}
    assert trained == {(name, rule) for name in set(ARCHITECTURES) - UNDERIVED for rule in ("sgd", "adam")}


@pytest.mark.slow
@pytest.mark.parametrize("job", [pytest.param(x, id=x.name) for x in JOBS if x.configuration.network.name not in SLOW])
def test_nothing_certified_is_refuted(job):
    ray = job.configuration.ray
    name = job.configuration.network.name
    sizes = DEEP[name] if ray["L"] else SIZES[ray.name or None]
    measured = measure(derive(job.configuration), sizes=sizes, seeds=SEEDS.get(name, 16), device="cpu")
    report = judge(measured, job.prediction())
    refuted = [r for r in report.rows if r.verdict == "REFUTED"]
    excused = [r for r in refuted if any(part in f"{job.name} {r.quantity}" for part in SMALL)]
    assert refuted == excused, [f"{r.quantity}@{r.step}: {r.predicted}, {r.fit.slope:.2f}" for r in refuted]
    agree = report.tally.exponents["AGREES"]
    assert agree > report.tally.judged / 3 and report.tally.zeros["REFUTED"] == 0, str(report.tally)


def test_verify_measures_a_network_of_the_library_or_of_ones_own(tmp_path):
    args = ["--ray", "N=1,N_e=0,M=0", "--sizes", "24,48,96", "--seeds", "16", "--device", "cpu"]
    found = CliRunner().invoke(main, ["verify", "--architecture", "mlp", *args, "--claim", "h2.change@1=0"])
    assert found.exit_code == 0 and "h2.change" in found.output, found.output
    wrong = CliRunner().invoke(main, ["verify", "--architecture", "mlp", *args, "--claim", "h2.change@1=1"])
    assert wrong.exit_code == 1 and "REFUTED" in wrong.output


def test_a_network_of_ones_own_stands_in_the_plan_of_its_run():
    own = network("own", "h[a] = W1[a,x] data[x]\ng[b] = W[b,a] tanh(h[a])\nf = U[b] g[b]", AXES, {"U": "readout"})
    asked = Configuration.of(None, "sgd", "sp", ray="N=1,N_e=0,M=0").but(network=own)
    made = job(asked, Effort(sizes=(8, 12, 18), seeds=4))
    again = Job.from_json(json.loads(json.dumps(made.as_json())))
    assert again == made and again.configuration.network.statements == own.statements and made.testbed == "network"
    measured = measure(derive(asked), sizes=[8, 12, 18], seeds=4, device="cpu")
    assert judge(measured, made.prediction()).gates[-1].name.startswith(("planted", "width"))


def test_other_shares_of_active_experts_are_one_line():
    asked = Configuration.of(None, "sgd", "sp", ray="N=1,N_e=1,M=1,K=1/2").but(network="moe-rmsnorm")
    with pytest.raises(UsageError, match="measured with K = M") as error:
        measure(derive(asked), sizes=[8, 12, 18], seeds=4, device="cpu")
    assert "\n" not in str(error.value)
