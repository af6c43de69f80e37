"""The power of the number of active experts in the best learning rate, by the multiplier of their sum and the batch.

HyperP's SqrtGate multiplies outputs of K experts by roots of gates, K^(-1/2) each: at init, independent outputs add to
Theta(1). Steps of all active experts have one direction, so that their sum needs K^-1. Which of both rules the best
rate depends on the tokens of a batch: of few, noise that experts share with nobody rules the steps.
"""

import numpy as np
import pytest
import torch

from scaling_algebra.verify.judging.rates import fit_rates

DEPENDS = ("verify/judging/rates.py", "verify/judging/optima.py")
WIDTH, HIDDEN, SHARE, ACTIVE = 64, 32, 2, (2, 4, 8, 16)
SEEDS, STEPS, RATES = 6, 40, 2.0 ** np.arange(-13.0, -2.5)
BETAS, TEST = (0.9, 0.99), 256


def losses(active, tokens, power):
    """Losses after training by Adam, (rates, seeds): top-K of 2 K experts with hidden ReLU layers, a fixed router,
    gates 1/K to a power, and a linear teacher; every step has new tokens."""
    experts, generator = SHARE * active, torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    router, teacher = normal(SEEDS, experts, WIDTH), normal(SEEDS, WIDTH, WIDTH) / WIDTH**0.5
    inner = normal(SEEDS, experts * HIDDEN, WIDTH) / WIDTH**0.5
    outer = normal(SEEDS, WIDTH, experts * HIDDEN) / HIDDEN**0.5
    weights = [x.repeat(len(RATES), 1, 1, 1).requires_grad_() for x in (inner, outer)]
    rates = torch.tensor(RATES, dtype=torch.float32)[:, None, None, None]

    def loss(x):
        logits = router @ x
        gates = torch.zeros_like(logits).scatter_(1, logits.topk(active, dim=1).indices, active**-power)
        hidden = (weights[0] @ x).relu() * gates.repeat_interleave(HIDDEN, dim=1)
        return (weights[1] @ hidden - teacher @ x).square().mean((2, 3))

    moments = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    for t in range(1, STEPS + 1):
        grads = torch.autograd.grad(loss(normal(SEEDS, WIDTH, tokens)).sum(), weights)
        with torch.no_grad():
            for w, g, (first, second) in zip(weights, grads, moments, strict=True):
                first.lerp_(g, 1 - BETAS[0])
                second.lerp_(g.square(), 1 - BETAS[1])
                share = (1 - BETAS[1] ** t) ** 0.5 / (1 - BETAS[0] ** t)
                w -= rates * share * first / (second.sqrt() + 1e-12)
    with torch.no_grad():
        return loss(normal(SEEDS, WIDTH, TEST)).numpy()


def slope(tokens, power):
    """The power of K in the best rate, with its interval."""
    table = {"size": [], "lr": [], "loss": []}
    for active in ACTIVE:
        for rate, row in zip(RATES, losses(active, tokens, power), strict=True):
            for value in row:
                for name, x in zip(table, (active, rate, value), strict=True):
                    table[name].append(float(x))
    fitted = fit_rates({name: np.array(x) for name, x in table.items()})
    return fitted.value["power"], fitted.low["power"], fitted.high["power"]


@pytest.mark.parametrize("tokens", [2, 8, 32, 128])
def test_power_of_active_experts_in_the_best_rate(tokens, record_property):
    """From 32 tokens on the rate under K^-1 stays, and under K^(-1/2) it falls; of 2 tokens it rises under K^-1."""
    (root, low, high), (mean, below, above) = slope(tokens, 0.5), slope(tokens, 1.0)
    record_property("K^-1/2", [root, low, high])
    record_property("K^-1", [mean, below, above])
    assert root < mean
    if tokens >= 32:
        assert high < 0 and below < 0.1 and abs(mean) < 0.15
    if tokens == 2:
        assert mean > 0.1 and high > -0.1
