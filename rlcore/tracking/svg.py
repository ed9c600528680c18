"""Line and bar charts as SVG text: no scripts, no fonts, readable on light and dark ground.

Colours are CSS variables (--series-1 … --series-10, --ink, --grid), which a page may set, with fallbacks that stand
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#7c8798", "#06b6d4", "#ec4899", "#84cc16", "#a16245", "#6d7fd6")
LEFT, RIGHT, BOTTOM, TOP = 44.0, 12.0, 24.0, 8.0
FONT_SIZE = 11
LEGEND_LINE = 16.0
CHARACTER = 6.2
"""Width of a character of the legend, about."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: y over x, with an interval around it or none."""

    label: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = field(default=())
    """Low and high end at each point."""


@dataclass(frozen=True, slots=True)
class Frame:
    """From numbers to places in a drawing of width × height."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: float

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - BOTTOM - self.top)


def line_chart(
    series: Sequence[Series],
    *,
    width: float = 330,
    height: float = 190,
    y_range: tuple[float, float] | None = None,
    name: str,
) -> str:
    """Lines over the iterations, a legend if there are several, a tooltip at every point.

    Args:
        y_range: of the vertical axis; None: the numbers' own.
        name: what the chart shows, for those who cannot see it.
    """
    xs = [x for line in series for x, _ in line.points]
    if not xs:
        return ""
    ys = [y for line in series for _, y in line.points] + [end for line in series for ends in line.band for end in ends]
    labels = [line.label for line in series] if len(series) > 1 else []
    legend, top = _legend(labels, width)
    frame = Frame(width, height, _widened(min(xs), max(xs), 0), y_range or _widened(min(ys), max(ys), 0.08), top)
    parts = [*_axes(frame), legend]
    parts += [_line(frame, line, index) for index, line in enumerate(series)]
    return _svg(width, height, name, parts)


def stacked_bars(
    bars: Sequence[tuple[float, Sequence[float]]],
    labels: Sequence[str],
    *,
    width: float = 900,
    height: float = 270,
    name: str,
) -> str:
    """One bar per x, its parts stacked in the order of the labels."""
    if not bars:
        return ""
    xs = [x for x, _ in bars]
    legend, top = _legend(labels, width)
    highest = max(sum(parts) for _, parts in bars) or 1.0
    frame = Frame(width, height, (min(xs) - 0.6, max(xs) + 0.6), (0.0, highest * 1.05), top)
    thickness = 0.75 * (frame.x(1) - frame.x(0))
    drawn = [*_axes(frame), legend]
    for x, values in bars:
        below = 0.0
        for index, value in enumerate(values):
            upper, lower = frame.y(below + value), frame.y(below)
            drawn.append(
                f'<rect x="{frame.x(x) - thickness / 2:.1f}" y="{upper:.1f}" width="{thickness:.1f}" '
                f'height="{max(lower - upper, 0):.1f}" style="fill:{_colour(index)}">'
                f"<title>{escape(labels[index])}, iteration {x:g}: {value:.2f}</title></rect>"
            )
            below += value
    return _svg(width, height, name, drawn)


def spans_chart(
    lanes: Mapping[str, Sequence[tuple[float, float, str]]], *, width: float = 900, row: float = 22, name: str
) -> str:
    """One row per lane, and a bar wherever something was done in it, over a common time from 0 on.

    Args:
        lanes: by label, starts and ends in seconds, and what was done.
        row: height of one.
    """
    spans = [span for lane in lanes.values() for span in lane]
    if not spans:
        return ""
    legend, top = _legend([*lanes], width)
    height = top + row * len(lanes) + BOTTOM
    frame = Frame(width, height, (0.0, max(end for _, end, _ in spans)), (0.0, 1.0), top)
    drawn = [legend, *_time_axis(frame)]
    for index, lane in enumerate(lanes.values()):
        for start, end, what in lane:
            drawn.append(
                f'<rect x="{frame.x(start):.1f}" width="{max(frame.x(end) - frame.x(start), 0.5):.1f}" '
                f'y="{top + index * row + 3:.1f}" height="{row - 6:.1f}" rx="2" style="fill:{_colour(index)}">'
                f"<title>{escape(what)}: {start:.1f} to {end:.1f} s</title></rect>"
            )
    return _svg(width, height, name, drawn)


def _line(frame: Frame, series: Series, index: int) -> str:
    colour = _colour(index)
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    parts = []
    if series.band:
        highs = [(x, frame.y(high)) for (x, _), (_, high) in zip(places, series.band, strict=True)]
        lows = [(x, frame.y(low)) for (x, _), (low, _) in zip(places, series.band, strict=True)]
        parts.append(f'<polygon points="{_joined(highs + lows[::-1])}" style="fill:{colour};opacity:0.18"/>')
    parts.append(
        f'<polyline points="{_joined(places)}" style="fill:none;stroke:{colour};stroke-width:2;stroke-linejoin:round"/>'
    )
    # Points are for the pointer; they are drawn where they are few enough to be told apart.
    radius = 2.6 if len(places) <= 40 else 1.2
    for position, ((x, y), (left, height)) in enumerate(zip(series.points, places, strict=True)):
        interval = f" ({series.band[position][0]:.3g} to {series.band[position][1]:.3g})" if series.band else ""
        parts.append(
            f'<circle cx="{left:.1f}" cy="{height:.1f}" r="{radius}" style="fill:{colour}">'
            f"<title>{escape(series.label)}, iteration {x:g}: {y:.4g}{interval}</title></circle>"
        )
    return "".join(parts)


def _axes(frame: Frame) -> list[str]:
    parts = []
    for tick in ticks(*frame.y_range, 5):
        y = frame.y(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'style="stroke:var(--grid,#94a3b855);stroke-width:1"/>' + _text(f"{tick:g}", LEFT - 6, y + 4, "end")
        )
    for tick in ticks(*frame.x_range, 8):
        if tick == int(tick):
            parts.append(_text(f"{tick:.0f}", frame.x(tick), frame.height - 7, "middle"))
    return parts


def _time_axis(frame: Frame) -> list[str]:
    parts, bottom = [], frame.height - BOTTOM
    for tick in ticks(*frame.x_range, 10):
        x = frame.x(tick)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top:.1f}" y2="{bottom:.1f}" '
            'style="stroke:var(--grid,#94a3b855);stroke-width:1"/>'
            + _text(f"{tick:g} s", x, frame.height - 7, "middle")
        )
    return parts


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most so many round numbers from low to high, a step of 1, 2, 2.5 or 5 times a power of ten apart."""
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    return [
        round(number * step, 12) for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _legend(labels: Sequence[str], width: float) -> tuple[str, float]:
    """The legend, wrapped, and where the drawing below it begins."""
    parts, x, y = [], LEFT, TOP + 4.0
    for index, label in enumerate(labels):
        needed = 16 + CHARACTER * len(label) + 12
        if x > LEFT and x + needed > width:
            x, y = LEFT, y + LEGEND_LINE
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 4:.1f}" width="10" height="10" rx="2" style="fill:{_colour(index)}"/>'
            + _text(label, x + 15, y + 5, "start")
        )
        x += needed
    return "".join(parts), y + LEGEND_LINE if labels else TOP


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{FONT_SIZE}" '
        f'style="fill:var(--ink,#808a99)">{escape(text)}</text>'
    )


def _svg(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(name)}" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    """The range with some of its width added at both ends; never empty."""
    if high == low:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    return low - share * (high - low), high + share * (high - low)


def _joined(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _colour(index: int) -> str:
    number = index % len(COLOURS)
    return f"var(--series-{number + 1},{COLOURS[number]})"
