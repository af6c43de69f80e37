"""The claims of the switch-cluster paper and of experts' rates that need longer training."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.studies import rules
from scaling_algebra.verify.studies.clusters import DISTRIBUTIONS, Schedule, Switch, draw_signals, sample_examples
from scaling_algebra.verify.studies.findings import Conditions
from scaling_algebra.verify.studies.runner import EXPERIMENTS

DEPENDS = ("verify/studies", "verify/judging")


def drawn(n=300, law="setting 1", seed=0):
    generator = torch.Generator().manual_seed(seed)
    directions = draw_signals(generator)
    return directions, sample_examples(n, DISTRIBUTIONS[law], directions, generator)


def test_router_gradients_sum_to_zero_and_expert_steps_have_length_lr():
    """Lemma E.1, and (3.4)."""
    _, data = drawn()
    schedule = Schedule(experts=3, filters=5)
    model = Switch(schedule, torch.Generator().manual_seed(1))
    before = model.w.clone()
    for _ in range(3):
        model.step(data, torch.rand(len(data.y), 3))
    assert model.theta.abs().max() > 0 and model.theta.sum(0).abs().max() < 1e-5 * model.theta.abs().max()
    moved = Switch(schedule, torch.Generator().manual_seed(1))
    moved.step(data, torch.rand(len(data.y), 3))
    assert (moved.w - before).flatten(1).norm(dim=1).tolist() == pytest.approx([schedule.lr] * 3, rel=1e-4)


def test_scaled_data_and_rates_are_the_same_dynamics():
    """x -> s x is (lr, router lr, init) -> (s lr, s^2 router lr, s init): how the constants follow from the code's."""
    _, data = drawn()
    small = Schedule(experts=3, filters=5, lr=0.01, router_lr=10.0, init=8.2e-4)
    large = replace(small, lr=0.001, router_lr=0.1, init=8.2e-5)
    models = [Switch(schedule, torch.Generator().manual_seed(1)) for schedule in (small, large)]
    for step in range(5):
        noise = torch.rand(len(data.y), 3, generator=torch.Generator().manual_seed(step))
        for model, scale in zip(models, (1, 10), strict=True):
            model.step(replace(data, x=scale * data.x), noise)
    torch.testing.assert_close(models[0].w, 10 * models[1].w, rtol=1e-3, atol=1e-6)


def test_a_single_expert_stays_below_the_ceiling():
    trial = EXPERIMENTS["clusters"].trials[3]
    single = {**trial.run.keywords["networks"]["single linear"], "steps": 60}
    run = partial(trial.run, networks={"cubic": single, "single linear": single}, n=1000)
    found = replace(trial, run=run, claims=(trial.claims[0], trial.claims[2])).findings(Conditions("cpu", (), 4))
    assert [f.verdict for f in found] == [Verdict.REFUTED, Verdict.AGREES, Verdict.REFUTED]
    assert [f.outcome for f in found] == [Verdict.REFUTED, Verdict.AGREES, Verdict.AGREES]


def test_the_mean_of_a_gradient_is_without_its_noise():
    """More batches, less noise of the mean: the estimate stays."""
    mixture = rules.Mixture(4, rules.Rates(-8, steps=20), Conditions("cpu", (), 8))
    few, _ = mixture.gradient()
    rules.SAMPLES, kept = 256, rules.SAMPLES
    try:
        many, noise = mixture.gradient()
    finally:
        rules.SAMPLES = kept
    assert np.median(few / many) == pytest.approx(1, abs=0.1) and (noise > 0).all()
