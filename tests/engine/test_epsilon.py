"""The regime of an optimizer's epsilon: derived as an exponent, or negligible, so that only gradients normalise."""

import json
from itertools import product

import pytest

from scaling_algebra import REGIMES, Configuration, NotFound, UsageError, derive, explain, phases, read_network, signals
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.parameterizations import DERIVED

from ..shared import scalecalc

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


STATE_SPACE = """
axes = { a = "N", d = "N", c = "C", x = "D", t = "S", s = "S" }
roles = { E = "embedding", U = "readout" }
equations = '''
h0[t,a] = E[a,x] data[t,x]
v[t,d]  = Wi[d,a] h0[t,a]
m[t,c]  = Wb[c,d] v[t,d]
q[t,c]  = Wc[c,d] v[t,d]
p[t,s]  = q[t,c] m[s,c]
y[t,d]  = p[t,s] v[s,d]
h1[t,a] = h0[t,a] + Wo[a,d] y[t,d]
f       = U[a] h1[t,a]
'''
"""


def test_where_a_derived_epsilon_has_no_common_solution_the_negligible_one_is_tried(tmp_path):
    """A state-space layer whose maps to a fixed state have std and rate 1/N; a regime that is chosen stays."""
    file = tmp_path / "own.toml"
    file.write_text(STATE_SPACE)
    asked = ["derive", "--network", str(file), "--ray", "N=1", "--parameterization", "mup", "--format", "json"]
    found = scalecalc(*asked)
    assert found.exit_code == 0 and "found with --epsilon negligible" in found.stderr and found.stderr.count("\n") == 1
    record = json.loads(found.stdout)
    assert record["epsilon"] == "negligible" and record["tensors"]["Wb"]["init_std"] == {"N": "-1"}
    with pytest.raises(NotFound, match="no common solution"):
        derive(None, "adam", "mup", ray="N=1", network=read_network(str(file)), epsilon="derived")
