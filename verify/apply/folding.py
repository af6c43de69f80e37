"""Folds forward multipliers into tensors: W = m w has the numbers of w times powers of m.

Law: that of ``spec/gauges.py``.
Read next: ``planning.py`` (which multipliers are folded).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import Recipe
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.gauges import gauge_powers
from scaling_algebra.spec.networks.language import Network, Product, Sum
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.tracing import TracedModel

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class FoldTarget:
    """The tensors into which a multiplier is folded, and the signals between it and them.

    Attributes:
        roles: the tensors that absorb the factor (several if a sum of products has it).
        signals: the signals that carry the factor afterwards.
    """

    roles: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


def rescale_settings(settings: Settings, power: Power, factor: float, rule: Optimizer) -> dict[str, Setting]:
    """Returns the settings of m w, given those of w.

    Args:
        settings: the settings of w.
        power: the power of the axes that m follows.
        factor: m at the target divided by m at the base.
        rule: the optimizer of w.
    """
    signs = gauge_powers(rule, "init_std" in settings and settings["init_std"].rule is None)

    def power_of(s: Setting, sign: int) -> Setting:
        if s.rule is None:
            return s
        before = None if s.before is None else s.before * power**sign
        return replace(s, rule=s.rule * power**sign, factor=s.factor * factor**sign, before=before)

    return {what: power_of(s, signs[what]) for what, s in settings.items()}


def find_fold_target(network: Network, multiplier: str) -> FoldTarget:
    """Returns the tensors that a multiplier is folded into.

    Raises:
        UsageError: a function, a second use or a frozen tensor lies in between.
    """
    at = [s for s in network.statements if isinstance(s, Product) and multiplier in s.multipliers]
    found = _find_target_of_product(network, at[0]) if len(at) == 1 else None
    if found is None:
        raise UsageError(
            f"{multiplier} (scalecalc list --model) cannot be folded, because no single matrix absorbs it; leave out "
            "fold and multiply in the model"
        )
    return found


def is_foldable(network: Network, multiplier: str) -> bool:
    """Whether a multiplier can be folded into whole parameters (a part of a parameter has no rate of its own)."""
    try:
        return not any("[" in role for role in find_fold_target(network, multiplier).roles)
    except UsageError:
        return False


def _find_target_of_product(network: Network, s: Product) -> FoldTarget | None:
    """Returns the fold target of a product: its tensor, or that of one of its factors; None if there is none."""
    if s.tensor is not None and len(network.uses(s.tensor.name)) == 1 and s.tensor.name not in network.frozen:
        return FoldTarget((s.tensor.name,))
    return next((found for x in s.factors if (found := _find_target_of_signal(network, x.name)) is not None), None)


def _find_target_of_signal(network: Network, signal: str) -> FoldTarget | None:
    """Returns the fold target of a signal that is used once: of its product, or of all terms of its sum; None if
    there is none."""
    s = network.producer(signal)
    if len(network.consumers(signal)) != 1:
        return None
    if isinstance(s, Product):
        found = _find_target_of_product(network, s)
        return None if found is None else FoldTarget(found.roles, (*found.signals, signal))
    parts = [_find_target_of_signal(network, x.name) for x in s.terms] if isinstance(s, Sum) else [None]
    known = [x for x in parts if x is not None]
    if len(known) < len(parts):
        return None
    return FoldTarget(tuple(r for x in known for r in x.roles), (*(y for x in known for y in x.signals), signal))


def compute_folded_powers(numbers: Recipe, reading: TracedModel) -> dict[str, Power]:
    """Returns, by signal, the additional power that it has once all multipliers that the module lacks are folded."""
    powers: dict[str, Power] = {}
    for name, s in numbers.multipliers.items():
        more = (s.rule or Power()) / Power.of(reading.factors.get(name, ("", {}))[1])
        if more != Power():
            powers |= {x: powers.get(x, Power()) * more for x in find_fold_target(reading.network, name).signals}
    return powers
