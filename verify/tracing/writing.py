"""The text of a network from a graph: axes of classes, letters, names of signals and tensors, an equation for a node.

Read next: ``models.py`` (who asks), ``docs/networks.md`` (what the text says).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from scaling_algebra.spec.axes import AXES, FIXED
from scaling_algebra.spec.networks.functions import FUNCTIONS

from .entries import NAMES
from .graph import IndexClass, Scaled, Sizes, TracedNode, Unreadable, View, refused, walk

LETTERS = {
    "N": "abcd", "N_e": "kmno", "M": "ijpq", "K": "u", "L": "lh", "S": "stvw", "D": "xyz", "E": "efgr", "C": "ABCD",
    "R": "PQR",
}  # fmt: skip
"""Letters of every axis, in the order in which they are taken; more come from other alphabets."""
GATES = {
    "softmax": "M", "softmax_topk": "M", "topk_softmax": "K", "topk_sigmoid": "", "topk": "", "normed_sigmoid": "M",
    "normed_topk_sigmoid": "K", "normed_topk": "K",
}  # fmt: skip
"""Functions of gates, and the axis by whose size the values of each are smaller than 1."""
HELD = "{} over experts is held at its mean and slope (assumption B2)"
Powers = Mapping[str, Fraction]
Span = tuple[int, int, int, Powers]
"""Of a part of a parameter the dimension, where it begins, and how many entries it has, with their powers."""


def powers_of(numbers: Sequence[float], builds: Sequence[Mapping[str, int]]) -> Powers | None:
    """The exact powers of the axes that a number at every build is, one axis doubled in each but the first; None: it
    is none."""
    powers, base = dict[str, Fraction](), builds[0]
    if not all(numbers):  # nothing is there at small sizes
        return None
    for build, number in list(zip(builds, numbers, strict=True))[1:]:
        ((axis, n),) = [(x, n) for x, n in base.items() if build[x] != n and x != "K"]
        p = math.log(abs(number / numbers[0])) / math.log(build[axis] / n)
        power = Fraction(p).limit_denominator(4)
        if abs(p - power) > 1e-6:
            return None
        if power:
            powers[axis] = power
    return powers


class Writer:
    """One network's text.

    Attributes:
        lines: left sides, right sides and the nodes of the equations. parameters: names by symbol of the tensor.
        factors: of every multiplier, the powers that the module itself brings. gauge: by parameter the same, where it
            stands beside that parameter alone. signals: names by number of the node.
    """

    def __init__(self, output: View, builds: Sequence[Mapping[str, int]], name: str) -> None:
        self.output, self.builds, self.name, self.base = output, builds, name, builds[0]
        self.lines: list[tuple[str, str, TracedNode | None]] = []
        self.notes: list[tuple[str, str]] = []
        self.axes: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.factors: dict[str, tuple[str, Powers]] = {}
        self.gauge: dict[str, Powers] = {}
        self.beside: dict[str, Powers] = {}
        self.frozen: list[str] = []
        self.named: list[tuple[str, list[str]]] = []
        self.signals: dict[int, str] = {}
        self.cuts: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.spans: dict[str, Span] = {}
        self.taken = {"data", "f", *FUNCTIONS}
        self.constants: dict[Any, str] = {}
        own = [axis for axis in self.base if axis not in LETTERS]  # words of a builder's own
        self.pools = {**LETTERS, **{axis: chr(0x3B1 + k) for k, axis in enumerate(own)}}
        self.axis_of: dict[IndexClass, str] = {}
        self.letter_of: dict[IndexClass, str] = {}
        self.nodes = list(walk(output.node))
        self.numbered = _numbered(n.name for n in self.nodes if n.kind == "param")
        self._data()
        self.acts = self._fan_ins()
        self.held: dict[int, Powers] = {}
        for node in self.nodes:
            self._statement(node)
        self._output()
        self._multipliers()

    # axes and letters -------------------------------------------------------------------------------------------

    def powers(self, numbers: Sequence[float]) -> Powers | None:
        """The exact powers of the axes that a number at every build is; None: it is none."""
        return powers_of(numbers, self.builds)

    def axis(self, index: IndexClass) -> str:
        index = index.root()
        if index not in self.axis_of:
            powers = self.powers(index.sizes)
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
        return self.axis(index) not in FIXED

    def _data(self) -> None:
        datas = [n for n in self.nodes if n.kind == "data"]
        if not datas:
            raise Unreadable("model: the output does not depend on the input")
        self.data = max(datas, key=lambda n: len(n.indices))
        hot = any(leaf == ("data", "vocabulary") for x in self.data.indices for leaf in x.root().leaves)
        sequence = self.data.indices[:-1] if hot or len(self.data.indices) > 1 else []
        marked = [x for x in self.data.indices if any(leaf[1] in ("batch", "place") for leaf in x.root().leaves)]
        self.tokens = {x.root() for x in marked or sequence}
        beside: set[IndexClass] = set()
        for node in self.nodes:
            if node.name == "blend":  # tokens beside tokens are tokens
                last = len(node.indices) - 1
                places = {c.indices[m.index(last)].root() for c, m in node.sources if last in m}
                if places & self.tokens:
                    self.tokens.add(node.indices[-1].root())
                    beside |= places
        loose = {x.root() for x in self.data.indices if self.axis(x) == "S"} - beside
        for node in self.nodes:
            mixed = [node.indices[k] for k in node.over]
            if node.kind == "contract":
                mixed += [x for label, x in node.labels.items() if label not in node.out]
            if node.kind == "pick":
                mixed.append(node.source.indices[node.slot])
            if node.kind == "param":
                mixed += node.indices
            loose -= {x.root() for x in mixed}
        self.dropped = loose  # tokens that nothing mixes

    def _fan_ins(self) -> dict[str, set[tuple[str, ...]]]:
        """Of every parameter the growing axes along which its uses sum; one that differs is tied."""
        acts: dict[str, set[tuple[str, ...]]] = {}
        for node in self.nodes:
            if node.kind == "contract" and not node.weight:
                for c, labels in node.sources:
                    if c.kind == "param":
                        acts.setdefault(c.name, set()).add(self._summed(node, labels))
        return acts

    def _summed(self, node: TracedNode, labels: Iterable[int]) -> tuple[str, ...]:
        return tuple(
            sorted(self.axis(node.labels[x]) for x in labels if x not in node.out and self.grows(node.labels[x]))
        )

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

    # names ------------------------------------------------------------------------------------------------------

    def _fresh(self, stem: str) -> str:
        name, k = stem, 1
        while name in self.taken:
            k += 1
            name = f"{stem}_{k}"
        self.taken.add(name)
        return name

    def signal(self, node: TracedNode) -> str:
        if node.number not in self.signals:
            where = re.sub(r"(^|\.)(model|layers|blocks|block|transformer|h)(?=\.|$)", "", node.where).strip(".")
            where = re.sub(r"(^|\.)\d+(?=\.|$)", "", where).strip(".")
            stem = re.sub(r"\W+", "_", where).strip("_") or "h"
            stem += f"_{node.name}" if node.kind == "func" else ""
            self.signals[node.number] = self._fresh(re.sub(r"^(?=\d)", "l", stem))
        return self.signals[node.number]

    def symbol(self, node: TracedNode) -> str:
        name, spans, part = node.name, {node.name: (-1, 0, 0)}, node.part
        while part is not None and part[0].kind == "param":
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
        symbol = self._fresh(stem[0].upper() + stem[1:])
        self.parameters[symbol] = name
        self.frozen += [name] if node.frozen else []
        return symbol

    def ref(self, node: TracedNode, letters: Iterable[str]) -> str:
        if node.kind == "cat" or (node.weight and node.kind not in ("param", "func")):
            what = "a concatenation that no product sums" if node.kind == "cat" else "what is made of weights alone"
            raise node.fail(f"{what} is in no equation; use its parts, or a parameter")
        if node.kind == "fixed":
            return self.constant(node.number, letters)
        name = self.symbol(node) if node.kind == "param" else "data" if node.kind == "data" else self.signal(node)
        return _named(name, letters)

    def constant(self, key: Any, letters: Iterable[str]) -> str:
        """A constant with letters; which it is, the key says."""
        if key not in self.constants:
            self.constants[key] = self._fresh("C")
        return _named(self.constants[key], letters)

    def acting(self, node: TracedNode, letters: Sequence[str]) -> str:
        """A parameter that acts on nothing (a gain that is a number, what a function takes), as on a constant."""
        if sum(map(self.grows, node.indices)) > 1:
            raise refused(node.name, "a function of a matrix; no equation says it")
        if node.number not in self.signals:
            self.signals[node.number] = self._fresh(f"{self.symbol(node).lower()}_gain")
            self.lines.append((_named(self.signals[node.number], letters), self._bias(node, letters, letters), None))
        return _named(self.signals[node.number], letters)

    # statements -------------------------------------------------------------------------------------------------

    def _statement(self, node: TracedNode) -> None:
        if node.kind in ("data", "param", "cat", "fixed") or (node.weight and node.kind != "func"):
            return
        write = {"contract": self._product, "add": self._sum, "func": self._function, "pick": self._pick}
        write |= {"shift": self._shift}
        if node.kind not in write:
            raise node.fail(f"{node.kind}: no equation says this")
        write[node.kind](node)

    def _line(self, node: TracedNode, letters: Iterable[str], right: str) -> None:
        self.lines.append((self.ref(node, letters), right, node))

    def _pick(self, node: TracedNode) -> None:
        index, letters = node.source.indices[node.slot], self.own(node.source)
        if self.grows(index):
            raise node.fail(f"one entry of the axis {self.axis(index)}")
        left = [x for k, x in enumerate(letters) if k != node.slot]
        self._line(node, left, self.ref(node.source, letters))

    def _product(self, node: TracedNode) -> None:
        """Gates stand left of tensors, tensors left of what they act on."""
        labels = list(dict.fromkeys([*node.out, *(x for _, mine in node.sources for x in mine)]))
        letters = self.letters({x: node.labels[x] for x in labels})
        tensors = [s for s in node.sources if s[0].kind == "param" and any(letters[x] for x in s[1])]
        signals = [s for s in node.sources if s not in tensors]
        if not signals:
            raise node.fail("a product of weights alone")
        private = {
            x
            for k, (_, mine) in enumerate(tensors)
            for x in mine
            if x not in node.out and not any(x in m for j, (_, m) in enumerate(tensors) if j != k)
        }
        gates = [s for s in signals if tensors and len(signals) > 1 and not set(s[1]) & private]
        core = [s for s in signals if s not in gates]
        if tensors and not core:
            gates, core = gates[:-1], gates[-1:]
        rest, chain, have = list(tensors), list[Any](), {x for _, mine in signals for x in mine}
        while rest:  # those nearest to the signals act first
            free = [[x for x in m if x in have and x not in node.out] for _, m in rest]
            others = [{x for j, (_, m) in enumerate(rest) if j != k for x in m} for k in range(len(rest))]
            acts = [k for k in range(len(rest)) if set(free[k]) - others[k]]
            meets = [k for k, (_, m) in enumerate(rest) if set(m) & have]
            vectors = sorted(range(len(rest)), key=lambda k: sum(self.grows(node.labels[x]) for x in rest[k][1]))
            at = (acts or meets or vectors)[0]
            chain.insert(0, rest.pop(at))
            have |= set(chain[0][1])
        text = [
            (self.acting if s[0].kind == "param" and s in signals else self.ref)(s[0], [letters[x] for x in s[1]])
            for s in [*gates, *chain, *core]
        ]
        summed = {x for x in labels if x not in node.out and letters[x] and self.grows(node.labels[x])}
        gated = any(summed & {*mine} for _, mine in gates)
        tied = any(f and self.acts[c.name] - {f} for c, mine in tensors for f in [self._summed(node, mine)])
        powers = self.powers(node.factor) if node.factor else {}
        if powers is None:
            raise node.fail(f"a factor that is {node.factor} at the builds is no power of the sizes")
        own = dict(powers)
        for c, mine in signals:
            for axis, power in self.held.get(c.number, {}).items():
                if summed & {*mine}:
                    own[axis] = own.get(axis, Fraction(0)) + power
        own = {axis: power for axis, power in own.items() if power}
        if (summed and (not tensors or gated)) or tied:
            experts = any(self.axis(node.labels[x]) == "M" for x in summed)
            name = self._fresh("alpha" if experts else "scale")
            self.factors[name] = node.where, own
            self.named.append((name, [c.name for c, _ in tensors]))
            text.insert(0, name)
        else:
            self._beside(node, tensors, own)
        self._line(node, [letters[x] for x in node.out], " ".join(text))

    def _beside(self, node: TracedNode, tensors: Sequence[Any], own: Powers) -> None:
        """A factor of the module beside a tensor, in all of its uses: its numbers are those of the product of both."""
        if any(self.beside.setdefault(c.name, own) != own for c, _ in tensors) or (own and len(tensors) != 1):
            why = f"the module multiplies by {_shown(own)}, beside no one tensor in all of its uses; multiply where "
            why += "the sum is made that needs it, as in t * ((x @ y) / n), or leave it out"
            raise Scaled(f"{node.where or 'model'}: {why}")
        if own:
            name = tensors[0][0].name
            self.gauge[self.numbered.get(name, name)] = own

    def _multipliers(self) -> None:
        """What the module multiplies by at a multiplier, beside tensors that have a factor of it in them already."""
        for name, tensors in self.named:
            where, own = self.factors[name]
            for powers in (self.beside.get(x, {}) for x in tensors):
                own = {x: p for x in {**own, **powers} if (p := own.get(x, Fraction(0)) - powers.get(x, Fraction(0)))}
            self.factors[name] = where, own

    def _shift(self, node: TracedNode) -> None:
        """A constant is added, along axes that grow one number; or one and a frozen tensor, where it differs there."""
        letters = self.own(node)
        terms = [self.ref(node.source, [letters[x] for x in node.sources[0][1]]), self.constant(node.number, letters)]
        if node.frozen:
            symbol = self._fresh("Constant")
            self.parameters[symbol] = name = symbol.lower()
            self.frozen.append(name)
            terms.append(f"{_named(symbol, letters)} {self.constant((), ())}")
        self._line(node, letters, " + ".join(terms))

    def _sum(self, node: TracedNode) -> None:
        letters, terms = self.own(node), []
        for t, labels in node.sources:
            mine = [letters[x] for x in labels]
            lacks = [x for k, x in enumerate(letters) if k not in labels and x]
            if t.weight:
                terms.append(self._bias(t, mine, letters))
            else:
                terms.append(" ".join([self.ref(t, mine), *([self.constant(tuple(lacks), lacks)] if lacks else [])]))
        self._line(node, letters, " + ".join(terms))

    def _bias(self, node: TracedNode, mine: Sequence[str], there: Iterable[str]) -> str:
        """A tensor that is added acts on a constant, which has the letters that it lacks."""
        if node.kind != "param":
            raise node.fail("a sum or product of weights is added to a signal")
        lacks = [x for x in there if x and x not in mine]
        if not any(mine):  # a number has a letter of the data
            own = [x for x, index in zip(self.own(self.data), self.data.indices, strict=True) if not self.grows(index)]
            if not (free := [x for x in own if x and x not in lacks]):
                raise refused(node.name, "a number beside data that grow; no equation says it")
            mine, lacks = free[-1:], [*lacks, free[-1]]
        return f"{self.ref(node, mine)} {self.constant(tuple(lacks), lacks)}"

    def _function(self, node: TracedNode) -> None:
        name, letters = node.name, self.own(node)
        along = [k for k in node.over if letters[k]]
        grow = [k for k in along if self.grows(node.indices[k])]
        if len(along) > 1:
            which = "the one that grows" if grow else "the first"
            self.notes.append((node.where, f"{name} along {len(along)} axes is read along {which}"))
        over = letters[(grow or along)[0]] if along else ""
        if name in GATES and any(self.axis(node.indices[k]) == "M" for k in node.over):
            self.notes.append((node.where, HELD.format(name)))
            axis = GATES[name] if GATES[name] != "K" or "K" in self.base else "M"
            self.held[node.number] = {axis: Fraction(-1)} if axis else {}
            name, over = "gate", ""
        elif name in GATES and "topk" in name:
            raise node.fail("a top-K along an axis that is not M; build(sizes) must take M")
        if name not in FUNCTIONS or (node.over and name in NAMES):
            raise node.fail(f"{name} is no function of the equations; give them with --network")
        refer = self.acting if node.source.kind == "param" else self.ref
        inner = refer(node.source, [letters[x] for x in node.sources[0][1]])
        self._line(node, letters, f"{name}({inner}{f'; {over}' if over and sum(map(bool, letters)) > 1 else ''})")

    def _output(self) -> None:
        """The scalar that is trained: the output, summed over what does not grow, read by a tensor where it grows."""
        root = self.output.node
        letters = self.own(root)
        grows = [x for x, index in zip(letters, root.indices, strict=True) if x and self.grows(index)]
        text = self.ref(root, letters)
        of = {x.root(): letter for x, letter in zip(root.indices, letters, strict=True)}
        if grows:
            readout = self._fresh("Readout")
            self.notes.append(("", f"the output grows: {readout} stands for what reads it"))
            text = f"{readout}[{','.join(grows)}] {text}"
        elif any(self.axis(x) == "D" and x.root() in of for x in self.data.indices):  # tied
            text = f"{text} {self.ref(self.data, [of.get(x.root(), '') for x in self.data.indices])}"
        self.lines.append(("f", text, None))

    def text(self) -> str:
        """The network as TOML."""
        width = max(len(left) for left, _, _ in self.lines)
        equations = "\n".join(f"{left:<{width}} = {right}" for left, right, _ in self.lines)
        used = set(re.findall(r"(?<=[\[,; ])\w(?=[\],)])", equations))
        axes = {x: a for x, a in self.axes.items() if x in used}
        return "\n".join([
            f"name = {json.dumps(self.name)}",
            f"axes = {_table(axes)}",
            f"roles = {_table(self.parameters)}",
            *([f"constants = {json.dumps([*self.constants.values()])}"] if self.constants else []),
            f'equations = """\n{equations}\n"""\n',
        ])  # fmt: skip


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
    if node.part is None or node.part[0].kind != "param":
        return None
    whole, slot, start, stop = node.part
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


def _named(name: str, letters: Iterable[str]) -> str:
    inside = ",".join(x for x in letters if x)
    return f"{name}[{inside}]" if inside else name


def _table(entries: Mapping[str, str]) -> str:
    rows = (f"{k if k.isascii() else json.dumps(k, ensure_ascii=False)} = {json.dumps(v)}" for k, v in entries.items())
    return "{ " + ", ".join(rows) + " }"


def _shown(powers: Powers) -> str:
    return " ".join(f"{axis}^{power}" for axis, power in powers.items()) or "1"
