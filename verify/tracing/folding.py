"""A graph made shorter: what has the size of its source goes, terms that differ by one number become a letter.

``bare`` leaves out what equations cannot say, ``Folder`` turns the experts or the layers of a loop into a letter, and
``settled`` makes tensors of their own of the entries of a Theta(1) axis (one of q, k, v). Read next: ``writing.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .graph import IndexClass, Source, TracedNode, Unreadable, Vector, View, join, rebuilt, times, walk

NUMBER = re.compile(r"(?<![A-Za-z_\[\d])\d+(?!\])")
"""A number in a parameter's name; the numbers of parts, in brackets, are no places in a loop."""


def bare(output: View, loops: bool = False) -> tuple[View, list[tuple[str, str]]]:
    """The graph without nodes of the size of their source; and what is left out, as (module, note).

    Args:
        loops: factors that are one number stay; they may change with the length of a loop.
    """
    notes: dict[tuple[str, str], None] = {}

    def below(node: TracedNode, labels: tuple[int, ...]) -> Source:
        while True:
            source, slots = node.sources[0] if len(node.sources) == 1 or node.kind == "same" else (node, ())
            if node.kind == "same":
                for k, slot in enumerate(slots):
                    join(source.indices[k], node.indices[slot])
                node, labels = source, tuple(labels[slot] for slot in slots)
            elif node.kind == "contract" and slots and not node.factor and set(slots) == set(node.out):
                node, labels = source, tuple(labels[node.out.index(x)] for x in slots)  # in another order alone
            else:
                return node, labels

    def change(node: TracedNode) -> TracedNode:
        if node.note:
            notes[node.where, node.note] = None
        if node.kind == "same" and node.name == "factor":
            labels = dict(enumerate(node.indices))
            return node.but(kind="contract", out=tuple(labels), labels=labels, exact=None)
        if node.kind == "same":
            if node.name == "centred":
                raise Unreadable(
                    f"{node.where or 'model'}: max: a signal less its largest entry; softmax does so itself"
                )
            return node
        sources = tuple(below(*source) for source in node.sources)
        if node.kind == "pick" and (places := sources[0][1]) != (out := tuple(range(len(places)))):
            of = dict(zip(places, sources[0][0].indices, strict=True))
            turned = TracedNode("contract", [of[x] for x in out], node.where, (sources[0],), out, of)
            sources = ((turned, out),)
        if node.kind == "add":
            sources = tuple(dict.fromkeys(sources))
            if len(sources) == 1 and sources[0][1] == tuple(range(len(node.indices))):
                return sources[0][0]
            if len(sources) == 1:
                labels = dict(enumerate(node.indices))
                return node.but(kind="contract", sources=sources, out=tuple(labels), labels=labels, exact=None)
        if node.kind == "contract" and node.factor and (set(node.factor) == {1.0} or (not loops and _one(node.factor))):
            node = node.but(factor=())
        if node.kind == "contract" and len(sources) == 1 and set(sources[0][1]) == set(node.out):
            inner, mine = sources[0]
            if inner.kind == "contract":  # a factor alone belongs to what makes its source
                out = tuple(inner.out[mine.index(x)] for x in node.out)
                return inner.but(out=out, indices=node.indices, factor=times(node.factor, inner.factor), call=node.call)
        used = {x for _, labels in sources for x in labels}
        labels = {x: index for x, index in node.labels.items() if x in used}
        return node.but(sources=sources, labels=labels) if node.kind == "contract" else node.but(sources=sources)

    root = rebuilt(output.node, change)
    slots = tuple(range(len(root.indices)))
    node, places = below(root, slots)
    return View(node, [tuple(places.index(e) if isinstance(e, int) else e for e in dim) for dim in output.dims]), [
        *notes
    ]


def _one(factor: Vector) -> bool:
    return max(factor) - min(factor) <= 1e-9 * abs(factor[0])


