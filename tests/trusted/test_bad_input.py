"""Every bad input gives one line and the right exit code, in bounded time and memory.

``SCALECALC_SEED=n pytest tests/trusted`` tries others; a failure names the seed and the case.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from scaling_algebra import Ray, derive, explain, prove, read_network, signals
from scaling_algebra.cli import main
from scaling_algebra.errors import UsageError
from scaling_algebra.verify import judge
from scaling_algebra.verify.campaigns.plans import load

_spec = importlib.util.spec_from_file_location("generator", Path(__file__).with_name("generator.py"))
generator = importlib.util.module_from_spec(_spec)
import sys

sys.modules["generator"] = generator
_spec.loader.exec_module(generator)

SEED = int(os.environ.get("SCALECALC_SEED", "20261122"))
SECONDS, BYTES = 10, 10**9
ANSWERED = 60
"""Seconds for damaged input, which may still be a question that takes its time."""
QUICK, EVERY = 150, 2000


class TooLong(BaseException):
    """A case took longer than it may."""


def _ring(*_):
    raise TooLong


def fault(case):
    """What is wrong with the answer to a case; empty if nothing is."""
    usual, allowed = signal.signal(signal.SIGALRM, _ring), SECONDS if case.wrong else ANSWERED
    signal.setitimer(signal.ITIMER_REAL, allowed)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = CliRunner().invoke(main, list(case.arguments), env=dict(case.environment))
    except TooLong:
        return f"more than {allowed} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    lines = found.stderr.splitlines()
    if isinstance(found.exception, TooLong):
        return f"more than {allowed} s"
    if taken > BYTES:
        return f"{taken / 1e9:.1f} GB"
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        return f"{type(found.exception).__name__} came through: {found.exception}"
    if case.wrong and found.exit_code != 2:
        return f"exit code {found.exit_code} after {time.monotonic() - began:.1f} s: {found.output[:300]}"
    if found.exit_code not in (0, 1, 2, 3):
        return f"exit code {found.exit_code}: {found.stderr[:300]}"
    if found.exit_code == 2 and (len(lines) != 1 or not lines[0].startswith("scalecalc: ") or len(lines[0]) > 900):
        return f"not one line: {found.stderr[:600]!r}"
    if found.exit_code == 2 and (found.stdout or not lines[0].isprintable()):
        return f"stdout is {found.stdout[:200]!r}, stderr {found.stderr[:300]!r}"
    return ""


def tried(count, seed, folder):
    """Faults of so many cases."""
    faults = []
    for case in generator.Maker(seed, folder).cases(count):
        if why := fault(case):
            faults.append(f"{case}: {why}")
    return faults


def test_bad_input_is_one_line(tmp_path):
    faults = tried(QUICK, SEED, tmp_path)
    assert not faults, f"seed {SEED}, {len(faults)} of {QUICK}:\n" + "\n".join(faults)


@pytest.mark.slow
def test_bad_input_is_one_line_in_every_case(tmp_path):
    faults = tried(EVERY, SEED + 1, tmp_path)
    assert not faults, f"seed {SEED + 1}, {len(faults)} of {EVERY}:\n" + "\n".join(faults)


def test_a_good_command_is_a_fault_of_a_case(tmp_path):
    """The negative control."""
    assert "exit code 0" in fault(generator.Case(("derive", "--regime", "I", "--parameterization", "sp")))


def test_every_option_has_its_bad_values():
    """A new option must say what it cannot have."""
    free = {"--output", "--evidence", "--campaign", "--resume", "--parameterization", "--only"}
    known: dict[str, set[str]] = {}
    for words, (_, options) in generator.VERBS.items():
        known.setdefault(words.split()[0], set()).update(options)
    for verb in main.list_commands(None):
        command = main.get_command(None, verb)
        taking = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
        missing = {o for p in taking for o in p.opts if o.startswith("--")} - known.get(verb, set()) - free
        assert not missing, f"{verb}: {missing}"


def api(maker):
    """A call of the library with what it cannot take."""
    odd = [None, 1.5, True, [], {}, object(), b"x", 10**5000, "", "x" * 5000, ("N",), float("nan"), -1]
    draw = maker.draw
    value = draw.choice(odd)
    calls = [
        lambda: derive(regime=value if value is not None else 3),
        lambda: derive("I", optimizer=value),
        lambda: derive("I", parameterization=value),
        lambda: derive("I", "sgd", readout_init=value if value is not None else 3),
        lambda: derive("I", "sgd", epsilon=value if value is not None else 3),
        lambda: derive(ray=value if value is not None else 3),
        lambda: Ray({"N": value, "N_e": 1, "M": 1}) if value is not True else Ray({"N": True}),
        lambda: Ray({value: 1}) if value.__hash__ else Ray(3),
        lambda: Ray.parse(maker.ray()),
        lambda: derive("I", "sgd", given={"router.init": value} if value is not None else 3),
        lambda: derive("I", "sgd", given={"x": 1}),
        lambda: derive("I", "sgd", architecture=value),
        lambda: derive("I", "sgd", network=value),
        lambda: signals("I", "sgd", "sp", steps=value),
        lambda: signals("I", "sgd", "sp", quantities=[maker.quantity()]),
        lambda: explain(maker.what(), regime="I", optimizer="sgd", parameterization="sp"),
        lambda: prove("I", "sgd", "sp"),
        lambda: read_network(maker.read()),
        lambda: load(maker.campaign()),
        lambda: judge(maker.log(), {"h1": 0}),
        lambda: judge([value], {"h1": 0}),
        lambda: judge([{"quantity": "h1", "n": value, "seed": 0, "value": [value]}], {"h1": 0}),
    ]
    which = draw.randrange(len(calls))
    return which, value, calls[which]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_bad_calls_raise_one_kind_of_error(count, tmp_path):
    maker, faults = generator.Maker(SEED + count, tmp_path), []
    for _ in range(count):
        which, value, call = api(maker)
        try:
            call()
            faults.append(f"call {which} took {type(value).__name__} {type(value)!s}")
        except (UsageError, TypeError) as error:
            if len(str(error)) > 900:
                faults.append(f"call {which}: {len(str(error))} characters")
        except Exception as error:
            faults.append(f"call {which} with {type(value).__name__}: {type(error).__name__}: {str(error)[:200]}")
    assert not faults, f"seed {SEED + count}:\n" + "\n".join(sorted(set(faults)))
