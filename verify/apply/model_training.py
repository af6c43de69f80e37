"""Trains a model of a check with the numbers of its plan or its own, and records its quantities.

Read next: ``../tracing/measuring.py`` (what is measured).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError, guard_foreign_code
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.hardware import use_one_thread
from scaling_algebra.verify.judging.fit import MIN_SEEDS
from scaling_algebra.verify.judging.measurement import Measurement, Series, compute_fingerprint
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.networks.steppers import Fold, build_group, build_optimizer, list_optimizers
from scaling_algebra.verify.tracing import TracedModel
from scaling_algebra.verify.tracing.building import Inputs, build_module, call_build, in_float64
from scaling_algebra.verify.tracing.gradients import match_roles
from scaling_algebra.verify.tracing.measuring import TrainingWatch, find_parameters
from scaling_algebra.verify.tracing.recording import find_output
from scaling_algebra.waiting import iterate_with_progress

from .extra_losses import GradientRatios, compare_extra_losses, compute_loss
from .folding import is_foldable
from .initial_values import build_twin
from .planning import build_plan
from .plans import Plan, find_optimizer

TINY = 1e-30
"""Epsilon of a parameter without a gradient."""
NEARLY_ZERO = 0.1
"""A gradient smaller than this share of what it is under other seeds is nearly zero by chance."""
Kind = Literal["plan", "own", "one"]
"""What trains the model: the plan's numbers, the model's own, or its initial values with one learning rate for all."""


def train_and_measure(
    m: Measurement,
    build: Any,
    reading: TracedModel,
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
        how: what trains the model: "plan" (the plan's numbers), "own" (the model's own), or "one" (the negative
            control: the model's own initial values and one learning rate for all parameters).
        lr: the one learning rate of the negative control.
        seeds: number of replicas per size.
        fold: whether missing multipliers are folded into parameters.
        beside: filled with the gradients of extra losses, relative to that of the output's loss.
        switched: filled, by step, size and seed, with whether a token has changed its experts.

    Returns:
        By name of a measured series, the engine's quantities that it is compared with.

    Raises:
        UsageError: an input that grows with the sizes, or a multiplier that the model has to apply itself.
    """
    names: dict[str, Sequence[str]] = {}
    small = call_build(build, dict(m.dims[0]))[0]  # initial values that are the same at every size are copied from here
    twins = [build_twin(build, m.dims[0])]

    def put(series: Series, i: int, size: Sizes, seed: int, how: Kind) -> None:
        model, mine, optimizer = build_module(build, size, seed)
        if [x.shape for x in list_tensors(mine)] != [x.shape for x in list_tensors(inputs)]:
            raise UsageError(f"the input grows at {dict(size)}; return one of the same shape at every size")
        there = numbers.at(size)
        p = build_plan(model, reading, there, [small], twins=twins)
        if left := {name: x for name, x in p.multipliers.items() if x != 1}:
            alone = [name for name in left if not is_foldable(reading.network, name)]
            if alone or not fold or how == "own":
                todo = ", as fold=True ends in no whole parameter" if alone else ", or fold=True"
                todo = "" if how == "own" else todo
                raise _build_multiplier_error(reading, there, size, next(iter(alone or left)), left, todo)
            p = build_plan(model, reading, there, [small], fold=True, twins=twins)
        if how == "one":
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        elif how == "plan":
            optimizer = apply_plan(p, zero, seed)
        watch = TrainingWatch(model, inputs, reading)
        names.update(watch.names)
        for t, _ in enumerate(train_steps(model, optimizer, inputs, m.steps, _get_epsilons(p))):
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
            m.parameters.append(sum(p.numel() for p in call_build(build, dict(size))[0].parameters()))
            m.inputs.append(str([compute_fingerprint(x) for x in list_tensors(inputs)]))
            for seed in iterate_with_progress(f"training {dict(size)}", "seeds", range(seeds)):
                put(m.values, i, size, seed, how)
                put(m.standard, i, size, seed, "one")
            put(m.control, i, m.dims[0], 10_000, how)  # the same draw at every size, so differences are not noise
    for series in (m.values, m.standard, m.control):
        for key in [key for key, values in series.items() if not all(map(len, values))]:
            del series[key]  # of a module that exists at some sizes only, such as an additional expert
    return {name: x for name, x in names.items() if any(key[0] == name for key in m.values)}


def _build_multiplier_error(
    reading: TracedModel, numbers: Recipe, size: Sizes, name: str, left: Mapping[str, float], todo: str
) -> UsageError:
    """Returns the error that tells the user to apply a missing multiplier in the model's forward pass.

    Args:
        reading: the traced model.
        numbers: the recipe at this size.
        size: the sizes of the axes at which the module lacks the multiplier.
        name: the multiplier.
        left: by multiplier, the factor that is missing.
        todo: what the user can do instead, as the end of the message.
    """
    at, own = reading.factors[name]
    where = ",".join(f"{axis}={n}" for axis, n in size.items())
    said = f"at {where} {at or 'model'} must multiply by {left[name]:g} ({name} of scalecalc list --model)"
    rule = numbers.multipliers[name].rule
    more = "" if rule is None else f", as {rule / Power.of(own)}"
    return UsageError(f"{said}{more}; do it in its forward pass{todo}")


