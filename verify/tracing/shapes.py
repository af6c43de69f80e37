"""A module that cannot be read, by the shapes of its parameters: a network in which every tensor acts alone.

Which dimensions of a parameter are summed is said by the call that takes it; where none says so, by its shape, and the
answer names it as ambiguous. Read next: ``models.py`` (tries to read first), ``scaling_algebra/solver/layerwise.py``
(the law that such a network gets).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from scaling_algebra.spec.networks.files import as_toml
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import TRACED, Network
from scaling_algebra.spec.powers import Power

from .building import Asked, Build, built, called, doubled, exactly
from .calls import plain
from .fixed import made as replay
from .gradients import FROZEN
from .graph import NUMBER
from .models import COUNTS, Traced
from .naming import LETTERS, Powers, powers_of
from .nodes import Sizes, Unreadable
from .recording import Recording, Ref, TorchCall, leaves, record

Places = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Dimensions of a parameter: those that are summed, those that it makes, and those that count maps."""
ENTRIES = {"add", "sub", "mul", "div", "layer_norm", "native_layer_norm", "rms_norm", "batch_norm", "group_norm",
           "where", "cat", "addcmul", "prelu"}  # fmt: skip
"""Calls that take a parameter entry by entry."""
SPARE = "абвгдежзийклмнопрстуфхцчшщ"
"""Letters of axes with a name of the user's own."""
NEAREST = "a side of sizes {} is no power of an axis; the nearest power is taken"
WEIGHED = "the number of these maps grows: their sum is taken for a mean, on which epsilons (of SGD rates) rest"
TIED = (
    "used in two ways: the numbers are those of the use with the smaller fan-in; the model is to scale the other one, "
    "a tied readout by 1/fan_in"
)
SCALED = (
    "these numbers are those of the module without the factor that it multiplies by; take it out, or multiply elsewhere"
)
FACTORS = "a factor that changes with a size (1/sqrt(d), alpha/rank) is not seen: the numbers are those without it"
CHOSEN = "tokens choose some of the experts, by a number that build does not take"
TAKE_K = "let build take the number of chosen experts, sizes['K'], which is read with all of them (K = M)"
FACTOR = (
    "no call says what it multiplies: as the norm of a matrix (weight_norm) it starts as that norm does, and its rate "
    "has the same power"
)
SQUARE = (
    "it makes {} numbers: where these are a matrix of their own (a hypernetwork), its sums are larger by the side that "
    "they go over, which no shape says; divide them by it"
)
BESIDE = (
    "it multiplies {} entry by entry, and both act as one weight: its numbers are of a factor that starts at Theta(1)"
)
UNSAID = "no call says which side of {} is summed: {}"


@dataclass
class Shaped:
    """A parameter: its sizes by dimension at every build, and its places by every call that takes it.

    Attributes:
        beside: the parameter that it is multiplied with, entry by entry, before both act as one weight.
    """

    name: str
    sizes: list[Sizes]
    uses: set[Places]
    frozen: bool
    beside: str = ""


def places(call: str, position: int, dims: int, arguments: Sequence[Any]) -> Places | None:
    """The places of the dimensions of a parameter that is so manyeth among the tensors of a call; None: not known."""
    every = tuple(range(dims))
    stack = every[:-2]
    if call == "linear" and position == 1 and dims > 1:
        return (dims - 1,), (dims - 2,), stack
    if call == "embedding":
        return (0,), every[1:], ()
    if call.startswith("conv") and position == 1:
        summed = (0, *every[2:]) if "transpose" in call else every[1:]
        return summed, tuple(d for d in every if d not in summed), ()
    if call in ("matmul", "bmm", "mm", "mv", "dot", "baddbmm", "addmm", "grouped_mm"):
        if dims == 1:
            return every, (), ()
        left = position == (1 if call in ("baddbmm", "addmm") else 0)
        return ((dims - 1,), (dims - 2,), stack) if left else ((dims - 2,), (dims - 1,), stack)
    if call == "einsum" and isinstance(arguments[0], str) and "." not in arguments[0]:
        terms, _, out = arguments[0].replace(" ", "").partition("->")
        mine, *others = sorted(terms.split(","), key=lambda t: terms.split(",").index(t) != position)
        beside = set("".join(others))
        summed = tuple(d for d, x in enumerate(mine) if x not in out)
        return summed, tuple(d for d, x in enumerate(mine) if x in out and x not in beside), tuple(
            d for d, x in enumerate(mine) if x in out and x in beside
        )  # fmt: skip
    return ((), every, ()) if dims == 1 or call in ENTRIES else None


