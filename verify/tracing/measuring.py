"""What a module computes while it trains, by the names of its reading: changes of signals, and parts of products.

A module is recorded before training and after updates, and calls of products are made again with the weights or the
signals of then and now. Read next: ``models.py`` (the reading), ``verify/apply/checking.py`` (trains and judges).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError

from .building import Inputs, exactly
from .gradients import roles_of
from .models import Traced
from .recording import Recording, Ref, TorchCall, record, refs

NONE: Mapping[str, Tensor] = {}
OUTPUT, UPDATE = "output", ".update"
"""The name of what the module returns."""
PARTS = {"init": ("init",), "update": ("update", "effective"), "propagating": ("propagating",)}
"""Parts of products, and what the engine calls them; of data nothing moves, so that both updates are one."""
DATA_READERS = ("embedding",)
"""Calls that read a tensor at the places that the data say."""


def of_role(model: nn.Module, role: str) -> list[Tensor]:
    """The parameters of a module that have a role."""
    named = dict(model.named_parameters())
    return [named[name].detach() for name, roles in roles_of(named, [role]).items() if roles]


class Watch:
    """Measures a module relative to the moment it is made.

    Args:
        inputs: of the module. traced: its reading, perhaps at other sizes.

    Attributes:
        switched: has a token chosen other experts since then?
        read: numbers of parameters, and of what is made of them alone, that a call reads as signals: those that it
            normalises, or that it is no affine function of in another way, and vectors that a matrix acts on; by call.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, traced: Traced) -> None:
        self.model, self.inputs, self.traced, self.switched = model, inputs, traced, False
        self.first, self.read = self._record(), dict[tuple[str, str, int], list[int]]()
        self._known = dict[tuple[str, int], bool]()
        self.weights, self.chosen, self.products = self._sorted()
        self.roles = roles_of(self.products, traced.network.tensors)
        self.makers = {
            x: call for call in self.first.calls for x in _numbers(call.result) if x not in _numbers(_read(call))
        }  # what is returned as it is, or written in place, is no other tensor

    def _record(self) -> Recording:
        with exactly():
            return record(self.model, *self.inputs, strict=False)

    def _sorted(self) -> tuple[dict[int, frozenset[str]], set[int], dict[str, list[tuple[TorchCall, int]]]]:
        """Of tensors made of parameters alone, by number, these; numbers of choices; products by parameter, each with
        the number of the tensor that is the parameter there."""
        run = self.first
        weights = {number: frozenset([name]) for number, name in run.parameters.items()}
        signals, chosen = set(run.inputs), set[int]()
        norms: dict[int, frozenset[str]] = {}  # signals that are made of parameters alone, and of which
        products: dict[str, list[tuple[TorchCall, int]]] = {}
        for call in run.calls:
            mine = dict.fromkeys(r.number for r in refs((call.arguments, call.keywords)))
            acted, made = [x for x in mine if x in signals], list(refs(call.result))
            held = [x for x in mine if x in weights]
            if held and made and not acted:
                bent = [x for x in held if not (self.traced.network.unread or _affine(call, x, run))]
                acted = self.read[call.key] = [x for x in held if x in bent or _summed(call, x, held, run)]
                held = [x for x in held if x not in acted]
            if acted and all(x in norms or x in weights for x in acted):
                names = frozenset[str]().union(*(norms[x] if x in norms else weights[x] for x in acted))
                own = [x for x in held if weights[x] & names]  # a parameter over its own norm is no product
                if own:
                    acted, held = [*acted, *own], [x for x in held if x not in own]
                    self.read[call.key] = [*self.read.get(call.key, ()), *own]
                if not held:
                    norms |= {r.number: names for r in made}
            reads = acted and not all(x in chosen for x in acted)
            if held and (not acted or (not reads and call.name not in DATA_READERS)):
                names = frozenset[str]().union(*(weights[x] for x in held))
                weights |= {r.number: names for r in made}
            elif acted:
                signals |= {r.number for r in made}
                moved = any(run.tensors[x].is_floating_point() or x in chosen for x in acted)
                chosen |= {r.number for r in made if moved and not run.tensors[r.number].is_floating_point()}
                for x in held:
                    for name in weights[x]:
                        products.setdefault(name, []).append((call, x))
        return weights, chosen, products

    @cached_property
    def names(self) -> dict[str, Sequence[str]]:
        """What is measured, by name, with the quantities of the engine that it is one of: ``NAME.init``, ``.update``
        and ``.propagating`` of a parameter, the numbers of layers and experts left open; changes by module and call."""
        network, found = self.traced.network, dict[str, Sequence[str]]()
        if network.unread:  # no quantity of the engine is theirs
            updates = [
                f"{key}{UPDATE}" for name, calls in self.products.items() for key in self._keys(name, len(calls))
            ]
            return dict.fromkeys([*updates, *map(_changes, self._modules), OUTPUT], ())
        table = list_quantities(network)
        for key, outs in self._outs.items():
            for part, names in PARTS.items():
                known = [next((f"{out}.{x}" for x in names if f"{out}.{x}" in table), "") for out in outs]
                if all(known):
                    found[f"{key}.{part}"] = known
        found |= {name: [f"{signal}.change"] for signal, (name, _, _) in self._signals.items()}
        (last, *_) = network.statements[-1].inputs
        return found | {OUTPUT: [f"{last.name}.change"]}

    @cached_property
    def _signals(self) -> dict[str, tuple[str, TorchCall, int]]:
        """Of every signal that no tensor makes, but gates, which are held: its name, the call that makes it, and the
        place among its results."""
        network, calls = self.traced.network, {call.key: call for call in self.first.calls}
        made = {s.out for s in network.linear} | {f.out for f in network.functions if f.gates} | {*network.constants}
        return {
            signal: (
                f"{module or 'model'}: {name}{f' {count + 1}' if count else ''}",
                calls[module, name, count],
                place,
            )
            for signal, (module, name, count, place) in self.traced.calls.items()
            if signal not in made and (module, name, count) in calls
        }

    @cached_property
    def _outs(self) -> dict[str, tuple[str, ...]]:
        """Of every product by key (the parameter, with a number where it has several) the signals that it makes."""
        network, outs = self.traced.network, dict[str, tuple[str, ...]]()
        known, numbers = self.roles, {name for name, x in self.model.named_parameters() if x.numel() == 1}
        for name, calls in self.products.items():
            if name in numbers:  # it multiplies; in the equations it acts on data
                continue
            if not all(self._alone(name, x) or len(self.weights[x]) == 1 for _, x in calls):
                continue  # in the equations it acts before another parameter
            uses = [network.uses(role) for role in known[name]]
            if not uses or any(len(u) != len(calls) for u in uses):
                continue
            for k in range(len(calls)):
                statements = [u[k] for u in uses]
                plain = all(len(s.factors) == 1 and not s.multipliers for s in statements)
                if plain and not any(role in network.multiplied for role in known[name]):
                    outs[self._key(known[name][0], k)] = tuple(s.out for s in statements)
        return outs

    @cached_property
    def _modules(self) -> Mapping[str, Ref]:
        """What every module returns, where its equations are not known; not what it makes of weights alone."""
        found = self.first.outputs if self.traced.network.unread else {}
        return {name: x for name, x in found.items() if name and x.number not in self.weights}

    def _keys(self, name: str, uses: int) -> list[str]:
        """The key of every product of a parameter that is judged; none of those that are."""
        if not self.roles[name]:
            return []
        keys = [self._key(self.roles[name][0], k) for k in range(uses)]
        return keys if self.traced.network.unread else [key if key in self._outs else "" for key in keys]

    def _key(self, role: str, k: int) -> str:
        return re.sub(r"(\[\d+\])+$", "", role) + (f" {k + 1}" if k else "")

    def __call__(self) -> dict[str, float]:
        """Root-mean-squares as they are now, by key; NaN of what no token reaches, or other ones than before.

        Raises:
            UsageError: the module makes other calls than before training, and chooses nothing.
        """
        now, first = self._record(), self.first
        there = self._as_then(now)
        same = first.names == now.names and all(
            [*_shapes(first, call)] == [*_shapes(there, call)] for call in first.calls
        )
        if not (same or self.chosen):
            raise UsageError("calls change while the model trains, and no choice of experts changes them")
        choices = [call for call in first.calls if call.name == "topk"]
        self.switched = self.switched or not same or any(_chosen(first, c) != _chosen(there, c) for c in choices)
        sizes: dict[str, list[float]] = {}
        for name, calls in self.products.items():
            for key, (call, number) in zip(self._keys(name, len(calls)), calls, strict=False):
                if key:
                    for part, size in self._parts(name, call, number, there).items():
                        sizes.setdefault(f"{key}.{part}", []).append(size)

        def change(ref: Ref, later: Tensor | None) -> list[float]:
            return [_square(_less(later, first.tensors[ref.number]))]

        for name, call, place in self._signals.values():
            ref = [*refs(call.result)][place]
            sizes[name] = change(ref, there.tensors.get(ref.number))
        for name, x in self._modules.items():
            sizes[_changes(name)] = change(x, now.tensors[now.outputs[name].number] if name in now.outputs else None)
        sizes[OUTPUT] = change(first.output, now.tensors[now.output.number])
        known = {key: [x for x in each if not math.isnan(x)] for key, each in sizes.items()}
        return {key: (sum(x) / len(x)) ** 0.5 if x else math.nan for key, x in known.items()}

    def _as_then(self, now: Recording) -> Recording:
        """A later run with tensors by the numbers of the first: what calls read and make that are made as often as then
        in their module; an expert without a token makes none."""
        first = self.first
        if first.names == now.names:
            return now
        kept = {name for name, count in Counter(first.names).items() if Counter(now.names)[name] == count}
        again = {call.key: call for call in now.calls}
        named = [(x, {value: number for number, value in y.items()}) for x, y in _named(first, now)]
        tensors = {a: now.tensors[y[value]] for x, y in named for a, value in x.items() if value in y}
        for call in first.calls:
            if (call.name, call.module) in kept:
                pairs = zip(*map(_around, (call, again[call.key])), strict=False)
                tensors |= {a.number: now.tensors[b.number] for a, b in pairs}
        return replace(now, tensors=tensors)

    def _parts(self, name: str, call: TorchCall, number: int, now: Recording) -> dict[str, float]:
        """Mean squares of W_0 x_0, dW_t x_t and W_0 dx_t of the product that a call makes of a parameter, from which
        the tensor of that number is made.

        Law: a call is affine in each of its parameters; less its value where that is zero it is the product.
        """

        def made(run: Recording, of: Callable[[], Tensor] | None = None) -> Tensor:
            """With the signals of a run and initial weights, but the one: that is changed as said."""

            def value(n: int) -> Tensor:
                if n not in self.weights or n in self.read.get(call.key, ()):
                    return run.tensors[n]
                return self._weight(n, run) if of is None or n != number else of()

            return _again(call, value)

        alone, own = self._alone(name, number), next(x for x, y in self.first.parameters.items() if y == name)

        def put(run: Recording, value: Callable[[Tensor], Tensor]) -> Tensor:
            """The tensor of the number with another value of the parameter, where that acts through it alone."""
            if not alone:
                return value(run.tensors[number])
            return self._weight(number, run, {name: value(run.tensors[own])})

        def product(run: Recording) -> Tensor:
            return made(run) - made(run, lambda: put(run, torch.zeros_like))

        init = product(self.first)
        if not all(x in now.tensors for x in self._needed(call)):
            return {"init": _square(init), "update": math.nan, "propagating": math.nan}
        moved = made(now, lambda: put(now, lambda x: x)) - made(now)
        return {"init": _square(init), "update": _square(moved), "propagating": _square(_less(product(now), init))}

    def _alone(self, name: str, number: int) -> bool:
        """Is a tensor a multiple of a parameter, and what does not change with that beside it?"""
        if (name, number) not in self._known:
            names, draw = sorted(self.weights[number]), torch.Generator().manual_seed(2)
            shapes = {self.first.parameters[k]: self.first.tensors[k].shape for k in self.first.parameters}
            one, other = ({x: torch.randn(shapes[x], generator=draw, dtype=torch.float64) for x in names} for _ in "ab")
            parts = []
            for values, factor in ((one, 1), (one, 2), (other, 1)):
                both = ({**values, name: one[name] * k} for k in (factor, 0))
                at, zero = (self._weight(number, self.first, x) for x in both)
                parts.append(at - zero)
            self._known[name, number] = torch.allclose(2 * parts[0], parts[1]) and torch.allclose(parts[0], parts[2])
        return self._known[name, number]

    def _needed(self, call: TorchCall) -> Iterator[int]:
        """The numbers of the tensors that a call is made of again."""
        for x in _numbers(_read(call)):
            yield x
            if x in self.weights and x in self.makers:
                yield from self._needed(self.makers[x])

    def _weight(self, number: int, run: Recording, values: Mapping[str, Tensor] = NONE) -> Tensor:
        """A tensor that is made of parameters, the initial ones but for those of ``values``; what was chosen is chosen
        as in a run."""
        first, call = self.first, self.makers.get(number)
        if (name := first.parameters.get(number, "")) in values:
            return values[name].to(first.tensors[number].dtype)
        again = self.weights.get(number, frozenset()) & values.keys()
        if call is None or not (again or any(x in self.chosen for x in _numbers(_read(call)))):
            return first.tensors[number]
        return _again(call, lambda n: self._weight(n, run, values) if n in self.weights else run.tensors[n], number)


