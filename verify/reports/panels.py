"""Small pictures with many curves, as SVG: a report has dozens, so that each takes a millisecond."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from xml.sax.saxutils import escape

from scaling_algebra.documents.pictures import headless

with headless():
    import matplotlib
    from matplotlib.colors import to_hex
    from matplotlib.ticker import MaxNLocator

Spot = tuple[float, float]

_WIDTH, _LEFT, _RIGHT, _TOP, _BELOW = 340, 33, 205, 20, 30
"""Points: the picture, the sides of the area with curves, and what is kept free above and below it."""
_LINE = 12
"""Points from one line of the legend to the next."""
_LEAST = 166
"""Points of the lowest picture."""


@dataclass(frozen=True)
class Curve:
    """Measured points (x, y, low, high) with the ends of an interval, and predicted points (x, y)."""

    label: str
    measured: Sequence[tuple[float, float, float, float]]
    predicted: Sequence[Spot]


def panel(title: str, along: str, curves: Sequence[Curve], crosses: bool = False, whole: bool = False) -> str:
    """SVG: curves with their intervals, the legend at the right.

    Args:
        along: what the horizontal axis shows.
        crosses: predictions are crosses; else dashed lines.
        whole: the vertical axis ends a quarter beyond whole numbers.
    """
    height = max(_LEAST, 36 + _LINE * len(curves))
    measured = [p for c in curves for p in c.measured if math.isfinite(p[1])]
    predicted = [p for c in curves for p in c.predicted]
    x = _Axis([p[0] for p in (*measured, *predicted)], _LEFT, _RIGHT)
    y = _Axis([*chain(*(p[1:] for p in measured)), *(p[1] for p in predicted)], height - _BELOW, _TOP, whole)
    out = [f'<text x="{(_LEFT + _RIGHT) / 2}" y="14" text-anchor="middle" font-size="10">{escape(title)}</text>']
    out += [f'<text x="{(_LEFT + _RIGHT) / 2}" y="{height - 4}" text-anchor="middle">{escape(along)}</text>']
    for t in x.ticks:
        out.append(f'<path d="M{x(t)} {_TOP}V{height - _BELOW}" stroke="#bbb" stroke-width=".3"/>')
        out.append(f'<text x="{x(t)}" y="{height - _BELOW + 11}" text-anchor="middle">{t:g}</text>')
    for t in y.ticks:
        out.append(f'<path d="M{_LEFT} {y(t)}H{_RIGHT}" stroke="#bbb" stroke-width=".3"/>')
        out.append(f'<text x="{_LEFT - 4}" y="{y(t) + 3:.2f}" text-anchor="end">{_minus(t)}</text>')
    for k, (curve, colour) in enumerate(zip(curves, _colours(len(curves)), strict=True)):
        out.append(f'<g stroke="{colour}" fill="none">{"".join(_drawn(curve, x, y, crosses))}</g>')
        middle = _TOP + 6 + _LINE * k
        out.append(f'<path d="M{_RIGHT + 6} {middle}h10" stroke="{colour}"/>')
        out.append(f'<text x="{_RIGHT + 20}" y="{middle + 3}">{escape(curve.label)}</text>')
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{_RIGHT - _LEFT}" height="{height - _BELOW - _TOP}" {_FRAME}/>'
    where = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join([f'<svg {where} font-family="system-ui, sans-serif" font-size="9">', *out, frame, "</svg>"])


_FRAME = 'fill="none" stroke="black" stroke-width=".6"'


class _Axis:
    """From numbers to points of the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float, whole: bool = False) -> None:
        finite = [v for v in values if math.isfinite(v)] or [0.0]
        low, high = min(finite), max(finite)
        if whole:
            low, high = math.floor(low) - 0.25, math.ceil(high) + 0.25
        margin = 0.05 * (high - low) if not whole else 0.0
        self.low, self.high = (low - margin, high + margin) if high > low else (low - 0.5, high + 0.5)
        self.start, self.end = start, end
        near = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        self.ticks = [float(t) for t in near if self.low <= t <= self.high]

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def _drawn(curve: Curve, x: _Axis, y: _Axis, crosses: bool) -> list[str]:
    measured = [(x(a), y(b), y(low), y(high)) for a, b, low, high in curve.measured if math.isfinite(b)]
    predicted = [(x(a), y(b)) for a, b in curve.predicted]
    bars = "".join(f"M{a} {low}V{high}" for a, _, low, high in measured)
    dots = "".join(f"M{a} {b}h0" for a, b, *_ in measured)
    line = "M" + "L".join(f"{a} {b}" for a, b, *_ in measured) if measured else ""
    paths = [f'<path d="{line}{bars}"/><path d="{dots}" stroke-width="4" stroke-linecap="round"/>']
    if crosses:
        return [*paths, f'<path d="{"".join(f"M{a - 2.5:.2f} {b - 2.5:.2f}l5 5m-5 0l5 -5" for a, b in predicted)}"/>']
    dashed = "M" + "L".join(f"{a} {b}" for a, b in predicted) if predicted else ""
    return [*paths, f'<path d="{dashed}" stroke-width=".8" stroke-dasharray="3 1.5"/>']


def _colours(count: int) -> list[str]:
    wheel = matplotlib.colormaps["tab10" if count <= 10 else "tab20"]
    return [to_hex(wheel(k % wheel.N)) for k in range(count)]


def _minus(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")
