"""Forward multipliers put into tensors: W = m w has the numbers of w, moved by powers of m; nothing else changes.

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
from scaling_algebra.verify.tracing import Traced

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Ends:
    """Tensors that take a factor: all products whose sum is one signal; and the signals that have the factor then."""

    roles: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


def scaled(settings: Settings, power: Power, factor: float, rule: Optimizer) -> dict[str, Setting]:
    """The settings of m w, of those of w; ``factor`` is m at the target over that at the base."""
    signs = gauge_powers(rule, "init_std" in settings and settings["init_std"].rule is None)

    def power_of(s: Setting, sign: int) -> Setting:
        if s.rule is None:
            return s
        before = None if s.before is None else s.before * power**sign
        return replace(s, rule=s.rule * power**sign, factor=s.factor * factor**sign, before=before)

    return {what: power_of(s, signs[what]) for what, s in settings.items()}


def ends(network: Network, multiplier: str) -> Ends:
    """The tensors that a multiplier is folded into.

    Raises:
        UsageError: a function, a second use or a frozen tensor lies between.
    """
    at = [s for s in network.statements if isinstance(s, Product) and multiplier in s.multipliers]
    found = _made(network, at[0]) if len(at) == 1 else None
    if found is None:
        raise UsageError(f"{multiplier} (scalecalc list --model) ends in no matrix of its own; leave out fold")
    return found


def foldable(network: Network, multiplier: str) -> bool:
    """Is a multiplier folded into parameters, and not into a part of one, which has one rate?"""
    try:
        return not any("[" in role for role in ends(network, multiplier).roles)
    except UsageError:
        return False


def _made(network: Network, s: Product) -> Ends | None:
    """Of a product the tensor, or one of its factors."""
    if s.tensor is not None and len(network.uses(s.tensor.name)) == 1 and s.tensor.name not in network.frozen:
        return Ends((s.tensor.name,))
    return next((found for x in s.factors if (found := _signal(network, x.name)) is not None), None)


def _signal(network: Network, signal: str) -> Ends | None:
    s = network.producer(signal)
    if len(network.consumers(signal)) != 1:
        return None
    if isinstance(s, Product):
        found = _made(network, s)
        return None if found is None else Ends(found.roles, (*found.signals, signal))
    parts = [_signal(network, x.name) for x in s.terms] if isinstance(s, Sum) else [None]
    known = [x for x in parts if x is not None]
    if len(known) < len(parts):
        return None
    return Ends(tuple(r for x in known for r in x.roles), (*(y for x in known for y in x.signals), signal))


def folded(numbers: Recipe, reading: Traced) -> dict[str, Power]:
    """The powers that signals have besides, where all that the module lacks is folded."""
    powers: dict[str, Power] = {}
    for name, s in numbers.multipliers.items():
        more = (s.rule or Power()) / Power.of(reading.factors.get(name, ("", {}))[1])
        if more != Power():
            powers |= {x: powers.get(x, Power()) * more for x in ends(reading.network, name).signals}
    return powers
