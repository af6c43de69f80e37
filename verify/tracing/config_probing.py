"""A configuration of transformers, probed: which of its numbers are widths, heads, experts and layers.

The configuration is built without values (on ``meta``), one number doubled at a time, and the shapes that move say what
the number is. So small models can be built of every configuration that transformers itself builds, whatever its keys
are called. Read next: ``sources.py`` (reads the models that are built here).
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scaling_algebra.errors import UsageError, missing

from .building import OTHER
from .graph import Unreadable

HEAD = 16
"""Dimension of a head in small models."""
TABLE = 64
"""Rows of tables (vocabulary, positions) in small models, and the largest number that moves no shape."""
BASE = 32
"""Width of the smallest model, to which the others are proportional."""
SHARE = 16
"""A size that moves no less than the model's width by this is a width, which grows; smaller ones stay."""
FILE = {"architectures", "transformers_version", "torch_dtype", "dtype", "quantization_config", "auto_map",
        "_name_or_path", "model_type"}  # fmt: skip
"""Entries that say nothing of the model's code."""
ATTENTION = "full_attention"
"""The kind of layer that is read where a list has several."""
KERNELS = {"attn_implementation": "eager", "experts_implementation": "batched_mm", "use_cache": False}
DEPTH = 2
"""Layers of the models that are probed."""
Options = dict[str, Any]
Dim = tuple[str, int]


@dataclass(frozen=True)
class Skeleton:
    """A model without values.

    Attributes:
        dims: of every parameter, numbers in its name left open, how many there are of it, and its shape.
        layers: names and shapes of every layer's parameters.
        tables: parameters that are tables of embeddings.
        numbers: attributes of modules that are numbers, and the sizes of buffers, by path.
    """

    dims: Mapping[str, tuple[int, ...]]
    layers: tuple[frozenset[tuple[str, tuple[int, ...]]], ...]
    tables: frozenset[str]
    numbers: Mapping[str, float]

    def moved(self, other: Skeleton) -> dict[Dim, float]:
        """The factor by which every dimension is another one in another model."""
        found: dict[Dim, float] = {}
        for name in self.dims.keys() | other.dims.keys():
            mine, its = self.dims.get(name, (0,)), other.dims.get(name, (0,))
            pairs = zip(mine, its, strict=True) if len(mine) == len(its) else [(1, 0)]
            found |= {(name, k): b / a if a else math.inf for k, (a, b) in enumerate(pairs) if a != b}
        return found

    def stacks(self) -> set[Dim]:
        """The dimensions that count matrices in a stack, or modules in a list within a layer."""
        lists = {(name, 0) for name, (n, *_) in self.dims.items() if name.count("*") > 1 and n > len(self.layers)}
        return lists | {(name, 1) for name, (_, *s) in self.dims.items() if len(s) > 2 and min(s[-2:]) > 1 < s[0]}


def _skeleton(model: nn.Module) -> Skeleton:
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    embedded = {id(x.weight) for x in model.modules() if isinstance(x, nn.Embedding)}
    counts = Counter(_open(name) for name in shapes)
    numbered: dict[str, dict[int, set[tuple[str, tuple[int, ...]]]]] = {}
    for name, shape in shapes.items():
        if found := re.match(r"(.*?)\.(\d+)\.(.*)", name):
            head, number, rest = found.groups()
            numbered.setdefault(head, {}).setdefault(int(number), set()).add((_open(rest), shape))
    layers = max(numbered.values(), key=lambda x: sum(map(len, x.values())), default={})
    numbers: dict[str, float] = {}
    tables = {_open(name) for name, p in model.named_parameters() if id(p) in embedded}
    for path, module in model.named_modules():
        numbers |= {
            f"{path}.{k}": x for k, x in vars(module).items() if isinstance(x, int | float) and not isinstance(x, bool)
        }
        numbers |= {f"{path}.{k}.{d}": n for k, b in module.named_buffers(recurse=False) for d, n in enumerate(b.shape)}
    dims = {_open(name): (counts[_open(name)], *shape) for name, shape in shapes.items()}
    return Skeleton(dims, tuple(frozenset(layers[k]) for k in sorted(layers)), frozenset(tables), numbers)


