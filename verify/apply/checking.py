"""Does a plan hold on a real model, or do a model's own rates scale? Real steps at several sizes, slopes, verdicts.

The module is read (``verify/tracing``), its equations are derived, and what it computes while it trains is held against
the certified exponents, by the names of its parameters and modules. Epsilons are of the size of the gradients at
the base, and scale as derived. Of a plan's numbers the readout starts at zero: the first step moves the output alone,
and after the second all tensors have moved along a coherent gradient. One std and one learning
rate for all is trained beside it and must be refuted.
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
from scaling_algebra.verify.hardware import spare_threads
from scaling_algebra.verify.judging.fit import DRIFT, MIN_SEEDS, MIN_SIZES, Array, Verdict, fit
from scaling_algebra.verify.judging.measurement import Measurement, Series, fingerprint
from scaling_algebra.verify.judging.mixtures import Powers
from scaling_algebra.verify.judging.report import Report, ReportRow
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.measuring.predictions import ALL, briefly
from scaling_algebra.verify.networks.steppers import Fold, assembled, group, optimizers_of
from scaling_algebra.verify.tracing import Traced
from scaling_algebra.verify.tracing.building import Inputs, built, called, exactly, limited, usual
from scaling_algebra.verify.tracing.gradients import listed, roles_of
from scaling_algebra.verify.tracing.measuring import OUTPUT, UPDATE, Watch, of_role
from scaling_algebra.verify.tracing.readings import read
from scaling_algebra.verify.tracing.recording import losses_of, output_of, running
from scaling_algebra.verify.tracing.shapes import CHOSEN as CHOSEN_FEW
from scaling_algebra.verify.tracing.shapes import along
from scaling_algebra.waiting import iterate_with_progress

from .folding import foldable, folded
from .frozen import frozen
from .planning import opened, planned
from .plans import Plan, trainer

OFF = 0.1
"""How far a size that was rounded may lie from its place, in parts of the way between two sizes."""
NEAR = 0.25
"""Distance of a slope from its prediction up to which it is nearer to it than to the next exponent."""
APART = (0.5, 1.0, 1.5, 2.0)
"""Differences between the exponents of two terms of which one gives way to the other."""
BEHIND = 3.0
"""Largest ratio of the term that fades to the one that stays, between the last two sizes: above it nothing is seen of
the second."""
FADED = 0.1
"""Share of a product's mean square below which the part that fades is gone."""
FURTHEST = 64.0
"""How many times the largest size a message may ask for."""
DRIFTS = 0.25
"""Power of n by which gradients of two losses may come apart under one weight."""
Cell = Fraction | None | EllipsisType
Beside = dict[str, dict[str, list[Any]]]
"""By loss beside the output and parameter, at every size: gradients over those of the output."""
Kind = Literal["plan", "own", "one"]
"""The numbers that train: the plan's, the model's own, or its initial values with one rate for all."""
FEW = (
    "M grows more than K: the exponents are those of steps that average over many tokens, of which an expert sees a "
    "share K/M; of the few tokens here it sees fewer and fewer, whose noise, (K/M)^(1/2), may lie above that mean and "
    "refutes nothing; let K grow as M for a verdict"
)
"""What is read beside a check where M grows more than K."""
CHOSEN = (
    "tokens choose other experts in these few steps, a jump that no exponent counts; more experts, or a smaller rate"
)
TINY = 1e-30
"""Epsilon of a parameter without a gradient."""
RULES = {"Adam": "adamw", "AdamW": "adamw", "Muon": "muon", "SGD": "sgd"}
"""The rule of an optimizer that a model brings, by its class in torch.optim."""
IDLE = "{}: no update in {} steps, so that nothing is said of these rates; give more steps"
BLOCKED = "exactly zero, as the gradients of {} are whatever the weights"
MANY = "{} tokens outnumber the width of the smallest model: an update acts on all; larger sizes, or fewer tokens"
CERTIFIED, DEMANDED, BY_SHAPE = "certified", "demand", "by shape"
"""Levels of a row's prediction: an exponent of the engine, the bound that a demand sets, or the law of shapes."""
DIRECT = (".init", ".update")
"""Endings of what the initial values or the updates of one tensor make: its own numbers decide their power,
where that is one at every step."""
WIDTHS, WIDER = ("N", "N_e"), 4
"""Axes that grow where no target is given, and how much."""


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
    """Trains a model at several sizes, with the numbers of its plan or with its own, and judges how its signals change.
    Sizes that the plan leaves undecided come first: each is held against the bound that its demand sets.

    Args:
        build: ``build(sizes)`` returns a module on the CPU; or that and its optimizer, or a list of several, whose own
            initial values and rates are then checked; its input, where it does not begin with ``nn.Embedding`` or
            ``nn.Linear``; or both.
        base: sizes as for ``recipe``; by default small ones of every axis that ``build`` asks for.
        target: the same, by default with four times the widths; ``points`` sizes are trained, evenly between both.
        steps: by default two, and one more for every zero at the start that a gradient meets (gates, B of LoRA), behind
            which nothing trains before.
        seeds: replicas at every size. lr: of every parameter at the base, where ``build`` brings no optimizer.
        optimizer: as for ``plan``; by default the rules of the classes that ``build`` brings, or AdamW.
        rules: powers to train with instead of the derived ones, by parameter (as the plan names it) and ``init_std`` or
            ``lr``; what is predicted stays, so that a rule that differs is refuted where it matters.
        fold: as for ``plan``: what the model lacks is in the numbers that train it.
        strict: raise an error for a model whose equations cannot be read, which is checked by shape otherwise.

    Raises:
        UsageError: a model that cannot be built (or read, where ``strict``), sizes off one ray, too few of them or too
            few seeds, or a multiplier that the model lacks.
        Infeasible: no parameterization is found on the ray.
    """
    for what, count, least in (("seeds", seeds, MIN_SEEDS), ("points", points, MIN_SIZES)):
        if count < least:
            raise UsageError(f"{what} is {quote_value(count)}, which decides nothing; give {least} or more")
    start, smallest = time.monotonic(), read_sizes(usual(build) if base is None else base, "base")
    build = limited(build, smallest)
    wide = {axis: n * (WIDER if axis in WIDTHS else 1) for axis, n in smallest.items()}
    sizes = between(smallest, wide if target is None else read_sizes(target, "target"), points)
    ray = way(sizes[0], sizes[-1]).ray
    assert ray is not None
    reading = along(read(build, sizes[0], strict), [axis for axis in smallest if sizes[-1][axis] > smallest[axis]])
    model, inputs, own = built(build, sizes[0])
    _check_trains(model, own, inputs)
    again = built(build, sizes[0], seed=1)[0] if own is not None else model
    if own is not None and all(map(torch.equal, model.parameters(), again.parameters())):
        raise UsageError("build draws the same values whatever the seed: it calls torch.manual_seed; leave that out")
    optimizer = _rules(own, model, reading) if optimizer is None else optimizer
    if lost := [role for role in reading.network.tensors if not of_role(model, role)]:
        if lost[0] in reading.network.frozen:
            raise UsageError(f"{lost[0]} is no parameter, but differs along an axis that grows; make it a frozen one")
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
    stds = _natural(model, first)
    given: Any = {"lr": lr, "std": stds, "starts": (), **where}
    first = recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=tiny, **given)
    eps = _gradients(model, own, inputs, reading, first, zero, steps) if tiny else None
    routers = {role for e in experts(reading.network) for role in e.routers}
    still = [role for role, size in (eps or {}).items() if size == TINY and role in routers]
    if still and sizes[0].get("K") == 1 < sizes[-1]["K"]:
        raise UsageError(
            f"{still[0]} has no gradient where K is 1: the gate of one expert is 1 there; give K=2 at the base"
        )
    numbers = opened(recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=eps, **given))
    largest = planned(called(build, dict(sizes[-1]))[0], reading, numbers, [model])
    numbers = replace(numbers, open=tuple(frozen(largest, model, sizes[0])))
    how: Kind = "plan" if own is None else "own"
    m = Measurement(ray, steps, watched=(OUTPUT,))
    grows = max(sizes[0], key=lambda axis: sizes[-1][axis] / sizes[0][axis])
    m.sizes, m.dims = [s[grows] / sizes[0][grows] for s in sizes], [dict(s) for s in sizes]
    beside: Beside = {}
    switched: dict[int, list[list[bool]]] = {}
    trained = _changed(numbers, rules or {})
    names = _measure(m, build, reading, inputs, trained, zero, how, lr, seeds, fold, beside, switched)
    unsettled = settled(m, switched)
    still_there = [x.removesuffix(UPDATE) for x in names if x.endswith(UPDATE) and not _moves(m, x)]
    idle = [IDLE.format(listed(still_there), steps)] if still_there else []
    lines = reading.described({} if fold else dict.fromkeys(reading.factors, ""))  # else a multiplier is refused
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
    m.environment["read"] += [weighed(loss, found, m) for loss, found in beside.items()]
    if reading.network.unread and numbers.level is not None:
        m.environment["read"] = [*idle, *replace(numbers.level, open=()).lines, *lines]
        moving = [name for name in names if _moves(m, name)]
        theta: dict[str, Sequence[Cell]] = {name: [..., *[Fraction(0)] * steps] for name in moving}
        report = judge(m, theta, direct={name for name in names if name.endswith(DIRECT)})
        report = of_choices(_bounded(report, lambda row: not row.quantity.endswith(UPDATE)), unsettled)
        if few := ray["M"] > 0 and any(note == CHOSEN_FEW for _, note in reading.notes):
            m.environment["read"] += [FEW]
        report = _leveled(_of_few(report, set(names), float(ray["M"])) if few else report, lambda row: BY_SHAPE)
        return coming(_of_many(report, inputs, sizes[0]))
    moved = {x: power.on(ray) for x, power in (folded(numbers, reading) if fold else {}).items()}
    left = {_signal(x.quantity) for x in level.open} if (level := numbers.derivations[-1].level) else set()
    doubtful = {name for name, quantities in names.items() if left.intersection(map(_signal, quantities))}
    predicted, bounds, powers = _predicted(numbers.derivations[-1], [*zero, *empty], names, steps, moved, left)
    direct = {x for x in names if x.endswith(DIRECT) and _single(predicted[x])}
    asked = {x: [bounds[x] if e is ... else e for e in cells] for x, cells in predicted.items()}
    most = {(x, t) for x, cells in predicted.items() for t, e in enumerate(cells) if e is ...}
    after = _after_experts(reading.network) if sparse(reading.network, ray) else set()
    m.environment["read"] += [FEW] if after else []
    behind = {name for name, x in names.items() if after.intersection(x)}
    report = _bounded(judge(m, asked, powers=powers, direct=direct), lambda row: (row.quantity, row.step) in most)
    report = _leveled(report, lambda row: DEMANDED if (row.quantity, row.step) in most else CERTIFIED)
    report = _of_few(report, behind, float(ray["M"] - ray["K"])) if after else report
    report = of_crossovers(report, m, asked)
    report = _of_blocked(coming(_of_many(of_choices(report, unsettled), inputs, sizes[0])), reading.blocked)
    vectors = {f"{role}.init" for role in reading.network.tensors if all(x.dim() < 2 for x in of_role(model, role))}
    report = _bounded(report, lambda row: row.quantity in vectors)  # a bias may start smaller, or at zero
    rows = (r for r in report.rows if (r.quantity, r.step) not in most or r.verdict is not Verdict.INCONCLUSIVE)
    return replace(report, rows=tuple(sorted(rows, key=lambda r: r.quantity not in doubtful)))


