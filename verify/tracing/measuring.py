"""Measures what a module computes while it trains: changes of signals, and the parts of each product with a parameter.

The module is recorded before training and after updates; the products are then recomputed with weights or signals of
either time. Read next: ``models.py`` (the reading), ``verify/apply/checking.py`` (trains and judges).
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

from .building import Inputs, in_float64
from .gradients import match_roles
from .models import TracedModel
from .recording import Recording, TensorRef, TorchCall, iterate_refs, record_forward

NO_VALUES: Mapping[str, Tensor] = {}
OUTPUT, UPDATE = "output", ".update"
"""Name of the module's output, and suffix of updates."""
PRODUCT_PARTS = {"init": ("init",), "update": ("update", "effective"), "propagating": ("propagating",)}
"""Parts of a product and their names in the engine. A product with the data has no propagating part, so both updates
are equal."""
DATA_READERS = ("embedding",)
"""Calls that look up a tensor at positions given by the data."""


def find_parameters(model: nn.Module, role: str) -> list[Tensor]:
    """Returns the parameters of a module that one name in the network read from it refers to, such as those of all
    layers.
    """
    named = dict(model.named_parameters())
    return [named[name].detach() for name, roles in match_roles(named, [role]).items() if roles]


class TrainingWatch:
    """Measures how a module changes in training: calling the object returns how far signals have moved since it was
    created.

    Args:
        model: the module.
        inputs: its positional and keyword inputs.
        traced: the network that was read from the module, possibly at other sizes.

    Attributes:
        first: the recording at creation.
        switched: whether any token has since been routed to other experts.
        read_as_signals: for each call, by key, the numbers of the weights that it uses as signals. A weight is used
            so if the call divides it by its own norm or is no affine function of it, or if it is a vector to which
            the call applies a matrix.
        weights: for each tensor made of parameters alone, by number, the names of these parameters.
        chosen: numbers of the integer tensors that depend on computed values, such as the result of a top-K.
        products: for each parameter, the calls that multiply it with a signal, each with the number of the tensor
            through which it uses the parameter.
        makers: the call that made each tensor, by number.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, traced: TracedModel) -> None:
        self.model, self.inputs, self.traced, self.switched = model, inputs, traced, False
        self.first, self.read_as_signals = self._record(), dict[tuple[str, str, int], list[int]]()
        self._multiples = dict[tuple[str, int], bool]()
        self.weights, self.chosen, self.products = self._classify_tensors()
        self.roles = match_roles(self.products, traced.network.tensors)
        self.makers = {
            x: call
            for call in self.first.calls
            for x in _list_numbers(call.result)
            if x not in [r.number for r in call.iterate_inputs()]
        }  # a tensor that is returned unchanged or changed in place keeps its maker

    def _record(self) -> Recording:
        """Records a forward pass of the module as it is now."""
        with in_float64():
            return record_forward(self.model, *self.inputs, strict=False)

    def _classify_tensors(self) -> tuple[dict[int, frozenset[str]], set[int], dict[str, list[tuple[TorchCall, int]]]]:
        """Follows the calls of the first recording to tell weights from signals; returns ``weights``, ``chosen`` and
        ``products``.
        """
        run = self.first
        weights = {number: frozenset([name]) for number, name in run.parameters.items()}
        unread = bool(self.traced.network.unread)  # in equations every input but the first is a constant
        signals, chosen = {x for x, place in run.inputs.items() if unread or place == 0}, set[int]()
        norms: dict[int, frozenset[str]] = {}  # signals made of parameters alone, with the names of these
        products: dict[str, list[tuple[TorchCall, int]]] = {}
        for call in run.calls:
            mine = dict.fromkeys(r.number for r in call.iterate_inputs())
            acted, made = [x for x in mine if x in signals], list(iterate_refs(call.result))
            held = [x for x in mine if x in weights]
            if held and made and not acted:
                bent = [x for x in held if not (unread or _is_affine(call, x, run))]
                acted = self.read_as_signals[call.key] = [
                    x for x in held if x in bent or _is_summed_by_matrix(call, x, held, run)
                ]
                held = [x for x in held if x not in acted]
            if acted and all(x in norms or x in weights for x in acted):
                names = frozenset[str]().union(*(norms[x] if x in norms else weights[x] for x in acted))
                own = [
                    x for x in held if weights[x] & names
                ]  # a parameter divided by its own norm is not a product with a signal
                if own:
                    acted, held = [*acted, *own], [x for x in held if x not in own]
                    self.read_as_signals[call.key] = [*self.read_as_signals.get(call.key, ()), *own]
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
        """Maps the name of each measured quantity to the quantities of the engine with which it is compared.

        ``NAME.init``, ``NAME.update`` and ``NAME.propagating`` are the parts W_0 x_0, dW x and W_0 dx of the product of
        the parameter NAME with a signal x; numbers of layers and experts in NAME are replaced by ``*``. Changes of
        signals are named after the module and the call that makes them.
        """
        network, found = self.traced.network, dict[str, Sequence[str]]()
        if network.unread:  # there are no quantities of the engine to compare with
            updates = [
                f"{key}{UPDATE}" for name, calls in self.products.items() for key in self._list_keys(name, len(calls))
            ]
            return dict.fromkeys([*updates, *map(_name_output, self._module_outputs), OUTPUT], ())
        table = list_quantities(network)
        for key, outs in self._product_signals.items():
            for part, names in PRODUCT_PARTS.items():
                known = [next((f"{out}.{x}" for x in names if f"{out}.{x}" in table), "") for out in outs]
                if all(known):
                    found[f"{key}.{part}"] = known
        found |= {name: [f"{signal}.change"] for signal, (name, _, _) in self._signals.items()}
        (last, *_) = network.statements[-1].inputs
        return found | {OUTPUT: [f"{last.name}.change"]}

    @cached_property
    def _signals(self) -> dict[str, tuple[str, TorchCall, int]]:
        """Maps each signal of the equations whose change is measured to its printed name, the call that makes it, and
        its position among the tensors that this call returns.

        Measured are the signals that are neither products with a parameter nor gates nor constants.
        """
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
    def _product_signals(self) -> dict[str, tuple[str, ...]]:
        """Maps each product with a parameter to the signals in the equations that are its result.

        The key is the parameter's name, followed by a number from the second product on.
        """
        network, outs = self.traced.network, dict[str, tuple[str, ...]]()
        known, numbers = self.roles, {name for name, x in self.model.named_parameters() if x.numel() == 1}
        for name, calls in self.products.items():
            if name in numbers:  # a scalar multiplies; in the equations it acts on a constant
                continue
            if not all(self._is_multiple(name, x) or len(self.weights[x]) == 1 for _, x in calls):
                continue  # in the equations it is a factor of another parameter's product
            uses = [network.uses(role) for role in known[name]]
            if not uses or any(len(u) != len(calls) for u in uses):
                continue
            for k in range(len(calls)):
                statements = [u[k] for u in uses]
                plain = all(len(s.factors) == 1 and not s.multipliers for s in statements)
                if plain and not any(role in network.multiplied for role in known[name]):
                    outs[self._make_key(known[name][0], k)] = tuple(s.out for s in statements)
        return outs

    @cached_property
    def _module_outputs(self) -> Mapping[str, TensorRef]:
        """The output of every submodule, except those made of weights alone; empty if the equations are known."""
        found = self.first.outputs if self.traced.network.unread else {}
        return {name: x for name, x in found.items() if name and x.number not in self.weights}

    def _list_keys(self, name: str, uses: int) -> list[str]:
        """Returns the names of the products of a parameter with signals, as in ``_make_key``.

        A product that is not measured has "" in place of its name. The list is empty if the network lacks the
        parameter.

        Args:
            name: the parameter.
            uses: the number of its products.
        """
        if not self.roles[name]:
            return []
        keys = [self._make_key(self.roles[name][0], k) for k in range(uses)]
        return keys if self.traced.network.unread else [key if key in self._product_signals else "" for key in keys]

    def _make_key(self, role: str, k: int) -> str:
        """Returns the name of product number ``k`` (from 0) with a parameter: ``qkv``, ``qkv 2``, ...

        Args:
            role: the name of the parameter in the network; the number of a part, as in ``qkv[0]``, is removed.
            k: the number.
        """
        return re.sub(r"(\[\d+\])+$", "", role) + (f" {k + 1}" if k else "")

    def __call__(self) -> dict[str, float]:
        """Runs the module and returns the root mean square of every measured quantity by name.

        It is NaN for an expert that no token reaches, or that now gets another number of tokens than when this object
        was created.

        Raises:
            UsageError: the module now makes other calls than when this object was created, although it selects no
                experts.
        """
        now, first = self._record(), self.first
        there = self._align_with_first(now)
        same = first.call_names == now.call_names and all(
            [*_iterate_shapes(first, call)] == [*_iterate_shapes(there, call)] for call in first.calls
        )
        if not (same or self.chosen):
            raise UsageError(
                "the model makes other calls after training steps, although it selects no experts; "
                "its changes cannot be measured"
            )
        choices = [call for call in first.calls if call.name == "topk"]
        self.switched = (
            self.switched or not same or any(_list_choices(first, c) != _list_choices(there, c) for c in choices)
        )
        sizes: dict[str, list[float]] = {}
        for name, calls in self.products.items():
            for key, (call, number) in zip(self._list_keys(name, len(calls)), calls, strict=False):
                if key:
                    later = self._find_later_calls(call, self._product_signals.get(key, ()))
                    for part, size in self._measure_parts(name, call, number, later, there).items():
                        sizes.setdefault(f"{key}.{part}", []).append(size)

        def measure_change(ref: TensorRef, later: Tensor | None) -> list[float]:
            return [_compute_mean_square(_subtract(later, first.tensors[ref.number]))]

        for name, call, place in self._signals.values():
            ref = [*iterate_refs(call.result)][place]
            sizes[name] = measure_change(ref, there.tensors.get(ref.number))
        for name, x in self._module_outputs.items():
            sizes[_name_output(name)] = measure_change(
                x, now.tensors[now.outputs[name].number] if name in now.outputs else None
            )
        sizes[OUTPUT] = measure_change(first.output, now.tensors[now.output.number])
        known = {key: [x for x in each if not math.isnan(x)] for key, each in sizes.items()}
        return {key: (sum(x) / len(x)) ** 0.5 if x else math.nan for key, x in known.items()}

    def _align_with_first(self, now: Recording) -> Recording:
        """Gives the tensors of a later recording the numbers that the same tensors have in the first one.

        Only calls that are made as often as in the first run are matched; an expert without a token makes none.
        """
        first = self.first
        if first.call_names == now.call_names:
            return now
        kept = {name for name, count in Counter(first.call_names).items() if Counter(now.call_names)[name] == count}
        again = {call.key: call for call in now.calls}
        named = [(x, {value: number for number, value in y.items()}) for x, y in _iterate_named(first, now)]
        tensors = {a: now.tensors[y[value]] for x, y in named for a, value in x.items() if value in y}
        for call in first.calls:
            if (call.name, call.module) in kept:
                pairs = zip(*map(_iterate_refs, (call, again[call.key])), strict=False)
                tensors |= {a.number: now.tensors[b.number] for a, b in pairs}
        return replace(now, tensors=tensors)

    def _find_later_calls(self, call: TorchCall, signals: Sequence[str]) -> list[tuple[int, TorchCall]]:
        """Returns the later calls that belong to the same product in the equations as a call that multiplies.

        In ``(w * x).sum(-1)``, this is the sum after the multiplication.

        Args:
            call: the call that multiplies.
            signals: the signals in the equations that the product makes.

        Returns:
            The later calls in order, each with the number of the tensor that it takes, which the call before it made.
            Empty if ``call`` makes the signal itself, or if a later call takes other tensors, too.
        """
        ends = {self.traced.calls[x][:3] for x in signals if x in self.traced.calls}
        if not ends or call.key in ends:
            return []
        later: list[tuple[int, TorchCall]] = []
        (number, *_) = _list_numbers(call.result)
        for x in self.first.calls[self.first.calls.index(call) + 1 :]:
            if number in (taken := [r.number for r in x.iterate_inputs()]):
                if taken != [number]:
                    break
                later.append((number, x))
                if x.key in ends:
                    return later
                (number, *_) = _list_numbers(x.result)
        return []

    def _measure_parts(
        self, name: str, call: TorchCall, number: int, later: Sequence[tuple[int, TorchCall]], now: Recording
    ) -> dict[str, float]:
        """Returns the mean squares of W_0 x_0 (init), dW_t x_t (update) and W_0 dx_t (propagating) of one product.

        The call is affine in each of its parameters, so the product is its value minus its value with the parameter at
        zero.

        Args:
            name: the parameter W.
            call: the call that computes the product.
            number: number of the tensor through which the call uses W.
            later: as from ``_find_later_calls``.
            now: the present recording, numbered like the first.
        """

        def rerun_product(run: Recording, of: Callable[[], Tensor] | None = None) -> Tensor:
            """Runs the call again on the signals of a recording, with the initial weights.

            For the tensor ``number``, the result of ``of`` is used instead, if it is given.
            """

            def value(n: int) -> Tensor:
                if n not in self.weights or n in self.read_as_signals.get(call.key, ()):
                    return run.tensors[n]
                return self._compute_weight(n, run) if of is None or n != number else of()

            made = _rerun(call, value)
            for taken, after in later:
                made = _rerun(after, {taken: made}.__getitem__)
            return made

        alone, own = self._is_multiple(name, number), next(x for x, y in self.first.parameters.items() if y == name)

        def replace_parameter(run: Recording, value: Callable[[Tensor], Tensor]) -> Tensor:
            """Returns what the tensor ``number`` would be if the parameter had another value.

            This value is ``value`` of the one in the recording. If the tensor also depends on other parameters, or not
            linearly on this one, ``value`` is applied to the tensor itself.
            """
            if not alone:
                return value(run.tensors[number])
            return self._compute_weight(number, run, {name: value(run.tensors[own])})

        def compute_product(run: Recording) -> Tensor:
            """Returns the product of the initial value of the parameter with the signals of a recording."""
            return rerun_product(run) - rerun_product(run, lambda: replace_parameter(run, torch.zeros_like))

        init = compute_product(self.first)
        if not all(x in now.tensors for x in self._iterate_needed(call)):
            return {"init": _compute_mean_square(init), "update": math.nan, "propagating": math.nan}
        moved = rerun_product(now, lambda: replace_parameter(now, lambda x: x)) - rerun_product(now)
        return {
            "init": _compute_mean_square(init),
            "update": _compute_mean_square(moved),
            "propagating": _compute_mean_square(_subtract(compute_product(now), init)),
        }

    def _is_multiple(self, name: str, number: int) -> bool:
        """Returns whether a tensor made of parameters changes linearly with one of them, independently of the others.

        This holds for W in W + B A, but not for B, whose coefficient A is another parameter.

        Args:
            name: the parameter.
            number: number of the tensor, which is made of parameters alone.
        """
        if (name, number) not in self._multiples:
            names, draw = sorted(self.weights[number]), torch.Generator().manual_seed(2)
            shapes = {self.first.parameters[k]: self.first.tensors[k].shape for k in self.first.parameters}
            one, other = ({x: torch.randn(shapes[x], generator=draw, dtype=torch.float64) for x in names} for _ in "ab")
            parts = []
            for values, factor in ((one, 1), (one, 2), (other, 1)):
                both = ({**values, name: one[name] * k} for k in (factor, 0))
                at, zero = (self._compute_weight(number, self.first, x) for x in both)
                parts.append(at - zero)
            self._multiples[name, number] = torch.allclose(2 * parts[0], parts[1]) and torch.allclose(
                parts[0], parts[2]
            )
        return self._multiples[name, number]

    def _iterate_needed(self, call: TorchCall) -> Iterator[int]:
        """Yields the numbers of all tensors that are needed to rerun a call."""
        for x in [r.number for r in call.iterate_inputs()]:
            yield x
            if x in self.weights and x in self.makers:
                yield from self._iterate_needed(self.makers[x])

    def _compute_weight(self, number: int, run: Recording, values: Mapping[str, Tensor] = NO_VALUES) -> Tensor:
        """Recomputes a tensor made of parameters alone, from their initial values or from given ones.

        Args:
            number: number of the tensor.
            run: the recording from which selections (such as the result of a top-K) are taken.
            values: values of some parameters by name.
        """
        first, call = self.first, self.makers.get(number)
        if (name := first.parameters.get(number, "")) in values:
            return values[name].to(first.tensors[number].dtype)
        again = self.weights.get(number, frozenset()) & values.keys()
        if call is None or not (again or any(x in self.chosen for x in [r.number for r in call.iterate_inputs()])):
            return first.tensors[number]
        return _rerun(
            call, lambda n: self._compute_weight(n, run, values) if n in self.weights else run.tensors[n], number
        )


def _rerun(call: TorchCall, value: Callable[[int], Tensor], number: int | None = None) -> Tensor:
    """Runs a call again in float64 and returns one of its results.

    Args:
        call: the call.
        value: maps the number of each tensor argument to the tensor to use.
        number: number of the result; None for the first.
    """
    with in_float64():
        found = call.rerun(value)
    return found[0 if number is None else _list_numbers(call.result).index(number)]


def _list_numbers(tree: Any) -> list[int]:
    """Returns the numbers of the tensors inside nested arguments."""
    return [r.number for r in iterate_refs(tree)]


def _is_affine(call: TorchCall, number: int, run: Recording) -> bool:
    """Returns whether the result of a call is an affine function of one of its tensors (or independent of it)."""

    def rerun_scaled(factor: int) -> Tensor:
        return _rerun(call, lambda n: run.tensors[n] * factor if n == number else run.tensors[n])

    if not run.tensors[number].is_floating_point():
        return True
    none, once, twice = map(rerun_scaled, range(3))
    return torch.allclose(twice - once, once - none) if once.is_floating_point() else True


def _is_summed_by_matrix(call: TorchCall, number: int, held: Sequence[int], run: Recording) -> bool:
    """Returns whether a call applies a matrix to a smaller weight, so that this weight acts like a signal.

    An example is ``W @ v`` with two parameters: the matrix W is applied to the vector v.

    Args:
        call: the call.
        number: number of the weight.
        held: numbers of all weights that the call takes.
        run: the recording.
    """
    result, x = (run.tensors[k].numel() for k in (_list_numbers(call.result)[0], number))
    matrices = [k for k in held if run.tensors[k].numel() > max(result, x)]

    def rerun_with_zeros(*zero: int) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        drawn = {k: torch.randn(run.tensors[k].shape, generator=draw) * (k not in zero) for k in held}
        return _rerun(call, lambda k: drawn[k].to(run.tensors[k].dtype) if k in drawn else run.tensors[k])

    return any(
        not torch.allclose(
            rerun_with_zeros() + rerun_with_zeros(number, k), rerun_with_zeros(number) + rerun_with_zeros(k)
        )
        for k in matrices
    )


def _list_choices(run: Recording, call: TorchCall) -> list[Any]:
    """Returns the positions that a top-K call selected, sorted along its last dimension, so that two runs can be
    compared.
    """
    places: list[Any] = run.tensors[[*iterate_refs(call.result)][-1].number].sort(-1).values.tolist()
    return places


def _iterate_shapes(run: Recording, call: TorchCall) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of the results of a call; results that the recording does not have are skipped."""
    return (tuple(x.shape) for r in iterate_refs(call.result) if (x := run.tensors.get(r.number)) is not None)


