"""Every planted fault is one."""

from pathlib import Path

from ..shared import benchmark


def test_every_planted_fault_is_in_the_code():
    """Each text is there once, and with the fault the file is still Python."""
    mutants = benchmark("mutants")
    assert len(mutants.MUTANTS) >= 40 and len(set(mutants.MUTANTS)) == len(mutants.MUTANTS)
    for m in mutants.MUTANTS:
        compile(m.plant((mutants.ROOT / m.file).read_text(encoding="utf-8")), m.file, "exec")
    assert {Path(mutants.ROOT, test).exists() for tests in mutants.KILLERS.values() for test in tests} == {True}
