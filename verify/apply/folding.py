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
    """The tensors into which a multiplier of the forward pass is folded: they take up the factor, and the signals
    between them and the place of the multiplier change by it.

    Attributes:
        roles: the tensors that take up the factor (several if a sum of products is multiplied).
        signals: the signals that contain the factor afterwards.
    """

    roles: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


def rescale_settings(settings: Settings, power: Power, factor: float, rule: Optimizer) -> dict[str, Setting]:
    """Returns the settings (init std, learning rate, ...) of the tensor W = m w, given those of w, where m is a
    multiplier of the forward pass.

    Args:
        settings: the settings of w.
        power: m as a product of powers of the axes.
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
        UsageError: there are none, because a function, a signal with a second use or a frozen tensor lies between them
            and the multiplier.
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
    """Whether a multiplier can be folded into tensors that are whole parameters. A part of a parameter, such as the
    query in a packed matrix, does not count, since it has no learning rate of its own.
    """
    try:
        return not any("[" in role for role in find_fold_target(network, multiplier).roles)
    except UsageError:
        return False


def _find_target_of_product(network: Network, s: Product) -> FoldTarget | None:
    """Returns the tensors that can be multiplied by a number in place of a product: the tensor of the product itself
    (W in W x), or those in place of one of its factors (x); None if there are none.
    """
    if s.tensor is not None and len(network.uses(s.tensor.name)) == 1 and s.tensor.name not in network.frozen:
        return FoldTarget((s.tensor.name,))
    return next((found for x in s.factors if (found := _find_target_of_signal(network, x.name)) is not None), None)


def _find_target_of_signal(network: Network, signal: str) -> FoldTarget | None:
    """Returns the tensors that can be multiplied by a number in place of a signal, or None if there are none.

    The signal must be used only once. The tensors are those of the product that computes it, or, if it is a sum, those
    of all its terms.
    """
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
    """Returns, by signal, the power of the axes by which it changes when all multipliers that the module lacks are
    folded into tensors.
    """
    powers: dict[str, Power] = {}
    for name, s in numbers.multipliers.items():
        more = (s.rule or Power()) / Power.of(reading.factors.get(name, ("", {}))[1])
        if more != Power():
            powers |= {x: powers.get(x, Power()) * more for x in find_fold_target(reading.network, name).signals}
    return powers
