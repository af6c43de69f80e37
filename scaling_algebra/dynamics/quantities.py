"""Every named quantity of a training run: stable identifiers used by the command line, JSON, tests and reports.

Read next: ``analysis.py`` (evaluates them with a certificate), ``desiderata.py`` (demands on them).
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
    """The source of a quantity: a training run, of exponents (``trajectory.py``) or of torch tensors. ``t`` counts
    updates; the signals of one are of one kind."""

    network: Network

    def initial(self, signal: str) -> Any:
        """A signal before training."""

    def value(self, signal: str, t: int) -> Any:
        """A signal after t updates."""

    def change(self, signal: str, t: int) -> Any:
        """A signal after t updates minus its initial value."""

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Any = None) -> Any:
        """A part of a product, its gates at their initial values: with the initial tensors or their updates, and the
        initial signals, their changes or their present values (or ``x`` for them)."""

    def gate_change(self, statement: Product, t: int) -> Any:
        """The part of a product by the change of its gates."""

    def change_via(self, signal: str, t: int, via: str) -> Any:
        """The part of a first-layer signal's change whose gradients came through the signal ``via``."""

    def spread(self, function: Function, t: int) -> Any:
        """The argument of a function minus its mean along the index that it goes along."""

    def relative(self, signal: Any, source: str, t: int) -> Any:
        """A signal over the root-mean-square of another."""

    def divide_by_norm(self, function: Function, signal: Any, t: int) -> Any:
        """A part of the argument of a norm, divided as the norm divides."""

    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str = "") -> Any:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""

    def update_size(self, role: str, t: int) -> Any:
        """Entry size of ``W_t - W_0``."""

    def raw_gradient_size(self, role: str, t: int) -> Any:
        """Entry size of the gradient of a tensor."""

    def alone(self, changing: str, outside: Collection[str]) -> Run:
        """The same run if one tensor or signal alone changes: other tensors keep their initial values, and of the
        signals that come from ``outside`` the others do."""

    def by(self, loss: str) -> Run:
        """The same run, with gradients of one loss alone: of the output, or of a loss beside it."""

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Any:
        """The gradient of a loss beside the output at a signal, over the size of that of the output."""

    def decaying(self) -> Run:
        """The same run, relative to initial values that do not decay."""

    def inner(self, left: Any, right: Any) -> Any:
        """The inner product of two signals over all indices but the expert's."""


Reading = Callable[[Run, int], Any]
"""Signal, or entry size, after t updates."""


@dataclass(frozen=True)
class Quantity:
    """A named quantity: what it is, in symbols, and how to read it off a trajectory.

    ``tensor`` is the role whose cumulative update or raw gradient it is, if it is one.
    """

    name: str
    formula: str
    read: Reading
    tensor: str = ""


def quantities(network: Network = MOE_BLOCK) -> dict[str, Quantity]:
    """All quantities of a network, in reporting order.

    Raises:
        UsageError: two have one name.
    """
    entries = [*_forward(network), *_pathways(network), *_aggregates(network), *_backward(network), *_beside(network)]
    entries += _sizes(network)
    named: dict[str, Quantity] = {}
    for q in entries:
        if named.setdefault(q.name, q) is not q:
            both = f"{named[q.name].formula} and {q.formula}"
            raise UsageError(f"{network.name}: {q.name} would be the name of {both}; give the signal another name")
    return named


def with_decay(network: Network, trained: OptimizerSpec) -> dict[str, Quantity]:
    """Quantities with a second reading under decoupled weight decay. Everything else is relative to initial values that
    decayed, and says what was learned; these are relative to the values training began with, as one would log
    them."""
    if not any(rule.decoupled_decay for rule in trained.rules):
        return {}
    entries = [
        Quantity(f"{s.out}.change.with-decay", f"{s.out}_t - {s.out}_0, W_0 not decayed", _decayed_change(s.out))
        for s in network.statements
    ]
    entries += [
        Quantity(f"d{t.symbol}.with-decay", f"{t.symbol}_t - {t.symbol}_0, not decayed", _decayed_update(role), role)
        for role, t in network.tensors.items()
    ]
    return {q.name: q for q in entries}


