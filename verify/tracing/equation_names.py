"""Chooses the names in the equations of a traced module: axes, index names, symbols of tensors, names of signals.

Read next: ``equation_writer.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from scaling_algebra.spec.axes import AXES, FIXED
from scaling_algebra.spec.networks.functions import FUNCTIONS

from .nodes import (
    Concatenation,
    ContractionNode,
    DataNode,
    EntryPick,
    EquationConstant,
    FixedConcatenation,
    FunctionNode,
    IndexClass,
    Parameter,
    Sizes,
    TracedNode,
    Unreadable,
    make_error,
)

INDEX_NAMES = {
    "N": "abcd", "N_e": "kmno", "M": "ijpq", "K": "u", "L": "lh", "S": "stvw", "D": "xyz", "E": "efgr", "C": "ABCD",
    "R": "PQR",
}  # fmt: skip
"""Index names of each axis, in the order in which they are used; further ones come from other alphabets."""
Powers = Mapping[str, Fraction]
"""Exponents of the axes: ``{"N": 1, "L": -1/2}`` means N L^(-1/2)."""
Span = tuple[int, int, int, Powers]
"""Slice of a parameter: (dimension, start, length, length as powers of the axes)."""


def fit_powers(numbers: Sequence[float], builds: Sequence[Mapping[str, int]]) -> Powers | None:
    """Returns the powers of the axes to which a number is proportional, given its value in each build of the module.

        fit_powers([8, 32, 8], [{N: 4, L: 2}, {N: 8, L: 2}, {N: 4, L: 4}])  ->  {N: 2}

    Args:
        numbers: the value in each build of the module.
        builds: the sizes of each build. Each differs from the first in one axis, or in M and K; several may differ in
            the same axis.

    Returns:
        The non-zero exponents by axis; None if the number is no such product, or is zero or not finite in some build.
    """
    powers, base = dict[str, Fraction](), builds[0]
    if not all(numbers) or not all(map(math.isfinite, numbers)):  # it vanishes at small sizes, or is not a number
        return None
    for build, number in list(zip(builds, numbers, strict=True))[1:]:
        (axis, n), *_ = sorted(((x, n) for x, n in base.items() if build[x] != n), key=lambda x: x[0] == "K")
        p = math.log(abs(number / numbers[0])) / math.log(build[axis] / n)
        power = Fraction(p).limit_denominator(4)
        if abs(p - power) > 1e-6:
            return None
        if powers.setdefault(axis, power) != power:  # a second build that differs in this axis disagrees
            return None
    return {axis: power for axis, power in powers.items() if power}


class EquationNames:
    """The names used in the equations of one network.

    Attributes:
        axes: axis of each index name.
        parameters: parameter name of each tensor symbol.
        signals: signal name of each node, by number.
        constants: name of each constant, by a key that identifies it.
        frozen: names of tensors that do not train.
        part_bounds: for each parameter, where the parts of it that are read begin and end, as (dimension, start, end)
            by name of the part.
        spans: for each part of a parameter, by name, the slice of the parameter that it is.
        reserved: names that are in use.
        axis_of: axis of each index class.
        preferred_names: the index name that each index class gets, unless another index of the same equation has it.
        part_names: for each part of a parameter (such as the q rows of a packed qkv), its name in the equations.
        data: the node of the input.
        tokens: index classes of the batch and sequence dimensions of the input.
        dropped: those of ``tokens`` along which every token is treated separately; the equations omit these indices.
    """

    def __init__(self, nodes: Sequence[TracedNode], builds: Sequence[Mapping[str, int]]) -> None:
        self.builds, self.base = builds, builds[0]
        self.axes: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.signals: dict[int, str] = {}
        self.constants: dict[Any, str] = {}
        self.frozen: list[str] = []
        self.part_bounds: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.spans: dict[str, Span] = {}
        self.reserved = {"data", "f", *FUNCTIONS}
        own = [axis for axis in self.base if axis not in INDEX_NAMES]  # axes that only this build function has
        self.pools = {**INDEX_NAMES, **{axis: chr(0x3B1 + k) for k, axis in enumerate(own)}}
        self.axis_of: dict[IndexClass, str] = {}
        self.preferred_names: dict[IndexClass, str] = {}
        self.part_names = _number_parts(n.name for n in nodes if isinstance(n, Parameter))
        self._find_data(nodes)

    def _find_data(self, nodes: Sequence[TracedNode]) -> None:
        """Finds the node of the input (``data``), its dimensions that count tokens, such as batch and positions
        (``tokens``), and those of them along which no operation mixes tokens (``dropped``).

        Raises:
            Unreadable: the output does not depend on the input.
        """
        datas = [n for n in nodes if isinstance(n, DataNode)]
        if not datas:
            raise Unreadable("model: the output does not depend on the input; let forward use it")
        self.data = max(datas, key=lambda n: len(n.indices))
        hot = any(leaf == ("data", "vocabulary") for x in self.data.indices for leaf in x.find_root().leaves)
        sequence = self.data.indices[:-1] if hot or len(self.data.indices) > 1 else []
        self.tokens = {x.find_root() for x in sequence}
        beside: set[IndexClass] = set()
        for node in nodes:
            if isinstance(node, FixedConcatenation):  # an index along which tokens are concatenated is a token index
                last = len(node.indices) - 1
                places = {c.indices[m.index(last)].find_root() for c, m in node.sources if last in m}
                if places & self.tokens:
                    self.tokens.add(node.indices[-1].find_root())
                    beside |= places
        loose = {x.find_root() for x in self.data.indices if self.find_axis(x) == "S"} - beside
        for node in nodes:
            mixed = [node.indices[k] for k in node.over]
            if isinstance(node, ContractionNode):
                mixed += [x for label, x in node.labels.items() if label not in node.out]
            if isinstance(node, EntryPick):
                mixed.append(node.source.indices[node.slot])
            if isinstance(node, Parameter):
                mixed += node.indices
            loose -= {x.find_root() for x in mixed}
        self.dropped = loose

    def find_axis(self, index: IndexClass) -> str:
        """Returns the axis to which the size of an index is proportional: N for an index of size 4 N.

        An index that does not grow gets an axis of fixed size: S if it counts tokens, D if it is another dimension of
        the input, and E otherwise.

        Raises:
            Unreadable: the size is not proportional to one axis.
        """
        index = index.find_root()
        if index not in self.axis_of:
            powers = fit_powers(index.sizes, self.builds)
            if powers is None or len(powers) > 1 or any(p != 1 for p in powers.values()):
                whose = sorted({str(leaf[1]) for leaf in index.leaves}) or ["an axis"]
                raise Unreadable(
                    f"{', '.join(whose[:3])}: the sizes {index.sizes} are no multiple of one axis of "
                    "build; build(sizes) must "
                    "use sizes['N'] or another single axis for it"
                )
            inputs = [leaf for leaf in index.leaves if leaf[0] == "data"]
            axis = next(iter(powers), "")
            if axis not in AXES and (axis in ("", *FIXED) or inputs or index in self.tokens):
                axis = "S" if index in self.tokens else "D" if inputs else "E"
            self.axis_of[index] = axis
        return self.axis_of[index]

    def is_growing(self, index: IndexClass) -> bool:
        """Returns whether the axis to which the size of an index is proportional is one that may grow, such as N."""
        return self.find_axis(index) not in FIXED

    def assign_index_names(self, index_of: Mapping[int, IndexClass]) -> dict[int, str]:
        """Chooses the index names in one equation; different indices of the same axis get different names.

        Args:
            index_of: the index class of each label; a label is a number that stands for one index of the equation.

        Returns:
            The index name of each label; "" for a token dimension that the equations omit (``dropped``).
        """
        found: dict[int, str] = {}
        for label, index in index_of.items():
            index = index.find_root()
            if index in self.dropped:
                found[label] = ""
                continue
            axis = self.find_axis(index)
            pool = [*self.pools[axis], *(chr(0x430 + 16 * [*self.pools].index(axis) % 64 + k) for k in range(8))]
            if index not in self.preferred_names:
                known = {x for other, x in self.preferred_names.items() if self.find_axis(other) == axis}
                self.preferred_names[index] = next((x for x in pool[:4] if x not in known), pool[0])
            free = (x for x in (self.preferred_names[index], *pool) if x not in found.values())
            if not (index_name := next(free, "")):
                raise Unreadable(f"{axis}: one equation has too many indices of this axis; split the call")
            found[label] = index_name
            self.axes[index_name] = axis
        return found

    def name_slots(self, node: TracedNode) -> list[str]:
        """Returns an index name for each dimension of a node."""
        return [*self.assign_index_names(dict(enumerate(node.indices))).values()]

    def reserve_name(self, stem: str) -> str:
        """Returns an unused name (``stem``, ``stem_2``, ...) and marks it as used.

        The name of its gradient, ``g`` + name, is unused, too.
        """
        name, k = stem, 1
        while {name, f"g{name}"} & self.reserved:
            k += 1
            name = f"{stem}_{k}"
        self.reserved |= {name, f"g{name}"}
        return name

    def name_signal(self, node: TracedNode) -> str:
        """Returns the name of a signal; it is derived from the path of the module that makes it."""
        if node.number not in self.signals:
            where = re.sub(r"(^|\.)(model|layers|blocks|block|transformer|h)(?=\.|$)", "", node.where).strip(".")
            where = re.sub(r"(^|\.)\d+(?=\.|$)", "", where).strip(".")
            stem = re.sub(r"\W+", "_", where).strip("_") or "h"
            stem += f"_{node.name}" if isinstance(node, FunctionNode) else ""
            self.signals[node.number] = self.reserve_name(re.sub(r"^(?=\d)", "l", stem))
        return self.signals[node.number]

    def name_parameter(self, node: Parameter) -> str:
        """Returns the symbol of a parameter in the equations; a part of a parameter has a symbol of its own.

        For a part, the method also records which slice of the parameter it is (``spans``).

        Raises:
            Unreadable: two parts overlap.
        """
        name, spans, part = node.name, {node.name: (-1, 0, 0)}, node.part
        while part is not None and isinstance(part[0], Parameter):
            spans[part[0].name] = part[1], part[2][0], part[3][0]
            part = part[0].part
        for whole, span in spans.items():
            for other, there in self.part_bounds.setdefault(whole, {}).items():
                apart = there[0] == span[0] and (there[2] <= span[1] or span[2] <= there[1])
                if there != span and (other == name or not apart):
                    why = "is used both whole and in parts, or split in two ways; make a parameter of each part"
                    raise make_error(name, why)
            self.part_bounds[whole][name] = span
        name = self.part_names.get(name, name)
        if (at := _locate_part(node)) is not None:
            count = tuple(b - a for a, b in zip(*at[1:], strict=True))
            powers = fit_powers(count, self.builds[: len(count)])
            self.spans |= {} if powers is None else {name: (at[0], at[1][0], count[0], powers)}
        for symbol, known in self.parameters.items():
            if known == name:
                return symbol
        stem = re.sub(r"\W+", "_", re.sub(r"\.weight(?=\[|$)", "", name)).strip("_")
        stem = re.sub(r"^(?=\d)", "W", stem)
        symbol = self.reserve_name(stem[0].upper() + stem[1:])
        self.parameters[symbol] = name
        self.frozen += [name] if node.frozen else []
        return symbol

    def write_tensor(self, node: TracedNode, indices: Iterable[str]) -> str:
        """Writes a tensor with its indices, such as ``W[a,b]``.

        Raises:
            Unreadable: equations cannot contain it: it is a concatenation, or a sum or product of parameters alone.
        """
        if isinstance(node, Concatenation) or (node.is_weight and not isinstance(node, Parameter | FunctionNode)):
            what = (
                "a concatenation over which no product sums"
                if isinstance(node, Concatenation)
                else "a function of weights alone"
            )
            raise node.fail(f"{what} cannot be written as equations; use its parts, or make it a parameter")
        if isinstance(node, EquationConstant):
            return self.write_constant(node.number, indices)
        if isinstance(node, Parameter):
            return write_indexed(self.name_parameter(node), indices)
        return write_indexed("data" if isinstance(node, DataNode) else self.name_signal(node), indices)

    def write_constant(self, key: Any, indices: Iterable[str]) -> str:
        """Writes a constant with its indices, such as ``C[a]``.

        Args:
            key: identifies the constant; a key that was not used before gets a new name.
            indices: the index names.
        """
        if key not in self.constants:
            self.constants[key] = self.reserve_name("C")
        return write_indexed(self.constants[key], indices)


def write_indexed(name: str, indices: Iterable[str]) -> str:
    """Writes a name with its indices: ``h[a,b]``. Indices without a name ("") are left out, as for omitted dimensions.

    Without any index, the name stands alone.
    """
    inside = ",".join(x for x in indices if x)
    return f"{name}[{inside}]" if inside else name


def _number_parts(names: Iterable[str]) -> dict[str, str]:
    """Renames parts of parameters, whose names contain the row at which they begin, so that they are counted 0, 1, 2,
    ...

    Examples:
        >>> _number_parts(["qkv[0]", "qkv[32]", "qkv[40]", "out"])
        {'qkv[0]': 'qkv[0]', 'qkv[32]': 'qkv[1]', 'qkv[40]': 'qkv[2]'}
    """
    paths = {name: name.rstrip("]").replace("]", "").split("[") for name in names if name.endswith("]")}
    begins: dict[tuple[str, ...], set[int]] = {}
    for path in paths.values():
        for k in range(1, len(path)):
            begins.setdefault(tuple(path[:k]), set()).add(int(path[k]))
    return {
        name: path[0] + "".join(f"[{sorted(begins[tuple(path[:k])]).index(int(path[k]))}]" for k in range(1, len(path)))
        for name, path in paths.items()
    }


def _locate_part(node: TracedNode) -> tuple[int, Sizes, Sizes] | None:
    """Finds which part of which dimension of a parameter a node is.

    Returns:
        The dimension, and the positions along it at which the part begins and ends, in each build of the module. None
        if the node is a whole parameter, or is not a contiguous part.
    """
    if node.part is None or not isinstance(node.part[0], Parameter):
        return None
    whole, (_, slot, start, stop) = node.part[0], node.part
    before, count = _locate_part(whole), len(whole.indices[slot].find_root().sizes)
    start, stop = (x * (count // len(x)) for x in (start, stop))
    dims, indices = whole.axes, [x.find_root().sizes for x in whole.indices]
    if dims[slot] in dims[:slot] or (whole.part is not None and (before is None or before[0] != dims[slot])):
        return None
    for x in (x for d, x in zip(dims[slot + 1 :], indices[slot + 1 :], strict=False) if d == dims[slot]):
        start, stop = (tuple(a * n for a, n in zip(side, x, strict=False)) for side in (start, stop))
    begins, ends = (
        tuple(a + b for a, b in zip(before[1] if before else (0,) * count, side, strict=False))
        for side in (start, stop)
    )
    return dims[slot], begins, ends
