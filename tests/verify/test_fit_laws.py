"""Laws from runs: known laws with noise are recovered, wrong claims refuted, and bad tables answered in one line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("scipy")

from scaling_algebra import cli
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.law import law, read_law
from scaling_algebra.verify.commands.fit_law import build_model
from scaling_algebra.verify.judging.laws import FittedSum
from scaling_algebra.verify.judging.rates import fit_rates

OPTIMUM = 0.28 / 0.62


def chinchilla():
    """The sum of a law that ships, with the power of its optimum."""
    cell = law("chinchilla").axes["compute"].cells[0]
    return FittedSum(read_law("chinchilla").axes["compute"].sum, ("D", "N"), {"N in F": cell.optimum["N"]["F"]})


def runs(seed, noise=0.005, count=60):
    """Runs of a law that is known."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.uniform(np.log(1e7), np.log(1e10), count))
    d = n * np.exp(rng.uniform(np.log(3), np.log(300), count))
    loss = 1.7 + 400 * n**-0.34 + 410 * d**-0.28
    return {"N": n, "D": d, "loss": loss * np.exp(noise * rng.standard_normal(count))}


def exit_code(*arguments):
    """What a command exits with."""
    with pytest.raises(SystemExit) as exit:
        cli.main(list(arguments))
    return exit.value.code


def written(path, columns):
    """A CSV file of columns."""
    lines = [",".join(columns), *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines))
    return str(path)


def rates(power=-0.5, noise=0.0, shift=0.0, seed=1):
    """A parabola of every size, whose minimum moves by a power of the size."""
    sizes, steps = np.array([64.0, 128.0, 256.0, 512.0]), np.arange(-3, 4) + shift
    size, step = (x.ravel() for x in np.meshgrid(sizes, steps, indexing="ij"))
    rng = np.random.default_rng(seed)
    return {
        "size": size,
        "lr": 0.1 * 2.0**step * size**power,
        "loss": 2 + 0.1 * (step - 0.3) ** 2 + noise * rng.standard_normal(len(size)),
    }


def bent(power=-0.75, noise=0.003, seed=0, steep=1.5, seeds=2):
    """Losses on one grid of rates in factors of two, which rise faster above the best rate than below; its log2 is
    0.56 more than ``place`` where steep = 1.5."""
    rng = np.random.default_rng(seed)
    place, table = -8 + rng.uniform(0, 1), {"size": [], "lr": [], "loss": []}
    for size in (256.0, 512.0, 1024.0, 2048.0):
        for log2 in np.repeat(np.arange(-16.0, -2.0), seeds):
            x = log2 - place - power * np.log2(size / 256)
            loss = 3 + 0.1 * 2 ** (-0.7 * x) + 0.02 * 2 ** (steep * x) + noise * rng.standard_normal()
            for name, value in zip(table, (size, 2**log2, loss), strict=True):
                table[name] += [value] * bool(x < 2.5)
    return {name: np.array(values) for name, values in table.items()}


@pytest.mark.parametrize(("claim", "refuted"), [("-3/4", False), ("-1/2", True), ("-1", True)])
def test_where_the_optimum_falls_between_rates_refutes_no_true_power(tmp_path, claim, refuted):
    codes = [
        exit_code("law", "--fit-rate", written(tmp_path / "x.csv", bent(seed=seed)), "--claim", f"power={claim}")
        for seed in range(4)
    ]
    assert all((code == 1) is refuted for code in codes), codes


def test_one_run_of_three_rates_shows_no_noise():
    table = rates()
    near = np.isin(np.round(np.log2(table["lr"] / 0.1 * table["size"] ** 0.5)), (-1, 0, 1))
    with pytest.raises(UsageError, match="one run of three rates shows no noise"):
        fit_rates({name: values[near] for name, values in table.items()})


