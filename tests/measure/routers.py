"""The block of the routers paper: which gates let a router learn, and SP; all exponents: ``test_library.py``."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np

from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.verify import judge, measure
from scaling_algebra.verify.judging.fit import Verdict, judge_exponent
from scaling_algebra.verify.judging.verdicts import fit_of

DEPENDS = ("derives", "trains")

BLOCKS = ["routers-softmax", "routers-sigmoid", "routers-softmax-bias", "routers-softmax-topk", "routers-sigmoid-topk"]
BLOCKS += ["routers-softmax-noise", "routers-sigmoid-noise-topk"]
SIZES, SEEDS = [64, 112, 196, 344], 32
WIDER = 0.15
"""Added to both ends of every interval: finite-size bend at these sizes."""


@cache
def derived(architecture, parameterization="mup", zero_router=False):
    """muP of the sigmoid block (a soft softmax router cannot learn, so it has none of its own), used on every gate."""
    d = derive("I", "sgd", parameterization, architecture="routers-sigmoid")
    tensors = dict(d.scaling.tensors) | {"bias": TensorScaling(Power(), Power())}
    if zero_router:
        tensors["router"] = replace(tensors["router"], init_std=None)
    tensors = {role: tensors[role] for role in ARCHITECTURES[architecture].tensors}
    scaling = Scaling(tensors, d.scaling.multipliers)
    return replace(d, configuration=d.configuration.but(network=architecture), scaling=scaling)


@cache
def measured(architecture, parameterization="mup", steps=2, zero_router=False, late=False):
    """``late``: a quantity that moves only where the mask has switched needs many replicas of smaller networks."""
    d = derived(architecture, parameterization, zero_router=zero_router)
    sizes, seeds = ([48, 80, 132, 216], 4 * SEEDS) if late else (SIZES if steps > 1 else SIZES[:3], SEEDS)
    return measure(d, sizes=sizes, seeds=seeds, steps=steps, device="cpu")


def distance(fit, exponent):
    """How far an exponent lies outside the measured interval."""
    return max(fit.low - float(exponent), float(exponent) - fit.high, 0.0)


def test_every_quantity_of_the_sigmoid_block_agrees():
    look = derived("routers-sigmoid").analysis()
    report = judge(measured("routers-sigmoid"), {n: tuple(a.exponent for a in row) for n, row in look.all(2).items()})
    counts = report.counts
    assert counts["REFUTED"] == 0 and counts["AGREES"] >= 0.9 * len(report.rows) > 120, str(report)
    assert all(gate.passed for gate in report.gates) and report.exit_code == 0


def test_a_soft_softmax_router_freezes_and_the_others_learn():
    """The one quantity that tells the gates apart: psi.effective, n^(-1/2) or n^0, at t = 2; under top-K one step later
    and with more seeds, because it moves only where the mask has switched."""
    for architecture in BLOCKS:
        frozen, late = architecture == "routers-softmax", "topk" in architecture
        t = 3 if late else 2
        added = "bias" in architecture or "noise" in architecture  # what the router makes has a name of its own
        name = "logits.effective" if added else "psi.effective"
        slope = fit_of(measured(architecture, steps=t, late=late), name, t)
        found = [judge_exponent(slope, Fraction(-k, 2)) for k in (0, 1)]
        assert found[frozen] is Verdict.AGREES and found[not frozen] is not Verdict.AGREES, architecture


def test_sp_with_moving_features_saturates():
    run, look = measured("routers-softmax", "sp-feature", 1), derived("routers-softmax", "sp-feature").analysis()
    for name, exponent in (("h1.change", 0), ("psi.propagating", Fraction(1, 2)), ("psi.effective", Fraction(3, 2))):
        assert look(name, 1).exponent == exponent
        assert distance(fit_of(run, name, 1), exponent) <= WIDER, name
    answer = look("gpsi", 1)
    assert not answer.decided and "saturates faster than any power" in answer.why
    # the typical seed; the mean square belongs to the few seeds whose two largest logits happen to be close
    typical = [np.median(v) for v in run.values["gpsi", 1]]
    assert max(typical) < 1e-12 < 1e-3 < min(np.median(v) for v in run.values["gpsi", 0])
    assert np.log(typical[-1] / typical[0]) < -20 * np.log(run.sizes[-1] / run.sizes[0]), typical


def test_sp_exponents_are_refuted_under_mup():
    claimed = derived("routers-softmax", "sp-feature").analysis()
    run = measured("routers-softmax")
    for name in ("psi.propagating", "psi.effective", "psi.change"):
        fit, wrong = fit_of(run, name, 1), claimed(name, 1).exponent
        assert distance(fit, wrong) > 0.3 and judge_exponent(fit, wrong) is Verdict.REFUTED, name


def test_a_router_initialised_to_zero():
    run = measured("routers-softmax", steps=1, zero_router=True)
    look = derived("routers-softmax", zero_router=True).analysis()
    assert fit_of(run, "psi.propagating", 1).zero and look("psi.propagating", 1).exponent is None
    assert look("psi.effective", 1).exponent == Fraction(-1, 2)
    assert distance(fit_of(run, "psi.effective", 1), Fraction(-1, 2)) <= WIDER
