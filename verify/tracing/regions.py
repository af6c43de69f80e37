"""Recognises by probing that one tensor is a known function of another, whatever calls lie between: ``Regions``.

A tensor x *dominates* y if every path from a parameter or an input to y passes through x. Then y = g(x), where g is
the composition of the recorded calls between them, and g can be run again on other values. These show whether g is an
elementwise function of the language, or one of the functions along dimensions in ``ALONG`` (norms, softmax, ...), at
several scales and at every build. Of all x for which g is known, the earliest is used. For example, the calls of
``x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`` become one rmsnorm. Only tensors that the output needs are
examined. Read next: ``entries.py`` (elementwise functions), ``functions.py`` (the result as equations).
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
"""The root of the tree of dominators: the dominator of a tensor that no single tensor dominates."""
BREAKS = STOPS | {"topk"}
"""Calls that no function may span: those that stop gradients, and top-K, whose recording differs from the call."""
BENT = {"prelu", "pow"}
"""Calls with a rule that are nevertheless nonlinear functions of one tensor if their other argument is constant."""
CLOSE = 1e-9
"""Relative difference up to which values agree."""
BENDS = (-1e3, -40, -0.1, -0.01, -1e-3, 1e-3, 0.01, 0.1, 40, 1e3)
"""Additional arguments at which elementwise functions are probed."""
LENGTHS = tuple(100.0 * (-2) ** k for k in range(21))
"""Scales of the values used to detect a clamp on a norm or sum, which a wider tensor may reach."""
LEAST = 0.1
"""Minimum mean of the diagonal of a norm-preserving map (norm 1) for its result to correlate with its argument."""
NEAR = 5e-3
"""Relative change of a normalised result with the scale of its argument that is accepted (the eps of norms)."""
Along = Callable[[Tensor, Any], Tensor]
"""A function of a tensor along one or more dimensions."""


def _rms(v: Tensor, d: Any) -> Tensor:
    """Divides by the root mean square along dimensions."""
    return v * v.square().mean(d, keepdim=True).rsqrt()


def _centred(v: Tensor, d: Any) -> Tensor:
    """Subtracts the mean along dimensions."""
    return v - v.mean(d, keepdim=True)


def _normed(v: Tensor, d: Any) -> Tensor:
    """Divides by the sum along dimensions."""
    return v / v.sum(d, keepdim=True)


SCALES = {"rmsnorm": (1, 30, 1e3, LENGTHS[-1]), "layernorm": (1, 30, 1e3, LENGTHS[-1]), "centre": (0.5, 1, 30),
          "softmax": (0.5, 1, 2), "normed": (0.5, 1, 30), "normed_sigmoid": (0.5, 1, 3)}  # fmt: skip
"""The scales of the arguments at which each function along dimensions is probed."""
ALONG: dict[str, Along] = {
    "rmsnorm": _rms,
    "layernorm": lambda v, d: _rms(_centred(v, d), d),
    "centre": _centred,
    "softmax": lambda v, d: (v - v.amax(d, keepdim=True)).exp() / (v - v.amax(d, keepdim=True)).exp().sum(d, True),
    "normed": _normed,
    "normed_sigmoid": lambda v, d: _normed(v.sigmoid(), d),
}
"""Functions along dimensions that are recognised."""


class Dominators:
    """The dominator tree of a recording.

    Attributes:
        run: the recording.
        parent: for every tensor that is not constant, the nearest tensor that it is a function of, or ``ROOT``.
        depth: its depth in the tree.
        producer: position of the call that makes a tensor among the calls.
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
            # A function of frozen tensors only, such as a table of angles, is a constant.
            live = [] if run.frozen.issuperset(live) else live
            stops = call.name in BREAKS or call.stale or (not call.held and not held.isdisjoint(live))
            for number in {r.number for r in refs(call.result)} - read:
                if live:
                    self._put(number, ROOT if stops else self._meet(live))
                self.producer[number] = k
                if call.held:
                    held.add(number)

    def _put(self, number: int, parent: int) -> None:
        """Adds a tensor to the tree."""
        self.parent[number], self.depth[number] = parent, self.depth[parent] + 1

    def _meet(self, numbers: Sequence[int]) -> int:
        """Returns the lowest common ancestor of tensors in the tree."""
        a = numbers[0]
        for b in numbers[1:]:
            while a != b:
                if self.depth[a] < self.depth[b]:
                    a, b = b, a
                a = self.parent[a]
        return a

    def chain(self, number: int) -> list[int]:
        """Returns the tensors that dominate a tensor, the earliest first."""
        found: list[int] = []
        while (number := self.parent.get(number, ROOT)) != ROOT:
            found.insert(0, number)
        return found

    def live(self, call: TorchCall) -> list[int]:
        """Returns the arguments of a call that are not constant; one that occurs twice is listed twice."""
        return [r.number for r in refs((call.arguments, call.keywords)) if r.number in self.parent]

    def between(self, x: int, y: int) -> list[int]:
        """Returns the positions of the calls that compute y from x, in order."""
        found, open_ = set[int](), [y]
        while open_:
            if (number := open_.pop()) != x and (k := self.producer[number]) not in found:
                found.add(k)
                open_ += self.live(self.run.calls[k])
        return sorted(found)


