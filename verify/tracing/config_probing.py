"""A configuration of transformers, probed: small models of every configuration that transformers itself builds.

No table says what its keys are called. Read next: ``sources.py`` (reads the models that are built here).
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import chain, product
from typing import Any

import torch
from torch import nn

from scaling_algebra.errors import UsageError, missing_package_error

from .building import DEFAULTS
from .config_kinds import DEPTH, HEAD, ConfigKinds, patterns
from .config_skeletons import FILE, TABLE, Options, TopKSpy, inputs, run
from .nodes import Unreadable

BASE = 32
"""Width of the smallest model, to which the others are proportional."""
LEAST = 0.5
"""The least width in small models, in widths of the model: shorter ones may be as long as what stays."""
GROW = ("width", "count", "expert")
"""Kinds of sizes that grow with an axis, if nothing else is said."""


@dataclass(frozen=True)
class Difference:
    """What two configurations have otherwise.

    Attributes:
        stays: sizes that grow in most models, and here do not. grows: the other way round.
        constants: numbers that move no shape, in both. others: everything else.
    """

    stays: frozenset[str] = frozenset()
    grows: frozenset[str] = frozenset()
    constants: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    others: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class ProbedConfig(ConfigKinds):
    """A configuration with small models of it.

    Attributes:
        fixed: numbers that small models need otherwise than their kind says.
        least: layers of a small model: one, where it is built with one.
        trouble: the error of small models, if there is one.
    """

    def __init__(self, record: Mapping[str, Any], path: str, dense: bool = False) -> None:
        super().__init__(record, path, dense)
        self.fixed: Options = {}
        self.least = 1
        self.trouble: Exception | None = None
        self._find_small()

    def options(self, sizes: Mapping[str, int], depth: int, beside: Difference = Difference()) -> Options:
        """The options of a model of these sizes."""
        n, width = sizes["N"], self.full[self.axes["N"]]
        shorter = min(_near(HEAD / self._head()), 1)
        fewer = BASE / (width * shorter)
        found = self.shortened(depth)
        found |= {k: TABLE - 1 for k in self.free if self.full[k] >= TABLE and k not in self.long}
        found = {k: v for k, v in found.items() if k not in self.idle}
        for k, kind in self.kinds.items():
            v, at = self.full[k], BASE if k in beside.stays else n
            if kind == "table":
                found[k] = min(v, TABLE)
            elif kind == "dimension":
                short = round(v * shorter) if k in self.bound else min(v, HEAD)  # parts of heads are alike
                found[k] = max(1, short) * (n // BASE if k in beside.grows else 1)
            elif kind == "count" and (v > 1 or k in beside.grows):
                found[k] = max(1, round(max(_near(v * fewer), 1) * at / BASE))
            elif kind == "width":
                found[k] = HEAD if k in beside.stays else int(max(_near(v / width), LEAST) * n)
            elif kind == "expert":
                ratio = max(_near(v / self.full[self.axes["N_e"]]), LEAST)
                found[k] = HEAD if k in beside.stays else int(ratio * sizes["N_e"])
        found |= {k: self.full[k] * n // BASE for k in beside.grows if k not in self.kinds}
        found |= dict.fromkeys(self.gates, 1) if "M" in self.axes else {}
        found |= self.fixed
        return found | {key: sizes[axis] for axis, key in self.axes.items() if axis != "L" and axis in sizes}

    def _head(self) -> int:
        """The dimension of the largest heads."""
        by_kind = {kind: [self.full[k] for k, x in self.kinds.items() if x == kind] for kind in ("dimension", "count")}
        counts, width = by_kind["count"], self.full[self.axes["N"]]
        return max([*by_kind["dimension"], *([max(width // max(counts), 1)] if counts else [])], default=HEAD)

    def builder(
        self,
        deep: bool,
        beside: Difference = Difference(),
        constants: Mapping[str, tuple[str, Fraction]] | None = None,
        instead: Mapping[str, Any] | None = None,
    ) -> Callable[[Mapping[str, int]], tuple[nn.Module, Options]]:
        """The function that builds small models, and their input.

        Args:
            deep: the number of layers is an axis; else there is one layer. beside: what another configuration has
                otherwise. constants: the power of a size that each of them goes as. instead: options that
                replace those of small models.

        Raises:
            Unreadable: transformers builds or runs no small one.
        """
        if self.trouble is not None:
            line = " ".join(str(self.trouble).split())[:200]
            raise Unreadable(f"{self.path}: transformers runs no small {self.family}: {line}")

        def build(sizes: Mapping[str, int]) -> tuple[nn.Module, Options]:
            mine = {axis: sizes[axis] for axis in self.axes if axis != "L"}
            depth = sizes["L"] if deep and "L" in self.axes else self.least
            options = self.options(mine, depth, beside)
            for name, (axis, power) in (constants or {}).items():
                grown = (sizes[axis] if axis in mine or deep else DEFAULTS[axis]) / DEFAULTS[axis]
                _put(options, name, beside.constants[name][0] * grown ** float(power))
            return self.model(options | dict(instead or {})), inputs()

        return build

    def compare(self, other: Mapping[str, Any]) -> Difference:
        """What another configuration of the family has otherwise."""
        given = {k: v for k, v in other.items() if k not in FILE}
        its = {k: v for k, v in self.config(given).to_dict().items() if k not in {*FILE, *self.follows}} | self.added
        flat = [dict(_flat({k: v for k, v in x.items() if k not in self.pattern})) for x in (self.full, its)]
        sizes = {*self.axes.values(), *self.long, *self.kinds, *self.bound}
        grown = {axis for axis, k in self.axes.items() if self.full[k] != its.get(k)}
        follows = {k: "N_e" if kind == "expert" else "N" for k, kind in self.kinds.items() if kind in GROW}
        changed = {k for k in self._numbers() if self.full[k] != its.get(k)}
        stays = {k for k, axis in follows.items() if axis in grown and k not in changed}
        grows = {
            k
            for k in changed & self.moving
            if (self.kinds.get(k) in (None, "dimension") or (self.kinds.get(k) == "count" and self.full[k] == 1))
            and k not in self.axes.values()
        }
        found: dict[str, tuple[Any, Any]] = {}
        for k in dict.fromkeys(chain(*flat)):
            a, b = (one.get(k) for one in flat)
            several = isinstance(a, list) and isinstance(b, list) and {*map(str, a)} == {*map(str, b)}
            if a != b and not several and k not in sizes | grows:
                found[k] = a, b
        numbers: dict[str, tuple[Any, Any]] = {
            k: (a, b) for k, (a, b) in found.items() if _number(a) and _number(b) and a * b > 0
        }
        others = {k: x for k, x in found.items() if k not in numbers}
        return Difference(frozenset(stays), frozenset(grows), numbers, others)

    def acts(self, name: str, values: tuple[Any, Any]) -> bool:
        """Return whether an entry changes what a small model computes."""
        at = {axis: n for axis, n in {"N": BASE, "N_e": 24, "M": 4, "K": 2}.items() if axis in self.axes}
        models = []
        try:
            for x in values:
                options = self.options(at, self.least)
                _put(options, name, x)
                models.append(self.model(options).double())
            models[1].load_state_dict(models[0].state_dict())
            one, other = (run(x) for x in models)
        except Exception:  # of transformers: another model
            return True
        return one.shape != other.shape or float((one - other).abs().max()) > 1e-9 * float(one.abs().max())

    def heads_grow(self, other: Mapping[str, Any]) -> tuple[int, int] | None:
        """The dimension of heads in another configuration and in this one, where it grows, and their number, too."""
        counts = [k for k, kind in self.kinds.items() if kind == "count"]
        its = self.full | self.config({k: v for k, v in other.items() if k not in FILE}).to_dict()
        most = max(counts, key=lambda k: self.full[k], default="")
        if not most or self.full[most] == its[most]:
            return None
        dims = [k for k, kind in self.kinds.items() if kind == "dimension"]
        longest = max(dims, key=lambda k: self.full[k], default="")
        width = self.axes["N"]
        one, two = ((x[longest] if longest else x[width] // x[most]) for x in (its, self.full))
        return None if one == two else (one, two)

    def longer_heads(self) -> Options:
        """A configuration of twice the width, with as many heads."""
        grow = {self.axes["N"], *(k for k, kind in self.kinds.items() if kind in ("width", "dimension"))}
        return {"model_type": self.family} | {k: 2 * v if k in grow else v for k, v in self.full.items()}

    def sizes(self, record: Mapping[str, Any] | None = None) -> dict[str, int]:
        """The sizes of a configuration of the family, by axis."""
        given = {k: v for k, v in (record or {}).items() if k not in FILE}
        full = self.full if record is None else self.full | self.config(given).to_dict()
        return {axis: full[key] for axis in ("N", "N_e", "M", "K", "L") if (key := self.axes.get(axis))}

    def _find_small(self) -> None:
        """Finds what else small models need, and which number is that of the chosen experts."""
        at = {"N": BASE, "N_e": 24, "M": 4}
        self._bind(at)
        self.trouble = self._trouble(at)
        numbers = [*self.unset, *self.free, *self.kinds, *self.bound, *self._numbers()]
        numbers = [k for k in dict.fromkeys(numbers) if k not in (*self.axes.values(), *self.long)]
        lists = [(k, x) for k, v in self.full.items() if isinstance(v, list) for x in patterns(v, self.depth)]
        fixes: list[tuple[dict[str, Any], str, Any]] = [(self.pattern, k, x) for k, x in lists]
        fixes += [(self.fixed, k, x) for k in numbers for x in (1, 0, 2, None)]
        for among, key, value in fixes if self.trouble is not None else ():
            kept = dict(among)
            among[key] = value
            if self._trouble(at) is None:
                self.trouble = None
                break
            among.clear()
            among |= kept
        if "M" in self.axes and self.trouble is None:
            for key in (*self.gates, *(k for k in self.unset if k in self.fixed)):
                one, two = (Counter(self._chosen(self.options(at, self.least) | {key: k})) for k in (1, 2))
                if any(k == 2 and n >= at["M"] for k, n in two - one):
                    self.axes["K"] = key
                    break

    def _bind(self, sizes: Mapping[str, int]) -> None:
        """Finds how numbers go that change together alone: such that models of two widths are built."""
        bound = [k for k in self.bound if k not in (*self.axes.values(), *self.free, *self.kinds)]
        kept = dict(self.kinds)
        for kinds in product(("count", "dimension", ""), repeat=len(bound)) if bound else ():
            self.kinds = kept | {k: kind for k, kind in zip(bound, kinds, strict=True) if kind}
            if all(self.tried(self.options({**sizes, "N": k * sizes["N"]}, 1)) is not None for k in (1, 2)):
                return
        self.kinds = kept

    def _trouble(self, sizes: Mapping[str, int]) -> Exception | None:
        """The error of small models, if there is one."""
        found: Exception | None = None
        for self.least in (1, DEPTH):
            try:
                for k in (1, 2):
                    run(self.model(self.options({**sizes, "N": k * sizes["N"]}, self.least)))
                return None
            except Exception as error:  # of transformers
                found = error
        return found

    def _chosen(self, options: Options) -> list[tuple[int, int]]:
        """How many every top-K chooses, and of how many."""
        spy = TopKSpy()
        try:
            model = self.model(options)
            with spy:
                run(model)
        except Exception:  # of transformers
            return []
        return spy.found


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _flat(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of options and of dicts in them, by path."""
    for key, value in options.items():
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _put(options: Options, path: str, value: Any) -> None:
    """Sets an entry by its path."""
    first, dot, rest = path.partition(".")
    if dot:
        options[first] = dict(options[first])
        _put(options[first], rest, value)
    else:
        whole = isinstance(options.get(first), int) and isinstance(value, float)
        options[first] = round(value) if whole else value


def _near(ratio: float) -> float:
    """The nearest power of two."""
    return float(2 ** round(math.log2(ratio)))


def probe(record: Mapping[str, Any], path: str, dense: bool = False) -> ProbedConfig:
    """What the numbers of a configuration are; asked once.

    Raises:
        UsageError: transformers is not there, or knows no such family. Unreadable: it does not build it.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ModuleNotFoundError:
        raise missing_package_error("--model hf:", "transformers", "models") from None
    family = record["model_type"]
    if family not in CONFIG_MAPPING:
        raise UsageError(f"transformers knows no family {family} (model_type of {path}); give FILE.py:build")
    return _probe(json.dumps(record, sort_keys=True, default=str), path, dense)


@lru_cache(maxsize=16)
def _probe(record: str, path: str, dense: bool) -> ProbedConfig:
    from transformers import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # of what is tried much does not fit
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            return ProbedConfig(json.loads(record), path, dense)
    finally:
        logging.set_verbosity(level)
