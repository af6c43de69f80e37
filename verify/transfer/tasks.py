"""What the networks of ``scalecalc transfer`` learn, by name: data, network and schedule. Needs no torch.

Adding a task: one more entry in ``TASKS``.
Read next: ``measuring/batches.py`` (the data), ``sweep.py`` (trains on them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.verify.networks.scales import BETAS, TRANSFORMER, Dims

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
        options: other options of the optimizer.
    """

    name: str
    title: str
    settings: Mapping[str, int]
    transformer: bool
    base: Dims
    widths: tuple[int, ...]
    grid: tuple[float, float, float]
    steps: int
    warmup: float = 0.0
    final: float = 1.0
    decay: float = 0.0
    options: Mapping[str, object] = field(default_factory=dict)

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
            name, _, number = (s.strip() for s in text.partition("="))
            if name not in chosen:
                raise unknown_name(f"setting of {self.name}", name, chosen)
            try:
                chosen[name] = limits.whole(number)
            except ValueError:
                chosen[name] = 0
            if not 0 < chosen[name] <= limits.SEEDS:
                example = f"{name}={self.settings[name]}"
                raise UsageError(f"cannot read the setting {text!r}; write name=number, e.g. {example}")
        data: Data = getattr(batches, self.name)(**chosen)
        return replace(data, settings=chosen)


TASKS: dict[str, Task] = {
    t.name: t
    for t in (
        Task(
            "digits",
            "MLP MoE on handwritten digits (MSSP paper, App. P.1)",
            settings={"batch": 32},
            transformer=False,
            base={"N": 32, "N_e": 32, "M": 4, "K": 4},
            widths=(32, 64, 128),
            grid=(-10.0, -4.0, 1.0),
            steps=60,
        ),
        Task(
            "teacher",
            "MLP MoE on what a random network says of Gaussian inputs",
            settings={"batch": 32, "inputs": 16, "units": 8},
            transformer=False,
            base={"N": 32, "N_e": 32, "M": 4, "K": 4},
            widths=(32, 64, 128),
            grid=(-10.0, -4.0, 1.0),
            steps=120,
            decay=0.1,
        ),
        Task(
            "text",
            "Transformer MoE on bytes of Python sources (MSSP paper, App. P.2)",
            settings={"batch": 8, "context": 64, "blocks": 2, "head": 16},
            transformer=True,
            base=TRANSFORMER,
            widths=(32, 64, 128),
            grid=(-11.0, -3.0, 1.0),
            steps=200,
            warmup=700 / 4768,
            final=0.1,
            decay=0.1,
            options={"betas": BETAS},
        ),
    )
}
"""Every task, by name."""
