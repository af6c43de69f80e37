"""Documents: every format renders every kind of result, escapes what it would read as markup, and drops nothing."""

import csv
import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling_algebra.all_rays.phases import phases
from scaling_algebra.documents import FORMATS, Rendered, format_of, render, suffixes
from scaling_algebra.documents.blocks import (
    ZERO,
    Cell,
    Code,
    Document,
    Grid,
    Heading,
    Label,
    Lines,
    Marked,
    Row,
    Size,
    Text,
    literal,
)
from scaling_algebra.documents.notation import formula, html, plain, rich
from scaling_algebra.errors import UsageError
from scaling_algebra.explanations.alignments import alignments
from scaling_algebra.explanations.explanations import explain
from scaling_algebra.laws.law import law
from scaling_algebra.proofs.prover import prove
from scaling_algebra.solver.derivation import derive, signals
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.audit.comparison import audit

from ..shared import scalecalc

HALF = Fraction(1, 2)
RESULTS = {
    "derivation": lambda: derive("III", "adam", "mssp"),
    "signals": lambda: signals("II", "sgd", "mssp", steps=1),
    "explanation": lambda: explain("h3.A2.2@2", "III", "sgd", "mssp"),
    "inner product": lambda: explain("<h1@0, h1@1>", "III", "sgd", "mssp"),
    "update": lambda: explain("dW2@2", "II", "sgd", "mup"),
    "exact zero": lambda: explain("h1.change@0", "III", "sgd", "mssp"),
    "setting": lambda: explain("router.lr", "III", "adam", "mssp"),
    "alignments": lambda: alignments(derive("III", "sgd", "mup")),
    "proof": lambda: prove("III", "sgd", "mssp"),
    "phases": lambda: phases("sgd", "mup"),
    "audit": lambda: audit("transfer"),
}
"""One of every kind."""


@cache
def result(kind):
    return RESULTS[kind]()


@cache
def document(kind):
    return result(kind).document()


class TagBalance(HTMLParser):
    VOID = ("meta",)

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def balanced(page):
    parser = TagBalance()
    parser.feed(page)
    assert not parser.open
    return parser.text


def check(form, text):
    """Checks for any output of a format."""
    if form == "json":
        assert json.loads(text)
    if form == "html":
        assert text.startswith("<!doctype html>") and "<script" not in text and 'name="viewport"' in text
        assert "\\" not in balanced(text).replace("\\ ", "")
    if form == "latex":
        body = re.sub(r"\\[\\%$&#_{}]", "", text)
        assert body.count("{") == body.count("}") and body.count("$") % 2 == 0
        assert sorted(re.findall(r"\\begin\{(.*?)\}", text)) == sorted(re.findall(r"\\end\{(.*?)\}", text))
        assert re.match(r"% .*\\usepackage\{amsmath,booktabs,tabularx\}$", text.splitlines()[0])
    if form == "markdown":
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) <= 1
    if form == "text":
        assert not re.search(r"\\[a-zA-Z]", text) and "$" not in text


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_in_every_format(kind):
    """``str`` is the text, ``repr`` one short line, and a notebook shows a fragment of a page."""
    made, shown = document(kind), result(kind)
    texts = {form: render(made, form) for form in FORMATS}
    for form, text in texts.items():
        check(form, text)
    heading = next((plain(block.text) for block in made.blocks if isinstance(block, Heading)), "")
    for text in (texts["text"], balanced(texts["html"])):
        assert re.sub(r"\W", "", heading)[:12] in re.sub(r"\W", "", text)
    assert isinstance(shown, Rendered) and str(shown) == texts["text"] and shown._repr_latex_() == texts["latex"]
    assert repr(shown).startswith(f"<{type(shown).__name__}: ") and len(repr(shown)) < 160
    assert "\n" not in repr(shown)
    fragment = shown._repr_html_()
    balanced(fragment)
    assert "<body" not in fragment and "<h" in fragment


DROPPED = {
    "aggregation multiplier": "M^{-1}",
    "reason of the multiplier": "the aggregated effective update",
    "reason of a number": "faithfulness: epsilon has the size of the gradient",
    "structure chosen": "chosen: tied expert",
    "structure rejected": "rejected: no intervention",
    "note": "first Hermite",
}


