"""Runs a module once and writes down the torch calls that it makes: names, arguments, tensors, the module's path.

A mode for torch functions sees a call before it is taken apart; within composites that have no rule a mode for
dispatch sees the calls of aten, which have the names of the same table. Nothing is compiled, so loops that depend on
data run as they are. Read next: ``reading.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_letters
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from scaling_algebra.errors import guard_foreign_code

from .building import Guessed
from .calls import APART, MAKERS, plain, ruled
from .nodes import NotFinite, Unreadable, refused

ASKS = {"__bool__", "item", "tolist", "__float__", "__int__", "__index__"}
"""Calls that make numbers of python of a tensor."""
NOISE = ("rand", "normal_", "uniform_", "bernoulli", "dropout", "exponential_", "multinomial", "gumbel")
"""Beginnings of names of calls that draw."""
STOPS = {"detach", "detach_", "get_data"}
"""Calls through which no gradient passes."""
ORDER = "model: topk: the order of what is chosen changes the output"

Leaf = TypeVar("Leaf")


@dataclass(frozen=True)
class Ref:
    """A tensor of a recording, by number."""

    number: int


@dataclass
class TorchCall:
    """One torch call. key: module, name and how often that name was called there before. held: without gradients."""

    name: str
    function: Any
    arguments: Any
    keywords: Any
    result: Any
    module: str
    key: tuple[str, str, int]
    stale: frozenset[int] = frozenset()
    held: bool = False

    def again(self, value: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the results of the call with other tensors, by number; it may write into copies of them."""
        arguments, keywords = mapped((self.arguments, self.keywords), Ref, lambda ref: value(ref.number).clone())
        with torch.no_grad():
            out = self.function(*arguments, **keywords)
        return [*leaves(arguments[0] if self.name == "__setitem__" else out, Tensor)]


@dataclass
class Recording:
    """One run.

    Attributes:
        calls: in order. tensors: by number, as they were made.
        parameters, buffers: names by number. inputs: places by number. places: of entries, by call, kept by who reads.
        frozen: parameters that do not train. output: the logits. outputs: what every module returned last, by name.
        few: out of how many each top-K chooses that leaves some out.
        doubled: the axis that is twice as large as in the first run of a reading.
    """

    calls: list[TorchCall] = field(default_factory=list)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    places: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    output: Ref = Ref(-1)
    outputs: dict[str, Ref] = field(default_factory=dict)
    frozen: frozenset[int] = frozenset()
    few: list[int] = field(default_factory=list)
    doubled: str = ""

    def tensor(self, ref: Ref) -> Tensor:
        return real(self.tensors[ref.number])

    @property
    def names(self) -> list[tuple[str, str]]:
        """The calls, as they are compared between builds."""
        return [(call.name, call.module) for call in self.calls]

    @cached_property
    def trained(self) -> set[str]:
        """The parameters that a gradient of the output reaches."""
        passing = [call for call in self.calls if not call.held and call.name not in STOPS]
        reached = _behind(replace(self, calls=passing), {self.output.number})
        return {name for number, name in self.parameters.items() if number in reached}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale query key) value, call by call."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    logits = (query @ key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None:
        masked = attn_mask.dtype is torch.bool
        logits = logits.masked_fill(~attn_mask, -torch.inf) if masked else logits + attn_mask
    return logits.softmax(-1) @ value


