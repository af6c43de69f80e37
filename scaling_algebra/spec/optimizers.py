"""Optimizers as update rules on exponents. To add one, add a table to ``optimizers.toml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

from scaling_algebra.errors import UsageError, check_names, find_entry, quote_value
from scaling_algebra.files import load_shipped_toml, parse_toml, read_text

from .axes import FIXED, Ray
from .entries import list_keys, read_registry, read_value
from .networks.language import Network
from .networks.roles import MatrixShape, matrix_shape
from .powers import Power

Epsilon = Literal["derived", "negligible"]
EPSILONS: dict[str, str] = {
    "derived": "of the size of the largest gradient (mu-3), an exponent like any other",
    "negligible": "far below every gradient, as torch's 1e-8 mostly is: the normaliser is the gradient's size alone",
}
"""Regimes of an optimizer's epsilon."""


@dataclass(frozen=True)
class ShapeFactor:
    """A factor of the learning rate that depends on the shape of a matrix with ``out`` rows and ``into`` columns.

    Attributes:
        about: formula and source.
        at: a function of the numbers ``out`` and ``into`` that returns the factor.
        power: a function of ``out`` and ``into``, given as powers of the axes, and the ray, that returns the factor
            as a power of the axes.
    """

    about: str
    at: Callable[[float, float], float]
    power: Callable[[Power, Power, Ray], Power]


def _larger_power(a: Power, b: Power, ray: Ray) -> Power:
    return a if a.on(ray) > b.on(ray) else b


_HALF = Fraction(1, 2)
SHAPES: dict[str, ShapeFactor] = {
    "none": ShapeFactor(
        "1: the operator norm of a step is its learning rate", lambda out, into: 1.0, lambda *_: Power()
    ),
    "original": ShapeFactor(
        "sqrt(max(1, out/in)): torch.optim.Muon by default (Jordan et al., 2024)",
        lambda out, into: max(1.0, out / into) ** 0.5,
        lambda out, into, ray: _larger_power(out / into, Power(), ray) ** _HALF,
    ),
    "match_rms_adamw": ShapeFactor(
        "0.2 sqrt(max(out, in)): torch.optim.Muon(adjust_lr_fn=...), sqrt(max(out, in)) in Megatron (Moonlight, 2025)",
        lambda out, into: 0.2 * max(out, into) ** 0.5,
        lambda out, into, ray: _larger_power(out, into, ray) ** _HALF,
    ),
    "unit_rms_norm": ShapeFactor(
        "sqrt(out/in): steps of one size from root-mean-square to root-mean-square (Bernstein, 2025)",
        lambda out, into: (out / into) ** 0.5,
        lambda out, into, ray: (out / into) ** _HALF,
    ),
}
"""Factors by which implementations of Muon multiply the learning rate of a matrix, by name."""
_PER = re.compile(r"per\(([A-Za-z]+)\)")
"""Suffix of an optimizer's name, ``muon:per(h)``: each index h has a matrix of its own."""
CONSTRAINTS: dict[str, str] = {
    "matrix": "every matrix keeps the Frobenius norm that it starts with (Hyperball)",
    "rows": "every row, over a fan-in that may grow, keeps the norm that it starts with (nGPT)",
    "columns": "every column, over a fan-out that may grow, keeps the norm that it starts with (nGPT)",
    "spectral": "the spectral norm of every matrix is at most what it starts with (Scion)",
}
"""Constraints that rescale the weights after each step, by name."""
FLATTENED = "flattened"
"""Suffix of an optimizer's name: the matrices of all experts are stepped as one."""


