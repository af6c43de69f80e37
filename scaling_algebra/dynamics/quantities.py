"""The named quantities of a training run, such as ``h2.change`` or ``dW2``.

The names are the same in the command line, JSON, tests and reports. Examples: ``h2.change`` is h2_t - h2_0,
``h2.effective`` is dW2 h1_0, ``gW2`` is the gradient of W2.
Read next: ``analysis.py`` (evaluates quantities with a certificate), ``desiderata.py`` (demands on them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scaling_algebra import limits
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.spec.networks.indices import spread_functions, summed_expert_indices
from scaling_algebra.spec.networks.language import Function, Mode, Network, Product, Statement
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.networks.roles import (
    Adjoint,
    find_forks,
    find_meetings,
    is_first_layer,
    is_one_layer,
    list_gradients,
    name_pathways,
)
from scaling_algebra.spec.networks.sums import ExpertSum, experts
from scaling_algebra.spec.networks.terms import expand_product, find_weight_products, is_held
from scaling_algebra.spec.optimizers import OptimizerSpec

from .run import Which


class Run(Protocol):
    """Protocol for the training runs from which quantities are read: of exponents (``trajectory.py``) or of torch
    tensors.

    ``t`` is the number of updates. All signals of one run have the same type.
    """

    network: Network

    def initial(self, signal: str) -> Any:
        """Returns a signal before training."""

    def value(self, signal: str, t: int) -> Any:
        """Returns a signal after t updates."""

    def change(self, signal: str, t: int) -> Any:
        """Returns a signal after t updates minus its initial value."""

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Any = None) -> Any:
        """Returns a part of a product such as ``W x``: ``mode`` chooses W_0 or dW, and ``which`` chooses x_0, dx or
        x_t. Gates of the product (signals that weight the others, such as routing weights) have their initial values.

        Args:
            statement: the product.
            mode: "init" to use the initial tensors, "update" to use their updates.
            which: "initial", "change" or "value" (the present value) of the signals.
            t: number of updates.
            x: replaces the signals of the product if given.
        """

    def gate_change(self, statement: Product, t: int) -> Any:
        """Returns the part of a product that is due to the change of its gates, that is, of signals that weight the
        others, such as routing weights."""

    def change_via(self, signal: str, t: int, via: str) -> Any:
        """Returns the part of the change of a signal ``W x`` that comes from gradients on one path: W is updated by
        those gradients only that came through the signal ``via``."""

    def spread(self, function: Function, t: int) -> Any:
        """Returns the argument of a function minus its mean along the index on which the function acts, after t
        updates."""

    def relative(self, signal: Any, source: str, t: int) -> Any:
        """Returns a signal divided by the root-mean-square that the signal named ``source`` has after t updates."""

    def divide_by_norm(self, function: Function, signal: Any, t: int) -> Any:
        """Returns a part of the argument of a norm (``signal``), divided by the divisor of this norm after t
        updates."""

    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str = "") -> Any:
        """Returns the derivative of the output with respect to a signal.

        Args:
            signal: name of the signal.
            t: number of updates.
            modes: parts ("init" or "update") of tensors between the signal and the output; other tensors enter as a
                whole.
            via: if given, only the path through the statement that computes this signal.
        """

    def update_size(self, role: str, t: int) -> Any:
        """Returns the root-mean-square of the entries of ``W_t - W_0``."""

    def raw_gradient_size(self, role: str, t: int) -> Any:
        """Returns the root-mean-square of the entries of a tensor's gradient after t updates."""

    def vary_only(self, changing: str, outside: Collection[str]) -> Run:
        """Returns a run of the same training in which only ``changing`` changes: a tensor, or one of the signals
        ``outside``, which enter a part of the network.

        All other tensors and all other signals of ``outside`` keep their initial values.
        """

    def for_loss(self, loss: str) -> Run:
        """Returns a run of the same training whose gradients are those of one loss only: the network's output or an
        auxiliary loss (``loss`` is the name of its signal)."""

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Any:
        """Returns the gradient of an auxiliary loss at a signal after t updates, divided by the size of the gradient of
        the network's output at this signal."""

    def relative_to_undecayed(self) -> Run:
        """Returns a run of the same training in which changes are measured from the values at the start of training: a
        tensor changes by W_t - W_0. In all other runs, its change is W_t minus what weight decay has left of W_0."""

    def inner(self, left: Any, right: Any) -> Any:
        """Returns the inner product of two signals. It sums over all indices except those of experts."""


