"""The map of rays as a picture: SVG, and a page where a cell, a wall or a point that is chosen shows its formulas.

Chosen by pointer, by touch or with the tab key. Places in the picture are complex numbers, x + iy from the upper left
corner; labels are placed where nothing else is (``_Page.place``).
Read next: ``phases.py`` (what is drawn).
"""

from __future__ import annotations

from cmath import phase, rect
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, product
from math import degrees, pi
from pathlib import Path
from string import Template
from textwrap import wrap

from scaling_algebra.documents.blocks import Document
from scaling_algebra.documents.writers.html import fragment
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.scaling import Scaling

from .families import families
from .phases import PLANE_AXES, SIDE, MapCell, Phases
from .presentation import formulas, span, status

_SIDE, _LEFT, _TOP, _WIDTH, _HEIGHT = 340, 44, 34, 400, 414
_FILL = ("#dbe9f6", "#e5f5e0", "#fee6ce", "#efedf5", "#fde0dd", "#f0f0f0", "#fff7bc", "#e0f3f8")
_WALLS = {  # how a wall is drawn, and its line of the legend
    "beside": ('stroke="#222" stroke-width="2.5"', "{} exists on this wall and beside it"),
    "only": ('stroke="#1b7837" stroke-width="5"', "{} exists on this wall, and on neither side"),
    "none": ('stroke="#777" stroke-width="1.5" stroke-dasharray="5 4"', "wall on which no {} is found"),
}
_REGIME, _FAMILY = "#b2182b", "#2166ac"
FRAME = {"left": _LEFT, "top": _TOP, "side": _SIDE, "most": int(SIDE)}
"""The plane's place in the picture: its upper left corner and its side, for rates from 0 to ``most``."""


def phases_svg(p: Phases) -> str:
    """The map with its legend below. Pointing at a cell, a wall or a point shows its formulas."""
    legend, height = _legend(p)
    title = f'<text x="{_LEFT}" y="20" font-size="13">{escape(p.about)}</text>'
    below = [f'<g transform="translate(0 {_HEIGHT})">', *legend, "</g>"]
    return _svg(p.about, [title, *_Page.of(p).out, *below], _HEIGHT + height)


def phases_map(p: Phases) -> str:
    """The map alone, without title and legend, for a page that draws more into it (``FRAME`` says where)."""
    return _svg(p.about, _Page.of(p).out, _HEIGHT, _TOP - 10)


def phases_html(p: Phases) -> str:
    """A page without network access: the map, what is said about the chosen cell, wall or point, and the legend."""
    legend, height = _legend(p)
    details = []
    for name, lines, scaling in _Page.of(p).choices:
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines)
        table = "" if scaling is None else fragment([Document((formulas(scaling),), {})])
        details.append(f"<article><h2>{escape(name)}</h2>{paragraphs}{table}</article>")
    text = Template((Path(__file__).parent / "map.html").read_text(encoding="utf-8"))
    below = _svg("legend", legend, height)
    return text.substitute(title=escape(p.about), map=phases_map(p), details="\n".join(details), legend=below)


# inside ------------------------------------------------------------------------------------------------------------


def _svg(label: str, inside: Iterable[str], height: int, top: int = 0) -> str:
    look = 'font-family="system-ui, sans-serif" font-size="12"'
    where = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {_WIDTH} {height - top}"'
    return "\n".join([f'<svg {where} {look} aria-label="{escape(label)}">', *inside, "</svg>"])


