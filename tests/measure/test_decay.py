"""Which power of the width weight decay needs: N (its share per step stays), sqrt N (2510.15262) or 1 (2512.05620).

torch's AdamW at the derived rates of ``mlp``, with decay times N^p on the hidden matrix. What is kept depends on what
is held: the share of the initial weights over the run, or the gain of the matrix once it has forgotten them.
"""

import numpy as np
import pytest
import torch

from scaling_algebra import derive
from scaling_algebra.verify.judging.fit import fit_exponent

DEPENDS = ("derives", "verify/judging/fit.py")

SIZES, BASE, SEEDS = (64, 128, 256), 64, 12
RATES = {"input": 0.001, "hidden": 0.025, "readout": 0.0016}
"""At the base, with a hidden step that moves h2 by Theta(1) in some tens of steps."""
SMALL, LARGE = (8, 1, 16), (256, 256, 256)
"""Inputs, outputs, samples of a batch: gradients of a rank that stays at these sizes, or that grows with the width."""


def run(n, power, steps, share, sizes, noise=1.0, signal=0.0):
    """Share of the initial hidden matrix that is lost, and its gain rms(h2) / rms(activations), for every seed.

    Args:
        power: of the width in torch's decay; ``share``: of the weights that a step takes at the base.
        noise, signal: of the labels, fresh in every step: of a normal, and of a teacher.
    """
    inputs, outputs, samples = sizes
    lr = {role: rate * scale(role, n) for role, rate in RATES.items()}
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(SEEDS, *shape, generator=generator)

    shapes = {"input": ((n, inputs), inputs**-0.5), "hidden": ((n, n), n**-0.5), "readout": ((outputs, n), 1 / n)}
    w = {role: torch.nn.Parameter(std * normal(*shape)) for role, (shape, std) in shapes.items()}
    first, teacher = w["hidden"].detach().clone(), normal(outputs, inputs) * inputs**-0.5
    decay = share / RATES["hidden"] * (n / BASE) ** power
    groups = [{"params": [x], "lr": lr[role], "weight_decay": decay * (role == "hidden")} for role, x in w.items()]
    step = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-20)

    def forward(x):
        a = torch.tanh(w["input"] @ x)
        h2 = w["hidden"] @ a
        return a, h2, w["readout"] @ torch.tanh(h2)

    for _ in range(steps):
        x = normal(inputs, samples)
        y = signal * torch.tanh(teacher @ x) + noise * normal(outputs, samples)
        step.zero_grad()
        (forward(x)[2] - y).square().mean((1, 2)).sum().backward()
        step.step()
    with torch.no_grad():
        a, h2, _ = forward(normal(inputs, 256))
        left = (w["hidden"] * first).sum((1, 2)) / first.square().sum((1, 2))
        gain = (h2.square().mean((1, 2)) / a.square().mean((1, 2))).sqrt()
    return (1 - left).numpy().astype(float), gain.numpy().astype(float)


def scale(role, n):
    """The derived learning rate at a width, over that at the base."""
    power = derive("I", "adamw", "mup", architecture="mlp")[role].lr
    return power.at({"N": n}) / power.at({"N": BASE})


def slopes(record_property, index, steps, *args, **options):
    """Exponents of one of the two over the widths, by power of the decay; ``steps`` by width."""
    found = {
        p: fit_exponent(list(SIZES), [np.abs(run(n, p, steps(n), *args, **options)[index]) for n in SIZES])
        for p in (0.0, 0.5, 1.0)
    }
    record_property("slopes", {p: [x.slope, x.low, x.high] for p, x in found.items()})
    return found


@pytest.mark.parametrize(("grows", "keeps"), [(False, 1.0), (True, 0.0)])
def test_share_of_the_initial_weights(grows, keeps, record_property):
    """p = 1 keeps it over a fixed number of steps, p = 0 over steps that grow as N, sqrt N over neither."""
    lost = slopes(record_property, 0, lambda n: 60 * (n // BASE if grows else 1), 0.01, SMALL)
    for p, x in lost.items():
        assert (x.low - 0.1 < 0 < x.high + 0.1) == (p == keeps), lost


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_gain_where_the_rank_of_gradients_stays(signal, record_property):
    """After the initial weights are forgotten only p = 1 keeps the gain of the hidden matrix; it grows with others."""
    gains = slopes(record_property, 1, lambda n: 300, 0.06, SMALL, signal=signal)
    assert gains[1.0].low - 0.1 < 0 < gains[1.0].high + 0.1, gains
    assert gains[0.5].low > 0.1 and gains[0.0].low > 0.25, gains


def test_gain_where_it_grows_with_the_width(record_property):
    """Noise of full rank: p = 1/2 is nearer to keeping the gain than p = 0 and p = 1, between which it lies."""
    gains = slopes(record_property, 1, lambda n: 200, 0.06, LARGE)
    assert gains[1.0].high < 0 < gains[0.0].low, gains
    assert abs(gains[0.5].slope) < min(abs(gains[0.0].slope), abs(gains[1.0].slope)), gains
