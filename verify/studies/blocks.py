"""Experiments that train a configuration at several sizes and compare the measured exponents with the engine's.

The configuration may start saturated (standard parameterization) or have an epsilon other than the derived one. If
Adam's epsilon is above the gradients, its step is ``gradient / epsilon``, so that the exponent d of epsilon counts like
any other; if epsilon is below a gradient that a symmetry cancels, noise is amplified to a Theta(1) step. Read next:
``measuring/runs.py`` (trains the block), ``claims/routers.toml``, ``claims/epsilon.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.verdicts import compute_spacing, fit_quantity
from scaling_algebra.verify.measuring.runs import measure

from .findings import Conditions, Observation


def predict_deficit(d: Derivation, t: int) -> Fraction | None:
    """Returns the exponent of the deficit 1 - entropy of the router's softmax after t updates; None if it is exactly
    zero.

    Law: 1 - entropy ~ spread^2, where the spread of the logits over experts is small, else Theta(1).
    Assumes: a softmax, and an entropy divided by its largest value, that of equal probabilities. For small centred
    logits psi the probabilities differ from equal ones in proportion to psi; the entropy is largest there, so that it
    changes in second order.
    """
    spread = d.analysis()("psi.spread", t).exponent
    return None if spread is None else min(2 * spread, Fraction(0))


def with_epsilon(d: Derivation, epsilon: Mapping[str, str], share: str = "1") -> Derivation:
    """Returns a derivation in which the powers of Adam's epsilon are replaced.

    Args:
        d: the derivation.
        epsilon: new powers by role; the key ``all`` stands for every role that has none of its own.
        share: the power to which the derived epsilons of all other roles are raised.
    """

    def replace_epsilon(role: str, derived: Power | None) -> Power | None:
        power = epsilon.get(role, epsilon.get("all"))
        if power is not None:
            return Power.parse(power)
        return None if derived is None else derived ** Fraction(share)

    tensors = {role: replace(t, eps=replace_epsilon(role, t.eps)) for role, t in d.scaling.tensors.items()}
    return replace(d, scaling=replace(d.scaling, tensors=tensors))


def measure_block(
    how: Conditions,
    names: Sequence[str],
    *,
    optimizer: str,
    parameterization: str,
    architecture: str,
    regime: str = "I",
    epsilon: Mapping[str, str] | None = None,
    share: str = "1",
    scale: str = "1",
    more: int = 1,
) -> dict[str, Observation]:
    """Trains a network, given by its architecture, and returns the measured values of quantities ``NAME@t``, by name.

    A claim about a median over seeds needs all values, even those below rounding error; its quantity is written
    ``NAME@t, typical``.

    Args:
        how: device, sizes and seeds.
        names: the quantities, such as ``phi.deficit@2``.
        optimizer: name of the optimizer.
        parameterization: name of the parameterization.
        architecture: name of the network.
        regime: regime of the axes.
        epsilon: powers that replace those of Adam's epsilon, as for `with_epsilon`.
        share: the power to which the derived epsilons of all other roles are raised.
        scale: factor on the sizes, for quantities that underflow or converge late.
        more: factor on the number of seeds, for quantities that are rare or have few entries.

    Raises:
        UsageError: the scaled sizes are below 2 or coincide.
    """
    factor = Fraction(scale)
    sizes = [int(n * factor) for n in how.sizes]
    if len(set(sizes)) < len(sizes) or sizes[0] < 2:
        raise UsageError(
            f"sizes are {list(how.sizes)}; a saturated router is trained at n / {1 / factor}, so give larger ones"
        )
    d = with_epsilon(derive(regime, optimizer, parameterization, architecture=architecture), epsilon or {}, share)
    texts = {name: name.removesuffix(", typical").partition("@") for name in names}
    quantities = {name: (quantity, int(step)) for name, (quantity, _, step) in texts.items()}
    steps = max(step for _, step in quantities.values())
    run = measure(d, sizes=sizes, seeds=more * how.seeds, steps=steps, device=how.device)
    observations = {}
    for name, (quantity, step) in quantities.items():
        if name.endswith(", typical"):
            observations[name] = Observation(run.values[quantity, step], run.sizes)
        else:
            values, spacing = run.get_cleaned(quantity, step), compute_spacing(run)
            derived = predict_deficit(d, step) if quantity == "phi.deficit" else d.analysis()(quantity, step).exponent
            observations[name] = Observation(values, run.sizes, derived=derived, spacing=spacing)
    return observations


Question = tuple[Derivation, str, int]
"""(configuration, quantity, number of updates); a quantity with ``*`` stands for the largest one that matches."""


def fit_slopes(questions: Sequence[Question]) -> list[str]:
    """Trains networks and measures the exponents of n that are asked for.

    Every configuration is trained once, with the default sizes and seeds: under a minute on two cores.

    Args:
        questions: triples (derivation of a configuration, name of a quantity, number of updates).

    Returns:
        For each quantity the slope with its 95 % interval as text, or the reason why there is none.
    """
    texts = [""] * len(questions)
    for d in {id(d): d for d, _, _ in questions}.values():
        members = [(k, name, step) for k, (derivation, name, step) in enumerate(questions) if derivation is d]
        products = [name for _, name, _ in members if name.startswith("<")]
        steps = max(step for *_, step in members)
        run = measure(d, steps=steps, products=products)
        for k, name, step in members:
            texts[k] = _fit_slope(run, name, step)
    return texts


def _fit_slope(run: Measurement, quantity: str, step: int) -> str:
    names = [name for name, t in run.values if t == step and fnmatchcase(name, quantity)] or [quantity]
    measured = [name for name in names if (name, step) in run.values]
    if not measured:
        return f"{quantity} is not measured"
    name = max(measured, key=lambda n: float(np.sqrt(np.mean(run.values[n, step][-1] ** 2))))
    f = fit_quantity(run, name, step)
    where = f"{name} " if name != quantity else ""
    sizes = f"n = {min(run.sizes):g} to {max(run.sizes):g}"
    return f"{where}slope {f.slope:+.3f}, 95 % interval [{f.low:+.3f}, {f.high:+.3f}], {sizes}, {f.seeds} seeds or more"