class Folder:
    """Folds loops. depth: terms of a residual stream, which read the stream as it came in (the library's own law)."""

    def __init__(self, builds: int, depth: bool) -> None:
        self.builds, self.depth = builds, depth
        self.kinds: dict[Any, int] = {}
        self.memo: dict[int, Any] = {}
        self.made: dict[int, TracedNode] = {}
        self.uses: dict[int, int] = {}
        self.parameters: dict[str, TracedNode] = {}
        self.layers: IndexClass | None = None
        self.notes: list[tuple[str, str]] = []

    def run(self, root: TracedNode) -> TracedNode:
        for node in walk(root):
            for c in node.children:
                self.uses[c.number] = self.uses.get(c.number, 0) + 1
        return self.new(root)

    def key(self, node: TracedNode, stream: frozenset[int], memo: dict[int, Any]) -> tuple[int, tuple[int, ...]]:
        """The kind of a node, all numbers taken out; and the numbers."""
        if node.number in memo:
            return memo[node.number]
        kind: tuple[Any, ...]
        numbers: tuple[int, ...] = ()
        inner = []
        if node.number in stream:
            kind = ("stream",)
        elif not node.sources:
            named = node.kind == "param"
            sizes = tuple(x.root().sizes for x in node.indices)
            kind = ("param", NUMBER.sub("*", node.name), sizes) if named else ("leaf", node.number)
            numbers = tuple(map(int, NUMBER.findall(node.name))) if named else ()
        else:
            names: dict[int, int] = {}
            for c, labels in node.sources:
                k, more = self.key(c, stream, memo)
                inner.append(
                    (k, tuple(names.setdefault(x, len(names)) for x in labels) if node.kind == "contract" else labels)
                )
                numbers += more
            out = tuple(names[x] for x in node.out)
            factor = tuple(round(x, 9) for x in node.factor)
            kind = (node.kind, node.name, node.over, node.slot, factor, out, tuple(inner))
            if node.kind == "pick":
                numbers += (node.at[0],)
        memo[node.number] = (self.kinds.setdefault(kind, len(self.kinds)), numbers)
        return memo[node.number]

    def flat(self, node: TracedNode, places: tuple[int, ...], prefixes: list[TracedNode]) -> list[Source]:
        """The terms of a sum of sums; ``prefixes``: the sums inside."""
        terms: list[Source] = []
        for t, labels in node.sources:
            now = tuple(places[x] for x in labels)
            whole = t.kind == "add" and t.name != "blend" and len(t.indices) == len(node.indices)
            if whole and (self.depth or self.uses.get(t.number) == 1) and not any(c.weight for c in t.children):
                prefixes.append(t)
                terms += self.flat(t, now, prefixes)
            else:
                terms.append((t, now))
        return terms

    def new(self, node: TracedNode) -> TracedNode:
        if node.number not in self.made:
            if node.kind == "add":
                made = self.sum(node)
            else:
                sources = tuple((self.new(c), labels) for c, labels in node.sources)
                alike = all(a is b for (a, _), (b, _) in zip(sources, node.sources, strict=True))
                made = node if alike else node.but(sources=sources)
            self.made[node.number] = made
        return self.made[node.number]

    def sum(self, node: TracedNode) -> TracedNode:
        if node.name == "blend" and (stacked := self.stacked(node)) is not None:
            return stacked
        prefixes: list[TracedNode] = []
        whole = tuple(range(len(node.indices)))
        terms = self.flat(node, whole, prefixes)
        deep = self.depth and bool(prefixes)
        reads = [{n.number for n in walk(t)} for t, _ in terms] if deep else []
        start = next((k for k, (t, _) in enumerate(terms) if deep and all(t.number in r for r in reads)), 0)
        stream = frozenset(p.number for p in prefixes) | {terms[start][0].number} if deep else frozenset[int]()
        memo: dict[int, Any] = {} if stream else self.memo
        groups: dict[Any, list[tuple[int, tuple[int, ...]]]] = {}
        for k, (t, labels) in enumerate(terms):
            if not (deep and k == start):
                kind, numbers = self.key(t, stream, memo)
                groups.setdefault((kind, labels), []).append((k, numbers))
        folds = []
        for (_, labels), members in groups.items():
            if len(members) < 2:
                continue
            columns = list(zip(*(numbers for _, numbers in members), strict=True))
            varying = frozenset(j for j, column in enumerate(columns) if len(set(column)) > 1)
            values = [columns[j] for j in varying]
            if values and all(v == values[0] for v in values) and len(set(values[0])) == len(members):
                folds.append((members, varying, labels))
        if not folds:
            sources = tuple((self.new(t), labels) for t, labels in node.sources)
            alike = all(a is b for (a, _), (b, _) in zip(sources, node.sources, strict=True))
            return node if alike else node.but(sources=sources)
        gone = {k for members, _, _ in folds for k, _ in members}
        kept = [term for k, term in enumerate(terms) if k not in gone]
        for members, varying, labels in folds:
            letter = IndexClass((len(members),) * self.builds)
            if deep:  # all loops of one length over the stream are one loop
                if self.layers is not None and self.layers.root().sizes == letter.sizes:
                    join(self.layers, letter)
                self.layers = letter.root()
            first = terms[members[0][0]][0]
            lift = _Lift(self, letter, stream, terms[start][0] if deep else None, memo)
            kept.append((lift.total(first, varying), labels))
            word = "layers" if deep else "terms"
            self.notes.append((first.where, f"{len(members)} {word} that differ by a number are one letter"))
        made = tuple((self.new(t), labels) for t, labels in kept)
        if len(made) == 1 and made[0][1] == whole:
            return made[0][0].but(call=node.call)
        return node.but(sources=made)

    def stacked(self, node: TracedNode) -> TracedNode | None:
        """Terms beside each other that differ by their place: one term, with the axis as its letter."""
        places = len(node.indices) - 1
        size, memo = node.indices[places].root().sizes[0], self.memo
        keys = [(self.key(t, frozenset(), memo), labels) for t, labels in node.sources]
        (kind, _), labels = keys[0]
        if len(keys) != size or any((k, m) != (kind, labels) for (k, _), m in keys) or places in labels:
            return None
        columns = list(zip(*(numbers for (_, numbers), _ in keys), strict=True))
        varying = frozenset(j for j, column in enumerate(columns) if len(set(column)) > 1)
        if not varying or any([*columns[j]] != [*range(columns[j][0], columns[j][0] + size)] for j in varying):
            return None
        letter = IndexClass((size,) * self.builds)
        join(node.indices[places], letter)
        made, slots, fold = _Lift(self, letter, frozenset(), None, memo).up(node.source, varying)
        assert fold is not None
        made = self.new(made)
        out = (*(slots[labels.index(k)] for k in range(places)), fold)
        self.notes.append((node.where, f"{size} tensors that differ by a number are one letter"))
        slot = tuple(range(len(made.indices)))
        indices, of = [made.indices[x] for x in out], dict(enumerate(made.indices))
        return TracedNode("contract", indices, node.where, ((made, slot),), out, of)