def test_no_format_drops_a_part_of_a_derivation():
    for form in (f for f in FORMATS if f != "json"):
        text = render(document("derivation"), form)
        text = text.replace(r"\_", "_").replace("<sup>-1</sup>", "^{-1}").replace("M^-1 ", "M^{-1} ")
        assert {what for what, part in DROPPED.items() if part not in text} == set(), form


def test_json_is_the_record_with_its_schema():
    one = document("derivation")
    assert json.loads(render(one, "json")) == {"schema": 1, **json.loads(json.dumps(one.record))}
    several = json.loads(render([one, document("signals")], "json"))
    assert [record["schema"] for record in several] == [1, 1] and "quantities" in several[1]


# what a writer would read as markup ----------------------------------------------------------------------------

SIGNS = "a_b & 50% <tag> x|y costs $5 or $6 #1 {z} ~ ^ \\n"
NASTY = Document(
    (
        Heading(literal(SIGNS)),
        Lines.of(literal(SIGNS), ("code: ", Code("f(a_b) & <x> | 5%"))),
        Lines.of(literal(SIGNS), formula("M >= N"), listed=True),
        Grid.of(("a_b", "c|d", "e&f"), [(SIGNS, literal(SIGNS), Code("x|y"))]),
    ),
    {"signs": SIGNS},
    "scalecalc table a_b",
)
SHOWN = {
    "text": SIGNS,
    "markdown": r"a_b &amp; 50% &lt;tag> x|y costs \$5 or \$6 #1 {z} ~ ^ \\n",
    "latex": r"a\_b \& 50\% $<$tag$>$ x$\mid$y costs \$5 or \$6 \#1 \{z\} $\sim$ \^{} \textbackslash{}n",
    "html": "a_b &amp; 50% &lt;tag&gt; x|y costs $5 or $6 #1 {z} ~ ^ \\n",
    "json": json.dumps({"schema": 1, "signs": SIGNS}, indent=2),
}


@pytest.mark.parametrize("form", FORMATS)
def test_signs_are_escaped(form):
    text = render(NASTY, form)
    assert SHOWN[form] in text
    if form == "markdown":
        (row,) = (line for line in text.splitlines() if line.startswith("| a_b &amp;"))
        assert len(re.findall(r"(?<!\\)\|", row)) == 4 and row.count(r"x\|y") == 3
    if form == "latex":
        body = re.sub(r"\\[\\%$&#_{}]", "", text)
        assert body.count("$") % 2 == 0 and body.count("{") == body.count("}")
    if form == "html":
        assert "<code>f(a_b) &amp; &lt;x&gt; | 5%</code>" in text and "<tag>" in balanced(text)


def test_what_every_piece_reads():
    """Pieces in every format: exact zero, a power, a size, a mark, and where nothing is printed."""
    pieces = (ZERO, Power.of({"M": HALF, "N": -1}), Size(-HALF), Marked(Power.of({"N_e": -HALF}), "tied"), None, HALF)
    assert [plain(p) for p in pieces] == ["0", "M^(1/2) N^-1", "n^(-1/2)", "N_e^(-1/2) (tied)", "-", "1/2"]
    assert [rich(p) for p in pieces[:4]] == [
        "$0$",
        "$M^{1/2} N^{-1}$",
        r"$\Theta(n^{-1/2})$",
        r"$(N_{e}^{-1/2})^{\mathrm{tied}}$",
    ]
    assert html(pieces[3]) == "N<sub>e</sub><sup>-1/2</sup> (tied)"
    assert html(pieces[2]) == "&Theta;(n<sup>-1/2</sup>)"


def test_powers_multiply_with_powers():
    """Powers multiply as sympy's do, and only with powers: a number is none of them."""
    m, n = Power.of({"M": 1}), Power.of({"N_e": 1})
    p = m / n**HALF
    assert p.latex == "M N_{e}^{-1/2}" and p * n == m * n**HALF and 1 / p == n**HALF / m
    with pytest.raises(TypeError):
        p * 2


# grids ---------------------------------------------------------------------------------------------------------


