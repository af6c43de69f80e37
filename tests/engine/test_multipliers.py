"""Multipliers are unknowns like any other, a gauge is fixed by one rule, and frozen tensors have no rate."""

from fractions import Fraction

import pytest

from scaling_algebra import Configuration, derive, network, prove, signals
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.networks.multipliers import find_gauges

LORA = network(
    "low-rank",
    """
    z[r] = A[r,x] data[x]
    h[b] = W[b,x] data[x] + s B[b,r] z[r]
    f    = U[b] h[b]
    """,
    {"x": "D", "b": "C", "r": "N_e"},
)
TIED = network(
    "tied",
    """
    h1[a] = emb E[a,x] data[x]
    h2[b] = V[b,a] h1[a]
    f     = out E[b,x] h2[b] data[x]
    """,
    {"a": "N", "b": "N", "x": "D"},
)
UNTIED = network(
    "untied",
    """
    h1[a] = emb E[a,x] data[x]
    h2[b] = a V[b,a] h1[a]
    f     = U[b] h2[b]
    """,
    {"a": "N", "b": "N", "x": "D"},
)
RATES = {"A.lr": "1", "B.lr": "1", "U.lr": "1", "W.lr": "1"}


def asked(net, ray, optimizer="adam", given=None, **where):
    return derive(None, optimizer, "mup", ray=ray, network=net, given=given, **where)


@pytest.mark.parametrize(
    ("optimizer", "given", "multiplier", "rate"),
    [
        ("adam", {**RATES, "B.init": 0}, "N_e^-1", "1"),
        ("adam", {"s": "1", "B.init": 0}, "1", "N_e^-1"),
        ("adam", {"s": "N_e^-1", "B.init": 0}, "N_e^-1", "1"),
        ("adam", {"B.lr": "N_e^-1/2", "B.init": 0}, "N_e^(-1/2)", "N_e^(-1/2)"),
        ("sgd", {**RATES, "B.init": 0}, "N_e^(-1/2)", "1"),
        ("adam", {"B.init": 0}, "1", "N_e^-1"),
    ],
)
def test_lora_over_its_rank(optimizer, given, multiplier, rate):
    d = asked(LORA, "N_e=1", optimizer, given)
    power = d.scaling.multipliers.get("s")
    assert str(1 / power if power else 1) == multiplier and str(d["B"].lr) == rate


@pytest.mark.parametrize(
    ("net", "given", "powers"),
    [
        (TIED, {"emb": "N^1/2"}, ("N^(-1/2)", "N^(-1/2)", "N^(-1/2)")),
        (TIED, {"out": "N^-1/2"}, ("N^(-1/2)", "N^(-1/2)", "N^(-1/2)")),
        (TIED, {"E.init": "N^-1/2"}, ("N^(-1/2)", "N^(-1/2)", "N^(-1/2)")),
        (TIED, None, ("1", "1", "N^-1")),
    ],
)
def test_a_tied_embedding_with_a_multiplier_on_each_side(net, given, powers):
    """Any member of the class can be given: the others are the same parameterization."""
    d = asked(net, "N=1", given=given)
    assert (str(d["E"].init_std), str(d["E"].lr), str(1 / d.scaling.multipliers["out"])) == powers
    assert not d.unmet


def test_a_multiplier_in_front_of_a_matrix_moves_its_init_and_its_rate():
    d = asked(UNTIED, "N=1", given={"emb": "N^1/2", "a": "N^-1/2"})
    assert (str(d["E"].init_std), str(d["E"].lr)) == ("N^(-1/2)", "N^(-1/2)")
    assert (str(d["V"].init_std), str(d["V"].lr)) == ("1", "N^(-1/2)")
    assert not d.unmet
    plain = asked(UNTIED, "N=1")
    assert (str(plain["V"].init_std), str(plain["V"].lr)) == ("N^(-1/2)", "N^-1")
    assert find_gauges(plain.network) == ("emb", "a")
    assert "init and rate of V absorb it" in plain.reasons["aggregation", "a"]


def test_an_init_that_is_given_opens_the_multiplier_before_it():
    d = asked(UNTIED, "N=1", given={"V.init": "1"})
    assert (str(1 / d.scaling.multipliers["a"]), str(d["V"].lr)) == ("N^(-1/2)", "N^(-1/2)") and not d.unmet
    d = asked(UNTIED, "N=1", given={"V.init": "1", "V.lr": "N^-1/2"})
    assert str(1 / d.scaling.multipliers["a"]) == "N^(-1/2)" and not d.unmet
    assert asked(UNTIED, "N=1", given={"V.init": "1", "V.lr": "N^-1"}).unmet