MATRICES = ("matmul", "mm", "bmm")
Order = tuple[int, ...]


class Uses:
    """Reads off the calls of a run which dimensions of each parameter are summed where it first meets a signal.

    Attributes:
        found: by parameter, its places in every call that takes it, or takes what is made of weights alone (a
            transpose, W + B A of LoRA, rows of a table).
        beside: by parameter, the one that it is multiplied with, entry by entry, before both act as one weight.
    """

    def __init__(self, run: Recording) -> None:
        self.run = run
        self.found: dict[str, set[Places]] = {name: set() for name in run.parameters.values()}
        self.beside: dict[str, str] = {}
        self._orders: dict[int, list[tuple[str, Order]]] = {
            number: [(name, tuple(range(run.tensors[number].dim())))] for number, name in run.parameters.items()
        }
        self._rows: set[int] = set()  # of tables, at places that the data say
        self._products: set[int] = set()  # of a weight and a signal, entry by entry
        self._signals = set(run.inputs)
        for call in run.calls:
            self._read(call)
        for number in [*self._rows, *self._products]:
            self._end(number)

    def _read(self, call: TorchCall) -> None:
        """Follow weights through one call."""
        read, outs = list(leaves((call.arguments, call.keywords), Ref)), list(leaves(call.result, Ref))
        name, made = plain(call.name), outs[0].number if outs else None
        held = [k for k, r in enumerate(read) if r.number in self._orders]
        acted = any(r.number in self._signals for r in read)
        if acted:
            self._signals |= {r.number for r in outs}
        if made is None or not held:
            return
        if name == "embedding" and held == [1]:
            rows = self.run.tensors[read[0].number].dim()
            self._orders[made] = [(x, (order[0],) * rows + order[1:]) for x, order in self._orders[read[1].number]]
            self._rows |= {made} if acted else set()
        elif not acted and len(held) > 1:
            self._combine(name, [read[k].number for k in held], made)
        elif self._passes(call, name, [r.number for r in read], held, made, acted):
            pass
        else:
            for k in held:
                self._act(call, name, k, read[k].number, made, acted)

    def _combine(self, name: str, held: Sequence[int], made: int) -> None:
        """A sum or a product of weights acts as they do."""
        tensors, shape = self.run.tensors, self.run.tensors[made].shape
        parts = [n for n in held if name in MATRICES or tensors[n].shape == shape]
        if len(shape) == 2 and all(tensors[n].dim() == 2 for n in parts):
            self._orders[made] = known = [x for n in parts for x in self._orders[n]]
            if name == "mul" and len({x for x, _ in known}) == len(known) > 1:
                self.beside |= {x: known[0][0] for x, _ in known[1:]}

    def _passes(
        self, call: TorchCall, name: str, read: Sequence[int], held: Sequence[int], made: int, acted: bool
    ) -> bool:
        """Note dimensions in another order, and return whether a call does no more than that to one weight."""
        number = read[held[0]]
        before, after = self.run.tensors[number], self.run.tensors[made]
        if len(held) > 1 or before.dim() != after.dim() or (acted and number not in self._rows):
            return False
        order = _moved(before, after) if len(read) == 1 else None
        if order is None and not acted and name in ENTRIES and before.shape == after.shape:
            order = [*range(before.dim())]
        if order is not None:
            self._orders[made] = [(x, tuple(own[d] for d in order)) for x, own in self._orders[number]]
            self._rows |= {made} if number in self._rows else set()
            self._rows.discard(number)
        return order is not None

    def _act(self, call: TorchCall, name: str, position: int, number: int, made: int, acted: bool) -> None:
        """Note which dimensions a call sums where a weight meets a signal."""
        dims, out = self.run.tensors[number].dim(), self.run.tensors[made].dim()
        if number in self._products:
            self._end(number, _summed_dims(call, dims) if name in ("sum", "mean") else ())
            return
        others = [r.number for r in leaves((call.arguments, call.keywords), Ref) if r.number != number]
        if name == "mul" and acted and out >= dims and self._signals.intersection(others):
            fresh = self._orders.get(made, [])
            self._orders[made] = fresh + [(x, (-1,) * (out - dims) + own) for x, own in self._orders[number]]
            self._products.add(made)
            if number in self._rows:
                self._rows.discard(number)
                self._rows.add(made)
            return
        at = places(name, position, dims, call.arguments)
        if number in self._rows and not (at and at[0] and self._signals.intersection(others)):
            self._end(number)
            return
        self._rows.discard(number)
        if at is None and acted:
            at = _probed(call, self.run, number)
        for x, own in self._orders[number] if at is not None else ():
            self._note(x, *(tuple(own[d] for d in side) for side in at or ()))

    def _end(self, number: int, over: Sequence[int] = ()) -> None:
        """Note what rows of a table, or a product with a signal, are: summed over these dimensions, or added."""
        rows = number in self._rows
        for x, own in self._orders.pop(number, ()):
            summed = {own[d] for d in over} - {-1}
            rest = [d for d in own if d not in summed]
            if rows and not summed:
                summed, rest = {0}, [d for d in own if d]
            self._note(x, [*summed], rest, ())
        self._rows.discard(number)
        self._products.discard(number)

    def _note(self, name: str, *sides: Sequence[int]) -> None:
        summed, made, stack = (tuple(sorted({d for d in side if d >= 0})) for side in sides)
        self.found[name].add((summed, made, stack))


