"""Thousands of bad command lines and calls."""

from ..trusted.test_bad_input import no_text_is_run, tried, wrong_calls

DEPENDS = (
    "scaling_algebra/arguments.py",
    "scaling_algebra/cli.py",
    "scaling_algebra/commands",
    "scaling_algebra/errors.py",
    "scaling_algebra/files.py",
    "scaling_algebra/limits.py",
    "verify/commands",
    "tests/trusted/generator.py",
    "tests/trusted/values.py",
)
LINES, CALLS = 3000, 2000
__all__ = ["no_text_is_run"]


def test_bad_input_is_one_line(tmp_path, record_property):
    faults = tried(LINES, 1, tmp_path)
    record_property("command lines", LINES)
    assert not faults, "\n".join(faults)


def test_bad_calls_raise_one_kind_of_error(tmp_path, record_property):
    faults = wrong_calls(CALLS, 1, tmp_path)
    record_property("calls", CALLS)
    assert not faults
