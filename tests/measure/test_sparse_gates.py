"""K of M experts with sigmoid, softmax and renormalised top-K gates on a module by hand: what is certified is measured.

A step averages over many tokens, each with its own K experts; sizes are those of tokens whose experts are held.
"""

from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ..engine.scenarios import placed
from ..engine.test_rules import NETWORKS
from .judge import judge

DEPENDS = (
    "counts",
    "scaling_algebra/spec/networks",
    "tests/engine/scenarios.py",
    "tests/engine/rules.toml",
    "tests/measure/judge.py",
)
HALF = Fraction(1, 2)
RAY = {"N": 1, "N_e": 1, "M": 1, "K": HALF}
SPREAD = {"W1": 0, "Q": HALF, "W2": HALF, "W3": HALF, "W4": 1}
"""b of every tensor."""
RATES = {
    "sgd": {"W1": -1, "Q": 0, "W2": -1, "W3": -1, "W4": 1},
    "signsgd": {"W1": 0, "Q": 1, "W2": 1, "W3": 1, "W4": 1},
}
"""c of every tensor."""
GATES = {"sigmoid": HALF, "topk_sigmoid": HALF, "softmax": -HALF, "topk_softmax": Fraction(0)}
"""A gate, and the exponent of one over the multiplier."""
SIZES = (16, 25, 36, 64, 100)
SEEDS, STEPS, TOKENS = 10, 2, 400
SMALL, STRENGTH = 0.3, 0.3
"""Constants of logits and of learning rates. With logits of size 1 a change of shares, which has moments of e^(2 psi),
comes to its power late: as n^(-.54) at K = 4 to 8 and n^(-.97) from K = 512 on, for n^-1."""


def trained(gate, alpha, rule, n, seed):
    """Root-mean-squares by quantity and step."""
    draw = torch.Generator().manual_seed(1000 * seed + n)
    shapes = {"W1": (n,), "Q": (n, n), "W2": (n, n, n), "W3": (n, n, n), "W4": (n,)}
    active = round(n**0.5)
    w = {}
    for name, shape in shapes.items():
        std = (SMALL if name == "Q" else 1.0) * n ** -float(SPREAD[name])
        w[name] = (std * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
    picked = torch.rand(TOKENS, n, generator=draw).topk(active, -1).indices
    chosen = torch.zeros(TOKENS, n, dtype=torch.bool).scatter(-1, picked, True)
    found, first = {}, {}

    def gates(psi):
        """(tokens, experts)"""
        if gate == "softmax":
            return torch.softmax(psi, -1) * chosen
        if gate == "topk_softmax":
            return torch.softmax(psi.expand(TOKENS, n).masked_fill(~chosen, -torch.inf), -1)
        return torch.sigmoid(psi) * chosen

    for t in range(STEPS + 1):
        psi = w["Q"] @ w["W1"]
        phi = gates(psi)
        h2 = torch.einsum("ika,a->ik", w["W2"], w["W1"])
        h3i = torch.einsum("ibk,ik->ib", w["W3"], h2)
        h3 = n ** -float(alpha) * phi @ h3i
        f = h3 @ w["W4"]
        grads = dict(zip(w, torch.autograd.grad(f.mean(), list(w.values())), strict=True))
        now = {"h1": w["W1"], "psi": psi, "phi": phi[chosen], "h2": h2, "h3i": h3i, "h3": h3, "f": f}
        for name, x in now.items():
            first.setdefault(name, x.detach().clone())
            found[name, t] = x.detach().square().mean().sqrt().item()
            found[f"{name}.change", t] = (x.detach() - first[name]).square().mean().sqrt().item()
        found |= {(f"g{name}", t): g.square().mean().sqrt().item() for name, g in grads.items()}
        with torch.no_grad():
            for name, x in w.items():
                step = grads[name].sign() if rule == "signsgd" else grads[name]
                x -= STRENGTH * n ** -float(RATES[rule][name]) * step
    return found


def certified(gate, rule):
    text = (
        NETWORKS["TOPK_GATED"]
        .replace("topk_softmax", gate)
        .replace("(psi[i]; i)", "(psi[i])" if gate == "sigmoid" else "(psi[i]; i)")
    )
    point = {f"b.{x}": b for x, b in SPREAD.items()} | {f"c.{x}": c for x, c in RATES[rule].items()}
    return placed(text, rule, RAY, {x: Fraction(e) for x, e in point.items()} | {"alpha": GATES[gate]})


def verdicts(gate, rule, off=Fraction(0)):
    """Verdict and lines of what is refuted, for every certified size."""
    look, words, wrong = certified(gate, rule), dict.fromkeys(("AGREES", "OPEN", "REFUTED", "undecided"), 0), []
    runs = [[trained(gate, GATES[gate], rule, n, seed) for seed in range(SEEDS)] for n in SIZES]
    for name, t in runs[0][0]:
        answer = look(name, t)
        if not answer.decided:
            words["undecided"] += 1
            continue
        values = [np.array([one[name, t] for one in row]) for row in runs]
        e = None if answer.size is None else answer.size + off
        verdict = judge([n / SIZES[0] for n in SIZES], values, e, slow=True)
        words[verdict.word] += 1
        if verdict.word == "REFUTED":
            wrong.append(f"{name}@{t}: n^({e}), slope {verdict.slope:+.2f}: {verdict.values}")
    return words, wrong


@pytest.mark.parametrize("rule", RATES)
@pytest.mark.parametrize("gate", GATES)
def test_what_is_certified_with_few_active_experts_is_measured(gate, rule, record_property):
    words, wrong = verdicts(gate, rule)
    record_property("values", words)
    assert not wrong, "\n".join(wrong)
    assert words["AGREES"] > 20


def test_exponents_that_are_off_by_a_half_are_found(record_property):
    """The negative control."""
    words, _ = verdicts("sigmoid", "sgd", Fraction(-1, 2))
    record_property("values", words)
    assert words["REFUTED"] > 20 > words["AGREES"]
