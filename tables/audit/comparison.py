"""Published against derived: every printed cell is AGREES, DISAGREES or NOT COMPARABLE, with the reason.

Read next: ``published/reading.py`` (the printed cells), ``errata.py`` (confirmed disagreements), ``presentation.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

from scaling_algebra.documents import Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.networks.language import Sum
from scaling_algebra.spec.networks.library import ARCHITECTURES, GATES
from scaling_algebra.spec.networks.roles import experts
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, Abc
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.published.reading import SOURCES, Printed, load

from .assumptions import allowed
from .laws import held

Status = Literal["AGREES", "DISAGREES", "NOT COMPARABLE"]
STATUSES: tuple[Status, ...] = get_args(Status)
Key = tuple[str, str, str, str, int | None]
"""(source, table, label, quantity, step) of a cell: what errata are listed by."""
Gauges = Mapping[tuple[str, ...], Abc]
"""Printed multiplier, init std and learning rate of tensors."""


@dataclass(frozen=True)
class Comparison:
    """One printed cell beside the derived one.

    Attributes:
        printed: the cell.
        status: how they compare.
        derived: exponent of n as text (``zero`` for exactly zero), or the power; empty where nothing was compared.
        why: the reason, or how the engine gets its value.
        derivation: the parameterization the cell was compared with, for measuring.
    """

    printed: Printed
    status: Status
    derived: str = ""
    why: str = ""
    derivation: Derivation | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        p = self.printed
        return p.source, p.table, p.label, p.quantity, p.step

    def as_json(self) -> dict[str, Any]:
        p = self.printed
        setting = {k: p.setting.get(k) for k in ("regime", "parameterization", "optimizer")}
        where = {"source": p.source, "table": p.table, "label": p.label, **setting}
        return {
            **where,
            "quantity": p.quantity,
            "step": p.step,
            "printed": str(p.value),
            "derived": self.derived,
            "why": self.why,
        }


@dataclass(frozen=True, repr=False)
class Audit(Rendered):
    """Printed cells beside derived ones.

    Attributes:
        comparisons: in file order.
        slopes: measured slope of disagreements, as text; empty where nothing was measured.
    """

    comparisons: tuple[Comparison, ...]
    slopes: Mapping[Key, str] = field(default_factory=dict)

    @property
    def disagreements(self) -> list[Comparison]:
        return [c for c in self.comparisons if c.status == "DISAGREES"]

    def counts(self) -> dict[tuple[str, str], Counter[Status]]:
        """How many cells have each status, per (source, table)."""
        found: dict[tuple[str, str], Counter[Status]] = {}
        for c in self.comparisons:
            found.setdefault((c.printed.source, c.printed.table), Counter())[c.status] += 1
        return found

    @property
    def about(self) -> str:
        return f"{len(self.comparisons)} published cells, {len(self.disagreements)} disagree"


def audit(source: str | None = None) -> Audit:
    """Compare every printed cell of one source, or of all.

    Raises:
        UsageError: no such source.
    """
    if source is not None and source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    return Audit(compare(load(source)))


def compare(cells: Sequence[Printed]) -> tuple[Comparison, ...]:
    """Every cell beside the engine's; cells of one gauge are compared together."""
    gauges = _gauges(cells)
    return tuple(_compare(cell, gauges) for cell in cells)


# inside --------------------------------------------------------------------------------------------------------


def _compare(cell: Printed, gauges: Gauges) -> Comparison:
    if cell.reason:
        return Comparison(cell, "NOT COMPARABLE", why=cell.reason)
    if "law" in cell.setting:
        same, derived, why = (allowed if "assumptions" in cell.setting["law"] else held)(cell)
        return Comparison(cell, "AGREES" if same else "DISAGREES", derived, why)
    try:
        found = [_in_one(cell, d, gauges) for d in derivations(cell)]
    except UsageError as problem:
        return Comparison(cell, "NOT COMPARABLE", why=str(problem))
    worst = next((v for s in ("DISAGREES", "NOT COMPARABLE") for v in found if v.status == s), found[0])
    if worst.status == "DISAGREES" and len(found) > 1:
        where = ", ".join(v.derivation.network.name for v in found if v.status == "DISAGREES" and v.derivation)
        return Comparison(cell, worst.status, worst.derived, f"{worst.why} ({where})", worst.derivation)
    return worst


