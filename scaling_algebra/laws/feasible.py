"""Assumptions between growing quantities, as ``d**(-1/2)*sigma <= sigma**(5/2)``: can they hold together, and where?

Law: every quantity is a power of one that grows, up to constants and powers of logarithms, which do not count. So each
relation between monomials is a linear inequality between exponents. ``a << b`` gives the same inequality as ``a <= b``,
with an open end: where both sides have one power, logarithms decide, if there are any. A logarithm is one of something
that grows, at least 1. Adding a set: one more TOML file in ``assumptions/``.
Read next: ``windows.py`` (solves them), ``onset.py`` (from which size on).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.errors import UsageError, check_names, unknown_name
from scaling_algebra.spec.powers import exponent_text

from .entries import read, read_file, shipped
from .monomials import Monomial, Relation
from .onset import Onset, onsets
from .windows import End, Exponents, Window

SHIPPED = shipped("assumptions")


@dataclass(frozen=True)
class Assumption:
    """A relation between monomials, why it is needed, and where it stands."""

    relation: Relation
    name: str = ""
    because: str = ""
    source: str = ""


@dataclass(frozen=True)
class Definition:
    """A quantity that is a monomial in others; ``printed`` is what a source says it comes to."""

    name: str
    is_: Monomial
    printed: Monomial | None = None
    about: str = ""
    source: str = ""


@dataclass(frozen=True)
class Assumptions:
    """Relations between quantities that are powers of one that grows."""

    assume: tuple[Assumption, ...]
    define: tuple[Definition, ...] = ()
    grows: str = "d"
    name: str = ""
    title: str = ""

    def put(self, values: Mapping[str, Monomial]) -> dict[str, Monomial]:
        """Values of quantities, and every defined quantity in those that are not defined, the values put in."""
        defined: dict[str, Monomial] = {}
        for d in self.define:
            defined[d.name] = d.is_.substituted(defined)
        return {name: m.substituted(values) for name, m in defined.items()} | dict(values)

    @property
    def equal(self) -> dict[str, Monomial]:
        """The values that equations assume for quantities, where no logarithm stands in them."""
        equal: dict[str, Monomial] = {}
        for r in (a.relation for a in self.assume if a.relation.sign == "="):
            (left, *more), (right, *others) = r.left.terms, r.right.terms
            name = next(iter(left.quantities), "")
            alone = left == Monomial.of({name: sympy.S.One}) and name not in right.quantities
            if alone and not more and not others and not right.logs:
                equal[name] = right.substituted(equal)
        return equal

    def misprints(self) -> tuple[Definition, ...]:
        """Definitions whose printed value is another one, in powers of every quantity."""
        put = self.put(self.equal)
        printed = ((d, d.printed.substituted(put)) for d in self.define if d.printed is not None)
        return tuple(d for d, m in printed if m.powers != put[d.name].powers)


@dataclass(frozen=True, repr=False)
class Feasible(Rendered):
    """The windows of exponents in which assumptions hold together.

    Attributes:
        given: growth laws that were put in. assumed: the assumptions that were not left out.
        exponents: of all quantities, under these. windows: by quantity and parameter; empty where there is no solution.
        defined: every defined quantity in the others, and the window of its exponent (None: no solution).
        core: names of a smallest contradictory set; empty if there is a solution.
        even: names of assumptions that hold together only where their sides have one power.
    """

    system: Assumptions
    given: Mapping[str, Monomial]
    assumed: tuple[Assumption, ...]
    exponents: Exponents
    windows: Mapping[str, Window]
    defined: Mapping[str, tuple[Monomial, Window | None]]
    core: tuple[str, ...] = ()
    even: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        return f"{self.system.name}, {'contradictory' if self.core else 'feasible'}"

    @property
    def put(self) -> dict[str, Monomial]:
        """Growth laws and definitions, by quantity."""
        return self.system.put(self.given)

    @property
    def dropped(self) -> list[str]:
        return [a.name for a in self.system.assume if a not in self.assumed]

    def window(self, m: Monomial) -> Window:
        """The window of a monomial's exponent; there must be a solution.

        Raises:
            UsageError: a quantity of which nothing is assumed.
        """
        return self.exponents.window(m.substituted(self.put))

    def onsets(self, values: Mapping[str, float]) -> tuple[Onset, ...]:
        """From which size on each inequality holds, with every constant 1, at values of quantities."""
        equal = {name: m.substituted(self.given) for name, m in self.system.equal.items() if name not in values}
        put = self.system.put(equal | dict(self.given))
        return onsets({a.name: a.relation.substituted(put) for a in self.assumed}, self.system.grows, values)

    def document(self, onsets: Iterable[Onset] = ()) -> Document:
        """Windows of every exponent with what binds them, defined quantities, misprints; or a contradiction."""
        onsets, grows, wrong = list(onsets), self.system.grows, self.system.misprints()
        blocks: list[Block] = [Heading(literal(self.system.title), 2)]
        if laws := [f"{name} = {m}" for name, m in self.given.items()] + [f"without {name}" for name in self.dropped]:
            blocks.append(Lines.of(literal(", ".join(laws))))
        if self.core:
            blocks.append(Lines.of("no size of anything meets these together:"))
            rows = [_row(a, self.put) for a in self.assumed if a.name in self.core]
            blocks.append(Grid.of(["assumption", "relation", "that is", "because", "source"], rows))
        else:
            open_ = {p for m in self.given.values() for p in m.parameters}
            rows = [[name, *_ends(w, "" if name in open_ else grows)] for name, w in self.windows.items()]
            blocks.append(Grid.of(["quantity", "from", "because of", "to", "because of"], rows))
        if self.system.define:
            rows = [[literal(d.name), literal(str(m)), *_ends(w, grows)[::2], None if d.printed is None else
                     literal(f"{d.printed}{', wrong' if d in wrong else ''}"), literal(d.source) or None]
                    for d in self.system.define for m, w in [self.defined[d.name]]]  # fmt: skip
            blocks.append(Grid.of(["defined", "is", "from", "to", "printed", "source"], rows))
        if onsets:
            blocks.append(Grid.of(["assumption", f"holds from {grows} ="], [(o.name, literal(str(o))) for o in onsets]))
        notes = [f"exponents of {grows}; constants and powers of logarithms do not count"]
        if self.even:
            notes.append(f"only with equal powers on both sides, where logarithms decide: {', '.join(self.even)}")
        notes += [f"{d.name} is printed as {d.printed}; it is {self.defined[d.name][0]} ({d.source})" for d in wrong]
        blocks.append(Lines.of(*map(literal, notes), listed=True))
        return Document(tuple(blocks), self.record(onsets))

    def record(self, onsets: Iterable[Onset] = ()) -> dict[str, Any]:
        """The JSON contract."""

        def ends(w: Window) -> dict[str, Any]:
            sides = {"low": w.low, "high": w.high}
            return {side: {"exponent": e.value, "binding": e.binding, "open": e.open} for side, e in sides.items()}

        wrong = self.system.misprints()
        defined = {
            d.name: {"is": str(m), "printed": None, "agrees": None, "window": None if w is None else ends(w)}
            | ({} if d.printed is None else {"printed": str(d.printed), "agrees": d not in wrong})
            for d in self.system.define
            for m, w in [self.defined[d.name]]
        }
        broken = [a for a in self.assumed if a.name in self.core]
        return {
            "assumptions": self.system.name,
            "grows": self.system.grows,
            "set": {name: str(m) for name, m in self.given.items()},
            "dropped": self.dropped,
            "feasible": not self.core,
            "windows": {name: ends(w) for name, w in self.windows.items()},
            "defined": defined,
            "contradiction": [{"name": a.name, "relation": str(a.relation), "source": a.source} for a in broken],
            "even": list(self.even),
            "onsets": [vars(o) for o in onsets],
        }


def feasible(system: Assumptions, given: Mapping[str, Monomial] | None = None, drop: Iterable[str] = ()) -> Feasible:
    """The admissible window of every exponent, or a smallest set of assumptions that contradicts itself.

    Args:
        given: growth laws, by quantity: ``{"K": monomial("d**kappa")}``. A name in an exponent is one more unknown.
        drop: names of assumptions to leave out.

    Raises:
        UsageError: a name that the system does not have; relations that are not linear in the exponents.

    Examples:
        >>> f = feasible(assumptions("switch-cluster"))
        >>> w = f.windows["sigma_0"]
        >>> print(w.low.value, w.high.value, [d.name for d in f.system.misprints()])
        -1/3 -1/100 ['expert_margin']
    """
    given, dropped, grows = dict(given or {}), set(drop), system.grows
    names = [a.name for a in system.assume]
    check_names("assumption", sorted(dropped), names)
    assumed = tuple(a for a in system.assume if a.name not in dropped)
    whole = system.put({})
    quantities = frozenset({grows}).union(*(a.relation.substituted(whole).quantities for a in assumed))
    for name, law in given.items():
        check_names("quantity to set", [name], sorted(quantities - {grows}))
        if name in law.quantities or law.quantities & given.keys():
            raise UsageError(f"{name} = {law} is given in what is given itself; write it in the others")
    put = system.put(given)
    exponents = Exponents({a.name: a.relation.substituted(put) for a in assumed}, grows)
    check_names("quantity", (q for law in given.values() for q in sorted(law.quantities)), sorted(quantities))
    core = exponents.core() or exponents.core(strict=True, logs=True)
    defined: dict[str, tuple[Monomial, Window | None]] = {}
    for d in system.define:
        open_ = core or not exponents.of(put[d.name], d.name)[0].keys() <= {*exponents.unknowns}
        defined[d.name] = put[d.name], None if open_ else exponents.window(put[d.name])
    even, windows = ((), {}) if core else (exponents.core(strict=True), exponents.windows())
    return Feasible(system, given, assumed, exponents, windows, defined, core, even)


def assumptions(name: str) -> Assumptions:
    """A set of assumptions that ships, or one in a file.

    Raises:
        UsageError: neither is there, or it cannot be read.
    """
    path = Path(name)
    if name not in SHIPPED and path.suffix != ".toml" and len(path.parts) == 1 and not path.exists():
        raise unknown_name("set of assumptions", name, (*SHIPPED, "FILE.toml"))
    return read_assumptions(SHIPPED.get(name, path))


def read_assumptions(path: Path | str) -> Assumptions:
    """The assumptions in a TOML file: ``grows = "d"`` and ``assume = ["n**(-1/2) << sigma", ...]``; an entry may also
    be a table with name, relation, because and source, and ``[[define]]`` names monomials.
    """
    return read_file(Path(path), "assumptions", _assumptions)


# inside --------------------------------------------------------------------------------------------------------


def _assumptions(name: str, data: dict[str, Any]) -> Assumptions:
    if not data.get("assume"):
        raise UsageError('assume is missing; write assume = ["n**(-1/2) << sigma", ...]')
    if isinstance(listed := data["assume"], list):
        data["assume"] = [x if isinstance(x, dict) else {"relation": x} for x in listed]
    system: Assumptions = read(Assumptions, {"name": name} | data)
    assume = tuple(replace(a, name=a.name or str(a.relation)) for a in system.assume)
    if not system.grows.isidentifier() or not system.grows.isascii():
        raise UsageError(f"grows is {system.grows!r}; write the name of the quantity that grows, as d")
    for k, d in enumerate(system.define):
        if d.name == system.grows or d.is_.quantities & {later.name for later in system.define[k:]}:
            raise UsageError(f"define {k + 1}: {d.name} needs what is defined at or after it, or is what grows")
    for kind, names in (("assumption", [a.name for a in assume]), ("definition", [d.name for d in system.define])):
        if twice := {n for n in names if names.count(n) > 1}:
            raise UsageError(f"the {kind} {min(twice)!r} is there twice; give each a name of its own")
    return replace(system, assume=assume, title=system.title or system.name)


def _row(a: Assumption, put: Mapping[str, Monomial]) -> list[Piece | None]:
    here = str(a.relation.substituted(put))
    here = "" if here == str(a.relation) else here
    return [Text(a.name, literal(a.name)), *(literal(x) or None for x in (str(a.relation), here, a.because, a.source))]


def _ends(w: Window | None, grows: str) -> list[Piece | None]:
    """Both ends, each with what binds it; of a parameter the ends are numbers."""
    ends = [End(None)] * 2 if w is None else [w.low, w.high]
    return [x for e in ends for x in (_end(e, grows), literal(", ".join(e.binding)) or None)]


def _end(e: End, grows: str) -> Piece | None:
    if e.value is None:
        return None
    mark = ", open" if e.open else ""
    if not grows:
        return f"{e.value}{mark}"
    power = sympy.latex(Monomial.of({grows: sympy.Rational(e.value)}).expr)
    plain = "1" if e.value == 0 else grows if e.value == 1 else f"{grows}^{exponent_text(e.value)}"
    return Text(plain + mark, f"${power}${mark}")
