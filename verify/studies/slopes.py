"""Measured slopes of single quantities of any configuration: the measured voice of the audit.

Read next: ``measuring/runs.py`` (trains), ``fit.py`` (slopes and intervals).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.verdicts import fit_of
from scaling_algebra.verify.measuring.runs import measure

Question = tuple[Derivation, str, int]
"""(configuration, quantity, number of updates); ``*`` in a quantity stands for the largest that fits."""


def slopes(questions: Sequence[Question]) -> list[str]:
    """Slope and 95 % interval as text for each question, or why there is none.

    Every configuration is trained once, with the default sizes and seeds: under a minute on two cores.
    """
    texts = [""] * len(questions)
    for d in {id(d): d for d, _, _ in questions}.values():
        members = [(k, name, step) for k, (derivation, name, step) in enumerate(questions) if derivation is d]
        products = [name for _, name, _ in members if name.startswith("<")]
        steps = max(step for *_, step in members)
        run = measure(d, steps=steps, products=products)
        for k, name, step in members:
            texts[k] = _slope(run, name, step)
    return texts


def _slope(run: Measurement, quantity: str, step: int) -> str:
    names = [name for name, t in run.values if t == step and fnmatchcase(name, quantity)] or [quantity]
    measured = [name for name in names if (name, step) in run.values]
    if not measured:
        return f"{quantity} is not measured"
    name = max(measured, key=lambda n: float(np.sqrt(np.mean(run.values[n, step][-1] ** 2))))
    f = fit_of(run, name, step)
    where = f"{name} " if name != quantity else ""
    sizes = f"n = {min(run.sizes):g} to {max(run.sizes):g}"
    return f"{where}slope {f.slope:+.3f}, 95 % interval [{f.low:+.3f}, {f.high:+.3f}], {sizes}, {f.seeds} seeds or more"