@dataclass(frozen=True)
class Map:
    """A function that computes one tensor of a recording from another one, by running the recorded calls again.

    Attributes:
        run: the recording.
        x: number of the argument.
        y: number of the result.
        calls: the calls that compute y from x.
    """

    run: Recording
    x: int
    y: int
    calls: tuple[TorchCall, ...]

    @property
    def value(self) -> Tensor:
        """The recorded argument."""
        return self.run.tensors[self.x]

    def __call__(self, v: Tensor) -> Tensor:
        """Returns the result for an argument of the recorded shape."""
        made = {self.x: v}
        for call in self.calls:
            results = call.rerun(lambda n: made[n] if n in made else self.run.tensors[n])
            made.update((r.number, z) for r, z in zip(refs(call.result), results, strict=False))
        return made[self.y]

    def entrywise(self, v: Tensor) -> Tensor:
        """Returns the result of an elementwise function for an argument of any shape."""
        shape, n = self.value.shape, self.value.numel()
        if v.shape == shape:
            return self(v)
        whole = torch.cat([v.flatten(), v.new_zeros(-v.numel() % n)]).reshape(-1, *shape)
        return torch.stack([self(part) for part in whole]).flatten()[: v.numel()].reshape(v.shape)

    def mark(self) -> tuple[Any, ...]:
        """Returns a key that is equal for functions with equal calls and constants."""
        names = {self.x: 0}

        def named(ref: Ref) -> Any:
            """Returns the position of an intermediate result, or the value of a constant."""
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
    """A recognised function: y = numbers * f(x) + middle.

    Attributes:
        maps: the function that was probed, at every build.
        name: name of f. "silu and tanh" is their sum; ``same`` has the size of x; ``turned``, ``mixed`` and ``signed``
            are norm-preserving linear maps (``_turned``).
        over: dimensions that f acts along; none if it is elementwise.
        numbers: the factor at every build.
        middle: the constant that is added.
        rank: how well f is known. 0: its values agree. 1: its powers agree with those of f. 2: its powers agree with
            those of a sum of two functions. 3: its values agree at the recorded arguments only. 4: no function fits.
        why: the reason if no function fits.
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
        """The number of the argument."""
        return self.maps[0].x

    def exact(self, v: Tensor) -> Tensor:
        """Returns f(v): the probed function without the factor and the constant."""
        g = self.maps[0]
        with in_float64():
            y = g(v) if self.over else g.entrywise(v)
        return (y - self.middle) / self.numbers[0]


class Regions:
    """The tensors of one module that are known functions of other tensors.

    Attributes:
        runs: the recordings, one for each build.
        tree: the dominator tree of the first.
        left: tensors that must be read from the call that makes them.
        asked: results of probing, by ``Map.mark`` at every build.
        needed: the tensors that the output is read from.
        found: the recognised function of each tensor that has one.
    """

    def __init__(self, runs: Sequence[Recording]) -> None:
        self.runs, self.tree = runs, Dominators(runs[0])
        self.left: set[int] = set()
        self.asked: dict[Any, ToldFunction | None] = {}
        self.plan()

    def leave(self, number: int) -> None:
        """Excludes a tensor from recognition, so that it is read from the call that makes it."""
        self.left.add(number)
        self.plan()

    def plan(self) -> None:
        """Determines ``needed`` and ``found``, going backwards from the output."""
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
        """Returns the best-known function (lowest rank, then earliest argument) that a tensor is of another one.

        Args:
            y: the tensor.

        Returns:
            The function, or None if there is none or the rules of the calls read the tensor better.
        """
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
            # If only factors and reshapes lie between, the later argument is as good.
            if self._plain([run.calls[k] for k in self.tree.between(best.x, near.x)]):
                best = near
        return best

    def _alike(self, y: int) -> list[int]:
        """Returns the tensors that dominate a tensor and have its shape at every build, the earliest first."""
        shapes = [run.tensors[y].shape for run in self.runs]
        return [x for x in self.tree.chain(y) if [run.tensors[x].shape for run in self.runs] == shapes]

    def _plain(self, calls: Sequence[TorchCall]) -> bool:
        """Tests whether every call has a rule, at most one non-constant argument, and no complex tensor."""
        found = self.runs[0].tensors
        real = (not any(found[r.number].is_complex() for r in refs((c.arguments, c.result))) for c in calls)
        return all(
            ruled(call.name) and plain(call.name) not in BENT and len(self.tree.live(call)) < 2 for call in calls
        ) and all(real)

    @cache  # noqa: B019 - the cache lives as long as the recordings
    def _readable(self, number: int) -> bool:
        """Tests whether a tensor is computed only by calls with a rule and by recognised functions of the language."""
        if number not in self.tree.producer or number not in self.tree.parent:
            return True
        call = self.runs[0].calls[self.tree.producer[number]]
        known = self.of(number)
        if known is not None:
            return known.rank < 4 and self._readable(known.x)
        return ruled(call.name) and all(map(self._readable, self.tree.live(call)))

    def map(self, x: int, y: int) -> tuple[Map, ...]:
        """Returns the function that computes y from x, at every build."""
        places = self.tree.between(x, y)
        return tuple(Map(run, x, y, tuple(run.calls[k] for k in places)) for run in self.runs)

    def known(self, x: int, y: int) -> ToldFunction | None:
        """Returns the recognised function that y is of x, which dominates it; None if it is not recognised."""
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
        """Tests whether a sum of two elementwise functions of one signal has all the powers of both: none cancels.

        Args:
            call: the sum.
        """
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
    """Returns a standard normal tensor with the shape of another one."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reach(g: Map, v: Tensor, y: Tensor) -> tuple[int, ...] | None:
    """Determines the dimensions along which a function mixes entries.

    Args:
        g: the function.
        v: an argument.
        y: the result for this argument.

    Returns:
        The dimensions; () if g is elementwise; None if no single dimension explains the mixing.
    """
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
    """Recognises a function, given at every build; returns None if it is neither elementwise nor along dimensions."""
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
    """Recognises an elementwise function, which must be the same at every entry and, up to a factor, at every build.

    Args:
        maps: the function at every build.
        v: an argument at the first build.
        y: the result for it.

    Returns:
        The function; of rank 4 if the language has none like it; None if it is not elementwise after all.
    """
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
        return ToldFunction(maps, rank=4, why="its values change with the sizes; give the equations with --network")
    alike = max(abs(c - 1) for c in numbers) < CLOSE
    found = fitted(f)
    if found and (alike or found[2] == 0):
        return ToldFunction(maps, found[0], numbers=tuple(found[1] * c for c in numbers), middle=found[2])
    if not alike:
        return ToldFunction(
            maps, rank=4, why="a power of the sizes times an unknown function; give the equations with --network"
        )
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
    """Tests whether two tensors are equal where the mask is true; NaN equals NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan()))[mask].all())


def _bounds_length(g: Map, v: Tensor) -> bool:
    """Tests whether a function clamps a norm or a sum: large entries then give other values when all others are zero.

    Entries of the usual size do not reach such a bound, but those of wider tensors may.
    """
    alone = torch.rand(v.shape, generator=torch.Generator().manual_seed(14)) < 1 / 16
    scales = LENGTHS if len(g.calls) > 1 else LENGTHS[-2:]
    return not all(_alike_at(alone, g(s * v.abs() * alone), g(s * v.abs())) for s in scales)


def _same_everywhere(g: Map, v: Tensor, y: Tensor) -> bool:
    """Tests whether an elementwise function with result y at v is the same one at every entry, by permuting v."""
    order = torch.randperm(v.numel(), generator=torch.Generator().manual_seed(13))
    return torch.allclose(g(v.flatten()[order].reshape(v.shape)).flatten(), y.flatten()[order])


def _turned(maps: tuple[Map, ...], over: tuple[int, ...]) -> ToldFunction | None:
    """Recognises a linear map that preserves norms up to a factor: a rotation, permutation or change of signs.

    Args:
        maps: the map at every build.
        over: dimensions that it mixes.

    Returns:
        A function with one of these names, or None if the map is not linear or changes norms:

        - ``signed``: at some build, it takes a tensor of ones to one with a mean near or below zero.
        - ``turned``: otherwise, if the mean of its diagonal is positive at every build, so that its result correlates
          with its argument (rotary positions).
        - ``mixed``: otherwise; only its size is known.
    """
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
    """Returns the number c with y = c z up to a relative difference; None if there is none."""
    c = float((y * z).sum() / (z * z).sum())
    return c if torch.allclose(y, c * z, rtol=near, atol=near * 1e-2 * float(y.abs().max())) else None


def _along(maps: tuple[Map, ...], over: tuple[int, ...]) -> ToldFunction | None:
    """Recognises a function of ``ALONG``, up to a factor, by probing at several scales at every build.

    Args:
        maps: the function at every build.
        over: dimensions that it acts along.
    """
    along: Any = over[0] if len(over) == 1 else over
    for name, f in ALONG.items():
        numbers, near = [], CLOSE if name == "centre" else NEAR  # strict: the rest of a mean grows with the width
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
    """Removes from the factors of a layer norm the effect of a variance with n - 1 in place of n.

    Args:
        maps: the function at every build.
        over: dimensions that it acts along.
        numbers: the factor at every build.

    Returns:
        The factors, times 1 or (n / (n - 1))^(1/2 or -1/2): those nearest to powers of the sizes.
    """
    entries = [torch.Size(g.value.shape[d] for d in over).numel() for g in maps]
    ways = [tuple(c * (n / (n - 1)) ** p for c, n in zip(numbers, entries, strict=True)) for p in (0, 0.5, -0.5)]
    return min(ways, key=_off)


def _powers(numbers: Sequence[Any]) -> Vector:
    """Returns factors at every build as a tuple; exactly 1 if all are within 1e-6 of 1."""
    return (1.0,) * len(numbers) if max(abs(c - 1) for c in numbers) < 1e-6 else tuple(numbers)


def _off(numbers: Vector) -> float:
    """Returns how far factors are from powers (multiples of 1/4) of a size that doubles between builds."""
    powers = [4 * torch.tensor(c / numbers[0]).abs().log2() for c in numbers]
    return float(sum(abs(p - p.round()) for p in powers)) + 1e-3 * abs(numbers[0] - 1)
