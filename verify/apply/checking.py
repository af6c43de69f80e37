"""Checks by training whether a plan, or the settings a model brings itself, scale as derived: ``check_model``.

The module is traced (``verify/tracing``) and its equations are derived. Then it is trained for a few steps at several
sizes, and the fitted slope of every signal and parameter update is compared with the certified exponent. Epsilons are
set to the gradients' size at the base and scaled as derived. When a plan's numbers train, the readout starts at zero:
the first step moves only the output, and after the second all tensors have moved along a coherent gradient. As a
negative control the model is also trained with its own initial values and one learning rate for all parameters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.sparse_routing import sparse
from scaling_algebra.errors import UsageError, guard_foreign_code, quote_value
from scaling_algebra.recipes.recipe import Recipe, recipe
from scaling_algebra.recipes.sizes import Sizes, read_sizes, way
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.desiderata import Structure, last_step
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizer_reading import OptimizerInput
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.hardware import use_one_thread
from scaling_algebra.verify.judging.fit import DRIFT, MIN_SEEDS, MIN_SIZES, Array, Verdict, fit_exponent
from scaling_algebra.verify.judging.measurement import Measurement, Series, compute_fingerprint
from scaling_algebra.verify.judging.mixtures import Powers
from scaling_algebra.verify.judging.report import Report, ReportRow
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.measuring.predictions import ALL, predict_briefly
from scaling_algebra.verify.networks.steppers import Fold, build_group, build_optimizer, list_optimizers
from scaling_algebra.verify.tracing import Traced
from scaling_algebra.verify.tracing.building import Inputs, built, called, exactly, limited, usual
from scaling_algebra.verify.tracing.gradients import listed, roles_of
from scaling_algebra.verify.tracing.measuring import OUTPUT, UPDATE, Watch, of_role
from scaling_algebra.verify.tracing.readings import read
from scaling_algebra.verify.tracing.recording import losses_of, output_of, running
from scaling_algebra.verify.tracing.shapes import CHOSEN as CHOSEN_FEW
from scaling_algebra.verify.tracing.shapes import along
from scaling_algebra.waiting import iterate_with_progress

from .folding import compute_folded_powers, is_foldable
from .frozen import find_misscaled_tensors
from .planning import build_plan, mark_shape_only
from .plans import Plan, find_optimizer

OFF = 0.1
"""Largest deviation of a rounded size from its place, as a fraction of the (logarithmic) step between two sizes."""
NEAR = 0.25
"""A slope within this distance of its prediction is nearer to it than to the next possible exponent, half a power
away."""
APART = (0.5, 1.0, 1.5, 2.0)
"""Exponent differences that are tried for the two terms of a crossover."""
BEHIND = 3.0
"""Largest ratio (fading term / remaining term) between the last two sizes that a crossover may have; with a larger
ratio the measurement shows nothing of the remaining term."""
FADED = 0.1
"""Share of a product's mean square below which the fading term no longer matters."""
FURTHEST = 64.0
"""A message proposes sizes at most this many times as large as the largest one here."""
DRIFTS = 0.25
"""Largest power of n by which the gradients of two losses may drift apart under one constant weight."""
Cell = Fraction | None | EllipsisType
GradientRatios = dict[str, dict[str, list[Any]]]
"""``ratios[loss][parameter][i]``: at the i-th size, for every seed, the norm of the gradient of an extra loss
divided by that of the output's loss."""
Kind = Literal["plan", "own", "one"]
"""What trains the model: the plan's numbers, the model's own, or its initial values with one learning rate for all."""
FEW = (
    "M grows more than K: the exponents assume that a step averages over many tokens, of which an expert sees a share "
    "K/M. With the few tokens here its gradient noise, (K/M)^(1/2), may exceed that mean, which refutes nothing; let K "
    "grow as M for a verdict"
)
"""Note in a report where M grows more than K."""
CHOSEN = (
    "tokens switched experts in these few steps, a jump that no exponent describes; use more experts or a smaller rate"
)
TINY = 1e-30
"""Epsilon of a parameter without a gradient."""
RULES = {"Adam": "adamw", "AdamW": "adamw", "Muon": "muon", "SGD": "sgd"}
"""Name of our optimizer rule, by the torch.optim class that ``build`` returns."""
IDLE = "{}: not updated in {} steps, so their learning rates are not checked; give more steps"
BLOCKED = "exactly zero, because the gradients of {} are zero for all weights"
MANY = (
    "{} tokens outnumber the width of the smallest model, so each update acts on all; use larger sizes or fewer tokens"
)
CERTIFIED, DEMANDED, BY_SHAPE = "certified", "demand", "by shape"
"""Where the prediction of a row comes from: an exponent of the engine, the upper bound that a demand sets, or the
law of shapes (equations unknown)."""
PLANNED = "trained with derived numbers, not the module's own: let build return (model, optimizer) to check those"
DIRECT = (".init", ".update")
"""Suffixes of quantities that depend on one tensor's own init std or learning rate only (the signal made by its
initial values, or by its update), if their exponent is the same at every step."""
WIDTHS, WIDER = ("N", "N_e"), 4
"""Axes that grow where no target is given, and their factor."""


