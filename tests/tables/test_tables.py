"""Published against derived, cell by cell: Table B.1, the signal tables of App. J and Definitions 4 to 7."""

import json
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling_algebra import REGIMES, derive, signals
from scaling_algebra.cli import main
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.derived.layouts import TABLES
from scaling_algebra.tables.derived.presentation import table

REFERENCE = Path(__file__).parents[2] / "tables" / "published"


def load(name):
    folder = REFERENCE.parent / "audit" if name == "errata" else REFERENCE
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def power(cell):
    return Power.of({axis: Fraction(e) for axis, e in cell.items()})


B1 = load("mssp_b1")["cell"]


@pytest.mark.parametrize("cell", B1, ids=lambda c: f"{c['regime']}-{c['optimizer']}-{c['role']}-{c['quantity']}")
@pytest.mark.parametrize("parameterization", ["mup", "mssp"])
def test_table_b1_cell_by_cell(cell, parameterization):
    derived = derive(cell["regime"], cell["optimizer"], parameterization)
    mine = getattr(derived.scaling.tensors[cell["role"]], cell["quantity"])
    printed = cell[parameterization]
    if printed == "zero":
        assert mine is None
        return
    ray = REGIMES[cell["regime"]]
    assert mine.on(ray) == power(printed).on(ray)
    if cell["quantity"] == "init_std":
        assert (cell["role"] in derived.scaling.tied) == (parameterization == "mssp" and cell.get("tied", False))


@pytest.mark.parametrize("regime, name", [("II", "j32"), ("III", "j43")])
def test_columns_of_the_table_of_all_rays_are_those_of_app_j(regime, name):
    """After two updates; of the regimes the paper has these two columns under muP. The other one is another."""
    mine = {
        row.label.name: dict(zip(TABLES["rays"]().column_names, row.cells, strict=True))
        for row in TABLES["rays"]().rows
    }
    printed = {row.label.name: row.cells[2] for row in TABLES[name]().rows if row.label.name in mine}
    assert len(printed) > 45
    assert all(mine[what][f"regime {regime}"] == cell for what, cell in printed.items())
    other = "III" if regime == "II" else "II"
    assert any(mine[what][f"regime {other}"] != cell for what, cell in printed.items())


def test_table_b1_is_complete():
    assert len(B1) == 45


ERRATA = {
    (cell["table"], cell["quantity"], cell.get("step")): cell for e in load("errata")["erratum"] for cell in e["cell"]
}
APP_J = ("mssp_j32", "mssp_j34", "mssp_j43", "mssp_j45")


def differences(name):
    """Cells of a signal table where print and engine differ: (table, quantity, step) -> (printed, derived)."""
    printed_table = load(name)
    head = printed_table["table"]
    found = signals(head["regime"], head["optimizer"], head["parameterization"], readout_init=head["readout_init"])
    wrong, cells = {}, 0
    for row in printed_table["row"]:
        for t, printed in enumerate(row["exponent"]):
            if printed == "none":
                continue
            cells += 1
            names = [row["quantity"].replace("*", part) for part in ("init", "update")]
            sizes = [found.quantities[n][t] for n in dict.fromkeys(names)]
            assert all(a.decided for a in sizes)
            top = max((a.exponent for a in sizes if a.exponent is not None), default=None)
            derived = "zero" if top is None else str(top)
            if derived != printed:
                wrong[head["id"], row["quantity"], t] = (printed, derived)
    return wrong, cells


@pytest.mark.parametrize(("name", "cells"), list(zip(APP_J, (171, 150, 156, 111), strict=True)))
def test_app_j_cell_by_cell_up_to_the_listed_errata(name, cells):
    wrong, counted = differences(name)
    assert counted == cells
    expected = {key: (e["printed"], e["derived"]) for key, e in ERRATA.items() if key[0] == load(name)["table"]["id"]}
    assert wrong == expected