def test_without_noise_the_law_itself_is_found():
    fitted = chinchilla().fit(runs(0, noise=0.0), resamples=3)
    for name, value in {"alpha": 0.34, "beta": 0.28, "E": 1.7, "N in F": OPTIMUM}.items():
        assert fitted.value[name] == pytest.approx(value, rel=1e-4), name


def test_claims_are_judged_and_residuals_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.RESAMPLES", 20)
    x = runs(3)
    table = written(tmp_path / "runs.csv", {"N": x["N"], "C": 6 * x["N"] * x["D"], "loss": x["loss"]})
    picture = tmp_path / "residuals.svg"
    claims = ("--claim", "alpha=0.34", "--claim", "beta=0.6", "--residuals", str(picture))
    assert exit_code("law", "chinchilla", "--fit", table, *claims) == 1
    told = capsys.readouterr().out
    assert "AGREES" in told and "REFUTED" in told
    assert picture.read_text().lstrip().startswith("<?xml")


def test_fitted_numbers_are_a_table(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text("N,loss\n" + "".join(f"{n},{2 + 3 / n**0.5}\n" for n in range(1, 12)))
    assert exit_code("law", "a*N**-alpha", "--fit", str(path), "--format", "csv") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    numbers = {name: float(value) for name, value, *_ in (line.split(",") for line in rest)}
    assert first == "name,value,low,high" and numbers["alpha"] == pytest.approx(0.5, abs=1e-4)
    judged = ("--format", "csv", "--claim", "alpha=1/2", "--claim", "E=3")
    assert exit_code("law", "a*N**-alpha", "--fit", str(path), *judged) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "name,value,low,high,claimed,verdict" and [line.rpartition(",")[2] for line in rest if line] == [
        "AGREES",
        "REFUTED",
        "",
    ]


def test_the_power_of_the_best_rate(tmp_path, capsys):
    exact = fit_rates(rates(), resamples=3)
    assert exact.value["power"] == pytest.approx(-0.5) and exact.value["lr at 64"] == pytest.approx(0.1 * 2**0.3 / 8)
    table = written(tmp_path / "rates.csv", rates(noise=0.01))
    for claim, code in (("power=-1/2", 0), ("power=0", 1)):
        assert exit_code("law", "--fit-rate", table, "--claim", claim, "--apart", "1/2") == code
    capsys.readouterr()
    assert exit_code("law", "--fit-rate", written(tmp_path / "edge.csv", rates(shift=4))) == 2
    assert "size 64: the best rate, 0.025, is the smallest that was tried and did" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("N,loss\n1,2\n", "has no column 'D'; it has N, loss"),
        ("params,tokens\n1,2\n", "has no column 'D', 'N', 'loss'; it has params, tokens; give"),
        ("N;D;loss\n1;2;3\n", "its columns are separated by semicolons (N;D;loss), give commas"),
        ("N, D, loss\n1, 2, nan\n1, 2,\n", "every run diverged"),
        ("N,D,loss\n1,2,x\n", "line 2: loss is 'x'; give a positive number"),
        ("N,D,loss\n1,-2,3\n", "line 2: D is '-2'"),
        ("N,D,loss\n", "has no rows"),
        ("N,D,loss\n1,2,3\n2,3,4\n", "2 runs for 5 unknowns; give more runs"),
        (
            "N,D,loss\n" + "".join(f"8,{d},{2 + 3 / d}\n" for d in range(1, 9)),
            "cannot distinguish E, a, alpha; vary D, N one",
        ),
        (  # the other way round they fit as well
            "N,D,loss\n" + "".join(f"{n},{20 * n},{2 + 3 / n**0.3 + 9 / n**0.5}\n" for n in range(1, 9)),
            "D and N grow together in these runs",
        ),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, capsys, text, said):
    (tmp_path / "x.csv").write_text(text)
    assert exit_code("law", "chinchilla", "--fit", str(tmp_path / "x.csv")) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--apart", "abc"), "--apart: 'abc' is not a rational number"),
        (("--apart=-1",), "--apart -1: give a positive number"),
        (("--apart", "0"), "--apart 0: give a positive number"),
        (("--claim", "power=abc"), "--claim power: 'abc' is not a rational number"),
    ],
)
def test_numbers_of_claims_are_numbers(tmp_path, capsys, options, said):
    table = written(tmp_path / "rates.csv", rates())
    assert exit_code("law", "--fit-rate", table, *options) == 2 and said in capsys.readouterr().err
    table = written(tmp_path / "runs.csv", runs(0, count=20))
    assert exit_code("law", "--fit", "chinchilla", table, *options) == 2 and said in capsys.readouterr().err


