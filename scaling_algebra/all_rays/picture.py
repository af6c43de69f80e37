"""Draws the map of rays as SVG. A cell, a wall or a point displays its formulas under the pointer."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.scaling import Scaling

from .families import load_families
from .phases import PLANE, PLANE_AXES, SIDE, MapCell, Phases, Point2
from .presentation import describe_span, describe_status

_SIDE, _LEFT, _TOP, _WIDTH, _HEIGHT = 340, 44, 34, 400, 414
_FILL = ("#dbe9f6", "#e5f5e0", "#fee6ce", "#efedf5", "#fde0dd", "#f0f0f0", "#fff7bc", "#e0f3f8")
_WALLS = {
    "beside": ('stroke="#222" stroke-width="2.5"', "{} exists on this wall and on both sides of it"),
    "only": ('stroke="#1b7837" stroke-width="5"', "{} exists on this wall, but on neither side of it"),
    "none": ('stroke="#777" stroke-width="1.5" stroke-dasharray="5 4"', "no {} was found on this wall"),
}
"""Stroke of each kind of wall, with its line in the legend."""
_REGIME, _FAMILY = "#b2182b", "#2166ac"
FRAME = {"left": _LEFT, "top": _TOP, "side": _SIDE, "most": int(SIDE)}
"""Position of the plane in the picture: its upper left corner and the length of its side, for rates from 0 to
``most``."""


def phases_svg(p: Phases) -> str:
    """Draws the map with its title and a legend below it."""
    title = f'<text x="{_LEFT}" y="20" font-size="13">{escape(p.about)}</text>'
    legend = _draw_legend(p)
    return _wrap_svg(p.about, [title, *_draw_map(p), *legend], _HEIGHT + 20 * len(legend))


def phases_map(p: Phases) -> str:
    """Draws the map without title and legend, for a page that draws more into it (at the position ``FRAME``)."""
    return _wrap_svg(p.about, _draw_map(p), _HEIGHT, _TOP - 10)


# inside ------------------------------------------------------------------------------------------------------------


def _wrap_svg(label: str, inside: Iterable[str], height: int, top: int = 0) -> str:
    """Wraps drawn elements into an SVG document."""
    look = 'font-family="system-ui, sans-serif" font-size="12"'
    where = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {_WIDTH} {height - top}"'
    return "\n".join([f'<svg {where} {look} aria-label="{escape(label)}">', *inside, "</svg>"])


def _draw_map(p: Phases) -> list[str]:
    """Draws cells, walls, axes, regimes and families, in this order."""
    out = []
    for cell in p.cells:
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_to_screen, cell.corners))
        about = ", ".join(cell.inequalities), describe_status(cell), *_list_settings(cell.scaling)
        out.append(_draw_shape(f'polygon points="{corners}" fill="{_choose_fill(cell)}"', cell.title, about))
        x, y = (sum(c) / len(cell.corners) for c in zip(*map(_to_screen, cell.corners), strict=True))
        out.append(_draw_text(x, y, cell.name if cell.scaling else "none", 'text-anchor="middle" font-size="16"'))
    for edge in p.edges:
        (x1, y1), (x2, y2) = map(_to_screen, edge.corners)
        line = f'line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        about = describe_span(edge), describe_status(edge), *_list_settings(edge.scaling)
        out += [f"<{line} {_WALLS[_classify_edge(p, edge)][0]}/>"]
        out += [_draw_shape(f'{line} stroke="transparent" stroke-width="16"', edge.title, about)]
    return [*out, *_draw_axes(), *_draw_marks(p)]


def _draw_shape(tag: str, name: str, lines: Iterable[str]) -> str:
    """Completes an SVG shape from its opening tag. It gets keyboard focus and a tooltip with name and description."""
    said = (name, *lines)
    reach = f'data-choice="" tabindex="0" role="button" aria-label="{escape(": ".join(said[:2]))}"'
    return f"<{tag} {reach}><title>{escape(chr(10).join(said))}</title></{tag.partition(' ')[0]}>"


def _draw_text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" pointer-events="none" {look}>{escape(text)}</text>'


def _to_screen(point: Point2 | tuple[float, float]) -> tuple[float, float]:
    """Converts a point of the plane to picture coordinates."""
    scale = _SIDE / float(SIDE)
    return _LEFT + float(point[0]) * scale, _TOP + _SIDE - float(point[1]) * scale


def _choose_fill(cell: MapCell) -> str:
    """Returns the colour of a cell, by its name."""
    return "#fff" if cell.scaling is None else _FILL[(ord(cell.name) - ord("A")) % len(_FILL)]


def _classify_edge(p: Phases, edge: MapCell) -> str:
    """Returns the kind of a piece of a wall, which is a key of ``_WALLS`` and decides how it is drawn."""
    if edge.scaling is None:
        return "none"
    sides = [cell for cell in p.cells if set(edge.corners) <= set(cell.corners)]
    return "beside" if any(cell.scaling is not None for cell in sides) else "only"


def _draw_axes() -> list[str]:
    middle, (x, y) = 'text-anchor="middle"', (_LEFT + _SIDE / 2, _TOP + _SIDE / 2)
    out = [f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>']
    for k in range(int(SIDE) * 2 + 1):
        out.append(_draw_text(_to_screen((k / 2, 0))[0], _TOP + _SIDE + 16, f"{k / 2:g}", middle))
        out.append(_draw_text(_LEFT - 11, _to_screen((0, k / 2))[1] + 4, f"{k / 2:g}", 'text-anchor="end"'))
    out.append(_draw_text(x, _TOP + _SIDE + 34, "rate of N_e", middle))
    return [*out, _draw_text(12, y, "rate of M", f'{middle} transform="rotate(-90 12 {y})"')]


def _draw_marks(p: Phases) -> list[str]:
    """Draws a labelled mark for every regime, and for every model family whose ray lies inside the picture."""
    out = []
    for name, ray in REGIMES.items():
        if (at := p.point(ray)) is not None:
            x, y = _to_screen(at)
            walls = ", ".join(str(wall) for wall in p.walls_of(ray)) or "no wall"
            circle = f'circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{_REGIME}" stroke="#fff"'
            out += [
                _draw_shape(circle, f"regime {name}", [f"on {walls}"]),
                _draw_text(x + 9, y - 9, name, f'fill="{_REGIME}"'),
            ]
    for f in (f for f in load_families() if f.rates):
        rates = [f.rates[axis] for axis in PLANE]
        if min(rates) >= 0 and max(rates) <= SIDE:
            x, y = _to_screen((rates[0], rates[1]))
            path = f'path d="M {x:.1f} {y - 6:.1f} l 5 9 l -10 0 z" fill="{_FAMILY}" stroke="#fff"'
            shown = ", ".join(f"{axis} {f.rates[axis]:.2f}" for axis in PLANE_AXES)
            out.append(_draw_shape(path, f.name, [f"estimated rates {shown}", f.source]))
    return out


def _list_settings(s: Scaling | None) -> list[str]:
    """Lists the powers of a formula as ``init std: router N^(-1/2), ...``, then learning rates, then epsilons if
    there are any."""
    columns: dict[str, list[str]] = {"init std": [], "lr": [], "eps": []}
    for role, t in s.tensors.items() if s else ():
        columns["init std"].append(f"{role} {0 if t.init_std is None else t.init_std}")
        columns["lr"].append(f"{role} {t.lr}")
        columns["eps"] += [f"{role} {t.eps}"] if t.eps is not None else []
    return [f"{name}: {', '.join(values)}" for name, values in columns.items() if values]


def _draw_legend(p: Phases) -> list[str]:
    """Draws a line of the legend for every formula, kind of wall and kind of mark that occurs."""
    who, kinds = p.parameterization.title, {_classify_edge(p, edge) for edge in p.edges}
    lines: list[tuple[str, str]] = []
    for cell in p.cells:
        swatch = f'<rect x="2" y="-6" width="26" height="12" fill="{_choose_fill(cell)}" stroke="#999"/>'
        text = (
            (f"{cell.name}: {', '.join(cell.inequalities)}")
            if cell.scaling
            else f"none: no {who} was found inside this cell"
        )
        lines += [] if any(swatch == shown for shown, _ in lines) else [(swatch, text)]
    for look, text in (x for kind, x in _WALLS.items() if kind in kinds):
        lines.append((f'<line x1="2" y1="0" x2="28" y2="0" {look}/>', text.format(who)))
    lines.append((f'<circle cx="15" cy="0" r="6" fill="{_REGIME}"/>', "regime of the MSSP paper"))
    mark = f'<path d="M 15 -6 l 6 11 l -12 0 z" fill="{_FAMILY}"/>'
    lines.append((mark, "model family; rates estimated from the shapes of its members"))
    places = (f"translate(4 {_HEIGHT + 11 + 20 * k})" for k in range(len(lines)))
    return [
        f'<g transform="{at}">{x}<text x="36" y="4">{escape(text)}</text></g>'
        for at, (x, text) in zip(places, lines, strict=True)
    ]
