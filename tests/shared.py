"""The command line in this process, and the scripts of benchmarks."""

import importlib.util
import sys
from pathlib import Path

from click.testing import CliRunner

from scaling_algebra.cli import main

ROOT = Path(__file__).resolve().parents[1]


def scalecalc(*words, **options):
    """What a command says."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)


def benchmark(name):
    """A script of benchmarks, as a module; others stand beside it, as for a script that is run."""
    path = ROOT / "benchmarks" / f"{name}.py"
    sys.path[:0] = {str(path.parent)} - {*sys.path}
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
