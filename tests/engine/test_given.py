"""Exponents that are given: they are held, the rest is derived, and what does not hold with them is named."""

import json
from fractions import Fraction

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from scaling_algebra import Configuration, Power, UsageError, derive, explain, prove, signals
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.desiderata import HORIZON, Structure, mup_demands
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.spec.networks.indices import find_aggregations

from ..shared import scalecalc

HALF = Fraction(1, 2)
ALL_HOLD = "every desideratum holds with what is given"


def settings_of(d):
    """Everything that can be given, with the derived powers."""
    for role, s in d.scaling.tensors.items():
        yield f"{role}.init", s.init_std
        yield f"{role}.lr", s.lr
        if s.eps is not None:
            yield f"{role}.eps", s.eps
    if find_aggregations(d.network):
        yield "aggregation", 1 / d.scaling.alpha


@drawn(st.dictionaries(st.sampled_from(list(AXES)), st.fractions(-3, 3, max_denominator=8)))
def test_powers_are_read_as_they_are_printed(exponents):
    power = Power.of(exponents)
    assert Power.parse(str(power)) == power
    assert Power.parse(str(power).replace("(", "").replace(")", "")) == power


def test_powers_as_people_write_them():
    for text in ("1/N", "N^-1", " N^(-1) ", "1*N^-1", "N^-2 N"):
        assert Power.parse(text) == Power.of({"N": -1}), text
    assert Power.parse("M^1/2/N") == Power.of({"M": HALF, "N": -1})
    for wrong in ("", "N^", "N^(1", "^2", "/N", "2", "1/2", "N^1/0", "N^0.5", "N^--1", "0", "N -1"):
        with pytest.raises(UsageError, match="cannot read the power"):
            Power.parse(wrong)


def test_it_is_a_part_of_the_configuration():
    """As a dict, as texts, by role and by symbol, in any order: one question, which JSON keeps."""
    one = Configuration.of("III", "adam", given={"router.init": "N^-1/2", "W4.init": 0, "aggregation": "M^-1"})
    two = Configuration.of("III", "adam", given=["aggregation=1/M", "readout.init = 0", "Q.init=N^(-1/2)"])
    assert one == two and hash(one) == hash(two) and one.readout_init == "zero"
    assert Configuration.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert str(one).endswith("given router.init = N^(-1/2), readout.init = 0, aggregation = M^-1")
    assert one.but(given=None, readout_init="maximal") == Configuration.of("III", "adam")
    assert Configuration.of("III", "adam").but(given={"router.lr": Power()}).given.as_json() == {"router.lr": "1"}
    with pytest.raises(UsageError, match="epsilon of adam is negligible"):
        Configuration.of("III", "adam", given={"router.eps": "1/N"}).but(epsilon="negligible")


@pytest.mark.parametrize(("given", "words"), [({"router.init": 0.5}, "cannot read the power '0.5'"), (3, "given is 3")])
def test_what_is_no_text_is_refused(given, words):
    with pytest.raises(UsageError, match=words):
        Configuration.of("III", "sgd", given=given)


def test_axes_are_those_of_the_network():
    for given, words in (({"hidden.init": "M"}, "axis of mlp"), ({"aggregation": "1"}, "mlp has no sum over experts")):
        with pytest.raises(UsageError, match=words):
            Configuration.of("III", "sgd", architecture="mlp", given=given)


@pytest.mark.parametrize(
    ("regime", "rule", "epsilon", "parameterization"),
    [("I", "sgd", None, "mup"), ("II", "adam", "derived", "mup"), ("III", "adam", "negligible", "mup")],
)
def test_what_is_derived_may_be_given(regime, rule, epsilon, parameterization):
    """Any one of the derived exponents, or all of them: the rest is as before and every desideratum holds."""
    plain = derive(regime, rule, parameterization, epsilon=epsilon)
    found = dict(settings_of(plain))
    for given in [found, *({name: power} for name, power in found.items())]:
        d = derive(regime, rule, parameterization, epsilon=epsilon, given=given)
        assert d.unmet == () and ALL_HOLD in str(d), given
        assert d.scaling.point(d.ray) == plain.scaling.point(d.ray), given
        assert not any(f"{what}.{role}" in d.fixed_by for role, what in (n.split(".") for n in given if "." in n))