def _summed_dims(call: TorchCall, dims: int) -> list[int]:
    """Return the dimensions that a call of sum or mean goes over."""
    given = call.keywords.get("dim", call.arguments[1] if len(call.arguments) > 1 else None)
    over = range(dims) if given is None else [given] if isinstance(given, int) else given
    return [d % dims for d in over]


def _probed(call: TorchCall, run: Recording, number: int) -> Places | None:
    """Return the places of a weight in a call that is not known by name: a dimension is made where one entry along it
    changes the result in one place of a dimension alone, and else it is summed.

    Examples:
        >>> _probed(call, run, number)  # of torch.tensordot(x, w, 1), w of shape (8, 3)
        ((0,), (1,), ())
    """
    weight, draw = run.tensors[number].double(), torch.Generator().manual_seed(4)
    if not run.tensors[number].is_floating_point():
        return None
    with suppress(Exception):  # what cannot be run again says nothing
        before, *_ = replay(call, run, {number: weight})
        summed, made = list[int](), list[int]()
        for d, n in enumerate(weight.shape):
            kept = n > 1
            for j in {0, n - 1} if kept else ():
                moved = weight.clone()
                moved.select(d, j).add_(torch.randn(moved.select(d, j).shape, generator=draw, dtype=moved.dtype))
                changed = (replay(call, run, {number: moved})[0] != before).nonzero()
                alone = (len(changed[:, e].unique()) == 1 for e in range(before.dim()) if before.shape[e] == n)
                kept = kept and len(changed) > 0 and any(alone)
            (made if kept else summed).append(d)
        return tuple(summed), tuple(made), ()
    return None