@torch.random.fork_rng(devices=[])
def check_model(
    build: Callable[[dict[str, int]], Any],
    base: str | Sizes | None = None,
    target: str | Sizes | None = None,
    *,
    points: int = 3,
    seeds: int = 6,
    steps: int | None = None,
    lr: float = 1e-2,
    parameterization: str = "mup",
    optimizer: OptimizerInput | None = None,
    rules: Mapping[str, Mapping[str, Power]] | None = None,
    fold: bool = False,
    strict: bool = False,
) -> Report:
    """Trains a model at several sizes, with its plan's numbers or its own, and judges how its signals scale.

    Sizes that the plan leaves undecided are listed first; each is compared with the bound that its demand sets.

    Args:
        build: ``build(sizes)`` returns a module on the CPU, or a tuple of it and any of: its optimizer or a list of
            them (its own initial values and rates are then checked), and its input (needed unless the model begins with
            ``nn.Embedding`` or ``nn.Linear``).
        base: sizes as for ``recipe``; by default small sizes of every axis that ``build`` uses.
        target: sizes as for ``recipe``; by default the base with four times the widths.
        points: number of sizes to train, evenly spaced (on a log scale) from base to target.
        seeds: number of replicas at every size.
        steps: number of optimizer steps; by default two, and one more for each parameter that starts at zero and delays
            the gradient of others (gates, B of LoRA).
        lr: learning rate of every parameter at the base; unused where ``build`` brings an optimizer.
        parameterization: as for ``recipe``.
        optimizer: as for ``plan``; by default the rules of the optimizers that ``build`` returns, or AdamW.
        rules: powers to train with instead of the derived ones: parameter (as the plan names it) -> ``init_std`` or
            ``lr`` -> power. Predictions do not change, so a rule that matters is refuted.
        fold: as for ``plan``: multipliers that the model lacks are folded into its parameters.
        strict: raise an error for a model whose equations cannot be read; otherwise it is checked by shape.

    Returns:
        The report, with one row per quantity and step.

    Raises:
        UsageError: the model cannot be built (or read, with ``strict``), the sizes lie on no ray, there are too few
            sizes or seeds, or the model lacks a multiplier.
        Infeasible: there is no parameterization on the ray.
    """
    for what, count, least in (("seeds", seeds, MIN_SEEDS), ("points", points, MIN_SIZES)):
        if count < least:
            raise UsageError(f"{what} is {quote_value(count)}, which decides nothing; give {least} or more")
    start, smallest = time.monotonic(), read_sizes(usual(build) if base is None else base, "base")
    build = limited(build, smallest)
    wide = {axis: n * (WIDER if axis in WIDTHS else 1) for axis, n in smallest.items()}
    sizes = interpolate_sizes(smallest, wide if target is None else read_sizes(target, "target"), points)
    ray = way(sizes[0], sizes[-1]).ray
    assert ray is not None
    reading = along(read(build, sizes[0], strict), [axis for axis in smallest if sizes[-1][axis] > smallest[axis]])
    model, inputs, own = built(build, sizes[0])
    _check_trains(model, own, inputs)
    again = built(build, sizes[0], seed=1)[0] if own is not None else model
    if own is not None and all(map(torch.equal, model.parameters(), again.parameters())):
        raise UsageError("build draws the same values whatever the seed: it calls torch.manual_seed; leave that out")
    optimizer = _read_optimizer_rules(own, model, reading) if optimizer is None else optimizer
    if lost := [role for role in reading.network.tensors if not of_role(model, role)]:
        if lost[0] in reading.network.frozen:
            raise UsageError(
                f"{lost[0]} is no parameter, but differs along an axis that grows; make it a frozen parameter"
            )
        raise UsageError("the output grows; return one of the same shape at every size, such as logits")
    where: Any = {"network": reading.networks}
    asked: Any = {"ray": ray, "network": reading.network}  # a recipe looks for another ray otherwise
    try:
        found = derive(None, optimizer, parameterization, **asked)
    except Infeasible as error:  # as for a plan, a derived epsilon may stand in the way
        where["epsilon"] = "negligible"
        try:
            found = derive(None, optimizer, parameterization, **asked, epsilon="negligible")
        except (Infeasible, UsageError):
            raise error from None
    tiny = TINY if any(rule.epsilon for rule in found.optimizer.rules) else None
    first = recipe(sizes[0], sizes[-1], optimizer, parameterization, lr=lr, eps=tiny, **where)
    zero = [
        role for role in first if all(not p.any() and (own is not None or p.dim() < 2) for p in of_role(model, role))
    ]
    zero = [role for role in zero if role not in reading.network.frozen]
    empty = [role for role in reading.network.frozen if not any(p.any() for p in of_role(model, role))]
    if steps is None:
        asleep = frozenset[str]() if reading.network.unread else reading.network.zero.union(zero)
        steps = last_step(reading.network, Structure(zero=asleep))
    stds = _choose_base_stds(model, first)
    given: Any = {"lr": lr, "std": stds, "starts": (), **where}
    first = recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=tiny, **given)
    eps = _measure_gradients(model, own, inputs, reading, first, zero, steps) if tiny else None
    routers = {role for e in experts(reading.network) for role in e.routers}
    still = [role for role, size in (eps or {}).items() if size == TINY and role in routers]
    if still and sizes[0].get("K") == 1 < sizes[-1]["K"]:
        raise UsageError(
            f"{still[0]} has no gradient where K is 1: the gate of one expert is 1 there; give K=2 at the base"
        )
    numbers = mark_shape_only(recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=eps, **given))
    largest = build_plan(called(build, dict(sizes[-1]))[0], reading, numbers, [model])
    numbers = replace(numbers, open=tuple(find_misscaled_tensors(largest, model, sizes[0])))
    how: Kind = "plan" if own is None else "own"
    m = Measurement(ray, steps, watched=(OUTPUT,))
    grows = max(sizes[0], key=lambda axis: sizes[-1][axis] / sizes[0][axis])
    m.sizes, m.dims = [s[grows] / sizes[0][grows] for s in sizes], [dict(s) for s in sizes]
    beside: GradientRatios = {}
    switched: dict[int, list[list[bool]]] = {}
    trained = _replace_rules(numbers, rules or {})
    names = _train_and_measure(m, build, reading, inputs, trained, zero, how, lr, seeds, fold, beside, switched)
    unsettled = drop_rerouted_replicas(m, switched)
    still_there = [x.removesuffix(UPDATE) for x in names if x.endswith(UPDATE) and not _is_moving(m, x)]
    idle = [IDLE.format(listed(still_there), steps)] if still_there else []
    lines = [*reading.described({} if fold else dict.fromkeys(reading.factors, ""))]  # else a multiplier is refused
    lines += [PLANNED] if own is None else []
    m.environment = {
        "optimizer": numbers.derivations[0].optimizer.name,
        "device": "cpu",
        "torch": torch.__version__,
        "dtype": "float64",
        "wall_seconds": time.monotonic() - start,
        "level": [] if (level := numbers.level) is None else [x for x in (str(level), level.concerned) if x],
        "open": [] if level is None else [*map(str, level.open)],
        "read": [*idle, *lines],
    }
    m.environment["read"] += [describe_loss_weight(loss, found, m) for loss, found in beside.items()]
    if reading.network.unread and numbers.level is not None:
        m.environment["read"] = [*idle, *replace(numbers.level, open=()).lines, *lines]
        moving = [name for name in names if _is_moving(m, name)]
        theta: dict[str, Sequence[Cell]] = {name: [..., *[Fraction(0)] * steps] for name in moving}
        report = judge(m, theta, direct={name for name in names if name.endswith(DIRECT)})
        report = suspend_rerouted_steps(
            _apply_upper_bounds(report, lambda row: not row.quantity.endswith(UPDATE)), unsettled
        )
        if few := ray["M"] > 0 and any(note == CHOSEN_FEW for _, note in reading.notes):
            m.environment["read"] += [FEW]
        report = _add_levels(
            _suspend_noisy_experts(report, set(names), float(ray["M"])) if few else report, lambda row: BY_SHAPE
        )
        return suspend_converging_rows(_suspend_crowded_updates(report, inputs, sizes[0]))
    moved = {x: power.on(ray) for x, power in (compute_folded_powers(numbers, reading) if fold else {}).items()}
    left = {_get_signal(x.quantity) for x in level.open} if (level := numbers.derivations[-1].level) else set()
    doubtful = {name for name, quantities in names.items() if left.intersection(map(_get_signal, quantities))}
    predicted, bounds, powers = _predict_exponents(numbers.derivations[-1], [*zero, *empty], names, steps, moved, left)
    clean = {x for x in names if x.endswith(DIRECT[0]) and len({e for e, _ in powers(x, 0)}) == 1}
    direct = {x for x in names if x.endswith(DIRECT) and _has_single_power(predicted[x])}
    direct = {x for x in direct if f"{x.removesuffix(UPDATE).removesuffix(DIRECT[0])}{DIRECT[0]}" in clean}
    asked = {x: [bounds[x] if e is ... else e for e in cells] for x, cells in predicted.items()}
    most = {(x, t) for x, cells in predicted.items() for t, e in enumerate(cells) if e is ...}
    after = _find_after_experts(reading.network) if sparse(reading.network, ray) else set()
    m.environment["read"] += [FEW] if after else []
    behind = {name for name, x in names.items() if after.intersection(x)}
    report = _apply_upper_bounds(
        judge(m, asked, powers=powers, direct=direct), lambda row: (row.quantity, row.step) in most
    )
    report = _add_levels(report, lambda row: DEMANDED if (row.quantity, row.step) in most else CERTIFIED)
    report = _suspend_noisy_experts(report, behind, float(ray["M"] - ray["K"])) if after else report
    report = suspend_crossovers(report, m, asked)
    report = _suspend_blocked_rows(
        suspend_converging_rows(_suspend_crowded_updates(suspend_rerouted_steps(report, unsettled), inputs, sizes[0])),
        reading.blocked,
    )
    vectors = {f"{role}.init" for role in reading.network.tensors if all(x.dim() < 2 for x in of_role(model, role))}
    report = _apply_upper_bounds(report, lambda row: row.quantity in vectors)  # a bias may start smaller, or at zero
    rows = (r for r in report.rows if (r.quantity, r.step) not in most or r.verdict is not Verdict.INCONCLUSIVE)
    return replace(report, rows=tuple(sorted(rows, key=lambda r: r.quantity not in doubtful)))


