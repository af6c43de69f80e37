"""An optimizer for every tensor: read from texts and dicts, derived by the rule of each tensor."""

import re
from itertools import combinations_with_replacement

import pytest

from scaling_algebra import Infeasible, Optimizer, UsageError, derive, formula, network, prove, recipe
from scaling_algebra.errors import unknown_name_error
from scaling_algebra.solver.demands import provable
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.optimizer_reading import compile_glob, hidden_matrices, read_optimizers
from scaling_algebra.spec.optimizers import CONSTRAINTS, OPTIMIZERS, optimizer

from .test_axes import HEADS

MOE = ARCHITECTURES["moe"]


@pytest.mark.parametrize(
    "same",
    [
        "adamw,expert_in=muon,W3=muon",
        " adamw , hidden = muon ",
        {"": "adamw", "hidden": "muon"},
        "muon + adamw",
        "sgd,*=adamw,expert_*=muon",
    ],
)
def test_one_meaning_however_it_is_written(same):
    found, usual = read_optimizers(same, MOE), read_optimizers("muon+adamw", MOE)
    assert [found.of(role) for role in MOE.tensors] == [usual.of(role) for role in MOE.tensors]
    assert [usual.of(role).name for role in MOE.tensors] == ["adamw", "adamw", "muon", "muon", "adamw"]
    again = Configuration.of("III", same, epsilon="negligible")
    assert Configuration.from_json(again.as_json()) == again and again.optimizer.of("router").negligible


def test_a_tensor_in_parts_goes_by_its_own_name():
    text = "h[a] = E[a,x] data[x]\nq[b] = Q0[b,a] h[a]\nk[b] = Q1[b,a] h[a]\ny[b] = q[b] + k[b]\nf = U[b] y[b]"
    axes = 'axes = { a = "N", b = "N", x = "D" }\nroles = { Q0 = "l.*.q[0]", Q1 = "l.*.q[1]" }'
    mine = from_toml(f"{axes}\nequations = '''{text}'''", "m.toml", "m")
    for asked, rules in (
        ({"": "adamw", "hidden": "muon", "l.*.q": "sgd"}, ["sgd", "sgd"]),
        ({"": "adamw", "l.*.q[1]": "muon", "...q": "sgd", "Q0": "lion"}, ["lion", "muon"]),
    ):
        found = read_optimizers(asked, mine)
        assert [found.of(f"l.*.q[{k}]").name for k in (0, 1)] == rules
    with pytest.raises(UsageError, match=r"no tensor of m named 'l\.\*\.p'; did you mean 'l\.\*\.q\[1\]'"):
        read_optimizers({"": "adamw", "l.*.p": "muon"}, mine)
    assert not compile_glob("*a" * 60 + "b").fullmatch("a" * 200)  # at once
    names = [f"{x}_very_long_name_of_a_tensor_that_fills_a_line_by_itself" for x in "abcdefghijkl"]
    told = str(unknown_name_error("tensor", "z", names))
    assert re.search(r"known: (?:\w+_itself, )+\d more$", told) and "..." not in told


def test_an_optimizer_of_a_file_is_that_of_its_attributes(tmp_path):
    (tmp_path / "own.toml").write_text('torch = "NAdam"\nnormalises = "entry"\nmemory = true\nepsilon = true\n')
    name, adam = str(tmp_path / "own.toml"), OPTIMIZERS["adam"]
    own = Optimizer(name, "NAdam", normalises="entry", memory=True, epsilon=True)
    assert optimizer(name) == own and read_optimizers(f"muon+{name}", MOE).of("router") == own
    assert derive("III", own, "mup").tensors == derive("III", name, "mup").tensors == derive("III", adam, "mup").tensors
    assert derive("III", name, "mup").tensors != derive("III", "sgd", "mup").tensors
    assert Configuration.from_json(Configuration.of("III", name).as_json()).optimizer == own


@pytest.mark.parametrize(
    "said", ["", 'torch = ""', 'torch = ""\nmemory = false', 'normalises = ""', "decoupled_decay = true"]
)
def test_a_file_that_says_of_no_optimizer_what_it_is_is_refused(tmp_path, said):
    (tmp_path / "own.toml").write_text(said)
    with pytest.raises(UsageError, match=r"own\.toml describes no optimizer; write for example normalises"):
        optimizer(str(tmp_path / "own.toml"))


