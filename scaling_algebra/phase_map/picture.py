"""The map of rays as a picture: SVG, and a page where a cell, a wall or a point that is chosen shows its formulas.

Chosen by pointer, by touch or with the tab key. Labels are placed where nothing else is (``_Page.place``).
Read next: ``phases.py`` (what is drawn).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import product
from math import atan2, cos, degrees, dist, pi, sin
from pathlib import Path
from string import Template
from textwrap import wrap

from scaling_algebra.documents.blocks import Document
from scaling_algebra.documents.writers.html import fragment
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .families import families
from .phases import Edge, MapCell, Phases
from .plane import PLANE_AXES, SIDE, Point2
from .presentation import formulas, status

_SIDE, _LEFT, _TOP, _WIDTH, _HEIGHT = 340, 44, 34, 400, 414
_FILL = ("#dbe9f6", "#e5f5e0", "#fee6ce", "#efedf5", "#fde0dd", "#f0f0f0", "#fff7bc", "#e0f3f8")
_WALLS = {  # how a wall is drawn, and its line of the legend
    "beside": ('stroke="#222" stroke-width="2.5"', "{} exists on this wall and beside it"),
    "only": ('stroke="#1b7837" stroke-width="5"', "{} exists on this wall, and on neither side"),
    "none": ('stroke="#777" stroke-width="1.5" stroke-dasharray="5 4"', "wall on which no {} is found"),
}
_REGIME, _FAMILY = "#b2182b", "#2166ac"
Spot = tuple[float, float]


@dataclass(frozen=True)
class _Choice:
    """Something that can be chosen: its name, the lines said about it, its formulas."""

    name: str
    lines: tuple[str, ...]
    scaling: Scaling | None = None

    @property
    def label(self) -> str:
        return ": ".join((self.name, *self.lines[:1]))

    @property
    def tip(self) -> str:
        return "\n".join((self.name, *self.lines, *([] if self.scaling is None else _said(self.scaling))))


@dataclass
class _Page:
    """What is drawn, in order, what can be chosen, and the points that labels keep away from."""

    out: list[str] = field(default_factory=list)
    choices: list[_Choice] = field(default_factory=list)
    taken: list[Spot] = field(default_factory=list)

    def choose(self, shape: str, choice: _Choice) -> None:
        """A shape (an open tag) that can be chosen."""
        name, attributes = shape.split(" ", 1)
        reach = f'data-choice="{len(self.choices)}" tabindex="0" role="button" aria-label="{escape(choice.label)}"'
        self.out.append(f"<{name} {reach} {attributes}><title>{escape(choice.tip)}</title></{name}>")
        self.choices.append(choice)

    def place(self, text: str, spots: Iterable[tuple[Spot, float]], look: str, size: float = 12) -> list[Spot]:
        """Write a text centred at the first spot (with an angle) where it is on nothing else, or on least.

        Returns points of it from its start to its end.
        """
        best: tuple[int, Spot, float, list[Spot]] | None = None
        half = 0.29 * size * len(text)
        for (x, y), turn in spots:
            steps = [half * k / 4 for k in range(-4, 5)]
            covered = [(x + s * cos(turn), y + s * sin(turn)) for s in steps]
            inside = all(_LEFT + 3 < u < _LEFT + _SIDE - 3 and _TOP + 6 < v < _TOP + _SIDE - 6 for u, v in covered)
            near = sum(dist(here, other) < 0.72 * size for here in covered for other in self.taken)
            if best is None or near + 99 * (not inside) < best[0]:
                best = (near + 99 * (not inside), (x, y), turn, covered)
        assert best is not None
        _, (x, y), turn, covered = best
        self.taken += [(u + a, v + b) for u, v in covered for a, b in product((-3, 3), repeat=2)]
        rotate = f' transform="rotate({degrees(turn):.1f} {x:.1f} {y:.1f})"' if turn else ""
        halo = 'text-anchor="middle" dominant-baseline="central" paint-order="stroke" stroke="#fff" stroke-width="3"'
        where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"{rotate}'
        self.out.append(f'<text {where} {halo} stroke-opacity=".7" pointer-events="none" {look}>{escape(text)}</text>')
        return covered


def _map(p: Phases) -> _Page:
    """Cells, walls, axes, regimes and families, then the labels."""
    page = _Page()
    for cell in p.cells:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_screen, cell.corners))
        lines = (", ".join(cell.inequalities), status(cell))
        page.choose(
            f'polygon points="{corners}" fill="{_fill(cell)}"', _Choice(f"cell {cell.name}", lines, cell.scaling)
        )
    for edge in p.edges:
        (x0, y0), (x1, y1) = ends = [_screen(end) for end in edge.ends]
        line = f'line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
        page.out.append(f"<{line} {_WALLS[_kind(p, edge)][0]}/>")
        span = (
            f"{p.plane[0]} {edge.ends[0][0]} to {edge.ends[1][0]}, {p.plane[1]} {edge.ends[0][1]} to {edge.ends[1][1]}"
        )
        shown = _Choice(f"wall {edge.wall}", (span, status(edge)), edge.scaling)
        page.choose(f'{line} stroke="transparent" stroke-width="16"', shown)
        page.taken += _along(*ends)
    border = f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>'
    page.out += [border, *_axes(p)]
    marks = _marks(p)
    for colour, name, (x, y), said in marks:
        path = f"M {x:.1f} {y - 6:.1f} l 5 9 l -10 0 z"
        shape = f'circle cx="{x:.1f}" cy="{y:.1f}" r="7"' if colour == _REGIME else f'path d="{path}"'
        page.choose(f'{shape} fill="{colour}" stroke="#fff"', _Choice(name, said))
        page.taken += [(x + a, y + b) for a, b in product((-4, 0, 4), repeat=2)]
    for cell in p.cells:
        middle = [sum(float(c[k]) for c in cell.corners) / len(cell.corners) for k in (0, 1)]
        look = 'font-weight="600"' if cell.scaling is not None else 'fill="#666"'
        page.place(_shown(cell), [(_screen((middle[0], middle[1])), 0.0)], look, 16)
    for colour, name, at, _ in marks:
        text = name.removeprefix("regime ")
        look = f'fill="{colour}"' + ' font-weight="bold"' * (colour == _REGIME)
        ends = page.place(text, _around(at, text), look, 11)
        far, (x, y) = min((dist(spot, at), spot) for spot in ends)
        if far > 22:
            line = f'<path d="M {at[0]:.1f} {at[1]:.1f} L {x:.1f} {y + 5:.1f}" stroke="{colour}" opacity=".6"'
            page.out.append(f'{line} pointer-events="none"/>')
    for wall in p.walls:
        pieces = [[_screen(end) for end in edge.ends] for edge in p.edges if edge.wall == wall]
        page.place(str(wall), [spot for a, b in pieces for spot in _beside(a, b)], 'font-style="italic"', 11)
    return page


def _shown(cell: MapCell) -> str:
    return cell.name if cell.scaling is not None else "none"


def _fill(cell: MapCell) -> str:
    return "#fff" if cell.scaling is None else _FILL[(ord(cell.name) - ord("A")) % len(_FILL)]


def _kind(p: Phases, edge: Edge) -> str:
    sides = [cell for cell in p.cells if set(edge.ends) <= set(cell.corners)]
    if edge.scaling is None:
        return "none"
    return "beside" if any(cell.scaling is not None for cell in sides) else "only"


def _screen(p: Point2 | Spot) -> Spot:
    scale = _SIDE / float(SIDE)
    return _LEFT + float(p[0]) * scale, _TOP + _SIDE - float(p[1]) * scale


def _along(a: Spot, b: Spot) -> list[Spot]:
    """Points of a line, close enough that no label slips between them."""
    count = int(dist(a, b) / 4) + 1
    return [(a[0] + (b[0] - a[0]) * k / count, a[1] + (b[1] - a[1]) * k / count) for k in range(count + 1)]


def _around(at: Spot, text: str) -> list[tuple[Spot, float]]:
    """Places for the name of a point: right, left, above, below, and further away."""
    half = 0.29 * 11 * len(text)
    near = [(1, 0), (-1, 0), (1, -0.7), (-1, -0.7), (1, -1), (-1, -1), (0, -1), (0, 1), (1, 1), (-1, 1)]
    spots = [(11, *side) for side in near] + [(far, u, v) for far in (11, 28) for v in (-1, -2, -3) for u in (1, -1)]
    return [((at[0] + u * (half + far), at[1] + v * 14), 0.0) for far, u, v in spots]


def _beside(a: Spot, b: Spot) -> list[tuple[Spot, float]]:
    """Places for the equation of a wall: along it, on either side."""
    turn = atan2(b[1] - a[1], b[0] - a[0])
    turn = turn if abs(turn) <= 1.6 else turn + pi
    shares = [(share, side) for share in (0.5, 0.35, 0.65, 0.2, 0.8) for side in (-11, 11)]
    return [
        ((a[0] + s * (b[0] - a[0]) - side * sin(turn), a[1] + s * (b[1] - a[1]) + side * cos(turn)), turn)
        for s, side in shares
    ]


def _axes(p: Phases) -> list[str]:
    found = []
    for k in range(int(SIDE) * 2 + 1):
        (x, y), (u, v) = _screen((k / 2, 0.0)), _screen((0.0, k / 2))
        found.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{k / 2:g}</text>')
        found.append(f'<text x="{u - 11:.1f}" y="{v + 4:.1f}" text-anchor="end">{k / 2:g}</text>')
    x, y = _LEFT + _SIDE / 2, _TOP + _SIDE / 2
    found.append(f'<text x="{x}" y="{_TOP + _SIDE + 34}" text-anchor="middle">rate of {p.plane[0]}</text>')
    turn = f'text-anchor="middle" transform="rotate(-90 12 {y})"'
    return [*found, f'<text x="12" y="{y}" {turn}>rate of {p.plane[1]}</text>']


def _marks(p: Phases) -> list[tuple[str, str, Spot, tuple[str, ...]]]:
    """Regimes and model families that lie in the picture: colour, name, place, what is said about them."""
    found: list[tuple[str, str, Spot, tuple[str, ...]]] = []
    for name, ray in REGIMES.items():
        at = p.point(ray)
        if at is not None:
            walls = ", ".join(str(wall) for wall in p.walls_of(ray)) or "no wall"
            found.append((_REGIME, f"regime {name}", _screen(at), (f"on {walls}",)))
    (third,) = (axis for axis in PLANE_AXES if axis not in p.plane)
    for f in families():
        rates = f.rates()
        if rates and rates[third] and all(0 <= rates[axis] <= SIDE * rates[third] for axis in p.plane):
            x, y = (rates[axis] / rates[third] for axis in p.plane)
            shown = ", ".join(f"{axis} {rates[axis]:.2f}" for axis in PLANE_AXES)
            found.append((_FAMILY, f.name, _screen((x, y)), (f"estimated rates {shown}", f.source)))
    return found


def _rows(s: Scaling) -> list[tuple[str, list[Power | None]]]:
    """Powers of every tensor: init std (None: zero), learning rate, and epsilon where the optimizer has one."""
    return [(role, [t.init_std, t.lr, *([] if t.eps is None else [t.eps])]) for role, t in s.tensors.items()]


_WHAT = ("init std", "lr", "eps")


def _said(s: Scaling, only: Container[tuple[str, str]] | None = None) -> list[str]:
    """``init std: router N^(-1/2), ...`` and so on, for all settings or for some."""
    found: dict[str, list[str]] = {}
    for role, powers in _rows(s):
        for what, power in zip(_WHAT, powers, strict=False):
            if only is None or (role, what) in only:
                found.setdefault(what, []).append(f"{role} {'0' if power is None else power}")
    return [f"{what}: {', '.join(each)}" for what, each in found.items()]


def _legend(p: Phases) -> tuple[list[str], int]:
    """What occurs in the picture, line by line from y = 0, and the height."""
    formulas = [cell.scaling for cell in p.cells if cell.scaling is not None]
    settings = {(role, what) for s in formulas for role, _ in _rows(s) for what in _WHAT}
    differ = {key for key in settings if len({tuple(_said(s, [key])) for s in formulas}) > 1}
    who = p.parameterization.title
    entries: list[tuple[str, str]] = []
    for cell in p.cells:
        swatch = f'<rect x="2" y="-6" width="26" height="12" fill="{_fill(cell)}" stroke="#999"/>'
        text = f"{cell.name}: {', '.join(cell.inequalities)}" if cell.scaling else f"none: no {who} found inside"
        said = _said(cell.scaling, differ) if cell.scaling else []
        entries += [(swatch, text), *(("", line) for line in wrap("; ".join(said), 56))]
    for look, text in (_WALLS[kind] for kind in _WALLS if any(_kind(p, edge) == kind for edge in p.edges)):
        entries.append((f'<line x1="2" y1="0" x2="28" y2="0" {look}/>', text.format(who)))
    colours = {colour for colour, *_ in _marks(p)}
    if _REGIME in colours:
        entries.append((f'<circle cx="15" cy="0" r="6" fill="{_REGIME}"/>', "regime of the MSSP paper"))
    if _FAMILY in colours:
        text = "model family, estimated from its members' shapes"
        entries.append((f'<path d="M 15 -6 l 6 11 l -12 0 z" fill="{_FAMILY}"/>', text))
    out: list[str] = []
    y = -9
    for swatch, text in entries:
        if swatch and any(swatch in line for line in out):
            continue
        y += 20 if swatch else 15
        out.append(f'<g transform="translate(4 {y})">{swatch}<text x="36" y="4">{escape(text)}</text></g>')
    return out, y + 12


def _open(label: str, height: int, top: int = 0) -> str:
    look = 'font-family="system-ui, sans-serif" font-size="12"'
    where = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {_WIDTH} {height - top}"'
    return f'<svg {where} {look} aria-label="{escape(label)}">'


def phases_svg(p: Phases) -> str:
    """The map with its legend below. Pointing at a cell, a wall or a point shows its formulas."""
    legend, height = _legend(p)
    title = f'<text x="{_LEFT}" y="20" font-size="13">{escape(p.about)}</text>'
    below = [f'<g transform="translate(0 {_HEIGHT})">', *legend, "</g>"]
    return "\n".join([_open(p.about, _HEIGHT + height), title, *_map(p).out, *below, "</svg>"])


FRAME = {"left": _LEFT, "top": _TOP, "side": _SIDE, "most": int(SIDE)}
"""Where the plane lies in the picture: its upper left corner and its side, for rates from 0 to ``most``."""


def phases_map(p: Phases) -> str:
    """The map alone, without title and legend, for a page that draws more into it (``FRAME`` says where)."""
    return "\n".join([_open(p.about, _HEIGHT, _TOP - 10), *_map(p).out, "</svg>"])


def phases_html(p: Phases) -> str:
    """A page without network access: the map, what is said about the chosen cell, wall or point, and the legend."""
    page, (legend, height), title = _map(p), _legend(p), p.about
    details = []
    for choice in page.choices:
        lines = "".join(f"<p>{escape(line)}</p>" for line in choice.lines)
        table = "" if choice.scaling is None else fragment([Document((formulas(choice.scaling),), {})])
        details.append(f"<article><h2>{escape(choice.name)}</h2>{lines}{table}</article>")
    text = Template((Path(__file__).parent / "map.html").read_text(encoding="utf-8"))
    drawn = "\n".join([_open(title, _HEIGHT, _TOP - 10), *page.out, "</svg>"])
    below = "\n".join([_open("legend", height), *legend, "</svg>"])
    return text.substitute(title=escape(title), map=drawn, details="\n".join(details), legend=below)
