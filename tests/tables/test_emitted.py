"""The emitted tables: committed files are fresh, every format is well formed, and every cell is that of the paper."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fractions import Fraction
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling_algebra import REGIMES, derive
from scaling_algebra.cli import main
from scaling_algebra.documents import render
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.commands.table import EMITTED, NAMES, rendered
from scaling_algebra.tables.derived.layouts import SAME, SIGMOID, TABLES
from scaling_algebra.tables.derived.presentation import table

REFERENCE = Path(__file__).parents[2] / "tables" / "published"


LATE = {"b2"}
"""Tables that take half a minute to derive."""


def marked(names):
    """Names of tables as parameters."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in LATE else []) for name in names]


def run(*args):
    return CliRunner().invoke(main, ["table", *map(str, args)])


# files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", marked(NAMES))
def test_committed_files_are_fresh(name):
    for file, text in rendered([name]).items():
        assert (EMITTED / file).read_text(encoding="utf-8") == text, f"{file}: run scalecalc table --all"


@pytest.mark.slow
def test_check_says_fresh_in_one_line():
    result = run("--all", "--check")
    assert result.exit_code == 0 and len(result.output.splitlines()) == 1
    assert f"{2 * len(NAMES) + 2} files" in result.output


def test_tables_do_not_depend_on_the_hash_seed():
    """Which of several tying monomials is shown must not change from process to process."""
    command = [sys.executable, "-m", "scaling_algebra.cli", "table", "j32"]
    shown = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("0", "4")
    ]
    assert shown[0] == shown[1]


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(EMITTED, tmp_path / "emitted")


@pytest.mark.slow
def test_check_names_every_stale_or_missing_file(copy):
    """Negative control: one altered exponent and one missing file are found, and nothing else."""
    stale = copy / "j45.tex"
    text = stale.read_text(encoding="utf-8")
    stale.write_text(text.replace("n^{-1}", "n^{-2}", 1), encoding="utf-8")
    (copy / "g1.md").unlink()
    result = run("--all", "--check", "-o", copy)
    assert result.exit_code == 1
    first, second = result.output.splitlines()
    assert "g1.md: missing" in first and "j45.tex: stale" in second
    assert run("j45", "--check", "-o", copy).exit_code == 1
    assert run("g2", "--check", "-o", copy).exit_code == 0


@pytest.mark.slow
def test_all_writes_fresh_files_and_deletes_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text("kept")
    assert run("--all", "-o", folder).exit_code == 0
    assert {p.name for p in folder.iterdir()} == {"mine.md", *rendered(NAMES)}
    assert run("--all", "--check", "-o", folder).exit_code == 0
    assert (folder / "mine.md").read_text() == "kept"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing argument"),
        (["b1", "--all"], "give one of them"),
        (["--all", "--format", "csv"], "--format goes with one printed table"),
        (["b1", "--check", "--format", "csv"], "--format goes with one printed table"),
        (["b3", "--check"], "no table named 'b3'"),
        (["b1", "--format", "pdf"], "no format named 'pdf'"),
        (["g2", "-o", "/nowhere/g2.md"], "cannot write"),
        (["g2", "-o", "g2.pdf"], "cannot tell the format of g2.pdf"),
        (["--all", "-o", __file__], "cannot write to the folder"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(args, words):
    result = run(*args)
    assert result.exit_code == 2 and words in result.output
    assert len(result.output.strip().splitlines()) == 1


# formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", marked(TABLES))
def test_latex_is_balanced(name):
    text = render(table(TABLES[name]()), "latex")
    assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
    assert re.findall(r"\\begin\{(\w+\*?)\}", text).count("table*") == text.count(r"\caption{")
    assert sorted(re.findall(r"\\begin\{(.*?)\}", text)) == sorted(re.findall(r"\\end\{(.*?)\}", text))
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len({line.count("&") for line in rows}) == 1


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_and_fits_the_page(tmp_path):
    names = [f"{name}.tex" for name in NAMES]
    size = r"\textwidth=6.5in \textheight=9in \oddsidemargin=0in \topmargin=-.5in"
    inputs = "\n".join(rf"\input{{{EMITTED / name}}}\clearpage" for name in names)
    head = rf"\documentclass{{article}}\usepackage{{amsmath,booktabs,tabularx}}{size}"
    text = rf"{head}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "all.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    if "not found" in done.stdout:
        pytest.skip("a LaTeX package is missing here")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout and "too large" not in done.stdout


@pytest.mark.parametrize("name", marked(TABLES))
def test_csv_json_and_markdown_hold_the_same_rows(name):
    grid = TABLES[name]()
    lines = list(csv.reader(io.StringIO(render(table(grid), "csv"))))
    data = json.loads(render(table(grid), "json"))
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 1 + len(data["rows"]) == 1 + len(grid.rows)
    for line, row in zip(lines[1:], data["rows"], strict=True):
        assert list(row["cells"]) == data["columns"] == lines[0][-len(data["columns"]) :]
        assert row[lines[0][-len(data["columns"]) - 1]] == line[-len(data["columns"]) - 1]
    printed = [line for line in render(table(grid), "markdown").splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in printed}) == 1
    headings = sum(bool(group.name) for group, _ in grid.groups()) if grid.sections else 0
    assert len(printed) == 2 + headings + len(grid.rows)


class Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", marked(TABLES))
def test_html_is_balanced_and_has_no_latex_left(name):
    text = render(table(TABLES[name]()), "html")
    parser = Balance()
    parser.feed(text)
    assert not parser.open
    assert "\\" not in text and "$" not in text and not re.search(r"&\w+;", unescape(text))
    assert not re.search(r"[_^{}]", re.sub(r'(?s)<!--.*?-->|<style>.*?</style>|title=".*?"', "", text))


@pytest.mark.parametrize(("file", "starts"), [("g2.tex", "% written by"), ("g2.csv", "tensor,b"), ("g2.html", "<!doc")])
def test_the_ending_of_the_file_chooses_the_format(file, starts, tmp_path):
    assert run("g2", "-o", tmp_path / file).exit_code == 0
    assert (tmp_path / file).read_text(encoding="utf-8").startswith(starts)


# contents ------------------------------------------------------------------------------------------------------


def load(name):
    folder = REFERENCE.parent / "audit" if name == "errata" else REFERENCE
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def cells(name):
    """{(row, column): cell as JSON}."""
    data = json.loads(render(table(TABLES[name]()), "json"))
    head = [key for key in data["rows"][0] if key != "cells"]
    return {(*(row[k] for k in head), column): cell for row in data["rows"] for column, cell in row["cells"].items()}


def on(ray, cell):
    """A power or a printed one as the exponent of n; None for zero and for nothing."""
    if cell is None or cell == "zero":
        return cell
    power = cell.get("power", cell)
    return Power.of({axis: Fraction(e) for axis, e in power.items()}).on(REGIMES[ray])


SHORT = {"init_std": "init std", "lr": "lr", "eps": "Adam eps"}
TITLES = {"sgd": "SGD", "adam": "Adam"}
KINDS = {"input": "input-like", "hidden": "hidden-like", "readout": "output-like"}
LAYERS = ("1 input", "2 router", "3 experts", "4 readout")


def test_b1_is_the_printed_table():
    found = cells("b1")
    rows = {row.split()[0]: row for row, *_ in found}
    printed = load("mssp_b1")["cell"]
    for c in printed:
        column = f"Regime {c['regime']} {TITLES[c['optimizer']]}"
        mine = found[rows[c["role"]], SHORT[c["quantity"]], column]
        for name in ("mup", "mssp"):
            assert on(c["regime"], mine[name]) == on(c["regime"], c[name]), c
    assert sum(mine["mup"] is not None for mine in found.values()) == len(printed) == 45


@pytest.mark.slow
def test_b2_is_the_printed_table():
    """Powers of every axis, but for K, which grows as M does, and for axes that do not grow."""
    found = cells("b2")
    printed = [c for c in load("mssp_b2")["cell"] if "reason" not in c and c["role"] not in ("res", "aggregation")]
    rows = {row.split()[0]: row for row, *_ in found}
    for c in printed:
        if c["quantity"] == "multiplier":  # of the unembedding: there is none
            assert c["power"] == {}
            continue
        mine, ray = found[rows[c["role"]], SHORT[c["quantity"]], f"Regime {c['regime']}"], REGIMES[c["regime"]]
        if c["power"] == "zero":
            assert mine == "zero"
            continue
        wanted = Power.of({axis: Fraction(e) for axis, e in c["power"].items() if axis == "L" or ray[axis]})
        assert Power.of({axis: Fraction(e) for axis, e in mine["power"].items()}).on(ray) == wanted.on(ray), c
        assert mine["power"].get("L", "0") == c["power"].get("L", "0") and mine["tied"] == c.get("tied", False), c
    assert len(printed) == 75