def _leveled(report: Report, level: Callable[[ReportRow], str]) -> Report:
    """Return the report with the level of every row's prediction."""
    return replace(report, rows=tuple(replace(r, level=level(r)) for r in report.rows))


def _moves(m: Measurement, name: str) -> bool:
    return any(x.any() for t in range(1, m.steps + 1) for x in m.values.get((name, t), ()))


def _of_blocked(report: Report, blocked: Sequence[str]) -> Report:
    """Rows that are exactly zero are not refuted where gradients are zero whatever the weights (``blocked``), but for
    updates of other tensors."""
    others = {r.quantity for r in report.rows if r.quantity.endswith(UPDATE)} - {f"{role}{UPDATE}" for role in blocked}
    note = BLOCKED.format(listed(blocked))

    def row(r: ReportRow) -> ReportRow:
        told = r.verdict is Verdict.REFUTED and r.fit.zero and r.quantity not in others
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note) if told and blocked else r

    return replace(report, rows=tuple(map(row, report.rows)))


def _of_many(report: Report, inputs: Inputs, sizes: Sizes) -> Report:
    """Updates that fall by less than a whole power are not refuted where there are more tokens than the smallest model
    is wide.

    Model: the engine's step is of a number of tokens that stays, whose signals are told apart in a wide model; where
    they outnumber the width, the updates of all of them act on each.
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


def _single(cells: Sequence[Cell]) -> bool:
    """Is the power of every step decided, and one, where there is any?"""
    return ... not in cells and len({e for e in cells if e is not None}) < 2


def _bounded(report: Report, most: Callable[[ReportRow], bool]) -> Report:
    """Rows whose exponent is an upper bound (``most``) are not refuted by what is smaller."""

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and most(r) and (r.fit.zero or r.fit.high < (r.predicted or 0)):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=f"at most n^({r.predicted}), and below it")
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def _after_experts(network: Network) -> set[str]:
    """Quantities that the updates of experts are in, in the forward pass: those of tensors with an entry for every
    expert, and of what follows, but for the updates of other tensors."""
    after: set[str] = set()
    found: set[str] = set()
    for s in network.statements:
        own = isinstance(s, Product) and s.tensor and any(network.axes[x] == "M" for x in s.tensor.letters)
        behind = any(x.name in after for x in s.inputs)
        after |= {s.out} if own or behind else set()
        found |= {f"{s.out}{part}" for part, has in ((UPDATE, own), (".propagating", behind)) if has}
    return found | {f"{signal}.change" for signal in after}


def _of_few(report: Report, behind: Collection[str], share: float) -> Report:
    """Rows behind the updates of experts (``behind``), and those that fall, are not refuted where the noise of few
    tokens may lift them from their prediction.

    Model: the engine's step is a mean over many tokens, of which an expert sees a share K/M, as n^(-``share``); the
    noise of the few here goes as (K/M)^(1/2), and what a token itself adds to what it sees does not fall.
    """

    def row(r: ReportRow) -> ReportRow:
        least = float(r.predicted or 0)
        lifted = r.fit.low > least and r.fit.low <= least + share / (1 if least < 0 else 2) + OFF
        told = r.verdict is Verdict.REFUTED and r.predicted is not None and (least < 0 or r.quantity in behind)
        if told and lifted and not r.fit.zero:
            return replace(r, verdict=Verdict.INCONCLUSIVE, note="an expert sees few tokens here; see below")
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def settled(m: Measurement, switched: Mapping[int, Sequence[Sequence[bool]]]) -> set[int]:
    """Leaves out replicas in which a token has chosen other experts by then; the steps at which too few are left."""
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


def coming(report: Report) -> Report:
    """Return the report without refutations at a crossover: rows whose slopes come nearer to the prediction from size
    to size, as they do where one term gives way to another, are inconclusive and say which sizes would settle them.

    Between the last two sizes a certified exponent also has to be the nearest one, within one standard error, or within
    two where the slopes certainly move towards it. For a size that is undecided the slope must not be that of another
    exponent.
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
        times = _doublings_left(off, errors, (doublings[1:] + doublings[:-1]) / 2)
        shared = own[1] if len(steps) == 2 else 0.0  # both slopes have the middle size
        bent = errors[0] ** 2 + errors[-1] ** 2 + 2 * shared**2 / (steps[0] * steps[-1])
        certain = off[0] - off[-1] > 2 * math.sqrt(bent)
        near = NEAR + min(float(errors[-1]), DRIFT) * (2 if certain else 1)
        most = min(APART) - DRIFT if r.level == DEMANDED else near
        if times is None or off[-1] > most:
            return r
        note = f"comes nearer to n^({r.predicted}) from size to size; {_settling(report, times)} would settle it"
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note)

    return replace(report, rows=tuple(map(row, report.rows)))


