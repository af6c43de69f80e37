"""The clustered data and the switch-routed mixture of the switch-cluster paper, trained by its Algorithm 1.

An example of cluster k contains its label as +-v_k, the centre c_k and, as feature noise, the signal of another cluster
with a random sign. Signal and noise can only be distinguished with knowledge of the cluster, so that no single expert
can classify all examples. Only the expert to which an example is routed is computed.

Not claimed: the accuracies of the paper's tables, because the paper does not state the initial scale and the number of
steps, and linear mixtures are more accurate here. Nor is anything claimed about small training sets or long training,
where a cubic mixture may lose the clusters again (500 steps: one seed of five in setting 1 with 2000 examples, entropy
0.82; five of ten in setting 2 with 4000, entropies 0.24 to 0.73). Theorem 4.2 requires enough data and early stopping.
Read next: ``claims/clusters.toml`` (the claims).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus

from scaling_algebra.laws.assumptions import compose_definitions
from scaling_algebra.laws.law import read_law
from scaling_algebra.verify.judging.fit import Array

from .findings import Conditions, Observation

CLUSTERS, PATCHES, DIMENSION = 4, 4, 50
"""Number of clusters K and of patches P, and dimension d of a patch. Source: Sec. 6.1."""
SPECIALISED = 0.15
"""Dispatch entropy in nats (at most log 4) below which nearly every expert has one cluster."""


@dataclass(frozen=True)
class Distribution:
    """The distribution of the clustered data.

    Attributes:
        gamma: upper end of the feature noise, Unif(``low``, ``gamma``).
        noise: size sigma_p of the random noise.
        low: lower end of the feature noise.

    Source: Sec. 6.1 (settings 1, 2) and App. A (3, 4, Fig. 1). Signals alpha ~ Unif(0.5, 2), centres beta ~ Unif(1, 2).
    """

    gamma: float
    noise: float
    low: float = 0.5


DISTRIBUTIONS = {
    "setting 1": Distribution(3.0, 1.0),
    "setting 2": Distribution(3.0, 2.0),
    "setting 3": Distribution(2.0, 1.0),
    "setting 4": Distribution(2.0, 2.0),
    "figure 1": Distribution(2.0, 1.0, 1.0),
}
"""Distributions by their names in the paper. In settings 3 and 4 signal and feature noise have the same distribution
(Theorem 4.1)."""


@dataclass(frozen=True)
class Schedule:
    """The size of a mixture, and the hyperparameters of its training.

    The paper gives eta and eta_r but neither sigma_0 nor T, and with unit signals its rates leave the loss near log 2.
    The authors' code multiplies the data by 10 and starts at 8.2e-5. The defaults give the same dynamics for unit
    signals: to train on s x with (eta, eta_r, sigma_0) is to train on x with (s eta, s^2 eta_r, s sigma_0), because
    expert steps are normalised.

    Attributes:
        experts: number of experts M.
        filters: number of filters J of an expert.
        cubic: whether the activation is z^3; else it is the identity.
        steps: number of iterations T.
        lr: learning rate eta of the experts.
        router_lr: learning rate eta_r of the router.
        init: initial scale sigma_0.
    """

    experts: int = 8
    filters: int = 16
    cubic: bool = True
    steps: int = 200
    lr: float = 0.01
    router_lr: float = 10.0
    init: float = 8.2e-4


@dataclass(frozen=True)
class Examples:
    """A set of n examples.

    Attributes:
        x: patches in random order, (n, P, d).
        y: labels, +-1, (n,).
        cluster: the number of the cluster of each example, (n,).
    """

    x: Tensor
    y: Tensor
    cluster: Tensor


def draw_signals(generator: torch.Generator) -> Tensor:
    """Draws the orthonormal signals of all clusters, the labels v_1 .. v_K and the centres c_1 .. c_K, shape (2 K,
    d)."""
    drawn = torch.randn(DIMENSION, 2 * CLUSTERS, generator=generator)
    rows: Tensor = torch.linalg.qr(drawn).Q.T.contiguous()
    return rows


def sample_examples(
    n: int, law: Distribution, directions: Tensor, generator: torch.Generator, device: str = "cpu"
) -> Examples:
    """Samples n examples of the clustered data (Def. 3.1 of the paper).

    Args:
        n: number of examples.
        law: distribution of the data.
        directions: the label signals v_k of all clusters, then their centres c_k, shape (2 K, d).
        generator: source of random numbers.
        device: device of the result.
    """

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, 1, generator=generator)

    def sign() -> Tensor:
        return 2.0 * torch.randint(2, (n, 1), generator=generator) - 1

    cluster = torch.randint(CLUSTERS, (n,), generator=generator)
    noisy = (cluster + torch.randint(1, CLUSTERS, (n,), generator=generator)) % CLUSTERS
    y, x = sign(), torch.empty(n, PATCHES, DIMENSION)
    x[:, 0] = y * uniform(0.5, 2.0) * directions[cluster]
    x[:, 1] = uniform(1.0, 2.0) * directions[CLUSTERS + cluster]
    x[:, 2] = sign() * uniform(law.low, law.gamma) * directions[noisy]
    x[:, 3:] = law.noise / DIMENSION**0.5 * torch.randn(n, PATCHES - 3, DIMENSION, generator=generator)
    order = torch.rand(n, PATCHES, generator=generator).argsort(1)
    x = x.gather(1, order[:, :, None].expand_as(x))
    return Examples(x.to(device), y[:, 0].to(device), cluster.to(device))


class Switch:
    """The mixture F(x) = pi_m f_m(x), m = argmax h(x), pi = softmax(h), in which one expert processes an example.

    Experts f_m = sum_j sum_p activation(<w_mj, x_p>); router h = Theta^T sum_p x_p.
    Source: switch-cluster paper, Sec. 3.2 and (3.1).

    Attributes:
        w: filters, (M, J, d), initialised with entries N(0, init^2).
        theta: router, (M, d), initialised with zeros.
    """

    def __init__(self, schedule: Schedule, generator: torch.Generator, device: str = "cpu") -> None:
        shape = (schedule.experts, schedule.filters, DIMENSION)
        self.schedule = schedule
        self.w = (schedule.init * torch.randn(shape, generator=generator)).to(device)
        self.theta = torch.zeros(schedule.experts, DIMENSION, device=device)

    def score(self, expert: int, x: Tensor) -> Tensor:
        """Returns the output f_m(x) of one expert for every example, (n,)."""
        z = x @ self.w[expert].T
        return (z**3 if self.schedule.cubic else z).sum((1, 2))

    def loss(self, data: Examples, noise: Tensor) -> Tensor:
        """Returns the perturbed loss (3.3). The ``noise`` (n, M) is added to h for the choice of the expert, but not
        in pi."""
        h = data.x.sum(1) @ self.theta.T
        chosen, f = (h + noise).argmax(1), torch.zeros_like(data.y)
        for m in range(self.schedule.experts):
            rows = (chosen == m).nonzero()[:, 0]
            f[rows] = self.score(m, data.x[rows])
        gate = h.softmax(1).gather(1, chosen[:, None])[:, 0]
        return softplus(-data.y * gate * f).mean()

    def step(self, data: Examples, noise: Tensor) -> None:
        """Updates every expert by normalised gradient descent (3.4) and the router by plain gradient descent (3.5).

        An expert without examples has no gradient and does not change.
        """
        tensors = self.w.requires_grad_(), self.theta.requires_grad_()
        gw, gtheta = torch.autograd.grad(self.loss(data, noise), tensors)
        norm = vector_norm(gw, dim=(1, 2), keepdim=True)
        self.w = self.w.detach() - self.schedule.lr * gw / norm.where(norm > 0, torch.ones_like(norm))
        self.theta = self.theta.detach() - self.schedule.router_lr * gtheta

    def test(self, data: Examples) -> tuple[float, float]:
        """Returns the accuracy (share of examples with y F > 0) and the dispatch entropy in nats, both without routing
        noise.
        """
        chosen = (data.x.sum(1) @ self.theta.T).argmax(1)
        output = torch.zeros_like(data.y)
        sent = torch.zeros(CLUSTERS, self.schedule.experts, dtype=torch.int64)
        for m in range(self.schedule.experts):
            rows = chosen == m
            output[rows] = self.score(m, data.x[rows])
            sent[:, m] = torch.bincount(data.cluster[rows], minlength=CLUSTERS)
        return float((data.y * output > 0).double().mean()), compute_dispatch_entropy(sent.numpy())


def compute_dispatch_entropy(dispatch: Sequence[Sequence[int]] | Array) -> float:
    """Returns the entropy (6.1) in nats of the clusters that an expert receives, averaged over examples; at most log K.

    Args:
        dispatch: number of examples by cluster and expert, (K, M). The index of the inner sum of (6.1) is the cluster
            k,
            not "K".
    """
    sent = np.asarray(dispatch, dtype=np.float64)
    load = sent.sum(0)
    share = sent / np.where(load > 0, load, 1)
    logs = np.log(np.where(share > 0, share, 1))
    return float(-(load / load.sum()) @ (share * logs).sum(0))


@dataclass(frozen=True)
class Training:
    """One training of a mixture by Algorithm 1 of the paper. Equal seeds draw the same data for every network.

    Attributes:
        schedule: size of the mixture, and hyperparameters.
        law: distribution of the data.
        seed: seed of the data and of the initial values.
        n: number of training examples.
        device: the torch device.
    """

    schedule: Schedule
    law: Distribution
    seed: int
    n: int
    device: str = "cpu"

    def run(self, sets: int = 1) -> tuple[Switch, Tensor, list[Examples]]:
        """Draws ``sets`` sets of examples, and trains a network on the first one.

        Returns:
            The trained network, the label signals v, and all sets of examples.
        """
        generator = torch.Generator().manual_seed(self.seed)
        directions = draw_signals(generator)
        drawn = [sample_examples(self.n, self.law, directions, generator, self.device) for _ in range(sets)]
        model, v = Switch(self.schedule, generator, self.device), directions[:CLUSTERS].to(self.device)
        for _ in range(self.schedule.steps):
            model.step(drawn[0], torch.rand(self.n, self.schedule.experts, generator=generator).to(self.device))
        return model, v, drawn

    def train_and_test(self) -> tuple[float, float]:
        """Trains a network and returns its accuracy and its dispatch entropy on n new examples."""
        model, _, (_, test) = self.run(sets=2)
        return model.test(test)

    def own_outputs(self) -> Array:
        """Trains a network and returns for each expert the mean of y f_m(x) over its own cluster, (M,).

        The own cluster of an expert is the one with whose label signal its filters are best aligned.
        """
        model, v, (train,) = self.run()
        means = []
        for m, cluster in enumerate((model.w @ v.T).amax(1).argmax(1)):
            rows = train.cluster == cluster
            means.append(float((train.y[rows] * model.score(m, train.x[rows])).mean()))
        return np.array(means)


def measure_dispatch(
    how: Conditions,
    names: Sequence[str],
    *,
    data: str,
    networks: Mapping[str, Mapping[str, Any]],
    n: int = 4000,
    first: int = 0,
) -> dict[str, Observation]:
    """Measures accuracies, dispatch entropies and the share of seeds in which the experts separate all clusters.

    Args:
        how: device and number of seeds.
        names: the quantities to return, such as ``NETWORK: accuracy`` or ``ONE minus OTHER: accuracy``.
        data: name of the distribution.
        networks: for each network the fields of its ``Schedule``, and ``times``, a factor on the number of seeds.
        n: number of examples.
        first: the first seed.
    """
    observed: dict[str, Array] = {}
    for name, settings in networks.items():
        schedule, tested = Schedule(**{k: x for k, x in settings.items() if k != "times"}), []
        for seed in range(settings.get("times", 1) * how.seeds):
            tested.append(Training(schedule, DISTRIBUTIONS[data], first + seed, n, how.device).train_and_test())
        accuracy, entropy = np.array(tested).T
        observed |= {f"{name}: accuracy": accuracy, f"{name}: dispatch entropy": entropy}
        observed[f"{name}: share of seeds with every cluster"] = (entropy < SPECIALISED).astype(np.float64)
    for name in names:
        one, minus, rest = name.partition(" minus ")
        if minus:
            observed[name] = observed[f"{one}: {rest.partition(': ')[2]}"] - observed[rest]
    return {name: Observation([observed[name]]) for name in names}


def measure_margins(
    how: Conditions, names: Sequence[str], *, data: str, experts: Sequence[int], lr: float, init: float
) -> dict[str, Observation]:
    """Measures how the output y f_m of an expert on its own cluster, after T_2 = 1/(eta M^2) steps, depends on the
    number M of experts.

    The router's learning rate is eta_r = M^2 eta. The predicted exponent is that of ``expert_margin`` in the shipped
    assumptions ``switch-cluster``.

    Args:
        how: device and number of seeds.
        names: unused; the only quantity is always returned.
        data: name of the distribution.
        experts: the numbers M of experts.
        lr: learning rate eta of the experts.
        init: initial scale sigma_0.
    """
    outputs = []
    for m in experts:
        schedule = Schedule(experts=m, steps=round(1 / (lr * m**2)), lr=lr, router_lr=lr * m**2, init=init)
        runs = (Training(schedule, DISTRIBUTIONS[data], s, 500, how.device).own_outputs() for s in range(how.seeds))
        outputs.append(np.array([float(np.median(run)) for run in runs]))
    derived = Fraction(str(compose_definitions(read_law("switch-cluster").define, {})["expert_margin"]["M"]))
    return {"cubic: y f_m at T_2": Observation(outputs, experts, "M", derived, Fraction(1))}
