"""The text of a network from a graph: an equation for a node, a function for each kind of node.

Read next: ``naming.py`` (axes, letters, symbols), ``models.py`` (who asks), ``docs/networks.md`` (what the text says).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.spec.powers import Power

from .entries import NAMES
from .graph import View
from .naming import EquationNames, Powers, fit_powers, write_indexed
from .nodes import (
    Concatenation,
    ContractionNode,
    FewChosen,
    FunctionNode,
    Leaf,
    Parameter,
    Pick,
    Scaled,
    Selection,
    Shift,
    SumNode,
    TracedNode,
    refused,
    walk,
)

GATES = {
    "softmax": "M", "softmax_topk": "M", "topk_softmax": "K", "topk_sigmoid": "", "topk": "", "normed_sigmoid": "M",
    "normed_topk_sigmoid": "K", "normed_topk": "K", "normed_sigmoid_topk": "M",
}  # fmt: skip
"""Functions of gates, and the axis by whose size the values of each are smaller than 1."""
HELD = "{} over experts is held at its mean and slope (assumption B2)"
Sides = tuple[Iterable[str], str]
"""Of an equation the letters of its left side, and the right side."""


class Writer:
    """One network's text.

    Attributes:
        names: of what is written. lines: left sides, right sides and the nodes of the equations.
        factors: of every multiplier, the powers that the module itself brings. multiplied: by parameter the
            same, where it stands beside that parameter alone. beside: the same of every parameter of a product.
        scales: of every multiplier the module, the powers, and the parameters of its product.
        acts: of every parameter the growing axes along which its uses sum. held: powers of the values of gates.
    """

    def __init__(self, output: View, builds: Sequence[Mapping[str, int]], name: str) -> None:
        nodes = list(walk(output.node))
        self.name, self.names = name, EquationNames(nodes, builds)
        self.lines: list[tuple[str, str, TracedNode | None]] = []
        self.notes: list[tuple[str, str]] = []
        self.scales: dict[str, tuple[str, Powers, list[str]]] = {}
        self.multiplied: dict[str, Powers] = {}
        self.beside: dict[str, Powers] = {}
        self.held: dict[int, Powers] = {}
        self.acts = _fan_ins(self.names, nodes)
        for node in nodes:
            if isinstance(node, Leaf | Concatenation) or node.weight:
                continue
            letters, right = _statement(self, node)
            self.lines.append((self.names.write_tensor(node, letters), right, node))
        self.lines.append(("f", _trained(self, output.node), None))
        self.factors = _multipliers(self)

    def text(self) -> str:
        """The network as TOML."""
        width = max(len(left) for left, _, _ in self.lines)
        equations = "\n".join(f"{left:<{width}} = {right}" for left, right, _ in self.lines)
        used = set(re.findall(r"(?<=[\[,; ])\w(?=[\],)])", equations))
        axes = {x: a for x, a in self.names.axes.items() if x in used}
        symbols = {role: symbol for symbol, role in self.names.parameters.items()}
        own = {symbols[role]: str(Power.of(powers)) for role, powers in self.multiplied.items()}
        return "\n".join([
            f"name = {json.dumps(self.name)}",
            f"axes = {_table(axes)}",
            f"roles = {_table(self.names.parameters)}",
            *([f"constants = {json.dumps([*self.names.constants.values()])}"] if self.names.constants else []),
            *([f"multiplied = {_table(own)}"] if own else []),
            f'equations = """\n{equations}\n"""\n',
        ])  # fmt: skip


def _product(writer: Writer, node: ContractionNode) -> Sides:
    """Gates stand left of tensors, tensors left of what they act on."""
    names = writer.names
    labels = list(dict.fromkeys([*node.out, *(x for _, mine in node.sources for x in mine)]))
    letters = names.letters({x: node.labels[x] for x in labels})
    tensors = [(c, mine) for c, mine in node.sources if isinstance(c, Parameter) and any(letters[x] for x in mine)]
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
        vectors = sorted(range(len(rest)), key=lambda k: sum(names.is_growing(node.labels[x]) for x in rest[k][1]))
        at = (acts or meets or vectors)[0]
        chain.insert(0, rest.pop(at))
        have |= set(chain[0][1])
    text = [
        _acting(writer, c, at) if isinstance(c, Parameter) and (c, mine) in signals else names.write_tensor(c, at)
        for c, mine in [*gates, *chain, *core]
        for at in [[letters[x] for x in mine]]
    ]
    summed = {x for x in labels if x not in node.out and letters[x] and names.is_growing(node.labels[x])}
    gated = any(summed & {*mine} for _, mine in gates)
    tied = any(f and writer.acts[c.name] - {f} for c, mine in tensors for f in [_summed(names, node, mine)])
    powers = fit_powers(node.factor, names.builds) if node.factor else {}
    if powers is None:
        raise node.fail(f"a factor that is {node.factor} at the builds is no power of the sizes")
    own = dict(powers)
    for c, mine in signals:
        for axis, power in writer.held.get(c.number, {}).items():
            if summed & {*mine}:
                own[axis] = own.get(axis, Fraction(0)) + power
    own = {axis: power for axis, power in own.items() if power}
    if (summed and (not tensors or gated)) or tied:
        experts = any(names.find_axis(node.labels[x]) == "M" for x in summed)
        name = names.reserve_name("alpha" if experts else "scale")
        writer.scales[name] = node.where, own, [c.name for c, _ in tensors]
        text.insert(0, name)
    else:
        _beside(writer, node, tensors, own)
    return [letters[x] for x in node.out], " ".join(text)


def _sum(writer: Writer, node: TracedNode) -> Sides:
    """Terms, each with the constant that repeats it."""
    names = writer.names
    letters, terms = names.name_slots(node), []
    for t, labels in node.sources:
        mine = [letters[x] for x in labels]
        lacks = [x for k, x in enumerate(letters) if k not in labels and x]
        if t.weight:
            terms.append(_bias(names, t, mine, letters))
        else:
            terms.append(
                " ".join([names.write_tensor(t, mine), *([names.write_constant(tuple(lacks), lacks)] if lacks else [])])
            )
    return letters, " + ".join(terms)


def _shift(writer: Writer, node: Shift) -> Sides:
    """A constant is added, along axes that grow one number; or one and a frozen tensor, where it differs there."""
    names = writer.names
    letters = names.name_slots(node)
    terms = [
        names.write_tensor(node.source, [letters[x] for x in node.sources[0][1]]),
        names.write_constant(node.number, letters),
    ]
    if node.frozen:
        symbol = names.reserve_name("Constant")
        names.parameters[symbol] = name = symbol.lower()
        names.frozen.append(name)
        terms.append(f"{write_indexed(symbol, letters)} {names.write_constant((), ())}")
    return letters, " + ".join(terms)


def _function(writer: Writer, node: FunctionNode) -> Sides:
    """A function, with the letter along which it goes."""
    names = writer.names
    name, letters = node.name, names.name_slots(node)
    along = [k for k in node.over if letters[k]]
    grow = [k for k in along if names.is_growing(node.indices[k])]
    if len(along) > 1:
        alone = f"divided by its rms over batch and places ({len(along)} axes that do not grow, read as one)"
        one = f"{name} over {len(along)} axes is read as over {'the one that grows' if grow else 'the first'}"
        writer.notes.append((node.where, alone if name == "rmsnorm" and not grow else one))
    over = letters[(grow or along)[0]] if along else ""
    if name in GATES and any(names.find_axis(node.indices[k]) == "M" for k in node.over):
        writer.notes.append((node.where, HELD.format(name)))
        axis = GATES[name] if GATES[name] != "K" or "K" in names.base else "M"
        writer.held[node.number] = {axis: Fraction(-1)} if axis else {}
        name, over = "gate", ""
    elif isinstance(node, Selection):
        raise node.fail("a top-K along an axis that is not M; build(sizes) must take M")
    if name not in FUNCTIONS or (node.over and name in NAMES):
        raise node.fail(f"{name} is no function of the equations; give them with --network")
    mine = [letters[x] for x in node.sources[0][1]]
    inner = (
        _acting(writer, node.source, mine)
        if isinstance(node.source, Parameter)
        else names.write_tensor(node.source, mine)
    )
    return letters, f"{name}({inner}{f'; {over}' if over and sum(map(bool, letters)) > 1 else ''})"


def _pick(writer: Writer, node: Pick) -> Sides:
    """One entry of an axis that does not grow is as all of them."""
    names = writer.names
    index, letters = node.source.indices[node.slot], names.name_slots(node.source)
    if names.is_growing(index):
        raise node.fail(f"one entry of the axis {names.find_axis(index)}")
    left = [x for k, x in enumerate(letters) if k != node.slot]
    return left, names.write_tensor(node.source, letters)


def _statement(writer: Writer, node: TracedNode) -> Sides:
    """Return the equation of a node.

    Raises:
        Unreadable: No equation says what it is.
    """
    match node:
        case ContractionNode():
            return _product(writer, node)
        case SumNode():
            return _sum(writer, node)
        case Shift():
            return _shift(writer, node)
        case FewChosen():
            raise node.fail("a top-K that leaves experts out (let build take K, which is read with K = M)")
        case FunctionNode():
            return _function(writer, node)
        case Pick():
            return _pick(writer, node)
    raise node.fail(f"{node}: no equation says this")


def _trained(writer: Writer, root: TracedNode) -> str:
    """The scalar that is trained: the output, summed over what does not grow, read by a tensor where it grows."""
    names = writer.names
    letters = names.name_slots(root)
    grows = [x for x, index in zip(letters, root.indices, strict=True) if x and names.is_growing(index)]
    text = names.write_tensor(root, letters)
    of = {x.root(): letter for x, letter in zip(root.indices, letters, strict=True)}
    if grows:
        readout = names.reserve_name("Readout")
        writer.notes.append(("", f"the output grows: {readout} stands for what reads it"))
        text = f"{readout}[{','.join(grows)}] {text}"
    elif any(names.find_axis(x) == "D" and x.root() in of for x in names.data.indices):  # tied
        rest = [x.root() for x in names.data.indices if x.root() not in of]
        every = names.letters(dict(enumerate([*root.indices, *rest])))
        of |= dict(zip(rest, [*every.values()][len(letters) :], strict=True))
        text = f"{text} {names.write_tensor(names.data, [of[x.root()] for x in names.data.indices])}"
    return text


def _bias(names: EquationNames, node: TracedNode, mine: Sequence[str], there: Iterable[str]) -> str:
    """A tensor that is added acts on a constant, which has the letters that it lacks."""
    if not isinstance(node, Parameter):
        raise node.fail("a sum or product of weights is added to a signal")
    lacks = [x for x in there if x and x not in mine]
    if not any(mine):  # a number has a letter of the data
        own = [
            x
            for x, index in zip(names.name_slots(names.data), names.data.indices, strict=True)
            if not names.is_growing(index)
        ]
        if not (free := [x for x in own if x and x not in lacks]):
            raise refused(node.name, "a number beside data that grow; no equation says it")
        mine, lacks = free[-1:], [*lacks, free[-1]]
    return f"{names.write_tensor(node, mine)} {names.write_constant(tuple(lacks), lacks)}"


def _acting(writer: Writer, node: Parameter, letters: Sequence[str]) -> str:
    """A parameter that acts on nothing (a gain that is a number, what a function takes), as on a constant."""
    names = writer.names
    if sum(map(names.is_growing, node.indices)) > 1:
        raise refused(node.name, "a function of a matrix; no equation says it")
    if node.number not in names.signals:
        names.signals[node.number] = names.reserve_name(f"{names.name_parameter(node).lower()}_gain")
        writer.lines.append(
            (write_indexed(names.signals[node.number], letters), _bias(names, node, letters, letters), None)
        )
    return write_indexed(names.signals[node.number], letters)


def _fan_ins(names: EquationNames, nodes: Iterable[TracedNode]) -> dict[str, set[tuple[str, ...]]]:
    """Of every parameter the growing axes along which its uses sum; one that differs is tied."""
    acts: dict[str, set[tuple[str, ...]]] = {}
    for node in nodes:
        if isinstance(node, ContractionNode) and not node.weight:
            for c, labels in node.sources:
                if isinstance(c, Parameter):
                    acts.setdefault(c.name, set()).add(_summed(names, node, labels))
    return acts


def _summed(names: EquationNames, node: ContractionNode, labels: Iterable[int]) -> tuple[str, ...]:
    """The growing axes of these labels that a product sums over."""
    indices = [node.labels[x] for x in labels if x not in node.out]
    return tuple(sorted(names.find_axis(index) for index in indices if names.is_growing(index)))


def _beside(writer: Writer, node: TracedNode, tensors: Sequence[Any], own: Powers) -> None:
    """A factor of the module beside a tensor, in all of its uses: its numbers are those of the tensor itself."""
    if any(writer.beside.setdefault(c.name, own) != own for c, _ in tensors) or (own and len(tensors) != 1):
        there = own or next(x for c, _ in tensors if (x := writer.beside[c.name]))
        why = f"the module multiplies by {_shown(there)}, beside no one tensor in all of its uses; multiply where "
        why += "the sum is made that needs it, as in t * ((x @ y) / n), or leave it out"
        raise Scaled(f"{node.where or 'model'}: {why}")
    if own:
        name = tensors[0][0].name
        writer.multiplied[writer.names.part_names.get(name, name)] = own


def _multipliers(writer: Writer) -> dict[str, tuple[str, Powers]]:
    """What the module multiplies by at every multiplier, beside tensors that have a factor of it in them already."""
    factors = {}
    for name, (where, own, tensors) in writer.scales.items():
        for powers in (writer.beside.get(x, {}) for x in tensors):
            own = {x: p for x in {**own, **powers} if (p := own.get(x, Fraction(0)) - powers.get(x, Fraction(0)))}
        factors[name] = where, own
    return factors


def _table(entries: Mapping[str, str]) -> str:
    rows = (f"{k if k.isascii() else json.dumps(k, ensure_ascii=False)} = {json.dumps(v)}" for k, v in entries.items())
    return "{ " + ", ".join(rows) + " }"


def _shown(powers: Powers) -> str:
    return " ".join(f"{axis}^{power}" for axis, power in powers.items()) or "1"