Reading = Callable[[Run, int], Any]
"""A function (run, t) that evaluates a quantity after t updates: a signal, or the size of a tensor's entries."""


@dataclass(frozen=True)
class Quantity:
    """A named quantity.

    Attributes:
        name: its name, such as ``h2.change``.
        formula: its definition in symbols, such as ``h2_t - h2_0``.
        read: a function (run, t) that evaluates it in a training run.
        tensor: the parameter, if the quantity is the update or the gradient of one; otherwise "".
    """

    name: str
    formula: str
    read: Reading
    tensor: str = ""


def list_quantities(network: Network = MOE_BLOCK) -> dict[str, Quantity]:
    """Returns all quantities of a network by name, in the order in which reports list them.

    Raises:
        UsageError: two quantities have the same name.
    """
    entries = [
        *_list_forward(network),
        *_list_pathways(network),
        *_list_aggregates(network),
        *_list_gradients(network),
        *_list_loss_gradients(network),
    ]
    entries += _list_tensor_sizes(network)
    named: dict[str, Quantity] = {}
    for q in entries:
        if named.setdefault(q.name, q) is not q:
            both = f"{named[q.name].formula} and {q.formula}"
            raise UsageError(f"{network.name}: {q.name} would name two quantities, {both}; rename the signal")
    return named


def list_decay_quantities(network: Network, trained: OptimizerSpec) -> dict[str, Quantity]:
    """Returns additional quantities for an optimizer with decoupled weight decay; empty for any other optimizer.

    Such an optimizer shrinks the initial value of a tensor as well. All other quantities count this decay as no change,
    and so show only what was learned. The additional ones include it: they measure the difference from the value at the
    start of training, as one would log it.
    """
    if not any(rule.decoupled_decay for rule in trained.rules):
        return {}
    entries = [
        Quantity(f"{s.out}.change.with-decay", f"{s.out}_t - {s.out}_0, W_0 not decayed", _read_decayed_change(s.out))
        for s in network.statements
    ]
    entries += [
        Quantity(
            f"d{t.symbol}.with-decay", f"{t.symbol}_t - {t.symbol}_0, not decayed", _read_decayed_update(role), role
        )
        for role, t in network.tensors.items()
    ]
    return {q.name: q for q in entries}


def _read_decayed_change(x: str) -> Reading:
    return lambda run, t: run.relative_to_undecayed().change(x, t)


def _read_decayed_update(role: str) -> Reading:
    return lambda run, t: run.relative_to_undecayed().update_size(role, t)


def list_parts(network: Network, statement: Statement) -> dict[str, tuple[str, Reading]]:
    """Returns the parts into which a statement's output is split, as a map: name of the part -> (formula, function that
    evaluates it).

    A product with tensors has the parts ``init``, ``propagating``, ``effective`` and ``cross``: for ``h2 = W2 h1`` they
    are W2_0 h1_0, W2_0 dh1, dW2 h1_0 and dW2 dh1. If it has gates that train (signals that weight the others, such as
    routing weights), ``regated`` is the part due to the change of the gates. A function of such a product has the parts
    of its argument.
    """
    x = statement.out
    initial: Reading = lambda run, t: run.initial(x)  # noqa: E731
    if isinstance(statement, Product):
        return _list_product_parts(network, statement, initial)
    below = network.producer(statement.inputs[0].name) if isinstance(statement, Function) and statement.inputs else None
    if not isinstance(below, Product) or not isinstance(statement, Function):
        return {}
    source = statement.inputs[0].name
    inherited = {
        k: (f"{x} from {source}.{k}", _pass_through(statement, read))
        for k, (_, read) in list_parts(network, below).items()
    }
    return {**inherited, "init": (f"{x} from initial values", initial)} if inherited else {}


