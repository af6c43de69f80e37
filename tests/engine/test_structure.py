"""How the tree hangs together: imports run one way, and a class name means one thing."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("scaling_algebra", "tables", "verify", "tests", "benchmarks")
IMPORT = re.compile(r"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|[^\n(]+))", re.M)
"""At the top, in a function, or for types only."""
CLASS = re.compile(r"^ *class (\w+)[(:]", re.M)


@cache
def texts():
    """Every file by its module: `tables` and `verify` are subpackages."""
    files = {path: path.relative_to(ROOT) for top in FOLDERS for path in (ROOT / top).rglob("*.py")}
    below = {path: Path("scaling_algebra", at) if at.parts[0] in FOLDERS[1:3] else at for path, at in files.items()}
    return {".".join(at.with_suffix("").parts): path.read_text(encoding="utf-8") for path, at in below.items()}


def imports(modules):
    """The modules that each module imports."""
    names = {name.removesuffix(".__init__"): name for name in modules}
    for name, text in modules.items():
        there = set()
        for node in (ast.parse(line).body[0] for line in IMPORT.findall(text)):
            above = name.split(".")[: -node.level] if getattr(node, "level", 0) else []
            home = ".".join([*above, *([node.module] if getattr(node, "module", None) else [])])
            inside = {f"{home}.{alias.name}".lstrip(".") for alias in node.names}
            there |= inside if inside <= names.keys() else inside | {home}
        yield name, {names[x] for x in there & names.keys()}


def twice(modules):
    """Names of classes that are defined in more than one file."""
    classes = Counter(name for text in modules.values() for name in set(CLASS.findall(text)))
    return {name for name, count in classes.items() if count > 1}


def test_no_module_imports_itself_in_a_circle():
    TopologicalSorter(dict(imports(texts()))).prepare()


def test_a_class_name_means_one_thing():
    assert twice(texts()) == set()


def test_circles_and_second_meanings_are_seen():
    """Negative control: a circle of a type and a lazy import, and a class in two files."""
    first = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import (\n        X,\n    )\nclass Cell: ..."
    )
    modules = {"room.a": first, "room.b": "def f():\n    from room import a\nclass Cell: ...", "room.__init__": ""}
    with pytest.raises(CycleError):
        TopologicalSorter(dict(imports(modules))).prepare()
    assert twice(modules) == {"Cell"}
