"""Foreign code that leaves the process: exit code 2 and one line, never success without an answer."""

import signal
import subprocess
import sys

import pytest

from scaling_algebra.supervision import find_foreign_code

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the parent waits for signals as Linux tells of them")
RUN = """
import atexit, ctypes, os, posix, signal, sys, time
from scaling_algebra.supervision import supervise
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it starts with "&", nohup SIGHUP
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def run():
    {code}
    print("answer")
    sys.exit(3)
sys.exit(supervise("mine.py:build", run))
"""


def start(code):
    command = [sys.executable, "-c", RUN.format(code=code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("posix._exit(0)", "with exit code 0"),
        ("ctypes.CDLL(None)._exit(0)", "with exit code 0"),
        ("os.execv('/bin/true', ['true'])", "with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL"),
    ],
)
def test_code_that_leaves_the_process_is_exit_2(code, how):
    process = start(code)
    out, err = process.communicate()
    assert (out, process.returncode) == ("", 2)
    said = f"the code of mine.py:build ended the program before there was an answer, {how}; let it return instead"
    assert err == f"scalecalc: {said}\n"


@pytest.mark.parametrize(
    "code",
    ["pass", "atexit.register(os._exit, 0)", "atexit.register(print, 'more')", "os.fork() or time.sleep(5)"],
)
def test_the_exit_code_of_an_answer_is_what_the_child_reports(code):
    """Whatever happens after the answer, and whatever is left running."""
    process = start(code)
    assert process.stdout.readline() == "answer\n" and process.wait(30) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_child(number):
    process = start("print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(30) == 130


def test_the_child_ends_with_its_parent():
    process = start("print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.stdout.read() == ""  # to the end of the pipe, which the child had open


def test_the_command_line_notices_a_module_that_leaves(tmp_path):
    (tmp_path / "mine.py").write_text("import posix\nposix._exit(0)\n")
    command = [sys.executable, "-m", "scaling_algebra", "derive", "--model", "mine.py:build"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["check-model", "m.py:build"], "m.py:build"),
        (["recipe", "--model=hf:config.json"], "--model=hf:config.json"),
        (["verify", "--optimizer", "mine.toml"], "mine.toml"),
        (["derive", "--network", "mine.toml"], ""),
        (["list"], ""),
        ([], ""),
    ],
)
def test_the_argument_that_names_foreign_code(arguments, what):
    assert find_foreign_code(arguments) == what
