"""Coverage of the intervals of fitted laws: known laws with noise, drawn again and again."""

import numpy as np
import pytest

pytest.importorskip("scipy")

from scaling_algebra.laws.law import law, read_law
from scaling_algebra.verify.judging.laws import Sum

DEPENDS = ("scaling_algebra/laws", "verify/judging")
OPTIMUM = 0.28 / 0.62


def chinchilla():
    """The sum of a law that ships, with the power of its optimum."""
    cell = law("chinchilla").axes["compute"].cells[0]
    return Sum(read_law("chinchilla").axes["compute"].sum, ("D", "N"), {"N in F": cell.optimum["N"]["F"]})


def runs(seed, noise=0.005, count=60):
    """Runs of a law that is known."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.uniform(np.log(1e7), np.log(1e10), count))
    d = n * np.exp(rng.uniform(np.log(3), np.log(300), count))
    loss = 1.7 + 400 * n**-0.34 + 410 * d**-0.28
    return {"N": n, "D": d, "loss": loss * np.exp(noise * rng.standard_normal(count))}


def test_intervals_of_ninety_percent_cover_the_truth(record_property):
    fitted = chinchilla()
    truth, held = {"alpha": 0.34, "beta": 0.28, "N in F": OPTIMUM}, dict.fromkeys(("alpha", "beta", "N in F"), 0)
    for seed in range(200):
        f = fitted.fit(runs(seed + 5), resamples=60, seed=seed)
        for name, value in truth.items():
            held[name] += f.low[name] <= value <= f.high[name]
    record_property("covered", held)
    assert all(170 <= count <= 190 for count in held.values()), held
