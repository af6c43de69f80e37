"""Names of a network that is written: axes and letters of classes of indices, symbols of tensors, names of signals.

Read next: ``writing.py``.
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
    Blend,
    Concatenation,
    ContractionNode,
    DataNode,
    EquationConstant,
    FunctionNode,
    IndexClass,
    Parameter,
    Pick,
    Sizes,
    TracedNode,
    Unreadable,
    refused,
)

LETTERS = {
    "N": "abcd", "N_e": "kmno", "M": "ijpq", "K": "u", "L": "lh", "S": "stvw", "D": "xyz", "E": "efgr", "C": "ABCD",
    "R": "PQR",
}  # fmt: skip
"""Letters of every axis, in the order in which they are taken; more come from other alphabets."""
Powers = Mapping[str, Fraction]
Span = tuple[int, int, int, Powers]
"""Of a part of a parameter the dimension, where it begins, and how many entries it has, with their powers."""


def powers_of(numbers: Sequence[float], builds: Sequence[Mapping[str, int]]) -> Powers | None:
    """Return a number that is known at every build as a product of powers of the axes.

    Args:
        numbers: the value at each build.
        builds: sizes; each but the first differs from it in one axis, or in M with K; several may in the same axis.

    Returns:
        The exponent of every axis that is not 0, or None if the numbers are no such product.
    """
    powers, base = dict[str, Fraction](), builds[0]
    if not all(numbers) or not all(map(math.isfinite, numbers)):  # nothing is there at small sizes
        return None
    for build, number in list(zip(builds, numbers, strict=True))[1:]:
        (axis, n), *_ = sorted(((x, n) for x, n in base.items() if build[x] != n), key=lambda x: x[0] == "K")
        p = math.log(abs(number / numbers[0])) / math.log(build[axis] / n)
        power = Fraction(p).limit_denominator(4)
        if abs(p - power) > 1e-6:
            return None
        if powers.setdefault(axis, power) != power:  # at one more size
            return None
    return {axis: power for axis, power in powers.items() if power}


class Names:
    """The names of one network.

    Attributes:
        axes: by letter. parameters: names by symbol of the tensor. signals: names by number of the node.
        constants: names by what says which it is. frozen: names of frozen tensors. spans: where parts lie.
        data: the node of the input. tokens: their classes. dropped: those of tokens that nothing mixes.
    """

    def __init__(self, nodes: Sequence[TracedNode], builds: Sequence[Mapping[str, int]]) -> None:
        self.builds, self.base = builds, builds[0]
        self.axes: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.signals: dict[int, str] = {}
        self.constants: dict[Any, str] = {}
        self.frozen: list[str] = []
        self.cuts: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.spans: dict[str, Span] = {}
        self.taken = {"data", "f", *FUNCTIONS}
        own = [axis for axis in self.base if axis not in LETTERS]  # words of a builder's own
        self.pools = {**LETTERS, **{axis: chr(0x3B1 + k) for k, axis in enumerate(own)}}
        self.axis_of: dict[IndexClass, str] = {}
        self.letter_of: dict[IndexClass, str] = {}
        self.numbered = _numbered(n.name for n in nodes if isinstance(n, Parameter))
        self._data(nodes)

    def _data(self, nodes: Sequence[TracedNode]) -> None:
        """Finds the data, which of their axes are tokens, and which tokens are mixed by nothing."""
        datas = [n for n in nodes if isinstance(n, DataNode)]
        if not datas:
            raise Unreadable("model: the output does not depend on the input")
        self.data = max(datas, key=lambda n: len(n.indices))
        hot = any(leaf == ("data", "vocabulary") for x in self.data.indices for leaf in x.root().leaves)
        sequence = self.data.indices[:-1] if hot or len(self.data.indices) > 1 else []
        self.tokens = {x.root() for x in sequence}
        beside: set[IndexClass] = set()
        for node in nodes:
            if isinstance(node, Blend):  # tokens beside tokens are tokens
                last = len(node.indices) - 1
                places = {c.indices[m.index(last)].root() for c, m in node.sources if last in m}
                if places & self.tokens:
                    self.tokens.add(node.indices[-1].root())
                    beside |= places
        loose = {x.root() for x in self.data.indices if self.axis(x) == "S"} - beside
        for node in nodes:
            mixed = [node.indices[k] for k in node.over]
            if isinstance(node, ContractionNode):
                mixed += [x for label, x in node.labels.items() if label not in node.out]
            if isinstance(node, Pick):
                mixed.append(node.source.indices[node.slot])
            if isinstance(node, Parameter):
                mixed += node.indices
            loose -= {x.root() for x in mixed}
        self.dropped = loose

    def axis(self, index: IndexClass) -> str:
        """The axis whose multiple a class of indices is."""
        index = index.root()
        if index not in self.axis_of:
            powers = powers_of(index.sizes, self.builds)
            if powers is None or len(powers) > 1 or any(p != 1 for p in powers.values()):
                whose = sorted({str(leaf[1]) for leaf in index.leaves}) or ["an axis"]
                raise Unreadable(
                    f"{', '.join(whose[:3])}: sizes {index.sizes} at the builds are no multiple of one axis of build"
                )
            inputs = [leaf for leaf in index.leaves if leaf[0] == "data"]
            axis = next(iter(powers), "")
            if axis not in AXES and (axis in ("", *FIXED) or inputs or index in self.tokens):
                axis = "S" if index in self.tokens else "D" if inputs else "E"
            self.axis_of[index] = axis
        return self.axis_of[index]

    def grows(self, index: IndexClass) -> bool:
        """Is the axis of a class one that grows?"""
        return self.axis(index) not in FIXED

    def letters(self, index_of: Mapping[int, IndexClass]) -> dict[int, str]:
        """A letter for each label of an equation; empty for tokens that nothing mixes."""
        found: dict[int, str] = {}
        for label, index in index_of.items():
            index = index.root()
            if index in self.dropped:
                found[label] = ""
                continue
            axis = self.axis(index)
            pool = [*self.pools[axis], *(chr(0x430 + 16 * [*self.pools].index(axis) % 64 + k) for k in range(8))]
            if index not in self.letter_of:
                known = {x for other, x in self.letter_of.items() if self.axis(other) == axis}
                self.letter_of[index] = next((x for x in pool[:4] if x not in known), pool[0])
            free = (x for x in (self.letter_of[index], *pool) if x not in found.values())
            if not (letter := next(free, "")):
                raise Unreadable(f"{axis}: more letters in one equation than there are")
            found[label] = letter
            self.axes[letter] = axis
        return found

    def own(self, node: TracedNode) -> list[str]:
        """A letter for each slot of a node."""
        return [*self.letters(dict(enumerate(node.indices))).values()]

    def fresh(self, stem: str) -> str:
        """A name that nothing has, nor a gradient (of ``k`` it is ``gk``)."""
        name, k = stem, 1
        while {name, f"g{name}"} & self.taken:
            k += 1
            name = f"{stem}_{k}"
        self.taken |= {name, f"g{name}"}
        return name

    def signal(self, node: TracedNode) -> str:
        """The name of a signal, after the path of its module."""
        if node.number not in self.signals:
            where = re.sub(r"(^|\.)(model|layers|blocks|block|transformer|h)(?=\.|$)", "", node.where).strip(".")
            where = re.sub(r"(^|\.)\d+(?=\.|$)", "", where).strip(".")
            stem = re.sub(r"\W+", "_", where).strip("_") or "h"
            stem += f"_{node.name}" if isinstance(node, FunctionNode) else ""
            self.signals[node.number] = self.fresh(re.sub(r"^(?=\d)", "l", stem))
        return self.signals[node.number]

    def symbol(self, node: Parameter) -> str:
        """The symbol of a parameter; parts of one that overlap are refused."""
        name, spans, part = node.name, {node.name: (-1, 0, 0)}, node.part
        while part is not None and isinstance(part[0], Parameter):
            spans[part[0].name] = part[1], part[2][0], part[3][0]
            part = part[0].part
        for whole, span in spans.items():
            for other, there in self.cuts.setdefault(whole, {}).items():
                apart = there[0] == span[0] and (there[2] <= span[1] or span[2] <= there[1])
                if there != span and (other == name or not apart):
                    why = "is read whole and in parts, or cut in two ways; use a parameter for each part"
                    raise refused(name, why)
            self.cuts[whole][name] = span
        name = self.numbered.get(name, name)
        if (at := _along(node)) is not None:
            count = tuple(b - a for a, b in zip(*at[1:], strict=True))
            powers = powers_of(count, self.builds[: len(count)])
            self.spans |= {} if powers is None else {name: (at[0], at[1][0], count[0], powers)}
        for symbol, known in self.parameters.items():
            if known == name:
                return symbol
        stem = re.sub(r"\W+", "_", re.sub(r"\.weight(?=\[|$)", "", name)).strip("_")
        stem = re.sub(r"^(?=\d)", "W", stem)
        symbol = self.fresh(stem[0].upper() + stem[1:])
        self.parameters[symbol] = name
        self.frozen += [name] if node.frozen else []
        return symbol

    def ref(self, node: TracedNode, letters: Iterable[str]) -> str:
        """A tensor with its letters; what is in no equation is refused."""
        if isinstance(node, Concatenation) or (node.weight and not isinstance(node, Parameter | FunctionNode)):
            what = (
                "a concatenation that no product sums"
                if isinstance(node, Concatenation)
                else "what is made of weights alone"
            )
            raise node.fail(f"{what} is in no equation; use its parts, or a parameter")
        if isinstance(node, EquationConstant):
            return self.constant(node.number, letters)
        if isinstance(node, Parameter):
            return named(self.symbol(node), letters)
        return named("data" if isinstance(node, DataNode) else self.signal(node), letters)

    def constant(self, key: Any, letters: Iterable[str]) -> str:
        """A constant with letters; which it is, the key says."""
        if key not in self.constants:
            self.constants[key] = self.fresh("C")
        return named(self.constants[key], letters)


def named(name: str, letters: Iterable[str]) -> str:
    """A name with the letters that are not empty."""
    inside = ",".join(x for x in letters if x)
    return f"{name}[{inside}]" if inside else name


def _numbered(names: Iterable[str]) -> dict[str, str]:
    """Of every part of a tensor, named by where it begins, the name by its place among the parts.

    Examples:
        >>> _numbered(["qkv[0]", "qkv[32]", "qkv[40]", "out"])
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


def _along(node: TracedNode) -> tuple[int, Sizes, Sizes] | None:
    """The dimension of a parameter that a part is cut from, where it begins and ends, at every build; None where it is
    no run of entries."""
    if node.part is None or not isinstance(node.part[0], Parameter):
        return None
    whole, (_, slot, start, stop) = node.part[0], node.part
    before, count = _along(whole), len(whole.indices[slot].root().sizes)
    start, stop = (x * (count // len(x)) for x in (start, stop))
    dims, indices = whole.axes, [x.root().sizes for x in whole.indices]
    if dims[slot] in dims[:slot] or (whole.part is not None and (before is None or before[0] != dims[slot])):
        return None
    for x in (x for d, x in zip(dims[slot + 1 :], indices[slot + 1 :], strict=False) if d == dims[slot]):
        start, stop = (tuple(a * n for a, n in zip(side, x, strict=False)) for side in (start, stop))
    begins, ends = (
        tuple(a + b for a, b in zip(before[1] if before else (0,) * count, side, strict=False))
        for side in (start, stop)
    )
    return dims[slot], begins, ends
