"""Which parameters of a module start as random draws, and which start with structure: ``find_structured``.

``Plan.init_`` draws the first and leaves the second as they are. Read next: ``entries.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.verify.tracing.building import called
from scaling_algebra.verify.tracing.measuring import of_role

UNLIKELY = 1e-4
"""p-value below which a start is no draw of one law centred at zero."""
ATOM, FEW = 0.05, 2
"""A value that more entries share than this share of them, and than this number, is no draw of a continuous law."""
MOST = 2**16
"""Entries of a parameter that are tested."""


def build_twin(build: Callable[[dict[str, int]], Any], sizes: Mapping[str, int]) -> nn.Module:
    """Build a module under another seed than usual, also where ``build`` itself calls ``torch.manual_seed``."""
    torch.manual_seed(1)
    with patch.object(torch, "manual_seed", lambda seed: torch.default_generator):
        return called(build, dict(sizes), seed=None)[0]


def find_structured(pairs: Sequence[tuple[nn.Module, nn.Module]], roles: Iterable[str]) -> set[str]:
    """Return the roles whose parameters do not start as draws of one law that is centred at zero.

    Args:
        pairs: a module as it starts under two seeds. Where all of it starts alike under both, its seed is fixed in a
            way that is not seen, and each start is judged by itself.
        roles: names of parameters, in which ``*`` stands for the number of a layer.
    """
    starts = {role: [(a, b) for x, y in pairs for a, b in zip(*(of_role(m, role) for m in (x, y)), strict=True)]
              for role in roles}  # fmt: skip
    known = {role: pair for role, pair in starts.items() if pair and not any(x.is_meta for both in pair for x in both)}
    seeded = any(not torch.equal(a, b) for pair in known.values() for a, b in pair)
    joined = {role: [torch.cat([both[k].flatten() for both in pair]) for k in (0, 1)] for role, pair in known.items()}
    return {role for role, (first, second) in joined.items() if not is_drawn(first, second, seeded)}


def is_drawn(first: Tensor, second: Tensor, seeded: bool = True) -> bool:
    """Return whether two starts of one parameter look like independent draws of one law that is centred at zero.

    Law: entries of such draws have mean zero (t-test), no value that many share, no correlation of an entry with the
    next one or with the entry in its place under the other seed (Pearson), and one distribution (Kolmogorov-Smirnov).

    Args:
        first: the entries under one seed.
        second: the entries under another seed.
        seeded: whether the second is to be another draw.
    """
    from scipy import stats

    x, y = (t.double().flatten()[:MOST].cpu().numpy() for t in (first, second))
    if not (x.any() or y.any()):  # zero is a start of its own
        return True
    most = max(int(np.unique(entries, return_counts=True)[1].max()) for entries in (x, y))
    if (seeded and np.array_equal(x, y)) or most > max(FEW, ATOM * len(x)):
        return False
    if len(x) < 3:  # too few to tell
        return True
    tests = [stats.ttest_1samp(np.concatenate([x, y]), 0), stats.pearsonr(x[1:], x[:-1]), stats.pearsonr(y[1:], y[:-1])]
    tests += [stats.pearsonr(x, y), stats.ks_2samp(x, y)] if seeded else []
    return all(not float(test.pvalue) < UNLIKELY for test in tests)
