"""Every package that the project is built with is locked with a hash."""

import re

import lock

LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", lock.LOCK.read_text(), re.MULTILINE))


def test_every_dependency_is_locked():
    assert len(LOCKED) == len(lock.LOCK.read_text().splitlines()) - 1 and set(
        map(lock.plain, lock.requirements())
    ) <= set(LOCKED)
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (lock.ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {n: v for n, v in pins if lock.plain(n) in LOCKED and LOCKED[lock.plain(n)].partition("+")[0] != v} == {}
