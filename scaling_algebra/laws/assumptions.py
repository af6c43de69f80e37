"""Assumptions about sizes, such as ``d**(-1/2)*sigma <= sigma**(5/2)``: are they consistent, and for which exponents?

Law: every quantity is a power of one that grows, up to constants and powers of logarithms. So each relation between
monomials is a linear inequality between exponents. ``a << b`` gives the same inequality as ``a <= b``, but excludes
equal powers unless logarithms decide. The argument of a logarithm grows, and a logarithm is at least 1.
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
from .systems import End, GrowthSystem, Window, check_linear


@dataclass(frozen=True)
class Assumption:
    """An assumed relation between monomials.

    Attributes:
        relation: the relation, such as ``sigma <= d**(-1/2)``.
        name: its name; by default the relation as text.
        because: why it is assumed.
        source: where it is published.
    """

    relation: Relation
    name: str = ""
    because: str = ""
    source: str = ""


@dataclass(frozen=True)
class Definition:
    """A quantity that is defined as a monomial in others.

    Attributes:
        name: the quantity.
        is_: the monomial that it equals.
        source: where it is published.
    """

    name: str
    is_: Monomial
    source: str = ""


@dataclass(frozen=True, repr=False)
class Windows(Rendered):
    """The ranges of exponents for which all assumptions hold.

    Attributes:
        name: name of the set of assumptions.
        title: one line for reports.
        grows: the quantity of which all others are powers.
        define: the definitions.
        given: growth laws that the user prescribes, by quantity.
        assumed: the assumptions in use.
        dropped: names of the assumptions that the user leaves out.
        system: the inequalities between exponents.
        windows: range of the exponent of each quantity, and of each parameter in an exponent, by name; empty if the
            assumptions are contradictory.
        defined: for each defined quantity its monomial in the others, and the range of its exponent (None if unknown).
        core: names of a smallest contradictory set of assumptions; empty if they are consistent.
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
        """Returns the range of a monomial's exponent. The assumptions must be consistent.

        Raises:
            UsageError: a quantity about which nothing is assumed.
        """
        return self.system.window(m.substitute(compose_definitions(self.define, self.given)))

    def reduce_monomial(self, m: Monomial) -> Monomial:
        """Rewrites a monomial in independent quantities, without constant and logarithms.

        Quantities that are defined, or that an assumed equation without logarithms determines, are replaced.
        """
        equal: dict[str, Monomial] = {}
        for r in (a.relation for a in self.assumed if a.relation.equation and not a.relation.terms[0].logs):
            name = r.text.partition("=")[0].strip()
            if r.terms[0][name] == 1:
                equal[name] = r.terms[0].solve_for(name).substitute(equal)
        return m.substitute(compose_definitions(self.define, equal | dict(self.given))).power

    def document(self) -> Document:
        """Returns the report: the range of every exponent with the assumptions that bound it, or the contradiction."""
        grows = self.grows
        blocks: list[Block] = [Heading(literal(self.title), 2)]
        if laws := [f"{name} = {m}" for name, m in self.given.items()] + [f"without {name}" for name in self.dropped]:
            blocks.append(Lines.of(literal(", ".join(laws))))
        if self.core:
            put = compose_definitions(self.define, self.given)
            blocks.append(Lines.of("no exponents satisfy all of these assumptions:"))
            rows = [_format_row(a, put) for a in self.assumed if a.name in self.core]
            blocks.append(Grid.of(["assumption", "relation", "that is", "because", "source"], rows))
        else:
            open_ = {p for m in self.given.values() for p in m.parameters}
            rows = [[name, *_format_ends(w, "" if name in open_ else grows)] for name, w in self.windows.items()]
            blocks.append(Grid.of(["quantity", "from", "because of", "to", "because of"], rows))
        if self.define:
            rows = [[literal(d.name), literal(str(m)), *_format_ends(w, grows)[::2], literal(d.source) or None]
                    for d in self.define for m, w in [self.defined[d.name]]]  # fmt: skip
            blocks.append(Grid.of(["defined", "is", "from", "to", "source"], rows))
        note = f"all numbers are exponents of {grows}; constants and powers of logarithms are ignored"
        blocks.append(Lines.of(literal(note), listed=True))
        return Document(tuple(blocks), {f.name: getattr(self, f.name) for f in fields(self) if f.name != "system"})


