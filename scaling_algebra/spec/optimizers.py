"""Optimizers as update rules on exponents. Adding an optimizer: one more table in ``optimizers.toml``."""

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
from .entries import keys, read, registry
from .networks.language import Network
from .networks.roles import Matrix, matrix
from .powers import Power

Epsilon = Literal["derived", "negligible"]
EPSILONS: dict[str, str] = {
    "derived": "of the size of the largest gradient (mu-3), an exponent like any other",
    "negligible": "far below every gradient, as torch's 1e-8 mostly is: the normaliser is the gradient's size alone",
}
"""Regimes of an optimizer's epsilon."""


@dataclass(frozen=True)
class Shape:
    """A factor on the learning rate of a matrix with ``out`` rows and ``into`` columns.

    Attributes:
        about: formula and source.
        at: the number. power: the same as a power of the axes, on a ray.
    """

    about: str
    at: Callable[[float, float], float]
    power: Callable[[Power, Power, Ray], Power]


def _larger(a: Power, b: Power, ray: Ray) -> Power:
    return a if a.on(ray) > b.on(ray) else b


_HALF = Fraction(1, 2)
SHAPES: dict[str, Shape] = {
    "none": Shape("1: the operator norm of a step is its learning rate", lambda out, into: 1.0, lambda *_: Power()),
    "original": Shape(
        "sqrt(max(1, out/in)): torch.optim.Muon by default (Jordan et al., 2024)",
        lambda out, into: max(1.0, out / into) ** 0.5,
        lambda out, into, ray: _larger(out / into, Power(), ray) ** _HALF,
    ),
    "match_rms_adamw": Shape(
        "0.2 sqrt(max(out, in)): torch.optim.Muon(adjust_lr_fn=...), sqrt(max(out, in)) in Megatron (Moonlight, 2025)",
        lambda out, into: 0.2 * max(out, into) ** 0.5,
        lambda out, into, ray: _larger(out, into, ray) ** _HALF,
    ),
    "unit_rms_norm": Shape(
        "sqrt(out/in): steps of one size from root-mean-square to root-mean-square (Bernstein, 2025)",
        lambda out, into: (out / into) ** 0.5,
        lambda out, into, ray: (out / into) ** _HALF,
    ),
}
"""Factors by which implementations of Muon multiply the learning rate of a matrix."""
_PER = re.compile(r"per\(([A-Za-z]+)\)")
"""The reading in which indices with these letters count blocks of a matrix."""
CONSTRAINTS: dict[str, str] = {
    "matrix": "every matrix keeps the Frobenius norm that it starts with (Hyperball)",
    "rows": "every row, over a fan-in that may grow, keeps the norm that it starts with (nGPT)",
    "columns": "every column, over a fan-out that may grow, keeps the norm that it starts with (nGPT)",
    "spectral": "the spectral norm of every matrix is at most what it starts with (Scion)",
}
"""Constraints that bring the weights back after each step, each by a factor."""
FLATTENED = "flattened"
"""The reading in which the matrices of all experts are one."""


