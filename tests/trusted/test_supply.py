"""What the project is built with: every package is locked with a hash, and its licence is told."""

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
import lock

LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", lock.LOCK.read_text(), re.MULTILINE))
ROWS = {
    name: row
    for name, *row in re.findall(r"^\| (\S+) +\| (\S+) +\| (.*?) +\| (.*?) +\|$", lock.TABLE.read_text(), re.M)
}


def test_every_dependency_is_locked_and_told():
    wanted = lock.direct()
    assert len(LOCKED) == len(lock.LOCK.read_text().splitlines()) - 1 and set(wanted) <= set(LOCKED)
    assert {name: row[2] for name, row in ROWS.items() if name in wanted} == {
        k: ", ".join(v) for k, v in wanted.items()
    }
    assert all(LOCKED[name] == row[0] for name, row in ROWS.items() if name in wanted)
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {n: v for n, v in pins if lock.plain(n) in LOCKED and LOCKED[lock.plain(n)].partition("+")[0] != v} == {}


@pytest.mark.parametrize("name", lock.direct())
def test_licences_are_those_of_what_is_installed(name):
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    if version != ROWS[name][0]:
        pytest.skip("another version is installed")
    assert lock.licence(name) == ROWS[name][1] != "not said"
