"""Windows whose table is used in another way after a restart: what was said of them before still holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
from window_support import ms, shown

from agentic import App, Stream, Topic
from agentic.errors import StateMismatch
from agentic.runtime.tables import Times
from agentic.testing import TestDriver
from agentic.windows import Window


class Made(NamedTuple):
    app: App
    source: Topic[Any, Any]
    out: Topic[Any, Any]


def make(
    windows: Callable[[Any], Any] = lambda table: table.tumbling(ms(10)),
    *,
    concurrency: int = 1,
    on_close: Callable[[Window[Any, Any]], object] | None = None,
) -> Made:
    app = App("redeclared", topic_partitions=1, delivery="exactly_once")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = windows(app.table("views", key=str, value=int)).sum()

    @app.agent(source, concurrency=concurrency)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            if event.value == 7 and concurrency > 1:
                await asyncio.sleep(100)
            views.add(event.key, event.value)

    @app.agent(views.emit_final(on_close=on_close) if on_close else views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    return Made(app, source, out)


def send(driver: TestDriver, made: Made, *records: tuple[str, int, int]) -> list[list[Any]]:
    for key, value, timestamp in records:
        driver.send(made.source, value, key=key, timestamp=timestamp)
    return [output.value for output in driver.outputs(made.out)]


def deploy(driver: TestDriver, made: Made) -> None:
    """Kill the app, and start another in its place."""
    driver.app = made.app
    driver.crash()


def three_or_more(window: Window[str, int]) -> bool:
    return window.value >= 3


def test_a_window_that_was_closed_early_stays_closed_though_nothing_closes_early_any_more() -> None:
    before, after = make(on_close=three_or_more), make()
    with TestDriver(before.app) as driver:
        assert send(driver, before, ("a", 3, 1), ("b", 1, 2)) == [["a", 0, 10, 3, 1]]
        deploy(driver, after)
        assert send(driver, after, ("a", 9, 4), ("b", 1, 5)) == []
        assert driver.dropped == {"late": 1}
        assert send(driver, after, ("z", 1, 50)) == [["b", 0, 10, 2, 5]]
        # By now nothing is left of it, and rows are kept as if it had never been.
        deploy(driver, after)
        assert send(driver, after, ("a", 1, 51), ("z", 1, 99)) == [["a", 50, 60, 1, 51], ["z", 50, 60, 1, 50]]


def test_windows_that_are_open_may_be_closed_early_from_a_restart_on() -> None:
    before, after = make(), make(on_close=three_or_more)
    with TestDriver(before.app) as driver:
        assert send(driver, before, ("a", 1, 1), ("b", 1, 2)) == []
        deploy(driver, after)
        assert send(driver, after, ("a", 2, 4), ("a", 9, 5)) == [["a", 0, 10, 3, 4]]
        assert driver.dropped == {"late": 1}
        assert send(driver, after, ("z", 1, 50)) == [["b", 0, 10, 1, 2]]


@pytest.mark.parametrize(
    ("windows", "first"),
    [
        (lambda table: table.tumbling(ms(10)), ["a", 0, 10, 7, 5]),
        (lambda table: table.session(ms(5)), ["a", 5, 5, 7, 5]),
        (lambda table: table.sliding(ms(10)), ["a", 0, 10, 7, 5]),
    ],
    ids=["tumbling", "session", "sliding"],
)
def test_an_event_that_was_overtaken_is_not_late_when_events_come_one_by_one_after_a_restart(
    windows: Callable[[Any], Any], first: list[Any]
) -> None:
    before, after = make(windows, concurrency=4), make(windows)
    with TestDriver(before.app) as driver:
        assert send(driver, before, ("a", 7, 5), ("b", 1, 50), ("c", 1, 70)) == []
        deploy(driver, after)
        came = send(driver, after, ("z", 1, 500))
        assert driver.dropped == {}
        assert came[0] == first
        assert sorted(each[0] for each in came) == ["a", "b", "c"]
        deploy(driver, after)
        assert [each[0] for each in send(driver, after, ("z", 1, 900))] == ["z"]


@pytest.mark.parametrize(
    "other",
    [
        lambda table: table.tumbling(ms(20)),
        lambda table: table.tumbling(ms(10), grace=ms(5)),
        lambda table: table.sliding(ms(10)),
    ],
    ids=["size", "grace", "kind"],
)
def test_windows_of_another_declaration_are_not_taken_for_its_own(other: Callable[[Any], Any]) -> None:
    # The driver's stores take any rows, as one that is filled from the changelog does.
    before, after = make(), make(other)
    with TestDriver(before.app) as driver:
        assert send(driver, before, ("a", 1, 1)) == []
        with pytest.raises(StateMismatch, match=r"table 'views' has now .*; declare these again"):
            deploy(driver, after)
        deploy(driver, before)
        assert send(driver, before, ("a", 1, 2), ("z", 1, 50)) == [["a", 0, 10, 2, 2]]


def test_windows_may_be_kept_longer_after_a_restart() -> None:
    before, after = make(), make(lambda table: table.tumbling(ms(10), retention=ms(100)))
    with TestDriver(before.app) as driver:
        assert send(driver, before, ("a", 1, 1)) == []
        deploy(driver, after)
        assert send(driver, after, ("a", 1, 2), ("z", 1, 50)) == [["a", 0, 10, 2, 2]]


def test_times_are_read_that_were_noted_without_what_is_forgotten() -> None:
    times = Times(205, 200, 205, "TimeWindows(size=10, advance=10, grace=0, takes_null=True)", 195)
    assert Times.decode(times.encode()) == times
    before = times.encode().removesuffix(b"\x00195")
    assert before.endswith(b")")
    assert Times.decode(before) == times._replace(forgotten=-1)
    assert Times.decode(before[:24]) == Times(205, 200, 205, "")
