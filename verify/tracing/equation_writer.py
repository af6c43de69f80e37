"""Writes the graph of a module as the text of a network (TOML): one equation for each node.

There is one function for each kind of node. Read next: ``equation_names.py`` (names of axes, indices and tensors),
``models.py`` (uses the text), ``docs/networks.md`` (the language).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.spec.powers import Power

from .activations import ELEMENTWISE_FUNCTIONS
from .equation_names import EquationNames, Powers, fit_powers, write_indexed
from .graph import View
from .nodes import (
    Concatenation,
    ContractionNode,
    EntryPick,
    FunctionNode,
    Leaf,
    Parameter,
    PartialTopK,
    Selection,
    ShiftedSignal,
    SumNode,
    TracedNode,
    UnabsorbedFactor,
    make_error,
    walk_graph,
)

GATE_AXES = {
    "softmax": "M", "softmax_topk": "M", "topk_softmax": "K", "topk_sigmoid": "", "topk": "", "normed_sigmoid": "M",
    "normed_topk_sigmoid": "K", "normed_topk": "K", "normed_sigmoid_topk": "M",
}  # fmt: skip
"""Functions of router scores, and the axis by whose size their values are smaller than 1 (1/M for a softmax)."""
GATE_NOTE = "{} over experts is held at its mean and slope (assumption B2)"
"""Note on a function of router scores."""
EquationSides = tuple[Iterable[str], str]
"""An equation: the indices of its left side, and its right side as text."""


class NetworkWriter:
    """Writes the equations of a graph of nodes, and collects what else the network needs.

    A multiplier is a symbol for a number that the equations multiply by, such as 1/K before a sum over experts; the
    user sets it.

    Attributes:
        name: name of the network.
        names: names of axes, indices and tensors.
        lines: the equations, as (left side, right side, node).
        notes: notes on what the equations change or leave out, as (path of the module, text).
        factors: for each multiplier, the path of the module and the powers of the sizes by which the module itself
            multiplies there already.
        multiplied: for each parameter, the powers of the sizes by which the module multiplies its product with a
            signal, as in ``(w @ x) / n``, where no multiplier stands.
        absorbed: for every parameter that occurs in a product, by its name in the module, the powers of the sizes as
            in ``multiplied``; empty if the module multiplies by none. It serves to check that all uses agree.
        multipliers: for each multiplier, the same as in ``factors``, and the names of the parameters in the product
            that it multiplies; ``factors`` is computed from this when all equations are written.
        summed_axes: for each parameter, the sets of growing axes that its uses sum over. A parameter with several
            sets is used in different ways, like tied embeddings.
        gate_powers: for each node that holds gates, the powers of the sizes that their values are proportional to.
    """

    def __init__(self, output: View, builds: Sequence[Mapping[str, int]], name: str) -> None:
        nodes = list(walk_graph(output.node))
        self.name, self.names = name, EquationNames(nodes, builds)
        self.lines: list[tuple[str, str, TracedNode | None]] = []
        self.notes: list[tuple[str, str]] = []
        self.multipliers: dict[str, tuple[str, Powers, list[str]]] = {}
        self.multiplied: dict[str, Powers] = {}
        self.absorbed: dict[str, Powers] = {}
        self.gate_powers: dict[int, Powers] = {}
        self.summed_axes = _collect_summed_axes(self.names, nodes)
        for node in nodes:
            if isinstance(node, Leaf | Concatenation) or node.is_weight:
                continue
            indices, right = _write_statement(self, node)
            self.lines.append((self.names.write_tensor(node, indices), right, node))
        self.lines.append(("f", _write_output(self, output.node), None))
        self.factors = _collect_multipliers(self)

    def write_toml(self) -> str:
        """Returns the network as TOML."""
        width = max(len(left) for left, _, _ in self.lines)
        equations = "\n".join(f"{left:<{width}} = {right}" for left, right, _ in self.lines)
        used = set(re.findall(r"(?<=[\[,; ])\w(?=[\],)])", equations))
        axes = {x: a for x, a in self.names.axes.items() if x in used}
        symbols = {role: symbol for symbol, role in self.names.parameters.items()}
        own = {symbols[role]: str(Power.of(powers)) for role, powers in self.multiplied.items()}
        return "\n".join([
            f"name = {json.dumps(self.name)}",
            f"axes = {_format_inline_table(axes)}",
            f"roles = {_format_inline_table(self.names.parameters)}",
            *([f"constants = {json.dumps([*self.names.constants.values()])}"] if self.names.constants else []),
            *([f"multiplied = {_format_inline_table(own)}"] if own else []),
            f'equations = """\n{equations}\n"""\n',
        ])  # fmt: skip


def _write_product(writer: NetworkWriter, node: ContractionNode) -> EquationSides:
    """Returns the equation of a product, in the order: multiplier, gates, parameters, the signal they act on.

    Parameters are ordered so that the first one to act on the signal stands next to it: ``alpha gate[e] V[a,b] h[b]``.

    Raises:
        Unreadable: it has no signal, or a factor that is not a power of the sizes.
        UnabsorbedFactor: it has a factor that neither a multiplier nor a single parameter can stand for.
    """
    names = writer.names
    labels = list(dict.fromkeys([*node.out, *(x for _, mine in node.sources for x in mine)]))
    indices = names.assign_index_names({x: node.labels[x] for x in labels})
    tensors = [(c, mine) for c, mine in node.sources if isinstance(c, Parameter) and any(indices[x] for x in mine)]
    signals = [s for s in node.sources if s not in tensors]
    if not signals:
        raise node.fail(
            "a product of parameters without a signal; multiply them with a signal one by one, as a @ (b @ x)"
        )
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
    while rest:  # append to the left the next parameter that acts
        free = [[x for x in m if x in have and x not in node.out] for _, m in rest]
        others = [{x for j, (_, m) in enumerate(rest) if j != k for x in m} for k in range(len(rest))]
        acts = [k for k in range(len(rest)) if set(free[k]) - others[k]]
        meets = [k for k, (_, m) in enumerate(rest) if set(m) & have]
        vectors = sorted(range(len(rest)), key=lambda k: sum(names.is_growing(node.labels[x]) for x in rest[k][1]))
        at = (acts or meets or vectors)[0]
        chain.insert(0, rest.pop(at))
        have |= set(chain[0][1])
    text = [
        _write_parameter_as_signal(writer, c, at)
        if isinstance(c, Parameter) and (c, mine) in signals
        else names.write_tensor(c, at)
        for c, mine in [*gates, *chain, *core]
        for at in [[indices[x] for x in mine]]
    ]
    summed = {x for x in labels if x not in node.out and indices[x] and names.is_growing(node.labels[x])}
    gated = any(summed & {*mine} for _, mine in gates)
    tied = any(
        f and writer.summed_axes[c.name] - {f} for c, mine in tensors for f in [_list_summed_axes(names, node, mine)]
    )
    powers = fit_powers(node.factor, names.builds) if node.factor else {}
    if powers is None:
        why = f"multiplies by {node.factor} at the sizes that were built, which is not a power of the sizes; "
        raise node.fail(why + "multiply by a power of them")
    own = dict(powers)
    for c, mine in signals:
        for axis, power in writer.gate_powers.get(c.number, {}).items():
            if summed & {*mine}:
                own[axis] = own.get(axis, Fraction(0)) + power
    own = {axis: power for axis, power in own.items() if power}
    if (summed and (not tensors or gated)) or tied:
        experts = any(names.find_axis(node.labels[x]) == "M" for x in summed)
        name = names.reserve_name("alpha" if experts else "scale")
        writer.multipliers[name] = node.where, own, [c.name for c, _ in tensors]
        text.insert(0, name)
    else:
        _absorb_factor(writer, node, tensors, own)
    return [indices[x] for x in node.out], " ".join(text)


def _write_sum(writer: NetworkWriter, node: TracedNode) -> EquationSides:
    """Returns the equation of a sum; a term that lacks indices of the sum is multiplied by a constant that has them."""
    names = writer.names
    indices, terms = names.name_slots(node), []
    for t, labels in node.sources:
        mine = [indices[x] for x in labels]
        lacks = [x for k, x in enumerate(indices) if k not in labels and x]
        if t.is_weight:
            terms.append(_write_bias(names, t, mine, indices))
        else:
            terms.append(
                " ".join([names.write_tensor(t, mine), *([names.write_constant(tuple(lacks), lacks)] if lacks else [])])
            )
    return indices, " + ".join(terms)


def _write_shift(writer: NetworkWriter, node: ShiftedSignal) -> EquationSides:
    """Returns the equation of a signal plus a constant.

    A constant of the equations has one value along axes that grow. If the constant of the module varies along such an
    axis, a frozen parameter is added to the signal as well.
    """
    names = writer.names
    indices = names.name_slots(node)
    terms = [
        names.write_tensor(node.source, [indices[x] for x in node.sources[0][1]]),
        names.write_constant(node.number, indices),
    ]
    if node.frozen:
        symbol = names.reserve_name("Constant")
        names.parameters[symbol] = name = symbol.lower()
        names.frozen.append(name)
        terms.append(f"{write_indexed(symbol, indices)} {names.write_constant((), ())}")
    return indices, " + ".join(terms)


def _write_function(writer: NetworkWriter, node: FunctionNode) -> EquationSides:
    """Returns the equation of a function, with the index along which it acts: ``y[a] = rmsnorm(x[a]; a)``.

    Raises:
        Unreadable: equations do not have the function, or it is a top-K along an axis other than M.
    """
    names = writer.names
    name, indices = node.name, names.name_slots(node)
    along = [k for k in node.over if indices[k]]
    grow = [k for k in along if names.is_growing(node.indices[k])]
    if len(along) > 1:
        alone = f"divided by its rms over batch and positions ({len(along)} axes that do not grow, read as one)"
        one = f"{name} over {len(along)} axes is read as {name} over {'the one that grows' if grow else 'the first'}"
        writer.notes.append((node.where, alone if name == "rmsnorm" and not grow else one))
    over = indices[(grow or along)[0]] if along else ""
    if name in GATE_AXES and any(names.find_axis(node.indices[k]) == "M" for k in node.over):
        writer.notes.append((node.where, GATE_NOTE.format(name)))
        axis = GATE_AXES[name] if GATE_AXES[name] != "K" or "K" in names.base else "M"
        writer.gate_powers[node.number] = {axis: Fraction(-1)} if axis else {}
        name, over = "gate", ""
    elif isinstance(node, Selection):
        raise node.fail("a top-K along an axis other than M; let build(sizes) take M, the number of experts")
    if name not in FUNCTIONS or (node.over and name in ELEMENTWISE_FUNCTIONS):
        raise node.fail(f"{name} is no function of the equations; give the equations with --network")
    mine = [indices[x] for x in node.sources[0][1]]
    inner = (
        _write_parameter_as_signal(writer, node.source, mine)
        if isinstance(node.source, Parameter)
        else names.write_tensor(node.source, mine)
    )
    return indices, f"{name}({inner}{f'; {over}' if over and sum(map(bool, indices)) > 1 else ''})"


def _write_pick(writer: NetworkWriter, node: EntryPick) -> EquationSides:
    """Returns the equation of a node that selects one entry along an axis of fixed size, as ``x[..., 0]`` does.

    Equations cannot select entries. The sum over the axis is written instead, which is proportional to the same
    powers of the sizes.

    Raises:
        Unreadable: the axis grows.
    """
    names = writer.names
    index, indices = node.source.indices[node.slot], names.name_slots(node.source)
    if names.is_growing(index):
        raise node.fail(f"reads one entry of the axis {names.find_axis(index)}, which grows; use all of its entries")
    left = [x for k, x in enumerate(indices) if k != node.slot]
    return left, names.write_tensor(node.source, indices)


def _write_statement(writer: NetworkWriter, node: TracedNode) -> EquationSides:
    """Returns the equation of a node: the indices on its left side, and its right side as text.

    Raises:
        Unreadable: no equation can express it.
    """
    match node:
        case ContractionNode():
            return _write_product(writer, node)
        case SumNode():
            return _write_sum(writer, node)
        case ShiftedSignal():
            return _write_shift(writer, node)
        case PartialTopK():
            raise node.fail("a top-K that leaves experts out; let build take K, which is read with K = M")
        case FunctionNode():
            return _write_function(writer, node)
        case EntryPick():
            return _write_pick(writer, node)
    raise node.fail(f"no equation can express {node}; give the equations with --network")


def _write_output(writer: NetworkWriter, root: TracedNode) -> str:
    """Returns the right side of the equation of the scalar output f: a sum over all indices of the module's output.

    If these have axes that grow, a readout parameter is added for them: ``f = Readout[a] h[a]``. If one of them is an
    index of the input (the vocabulary of tied embeddings), the output is multiplied by the data.
    """
    names = writer.names
    indices = names.name_slots(root)
    grows = [x for x, index in zip(indices, root.indices, strict=True) if x and names.is_growing(index)]
    text = names.write_tensor(root, indices)
    of = {x.find_root(): index_name for x, index_name in zip(root.indices, indices, strict=True)}
    if grows:
        readout = names.reserve_name("Readout")
        writer.notes.append(("", f"the output grows: {readout} stands for the layer that reads it"))
        text = f"{readout}[{','.join(grows)}] {text}"
    elif any(names.find_axis(x) == "D" and x.find_root() in of for x in names.data.indices):  # tied
        rest = [x.find_root() for x in names.data.indices if x.find_root() not in of]
        every = names.assign_index_names(dict(enumerate([*root.indices, *rest])))
        of |= dict(zip(rest, [*every.values()][len(indices) :], strict=True))
        text = f"{text} {names.write_tensor(names.data, [of[x.find_root()] for x in names.data.indices])}"
    return text


def _write_bias(names: EquationNames, node: TracedNode, mine: Sequence[str], there: Iterable[str]) -> str:
    """Returns a term for a parameter that is added to a signal, such as a bias.

    Equations let parameters act on signals only, so it is multiplied by a constant, which has the indices that the
    parameter lacks.

    Args:
        names: names of axes, indices and tensors.
        node: the parameter.
        mine: the indices of the parameter.
        there: the indices of the sum, which the term must have.

    Raises:
        Unreadable: the node is a sum or product of parameters, or a scalar parameter while the input has no axis of
            fixed size, which a scalar would need as an index to sum over.
    """
    if not isinstance(node, Parameter):
        raise node.fail("adds a sum or product of parameters to a signal; add a single parameter")
    lacks = [x for x in there if x and x not in mine]
    if not any(mine):  # a scalar gets an index of the data, which is summed over
        own = [
            x
            for x, index in zip(names.name_slots(names.data), names.data.indices, strict=True)
            if not names.is_growing(index)
        ]
        if not (free := [x for x in own if x and x not in lacks]):
            why = "a scalar parameter in a model whose input has no axis of fixed size left; make it a vector"
            raise make_error(node.name, why)
        mine, lacks = free[-1:], [*lacks, free[-1]]
    return f"{names.write_tensor(node, mine)} {names.write_constant(tuple(lacks), lacks)}"


def _write_parameter_as_signal(writer: NetworkWriter, node: Parameter, indices: Sequence[str]) -> str:
    """Writes a parameter that acts on no signal (a scalar gain, the argument of a function) as a signal.

    A line such as ``w_gain[a] = w[a] C`` is added, in which the parameter acts on a constant; the result is the text
    of the new signal with the given indices.

    Raises:
        Unreadable: more than one axis of the parameter grows.
    """
    names = writer.names
    if sum(map(names.is_growing, node.indices)) > 1:
        raise make_error(
            node.name, "a function of a matrix, which no equation can express; apply the function to a signal"
        )
    if node.number not in names.signals:
        names.signals[node.number] = names.reserve_name(f"{names.name_parameter(node).lower()}_gain")
        writer.lines.append(
            (write_indexed(names.signals[node.number], indices), _write_bias(names, node, indices, indices), None)
        )
    return write_indexed(names.signals[node.number], indices)


def _collect_summed_axes(names: EquationNames, nodes: Iterable[TracedNode]) -> dict[str, set[tuple[str, ...]]]:
    """Returns, for each parameter, over which growing axes the products that contain it sum.

    The value is a set with one tuple of axes for each different use of the parameter. With several tuples the parameter
    is tied, that is, used in different ways, like an embedding that is also the readout.
    """
    acts: dict[str, set[tuple[str, ...]]] = {}
    for node in nodes:
        if isinstance(node, ContractionNode) and not node.is_weight:
            for c, labels in node.sources:
                if isinstance(c, Parameter):
                    acts.setdefault(c.name, set()).add(_list_summed_axes(names, node, labels))
    return acts


def _list_summed_axes(names: EquationNames, node: ContractionNode, labels: Iterable[int]) -> tuple[str, ...]:
    """Returns the growing axes over which a product sums, as far as their indices have one of the given labels.

    Args:
        names: names of axes, indices and tensors.
        node: the product.
        labels: labels of indices, such as those of one of its factors.
    """
    indices = [node.labels[x] for x in labels if x not in node.out]
    return tuple(sorted(names.find_axis(index) for index in indices if names.is_growing(index)))


def _absorb_factor(writer: NetworkWriter, node: TracedNode, tensors: Sequence[Any], own: Powers) -> None:
    """Records a power of the sizes by which the module multiplies a product, where the equations have no multiplier.

    The init std and learning rate of the parameter in the product are corrected by it (the parameter absorbs it), so
    that it must be the same in all uses of this parameter.

    Args:
        writer: the writer.
        node: the product.
        tensors: its parameters, as (node, labels).
        own: the factor, as powers of the sizes; empty if there is none.

    Raises:
        UnabsorbedFactor: the product does not have exactly one parameter, or another use of it has another factor.
    """
    if any(writer.absorbed.setdefault(c.name, own) != own for c, _ in tensors) or (own and len(tensors) != 1):
        there = own or next(x for c, _ in tensors if (x := writer.absorbed[c.name]))
        why = f"the module multiplies by {Power.of(there)} where no single parameter can absorb it in all of its uses; "
        why += "multiply directly at the sum that needs it, as in t * ((x @ y) / n), or leave the factor out"
        raise UnabsorbedFactor(f"{node.where or 'model'}: {why}")
    if own:
        name = tensors[0][0].name
        writer.multiplied[writer.names.part_names.get(name, name)] = own


def _collect_multipliers(writer: NetworkWriter) -> dict[str, tuple[str, Powers]]:
    """Returns, for each multiplier, the path of the module and the powers of the sizes by which the module multiplies
    there.

    If a parameter in the product that the multiplier stands before already makes up for a power of the sizes
    (``_absorb_factor``), this power is divided out.
    """
    factors = {}
    for name, (where, own, tensors) in writer.multipliers.items():
        for powers in (writer.absorbed.get(x, {}) for x in tensors):
            own = {x: p for x in {**own, **powers} if (p := own.get(x, Fraction(0)) - powers.get(x, Fraction(0)))}
        factors[name] = where, own
    return factors


def _format_inline_table(entries: Mapping[str, str]) -> str:
    """Formats a dict of texts as an inline table of TOML."""
    rows = (f"{k if k.isascii() else json.dumps(k, ensure_ascii=False)} = {json.dumps(v)}" for k, v in entries.items())
    return "{ " + ", ".join(rows) + " }"
