"""The command line as a user meets it: output, exit codes, one-line errors, imports."""

import doctest
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import scaling_algebra
from scaling_algebra.cli import Verbs
from scaling_algebra.errors import UsageError, forbid_exit, guard_foreign_code
from scaling_algebra.explanations.mechanisms import TITLES
from scaling_algebra.spec.glossary import DESIDERATA

from ..shared import scalecalc as run


def test_a_shell_completes_names():
    words = {"_SCALECALC_COMPLETE": "bash_complete", "COMP_WORDS": "scalecalc derive --regime I", "COMP_CWORD": "3"}
    asked = run(env=words, prog_name="scalecalc")
    assert [line.partition(",")[2] for line in asked.output.split()] == ["I", "II", "III"]


def test_a_word_of_the_glossary_needs_no_regime():
    """`explain B`; with a regime the word is a quantity again."""
    for word in ("B", "mechanism b"):
        said = " ".join(run("explain", word).output.splitlines()[-1].split())
        assert said.startswith(f"B {TITLES['B']}. sum_i W3_i W3_i^T g: ")
    assert DESIDERATA["mu-2"] in run("explain", "mu-2", "--format", "json").output
    assert run("explain", "B", "--regime", "I").exit_code == run("explain", "nothing").exit_code == 2


def test_a_function_of_python_is_no_verb_and_says_so():
    said = {name: run(name, "--help").stderr for name in ("plan", "formula", "drive")}
    assert (
        "plan is a Python function: from scaling_algebra import plan (beside it here: recipe --model, check-model)"
        in said["plan"]
    )
    assert "from scaling_algebra import formula. known" in said["formula"] and "did you mean 'derive'?" in said["drive"]


DEFAULT = {"SIGINT": "signal.default_int_handler"}


def test_help_says_which_options_a_question_of_a_verb_takes():
    told = " ".join(run("explain", "--help").stdout.split())
    assert "Of the options below it accepts --optimizer, --epsilon, --architecture," in told
    assert "Of the options below it accepts --source, --format," in " ".join(run("audit", "--help").stdout.split())


