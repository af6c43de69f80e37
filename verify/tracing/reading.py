"""Reads recordings of one module at several sizes as one graph: ``Reader``.

The recordings have the same calls at other sizes. Read next: ``indices.py`` (axes and slices), ``rules.py`` (a row for
each call), ``models.py`` (is the reading true?).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError

from .entries import classified
from .graph import LESS, NUMBER, Dims, Entrywise, IndexClass, TracedNode, Vector, View, both, then, times, whole_of
from .indices import Indices, Splits, constant, differs, fixed
from .recording import Number, Recording, Ref, TorchCall, refs

GATES = {"softmax": "softmax", "softmax_topk": "topk_softmax", "topk_softmax": "topk_softmax"} | {
    name: f"normed_{name}" for name in ("sigmoid", "topk_sigmoid", "topk")
}
"""Functions of gates, and what they are when they are divided by their sum."""
TINY = 1e-3
"""A constant that is added and is below this guards a division."""
ROUGHLY = 0.1
"""How much the largest entry of a table of constants may change where an axis doubles, and count as alike: any power
changes it by more. That of rotary angles comes to 1 from below."""
LAW = 6
"""Steps before a signal that its law looks at."""
Operand = tuple[View, Sequence[Any]]
"""A tensor, and a key for each of its dimensions."""


class Reader(Indices):
    """One reading. apply: the table of rules.

    Attributes:
        call, calls: what is read, at the first build and at all. name: of the call in the table.
        shapes, values: of its results, by result, then by build.
        left_out: the largest entries of constants, and where they multiply.
        fixed: constants of the equations, by their entries. means: slots of a node along which another is its mean.
        frozen: constants that differ along an axis that grows, by their entries.
    """

    def __init__(self, runs: Sequence[Recording], splits: Splits, apply: Callable[[Reader, list[Any], Any], Any]):
        super().__init__(runs, splits)
        self.apply = apply
        self.views: dict[int, View] = {}
        self.read_calls: list[tuple[TorchCall, Ref, View]] = []
        self.one_hot: dict[int, TracedNode] = {}
        self.left_out: set[tuple[str, float]] = set()
        self.means: dict[tuple[int, int], tuple[int, ...]] = {}
        self.frozen: dict[bytes, View] = {}
        self.name = ""
        self.calls: Sequence[TorchCall] = ()
        self.shapes: list[list[tuple[int, ...]]] = []
        self.values: list[list[Tensor]] = []

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
            self.call, self.calls, self.made = calls[0], calls, 0
            self._step(calls)
        self.call = None
        return self.view(first.output)

    def view(self, ref: Ref) -> View:
        """The tensor of this number; one that no call made is a constant."""
        if ref.number not in self.views:
            self.views[ref.number] = self.constant([run.tensors[ref.number] for run in self.runs])
        return self.views[ref.number]

    def _bound(self, trees: Sequence[Any]) -> Any:
        """Arguments at all builds: tensors are views, numbers that change are ``Number``."""
        x = trees[0]
        if isinstance(x, Ref):
            return self.view(x)
        if isinstance(x, list | tuple):
            if len({len(t) for t in trees}) > 1:
                raise self.fail("takes a list that is longer at other sizes; take a tensor, or loop over M or L")
            return type(x)(map(self._bound, zip(*trees, strict=True)))
        if isinstance(x, dict):
            return {k: self._bound([t[k] for t in trees]) for k in x}
        return Number(trees) if isinstance(x, int | float) and len(set(trees)) > 1 else x

    def vector(self, x: Any) -> Any:
        """A number at every build."""
        return x if isinstance(x, Number) else self.same_everywhere(x)

    def constants(self, first: int = 0) -> list[View]:
        """The results of the call, but the first ones, as constants."""
        return [self.constant(v) for v in self.values[first:]]

    def operand(self, x: Any) -> View:
        """What is added or multiplied: a number is a constant."""
        return x if isinstance(x, View) else self.numbers(self.vector(x))

    def numbers(self, numbers: Sequence[float]) -> View:
        """A number at every build as a constant."""
        return self.constant([torch.tensor(float(v), dtype=torch.float64) for v in numbers])

    def _step(self, calls: Sequence[TorchCall]) -> None:
        call = calls[0]
        if call.stale:  # the values of now are not known
            raise self.fail("reads what was written in place through a view; write whole tensors, or torch.cat")
        results, read = list(refs(call.result)), [self.view(r) for r in refs((call.arguments, call.keywords))]
        self.values = [[run.tensor(r) for run in self.runs] for r in results]
        self.shapes = [[tuple(v.shape) for v in values] for values in self.values]
        if all(v.node.kind == "const" for v in read):
            self.views |= {r.number: self.constant(v) for r, v in zip(results, self.values, strict=True)}
            return
        if any(v.node.kind == "pieces" for v in read[call.name in ("__setitem__", "__getitem__") :]):
            raise self.fail("reads a tensor of which parts alone are written; torch.cat its parts")
        args = list(self._bound([c.arguments for c in calls]))
        keywords = self._bound([c.keywords for c in calls])
        args += [keywords.pop(key) for k, key in enumerate(("input", "other")) if key in keywords and len(args) == k]
        try:
            made = self.apply(self, args, keywords)
        except UsageError:  # what is made of the input alone, and does not grow, is an input
            if not all(v.node.given for v in read) or any(len({*shapes}) > 1 for shapes in self.shapes):
                raise
            made = self.constants()
        self._kept(call, results, made)
        for k, (r, view) in enumerate(zip(results, made if isinstance(made, list) else [made], strict=False)):
            if view.node.call is None:
                view.node.call = (*call.key, k)
            self.views[r.number] = view
            self.read_calls.append((call, r, view))

    def _kept(self, call: TorchCall, results: Sequence[Ref], made: Any) -> None:
        """A sum is no smaller than rounding leaves of its terms: signs are in no equation."""
        if isinstance(made, View) and made.node.kind == "add":
            terms = (self.runs[0].tensors.get(r.number) for r in refs((call.arguments, call.keywords)))
            size = [float(x.abs().max()) for x in terms if x is not None and x.numel()]
            got = float(self.runs[0].tensors[results[0].number].abs().max())
            if size and min(size) > 0 and got <= 1e-9 * max(size):
                raise self.fail("a sum that cancels, and the equations have no signs")

    # products ---------------------------------------------------------------------------------------------------

    def labelled(
        self, operands: Sequence[Operand], out: Sequence[Any]
    ) -> tuple[dict[Any, list[int]], dict[int, IndexClass], list[Any], list[int], Dims]:
        """Labels of every key, their classes, the operands' nodes with labels; and of a result with these keys the
        labels of its slots, and its dimensions."""
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
        order = list(dict.fromkeys(x for key in out for x in labels.get(key, ()) if x in owned))
        slot = {label: k for k, label in enumerate(order)}
        return labels, classes, factors, order, [tuple(slot.get(x, classes[x]) for x in labels.get(k, ())) for k in out]

    def contract(self, operands: Sequence[Operand], out: Sequence[Any], factor: Vector = ()) -> View:
        """An einsum on dimensions. factor: at every build, what multiplies it."""
        labels, classes, factors, order, dims = self.labelled(operands, out)
        ones = [v.node.kind != "const" or all(bool((c == 1).all()) for c in v.node.value) for v, _ in operands]
        if any(v.node.kind == "const" and not any(bool(c.any()) for c in v.node.value) for v, _ in operands):
            return self._zero(operands, out)
        if not all(ones):
            made = [
                v if one else self._constant(v, keys, operands, out)
                for (v, keys), one in zip(operands, ones, strict=True)
            ]
            return self.contract([(v, keys) for v, (_, keys) in zip(made, operands, strict=True)], out, factor)
        owned = {x for _, mine in factors for x in mine}
        for label in (x for key in labels if key not in out for x in labels[key] if x not in owned):
            factor = times(factor, classes[label].root().sizes)  # a sum of what is constant along it
        if not factor and len(factors) == 1 and set(factors[0][1]) == set(order):  # in another order alone
            node, mine = factors[0]
            return View(node, [tuple(mine.index(order[e]) if isinstance(e, int) else e for e in d) for d in dims])
        return View(self.product(factors, tuple(order), classes, factor), dims)

    def _constant(self, x: View, keys: Sequence[Any], operands: Sequence[Operand], out: Sequence[Any]) -> View:
        """A constant of a product; one that differs along an axis that grows, and meets weights alone there, is what a
        frozen tensor makes."""
        grows = {key for d, key in enumerate(keys) if key not in out and not all(x.index(e).fixed for e in x.dims[d])}
        if not differs(self, x) or any(grows & {*ks} and not v.node.weight for v, ks in operands if v is not x):
            return constant(self, x)
        mark, value = x.node.value[0].numpy().tobytes(), x.node.value[0].double()
        if mark not in self.frozen:
            name, found = f"constants_{len(self.frozen) + 1}", list[list[IndexClass]]()
            for d in range(len(x.dims)):
                found.append(self.leaf(("frozen", name, d), x.sizes(d, self.builds)))
            indices = [i for dim in found for i in dim]
            axes = tuple(d for d, dim in enumerate(found) for _ in dim)
            shape = [i.sizes[0] for i in indices]
            node = TracedNode("param", indices, name=name, value=value.reshape(shape), axes=axes, frozen=True)
            places = iter(range(len(indices)))
            self.frozen[mark] = View(node, [tuple(next(places) for _ in dim) for dim in found])
        return self._acting(self.frozen[mark])

    def _zero(self, operands: Sequence[Operand], out: Sequence[Any]) -> View:
        """A product with zeros."""
        sizes = [
            max(v.sizes(d, self.builds) for v, keys in operands for d, mine in enumerate(keys) if mine == key)
            for key in out
        ]
        return self.constant([torch.zeros([n[b] for n in sizes]) for b in range(self.builds)])

    def product(
        self, factors: list[Any], out: tuple[int, ...], classes: dict[int, IndexClass], factor: Vector
    ) -> TracedNode:
        """A contraction; weights that are sums or products of weights, concatenations and added constants are written
        out where they meet others."""
        alone = len(factors) == 1
        for k, (node, mine) in enumerate(factors):
            before, after = factors[:k], factors[k + 1 :]
            scaled = alone and set(mine) == set(out)
            if node.kind == "same" and node.name == "scale" and (scaled or (not alone and node.weight)):
                return self.product([*before, (node.source, mine), *after], out, classes, times(factor, node.factor))
            if node.kind == "add" and node.weight and not alone:
                terms = []
                for term, labels in node.sources:
                    now = [*before, (term, tuple(mine[x] for x in labels)), *after]
                    if any(not any(x in m for _, m in now) for x in out):
                        raise self.fail("weights that are repeated are added to weights; add them to signals")
                    terms.append((self.product(now, out, dict(classes), factor), tuple(range(len(out)))))
                return TracedNode("add", [classes[x] for x in out], self.where, tuple(terms))
            moved = len(node.sources) == 1 and set(node.sources[0][1]) == set(node.out)
            if node.kind == "contract" and (alone or node.weight or moved):
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
        terms = []
        for (part, own), start in zip(node.sources, node.value, strict=True):
            along = [x.root() for x, slot in zip(part.indices, own, strict=True) if slot == node.slot]
            size = [prod(column) for column in zip(*(x.sizes for x in along), strict=True)]
            stop, fresh = tuple(a + n for a, n in zip(start, size, strict=True)), max([*classes, *mine]) + 1
            inner = [label, *range(fresh, fresh + len(along) - 1)]
            now, known, rest = [], classes | dict(zip(inner, along, strict=True)), iter(inner)
            for g, labels in factors[:k] + factors[k + 1 :]:
                if label in labels:
                    at, count = labels.index(label), len(labels)
                    g = self.part(g, at, start, stop)
                    self.align([along, g.indices[at : at + 1 + len(g.indices) - count]])
                    labels = (*labels[:at], *inner, *labels[at + 1 :])
                now.append((g, labels))
            now.insert(k, (part, tuple(next(rest) if x == node.slot else mine[x] for x in own)))
            terms.append((self.product(now, out, known, factor), tuple(range(len(out)))))
        return TracedNode("add", [classes[x] for x in out], self.where, tuple(terms))

    def parted(self, x: View) -> View:
        """A concatenation of equal parts along an axis that grows as a sum: each, times a constant that says which.
        Anything else as it is."""
        node, slot = x.node, x.node.slot
        if node.kind != "cat":
            return x
        whole, n = node.indices[slot].root().sizes, len(node.indices)
        sizes = {View(part, [tuple(_at(own, slot))]).sizes(0, self.builds) for part, own in node.sources}
        count, size = whole[0] // min(sizes)[0], min(sizes)
        if len(sizes) > 1 or whole != tuple(count * k for k in size):
            return x
        terms, (which,) = [], self.fresh(self.same_everywhere(count))
        for (part, own), begin in zip(node.sources, node.value, strict=True):
            one = fixed(self, [torch.eye(count)[begin[0] // size[0]]] * self.builds, [which], [(0,)])
            one.node.name = "which"
            operands = (one, ["which"]), (View(part, [tuple(_at(own, d)) for d in range(n)]), range(n))
            terms.append(self.contract(operands, [*range(slot), "which", *range(slot, n)]))
        y = self.add(terms) if len(terms) > 1 else terms[0]
        of = [*y.dims[:slot], y.dims[slot] + y.dims[slot + 1], *y.dims[slot + 2 :]]
        return View(y.node, [tuple(f for e in dim for f in (of[e] if isinstance(e, int) else [e])) for dim in x.dims])

    def multiply(self, a: View, b: View) -> View:
        """Entry by entry. Known products are functions: x sigmoid(x), x / rms(x); an added constant is written out."""
        if "const" in (a.node.kind, b.node.kind):
            return self.scaled(b, a) if a.node.kind == "const" else self.scaled(a, b)
        if (known := self._one_function(operator.mul, a, b) or self._norm(a, b) or self._norm(b, a)) is not None:
            return known
        for x, y in ((a, b), (b, a)):
            if x.node.kind == "shift":  # (x + c) y = x y + c y
                inner = View(x.node.source, x.dims)
                return self.add([self.multiply(inner, y), self.scaled(y, self.constant(x.node.value))])
        out = self.contract(*broadcast([a, b]))
        if out.node.kind == "contract" and len(out.node.sources) == 2:
            out.node.entry = _entries(operator.mul, a, b)
        return out

    def _one_function(self, op: Callable[[Tensor, Tensor], Tensor], a: View, b: View) -> View | None:
        """A sum or a product of functions of one signal that is a function with a name."""
        for root, f in _entries(op, a, b):
            if name := classified(f):
                return self.function(name, View(root, a.dims), f)
        return None

    def _norm(self, x: View, other: View) -> View | None:
        """x times 1 / rms(x) is a norm; the values of gates divided by their sum are gates."""
        f = other.node
        if f.kind != "func" or f.name not in ("rsqrt", "reciprocal"):
            return None
        value, source = _bare(x.node), _bare(f.source)
        centred = value.name == LESS
        rooted = f.name == "rsqrt"
        if not rooted and source.kind == "func" and source.name == "sqrt":
            rooted, source = True, _bare(source.source)
        if source.kind != "contract" or len(source.sources) != 1 + rooted:
            return None
        mine = source.sources[0][1]
        gone = tuple(k for k, label in enumerate(mine) if label not in source.out)
        if not gone or any(_bare(c) is not value or labels != mine for c, labels in source.sources):
            return None
        if not rooted:
            if value.kind != "func" or value.name not in GATES:
                return None
            gates = value.exact
            assert gates is not None

            def normed(v: Tensor) -> Tensor:
                return (y := gates(v)) / y.sum(gone, keepdim=True)

            return self.function(GATES[value.name], View(value.source, x.dims), normed, value.over, False)
        factor = source.factor[0] if source.factor else 1.0
        size = prod(x.node.indices[k].root().sizes[0] for k in gone)
        scale = next((g for r, g in f.entries() if r is source), None)
        if scale is None or abs(factor * size - 1) > 1e-6:
            return None
        exact = scale
        if centred:
            if value.over != gone:
                return None
            x = View(value.source, x.dims)

        def normal(v: Tensor) -> Tensor:
            v = v - v.mean(gone, keepdim=True) if centred else v
            return v * exact(v.pow(2).sum(gone, keepdim=True) * factor)

        return self.function("layernorm" if centred else "rmsnorm", x, normal, gone, False)

    def scaled(self, x: View, by: View) -> View:
        """A signal times constants: a number that changes with size is a factor, others leave the size as it is."""
        values = [v.double() for v in by.node.value]
        most = tuple(float(v.abs().max()) if v.numel() else 0.0 for v in values)
        if not any(most):
            return self.constant(self.values[0])
        f = _bare(x.node)
        if f.kind == "func" and "topk" in f.name and (entry := self._where_chosen(x, values[0])) is not None:
            return entry
        keys = range(len(x.dims))
        c, first = values[0], most[0]
        alike = all(abs(m - first) <= (1e-6 if c.numel() == 1 else ROUGHLY) * first for m in most)
        if c.numel() == 1:
            number = tuple(float(v) for v in values)
            if not alike:
                return self.contract([(x, keys)], keys, number)
            if number[0] == 1:
                return x
            out = self.same(x, lambda v: v * number[0], entry=lambda u: u * number[0])
            out.node.name, out.node.factor = "scale", number
            return out
        if not alike:
            x = self.contract([(x, keys)], keys, most)
            c, first = c / first, 1.0
        peaks = [m / float(v.square().mean().sqrt()) for m, v in zip(most, values, strict=True)]
        if max(peaks) > 1.2 * min(peaks):
            raise self.fail(
                "multiplies by a constant whose large entries become rarer with size; no equation says this"
            )
        wide = self.spread(x, by)
        if any(n > 1 and not all(isinstance(e, int) for e in wide.dims[d - c.dim()]) for d, n in enumerate(c.shape)):
            return self.contract(*broadcast([constant(self, by), x]))  # of each entry there are several
        note = "" if bool((c == 1).all()) else "a constant factor is left out (rotary angles, masks)"
        self.left_out.add((NUMBER.sub("*", self.where), round(first, 9)))
        return self.same(wide, lambda v: v * c.to(v.dtype), note)

    def _where_chosen(self, x: View, c: Tensor) -> View | None:
        """Values of the chosen where one expert is, or where each is (an identity matrix): that value, or that of each;
        of zeros nothing is left but their dimension."""
        along = [d for d, n in enumerate(c.shape) if n > 1 and bool((c.diff(dim=d) != 0).any())]
        dims, last = [()] * (c.dim() - len(x.dims)) + x.dims, c.dim() - 1
        if not along or not dims[d := along[0]] or not set(c.unique().tolist()) <= {0, 1}:
            return None
        row = c.movedim(d, 0).reshape(c.shape[d], -1)[:, 0]
        if len(along) == 1 and row.sum() == 1:
            y = self.pick(View(x.node, dims), d, self.same_everywhere(int(row.argmax())))
            return View(y.node, [*y.dims[:d], (), *y.dims[d:]])
        if along[1:] == [last] and not dims[last]:
            return View(x.node, [*dims[:d], (), *dims[d + 1 : -1], dims[d]])
        return None

    # functions and sums -----------------------------------------------------------------------------------------

    def spread(self, x: View, like: View) -> View:
        """With the dimensions that a constant has beyond those of the signal."""
        n = max(len(x.dims), len(like.dims))
        dims, extra = ([()] * (n - len(v.dims)) + v.dims for v in (x, like))
        return View(x.node, [d or e for d, e in zip(dims, extra, strict=True)])

    def same(self, x: View, exact: Entrywise, note: str = "", entry: Entrywise | None = None) -> View:
        """A tensor of the size of another. exact: on values in the dimensions of the view."""
        node = x.node.behind("same", self.where, note=note, exact=lambda v: x.taken_back(exact(x.laid_out(v)), v))
        if entry is not None:
            node.entry = tuple((r, then(f, entry)) for r, f in x.node.entries())
        return View(node, x.dims)

    def function(
        self, name: str, x: View, exact: Entrywise, over: tuple[int, ...] = (), entrywise: bool = True
    ) -> View:
        """A function of a signal. exact: on the node's own value."""
        node = x.node.behind("func", self.where, name=name, over=over, exact=exact)
        if entrywise:
            node.entry = tuple((r, then(f, exact)) for r, f in x.node.entries())
        return View(node, x.dims)

    def shifted(self, x: View, by: View) -> View:
        """A signal with a constant added: a mask is left out with a note; any other constant stays in the graph."""
        c = by.node.value[0]
        number = float(c) if c.numel() == 1 else None
        y = self.spread(x, by)
        if number == 0 or not bool(c.any()):
            return y
        entry: Entrywise | None = None if number is None else lambda u: u + number
        out = self.same(y, lambda v: v + c.to(v.dtype), entry=entry)
        if number is not None and 0 < number <= TINY:
            return out
        if c.is_floating_point() and bool(((c == 0) | (c < -1e3)).all()) and bool((c == 0).any()):
            out.node.note = "a mask is left out"
        else:
            spread = differs(self, by)
            if not spread:
                constant(self, by)  # one that equations can say
            out.node.kind, out.node.value, out.node.name = "shift", by.node.value, f"{float(c.abs().max()):g}"
            out.node.frozen = spread
        return out

    def add(self, views: Sequence[View]) -> View:
        """A sum, entry by entry.

        Raises:
            Unreadable: a difference of two signals.
        """
        live = [v for v in views if v.node.kind != "const"]
        if len(live) < len(views):
            (x,), (c,) = live, [v for v in views if v.node.kind == "const"]
            return self.shifted(x, c)
        wholes = {whole_of(v.node) for v in views}
        mixed = len(wholes) == 1 and None not in wholes  # a rotation of one tensor's parts
        signs = [v.node.kind == "same" and v.node.factor and v.node.factor[0] < 0 for v in views]
        if any(signs) and not mixed and len({law(v.node) for v in views}) < len(views):
            raise self.fail("a difference of two signals of one law may cancel, and the equations have no signs")
        if len(views) == 2 and (known := self._one_function(operator.add, *views)) is not None:
            return known
        if any(not v.node.weight for v in views):
            views = [self._acting(v) if v.node.weight and _bare(v.node).kind != "param" else v for v in views]
        _, classes, terms, order, dims = self.labelled(*broadcast(views))
        sources = tuple((node, tuple(order.index(x) for x in mine)) for node, mine in terms)
        node = TracedNode("add", [classes[x] for x in order], self.where, sources)
        if len(views) == 2:
            node.entry = _entries(operator.add, *views)
        return View(node, dims)

    def law(self, node: TracedNode) -> Any:
        """How a signal is made: ``law``."""
        return law(node)

    def _acting(self, x: View) -> View:
        """What is made of weights alone, as it acts on a constant."""
        keys = range(len(x.dims))
        return self.contract([(x, keys), (fixed(self, [torch.ones(1)] * self.builds, [], []), [])], keys)


