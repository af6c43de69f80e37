"""Assumptions between growing quantities, as ``d**(-1/2)*sigma <= sigma**(5/2)``: can they hold together, and where?

Law: every quantity is a power of one that grows, up to constants and powers of logarithms. So each relation between
monomials is a linear inequality between exponents. ``a << b`` gives the same inequality as ``a <= b`` with an open end:
if both sides have one power, logarithms decide. The argument of a logarithm grows, and a logarithm is at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.spec.powers import format_exponent

from .monomials import Monomial, Relation
from .systems import End, GrowthSystem, Window, linear


@dataclass(frozen=True)
class Assumption:
    """A relation between monomials, its reason and its source."""

    relation: Relation
    name: str = ""
    because: str = ""
    source: str = ""


@dataclass(frozen=True)
class Definition:
    """A quantity that is a monomial in others."""

    name: str
    is_: Monomial
    source: str = ""


@dataclass(frozen=True, repr=False)
class Windows(Rendered):
    """The windows of exponents in which assumptions hold together.

    Attributes:
        grows: the quantity that the others are powers of. given: growth laws that were put in.
        assumed: the assumptions; dropped: names of those that were left out.
        system: the assumptions under all these. windows: by quantity and parameter; empty where there is no solution.
        defined: every defined quantity in the others, and the window of its exponent (None: no solution).
        core: names of a smallest contradictory set; empty if there is a solution.
    """

    name: str
    title: str
    grows: str
    define: tuple[Definition, ...]
    given: Mapping[str, Monomial]
    assumed: tuple[Assumption, ...]
    dropped: tuple[str, ...]
    system: GrowthSystem
    windows: Mapping[str, Window]
    defined: Mapping[str, tuple[Monomial, Window | None]]
    core: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        return f"{self.name}, {'contradictory' if self.core else 'feasible'}"

    def window(self, m: Monomial) -> Window:
        """The window of a monomial's exponent; there must be a solution.

        Raises:
            UsageError: a quantity of which nothing is assumed.
        """
        return self.system.window(m.substituted(composed(self.define, self.given)))

    def reduced(self, m: Monomial) -> Monomial:
        """A monomial in quantities that are neither defined nor equal to others, without constant and logarithms.

        An equation without a logarithm assumes a value.
        """
        equal: dict[str, Monomial] = {}
        for r in (a.relation for a in self.assumed if a.relation.equation and not a.relation.terms[0].logs):
            name = r.text.partition("=")[0].strip()
            if r.terms[0][name] == 1:
                equal[name] = r.terms[0].solved(name).substituted(equal)
        return m.substituted(composed(self.define, equal | dict(self.given))).power

    def document(self) -> Document:
        """Windows of every exponent with what binds them, and defined quantities; or a contradiction."""
        grows = self.grows
        blocks: list[Block] = [Heading(literal(self.title), 2)]
        if laws := [f"{name} = {m}" for name, m in self.given.items()] + [f"without {name}" for name in self.dropped]:
            blocks.append(Lines.of(literal(", ".join(laws))))
        if self.core:
            put = composed(self.define, self.given)
            blocks.append(Lines.of("no size of anything meets these together:"))
            rows = [_row(a, put) for a in self.assumed if a.name in self.core]
            blocks.append(Grid.of(["assumption", "relation", "that is", "because", "source"], rows))
        else:
            open_ = {p for m in self.given.values() for p in m.parameters}
            rows = [[name, *_ends(w, "" if name in open_ else grows)] for name, w in self.windows.items()]
            blocks.append(Grid.of(["quantity", "from", "because of", "to", "because of"], rows))
        if self.define:
            rows = [[literal(d.name), literal(str(m)), *_ends(w, grows)[::2], literal(d.source) or None]
                    for d in self.define for m, w in [self.defined[d.name]]]  # fmt: skip
            blocks.append(Grid.of(["defined", "is", "from", "to", "source"], rows))
        note = f"exponents of {grows}; constants and powers of logarithms do not count"
        blocks.append(Lines.of(literal(note), listed=True))
        return Document(tuple(blocks), {f.name: getattr(self, f.name) for f in fields(self) if f.name != "system"})


def windows(
    name: str,
    title: str,
    grows: str,
    assume: tuple[Assumption, ...],
    define: tuple[Definition, ...],
    given: Mapping[str, Monomial],
    drop: Iterable[str],
) -> Windows:
    """The window of every exponent, or a smallest set of assumptions that contradicts itself.

    Raises:
        UsageError: a name that is not there; relations that are not linear in the exponents.
    """
    dropped = tuple(dict.fromkeys(drop))
    check_names("assumption", dropped, [a.name for a in assume])
    assumed, whole = tuple(a for a in assume if a.name not in dropped), composed(define, {})
    quantities = frozenset({grows}).union(*(a.relation.substituted(whole).quantities for a in assumed))
    for q, law in given.items():
        check_names("quantity to set", [q], sorted(quantities - {grows}))
        if q in law.quantities or law.quantities & given.keys():
            raise UsageError(f"{q} = {law} is given in what is given itself; write it in the others")
    put = composed(define, given)
    rows = [replace(a.relation.substituted(put), text=a.name) for a in assumed]
    for m, where in [*((m, row.text) for row in rows for m in row.terms), *((put[d.name], d.name) for d in define)]:
        linear(m, grows, where)
    check_names("quantity", (q for law in given.values() for q in sorted(law.quantities)), sorted(quantities))
    system = GrowthSystem(rows, grows)
    if both := {p for row in rows for p in row.parameters} & {q for row in rows for q in row.quantities}:
        raise UsageError(f"{min(both)} is a quantity and stands in an exponent; give one another name")
    core = system.core() or system.core(strict=True, logs=True)
    defined: dict[str, tuple[Monomial, Window | None]] = {}
    for m, d in ((put[d.name], d) for d in define):
        unknown = core or not (m.quantities - {grows}) | m.parameters <= {*system.unknowns}
        defined[d.name] = m, None if unknown else system.window(m)
    found = {} if core else system.windows()
    return Windows(name, title, grows, define, given, assumed, dropped, system, found, defined, core)


def composed(define: Iterable[Definition], values: Mapping[str, Monomial]) -> dict[str, Monomial]:
    """The given values of quantities, and every defined quantity as a monomial in the others with these values."""
    defined: dict[str, Monomial] = {}
    for d in define:
        defined[d.name] = d.is_.substituted(defined)
    return {name: m.substituted(values) for name, m in defined.items()} | dict(values)


# inside --------------------------------------------------------------------------------------------------------


def _row(a: Assumption, put: Mapping[str, Monomial]) -> list[Piece | None]:
    here = ", ".join(f"{m} {'<<' if a.relation.strict else '<='} 1" for m in a.relation.substituted(put).terms)
    return [Text(a.name, literal(a.name)), *(literal(x) or None for x in (str(a.relation), here, a.because, a.source))]


def _ends(w: Window | None, grows: str) -> list[Piece | None]:
    """Both ends of a window, each with the assumptions that bind it."""
    ends = [End(None)] * 2 if w is None else [w.low, w.high]
    return [x for e in ends for x in (_end(e, grows), literal(", ".join(e.binding)) or None)]


def _end(e: End, grows: str) -> Piece | None:
    if e.value is None:
        return None
    mark = ", open" if e.open else ""
    if not grows:
        return f"{e.value}{mark}"
    power = sympy.latex(Monomial.of({grows: sympy.Rational(e.value)}).expr)
    plain = "1" if e.value == 0 else grows if e.value == 1 else f"{grows}^{format_exponent(e.value)}"
    return Text(plain + mark, f"${power}${mark}")
