"""Coverage of the 95 % intervals of fitted laws: known laws with noise, drawn 200 times."""

import numpy as np
import pytest

from scaling_algebra.verify.judging.laws import FittedSum

from ..verify.test_fit_laws import OPTIMUM, bent, chinchilla, fit_rates, rates, runs

DEPENDS = (
    "verify/judging/laws.py",
    "verify/judging/optima.py",
    "verify/judging/rates.py",
    "verify/judging/regions.py",
    "tests/verify/test_fit_laws.py",
)
DRAWS, LOW, HIGH = 200, 0.9, 0.99


def covers(fitted, name, true):
    """Whether an interval holds the number that the runs were made with."""
    return fitted.low[name] <= true <= fitted.high[name]


def test_of_the_parameters_of_a_law(record_property, monkeypatch):
    """Fits begin at the law that the runs were made with: the search from several starts is tested elsewhere."""
    true = {"alpha": 0.34, "beta": 0.28, "E": 1.7, "N in F": OPTIMUM}
    law, held = chinchilla(), dict.fromkeys(true, 0)
    known = {**true, **dict(zip(law.constants, (1.7, 400, 410), strict=True))}
    start = np.log([known[name] for name in (*law.constants, *law.parameters)])
    monkeypatch.setattr(FittedSum, "iterate_starts", lambda self, x: [start])
    for seed in range(DRAWS):
        fitted = law.fit(runs(seed), resamples=60, seed=seed)
        for name, value in true.items():
            held[name] += covers(fitted, name, value)
    record_property("covered", {name: count / DRAWS for name, count in held.items()})
    assert all(LOW <= count / DRAWS <= HIGH for count in held.values()), held


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_of_the_power_of_the_best_rate(noise, record_property):
    held = 0
    for seed in range(DRAWS):
        held += covers(fit_rates(rates(noise=noise, seed=seed)), "power", -0.5)
    record_property("covered", held / DRAWS)
    assert LOW <= held / DRAWS <= HIGH, held


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("noise", [0.0005, 0.003, 0.01])
@pytest.mark.parametrize("steep", [1.5, 2.5])
def test_of_the_power_on_bent_curves_and_one_grid(steep, noise, seeds, record_property):
    """Where the optimum falls between the rates differs by size, and moves the fit more than noise. Errors of the form
    are known from four sizes, or from one run of each: intervals may be wider than they need be, never too narrow."""
    held = 0
    for seed in range(DRAWS):
        held += covers(fit_rates(bent(noise=noise, seed=seed, steep=steep, seeds=seeds)), "power", -0.75)
    record_property("covered", held / DRAWS)
    assert held / DRAWS >= LOW, held
