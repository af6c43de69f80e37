"""Batch and tokens: solutions, contradictions, rules against invariants, and negative controls for each."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.horizon import rules
from scaling_algebra.laws.horizon.horizon import QUANTITIES, horizon, invariants, of, optimizers
from scaling_algebra.solver.linear import eliminate, solve_linear


def powers(found):
    return {name: str(m) for name, m in found.powers.items()}


def run(*arguments):
    result = CliRunner().invoke(main, ["horizon", "--optimizer", "adamw", *arguments])
    return result.exit_code, result.output


def test_square_root_rule_and_timescale():
    """Malladi et al.: lr and 1/eps grow as sqrt(B), 1 - beta as B; the timescale then gives wd = sqrt(B)/T."""
    assert powers(horizon("adamw")) == {
        "lr": "B^(1/2)",
        "eps": "1/B^(1/2)",
        "one_minus_beta1": "B",
        "one_minus_beta2": "B",
        "wd": "B^(1/2)/T",
        "warmup": "T/B",
    }
    assert powers(horizon("sgd"))["lr"] == "B"


def test_what_is_held_decides_what_is_free():
    found = horizon("adamw", ["timescale"])
    assert powers(found) == {"wd": "B/T/lr"}
    assert found.free == ("lr", "eps", "one_minus_beta1", "one_minus_beta2", "warmup")
    assert horizon("adamw", ["mup"]).free == tuple(QUANTITIES)


@pytest.mark.parametrize("optimizer", optimizers())
@pytest.mark.parametrize("axes", ["B", "T", "BT"])
def test_a_solution_keeps_what_is_held_and_a_wrong_one_does_not(optimizer, axes):
    """By substitution, independent of the elimination; the negative control moves one exponent."""
    for names in (None, ["sde"], ["sde-time", "schedule"], ["timescale"]):
        if names and not set(names) <= set(of(optimizer)):
            continue
        found = horizon(optimizer, names, axes)
        solved = {**{q: monomial("1") for q in found.free}}
        solved |= {q: m.substituted(solved) for q, m in found.powers.items()}
        assert not found.conflicts and residuals(found, solved) == {""}
        for q in found.powers:
            assert residuals(found, solved | {q: solved[q] * monomial(axes[0])}) != {""}


def residuals(found, solved):
    wholes = (fixed.substituted(solved) for i in found.held for fixed in i.fixed)
    return {" ".join(n for n, _ in whole.powers if n in found.axes) for whole in wholes}


def test_contradictions_are_smallest_and_only_along_tokens():
    found = horizon("adamw", ["sde", "sde-time"])
    assert [[name for (name, _), _ in c.parts] for c in found.conflicts] == [["sde", "sde-time"]]
    assert str(found.conflicts[0].product) == "1/T" and not found.powers
    everything = horizon("adamw", ["all"])
    for c in everything.conflicts:
        held = {part for part, _ in c.parts}
        assert set(c.product.quantities) == {"T"}
        assert not any({p for p, _ in d.parts} < held for d in everything.conflicts)
    assert not horizon("adamw", ["all"], "B").conflicts
    assert not horizon("adamw", ["sde-time", "timescale"]).conflicts
    with pytest.raises(UsageError, match="contradict"):
        found.factors()


def test_factors():
    found = horizon("adamw").factors(batch=(256, 1024), tokens=(20e9, 200e9))
    assert found["lr"] == 2 and found["one_minus_beta2"] == 4 and found["wd"] == pytest.approx(0.2)
    assert horizon("adamw", ["timescale"]).factors((1, 4), free={"lr": 2.0})["wd"] == pytest.approx(2)
    with pytest.raises(UsageError, match="tokens changes"):
        horizon("adamw", axes="B").factors(tokens=(1, 2))


def test_experts_get_what_their_batch_asks_for():
    """Shrink, nothing, grow: what each of three invariants asks of an expert's learning rate."""
    lr = {name: str(horizon("adamw", [name]).experts["lr"]) for name in ("sde", "sde-time", "bias")}
    assert lr == {"sde": "K^(1/2)/M^(1/2)", "sde-time": "1", "bias": "M^(1/2)/K^(1/2)"}
    assert str(horizon("adamw").experts["eps"]) == "K^(1/2)/M^(1/2)"


