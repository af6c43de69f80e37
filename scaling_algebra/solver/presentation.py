"""Documents of a derivation and of a table of signals: in full for files, in brief for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import (
    ZERO,
    Block,
    Document,
    Grid,
    Heading,
    Lines,
    Marked,
    Piece,
    Size,
    Text,
    literal,
)
from scaling_algebra.documents.notation import plain, rich, typeset
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.spec.axes import FIXED, describe_axis
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.gauges import GAUGES, OWN
from scaling_algebra.spec.glossary import ASSUMPTIONS, join_assumptions
from scaling_algebra.spec.level import Level
from scaling_algebra.spec.networks.indices import find_aggregations
from scaling_algebra.spec.networks.language import Function
from scaling_algebra.spec.networks.multipliers import find_free_multipliers, find_gauges
from scaling_algebra.spec.powers import format_exponent
from scaling_algebra.spec.scaling import Scaling

from .demands import Infeasible, summarise_failures
from .derivation import TIES, Derivation, Signals, derive

SHOWN = 3
"""Number of undecided sizes named below a table."""

# the whole ---------------------------------------------------------------------------------------------------------


@document_of.register(Derivation)
def derivation(d: Derivation) -> Document:
    """Makes the full document: powers of every tensor, with the reason for every number."""
    blocks: list[Block] = [Heading(literal(add_level(d.about, d.level))), *multipliers([d], reasons=True)]
    blocks += [table([d], exponents=True), *left_open(d.level), *_unmet(d, True), Heading("why", 2), _reasons([d])]
    if d.structure:
        blocks += [Heading("structure", 2), Lines.of(*map(typeset, d.structure), listed=True)]
    if notes := [*_notes(d), *([f"assumes {join_assumptions(d.assumes)}"] if d.assumes else [])]:
        blocks += [Heading("notes", 2), Lines.of(*notes, listed=True)]
    return Document(tuple(blocks), d.as_json())


def add_level(about: str, level: Level | None) -> str:
    """Returns the title of an answer followed by how much of it is certified."""
    return about if level is None else f"{about}, {level}"


def left_open(level: Level | None) -> list[Block]:
    """Returns the blocks that say what is not certified; they are printed below the numbers. They name the tensors or
    signals concerned, then the first reasons.
    """
    if level is None or not level.lines:
        return []
    about = [level.concerned] if level.concerned else []
    return [Lines.of(*map(literal, [*about, *first_lines(level.lines, ".level.lines")]))]


def first_lines(lines: Sequence[str], where: str) -> list[str]:
    """Returns the first lines, then a line that counts the others and says where to find them.

    Args:
        lines: all lines.
        where: the attribute that contains them in Python.
    """
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {more} more (--format json names them, in Python {where})"] if more > 0 else [])]


def table(ds: Sequence[Derivation], exponents: bool = False) -> Grid:
    """Makes a table with one row per tensor; each parameterization after the first has a column of its differences.

    Args:
        ds: parameterizations of the same network, ray and optimizer.
        exponents: add columns with the exponents of n on the ray: b of the init std, c of the learning rate, d of
            epsilon, and a of the multiplier on a tensor if there are such multipliers.
    """
    first, *others = ds
    gauged, eps = first.gauge != OWN, any(t.eps is not None for t in first.tensors.values())
    header = ["tensor", *(["a"] if gauged else []), "b", "c", *(["d"] if eps else [])] if exponents else ["tensor"]
    header += [*(["multiplier"] if gauged else []), "init std", "lr", *(["eps"] if eps else [])]
    header += ["tied"] if first.scaling.tied else []
    rows = []
    for role, t in first.tensors.items():
        row: list[Piece | None] = [role]
        if exponents:
            b, c, e = first.exponents(role)
            row += [-t.multiplier.on(first.ray)] if gauged else []
            row += ["zero" if b is None else b, c, *([e] if eps else [])]
        cells = _cells(first, role)
        row += [cells[name] for name in header if name in cells]
        row += [Text(*(", ".join(_changes(first, other, role, show)) for show in (plain, rich))) for other in others]
        rows.append(row)
    return Grid.of((*header, *(d.configuration.parameterization.title for d in others)), rows)


def powers(s: Scaling, marked: bool = True) -> Iterator[tuple[str, Piece, Piece, Piece | None]]:
    """Yields role, init std, learning rate and epsilon of every tensor, formatted for a table.

    Args:
        s: the settings.
        marked: mark the init std of a tensor that starts alike in all experts as tied.
    """
    for role, t in s.tensors.items():
        std: Piece = ZERO if t.init_std is None else t.init_std
        if marked and t.init_std is not None and role in s.tied:
            std = Marked(t.init_std, "tied")
        yield role, std, "frozen" if t.lr is None else t.lr, None if t.lr is None else t.eps


def _cells(d: Derivation, role: str) -> dict[str, Piece | None]:
    """Returns the table cells of a tensor's row, by column."""
    t = d.tensors[role]
    std: Piece = ZERO if t.init_std is None else t.init_std
    tied = "tied" if role in d.scaling.tied else ""
    rate, eps = ("frozen", None) if t.lr is None else (t.lr, t.eps)
    return {"multiplier": t.multiplier, "init std": std, "lr": rate, "eps": eps, "tied": tied}