def _add_levels(report: Report, level: Callable[[ReportRow], str]) -> Report:
    """Returns the report with ``level(row)`` as the level of every row's prediction."""
    return replace(report, rows=tuple(replace(r, level=level(r)) for r in report.rows))


def _is_moving(m: Measurement, name: str) -> bool:
    """Whether a quantity is nonzero after some step, at some size."""
    return any(x.any() for t in range(1, m.steps + 1) for x in m.values.get((name, t), ()))


def _suspend_blocked_rows(report: Report, blocked: Sequence[str]) -> Report:
    """Makes refuted rows inconclusive that are exactly zero because gradients vanish for all weights.

    Updates of tensors other than the blocked ones stay refuted.

    Args:
        report: the report.
        blocked: tensors whose gradients are zero whatever the weights.
    """
    others = {r.quantity for r in report.rows if r.quantity.endswith(UPDATE)} - {f"{role}{UPDATE}" for role in blocked}
    note = BLOCKED.format(listed(blocked))

    def row(r: ReportRow) -> ReportRow:
        told = r.verdict is Verdict.REFUTED and r.fit.zero and r.quantity not in others
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note) if told and blocked else r

    return replace(report, rows=tuple(map(row, report.rows)))


def _suspend_crowded_updates(report: Report, inputs: Inputs, sizes: Sizes) -> Report:
    """Makes refuted updates inconclusive that shrink by less than one power of n, if there are more tokens than the
    width of the smallest model.

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


def _has_single_power(cells: Sequence[Cell]) -> bool:
    """Whether the exponents of all steps are decided and equal (None, where there is nothing, is ignored)."""
    return ... not in cells and len({e for e in cells if e is not None}) < 2


def _apply_upper_bounds(report: Report, most: Callable[[ReportRow], bool]) -> Report:
    """Makes refuted rows inconclusive whose measured slope lies below an exponent that is only an upper bound.

    Args:
        report: the report.
        most: whether the exponent of a row is an upper bound.
    """

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and most(r) and (r.fit.zero or r.fit.high < (r.predicted or 0)):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=f"at most n^({r.predicted}), and below it")
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def _find_after_experts(network: Network) -> set[str]:
    """Returns the quantities of the forward pass that contain updates of experts: products with tensors that have an
    expert axis, and everything downstream, except for what the updates of other tensors add."""
    after: set[str] = set()
    found: set[str] = set()
    for s in network.statements:
        own = isinstance(s, Product) and s.tensor and any(network.axes[x] == "M" for x in s.tensor.indices)
        behind = any(x.name in after for x in s.inputs)
        after |= {s.out} if own or behind else set()
        found |= {f"{s.out}{part}" for part, has in ((UPDATE, own), (".propagating", behind)) if has}
    return found | {f"{signal}.change" for signal in after}


def _suspend_noisy_experts(report: Report, behind: Collection[str], share: float) -> Report:
    """Makes refuted rows inconclusive where the gradient noise of few tokens can lift a size above its prediction.

    Model: the engine's step averages over many tokens, of which an expert sees a share K/M ~ n^(-share). The noise of
    the few tokens here scales as (K/M)^(1/2), and a token's contribution to its own signal does not shrink.

    Args:
        report: the report.
        behind: quantities downstream of expert updates; of the others only those with a negative exponent are
            considered.
        share: exponent of M/K.
    """

    def row(r: ReportRow) -> ReportRow:
        least = float(r.predicted or 0)
        lifted = r.fit.low > least and r.fit.low <= least + share / (1 if least < 0 else 2) + OFF
        told = r.verdict is Verdict.REFUTED and r.predicted is not None and (least < 0 or r.quantity in behind)
        if told and lifted and not r.fit.zero:
            return replace(
                r, verdict=Verdict.INCONCLUSIVE, note="an expert sees few tokens here; see the note on M and K below"
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


def suspend_converging_rows(report: Report) -> Report:
    """Makes refuted rows inconclusive at a crossover, where the local slope approaches the prediction from size to
    size.

    This happens where one term gives way to another. The note names the sizes that would settle the row. Between the
    last two sizes, a certified exponent must already be the nearest one, within one standard error, or within two if
    the slope certainly moves towards it; an undecided row's slope must not be that of another exponent.
    """

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is not Verdict.REFUTED or r.predicted is None or r.fit.zero or len(report.sizes) < MIN_SIZES:
            return r
        values, own = map(np.array, report.means[r.quantity, r.step])
        doublings = np.log2(report.sizes)
        steps = np.diff(doublings)
        off = np.diff(values) / steps - float(r.predicted)
        off *= np.sign(off.sum()) or 1.0
        errors = np.hypot(own[1:], own[:-1]) / steps
        times = _estimate_doublings_left(off, errors, (doublings[1:] + doublings[:-1]) / 2)
        shared = own[1] if len(steps) == 2 else 0.0  # both slopes have the middle size
        bent = errors[0] ** 2 + errors[-1] ** 2 + 2 * shared**2 / (steps[0] * steps[-1])
        certain = off[0] - off[-1] > 2 * math.sqrt(bent)
        near = NEAR + min(float(errors[-1]), DRIFT) * (2 if certain else 1)
        most = min(APART) - DRIFT if r.level == DEMANDED else near
        if times is None or off[-1] > most:
            return r
        where = _format_settling_sizes(report, times)
        note = f"comes nearer to n^({r.predicted}) from size to size; {where} would settle it"
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note)

    return replace(report, rows=tuple(map(row, report.rows)))


def suspend_crossovers(report: Report, m: Measurement, exponents: Mapping[str, Sequence[Cell]]) -> Report:
    """Makes refuted rows of undecided sizes inconclusive if a product explains them whose fading term still leads at
    the smallest size.

    Model: if W_0 x falls as n^(-gap) relative to dW x, a norm of their sum passes on a signal that grows, more slowly
    than n^gap, until dW x dominates.

    Args:
        report: the report.
        m: the measurement, with the mean squares of both terms.
        exponents: by quantity, the exponent (or bound) at every step.
    """
    found: list[tuple[float, Fraction, int, str]] = []
    for name in (x.removesuffix(".init") for x in exponents if x.endswith(".init")):
        before = exponents[f"{name}.init"][0]
        for t, after in enumerate(exponents.get(f"{name}{UPDATE}", ())):
            keys = [(f"{name}.init", t), (f"{name}{UPDATE}", t)]
            if not t or not (isinstance(before, Fraction) and isinstance(after, Fraction) and before < after):
                continue
            if any(key not in m.values or not all(v.any() for v in m.values[key]) for key in keys):
                continue
            old, new = ([float(np.square(v).mean()) for v in m.values[key]] for key in keys)
            first, last, gap = old[0] / new[0], old[-1] / new[-1], after - before
            if first > FADED / (1 - FADED) and last < first * (m.sizes[0] / m.sizes[-1]) ** float(gap):
                found.append((last, gap, t, name))

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is not Verdict.REFUTED or r.level != DEMANDED or r.predicted is None or r.fit.zero:
            return r
        off = r.fit.slope - float(r.predicted)
        crossing = [x for x in found if x[2] <= r.step and 0 < off <= x[1] - DRIFT]
        if not crossing:
            return r
        odds, gap, _, name = max(crossing)
        times = max(0.0, math.log2(odds * (1 - FADED) / FADED) / (2 * float(gap)))
        note = f"the initial values of {name} still count beside its update, which outgrows them as n^({gap})"
        return replace(
            r, verdict=Verdict.INCONCLUSIVE, note=f"{note}; sizes from {_format_settling_sizes(report, times, True)}"
        )

    return replace(report, rows=tuple(map(row, report.rows)))


def _estimate_doublings_left(off: Array, errors: Array, at: Array) -> float | None:
    """Returns how many more doublings of n bring the slope within ``DRIFT`` of its prediction.

    None if a constant slope fits as well as a crossover. Model: the squares of two terms, a n^p and b n^(p +- gap), add
    up. The local slope between two sizes then differs from the exponent p of the remaining term by gap * w, with w / (1
    - w) = odds * n^(-2 gap).

    Args:
        off: distance of each local slope from the prediction, signed so that most are positive.
        errors: standard errors of these.
        at: log2 of n midway between the two sizes of each slope.
    """
    errors = np.maximum(errors, 1e-3)

    def compute_misfit(expected: Array) -> float:
        return float((((off - expected) / errors) ** 2).sum())

    stays = float((off / errors**2).sum() / (1 / errors**2).sum())
    best, left = compute_misfit(np.full_like(off, stays)), None
    if off[-1] >= off[0]:
        return None
    for gap in APART:
        for odds in np.geomspace(DRIFT / gap, BEHIND, 40):  # at the last pair of sizes
            every = odds * 2.0 ** (2 * gap * (at[-1] - at))
            if (found := compute_misfit(gap * every / (1 + every))) < best:
                settled_at = DRIFT / (gap - DRIFT)
                best, left = found, max(0.0, math.log2(odds / settled_at) / (2 * gap))
    return left


def _format_settling_sizes(report: Report, doublings: float, start: bool = False) -> str:
    """Returns the sizes, starting at the largest, over which a row would be decided, as text.

    Args:
        report: the report with the sizes measured so far.
        doublings: how many more doublings of n are needed.
        start: name only the size from which on the row would be decided.
    """
    first, last = report.dims[0], report.dims[-1]
    whole = math.log2(report.sizes[-1] / report.sizes[0])
    doublings = math.ceil(doublings) + (not start)  # the pair of sizes whose slope is near
    grown = {axis: round(n * (n / first[axis]) ** (doublings / whole)) for axis, n in last.items()}
    if 2.0**doublings > FURTHEST:
        return f"more than {FURTHEST:g} times the largest here" if start else f"sizes {FURTHEST:g} times as large"
    listed = [",".join(f"{axis}={n}" for axis, n in size.items()) for size in (last, grown)]
    return f"{listed[1]} on would settle it" if start else " to ".join(listed)


def suspend_rerouted_steps(report: Report, steps: Collection[int]) -> Report:
    """Makes refuted rows inconclusive at steps by which tokens have been routed to other experts: that jump follows
    no power of the sizes. Rows that depend on one tensor's own numbers (``DIRECT``) stay."""

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and r.step in steps and not r.quantity.endswith(DIRECT):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=CHOSEN)
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def _check_trains(model: nn.Module, own: torch.optim.Optimizer | None, inputs: Inputs) -> None:
    """Checks that the model can be trained.

    Raises:
        UsageError: nothing trains, the optimizer has parameters of another model, or the output is not finite or has no
            gradient.
    """
    mine = {id(p) for p in model.parameters()}
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("no parameter of the model trains: requires_grad is False for all; there is nothing to check")
    if own is not None and any(id(p) not in mine for group in own.param_groups for p in group["params"]):
        raise UsageError(
            "the optimizer that build returns has parameters of another model; give it those of the returned one"
        )
    with exactly(), running(inputs[0]):
        out = output_of(model(*inputs[0], **inputs[1]))
        if not out.isfinite().all():
            raise UsageError("the output of the model is not a number")
        if not out.requires_grad:
            raise UsageError("the output has no gradient: it is detached, or computed under torch.no_grad")


