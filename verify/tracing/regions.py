"""What a tensor is of another one, told by asking, whatever calls lie between: ``Regions``.

Law: x *dominates* y where every path from a parameter or an input to y passes x. Then y = g(x), and g is run again on
other values. It is known where it acts entry by entry, as a function of the language does, or along some dimensions, as
a line of ``ALONG`` does, at three scales and every build; the farthest x for which it is known wins. Only tensors that
the output needs are read. Read next: ``entries.py``, ``reading.py`` (who asks), ``functions.py`` (what is read).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .building import in_float64
from .calls import plain, ruled
from .entries import classified, fitted, generic, seen
from .nodes import Vector
from .recording import STOPS, Recording, Ref, TorchCall, map_leaves, refs

ROOT = -1
BREAKS = STOPS | {"topk"}
"""Calls that no function passes: of a gradient, and of what is recorded in another order than it is made."""
BENT = {"prelu", "pow"}
"""Calls with a rule that are functions of one tensor where the other one is constant."""
CLOSE = 1e-9
BENDS = (-1e3, -40, -0.1, -0.01, -1e-3, 1e-3, 0.01, 0.1, 40, 1e3)
"""Values beside the usual ones at which a function of every entry is asked for."""
LENGTHS = tuple(100.0 * (-2) ** k for k in range(21))
"""Sizes of values between which a bound on a length is seen: lengths grow with the root of the number of entries."""
LEAST = 0.1
"""The least mean of the diagonal of a map, by its size, so that what it makes of a signal meets that signal."""
NEAR = 5e-3
"""How much the size of a norm may change with that of its argument: what guards a division is in it."""
Along = Callable[[Tensor, Any], Tensor]


def _rms(v: Tensor, d: Any) -> Tensor:
    return v * v.square().mean(d, keepdim=True).rsqrt()


def _centred(v: Tensor, d: Any) -> Tensor:
    return v - v.mean(d, keepdim=True)


def _normed(v: Tensor, d: Any) -> Tensor:
    return v / v.sum(d, keepdim=True)


SCALES = {"rmsnorm": (1, 30, 1e3, LENGTHS[-1]), "layernorm": (1, 30, 1e3, LENGTHS[-1]), "centre": (0.5, 1, 30),
          "softmax": (0.5, 1, 2), "normed": (0.5, 1, 30), "normed_sigmoid": (0.5, 1, 3)}  # fmt: skip
"""Functions along dimensions, and the sizes of the values at which each is asked for."""
ALONG: dict[str, Along] = {
    "rmsnorm": _rms,
    "layernorm": lambda v, d: _rms(_centred(v, d), d),
    "centre": _centred,
    "softmax": lambda v, d: (v - v.amax(d, keepdim=True)).exp() / (v - v.amax(d, keepdim=True)).exp().sum(d, True),
    "normed": _normed,
    "normed_sigmoid": lambda v, d: _normed(v.sigmoid(), d),
}


class Dominators:
    """The tree of dominators of a recording.

    Attributes:
        parent: of every tensor that is no constant, the nearest one that it is a function of alone, or ``ROOT``.
        producer: the place among the calls of the one that makes a tensor.
    """

    def __init__(self, run: Recording) -> None:
        self.run, self.parent, self.depth = run, {ROOT: ROOT}, {ROOT: 0}
        self.producer: dict[int, int] = {}
        held: set[int] = set()
        for number in (*run.parameters, *run.inputs):
            self._put(number, ROOT)
        for k, call in enumerate(run.calls):
            read = {r.number for r in refs((call.arguments, call.keywords))}
            live = [n for n in read if n in self.parent]
            live = [] if run.frozen.issuperset(live) else live  # of frozen tensors alone (a table of angles)
            stops = call.name in BREAKS or call.stale or (not call.held and not held.isdisjoint(live))
            for number in {r.number for r in refs(call.result)} - read:
                if live:
                    self._put(number, ROOT if stops else self._meet(live))
                self.producer[number] = k
                if call.held:
                    held.add(number)

    def _put(self, number: int, parent: int) -> None:
        self.parent[number], self.depth[number] = parent, self.depth[parent] + 1

    def _meet(self, numbers: Sequence[int]) -> int:
        """The nearest tensor that dominates all of these, or is each of them."""
        a = numbers[0]
        for b in numbers[1:]:
            while a != b:
                if self.depth[a] < self.depth[b]:
                    a, b = b, a
                a = self.parent[a]
        return a

    def chain(self, number: int) -> list[int]:
        """The tensors that one is a function of, the farthest first."""
        found: list[int] = []
        while (number := self.parent.get(number, ROOT)) != ROOT:
            found.insert(0, number)
        return found

    def live(self, call: TorchCall) -> list[int]:
        """What a call reads that is no constant, each as often as it is read."""
        return [r.number for r in refs((call.arguments, call.keywords)) if r.number in self.parent]

    def between(self, x: int, y: int) -> list[int]:
        """The places of the calls that make one tensor of another one, in order."""
        found, open_ = set[int](), [y]
        while open_:
            if (number := open_.pop()) != x and (k := self.producer[number]) not in found:
                found.add(k)
                open_ += self.live(self.run.calls[k])
        return sorted(found)


@dataclass(frozen=True)
class Map:
    """One tensor of a recording as a function of another one.

    Attributes:
        calls: those between, of one run.
    """

    run: Recording
    x: int
    y: int
    calls: tuple[TorchCall, ...]

    @property
    def value(self) -> Tensor:
        """The argument that was recorded."""
        return self.run.tensors[self.x]

    def __call__(self, v: Tensor) -> Tensor:
        """The result for another argument, whose shape is that of the recorded one."""
        made = {self.x: v}
        for call in self.calls:
            results = call.rerun(lambda n: made[n] if n in made else self.run.tensors[n])
            made.update((r.number, z) for r, z in zip(refs(call.result), results, strict=False))
        return made[self.y]

    def entrywise(self, v: Tensor) -> Tensor:
        """The same where it acts entry by entry, of an argument of any shape."""
        shape, n = self.value.shape, self.value.numel()
        if v.shape == shape:
            return self(v)
        whole = torch.cat([v.flatten(), v.new_zeros(-v.numel() % n)]).reshape(-1, *shape)
        return torch.stack([self(part) for part in whole]).flatten()[: v.numel()].reshape(v.shape)

    def mark(self) -> tuple[Any, ...]:
        """What tells this function apart from others."""
        names = {self.x: 0}

        def named(ref: Ref) -> Any:
            if ref.number in names:
                return names[ref.number]
            value = self.run.tensors[ref.number]
            return tuple(value.shape), value.detach().contiguous().view(-1).numpy().tobytes()

        marks = []
        for call in self.calls:
            marks.append((call.name, repr(map_leaves((call.arguments, call.keywords), Ref, named))))
            for r in refs(call.result):
                names.setdefault(r.number, len(names))
        return tuple(self.value.shape), names[self.y], *marks


@dataclass(frozen=True)
class ToldFunction:
    """What a tensor is of another one.

    Attributes:
        maps: at every build. name: of the function; two stand for their sum; ``same`` is what has the size of x.
        over: dimensions along which it goes; none, where it acts entry by entry.
        numbers, middle: what it is multiplied by, at every build, and what is added.
        rank: 0 where its values are those of the function, 1 or 2 where it has the powers of one or of a sum of two, 3
            where its values are those of one where they were recorded, 4 where it is none; then ``why``.
    """

    maps: tuple[Map, ...]
    name: str = ""
    over: tuple[int, ...] = ()
    numbers: Vector = (1.0,)
    middle: float = 0.0
    rank: int = 0
    why: str = ""

    @property
    def x(self) -> int:
        """The tensor that it is a function of."""
        return self.maps[0].x

    def exact(self, v: Tensor) -> Tensor:
        """Its value, without the number and what is added."""
        g = self.maps[0]
        with in_float64():
            y = g(v) if self.over else g.entrywise(v)
        return (y - self.middle) / self.numbers[0]


class Regions:
    """What the tensors of recordings of one module are of others.

    Attributes:
        needed: the tensors that the output is read from. found: by tensor, what it is of another one.
    """

    def __init__(self, runs: Sequence[Recording]) -> None:
        self.runs, self.tree = runs, Dominators(runs[0])
        self.left: set[int] = set()
        self.asked: dict[Any, ToldFunction | None] = {}
        self.plan()

    def leave(self, number: int) -> None:
        """Lets a tensor be read from the call that makes it, whatever it is of others."""
        self.left.add(number)
        self.plan()

    def plan(self) -> None:
        """Goes back from the output: what is needed, and what it is made of."""
        run = self.runs[0]
        self.needed, self.found = {run.output.number}, dict[int, ToldFunction]()
        for call in reversed(run.calls):
            read = {r.number for r in refs((call.arguments, call.keywords))}
            for number in {r.number for r in refs(call.result)} & self.needed - read:
                known = None if number in self.left else self.of(number)
                if known is not None:
                    self.found[number] = known
                self.needed |= read if known is None else {known.x}

    def of(self, y: int) -> ToldFunction | None:
        """What a tensor is of the farthest one for which this is known."""
        run = self.runs[0]
        if y not in self.tree.producer or not run.tensors[y].is_floating_point():
            return None
        last = run.calls[self.tree.producer[y]]
        if self._plain([last]) and (not (own := self.tree.live(last)) or self._alike(own[0])):
            return None
        chain = [x for x in self._alike(y) if not self._plain([run.calls[k] for k in self.tree.between(x, y)])]
        answers = [known for x in chain if (known := self.known(x, y)) is not None]
        best = min(answers, key=lambda known: known.rank, default=None)
        if best is None or (best.rank > 1 and ruled(last.name) and all(map(self._readable, self.tree.live(last)))):
            return None
        for near in (k for k in answers if (k.rank, k.name, k.over) == (best.rank, best.name, best.over)):
            if self._plain([run.calls[k] for k in self.tree.between(best.x, near.x)]):  # numbers, other shapes
                best = near
        return best

    def _alike(self, y: int) -> list[int]:
        """The tensors of its shape at every build that a tensor is a function of, the farthest first."""
        shapes = [run.tensors[y].shape for run in self.runs]
        return [x for x in self.tree.chain(y) if [run.tensors[x].shape for run in self.runs] == shapes]

    def _plain(self, calls: Sequence[TorchCall]) -> bool:
        """Has each of some calls a rule, and does it read one tensor, which is real?"""
        found = self.runs[0].tensors
        real = (not any(found[r.number].is_complex() for r in refs((c.arguments, c.result))) for c in calls)
        return all(
            ruled(call.name) and plain(call.name) not in BENT and len(self.tree.live(call)) < 2 for call in calls
        ) and all(real)

    @cache  # noqa: B019 - as long as the recordings
    def _readable(self, number: int) -> bool:
        """Is a tensor read without functions that are none of the language?"""
        if number not in self.tree.producer or number not in self.tree.parent:
            return True
        call = self.runs[0].calls[self.tree.producer[number]]
        known = self.of(number)
        if known is not None:
            return known.rank < 4 and self._readable(known.x)
        return ruled(call.name) and all(map(self._readable, self.tree.live(call)))

    def map(self, x: int, y: int) -> tuple[Map, ...]:
        """One tensor as a function of another one, at every build."""
        places = self.tree.between(x, y)
        return tuple(Map(run, x, y, tuple(run.calls[k] for k in places)) for run in self.runs)

    def known(self, x: int, y: int) -> ToldFunction | None:
        """What a tensor is of another one that dominates it; None: not known."""
        if not self.runs[0].tensors[x].is_floating_point():
            return None
        maps = self.map(x, y)
        mark = tuple(g.mark() for g in maps)
        if mark not in self.asked:
            try:
                with in_float64():
                    self.asked[mark] = _told(maps)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError):
                self.asked[mark] = None
        known = self.asked[mark]
        return None if known is None else replace(known, maps=maps)

    def keeps(self, call: TorchCall | None) -> bool:
        """Has a sum of two functions of one signal all the powers that they have?"""
        read = [] if call is None else self.tree.live(call)
        if len(read) != 2 or not (chain := self.tree.chain(next(refs(call.result)).number)):  # type: ignore[union-attr]
            return False
        x, y = chain[-1], next(refs(call.result)).number  # type: ignore[union-attr]
        v = drawn(self.runs[0].tensors[x], 3)
        with in_float64():
            maps = [self.map(x, z)[0] for z in (*read, y)]
            if any(g(v).shape != v.shape or reach(g, v, g(v)) != () for g in maps):
                return False
            found = [seen(g.entrywise).get("powers") for g in maps]
        one, two, total = (z if isinstance(z, frozenset) else None for z in found)
        return None not in (one, two, total) and one | two == total  # type: ignore[operator]


def drawn(like: Tensor, seed: int) -> Tensor:
    """A random tensor of a shape."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reach(g: Map, v: Tensor, y: Tensor) -> tuple[int, ...] | None:
    """The dimensions along which an entry of the argument reaches others; None: it is not told by them."""
    other, coin = drawn(v, 11), torch.Generator().manual_seed(12)
    mask = torch.rand(v.shape, generator=coin) < 0.5
    if _alike_at(mask, g(torch.where(mask, v, other)), y):
        return ()
    found = []
    for d in range(v.dim()):
        kept = torch.rand(v.shape[d], generator=coin) < 0.5
        kept[0], kept[-1] = True, False
        moved = (g(torch.where(kept.reshape([-1 if e == d else 1 for e in range(v.dim())]), v, other)) != y).movedim(
            d, 0
        )
        if v.shape[d] > 1 and bool(moved[kept].any()):
            found.append(d)
    return tuple(found) or None