def _changes(first: Derivation, other: Derivation, role: str, show: Callable[[Piece | None], str] = plain) -> list[str]:
    """Returns those settings of a tensor in the parameterization ``other`` that differ from those in ``first``, such
    as ``init std 0`` or ``tied``. ``show`` formats a value.
    """
    one, two = _cells(first, role), _cells(other, role)
    changed = [name for name in two if two[name] != one[name]]
    return [f"{name} {show(two[name])}" if name != "tied" else show(two[name]) or "not tied" for name in changed]


def multipliers(ds: Sequence[Derivation], reasons: bool = False) -> list[Block]:
    """Returns one line for each multiplier, with other values of parameterizations after the first in brackets."""
    first, *others = ds
    lines: list[Sequence[Piece]] = []
    summed = {m for s in find_aggregations(first.network) for m in s.multipliers}
    network = first.network
    for name, power in (
        first.scaling.multipliers.items() if find_free_multipliers(network) or find_gauges(network) else ()
    ):
        own = f" {name}" if name not in summed or len(summed) > 1 else ""
        line: list[Piece] = [f"{'aggregation ' if name in summed else ''}multiplier{own}: ", 1 / power]
        for other in others:
            if (another := other.scaling.multipliers[name]) != power:
                line += [f"   ({other.configuration.parameterization.title}: ", 1 / another, ")"]
        said = first.reasons.get(("aggregation", name), "")
        line += ["   (", typeset(said), ")"] if said and (reasons or name in find_gauges(network)) else []
        lines.append(line)
    if first.gauge != OWN:
        lines.append([typeset(f"gauge {first.gauge}: {GAUGES[first.gauge].about}")])
    return [Lines.of(*lines)] if lines else []


def _unmet(d: Derivation, whole: bool) -> list[Block]:
    """Makes the blocks of a document that list the demands which fail with the exponents that the user fixed.

    All are listed if ``whole``; otherwise the first, and the number of the others.
    """
    if not (d.configuration.given and d.configuration.parameterization.derived):
        return []
    if not d.unmet:
        which = "every desideratum that is decided holds" if d.level and d.level.open else "every desideratum holds"
        return [Lines.of(f"{which} with what is given")]
    shown = [*_instead(d), *(d.unmet if whole else summarise_failures(d.unmet, "--why"))]
    return [Heading("does not hold with what is given", 2), Lines.of(*map(typeset, shown), listed=True)]


def _instead(d: Derivation) -> list[str]:
    """Lists the powers that differ because the user fixed some, each with the power that is derived otherwise."""
    try:
        free = derive(d.configuration.but(given=None)).scaling
    except Infeasible:
        return []
    given, other = dict(d.configuration.given.items), dict[str, str]()
    for role, s in d.scaling.tensors.items():
        for setting in ("init", "lr", "eps"):
            powers = [{"init": x.init_std, "lr": x.lr, "eps": x.eps}[setting] for x in (s, free.tensors[role])]
            if all(powers) and len({x.on(d.ray) for x in powers if x}) > 1:
                other[f"{role}.{setting}"] = f"{role}.{setting} = {powers[0]} ({powers[1]})"
    for name, power in d.scaling.multipliers.items():
        if (was := free.multipliers.get(name, power)).on(d.ray) != power.on(d.ray):
            other[name] = f"{name} = {1 / power} ({1 / was})"
    kinds = [x for name, x in other.items() if name in given], [x for name, x in other.items() if name not in given]
    said = "given power, and the power derived without it", "what follows"
    more = f" and {len(kinds[1]) - SHOWN} more" if len(kinds[1]) > SHOWN else ""
    shown = ", ".join(kinds[0]), ", ".join(kinds[1][:SHOWN]) + more
    return [f"{what}: {x}" for what, x in zip(said, shown, strict=True) if x]


