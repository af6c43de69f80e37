"""Shortens a graph: drops nodes that do not change the size, and merges the terms of loops into one term.

``drop_same_size_nodes`` leaves out what equations cannot say, ``LoopFolder`` merges the experts or the layers of a
loop, and ``split_packed_parameters`` makes parameters of the entries of a Theta(1) axis (one of q, k, v). Read next:
``equation_writer.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .graph import NUMBER_IN_NAME, View, describe_wiring, multiply_factors, push_slice_down, rebuild_graph, remove_slot
from .nodes import (
    Concatenation,
    ContractionNode,
    EntryPick,
    FixedConcatenation,
    FunctionNode,
    IndexClass,
    Parameter,
    PartSelector,
    PerBuild,
    SameSizeNode,
    ScaledSignal,
    Source,
    SumNode,
    TracedNode,
    Unreadable,
    join_indices,
    walk_graph,
)


def drop_same_size_nodes(output: View, loops: bool = False) -> tuple[View, list[tuple[str, str]]]:
    """Return the graph without the nodes that only change values and not sizes, such as factors and rotations.

    Args:
        output: The view of the output.
        loops: Whether to keep scalar factors, since they may depend on the length of a loop.

    Returns:
        The new view of the output, and notes on what is left out, as (path of the module, note).
    """
    notes: dict[tuple[str, str], None] = {}

    def skip_dropped_nodes(node: TracedNode, labels: tuple[int, ...]) -> Source:
        while True:
            alone = isinstance(node, ContractionNode) and len(node.sources) == 1 and not node.factor
            if isinstance(node, SameSizeNode):
                source, slots = node.sources[0]
                for k, slot in enumerate(slots):
                    join_indices(source.indices[k], node.indices[slot])
            elif isinstance(node, ContractionNode) and alone and {*node.sources[0][1]} == {*node.out}:  # another order
                source, slots = node.sources[0][0], tuple(map(node.out.index, node.sources[0][1]))
            else:
                return node, labels
            node, labels = source, tuple(labels[slot] for slot in slots)

    def simplify_node(node: TracedNode) -> TracedNode:
        if node.note:
            notes[node.where, node.note] = None
        sources = tuple(skip_dropped_nodes(*source) for source in node.sources)
        if loops and isinstance(node, ScaledSignal) and abs(node.factor[0]) != 1:
            return _make_multiple(node, sources, node.factor)
        if isinstance(node, SameSizeNode):
            return node
        if isinstance(node, EntryPick):
            source, mine = sources[0]
            source = source.sum_to(tuple(map(mine.index, range(len(mine)))), node.where)
            sources = ((source, source.slots),)
        if isinstance(node, SumNode):
            sources = tuple(dict.fromkeys(sources))
            if len(sources) == 1 and sources[0][1] == node.slots:
                return sources[0][0]
            if len(sources) == 1 and len(sources[0][1]) == len(node.slots):
                return _make_multiple(node, sources)
        if not isinstance(node, ContractionNode):
            return node.copy_with(sources=sources)
        inner, mine = sources[0]
        steady = set(node.factor) == {1.0} or (not loops and _is_constant_factor(node.factor))
        factor = () if steady else node.factor
        if len(sources) == 1 and set(mine) == set(node.out) and isinstance(inner, ContractionNode):
            out = tuple(inner.out[mine.index(x)] for x in node.out)  # a factor alone belongs to what makes its source
            return inner.copy_with(
                out=out, indices=node.indices, factor=multiply_factors(factor, inner.factor), call=node.call
            )
        used = {x for _, labels in sources for x in labels}
        labels = {x: index for x, index in node.labels.items() if x in used}
        return node.copy_with(sources=sources, labels=labels, factor=factor)

    root = rebuild_graph(output.node, simplify_node)
    slots = tuple(range(len(root.indices)))
    node, places = skip_dropped_nodes(root, slots)
    return View(node, [tuple(places.index(e) if isinstance(e, int) else e for e in dim) for dim in output.dims]), [
        *notes
    ]


def _make_multiple(node: TracedNode, sources: tuple[Source, ...], factor: PerBuild = ()) -> ContractionNode:
    """Return a product that takes the place of a node and has its dimensions: ``sources`` (one signal) times a factor.

    Args:
        node: The node that is replaced.
        sources: The signal, with the labels of its dimensions.
        factor: The factor in each build of the module; empty for 1.
    """
    labels = dict(enumerate(node.indices))
    made = ContractionNode(indices=node.indices, where=node.where, call=node.call, sources=sources, factor=factor)
    return made.copy_with(out=tuple(labels), labels=labels)


def _is_constant_factor(factor: PerBuild) -> bool:
    """Return whether a factor is the same number in each build of the module; an empty tuple means 1."""
    return not factor or max(factor) - min(factor) <= 1e-9 * abs(factor[0])


class UnlikeTerms(Exception):
    """The error for terms that no loop can have made, since they differ in more than one number, such as that of the
    expert.
    """


class LoopFolder:
    """Merges the terms of a sum that a Python loop over experts or layers made, into one term with an index for the
    loop.

    ``sum over e of experts.e.down (experts.e.up x)  ->  down[e] up[e] x``, summed over e.

    Args:
        builds: Number of builds of the module.
        depth: Whether to merge the layers of a residual stream, too. In the result all layers read the input of the
            first layer.
    """

    def __init__(self, builds: int, depth: bool) -> None:
        self.builds, self.depth = builds, depth
        self.folded: dict[int, TracedNode] = {}
        self.uses: Counter[int] = Counter()
        self.parameters: dict[str, TracedNode] = {}
        self.layer_index: IndexClass | None = None
        self.notes: list[tuple[str, str]] = []

    def fold_graph(self, root: TracedNode) -> TracedNode:
        self.uses.update(c.number for node in walk_graph(root) for c in node.children)
        return self.fold_node(root)

    def fold_node(self, node: TracedNode) -> TracedNode:
        if node.number not in self.folded:
            found = None
            if isinstance(node, SumNode):
                found = self.fold_stacked_parts(node) if isinstance(node, FixedConcatenation) else None
                found = self.fold_sum(node) if found is None else found
            self.folded[node.number] = self.fold_sources(node) if found is None else found
        return self.folded[node.number]

    def fold_sources(self, node: TracedNode) -> TracedNode:
        """Return a copy of the node that is computed from folded sources: in these, the terms that loops made are
        merged.
        """
        return node.with_sources(tuple((self.fold_node(c), labels) for c, labels in node.sources))

    def flatten_sum(self, node: TracedNode, places: tuple[int, ...], prefixes: list[TracedNode]) -> list[Source]:
        """Return the terms of a sum; a term that is a sum itself is replaced by its terms.

        Args:
            node: The sum.
            places: The dimension of the whole sum to which each dimension of the node belongs.
            prefixes: A list to which the sums are added that are terms of another sum; in a residual stream each of
                these is the stream after a layer.
        """
        terms: list[Source] = []
        for t, labels in node.sources:
            now = tuple(places[x] for x in labels)
            whole = (
                isinstance(t, SumNode) and not isinstance(t, FixedConcatenation) and len(t.indices) == len(node.indices)
            )
            if whole and (self.depth or self.uses[t.number] == 1) and not any(c.is_weight for c in t.children):
                prefixes.append(t)
                terms += self.flatten_sum(t, now, prefixes)
            else:
                terms.append((t, now))
        return terms

    def fold_sum(self, node: TracedNode) -> TracedNode | None:
        """Return the sum with the terms that the iterations of a loop made merged into one; None if no loop made
        terms of it.
        """
        prefixes: list[TracedNode] = []
        terms, start, stream = self.flatten_sum(node, node.slots, prefixes), None, frozenset[int]()
        if deep := self.depth and bool(prefixes):
            reads = [{n.number for n in walk_graph(t)} for t, _ in terms]
            start = next((t for t, _ in terms if all(t.number in r for r in reads)), terms[0][0])
            stream = frozenset(p.number for p in prefixes) | {start.number}
        kept, rest, folded = [], [*terms], list[Source]()
        while rest:
            (first, labels), group = rest[0], rest[:1]
            if first is not start:
                group += [t for t in rest[1:] if t[1] == labels and self.try_merge([first, t[0]], stream, start)]
            rest = [t for t in rest if not any(t is x for x in group)]
            lift = self.try_merge([t for t, _ in group], stream, start) if len(group) > 1 else None
            if lift is None:
                kept += group
                continue
            lift.join_loop_index(self.parameters)
            if deep:  # all loops of one length over the stream are one loop
                known, index = self.layer_index and self.layer_index.find_root(), lift.loop_index.find_root()
                if known is not None and known.sizes == index.sizes:
                    join_indices(known, index)
                self.layer_index = index.find_root()
            folded.append((lift.sum_over_loop(first), labels))
            word, turns = "layers" if deep else "terms", lift.loop_numbers
            which = f"{word} {turns[0]} to {turns[-1]}" if turns else f"{len(group)} {word}"
            self.notes.append((first.where, f"{which} are alike and written once"))
        if not folded:
            return None
        made = tuple((self.fold_node(t), labels) for t, labels in [*kept, *folded])
        if len(made) == 1 and made[0][1] == node.slots:
            return made[0][0].copy_with(call=node.call)
        return node.copy_with(sources=made)

    def try_merge(
        self, terms: list[TracedNode], stream: frozenset[int], start: TracedNode | None
    ) -> MergedTerms | None:
        try:
            return MergedTerms(self.builds, terms, stream, start)
        except UnlikeTerms:
            return None

    def fold_stacked_parts(self, node: TracedNode) -> TracedNode | None:
        """Merge the parts that a loop computed and ``torch.stack`` joined into one tensor, as the outputs of experts.

        The axis along which they are stacked becomes the index of the loop. Returns None unless the parts differ in a
        single number only, such as that of the expert, which must count up by one from part to part.
        """
        places, labels = node.slots[-1], node.sources[0][1]
        size = node.indices[places].find_root().sizes[0]
        if len(node.sources) != size or places in labels or any(mine != labels for _, mine in node.sources):
            return None
        lift = self.try_merge(node.children, frozenset(), None)
        if lift is None or [*lift.loop_numbers] != [*range(lift.loop_numbers[0], lift.loop_numbers[0] + size)]:
            return None
        lift.join_loop_index(self.parameters)
        join_indices(node.indices[places], lift.loop_index)
        made = self.fold_node(lift.node)
        self.notes.append((node.where, f"{size} tensors are alike and written once"))
        return made.sum_to((*(lift.slots[labels.index(k)] for k in range(places)), lift.loop_slot), node.where)


class MergedTerms:
    """The terms that the iterations of a loop made, merged into one term with an index for the loop.

    Attributes:
        node: The merged term.
        slots: For each dimension of the terms, the dimension of the merged term that takes its place.
        loop_slot: The dimension of the merged term that is the index of the loop.
        loop_numbers: The number in the names by which each term differs, such as ``3`` in ``experts.3.up``.

    Raises:
        UnlikeTerms: The terms differ by more than one number.
    """

    def __init__(
        self, builds: int, terms: Sequence[TracedNode], stream: frozenset[int], start: TracedNode | None
    ) -> None:
        self.loop_index, self.residual_stream, self.stream_start = IndexClass((len(terms),) * builds), stream, start
        self.merged_nodes: dict[Any, tuple[TracedNode, list[int], int | None]] = {}
        self.loop_numbers: tuple[int, ...] = ()
        self.picked_indices: list[IndexClass] = []
        self.parameters: dict[str, TracedNode] = {}
        self.node, self.slots, fold = self.merge_nodes(terms)
        if fold is None:
            raise UnlikeTerms
        self.loop_slot = fold

    def join_loop_index(self, parameters: dict[str, TracedNode]) -> None:
        """Declare the index of this loop to be the same as that of earlier loops that use the same parameters, since
        both then count the same experts or layers.

        Args:
            parameters: The merged parameters of all loops so far, by name; those of this loop are added.
        """
        known = [parameters.setdefault(name, node).indices[-1] for name, node in self.parameters.items()]
        for index in (*self.picked_indices, *known):
            join_indices(self.loop_index, index)

    def sum_over_loop(self, term: TracedNode) -> TracedNode:
        """Return the merged term summed over the index of the loop; ``term`` is one of the original terms."""
        node, out = self.node, tuple(self.slots)
        if isinstance(node, ContractionNode) and not any(isinstance(c, Parameter) for c in node.children):
            out = tuple(node.out[x] for x in out)
            return node.copy_with(out=out, indices=[node.labels[x] for x in out], call=None)
        return node.sum_to(out, term.where.rpartition(".")[0])

    def varies_between_terms(self, numbers: Iterable[int]) -> bool:
        """Return whether a number, such as 3 in the name ``experts.3.up``, differs between the terms of the loop.

        If it differs, it must be the number of the iteration (layer or expert), which is then kept in ``loop_numbers``.

        Args:
            numbers: The number in each term.

        Raises:
            UnlikeTerms: The number differs between some terms only, or not in the same way as a number that was seen
                before.
        """
        values = tuple(numbers)
        if len(set(values)) == 1:
            return False
        if len(set(values)) < len(values) or self.loop_numbers not in ((), values):
            raise UnlikeTerms
        self.loop_numbers = values
        return True

    def merge_nodes(self, nodes: Sequence[TracedNode]) -> tuple[TracedNode, list[int], int | None]:
        """Merge nodes that take the same place in each of the terms into one node.

        Args:
            nodes: One node of each term, such as the parameters ``experts.0.up``, ``experts.1.up``, ...

        Returns:
            The node; the new number of each of its dimensions; the dimension that is the index of the loop, or None
            if all terms share the node.
        """
        first, mark = nodes[0], tuple(n.number for n in nodes)
        if mark not in self.merged_nodes:
            if first.number in self.residual_stream:
                if not self.residual_stream.issuperset(mark) or self.stream_start is None:
                    raise UnlikeTerms
                self.merged_nodes[mark] = self.stream_start, [*first.slots], None
            elif len(set(mark)) == 1:
                self.merged_nodes[mark] = first, [*first.slots], None
            elif len({_compute_merge_key(n) for n in nodes}) > 1:
                raise UnlikeTerms
            elif isinstance(first, Parameter):
                self.merged_nodes[mark] = self._merge_parameters([n.label for n in nodes], first)
            else:
                self.merged_nodes[mark] = self._merge_inner_nodes(nodes, first)
        return self.merged_nodes[mark]

    def _merge_parameters(self, names: Sequence[str], first: Parameter) -> tuple[TracedNode, list[int], int | None]:
        columns = zip(*(map(int, NUMBER_IN_NAME.findall(name)) for name in names), strict=True)
        varying = iter([self.varies_between_terms(column) for column in columns])
        name = NUMBER_IN_NAME.sub(lambda m: "*" if next(varying) else m[0], first.name)
        if name == first.name:
            return first, [*first.slots], None
        self.parameters[name] = first.copy_with(indices=[*first.indices, self.loop_index], name=name, value=None)
        return self.parameters[name], [*first.slots], len(first.indices)

    def _merge_inner_nodes(
        self, nodes: Sequence[TracedNode], first: TracedNode
    ) -> tuple[TracedNode, list[int], int | None]:
        lifted = [
            (*self.merge_nodes([n.sources[k][0] for n in nodes]), labels) for k, (_, labels) in enumerate(first.sources)
        ]
        if isinstance(first, EntryPick):
            varies = self.varies_between_terms(n.at[0] for n in nodes if isinstance(n, EntryPick))
            return self._merge_picks(first, lifted[0], varies)
        folds = any(fold is not None for _, _, fold, _ in lifted)
        mine = max(first.labels) + 1 if isinstance(first, ContractionNode) else len(first.indices)
        sources = []
        for c, slots, _, labels in lifted:
            new = [mine] * len(c.indices)
            for slot, label in zip(slots, labels, strict=True):
                new[slot] = label
            sources.append((c, tuple(new)))
        if not folds:
            return first.with_sources(tuple(sources)), [*first.slots], None
        made = first.copy_with(sources=tuple(sources), indices=[*first.indices, self.loop_index])
        if isinstance(made, ContractionNode):
            made.out, made.labels = (*made.out, mine), {**made.labels, mine: self.loop_index}
        return made, [*first.slots], len(first.indices)

    def _merge_picks(
        self, node: EntryPick, lifted: tuple[TracedNode, list[int], int | None, Any], here: bool
    ) -> tuple[TracedNode, list[int], int | None]:
        source, slots, fold, _ = lifted
        gone = slots[node.slot]
        kept = [x for x in slots if x != gone]
        if here:
            if fold is not None:
                raise node.fail("an index within an index; use one loop")
            self.picked_indices.append(source.indices[gone])
            return source, kept, gone
        made = node.copy_with(sources=((source, source.slots),), indices=remove_slot(source.indices, gone), slot=gone)
        return made, [s - (s > gone) for s in kept], None if fold is None else fold - (fold > gone)


def _compute_merge_key(node: TracedNode) -> tuple[Any, ...]:
    """Return a key that is equal for nodes that may be merged.

    These are computed in the same way, and their parameters have equal names up to numbers, as ``experts.0.up`` and
    ``experts.1.up``.
    """
    if not node.sources:
        sizes = tuple(x.find_root().sizes for x in node.indices)
        return type(node), NUMBER_IN_NAME.sub("*", node.name) if isinstance(node, Parameter) else node.number, sizes
    factor = tuple(round(x, 9) for x in node.factor) if isinstance(node, ContractionNode) else ()
    slot = node.slot if isinstance(node, EntryPick | FixedConcatenation | Concatenation) else 0
    return type(node), node.label, node.over, slot, factor, describe_wiring(node)


def split_packed_parameters(root: TracedNode) -> TracedNode:
    """Return the graph with packed parameters split: a qkv of shape (3, N, N) becomes the parameters q, k and v.

    A parameter is split along an axis of fixed size if the module picks single entries along it.
    """
    cache: dict[Any, TracedNode | None] = {}

    def select_node_entry(node: TracedNode, slot: int, k: int) -> Any:
        """Return entry ``k`` of a node along dimension ``slot``, as a node; None if the entry is zero."""
        mark = node.number, slot, k
        if mark not in cache:
            if isinstance(node, Parameter):
                part = node, slot, (k,), (k + 1,)
                indices = remove_slot(node.indices, slot)
                axes = (*node.axes[:slot], *node.axes[slot + 1 :])
                cache[mark] = node.copy_with(
                    indices=indices, name=f"{node.name}[{k}]", value=None, part=part, axes=axes
                )
            elif isinstance(node, PartSelector):
                value = node.value.select(slot, k)
                rest = remove_slot(node.indices, slot)
                cache[mark] = node.copy_with(indices=rest, value=value) if value.any() else None
            elif slot in node.over or not isinstance(node, ContractionNode | SumNode | FunctionNode):
                raise node.fail("mixes the entries of an axis")
            else:
                mine = node.out[slot] if isinstance(node, ContractionNode) else slot
                live = [
                    s
                    for s in node.sources
                    if mine not in s[1] or select_node_entry(s[0], s[1].index(mine), k) is not None
                ]
                cache[mark] = None
                if (isinstance(node, SumNode) and live) or len(live) == len(node.sources):
                    cache[mark] = push_slice_down(
                        node.copy_with(sources=tuple(live)), slot, lambda c, at: select_node_entry(c, at, k)
                    )
                elif isinstance(node, FunctionNode):
                    raise node.fail("a function of zeros")
        return cache[mark]

    def split_pick(node: TracedNode) -> TracedNode:
        if not isinstance(node, EntryPick):
            return node
        index = node.source.indices[node.slot].find_root()
        if not index.fixed or any(leaf[0] == "data" for leaf in index.leaves):
            return node
        try:
            made = select_node_entry(node.source, node.slot, node.at[0])
        except Unreadable:
            return node
        if made is None:
            return node
        if made.call is None:
            made.call = node.call
        return made

    return rebuild_graph(root, split_pick)
