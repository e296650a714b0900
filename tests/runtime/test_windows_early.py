"""What comes out other than at the end of its window: closed early, merged updates; and time that is too far ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from window_support import ms, scene, shown

from agentic import App, Stream, Topic
from agentic.testing import TestDriver


def app_of(emit: Any, *, sessions: bool = False, **settings: Any) -> tuple[App, Topic[Any, Any], Topic[Any, Any]]:
    """An app that sums in windows, or sessions, of ten, and sends what ``emit(views)`` gives."""
    app = App("early", topic_partitions=1, **settings)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    table = app.table("views", key=str, value=int)
    views = (table.session(ms(10)) if sessions else table.tumbling(ms(10))).sum()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)

    @app.agent(emit(views), to=out)
    async def tell(windows: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in windows:
            yield [*shown(window), window.old]

    return app, source, out


def send(driver: TestDriver, source: Topic[Any, Any], *records: tuple[str, int, int]) -> None:
    for key, value, timestamp in records:
        driver.send(source, value, key=key, timestamp=timestamp)


def values(driver: TestDriver, out: Topic[Any, Any]) -> list[list[Any]]:
    return [output.value for output in driver.outputs(out)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_window_that_is_closed_early_comes_out_once_and_takes_nothing_more(delivery: str) -> None:
    app, source, out = app_of(lambda views: views.emit_final(on_close=lambda w: w.value >= 3), delivery=delivery)
    with TestDriver(app) as driver:
        send(driver, source, ("a", 1, 1), ("b", 1, 2), ("a", 2, 3))
        assert values(driver, out) == [["a", 0, 10, 3, 3, None]]
        driver.crash()
        send(driver, source, ("a", 9, 4))
        assert driver.dropped == {"late": 1}
        send(driver, source, ("a", 1, 12), ("b", 1, 50))
        assert values(driver, out) == [["b", 0, 10, 1, 2, None], ["a", 10, 20, 1, 12, None]]


def test_a_predicate_that_raises_fails_its_event_alone() -> None:
    app, source, out = app_of(lambda views: views.emit_final(on_close=lambda w: 1 // w.value > 5), on_error="skip")
    with TestDriver(app) as driver:
        send(driver, source, ("a", 1, 1), ("a", -1, 2), ("a", 4, 3), ("b", 1, 50))
        assert values(driver, out) == [["a", 0, 10, 5, 3, None]]
        assert driver.dropped == {"agent_error": 1}


def test_updates_are_merged_for_a_time_and_show_the_value_before_the_first() -> None:
    # A checkpoint lets out what was merged; the driver makes one after each call, so all is sent in one.
    app, source, out = app_of(lambda views: views.emit_update(within=timedelta(seconds=5)))

    async def send_all() -> None:
        for key, value, timestamp in [("a", 1, 1), ("b", 5, 2), ("a", 2, 3), ("a", 4, 2), ("a", 8, 15)]:
            await source.send(value, key=key, timestamp=timestamp)

    with TestDriver(app) as driver:
        driver.run(send_all())
        driver.advance(5)
        first = values(driver, out)
        driver.send(source, 16, key="a", timestamp=16)
        driver.advance(5)
        second = values(driver, out)
    assert sorted(first) == [["a", 0, 10, 7, 3, None], ["a", 10, 20, 8, 15, None], ["b", 0, 10, 5, 2, None]]
    assert second == [["a", 10, 20, 24, 16, 8]]


def test_of_a_session_that_comes_and_goes_between_merged_updates_nothing_is_heard() -> None:
    app, source, out = app_of(lambda views: views.emit_update(within=timedelta(seconds=5)), sessions=True)

    async def send_all(*timestamps: int) -> None:
        for timestamp in timestamps:
            await source.send(1, key="a", timestamp=timestamp)

    with TestDriver(app) as driver:
        driver.run(send_all(1, 4, 9))
        assert values(driver, out) == [["a", 1, 9, 3, 9, None]]
        driver.run(send_all(12, 15))
        assert values(driver, out) == [["a", 1, 9, None, 9, 3], ["a", 1, 15, 5, 15, None]]


def test_a_timestamp_of_the_far_future_is_refused_and_moves_no_time() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).count(), max_ahead=timedelta(hours=1))
    hour = timedelta(hours=1) // ms(1)
    with TestDriver(here.app) as driver:
        here.send(driver, f"a 1@{hour + 1}", "a 1@5", f"b 1@{hour}")
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5]]
        assert driver.dropped == {"ahead": 1}
        # The bound is the wall clock's, which goes on.
        driver.advance(timedelta(hours=1))
        here.send(driver, f"c 1@{2 * hour}")
        assert here.came(driver, here.finals) == [["b", hour, hour + 10, 1, hour]]