def derivations(cell: Printed) -> list[Derivation]:
    """The configurations a cell speaks about; ``any`` stands for all it can be.

    Raises:
        UsageError: the setting is not one the engine knows.
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
    return [_derived(regime, o, name, s.get("readout_init"), network, s.get("depth", "0")) for o in optimizers]


@lru_cache(maxsize=256)
def _derived(regime: str, optimizer: str, name: str, readout: str | None, network: str, depth: str) -> Derivation:
    """What parameterizations demand of experts says nothing about a network without any: there they are muP."""
    if PARAMETERIZATIONS[name].structural and not experts(ARCHITECTURES[network]):
        name = "mup"
    if depth == "0":
        return derive(regime, optimizer, name, readout_init=readout, architecture=network)
    ray = Ray({**REGIMES[regime].rates, "L": depth})
    return derive(None, optimizer, name, readout_init=readout, architecture=network, ray=ray)


def _gates(setting: Mapping[str, Any]) -> list[str]:
    """Architectures with the gate, bias and selection that a claim is about."""
    kind, _, extra = setting.get("gate", "any").partition("-")
    biases: tuple[bool, ...] = (False, True)
    if "bias" in extra:
        biases = (True,)
    elif "bias" in setting:
        biases = (setting["bias"],)
    elif kind != "any" and not extra:  # a gate named alone is the plain one
        biases = (False,)
    top = "-topk" * ("topk" in extra)
    return [f"routers-{g}{'-bias' * b}{top}" for g in (GATES if kind == "any" else (kind,)) for b in biases]


@lru_cache(maxsize=64)
def _routers(optimizer: str, name: str, architecture: str, router_init: str | None) -> Derivation:
    """muP of the routers paper on any gate is the one derived where the router learns."""
    d = derive("I", optimizer, "mup-sigmoid" if name == "mup" else name, architecture=architecture)
    if router_init == "zero":
        tensors = {**d.scaling.tensors, "router": replace(d.scaling.tensors["router"], init_std=None)}
        d = replace(d, scaling=replace(d.scaling, tensors=tensors))
    return d


def _in_one(cell: Printed, d: Derivation, gauges: Gauges) -> Comparison:
    return _parameter(cell, d, gauges) if cell.step is None else _signal(cell, d)


def _signal(cell: Printed, d: Derivation) -> Comparison:
    look = d.analysis()
    assert cell.step is not None
    many = "*" in cell.quantity
    names = [n for n in look.table if fnmatchcase(n, cell.quantity)] if many else [_own(look, cell.quantity)]
    answers = {name: look(name, cell.step) for name in names}
    undecided = next((a for a in answers.values() if not a.decided), None)
    if undecided is not None:
        return Comparison(cell, "NOT COMPARABLE", why=undecided.why or "undecided within the work limit", derivation=d)
    sizes = {name: a.exponent for name, a in answers.items() if a.exponent is not None}
    lead = max(sizes, key=lambda name: sizes[name], default=None)
    value = None if lead is None else sizes[lead] + cell.times.on(d.ray)
    derived = "zero" if value is None else str(value)
    if holds(str(cell.value), value):
        return Comparison(cell, "AGREES", derived, derivation=d)
    why = "exactly zero" if lead is None else _because(d, look, lead, cell.step)
    if lead is not None and cell.times != Power():
        why += f"; printed is {cell.times} times it: {sizes[lead]} + {cell.times.on(d.ray)} = {value}"
    return Comparison(cell, "DISAGREES", derived, why, d)


def _own(look: Analysis, name: str) -> str:
    """The quantity that a network has for a printed one: the parts of a sum are those of its first term."""
    signal, _, part = name.partition(".")
    statement = look.network.producer(signal)
    if name in look.table or not isinstance(statement, Sum):
        return name
    return f"{statement.terms[0].name}.{part}"


def _because(d: Derivation, look: Analysis, name: str, step: int) -> str:
    """The winning matching in one line."""
    found = explain_quantity(d, look, name, step)
    terms = found.terms if found.outer else found.terms[:1]
    letters = "; ".join(dict.fromkeys(f"{x.letter}: {x.evidence}" for term in terms for x in term.mechanisms))
    if found.outer:
        parts = [f"{c.exponent} ({c.label})" for c in found.constants]
        parts += [f"{t.exponent} (vector {k})" for k, t in enumerate(terms, 1)]
        return f"{name}: {' + '.join(parts)} = {found.total()} [{letters}]"
    return f"{name}: {terms[0].arithmetic} [{letters}]"


def holds(printed: str, derived: Fraction | None) -> bool:
    """Does a derived exponent (None: exactly zero) have the printed size?"""
    if printed == "zero":
        return derived is None
    if printed == "vanishes":
        return derived is None or derived < 0
    relation, _, bound = printed.rpartition(" ")
    if relation in (">=", "<=", ">"):
        if derived is None:
            return relation == "<="
        x = Fraction(bound)
        return derived >= x if relation == ">=" else derived <= x if relation == "<=" else derived > x
    return derived is not None and derived == Fraction(printed)


def _parameter(cell: Printed, d: Derivation, gauges: Gauges) -> Comparison:
    role, _, what = cell.quantity.partition(".")
    if isinstance(cell.value, str) and not _number(cell.value) and cell.value != "zero":
        return Comparison(cell, "NOT COMPARABLE", why=f"the printed exponent {cell.value} is a symbol")
    if role == "aggregation":
        return _powers(cell, d, 1 / d.scaling.alpha)
    if role in d.network.free_multipliers:
        return _powers(cell, d, 1 / d.scaling.multipliers[role])
    scaling = d.scaling.tensors.get(role)
    if scaling is None:
        return Comparison(cell, "NOT COMPARABLE", why=f"the network has no tensor {role}")
    if cell.setting.get("gauge") == "multiplier":
        return _gauge(cell, d, role, what, gauges)
    if what == "multiplier":
        return Comparison(cell, "NOT COMPARABLE", why="no multipliers: the gauge of this half of the table")
    if what in SETTINGS.values():
        what = next(k for k, letter in SETTINGS.items() if letter == what)
    mine = {"init_std": scaling.init_std, "init": scaling.init_std, "lr": scaling.lr, "eps": scaling.eps}[what]
    if isinstance(cell.value, str) and cell.value != "zero":  # b, c, d are printed: minus the exponent
        value = None if mine is None else -mine.on(d.ray)
        agrees = value is not None and value == Fraction(cell.value)
        derived = "zero" if value is None else str(value)
        return Comparison(
            cell, "AGREES" if agrees else "DISAGREES", derived, "" if agrees else _reason(d, role, what), d
        )
    tied = what != "init_std" or (role in d.scaling.tied) == bool(cell.setting.get("tied", False))
    return _powers(cell, d, mine, tied)


def _reason(d: Derivation, role: str, what: str) -> str:
    return d.reasons.get((role, what.removesuffix("_std")), "")


def _powers(cell: Printed, d: Derivation, mine: Power | None, tied: bool = True) -> Comparison:
    """Powers of the axes are compared on the ray: axes that grow at one rate cannot be told apart."""
    role, _, what = cell.quantity.partition(".")
    derived = "zero" if mine is None else str(mine)
    same = (
        mine is None
        if cell.value == "zero"
        else mine is not None and isinstance(cell.value, Power) and (mine.on(d.ray) == cell.value.on(d.ray))
    )
    if same and tied:
        return Comparison(cell, "AGREES", derived, derivation=d)
    return Comparison(cell, "DISAGREES", derived, _reason(d, role, what), d)


def _gauges(cells: Iterable[Printed]) -> Gauges:
    """Printed multiplier, init std and learning rate of a tensor, together."""
    found: dict[tuple[str, ...], dict[str, Power]] = {}
    for cell in cells:
        if cell.setting.get("gauge") == "multiplier" and isinstance(cell.value, Power) and not cell.reason:
            found.setdefault(_tensor(cell), {})[cell.quantity.partition(".")[2]] = cell.value
    return {k: Abc(v["multiplier"], v["init_std"], v["lr"]) for k, v in found.items() if len(v) == 3}


def _tensor(cell: Printed) -> tuple[str, ...]:
    """What the three cells of one tensor have in common."""
    where = (cell.setting.get(k, "") for k in ("regime", "optimizer", "parameterization"))
    return (cell.source, cell.table, *where, cell.quantity.partition(".")[0])


def _gauge(cell: Printed, d: Derivation, role: str, what: str, gauges: Gauges) -> Comparison:
    """The three printed cells of a tensor, moved to the multiplier-free gauge and compared there."""
    name = cell.setting["parameterization"]
    abc = gauges.get(_tensor(cell))
    if abc is None:
        return Comparison(cell, "NOT COMPARABLE", why="a gauge needs multiplier, init std and lr; one is printed blank")
    free, mine = abc.free(d.optimizer.of(role)), d.scaling.tensors[role]
    assert free.init_std is not None and mine.init_std is not None
    same = free.init_std.on(d.ray) == mine.init_std.on(d.ray) and free.lr.on(d.ray) == mine.lr.on(d.ray)
    derived = f"{mine.init_std}, lr {mine.lr} without multiplier"
    gauge = PARAMETERIZATIONS[name].gauge
    if gauge is not None and what == "multiplier":
        derived = str(gauge(d.network, role).multiplier)
    return Comparison(cell, "AGREES" if same else "DISAGREES", derived, "" if same else _reason(d, role, "lr"), d)


def _number(text: str) -> bool:
    try:
        Fraction(text)
    except ValueError:
        return False
    return True
