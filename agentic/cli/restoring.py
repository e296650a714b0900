"""How far a worker is with its tables: bars on a terminal while they are restored, log lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentic.app import App
from agentic.metrics import Gauge, Metrics
from agentic.runtime.logging import setup

log = logging.getLogger("agentic.worker")

#: Seconds between two looks. What takes no longer is over before it is shown.
LOOK_EVERY = 0.5
#: Seconds between two log lines of a table, over which its rate is taken too.
LINE_EVERY = 5.0
#: Columns of a bar: a terminal of 80 has room for it and the numbers of a hundred million records.
BAR = 16


@dataclass(frozen=True)
class Restoring:
    """One table on its way up, all its partitions together.

    Attributes:
        done, total: records that are read, of how many.
        rate: records a second; None before the second look.
    """

    table: str
    done: float
    total: float
    rate: float | None

    @property
    def numbers(self) -> str:
        return f"{self.done:,.0f} of {self.total:,.0f}"

    @property
    def pace(self) -> str:
        return "" if self.rate is None else f"{self.rate:,.0f}/s"

    @property
    def left(self) -> str:
        return f"{_duration((self.total - self.done) / self.rate)} left" if self.rate else ""

    @property
    def line(self) -> str:
        said = [f"restoring {self.table}: {self.numbers} records", self.pace, self.left]
        return ", ".join(part for part in said if part)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3600:.1f} h"


class Watch:
    """Looks at the metrics of a worker again and again, and so learns the rates."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        #: By table: when it was looked at, and what was left, not longer ago than a line.
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def look(self, now: float) -> list[Restoring]:
        """Return the tables that are being restored at this moment, given in seconds, in the order of their names."""
        sums: dict[str, list[float]] = {}
        for name, table, value in _gauges(self._metrics):
            sums.setdefault(table, [0.0, 0.0])[name == "restore_total"] += value
        self._seen = {table: self._seen.get(table, deque()) for table in sums}
        return [self._restoring(now, table, left, total) for table, (left, total) in sorted(sums.items())]

    def _restoring(self, now: float, table: str, left: float, total: float) -> Restoring:
        seen = self._seen[table]
        if seen and left > seen[-1][1]:
            seen.clear()  # further partitions came
        while seen and seen[0][0] < now - LINE_EVERY:
            seen.popleft()
        rate = (seen[0][1] - left) / (now - seen[0][0]) if seen and now > seen[0][0] else None
        seen.append((now, left))
        return Restoring(table, total - left, total, rate)


def _gauges(metrics: Metrics) -> Iterator[tuple[str, str, float]]:
    for metric in metrics:
        if isinstance(metric, Gauge) and metric.name in ("restore_left", "restore_total") and metric.value is not None:
            yield metric.name, dict(metric.labels)["table"], metric.value


def bars(restoring: Sequence[Restoring]) -> Table:
    """Return a bar for each table, with how much, how fast, and how long it will take."""
    grid = Table.grid(padding=(0, 2))
    grid.title, grid.title_style, grid.title_justify = "restoring", "bold", "left"
    # The first two give way where there is not enough room for all.
    grid.add_column(min_width=10)
    grid.add_column(max_width=BAR)
    for _ in range(3):
        grid.add_column(no_wrap=True, justify="right")
    for each in restoring:
        name = Text(each.table, no_wrap=True, overflow="ellipsis")
        grid.add_row(name, ProgressBar(each.total, each.done), each.numbers, each.pace, each.left)
    return grid


async def lines(app: App) -> None:
    """Log a line of each table every five seconds for as long as it is being restored."""
    watch = Watch(app.metrics)
    next_line: dict[str, float] = {}
    while True:
        now = time.monotonic()
        restoring = watch.look(now)
        next_line = {each.table: next_line.get(each.table, now + LINE_EVERY) for each in restoring}
        for each in restoring:
            if now >= next_line[each.table]:
                next_line[each.table] = now + LINE_EVERY
                log.info("%s", each.line)
        await asyncio.sleep(LOOK_EVERY)


async def progress(app: App) -> None:
    """Draw bars while tables are being restored. Without a terminal: log lines."""
    console = Console(stderr=True)
    if console.is_terminal:
        await _draw(app, console)
    else:
        await lines(app)


async def _draw(app: App, console: Console) -> None:
    watch = Watch(app.metrics)
    while True:
        if restoring := watch.look(time.monotonic()):
            await _draw_until_done(app, console, watch, restoring)
        else:
            await asyncio.sleep(LOOK_EVERY)


async def _draw_until_done(app: App, console: Console, watch: Watch, restoring: Sequence[Restoring]) -> None:
    """Return when there is nothing to draw any more, or has to be drawn anew, as the terminal has another size."""
    size = console.size
    try:
        with Live(console=console, auto_refresh=False, transient=True) as screen:
            # While it is drawn, the display stands in for standard error: log lines pass above it, not through.
            setup(app.settings, sys.stderr)
            while restoring and console.size == size:
                screen.update(bars(restoring), refresh=True)
                await asyncio.sleep(LOOK_EVERY)
                restoring = watch.look(time.monotonic())
    finally:
        setup(app.settings, sys.__stderr__)