def find_first_to_blame(report: Report) -> ReportRow | None:
    """Return the refuted row that most likely causes the others, or None if no row is refuted.

    Rows at earlier steps come first, then those that depend on one tensor's own numbers (``DIRECT``), then refuted
    ones, then execution order; later failures may be consequences. A ``DIRECT`` row counts as a suspect even if it is
    inconclusive, when its slope is nearer to another exponent. Rows that agree once the smallest sizes are left out
    come last.
    """
    if not (refuted := [r for r in report.rows if r.verdict is Verdict.REFUTED]):
        return None
    suspects = [r for r in report.rows if r in refuted or _is_nearer_to_another(r)]

    def rank(r: ReportRow) -> tuple[bool, int, bool, bool]:
        return _agrees_at_larger_sizes(report, r), r.step, not r.quantity.endswith(DIRECT), r not in refuted

    return min(suspects, key=rank)


def _is_nearer_to_another(r: ReportRow) -> bool:
    """Whether an inconclusive row that depends on one tensor's own numbers lies nearer to another exponent than to
    its own."""
    if r.predicted is None or r.fit.zero or r.note or not r.quantity.endswith(DIRECT):
        return False
    apart = r.apart > DRIFT and abs(r.fit.slope - float(r.predicted)) > NEAR
    return apart and r.verdict is Verdict.INCONCLUSIVE