def _moved(before: Tensor, after: Tensor) -> list[int] | None:
    """The order in which a call puts dimensions, if it does no more."""
    if after.numel() != before.numel() or sorted(before.shape) != sorted(after.shape):
        return None
    if before.shape == after.shape and bool((before == after).all()):
        return [*range(before.dim())]
    if before.dim() < 2:
        return None
    for order in ([*range(before.dim() - 2), before.dim() - 1, before.dim() - 2],):
        moved = before.permute(order)
        if moved.shape == after.shape and bool((moved == after).all()):
            return order
    return None


def shaped(models: Sequence[nn.Module], run: Recording | None) -> Iterator[Shaped]:
    """Every parameter of the first of some builds.

    Raises:
        Unreadable: another build lacks it.
    """
    uses, beside = ({}, {}) if run is None else ((known := Uses(run)).found, known.beside)
    owners = {id(p): module for module in models[0].modules() for p in module.parameters(recurse=False)}
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in models]
    for name, p in models[0].named_parameters():
        if lacks := next((k for k, other in enumerate(shapes) if len(other.get(name, ())) != p.dim()), None):
            raise Unreadable(f"{name}: build {lacks + 1} has no such parameter; no answer by shape")
        mine = uses.get(name) or {x for x in [_owned(owners[id(p)], p.dim())] if x is not None}
        sizes = [*zip(*(s[name] for s in shapes), strict=True)]
        yield Shaped(name, sizes, mine, not p.requires_grad, beside.get(name, ""))


def _owned(module: nn.Module, dims: int) -> Places | None:
    """The places of the dimensions of a parameter by the module of torch that has it."""
    kinds = {nn.Linear: "linear", nn.Embedding: "embedding", nn.modules.conv._ConvTransposeNd: "conv_transpose",
             nn.modules.conv._ConvNd: "conv", nn.RNNBase: "linear", nn.RNNCellBase: "linear",
             nn.MultiheadAttention: "linear"}  # fmt: skip
    call = next((x for kind, x in kinds.items() if isinstance(module, kind) and dims > 1), "")
    matrix = call != "linear" or dims == 2  # what attention has beside its matrices are tokens, (1, 1, N)
    return places(call, 1, dims, ("",)) if matrix else None


def _stem_without(stem: str, names: Sequence[str]) -> str:
    """Returns the letter, with underscores behind it until no parameter has its name or that with a number."""
    while any(re.fullmatch(rf"{stem}\d*", x) for x in names):
        stem += "_"
    return stem