def _list_product_parts(network: Network, statement: Product, initial: Reading) -> dict[str, tuple[str, Reading]]:
    """Returns the parts of a product as described for ``list_parts``; empty if it contains no tensor.

    Args:
        network: the network.
        statement: the product.
        initial: the function that evaluates the initial value of the product.
    """
    terms = expand_product(network, statement)
    if not any(term.tensors for term in terms):
        return {}
    fixed = all(not network.producer(x.name) for term in terms for x in term.signals)

    def formula(tensors: str, signals: str) -> str:
        if statement.tensor:
            w = network.tensors[statement.tensor.name].symbol
            return " ".join([f"{tensors.replace('W', w)}", *(signals.replace("h", s.name) for s in statement.factors)])
        part = {"W_0dh_t": "propagating", "dW_th_0": "effective", "dW_tdh_t": "cross"}[tensors + signals]
        return f"{_write_weighted_sum(network, statement)}.{part}"

    readings: dict[str, tuple[str, Reading]] = {
        "init": (formula("W_0", "h_0") if statement.tensor else f"{statement.out} from initial values", initial),
        "propagating": (formula("W_0", "dh_t"), _call_method("part", statement, "init", "change")),
        "effective": (formula("dW_t", "h_0"), _call_method("part", statement, "update", "initial")),
        "cross": (formula("dW_t", "dh_t"), _call_method("part", statement, "update", "change")),
    }
    if fixed:
        readings = {k: readings[k] for k in ("init", "effective")}
    if any(not is_held(network, w.name) for w in terms[0].weights):
        readings["regated"] = (
            f"{_write_weighted_sum(network, statement)}.regated",
            lambda run, t: run.gate_change(statement, t),
        )
    return readings


def _write_weighted_sum(network: Network, statement: Product) -> str:
    """Returns the formula of a product in which weights multiply a signal, such as ``M^-a sum_i phi_i h3i``. The
    tensors from which the signal is computed are not written out."""
    summed = summed_expert_indices(network, statement)
    weights = [w.name for w in expand_product(network, statement)[0].weights]
    rest = [x.name for x in statement.factors if x.name not in weights]
    gates = [f"{w}_{summed}" if summed else w for w in weights]
    return " ".join([*([f"M^-a sum_{summed}"] if summed else []), *gates, *rest])


def _pass_through(function: Function, read: Reading) -> Reading:
    """Returns the function that evaluates a part of a function's output, given ``read``, which evaluates the same part
    of its argument. For a norm, the part is divided by the norm's divisor; for any other function, it is the part of
    the argument itself."""
    if function.kind.kind == "norm":
        return lambda run, t: run.divide_by_norm(function, read(run, t), t)
    return read


def parse_inner_product(name: str) -> list[tuple[str, int | None]]:
    """Splits ``"<A, B@t>"`` into two pairs (quantity, t): ``[("A", None), ("B", t)]``. A side without ``@t`` has None
    in place of t. If the name is not of this form, the list is empty.

    Raises:
        UsageError: t is not a number of updates.
    """
    if not (name.startswith("<") and name.endswith(">") and name.count(",") == 1):
        return []
    sides = []
    for side in name[1:-1].split(","):
        inner, at, step = side.strip().partition("@")
        try:
            sides.append((inner, limits.parse_update(step) if at else None))
        except ValueError as error:
            raise UsageError(f"cannot read {side.strip()!r}, {error}: write NAME@t with t = 0, 1, 2, ...") from None
    return sides


