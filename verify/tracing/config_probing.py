"""Builds small models for any transformers configuration, by what its numbers were found to mean.

No table of key names is used. Read next: ``model_loading.py`` (reads the models built here).
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

from .building import DEFAULT_SIZES
from .config_kinds import PROBED_DEPTH, SMALL_HEAD, ConfigKinds, list_layer_patterns
from .config_skeletons import METADATA_KEYS, TABLE_ROWS, Options, TopKSpy, compute_logits, make_inputs
from .nodes import Unreadable

BASE_WIDTH = 32
"""Width of the smallest model. The other small models are proportional to it."""
MIN_WIDTH_RATIO = 0.5
"""Minimum ratio of a width to the model's width in small models, so that no width coincides with a fixed size."""
GROWING_KINDS = ("width", "count", "expert")
"""Kinds of sizes that grow with an axis unless two configurations show otherwise."""


@dataclass(frozen=True)
class ConfigDifference:
    """What differs between two configurations of one model.

    Attributes:
        stays: keys of sizes that would by default grow with an axis (widths, numbers of heads), but are equal in both
            although this axis differs.
        grows: keys of sizes that would by default stay fixed (such as the dimension of a head), but differ.
        constants: keys whose values are numbers that set no size and differ, such as a multiplier, with both values.
        others: all other keys that differ, with both values.
    """

    stays: frozenset[str] = frozenset()
    grows: frozenset[str] = frozenset()
    constants: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    others: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


