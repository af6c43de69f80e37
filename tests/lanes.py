"""Which tests a lane runs, by recorded time, and the plugin that records it.

`durations.json` says of each file of tests what CPU time all of it takes, what its fast tests take, and which tests
take long (setup, the fixtures they use and the call, with every cache of the program empty, so that no order matters).
"""

import gc
import json
import os
import sys
from collections import Counter, defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "durations.json"
LANES = ("check", "test", "measure")
MEASURE = Path(__file__).resolve().parent / "measure"
FAST = 0.5
"""CPU seconds a test of `check` may take."""
LISTED = 0.5
"""CPU seconds from which a test is listed by name; what is not listed is held to `FAST` when it runs in `check`."""
SPARE = 2.5
"""How much slower the machine may be that checks, with what a first import takes."""
BUDGETS = {"all": 25 * 60.0, "fast": 240.0}
"""CPU seconds of all tests and of the fast ones, as they are recorded with every cache empty. A run shares its caches:
there all took 995 s of CPU time, and ten minutes by the clock; the fast ones have two minutes of two cores."""
LONGEST = 35.0
FIRST = (
    *("tests/tables", "tests/docs"),
    *(f"tests/engine/test_{name}.py" for name in ("phases", "theorems", "recipe", "brief")),
)
"""Run first, by one worker: they ask the same questions, whose answers are kept while a process lasts."""
MEMORY, MORE = 1.5 * 2**30, 0.4 * 2**30
"""Bytes of a process from which kept answers are forgotten before the next test, and by which it must have grown since:
what is freed is not given back to the system, and answers that are forgotten before each test serve none."""
SKIPPED = {
    "no chromium or chrome on PATH": 12,
    "the assets of the page cannot be had": 12,
    "needs pdflatex": 40,
    "a LaTeX package is missing here": 40,
    "this system lets no test mount a disk": 1,
    "needs jax": 2,
}
"""Why a test may be skipped, by the beginning of the reason, and how many at most; more is a failure."""
WARM = ("z3", "sympy", "torch")
"""Imported before the first test of `check`, so that no test pays for them."""