def _open(name: str) -> str:
    """A parameter's name with its numbers left open."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


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


GROW = ("width", "count", "expert")
"""Kinds of sizes that grow with an axis, if nothing else is said."""


class ProbedConfig:
    """What the numbers of a configuration are.

    Args:
        record: the configuration. path: for errors. dense: of its layers those without experts.

    Attributes:
        axes: the key that is the size of each axis: N, L, and with experts M, K, N_e.
        kinds: of every other key that is a size: ``width``, ``count`` (of heads), ``dimension`` (of heads), ``expert``
            (a width that grows as N_e), ``table``.
        pattern: keys that say which layers are of which kind, and what they are in small models by number of layers.

    Raises:
        Unreadable: transformers does not build it.
    """

    def __init__(self, record: Mapping[str, Any], path: str, dense: bool = False) -> None:
        self.record, self.family, self.path, self.dense = record, record["model_type"], path, dense
        given = {k: v for k, v in record.items() if k not in FILE}
        self.full: Options = {k: v for k, v in self._config(given).to_dict().items() if k not in FILE}
        self.follows = {k for k in self._numbers() if self._follows(k)}
        self.full = {k: v for k, v in self.full.items() if k not in self.follows}
        self.unset = [k for k, v in self.full.items() if v is None]
        self.axes: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.pattern: dict[str, Callable[[int], Any]] = {}
        self.fixed: Options = {}
        self.added: Options = {}
        self.least = 1
        self.routed: set[str] = set()
        self.stacked: set[str] = set()
        self.first = self._complete()
        self._find_depth()
        self._find_experts()
        self._find_pattern()
        self._find_kinds()
        self._find_small()

    # building -------------------------------------------------------------------------------------------------

    def _config(self, options: Options) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.for_model(self.family, **options)
        except Exception as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> Unreadable:
        line = " ".join(str(error).split())[:200]
        return Unreadable(f"{self.path}: transformers builds no {self.family} of it: {type(error).__name__}: {line}")

    def model(self, options: Options) -> nn.Module:
        """A model with these options.

        Raises:
            Unreadable: transformers builds none.
        """
        from transformers import AutoModelForCausalLM

        config = self._config({**options, **KERNELS})
        try:
            made: nn.Module = AutoModelForCausalLM.from_config(config)
        except Exception as error:
            raise self._refused(error) from None
        return made

    def _built(self, options: Options) -> Skeleton:
        with torch.device("meta"):
            return _skeleton(self.model(options))

    def _tried(self, options: Options) -> Skeleton | None:
        try:
            return self._built(options)
        except Unreadable:
            return None

    def _numbers(self) -> list[str]:
        """Keys with a whole number."""
        return [k for k, v in self.full.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0]

    def _complete(self) -> Skeleton:
        """The whole model; numbers that the configuration leaves out, and that it is not built without, are small."""
        single = [{k: HEAD} for k in self.unset] + [{k: not v} for k, v in self.full.items() if isinstance(v, bool)]
        pairs = ({a: HEAD, b: HEAD} for a, b in combinations(self.unset, 2))
        for change in chain([{}], single, pairs):
            made = self._tried(self.full | change)
            if made is not None:
                self.full, self.added = self.full | change, change
                self.unset = [k for k in self.unset if k not in change]
                return made
        return self._built(self.full)

    def _follows(self, key: str, each: bool = False) -> bool:
        """Does a number that need not be said follow from others, as the dimension of heads does from two parts?

        Args:
            each: from one of the others alone; else with all of them doubled.
        """
        others = {k: v for k, v in self.full.items() if k != key}
        double = {k: 2 * v for k, v in others.items() if k in self._numbers()}
        changes = [{k: v} for k, v in double.items()] if each else [double]
        found = []
        for change in ({}, *changes):
            with suppress(Unreadable):
                found.append(self._config(others | change).to_dict().get(key))
        return len(found) > 1 and found[0] == self.full[key] and {*found} != {found[0]}

    # layers ---------------------------------------------------------------------------------------------------

    def _find_depth(self) -> None:
        """Finds the numbers of layers, with which the number of layers changes; without any, the length of lists."""
        self.depth = len(self.first.layers)
        keys, less = [k for k in self._numbers() if self.full[k] == self.depth], self.depth - 1 or 2
        self.long: list[str] = []
        for self.long in ([], *([k] for k in keys), keys):
            cut = {k: v[:less] for k, v in self.full.items() if isinstance(v, list) and len(v) == self.depth}
            made = self._tried(self.shortened(less) | cut)
            if made is not None and len(made.layers) == less:
                break
        if self.long:
            self.axes["L"] = self.long[0]

    def shortened(self, depth: int) -> Options:
        """The configuration with so many layers, all of one kind."""
        options = dict(self.full)
        for k, v in self.full.items():
            if isinstance(v, dict) and v and all(str(x).isdecimal() for x in v):
                options[k] = {}
            elif isinstance(v, list) and len(v) == self.depth > 1:
                options[k] = [usual_kind(v)] * depth
        return options | dict.fromkeys(self.long, depth) | {k: value(depth) for k, value in self.pattern.items()}

    def _find_experts(self) -> None:
        """Finds the number of experts: it moves how many matrices are in a stack, and one side of a router."""
        stacks, at = self.first.stacks(), max(len(self.first.layers), 1)
        counts = {self.first.dims[name][k] // (at if k == 0 else 1) for name, k in stacks}
        for key in [k for k in self._numbers() if 1 < self.full[k] in counts]:
            n = self.full[key]
            moved = {}
            for more in (n + 1, 2 * n):
                moved = moved or self._moved(self.first, self.full | {key: more}) or {}
                exact = all(self._gained(d, x) == more - n for d, x in moved.items())
                sides = [(name, k) for name, k in moved if len(self.first.dims.get(name, ())) > 3 and k > 1]
                if moved and exact and not sides and stacks & moved.keys():
                    self.axes["M"], self.routed = key, {name for name, _ in moved}
                    self.stacked = {name for name, _ in stacks & moved.keys()}
                    return

    def _gained(self, dim: Dim, factor: float) -> float:
        """By how much a side is longer, or how many more modules there are in a layer."""
        size = self.first.dims.get(dim[0], (0,))[dim[1]]
        gained = (factor - 1) * size / (max(len(self.first.layers), 1) if dim[1] == 0 else 1)
        return round(gained) if math.isfinite(gained) else math.inf

    def _moved(self, before: Skeleton, options: Options) -> dict[Dim, float] | None:
        made = self._tried(options)
        return None if made is None else before.moved(made)

    def _has_experts(self, layer: frozenset[tuple[str, tuple[int, ...]]]) -> bool:
        stacked = {name.partition("*.")[2] for name in self.stacked}
        return any(name in stacked for name, _ in layer)

    def _find_pattern(self) -> None:
        """Finds the keys that make all layers of one kind: with experts, where some have them, or ``dense``."""

        def fits(made: Skeleton | None) -> int:
            """How well the layers are those that are to be read."""
            if made is None:
                return 0
            kinds = [self._has_experts(x) is not self.dense for x in made.layers] if "M" in self.axes else [True]
            return 1 + 2 * all(kinds) + (len(set(made.layers)) == 1)

        self.base = self._tried(self.shortened(DEPTH))
        best, before = fits(self.base), self.base
        single = [{k: x} for k, v in self.full.items() if self._may_say(k) for x in _patterns(v, self.depth)]
        active: list[dict[str, Callable[[int], Any]]] = []
        pairs = ({**a, **b} for two in [active] for a, b in combinations(two, 2) if a.keys() != b.keys())
        for change in chain(single, pairs):
            if best == 4:
                break
            kept, self.pattern = self.pattern, change
            made = self._tried(self.shortened(DEPTH))
            if len(change) == 1 and (made is None or before is None or made.layers != before.layers):
                active.append(change)
            if fits(made) <= best:
                self.pattern = kept
            else:
                best, self.base = fits(made), made
        if self.base is None:
            self._built(self.shortened(DEPTH))  # says why
        self.mixed = len({self._has_experts(x) for x in self.first.layers}) > 1
        if self.dense:
            self.axes.pop("M", None)

    def _may_say(self, key: str) -> bool:
        """May a key say which layers are of which kind?"""
        return key not in (*self.long, *self.axes.values())

    # sizes ----------------------------------------------------------------------------------------------------

    def _find_kinds(self) -> None:
        """Finds what the numbers are, by what moves where one is doubled."""
        assert self.base is not None
        base, options = self.base, self.shortened(DEPTH)
        keys = [k for k in self._numbers() if k not in (*self.long, *self.pattern)]
        made = {k: self._tried(options | {k: 2 * self.full[k]}) for k in keys}
        bound = self.bound = [k for k, x in made.items() if x is None]
        for k in bound:  # in proportion to another
            for other in (x for x in keys if x != k):
                both = self._tried(options | {x: 2 * self.full[x] for x in (k, other)})
                if both is not None:
                    alone = made[other] if other not in bound else None
                    idle = alone is not None and alone.dims == both.dims
                    made[k] = base if idle else both
                    self.bound = [x for x in self.bound if x != k or not idle]
                    break
        made = {k: x for k, x in made.items() if x is None or x.dims.keys() == base.dims.keys()}  # others are options
        moves = {k: base.moved(x) for k, x in made.items() if x is not None}
        changed = {
            k: {p: x.numbers[p] / n for p, n in base.numbers.items() if n and x.numbers.get(p, n) != n}
            for k, x in made.items()
            if x is not None
        }
        for k, moved in moves.items():
            rows = all(d == 1 for _, d in moved)
            if rows and any(name in base.tables for name, _ in moved):
                self.kinds[k] = "table"
        sizes = [k for k, x in moves.items() if x and k not in self.kinds and k != self.axes.get("M")]
        if not sizes:
            raise Unreadable(f"{self.path}: no number of it is the width of a model")
        self.axes["N"] = root = max(sizes, key=lambda k: (len({n for n, _ in moves[k]}), self._common(k)))
        parent = _parent(self.routed) if "M" in self.axes else ""
        for k in sizes:
            names = {name for name, _ in moves[k]}
            inside = parent and all(x.startswith(parent + ".") for x in names)
            within = any(name in self.stacked and d > 1 for name, d in moves[k])
            if "M" in self.axes and k != root and within and (inside or names <= self.routed):
                self.kinds[k] = "expert"
                self.axes.setdefault("N_e", k)
        self.free = [k for k in made if not moves.get(k) and k not in self.bound]
        self.idle = {k for k in self.free if self.full[k] > HEAD and self._follows(k, each=True)}
        self.gates = [k for k in self.free if any(parent and x.startswith(_first(parent)) for x in changed[k])]

        def exact(a: str, b: str) -> bool:
            """Do two numbers multiply each other in a side?"""
            pairs = [(moves[a][d], moves[b][d]) for d in moves[a].keys() & moves[b].keys()]
            return any(2 in pair and min(pair) > 1 for pair in pairs)

        n, before = self.full[root], base.numbers
        rest = [k for k in moves if k not in (*self.kinds, *self.bound, root, self.axes.get("M"))]
        for k in rest:
            if self._divides(k, changed[k], [n, n / 2]):
                self.kinds[k] = "count"
        for k in rest:
            own = {p: x for p, x in changed[k].items() if p not in changed[root]}
            falls = any(isinstance(before[p], float) and 0.5 < x < 1 for p, x in own.items())
            turns = any(x == 2 and p[-1].isdecimal() for p, x in changed[k].items())
            if k not in self.kinds and (falls or turns):
                self.kinds[k] = "dimension"
        rest = [k for k in rest if moves[k] or k not in self.kinds]
        for _ in range(3):
            for k in rest:
                of = {self.kinds.get(x) for x in rest if x != k and exact(k, x)}
                if k not in self.kinds and of & {"dimension", "count"}:
                    self.kinds[k] = "count" if "dimension" in of else "dimension"
            counts = [self.full[k] for k, kind in self.kinds.items() if kind == "count"]
            for k in rest:
                if k not in self.kinds and self._divides(k, changed[k], counts):
                    self.kinds[k] = "count"
        rest = [k for k in rest if moves[k]]
        for k in rest:
            names = {name for name, _ in moves[k]}
            multiple = any(exact(k, x) for x in (root, *(x for x in rest if self.kinds.get(x) == "expert")) if x != k)
            if k not in self.kinds and not multiple:
                inside = "N_e" in self.axes and all(x.startswith(parent + ".") for x in names)
                if self.full[k] * SHARE >= n:
                    self.kinds[k] = "expert" if inside else "width"

    def _divides(self, key: str, changed: Mapping[str, float], whole: list[float]) -> bool:
        """Does a module have one of these numbers divided by that of a key?"""
        before = self.base.numbers if self.base else {}
        whole_numbers = {p: before[p] for p in changed if isinstance(before[p], int)}
        halved = [m for p, m in whole_numbers.items() if round(changed[p] * m) == m // 2]
        return any(n * self.full[key] in whole for n in halved)

    def _common(self, key: str) -> int:
        """How many columns of tables have the size of a number."""
        assert self.base is not None
        return sum(self.full[key] in self.base.dims.get(x, ())[2:] for x in self.base.tables)

    # small models ---------------------------------------------------------------------------------------------

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
                found[k] = max(1, round(v * shorter)) * (n // BASE if k in beside.grows else 1)
            elif kind == "count" and v > 1:
                found[k] = max(1, round(_near(v * fewer) * at / BASE))
            elif kind == "width":
                found[k] = HEAD if k in beside.stays else max(1, int(_near(v / width) * n))
            elif kind == "expert":
                ratio = _near(v / self.full[self.axes["N_e"]])
                found[k] = HEAD if k in beside.stays else max(1, int(ratio * sizes["N_e"]))
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
        constants: Collection[str] = (),
        instead: Mapping[str, Any] | None = None,
    ) -> Callable[[Mapping[str, int]], tuple[nn.Module, Options]]:
        """The function that builds small models, and their input.

        Args:
            deep: the number of layers is an axis; else there is one layer. beside: what another configuration has
                otherwise. constants: those that are an axis of their own name, ``OTHER`` at the base. instead: options
                that replace those of small models.

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
            for name in constants:
                _put(options, name, beside.constants[name][0] * sizes[name] / OTHER)
            return self.model(options | dict(instead or {})), inputs()

        return build

    def compare(self, other: Mapping[str, Any]) -> Difference:
        """What another configuration of the family has otherwise."""
        given = {k: v for k, v in other.items() if k not in FILE}
        its = {k: v for k, v in self._config(given).to_dict().items() if k not in {*FILE, *self.follows}} | self.added
        flat = [dict(_flat({k: v for k, v in x.items() if k not in self.pattern})) for x in (self.full, its)]
        sizes = {*self.axes.values(), *self.long, *self.kinds, *self.bound}
        grown = {a for a, k in self.axes.items() if self.full[k] != its.get(k)}
        axis = {k: "N_e" if kind == "expert" else "N" for k, kind in self.kinds.items()}
        changed = {k for k in self._numbers() if self.full[k] != its.get(k)}
        stays = {k for k, a in axis.items() if a in grown and k not in changed and self.kinds[k] in GROW}
        grows = {k for k in changed - {*self.free} if self.kinds.get(k) not in GROW and k not in self.axes.values()}
        grows = {k for k in grows if self.kinds.get(k) != "table" and k not in self.long}
        if any(self.kinds[k] == "count" for k in stays):  # their dimension grows, said or not
            grows |= {k for k in changed if self.kinds.get(k) == "dimension"}
        found: dict[str, tuple[Any, Any]] = {}
        for k in dict.fromkeys(x for one in flat for x in one):
            a, b = (one.get(k) for one in flat)
            if a != b and k not in sizes and k not in grows and not (isinstance(a, list) and isinstance(b, list)):
                found[k] = a, b
        numbers = {k: (a, b) for k, (a, b) in found.items() if _number(a) and _number(b) and a * b > 0}
        others = {k: x for k, x in found.items() if k not in numbers}
        return Difference(frozenset(stays), frozenset(grows), numbers, others)

    def acts(self, name: str, values: tuple[float, float]) -> bool:
        """Does a constant change what a small model computes?"""
        at = {"N": BASE, "N_e": 24, "M": 4, "K": 2}
        models = []
        for x in values:
            options = self.options({a: n for a, n in at.items() if a in self.axes}, self.least)
            _put(options, name, x)
            models.append(self.model(options).double())
        models[1].load_state_dict(models[0].state_dict())
        one, other = (run(x) for x in models)
        return one.shape != other.shape or float((one - other).abs().max()) > 1e-9 * float(one.abs().max())

    def heads_grow(self, other: Mapping[str, Any]) -> tuple[int, int] | None:
        """The dimension of heads in another configuration and in this one, where it grows, and their number, too."""
        counts = [k for k, kind in self.kinds.items() if kind == "count"]
        its = self.full | self._config({k: v for k, v in other.items() if k not in FILE}).to_dict()
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
        full = self.full if record is None else self.full | self._config(given).to_dict()
        return {axis: full[key] for axis in ("N", "N_e", "M", "K", "L") if (key := self.axes.get(axis))}

    def _find_small(self) -> None:
        """Finds what else small models need, and which number is that of the chosen experts."""
        at = {"N": BASE, "N_e": 24, "M": 4}
        self._bind(at)
        self.trouble = self._trouble(at)
        numbers = [*self.unset, *self.free, *self.kinds, *self.bound, *self._numbers()]
        numbers = [k for k in dict.fromkeys(numbers) if k not in (*self.axes.values(), *self.long)]
        lists = [(k, x) for k, v in self.full.items() if isinstance(v, list) for x in _patterns(v, self.depth)]
        fixes = [(self.pattern, k, x) for k, x in lists]
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
            if all(self._tried(self.options({**sizes, "N": k * sizes["N"]}, 1)) is not None for k in (1, 2)):
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
        spy = _Choices()
        try:
            model = self.model(options)
            with spy:
                run(model)
        except Exception:  # of transformers
            return []
        return spy.found