def of_crossovers(report: Report, m: Measurement, exponents: Mapping[str, Sequence[Cell]]) -> Report:
    """Return the report without refutations of undecided sizes that a product explains whose smaller exponent still
    leads at the smallest size.

    Model: where W_0 x falls as n^(-gap) beside dW x, a norm of their sum hands on a signal that grows, by less than
    n^gap, until dW x is all of it.
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
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=f"{note}; sizes from {_settling(report, times, True)}")

    return replace(report, rows=tuple(map(row, report.rows)))


def _doublings_left(off: Array, errors: Array, at: Array) -> float | None:
    """Return after how many more doublings of n slopes lie within ``DRIFT`` of a prediction; None where a slope that
    stays where it is fits them as well as a crossover.

    Model: the squares of two terms, a n^p and b n^(p +- gap), add up. Between two sizes the local slope is then off by
    gap * w from the exponent p of the term that stays, with w / (1 - w) = odds * n^(-2 gap).

    Args:
        off: distances of slopes from the prediction, positive where they are large. errors: of these.
        at: log2 of n between two sizes.
    """
    errors = np.maximum(errors, 1e-3)

    def misfit(expected: Array) -> float:
        return float((((off - expected) / errors) ** 2).sum())

    stays = float((off / errors**2).sum() / (1 / errors**2).sum())
    best, left = misfit(np.full_like(off, stays)), None
    if off[-1] >= off[0]:
        return None
    for gap in APART:
        for odds in np.geomspace(DRIFT / gap, BEHIND, 40):  # at the last pair of sizes
            every = odds * 2.0 ** (2 * gap * (at[-1] - at))
            if (found := misfit(gap * every / (1 + every))) < best:
                settled_at = DRIFT / (gap - DRIFT)
                best, left = found, max(0.0, math.log2(odds / settled_at) / (2 * gap))
    return left


def _settling(report: Report, doublings: float, start: bool = False) -> str:
    """Return the sizes, from the largest on, over which a row would be decided after some doublings of n.

    Args:
        start: those from which on it would be decided.
    """
    first, last = report.dims[0], report.dims[-1]
    whole = math.log2(report.sizes[-1] / report.sizes[0])
    doublings = math.ceil(doublings) + (not start)  # the pair of sizes whose slope is near
    grown = {axis: round(n * (n / first[axis]) ** (doublings / whole)) for axis, n in last.items()}
    if 2.0**doublings > FURTHEST:
        return f"more than {FURTHEST:g} times the largest here" if start else f"sizes {FURTHEST:g} times as large"
    listed = [",".join(f"{axis}={n}" for axis, n in size.items()) for size in (last, grown)]
    return f"{listed[1]} on would settle it" if start else " to ".join(listed)


def of_choices(report: Report, steps: Collection[int]) -> Report:
    """Rows at steps by which tokens have chosen other experts are not refuted, but for what a tensor's own numbers
    decide: such a jump is of no power of the sizes."""

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is Verdict.REFUTED and r.step in steps and not r.quantity.endswith(DIRECT):
            return replace(r, verdict=Verdict.INCONCLUSIVE, note=CHOSEN)
        return r

    return replace(report, rows=tuple(map(row, report.rows)))


def _check_trains(model: nn.Module, own: torch.optim.Optimizer | None, inputs: Inputs) -> None:
    """Raises UsageError: nothing trains, another model's parameters would, or the output has no gradient."""
    mine = {id(p) for p in model.parameters()}
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("no parameter of the model trains: requires_grad is False for all; there is nothing to check")
    if own is not None and any(id(p) not in mine for group in own.param_groups for p in group["params"]):
        raise UsageError("the optimizer that build brings has parameters that are not of the model; give it those")
    with exactly(), running(inputs[0]):
        out = output_of(model(*inputs[0], **inputs[1]))
        if not out.isfinite().all():
            raise UsageError("the output of the model is not a number")
        if not out.requires_grad:
            raise UsageError("the output has no gradient: it is detached, or computed under torch.no_grad")