def test_runs_that_are_left_out_are_counted(tmp_path, capsys):
    """Seven rates at each of four sizes, of which the best and two on each side are used."""
    assert exit_code("law", "--fit-rate", written(tmp_path / "rates.csv", rates(noise=1e-3))) == 0
    assert (
        "20 runs; residuals" in (said := capsys.readouterr().out)
        and "8 ignored, because their rates are more than 2 steps from" in said
    )


def test_diverged_runs_are_left_out_and_counted(tmp_path, capsys):
    table = rates(noise=1e-3)
    table["loss"][[6, 13]] = np.inf, np.nan
    assert exit_code("law", "--fit-rate", written(tmp_path / "x.csv", table)) == 0
    assert "20 runs; residuals" in (said := capsys.readouterr().out) and "; 2 that diverged ignored" in said


def test_sizes_without_a_best_rate_between_others_are_left_out(tmp_path, capsys):
    """One size at the edge of its grid took all others with it."""
    table = rates(noise=1e-3)
    table["loss"][:7] = np.nan
    path = written(tmp_path / "x.csv", table)
    assert exit_code("law", "--fit-rate", path, "--at", "1024", "--claim", "power=-0.5000001", "--apart", "1/10") == 0
    said = capsys.readouterr().out
    assert "left out, size 64: every run diverged" in said and "lr at 64 " not in said
    at, end = (float(re.search(rf"lr at {n}\S* .*?(0\.\d+)", said)[1]) for n in ("512", "1024"))
    assert end == pytest.approx(at / 2**0.5, rel=0.02)
    table["loss"][7:14] = np.arange(7.0) + 1
    assert exit_code("law", "--fit-rate", written(tmp_path / "x.csv", table)) == 2
    assert "size 64: every run diverged; give smaller rates; 2 sizes show no power" in capsys.readouterr().err


