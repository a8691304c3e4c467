"""Charts as SVG, by hand, with a legend and a title: lines over a logarithmic axis, and points
above a straight one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log, log10

WIDTH, HEIGHT = 860, 500
LEFT, RIGHT, TOP, BOTTOM = 80, 180, 70, 60
# Told apart by people who see colours differently, too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #333 }
.title { font-size: 17px; font-weight: 600 } .small { font-size: 12px; fill: #666 }
.grid { stroke: #e3e3e3 } .axis { stroke: #888 } .line { fill: none; stroke-width: 2.2 }
.reference { stroke: #555; stroke-width: 1.5; stroke-dasharray: 6 4 }
.mark { stroke: #999; stroke-dasharray: 2 3 }
"""


@dataclass(frozen=True, slots=True)
class Labels:
    title: str
    subtitle: str
    x: str
    y: str
    legend: str


Points = Sequence[tuple[float, float]]


def line_chart(
    labels: Labels, series: Mapping[str, Mapping[float, float]], references: Mapping[str, float]
) -> str:
    """`series` gives y over x by name; `references` are dashed lines across."""
    ticks = sorted({x for line in series.values() for x in line})
    highest = max(
        [y for line in series.values() for y in line.values()] + list(references.values())
    )
    plane = Plane(ticks[0], ticks[-1], highest * 1.08)
    parts = [*_frame(labels, plane, ticks), *_lines(series, plane), *_references(references, plane)]
    return _page(labels, parts, [_LINE] * len(series), [*series, *references])


def point_chart(
    labels: Labels,
    points: Mapping[str, Points],
    curves: Mapping[str, Points],
    references: Mapping[str, float],
    marks: Mapping[str, float] | None = None,
) -> str:
    """Points and curves over a straight x axis from nought, against a logarithmic y axis; curves
    may leave below.

    `marks` are moments: lines from top to bottom, with their names.
    """
    dots = [place for some in points.values() for place in some]
    places = dots + [place for curve in curves.values() for place in curve]
    lowest = min([y for _, y in dots if y > 0] + list(references.values()))
    highest = max([y for _, y in places] + list(references.values()))
    step = _step(last := max(x for x, _ in places))
    plane = Plane(
        0,
        ceil(last / step) * step,
        10.0 ** ceil(log10(highest)),
        10.0 ** floor(log10(lowest)),
        True,
    )
    ticks = [step * n for n in range(int(plane.last / step) + 1)]
    parts = [
        *_frame(labels, plane, ticks),
        *_dots(points, plane),
        *_curves(curves, plane, len(points)),
    ]
    styles = [_DOT] * len(points) + [_LINE] * len(curves)
    parts += [*_references(references, plane), *_marks(marks or {}, plane)]
    return _page(labels, parts, styles, [*points, *curves, *references])


def _page(
    labels: Labels,
    parts: Sequence[str],
    styles: Sequence[str],
    names: Sequence[str],
) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    name = f"<title>{escape(labels.title)}</title><style>{STYLE}</style>"
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return "\n".join(
        [head, name, ground, *parts, *_legend(labels.legend, styles, names), "</svg>", ""]
    )


@dataclass(frozen=True, slots=True)
class Plane:
    """From values to places on the page. With `low` the y axis is logarithmic from there, else it
    starts at nought.
    """

    first: float
    last: float
    top: float
    low: float = 0
    straight: bool = False  # the x axis is not logarithmic

    def x(self, value: float) -> float:
        if self.straight:
            share = (value - self.first) / (self.last - self.first)
        else:
            share = log(value / self.first) / log(self.last / self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (
            log(max(value, self.low) / self.low) / log(self.top / self.low)
            if self.low
            else value / self.top
        )
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def heights(self) -> list[float]:
        """Round values for lines across."""
        if self.low:
            return [self.low * 10**n for n in range(round(log10(self.top / self.low)) + 1)]
        step = _step(self.top)
        return [step * n for n in range(int(self.top / step) + 1)]


def _step(top: float) -> float:
    """A round distance that gives four to eight lines."""
    size = 10.0 ** floor(log10(top))
    return next(step for step in (size / 5, size / 2, size, size * 2) if top / step <= 8)


def _text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    kind: str = "",
    more: str = "",
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}"{more}>{escape(words)}</text>'
    )