def small(**more):
    """Two groups of rows under two groups of columns."""
    cells = tuple(Cell((Power.of({"N": k}),)) for k in (1, 2))
    both = (Cell((ZERO, Power.of({"M": 1})), ("mup", "mssp")), Cell(("A", "B")))
    rows = (
        Row(Label("g1", "Group $G_1$"), Label("r1"), cells),
        Row(Label("g1", "Group $G_1$"), Label("r2"), both, part=True),
        Row(Label("g2"), Label("r3"), cells),
    )
    columns = ((Label("left", "Left $L$"), (Label("x"),)), (Label("right"), (Label("y", "$y$"),)))
    return Grid(
        "small", "Small", "A caption with $N$.", (Label("group"), Label("row")), columns, rows, ("A note.",), **more
    )


def test_text_of_a_grid():
    assert render(Document((small(),), {}), "text").splitlines() == [
        "Small. A caption with N.",
        "",
        "group  row   left x  right y",
        "g1     r1    N       N^2",
        "       - r2  0 | M   A or B",
        "g2     r3    N       N^2",
        "",
        "A note.",
    ]


def test_no_text_is_a_live_link_in_markdown():
    """Intervals keep their brackets."""
    heading = Heading(literal("[x](javascript:alert(1)) and [-1, 2]"))
    text = render(Document((heading,), {}), "markdown")
    assert "](" not in text and "[-1, 2]" in text


def test_latex_splits_what_does_not_fit_on_a_page():
    rows = [(f"row {k}", "words that go on and on until the line is full " * 3) for k in range(40)]
    text = render(Document((Grid.of(("name", "words"), rows),), {}), "latex")
    assert text.count(r"\toprule") == text.count(r"name & words \\") > 1
    assert "tabularx" in text and [text.count(f"row {k} &") for k in range(40)] == [1] * 40


def test_html_of_a_grid():
    text = render(Document((small(sections=True),), {}), "html")
    assert '<th class="group" colspan="3">g1</th>' in text
    assert '<tr><th class="part" title="r2">r2</th><td>0 | M</td><td>A or B</td></tr>' in text


# formulas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("N_e + M >= N", r"$N_{e} + M \geq  N$"),
        (
            "M^(-1/2) sigma_expert_out^2 lr_router = Theta(1)",
            r"$M^{-1/2} \sigma_{\mathrm{expert\ out}}^{2} \eta_{\mathrm{router}} = \Theta(1)$",
        ),
        ("expert_in[b,a] h1", r"$\mathrm{expert\ in}[b,a] h^{1}$"),
        ("[-0.10, +0.20]", "$[-0.10, +0.20]$"),
    ],
)
def test_a_formula_as_a_whole(text, latex):
    assert formula(text) == Text(text, latex)


@pytest.mark.parametrize(
    ("tex", "said"),
    [
        (r"$W_0^{2,i} \Delta_t h^1$", "W_0^(2,i) d_t h^1"),
        (r"$\sigma \asymp n^{-b}$", "sigma ~ n^-b"),
        (r"$\langle x, y \rangle \leq 1/\sqrt{N}$", "<x, y > <= 1/sqrt(N)"),
        (r"$\frac{1}{M} \text{ of all}$", "(1)/(M) of all"),
        (r"Adam $\epsilon$, \$5", "Adam eps, $5"),
    ],
)
def test_what_papers_print_is_plain_text_outside_of_latex(tex, said):
    assert plain(tex) == said and html(tex) == escape(said)


# files, registry -----------------------------------------------------------------------------------------------


def test_the_ending_of_a_file_names_its_format():
    assert {format_of(Path(f"x{suffix}")) for suffix in suffixes().values()} == set(FORMATS)
    assert len(set(suffixes().values())) == len(FORMATS)
    assert format_of(Path("X.TEX")) == "latex" and format_of(Path("notes"), "markdown") == "markdown"
    with pytest.raises(UsageError, match=r"the ending of x\.pdf .*\.tex"):
        format_of(Path("x.pdf"), "text")
    with pytest.raises(UsageError, match="no format named 'latx'; did you mean 'latex'"):
        render(NASTY, "latx")


NEEDS_LATEX = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")


