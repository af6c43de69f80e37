"""Learning-rate transfer: optima and verdicts on made-up curves, and sweeps of real small networks end to end."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from scaling_algebra import plan
from scaling_algebra.documents import render, rows
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.optimizers import optimizer as rule_of
from scaling_algebra.verify.commands.transfer import choose_sizes
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.optima import find_vertex
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.studies.curves import (
    LossCurve,
    combine_outcomes,
    compare,
    measure_drift,
    measure_improvement,
    measure_regret,
)
from scaling_algebra.verify.studies.data import DATA, load_data
from scaling_algebra.verify.studies.models import Model, Trainee, initialise_model, tune_plan
from scaling_algebra.verify.studies.presentation import build_study_document
from scaling_algebra.verify.studies.training import How, build_torch_optimizer, compute_loss, compute_rate, train_model
from scaling_algebra.verify.studies.transfer import (
    Course,
    Series,
    Study,
    build_points,
    check_memory,
    study_transfer,
    sweep_rates,
)
from scaling_algebra.verify.tracing.model_loading import load_function

from ..shared import scalecalc

GRID = tuple(np.arange(-9.0, -2.0))
YES, NO, OPEN = "TRANSFERS", "DRIFTS", "INCONCLUSIVE"
WIDTHS = (16, 32, 64, 128)


def curve(width, at=-5.5, seeds=8, noise=0.0):
    """A parabola with its minimum at log2 lr = ``at``, the depth growing with width."""
    centre = at + noise * np.random.default_rng(width).standard_normal(seeds)
    losses = 1 / width + 0.1 * (np.array(GRID)[:, None] - centre) ** 2
    return LossCurve(width, {"N": width}, width, GRID, losses, losses)


def lowest(width, loss, seeds=8, noise=0.01, seed=0):
    """A parabola around log2 lr = -5.5 whose smallest value is ``loss``, with noise for every seed."""
    spread = np.exp(noise * np.random.default_rng([width, seed]).standard_normal(seeds))
    losses = loss * spread * (1 + 0.1 * (np.array(GRID)[:, None] + 5.5) ** 2)
    return LossCurve(width, {"N": width}, width, GRID, losses, losses)


@pytest.mark.parametrize("at", [-6.3, -5.0, -4.6])
def test_the_vertex_is_exact_for_a_parabola(at):
    assert find_vertex(GRID, curve(32, at).losses.mean(1)) == pytest.approx(at)
    assert curve(32, at).optimum.value == pytest.approx(at)
    flat_or_edge = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    assert find_vertex((0.0, 1.0, 2.0), flat_or_edge.T).tolist() == [0.0, 2.0, 0.0]  # nothing to fit


@pytest.mark.parametrize(("slope", "verdict"), [(0.0, YES), (0.1, YES), (-0.5, NO), (-1.0, NO), (0.5, NO)])
def test_planted_drifts_are_found_and_no_drift_transfers(slope, verdict):
    found = measure_drift([curve(w, -5.5 + slope * k, noise=0.1) for k, w in enumerate((32, 64, 128))])
    assert found.verdict == verdict and found.estimate.value == pytest.approx(slope, abs=0.15), found
    assert found.estimate.low <= found.estimate.value <= found.estimate.high and found.estimate.se > 0


@pytest.mark.parametrize("seeds", [2, 4])
def test_the_interval_of_a_best_rate_holds_it_with_few_seeds(seeds):
    """95 % in 60 curves, give or take; percentiles over two seeds hold half of them."""
    found = [curve(k, noise=0.3, seeds=seeds).optimum for k in range(1, 61)]
    assert sum(one.low <= -5.5 <= one.high for one in found) >= 52
    assert all(GRID[0] <= one.low and one.high <= GRID[-1] for one in found)


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
    found = measure_drift(curves)
    assert found.verdict == OPEN and why in found.why and 256 not in found.used
    near = curve(64, -7.6, noise=1.0, seeds=4)
    assert not near.edge and near.unknown == -1  # some seeds have it on the edge


def test_a_control_that_does_not_drift_makes_a_pass_worthless():
    assert combine_outcomes([YES, YES], [NO]) == YES and combine_outcomes([YES], []) == YES
    assert combine_outcomes([YES], [YES]) == OPEN and combine_outcomes([YES], [OPEN]) == OPEN
    assert combine_outcomes([NO, YES], [NO]) == NO and combine_outcomes([OPEN], [NO]) == OPEN
    assert combine_outcomes([], [NO]) == NO and combine_outcomes([], []) == OPEN


def grown(*losses, **given):
    return measure_improvement([lowest(w, x, **given) for w, x in zip(WIDTHS, losses, strict=False)])


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
    at_the_edge = measure_improvement([*(lowest(w, 1 / w) for w in WIDTHS[:3]), curve(128, -12.0)])
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


def test_regret_is_the_loss_above_the_best_one():
    found = curve(32, -5.0)
    assert measure_regret(found, -5.0).value == 0 and measure_regret(found, -7.0).value == pytest.approx(0.4)
    assert measure_regret(found, -7.0).low == pytest.approx(0.4) and np.isnan(measure_regret(found, -7.5).value)


# data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATA)
def test_batches_depend_on_seed_and_step_and_one_is_held_out(name):
    data = load_data(name, ("batch=4",))
    (x, y), (again, _), (other, _) = (data.batch(0, step, "cpu") for step in (0, 0, 1))
    held, _ = data.batch(3, None, "cpu")
    assert (x == again).all() and not (x == other).all() and len(x) == len(y) == 4 == data.settings["batch"]
    assert (
        (held == data.batch(0, None, "cpu")[0]).all()
        and len(held) > 100
        and data.digest != load_data("digits").digest[:8]
    )


def test_text_is_bytes_and_the_next_ones_and_no_held_out_byte_is_learned():
    data = load_data("text", ("batch=2", "context=8"))
    x, y = data.batch(0, 0, "cpu")
    assert x.shape == (2, 8) and (x[:, 1:] == y[:, :-1]).all() and x.max() < 256
    words = bytes(data.batch(0, None, "cpu")[0][0].tolist())
    assert words.decode(errors="ignore").isprintable() or b"\n" in words
    with pytest.raises(UsageError, match="give a shorter one"):
        load_data("text", ("context=100000",))


def test_data_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\ndef batches(seed, step):\n"
        "    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step or 0))\n    return x, x.sum(1, True)\n"
        "def alone(seed, step):\n    return 1\ndef broken(seed, step):\n    return 1 / 0\n"
    )
    x, y = load_data("mine.py:batches").batch(0, 0, "cpu")
    assert compute_loss(torch.nn.Linear(3, 1), x, y, "mine").item() > 0  # numbers: mean square
    for name, settings, message in [
        ("mine.py:alone", (), "return .inputs, targets."),
        ("mine.py:broken", (), "ZeroDivisionError"),
        ("mine.py:batches", ("batch=2",), "leave out --set"),
        ("txt", (), "did you mean 'text'"),
        ("text", ("bach=2",), "did you mean 'batch'"),
        ("text", ("batch=x",), "e.g. batch=16"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_data(name, settings)
    with pytest.raises(UsageError, match="cannot be trained on digits"):
        compute_loss(torch.nn.Linear(3, 10), *load_data("digits").batch(0, 0, "cpu"), "digits")


# models --------------------------------------------------------------------------------------------------------------


MLP = """
from torch import nn
def build(sizes):
    n = sizes["N"]
    linear = lambda a, b: nn.Linear(a, b, bias=False)
    return nn.Sequential(linear(64, n), nn.RMSNorm(n), linear(n, n), nn.ReLU(), linear(n, 10))