def find_quantity(table: Mapping[str, Quantity], name: str) -> Quantity:
    """Returns the quantity with a given name, or the inner product ``"<A, B>"`` of two signals.

    The inner product sums over all indices except those of experts. In it, ``A@1`` is A after one update, and plain
    ``A`` is A after as many updates as are requested.

    Raises:
        UsageError: there is no such quantity, or the two signals have different indices.
    """
    if name in table:
        return table[name]
    sides = parse_inner_product(name)
    for side in [inner for inner, _ in sides] or [name]:
        if side not in table:
            raise unknown_name_error("quantity", side, table)

    def read(run: Run, t: int) -> Any:
        left, right = (table[q].read(run, t if step is None else step) for q, step in sides)
        if any(table[q].tensor for q, _ in sides):
            raise UsageError(f"{name}: an inner product needs two signals (h..., psi, g...), not tensors")
        try:
            return run.inner(left, right)
        except ValueError:
            raise UsageError(f"{name}: the two signals of an inner product must have the same indices") from None

    formulas = (table[q].formula if s is None else table[q].formula.replace("_t", f"_{s}") for q, s in sides)
    return Quantity(name, "inner product of " + " and ".join(formulas), read)


def _list_forward(network: Network) -> list[Quantity]:
    """Returns the quantities of the forward pass: for each signal its value, its change, and the parts of both; for
    signals on whose spread along an index some function depends, such as softmax logits, also the deviation from their
    mean."""
    entries = []
    for statement in network.statements:
        x = statement.out
        entries += [
            Quantity(x, f"{x}_t", _call_method("value", x)),
            Quantity(f"{x}.change", f"{x}_t - {x}_0", _call_method("change", x)),
        ]
        entries += [
            Quantity(f"{x}.{part}", formula, read) for part, (formula, read) in list_parts(network, statement).items()
        ]
        entries += _list_update_parts(network, statement)
        entries += _list_weight_parts(network, statement)
    along = {(f.inputs[0].name, f.over): f for f in spread_functions(network)}
    names = Counter(name for name, _ in along)
    entries += [
        Quantity(
            f"{x}.spread" + (f".{over}" if names[x] > 1 else ""),
            f"{x}_t minus its mean over {over}",
            _call_method("spread", f),
        )
        for (x, over), f in along.items()
    ]
    return entries


def _list_weight_parts(network: Network, statement: Statement) -> list[Quantity]:
    """Returns the parts of the output of a weight that is a product of tensors, such as ``B A`` in LoRA. One is due to
    the update of the tensor that acts first (here A), the others to the change of its input. The list is empty for any
    other statement."""
    above = find_weight_products(network).get(statement.out, ())
    if not above or not isinstance(statement, Product) or not statement.tensor:
        return []
    w, read = network.tensors[statement.tensor.name].symbol, " ".join(x.name for x in statement.factors)
    out, others = above[-1].out, " ".join(network.tensors[s.tensor.name].symbol + "_0" for s in above if s.tensor)

    def pass_upward(mode: Mode, which: Which, through: Sequence[Product]) -> Reading:
        def reading(run: Run, t: int) -> Any:
            x = run.part(statement, mode, which, t)
            for s in through:
                x = run.part(s, "init", "change", t, x)
            return x

        return reading

    names = [f"{s.out}.propagating.{w}" for s in above]
    entries = [
        Quantity(name, f"{others} {w}_0 d{read}_t", pass_upward("init", "change", above[: k + 1]))
        for k, name in enumerate(names)
    ]
    update = pass_upward("update", "value", above)
    return [*entries, Quantity(f"{out}.effective.{w}", f"{others} d{w}_t {read}_t", update)]