def culprit(report: Report) -> ReportRow | None:
    """Return the row to blame where one is refuted: later failures may be consequences of it.

    Rows at earlier steps come first, then those that a tensor's own numbers decide, then execution order. Such a row
    counts even if its interval misses the prediction by too little to refute it alone. Rows that agree once the two
    smallest sizes are left out come last.
    """
    if not (refuted := [r for r in report.rows if r.verdict is Verdict.REFUTED]):
        return None
    suspects = [r for r in report.rows if r in refuted or _misses(r)]
    return min(suspects, key=lambda r: (_agrees_later(report, r), r.step, not r.quantity.endswith(DIRECT)))


def _misses(r: ReportRow) -> bool:
    """Return whether what one tensor's own numbers decide lies nearer to another exponent than to the predicted one."""
    if r.predicted is None or r.fit.zero or r.note or not r.quantity.endswith(DIRECT):
        return False
    apart = r.apart > DRIFT and abs(r.fit.slope - float(r.predicted)) > NEAR
    return apart and r.verdict is Verdict.INCONCLUSIVE


def _agrees_later(report: Report, r: ReportRow) -> bool:
    """Return whether the slope without the two smallest sizes, of three without the smallest, is the predicted one."""
    if r.predicted is None or r.fit.zero or (r.quantity, r.step) not in report.means:
        return False
    left = slice(min(2, len(report.sizes) - 2), None)
    slope = np.polyfit(np.log2(report.sizes[left]), report.means[r.quantity, r.step][0][left], 1)[0]
    return bool(abs(slope - float(r.predicted)) < DRIFT)


