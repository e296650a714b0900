"""Agents that await between what they put into windows: numbers, checkpoints and readers look meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from window_support import ms, shown

from agentic import App, Stream
from agentic.testing import TestDriver

#: The value of an event that awaits with what it has added in hand, and then fails.
FAILS_LATER = 13


def test_whoever_looks_for_the_next_window_while_an_event_is_at_work_takes_nothing_away_if_it_fails() -> None:
    app = App("awaiting", topic_partitions=1, on_error="skip")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).session(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)
            if event.value == FAILS_LATER:
                await asyncio.sleep(1)
                raise ValueError("as asked")

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        # A session that has grown, then one that is growing: its first state is to be the next to close.
        for key, value, timestamp in [("b", 1, 100), ("b", 1, 105), ("a", 1, 99), ("a", FAILS_LATER, 101)]:
            driver.send(source, value, key=key, timestamp=timestamp)
        assert app.metrics.total("windows_open") == 2
        driver.advance(2)
        assert app.metrics.total("windows_open") == 2
        driver.send(source, 1, key="z", timestamp=1000)
        assert [output.value for output in driver.outputs(out)] == [["a", 99, 99, 1, 99], ["b", 100, 105, 2, 105]]
