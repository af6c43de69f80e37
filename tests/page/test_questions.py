"""Answers of the page's worker are those of the command line; the folder is put together from fixed files."""

import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from importlib.resources import files as resources

import pytest

from scaling_algebra import REGIMES, Ray
from scaling_algebra.errors import UsageError
from scaling_algebra.page import assembly, assets, package
from scaling_algebra.page.maps import load_maps, place
from scaling_algebra.page.questions import answer, answer_question, choices, copy_text

from ..shared import scalecalc

OWN = """axes = { a = "N", b = "N", x = "D" }
equations = \"\"\"
h0[a] = W1[a,x] data[x]
h1[a] = h0[a] + V[a,b] h0[b]     # the stream
f     = W2[a] h1[a]
\"\"\"
"""
QUESTIONS = [
    {"ask": "derive", "regime": "III", "optimizer": "adam", "parameterization": "mssp"},
    {"ask": "derive", "ray": "N=1,N_e=1/2,M=3/2", "optimizer": "sgd", "parameterization": "mup"}
    | {"readout_init": "zero"},
    {"ask": "derive", "regime": "I", "optimizer": "adam", "parameterization": "sp", "architecture": "swiglu"},
    {"ask": "derive", "ray": "N=1", "optimizer": "adamw", "parameterization": "mup", "network": OWN},
    {"ask": "explain", "what": "h3.A2.2@1", "regime": "III", "optimizer": "sgd", "parameterization": "mup"},
    {"ask": "explain", "what": "V.lr", "ray": "N=1", "optimizer": "sgd", "parameterization": "mup", "network": OWN},
    {"ask": "recipe", "base": "N=64,L=2", "target": "N=256,L=8", "parameterization": "mup"}
    | {"lr": "3e-3, embedding=1e-2"},
    {"ask": "prove", "regime": "II", "optimizer": "sgd", "parameterization": "mup"},
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q["ask"])
def test_answers_are_those_of_the_command_line(question, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(OWN, encoding="utf-8")
    command = shlex.split(copy_text(question, "command"))[1:]
    once = question["ask"] in ("recipe", "prove")  # they take seconds, and a format does not ask who fills it
    for form in ("json",) if once else ("json", "markdown"):
        printed = scalecalc(*command, "--format", form)
        assert printed.exit_code == 0, printed.output
        assert copy_text(question, form) + "\n" == printed.stdout
    if not once:
        page = scalecalc(*command, "--format", "html").stdout
        assert answer_question(question)["html"] in page


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q["ask"] != "prove"], ids=lambda q: q["ask"])
def test_the_python_to_copy_says_the_same(question, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(OWN, encoding="utf-8")
    made = {}
    exec(copy_text(question, "python"), made)
    if question["ask"] == "recipe":
        assert made["RECIPE"]["tensors"]["embedding"]["lr"] == 0.01
    else:
        command = shlex.split(copy_text(question, "command"))[1:]
        assert scalecalc(*command, "-o", "whole.txt").exit_code == 0
        assert capsys.readouterr().out == (tmp_path / "whole.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OWN.replace("h0[a] + V", "h0[a] - V"), 4),
        (OWN.replace('"""\nh0', '"""\n\n# nothing\nh0').replace("h0[a] + V", "h0[a] - V"), 6),
        (OWN.replace('a = "N"', 'a = "1"'), 1),
        (OWN.replace("}", ""), 1),
        ('title = "no equations"\naxes = { a = "N" }', None),
    ],
)
def test_an_error_of_a_network_names_its_line(text, line):
    found = json.loads(answer(json.dumps({"ask": "read", "network": text})))
    assert found["line"] == line and found["error"].startswith("mine.toml: ")


