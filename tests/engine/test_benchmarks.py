"""The benchmark is kept running: what it times against each other agrees, and its help is printed."""

import importlib.util
from pathlib import Path

from click.testing import CliRunner

PATH = Path(__file__).parents[2] / "benchmarks" / "run.py"


def test_what_is_timed_agrees():
    spec = importlib.util.spec_from_file_location("run", PATH)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    for leaves in (3, 5):
        net = run.chain(leaves)
        assert run.engine(net) == run.wick_two_copies(net)
    assert CliRunner().invoke(run.main, ["--help"]).exit_code == 0