def _again(call: TorchCall, value: Callable[[int], Tensor], number: int | None = None) -> Tensor:
    """A result of a call, the first or that of a number, with other tensors, by number."""
    with exactly():
        found = call.again(value)
    return found[0 if number is None else _numbers(call.result).index(number)]


def _read(call: TorchCall) -> Any:
    return call.arguments, call.keywords


def _numbers(tree: Any) -> list[int]:
    return [r.number for r in refs(tree)]


def _affine(call: TorchCall, number: int, run: Recording) -> bool:
    """Is what a call makes affine in one of its tensors? What it does not change with is."""

    def made(factor: int) -> Tensor:
        return _again(call, lambda n: run.tensors[n] * factor if n == number else run.tensors[n])

    if not run.tensors[number].is_floating_point():
        return True
    none, once, twice = map(made, range(3))
    return torch.allclose(twice - once, once - none) if once.is_floating_point() else True


def _summed(call: TorchCall, number: int, held: Sequence[int], run: Recording) -> bool:
    """Does a call sum a tensor along a larger one, a matrix that acts on it as on any signal?"""
    result, x = (run.tensors[k].numel() for k in (_numbers(call.result)[0], number))
    matrices = [k for k in held if run.tensors[k].numel() > max(result, x)]

    def made(*zero: int) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        drawn = {k: torch.randn(run.tensors[k].shape, generator=draw) * (k not in zero) for k in held}
        return _again(call, lambda k: drawn[k].to(run.tensors[k].dtype) if k in drawn else run.tensors[k])

    return any(not torch.allclose(made() + made(number, k), made(number) + made(k)) for k in matrices)


