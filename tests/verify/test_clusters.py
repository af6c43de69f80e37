"""Clustered data and Algorithm 1 of the switch-cluster paper, against autograd, its own tables, and each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.verify.experiments import cluster_claims as claims
from scaling_algebra.verify.experiments.clusters import (
    CLUSTERS,
    SETTINGS,
    Examples,
    Network,
    Switch,
    dispatch_entropy,
    examples,
    learn,
    signals,
)
from scaling_algebra.verify.experiments.findings import By, Plan
from scaling_algebra.verify.judging.fit import Verdict

TABLE_5 = [[0, 0, 3971, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 4, 4005, 0], [8, 4, 4, 6, 0, 1304, 4, 2711], [3979] + [0] * 7]
TABLE_6 = [
    [0, 630, 1629, 1298, 27, 87, 4, 296],
    [136, 1107, 1884, 651, 0, 0, 0, 231],
    [0, 594, 1976, 1471, 0, 0, 0, 0],
    [0, 377, 1480, 1891, 0, 0, 0, 231],
]


def drawn(n=300, setting=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    directions = signals(generator)
    return directions, examples(n, SETTINGS[setting], directions, generator)


def test_entropy_of_the_published_dispatch_tables():
    """Tables 5 and 6 of the paper: a cubic mixture, and a linear one."""
    assert dispatch_entropy(TABLE_5) == pytest.approx(0.0092549, abs=1e-6)
    assert dispatch_entropy(TABLE_6) == pytest.approx(1.3145780, abs=1e-6)
    assert dispatch_entropy(np.full((4, 8), 5)) == pytest.approx(np.log(4))
    assert dispatch_entropy([[7, 0, 0], [0, 9, 0]]) == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_examples_are_those_of_the_definition(setting):
    directions, data = drawn(4000, setting)
    torch.testing.assert_close(directions @ directions.T, torch.eye(2 * CLUSTERS), atol=1e-5, rtol=0)
    seen = torch.einsum("npd,kd->npk", data.x, directions)
    centre = seen[:, :, CLUSTERS:].amax(1)
    assert (centre.argmax(1) == data.cluster).all() and centre.amax(1).min() >= 1 and centre.amax(1).max() < 2.5
    rows = torch.arange(len(data.y))
    own = seen[rows, :, data.cluster]  # largest projection on the label signal of the own cluster
    signal = own.gather(1, own.abs().argmax(1)[:, None])[:, 0]
    assert (signal.sign() == data.y).float().mean() > 0.95  # random noise of setting 2 and 4 may exceed it
    counts = torch.bincount(data.cluster, minlength=CLUSTERS)
    assert counts.min() > 850 and abs(data.y.mean()) < 0.1
    norms = data.x.norm(dim=2).sort(1).values
    assert norms[:, -1].max() <= max(SETTINGS[setting].gamma, 2 * SETTINGS[setting].noise) + 1e-4


@pytest.mark.parametrize("cubic", [True, False])
def test_written_gradients_are_those_of_the_loss(cubic):
    """(E.1) and (E.2) against autograd through (3.3)."""
    _, data = drawn()
    data = Examples(data.x.double(), data.y.double(), data.cluster)
    model = Switch(Network(experts=3, filters=5, cubic=cubic), torch.Generator().manual_seed(1))
    model.w, model.theta = 300 * model.w.double(), 0.3 * torch.randn(3, 50, dtype=torch.float64)
    noise = torch.rand(len(data.y), 3, dtype=torch.float64)
    w, theta = model.w.clone().requires_grad_(), model.theta.clone().requires_grad_()
    h = data.x.sum(1) @ theta.T
    z = torch.einsum("npd,mjd->nmpj", data.x, w)
    f = (z**3 if cubic else z).sum((2, 3))
    chosen = (h + noise).argmax(1)[:, None]
    output = (h.softmax(1).gather(1, chosen) * f.gather(1, chosen))[:, 0]
    torch.nn.functional.softplus(-data.y * output).mean().backward()
    gw, gtheta = model.gradients(data, noise)
    torch.testing.assert_close(gw, w.grad)
    torch.testing.assert_close(gtheta, theta.grad)
    assert gtheta.abs().max() > 1e-4 and torch.bincount(chosen[:, 0]).min() > 0


def test_cubic_experts_specialise_and_linear_ones_fail_the_same_claims(monkeypatch):
    """Then linear experts in the place of the cubic ones: the control that must fail."""
    how, linear = Plan("cpu", (), 4), replace(claims.LINEAR, steps=100)
    found = {(f.quantity, f.by): f for f in claims.specialisation(1, claims.CUBIC, linear, how)}
    assert all(f.outcome is Verdict.AGREES for (name, _), f in found.items() if "entropy" in name)
    assert found["cubic: accuracy", By.PREDICTED].measured > 0.98
    monkeypatch.setattr(claims, "learn", lambda *a, **k: learn(*a, n=1000, **k))
    swapped = {f.quantity: f for f in claims.specialisation(1, linear, linear, how) if f.by is By.PREDICTED}
    assert swapped["cubic: dispatch entropy"].outcome is Verdict.REFUTED
    assert swapped["cubic minus linear: accuracy"].outcome is not Verdict.AGREES


def test_another_power_of_the_initial_scale_is_refuted(monkeypatch):
    """Negative control: times as in the bound of Lemma E.7."""

    def planted(network, setting, seed, device):
        return 1e5 * network.init**0.8 * (1 + 0.01 * np.arange(3 * seed, 3 * seed + 3)) / (1 if network.cubic else 0)

    with np.errstate(divide="ignore"):
        monkeypatch.setattr(claims, "steps_to_align", planted)
        found = claims.exploration(1, claims.SLOW, claims.SCALES, Plan("cpu", (), 4))
    assert [f.verdict for f in found[2:]] == [Verdict.REFUTED, Verdict.AGREES]
    monkeypatch.setattr(claims, "steps_to_align", lambda network, *a, **k: np.full(3, np.inf))  # they never align
    found = claims.exploration(1, claims.SLOW, claims.SCALES, Plan("cpu", (), 4))
    assert [f.verdict for f in found] == [Verdict.REFUTED, Verdict.AGREES, *[Verdict.INCONCLUSIVE] * 2]