def normalise_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, entries: int, groups: int, eps: float
) -> Tensor:
    """Applies a group norm call by call: each group of channels is centred and divided by its standard deviation.

    Args:
        x: a tensor (n, channels, ...) with the given number of entries of each channel.
    """
    y = x.reshape(n, groups, channels * entries // groups)
    y = y - y.mean(-1, keepdim=True)
    y = (y * (y.square().mean(-1, keepdim=True) + eps).rsqrt()).reshape(x.shape)
    side = (channels, *(1,) * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(side)
    return y if bias is None else y + bias.reshape(side)


def real(x: Tensor) -> Tensor:
    """Complex numbers as pairs along one more dimension."""
    return torch.view_as_real(x) if x.is_complex() else x


class _Inside(TorchDispatchMode):
    """Calls of aten inside of a call that has no rule, each taken apart until it has one."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, func._schema.name.split("::")[1]
        if name.startswith("_scaled_dot_product"):
            truth = func(*args, **keywords)
            written = {"is_causal": any(args[4:5]), **keywords}
            return self.recorder.attended(self, truth[0], args[:3], written), *truth[1:]
        if name == "native_group_norm":
            statistics = func(*args)[1:]
            with self:
                return normalise_groups(*args), *statistics
        if self.recorder.whole(name, args, keywords) or func not in decomposition_table:
            result = func(*args, **keywords)
            self.recorder.note(name, func, args, keywords, result, fresh=name.endswith("_"))
            return result
        with self:
            return decomposition_table[func](*args, **keywords)


class _Every(TorchFunctionMode):
    """Makes top-K choose all entries, where its K is the given number (0: any number)."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "topk" and _takes_all(self.number, args, kwargs or {}):
            dim = _along(args, kwargs or {})
            return func(args[0], args[0].shape[dim], dim)
        return func(*args, **kwargs or {})


def _along(args: Any, keywords: Mapping[str, Any]) -> int:
    """The dimension of a top-K."""
    along: int = keywords.get("dim", args[2] if len(args) > 2 else -1)
    return along


def _takes_all(every: int | None, args: Any, keywords: Mapping[str, Any]) -> bool:
    """Return whether a top-K call is to choose all entries; ``every`` as for ``record``."""
    return every is not None and every in (0, keywords.get("k", args[1] if len(args) > 1 else None))


class Recorder(TorchFunctionMode):
    """Writes calls down; a tensor is known by its identity, and kept so that no other takes it.

    Args:
        strict: refuse a branch on what is computed.
        every, apart: as for ``record``.
    """

    def __init__(self, strict: bool = True, every: int | None = None, apart: bool = True) -> None:
        super().__init__()
        self.run, self.strict, self.every, self.apart, self.path = Recording(), strict, every, apart, [""]
        self.ids: dict[int, int] = {}
        self.kept: list[Tensor] = []
        self.versions: dict[int, int] = {}
        self.moved: set[int] = set()
        self.chosen = False
        self.slices: dict[int, Any] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    def ref(self, x: Tensor, made: bool = False) -> Ref:
        """The number of a tensor. made: it is a result, whose values are those of now."""
        fresh = id(x) not in self.ids
        if fresh or (made and self._stale(x)):  # what was written in place is another tensor
            self.ids[id(x)] = len(self.kept)
            self.kept.append(x)
        number = self.ids[id(x)]
        if fresh or made:
            with torch._C.DisableTorchFunction():
                self.run.tensors[number] = x.detach().clone()
                self.versions[number] = x._version
        return Ref(number)

    def fail(self, name: str, what: str) -> Unreadable:
        return refused(f"{self.path[-1] or 'model'}: {name}", what)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, getattr(func, "__name__", str(func))
        if name == "__get__":
            name = "get_" + func.__self__.__name__
        if name == "scaled_dot_product_attention":
            return self.attended(self, func(*args, **keywords), args, keywords)
        if not self.whole(name, args, keywords):
            with _Inside(self):
                result = func(*args, **keywords)
            self.versions |= {self.ids[id(x)]: x._version for x in self.kept if id(x) in self.ids}
            return result
        if name == "einsum" and isinstance(args[0], str):
            args = self._paired(func, *_spelled(*args))
        if name in ASKS and self.strict and self.ids.get(id(args[0]), -1) in self.moved:
            every = ", or build with K = M (every expert)" if any(c.name == "topk" for c in self.run.calls) else ""
            todo = f"equations would hold for these values alone; leave out the branch (assert, early exit){every}"
            raise self.fail(name, f"a branch on what is computed; {todo}")
        if isinstance(keywords.get("out"), Tensor):
            raise self.fail(name, "writes into out=; return the result instead")
        stale = frozenset(self.ids[id(x)] for x in leaves((args, keywords), Tensor) if self._stale(x))
        result = func(*args, **keywords)
        if name == "topk":
            if result[0].shape != args[0].shape:
                self.run.few.append(args[0].shape[_along(args, keywords)])
            if _takes_all(self.every, args, keywords) or result[0].shape == args[0].shape:
                result = self._in_order(args[0], _along(args, keywords))
        if name == "__getitem__":
            self.slices[id(result)] = args
        if name == "copy_" and id(args[0]) in self.slices:  # base[key].copy_(x) is base[key] = x
            name, func, args = "__setitem__", Tensor.__setitem__, (*self.slices[id(args[0])], args[1])
        self.note(name, func, args, keywords, result, stale)
        return result

    def whole(self, name: str, args: Any, keywords: Any) -> bool:
        """Is a call written down as it is: by its rule, as a function of one tensor, or because it writes in place?"""
        moved = [x for x in leaves((args, keywords), Tensor) if self.ids.get(id(x), -1) in self.moved]
        if not self.apart and sum(self.ids[id(x)] in self.run.parameters for x in moved) == 1:
            return True
        return ruled(name) or (len(moved) < 2 and plain(name) not in APART) or name.endswith("_")

    def attended(self, mode: AbstractContextManager[Any], truth: Tensor, args: Any, keywords: Any) -> Tensor:
        """Attention, call by call.

        Raises:
            Unreadable: it is not what torch gives.
        """
        with mode:
            made = attention(*args, **keywords)
        if made.shape != truth.shape or not torch.allclose(made, truth, 1e-5, 1e-7, equal_nan=True):
            raise self.fail("attention", "torch gives other numbers than the calls that it is written out in")
        return made

    def _paired(self, func: Any, terms: list[str], out: str, operands: list[Tensor]) -> Any:
        """An einsum of two operands, the last of its products of two: those first that sum what no other has."""

        def pair() -> tuple[int, int, set[str]] | None:
            for b in reversed(range(len(terms))):
                for a in reversed(range(b)):
                    kept = set(out).union(*(t for k, t in enumerate(terms) if k not in (a, b)))
                    if set(terms[a]) & set(terms[b]) - kept:
                        return a, b, kept
            return None

        while len(terms) > 2 and (found := pair()) is not None:
            a, b, kept = found
            letters = "".join(x for x in dict.fromkeys(terms[a] + terms[b]) if x in kept)
            two = f"{terms[a]},{terms[b]}->{letters}", operands[a], operands[b]
            made = func(*two)
            self.note("einsum", func, two, {}, made)
            for k in (b, a):
                del terms[k], operands[k]
            terms.append(letters)
            operands.append(made)
        return f"{','.join(terms)}->{out}", *operands

    def _in_order(self, x: Tensor, dim: int) -> Any:
        """All that are chosen, in the order in which they are, so that which is where depends on no values."""
        self.chosen = True
        at = torch.arange(x.shape[dim]).reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
        return torch.return_types.topk((x.clone(), at.expand(x.shape).clone()))

    def _stale(self, x: Tensor) -> bool:
        return id(x) in self.ids and self.versions[self.ids[id(x)]] != x._version

    def note(
        self,
        name: str,
        func: Any,
        args: Any,
        keywords: Any,
        result: Any,
        stale: frozenset[int] = frozenset(),
        fresh: bool = False,
    ) -> None:
        """One call that was made. fresh: its result is another tensor than it was."""
        arguments, named = mapped((args, keywords), Tensor, self.ref)
        if fresh:
            self.ids.pop(id(result), None)
        if next(leaves(result, Tensor), None) is None and name != "__setitem__":
            return
        out = mapped(args[0] if name == "__setitem__" else result, Tensor, lambda x: self.ref(x, made=True))
        moved = any(r.number in self.moved for r in refs((arguments, named)))
        if moved and not name.startswith(MAKERS):
            outs = list(refs(out))
            if name == "topk" and result[0].shape == args[0].shape:
                outs = outs[:1]
            self.moved |= {r.number for r in outs}
        module = self.path[-1]
        key = (module, name, self.counts[module, name])
        self.counts[module, name] += 1
        held = not torch.is_grad_enabled()
        self.run.calls.append(TorchCall(name, func, arguments, named, out, module, key, stale, held))


def _spelled(equation: str, *rest: Any) -> tuple[list[str], str, list[Tensor]]:
    """The letters of every operand of an einsum, those of its result, and the operands; no ellipsis is left."""
    operands = list(rest[0] if len(rest) == 1 and isinstance(rest[0], list | tuple) else rest)
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms, free = left.split(","), [x for x in ascii_letters if x not in equation]
    most = max(x.dim() - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True))
    if not arrow:
        out = "..." * ("." in left) + "".join(x for x in sorted({*left} - {*",."}) if left.count(x) == 1)
    dots = "".join(free[:most])
    terms = [
        t.replace("...", dots[most - x.dim() + len(t) - 3 :]) if "." in t else t
        for t, x in zip(terms, operands, strict=True)
    ]
    return terms, out.replace("...", dots), operands


def leaves(tree: Any, kind: type[Leaf]) -> Iterator[Leaf]:
    """What is of this kind in arguments or in a result, in order."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(x, kind)


class Number(tuple[float, ...]):
    """A number of python that is another at another build."""


def mapped(tree: Any, kind: type[Leaf], f: Callable[[Leaf], Any]) -> Any:
    """Arguments or a result with what is of this kind replaced."""
    if isinstance(tree, kind):
        return f(tree)
    if isinstance(tree, list | tuple) and not isinstance(tree, Number):
        return (list if type(tree) is list else tuple)(mapped(x, kind, f) for x in tree)
    return {k: mapped(x, kind, f) for k, x in tree.items()} if isinstance(tree, dict) else tree


def refs(tree: Any) -> Iterator[Ref]:
    """The tensors of arguments or of a result, in order."""
    return leaves(tree, Ref)


def numbered(run: Recording, first: Recording) -> Recording:
    """A recording with the numbers that another one of the same calls has for its tensors."""
    same = {call.key: call for call in run.calls}
    tensors, calls = {n: run.tensors[n] for n in (*run.parameters, *run.inputs, *run.buffers)}, []
    for call in first.calls:
        other, keep = same[call.key], (call.arguments, call.keywords, call.result)
        tree = other.arguments, other.keywords, other.result
        for mine, its in zip(refs(keep), refs(tree), strict=True):
            tensors.setdefault(mine.number, run.tensors[its.number])
        numbers = refs(keep)
        arguments, keywords, result = mapped(tree, Ref, lambda _, numbers=numbers: next(numbers))  # type: ignore[misc]
        calls.append(replace(other, arguments=arguments, keywords=keywords, result=result))
    tensors.setdefault(first.output.number, run.tensors[run.output.number])
    return replace(run, calls=calls, tensors=tensors, output=first.output, places={})


def running(inputs: tuple[Any, ...]) -> AbstractContextManager[None]:
    """Runs the forward pass of a model; the error says so where its input was guessed.

    Raises:
        UsageError: as `guard_foreign_code`.
    """
    shape = tuple(inputs[0].shape) if isinstance(inputs, Guessed) else ()
    said = f"; its input is guessed, of shape {shape}: let build return (model, input) or (model, optimizer, input)"
    return guard_foreign_code("the model", said if shape else "")


def record(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    strict: bool = True,
    training: bool = False,
    every: int | None = None,
    apart: bool = True,
) -> Recording:
    """One run of a module on its inputs, without gradients, but where the module asks whether there are.

    Args:
        strict: refuse a branch on what is computed.
        training: in training mode.
        every: a top-K of this number of entries chooses all instead; 0 stands for any number.
        apart: take a call without a rule apart into others, also where it reads one parameter alone.

    Raises:
        Unreadable: a branch on what is computed, or ``out=``.
    """
    model.train(training)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # as in training, and nothing is remembered
            module.train()
            module.momentum = 0.0
    recorder, hooks = Recorder(strict, every, apart), []

    def entered(name: str) -> Callable[..., None]:
        return lambda module, args: recorder.path.append(name)

    def left(module: nn.Module, args: Any, out: Any) -> None:
        where = recorder.path.pop()
        if (x := next(leaves(out, Tensor), None)) is not None and x.is_floating_point():
            recorder.run.outputs[where] = recorder.ref(x)

    for name, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(entered(name)), module.register_forward_hook(left)]
    for name, p in model.named_parameters():
        recorder.run.parameters[recorder.ref(p).number] = name
    for name, b in model.named_buffers():
        if b.is_floating_point():
            recorder.run.buffers[recorder.ref(b).number] = name
    recorder.moved |= set(recorder.run.parameters)
    for k, x in enumerate(y for y in (*inputs, *keywords.values()) if isinstance(y, Tensor)):
        number = recorder.ref(x).number
        recorder.run.inputs[number] = k
        if x.is_floating_point():
            recorder.moved.add(number)
    learning = [p for p in model.parameters() if p.requires_grad]
    recorder.run.frozen = frozenset(recorder.ref(p).number for p in model.parameters() if not p.requires_grad)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for p in learning:
            p.requires_grad_(False)
        with running(inputs), torch.enable_grad():
            state = torch.get_rng_state()
            with recorder:
                made = model(*inputs, **keywords)
            out = output_of(made)
            drawn = not torch.equal(state, torch.get_rng_state())
            with nullcontext() if every is None else _Every(every):
                again = output_of(model(*inputs, **keywords)) if strict and (drawn or recorder.chosen) else out
            if float((out - again).abs().max()) > 1e-5 * float(out.abs().max()):
                raise _noise(recorder.run) if drawn else Unreadable(ORDER)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for p in learning:
            p.requires_grad_(True)
        for hook in hooks:
            hook.remove()
    if strict and not bool(out.isfinite().any()):
        what = "not a number" if bool(out.isnan().all()) else "infinite"
        raise NotFinite(f"the output of the model is {what}; give sizes and an input at which it is finite")
    if strict and bool(out.isnan().any()):
        raise Unreadable("the output of the model is not a number; give sizes and an input at which it is")
    recorder.run.output = recorder.ref(out)
    if losses := losses_of(made):
        run, beside = recorder.run, {recorder.ref(x).number for x in losses.values()}
        beside = _behind(run, beside) - _behind(run, {run.output.number})
        run.calls = [c for c in run.calls if not {x.number for x in refs(c.result)} & beside]
    return recorder.run


def _noise(run: Recording) -> Unreadable:
    call = next((c for c in run.calls if c.name.startswith(NOISE)), None)
    where = f"{call.module or 'model'}: {call.name}" if call else "model"
    return refused(where, "noise in evaluation mode changes the output; add it only where self.training, to be read")


def _behind(run: Recording, numbers: set[int], without: str = "") -> set[int]:
    """These tensors and all that they are computed from, but through calls of a name."""
    for call in reversed(run.calls):
        if call.name != without and any(x.number in numbers for x in refs(call.result)):
            numbers |= {x.number for x in refs((call.arguments, call.keywords))}
    return numbers


def losses_of(out: Any) -> dict[str, Tensor]:
    """The numbers that a module returns beside its output, by name or place: losses of its own."""
    places = out.items() if isinstance(out, dict) else enumerate(out) if isinstance(out, list | tuple) else ()
    beside = {str(k): x for k, x in places if isinstance(x, Tensor) and x.is_floating_point() and x.numel() == 1}
    return {k: x for k, x in beside.items() if x is not output_of(out)}


def choosing(run: Recording) -> list[str]:
    """Buffers that only shift which entries a top-K chooses: the bias of a balance of load without a loss."""
    scores = {x.number for call in run.calls if call.name == "topk" for x in refs((call.arguments, call.keywords))}
    shifting, passed = _behind(run, scores), _behind(run, {run.output.number}, without="topk")
    return [name for number, name in run.buffers.items() if number in shifting - passed]


def output_of(out: Any) -> Tensor:
    """The tensor that a module returns, alone, first (also of a dict), or as ``logits`` or ``last_hidden_state``.

    Raises:
        Unreadable: none.
    """
    named = (getattr(out, key, None) for key in ("logits", "last_hidden_state"))
    out = next((x for x in named if x is not None), out)
    if isinstance(out, dict):
        out = out.get("logits", next(leaves(out, Tensor), out))
    while isinstance(out, list | tuple) and out:
        out = out[0]
    if not isinstance(out, Tensor):
        raise Unreadable(f"the model returns {type(out).__name__}; return a tensor, or an object with logits")
    return out