@pytest.mark.parametrize(
    ("name", "module"),
    [
        *(("SIGINT", "waiting"), ("SIGINT", "click"), ("SIGINT", "call"), ("SIGHUP", "call")),
        *(("SIGTERM", "commands.derive"), ("SIGTERM", "scaling_algebra.commands.derive")),
    ],
)
def test_a_signal_while_modules_are_loaded_ends_in_one_line(name, module):
    """Sent where the module is asked for, or before the command begins, so that no clock decides when it comes."""
    code = (
        "import builtins, importlib, os, signal, sys\n"
        f"signal.signal(signal.{name}, {DEFAULT.get(name, 'signal.SIG_DFL')})\n"  # the tests may run with it ignored
        f"def sent(usual): return lambda x, *rest, **named: (x == {module!r} and os.kill(os.getpid(), signal.{name}), "
        "usual(x, *rest, **named))[1]\n"
        "builtins.__import__, importlib.import_module = sent(builtins.__import__), sent(importlib.import_module)\n"
        "from scaling_algebra.__main__ import run\n"
        f"if {module!r} == 'call':\n"
        "    import click\n"
        f"    click.Group.__call__ = lambda *_, **__: os.kill(os.getpid(), signal.{name})\n"
        "sys.argv = ['scalecalc', 'derive', '--regime', 'I']\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    sent = module != "commands.derive"  # the negative control: nothing has that name, and the answer comes
    assert (done.returncode, done.stderr) == ((130, "scalecalc: interrupted\n") if sent else (0, ""))


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (SystemExit(0), 2, "ended the program with exit code 0"),
        (SystemExit("agrees"), 2, "ended the program with exit code 'agrees'"),
        (MemoryError(), 2, "not enough memory"),
        (OSError(5, "Input/output error"), 2, "Input/output error"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2, "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 2, "not enough memory"),
        (Exception(b"out of memory"), 2, "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), 2, "too deep"),
        (RuntimeError("a fault"), 70, "internal error"),
    ],
)
def test_whatever_is_raised_is_one_line(raised, code, words, monkeypatch):
    def fails(*_):
        raise raised

    monkeypatch.setattr(Verbs, "_run", fails)
    result = run("derive", "--regime", "I")
    assert result.exit_code == code and words in result.output and result.output.count("\n") == 1


def test_code_that_was_called_may_close_the_output(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    with pytest.raises(UsageError, match="closed the standard output"), guard_foreign_code("it"):
        sys.stdout.close()
    print("nobody hears this, and nothing breaks")


def test_what_called_code_prints_goes_to_stderr(capsys):
    with guard_foreign_code("it"):
        print("loading")
    print("answer")
    assert capsys.readouterr() == ("answer\n", "loading\n")


def test_whatever_called_code_raises_is_one_line():
    with pytest.raises(UsageError, match="it raises GeneratorExit"), guard_foreign_code("it"):
        raise GeneratorExit


def test_threads_get_the_answers_that_one_gets():
    """One waits for the other: the engine's caches are of one thread. Questions that no other test asks."""
    asked = [{"ray": f"N={k}", "optimizer": o, "architecture": "mlp"} for k in (3, 5) for o in ("sgd", "adam", "lion")]

    def answer(question):
        return str(scaling_algebra.derive(**question))

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(answer, asked * 2))
    assert found == [answer(question) for question in asked] * 2


def test_what_was_searched_and_not_proved_is_undecided():
    """Optimizers that divide by unknown sizes are beyond proofs: exit code 3, in text and in JSON. A search ends at the
    first demand that is undecided, without a proof."""
    asked = ("--ray", "N=1,N_e=0,M=1/2", "--optimizer", "signsgd", "--parameterization", "mssp")
    result = run("derive", *asked)
    assert result.exit_code == 3 and result.stdout == "" and result.stderr.count("\n") == 1
    assert "found no MSSP" in result.stderr and "UNDECIDED: the search found none, which is no proof" in result.stderr
    data = run("derive", *asked, "--format", "json")
    record = json.loads(data.stdout)
    assert data.exit_code == 3 and record["verdict"] == "UNDECIDED" and record["unique"] is None
    assert run("signals", *asked).exit_code == 3
    early = run("derive", "--architecture", "stack2", "--regime", "III", "--optimizer", "sgd")
    said = r"give --effort or --prove to try a proof\): mu-\d: \S+ at t=\d is undecided; --effort searches longer$"
    assert early.exit_code == 3 and re.search(said, early.stderr.strip())


def test_what_is_proved_not_to_exist_is_exit_1():
    """The same where proofs reach (K = M); what exists besides is printed all the same."""
    result = run("derive", "--ray", "N=1,N_e=1/2,M=3/2", "--optimizer", "sgd", "--format", "json")
    mup, mssp = json.loads(result.stdout)
    assert result.exit_code == 1 and "proved: none exists" in result.stderr
    assert mup["tensors"] and mssp["verdict"] == "IMPOSSIBLE" and mssp["unique"] is False


def test_a_negligible_epsilon_is_taken_where_a_derived_one_fails(tmp_path):
    """Low rank beside a layer, all trained: proved with a derived epsilon, that is, where it is asked for."""
    (tmp_path / "low.toml").write_text(
        'axes = { a = "N", b = "N", x = "D", r = "R" }\nequations = """\nh0[a] = E[a,x] data[x]\nw[b] = W[b,a] h0[a]\n'
        'z[r] = A[r,a] h0[a]\nl[b] = B[b,r] z[r]\nh1[b] = h0[b] + w[b] + l[b]\nf = U[b] h1[b]\n"""\n'
    )
    asked = ("derive", "--network", str(tmp_path / "low.toml"), "--ray", "N=1", "--optimizer", "adam")
    found, derived = run(*asked), run(*asked, "--epsilon", "derived")
    assert found.exit_code == 0 and "the numbers below have --epsilon negligible" in found.stderr
    assert derived.exit_code == 1 and "proved with a derived epsilon: none exists" in derived.stderr


def test_json_is_only_json():
    both = json.loads(run("derive", "--regime", "III", "--format", "json").output)
    assert [d["parameterization"] for d in both] == ["mup", "mssp"]
    assert json.loads(run("signals", "--regime", "I", "--format", "json").output)["steps"] == [0, 1, 2]


def test_claims_of_mup_are_refuted_under_sp():
    """Standard parameterization must not pass as muP."""
    trained = "verify --regime I --optimizer sgd --parameterization sp --sizes 32,64,128,256 --seeds 32 --steps 1"
    result = run(*trained.split(), "--claim", "h1.change@1=0", "--claim", "psi.effective@1=0")
    assert result.exit_code == 1 and result.output.count("REFUTED") >= 2


def test_derive_imports_no_torch_and_no_numpy():
    code = (
        "import sys; from scaling_algebra.cli import main\n"
        "try: main(['derive', '--regime', 'III'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'scipy', 'sympy', 'scaling_algebra.verify'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_docstring_examples():
    """Of every module that has some."""
    tried = 0
    for _, name, package in pkgutil.walk_packages(scaling_algebra.__path__, "scaling_algebra."):
        there = name if package else name.rpartition(".")[0]
        source = Path(importlib.import_module(there).__path__[0], "__init__" if package else name.rpartition(".")[2])
        source = source.with_suffix(".py")  # what is compiled has one, too, its library none
        if source.exists() and ">>>" in source.read_text(encoding="utf-8"):
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0 and result.attempted > 0, name
            tried += 1
    assert tried >= 6


def test_called_code_that_ends_the_process_is_exit_2(monkeypatch):
    """Wherever a verb calls it, and whatever its code; a process of its own may end so."""
    monkeypatch.setattr("scaling_algebra.commands.derive.derive", lambda *_, **__: sys.exit(0))
    result = run("derive", "--regime", "II", "--optimizer", "sgd")
    assert (
        result.exit_code == 2
        and "the user's code ended the program with exit code 0; let it return instead" in result.stderr
    )
    with forbid_exit():
        if not (child := os.fork()):
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
