"""Infers what each number of a transformers configuration means: a width, a number of heads, of experts, of layers.

The model is built without values (on ``meta``) with one number doubled at a time. Which shapes change tells what the
number means. Read next: ``config_probing.py`` (builds small models from the result).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, combinations
from typing import Any

from .config_skeletons import METADATA_KEYS, ConfigFamily, Dim, Options, Skeleton
from .nodes import Unreadable

SMALL_HEAD = 16
"""Dimension of an attention head in small models."""
WIDTH_SHARE = 16
"""A size is a width, which grows with the model, if it is at least 1/16 of the model's width; smaller ones stay fixed.
"""
PREFERRED_LAYER = "full_attention"
"""Name of the kind of layer that is read if a configuration lists several kinds."""
PROBED_DEPTH = 2
"""Number of layers of the models that are built to probe a configuration."""


class ConfigKinds(ConfigFamily):
    """A transformers configuration, and what each of its numbers means, inferred from the shapes of models built from
    it.

    Args:
        record: the configuration, as read from JSON.
        path: its path, quoted in error messages.
        dense: if only some layers have experts: whether to read the layers without experts instead of those with
            experts.

    Attributes:
        full: the complete configuration, without keys that transformers derives from others.
        derived: the keys that transformers derives from others.
        unset: keys whose value is null.
        axes: for each axis, the key that sets its size: N, L, and for models with experts M, K, N_e.
        kinds: for every other key of a size, its kind: ``width``, ``count`` (of heads), ``dimension`` (of heads),
            ``expert`` (a width that grows like N_e) or ``table`` (rows of an embedding).
        pattern: for each key that selects kinds of layers, a function from the number of layers to its value.
        long: keys that set the number of layers.
        bound: keys whose number can only be changed together with that of another key; doubled alone, it gives a
            configuration from which no model can be built.
        mixed: whether some layers have experts and others do not.
        whole: the shapes of the model in its full size.
        short: the shapes of the model with ``PROBED_DEPTH`` layers.

    Raises:
        Unreadable: transformers cannot build the model.
    """

    def __init__(self, record: Mapping[str, Any], path: str, dense: bool = False) -> None:
        super().__init__(record["model_type"], path)
        self.record, self.dense = record, dense
        given = {k: v for k, v in record.items() if k not in METADATA_KEYS}
        self.full: Options = {k: v for k, v in self.build_config(given).to_dict().items() if k not in METADATA_KEYS}
        self.derived = {k for k in self._list_number_keys() if self._is_derived(k)}
        self.full = {k: v for k, v in self.full.items() if k not in self.derived}
        self.unset = [k for k, v in self.full.items() if v is None]
        self.axes: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.pattern: dict[str, Callable[[int], Any]] = {}
        self.added: Options = {}
        self.routed: set[str] = set()
        self.stacked: set[str] = set()
        self.whole = self._build_completed()
        self._find_depth()
        self._find_experts()
        self._find_pattern()
        self._find_kinds()

    def _list_number_keys(self) -> list[str]:
        """Returns the keys whose value is a positive integer."""
        return [k for k, v in self.full.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0]

    def _build_completed(self) -> Skeleton:
        """Builds the full model without values and returns its shapes.

        If transformers cannot build it as given, one or two keys that are null are set to a small number, or a
        boolean is inverted, until it can. The changed keys are written into ``full``, and kept by themselves in
        ``added``.
        """
        single = [{k: SMALL_HEAD} for k in self.unset] + [
            {k: not v} for k, v in self.full.items() if isinstance(v, bool)
        ]
        pairs = ({a: SMALL_HEAD, b: SMALL_HEAD} for a, b in combinations(self.unset, 2))
        for change in chain([{}], single, pairs):
            made = self.try_skeleton(self.full | change)
            if made is not None:
                self.full, self.added = self.full | change, change
                self.unset = [k for k in self.unset if k not in change]
                return made
        return self.build_skeleton(self.full)

    def _is_derived(self, key: str, each: bool = False) -> bool:
        """Returns whether transformers computes the number of a key from other numbers if the key is omitted.

        This is tested by doubling the other numbers.

        Args:
            key: the key, such as the head dimension of a model whose heads have two parts.
            each: double the other numbers one at a time; otherwise double all of them together.
        """
        others = {k: v for k, v in self.full.items() if k != key}
        double = {k: 2 * v for k, v in others.items() if k in self._list_number_keys()}
        changes = [{k: v} for k, v in double.items()] if each else [double]
        found = []
        for change in ({}, *changes):
            with suppress(Unreadable):
                found.append(self.build_config(others | change).to_dict().get(key))
        return len(found) > 1 and found[0] == self.full[key] and {*found} != {found[0]}

    # layers ---------------------------------------------------------------------------------------------------

    def _find_depth(self) -> None:
        """Finds the keys that set the number of layers, by changing them and counting the layers of the model.

        If there are none, the length of lists (one entry for each layer) sets it.
        """
        self.depth = len(self.whole.layers)
        keys, less = [k for k in self._list_number_keys() if self.full[k] == self.depth], self.depth - 1 or 2
        self.long: list[str] = []
        for self.long in ([], *([k] for k in keys), keys):
            cut = {k: v[:less] for k, v in self.full.items() if isinstance(v, list) and len(v) == self.depth}
            made = self.try_skeleton(self.with_depth(less) | cut)
            if made is not None and len(made.layers) == less:
                break
        if self.long:
            self.axes["L"] = self.long[0]

    def with_depth(self, depth: int) -> Options:
        """Returns the options of the model with ``depth`` layers, all of one kind."""
        options = dict(self.full)
        for k, v in self.full.items():
            if isinstance(v, dict) and v and all(str(x).isdecimal() for x in v):
                options[k] = {}
            elif isinstance(v, list) and len(v) == self.depth > 1:
                options[k] = [choose_layer_kind(v)] * depth
        return options | dict.fromkeys(self.long, depth) | {k: value(depth) for k, value in self.pattern.items()}

    def _find_experts(self) -> None:
        """Finds the key that sets the number of experts M.

        Increasing it makes stacks of matrices longer, or adds modules to a list, and changes no matrix except one
        side of the router.
        """
        stacks, at = self.whole.find_stacks(), max(len(self.whole.layers), 1)
        counts = {self.whole.dims[name][k] // (at if k == 0 else 1) for name, k in stacks}
        for key in [k for k in self._list_number_keys() if 1 < self.full[k] in counts]:
            n = self.full[key]
            moved: dict[Any, Any] = {}
            for more in (n + 1, 2 * n):
                moved = moved or self._compare_with(self.whole, self.full | {key: more}) or {}
                exact = all(self._count_added(d, x) == more - n for d, x in moved.items())
                sides = [(name, k) for name, k in moved if len(self.whole.dims.get(name, ())) > 3 and k > 1]
                if moved and exact and not sides and stacks & moved.keys():
                    self.axes["M"], self.routed = key, {name for name, _ in moved}
                    self.stacked = {name for name, _ in stacks & moved.keys()}
                    return

    def _count_added(self, dim: Dim, factor: float) -> float:
        """Returns how many entries a dimension of a parameter gains when its size is multiplied by ``factor``.

        For dimension 0, which counts the modules that have this parameter, it is the number of modules that each
        layer gains.
        """
        size = self.whole.dims.get(dim[0], (0,))[dim[1]]
        gained = (factor - 1) * size / (max(len(self.whole.layers), 1) if dim[1] == 0 else 1)
        return round(gained) if math.isfinite(gained) else math.inf

    def _compare_with(self, before: Skeleton, options: Options) -> dict[Dim, float] | None:
        """Builds the model with other options and returns which dimensions of its parameters change.

        Args:
            before: the shapes to compare with.
            options: the options.

        Returns:
            The new size of each changed dimension divided by the size before; None if the model cannot be built.
        """
        made = self.try_skeleton(options)
        return None if made is None else before.compare_shapes(made)

    def _has_experts(self, layer: frozenset[tuple[str, tuple[int, ...]]]) -> bool:
        """Returns whether a layer has parameters of experts.

        Args:
            layer: its parameters, as (name, shape).
        """
        stacked = {name.partition("*.")[2] for name in self.stacked}
        return any(name in stacked for name, _ in layer)

    def _find_pattern(self) -> None:
        """Finds values for the keys that select kinds of layers so that all layers are of one kind, and fills
        ``pattern``.

        The kind is the one with experts if some layers have them, or the one without if ``dense`` is set.
        """

        def fits(made: Skeleton | None) -> int:
            """Scores how well a model suits the reading, from 0 to 4, so that the best pattern of layers can be chosen.

            The score is 0 if the model cannot be built (``made`` is None). Otherwise it is 1, plus 2 if every layer is
            of the kind to be read (with experts, or without if ``dense`` is set), plus 1 if all layers are alike.
            """
            if made is None:
                return 0
            kinds = [self._has_experts(x) is not self.dense for x in made.layers] if "M" in self.axes else [True]
            return 1 + 2 * all(kinds) + (len(set(made.layers)) == 1)

        self.short = self.try_skeleton(self.with_depth(PROBED_DEPTH))
        best, before = fits(self.short), self.short
        single = [
            {k: x}
            for k, v in self.full.items()
            if self._may_select_layers(k)
            for x in list_layer_patterns(v, self.depth)
        ]
        active: list[dict[str, Callable[[int], Any]]] = []
        pairs = ({**a, **b} for two in [active] for a, b in combinations(two, 2) if a.keys() != b.keys())
        for change in chain(single, pairs):
            if best == 4:
                break
            kept, self.pattern = self.pattern, change
            made = self.try_skeleton(self.with_depth(PROBED_DEPTH))
            if len(change) == 1 and (made is None or before is None or made.layers != before.layers):
                active.append(change)
            if fits(made) <= best:
                self.pattern = kept
            else:
                best, self.short = fits(made), made
        if self.short is None:
            self.build_skeleton(self.with_depth(PROBED_DEPTH))  # raises the reason
        self.mixed = len({self._has_experts(x) for x in self.whole.layers}) > 1
        if self.dense:
            self.axes.pop("M", None)

    def _may_select_layers(self, key: str) -> bool:
        """Returns whether a key could select kinds of layers: any but the keys of the depth and of axes."""
        return key not in (*self.long, *self.axes.values())

    # sizes ----------------------------------------------------------------------------------------------------

    def _find_kinds(self) -> None:
        """Finds the meaning of the remaining numbers and fills ``kinds``, ``axes`` and ``bound``.

        Each number is doubled; the shapes and the numbers stored in modules that then change tell what it is.
        """
        assert self.short is not None
        base, options = self.short, self.with_depth(PROBED_DEPTH)
        keys = [k for k in self._list_number_keys() if k not in (*self.long, *self.pattern)]
        made = {k: self.try_skeleton(options | {k: 2 * self.full[k]}) for k in keys}
        bound = self.bound = [k for k, x in made.items() if x is None]
        for k in bound:  # a number that must stay proportional to another one
            for other in (x for x in keys if x != k):
                both = self.try_skeleton(options | {x: 2 * self.full[x] for x in (k, other)})
                if both is not None:
                    alone = made[other] if other not in bound else None
                    idle = alone is not None and alone.dims == both.dims
                    made[k] = base if idle else both
                    self.bound = [x for x in self.bound if x != k or not idle]
                    break
        made = {
            k: x for k, x in made.items() if x is None or x.dims.keys() == base.dims.keys()
        }  # a key that adds parameters is an option, not a size
        moves = {k: base.compare_shapes(x) for k, x in made.items() if x is not None}
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
            raise Unreadable(
                f"{self.path}: none of its numbers sets the width of the model; give FILE.py:build instead"
            )
        self.axes["N"] = root = max(sizes, key=lambda k: (len({n for n, _ in moves[k]}), self._count_table_columns(k)))
        parent = _find_common_module(self.routed) if "M" in self.axes else ""
        for k in sizes:
            names = {name for name, _ in moves[k]}
            inside = parent and all(x.startswith(parent + ".") for x in names)
            within = any(name in self.stacked and d > 1 for name, d in moves[k])
            if "M" in self.axes and k != root and within and (inside or names <= self.routed):
                self.kinds[k] = "expert"
                self.axes.setdefault("N_e", k)
        self.moving = {k for k, x in moves.items() if x}
        self.free = [k for k in made if not moves.get(k) and k not in self.bound]
        self.idle = {k for k in self.free if self.full[k] > SMALL_HEAD and self._is_derived(k, each=True)}
        self.gates = [
            k for k in self.free if any(parent and x.startswith(_path_in_first_layer(parent)) for x in changed[k])
        ]

        def exact(a: str, b: str) -> bool:
            """Returns whether some dimension of a parameter is the product of two numbers of the configuration, as
            (number of heads) * (dimension of a head) is.

            Args:
                a: the key of one number.
                b: the key of the other.
            """
            pairs = [(moves[a][d], moves[b][d]) for d in moves[a].keys() & moves[b].keys()]
            return any(2 in pair and min(pair) > 1 for pair in pairs)

        n, before = self.full[root], base.numbers
        rest = [k for k in moves if k not in (*self.kinds, *self.bound, root, self.axes.get("M"))]
        for k in rest:
            if self._divides_one_of(k, changed[k], [n, n / 2]):
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
                if k not in self.kinds and self._divides_one_of(k, changed[k], counts):
                    self.kinds[k] = "count"
        rest = [k for k in rest if moves[k]]
        for k in rest:
            names = {name for name, _ in moves[k]}
            multiple = any(exact(k, x) for x in (root, *(x for x in rest if self.kinds.get(x) == "expert")) if x != k)
            if k not in self.kinds and not multiple:
                inside = "N_e" in self.axes and all(x.startswith(parent + ".") for x in names)
                if self.full[k] * WIDTH_SHARE >= n:
                    self.kinds[k] = "expert" if inside else "width"

    def _divides_one_of(self, key: str, changed: Mapping[str, float], whole: list[float]) -> bool:
        """Returns whether some module of the model stores an attribute that is one of the numbers ``whole``, divided by
        the number of a key.

        If this is the width divided by the number, the attribute is a head dimension, and the key a number of heads.

        Args:
            key: the key.
            changed: attributes of modules that change when the key is doubled, with their ratios.
            whole: the numbers that may be divided, such as the width.
        """
        before = self.short.numbers if self.short else {}
        whole_numbers = {p: before[p] for p in changed if isinstance(before[p], int)}
        halved = [m for p, m in whole_numbers.items() if round(changed[p] * m) == m // 2]
        return any(n * self.full[key] in whole for n in halved)

    def _count_table_columns(self, key: str) -> int:
        """Returns how many embeddings of the model have a number of columns equal to the number that a key has."""
        assert self.short is not None
        return sum(self.full[key] in self.short.dims.get(x, ())[2:] for x in self.short.tables)


def _path_in_first_layer(parent: str) -> str:
    """Returns the path of a module in the first layer, given the path with ``*`` for every layer number.

    ``layers.*.mlp  ->  layers.0.mlp``
    """
    return parent.replace("*", "0")


def _find_common_module(names: set[str]) -> str:
    """Returns the path of the innermost module that contains all parameters with these names.

    Returns "" if this module is a whole layer or the whole model.
    """
    paths = [x.split(".")[:-1] for x in sorted(names)]
    same = [x[0] for x in zip(*paths, strict=False) if len(set(x)) == 1]
    return "" if not same or same[-1] == "*" else ".".join(same)


def list_layer_patterns(value: Any, depth: int) -> Iterator[Callable[[int], Any]]:
    """Yields values that a key which selects kinds of layers might have, each as a function of the number of layers.

    A list such as ["dense", "moe", "moe"] gives all dense, all moe, and both in turn.

    Args:
        value: the value in the configuration: a list with an entry for each layer, another list, or a number of layers.
        depth: the number of layers in the configuration.
    """
    if isinstance(value, list) and len(value) == depth > 1:
        kinds = [*{str(x): x for x in value}.values()]
        yield from (lambda d, x=x: [x] * d for x in kinds)
        yield lambda d: (kinds * d)[:d]
    elif isinstance(value, list):
        yield from (lambda d: [], lambda d: [*range(d)])
    elif isinstance(value, int) and not isinstance(value, bool) and value <= depth:
        yield from (lambda d: 0, lambda d: 1, lambda d: d)


def choose_layer_kind(kinds: list[Any]) -> Any:
    """Returns the most frequent entry of a list of kinds of layers, or full attention if any layer has it."""
    return max(kinds, key=lambda x: (x == PREFERRED_LAYER, kinds.count(x)))
