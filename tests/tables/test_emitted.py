"""The emitted tables: committed files are fresh, every format is well formed, and every cell is that of the paper."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fractions import Fraction
from functools import cache, partial
from html import unescape
from itertools import product
from pathlib import Path

import pytest

from scaling_algebra import REGIMES, derive
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.audit.errata import errata
from scaling_algebra.tables.commands import table as command
from scaling_algebra.tables.derived.layouts import TABLES, table
from scaling_algebra.tables.derived.scaling_tables import SAME, SIGMOID

from ..engine.test_documents import NEEDS_LATEX, check, compiles
from ..shared import scalecalc
from .test_published import every_cell

PUBLISHED = Path(__file__).parents[2] / "tables" / "published"
EMITTED = command.EMITTED

run = partial(scalecalc, "table")


@cache
def grid(name):
    return TABLES[name]()


@cache
def shown(name, form):
    return render(table(name).document(), form)


# files ---------------------------------------------------------------------------------------------------------


def fresh(name):
    """Asserts that the committed files of a table are what is written today."""
    for ending, form in ((".md", "markdown"), (".tex", "latex")):
        committed = (EMITTED / f"{name}{ending}").read_text(encoding="utf-8")
        assert committed == shown(name, form) + "\n", f"{name}{ending}: run scalecalc table --all"


@pytest.mark.parametrize("name", TABLES)
def test_a_table(name):
    """Its files are fresh, its formats well formed and of one content, and that is what the paper prints."""
    fresh(name)
    well_formed(name)
    if name in PRINTED:
        PRINTED[name]()


def test_no_other_file_is_emitted():
    tables = {f"{name}{ending}" for name in TABLES for ending in (".md", ".tex")}
    assert {p.name for p in EMITTED.iterdir()} == tables | {"map_mup_sgd.svg", "map_mssp_sgd.svg"}


def test_files_are_written(tmp_path, monkeypatch):
    """With two tables and the maps, whose pictures `tests/engine/test_phases.py` compares; nothing is deleted."""
    monkeypatch.setattr(command, "TABLES", {name: TABLES[name] for name in ("g2", "routers1")})
    monkeypatch.setattr(command, "phases", lambda optimizer, name: EMITTED / f"map_{name}_{optimizer}.svg")
    monkeypatch.setattr(command, "phases_svg", lambda path: path.read_text(encoding="utf-8").removesuffix("\n"))
    folder = tmp_path / "new" / "folder"
    folder.mkdir(parents=True)
    (folder / "mine.md").write_text("kept")
    assert run("--all", "-o", folder).output == f"6 files written to {folder}\n"
    made = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert made.pop("mine.md") == b"kept" and made == {name: (EMITTED / name).read_bytes() for name in made}
    assert [name for name in made if name.startswith("map_")]


def test_tables_do_not_depend_on_the_hash_seed():
    """The choice among tying monomials must not change from process to process; this one has its own seed."""
    code = [sys.executable, "-m", "scaling_algebra.cli", "table", "j32", "--format", "markdown"]
    done = subprocess.run(code, env={**os.environ, "PYTHONHASHSEED": "4"}, capture_output=True, text=True)
    assert done.stdout == (EMITTED / "j32.md").read_text(encoding="utf-8"), done.stderr


# formats -------------------------------------------------------------------------------------------------------


def well_formed(name):
    """Asserts that every format of a table is well formed and holds the same rows."""
    text = shown(name, "latex")
    assert re.findall(r"\\begin\{(\w+\*?)\}", text).count("table*") == text.count(r"\caption{")
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len({line.count("&") for line in rows}) == 1

    data = json.loads(shown(name, "json"))
    assert len(data["rows"]) == len(grid(name).rows)
    assert all(list(row["cells"]) == data["columns"] for row in data["rows"])
    printed = [line for line in shown(name, "markdown").splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in printed}) == 1
    headings = sum(bool(group.name) for group, _ in grid(name).groups()) if grid(name).sections else 0
    assert len(printed) == 2 + headings + len(grid(name).rows)

    text = shown(name, "html")
    assert "$" not in text and not re.search(r"&\w+;", unescape(text))
    for form in FORMATS:
        check(form, shown(name, form))
    assert "(tied)" in shown(name, "text") or name not in ("b1", "b2", "transfer1")


@NEEDS_LATEX
def test_latex_compiles_and_fits_the_page(tmp_path):
    size = r"\textwidth=6.5in \textheight=9in \oddsidemargin=0in \topmargin=-.5in"
    (tmp_path / "errata.tex").write_text(render(errata().document(), "latex"), encoding="utf-8")
    compiles(tmp_path, [*(EMITTED / f"{name}.tex" for name in TABLES), "errata.tex"], size)


# contents ------------------------------------------------------------------------------------------------------


def load(name):
    folder = PUBLISHED.parent / "audit" if name == "errata" else PUBLISHED
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def cells(name):
    """{(row, column): cell as JSON}."""
    data = json.loads(shown(name, "json"))
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


def b1():
    found = cells("b1")
    rows = {row.split()[0]: row for row, *_ in found}
    printed = load("mssp_b1")["cell"]
    for c in printed:
        column = f"Regime {c['regime']} {TITLES[c['optimizer']]}"
        mine = found[rows[c["role"]], SHORT[c["quantity"]], column]
        for name in ("mup", "mssp"):
            assert on(c["regime"], mine[name]) == on(c["regime"], c[name]), c
    assert sum(mine["mup"] is not None for mine in found.values()) == len(printed) == 45


def b2():
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
    every_cell(("mssp", "B.2"))


def test_b2_holds_where_few_experts_are_active_and_their_number_is_fixed():
    d = derive(None, "adamw", "mssp", ray="N=1,N_e=0,M=1,L=1/2", architecture="deep-moe", readout_init="maximal")
    assert (str(d["expert_out"].init_std), str(1 / d.scaling.multipliers["alpha"])) == ("M^(1/2)", "M^-1")


@pytest.mark.parametrize(("architecture", "L"), [("moe", ""), ("deep-moe", ",L=1/2")])
def test_no_structure_balances_g2_where_active_experts_grow_slower(architecture, L):
    """With expert_out at K^(1/2), where the forward demands hold, the initial part of g2 is n^(-1/4) below that of the
    update; the block of the paper and a stack of such blocks are alike in this, at K = M both parts are of one size."""
    for K, apart in (("1/2", Fraction(1, 4)), ("1", Fraction(0))):
        ray, std = f"N=1,N_e=0,M=1,K={K}{L}", "K^1/2" if K == "1/2" else "M^1/2"
        given = {"expert_out.init": std}
        d = derive(None, "adamw", "mup", ray=ray, architecture=architecture, readout_init="zero", given=given)
        look = d.analysis()
        first, update = ("g2.init", "g2.update") if L else ("g2.init-update", "g2.update-update")
        assert look(update, 2).exponent - look(first, 2).exponent == apart
    if not L:
        with pytest.raises(Infeasible, match="found no MSSP"):
            derive(None, "adamw", "mssp", ray="N=1,N_e=0,M=1,K=1/2", architecture=architecture)


def g1():
    found = cells("g1")
    titles = {"sp": "SP", "ntp": "NTP", "mup": "muP"}
    printed = [c for c in load("mssp_g1")["cell"] if c["gauge"] == "free" and c["optimizer"] == "sgd"]
    printed = [c for c in printed if c["quantity"] != "multiplier" and c["power"].get("N") != "-c"]
    for c in printed:
        mine = found[titles[c["parameterization"]], SHORT[c["quantity"]], KINDS[c["role"]]]
        assert on("I", mine) == on("I", c["power"]), c
    assert len(printed) == 15


def g2():
    found = cells("g2")
    printed = load("mssp_g2")["cell"]
    for c in printed:
        column = "b" if c["quantity"] == "b" else f"{c['quantity']}_{TITLES[c['optimizer']]}"
        mine = found[KINDS[c["role"]], column]
        assert mine == ({"sgd": c["exponent"], "adam": c["exponent"]} if column == "b" else c["exponent"])
    assert len(found) == len(printed) == 12


def routers(number):
    found = cells(f"routers{number}")
    printed = [c for c in load("routers_tables")["cell"] if c["table"] == number]
    assert {(LAYERS[c["layer"] - 1], c["quantity"]): c["exponent"] for c in printed} == found


@pytest.mark.parametrize("optimizer", TITLES)
def test_routers_captions_claim_what_is_derived(optimizer):
    """The gates said to share the numbers of the sigmoid do so; plain softmax: `engine/test_gate_theory.py`."""

    def exponents(architecture):
        d = derive("I", optimizer, "mup", architecture=architecture)
        return {role: d.exponents(role) for role in ("input", "router", "expert", "readout")}

    for architecture in SAME:
        assert exponents(architecture) == exponents(SIGMOID)
    note = grid("routers1" if optimizer == "sgd" else "routers2").footnotes[0]
    assert r"no $\mu$P was found" in note


def transfer1():
    """Where the paper fixes a power of what the table has; ``audit --source transfer`` holds the others."""
    found = cells("transfer1")
    columns = {"init_std": "init std", "lr": "Adam lr"}
    asked = [c for c in load("transfer_table1")["cell"] if c["quantity"] in columns]
    printed = [c for c in asked if not c.keys() & {"reason", "program"}]
    for c in printed:
        if c["power"].get("N") == "-gamma":  # left free from 1/2 on; muP takes the largest
            continue
        mine = found[c["role"], columns[c["quantity"]]]
        assert on("III", mine["mup"]) == on("III", mine["mssp"]) == on("III", c["power"]), c
    assert len(printed) == len(found) == 6


def muon():
    """Every factor times its rate is one step, NorMuon's of the paper is Adam's, and sqrt(out/in) needs no rate."""
    found, printed = cells("muon"), load("mssp_b1")["cell"]
    plain, original, matched, unit, entries = json.loads(shown("muon", "json"))["columns"]
    adam = {(c["regime"], c["role"]): c["mup"] for c in printed if (c["optimizer"], c["quantity"]) == ("adam", "lr")}
    sides = {"router": ("M", "N"), "expert_in": ("N_e", "N"), "expert_out": ("N", "N_e")}
    for regime, (role, (out, into)) in product(REGIMES, sides.items()):
        ray = REGIMES[regime]
        rate = {f: on(regime, found[f"Regime {regime}", role, f]) for f in (plain, original, matched, unit, entries)}
        assert rate[original] == rate[plain] - max(0, ray[out] - ray[into]) / 2
        assert rate[matched] == rate[plain] - max(ray[out], ray[into]) / 2
        assert rate[unit] == 0 == rate[plain] - (ray[out] - ray[into]) / 2
        assert rate[entries] == on(regime, adam[regime, role])


def signal_table(name):
    """The sizes of the paper, up to listed errata; a mechanism behind every size, and none behind a zero."""
    data = json.loads(shown(name, "json"))
    for row in data["rows"]:
        last, mechanism = row["cells"]["t=2"], row["cells"]["mechanism"]
        assert (mechanism is None) == (last == "zero" or row["part"] == "Updates"), row
    reference = load(f"mssp_{name}")
    rows = [row for row in data["rows"] if row["part"] != "Updates"]
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


PRINTED = {
    **{f.__name__: f for f in (b1, b2, g1, g2, muon, transfer1)},
    **{f"routers{number}": partial(routers, number) for number in "12"},
    **{name: partial(signal_table, name) for name in ("j32", "j34", "j43", "j45")},
}