def _reasons(ds: Sequence[Derivation]) -> Grid:
    """Makes a table of the demand that determines each number. Later parameterizations have an entry only where it
    differs from the first one's.
    """
    first, *others = ds
    rows: list[tuple[Piece | None, ...]] = []
    for (role, what), why in first.reasons.items():
        if role != "aggregation":
            rows.append((role, what, typeset(why)))
        for other in others:
            if (said := other.reasons.get((role, what), why)) != why:
                rows.append((role, what, typeset(f"{other.configuration.parameterization.title}: {said}")))
    return Grid.of(("tensor", "what", "because"), rows)


def _notes(d: Derivation) -> list[Piece]:
    """Returns the notes on the update rules, and a warning if experts are selected by a router that starts at zero."""
    notes = [*(rule.note for rule in d.optimizer.rules), *_ties([d])]
    return [typeset(note) for note in dict.fromkeys(notes) if note]


def _ties(ds: Sequence[Derivation]) -> list[str]:
    """Returns a warning if experts are selected by a router that starts at zero, since all its scores are then equal
    at first; otherwise an empty list.
    """
    zero = [d for d in ds if "router" in d.tensors and d.tensors["router"].init_std is None]
    selects = any(isinstance(s, Function) and s.kind.selects for d in zero for s in d.network.statements)
    return [TIES] if selects or any(d.ray["K"] < d.ray["M"] for d in zero) else []


# in brief ----------------------------------------------------------------------------------------------------------


def alike(one: Derivation, two: Derivation) -> bool:
    """Tests whether two parameterizations can share a table: they differ in few cells, and the user fixed nothing."""
    changed = sum(len(_changes(one, two, role)) for role in one.tensors)
    return changed <= len(one.tensors) and not one.configuration.given and one.level == two.level


def brief(ds: Sequence[Derivation], more: Sequence[str], why: bool = False, exponents: bool = False) -> Document:
    """Makes the document for a terminal: title, one table, and how to get the rest.

    Args:
        ds: parameterizations of the same network, ray and optimizer that are ``alike``.
        more: lines on how to get the rest.
        why: add the reasons, and the meaning of the assumptions.
        exponents: add columns of exponents to the table.
    """
    first, assumed = ds[0], set().union(*(d.assumes for d in ds))
    blocks: list[Block] = [Heading(literal(_title(ds))), Lines.of(_growth(first.configuration)), *multipliers(ds)]
    blocks += [table(ds, exponents), *left_open(Level.of(d.level for d in ds))]
    blocks += [block for d in ds for block in _unmet(d, why)]
    if why:
        blocks += [Heading("why", 2), _reasons(ds)]
        lines = [line for d in ds for line in _structure(d)]
        blocks += [Heading("structure", 2), Lines.of(*lines, listed=True)] if lines else []
        notes = [*_notes(first), *(f"assumes {name}: {x}" for name, x in ASSUMPTIONS.items() if name in assumed)]
        blocks += [Heading("notes", 2), Lines.of(*notes, listed=True)] if notes else []
    below: list[Sequence[Piece] | Piece] = [] if isinstance(blocks[-1], Grid) and not why else [""]
    below += [*map(literal, [*_ties(ds), *more] if not why else more)]
    below += [f"assumes {join_assumptions(assumed)} (--why)"] if assumed and not why else []
    return Document((*blocks, Lines.of(*below)), first.configuration.as_json())