class Shapes:
    """The network of shapes.

    Args:
        builds: sizes, of every build but the first with one axis doubled.

    Attributes:
        notes: parameters whose shapes are ambiguous, as (name, note).
        multiplied: as ``Network.multiplied``.
        stems: what the names of summed products, of signals behind them and of the output begin with.
    """

    def __init__(self, parameters: Sequence[Shaped], builds: Sequence[Mapping[str, int]], counted: Mapping[str, str]):
        self.builds, self.counted = builds, counted
        self.notes: list[tuple[str, str]] = []
        self.axes: dict[str, str] = {"x": "D"}
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self.roles: dict[str, str] = {}
        self.multiplied: dict[str, Power] = {}
        self.stems = tuple(_stem_without(x, [p.name for p in parameters]) for x in "sof")
        groups: dict[str, list[Shaped]] = {}
        for p in parameters:
            groups.setdefault(NUMBER.sub("*", p.name), []).append(p)
        for pattern, group in groups.items():
            same = all(replace(p, name="") == replace(group[0], name="") for p in group)
            if same and not pattern.startswith("*"):  # no role begins so
                group = [replace(group[0], name=pattern)]
            for p in group:
                self._tensor(p)

    def _grows(self, name: str, sizes: Sizes) -> Powers:
        """The powers of the axes that a size is, rounded where it is none.

        Raises:
            Unreadable: it is 0.
        """
        if 0 in sizes:
            raise Unreadable(f"{name}: a side of it is 0 at {self.builds[sizes.index(0)]}; give larger sizes")
        powers = powers_of(sizes, self.builds)
        if powers is None or any(p.denominator > 1 for p in powers.values()):
            self.notes.append((name, NEAREST.format(tuple(sizes))))
            powers = powers_of([2.0 ** round(math.log2(n / sizes[0])) for n in sizes], self.builds) or {}
        return powers

    def _tensor(self, p: Shaped) -> None:
        name, grows = p.name, [self._grows(p.name, s) for s in p.sizes]
        summed, made, stack = self._places(name, p, grows)
        taken: dict[str, int] = {}
        if p.beside:  # which has the size of their product
            entries = Power()
            for d in summed:
                entries *= Power.of(grows[d])
            self.multiplied[name] = entries ** Fraction(-1, 2)
            self.notes.append((name, BESIDE.format(p.beside)))

        def letters(dims: Sequence[int]) -> str:
            found = ""
            for axis, count in ((a, int(n)) for d in dims for a, n in grows[d].items()):
                for _ in range(abs(count)):
                    taken[axis] = k = taken.get(axis, -1) + 1
                    pool = LETTERS.get(axis) or SPARE[4 * len(set(self.axes.values()) - {*LETTERS}) :]
                    known = [x for x, a in self.axes.items() if a == axis]
                    letter = known[k] if k < len(known) else next(x for x in pool if x not in self.axes)
                    self.axes[letter] = axis
                    found += letter
            return found

        read, out, maps = letters(summed), letters(made), letters(stack)
        for d in (d for d in made if len(p.sizes) > 1 and sum(map(abs, grows[d].values())) > 1):
            self.notes.append((name, SQUARE.format(Power.of(grows[d]))))
        if (axis := self.counted.get(name)) is not None:
            letter = next((x for x, a in self.axes.items() if a == axis), LETTERS[axis][0])
            self.axes[letter], maps = axis, letter
        if maps and any(self.axes[x] == "M" for x in maps):
            self.notes.append((name, WEIGHED))
        symbol, k = f"W{len(self.roles) + 1}", len(self.roles) + 1
        self.roles[symbol] = name
        source = _named(self._constant(read + maps), [*(read + maps)] or ["x"])
        whole = [*out, *maps, *read] or ["x"]
        product, behind, _ = (f"{stem}{k}" for stem in self.stems)
        self.lines.append(f"{_named(product, [*out, *maps])} = {_named(symbol, whole)} {source}")
        if out or maps:
            self.lines.append(f"{behind} = {_named(product, [*out, *maps])}")

    def _constant(self, letters: str) -> str:
        key = " ".join(self.axes[x] for x in letters)
        return self.constants.setdefault(key, f"x{len(self.constants)}" if self.constants else "data")

    def _places(self, name: str, p: Shaped, grows: Sequence[Powers]) -> Places:
        """The dimensions that are summed, made and counted; where no call says so, by shape."""
        growing = [d for d, powers in enumerate(grows) if powers]
        kinds = {
            tuple(tuple(tuple(sorted(grows[d].items())) for d in side if grows[d]) for side in use): use
            for use in p.uses
        }
        if len(kinds) > 1:
            use = min(kinds.values(), key=lambda u: [str(grows[d]) for d in u[0] if grows[d]])
            self.notes.append((name, TIED))
            return use
        if kinds:
            return next(iter(kinds.values()))
        shape = tuple(sizes[0] for sizes in p.sizes)
        if len({str(grows[d]) for d in growing}) > 1 or len(growing) > 2:
            self.notes.append((name, UNSAID.format(shape, "the last one is taken")))
        elif len(growing) == 1 and (len(p.sizes) == 2 or sum(set(s) != {1} for s in p.sizes) > 1):
            self.notes.append((name, UNSAID.format(shape, "taken for an input's, not a readout's")))
        elif not growing and len(p.sizes) != 1:
            self.notes.append((name, FACTOR))
        if len(growing) < 2:
            return (), tuple(range(len(p.sizes))), ()
        *stack, made, summed = growing
        return (summed,), (made,), tuple(stack)

    def network(self, name: str, why: str) -> Network:
        """The network, which says why it is no more."""
        outs = [x.partition(" ")[0] for x in self.lines if "[" not in x.partition("=")[0]]
        product, _, last = self.stems
        made = {x for line in self.lines for x in re.findall(rf"\b{product}\d+\b", line.partition("=")[2])}
        outs = [x for x in outs if x not in made]
        text = "\n".join([*self.lines, f"{last} = {' + '.join(outs)}"])
        used = set(re.findall(r"(?<=[\[,])\w(?=[\],])", text))
        axes = {x: a for x, a in self.axes.items() if x in used}
        read = network(name, text, axes, self.roles, constants=[x for x in self.constants.values() if x != "data"])
        return replace(read, unread=why, multiplied=self.multiplied)