class ProbedConfig(ConfigKinds):
    """A configuration with the meaning of its numbers, from which small models can be built and run.

    Attributes:
        overrides: options that small models need in order to run, other than those that set sizes or select layers.
        min_depth: number of layers of a small model: one, or two if the model cannot be built with one.
        error: the error that small models raise, or None if they run.
    """

    def __init__(self, record: Mapping[str, Any], path: str, dense: bool = False) -> None:
        super().__init__(record, path, dense)
        self.overrides: Options = {}
        self.min_depth = 1
        self.error: Exception | None = None
        self._find_small()

    def choose_options(
        self, sizes: Mapping[str, int], depth: int, beside: ConfigDifference = ConfigDifference()
    ) -> Options:
        """Returns the options of a small model of the same kind.

        Args:
            sizes: the size of every axis but L.
            depth: the number of layers.
            beside: what differs in another configuration of the model, which tells which sizes grow. By default
                widths and numbers of heads grow, and other sizes stay fixed.
        """
        n, width = sizes["N"], self.full[self.axes["N"]]
        shorter = min(_round_to_power_of_two(SMALL_HEAD / self._find_largest_head()), 1)
        fewer = BASE_WIDTH / (width * shorter)
        found = self.with_depth(depth)
        found |= {k: TABLE_ROWS - 1 for k in self.free if self.full[k] >= TABLE_ROWS and k not in self.long}
        found = {k: v for k, v in found.items() if k not in self.idle}
        for k, kind in self.kinds.items():
            v, at = self.full[k], BASE_WIDTH if k in beside.stays else n
            if kind == "table":
                found[k] = min(v, TABLE_ROWS)
            elif kind == "dimension":
                short = (
                    round(v * shorter) if k in self.bound else min(v, SMALL_HEAD)
                )  # all parts of a head shrink by one factor
                found[k] = max(1, short) * (n // BASE_WIDTH if k in beside.grows else 1)
            elif kind == "count" and (v > 1 or k in beside.grows):
                found[k] = max(1, round(max(_round_to_power_of_two(v * fewer), 1) * at / BASE_WIDTH))
            elif kind == "width":
                found[k] = (
                    SMALL_HEAD
                    if k in beside.stays
                    else int(max(_round_to_power_of_two(v / width), MIN_WIDTH_RATIO) * n)
                )
            elif kind == "expert":
                ratio = max(_round_to_power_of_two(v / self.full[self.axes["N_e"]]), MIN_WIDTH_RATIO)
                found[k] = SMALL_HEAD if k in beside.stays else int(ratio * sizes["N_e"])
        found |= {k: self.full[k] * n // BASE_WIDTH for k in beside.grows if k not in self.kinds}
        found |= dict.fromkeys(self.gates, 1) if "M" in self.axes else {}
        found |= self.overrides
        return found | {key: sizes[axis] for axis, key in self.axes.items() if axis != "L" and axis in sizes}

    def _find_largest_head(self) -> int:
        """Returns the largest dimension of a head in the full configuration."""
        by_kind = {kind: [self.full[k] for k, x in self.kinds.items() if x == kind] for kind in ("dimension", "count")}
        counts, width = by_kind["count"], self.full[self.axes["N"]]
        return max([*by_kind["dimension"], *([max(width // max(counts), 1)] if counts else [])], default=SMALL_HEAD)

    def make_builder(
        self,
        deep: bool,
        beside: ConfigDifference = ConfigDifference(),
        constants: Mapping[str, tuple[str, Fraction]] | None = None,
        instead: Mapping[str, Any] | None = None,
    ) -> Callable[[Mapping[str, int]], tuple[nn.Module, Options]]:
        """Returns a function that builds a small model at given sizes; it returns the model and its input.

        Args:
            deep: whether L is an axis; otherwise the models have ``min_depth`` layers.
            beside: what differs in another configuration of the model.
            constants: for some keys, (axis, power): the number of the key is made proportional to this power of the
                axis.
            instead: options that replace those of the small models.

        Raises:
            Unreadable: transformers cannot build or run a small model.
        """
        if self.error is not None:
            line = " ".join(str(self.error).split())[:200]
            raise Unreadable(f"{self.path}: a small {self.family} does not run in transformers: {line}")

        def build(sizes: Mapping[str, int]) -> tuple[nn.Module, Options]:
            mine = {axis: sizes[axis] for axis in self.axes if axis != "L"}
            depth = sizes["L"] if deep and "L" in self.axes else self.min_depth
            options = self.choose_options(mine, depth, beside)
            for name, (axis, power) in (constants or {}).items():
                grown = (sizes[axis] if axis in mine or deep else DEFAULT_SIZES[axis]) / DEFAULT_SIZES[axis]
                _set_by_path(options, name, beside.constants[name][0] * grown ** float(power))
            return self.build_model(options | dict(instead or {})), make_inputs()

        return build

    def compare(self, other: Mapping[str, Any]) -> ConfigDifference:
        """Compares with another configuration of the family, given as read from JSON, and returns what differs."""
        given = {k: v for k, v in other.items() if k not in METADATA_KEYS}
        its = {
            k: v for k, v in self.build_config(given).to_dict().items() if k not in {*METADATA_KEYS, *self.derived}
        } | self.added
        flat = [dict(_flatten({k: v for k, v in x.items() if k not in self.pattern})) for x in (self.full, its)]
        sizes = {*self.axes.values(), *self.long, *self.kinds, *self.bound}
        grown = {axis for axis, k in self.axes.items() if self.full[k] != its.get(k)}
        follows = {k: "N_e" if kind == "expert" else "N" for k, kind in self.kinds.items() if kind in GROWING_KINDS}
        changed = {k for k in self._list_number_keys() if self.full[k] != its.get(k)}
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
            k: (a, b) for k, (a, b) in found.items() if _is_number(a) and _is_number(b) and a * b > 0
        }
        others = {k: x for k, x in found.items() if k not in numbers}
        return ConfigDifference(frozenset(stays), frozenset(grows), numbers, others)

    def changes_output(self, name: str, values: tuple[Any, Any]) -> bool:
        """Returns whether the output of a small model depends on which of two values an entry of the configuration has.

        Args:
            name: path of the entry, with dots between nested keys.
            values: the two values.
        """
        at = {axis: n for axis, n in {"N": BASE_WIDTH, "N_e": 24, "M": 4, "K": 2}.items() if axis in self.axes}
        models = []
        try:
            for x in values:
                options = self.choose_options(at, self.min_depth)
                _set_by_path(options, name, x)
                models.append(self.build_model(options).double())
            models[1].load_state_dict(models[0].state_dict())
            one, other = (compute_logits(x) for x in models)
        except Exception:  # raised by transformers: the value selects another model
            return True
        return one.shape != other.shape or float((one - other).abs().max()) > 1e-9 * float(one.abs().max())

    def find_head_growth(self, other: Mapping[str, Any]) -> tuple[int, int] | None:
        """Returns the dimension of a head in another configuration and that in this one.

        Returns None unless these two differ and the numbers of heads differ, too.
        """
        counts = [k for k, kind in self.kinds.items() if kind == "count"]
        its = self.full | self.build_config({k: v for k, v in other.items() if k not in METADATA_KEYS}).to_dict()
        most = max(counts, key=lambda k: self.full[k], default="")
        if not most or self.full[most] == its[most]:
            return None
        dims = [k for k, kind in self.kinds.items() if kind == "dimension"]
        longest = max(dims, key=lambda k: self.full[k], default="")
        width = self.axes["N"]
        one, two = ((x[longest] if longest else x[width] // x[most]) for x in (its, self.full))
        return None if one == two else (one, two)

    def make_longer_heads(self) -> Options:
        """Returns a configuration that is twice as wide, with heads of twice the dimension and the same number of
        heads.
        """
        grow = {self.axes["N"], *(k for k, kind in self.kinds.items() if kind in ("width", "dimension"))}
        return {"model_type": self.family} | {k: 2 * v if k in grow else v for k, v in self.full.items()}

    def sizes(self, record: Mapping[str, Any] | None = None) -> dict[str, int]:
        """Returns the size of every axis in another configuration of the family; without one, in this configuration."""
        given = {k: v for k, v in (record or {}).items() if k not in METADATA_KEYS}
        full = self.full if record is None else self.full | self.build_config(given).to_dict()
        return {axis: full[key] for axis in ("N", "N_e", "M", "K", "L") if (key := self.axes.get(axis))}

    def _find_small(self) -> None:
        """Finds the options that small models need in order to run, and the key that sets the number of active
        experts K.

        This is the key for which an increase from 1 to 2 makes a top-K call select 2 of M experts.
        """
        at = {"N": BASE_WIDTH, "N_e": 24, "M": 4}
        self._choose_bound_kinds(at)
        self.error = self._find_error(at)
        numbers = [*self.unset, *self.free, *self.kinds, *self.bound, *self._list_number_keys()]
        numbers = [k for k in dict.fromkeys(numbers) if k not in (*self.axes.values(), *self.long)]
        lists = [
            (k, x) for k, v in self.full.items() if isinstance(v, list) for x in list_layer_patterns(v, self.depth)
        ]
        fixes: list[tuple[dict[str, Any], str, Any]] = [(self.pattern, k, x) for k, x in lists]
        fixes += [(self.overrides, k, x) for k in numbers for x in (1, 0, 2, None)]
        for among, key, value in fixes if self.error is not None else ():
            kept = dict(among)
            among[key] = value
            if self._find_error(at) is None:
                self.error = None
                break
            among.clear()
            among |= kept
        if "M" in self.axes and self.error is None:
            for key in (*self.gates, *(k for k in self.unset if k in self.overrides)):
                one, two = (
                    Counter(self._record_topk(self.choose_options(at, self.min_depth) | {key: k})) for k in (1, 2)
                )
                if any(k == 2 and n >= at["M"] for k, n in two - one):
                    self.axes["K"] = key
                    break

    def _choose_bound_kinds(self, sizes: Mapping[str, int]) -> None:
        """Decides whether numbers that can only be changed together are numbers of heads, head dimensions or neither.

        The first choice is taken for which models of two widths can be built.
        """
        bound = [k for k in self.bound if k not in (*self.axes.values(), *self.free, *self.kinds)]
        kept = dict(self.kinds)
        for kinds in product(("count", "dimension", ""), repeat=len(bound)) if bound else ():
            self.kinds = kept | {k: kind for k, kind in zip(bound, kinds, strict=True) if kind}
            if all(
                self.try_skeleton(self.choose_options({**sizes, "N": k * sizes["N"]}, 1)) is not None for k in (1, 2)
            ):
                return
        self.kinds = kept

    def _find_error(self, sizes: Mapping[str, int]) -> Exception | None:
        """Builds and runs small models of two widths, and returns the error that is raised; None if there is none.

        The models have one layer; if this fails, two.
        """
        found: Exception | None = None
        for self.min_depth in (1, PROBED_DEPTH):
            try:
                for k in (1, 2):
                    compute_logits(
                        self.build_model(self.choose_options({**sizes, "N": k * sizes["N"]}, self.min_depth))
                    )
                return None
            except Exception as error:  # of transformers
                found = error
        return found

    def _record_topk(self, options: Options) -> list[tuple[int, int]]:
        """Runs a small model and returns (k, number of candidates) for each of its ``topk`` calls; empty if it
        fails.
        """
        spy = TopKSpy()
        try:
            model = self.build_model(options)
            with spy:
                compute_logits(model)
        except Exception:  # of transformers
            return []
        return spy.found


def _is_number(x: Any) -> bool:
    """Returns whether a value is a number and not a boolean."""
    return isinstance(x, int | float) and not isinstance(x, bool)


def _flatten(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of nested options as (path, value), with dots between nested keys."""
    for key, value in options.items():
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _set_by_path(options: Options, path: str, value: Any) -> None:
    """Sets the entry at a path of nested options, such as ``rope.theta``; only copies of the inner dicts are changed.

    An integer entry stays an integer.
    """
    first, dot, rest = path.partition(".")
    if dot:
        options[first] = dict(options[first])
        _set_by_path(options[first], rest, value)
    else:
        whole = isinstance(options.get(first), int) and isinstance(value, float)
        options[first] = round(value) if whole else value


def _round_to_power_of_two(ratio: float) -> float:
    """Returns the power of two that is nearest to a ratio, on a logarithmic scale."""
    return float(2 ** round(math.log2(ratio)))


def probe_config(record: Mapping[str, Any], path: str, dense: bool = False) -> ProbedConfig:
    """Infers what the numbers of a configuration mean, by building models from it. The result is cached.

    Args:
        record: the configuration, as read from JSON.
        path: its path, quoted in error messages.
        dense: if only some layers have experts: whether to read the layers without experts instead of those with
            experts.

    Raises:
        UsageError: transformers is not installed, or does not know the family.
        Unreadable: transformers cannot build the model.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ModuleNotFoundError:
        raise missing_package_error("--model hf:", "transformers", "models") from None
    family = record["model_type"]
    if family not in CONFIG_MAPPING:
        raise UsageError(
            f"transformers has no model_type {family} (of {path}); install a version that has it, or give FILE.py:build"
        )
    return _probe_record(json.dumps(record, sort_keys=True, default=str), path, dense)


@lru_cache(maxsize=16)
def _probe_record(record: str, path: str, dense: bool) -> ProbedConfig:
    """Computes the result of ``probe_config``, which calls this after it has checked the family of models.

    Warnings of transformers are suppressed, and the random state stays as it is.

    Args:
        record: the configuration as JSON text, by which the result is cached.
        path: its path.
        dense: as for ``probe_config``.
    """
    from transformers import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # most of the options that are tried do not fit together
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            return ProbedConfig(json.loads(record), path, dense)
    finally:
        logging.set_verbosity(level)
