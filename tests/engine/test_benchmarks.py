"""The benchmarks are kept running: what they time against each other agrees, and every planted fault is one."""

import importlib.util
import sys
from pathlib import Path

from click.testing import CliRunner

HOME = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(HOME))  # as a script that is run has it


def script(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", HOME / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_timed_agrees():
    run = script("run")
    for leaves in (3, 5):
        net = run.chain(leaves)
        assert run.engine(net) == run.wick_two_copies(net)
    assert CliRunner().invoke(run.main, ["--help"]).exit_code == 0


def test_every_planted_fault_is_in_the_code():
    """Each text is there once, and with the fault the file is still Python."""
    mutants = script("mutants")
    assert len(mutants.MUTANTS) >= 40 and len(set(mutants.MUTANTS)) == len(mutants.MUTANTS)
    for m in mutants.MUTANTS:
        compile(m.planted((mutants.ROOT / m.file).read_text(encoding="utf-8")), m.file, "exec")
    assert {Path(mutants.ROOT, test).exists() for tests in mutants.KILLERS.values() for test in tests} == {True}