def compiles(folder, inputs, size=""):
    """LaTeX's article takes these files, and without a warning of a line that is too long."""
    head = rf"\documentclass{{article}}\usepackage{{amsmath,booktabs,tabularx}}{size}\begin{{document}}"
    text = "\n".join(rf"\input{{{name}}}\clearpage" for name in inputs)
    (folder / "all.tex").write_text(rf"{head}{text}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if "not found" in done.stdout:
        pytest.skip("a LaTeX package is missing here")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout and "too large" not in done.stdout, done.stdout


@NEEDS_LATEX
@pytest.mark.parametrize("kind", RESULTS)
def test_latex_compiles_and_fits_the_page(kind, tmp_path):
    (tmp_path / "part.tex").write_text(render([document(kind), NASTY], "latex"), encoding="utf-8")
    compiles(tmp_path, ["part"])


def test_tables_are_csv(tmp_path):
    """Of two answers the column that tells them apart; what is no table is one line."""
    assert scalecalc("derive", "--regime", "III", "-o", tmp_path / "x.csv").exit_code == 0
    found = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert {row["parameterization"] for row in found} == {"mup", "mssp"} and len(found) == 12
    multipliers = [(row["name"], row["multiplier.M"], row["b"]) for row in found if row["name"] == "alpha"]
    assert multipliers == [("alpha", "-1", "")] * 2  # of the sum over experts, which is no tensor
    tied = {row["name"] for row in found if row["tied"] == "True"}
    assert tied == {"expert_in", "expert_out"} and {row["undecided"] for row in found} == {"False", ""}
    (readout,) = [row for row in found if row["name"] == "readout" and row["parameterization"] == "mssp"]
    assert (readout["b"], readout["b_value"], readout["b_is_zero"]) == ("zero", "", "True")
    told = scalecalc("explain", "h1.change", "--regime", "I", "-o", tmp_path / "y.csv")
    assert told.exit_code == 2 and "cannot be written as CSV" in told.stderr and not (tmp_path / "y.csv").exists()


def test_the_columns_of_a_frame_do_not_depend_on_the_answer():
    """An axis that a power lacks is 0, a power that does not exist nothing, an exact zero has a flag."""
    asked = [("I", "sgd", "mup"), ("III", "adam", "mssp"), ("II", "adam", "sp")]
    frames = [derive(*x).as_rows() for x in asked]
    assert {tuple(row) for frame in frames for row in frame} == {tuple(frames[2][0])}
    first, readout = frames[0][0], frames[1][-2]
    assert (first["lr.N"], first["lr.M_value"], first["eps.N"], first["d_value"]) == ("1", 0.0, None, None)
    assert (readout["init_std.N"], readout["b_is_zero"], first["b_is_zero"]) == (None, True, False)
    told = ("regime", "ray", "optimizer", "epsilon", "parameterization")
    assert [readout[x] for x in told] == ["III", "N=1,N_e=1,M=1,K=1,L=0", "adam", "derived", "mssp"]
    sizes = {row["name"]: row for row in signals("III", "adam", steps=1).as_rows()}
    assert (sizes["h1.change"]["0"], sizes["h1.change"]["0_is_zero"]) == (None, True)
    assert [sizes["h1"][f"{t}_is_zero"] for t in (0, 1)] == [False, False] and sizes["h1"]["optimizer"] == "adam"


def test_a_table_is_a_frame_where_pandas_is(monkeypatch):
    d = derive("III", "adam")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="to_frame needs pandas; install it"):
        d.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    router = next(row for row in d.to_frame() if row["name"] == "router")
    assert (router["b"], router["b_value"], router["lr.N"], router["lr.N_value"]) == ("1/2", 0.5, "-1", -1.0)
    assert {row["name"] for row in signals("III", "adam", steps=1).to_frame()} >= {"h1.change"}
    assert {row["verdict"] for row in audit("switch-cluster").to_frame()} == {"DISAGREES", "NOT COMPARABLE"}
    assert {"name": "alpha_N", "exponent": "alpha"} in law("chinchilla").to_frame()
    with pytest.raises(UsageError, match="Explanation has no rows for a data frame"):
        explain("h1.change", "III", "adam").to_frame()
