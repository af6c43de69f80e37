"""What the option ``--model`` of the command line means. Loaded by name, so that the engine imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling_algebra.documents import Document
from scaling_algebra.documents.blocks import Block, Heading, Lines, literal
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.gauges import moved
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import plain
from scaling_algebra.spec.trained import trained

from .graph import Unreadable
from .models import Traced
from .shapes import read as read_model
from .sources import build_of

WIDTHS = ("N", "N_e")
"""Axes that grow where no ray is given."""


@dataclass(frozen=True)
class ModelOption:
    """A model as the command line names it."""

    model: Traced

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def text(self) -> str:
        """The equations.

        Raises:
            Unreadable: they are not known.
        """
        if self.network.unread:
            raise Unreadable(self.network.unread)
        return self.model.text

    @property
    def ray(self) -> str:
        """The widths grow, and the numbers of experts and layers stay."""
        axes = [axis for axis in AXES if axis in self.network.axes.values()]
        return ",".join(f"{axis}={int(axis in WIDTHS)}" for axis in axes)

    def beside(self, answer: Any) -> Any:
        """An answer with the notes of the reading under it, and its numbers by parameter."""
        if isinstance(answer, Document):
            return self._noted(answer)
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            return [self._noted(d) if k == len(answer) - 1 else d for k, d in enumerate(answer)]
        return answer

    def _noted(self, d: Document) -> Document:
        lines = [*self.model.lines, *_split(d.record.get("tensors", {}))]
        blocks: list[Block] = (
            [Heading("read off the module", 2), Lines.of(*map(literal, lines), listed=True)] if lines else []
        )
        return Document((*d.blocks, *blocks), {**d.record, **self._record(d.record)})

    def _record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers by parameter, as powers of the axes; the module's own factors beside a tensor taken out."""
        parameters: dict[str, Any] = {}
        for name, settings in record.get("tensors", {}).items():
            if isinstance(settings, Mapping) and "because" in settings:
                own = Power.of(self.model.gauge.get(name, {}))
                powers = moved(trained(record["optimizer"], self.network).of(name), settings["init_std"] is None)
                parameters[name] = {
                    what: None if settings[what] is None else plain(Power.of(settings[what]) / own ** powers[what])
                    for what in ("init_std", "lr", "eps")
                }
        more = {"parameters": parameters} if parameters else {}
        return {**more, "left_out": self.model.lines}


def _split(tensors: Mapping[str, Any]) -> list[str]:
    """Parts of one parameter that get different powers."""
    parts: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, settings in tensors.items():
        if "[" in name and isinstance(settings, Mapping):
            parts.setdefault(name[: name.index("[")], {})[name] = tuple(
                str(settings.get(x)) for x in ("init_std", "lr", "eps")
            )
    return [
        f"{whole}: its parts get different powers; make {' and '.join(powers)} parameters of their own"
        for whole, powers in parts.items()
        if len(set(powers.values())) > 1
    ]


def read(text: str, arguments: Sequence[str]) -> ModelOption:
    """The model of this name, read.

    Args:
        arguments: of the command; where they name the depth, a configuration is read with it.

    Raises:
        UsageError: no such model, or one that cannot be read.
    """
    deep = any("L=" in x.replace("L=0", "") for x in arguments)
    build, base = build_of(text, deep)
    return ModelOption(read_model(build, base))