@dataclass
class _Page:
    """Shapes in the order in which they are drawn, choices (a name, lines about it, its formulas), and places that
    labels keep away from."""

    out: list[str] = field(default_factory=list)
    choices: list[tuple[str, tuple[str, ...], Scaling | None]] = field(default_factory=list)
    taken: list[complex] = field(default_factory=list)

    @classmethod
    def of(cls, p: Phases) -> _Page:
        """Cells, walls, axes, regimes and families, then the labels."""
        page = cls()
        for cell in p.cells:
            corners = " ".join(f"{z.real:.1f},{z.imag:.1f}" for z in _corners(cell))
            about = ", ".join(cell.inequalities), status(cell)
            page.choose(f'polygon points="{corners}" fill="{_fill(cell)}"', cell.title, about, cell.scaling)
        for edge in p.edges:
            a, b = _corners(edge)
            line = f'line x1="{a.real:.1f}" y1="{a.imag:.1f}" x2="{b.real:.1f}" y2="{b.imag:.1f}"'
            page.out.append(f"<{line} {_WALLS[_kind(p, edge)][0]}/>")
            about = span(p, edge), status(edge)
            page.choose(f'{line} stroke="transparent" stroke-width="16"', edge.title, about, edge.scaling)
            count = int(abs(b - a) / 4) + 1  # no label slips between them
            page.taken += [a + (b - a) * k / count for k in range(count + 1)]
        page.out.append(f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>')
        page.out += _axes(p)
        marks = _marks(p)
        for colour, name, z, lines in marks:
            path = f"M {z.real:.1f} {z.imag - 6:.1f} l 5 9 l -10 0 z"
            circle = f'circle cx="{z.real:.1f}" cy="{z.imag:.1f}" r="7"'
            shape = circle if colour == _REGIME else f'path d="{path}"'
            page.choose(f'{shape} fill="{colour}" stroke="#fff"', name, lines)
            page.taken += [z + complex(x, y) for x, y in product((-4, 0, 4), repeat=2)]
        for cell in p.cells:
            middle = (sum(float(c[k]) for c in cell.corners) / len(cell.corners) for k in (0, 1))
            name, look = (cell.name, 'font-weight="600"') if cell.scaling is not None else ("none", 'fill="#666"')
            page.place(name, [(_screen(*middle), 0.0)], look, 16)
        for colour, name, z, _ in marks:
            text = name.removeprefix("regime ")
            look = f'fill="{colour}"' + (' font-weight="bold"' if colour == _REGIME else "")
            near = min(page.place(text, _around(z, text), look, 11), key=lambda end: (abs(end - z), end.real, end.imag))
            if abs(near - z) > 22:
                line = f'<path d="M {z.real:.1f} {z.imag:.1f} L {near.real:.1f} {near.imag + 5:.1f}" stroke="{colour}"'
                page.out.append(f'{line} opacity=".6" pointer-events="none"/>')
        for wall in p.walls:
            pieces = [_corners(edge) for edge in p.edges if edge.name == str(wall)]
            page.place(str(wall), [place for a, b in pieces for place in _beside(a, b)], 'font-style="italic"', 11)
        return page

    def choose(self, shape: str, name: str, lines: tuple[str, ...], scaling: Scaling | None = None) -> None:
        """A shape (an open tag) that can be chosen."""
        tag, attributes = shape.split(" ", 1)
        label, tip = ": ".join((name, *lines[:1])), "\n".join((name, *lines, *_listed(_settings(scaling))))
        reach = f'data-choice="{len(self.choices)}" tabindex="0" role="button" aria-label="{escape(label)}"'
        self.out.append(f"<{tag} {reach} {attributes}><title>{escape(tip)}</title></{tag}>")
        self.choices.append((name, lines, scaling))

    def place(self, text: str, places: Iterable[tuple[complex, float]], look: str, size: int) -> list[complex]:
        """Write a text centred at the first place (with an angle) where it is on nothing else, or on least.

        Returns points of it from its start to its end.
        """

        def covers(place: tuple[complex, float]) -> list[complex]:
            half = 0.29 * size * len(text)
            return [place[0] + rect(half * k / 4, place[1]) for k in range(-4, 5)]

        def cost(place: tuple[complex, float]) -> int:
            covered = covers(place)
            near = sum(abs(z - mark) < 0.72 * size for z in covered for mark in self.taken)
            rights, downs = [z.real - _LEFT for z in covered], [z.imag - _TOP for z in covered]
            inside = min(rights) > 3 and max(rights) < _SIDE - 3 and min(downs) > 6 and max(downs) < _SIDE - 6
            return near if inside else near + 99

        z, turn = best = min(places, key=cost)
        covered = covers(best)
        self.taken += [c + complex(x, y) for c in covered for x, y in product((-3, 3), repeat=2)]
        rotate = f' transform="rotate({degrees(turn):.1f} {z.real:.1f} {z.imag:.1f})"' if turn else ""
        halo = 'text-anchor="middle" dominant-baseline="central" paint-order="stroke" stroke="#fff" stroke-width="3"'
        where = f'x="{z.real:.1f}" y="{z.imag:.1f}" font-size="{size}"{rotate}'
        self.out.append(f'<text {where} {halo} stroke-opacity=".7" pointer-events="none" {look}>{escape(text)}</text>')
        return covered


def _screen(x: float, y: float) -> complex:
    scale = _SIDE / float(SIDE)
    return complex(_LEFT + x * scale, _TOP + _SIDE - y * scale)


def _corners(cell: MapCell) -> list[complex]:
    return [_screen(float(x), float(y)) for x, y in cell.corners]


def _fill(cell: MapCell) -> str:
    return "#fff" if cell.scaling is None else _FILL[(ord(cell.name) - ord("A")) % len(_FILL)]


def _kind(p: Phases, edge: MapCell) -> str:
    if edge.scaling is None:
        return "none"
    sides = [cell for cell in p.cells if set(edge.corners) <= set(cell.corners)]
    return "beside" if any(cell.scaling is not None for cell in sides) else "only"


def _around(at: complex, text: str) -> list[tuple[complex, float]]:
    """Places for the name of a point: right, left, above, below, and further away."""
    half = 0.29 * 11 * len(text)
    near = [(1, 0), (-1, 0), (1, -0.7), (-1, -0.7), (1, -1), (-1, -1), (0, -1), (0, 1), (1, 1), (-1, 1)]
    spots = [(11, *side) for side in near] + [(far, u, v) for far in (11, 28) for v in (-1, -2, -3) for u in (1, -1)]
    return [(at + complex(u * (half + far), v * 14), 0.0) for far, u, v in spots]


def _beside(a: complex, b: complex) -> list[tuple[complex, float]]:
    """Places for the equation of a wall: along it, on either side."""
    turn = phase(b - a)
    turn = turn if abs(turn) <= 1.6 else turn + pi
    shares = [(share, side) for share in (0.5, 0.35, 0.65, 0.2, 0.8) for side in (-11, 11)]
    return [(a + share * (b - a) + rect(side, turn + pi / 2), turn) for share, side in shares]


def _axes(p: Phases) -> list[str]:
    labels = []
    for k in range(int(SIDE) * 2 + 1):
        below, left = _screen(k / 2, 0.0), _screen(0.0, k / 2)
        labels.append(f'<text x="{below.real:.1f}" y="{below.imag + 16:.1f}" text-anchor="middle">{k / 2:g}</text>')
        labels.append(f'<text x="{left.real - 11:.1f}" y="{left.imag + 4:.1f}" text-anchor="end">{k / 2:g}</text>')
    x, y = _LEFT + _SIDE / 2, _TOP + _SIDE / 2
    labels.append(f'<text x="{x}" y="{_TOP + _SIDE + 34}" text-anchor="middle">rate of {p.plane[0]}</text>')
    turn = f'text-anchor="middle" transform="rotate(-90 12 {y})"'
    return [*labels, f'<text x="12" y="{y}" {turn}>rate of {p.plane[1]}</text>']


def _marks(p: Phases) -> list[tuple[str, str, complex, tuple[str, ...]]]:
    """Regimes and model families that lie in the picture: colour, name, place, what is said about them."""
    marks: list[tuple[str, str, complex, tuple[str, ...]]] = []
    for name, ray in REGIMES.items():
        at = p.point(ray)
        if at is not None:
            walls = ", ".join(str(wall) for wall in p.walls_of(ray)) or "no wall"
            marks.append((_REGIME, f"regime {name}", _screen(*map(float, at)), (f"on {walls}",)))
    for f in (f for f in families() if f.rates and f.rates[p.third]):
        x, y = (f.rates[axis] / f.rates[p.third] for axis in p.plane)
        if 0 <= x <= SIDE and 0 <= y <= SIDE:
            shown = ", ".join(f"{axis} {f.rates[axis]:.2f}" for axis in PLANE_AXES)
            marks.append((_FAMILY, f.name, _screen(x, y), (f"estimated rates {shown}", f.source)))
    return marks


def _settings(s: Scaling | None) -> dict[tuple[str, str], str]:
    """The power of every setting (init std, learning rate, epsilon if there is one) of every tensor."""
    tensors = s.tensors.items() if s else ()
    powers = {("init std", role): "0" if t.init_std is None else str(t.init_std) for role, t in tensors}
    powers |= {("lr", role): str(t.lr) for role, t in tensors}
    return powers | {("eps", role): str(t.eps) for role, t in tensors if t.eps is not None}


def _listed(settings: dict[tuple[str, str], str]) -> list[str]:
    """``init std: router N^(-1/2), ...`` and so on."""
    groups = groupby(settings.items(), key=lambda x: x[0][0])
    return [f"{what}: " + ", ".join(f"{role} {power}" for (_, role), power in each) for what, each in groups]


def _legend(p: Phases) -> tuple[list[str], int]:
    """The lines of the legend from y = 0, and its height."""
    settings = [_settings(cell.scaling) for cell in p.cells if cell.scaling is not None]
    differ = {key for each in settings for key in each if len({cell.get(key) for cell in settings}) > 1}
    who = p.parameterization.title
    entries: dict[str, list[str]] = {}  # what is shown, and the lines beside it
    for cell in p.cells:
        swatch = f'<rect x="2" y="-6" width="26" height="12" fill="{_fill(cell)}" stroke="#999"/>'
        text = f"{cell.name}: {', '.join(cell.inequalities)}" if cell.scaling else f"none: no {who} found inside"
        differing = {key: x for key, x in _settings(cell.scaling).items() if key in differ}
        entries.setdefault(swatch, [text, *wrap("; ".join(_listed(differing)), 56)])
    kinds = {_kind(p, edge) for edge in p.edges}
    for look, text in (x for kind, x in _WALLS.items() if kind in kinds):
        entries[f'<line x1="2" y1="0" x2="28" y2="0" {look}/>'] = [text.format(who)]
    colours = {colour for colour, *_ in _marks(p)}
    if _REGIME in colours:
        entries[f'<circle cx="15" cy="0" r="6" fill="{_REGIME}"/>'] = ["regime of the MSSP paper"]
    if _FAMILY in colours:
        mark = f'<path d="M 15 -6 l 6 11 l -12 0 z" fill="{_FAMILY}"/>'
        entries[mark] = ["model family, estimated from its members' shapes"]
    out: list[str] = []
    y = -9
    for swatch, lines in entries.items():
        for k, text in enumerate(lines):
            y += 15 if k else 20
            shown = "" if k else swatch
            out.append(f'<g transform="translate(4 {y})">{shown}<text x="36" y="4">{escape(text)}</text></g>')
    return out, y + 12
