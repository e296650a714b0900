"""What windows come to in numbers: how many are open, what the oldest waits for, what came out and how fast."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from agentic import App
from agentic.metrics import Gauge, Metrics
from agentic.runtime import window_numbers
from agentic.runtime.window_numbers import Rate, WindowNumbers
from agentic.testing import TestDriver

SECOND = timedelta(seconds=1)


class Shop:
    """An app that counts clicks in windows of a second."""

    def __init__(self, *, concurrency: int = 1, session: bool = False, on_close: Any = None, **options: Any) -> None:
        self.app = App("shop", topic_partitions=1, instance="one", **options)
        self.clicks = self.app.topic("clicks", key=str, value=str)
        table = self.app.table("views", key=str, value=int)
        views = (table.session(SECOND) if session else table.tumbling(SECOND)).count()

        @self.app.agent(self.clicks, concurrency=concurrency)
        async def count(stream: Any) -> None:
            async for click in stream:
                if click == "slow":
                    await asyncio.sleep(60)
                views.add(stream.event.key, click)

        @self.app.agent(views.emit_final(on_close=on_close))
        async def report(windows: Any) -> None:
            async for _ in windows:
                pass

    def gauges(self, name: str) -> dict[str, float | None]:
        """The values of a gauge, by what holds it or is shown."""
        found = [each for each in self.app.metrics if isinstance(each, Gauge) and each.name == name]
        return {dict(each.labels).get("holder", ""): each.value for each in found}


def test_open_windows_and_the_oldest_ones_end_are_known() -> None:
    shop = Shop()
    with TestDriver(shop.app) as driver:
        for key, time in [("a", 0), ("b", 10), ("a", 500)]:
            driver.send(shop.clicks, "x", key=key, timestamp=time)
        assert shop.gauges("windows_open") == {"": 2}
        assert shop.gauges("table_rows") == {"": 2}, "the row of its times is none"
        assert shop.gauges("oldest_window_end") == {"": 1000}
        assert shop.gauges("oldest_window_left") == {"an event after it": 500}
        driver.send(shop.clicks, "x", key="a", timestamp=1500)
        assert shop.gauges("windows_open") == {"": 1}
        assert shop.gauges("oldest_window_end") == {"": 2000}
        driver.crash()
        assert shop.gauges("windows_open") == {"": 1}
        assert shop.gauges("oldest_window_end") == {"": 2000}


def test_a_session_that_grows_is_one_open_window_with_its_latest_end() -> None:
    shop = Shop(session=True)
    with TestDriver(shop.app) as driver:
        for time in range(0, 5000, 500):
            driver.send(shop.clicks, "x", key="a", timestamp=time)
        driver.send(shop.clicks, "x", key="b", timestamp=4500)
        assert shop.gauges("windows_open") == {"": 2}
        assert shop.gauges("oldest_window_end") == {"": 4500}
        assert shop.gauges("oldest_window_left") == {"an event after it": 1001}


def test_final_results_are_counted_with_how_long_they_took() -> None:
    shop = Shop()
    labels = {"worker": "one", "task": "clicks-0", "table": "views"}
    with TestDriver(shop.app) as driver:
        for time in (0, 1000, 2000, 500):
            driver.send(shop.clicks, "x", key="a", timestamp=time)
        metrics = shop.app.metrics
        assert metrics.total("emit_final_records_total", **labels) == 2
        assert metrics.total("emit_final_records_rate", **labels) > 0
        longest, mean = (metrics.total(f"emit_final_latency_{kind}", **labels) for kind in ("max", "avg"))
        assert 0 < mean <= longest < 60
        assert metrics.total("windows_late", table="views") == 1
        assert driver.dropped == {"late": 1}


def test_a_window_that_comes_out_early_is_counted_once() -> None:
    shop = Shop(on_close=lambda window: window.value == 2)
    with TestDriver(shop.app) as driver:
        for time in (0, 10, 2000):
            driver.send(shop.clicks, "x", key="a", timestamp=time)
        assert shop.app.metrics.total("emit_final_records_total") == 1


def test_an_event_in_flight_that_holds_the_oldest_window_open_is_named() -> None:
    shop = Shop(concurrency=4)
    with TestDriver(shop.app) as driver:
        driver.send(shop.clicks, "slow", key="a", timestamp=100)
        driver.send(shop.clicks, "x", key="b", timestamp=5000)
        # It holds the table's time where that was when it began: before all events.
        assert shop.gauges("oldest_window_left") == {"clicks-0@0 key 'a', agent 'count', executing": 6000 + 1}
        driver.advance(60)
        assert shop.gauges("oldest_window_left") == {"an event after it": 1000}


def test_with_idle_after_the_oldest_window_need_not_wait_for_an_event() -> None:
    shop = Shop(idle_after=timedelta(seconds=5))
    with TestDriver(shop.app, now=0) as driver:
        driver.send(shop.clicks, "x", key="a", timestamp=0)
        assert shop.gauges("oldest_window_left") == {"an event after it, or idle_after": 1000}
        driver.advance(10)
        assert shop.gauges("windows_open") == {"": 0}
        assert shop.gauges("oldest_window_left") == {}


def test_a_rate_forgets_what_was_long_ago() -> None:
    now = 100.0
    rate = Rate(lambda: now)
    rate.add(30)
    now = 110.0
    rate.add(30)
    assert rate.value() == 6
    now = 139.0
    assert rate.value() == pytest.approx(1)
    now = 200.0
    assert rate.value() == 0


def test_a_worker_without_an_instance_is_named_by_its_machine_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_numbers.socket, "gethostname", lambda: "harbour")
    monkeypatch.setattr(window_numbers.os, "getpid", lambda: 7)
    numbers = WindowNumbers(Metrics(), App("shop").settings, "clicks-0", "views")
    assert numbers.labels == ("harbour-7", "clicks-0", "views")
    assert numbers.latency() is None