def _told(maps: tuple[Map, ...]) -> ToldFunction | None:
    g = maps[0]
    v = drawn(g.value, 3)
    y = g(v)
    if y.shape != v.shape or not bool(y.isfinite().all()):
        return None
    over = reach(g, v, y)
    if over is None:
        return None
    return (_turned(maps, over) or _along(maps, over)) if over else _entrywise(maps, v, y)


def _entrywise(maps: tuple[Map, ...], v: Tensor, y: Tensor) -> ToldFunction | None:
    """A function that acts entry by entry: the same one at every entry, at every build but for a number."""
    g = maps[0]
    if any(reach(g, s * v, g(s * v)) != () for s in (0.01, 100)) or _bounds_length(g, v):
        return None
    if not _same_everywhere(g, v, y):
        ones = g(torch.ones_like(v))
        return _turned(maps, tuple(d for d in range(v.dim()) if bool((ones.diff(dim=d) != 0).any())))
    if not all(_same_everywhere(h, v := drawn(h.value, 3), h(v)) for h in maps[1:]):
        return None
    known: dict[bytes, Tensor] = {}

    def f(u: Tensor) -> Tensor:
        key = u.numpy().tobytes()
        if key not in known:
            known[key] = g.entrywise(u)
        return known[key]

    at = torch.cat([torch.linspace(-3, 3, 25, dtype=torch.float64), torch.tensor(BENDS, dtype=torch.float64)])
    values = [h.entrywise(at) for h in maps]
    there = torch.stack(values).isfinite().all(0)
    values, at = [z[there] for z in values], at[there]
    if not bool(values[0].any()):
        return None
    slopes = tuple(float(z[-1] / at[-1]) for z in values)
    if all(torch.allclose(z, c * at) for z, c in zip(values, slopes, strict=True)):
        return ToldFunction(maps, "same", numbers=_powers(slopes))
    if all(torch.allclose(z, c * at.abs()) for z, c in zip(values, slopes, strict=True)):
        return ToldFunction(maps, "abs", numbers=_powers(slopes), rank=1)
    numbers = tuple(float((z * values[0]).sum() / values[0].square().sum()) for z in values)
    if not all(torch.allclose(z, c * values[0], rtol=CLOSE) for z, c in zip(values, numbers, strict=True)):
        return ToldFunction(maps, rank=4, why="its values change with the sizes; no equation says this")
    alike = max(abs(c - 1) for c in numbers) < CLOSE
    found = fitted(f)
    if found and (alike or found[2] == 0):
        return ToldFunction(maps, found[0], numbers=tuple(found[1] * c for c in numbers), middle=found[2])
    if not alike:
        return ToldFunction(maps, rank=4, why="a power of the sizes times a function that is none of the equations")
    if name := classified(f, g.calls[-1].name):
        return ToldFunction(maps, name, rank=1)
    middle = float(f(torch.zeros(1, dtype=torch.float64)))
    if name := classified(lambda u: f(u) - middle, g.calls[-1].name):
        return ToldFunction(maps, name, middle=middle, rank=1)
    if generic(f):
        return ToldFunction(maps, "silu and tanh", middle=middle, rank=2)
    ends = [(float(h.value.min()), float(h.value.max())) for h in maps]
    at = torch.linspace(min(a for a, _ in ends), max(b for _, b in ends), 101, dtype=torch.float64)
    for name, there in (("same", at), ("relu", at.relu())):
        if torch.allclose(f(at), there):
            return ToldFunction(maps, name, rank=3)
    return ToldFunction(maps, rank=4, why="no function of the equations has its values; give them with --network")