"""
SIZES = [{"N": 8}, {"N": 16}, {"N": 32}]


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "mlp.py"
    path.write_text(MLP)
    return Model(f"{path}:build")


def test_numbers_are_those_of_plan_and_at_the_base_those_of_the_module(mlp):
    """``plan`` is asked by itself, with the stds that the module has at the base."""
    base, _, wide = mlp.numbers("mup", "adamw", SIZES)
    model = mlp.build(SIZES[0], 0)
    stds = {name: float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()}
    p = plan(load_function(mlp.name)[0], "N=8", "N=32", lr=1.0, eps=1e-8, std=stds)
    for group in p.param_groups():
        (name,) = group["param_names"]
        assert (wide[name].lr, wide[name].eps) == (group["lr"], group["eps"])
        assert wide[name].std == pytest.approx(p.groups[group["name"]].std) or name == "1.weight"
    assert all(x.std is None and x.lr == 1 and x.eps == 1e-8 for x in base.values())
    assert wide["1.weight"].std is None  # a gain stays one
    ones = mlp.numbers("sp", "adamw", SIZES)
    assert all(x.std is None and x.lr == 1 and x.eps == 1e-8 for numbers in ones for x in numbers.values())
    started = {name: x.std for name, x in mlp.numbers("mssp", "adamw", SIZES)[2].items()}
    assert started["4.weight"] == 0 and all(started[name] == wide[name].std for name in ("0.weight", "2.weight"))
    with pytest.raises(UsageError, match="ntp is not available for modules"):
        mlp.numbers("ntp", "adamw", SIZES)


def test_a_model_starts_and_steps_by_its_numbers(mlp):
    numbers = mlp.numbers("mup", "adamw", SIZES)[2]
    model = mlp.build({"N": 256}, 0)
    initialise_model(model, numbers)
    assert (
        model[2].weight.std().item() == pytest.approx(numbers["2.weight"].std, rel=0.02)
        and (model[1].weight == 1).all()
    )
    twice = tune_plan(numbers, {"2.*": 2.0, "*.weight": 3.0})
    groups = build_torch_optimizer(model, twice, 0.01).param_groups
    rates = {name: g["lr"] for (name, _), g in zip(model.named_parameters(), groups, strict=True)}
    assert rates["0.weight"] == pytest.approx(0.03 * numbers["0.weight"].lr)
    assert rates["2.weight"] == pytest.approx(0.06 * numbers["2.weight"].lr)
    with pytest.raises(UsageError, match=r"no parameter matches .emb.. of --rate"):
        tune_plan(numbers, {"emb*": 2.0})


def test_two_optimizers_step_a_module(mlp):
    """Muon steps matrices, also those of a stack, by itself: on one matrix as ``torch.optim.Muon`` does."""
    muon, adamw = rule_of("muon"), rule_of("adamw")
    numbers = {
        name: Trainee(muon if name == "2.weight" else adamw) for name, _ in mlp.build(SIZES[0], 0).named_parameters()
    }
    data = load_data("digits", ("batch=4",))
    how = How(mlp.name, "digits", ("batch=4",), data.digest, 2)
    assert all(map(np.isfinite, train_model(Hardware(), how, SIZES[1], numbers, 0.01, 0)))
    grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    one, stack = torch.nn.Linear(6, 4, bias=False), torch.nn.Module()
    stack.weight = torch.nn.Parameter(torch.zeros(2, 4, 6))
    torch.nn.init.zeros_(one.weight)
    one.weight.grad, stack.weight.grad = grad.clone(), torch.stack([grad, 3 * grad])
    for model in (one, stack):
        build_torch_optimizer(model, {"weight": Trainee(muon)}, 0.1).step()
    torch.testing.assert_close(stack.weight[0], one.weight)
    torch.testing.assert_close(stack.weight[1], one.weight, rtol=0.05, atol=1e-3)
    reference = torch.nn.Parameter(torch.zeros(4, 6))
    reference.grad = grad.clone()
    torch.optim.Muon([reference], lr=0.1, weight_decay=0.0).step()
    torch.testing.assert_close(one.weight, reference)


def test_rates_warm_up_and_fall_to_zero():
    every = [compute_rate(step, 100) for step in range(101)]
    assert (
        every[0] == pytest.approx(0.1)
        and max(every) == every[9]
        and every[100] == 0
        and every[55] == pytest.approx(0.45)
    )


def test_half_the_precision_trains(mlp):
    data, numbers = load_data("digits"), mlp.numbers("sp", "adamw", SIZES)[0]
    losses = []
    for dtype in ("float32", "bfloat16"):
        how = How(mlp.name, "digits", (), data.digest, 20, dtype)
        losses.append(train_model(Hardware(), how, SIZES[0], numbers, 0.01, 0))
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.05) and losses[0][1] < losses[0][0]


# sweeps --------------------------------------------------------------------------------------------------------------


def course(mlp, steps=6, seeds=2, store=None, **given):
    data = load_data("digits", ("batch=8",))
    return Course(
        How(mlp.name, "digits", ("batch=8",), data.digest, steps, **given), range(seeds), store=store or Store()
    )


def asked(mlp, *names, sizes=SIZES, rule="adamw"):
    return build_points(mlp, names or ("mup", "sp"), rule, sizes, {})


class CountingPool(Here):
    """Counts what is trained."""

    trained = 0

    def __call__(self, tasks):
        for done in super().__call__(tasks):
            self.trained += 1
            yield done


def test_what_is_asked_twice_is_trained_once_and_kept(mlp, tmp_path):
    """muP and one rate are one model at the base; a second time nothing is trained; another rate is."""
    pool = CountingPool(Hardware())
    how = replace(course(mlp, store=Store(tmp_path)), pool=pool)
    first = sweep_rates(how, asked(mlp), (-8.0, -6.0))
    assert pool.trained == 5 * 2 * 2
    again = sweep_rates(how, asked(mlp), (-8.0, -6.0))
    assert pool.trained == 20 and all((a.losses == b.losses).all() for a, b in zip(first, again, strict=True))
    assert (first[0].losses == first[3].losses).all() and (first[1].losses != first[4].losses).all()
    sweep_rates(how, asked(mlp), (-8.0, -7.0, -6.0))
    assert pool.trained == 30


@pytest.mark.parametrize("grid", [(-18.0, -17.0, -16.0), (-2.0, -1.0, 0.0)])
def test_a_grid_that_misses_the_optimum_is_extended_towards_it(mlp, grid):
    one = asked(mlp, "sp", sizes=SIZES[:2])[:1]
    (short,) = sweep_rates(course(mlp, 12), one, grid)
    assert short.edge == (1 if grid[0] < -9 else -1)
    (long,) = sweep_rates(course(mlp, 12), one, grid, extend=2)
    assert len(long.log2_lr) == 5 and set(grid) < set(long.log2_lr)
    assert (min(long.log2_lr) < grid[0]) == (grid[0] > -9)


def swept(mlp, *names, grid=(-8.0, -7.0, -6.0), extend=0, seeds=4, steps=3, rule="adamw"):
    how = course(mlp, steps, seeds)
    return study_transfer(how, load_data("digits", ("batch=8",)), rule, asked(mlp, *names, rule=rule), grid, extend)


def test_diverged_runs_count_as_having_learned_nothing(mlp):
    found = swept(mlp, "sp", grid=(-6.0, 58.0, 122.0), rule="sgd", steps=8)
    (c, *_), record = found.series[0].curves, build_study_document(found).record
    assert np.isfinite(c.losses).all() and not np.isfinite(c.held[1]).any() and 58 in c.diverged
    assert "sp at N = 8 from 58 on" in found.diverged and "diverged" in str(build_study_document(found))
    assert record["parameterizations"]["sp"]["widths"][0]["held_out_losses"][1] == [None] * 4


def test_an_optimum_on_the_edge_proves_nothing(mlp):
    """Negative control of the whole chain: a grid far below every optimum."""
    found = swept(mlp, "mup", grid=(-18.0, -17.0, -16.0))
    text, record = str(found), build_study_document(found).record["parameterizations"]["mup"]
    assert found.exit_code == 3 and "fewer than two widths" in text and "<=" not in text and ">= -16" in text
    assert [w["edge"] for w in record["widths"]] == [1, 1, 1] and record["drift"]["verdict"] == "INCONCLUSIVE"


def test_a_blind_experiment_does_not_pass(mlp):
    """Negative control of the verdict: two steps are too few for one rate to drift, so nothing can transfer."""
    found = swept(mlp, "mup", "sp", steps=2, grid=(-8.0, -6.0, -4.0))
    assert found.exit_code != 0 and "could not detect a drift" in str(build_study_document(found))


def test_rows_are_runs_and_verdicts_those_of_the_losses(mlp):
    found = swept(mlp, "mup", "sp")
    record = build_study_document(found).record
    closing = build_study_document(found).closing  # is printed beside a file of rows
    assert "log2 lr" in closing and "drift" in closing and closing.endswith(f"\n\n{found.verdict}")
    made = rows(record)
    assert len(made) == 2 * 3 * 3 * 4
    kept, by_rate = record["parameterizations"]["mup"]["widths"][1], {}
    for row in made:
        if (row["name"], row["N"]) == ("mup", 16):
            by_rate.setdefault(np.log2(row["lr"]), []).append(row["loss"])
    means = {x: np.mean(losses) for x, losses in by_rate.items()}
    assert kept["loss"] == pytest.approx(min(means.values()), abs=1e-5)
    assert kept["regret"]["nats"] == pytest.approx(means[found.series[0].at] - min(means.values()), abs=1e-5)
    assert [c["width"] for c in record["comparisons"]] == [8, 16, 32]
    first = record["comparisons"][0]  # at the base both are the module as it is
    assert first["ratio"] == 0 and (first["verdict"] == "EQUAL") == ("edge of the grid" not in first["why"])


def test_its_runs_are_a_table_whose_best_rates_are_fitted(tmp_path):
    """The plan's optimum stays and the control's moves; a claim that either does as the other is refuted."""
    still, moving = ([curve(w, -5.5 + slope * k, noise=0.1) for k, w in enumerate(WIDTHS)] for slope in (0.0, -0.5))
    told = {"device": "cpu", "torch": "", "dtype": "float32", "wall_seconds": 0.0, "steps": 1, "seeds": 8}
    series = Series("mup", tuple(still)), Series("sp", tuple(moving))
    table = tmp_path / "runs.csv"
    table.write_text(
        render(build_study_document(Study("made up", load_data("digits"), "adamw", "N", series, told)), "csv")
    )
    words = "law", "--fit-rate", str(table), "--apart", "1/2"
    for claims, code in ((("mup power=0", "sp power=-1/2"), 0), (("mup power=-1/2",), 1), (("sp power=0",), 1)):
        found = scalecalc(*words, *(x for claim in claims for x in ("--claim", claim)))
        assert found.exit_code == code, found.output


def test_models_that_do_not_fit_are_refused():
    point = asked_point = type("SizedModel", (), {"parameters": 10**9})
    check_memory(None, point)
    with pytest.raises(UsageError, match="1,000,000,000 parameters takes more than 15 GiB"):
        check_memory(2**30, asked_point)


# the command ---------------------------------------------------------------------------------------------------------


def test_the_command_trains_a_module_and_draws_in_one_process_as_in_two(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.py").write_text(MLP)
    words = "study transfer --model mlp.py:build --base N=8 --widths 16,32 --seeds 2 --steps 3 --grid=-8,-6 --extend 0"
    words += " --set batch=4 --device cpu --plot rates.png --format json"
    first, second = (scalecalc(*words.split(), *more) for more in ([], ["--workers", "2"]))
    assert first.exit_code == 3, first.output
    record, again = json.loads(first.stdout), json.loads(second.stdout)
    assert record["parameterizations"] == again["parameterizations"] and record["along"] == "N"
    assert [w["dims"]["N"] for w in record["parameterizations"]["mup"]["widths"]] == [8, 16, 32]
    assert record["environment"]["seeds"] == 2 and record["settings"]["batch"] == 4
    assert (tmp_path / "rates.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base", "M=3,K=2"], "--base gives M, but the model only has N"),
        (["--base", "N=8", "--widths", "32,16"], "in increasing order"),
        (["--widths", "16", "--size", "N=32"], "leave out --widths"),
        (["--rate", "emb*=2", "--base", "N=8"], "no parameter matches 'emb.'"),
        (["--data", "text"], "cannot be trained on text"),
        (["--parameterization", "mean-field"], "is not available for modules"),
    ],
)
def test_wrong_words_about_a_module_are_one_line(mlp, words, message):
    found = scalecalc("study", "transfer", "--model", mlp.name, *words)
    assert found.exit_code == 2 and not found.stdout and len(found.stderr.splitlines()) == 1
    assert re.search(message, found.stderr), found.stderr


def test_sizes_are_multiples_or_said_whole():
    usual = {"N": 32, "N_e": 48, "M": 4}
    assert choose_sizes(usual, None, "32,64", ()) == [usual, {"N": 64, "N_e": 96, "M": 4}]
    assert choose_sizes(usual, "M=2", "16,64", ()) == [{"N": 16, "N_e": 24, "M": 2}, {"N": 64, "N_e": 96, "M": 2}]
    assert choose_sizes(usual, "N=16,N_e=8", "64", ()) == [{"N": 16, "N_e": 8, "M": 4}, {"N": 64, "N_e": 32, "M": 4}]
    assert choose_sizes(usual, None, None, ("M=8", "N=64,M=16"))[1:] == [{**usual, "M": 8}, {**usual, "N": 64, "M": 16}]
    with pytest.raises(UsageError, match="at N=33 N_e"):
        choose_sizes({"N": 32, "N_e": 1}, None, "33", ())


def test_a_family_of_transformers_learns_text():
    pytest.importorskip("transformers")
    model = Model("llama")
    assert model.base == {"N": 32, "L": 2} and Model("mixtral").base["M"] == 4
    x, y = load_data("text", ("batch=2", "context=8")).batch(0, 0, "cpu")
    assert compute_loss(model.build({"N": 32, "L": 1}, 0), x, y, "text").item() == pytest.approx(np.log(256), rel=0.05)
