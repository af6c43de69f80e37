"""Every network of the library, trained at a few small sizes: nothing that the engine certifies is refuted."""

import pytest

from scaling_algebra import derive
from scaling_algebra.verify import judge, measure
from scaling_algebra.verify.campaigns.plans import load_campaign

DEPENDS = ("derives", "trains", "verify/campaigns")

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

SLOW = {"deep-transformer"}
"""Minutes of predictions; docs/library.md has what is measured."""

JOBS = [job for job in load_campaign("library") if job.configuration.network.name not in SLOW]


def trained(job):
    """A run of the campaign at small sizes, judged."""
    ray, name = job.configuration.ray, job.configuration.network.name
    sizes = DEEP[name] if ray["L"] else SIZES[ray.name or None]
    measured = measure(derive(job.configuration), sizes=sizes, seeds=SEEDS.get(name, 16), device="cpu")
    return judge(measured, job.prediction())


def check(job, report):
    """What is refuted and excused; an AssertionError where more is refuted, or too little agrees."""
    refuted = [r for r in report.rows if r.verdict == "REFUTED"]
    excused = [r for r in refuted if any(part in f"{job.name} {r.quantity}" for part in SMALL)]
    assert refuted == excused, [f"{r.quantity}@{r.step}: {r.predicted}, {r.fit.slope:.2f}" for r in refuted]
    agree = report.tally.exponents["AGREES"]
    assert agree > report.tally.judged / 3 and report.tally.zeros["REFUTED"] == 0, str(report.tally)
    return [f"{r.quantity}@{r.step}" for r in excused]


@pytest.mark.parametrize("job", [pytest.param(job, id=job.name) for job in JOBS])
def test_nothing_certified_is_refuted(job, record_property):
    report = trained(job)
    record_property("sizes", list(report.sizes))
    record_property("exponents", {str(k): v for k, v in report.tally.exponents.items()})
    record_property("excused", check(job, report))
