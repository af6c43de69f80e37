"""A plugin of pytest: ``def test_scaling(coordinate_check)``.

A check that does not agree fails the test; its report is what the test printed. Nothing of this package but this file
is imported before a check runs. Read next: ``verify/apply/checking.py`` (what a model must be).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def coordinate_check() -> Callable[..., Any]:
    """``coordinate_check(build, base, target, ...)``, with the arguments of ``check_model``: its report, or a failure.

    Instead of ``build``: ``"FILE.py:NAME"``, with ``SCALING`` beside it.
    """
    return judged


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