def _title(ds: Sequence[Derivation]) -> str:
    """Composes the title, such as ``muP and MSSP for adam, epsilon derived, certified: minimal MoE block``."""
    asked = ds[0].configuration
    title = f"{' and '.join(d.configuration.parameterization.title for d in ds)} for {asked.optimizer.name}"
    title = add_level(title + (f", epsilon {asked.optimizer.regime}" if asked.optimizer.regime else ""), ds[0].level)
    usual = asked.readout_init == asked.parameterization.starts(asked.network) or asked.readout_given
    title += "" if usual else f", readout init {asked.readout_init}"
    what, _, _ = asked.network.title.partition(" (")  # the source is in the whole document
    return f"{title}{f', given {asked.given}' if asked.given else ''}: {what}"


def _growth(asked: Configuration) -> str:
    """Describes the ray: ``regime II: width N and number of experts M grow alike; expert width N_e is fixed``."""
    ray = asked.ray
    axes = [x for x in ray.axes if x in ray.rates and not (x == "K" and ray["K"] == ray["M"])]
    growing = [axis for axis in axes if ray[axis]]
    groups = {ray[axis]: [x for x in growing if ray[x] == ray[axis]] for axis in growing}
    if len(groups) == 1:
        said = f"{_list_axes(growing)} {'grow alike' if len(growing) > 1 else 'grows'}"
    else:
        grow = {rate: "n" if rate == 1 else f"n^{format_exponent(rate)}" for rate in groups}
        said = ", ".join(f"{_list_axes(names)} as {grow[rate]}" for rate, names in groups.items())
    fixed = [axis for axis in axes if not ray[axis] and axis != "L"]
    said += f"; {_list_axes(fixed)} {'are' if len(fixed) > 1 else 'is'} fixed" if fixed else ""
    there = asked.network.axes.values()
    if absent := [axis for axis in growing if axis not in {*there, "K"}]:
        said += f"; {' and '.join(absent)} {'do' if len(absent) > 1 else 'does'} not occur in this network"
        said += "".join(f", and {axis} never grows" for axis in FIXED if axis != "D" and axis in there)
    return f"regime {ray.name}: {said}" if ray.name else said


def _list_axes(axes: Sequence[str]) -> str:
    """Lists axes in words: ``width N, expert width N_e and number of experts M``."""
    *first, last = (axis if describe_axis(axis) == axis else f"{describe_axis(axis)} {axis}" for axis in axes)
    return f"{', '.join(first)} and {last}" if first else last


def _structure(d: Derivation) -> Iterator[Piece]:
    """Yields the interventions of a parameterization (tensors that start at zero or alike, signals that are not
    constrained), and one line that counts the structures that were rejected.
    """
    if d.chosen is None:
        return
    title = d.configuration.parameterization.title
    yield f"{title} chooses: {d.chosen}"
    yield from (
        f"another structure with as few interventions, for which no desideratum is known to fail: {x}" for x in d.others
    )
    if d.rejected:
        (why, most), *_ = Counter(why for _, why in d.rejected).most_common(1)
        since = "since" if most == len(d.rejected) else f"{most} of them since"
        yield typeset(f"structures rejected before: {len(d.rejected)}, {since} {why}")


# signals -----------------------------------------------------------------------------------------------------------


@document_of.register(Signals)
def signals(s: Signals) -> Document:
    """Makes the document of exponents of n, one line per quantity."""
    header = ("quantity", *(f"t={t}" for t in range(s.steps + 1)))
    grid = Grid.of(header, ((name, *map(_size, row)) for name, row in s.quantities.items()))
    blocks: list[Block] = [Heading(literal(s.about)), Lines.of("sizes as powers of n; 0 is exactly zero"), grid]
    if s.assumes:
        blocks.append(Lines.of(f"assumes {join_assumptions(s.assumes)}"))
    reasons = dict.fromkeys(a.why for row in s.quantities.values() for a in row if not a.decided and a.why)
    if reasons:
        blocks += [Heading("undecided", 2), Lines.of(*map(typeset, reasons), listed=True)]
    return Document(tuple(blocks), s.as_json())


def _size(a: Bracket) -> Piece:
    if a.decided:
        return Size(a.exponent)
    return "undecided" if a.low is None or a.high is None else f"undecided, n^({a.low}) to n^({a.high})"
