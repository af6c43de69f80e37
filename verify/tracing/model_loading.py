"""Loads the model that ``--model`` names: ``FILE.py:build``, or ``hf:config.json``, a configuration file on disk.

The command line imports this module by name, so that the engine does not import torch. Of a configuration, the family
and its options are kept; its sizes become small and follow N, N_e, M and L. No weights are loaded and the hub is not
contacted. Read next: ``models.py``.
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

from .config_probing import ConfigDifference
from .config_reading import probe_config_files, read_config_file
from .models import TracedModel
from .nodes import Unreadable
from .readings import read_module
from .shapes import drop_fixed_map_notes

SETTINGS_NAME = "SCALING"
"""Name of the dict of sizes and options in the user's file."""


def load_model_builder(
    text: str, deep: bool = False, beside: Path | None = None
) -> tuple[Callable[..., Any], Mapping[str, int]]:
    """Loads the build function that a model name denotes.

    Args:
        text: ``FILE.py:NAME`` or ``hf:config.json``.
        deep: whether the depth L of a configuration is an axis; otherwise the models have one layer.
        beside: a configuration of the same model at another size; sizes that are equal in both stay fixed.

    Returns:
        The function, and the base sizes that the user's file states (empty if it states none).

    Raises:
        UsageError: there is no such file or function, or transformers does not know the configuration.
    """
    if text.startswith(HUGGING_FACE):
        config, other = probe_config_files(text, beside)
        return config.make_builder(deep, ConfigDifference() if other is None else config.compare(other)), {}
    build, said = load_function(text)
    base = said.get("base", {})
    return build, read_sizes(base, "base") if base else {}