def test_a_network_is_read():
    found = answer_question({"ask": "read", "network": OWN})
    assert "h1_1[a] = V[a,b] h0[b]" in found["equations"] and "h1.change" in found["quantities"]


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({}, "no question named ''"),
        ({"ask": "derive", "regimes": "I"}, "did you mean 'regime'"),
        ({"ask": "derive", "ray": "N=x"}, "the rate of N is 'x'"),
        ({"ask": "derive", "regime": "I", "optimizer": "adm"}, "did you mean 'adam'"),
        ({"ask": "recipe", "base": "N=64", "target": "N"}, "target"),
        ({"ask": "recipe", "base": "N=64", "target": "N=128", "ray": "N=1"}, "ray beside sizes"),
        ({"ask": "derive", "regime": "I", "base": "N=64"}, "base beside a regime or a ray"),
        ({"ask": "derive", "regime": "IV", "optimizer": "adm"}, "no regime named 'IV'; did you mean 'I'? known: I, II"),
        ({"ask": "derive", "regime": "IV", "optimizer": "adm"}, "; no optimizer named 'adm'; did you mean 'adam'?"),
        ({"ask": "derive", "regime": "I", "as": "pdf"}, "no format named 'pdf'"),
    ],
)
def test_a_wrong_question_is_one_line(question, says):
    found = answer_question(question)
    assert says in found["error"] and "\n" not in found["error"]


def test_every_network_that_is_offered_is_read():
    """Whole layers, too, which stand apart in the library."""
    assert {"mixtral", "deepseek-v3", "moe-softmax"} <= set(choices()["architectures"])
    for name in choices()["architectures"]:
        assert answer_question({"ask": "read", "architecture": name})["quantities"], name


def test_an_answer_names_no_option_of_the_command_line():
    """Neither in errors nor in what is printed; negative control: the command line does."""
    question = {"ask": "explain", "what": "router", "regime": "I", "optimizer": "sgd", "parameterization": "mup"}
    dense = {"ask": "derive", "ray": "N=1", "architecture": "mlp", "parameterization": "mssp"}
    tuned = {"ask": "recipe", "base": "N=64", "target": "N=128", "lr": "fast"}
    wrong = [{"ask": "derive", "regime": "I", "parameterization": "m"}, {"ask": "derive"}, question, dense, tuned]
    for asked in [*wrong, {"ask": "derive", "regime": "I", "parameterization": "mssp"}]:
        said = answer_question(asked)
        assert not re.search(r"--\w|scalecalc", said.get("error", said.get("html", ""))), said
    assert "scalecalc list" in scalecalc("explain", "nothing", "--regime", "I").stderr
    assert answer_question(question | {"what": "nothing"})["error"] == "no quantity named 'nothing'"


def test_what_a_search_does_not_find_may_be_proved():
    found = answer_question(
        {"ask": "derive", "ray": "N=1,N_e=1/4,M=1/4", "optimizer": "sgd", "parameterization": "mup"}
    )
    assert found["missing"] and found["error"].startswith("found no muP") and "a cell without" in found["place"]


def test_the_demand_of_mssp_that_mups_numbers_miss_is_called_so():
    asked = {"regime": "III", "optimizer": "sgd", "parameterization": "mssp"}
    assert "no intervention (muP&#x27;s numbers): MSSP-3 forward" in answer_question({"ask": "derive", **asked})["html"]
    missing = {"ask": "derive", "ray": "N=1,N_e=1/2,M=3/2", "optimizer": "sgd", "parameterization": "mssp"}
    assert (
        ": muP's numbers violate MSSP-3 forward: h3.A1 of the aggregate is Theta(1)"
        in answer_question(missing)["error"]
    )


def test_the_page_proves_what_the_command_line_does():
    """The same line; the page's lacks the option of a clause."""
    question = {"ask": "settle", "ray": "N=1,N_e=1/2", "optimizer": "sgd", "parameterization": "mup"}
    question |= {"architecture": "bottleneck"}
    line = answer_question(question)["error"]
    assert "(proved: none exists): mu-1: h1 stays O(1)" in line
    asked = shlex.split(copy_text({**question, "ask": "derive"}, "command"))[1:]
    assert scalecalc(*asked).stderr == f"scalecalc: {line}\n".replace(
        "exists)", "exists; derive --prove prints the conflicting desiderata)"
    )


