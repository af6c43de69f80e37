"""Recognises by probing that one tensor is a known function of another, whatever calls lie between: ``KnownFunctions``.

A tensor x *dominates* y if every path from a parameter or an input to y passes through x. Then y = g(x), where g
consists of the recorded calls between them and can be run again on other values. These show whether g is an
elementwise function of the equations, or one of the functions along dimensions in ``DIM_FUNCTIONS`` (norms, softmax,
...); arguments of several scales are tried in each build of the module. Of all x for which g is known, the earliest
is used. For example, the calls of ``x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`` become one rmsnorm. Only
tensors that the output needs are examined. Read next: ``activations.py`` (elementwise functions),
``recognised_functions.py`` (the result as equations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .activations import find_function_of_class, fit_function, is_generic_activation, measure_properties
from .building import in_float64
from .nodes import PerBuild
from .recording import GRADIENT_STOPS, Recording, TensorRef, TorchCall, iterate_refs, map_leaves
from .rule_table import has_rule, normalise_call_name

ROOT = -1
"""The root of the tree of dominators: the dominator of a tensor that no single tensor dominates."""
BARRIER_CALLS = GRADIENT_STOPS | {"topk"}
"""Calls that no function may span: those that stop gradients, and top-K, whose recording differs from the call."""
NONLINEAR_RULES = {"prelu", "pow"}
"""Calls with a rule that are nevertheless nonlinear functions of one tensor if their other argument is constant."""
VALUE_TOLERANCE = 1e-9
"""Relative difference up to which values agree."""
EXTRA_ARGUMENTS = (-1e3, -40, -0.1, -0.01, -1e-3, 1e-3, 0.01, 0.1, 40, 1e3)
"""Additional arguments at which elementwise functions are probed."""
CLAMP_SCALES = tuple(100.0 * (-2) ** k for k in range(21))
"""Scales of the values used to detect a clamp on a norm or sum, which a wider tensor may reach."""
MIN_CORRELATION = 0.1
"""Minimum mean of the diagonal of a norm-preserving map (norm 1) for its result to correlate with its argument."""
EPS_TOLERANCE = 5e-3
"""Relative change of a normalised result with the scale of its argument that is accepted (the eps of norms)."""
DimFunction = Callable[[Tensor, Any], Tensor]
"""A function of a tensor along one or more dimensions."""


def _divide_by_rms(v: Tensor, d: Any) -> Tensor:
    """Divides a tensor by its root mean square along the dimensions ``d``."""
    return v * v.square().mean(d, keepdim=True).rsqrt()


def _subtract_mean(v: Tensor, d: Any) -> Tensor:
    """Subtracts from a tensor its mean along the dimensions ``d``."""
    return v - v.mean(d, keepdim=True)


def _divide_by_sum(v: Tensor, d: Any) -> Tensor:
    """Divides a tensor by its sum along the dimensions ``d``."""
    return v / v.sum(d, keepdim=True)


PROBE_SCALES = {
    "rmsnorm": (1, 30, 1e3, CLAMP_SCALES[-1]),
    "layernorm": (1, 30, 1e3, CLAMP_SCALES[-1]),
    "centre": (0.5, 1, 30),
    "softmax": (0.5, 1, 2),
    "normed": (0.5, 1, 30),
    "normed_sigmoid": (0.5, 1, 3),
}
"""The scales of the arguments at which each function along dimensions is probed."""
DIM_FUNCTIONS: dict[str, DimFunction] = {
    "rmsnorm": _divide_by_rms,
    "layernorm": lambda v, d: _divide_by_rms(_subtract_mean(v, d), d),
    "centre": _subtract_mean,
    "softmax": lambda v, d: (v - v.amax(d, keepdim=True)).exp() / (v - v.amax(d, keepdim=True)).exp().sum(d, True),
    "normed": _divide_by_sum,
    "normed_sigmoid": lambda v, d: _divide_by_sum(v.sigmoid(), d),
}
"""Functions along dimensions that are recognised."""


class DominatorTree:
    """Tells for each tensor of a recording through which earlier tensors all of its computation passes.

    A tensor x dominates y if every path of calls from a parameter or input to y passes through x, so that y is a
    function of x alone. In the tree, the parent of a tensor is the latest tensor that dominates it.

    Attributes:
        run: the recording.
        parent: for every tensor that is not constant, its parent in the tree; ``ROOT`` if no tensor dominates it.
        depth: for each tensor, the number of steps from the root to it.
        producer: for each tensor, the position of the call that makes it among all calls.
    """

    def __init__(self, run: Recording) -> None:
        self.run, self.parent, self.depth = run, {ROOT: ROOT}, {ROOT: 0}
        self.producer: dict[int, int] = {}
        held: set[int] = set()
        for number in (*run.parameters, *run.inputs):
            self._add_tensor(number, ROOT)
        for k, call in enumerate(run.calls):
            read = {r.number for r in call.iterate_inputs()}
            live = [n for n in read if n in self.parent]
            # A function of frozen tensors only, such as a table of angles, is a constant.
            live = [] if run.frozen.issuperset(live) else live
            stops = (
                call.name in BARRIER_CALLS or call.stale or (not call.without_gradients and not held.isdisjoint(live))
            )
            for number in {r.number for r in iterate_refs(call.result)} - read:
                if live:
                    self._add_tensor(number, ROOT if stops else self._find_common_dominator(live))
                self.producer[number] = k
                if call.without_gradients:
                    held.add(number)

    def _add_tensor(self, number: int, parent: int) -> None:
        """Adds the tensor ``number`` to the tree, as a child of ``parent``."""
        self.parent[number], self.depth[number] = parent, self.depth[parent] + 1

    def _find_common_dominator(self, numbers: Sequence[int]) -> int:
        """Returns the latest tensor through which the computation of all given tensors passes.

        The computation of a tensor counts as passing through the tensor itself, so that for a single one it is
        returned.
        """
        a = numbers[0]
        for b in numbers[1:]:
            while a != b:
                if self.depth[a] < self.depth[b]:
                    a, b = b, a
                a = self.parent[a]
        return a

    def list_dominators(self, number: int) -> list[int]:
        """Returns the tensors through which all of the computation of a tensor passes (they dominate it), the
        earliest first.
        """
        found: list[int] = []
        while (number := self.parent.get(number, ROOT)) != ROOT:
            found.insert(0, number)
        return found

    def list_live_arguments(self, call: TorchCall) -> list[int]:
        """Returns the tensor arguments of a call that depend on a parameter or input; one that occurs twice is listed
        twice.
        """
        return [r.number for r in call.iterate_inputs() if r.number in self.parent]

    def list_calls_between(self, x: int, y: int) -> list[int]:
        """Returns the positions of the calls that compute y from x, in order."""
        found, open_ = set[int](), [y]
        while open_:
            if (number := open_.pop()) != x and (k := self.producer[number]) not in found:
                found.add(k)
                open_ += self.list_live_arguments(self.run.calls[k])
        return sorted(found)


@dataclass(frozen=True)
class RecordedFunction:
    """A part of the module as a function: computes one tensor of a recording from another, by the recorded calls.

    Attributes:
        run: the recording.
        x: number of the tensor that is the argument.
        y: number of the tensor that is the result.
        calls: the calls that compute y from x.
    """

    run: Recording
    x: int
    y: int
    calls: tuple[TorchCall, ...]

    @property
    def argument(self) -> Tensor:
        """The value that the argument had in the recording."""
        return self.run.tensors[self.x]

    def __call__(self, v: Tensor) -> Tensor:
        """Returns the result for an argument of the recorded shape."""
        made = {self.x: v}
        for call in self.calls:
            results = call.rerun(lambda n: made[n] if n in made else self.run.tensors[n])
            made.update((r.number, z) for r, z in zip(iterate_refs(call.result), results, strict=False))
        return made[self.y]

    def apply_elementwise(self, v: Tensor) -> Tensor:
        """Returns the result of an elementwise function for an argument of any shape."""
        shape, n = self.argument.shape, self.argument.numel()
        if v.shape == shape:
            return self(v)
        whole = torch.cat([v.flatten(), v.new_zeros(-v.numel() % n)]).reshape(-1, *shape)
        return torch.stack([self(part) for part in whole]).flatten()[: v.numel()].reshape(v.shape)

    def make_key(self) -> tuple[Any, ...]:
        """Returns a key by which to look up the function: it is equal for the same calls with the same constants.

        In a model of many equal layers, each kind of function is thus probed only once.
        """
        names = {self.x: 0}

        def describe_ref(ref: TensorRef) -> Any:
            """Returns what stands for a tensor in the key: for the argument or an intermediate result a number, in the
            order of the calls; for a constant its shape and values.
            """
            if ref.number in names:
                return names[ref.number]
            value = self.run.tensors[ref.number]
            return tuple(value.shape), value.detach().contiguous().view(-1).numpy().tobytes()

        marks = []
        for call in self.calls:
            marks.append((call.name, repr(map_leaves((call.arguments, call.keywords), TensorRef, describe_ref))))
            for r in iterate_refs(call.result):
                names.setdefault(r.number, len(names))
        return tuple(self.argument.shape), names[self.y], *marks


@dataclass(frozen=True)
class KnownFunction:
    """A function between two tensors of the module that was recognised: y = factors * f(x) + offset.

    Attributes:
        functions: the calls from x to y as a function, in each build of the module.
        name: name of f in the equations; "silu and tanh" is the sum of both. ``same`` is x itself, and the linear
            maps that preserve norms are ``turned``, ``mixed`` and ``signed`` (``_recognise_rotation``).
        over: dimensions along which f mixes entries; empty if it is elementwise.
        factors: the factor in each build of the module.
        offset: the constant that is added.
        rank: how well f is known. 0: its values agree with those of the named function. 1: it has the same powers as
            that function when both are written as polynomials. 2: likewise for a sum of two functions. 3: its values
            agree at the recorded arguments only. 4: no function fits.
        why: the reason if no function fits.
    """

    functions: tuple[RecordedFunction, ...]
    name: str = ""
    over: tuple[int, ...] = ()
    factors: PerBuild = (1.0,)
    offset: float = 0.0
    rank: int = 0
    why: str = ""

    @property
    def argument(self) -> int:
        """The number of the tensor x that the function is applied to."""
        return self.functions[0].x

    def evaluate(self, v: Tensor) -> Tensor:
        """Returns f(v), from the recorded calls: (y - offset) / factor in the first build of the module."""
        g = self.functions[0]
        with in_float64():
            y = g(v) if self.over else g.apply_elementwise(v)
        return (y - self.offset) / self.factors[0]


class KnownFunctions:
    """Finds the tensors of a module that are known functions of other tensors, such as the result of a norm.

    Such a tensor is written as one function in the equations, whatever calls compute it.

    Attributes:
        runs: the recordings, one for each build of the module.
        tree: the dominator tree of the first recording.
        excluded: tensors that are not to be recognised (``exclude``), and are read from the call that makes them.
        results: results of earlier probing, so that equal functions (``RecordedFunction.make_key``) are probed once.
        needed: the tensors that have to be read to get the output; those inside a recognised function are not needed.
        found: the recognised function of each tensor that has one.
    """

    def __init__(self, runs: Sequence[Recording]) -> None:
        self.runs, self.tree = runs, DominatorTree(runs[0])
        self.excluded: set[int] = set()
        self.results: dict[Any, KnownFunction | None] = {}
        self.plan_reading()

    def exclude(self, number: int) -> None:
        """Excludes a tensor from recognition, so that it is read from the call that makes it."""
        self.excluded.add(number)
        self.plan_reading()

    def plan_reading(self) -> None:
        """Determines which tensors the output needs, going back from it, and which of them are recognised functions."""
        run = self.runs[0]
        self.needed, self.found = {run.output.number}, dict[int, KnownFunction]()
        for call in reversed(run.calls):
            read = {r.number for r in call.iterate_inputs()}
            for number in {r.number for r in iterate_refs(call.result)} & self.needed - read:
                known = None if number in self.excluded else self.find_function(number)
                if known is not None:
                    self.found[number] = known
                self.needed |= read if known is None else {known.argument}

    def find_function(self, y: int) -> KnownFunction | None:
        """Returns the recognised function that computes a tensor from an earlier one.

        If it is a known function of several earlier tensors, the one with the lowest ``KnownFunction.rank`` is chosen,
        and of equal ones the one with the earliest argument (or a later one, if only linear calls that can be read by
        their rules lie between).

        Args:
            y: the tensor.

        Returns:
            The function. None if there is none, or if reading the calls one by one, by their rules, is more exact.
        """
        run = self.runs[0]
        if y not in self.tree.producer or not run.tensors[y].is_floating_point():
            return None
        last = run.calls[self.tree.producer[y]]
        own = self.tree.list_live_arguments(last)
        if self._are_plain_calls([last]) and (not own or self._list_same_shape_dominators(own[0])):
            return None
        dominators = self._list_same_shape_dominators(y)
        chain = [x for x in dominators if not self._has_plain_calls_between(x, y)]
        answers = [known for x in chain if (known := self.recognise_pair(x, y)) is not None]
        best = min(answers, key=lambda known: known.rank, default=None)
        if best is None or (best.rank > 1 and has_rule(last.name) and all(map(self._is_readable, own))):
            return None
        for near in (k for k in answers if (k.rank, k.name, k.over) == (best.rank, best.name, best.over)):
            # If only factors and reshapes lie between, the later argument is as good.
            if self._has_plain_calls_between(best.argument, near.argument):
                best = near
        return best

    def _has_plain_calls_between(self, x: int, y: int) -> bool:
        """Tests whether all calls that compute y from x are linear and can be read by their rules.

        If so, nothing is gained by recognising them together as one function (``_are_plain_calls``).
        """
        return self._are_plain_calls([self.runs[0].calls[k] for k in self.tree.list_calls_between(x, y)])

    def _list_same_shape_dominators(self, y: int) -> list[int]:
        """Returns the earlier tensors x for which y is a function of x alone and has the shape of x in each build.

        The earliest one comes first.
        """
        shapes = [run.tensors[y].shape for run in self.runs]
        return [x for x in self.tree.list_dominators(y) if [run.tensors[x].shape for run in self.runs] == shapes]

    def _are_plain_calls(self, calls: Sequence[TorchCall]) -> bool:
        """Tests whether every one of the calls is linear and can be read by its rule.

        A call is so if it has a rule that is not that of a nonlinear function, at most one tensor argument that
        depends on a parameter or the input, and no complex tensor.
        """
        found = self.runs[0].tensors
        real = (not any(found[r.number].is_complex() for r in iterate_refs((c.arguments, c.result))) for c in calls)
        return all(
            has_rule(call.name)
            and normalise_call_name(call.name) not in NONLINEAR_RULES
            and len(self.tree.list_live_arguments(call)) < 2
            for call in calls
        ) and all(real)

    @cache  # noqa: B019 - the cache lives as long as the recordings
    def _is_readable(self, number: int) -> bool:
        """Tests whether equations can express the tensor with the id ``number``. They can if each call that computes it
        has a rule or is part of a recognised function.
        """
        if number not in self.tree.producer or number not in self.tree.parent:
            return True
        call = self.runs[0].calls[self.tree.producer[number]]
        known = self.find_function(number)
        if known is not None:
            return known.rank < 4 and self._is_readable(known.argument)
        return has_rule(call.name) and all(map(self._is_readable, self.tree.list_live_arguments(call)))

    def make_functions(self, x: int, y: int) -> tuple[RecordedFunction, ...]:
        """Returns the calls from tensor x to tensor y as a function, in each build of the module."""
        places = self.tree.list_calls_between(x, y)
        return tuple(RecordedFunction(run, x, y, tuple(run.calls[k] for k in places)) for run in self.runs)

    def recognise_pair(self, x: int, y: int) -> KnownFunction | None:
        """Returns the recognised function f with y = f(x), for a y that is computed from x alone; None if it is not
        recognised.
        """
        if not self.runs[0].tensors[x].is_floating_point():
            return None
        maps = self.make_functions(x, y)
        mark = tuple(g.make_key() for g in maps)
        if mark not in self.results:
            try:
                with in_float64():
                    self.results[mark] = _recognise_function(maps)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError):
                self.results[mark] = None
        known = self.results[mark]
        return None if known is None else replace(known, functions=maps)

    def keeps_all_powers(self, call: TorchCall | None) -> bool:
        """Tests whether the sum of two elementwise functions of one signal has every power that one of them has.

        All three are written as polynomials of the signal. If a power is missing in the sum, as in gelu(x) +
        gelu(-x), the terms cancel partly. A call that is no such sum gives False.

        Args:
            call: the call that computes the sum.
        """
        if call is None:
            return False
        y = next(iterate_refs(call.result)).number
        read, dominators = self.tree.list_live_arguments(call), self.tree.list_dominators(y)
        if len(read) != 2 or not dominators:
            return False
        x = dominators[-1]
        v = draw_normal(self.runs[0].tensors[x], 3)
        with in_float64():
            maps = [self.make_functions(x, z)[0] for z in (*read, y)]
            if any(g(v).shape != v.shape or find_mixed_dims(g, v, g(v)) != () for g in maps):
                return False
            found = [measure_properties(g.apply_elementwise).get("powers") for g in maps]
        one, two, total = (z if isinstance(z, frozenset) else None for z in found)
        return None not in (one, two, total) and one | two == total  # type: ignore[operator]


def draw_normal(like: Tensor, seed: int) -> Tensor:
    """Draws a tensor of standard normal entries that has the shape of the given one."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def find_mixed_dims(g: RecordedFunction, v: Tensor, y: Tensor) -> tuple[int, ...] | None:
    """Finds the dimensions along which an entry of the result depends on other entries than its own.

    Args:
        g: the function; its result has the shape of its argument.
        v: an argument.
        y: the result for this argument.

    Returns:
        The dimensions; () if g is elementwise; None if entries depend on others, but no such dimension was found.
    """
    other, coin = draw_normal(v, 11), torch.Generator().manual_seed(12)
    mask = torch.rand(v.shape, generator=coin) < 0.5
    if _are_equal_where(mask, g(torch.where(mask, v, other)), y):
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


