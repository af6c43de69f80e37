"""What is installed: every folder with code, and every data file that code opens."""

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
