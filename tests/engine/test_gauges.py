"""Gauges: the published tables, what no gauge changes, the command line and recipes (training: ``tests/verify``)."""

from itertools import product

import pytest

from scaling_algebra import Power, derive, recipe
from scaling_algebra.spec.gauges import GAUGES, OWN, change_multiplier
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import sp
from scaling_algebra.spec.scaling import Scaling, TensorScaling

SHIFTED = sorted(set(GAUGES) - {OWN})

# Yang et al. (2022), Tables 3, 8 and 9 at fan_in = fan_out = N, d fixed: multiplier, init var, SGD lr, Adam lr
HIDDEN = {"hidden": ("1", "N^-1", "1", "N^-1")}
PRINTED = {
    "table3": HIDDEN | {"input": ("1", "1", "N", "1"), "readout": ("1", "N^-2", "N^-1", "N^-1")},
    "table8": HIDDEN | {"input": ("1", "1", "N", "1"), "readout": ("N^-1", "1", "N", "1")},
    "table9": HIDDEN | {"input": ("N^1/2", "N^-1", "1", "N^-1/2"), "readout": ("N^-1/2", "N^-1", "1", "N^-1/2")},
}


@pytest.mark.parametrize("gauge", PRINTED)
def test_the_tables_of_tensor_programs_v(gauge):
    rates = {o: derive(ray="N=1", optimizer=o, architecture="mlp").in_gauge(gauge) for o in ("sgd", "adam")}
    for role, (multiplier, variance, *lrs) in PRINTED[gauge].items():
        for (_, d), lr in zip(rates.items(), lrs, strict=True):
            t = d[role]
            assert (t.multiplier, t.init_std**2, t.lr) == tuple(map(Power.parse, (multiplier, variance, lr))), role


@pytest.mark.parametrize(
    ("gauge", "optimizer", "parameterization", "where"),
    [
        *product(SHIFTED, ("sgd", "adam"), ("mup", "mssp"), ({"regime": "I"}, {"regime": "III"})),
        *product(SHIFTED, OPTIMIZERS, ("mup",), ({"ray": "N=1", "architecture": "mlp"},)),
        ("table9", "adam", "mup", {"ray": "N=1,L=1", "architecture": "deep-mlp"}),
    ],
    ids=str,
)
def test_no_gauge_changes_what_training_sees(gauge, optimizer, parameterization, where):
    """a + b, a + c or 2 a + c, and d - a, exactly, for every tensor."""
    own = derive(optimizer=optimizer, parameterization=parameterization, **where)
    other = own.in_gauge(gauge)
    moved = 0
    for role, t in other.tensors.items():
        before, a = own[role], 1 / t.multiplier
        moved += t.multiplier != Power()
        assert (t.init_std is None) == (before.init_std is None)
        if t.init_std is not None:
            assert a / t.init_std == 1 / before.init_std
        rule = own.optimizer
        times = 1 if rule.normalises else 2
        if rule.relative:
            times = 0 if t.init_std is not None else 1
        assert a**times / t.lr == 1 / before.lr
        if t.eps is not None:
            assert 1 / t.eps / a == 1 / before.eps
    assert moved and other.scaling is own.scaling  # the engine's numbers are those without multipliers
    assert other.in_gauge(OWN).tensors == own.tensors == own.scaling.tensors


def test_fan_in_counts_every_index():
    """Of a tensor that sums two indices of one axis: 1/sqrt(N^2)."""
    two = network("two", "h[a,b] = W[a,b,x] data[x]\nf = V[a,b] h[a,b]", {"a": "N", "b": "N", "x": "D"})
    assert [sp(two, role).init_std for role in ("W", "V")] == [Power(), Power.of({"N": -1})]


def test_a_gauge_of_a_gauge():
    sgd, mup = OPTIMIZERS["sgd"], derive(ray="N=1", optimizer="sgd", architecture="mlp")["readout"]
    once = change_multiplier(mup, Power.parse("N^3"), sgd)
    assert once != mup and change_multiplier(change_multiplier(once, Power.parse("N_e"), sgd), Power(), sgd) == mup


def test_what_is_vector_like():
    """A router is a readout where the number of experts is fixed, a hidden matrix where it grows; copies count."""
    multiplied = {
        regime: {role for role, t in derive(regime, "adam").in_gauge("table9").tensors.items() if t.multiplier.terms}
        for regime in ("I", "II", "III")
    }
    assert multiplied["I"] == {"input", "router", "readout"}
    assert multiplied["II"] == multiplied["III"] == {"input", "readout"}
    deep = derive(ray="N=1,L=1", optimizer="adam", architecture="deep-mlp").in_gauge("table9")
    inputs = {role for role, t in deep.tensors.items() if t.multiplier == Power.parse("N^1/2")}
    assert inputs == {"embedding", "gain", "bias", "final_gain"}  # layers are no width


def test_exponents_are_those_without_multipliers():
    """Negative control: a scaling with multipliers is no point of the engine."""
    d = derive(ray="N=1", optimizer="adam", architecture="mlp")
    with pytest.raises(ValueError, match="without multipliers"):
        Scaling(d.in_gauge("table8").tensors).point(d.ray)
    assert TensorScaling(Power(), Power()).multiplier == Power()


@pytest.mark.parametrize("gauge", SHIFTED)
def test_recipes_in_a_gauge(gauge):
    """Multiplier, std, lr, eps and decay of a recipe keep what the recipe without multipliers keeps."""
    sizes = ("N=256,N_e=64,M=8,K=8,L=2", "N=1024,N_e=256,M=8,K=8,L=2")
    own, other = (recipe(*sizes, optimizer="adamw", gauge=g) for g in (OWN, gauge))
    assert "multiplier" in other["router"] and "multiplier" not in own["router"]
    for role in own:
        m = other[role]["multiplier"].factor if "multiplier" in other[role] else 1.0
        x, y = ({what: s.factor for what, s in r[role].items()} for r in (own, other))
        assert m * y["init_std"] == pytest.approx(x["init_std"])
        assert m * y["lr"] == pytest.approx(x["lr"])
        assert y["eps"] / m == pytest.approx(x["eps"])
        assert y["lr"] * y["decay"] == pytest.approx(x["lr"] * x["decay"])
    assert own.multipliers == other.multipliers
