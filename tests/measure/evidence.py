"""What a file of measurements found, kept with the code it speaks of.

A file `tests/measure/test_NAME.py` says `DEPENDS = (folders, files and rooms)`; when all of it ran, `NAME.json` under
`verify/evidence/measure` holds the outcome of every test, what `record_property` said, and a hash of those files.
"""

import ast
import hashlib
import json
import platform
import subprocess
from datetime import date
from importlib import metadata
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "verify" / "evidence" / "measure"
VERSIONS = ("numpy", "scipy", "sympy", "torch", "z3-solver")
ROOMS = {
    "counts": ["scaling_algebra/counting", "scaling_algebra/dynamics"],
    "derives": [f"scaling_algebra/{room}" for room in ("counting", "dynamics", "solver", "spec")],
    "proves": [f"scaling_algebra/{room}" for room in ("counting", "dynamics", "solver", "formulas", "proofs")],
    "trains": [f"verify/{room}" for room in ("judging", "measuring", "networks")],
    "interprets": [f"tests/measure/{name}.py" for name in ("campaign", "interpreter", "judge", "networks")]
    + ["tests/engine/scenarios.py"],
}
"""What several files of measurements depend on."""
FIELDS = {"command", "commit", "date", "depends", "hash", "tests", "versions"}


def measurements() -> list[Path]:
    """All files of measurements."""
    return sorted(Path(__file__).parent.glob("test_*.py"))


def depends(test: Path) -> list[str]:
    """What a file of measurements says it depends on, with itself."""
    for node in ast.parse(test.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [x.id for x in node.targets if isinstance(x, ast.Name)] == ["DEPENDS"]:
            named = (ROOMS.get(name, [name]) for name in ast.literal_eval(node.value))
            return [*chain.from_iterable(named), str(test.relative_to(ROOT))]
    raise ValueError(f"{test.name} has no DEPENDS")


def digest(names: list[str]) -> str:
    """A hash of all code and data in some files and folders (relative to the repository)."""
    found = hashlib.sha256()
    for name in names:
        there = ROOT / name
        if not there.exists():
            raise ValueError(f"no {name}, on which evidence depends")
        for path in sorted(there.rglob("*")) if there.is_dir() else [there]:
            if path.suffix in (".py", ".toml"):
                found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def command(test: Path) -> str:
    """What measures a file again."""
    return f"pytest --lane measure --timeout 7200 {test.relative_to(ROOT)}"


def keep(test: Path, found: dict[str, dict]) -> None:
    """Write the evidence of a file of measurements: `found` is its tests with their outcome and properties."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    entry = {
        "date": date.today().isoformat(),
        "commit": git.stdout.strip() or None,
        "command": command(test),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS}},
        "depends": depends(test),
        "hash": digest(depends(test)),
        "tests": found,
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{test.stem.removeprefix('test_')}.json").write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


def kept(test: Path) -> dict:
    """The evidence of a file of measurements; ValueError where it is missing, malformed or red."""
    path = KEPT / f"{test.stem.removeprefix('test_')}.json"
    if not path.exists():
        raise ValueError(f"{test.name} has no evidence: {command(test)}")
    entry = json.loads(path.read_text(encoding="utf-8"))
    if set(entry) != FIELDS or not entry["tests"]:
        raise ValueError(f"{path.name} is not evidence: {command(test)}")
    written = {x.name for x in ast.parse(test.read_text(encoding="utf-8")).body if isinstance(x, ast.FunctionDef)}
    if missing := {x for x in written if x.startswith("test_")} - {name.partition("[")[0] for name in entry["tests"]}:
        raise ValueError(f"{path.name} says nothing of {', '.join(sorted(missing))}: {command(test)}")
    if red := [name for name, found in entry["tests"].items() if found["outcome"] != "passed"]:
        raise ValueError(f"{path.name}: {', '.join(red)} did not pass")
    return entry


def stale(test: Path) -> bool:
    """Whether the code has moved since a file of measurements ran."""
    return kept(test)["hash"] != digest(depends(test))
