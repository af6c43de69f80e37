"""Runs a module once and records the torch calls that it makes: name, arguments, results, and the module's path.

A torch function mode sees each call before it is decomposed. Inside a call without a rule, a dispatch mode sees the
aten calls, which are looked up under the same names. Nothing is compiled, so loops that depend on data run as they are.
Read next: ``reader.py``.
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

from .building import GuessedInput
from .nodes import NotFinite, Unreadable, make_error
from .rule_table import DECOMPOSED_CALLS, FACTORY_PREFIXES, has_rule, normalise_call_name

PYTHON_CONVERSIONS = {"__bool__", "item", "tolist", "__float__", "__int__", "__index__"}
"""Calls that convert a tensor to a Python number."""
RANDOM_CALLS = ("rand", "normal_", "uniform_", "bernoulli", "dropout", "exponential_", "multinomial", "gumbel")
"""Prefixes of the names of calls that draw random numbers."""
GRADIENT_STOPS = {"detach", "detach_", "get_data"}
"""Calls through which no gradient passes."""
ORDER_MATTERS = (
    "model: topk: the output changes with the order of the selected entries; let it depend on the selection alone "
    "(scatter back, or sum over the selected)"
)

LeafType = TypeVar("LeafType")


@dataclass(frozen=True)
class TensorRef:
    """A reference to a tensor of a recording.

    Attributes:
        number: the key of the tensor in ``Recording.tensors``.
    """

    number: int


@dataclass
class TorchCall:
    """One recorded torch call.

    Attributes:
        name: name of the function.
        function: the function itself.
        arguments: positional arguments, with a ``TensorRef`` in place of each tensor.
        keywords: keyword arguments, likewise.
        result: the result, likewise.
        module: path of the module that made the call.
        key: (module, name, number of earlier calls of that name in the module); identifies the call in other runs.
        stale: numbers of arguments whose values were changed in place, through a view, since they were recorded.
        without_gradients: whether it was made without gradients (``torch.no_grad``).
    """

    name: str
    function: Any
    arguments: Any
    keywords: Any
    result: Any
    module: str
    key: tuple[str, str, int]
    stale: frozenset[int] = frozenset()
    without_gradients: bool = False

    def iterate_inputs(self) -> Iterator[TensorRef]:
        """Yields the references to the tensors among the arguments, in order."""
        return iterate_refs((self.arguments, self.keywords))

    def rerun(self, value: Callable[[int], Tensor]) -> list[Tensor]:
        """Runs the call again on other tensors and returns the resulting tensors.

        Args:
            value: maps the number of each tensor argument to the tensor to use; the call works on copies.
        """
        arguments, keywords = map_leaves(
            (self.arguments, self.keywords), TensorRef, lambda ref: value(ref.number).clone()
        )
        with torch.no_grad():
            out = self.function(*arguments, **keywords)
        return [*iterate_leaves(arguments[0] if self.name == "__setitem__" else out, Tensor)]


@dataclass
class Recording:
    """The calls and tensors of one forward pass. Tensors are identified by a number.

    Attributes:
        calls: the calls in order.
        tensors: every tensor by number, with the values it had when it was made.
        parameters: names of the parameters, by number.
        buffers: names of the floating-point buffers, by number.
        inputs: for each tensor that is an input, by number, its position among the tensor inputs.
        positions: cache of ``data_movement.find_positions``: for each call that moves entries, where the entries of its
            results come from.
        output: the tensor that the module returns.
        outputs: the first tensor that each submodule returned in its last call, by path.
        frozen: numbers of the parameters that do not require gradients.
        partial_topk: for each top-K call that leaves out some candidates, the number of candidates.
        enlarged_axis: if the module was run at several sizes, the axis that is larger here than in the first run; ""
            for the first.
    """

    calls: list[TorchCall] = field(default_factory=list)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    positions: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    output: TensorRef = TensorRef(-1)
    outputs: dict[str, TensorRef] = field(default_factory=dict)
    frozen: frozenset[int] = frozenset()
    partial_topk: list[int] = field(default_factory=list)
    enlarged_axis: str = ""

    def get_tensor(self, ref: TensorRef) -> Tensor:
        """Returns the recorded values of a tensor; a complex tensor has an additional last dimension of size 2."""
        return as_real_pairs(self.tensors[ref.number])

    @property
    def call_names(self) -> list[tuple[str, str]]:
        """The (name, module) pairs of all calls. Two runs can be compared tensor by tensor if these agree."""
        return [(call.name, call.module) for call in self.calls]

    @cached_property
    def trained_names(self) -> set[str]:
        """Names of the parameters that a gradient of the output reaches."""
        passing = [call for call in self.calls if not call.without_gradients and call.name not in GRADIENT_STOPS]
        reached = _find_ancestors(replace(self, calls=passing), {self.output.number})
        return {name for number, name in self.parameters.items() if number in reached}


def decompose_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Computes scaled dot product attention, softmax(scale q k^T) v, by calls that have rules.

    Equations can express these calls. The arguments are those of ``torch.nn.functional.scaled_dot_product_attention``.
    """
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
    """Computes a group norm by calls that have rules, so that equations can express it.

    Each group of channels is centred and divided by its standard deviation.

    Args:
        x: a tensor of shape (n, channels, ...).
        weight: gain of shape (channels,), or None.
        bias: bias of shape (channels,), or None.
        n: size of the batch.
        channels: number of channels.
        entries: number of entries of each channel.
        groups: number of groups.
        eps: added to the variance.
    """
    y = x.reshape(n, groups, channels * entries // groups)
    y = y - y.mean(-1, keepdim=True)
    y = (y * (y.square().mean(-1, keepdim=True) + eps).rsqrt()).reshape(x.shape)
    side = (channels, *(1,) * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(side)
    return y if bias is None else y + bias.reshape(side)


def as_real_pairs(x: Tensor) -> Tensor:
    """Returns a complex tensor as real pairs along an additional last dimension, and any other tensor unchanged."""
    return torch.view_as_real(x) if x.is_complex() else x


class _Decomposer(TorchDispatchMode):
    """Records the aten calls of which a call without a rule consists, in place of the call.

    Each of them is decomposed further until it has a rule.

    Attributes:
        recorder: the recorder to which the calls are added.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, func._schema.name.split("::")[1]
        if name.startswith("_scaled_dot_product"):
            truth = func(*args, **keywords)
            written = {"is_causal": any(args[4:5]), **keywords}
            return self.recorder.record_attention(self, truth[0], args[:3], written), *truth[1:]
        if name == "native_group_norm":
            statistics = func(*args)[1:]
            with self:
                return normalise_groups(*args), *statistics
        if self.recorder.is_recorded_whole(name, args, keywords) or func not in decomposition_table:
            result = func(*args, **keywords)
            self.recorder.record_call(name, func, args, keywords, result, fresh=name.endswith("_"))
            return result
        with self:
            return decomposition_table[func](*args, **keywords)


class _ForceTopKAll(TorchFunctionMode):
    """Makes ``topk`` calls inside the context select all candidates, so that every expert is computed and recorded.

    Args:
        number: the K of the calls to change; 0 changes all of them.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "topk" and _is_forced_to_all(self.number, args, kwargs or {}):
            dim = _get_topk_dim(args, kwargs or {})
            return func(args[0], args[0].shape[dim], dim)
        return func(*args, **kwargs or {})


def _get_topk_dim(args: Any, keywords: Mapping[str, Any]) -> int:
    """Returns the dimension along which a top-K call selects."""
    along: int = keywords.get("dim", args[2] if len(args) > 2 else -1)
    return along


def _is_forced_to_all(force_topk: int | None, args: Any, keywords: Mapping[str, Any]) -> bool:
    """Returns whether a ``topk`` call is to be changed so that it selects all candidates.

    Args:
        force_topk: the K of the calls that are changed; 0 for all calls, None for none.
        args: positional arguments of the call.
        keywords: keyword arguments of the call.
    """
    return force_topk is not None and force_topk in (0, keywords.get("k", args[1] if len(args) > 1 else None))


class Recorder(TorchFunctionMode):
    """Records the torch calls made inside the context.

    Tensors are identified by ``id`` and kept alive, so that no other tensor gets the same one.

    Args:
        strict: whether converting a computed tensor to a Python number is an error, since a branch may depend on it.
        force_topk: as for ``record_forward``.
        decompose: as for ``record_forward``.

    Attributes:
        run: the recording.
        path: stack of the paths of the modules that are being called.
        ids: number of each tensor, by ``id``.
        versions: the version counter of each tensor when it was recorded, by number.
        dependent: numbers of the tensors that depend on a parameter or on a floating-point input.
        reordered: whether a top-K was changed so that it returns all candidates in their own order, not sorted.
        slices: arguments of the ``__getitem__`` call that made a tensor, by ``id``.
        counts: number of calls so far of each (module, name).
    """

    def __init__(self, strict: bool = True, force_topk: int | None = None, decompose: bool = True) -> None:
        super().__init__()
        self.run = Recording()
        self.strict = strict
        self.force_topk_all = force_topk
        self.decompose = decompose
        self.path = [""]
        self.ids: dict[int, int] = {}
        self.live_tensors: list[Tensor] = []
        self.versions: dict[int, int] = {}
        self.dependent: set[int] = set()
        self.reordered = False
        self.slices: dict[int, Any] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    def make_ref(self, x: Tensor, made: bool = False) -> TensorRef:
        """Returns the reference of a tensor, and records its values if it is new.

        Args:
            x: the tensor.
            made: whether it is the result of the current call. Its values are then recorded again; if the call
                changed it in place, it gets a new number.
        """
        fresh = id(x) not in self.ids
        if fresh or (made and self._is_stale(x)):  # a tensor that was changed in place counts as a new one
            self.ids[id(x)] = len(self.live_tensors)
            self.live_tensors.append(x)
        number = self.ids[id(x)]
        if fresh or made:
            with torch._C.DisableTorchFunction():
                self.run.tensors[number] = x.detach().clone()
                self.versions[number] = x._version
        return TensorRef(number)

    def fail(self, name: str, what: str) -> Unreadable:
        """Returns an error that names the current module and a call."""
        return make_error(f"{self.path[-1] or 'model'}: {name}", what)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, getattr(func, "__name__", str(func))
        if name == "__get__":
            name = "get_" + func.__self__.__name__
        if name == "scaled_dot_product_attention":
            return self.record_attention(self, func(*args, **keywords), args, keywords)
        if not self.is_recorded_whole(name, args, keywords):
            with _Decomposer(self):
                result = func(*args, **keywords)
            self.versions |= {self.ids[id(x)]: x._version for x in self.live_tensors if id(x) in self.ids}
            return result
        if name == "einsum" and isinstance(args[0], str):
            args = self._record_pairs(func, *_parse_einsum(*args))
        if name in PYTHON_CONVERSIONS and self.strict and self.ids.get(id(args[0]), -1) in self.dependent:
            selects = any(c.name == "topk" for c in self.run.calls)
            every = ", or let build return K = M (all experts active)" if selects else ""
            todo = f"equations would hold only for these values; remove the branch (assert, early exit){every}"
            raise self.fail(name, f"Python code branches on a computed tensor; {todo}")
        if isinstance(keywords.get("out"), Tensor):
            raise self.fail(name, "the argument out= cannot be read; assign the result instead")
        stale = frozenset(self.ids[id(x)] for x in iterate_leaves((args, keywords), Tensor) if self._is_stale(x))
        result = func(*args, **keywords)
        if name == "topk":
            if result[0].shape != args[0].shape:
                self.run.partial_topk.append(args[0].shape[_get_topk_dim(args, keywords)])
            if _is_forced_to_all(self.force_topk_all, args, keywords) or result[0].shape == args[0].shape:
                result = self._select_all(args[0], _get_topk_dim(args, keywords))
        if name == "__getitem__":
            self.slices[id(result)] = args
        if name == "copy_" and id(args[0]) in self.slices:  # base[key].copy_(x) is base[key] = x
            name, func, args = "__setitem__", Tensor.__setitem__, (*self.slices[id(args[0])], args[1])
        self.record_call(name, func, args, keywords, result, stale)
        return result

    def is_recorded_whole(self, name: str, args: Any, keywords: Any) -> bool:
        """Returns whether a call is recorded as it is. Otherwise the aten calls inside it are recorded.

        It is recorded as it is if it has a rule, if it writes in place, or if at most one of its arguments depends on
        a parameter or the input; without ``decompose`` also if exactly one of its arguments is a parameter.
        """
        moved = [x for x in iterate_leaves((args, keywords), Tensor) if self.ids.get(id(x), -1) in self.dependent]
        if not self.decompose and sum(self.ids[id(x)] in self.run.parameters for x in moved) == 1:
            return True
        return (
            has_rule(name)
            or (len(moved) < 2 and normalise_call_name(name) not in DECOMPOSED_CALLS)
            or name.endswith("_")
        )

    def record_attention(self, mode: AbstractContextManager[Any], truth: Tensor, args: Any, keywords: Any) -> Tensor:
        """Records attention as the calls of ``decompose_attention``, in place of the one call, and returns its result.

        Args:
            mode: the context that records.
            truth: the result of torch, for comparison.
            args: positional arguments of attention.
            keywords: keyword arguments of attention.

        Raises:
            Unreadable: the result differs from that of torch.
        """
        with mode:
            made = decompose_attention(*args, **keywords)
        if made.shape != truth.shape or not torch.allclose(made, truth, 1e-5, 1e-7, equal_nan=True):
            raise self.fail(
                "attention", "torch returns other values than softmax(scale q k^T) v; write attention out yourself"
            )
        return made

    def _record_pairs(self, func: Any, terms: list[str], out: str, operands: list[Tensor]) -> Any:
        """Splits an einsum of several operands into einsums of two and records all but the last of them.

            einsum("ab,bc,cd->ad", x, y, z)  ->  records einsum("bc,cd->bd", y, z), returns the einsum of x and that
            result

        Pairs that share a summed index come first.

        Args:
            func: ``torch.einsum``.
            terms: the indices of each operand.
            out: the indices of the result.
            operands: the tensors.

        Returns:
            The arguments of the last einsum.
        """

        def find_pair() -> tuple[int, int, set[str]] | None:
            for b in reversed(range(len(terms))):
                for a in reversed(range(b)):
                    kept = set(out).union(*(t for k, t in enumerate(terms) if k not in (a, b)))
                    if set(terms[a]) & set(terms[b]) - kept:
                        return a, b, kept
            return None

        while len(terms) > 2 and (found := find_pair()) is not None:
            a, b, kept = found
            indices = "".join(x for x in dict.fromkeys(terms[a] + terms[b]) if x in kept)
            two = f"{terms[a]},{terms[b]}->{indices}", operands[a], operands[b]
            made = func(*two)
            self.record_call("einsum", func, two, {}, made)
            for k in (b, a):
                del terms[k], operands[k]
            terms.append(indices)
            operands.append(made)
        return f"{','.join(terms)}->{out}", *operands

    def _select_all(self, x: Tensor, dim: int) -> Any:
        """Returns what ``x.topk(K, dim)`` returns for all candidates, except that they are in their own order and not
        sorted.

        The positions that it returns then do not depend on values.
        """
        self.reordered = True
        at = torch.arange(x.shape[dim]).reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
        return torch.return_types.topk((x.clone(), at.expand(x.shape).clone()))

    def _is_stale(self, x: Tensor) -> bool:
        """Returns whether a tensor was changed in place since its values were recorded."""
        return id(x) in self.ids and self.versions[self.ids[id(x)]] != x._version

    def record_call(
        self,
        name: str,
        func: Any,
        args: Any,
        keywords: Any,
        result: Any,
        stale: frozenset[int] = frozenset(),
        fresh: bool = False,
    ) -> None:
        """Adds a call to the recording, unless it returns no tensor.

        Args:
            name: name of the function.
            func: the function.
            args: its positional arguments.
            keywords: its keyword arguments.
            result: what it returned.
            stale: numbers of arguments that were changed in place through a view.
            fresh: whether the result gets a new number although the tensor object is known, as after an aten call in
                place.
        """
        arguments, named = map_leaves((args, keywords), Tensor, self.make_ref)
        if fresh:
            self.ids.pop(id(result), None)
        if next(iterate_leaves(result, Tensor), None) is None and name != "__setitem__":
            return
        out = map_leaves(args[0] if name == "__setitem__" else result, Tensor, lambda x: self.make_ref(x, made=True))
        moved = any(r.number in self.dependent for r in iterate_refs((arguments, named)))
        if moved and not name.startswith(FACTORY_PREFIXES):
            outs = list(iterate_refs(out))
            if name == "topk" and result[0].shape == args[0].shape:
                outs = outs[:1]
            self.dependent |= {r.number for r in outs}
        module = self.path[-1]
        key = (module, name, self.counts[module, name])
        self.counts[module, name] += 1
        held = not torch.is_grad_enabled()
        self.run.calls.append(TorchCall(name, func, arguments, named, out, module, key, stale, held))


def _parse_einsum(equation: str, *rest: Any) -> tuple[list[str], str, list[Tensor]]:
    """Parses the arguments of an einsum, with an ellipsis replaced by unused indices.

    Returns:
        The indices of each operand, those of the result, and the operands.
    """
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


def iterate_leaves(tree: Any, kind: type[LeafType]) -> Iterator[LeafType]:
    """Yields the objects of one type inside nested lists, tuples and dicts, in order."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from iterate_leaves(x, kind)


class VaryingNumber(tuple[float, ...]):
    """A Python number among the arguments of a call that depends on the sizes: its value in each build of the
    module.
    """


def map_leaves(tree: Any, kind: type[LeafType], f: Callable[[LeafType], Any]) -> Any:
    """Returns nested lists, tuples and dicts with ``f(x)`` in place of every object x of one type."""
    if isinstance(tree, kind):
        return f(tree)
    if isinstance(tree, list | tuple) and not isinstance(tree, VaryingNumber):
        return (list if type(tree) is list else tuple)(map_leaves(x, kind, f) for x in tree)
    return {k: map_leaves(x, kind, f) for k, x in tree.items()} if isinstance(tree, dict) else tree


def iterate_refs(tree: Any) -> Iterator[TensorRef]:
    """Yields the tensor references inside nested arguments or results, in order."""
    return iterate_leaves(tree, TensorRef)


def renumber_tensors(run: Recording, first: Recording) -> Recording:
    """Returns a recording in which each tensor has the number that it has in another recording.

    Args:
        run: the recording.
        first: the other one, which has the same calls (at other sizes of the model).
    """
    same = {call.key: call for call in run.calls}
    tensors, calls = {n: run.tensors[n] for n in (*run.parameters, *run.inputs, *run.buffers)}, []
    for call in first.calls:
        other, keep = same[call.key], (call.arguments, call.keywords, call.result)
        tree = other.arguments, other.keywords, other.result
        for mine, its in zip(iterate_refs(keep), iterate_refs(tree), strict=True):
            tensors.setdefault(mine.number, run.tensors[its.number])
        numbers = iterate_refs(keep)
        arguments, keywords, result = map_leaves(tree, TensorRef, lambda _, numbers=numbers: next(numbers))  # type: ignore[misc]
        calls.append(replace(other, arguments=arguments, keywords=keywords, result=result))
    tensors.setdefault(first.output.number, run.tensors[run.output.number])
    return replace(run, calls=calls, tensors=tensors, output=first.output, positions={})


def guard_forward(inputs: tuple[Any, ...]) -> AbstractContextManager[None]:
    """Returns a context for the forward pass of a model, which turns errors of the model into a ``UsageError``.

    If the input was guessed, the message says so.

    Raises:
        UsageError: the model raised an error.
    """
    shape = tuple(inputs[0].shape) if isinstance(inputs, GuessedInput) else ()
    said = f"; its input was guessed (shape {shape}): let build return (model, input) or (model, optimizer, input)"
    return guard_foreign_code("the model", said if shape else "")


def record_forward(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    strict: bool = True,
    training: bool = False,
    force_topk: int | None = None,
    decompose: bool = True,
) -> Recording:
    """Records one forward pass of a module.

    No gradients are computed, but gradient mode is on, as the module may ask for it. If the module draws random
    numbers or a top-K was reordered, it runs a second time to check that the output is the same.

    Args:
        model: the module.
        inputs: positional inputs.
        keywords: keyword inputs.
        strict: whether a branch on computed values and a non-finite output are errors.
        training: whether the module is in training mode. Batch norms always are.
        force_topk: a top-K with this K is changed so that it selects all candidates; 0 means every top-K, None means
            none.
        decompose: whether to record the calls inside a call without a rule even if it reads a single parameter only.

    Raises:
        Unreadable: a branch on computed values, ``out=``, random numbers that change the output, or a non-finite
            output.
    """
    model.train(training)
    for module in model.modules():
        if isinstance(
            module, nn.modules.batchnorm._BatchNorm
        ):  # normalise by the batch, as in training, and keep the running statistics
            module.train()
            module.momentum = 0.0
    recorder, hooks = Recorder(strict, force_topk, decompose), []

    def make_push_hook(name: str) -> Callable[..., None]:
        """Returns a hook that is run when a submodule is called, and puts its path on the stack ``Recorder.path``."""
        return lambda module, args: recorder.path.append(name)

    def pop_path(module: nn.Module, args: Any, out: Any) -> None:
        """Removes the path of a submodule that returns from the stack, and records its output."""
        where = recorder.path.pop()
        if (x := next(iterate_leaves(out, Tensor), None)) is not None and x.is_floating_point():
            recorder.run.outputs[where] = recorder.make_ref(x)

    for name, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(make_push_hook(name)), module.register_forward_hook(pop_path)]
    for name, p in model.named_parameters():
        recorder.run.parameters[recorder.make_ref(p).number] = name
    for name, b in model.named_buffers():
        if b.is_floating_point():
            recorder.run.buffers[recorder.make_ref(b).number] = name
    recorder.dependent |= set(recorder.run.parameters)
    for k, x in enumerate(y for y in (*inputs, *keywords.values()) if isinstance(y, Tensor)):
        number = recorder.make_ref(x).number
        recorder.run.inputs[number] = k
        if x.is_floating_point():
            recorder.dependent.add(number)
    learning = [p for p in model.parameters() if p.requires_grad]
    recorder.run.frozen = frozenset(recorder.make_ref(p).number for p in model.parameters() if not p.requires_grad)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for p in learning:
            p.requires_grad_(False)
        with guard_forward(inputs), torch.enable_grad():
            state = torch.get_rng_state()
            with recorder:
                made = model(*inputs, **keywords)
            out = find_output(made)
            drawn = not torch.equal(state, torch.get_rng_state())
            with nullcontext() if force_topk is None else _ForceTopKAll(force_topk):
                again = find_output(model(*inputs, **keywords)) if strict and (drawn or recorder.reordered) else out
            if float((out - again).abs().max()) > 1e-5 * float(out.abs().max()):
                raise _describe_noise(recorder.run) if drawn else Unreadable(ORDER_MATTERS)
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
        raise Unreadable("the output of the model contains NaN; give sizes and an input at which it is finite")
    recorder.run.output = recorder.make_ref(out)
    if losses := find_losses(made):
        run, beside = recorder.run, {recorder.make_ref(x).number for x in losses.values()}
        beside = _find_ancestors(run, beside) - _find_ancestors(run, {run.output.number})
        run.calls = [c for c in run.calls if not {x.number for x in iterate_refs(c.result)} & beside]
    return recorder.run


def _describe_noise(run: Recording) -> Unreadable:
    call = next((c for c in run.calls if c.name.startswith(RANDOM_CALLS)), None)
    where = f"{call.module or 'model'}: {call.name}" if call else "model"
    return make_error(where, "noise in evaluation mode changes the output; add it only where self.training, to be read")


def _find_ancestors(run: Recording, numbers: set[int], without: str = "") -> set[int]:
    """Adds to a set of tensors, given by their numbers, all tensors from which these are computed; returns the set.

    Args:
        run: the recording.
        numbers: the tensors to start from.
        without: name of calls whose arguments do not count as tensors from which their results are computed.
    """
    for call in reversed(run.calls):
        if call.name != without and any(x.number in numbers for x in iterate_refs(call.result)):
            numbers |= {x.number for x in call.iterate_inputs()}
    return numbers


def find_losses(out: Any) -> dict[str, Tensor]:
    """Returns the losses, such as a load-balancing loss, that a module returns in addition to its output, by name or
    position.

    These are its scalar floating-point tensors.
    """
    places = out.items() if isinstance(out, dict) else enumerate(out) if isinstance(out, list | tuple) else ()
    beside = {str(k): x for k, x in places if isinstance(x, Tensor) and x.is_floating_point() and x.numel() == 1}
    return {k: x for k, x in beside.items() if x is not find_output(out)}


def find_balance_buffers(run: Recording) -> list[str]:
    """Returns the names of buffers that affect the output only by deciding which candidates a top-K selects.

    Such a buffer is the bias of load balancing without an auxiliary loss.
    """
    scores = {x.number for call in run.calls if call.name == "topk" for x in call.iterate_inputs()}
    shifting, passed = _find_ancestors(run, scores), _find_ancestors(run, {run.output.number}, without="topk")
    return [name for number, name in run.buffers.items() if number in shifting - passed]


def find_output(out: Any) -> Tensor:
    """Returns the output among what a module returned.

    This is the tensor itself, ``logits`` or ``last_hidden_state`` of an object, or the first of several tensors.

    Raises:
        Unreadable: there is no tensor.
    """
    named = (getattr(out, key, None) for key in ("logits", "last_hidden_state"))
    out = next((x for x in named if x is not None), out)
    if isinstance(out, dict):
        out = out.get("logits", next(iterate_leaves(out, Tensor), out))
    while isinstance(out, list | tuple) and out:
        out = out[0]
    if not isinstance(out, Tensor):
        raise Unreadable(
            f"the model returns {type(out).__name__}; return a tensor, or an object with the attribute logits"
        )
    return out