def _name_output(module: str) -> str:
    """Returns the name under which the change of a submodule's output is reported."""
    return f"{module}: output"


def _iterate_refs(call: TorchCall) -> Iterator[TensorRef]:
    """Yields the tensors of a call: arguments, keywords, results."""
    return iterate_refs((call.arguments, call.keywords, call.result))


def _iterate_named(*runs: Recording) -> Iterator[tuple[dict[int, Any], ...]]:
    """Yields the dicts that name the tensors of several recordings, by number, as one tuple for all recordings.

    The first tuple has the dicts of the parameters, the second those of the buffers, the third those of the inputs.
    """
    return zip(*([run.parameters, run.buffers, run.inputs] for run in runs), strict=True)


def _subtract(x: Tensor | None, before: Tensor) -> Tensor:
    """Returns the change of a tensor; an empty tensor if it is missing or an expert now gets another number of tokens.

    Entries that are equal have the difference 0 even if they are infinite (masked scores).
    """
    if x is None or x.shape != before.shape:
        return before.new_zeros(0)
    return (x - before).masked_fill(x == before, 0)  # masked scores of minus infinity do not change


def _compute_mean_square(x: Tensor) -> float:
    """Returns the mean of the squared entries: NaN for an empty tensor, infinity if an entry is NaN."""
    square = float(x.double().square().mean())
    return math.inf if math.isnan(square) and x.numel() else square