def _recognise_function(maps: tuple[RecordedFunction, ...]) -> KnownFunction | None:
    """Recognises a function, given as it is in each build of the module.

    Returns None if it changes the shape, or is neither elementwise nor one of the functions along dimensions.
    """
    g = maps[0]
    v = draw_normal(g.argument, 3)
    y = g(v)
    if y.shape != v.shape or not bool(y.isfinite().all()):
        return None
    over = find_mixed_dims(g, v, y)
    if over is None:
        return None
    return (
        (_recognise_rotation(maps, over) or _recognise_along_dims(maps, over))
        if over
        else _recognise_elementwise(maps, v, y)
    )


def _recognise_elementwise(maps: tuple[RecordedFunction, ...], v: Tensor, y: Tensor) -> KnownFunction | None:
    """Recognises an elementwise function, by its values at some arguments.

    Args:
        maps: the function in each build of the module.
        v: an argument in the first build.
        y: the result for this argument.

    Returns:
        The function. Its rank is 4 if no function of the equations is like it, or if its values in the builds differ
        by more than a factor. A function that does not treat all entries alike is recognised if it only changes signs
        or the like (``_recognise_rotation``). None for any other, such as one that mixes entries for some arguments.
    """
    g = maps[0]
    if any(find_mixed_dims(g, s * v, g(s * v)) != () for s in (0.01, 100)) or _clamps_length(g, v):
        return None
    if not _is_same_at_every_entry(g, v, y):
        ones = g(torch.ones_like(v))
        return _recognise_rotation(maps, tuple(d for d in range(v.dim()) if bool((ones.diff(dim=d) != 0).any())))
    if not all(_is_same_at_every_entry(h, v := draw_normal(h.argument, 3), h(v)) for h in maps[1:]):
        return None
    known: dict[bytes, Tensor] = {}

    def evaluate_once(u: Tensor) -> Tensor:
        key = u.numpy().tobytes()
        if key not in known:
            known[key] = g.apply_elementwise(u)
        return known[key]

    at = torch.cat([torch.linspace(-3, 3, 25, dtype=torch.float64), torch.tensor(EXTRA_ARGUMENTS, dtype=torch.float64)])
    values = [h.apply_elementwise(at) for h in maps]
    there = torch.stack(values).isfinite().all(0)
    values, at = [z[there] for z in values], at[there]
    if not bool(values[0].any()):
        return None
    slopes = tuple(float(z[-1] / at[-1]) for z in values)
    if all(torch.allclose(z, c * at) for z, c in zip(values, slopes, strict=True)):
        return KnownFunction(maps, "same", factors=_snap_to_one(slopes))
    if all(torch.allclose(z, c * at.abs()) for z, c in zip(values, slopes, strict=True)):
        return KnownFunction(maps, "abs", factors=_snap_to_one(slopes), rank=1)
    numbers = tuple(float((z * values[0]).sum() / values[0].square().sum()) for z in values)
    if not all(torch.allclose(z, c * values[0], rtol=VALUE_TOLERANCE) for z, c in zip(values, numbers, strict=True)):
        return KnownFunction(maps, rank=4, why="its values change with the sizes; give the equations with --network")
    alike = max(abs(c - 1) for c in numbers) < VALUE_TOLERANCE
    found = fit_function(evaluate_once)
    if found and (alike or found[2] == 0):
        return KnownFunction(maps, found[0], factors=tuple(found[1] * c for c in numbers), offset=found[2])
    if not alike:
        return KnownFunction(
            maps, rank=4, why="a power of the sizes times an unknown function; give the equations with --network"
        )
    if name := find_function_of_class(evaluate_once, g.calls[-1].name):
        return KnownFunction(maps, name, rank=1)
    middle = float(evaluate_once(torch.zeros(1, dtype=torch.float64)))
    if name := find_function_of_class(lambda u: evaluate_once(u) - middle, g.calls[-1].name):
        return KnownFunction(maps, name, offset=middle, rank=1)
    if is_generic_activation(evaluate_once):
        return KnownFunction(maps, "silu and tanh", offset=middle, rank=2)
    ends = [(float(h.argument.min()), float(h.argument.max())) for h in maps]
    at = torch.linspace(min(a for a, _ in ends), max(b for _, b in ends), 101, dtype=torch.float64)
    for name, there in (("same", at), ("relu", at.relu())):
        if torch.allclose(evaluate_once(at), there):
            return KnownFunction(maps, name, rank=3)
    return KnownFunction(maps, rank=4, why="no function of the equations has its values; give them with --network")


