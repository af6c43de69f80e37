"""Every package that the project is built with is locked with a hash."""

import re
import tomllib

import lock

LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", lock.LOCK.read_text(), re.MULTILINE))


def test_every_floor_is_one_that_is_tried():
    """By `benchmarks/floors.py`, with the versions of `tests/oldest.txt`."""
    oldest = dict(re.findall(r"^([\w-]+)==(\S+)$", (lock.ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE))
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["verify"], *extras["cluster"]]
    wanted += [x for x in extras["test"] if x.startswith("pandas")]  # what to_frame asks for
    floors = dict(x.split(">=") for x in wanted if not x.startswith("torch"))
    assert set(floors) == set(oldest)
    assert all(f"{oldest[name]}.".startswith(f"{least}.") for name, least in floors.items())


def test_every_dependency_is_locked():
    assert len(LOCKED) == len(lock.LOCK.read_text().splitlines()) - 1 and set(
        map(lock.normalise_name, lock.read_requirements())
    ) <= set(LOCKED)
    pins = re.findall(r"^([\w.-]+)==([^;\s]+)", (lock.ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert "pymdown-extensions" in dict(pins)  # behind a marker
    assert {
        n: v
        for n, v in pins
        if lock.normalise_name(n) in LOCKED and LOCKED[lock.normalise_name(n)].partition("+")[0] != v
    } == {}
