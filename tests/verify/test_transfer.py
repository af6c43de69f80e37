"""Learning-rate transfer: optima and verdicts on made-up curves, and sweeps of real small networks end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.networks.base_shapes import recipe
from scaling_algebra.verify.studies.curves import LossCurve, compare, drift, improvement, overall, vertex
from scaling_algebra.verify.studies.presentation import study
from scaling_algebra.verify.studies.sweep import Course, rate, sweep
from scaling_algebra.verify.studies.tasks import TASKS
from scaling_algebra.verify.studies.transfer import transfer

GRID = tuple(np.arange(-9.0, -2.0))
YES, NO, OPEN = "TRANSFERS", "DRIFTS", "INCONCLUSIVE"
SMALL = {"N": 8, "N_e": 8, "M": 2, "K": 2}
WIDTHS = (16, 32, 64, 128)


def course(steps, seeds):
    """How digits are learned."""
    return Course(TASKS["digits"], TASKS["digits"].data(), steps, range(seeds))


def small_recipe(rule="adam"):
    return recipe(Configuration.of("I", rule, "mup"), SMALL, False)


def curve(width, at=-5.5, seeds=8, noise=0.0):
    """A parabola with its minimum at log2 lr = ``at``, the depth growing with width."""
    centre = at + noise * np.random.default_rng(width).standard_normal(seeds)
    losses = 1 / width + 0.1 * (np.array(GRID)[:, None] - centre) ** 2
    return LossCurve(width, {"N": width}, width, GRID, losses, losses)


def lowest(width, loss, seeds=8, noise=0.01, seed=0):
    """A parabola around log2 lr = -5.5 whose smallest value is ``loss``, times noise that every seed has of its own."""
    spread = np.exp(noise * np.random.default_rng([width, seed]).standard_normal(seeds))
    losses = loss * spread * (1 + 0.1 * (np.array(GRID)[:, None] + 5.5) ** 2)
    return LossCurve(width, {"N": width}, width, GRID, losses, losses)


@pytest.mark.parametrize("at", [-6.3, -5.0, -4.6])
def test_the_vertex_is_exact_for_a_parabola(at):
    assert vertex(GRID, curve(32, at).losses.mean(1)) == pytest.approx(at)
    assert curve(32, at).optimum.value == pytest.approx(at)
    flat_or_edge = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    assert vertex((0.0, 1.0, 2.0), flat_or_edge.T).tolist() == [0.0, 2.0, 0.0]  # nothing to fit


@pytest.mark.parametrize(("slope", "verdict"), [(0.0, YES), (0.1, YES), (-0.5, NO), (-1.0, NO), (0.5, NO)])
def test_planted_drifts_are_found_and_no_drift_transfers(slope, verdict):
    found = drift([curve(w, -5.5 + slope * k, noise=0.1) for k, w in enumerate((32, 64, 128))])
    assert found.verdict == verdict and found.estimate.value == pytest.approx(slope, abs=0.15), found
    assert found.estimate.low <= found.estimate.value <= found.estimate.high and found.estimate.se > 0


STILL = [curve(w, noise=0.1) for w in WIDTHS[1:]]


@pytest.mark.parametrize(
    ("curves", "why"),
    [
        ([curve(w, noise=3.0) for w in WIDTHS[1:]], "fewer than two widths"),  # seeds disagree
        (STILL[:2], "3 and 4 needed"),
        ([curve(w, seeds=3) for w in WIDTHS[1:]], "3 and 4 needed"),
        ([*STILL, curve(256, -12.0)], "width 256"),
        ([curve(w, -12.0) for w in WIDTHS[1:]], "fewer than two widths"),
    ],
)
def test_what_proves_nothing_is_inconclusive(curves, why):
    found = drift(curves)
    assert found.verdict == OPEN and why in found.why and 256 not in found.used
    near = curve(64, -7.6, noise=1.0, seeds=4)
    assert not near.edge and near.unknown == -1  # some seeds have it on the edge


def test_a_control_that_does_not_drift_makes_a_pass_worthless():
    assert overall([YES, YES], [NO]) == YES and overall([YES], []) == YES
    assert overall([YES], [YES]) == OPEN and overall([YES], [OPEN]) == OPEN
    assert overall([NO, YES], [NO]) == NO and overall([OPEN], [NO]) == OPEN
    assert overall([], [NO]) == NO and overall([], []) == OPEN


def grown(*losses, **given):
    return improvement([lowest(w, x, **given) for w, x in zip(WIDTHS, losses, strict=False)])


@pytest.mark.parametrize(
    ("losses", "verdict", "factor"),
    [
        ((1.0, 0.8, 0.64, 0.512), "IMPROVES", 0.8),
        ((1.0, 0.99, 0.98, 0.97), "IMPROVES", 0.99),
        ((1.0, 0.5, 0.5, 0.5), "STALLS", 1.0),
        ((1.0, 0.5, 0.55, 0.605), "WORSENS", 1.1),
    ],
)
def test_planted_improvements_stalls_and_losses_are_found(losses, verdict, factor):
    """Each is the negative control of the others; what happened before the middle width does not count."""
    found = grown(*losses, noise=0.002)
    assert found.verdict == verdict and found.used == WIDTHS[1:], found
    assert 2**found.estimate.value == pytest.approx(factor, rel=0.02)
    assert found.estimate.low <= found.estimate.value <= found.estimate.high


def test_no_improvement_is_told_from_too_little_data():
    assert grown(1.0, 1.0, 1.0, 1.0, noise=0.5).verdict == OPEN  # seeds disagree
    assert "3 and 4 needed" in grown(1.0, 0.5).why and "3 and 4 needed" in grown(1.0, 0.5, 0.3, seeds=3).why
    at_the_edge = improvement([*(lowest(w, 1 / w) for w in WIDTHS[:3]), curve(128, -12.0)])
    assert at_the_edge.verdict == OPEN and "edge of the grid at width 128" in at_the_edge.why


@pytest.mark.parametrize(("loss", "verdict"), [(0.9, "BETTER"), (1.0, "EQUAL"), (1.1, "WORSE")])
def test_planted_differences_between_parameterizations_are_found(loss, verdict):
    found = compare(lowest(32, loss), lowest(32, 1.0, seed=1))
    assert found.verdict == verdict and found.used == (32,), found
    assert found.estimate.value == pytest.approx(np.log2(loss), abs=0.02)


def test_seeds_are_paired_where_losses_are_compared():
    """Noise that both share, because they saw the same batches, hides nothing; noise of their own does."""
    noisy = lowest(32, 0.9, noise=0.5)
    assert compare(noisy, lowest(32, 1.0, noise=0.5)).verdict == "BETTER"
    assert compare(noisy, lowest(32, 1.0, noise=0.5, seed=1)).verdict == OPEN
    assert compare(lowest(32, 0.5, seeds=3), lowest(32, 1.0, seeds=3)).verdict == OPEN
    assert compare(*(curve(32, -12.0),) * 2).why


def test_the_teacher_repeats_itself_and_never_an_example():
    data = TASKS["teacher"].data(["batch=4"])
    (x, y), (again, _), (other, _) = (data.batch(0, step) for step in (0, 0, 1))
    assert (x == again).all() and not (x == other).any() and x.shape == (4, 16) and y.max() < 10
    assert data.settings["batch"] == 4 and np.bincount(data.batch(0, None)[1], minlength=10).min() > 0


def test_the_schedule_warms_up_and_decays():
    assert [rate(s, 100, 0.0, 1.0) for s in (0, 50, 99)] == [1.0, 1.0, 1.0]
    cosine = [rate(s, 100, 0.1, 0.1) for s in range(101)]
    assert 0 < cosine[0] < cosine[9] < cosine[10] == 1.0 and cosine[100] == pytest.approx(0.1)


@pytest.mark.parametrize("grid", [(-16.0, -15.0, -14.0), (-3.0, -2.0, -1.0)])
def test_a_grid_that_misses_the_optimum_is_extended_towards_it(grid):
    run = (course(12, 4), [(small_recipe(), 8, grid)])
    (short,) = sweep(*run)
    assert short.edge == (1 if grid[0] < -9 else -1)
    (long,) = sweep(*run, extend=2)
    assert len(long.log2_lr) == 5 and set(grid) < set(long.log2_lr)
    assert (min(long.log2_lr) < grid[0]) == (grid[0] > -9)


def test_diverged_runs_count_as_having_learned_nothing():
    (found,) = sweep(course(8, 2), [(small_recipe("sgd"), 8, (-2.0, 20.0, 30.0))])
    assert np.isfinite(found.losses).all() and (found.losses[1:] >= found.losses[0]).all()
    assert found.losses[-1] == pytest.approx(np.log(10))  # zero readout: uniform over ten classes at the start
    study = swept("mup", grid=(-6.0, 30.0, 66.0), extend=0)
    assert study.diverged == "mup at N = 8 from 30 on, mup at N = 12 from 30 on, mup at N = 16 from 30 on"


@pytest.mark.parametrize("swept", ["init", "epsilon", "alpha"])
def test_another_constant_is_swept_at_a_fixed_rate(swept):
    """A factor of 1 is the network of a sweep of the rate; one of 2^30 is another."""
    rates = sweep(course(6, 2), [(small_recipe(), 8, (-6.0, -5.0))])[0]
    other = sweep(replace(course(6, 2), swept=swept, lr=2.0**-5), [(small_recipe(), 8, (0.0, 30.0))])[0]
    assert (other.losses[0] == rates.losses[1]).all() and (other.losses[1] != rates.losses[1]).all()


def swept(*names, steps=3, grid=(-7.0, -6.0, -5.0), extend=4, data="digits", **settings):
    """A study of the smallest networks."""
    rules = [recipe(Configuration.of("I", "adamw", name), SMALL, TASKS[data].transformer) for name in names]
    asked = [f"{name}={x}" for name, x in {"batch": 2, **settings}.items()]
    how = Course(TASKS[data], TASKS[data].data(asked), steps, range(4))
    return transfer(how, rules, (8, 12, 16), grid, extend)


def test_an_optimum_on_the_edge_proves_nothing():
    """Negative control of the whole chain: a grid far below every optimum."""
    found = swept("mup", grid=(-16.0, -15.0, -14.0), extend=0)
    text, record = str(study(found)), study(found).record["parameterizations"]["mup"]
    assert found.exit_code == 3 and "fewer than two widths" in text and "<=" not in text and ">= -14" in text
    assert [w["edge"] for w in record["widths"]] == [1, 1, 1] and record["drift"]["verdict"] == "INCONCLUSIVE"


TINY = {"text": {"context": 8, "blocks": 1, "head": 4}}


@pytest.mark.parametrize("data", TASKS)
def test_every_task_runs_end_to_end(data):
    found = swept("mup", data=data, **TINY.get(data, {}))
    report = study(found).record
    widths = report["parameterizations"]["mup"]["widths"]
    assert found.exit_code == report["exit_code"] in (0, 1, 3) and report["environment"]["data"]
    assert [w["dims"]["N"] for w in widths] == [8, 12, 16] and widths[0]["parameters"] < widths[1]["parameters"]
    assert all(len(w["losses"]) == len(w["grid"]) >= 3 and len(w["losses"][0]) == 4 for w in widths)
    assert report["settings"]["batch"] == 2 and report["comparisons"] == []


def test_a_blind_experiment_does_not_pass():
    """Negative control of the verdict: two steps are too few for SP to drift, so nothing can transfer."""
    found = swept("mup", "sp", steps=2, grid=(-8.0, -6.0, -4.0))
    assert found.exit_code != 0 and "CANNOT SEE" in str(study(found))


def test_widths_may_be_values_of_another_axis():
    ray, base = "N=0,N_e=0,M=1,K=1", {"N": 8, "N_e": 8, "M": 4, "K": 4}
    configuration = Configuration.of(None, "adam", "mup", ray=ray)
    shapes = recipe(configuration, base, False, along="M")
    assert shapes.dims(16) == {"N": 8, "N_e": 8, "M": 16, "K": 16}
    with pytest.raises(UsageError, match="N does not grow"):
        recipe(configuration, base, True, along="M")
