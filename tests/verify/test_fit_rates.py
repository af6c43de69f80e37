"""The best rate as a product of powers of several sizes: known powers with noise are recovered, broken laws are not."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("statsmodels")

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.horizon import rate_rules
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.verify.commands.fit_rate import list_theories
from scaling_algebra.verify.judging.rates import fit_rates

from .test_fit_laws import exit_code, written

SIZES = ("N", "tokens", "batch")
POWERS = (-0.5, 0.0, 0.5)
ASKED = tuple(x for name in SIZES for x in ("--size", name))


def fractional(seed, powers=POWERS, noise=0.005, threshold=np.inf, settings=14, chosen=lambda n, d, b: True):
    """Two seeds of seven rates at some of 120 combinations of sizes; losses rise faster above the best rate.

    Args:
        threshold: the batch from which on the best rate stays.
        chosen: whether a combination may be run.
    """
    rng, table = np.random.default_rng(seed), {name: [] for name in (*SIZES, "lr", "loss")}
    grid = [
        (n, d, b)
        for n in 2.0 ** np.arange(7, 12)
        for d in 1e8 * 4.0 ** np.arange(4)
        for b in 2.0 ** np.arange(5, 11)
        if chosen(n, d, b)
    ]
    for j in rng.choice(len(grid), min(settings, len(grid)), replace=False):
        n, d, b = grid[j]
        relative = (n / 512, d / 1e9, min(b, threshold) / 128)
        best = np.log2(0.02) + sum(p * np.log2(x) for p, x in zip(powers, relative, strict=True))
        for log2 in np.repeat(np.round(best) + np.arange(-3.0, 4.0), 2):
            x = log2 - best
            loss = 3 + 0.05 * (2 ** (-0.7 * x) / 0.7 + 2 ** (0.9 * x) / 0.9) + noise * rng.standard_normal()
            for name, value in zip(table, (n, d, b, 2**log2, loss), strict=True):
                table[name].append(value)
    return {name: np.array(values) for name, values in table.items()}


def test_known_powers_are_recovered_from_fractions_of_a_design():
    """In 90 of 100 draws, with seeds that ``UNLIKELY`` was not chosen on; tokens have no influence, so that their
    interval holds zero. Few are taken for broken."""
    held, broken = np.zeros(3), 0
    for seed in range(1000, 1100):
        fitted = fit_rates(fractional(seed), SIZES)
        held += [fitted.low[name] <= true <= fitted.high[name] for name, true in zip(SIZES, POWERS, strict=True)]
        broken += any(fitted.broken.values())
    assert (held >= 90).all() and broken <= 5, (held, broken)


def test_errors_follow_the_noise_of_seeds():
    """Settings whose losses are twenty times as noisy have larger errors, and so smaller weights."""
    x = fractional(3, noise=0.001)
    loud, rng = x["N"] < 300, np.random.default_rng(0)
    fitted = fit_rates({**x, "loss": x["loss"] + np.where(loud, 0.02 * rng.standard_normal(len(loud)), 0)}, SIZES)
    off = fitted.settings[:, 0] < 300
    assert fitted.errors[off].mean() > 1.5 * fitted.errors[~off].mean()


def test_a_threshold_agrees_with_no_power():
    """Its place is named; the powers of other sizes, which such a fit shifts, have no verdict."""
    named = 0
    for seed in range(1000, 1010):
        x = fractional(seed, (-0.5, -0.25, 0.5), noise=0.002, threshold=128)
        fitted = fit_rates(x, SIZES)
        assert fitted.verdict("batch", 0.5, 0.1) != "AGREES" and any(fitted.broken.values())
        if "the power of batch is" in fitted.misfit:
            named += 1
            assert {str(fitted.verdict(name, p, 0.1)) for name in SIZES[:2] for p in (0, -1)} == {"INCONCLUSIVE"}
    assert named >= 8
    assert "the power of batch is 0.5 up to 128 and 0.0087 above" in fitted.misfit


def test_every_power_stands_beside_theory(tmp_path, capsys):
    table = written(tmp_path / "runs.csv", fractional(0, (-1, -0.5, 0.5), noise=0.002))
    picture, more = tmp_path / "powers.svg", ("--optimizer", "adamw", "--at", "N=4096,tokens=1e10,batch=512")
    assert exit_code("law", "--fit-rate", table, *ASKED, *more, "--residuals", str(picture), "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = {(t["power"], t["rule"]): t["verdict"] for t in found["theory"]}
    assert {k for k, v in verdicts.items() if v == "AGREES"} == {
        ("N", "one rate"),
        ("tokens", "sde-time"),
        *(("batch", rule) for rule in ("sde", "sde-time", "bias")),
    }
    assert verdicts["N", "plan"] == "REFUTED" and picture.read_text().lstrip().startswith("<?xml")
    covariance = found["covariance"][""]
    assert all(covariance[a][b] == covariance[b][a] and covariance[a][a] > 0 for a in SIZES for b in SIZES)
    rate = found["fitted"]["lr at N=4096, tokens=1e+10, batch=512, by the powers"]
    assert rate["low"] < 0.02 / 8 / 10**0.5 * 2 < rate["high"]
    assert found["next"] == f"scalecalc law 'a*N**-alpha + b*tokens**-beta' --fit {table}"


@pytest.mark.parametrize(("line", "count"), [("128,1e9,0.1", "3 fields"), ("128,1,024,0.1,2", "5 fields")])
def test_a_line_with_other_fields_is_refused(tmp_path, capsys, line, count):
    """A line that was cut is no run that diverged, and 1,024 is two fields."""
    (tmp_path / "runs.csv").write_text(f"N,tokens,lr,loss\n{line}\n")
    assert exit_code("law", "--fit-rate", str(tmp_path / "runs.csv"), "--size", "N") == 2
    assert f"line 2 has {count}, and the first 4; give each" in capsys.readouterr().err


def test_theory_is_what_the_horizon_rules_say():
    rules = {name: {r.name: str(r.rate) for r in rate_rules(name)} for name in ("sgd", "adam", "adamw")}
    assert rules["sgd"] == {"sde": "B", "sde-time": "B/T", "timescale, wd fixed": "B/T"}
    assert any("N is taken for the width" in x for x in list_theories(("N",), "adam", ARCHITECTURES["mlp"])[1])
    assert "timescale, wd fixed" not in rules["adam"] and rules["adamw"]["bias"] == "B^(1/2)/T"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda n, d, b: d == 1e8 * 4 ** np.log2(n / 128), "N and tokens grow together in these runs, so that their"),
        (lambda n, d, b: b == 64, "batch is 64 in all runs with a best rate; vary it, or leave out --size batch"),
    ],
)
def test_sizes_that_cannot_be_told_apart_are_named(chosen, said):
    with pytest.raises(UsageError, match=said):
        fit_rates(fractional(0, chosen=chosen), SIZES)


def test_edges_and_diverged_runs_are_told(tmp_path, capsys):
    """A grid that ends before the best rate is named; one that the powers contradict takes the agreement."""
    x = fractional(0, noise=0.001)
    first = np.all([x[name] == x[name][0] for name in SIZES], axis=0)
    best = x["lr"][first][6]
    near = ~first | (x["lr"] > best)
    table = written(tmp_path / "edge.csv", {name: values[near] for name, values in x.items()})
    assert exit_code("law", "--fit-rate", table, *ASKED, "--claim", "batch=1/2") == 0
    assert "is the smallest that was tried and did not diverge; try smaller ones" in capsys.readouterr().out
    x["loss"][first] = 3 + 0.1 * np.log2(x["lr"][first] / best / 16)
    x["loss"][np.flatnonzero(~first)[0]] = np.inf
    assert exit_code("law", "--fit-rate", written(tmp_path / "x.csv", x), *ASKED, "--claim", "batch=1/2") == 3
    said = capsys.readouterr().out
    assert "the powers put the best rate of N=" in said and "inside its grid, where it is not" in said
    assert "1 that diverged ignored" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--size", "N", "--size", "N"), "--size N: the column is already used"),
        (("--size", "lr"), "--size lr: the column is already used"),
        (("--size", "width"), "has no column 'width'"),
        ((*ASKED, "--at", "N=1"), "--at N=1: give each of N, tokens, batch once"),
        ((*ASKED, "--at", "N=1,tokens=x,batch=2"), "--at x: give a positive number, such as 4096 or 1e10"),
    ],
)
def test_wrong_sizes_are_one_line(tmp_path, capsys, options, said):
    table = written(tmp_path / "runs.csv", fractional(0))
    assert exit_code("law", "--fit-rate", table, *options) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def grid_of_rates(column="lr"):
    """Losses 2 + 3 N^-0.4 at the best rate of each width, and far more away from it."""
    rng, lines = np.random.default_rng(0), [f"N,{column},seed,loss"]
    for n in 2.0 ** np.arange(5, 15):
        for step in (-2, -1, 0, 1, 2):
            for seed in range(2):
                loss = (2 + 3 * n**-0.4) * (1 + 0.1 * step**2) + 0.001 * rng.standard_normal()
                lines.append(f"{n},{2.0**step / n},{seed},{loss}")
    return "\n".join(lines)


def test_a_law_is_fitted_at_the_best_rate_of_each_size(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(grid_of_rates())
    asked = ("law", "a*N**-alpha", "--fit", str(path), "--claim", "alpha=0.4", "--apart", "1/10")
    assert exit_code(*asked) == 0
    said = capsys.readouterr().out
    assert said.index("of 100 runs, the 20 at the best rate of their size are fitted") < said.index("number")
    path.write_text(grid_of_rates("peak"))
    assert exit_code(*asked) != 0
    said = capsys.readouterr().out
    assert said.index("differ in peak; if this is the learning rate, give --columns lr=peak") < said.index("number")
    assert exit_code(*asked, "--columns", "lr=peak") == 0