def test_rates_that_are_given_are_named_first():
    """One rate for all of a dense network under Adam: its epsilons do not settle, which is no wrong usage."""
    d = derive("I", "adam", "mup", architecture="mlp", given=[f"{x}.lr=1" for x in ("input", "hidden", "readout")])
    said = str(d).partition("does not hold with what is given")[2].split()
    assert " ".join(said).startswith(
        "given power, and the power derived without it: hidden.lr = 1 (N^-1), readout.lr = 1 (N^-1) what follows:"
    )


def test_standard_readout_under_mup():
    """App. G of the MSSP paper: with a readout of std N^-1/2 what its layer passes on diverges, and that is named."""
    d = derive("III", "sgd", "mup", given={"readout.init": "N^-1/2"})
    assert any("f.propagating ~ n^(1/2)" in line for line in d.unmet)
    assert d.reasons["readout", "init"].startswith("given; mu-2: propagating update W4_0 dh3")
    assert (str(d.level), d.level.code) == ("3 demands fail", 1)
    assert d.as_json()["unmet"] == list(d.unmet) and "does not hold with what is given" in str(d)
    assert "given power, and the power derived without it: readout.init = N^(-1/2) (N^-1)" in str(d)
    assert "what follows: input.lr = N^(1/2) (N), router.lr = M N^(-3/2) (M N^-1)" in str(d)
    assert list(d.reasons)[:2] == [("input", "init"), ("input", "lr")]
    assert explain("readout.init", d.configuration).because == d.reasons["readout", "init"]
    assert signals(d.configuration, steps=1, quantities="h3").derivation.scaling == d.scaling


def test_of_several_structures_the_one_with_the_fewest_failures_is_taken():
    """A readout whose rate is too large fails three demands of its own in the structure of MSSP, and many elsewhere."""
    free, d = (derive("II", "sgd", "mssp", given=given) for given in ({}, {"readout.lr": "1"}))
    assert d.structure[0] == free.structure[0] == "chosen: h3i free before aggregation" and len(d.unmet) == 3


def test_the_rest_is_as_derived_where_it_is_not_found_anew():
    """A rate at which a gate saturates: the search found no parameterization at all."""
    d = derive("II", "adam", "mup", given={"router.lr": "N^-1/2"})
    assert d.unmet[0].endswith("but psi.effective + psi.cross ~ n^(1/2) at t=2") and d.level.failed == 3
    assert d.scaling.tensors["input"] == derive("II", "adam", "mup").scaling.tensors["input"]
    asked = ("--regime", "II", "--parameterization", "mup", "--given", "router.lr=N^-1/2")
    said = scalecalc("derive", "--optimizer", "adam", *asked).output
    assert "to search longer: --effort" in said and "stand in the way" not in said  # its only function is held
    assert d.reasons["input", "lr"] == "as if nothing were given: mu-2: effective update dW1 data = Theta(1)"


def test_zero_is_a_value_of_its_own():
    d = derive("III", "sgd", "mup", given={"router.init": 0})
    assert d["router"].init_std is None and d.exponents("router")[0] is None and d.structure == ()
    assert d.reasons["router", "init"] == "given"
    mssp = derive("I", "adam", "mssp", given={"router.init": 0})
    assert mssp.unmet == () and mssp.scaling == derive("I", "adam", "mssp").scaling
    one = derive("I", "adam", "mssp", given={"router.init": "N^-2"})
    assert one["router"].init_std is not None and one.unmet


def test_defined_parameterizations_take_it_and_claim_nothing():
    plain = derive("III", "sgd", "sp")
    d = derive("III", "sgd", "sp", given={"router.lr": "1/N", "aggregation": "1"})
    assert str(d["router"].lr) == "N^-1" and str(d.scaling.alpha) == "1" and d.reasons["router", "lr"] == "given"
    assert d["input"] == plain["input"] and ALL_HOLD not in str(d)
    borrowed = derive("I", "sgd", "mup-sigmoid", architecture="routers-softmax", given={"router.lr": "N"})
    assert str(borrowed["router"].lr) == "N"


@pytest.mark.parametrize(("regime", "rule", "net", "role"), [("I", "sgd", "mlp", "hidden")])
def test_held_unknowns_are_equations_of_the_proof(regime, rule, net, role):
    """Of the block, and with Adam: ``tests/measure/test_whole_blocks.py``."""
    asked = {"regime": regime, "optimizer": rule, "parameterization": "mup", "architecture": net}
    right = {f"{role}.init": "N^-1/2", f"{role}.lr": derive(**asked)[role].lr}
    proof = prove(**asked, given=right)
    assert proof.unique and proof.agrees(derive(**asked, given=right).scaling)
    for wrong in ("readout.init = N^(-1/2)", f"{role}.lr = N^2"):
        none = prove(**asked, given=[wrong.replace(" ", "")])
        assert none.outcome.verdict == "impossible" and f"given: {wrong}" in none.outcome.core