def test_few_runs_have_no_intervals(tmp_path, capsys, monkeypatch):
    """Six runs for five unknowns: intervals of runs drawn again were a tenth of what they miss by."""
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.STARTS", (0.2,))
    table = {name: x[::4] for name, x in runs(1, count=24).items()}
    assert len(table["loss"]) == 6
    assert exit_code("law", "chinchilla", "--fit", written(tmp_path / "x.csv", table), "--claim", "alpha=0.34") == 3
    said = capsys.readouterr().out
    assert "no intervals: 6 runs for 5 unknowns; give 8 or more" in said and "INCONCLUSIVE" in said and "[" not in said
    assert exit_code("law", "chinchilla", "--fit", str(tmp_path / "x.csv"), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["fitted"]["alpha"]["low"] is None


def test_a_fit_has_the_exponents_of_its_law(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.RESAMPLES", 10)
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.STARTS", (0.2,))
    path = written(tmp_path / "x.csv", runs(0, count=60))
    assert exit_code("law", "chinchilla", "--fit", path, "--claim", "alpha_C=0.1535484", "--apart", "1/20") == 0
    assert "drift" in capsys.readouterr().out


def test_columns_of_other_names(tmp_path, capsys):
    table = rates(noise=1e-3)
    other = dict(zip(("d_model", "peak_lr", "val"), table.values(), strict=True))
    path = written(tmp_path / "x.csv", other)
    assert exit_code("law", "--fit-rate", path, "--columns", "size=d_model,lr=peak_lr,loss=val") == 0
    assert exit_code("law", "--fit-rate", path, "--columns", "size=width") == 2
    assert "--columns: " in (said := capsys.readouterr().err) and "has no column 'width'; it has d_model" in said


@pytest.mark.parametrize(("column", "said"), [("experts", ""), ("expt", "has no column 'experts'; it has")])
def test_what_is_fixed_in_a_law_is_a_column_or_missing(tmp_path, capsys, monkeypatch, column, said):
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.RESAMPLES", 3)
    monkeypatch.setattr("scaling_algebra.verify.judging.laws.STARTS", (0.2,))
    (tmp_path / "law.toml").write_text(
        'sum = "A*N**-a*experts**-g + B*D**-b"\nminimise = ["N", "D"]\ngrows = ["C"]\n'
        'fixed = ["experts", "A", "B"]\nconstraints = ["C = 6*N*D"]\n'
    )
    x, experts = runs(0, count=40), 2.0 ** np.arange(40.0) % 63
    x["loss"] = 1.7 + 400 * x["N"] ** -0.34 * experts**-0.1 + 410 * x["D"] ** -0.28
    path = written(tmp_path / "x.csv", {**x, column: experts})
    assert exit_code("law", str(tmp_path / "law.toml"), "--fit", path) == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_the_optimum_is_that_of_the_fitted_powers(tmp_path):
    """Not that of the powers at which a file prints its law."""
    law = "sum = 'a*N**-alpha + b*D**-gamma'\nfixed = ['a', 'b']\nminimise = ['N', 'D']\ngrows = ['C']\n"
    (tmp_path / "law.toml").write_text(f"{law}constraints = ['C = 6*N*D']\nat = {{ alpha = 0.5, gamma = 0.1 }}\n")
    found = build_model(str(tmp_path / "law.toml"), ("N", "D", "loss")).fit(runs(1), resamples=3)
    alpha, gamma = found.value["alpha"], found.value["gamma"]
    assert found.value["N in C"] == pytest.approx(gamma / (alpha + gamma)) and abs(alpha - 0.34) < 0.05


def test_a_term_without_a_constant_is_told(tmp_path, capsys):
    table = written(tmp_path / "runs.csv", {k: x for k, x in runs(1, count=8).items() if k != "D"})
    assert exit_code("law", "N**-alpha", "--fit", table) == 0
    assert "N^(-alpha) has no constant factor" in capsys.readouterr().out


def test_a_law_with_a_typo_is_no_sum(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("N,D,loss\n1,2,3\n")
    assert exit_code("law", "moe-transfomer", "--fit", str(tmp_path / "x.csv")) == 2
    assert "no law named 'moe-transfomer'; did you mean 'moe-transformer'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("optima", "claim", "code"),
    [((-4, -5, -6, -7, -8), -1, 0), ((-4, -4, -4, -6, -8), -1, 3), ((-4, -6, -8, -6, -4), 0, 3)],
)
def test_best_rates_that_follow_no_power_agree_with_none(tmp_path, capsys, optima, claim, code):
    """A knee and a V, at known rates; and a power, as the control."""
    rng, lines = np.random.default_rng(3), ["size,lr,seed,loss"]
    for n, best in zip((32, 64, 128, 256, 512), optima, strict=True):
        for lr in range(-11, 0):
            for seed in range(4):
                lines.append(f"{n},{2.0**lr},{seed},{0.5 + 0.05 * (lr - best) ** 2 + 0.01 * rng.standard_normal()}")
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    asked = "law", "--fit-rate", str(tmp_path / "runs.csv"), "--claim", f"power={claim}", "--apart", "1/2"
    assert exit_code(*asked) == code
    assert ("no single power fits: between neighbouring sizes" in capsys.readouterr().out) == bool(code)