def _measure(
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
    beside: Beside,
    switched: dict[int, list[list[bool]]],
) -> Mapping[str, Sequence[str]]:
    """Trains the model at the dimensions of a measurement and puts in what it did; quantities by name.

    Args:
        beside: gets gradients of losses beside the output. switched: gets, by step, size and seed, whether a token
            has chosen other experts by then.

    Raises:
        UsageError: an input that grows, or a multiplier that is left to the model.
    """
    names: dict[str, Sequence[str]] = {}
    small = called(build, dict(m.dims[0]))[0]  # what starts alike goes on from there

    def put(series: Series, i: int, size: Sizes, seed: int, how: Kind) -> None:
        model, mine, optimizer = built(build, size, seed)
        if [x.shape for x in _flat(mine)] != [x.shape for x in _flat(inputs)]:
            raise UsageError(f"the input grows at {dict(size)}; return one of the same shape at every size")
        there = numbers.at(size)
        p = planned(model, reading, there, [small])
        if left := {name: x for name, x in p.multipliers.items() if x != 1}:
            alone = [name for name in left if not foldable(reading.network, name)]
            if alone or not fold or how == "own":
                todo = ", as fold=True ends in no whole parameter" if alone else ", or fold=True"
                todo = "" if how == "own" else todo
                raise _lacking(reading, there, size, next(iter(alone or left)), left, todo)
            p = planned(model, reading, there, [small], fold=True)
        if how == "one":
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        elif how == "plan":
            optimizer = _set(p, zero, seed)
        watch = Watch(model, inputs, reading)
        names.update(watch.names)
        for t, _ in enumerate(_steps(model, optimizer, inputs, m.steps, _epsilons(p))):
            for key, x in watch().items():
                values = series.setdefault((key, t), [np.zeros(0) for _ in m.dims])
                values[i] = np.append(values[i], x)
            if series is m.values:
                switched.setdefault(t, [[] for _ in m.dims])[i].append(watch.switched)
        if series is m.values:
            for (loss, name), x in losses_beside(model, mine).items():
                beside.setdefault(loss, {}).setdefault(name, [np.zeros(0) for _ in m.dims])
                beside[loss][name][i] = np.append(beside[loss][name][i], x)

    with spare_threads():
        for i, size in enumerate(m.dims):
            m.parameters.append(sum(p.numel() for p in called(build, dict(size))[0].parameters()))
            m.inputs.append(str([fingerprint(x) for x in _flat(inputs)]))
            for seed in iterate_with_progress(f"training {dict(size)}", "seeds", range(seeds)):
                put(m.values, i, size, seed, how)
                put(m.standard, i, size, seed, "one")
            put(m.control, i, m.dims[0], 10_000, how)  # one draw at every size: whatever differs is no noise
    for series in (m.values, m.standard, m.control):
        for key in [key for key, values in series.items() if not all(map(len, values))]:
            del series[key]  # of a module that is there at some sizes alone, as one expert of more
    return {name: x for name, x in names.items() if any(key[0] == name for key in m.values)}