def _agrees_at_larger_sizes(report: Report, r: ReportRow) -> bool:
    """Whether the slope fitted without the two smallest sizes (of three: the smallest) is the predicted one."""
    if r.predicted is None or r.fit.zero or (r.quantity, r.step) not in report.means:
        return False
    left = slice(min(2, len(report.sizes) - 2), None)
    slope = np.polyfit(np.log2(report.sizes[left]), report.means[r.quantity, r.step][0][left], 1)[0]
    return bool(abs(slope - float(r.predicted)) < DRIFT)


def _train_and_measure(
    m: Measurement,
    build: Any,
    reading: Traced,
    inputs: Inputs,
    numbers: Recipe,
    zero: Sequence[str],
    how: Kind,
    lr: float,
    seeds: int,
    fold: bool,
    beside: GradientRatios,
    switched: dict[int, list[list[bool]]],
) -> Mapping[str, Sequence[str]]:
    """Trains the model at all sizes and seeds and records its quantities in the measurement.

    Args:
        m: the measurement to fill; it has the sizes.
        build: as for ``check_model``.
        reading: the traced model.
        inputs: the input at the base.
        numbers: the recipe that is trained.
        zero: parameters that start at zero.
        how: whose numbers train the model.
        lr: the one learning rate of the negative control.
        seeds: number of replicas per size.
        fold: whether missing multipliers are folded into parameters.
        beside: filled with the gradients of extra losses.
        switched: filled, by step, size and seed, with whether a token has changed its experts.

    Returns:
        By name of a measured series, the engine's quantities that it is compared with.

    Raises:
        UsageError: an input that grows with the sizes, or a multiplier that the model has to apply itself.
    """
    names: dict[str, Sequence[str]] = {}
    small = called(build, dict(m.dims[0]))[0]  # what starts alike goes on from there

    def put(series: Series, i: int, size: Sizes, seed: int, how: Kind) -> None:
        model, mine, optimizer = built(build, size, seed)
        if [x.shape for x in _list_tensors(mine)] != [x.shape for x in _list_tensors(inputs)]:
            raise UsageError(f"the input grows at {dict(size)}; return one of the same shape at every size")
        there = numbers.at(size)
        p = build_plan(model, reading, there, [small])
        if left := {name: x for name, x in p.multipliers.items() if x != 1}:
            alone = [name for name in left if not is_foldable(reading.network, name)]
            if alone or not fold or how == "own":
                todo = ", as fold=True ends in no whole parameter" if alone else ", or fold=True"
                todo = "" if how == "own" else todo
                raise _build_multiplier_error(reading, there, size, next(iter(alone or left)), left, todo)
            p = build_plan(model, reading, there, [small], fold=True)
        if how == "one":
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        elif how == "plan":
            optimizer = _apply_plan(p, zero, seed)
        watch = Watch(model, inputs, reading)
        names.update(watch.names)
        for t, _ in enumerate(_train_steps(model, optimizer, inputs, m.steps, _get_epsilons(p))):
            for key, x in watch().items():
                values = series.setdefault((key, t), [np.zeros(0) for _ in m.dims])
                values[i] = np.append(values[i], x)
            if series is m.values:
                switched.setdefault(t, [[] for _ in m.dims])[i].append(watch.switched)
        if series is m.values:
            for (loss, name), x in compare_extra_losses(model, mine).items():
                beside.setdefault(loss, {}).setdefault(name, [np.zeros(0) for _ in m.dims])
                beside[loss][name][i] = np.append(beside[loss][name][i], x)

    with use_one_thread():
        for i, size in enumerate(m.dims):
            m.parameters.append(sum(p.numel() for p in called(build, dict(size))[0].parameters()))
            m.inputs.append(str([compute_fingerprint(x) for x in _list_tensors(inputs)]))
            for seed in iterate_with_progress(f"training {dict(size)}", "seeds", range(seeds)):
                put(m.values, i, size, seed, how)
                put(m.standard, i, size, seed, "one")
            put(m.control, i, m.dims[0], 10_000, how)  # one draw at every size: whatever differs is no noise
    for series in (m.values, m.standard, m.control):
        for key in [key for key, values in series.items() if not all(map(len, values))]:
            del series[key]  # of a module that is there at some sizes alone, as one expert of more
    return {name: x for name, x in names.items() if any(key[0] == name for key in m.values)}


