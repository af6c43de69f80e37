"""A plugin of pytest: ``def test_scaling(coordinate_check)``, and ``pytest --scaling-model mymodel.py:build``.

A check that does not agree fails the test; its report is what the test printed. Nothing of this package but this file
is imported before a check runs. Read next: ``verify/apply/checking.py`` (what a model must be).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MODEL = "scaling_model"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--scaling-model``, and the same in a configuration file, a line for each model."""
    help_ = "check that the rates of this model scale: FILE.py:NAME (repeatable)"
    group = parser.getgroup("scalecalc", "scaling exponents")
    group.addoption("--scaling-model", action="append", default=[], metavar="FILE.py:NAME", help=help_)
    parser.addini(MODEL, help_, type="linelist", default=[])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test for every model that is named."""
    named = [*config.getini(MODEL), *config.getoption(MODEL)]
    for name in dict.fromkeys(named):
        file, _, function = name.rpartition(":")
        node = f"{file}::{function}"
        items.append(ScalingItem.from_parent(session, name=f"scaling {name}", nodeid=node, model=name))


@pytest.fixture
def coordinate_check() -> Callable[..., Any]:
    """``coordinate_check(build, base, target, ...)``, with the arguments of ``check_model``: its report, or a failure.

    Instead of ``build``: ``"FILE.py:NAME"``, with ``SCALING`` beside it.
    """

    def check(build: Callable[..., Any] | str, *sizes: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        return judged(build, *sizes, **options)

    return check


class ScalingItem(pytest.Item):
    """The check of one model."""

    def __init__(self, *, model: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.model = model

    def runtest(self) -> None:
        judged(self.model)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.model.rpartition(":")[0], None, self.name


def judged(build: Callable[..., Any] | str, *sizes: Any, **options: Any) -> Any:
    """The report of a check that agrees, printed.

    Raises:
        pytest.fail.Exception: it is refuted or inconclusive, or the model keeps no contract: one line.
    """
    __tracebackhide__ = True
    from scaling_algebra import Infeasible, UsageError, check_model

    failure, report = "", None
    try:
        if isinstance(build, str):
            from scaling_algebra.verify.apply.loading import load

            build, options = load(build, options)
        report = check_model(build, *sizes, **options)
    except (UsageError, Infeasible) as error:
        failure = str(error)
    else:
        print(report)
        if report.exit_code:
            failure = f"{'REFUTED' if report.exit_code == 1 else 'INCONCLUSIVE'}: {report.closing}"
    if failure:
        pytest.fail(failure, pytrace=False)
    return report
