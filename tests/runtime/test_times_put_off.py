"""How often an event has been put off: told to the agent, and kept with the event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Retry, RetryLater, Stream
from agentic.testing import TestDriver


def telling(**execution: Any) -> tuple[App, Any, list[tuple[str, int, int]]]:
    """Return an app whose agent puts off each event but "plain" until it was put off three times."""
    app = App("telling", topic_partitions=1)
    source = app.topic("source", key=str, value=str)
    told: list[tuple[str, int, int]] = []

    @app.agent(source, deferral=True, **execution)
    async def tell(stream: Stream[str]) -> None:
        async for value in stream:
            event = stream.event
            told.append((value, event.deferred, stream.attempt))
            if value == "plain" or event.deferred == 3:
                continue
            if value == "fails":
                raise RetryLater(60)
            stream.defer(60)

    return app, source, told


@pytest.mark.parametrize("execution", [{}, {"concurrency": 4}, {"concurrency": 4, "emit": "offset"}], ids=str)
def test_an_event_says_how_often_it_has_been_put_off_after_a_crash_too(execution: Any) -> None:
    app, source, told = telling(**execution)
    with TestDriver(app) as driver:
        driver.send(source, "early", key="a")
        driver.send(source, "plain", key="b")
        driver.advance(60)
        driver.crash()
        driver.advance(120)
    assert told == [("early", 0, 1), ("plain", 0, 1), ("early", 1, 1), ("early", 2, 1), ("early", 3, 1)]


def test_what_only_waits_behind_an_event_that_was_put_off_has_not_been_put_off() -> None:
    app, source, told = telling()
    with TestDriver(app) as driver:
        driver.send(source, "early", key="a")
        driver.send(source, "plain", key="a")
        driver.advance(180)
    assert told[-2:] == [("early", 3, 1), ("plain", 0, 1)]


def test_a_long_wait_for_the_next_attempt_counts_as_well() -> None:
    app, source, told = telling(retry=Retry(attempts=5, within=None))
    with TestDriver(app) as driver:
        driver.send(source, "fails", key="a")
        driver.advance(180)
    assert told == [("fails", 0, 1), ("fails", 1, 2), ("fails", 2, 3), ("fails", 3, 4)]


def test_each_event_of_a_list_says_it_for_itself() -> None:
    app = App("telling", topic_partitions=1)
    source, sink = app.topic("source", key=str, value=int), app.topic("sink", key=str, value=list)

    @app.agent(source, to=sink, deferral=True)
    async def tell(stream: Stream[int]) -> AsyncIterator[list[list[int]]]:
        async for events in stream.events().take(2, within=60):
            if len(events) == 1:
                stream.defer(60)
                continue
            yield [[event.value, event.deferred] for event in events]

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a")
        driver.advance(90)
        driver.send(source, 2, key="b")
        driver.advance(90)
        driver.advance(90)
        assert [output.value for output in driver.outputs(sink)] == [[[2, 0], [1, 1]]]