def _build_multiplier_error(
    reading: Traced, numbers: Recipe, size: Sizes, name: str, left: Mapping[str, float], todo: str
) -> UsageError:
    """Returns the error for a multiplier that the model has to apply itself.

    Args:
        reading: the traced model.
        numbers: the recipe at this size.
        size: the size.
        name: the multiplier.
        left: by multiplier, the factor that is missing.
        todo: end of the message.
    """
    at, own = reading.factors[name]
    where = ",".join(f"{axis}={n}" for axis, n in size.items())
    said = f"at {where} {at or 'model'} must multiply by {left[name]:g} ({name} of scalecalc list --model)"
    rule = numbers.multipliers[name].rule
    more = "" if rule is None else f", as {rule / Power.of(own)}"
    return UsageError(f"{said}{more}; do it in its forward pass{todo}")


def _apply_plan(p: Plan, zero: Sequence[str], seed: int) -> torch.optim.Optimizer:
    """Draws the initial values of a plan and returns its optimizer. Frozen tensors keep the module's values.

    Args:
        p: the plan.
        zero: parameters to set to zero.
        seed: seed of the draw.

    Raises:
        UsageError: a rule with a constraint, which cannot be trained here.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        p.init_()
    for role in zero:
        for tensor in of_role(p.model, role):
            tensor.zero_()
    parts = [(e, find_optimizer(p.recipe, e.role), p.groups[e.group].numbers) for e in p.entries if not e.frozen]
    if bound := next((rule.name for _, rule, _ in parts if rule.constraint and not rule.keeps_norm), ""):
        raise UsageError(f"check-model does not train with a constraint, as {bound} has; take verify")
    return build_optimizer(
        [
            build_group(
                rule,
                e.tensor,
                x["lr"],
                x.get("eps", TINY),
                0.0,
                **({"fold": Fold.last(e.tensor)} if rule.acts_on_matrices else {}),
            )
            for e, rule, x in parts
        ]
    )


def _read_optimizer_rules(own: torch.optim.Optimizer | None, model: nn.Module, reading: Traced) -> OptimizerInput:
    """Returns the rules of the optimizers that a model brings, by parameter; one name if all are the same.

    Raises:
        UsageError: an optimizer class without a rule.
    """
    found, names = dict[str, str](), {id(p): name for name, p in model.named_parameters()}
    for part in list_optimizers(own) if own is not None else ():
        rule = next((rule for name, rule in RULES.items() if isinstance(part, getattr(torch.optim, name))), None)
        if rule is None:
            known = ", ".join(RULES)
            raise UsageError(f"build brings {type(part).__name__}; a check knows {known}, or say optimizer=RULE")
        found |= {names[id(p)]: rule for g in part.param_groups for p in g["params"]}
    if len({*found.values()}) < 2:
        return next(iter(found.values()), "adamw")
    roles = roles_of([*found], reading.network.tensors)
    return {"": "adamw", **{role: rule for x, mine in roles.items() if (rule := found[x]) != "adamw" for role in mine}}


def _get_epsilons(p: Plan) -> dict[str, float]:
    """Returns the epsilon of every parameter that has one, by name."""
    return {e.name: e.settings["eps"].target or TINY for e in p.entries if "eps" in e.settings}


def _measure_gradients(
    model: nn.Module, own: Any, inputs: Inputs, reading: Traced, numbers: Recipe, zero: Sequence[str], steps: int
) -> dict[str, float]:
    """Trains at the base and returns the epsilon of every parameter: the largest rms of its gradient over all steps."""
    p, sizes = build_plan(model, reading, numbers.at(numbers.way.base), [model]), dict[str, float]()
    for _ in _train_steps(model, own or _apply_plan(p, zero, 0), inputs, steps, _get_epsilons(p)):
        for e in p.entries:
            if e.tensor.grad is not None:
                for role in roles_of([e.name], numbers)[e.name]:
                    size = float(e.tensor.grad.square().mean().sqrt())
                    sizes[role] = max(size, sizes.get(role, TINY))
    return {role: sizes.get(role, TINY) for role, settings in numbers.tensors.items() if "eps" in settings}


def _train_steps(
    model: nn.Module, optimizer: Any, inputs: Inputs, steps: int, epsilons: Mapping[str, float]
) -> Iterator[None]:
    """Yields before training and after every step on the squared distance from fixed random targets, without weight
    decay.

    Args:
        model: the model.
        optimizer: one optimizer, or several joined.
        inputs: the model's input.
        steps: number of steps.
        epsilons: by parameter name; parameters not listed get ``TINY``.
    """
    named = {id(p): epsilons.get(name, TINY) for name, p in model.named_parameters()}
    for part in list_optimizers(optimizer):
        alone = [(group, p) for group in part.param_groups for p in group["params"]]
        part.param_groups[:] = [{**g, "params": [p], "weight_decay": 0.0, "eps": named[id(p)]} for g, p in alone]
    places, keywords = inputs

    def loss(step: int) -> Tensor:
        return _compute_loss(output_of(model(*places, **keywords)))

    yield
    with exactly(), guard_foreign_code("training the model"):
        for _ in descend(optimizer, loss, steps):
            yield


def _compute_loss(out: Tensor) -> Tensor:
    """Returns the mean squared distance of an output from fixed random targets."""
    draw = torch.Generator().manual_seed(2)
    return (out - torch.randn(out.shape, generator=draw, dtype=out.dtype)).square().mean()


def compare_extra_losses(model: nn.Module, inputs: Inputs) -> dict[tuple[str, str], float]:
    """Compares the gradients of losses that a module returns besides its output with that of the output's loss.

    Returns:
        ``(loss, parameter)`` -> ratio of the two gradient norms, where both are nonzero.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with exactly(), guard_foreign_code("the model"):
        out = model(*inputs[0], **inputs[1])
        found = {k: x for k, x in losses_of(out).items() if x.requires_grad}
        if not found:
            return {}
        losses = {"": _compute_loss(output_of(out)), **found}
        grads = {k: torch.autograd.grad(x, [*named.values()], None, True, allow_unused=True) for k, x in losses.items()}
    return {
        (loss, name): float(g.norm() / main.norm())
        for loss in grads.keys() - {""}
        for name, g, main in zip(named, grads[loss], grads[""], strict=True)
        if g is not None and main is not None and g.any() and main.any()
    }