def test_rules_by_substitution():
    kept = {
        (c.rule.name, c.invariant.name): {d.verdict for d in rules.audit().checks if (d.rule, d.invariant) == key}
        for c in rules.audit().checks
        for key in [(c.rule, c.invariant)]
    }
    assert kept["square root scaling", "sde"] == kept["Power Lines", "timescale"] == {"kept"}
    assert kept["nanochat, matrices", "timescale"] == kept["Complete(d)P", "timescale"] == {"kept"}
    assert kept["ArchScale sdew", "timescale"] == {"broken"}
    assert {c.verdict for c in rules.audit().checks} == {"kept", "broken", "silent"}
    muonh = next(c for c in rules.audit().checks if c.rule.name == "ArchScale MuonH" and c.invariant.name == "bias")
    assert str(muonh.residual) == "T^(17/25)"
    epsilon = [c for c in rules.audit().checks if c.rule.name == "Complete(d)P" and c.fixed["eps"] != 0]
    assert {str(c.residual) for c in epsilon} == {"T^(1/2)"}


def test_a_rule_that_is_wrong_is_seen():
    """Negative control: the square root rule with a linear learning rate keeps nothing of the equation's noise."""
    rule = next(r for r in rules.rules() if r.name == "square root scaling")
    wrong = replace(rule, powers={**rule.powers, "lr": monomial("B")})
    checks = {str(c.fixed): c.verdict for c in rules.audit([wrong]).checks}
    assert checks["lr^2/B"] == "broken" and checks["B^(1/2)*eps"] == "kept"


def test_rules_that_cannot_be_read():
    entry = {"name": "x", "optimizer": "sgd", "axes": ["B"], "powers": {"lr": "T"}, "source": ""}
    with pytest.raises(UsageError, match="powers of its axes B"):
        rules.read(entry)
    with pytest.raises(UsageError, match="no quantity"):
        rules.read({**entry, "powers": {"rate": "B"}})


def test_the_data_is_whole():
    for i in invariants():
        assert i.because and i.source and i.title
        for m in i.fixed:
            assert m.coefficient == 1 and m.quantities <= {*QUANTITIES, "B", "T"}, (i.name, str(m))
    assert len(rules.rules()) >= 8 and all(r.source and r.optimizer in optimizers() for r in rules.rules())


def test_elimination():
    rows = [({"x": 1, "y": 1}, Fraction(3)), ({"x": 2, "y": 2}, Fraction(6))]
    solved, consistent = eliminate(rows, ("y", "x"))
    assert consistent and solved == {"y": ({"x": Fraction(1)}, Fraction(3))}
    assert not eliminate([*rows, ({"x": 1, "y": 1}, Fraction(4))])[1]
    assert solve_linear(rows, ["x", "y"]) is None


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(form):
    for found in (horizon("adamw"), horizon("adamw", ["all"]), rules.audit()):
        assert render(found.document(), form)


def test_command():
    code, out = run("--batch", "256:1024", "--tokens", "20e9:200e9", "--base", "lr=3e-3,beta2=0.95", "--format", "json")
    found = json.loads(out)
    assert code == 0 and found["factors"]["lr"] == 2 and found["values"]["(1-beta2)"] == pytest.approx(0.2)
    assert found["powers"]["wd"] == {"B": "1/2", "T": "-1"}
    code, out = run("--hold", "sde,sde-time", "--format", "json")
    assert code == 1 and json.loads(out)["conflicts"][0]["product"] == {"T": "-1"}
    assert run("--hold", "sde,sde-time", "--axes", "B")[0] == 0
    assert run("--audit")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hold", "nope"], "no invariant of adamw named 'nope'"),
        (["--hold", "timescale", "--optimizer", "adam"], "no invariant of adam named 'timescale'"),
        (["--optimizer", "adm"], "did you mean 'adam'"),
        (["--axes", "Q"], "no axis named 'Q'"),
        (["--batch", "256"], "give two numbers, as 256:1024"),
        (["--batch", "0:1"], "positive"),
        (["--tokens", "1:nan"], "two numbers"),
        (["--base", "lr"], "is no number"),
        (["--base", "beta2=1.5"], "out of range"),
        (["--base", "rate=1"], "no base value named 'rate'"),
        (["--base", "lr=1,lr=2"], "twice"),
        (["--base", "eps=1", "--optimizer", "sgd"], "which sgd does not have"),
        (["--base", "beta2=0.5", "--batch", "1:8"], "1 - beta2 would become 4"),
        (["--audit", "--hold", "sde"], "leave out --hold"),
        (["--axes", "B", "--tokens", "1:2"], "tokens changes"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    code, out = run(*arguments)
    assert code == 2 and said in out and out.count("\n") == 1
