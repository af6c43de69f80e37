"""Sizes that somebody else logged: judged without torch, and one line for a log that cannot be used."""

from __future__ import annotations

import csv
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from scaling_algebra import signals
from scaling_algebra.errors import UsageError
from scaling_algebra.verify import judge
from scaling_algebra.verify.judging import logged as logs

SIZES = (16, 32, 64, 128)


def rows(seeds=16, **slopes):
    rng = np.random.default_rng(3)
    return [
        {"quantity": q, "n": n, "seed": k, "value": n**slope * rng.normal(), "step": 1}
        for q, slope in slopes.items()
        for n in SIZES
        for k in range(seeds)
    ]


def test_right_exponents_agree_and_wrong_ones_are_refuted():
    log = rows(h1=0.0, h3=-1.0, seeds=64)
    right = judge(log, {"h1": 0, "h3": "-1"})
    assert right.counts == {"AGREES": 2, "REFUTED": 0, "INCONCLUSIVE": 0} and right.exit_code == 0, str(right)
    wrong = judge(log, {"h1": Fraction(-1), "h3": None})
    assert wrong.counts["REFUTED"] == 2 and wrong.exit_code == 1


def test_a_file_gives_what_its_rows_give(tmp_path):
    """As spreadsheets write it: with a byte order mark, and the line ends of another system."""
    log, file = rows(h1=0.5), tmp_path / "log.csv"
    with file.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, log[0])
        writer.writeheader()
        writer.writerows(log)
    prediction = {"h1": [None, Fraction(1, 2)]}
    assert judge(str(file), prediction).as_json() == judge(log, prediction).as_json()
    assert [row.step for row in judge(file, prediction).rows] == [1]


def test_signals_are_predictions():
    found = judge(
        rows(**{"h1": 0.0, "h1.change": -0.5}, seeds=64), signals("III", "sgd", quantities=["h1", "h1.change"])
    )
    assert found.counts["AGREES"] == 2, str(found)


def test_what_is_undecided_is_held_against_the_demand_on_it():
    """Of routers that softmax over all experts nothing is certified at t = 2; what is demanded there is known."""
    asked = signals(ray="N=1,N_e=1,M=1,K=1", optimizer="sgd", architecture="routers-softmax")

    def told(**slopes):
        return judge([{**row, "step": 2} for row in rows(**slopes, seeds=64)], asked)

    right = told(**{"h3": 0.0, "h3.change": 0.0, "f.effective": -1.0, "phi": 0.0, "mine": 0.0})
    assert {r.quantity: (r.predicted, str(r.verdict)) for r in right.rows} == {
        "h3": (0, "AGREES"),
        "h3.change": (0, "AGREES"),
        "f.effective": (-1, "AGREES"),  # which is certified
    }
    assert right.undecided == ("phi", "mine")
    assert "have no prediction\n  phi, mine" in str(right) and "undecided; mu-1: h3 stays O(1)" in str(
        right.rows[0].note
    )
    still = judge([{**row, "step": 2, "value": 0.0} for row in rows(**{"h3": 0.0})], asked)
    assert [str(r.verdict) for r in still.rows] == ["INCONCLUSIVE"] and "below its upper bound" in still.rows[0].note
    wrong = told(**{"h3": 0.5, "h3.change": -1.0, "f": -1.0})
    found = {r.quantity: str(r.verdict) for r in wrong.rows}
    assert found == {"h3": "REFUTED", "h3.change": "INCONCLUSIVE", "f": "INCONCLUSIVE"} and wrong.exit_code == 1
    assert "may be hidden by a larger correction" in wrong.rows[1].note  # what it is a sum of is undecided, too


def test_signals_need_steps_and_a_frame_has_rows():
    """Rows without a step were taken for the start, where most is zero."""
    log, asked = rows(**{"h1": 0.0}, seeds=64), signals("III", "sgd", quantities=["h1"])
    with pytest.raises(UsageError, match="row 1: no step; give the number of updates"):
        judge([{k: v for k, v in row.items() if k != "step"} for row in log], asked)
    pandas = pytest.importorskip("pandas")
    assert judge(pandas.DataFrame(log), asked).as_json() == judge(log, asked).as_json()


GOOD = {"quantity": "h1", "n": 16, "seed": 0, "value": 1.0}


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([], "no rows"),
        ([{**GOOD, "value": float("nan")}], "not a finite number"),
        ([{**GOOD, "n": 0}], "n is above 0"),
        (["h1"], "row 1 is 'h1'"),
        ([{**GOOD, "step": 0.5}], "step 0, 1, 2"),
        ([GOOD, GOOD], "row 2: h1 at n=16, seed 0 is there twice"),
        ([{k: v for k, v in GOOD.items() if k != "seed"}], "no seed"),
        ([GOOD, {**GOOD, "n": 32, "quantity": "h2"}], "h1 at step 0 has no value at n=32"),
        ("/nonexistent.csv", "cannot read /nonexistent.csv"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_line(log, words):
    with pytest.raises(UsageError) as error:
        judge(log, {"h1": 0})
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantity,n,value\nh1,16,1\n", "has no column seed"),
        ("quantity,n,seed,value\nh1,16,0,one\n", "line 2: value is 'one'"),
        ("quantity,n,seed,value\nh1,16\n", "line 2: no seed"),
        ("quantity,n,seed,value\nh1,16,0,1,5\n", "line 2: more entries than columns"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, text, words):
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        judge(file, {"h1": 0})
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a" * (logs.MOST + 1)])
def test_a_file_that_is_no_text_is_one_line(tmp_path, content):
    (tmp_path / "log.csv").write_bytes(content)
    for path in (tmp_path / "log.csv", tmp_path, "", "n" * 5000, "/dev/zero", "a\0b"):
        with pytest.raises(UsageError, match="give a CSV file with quantity, n, seed, value") as error:
            judge(path, {"h1": 0})
        assert "\n" not in str(error.value)


def test_exponents_are_exact():
    with pytest.raises(TypeError, match="float"):
        judge(rows(h1=0.0), {"h1": 0.5})
    with pytest.raises(UsageError, match="give a rational"):
        judge(rows(h1=0.0), {"h1": "half"})


def test_judging_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from scaling_algebra.verify import judge\n"
        "rows = [dict(quantity='h', n=n, seed=k, value=n) for n in (16, 32, 64) for k in range(8)]\n"
        "print(judge(rows, {'h': 1}).counts['AGREES'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout == "1\n", found.stderr