def _chosen(run: Recording, call: TorchCall) -> list[Any]:
    """The sets of places that a top-K chooses."""
    places: list[Any] = run.tensors[[*refs(call.result)][-1].number].sort(-1).values.tolist()
    return places


def _shapes(run: Recording, call: TorchCall) -> Iterator[tuple[int, ...]]:
    return (tuple(x.shape) for r in refs(call.result) if (x := run.tensors.get(r.number)) is not None)


def _changes(module: str) -> str:
    return f"{module}: output"


def _around(call: TorchCall) -> Iterator[Ref]:
    return refs((call.arguments, call.keywords, call.result))


def _named(*runs: Recording) -> Iterator[tuple[dict[int, Any], ...]]:
    """What has a name in runs: parameters, buffers, inputs; by number."""
    return zip(*([run.parameters, run.buffers, run.inputs] for run in runs), strict=True)


def _less(x: Tensor | None, before: Tensor) -> Tensor:
    """What has changed; nothing where an expert gathers other tokens than before, which are no more and no less."""
    if x is None or x.shape != before.shape:
        return before.new_zeros(0)
    return (x - before).masked_fill(x == before, 0)  # scores of minus infinity stay


def _square(x: Tensor) -> float:
    """The mean square; NaN of no entries, and infinite where an entry is no number."""
    square = float(x.double().square().mean())
    return math.inf if math.isnan(square) and x.numel() else square