def _frame(labels: Labels, plane: Plane, ticks: Sequence[float]) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        _text(LEFT, 28, labels.title, kind="title"),
        _text(LEFT, 48, labels.subtitle, kind="small"),
    ]
    for height in plane.heights():
        y = plane.y(height)
        parts.append(f'<path class="{"grid" if y < bottom else "axis"}" d="M{LEFT} {y}H{right}"/>')
        parts.append(
            _text(
                LEFT - 10,
                y + 4,
                f"{height:,.0f}" if height >= 1 or not height else f"{height:g}",
                "end",
            )
        )
    for tick in ticks:
        parts.append(f'<path class="axis" d="M{plane.x(tick)} {bottom}v5"/>')
        parts.append(_text(plane.x(tick), bottom + 21, f"{tick:g}", "middle"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 14, labels.x, "middle"))
    turned = f' transform="rotate(-90 20 {(TOP + bottom) / 2})"'
    return [
        *parts,
        _text(
            20,
            (TOP + bottom) / 2,
            labels.y,
            "middle",
            more=turned,
        ),
    ]


def _references(references: Mapping[str, float], plane: Plane) -> list[str]:
    right = WIDTH - RIGHT
    return [
        f'<path class="reference" d="M{LEFT} {plane.y(y)}H{right}"/>' for y in references.values()
    ]


def _marks(marks: Mapping[str, float], plane: Plane) -> list[str]:
    """Each name a line lower than the one before, so that moments close together stay legible."""
    parts = []
    for place, (name, at) in enumerate(marks.items()):
        x, y = plane.x(at), TOP + 12 + place * 16
        parts.append(f'<path class="mark" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x + 5, y, name, kind="small"))
    return parts


def _lines(series: Mapping[str, Mapping[float, float]], plane: Plane) -> list[str]:
    parts = []
    for line, colour in zip(series.values(), COLOURS, strict=False):
        points = [(plane.x(x), plane.y(y)) for x, y in sorted(line.items())]
        path = "L".join(f"{x} {y}" for x, y in points)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>' for x, y in points]
    return parts


def _dots(points: Mapping[str, Points], plane: Plane) -> list[str]:
    return [
        f'<circle cx="{plane.x(x)}" cy="{plane.y(y)}" r="2.2" fill="{colour}" fill-opacity="0.6"/>'
        for some, colour in zip(points.values(), COLOURS, strict=False)
        for x, y in some
    ]


def _curves(curves: Mapping[str, Points], plane: Plane, skipped: int) -> list[str]:
    parts = []
    for curve, colour in zip(curves.values(), COLOURS[skipped:], strict=False):
        path = "L".join(f"{plane.x(x)} {plane.y(y)}" for x, y in curve)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
    return parts


_LINE = '<path class="line" stroke="{colour}" d="M{left} {y}h22"/>'
_DOT = '<circle cx="{middle}" cy="{y}" r="4" fill="{colour}"/>'
_REFERENCE = '<path class="reference" d="M{left} {y}h22"/>'


def _legend(title: str, styles: Sequence[str], names: Sequence[str]) -> list[str]:
    """What each is; names beyond the styles are references."""
    left = WIDTH - RIGHT + 24
    parts = [_text(left, TOP + 4, title, kind="small")]
    for place, name in enumerate(names):
        y = TOP + 26 + place * 22
        style, colour = (styles[place], COLOURS[place]) if place < len(styles) else (_REFERENCE, "")
        parts += [
            style.format(colour=colour, left=left, middle=left + 11, y=y - 4),
            _text(left + 30, y, name),
        ]
    return parts
