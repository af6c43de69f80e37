"""Reads recordings of one module at several sizes as one graph: ``Reader``.

The recordings have the same calls at other sizes. A view that takes a dimension apart splits it at its leaf, a
dimension of a parameter or of the input, and the reading begins again. Slices are pushed down to the parameters.
Read next: ``rules.py`` (a row for each call), ``guard.py`` (is the reading true?).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from .entries import classified
from .graph import (
    IndexClass,
    Restart,
    Sizes,
    TracedNode,
    Unreadable,
    Vector,
    View,
    join,
    product_of,
    then,
    times,
    total_of,
    whole_of,
)
from .recording import Recording, Ref, TorchCall, refs

GATES = {"softmax": "softmax", "softmax_topk": "topk_softmax", "topk_softmax": "topk_softmax"} | {
    name: f"normed_{name}" for name in ("sigmoid", "topk_sigmoid", "topk")
}
"""Functions of gates, and what they are when they are divided by their sum."""
TINY = 1e-3
"""A constant that is added and is below this guards a division."""
WRITES = ("copy_", "__getitem__", "__setitem__")
"""Calls that write parts of a new tensor."""
_WHOLE = slice(None)
Splits = dict[tuple[Any, ...], tuple[Sizes, Sizes]]
Operand = tuple[View, Sequence[Any]]
"""A tensor, and a key for each of its dimensions."""


class Number(tuple[float, ...]):
    """A number of python at every build."""


@dataclass
class Bound:
    """A call at all builds, its tensors views of the graph, its numbers at every build."""

    name: str
    call: TorchCall
    args: list[Any]
    keywords: dict[str, Any]
    shapes: list[list[tuple[int, ...]]]
    """Shapes of the results: by result, then by build."""
    values: list[list[Tensor]]
    live: list[View]
    """Views among the arguments that are no constants."""

    def get(self, name: str, place: int, default: Any = None) -> Any:
        """An argument by name or place; a number as at the first build."""
        value = self.keywords.get(name, self.args[place] if len(self.args) > place else default)
        value = default if value is None else value
        return value[0] if isinstance(value, Number) else value

    def whole(self, name: str, place: int) -> Any:
        """The same, numbers at every build."""
        return self.keywords.get(name, self.args[place] if len(self.args) > place else None)


class Reader:
    """One reading. splits: of leaves, kept by a reading that begins again. apply: the table of rules."""

    def __init__(self, runs: Sequence[Recording], splits: Splits, apply: Callable[[Reader, Bound], Any]) -> None:
        self.apply = apply
        self.runs, self.builds, self.splits = runs, len(runs), splits
        self.views: dict[int, View] = {}
        self.sizes: dict[tuple[Any, ...], Sizes] = {}
        self.pieces: dict[int, list[tuple[int, int, int, View]]] = {}
        self.bases: dict[int, tuple[int, int, int, int]] = {}
        self.repaired: set[int] = set()
        self.holes: set[int] = set()
        self.read_calls: list[tuple[TorchCall, Ref, View]] = []
        self.one_hot: dict[int, TracedNode] = {}
        self.call: TorchCall | None = None
        self.scales: list[tuple[str, float, TracedNode | None]] = []

    # leaves -----------------------------------------------------------------------------------------------------

    def fail(self, what: str) -> Unreadable:
        """The error of the call that is read."""
        where = f"{self.call.module or 'model'}: {self.call.name}" if self.call else "model"
        return Unreadable(f"{where}: {what}")

    @property
    def where(self) -> str:
        return self.call.module if self.call else ""

    def leaf(self, key: tuple[Any, ...], sizes: Sizes) -> list[IndexClass]:
        """The classes of one dimension of a leaf."""
        if set(sizes) == {1}:
            return []
        if key in self.splits:
            return [x for k, half in enumerate(self.splits[key]) for x in self.leaf((*key, k), half)]
        self.sizes[key] = sizes
        return [IndexClass(sizes, key)]

    def leaf_view(self, kind: str, name: str, number: int) -> View:
        indices: list[IndexClass] = []
        dims: list[tuple[int | IndexClass, ...]] = []
        for d, sizes in enumerate(zip(*(run.shapes[number] for run in self.runs), strict=True)):
            found = self.leaf((kind, name, d), sizes)
            dims.append(tuple(range(len(indices), len(indices) + len(found))))
            indices += found
        value = self.runs[0].tensors[number]
        value = value.reshape([x.sizes[0] for x in indices])
        value = value.double() if value.is_floating_point() else value
        return View(TracedNode(kind, indices, name=name, value=value, base=name), dims)

    def constant(self, values: Sequence[Tensor]) -> View:
        """Values that come from no parameter and no input."""
        shapes = zip(*(v.shape for v in values), strict=True)
        dims: list[tuple[int | IndexClass, ...]] = [
            () if set(sizes) == {1} else (IndexClass(sizes),) for sizes in shapes
        ]
        return View(TracedNode("const", [], value=list(values)), dims)

    def read(self) -> View:
        """The output.

        Raises:
            Unreadable: a call without a rule, or something that no equation says.
            Restart: a leaf was split.
        """
        first = self.runs[0]
        for number, name in first.parameters.items():
            self.views[number] = self.leaf_view("param", name, number)
        for number, place in first.inputs.items():
            if place == 0:
                self.views[number] = self.leaf_view("data", "data", number)
        for calls in zip(*(run.calls for run in self.runs), strict=True):
            self.call = calls[0]
            self._step(calls)
        self.call = None
        return self.view(first.output)

    def view(self, ref: Ref) -> View:
        """The tensor of this number; one that no call made is a constant."""
        if ref.number not in self.views:
            self.views[ref.number] = self.constant([run.tensors[ref.number] for run in self.runs])
        return self.views[ref.number]

    def _bound(self, trees: Sequence[Any]) -> Any:
        x = trees[0]
        if isinstance(x, Ref):
            return self.view(x)
        if isinstance(x, list | tuple):
            return type(x)(map(self._bound, zip(*trees, strict=True)))
        if isinstance(x, dict):
            return {k: self._bound([t[k] for t in trees]) for k in x}
        if isinstance(x, slice):
            return [slice(t.start, t.stop, t.step) for t in trees]
        return Number(trees) if isinstance(x, int | float) and not isinstance(x, bool) else x

    def _step(self, calls: Sequence[TorchCall]) -> None:
        call = calls[0]
        here = set(_numbers(call))
        target = {next(refs(call.arguments)).number} if here and call.name in WRITES else set[int]()
        if (call.stale - self.repaired) - (target & self.pieces.keys()):  # the values of now are not known
            raise self.fail("reads what was written in place through a view; write whole tensors, or torch.cat")
        if here & (self.pieces.keys() | self.holes) - target:
            raise self.fail("reads a tensor of which parts alone are written; torch.cat its parts")
        args = list(self._bound([c.arguments for c in calls]))
        keywords = self._bound([c.keywords for c in calls])
        args += [keywords.pop(key) for k, key in enumerate(("input", "other")) if key in keywords and len(args) == k]
        results = list(refs(call.result))
        shapes = [[run.shapes[r.number] for run in self.runs] for r in results]
        values = [[run.tensors[r.number] for run in self.runs] for r in results]
        views = _views((args, keywords))
        live = [v for v in views if v.node.kind != "const"]
        bound = Bound(call.name, call, args, keywords, shapes, values, live)
        if call.name == "__getitem__" and not live:
            self._remember(call, results)
        if call.name == "__getitem__" and target & self.pieces.keys():
            self.holes |= {r.number for r in results}
        if not live:
            for r, v in zip(results, values, strict=True):
                self.views[r.number] = self.constant(v)
            return
        made = self.apply(self, bound)
        self._kept(call, results, made)
        for k, (r, view) in enumerate(zip(results, made if isinstance(made, list) else [made], strict=False)):
            if view.node.call is None:
                view.node.call = (*call.key, k)
            self.views[r.number] = view
            self.read_calls.append((call, r, view))

    def _kept(self, call: TorchCall, results: Sequence[Ref], made: Any) -> None:
        """A sum is no smaller than rounding leaves of its terms: signs are in no equation."""
        if isinstance(made, View) and made.node.kind == "add":
            terms = [x for x in map(self.runs[0].tensors.get, _numbers(call)) if x is not None and x.numel()]
            size = [float(x.abs().max()) for x in terms]
            got = float(self.runs[0].tensors[results[0].number].abs().max())
            if size and min(size) > 0 and got <= 1e-9 * max(size):
                raise self.fail("a sum that cancels, and the equations have no signs")

    def _remember(self, call: TorchCall, results: Sequence[Ref]) -> None:
        """A slice of a constant, which may be written into."""
        base, out = call.arguments[0].number, results[0].number
        a, b = self.runs[0].shapes[base], self.runs[0].shapes[out]
        apart = [d for d in range(len(a)) if len(a) == len(b) and a[d] != b[d]]
        if len(apart) == 1:
            keys = call.arguments[1] if isinstance(call.arguments[1], tuple) else (call.arguments[1],)
            cut = [k for k in keys if isinstance(k, slice) and k != _WHOLE]
            if len(cut) == 1:
                start, stop, _ = cut[0].indices(a[apart[0]])
                self.bases[out] = (base, apart[0], start, stop)

    # classes ----------------------------------------------------------------------------------------------------

    def split(self, index: IndexClass, head: Sizes) -> Restart:
        """A class is to be two: of these sizes, and the rest."""
        index = index.root()
        if not index.leaves or any(n % h for n, h in zip(index.sizes, head, strict=True)):
            return self.fail(f"an axis of sizes {index.sizes} cannot be taken apart as {head}")  # type: ignore[return-value]
        rest = tuple(n // h for n, h in zip(index.sizes, head, strict=True))
        for key in index.leaves:
            if "part" in key:  # of a leaf that is taken apart as a whole: (count head, rest)
                whole = key[: key.index("part")]
                self.splits[whole] = (tuple(t // r for t, r in zip(self.sizes[whole], rest, strict=True)), rest)
            else:
                self.splits[key] = (tuple(head), rest)
        return Restart()

    def align(self, sequences: Sequence[Sequence[IndexClass]]) -> None:
        """Joins dimensions that are one, class by class."""
        rows = [[x.root() for x in s] for s in sequences if s]
        for column in range(max(map(len, rows), default=0)):
            heads = [s[column].root() if len(s) > column else None for s in rows]
            found = [h for h in heads if h is not None]
            if len(found) < len(heads):
                raise self.fail(f"dimensions do not match: {[[x.sizes for x in s] for s in rows]}")
            least = min((h.sizes for h in found), key=prod)
            for h in found:
                if h.sizes != least:
                    raise self.split(h, least)
            for h in found[1:]:
                join(found[0], h)

    # products and sums ------------------------------------------------------------------------------------------

    def _labelled(
        self, operands: Sequence[Operand]
    ) -> tuple[dict[Any, list[int]], dict[int, IndexClass], set[int], list[Any]]:
        """Labels of every key, their classes, those that a node has, and the operands' nodes with labels."""
        uses: dict[Any, list[tuple[View, int]]] = {}
        for view, keys in operands:
            for d, key in enumerate(keys):
                if view.dims[d]:
                    uses.setdefault(key, []).append((view, d))
        labels: dict[Any, list[int]] = {}
        classes: dict[int, IndexClass] = {}
        for key, where in uses.items():
            real = [x for x in where if x[0].node.kind != "const"] or where[:1]
            rows = [[view.index(e) for e in view.dims[d]] for view, d in real]
            self.align(rows)
            labels[key] = list(range(len(classes), len(classes) + len(rows[0])))
            classes |= dict(zip(labels[key], (x.root() for x in rows[0]), strict=True))
        owned: set[int] = set()
        factors: list[Any] = []
        for view, keys in operands:
            if view.node.kind != "const":
                mine = [-1] * len(view.node.indices)
                for d, key in enumerate(keys):
                    for e, label in zip(view.dims[d], labels.get(key, ()), strict=False):
                        if isinstance(e, int):
                            mine[e] = label
                owned |= set(mine)
                factors.append((view.node, tuple(mine)))
        return labels, classes, owned, factors

    def contract(self, operands: Sequence[Operand], out: Sequence[Any], factor: Vector = ()) -> View:
        """An einsum on dimensions. factor: at every build, what multiplies it."""
        labels, classes, owned, factors = self._labelled(operands)
        if any(v.node.kind == "const" and not all(bool((c == 1).all()) for c in v.node.value) for v, _ in operands):
            raise self.fail("a product with a constant matrix, or with a second input; make it a parameter, or data")
        for key in labels:
            for label in labels[key]:
                if key not in out and label not in owned:  # a sum of what is constant along it
                    sizes = classes[label].root().sizes
                    factor = tuple(a * b for a, b in zip(factor or (1.0,) * self.builds, sizes, strict=True))
        order = list(dict.fromkeys(x for key in out for x in labels.get(key, ()) if x in owned))
        slot = {label: k for k, label in enumerate(order)}
        dims = [tuple(slot.get(x, classes[x]) for x in labels.get(key, ())) for key in out]
        if not factor and len(factors) == 1 and set(factors[0][1]) == set(order):  # in another order alone
            node, mine = factors[0]
            return View(node, [tuple(mine.index(order[e]) if isinstance(e, int) else e for e in d) for d in dims])
        return View(self.product(factors, tuple(order), classes, factor), dims)

    def product(
        self, factors: list[Any], out: tuple[int, ...], classes: dict[int, IndexClass], factor: Vector
    ) -> TracedNode:
        """A contraction; weights that are sums or products of weights, concatenations and added constants are written
        out where they meet others."""
        for k, (node, mine) in enumerate(factors):
            before, after = factors[:k], factors[k + 1 :]
            scaled = len(factors) == 1 and set(mine) == set(out)
            if node.kind == "same" and node.name == "scale" and (scaled or (len(factors) > 1 and node.weight)):
                return self.product([*before, (node.source, mine), *after], out, classes, times(factor, node.factor))
            if node.kind == "add" and node.weight and len(factors) > 1:
                terms = []
                for term, labels in node.sources:
                    now = [*before, (term, tuple(mine[x] for x in labels)), *after]
                    if any(not any(x in m for _, m in now) for x in out):
                        raise self.fail("weights that are repeated are added to weights; add them to signals")
                    terms.append((self.product(now, out, dict(classes), factor), tuple(range(len(out)))))
                return TracedNode("add", [classes[x] for x in out], self.where, tuple(terms))
            moved = len(node.sources) == 1 and set(node.sources[0][1]) == set(node.out)
            if node.kind == "contract" and (scaled or (len(factors) > 1 and (node.weight or moved))):
                names = {x: mine[j] for j, x in enumerate(node.out)}
                for x in node.labels:
                    if x not in names:
                        names[x] = max([*classes, *names.values()]) + 1
                        classes[names[x]] = node.labels[x]
                inner = [(g, tuple(names[x] for x in labels)) for g, labels in node.sources]
                return self.product([*before, *inner, *after], out, classes, times(factor, node.factor))
            if node.kind == "cat":
                return self._distributed(factors, k, out, classes, factor)
        labels = {x: classes[x] for x in dict.fromkeys([*out, *(x for _, mine in factors for x in mine)])}
        return TracedNode("contract", [classes[x] for x in out], self.where, tuple(factors), out, labels, factor)

    def _distributed(
        self, factors: list[Any], k: int, out: tuple[int, ...], classes: dict[int, IndexClass], factor: Vector
    ) -> TracedNode:
        """A concatenation that is summed over: a product for each of its parts."""
        node, mine = factors[k]
        label = mine[node.slot]
        if label in out:
            raise self.fail("a concatenation along an axis that grows is multiplied; multiply its parts")
        along = [part.indices[own.index(node.slot)] for part, own in node.sources]
        sizes, terms = [index.root().sizes for index in along], []
        for j, (part, own) in enumerate(node.sources):
            now, known = [], {**classes, label: along[j]}
            for g, labels in factors[:k] + factors[k + 1 :]:
                if label in labels:
                    g = self.part(g, labels.index(label), j, sizes)
                    self.align([[known[label]], [g.indices[labels.index(label)]]])
                now.append((g, labels))
            now.insert(k, (part, tuple(mine[x] for x in own)))
            terms.append((self.product(now, out, known, factor), tuple(range(len(out)))))
        return TracedNode("add", [classes[x] for x in out], self.where, tuple(terms))

    def broadcast(self, views: Sequence[View]) -> tuple[int, list[Operand]]:
        """Keys of elementwise operands: their dimensions, counted from the last."""
        n = max(len(v.dims) for v in views)
        return n, [(v, range(n - len(v.dims), n)) for v in views]

    def multiply(self, a: View, b: View) -> View:
        """Entry by entry. Known products are functions: x sigmoid(x), x / rms(x); an added constant is written out."""
        if "const" in (a.node.kind, b.node.kind):
            x, c = (b, a) if a.node.kind == "const" else (a, b)
            return self.scaled(x, c)
        if (known := self._one_function(a, b) or self._norm(a, b) or self._norm(b, a)) is not None:
            return known
        for x, y in ((a, b), (b, a)):
            if x.node.kind == "shift":  # (x + c) y = x y + c y
                inner = View(x.node.source, x.dims)
                return self.add([self.multiply(inner, y), self.scaled(y, self.constant(x.node.value))])
        n, operands = self.broadcast([a, b])
        out = self.contract(operands, range(n))
        if out.node.kind == "contract" and len(out.node.sources) == 2:
            out.node.entry = (
                tuple((r, product_of(f, g)) for r, f in a.node.entries() for s, g in b.node.entries() if r is s)
                if a.dims == b.dims
                else ()
            )
        return out

    def _one_function(self, a: View, b: View) -> View | None:
        if a.dims != b.dims:
            return None
        for root, f in a.node.entries():
            for other, g in b.node.entries():
                if root is other and (name := classified(product_of(f, g))):
                    return self.function(name, View(root, a.dims), product_of(f, g))
        return None

    def scaled(self, x: View, by: View | Vector) -> View:
        """A signal times constants: a number that changes with size is a factor, others leave the size as it is."""
        values = [v.double() for v in by.node.value] if isinstance(by, View) else _tensors(by)
        most = tuple(float(v.abs().max()) if v.numel() else 0.0 for v in values)
        if not any(most):
            shape = torch.broadcast_shapes(
                *([tuple(x.sizes(d, self.builds)[b] for d in range(len(x.dims))) for b in (0,)]), values[0].shape
            )
            return self.constant([torch.zeros(shape)] * self.builds)
        c, first = values[0], most[0]
        alike = all(abs(m - first) <= 1e-6 * first for m in most)
        if c.numel() == 1:
            number = tuple(float(v.reshape(())) for v in values)
            if not alike:
                keys = range(len(x.dims))
                return self.contract([(x, keys)], keys, number)
            if number[0] == 1:
                self.scales.append((self.where, 1.0, None))
                return x
            out = self.same(x, lambda v: v * number[0], entry=lambda u: u * number[0])
            out.node.name, out.node.factor = "scale", number
            self.scales.append((self.where, abs(number[0]), out.node))
            return out
        self.scales.append((self.where, first, None))
        if not alike:
            keys = range(len(x.dims))
            x = self.contract([(x, keys)], keys, most)
            c = c / most[0]
        peaks = [m / float(v.double().square().mean().sqrt()) for m, v in zip(most, values, strict=True)]
        if max(peaks) > 1.2 * min(peaks):
            raise self.fail(
                "multiplies by a constant whose large entries become rarer with size; no equation says this"
            )
        note = "" if bool((c == 1).all()) else "a constant factor is left out (rotary angles, masks)"
        return self.same(self.spread(x, by), lambda v: v * c.to(v.dtype), note)

    def spread(self, x: View, like: View | Vector) -> View:
        """With the dimensions that a constant has beyond those of the signal."""
        if not isinstance(like, View):
            return x
        n = max(len(x.dims), len(like.dims))
        dims = [(), *[()] * (n - 1)][: n - len(x.dims)] + list(x.dims)
        extra = [()] * (n - len(like.dims)) + list(like.dims)
        return View(x.node, [d or e for d, e in zip(dims, extra, strict=True)])

    def same(
        self,
        x: View,
        exact: Callable[[Tensor], Tensor],
        note: str = "",
        entry: Callable[[Tensor], Tensor] | None = None,
    ) -> View:
        """A tensor of the size of another. exact: on values in the dimensions of the view."""
        slots = tuple(range(len(x.node.indices)))
        node = TracedNode("same", list(x.node.indices), self.where, ((x.node, slots),), note=note)
        node.exact = lambda v: x.taken_back(exact(x.laid_out(v)), v)
        if entry is not None:
            node.entry = tuple((r, then(f, entry)) for r, f in x.node.entries())
        return View(node, x.dims)

    def function(
        self, name: str, x: View, exact: Callable[[Tensor], Tensor], over: tuple[int, ...] = (), entrywise: bool = True
    ) -> View:
        """A function of a signal. exact: on the node's own value."""
        slots = tuple(range(len(x.node.indices)))
        node = TracedNode(
            "func", list(x.node.indices), self.where, ((x.node, slots),), name=name, over=over, exact=exact
        )
        if entrywise:
            node.entry = tuple((r, then(f, exact)) for r, f in x.node.entries())
        return View(node, x.dims)

    def shifted(self, x: View, by: View | Vector, what: str = "add") -> View:
        """A signal with a constant added: a mask is left out with a note; any other constant stays in the graph."""
        values = by.node.value if isinstance(by, View) else _tensors(by)
        c = values[0]
        if not c.numel() or float(c.abs().max()) == 0:
            return x
        if c.numel() == 1 and 0 < float(c) <= TINY:
            return self.same(x, lambda v: v + c.to(v.dtype), entry=lambda u: u + float(c))
        if c.is_floating_point() and bool(((c == 0) | (c < -1e3)).all()) and bool((c == 0).any()):
            return self.same(self.spread(x, by), lambda v: v + c.to(v.dtype), "a mask is left out")
        out = self.same(self.spread(x, by), lambda v: v + c.to(v.dtype))
        out.node.kind, out.node.value, out.node.name = "shift", values, f"{float(c.abs().max()):g}"
        if c.numel() == 1:
            out.node.entry = tuple((r, then(f, lambda u: u + float(c))) for r, f in x.node.entries())
        return out

    def _norm(self, x: View, other: View) -> View | None:
        """x times 1 / rms(x) is a norm; the values of gates divided by their sum are gates."""
        f = other.node
        if f.kind != "func" or f.name not in ("rsqrt", "reciprocal"):
            return None
        source = _bare(f.source)
        if f.name == "reciprocal" and source.kind == "func" and source.name == "sqrt":
            source = _bare(source.source)
        elif f.name == "reciprocal":
            value = _bare(x.node)
            summed = source.kind == "contract" and len(source.sources) == 1 and _bare(source.source) is value
            if not (summed and value.kind == "func" and value.name in GATES):
                return None
            gone = tuple(k for k, label in enumerate(source.sources[0][1]) if label not in source.out)
            gates = value.exact
            assert gates is not None

            def normed(v: Tensor) -> Tensor:
                return (y := gates(v)) / y.sum(gone, keepdim=True)

            return self.function(GATES[value.name], View(value.source, x.dims), normed, value.over, False)
        if (
            source.kind != "contract"
            or len(source.sources) != 2
            or any(_bare(c) is not _bare(x.node) for c in source.children)
        ):
            return None
        (_, a), (_, b) = source.sources
        gone = tuple(k for k, label in enumerate(a) if label not in source.out)
        if a != b or not gone:
            return None
        factor = source.factor[0] if source.factor else 1.0
        size = prod(x.node.indices[k].root().sizes[0] for k in gone)
        scale = next((g for r, g in f.entries() if r is source), None)
        if scale is None or abs(factor * size - 1) > 1e-6:
            return None
        exact = scale
        return self.function("rmsnorm", x, lambda v: v * exact(v.pow(2).sum(gone, keepdim=True) * factor), gone, False)

    def add(self, views: Sequence[View]) -> View:
        """A sum, entry by entry.

        Raises:
            Unreadable: a difference of two signals.
        """
        live = [v for v in views if v.node.kind != "const"]
        if len(live) < len(views):
            (x,), (c,) = live, [v for v in views if v.node.kind == "const"]
            return self.shifted(x, c)
        one = whole_of(views[0].node)
        for v in views:
            mixed = one is not None and all(whole_of(u.node) == one for u in views)  # a rotation of one tensor's parts
            if v.node.kind == "same" and v.node.factor and v.node.factor[0] < 0 and not v.node.weight and not mixed:
                raise self.fail("a difference of two signals may cancel, and the equations have no signs; give the sum")
        n, operands = self.broadcast(views)
        labels, classes, owned, terms = self._labelled(operands)
        order = [x for key in range(n) for x in labels.get(key, ()) if x in owned]
        slot = {label: k for k, label in enumerate(order)}
        dims = [tuple(slot.get(x, classes[x]) for x in labels.get(key, ())) for key in range(n)]
        sources = tuple((node, tuple(slot[x] for x in mine)) for node, mine in terms)
        node = TracedNode("add", [classes[x] for x in order], self.where, sources)
        if all(v.dims == views[0].dims for v in views) and len(views) == 2:
            a, b = (v.node.entries() for v in views)
            node.entry = tuple((r, total_of(f, g)) for r, f in a for s, g in b if r is s)
            for root, f in node.entry:
                if name := classified(f):
                    return self.function(name, View(root, views[0].dims), f)
        return View(node, dims)

    # slices -----------------------------------------------------------------------------------------------------

    def part(self, node: TracedNode, slot: int, k: int, sizes: Sequence[Sizes]) -> TracedNode:
        """Part k of a slot, of these sizes: pushed down to the tensors.

        Raises:
            Unreadable: of what mixes the parts.
        """
        mark = ("part", slot, k, tuple(sizes))
        if mark in node.cache:
            return node.cache[mark]
        start = sum(s[0] for s in sizes[:k])
        if node.kind == "param":
            index = node.indices[slot].root()
            key = (*min(index.leaves, key=str), "part", k)
            if key in self.splits:
                raise self.fail("a part of a parameter is taken apart; use a parameter for each part")
            new = IndexClass(sizes[k], key)
            self.sizes[key] = tuple(sizes[k])
            indices = [new if j == slot else x for j, x in enumerate(node.indices)]
            value = node.value.narrow(slot, start, sizes[k][0])
            made = node.but(indices=indices, name=f"{node.name}[{k}]", value=value)
        elif node.kind == "contract":
            label, labels, sources = node.out[slot], dict(node.labels), []
            for f, mine in node.sources:
                if label in mine:
                    f = self.part(f, mine.index(label), k, sizes)
                    labels[label] = f.indices[mine.index(label)]
                sources.append((f, mine))
            indices = [labels[x] for x in node.out]
            made = node.but(sources=tuple(sources), labels=labels, indices=indices, entry=(), call=None)
        elif (
            node.kind in ("add", "func", "same", "shift")
            and not self._beside(node, slot, sizes)
            and slot not in node.over
            and not (node.kind in ("same", "shift") and not node.entry)
        ):
            parts = [(self.part(t, m.index(slot), k, sizes) if slot in m else t, m) for t, m in node.sources]
            new = next(t.indices[m.index(slot)] for t, m in parts if slot in m)
            indices = [new if j == slot else x for j, x in enumerate(node.indices)]
            made = node.but(sources=tuple(parts), indices=indices, entry=(), call=None)
            if node.kind in ("same", "shift"):
                root, known = node.entry[0]
                made.exact = known if root is node.source else None
                if made.exact is None:
                    raise self.fail("a slice along an axis that grows, of a product with constants; slice before")
        elif self._beside(node, slot, sizes):
            made, places = node.sources[k]
            out = tuple(range(len(node.indices)))
            if places != out:
                of = dict(zip(places, made.indices, strict=True))
                made = TracedNode("contract", [of[x] for x in out], self.where, ((made, places),), out, of)
        elif node.kind == "pick":
            inner = slot + (slot >= node.slot)
            source = self.part(node.source, inner, k, sizes)
            made = node.but(
                sources=((source, node.sources[0][1]),), indices=_without(source.indices, node.slot), call=None
            )
        else:
            raise self.fail(f"a slice along an axis that grows, of a {node.kind} {node.name}".rstrip())
        if made is not node.cache.get(mark):
            made.part = (node, slot, k, len(sizes))
            node.cache[mark] = made
        return made

    def _beside(self, node: TracedNode, slot: int, sizes: Sequence[Sizes]) -> bool:
        """Are the parts of a slot what was put beside each other?"""
        whole = set(range(len(node.indices)))
        apart = node.kind == "cat" and node.slot == slot
        apart = apart or (node.name == "blend" and not node.note and slot == len(whole) - 1)
        return apart and len(node.sources) == len(sizes) and all(set(labels) == whole for _, labels in node.sources)

    def narrowed(
        self, x: View, d: int, start: Sizes, stop: Sizes, sizes: Sequence[Sizes] | None = None, k: int = 0
    ) -> View:
        """x[start:stop] along a dimension; bounds at every build."""
        entries, whole = x.dims[d], x.sizes(d, self.builds)
        new = tuple(b - a for a, b in zip(start, stop, strict=True))
        if new == whole or not entries:
            return x
        if 0 in new:
            raise self.fail("an empty slice")
        if len(entries) > 1:  # along the first of several
            inner = tuple(prod(c) for c in zip(*(x.index(e).sizes for e in entries[1:]), strict=True))
            if all(a % i == 0 and n % i == 0 for a, n, i in zip(start, new, inner, strict=True)):
                y = View(x.node, [*x.dims[:d], entries[:1], entries[1:], *x.dims[d + 1 :]])
                a, b = (tuple(v // i for v, i in zip(side, inner, strict=True)) for side in (start, stop))
                y = self.narrowed(y, d, a, b)
                return View(y.node, [*y.dims[:d], y.dims[d] + y.dims[d + 1], *y.dims[d + 2 :]])
            if not all(x.index(e).fixed for e in entries):
                raise self.fail("a slice across two axes; take the dimension apart first")
            return self.entries_of(x, d, torch.arange(start[0], stop[0]))
        e, index = entries[0], x.index(entries[0])
        if not isinstance(e, int):
            return View(x.node, [*x.dims[:d], () if set(new) == {1} else (IndexClass(new),), *x.dims[d + 1 :]])
        if set(new) == {1} and not (sizes and index.fixed):
            y = self.pick(x, d, start)
            return View(y.node, [*y.dims[:d], (), *y.dims[d:]])
        if index.fixed:
            try:
                return self._parted(x, d, e, start, stop, sizes, k)
            except Unreadable:
                return self.entries_of(x, d, torch.arange(start[0], stop[0]))
        return self._parted(x, d, e, start, stop, sizes, k)

    def _parted(
        self, x: View, d: int, slot: int, start: Sizes, stop: Sizes, sizes: Sequence[Sizes] | None, k: int
    ) -> View:
        whole, new = x.sizes(d, self.builds), tuple(b - a for a, b in zip(start, stop, strict=True))
        if sizes is None:
            rest = tuple(w - n for w, n in zip(whole, new, strict=True))
            if all(w % n == 0 and a % n == 0 for a, n, w in zip(start, new, whole, strict=True)):
                sizes, k = [new] * (whole[0] // new[0]), start[0] // new[0]
            elif not any(start):
                sizes, k = [new, rest], 0
            elif stop == whole:
                sizes, k = [start, new], 1
            else:
                raise self.fail("a slice from the middle of an axis; split it into parts")
        return View(self.part(x.node, slot, k, sizes), x.dims)

    def entries_of(self, x: View, d: int, at: Tensor) -> View:
        """Entries of a Theta(1) dimension: of the size of the whole."""
        if any(not x.index(e).fixed for e in x.dims[d]):
            raise self.fail("entries of an axis that grows are chosen by an index")
        e, slots = x.dims[d], range(len(x.node.indices))
        if not e:
            return x
        keep = e[0] if isinstance(e[0], int) else None
        if keep is None or len(e) > 1:
            raise self.fail("entries of several axes at once")
        indices = [IndexClass((len(at),) * self.builds) if k == keep else i for k, i in enumerate(x.node.indices)]
        node = TracedNode("same", indices, self.where, ((x.node, tuple(slots)),), name="entries")
        node.exact = lambda v: v.index_select(keep, at)
        count, rest = divmod(x.index(keep).sizes[0], len(at))
        node.part = None if rest else (x.node, keep, 0, count)
        return View(node, x.dims)

    def stepped(self, x: View, d: int, first: int, step: int) -> View:
        """x[first::step] along a dimension: one of the interleaved parts of a parameter's slot."""
        e, whole = x.dims[d], x.sizes(d, self.builds)
        if len(e) == 1 and x.index(e[0]).fixed:
            return self.entries_of(x, d, torch.arange(first, whole[0], step))
        if len(e) != 1 or not isinstance(e[0], int) or any(n % step for n in whole):
            raise self.fail("a slice with a step, across axes")
        index = x.index(e[0])
        raise self.split(index, tuple(n // step for n in whole))

    def pick(self, x: View, d: int, at: Sizes) -> View:
        """One entry along a dimension, which goes."""
        entries, dims = x.dims[d], [*x.dims[:d], *x.dims[d + 1 :]]
        if len(entries) > 1:
            raise self.fail("one entry of several axes at once; take the dimension apart first")
        if not entries or not isinstance(entries[0], int):
            return View(x.node, dims)
        slot = entries[0]
        mark = ("pick", slot, tuple(at))
        if mark not in x.node.cache:
            indices = _without(x.node.indices, slot)
            slots = tuple(range(len(x.node.indices)))
            x.node.cache[mark] = TracedNode("pick", indices, self.where, ((x.node, slots),), slot=slot, at=tuple(at))
        down = [tuple(e - (e > slot) if isinstance(e, int) else e for e in dim) for dim in dims]
        return View(x.node.cache[mark], down)

    def regrouped(self, x: View, shapes: Sequence[Sequence[int]]) -> View:
        """view and reshape."""
        entries = [e for dim in x.dims for e in dim]
        dims, at = [], 0
        for sizes in zip(*shapes, strict=True):
            dim: list[int | IndexClass] = []
            have: Sizes = (1,) * self.builds
            while have != sizes and set(sizes) != {1}:
                if at >= len(entries):
                    raise self.fail(f"a view as {tuple(shapes[0])} does not fit")
                index = x.index(entries[at])
                need = tuple(n // h if n % h == 0 else 0 for n, h in zip(sizes, have, strict=True))
                if all(n and n % m == 0 for n, m in zip(need, index.sizes, strict=True)):
                    dim.append(entries[at])
                    have = tuple(h * m for h, m in zip(have, index.sizes, strict=True))
                    at += 1
                elif all(n and m % n == 0 for n, m in zip(need, index.sizes, strict=True)):
                    if isinstance(entries[at], int) or index.leaves:
                        raise self.split(index, need)
                    rest = tuple(m // n for n, m in zip(need, index.sizes, strict=True))
                    entries[at : at + 1] = [IndexClass(need), IndexClass(rest)]
                else:
                    raise self.fail(f"a view as {tuple(shapes[0])} cuts an axis of sizes {index.sizes}")
            dims.append(tuple(dim))
        if at != len(entries):
            raise self.fail(f"a view as {tuple(shapes[0])} does not fit")
        return View(x.node, dims)


def _numbers(call: TorchCall) -> list[int]:
    return [r.number for r in refs((call.arguments, call.keywords))]


def _tensors(numbers: Vector) -> list[Tensor]:
    return [torch.tensor(float(v), dtype=torch.float64) for v in numbers]


def _without(indices: list[IndexClass], slot: int) -> list[IndexClass]:
    return [x for k, x in enumerate(indices) if k != slot]


def _bare(node: TracedNode) -> TracedNode:
    """The node below those of its size."""
    while node.kind == "same" and len(node.indices) == len(node.source.indices):
        node = node.source
    return node


def _views(tree: Any) -> list[View]:
    if isinstance(tree, View):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [v for x in tree for v in _views(x)] if isinstance(tree, list | tuple) else []
