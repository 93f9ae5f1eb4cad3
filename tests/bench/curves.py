"""Curves drawn as SVG, by hand: panels with two logarithmic axes, or of shares, a line for each name, on white."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = ["Panel", "Points", "drawn"]

Points = Sequence[tuple[float, float]]
"""(x, y) of a line."""

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 380, 260, 58, 34, 16, 44
LEGEND = 34
COLOURS = ("#0b62a4", "#d1495b", "#3a8d50", "#8a5fb0", "#b8860b", "#777777")
INK, GRID = "#222222", "#dddddd"


class Panel(NamedTuple):
    """One drawing.

    Attributes:
        title: what is measured.
        across: the horizontal axis.
        up: the vertical axis.
        curves: by name, its points; what is shown is the same name's line in every panel.
        of_shares: whether the vertical axis goes from 0 to 1; both are linear then, the lower one marked at points.
    """

    title: str
    across: str
    up: str
    curves: dict[str, Points]
    of_shares: bool = False


class _Axis(NamedTuple):
    """Where values lie between the ends of an axis, from 0 to 1, and its marks by value."""

    place: Callable[[float], float]
    marks: dict[float, str]


def drawn(panels: Sequence[Panel], columns: int = 2, notes: Sequence[str] = ()) -> str:
    """The panels as one SVG picture, with one legend above.

    Args:
        panels: what to draw; every number is above 0, but for shares.
        columns: panels side by side.
        notes: lines of text, the first a title, which stand where a further panel would.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    width, height = columns * WIDTH, LEGEND + -(-(len(panels) + bool(notes)) // columns) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, name in enumerate(names):
        x = LEFT + 130 * place
        parts.append(_line([(x, 20), (x + 26, 20)], colours[name], 2.5))
        parts.append(_text(x + 32, 24, name))
    for place, panel in enumerate(panels):
        parts.append(
            f'<g transform="translate({place % columns * WIDTH} {LEGEND + place // columns * HEIGHT})">'
            f"{_panel(panel, colours)}</g>"
        )
    left, top = len(panels) % columns * WIDTH + LEFT, LEGEND + len(panels) // columns * HEIGHT + TOP
    for place, note in enumerate(notes):
        parts.append(_text(left, top - 12 + 22 * place, note, weight="normal" if place else "bold"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colours: dict[str, str]) -> str:
    points = [point for curve in panel.curves.values() for point in curve]
    across, up = [x for x, _ in points], [y for _, y in points]
    if panel.of_shares:
        x_axis = _linear(min(across), max(across), {x: f"{x:,.0f}" for x in across})
        y_axis = _linear(0, 1, {share / 5: f"{share / 5:g}" for share in range(6)})
    else:
        x_axis, y_axis = _logarithmic(across), _logarithmic(up)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + inner_width * x_axis.place(x), TOP + inner_height * (1 - y_axis.place(y))

    parts = [_text(LEFT, TOP - 12, panel.title, weight="bold")]
    for value, label in x_axis.marks.items():
        x = LEFT + inner_width * x_axis.place(value)
        parts.append(_line([(x, TOP), (x, TOP + inner_height)], GRID, 1))
        parts.append(_text(x, TOP + inner_height + 16, label, anchor="middle"))
    for value, label in y_axis.marks.items():
        y = TOP + inner_height * (1 - y_axis.place(value))
        parts.append(_line([(LEFT, y), (LEFT + inner_width, y)], GRID, 1))
        parts.append(_text(LEFT - 6, y + 4, label, anchor="end"))
    parts.append(_text(LEFT + inner_width / 2, HEIGHT - 10, panel.across, anchor="middle"))
    parts.append(
        f'<text transform="translate(14 {TOP + inner_height / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.up)}</text>"
    )
    for name, curve in panel.curves.items():
        places = [at(x, y) for x, y in sorted(curve)]
        parts.append(_line(places, colours[name], 2))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"/>' for x, y in places]
    return "".join(parts)


def _logarithmic(values: Sequence[float]) -> _Axis:
    """An axis between the powers of ten that hold all values between them, at least one apart; each is marked."""
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)
    marks = {10.0**exponent: _power(exponent) for exponent in range(low, high + 1)}
    return _Axis(lambda value: (math.log10(value) - low) / (high - low), marks)


def _linear(low: float, high: float, marks: dict[float, str]) -> _Axis:
    return _Axis(lambda value: (value - low) / (high - low), marks)


def _power(exponent: int) -> str:
    for power, unit in ((6, "M"), (3, "k"), (0, "")):
        if 0 <= exponent - power < 3:
            return f"{10 ** (exponent - power)}{unit}"
    return f"{10.0**exponent:g}"


def _line(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