def _list_update_parts(network: Network, statement: Statement) -> list[Quantity]:
    """Returns three quantities of a product ``W x``: the update of W times the present x, the same divided by the size
    of x, and the initial W times the change of x divided by the size of x (MSSP paper, App. Q.4). The list is empty for
    any other statement, and if x is an input of the network."""
    if not isinstance(statement, Product) or not statement.tensor or len(statement.factors) != 1:
        return []
    (x,) = statement.factors
    if not network.producer(x.name):
        return []
    w = network.tensors[statement.tensor.name].symbol

    def relative(whole: Reading) -> Reading:
        return lambda run, t: run.relative(whole(run, t), x.name, t)

    updated, propagated = (
        _call_method("part", statement, "update", "value"),
        _call_method("part", statement, "init", "change"),
    )
    return [
        Quantity(f"{statement.out}.update", f"d{w}_t {x.name}_t", updated),
        Quantity(f"{statement.out}.update.normalised", f"d{w}_t {x.name}_t / |{x.name}_t|", relative(updated)),
        Quantity(f"{statement.out}.propagating.normalised", f"{w}_0 d{x.name}_t / |{x.name}_t|", relative(propagated)),
    ]


def _list_pathways(network: Network) -> list[Quantity]:
    """Returns quantities that show how the router's output changes because the layer that it reads was updated.
    Gradients reach this layer on several paths, through the router and through the experts; each quantity is due to the
    part of the update from one path (MSSP paper, App. C)."""
    entries = []
    for routed in (network.uses(role)[0] for role in dict.fromkeys(r for e in experts(network) for r in e.routers)):
        if len(routed.factors) != 1 or not is_one_layer(network, x := routed.factors[0].name):
            continue
        assert routed.tensor
        change = f"d{x}_t" if is_first_layer(network, x) else f"{x}.effective"
        w, paths = network.tensors[routed.tensor.name].symbol, name_pathways(network, x)
        if not find_forks(network, x):
            continue
        for path, via in paths.items():
            formula = f"{w}_0 times the part of {change} that came through the {path} pathway"
            entries.append(Quantity(f"{routed.out}.propagating.{path}", formula, _read_path(routed, x, via)))
    return entries


def _read_path(routed: Product, x: str, via: str) -> Reading:
    return lambda run, t: run.part(routed, "init", "change", t, run.change_via(x, t, via))


def _list_aggregates(network: Network) -> list[Quantity]:
    """Returns the parts of the change of a sum over experts (MSSP paper, App. I.3): A1, A2.k and A3, each due to the
    change of one tensor or one input alone, and D, due to the joint change of the last tensor before the sum and its
    input."""
    entries = []
    for e in experts(network):
        for piece, changing in e.pieces.items():
            entries.append(Quantity(f"{e.out}.{piece}", _write_piece(network, e, changing), _read_piece(e, changing)))
        if e.outer and "cross" in (whole := list_parts(network, e.aggregation)):
            *head, acted = _write_piece(network, e, e.outer[0]).split(" ")
            formula = " ".join([*head, f"d{acted.removesuffix('_0')}_t"])
            entries.append(Quantity(f"{e.out}.D", formula, whole["cross"][1]))
    return entries


def _read_piece(e: ExpertSum, changing: str) -> Reading:
    """Returns the function that evaluates the change of a sum over experts if only ``changing`` changes (a tensor or a
    signal that enters the experts). If ``changing`` is "", the function evaluates the initial value of the sum."""
    if not changing:
        return lambda run, t: run.initial(e.out)
    return lambda run, t: run.vary_only(changing, (*e.entering, *e.gates)).change(e.out, t)