def _decayed_change(x: str) -> Reading:
    return lambda run, t: run.decaying().change(x, t)


def _decayed_update(role: str) -> Reading:
    return lambda run, t: run.decaying().update_size(role, t)


def parts(network: Network, statement: Statement) -> dict[str, tuple[str, Reading]]:
    """The parts of a statement's output by name, each with its formula: ``init``, ``propagating``, ``effective`` and
    ``cross`` of a product with tensors, ``regated`` where it has gates that train; those of the argument of a function
    that has them."""
    x = statement.out
    initial: Reading = lambda run, t: run.initial(x)  # noqa: E731
    if isinstance(statement, Product):
        return _product_parts(network, statement, initial)
    below = network.producer(statement.inputs[0].name) if isinstance(statement, Function) and statement.inputs else None
    if not isinstance(below, Product) or not isinstance(statement, Function):
        return {}
    source = statement.inputs[0].name
    inherited = {
        k: (f"{x} from {source}.{k}", _passed(statement, read)) for k, (_, read) in parts(network, below).items()
    }
    return {**inherited, "init": (f"{x} from initial values", initial)} if inherited else {}


def _product_parts(network: Network, statement: Product, initial: Reading) -> dict[str, tuple[str, Reading]]:
    terms = expand_product(network, statement)
    if not any(term.tensors for term in terms):
        return {}
    fixed = all(not network.producer(x.name) for term in terms for x in term.signals)

    def formula(tensors: str, signals: str) -> str:
        if statement.tensor:
            w = network.tensors[statement.tensor.name].symbol
            return " ".join([f"{tensors.replace('W', w)}", *(signals.replace("h", s.name) for s in statement.factors)])
        part = {"W_0dh_t": "propagating", "dW_th_0": "effective", "dW_tdh_t": "cross"}[tensors + signals]
        return f"{_weighing(network, statement)}.{part}"

    readings: dict[str, tuple[str, Reading]] = {
        "init": (formula("W_0", "h_0") if statement.tensor else f"{statement.out} from initial values", initial),
        "propagating": (formula("W_0", "dh_t"), _reads("part", statement, "init", "change")),
        "effective": (formula("dW_t", "h_0"), _reads("part", statement, "update", "initial")),
        "cross": (formula("dW_t", "dh_t"), _reads("part", statement, "update", "change")),
    }
    if fixed:
        readings = {k: readings[k] for k in ("init", "effective")}
    if any(not is_held(network, w.name) for w in terms[0].weights):
        readings["regated"] = (f"{_weighing(network, statement)}.regated", lambda run, t: run.gate_change(statement, t))
    return readings


def _weighing(network: Network, statement: Product) -> str:
    """``M^-a sum_i phi_i h3i``."""
    summed = summed_expert_indices(network, statement)
    weights = [w.name for w in expand_product(network, statement)[0].weights]
    rest = [x.name for x in statement.factors if x.name not in weights]
    gates = [f"{w}_{summed}" if summed else w for w in weights]
    return " ".join([*([f"M^-a sum_{summed}"] if summed else []), *gates, *rest])


def _passed(function: Function, read: Reading) -> Reading:
    if function.kind.kind == "norm":
        return lambda run, t: run.divide_by_norm(function, read(run, t), t)
    return read