def _lacking(
    reading: Traced, numbers: Recipe, size: Sizes, name: str, left: Mapping[str, float], todo: str
) -> UsageError:
    """The error of a multiplier that is left to the model. todo: its end."""
    at, own = reading.factors[name]
    where = ",".join(f"{axis}={n}" for axis, n in size.items())
    said = f"at {where} {at or 'model'} must multiply by {left[name]:g} ({name} of scalecalc list --model)"
    rule = numbers.multipliers[name].rule
    more = "" if rule is None else f", as {rule / Power.of(own)}"
    return UsageError(f"{said}{more}; do it in its forward pass{todo}")


def _set(p: Plan, zero: Sequence[str], seed: int) -> torch.optim.Optimizer:
    """The initial values of a plan, drawn, but for those that start at zero; frozen tensors are the module's; and its
    optimizer."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        p.init_()
    for role in zero:
        for tensor in of_role(p.model, role):
            tensor.zero_()
    parts = [(e, trainer(p.recipe, e.role), p.groups[e.group].numbers) for e in p.entries if not e.frozen]
    if bound := next((rule.name for _, rule, _ in parts if rule.constraint and not rule.keeps_norm), ""):
        raise UsageError(f"check-model does not train with a constraint, as {bound} has; take verify")
    return assembled(
        [
            group(
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


def _rules(own: torch.optim.Optimizer | None, model: nn.Module, reading: Traced) -> OptimizerInput:
    """The rules of the optimizers that a model brings, by parameter.

    Raises:
        UsageError: a class that has no rule.
    """
    found, names = dict[str, str](), {id(p): name for name, p in model.named_parameters()}
    for part in optimizers_of(own) if own is not None else ():
        rule = next((rule for name, rule in RULES.items() if isinstance(part, getattr(torch.optim, name))), None)
        if rule is None:
            known = ", ".join(RULES)
            raise UsageError(f"build brings {type(part).__name__}; a check knows {known}, or say optimizer=RULE")
        found |= {names[id(p)]: rule for g in part.param_groups for p in g["params"]}
    if len({*found.values()}) < 2:
        return next(iter(found.values()), "adamw")
    roles = roles_of([*found], reading.network.tensors)
    return {"": "adamw", **{role: rule for x, mine in roles.items() if (rule := found[x]) != "adamw" for role in mine}}


def _epsilons(p: Plan) -> dict[str, float]:
    return {e.name: e.settings["eps"].target or TINY for e in p.entries if "eps" in e.settings}


def _gradients(
    model: nn.Module, own: Any, inputs: Inputs, reading: Traced, numbers: Recipe, zero: Sequence[str], steps: int
) -> dict[str, float]:
    """Epsilon at the base: the largest root-mean-square of the gradient of every parameter on the way, by role."""
    p, sizes = planned(model, reading, numbers.at(numbers.way.base), [model]), dict[str, float]()
    for _ in _steps(model, own or _set(p, zero, 0), inputs, steps, _epsilons(p)):
        for e in p.entries:
            if e.tensor.grad is not None:
                for role in roles_of([e.name], numbers)[e.name]:
                    size = float(e.tensor.grad.square().mean().sqrt())
                    sizes[role] = max(size, sizes.get(role, TINY))
    return {role: sizes.get(role, TINY) for role, settings in numbers.tensors.items() if "eps" in settings}


def _steps(
    model: nn.Module, optimizer: Any, inputs: Inputs, steps: int, epsilons: Mapping[str, float]
) -> Iterator[None]:
    """Before training and after every step: of the squared distance from fixed random targets, without weight decay.

    Args:
        epsilons: by parameter.
    """
    named = {id(p): epsilons.get(name, TINY) for name, p in model.named_parameters()}
    for part in optimizers_of(optimizer):
        alone = [(group, p) for group in part.param_groups for p in group["params"]]
        part.param_groups[:] = [{**g, "params": [p], "weight_decay": 0.0, "eps": named[id(p)]} for g, p in alone]
    places, keywords = inputs

    def loss(step: int) -> Tensor:
        return _loss(output_of(model(*places, **keywords)))

    yield
    with exactly(), guard_foreign_code("training the model"):
        for _ in descend(optimizer, loss, steps):
            yield


def _loss(out: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    return (out - torch.randn(out.shape, generator=draw, dtype=out.dtype)).square().mean()


def losses_beside(model: nn.Module, inputs: Inputs) -> dict[tuple[str, str], float]:
    """Of every loss that a module returns beside its output, and every parameter that it reaches: the size of its
    gradient over that of the loss of the output."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with exactly(), guard_foreign_code("the model"):
        out = model(*inputs[0], **inputs[1])
        found = {k: x for k, x in losses_of(out).items() if x.requires_grad}
        if not found:
            return {}
        losses = {"": _loss(output_of(out)), **found}
        grads = {k: torch.autograd.grad(x, [*named.values()], None, True, allow_unused=True) for k, x in losses.items()}
    return {
        (loss, name): float(g.norm() / main.norm())
        for loss in grads.keys() - {""}
        for name, g, main in zip(named, grads[loss], grads[""], strict=True)
        if g is not None and main is not None and g.any() and main.any()
    }