@pytest.mark.slow
@pytest.mark.parametrize(("ray", "std"), [("N=1,N_e=0,M=1,K=1/2,L=1/2", "K^(1/2)"), ("N=1,N_e=0,M=1,L=1/2", "M^(1/2)")])
def test_b2_says_what_is_derived_where_fewer_experts_are_active(ray, std):
    d = derive(None, "adamw", "mssp", ray=ray, architecture="deep-moe", readout_init="maximal")
    assert (str(d["expert_out"].init_std), str(-d.scaling.multipliers["alpha"])) == (std, f"{std[0]}^-1")


def test_g1_is_the_printed_table():
    found = cells("g1")
    titles = {"sp": "SP", "ntp": "NTP", "mup": "muP"}
    printed = [c for c in load("mssp_g1")["cell"] if c["gauge"] == "free" and c["optimizer"] == "sgd"]
    printed = [c for c in printed if c["quantity"] != "multiplier" and c["power"].get("N") != "-c"]
    for c in printed:
        mine = found[titles[c["parameterization"]], SHORT[c["quantity"]], KINDS[c["role"]]]
        assert on("I", mine) == on("I", c["power"]), c
    assert len(printed) == 15


def test_g2_is_the_printed_table():
    found = cells("g2")
    printed = load("mssp_g2")["cell"]
    for c in printed:
        column = "b" if c["quantity"] == "b" else f"{c['quantity']}_{TITLES[c['optimizer']]}"
        mine = found[KINDS[c["role"]], column]
        assert mine == ({"sgd": c["exponent"], "adam": c["exponent"]} if column == "b" else c["exponent"])
    assert len(found) == len(printed) == 12


@pytest.mark.parametrize("number", ["1", "2"])
def test_routers_tables_are_the_printed_ones(number):
    found = cells(f"routers{number}")
    printed = [c for c in load("routers_tables")["cell"] if c["table"] == number]
    assert {(LAYERS[c["layer"] - 1], c["quantity"]): c["exponent"] for c in printed} == found


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", TITLES)
def test_routers_captions_claim_what_is_derived(optimizer):
    """The gates said to share the numbers of the sigmoid do so, and plain softmax does not."""

    def exponents(architecture):
        d = derive("I", optimizer, "mup", architecture=architecture)
        return {role: d.exponents(role) for role in ("input", "router", "expert", "readout")}

    for architecture in SAME:
        assert exponents(architecture) == exponents(SIGMOID)
    with pytest.raises(Infeasible, match=r"n\^\(1/6\) at t=3"):
        exponents("routers-softmax")
    note = TABLES["routers1" if optimizer == "sgd" else "routers2"]().footnotes[0]
    assert r"no $\mu$P was found" in note


def test_transfer1_is_the_printed_table_where_that_fixes_a_power():
    found = cells("transfer1")
    columns = {"init_std": "init std", "lr": "Adam lr"}
    printed = [c for c in load("transfer_table1")["cell"] if c["quantity"] in columns and "reason" not in c]
    for c in printed:
        if c["power"].get("N") == "-gamma":  # left free from 1/2 on; muP takes the largest
            continue
        mine = found[c["role"], columns[c["quantity"]]]
        assert on("III", mine["mup"]) == on("III", mine["mssp"]) == on("III", c["power"]), c
    assert len(printed) == len(found) == 6


@pytest.mark.parametrize("name", ["j32", "j34", "j43", "j45"])
def test_signal_tables_have_the_printed_rows_and_sizes(name):
    data = json.loads(render(table(TABLES[name]()), "json"))
    reference = load(f"mssp_{name}")
    rows = [row for row in data["rows"] if row["part"] != "Updates"]
    assert [row["quantity"] for row in rows] == [row["quantity"] for row in reference["row"]]
    head = reference["table"]
    listed = {
        (c["quantity"], c["step"]) for e in load("errata")["erratum"] for c in e["cell"] if c["table"] == head["id"]
    }
    wrong = set()
    for row, printed in zip(rows, reference["row"], strict=True):
        for t, e in enumerate(printed["exponent"]):
            size = row["cells"][f"t={t}"]
            if e not in ("none", size if size == "zero" else size["exponent"]):
                wrong.add((row["quantity"], t))
    assert wrong == listed


@pytest.mark.parametrize("name", ["j32", "j34", "j43", "j45"])
def test_a_mechanism_stands_behind_every_size_and_none_behind_a_zero(name):
    for row in json.loads(render(table(TABLES[name]()), "json"))["rows"]:
        last, mechanism = row["cells"]["t=2"], row["cells"]["mechanism"]
        assert (mechanism is None) == (last == "zero" or row["part"] == "Updates"), row