def inner_product(name: str) -> list[tuple[str, int | None]]:
    """The sides of ``"<A, B@t>"`` as (quantity, step), step None where none is given; empty for any other name.

    Raises:
        UsageError: a step that is not a number.
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


def quantity(table: Mapping[str, Quantity], name: str) -> Quantity:
    """A quantity by name, or the inner product ``"<A, B>"`` of two of them over all indices but the expert's.

    ``A@t`` takes A after t updates whatever step is asked for.

    Raises:
        UsageError: no such quantity, or an inner product of what has no entries in common.
    """
    if name in table:
        return table[name]
    sides = inner_product(name)
    for side in [inner for inner, _ in sides] or [name]:
        if side not in table:
            raise unknown_name_error("quantity", side, table)

    def read(run: Run, t: int) -> Any:
        left, right = (table[q].read(run, t if step is None else step) for q, step in sides)
        if any(table[q].tensor for q, _ in sides):
            raise UsageError(f"{name}: inner products are of signals (h..., psi, g...), not of tensors")
        try:
            return run.inner(left, right)
        except ValueError:
            raise UsageError(
                f"{name}: an inner product is of signals with the same indices; these have others"
            ) from None

    formulas = (table[q].formula if s is None else table[q].formula.replace("_t", f"_{s}") for q, s in sides)
    return Quantity(name, "inner product of " + " and ".join(formulas), read)


def _forward(network: Network) -> list[Quantity]:
    entries = []
    for statement in network.statements:
        x = statement.out
        entries += [
            Quantity(x, f"{x}_t", _reads("value", x)),
            Quantity(f"{x}.change", f"{x}_t - {x}_0", _reads("change", x)),
        ]
        entries += [
            Quantity(f"{x}.{part}", formula, read) for part, (formula, read) in parts(network, statement).items()
        ]
        entries += _updated(network, statement)
        entries += _of_weights(network, statement)
    along = {(f.inputs[0].name, f.over): f for f in spread_functions(network)}
    names = Counter(name for name, _ in along)
    entries += [
        Quantity(
            f"{x}.spread" + (f".{over}" if names[x] > 1 else ""),
            f"{x}_t minus its mean over {over}",
            _reads("spread", f),
        )
        for (x, over), f in along.items()
    ]
    return entries


def _of_weights(network: Network, statement: Statement) -> list[Quantity]:
    """Parts of a signal by one factor of a weight that is a product of tensors: by its update, and by a change of what
    the whole weight reads."""
    above = find_weight_products(network).get(statement.out, ())
    if not above or not isinstance(statement, Product) or not statement.tensor:
        return []
    w, read = network.tensors[statement.tensor.name].symbol, " ".join(x.name for x in statement.factors)
    out, others = above[-1].out, " ".join(network.tensors[s.tensor.name].symbol + "_0" for s in above if s.tensor)

    def passed(mode: Mode, which: Which, through: Sequence[Product]) -> Reading:
        def reading(run: Run, t: int) -> Any:
            x = run.part(statement, mode, which, t)
            for s in through:
                x = run.part(s, "init", "change", t, x)
            return x

        return reading

    names = [f"{s.out}.propagating.{w}" for s in above]
    entries = [
        Quantity(name, f"{others} {w}_0 d{read}_t", passed("init", "change", above[: k + 1]))
        for k, name in enumerate(names)
    ]
    update = passed("update", "value", above)
    return [*entries, Quantity(f"{out}.effective.{w}", f"{others} d{w}_t {read}_t", update)]


def _updated(network: Network, statement: Statement) -> list[Quantity]:
    """The update times what it reads now, and that over the size of what it reads, and the same of the change that is
    passed on (MSSP paper, App. Q.4)."""
    if not isinstance(statement, Product) or not statement.tensor or len(statement.factors) != 1:
        return []
    (x,) = statement.factors
    if not network.producer(x.name):
        return []
    w = network.tensors[statement.tensor.name].symbol

    def relative(whole: Reading) -> Reading:
        return lambda run, t: run.relative(whole(run, t), x.name, t)

    updated, propagated = _reads("part", statement, "update", "value"), _reads("part", statement, "init", "change")
    return [
        Quantity(f"{statement.out}.update", f"d{w}_t {x.name}_t", updated),
        Quantity(f"{statement.out}.update.normalised", f"d{w}_t {x.name}_t / |{x.name}_t|", relative(updated)),
        Quantity(f"{statement.out}.propagating.normalised", f"{w}_0 d{x.name}_t / |{x.name}_t|", relative(propagated)),
    ]


def _pathways(network: Network) -> list[Quantity]:
    """Of the update of the layer below the experts, what came through each path and what the router makes of it (MSSP
    paper, App. C)."""
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
            entries.append(Quantity(f"{routed.out}.propagating.{path}", formula, _through_path(routed, x, via)))
    return entries


def _through_path(routed: Product, x: str, via: str) -> Reading:
    return lambda run, t: run.part(routed, "init", "change", t, run.change_via(x, t, via))


def _aggregates(network: Network) -> list[Quantity]:
    """The pieces A1, A2.k, A3 of a sum over experts by what alone changes, and D, where the outer tensor and what it
    acts on do (MSSP paper, App. I.3)."""
    entries = []
    for e in experts(network):
        for piece, changing in e.pieces.items():
            entries.append(Quantity(f"{e.out}.{piece}", _piece(network, e, changing), _alone(e, changing)))
        if e.outer and "cross" in (whole := parts(network, e.aggregation)):
            *head, acted = _piece(network, e, e.outer[0]).split(" ")
            formula = " ".join([*head, f"d{acted.removesuffix('_0')}_t"])
            entries.append(Quantity(f"{e.out}.D", formula, whole["cross"][1]))
    return entries


def _alone(e: ExpertSum, changing: str) -> Reading:
    if not changing:
        return lambda run, t: run.initial(e.out)
    return lambda run, t: run.alone(changing, (*e.entering, *e.gates)).change(e.out, t)


def _piece(network: Network, e: ExpertSum, changing: str) -> str:
    """``M^-a sum_i phi_i W3_0 dW2_t h1_0``: a chain of tensors is written out, ``h2 by dG_t`` is what is none."""
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


def _backward(network: Network) -> list[Quantity]:
    entries = []
    for adjoint in list_gradients(network):
        entries.append(_gradient(network, adjoint, "", {}))
        entries += [_gradient(network, adjoint, suffix, modes) for suffix, modes in adjoint.parts.items()]
    return entries


def _gradient(network: Network, adjoint: Adjoint, suffix: str, modes: Mapping[str, Mode]) -> Quantity:
    name = f"{adjoint.name}.{suffix}" if suffix else adjoint.name
    statement = ", ".join(f"{network.tensors[role].symbol} {mode}" for role, mode in modes.items())
    path = f" through {adjoint.via}" if adjoint.via else ""
    formula = f"df/d{adjoint.signal}{path}" + (f" with {statement}" if statement else "")
    return Quantity(name, formula, lambda run, t: run.gradient(adjoint.signal, t, modes, adjoint.via))


def _beside(network: Network) -> list[Quantity]:
    """Gradients by each loss beside the output where they meet a tensor first, beside those by the output."""
    entries, f = dict[str, Quantity](), network.output
    for loss, x, g in find_meetings(network):
        entries |= {f"{of} {x}": Quantity(f"{g}.by-{of}", f"d{of}/d{x}", _by(of, x)) for of in (f, loss)}
        entries[f"{loss} over {f} {x}"] = Quantity(
            f"{g}.by-{loss}.relative", f"d{loss}/d{x} / |d{f}/d{x}|", _reads("loss_gradient_ratio", loss, x)
        )
    return [*entries.values()]


def _by(loss: str, x: str) -> Reading:
    return lambda run, t: run.by(loss).gradient(x, t)


def _sizes(network: Network) -> list[Quantity]:
    symbols = {role: tensor.symbol for role, tensor in network.tensors.items()}
    updates = [Quantity(f"d{w}", f"{w}_t - {w}_0", _reads("update_size", role), role) for role, w in symbols.items()]
    return [
        *updates,
        *(Quantity(f"g{w}", f"dL/d{w}", _reads("raw_gradient_size", role), role) for role, w in symbols.items()),
    ]


def _reads(what: str, *of: Any) -> Reading:
    """What a method of a run gives."""
    return lambda run, t: getattr(run, what)(*of, t)
