"""Every cell of the notebooks is run, in order; what it shows is what is kept with it."""

import ast
import json

import pytest

from .pages import ROOT

pytest.importorskip("pandas")


def shown(source, space):
    """The text of the last expression of a cell, after all of it ran; empty if it ends with none."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), space) if last is not None else None
    return "" if value is None else repr(value)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_computes(path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    space = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            kept = "".join(text for out in cell["outputs"] for text in out.get("data", {}).get("text/plain", ()))
            found = shown("".join(cell["source"]), space)
            assert found == kept
    assert len(space["frame"]) and space["axes"].lines
