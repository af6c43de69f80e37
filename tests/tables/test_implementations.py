"""Shipped rules: transcribed whole, compared as stated, and both checkers see a planted error.

How many powers of every rule differ is shown in `docs/implementations.md`, which `tests/docs` runs.
"""

import tomllib
from fractions import Fraction

import pytest

from scaling_algebra import derive
from scaling_algebra.documents.frames import rows as rows_of
from scaling_algebra.spec.given import Given
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.implementations.comparison import hold
from scaling_algebra.tables.implementations.shipped import FOLDER, NAMES, parse, rules

HEAD = """
title = "a rule"
repository = "nobody/nothing"
read = "2026-11-23"
optimizer = "adam"
epsilon = ["{epsilon}"]
parameterization = "mup"
architecture = "mlp"
[[place]]
file = "a.py"
says = "everything"
[[rule]]
regimes = ["I"]
covers = ["I"]
"""


def planted(tensors, epsilon="derived"):
    """One rule for the dense MLP."""
    rows = "\n".join(f"{role} = {{ {settings} }}" for role, settings in tensors.items())
    (rule,) = parse("planted", f"{HEAD.format(epsilon=epsilon)}[rule.tensors]\n{rows}\n")
    return rule


def written(d, **changed):
    """A derivation as the tensors of a rule, some settings changed."""
    return {
        role: ", ".join(
            f'{k} = "{changed.get(f"{role}_{k}", v)}"'
            for k, v in (("init", d[role].init_std), ("lr", d[role].lr), ("eps", d[role].eps))
        )
        for role in d
    }


@pytest.fixture(scope="module")
def dense():
    return derive("I", "adam", "mup", architecture="mlp")


def test_the_derivation_itself_is_equal(dense):
    held = hold(planted(written(dense)), "I", "derived")
    assert len(held.cells) == 9 and not held.differing
    assert held.verdict == "holds" and held.covered


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"hidden_lr": "1"}, "h2.effective"), ({"hidden_init": "1"}, "h2.propagating"), ({"readout_eps": "N"}, "W3")],
)
def test_a_planted_wrong_rule_is_reported(dense, changed, says):
    held = hold(planted(written(dense, **changed)), "I", "derived")
    assert [c.name for c in held.differing] == [k.replace("_", ".") for k in changed]
    assert held.verdict == "fails" and any(says in line for line in held.failures)
    (cell, *_) = held.differing
    name, power = next(iter(changed.items()))
    assert cell.as_json() == {"quantity": name.replace("_", "."), "rule": power, "derived": str(cell.derived)}
    (row,) = rows_of({"implementations": [held.as_json()]})  # what -o x.csv writes
    assert row["verdict"] == "fails" and row["covered"] is True


@pytest.mark.parametrize(("decay", "differs"), [("N", []), ("N^1/2", ["hidden.decay"]), ("1", ["hidden.decay"])])
def test_decay_takes_one_share_at_every_size(dense, decay, differs):
    """Torch multiplies it by the learning rate 1/N, whatever the multiplier in the forward pass."""
    rule = planted({"hidden": f'multiplier = "1/N", init = "N^1/2", lr = "1/N", decay = "{decay}"'}, "negligible")
    assert [c.name for c in hold(rule, "I", "negligible").differing if c.name.endswith("decay")] == differs


def test_two_tables_of_tensor_programs_v_are_one_rule():
    """Table 8 has a multiplier and Table 3 has none: by hand, Adam, std, lr and eps of the readout."""
    readout = 'multiplier = "1/N", init = "1", lr = "1", eps = "1/N"'
    rule = planted({"readout": readout})
    assert {k: str(v) for k, v in rule.as_given(OPTIMIZERS["adam"]).items()} == {
        "readout.init": "N^-1",
        "readout.lr": "N^-1",
        "readout.eps": "1",
    }
    assert str(rule.as_given(OPTIMIZERS["sgd"])["readout.lr"]) == "N^-2"


def test_what_fails_is_what_derive_given_says():
    """The same question by another way: everything held, nothing left to derive."""
    (rule,) = [r for r in rules() if r.name == "megatron-lm"]
    held = hold(rule, "II", "negligible")
    adamw = OPTIMIZERS["adamw"].with_epsilon("negligible")
    given = Given.of({**rule.as_given(adamw), "aggregation": "1/M"}, rule.network, adamw)
    other = derive("II", "adamw", "mup", epsilon="negligible", given=dict(given.items))
    assert held.failures and held.failures == other.unmet
    assert (len(held.cells), len(held.differing)) == (10, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_where_its_rules_stand(name):
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    assert "/" in data["repository"] and data["place"] and data["assumes"]
    for rule in parse(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8")):
        assert set(rule.covers) <= set(rule.regimes)
        assert set(rule.tensors) == set(rule.network.tensors)
        scaled = any("eps" in settings for settings in rule.tensors.values())
        assert scaled == ("derived" in rule.epsilon)


def test_a_relative_step_from_zero_is_moved_as_the_gauges_move_it():
    """It is relative to a constant, so that its rate takes the multiplier: with W = w/N, lr 1 of w is 1/N of W."""
    for init, lr in (("0", "N^-1"), ("1", "1")):
        rule = planted({"readout": f'multiplier = "1/N", init = "{init}", lr = "1"'}, "negligible")
        assert str(rule.as_given(OPTIMIZERS["adafactor"])["readout.lr"]) == lr


def test_a_power_without_multiplier_stays_what_it_is():
    rule = planted({"hidden": 'init = "N^-1/2", lr = "1/N"'})
    given = rule.as_given(OPTIMIZERS["adam"])
    assert given == {"hidden.init": Power.of({"N": Fraction(-1, 2)}), "hidden.lr": Power.of({"N": -1})}