def _named(name: str, letters: Sequence[str]) -> str:
    return f"{name}[{','.join(letters)}]" if letters else name


def along(reading: Traced, growing: Collection[str]) -> Traced:
    """A reading without what it says of a number of maps, where that is not among the axes that grow."""
    notes = [x for x in reading.notes if x[1] != WEIGHED or "M" in growing]
    return replace(reading, notes=notes)


def by_shape(
    build: Build, base: Mapping[str, int] | None, why: str, name: str = TRACED, only: Collection[str] = ()
) -> Traced:
    """The shapes of a module's parameters as a network; ``why`` says what stands in the way of equations.

    Args:
        only: these parameters; all where there are none.
    """
    asked = Asked(base or {})
    called(build, asked)
    start = {axis: max(n, 2) if axis in COUNTS else n for axis, n in asked.items()}
    few = {**start, "K": start["M"] // 2} if start.get("K", 0) >= start.get("M", 1) > 1 else start
    builds = [few, *(doubled(few, axis) for axis in few)]  # K and M change alone
    models = [called(build, sizes)[0] for sizes in builds]
    run = None
    for training in (True, False):  # noise of training, which is never twice the same, may hinder the first
        with suppress(Exception), exactly():  # what hinders both hinders the equations, and is said there
            if run is None:
                model, (inputs, keywords), _ = built(build, start)
                run = record(model, inputs, keywords, strict=False, training=training, apart=False)
    numbers = [Counter(NUMBER.sub("*", x) for x, _ in m.named_parameters()) for m in models]
    counted: dict[str, str] = {}
    for pattern in numbers[0]:
        powers = powers_of([n[pattern] or 1 for n in numbers], builds) or {}
        counted |= {pattern: "M"} if "M" in powers else {}
    shapes = Shapes([p for p in shaped(models, run) if not only or p.name in only], builds, counted)
    chosen = run is not None and "M" in start and _chooses(run, start["M"], start.get("K", 0))
    network = shapes.network(name, f"{TAKE_K}; {why}" if chosen else why)
    shapes.notes += [("", CHOSEN)] if chosen else []
    found = {x: "" if p.requires_grad else FROZEN for x, p in models[0].named_parameters() if not only or x in only}
    return Traced(as_toml(network), network, {}, shapes.notes, {}, math.nan, start).freezing(found)


def _chooses(run: Recording, experts: int, given: int) -> bool:
    """Return whether a top-K takes fewer than all ``experts``, and another number of them than ``given``.

    A top-K along another dimension, as where experts choose tokens, is not counted.
    """
    calls = [(next(leaves(c.arguments, Ref)), next(leaves(c.result, Ref))) for c in run.calls if c.name == "topk"]
    shapes = [(run.tensors[a.number].shape, run.tensors[b.number].shape) for a, b in calls]
    kept = [(b, a) for one, other in shapes for a, b in zip(one, other, strict=True) if a != b]
    return any(whole == experts and few != given for few, whole in kept)
