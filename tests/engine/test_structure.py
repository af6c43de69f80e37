"""How the tree hangs together: imports run one way, a class name means one thing, all of it is installed, and no test
reaches for a private name."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("scaling_algebra", "tables", "verify", "tests", "benchmarks")
CODE = FOLDERS[:3]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
IMPORT = re.compile(r"^ *((?:from [\w.]+ )?import (?:\([^)]*\)|[^\n(]+))", re.M)
"""At the top, in a function, or for types only."""
CLASS = re.compile(r"^ *class (\w+)[(:]", re.M)


def installed(path):
    """A path of the repository where it is installed: `tables` and `verify` are mapped into the package."""
    at = path.relative_to(ROOT)
    return Path("scaling_algebra", at) if at.parts[0] in ("tables", "verify") else at


@cache
def texts():
    """Every file by its module."""
    files = [path for top in FOLDERS for path in (ROOT / top).rglob("*.py")]
    return {".".join(installed(path).with_suffix("").parts): path.read_text(encoding="utf-8") for path in files}


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


def large(modules):
    """Classes with more than twenty methods, as many as a reader keeps in mind."""
    for name, text in modules.items():
        classes = (x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.ClassDef)) if CLASS.search(text) else ()
        yield from (f"{name}.{x.name}" for x in classes if sum(isinstance(y, ast.FunctionDef) for y in x.body) > 20)


def test_no_class_has_more_than_twenty_methods():
    """The negative control: one more is seen."""
    assert [*large({name: text for name, text in texts().items() if not name.startswith("tests")})] == []
    lines = [f"    def f{k}(self): ..." for k in range(21)]
    assert [*large({"room": "\n".join(["class Wide:", *lines]), "one": "\n".join(["class One:", *lines[:20]])})] == [
        "room.Wide"
    ]


def test_every_folder_with_code_is_a_listed_package():
    folders = {path.parent for top in CODE for path in (ROOT / top).rglob("*.py")}
    assert sorted(SETUP["packages"]) == sorted(".".join(installed(folder).parts) for folder in folders)


def test_every_data_file_is_installed():
    """All files beside the code that are not code, but for what is only written (emitted tables, evidence, builds)."""
    files = [path for top in CODE for path in (ROOT / top).rglob("*") if path.is_file()]
    data = {x for x in files if x.suffix not in (".py", ".pyc", ".so") and not {"emitted", "evidence"} & set(x.parts)}
    folders = {".".join(installed(path.parent).parts): path.parent for path in files}
    patterns = SETUP["package-data"].items()
    assert {path for name, globs in patterns for glob in globs for path in folders[name].glob(glob)} == data


def private(path):
    """Private names of other modules that a test file asks for."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "os")) and not node.attr.endswith(
                "_"
            ):
                yield f"{path.name}:{node.lineno} {node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scaling_algebra"):
            yield from (f"{path.name}:{node.lineno} {x.name}" for x in node.names if x.name.startswith("_"))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"scaling_algebra\.[\w.]*\._[a-z]\w*", str(node.value)):
            yield f"{path.name}:{node.lineno} {node.value}"


def test_no_test_reaches_for_a_private_name():
    assert [name for path in sorted((ROOT / "tests").rglob("*.py")) for name in private(path)] == []


def test_private_names_are_seen(tmp_path):
    """Negative control."""
    file, there = tmp_path / "test_x.py", "scaling_algebra.cli._" + "two"
    file.write_text(
        f"from scaling_algebra.cli import _fail\nimport x\nx._one(x.__doc__)\nx.setattr('{there}')\n",
        encoding="utf-8",
    )
    assert [name.split()[1] for name in private(file)] == ["_fail", "_one", there]
