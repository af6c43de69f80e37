"""The suite: what its lanes may take, what it measured at length, and what `durations.json` and the evidence say."""

import importlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from . import lanes
from .measure import evidence


def test_all_tests_and_the_fast_ones_keep_within_their_budgets():
    for kind, budget in lanes.BUDGETS.items():
        assert sum(entry[kind] for entry in lanes.recorded().values()) <= budget, kind


def test_no_test_takes_long():
    long = {f"{file}::{name}": x for file, entry in lanes.recorded().items() for name, x in entry["long"].items()}
    assert {name: x for name, x in long.items() if x > lanes.LONGEST} == {}


def test_what_is_recorded_is_there_and_what_is_there_is_recorded(request):
    """Of the files that were collected; `pytest FILE... --record-durations` records them again."""
    assert [file for file in lanes.recorded() if not (lanes.ROOT / file).is_file()] == []
    assert request.config.pluginmanager.get_plugin("lanes").gone() == ([], [])


@pytest.mark.parametrize("test", evidence.measurements(), ids=lambda x: x.stem)
def test_what_was_measured_has_evidence(test, record_property):
    """It is there, whole and green; what is older than its code is named in one line at the end, and can be renewed."""
    importlib.import_module(f"tests.measure.{test.stem}")
    if evidence.stale(test):
        record_property("stale", test.stem.removeprefix("test_"))


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A file of measurements of one module, and what keeps its evidence."""
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "KEPT", tmp_path / "kept")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x.py").write_text("x = 1\n")
    test = tmp_path / "test_x.py"
    test.write_text('DEPENDS = ("code",)\n\n\ndef test_a(): pass\n')
    return test


def test_evidence_is_older_than_the_code_when_the_code_moves(measured):
    evidence.keep(measured, {"test_a[1]": {"outcome": "passed", "networks": 4000}})
    assert evidence.kept(measured)["tests"]["test_a[1]"]["networks"] == 4000
    assert not evidence.stale(measured)
    (measured.parent / "code" / "x.py").write_text("x = 2\n")
    assert evidence.stale(measured)


@pytest.mark.parametrize(
    "found, said",
    [
        (None, "no evidence"),
        ({}, "is not evidence"),
        ({"test_b": {"outcome": "passed"}}, "nothing of test_a"),
        ({"test_a": {"outcome": "failed"}}, "test_a did not pass"),
    ],
)
def test_evidence_that_is_missing_or_red_is_refused(measured, found, said):
    if found is not None:
        evidence.keep(measured, found)
    with pytest.raises(ValueError, match=said):
        evidence.kept(measured)


def ran(folder, *options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", "--rootdir", str(folder)]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([*command, *options], cwd=folder, env=environ, capture_output=True, text=True)


@pytest.fixture
def suite(tmp_path):
    """A suite of three tests with these lanes: two that take nearly a second, and one that does not."""
    folder = tmp_path / "tests"
    (folder / "measure").mkdir(parents=True)
    plugin = (lanes.ROOT / "tests" / "lanes.py").read_text()
    for name, value in {"WARM": (), "SPARE": 1.0}.items():
        plugin = re.sub(rf"^{name} = .*$", f"{name} = {value}", plugin, flags=re.MULTILINE)
    (folder / "lanes.py").write_text(plugin)
    (folder / "conftest.py").write_text(
        "from . import lanes\n\n\n"
        "def pytest_addoption(parser):\n    lanes.options(parser)\n\n\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(lanes.Lanes(config))\n"
    )
    (folder / "test_x.py").write_text(
        "import time\nimport functools\n\n\n@functools.cache\ndef spend():\n    end = time.process_time() + 0.9\n"
        "    while time.process_time() < end:\n        pass\n\n\n"
        "def test_first(): spend()\ndef test_second(): spend()\ndef test_quick(): pass\n"
    )
    (folder / "measure" / "test_y.py").write_text("def test_long(): assert False\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return tmp_path


def test_a_test_that_takes_long_is_named_until_it_is_recorded_and_fails_nothing(suite):
    found = ran(suite, "--lane", "check")
    assert found.returncode == 0 and "slow for `--lane check`" in found.stdout, found.stdout + found.stderr
    assert re.search(r"tests/test_x.py::test_first: (0\.9|1\.\d) s", found.stdout), found.stdout
    assert "test_second:" not in found.stdout
    found = ran(suite, "--record-durations", "-n", "2")
    assert found.returncode == 0 and "3 passed" in found.stdout, found.stdout + found.stderr
    entry = json.loads((suite / "tests" / "durations.json").read_text())["tests/test_x.py"]
    assert set(entry["long"]) == {"test_first", "test_second"}, "a cache helps no other test"
    assert entry["fast"] < 0.5 < 1.7 < entry["all"]
    found = ran(suite, "--lane", "check")
    assert found.returncode == 0 and "1 passed, 2 deselected" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_old_evidence_and_what_is_skipped_are_a_line_each(suite, workers):
    """A reason that is listed passes, and is told; another one, or more of it, fails."""
    old = "@pytest.mark.parametrize('x', 'ab')\ndef test_y(x, record_property): record_property('stale', x)\n"
    text = "import pytest\n{}@pytest.mark.parametrize('x', range({}))\ndef test_z(x): pytest.skip('{}')\n"
    for other, count, why, code in ((old, 1, "this system lets no test mount a disk", 0), ("", 2, "no luck", 1)):
        (suite / "tests" / "test_z.py").write_text(text.format(other, count, why))
        found = ran(suite, "-n", workers, "tests/test_z.py")
        assert found.returncode == code and f"skipped: {count}: {why}" in found.stdout, found.stdout
        assert ("not listed in tests/lanes.py: no luck" in found.stdout) == bool(code)
        assert found.stdout.count("evidence older than its code (make measure renews it): a, b") == 1 - code


def test_a_record_without_a_test_is_seen():
    plugin = lanes.Lanes(
        SimpleNamespace(option=SimpleNamespace(lane="test", record_durations=False, keyword="", markexpr=""), args=[])
    )
    plugin.known = {"tests/a.py": {"long": {"test_x": 1.0, "test_y": 1.0}}, "tests/c.py": {"long": {"test_z": 1.0}}}
    plugin.collected = {"tests/a.py::test_x", "tests/b.py::test_w"}
    assert plugin.gone() == (["tests/a.py::test_y"], ["tests/b.py"])


def test_durations_are_recorded_of_whole_files(suite):
    found = ran(suite, "--record-durations", "-k", "quick")
    assert found.returncode == 4 and "records whole files" in found.stderr
