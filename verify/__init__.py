"""Measures every predicted exponent on real torch models; the only part of the project that imports torch.

``measure`` trains, ``judge`` compares. Importing this package does not import torch; the first use does.
Read next: ``model.py`` (what is trained), ``parts.py`` (what is measured), ``fit.py`` (slopes and verdicts);
``transfer.py`` (learning-rate sweeps) and ``coordinates.py`` (the Transformer's parts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, judge

if TYPE_CHECKING:
    from scaling_algebra.verify.measuring.runs import measure

__all__ = ["Claim", "Measurement", "Report", "Verdict", "judge", "measure"]


def __getattr__(name: str) -> Any:
    if name == "measure":
        from scaling_algebra.verify.measuring.runs import measure

        return measure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