def test_the_comparison_catches_a_changed_reference(monkeypatch):
    """Negative control: one altered cell is reported."""
    table = load("mssp_j45")
    table["row"][3]["exponent"][2] = "-7"
    monkeypatch.setattr(f"{__name__}.load", lambda name: table)
    wrong, _ = differences("mssp_j45")
    assert any(printed == "-7" for printed, _ in wrong.values())


@pytest.mark.parametrize("definition", load("mssp_definitions")["definition"], ids=lambda d: d["name"])
def test_definitions_4_to_7(definition):
    regime, name = definition["regime"], definition["parameterization"]
    ray = REGIMES[regime]
    for optimizer in ("sgd", "adam"):
        derived = derive(regime, optimizer, name, readout_init="maximal")
        for role, s in derived.scaling.tensors.items():
            assert s.init_std.on(ray) * 2 == power(definition["init_variance"][role]).on(ray)
            assert s.lr.on(ray) == power(definition[f"lr_{optimizer}"][role]).on(ray)
            if optimizer == "adam":
                assert s.eps.on(ray) == power(definition["eps_adam"][role]).on(ray)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [n if n != "b2" else pytest.param(n, marks=pytest.mark.slow) for n in TABLES])
def test_every_table_prints_in_every_format(name, form, tmp_path):
    out = tmp_path / "t"
    result = CliRunner().invoke(main, ["table", name, "--format", form, "-o", str(out)])
    assert result.exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert text.strip() == render(table(TABLES[name]()), form).strip()
    assert "tied" in text or name not in ("b1", "transfer1")


def test_table_b1_formats_hold_the_same_cells():
    b1 = table(TABLES["b1"]())
    data = json.loads(render(b1, "json"))
    assert len(data["rows"]) == 9 and len(data["columns"]) == 6
    assert data["rows"][0]["cells"]["Regime I SGD"] == {"mup": {"power": {"N": "-1"}, "tied": False}, "mssp": "zero"}
    latex = render(b1, "latex")
    assert latex.count(r"\midrule") == 3 and latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1
    assert latex.count("{") == latex.count("}") and latex.count("$") % 2 == 0


def test_the_engine_reads_no_table():
    root = Path(__file__).parents[2] / "scaling_algebra"
    files = [path for path in root.rglob("*.py") if "commands" not in path.parts and path.name != "cli.py"]
    assert len(files) > 30
    for path in files:
        text = path.read_text(encoding="utf-8")
        reads = path.name in ("families.py", "files.py")  # shapes of models, networks: no exponents
        assert "tables.published" not in text and (reads or "tomllib" not in text), path


@pytest.mark.slow
def test_table_b1_on_another_ray():
    """Where MSSP exists the table shows both; where it does not it says why; elsewhere --ray is refused."""
    wall = CliRunner().invoke(main, ["table", "b1", "--ray", "N=1,N_e=1,M=1/2", "--format", "csv"])
    assert wall.exit_code == 0 and "expert_in W2,init std,N^(-1/2) | N^(-1/2) (tied)" in wall.output
    inside = CliRunner().invoke(main, ["table", "b1", "--ray", "N=1,N_e=1/2,M=3/2"])
    assert inside.exit_code == 0 and "No MSSP: found no MSSP" in inside.output
    assert r"$N \asymp n$, $N_e \asymp n^{1/2}$, $M, K \asymp n^{3/2}$" in inside.output
    nothing = CliRunner().invoke(main, ["table", "b1", "--ray", "N=1,N_e=1/4,M=1/4"])
    assert nothing.exit_code == 1 and nothing.stderr.startswith("scalecalc: found no MSSP")
    for args in (["g1", "--ray", "N=1,N_e=1,M=1"], ["--all", "--ray", "N=1,N_e=1,M=1"]):
        refused = CliRunner().invoke(main, ["table", *args])
        assert refused.exit_code == 2 and "--ray goes with the table b1" in refused.stderr
