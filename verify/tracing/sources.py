"""Models by name, as ``--model`` takes them: ``FILE.py:build``, or ``hf:config.json``, a configuration on disk.

Loaded by name, so that the engine imports no torch. Of a configuration the family and its options stay; sizes become
small and follow N, N_e, M and L. No weights are read and no hub is asked. Read next: ``models.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from inspect import isfunction
from pathlib import Path
from typing import Any

from scaling_algebra.documents import Document
from scaling_algebra.documents.blocks import Block, Heading, Lines, literal
from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.files import HUGGING_FACE, import_python
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.solver.derivation import derive
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizer_reading import read_optimizers
from scaling_algebra.spec.powers import Power

from .config_probing import Difference
from .config_reading import config_of, read_config_file
from .models import Traced
from .nodes import Unreadable
from .readings import read as read_model
from .shapes import along

BESIDE = "SCALING"
"""A dict in the file of a function, with sizes and options."""


def build_of(text: str, deep: bool = False, beside: Path | None = None) -> tuple[Callable[..., Any], Mapping[str, int]]:
    """The function that a model's name means, and the sizes at which it is read as far as they are said.

    Args:
        deep: of a configuration: the depth L is an axis; else there is one layer. beside: the configuration of the same
            model at another size: what both have alike stays.

    Raises:
        UsageError: no such file or function, or a configuration that transformers does not know.
    """
    if text.startswith(HUGGING_FACE):
        config, other = config_of(text, beside)
        return config.builder(deep, Difference() if other is None else config.compare(other)), {}
    build, said = function_of(text)
    base = said.get("base", {})
    return build, read_sizes(base, "base") if base else {}


def function_of(text: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """``build``, and the dict beside it.

    Raises:
        UsageError: no such file, module or function, its code fails, or what stands beside it is no dict.
    """
    where, colon, name = text.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise UsageError(f"cannot read the model {quote_value(text)}; write FILE.py:NAME, for example mymodel.py:build")
    module = import_python(where)
    build = getattr(module, name, None)
    if not callable(build):
        lacks = f"{where} has no function {name}"
        if build is not None:
            lacks = f"{name} of {where} is {quote_value(build)}, no function"
        functions = ", ".join(x for x, y in vars(module).items() if isfunction(y)) or "none"
        raise UsageError(f"{lacks}; it has functions: {functions}; write FILE.py:NAME of yours")
    beside = getattr(module, BESIDE, {})
    if not isinstance(beside, dict):
        raise UsageError(
            f"{BESIDE} in {where} is {quote_value(beside)}; give a dict of keywords, such as base and target"
        )
    return build, beside


WIDTHS = ("N", "N_e")
"""Axes that grow where no ray is given."""


@dataclass(frozen=True)
class ModelOption:
    """A model as the command line names it.

    Attributes:
        model: as it was read.
        odd: what another configuration of it has otherwise, and no number of it says; a line each.
    """

    model: Traced
    odd: Sequence[str] = ()

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

    def left(self, multipliers: Mapping[str, Any], base: Mapping[str, int], target: Mapping[str, int]) -> Iterator[str]:
        """Of every multiplier what the module brings and what is left to multiply by, a line each."""
        for name, setting in multipliers.items():
            own = Power.of(self.model.factors.get(name, ("", {}))[1])
            brings, where = own.ratio(base, target), self.model.factors.get(name, ("", {}))[0] or "model"
            rest = setting.factor / brings
            equation = next((x for x in self.model.text.splitlines() if f" {name} " in x.partition("=")[2]), "")
            at = f"{where}, at {' '.join(equation.split())}" if equation else where
            to_do = "nothing is left to do" if math.isclose(rest, 1) else f"multiply by {rest:.6g} in {at}"
            yield f"{name}: of its factor {setting.factor:.6g} the module brings {brings:.6g}; {to_do}"

    def beside(self, answer: Any) -> Any:
        """An answer with the notes of the reading under it."""
        if isinstance(answer, Document):
            return self._noted(answer)
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            return [self._noted(d) if k == len(answer) - 1 else d for k, d in enumerate(answer)]
        return answer

    def _noted(self, d: Document) -> Document:
        rates = d.record.get("ray")
        model = self.model if rates is None else along(self.model, [axis for axis, x in rates.items() if x != "0"])
        lines = [
            *model.described(_left(model, d.record)),
            *_split(d.record.get("tensors", {})),
            *self._besides(d.record),
        ]
        blocks: list[Block] = (
            [Heading("read off the module", 2), Lines.of(*map(literal, lines), listed=True)] if lines else []
        )
        return Document((*d.blocks, *blocks), {**d.record, "left_out": model.lines})

    def _besides(self, record: Mapping[str, Any]) -> Iterator[str]:
        """The powers of tensors that act in training mode alone, beside those that are derived."""
        if self.model.beside is not None and record.get("ray"):
            rule = read_optimizers(record["optimizer"], self.model.beside, self.model.networks)
            ray = Ray({axis: Fraction(x) for axis, x in record["ray"].items()})
            for role, t in derive(None, rule, "mup", ray=ray, network=self.model.beside).tensors.items():
                named = {"init std": t.init_std, "lr": t.lr, "eps": t.eps}
                powers = ", ".join(f"{what} {x}" for what, x in named.items() if x is not None)
                yield f"{role}: not certified, by shape: {powers}"


def _left(model: Traced, record: Mapping[str, Any]) -> dict[str, str]:
    """By multiplier of a derivation or a recipe, the power that its module lacks; empty where it lacks none."""
    needed = record.get("multipliers", {})
    powers = {x: Power.parse(p["rule"]) if "rule" in p else Power.of(p) for x, p in needed.items()}
    grows = {axis for axis, rate in (record.get("ray") or {}).items() if rate != "0"}
    left = {x: p / Power.of(model.factors[x][1]) for x, p in powers.items() if x in model.factors}
    left = {x: Power.of({axis: e for axis, e in p.terms if axis in grows}) for x, p in left.items()}
    return {x: str(p) if p.terms else "" for x, p in left.items()}


def _split(tensors: Mapping[str, Any]) -> list[str]:
    """Parts of one parameter that get different powers."""
    parts: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, settings in tensors.items():
        if "[" in name and isinstance(settings, Mapping):
            parts.setdefault(name[: name.index("[")], {})[name] = tuple(
                str(settings.get(x)) for x in ("init_std", "lr", "eps")
            )
    return [
        f"{whole}: its parts get different powers; plan in Python draws each by its own std and takes the least eps; "
        f"where rates differ make {' and '.join(powers)} parameters of their own"
        for whole, powers in parts.items()
        if len(set(powers.values())) > 1
    ]


def read(text: str, arguments: Sequence[str], beside: Path | None = None, smallest: str = "") -> ModelOption:
    """The model of this name, read.

    Args:
        arguments: of the command; where they name the depth, a configuration is read with it. beside: as for
            ``build_of``. smallest: sizes of the base, at which a module that raises at small sizes is read.

    Raises:
        UsageError: no such model, or one that cannot be read.
    """
    deep = any("L=" in x.replace("L=0", "") for x in arguments)
    if text.startswith(HUGGING_FACE):
        return ModelOption(*read_config_file(text, beside, deep))
    build, base = build_of(text)
    known = read_sizes(smallest, "base") if "=" in smallest and not base else None
    return ModelOption(read_model(build, base, smallest=known))