def recorded() -> dict[str, dict]:
    """File of tests -> CPU seconds of `all` its tests and of the `fast` ones, and the tests that take `long`."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def seconds(node: str, known: dict[str, dict]) -> float | None:
    """The recorded CPU time of a test; None where it is not listed."""
    file, _, name = node.partition("::")
    return known.get(file, {}).get("long", {}).get(name)


def cpu() -> float:
    """CPU seconds of this process and of the ones it started."""
    return sum(os.times()[:4])


def resident() -> int:
    """Bytes of memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def forget() -> None:
    """Empty every cache of the program and of the tests."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("scaling_algebra", "tests"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
                    value.cache_clear()


def written(reports: dict[str, dict[str, tuple[float, float]]]) -> dict[str, dict]:
    """What to keep of the measured times: file -> test -> (CPU seconds spent, CPU seconds alone)."""
    found = {file: entry for file, entry in recorded().items() if (ROOT / file).exists()}
    for file, tests in reports.items():
        found[file] = {
            "all": round(sum(spent for spent, _ in tests.values()), 1),
            "fast": round(sum(spent for spent, alone in tests.values() if alone <= FAST), 1),
            "long": {name: round(alone, 1) for name, (_, alone) in sorted(tests.items()) if alone > LISTED},
        }
    return dict(sorted(found.items()))


def options(parser) -> None:
    """The options of `pytest` that choose a lane and record it."""
    parser.addoption("--lane", choices=LANES, default="test", help="fast tests, all but measurements, or all")
    parser.addoption("--record-durations", action="store_true", help="write the CPU times of the files that run")


class Lanes:
    """Selects the tests of a lane, measures each and, if asked to, records the times."""

    def __init__(self, config):
        self.lane, self.record = config.option.lane, config.option.record_durations
        if self.record and (config.option.keyword or config.option.markexpr or self.lane == "check"):
            raise pytest.UsageError("--record-durations records whole files: no -k, no -m, no --lane check")
        if self.record and any("::" in arg for arg in config.args):
            raise pytest.UsageError("--record-durations records whole files: name no single test")
        self.known, self.late, self.stale, self.most = recorded(), [], [], MEMORY
        self.fixtures, self.reports, self.skipped, self.collected = {}, defaultdict(dict), Counter(), set()
        self.whole = not (config.option.keyword or config.option.markexpr or any("::" in x for x in config.args))
        self.worker = hasattr(config, "workerinput")

    def pytest_ignore_collect(self, collection_path, config):
        named = any(Path(arg.partition("::")[0]).resolve().is_relative_to(MEASURE) for arg in config.args)
        return True if collection_path == MEASURE and self.lane != "measure" and not named else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        self.collected = {item.nodeid for item in items} if self.whole else set()
        items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
        if self.lane == "check":
            out = [x for x in items if (seconds(x.nodeid, self.known) or 0) > FAST or self._not_yet(x)]
            config.hook.pytest_deselected(items=out)
            items[:] = [x for x in items if x not in set(out)]

    def _not_yet(self, item):
        """Marked by hand, in a file without recorded times: to go when every file has them."""
        return item.nodeid.partition("::")[0] not in self.known and item.get_closest_marker("slow")

    def pytest_collection_finish(self, session):
        for name in WARM if self.lane == "check" else ():
            if find_spec(name):
                import_module(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        began = cpu()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.fixtures[fixturedef.argname] = cpu() - began

    def pytest_fixture_post_finalizer(self, fixturedef):
        self.fixtures.pop(fixturedef.argname, None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if self.record or resident() > self.most:
            forget()
            gc.collect()
            self.most = max(MEMORY, resident() + MORE)
        item.spent, item.made = 0.0, dict(self.fixtures)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        return (yield from self._timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        return (yield from self._timed(item))

    def _timed(self, item):
        began = cpu()
        try:
            return (yield)
        finally:
            item.spent += cpu() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "call":
            alone = item.spent + sum(item.made.get(name, 0.0) for name in item.fixturenames)
            report.user_properties.append(("cpu", (item.spent, alone)))
        return report

    def pytest_collectreport(self, report):
        self._note_skip(report)

    def _note_skip(self, report):
        if report.skipped and not self.worker and not hasattr(report, "wasxfail"):
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_runtest_logreport(self, report):
        self._note_skip(report)
        noted = dict(report.user_properties) if report.when == "call" else {}
        times = noted.get("cpu")
        if times is None or self.worker:
            return
        self.stale += [noted["stale"]] if "stale" in noted else []
        file, _, name = report.nodeid.partition("::")
        self.reports[file][name] = tuple(times)
        if self.lane == "check" and times[0] > SPARE * FAST and seconds(report.nodeid, self.known) is None:
            self.late.append(f"{report.nodeid}: {times[0]:.1f} s")

    def pytest_sessionfinish(self, session):
        if self.beyond() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.record and not self.worker:
            RECORDED.write_text(json.dumps(written(self.reports), indent=1) + "\n")

    def beyond(self):
        """Reasons for which more tests were skipped than is listed."""
        return [
            why for why, n in self.skipped.items() if n > next((m for x, m in SKIPPED.items() if why.startswith(x)), 0)
        ]

    def gone(self):
        """Names of records without a test, and files of tests without a record; of what was collected whole."""
        files = {node.partition("::")[0] for node in self.collected}
        named = {f"{file}::{name}" for file in files & set(self.known) for name in self.known[file]["long"]}
        return sorted(named - self.collected), sorted(files - set(self.known))

    def pytest_terminal_summary(self, terminalreporter):
        """Says what was skipped, what is slow and what is old; a machine may be slower than the one that recorded."""
        if self.skipped:
            told = "; ".join(f"{n}: {why}" for why, n in self.skipped.most_common())
            more = f"; not listed in tests/lanes.py: {', '.join(self.beyond())}" if self.beyond() else ""
            terminalreporter.write_line(f"skipped: {told}{more}")
        if self.late:
            terminalreporter.section("slow for `--lane check`: make them faster, or pytest FILE --record-durations")
            for line in self.late:
                terminalreporter.write_line(line)
        if self.stale:
            names = ", ".join(sorted(self.stale))
            terminalreporter.write_line(f"evidence older than its code (make measure renews it): {names}")
