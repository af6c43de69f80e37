"""Measures predicted exponents on real torch models; the only part of the project that imports torch.

``measure`` trains, ``judge`` compares; ``judge`` also reads what somebody else logged (``judging/logged.py``).
Importing this package imports neither torch nor numpy; the first use does.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling_algebra.verify.judging.claims import Claim
    from scaling_algebra.verify.judging.fit import Verdict
    from scaling_algebra.verify.judging.measurement import Measurement
    from scaling_algebra.verify.judging.report import Report
    from scaling_algebra.verify.judging.verdicts import judge
    from scaling_algebra.verify.measuring.runs import measure

__all__ = ["Claim", "Measurement", "Report", "Verdict", "judge", "measure"]

_HOMES = {
    "Claim": "judging.claims",
    "Verdict": "judging.fit",
    "Measurement": "judging.measurement",
    "Report": "judging.report",
    "judge": "judging.verdicts",
    "measure": "measuring.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if isfunction(value):
        from scaling_algebra.arguments import check_arguments

        value = check_arguments(value)
    globals()[name] = value
    return value