def test_matrices_in_blocks_of_a_fixed_side_have_the_rates_of_entries(tmp_path):
    """Whichever normaliser is written, and with none not at all."""
    expected = derive("III", "shampoo-blocks", "mup").tensors
    assert expected != derive("III", "shampoo", "mup").tensors
    for normaliser in ("matrix", "entry"):
        (tmp_path / "own.toml").write_text(f"normalises = '{normaliser}'\nmemory = true\nblocks = 4\n")
        assert derive("III", str(tmp_path / "own.toml"), "mup").tensors == expected
    with pytest.raises(UsageError, match="blocks of the optimizer own is 4; it requires a normaliser, entry or matrix"):
        Optimizer("own", torch="SGD", blocks=4)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("muon", "N^(1/2)"), ("muon:original", "1"), ("muon:match_rms_adamw", "1"), ("muon:unit_rms_norm", "1")],
)
def test_kernels_of_channels_are_the_rows_of_one_matrix(name, rate):
    """K of shape (N, 4), as torch.optim.Muon takes it: of operator norm 1, its entries are N^-1/2; one step of torch
    with rate 1 changes k by n^-0.04 (original) and n^0.01 (match_rms_adamw), N = 64 to 4096."""
    text = "h[t,a] = E[a,x] data[t,x]\nk[a] = K[a,t] h[t,a]\ny[b] = V[b,a] k[a]\nf = U[b] y[b]"
    net = network("conv", text, {"a": "N", "b": "N", "x": "D", "t": "S"})
    assert str(derive(ray="N=1", optimizer=name, parameterization="mup", network=net)["K"].lr) == rate


def test_every_key_with_every_normaliser_is_answered_or_refused_in_one_line():
    """180 pairs of keys: a derivation, or a line that names a key."""
    values = {"memory": True, "epsilon": True, "negligible": True, "shape": "original", "flattened": True, "blocks": 4}
    values |= {"per": "a", "relative": True, "constraint": "matrix", "decoupled_decay": True}
    answered = 0
    for normalises in ("", "entry", "matrix"):
        for one, other in combinations_with_replacement(values, 2):
            try:
                rule = Optimizer("own", normalises=normalises, **{one: values[one], other: values[other]})
            except UsageError as error:
                assert re.match(rf"({one}|{other}) of the optimizer own is .*; it requires ", str(error)), error
                continue
            answered += 1
            assert derive(ray="N=1", optimizer=rule, parameterization="mup", architecture="mlp").tensors
    assert 40 < answered < 100


def test_matrices_of_hidden_layers_are_no_routers_gains_or_biases():
    assert hidden_matrices(ARCHITECTURES["deep-mlp"]) == ("hidden", "hidden_out")
    roles = ("query", "key", "value", "attention_out", "expert_in", "expert_out")
    assert hidden_matrices(ARCHITECTURES["deep-transformer"]) == roles
    assert read_optimizers("adamw,expert_in=adamw", MOE) == OPTIMIZERS["adamw"]


def test_every_tensor_has_the_rate_of_its_rule():
    """Features have one size whatever trains what is below them, so that rates of tensors do not depend on others."""
    mixed, alone = derive("III", "muon+adamw"), {o: derive("III", o) for o in ("muon", "adamw")}
    for role in MOE.tensors:
        theirs = alone[mixed.optimizer.of(role).name]
        assert mixed.exponents(role) == theirs.exponents(role), role
        assert (mixed[role].eps is None) == (role in hidden_matrices(MOE))


SHAPED = {
    "muon": ("M^(1/2) N^(-1/2)", "N_e^(1/2) N^(-1/2)", "N^(1/2) N_e^(-1/2)"),
    "muon:flattened": ("M^(1/2) N^(-1/2)", "N_e^(1/2) M^(1/2) N^(-1/2)", "N^(1/2) M^(1/2) N_e^(-1/2)"),
    "muon:unit_rms_norm": ("1", "1", "1"),
}


@pytest.mark.parametrize(
    ("reading", "rate"),
    [
        ("unit_rms_norm", "1"),
        ("unit_rms_norm:per(j)", "1"),
        ("match_rms_adamw", "heads^(1/2) N^-1"),
        ("match_rms_adamw:per(j)", "N^-1"),
    ],
)
def test_blocks_of_a_matrix_are_counted_by_letters(reading, rate):
    """Source: one step of every head's block, and of the fused matrix, measured in torch (``test_model.py``)."""
    net = network("heads", HEADS, {"a": "N", "b": "N", "j": "heads", "e": "E", "x": "D", "s": "S", "t": "S"})
    d = derive(None, f"adamw,Wq=muon:{reading}", "mup", ray="N=1,heads=1", network=net)
    assert str(d["Wq"].lr) == rate and d.optimizer.of("Wq").name == f"muon:{reading}"
    with pytest.raises(UsageError, match=r"per\(b\): Wq has no index 'b'; it has j, e, a"):
        derive(None, "adamw,Wq=muon:per(b)", "mup", ray="N=1,heads=1", network=net)


