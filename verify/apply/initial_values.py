"""Finds the parameters of a module whose initial values are not random draws: ``find_structured``.

``Plan.init_`` draws the others again and keeps these. Read next: ``entries.py`` (the caller).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.verify.tracing.building import call_build
from scaling_algebra.verify.tracing.measuring import find_parameters

UNLIKELY = 1e-4
"""p-value below which initial values are taken to be no draw of one law centred at zero."""
ATOM, FEW = 0.05, 2
"""If more than this share of the entries, and more than this number of them, have the same value, they are no draw
of a continuous law."""
MOST = 2**16
"""Number of entries of a parameter that the tests use; the rest is ignored."""


def build_twin(build: Callable[[dict[str, int]], Any], sizes: Mapping[str, int]) -> nn.Module:
    """Builds a module under another seed than usual, even if ``build`` itself calls ``torch.manual_seed``, so that a
    comparison shows which initial values are random.
    """
    torch.manual_seed(1)
    with patch.object(torch, "manual_seed", lambda seed: torch.default_generator):
        return call_build(build, dict(sizes), seed=None)[0]


def find_structured(pairs: Sequence[tuple[nn.Module, nn.Module]], roles: Iterable[str]) -> set[str]:
    """Returns the names of the parameters whose initial entries are not independent draws from one distribution with
    mean zero.

    Args:
        pairs: modules, each built under two seeds. If nothing differs between the seeds, the module fixes its own seed,
            and the values are judged without the comparison.
        roles: names of parameters, in which ``*`` stands for the number of a layer.
    """
    starts = {role: [(a, b) for x, y in pairs for a, b in zip(*(find_parameters(m, role) for m in (x, y)), strict=True)]
              for role in roles}  # fmt: skip
    known = {role: pair for role, pair in starts.items() if pair and not any(x.is_meta for both in pair for x in both)}
    seeded = any(not torch.equal(a, b) for pair in known.values() for a, b in pair)
    joined = {role: [torch.cat([both[k].flatten() for both in pair]) for k in (0, 1)] for role, pair in known.items()}
    return {role for role, (first, second) in joined.items() if not is_drawn(first, second, seeded)}


def is_drawn(first: Tensor, second: Tensor, seeded: bool = True) -> bool:
    """Returns whether the entries of two initialisations of one parameter look like independent draws from one
    distribution with mean zero. Zeros everywhere count as such, too.

    Law: such draws have mean zero (t-test), no value that many entries share, no correlation between neighbouring
    entries or between the seeds (Pearson), and one distribution (Kolmogorov-Smirnov).

    Args:
        first: the entries under one seed.
        second: the entries under another seed.
        seeded: whether the seed should have an effect, so that the second must differ.
    """
    from scipy import stats

    x, y = (t.double().flatten()[:MOST].cpu().numpy() for t in (first, second))
    if not (x.any() or y.any()):  # zeros count as a fixed initial value
        return True
    most = max(int(np.unique(entries, return_counts=True)[1].max()) for entries in (x, y))
    if (seeded and np.array_equal(x, y)) or most > max(FEW, ATOM * len(x)):
        return False
    if len(x) < 3:  # too few to tell
        return True
    every = np.concatenate([x, y]) if seeded else x  # the same draw twice would halve the variance of its mean
    tests = [stats.ttest_1samp(every, 0), stats.pearsonr(x[1:], x[:-1]), stats.pearsonr(y[1:], y[:-1])]
    tests += [stats.pearsonr(x, y), stats.ks_2samp(x, y)] if seeded else []
    return all(not float(test.pvalue) < UNLIKELY for test in tests)