def test_deriving_explaining_and_recipes_need_neither_sympy_nor_z3():
    """So that the browser has less to load; a proof names what it needs."""
    code = (
        "import json, sys\nfor name in ('sympy', 'mpmath', 'z3', 'numpy', 'click', 'torch'): sys.modules[name] = None\n"
        "from scaling_algebra.page.questions import COPIES, answer_question\n"
        f"asked = [{{**q, **more}} for q in {QUESTIONS!r} for more in ({{}}, *({{'as': x}} for x in COPIES))]\n"
        "print(json.dumps([[q['ask'], answer_question(q).get('needs')] for q in asked]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {(ask, need) for ask, need in json.loads(done.stdout) if need}
    assert found == {("prove", "z3")}


def test_an_empty_network_of_ones_own_is_no_other_network():
    said = answer_question(
        {"ask": "derive", "regime": "III", "optimizer": "adam", "parameterization": "mup", "network": ""}
    )
    assert "mine.toml" in said["error"] and "html" not in said


def test_a_module_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scaling_algebra.recipes.recipe", None)
    assert answer_question(QUESTIONS[6])["needs"] == "scaling_algebra.recipes.recipe"


# maps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ("N=1,N_e=1/2,M=3/2", "cell B: N_e + M >= N, M >= N, N_e <= N (proved on the whole cell"),
        ("N=2,N_e=1,M=3", "cell B: "),
        ("N=1,N_e=1/2,M=1", "on the wall M = N, beside cells B, C"),
        ("N=1,N_e=1/4,M=1/4", "a cell without a formula: N_e + M <= N"),
        ("N=1,N_e=1,M=1,K=1/2", ""),
    ],
)
def test_a_ray_lies_in_a_cell_or_on_walls(rates, says):
    found = place(Ray.parse(rates), load_maps()["sgd-mup"])
    assert found.startswith(says) and bool(found) == bool(says)


def test_regimes_lie_on_two_walls():
    assert all("on the walls" in place(ray, record) for ray in REGIMES.values() for record in load_maps().values())


# the folder ----------------------------------------------------------------------------------------------------------


def test_the_package_goes_in_unmodified():
    name, content = package.wheel()
    assert (name, content) == package.wheel()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        there = {x: archive.read(x) for x in archive.namelist() if ".dist-info/" not in x}
    assert there == {x: path.read_bytes() for x, path in package.list_installed()}
    assert {"scaling_algebra/tables/__init__.py", "scaling_algebra/page/maps/sgd-mup.json"} <= set(there)
    assert not any(part in x for x in there for part in ("__pycache__", "/emitted/", "/evidence/"))


def test_regimes_are_answered_beforehand():
    asked = list(assembly.questions())
    assert len(asked) == len(REGIMES) * len(assembly.ANSWERED) * len(choices()["derived"])
    assert assembly.FIRST in asked


def test_the_site_names_nothing_outside():
    for file in (resources("scaling_algebra.page") / "site").iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", "") or "http" not in text, file.name


def made(folder, *more):
    return scalecalc("page", "-o", str(folder), *more)


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    (tmp_path / assembly.MANIFEST).write_text("{}", encoding="utf-8")
    found = made(tmp_path)
    assert (
        found.exit_code == 2
        and "contains files that are no page of scalecalc" in found.stderr
        and found.stderr.count("\n") == 1
    )
    found = made(tmp_path / "mine.txt")
    assert found.exit_code == 2 and "it is not a folder" in found.stderr
    assert sorted(x.name for x in tmp_path.iterdir()) == ["mine.txt", assembly.MANIFEST]


def test_another_file_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", ""))
    for asset in (assets.RUNTIME, *assets.WHEELS):
        (tmp_path / asset.file).write_bytes(b"another")
    with pytest.raises(UsageError, match="differs from pyodide"):
        assets.collect_assets(tmp_path, lambda _: None)


def test_without_a_network_it_says_what_to_do(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "trying\nERROR: no connection\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(assets.shutil, "which", lambda _: "npm")
    found = made(tmp_path / "page")
    assert found.exit_code == 2 and "(ERROR: no connection); go online, or give --assets" in found.stderr
    assert not (tmp_path / "page").exists()
