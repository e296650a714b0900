"""Draws the pictures of windows: what the engine in `agentic.core` does to a few events, as SVG.

`docs/generate.py` writes them beside the pages, and checks that they are up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from agentic.core.calendar import CalendarWindows
from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.windows import Aggregate, Change, Row, TimeWindows, Windowing

WIDTH, MARGIN = 720, 45
LANE, BAR = 26, 18
INK, GREY, BLUE, RED, GREEN = "#24292f", "#8c959f", "#0969da", "#cf222e", "#1a7f37"

COUNT = Aggregate(int, lambda total, _: total + 1, lambda older, newer: older + newer)


class Kept:
    """The windows of one key: `agentic.core.windows.Rows`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], Row] = {}

    def get(self, key: bytes, start: int, end: int) -> Row | None:
        return self.rows.get((start, end))

    def starting(self, key: bytes, earliest: int, latest: int) -> Sequence[Row]:
        return sorted((row for row in self.rows.values() if earliest <= row.start <= latest), reverse=True)

    def ending(self, key: bytes, earliest: int, latest_start: int) -> Sequence[Row]:
        found = (row for row in self.rows.values() if row.end >= earliest and row.start <= latest_start)
        return sorted(found, key=lambda row: (row.end, row.start))

    def put(self, key: bytes, row: Row, fresh: bool) -> None:
        self.rows[row.start, row.end] = row

    def remove(self, key: bytes, start: int, end: int) -> None:
        self.rows.pop((start, end), None)


class Step(NamedTuple):
    """An event, and what it did: the stream time after it, the windows that it closed, those it was too late for."""

    timestamp: int
    change: Change
    time: int
    closed: list[Row]


def play(windowing: Windowing, timestamps: Iterable[int]) -> tuple[list[Row], list[Step]]:
    """Put events of one key into windows, in this order; return the windows, and what happened at each event."""
    kept, time, steps, out = Kept(), -1, [], set()
    for timestamp in timestamps:
        time = max(time, timestamp)
        close = windowing.close(time)
        change = windowing.add(kept, b"", None, timestamp, time, close, COUNT)
        closed = sorted(row for row in kept.rows.values() if windowing.closed(row.end, close) and row not in out)
        out.update(closed)
        steps.append(Step(timestamp, change, time, closed))
    return sorted(kept.rows.values()), steps


# -- drawing -------------------------------------------------------------------------------------


