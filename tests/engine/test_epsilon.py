"""The regime of an optimizer's epsilon: derived as an exponent, or negligible, so that only gradients normalise."""

import json
from itertools import product

import pytest

from scaling_algebra import REGIMES, Configuration, UsageError, derive, explain, phases, signals
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.parameterizations import DERIVED

WITH = [name for name, rule in OPTIMIZERS.items() if rule.epsilon]


def test_it_is_a_part_of_the_configuration():
    asked = Configuration.of("III", "adam", epsilon="negligible")
    assert str(asked).endswith(", epsilon negligible") and asked.as_json()["epsilon"] == "negligible"
    assert Configuration.from_json(json.loads(json.dumps(asked.as_json()))) == asked
    plain = Configuration.of("III", "adam")
    assert str(plain).endswith(", epsilon derived") and plain == Configuration.of("III", "adam", epsilon="derived")
    assert plain.but(epsilon="negligible") == asked and asked.but(epsilon="derived") == plain
    assert asked.but(optimizer="adamw").optimizer == optimizer("adamw")  # another one comes as it is by default
    old = {key: value for key, value in plain.as_json().items() if key != "epsilon"}
    assert Configuration.from_json(old) == plain


@pytest.mark.parametrize("name", [name for name, rule in OPTIMIZERS.items() if not rule.epsilon])
def test_without_an_epsilon_it_is_refused_and_not_mentioned(name):
    asked = Configuration.of("III", name)
    assert "epsilon" not in str(asked) and asked.as_json()["epsilon"] is None
    with pytest.raises(UsageError, match=f"{name} has no epsilon"):
        Configuration.of("III", name, epsilon="negligible")


@pytest.mark.parametrize(
    ("name", "regime", "parameterization"),
    [*product(["adam"], REGIMES, DERIVED), *((name, "III", "mssp") for name in WITH if name != "adam")],
)
def test_negligible_is_sign_descent_with_a_memory(name, regime, parameterization):
    """As Lion, the other rule that normalises by past gradients: no d, and no demand on it."""
    d = derive(regime, name, parameterization, epsilon="negligible")
    assert d.scaling == derive(regime, "lion", parameterization).scaling
    assert all(s.eps is None for s in d.scaling.tensors.values()) and not any(u[0] == "d" for u in d.fixed_by)


def test_every_verb_takes_it():
    where = {"epsilon": "negligible"}
    assert signals("II", "adam", "mup", steps=1, **where).about.endswith("epsilon negligible")
    assert explain("readout.eps", "I", "adam", "mup", **where).because == "the epsilon of adam is negligible"
    assert explain("router.lr", "I", "adam", "mup", **where).value == derive("I", "lion")["router"].lr
    with pytest.raises(UsageError, match="no epsilon regime named"):
        phases("adam", epsilon="small")