class _Lift:
    """One term of a loop with a letter in the place of its number."""

    def __init__(
        self, folder: Folder, letter: IndexClass, stream: frozenset[int], start: TracedNode | None, memo: dict[int, Any]
    ) -> None:
        self.folder, self.letter, self.stream, self.start, self.memo = folder, letter, stream, start, memo
        self.done: dict[Any, tuple[TracedNode, list[int], int | None]] = {}
        self.reads: dict[int, bool] = {}

    def total(self, term: TracedNode, varying: frozenset[int]) -> TracedNode:
        """The sum over the letter."""
        node, slots, _ = self.up(term, varying)
        if node.kind == "contract" and not any(c.kind == "param" for c in node.children):
            out = tuple(node.out[slots[k]] for k in range(len(term.indices)))
            return node.but(out=out, indices=[node.labels[x] for x in out], call=None)
        labels = tuple(range(len(node.indices)))
        out = tuple(slots[k] for k in range(len(term.indices)))
        where = term.where.rpartition(".")[0]
        return TracedNode(
            "contract", [node.indices[s] for s in out], where, ((node, labels),), out, dict(enumerate(node.indices))
        )

    def up(self, node: TracedNode, varying: frozenset[int]) -> tuple[TracedNode, list[int], int | None]:
        """The node, the new slot of every old one, and the slot of the letter."""
        same = list(range(len(node.indices)))
        if node.number in self.stream:
            assert self.start is not None
            return self.start, same, None
        if not varying and not self.touched(node):
            return node, same, None
        mark = node.number, varying
        if mark not in self.done:
            self.done[mark] = self._up(node, varying, same)
        return self.done[mark]

    def _up(
        self, node: TracedNode, varying: frozenset[int], same: list[int]
    ) -> tuple[TracedNode, list[int], int | None]:
        if not node.sources:
            if not varying:
                return node, same, None
            number = iter(range(999))
            name = NUMBER.sub(lambda m: "*" if next(number) in varying else m[0], node.name)
            known = self.folder.parameters
            if name not in known:
                known[name] = node.but(indices=[*node.indices, self.letter], name=name, value=None)
            join(known[name].indices[-1], self.letter)
            return known[name], same, len(node.indices)
        lifted, at = [], 0
        for c, labels in node.sources:
            n = len(self.folder.key(c, self.stream, self.memo)[1])
            inner = frozenset(v - at for v in varying if at <= v < at + n)
            lifted.append((*self.up(c, inner), labels))
            at += n
        if node.kind == "pick":
            return self._picked(node, lifted[0], at in varying)
        if any(fold is not None for _, _, fold, _ in lifted) is False:
            sources = tuple((c, self._labels(c, slots, None, labels, -1)) for c, slots, _, labels in lifted)
            return node.but(sources=sources), same, None
        if node.kind == "contract":
            mine = max(node.labels) + 1
            labels_of = {**node.labels, mine: self.letter}
            sources = tuple((c, self._labels(c, slots, fold, labels, mine)) for c, slots, fold, labels in lifted)
            out = (*node.out, mine)
            made = node.but(sources=sources, out=out, labels=labels_of, indices=[labels_of[x] for x in out])
            return made, same, len(node.out)
        mine = len(node.indices)
        sources = tuple((c, self._labels(c, slots, fold, labels, mine)) for c, slots, fold, labels in lifted)
        return node.but(sources=sources, indices=[*node.indices, self.letter]), same, mine

    def _labels(
        self, node: TracedNode, slots: list[int], fold: int | None, labels: tuple[int, ...], mine: int
    ) -> tuple[int, ...]:
        new = [mine] * len(node.indices)
        for k, label in enumerate(labels):
            new[slots[k]] = label
        return tuple(new)

    def _picked(self, node: TracedNode, lifted: Any, here: bool) -> tuple[TracedNode, list[int], int | None]:
        source, slots, fold, _ = lifted
        kept = [slots[k] for k in range(len(node.source.indices)) if k != node.slot]
        if here:
            if fold is not None:
                raise Unreadable(f"{node.where or 'model'}: an index within an index; use one loop")
            join(self.letter, source.indices[slots[node.slot]])
            return source, kept, slots[node.slot]
        gone = slots[node.slot]
        indices = [x for k, x in enumerate(source.indices) if k != gone]
        made = node.but(sources=((source, tuple(range(len(source.indices)))),), indices=indices, slot=gone)
        return made, [s - (s > gone) for s in kept], None if fold is None else fold - (fold > gone)

    def touched(self, node: TracedNode) -> bool:
        """Does it read the stream?"""
        if self.stream and node.number not in self.reads:
            for n in walk(node):
                self.reads[n.number] = n.number in self.stream or any(self.reads[c.number] for c in n.children)
        return self.reads.get(node.number, False)


