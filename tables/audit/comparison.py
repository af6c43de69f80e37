"""Compares every published cell with the derived one: AGREES, DISAGREES or NOT COMPARABLE, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError, unknown_name_error
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.linear.linear import COMPARED
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.networks.language import Sum
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, Abc
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.published.printed import SOURCES, Key, Printed, load

from .laws import Answered, compare_law
from .own import starting

Status = Literal["AGREES", "DISAGREES", "NOT COMPARABLE"]
STATUSES: tuple[Status, ...] = get_args(Status)
Gauges = Mapping[tuple[str, ...], Abc]
"""Printed multiplier, init std and learning rate of tensors, by the common fields of their cells."""


@dataclass(frozen=True)
class Comparison:
    """A printed cell and what the engine derives for it.

    Attributes:
        printed: the cell.
        status: ``AGREES``, ``DISAGREES`` or ``NOT COMPARABLE``.
        derived: derived exponent of n as text ("zero" if the quantity is exactly zero), or derived power of the axes;
            "" if nothing was compared.
        why: why the cell cannot be compared, or how the engine gets its value.
        derivation: the parameterization that the cell was compared with, which a measurement trains; None if there is
            none.
    """

    printed: Printed
    status: Status
    derived: str = ""
    why: str = ""
    derivation: Derivation | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return self.printed.key

    def as_json(self) -> dict[str, Any]:
        p = self.printed
        setting = {k: p.setting.get(k) for k in ("regime", "parameterization", "optimizer")}
        place = {"source": p.source, "table": p.table, "label": p.label, **setting, "quantity": p.quantity}
        return {**place, "step": p.step, "printed": str(p.value), "derived": self.derived, "why": self.why}


@dataclass(frozen=True, repr=False)
class Audit(Rendered):
    """Comparisons of the cells of published tables, or of a table of the user.

    Attributes:
        comparisons: one for each cell, in the order of the files.
        slopes: for each cell that disagrees, by its key, the measured exponent with its confidence interval as text;
            empty if nothing was measured.
        file: the user's table; "" for published ones.
    """

    comparisons: tuple[Comparison, ...]
    slopes: Mapping[Key, str] = field(default_factory=dict)
    file: str = ""

    @property
    def disagreements(self) -> list[Comparison]:
        return [c for c in self.comparisons if c.status == "DISAGREES"]

    def counts(self) -> dict[tuple[str, str], Counter[Status]]:
        """Counts the cells of each status, by (source, table)."""
        counts: dict[tuple[str, str], Counter[Status]] = {}
        for c in self.comparisons:
            counts.setdefault((c.printed.source, c.printed.table), Counter())[c.status] += 1
        return counts

    @property
    def about(self) -> str:
        which = f"cells of {self.file}" if self.file else "published cells"
        return f"{len(self.comparisons)} {which}, {len(self.disagreements)} disagree"


def audit(source: str | None = None) -> Audit:
    """Compares every printed cell of one paper with the engine, or of all papers if ``source`` is None.

    Raises:
        UsageError: there is no paper of this name.
    """
    if source is not None and source not in SOURCES:
        raise unknown_name_error("source", source, SOURCES)
    return Audit(compare(load(source)))


def compare(cells: Sequence[Printed]) -> tuple[Comparison, ...]:
    """Compares printed cells with the engine. If a table prints multiplier, init std and learning rate of a tensor,
    these are converted together.
    """
    gauges = _gauges(cells)
    return tuple(_compare(cell, gauges) for cell in cells)


# inside --------------------------------------------------------------------------------------------------------


def _compare(cell: Printed, gauges: Gauges) -> Comparison:
    if cell.reason:
        return Comparison(cell, "NOT COMPARABLE", why=cell.reason)
    if "law" in cell.setting:
        return _compare_cell(cell, compare_law(cell))
    try:
        several = [_in_one(cell, d, gauges) for d in derivations(cell)]
    except UsageError as problem:
        return Comparison(cell, "NOT COMPARABLE", why=str(problem))
    worst = next((c for s in ("DISAGREES", "NOT COMPARABLE") for c in several if c.status == s), several[0])
    if worst.status == "DISAGREES" and len(several) > 1:
        where = ", ".join(c.derivation.network.name for c in several if c.status == "DISAGREES" and c.derivation)
        return replace(worst, why=f"{worst.why} ({where})")
    return worst


def _in_one(cell: Printed, d: Derivation, gauges: Gauges) -> Comparison:
    try:
        return _compare_cell(cell, _parameter(cell, d, gauges) if cell.step is None else _signal(cell, d), d)
    except NotComparable as reason:
        return Comparison(cell, "NOT COMPARABLE", why=str(reason))


def _compare_cell(cell: Printed, answered: Answered, d: Derivation | None = None) -> Comparison:
    same, derived, why = answered
    return Comparison(cell, "AGREES" if same else "DISAGREES", derived, why, d)


class NotComparable(Exception):
    """Raised with the reason why a cell cannot be compared with a configuration."""


def derivations(cell: Printed) -> list[Derivation]:
    """Returns the derivations of all configurations that a cell is about.

    If its setting does not state the optimizer or the gate, or states ``any``, one derivation is returned for each.

    Raises:
        UsageError: the cell is about a parameterization that the engine does not have.
    """
    s = cell.setting
    regime = s.get("regime", "I")
    optimizers = ["sgd", "adam"] if s.get("optimizer", "any") == "any" else [s["optimizer"]]
    name = s.get("parameterization", "any")
    network = s.get("program", "moe")
    if network == "routers":
        names = {"any": ("mup",), "sp": ("sp-feature",)}.get(name, (name,))
        return [_routers(o, n, a, s.get("router_init")) for o in optimizers for n in names for a in _gates(s)]
    if name not in PARAMETERIZATIONS:
        raise UsageError(f"stated for another parameterization: {name}")
    where = s.get("readout_init"), network, s.get("depth", "0"), tuple(s.get("but", ())), s.get("zero", ())
    return [_derive(regime, o, name, *where) for o in optimizers]


@lru_cache(maxsize=256)
def _derive(
    regime: str,
    optimizer: str,
    name: str,
    readout: str | None,
    network: str,
    depth: str,
    but: tuple[str, ...],
    zero: tuple[str, ...] = (),
) -> Derivation:
    """Derives the parameterization that a cell is about. For a network without experts MSSP is replaced by muP.

    Args:
        regime: regime of the ray.
        optimizer: name of the optimizer.
        name: name of the parameterization.
        readout: readout init; None for that of the parameterization's definition.
        network: name of the network.
        depth: rate of the number of layers.
        but: changes of the derived parameters, as in ``_otherwise``.
        zero: roles of tensors that start at zero.
    """
    if zero:
        return starting(_derive(regime, optimizer, name, readout, network, depth, but), zero)
    if but:
        return _otherwise(_derive(regime, optimizer, name, readout, network, depth, ()), but)
    if PARAMETERIZATIONS[name].structural and not experts(ARCHITECTURES[network]):
        name = "mup"
    if depth == "0":
        return derive(regime, optimizer, name, readout_init=readout, architecture=network)
    ray = Ray({**REGIMES[regime].rates, "L": depth})
    return derive(None, optimizer, name, readout_init=readout, architecture=network, ray=ray)


def _otherwise(d: Derivation, but: Iterable[str]) -> Derivation:
    """Changes a derivation for a cell whose claim is about parameters that differ from the derived ones, or about
    another network.

    Args:
        d: the derivation.
        but: the changes: ``tied=ROLE,ROLE`` (shared at init), ``lr=POWER`` (of every tensor), ``ROLE.init=POWER``, or
            ``net=NAME``, a network with the same roles, or with these roles and a number at the end.
    """
    for what, _, value in (text.partition("=") for text in but):
        tensors, role = d.scaling.tensors, what.removesuffix(".init")
        if what == "tied":
            d = replace(d, scaling=replace(d.scaling, tied=tuple(filter(None, value.split(",")))))
        elif what == "lr":
            rates = {r: replace(s, lr=Power.parse(value)) for r, s in tensors.items()}
            d = replace(d, scaling=replace(d.scaling, tensors=rates))
        elif role in tensors:
            started = replace(tensors[role], init_std=Power.parse(value))
            d = replace(d, scaling=replace(d.scaling, tensors={**tensors, role: started}))
        else:
            of = ARCHITECTURES[value]
            scaled = {r: tensors[re.sub(r"_\d+$", "", r)] for r in of.tensors}
            there = d.configuration.but(network=of)
            d = replace(d, configuration=there, scaling=replace(d.scaling, tensors=scaled))
    return d


def _gates(setting: Mapping[str, Any]) -> list[str]:
    """Returns the names of the networks that a claim is about, by the gate, bias and selection in its setting. What
    the setting leaves open gives several networks.
    """
    kind, _, extra = setting.get("gate", "any").partition("-")
    biases: tuple[bool, ...] = (False, True)
    if "bias" in extra:
        biases = (True,)
    elif "bias" in setting:
        biases = (setting["bias"],)
    elif kind != "any" and not extra:  # a gate named alone is the plain one
        biases = (False,)
    ends = [("-bias" if bias else "") + ("-topk" if "topk" in extra else "") for bias in biases]
    return [f"routers-{gate}{end}" for gate in (("softmax", "sigmoid") if kind == "any" else (kind,)) for end in ends]


@lru_cache(maxsize=64)
def _routers(optimizer: str, name: str, architecture: str, router_init: str | None) -> Derivation:
    """Derives a parameterization of the routers paper. Its muP is defined with a sigmoid gate, where the router
    learns, and applied to every gate.
    """
    d = derive("I", optimizer, "mup-sigmoid" if name == "mup" else name, architecture=architecture)
    if router_init == "zero":
        tensors = {**d.scaling.tensors, "router": replace(d.scaling.tensors["router"], init_std=None)}
        d = replace(d, scaling=replace(d.scaling, tensors=tensors))
    return d


def _signal(cell: Printed, d: Derivation) -> Answered:
    look = d.analysis()
    assert cell.step is not None
    many = "*" in cell.quantity
    names = [n for n in look.table if fnmatchcase(n, cell.quantity)] if many else [_find_quantity(look, cell.quantity)]
    answers = {name: look(name, cell.step) for name in names}
    undecided = next((a for a in answers.values() if not a.decided), None)
    if undecided is not None:
        raise NotComparable(undecided.why or "undecided within the work limit")
    sizes = {name: a.exponent for name, a in answers.items() if a.exponent is not None}
    lead = max(sizes, key=lambda name: sizes[name], default=None)
    value = None if lead is None else sizes[lead] + cell.times.on(d.ray)
    derived = "zero" if value is None else str(value)
    if holds(str(cell.value), value):
        return True, derived, ""
    why = "exactly zero" if lead is None else _because(d, look, lead, cell.step)
    if lead is not None and cell.times != Power():
        why += f"; the paper prints {cell.times} times this size: {sizes[lead]} + {cell.times.on(d.ray)} = {value}"
    return False, derived, why


def _find_quantity(look: Analysis, name: str) -> str:
    """Returns the network's name of a printed quantity.

    If the printed signal is a sum, parts such as its effective update are those of its first term: ``h3.effective``
    becomes ``h3_1.effective``.
    """
    signal, _, part = name.partition(".")
    statement = look.network.producer(signal)
    if name in look.table or not isinstance(statement, Sum):
        return name
    return f"{statement.terms[0].name}.{part}"


def _because(d: Derivation, look: Analysis, name: str, step: int) -> str:
    """Explains a derived size in one line: the sum of exponents of its largest monomial, and its mechanisms (why sums
    over indices are coherent or random).
    """
    e = explain_quantity(d, look, name, step)
    terms = e.terms if e.outer else e.terms[:1]
    letters = "; ".join(dict.fromkeys(f"{x.letter}: {x.evidence}" for term in terms for x in term.mechanisms))
    return f"{name}: {e.arithmetic} [{letters}]"


def holds(printed: str, derived: Fraction | None) -> bool:
    """Returns whether a derived exponent (None: exactly zero) agrees with a printed size such as ``-1/2``, ``zero``
    or ``>= 1/2``."""
    if printed == "zero":
        return derived is None
    if printed == "vanishes":
        return derived is None or derived < 0
    relation, _, bound = printed.rpartition(" ")
    if relation:
        return relation == "<=" if derived is None else bool(COMPARED[relation](derived, Fraction(bound)))
    return derived == Fraction(printed)


def _parameter(cell: Printed, d: Derivation, gauges: Gauges) -> Answered:
    """Compares a printed parameter (init std, learning rate, epsilon or multiplier) with the derived one.

    Both are compared as powers of n on the ray, so powers of axes that grow at the same rate count as equal.

    Args:
        cell: the printed parameter.
        d: the derived parameterization.
        gauges: printed multiplier, init std and learning rate of every tensor to which the paper gives a forward
            multiplier.

    Returns:
        Whether they agree, the derived value as text, and, if they do not agree, why the derived value has its size.
    """
    role, _, what = cell.quantity.rpartition(".")
    letter = isinstance(cell.value, str) and cell.value != "zero"  # the printed b, c or d is minus the exponent
    if letter and not _number(str(cell.value)):
        raise NotComparable(f"the printed exponent {cell.value} is a symbol, not a number")
    mine: Power | None
    tied = True
    if role == "aggregation" or role in find_free_multipliers(d.network):
        mine = 1 / (d.scaling.alpha if role == "aggregation" else d.scaling.multipliers[role])
    elif role not in d.scaling.tensors:
        raise NotComparable(f"the network has no tensor {role}")
    elif cell.setting.get("gauge") == "multiplier":
        return _gauge(cell, d, role, what, gauges)
    elif what == "multiplier":
        raise NotComparable("this half of the table is stated for tensors without multipliers")
    else:
        scaling = d.scaling.tensors[role]
        what = {v: k for k, v in SETTINGS.items()}.get(what, what).removesuffix("_std")
        mine = {"init": scaling.init_std, "lr": scaling.lr, "eps": scaling.eps}[what]
        tied = letter or what != "init" or (role in d.scaling.tied) == bool(cell.setting.get("tied", False))
    size = None if mine is None else mine.on(d.ray)
    if letter:
        derived, same = "zero" if size is None else str(-size), size is not None and -size == Fraction(str(cell.value))
    else:
        printed = cell.value.on(d.ray) if isinstance(cell.value, Power) else None
        derived, same = "zero" if mine is None else str(mine), tied and size == printed
    return same, derived, "" if same else d.reasons.get((role, what), "")


def _gauges(cells: Iterable[Printed]) -> Gauges:
    """Collects the printed multiplier, init std and learning rate of each tensor to which a paper gives a forward
    multiplier. Tensors without all three are omitted.
    """
    tensors: dict[tuple[str, ...], dict[str, Power]] = {}
    for cell in cells:
        if cell.setting.get("gauge") == "multiplier" and isinstance(cell.value, Power) and not cell.reason:
            tensors.setdefault(_tensor(cell), {})[cell.quantity.partition(".")[2]] = cell.value
    return {k: Abc(v["multiplier"], v["init_std"], v["lr"]) for k, v in tensors.items() if len(v) == 3}


def _tensor(cell: Printed) -> tuple[str, ...]:
    """Returns a key of the tensor that a cell is about: the same for its printed multiplier, init std and learning
    rate.
    """
    where = (cell.setting.get(k, "") for k in ("regime", "optimizer", "parameterization"))
    return (cell.source, cell.table, *where, cell.quantity.partition(".")[0])


def _gauge(cell: Printed, d: Derivation, role: str, what: str, gauges: Gauges) -> Answered:
    """Compares the printed and derived settings of a tensor to which the paper gives a forward multiplier.

    The printed multiplier, init std and learning rate are converted to the equivalent init std and learning rate
    without a multiplier, and these are compared with the derived ones.
    """
    abc = gauges.get(_tensor(cell))
    if abc is None:
        raise NotComparable(
            "the paper leaves multiplier, init std or lr of this tensor blank, and all three are needed for a "
            "comparison"
        )
    free, mine = abc.without_multiplier(d.optimizer.of(role)), d.scaling.tensors[role]
    assert free.init_std is not None and mine.init_std is not None and free.lr is not None and mine.lr is not None
    same = free.init_std.on(d.ray) == mine.init_std.on(d.ray) and free.lr.on(d.ray) == mine.lr.on(d.ray)
    derived = f"{mine.init_std}, lr {mine.lr} without multiplier"
    gauge = PARAMETERIZATIONS[cell.setting["parameterization"]].gauge
    if gauge is not None and what == "multiplier":
        derived = str(gauge(d.network, role).multiplier)
    return same, derived, "" if same else d.reasons.get((role, "lr"), "")


def _number(text: str) -> bool:
    try:
        Fraction(text)
    except ValueError:
        return False
    return True