def weighed(loss: str, found: Mapping[str, Sequence[Any]], m: Measurement) -> str:
    """The power of the weight that keeps a loss beside the output at one scale with it, where its share is largest."""
    there = [x for x in found if all(map(len, found[x]))]
    if not there:
        return f"loss {loss}: its gradient is zero at some of these sizes, and no power is read off it"
    name = max(there, key=lambda x: float(np.median(found[x][0])))
    power, ends = fit(m.sizes, found[name]), [float(np.median(found[name][k])) for k in (0, -1)]
    said = f"loss {loss}: its gradient at {name} over that of the output's loss is {ends[0]:.2g} at the base"
    said += f" and {ends[1]:.2g} at the target, n^({power.slope:+.2f}) [{power.low:+.2f}, {power.high:+.2f}]"
    flat = "one weight does" if max(-power.low, power.high) < DRIFTS else "undecided, take more seeds"
    apart = power.low > OFF or power.high < -OFF
    return f"{said}: {f'WARNING, its weight is to go as n^({-power.slope:+.2f})' if apart else flat}"


def _predicted(
    d: Derivation,
    zero: Sequence[str],
    names: Mapping[str, Sequence[str]],
    steps: int,
    moved: Mapping[str, Fraction],
    left: set[str],
) -> tuple[dict[str, Sequence[Cell]], dict[str, Cell], Powers]:
    """Exponents by name where they are certified, of several quantities those that they have in common; upper bounds at
    every step, where known; and the powers below them.

    Args:
        zero: tensors that start at zero instead. moved: exponents of what is folded into signals.
        left: signals that are undecided, of which O(1) is demanded: a bound where no other is known.
    """
    tensors = {role: replace(t, init_std=None) if role in zero else t for role, t in d.scaling.tensors.items()}
    point = replace(d.scaling, tensors=tensors).point(d.ray)
    look = Analysis(d.ray, point, d.optimizer, d.network)
    lows: dict[tuple[str, int], Fraction | None] = {}

    def more(quantity: str) -> Fraction:
        return moved.get(_signal(quantity), Fraction(0))

    def cell(quantity: str, t: int) -> Cell:
        answer = briefly(look, quantity, t)
        exponent = answer.exponent if answer.decided else ...
        lows[quantity, t] = answer.low if isinstance(answer.low, Fraction) else None
        return exponent + more(quantity) if isinstance(exponent, Fraction) else exponent

    def row(quantity: str) -> list[Cell]:
        return [cell(quantity, t) for t in range(1 if quantity.endswith(".init") else steps + 1)]

    def powers(name: str, t: int) -> list[tuple[Fraction, bool]]:
        if ... not in rows[name][t]:
            return [(e + more(x), seen) for x in names[name] for e, seen in look.powers(x, t)]
        if isinstance(bound := bounds[name], EllipsisType) or bound is None:
            raise LookupError(f"{name} at t={t} has no bound")
        shown = ((x, lows.get((x, t))) for x in names[name])
        return [(bound, False), *((e + more(x), True) for x, e in shown if e is not None)]

    def at_most(quantities: Sequence[str]) -> Cell:
        bounds = [Fraction(0) if (b := look.upper(x)) is None and _signal(x) in left else b for x in quantities]
        known = [b + more(x) for b, x in zip(bounds, quantities, strict=True) if b is not None]
        return max(known) if known and len(known) == len(bounds) else ...

    asked = iterate_with_progress("predicting", "signals and parameters", list(names.items()))
    with look.meter.within(ALL):
        rows = {name: list(zip(*map(row, quantities), strict=True)) for name, quantities in asked}
    predicted: dict[str, Sequence[Cell]] = {
        name: [cells[0] if len(set(cells)) == 1 else ... for cells in row] for name, row in rows.items()
    }
    bounds = {name: at_most(x) for name, x in names.items() if ... in predicted[name]}
    return predicted, bounds, powers