def _write_piece(network: Network, e: ExpertSum, changing: str) -> str:
    """Returns the formula of the change of a sum over experts if only ``changing`` changes, such as ``M^-a sum_i phi_i
    W3_0 dW2_t h1_0``. If ``changing`` is "", it is that of the initial value.

    Going back from the sum, products of one tensor and one signal are written out. If another kind of statement comes
    before ``changing`` is reached, the formula ends there: ``h2 by dG_t`` is the change of h2 due to that of G.
    """
    indices = summed_expert_indices(network, e.aggregation)
    factors, signal, tensor = [f"M^-a sum_{indices}", *(f"{x}_{indices}" for x in e.weights)], e.source, ""
    while (signal in e.body and tensor != changing) or not tensor:
        s = network.producer(signal)
        if not isinstance(s, Product) or not s.tensor or len(s.factors) != 1:
            break
        tensor, w, signal = s.tensor.name, network.tensors[s.tensor.name].symbol, s.factors[0].name
        factors.append(f"d{w}_t" if tensor == changing else f"{w}_0")
    if not changing or tensor == changing:
        return " ".join([*factors, f"{signal}_0"])
    if signal == changing:
        return " ".join([*factors, f"d{signal}_t"])
    moved = network.tensors[changing].symbol if changing in network.tensors else changing
    return " ".join([*factors, f"{signal} by d{moved}_t"])


def _list_gradients(network: Network) -> list[Quantity]:
    """Returns the quantities of the backward pass: the gradient at each signal, and its parts."""
    entries = []
    for adjoint in list_gradients(network):
        entries.append(_make_gradient(network, adjoint, "", {}))
        entries += [_make_gradient(network, adjoint, suffix, modes) for suffix, modes in adjoint.parts.items()]
    return entries


def _make_gradient(network: Network, adjoint: Adjoint, suffix: str, modes: Mapping[str, Mode]) -> Quantity:
    """Returns the quantity for the gradient of the network's output at a signal, or for a part of this gradient.

    Args:
        network: the network.
        adjoint: says at which signal the gradient is taken, and through which other signal if only one path counts.
        suffix: name of the part of the gradient; "" for the whole gradient.
        modes: tensors of which only the initial value or only the update is used; empty for the whole gradient.
    """
    name = f"{adjoint.name}.{suffix}" if suffix else adjoint.name
    statement = ", ".join(f"{network.tensors[role].symbol} {mode}" for role, mode in modes.items())
    path = f" through {adjoint.via}" if adjoint.via else ""
    formula = f"df/d{adjoint.signal}{path}" + (f" with {statement}" if statement else "")
    return Quantity(name, formula, lambda run, t: run.gradient(adjoint.signal, t, modes, adjoint.via))


def _list_loss_gradients(network: Network) -> list[Quantity]:
    """Returns quantities at the signals that get gradients both from the network's output and from an auxiliary loss:
    the gradient due to each of the two, and their ratio."""
    entries, f = dict[str, Quantity](), network.output
    for loss, x, g in find_meetings(network):
        entries |= {
            f"{of} {x}": Quantity(f"{g}.by-{of}", f"d{of}/d{x}", _read_loss_gradient(of, x)) for of in (f, loss)
        }
        entries[f"{loss} over {f} {x}"] = Quantity(
            f"{g}.by-{loss}.relative", f"d{loss}/d{x} / |d{f}/d{x}|", _call_method("loss_gradient_ratio", loss, x)
        )
    return [*entries.values()]


def _read_loss_gradient(loss: str, x: str) -> Reading:
    return lambda run, t: run.for_loss(loss).gradient(x, t)


def _list_tensor_sizes(network: Network) -> list[Quantity]:
    """Returns two quantities for each tensor W: the size of its update (``dW``) and that of its gradient (``gW``)."""
    symbols = {role: tensor.symbol for role, tensor in network.tensors.items()}
    updates = [
        Quantity(f"d{w}", f"{w}_t - {w}_0", _call_method("update_size", role), role) for role, w in symbols.items()
    ]
    return [
        *updates,
        *(Quantity(f"g{w}", f"dL/d{w}", _call_method("raw_gradient_size", role), role) for role, w in symbols.items()),
    ]


def _call_method(what: str, *of: Any) -> Reading:
    """Returns a function (run, t) that calls the method ``what`` of the training run as ``run.what(*of, t)``.

    Args:
        what: name of the method.
        of: the arguments before t.
    """
    return lambda run, t: getattr(run, what)(*of, t)
