"""The live display of events in flight and of windows."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

from rich.console import Console

from agentic import App, Breaker
from agentic.cli.reports import tables
from agentic.testing import TestDriver


def drawn(app: App) -> list[str]:
    """The display as lines, each with its words one blank apart."""
    out = io.StringIO()
    Console(file=out, width=160).print(tables(app, "footer"))
    return [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in out.getvalue().splitlines()]


class Shop:
    """Counts clicks by window, many at once; what is called "hang" stays in flight."""

    def __init__(self, **options: Any) -> None:
        self.app = App("shop", topic_partitions=1)
        self.clicks = self.app.topic("clicks", key=str, value=str)
        views = self.app.table("views", key=str, value=int).tumbling(timedelta(seconds=1)).count()

        @self.app.agent(self.clicks, concurrency=4, **options)
        async def count(stream: Any) -> None:
            async for click in stream:
                views.add(stream.event.key, click)

        @self.app.agent(views.emit_final())
        async def report(windows: Any) -> None:
            async for _ in windows:
                pass

        self.count = count


def test_windows_are_shown_with_what_the_oldest_waits_for() -> None:
    shop = Shop()
    with TestDriver(shop.app) as driver:
        for time in (0, 1500, 100):
            driver.send(shop.clicks, "x", key="a", timestamp=time)
        lines = drawn(shop.app)
        assert "windows open emitted late oldest ends waits for" in lines
        assert "views 1 1 1 1970-01-01 00:00:02.000Z an event after it" in lines
    assert "windows emitted late" in drawn(shop.app)
    assert "views 1 1" in drawn(shop.app)


def test_events_in_flight_are_shown_by_state_and_the_oldest_is_named() -> None:
    shop = Shop(breaker=Breaker())
    with TestDriver(shop.app) as driver:
        driver.hold(shop.count)
        for key in ("a", "b", "a"):
            driver.send(shop.clicks, "x", key=key, timestamp=0)
        lines = drawn(shop.app)
        assert "in flight working waiting ready backing off done limit retries parked breaker" in lines
        assert "count 2 1 0 0 0 4 0 0 closed" in lines
        assert not any("oldest unfinished" in line for line in lines)
        driver.advance(5)
        assert "oldest unfinished: clicks-0@0 key 'a', agent 'count', executing, for 5 s" in drawn(shop.app)


def test_an_app_without_either_shows_neither() -> None:
    app = App("plain")
    topic = app.topic("topic", value=str)

    @app.agent(topic)
    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    with TestDriver(app) as driver:
        driver.send(topic, "x")
        assert not any(line.startswith(("windows", "in flight", "oldest")) for line in drawn(app))
