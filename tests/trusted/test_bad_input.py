"""Every bad input gives one line and the right exit code, in bounded time and memory; no text is run as code.

``SCALECALC_SEED=n pytest tests/trusted`` tries others; a failure names the seed and the case. Thousands of them:
``tests/measure/test_bad_input.py``.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sympy
from click.testing import CliRunner
from sympy.parsing import sympy_parser

pytest.importorskip("torch")

import scaling_algebra
from scaling_algebra import Power, Ray, UsageError, derive, horizon, law
from scaling_algebra.cli import VERBS, main
from scaling_algebra.errors import unknown_name_error
from scaling_algebra.laws.law import invert_exponent
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.waiting import show_progress

from . import generator
from .values import CODE, GOOD, Maker

ROOT = Path(scaling_algebra.__file__).parent.parent
SEED = int(os.environ.get("SCALECALC_SEED", "20261123"))
LOG = [{"quantity": "h", "n": n, "seed": s, "value": 1.0} for n in (8, 16, 32) for s in range(4)]
SECONDS, BYTES = 10, 10**9
ANSWERED = 60
"""Seconds for damaged input, which may still be a question that takes its time."""
SOME, PARTS = 40, 7
"""Command lines of a test, and tests of them."""


class TooLong(BaseException):
    """A case took longer than it may."""


def _ring(*_):
    raise TooLong


@pytest.fixture(autouse=True)
def no_text_is_run(monkeypatch):
    """Sympy gets no text that calls or reaches for anything (it reads some of its own, when its parts are imported)."""
    usual = sympy_parser.parse_expr

    def read(text, *rest, **named):
        assert len(text) < 100 and not set("([{") & set(text) and "__" not in text, "a text was given to sympy"
        return usual(text, *rest, **named)

    monkeypatch.setattr(sympy_parser, "parse_expr", read)


def fault(case):
    """What is wrong with the answer to a case; empty if nothing is."""
    usual, allowed = signal.signal(signal.SIGPROF, _ring), SECONDS if case.wrong else ANSWERED
    signal.setitimer(signal.ITIMER_PROF, 6 * allowed)  # of CPU time; what waits for ever ends with the suite's time
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = CliRunner().invoke(main, list(case.arguments), env=dict(case.environment))
    except TooLong:
        return "it does not end"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    lines = found.stderr.splitlines()
    if isinstance(found.exception, TooLong):
        return f"more than {6 * allowed} s"
    if (took := time.process_time() - began) > allowed:  # the machine may be slow: said, and no fault
        warnings.warn(f"{took:.0f} s of CPU time, more than {allowed}: {case}", stacklevel=2)
    if taken > BYTES:
        return f"{taken / 1e9:.1f} GB"
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        return f"{type(found.exception).__name__} came through: {found.exception}"
    if case.wrong and found.exit_code != 2:
        return f"exit code {found.exit_code} after {time.process_time() - began:.1f} s: {found.output[:300]}"
    if found.exit_code not in (0, 1, 2, 3):
        return f"exit code {found.exit_code}: {found.stderr[:300]}"
    if found.exit_code == 2 and (len(lines) != 1 or not lines[0].startswith("scalecalc: ") or len(lines[0]) > 900):
        return f"not one line: {found.stderr[:600]!r}"
    if found.exit_code == 2 and (found.stdout or not lines[0].isprintable()):
        return f"stdout is {found.stdout[:200]!r}, stderr {found.stderr[:300]!r}"
    return ""


def tried(count, seed, folder):
    """Faults of so many cases."""
    faults = [(case, fault(case)) for case in generator.cases(Maker(seed, folder), count)]
    return [f"{case}: {why}" for case, why in faults if why]


@pytest.mark.parametrize("part", range(PARTS))
def test_bad_input_is_one_line(part, tmp_path):
    faults = tried(SOME, SEED + part, tmp_path)
    assert not faults, f"seed {SEED + part}:\n" + "\n".join(faults)


FILES = [
    "derive --regime I --network",
    "derive --regime I --optimizer",
    "recipe --base N=64,L=2 --target-hf",
    "recipe --target N=64,L=2 --base",
    "law",
    "law N**-a --fit",
    "law --fit-rate",
    "audit",
    "verify --campaign",
    "study",
]


@pytest.mark.parametrize("command", [*FILES, "derive --model hf:", "derive --model"])
def test_a_pipe_is_refused_without_waiting_for_it(command, tmp_path):
    pipe = Maker(SEED, tmp_path).pipe()
    words = command.split() if command.endswith(":") else [*command.split(), ""]
    words[-1] += pipe if command != "derive --model" else f"{pipe}.py:build"
    if command == "derive --model":
        os.mkfifo(f"{pipe}.py")
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 2 and re.search("(no|not a regular) file|no (campaign|study) named", found.stderr), (
        found.stderr
    )
    assert found.stderr.count("\n") == 1


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD["network"])
    (tmp_path / "link.toml").symlink_to(tmp_path / "mine.toml")
    assert CliRunner().invoke(main, ["list", "--network", str(tmp_path / "link.toml")]).exit_code == 0


def test_a_good_command_is_a_fault_of_a_case(tmp_path):
    """The negative control."""
    assert "exit code 0" in fault(generator.CommandCase(("derive", "--regime", "I", "--parameterization", "sp")))


@pytest.mark.parametrize(
    "place", ["limits.parse_integer", "limits.check_line", "laws.expressions._Parser.number", "spec.axes.find_entry"]
)
def test_a_planted_fault_is_found(place, monkeypatch, tmp_path):
    """Negative controls: something breaks in another way than by UsageError."""

    def broken(*_, **__):
        raise AttributeError("planted")

    monkeypatch.setattr(f"scaling_algebra.{place}", broken)
    assert any("planted" in fault(case) for case in generator.cases(Maker(SEED, tmp_path), 300))


def test_every_option_has_its_bad_values():
    """A new option must say what it cannot have."""
    assert {verb.split()[0] for verb in generator.VERBS} == set(main.list_commands(None))
    for verb in generator.VERBS:
        missing = [p.name for p in generator.parameters(verb) if generator.values(verb, p) is None]
        assert not missing, f"{verb}: {missing}"


# calls -----------------------------------------------------------------------------------------------------------


def public():
    """Every public function and what reads text, with good arguments."""
    where = {"regime": "I", "optimizer": "sgd", "parameterization": "sp"}
    calls = {
        "derive": where, "signals": where, "prove": where, "explain": {"what": "h3", **where},
        "formula": {"what": "h1@1", "optimizer": "sgd"}, "phases": {}, "theorems": {}, "table": {"name": "b1"},
        "audit": {}, "read_network": {"path": "none.toml"},
        "network": {"name": "x", "equations": "f = W[x] data[x]", "axes": {"x": "D"}, "title": ""},
        "recipe": {"base": "N=64,L=2", "target": "N=128,L=2"}, "horizon": {},
        "law": {"what": "N**-p + N/n", "minimise": ["N"], "grows": ["n"], "at": {"p": 1}},
    }  # fmt: skip
    more = {
        "Ray.parse": (Ray.parse, {"text": "N=1"}),
        "Power.parse": (Power.parse, {"text": "N"}),
        "factors": (horizon().factors, {"batch": (1, 2)}),
        "plan": (plan, {"model": None, "base": "N=64,L=2", "target": "N=128,L=2"}),
    }
    return {name: (getattr(scaling_algebra, name), usual) for name, usual in calls.items()} | more


def wrong_calls(count, seed, folder):
    """What comes of so many calls with an argument that cannot be."""
    maker, functions, faults = Maker(seed, folder), public(), []
    for _ in range(count):
        said, call = generator.call(maker, functions)
        try:
            call()
            faults.append(f"{said} was taken")
        except (UsageError, TypeError) as error:
            if len(str(error)) > 900:
                faults.append(f"{said}: {len(str(error))} characters")
        except Exception as error:
            faults.append(f"{said}: {type(error).__name__}: {str(error)[:200]}")
    return sorted(set(faults))


def test_bad_calls_raise_one_kind_of_error(tmp_path):
    assert not wrong_calls(300, SEED, tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda: law("x"),
        lambda: scaling_algebra.horizon(hold="sde"),
        lambda: scaling_algebra.network("x\u202e", "f = W[x] data[x]", {"x": "D"}),
        lambda: scaling_algebra.network("x", "f = W[x] data[x]", {"x": "D"}, title="x" * 10**6),
        lambda: scaling_algebra.network("x", "f = W[x] data[x]\n" * 1500, {"x": "D"}),
        lambda: Power(1.5),
        lambda: Claim("h", -5, Fraction(1)),
        lambda: Claim("h", 1, "x"),
        lambda: Claim(3, 1, None),
        lambda: Claim.parse(3),
        lambda: judge(LOG, {"h": 0}, required=float("nan")),
        lambda: judge(LOG, {"h": 0}, required=2),
        lambda: judge([{**LOG[0], "value": np.zeros(3)}], {"h": 0}),
        lambda: horizon().factors(batch=(0, 1)),
        lambda: horizon().factors(batch=(float("nan"), 1)),
        lambda: horizon().factors(batch=(-1, 1)),
        lambda: horizon("adamw", ["timescale"]).factors(free={"nope": 2.0}),
        lambda: scaling_algebra.recipe("N=64,L=2", "N=128,L=2", std={"gain": 0.1}),
    ],
)
def test_calls_that_were_answered_badly(call):
    with pytest.raises(UsageError):
        call()


def test_what_grows_with_its_square_is_bounded(tmp_path):
    """A key of TOML with many dots is refused before it is parsed; of many names some are looked at for a near one."""
    file = tmp_path / "n.toml"
    for text in ("a." * 30_000 + "a = 1", "[" + "a." * 30_000 + "a]", "x = { " + "a." * 30_000 + "a = 1 }"):
        file.write_text(text)
        with pytest.raises(UsageError, match="a key has more than"):
            scaling_algebra.read_network(file)
    file.write_text(f'name = "{"." * 300}"')
    with pytest.raises(UsageError, match="axes is missing"):
        scaling_algebra.read_network(file)
    seen = iter(range(10**6))
    with pytest.raises(UsageError, match="no thing named"):
        raise unknown_name_error("thing", "nothing", (f"{k}" for k in seen))
    assert next(seen) <= 1000


@pytest.mark.parametrize("code", CODE)
def test_no_text_is_run_as_code(code):
    for call in (
        lambda: law("N**-p + N/n", ["N"], ["n"], at={"p": code}),
        lambda: law("chinchilla", at={"alpha": code}),
        lambda: invert_exponent(law("moe-transformer", at={"d": 32}), "alpha_N", code),
        lambda: Monomial.of({"N": code}),
        lambda: derive("I", given={"router.init": code}),
    ):
        with pytest.raises(UsageError):
            call()


def test_exact_numbers_and_no_others():
    values = [law("N**-p + N/n", ["N"], ["n"], at={"p": p}) for p in ("1/2", Fraction(1, 2), sympy.S.Half)]
    assert len({str(b.cell.minimum) for b in values}) == 1
    for inexact in (0.5, sympy.Float(0.5)):
        with pytest.raises(TypeError):
            law("N**-p + N/n", ["N"], ["n"], at={"p": inexact})


FORBIDDEN = {"sympify", "parse_expr", "subs", "eval", "exec", "literal_eval"}
"""What runs a text, or hands one to sympy; ``model.eval`` of z3 takes no text."""


def test_nothing_in_the_source_runs_a_text():
    found = []
    for path in sorted(p for room in ("scaling_algebra", "tables", "verify") for p in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                z3 = isinstance(node.func, ast.Attribute) and name == "eval"
                if name in FORBIDDEN and not z3:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert not found


# while it works --------------------------------------------------------------------------------------------------


class Terminal:
    """Keeps what is written."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def flush(self):
        pass

    def write(self, text):
        self.text += text


def test_a_verb_that_takes_its_time_says_so_and_takes_it_back(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with show_progress("derive", 0.02):
        end = time.monotonic() + 20
        while "at work" not in terminal.text and time.monotonic() < end:
            time.sleep(0.01)
        print("answer")
    assert "scalecalc derive: at work; Ctrl-C stops" in terminal.text
    assert terminal.text.index("\r\x1b[2Kanswer") > terminal.text.index("at work") and sys.stdout is terminal


def test_help_needs_only_what_every_installation_has():
    optional = ("torch", "numpy", "scipy", "statsmodels", "matplotlib", "sklearn", "rich", "msgspec", "transformers")
    code = f"""import sys
from click.testing import CliRunner
from sympy.parsing import sympy_parser
class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {optional}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
from scaling_algebra.cli import VERBS, main
for verb in {[*VERBS["Measure"]]}:
    found = CliRunner().invoke(main, [verb, "-h"])
    assert found.exit_code == 0, found.output"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