class _Rules:
    """Base class of ``Optimizer``, one update rule for all tensors, and ``Optimizers``, a rule for each tensor: the
    methods that both have.
    """

    name: str

    def of(self, role: str) -> Optimizer:
        """Returns the update rule of a tensor."""
        raise NotImplementedError

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        """The distinct update rules."""
        raise NotImplementedError

    def map_rules(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        """Returns a copy in which ``changed`` is applied to every rule."""
        raise NotImplementedError

    @property
    def with_descent(self) -> Self:
        """A copy in which every rule with an epsilon is replaced by gradient descent, as which it acts if epsilon is
        far above the gradient.
        """
        return self.map_rules(lambda rule: OPTIMIZERS["sgd"] if rule.epsilon else rule)

    @property
    def with_normalisers(self) -> Self:
        """A copy in which every rule that does not normalise the gradient is replaced by Adam."""
        return self.map_rules(lambda rule: rule if rule.normalises else OPTIMIZERS["adam"])

    @property
    def regime(self) -> Epsilon | None:
        """How epsilons scale: ``derived`` or ``negligible``; None if no rule has an epsilon."""
        if any(rule.negligible for rule in self.rules):
            return "negligible"
        return "derived" if any(rule.epsilon for rule in self.rules) else None

    def with_epsilon(self, regime: str) -> Self:
        """Returns a copy in which all epsilons scale as ``regime`` says: ``derived`` or ``negligible``.

        Raises:
            UsageError: there is no such regime, or no rule has an epsilon.
        """
        find_entry("epsilon regime", regime, EPSILONS)
        if self.regime is None:
            raise UsageError(f"{self.name} has no epsilon; leave out epsilon={regime!r}")
        negligible = regime.lower() == "negligible"
        chosen = partial(replace, epsilon=not negligible, negligible=negligible)
        return self.map_rules(lambda rule: rule if rule.regime is None else chosen(rule))


@dataclass(frozen=True)
class Optimizer(_Rules):
    """The rule by which one step turns the gradient of a tensor into its update.

    Law: update = lr * gradient / normaliser, times the size of the tensor if the rule is ``relative``. The normaliser
    is the size of an entry of the gradient (if the rule divides by a running mean of squares, or takes signs), or the
    norm of the matrix of one expert (if the rule orthogonalises it). Sizes are counted as if the update had the
    direction of the gradient, for these reasons. From a gradient u v^T of rank one, signs make sign(u) sign(v)^T, and
    orthogonalising makes u v^T / (|u| |v|); both have rank one as well. The sign, or another odd function, of
    Gaussian entries is a multiple of these entries (the first Hermite term) plus a part that is uncorrelated with
    them. Momentum adds Theta(1) multiples of past gradients, which the sum of all updates contains already, so it
    changes no exponent.

    Attributes:
        name: its name on the command line and in reports.
        torch: the class that ``verify`` trains with: of ``torch.optim``, of ``verify/networks/steppers.py``,
            ``pytorch_optimizer:Class``, or ``FILE.py:Class``; empty if there is none.
        options: keyword arguments of that class.
        first: size of torch's first step, as a multiple of the learning rate. To let all normalising rules start with
            the same step, the MoE block is trained with learning rate and epsilon divided by this number.
        normalises: ``entry`` or ``matrix``: the step is divided by the size of an entry or of the matrix; empty for
            none.
        memory: True if the normaliser remembers the largest past gradient (v_t is a running mean of squares).
        epsilon: True if the normaliser is at least epsilon ~ n^-d.
        negligible: True if epsilon exists but is far below every gradient and has no effect; then ``epsilon`` is
            False.
        shape: name in ``SHAPES`` of the factor of the learning rate; for ``matrix`` only.
        flattened: True if the matrices of all experts are stepped as one; for ``matrix`` only.
        blocks: side of the blocks into which a matrix is cut and which are stepped separately; 0 for none. With a fixed
            side they normalise entries, up to Theta(1).
        per: indices that count separate matrices, such as attention heads; for ``matrix`` only.
        relative: True if the step is relative to the size of the tensor; to Theta(1) if the tensor starts at zero.
        constraint: name in ``CONSTRAINTS`` of what rescales the weights after each step; a tensor that starts at zero
            stays zero. A relative step with the constraint ``matrix`` is relative to the norm that is kept.
        decoupled_decay: True if weight decay acts on the weights, not on the gradient.
        note: an assumption that is printed with the result.
        source: where the rule is published.

    Raises:
        UsageError: a value of the wrong type or range, an unknown normaliser or shape, or a key without another one
            that it requires (``GOES_WITH``).
    """

    name: str
    torch: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    first: float = 1.0
    normalises: Literal["", "entry", "matrix"] = ""
    memory: bool = False
    epsilon: bool = False
    negligible: bool = False
    shape: str = "none"
    flattened: bool = False
    blocks: int = 0
    per: str = ""
    relative: bool = False
    constraint: str = ""
    decoupled_decay: bool = False
    note: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for key, (_, kind, _) in list_keys(Optimizer).items():
            read_value(kind, getattr(self, key), f"{key} of the optimizer {self.name}")
        check_names("factor of a shape", [self.shape], SHAPES)
        check_names("constraint", [self.constraint] if self.constraint else [], CONSTRAINTS)
        if not 0 < self.first < inf:
            raise self._make_error("first", "give a positive number")
        if not 0 <= self.blocks <= SIDE:
            raise self._make_error("blocks", f"give a side of 1 to {SIDE}")
        if self.per and not (self.per.isalpha() and len({*self.per}) == len(self.per)):
            raise self._make_error("per", "give the names of indices, each once")
        if self.blocks and self.normalises:
            object.__setattr__(self, "normalises", "entry")
        for key, (what, holds) in GOES_WITH.items():
            if getattr(self, key) != getattr(type(self), key, {}) and not holds(self):
                raise self._make_error(key, f"it requires {what}")

    def _make_error(self, key: str, instead: str) -> UsageError:
        return UsageError(f"{key} of the optimizer {self.name} is {quote_value(getattr(self, key))}; {instead}")

    def __hash__(self) -> int:
        return hash(self.name)

    def entry_count_root(self, network: Network, role: str) -> Power:
        """Returns the square root of the number of entries of one matrix, for a rule that divides by a matrix norm.

        The norm of a matrix is this factor times the size of its entries. The result is 1 for a rule that divides by
        the size of entries, and for a rule whose steps are relative to the norm of the matrix.
        """
        if self.normalises != "matrix" or self.keeps_norm:
            return Power()
        one = self.matrix(network, role)
        return network.size(one.rows + one.columns) ** _HALF

    def shape_factor(self, network: Network, role: str, ray: Ray) -> Power:
        """Returns the shape-dependent factor of a tensor's learning rate on a ray; 1 if there is none."""
        if self.normalises != "matrix" or self.keeps_norm:
            return Power()
        one = self.matrix(network, role)
        return SHAPES[self.shape].power(network.size(one.rows), network.size(one.columns), ray)

    def constrains(self, network: Network, role: str) -> bool:
        """Tests whether the rule rescales a tensor after each step, so that a norm of it keeps its value
        (``constraint``).

        Norms over indices that cannot grow do not count.
        """
        return any(network.axes[x] not in FIXED for x in self.constrained_indices(network, role))

    def constrained_indices(self, network: Network, role: str) -> str:
        """Returns the indices of a tensor over which a norm is taken, where the rule rescales the weights after each
        step so that this norm keeps its value (``constraint``).

        The result is empty if the rule has no constraint.
        """
        one = self.matrix(network, role)
        return {"": "", "rows": one.columns, "columns": one.rows}.get(self.constraint, one.rows + one.columns)

    def matrix(self, network: Network, role: str) -> MatrixShape:
        """Returns which indices of a tensor this rule takes as rows and columns."""
        return matrix_shape(network, role, self.flattened, self.per)

    def of(self, role: str) -> Optimizer:
        return self

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        return (self,)

    def map_rules(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        return changed(self)  # type: ignore[return-value]

    @property
    def keeps_norm(self) -> bool:
        """True if steps are relative to the norm of their matrix and weights are rescaled to this norm after each
        step.
        """
        return self.relative and self.constraint == "matrix"

    @property
    def acts_on_matrices(self) -> bool:
        """True if a step depends on a whole matrix or block, so that torch must know the shape of the matrices."""
        return self.normalises == "matrix" or bool(self.blocks or self.constraint)

    @property
    def is_sign(self) -> bool:
        """True if a step is a sign, up to Theta(1) factors that depend on past gradients."""
        return self.normalises == "entry" and not self.epsilon

    @property
    def assumes(self) -> str:
        """Name of the assumption (``glossary.py``) under which a step of this rule has the size that the engine
        derives; empty if none is needed.
        """
        if self.normalises == "matrix":
            return "singular-directions"
        return "rank-one-sign" if self.is_sign else "first-hermite" if self.normalises else ""

    @property
    def untrained(self) -> str:
        """Why ``verify`` cannot train with this rule; empty if it can."""
        if self.torch or not self.name.endswith(".toml"):
            return "" if self.torch else self.whole
        return f'{self.name} cannot be trained: it names no class; add one, such as torch = "Adam"'

    @property
    def whole(self) -> str:
        """The error message for functions that support only optimizers which act on each entry by itself; it says
        that this one does not.
        """
        why = (
            "its step depends on whole tensors, but only elementwise optimizers are supported here; choose one such "
            "as adam or sgd"
        )
        return f"{self.name} cannot be trained: {why}"

    def normaliser(self, gradients: Sequence[int], epsilon: int, entries: int) -> int:
        """Returns the exponent of the number by which this rule divides the present gradient; 0 if it does not
        normalise.

        Each exponent of n is packed into an integer together with its formula (``counting/packing.py``).

        Args:
            gradients: exponents of the sizes of entries of all gradients so far that are not zero, the present one
                last.
            epsilon: exponent of Adam's epsilon.
            entries: exponent of ``entry_count_root`` of the tensor, by which a matrix norm exceeds the size of an
                entry.
        """
        if not self.normalises:
            return 0
        size = max(gradients) if self.memory else gradients[-1]
        if self.epsilon:
            size = max(size, epsilon)
        return size + entries


SIDE = 2**12
"""Maximum side of the blocks into which a matrix is cut."""
_NORMALISED = "a normaliser, entry or matrix", lambda o: o.normalises
_MATRICES = "normalises = 'matrix', without blocks", lambda o: o.normalises == "matrix"
_ENTRIES = (
    "normalises = 'entry', without blocks and a constraint",
    lambda o: o.normalises == "entry" and not o.blocks and not o.constraint,
)
GOES_WITH: dict[str, tuple[str, Callable[[Optimizer], object]]] = {
    "options": ("a class, torch", lambda o: o.torch),
    "first": ("a class, torch", lambda o: o.torch),
    "memory": _NORMALISED,
    "epsilon": _ENTRIES,
    "negligible": ("normalises = 'entry', without blocks", lambda o: o.normalises == "entry" and not o.blocks),
    "shape": (
        "normalises = 'matrix', without blocks and a relative step to a kept norm",
        lambda o: o.normalises == "matrix" and not o.keeps_norm,
    ),
    "flattened": _MATRICES,
    "per": _MATRICES,
    "blocks": _NORMALISED,
    "relative": _NORMALISED,
    "constraint": (
        "a normaliser, without blocks and, but for 'matrix', without a relative step",
        lambda o: o.normalises and not o.blocks and (not o.relative or o.constraint == "matrix"),
    ),
}
"""What each key requires of the other keys: a description, and the test."""
_SHIPPED = load_shipped_toml(__package__, "optimizers.toml")
_NOTES: dict[str, str] = _SHIPPED.pop("notes")
REFUSED: dict[str, str] = _SHIPPED.pop("refused")
"""Optimizers that these attributes cannot describe, by name, and why."""
OPTIMIZERS: dict[str, Optimizer] = read_registry(
    "optimizers.toml",
    _SHIPPED,
    Optimizer,
    lambda record: {**record, "note": "; ".join(find_entry("note", x, _NOTES) for x in record.get("note", ()))},
)
"""Every optimizer, by name."""


LOAD = replace(
    OPTIMIZERS["signsgd"],
    name="load",
    note="a tensor that only shifts a selection has no gradient: it is a buffer, and its step is the sign of the "
    "number of tokens that chose an entry minus the mean of this number",
    source="Wang et al. (2024), auxiliary-loss-free balancing; HP-transfer paper, Rule 2",
)
"""The rule of buffers (``networks/auxiliary.py``)."""


@dataclass(frozen=True)
class Optimizers(_Rules):
    """One update rule for each tensor.

    Attributes:
        name: the text that ``read_optimizers`` parses, such as ``muon+adamw``.
        rest: the rule of all tensors that are not listed.
        tensors: pairs (role, rule).
    """

    name: str
    rest: Optimizer
    tensors: tuple[tuple[str, Optimizer], ...]

    def of(self, role: str) -> Optimizer:
        return dict(self.tensors).get(role, self.rest)

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        return tuple(dict.fromkeys((self.rest, *(rule for _, rule in self.tensors))))

    def map_rules(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        pairs = tuple((role, changed(rule)) for role, rule in self.tensors)
        return replace(self, rest=changed(self.rest), tensors=pairs)


OptimizerSpec = Optimizer | Optimizers
"""The optimizer of a network; ``of(role)`` is the update rule of a tensor."""


def optimizer(name: str) -> Optimizer:
    """Returns an optimizer by name, with optional suffixes, or reads one from a TOML file.

    A matrix optimizer takes the name of a shape factor, ``flattened`` or ``per``: ``muon:original``,
    ``muon:flattened``, ``muon:per(h)`` if index h counts blocks. A normalising optimizer takes a constraint,
    ``adam:rows``; its epsilon is then negligible. A TOML file has the attributes of ``Optimizer``.

    Raises:
        UsageError: there is no such optimizer, suffix or file.
    """
    base, *readings = name.split(":") if isinstance(name, str) else [name]
    rule = _read_optimizer_file(base) if isinstance(base, str) and base.endswith(".toml") else _find_shipped_rule(base)
    plain = rule.shape
    for reading in readings:
        if reading in CONSTRAINTS:
            if not rule.normalises:
                raise UsageError(f"{name!r}: a constraint needs an optimizer that normalises, such as adam:{reading}")
            rule = replace(rule, constraint=reading, epsilon=False, negligible=rule.regime is not None)
        elif rule.normalises != "matrix":
            takes = f", or take {', '.join(CONSTRAINTS)}" if rule.normalises else ""
            raise UsageError(
                f"{name!r}: {rule.name} is elementwise, {reading!r} needs a matrix optimizer; leave it out{takes}"
            )
        elif per := _PER.fullmatch(reading):
            rule = replace(rule, per="".join(sorted({*rule.per, *per[1]})))
        else:
            known = {x: x for x in (*SHAPES, FLATTENED, "per(h)", *CONSTRAINTS)}
            chosen = find_entry(f"reading of {rule.name}", reading, known)
            flat = {"flattened": True, "note": rule.note.replace(_NOTES["apart"], _NOTES["one"])}
            rule = replace(rule, **(flat if chosen == FLATTENED else {"shape": chosen}))
    if any(reading in CONSTRAINTS for reading in readings):
        rule = replace(rule, note="; ".join(filter(None, (rule.note, _NOTES["constraint"]))))
    blocks = f"per({rule.per})" if rule.per else "none"
    shape = rule.shape if rule.shape != plain else "none"
    names = [x for x in (shape, FLATTENED if rule.flattened else "none", blocks) if x != "none"]
    names += [x for x in readings if x in CONSTRAINTS][-1:]
    return replace(rule, name=":".join((rule.name, *names))) if names else rule


def _find_shipped_rule(name: str) -> Optimizer:
    """Returns the shipped optimizer of this name.

    Raises:
        UsageError: there is none, or no rule can describe it; the message says how to give a file.
    """
    if isinstance(name, str) and (why := REFUSED.get(name.lower())):
        raise UsageError(f"no rule for {name}: {why}")
    try:
        return find_entry("optimizer", name, OPTIMIZERS)
    except UsageError as error:
        raise UsageError(
            f"{error}; describe any other in a file, such as mine.toml with normalises = 'entry'"
        ) from None


def _read_optimizer_file(file: str) -> Optimizer:
    """Reads an optimizer from a TOML file, whose path is its name. A class is looked up relative to the file.

    Raises:
        UsageError: the file cannot be read, or contradicts the class that it names.
    """
    text = read_text(Path(file), "give a TOML file with the attributes of an optimizer, such as normalises = 'entry'")
    try:
        record = parse_toml(text)
    except UsageError as error:
        raise UsageError(f"{file}: {error}; write for example normalises = 'entry'") from None
    check_names(f"key of {file}", record, [x for x in list_keys(Optimizer) if x not in ("name", "negligible")])
    beside = str(Path(file).parent / str(record.get("torch", "")))
    rule = Optimizer(file, **{**record, **({"torch": beside} if Path(beside.rpartition(":")[0]).is_file() else {})})
    if not (rule.normalises or rule.torch):
        raise UsageError(f"{file} describes no optimizer; write for example normalises = 'entry'")
    steps = {x.normalises for x in OPTIMIZERS.values() if x.torch == rule.torch != ""} or {rule.normalises}
    if rule.normalises not in steps:
        right = " or ".join(f"normalises = {x!r}" if x else "no normalises" for x in sorted(steps))
        raise UsageError(f"{file}: normalises does not fit {rule.torch}; write {right}, or name another class")
    return rule