def _are_equal_where(mask: Tensor, one: Tensor, other: Tensor) -> bool:
    """Tests whether two tensors are equal where the mask is true; NaN equals NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan()))[mask].all())


def _clamps_length(g: RecordedFunction, v: Tensor) -> bool:
    """Tests whether a function that looks elementwise clamps a norm or a sum of its entries.

    The bound is not reached by entries of the usual size, but may be by those of wider tensors. So the function is run
    on large arguments: if it clamps a norm, its value at an entry changes when all other entries are set to zero.
    """
    alone = torch.rand(v.shape, generator=torch.Generator().manual_seed(14)) < 1 / 16
    scales = CLAMP_SCALES if len(g.calls) > 1 else CLAMP_SCALES[-2:]
    return not all(_are_equal_where(alone, g(s * v.abs() * alone), g(s * v.abs())) for s in scales)


def _is_same_at_every_entry(g: RecordedFunction, v: Tensor, y: Tensor) -> bool:
    """Tests whether an elementwise function treats all entries alike: permuting the argument v must permute the
    result y.
    """
    order = torch.randperm(v.numel(), generator=torch.Generator().manual_seed(13))
    return torch.allclose(g(v.flatten()[order].reshape(v.shape)).flatten(), y.flatten()[order])


def _recognise_rotation(maps: tuple[RecordedFunction, ...], over: tuple[int, ...]) -> KnownFunction | None:
    """Recognises a linear map that preserves norms up to a factor: a rotation, permutation or change of signs.

    Args:
        maps: the map in each build of the module.
        over: dimensions along which it mixes entries.

    Returns:
        The map, with one of these names; None if it is not linear or changes norms.

        - ``signed``: in some build, it maps a tensor of ones to one whose mean is near or below zero, as changes of
          sign do.
        - ``turned``: otherwise, if in each build the result correlates with the argument, as that of rotary positions
          does.
        - ``mixed``: otherwise; only the size of the result is known.
    """
    numbers, same, signed = [], True, False
    for g in maps:
        probes = [draw_normal(g.argument, seed) for seed in range(20, 28)]
        made = [g(v) for v in probes]
        sizes = [float(y.norm() / v.norm()) for v, y in zip(probes, made, strict=True)]
        linear = torch.allclose(g(probes[0] + 3 * probes[1]), made[0] + 3 * made[1])
        if not linear or max(sizes) > (1 + 1e-6) * min(sizes):
            return None
        numbers.append(sizes[0])
        meets = sum(float((y.double() * v).sum()) for v, y in zip(probes, made, strict=True))
        same = same and meets > MIN_CORRELATION * sum(
            c * float(v.square().sum()) for v, c in zip(probes, sizes, strict=True)
        )
        signed = signed or float(g(torch.ones_like(probes[0])).mean()) <= MIN_CORRELATION * sizes[0]
    name = "signed" if signed else "turned" if same else "mixed"
    return KnownFunction(maps, name, over, _snap_to_one(numbers), rank=int(name != "turned"))


def _fit_multiple(y: Tensor, z: Tensor, near: float) -> float | None:
    """Returns the number c for which y = c z within the relative error ``near``; None if there is none."""
    c = float((y * z).sum() / (z * z).sum())
    return c if torch.allclose(y, c * z, rtol=near, atol=near * 1e-2 * float(y.abs().max())) else None


def _recognise_along_dims(maps: tuple[RecordedFunction, ...], over: tuple[int, ...]) -> KnownFunction | None:
    """Recognises one of ``DIM_FUNCTIONS`` (norms, softmax, ...), up to a factor.

    Arguments of several scales are tried in each build of the module, since a function may agree with another one at
    one scale only.

    Args:
        maps: the function in each build of the module.
        over: dimensions along which it mixes entries.

    Returns:
        The function, or None if it is none of them.
    """
    along: Any = over[0] if len(over) == 1 else over
    for name, f in DIM_FUNCTIONS.items():
        numbers = []
        near = VALUE_TOLERANCE if name == "centre" else EPS_TOLERANCE  # strict: the rest of a mean grows with the width
        for g in maps:
            at = [s * draw_normal(g.argument, 5 + k) for k, s in enumerate(PROBE_SCALES[name])]
            at = [v.abs() for v in at] if name == "normed" else at
            found = [_fit_multiple(g(v), f(v, along), near) for v in at]
            if None in found or max(found) - min(found) > near * abs(found[-1]):  # type: ignore[type-var, operator, arg-type]
                break
            numbers.append(found[-1])
        else:
            return KnownFunction(
                maps,
                name,
                over,
                _snap_to_one(_remove_variance_bias(maps, over, numbers) if name == "layernorm" else numbers),
            )
    return None


def _remove_variance_bias(maps: Sequence[RecordedFunction], over: Sequence[int], numbers: Sequence[Any]) -> PerBuild:
    """Removes from the factors of a layer norm the effect of a variance that divides by n - 1 in place of n.

    Without this, a factor such as ((n - 1) / n)^(1/2) would be no power of the sizes.

    Args:
        maps: the function in each build of the module.
        over: dimensions over which the norm goes; they have n entries together.
        numbers: the factor relative to a layer norm that divides by n, in each build.

    Returns:
        The factors times (n / (n - 1))^p, where p is 0, 1/2 or -1/2, whichever is nearest to powers of the sizes.
    """
    entries = [torch.Size(g.argument.shape[d] for d in over).numel() for g in maps]
    ways = [tuple(c * (n / (n - 1)) ** p for c, n in zip(numbers, entries, strict=True)) for p in (0, 0.5, -0.5)]
    return min(ways, key=_measure_power_error)


def _snap_to_one(numbers: Sequence[Any]) -> PerBuild:
    """Returns the factors, one for each build of the module, as a tuple; if each is within 1e-6 of 1, all are set
    to 1.
    """
    return (1.0,) * len(numbers) if max(abs(c - 1) for c in numbers) < 1e-6 else tuple(numbers)


def _measure_power_error(numbers: PerBuild) -> float:
    """Measures how far a factor, given in each build of the module, is from a power of the size that the build doubles.

    Such a power multiplies the factor of the first build by 2^(k/4) with an integer k. The result is 0 if all factors
    are of this form and the first one is 1; it serves to choose the best of several candidates.
    """
    powers = [4 * torch.tensor(c / numbers[0]).abs().log2() for c in numbers]
    return float(sum(abs(p - p.round()) for p in powers)) + 1e-3 * abs(numbers[0] - 1)