def apply_plan(p: Plan, zero: Sequence[str], seed: int) -> torch.optim.Optimizer:
    """Draws the initial values of a plan's module and returns the optimizer that trains it with the plan's numbers.
    Frozen tensors keep the module's values.

    Args:
        p: the plan.
        zero: parameters to set to zero.
        seed: seed of the draw.

    Raises:
        UsageError: an optimizer of the plan has a constraint on the weights that cannot be trained here.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        p.init_()
    for role in zero:
        for tensor in find_parameters(p.model, role):
            tensor.zero_()
    parts = [(e, find_optimizer(p.recipe, e.role), p.groups[e.group].rates) for e in p.entries if not e.frozen]
    if bound := next((rule.name for _, rule, _ in parts if rule.constraint and not rule.keeps_norm), ""):
        raise UsageError(f"check-model cannot train with the constraint of {bound}; use scalecalc verify")
    epsilons = _get_epsilons(p)
    optimizer = build_optimizer(
        [
            build_group(
                rule,
                e.tensor,
                max(rates.values()),
                epsilons.get(e.name, TINY),
                0.0,
                **({"fold": Fold.last(e.tensor)} if rule.acts_on_matrices else {}),
            )
            for e, rule, rates in parts
        ]
    )
    for e, _, rates in parts:
        for part, rate in rates.items():
            if rate != max(rates.values()):
                rescale_steps(optimizer, e.tensor.detach().narrow(*e.spans[part]), rate / max(rates.values()))
    return optimizer


def rescale_steps(optimizer: torch.optim.Optimizer, part: Tensor, factor: float) -> None:
    """Multiplies all later steps of an optimizer on a part of a parameter by a factor, as if this part had another
    learning rate.

    Args:
        optimizer: the optimizer; hooks that do this are registered on it.
        part: view of the part in the parameter.
        factor: learning rate of the part divided by that of the parameter.
    """
    before = part.clone()

    def keep(*_: Any) -> None:
        before.copy_(part)

    def rescale(*_: Any) -> None:
        part.copy_(torch.lerp(before, part, factor))

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(rescale)


def _get_epsilons(p: Plan) -> dict[str, float]:
    """Returns the epsilon of every parameter that has one, by name."""
    return {e.name: e.settings["eps"].target or TINY for e in p.entries if "eps" in e.settings}


def measure_gradients(
    build: Any, reading: TracedModel, numbers: Recipe, zero: Sequence[str], how: Kind, steps: int
) -> dict[str, float]:
    """Trains at the base under several seeds and returns the epsilon of every parameter: the largest rms of its
    gradient over all steps, under the first seed with a gradient.

    Under one seed the gradient may be nearly zero by chance (units of a narrow relu are off, a drawn factor is small).
    An epsilon of that size would be negligible under every other seed, so the median over the seeds is returned then.
    """
    asked = [role for role, settings in numbers.tensors.items() if "eps" in settings]
    found, twins = {role: np.full(MIN_SEEDS, TINY) for role in asked}, [build_twin(build, numbers.way.base)]
    for seed in range(MIN_SEEDS):
        model, inputs, own = build_module(build, dict(numbers.way.base), seed)
        p = build_plan(model, reading, numbers.at(numbers.way.base), [model], twins=twins)
        optimizer = apply_plan(p, zero, seed) if how == "plan" else own
        for _ in train_steps(model, optimizer, inputs, steps, _get_epsilons(p)):
            for e in p.entries:
                if e.tensor.grad is not None:
                    for role in match_roles([e.name], found)[e.name]:
                        found[role][seed] = max(found[role][seed], float(e.tensor.grad.square().mean().sqrt()))
    first = {role: next((float(x) for x in sizes if x > TINY), TINY) for role, sizes in found.items()}
    usual = {role: float(np.median(sizes)) for role, sizes in found.items()}
    return {role: usual[role] if x < usual[role] * NEARLY_ZERO else x for role, x in first.items()}


def train_steps(
    model: nn.Module, optimizer: Any, inputs: Inputs, steps: int, epsilons: Mapping[str, float]
) -> Iterator[None]:
    """Trains a model, and yields before the first step and after every step, so that the caller can measure it.

    The loss is the squared distance of the output from fixed random targets, without weight decay.

    Args:
        model: the model.
        optimizer: its optimizer, whose epsilons and weight decays are replaced.
        inputs: the model's input.
        steps: number of steps.
        epsilons: epsilon by parameter name; parameters not listed get ``TINY``.
    """
    named = {id(p): epsilons.get(name, TINY) for name, p in model.named_parameters()}
    for part in list_optimizers(optimizer):
        alone = [(group, p) for group in part.param_groups for p in group["params"]]
        part.param_groups[:] = [{**g, "params": [p], "weight_decay": 0.0, "eps": named[id(p)]} for g, p in alone]
    places, keywords = inputs

    def loss(step: int) -> Tensor:
        return compute_loss(find_output(model(*places, **keywords)))

    yield
    with in_float64(), guard_foreign_code("training the model"):
        for _ in descend(optimizer, loss, steps):
            yield


def list_tensors(inputs: Inputs) -> list[Tensor]:
    """Returns the tensors among the positional and keyword inputs."""
    return [x for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)]