def load_function(text: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Loads a function from a Python file, and the dict ``SCALING`` of the same file (empty if there is none).

    Args:
        text: ``FILE.py:NAME``.

    Raises:
        UsageError: there is no such file or function, its code fails, or ``SCALING`` is no dict.
    """
    where, colon, name = text.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise UsageError(f"cannot read the model {quote_value(text)}; write FILE.py:NAME, for example mymodel.py:build")
    module = import_python(where)
    build = getattr(module, name, None)
    if not callable(build):
        lacks = f"{where} has no function {name}"
        if build is not None:
            lacks = f"{name} of {where} is {quote_value(build)}, not a function"
        functions = ", ".join(x for x, y in vars(module).items() if isfunction(y)) or "none"
        raise UsageError(f"{lacks}; its functions: {functions}; write FILE.py:NAME with the one that builds the model")
    beside = getattr(module, SETTINGS_NAME, {})
    if not isinstance(beside, dict):
        raise UsageError(
            f"{SETTINGS_NAME} in {where} is {quote_value(beside)}; give a dict of keywords, such as base and target"
        )
    return build, beside


WIDTHS = ("N", "N_e")
"""Axes that grow if no ray is given."""


@dataclass(frozen=True)
class ModelOption:
    """The network of the model that the option ``--model`` names, ready for a command.

    Attributes:
        model: what was read from the model.
        odd: a line for every difference between two configurations of the model that the network does not take into
            account.
    """

    model: TracedModel
    odd: Sequence[str] = ()

    @property
    def network(self) -> Network:
        """The network of the model."""
        return self.model.network

    @property
    def text(self) -> str:
        """The equations, as TOML.

        Raises:
            Unreadable: only the shapes of the parameters were read.
        """
        if self.network.unread:
            raise Unreadable(self.network.unread)
        return self.model.text

    @property
    def ray(self) -> str:
        """The ray that is used if the user gives none: widths grow, numbers of experts and layers stay."""
        axes = [axis for axis in AXES if axis in self.network.axes.values()]
        return ",".join(f"{axis}={int(axis in WIDTHS)}" for axis in axes)

    def describe_remaining_factors(
        self, multipliers: Mapping[str, Any], base: Mapping[str, int], target: Mapping[str, int]
    ) -> Iterator[str]:
        """Yields a line for each multiplier: its factor, how much of it the module already applies, and what remains
        to be done.

        Args:
            multipliers: the setting of each multiplier in the recipe.
            base: the sizes of the tuned model.
            target: the sizes of the model that gets the numbers.
        """
        for name, setting in multipliers.items():
            own = Power.of(self.model.factors.get(name, ("", {}))[1])
            brings, where = own.ratio(base, target), self.model.factors.get(name, ("", {}))[0] or "model"
            rest = setting.factor / brings
            equation = next((x for x in self.model.text.splitlines() if f" {name} " in x.partition("=")[2]), "")
            at = f"{where}, at {' '.join(equation.split())}" if equation else where
            to_do = "nothing to do" if math.isclose(rest, 1) else f"multiply by {rest:.6g} in {at}"
            yield f"{name}: its factor is {setting.factor:.6g}, of which the module applies {brings:.6g}; {to_do}"

    def append_notes(self, answer: Any) -> Any:
        """Appends notes on how the module was read to the answer of a command.

        If the answer is a list of documents, the last one gets the notes. An answer of another type is returned
        unchanged.
        """
        if isinstance(answer, Document):
            return self._append_notes(answer)
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            return [self._append_notes(d) if k == len(answer) - 1 else d for k, d in enumerate(answer)]
        return answer

    def _append_notes(self, d: Document) -> Document:
        """Returns the document with notes on how the module was read, both in its text and in its record."""
        rates = d.record.get("ray")
        model = (
            self.model
            if rates is None
            else drop_fixed_map_notes(self.model, [axis for axis, x in rates.items() if x != "0"])
        )
        lines = [
            *model.describe(_find_remaining_powers(model, d.record)),
            *_describe_split_parts(d.record.get("tensors", {})),
            *self._describe_training_only(d.record),
        ]
        blocks: list[Block] = (
            [Heading("read off the module", 2), Lines.of(*map(literal, lines), listed=True)] if lines else []
        )
        return Document((*d.blocks, *blocks), {**d.record, "left_out": model.lines})

    def _describe_training_only(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Yields a line for each tensor that acts only in training mode, with its exponents, which are derived from
        its shape.

        Args:
            record: the record of a derivation.
        """
        if self.model.beside is not None and record.get("ray"):
            rule = read_optimizers(record["optimizer"], self.model.beside, self.model.networks)
            ray = Ray({axis: Fraction(x) for axis, x in record["ray"].items()})
            for role, t in derive(None, rule, "mup", ray=ray, network=self.model.beside).tensors.items():
                named = {"init std": t.init_std, "lr": t.lr, "eps": t.eps}
                powers = ", ".join(f"{what} {x}" for what, x in named.items() if x is not None)
                yield f"{role}: not certified, by shape: {powers}"


def _find_remaining_powers(model: TracedModel, record: Mapping[str, Any]) -> dict[str, str]:
    """Returns, for each multiplier, the power of the growing sizes by which the module must still multiply, as text.

    This is the power that the derivation or recipe asks for, divided by the one that the module already multiplies by;
    "" if nothing is left to do.

    Args:
        model: what was read from the module.
        record: the record of a derivation or a recipe.
    """
    needed = record.get("multipliers", {})
    powers = {x: Power.parse(p["rule"]) if "rule" in p else Power.of(p) for x, p in needed.items()}
    grows = {axis for axis, rate in (record.get("ray") or {}).items() if rate != "0"}
    left = {x: p / Power.of(model.factors[x][1]) for x, p in powers.items() if x in model.factors}
    left = {x: Power.of({axis: e for axis, e in p.terms if axis in grows}) for x, p in left.items()}
    return {x: str(p) if p.terms else "" for x, p in left.items()}


def _describe_split_parts(tensors: Mapping[str, Any]) -> list[str]:
    """Returns a line for each parameter whose parts (q, k and v of a packed qkv) get different powers.

    Args:
        tensors: for each tensor, its settings in the record of a derivation or a recipe.
    """
    parts: dict[str, dict[str, tuple[Any, ...]]] = {}
    for name, settings in tensors.items():
        if "[" in name and isinstance(settings, Mapping):
            parts.setdefault(name[: name.index("[")], {})[name] = tuple(
                str(settings.get(x)) for x in ("init_std", "lr", "eps")
            )
    return [
        f"{whole}: its parts get different powers; plan in Python draws each part with its own std and "
        "uses the smallest "
        f"eps; if their lr differ, make {' and '.join(powers)} separate parameters"
        for whole, powers in parts.items()
        if len(set(powers.values())) > 1
    ]


def read_model_option(
    text: str, arguments: Sequence[str], beside: Path | None = None, smallest: str = ""
) -> ModelOption:
    """Loads the model that ``--model`` names and reads it as a network.

    Args:
        text: ``FILE.py:NAME`` or ``hf:config.json``.
        arguments: the arguments of the command; if they name L, the depth of a configuration is an axis.
        beside: as for ``load_model_builder``.
        smallest: base sizes, at which the model is read if it raises an error at small sizes.

    Raises:
        UsageError: there is no such model, or it cannot be read.
    """
    deep = any("L=" in x.replace("L=0", "") for x in arguments)
    if text.startswith(HUGGING_FACE):
        return ModelOption(*read_config_file(text, beside, deep))
    build, base = load_model_builder(text)
    known = read_sizes(smallest, "base") if "=" in smallest and not base else None
    return ModelOption(read_module(build, base, smallest=known))
