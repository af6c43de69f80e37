"""Every verb alike: help with examples that are understood, names that complete, formats by suffix, exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise

import click
import pytest
from click.shell_completion import ShellComplete

from scaling_algebra.cli import MODULES, VERBS, main
from scaling_algebra.commands.options import colour_verdicts, wrap_lines
from scaling_algebra.documents import suffixes
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.optimizers import OPTIMIZERS

from ..shared import scalecalc as run


def examples(verb):
    return re.findall(r"^  (scalecalc .*)$", command(verb).epilog, re.M)


def command(verb):
    return main.get_command(click.Context(main), verb)


def test_help_shows_every_verb_in_its_section():
    out = run("-h").output
    assert run("--help").output == out and run("--help").exit_code == 0
    for section, verbs in VERBS.items():
        part = out.partition(f"\n{section}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines() if re.match(r"  \w", line)] == list(verbs)


@pytest.mark.parametrize("verb", MODULES)
def test_help_of_every_verb_ends_with_examples_that_are_understood(verb, tmp_path, monkeypatch):
    """At least two, each with names and options that exist; no help is wider than a terminal or repeats a registry.
    Files of the reader's that they name are empty."""
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"(\w+\.py):", " ".join(examples(verb))):
        (tmp_path / name).touch()
    out = run(verb, "-h").output
    assert out.rstrip().splitlines()[-1].strip() == examples(verb)[-1]
    assert len(examples(verb)) >= 2 and max(map(len, out.splitlines())) <= 130
    assert "rmsprop" not in out and "routers-softmax" not in out
    for line in examples(verb):
        _, name, *rest = shlex.split(line)
        assert name == verb.split()[0]
        with command(verb).make_context(verb, rest):
            pass


@pytest.mark.parametrize("verb", MODULES)
def test_the_same_option_means_the_same_everywhere(verb):
    for option in command(verb).params:
        if option.name == "optimizer" and verb == "check-model":  # those that the model brings
            assert option.default not in OPTIMIZERS and "the one that build returns" in option.help
        elif option.name == "optimizer":
            assert option.default == ([DEFAULT_OPTIMIZER] if option.multiple else DEFAULT_OPTIMIZER)
        if option.name == "parameterization" and not option.multiple:
            assert option.default in (DEFAULT_PARAMETERIZATION, None) and (option.default or verb == "derive")
        if "--output" in option.opts:
            assert option.opts == ["-o", "--output"]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("derive --optimizer ad", "adamw"),
        ("derive --regime ", "III"),
        ("signals --architecture rou", "routers-softmax"),
        ("verify --parameterization ms", "mssp"),
        ("table --format la", "latex"),
        ("explain h3.A", "h3.A2.2"),
        ("verify --campaign q", "quick"),
        ("verify --device c", "cuda"),
    ],
)
def test_values_complete(line, value):
    *given, incomplete = line.split(" ")
    found = ShellComplete(main, {}, "scalecalc", "_SCALECALC_COMPLETE").get_completions(given, incomplete)
    assert value in {item.value for item in found}


@pytest.mark.parametrize("form", ["markdown", "json"])
def test_a_file_has_the_format_of_its_ending(form, tmp_path):
    file = tmp_path / f"d{suffixes()[form]}"
    result = run("derive", "--regime", "I", "--parameterization", "mup", "-o", str(file))
    assert result.exit_code == 0 and result.output == ""
    shown = run("derive", "--regime", "I", "--parameterization", "mup", "--format", form).output
    assert file.read_text(encoding="utf-8") == shown


def test_a_closed_pipe_is_exit_0():
    """As of `scalecalc list | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling_algebra", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0


def test_files_are_utf8_whatever_the_system_prefers(tmp_path):
    """A system whose own encoding is not UTF-8: what is read and written is all the same."""
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0"}
    file = tmp_path / "b1.md"
    code = f"from scaling_algebra.cli import main; main(['table', 'b1', '-o', {str(file)!r}])"
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "–" in file.read_text(encoding="utf-8")  # noqa: RUF001


def test_list_is_for_programs_too():
    names = json.loads(run("list", "--format", "json").output)
    kinds = "schema architecture axes regimes optimizers parameterizations architectures assumptions quantities"
    assert set(names) == set(kinds.split())
    words = json.loads(run("list", "--glossary", "--format", "json").output)
    assert set(words) == {"schema", "words", "parameterizations", "mechanisms", "desiderata", "quantities"}
    assert {"mu-1", "mu-2", "mu-3", "MSSP-3 forward"} <= set(words["desiderata"])


@pytest.mark.parametrize("width", [60, 80, 130])
def test_text_fits_the_terminal(width):
    """Nothing is lost, and the last column goes on below itself."""
    text = run("list").output
    lines = wrap_lines(text, width).splitlines()
    assert max(map(len, lines)) <= width and " ".join(text.split()) == " ".join("\n".join(lines).split())
    first, second = next((a, b) for a, b in pairwise(lines) if a.startswith("  sp-feature"))
    assert len(second) - len(second.lstrip()) == first.index("SP with")


def test_verdicts_have_colours_unless_they_are_not_wanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colour_verdicts("psi  REFUTED  0 refuted") == "psi  \x1b[31mREFUTED\x1b[0m  0 refuted"
    monkeypatch.setenv("NO_COLOR", "1")
    assert colour_verdicts("psi  REFUTED") == "psi  REFUTED"
