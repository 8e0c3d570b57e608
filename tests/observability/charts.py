"""Draws what the dashboard's expressions answer over a while, as the status pages draw: SVG with the classes of their style
sheet, which has the shared colour of every state."""

from __future__ import annotations

import dataclasses
import html
import itertools
from collections.abc import Callable, Iterable

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 8, 22
GRID = 4  # parts of the value axis

Series = list[tuple[float, float]]  # seconds since the begin, value


@dataclasses.dataclass
class Frame:
    """A rectangle of time and values."""

    seconds: float
    most: float
    width: int
    height: int
    unit: Callable[[float], str]
    right: int = RIGHT  # of the plot, for names

    def x(self, at: float) -> float:
        return LEFT + at / self.seconds * (self.width - LEFT - self.right)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - value / self.most * (self.height - TOP - BOTTOM)

    def drawn(self, inside: Iterable[str], label: str) -> str:
        """What is inside, with the axes above it."""
        parts = [
            f'<svg class="gantt" role="img" viewBox="0 0 {self.width} {self.height}"><title>{html.escape(label)}</title>',
            *inside,
        ]
        for i in range(GRID + 1):
            value = self.most * i / GRID
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{self.unit(value)}</text>')
        return "\n".join([*parts, *self.times(), "</svg>"])

    def times(self) -> list[str]:
        every = 10 if self.seconds <= 80 else 30
        return [
            f'<text class="tick middle" x="{self.x(at):.1f}" y="{self.height - 6}">{at} s</text>'
            for at in range(0, int(self.seconds) + 1, every)
        ]


def percent(value: float) -> str:
    return f"{value * 100:.0f} %"


def stack(frame: Frame, series: dict[str, Series], order: list[str], label: str, *, whole: bool) -> str:
    """Areas above each other in the order of the states' table; `whole`: each instant is 100 %."""
    times = sorted({at for one in series.values() for at, _ in one})
    below = dict.fromkeys(times, 0.0)
    sums = {at: sum(dict(one).get(at, 0.0) for one in series.values()) for at in times}
    parts = []
    for state in order:
        if state not in series:
            continue
        values = dict(series[state])
        lower, upper = [], []
        for at in times:
            value = values.get(at, 0.0)
            share = value / sums[at] if whole and sums[at] else value
            lower.append(f"{frame.x(at):.1f},{frame.y(below[at]):.1f}")
            below[at] += share
            upper.append(f"{frame.x(at):.1f},{frame.y(below[at]):.1f}")
        points = " ".join(upper + lower[::-1])
        parts.append(f'<polygon class="s-{state}" points="{points}"><title>{state}</title></polygon>')
    return frame.drawn(parts, label)


def lines(frame: Frame, series: dict[str, Series], label: str) -> str:
    """Lines, each with its own dashes, and its name behind its end: colour is not the only sign. Where there is no value for
    a while, there is no line."""
    parts = []
    ends = []
    for index, (name, points) in enumerate(series.items()):
        for piece in pieces(points):
            path = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in piece)
            parts.append(f'<polyline class="line-{index}" points="{path}"/>')
        ends.append((frame.y(points[-1][1]) + 4, index, f"{name} {frame.unit(points[-1][1])}"))
    lowest = float("inf")
    for y, index, text in sorted(ends, reverse=True):
        lowest = min(y, lowest - 15)  # no name above another
        x = frame.width - frame.right + 8
        parts.append(f'<text class="name-{index}" x="{x}" y="{lowest:.1f}">{html.escape(text)}</text>')
    return frame.drawn(parts, label)


def pieces(points: Series) -> list[Series]:
    """Parts without a gap."""
    step = min((b[0] - a[0] for a, b in itertools.pairwise(points)), default=1.0)
    parts: list[Series] = [[]]
    for point in points:
        if parts[-1] and point[0] - parts[-1][-1][0] > 1.5 * step:
            parts.append([])
        parts[-1].append(point)
    return parts


def cells(rows: dict[str, Series], seconds: float, width: int, ink: str, text: Callable[[float], str], label: str) -> str:
    """A row per name, a cell per instant: the fuller, the higher the value, with the value in it. `ink`: a state's class."""
    row_height = 24
    height = TOP + row_height * len(rows) + BOTTOM
    frame = Frame(seconds, 1, width, height, percent)
    most = max((value for points in rows.values() for _, value in points), default=0.0) or 1.0
    parts = [f'<svg class="gantt" role="img" viewBox="0 0 {width} {height}"><title>{html.escape(label)}</title>']
    for index, (name, points) in enumerate(rows.items()):
        y = TOP + row_height * index
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 15}">{html.escape(name)}</text>')
        for (at, value), (after, _) in zip(points, [*points[1:], (seconds, 0.0)], strict=True):
            box = f'x="{frame.x(at):.1f}" y="{y}" width="{frame.x(after) - frame.x(at) - 1:.1f}" height="{row_height - 2}"'
            parts.append(f'<rect class="cell" {box}/>')
            if value > 0:
                parts.append(f'<rect class="s-{ink}" fill-opacity="{0.15 + 0.85 * value / most:.2f}" {box}/>')
                middle = (frame.x(at) + frame.x(after) - 1) / 2
                shade = "dark" if value / most < 0.8 else "light"
                parts.append(f'<text class="on-bar {shade}" x="{middle:.1f}" y="{y + 15}">{text(value)}</text>')
    return "\n".join([*parts, *frame.times(), "</svg>"])


def legend(states: Iterable[str]) -> str:
    items = "".join(f'<li><span class="swatch s-{state}"></span>{state}</li>' for state in states)
    return f'<ul class="legend">{items}</ul>'


STYLE = """
body { width: 1160px; padding: 20px 20px 4px; }
section { margin: 0 0 16px; }
.several { display: grid; grid-template-columns: 1fr 1fr; gap: 6px 24px; }
section h3 { font-size: 13px; margin: 0 0 2px; color: var(--soft); }
.gantt { min-width: 0; }
.gantt .end { text-anchor: end; } .gantt .middle { text-anchor: middle; }
.gantt polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
.gantt .line-0 { stroke: var(--accent); } .gantt .line-1 { stroke: var(--soft); stroke-dasharray: 7 4; }
.gantt .line-2 { stroke: var(--ideal); stroke-dasharray: 2 3; }
.gantt .name-0 { fill: var(--accent); font-weight: 600; } .gantt .name-1 { fill: var(--soft); font-weight: 600; }
.gantt .name-2 { fill: var(--ideal); font-weight: 600; }
.gantt .cell { fill: var(--shade); }
.gantt .on-bar.dark { fill: var(--ink); } .gantt .on-bar.light { fill: #fff; }
"""


def page(style: str, title: str, note: str, body: str) -> str:
    """A card of its own, in the colours of the pages."""
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<style>{style}{STYLE}</style></head><body><section><h2>{html.escape(title)}</h2>"
        f'<p class="note">{html.escape(note)}</p>{body}</section></body></html>'
    )
