"""A pytest plugin with the fixture ``coordinate_check``.

The fixture trains a model at several sizes. If the measured exponents do not agree with the derived ones, the test
fails, and the report is in its output. The rest of this package is imported only when a check runs. Read next:
``verify/apply/checking.py`` (requirements on a model).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def coordinate_check() -> Callable[..., Any]:
    """Provides ``coordinate_check(build, base, target, ...)``, which takes the arguments of ``check_model``.

    It returns the report, or fails the test. ``build`` may also be ``"FILE.py:NAME"`` of a file that defines
    ``SCALING``.
    """
    return run_check


def run_check(build: Callable[..., Any] | str, *sizes: Any, **options: Any) -> Any:
    """Runs ``check_model``, prints its report, and returns it if the check agrees.

    Raises:
        pytest.fail.Exception: the check is refuted or inconclusive, or the model does not meet the requirements.
    """
    __tracebackhide__ = True
    from scaling_algebra import Infeasible, UsageError, check_model

    failure, report = "", None
    try:
        if isinstance(build, str):
            from scaling_algebra.verify.apply.loading import load_build

            build, options = load_build(build, options)
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