def find_windows(
    name: str,
    title: str,
    grows: str,
    assume: tuple[Assumption, ...],
    define: tuple[Definition, ...],
    given: Mapping[str, Monomial],
    drop: Iterable[str],
) -> Windows:
    """Computes the range of every exponent, or a smallest contradictory set of assumptions.

    Args:
        name: name of the set of assumptions.
        title: one line for reports.
        grows: the quantity of which all others are powers.
        assume: the assumptions.
        define: the definitions, each in earlier ones.
        given: growth laws by quantity.
        drop: names of assumptions to leave out.

    Raises:
        UsageError: an unknown name, or relations that are not linear in the exponents.
    """
    dropped = tuple(dict.fromkeys(drop))
    check_names("assumption", dropped, [a.name for a in assume])
    assumed, whole = tuple(a for a in assume if a.name not in dropped), compose_definitions(define, {})
    quantities = frozenset({grows}).union(*(a.relation.substitute(whole).quantities for a in assumed))
    for q, law in given.items():
        check_names("quantity to set", [q], sorted(quantities - {grows}))
        if q in law.quantities or law.quantities & given.keys():
            raise UsageError(
                f"the value of {q}, {law}, contains a quantity that is given, too; write it in quantities that are "
                "not given"
            )
    put = compose_definitions(define, given)
    rows = [replace(a.relation.substitute(put), text=a.name) for a in assumed]
    for m, where in [*((m, row.text) for row in rows for m in row.terms), *((put[d.name], d.name) for d in define)]:
        check_linear(m, grows, where)
    check_names("quantity", (q for law in given.values() for q in sorted(law.quantities)), sorted(quantities))
    system = GrowthSystem(rows, grows)
    if both := {p for row in rows for p in row.parameters} & {q for row in rows for q in row.quantities}:
        raise UsageError(f"{min(both)} is the name of a quantity and of a parameter in an exponent; rename one of them")
    core = system.core() or system.core(strict=True, logs=True)
    defined: dict[str, tuple[Monomial, Window | None]] = {}
    for m, d in ((put[d.name], d) for d in define):
        unknown = core or not (m.quantities - {grows}) | m.parameters <= {*system.unknowns}
        defined[d.name] = m, None if unknown else system.window(m)
    found = {} if core else system.windows()
    return Windows(name, title, grows, define, given, assumed, dropped, system, found, defined, core)


def compose_definitions(define: Iterable[Definition], values: Mapping[str, Monomial]) -> dict[str, Monomial]:
    """Returns every defined quantity as a monomial in undefined ones; to these, it adds the given values.

    Args:
        define: the definitions, each in earlier ones.
        values: monomials to substitute, by quantity.
    """
    defined: dict[str, Monomial] = {}
    for d in define:
        defined[d.name] = d.is_.substitute(defined)
    return {name: m.substitute(values) for name, m in defined.items()} | dict(values)


# inside --------------------------------------------------------------------------------------------------------


def _format_row(a: Assumption, put: Mapping[str, Monomial]) -> list[Piece | None]:
    """Formats one of the contradictory assumptions as a table row: its name, the relation as written, the same
    relation in independent quantities, its reason and its source.

    Args:
        a: the assumption.
        put: each defined or given quantity as a monomial in independent ones, which takes its place in the relation.
    """
    here = ", ".join(f"{m} {'<<' if a.relation.strict else '<='} 1" for m in a.relation.substitute(put).terms)
    return [Text(a.name, literal(a.name)), *(literal(x) or None for x in (str(a.relation), here, a.because, a.source))]


def _format_ends(w: Window | None, grows: str) -> list[Piece | None]:
    """Formats both ends of a range, each with the assumptions that bind it."""
    ends = [End(None)] * 2 if w is None else [w.low, w.high]
    return [x for e in ends for x in (_format_end(e, grows), literal(", ".join(e.binding)) or None)]


def _format_end(e: End, grows: str) -> Piece | None:
    """Formats one end of a range as a power of ``grows``; None if the range is unbounded there."""
    if e.value is None:
        return None
    mark = ", open" if e.open else ""
    if not grows:
        return f"{e.value}{mark}"
    power = sympy.latex(Monomial.of({grows: sympy.Rational(e.value)}).expr)
    plain = "1" if e.value == 0 else grows if e.value == 1 else f"{grows}^{format_exponent(e.value)}"
    return Text(plain + mark, f"${power}${mark}")