@pytest.mark.parametrize("name", ["adamh", "muonh"])
def test_rates_on_a_sphere(name):
    """Relative to the norm at the start: embedding 1, hidden N^-1/2, readout 1; what starts at zero stays there."""
    d = derive(None, name, "mup", ray="N=1,N_e=1", architecture="mlp")
    assert [str(d[role].lr) for role in ("input", "hidden", "readout")] == ["1", "N^(-1/2)", "1"]
    with pytest.raises(Infeasible, match="exactly zero"):
        derive("III", name, "mssp")


@pytest.mark.parametrize("regime", ["I", "III"])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_constraint_changes_no_power_while_steps_are_no_larger_than_weights(regime, constraint):
    """muP's steps are as large as the weights at most, in every norm: rates and init are those without."""
    for name in ("adam", "muon"):
        plain = derive(regime, name, "mup", epsilon="negligible" if name == "adam" else None)
        bound = derive(regime, f"{name}:{constraint}", "mup")
        assert bound.scaling == plain.scaling
        # columns of the router are then few entries
        assert bound.level.certified is not (constraint == "columns" and regime == "I")
    if constraint != "columns":  # a readout of one row has columns of one entry, which stay free
        with pytest.raises(Infeasible, match="exactly zero"):
            derive("III", f"adam:{constraint}", "mssp")


@pytest.mark.parametrize(
    ("constraint", "rate", "why"),
    [
        ("rows", "N^-1/2", ""),
        ("rows", "1", "a step of W2 is larger than its weights; projecting them back to their norm, as adam:rows does"),
        (
            "spectral",
            "N^-3/4",
            "a step of W2 is larger than its weights; projecting them back to their norm, as adam:spectral does",
        ),
        ("spectral", "N^-1", ""),
    ],
)
def test_a_step_larger_than_its_weights_is_undecided(constraint, rate, why):
    """A row of sign steps is as large as its weights at N^-1/2, a matrix in the spectral norm at N^-1."""
    d = derive("III", f"adam:{constraint}", "mup", given={"expert_in.lr": rate})
    undecided = [line for line in d.level.lines if "larger than its weights" in line]
    assert bool(undecided) is bool(why) and all(why in line for line in undecided)


@pytest.mark.parametrize("name", SHAPED)
def test_rates_in_every_reading(name):
    d = derive("III", name)
    assert tuple(str(d[role].lr) for role in ("router", "expert_in", "expert_out")) == SHAPED[name]


def test_factors_of_shapes_that_are_maxima():
    """Source of the expectations: the factors of torch by hand, in regime II, where experts are narrow."""
    original, matched = (derive("II", f"muon:{x}") for x in ("original", "match_rms_adamw"))
    rates = [[str(d.exponents(r)[1]) for r in ("router", "expert_in", "expert_out")] for d in (original, matched)]
    assert rates == [["0", "1/2", "0"], ["1/2", "1", "0"]]
    assert [derive("II", "adamw").exponents(r)[1] for r in ("router", "expert_in", "expert_out")] == [1, 1, 0]


def test_layers_and_experts_are_matrices_of_their_own():
    ray = {"N": 1, "N_e": 1, "M": 1, "L": 1}
    d = derive(ray=ray, optimizer="muon", architecture="deep-transformer")
    assert [str(d[role].lr) for role in ("query", "router")] == ["1", "M^(1/2) N^(-1/2)"]


def test_proofs_and_formulas_say_what_they_do_not_reach():
    assert not provable(MOE, REGIMES["II"], read_optimizers("sgd,readout=adam", MOE))
    for ask, said in (
        (prove, "muon divides"),
        (lambda *x: formula("h1@1", x[1]), "takes one optimizer for all tensors"),
    ):
        with pytest.raises(UsageError, match=said):
            ask("I", "muon+adamw")


def test_a_recipe_prints_the_rate_of_the_implementation():
    base, target = "N=1024,N_e=512,M=64,K=8,L=12", "N=4096,N_e=2048,M=256,K=32,L=12"
    r = recipe(base, target, "muon:match_rms_adamw+adamw", lr=1.0, eps=1e-8)
    assert [r[role]["lr"].target for role in ("hidden", "expert_in", "router")] == [0.5, 0.5, 0.25]
    assert "eps" in r["router"] and "eps" not in r["hidden"]
    (line,) = (x for x in r.warnings if x.startswith("match_rms_adamw"))
    assert "hidden (N^(-1/2), AdamW's N^-1)" in line
    one = recipe(base, target, {"": "adamw", "hidden": "muon", "expert_in": "muon"}, lr=1.0)
    assert [one.configuration.optimizer.of(role).name for role in ("expert_in", "expert_out")] == ["muon", "adamw"]