def test_a_gauge_is_freedom_and_nothing_else():
    """No library network has one, and a sum over experts is none: its multiplier changes what is computed."""
    assert not any(find_gauges(n) for n in ARCHITECTURES.values())
    axes = {"x": "D"}
    assert find_gauges(network("tensorless", "h = V[x] data[x]\nf = a h", axes)) == ()
    assert find_gauges(network("one", "f = a b V[x] data[x]", axes)) == ("a", "b")
    assert find_gauges(network("twice", "h = a V[x] data[x]\ng = V[x] data[x]\nf = h + g", axes)) == ()
    with pytest.raises(UsageError, match="named 'q'"):
        asked(UNTIED, "N=1", given={"q": "1"})


def test_tensors_of_one_module_have_scales_of_their_own():
    """Roles may be names of parameters; what stands before their first point is not the tensor."""
    roles = {"E": "block.e", "V": "block.v", "U": "block.u"}
    text = "h1[a] = emb E[a,x] data[x]\nh2[b] = a V[b,a] h1[a]\nf = U[b] h2[b]"
    net = network("module", text, {"a": "N", "b": "N", "x": "D"}, roles)
    assert find_gauges(net) == find_gauges(UNTIED) == ("emb", "a")
    d, plain = asked(net, "N=1"), asked(UNTIED, "N=1")
    assert not d.unmet and all(d[role] == plain[symbol] for symbol, role in roles.items())
    d = asked(net, "N=1", given={"block.v.init": "1"})
    assert (str(1 / d.scaling.multipliers["a"]), str(d["block.v"].lr)) == ("N^(-1/2)", "N^(-1/2)") and not d.unmet


def test_a_frozen_tensor_has_no_rate_and_the_rest_follows():
    d = derive("III", "adam", "mup", given={"router.lr": 0})
    free = derive("III", "adam", "mup")
    assert d["router"].lr is None and d.exponents("router") == (Fraction(1, 2), None, None)
    assert all(d[role] == free[role] for role in d if role != "router") and not d.unmet
    assert "frozen" in str(d) and d.as_json()["tensors"]["router"]["lr"] is None
    quantities = signals(d.configuration, steps=2).quantities
    assert all(a.decided and a.exponent is None for a in quantities["dQ"])
    assert quantities["psi.change"][2].exponent == 0  # what it reads has moved


def test_what_is_frozen_has_no_unknown_rate_in_a_proof():
    """Nor has a proof a multiplier that is free where it is given; a wrong rate is still refuted."""
    frozen = from_toml(as_toml(LORA).replace("equations", 'frozen = ["W", "U"]\nequations', 1))
    asked_for = {"ray": "N_e=1", "optimizer": "sgd", "parameterization": "mup", "network": frozen}
    given = {"B.init": 0, "s": "N_e^-1"}
    proof = prove(**asked_for, given=given)
    assert proof.unique and proof.agrees(derive(**asked_for, given=given).scaling)
    assert prove(**asked_for, given=given | {"B.lr": "1"}).unique is False


def test_a_frozen_tensor_does_not_decay():
    """It and what it makes stay; a tensor that trains decays, and moves what it makes."""
    names = ("dW1", "h1.change", "dW2", "h2.change", "dW3")
    for given, still in (({"input.lr": 0}, (None, None)), (None, (0, 0))):
        look = asked(ARCHITECTURES["mlp"], "N=1", "adamw", given=given).analysis()
        sizes = tuple(look(f"{name}.with-decay", 1) for name in names)
        assert all(a.decided for a in sizes) and tuple(a.exponent for a in sizes) == (*still, -Fraction(1, 2), 0, -1)


def test_a_file_names_frozen_tensors():
    text = as_toml(LORA).replace("equations", 'frozen = ["W"]\nequations', 1)
    frozen = from_toml(text)
    assert frozen.frozen == {"W"} and from_toml(as_toml(frozen)) == frozen
    assert from_toml(text.replace('["W"]', str(["W"] * 101))) == frozen  # a deep model freezes hundreds
    d = asked(frozen, "N_e=1", given={"B.init": 0})
    assert d["W"].lr is None and str(d["B"].lr) == "N_e^-1" and not d.unmet
    assert Configuration.from_json(d.configuration.as_json()) == d.configuration
    for defined in ("sp", "ntp", "mean-field"):
        d = derive(ray="N_e=1", optimizer="sgd", parameterization=defined, network=frozen)
        assert d["W"].lr is None and d["B"].lr is not None and d.reasons["W", "lr"] == "frozen: it has no learning rate"
        assert d.analysis()("dW", 1).exponent is None
    for wrong, words in (
        ('frozen = ["V"]', "named 'V'"),
        ("frozen = [1]", "frozen 1 is 1; it must be a text"),
        ('frozen = "W"', r"frozen is 'W'; it must be a list, such as \['W'\]"),
    ):
        with pytest.raises(UsageError, match=words):
            from_toml(text.replace('frozen = ["W"]', wrong))
    with pytest.raises(UsageError, match="W is frozen"):
        asked(frozen, "N_e=1", given={"W.lr": "1"})
