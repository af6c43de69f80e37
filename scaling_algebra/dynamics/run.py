"""The interface of a training run that the rules use: signals, products, and gradients of tensors.

How values, changes and gradients depend on one another is defined in subclasses. ``tr.read_factor(x, "change", t)`` is
the change of the factor x of an equation after t updates, with the indices it has there.
Read next: ``rules.py`` and ``steps.py`` (what a statement and an optimizer do with these signals), ``trajectory.py``
(the run of exponents).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Literal, NamedTuple, TypeVar

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Signal
from scaling_algebra.spec.networks.indices import rename_apart
from scaling_algebra.spec.networks.language import Factor, Mode, Network, Product, Statement
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.networks.terms import Term, expand_product, is_held
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point

from .ledger import Ledger
from .products import Products, Stepping
from .tails import Tails

S = TypeVar("S", bound=Statement)
Which = Literal["initial", "change", "value"]
"""A signal before training, its change after t updates, or its value after t updates."""
Degrees = Literal["usual", "raised", "lowest"]
"""Degrees of the polynomials that represent functions (see ``RunContext``)."""
Modes = Mapping[str, Mode]
"""Parameter -> "init" or "update", if only this part of the tensor is used. Other parameters are used as a whole."""
Certified = Callable[[str, int], "int | None"]
"""A function (name, t) -> size of a quantity after t updates as a packed exponent, or None if it is not certified."""
MODES: tuple[Mode, ...] = ("init", "update")


class BeyondPowerCounting(Exception):
    """Raised when the size of a quantity cannot be found by counting powers of n, such as that of the output of a
    saturated function, or of a difference that may cancel. The message is the reason.
    """


def name_unknowns(network: Network) -> tuple[str, ...]:
    """Returns the names of the unknown exponents: ``("b.input", ..., "c.input", ..., "alpha")``.

    These are b (init std) of every tensor, c (learning rate) and d (epsilon) of every trained tensor, and the
    multipliers whose exponents must be derived.
    """
    trained = [role for role in network.tensors if role not in network.frozen]
    names = {"b": [*network.tensors], "c": trained, "d": trained}
    return (*(f"{x}.{role}" for x, roles in names.items() for role in roles), *find_free_multipliers(network))


class Divisor(NamedTuple):
    """Bounds for a norm whose divisor changes during training.

    Attributes:
        size: lower bound on its divisor after any update, as an exponent of n packed into an integer.
        gradient: upper bound on the gradient at its argument before training, as an exponent of n packed into an
            integer.
    """

    size: int
    gradient: int


@dataclass(frozen=True)
class RunContext:
    """Settings of a training run.

    Attributes:
        growing: axes that count as growing on any ray.
        degrees: degrees of the polynomials that represent functions. "usual": up to the number of factors that products
            of the network have, "raised": two more, "lowest": degree one (``parts.py``).
        shares: maps a softmax to the axis over which its values sum to one, if this is not the axis of its index.
        certified: a function (name, t) that returns a size if it is certified by any run, as an exponent of n packed
            into an integer; if it returns None, the size is taken from the run itself.
        divisors: for upper bounds, the norms whose divisor after an update differs from the initial one.
        start: another run from which values and gradients before training are taken; None to compute them.
        ledger: cache for the results of the run; None for a new one.
        name: name of the run in the cache.
    """

    growing: frozenset[str] = frozenset()
    degrees: Degrees = "usual"
    shares: Mapping[str, str] = field(default_factory=dict)
    certified: Certified = lambda name, t: None
    divisors: Mapping[str, Divisor] = field(default_factory=dict)
    start: TrainingRun | None = None
    ledger: Ledger | None = None
    name: str = ""


PLAIN = RunContext()
"""The default settings."""


@dataclass(eq=False)
class TrainingRun:
    """Signals and tensors of a training run. Their indices are those of the equations.

    Standing assumptions (MSSP paper, J.2): the derivative of the loss is Theta(1); one sample; functions behave as
    their rules (``rules.py``) say.

    Attributes:
        steps: the optimizer steps of the tensors.
        ledger: the cache of results.
        products: multiplies signals and tensors.
    """

    network: Network
    algebra: Algebra
    point: Point
    optimizer: OptimizerSpec
    context: RunContext = PLAIN
    steps: Stepping = field(init=False)
    decays = False
    """True if the change of a tensor contains a multiple of its initial value with a factor above -1 (weight decay)."""

    def __post_init__(self) -> None:
        network, algebra, point = self.network, self.algebra, self.point
        self.ledger = self.context.ledger or Ledger(algebra)
        self.products = Products(network, algebra, point)

    @cached_property
    def tails(self) -> Tails:
        """How heavy the tails of the distribution of each signal are."""
        return Tails(self.network, self.optimizer, self.grows)

    def initial(self, signal: str) -> Signal:
        """Returns a signal before training."""
        return self.value(signal, 0)

    def value(self, signal: str, t: int) -> Signal:
        """Returns a signal after t updates."""
        raise NotImplementedError

    def change(self, signal: str, t: int) -> Signal:
        """Returns a signal after t updates minus its initial value."""
        raise NotImplementedError

    def compute_change(self, statement: Statement, t: int) -> Signal:
        """Returns the change of a statement's output from the changes of its inputs and its tensors."""
        raise NotImplementedError

    def own_statement(self, statement: S) -> S:
        """Returns the statement of this run's network that computes the same output as a given statement. Its indices
        may have other names, as in a run of one token, whose experts have an index of their own."""
        own = self.network.producer(statement.out)
        assert isinstance(own, type(statement))
        return own

    def read_factor(self, factor: Factor, which: Which, t: int) -> Signal:
        """Returns the signal that a factor of an equation stands for, with its indices renamed to those in this
        equation.

        Args:
            factor: the factor.
            which: "initial", "change" or "value" (after t updates).
            t: number of updates.
        """
        read = {"initial": lambda: self.initial(factor.name), "change": lambda: self.change(factor.name, t)}
        whole = read.get(which, lambda: self.value(factor.name, t))()
        return self.algebra.rename_indices(whole, self.network.signals[factor.name], factor.indices)

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Signal | None = None) -> Signal:
        """Returns a part of a product such as ``W x``: ``mode`` chooses W_0 or dW, and ``which`` chooses x_0, dx or
        x_t. Gates of the product (signals that weight the others, such as routing weights) have their initial values.

        Law: a product of changes is a sum over its factors, where one factor is replaced by its change, those before it
        have their present values and those after it their initial values.

        Args:
            statement: the product.
            mode: "init" to use the initial tensors, "update" to use their updates.
            which: "initial", "change" or "value" of the signals.
            t: number of updates.
            x: replaces the signals of the product if given.
        """
        s = self.own_statement(statement)
        return self.algebra.add(
            [self._make_term_part(s, term, mode, which, t, x) for term in expand_product(self.network, s)]
        )

    def gate_change(self, statement: Product, t: int) -> Signal:
        """Returns ``(gates_t - gates_0) * rest_t``: the part of a product that is due to the change of its gates, that
        is, of signals that weight the others, such as routing weights.

        The change of a gate that is represented by its mean counts only if no summed index grows, because otherwise its
        fluctuations average out (standing assumption B2 of MSSP paper, J.2).
        """
        statement, indices, parts = self.own_statement(statement), self.network.signals[statement.out], []
        weights = expand_product(self.network, statement)[0].weights
        summed = [x for x in statement.indices if x not in indices]
        averaged = any(self.grows(x) for x in summed)
        for k, weight in enumerate(weights):
            if averaged and is_held(self.network, weight.name):
                continue
            others = list(statement.factors)
            others.remove(weight)
            before = [
                self.read_factor(x, "value" if x not in weights or x in weights[:k] else "initial", t) for x in others
            ]
            parts.append(self.algebra.contract_all([self.read_factor(weight, "change", t), *before], indices))
        whole = self.algebra.add(parts or [self.algebra.zeros(indices)])
        return self.algebra.scale_by(whole, *self.products.list_scalars(statement.multipliers))

    def grows(self, index: str) -> bool:
        """Whether the axis of an index grows on the ray, or counts as growing on any ray (``RunContext.growing``)."""
        axis = self.network.indices[index]
        return axis in self.context.growing or self.algebra.ray[axis] > 0

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        """Returns the derivative of the output with respect to a signal after t updates.

        Args:
            signal: name of the signal.
            t: number of updates.
            modes: tensors of which only the initial value or only the update is used.
            via: if given, only the path through the statement that computes this signal.
        """
        raise NotImplementedError

    def transpose_product(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """Returns the gradient at the k-th factor of a product: ``above`` times all other factors.

        The other factors are written out as products of tensors, so that a tensor is multiplied by the gradient before
        anything else.

        Args:
            statement: the product.
            k: position of the factor.
            above: gradient at the output of the product.
            t: number of updates.
            modes: tensors of which only the initial value or only the update is used.
            out: indices of the result, by default those of the factor; all others are summed.
        """
        out, updates = statement.factors[k].indices if out is None else out, partial(self.steps.increments, t=t)
        parts = []
        for term in expand_product(self.network, statement, without=k):
            kept = [(modes[x.name],) if x.name in modes else MODES for x in term.tensors]
            signals = [self.read_factor(x, "value", t) for x in term.signals]
            signals += [
                self.read_factor(x, "initial" if is_held(self.network, x.name) else "value", t) for x in term.weights
            ]
            for mode in product(*kept):
                parts.append(self.products.multiply_term(term, mode, [above], signals, out, updates))
        return self.algebra.add(parts)

    def gradient_factors(
        self,
        role: str,
        t: int,
        above: Callable[[str], Signal] | None = None,
        acted: Callable[[Factor], Signal] | None = None,
    ) -> list[tuple[Signal, ...]]:
        """Returns the gradient of a tensor as a sum of products, one for each use of the tensor. Each product is a
        tuple of signals: the gradient at the output of the statement that uses the tensor, then the signals that the
        tensor multiplies there.

        Indices of the signals are renamed to those of the tensor. Indices that the tensor does not have are summed.

        Args:
            role: the parameter.
            t: number of updates.
            above: computes the gradient at an output, given its name; by default ``gradient``.
            acted: computes the value of a factor that the tensor multiplies; by default ``read_factor``.
        """
        above = above or partial(self.gradient, t=t)
        acted = acted or partial(self.read_factor, which="value", t=t)
        products = []
        kept = self.network.tensors[role].indices
        for statement in self.network.uses(role):
            assert statement.tensor
            out = self.network.signals[statement.out]
            signals = [self.products.apply_multipliers(above(statement.out), statement.multipliers)]
            indices = [out, *(x.indices for x in statement.factors)]
            signals += [acted(x) for x in statement.factors]
            read, own = "".join(indices), statement.tensor.indices
            renamed = rename_apart(self.network, own, kept, read, avoid=own + read)
            products.append(
                tuple(
                    self.algebra.rename_indices(s, old, "".join(renamed[x] for x in old))
                    for s, old in zip(signals, indices, strict=True)
                )
            )
        return products

    def with_name(self, signal: Signal, name: str) -> Signal:
        """Returns a copy of a signal with a name that explanations show."""
        return signal.replace(name=name)

    def note(self, text: str) -> None:
        """Records, for all results that depend on it, the name of an assumption (``spec/glossary.py``) or a reason why
        something is unknown."""
        self.algebra.notes.add(text)

    def remember(self, key: tuple[object, ...], name: str, compute: Callable[[], Signal]) -> Signal:
        """Returns the cached result for ``key``; if there is none, computes and caches it, with a name that
        explanations show."""
        return self.ledger.remember((self.context.name, *key), lambda: self.with_name(compute(), name))

    def compute_once(self, rule: Hashable, signal: Signal, compute: Callable[[], Signal]) -> Signal:
        """Applies a rule to a signal. This class computes it each time; subclasses may reuse the result for another
        signal with the same content.

        Args:
            rule: name of the rule, for the cache.
            signal: the signal.
            compute: applies the rule to the signal.
        """
        return compute()

    def _make_term_part(self, s: Product, term: Term, mode: Mode, which: Which, t: int, x: Signal | None) -> Signal:
        """Returns the contribution of one term of a product to ``part``, whose arguments it has."""
        out = self.network.signals[s.out]
        weights = [self.read_factor(w, "initial", 0) for w in term.weights]
        if x is not None:
            (only,) = term.signals
            choices = [[self.algebra.rename_indices(x, self.network.signals[only.name], only.indices)]]
        elif which == "change":
            changes = [self.read_factor(f, "change", t) for f in term.signals]
            initial, now = ([self.read_factor(f, w, t) for f in term.signals] for w in ("initial", "value"))
            choices = [[*now[:k], changes[k], *initial[k + 1 :]] for k in range(len(changes)) if not changes[k].is_zero]
        else:
            choices = [[self.read_factor(f, which, t) for f in term.signals]]
        modes: list[tuple[Mode, ...]] = [MODES[:1] * len(term.tensors)]
        if mode == "update":  # k present values, one update, then initial values
            modes = []
            for k in range(len(term.tensors)):
                for before in product(MODES, repeat=k):
                    modes.append((*before, MODES[1], *MODES[:1] * (len(term.tensors) - k - 1)))
        updates = partial(self.steps.increments, t=t)
        parts = [
            self.products.multiply_term(term, m, [], [*weights, *signals], out, updates)
            for m in modes
            for signals in choices
        ]
        return self.algebra.add(parts) if parts else self.algebra.zeros(out)
