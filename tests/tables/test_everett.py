"""Largest stable learning rates per layer: by formula, by the engine, and where they differ."""

from dataclasses import replace
from fractions import Fraction

import pytest

from scaling_algebra import Power, UsageError, derive
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.gauges import gauge_powers
from scaling_algebra.spec.networks.library import architecture
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.parameterizations import mean_field, ntp, sp
from scaling_algebra.tables.derived.stable_rates import ALIGNMENTS, GAUGES, OPTIMIZERS, assume_rates, certify_rates, mup

HALF = Fraction(1, 2)

MLP = architecture("mlp")
RULES = {name: rule for name, (_, rule) in OPTIMIZERS.items()}


def exponents(rates):
    return [rates[role]["N"] for role in ("input", "hidden", "readout")]


@pytest.mark.parametrize("rule", RULES)
def test_mup_is_the_largest_stable_one(rule):
    """In the gauge without multipliers the certified rates of the muP row are muP as it is derived, for every rule."""
    d = derive("I", rule, "mup", architecture="mlp", epsilon=RULES[rule].regime)
    free = {role: mup(MLP, role) for role in MLP.tensors}
    found = certify_rates("mup", RULES[rule])
    for role, abc in free.items():
        assert found[role] * abc.multiplier ** gauge_powers(RULES[rule])["lr"] == d[role].lr
        assert abc.multiplier * abc.init_std == d[role].init_std


def test_known_limits():
    """With SGD the NTK parameterization is stable with rates 1, standard parameterization with 1/N (its hidden layer
    and readout), mean field with rates N (Yang and Hu, 2021)."""
    assert exponents(certify_rates("ntp", RULES["sgd"])) == [0, 0, 0]
    assert exponents(certify_rates("sp", RULES["sgd"])) == [0, -1, -1]
    assert exponents(certify_rates("mean-field", RULES["sgd"])) == [1, 1, 1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gauge", GAUGES)
def test_assumed_alignment_against_the_engine(gauge, rule):
    """Full alignment is what the engine finds, but for a readout of std N^-1/2, which the features align with: there
    it allows rates that diverge. No alignment allows rates that are never smaller, and that diverge."""
    full, none = (exponents(assume_rates(gauge, RULES[rule], p)) for p in ALIGNMENTS.values())
    true = exponents(certify_rates(gauge, RULES[rule]))
    assert (full == true) == (gauge in ("mup", "mean-field"))
    if gauge in ("sp", "ntp"):
        assert [a - b for a, b in zip(full, true, strict=True)] == [HALF, HALF, 0]
    assert none[1] >= full[1] and none[2] == full[2] + HALF


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("gauge", "layers"), [("sp", sp), ("ntp", ntp), ("mean-field", mean_field), ("mup", mup)])
def test_rates_without_alignment_diverge(gauge, layers, rule):
    """Negative control, at the first update: the formula for no alignment makes the network blow up."""
    rates, factors = assume_rates(gauge, RULES[rule], HALF), gauge_powers(RULES[rule])["lr"]
    abc = {role: layers(MLP, role) for role in MLP.tensors}
    given = {f"{role}.init": x.multiplier * x.init_std for role, x in abc.items()}
    given |= {f"{role}.lr": rates[role] * x.multiplier**factors for role, x in abc.items()}
    d = derive("I", rule, "mup", architecture="mlp", epsilon=RULES[rule].regime, given=given)
    look = d.analysis()
    assert max(look(name, t).exponent or 0 for name in ("h1", "h2", "f") for t in (1, 2) if look(name, t).decided) > 0
    assert d.unmet


def test_moving_a_multiplier_changes_no_size():
    """SGD sees it twice, Adam once, Adafactor not at all: NTK and standard parameterization are one network."""
    for rule in RULES.values():
        one, other = certify_rates("sp", rule), certify_rates("ntp", rule)
        for role in MLP.tensors:
            assert one[role] == other[role] * ntp(MLP, role).multiplier ** gauge_powers(rule)["lr"]


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_adafactor_is_sign_descent_with_a_relative_rate(regime):
    """lr times the init std is the rate of sign descent, tensor by tensor; it cannot be trained here."""
    one, other = derive(regime, "adafactor", "mup"), derive(regime, "signsgd", "mup")
    for role, s in one.scaling.tensors.items():
        assert s.init_std == other[role].init_std and s.lr * s.init_std == other[role].lr
    zero = derive(regime, "adafactor", "mssp")["readout"]
    assert zero.init_std is None and zero.lr == derive(regime, "signsgd", "mssp")["readout"].lr
    assert "whole tensors" in optimizer("adafactor").untrained
    with pytest.raises(UsageError, match="adafactor has no epsilon"):
        derive(regime, "adafactor", epsilon="negligible")


def test_a_relative_step_follows_the_tensor():
    """Where updates outgrow the init, the next step is relative to them: a rate of N^(1/2) compounds."""
    d = derive("I", "adafactor", "mup", architecture="mlp")
    sizes = []
    for by in (Fraction(0), HALF):
        s = d.scaling.tensors["hidden"]
        tensors = {**d.scaling.tensors, "hidden": replace(s, lr=s.lr * Power.of({"N": HALF + by}))}
        look = Analysis(d.ray, replace(d.scaling, tensors=tensors).point(d.ray), d.optimizer, MLP)
        sizes.append([look("dW2", t).exponent for t in (1, 2)])
    assert sizes == [[-HALF, -HALF], [0, HALF]]