def settled(root: TracedNode) -> TracedNode:
    """Entries of Theta(1) axes of tensors as tensors of their own; packed q, k, v are three."""
    cache: dict[Any, TracedNode | None] = {}

    def pushed(node: TracedNode, slot: int, k: int) -> TracedNode | None:
        mark = node.number, slot, k
        if mark not in cache:
            cache[mark] = _pushed(node, slot, k)
        return cache[mark]

    def _pushed(node: TracedNode, slot: int, k: int) -> TracedNode | None:
        indices = [x for j, x in enumerate(node.indices) if j != slot]
        if node.kind == "param":
            return node.but(indices=indices, name=f"{node.name}[{k}]", value=None)
        if slot in node.over or node.kind not in ("contract", "add", "func"):
            return None
        gone = node.out[slot] if node.kind == "contract" else slot
        sources = []
        for c, labels in node.sources:
            if gone in labels:
                inner = pushed(c, labels.index(gone), k)
                if inner is None:
                    return None
                c, labels = inner, tuple(x for x in labels if x != gone)
            if node.kind != "contract":
                labels = tuple(x - (x > slot) for x in labels)
            sources.append((c, labels))
        out = tuple(x for x in node.out if x != gone)
        kept = {x: index for x, index in node.labels.items() if x != gone}
        over = tuple(x - (x > slot) for x in node.over)
        return node.but(sources=tuple(sources), indices=indices, out=out, labels=kept, over=over, call=None)

    def change(node: TracedNode) -> TracedNode:
        if node.kind != "pick" or not node.source.indices[node.slot].fixed:
            return node
        leaves = node.source.indices[node.slot].root().leaves
        made = pushed(node.source, node.slot, node.at[0]) if _parameters(leaves) else None
        if made is not None and made.call is None:
            made.call = node.call
        return made or node

    return rebuilt(root, change)


def _parameters(leaves: Iterable[tuple[Any, ...]]) -> bool:
    return all(leaf[0] == "param" for leaf in leaves)
