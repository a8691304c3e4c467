"""A line chart as SVG, by hand: a logarithmic x axis, a y axis from nought, a legend, a title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log, log10

WIDTH, HEIGHT = 860, 500
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 70, 60
# Told apart by people who see colours differently, too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #333 }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 12px; fill: #666 }
.grid { stroke: #e3e3e3 } .axis { stroke: #888 } .line { fill: none; stroke-width: 2.2 }
.reference { stroke: #555; stroke-width: 1.5; stroke-dasharray: 6 4 }
"""


@dataclass(frozen=True, slots=True)
class Labels:
    title: str
    subtitle: str
    x: str
    y: str
    legend: str


def line_chart(labels: Labels, series: Mapping[str, Mapping[float, float]], references: Mapping[str, float]) -> str:
    """`series` gives y over x by name; `references` are dashed lines across."""
    ticks = sorted({x for line in series.values() for x in line})
    highest = max([y for line in series.values() for y in line.values()] + list(references.values()))
    plane = Plane(ticks[0], ticks[-1], highest * 1.08)
    parts = [*_frame(labels, plane, ticks), *_lines(series, plane), *_references(references, plane)]
    parts += _legend(labels.legend, list(series), list(references))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    name = f"<title>{escape(labels.title)}</title><style>{STYLE}</style>"
    return "\n".join([head, name, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class Plane:
    """From values to places on the page."""

    first: float
    last: float
    top: float

    def x(self, value: float) -> float:
        share = log(value / self.first) / log(self.last / self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)


def _step(top: float) -> float:
    """A round distance that gives four to eight lines."""
    size = 10 ** floor(log10(top))
    return next(step for step in (size / 5, size / 2, size, size * 2) if top / step <= 8)


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "", more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}"{more}>{escape(words)}</text>'


def _frame(labels: Labels, plane: Plane, ticks: Sequence[float]) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [_text(LEFT, 28, labels.title, kind="title"), _text(LEFT, 48, labels.subtitle, kind="small")]
    step = _step(plane.top)
    for count in range(int(plane.top / step) + 1):
        y = plane.y(count * step)
        parts.append(f'<path class="{"grid" if count else "axis"}" d="M{LEFT} {y}H{right}"/>')
        parts.append(_text(LEFT - 10, y + 4, f"{count * step:,.0f}", "end"))
    for tick in ticks:
        parts.append(f'<path class="axis" d="M{plane.x(tick)} {bottom}v5"/>')
        parts.append(_text(plane.x(tick), bottom + 21, f"{tick:g}", "middle"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 14, labels.x, "middle"))
    turned = f' transform="rotate(-90 20 {(TOP + bottom) / 2})"'
    return [*parts, _text(20, (TOP + bottom) / 2, labels.y, "middle", more=turned)]


def _references(references: Mapping[str, float], plane: Plane) -> list[str]:
    right = WIDTH - RIGHT
    return [f'<path class="reference" d="M{LEFT} {plane.y(y)}H{right}"/>' for y in references.values()]


def _lines(series: Mapping[str, Mapping[float, float]], plane: Plane) -> list[str]:
    parts = []
    for line, colour in zip(series.values(), COLOURS, strict=False):
        points = [(plane.x(x), plane.y(y)) for x, y in sorted(line.items())]
        path = "L".join(f"{x} {y}" for x, y in points)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points]
    return parts


def _legend(title: str, series: Sequence[str], references: Sequence[str]) -> list[str]:
    left = WIDTH - RIGHT + 24
    styles = [f'class="line" stroke="{colour}"' for colour in COLOURS[: len(series)]]
    styles += ['class="reference"'] * len(references)
    parts = [_text(left, TOP + 4, title, kind="small")]
    for place, (name, style) in enumerate(zip([*series, *references], styles, strict=True)):
        y = TOP + 26 + place * 22
        parts += [f'<path {style} d="M{left} {y - 4}h22"/>', _text(left + 30, y, name)]
    return parts
