"""Checks by training whether a plan, or the settings a model brings itself, scale as derived: ``check_model``.

The module is traced (``verify/tracing``) and its equations are derived. Then it is trained for a few steps at several
sizes, and the fitted slope of every signal and parameter update is compared with the certified exponent. Epsilons are
set to the gradients' size at the base and scaled as derived. When a plan's numbers train, the readout starts at zero:
the first step moves only the output, and after the second all tensors have moved along a coherent gradient. As a
negative control the model is also trained with its own initial values and one learning rate for all parameters.

Read next: ``model_training.py`` (trains and records), ``expected_exponents.py`` (predicts), ``suspensions.py`` and
``crossovers.py`` (when a refuted row becomes inconclusive).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from scaling_algebra.dynamics.sparse_routing import is_sparse
from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.recipes.sizes import Sizes, read_sizes, way
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.desiderata import Structure, last_step
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.optimizer_reading import OptimizerInput
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.tracing.building import (
    Inputs,
    build_module,
    call_build,
    get_default_sizes,
    in_float64,
    limit_sizes,
)
from scaling_algebra.verify.tracing.gradients import join_names
from scaling_algebra.verify.tracing.measuring import OUTPUT, UPDATE, find_parameters
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.recording import find_output, guard_forward
from scaling_algebra.verify.tracing.shapes import CHOSEN_FEW, drop_fixed_map_notes

from .crossovers import suspend_converging_rows, suspend_crossovers
from .expected_exponents import get_signal, predict_exponents
from .extra_losses import GradientRatios, describe_loss_weight
from .folding import compute_folded_powers
from .frozen import find_misscaled_tensors
from .initial_values import build_twin
from .interpolation import interpolate_sizes
from .model_training import TINY, Kind, measure_gradients, train_and_measure
from .planning import build_plan, mark_shape_only
from .rows import BY_SHAPE, CERTIFIED, DEMANDED, DIRECT, Cell, add_levels, has_single_power
from .starting_numbers import choose_base_stds, read_optimizer_rules, replace_rules
from .suspensions import (
    FEW,
    WIDER,
    WIDTHS,
    apply_upper_bounds,
    drop_rerouted_replicas,
    find_after_experts,
    suspend_blocked_rows,
    suspend_crowded_updates,
    suspend_noisy_experts,
    suspend_rerouted_steps,
)

IDLE = "{}: not updated in {} steps, so their learning rates are not checked; give more steps"
PLANNED = "trained with derived numbers, not the module's own: let build return (model, optimizer) to check those"


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

    Quantities whose size the plan leaves undecided are listed first; each is compared with the bound that its demand
    sets.

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
        rules: powers to train with instead of the derived ones: parameter, or a part of it such as ``qkv[0]`` (as the
            plan names them) -> ``init_std`` or ``lr`` -> power. Predictions do not change, so a rule that matters is
            refuted.
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
            raise UsageError(f"{what} is {quote_value(count)}, which is too few for a verdict; give {least} or more")
    start, smallest = time.monotonic(), read_sizes(get_default_sizes(build) if base is None else base, "base")
    build = limit_sizes(build, smallest)
    wide = {axis: n * (WIDER if axis in WIDTHS else 1) for axis, n in smallest.items()}
    sizes = interpolate_sizes(smallest, wide if target is None else read_sizes(target, "target"), points)
    ray = way(sizes[0], sizes[-1]).ray
    assert ray is not None
    reading = drop_fixed_map_notes(
        read_module(build, sizes[0], strict), [axis for axis in smallest if sizes[-1][axis] > smallest[axis]]
    )
    model, inputs, own = build_module(build, sizes[0])
    _check_trains(model, own, inputs)
    again = build_module(build, sizes[0], seed=1)[0] if own is not None else model
    if own is not None and all(map(torch.equal, model.parameters(), again.parameters())):
        raise UsageError("build draws the same values for every seed; remove torch.manual_seed from it")
    optimizer = read_optimizer_rules(own, model, reading) if optimizer is None else optimizer
    if lost := [role for role in reading.network.tensors if not find_parameters(model, role)]:
        if lost[0] in reading.network.frozen:
            raise UsageError(
                f"{lost[0]} is a tensor with a growing axis but not a parameter; make it a parameter with "
                "requires_grad=False"
            )
        raise UsageError("the output grows; return one of the same shape at every size, such as logits")
    where: Any = {"network": reading.networks}
    asked: Any = {"ray": ray, "network": reading.network}  # without a ray, a recipe would search for another one
    try:
        found = derive(None, optimizer, parameterization, **asked)
    except Infeasible as error:  # as for a plan, there may be no solution with a derived epsilon
        where["epsilon"] = "negligible"
        try:
            found = derive(None, optimizer, parameterization, **asked, epsilon="negligible")
        except (Infeasible, UsageError):
            raise error from None
    tiny = TINY if any(rule.epsilon for rule in found.optimizer.rules) else None
    first = recipe(sizes[0], sizes[-1], optimizer, parameterization, lr=lr, eps=tiny, **where)
    zero = [
        role
        for role in first
        if all(not p.any() and (own is not None or p.dim() < 2) for p in find_parameters(model, role))
    ]
    zero = [role for role in zero if role not in reading.network.frozen]
    empty = [role for role in reading.network.frozen if not any(p.any() for p in find_parameters(model, role))]
    if steps is None:
        asleep = frozenset[str]() if reading.network.unread else reading.network.zero.union(zero)
        steps = last_step(reading.network, Structure(zero=asleep))
    stds = choose_base_stds(model, first)
    given: Any = {"lr": lr, "std": stds, "starts": (), **where}
    first = recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=tiny, **given)
    how: Kind = "plan" if own is None else "own"
    eps = measure_gradients(build, reading, first, zero, how, steps) if tiny else None
    routers = {role for e in experts(reading.network) for role in e.routers}
    still = [role for role, size in (eps or {}).items() if size == TINY and role in routers]
    if still and sizes[0].get("K") == 1 < sizes[-1]["K"]:
        raise UsageError(
            f"{still[0]} has no gradient at K=1, where the gate of the one active expert is constant; give K=2 at the "
            "base"
        )
    numbers = mark_shape_only(recipe(sizes[0], sizes[-1], optimizer, parameterization, eps=eps, **given))
    twins = [build_twin(build, sizes[0])]
    largest = build_plan(call_build(build, dict(sizes[-1]))[0], reading, numbers, [model], twins=twins)
    numbers = replace(numbers, open=tuple(find_misscaled_tensors(largest, model, sizes[0])))
    m = Measurement(ray, steps, watched=(OUTPUT,))
    grows = max(sizes[0], key=lambda axis: sizes[-1][axis] / sizes[0][axis])
    m.sizes, m.dims = [s[grows] / sizes[0][grows] for s in sizes], [dict(s) for s in sizes]
    beside: GradientRatios = {}
    switched: dict[int, list[list[bool]]] = {}
    trained = replace_rules(numbers, rules or {})
    names = train_and_measure(m, build, reading, inputs, trained, zero, how, lr, seeds, fold, beside, switched)
    unsettled = drop_rerouted_replicas(m, switched)
    still_there = [x.removesuffix(UPDATE) for x in names if x.endswith(UPDATE) and not _is_moving(m, x)]
    idle = [IDLE.format(join_names(still_there), steps)] if still_there else []
    # without fold, a missing multiplier has been refused before
    lines = [*reading.describe({} if fold else dict.fromkeys(reading.factors, ""))]
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
            apply_upper_bounds(report, lambda row: not row.quantity.endswith(UPDATE)), unsettled
        )
        if few := ray["M"] > 0 and any(note == CHOSEN_FEW for _, note in reading.notes):
            m.environment["read"] += [FEW]
        report = add_levels(
            suspend_noisy_experts(report, set(names), float(ray["M"])) if few else report, lambda row: BY_SHAPE
        )
        return suspend_converging_rows(suspend_crowded_updates(report, inputs, sizes[0]))
    moved = {x: power.on(ray) for x, power in (compute_folded_powers(numbers, reading) if fold else {}).items()}
    left = {get_signal(x.quantity) for x in level.open} if (level := numbers.derivations[-1].level) else set()
    doubtful = {name for name, quantities in names.items() if left.intersection(map(get_signal, quantities))}
    predicted, bounds, powers = predict_exponents(numbers.derivations[-1], [*zero, *empty], names, steps, moved, left)
    clean = {x for x in names if x.endswith(DIRECT[0]) and len({e for e, _ in powers(x, 0)}) == 1}
    direct = {x for x in names if x.endswith(DIRECT) and has_single_power(predicted[x])}
    direct = {x for x in direct if f"{x.removesuffix(UPDATE).removesuffix(DIRECT[0])}{DIRECT[0]}" in clean}
    asked = {x: [bounds[x] if e is ... else e for e in cells] for x, cells in predicted.items()}
    most = {(x, t) for x, cells in predicted.items() for t, e in enumerate(cells) if e is ...}
    after = find_after_experts(reading.network) if is_sparse(reading.network, ray) else set()
    m.environment["read"] += [FEW] if after else []
    behind = {name for name, x in names.items() if after.intersection(x)}
    report = apply_upper_bounds(
        judge(m, asked, powers=powers, direct=direct), lambda row: (row.quantity, row.step) in most
    )
    report = add_levels(report, lambda row: DEMANDED if (row.quantity, row.step) in most else CERTIFIED)
    report = suspend_noisy_experts(report, behind, float(ray["M"] - ray["K"])) if after else report
    report = suspend_crossovers(report, m, asked)
    report = suspend_blocked_rows(
        suspend_converging_rows(suspend_crowded_updates(suspend_rerouted_steps(report, unsettled), inputs, sizes[0])),
        reading.blocked,
    )
    vectors = {
        f"{role}.init" for role in reading.network.tensors if all(x.dim() < 2 for x in find_parameters(model, role))
    }
    report = apply_upper_bounds(report, lambda row: row.quantity in vectors)  # a bias may start smaller, or at zero
    rows = (r for r in report.rows if (r.quantity, r.step) not in most or r.verdict is not Verdict.INCONCLUSIVE)
    return replace(report, rows=tuple(sorted(rows, key=lambda r: r.quantity not in doubtful)))


def _is_moving(m: Measurement, name: str) -> bool:
    """Whether the measured quantity ``name`` is nonzero after some step, at some size."""
    return any(x.any() for t in range(1, m.steps + 1) for x in m.values.get((name, t), ()))


def _check_trains(model: nn.Module, own: torch.optim.Optimizer | None, inputs: Inputs) -> None:
    """Checks that the model can be trained.

    Raises:
        UsageError: no parameter takes a gradient, the optimizer has parameters of another model, or the output is not
            finite or has no gradient.
    """
    mine = {id(p) for p in model.parameters()}
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError(
            "no parameter of the model trains: requires_grad is False for all; set it for the parameters to train"
        )
    if own is not None and any(id(p) not in mine for group in own.param_groups for p in group["params"]):
        raise UsageError(
            "the optimizer that build returns has parameters of another model; construct it with those of the "
            "returned model"
        )
    with in_float64(), guard_forward(inputs[0]):
        out = find_output(model(*inputs[0], **inputs[1]))
        if not out.isfinite().all():
            raise UsageError(
                "the output of the model is not finite at the smallest size; check its initial values and the input"
            )
        if not out.requires_grad:
            raise UsageError(
                "the output has no gradient, because it is detached or computed under torch.no_grad; return it with "
                "its graph"
            )
