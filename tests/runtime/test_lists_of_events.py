"""Lists that a stream gives: what is in them, in which order, and what is complete together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, BlockingStream, Stream
from agentic.testing import TestDriver

WITHIN = 5


def numbered(app: App) -> tuple[Any, Any]:
    """Return topics of an app, from and to which its agent works."""
    return app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["serial", "concurrent"])
def test_events_come_in_lists_with_their_keys_and_timestamps(options: dict[str, Any]) -> None:
    app = App("lists", topic_partitions=1)
    source, out = numbered(app)

    @app.agent(source, to=out, **options)
    async def gather(stream: Stream[int]) -> AsyncIterator[list[Any]]:
        async for events in stream.events().take(3, within=WITHIN):
            yield [[event.key, event.value, event.timestamp] for event in events]

    with TestDriver(app) as driver:
        for n in range(5):
            driver.send(source, n, key="a", timestamp=n)
        driver.advance(WITHIN)
        came = [output.value for output in driver.outputs(out)]
        assert came == [[["a", n, n] for n in several] for several in ([0, 1, 2], [3, 4])]


def test_a_thread_gets_lists_of_events_too() -> None:
    app = App("lists", topic_partitions=1)
    source, out = numbered(app)

    @app.agent(source, to=out, threads=True)
    def gather(stream: BlockingStream[int]) -> Iterator[list[int]]:
        events = stream.events()
        first = next(events)
        yield [first.value]
        for several in events.take(2, within=WITHIN):
            yield [event.value for event in several]

    with TestDriver(app) as driver:
        for n in range(3):
            driver.send(source, n, key="a")
        driver.advance(WITHIN)
        assert [output.value for output in driver.outputs(out)] == [[0], [1, 2]]


def test_what_a_filter_refuses_is_in_no_list() -> None:
    app = App("lists", topic_partitions=1)
    source, out = numbered(app)

    @app.agent(source.filter(lambda n: n % 2 == 0), to=out)
    async def gather(stream: Stream[int]) -> AsyncIterator[list[int]]:
        async for values in stream.take(3, within=WITHIN):
            yield values

    with TestDriver(app) as driver:
        for n in range(7):
            driver.send(source, n, key="a")
        driver.advance(WITHIN)
        assert [output.value for output in driver.outputs(out)] == [[0, 2, 4], [6]]


def test_rows_expire_by_the_latest_event_of_a_list() -> None:
    app = App("lists", topic_partitions=1)
    source, out = numbered(app)
    seen = app.table("seen", key=str, value=int, ttl=timedelta(milliseconds=10))

    @app.agent(source, to=out)
    async def gather(stream: Stream[int]) -> AsyncIterator[list[int]]:
        async for events in stream.events().take(2, within=WITHIN):
            yield [seen.get("a", -1)]
            seen["a"] = events[0].value

    with TestDriver(app) as driver:
        # The list's latest event is not its last one.
        for n, timestamp in enumerate([0, 5, 12, 3, 30, 20]):
            driver.send(source, n, key="a", timestamp=timestamp)
        assert [output.value for output in driver.outputs(out)] == [[-1], [0], [-1]]


def test_a_list_that_fails_comes_again_whole() -> None:
    app = App("lists", topic_partitions=1)
    source, out = numbered(app)
    came: list[list[int]] = []

    @app.agent(source, to=out, on_exhausted="skip")
    async def gather(stream: Stream[int]) -> AsyncIterator[list[int]]:
        async for values in stream.take(2, within=WITHIN):
            came.append(values)
            yield values
            if values == [2, 3]:
                raise ValueError("never these")

    with TestDriver(app) as driver:
        for n in range(6):
            driver.send(source, n, key="a")
        assert came == [[0, 1], [2, 3], [4, 5]]
        assert [output.value for output in driver.outputs(out)] == [[0, 1], [4, 5]]
        assert driver.dropped == {"agent_error": 2}
