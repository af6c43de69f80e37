"""The block of the routers paper: what a soft softmax router does, measured against the engine and against SP."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify import measure
from scaling_algebra.verify.judging.fit import Verdict, judge_exponent
from scaling_algebra.verify.judging.report import fit_of

EFFECTIVE = "psi.effective"


@cache
def derived(architecture, parameterization="mup", zero_router=False):
    """muP of the sigmoid block (a soft softmax router cannot learn, so it has none of its own), used on every gate."""
    d = derive("I", "sgd", parameterization, architecture="routers-sigmoid")
    tensors = dict(d.scaling.tensors)
    if zero_router:
        tensors["router"] = replace(tensors["router"], init_std=None)
    tensors = {role: tensors[role] for role in ARCHITECTURES[architecture].tensors}
    return replace(
        d, configuration=d.configuration.but(network=architecture), scaling=Scaling(tensors, d.scaling.multipliers)
    )


@cache
def measured(architecture, steps=2, zero_router=False):
    d = derived(architecture, zero_router=zero_router)
    return measure(d, sizes=[64, 112, 196, 344], seeds=32, steps=steps, device="cpu")


@pytest.mark.parametrize(("architecture", "right"), [("routers-softmax", 1), ("routers-sigmoid", 0)])
def test_a_soft_softmax_router_freezes_and_a_sigmoid_learns(architecture, right):
    """The one quantity that tells the gates apart: n^(-1/2) or n^0, at t = 2."""
    slope = fit_of(measured(architecture), EFFECTIVE, 2)
    found = [judge_exponent(slope, Fraction(-k, 2)) for k in (0, 1)]
    assert derived(architecture).analysis()(EFFECTIVE, 2).exponent == Fraction(-right, 2)
    assert found[right] is Verdict.AGREES and found[not right] is not Verdict.AGREES


def test_sp_exponents_are_refuted_under_mup():
    claimed, run = derived("routers-softmax", "sp-feature").analysis(), measured("routers-softmax")
    for name in ("psi.propagating", EFFECTIVE, "psi.change"):
        assert judge_exponent(fit_of(run, name, 1), claimed(name, 1).exponent) is Verdict.REFUTED, name


def test_a_router_initialised_to_zero():
    run = measured("routers-softmax", steps=1, zero_router=True)
    look = derived("routers-softmax", zero_router=True).analysis()
    assert fit_of(run, "psi.propagating", 1).zero and look("psi.propagating", 1).exponent is None
    assert look(EFFECTIVE, 1).exponent == Fraction(-1, 2)
    assert judge_exponent(fit_of(run, EFFECTIVE, 1), Fraction(-1, 2)) is Verdict.AGREES
