"""Calls of a concurrent agent that return at once, beside some that wait: only these take stations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentic import App, Retry, Stream
from agentic.testing import TestDriver


def waiting(**execution: Any) -> tuple[App, Any, Any, list[tuple[str, float, int]]]:
    """Return an app whose agent waits for as many seconds as its event says, for none of them: not at all."""
    app = App("some-wait", topic_partitions=1)
    source, sink = app.topic("source", key=str, value=float), app.topic("sink", key=str, value=float)
    begun: list[tuple[str, float, int]] = []

    @app.agent(source, to=sink, concurrency=4, **execution)
    async def wait(stream: Stream[float]) -> AsyncIterator[float]:
        async for seconds in stream:
            begun.append((stream.event.key, seconds, stream.attempt))
            if seconds < 0 and stream.attempt < 3:
                raise ConnectionError("away")
            if seconds > 0:
                await asyncio.sleep(seconds)
            yield seconds

    return app, source, sink, begun


def test_what_returns_at_once_overtakes_what_waits_but_for_its_own_key() -> None:
    app, source, sink, begun = waiting()
    with TestDriver(app) as driver:
        for key, seconds in [("a", 5.0), ("b", 0.0), ("a", 0.0), ("c", 0.0), ("a", 1.0), ("b", 0.0)]:
            driver.send(source, seconds, key=key)
        assert [(out.key, out.value) for out in driver.outputs(sink)] == [("b", 0.0), ("c", 0.0), ("b", 0.0)]
        assert [key for key, _, _ in begun] == ["a", "b", "c", "b"]
        driver.advance(6)
        assert [(out.key, out.value) for out in driver.outputs(sink)] == [("a", 5.0), ("a", 0.0), ("a", 1.0)]


def test_what_raises_before_it_has_waited_is_tried_again_and_its_key_waits_for_it() -> None:
    retry = Retry(attempts=3, first=1, max=1, jitter="none")
    app, source, sink, begun = waiting(retry=retry)
    with TestDriver(app) as driver:
        for key, seconds in [("a", -1.0), ("a", 0.0), ("b", 0.0)]:
            driver.send(source, seconds, key=key)
        assert [out.key for out in driver.outputs(sink)] == ["b"]
        driver.advance(2)
        assert [(out.key, out.value) for out in driver.outputs(sink)] == [("a", -1.0), ("a", 0.0)]
        assert begun == [("a", -1.0, 1), ("b", 0.0, 1), ("a", -1.0, 2), ("a", -1.0, 3), ("a", 0.0, 1)]


def test_a_time_out_ends_what_waits_after_others_had_returned_at_once() -> None:
    app, source, sink, _ = waiting(timeout=2, on_exhausted="skip")
    with TestDriver(app) as driver:
        for key, seconds in [("a", 0.0), ("a", 9.0), ("a", 0.5), ("b", 0.0)]:
            driver.send(source, seconds, key=key)
        driver.advance(3)
        assert [(out.key, out.value) for out in driver.outputs(sink)] == [("a", 0.0), ("b", 0.0), ("a", 0.5)]
        assert driver.dropped == {"agent_error": 1}


def test_an_event_that_a_task_of_the_agents_own_has_come_for_keeps_its_key_busy() -> None:
    app = App("by-a-task", topic_partitions=1)
    source = app.topic("source", key=str, value=int)
    story: list[tuple[str, int]] = []

    async def slowly(stream: Stream[int]) -> int:
        n = await anext(stream)
        story.append(("begun", n))
        await asyncio.sleep(1)
        return n

    @app.agent(source, concurrency=4)
    async def come(stream: Stream[int]) -> None:
        while True:
            n = await asyncio.create_task(slowly(stream))
            story.append(("done", n))

    with TestDriver(app) as driver:
        for n in range(3):
            driver.send(source, n, key="a")
        driver.advance(5)
        assert story == [(what, n) for n in range(3) for what in ("begun", "done")]


def test_what_is_to_be_tried_again_goes_first_where_all_places_are_taken_by_those_behind_it() -> None:
    retry = Retry(attempts=3, first=1, max=1, jitter="none")
    app, source, sink, _ = waiting(retry=retry)
    behind = 1_000  # more than an agent gives places to
    with TestDriver(app) as driver:
        driver.send(source, -1.0, key="a")
        for _ in range(behind):
            driver.send(source, 0.0, key="a")
        assert driver.outputs(sink) == []
        driver.advance(3)
        assert [out.value for out in driver.outputs(sink)] == [-1.0] + [0.0] * behind
