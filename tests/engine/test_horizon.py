"""Batch and tokens: solutions, contradictions, rules against invariants, and negative controls for each."""

from __future__ import annotations

import pytest

from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.recipes.horizon import AXES, QUANTITIES, data, horizon, of, optimizers

from ..shared import scalecalc


@pytest.mark.parametrize("optimizer", optimizers())
@pytest.mark.parametrize("axes", ["B", "T", "BT"])
def test_a_solution_keeps_what_is_held_and_a_wrong_one_does_not(optimizer, axes):
    """By substitution, independent of the elimination; the negative control moves one exponent."""
    for names in (None, ["sde"], ["sde-time", "schedule"], ["timescale"]):
        if names and not set(names) <= set(of(optimizer)):
            continue
        h = horizon(optimizer, names, axes)
        solved = {**{q: monomial("1") for q in h.free}}
        solved |= {q: m.substitute(solved) for q, m in h.powers.items()}
        assert not h.conflicts and residuals(h, solved) == {""}
        for q in h.powers:
            assert residuals(h, solved | {q: solved[q] * monomial(axes[0])}) != {""}


def residuals(h, solved):
    wholes = (fixed.substitute(solved) for i in h.held for fixed in i.fixed)
    return {" ".join(n for n, _ in whole.powers if n in h.axes) for whole in wholes}


def test_contradictions_are_smallest_and_only_along_tokens():
    h = horizon("adamw", ["sde", "sde-time"])
    assert [[name for (name, _), _ in c.parts] for c in h.conflicts] == [["sde", "sde-time"]]
    assert str(h.conflicts[0].product) == "1/T" and not h.powers
    everything = horizon("adamw", ["all"])
    for c in everything.conflicts:
        held = {part for part, _ in c.parts}
        assert set(c.product.quantities) == {"T"}
        assert not any({p for p, _ in d.parts} < held for d in everything.conflicts)
    assert not horizon("adamw", ["all"], "B").conflicts
    assert not horizon("adamw", ["sde-time", "timescale"]).conflicts
    with pytest.raises(UsageError, match="contradict"):
        h.factors()


def test_factors():
    h = horizon("adamw").factors(batch=(256, 1024), tokens=(20e9, 200e9))
    assert h["lr"] == 2 and h["one_minus_beta2"] == 4 and h["wd"] == pytest.approx(0.2)
    half = {"one_minus_beta1": 4, "one_minus_beta2": 4}  # of any length of the run, as under sde and not under averages
    assert half.items() <= horizon("adamw", ["half-life"]).factors((256, 1024), (20, 200)).items()
    assert not horizon("adamw", ["half-life", "sde", "timescale"]).conflicts
    assert horizon("adamw", ["half-life", "averages"]).conflicts
    assert horizon("adamw", ["timescale"]).factors((1, 4), free={"lr": 2.0})["wd"] == pytest.approx(2)
    with pytest.raises(UsageError, match="tokens changes"):
        horizon("adamw", axes="B").factors(tokens=(1, 2))


def test_experts_get_what_their_batch_asks_for():
    """Shrink, nothing, grow: what each of three invariants asks of an expert's learning rate."""
    lr = {name: str(horizon("adamw", [name]).experts["lr"]) for name in ("sde", "sde-time", "bias")}
    assert lr == {"sde": "K^(1/2)/M^(1/2)", "sde-time": "1", "bias": "M^(1/2)/K^(1/2)"}
    assert str(horizon("adamw").experts["eps"]) == "K^(1/2)/M^(1/2)"


RULES = [  # of papers and public code: optimizer, axes, powers; monomials of invariants that they break, and how
    ("Goyal et al. 2017 (1706.02677)", "sgd", "B", "lr=B", {"sde": {}, "sde-time": {}}),
    ("Malladi et al. 2022 (2205.10287)", "adam", "B", "lr=B^(1/2), eps=B^(-1/2), one_minus_beta1=B, one_minus_beta2=B",
     {"sde": {}, "sde-time": {}, "bias": {}, "averages": {}}),
    ("Complete(d)P (2512.22382)", "adamw", "BT",
     "lr=(B/T)^(1/2), eps=(B/T)^(-1/2), one_minus_beta2=B/T, wd=(B/T)^(1/2)",
     {"sde": {"lr^2/B": "1/T", "B^(1/2)*eps": "T^(1/2)"}, "timescale": {}, "averages": {},
      "bias": {"T*lr/B^(1/2)": "T^(1/2)"}}),
    ("ArchScale sdew, pretrain.py at df4e070", "adamw", "B",
     "lr=1, eps=B^(-1/2), one_minus_beta1=1, one_minus_beta2=B^(1/2), wd=B^(1/2)",
     {"timescale": {"B/T/lr/wd": "B^(1/2)"}}),
    ("ArchScale MuonH, pretrain.py at df4e070", "muon", "BT", "lr=B^(1/2)*T^(-0.32), one_minus_beta1=1",
     {"bias": {"T*lr/B^(1/2)": "T^(17/25)"}, "sde": {"lr^2/B": "1/T^(16/25)", "one_minus_beta1/lr^2": "T^(16/25)/B"}}),
    ("nanochat, matrices, base_train.py at 00255c1", "muon", "BT",
     "lr=B^(1/2), one_minus_beta1=1, wd=B^(1/2)/T, warmup=1",
     {"timescale": {}, "schedule": {"B*warmup/T": "B/T"}}),
    ("Power Lines (2505.13738)", "adamw", "B", "lr=1, wd=B", {"timescale": {}, "sde": {"lr^2/B": "1/B"}}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "optimizer", "axes", "rule", "says"), RULES)
def test_published_rules_by_substitution(source, optimizer, axes, rule, says):
    """Each rule keeps the invariants that it is said to keep, and breaks the others by the power that is printed."""
    powers = {name: monomial(text) for name, text in (part.split("=") for part in rule.split(", "))}
    for name, broken in says.items():
        known = [m for m in of(optimizer)[name].fixed if m.quantities <= {*powers, *AXES}]
        moved = {str(m): Monomial.of({axis: m.substitute(powers)[axis] for axis in axes}) for m in known}
        assert known and {m: str(x) for m, x in moved.items() if x.powers} == broken, (source, name)


def test_the_data_is_whole():
    for i in data().invariant:
        assert i.because and i.source and i.title
        assert all(m.coefficient == 1 and m.quantities <= {*QUANTITIES, *AXES} for m in i.fixed), i.name


def test_a_beta_that_keeps_its_half_life_goes_to_a_power():
    """0.95^32 forgets in one step what 0.95 forgets in 32; the first-order rule has 1 - beta = 1.6 there."""
    asked = "recipe", "--optimizer", "adamw", "--batch", "256:8192", "--base", "beta2=0.95", "--hold"
    exact, first = (scalecalc(*asked, name) for name in ("half-life", "sde"))
    assert exact.exit_code == 0 and f"{1 - 0.95**32:.6g}" in exact.stdout and "beta goes to the power" in exact.stdout
    assert first.exit_code == 2 and "1 - beta2 would be 1.6, above 1" in first.stderr