def svg(height: int, title: str, parts: Iterable[str]) -> str:
    """Return a picture."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" font-family="sans-serif" font-size="12">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, colour: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"{dash}/>'


def dot(x: float, y: float, colour: str = INK) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{colour}"/>'


def lanes(rows: Sequence[Row], *, touching: bool) -> list[int]:
    """Return a lane for each window, so that none lies over another."""
    ends: list[int] = []
    placed = []
    for row in rows:
        free = (n for n, end in enumerate(ends) if (row.start >= end if touching else row.start > end))
        lane = next(free, len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = row.end
        placed.append(lane)
    return placed


def timeline(
    title: str,
    windowing: Windowing,
    timestamps: Sequence[int],
    until: int,
    ticks: Sequence[tuple[int, str]],
    about: Callable[[Row], str] = lambda row: str(row.value),
) -> str:
    """Draw events on a line, and below it the windows that they are in, each with its count."""
    rows, _ = play(windowing, timestamps)

    def x(time: int) -> float:
        return round(MARGIN + (WIDTH - 2 * MARGIN) * time / until, 1)

    parts = [line(MARGIN, 40, WIDTH - MARGIN, 40, INK)]
    for time, words in ticks:
        parts += [line(x(time), 36, x(time), 44, INK), text(x(time), 60, words, GREY)]
    parts += [dot(x(time), 40, BLUE) for time in timestamps]
    placed = lanes(rows, touching=windowing.closed(0, 0))
    for row, lane in zip(rows, placed):
        y, width = 76 + lane * LANE, max(4.0, x(row.end) - x(row.start))
        parts.append(
            f'<rect x="{x(row.start):g}" y="{y}" width="{width:g}" height="{BAR}" rx="3" '
            f'fill="#ddf4ff" stroke="{BLUE}"/>'
        )
        parts.append(text(x(row.start) + width / 2, y + 13, about(row)))
    return svg(76 + (max(placed) + 1) * LANE + 10, title, parts)


def seconds(until: int, every: int) -> list[tuple[int, str]]:
    return [(time, f"{time} s") for time in range(0, until + 1, every)]


def tumbling() -> str:
    return timeline("Tumbling windows of 10 s", TimeWindows(10, 10), EVENTS, 60, seconds(60, 10))


def hopping() -> str:
    return timeline("Hopping windows of 20 s, every 10 s", TimeWindows(20, 10), EVENTS, 70, seconds(70, 10))


def sliding() -> str:
    return timeline("Sliding windows of 10 s", SlidingWindows(10), (13, 19, 26, 44), 60, seconds(60, 10))


def session() -> str:
    return timeline("Sessions with a gap of 10 s", SessionWindows(10), EVENTS, 60, seconds(60, 10))


def calendar() -> str:
    """Three days around the start of summer time in Berlin."""
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 3, 28, tzinfo=zone)
    hour = 3_600_000
    origin = int(first.timestamp()) * 1000

    class Days(CalendarWindows):
        """Days, counted from the first of the picture."""

        def bounds(self, timestamp: int) -> tuple[int, int]:
            start, end = super().bounds(timestamp + origin)
            return start - origin, end - origin

    midnights = [int((first + timedelta(days=n)).timestamp()) * 1000 - origin for n in range(4)]
    ticks = [(time, f"{first + timedelta(days=n):%d %b} 00:00") for n, time in enumerate(midnights[:3])]

    def hours(row: Row) -> str:
        return f"{row.value} in {(row.end - row.start) // hour} hours"

    timestamps = [hour * n for n in (2, 9, 20, 30, 41, 50, 55, 63, 70)]
    return timeline("Days in Berlin", Days("day", "Europe/Berlin"), timestamps, 72 * hour, ticks, hours)


def late() -> str:
    """Events in the order in which they come, against their time."""
    windowing, timestamps = TimeWindows(10, 10, grace=5), (2, 8, 14, 7, 16, 6, 23, 27, 12)
    _, steps = play(windowing, timestamps)
    top, bottom, step = 20, 260, (WIDTH - 260) / len(timestamps)

    def y(time: int) -> float:
        return round(bottom - (bottom - top) * time / 30, 1)

    def x(n: int) -> float:
        return round(110 + n * step, 1)

    parts = []
    for start in (0, 10, 20):
        parts.append(line(60, y(start), WIDTH - 20, y(start), GREY))
        parts.append(text(56, y(start) + 4, f"{start} s", GREY, "end"))
        parts.append(text(64, y(start) - 8, f"[{start}, {start + 10})", GREY, "start"))
    for end in (10, 20):
        parts.append(line(60, y(end + 5), WIDTH - 20, y(end + 5), GREEN, dashed=True))
        parts.append(text(WIDTH - 20, y(end + 5) - 4, f"[{end - 10}, {end}) is closed above", GREEN, "end"))
    for n, (before, after) in enumerate(pairwise(steps)):
        parts += [
            line(x(n), y(before.time), x(n + 1), y(before.time), BLUE),
            line(x(n + 1), y(before.time), x(n + 1), y(after.time), BLUE),
        ]
    for n, each in enumerate(steps):
        refused = bool(each.change.refused)
        parts.append(dot(x(n), y(each.timestamp), RED if refused else INK))
        if refused:
            parts.append(text(x(n), y(each.timestamp) + 18, "late", RED))
        for row in each.closed:
            parts.append(
                text(x(n) + 8, y(each.time) - 6, f"out: {row.value} in [{row.start}, {row.end})", GREEN, "end")
            )
    parts.append(text(WIDTH / 2, bottom + 24, "events, in the order in which they come; the line is stream time", GREY))
    return svg(bottom + 40, "Tumbling windows of 10 s with a grace of 5 s", parts)


EVENTS = (3, 6, 14, 17, 19, 34, 42)

PICTURES = {f"pictures/{draw.__name__}.svg": draw for draw in (tumbling, hopping, sliding, session, calendar, late)}