def broadcast(views: Sequence[View]) -> tuple[list[Operand], range]:
    """Keys of elementwise operands: their dimensions, counted from the last; and those of the result."""
    n = max(len(v.dims) for v in views)
    return [(v, range(n - len(v.dims), n)) for v in views], range(n)


def _at(labels: Sequence[int], label: int) -> list[int]:
    """The slots of a source that have a label."""
    return [k for k, x in enumerate(labels) if x == label]


def _entries(op: Callable[[Tensor, Tensor], Tensor], a: View, b: View) -> Any:
    """Of nodes before both the functions, entry by entry, that a sum or a product is of them."""
    if a.dims != b.dims:
        return ()
    return tuple((r, both(op, f, g)) for r, f in a.node.entries() for s, g in b.node.entries() if r is s)


def law(node: TracedNode, named: bool = True, depth: int = LAW) -> Any:
    """How a signal is made. Behind functions the names of tensors are left open: what two functions of signals that
    are made alike have in common is their mean. A product with a tensor has none of its own."""
    node = _bare(node)
    if node.kind == "param":
        return node.name if named else ""
    named = named and node.kind != "func"
    return node.kind, node.name, tuple(law(c, named, depth - 1) for c in node.children) if depth else ()


def _bare(node: TracedNode) -> TracedNode:
    """The node below those of its size."""
    while node.kind == "same" and node.name != LESS and len(node.indices) == len(node.source.indices):
        node = node.source
    return node
