"""Every example of README and guide is real: commands run, output is what they print, Python is a doctest."""

import doctest
import re
import shlex
from functools import cache

import pytest

from scaling_algebra.cli import main

from ..shared import scalecalc
from .pages import ROOT, blocks, sessions, write_files

MEASURES = {"verify", "study", "check-model"}
LONG = (
    "scalecalc check-model",
    "scalecalc derive --architecture mixtral",
    "scalecalc derive --architecture deepseek-v3",
    "scalecalc study clusters",
    "scalecalc study transfer",
)
"""Long commands: `tests/measure/test_examples.py` runs them."""
OWN_TESTS = ("real-models.md",)
"""Pages whose examples other tests run: `tests/measure/test_real_models.py`."""


@cache
def run(command):
    """Exit code and lines of one command; a command that several pages show runs once."""
    result = scalecalc(*shlex.split(command)[1:])
    return result.exit_code, result.output.splitlines()


def shows(shown, printed):
    """Whether the lines shown are those printed, where ``...`` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def plain(lines, command):
    """Lines as they are compared: measured numbers differ between machines; blanks and empty lines do not count."""
    if MEASURES & set(shlex.split(command)):
        lines = [re.sub(r"[-+]?\d+\.\d+", "#", line) for line in lines]
    return [line for line in (re.sub(r"--+|  +", " ", line).rstrip() for line in lines) if line]


def examples(long):
    """The blocks that take long, or the others."""
    found = [b for b in blocks("console") if b.page.name not in OWN_TESTS]
    found = [b for b in found if any(c.startswith(LONG) for c in b.commands()) == long]
    return [pytest.param(b, id=str(b)) for b in found]


def compare(block, folder):
    """Commands exit with 0, unless ``$ echo $?`` below them shows another code."""
    write_files(block.page, folder)
    examples = block.examples()
    for k, (command, shown) in enumerate(examples):
        if command == "echo $?":
            continue
        code, printed = run(command)
        after = examples[k + 1] if k + 1 < len(examples) else ("", [])
        expected = int(after[1][0]) if after[0] == "echo $?" else 0
        assert code == expected, "\n".join(printed)
        right = shows(plain(shown, command), plain(printed, command))
        assert right, "\n".join([command, "shown:", *shown, "printed:", *printed])


@pytest.mark.parametrize("block", examples(long=False))
def test_what_is_shown_is_what_is_printed(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare(block, tmp_path)


@pytest.mark.parametrize("block", [b for b in blocks("bash", "text") if b.commands()], ids=str)
def test_commands_that_are_not_run_are_understood(block, tmp_path, monkeypatch):
    """Long runs: their names and options are checked. Files of the reader's that the page does not show are empty."""
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"(\w+\.py):", block.text):
        (tmp_path / name).touch()
    write_files(block.page, tmp_path)
    for command in block.commands():
        verb, *rest = shlex.split(command.split(" #")[0])[1:]
        known = main.get_command(None, verb)
        assert known is not None, command
        given = known.make_context(verb, rest).params
        if given.get("campaign"):
            from scaling_algebra.verify.campaigns.plans import load_campaign

            assert load_campaign(given["campaign"])


@pytest.mark.parametrize("block", [*blocks("python"), *sessions()], ids=str)
def test_python_is_a_doctest(block, tmp_path, monkeypatch):
    if "import jax" in block.text:
        pytest.importorskip("flax", reason="needs jax, flax and optax")
    monkeypatch.chdir(tmp_path)
    write_files(block.page, tmp_path)
    test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0 and runner.tries > 0


def test_every_verb_has_an_example():
    shown = {shlex.split(c)[1] for b in blocks("console", "bash", "text") for c in b.commands()}
    assert shown >= set(main.list_commands(None))


def test_make_has_the_targets_that_are_named():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {t for b in blocks("bash") for t in re.findall(r"^make ([a-z]+)", b.text, re.M)}
    assert named and named <= targets


def test_a_wrong_example_is_seen():
    """Negative control: lines that are missing, out of order, or left out without ``...``."""
    printed = ["a", "b", "c", "b", "d"]
    for right in (
        ["a", "...", "d"],
        ["...", "b", "..."],
        ["...", "b", "d"],
        printed,
        ["..."],
        ["a", "...", *printed[1:]],
    ):
        assert shows(right, printed), right
    for wrong in (["a", "c", "..."], ["...", "c", "a", "..."], ["a", "b"], ["b", "..."], ["...", "c"], ["e"], []):
        assert not shows(wrong, printed), wrong
