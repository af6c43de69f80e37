"""Batch and tokens: solutions, contradictions, rules against invariants, and negative controls for each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.recipes.horizon import AXES, QUANTITIES, data, horizon, of, optimizers
from scaling_algebra.recipes.published_rules import audit


@pytest.mark.parametrize("optimizer", optimizers())
@pytest.mark.parametrize("axes", ["B", "T", "BT"])
def test_a_solution_keeps_what_is_held_and_a_wrong_one_does_not(optimizer, axes):
    """By substitution, independent of the elimination; the negative control moves one exponent."""
    for names in (None, ["sde"], ["sde-time", "schedule"], ["timescale"]):
        if names and not set(names) <= set(of(optimizer)):
            continue
        h = horizon(optimizer, names, axes)
        solved = {**{q: monomial("1") for q in h.free}}
        solved |= {q: m.substituted(solved) for q, m in h.powers.items()}
        assert not h.conflicts and residuals(h, solved) == {""}
        for q in h.powers:
            assert residuals(h, solved | {q: solved[q] * monomial(axes[0])}) != {""}


def residuals(h, solved):
    wholes = (fixed.substituted(solved) for i in h.held for fixed in i.fixed)
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
    assert horizon("adamw", ["timescale"]).factors((1, 4), free={"lr": 2.0})["wd"] == pytest.approx(2)
    with pytest.raises(UsageError, match="tokens changes"):
        horizon("adamw", axes="B").factors(tokens=(1, 2))


def test_experts_get_what_their_batch_asks_for():
    """Shrink, nothing, grow: what each of three invariants asks of an expert's learning rate."""
    lr = {name: str(horizon("adamw", [name]).experts["lr"]) for name in ("sde", "sde-time", "bias")}
    assert lr == {"sde": "K^(1/2)/M^(1/2)", "sde-time": "1", "bias": "M^(1/2)/K^(1/2)"}
    assert str(horizon("adamw").experts["eps"]) == "K^(1/2)/M^(1/2)"


def test_rules_by_substitution():
    checks, verdicts = audit().checks, {}
    for c in checks:
        verdicts.setdefault((c.rule.name, c.invariant.name), set()).add(c.verdict)
    for name in ("square root scaling, sde", "Power Lines, timescale", "Complete(d)P, timescale"):
        assert verdicts[tuple(name.split(", "))] == {"kept"}
    assert verdicts["nanochat, matrices", "timescale"] == {"kept"}
    assert verdicts["ArchScale sdew", "timescale"] == {"broken"}
    (muonh,) = [c for c in checks if (c.rule.name, c.invariant.name) == ("ArchScale MuonH", "bias")]
    assert str(muonh.residual) == "T^(17/25)"
    epsilon = [c for c in checks if c.rule.name == "Complete(d)P" and c.fixed["eps"] != 0]
    assert {str(c.residual) for c in epsilon} == {"T^(1/2)"}


def test_a_rule_that_is_wrong_is_seen():
    """Negative control: the square root rule with a linear learning rate keeps nothing of the equation's noise."""
    rule = next(r for r in data().rule if r.name == "square root scaling")
    wrong = replace(rule, powers={**rule.powers, "lr": monomial("B")})
    checks = {str(c.fixed): c.verdict for c in audit([wrong]).checks}
    assert checks["lr^2/B"] == "broken" and checks["B^(1/2)*eps"] == "kept"


def test_the_data_is_whole():
    for i in data().invariant:
        assert i.because and i.source and i.title
        assert all(m.coefficient == 1 and m.quantities <= {*QUANTITIES, *AXES} for m in i.fixed), i.name
    for r in data().rule:
        assert r.source and r.optimizer in optimizers() and set(r.powers) <= set(QUANTITIES), r.name
        assert all(m.quantities <= set(r.axes) <= set(AXES) for m in r.powers.values()), r.name


def test_every_format():
    for shown in (horizon("adamw"), horizon("adamw", ["all"]), audit()):
        assert all(render(shown.document(), form) for form in FORMATS)