def _alike_at(mask: Tensor, one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same entries where the mask is true, also where these are no numbers."""
    return bool(((one == other) | (one.isnan() & other.isnan()))[mask].all())


def _bounds_length(g: Map, v: Tensor) -> bool:
    """Return whether what a function makes of large entries is another value where they are alone: a bound on a norm
    or on a sum, which no entry of the usual size reaches, and which wider tensors do."""
    alone = torch.rand(v.shape, generator=torch.Generator().manual_seed(14)) < 1 / 16
    return len(g.calls) > 1 and not all(_alike_at(alone, g(s * v.abs() * alone), g(s * v.abs())) for s in LENGTHS)


def _same_everywhere(g: Map, v: Tensor, y: Tensor) -> bool:
    """Return whether a function that acts entry by entry is the same one at every entry: y is its value at v."""
    order = torch.randperm(v.numel(), generator=torch.Generator().manual_seed(13))
    return torch.allclose(g(v.flatten()[order].reshape(v.shape)).flatten(), y.flatten()[order])


def _turned(maps: tuple[Map, ...], over: tuple[int, ...]) -> ToldFunction | None:
    """A linear map that keeps lengths up to a number. Law: what it makes of a signal meets that signal as it does
    itself if the mean of its diagonal is above zero (rotary positions); else it is ``mixed``, of the size of the
    signal alone, and ``signed`` if the mean of what it makes of ones is not."""
    numbers, same, signed = [], True, False
    for g in maps:
        probes = [drawn(g.value, seed) for seed in range(20, 28)]
        made = [g(v) for v in probes]
        sizes = [float(y.norm() / v.norm()) for v, y in zip(probes, made, strict=True)]
        linear = torch.allclose(g(probes[0] + 3 * probes[1]), made[0] + 3 * made[1])
        if not linear or max(sizes) > (1 + 1e-6) * min(sizes):
            return None
        numbers.append(sizes[0])
        meets = sum(float((y.double() * v).sum()) for v, y in zip(probes, made, strict=True))
        same = same and meets > LEAST * sum(c * float(v.square().sum()) for v, c in zip(probes, sizes, strict=True))
        signed = signed or float(g(torch.ones_like(probes[0])).mean()) <= LEAST * sizes[0]
    name = "signed" if signed else "turned" if same else "mixed"
    return ToldFunction(maps, name, over, _powers(numbers), rank=int(name != "turned"))


def _multiple(y: Tensor, z: Tensor, near: float) -> float | None:
    """Return the number times which one tensor is another one, up to a relative difference; None if there is none."""
    c = float((y * z).sum() / (z * z).sum())
    return c if torch.allclose(y, c * z, rtol=near, atol=near * 1e-2 * float(y.abs().max())) else None


def _along(maps: tuple[Map, ...], over: tuple[int, ...]) -> ToldFunction | None:
    """A line of ``ALONG``, at three scales and every build."""
    along: Any = over[0] if len(over) == 1 else over
    for name, f in ALONG.items():
        numbers, near = [], CLOSE if name == "centre" else NEAR  # a mean that is left is the larger, the wider it is
        for g in maps:
            at = [s * drawn(g.value, 5 + k) for k, s in enumerate(SCALES[name])]
            at = [v.abs() for v in at] if name == "normed" else at
            found = [_multiple(g(v), f(v, along), near) for v in at]
            if None in found or max(found) - min(found) > near * abs(found[-1]):  # type: ignore[type-var, operator, arg-type]
                break
            numbers.append(found[-1])
        else:
            return ToldFunction(
                maps, name, over, _powers(_biased(maps, over, numbers) if name == "layernorm" else numbers)
            )
    return None


def _biased(maps: Sequence[Map], over: Sequence[int], numbers: Sequence[Any]) -> Vector:
    """Numbers at every build without what a spread of one degree of freedom less makes of them."""
    entries = [torch.Size(g.value.shape[d] for d in over).numel() for g in maps]
    ways = [tuple(c * (n / (n - 1)) ** p for c, n in zip(numbers, entries, strict=True)) for p in (0, 0.5, -0.5)]
    return min(ways, key=_off)


def _powers(numbers: Sequence[Any]) -> Vector:
    """Numbers at every build; close to one, one."""
    return (1.0,) * len(numbers) if max(abs(c - 1) for c in numbers) < 1e-6 else tuple(numbers)


def _off(numbers: Vector) -> float:
    """How far numbers are from powers of a size that doubles."""
    powers = [4 * torch.tensor(c / numbers[0]).abs().log2() for c in numbers]
    return float(sum(abs(p - p.round()) for p in powers)) + 1e-3 * abs(numbers[0] - 1)
