"""Makes rows of a check inconclusive that are refuted by something other than the exponents.

Such are tokens that switch experts or outnumber the width, experts that see few tokens, gradients that vanish for all
weights, and exponents that are only upper bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.verify.judging.fit import MIN_SEEDS, Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, ReportRow
from scaling_algebra.verify.tracing.building import Inputs
from scaling_algebra.verify.tracing.gradients import join_names
from scaling_algebra.verify.tracing.measuring import UPDATE

from .rows import DIRECT, TOLERANCE

FEW = (
    "M grows more than K: the exponents assume that a step averages over many tokens, of which an expert sees a share "
    "K/M. With the few tokens here its gradient noise, (K/M)^(1/2), may exceed that mean, which refutes nothing; let K "
    "grow as M for a verdict"
)
"""Note in a report where M grows more than K."""
CHOSEN = (
    "tokens switched experts in these few steps, which changes a signal by a jump that follows no power of n; use "
    "more experts or a smaller learning rate"
)
BLOCKED = "exactly zero, because the gradients of {} are zero for all weights"
MANY = (
    "{} tokens outnumber the width of the smallest model, so each update acts on all; use larger sizes or fewer tokens"
)
WIDTHS, WIDER = ("N", "N_e"), 4
"""Axes that grow where no target is given, and their factor."""


def suspend_blocked_rows(report: Report, blocked: Sequence[str]) -> Report:
    """Makes refuted rows inconclusive whose quantity is measured as exactly zero, if some tensors have no gradient and
    so may be the cause.

    Rows on the update of a tensor that has a gradient stay refuted.

    Args:
        report: the report.
        blocked: the tensors whose gradients are zero whatever the weights.
    """
    others = {r.quantity for r in report.rows if r.quantity.endswith(UPDATE)} - {f"{role}{UPDATE}" for role in blocked}
    note = BLOCKED.format(join_names(blocked))

    def row(r: ReportRow) -> ReportRow:
        told = r.verdict is Verdict.REFUTED and r.fit.zero and r.quantity not in others
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note) if told and blocked else r

    return replace(report, rows=tuple(map(row, report.rows)))


def suspend_crowded_updates(report: Report, inputs: Inputs, sizes: Sizes) -> Report:
    """Makes refuted updates inconclusive whose measured exponent is smaller than predicted, by less than one, if there
    are more tokens than the width of the smallest model.

    Model: the engine assumes a fixed number of tokens, whose signals a wide model tells apart. If the tokens outnumber
    the width, every token's update acts on all of them.

    Args:
        report: the report.
        inputs: the model's input, which gives the number of tokens.
        sizes: the smallest sizes.
    """
    x = next((x for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)), None)
    tokens = 0 if x is None else x.numel() // (x.shape[-1] if x.is_floating_point() and x.dim() > 1 else 1)
    if tokens <= max(sizes.get(axis, 0) for axis in WIDTHS):
        return report
    note = MANY.format(tokens)

    def row(r: ReportRow) -> ReportRow:
        falls = r.verdict is Verdict.REFUTED and r.quantity.endswith(UPDATE) and r.fit.high < (r.predicted or 0)
        falls = falls and r.fit.low > (r.predicted or 0) - 1
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note) if falls and not r.fit.zero else r

    return replace(report, rows=tuple(map(row, report.rows)))


def apply_upper_bounds(report: Report, most: Callable[[ReportRow], bool]) -> Report:
    """Makes refuted rows inconclusive whose measured slope lies below the predicted exponent, if this exponent is only
    an upper bound.

    Args:
        report: the report.
        most: returns whether the exponent of a row is only an upper bound.
    """

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and most(r) and (r.fit.zero or r.fit.high < (r.predicted or 0)):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=f"at most n^({r.predicted}), and below it")
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def find_after_experts(network: Network) -> set[str]:
    """Returns the quantities of the forward pass, such as ``h.change``, that contain updates of experts.

    These are the updates in products with tensors that have an expert axis, and the changes of all signals computed
    from such products. Parts of a signal that come from updates of other tensors are excluded.
    """
    after: set[str] = set()
    found: set[str] = set()
    for s in network.statements:
        own = isinstance(s, Product) and s.tensor and any(network.axes[x] == "M" for x in s.tensor.indices)
        behind = any(x.name in after for x in s.inputs)
        after |= {s.out} if own or behind else set()
        found |= {f"{s.out}{part}" for part, has in ((UPDATE, own), (".propagating", behind)) if has}
    return found | {f"{signal}.change" for signal in after}


def suspend_noisy_experts(report: Report, behind: Collection[str], share: float) -> Report:
    """Makes refuted rows inconclusive where the gradient noise of few tokens can make a size larger than predicted.

    Model: in the engine, a step averages over many tokens, of which an expert sees a share K/M ~ n^(-share). A check
    trains on few tokens: their noise scales as (K/M)^(1/2), and a token's contribution to its own signal does not
    shrink.

    Args:
        report: the report.
        behind: quantities downstream of expert updates; of the others only those with a negative exponent are
            considered.
        share: exponent of M/K.
    """

    def row(r: ReportRow) -> ReportRow:
        least = float(r.predicted or 0)
        lifted = r.fit.low > least and r.fit.low <= least + share / (1 if least < 0 else 2) + TOLERANCE
        told = r.verdict is Verdict.REFUTED and r.predicted is not None and (least < 0 or r.quantity in behind)
        if told and lifted and not r.fit.zero:
            return replace(
                r,
                verdict=Verdict.INCONCLUSIVE,
                note="undecided, since an expert gets few tokens here; see the note on M and K below",
            )
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def drop_rerouted_replicas(m: Measurement, switched: Mapping[int, Sequence[Sequence[bool]]]) -> set[int]:
    """Removes, at every step, the replicas in which a token has been routed to other experts by then.

    Args:
        m: the measurement; its series are changed in place, and NaN values are dropped, too.
        switched: by step, for each size and seed, whether a token has changed its experts.

    Returns:
        The steps at which too few replicas would be left; these keep all of them.
    """
    few = set()
    for step, by_size in switched.items():
        kept = [~np.array(x) for x in by_size]
        if min(x.sum() for x in kept) < MIN_SEEDS:
            few.add(step)
        elif not all(x.all() for x in kept):
            for key in (key for key in m.values if key[1] == step):
                m.values[key] = [v[x] for v, x in zip(m.values[key], kept, strict=True)]
    for series in (m.values, m.standard, m.control):
        for key, values in [*series.items()]:
            if any(np.isnan(v).any() for v in values):
                series[key] = [v[~np.isnan(v)] for v in values]
                if min(map(len, series[key])) < (1 if series is m.control else MIN_SEEDS):
                    del series[key]
    return few


def suspend_rerouted_steps(report: Report, steps: Collection[int]) -> Report:
    """Makes refuted rows inconclusive at steps by which tokens have been routed to other experts, since that changes
    signals by a jump, which follows no power of the sizes.

    ``DIRECT`` rows, which depend on the init std or learning rate of one tensor only, stay refuted.
    """

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and r.step in steps and not r.quantity.endswith(DIRECT):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=CHOSEN)
        return r

    return replace(report, rows=tuple(map(row, report.rows)))