class _Rules:
    """One rule for all tensors, or one for each."""

    name: str

    def of(self, role: str) -> Optimizer:
        """The rule of a tensor."""
        raise NotImplementedError

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        """Every rule that trains some tensor, each once."""
        raise NotImplementedError

    def each(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        """The rules, every one changed."""
        raise NotImplementedError

    @property
    def with_descent(self) -> Self:
        """The rules if every epsilon is the normaliser: each rule with an epsilon is gradient descent."""
        return self.each(lambda rule: OPTIMIZERS["sgd"] if rule.epsilon else rule)

    @property
    def with_normalisers(self) -> Self:
        """A run that is gradient descent where its epsilons are the normalisers: Adam for every rule without one."""
        return self.each(lambda rule: rule if rule.normalises else OPTIMIZERS["adam"])

    @property
    def regime(self) -> Epsilon | None:
        """The regime of the epsilons; None if there is none."""
        if any(rule.negligible for rule in self.rules):
            return "negligible"
        return "derived" if any(rule.epsilon for rule in self.rules) else None

    def with_epsilon(self, regime: str) -> Self:
        """The rules, epsilons of those that have one in a regime of ``EPSILONS``.

        Raises:
            UsageError: no such regime, or none of them has an epsilon.
        """
        find_entry("epsilon regime", regime, EPSILONS)
        if self.regime is None:
            raise UsageError(f"{self.name} has no epsilon; leave out epsilon {regime!r}")
        negligible = regime.lower() == "negligible"
        chosen = partial(replace, epsilon=not negligible, negligible=negligible)
        return self.each(lambda rule: rule if rule.regime is None else chosen(rule))


@dataclass(frozen=True)
class Optimizer(_Rules):
    """The rule by which one step turns a gradient into an update.

    Law: update = lr * gradient / normaliser, times the size of the tensor for a relative one. The normaliser is the
    size of an entry (a running mean of squares, or a sign), or of the whole matrix of one expert (a spectral step). A
    rank-one gradient u v^T keeps its factors: sign(u v^T) = sign(u) sign(v)^T, orthogonalising it gives
    u v^T / (|u| |v|), and an entrywise odd function of a Gaussian-like signal is carried by its linear (first Hermite)
    part, so the direction is that of the gradient.
    A momentum buffer adds Theta(1) multiples of past gradients, which the cumulative update holds already: it changes
    no exponent.

    Attributes:
        name: for the command line and reports.
        torch: class that ``verify`` steps with, of ``torch.optim`` or ``verify/networks/steppers.py``,
            ``pytorch_optimizer:Class`` of the package of this name, or ``FILE.py:Class``; empty if there is none.
        options: of that class.
        first: size of torch's first step, in learning rates. The MoE block is trained with learning rate and epsilon
            divided by it, so that all rules that normalise start with the same step.
        normalises: divide by the size of an ``entry`` or of the ``matrix``; empty for none.
        memory: the normaliser remembers the largest past gradient (v_t is a running mean of squares).
        epsilon: the normaliser is at least epsilon ~ n^-d.
        negligible: it has an epsilon, which is far below every gradient and plays no role; then ``epsilon`` is False.
        shape: of a step of whole matrices: the name of the factor in ``SHAPES`` that the learning rate is multiplied
            with.
        flattened: of a step of whole matrices: the matrices of all experts are taken as one.
        blocks: side of the blocks that a matrix is cut into, each stepped as a matrix by itself; 0 for none. Of a fixed
            side they normalise entries, up to Theta(1).
        per: letters of a step of whole matrices that count blocks, such as heads, each stepped as a matrix by itself.
        relative: the step is relative to the size of the tensor it changes; to Theta(1) where that starts at zero.
        constraint: a name in ``CONSTRAINTS``: what brings the weights back after each step; what starts at zero stays
            there. A relative step with ``matrix`` is relative to the norm that is kept.
        decoupled_decay: weight decay acts on the weights, not on the gradient.
        note: assumption printed with the result.
        source: where the rule is published.

    Raises:
        UsageError: a value of the wrong type or outside its range, no such normaliser or shape, or a key without those
            that it goes with (``GOES_WITH``).
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
        for key, (_, kind, _) in keys(Optimizer).items():
            read(kind, getattr(self, key), f"{key} of the optimizer {self.name}")
        check_names("factor of a shape", [self.shape], SHAPES)
        check_names("constraint", [self.constraint] if self.constraint else [], CONSTRAINTS)
        if not 0 < self.first < inf:
            raise self._wrong("first", "give a positive number")
        if not 0 <= self.blocks <= SIDE:
            raise self._wrong("blocks", f"give a side of 1 to {SIDE}")
        if self.per and not (self.per.isalpha() and len({*self.per}) == len(self.per)):
            raise self._wrong("per", "give letters, each once")
        if self.blocks and self.normalises:
            object.__setattr__(self, "normalises", "entry")
        for key, (what, holds) in GOES_WITH.items():
            if getattr(self, key) != getattr(type(self), key, {}) and not holds(self):
                raise self._wrong(key, f"it goes with {what}")

    def _wrong(self, key: str, instead: str) -> UsageError:
        return UsageError(f"{key} of the optimizer {self.name} is {quote_value(getattr(self, key))}; {instead}")

    def __hash__(self) -> int:
        return hash(self.name)

    def entries(self, network: Network, role: str) -> Power:
        """The root of the number of entries of what is normalised by its own size: 1, or that of one matrix."""
        if self.normalises != "matrix" or self.sphere:  # a step relative to a norm is one of entries to entries
            return Power()
        one = self.matrix(network, role)
        return network.size(one.rows + one.columns) ** _HALF

    def shaped(self, network: Network, role: str, ray: Ray) -> Power:
        """The factor of the learning rate of a tensor, on a ray: 1, or the factor of its shape."""
        if self.normalises != "matrix" or self.sphere:
            return Power()
        one = self.matrix(network, role)
        return SHAPES[self.shape].power(network.size(one.rows), network.size(one.columns), ray)

    def constrains(self, network: Network, role: str) -> bool:
        """Whether the constraint acts on a tensor: a norm is taken over indices of which some may grow."""
        return any(network.axes[x] not in FIXED for x in self.normed(network, role))

    def normed(self, network: Network, role: str) -> str:
        """The indices of a matrix that the norm of the constraint sums over; none without one."""
        one = self.matrix(network, role)
        return {"": "", "rows": one.columns, "columns": one.rows}.get(self.constraint, one.rows + one.columns)

    def matrix(self, network: Network, role: str) -> Matrix:
        """One matrix of a tensor, as a step of this rule takes it."""
        return matrix(network, role, self.flattened, self.per)

    def of(self, role: str) -> Optimizer:
        return self

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        return (self,)

    def each(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        return changed(self)  # type: ignore[return-value]

    @property
    def sphere(self) -> bool:
        """A step is relative to the norm of its matrix, which the constraint keeps."""
        return self.relative and self.constraint == "matrix"

    @property
    def folded(self) -> bool:
        """Steps are those of matrices, or blocks of them, not of entries."""
        return self.normalises == "matrix" or bool(self.blocks or self.constraint)

    @property
    def signs(self) -> bool:
        """A step is a sign, up to Theta(1) factors that depend on past gradients."""
        return self.normalises == "entry" and not self.epsilon

    @property
    def assumes(self) -> str:
        """Assumptions of a step (``glossary.py``); empty for counting powers alone."""
        if self.normalises == "matrix":
            return "singular-directions"
        return "rank-one-sign" if self.signs else "first-hermite" if self.normalises else ""

    @property
    def untrained(self) -> str:
        """Why it cannot be trained; empty if it can."""
        if self.torch or not self.name.endswith(".toml"):
            return "" if self.torch else self.whole
        return f'{self.name} cannot be trained: it names no class; add one, such as torch = "Adam"'

    @property
    def whole(self) -> str:
        """Why it cannot be trained where only steps of entries are taken."""
        why = "its step is of whole tensors, and only steps of entries are taken here; take another optimizer"
        return f"{self.name} cannot be trained: {why}"

    def normaliser(self, gradients: Sequence[int], epsilon: int, entries: int) -> int:
        """Packed exponent the gradient of this step is divided by.

        Args:
            gradients: packed entry sizes of the gradients so far, this step's last; zeros left out.
            epsilon: packed exponent of Adam's epsilon.
            entries: packed ``entries`` of the tensor.
        """
        if not self.normalises:
            return 0
        size = max(gradients) if self.memory else gradients[-1]
        if self.epsilon:
            size = max(size, epsilon)
        return size + entries


SIDE = 2**12
"""Largest side of blocks that a matrix is cut into."""
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
        lambda o: o.normalises == "matrix" and not o.sphere,
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
"""The keys that a key needs beside it."""
_SHIPPED = load_shipped_toml(__package__, "optimizers.toml")
_NOTES: dict[str, str] = _SHIPPED.pop("notes")
REFUSED: dict[str, str] = _SHIPPED.pop("refused")
"""Optimizers that no attributes describe, by name, and why."""
OPTIMIZERS: dict[str, Optimizer] = registry(
    "optimizers.toml",
    _SHIPPED,
    Optimizer,
    lambda record: {**record, "note": "; ".join(find_entry("note", x, _NOTES) for x in record.get("note", ()))},
)
"""Every optimizer, by name."""


LOAD = replace(
    OPTIMIZERS["signsgd"],
    name="load",
    note="a tensor that only shifts a selection has no gradient: it is a buffer, and its step is the sign of how many "
    "tokens chose an entry, less the mean",
    source="Wang et al. (2024), auxiliary-loss-free balancing; HP-transfer paper, Rule 2",
)
"""The rule of buffers (``networks/auxiliary.py``)."""


@dataclass(frozen=True)
class Optimizers(_Rules):
    """An optimizer for every tensor, where one does not train all of them.

    Attributes:
        name: as ``trained.trained`` reads it.
        rest: the rule of tensors that are not named; ``tensors``: rules of the others, by role.
    """

    name: str
    rest: Optimizer
    tensors: tuple[tuple[str, Optimizer], ...]

    def of(self, role: str) -> Optimizer:
        return dict(self.tensors).get(role, self.rest)

    @property
    def rules(self) -> tuple[Optimizer, ...]:
        return tuple(dict.fromkeys((self.rest, *(rule for _, rule in self.tensors))))

    def each(self, changed: Callable[[Optimizer], Optimizer]) -> Self:
        pairs = tuple((role, changed(rule)) for role, rule in self.tensors)
        return replace(self, rest=changed(self.rest), tensors=pairs)


Trained = Optimizer | Optimizers
"""Optimizer of a network: ``of(role)`` is the rule of a tensor."""


def optimizer(name: str) -> Optimizer:
    """The optimizer called ``name``; one of matrices in a reading: ``muon:original``, ``muon:flattened``, and
    ``muon:per(h)`` where an index with the letter h counts blocks; one that normalises with a constraint:
    ``adam:rows``, whose epsilon is negligible. Or a TOML file with the attributes of one of your own.

    Raises:
        UsageError: no such optimizer, or no such reading of it; a file that has none.
    """
    base, *readings = name.split(":") if isinstance(name, str) else [name]
    rule = _own(base) if isinstance(base, str) and base.endswith(".toml") else _shipped_rule(base)
    plain = rule.shape
    for reading in readings:
        if reading in CONSTRAINTS:
            if not rule.normalises:
                raise UsageError(
                    f"{name!r}: a constraint goes with a normaliser, which {rule.name} lacks: adam:{reading}"
                )
            rule = replace(rule, constraint=reading, epsilon=False, negligible=rule.regime is not None)
        elif rule.normalises != "matrix":
            takes = f", or take {', '.join(CONSTRAINTS)}" if rule.normalises else ""
            raise UsageError(f"{name!r}: {rule.name} steps entries, which have no shape; leave out {reading!r}{takes}")
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


def _shipped_rule(name: str) -> Optimizer:
    """The optimizer that ships under a name.

    Raises:
        UsageError: none does, or it has no rule; the message says how to give a file.
    """
    if isinstance(name, str) and (why := REFUSED.get(name.lower())):
        raise UsageError(f"no rule for {name}: {why}")
    try:
        return find_entry("optimizer", name, OPTIMIZERS)
    except UsageError as error:
        raise UsageError(f"{error}; any other is a file, such as mine.toml with normalises = 'entry'") from None


def _own(file: str) -> Optimizer:
    """The optimizer of a file, which is its name; a class in a file beside it is found there."""
    text = read_text(Path(file), "give a TOML file with the attributes of an optimizer, such as normalises = 'entry'")
    try:
        record = parse_toml(text)
    except UsageError as error:
        raise UsageError(f"{file}: {error}; write for example normalises = 'entry'") from None
    check_names(f"key of {file}", record, [x for x in keys(Optimizer) if x not in ("name", "negligible")])
    beside = str(Path(file).parent / str(record.get("torch", "")))
    rule = Optimizer(file, **{**record, **({"torch": beside} if Path(beside.rpartition(":")[0]).is_file() else {})})
    if not (rule.normalises or rule.torch):
        raise UsageError(f"{file} says of no optimizer what it is; write for example normalises = 'entry'")
    steps = {x.normalises for x in OPTIMIZERS.values() if x.torch == rule.torch != ""} or {rule.normalises}
    if rule.normalises not in steps:
        right = " or ".join(f"normalises = {x!r}" if x else "no normalises" for x in sorted(steps))
        raise UsageError(f"{file}: {rule.torch} has {right}; write that, or name another class")
    return rule
