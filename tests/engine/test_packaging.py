"""What is installed: every folder with code, and every data file that code opens."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def test_every_folder_with_code_is_a_listed_package():
    """`tables` and `verify` are mapped into the package, so that no tool finds their folders by itself."""
    there = {"scaling_algebra"}
    for top, name in (("scaling_algebra", ""), ("tables", "tables."), ("verify", "verify.")):
        for folder in {path.parent for path in (ROOT / top).rglob("*.py")}:
            inside = ".".join(folder.relative_to(ROOT / top).parts)
            there.add(f"scaling_algebra.{name}{inside}".rstrip("."))
    assert set(SETUP["packages"]) == there and len(SETUP["packages"]) == len(there)


def test_every_data_file_is_installed():
    """All files beside the code that are not code, but for what is only written (emitted tables, evidence)."""
    home = {"scaling_algebra.tables": ROOT / "tables", "scaling_algebra.verify": ROOT / "verify"}
    installed = set()
    for package, patterns in SETUP["package-data"].items():
        top = next((name for name in home if package.startswith(name)), "scaling_algebra")
        folder = home.get(top, ROOT / "scaling_algebra").joinpath(*package.removeprefix(top).strip(".").split("."))
        installed |= {path for pattern in patterns for path in folder.glob(pattern)}
    data = {
        path
        for top in ("scaling_algebra", "tables", "verify")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and not {"emitted", "evidence"} & set(path.parts)
    }
    assert installed == data


def private(path):
    """Private names of other modules that a test file asks for."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self") and not node.attr.endswith("_"):
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