def describe_loss_weight(loss: str, found: Mapping[str, Sequence[Any]], m: Measurement) -> str:
    """Returns a sentence on how an extra loss scales relative to the output's, and the power that its weight would
    need.

    The power is fitted at the parameter where the extra loss has its largest share at the base.

    Args:
        loss: name of the loss.
        found: by parameter, the gradient ratios at every size.
        m: the measurement, for the sizes.
    """
    there = [x for x in found if all(map(len, found[x]))]
    if not there:
        return f"loss {loss}: its gradient is zero at some of these sizes, and no power is read off it"
    name = max(there, key=lambda x: float(np.median(found[x][0])))
    power, ends = fit_exponent(m.sizes, found[name]), [float(np.median(found[name][k])) for k in (0, -1)]
    said = f"loss {loss}: its gradient at {name} over that of the output's loss is {ends[0]:.2g} at the base"
    said += f" and {ends[1]:.2g} at the target, n^({power.slope:+.2f}) [{power.low:+.2f}, {power.high:+.2f}]"
    flat = "one weight does" if max(-power.low, power.high) < DRIFTS else "undecided, take more seeds"
    apart = power.low > OFF or power.high < -OFF
    return f"{said}: {f'WARNING, its weight is to go as n^({-power.slope:+.2f})' if apart else flat}"


