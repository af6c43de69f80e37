"""docs/json.md names every key that ``--format json`` prints, and no other: sections against their commands."""

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main

from .pages import ROOT, cut

PAGE = ROOT / "docs" / "json.md"
SECTIONS = {
    part.split("\n", 1)[0]: part for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
}


def paths(value, at=()):
    """Every key of a JSON value, with the keys on the way to it; ``[]`` is a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key)
            yield from paths(inner, (*at, key))
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, (*at, "[]"))


def documented(section):
    """The keys of a section as tuples of names, those on the way to them and the head's included.

    A line has keys with commas between them; those inside them stand below, further right.
    """
    keys, above = {("schema",)} if section != "Head" else set(), {}
    for block in re.findall(r"^```text\n(.*?)^```$", SECTIONS[section], re.M | re.S):
        for line in block.splitlines():
            names = line.partition(": ")[0].strip().split(", ")
            depth = len(line) - len(line.lstrip())
            above[depth + 2] = [
                (*outer, *(part for name in key.split(".") for part in re.findall(r"\[\]|[^\[\]]+", name)))
                for outer in (above[depth] if depth else [()])
                for key in names
                if key != "(head)"
            ]
            keys |= {key[:k] for key in above[depth + 2] for k in range(1, len(key) + 1) if key[k - 1] != "[]"}
            keys |= documented("Head") if "(head)" in names else set()
    return keys


def matches(key, path):
    """Whether a documented key is this path: ``{name}`` is any one name, ``**`` all that is below."""
    if key[-1] == "**":
        return len(path) >= len(key) and matches(key[:-1], path[: len(key) - 1]) if key[:-1] else True
    return len(key) == len(path) and all(k == p or (k[0] == "{" and p != "[]") for k, p in zip(key, path, strict=True))


def commands(section):
    return [c for b in cut(PAGE) if b.language == "bash" and b.text in SECTIONS[section] for c in b.commands()]


@pytest.mark.parametrize("section", [s for s in SECTIONS if commands(s)])
def test_keys_are_those_of_the_page(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = set()
    for command in commands(section):
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        found |= set(paths(json.loads(result.stdout)))
    compare(section, found)
    if (kept := tmp_path / "run" / "report.json").exists():
        compare("report.json", set(paths(json.loads(kept.read_text(encoding="utf-8")))))


def compare(section, found):
    """The keys that were found against those that are documented."""
    keys = documented(section)
    unnamed = {path for path in found if not any(matches(key, path) for key in keys)}
    unseen = {key for key in keys if not any(matches(key, path) for path in found)}
    assert not unnamed and not unseen, (section, sorted(unnamed), sorted(unseen))


def test_every_verb_that_prints_json_is_documented():
    verbs = {
        name for name in main.list_commands(None) if any(p.name == "form" for p in main.get_command(None, name).params)
    }
    assert verbs <= {word for name in SECTIONS for word in name.replace(",", "").split()}


def test_a_missing_key_would_be_seen():
    assert (
        not matches(("a", "b"), ("a", "c"))
        and matches(("a", "{x}"), ("a", "c"))
        and matches(("a", "**"), ("a", "b", "c"))
    )
    assert not matches(("a", "{x}"), ("a", "[]")) and not matches(("a",), ("a", "b"))