class _Choices(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if getattr(func, "__name__", "") == "topk":
            self.found.append((out[0].shape[-1], args[0].shape[-1]))
        return out


def inputs() -> Options:
    """The input of a small model."""
    ids = torch.randint(3, TABLE, (1, 5), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "use_cache": False}


def run(model: nn.Module) -> Tensor:
    """The logits of a small model."""
    with torch.no_grad():
        out: Tensor = model.eval()(**inputs()).logits
    return out


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _flat(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of options and of dicts in them, by path."""
    for key, value in options.items():
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _put(options: Options, path: str, value: float) -> None:
    """Sets an entry by its path."""
    first, dot, rest = path.partition(".")
    if dot:
        options[first] = dict(options[first])
        _put(options[first], rest, value)
    else:
        options[first] = round(value) if isinstance(options.get(first), int) else value


def _near(ratio: float) -> float:
    """The nearest power of two."""
    return float(2 ** round(math.log2(ratio)))


def _first(parent: str) -> str:
    return parent.replace("*", "0")


def _parent(names: set[str]) -> str:
    """The module that has all of these parameters; empty where that is the layer."""
    paths = [x.split(".")[:-1] for x in sorted(names)]
    same = [x[0] for x in zip(*paths, strict=False) if len(set(x)) == 1]
    return "" if not same or same[-1] == "*" else ".".join(same)


def _patterns(value: Any, depth: int) -> Iterator[Callable[[int], Any]]:
    """What a key may be that says which layers are of which kind, by number of layers."""
    if isinstance(value, list) and len(value) == depth > 1:
        kinds = [*{str(x): x for x in value}.values()]
        yield from (lambda d, x=x: [x] * d for x in kinds)
        yield lambda d: (kinds * d)[:d]
    elif isinstance(value, list):
        yield from (lambda d: [], lambda d: [*range(d)])
    elif isinstance(value, int) and not isinstance(value, bool) and value <= depth:
        yield from (lambda d: 0, lambda d: 1, lambda d: d)


def probe(record: Mapping[str, Any], path: str, dense: bool = False) -> ProbedConfig:
    """What the numbers of a configuration are; asked once.

    Raises:
        UsageError: transformers is not there, or knows no such family. Unreadable: it does not build it.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ModuleNotFoundError:
        raise missing("--model hf:", "transformers", "models") from None
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


def usual_kind(kinds: list[Any]) -> Any:
    """The commonest kind of layer, or attention where some layers have it."""
    return max(kinds, key=lambda x: (x == ATTENTION, kinds.count(x)))
