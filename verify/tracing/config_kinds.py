"""What the numbers of a configuration of transformers are: widths, heads, experts, layers.

The configuration is built without values (on ``meta``), one number doubled at a time, and the shapes that move say what
the number is. Read next: ``config_probing.py`` (builds small models by it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, combinations
from typing import Any

from .config_skeletons import FILE, ConfigFamily, Dim, Options, Skeleton
from .nodes import Unreadable

HEAD = 16
"""Dimension of a head in small models."""
SHARE = 16
"""A size that moves no less than the model's width by this is a width, which grows; smaller ones stay."""
ATTENTION = "full_attention"
"""The kind of layer that is read where a list has several."""
DEPTH = 2
"""Layers of the models that are probed."""


class ConfigKinds(ConfigFamily):
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
        super().__init__(record["model_type"], path)
        self.record, self.dense = record, dense
        given = {k: v for k, v in record.items() if k not in FILE}
        self.full: Options = {k: v for k, v in self.config(given).to_dict().items() if k not in FILE}
        self.follows = {k for k in self._numbers() if self._follows(k)}
        self.full = {k: v for k, v in self.full.items() if k not in self.follows}
        self.unset = [k for k, v in self.full.items() if v is None]
        self.axes: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.pattern: dict[str, Callable[[int], Any]] = {}
        self.added: Options = {}
        self.routed: set[str] = set()
        self.stacked: set[str] = set()
        self.first = self._complete()
        self._find_depth()
        self._find_experts()
        self._find_pattern()
        self._find_kinds()

    def _numbers(self) -> list[str]:
        """Keys with a whole number."""
        return [k for k, v in self.full.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0]

    def _complete(self) -> Skeleton:
        """The whole model; numbers that the configuration leaves out, and that it is not built without, are small."""
        single = [{k: HEAD} for k in self.unset] + [{k: not v} for k, v in self.full.items() if isinstance(v, bool)]
        pairs = ({a: HEAD, b: HEAD} for a, b in combinations(self.unset, 2))
        for change in chain([{}], single, pairs):
            made = self.tried(self.full | change)
            if made is not None:
                self.full, self.added = self.full | change, change
                self.unset = [k for k in self.unset if k not in change]
                return made
        return self.built(self.full)

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
                found.append(self.config(others | change).to_dict().get(key))
        return len(found) > 1 and found[0] == self.full[key] and {*found} != {found[0]}

    # layers ---------------------------------------------------------------------------------------------------

    def _find_depth(self) -> None:
        """Finds the numbers of layers, with which the number of layers changes; without any, the length of lists."""
        self.depth = len(self.first.layers)
        keys, less = [k for k in self._numbers() if self.full[k] == self.depth], self.depth - 1 or 2
        self.long: list[str] = []
        for self.long in ([], *([k] for k in keys), keys):
            cut = {k: v[:less] for k, v in self.full.items() if isinstance(v, list) and len(v) == self.depth}
            made = self.tried(self.shortened(less) | cut)
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
            moved: dict[Any, Any] = {}
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
        made = self.tried(options)
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

        self.base = self.tried(self.shortened(DEPTH))
        best, before = fits(self.base), self.base
        single = [{k: x} for k, v in self.full.items() if self._may_say(k) for x in patterns(v, self.depth)]
        active: list[dict[str, Callable[[int], Any]]] = []
        pairs = ({**a, **b} for two in [active] for a, b in combinations(two, 2) if a.keys() != b.keys())
        for change in chain(single, pairs):
            if best == 4:
                break
            kept, self.pattern = self.pattern, change
            made = self.tried(self.shortened(DEPTH))
            if len(change) == 1 and (made is None or before is None or made.layers != before.layers):
                active.append(change)
            if fits(made) <= best:
                self.pattern = kept
            else:
                best, self.base = fits(made), made
        if self.base is None:
            self.built(self.shortened(DEPTH))  # says why
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
        made = {k: self.tried(options | {k: 2 * self.full[k]}) for k in keys}
        bound = self.bound = [k for k, x in made.items() if x is None]
        for k in bound:  # in proportion to another
            for other in (x for x in keys if x != k):
                both = self.tried(options | {x: 2 * self.full[x] for x in (k, other)})
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
        self.moving = {k for k, x in moves.items() if x}
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


def _first(parent: str) -> str:
    return parent.replace("*", "0")


def _parent(names: set[str]) -> str:
    """The module that has all of these parameters; empty where that is the layer."""
    paths = [x.split(".")[:-1] for x in sorted(names)]
    same = [x[0] for x in zip(*paths, strict=False) if len(set(x)) == 1]
    return "" if not same or same[-1] == "*" else ".".join(same)


def patterns(value: Any, depth: int) -> Iterator[Callable[[int], Any]]:
    """What a key may be that says which layers are of which kind, by number of layers."""
    if isinstance(value, list) and len(value) == depth > 1:
        kinds = [*{str(x): x for x in value}.values()]
        yield from (lambda d, x=x: [x] * d for x in kinds)
        yield lambda d: (kinds * d)[:d]
    elif isinstance(value, list):
        yield from (lambda d: [], lambda d: [*range(d)])
    elif isinstance(value, int) and not isinstance(value, bool) and value <= depth:
        yield from (lambda d: 0, lambda d: 1, lambda d: d)


def usual_kind(kinds: list[Any]) -> Any:
    """The commonest kind of layer, or attention where some layers have it."""
    return max(kinds, key=lambda x: (x == ATTENTION, kinds.count(x)))
