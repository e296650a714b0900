"""What a worker shows while its tables are restored: bars on a terminal, log lines elsewhere, nothing after it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console, ConsoleDimensions

from agentic.app import App
from agentic.cli import reports, restoring
from agentic.cli.restoring import Restoring, Watch
from agentic.metrics import Metrics


def left(metrics: Metrics, **partitions: list[tuple[int, int]]) -> None:
    """Let the worker say of tables, partition by partition, how much is left of how much."""
    rows = {(table, n): row for table, rows in partitions.items() for n, row in enumerate(rows)}
    metrics.keep("restore_left", ("table", "partition"), {each: row[0] for each, row in rows.items()})
    metrics.keep("restore_total", ("table", "partition"), {each: row[1] for each, row in rows.items()})


# -- what is seen ---------------------------------------------------------------------------------


def test_a_tables_partitions_are_seen_together() -> None:
    metrics = Metrics()
    watch = Watch(metrics)
    left(metrics, totals=[(60, 100), (0, 50)], names=[(5, 5)])
    assert watch.look(0.0) == [Restoring("names", 0, 5, None), Restoring("totals", 90, 150, None)]


def test_the_rate_is_that_of_the_last_five_seconds() -> None:
    metrics = Metrics()
    watch = Watch(metrics)
    for now, still in [(0.0, 1000), (1.0, 900), (2.0, 800)]:
        left(metrics, totals=[(still, 1000)])
        (seen,) = watch.look(now)
    assert seen.rate == 100
    for now, still in [(6.0, 790), (8.0, 780)]:
        left(metrics, totals=[(still, 1000)])
        (seen,) = watch.look(now)
    assert seen.rate == 5


def test_partitions_that_come_later_are_no_steps_back() -> None:
    metrics = Metrics()
    watch = Watch(metrics)
    left(metrics, totals=[(100, 1000)])
    watch.look(0.0)
    left(metrics, totals=[(50, 1000), (1000, 1000)])
    assert watch.look(1.0) == [Restoring("totals", 950, 2000, None)]
    left(metrics, totals=[(0, 1000), (950, 1000)])
    assert watch.look(2.0) == [Restoring("totals", 1050, 2000, 100)]


def test_a_table_that_is_done_is_seen_no_more_and_begins_anew() -> None:
    metrics = Metrics()
    watch = Watch(metrics)
    left(metrics, totals=[(100, 100)])
    watch.look(0.0)
    left(metrics)
    assert watch.look(1.0) == []
    left(metrics, totals=[(50, 100)])
    assert watch.look(2.0) == [Restoring("totals", 50, 100, None)]


@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (350_000, "restoring totals: 1,200,000 of 5,000,000 records, 350,000/s, 11 s left"),
        (10_000, "restoring totals: 1,200,000 of 5,000,000 records, 10,000/s, 6 min left"),
        (100, "restoring totals: 1,200,000 of 5,000,000 records, 100/s, 10.6 h left"),
        (0, "restoring totals: 1,200,000 of 5,000,000 records, 0/s"),
        (None, "restoring totals: 1,200,000 of 5,000,000 records"),
    ],
)
def test_a_line_says_how_much_how_fast_and_how_long(rate: float | None, line: str) -> None:
    assert Restoring("totals", 1_200_000, 5_000_000, rate).line == line


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_has_room_for_its_numbers(width: int) -> None:
    screen = io.StringIO()
    rows = [Restoring(name, 12_000_000, 50_000_000, 350_000.0) for name in ("totals", "a_table_with_a_long_name")]
    Console(file=screen, width=width).print(restoring.bars(rows))
    title, *drawn = screen.getvalue().splitlines()
    assert title.strip() == "restoring"
    assert [row.split()[0][:8] for row in drawn] == ["totals", "a_table_"]
    assert all("12,000,000 of 50,000,000" in row and "350,000/s" in row for row in drawn)


# -- where there is no terminal -------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(restoring, "LINE_EVERY", 0.002)


@pytest.mark.usefixtures("quick", "capsys")
@pytest.mark.parametrize("reporter", [restoring.lines, restoring.progress, reports.live])
def test_without_a_terminal_there_are_lines_for_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, reporter: Callable[[App], asyncio.Future[None]]
) -> None:
    app = App("numbers")
    told: dict[str, int] = {}

    async def scenario() -> None:
        running = asyncio.ensure_future(reporter(app))
        enough = asyncio.Event()

        def note(form: str, line: str) -> None:
            assert line.startswith(("restoring totals: 40 of 100 records", "restoring names: 0 of 10 records"))
            told[line.split(":")[0]] = told.get(line.split(":")[0], 0) + 1
            if len(told) == 2 and min(told.values()) >= 2:
                left(app.metrics)
                enough.set()

        monkeypatch.setattr(restoring.log, "info", note)
        left(app.metrics, totals=[(60, 100)], names=[(10, 10)])
        async with asyncio.timeout(30):
            await enough.wait()
        count = sum(told.values())
        looked = asyncio.Event()
        app.metrics.collector = looked.set
        for _ in range(3):
            looked.clear()
            await looked.wait()
        assert sum(told.values()) <= count + 1, "a line that was under way is the last"
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())


# -- on a terminal --------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal that tells when something is drawn on it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = asyncio.Event()

    def flush(self) -> None:
        self.drawn.set()

    async def next(self, *texts: str) -> str:
        """Return what is drawn from now on, up to all of these texts."""
        self.seek(0)
        self.truncate()
        while not all(text in self.getvalue() for text in texts):
            self.drawn.clear()
            await self.drawn.wait()
        return self.getvalue()


#: Clears a line, which a display that is taken away does with each of its own; shows the cursor again.
CLEAR, CURSOR = "\x1b[2K", "\x1b[?25h"


@pytest.mark.usefixtures("quick")
def test_bars_are_drawn_while_there_is_something_to_restore_and_go_without_a_trace() -> None:
    app = App("numbers")

    async def scenario() -> None:
        screen = Screen()
        console = Console(file=screen, force_terminal=True, width=80, height=20)
        drawing = asyncio.create_task(restoring._draw(app, console))
        async with asyncio.timeout(30):
            for width in (70, 90):
                left(app.metrics, totals=[(60, 100), (10, 100)], names=[(1, 10)])
                await screen.next("restoring", "totals", "130 of 200", "names", "9 of 10")
                console.size = ConsoleDimensions(width, 20)
                await screen.next(CURSOR)
                await screen.next("totals", "130 of 200")
                left(app.metrics, names=[(1, 10)])
                await screen.next(CLEAR)
                assert "totals" not in await screen.next("9 of 10")
                left(app.metrics)
                drawn = await screen.next(CURSOR)
                assert CLEAR in drawn.rpartition("9 of 10")[2], "the last that was drawn is taken away"
        drawing.cancel()
        await asyncio.wait([drawing])

    asyncio.run(scenario())


def test_the_live_table_shows_them_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LIVE_EVERY", 0.001)
    app = App("numbers")
    app.topic("t", value=int)

    async def scenario() -> None:
        screen = Screen()
        drawing = asyncio.create_task(
            reports._draw(app, Console(file=screen, force_terminal=True, width=80, height=20))
        )
        async with asyncio.timeout(30):
            left(app.metrics, totals=[(60, 100)])
            await screen.next("restoring", "totals", "40 of 100", "agent")
            left(app.metrics)
            while "restoring" in await screen.next("topic", "in 0 (0/s)"):
                continue
        drawing.cancel()
        await asyncio.wait([drawing])

    asyncio.run(scenario())
