"""Lists of events, what their attempts cost, and what is counted of each event while it is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Retry, RetryLater, Stream
from agentic.errors import AgentFailed
from agentic.runtime.pool import Pool
from agentic.testing import TestDriver


def started(app: App) -> tuple[Any, Any]:
    """Return topics of an app, from and to which its agent works."""
    return app.topic("source", key=str, value=int), app.topic("sink", key=str, value=int)


def lists(
    within: float, work: float, concurrency: int = 2, **options: Any
) -> tuple[App, Any, Any, Any, list[tuple[float, list[int]]]]:
    """Return an app whose agent takes up to two events, works on them for so many seconds, and notes when it began."""
    app = App("lists", topic_partitions=1)
    failed = app.topic("failed", key=str, value=int)
    source, sink = started(app)
    begun: list[tuple[float, list[int]]] = []

    @app.agent(source, to=sink, concurrency=concurrency, dead_letter=failed, **options)
    async def work_on(stream: Stream[int]) -> AsyncIterator[int]:
        async for values in stream.take(2, within=within):
            begun.append((asyncio.get_running_loop().time(), values))
            await asyncio.sleep(work)
            if len(begun) == 1:
                raise ConnectionError("not yet")
            for n in values:
                yield n

    return app, source, sink, failed, begun


def test_gathering_a_list_takes_nothing_of_the_time_of_its_attempt() -> None:
    app, source, sink, failed, begun = lists(within=100, work=4, timeout=5, retry=Retry(attempts=2, first=0))
    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        driver.advance(300)
        assert [values for _, values in begun] == [[1], [1]]
        assert [output.value for output in driver.outputs(sink)] == [1]
        assert driver.outputs(failed) == []


def test_work_on_a_list_ends_at_its_time_out() -> None:
    app, source, sink, failed, begun = lists(within=100, work=6, timeout=5, retry=Retry(attempts=2, first=0))
    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        driver.advance(300)
        assert [values for _, values in begun] == [[1], [1]]
        assert driver.outputs(sink) == []
        assert [letter.value for letter in driver.outputs(failed)] == [1]


def test_a_list_that_is_taken_apart_while_it_is_gathered_is_called_for_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry = Retry(attempts=9, first=5, max=5, jitter="none")
    app, source, sink, failed, _ = lists(within=4, work=0, concurrency=1, pin_limit=10, retry=retry, deferral=True)
    with TestDriver(app) as driver:
        driver.send(source, 1, key="ann")
        # Its first list fails after 4 s; in the second one, from 9 s on, it reaches the pin limit.
        driver.advance(60)
        driver.send(source, 2, key="bob")
        driver.advance(60)
        assert sorted(output.value for output in driver.outputs(sink)) == [1, 2]
        assert driver.outputs(failed) == []
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_list_that_would_be_gathered_for_longer_than_the_pin_limit_is_refused() -> None:
    app, source, *_ = lists(within=10, work=0, pin_limit=10)
    with (
        pytest.raises(AgentFailed, match=r"agent 'work_on': take\(within=10\) waits for longer .* greater pin_limit="),
        TestDriver(app) as driver,
    ):
        driver.send(source, 1, key="ann")


def test_a_wait_that_is_put_off_leaves_the_room_that_it_took_and_no_more() -> None:
    app = App("room", topic_partitions=1)
    source, sink = started(app)
    at_once: list[int] = []
    working: set[int] = set()

    @app.agent(source, to=sink, concurrency=9, max_in_flight_bytes=2)
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n < 5 and stream.attempt == 1:
                raise RetryLater(60)
            working.add(n)
            at_once.append(len(working))
            await asyncio.sleep(1)
            working.discard(n)
            yield n

    with TestDriver(app) as driver:
        for n in range(10):
            driver.send(source, n, key=str(n))
        driver.advance(120)
        assert len(driver.outputs(sink)) == 10
        assert max(at_once) == 2


@pytest.mark.parametrize("deferred", [False, True])
def test_nothing_is_remembered_of_a_hot_key_that_is_done_with(deferred: bool) -> None:
    app = App("hot", topic_partitions=1)
    source, sink = started(app)
    put_off: set[int] = set()

    @app.agent(source, to=sink, concurrency=4, hot_key="park")
    async def work(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(1)
            if deferred and n == 3 and n not in put_off:
                put_off.add(n)
                stream.defer(5)
                continue
            yield n

    with TestDriver(app) as driver:
        for n in range(100):
            driver.send(source, n, key="ann")
        driver.advance(300)
        assert [output.value for output in driver.outputs(sink)] == list(range(100))
        (crew,) = (crew for task in driver._assignment().tasks.values() for crew in task.crews)
        assert isinstance(crew, Pool)
        assert not crew._depth
