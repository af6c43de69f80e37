"""The tasks of ``scalecalc study transfer``, by name: data, network and schedule. Needs no torch.

Adding a task: one more table in ``tasks.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from scaling_algebra.verify.measuring.batches import Data


@dataclass(frozen=True)
class Task:
    """Data, network and schedule.

    Attributes:
        name, title: for the command line and reports; the name is that of a function of ``measuring/batches.py``.
        settings: what that function takes, with defaults.
        transformer: is the network one? (It has dense parts outside the MoE block.)
        base: default base size. widths: default values of N. grid: default log2 learning rates (first, last, spacing).
        steps: default number of updates.
        warmup: share of the steps with growing learning rate. final: learning rate at the end over its maximum
            (cosine in between; 1: constant).
        decay: weight decay, where the optimizer has a decoupled one.
        betas: of the optimizer, where it has them; None: its own.
    """

    name: str
    title: str
    settings: dict[str, int]
    base: dict[str, int]
    widths: tuple[int, ...]
    grid: tuple[float, float, float]
    steps: int
    warmup: float = 0.0
    final: float = 1.0
    decay: float = 0.0
    betas: tuple[float, float] | None = None
    transformer: bool = False

    def data(self, settings: Iterable[str] = ()) -> Data:
        """Loads the data.

        Args:
            settings: ``name=number``.

        Raises:
            UsageError: an unknown setting, or what the data need is missing.
        """
        from scaling_algebra.verify.measuring import batches

        chosen = dict(self.settings)
        for text in settings:
            name = text.partition("=")[0].strip()
            wrong = f"cannot read the setting {text!r}; write name=number, e.g. {name}={self.settings.get(name)}"
            chosen |= numbers(f"setting of {self.name}", [text], chosen, limits.SEEDS, wrong)
        data: Data = getattr(batches, self.name)(**chosen)
        return replace(data, settings=chosen)


def numbers(kind: str, texts: Iterable[str], names: Iterable[str], most: int, wrong: str) -> dict[str, int]:
    """``NAME=NUMBER``, each a positive whole number.

    Raises:
        UsageError: an unknown name, or ``wrong``.
    """
    values: dict[str, int] = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        if name not in names:
            raise unknown_name(kind, name, names)
        try:
            values[name] = limits.within(name, limits.whole(number), 1, most)
        except ValueError:
            raise UsageError(wrong) from None
    return values


def _task(name: str, entry: Mapping[str, Any]) -> Task:
    settings: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in entry.items()}
    return Task(name, **settings)


TASKS = {
    name: _task(name, entry)
    for name, entry in tomllib.loads(files(__package__).joinpath("tasks.toml").read_text("utf-8")).items()
}
"""Every task, by name."""
SWEPT = ("lr", "init", "epsilon", "alpha")
"""Constants of a sweep: the rate, every init std, every epsilon, the multiplier of the sum over experts."""