def _predict_exponents(
    d: Derivation,
    zero: Sequence[str],
    names: Mapping[str, Sequence[str]],
    steps: int,
    moved: Mapping[str, Fraction],
    left: set[str],
) -> tuple[dict[str, Sequence[Cell]], dict[str, Cell], Powers]:
    """Predicts the exponents of the measured series.

    Args:
        d: the derivation.
        zero: tensors that start at zero instead of as derived.
        names: by series, the quantities that it is compared with.
        steps: number of steps.
        moved: by signal, the exponent of multipliers that are folded into it.
        left: undecided signals that are demanded to be O(1), which is their bound where no other is known.

    Returns:
        By series the exponent at every step, ``...`` where it is not certified or the quantities of one series differ;
        upper bounds (for all steps) of the series with such a step; and the function that returns the powers below the
        leading one.
    """
    tensors = {role: replace(t, init_std=None) if role in zero else t for role, t in d.scaling.tensors.items()}
    point = replace(d.scaling, tensors=tensors).point(d.ray)
    analysis = Analysis(d.ray, point, d.optimizer, d.network)
    lows: dict[tuple[str, int], Fraction | None] = {}

    def more(quantity: str) -> Fraction:
        return moved.get(_get_signal(quantity), Fraction(0))

    def cell(quantity: str, t: int) -> Cell:
        answer = predict_briefly(analysis, quantity, t)
        exponent = answer.exponent if answer.decided else ...
        lows[quantity, t] = answer.low if isinstance(answer.low, Fraction) else None
        return exponent + more(quantity) if isinstance(exponent, Fraction) else exponent

    def row(quantity: str) -> list[Cell]:
        return [cell(quantity, t) for t in range(1 if quantity.endswith(".init") else steps + 1)]

    def powers(name: str, t: int) -> list[tuple[Fraction, bool]]:
        if ... not in rows[name][t]:
            return [(e + more(x), seen) for x in names[name] for e, seen in analysis.powers(x, t)]
        if isinstance(bound := bounds[name], EllipsisType) or bound is None:
            raise LookupError(f"{name} at t={t} has no bound")
        shown = ((x, lows.get((x, t))) for x in names[name])
        return [(bound, False), *((e + more(x), True) for x, e in shown if e is not None)]

    def at_most(quantities: Sequence[str]) -> Cell:
        bounds = [Fraction(0) if (b := analysis.upper(x)) is None and _get_signal(x) in left else b for x in quantities]
        known = [b + more(x) for b, x in zip(bounds, quantities, strict=True) if b is not None]
        return max(known) if known and len(known) == len(bounds) else ...

    asked = iterate_with_progress("predicting", "signals and parameters", list(names.items()))
    with analysis.meter.within(ALL):
        rows = {name: list(zip(*map(row, quantities), strict=True)) for name, quantities in asked}
    predicted: dict[str, Sequence[Cell]] = {
        name: [cells[0] if len(set(cells)) == 1 else ... for cells in row] for name, row in rows.items()
    }
    bounds = {name: at_most(x) for name, x in names.items() if ... in predicted[name]}
    return predicted, bounds, powers


def _get_signal(quantity: str) -> str:
    """Returns the signal that a quantity belongs to (``h`` of ``h.change``)."""
    return quantity.partition(".")[0]


def _choose_base_stds(model: nn.Module, numbers: Recipe) -> dict[str, float]:
    """Returns the init std of every parameter at the base: that of the module's own values, but at most the derived
    power there, so that a faster decaying term does not lead at small sizes."""
    stds = {}
    for role, settings in numbers.tensors.items():
        if (rule := settings["init_std"].rule) is None:
            continue  # it starts at zero
        most = rule.at({"L": 1, **numbers.way.base})
        own = max(float(p.double().square().mean().sqrt()) for p in of_role(model, role))
        stds[role] = min(own or most, most)
    return stds


def _list_tensors(inputs: Inputs) -> list[Tensor]:
    """Returns the tensors among the positional and keyword inputs."""
    return [x for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)]


def interpolate_sizes(base: Sizes, target: Sizes, points: int) -> list[Sizes]:
    """Returns sizes from a base to a target, evenly spaced on a logarithmic scale.

    Every size of an axis is a multiple of the greatest common divisor of both ends.

    Examples:
        >>> interpolate_sizes({"N": 32, "M": 4}, {"N": 128, "M": 16}, 3)[1]
        {'N': 64, 'M': 8}

    Raises:
        UsageError: fewer than two points, sizes on no ray, or no whole size near a place.
    """
    whole = way(base, target)
    if whole.ray is None or not whole.exact:
        raise UsageError(
            "the sizes lie on no ray: an axis shrinks, K outgrows M, or the axes grow by no powers of one number; "
            "give for example N=32,M=4 and N=128,M=16"
        )
    if points < 2:
        raise UsageError(f"points is {points}; give two or more, three for a verdict")
    sizes: list[dict[str, int]] = [{} for _ in range(points)]
    for axis, n in base.items():
        grid, ratio = math.gcd(n, target[axis]), target[axis] / n
        places = [n * ratio ** (k / (points - 1)) for k in range(points)]
        for size, place in zip(sizes, places, strict=True):
            size[axis] = max(1, round(place / grid)) * grid
        apart = ratio ** (OFF / (points - 1))
        if any(max(s[axis] / x, x / s[axis]) > apart for s, x in zip(sizes, places, strict=True) if ratio > 1):
            steps, near = points - 1, n * max(2, round(ratio ** (1 / (points - 1)))) ** (points - 1)
            said = f"no {points} whole sizes lie evenly between {axis}={n} and {axis}={target[axis]}"
            raise UsageError(
                f"{said}; {axis} is to grow {steps} times by one factor, as to {axis}={near}, or give other points"
            )
    if base == target:
        raise UsageError(
            f"base and target are the same, {', '.join(f'{k}={n}' for k, n in base.items())}; give a larger --target"
        )
    if any(a == b for a, b in pairwise(sizes)):
        raise UsageError(f"{points} points are more than lie between base and target; give fewer")
    return list(sizes)


def _replace_rules(numbers: Recipe, rules: Mapping[str, Mapping[str, Power]]) -> Recipe:
    """Returns the recipe with the powers of ``rules`` (parameter -> ``init_std`` or ``lr`` -> power) in place of its
    own."""
    tensors = dict(numbers.tensors)
    for role, powers in rules.items():
        tensors[role] = {**numbers[role], **{what: replace(numbers[role][what], rule=p) for what, p in powers.items()}}
    return replace(numbers, tensors=tensors)