def _signal(quantity: str) -> str:
    """The signal that a quantity is of, or is a part of."""
    return quantity.partition(".")[0]


def _natural(model: nn.Module, numbers: Recipe) -> dict[str, float]:
    """Standard deviations at the base: those of the module's own values, but at most the derived power there: what
    falls faster is not to lead."""
    stds = {}
    for role, settings in numbers.tensors.items():
        if (rule := settings["init_std"].rule) is None:
            continue  # it starts at zero
        most = rule.at({"L": 1, **numbers.way.base})
        own = max(float(p.double().square().mean().sqrt()) for p in of_role(model, role))
        stds[role] = min(own or most, most)
    return stds


def _flat(inputs: Inputs) -> list[Tensor]:
    return [x for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)]


def between(base: Sizes, target: Sizes, points: int) -> list[Sizes]:
    """Sizes from a base to a target, evenly on a logarithmic scale, multiples of whatever both are multiples of.

    Examples:
        >>> between({"N": 32, "M": 4}, {"N": 128, "M": 16}, 3)[1]
        {'N': 64, 'M': 8}

    Raises:
        UsageError: fewer than two, they grow on no ray, or no whole size lies where it should.
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
    if any(a == b for a, b in pairwise(sizes)):
        raise UsageError(f"{points} points are more than lie between base and target; give fewer")
    return list(sizes)


def _changed(numbers: Recipe, rules: Mapping[str, Mapping[str, Power]]) -> Recipe:
    """The recipe that is trained, with the powers of ``rules``."""
    tensors = dict(numbers.tensors)
    for role, powers in rules.items():
        tensors[role] = {**numbers[role], **{what: replace(numbers[role][what], rule=p) for what, p in powers.items()}}
    return replace(numbers, tensors=tensors)