def test_epsilon_is_compared_with_the_only_one():
    asked = {"regime": "I", "optimizer": "adam", "parameterization": "mup", "architecture": "mlp"}
    assert prove(**asked, given={"hidden.eps": derive(**asked)["hidden"].eps}).unique
    assert prove(**asked, given={"hidden.eps": "N"}).outcome.verdict == "impossible"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--given", "router.init=N^-1/2"], 0, ALL_HOLD),
        (["--given", "readout.init=N^-1/2"], 1, "f.propagating ~ n^(1/2) at t=1\n  and 2 more (mu-1 2): --why\n"),
        (["--given", "readout.init=N^-1/2", "--why"], 1, "  mu-1: f stays O(1), but f ~ n^(1/2) at t=1"),
        (["--regime", "I", "--architecture", "mlp", "--given", "readout.init=1", "--prove"], 1, "proof: impossible"),
        (["--given", "expert_out.init=0", "--given", "expert_in.init=0"], 1, "found no muP"),
    ],
)
def test_exit_codes(options, code, words):
    asked = ("derive", "--regime", "III", "--optimizer", "sgd", "--parameterization", "mup")
    result = scalecalc(*asked, *options, prog_name="scalecalc")
    assert (result.exit_code, words in result.output) == (code, True), result.output


TWO = """
axes = { a = "N", b = "N", c = "N", x = "D", r = "rank" }
frozen = ["E", "V", "W", "U"]
zero = ["B1", "B2"]
equations = '''
h0[a] = E[a,x] data[x]
h1[b] = h0[b] + V[b,a] h0[a] + B1[b,r] A1[r,a] h0[a]
h2[c] = h1[c] + W[c,b] h1[b] + B2[c,r] A2[r,b] h1[b]
f     = U[c] h2[c]
'''
"""


def test_tensors_of_a_network_start_at_zero():
    """Adapters: one that reads what another moves starts smaller; and by descent there are no numbers."""
    network = from_toml(TWO)
    assert from_toml(as_toml(network)).zero == network.zero == {"B1", "B2"}
    d = derive(ray="N=1", optimizer="adam", network=network, epsilon="negligible")
    assert d.level.certified and [str(d[x].init_std) for x in ("A1", "A2", "B2")] == ["N^(-1/2)", "N^-1", "None"]
    assert {str(d[x].lr) for x in ("A1", "A2")} == {"N^-1"} and {str(d[x].lr) for x in ("B1", "B2")} == {"1"}
    assert "declares that it starts at zero" in d.reasons["B1", "init"]
    drawn = derive(ray="N=1", optimizer="sgd", network=network, given={"B1.init": 1, "B2.init": 1})
    assert drawn["B1"].init_std is not None and "B1.init = 1" in str(drawn)
    with pytest.raises(Infeasible):
        derive(ray="N=1", optimizer="sgd", network=network)
    with pytest.raises(UsageError, match="zero: no tensor named 'B3'"):
        from_toml(TWO.replace('"B2"]', '"B3"]'))


def test_what_starts_at_zero_puts_others_to_sleep():
    """Behind B of LoRA a first gradient may be smaller than the next: one update more is looked at; of what starts at
    zero on the way, the readout alone does not count."""
    network = from_toml(TWO.replace(', "U"]', "]"))
    last = {
        x: mup_demands(network, Structure(zero=frozenset(x)))[0].horizon
        for x in ((), ("B1",), ("A1", "B1"), ("U",), ("B1", "U"))
    }
    assert last == {
        (): HORIZON,
        ("B1",): HORIZON + 1,
        ("A1", "B1"): HORIZON + 1,
        ("U",): HORIZON,
        ("B1", "U"): HORIZON + 1,
    }


@pytest.mark.parametrize(("init", "fails"), [("N^-1/2", True), ("N^-1", False), ("N^-3/2", False), ("N^-2", False)])
def test_a_readout_may_start_anywhere_from_zero_to_its_maximal_init(init, fails):
    """Trained, the change of the output is flat for N^-1, N^-3/2, N^-2 and zero."""
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", architecture="mlp", given={"readout.init": init})
    assert bool(d.level.failed) == fails and str(d["hidden"].lr) == "N^-1"


def test_another_tensor_may_not_start_below_its_maximal_init():
    d = derive("I", "adam", "mup", architecture="mlp", given={"hidden.init": "N^-1"})
    assert d.level.failed
